import sys

sys.path[0], here = "", sys.path[0]  # this file has the package's name
import litellm  # noqa: E402

sys.path.insert(0, here)
from common import FINE, LONG, SMALL, URL, raises  # noqa: E402

for model in ("openai/fake", "hosted_vllm/fake"):
    kw = dict(model=model, api_base=URL + "/v1", messages=[{"role": "user", "content": FINE}])
    assert litellm.completion(**kw).choices[0].message.content == "Fine."
    text = "".join(c.choices[0].delta.content or "" for c in litellm.completion(stream=True, **kw))
    assert text == "Fine.", text
    raises(litellm.ContextWindowExceededError, litellm.completion, model=model,
           api_base=SMALL + "/v1", messages=[{"role": "user", "content": LONG}])
