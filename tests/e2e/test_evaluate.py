#!/usr/bin/env python3
"""fathom evaluate over the pilot: figures against the reference's, forms of texts, refusals.

    tests/e2e/test_evaluate.py path/to/fathom
"""

import json
import math
import os
import struct
import subprocess
import sys
import tarfile
import tempfile
import unittest

from served import HANG_S

FATHOM = os.path.abspath(sys.argv.pop(1))
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
REFERENCE = os.path.join(ROOT, "tests/data/pilot/reference.tar.xz")
PILOT = os.path.join(ROOT, "models/pilot")
BOS = 0


def run(*args, status=0):
    done = subprocess.run([FATHOM, "evaluate", *args], capture_output=True, text=True,
                          timeout=HANG_S, check=False)
    if done.returncode != status:
        raise AssertionError(f"{args}: status {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done.stdout, done.stderr


def figures(*args):
    return json.loads(run(*args, "--json")[0])


def reference_texts():
    """Ids and log-probabilities of the next token, of an independent float32 implementation."""
    with tarfile.open(REFERENCE) as archive:
        data = archive.extractfile("reference.safetensors").read()
    n = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + n])

    def values(name, code):
        begin, end = header[name]["data_offsets"]
        raw = data[8 + n + begin:8 + n + end]
        return struct.unpack(f"<{len(raw) // 4}{code}", raw)

    return [(values(f"{i}.ids", "i"), values(f"{i}.logprob_of_next", "f")) for i in range(6)]


class Evaluate(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.texts = reference_texts()

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def file(self, name, text):
        path = os.path.join(self.folder.name, name)
        with open(path, "w", encoding="utf-8") as f:
            f.write(text)
        return path

    def test_perplexity_is_the_references(self):
        ids = self.file("ids.jsonl", "\n".join(json.dumps(list(i)) for i, _ in self.texts))
        have = figures("pilot", "--texts", ids, "--length", "4096", "--dtype", "float32",
                       "--kv-cache-dtype", "float32")
        logprobs = [p for _, all_of in self.texts for p in all_of]
        self.assertEqual(have["predicted"], len(logprobs))
        self.assertEqual(have["texts"], 6)
        want = math.exp(-sum(logprobs) / len(logprobs))
        self.assertLess(abs(have["perplexity"] / want - 1), 1e-4)

    def test_a_model_is_no_distance_from_itself(self):
        have = figures("pilot", "--against", "pilot", "--samples", "8")
        self.assertEqual(have["against"]["kl"]["max"], 0)
        self.assertEqual(have["against"]["same_top"], 1)
        self.assertEqual(have["against"]["perplexity"], have["perplexity"])
        table = run("pilot", "--against", "pilot", "--samples", "8")[0]
        self.assertIn("perplexity", table)
        self.assertIn("same top token  100.000 %", table)

    def test_threads_change_no_bit(self):
        one, two = (figures("pilot", "--samples", "4", "--threads", n) for n in "12")
        del one["device"], two["device"]
        self.assertEqual(one, two)

    def test_ranks_find_the_same_figures(self):
        """The order of sums differs, and nothing else."""
        options = ("pilot", "--samples", "8", "--dtype", "float32", "--kv-cache-dtype", "float32")
        one = figures(*options)
        for ranks in ("2", "4"):
            have = figures(*options, "-tp", ranks, "--against", "pilot")
            self.assertEqual(have["predicted"], one["predicted"])
            self.assertLess(abs(have["perplexity"] / one["perplexity"] - 1), 1e-5)
            self.assertEqual(have["against"]["kl"]["max"], 0)
            again = figures(*options, "-tp", ranks)
            self.assertEqual(again["perplexity"], have["perplexity"])
        self.assertIn('"num_attention_heads" is 4, which 3 ranks cannot share',
                      run("pilot", "-tp", "3", status=1)[1])

    def test_every_form_of_a_text_is_the_same_text(self):
        ids = list(self.texts[0][0])
        self.assertEqual(ids[0], BOS)
        text = "The code for item 7 is 1234."
        plain = figures("pilot", "--texts", self.file("a.txt", text))
        line = figures("pilot", "--texts", self.file("a.jsonl", "\n" + json.dumps({"text": text})))
        self.assertEqual(plain, line)
        for name, form in ("m.txt", text), ("m.jsonl", json.dumps({"text": text})):
            self.assertEqual(figures("pilot", "--texts", self.file(name, "\ufeff" + form)), plain)
        array = figures("pilot", "--texts", self.file("b.json", json.dumps(ids)))
        inner = figures("pilot", "--texts", self.file("c.json", json.dumps([{"ids": ids[1:]}])))
        self.assertEqual(array, inner)  # BOS is added where it is not
        whole = figures("pilot", "--texts", self.file("d.jsonl", json.dumps({"text": text})))
        part = figures("pilot", "--texts", self.file(
            "e.jsonl", json.dumps({"prompt": "The code for item 7", "text": " is 1234."})))
        self.assertLess(part["predicted"], whole["predicted"])
        self.assertEqual(part["tokens"], whole["tokens"])

    def test_long_texts_are_cut(self):
        ids = list(self.texts[5][0])
        path = self.file("long.json", json.dumps(ids))
        have = figures("pilot", "--texts", path, "--length", "100")
        n_piece = -(-(len(ids) - 1) // 99)
        self.assertEqual(have["texts"], n_piece)
        self.assertEqual(have["tokens"], len(ids) - 1 + n_piece)
        self.assertEqual(have["predicted"], len(ids) - 1)
        self.assertEqual(figures("pilot", "--texts", path, "--length", "100", "--samples", "2")
                         ["predicted"], 198)

    def model(self, name, **changes):
        """The pilot with some of its JSON files changed."""
        folder = os.path.join(self.folder.name, name)
        os.mkdir(folder)
        for file in os.listdir(PILOT):
            os.symlink(os.path.join(PILOT, file), os.path.join(folder, file))
        for file, change in changes.items():
            file += ".json"
            with open(os.path.join(PILOT, file), encoding="utf-8") as f:
                value = json.load(f)
            change(value)
            os.remove(os.path.join(folder, file))
            with open(os.path.join(folder, file), "w", encoding="utf-8") as f:
                json.dump(value, f)
        return folder

    def test_a_model_that_lacks_tokens_or_room_is_one_line(self):
        def add_token(tokenizer):
            tokenizer["added_tokens"].append(
                {**tokenizer["added_tokens"][0], "id": 5000, "content": "<|behind|>"})

        def shorten(config):
            config["max_position_embeddings"] = 1

        path = self.file("behind.jsonl", json.dumps({"text": "one<|behind|>two"}))
        wide = self.model("wide", tokenizer=add_token)
        self.assertIn("a text has token 5000, the model's are 0 to 4095",
                      run(wide, "--texts", path, status=1)[1])
        short = self.model("short", config=shorten)
        self.assertIn("the model's context is 1 tokens", run(short, status=1)[1])

    def test_what_cannot_be_is_one_line(self):
        cases = [
            (("--texts", self.file("x.jsonl", '{"text": 1}')), "x.jsonl: value 1 is none of"),
            (("--texts", self.file("y.jsonl", '{"text": "a"}\n{')), "y.jsonl, line 2"),
            (("--texts", self.file("z.json", "[1, 4096]")), "element 1 is no token id, needed"),
            (("--texts", self.file("w.json", "3")), "needed is an array"),
            (("--texts", self.file("v.txt", "")), "there is nothing to predict"),
            (("--texts", self.file("u.jsonl", "\n" * 4096)), "there is nothing to predict"),
            (("--texts", "/nowhere.txt"), "/nowhere.txt"),
            (("--against", "/nowhere"), "/nowhere"),
            (("--against", "pilot", "--scratch-dir", "/nowhere"), "--scratch-dir /nowhere"),
        ]
        for args, needle in cases:
            _, said = run("pilot", *args, status=1)
            lines = [line for line in said.splitlines() if line.startswith("fathom: ")]
            self.assertEqual(len(lines), 1, said)
            self.assertIn(needle, lines[0])


if __name__ == "__main__":
    unittest.main()
