#!/usr/bin/env python3
"""Grammars that are much work to compile, against everybody else and against the end of the program.
The engine is the scripted one of the tests.

    tests/e2e/test_compile.py path/to/fathom_scripted
"""

import http.client
import json
import os
import signal
import socket
import sys
import tempfile
import time
import unittest

from served import HANG_S, Scripted, Server, wait_until

COMPLETIONS = "/v1/completions"
N_HEAVY = 80  # a good part of a second each


def heavy(i):
    """A request whose pattern takes all the work that a compilation may be; no two are the same."""
    return {"prompt": "[[say=x]]", "max_tokens": 1,
            "structured_outputs": {"regex": r"(\w{0,100}){0,%d}" % (200 + i)}}


def send(server, body, key):
    """A request on a connection of its own; whoever sends it reads later, or never."""
    text = json.dumps(body).encode()
    client = socket.create_connection((server.host, server.port), timeout=HANG_S)
    client.sendall(b"POST %s HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\n"
                   b"Content-Length: %d\r\n\r\n%s" % (COMPLETIONS.encode(), key.encode(),
                                                      len(text), text))
    return client


def ask(server, body, key):
    """Status and seconds."""
    connection = http.client.HTTPConnection(server.host, server.port, timeout=HANG_S)
    begin = time.monotonic()
    connection.request("POST", COMPLETIONS, json.dumps(body), {"Authorization": "Bearer " + key})
    answer = connection.getresponse()
    answer.read()
    connection.close()
    return answer.status, time.monotonic() - begin


def n_compiled(server):
    """Compilations that have begun."""
    connection = http.client.HTTPConnection(server.host, server.port, timeout=HANG_S)
    connection.request("GET", "/metrics", headers={"Authorization": "Bearer A"})
    text = connection.getresponse().read().decode()
    connection.close()
    lines = [line for line in text.splitlines()
             if line.startswith("fathom_grammar_cache_misses_total")]
    return int(float(lines[0].rsplit(" ", 1)[1]))


class Compile(unittest.TestCase):
    def start(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "keys")
            with open(path, "w", encoding="utf-8") as f:
                f.write("A\nB\n")
            return Scripted("--api-key-file", path)

    def flood(self, server):
        """Key A's heavy requests, the first of them under way."""
        before = n_compiled(server)
        clients = [send(server, heavy(i), "A") for i in range(N_HEAVY)]
        for client in clients:
            self.addCleanup(client.close)
        wait_until(lambda: n_compiled(server) > before)
        return clients

    def test_who_compiles_nothing_waits_for_nobody(self):
        server = self.start()
        alone_s = ask(server, heavy(N_HEAVY), "A")[1]
        self.flood(server)
        seconds = []
        for _ in range(10):
            status, took = ask(server, {"prompt": "[[say=x]]", "max_tokens": 1}, "B")
            self.assertEqual(status, 200)
            seconds.append(took)
        self.assertLess(n_compiled(server), N_HEAVY - 5)  # or there was nothing to wait for
        self.assertLess(sorted(seconds)[5], 1 + 2 * alone_s)
        # and who compiles something small has the next turn
        before = n_compiled(server)
        status, _ = ask(server, {"prompt": "[[say=a]]", "max_tokens": 1,
                                 "structured_outputs": {"regex": "a|b"}}, "B")
        self.assertEqual(status, 200)
        self.assertLess(n_compiled(server), before + 5)
        server.process.kill()
        server.end()

    def test_nothing_is_compiled_for_who_has_left(self):
        server = self.start()
        for client in self.flood(server):
            client.close()
        before = n_compiled(server)
        status, _ = ask(server, {"prompt": "[[say=a]]", "max_tokens": 1,
                                 "structured_outputs": {"regex": "a|b"}}, "A")  # behind all of them
        self.assertEqual(status, 200)
        self.assertLess(n_compiled(server), before + N_HEAVY // 2)
        server.process.terminate()
        self.assertEqual(server.end()[0], 0)

    def test_a_second_signal_ends_compilations(self):
        server = self.start()
        alone_s = ask(server, heavy(N_HEAVY), "A")[1]
        clients = self.flood(server)
        server.process.send_signal(signal.SIGTERM)
        time.sleep(0.5)
        self.assertIsNone(server.process.poll())  # the drain goes on
        begin = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        status, errors = server.end()
        self.assertLess(time.monotonic() - begin, 2 + N_HEAVY / 10 * alone_s)
        self.assertEqual(status, 0, errors)
        answers = b"".join(client.recv(1 << 16) for client in clients[-5:])
        self.assertIn(b"shutting_down", answers)


if __name__ == "__main__":
    Server.path = os.path.abspath(sys.argv.pop(1))
    unittest.main(verbosity=2)
