#!/usr/bin/env python3
"""The OpenAI Python client against a server.

    openai_check.py --url BASE_URL [--key KEY] [--model NAME] [--fake]
    openai_check.py --start-fake FAKE_SERVER | --start-pilot FATHOM

Checks form, not content, so any model will do. With --fake the server is tests/e2e/fake_server and
what it answers is checked too, but nothing that needs a model. /v1/responses has a file of its own
(responses_check.py). Skips with one line when the openai package cannot be installed.
"""
import argparse
import concurrent.futures
import contextlib
import http.client
import json
import sys
import time
import urllib.parse

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


def refused(status, f, **arguments):
    e = client_env.refused(openai.APIStatusError, status, f, **arguments)
    assert isinstance(e.body, dict) and e.body.get("message"), f"no error body: {e.body}"
    return e


def raw(c):
    """A connection without the client, and the path that its base URL has."""
    url = urllib.parse.urlsplit(str(c.base_url))
    return http.client.HTTPConnection(url.hostname, url.port, timeout=client_env.HANG_S), url.path.rstrip("/")


def n_aborted(c):
    """Requests that have ended because their clients left."""
    connection, _ = raw(c)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines()
               if line.startswith("vllm:request_success_total") and '"abort"' in line)


def wait_for_aborts(c, n):
    end = time.monotonic() + client_env.HANG_S
    while n_aborted(c) < n:
        assert time.monotonic() < end, "requests go on whose clients have left"
        time.sleep(0.02)


# ---- models, and what needs no client ----

@check()
def models(c, m):
    ids = [x.id for x in c.models.list().data]
    assert m in ids, ids
    assert c.models.retrieve(m).id == m
    refused(404, c.models.retrieve, model="no-such-model")


@check()
def connection_is_kept(c, m):
    connection, path = raw(c)
    for _ in range(2):
        connection.request("GET", path + "/models", headers={"Authorization": "Bearer none"})
        answer = connection.getresponse()
        assert answer.status == 200 and answer.read()
        assert answer.getheader("Connection") != "close"
    connection.close()


@check()
def raw_requests(c, m):
    connection, path = raw(c)
    connection.request("POST", path + "/chat/completions", '{"messages": [')
    answer = connection.getresponse()
    error = json.loads(answer.read())["error"]
    assert answer.status == 400 and "line 1 column" in error["message"], error
    for probe in ("/health", "/ping", "/version", "/load"):
        connection.request("GET", probe)
        answer = connection.getresponse()
        text = answer.read()
        assert answer.status == 200 and json.loads(text), (probe, answer.status, text)
    connection.close()


@check(model=True)
def preflight(c, m):
    connection, path = raw(c)
    connection.request("OPTIONS", path + "/chat/completions", headers={
        "Origin": "http://x", "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization,content-type"})
    answer = connection.getresponse()
    answer.read()
    assert answer.status in (200, 204) and answer.getheader("Access-Control-Allow-Origin") == "*"
    connection.close()


# ---- chat ----

@check()
def chat(c, m):
    r = c.chat.completions.create(model=m, messages=MESSAGES, max_tokens=8)
    assert r.object == "chat.completion" and r.choices[0].message.role == "assistant"
    assert r.choices[0].finish_reason in ("stop", "length")
    assert r.usage.total_tokens == r.usage.prompt_tokens + r.usage.completion_tokens
    assert r.usage.prompt_tokens_details.cached_tokens is not None
    assert r.usage.completion_tokens_details.reasoning_tokens is not None


@check()
def chat_max_completion_tokens(c, m):
    r = c.chat.completions.create(model=m, messages=MESSAGES, max_completion_tokens=3,
                                  temperature=0, extra_body={"ignore_eos": True})
    assert r.usage.completion_tokens == 3 and r.choices[0].finish_reason == "length"


@check()
def chat_stream(c, m):
    chunks = list(c.chat.completions.create(model=m, messages=MESSAGES, max_tokens=8, stream=True,
                                            stream_options={"include_usage": True}))
    assert len({x.id for x in chunks}) == 1
    assert {x.object for x in chunks} == {"chat.completion.chunk"}
    first = chunks[0].choices[0].delta
    assert first.role == "assistant" and first.content == ""
    assert all(x.choices[0].delta.role is None for x in chunks[1:-1])
    assert chunks[-1].choices == [] and chunks[-1].usage.completion_tokens > 0
    ends = [x for x in chunks if x.choices and x.choices[0].finish_reason]
    assert ends == [chunks[-2]] and ends[0].choices[0].delta.content is None
    assert all(x.usage is None for x in chunks[:-1])


@check()
def chat_stream_without_usage(c, m):
    chunks = list(c.chat.completions.create(model=m, messages=MESSAGES, max_tokens=6, stream=True))
    assert not any(x.usage for x in chunks) and chunks[-1].choices[0].finish_reason


@check()
def chat_stream_of_choices_with_usage_in_each(c, m):
    chunks = list(c.chat.completions.create(
        model=m, messages=MESSAGES, max_tokens=4, stream=True, n=2,
        stream_options={"include_usage": True},
        extra_body={"stream_options": {"include_usage": True, "continuous_usage_stats": True}}))
    assert {x.choices[0].index for x in chunks if x.choices} == {0, 1}
    assert all(x.usage for x in chunks)


@check()
def chat_stream_helper(c, m):
    with c.chat.completions.stream(model=m, messages=MESSAGES, max_tokens=200, temperature=0,
                                   stream_options={"include_usage": True}) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    assert "chunk" in kinds and "content.delta" in kinds and final.usage.completion_tokens > 0
    assert final.choices[0].finish_reason == "stop"


@check()
def chat_repeats(c, m):
    ask = lambda **kw: c.chat.completions.create(
        model=m, messages=MESSAGES, max_tokens=12, **kw).choices[0].message.content
    assert ask(temperature=0) == ask(temperature=0)
    assert ask(temperature=1, seed=7) == ask(temperature=1, seed=7)


@check()
def chat_choices(c, m):
    r = c.chat.completions.create(model=m, messages=MESSAGES, max_tokens=4, n=3)
    assert [x.index for x in r.choices] == [0, 1, 2]


@check()
def chat_stop(c, m):
    r = c.chat.completions.create(model=m, messages=MESSAGES, max_tokens=60,
                                  stop=list("aeiou .!") + ["the"])
    assert r.choices[0].finish_reason == "stop" and len(r.choices[0].message.content) < 20


@check()
def chat_logprobs(c, m):
    r = c.chat.completions.create(model=m, messages=MESSAGES, max_tokens=3, logprobs=True,
                                  top_logprobs=2, extra_body={"ignore_eos": True})
    assert len(r.choices[0].logprobs.content) == 3
    entry = r.choices[0].logprobs.content[0]
    assert entry.logprob <= 0 and len(entry.top_logprobs) == 2 and entry.bytes


@check()
def chat_prompt_logprobs(c, m):
    r = c.chat.completions.create(model=m, messages=MESSAGES, max_tokens=1,
                                  extra_body={"prompt_logprobs": 1, "return_token_ids": True})
    assert len(r.prompt_logprobs) == r.usage.prompt_tokens and r.prompt_logprobs[0] is None
    assert all(str(i) in entry for i, entry in
               zip(r.prompt_token_ids[1:], r.prompt_logprobs[1:], strict=True))
    assert all(x["rank"] >= 1 for entry in r.prompt_logprobs[1:] for x in entry.values())


@check()
def chat_fields(c, m):
    c.chat.completions.create(model=m, messages=MESSAGES, max_completion_tokens=4, temperature=0.5,
                              top_p=0.9, presence_penalty=0.1, frequency_penalty=0.1, seed=7,
                              logit_bias={"100": -100}, user="u", store=False, stop=["zz"], n=1,
                              metadata={"a": "b"}, parallel_tool_calls=True, service_tier="auto",
                              safety_identifier="s", prompt_cache_key="k", reasoning_effort="low",
                              extra_body={"top_k": 20, "min_p": 0.0, "repetition_penalty": 1.1,
                                          "chat_template_kwargs": {"thinking": False},
                                          "thinking": {"type": "disabled"}, "priority": 0,
                                          "cache_salt": "a", "request_id": "r-1"})


@check()
def chat_message_forms(c, m):
    count = lambda messages: c.chat.completions.create(
        model=m, messages=messages, max_tokens=1).usage.prompt_tokens
    text = [{"type": "text", "text": "Say"}, {"type": "text", "text": "hi"}]
    assert count([{"role": "user", "content": text}]) == count(
        [{"role": "user", "content": "Say\nhi"}])
    assert count([{"role": "developer", "content": "Be brief."}, MESSAGES[1]]) > 0
    prefix = {"role": "assistant", "content": "Well,"}
    flagged = count([MESSAGES[1], {**prefix, "prefix": True}])
    r = c.chat.completions.create(
        model=m, messages=[MESSAGES[1], prefix], max_tokens=1,
        extra_body={"continue_final_message": True, "add_generation_prompt": False})
    assert r.usage.prompt_tokens == flagged


@check()
def chat_thinking(c, m):
    count = lambda **kw: c.chat.completions.create(
        model=m, messages=MESSAGES, max_tokens=1, **kw).usage.prompt_tokens
    plain = count()
    assert plain == count(reasoning_effort="high") == count(
        extra_body={"thinking": {"type": "enabled"}, "chat_template_kwargs": {"thinking": True}})


# ---- tools and forms of answers ----

@check(model=True)
def tools_choices(c, m):
    ask = lambda **kw: c.chat.completions.create(
        model=m, messages=MESSAGES, tools=TOOLS, max_tokens=90, **kw).choices[0]
    assert ask().message.role == "assistant"
    assert not ask(tool_choice="none").message.tool_calls
    named = {"type": "function", "function": {"name": "get_weather"}}
    for choice in ("required", named):
        calls = ask(tool_choice=choice).message.tool_calls
        assert calls[0].function.name == "get_weather" and calls[0].type == "function"
        assert isinstance(json.loads(calls[0].function.arguments)["city"], str)


@check(model=True)
def tools_stream(c, m):
    chunks = list(c.chat.completions.create(
        model=m, messages=MESSAGES, tools=TOOLS, tool_choice="required", stream=True,
        max_tokens=90, parallel_tool_calls=False, stream_options={"include_usage": True}))
    deltas = [d for x in chunks for y in x.choices for d in y.delta.tool_calls or []]
    assert deltas[0].index == 0 and deltas[0].id and deltas[0].function.name == "get_weather"
    assert all(d.id is None and d.index == 0 for d in deltas[1:])
    assert "city" in json.loads("".join(d.function.arguments or "" for d in deltas))


@check()
def tools_round_trip(c, m):
    call = {"id": "call_1", "type": "function",
            "function": {"name": "get_weather", "arguments": '{"city":"Paris"}'}}
    other = {**call, "id": "call_2"}
    messages = MESSAGES + [{"role": "assistant", "content": None, "tool_calls": [call, other]},
                           {"role": "tool", "tool_call_id": "call_1", "content": "12 C"},
                           {"role": "tool", "tool_call_id": "call_2", "content": '{"t":15}'}]
    r = c.chat.completions.create(model=m, max_tokens=4, tools=TOOLS, messages=messages)
    assert r.usage.prompt_tokens > 0


@check(model=True)
def response_formats(c, m):
    ask = lambda form: c.chat.completions.create(
        model=m, messages=MESSAGES, response_format=form, max_tokens=400).choices[0]
    assert ask({"type": "json_object"}).message.content.lstrip().startswith("{")
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"],
              "additionalProperties": False}
    answer = ask({"type": "json_schema",
                  "json_schema": {"name": "answer", "strict": True, "schema": schema}})
    assert isinstance(json.loads(answer.message.content)["ok"], bool)


# ---- completions ----

@check()
def completions(c, m):
    r = c.completions.create(model=m, prompt="Once upon", max_tokens=4)
    assert r.object == "text_completion" and isinstance(r.choices[0].text, str)
    r = c.completions.create(model=m, prompt=["One", "Two"], max_tokens=3, n=2)
    assert [x.index for x in r.choices] == [0, 1, 2, 3]
    r = c.completions.create(model=m, prompt=[20, 21, 22], max_tokens=3, logprobs=2)
    assert r.usage.prompt_tokens == 3 and r.choices[0].logprobs.tokens
    r = c.completions.create(model=m, prompt=[[20, 21], [22]], max_tokens=3)
    assert r.usage.prompt_tokens == 3 and len(r.choices) == 2
    r = c.completions.create(model=m, prompt="Once upon", max_tokens=3, echo=True)
    assert r.choices[0].text.startswith("Once upon")
    r = c.completions.create(model=m, prompt="One", suffix="three", max_tokens=3, best_of=2, n=1)
    assert len(r.choices) == 1


@check()
def completions_stream(c, m):
    chunks = list(c.completions.create(model=m, prompt="Once upon", max_tokens=6, stream=True,
                                       stream_options={"include_usage": True}))
    assert chunks[-1].choices == [] and chunks[-1].usage.prompt_tokens > 0
    assert chunks[-2].choices[0].finish_reason and {x.object for x in chunks} == {"text_completion"}


@check()
def completions_score_prompts(c, m):
    r = c.completions.create(model=m, prompt=["One two", "Two"], max_tokens=0, echo=True,
                             logprobs=2)
    for choice in r.choices:
        scores = choice.logprobs
        assert choice.text in ("One two", "Two") and scores.token_logprobs[0] is None
        assert all(x <= 0 for x in scores.token_logprobs[1:])
        assert len(scores.tokens) == len(scores.top_logprobs) == len(scores.text_offset)
    assert r.usage.completion_tokens == 0


# ---- refusals ----

@check()
def errors(c, m):
    create = c.chat.completions.create
    e = refused(404, create, model="no-such-model", messages=MESSAGES)
    assert e.code == "model_not_found" and m in e.message
    assert refused(400, create, model=m, messages=[]).param == "messages"
    assert refused(400, create, model=m, messages=openai.omit).param == "messages"
    assert refused(400, create, model=m, messages=MESSAGES, temperature=9).param == "temperature"
    assert refused(400, create, model=m, messages=MESSAGES, max_tokens=-5).param == "max_tokens"
    e = refused(400, create, model=m, messages=MESSAGES, max_tokens="many")
    assert e.code == "invalid_type" and e.type == "invalid_request_error"
    refused(400, create, model=m, messages=[{"role": "wizard", "content": "x"}])
    refused(400, create, model=m, messages=MESSAGES, response_format={"type": "structural_tag"})
    refused(400, create, model=m, messages=MESSAGES, tool_choice="required")
    e = refused(400, create, model=m, messages=[{"role": "user", "content": [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}]}])
    assert "image_url" in e.message and e.param == "messages[0].content[0].type"
    r = c.chat.completions.with_raw_response.create(model=m, messages=MESSAGES, max_tokens=4,
                                                    extra_body={"temprature": 1})
    assert "did you mean temperature?" in r.headers["warnings"]
    refused(404, c.embeddings.create, model=m, input="x")
    refused(404, c.get, path="/nothing", cast_to=object)
    e = refused(400, create, model=m, max_tokens=4,
                messages=[{"role": "user", "content": "word " * 300000}])
    assert e.code == "context_length_exceeded"


# ---- clients that leave, and several at once ----

@check(model=True)
def leaving(c, m):
    before = n_aborted(c)
    kw = dict(model=m, messages=MESSAGES, max_tokens=2000, extra_body={"ignore_eos": True})
    stream = c.chat.completions.create(stream=True, **kw)
    for _ in range(3):
        next(iter(stream))
    stream.close()
    try:
        c.with_options(timeout=0.05).chat.completions.create(**kw)
        raise AssertionError("2000 tokens in 0.05 s")
    except openai.APITimeoutError:
        pass
    c.chat.completions.create(model=m, messages=MESSAGES, max_tokens=2)
    wait_for_aborts(c, before + 1)  # the other may have left before it was there


@check()
def several_at_once(c, m):
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        ask = lambda i: c.chat.completions.create(
            model=m, messages=[{"role": "user", "content": f"Count from {i}"}], max_tokens=16)
        answers = list(pool.map(ask, range(8)))
    assert len({r.id for r in answers}) == 8


@check(model=True)
def prompt_cache_is_reported(c, m):
    long = [{"role": "user", "content": "word " * 300}]
    usage = [c.chat.completions.create(model=m, messages=long, max_tokens=2).usage
             for _ in range(2)]
    cached = [x.prompt_tokens_details.cached_tokens for x in usage]
    assert cached[0] <= cached[1] <= usage[1].prompt_tokens
    assert cached[1] >= 64, cached


# ---- what the scripted server says ----

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
    before = n_aborted(c)
    stream = c.chat.completions.create(model=m, messages=say("abc", repeat=1000, step_ms=50),
                                       stream=True)
    for _ in range(5):
        next(iter(stream))
    stream.close()
    c.chat.completions.create(model=m, messages=MESSAGES, max_tokens=2)
    wait_for_aborts(c, before + 1)


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
                               timeout=client_env.HANG_S)
        model = a.model or client.models.list().data[0].id
        return client_env.run_checks(CHECKS, a.fake or bool(a.start_fake), client, model)


if __name__ == "__main__":
    sys.exit(main())
