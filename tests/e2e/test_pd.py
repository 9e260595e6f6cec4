#!/usr/bin/env python3
"""test_pd - a server that prefills and one that decodes, with the pilot

    test_pd.py [--ucx] pair|faults|full|strangers|router|peers|kill|cancels|time|pool [N] PROGRAM

pair: both dialects, 32 requests at once: every answer is one server's, and pages have moved.
faults: killed and stopped servers, damage on the way, hostile clients, requests that leave.
full: a server whose memory is full of pages that nobody has taken yet.
strangers: other secrets, models, numerics and layouts.
router: fathom router with --prefill and --decode, in all four APIs.
peers: --kv-peers.
kill: N requests while the server that prefills is killed and started anew.
cancels: N requests that leave while pages are on their way; both servers are as before.
time: prints what N hand-overs take; tests nothing.
pool: prints what N repeated prompts take, by where their pages are; tests nothing.
--ucx: pages go by UCX; skips where it is not.
"""

import atexit
import http.client
import json
import os
import random
import re
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time

from served import HANG_S, Server, take_program, wait_until
from test_router import Router

WORDS = "sea ship sand harbour wind sail rope tide gull anchor night light captain north".split()
FLAGS = ("--threads", "1", "--max-model-len", "2048", "--kv-cache-memory-bytes", "128M",
         "--max-num-batched-tokens", "512")


TRANSPORT = []  # flags of servers that have to do with pages


def text_of(seed, n_word):
    r = random.Random(seed)
    return " ".join(r.choice(WORDS) for _ in range(n_word))


def server(role=None, *flags, config=None, **more):
    if role == "kv_producer" and "--kv-offload-ram" not in flags:
        # else it refuses prompts where a test, or a busy machine, leaves pages untaken
        flags = (*flags, "--kv-offload-ram", "512M")
    if role:
        config = {"kv_connector": "NixlConnector", "kv_role": role, "kv_port": 0, **(config or {})}
        flags = ("--kv-transfer-config", json.dumps(config), *TRANSPORT, *flags)
    return Server(*FLAGS, *flags, **more)


def pages_port(s):
    return int(re.search(r"^pages +[^ ]+:(\d+)", s.printed, re.M).group(1))


def body_of(seed, n_word=160, **fields):
    return {"prompt": text_of(seed, n_word), "max_tokens": 12, "temperature": 1.0, "seed": seed,
            "ignore_eos": True, **fields}


def post(s, body, path="/v1/completions", timeout=HANG_S):
    connection = s.connect(timeout)
    connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, json.loads(text) if text[:1] == "{" else text


def prefill(p, body, path="/v1/completions"):
    """What vLLM's toy proxy asks of the server that prefills: the parameters for the other one."""
    first = {**body, "max_tokens": 1, "stream": False, "kv_transfer_params": {
        "do_remote_decode": True, "do_remote_prefill": False, "remote_engine_id": None,
        "remote_block_ids": None, "remote_host": None, "remote_port": None}}
    first.pop("stream_options", None)
    status, answer = post(p, first, path)
    assert status == 200, answer
    return answer["kv_transfer_params"]


def handed_over(p, d, body, path="/v1/completions"):
    return post(d, {**body, "kv_transfer_params": prefill(p, body, path)}, path)


def said(answer):
    choice = answer["choices"][0]
    return choice.get("text") or choice["message"]["content"]


def total(s, name):
    return next(n for key, n in s.metrics().items() if key.startswith(name + "{"))


def moved(d):
    return total(d, "fathom_kv_pages_pulled_total"), total(d, "fathom_kv_pages_pull_lost_total")


def check_ascend(one, p, d):
    """What vllm-ascend's load-balancing proxy asks: NIXL's, with a least number of tokens, a stream and
    a request's id; P's answer is handed on as it is."""
    path, headers = "/v1/chat/completions", {"Authorization": "Bearer None", "X-Request-Id": "a-1"}
    chat = {"messages": [{"role": "user", "content": text_of(98, 150)}], "max_tokens": 8,
            "max_completion_tokens": 8, "temperature": 0, "stream": True,
            "stream_options": {"include_usage": True}}
    first = {**chat, "stream": False, "max_tokens": 1, "min_tokens": 1, "max_completion_tokens": 1,
             "kv_transfer_params": {
                 "do_remote_decode": True, "do_remote_prefill": False, "remote_engine_id": None,
                 "remote_block_ids": None, "remote_host": None, "remote_port": None}}
    first.pop("stream_options")
    texts = []
    for s in (one, d):
        if s == d:
            connection = p.connect()
            connection.request("POST", path, json.dumps(first), headers)
            chat["kv_transfer_params"] = json.loads(connection.getresponse().read())[
                "kv_transfer_params"]
        n = moved(d)[0]
        texts.append("".join(c["choices"][0]["delta"].get("content") or ""
                             for c in s.stream(path, chat) if c["choices"]))
    assert texts[0] and texts[0] == texts[1] and moved(d)[0] > n, texts


def cpu_s(s):
    with open(f"/proc/{s.process.pid}/stat") as f:
        return sum(map(int, f.read().rsplit(")", 1)[1].split()[11:13])) / os.sysconf("SC_CLK_TCK")


def check_idle(p, d):
    """Connections that nothing comes over cost nothing."""
    for s in (p, d):
        s.wait_idle()
    time.sleep(0.5)
    before = [cpu_s(s) for s in (p, d)]
    time.sleep(2)
    spent = [cpu_s(s) - b for s, b in zip((p, d), before)]
    assert max(spent) <= 0.05, spent


def check_both_at_once(one, p, d):
    """A proxy asks both, and the first one has other prompts to compute before, for longer than a
    server that says nothing is waited for: its pages come all the same."""
    start = time.monotonic()
    post(p, body_of(299, 600, max_tokens=1))
    n_other = max(1, min(14, round(5 / (time.monotonic() - start))))  # an instrumented one is slow
    others = [threading.Thread(target=post, args=(p, body_of(300 + i, 600, max_tokens=1)))
              for i in range(n_other)]
    start = time.monotonic()
    for t in others:
        t.start()
    wait_until(lambda: p.health()["waiting"] + p.health()["running"] >= n_other)
    body = body_of(320, 400)
    first = threading.Thread(target=post, args=(p, {**body, "max_tokens": 1, "kv_transfer_params": {
        "do_remote_decode": True, "do_remote_prefill": False, "transfer_id": "xfer-2"}}))
    first.start()
    pulled, lost = moved(d)
    over, sick = threading.Event(), []

    def watch():  # a server that waits for pages is a healthy one
        while not over.wait(0.2):
            connection = d.connect()
            connection.request("GET", "/health")
            answer = connection.getresponse()
            if answer.status != 200:
                sick.append(answer.read())
            connection.close()

    watcher = threading.Thread(target=watch)
    watcher.start()
    status, answer = post(d, {**body, "kv_transfer_params": {
        "do_remote_decode": False, "do_remote_prefill": True, "transfer_id": "xfer-2",
        "remote_bootstrap_addr": f"http://127.0.0.1:{pages_port(p)}"}})
    took = time.monotonic() - start
    over.set()
    for t in (*others, first, watcher):
        t.join(HANG_S)
    assert not sick, sick[0]
    assert status == 200 and said(answer) == said(one.post("/v1/completions", body))
    usage = answer["usage"]
    n_page = (usage["prompt_tokens"] - 1) // 64
    assert moved(d) == (pulled + n_page, lost), (moved(d), pulled, n_page, lost, took)
    assert usage["prompt_tokens_details"]["cached_tokens"] == 64 * n_page, usage
    return took


def check_pair():
    one, p, d = server(), server("kv_producer"), server("kv_consumer")
    expected = {}
    for seed in range(32):
        expected[seed] = said(one.post("/v1/completions", body_of(seed, 90 + 9 * seed)))
    answers = {}

    def ask(seed):
        status, answer = handed_over(p, d, body_of(seed, 90 + 9 * seed))
        answers[seed] = (status, said(answer) if status == 200 else answer)

    threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(32)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(HANG_S)
    for seed in range(32):
        assert answers[seed] == (200, expected[seed]), (seed, answers[seed], expected[seed])
    n_pulled, n_lost = moved(d)
    assert n_pulled >= 32, (n_pulled, n_lost)  # a busy machine may be too late for some
    wait_until(lambda: total(p, "fathom_kv_pages_sent_total") >= n_pulled)
    # a chat, and what the answer tells
    chat = {"messages": [{"role": "user", "content": text_of(99, 150)}], "max_tokens": 8,
            "temperature": 0}
    path = "/v1/chat/completions"
    params = prefill(p, chat, path)
    assert params["do_remote_prefill"] is True and params["do_remote_decode"] is False
    assert params["remote_port"] == pages_port(p) and params["remote_host"] == "127.0.0.1"
    assert params["remote_engine_id"] and params["remote_block_ids"][:2] == [0, 1]
    status, answer = post(d, {**chat, "kv_transfer_params": params}, path)
    assert status == 200 and said(answer) == said(one.post(path, chat))
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] >= 128, answer["usage"]
    # streamed, in SGLang's dialect and in Mooncake's: the request is the same for both
    for fields in ({"bootstrap_host": "127.0.0.1", "bootstrap_port": pages_port(p),
                    "bootstrap_room": 7},):
        n = moved(d)[0]
        body = {**body_of(200), **fields}
        assert post(p, {**body, "max_tokens": 1})[0] == 200
        text = "".join(c["choices"][0]["text"] for c in d.stream("/v1/completions", body)
                       if c["choices"])
        assert text == said(one.post("/v1/completions", body_of(200))) and moved(d)[0] > n
    ask_first = {"do_remote_decode": True, "do_remote_prefill": False, "transfer_id": "xfer-1"}
    for seed, where in ((201, {"remote_bootstrap_addr": f"http://127.0.0.1:{pages_port(p)}",
                               "remote_engine_id": "x", "transfer_id": "xfer-1"}),
                        (202, {"bootstrap_server_host": "127.0.0.1",
                               "bootstrap_server_port": pages_port(p)})):
        body = body_of(seed)
        assert post(p, {**body, "max_tokens": 1, "kv_transfer_params": ask_first})[0] == 200
        n = moved(d)[0]
        status, answer = post(d, {**body, "kv_transfer_params": {
            "do_remote_decode": False, "do_remote_prefill": True, **where}})
        assert status == 200 and said(answer) == said(one.post("/v1/completions", body))
        assert moved(d)[0] > n
    check_ascend(one, p, d)
    check_idle(p, d)
    assert check_both_at_once(one, p, d) > 2.5  # else the test shows nothing: give it more prompts
    # a server of no exchange says so
    status, answer = post(one, {**body, "kv_transfer_params": ask_first})
    assert status == 400 and "kv_producer" in json.dumps(answer), answer
    for s in (one, p, d):
        assert s.stop() == 0


class Relay:
    """Between the two servers: passes bytes on, and does to those of the first what it is told."""

    def __init__(self, port, change):
        self.port_behind, self.change = port, change
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            near, _ = self.listener.accept()
            far = socket.create_connection(("127.0.0.1", self.port_behind))
            threading.Thread(target=self.copy, args=(near, far, None), daemon=True).start()
            threading.Thread(target=self.copy, args=(far, near, self.change), daemon=True).start()

    @staticmethod
    def copy(a, b, change):
        n = 0
        try:
            while piece := a.recv(65536):
                piece = bytearray(piece)
                if change and change(n, piece):
                    break
                n += len(piece)
                b.sendall(piece)
        except OSError:
            pass
        for s in (a, b):
            try:
                s.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass


GREETED = 2 * 24 + 200 + 16  # bytes that a server has sent once it is READY
PAGE = 24 + 344              # and those before a page


def flip(n, piece):
    """Damages one byte within the first page."""
    at = GREETED + PAGE + 70000 - n
    if 0 <= at < len(piece):
        piece[at] ^= 1


def flip_header(n, piece):
    at = GREETED + 24 + 100 - n
    if 0 <= at < len(piece):
        piece[at] ^= 1


def flip_frame(n, piece):
    at = GREETED + 17 - n
    if 0 <= at < len(piece):
        piece[at] ^= 0x40


def cut(n, piece):
    """Breaks off within the first page."""
    return n > GREETED + PAGE + 100000


def stall(n, piece):
    while n > GREETED + PAGE + 100000:
        time.sleep(1)


def cut_greeted(n, piece):
    return n >= GREETED


def stall_greeted(n, piece):
    while n >= GREETED:
        time.sleep(1)


def check_relays(one, p, d):
    changes = (flip, flip_header, flip_frame, cut, stall)
    if TRANSPORT:  # the relay has no more than addresses of UCX
        changes = (flip_frame, cut_greeted, stall_greeted)
    for seed, change in enumerate(changes, 300):
        body = body_of(seed)
        params = {**prefill(p, body), "remote_port": Relay(pages_port(p), change).port}
        lost = moved(d)[1]
        start = time.monotonic()
        status, answer = post(d, {**body, "kv_transfer_params": params})
        assert status == 200 and said(answer) == said(one.post("/v1/completions", body)), change
        assert moved(d)[1] > lost or change is stall, change
        assert time.monotonic() - start < HANG_S
        d.wait_idle()


def check_hostile(p):
    r = random.Random(5)
    for i in range(40):
        s = socket.create_connection(("127.0.0.1", pages_port(p)))
        start = struct.pack("<IHHQI", 0x676b7666, 1 + i % 12, 0, 0, r.choice([0, 24, 200, 1 << 31]))
        try:
            s.sendall((start if i % 2 else b"") + r.randbytes(r.randrange(1, 400)))
            s.settimeout(HANG_S)
            s.recv(4096)
        except OSError:
            pass
        s.close()
    silent = [socket.create_connection(("127.0.0.1", pages_port(p))) for _ in range(80)]
    for s in silent:  # each is ended: it does not say who it is
        s.settimeout(HANG_S)
        try:
            assert s.recv(100) == b""
        except ConnectionError:
            pass
        s.close()


def check_query(p):
    """What proxies of Mooncake ask of the port of pages, and others by mistake."""
    def ask(text):
        with socket.create_connection(("127.0.0.1", pages_port(p)), timeout=HANG_S) as s:
            s.sendall(text)
            answer = http.client.HTTPResponse(s)
            answer.begin()
            return answer.status, json.loads(answer.read())

    for version in (b"HTTP/1.0", b"HTTP/1.1\r\nHost: a"):
        status, names = ask(b"GET /query " + version + b"\r\n\r\n")
        assert status == 200 and re.fullmatch("[!-~]+", names["0"]["engine_id"]), names
    assert ask(b"GET /v1/models HTTP/1.1\r\nHost: a\r\n\r\n")[0] == 404
    with socket.create_connection(("127.0.0.1", pages_port(p)), timeout=HANG_S) as s:
        try:
            s.sendall(b"GET /query?" + 9000 * b"a")  # without an end
            assert s.recv(100) == b""
        except ConnectionError:
            pass


def check_strangers(one, p, secret, other):
    """Servers that may not share pages with p, or with a server that has a secret."""
    with_secret = server("kv_producer", "--pool-secret-file", secret)
    strangers = [
        ("numerics", p, ("--dtype", "float32")), ("layout", p, ("--kv-cache-dtype", "fp8")),
        ("model", p, ("--load-format", "dummy")), ("secret", p, ("--pool-secret-file", secret)),
        ("secret", with_secret, ("--pool-secret-file", other)), ("secret", with_secret, ()),
    ]
    for i, (cause, source, flags) in enumerate(strangers):
        body = body_of(400 + i)
        log = tempfile.TemporaryFile("w+")
        d = server("kv_consumer", *flags, stderr=log)
        alone = post(d, body)[1]  # then again after it was forgotten
        status, answer = post(d, {**body, "cache_salt": "x",
                                  "kv_transfer_params": prefill(source, {**body, "cache_salt": "x"})})
        assert status == 200 and said(answer) == said(alone), (cause, answer)
        assert moved(d)[0] == 0 and moved(d)[1] > 0, cause
        log.seek(0)
        assert f" {cause}: " in log.read(), cause
        d.stop()
    d = server("kv_consumer", "--pool-secret-file", secret)
    body = body_of(450)
    status, answer = handed_over(with_secret, d, body)
    assert status == 200 and said(answer) == said(one.post("/v1/completions", body))
    assert moved(d)[0] > 0
    for s in (with_secret, d):
        s.stop()


def check_cancels(p, d, n, n_word=250):
    def leave(seed):
        body = body_of(seed, n_word, max_tokens=400)
        params = prefill(p, body)
        connection = d.connect()
        connection.request("POST", "/v1/completions",
                           json.dumps({**body, "kv_transfer_params": params}))
        time.sleep(random.Random(seed).random() * 0.1)
        connection.close()

    threads = [threading.Thread(target=lambda k=k: [leave(1000 * n + 1000 * k + i) for i in range(n // 4)])
               for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(HANG_S)
    d.wait_idle()
    p.wait_idle()


def memory_of(s):
    with open(f"/proc/{s.process.pid}/statm") as f:
        return int(f.read().split()[1]) * 4096


class Slow:
    """Pages take their time: a relay sends each piece of one a while after it has come."""

    def __init__(self):
        self.n_piece = 0
        self.lock = threading.Lock()

    def __call__(self, n, piece):
        if len(piece) < 4096:
            return  # no page's
        with self.lock:
            self.n_piece += 1
        time.sleep(0.002)


def leave_while_pages_come(p, d, port, slow, n, r):
    """Both servers are asked at once, and the client of the second one is gone before its answer: while
    pages are not there yet, while they come, behind them. Returns how many had begun to come."""
    n_begun = 0
    for _ in range(n):
        # Prompts that p has and d, whose cache holds few, has not: only pages are waited for.
        body = body_of(900 + r.randrange(40), 200, max_tokens=400)
        key = f"left-{r.random()}"
        before = slow.n_piece
        first, second = p.connect(), d.connect()
        second.request("POST", "/v1/completions", json.dumps({**body, "kv_transfer_params": {
            "do_remote_prefill": True, "do_remote_decode": False, "transfer_id": key,
            "remote_host": "127.0.0.1", "remote_port": port}}))
        first.request("POST", "/v1/completions", json.dumps({
            **body, "max_tokens": 1, "kv_transfer_params": {
                "do_remote_decode": True, "do_remote_prefill": False, "transfer_id": key}}))
        time.sleep(r.random() * 0.1)
        n_begun += slow.n_piece > before
        second.close()
        assert first.getresponse().status == 200
        first.close()
    return n_begun


def check_many_cancels(n):
    """What is held for a request is given up with it: memory, pages, connections."""
    small = ("--max-model-len", "1024", "--kv-cache-memory-bytes", "24M", "--kv-offload-ram", "24M")
    p, d = server("kv_producer"), server("kv_consumer", *small)
    slows = [Slow() for _ in range(4)]
    # the relay has no more than addresses of UCX
    ports = [pages_port(p) if TRANSPORT else Relay(pages_port(p), slow).port for slow in slows]
    n_begun = [0] * 4

    def leave(k, n_each):
        n_begun[k] = leave_while_pages_come(p, d, ports[k], slows[k], n_each,
                                            random.Random(100 * n_each + k))

    def leave_all(n_each):
        threads = [threading.Thread(target=leave, args=(k, n_each)) for k in range(4)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()  # the test's time limit is that of a hang
        d.wait_idle()
        p.wait_idle()

    for seed in range(40):
        assert post(p, body_of(900 + seed, 200, max_tokens=1))[0] == 200
    leave_all(25)
    files = [len(os.listdir(f"/proc/{s.process.pid}/fd")) for s in (p, d)]
    memory = [memory_of(s) for s in (p, d)]
    came = moved(d)[0]
    leave_all(n // 4)
    # what of the caches is touched yet, p's records above all; a page lost with each request were
    # 660 MB more
    for s, n_file, n_byte, limit in zip((p, d), files, memory, (512 << 20, 256 << 20)):
        assert len(os.listdir(f"/proc/{s.process.pid}/fd")) <= n_file + 8
        assert memory_of(s) < n_byte + limit, (memory_of(s), n_byte)
    came = moved(d)[0] - came
    assert came > n / 10 and (TRANSPORT or sum(n_begun) > n / 10), (came, n_begun)
    seen = "" if TRANSPORT else f", {sum(n_begun)} behind the first bytes of a page"
    print(f"{n} requests have left{seen}; {came:.0f} pages handed over, memory grown by "
          + ", ".join(f"{(memory_of(s) - b) / 1e6:.1f} MB" for s, b in zip((p, d), memory)))
    # the answers are still one server's
    one = server()
    for seed in range(900, 904):
        status, answer = handed_over(p, d, body_of(seed, 200))
        assert status == 200 and said(answer) == said(one.post("/v1/completions", body_of(seed, 200)))
    for s in (one, p, d):
        assert s.stop() == 0


def check_faults():
    one, p, d = server(), server("kv_producer"), server("kv_consumer")
    strict = server("kv_consumer", config={"kv_load_failure_policy": "fail"})
    check_relays(one, p, d)
    check_hostile(p)
    check_query(p)
    check_cancels(p, d, 40)
    body = body_of(500)
    status, answer = handed_over(p, d, body)
    assert status == 200 and said(answer) == said(one.post("/v1/completions", body))
    assert post(strict, {**body, "kv_transfer_params": prefill(p, body)})[0] == 200
    # the one that prefills stands still, then it is gone
    stopped, killed = body_of(501), body_of(502)
    params = [prefill(p, stopped), prefill(p, killed)]
    p.process.send_signal(signal.SIGSTOP)
    for s in (d, strict):
        status, answer = post(s, {**stopped, "kv_transfer_params": params[0]})
        if s is strict:
            assert status == 503 and answer["error"]["code"] == "pages_lost", answer
        else:
            assert status == 200 and said(answer) == said(one.post("/v1/completions", stopped))
    p.process.send_signal(signal.SIGCONT)
    p.kill()
    for s in (d, strict):
        status, answer = post(s, {**killed, "kv_transfer_params": params[1]})
        if s is strict:
            assert status == 503 and "127.0.0.1" in answer["error"]["message"], answer
        else:
            assert status == 200 and said(answer) == said(one.post("/v1/completions", killed))
    strict.stop()
    # the one that decodes is killed while pages are on their way to it
    p = server("kv_producer")
    threads = [threading.Thread(target=lambda k=k: kill_reader(p, d, 600 + k)) for k in range(4)]
    for t in threads:
        t.start()
    time.sleep(0.3)
    d.kill()
    for t in threads:
        t.join(HANG_S)
    p.wait_idle()
    d = server("kv_consumer")
    status, answer = handed_over(p, d, body_of(503))
    assert status == 200 and said(answer) == said(one.post("/v1/completions", body_of(503)))
    assert moved(d)[0] > 0
    for s in (one, p, d):
        assert s.stop() == 0


def check_strange():
    one, p = server(), server("kv_producer")
    with tempfile.TemporaryDirectory() as folder:
        paths = []
        for name in ("a", "b"):
            paths.append(os.path.join(folder, name))
            with open(paths[-1], "w", encoding="utf-8") as f:
                f.write(name * 32)
            os.chmod(paths[-1], 0o600)
        check_strangers(one, p, *paths)
    for s in (one, p):
        assert s.stop() == 0


def kill_reader(p, d, seed):
    try:
        handed_over(p, d, body_of(seed, 250))
    except (OSError, AssertionError, ValueError, http.client.HTTPException):
        pass  # it is killed under us


def check_router():
    """The router asks one server for the prompt and another one for the answer."""
    one, d = server(), server("kv_consumer")
    ps = [server("kv_producer"), server("kv_producer")]
    router = Router([d], "--prefill", *[p.url for p in ps], "--decode")
    atexit.register(router.kill)
    router.wait_up(3)
    text = text_of(700, 400)
    requests = [
        ("/v1/completions", {**body_of(701, 400), "stream": True}),
        ("/v1/completions", body_of(702, 400)),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": text}], "max_tokens": 9,
                                  "max_completion_tokens": 9, "n": 2, "temperature": 1.0,
                                  "seed": 4, "stream": True,
                                  "stream_options": {"include_usage": True}}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "x " + text}], "max_tokens": 9,
                          "temperature": 0}),
        ("/v1/responses", {"input": "y " + text, "max_output_tokens": 9, "temperature": 0}),
    ]

    def plain(answer):
        answer = re.sub(r'"(id|item_id|response_id|created|created_at|completed_at)":("[^"]*"|\d+)',
                        r'"\1":0', answer)
        answer = re.sub(r'"cached_tokens":\d+|"cache_read_input_tokens":\d+', '"cached":0', answer)
        answer = re.sub(r'"input_tokens":\d+', '"input_tokens":0', answer)
        events = [e for e in answer.split("\n\n") if e and not e.startswith((":", "event: ping"))]
        return sorted(events)  # those of two choices come in any order

    def ask(to, path, body):
        connection = to.connect()
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        assert answer.status == 200, text
        return plain(text)

    n = 0
    for path, body in requests:
        assert ask(router, path, body) == ask(one, path, body), (path, body)
        assert moved(d)[0] > n, path
        n = moved(d)[0]
    wait_until(lambda: sum(total(p, "fathom_kv_pages_sent_total") for p in ps) >= n)
    check_router_overlap(one, ps, d, router)
    # what is there already, and what is short, is computed by nobody else
    prefills = [total(p, "fathom_kv_pages_sent_total") for p in ps]
    ask(router, *requests[1])
    ask(router, "/v1/completions", body_of(703, 20))
    assert [total(p, "fathom_kv_pages_sent_total") for p in ps] == prefills
    # without servers that prefill the others do all
    for p in ps:
        p.kill()
    for seed in range(710, 716):
        body = body_of(seed, 400)
        assert ask(router, "/v1/completions", body) == ask(one, "/v1/completions", body)
    for s in (router, d, one):
        assert s.stop() == 0


def check_router_overlap(one, ps, d, router):
    """The server that answers has a request while the other one computes the prompt, and is not left
    waiting when that one is lost."""
    def started():
        return d.health()["running"] + d.health()["waiting"] >= 1

    for seed in (720, 721):
        body, answers = body_of(seed, 400), []
        d.wait_idle()
        for p in ps:
            p.process.send_signal(signal.SIGSTOP)
        asked = threading.Thread(target=lambda b=body: answers.append(
            post(router, b, "/v1/completions")))
        asked.start()
        wait_until(started)
        load = d.connect()
        load.request("GET", "/load")
        assert json.loads(load.getresponse().read())["waiting_tokens"] <= 64  # the rest comes
        load.close()
        if seed == 721:
            ps[0].kill()
            ps[0] = server("kv_producer")
            assert post(router, {"url": ps[0].url, "type": "prefill"}, "/instances/add")[0] == 200
        for p in ps:
            p.process.send_signal(signal.SIGCONT)
        asked.join(HANG_S)
        status, answer = answers[0]
        assert status == 200 and said(answer) == said(one.post("/v1/completions", body))


def lend(p, body):
    """Status, Retry-After and error code of a request whose pages another server will ask for."""
    connection = p.connect()
    connection.request("POST", "/v1/completions", json.dumps(
        {**body, "max_tokens": 1, "kv_transfer_params": {"do_remote_decode": True}}))
    answer = connection.getresponse()
    text = json.loads(answer.read())
    connection.close()
    return answer.status, answer.getheader("Retry-After"), text.get("error", {}).get("code")


def check_full():
    """What is promised to others and not taken yet bounds what a server prefills for them."""
    one, d = server(), server("kv_consumer")
    lasting = {"kv_connector_extra_config": {"kv_lease_duration": 3600}}
    full, other = (server("kv_producer", "--kv-offload-ram", "12M", config=lasting)
                   for _ in range(2))
    held, params = [body_of(730 + i, 200) for i in range(4)], []
    n_held = 0
    while n_held < 9:  # of its 18
        params.append(prefill(full, held[len(params)]))
        n_held += len(params[-1]["remote_block_ids"])
        wait_until(lambda: total(full, "fathom_kv_tier_uncopied_pages") == 0)
    assert n_held < 18 and len(params) < 4, params  # else the test shows nothing
    wait_until(lambda: lend(full, held[3])[0] == 429)  # once they are whole in memory
    status, after, code = lend(full, held[3])
    assert (status, code) == (429, "server_busy") and int(after) >= 1, (status, after, code)
    assert post(full, held[3])[0] == 200  # nobody else will ask for its pages
    refused = [n for name, n in full.metrics().items()
               if name.startswith("fathom_requests_refused_total{") and '"pages_lent"' in name]
    assert len(refused) == 1 and refused[0] >= 2, refused
    # a router takes another server for prompts, and without one the server that answers
    router = Router([d], "--policy", "consistent_hash", "--prefill", full.url, other.url, "--decode")
    atexit.register(router.kill)
    router.wait_up(3)
    for seed in range(740, 752):
        body = body_of(seed, 200)
        n_asked = router.instances()[other.url]["requests"]
        status, answer = post(router, body)
        assert status == 200 and said(answer) == said(one.post("/v1/completions", body))
        if router.instances()[full.url]["refused"]:
            break
    assert router.instances()[full.url]["refused"]
    assert router.instances()[other.url]["requests"] == n_asked + 1
    assert post(router, {"url": other.url}, "/instances/remove")[0] == 200
    wait_until(lambda: other.url not in router.instances())
    n_refused = router.instances()[full.url]["refused"]
    body = body_of(760, 200)
    status, answer = post(router, body)
    assert status == 200 and said(answer) == said(one.post("/v1/completions", body))
    assert router.instances()[full.url]["refused"] == n_refused + 1
    assert router.instances()[full.url]["breaker"] == "closed"
    # once they are taken there is room
    for body, given in zip(held, params):
        status, answer = post(d, {**body, "kv_transfer_params": given})
        assert status == 200 and said(answer) == said(one.post("/v1/completions", body))
    wait_until(lambda: lend(full, body_of(761, 200))[0] == 200)
    for s in (router, one, d, full, other):
        assert s.stop() == 0


def check_peers():
    """Servers of one pool have each other's prompts."""
    one, a = server(), server("kv_both")
    b = server("kv_both", "--kv-peers", f"127.0.0.1:{pages_port(a)}", "127.0.0.1:1")
    body = body_of(800, 300)
    expected = said(one.post("/v1/completions", body))
    assert said(a.post("/v1/completions", body)) == expected
    wait_until(lambda: total(a, "fathom_kv_tier_uncopied_pages") == 0)
    before = time.monotonic()
    answer = b.post("/v1/completions", body)
    assert said(answer) == expected and moved(b)[0] >= 4, (moved(b), time.monotonic() - before)
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] >= 256, answer["usage"]
    a.kill()
    body = body_of(801, 300)
    assert said(b.post("/v1/completions", body)) == said(one.post("/v1/completions", body))
    for s in (one, b):
        assert s.stop() == 0


def check_kill(n):
    """The server that prefills is killed and started anew while n requests come."""
    one, d = server(), server("kv_consumer")
    now = [server("kv_producer")]
    expected = {seed: said(one.post("/v1/completions", body_of(seed))) for seed in range(20)}
    wrong, done, left = [], [0], list(range(n))

    def work():
        while left:
            i = left.pop()
            body = body_of(i % 20, cache_salt=str(i))  # nobody has its pages yet
            try:
                body["kv_transfer_params"] = prefill(now[0], {**body})
            except (OSError, http.client.HTTPException):
                pass  # it is killed: the other one computes
            status, answer = post(d, body)
            if status != 200 or said(answer) != expected[i % 20]:
                wrong.append((i, status, answer))
            done[0] += 1

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    n_kill = 0
    while any(t.is_alive() for t in threads):
        n_pulled, end = moved(d)[0], time.monotonic() + 20
        while moved(d)[0] == n_pulled and time.monotonic() < end and threads[0].is_alive():
            time.sleep(0.02)  # else a busy machine kills each before it has given a page
        time.sleep(random.random() * 0.5)
        now[0].kill()
        n_kill += 1
        now[0] = server("kv_producer")
    for t in threads:
        t.join()
    assert not wrong and done[0] == n, wrong[:1]
    assert moved(d)[0] > 0 and n_kill > 0
    print(f"{n} requests, {n_kill} kills, {moved(d)[0]:.0f} pages handed over, all texts whole")
    for s in (one, d):
        assert s.stop() == 0


def tell_hand_over(n):
    """How long the first token of 46 whole pages takes: alone, from the cache, and by pages of another
    server. The cache holds three of these prompts; the first four requests come into memory that the
    system has yet to provide, and are told apart."""
    long = ("--max-model-len", "3200", "--kv-cache-memory-bytes", "100M")
    one, p, d = server(None, *long), server("kv_producer", *long), server("kv_consumer", *long)
    times = {"computed": [], "cached": [], "handed over": [], "asked and told": []}
    for i in range(n + 4):
        body = {"prompt": [300 + (7 * k + i) % 900 for k in range(46 * 64 + 16)],
                "max_tokens": 1, "temperature": 0}
        body["prompt"][0] = 1000 + i
        start = time.monotonic()
        post(one, body)
        times["computed"].append(time.monotonic() - start)
        start = time.monotonic()
        post(one, body)
        times["cached"].append(time.monotonic() - start)
        start = time.monotonic()
        params = prefill(p, body)
        middle = time.monotonic()
        assert post(d, {**body, "kv_transfer_params": params})[0] == 200
        times["handed over"].append(time.monotonic() - middle)
        times["asked and told"].append(time.monotonic() - start)
    n_pulled, n_lost = moved(d)
    for name, list_of in times.items():
        first, rest = sorted(list_of[:4]), sorted(list_of[4:])
        print(f"{name}: median {1000 * rest[len(rest) // 2]:.1f} ms, least {1000 * rest[0]:.1f}, "
              f"into new memory {1000 * first[2]:.1f}")
    print(f"{n_pulled / (n + 4):.0f} pages each, {n_lost:.0f} lost")


def tell_pool(n):
    """How long the first token of a repeated prompt of 3,000 tokens takes, by where its pages are. The
    cache holds two of these prompts, so that each has left it before it is asked for again."""
    def start(*flags):
        return Server("--threads", "1", "--max-model-len", "3200", "--kv-cache-memory-bytes", "70M",
                      "--max-num-batched-tokens", "512", *flags)

    def tell(name, s):
        times = []
        for i in range(n):
            ids = [1000 + i] + [300 + (7 * k + i) % 900 for k in range(1, 3000)]
            begin = time.monotonic()
            status, answer = post(s, {"prompt": ids, "max_tokens": 1, "temperature": 0})
            times.append(1000 * (time.monotonic() - begin))
            assert status == 200, answer
            details = answer["usage"].get("prompt_tokens_details") or {"cached_tokens": 0}
            assert (details["cached_tokens"] >= 2944) == (name != "computed"), (name, answer)
        wait_until(lambda: total(s, "fathom_kv_tier_uncopied_pages") == 0)
        times.sort()
        print(f"{name}: median {times[n // 2]:.0f} ms, least {times[0]:.0f}", flush=True)

    gives = ("--kv-transfer-config", '{"kv_role": "kv_both", "kv_port": 0}', *TRANSPORT,
             "--kv-offload-ram", "1G")
    a = start(*gives)
    tell("computed", a)
    tell("memory", a)
    gives = (*gives[:-1], "64M")  # memory that has been used before is pulled into
    b = start(*gives, "--kv-peers", f"127.0.0.1:{pages_port(a)}")
    tell("a peer", b)
    a.stop()
    b.stop()
    with tempfile.TemporaryDirectory() as folder:
        flags = ("--kv-offload-ram", "64M", "--kv-offload-dir", folder, "--kv-offload-dir-size", "1G")
        s = start(*flags)
        tell("computed", s)
        s.stop()
        s = start(*flags)
        tell("disk", s)
        s.stop()


def need_ucx(program):
    args = ("bench", "transfer", "--kv-transport", "ucx", "--lanes", "1", "--seconds", "0.01")
    done = subprocess.run([program, *args], capture_output=True, text=True, timeout=HANG_S)
    if done.returncode != 0:
        print("skipped:", done.stderr.strip())
        sys.exit(77)


if __name__ == "__main__":
    if "--ucx" in sys.argv:
        sys.argv.remove("--ucx")
        need_ucx(sys.argv[-1])
        TRANSPORT.extend(("--kv-transport", "ucx"))
    part = sys.argv.pop(1)
    number = int(sys.argv.pop(1)) if len(sys.argv) > 2 and sys.argv[1].isdigit() else 15
    take_program(sys.argv)
    if part == "time":
        tell_hand_over(number)
    elif part == "pool":
        tell_pool(number)
    elif part == "kill":
        check_kill(number)
    elif part == "cancels":
        check_many_cancels(number)
    else:
        {"pair": check_pair, "faults": check_faults, "strangers": check_strange,
         "full": check_full, "router": check_router, "peers": check_peers}[part]()
