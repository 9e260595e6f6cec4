import langchain_anthropic
import langchain_openai
from common import FINE, LONG, SMALL, URL


def check(make, base, overflow):
    assert make(base.format(URL)).invoke(FINE).text.strip() == "Fine."
    text = "".join(c.text for c in make(base.format(URL)).stream(FINE))
    assert text == "Fine.", text
    try:
        make(base.format(SMALL)).invoke(LONG)
    except Exception as e:
        names = [k.__name__ for k in type(e).__mro__]
        assert any(overflow in n for n in names), (names, str(e))
    else:
        raise AssertionError("no overflow was told")


for responses in (False, True):
    check(lambda u, r=responses: langchain_openai.ChatOpenAI(
        model="fake", base_url=u, use_responses_api=r, max_retries=0), "{}/v1", "ContextOverflow")
check(lambda u: langchain_anthropic.ChatAnthropic(model="fake", base_url=u, max_retries=0,
                                                  max_tokens=64), "{}", "ContextOverflow")
