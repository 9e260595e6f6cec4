#!/usr/bin/env python3
"""The OpenAI Python client's Responses API against a server.

    responses_check.py --start-fake FAKE_SERVER | --start-pilot FATHOM

Checks form, not content, so any model will do; with --start-fake (tests/e2e/fake_server) what it
answers too. Skips with one line when the openai package cannot be installed.
"""
import sys

import client_env

client_env.enter("openai")

import openai  # noqa: E402
import pydantic  # noqa: E402

CHECKS, check = client_env.check_list()
say = client_env.say
TOOL = {"type": "function", "name": "get_weather", "description": "Weather of a city",
        "strict": True,
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}},
                       "required": ["city"], "additionalProperties": False}}
DSML = "｜DSML｜"
CALL = (f"\n\n<{DSML}function_calls>\n<{DSML}invoke name=\"get_weather\">\n<{DSML}parameter "
        f"name=\"city\" string=\"true\">Paris</{DSML}parameter>\n</{DSML}invoke>\n"
        f"</{DSML}function_calls>")


def refused(status, f, **arguments):
    e = client_env.refused(openai.APIStatusError, status, f, **arguments)
    assert isinstance(e.body, dict) and e.body.get("message"), f"no error body: {e.body}"
    return e


def types(events):
    """The order of the events, deltas once."""
    names = []
    for event in events:
        if not (names and names[-1] == event.type and event.type.endswith(".delta")):
            names.append(event.type)
    return names


@check()
def whole(c, m):
    r = c.responses.create(model=m, input="Say hello.", instructions="Be brief.",
                           max_output_tokens=8)
    assert r.object == "response" and r.id.startswith("resp_")
    assert r.status in ("completed", "incomplete")
    assert r.usage.total_tokens == r.usage.input_tokens + r.usage.output_tokens
    assert r.usage.input_tokens_details.cached_tokens is not None
    assert r.usage.output_tokens_details.reasoning_tokens is not None
    assert r.output_text == "".join(p.text for i in r.output if i.type == "message"
                                    for p in i.content)
    if r.status == "incomplete":
        assert r.incomplete_details.reason == "max_output_tokens"


@check()
def fields(c, m):
    r = c.responses.create(
        model=m, input=[{"role": "user", "content": [{"type": "input_text", "text": "Hello."}]}],
        max_output_tokens=4, temperature=0.5, top_p=0.9, metadata={"a": "b"}, store=False,
        parallel_tool_calls=True, tools=[TOOL], tool_choice="auto", truncation="disabled",
        user="u", service_tier="auto", reasoning={"effort": "low", "summary": "auto"},
        text={"format": {"type": "text"}}, include=["reasoning.encrypted_content"],
        top_logprobs=2, prompt_cache_key="k", safety_identifier="s",
        extra_body={"top_k": 20, "min_p": 0.0, "seed": 3})
    assert r.metadata == {"a": "b"} and r.tools[0].name == "get_weather" and not r.store
    refused(404, c.responses.retrieve, response_id=r.id)


@check()
def stream(c, m):
    events = list(c.responses.create(model=m, input="Say hello.", max_output_tokens=8, stream=True))
    assert [e.sequence_number for e in events] == list(range(len(events)))
    assert [e.type for e in events[:2]] == ["response.created", "response.in_progress"]
    assert events[-1].type in ("response.completed", "response.incomplete")
    text = "".join(e.delta for e in events if e.type == "response.output_text.delta")
    assert text == events[-1].response.output_text
    assert events[-1].response.usage.output_tokens > 0


@check()
def conversation(c, m):
    first = c.responses.create(model=m, input="Say hello.", max_output_tokens=8)
    second = c.responses.create(model=m, input="Again.", previous_response_id=first.id,
                                max_output_tokens=8)
    assert second.previous_response_id == first.id
    assert second.usage.input_tokens > first.usage.input_tokens
    again = c.responses.retrieve(first.id)
    assert again.output == first.output and again.usage == first.usage
    items = [{"role": "user", "content": "Say hello."}, *first.output,
             {"role": "user", "content": "Again."}]
    whole_one = c.responses.create(model=m, input=items, max_output_tokens=8)
    assert whole_one.usage.input_tokens == second.usage.input_tokens
    c.responses.delete(first.id)
    refused(404, c.responses.retrieve, response_id=first.id)
    refused(400, c.responses.create, model=m, input="x", previous_response_id=first.id)


@check()
def logprobs(c, m):
    r = c.responses.create(model=m, input="Say hello.", max_output_tokens=4, top_logprobs=2,
                           include=["message.output_text.logprobs"],
                           reasoning={"effort": "none"})
    entries = r.output[0].content[0].logprobs
    assert entries and entries[0].logprob <= 0 and len(entries[0].top_logprobs) == 2


@check()
def errors(c, m):
    make = c.responses.create
    refused(404, make, model="no-such-model", input="x")
    assert refused(400, make, model=m, input="x", temperature=9).body["param"] == "temperature"
    r = c.responses.with_raw_response.create(
        model=m, input="x", background=True, truncation="auto", max_output_tokens=4,
        tools=[{"type": "web_search"}], extra_body={"whatever": 1})
    for word in ("background", "web_search", "whatever"):
        assert word in r.headers["warnings"], r.headers["warnings"]
    assert r.parse().truncation == "auto"
    refused(400, make, model=m, input=[{"role": "user", "content": [
        {"type": "input_image", "image_url": "http://x/y.png", "detail": "auto"}]}])
    assert refused(400, make, model=m, input="x", extra_body={"messages": [1]}).body[
        "param"] == "messages"


@check()
def parsed(c, m):
    class Speed(pydantic.BaseModel):
        km_per_hour: int

    r = c.responses.parse(model=m, input=say('{"km_per_hour":60}'), text_format=Speed,
                          max_output_tokens=200, reasoning={"effort": "none"})
    if r.status == "completed":
        assert isinstance(r.output_parsed, Speed)


@check(fake=True)
def fake_reasoning(c, m):
    kw = dict(model=m, input=say("why</think>Hi"))
    r = c.responses.create(reasoning={"effort": "high"}, **kw)
    assert [i.type for i in r.output] == ["reasoning", "message"]
    assert r.output[0].content[0].text == "why" and r.output_text == "Hi"
    r = c.responses.create(reasoning={"effort": "high", "summary": "auto"}, **kw)
    assert r.output[0].summary[0].text == "why" and not r.output[0].content
    events = list(c.responses.create(reasoning={"effort": "high"}, stream=True, **kw))
    part = ["response.content_part.added", None, None, "response.content_part.done"]
    expected = ["response.created", "response.in_progress"]
    for kind in ("reasoning_text", "output_text"):
        part[1:3] = [f"response.{kind}.delta", f"response.{kind}.done"]
        expected += ["response.output_item.added", *part, "response.output_item.done"]
    assert types(events) == [*expected, "response.completed"], types(events)


@check(fake=True)
def fake_tools(c, m):
    kw = dict(model=m, input=say("Let me see." + CALL), tools=[TOOL])
    r = c.responses.create(**kw)
    call = r.output[1]
    assert [i.type for i in r.output] == ["message", "function_call"]
    assert (call.name, call.arguments) == ("get_weather", '{"city": "Paris"}')
    assert call.call_id.startswith("call_") and call.id.startswith("fc_")
    with c.responses.stream(**kw) as s:
        names = types(s)
        final = s.get_final_response()
    assert "response.function_call_arguments.done" in names
    assert final.output[1].arguments == call.arguments
    r = c.responses.create(model=m, previous_response_id=r.id, tools=[TOOL], input=[
        {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"},
        {"role": "user", "content": say("Fine.")}])
    assert r.output_text == "Fine."


@check(fake=True)
def fake_cancel(c, m):
    s = c.responses.create(model=m, input=say("ab", repeat=1000, step_ms=50), stream=True)
    created = next(iter(s))
    assert c.responses.cancel(created.response.id).status == "cancelled"
    assert [e for e in s][-1].type == "response.failed"
    assert c.responses.retrieve(created.response.id).status == "cancelled"
    refused(400, c.responses.cancel, response_id=created.response.id)


@check(fake=True)
def fake_errors(c, m):
    refused(429, c.responses.create, model=m, input=say("x", refuse="busy"))
    refused(503, c.responses.create, model=m, input=say("x", refuse="device"))
    events = list(c.responses.create(model=m, stream=True,
                                     input="[[step_ms=20;then=fail;say=abc]]"))
    assert events[-1].type == "response.failed"
    assert events[-1].response.error.code == "server_error"


def connect(url):
    client = openai.OpenAI(base_url=url + "/v1", api_key="none", max_retries=0, timeout=120)
    return client, client.models.list().data[0].id


if __name__ == "__main__":
    sys.exit(client_env.main(CHECKS, connect))
