#!/usr/bin/env python3
"""test_pd - a server that prefills and one that decodes, with the pilot

    test_pd.py [--ucx] pair|full|strangers|router|peers PROGRAM

pair: both dialects, 32 requests at once: every answer is one server's, and pages have moved.
full: a server whose memory is full of pages that nobody has taken yet.
strangers: other secrets, models, numerics and layouts.
router: fathom router with --prefill and --decode, in all four APIs.
peers: --kv-peers.
--ucx: pages go by UCX; skips where it is not.
"""

import atexit
import http.server
import json
import os
import re
import signal
import tempfile
import threading
import time

from pd_servers import (body_of, handed_over, lend, lend_half, moved, n_computed, n_from, pages_port,
                        post, prefill, said, server, take_part, text_of, tight_server, total)
from served import HANG_S, wait_until
from test_router import Router


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
    def are_quiet():
        before = [cpu_s(s) for s in (p, d)]
        time.sleep(2)
        return all(cpu_s(s) - b <= 0.05 for s, b in zip((p, d), before))

    for s in (p, d):
        s.wait_idle()
    wait_until(are_quiet)  # what they copy of their own comes to an end


def check_both_at_once(one, p, d):
    """A proxy asks both, and the first one has other prompts to compute before, for longer than a
    server that says nothing is waited for: its pages come all the same, for two answers at once."""
    n_other = 4
    for turn in range(1, 7):  # a machine may be faster or slower than it was
        took = ask_both_at_once(one, p, d, n_other, turn)
        if took > 2.5:
            return
        n_other = min(3 * n_other, 50)
    raise AssertionError(f"the test shows nothing in {took:.1f} s: give it more prompts")


def ask_both_at_once(one, p, d, n_other, turn):
    """Seconds that it took."""
    seed, key = 1000 * turn, f"xfer-2-{turn}"
    others = [threading.Thread(target=post, args=(p, body_of(seed + i, 600, max_tokens=1)))
              for i in range(n_other)]
    start = time.monotonic()
    for t in others:
        t.start()
    wait_until(lambda: p.health()["waiting"] + p.health()["running"] >= n_other or
               not all(t.is_alive() for t in others))
    body = body_of(seed + 500, 400, n=2)
    first = threading.Thread(target=post, args=(p, {**body, "n": 1, "max_tokens": 1, "kv_transfer_params": {
        "do_remote_decode": True, "do_remote_prefill": False, "transfer_id": key}}))
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
        "do_remote_decode": False, "do_remote_prefill": True, "transfer_id": key,
        "remote_bootstrap_addr": f"http://127.0.0.1:{pages_port(p)}"}})
    took = time.monotonic() - start
    over.set()
    for t in (*others, first, watcher):
        t.join(HANG_S)
    assert not sick, sick[0]
    texts = [[c["text"] for c in a["choices"]] for a in (answer, one.post("/v1/completions", body))]
    assert status == 200 and len(texts[0]) == 2 and texts[0] == texts[1], texts
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
    n_external = n_from(d, "external_kv_transfer")
    assert 64 <= n_external <= 64 * n_pulled and not n_from(p, "external_kv_transfer"), n_external
    looked = total(d, "vllm:external_prefix_cache_queries_total")
    assert total(d, "vllm:external_prefix_cache_hits_total") == n_external <= looked, looked
    wait_until(lambda: total(p, "fathom_kv_pages_sent_total") >= n_pulled)
    # a chat, and what the answer tells
    chat = {"messages": [{"role": "user", "content": text_of(99, 150)}], "max_tokens": 12,
            "temperature": 0, "reasoning_effort": "high", "thinking_token_budget": 3}
    path = "/v1/chat/completions"
    params = prefill(p, chat, path)
    assert params["do_remote_prefill"] is True and params["do_remote_decode"] is False
    assert params["remote_port"] == pages_port(p) and params["remote_host"] == "127.0.0.1"
    assert params["remote_engine_id"] and params["remote_block_ids"][:2] == [0, 1]
    status, answer = post(d, {**chat, "kv_transfer_params": params}, path)
    assert status == 200, answer
    assert answer["choices"] == one.post(path, chat)["choices"], answer
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] >= 128, answer["usage"]
    assert answer["usage"]["completion_tokens_details"]["reasoning_tokens"] == 4, answer["usage"]
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
    check_both_at_once(one, p, d)
    # a server of no exchange says so
    status, answer = post(one, {**body, "kv_transfer_params": ask_first})
    assert status == 400 and "kv_producer" in json.dumps(answer), answer
    for s in (one, p, d):
        assert s.stop() == 0


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
        # a prompt is worth one token to who computes it for another, whatever its answer is to be
        ("/v1/completions", {**body_of(704, 400), "max_completion_tokens": 9, "min_tokens": 9}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "z " + text}], "max_tokens": 9,
                          "min_tokens": 5, "temperature": 0}),
        ("/v1/responses", {"input": "v " + text, "max_output_tokens": 9, "min_tokens": 5, "temperature": 0,
                           "stream": True, "stream_options": {"include_obfuscation": False}}),
    ]
    stays = [{**body_of(705, 400), "truncate_prompt_tokens": -1},
             {**body_of(706, 400), "echo": True, "logprobs": 0}]

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
    assert sum(total(p, "vllm:generation_tokens_total") for p in ps) == len(requests)
    for body in stays:
        assert ask(router, "/v1/completions", body) == ask(one, "/v1/completions", body), body
    assert sum(total(p, "vllm:generation_tokens_total") for p in ps) == len(requests)
    assert moved(d) == (n, 0)
    check_router_overlap(one, ps, d, router)
    # what is there already, and what is short, is computed by nobody else
    prefills = [total(p, "fathom_kv_pages_sent_total") for p in ps]
    ask(router, *requests[1])
    ask(router, "/v1/completions", body_of(703, 20))
    assert [total(p, "fathom_kv_pages_sent_total") for p in ps] == prefills
    check_lost_pages(one)
    # without servers that prefill the others do all
    for p in ps:
        p.kill()
    for seed in range(710, 716):
        body = body_of(seed, 400)
        assert ask(router, "/v1/completions", body) == ask(one, "/v1/completions", body)
    for s in (router, d, one):
        assert s.stop() == 0


class LosesPages(http.server.BaseHTTPRequestHandler):
    """Computes every prompt, as it says, and is gone when its pages are asked for."""

    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.say({"accepts": True, "pages_host": "127.0.0.1", "pages_port": 1})

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.say({})

    def say(self, answer):
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def check_lost_pages(one):
    """Where pages are needed and lost behind the prompt's end, a router's clients get their answers all the same."""
    d = server("kv_consumer", config={"kv_load_failure_policy": "fail"})
    p = http.server.ThreadingHTTPServer(("127.0.0.1", 0), LosesPages)
    threading.Thread(target=p.serve_forever, daemon=True).start()
    router = Router([], "--prefill", f"http://127.0.0.1:{p.server_port}", "--decode", d.url)
    atexit.register(router.kill)
    router.wait_up(2)
    for i, stream in enumerate((False, True)):
        body = body_of(708 + i, 200, stream=stream)
        connection = router.connect()
        connection.request("POST", "/v1/completions", json.dumps(body))
        answer = connection.getresponse()
        text = answer.read().decode()
        assert answer.status == 200, text
        if not stream:
            assert said(json.loads(text)) == said(one.post("/v1/completions", body))
        connection.close()
    assert moved(d) == (0, 2)
    for s in (router, d):
        assert s.stop() == 0
    p.shutdown()


def waiting_tokens(server):
    connection = server.connect()
    connection.request("GET", "/load")
    load = json.loads(connection.getresponse().read())
    connection.close()
    return load["waiting_tokens"]


def check_router_overlap(one, ps, d, router):
    """The server that answers has a request while the other one computes the prompt, and is not left
    waiting when that one is lost."""
    def started():
        return d.health()["running"] + d.health()["waiting"] >= 1

    for seed in (720, 721):
        body, answers = body_of(seed, 400), []
        d.wait_idle()
        n_before = n_computed(d)
        for p in ps:
            p.process.send_signal(signal.SIGSTOP)
        asked = threading.Thread(target=lambda b=body: answers.append(
            post(router, b, "/v1/completions")))
        asked.start()
        wait_until(started)
        wait_until(lambda: waiting_tokens(d) <= 64)  # the rest comes
        assert n_computed(d) == n_before and not answers
        if seed == 721:
            ps[0].kill()
            ps[0] = server("kv_producer")
            assert post(router, {"url": ps[0].url, "type": "prefill"}, "/instances/add")[0] == 200
        for p in ps:
            p.process.send_signal(signal.SIGCONT)
        asked.join(HANG_S)
        status, answer = answers[0]
        assert status == 200 and said(answer) == said(one.post("/v1/completions", body))


def check_full():
    """What is promised to others and not taken yet bounds what a server prefills for them."""
    one, d = server(), server("kv_consumer")
    full, other = tight_server(), tight_server()
    held, params = lend_half(full)
    more = body_of(733, 200)
    status, after, code = lend(full, more)
    assert (status, code) == (429, "server_busy") and int(after) >= 1, (status, after, code)
    assert post(full, more)[0] == 200  # nobody else will ask for its pages
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
    wait_until(lambda: total(a, "fathom_kv_tier_stored_pages_total") >= 4)
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


if __name__ == "__main__":
    take_part({"pair": check_pair, "full": check_full, "strangers": check_strange,
               "router": check_router, "peers": check_peers})
