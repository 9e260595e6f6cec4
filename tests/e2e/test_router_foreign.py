#!/usr/bin/env python3
"""test_router_foreign - servers that answer in whichever way HTTP/1.1 allows, behind a router

    test_router_foreign.py PROGRAM

With and without TLS, by name and by address: bodies in chunks, of a length and up to the end of the
connection; fields of one connection; connections that are kept, and that are closed although they were to be kept; a client
that reads slowly; answers that are none or too large; a server that stands still.
"""

import atexit
import hashlib
import http.client
import os
import re
import socket
import ssl
import sys
import tempfile
import threading
import time

from certificates import make_certificate
from served import HANG_S, take_program, wait_until
from test_router import Router

HUGE = 8  # so many of the next are more than a router holds of an answer that is no stream
BIG = b"".join(b"data: %07d\n\n" % i for i in range(3000000))  # beyond what sockets and the router hold


class Foreign:
    """One connection after the other has its thread, which answers as the path says."""

    def __init__(self, context=None):
        self.context = context
        self.listener = socket.create_server(("127.0.0.1", 0))
        port = self.listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}" if not context else f"https://localhost:{port}"
        self.n_connection = 0
        self.n_sent = 0  # of the big answer
        self.n_huge = 0  # how often the answer was asked for that no router holds
        self.stands = False  # and reads, and keeps its connections
        self.lacks = False  # the model that is asked for
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            near, _ = self.listener.accept()
            threading.Thread(target=self.serve, args=(near,), daemon=True).start()

    def serve(self, s):
        try:
            if self.context:
                s = self.context.wrap_socket(s, server_side=True)
            self.n_connection += 1
            read = s.makefile("rb")
            while self.answer(s, read):
                pass
            if self.context:
                s.unwrap()  # else its end could be anybody's
        except OSError:
            pass
        s.close()

    def answer(self, s, read):
        """Returns whether the connection stays."""
        line, n, names = read.readline(), 0, []
        if not line:
            return False
        while (field := read.readline()) not in (b"\r\n", b""):
            names.append(field.split(b":")[0].lower())
            if names[-1] == b"content-length":
                n = int(field.split(b":")[1])
        body = read.read(n)
        while self.stands:
            time.sleep(0.05)
        path = line.split()[1].decode()
        digest = hashlib.sha256(body).hexdigest().encode()
        say = s.sendall
        if path == "/load":
            say(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
        elif self.lacks:
            text = b'{"error": {"message": "no such model", "code": "model_not_found"}}'
            say(b"HTTP/1.1 404 Not Found\r\nContent-Length: %d\r\n\r\n" % len(text) + text)
        elif path == "/length":
            say(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nX-A: b\r\nContent-Length: 64\r\n\r\n"
                + digest)
        elif path == "/chunks":
            say(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            for i in range(0, 64, 8):  # each in pieces of its own
                for piece in (b"8;x=", b"y\r", b"\n" + digest[i:i + 3], digest[i + 3:i + 8] + b"\r\n"):
                    say(piece)
            say(b"0\r\nX: y\r\n\r\n")
        elif path == "/end":
            say(b"HTTP/1.1 200 OK\r\n\r\n" + digest)
            return False
        elif path == "/drop":  # it is said to stay
            say(b"HTTP/1.1 200 OK\r\nContent-Length: 64\r\n\r\n" + digest)
            return False
        elif path == "/cut":
            say(b"HTTP/1.1 200 OK\r\nContent-Length: 65\r\n\r\n" + digest)
            return False
        elif path == "/wrong":
            say(b"HTTP/1.1 200 OK\r\nContent-Length: 64\r\nContent-Length: 65\r\n\r\n" + digest)
        elif path == "/names":
            text = b" ".join(names)
            say(b"HTTP/1.1 200 OK\r\nX-Kept: 1\r\nX-Hop: 1\r\nConnection: x-other , x-hop\r\n"
                b"Content-Length: %d\r\n\r\n" % len(text) + text)
        elif path == "/huge":
            self.n_huge += 1
            say(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (HUGE * len(BIG)))
            for _ in range(HUGE):
                say(BIG)
        elif path == "/big":
            say(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
            for i in range(0, len(BIG), 50000):
                piece = BIG[i:i + 50000]
                say(b"%x\r\n" % len(piece) + piece + b"\r\n")
                self.n_sent += len(piece)
            say(b"0\r\n\r\n")
        return True


def ask(router, path, body=b"", method="POST", headers={}):
    connection = http.client.HTTPConnection(router.host, router.port, timeout=HANG_S)
    connection.request(method, path, body, headers)
    answer = connection.getresponse()
    text = answer.read()
    connection.close()
    return answer.status, text, answer.headers


def check_answers(router, foreign):
    for n in (0, 1, 1000, 300000, 5000000):
        body = os.urandom(n)
        want = hashlib.sha256(body).hexdigest().encode()
        for path in ("/length", "/chunks", "/end", "/drop", "/length"):
            status, text, headers = ask(router, path, body)
            assert (status, text) == (200, want), (path, n, status, text)
            assert path != "/length" or headers["X-A"] == "b", headers
    assert ask(router, "/length", method="HEAD")[:2] == (200, b"")
    # connections are kept, once there are enough of them: one may not be back when the next request comes
    def keeps():
        n_before = foreign.n_connection
        for _ in range(20):
            assert ask(router, "/length", b"x")[0] == 200
        return foreign.n_connection <= n_before + 2

    wait_until(keeps)
    # many at once
    threads = [threading.Thread(target=lambda: [ask(router, p, b"x") for p in ("/length", "/chunks")])
               for _ in range(32)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(HANG_S)
    # what is no answer, or not a whole one, is not taken for one
    for path, cause in (("/cut", b"lost before"), ("/wrong", b"Content-Length")):
        status, text, _ = ask(router, path, b"x")
        assert status == 502 and cause in text, (path, status, text)
    assert ask(router, "/length", b"x")[0] == 200


def check_fields(router):
    """Fields that Connection names are for one connection and go no further, either way."""
    status, names, headers = ask(router, "/names", b"x", headers={
        "Connection": "keep-alive, X-Mine,x-two", "X-Mine": "1", "X-Two": "2", "X-All": "3"})
    assert status == 200 and b"x-all" in names.split(), names
    assert not {b"x-mine", b"x-two", b"connection"} & set(names.split()), names
    assert headers["X-Kept"] == "1" and "X-Hop" not in headers, headers


def check_slow_client(router, foreign):
    """The server waits for who reads slowly, and nothing is lost."""
    connection = http.client.HTTPConnection(router.host, router.port, timeout=HANG_S)
    connection.connect()
    connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
    foreign.n_sent = 0
    connection.request("POST", "/big", b"{}")
    answer = connection.getresponse()
    last = -1
    while last != foreign.n_sent:
        last = foreign.n_sent
        time.sleep(0.5)
    assert foreign.n_sent < len(BIG), "the server was not held up: the test shows nothing"
    text = answer.read()
    assert text == BIG, len(text)
    connection.close()
    # one that leaves in the middle
    connection = http.client.HTTPConnection(router.host, router.port, timeout=HANG_S)
    connection.request("POST", "/big", b"{}")
    connection.getresponse().read1(100)
    connection.sock.close()
    connection.close()
    wait_until(lambda: router.get("/load")[1]["server_load"] == 0)


def check_models(router, one, other):
    """While servers change their models, a request finds the one that has its own."""
    one.lacks = True
    assert [ask(router, "/length", b"x")[0] for _ in range(2)] == [200, 200]
    other.lacks = True
    status, text, _ = ask(router, "/length", b"x")
    assert status == 404 and b"model_not_found" in text, (status, text)
    one.lacks = other.lacks = False


def check_huge(router, servers):
    """An answer that is larger than a router holds is asked for once, and is no failure of its server."""
    status, text, _ = ask(router, "/huge", b"x")
    assert sum(s.n_huge for s in servers) == 1, [s.n_huge for s in servers]
    assert status == 502 and b"answer_too_large" in text, (status, text)
    for url, server in router.instances().items():
        assert server["failed"] == 0, (url, server)


def check_standing(router, still):
    """A server that stands still loses its requests to one that does not."""
    def n_retry():
        return int(re.search(r"^fathom_router_retries_total (\d+)", router.get("/metrics")[1], re.M)[1])

    before, still.stands = n_retry(), True
    asked = [threading.Thread(target=ask, args=(router, "/length", b"x")) for _ in range(2)]
    for t in asked:
        t.start()
    for t in asked:
        t.join(HANG_S)
    assert not any(t.is_alive() for t in asked)
    assert n_retry() == before + 1
    still.stands = False


def main():
    take_program(sys.argv)
    still, other = Foreign(), Foreign()
    turns = Router([still, other], "--policy", "round_robin")
    atexit.register(turns.kill)
    turns.wait_up(2)
    check_models(turns, still, other)
    check_huge(turns, (still, other))
    standing = threading.Thread(target=check_standing, args=(turns, still))
    standing.start()
    with tempfile.TemporaryDirectory() as folder:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        key, certificate = make_certificate(folder, "localhost")
        context.load_cert_chain(certificate, key)
        for foreign in (Foreign(), Foreign(context)):
            router = Router([foreign], "--insecure")
            atexit.register(router.kill)
            router.wait_up(1)
            check_answers(router, foreign)
            check_fields(router)
            check_slow_client(router, foreign)
            assert router.stop() == 0
        strict = Router([Foreign(context)])  # its certificate is nobody's
        atexit.register(strict.kill)
        status, text, _ = ask(strict, "/length", b"x")
        assert status in (502, 503), (status, text)
        assert strict.stop() == 0
    standing.join()
    assert not still.stands
    assert turns.stop() == 0
    print("lengths, chunks, ends, kept and lost connections, slow clients, with and without TLS: whole")


if __name__ == "__main__":
    main()
