#!/usr/bin/env python3
"""TLS, keys from files and the operator's socket, with the scripted engine of the tests.

    tests/e2e/test_security.py path/to/fathom_scripted

Certificates are made by openssl; without it the tests of TLS are skipped.
"""

import http.client
import json
import os
import shutil
import socket
import ssl
import subprocess
import sys
import tempfile
import unittest
import urllib.error
import urllib.request
import warnings

from certificates import make_certificate
from served import HANG_S, Scripted, Server

MODELS = "/v1/models"


def get(server, path, context=None, key=None):
    """Status and text; the server's own errors too."""
    headers = {"Authorization": "Bearer " + key} if key else {}
    try:
        request = urllib.request.Request(server.url + path, headers=headers)
        with urllib.request.urlopen(request, timeout=HANG_S, context=context) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as e:
        return e.code, e.read().decode()


def stop(server):
    server.process.terminate()
    return server.end()


@unittest.skipUnless(shutil.which("openssl"), "openssl is not installed")
class Tls(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp()
        cls.server = make_certificate(cls.folder, "server")
        cls.authority = make_certificate(cls.folder, "authority")
        cls.client = make_certificate(cls.folder, "client", ca=cls.authority)
        cls.stranger = make_certificate(cls.folder, "stranger")

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.folder)

    def flags(self, *more):
        return ("--ssl-keyfile", self.server[0], "--ssl-certfile", self.server[1], *more)

    def context(self, client=None):
        context = ssl.create_default_context(cafile=self.server[1])
        if client:
            context.load_cert_chain(client[1], client[0])
        return context

    def refused(self, *flags):
        done = subprocess.run([Server.path, "serve", "--port", "0", *flags],
                              capture_output=True, text=True, timeout=HANG_S, check=False)
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
        return done.stderr

    def test_a_certificate_makes_it_https(self):
        server = Scripted(*self.flags("--api-key", "secret"))
        self.assertEqual(get(server, "/health", self.context())[0], 200)
        self.assertEqual(get(server, MODELS, self.context())[0], 401)
        self.assertEqual(get(server, MODELS, self.context(), key="secret")[0], 200)
        with self.assertRaises(urllib.error.URLError):  # it knows nobody who signed it
            get(server, "/health", ssl.create_default_context())
        with socket.create_connection((server.host, server.port), timeout=HANG_S) as plain:
            plain.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            self.assertNotIn(b"200", plain.recv(4096))
        self.assertEqual(get(server, "/health", self.context())[0], 200)
        self.assertEqual(stop(server)[0], 0)

    def test_clients_may_be_asked_for_a_certificate(self):
        server = Scripted(*self.flags("--ssl-ca-certs", self.authority[1]))
        for client, status in ((None, 403), (self.stranger, 403), (self.client, 200)):
            for path in ("/health", MODELS, "/metrics"):
                answer, text = get(server, path, self.context(client))
                self.assertEqual(answer, status, text)
        self.assertEqual(stop(server)[0], 0)
        server = Scripted(*self.flags("--ssl-ca-certs", self.authority[1], "--ssl-cert-reqs", "1"))
        for client, status in ((None, 200), (self.stranger, 403), (self.client, 200)):
            self.assertEqual(get(server, MODELS, self.context(client))[0], status)
        self.assertEqual(stop(server)[0], 0)
        server = Scripted(*self.flags("--ssl-ca-certs", self.authority[1], "--ssl-cert-reqs", "0"))
        self.assertEqual(get(server, MODELS, self.context())[0], 200)
        self.assertEqual(stop(server)[0], 0)

    def test_files_that_do_not_fit_are_named(self):
        junk = os.path.join(self.folder, "junk")
        with open(junk, "w", encoding="utf-8") as f:
            f.write("junk")
        key, certificate = self.server
        for flags, part in (
                (("--ssl-keyfile", key), "needed are both"),
                (("--ssl-certfile", certificate), "needed are both"),
                (("--ssl-ca-certs", certificate), "need --ssl-certfile"),
                (self.flags("--ssl-cert-reqs", "2"), "needs --ssl-ca-certs"),
                (("--ssl-keyfile", key, "--ssl-certfile", "/nowhere.crt"), "/nowhere.crt"),
                (("--ssl-keyfile", self.client[0], "--ssl-certfile", certificate),
                 "the key of --ssl-keyfile does not belong to the certificate"),
                (("--ssl-keyfile", key, "--ssl-certfile", junk), "--ssl-certfile holds no"),
                (("--ssl-keyfile", junk, "--ssl-certfile", certificate), "--ssl-keyfile holds no"),
                (self.flags("--ssl-ca-certs", junk), "--ssl-ca-certs holds no certificate")):
            self.assertIn(part, self.refused(*flags))

    def speaks(self, server, version, ciphers=None):
        """Does the server speak this version, with these ciphers of OpenSSL?"""
        context = self.context()
        context.minimum_version = context.maximum_version = version
        if ciphers:
            context.set_ciphers(ciphers)
        try:
            with socket.create_connection((server.host, server.port), timeout=HANG_S) as plain:
                with context.wrap_socket(plain, server_hostname="127.0.0.1") as s:
                    return bool(s.version())
        except (ssl.SSLError, ConnectionError):
            return False

    def test_versions_and_ciphers_can_be_chosen(self):
        old = "ALL:@SECLEVEL=0"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            server = Scripted(*self.flags())
            self.assertFalse(self.speaks(server, ssl.TLSVersion.TLSv1, old))
            self.assertFalse(self.speaks(server, ssl.TLSVersion.TLSv1_1, old))
            self.assertTrue(self.speaks(server, ssl.TLSVersion.TLSv1_2))
            self.assertTrue(self.speaks(server, ssl.TLSVersion.TLSv1_3))
            self.assertEqual(stop(server)[0], 0)
        server = Scripted(*self.flags("--ssl-min-version", "1.3"))
        self.assertFalse(self.speaks(server, ssl.TLSVersion.TLSv1_2))
        self.assertTrue(self.speaks(server, ssl.TLSVersion.TLSv1_3))
        self.assertEqual(stop(server)[0], 0)
        server = Scripted(*self.flags("--ssl-ciphers", "NORMAL:-AES-128-GCM"))
        self.assertFalse(self.speaks(server, ssl.TLSVersion.TLSv1_2,
                                     "ECDHE-ECDSA-AES128-GCM-SHA256"))
        self.assertTrue(self.speaks(server, ssl.TLSVersion.TLSv1_2,
                                    "ECDHE-ECDSA-AES256-GCM-SHA384"))
        self.assertEqual(stop(server)[0], 0)
        self.assertIn("--ssl-ciphers ECDHE+AESGCM is no priority string of GnuTLS",
                      self.refused(*self.flags("--ssl-ciphers", "ECDHE+AESGCM")))
        self.assertIn("need --ssl-certfile", self.refused("--ssl-ciphers", "NORMAL"))

    def test_large_answers_and_streams_pass_through_tls(self):
        server = Scripted(*self.flags())
        connection = http.client.HTTPSConnection(server.host, server.port, timeout=HANG_S,
                                                 context=self.context())
        text = "x " * 20000
        for _ in range(3):
            connection.request("POST", "/tokenize", json.dumps({"prompt": text}))
            answer = json.loads(connection.getresponse().read())
            self.assertGreater(answer["count"], 10000)
            connection.request("POST", "/v1/completions",
                               json.dumps({"prompt": "[[say=Hi]]", "stream": True}))
            self.assertTrue(connection.getresponse().read().endswith(b"data: [DONE]\n\n"))
        connection.close()
        silent = socket.create_connection((server.host, server.port), timeout=HANG_S)
        silent.sendall(b"\x16\x03\x01\x02\x00")  # half of a handshake, then the end
        silent.shutdown(socket.SHUT_WR)
        while silent.recv(100):
            pass  # an alert, then the end
        silent.close()
        self.assertEqual(stop(server)[0], 0)

    def test_a_certificate_that_ends_soon_is_told(self):
        key, certificate = make_certificate(self.folder, "soon", days="3")
        server = Scripted("--ssl-keyfile", key, "--ssl-certfile", certificate)
        self.assertIn("the TLS certificate ends in", stop(server)[1])


class Keys(unittest.TestCase):
    def refused(self, *flags, **variables):
        done = subprocess.run([Server.path, "serve", "--port", "0", *flags], capture_output=True,
                              text=True, timeout=HANG_S, check=False,
                              env={**os.environ, **variables})
        self.assertIn(done.returncode, (1, 2), done.stdout + done.stderr)
        self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
        return done.stderr

    def test_keys_that_are_nothing_never_open_the_server(self):
        self.assertIn("API key 1 is empty", self.refused(FATHOM_API_KEY=""))
        self.assertIn("API key 1 is empty", self.refused(VLLM_API_KEY=""))
        self.assertIn("API key 2 is empty", self.refused("--api-key", "a", "--api-key", ""))
        self.assertIn("holds the byte 0x0a", self.refused(FATHOM_API_KEY="key\n"))
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "options.yaml")
            for text in ("api-key: []\n", "api-key:\n", "api-key: ''\n", "api-key: ['']\n"):
                with open(path, "w", encoding="utf-8") as f:
                    f.write(text)
                self.assertRegex(self.refused("--config", path), "holds nothing|is empty")
            keys = os.path.join(folder, "keys")
            with open(keys, "w", encoding="utf-8") as f:
                f.write("one\ntwo acme corp\n")
            self.assertIn("line 2: more than two words", self.refused("--api-key-file", keys))

    def test_a_key_that_is_given_again_adds(self):
        server = Scripted("--api-key", "one", "--api-key", "two", "three")
        for key, status in (("one", 200), ("two", 200), ("three", 200), ("four", 401)):
            self.assertEqual(get(server, MODELS, key=key)[0], status)
        self.assertEqual(stop(server)[0], 0)

    def test_probes_tell_no_more_than_that_it_lives(self):
        server = Scripted("--api-key", "one")
        for path in ("/health", "/ready"):
            self.assertEqual(sorted(json.loads(get(server, path)[1])),
                             ["running", "status", "waiting"])
        self.assertEqual(stop(server)[0], 0)

    def test_keys_come_from_a_file_too(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "keys")
            with open(path, "w", encoding="utf-8") as f:
                f.write("# the team's\n\n  one \r\ntwo")
            server = Scripted("--api-key-file", path, "--api-key", "three")
            for key, status in (("one", 200), ("two", 200), ("three", 200), ("four", 401),
                                ("# the team's", 401), (None, 401)):
                self.assertEqual(get(server, MODELS, key=key)[0], status)
            self.assertEqual(stop(server)[0], 0)
            with open(path, "w", encoding="utf-8") as f:
                f.write("# none\n")
            done = subprocess.run([Server.path, "serve", "--api-key-file", path],
                                  capture_output=True, text=True, timeout=HANG_S, check=False)
            self.assertEqual(done.returncode, 1)
            self.assertIn("holds no key", done.stderr)

    def test_the_operators_socket_ends_the_server(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "admin.sock")
            server = Scripted("--admin-socket", path, "--api-key", "k", "--access-log",
                            os.path.join(folder, "log"))
            with socket.socket(socket.AF_UNIX) as s:
                s.connect(path)
                s.sendall(b"POST /drain HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n")
                self.assertIn(b"200 OK", s.recv(4096))
            self.assertEqual(server.end()[0], 0)
            self.assertFalse(os.path.exists(path))

    def test_the_access_log_may_go_to_standard_output(self):
        server = Scripted("--access-log", "-", "--disable-uvicorn-access-log")
        get(server, MODELS)
        server.process.terminate()
        line = json.loads(server.process.stdout.readline())
        self.assertEqual((line["path"], line["status"]), (MODELS, 200))
        status, errors = server.end()
        self.assertEqual(status, 0)
        self.assertNotIn(MODELS, errors)


if __name__ == "__main__":
    Server.path = os.path.abspath(sys.argv.pop(1))
    unittest.main()
