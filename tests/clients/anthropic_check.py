#!/usr/bin/env python3
"""The Anthropic Python client against a server.

    anthropic_check.py --start-fake FAKE_SERVER | --start-pilot FATHOM

Checks form, not content, so any model will do; with --start-fake (tests/e2e/fake_server) what it
answers too. Skips with one line when the anthropic package cannot be installed.
"""
import sys

import client_env

client_env.enter("anthropic")

import anthropic  # noqa: E402
import pydantic  # noqa: E402

CHECKS, check = client_env.check_list()
ASK = [{"role": "user", "content": "Say hello."}]
TOOL = {"name": "get_weather", "description": "Weather of a city",
        "input_schema": {"type": "object", "properties": {"city": {"type": "string"}},
                         "required": ["city"]}}
DSML = "｜DSML｜"
CALL = (f"\n\n<{DSML}function_calls>\n<{DSML}invoke name=\"get_weather\">\n<{DSML}parameter "
        f"name=\"city\" string=\"true\">Paris</{DSML}parameter>\n</{DSML}invoke>\n"
        f"</{DSML}function_calls>")
THINKING = {"type": "enabled", "budget_tokens": 1024}


def say(text, **options):
    return [{"role": "user", "content": client_env.say(text, **options)}]


def refused(status, kind, f, **arguments):
    e = client_env.refused(anthropic.APIStatusError, status, f, **arguments)
    assert e.body["type"] == "error" and e.body["error"]["type"] == kind, e.body
    return e


@check()
def whole(c, m):
    r = c.messages.create(model=m, messages=ASK, system="Be brief.", max_tokens=8)
    assert r.type == "message" and r.role == "assistant" and r.id.startswith("msg_")
    assert r.stop_reason in ("end_turn", "max_tokens") and r.stop_sequence is None
    assert r.usage.input_tokens + r.usage.cache_read_input_tokens > 0
    assert r.usage.output_tokens > 0 and r.usage.output_tokens_details.thinking_tokens is not None
    assert r._request_id == r.id


@check()
def stream(c, m):
    with c.messages.stream(model=m, messages=ASK, max_tokens=8) as s:
        text = "".join(s.text_stream)
        final = s.get_final_message()
    assert text == "".join(b.text for b in final.content if b.type == "text")
    assert final.stop_reason and final.usage.output_tokens > 0
    events = [e.type for e in c.messages.create(model=m, messages=ASK, max_tokens=8, stream=True)]
    assert events[0] == "message_start" and events[-2:] == ["message_delta", "message_stop"]


@check()
def fields(c, m):
    r = c.messages.create(
        model=m, max_tokens=4, stop_sequences=["zz"], metadata={"user_id": "u"},
        service_tier="auto", tools=[TOOL], output_config={"effort": "low"},
        tool_choice={"type": "auto", "disable_parallel_tool_use": False}, thinking=THINKING,
        system=[{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
        messages=[{"role": "user", "content": [{"type": "text", "text": "Hello."}]}],
        extra_body={"temperature": 0.5, "top_p": 0.9, "top_k": 20, "min_p": 0.0, "seed": 3})
    assert r.usage.output_tokens > 0


@check()
def prefill(c, m):
    r = c.messages.create(model=m, max_tokens=4, thinking={"type": "disabled"}, messages=[
        *ASK, {"role": "assistant", "content": "The answer is"}])
    assert r.usage.output_tokens > 0


@check()
def counting(c, m):
    kw = dict(model=m, messages=ASK, system="Be brief.", tools=[TOOL])
    counted = c.messages.count_tokens(**kw).input_tokens
    usage = c.messages.create(max_tokens=2, **kw).usage
    assert counted == usage.input_tokens + usage.cache_read_input_tokens


@check()
def second_turn(c, m):
    first = c.messages.create(model=m, messages=ASK, max_tokens=8, thinking=THINKING)
    follow = [*ASK, {"role": "assistant", "content": first.content},
              {"role": "user", "content": "Again."}]
    if first.content:
        assert c.messages.create(model=m, messages=follow, max_tokens=8).usage.output_tokens > 0


@check()
def demanded(c, m):
    r = c.messages.create(model=m, messages=say(CALL), max_tokens=200, tools=[TOOL],
                          thinking={"type": "disabled"},
                          tool_choice={"type": "tool", "name": "get_weather"})
    if r.stop_reason != "max_tokens":
        assert r.stop_reason == "tool_use", r.stop_reason
        assert isinstance(r.content[0].input["city"], str)


@check()
def parsed(c, m):
    class Speed(pydantic.BaseModel):
        km_per_hour: int

    r = c.messages.parse(model=m, max_tokens=200, output_format=Speed,
                         thinking={"type": "disabled"}, messages=say('{"km_per_hour":60}'))
    if r.stop_reason == "end_turn":
        assert isinstance(r.parsed_output, Speed)


@check()
def errors(c, m):
    make, bad = c.messages.create, "invalid_request_error"
    refused(404, "not_found_error", make, model="no-such-model", messages=ASK, max_tokens=4)
    refused(400, bad, make, model=m, messages=[], max_tokens=4)
    refused(400, bad, make, model=m, messages=ASK, max_tokens=0)
    image = {"type": "image", "source": {"type": "url", "url": "http://x/y.png"}}
    e = refused(400, bad, make, model=m, messages=[{"role": "user", "content": [image]}],
                max_tokens=4)
    assert "image" in str(e)
    r = c.messages.with_raw_response.create(
        model=m, messages=ASK, max_tokens=4, extra_body={"whatever": 1},
        tools=[{"type": "web_search_20250305", "name": "web_search"}])
    for word in ("web_search_20250305", "whatever"):
        assert word in r.headers["warnings"], r.headers["warnings"]


@check(fake=True)
def fake_thinking(c, m):
    kw = dict(model=m, messages=say("why</think>Hi"), max_tokens=50)
    r = c.messages.create(thinking=THINKING, **kw)
    assert [b.type for b in r.content] == ["thinking", "text"]
    assert r.content[0].thinking == "why" and r.content[0].signature
    with c.messages.stream(thinking=THINKING, **kw) as s:
        final = s.get_final_message()
    assert final.content[0] == r.content[0] and final.content[1].text == "Hi"
    assert final.usage == r.usage
    r = c.messages.create(thinking={**THINKING, "display": "omitted"}, **kw)
    assert r.content[0].thinking == "" and r.content[1].text == "Hi"


@check(fake=True)
def fake_tools(c, m):
    ask = say("Let me see." + CALL)
    kw = dict(model=m, messages=ask, max_tokens=200, tools=[TOOL])
    r = c.messages.create(**kw)
    use = r.content[1]
    assert r.stop_reason == "tool_use" and r.content[0].text == "Let me see."
    assert (use.name, use.input) == ("get_weather", {"city": "Paris"})
    assert use.id.startswith("toolu_")
    with c.messages.stream(**kw) as s:
        final = s.get_final_message()
    assert final.content[1].input == use.input and final.stop_reason == "tool_use"
    r = c.messages.create(model=m, max_tokens=50, tools=[TOOL], messages=[
        *ask, {"role": "assistant", "content": r.content},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": use.id, "content": "sunny"},
            {"type": "text", "text": "[[say=Fine.]]"}]}])
    assert r.content[0].text == "Fine."
    r = c.messages.create(**{**kw, "tool_choice": {"type": "none"}})
    assert r.stop_reason == "end_turn"


@check(fake=True)
def fake_stop(c, m):
    r = c.messages.create(model=m, messages=say("ab STOP cd"), max_tokens=50,
                          stop_sequences=["STOP"])
    assert (r.stop_reason, r.stop_sequence) == ("stop_sequence", "STOP")
    assert r.content[0].text == "ab "
    r = c.messages.create(model=m, messages=say("abcdef"), max_tokens=3)
    assert r.stop_reason == "max_tokens"


@check(fake=True)
def fake_errors(c, m):
    make = c.messages.create
    e = refused(429, "rate_limit_error", make, model=m, messages=say("x", refuse="busy"),
                max_tokens=4)
    assert int(e.response.headers["retry-after"]) >= 1
    refused(503, "api_error", make, model=m, messages=say("x", refuse="device"), max_tokens=4)
    ask = [{"role": "user", "content": "[[step_ms=20;then=fail;say=abc]]"}]
    try:
        list(make(model=m, messages=ask, max_tokens=50, stream=True))
    except anthropic.APIStatusError as error:
        assert "engine has failed" in str(error)
        return
    raise AssertionError("the stream did not tell the error")


def connect(url):
    client = anthropic.Anthropic(base_url=url, api_key="none", max_retries=0, timeout=120)
    return client, client.models.list().data[0].id


if __name__ == "__main__":
    sys.exit(client_env.main(CHECKS, connect))
