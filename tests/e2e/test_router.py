#!/usr/bin/env python3
"""test_router - servers of the pilot behind a router: choices, retries, streams that move

    test_router.py resume|router|names|kill [N] PROGRAM

resume: a stream cut behind any token goes on at another server to the same bytes, in all four APIs.
router: cached prefixes, servers that come and go, errors, clients that leave.
names: the addresses of a name are servers.
kill: servers are killed within N streams (default 40); every text is the undisturbed one.
"""

import atexit
import ctypes
import gzip
import http.client
import json
import os
import random
import re
import signal
import socket
import ssl
import stat
import subprocess
import sys
import tempfile
import threading
import time

from certificates import make_certificate
from served import HANG_S, Log, Server, wait_until

PASS = "X-Fathom-Stream"
PIDFD_GETFD, TCP_USER_TIMEOUT = 438, 18  # a system call and an option, by Linux's numbers
TEXT = "Write a few lines about the sea, ships and what lies between two harbours."
CHAT = {"messages": [{"role": "user", "content": TEXT}], "max_tokens": 40, "ignore_eos": True,
        "temperature": 1.0, "stream": True, "stream_options": {"include_usage": True}}
REQUESTS = [
    ("/v1/chat/completions", CHAT),
    ("/v1/chat/completions", {**CHAT, "max_tokens": 12, "logprobs": True, "top_logprobs": 2}),
    # tokens wait for each other: halves of characters, stop strings that do not come, hidden reasoning
    ("/v1/chat/completions", {**CHAT, "logprobs": True, "guided_regex": "(é*b){9}", "stop": ["béb"]}),
    ("/v1/chat/completions", {**CHAT, "logprobs": True, "reasoning_effort": "high",
                              "thinking_token_budget": 6, "include_reasoning": False}),
    ("/v1/chat/completions", {**CHAT, "frequency_penalty": 0.5, "temperature": 0.7, "seed": 5}),
    ("/v1/chat/completions", {**CHAT, "stop": ["e"], "ignore_eos": False}),
    ("/v1/chat/completions", {**CHAT, "reasoning_effort": "high", "thinking_token_budget": 6}),
    ("/v1/chat/completions", {
        "messages": CHAT["messages"], "max_tokens": 60, "stream": True,
        "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {
            "type": "object", "properties": {"name": {"type": "string", "maxLength": 12},
                                             "n": {"type": "integer"}},
            "required": ["name", "n"], "additionalProperties": False}}}}),
    ("/v1/completions", {"prompt": TEXT, "max_tokens": 30, "temperature": 1.0, "stream": True,
                         "ignore_eos": True}),
    ("/v1/messages", {"messages": CHAT["messages"], "max_tokens": 30, "stream": True, "ignore_eos": True,
                      "temperature": 1.0}),
    ("/v1/responses", {"input": TEXT, "max_output_tokens": 30, "stream": True, "ignore_eos": True,
                       "temperature": 1.0}),
]


class Router(Server):
    """`fathom router` in front of servers."""

    def __init__(self, servers, *flags, before=(), stderr=None):
        self.process = subprocess.Popen(
            [*before, Server.path, "router", "--port", "0", "--look-interval", "0.05", *flags,
             *[s.url for s in servers]], stdout=subprocess.PIPE, stderr=stderr, text=True)
        atexit.register(self.kill)
        self.host = "127.0.0.1"
        for line in self.process.stdout:
            found = re.match(r"address +http://[^:]+:(\d+)/v1", line)
            if found:
                self.port = int(found.group(1))
                break
        else:
            raise AssertionError("the router has not started")
        self.url = f"http://{self.host}:{self.port}"

    def instances(self):
        return {s["url"]: s for s in self.get("/instances")[1]}

    def get(self, path):
        connection = self.connect()
        connection.request("GET", path)
        answer = connection.getresponse()
        text = answer.read()
        connection.close()
        return answer.status, json.loads(text) if text[:1] in b"[{" else text.decode()

    def wait_up(self, n):
        wait_until(lambda: sum(s["state"] == "up" for s in self.instances().values()) == n)


def server(*flags):
    return Server("--threads", "1", "--max-model-len", "2048", "--kv-cache-memory-bytes", "64M",
                  *flags)


def ask(to, path, body, headers=None):
    """Status and text of an answer, which may break off: then the text ends there."""
    connection = to.connect()
    connection.request("POST", path, json.dumps(body),
                       {"Content-Type": "application/json", **(headers or {})})
    answer = connection.getresponse()
    text = b""
    try:
        while True:
            piece = answer.read1(65536)
            if not piece:
                break
            text += piece
    except http.client.HTTPException:
        pass
    connection.close()
    return answer.status, text.decode()


def tokens_of(text):
    return [int(t) for told in re.findall(r"^: token ([\d ]+)$", text, re.M) for t in told.split()]


def events_of(text):
    """What counts of a stream: no comments, no pings; times as 0, cached counts as they may be."""
    text = re.sub(r'"(completed_at)":\d+', r'"\1":0', text)
    text = re.sub(r'"cached_tokens":\d+|"cache_read_input_tokens":\d+', '"cached":0', text)
    text = re.sub(r'"input_tokens":\d+(?=,"cached":0)', '"input_tokens":0', text)
    events = [e for e in text.split("\n\n") if e]
    return [e for e in events if not e.startswith(":") and not e.startswith("event: ping")]


def check_resume():
    a, b = server(), server()
    headers = {PASS: "00112233aabbccdd-1763800000"}
    for path, body in REQUESTS:
        status, text = ask(a, path, body, headers)
        assert status == 200, text
        tokens, n_cut = tokens_of(text), 0
        assert len(tokens) >= 3, (path, text)
        blocks = [x + "\n\n" for x in text.split("\n\n") if x]
        places = [i for i, block in enumerate(blocks) if block.startswith(": token ")]
        for k in sorted({0, 1, len(places) // 2, len(places) - 2, len(places) - 1}):
            before = "".join(blocks[:places[k] + 1])
            status, rest = ask(b, path, {**body, "resume": tokens_of(before)}, headers)
            assert status == 200, rest
            assert events_of(before + rest) == events_of(text), (path, k, before + rest, text)
            n_cut += 1
        assert n_cut >= 3
    # without a pass nothing is told, and nothing goes on
    path, body = REQUESTS[0]
    assert ": token" not in ask(a, path, body)[1]
    status, text = ask(a, path, {**body, "resume": [5]})
    assert status == 400 and "X-Fathom-Stream" in text, text
    status, text = ask(a, path, {**body, "resume": [10**7]}, headers)
    assert status == 400 and "resume[0]" in text, text
    n = body.get("max_tokens", 4096) + 1
    status, text = ask(a, path, {**body, "resume": [5] * n}, headers)
    assert status == 400 and f"resume has {n} tokens" in text, text
    status, text = ask(a, path, {**body, "n": 2, "resume": [5]}, headers)
    assert status == 400, text
    body = {"prompt": TEXT, "max_tokens": 4, "stream": True, "echo": True, "logprobs": 0}
    assert ": token" not in ask(a, "/v1/completions", body, headers)[1]
    for s in (a, b):
        s.wait_idle()
        assert s.stop() == 0
    print(f"{len(REQUESTS)} requests went on behind their tokens to the same bytes")


def long_text(i, n=600):
    words = random.Random(i)
    return " ".join(f"w{words.randrange(10**6)}" for _ in range(n // 7))


def check_prefixes(router, servers):
    """Conversations stay where they are held; the others spread. No turn fills another block of what the router
    knows prompts by: a new block goes where it is computed soonest, at paces that a busy machine makes unequal."""
    seen = {}
    for turn in range(3):
        for talk in range(8):
            messages = [{"role": "user", "content": long_text(talk, 500)}]
            messages += [{"role": "user", "content": f"{t}"} for t in range(turn)]
            before = {u: s["requests"] for u, s in router.instances().items()}
            status, text = ask(router, "/v1/chat/completions",
                               {"messages": messages, "max_tokens": 2})
            assert status == 200, text
            after = router.instances()
            where, = [u for u in after if after[u]["requests"] > before[u]]
            assert seen.setdefault(talk, where) == where, f"talk {talk} moved in turn {turn}"
            cached = json.loads(text)["usage"]["prompt_tokens_details"]["cached_tokens"]
            assert turn == 0 or cached > 0, "the prefix was not found"
    assert len(set(seen.values())) == len(servers), "all talks went to one server"


def check_stopped():
    """Streams that outlast their server's drain go on at another one, in all four APIs."""
    bodies = [("/v1/chat/completions", CHAT), *((p, b) for p, b in REQUESTS if "chat" not in p)]
    bodies = [(path, {**body, "seed": 3, **({"max_output_tokens": 600} if "responses" in path
                                            else {"max_tokens": 600})}) for path, body in bodies]
    old, other = server("--drain-timeout", "0"), server()
    strip = re.compile(r'"(?:id|item_id|response_id)":"[^"]*"|"created(?:_at)?":\d+').sub

    def said(to, path, body):
        return [strip("", e) for e in events_of(ask(to, path, body)[1])]

    want = [said(other, *b) for b in bodies]
    router = Router([old, other])
    router.wait_up(2)
    assert ask(router, "/instances/remove", {"url": other.url})[0] == 200
    got = [None] * len(bodies)

    def one(i):
        got[i] = said(router, *bodies[i])

    threads = [threading.Thread(target=one, args=(i,)) for i in range(len(bodies))]
    for t in threads:
        t.start()
    wait_until(lambda: old.health()["running"] == len(bodies))
    old.process.send_signal(signal.SIGSTOP)  # the answers do not end meanwhile
    assert ask(router, "/instances/add", {"url": other.url})[0] == 200
    wait_until(lambda: router.instances()[other.url]["state"] == "up")
    old.process.send_signal(signal.SIGTERM)
    old.process.send_signal(signal.SIGCONT)
    assert old.stop() == 0
    for t in threads:
        t.join()
    assert got == want, [(g, w) for g, w in zip(got, want) if g != w]
    assert f"moved_streams_total {len(bodies)}\n" in router.get("/metrics")[1]
    for s in (router, other):
        assert s.stop() == 0


def links_to(process, port):
    """The sockets of a process that are connected to a port of this machine; None: they cannot be had."""
    out, pidfd = [], os.pidfd_open(process.pid)
    for name in os.listdir(f"/proc/{process.pid}/fd"):
        fd = ctypes.CDLL(None).syscall(PIDFD_GETFD, pidfd, int(name), 0)
        if fd < 0:
            return None
        if not stat.S_ISSOCK(os.fstat(fd).st_mode):
            os.close(fd)
            continue
        link = socket.socket(fileno=fd)
        try:
            if link.getpeername()[1] == port:
                out.append(link)
        except OSError:
            pass
    os.close(pidfd)
    return out


def check_silence(router, servers):
    """A machine that has gone without a word is an error after seconds, not after a quarter of an hour."""
    links = links_to(router.process, servers[0].port)
    if links is None:
        print("the router's sockets cannot be looked at here")
        return
    assert links
    for link in links:
        assert link.getsockopt(socket.IPPROTO_TCP, TCP_USER_TIMEOUT) == 10000
        assert link.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert link.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 5


def check_causes():
    """Why a server is down, or is not all that it should be."""
    closed, first = server("--api-key", "k"), server()
    none = "http://127.0.0.1:1"
    for flags, says in (((), "--server-api-key"), (("--server-api-key", "k"), "kv_consumer")):
        router = Router([], *flags, "--prefill", first.url, "--decode", none, closed.url)
        router.wait_up(2)
        wait_until(lambda: router.instances()[none]["state"] == "down")
        why = {url: s["why"] for url, s in router.instances().items()}
        assert says in why[closed.url], why
        assert "connect" in why[none], why
        assert "kv_role" in why[first.url], why
        assert router.stop() == 0
    for s in (closed, first):
        assert s.stop() == 0


def has_ipv6():
    try:
        with socket.socket(socket.AF_INET6) as s:
            s.bind(("::1", 0))
    except OSError:
        return False
    return True


def check_certificates():
    """A new certificate is taken on SIGHUP, and what is none is told; the address of IPv6 is one."""
    with tempfile.TemporaryDirectory() as folder:
        key, certificate = make_certificate(folder, "old")
        log = Log()
        router = subprocess.Popen(
            [Server.path, "router", "--host", "::1" if has_ipv6() else "127.0.0.1", "--port", "0",
             "--ssl-certfile", certificate, "--ssl-keyfile", key, "127.0.0.1:1"], stdout=log, stderr=log)
        atexit.register(router.kill)
        wait_until(lambda: "address" in log.text() or router.poll() is not None)
        host, port = re.search(r"^address +https://(\[::1\]|127.0.0.1):(\d+)/v1$", log.text(), re.M).groups()
        at = (host.strip("[]"), int(port))
        before = ssl.get_server_certificate(at)
        make_certificate(folder, "new")
        for end in (".key", ".crt"):
            os.replace(os.path.join(folder, "new" + end), os.path.join(folder, "old" + end))
        router.send_signal(signal.SIGHUP)
        wait_until(lambda: "reloaded: the TLS certificate" in log.text())
        after = ssl.get_server_certificate(at)
        assert before != after
        with open(certificate, "w", encoding="ascii") as f:
            f.write("nonsense")
        router.send_signal(signal.SIGHUP)
        wait_until(lambda: "stays as it was" in log.text())
        assert ssl.get_server_certificate(at) == after
        router.terminate()
        assert router.wait(HANG_S) == 0


def check_pages(router, servers):
    """What a server tells of its pages is known to the router."""
    for s in servers:
        connection = s.connect()
        connection.request("GET", "/load")
        told = json.loads(connection.getresponse().read())
        connection.close()
        assert told["free_pages"] > 0, told
        known = router.instances()[s.url]
        assert (known["pages"], known["free_pages"]) == (told["pages"], told["free_pages"]), (known, told)


def can_bind_files():
    """Whether a process here may have files of its own in /etc."""
    return subprocess.run(["unshare", "-rm", "mount", "--bind", "/etc/hosts", "/etc/hosts"], check=False,
                          capture_output=True, timeout=HANG_S).returncode == 0


def own_hosts(folder):
    """What sets the addresses of "pool", of which there are none, and what runs a program that knows them."""
    hosts, resolver = os.path.join(folder, "hosts"), os.path.join(folder, "resolv.conf")

    def set_addresses(*addresses):
        with open(hosts, "w", encoding="ascii") as f:
            f.write("".join(f"{a} pool\n" for a in addresses))

    with open(resolver, "w", encoding="ascii") as f:
        f.write("nameserver 127.0.0.1\noptions timeout:1 attempts:1\n")
    set_addresses()
    return set_addresses, ("unshare", "-rm", "sh", "-c", 'mount --bind "$0" /etc/hosts && '
                           'mount --bind "$1" /etc/resolv.conf && shift && exec "$@"', hosts, resolver)


def check_names():
    """A name's addresses are servers, which come and go with it."""
    for name, says in (("dns+http://pool", "no name of servers"), ("dns+ftp://pool:1", "no name of servers"),
                       ("dns+http://pool:0", "no name of servers"), ("dns://pool:1", "no server's address"),
                       ("dns+http://pool:8000/x", "no name of servers")):
        done = subprocess.run([Server.path, "router", "--port", "0", name], capture_output=True, text=True,
                              check=False, timeout=HANG_S)
        assert done.returncode == 1 and says in done.stderr, done
        assert done.stderr.count("\n") == 1, done.stderr
    if not can_bind_files():
        print("nobody here may have an /etc/hosts of its own")
        return
    first = server("--host", "127.0.0.1")
    second = server("--host", "127.0.0.2", "--port", str(first.port))
    one, two = (f"http://127.0.0.{i}:{first.port}" for i in (1, 2))
    with tempfile.TemporaryDirectory() as folder:
        set_addresses, before = own_hosts(folder)
        log = Log()
        router = Router([], f"dns+http://pool:{first.port}", stderr=log, before=before)
        wait_until(lambda: "pool has no address" in log.text())
        assert router.get("/ready")[0] == 503 and not router.instances()
        set_addresses("127.0.0.1")
        router.wait_up(1)
        assert list(router.instances()) == [one]
        # a stream that runs where the name no longer leads is whole
        connection = router.connect()
        connection.request("POST", "/v1/chat/completions", json.dumps({**CHAT, "max_tokens": 1500}))
        answer = connection.getresponse()
        assert answer.read1(100)
        first.process.send_signal(signal.SIGSTOP)  # it does not end meanwhile
        set_addresses("127.0.0.2", "127.0.0.2")
        wait_until(lambda: two in router.instances()
                   and router.instances().get(one, {}).get("state", "leaving") == "leaving")
        first.process.send_signal(signal.SIGCONT)
        assert answer.read().endswith(b"data: [DONE]\n\n")
        connection.close()
        wait_until(lambda: list(router.instances()) == [two])
        assert ask(router, "/v1/completions", {"prompt": "x", "max_tokens": 1})[0] == 200
        set_addresses("127.0.0.1", "127.0.0.2")
        router.wait_up(2)
        # a name that nobody knows any more changes nothing, nor does who was named by hand
        assert ask(router, "/instances/add", {"url": "127.0.0.3:1"})[0] == 200
        n_told = log.text().count("pool has no address")
        set_addresses()
        wait_until(lambda: log.text().count("pool has no address") > n_told)
        assert set(router.instances()) == {one, two, "http://127.0.0.3:1"}
        router.wait_up(2)
        # more than there are places for
        set_addresses(*(f"127.0.1.{i}" for i in range(1, 71)))
        wait_until(lambda: "more servers than there are places" in log.text())
        assert len(router.instances()) == 64 and one not in router.instances()
        set_addresses("127.0.0.1", "127.0.0.2")
        router.wait_up(2)
        assert set(router.instances()) == {one, two, "http://127.0.0.3:1"}
        assert router.stop() == 0
    for s in (first, second):
        assert s.stop() == 0
    print("the addresses of a name came and went")


def check_errors(router):
    for path, body, want in [("/v1/chat/completions", {"messages": 5}, 400),
                             ("/v1/nothing", {}, 404),
                             ("/v1/chat/completions", {"model": "other", "messages": CHAT["messages"]}, 404)]:
        status, text = ask(router, path, body)
        assert status == want and "error" in text, (status, text)
    status, text = router.get("/v1/models")
    assert status == 200 and text["data"], text
    status, text = router.get("/metrics")
    assert "fathom_router_requests_total" in text
    connection = router.connect()
    connection.request("OPTIONS", "*")  # it has no path
    assert connection.getresponse().status == 404
    connection.close()
    connection = router.connect()
    connection.request("POST", "/instances/add", json.dumps({"url": "http://127.0.0.1:1"}),
                       {"Origin": "http://evil.example"})
    answer = connection.getresponse()
    assert answer.status == 403 and json.loads(answer.read())["error"]["type"] == "authentication_error"
    connection.close()
    # HEAD tells how long the answer to GET is, the router's own too
    for path in ("/v1/models", "/health"):
        n = []
        for method in ("GET", "HEAD"):
            connection = router.connect()
            connection.request(method, path)
            answer = connection.getresponse()
            n.append(int(answer.getheader("Content-Length")))
            assert answer.status == 200 and len(answer.read()) == (n[0] if method == "GET" else 0)
            connection.close()
        assert n[0] == n[1] > 0, (path, n)
    # a web page that has its own name lead here
    for path in ("/v1/models", "/instances"):
        for host, want in (("evil.example", 403), ("localhost:9000", 200), ("the.router", 200)):
            connection = router.connect()
            connection.request("GET", path, headers={"Host": host})
            answer = connection.getresponse()
            assert answer.status == want, (path, host, answer.read())
            connection.close()
    assert ask(router, "/instances/remove", {"url": "http://127.0.0.1:1"})[0] == 404
    assert ask(router, "/instances/add", {"url": "http://"})[0] == 400


def check_staying():
    """Streams of several choices, those of servers that have not taken the router's pass, of bodies that are packed
    and of other paths do not move, and end with an error event."""
    body = {"prompt": TEXT, "max_tokens": 1500, "ignore_eos": True, "stream": True}
    ids = {"token_ids": list(range(40, 90)), "stream": True,
           "sampling_params": {"max_tokens": 1500, "ignore_eos": True}}
    with tempfile.NamedTemporaryFile("w") as secret:
        secret.write("a secret of the servers alone")
        secret.flush()
        for flags, path, asked, packs in (
                ((), "/v1/completions", {**body, "n": 2}, False),
                (("--pool-secret-file", secret.name), "/v1/completions", body, False),
                ((), "/v1/completions", body, True), ((), "/invocations", body, False),
                ((), "/inference/v1/generate", ids, False)):
            servers = [server(*flags) for _ in range(2)]
            router = Router(servers)
            router.wait_up(2)
            connection = router.connect()
            text = json.dumps(asked).encode()
            connection.request("POST", path, gzip.compress(text) if packs else text,
                               {"Content-Encoding": "gzip"} if packs else {})
            answer = connection.getresponse()
            assert answer.getheader(PASS) is None
            answer.readline()
            next(s for s in servers if s.health()["running"]).kill()
            text = answer.read().decode()
            assert "server_lost" in text and "[DONE]" not in text, text[-300:]
            events = [e for e in text.split("\n\n") if e.startswith("data: ")]
            assert all(json.loads(e[6:])["choices"] for e in events[1:]), events[-1]
            connection.close()
            for s in (router, *servers):
                s.kill()


def check_alone():
    """What one server loses moves nowhere, and is given to nobody else."""
    alone = server()
    router = Router([alone])
    router.wait_up(1)
    connection = router.connect()
    connection.request("POST", "/v1/completions", json.dumps(
        {"prompt": TEXT, "max_tokens": 1500, "ignore_eos": True, "stream": True}))
    answer = connection.getresponse()
    assert answer.readline()
    alone.kill()
    assert "server_lost" in answer.read().decode()
    connection.close()
    assert ask(router, "/v1/completions", {"prompt": TEXT, "max_tokens": 2})[0] in (502, 503)
    metrics = router.get("/metrics")[1]
    for name, n in (("passed", 2), ("moved_streams", 0), ("retries", 0), ("unserved", 2)):
        assert f"fathom_router_{name}_total {n}\n" in metrics, (name, metrics)
    router.kill()


def check_responses(router, servers):
    """A response is found, gone on from and deleted, whichever server has it; one of none is not found."""
    def take(method, path, body=None):
        connection = router.connect()
        connection.request(method, path, json.dumps(body) if body else None)
        answer = connection.getresponse()
        text = json.loads(answer.read())
        connection.close()
        return answer.status, text

    made = [s.post("/v1/responses", {"input": f"talk {s.port}", "max_output_tokens": 2})["id"] for s in servers]
    for name in made:
        for body in ({}, {"stream": True}):
            status, text = ask(router, "/v1/responses", {"input": "go on", "previous_response_id": name,
                                                         "max_output_tokens": 2, **body})
            assert status == 200, text
        assert take("GET", "/v1/responses/" + name)[0] == 200
        assert take("DELETE", "/v1/responses/" + name)[0] == 200
        assert take("GET", "/v1/responses/" + name)[0] == 404
    status, text = take("POST", "/v1/responses", {"input": "go on", "previous_response_id": made[0]})
    assert status == 400 and text["error"]["code"] == "previous_response_not_found", text
    assert take("POST", "/v1/responses", {"input": "x", "model": "other"})[0] == 404


def check_changes(router, servers):
    """A server that is not there costs no request; one that leaves gets none."""
    assert ask(router, "/instances/add", {"url": "http://127.0.0.1:1"})[0] == 200
    assert ask(router, "/instances/add", {"url": "http://127.0.0.1:1"})[0] == 400
    for i in range(6):
        assert ask(router, "/v1/completions", {"prompt": f"{i}", "max_tokens": 1})[0] == 200
    wait_until(lambda: router.instances()["http://127.0.0.1:1"]["state"] == "down")
    assert ask(router, "/instances/remove", {"url": "http://127.0.0.1:1"})[0] == 200
    for body in ({"url": "http://127.0.0.1:1", "type": "both"}, {"instance": 5}, {"instances": [5]}):
        assert ask(router, "/instances/add", body)[0] == 400, body
    assert ask(router, "/instances/add", {"type": "prefill", "instance": "127.0.0.1:1"})[0] == 200
    assert ask(router, "/instances/add", {"type": "decode", "instances": ["127.0.0.1:2"]})[0] == 200
    roles = [router.instances()[f"http://127.0.0.1:{port}"]["role"] for port in (1, 2)]
    assert roles == ["prefill", "any"], roles
    for port in (1, 2):
        assert ask(router, "/instances/remove", {"url": f"127.0.0.1:{port}"})[0] == 200
    assert ask(router, "/instances/remove", {"url": servers[0].url})[0] == 200
    wait_until(lambda: servers[0].url not in router.instances())
    for i in range(4):
        assert ask(router, "/v1/completions", {"prompt": f"{i}", "max_tokens": 1})[0] == 200
    assert ask(router, "/instances/add", {"url": servers[0].url})[0] == 200
    router.wait_up(len(servers))


def check_leaving(router, servers):
    """A client that leaves frees its server."""
    body = {**CHAT, "max_tokens": 1500}
    for _ in range(8):
        connection = router.connect()
        connection.request("POST", "/v1/chat/completions", json.dumps(body))
        connection.getresponse().read1(100)
        connection.sock.close()
        connection.close()
    for s in servers:
        s.wait_idle()
    wait_until(lambda: router.get("/load")[1]["server_load"] == 0)


def check_spellings():
    """Servers as lines of other routers name them; none of these is there."""
    a, b, c, d = (f"http://127.0.0.1:{port}" for port in range(1, 5))
    for flags in (("--prefill", a, "8998", "--prefill", b, "none", "--decode", c, "--decode", d),
                  ("--prefill", a, b, "--decode", c, d),
                  ("--prefiller-hosts", "127.0.0.1", "127.0.0.1", "--prefiller-ports", "1", "2",
                   "--decoder-hosts", "127.0.0.1", "127.0.0.1", "--decoder-ports", "3", "4"),
                  ("--prefill", a, "--prefiller-host", "127.0.0.1", "--prefiller-port", "2",
                   "--decoder-host=127.0.0.1", "--decoder-port=3", d)):
        router = Router([], *flags)
        roles = {url: s["role"] for url, s in router.instances().items()}
        assert roles == {a: "prefill", b: "prefill", c: "any", d: "any"}, (flags, roles)
        assert router.stop() == 0
    for flags, says in (
            (("--decoder-hosts", "a", "b", "--decoder-ports", "1"), "give each host its port"),
            (("--decoder-hosts", "a", "--decoder-ports", "b"), "no host and port"),
            (("--prefill", "8998", "--decode", "a:b c"), "no server's address")):
        done = subprocess.run([Server.path, "router", "--port", "0", *flags], capture_output=True,
                              text=True, check=False)
        assert done.returncode == 1 and says in done.stderr, done
        assert done.stderr.count("\n") == 1, done.stderr


def check_admin():
    """Who has the key may change the pool, and nobody else."""
    router = Router([], "--admin-key", "a secret", "--decode", "127.0.0.1:1")
    body = {"url": "127.0.0.1:2"}
    for headers in ({}, {"Authorization": "Bearer a secre"}, {"X-API-Key": "a secrets"},
                    {"Authorization": "Bearer b", "X-API-Key": "a secret"}):
        assert ask(router, "/instances/add", body, headers)[0] == 403, headers
    assert ask(router, "/instances/add", body, {"X-API-Key": "a secret"})[0] == 200
    assert ask(router, "/instances/remove", body, {"Authorization": "Bearer a secret"})[0] == 200
    assert router.stop() == 0
    # one that holds nothing, as a secret that was not mounted, opens nothing
    for flag in ("--admin-key", "--server-api-key"):
        name = "FATHOM" + flag[1:].replace("-", "_").upper()
        for key, says in (("", "is empty"), ("a\r\nb", "no header can carry"), ("\u00e4", "no header can carry")):
            for words, env in (((flag, key), {}), ((), {name: key})):
                done = subprocess.run([Server.path, "router", "--port", "0", *words, "127.0.0.1:1"],
                                      capture_output=True, text=True, check=False, timeout=HANG_S,
                                      env={**os.environ, **env})
                assert done.returncode == 1 and says in done.stderr, (words, env, done)
                assert done.stderr.count("\n") == 1, done.stderr


def check_router():
    check_spellings()
    check_admin()
    check_causes()
    check_certificates()
    check_staying()
    check_alone()
    check_stopped()
    servers = [server(), server()]
    router = Router(servers, "--allowed-hosts=the.router")
    router.wait_up(2)
    check_pages(router, servers)
    check_prefixes(router, servers)
    check_silence(router, servers)
    check_errors(router)
    check_responses(router, servers)
    check_changes(router, servers)
    check_leaving(router, servers)
    # 32 at once, each with the answer that one server gives
    prompts = [long_text(100 + i, 200) for i in range(32)]
    want = [servers[0].post("/v1/completions", {"prompt": p, "max_tokens": 8, "temperature": 0})
            for p in prompts]
    have = [None] * 32

    def one(i):
        have[i] = json.loads(ask(router, "/v1/completions", {
            "prompt": prompts[i], "max_tokens": 8, "temperature": 0})[1])

    threads = [threading.Thread(target=one, args=(i,)) for i in range(32)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for w, h in zip(want, have):
        assert w["choices"] == h["choices"], (w, h)
    # all are gone: said in a line, and told by health
    for s in servers:
        s.kill()
    status, text = ask(router, "/v1/completions", {"prompt": "x"})
    assert status in (502, 503), text
    wait_until(lambda: router.get("/health")[0] == 503)
    assert router.stop() == 0
    print("prefixes, changes, errors, clients that leave: as they should be")


def check_kill(n):
    """Servers are killed in turn while streams run; nobody sees it. On a slow machine a stream
    outlives more of them than --max-moves allows by default."""
    servers = [server(), server()]
    router = Router(servers, "--max-moves", "1000")
    router.wait_up(2)
    body = {**CHAT, "max_tokens": 120, "temperature": 0.8}
    want = [events_of(ask(servers[0], "/v1/chat/completions", {**body, "seed": i})[1])
            for i in range(4)]
    texts = [[json.loads(e[6:])["choices"] for e in w if '"content"' in e] for w in want]
    wrong, done, lock = [], [0], threading.Lock()

    def talk(k):
        for i in range(k, n, 4):
            status, text = ask(router, "/v1/chat/completions", {**body, "seed": i % 4})
            have = [json.loads(e[6:])["choices"] for e in events_of(text) if '"content"' in e]
            with lock:
                done[0] += 1
                if status != 200 or have != texts[i % 4] or not text.endswith("[DONE]\n\n"):
                    wrong.append((status, text[-2000:]))

    threads = [threading.Thread(target=talk, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    n_kill, turn, seen = 0, 0, 0
    while any(t.is_alive() for t in threads):
        end = time.monotonic() + 20
        while done[0] == seen and time.monotonic() < end and any(t.is_alive() for t in threads):
            time.sleep(0.02)  # else a busy machine makes the first tokens again and again
        seen = done[0]
        time.sleep(random.uniform(0.1, 0.5))
        busy = [s for s in router.instances().values() if s["state"] == "up"]
        if len(busy) < 2:
            continue
        old = servers[turn % 2]
        old.kill()
        n_kill += 1
        assert ask(router, "/instances/remove", {"url": old.url})[0] == 200
        servers[turn % 2] = server()
        assert ask(router, "/instances/add", {"url": servers[turn % 2].url})[0] == 200
        turn += 1
    for t in threads:
        t.join()
    moved = re.search(r"^fathom_router_moved_streams_total (\d+)", router.get("/metrics")[1], re.M)
    assert not wrong, f"{len(wrong)} of {n}: {wrong[0]}"
    assert done[0] == n and int(moved.group(1)) > 0, "no stream was moved"
    assert router.stop() == 0
    print(f"{n} streams, {n_kill} servers killed, {moved.group(1)} streams moved: all texts whole")


def main():
    part, program = sys.argv[1], sys.argv[-1]
    Server.path = program
    if part == "resume":
        check_resume()
    elif part == "router":
        check_router()
    elif part == "names":
        check_names()
    else:
        check_kill(int(sys.argv[2]) if len(sys.argv) > 3 else 40)


if __name__ == "__main__":
    main()
