#!/usr/bin/env python3
"""A service manager's side: readiness, watchdog, a socket that is handed over.

    tests/e2e/test_supervised.py path/to/fathom_scripted

systemd is not needed: its protocol is environment variables, a datagram socket and descriptor 3.
"""

import http.client
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import unittest

from served import HANG_S, wait_until

FATHOM = os.path.abspath(sys.argv.pop(1))


class Supervisor:
    """The process, what it says to us, and its socket."""

    def __init__(self, *flags, listening=None, extra=0, **env):
        self.folder = tempfile.mkdtemp()
        path = os.path.join(self.folder, "notify")
        self.notes = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.notes.bind(path)
        self.notes.settimeout(HANG_S)
        script, fds = 'exec "$@"', ()
        env = {**os.environ, "NOTIFY_SOCKET": path, **env}
        if listening:
            # The shell puts the socket where it belongs: what is passed on keeps its number.
            script = f'exec 3<&{listening.fileno()}; LISTEN_PID=$$ LISTEN_FDS={1 + extra} exec "$@"'
            fds = (listening.fileno(),)
        command = ["bash", "-c", script, "bash", FATHOM, "serve", "--max-num-seqs", "4"]
        self.process = subprocess.Popen([*command, *flags], env=env, pass_fds=fds, text=True,
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def wait_for(self, word):
        """The notes up to the one that holds the word."""
        seen = ""
        while word not in seen:
            seen += self.notes.recv(4096).decode() + "\n"
        return seen

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        return self.end()

    def end(self):
        out, err = self.process.communicate(timeout=HANG_S)
        self.notes.close()
        shutil.rmtree(self.folder)
        return self.process.returncode, out, err


def get(port, path):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=HANG_S)
    connection.request("GET", path)
    status = connection.getresponse().status
    connection.close()
    return status


class Supervised(unittest.TestCase):
    def test_ready_is_told_when_requests_are_answered_and_stopping_before_the_end(self):
        s = Supervisor("--port", "0")
        self.assertIn("STATUS=loading weights", s.wait_for("READY=1"))
        s.process.send_signal(signal.SIGTERM)
        s.wait_for("STOPPING=1")
        self.assertEqual(s.end()[0], 0)

    def test_the_watchdog_is_told_that_all_is_well(self):
        s = Supervisor("--port", "0", WATCHDOG_USEC="200000")
        s.wait_for("READY=1")
        for _ in range(3):
            s.wait_for("WATCHDOG=1")
        self.assertEqual(s.stop()[0], 0)

    def test_the_watchdog_hears_nothing_of_an_engine_that_is_stuck(self):
        with socket.create_server(("127.0.0.1", 0)) as listening:
            port = listening.getsockname()[1]
            s = Supervisor("--stall-timeout", "0.2", listening=listening, WATCHDOG_USEC="60000")
            s.wait_for("WATCHDOG=1")
            client = http.client.HTTPConnection("127.0.0.1", port, timeout=HANG_S)
            client.request("POST", "/v1/completions", '{"prompt": "[[then=stall;say=x]]"}')
            wait_until(lambda: get(port, "/health") == 503)
            s.notes.setblocking(False)
            try:
                while s.notes.recv(4096):
                    pass  # what was told before
            except BlockingIOError:
                pass
            s.notes.settimeout(0.5)
            with self.assertRaises(TimeoutError):
                s.notes.recv(4096)
            s.notes.settimeout(HANG_S)
            s.process.kill()
            client.close()
            s.end()

    def test_a_watchdog_of_another_process_is_not_ours(self):
        s = Supervisor("--port", "0", WATCHDOG_USEC="1000", WATCHDOG_PID="1")
        self.assertNotIn("WATCHDOG", s.wait_for("READY=1"))
        s.process.send_signal(signal.SIGTERM)
        self.assertNotIn("WATCHDOG", s.wait_for("STOPPING=1"))
        self.assertEqual(s.end()[0], 0)

    def test_a_socket_that_is_handed_over_is_listened_on_and_waits_while_the_model_loads(self):
        with socket.create_server(("127.0.0.1", 0)) as listening:
            port = listening.getsockname()[1]
            s = Supervisor("--port", "1", listening=listening)
            self.assertEqual(get(port, "/health"), 200)  # asked before anybody accepts
            s.wait_for("READY=1")
            self.assertEqual(s.stop()[0], 0)

    def test_a_socket_file_that_is_handed_over_stays_the_managers(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "http")
            with socket.socket(socket.AF_UNIX) as listening:
                listening.bind(path)
                listening.listen()
                s = Supervisor(listening=listening)
                s.wait_for("READY=1")
                with socket.socket(socket.AF_UNIX) as client:
                    client.connect(path)
                    client.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
                    self.assertTrue(client.recv(100).startswith(b"HTTP/1.1 200"))
                self.assertEqual(s.stop()[0], 0)
            self.assertTrue(os.path.exists(path))

    def test_what_is_no_stream_socket_and_several_sockets_are_refused_in_one_line(self):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams:
            status, _, err = Supervisor(listening=datagrams).end()
            self.assertEqual((status, err.count("\n")), (1, 1))
            self.assertIn("no stream socket", err)
        with socket.create_server(("127.0.0.1", 0)) as listening:
            status, _, err = Supervisor(listening=listening, extra=1).end()
            self.assertEqual((status, err.count("\n")), (1, 1))
            self.assertIn("LISTEN_FDS is 2", err)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v"])
