"""The program as a child process, and what tests say to it over HTTP."""

import atexit
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time


def is_sanitized(path):
    """Whether sanitizers slow this program down."""
    with open(path, "rb") as f:
        text = f.read()
    return b"__asan_init" in text or b"__tsan_init" in text


# Nothing takes so long but what hangs, however busy the machine is. The program is a test's last word.
HANG_S = 600 if os.path.isfile(sys.argv[-1]) and is_sanitized(sys.argv[-1]) else 120


def wait_until(condition):
    end = time.monotonic() + HANG_S
    while not condition():
        if time.monotonic() > end:
            raise AssertionError("it did not come to pass")
        time.sleep(0.02)


class Log:
    """A file for what a process prints. Who reads it has a place in it of its own, so that the process writes on
    behind what it has written."""

    def __init__(self):
        self.file = tempfile.NamedTemporaryFile()

    def fileno(self):
        return self.file.fileno()

    def text(self):
        with open(self.file.name, encoding="utf-8") as f:
            return f.read()


class Server:
    """`fathom serve` with the pilot on a free port, and what it has printed up to "ready"."""

    path = None  # of the program; a test's main sets it
    # A step on a busy machine is not stuck: else /health says so, and a drain gives it up.
    always = ("--disable-log-requests", "--stall-timeout", str(3 * HANG_S))
    given = ()  # of always, what the command line of the test said

    def __init__(self, *flags, stderr=None, env=None):
        self.process = subprocess.Popen([Server.path, "serve", "--port", "0", *self.always, *flags],
                                        stdout=subprocess.PIPE, stderr=stderr, text=True, env=env)
        atexit.register(self.kill)  # a failed test leaves nothing that runs
        self.printed = ""
        for line in self.process.stdout:
            self.printed += line
            if line.startswith("ready"):
                break
        address = re.search(r"^address +(https?://([^:]+):(\d+))/v1", self.printed, re.M)
        if not address:
            errors = self.process.stderr.read() if self.process.stderr else ""
            raise AssertionError("no address in:\n" + self.printed + errors)
        self.url = address.group(1)
        self.host, self.port = address.group(2), int(address.group(3))

    def connect(self, timeout=3 * HANG_S):
        return http.client.HTTPConnection(self.host, self.port, timeout=timeout)

    def post(self, path, body):
        connection = self.connect()
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        text = answer.read()
        connection.close()
        if answer.status != 200:
            raise AssertionError(f"{path}: {answer.status} {text}")
        return json.loads(text)

    def stream(self, path, body):
        """The chunks of a streamed answer, [DONE] checked and left out."""
        connection = self.connect()
        connection.request("POST", path, json.dumps({**body, "stream": True}))
        answer = connection.getresponse()
        if answer.status != 200:
            raise AssertionError(f"{path}: {answer.status} {answer.read()}")
        events = [line[6:] for line in answer.read().decode().split("\n")
                  if line.startswith("data: ")]
        connection.close()
        if events[-1] != "[DONE]":
            raise AssertionError("the stream does not end in [DONE]")
        return [json.loads(event) for event in events[:-1]]

    def health(self):
        connection = self.connect()
        connection.request("GET", "/health")
        health = json.loads(connection.getresponse().read())
        connection.close()
        return health

    def metrics(self):
        """{"name{labels}": value} of a scrape."""
        connection = self.connect()
        connection.request("GET", "/metrics")
        lines = connection.getresponse().read().decode().splitlines()
        connection.close()
        samples = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
        return {name: float(value) for name, value in samples}

    def resident_kib(self):
        with open(f"/proc/{self.process.pid}/status", encoding="utf-8") as f:
            return int(re.search(r"VmRSS:\s+(\d+)", f.read()).group(1))

    def n_descriptor(self):
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def wait_idle(self):
        """Until no request is left; the health then."""
        def is_idle():
            health.update(self.health())
            return health["running"] + health["waiting"] == 0

        health = {}
        wait_until(is_idle)
        return health

    def wait_descriptors(self, n):
        """Until no more than n descriptors are open."""
        wait_until(lambda: self.n_descriptor() <= n)

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def stop(self):
        """SIGTERM; the exit status."""
        self.process.send_signal(signal.SIGTERM)
        status = self.process.wait(timeout=HANG_S)
        self.process.stdout.close()
        atexit.unregister(self.kill)
        return status

    def end(self, timeout=HANG_S):
        """Exit status and what it said on standard error, which is a pipe."""
        _, errors = self.process.communicate(timeout=timeout)
        atexit.unregister(self.kill)
        return self.process.returncode, errors


def take_program(words):
    """Takes the program out of a test's command line, and before it flags of every server.

    Such a flag is one word that begins with a dash: -tp=4."""
    while words[1].startswith("-"):
        Server.given += (words.pop(1),)
    Server.always += Server.given
    Server.path = os.path.abspath(words.pop(1))


class Scripted(Server):
    """The program over the scripted engine of the tests, its standard error in a pipe."""

    always = ()

    def __init__(self, *flags):
        super().__init__(*flags, stderr=subprocess.PIPE)

    def ask(self, script, **fields):
        """Status and text of a completion on a connection of its own."""
        connection = self.connect()
        body = {"prompt": f"[[{script}]]", "max_tokens": 1000, **fields}
        connection.request("POST", "/v1/completions", json.dumps(body))
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        return answer.status, text

    def get(self, path):
        connection = self.connect()
        connection.request("GET", path)
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        return answer.status, text

    def running(self):
        return self.health()["running"]
