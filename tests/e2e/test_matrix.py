#!/usr/bin/env python3
"""Features of the server in pairs: what each request gets is what it gets from a plain server.

    tests/e2e/test_matrix.py [--all] [FLAGS] path/to/fathom

WAYS are flags of the server that must not show in an answer; ASKS are fields of a request that do.
For every pair of ways (with --all; else one of the first three and one of the others) a server is
started with both, and for every third pair of asks it gets a request with both, all at once; each
way meets each pair of asks on some server. The whole body of every answer, tokens and
log-probabilities to the last digit, must be that of a server without any way, which gets one
request at a time. The pilot says it; greedy, unless the request brings a seed.
"""

import concurrent.futures
import itertools
import json
import os
import sys
import tempfile
import unittest

from served import Server, take_program

DRAFTS = json.dumps({"method": "deepseek_mtp", "num_speculative_tokens": 2})
PLAIN = ("--no-enable-prefix-caching", "--threads", "1", "--max-num-batched-tokens", "1024")
MAX_LEN = 512
RAM_PAGES = 18
FEW_PAGES = 9  # one more than a request of MAX_LEN may take

# name: flags, the metric that says that it took place. Later flags win over earlier ones.
WAYS = {
    "drafts": (("--speculative-config", DRAFTS), "vllm:spec_decode_num_accepted_tokens_total"),
    "prefix hits": (("--enable-prefix-caching",), "vllm:prompt_tokens_cached_total"),
    "chunks": (("--max-num-batched-tokens", "40"), "vllm:prompt_tokens_total"),
    "preemption": ((), "vllm:num_preemptions_total"),  # with FEW_PAGES
    "tiers": (("--enable-prefix-caching",), "fathom_kv_tier_hits_total"),  # with a small cache
    "fp8 cache": (("--kv-cache-dtype", "fp8"), "vllm:prompt_tokens_total"),
}
CHANGES_NUMBERS = {"fp8 cache"}  # a plain server has these too

TOOLS = [{"type": "function", "function": {
    "name": "get_weather", "description": "Get weather for a location",
    "parameters": {"type": "object", "properties": {"location": {"type": "string"}},
                   "required": ["location"]}}}]
SCHEMA = {"type": "object", "required": ["name", "age"], "properties": {
    "name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "minimum": 0}}}
ASKS = {
    "tools": {"tools": TOOLS},
    "schema": {"response_format": {"type": "json_schema",
                                   "json_schema": {"name": "person", "schema": SCHEMA}}},
    "tag": {"response_format": {"type": "structural_tag", "format": {
        "type": "triggered_tags", "triggers": ["e"], "tags": [{"begin": "e(", "end": ")", "content": {
            "type": "grammar", "grammar": 'root ::= root [+*] n | n\nn ::= "0" | [1-9] [0-9]?'}}]}}},
    "logprobs": {"logprobs": True, "top_logprobs": 3},
    "n": {"n": 2},
    "seed": {"temperature": 1, "seed": 11},
    "rules": {"presence_penalty": 0.7, "repetition_penalty": 1.1, "stop": ["the", "\n"]},
    "thinking": {"chat_template_kwargs": {"thinking": True}, "thinking_token_budget": 7},
}
QUESTIONS = ["What is the weather in San Francisco?", "Hello, who are you?",
             "Solve step by step: If a train travels 120km in 2 hours, and then 180km in 3 hours, "
             "what is the average speed?"]


def pairs(table):
    """Every set of one or two names of the table."""
    return [*((name,) for name in table), *itertools.combinations(table, 2)]


def page_bytes(ways):
    """Of the pilot's cache: eight layers and the MTP layer, latent rows and index keys."""
    return (8 + ("drafts" in ways)) * 64 * ((656 if "fp8 cache" in ways else 1152) + 132)


def requests():
    """A body for every pair of asks; their prompts begin alike and end within and across pages."""
    bodies = []
    for i, names in enumerate(pairs(ASKS)):
        body = {"model": "pilot", "temperature": 0, "max_tokens": 20, "ignore_eos": i % 4 > 0,
                "messages": [{"role": "system", "content": "You are brief. " * (1 + i % 3 * 5)},
                             {"role": "user", "content": QUESTIONS[i % 3] + " Please." * i}]}
        for name in names:
            body.update(ASKS[name])
        bodies.append((names, body))
    return bodies


def long_requests():
    """Each begins with a page or two and ends with twice as many."""
    return [(("a long answer",), {"model": "pilot", "temperature": i % 2, "seed": i,
                                  "max_tokens": 120, "ignore_eos": True,
                                  "messages": [{"role": "user", "content": QUESTIONS[1] * (i + 1)}]})
            for i in range(FEW_PAGES - 1)]


def said(answer):
    """What does not depend on when it was asked: all but ids, times, and what was cached."""
    for choice in answer["choices"]:
        for call in choice["message"].get("tool_calls") or []:
            del call["id"]
    usage = {k: v for k, v in answer["usage"].items() if k != "prompt_tokens_details"}
    return json.dumps({"choices": answer["choices"], "usage": usage}, sort_keys=True)


def ask(server, body):
    return said(server.post("/v1/chat/completions", body))


class Matrix(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        cls.plain = {}  # by the ways that change numbers: a plain server, and what it has said

    @classmethod
    def tearDownClass(cls):
        if any([server.stop() for server, _ in cls.plain.values()]):
            raise AssertionError("a plain server did not end with status 0")

    def plain_answer(self, ways, body):
        key = tuple(sorted(CHANGES_NUMBERS & set(ways)))
        if key not in self.plain:
            self.plain[key] = (self.start(key, "--max-num-seqs", "1"), {})
        server, answers = self.plain[key]
        text = json.dumps(body)
        if text not in answers:
            answers[text] = ask(server, body)
        return answers[text]

    def start(self, ways, *flags):
        flags = [*PLAIN, "--max-model-len", str(MAX_LEN), *flags]
        for way in ways:
            flags += WAYS[way][0]
        if "preemption" in ways or "tiers" in ways:
            flags += ["--kv-cache-memory-bytes", str(FEW_PAGES * page_bytes(ways))]
        if "tiers" in ways:  # most pages leave the memory tier for the directory
            folder = tempfile.TemporaryDirectory(prefix="fathom-matrix-")
            self.addCleanup(folder.cleanup)
            flags += ["--kv-offload-ram", str(RAM_PAGES * (page_bytes(ways) + 8192)),
                      "--kv-offload-dir", folder.name, "--kv-offload-dir-size", "256M"]
        return Server("--log-level", "error", *flags)

    def ask_all(self, server, ways, asked):
        """All at once; each answer is a plain server's."""
        want = [self.plain_answer(ways, body) for _, body in asked]
        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            have = list(pool.map(lambda request: ask(server, request[1]), asked))
        for (names, _), a, b in zip(asked, have, want):
            self.assertEqual(a, b, f"{' + '.join(ways)}: {' + '.join(names)}")

    def check(self, ways, part):
        server = self.start(ways, "--max-num-seqs", "12")
        if "preemption" in ways:
            self.ask_all(server, ways, long_requests())
        for _ in range(2 if {"prefix hits", "tiers"} & set(ways) else 1):
            self.ask_all(server, ways, requests()[part::3])
        metrics = server.metrics()
        for way in ways:
            count = sum(v for k, v in metrics.items() if k.startswith(WAYS[way][1] + "{"))
            self.assertGreater(count, 0, f"{' + '.join(ways)}: {way} did not take place")
        self.assertEqual(server.stop(), 0)

    def test_every_pair(self):
        if ALL:
            parts = {ways: (i + i // 7) % 3 for i, ways in enumerate(pairs(WAYS))}
        else:
            names = list(WAYS)
            parts = {(a, b): (i + j) % 3 for i, a in enumerate(names[:3])
                     for j, b in enumerate(names[3:])}
        for way in WAYS:  # a table that has grown may need another rule
            self.assertEqual({parts[ways] for ways in parts if way in ways}, {0, 1, 2}, way)
        for ways, part in parts.items():
            with self.subTest(ways=ways):
                self.check(ways, part)


if __name__ == "__main__":
    ALL = sys.argv[1] == "--all"
    if ALL:
        sys.argv.pop(1)
    take_program(sys.argv)
    unittest.main(verbosity=2)
