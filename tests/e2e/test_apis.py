#!/usr/bin/env python3
"""One conversation through every API: the pilot says the same in each, streamed and not.

    tests/e2e/test_apis.py [FLAGS] path/to/fathom

The form of /v1/chat/completions is the measure: what /v1/responses and /v1/messages answer is put
into it, and must be its content, reasoning, tool calls and counts. Requests are greedy, or bring a
seed. The prefix cache is off, so that cached tokens do not depend on who asks first.
"""

import json
import os
import sys
import unittest

from served import Server, take_program

PARAMETERS = {"type": "object", "properties": {"location": {"type": "string"}},
              "required": ["location"]}
NAME, ABOUT = "get_weather", "Get weather for a location"
TRAIN = ("Solve step by step: If a train travels 120km in 2 hours, and then 180km in 3 hours, "
         "what is the average speed?")
WEATHER = "What is the weather in San Francisco?"


class Talk:
    """A conversation, as the requests of the three APIs."""

    def __init__(self, system=None, tools=False, thinking=False, choice=None, schema=None,
                 **fields):
        self.chat = {"messages": []}
        self.responses = {"input": [], "store": False}
        self.messages = {"messages": [], "max_tokens": 300}
        self.chat["max_tokens"] = self.responses["max_output_tokens"] = 300
        for body in (self.chat, self.responses, self.messages):
            body.update({"temperature": 0, **fields})
        if system:
            self.chat["messages"].append({"role": "system", "content": system})
            self.responses["instructions"] = system
            self.messages["system"] = system
        self.chat["reasoning_effort"] = "high" if thinking else "none"
        self.responses["reasoning"] = {"effort": "high" if thinking else "none"}
        self.messages["thinking"] = ({"type": "enabled", "budget_tokens": 1024} if thinking
                                     else {"type": "disabled"})
        if tools:
            self.chat["tools"] = [{"type": "function", "function": {
                "name": NAME, "description": ABOUT, "parameters": PARAMETERS}}]
            self.responses["tools"] = [{"type": "function", "name": NAME, "description": ABOUT,
                                        "parameters": PARAMETERS}]
            self.messages["tools"] = [{"name": NAME, "description": ABOUT,
                                       "input_schema": PARAMETERS}]
        if choice == "any":
            self.chat["tool_choice"] = self.responses["tool_choice"] = "required"
            self.messages["tool_choice"] = {"type": "any"}
        elif choice == "named":
            self.chat["tool_choice"] = {"type": "function", "function": {"name": NAME}}
            self.responses["tool_choice"] = {"type": "function", "name": NAME}
            self.messages["tool_choice"] = {"type": "tool", "name": NAME}
        if schema:
            self.chat["response_format"] = {"type": "json_schema", "json_schema": {
                "name": "output", "schema": schema, "strict": True}}
            self.responses["text"] = {"format": {"type": "json_schema", "name": "output",
                                                 "schema": schema, "strict": True}}
            self.messages["output_config"] = {"format": {"type": "json_schema", "schema": schema}}

    def user(self, text):
        self.chat["messages"].append({"role": "user", "content": text})
        self.responses["input"].append({"role": "user", "content": text})
        self.messages["messages"].append({"role": "user", "content": text})
        return self

    def assistant(self, said):
        """What was said before, in the words of each API."""
        calls = [{"id": f"c{i}", "type": "function",
                  "function": {"name": name, "arguments": arguments}}
                 for i, (name, arguments) in enumerate(said["calls"])]
        message = {"role": "assistant", "content": said["content"],
                   "reasoning_content": said["reasoning"]}
        self.chat["messages"].append({**message, "tool_calls": calls} if calls else message)
        items = self.responses["input"]
        blocks = []
        if said["reasoning"]:
            items.append({"type": "reasoning", "summary": [], "content": [
                {"type": "reasoning_text", "text": said["reasoning"]}]})
            blocks.append({"type": "thinking", "thinking": said["reasoning"], "signature": ""})
        if said["content"]:
            items.append({"type": "message", "role": "assistant", "content": [
                {"type": "output_text", "text": said["content"]}]})
            blocks.append({"type": "text", "text": said["content"]})
        for i, (name, arguments) in enumerate(said["calls"]):
            items.append({"type": "function_call", "call_id": f"c{i}", "name": name,
                          "arguments": arguments})
            blocks.append({"type": "tool_use", "id": f"c{i}", "name": name,
                           "input": json.loads(arguments)})
        self.messages["messages"].append({"role": "assistant", "content": blocks})
        return self

    def result(self, text):
        self.chat["messages"].append({"role": "tool", "tool_call_id": "c0", "content": text})
        self.responses["input"].append({"type": "function_call_output", "call_id": "c0",
                                        "output": text})
        self.messages["messages"].append({"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "c0", "content": text}]})
        return self


# ---- answers, each put into one form ---------------------------------------------------------

def of_chat(answer):
    choice, usage = answer["choices"][0], answer["usage"]
    message = choice["message"]
    return {"content": message["content"] or "", "reasoning": message["reasoning_content"] or "",
            "calls": [(c["function"]["name"], c["function"]["arguments"])
                      for c in message.get("tool_calls") or []],
            "cut": choice["finish_reason"] == "length",
            "counts": (usage["prompt_tokens"], usage["completion_tokens"],
                       usage["completion_tokens_details"]["reasoning_tokens"])}


def of_response(answer):
    usage, output = answer["usage"], answer["output"]
    parts = [p for item in output if item["type"] != "function_call" for p in item["content"]]
    return {"content": "".join(p["text"] for p in parts if p["type"] == "output_text"),
            "reasoning": "".join(p["text"] for p in parts if p["type"] == "reasoning_text"),
            "calls": [(i["name"], i["arguments"]) for i in output if i["type"] == "function_call"],
            "cut": answer["status"] == "incomplete",
            "counts": (usage["input_tokens"], usage["output_tokens"],
                       usage["output_tokens_details"]["reasoning_tokens"])}


def of_message(answer):
    usage, blocks = answer["usage"], answer["content"]
    return {"content": "".join(b["text"] for b in blocks if b["type"] == "text"),
            "reasoning": "".join(b["thinking"] for b in blocks if b["type"] == "thinking"),
            "calls": [(b["name"], b["input"]) for b in blocks if b["type"] == "tool_use"],
            "cut": answer["stop_reason"] == "max_tokens",
            "counts": (usage["input_tokens"] + usage["cache_read_input_tokens"],
                       usage["output_tokens"], usage["output_tokens_details"]["thinking_tokens"])}


def message_of_stream(events):
    """What a client makes of the events of /v1/messages."""
    message, texts = None, []
    keys = {"text_delta": "text", "thinking_delta": "thinking", "input_json_delta": "partial_json"}
    for event in events:
        kind = event["type"]
        if kind == "message_start":
            message = event["message"]
        elif kind == "content_block_start":
            assert event["index"] == len(message["content"])
            message["content"].append(event["content_block"])
            texts.append("")
        elif kind == "content_block_delta" and event["delta"]["type"] in keys:
            texts[event["index"]] += event["delta"][keys[event["delta"]["type"]]]
        elif kind == "message_delta":
            message.update(event["delta"])
            message["usage"] = event["usage"]
    assert events[-1]["type"] == "message_stop"
    for block, text in zip(message["content"], texts):
        if block["type"] == "tool_use":
            block["input"] = json.loads(text)
        else:
            block["text" if block["type"] == "text" else "thinking"] = text
    return message


def response_of_stream(events):
    """The last event's response, which the other events must have built."""
    assert [e["sequence_number"] for e in events] == list(range(len(events)))
    output, deltas = [], ""
    for event in events:
        if event["type"] == "response.output_item.done":
            assert event["output_index"] == len(output)
            output.append(event["item"])
        elif event["type"].endswith(".delta"):
            deltas += event["delta"]
        elif event["type"].endswith(("_text.done", "_arguments.done")):
            assert deltas == event.get("text", event.get("arguments"))
            deltas = ""
    assert events[-1]["response"]["output"] == output
    return events[-1]["response"]


# ---- tests -----------------------------------------------------------------------------------

class Apis(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--no-enable-prefix-caching")

    @classmethod
    def tearDownClass(cls):
        assert cls.server.stop() == 0

    def events(self, path, body):
        connection = self.server.connect()
        connection.request("POST", path, json.dumps({**body, "stream": True}))
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        self.assertEqual(answer.status, 200, text)
        events = []
        for block in text.split("\n\n"):
            if block and not block.startswith(":"):
                name, data = block.split("\n")
                events.append(json.loads(data[len("data: "):]))
                self.assertEqual(name, "event: " + events[-1]["type"])
        return events

    def check(self, talk):
        """All ways say the same; what they say."""
        want = of_chat(self.server.post("/v1/chat/completions", talk.chat))
        whole = self.server.post("/v1/responses", talk.responses)
        streamed = response_of_stream(self.events("/v1/responses", talk.responses))
        self.assertEqual(of_response(whole), want)
        self.assertEqual(of_response(streamed), want)
        as_objects = {**want, "calls": [(n, json.loads(a)) for n, a in want["calls"]]}
        whole = self.server.post("/v1/messages", talk.messages)
        streamed = message_of_stream(self.events("/v1/messages", talk.messages))
        self.assertEqual(of_message(whole), as_objects)
        self.assertEqual(of_message(streamed), as_objects)
        if not want["cut"]:
            self.assertEqual(whole["stop_reason"], "tool_use" if want["calls"] else "end_turn")
        prompt = {k: v for k, v in talk.messages.items()
                  if k in ("messages", "system", "tools", "tool_choice", "thinking",
                           "output_config")}
        counted = self.server.post("/v1/messages/count_tokens", prompt)
        self.assertEqual(counted, {"input_tokens": want["counts"][0]})
        return want

    def test_plain(self):
        said = self.check(Talk(system="You are a helpful assistant.").user("Hello, who are you?"))
        self.assertIn("Pilot", said["content"])

    def test_thinking_and_a_second_turn(self):
        talk = Talk(thinking=True).user(TRAIN)
        said = self.check(talk)
        self.assertTrue(said["reasoning"] and "60 km/h" in said["content"])
        self.check(talk.assistant(said).user("Hello, who are you?"))

    def test_a_thinking_budget(self):
        talk = Talk(thinking=True).user(TRAIN)
        talk.chat["thinking_token_budget"] = talk.responses["thinking_token_budget"] = 10
        talk.messages["thinking"]["budget_tokens"] = 10
        said = self.check(talk)
        self.assertTrue(said["reasoning"] and said["content"])
        self.assertEqual(said["counts"][2], 11)  # </think> is one of them

    def test_tools_and_their_results(self):
        for thinking in (False, True):
            talk = Talk(tools=True, thinking=thinking).user(WEATHER)
            said = self.check(talk)
            self.assertEqual([n for n, _ in said["calls"]], [NAME])
            self.check(talk.assistant(said).result("sunny, 20 degrees"))

    def test_a_seed_and_a_limit(self):
        said = self.check(Talk(temperature=1, seed=5, top_p=0.9, top_k=40).user(TRAIN))
        self.assertTrue(said["content"])
        talk = Talk().user(TRAIN)
        talk.chat["max_tokens"] = talk.messages["max_tokens"] = 7
        talk.responses["max_output_tokens"] = 7
        self.assertTrue(self.check(talk)["cut"])

    def test_a_call_is_demanded(self):
        for choice in ("any", "named"):
            said = self.check(Talk(tools=True, choice=choice).user("Hello, who are you?"))
            self.assertEqual([n for n, _ in said["calls"]], [NAME])

    def test_a_schema_holds(self):
        schema = {"type": "object", "properties": {"speed": {"type": "integer"}},
                  "required": ["speed"], "additionalProperties": False}
        said = self.check(Talk(schema=schema).user(TRAIN))
        self.assertIsInstance(json.loads(said["content"])["speed"], int)

    def test_a_kept_conversation_is_the_whole_one(self):
        talk = Talk(thinking=True).user(TRAIN)
        first = self.server.post("/v1/responses", {**talk.responses, "store": True})
        talk.assistant(of_response(first)).user("Hello, who are you?")
        follow = {**talk.responses, "input": "Hello, who are you?",
                  "previous_response_id": first["id"]}
        self.assertEqual(of_response(self.server.post("/v1/responses", follow)), self.check(talk))

    def test_sglangs_completion_is_openais(self):
        prompt = "The advantage of MLA over standard GQA is"
        for fields, seed in ({"temperature": 0}, None), ({"temperature": 1, "top_p": 0.9}, 5):
            openai = {"prompt": prompt, "max_tokens": 20, "logprobs": 1, "return_token_ids": True,
                      "stop": [" keys"], "top_p": 1, **fields, "seed": seed}
            sglang = {"text": prompt, "return_logprob": True, "return_text_in_logprobs": True,
                      "sampling_params": {"max_new_tokens": 20, "stop": " keys", **fields,
                                          "sampling_seed": seed}}
            answer = self.server.post("/v1/completions", openai)
            want, usage = answer["choices"][0], answer["usage"]
            whole = self.server.post("/generate", sglang)
            streamed = self.server.stream("/generate", sglang)
            for got in whole, streamed[-1]:
                meta, logprobs = got["meta_info"], want["logprobs"]
                self.assertEqual(got["text"], want["text"])
                self.assertEqual(got["output_ids"], want["token_ids"])
                self.assertEqual(meta["finish_reason"]["type"], want["finish_reason"])
                self.assertEqual(meta["finish_reason"].get("matched"), want["stop_reason"])
                self.assertEqual([meta["prompt_tokens"], meta["completion_tokens"]],
                                 [usage["prompt_tokens"], usage["completion_tokens"]])
                self.assertEqual(meta["output_token_logprobs"],
                                 [list(t) for t in zip(logprobs["token_logprobs"],
                                                       want["token_ids"], logprobs["tokens"])])
            for event in streamed:
                self.assertTrue(want["text"].startswith(event["text"]))


if __name__ == "__main__":
    take_program(sys.argv)
    unittest.main(verbosity=2)
