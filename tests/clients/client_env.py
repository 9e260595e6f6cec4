"""What the tests with foreign clients share: their Python packages, and a server to talk to.

The packages stand in requirements*.txt, each with its version and the hashes of its files, and are
installed from the package index when a test first asks for them, by the uv of requirements-uv.txt in
build/venv-uv: those of requirements.txt into build/venv, those of requirements-lm-eval.txt into
build/venv-lm-eval, and so on; requirements-compressed.txt brings torch. To take newer versions: uv pip
compile --universal --python-version 3.11 --no-header --no-annotate --generate-hashes, with the names
openai, anthropic, jsonschema and huggingface-hub; lm_eval[api]; numpy; uv; kubernetes-validate;
compressed-tensors, safetensors and torch; tiktoken, splintr-rs and jinja2; vllm-router and sglang-router.
"""
import argparse
import contextlib
import fcntl
import hashlib
import os
import re
import subprocess
import sys

HANG_S = 120  # nothing takes so long but what hangs, however busy the machine is
HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
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


def python_of(venv):
    return os.path.join(venv, "bin", "python")


def make(venv, requirements, *commands):
    """Make the folder `venv` hold what a file says, by commands; None, or why it cannot."""
    with open(requirements, "rb") as f:
        wanted = hashlib.sha256(f.read()).hexdigest()
    stamp = os.path.join(venv, "installed")
    os.makedirs(os.path.dirname(venv), exist_ok=True)
    with open(venv + ".lock", "w") as lock:  # tests may run side by side
        fcntl.flock(lock, fcntl.LOCK_EX)
        with contextlib.suppress(OSError), open(stamp) as f:
            if f.read() == wanted:
                return None
        for command in commands:
            why = run(*command)
            if why:
                return why
        with open(stamp, "w") as f:
            f.write(wanted)
        return None


def install(venv, requirements):
    """Make the folder `venv` hold what a file says; None, or why it cannot."""
    tools, named = os.path.join(ROOT, "build", "venv-uv"), os.path.join(HERE, "requirements-uv.txt")
    why = make(tools, named, (sys.executable, "-m", "venv", "--clear", tools),
               (python_of(tools), "-m", "pip", "install", "--quiet", "--no-input", "--retries", "1",
                "--timeout", "20", "--require-hashes", "--only-binary", ":all:", "--requirement", named))
    return why or make(venv, requirements,
                       (sys.executable, "-m", "venv", "--without-pip", "--clear", venv),
                       (python_of(tools), "-m", "uv", "pip", "install", "--quiet", "--python",
                        python_of(venv), "--require-hashes", "--requirement", requirements))


def enter(*packages, requirements="requirements.txt"):
    """Go on in the environment of a requirements file: returns there, or ends the program as
    skipped."""
    venv = os.path.join(ROOT, "build", requirements.replace("requirements", "venv")[:-len(".txt")])
    if os.path.realpath(sys.prefix) != os.path.realpath(venv):
        why = install(venv, os.path.join(HERE, requirements))
        if why:
            skip(f"{' and '.join(packages)} cannot be installed into {venv}: {why}")
        os.execv(python_of(venv), [python_of(venv), *sys.argv])


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
        process.wait(timeout=HANG_S)
        process.stdout.close()


def started_fake(program):
    """tests/e2e/fake_server.c on a free port"""
    tokenizer = os.path.join(ROOT, "tests", "data", "server", "tokenizer.json")
    return started([program, tokenizer], r"(\d+)$")


def started_pilot(program, *flags):
    """`fathom serve` with the pilot model on a free port"""
    return started([program, "serve", "--port", "0", *flags], r"address +http://\S+:(\d+)/")


def run_checks(checks, fake, *args):
    """Call with args each of the (function, needs the scripted server, needs a model) whose needs
    are met; 1 when one has failed."""
    failed = 0
    for f, needs_fake, needs_model in checks:
        if needs_model if fake else needs_fake:
            continue
        try:
            f(*args)
            print(f"ok    {f.__name__}")
        except Exception as e:  # one failing check must not hide the others
            failed += 1
            print(f"FAIL  {f.__name__}: {type(e).__name__}: {e}")
    print(f"{failed} failed" if failed else "all passed")
    return 1 if failed else 0


def check_list():
    """An empty list of checks, and the decorator that appends to it."""
    checks = []

    def check(fake=False, model=False):
        def add(f):
            checks.append((f, fake, model))
            return f
        return add
    return checks, check


def refused(error, status, f, **arguments):
    """The error of a call, of the client's class for errors with a status, which must be this."""
    try:
        f(**arguments)
    except error as e:
        assert e.status_code == status, f"status {e.status_code}, expected {status}: {e.message}"
        return e
    raise AssertionError(f"no error came, expected status {status}")


def say(text, **options):
    """The words that make tests/e2e/fake_server say this text."""
    words = "".join(f"{k}={v};" for k, v in options.items())
    return f"[[{words}say={text}]]"


def main(checks, connect):
    """Start the server that the command line names and run the checks; connect makes their
    arguments of its address."""
    p = argparse.ArgumentParser()
    server = p.add_mutually_exclusive_group(required=True)
    server.add_argument("--start-fake")
    server.add_argument("--start-pilot")
    a = p.parse_args()
    server = started_fake(a.start_fake) if a.start_fake else started_pilot(a.start_pilot)
    with server as port:
        return run_checks(checks, bool(a.start_fake), *connect(f"http://127.0.0.1:{port}"))
