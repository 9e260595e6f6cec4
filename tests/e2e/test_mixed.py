#!/usr/bin/env python3
"""A server under everything at once, for as long as is asked for.

    tests/e2e/test_mixed.py [FLAGS] path/to/fathom

MIXED_STREAMS clients (default 24) ask for MIXED_SECONDS (default 8), each again and again for one of:
a chat, the same prompt as before, a tool's call, an object of a schema, log-probabilities; or they leave in
the middle. FLAGS go to the server, so that `--model=DIR -tp=8 --load-format=dummy` loads another one.

What is held: every stream ends whole or is refused with 429 and a time; one question, asked over and over,
has one answer; structured answers that end by themselves are valid; afterwards no page is held, no descriptor
is left open, and memory is what it was halfway, but for MIXED_MIB (default 48).
"""

import collections
import json
import os
import random
import subprocess
import sys
import threading
import time
import unittest

from served import Server, take_program

SECONDS = float(os.environ.get("MIXED_SECONDS", "8"))
STREAMS = int(os.environ.get("MIXED_STREAMS", "24"))
MIB = int(os.environ.get("MIXED_MIB", "48"))

TOOL = {"type": "function", "function": {
    "name": "get_weather", "description": "Weather of a place",
    "parameters": {"type": "object", "required": ["location"], "additionalProperties": False,
                   "properties": {"location": {"type": "string", "maxLength": 12},
                                  "unit": {"enum": ["C", "F"]}}}}}
SCHEMA = {"type": "object", "required": ["name", "age"], "additionalProperties": False,
          "properties": {"name": {"type": "string", "maxLength": 8},
                         "age": {"type": "integer", "minimum": 0, "maximum": 99}}}
SMALL = ("--kv-cache-memory-bytes=64M",)  # 97 pages of 64 tokens
SHARED = "All of these words stand before every question of this kind. " * 12


def gpu_mib():
    """Memory in use on each GPU, as the driver tells it; empty where there is none."""
    try:
        said = subprocess.run(["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"],
                              capture_output=True, text=True, check=True, timeout=60).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    return [int(line) for line in said.split()]


class Client:
    """One after another, requests of every kind, until the time is over."""

    def __init__(self, server, first, half, tally):
        self.server, self.first, self.tally = server, first, tally
        self.rng = random.Random(2 * first + half)

    def run(self, end):
        kinds = [self.chat, self.again, self.probe, self.tool, self.schema, self.logprobs, self.leave]
        kinds[self.first % len(kinds)]()  # so that there is one of each, however slow the machine
        while time.monotonic() < end:
            self.rng.choice(kinds)()

    def words(self, n):
        return " ".join(str(self.rng.randrange(1000)) for _ in range(n))

    def ask(self, fields, leave_after=None):
        """The events of a streamed chat; None where it was refused or left."""
        body = {"model": self.tally.model, "stream": True, "stream_options": {"include_usage": True},
                "temperature": 1.0, "seed": self.rng.randrange(1 << 30), **fields}
        connection = self.server.connect()
        connection.request("POST", "/v1/chat/completions", json.dumps(body))
        answer = connection.getresponse()
        if answer.status == 429:
            if not answer.getheader("Retry-After"):
                raise AssertionError("429 without Retry-After")
            answer.read()
            connection.close()
            self.tally.count("refused")
            time.sleep(0.05)
            return None
        if answer.status != 200:
            raise AssertionError(f"{answer.status} {answer.read()} for {body}")
        events, last = [], None
        for line in answer:
            if not line.startswith(b"data: "):
                continue
            last = line[6:].strip()
            if last != b"[DONE]":
                events.append(json.loads(last))
            if leave_after is not None and len(events) > leave_after:
                connection.close()
                self.tally.count("left")
                return None
        connection.close()
        if last != b"[DONE]" or any("error" in event for event in events):
            raise AssertionError(f"torn: {last} after {len(events)} events of {body}")
        return events

    def whole(self, kind, fields):
        """Asks; (text, calls' arguments, why it ended, usage), or None where it was refused."""
        events = self.ask(fields)
        if events is None:
            return None
        text, arguments, finish, usage = "", "", None, None
        for event in events:
            usage = event.get("usage") or usage
            for choice in event["choices"]:
                delta = choice["delta"]
                text += delta.get("content") or ""
                for call in delta.get("tool_calls") or []:
                    arguments += call["function"].get("arguments") or ""
                finish = choice["finish_reason"] or finish
        if finish is None or usage is None:
            raise AssertionError(f"{kind}: an end without a reason or a usage")
        self.tally.count(kind)
        self.tally.count("tokens", usage["completion_tokens"])
        return text, arguments, finish, usage

    def chat(self):
        n = self.rng.randrange(1, 96)
        answer = self.whole("chats", {"max_tokens": n, "ignore_eos": True, "messages": [
            {"role": "user", "content": self.words(self.rng.randrange(1, 120))}]})
        if answer and answer[3]["completion_tokens"] != n:
            raise AssertionError(f"{answer[3]} for max_tokens {n}")

    def again(self):
        answer = self.whole("prefixes", {"max_tokens": 16, "messages": [
            {"role": "user", "content": SHARED + self.words(3)}]})
        if answer and answer[3]["prompt_tokens_details"]["cached_tokens"]:
            self.tally.count("prefixes found")

    def probe(self):
        which = self.rng.randrange(4)
        answer = self.whole("probes", {"max_tokens": 40, "seed": which, "ignore_eos": True, "messages": [
            {"role": "user", "content": f"Tell number {which}."}]})
        if answer:
            self.tally.same(which, answer[0])

    def tool(self):
        answer = self.whole("calls", {"max_tokens": 120, "tools": [TOOL], "tool_choice": "required",
                                      "messages": [{"role": "user", "content": "Weather in Paris?"}]})
        if answer and answer[2] == "tool_calls":
            self.tally.count("calls ended")
            if "location" not in json.loads(answer[1]):
                raise AssertionError(f"a call without its place: {answer[1]}")

    def schema(self):
        answer = self.whole("objects", {"max_tokens": 120, "response_format": {
            "type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA}},
            "messages": [{"role": "user", "content": "Somebody, as JSON."}]})
        if answer and answer[2] == "stop":
            self.tally.count("objects ended")
            if sorted(json.loads(answer[0])) != ["age", "name"]:
                raise AssertionError(f"not of the schema: {answer[0]}")

    def logprobs(self):
        self.whole("with log-probabilities", {"max_tokens": 12, "logprobs": True, "top_logprobs": 3,
                   "messages": [{"role": "user", "content": self.words(9)}]})

    def leave(self):
        self.ask({"max_tokens": 400, "ignore_eos": True, "messages": [
            {"role": "user", "content": self.words(20)}]}, leave_after=self.rng.randrange(30))


class Tally:
    """What was counted and answered, by all clients."""

    def __init__(self, model):
        self.model = model
        self.counts = collections.Counter()
        self.answers = {}
        self.faults = []
        self.lock = threading.Lock()

    def count(self, what, n=1):
        with self.lock:
            self.counts[what] += n

    def same(self, which, text):
        with self.lock:
            if self.answers.setdefault(which, text) != text:
                raise AssertionError(f"another answer: {text!r} after {self.answers[which]!r}")

    def run(self, client, end):
        try:
            client.run(end)
        except Exception as fault:  # noqa: reported by the main thread
            with self.lock:
                self.faults.append(repr(fault))


class Mixed(unittest.TestCase):
    def test_everything_at_once(self):
        server = Server("--max-model-len=2048", *([] if Server.given else SMALL))
        model = json.loads(self.get(server, "/v1/models"))["data"][0]["id"]
        server.wait_idle()
        n_descriptor = server.n_descriptor()
        tally = Tally(model)
        begin = time.monotonic()
        halves = []
        for half in (1, 2):
            end = begin + SECONDS * half / 2
            threads = [threading.Thread(target=tally.run, args=(Client(server, i, half, tally), end))
                       for i in range(STREAMS)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            self.assertEqual(tally.faults, [])
            server.wait_idle()
            halves.append((server.resident_kib() >> 10, gpu_mib()))
        held = [value for name, value in server.metrics().items()
                if name.startswith("fathom_pages{") and 'state="held"' in name]
        self.assertEqual(set(held), {0})
        server.wait_descriptors(n_descriptor + 1)
        self.assertEqual(server.stop(), 0)
        print(f"mixed load, {STREAMS} clients, {time.monotonic() - begin:.0f} s: "
              + ", ".join(f"{n} {what}" for what, n in sorted(tally.counts.items()))
              + "; memory in MiB, of each GPU too, halfway and at the end: "
              + " and ".join(f"{mib} {gpus}" for mib, gpus in halves))
        for what in ("chats", "prefixes found", "probes", "calls", "objects", "left"):
            self.assertGreater(tally.counts[what], 0, what)
        self.assertLess(halves[1][0], halves[0][0] + MIB)
        for before, after in zip(halves[0][1], halves[1][1]):
            self.assertLessEqual(after, before)

    def get(self, server, path):
        connection = server.connect()
        connection.request("GET", path)
        text = connection.getresponse().read()
        connection.close()
        return text


if __name__ == "__main__":
    take_program(sys.argv)
    unittest.main(argv=sys.argv[:1] + ["-v"])
