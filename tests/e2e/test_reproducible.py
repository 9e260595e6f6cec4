#!/usr/bin/env python3
"""The same tree in two folders makes the same program, byte for byte.

    tests/e2e/test_reproducible.py path/to/fathom
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.path.dirname(os.path.abspath(sys.argv.pop(1)))
NEEDED = ("CMakeLists.txt", "CMakePresets.json", "cmake", "include", "src", "models", "deploy",
          "tests", "bench", "LICENSE", "README.md")


def make(folder):
    """The digest of the program that is built there, without ccache, which knows it already."""
    for name in NEEDED:
        source, target = os.path.join(ROOT, name), os.path.join(folder, name)
        if os.path.isdir(source):
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, target)
    env = {k: v for k, v in os.environ.items() if not k.endswith("_COMPILER_LAUNCHER")}
    env["CCACHE_DISABLE"] = "1"
    for command in (["cmake", "--preset", "release", "-DBUILD_TESTING=OFF"],
                    ["cmake", "--build", "build/release", "--target", "fathom"]):
        done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True,
                              check=False)
        if done.returncode:
            raise AssertionError(done.stdout[-3000:] + done.stderr[-3000:])
    with open(os.path.join(folder, "build/release/fathom"), "rb") as f:
        data = f.read()
    return hashlib.sha256(data).hexdigest(), folder.encode() in data


class Reproducible(unittest.TestCase):
    def test_two_folders_make_the_same_program_which_names_neither(self):
        with tempfile.TemporaryDirectory(dir=BUILD) as one, \
                tempfile.TemporaryDirectory(suffix="-a-longer-name") as two:
            made = [make(folder) for folder in (one, two)]
        self.assertEqual(made[0][0], made[1][0])
        self.assertEqual([named for _, named in made], [False, False])


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v"])
