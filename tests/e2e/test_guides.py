#!/usr/bin/env python3
"""Command lines of published deployment guides, with `vllm` replaced by `fathom`.

    tests/e2e/test_guides.py path/to/fathom

tests/data/guides holds them word for word. A server's command is run with --dry-run and the pilot
model: it must end as its entry says, with every refusal in one line; without the refused flags it
must pass. Requests are sent to a real server.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import unittest

from served import HANG_S
from test_cli import FATHOM, ROOT, Server

CONTEXT = "4096"  # the pilot's

# vLLM's images run `vllm serve` with the arguments after the image's name.
PILOT_HEADS = 4  # as many ranks can share it
PILOT_EXPERTS = 16  # and as many have one each
IMAGE = re.compile(r"docker run .*?vllm/vllm-openai\S*\s+(--)", re.S)


def entries():
    path = os.path.join(ROOT, "tests/data/guides/commands.json")
    with open(path, encoding="utf-8") as f:
        return json.load(f)


def commands(beginning):
    """The entries whose command begins so."""
    return [e for e in entries() if e.get("command", "").startswith(beginning)]


def launched(line):
    """What the launcher of the Ascend guide gives to its template as $1 .. $7, rank by rank."""
    split = shlex.split(line)
    given = dict(zip(split[2::2], split[3::2]))
    n_card = int(given["--tp-size"])
    for i in range(int(given["--dp-size-local"])):
        yield {"1": ",".join(str(card) for card in range(i * n_card, (i + 1) * n_card)),
               "2": str(int(given["--vllm-start-port"]) + i),
               "3": given["--dp-size"],
               "4": str(int(given["--dp-rank-start"]) + i),
               "5": given["--dp-address"],
               "6": given["--dp-rpc-port"],
               "7": given["--tp-size"]}


def processes(entry):
    """(variables of the shell, environment) of each process that the command is run in"""
    ranks = launched(entry["launcher"]) if "launcher" in entry else [entry.get("variables", {})]
    for variables in ranks:
        yield variables, {name: variables[value[1:]] if value.startswith("$") else value
                          for name, value in entry.get("environment", {}).items()}


def words(entry, variables):
    """The command as fathom's arguments."""
    text = IMAGE.sub(r"vllm serve \1", entry["command"].replace("\\\n", " "))
    for name, value in variables.items():
        text = re.sub(rf"\${name}\b", value, text)
    split = shlex.split(text)
    if split[0] != "vllm":
        raise AssertionError(f"{split[0]} is not vllm: {text}")
    return split[1:]


def with_pilot(arguments):
    """The same for the pilot model and a free port."""
    out = list(arguments)
    if "--model" in out:
        out[out.index("--model") + 1] = "pilot"
    else:
        out[1] = "pilot"
    for flag, value in (("--port", "0"), ("--max-model-len", CONTEXT)):
        if flag in out:
            out[out.index(flag) + 1] = value
    ranks = "--tensor-parallel-size"
    if ranks in out and int(out[out.index(ranks) + 1]) > PILOT_HEADS:
        out[out.index(ranks) + 1] = str(PILOT_HEADS)
    groups = "--data-parallel-size"
    if groups in out:
        n = PILOT_EXPERTS // int(out[out.index(ranks) + 1])
        n = min(n, int(out[out.index(groups) + 1]))
        out[out.index(groups) + 1] = str(n)
        if "--data-parallel-rank" in out:
            at = out.index("--data-parallel-rank") + 1
            out[at] = str(int(out[at]) % n)
    method = "--quantization"  # of the guide's checkpoint; the pilot's is fp8
    if method in out and out[out.index(method) + 1] != "fp8":
        del out[out.index(method):out.index(method) + 2]
    return out


def without(arguments, refused):
    """Without the flags of `refused` and their values."""
    out = []
    skipping = False
    for word in arguments:
        if word.startswith("--"):
            skipping = word in refused
        if not skipping:
            out.append(word)
    return out


def run(arguments, environment):
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "FATHOM", "VLLM"))}
    return subprocess.run([FATHOM, *arguments], capture_output=True, text=True, timeout=HANG_S,
                          env={**clean, **environment}, check=False)


class Guides(unittest.TestCase):
    def assert_answered(self, entry, variables, environment):
        arguments = with_pilot(words(entry, variables)) + ["--dry-run"]
        done = run(arguments, environment)
        self.assertEqual(done.returncode, entry["status"], done.stderr)
        for part in entry["says"]:
            self.assertIn(part, done.stderr)
        for line in done.stderr.splitlines():
            self.assertRegex(line, r"(is refused|ha(s|ve) no effect|is FP8 already)")
        refused = re.findall(r"(--[a-z-]+)\b.* is refused: ", done.stderr)
        accepted = run(without(arguments, refused), environment)
        self.assertEqual(accepted.returncode, 0, accepted.stderr)
        self.assertIn("needed, together", accepted.stdout)
        n_rank = 1
        for flag in ("--tensor-parallel-size", "--data-parallel-size"):
            n_rank *= int(arguments[arguments.index(flag) + 1]) if flag in arguments else 1
        planned = [int(n) * int(hosts or 1) for n, hosts in re.findall(
            r"(?m)^ranks +(\d+)(?: on each of (\d+) hosts)?;", accepted.stdout)]
        self.assertEqual(planned, [] if n_rank == 1 else [n_rank])
        self.assertIn("bodies, parsed", accepted.stdout)
        self.assert_told(environment, accepted.stderr)

    def assert_told(self, environment, text):
        """Each variable that does nothing is named, once, and none that acts."""
        for name in environment:
            acts = name.startswith("NCCL_") or name in (
                "HF_HOME", "HF_TOKEN", "VLLM_USE_MODELSCOPE", "VLLM_API_KEY", "VLLM_LOGGING_LEVEL")
            self.assertEqual(len(re.findall(rf"\b{name}\b.* no effect", text)), 0 if acts else 1,
                             name)

    def test_servers_start_or_say_why_not(self):
        n_process = 0
        for entry in entries():
            if "status" not in entry:
                continue
            for variables, environment in processes(entry):
                self.assertIn("--tensor-parallel-size", words(entry, variables))
                with self.subTest(entry["source"], **variables):
                    self.assert_answered(entry, variables, environment)
                n_process += 1
        self.assertEqual(n_process, 5 + 1 + 1 + 4 + 4)

    def test_variables_without_a_command_are_told(self):
        alone = [e for e in entries() if "command" not in e]
        self.assertGreaterEqual(len(alone), 1)
        for entry in alone:
            done = run(["serve", "pilot", "--dry-run"], entry["environment"])
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assert_told(entry["environment"], done.stderr)

    def test_benchmarks_are_understood(self):
        benchmarks = commands("vllm bench")
        self.assertGreaterEqual(len(benchmarks), 1)
        for entry in benchmarks:
            done = run(with_pilot(words(entry, {})) + ["--help"], entry.get("environment", {}))
            self.assertEqual(done.returncode, 0, done.stderr)

    def test_requests_are_answered(self):
        if not shutil.which("curl"):
            self.skipTest("curl is not installed")
        requests = [e["command"] for e in commands("curl")]
        names = {json.loads(shlex.split(r.replace("\\\n", " "))[-1])["model"] for r in requests}
        server = Server("--served-model-name", *sorted(names))
        for text in requests:
            split = shlex.split(text.replace("\\\n", " "))
            split[1] = server.url + "/v1/" + split[1].partition("/v1/")[2]
            done = subprocess.run([*split, "-s", "--fail-with-body"], capture_output=True, text=True,
                                  timeout=HANG_S, check=False)
            self.assertEqual(done.returncode, 0, f"{text}\n{done.stdout}{done.stderr}")
            answer = json.loads(done.stdout)
            self.assertIn(answer["choices"][0]["finish_reason"], ("stop", "length", "tool_calls"))
            self.assertIn(answer["model"], names)
        self.assertGreaterEqual(len(requests), 6)
        self.assertEqual(server.stop(), 0)


if __name__ == "__main__":
    unittest.main()
