#!/usr/bin/env python3
"""What the program takes before it loads, and what signals and a full disk do to it.

    tests/e2e/test_signals.py path/to/fathom_scripted

Its engine is the scripted one of the tests, which loads as long as a file "hold" is in the directory
of --kv-offload-dir.
"""

import concurrent.futures
import http.client
import json
import os
import resource
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
import unittest

from certificates import make_certificate
from served import HANG_S, Scripted, Server, wait_until

MODELS = "/v1/models"


def get(server, path, key=None):
    connection = server.connect()
    connection.request("GET", path, headers={"Authorization": "Bearer " + key} if key else {})
    answer = connection.getresponse()
    answer.read()
    connection.close()
    return answer.status


class Told:
    """What a server says on standard error, while it runs."""

    def __init__(self, server):
        self.lines = []
        self.thread = threading.Thread(target=self.read, args=(server.process.stderr,),
                                       daemon=True)
        self.thread.start()

    def read(self, stream):
        for line in stream:
            self.lines.append(line)

    def has(self, part):
        return any(part in line for line in self.lines)

    def wait(self, part):
        wait_until(lambda: self.has(part))

    def text(self):
        return "".join(self.lines)


def stop(server, told=None):
    server.process.send_signal(signal.SIGTERM)
    status = server.process.wait(timeout=HANG_S)
    if told:
        told.thread.join()
    server.process.stdout.close()
    server.process.stderr.close()
    return status


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def n_line(path):
    with open(path, encoding="utf-8") as f:
        return len(f.readlines())


def refused(*flags):
    done = subprocess.run([Server.path, "serve", *flags], capture_output=True, text=True,
                          timeout=HANG_S, check=False)
    if done.returncode != 1 or done.stderr.count("\n") != 1:
        raise AssertionError(f"{flags}: {done.returncode} {done.stdout} {done.stderr}")
    return done.stderr


def slowly(folder):
    """Flags of a server that loads until folder/hold is removed."""
    with open(os.path.join(folder, "hold"), "w", encoding="utf-8"):
        pass
    return ("--kv-offload-dir", folder, "--kv-offload-dir-size", "1G")


class Loading:
    """`fathom serve` that loads until `let_go`, and is then ready."""

    def __init__(self, folder, *flags):
        self.hold = os.path.join(folder, "hold")
        self.process = subprocess.Popen([Server.path, "serve", *slowly(folder), *flags],
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        wait_until(lambda: os.path.exists(os.path.join(folder, "seen")))

    def let_go(self):
        os.unlink(self.hold)
        for line in self.process.stdout:
            if line.startswith("ready"):
                return
        raise AssertionError(self.process.stderr.read())


class InFolder(unittest.TestCase):
    """With a folder of its own for files."""

    def setUp(self):
        self.folder = tempfile.mkdtemp()

    def tearDown(self):
        shutil.rmtree(self.folder)

    def path(self, name):
        return os.path.join(self.folder, name)


class Claims(InFolder):

    def test_the_port_is_taken_before_the_model_is_loaded(self):
        port = str(free_port())
        loading = Loading(self.folder, "--port", port)
        with self.assertRaises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", int(port)))
        self.assertIn("another program has it", refused("--port", port))
        loading.let_go()
        with socket.create_connection(("127.0.0.1", int(port)), timeout=HANG_S):
            pass
        self.assertIn("another program has it", refused("--port", port))
        self.assertEqual(stop(loading), 0)

    def test_a_port_can_be_had_again_at_once(self):
        port = str(free_port())
        for _ in range(2):
            server = Scripted("--port", port)
            idle = server.connect()
            idle.request("GET", "/health")
            idle.getresponse().read()
            self.assertEqual(stop(server), 0)  # which closes the connection first
            idle.close()

    def test_socket_files_are_taken_before_the_model_is_loaded(self):
        flags = ("--uds", self.path("http"), "--admin-socket", self.path("admin"))
        loading = Loading(self.folder, *flags)
        for path in (self.path("http"), self.path("admin")):
            with socket.socket(socket.AF_UNIX) as s, self.assertRaises(ConnectionRefusedError):
                s.connect(path)
            self.assertIn("another program listens on", refused("--uds", path))
        loading.let_go()
        for path in (self.path("http"), self.path("admin")):
            with socket.socket(socket.AF_UNIX) as s:
                s.connect(path)
        self.assertEqual(stop(loading), 0)
        self.assertFalse(os.path.exists(self.path("http")) or os.path.exists(self.path("admin")))

    def test_what_cannot_be_taken_is_told_before_the_model_is_loaded(self):
        hangs = slowly(self.folder)
        hold = self.path("hold")
        for flags, part in ((("--host", "256.1.1.1.x"), "is no address of this machine"),
                            (("--access-log", "/nowhere/log"), "--access-log /nowhere/log"),
                            (("--admin-socket", "/nowhere/a"), "/nowhere/a"),
                            (("--uds", "/nowhere/u"), "/nowhere/u"),
                            (("--ssl-certfile", hold, "--ssl-keyfile", hold),
                             "--ssl-certfile holds no certificate")):
            self.assertIn(part, refused("--port", "0", *hangs, *flags))
        self.assertFalse(os.path.exists(self.path("seen")))  # nothing was loaded

    def test_a_dry_run_takes_nothing(self):
        server = Scripted()
        done = subprocess.run([Server.path, "serve", "--dry-run", "--port", str(server.port)],
                              capture_output=True, text=True, timeout=HANG_S, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(stop(server), 0)


class Signals(InFolder):

    def write(self, name, text):
        with open(self.path(name), "w", encoding="utf-8") as f:
            f.write(text)
        return self.path(name)

    def test_hangup_takes_new_keys_and_a_new_file(self):
        keys, log = self.write("keys", "one\n"), self.path("log")
        server = Scripted("--api-key-file", keys, "--api-key", "always", "--access-log", log)
        told = Told(server)
        self.assertEqual((get(server, MODELS, "one"), get(server, MODELS, "two")), (200, 401))
        wait_until(lambda: n_line(log) == 2)  # they are written once the answers are out
        os.rename(log, log + ".1")
        self.write("keys", "two\n")
        server.process.send_signal(signal.SIGHUP)
        told.wait("reloaded: the list of API keys, the access log")
        for key, status in (("one", 401), ("two", 200), ("always", 200)):
            self.assertEqual(get(server, MODELS, key), status)
        wait_until(lambda: os.path.getsize(log) > 0)
        with open(log + ".1", encoding="utf-8") as f:
            self.assertEqual(sorted(json.loads(line)["status"] for line in f), [200, 401])
        self.assertEqual(stop(server, told), 0)

    def test_bad_files_leave_what_was(self):
        keys, log = self.write("keys", "one\n"), os.path.join(self.path("logs"), "log")
        os.mkdir(self.path("logs"))
        server = Scripted("--api-key-file", keys, "--access-log", log)
        told = Told(server)
        for text, part in (("# none\n", "holds no key"), ("a b c\n", "more than two words")):
            self.write("keys", text)
            server.process.send_signal(signal.SIGHUP)
            told.wait(part)
            self.assertEqual((get(server, MODELS, "one"), get(server, MODELS)), (200, 401))
        told.wait("the API keys stay as they were")
        os.rename(self.path("logs"), self.path("moved"))
        server.process.send_signal(signal.SIGHUP)
        told.wait("the access log stays as it was")
        os.unlink(keys)
        server.process.send_signal(signal.SIGHUP)
        told.wait("reloaded: nothing")
        moved = os.path.join(self.path("moved"), "log")
        size = os.path.getsize(moved)
        self.assertEqual(get(server, MODELS, "one"), 200)
        wait_until(lambda: os.path.getsize(moved) > size)
        self.assertEqual(stop(server, told), 0)

    @unittest.skipUnless(shutil.which("openssl"), "openssl is not installed")
    def test_a_bad_certificate_leaves_what_was(self):
        key, certificate = make_certificate(self.folder, "server")
        server = Scripted("--ssl-keyfile", key, "--ssl-certfile", certificate)
        told = Told(server)
        self.write(os.path.basename(certificate), "junk")
        server.process.send_signal(signal.SIGHUP)
        told.wait("--ssl-certfile holds no certificate in PEM")
        told.wait("the TLS certificate stays as it was")
        os.unlink(certificate)
        server.process.send_signal(signal.SIGHUP)
        told.wait(certificate)
        self.assertEqual(stop(server, told), 0)

    @unittest.skipUnless(shutil.which("openssl"), "openssl is not installed")
    def test_new_certificates_are_taken_without_a_signal(self):
        """As a secret of Kubernetes comes: links through a folder's link that is replaced; a key without its
        certificate yet, and files that are gone, change nothing and are not told."""
        for name in ("old", "new"):
            os.mkdir(self.path(name))
            for made, end in zip(make_certificate(self.path(name), name), (".key", ".crt")):
                os.rename(made, os.path.join(self.path(name), "tls" + end))
        os.symlink("old", self.path("data"))
        for end in (".key", ".crt"):
            os.symlink(os.path.join("data", "tls" + end), self.path("tls" + end))
        server = Scripted("--ssl-keyfile", self.path("tls.key"), "--ssl-certfile",
                          self.path("tls.crt"), "--enable-ssl-refresh")
        told, at = Told(server), (server.host, server.port)
        before = ssl.get_server_certificate(at)
        for name in ("none", "new"):
            os.symlink(name, self.path("next"))
            os.replace(self.path("next"), self.path("data"))
            time.sleep(0 if name == "new" else 1.5)
        told.wait("reloaded: the TLS certificate")
        self.assertNotEqual(ssl.get_server_certificate(at), before)
        self.assertNotIn("stays as it was", told.text())
        self.assertEqual(stop(server, told), 0)

    @unittest.skipUnless(shutil.which("openssl"), "openssl is not installed")
    def test_hangup_takes_a_new_certificate(self):
        def status(trusted):
            context = ssl.create_default_context(cafile=trusted)
            connection = http.client.HTTPSConnection(server.host, server.port, timeout=HANG_S,
                                                     context=context)
            connection.request("GET", "/health")
            answer = connection.getresponse().status
            return answer, connection

        key, certificate = make_certificate(self.folder, "server")
        new_key, new_certificate = make_certificate(self.folder, "renewed")
        server = Scripted("--ssl-keyfile", key, "--ssl-certfile", certificate)
        told = Told(server)
        old = shutil.copy(certificate, self.path("old"))
        answer, open_before = status(old)
        self.assertEqual(answer, 200)
        os.replace(new_key, key)
        shutil.copy(new_certificate, certificate)
        server.process.send_signal(signal.SIGHUP)
        told.wait("reloaded: the TLS certificate")
        answer, connection = status(new_certificate)
        self.assertEqual(answer, 200)
        connection.close()
        with self.assertRaises(ssl.SSLCertVerificationError):
            status(old)
        open_before.close()
        self.assertEqual(stop(server, told), 0)

    def test_hangup_while_the_model_loads_is_kept(self):
        log, port = self.path("log"), free_port()
        loading = Loading(self.folder, "--port", str(port), "--access-log", log)
        os.rename(log, log + ".1")
        for number in (signal.SIGHUP, signal.SIGUSR2, signal.SIGALRM):
            loading.process.send_signal(number)
        time.sleep(0.2)
        self.assertFalse(os.path.exists(log))
        loading.let_go()
        told = Told(loading)
        told.wait("reloaded: the access log")
        self.assertTrue(os.path.exists(log))
        self.assertEqual(stop(loading, told), 0)

    def test_the_state_is_told_and_the_server_goes_on(self):
        server = Scripted()
        told = Told(server)
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            hold = self.write("hold", "")
            os.unlink(hold)
            running = pool.submit(server.ask, f"hold={hold};say=secret", stream=True)
            wait_until(lambda: server.running() == 1)
            for number in (signal.SIGUSR2, signal.SIGALRM, signal.SIGUSR1):
                server.process.send_signal(number)
            told.wait("server: engine running=1 waiting=0")
            told.wait("server: server connections=")
            told.wait("server: job state=RUNNING")
            self.write("hold", "")
            self.assertEqual(running.result()[0], 200)
        self.assertEqual(stop(server, told), 0)
        self.assertNotIn("secret", told.text())

    def test_quit_tells_the_state_and_ends_by_the_signal(self):
        allowed = resource.getrlimit(resource.RLIMIT_CORE)
        resource.setrlimit(resource.RLIMIT_CORE, (min(allowed[1], 4096) if allowed[1] >= 0 else 4096,
                                                  allowed[1]))
        own = resource.getrlimit(resource.RLIMIT_CORE)
        with open(Server.path, "rb") as f:
            forbidden = b"__asan_init" in f.read()  # by the sanitizer itself
        for flags, limit in (((), (0, own[1])),
                             (("--allow-core-dumps",), (0 if forbidden else own[0], own[1]))):
            server = Scripted(*flags)
            self.assertEqual(resource.prlimit(server.process.pid, resource.RLIMIT_CORE), limit)
            resource.prlimit(server.process.pid, resource.RLIMIT_CORE, (0, own[1]))  # no file here
            server.process.send_signal(signal.SIGQUIT)
            status, errors = server.end()
            self.assertEqual(status, -signal.SIGQUIT)
            self.assertIn("server: engine running=0", errors)
        resource.setrlimit(resource.RLIMIT_CORE, allowed)

    def test_quit_ends_a_load(self):
        loading = Loading(self.folder, "--port", "0")
        loading.process.send_signal(signal.SIGQUIT)
        self.assertEqual(loading.process.wait(timeout=HANG_S), -signal.SIGQUIT)
        loading.process.stdout.close()
        loading.process.stderr.close()

    def test_what_ends_a_load_is_told(self):
        for number, name in ((signal.SIGTERM, "SIGTERM"), (signal.SIGINT, "SIGINT")):
            with tempfile.TemporaryDirectory() as folder:
                loading = Loading(folder, "--port", "0")
                loading.process.send_signal(number)
                _, errors = loading.process.communicate(timeout=HANG_S)
                self.assertEqual(loading.process.returncode, 128 + number)
                self.assertIn(f"fathom: {name} came before it was ready: it ends", errors)


class FullDisk(unittest.TestCase):

    def test_lines_that_cannot_be_written_are_counted_and_told_once(self):
        server = Scripted("--access-log", "/dev/full")
        told = Told(server)
        for _ in range(20):
            self.assertEqual(get(server, "/health"), 200)
        wait_until(lambda: sum(value for name, value in server.metrics().items()
                               if name.startswith("fathom_access_log_lost_lines_total")) >= 20)
        self.assertEqual(stop(server, told), 0)
        lines = [line for line in told.lines if "access log" in line]
        self.assertEqual(len(lines), 1, lines)
        self.assertIn("the access log /dev/full cannot be written: No space left on device", lines[0])


if __name__ == "__main__":
    Server.path = os.path.abspath(sys.argv.pop(1))
    unittest.main(verbosity=2)
