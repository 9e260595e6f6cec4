#!/usr/bin/env python3
"""Kimi K2's way with text, served: tiktoken.model, its chat form, calls that a grammar makes, and what comes
out of them. The weights are made up, so nothing but the grammar says anything.

    tests/e2e/test_kimi.py path/to/fathom
"""
import json
import os
import shutil
import sys
import tarfile
import tempfile
import unittest

from served import Server, take_program

DATA = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "data")
NAMES = ["[BOS]", "[EOS]", "<|im_end|>", "<|im_user|>", "<|im_assistant|>", "<|im_system|>",
         "<|im_middle|>", "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>",
         "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>", "<think>",
         "</think>"]
TOOL = {"type": "function", "function": {"name": "add", "strict": True, "parameters": {
    "type": "object", "required": ["a", "b"], "additionalProperties": False,
    "properties": {"a": {"enum": [1, 2]}, "b": {"type": "boolean"}}}}}


class Kimi(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp()
        ranks = os.path.join(DATA, "tokenizer", "kimi", "tiktoken.model")
        shutil.copy(ranks, cls.folder)
        with open(ranks, encoding="ascii") as f:
            first = len(f.readlines())
        with tarfile.open(os.path.join(DATA, "kimi", "model.tar.xz")) as model:
            config = json.load(model.extractfile("config.json"))
        del config["quantization_config"]
        config.update(vocab_size=1024, n_routed_experts=8, num_hidden_layers=2,
                      max_position_embeddings=2048, eos_token_id=first + 2, bos_token_id=first)
        added = {str(first + i): {"content": name, "special": i < 7}
                 for i, name in enumerate(NAMES)}
        for name, value in (("config.json", config),
                            ("tokenizer_config.json", {"added_tokens_decoder": added})):
            with open(os.path.join(cls.folder, name), "w", encoding="utf-8") as f:
                json.dump(value, f)
        cls.server = Server(cls.folder, "--load-format", "dummy", "--max-model-len", "2048")

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()
        shutil.rmtree(cls.folder)

    def test_a_prompt_is_made_of_its_markers(self):
        messages = [{"role": "system", "content": "S"}, {"role": "user", "content": "Hi <|im_end|>"}]
        got = self.server.post("/tokenize", {"messages": messages})["tokens"]
        text = self.server.post("/detokenize", {"tokens": got})["prompt"]
        self.assertEqual(text, "<|im_system|>system<|im_middle|>S<|im_end|>"
                               "<|im_user|>user<|im_middle|>Hi <|im_end|><|im_end|>"
                               "<|im_assistant|>assistant<|im_middle|>")
        end = self.server.post("/tokenize", {"prompt": "<|im_end|>"})["tokens"][-1]
        self.assertEqual(got.count(end), 2)  # the user's own spelling of it is text

    def test_calls_follow_their_schema(self):
        body = {"messages": [{"role": "user", "content": "x"}], "tools": [TOOL], "max_tokens": 400,
                "tool_choice": "required", "parallel_tool_calls": False,
                "logit_bias": {str(self.id_of("</think>")): 100}, "seed": 1}
        message = self.server.post("/v1/chat/completions", body)["choices"][0]["message"]
        call = message["tool_calls"][0]["function"]
        self.assertEqual(call["name"], "add")
        arguments = json.loads(call["arguments"])
        self.assertIn(arguments["a"], (1, 2))
        self.assertIsInstance(arguments["b"], bool)
        pieces = [c["choices"][0]["delta"] for c in self.server.stream("/v1/chat/completions", body)
                  if c["choices"]]
        streamed = "".join(p["tool_calls"][0]["function"].get("arguments", "")
                           for p in pieces if p.get("tool_calls"))
        self.assertEqual(streamed, call["arguments"])

    def test_a_budget_ends_what_the_model_opens(self):
        """What it opens by itself it opens; calls end reasoning as the tag does."""
        begin, end, calls = (self.id_of(t) for t in ("<think>", "</think>", "<|tool_calls_section_begin|>"))
        body = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 12, "seed": 1,
                "ignore_eos": True, "return_token_ids": True}

        def ids(budget, **fields):
            answer = self.server.post("/v1/chat/completions", {
                **body, "thinking_token_budget": budget, **fields})
            return answer["choices"][0]["token_ids"]

        self.assertEqual(ids(0)[:2], [begin, end])
        self.assertEqual(ids(3)[3], end)
        # the first <think> is none of the three
        self.assertEqual(ids(3, logit_bias={str(begin): 100})[:5], [begin] * 4 + [end])
        bias = {"logit_bias": {str(calls): 100}}
        self.assertEqual(ids(3, **bias)[:4], [calls, calls, calls, end])
        free = {"type": "function", "function": {"name": "add"}}  # no grammar, which would want the tag
        self.assertEqual(ids(3, tools=[free], **bias), [calls] * 12)

    def id_of(self, text):
        return self.server.post("/tokenize", {"prompt": text, "add_special_tokens": False})["tokens"][0]


if __name__ == "__main__":
    take_program(sys.argv)
    unittest.main(verbosity=2)
