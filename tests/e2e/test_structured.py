#!/usr/bin/env python3
"""Outputs held to a grammar, drawn by the pilot at temperature 1.0 and judged by the Python package
jsonschema.

    tests/e2e/test_structured.py [--all] [FLAGS] path/to/fathom

Every schema of tests/data/grammar/schemas.json whose outputs end soon is asked for in all WAYS,
with two seeds, with --all with seven, many at a time; then calls of tools that must be made, may be made, or are strict.
An answer that meets max_tokens is counted as not finished; more than one in a hundred is a failure.
Skips with one line when the package is not installed.
"""

import concurrent.futures
import json
import os
import random
import re
import sys
import unittest

from served import Server, take_program

try:
    import jsonschema
except ImportError:
    print("test_structured: skipped, the Python package jsonschema is not installed "
          "(python3-jsonschema)")
    sys.exit(77)

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
DRAFTS = {7: jsonschema.Draft7Validator, 2020: jsonschema.Draft202012Validator}
ALL = "--all" in sys.argv[1:2] and sys.argv.pop(1) == "--all"
N_CHOICE = 7 if ALL else 2  # of a request, each with a seed of its own
MAX_TOKENS = 400
# Lists and trees without a bound, which the pilot draws out.
ENDLESS = {"a schema without type", "not a type", "not these values",
           "not a number; words that say nothing", "additional only", "pattern properties",
           "pattern and named", "count others", "array", "prefix items", "pattern inside",
           "formats", "tree", "linked list", "recursive root", "escaped reference", "deep objects",
           "true", "any value", "additional true", "additional schema", "property names", "anchor",
           "unevaluated items"}
# How a schema is asked for.
WAYS = [
    lambda s: {"response_format": {"type": "json_schema",
                                   "json_schema": {"name": "answer", "schema": s}}},
    lambda s: {"guided_json": json.dumps(s)},
    lambda s: {"structured_outputs": {"json": s, "disable_any_whitespace": True}},
]
THINK = {"chat_template_kwargs": {"thinking": True}}
BOUND = {**THINK, "thinking_token_budget": 5}


def function(name, properties, required=(), **more):
    return {"type": "function", "function": {"name": name, **more, "parameters": {
        "type": "object", "properties": properties, "required": list(required)}}}


WORD = {"type": "string", "minLength": 1, "maxLength": 12}
TOOLS = [
    function("get_weather", {"location": WORD, "unit": {"enum": ["C", "F"]}, "days": {
        "type": "integer", "minimum": 1, "maximum": 14}}, ["location"]),
    function("send", {"to": {"type": "array", "items": WORD, "minItems": 1, "maxItems": 2},
                      "urgent": {"type": "boolean"}}, ["to", "urgent"]),
    function("move", {"by": {"type": "object", "properties": {
        "x": {"type": "number", "minimum": -1, "maximum": 1},
        "y": {"type": "number", "minimum": 0}},
        "required": ["x"], "additionalProperties": False}}, ["by"]),
    function("now", {}),
]

SUMS = r"""
root ::= "(" part [-+] part ")*" sum  # of products
sum ::= sum [-+] product | product
product ::= product "*" part | part
part ::= [1-9] [0-9]{0,2} | "(" sum ")"
"""
LARK_SUMS = r"""
start: "(" part ("+" | "-") part ")*" sum
?sum: product | sum ("+" | "-") product -> add
?product: part
    | product "*" part
?part: NUMBER | "(" sum ")"
NUMBER: /[1-9][0-9]{0,2}/
"""
SMALL_JSON = r"""
root ::= object
value ::= object | array | word | [1-9] [0-9]{0,5} | "true" | "null"
object ::= "{" (member ("," member){0,3})? "}"
member ::= word ":" value
array ::= "[" (value ("," value){0,3})? "]"
word ::= "\"" [a-z]{1,8} "\""
"""


class Judge:
    """Counts outputs; the first ones that are wrong are kept."""

    def __init__(self, test):
        self.test = test
        self.n_finished = self.n_cut = 0
        self.wrong = []

    def see(self, what, choice, finish, check):
        if choice["finish_reason"] == "length":
            self.n_cut += 1
            return
        self.n_finished += 1
        try:
            self.test.assertEqual(choice["finish_reason"], finish)
            check(choice["message"])
        except (AssertionError, ValueError, jsonschema.ValidationError) as error:
            self.wrong.append(f"{what}: {choice}: {error}")

    def end(self, name, at_least):
        print(f"{name}: {self.n_finished} outputs, {len(self.wrong)} wrong; "
              f"{self.n_cut} not finished")
        self.test.assertEqual(self.wrong[:3], [])
        self.test.assertGreaterEqual(self.n_finished, at_least)
        self.test.assertLessEqual(self.n_cut, self.n_finished // 100)


def validate(schema, value, draft=2020):
    DRAFTS[draft](schema, format_checker=DRAFTS[draft].FORMAT_CHECKER).validate(value)


def check_calls(calls, names=None):
    by_name = {tool["function"]["name"]: tool["function"]["parameters"] for tool in TOOLS}
    if not calls:
        raise AssertionError("no call")
    for call in calls:
        name = call["function"]["name"]
        if names and name not in names:
            raise AssertionError(f"{name} is called")
        validate({**by_name[name], "additionalProperties": False},
                 json.loads(call["function"]["arguments"]))


class Structured(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        cls.server = Server("--log-level", "error")

    @classmethod
    def tearDownClass(cls):
        if cls.server.stop() != 0:
            raise AssertionError("the server did not end with status 0")

    def ask_all(self, bodies):
        """(body, choice) for all choices of all bodies, many at once."""
        def post(body):
            return self.server.post("/v1/chat/completions", {
                "messages": [{"role": "user", "content": "What do you say?"}],
                "max_tokens": MAX_TOKENS, "temperature": 1.0, **body})
        with concurrent.futures.ThreadPoolExecutor(24) as pool:
            for body, answer in zip(bodies, pool.map(post, bodies)):
                for choice in answer["choices"]:
                    yield body, choice

    def test_schemas(self):
        with open(os.path.join(ROOT, "tests/data/grammar/schemas.json"), encoding="utf-8") as f:
            cases = [c for c in json.load(f) if isinstance(c["schema"], dict)
                     and c.get("python", True) and c["name"] not in ENDLESS]
        self.assertGreaterEqual(len(cases), 50)
        asked = [(case, {"n": N_CHOICE, "seed": 1000 * i + N_CHOICE * k, **way(case["schema"])})
                 for i, case in enumerate(cases) for k, way in enumerate(WAYS)]
        judge = Judge(self)
        case_of = {id(body): case for case, body in asked}
        for body, choice in self.ask_all([body for _, body in asked]):
            case = case_of[id(body)]
            judge.see(case["name"], choice, "stop", lambda m, c=case: validate(
                c["schema"], json.loads(m["content"]), c.get("draft", 2020)))
        judge.end(f"{len(cases)} schemas", len(cases) * len(WAYS) * N_CHOICE * 95 // 100)

    def test_calls_that_must_be_made(self):
        bodies = [{"n": 4, "seed": i, "tools": TOOLS, "tool_choice": "required", **more}
                  for i in range(8) for more in ({}, THINK, BOUND, {"parallel_tool_calls": False})]
        judge = Judge(self)
        for body, choice in self.ask_all(bodies):
            def check(message, one="parallel_tool_calls" in body):
                check_calls(message["tool_calls"])
                self.assertTrue(len(message["tool_calls"]) == 1 or not one)
                self.assertIn(message["content"], (None, ""))
            judge.see("required", choice, "tool_calls", check)
        judge.end("required calls", 120)

    def test_a_call_by_name(self):
        names = [tool["function"]["name"] for tool in TOOLS]
        bodies = [{"n": 4, "seed": i, "tools": TOOLS,
                   "tool_choice": {"type": "function", "function": {"name": name}}}
                  for i, name in enumerate(names)]
        judge = Judge(self)
        for body, choice in self.ask_all(bodies):
            name = body["tool_choice"]["function"]["name"]
            judge.see(name, choice, "stop",
                      lambda m, n=name: check_calls(m["tool_calls"], {n}) or
                      self.assertEqual(len(m["tool_calls"]), 1))
        judge.end("named calls", 16)

    def test_calls_or_a_schema(self):
        """With tools and a response_format the answer is one of the two."""
        schema = {"type": "object", "properties": {"answer": WORD}, "required": ["answer"]}
        bodies = [{"n": 8, "seed": i, "guided_json": schema,
                   "tools": [{**t, "function": {**t["function"], "strict": True}} for t in TOOLS],
                   "messages": [{"role": "user", "content": question}]}
                  for i in range(3)
                  for question in ("What is the weather in San Francisco?", "Hello")]
        judge = Judge(self)
        for _, choice in self.ask_all(bodies):
            calls = choice["message"].get("tool_calls")
            judge.see("either", choice, "tool_calls" if calls else "stop",
                      lambda m: check_calls(m["tool_calls"]) if m.get("tool_calls")
                      else validate(schema, json.loads(m["content"])))
        judge.end("calls or JSON", 47)

    def test_patterns_and_choices(self):
        pattern, choices = r"[A-Z][a-z]{2,8}, [0-9]{1,3} (km|miles)", ["red", "green", "dark blue"]
        bodies = [{"n": 8, "seed": 1, **more, **thinking} for thinking in ({}, THINK, BOUND) for more in (
            {"guided_regex": pattern}, {"structured_outputs": {"choice": choices}})]
        judge = Judge(self)
        for body, choice in self.ask_all(bodies):
            good = (lambda m: re.fullmatch(pattern, m["content"])) if "guided_regex" in body else \
                (lambda m: m["content"] in choices)
            judge.see("text", choice, "stop", lambda m, g=good: self.assertTrue(g(m)))
        judge.end("patterns and choices", 47)

    def test_grammars(self):
        """Sums with brackets, by rules that begin with themselves; and JSON."""
        def sums(message):
            self.assertRegex(message["content"], r"[0-9()*+-]+\Z")
            compile(re.sub("[0-9]+", "1", message["content"]), "sum", "eval")
        ways = (({"guided_grammar": SUMS}, sums), ({"ebnf": SUMS}, sums),
                ({"structured_outputs": {"grammar": LARK_SUMS}}, sums),
                ({"guided_grammar": SMALL_JSON}, lambda m: json.loads(m["content"])))
        asked = [({"n": 8, "seed": 8 * i, "frequency_penalty": 0.5, **fields, **thinking}, check)
                 for thinking in ({}, BOUND) for i, (fields, check) in enumerate(ways)]
        judge = Judge(self)
        check_of = {id(body): check for body, check in asked}
        for body, choice in self.ask_all([body for body, _ in asked]):
            judge.see(str(body), choice, "stop", check_of[id(body)])
        judge.end("grammars", 62)

    def test_structural_tags(self):
        """Free text in which each "e" begins a tag."""
        value = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"]}
        older = {"type": "structural_tag", "triggers": ["e"], "structures": [
            {"begin": "e<", "schema": value, "end": ">"}, {"begin": "e[", "schema": value, "end": "]"}]}
        newer = {"type": "structural_tag", "format": {"type": "triggered_tags", "triggers": ["e"], "tags": [
            {"begin": "e" + a, "content": {"type": "json_schema", "json_schema": value}, "end": b}
            for a, b in ("<>", "[]")]}}
        json_text = r'\{\s*"n": ?[12]\s*\}'
        whole = re.compile(rf"([^e]|e<{json_text}>|e\[{json_text}\])*")
        bodies = [{"n": 8, "seed": i, "max_tokens": 60, **fields, "messages": [
            {"role": "user", "content": "Hello, who are you?"}]} for i, fields in enumerate((
                {"response_format": older}, {"response_format": newer},
                {"structural_tag": json.dumps(older)},
                {"structured_outputs": {"structural_tag": json.dumps(newer)}}))]
        n_tag = n_ended = 0
        for _, choice in self.ask_all(bodies):
            text = choice["message"]["content"]
            if choice["finish_reason"] == "stop":
                n_ended += 1
            else:  # cut, maybe within a tag
                rest = re.search(r"e[^e>\]]*\Z", text)
                text = text[:rest.start()] if rest else text
            self.assertTrue(whole.fullmatch(text), repr(text))
            n_tag += text.count("e")
        self.assertGreater(n_tag, 30)
        print(f"structural tags: {n_tag} in 32 answers, {n_ended} of them ended")

    def test_what_comes_along(self):
        """logit_bias, min_tokens, logprobs, stop and stream beside a grammar."""
        schema = {"type": "array", "items": {"enum": [1, 2]}, "minItems": 2, "maxItems": 4}
        body = {"guided_json": schema, "seed": 3, "temperature": 1.0, "max_tokens": 300,
                "messages": [{"role": "user", "content": "Numbers!"}]}
        post = lambda **more: self.server.post("/v1/chat/completions", {**body, **more})
        plain = post()["choices"][0]["message"]["content"]
        chunks = self.server.stream("/v1/chat/completions", body)
        streamed = "".join(c["choices"][0]["delta"].get("content") or "" for c in chunks)
        self.assertEqual(streamed, plain)
        answer = post(min_tokens=20, logprobs=True, top_logprobs=2)
        validate(schema, json.loads(answer["choices"][0]["message"]["content"]))
        self.assertGreaterEqual(answer["usage"]["completion_tokens"], 20)
        self.assertEqual(post(stop="[")["choices"][0]["message"]["content"], "")
        self.assertEqual(post(max_tokens=1)["choices"][0]["finish_reason"], "length")
        rng = random.Random(5)
        bias = {str(rng.randrange(4096)): 100 for _ in range(50)}
        validate(schema, json.loads(post(logit_bias=bias)["choices"][0]["message"]["content"]))

    def test_compiled_once(self):
        before = self.server.metrics()
        for i in range(3):
            self.server.post("/v1/completions", {"prompt": "x", "max_tokens": 40, "seed": i,
                                                 "guided_regex": "compiled (once|twice)"})
        after = self.server.metrics()
        for name, n in (("hits", 2), ("misses", 1)):
            key = f'fathom_grammar_cache_{name}_total{{model_name="pilot",engine="0"}}'
            self.assertEqual(after[key] - before[key], n)


if __name__ == "__main__":
    take_program(sys.argv)
    unittest.main(verbosity=2)
