#!/usr/bin/env python3
"""test_hosts_tiers - processes as hosts on loopback, whose pages are kept outside of the cache

    test_hosts_tiers.py sums PROGRAM

Answers are those of one process without tiers, log-probabilities too, whether pages come from memory, from the
directory after a restart, or from a server of one process that has computed the prompt. A host that is lost while
pages go to it takes no record with it.
"""

import json
import shutil
import socket
import sys
import tempfile
import threading

from pd_servers import moved, post, prefill, text_of
from served import HANG_S, Server, take_program, wait_until
from test_hosts import DRAFTS, RANKS, Follower, free_port, of_hosts, ready

# Prompt 0 fills the cache, out of which the others drive it, and is more than the buffers of a connection hold.
FLAGS = ("--max-model-len", "2048", "--max-num-seqs", "2", "--kv-cache-dtype", "float32", "--kv-cache-memory-bytes",
         "50M")
N_WORDS, N_FOUND = (950, 500, 490), 512
PAGE_BYTES = 1400000
TRANSFER = {"kv_connector": "NixlConnector", "kv_port": 0}


def transfer(role):
    return ("--kv-transfer-config", json.dumps({**TRANSFER, "kv_role": role}), "--kv-offload-ram", "128M")


class Way:
    """A port by which a host dials host 0. It holds few bytes, and once `left` is set ends after so many of them."""

    def __init__(self, port):
        self.to, self.left = port, None
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
                threading.Thread(target=self.carry, args=(a, b), daemon=True).start()

    def carry(self, a, b):
        try:
            while piece := a.recv(1 << 16):
                if self.left is not None:
                    self.left -= len(piece)
                    if self.left < 0:
                        break
                b.sendall(piece)
        except OSError:
            pass
        for s in (a, b):
            try:
                s.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass


class Hosts:
    """Host 0, a Server, and the others, of which the last comes by a way of its own."""

    def __init__(self, cut, *flags, n=2):
        flags, port = (*FLAGS, *cut, *flags), free_port()
        self.way = Way(port)
        self.others = [Follower(port if i < n - 1 else self.way.port, *flags, rank=i, n=n) for i in range(1, n)]
        self.first = Server("--backend", "cpu", "--threads", "2", *flags, *of_hosts(port, 0, n))
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


def read(status, answer):
    """The answer, and how many of its prompt's tokens were found."""
    assert status == 200, answer
    choice, details = answer["choices"][0], answer["usage"].get("prompt_tokens_details") or {}
    return (choice["text"], choice["logprobs"]), details.get("cached_tokens", 0)


def ask(server, i):
    return read(*post(server, body_of(i)))


def check_found(server, want):
    for i, answer in enumerate(want):
        got, n_found = ask(server, i)
        assert got == answer, (i, got, answer)
        assert n_found > N_FOUND, (i, n_found)


def check_lost(hosts, want):
    """The last host is lost in the fourth page that goes to it; what host 0 has in memory is found again."""
    hosts.way.left = 7 * PAGE_BYTES // 2
    status, answer = post(hosts.first, body_of(0))
    assert status == 503 and "is lost: " in json.dumps(answer), (status, answer)
    hosts.way.left = None
    hosts.wait_ready()
    check_found(hosts.first, want)


def check_handed_over(first, second, want):
    """The second server answers with pages of the first."""
    for i, answer in enumerate(want):
        got, n_found = read(*post(second, {**body_of(i), "kv_transfer_params": prefill(first, body_of(i))}))
        assert got == answer and n_found > N_FOUND, (i, got, answer, n_found)
    n_pulled, n_lost = moved(second)
    assert n_pulled > 0 and n_lost == 0, (n_pulled, n_lost)


def check(cut, alone, *more, n=2):
    server = Server(*FLAGS, "--backend", "cpu", "--threads", "2", *alone, *more, *transfer("kv_producer"))
    want = [ask(server, i)[0] for i in range(len(N_WORDS))]
    pages = tempfile.mkdtemp(prefix="fathom-hosts-")
    kept = ("--kv-offload-dir", pages, "--kv-offload-dir-size", "128M")
    try:
        hosts = Hosts(cut, *more, *kept, *transfer("kv_both"), n=n)
        check_handed_over(server, hosts.first, want)
        server.stop()
        check_found(hosts.first, want)
        hosts.stop()
        hosts = Hosts(cut, *more, *kept, n=n)
        check_found(hosts.first, want)
        check_lost(hosts, want)
        hosts.stop()
    finally:
        shutil.rmtree(pages)


def sums():
    check(RANKS, RANKS, *DRAFTS)


def main():
    part = sys.argv.pop(1)
    take_program(sys.argv)
    {"sums": sums}[part]()


if __name__ == "__main__":
    main()
