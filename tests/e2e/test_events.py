#!/usr/bin/env python3
"""Events of the prefix cache, as a router subscribes to them: what it believes is what the server finds.

    tests/e2e/test_events.py [FLAGS] path/to/fathom

The subscriber is libzmq itself, called by ctypes; without it only refusals are tested.
"""

import collections
import ctypes
import http.client
import os
import random
import socket
import subprocess
import sys
import tempfile
import time
import unittest

from served import HANG_S, Server, take_program, wait_until

PAGE = 64
# Two requests have room in the cache: whatever comes third drives the first one out.
SMALL = ("--max-model-len", "512", "--max-num-seqs", "2", "--kv-cache-memory-bytes", "11M",
         "--seed", "1")
TWO_LANES = ("-dp", "2", "--enable-expert-parallel")
WORDS = "the quick brown fox jumps over a lazy dog while seven wizards count to ten".split()
SUB, DEALER = 2, 5
SUBSCRIBE, RCVMORE, LINGER, RCVHWM = 6, 13, 17, 24
DONTWAIT, SNDMORE = 1, 2

try:
    zmq = ctypes.CDLL("libzmq.so.5")
    for name in ("zmq_ctx_new", "zmq_socket"):
        getattr(zmq, name).restype = ctypes.c_void_p
    zmq.zmq_socket.argtypes = [ctypes.c_void_p, ctypes.c_int]
    zmq.zmq_connect.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
    zmq.zmq_close.argtypes = zmq.zmq_ctx_term.argtypes = [ctypes.c_void_p]
    zmq.zmq_setsockopt.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t]
    zmq.zmq_getsockopt.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p]
    zmq.zmq_send.argtypes = zmq.zmq_recv.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t,
                                                     ctypes.c_int]
except OSError:
    zmq = None
WITHOUT = "skipped: libzmq5 is not installed, so nobody can subscribe"


def decode(data, at=0):
    """A value of MessagePack, and where it ends; of what the format has what a batch may have."""
    first = data[at]
    if first < 0x80:
        return first, at + 1
    if 0x90 <= first < 0xA0 or first in (0xDC, 0xDD):
        n_byte = {0xDC: 2, 0xDD: 4}.get(first, 0)
        n = int.from_bytes(data[at + 1:at + 1 + n_byte], "big") if n_byte else first & 15
        at += 1 + n_byte
        values = []
        for _ in range(n):
            value, at = decode(data, at)
            values.append(value)
        return values, at
    if 0xA0 <= first < 0xC0:
        end = at + 1 + (first & 31)
        return data[at + 1:end].decode(), end
    if first == 0xC0:
        return None, at + 1
    if first == 0xCB:
        return ctypes.c_double.from_buffer_copy(data[at + 1:at + 9][::-1]).value, at + 9
    n_byte = {0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8}[first]
    return int.from_bytes(data[at + 1:at + 1 + n_byte], "big"), at + 1 + n_byte


class Socket:
    """A socket of libzmq; messages are lists of frames."""

    def __init__(self, context, kind, endpoint):
        self.handle = zmq.zmq_socket(context, kind)
        for option in (LINGER, RCVHWM):
            self.set(option, (0).to_bytes(4, "little"))
        if kind == SUB:
            self.set(SUBSCRIBE, b"kv@")
        if zmq.zmq_connect(self.handle, endpoint.encode()):
            raise AssertionError(endpoint)

    def set(self, option, value):
        if zmq.zmq_setsockopt(self.handle, option, value, len(value)):
            raise AssertionError(option)

    def send(self, *frames):
        for i, frame in enumerate(frames):
            zmq.zmq_send(self.handle, frame, len(frame), SNDMORE if i + 1 < len(frames) else 0)

    def take(self):
        """The next message; None when none is there."""
        frames, more = [], ctypes.c_int(1)
        while more.value:
            frame = ctypes.create_string_buffer(1 << 20)
            n = zmq.zmq_recv(self.handle, frame, len(frame), DONTWAIT)
            if n < 0:
                return None
            frames.append(frame.raw[:n])
            size = ctypes.c_size_t(ctypes.sizeof(more))
            zmq.zmq_getsockopt(self.handle, RCVMORE, ctypes.byref(more), ctypes.byref(size))
        return frames


class Picture:
    """What a subscriber believes of a lane. Blocks come after their parents, and are there before they go."""

    def __init__(self):
        self.tokens = {}  # of a block
        self.parents = {}
        self.children = collections.defaultdict(dict)  # of a block, by their tokens
        self.n_cleared = 0

    def apply(self, event):
        kind = event[0]
        if kind == "AllBlocksCleared":
            assert len(event) == 1, event
            self.tokens.clear()
            self.parents.clear()
            self.children.clear()
            self.n_cleared += 1
        elif kind == "BlockStored":
            _, hashes, parent, tokens, size, lora, medium, lora_name = event
            assert (size, lora, medium, lora_name) == (PAGE, None, "GPU", None), event
            assert len(tokens) == PAGE * len(hashes) and self.n_cleared > 0, event
            for i, block in enumerate(hashes):
                ids = tuple(tokens[PAGE * i:PAGE * (i + 1)])
                assert block not in self.tokens and (parent is None or parent in self.tokens), event
                self.tokens[block], self.parents[block] = ids, parent
                self.children[parent][ids] = block
                parent = block
        else:
            assert kind == "BlockRemoved" and event[2:] == ["GPU"], event
            for block in event[1]:
                assert not self.children.pop(block, None), event
                del self.children[self.parents.pop(block)][self.tokens.pop(block)]

    def depth(self, ids):
        """How many blocks of a prompt are there."""
        block, n = None, 0
        while block is not None or n == 0:
            block = self.children[block].get(tuple(ids[PAGE * n:PAGE * (n + 1)]))
            n += 1
        return n - 1


class Subscriber:
    """Of all lanes of a server."""

    def __init__(self, port, replay_port, n_lane):
        self.context = zmq.zmq_ctx_new()
        self.sockets = [Socket(self.context, SUB, f"tcp://127.0.0.1:{port + i}")
                        for i in range(n_lane)]
        self.replay_port = replay_port
        self.pictures = [Picture() for _ in range(n_lane)]
        self.batches = [[] for _ in range(n_lane)]

    def close(self):
        for s in self.sockets:
            zmq.zmq_close(s.handle)
        zmq.zmq_ctx_term(self.context)

    def take_all(self):
        for i, s in enumerate(self.sockets):
            for topic, number, batch in iter(s.take, None):
                assert topic == b"kv@pod@pilot" and len(number) == 8, topic
                missed = int.from_bytes(number, "big") - len(self.batches[i])
                if missed > 0:  # it was sent before this subscription came
                    for old in self.replay(i, len(self.batches[i]), (b"",))[:missed]:
                        self.add(i, old)
                if missed >= 0:
                    self.add(i, batch)

    def add(self, lane, batch):
        self.batches[lane].append(batch)
        (at, events, rank), end = decode(batch)
        assert end == len(batch) and rank == lane and abs(at - time.time()) < HANG_S
        for event in events:
            self.pictures[lane].apply(event)

    def depth(self, ids):
        self.take_all()
        return max(p.depth(ids) for p in self.pictures)

    def replay(self, lane, first, delimiter=()):
        """The batches from `first` on, as they are sent again."""
        s = Socket(self.context, DEALER, f"tcp://127.0.0.1:{self.replay_port + lane}")
        s.send(*delimiter, first.to_bytes(8, "big"))
        numbers, batches = [], []
        while True:
            message = []
            wait_until(lambda: message.extend(s.take() or ()) or message)
            assert message[:-2] == list(delimiter), message
            number = int.from_bytes(message[-2], "big", signed=True)
            if number < 0:
                break
            numbers.append(number)
            batches.append(message[-1])
        zmq.zmq_close(s.handle)
        assert message[-1] == b"" and numbers == list(range(first, first + len(numbers)))
        return batches


def free_ports(n):
    """The first of n ports in a row that nobody has."""
    while True:
        first = random.randrange(20000, 30000)
        try:
            taken = [socket.create_server(("127.0.0.1", first + i)) for i in range(n)]
        except OSError:
            continue
        for s in taken:
            s.close()
        return first


def text(i):
    rng = random.Random(i)
    return " ".join(rng.choice(WORDS) for _ in range(260))


@unittest.skipUnless(zmq, WITHOUT)
class Events(unittest.TestCase):

    def start(self, n_lane, *flags):
        port = free_ports(2 * n_lane)
        config = (f'{{"enable_kv_cache_events": true, "publisher": "zmq", "topic": "kv@pod@pilot", '
                  f'"endpoint": "tcp://*:{port}", "replay_endpoint": "tcp://*:{port + n_lane}"}}')
        lanes = TWO_LANES if n_lane > 1 else ()
        server = Server(*SMALL, *lanes, *flags, "--kv-events-config", config)
        subscriber = Subscriber(port, port + n_lane, n_lane)
        self.addCleanup(subscriber.close)
        return server, subscriber

    def ids(self, server, prompt):
        return server.post("/tokenize", {"model": "pilot", "prompt": prompt})["tokens"]

    def ask(self, server, prompt, **more):
        """How many prompt tokens were found."""
        body = {"model": "pilot", "prompt": prompt, "max_tokens": 2, "temperature": 0, **more}
        usage = server.post("/v1/completions", body)["usage"]
        return (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)

    def check_prompts(self, n_lane):
        """Many prompts, some of them again, in a cache for two: each finds what the subscriber said."""
        server, subscriber = self.start(n_lane)
        rng = random.Random(n_lane)
        n_found = 0
        for _ in range(40):
            prompt = text(rng.randrange(8))
            prompt = prompt[:rng.randrange(len(prompt) // 2, len(prompt))]
            ids = self.ids(server, prompt)
            expected = PAGE * min(subscriber.depth(ids), (len(ids) - 1) // PAGE)
            self.assertEqual(self.ask(server, prompt), expected)
            n_found += expected > 0
            wait_until(lambda ids=ids: subscriber.depth(ids) == len(ids) // PAGE)
        self.assertGreater(n_found, 3)
        metrics = server.metrics()
        for kind, n_min in ("stored", 30), ("removed", 10), ("cleared", 1):
            name = f'fathom_kv_events_total{{model_name="pilot",engine="0",kind="{kind}"}}'
            self.assertGreaterEqual(metrics[name], n_min)
        self.assertEqual(server.stop(), 0)

    def test_prompts_find_what_a_subscriber_believes(self):
        self.check_prompts(1)

    def test_prompts_of_two_lanes_find_what_a_subscriber_believes(self):
        self.check_prompts(2)

    def check_shared(self, n_lane):
        server, subscriber = self.start(n_lane)
        prompts = [text(1)[:500] + end for end in ("", text(2)[:400])]
        ids = [self.ids(server, p) for p in prompts]
        n_shared = next(i for i in range(1000) if ids[0][i:i + 1] != ids[1][i:i + 1]) // PAGE
        for p, i in zip(prompts, ids):
            self.ask(server, p)
            wait_until(lambda i=i: subscriber.depth(i) == len(i) // PAGE)
        lane = max(range(n_lane), key=lambda i: len(subscriber.batches[i]))
        first, second = [decode(b)[0][1] for b in subscriber.batches[lane]][:2]
        self.assertEqual(first[0], ["AllBlocksCleared"])
        _, hashes, parent, tokens = first[1][:4]
        self.assertIsNone(parent)
        self.assertEqual(tokens, ids[0][:len(ids[0]) // PAGE * PAGE])
        _, more, parent, tokens = second[0][:4]
        self.assertEqual(parent, hashes[n_shared - 1])
        self.assertFalse(set(more) & set(hashes))
        self.assertEqual(tokens, ids[1][n_shared * PAGE:len(ids[1]) // PAGE * PAGE])

        sent = subscriber.batches[lane]
        self.assertEqual(subscriber.replay(lane, 0), sent)
        self.assertEqual(subscriber.replay(lane, 0, (b"",)), sent)
        self.assertEqual(subscriber.replay(lane, 1, (b"",)), sent[1:])
        self.assertEqual(subscriber.replay(lane, len(sent)), [])
        self.assertEqual(server.stop(), 0)

    def test_a_shared_beginning_is_the_parent_and_is_sent_again(self):
        self.check_shared(1)

    def test_a_shared_beginning_on_two_lanes(self):
        self.check_shared(2)

    def test_a_reset_is_told_and_salted_prompts_are_not(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "admin")
            server, subscriber = self.start(1, "--admin-socket", path)
            ids = self.ids(server, text(3))
            self.ask(server, text(3), cache_salt="of somebody")
            self.ask(server, text(4))
            wait_until(lambda: subscriber.depth(self.ids(server, text(4))) > 0)
            self.assertEqual(subscriber.depth(ids), 0)
            admin = http.client.HTTPConnection("localhost")
            admin.sock = socket.socket(socket.AF_UNIX)
            admin.sock.connect(path)
            admin.request("POST", "/reset_prefix_cache")
            self.assertEqual(admin.getresponse().status, 200)
            wait_until(lambda: subscriber.take_all() or subscriber.pictures[0].n_cleared == 2)
            self.assertEqual(subscriber.pictures[0].tokens, {})
            self.assertEqual(self.ask(server, text(4)), 0)
            wait_until(lambda: subscriber.depth(self.ids(server, text(4))) > 0)
            self.assertEqual(server.stop(), 0)

    def test_a_port_that_is_taken_is_told_before_anything_is_loaded(self):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            refuse(self, f'{{"enable_kv_cache_events": true, "endpoint": "tcp://*:{port}"}}',
                   f"--kv-events-config: tcp://*:{port} cannot be listened on: Address already in use")


def refuse(test, config, line, env=None):
    done = subprocess.run([Server.path, "serve", "--port", "0", "--kv-events-config", config],
                          env=env, capture_output=True, text=True, timeout=HANG_S)
    test.assertEqual(done.returncode, 1)
    test.assertIn(line, done.stderr)
    test.assertNotIn("ready", done.stdout)


class Refusals(unittest.TestCase):

    def test_without_the_library_one_line_says_so(self):
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, "libzmq.so.5"), "w", encoding="utf-8") as f:
                f.write("this is none")
            refuse(self, '{"enable_kv_cache_events": true}', "install libzmq5",
                   {**os.environ, "LD_LIBRARY_PATH": folder})

    def test_what_is_not_enabled_needs_nothing(self):
        for config in '{"endpoint": "nowhere"}', '{"enable_kv_cache_events": true, "publisher": "null"}':
            server = Server("--kv-events-config", config)
            self.assertEqual(server.stop(), 0)


if __name__ == "__main__":
    take_program(sys.argv)
    if not zmq:
        print(WITHOUT)
    unittest.main()
