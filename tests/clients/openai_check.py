#!/usr/bin/env python3
"""The OpenAI Python client against a server.

    openai_check.py --url BASE_URL [--key KEY] [--model NAME] [--fake]
    openai_check.py --start-fake FAKE_SERVER | --start-pilot FATHOM

Checks form, not content, so any model will do. With --fake the server is tests/e2e/fake_server and
what it answers is checked too. Skips with one line when the openai package cannot be installed.
"""
import argparse
import contextlib
import sys
import time

import client_env

client_env.enter("openai")

import openai  # noqa: E402

CHECKS, check = client_env.check_list()
MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Say hello."}]
TOOLS = [{"type": "function", "function": {
    "name": "get_weather", "description": "Weather of a city",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}},
                   "required": ["city"]}}}]
DSML = "｜DSML｜"


def say(text, **options):
    return [{"role": "user", "content": client_env.say(text, **options)}]


def refused(status, f, **kw):
    try:
        f(**kw)
    except openai.APIStatusError as e:
        assert e.status_code == status, f"status {e.status_code}, expected {status}: {e.message}"
        assert isinstance(e.body, dict) and e.body.get("message"), f"no error body: {e.body}"
        return e
    raise AssertionError(f"no error came, expected status {status}")


@check()
def models(c, m):
    ids = [x.id for x in c.models.list().data]
    assert m in ids, ids
    assert c.models.retrieve(m).id == m
    refused(404, c.models.retrieve, model="no-such-model")


@check()
def chat(c, m):
    r = c.chat.completions.create(model=m, messages=MESSAGES, max_tokens=8)
    assert r.object == "chat.completion" and r.choices[0].message.role == "assistant"
    assert r.choices[0].finish_reason in ("stop", "length")
    assert r.usage.total_tokens == r.usage.prompt_tokens + r.usage.completion_tokens
    assert r.usage.prompt_tokens_details.cached_tokens is not None
    assert r.usage.completion_tokens_details.reasoning_tokens is not None


@check()
def chat_stream(c, m):
    chunks = list(c.chat.completions.create(model=m, messages=MESSAGES, max_tokens=8, stream=True,
                                            stream_options={"include_usage": True}))
    assert len({x.id for x in chunks}) == 1
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-1].choices == [] and chunks[-1].usage.completion_tokens > 0
    assert [x for x in chunks if x.choices and x.choices[0].finish_reason]
    assert all(x.usage is None for x in chunks[:-1])


@check()
def chat_choices(c, m):
    r = c.chat.completions.create(model=m, messages=MESSAGES, max_tokens=4, n=3)
    assert [x.index for x in r.choices] == [0, 1, 2]


@check()
def chat_logprobs(c, m):
    r = c.chat.completions.create(model=m, messages=MESSAGES, max_tokens=3, logprobs=True,
                                  top_logprobs=2)
    entry = r.choices[0].logprobs.content[0]
    assert entry.logprob <= 0 and len(entry.top_logprobs) == 2 and entry.bytes


@check()
def chat_fields(c, m):
    c.chat.completions.create(model=m, messages=MESSAGES, max_completion_tokens=4, temperature=0.5,
                              top_p=0.9, presence_penalty=0.1, frequency_penalty=0.1, seed=7,
                              logit_bias={"100": -100}, user="u", store=False, stop=["zz"],
                              metadata={"a": "b"}, parallel_tool_calls=True, service_tier="auto",
                              reasoning_effort="low",
                              extra_body={"top_k": 20, "min_p": 0.0, "repetition_penalty": 1.1,
                                          "chat_template_kwargs": {"thinking": False},
                                          "thinking": {"type": "disabled"}})


@check()
def completions(c, m):
    r = c.completions.create(model=m, prompt="Once upon", max_tokens=4)
    assert r.object == "text_completion" and isinstance(r.choices[0].text, str)
    r = c.completions.create(model=m, prompt=["One", "Two"], max_tokens=3, n=2)
    assert [x.index for x in r.choices] == [0, 1, 2, 3]
    r = c.completions.create(model=m, prompt=[20, 21, 22], max_tokens=3, logprobs=2)
    assert r.usage.prompt_tokens == 3 and r.choices[0].logprobs.tokens
    r = c.completions.create(model=m, prompt="Once upon", max_tokens=3, echo=True)
    assert r.choices[0].text.startswith("Once upon")
    assert list(c.completions.create(model=m, prompt="x", max_tokens=3, stream=True))


@check()
def errors(c, m):
    create = c.chat.completions.create
    e = refused(404, create, model="no-such-model", messages=MESSAGES)
    assert e.code == "model_not_found" and m in e.message
    assert refused(400, create, model=m, messages=[]).param == "messages"
    assert refused(400, create, model=m, messages=MESSAGES, temperature=9).param == "temperature"
    assert refused(400, create, model=m, messages=MESSAGES, max_tokens=-5).param == "max_tokens"
    refused(400, create, model=m, messages=[{"role": "wizard", "content": "x"}])
    refused(400, create, model=m, messages=MESSAGES, response_format={"type": "structural_tag"})
    refused(400, create, model=m, messages=MESSAGES, tool_choice="required")
    refused(400, create, model=m, messages=[{"role": "user", "content": [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}]}])
    e = refused(400, create, model=m, messages=MESSAGES, extra_body={"temprature": 1})
    assert e.param == "temprature" and e.code == "unknown_parameter" and "temperature?" in e.message
    refused(404, c.embeddings.create, model=m, input="x")
    e = refused(400, create, model=m, max_tokens=4,
                messages=[{"role": "user", "content": "word " * 300000}])
    assert e.code == "context_length_exceeded"


@check()
def tools_round_trip(c, m):
    call = {"id": "call_1", "type": "function",
            "function": {"name": "get_weather", "arguments": '{"city":"Paris"}'}}
    messages = MESSAGES + [{"role": "assistant", "content": None, "tool_calls": [call]},
                           {"role": "tool", "tool_call_id": "call_1", "content": "12 C"}]
    r = c.chat.completions.create(model=m, max_tokens=4, tools=TOOLS, messages=messages)
    assert r.usage.prompt_tokens > 0


@check(fake=True)
def fake_text(c, m):
    r = c.chat.completions.create(model=m, messages=say("Grüße, 世界! 🎉"))
    assert r.choices[0].message.content == "Grüße, 世界! 🎉"
    r = c.chat.completions.create(model=m, messages=say("one STOP two"), stop="STOP")
    assert r.choices[0].message.content == "one " and r.choices[0].finish_reason == "stop"
    assert r.choices[0].stop_reason == "STOP"


@check(fake=True)
def fake_reasoning(c, m):
    kw = dict(model=m, messages=say("because</think>Yes."),
              extra_body={"chat_template_kwargs": {"thinking": True}})
    r = c.chat.completions.create(**kw)
    message = r.choices[0].message
    assert message.content == "Yes." and message.reasoning_content == "because"
    assert message.reasoning == "because"
    assert r.usage.completion_tokens_details.reasoning_tokens == len("because") + 1
    chunks = list(c.chat.completions.create(stream=True, **kw))
    text = lambda key: "".join(getattr(x.choices[0].delta, key, None) or "" for x in chunks)
    assert (text("reasoning_content"), text("content")) == ("because", "Yes.")


@check(fake=True)
def fake_tools(c, m):
    call = (f'\n\n<{DSML}function_calls>\n<{DSML}invoke name="get_weather">\n'
            f'<{DSML}parameter name="city" string="true">Paris</{DSML}parameter>\n'
            f'</{DSML}invoke>\n</{DSML}function_calls>')
    kw = dict(model=m, messages=say("Let me see." + call), tools=TOOLS)
    r = c.chat.completions.create(**kw)
    choice = r.choices[0]
    assert choice.finish_reason == "tool_calls" and choice.message.content == "Let me see."
    assert choice.message.tool_calls[0].function.name == "get_weather"
    assert choice.message.tool_calls[0].id.startswith("call_")
    with c.chat.completions.stream(**kw) as stream:
        final = stream.get_final_completion()
    streamed = final.choices[0].message.tool_calls[0].function
    assert (streamed.name, streamed.arguments) == ("get_weather", '{"city": "Paris"}')
    assert choice.message.tool_calls[0].function.arguments == streamed.arguments
    r = c.chat.completions.create(tool_choice="none", **kw)
    assert not r.choices[0].message.tool_calls


@check(fake=True)
def fake_errors(c, m):
    e = refused(429, c.chat.completions.create, model=m, messages=say("x", refuse="busy"))
    assert int(e.response.headers["retry-after"]) >= 1
    refused(503, c.chat.completions.create, model=m, messages=say("x", refuse="device"))


@check(fake=True)
def fake_leave(c, m):
    stream = c.chat.completions.create(model=m, messages=say("abc", repeat=1000, step_ms=5),
                                       stream=True)
    for _ in range(5):
        next(iter(stream))
    stream.close()
    begin = time.time()
    c.chat.completions.create(model=m, messages=MESSAGES, max_tokens=2)
    assert time.time() - begin < 2


def server_of(options):
    """A context manager of the port, or of None for a server that runs already."""
    if options.start_fake:
        return client_env.started_fake(options.start_fake)
    if options.start_pilot:
        return client_env.started_pilot(options.start_pilot)
    return contextlib.nullcontext()


def main():
    p = argparse.ArgumentParser()
    server = p.add_mutually_exclusive_group(required=True)
    server.add_argument("--url")
    server.add_argument("--start-fake")
    server.add_argument("--start-pilot")
    p.add_argument("--key", default="none")
    p.add_argument("--model")
    p.add_argument("--fake", action="store_true")
    a = p.parse_args()
    with server_of(a) as port:
        url = a.url or f"http://127.0.0.1:{port}"
        client = openai.OpenAI(base_url=url.rstrip("/") + "/v1", api_key=a.key, max_retries=0,
                               timeout=120)
        model = a.model or client.models.list().data[0].id
        return client_env.run_checks(CHECKS, a.fake or bool(a.start_fake), client, model)


if __name__ == "__main__":
    sys.exit(main())
