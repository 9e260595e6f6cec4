#!/usr/bin/env python3
"""Spans of requests at a collector of OpenTelemetry, over HTTP and over gRPC.

The collectors are here, of sockets: what they are sent is taken apart by the protocols' own rules (protobuf's
wire format; HTTP/2 as far as one call needs it)."""

import http.server
import json
import os
import socket
import struct
import subprocess
import sys
import threading
import time
import unittest

from served import HANG_S, Log, Server, wait_until

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
EXPORT = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"


def fields(message):
    """{number: [values]} of a protobuf message: numbers, 8 bytes as they are, texts and messages."""
    out, at = {}, 0

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(message):
        key = varint()
        if key & 7 == 0:
            value = varint()
        else:
            n = 8 if key & 7 == 1 else varint()
            value = message[at:at + n]
            at += n
        out.setdefault(key >> 3, []).append(value)
    return out


def attributes(pairs):
    out = {}
    for pair in map(fields, pairs):
        (kind, (value,)), = fields(pair[2][0]).items()
        out[pair[1][0].decode()] = (value.decode() if kind == 1 else value if kind == 3
                                    else struct.unpack("<d", value)[0])
    return out


def spans_of(body):
    """[(resource, span)] of an ExportTraceServiceRequest."""
    resources = fields(fields(body)[1][0])
    resource = attributes(fields(resources[1][0])[1])
    scope = fields(resources[2][0])
    assert fields(scope[1][0])[1] == [b"fathom"]
    return [(resource, fields(s)) for s in scope[2]]


class Collector:
    """What has come, and what is answered in turn; then that all is well."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.calls = []  # (path, fields of the head, body)
        self.lock = threading.Lock()

    def take(self, path, head, body):
        with self.lock:
            self.calls.append((path, head, body))
            return self.answers.pop(0) if self.answers else None

    def spans(self):
        with self.lock:
            return [s for _, _, body in self.calls for s in spans_of(body)]


class HttpCollector(Collector):
    def __init__(self, *statuses):
        super().__init__(*statuses)
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                status = outer.take(self.path, dict(self.headers.items()), body) or 200
                self.send_response(status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/v1/traces"


class GrpcCollector(Collector):
    """One unary call after the other: a status of gRPC in a trailer, or where it is not 0 in the only head."""

    def __init__(self, *statuses):
        super().__init__(*statuses)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"grpc://127.0.0.1:{self.listener.getsockname()[1]}"
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            connection, _ = self.listener.accept()
            threading.Thread(target=self.serve, args=(connection,), daemon=True).start()

    @staticmethod
    def frame(kind, flags, stream, payload):
        return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload

    @staticmethod
    def literal(name, value):
        return b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value

    def answer(self, stream, status):
        said = self.literal(b"grpc-status", str(status).encode()) + self.literal(b"grpc-message", b"so it is")
        head = b"\x88" + self.literal(b"content-type", b"application/grpc")  # \x88 is :status 200
        if status:
            return self.frame(1, 5, stream, head + said)
        return (self.frame(1, 4, stream, head) + self.frame(0, 0, stream, bytes(5)) +
                self.frame(1, 5, stream, said))

    def serve(self, connection):
        with connection, connection.makefile("rb") as came:
            assert came.read(24) == b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
            connection.sendall(self.frame(4, 0, 0, b""))
            body, head = {}, {}
            while True:
                top = came.read(9)
                if len(top) < 9:
                    return
                payload = came.read(int.from_bytes(top[:3], "big"))
                kind, flags, stream = top[3], top[4], int.from_bytes(top[5:], "big")
                if kind == 4 and not flags & 1:
                    connection.sendall(self.frame(4, 1, 0, b""))
                elif kind == 1:
                    head[stream] = payload
                elif kind == 0:
                    body[stream] = body.get(stream, b"") + payload
                    room = len(payload).to_bytes(4, "big")
                    connection.sendall(self.frame(8, 0, 0, room))
                if kind in (0, 1) and flags & 1:
                    message = body[stream]
                    assert message[0] == 0 and int.from_bytes(message[1:5], "big") == len(message) - 5
                    connection.sendall(self.answer(stream, self.take(EXPORT, head[stream], message[5:]) or 0))


def start(url, **variables):
    """A server that sends there, and what it says."""
    log = Log()
    server = Server("--otlp-traces-endpoint", url, stderr=log, env={**os.environ, **variables})
    return server, log


def ask(server, traceparent=None, **more):
    connection = server.connect()
    head = {"Content-Type": "application/json", **({"traceparent": traceparent} if traceparent else {})}
    body = {"model": "pilot", "prompt": "Hello", "max_tokens": 3, "ignore_eos": True, **more}
    connection.request("POST", "/v1/completions", json.dumps(body), head)
    answer = connection.getresponse()
    answer.read()
    connection.close()
    return answer.status


def count(server, name):
    return sum(v for k, v in server.metrics().items() if k.startswith(name + "{"))


class Traces(unittest.TestCase):
    def test_a_request_is_a_span_of_its_trace(self):
        collector = HttpCollector()
        server, _ = start(collector.url, OTEL_SERVICE_NAME="mine", OTEL_RESOURCE_ATTRIBUTES="k8s.pod.name=p%2C1",
                          OTEL_EXPORTER_OTLP_HEADERS="authorization=Basic%20xyz")
        before_ns = time.time_ns()
        self.assertEqual(ask(server, f"00-{TRACE}-{SPAN}-01", n=2, temperature=0.6, seed=1), 200)
        self.assertEqual(ask(server), 200)
        self.assertEqual(ask(server, f"00-{TRACE}-{SPAN}-00"), 200)  # whoever sent it does not record
        wait_until(lambda: len(collector.spans()) >= 3)
        after_ns = time.time_ns()
        self.assertEqual(server.stop(), 0)
        path, head, _ = collector.calls[0]
        self.assertEqual((path, head["Content-Type"], head["authorization"]),
                         ("/v1/traces", "application/x-protobuf", "Basic xyz"))
        spans = collector.spans()
        self.assertEqual(len(spans), 3)
        for resource, _ in spans:
            self.assertEqual(resource, {"service.name": "mine", "k8s.pod.name": "p,1"})
        spans = [s for _, s in spans]
        self.assertEqual(len({s[2][0] for s in spans}), 3)
        for s in spans[:2]:
            self.assertEqual((s[1][0].hex(), s[4][0].hex()), (TRACE, SPAN))
        self.assertEqual(len(spans[2][1][0]), 16)
        self.assertNotEqual(spans[2][1][0].hex(), TRACE)
        self.assertNotIn(4, spans[2])
        for s, n in zip(spans, (2, 2, 1)):
            self.assertEqual((s[5], s[6]), ([b"llm_request"], [2]))
            begin, end = (int.from_bytes(s[i][0], "little") for i in (7, 8))
            self.assertTrue(before_ns <= begin < end <= after_ns)
            told = attributes(s[9])
            self.assertEqual({k: told[k] for k in told if ".latency." not in k and not k.endswith((".id", "top_p"))}, {
                "gen_ai.usage.prompt_tokens": 1, "gen_ai.usage.completion_tokens": 3,
                "gen_ai.usage.cached_tokens": 0, "gen_ai.response.model": "pilot",
                "gen_ai.response.finish_reason": "length", "gen_ai.request.temperature": 0.6,
                "gen_ai.request.max_tokens": 3, "gen_ai.request.n": n})
            self.assertTrue(told["gen_ai.request.id"].startswith("cmpl-"))
            took = {k[15:]: v for k, v in told.items() if ".latency." in k}
            self.assertAlmostEqual(took["e2e"], (end - begin) / 1e9, places=5)
            self.assertAlmostEqual(took["time_in_model_inference"],
                                   took["time_in_model_prefill"] + took["time_in_model_decode"])
            self.assertTrue(0 < took["time_to_first_token"] < took["e2e"])
            self.assertLessEqual(took["time_in_queue"] + took["time_in_model_inference"], took["e2e"])

    def test_what_a_collector_cannot_take_now_comes_again(self):
        for collector in (HttpCollector(503), GrpcCollector(14)):
            with self.subTest(collector=type(collector).__name__):
                server, log = start(collector.url)
                self.assertEqual(ask(server), 200)
                wait_until(lambda: len(collector.calls) >= 2)
                wait_until(lambda: count(server, "fathom_trace_spans_total") == 1)
                self.assertEqual(collector.calls[0][2], collector.calls[1][2])
                self.assertEqual(count(server, "fathom_trace_lost_spans_total"), 0)
                self.assertEqual(server.stop(), 0)
                self.assertNotIn("lost", log.text())

    def test_what_it_refuses_is_lost_and_told(self):
        for collector, said in ((HttpCollector(400), "status 400"), (GrpcCollector(3), "gRPC status 3 so it is")):
            with self.subTest(said=said):
                server, log = start(collector.url)
                self.assertEqual(ask(server), 200)
                wait_until(lambda: "are lost" in log.text())
                self.assertIn(f"{said}; 1 spans are lost", log.text())
                self.assertEqual(count(server, "fathom_trace_lost_spans_total"), 1)
                self.assertEqual(ask(server), 200)  # the next one goes
                wait_until(lambda: count(server, "fathom_trace_spans_total") == 1)
                self.assertEqual((len(collector.calls), server.stop()), (2, 0))

    def test_what_waits_at_the_end_is_sent(self):
        collector = GrpcCollector()
        server, _ = start(collector.url)
        for _ in range(3):
            self.assertEqual(ask(server), 200)
        self.assertEqual(server.stop(), 0)
        self.assertEqual(len(collector.spans()), 3)

    def test_without_a_collector_all_goes_on(self):
        """Nobody listens, and somebody who never answers: answers come, and the end does not wait for long."""
        with socket.create_server(("127.0.0.1", 0)) as silent:
            for port in (1, silent.getsockname()[1]):
                server, log = start(f"http://127.0.0.1:{port}/v1/traces")
                self.assertEqual(ask(server), 200)
                begin = time.monotonic()
                self.assertEqual(server.stop(), 0)
                self.assertLess(time.monotonic() - begin, HANG_S / 2)
                self.assertIn("1 spans are lost", log.text())

    def test_what_cannot_be_is_refused_before_the_model_loads(self):
        for url, variables, said in (("ftp://x", {}, "a scheme that is not known"),
                                     ("grpc://x", {"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/json"},
                                      "needed is grpc or http/protobuf"),
                                     ("grpc://x", {"OTEL_TRACES_SAMPLER": "some"}, "OTEL_TRACES_SAMPLER some")):
            done = subprocess.run([Server.path, "serve", "--port", "0", "--otlp-traces-endpoint", url],
                                  env={**os.environ, **variables}, capture_output=True, text=True,
                                  timeout=HANG_S, check=False)
            self.assertEqual(done.returncode, 1, done.stderr)
            self.assertIn(said, done.stderr)


if __name__ == "__main__":
    Server.path = os.path.abspath(sys.argv.pop(1))
    unittest.main()
