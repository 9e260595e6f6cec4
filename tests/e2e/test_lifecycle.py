#!/usr/bin/env python3
"""How the program ends: drained, failed, stuck. Its engine is the scripted one of the tests.

    tests/e2e/test_lifecycle.py path/to/fathom_scripted

A prompt says what its request does (tests/support/fake_engine.h): [[step_ms=20;say=abc]] speaks,
[[then=fail;say=]] makes the engine fail, [[then=stall;say=]] leaves it stuck in a step.
"""

import concurrent.futures
import json
import os
import resource
import signal
import socket
import sys
import tempfile
import time
import unittest

from served import Scripted, Server, wait_until

COMPLETIONS = "/v1/completions"


class Lifecycle(unittest.TestCase):

    def test_a_failed_engine_ends_the_process_after_every_answer(self):
        server = Scripted()
        with concurrent.futures.ThreadPoolExecutor(5) as pool:
            waiting = [pool.submit(server.ask, "first_ms=600000;say=x", stream=i % 2 == 1)
                       for i in range(4)]
            wait_until(lambda: server.running() == 4)
            status, text = server.ask("step_ms=20;then=fail;say=one two", stream=True)
            self.assertEqual(status, 200)
            self.assertIn("the engine has failed: the scripted device is lost", text)
            for future in waiting:  # no stream has begun, so the status tells
                status, text = future.result()
                self.assertEqual(status, 503)
                self.assertIn("the scripted device is lost", text)
        status, errors = server.end()
        self.assertEqual(status, 1)
        self.assertIn("fathom: the engine has failed: the scripted device is lost", errors)

    def silent_reader(self, server, script):
        """A client that asks for a stream, and does not read it."""
        reader = socket.socket()
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        reader.connect((server.host, server.port))
        body = json.dumps({"prompt": f"[[{script}]]", "max_tokens": 4000, "stream": True})
        reader.sendall(f"POST {COMPLETIONS} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
                       f"\r\n{body}".encode())
        return reader

    def test_a_reader_that_does_not_read_holds_up_no_end(self):
        for ask, status in (("then=fail;say=x", 1), (None, 0)):
            server = Scripted("--shutdown-timeout", "1")
            reader = self.silent_reader(server, "step_ms=50;repeat=500;say=abcdefgh")  # minutes
            idle = server.connect()
            idle.request("GET", "/health")
            idle.getresponse().read()
            wait_until(lambda: server.running() == 1)
            time.sleep(0.5)
            if ask:
                server.ask(ask)
            else:
                server.process.send_signal(signal.SIGTERM)
            self.assertEqual(server.end()[0], status)
            reader.close()
            idle.close()

    def test_an_idle_connection_holds_up_no_drain(self):
        server = Scripted()
        idle = server.connect()
        idle.request("GET", "/health")
        idle.getresponse().read()
        server.process.send_signal(signal.SIGTERM)
        self.assertEqual(server.end(29)[0], 0)  # after 30 s the connection itself would be over
        idle.close()

    def test_a_stuck_step_is_seen(self):
        server = Scripted()
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            slow = pool.submit(server.ask, "first_ms=600000;say=x")
            wait_until(lambda: server.running() == 1)
            time.sleep(5)  # slow is not stuck
            self.assertEqual(server.get("/health")[0], 200)
            self.assertEqual(server.get("/ready")[0], 200)
            stuck = pool.submit(server.ask, "then=stall;say=x")
            wait_until(lambda: server.get("/health")[0] == 503)
            for path in ("/health", "/ready", "/ping", "/health/live", "/health/ready"):
                status, text = server.get(path)
                self.assertEqual(status, 503)
                self.assertIn("engine_stalled", text)
            server.process.send_signal(signal.SIGTERM)
            for future in (slow, stuck):
                status, text = future.result()
                self.assertEqual(status, 503)
                self.assertIn("shutting_down", text)
        status, errors = server.end()
        self.assertEqual(status, 1)
        self.assertIn("the engine is stuck", errors)

    def test_a_drain_lets_requests_end(self):
        server = Scripted("--shutdown-timeout", "600")
        with tempfile.TemporaryDirectory() as folder, \
             concurrent.futures.ThreadPoolExecutor(2) as pool:
            go = os.path.join(folder, "go")
            running = pool.submit(server.ask, f"hold={go};say=abcdefghijklmnopqrst", stream=True)
            wait_until(lambda: server.running() == 1)
            self.assertEqual(server.get("/ready")[0], 200)
            server.process.send_signal(signal.SIGTERM)
            wait_until(lambda: server.get("/ready")[0] == 503)
            status, text = server.get("/health")
            self.assertEqual((status, json.loads(text)["status"]), (200, "draining"))
            status, text = server.ask("say=x")
            self.assertEqual(status, 503)
            self.assertIn("shutting_down", text)
            with open(go, "w", encoding="utf-8"):
                pass
            status, text = running.result()
            self.assertEqual(status, 200)
            self.assertTrue(text.endswith("data: [DONE]\n\n"))
        self.assertEqual(server.end()[0], 0)

    def test_a_drain_has_an_end(self):
        server = Scripted("--shutdown-timeout", "0.5")
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            running = pool.submit(server.ask, "first_ms=600000;say=x")
            wait_until(lambda: server.running() == 1)
            server.process.send_signal(signal.SIGTERM)
            status, text = running.result()
            self.assertEqual(status, 503)
            self.assertIn("not finished in time", text)
        self.assertEqual(server.end()[0], 0)

    def test_a_crash_names_the_requests_in_flight(self):
        server = Scripted()
        connection = server.connect()
        body = {"prompt": "[[step_ms=600000;say=abcdefghijklmnopqrstuvwxyz]]", "stream": True}
        connection.request("POST", COMPLETIONS, json.dumps(body))
        answer = connection.getresponse()
        first = json.loads(answer.readline().decode().removeprefix("data: "))
        server.process.send_signal(signal.SIGSEGV)
        status, errors = server.end()
        self.assertEqual(status, -signal.SIGSEGV)
        self.assertIn("has met a fault of its own", errors)
        self.assertIn(f"sent by process {os.getpid()}", errors)
        self.assertIn(f"in flight:\n    {first['id']}\n", errors)
        self.assertNotIn("abcdef", errors)
        connection.close()

    def test_flags_of_limits(self):
        server = Scripted("--max-connections", "1", "--stall-timeout", "0.3")
        first = server.connect()
        first.request("POST", COMPLETIONS,
                      json.dumps({"prompt": "[[then=stall;say=x]]", "stream": True}))
        answer = first.getresponse()  # before that its place may go to the next connection
        wait_until(lambda: server.get("/health")[0] == 503)
        status, text = server.ask("say=x")
        self.assertEqual(status, 503)
        self.assertIn("1 connections are open, which is the limit (--max-connections", text)
        answer.close()
        first.close()
        server.process.kill()
        server.end()

    def test_without_files_the_slowest_connections_go(self):
        server = Scripted()
        room = server.n_descriptor() + 20
        resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (room, room))
        idle = [socket.create_connection((server.host, server.port)) for _ in range(60)]
        for _ in range(5):
            self.assertEqual(server.get("/health")[0], 200)
            self.assertEqual(server.ask("say=x")[0], 200)
        self.assertLessEqual(server.n_descriptor(), room)
        for connection in idle:
            connection.close()
        server.process.terminate()
        status, errors = server.end()
        self.assertEqual(status, 0)
        self.assertEqual(errors.count("a connection cannot be taken: Too many open files"), 1)


if __name__ == "__main__":
    Server.path = os.path.abspath(sys.argv.pop(1))
    unittest.main(verbosity=2)
