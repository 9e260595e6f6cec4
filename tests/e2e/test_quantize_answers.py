#!/usr/bin/env python3
"""How many of the pilot's 384 answers checkpoints made by fathom quantize still give.

    tests/e2e/test_quantize_answers.py path/to/fathom

tests/test_evaluation asks them; what must be right is a few less than was measured.
"""

import json
import os
import re
import subprocess
import sys
import tempfile

FATHOM = os.path.abspath(sys.argv[1])
TEST = os.path.join(os.path.dirname(FATHOM), "tests", "test_evaluation")
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
CALIBRATION = ("--calibration", os.path.join(ROOT, "models", "texts.jsonl"))
CASES = [(("w4a16",), 380), (("w4a16", "--method", "rtn"), 376),
         (("w4a16", "--method", "scale", *CALIBRATION), 380),
         (("w4a16", "--method", "gptq", *CALIBRATION), 380),
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
            far = subprocess.run([FATHOM, "evaluate", out, "--against", "pilot", "--json"],
                                 check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
            far = json.loads(far.stdout)
            name = " ".join(o for o in options if not o.startswith(("--calibration", "/")))
            print(f"{name}: {right.group() if right else done.stdout[-1000:]}, mean KL "
                  f"{far['against']['kl']['mean']:.6f}, perplexity {far['perplexity']:.4f}",
                  flush=True)
            if done.returncode:
                sys.exit(f"needed are {least}")


main()
