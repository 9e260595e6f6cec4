#!/usr/bin/env python3
"""Proxies of other makers between a server that prefills and one that decodes.

    tests/clients/proxies_check.py path/to/fathom

vllm-router for NIXL and for Mooncake, and sglang-router, which asks both servers at once, are started
as their command lines have it, in front of two servers of the pilot model. Every answer, whole or
streamed, must be that of one server alone, and the pages of its prompt must have been handed over.
"""
import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time

import client_env

client_env.enter("vllm-router and sglang-router", requirements="requirements-routers.txt")

sys.path.insert(0, os.path.join(client_env.ROOT, "tests", "e2e"))
import pd_servers  # noqa: E402
from served import HANG_S, take_program  # noqa: E402


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Proxy:
    """One of them, as the servers of pd_servers are asked."""

    def __init__(self, name, *flags):
        self.name, self.port = name, free_port()
        self.log = tempfile.TemporaryFile(mode="w+")
        program = os.path.join(os.path.dirname(sys.executable), name)
        self.process = subprocess.Popen(
            [program, *flags, "--host", "127.0.0.1", "--port", str(self.port), "--prometheus-port",
             str(free_port())], stdout=self.log, stderr=self.log)

    def connect(self, timeout=HANG_S):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)

    def is_up(self):
        with contextlib.suppress(OSError, http.client.HTTPException):
            connection = self.connect()
            connection.request("GET", "/health")
            return connection.getresponse().status == 200
        return False

    def wait(self):
        end = time.monotonic() + HANG_S
        while not self.is_up():
            if time.monotonic() > end or self.process.poll() is not None:
                self.log.seek(0)
                raise AssertionError(f"{self.name} does not start:\n{self.log.read()[-2000:]}")
            time.sleep(0.1)

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def streamed(proxy, body, path):
    """The text of a streamed answer."""
    status, text = pd_servers.post(proxy, {**body, "stream": True}, path)
    events = [line[6:] for line in text.split("\n") if line.startswith("data: ")]
    assert status == 200 and events[-1] == "[DONE]", text
    choices = [c for event in events[:-1] for c in json.loads(event)["choices"]]
    return "".join(c.get("text") or c.get("delta", {}).get("content") or "" for c in choices)


def check(proxy, seed, one, d):
    """Four prompts of some 300 tokens: both doors, whole and streamed."""
    said = {}
    pulled, lost = pd_servers.moved(d)
    for i, path in enumerate(["/v1/completions", "/v1/chat/completions"] * 2):
        body = {"model": "pilot", "max_tokens": 12, "temperature": 0, "ignore_eos": True}
        text = pd_servers.text_of(seed + i, 300)
        if path == "/v1/completions":
            body["prompt"] = text
        else:
            body["messages"] = [{"role": "user", "content": text}]
        want = pd_servers.said(one.post(path, body))
        if i < 2:
            status, answer = pd_servers.post(proxy, body, path)
            assert status == 200, answer
            said[i] = pd_servers.said(answer)
        else:
            said[i] = streamed(proxy, body, path)
        assert said[i] == want, f"{path}: {said[i]!r}, expected {want!r}"
    now_pulled, now_lost = pd_servers.moved(d)
    assert now_pulled - pulled >= 16 and now_lost == lost, (now_pulled - pulled, now_lost - lost)
    return now_pulled - pulled


def main():
    take_program(sys.argv)
    one, p, d = pd_servers.server(), pd_servers.server("kv_producer"), pd_servers.server("kv_consumer")
    pages = str(pd_servers.pages_port(p))
    vllm = ["--vllm-pd-disaggregation", "--policy", "round_robin", "--decode", d.url]
    failed = 0
    for i, (name, *flags) in enumerate([
            ("vllm-router", *vllm, "--prefill", p.url, "--kv-connector", "nixl"),
            ("vllm-router", *vllm, "--prefill", p.url, pages, "--kv-connector", "mooncake"),
            ("sglang-router", "launch", "--pd-disaggregation", "--policy", "round_robin", "--prefill",
             p.url, pages, "--decode", d.url)]):
        proxy = Proxy(name, *flags)
        told = f"{name} {flags[-1] if 'kv-connector' in ' '.join(flags) else ''}".strip()
        try:
            proxy.wait()
            print(f"ok    {told}: {check(proxy, 1000 * (i + 1), one, d):.0f} pages handed over")
        except Exception as e:  # one failing proxy must not hide the others
            failed += 1
            print(f"FAIL  {told}: {type(e).__name__}: {e}")
        finally:
            proxy.stop()
    for s in (one, p, d):
        assert s.stop() == 0
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
