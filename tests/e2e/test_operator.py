#!/usr/bin/env python3
"""What an operator gives is used: the cache's size.

    tests/e2e/test_operator.py path/to/fathom
"""

import os
import random
import subprocess
import sys
import unittest

from served import HANG_S, Server

WORDS = "the quick brown fox jumps over a lazy dog while seven wizards count to ten".split()


def prompt(seed, n_word):
    rng = random.Random(seed)
    return " ".join(rng.choice(WORDS) for _ in range(n_word))


def ask(server, text):
    """Tokens of the prompt, and how many of them were found."""
    body = {"model": "pilot", "prompt": text, "max_tokens": 1, "temperature": 0}
    usage = server.post("/v1/completions", body)["usage"]
    details = usage.get("prompt_tokens_details") or {}
    return usage["prompt_tokens"], details.get("cached_tokens", 0)


class Cache(unittest.TestCase):

    def test_a_cache_of_the_size_that_was_given_keeps_what_fits_it(self):
        """Two prompts in turn that one request's pages cannot hold together."""
        texts = [prompt(1, 1900), prompt(2, 2100)]
        server = Server("--max-num-seqs", "1", "--kv-cache-memory-bytes", "200M", "--backend",
                        "cpu")
        first = [ask(server, text)[0] for text in texts]
        self.assertGreater(sum(first), 4096 + 64)  # more than one request of --max-model-len
        for _ in range(2):
            for text, n_prompt in zip(texts, first):
                n_again, n_found = ask(server, text)
                self.assertEqual(n_again, n_prompt)
                self.assertEqual(n_found, (n_prompt - 1) // 64 * 64)
        self.assertEqual(server.stop(), 0)

    def test_a_cache_that_memory_cannot_hold_is_refused(self):
        done = subprocess.run([Server.path, "serve", "--kv-cache-memory-bytes", "500T", "--backend",
                               "cpu"], capture_output=True, text=True, timeout=HANG_S, check=False)
        self.assertEqual(done.returncode, 1)
        self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
        self.assertIn("--kv-cache-memory-bytes 549755813888000 is 549.8 TB, and of", done.stderr)


if __name__ == "__main__":
    Server.path = os.path.abspath(sys.argv.pop(1))
    unittest.main(verbosity=2)
