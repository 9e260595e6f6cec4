#!/usr/bin/env python3
"""Every curl command of README.md and docs/, as it stands there, against the pilot model.

    tests/clients/curl_check.py path/to/fathom

Only the port is another one. Each must succeed with JSON that has what its endpoint gives; those of
chat and completions are also asked as streams.
"""
import glob
import json
import os
import re
import shutil
import subprocess
import sys
import unittest

import client_env

PORT = 8000  # what the documents say


def commands():
    """(file, command) for each curl command in a block of shell."""
    for path in [os.path.join(client_env.ROOT, "README.md"),
                 *sorted(glob.glob(os.path.join(client_env.ROOT, "docs", "*.md")))]:
        with open(path) as f:
            blocks = re.findall(r"^```(?:sh|bash|console)\n(.*?)^```", f.read(), re.M | re.S)
        for block in blocks:
            for found in re.finditer(r"^curl (?:\\\n|'[^']*'|[^'\n])*", block, re.M):
                if f":{PORT}" in found.group():
                    yield os.path.relpath(path, client_env.ROOT), found.group().strip()


def run(command):
    done = subprocess.run(["sh", "-c", command.replace("curl ", "curl -sS --fail-with-body ", 1)],
                          capture_output=True, text=True, timeout=client_env.HANG_S)
    if done.returncode:
        raise AssertionError(f"{command}\n{done.stdout}{done.stderr}")
    return done.stdout


def events(text):
    return [json.loads(line[6:]) for line in text.splitlines()
            if line.startswith("data: {")]


class Curl(unittest.TestCase):
    def test_commands_of_the_documents(self):
        found = list(commands())
        self.assertGreaterEqual(len(found), 4)
        with client_env.started_pilot(PROGRAM, "--disable-log-requests") as port:
            for path, command in found:
                with self.subTest(path=path, command=command):
                    command = command.replace(f":{PORT}", f":{port}")
                    answer = run(command)
                    if "/completions" not in command:
                        continue
                    choice = json.loads(answer)["choices"][0]
                    self.assertIn(choice["finish_reason"], ("stop", "length", "tool_calls"))
                    if '"stream"' in command:
                        continue
                    body = re.search(r"-d '(\{.*\})'", command, re.S).group(1)
                    streamed = run(command.replace(body, '{"stream": true, ' + body[1:]))
                    self.assertTrue(streamed.rstrip().endswith("data: [DONE]"))
                    self.assertGreater(len(events(streamed)), 1)
            for name in "health", "ready", "v1/models", "version":
                run(f"curl http://127.0.0.1:{port}/{name}")
            with self.assertRaises(AssertionError) as refused:
                run(f"curl http://127.0.0.1:{port}/v1/chat/completions -d '{{}}'")
            self.assertIn("messages", str(refused.exception))


if __name__ == "__main__":
    if not shutil.which("curl"):
        client_env.skip("there is no curl")
    PROGRAM = sys.argv.pop(1)
    unittest.main()
