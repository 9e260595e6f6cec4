#!/usr/bin/env python3
"""Agents and frameworks as they come from the package index, each for a turn against the server.

    agents_check.py FAKE_SERVER [NAME...]

Each client has an environment of its own under build/clients with its newest release, since it is
the newest one that a user installs. The server answers by a script (tests/e2e/fake_server): what is
looked at is whether the client's own requests are taken and its own reading of the answers ends in
what was said. Prints a table of versions and results, and writes it into docs/clients.md with
--write. Skips with one line when the package index is not reached.
"""
import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile

import client_env

HERE = os.path.dirname(os.path.abspath(__file__))
PAGE = os.path.join(client_env.ROOT, "docs", "clients.md")
# name, what is installed, the package whose version is told, what the turn is
CLIENTS = [
    ("codex", ["openai-codex-cli-bin"], "openai-codex-cli-bin",
     "Codex CLI: `codex exec`, its tools, `namespace` and `web_search` among them"),
    ("claude", ["claude-agent-sdk"], "claude-agent-sdk",
     "Claude Code: `claude -p`, its tools with `defer_loading`"),
    ("tool_runner", ["anthropic"], "anthropic",
     "`client.beta.messages.tool_runner`: a call, a result, an answer"),
    ("instructor", ["instructor"], "instructor",
     "Mode.TOOLS, Mode.JSON_SCHEMA and Mode.RESPONSES_TOOLS"),
    ("openai_agents", ["openai-agents"], "openai-agents",
     "an agent with a tool; truncation auto, verbosity low; Responses and chat"),
    ("litellm", ["litellm"], "litellm",
     "completion, stream, overflow as ContextWindowExceededError"),
    ("langchain", ["langchain-openai", "langchain-anthropic"], "langchain-openai",
     "both doors of OpenAI's and Anthropic's; overflow as their own classes"),
    ("pydantic_ai", ["pydantic-ai-slim[openai,anthropic]"], "pydantic-ai-slim",
     "an agent with a tool, over chat, Responses and Anthropic"),
    ("smolagents", ["smolagents[openai]"], "smolagents", "a ToolCallingAgent"),
    ("haystack", ["haystack-ai"], "haystack-ai", "OpenAIChatGenerator, whole and streamed"),
    ("schemathesis", ["schemathesis"], "schemathesis",
     "`/openapi.json`: no answer of 5xx, of another status or type than it says"),
]


def install(name, packages):
    """Make build/clients/NAME hold the newest packages; None, or why it cannot."""
    venv = os.path.join(client_env.ROOT, "build", "clients", name)
    python = os.path.join(venv, "bin", "python")
    if os.path.exists(os.path.join(venv, "installed")):
        return None
    why = client_env.run(sys.executable, "-m", "venv", "--clear", venv)
    why = why or client_env.run(python, "-m", "pip", "install", "--quiet", "--no-input",
                                "--retries", "1", "--timeout", "20", *packages)
    if why is None:
        open(os.path.join(venv, "installed"), "w").close()
    return why


def version_of(name, package):
    python = os.path.join(client_env.ROOT, "build", "clients", name, "bin", "python")
    code = f"from importlib.metadata import version; print(version({package!r}))"
    return subprocess.run([python, "-c", code], capture_output=True, text=True).stdout.strip()


def take_turn(name, url):
    """Runs cases/NAME.py in the client's environment; None, or the last line of what went wrong."""
    python = os.path.join(client_env.ROOT, "build", "clients", name, "bin", "python")
    home = tempfile.mkdtemp()
    try:
        done = subprocess.run([python, os.path.join(HERE, "cases", name + ".py"), url],
                              capture_output=True, text=True, cwd=home, timeout=client_env.HANG_S,
                              stdin=subprocess.DEVNULL,
                              env={"PATH": os.environ["PATH"], "HOME": home, "LANG": "C.UTF-8",
                                   "OPENAI_API_KEY": "x", "ANTHROPIC_API_KEY": "x",
                                   "OPENAI_AGENTS_DISABLE_TRACING": "1"})
    except subprocess.TimeoutExpired:
        return f"did not end within {client_env.HANG_S} s"
    finally:
        shutil.rmtree(home, ignore_errors=True)
    lines = (done.stderr.strip() or done.stdout.strip() or "no output").splitlines()
    return lines[-1] if done.returncode else None


def write_table(rows):
    """Puts the table between its marks on the page."""
    with open(PAGE, encoding="utf-8") as f:
        text = f.read()
    table = "".join(f"| {' | '.join(r)} |\n" for r in rows)
    text = re.sub(r"(<!-- table -->\n).*(<!-- end -->)",
                  lambda m: m[1] + "| client | version | turn | result |\n|---|---|---|---|\n" +
                  table + m[2], text, flags=re.S)
    with open(PAGE, "w", encoding="utf-8") as f:
        f.write(text)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("program")
    p.add_argument("names", nargs="*")
    p.add_argument("--write", action="store_true")
    a = p.parse_args()
    rows, failed = [], 0
    tokenizer = os.path.join(client_env.ROOT, "tests", "data", "server", "tokenizer.json")
    command = [a.program, "-l", "4000000", tokenizer]
    small = [a.program, tokenizer]
    with client_env.started(command, r"(\d+)$") as port, \
            client_env.started(small, r"(\d+)$") as few:
        for name, packages, package, turn in CLIENTS:
            if a.names and name not in a.names:
                continue
            why = install(name, packages)
            if why:
                client_env.skip(f"{package} cannot be installed: {why}")
            wrong = take_turn(name, f"http://127.0.0.1:{port} http://127.0.0.1:{few}")
            failed += wrong is not None
            rows.append((package, version_of(name, package), turn, wrong or "ok"))
            print(f"{'FAIL ' if wrong else 'ok   '} {package} {rows[-1][1]}" +
                  (f": {wrong}" if wrong else ""), flush=True)
    if a.write:
        write_table(rows)
    print(f"{failed} failed" if failed else "all passed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
