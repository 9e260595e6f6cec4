#!/usr/bin/env python3
"""test_pd_faults - what goes wrong between a server that prefills and one that decodes

    test_pd_faults.py [--ucx] faults|release|unwanted|kill|cancels [N] PROGRAM

faults: killed and stopped servers, damage on the way, hostile clients, requests that leave.
release: requests that leave before their pages have come tell the server that has them.
unwanted: prompts whose readers have left are not computed, or not to their ends.
kill: N requests while the server that prefills is killed and started anew.
cancels: N requests that leave while pages are on their way; both servers are as before.
--ucx: pages go by UCX; skips where it is not.
"""

import http.client
import json
import os
import random
import re
import signal
import socket
import struct
import threading
import time

from pd_servers import (TRANSPORT, body_of, carry, handed_over, lend, lend_half, moved, n_computed,
                        pages_port, post, prefill, said, server, take_part, text_of, tight_server, total)
from served import HANG_S, wait_until


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
            threading.Thread(target=carry, args=(near, far, None), daemon=True).start()
            threading.Thread(target=carry, args=(far, near, self.change), daemon=True).start()


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


def kill_reader(p, d, seed):
    try:
        handed_over(p, d, body_of(seed, 250))
    except (OSError, AssertionError, ValueError, http.client.HTTPException):
        pass  # it is killed under us


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


def ask_and_stay(s, body):
    connection = s.connect()
    connection.request("POST", "/v1/completions", json.dumps(body))
    return connection


def ask_all(s, bodies):
    """The requests, once the server has them all: what leaves before that is nobody's yet."""
    n_before = total(s, "vllm:request_params_n_count")
    connections = [ask_and_stay(s, body) for body in bodies]
    wait_until(lambda: total(s, "vllm:request_params_n_count") >= n_before + len(bodies))
    return connections


def check_released(p, n_page):
    """Their leases last for an hour: it takes prompts again because it was told."""
    wait_until(lambda: total(p, "fathom_kv_pages_released_total") >= n_page)
    wait_until(lambda: lend(p, body_of(790, 20))[0] == 200)


def check_release():
    """Who leaves before its pages have come tells the server that keeps them."""
    one, p, d = server(), tight_server(), server("kv_consumer", "--max-num-seqs", "1")
    # while they wait: one answer at a time, and others are before them
    bodies, params = lend_half(p)
    n_page = sum(len(given["remote_block_ids"]) for given in params)
    others = ask_all(d, [body_of(770 + i, 20, max_tokens=1900) for i in range(8)])
    leaving = ask_all(d, [{**body, "kv_transfer_params": given}
                          for body, given in zip(bodies, params)])
    p.process.send_signal(signal.SIGSTOP)  # it cannot be told at once
    for connection in leaving:
        connection.close()
    time.sleep(3)
    p.process.send_signal(signal.SIGCONT)
    check_released(p, n_page)
    assert moved(d) == (0, 0), moved(d)
    for connection in others:
        connection.close()
    d.wait_idle()
    # while they come: behind some bytes of the first page nothing more does
    if not TRANSPORT:  # the relay has no more than addresses of UCX
        stalled = threading.Event()

        def stall_and_tell(n, piece):
            if n > GREETED + PAGE + 100000:
                stalled.set()
            stall(n, piece)

        port = Relay(pages_port(p), stall_and_tell).port
        bodies, params = lend_half(p, 780)
        leaving = ask_all(d, [{**body, "kv_transfer_params": {**given, "remote_port": port}}
                              for body, given in zip(bodies, params)])
        assert stalled.wait(HANG_S)
        for connection in leaving:
            connection.close()
        check_released(p, n_page + 1)  # some of these are in the system's buffers: they were sent
    body = body_of(795, 200)
    status, answer = handed_over(p, d, body)
    assert status == 200 and said(answer) == said(one.post("/v1/completions", body))
    for s in (one, p, d):
        assert s.stop() == 0


def ask_both(p, d, name, path, body, length):
    """As a proxy that asks both at once, Mooncake's or SGLang's: the two connections."""
    connections = []
    for s, fields in ((p, {length: 1}), (d, {length: 400})):
        if isinstance(name, int):
            transfer = {"bootstrap_host": "127.0.0.1", "bootstrap_port": pages_port(p),
                        "bootstrap_room": name}
            fields = {length: 400}  # the same for both
        else:
            transfer = {"kv_transfer_params": {
                "do_remote_decode": s is p, "do_remote_prefill": s is d, "transfer_id": name,
                **({"remote_bootstrap_addr": f"127.0.0.1:{pages_port(p)}"} if s is d else {})}}
        connections.append(s.connect())
        connections[-1].request("POST", path, json.dumps({**body, **fields, **transfer}),
                                {"Content-Type": "application/json"})
    return connections


def tokens_of(connection):
    """Of the answer to a request of any API."""
    answer = connection.getresponse()
    text = answer.read()
    assert answer.status == 200, text
    usage = json.loads(text)["usage"]
    return usage.get("completion_tokens", usage.get("output_tokens"))


def n_live(s):
    health = s.health()
    return health["running"] + health["waiting"]


def check_unwanted_waiting(one, p, d):
    """Those behind many others, in each API: they end while these go on."""
    others = [ask_and_stay(p, body_of(2000 + i, 20, max_tokens=1900)) for i in range(40)]
    wait_until(lambda: p.health()["running"] == 1 and n_live(p) == 40)
    text = text_of(810, 200)
    chat = {"messages": [{"role": "user", "content": text}]}
    plain = ask_and_stay(p, {"prompt": text, "max_tokens": 1})  # the same prompt, of nobody else
    wait_until(lambda: n_live(p) == 41)
    before = n_computed(p)
    for name, path, body, length in (
            ("a", "/v1/completions", {"prompt": text}, "max_tokens"),
            (7, "/v1/completions", {"prompt": text}, "max_tokens"),
            ("b", "/v1/completions", {"prompt": text, "n": 2}, "max_tokens"),
            ("c", "/v1/chat/completions", chat, "max_tokens"),
            ("d", "/v1/messages", chat, "max_tokens"),
            ("e", "/v1/responses", {"input": text}, "max_output_tokens")):
        n = n_live(p)
        first, second = ask_both(p, d, name, path, body, length)
        again = ask_both(p, d, name + 1 if name == 7 else name + "x", path, body, length)
        n_choice = body.get("n", 1)
        wait_until(lambda n=n, k=n_choice: n_live(p) == n + 2 * k and n_live(d) == 2 * k)
        second.close()
        assert tokens_of(first) == 0, name
        wait_until(lambda n=n, k=n_choice: n_live(p) == n + k and n_live(d) == k)
        for connection in again:  # it was another one's
            connection.close()
        wait_until(lambda n=n: n_live(p) == n and n_live(d) == 0)
    # two with one prompt: who stays has all of its pages
    body = body_of(811, 200)
    first, second = ask_both(p, d, "f", "/v1/completions", body, "max_tokens")
    left, stays = ask_both(p, d, "g", "/v1/completions", body, "max_tokens")
    wait_until(lambda: n_live(d) == 2 and n_live(p) == 43)
    second.close()
    assert tokens_of(first) == 0
    after = n_computed(p)
    assert after - before <= 40 * 40, (before, after)  # of the others alone
    for connection in others:
        connection.close()
    assert tokens_of(plain) == 1 and tokens_of(left) == 1
    answer = json.loads(stays.getresponse().read())
    assert said(answer) == said(one.post("/v1/completions", {**body, "max_tokens": 400}))
    assert moved(d)[0] >= 3 and moved(d)[1] == 0, moved(d)


def check_unwanted_running(p, d):
    """One that is being computed, by several steps; true: the test came in time."""
    for seed in range(820, 830):
        before = n_computed(p)
        body = body_of(seed, 750)
        first, second = ask_both(p, d, f"name {seed}", "/v1/completions", body, "max_tokens")
        wait_until(lambda b=before: n_computed(p) > b)
        p.process.send_signal(signal.SIGSTOP)  # so that it does not go on meanwhile
        wait_until(lambda: n_live(d) == 1)
        second.close()
        wait_until(lambda: n_live(d) == 0)
        p.process.send_signal(signal.SIGCONT)
        answer = first.getresponse()
        usage = json.loads(answer.read())["usage"]
        assert answer.status == 200
        if usage["completion_tokens"] == 0:
            p.wait_idle()
            assert n_computed(p) - before < usage["prompt_tokens"], usage
            return True
    return False


def check_unwanted():
    one = server()
    p, d = server("kv_producer", "--max-num-seqs", "1"), server("kv_consumer")
    check_unwanted_waiting(one, p, d)
    assert check_unwanted_running(p, d)
    for s in (one, p, d):
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
        end = time.monotonic() + r.choice((0, 0 if TRANSPORT else 2))
        while slow.n_piece == before and time.monotonic() < end:
            time.sleep(0.005)  # else a busy machine has none begin before they leave
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


if __name__ == "__main__":
    take_part({"faults": check_faults, "release": check_release,
               "unwanted": check_unwanted, "kill": check_kill,
               "cancels": check_many_cancels})
