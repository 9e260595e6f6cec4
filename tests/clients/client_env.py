"""What the tests with foreign clients share: their Python packages, and a server to talk to.

The packages stand in requirements.txt, each with its version and the hashes of its files, and are
installed into build/venv from the package index when a test first asks for them. To take newer
versions: uv pip compile --universal --python-version 3.11 --no-header --no-annotate
--generate-hashes, with the names openai, anthropic and jsonschema.
"""
import contextlib
import fcntl
import hashlib
import os
import re
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
REQUIREMENTS = os.path.join(HERE, "requirements.txt")
VENV = os.path.join(ROOT, "build", "venv")
PYTHON = os.path.join(VENV, "bin", "python")
SKIPPED = 77  # the exit status that CTest takes for "skipped"


def skip(why):
    """End the program as skipped, with one line."""
    print(f"{os.path.basename(sys.argv[0])}: skipped, {why}")
    sys.exit(SKIPPED)


def run(*command):
    """None, or the last line of what a command that failed has said."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    lines = done.stdout.strip().splitlines() or [f"exit status {done.returncode}"]
    return lines[-1] if done.returncode else None


def install():
    """Make VENV hold what REQUIREMENTS says; None, or why it cannot."""
    with open(REQUIREMENTS, "rb") as f:
        wanted = hashlib.sha256(f.read()).hexdigest()
    stamp = os.path.join(VENV, "installed")
    os.makedirs(os.path.dirname(VENV), exist_ok=True)
    with open(VENV + ".lock", "w") as lock:  # tests may run side by side
        fcntl.flock(lock, fcntl.LOCK_EX)
        with contextlib.suppress(OSError), open(stamp) as f:
            if f.read() == wanted:
                return None
        why = run(sys.executable, "-m", "venv", "--clear", VENV)
        why = why or run(PYTHON, "-m", "pip", "install", "--quiet", "--no-input", "--retries", "1",
                         "--timeout", "20", "--require-hashes", "--only-binary", ":all:",
                         "--requirement", REQUIREMENTS)
        if why is None:
            with open(stamp, "w") as f:
                f.write(wanted)
        return why


def enter(*packages):
    """Go on in VENV: returns there, or ends the program as skipped."""
    if os.path.realpath(sys.prefix) != os.path.realpath(VENV):
        why = install()
        if why:
            skip(f"{' and '.join(packages)} cannot be installed into {VENV}: {why}")
        os.execv(PYTHON, [PYTHON, *sys.argv])


@contextlib.contextmanager
def started(command, pattern):
    """A server for as long as the block runs; its port is the group of `pattern` that it prints."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        for line in process.stdout:
            found = re.match(pattern, line)
            if found:
                yield int(found.group(1))
                return
        raise RuntimeError(f"{command[0]} printed no port")
    finally:
        process.terminate()
        process.wait(timeout=20)
        process.stdout.close()


def started_fake(program):
    """tests/e2e/fake_server.c on a free port"""
    tokenizer = os.path.join(ROOT, "tests", "data", "server", "tokenizer.json")
    return started([program, tokenizer], r"(\d+)$")


def started_pilot(program, *flags):
    """`fathom serve` with the pilot model on a free port"""
    return started([program, "serve", "--port", "0", *flags], r"address +http://\S+:(\d+)/")
