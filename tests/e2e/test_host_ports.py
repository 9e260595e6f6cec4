#!/usr/bin/env python3
"""test_host_ports - two processes as hosts on loopback that have a port each, with the pilot

    test_host_ports.py ports|alike PROGRAM

ports: requests of a port are computed by its host's lanes; clients that leave, a host 0 that is lost.
alike: both ports answer alike, bytes and header lines, whether host 0 or the other host refuses.
"""

import atexit
import base64
import http.client
import json
import re
import signal
import socket
import ssl
import subprocess
import sys
import tempfile

from certificates import make_certificate
from served import HANG_S, Log, Server, take_program, wait_until
from test_hosts import FLAGS, N_LAST, N_LONG, answers, body_of, free_port, last_line, ready

LIMIT = 64 << 20  # bytes of a body
CHAT = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 20, "seed": 5}


class Port(Server):
    """Another host than host 0, with a port. It is there before host 0 is."""

    def __init__(self, *flags):  # pylint: disable=super-init-not-called
        self.log = Log()
        self.process = subprocess.Popen([Server.path, "serve", "--port", "0", *self.always, *flags],
                                        stdout=self.log, stderr=self.log)
        atexit.register(self.kill)
        found = re.compile(r"^address +https?://([^:]+):(\d+)/v1", re.M).search
        wait_until(lambda: found(self.log.text()))
        self.host, self.port = found(self.log.text()).group(1), int(found(self.log.text()).group(2))

    def text(self):
        return self.log.text()


def two_ports():
    """The second is host 0's inner port."""
    while True:
        port = free_port()
        with socket.socket() as s:
            try:
                s.bind(("127.0.0.1", port + 1))
                return port
            except OSError:
                pass


def get(server, path, headers=None, port=None):
    connection = http.client.HTTPConnection(server.host, port or server.port, timeout=HANG_S)
    connection.request("GET", path, headers=headers or {})
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, text


def lanes_of(server):
    """{rank: requests that run there}, as its port tells."""
    name = re.compile(r'fathom_lane_running\{.*dp_rank="(\d+)"\}')
    return {int(m[1]): int(v) for k, v in server.metrics().items() if (m := name.match(k))}


def begin(server, n, headers=None):
    """A stream of n tokens whose first event has come."""
    connection = server.connect()
    connection.request("POST", "/v1/completions", json.dumps({**body_of(1, n), "stream": True}), headers or {})
    answer = connection.getresponse()
    assert answer.status == 200, answer.read()
    answer.readline()
    return connection, answer


def ports():
    port, four = two_ports(), ("-dp", "4", "-dpl", "2", "-ep")
    flags = (*FLAGS, *four, "--data-parallel-rpc-port", str(port))
    other = Port(*flags, "-dph", "-dpr", "2")
    status, text = get(other, "/ready")
    assert status == 503 and "this host has not joined host 0 yet" in text, text
    first = Server(*flags, "-dph")
    wait_until(lambda: ready(other)[0] == 200)
    line = last_line(*flags, "--headless", "-dpr", "2")
    assert "layout: host 1 and host 0" in line, line
    taken = last_line(*FLAGS, *four, "-dph", "--master-port", str(port - 1), "--port", "0")
    assert f"{port} for the other hosts' requests: --master-addr is" in taken, taken
    # the same answers, whole and as they come
    assert answers(first) == answers(other)
    texts = [[c["choices"] for c in s.stream("/v1/chat/completions", CHAT)] for s in (first, other)]
    assert texts[0] == texts[1] and len(texts[0]) > 5
    # each at the lanes of its host, of the header those that it counts from 0
    under_way = [begin(other, N_LONG), begin(other, N_LONG)]
    assert (lanes_of(first), lanes_of(other)) == ({0: 0, 1: 0}, {2: 1, 3: 1})
    under_way += [begin(first, N_LONG), begin(other, N_LONG, {"X-data-parallel-rank": "1"})]
    assert sum(lanes_of(first).values()) == 1 and lanes_of(other) == {2: 1, 3: 2}
    running = [sum(v for k, v in s.metrics().items() if k.startswith("vllm:num_requests_running"))
               for s in (first, other)]
    assert running == [1, 3]
    loads = [json.loads(get(s, "/load")[1]) for s in (first, other)]
    assert [(d["running"], d["server_load"]) for d in loads] == [(1, 1), (3, 3)], loads
    status, text = get(other, "/metrics")
    assert status == 200 and "fathom_ready" in text and "_total" not in text, text
    connection = other.connect()
    connection.request("POST", "/v1/completions", json.dumps(body_of(1)), {"X-data-parallel-rank": "2"})
    answer = connection.getresponse()
    assert answer.status == 400 and b"needed is 0 to 1" in answer.read()
    # clients that leave leave host 0 too
    for c, answer in under_way:
        answer.close()
        c.close()
    first.wait_idle()
    wait_until(lambda: sum(v for k, v in first.metrics().items() if k.startswith("fathom_disconnects_total")) == 4)
    # who is no host is not let in beside the port for clients
    forged = {"X-Fathom-Host": "1-" + 32 * "0"}
    assert [get(first, "/health", h, port + 1)[0] for h in ({}, forged)] == [401, 401]
    assert get(other, "/health", forged)[0] == 200
    # host 0 goes in the middle of a stream and of a whole answer, and comes back
    connection, answer = begin(other, N_LONG)
    whole = other.connect()
    whole.request("POST", "/v1/completions", json.dumps(body_of(0, N_LONG)))
    wait_until(lambda: sum(lanes_of(other).values()) == 2)
    first.kill()
    lost = whole.getresponse()
    text = lost.read().decode()
    assert (lost.status, lost.getheader("Retry-After")) == (503, "1") and "host_away" in text, text
    try:
        answer.read()
        assert False, "a stream that was cut off ends as if it were whole"
    except http.client.IncompleteRead:
        pass
    wait_until(lambda: get(other, "/health")[0] == 503)
    wait_until(lambda: "host 0 is lost: " in get(other, "/health")[1])
    assert "host 0 is lost: " in get(other, "/ready")[1]
    first = Server(*flags, "-dph")
    wait_until(lambda: ready(other)[0] == 200)
    assert answers(first) == answers(other)
    assert other.text().count("weights_digest begins") == 1, other.text()
    # both are told to end: what runs is answered
    connection, answer = begin(other, N_LAST)
    other.process.send_signal(signal.SIGTERM)
    wait_until(lambda: "shutting_down" in get(other, "/ready")[1])
    assert first.stop() == 0
    assert answer.read().decode().endswith("data: [DONE]\n\n")
    assert other.process.wait(timeout=HANG_S) == 0, other.text()
    ports_of_ranks()


def ports_of_ranks():
    """A rank in each process, as vLLM's lines of them start it; a key, and TLS where clients come."""
    port = two_ports()
    flags = (*FLAGS, "-dp", "2", "-ep", "-dpa", "127.0.0.1", "-dpp", str(port))
    with tempfile.TemporaryDirectory() as folder:
        key, certificate = make_certificate(folder, "host")
        tls = ("--ssl-certfile", certificate, "--ssl-keyfile", key)
        other = Port(*flags, *tls, "--ssl-ca-certs", certificate, "-dpn", "1")
        first = Server(*flags, "-dpn", "0", "--api-key", "secret", "--open-metrics")
        context = ssl.create_default_context(cafile=certificate)
        context.check_hostname = False

        def status(key, *shown, page=None):
            if shown:
                context.load_cert_chain(*shown)
            c = http.client.HTTPSConnection(other.host, other.port, timeout=HANG_S, context=context)
            login = "Basic " + base64.b64encode((":" + key).encode()).decode()
            headers = {"Authorization": login, "Origin": page} if page else {"Authorization": "Bearer " + key}
            c.request("POST", "/v1/completions", json.dumps(body_of(0)), headers)
            return c.getresponse().status

        wait_until(lambda: ready(first)[0] == 200)
        wait_until(lambda: "ready " in other.text())
        assert status("secret") == 403  # it has no certificate
        assert status("another", certificate, key) == 401
        assert status("secret") == 200
        # the login of a browser is for the page of the port that it came to
        assert status("secret", page=f"https://{other.host}:{other.port}") == 200
        assert status("secret", page=f"https://{first.host}:{first.port}") == 401
        assert lanes_of(first) == {0: 0}
        other.process.send_signal(signal.SIGHUP)
        wait_until(lambda: "reloaded: the TLS certificate" in other.text())
        assert status("secret") == 200
        assert first.stop() == 0
        other.kill()


def say(method, path, body=None, host="127.0.0.1", **fields):
    """The bytes of a request from a page."""
    content = json.dumps(body).encode() if body is not None else b""
    fields = {"Host": host, "Origin": "https://a.example", "X-Request-Id": "trace-1", **fields}
    if content and "Transfer-Encoding" not in fields:
        fields.setdefault("Content-Length", len(content))
    lines = [f"{method} {path} HTTP/1.1", *(f"{k.replace('_', '-')}: {v}" for k, v in fields.items())]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + content


def chunks(n):
    """The bytes of a request whose body has n MiB of blanks."""
    return (say("POST", "/v1/chat/completions", Transfer_Encoding="chunked") +
            (b"100000\r\n" + b" " * (1 << 20) + b"\r\n") * n + b"0\r\n\r\n")


def heard(server, request, ends=False):
    """Status line, header lines and body of the answer; None: the connection ends without one."""
    with socket.create_connection((server.host, server.port), timeout=HANG_S) as s:
        try:
            s.sendall(request)
            if ends:
                s.shutdown(socket.SHUT_WR)
            answer = http.client.HTTPResponse(s, method=request.split()[0].decode())
            answer.begin()
            body = answer.read().decode()
        except (http.client.HTTPException, OSError):
            return None
        lines = sorted((k, v) for k, v in answer.getheaders() if k != "Date")
        return answer.status, answer.reason, lines, re.sub(r'"(id|created)":("[^"]*"|[0-9]+)', "", body)


def cases():
    """(what it is, a request, its status)"""
    post, messages = "/v1/chat/completions", "/v1/messages"
    yield from ((path, say("GET", path), 200) for path in (
        "/health", "/health/live", "/health_generate", "/ready", "/ping", "/v1/models", "/v1/models/pilot", "/version",
        "/", "/ui/web.js", "/docs", "/openapi.json", "/llm/v1/models", "/server_info"))
    yield from ((f"HEAD {path}", say("HEAD", path), status) for path, status in (
        ("/health", 200), ("/v1/models", 200), ("/", 200), ("/nothing", 404),
        (post, 405)))
    yield "HEAD, name", say("HEAD", "/v1/models", host="evil.example"), 403
    yield from ((f"{method} {path}", say(method, path), 404) for method, path in (
        ("POST", "/v1/files"), ("GET", "/v1/batches"), ("POST", "/sleep"), ("POST", "/wake_up"),
        ("POST", "/reset_prefix_cache"), ("GET", "/v1/models/a%20b%3Fc%25%C3%A9?x=1"),
        ("GET", "/v1/responses/resp_1"), ("DELETE", "/v1/responses/resp_1"), ("OPTIONS", "/nothing"), ("OPTIONS", "*")))
    yield "ping", say("POST", "/ping"), 200
    yield "preflight", say("OPTIONS", post, Access_Control_Request_Headers="x-a"), 204
    yield "upgrade", say("GET", "/v1/models", Upgrade="websocket", Connection="Upgrade"), 200
    yield "method", say("PUT", post, {}), 405
    yield "tokenize", say("POST", "/tokenize", {"prompt": "Hello"}), 200
    yield "detokenize", say("POST", "/detokenize", {"tokens": [5]}), 200
    yield "chat", say("POST", post, CHAT, endpoint_load_metrics_format="TEXT"), 200
    yield "stream", say("POST", post, {**CHAT, "stream": True}), 200
    yield "pass", say("POST", post, {**CHAT, "stream": True}, X_Fathom_Stream="0123456789abcdef-1763800000"), 200
    yield "field", say("POST", post, {"messages": 5}), 400
    yield "coding", say("POST", post, {}, Content_Encoding="br"), 415
    # what the other host refuses itself
    for path in (post, messages, "/llm" + messages + "/count_tokens"):
        yield f"name {path}", say("POST", path, {}, host="evil.example"), 403
        yield f"unasked {path}", say("POST", path, host="evil.example", Content_Length=5, Expect="100-continue"), 403
        yield f"size {path}", say("POST", path, Content_Length=LIMIT + 1), 413
        yield f"chunk {path}", say("POST", path, Transfer_Encoding="chunked") + b"zz\r\n", 400
    yield "another page", say("GET", "/version", host="evil.example", Origin="https://b.example"), 403
    yield "line", b"GET\r\n\r\n", 400
    yield "version", b"GET / HTTP/2.0\r\nHost: 127.0.0.1\r\n\r\n", 505
    yield "head", b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX: " + b"a" * 70000 + b"\r\n\r\n", 431
    yield "as long as may be", say("POST", post, Content_Length=LIMIT) + b"{" + b" " * (LIMIT - 1), 400
    yield "longer", chunks(65), 413
    yield "twice as long", chunks(130), None


def check_alike(first, other):
    for name, request, status in cases():
        answers_of = [heard(s, request) for s in (first, other)]
        assert answers_of[0] == answers_of[1], (name, answers_of)
        assert (answers_of[1] and answers_of[1][0]) == status, (name, answers_of)
        assert name != "pass" or ": token" in answers_of[1][3], answers_of


def check_own(other, status, code, after):
    """What host 0 cannot have said has its form too."""
    got, _, fields, body = heard(other, say("POST", "/v1/chat/completions", CHAT))
    fields = dict(fields)
    told = [fields[k] for k in ("Access-Control-Allow-Origin", "Vary", "X-Request-Id", "Retry-After", "Content-Type")]
    assert told == ["https://a.example", "Origin", "trace-1", after, "application/json"], fields
    error = json.loads(body)["error"]
    assert (got, error["type"], error["param"], error["code"]) == (status, "server_error", None, code), body
    got, _, _, body = heard(other, say("POST", "/v1/messages", {}))
    told = json.loads(body)
    assert (got, told["type"], told["error"]["type"]) == (status, "error", "overloaded_error"), body


def check_crowd(first, other):
    """More connections than may be open: probes are answered."""
    streams = [begin(other, N_LONG) for _ in range(4)]
    assert heard(other, say("GET", "/health"))[0] == 200
    check_own(other, 503, "too_many_connections", "1")
    for connection, answer in streams:
        answer.close()
        connection.close()
    first.wait_idle()


def check_leaving(first, other):
    """Of whole answers and of streams: who leaves is computed for no more. Who has said all has not left."""
    for body in (body_of(1, N_LONG), {**body_of(1, N_LONG), "n": 2, "stream": True}):
        with socket.create_connection((other.host, other.port)) as s:
            s.sendall(say("POST", "/v1/completions", body))
            wait_until(lambda: sum(lanes_of(other).values()) > 0)
        first.wait_idle()
    for path in ("/health", "/v1/models"):
        answers_of = [heard(s, say("GET", path), ends=True) for s in (first, other)]
        assert answers_of[0] == answers_of[1] and answers_of[0][0] == 200, answers_of


def check_remote(other, log):
    """The access log tells the client's address, not that of the host nor what the client says of itself."""
    connection = http.client.HTTPConnection(other.host, other.port, timeout=HANG_S, source_address=("127.0.0.5", 0))
    connection.request("GET", "/v1/models/far", headers={"X-Forwarded-For": "10.9.9.9"})
    assert connection.getresponse().status == 404
    line, = (json.loads(l) for l in log.text().splitlines() if "/v1/models/far" in l)
    assert line["remote"] == "127.0.0.5", line


def alike():
    port, log = two_ports(), Log()
    flags = (*FLAGS, "-dp", "2", "-ep", "-dpa", "127.0.0.1", "-dpp", str(port), "--root-path", "/llm",
             "--allowed-origins", "https://a.example")
    other = Port(*flags, "-dpn", "1", "--max-connections", "4")
    check_own(other, 503, "host_away", "1")
    first = Server(*flags, "-dpn", "0", "--access-log", log.file.name)
    wait_until(lambda: ready(other)[0] == 200)
    check_alike(first, other)
    n = other.n_descriptor()
    check_alike(first, other)
    other.wait_descriptors(n + 2)  # a thread that had none may have a connection to host 0
    check_crowd(first, other)
    check_leaving(first, other)
    check_remote(other, log)
    connection, answer = begin(other, N_LAST)
    other.process.send_signal(signal.SIGTERM)
    wait_until(lambda: "shutting_down" in get(other, "/ready")[1])
    check_own(other, 503, "shutting_down", "5")
    assert first.stop() == 0
    assert answer.read().decode().endswith("data: [DONE]\n\n")
    connection.close()
    assert other.process.wait(timeout=HANG_S) == 0, other.text()


def main():
    part = sys.argv.pop(1)
    take_program(sys.argv)
    {"ports": ports, "alike": alike}[part]()


if __name__ == "__main__":
    main()
