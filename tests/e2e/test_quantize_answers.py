#!/usr/bin/env python3
"""How many of the pilot's 384 answers checkpoints made by fathom quantize still give.

    tests/e2e/test_quantize_answers.py path/to/fathom

tests/test_evaluation asks them; what must be right is a few less than was measured.
"""

import os
import re
import subprocess
import sys
import tempfile

FATHOM = os.path.abspath(sys.argv[1])
TEST = os.path.join(os.path.dirname(FATHOM), "tests", "test_evaluation")
CASES = [(("w4a16",), 380), (("w4a16", "--method", "rtn"), 376),
         (("w4a16", "--targets", "linear"), 376), (("w8a8", "--targets", "linear"), 382)]


def main():
    with tempfile.TemporaryDirectory() as root:
        for i, (options, least) in enumerate(CASES):
            out = os.path.join(root, f"out{i}")
            subprocess.run([FATHOM, "quantize", "pilot", out, "--scheme", *options], check=True,
                           stdout=subprocess.DEVNULL)
            done = subprocess.run([TEST, "cpu", "bf16", "0", "1", out, str(least)],
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            right = re.search(r"\d+ of 384 right", done.stdout)
            print(" ".join(options) + ":", right.group() if right else done.stdout[-1000:],
                  flush=True)
            if done.returncode:
                sys.exit(f"needed are {least}")


main()
