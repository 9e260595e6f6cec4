#!/usr/bin/env python3
"""How long the pilot reasons: thinking_token_budget.

    tests/e2e/test_thinking.py [FLAGS] path/to/fathom

The measure is what the pilot says without a budget. What it says with one does not depend on drafts.
"""

import json
import sys
import unittest

from served import Server, take_program

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
TRAIN = ("Solve step by step: If a train travels 120km in 2 hours, and then 180km in 3 hours, "
         "what is the average speed?")
BODY = {"messages": [{"role": "user", "content": TRAIN}], "temperature": 0, "max_tokens": 100,
        "chat_template_kwargs": {"thinking": True}, "return_token_ids": True}
BEGIN, END = 5, 6  # <think>, </think>
DRAFTS = json.dumps({"method": "deepseek_mtp", "num_speculative_tokens": 3})


class Thinking(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--log-level", "error")
        cls.drafts = Server("--log-level", "error", "--speculative-config", DRAFTS)
        cls.plain = cls.server.post(CHAT, BODY)
        cls.ids = cls.plain["choices"][0]["token_ids"]
        cls.n_reasoning = cls.ids.index(END)

    @classmethod
    def tearDownClass(cls):
        assert cls.server.stop() + cls.drafts.stop() == 0

    def ask(self, budget, path=CHAT, body=BODY, **fields):
        """Both servers say the same."""
        body = {**body, "thinking_token_budget": budget, **fields}
        answer = self.server.post(path, body)
        self.assertEqual(self.drafts.post(path, body)["choices"], answer["choices"])
        return answer

    def refused(self, **fields):
        connection = self.server.connect()
        connection.request("POST", CHAT, json.dumps({**BODY, **fields}))
        answer = connection.getresponse()
        error = json.loads(answer.read())["error"]
        connection.close()
        self.assertEqual(answer.status, 400, error)
        return error

    def test_so_many_tokens_then_the_tag(self):
        self.assertGreater(self.n_reasoning, 20)
        for n in (*range(12), self.n_reasoning - 1):
            answer = self.ask(n, logprobs=True)
            choice, usage = answer["choices"][0], answer["usage"]
            self.assertEqual(choice["token_ids"][:n + 1], [*self.ids[:n], END])
            self.assertEqual(usage["completion_tokens_details"]["reasoning_tokens"], n + 1)
            self.assertTrue(choice["message"]["content"])
            # the model's own distribution, in which the tag is unlikely here
            logprobs = choice["logprobs"]["content"]
            self.assertEqual(logprobs[n]["token"], "</think>")
            self.assertLess(logprobs[n]["logprob"], -1)
            self.assertEqual(len(logprobs), usage["completion_tokens"])

    def test_a_budget_that_is_not_reached_changes_nothing(self):
        for n in (self.n_reasoning, 1000, -1, None):
            self.assertEqual(self.ask(n)["choices"], self.plain["choices"])
        quiet = {**BODY, "chat_template_kwargs": {"thinking": False}}
        self.assertEqual(self.ask(0, body=quiet)["choices"],
                         self.server.post(CHAT, quiet)["choices"])

    def test_each_choice_has_its_own(self):
        answer = self.ask(4, n=3, temperature=1, seed=5)
        for choice in answer["choices"]:
            self.assertIn(END, choice["token_ids"][:5])
        self.assertGreater(len({tuple(c["token_ids"]) for c in answer["choices"]}), 1)

    def test_streamed(self):
        for server in (self.server, self.drafts):
            chunks = server.stream(CHAT, {**BODY, "thinking_token_budget": 6})
            deltas = [c["choices"][0]["delta"] for c in chunks if c["choices"]]
            message = self.ask(6)["choices"][0]["message"]
            for part in ("reasoning_content", "content"):
                self.assertEqual("".join(d.get(part) or "" for d in deltas), message[part])

    def test_what_comes_along(self):
        """EOS that counts for nothing, a least number of tokens, a stop token, a short answer, a penalty."""
        self.assertEqual(self.ask(3, ignore_eos=True, min_tokens=50)["choices"][0]["token_ids"][3], END)
        stopped = self.ask(3, stop_token_ids=[END])["choices"][0]
        self.assertEqual((stopped["stop_reason"], stopped["message"]["content"]), (END, ""))
        late = self.ask(3, stop_token_ids=[END], min_tokens=40)["choices"][0]
        self.assertEqual(late["token_ids"][:4], [*self.ids[:3], END])
        self.assertEqual(self.ask(3, max_tokens=3)["choices"][0]["finish_reason"], "length")
        biased = self.ask(3, logit_bias={str(END): -100}, frequency_penalty=1.5)["choices"][0]
        self.assertEqual(biased["token_ids"].index(END), 3)

    def test_reasoning_that_the_prompt_begins_with_counts(self):
        body = {**BODY, "continue_final_message": True, "add_generation_prompt": False,
                "messages": [*BODY["messages"], {"role": "assistant", "reasoning_content": "Total distance"}]}
        free = self.server.post(CHAT, body)["choices"][0]["token_ids"]
        n = len(self.server.post("/tokenize", {"prompt": "Total distance", "add_special_tokens": False})["tokens"])
        for budget in (0, n, n + 4):
            more = max(0, budget - n)
            ids = self.ask(budget, body=body)["choices"][0]["token_ids"]
            self.assertEqual(ids[:more + 1], [*free[:more], END])

    def test_completions(self):
        """The tag of a prompt opens reasoning, and so does one that an answer begins with; no other does."""
        prompt = self.server.post("/tokenize", BODY)["tokens"]
        body = {"temperature": 0, "max_tokens": 40, "return_token_ids": True}
        self.assertEqual(prompt[-1], BEGIN)
        for ids, first in ((prompt, 2), (prompt + self.ids[:2], 0)):
            answer = self.ask(2, TEXT, body, prompt=ids)
            self.assertEqual(answer["choices"][0]["token_ids"][first], END)
        opens = self.ask(2, TEXT, body, prompt=prompt[:-1], logit_bias={str(BEGIN): 100})
        self.assertEqual(opens["choices"][0]["token_ids"][:4:3], [BEGIN, END])
        text = {**body, "prompt": "The advantage of MLA over standard GQA is"}
        self.assertEqual(self.ask(0, TEXT, text)["choices"], self.server.post(TEXT, text)["choices"])

    def test_a_closing_comes_before_the_tag(self):
        said = "\n\nI have to answer now.\n"
        server = Server("--log-level", "error", "--speculative-config", DRAFTS,
                        "--reasoning-config", json.dumps({"reasoning_end_str": said + "</think>"}))
        closing = server.post("/tokenize", {"prompt": said, "add_special_tokens": False})["tokens"]
        for n in (0, 6):
            answer = server.post(CHAT, {**BODY, "thinking_token_budget": n})
            choice = answer["choices"][0]
            want = [*self.ids[:n], *closing, END]
            self.assertEqual(choice["token_ids"][:len(want)], want)
            self.assertTrue(choice["message"]["reasoning_content"].endswith(said))
            self.assertEqual(answer["usage"]["completion_tokens_details"]["reasoning_tokens"], len(want))
            held = server.post(CHAT, {**BODY, "thinking_token_budget": n, "guided_choice": ["60 km/h", "50 km/h"]})
            self.assertEqual(held["choices"][0]["token_ids"][:len(want)], want)
            self.assertIn(held["choices"][0]["message"]["content"], ("60 km/h", "50 km/h"))
        self.assertEqual(server.post(CHAT, BODY)["choices"], self.plain["choices"])
        self.assertEqual(server.stop(), 0)

    def test_refusals(self):
        self.assertIn("needed is -1 to", self.refused(thinking_token_budget=-2)["message"])
        error = self.refused(thinking_token_budget=9, allowed_token_ids=[50, 51])
        self.assertEqual(error["param"], "allowed_token_ids")
        self.assertIn("6 (</think>)", error["message"])
        rule = {"allowed_token_ids": [50, 51, END], "ignore_eos": True}
        self.assertEqual(self.ask(4, **rule)["choices"][0]["token_ids"][4], END)


if __name__ == "__main__":
    take_program(sys.argv)
    unittest.main(verbosity=2)
