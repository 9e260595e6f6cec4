#!/usr/bin/env python3
"""test_hosts_tiers - processes as hosts on loopback, whose pages are kept outside of the cache

    test_hosts_tiers.py [--storm] sums|lanes|lanes_ranks|stages|stages_three PROGRAM
    test_hosts_tiers.py gpu|gpu_sums PROGRAM

Answers are those of one process without tiers, log-probabilities too, whether pages come from memory, from the
directory after a restart, or from a server of one process that has computed the prompt. A host that is lost while
pages go to it takes no record with it; with --storm it is killed again and again.
gpu, gpu_sums: stages, and ranks that share layers, on GPUs that the program simulates.
"""

import itertools
import json
import math
import random
import shutil
import socket
import sys
import tempfile
import threading
import time

import test_hosts
from pd_servers import carry, moved, prefill, text_of, total
from served import Server, take_program, wait_until
from test_hosts import DRAFTS, LANES, RANKS, STAGES, Follower, free_port, n_page, of_hosts, ready

# Prompt 0 fills the cache, out of which the others drive it, and is more than the buffers of a connection hold.
FLAGS = ("--backend", "cpu", "--threads", "2", "--max-model-len", "2048", "--max-num-seqs", "2", "--kv-cache-dtype",
         "float32")
CACHE = "--kv-cache-memory-bytes"
N_WORDS, N_FOUND = (950, 500, 490), 512
PAGE_BYTES, N_KILL = 1400000, 6
LANES_OF_RANKS = ("-dp", "2", "-tp", "2", "--enable-expert-parallel")
TRANSFER = {"kv_connector": "NixlConnector", "kv_port": 0}


def transfer(role):
    return ("--kv-transfer-config", json.dumps({**TRANSFER, "kv_role": role}), "--kv-offload-ram", "128M")


class Way:
    """A port by which a host dials host 0. It holds few bytes, and ends after so many of them as are left."""

    def __init__(self, port):
        self.to, self.left, self.lock = port, math.inf, threading.Lock()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            near = self.listener.accept()[0]
            far = socket.socket()
            far.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
            try:
                far.connect(("127.0.0.1", self.to))
            except OSError:
                near.close()
                continue
            for a, b in ((near, far), (far, near)):
                a.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                threading.Thread(target=carry, args=(a, b, self.is_over), daemon=True).start()

    def leave(self, n):
        with self.lock:
            self.left = n

    def is_over(self, _, piece):
        with self.lock:
            self.left -= len(piece)
            return self.left < 0


class Hosts:
    """Host 0, a Server, and the others, of which the last comes by a way of its own; every second time with the
    flags `few` besides."""

    def __init__(self, *flags, n=2, few=()):
        port, turn = free_port(), itertools.count()
        self.way = Way(port)
        self.last = lambda: Follower(self.way.port, *flags, *(few if next(turn) % 2 else ()), rank=n - 1, n=n)
        self.others = [Follower(port, *flags, rank=i, n=n) for i in range(1, n - 1)] + [self.last()]
        self.first = Server(*flags, *of_hosts(port, 0, n))
        self.wait_ready()

    def kill_last(self):
        """And until another one has come in its place."""
        self.others[-1].kill()
        self.others[-1] = other = self.last()
        wait_until(lambda: "generation=" in other.text())
        self.wait_ready()

    def wait_ready(self):
        wait_until(lambda: ready(self.first)[0] == 200)

    def stop(self):
        assert self.first.stop() == 0
        for other in self.others:
            wait_until(lambda o=other: "host 0 has ended" in o.text())
            other.kill()


def body_of(i):
    return {"prompt": text_of(i, N_WORDS[i]), "max_tokens": 8, "temperature": i % 2, "seed": i, "ignore_eos": True,
            "logprobs": 2}


def post(server, body, lane):
    connection = server.connect()
    headers = {} if lane is None else {"X-data-parallel-rank": str(lane)}
    connection.request("POST", "/v1/completions", json.dumps(body), headers)
    answer = connection.getresponse()
    status, text = answer.status, json.loads(answer.read())
    connection.close()
    return status, text


def ask(server, i, lane=None, **more):
    """The answer, and how many of its prompt's tokens were found."""
    status, answer = post(server, {**body_of(i), **more}, lane)
    assert status == 200, answer
    choice, details = answer["choices"][0], answer["usage"].get("prompt_tokens_details") or {}
    return (choice["text"], choice["logprobs"]), details.get("cached_tokens", 0)


class Case:
    """One cut over hosts, and the same in one process."""

    def __init__(self, cut, alone, *more, n=2, n_lane=1, cache="50M"):
        self.flags, self.n, self.n_lane, self.cache = (*FLAGS, *cut, *more, CACHE, cache), n, n_lane, cache
        self.server = Server(*FLAGS, CACHE, "50M", *alone, *more, *transfer("kv_producer"))
        self.want = [ask(self.server, i)[0] for i in range(len(N_WORDS))]

    def lane(self, i, turn):
        return (i + turn) % self.n_lane if self.n_lane > 1 else None

    def check_found(self, server, turn):
        """With `turn` no lane has what is asked of it."""
        for i, want in enumerate(self.want):
            got, n_found = ask(server, i, self.lane(i, turn))
            assert got == want, (i, got, want)
            assert n_found > N_FOUND, (i, n_found)

    def check_made(self, server):
        """All but the last prompt are computed on the hosts, the last one in the one process."""
        last = len(self.want) - 1
        for i, want in enumerate(self.want):
            params = {"kv_transfer_params": prefill(self.server, body_of(i))} if i == last else {}
            got, n_found = ask(server, i, self.lane(i, 0), **params)
            assert got == want and (n_found > N_FOUND) == (i == last), (i, got, want, n_found)
        n_pulled, n_lost = moved(server)
        assert n_pulled > 0 and n_lost == 0, (n_pulled, n_lost)

    def check_lost(self, hosts):
        """The last host is lost in the fourth page that goes to it; what host 0 has in memory is found again."""
        hosts.way.leave(7 * PAGE_BYTES // 2)
        status, answer = post(hosts.first, body_of(0), self.lane(0, 1))
        assert status == 503 and "is lost: " in json.dumps(answer), (status, answer)
        hosts.way.leave(math.inf)
        hosts.wait_ready()
        self.check_found(hosts.first, 1)

    def check_storm(self):
        """Requests from all sides, and the last host is killed again and again: an answer that comes is right. It
        comes back with fewer pages, and with as many as host 0."""
        self.server.stop()
        more = (CACHE, f"{int(self.cache[:-1]) * 3 // 2}M")
        hosts = Hosts(*self.flags, *more, "--kv-offload-ram", "128M", n=self.n, few=(CACHE, self.cache))
        pages = [n_page(hosts.first)]
        wrong, n_answer, stops = [], [0], threading.Event()

        def load(seed):
            draw = random.Random(seed)
            while not stops.is_set():
                i = draw.randrange(len(self.want))
                status, answer = post(hosts.first, body_of(i), self.lane(i, draw.randrange(2)))
                if status == 200:
                    choice = answer["choices"][0]
                    n_answer[0] += 1
                    if (choice["text"], choice["logprobs"]) != self.want[i]:
                        wrong.append((i, choice))
                elif status == 503:
                    time.sleep(0.05)
                else:
                    wrong.append((status, answer))

        threads = [threading.Thread(target=load, args=(seed,)) for seed in range(3)]
        for t in threads:
            t.start()
        for kill in range(N_KILL):
            before = n_answer[0]
            wait_until(lambda: n_answer[0] > before + 3 or wrong)
            time.sleep(random.Random(kill).uniform(0, 1))
            hosts.kill_last()
            pages.append(n_page(hosts.first))
        stops.set()
        for t in threads:
            t.join()
        assert not wrong, wrong[0]
        assert pages[1] < pages[0] and pages == (pages[:2] * N_KILL)[:N_KILL + 1], pages
        hosts.stop()

    def check(self):
        pages = tempfile.mkdtemp(prefix="fathom-hosts-")
        kept = ("--kv-offload-dir", pages, "--kv-offload-dir-size", "128M")
        try:
            hosts = Hosts(*self.flags, *kept, *transfer("kv_both"), n=self.n)
            self.check_made(hosts.first)
            self.server.stop()
            self.check_found(hosts.first, 1)
            hosts.stop()
            hosts = Hosts(*self.flags, *kept, n=self.n)
            self.check_found(hosts.first, 0)
            self.check_lost(hosts)
            hosts.stop()
        finally:
            shutil.rmtree(pages)


def check_gpus(cut):
    """Of simulated GPUs: what is in memory when a host was lost and came back, and on disk after a restart."""
    test_hosts.simulate()
    body = {"prompt": text_of(1, 90), "max_tokens": 3, "temperature": 1, "seed": 1, "ignore_eos": True, "logprobs": 2}
    pages = tempfile.mkdtemp(prefix="fathom-hosts-")
    flags = (*test_hosts.FLAGS, *cut, "--kv-offload-ram", "32M", "--kv-offload-dir", pages, "--kv-offload-dir-size", "64M")
    try:
        hosts = Hosts(*flags)
        want, n_found = ask(hosts.first, 0, **body)
        assert n_found == 0
        wait_until(lambda: not total(hosts.first, "fathom_kv_tier_uncopied_pages"))
        hosts.kill_last()
        for again in range(2):
            got, n_found = ask(hosts.first, 0, **body)
            assert got == want and n_found >= 128, (again, got, want, n_found)
            hosts.stop()
            if not again:
                hosts = Hosts(*flags)
    finally:
        shutil.rmtree(pages)


CASES = {
    "sums": lambda: Case(RANKS, RANKS, *DRAFTS),
    "lanes": lambda: Case(LANES, LANES, n_lane=2),
    "lanes_ranks": lambda: Case(LANES_OF_RANKS, LANES_OF_RANKS, *DRAFTS, n_lane=2),
    "stages": lambda: Case(STAGES, RANKS, *DRAFTS, cache="29M"),
    "stages_three": lambda: Case(("-pp", "3"), (), n=3, cache="20M"),
}


def main():
    storms = "--storm" in sys.argv
    if storms:
        sys.argv.remove("--storm")
    part = sys.argv.pop(1)
    take_program(sys.argv)
    if part == "gpu":
        check_gpus(("-pp", "2"))
    elif part == "gpu_sums":
        check_gpus(RANKS)
    elif storms:
        CASES[part]().check_storm()
    else:
        CASES[part]().check()


if __name__ == "__main__":
    main()
