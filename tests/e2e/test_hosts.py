#!/usr/bin/env python3
"""test_hosts - processes as hosts on loopback, with the pilot

    test_hosts.py same|lost|moved|drained|stages|stages_lost|lanes|lanes_lost|shared|gpu|gpu_one_each|gpu_lost|
        gpu_sums|gpu_sums_four|gpu_sums_lost|gpu_lanes|gpu_lanes_four|gpu_lanes_lost|gpu_shared|gpu_ahead|pmix|
        refused PROGRAM

same: answers are those of two ranks in one process, many at once, with log-probabilities and drafts.
lost: the other host is killed, then host 0: the one that stays says so and loads nothing again.
moved: behind a router nobody sees that the other host is killed: the streams go on at a server of one host.
drained: an answer that outlasts host 0's drain is told so; the other host, told to end before, stays till then.
stages, stages_lost: likewise of hosts that have stages, two of two ranks each and more.
lanes, lanes_lost: likewise of hosts whose ranks have requests of their own.
shared: prompts that the lanes of all hosts compute together are answered as those that stay on their lane.
gpu, gpu_one_each, gpu_lost: likewise of stages on GPUs, two or one of them a stage, which the program
simulates: few and short answers.
gpu_sums, gpu_sums_four, gpu_sums_lost: likewise of ranks that share layers, with the double of NCCL beside the
program.
gpu_lanes, gpu_lanes_four, gpu_lanes_lost: likewise of ranks that have requests of their own.
gpu_shared: as shared.
gpu_ahead: of ranks that share layers, steps are launched behind the one that runs, as in one process; of those with
requests of their own gpu_lanes_four asks that.
pmix: mpirun starts them, and nobody says where host 0 is; ends with 77 where that cannot be done.
refused: hosts that do not belong together, and options that do not.
"""

import atexit
import ctypes.util
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from served import HANG_S, Log, Server, take_program, wait_until
from test_router import Router, ask, events_of

FLAGS = ("--backend", "cpu", "--threads", "2", "--max-num-seqs", "8", "--max-model-len", "1024",
         "--drain-timeout", str(HANG_S))
RANKS = ("-tp", "2")
STAGES = ("-tp", "2", "-pp", "2")
LANES = ("-dp", "2", "--enable-expert-parallel")
DRAFTS = ("--speculative-config", '{"method": "mtp", "num_speculative_tokens": 2}')
TEXTS = ["Hello, who", "The sea was", "Write a line about rope and tide:",
         "One two three, and the ship went on. " * 9] * 2
LONG_TEXTS = ["The rope was long, and the tide was slow. " * 24,
              "The rope was long, and the tide was slow. " * 20 + "So it is said of the men who came in the " * 8,
              "A light was on the hill, and nobody saw it. " * 16, "Three boats lay in the bay below. " * 16]


# What is asked: tokens of an answer, and of one that is under way for as long as a test wants
N_TOKEN, N_LONG, N_LAST = 24, 700, 100


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def of_hosts(port, rank, n=2):
    return ("--nnodes", str(n), "--node-rank", str(rank), "--master-addr", "127.0.0.1",
            "--master-port", str(port))


class Follower:
    """`fathom serve --headless`, its log in a file."""

    def __init__(self, port, *flags, rank=1, n=2):
        self.log = Log()
        self.process = subprocess.Popen(
            [Server.path, "serve", *FLAGS, *of_hosts(port, rank, n), "--headless", *flags],
            stdout=self.log, stderr=self.log)
        atexit.register(self.process.kill)

    def text(self):
        return self.log.text()

    def kill(self, number=signal.SIGKILL):
        self.process.send_signal(number)
        self.process.wait(timeout=HANG_S)


def ready(server):
    connection = server.connect()
    connection.request("GET", "/ready")
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, text


def takes(server):
    """What a router and an alarm are told."""
    connection = server.connect()
    connection.request("GET", "/load")
    load = json.loads(connection.getresponse().read())
    connection.close()
    gauge, = (v for k, v in server.metrics().items() if k.startswith("fathom_ready{"))
    assert load["accepts"] == bool(gauge), (load, gauge)
    return load["accepts"]


def body_of(i, n=None):
    """One in four reasons, and for as long as it may: its mask goes to all hosts."""
    prompt = TEXTS[i % len(TEXTS)] + ("<think>" if i % 4 == 1 else "")
    return {"prompt": prompt, "max_tokens": n or N_TOKEN, "seed": i, "ignore_eos": True,
            "temperature": 0 if i % 2 else 1, "logprobs": 3, "thinking_token_budget": 5}


def answers(server):
    """Of all texts at once: text and log-probabilities."""
    out = [None] * len(TEXTS)

    def ask(i):
        out[i] = server.post("/v1/completions", body_of(i))["choices"][0]

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(len(TEXTS))]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert None not in out
    return [(c["text"], c["logprobs"]) for c in out]


def n_page(server):
    return sum(v for k, v in server.metrics().items() if k.startswith("fathom_pages{"))


def n_ahead(server):
    return sum(v for k, v in server.metrics().items() if k.startswith("fathom_steps_ahead_total"))


def check_same(cut, alone, *more, n=2, other=(), again=True):
    """Of n hosts as of one with the flags `alone`, and again from the prefix cache. The other hosts have flags
    besides. Of one stage steps are launched ahead where they are in one process."""
    server = Server(*FLAGS, *alone, *more)
    want = answers(server)
    is_ahead = n_ahead(server) > 0 and "-pp" not in cut
    server.stop()
    port = free_port()
    others = [Follower(port, *cut, *more, *other, rank=i, n=n) for i in range(1, n)]
    first = Server(*FLAGS, *cut, *of_hosts(port, 0, n), *more)
    wait_until(lambda: ready(first)[0] == 200)
    pages = n_page(first)
    assert answers(first) == want
    if again:
        assert answers(first) == want
        hits = sum(v for k, v in first.metrics().items() if k.startswith("vllm:prompt_tokens_cached"))
        assert hits > 0
    assert (n_ahead(first) > 0) == is_ahead, (n_ahead(first), is_ahead)
    assert n_page(first) == pages
    assert first.stop() == 0
    for follower in others:
        wait_until(lambda: "host 0 has ended" in follower.text())
        follower.kill()
    return pages


def same():
    check_same(RANKS, RANKS)
    check_same(RANKS, RANKS, *DRAFTS)
    # of pages as many are used as the host that has fewest has
    few, fewer = ("--kv-cache-memory-bytes", "30M"), ("--kv-cache-memory-bytes", "20M")
    assert 16 <= check_same(RANKS, RANKS, *few, other=fewer) <= 20e6 / 30e6 * check_same(RANKS, RANKS, *few)


def stages():
    check_same(STAGES, RANKS)
    check_same(STAGES, RANKS, *DRAFTS, "--max-num-batched-tokens", "48")
    check_same(("-pp", "3"), (), n=3)  # of the second host to the third
    check_same(("-pp", "4"), (), *DRAFTS)


def lanes():
    check_same(LANES, LANES, *DRAFTS)
    four = ("-dp", "4", "--enable-expert-parallel")
    check_same(four, four, "--max-num-batched-tokens", "48")
    shared = ("-dp", "2", "-tp", "2", "--enable-expert-parallel")
    check_same(shared, shared, *DRAFTS)


def answer_long(server):
    """Of two prompts one after the other on the lane 1, of which the second begins as the first; then of two at once."""
    def ask(text, lane):
        body = {"prompt": text, "max_tokens": N_TOKEN, "temperature": 0, "ignore_eos": True, "logprobs": 3}
        choice = server.post("/v1/completions", {**body, "data_parallel_rank": lane})["choices"][0]
        return choice["text"], choice["logprobs"]

    out = [ask(text, 1) for text in LONG_TEXTS[:2]] + [None, None]

    def ask_on(lane):
        out[2 + lane] = ask(LONG_TEXTS[2 + lane], lane)

    threads = [threading.Thread(target=ask_on, args=(lane,)) for lane in (0, 1)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert None not in out
    return out


def n_shared(server):
    return sum(v for k, v in server.metrics().items() if k.startswith("fathom_prompt_tokens_shared_total"))


def check_shared(cut, *more, least=300):
    """As one host answers that shares no prompt."""
    alone = Server(*FLAGS, *cut, *more, "--share-prompts", "-1")
    want = answer_long(alone)
    assert n_shared(alone) == 0
    alone.stop()
    port, shares = free_port(), (*more, "--share-prompts", "8")
    other = Follower(port, *cut, *shares)
    first = Server(*FLAGS, *cut, *of_hosts(port, 0), *shares)
    wait_until(lambda: ready(first)[0] == 200)
    assert answer_long(first) == want
    assert n_shared(first) >= least, n_shared(first)
    assert first.stop() == 0
    wait_until(lambda: "host 0 has ended" in other.text())
    other.kill()


def shared():
    check_shared(LANES)
    four = ("-dp", "4", "--enable-expert-parallel")
    check_shared(four, *DRAFTS, "--max-num-batched-tokens", "48")
    check_shared(("-dp", "2", "-tp", "2", "--enable-expert-parallel"), *DRAFTS)


def simulate():
    """Two GPUs in each process; a step takes a tenth of a second and more."""
    global FLAGS, TEXTS, N_TOKEN, N_LONG, N_LAST
    FLAGS = ("--backend", "cuda", "--max-num-seqs", "8", "--max-model-len", "256",
             "--kv-cache-memory-bytes", "64M", "--max-num-batched-tokens", "48",
             "--compilation-config", '{"cudagraph_capture_sizes": [1, 4]}',
             "--drain-timeout", str(HANG_S))
    TEXTS = ["Hello, who", "One two three, and the ship went on. " * 6]
    N_TOKEN, N_LONG, N_LAST = 3, 150, 6
    os.environ["SIMT_DEVICES"] = "2"
    double = os.path.join(os.path.dirname(os.path.abspath(Server.path)), "nccl_double")
    os.environ["LD_LIBRARY_PATH"] = double
    os.environ["SIMT_MIB"] = "4096"  # the plan leaves room for what NCCL takes


def gpu():
    simulate()
    check_same(("-tp", "2", "-pp", "2"), ("-tp", "2"), *DRAFTS)
    old = {**os.environ, "NCCL_DOUBLE_VERSION": "21203"}
    none = {**os.environ, "LD_LIBRARY_PATH": "/none"}
    cases = [(LANES, "libnccl.so.2 is NCCL 2.12.3: install 2.14 or later", old),
             (RANKS, "libnccl.so.2 is NCCL 2.12.3: install 2.14 or later", old)]
    if not ctypes.util.find_library("nccl"):
        cases.append((RANKS, "is not there (libnccl.so.2: cannot open", none))
    for words, why, env in cases:
        line = last_line(*FLAGS, *words, "-n", "2", "--port", "0", env=env)
        assert why in line, line


def gpu_one_each():
    simulate()
    check_same(("-pp", "2"), ())


def gpu_sums():
    """Sums of one GPU a host: recorded, of prompts whose rows have owners in one process, of drafts."""
    global FLAGS, TEXTS
    simulate()
    FLAGS = tuple("96" if f == "48" else f for f in FLAGS)
    TEXTS = ["Hello, who", "One two three, and the ship went on. " * 8]
    check_same(RANKS, RANKS, *DRAFTS)


def gpu_lanes():
    """Rows for experts of one GPU a host: recorded, of prompts in two rounds, beside a rank without rows, of
    drafts."""
    global FLAGS, TEXTS
    simulate()
    FLAGS = tuple({"48": "96"}.get(f, f.replace("[1, 4]", "[4]")) for f in FLAGS)
    TEXTS = ["Hello, who", "One two three, and the ship went on. " * 8]
    check_same(LANES, LANES, *DRAFTS, again=False)  # gpu_lanes_four finds prefixes


def gpu_lanes_four():
    """Two lanes of one GPU in each process, then a lane of two."""
    simulate()
    os.environ["SIMT_DEVICES"] = "4"
    four = ("-dp", "4", "--enable-expert-parallel")
    check_same(four, four)
    shared = ("-dp", "2", "-tp", "2", "--enable-expert-parallel")
    check_same(shared, shared, *DRAFTS)


def gpu_shared():
    """A GPU a host, then a lane of two in each; recorded, and of drafts."""
    global LONG_TEXTS
    simulate()
    LONG_TEXTS = [text[:len(text) // 8] for text in LONG_TEXTS]
    check_shared(LANES, *DRAFTS, least=60)
    os.environ["SIMT_DEVICES"] = "4"
    check_shared(("-dp", "2", "-tp", "2", "--enable-expert-parallel"), least=60)


def gpu_sums_four():
    simulate()
    os.environ["SIMT_DEVICES"] = "4"
    check_same(("-tp", "4"), ("-tp", "4"))


def gpu_ahead():
    global FLAGS, TEXTS
    simulate()
    FLAGS = tuple(f.replace("[1, 4]", "[1]") for f in FLAGS)
    TEXTS = ["Hello"]
    check_same(RANKS, RANKS, again=False)


def gpu_lost():
    simulate()
    lost(STAGES)


def gpu_sums_lost():
    simulate()
    lost(RANKS)


def gpu_lanes_lost():
    simulate()
    lost(LANES)


class Launch:
    """Two hosts on this machine, started by mpirun; --node-rank says that they are no ranks.

    Each launch has a folder of its own: two that begin at once would make /tmp/ompi.HOST.USER both,
    and one of them would end on finding it there.
    """

    env = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    mpirun = ("mpirun", "--oversubscribe", "--mca", "plm", "isolated")

    def __init__(self, *flags, ranks=(0, 1), env=None):
        serve = (Server.path, "serve", *FLAGS, *flags, "--nnodes", "2", "--port", "0", "--node-rank")
        words = [*self.mpirun]
        for rank in ranks:
            words += ["-n", "1", *serve, str(rank), *(["--headless"] if rank else []), ":"]
        self.log = Log()
        self.folder = tempfile.TemporaryDirectory(prefix="fathom-mpirun-", ignore_cleanup_errors=True)
        self.process = subprocess.Popen(words[:-1], stdout=self.log, stderr=self.log,
                                        env={**self.env, "TMPDIR": self.folder.name, **(env or {})})
        atexit.register(self.process.terminate)

    def text(self):
        return self.log.text()

    def find(self, pattern):
        return re.search(pattern, self.text(), re.M)


class Launched(Server):
    """Host 0 of a launch."""

    def __init__(self, launch):  # pylint: disable=super-init-not-called
        pattern = r"^address +http://([^:]+):(\d+)/v1"
        wait_until(lambda: launch.find(pattern) or launch.process.poll() is not None)
        assert launch.process.poll() is None, launch.text()
        self.host, self.port = launch.find(pattern).groups()
        self.process = launch.process


def check_launched(launch, want):
    first = Launched(launch)
    wait_until(lambda: ready(first)[0] == 200)
    assert answers(first) == want
    port = int(launch.find(r"host 0 at 127.0.0.1:(\d+)").group(1))
    # who is not of the launch does not know the token that host 0 has made
    line = last_line(*FLAGS, *RANKS, *of_hosts(port, 1), "--headless")
    assert "token: host 1 has none and host 0 has one" in line, line
    return port


def pmix():
    if not shutil.which("mpirun"):
        print("skipped: there is no mpirun (Debian's openmpi-bin)")
        sys.exit(77)
    idle = subprocess.run((*Launch.mpirun, "-n", "1", "true"), env=Launch.env, check=False,
                          capture_output=True, text=True, timeout=HANG_S)
    if idle.returncode:
        print(f"skipped: mpirun starts nothing on this machine:\n{idle.stderr}")
        sys.exit(77)
    alone = Server(*FLAGS, *RANKS)
    want = answers(alone)
    alone.stop()
    launch, beside = Launch(*RANKS), Launch(*RANKS)
    wait_until(lambda: "pmix job=" in launch.text() or launch.process.poll() is not None)
    if "built without PMIx" in launch.text():
        print("skipped: the program was built without PMIx (Debian's libpmix-dev)")
        sys.exit(77)
    ports = [check_launched(l, want) for l in (launch, beside)]  # no port is chosen by anybody
    assert ports[0] != ports[1]
    for l in (launch, beside):
        l.process.terminate()
        l.process.wait(timeout=HANG_S)
    # a token that hosts have been given is kept to themselves
    launch = Launch(*RANKS, env={"FATHOM_CLUSTER_TOKEN": "abc"})
    check_launched(launch, want)
    launch.process.terminate()
    launch.process.wait(timeout=HANG_S)
    for ranks, why in (((0, 1, 1), "job [0-9]+ has 3 processes"),
                       ((1, 0), "this process is rank [01] of PMIx's job")):
        launch = Launch(*RANKS, ranks=ranks)
        assert launch.process.wait(timeout=HANG_S) != 0
        assert launch.find("^fathom: .*" + why), launch.text()
    line = last_line(*FLAGS, *RANKS, "--port", "0", "--nnodes", "2", "-r", "0",
                     env={**os.environ, "PMIX_NAMESPACE": "x", "PMIX_RANK": "0"})
    assert "PMIx: the launcher's server: " in line and "--master-addr" in line, line


def ask_until_refused(server, i, ends):
    """An answer is under way whenever somebody looks; the first request that has none ends it."""
    status = 200
    while status == 200:
        connection = server.connect()
        connection.request("POST", "/v1/completions", json.dumps(body_of(i, N_LONG)))
        answer = connection.getresponse()
        status, text = answer.status, answer.read().decode()
        connection.close()
    ends.append((status, text))


def lost(cut=RANKS):
    port = free_port()
    log = Log()
    first = Server(*FLAGS, *cut, *of_hosts(port, 0), stderr=log)
    status, text = ready(first)
    assert status == 503 and "host 1 of 2 has not come" in text, text
    ends = []
    ask_until_refused(first, 0, ends)
    assert ends[0][0] == 503 and json.loads(ends[0][1])["error"]["code"] == "host_away", ends
    other = Follower(port, *cut)
    wait_until(lambda: ready(first)[0] == 200)
    want = answers(first)
    # under way, and idle
    for n_under_way in (4, 0):
        ends = []
        threads = [threading.Thread(target=ask_until_refused, args=(first, i, ends))
                   for i in range(n_under_way)]
        for t in threads:
            t.start()
        wait_until(lambda: first.health()["running"] == n_under_way)
        other.kill()
        for t in threads:
            t.join()
        assert len(ends) == n_under_way, ends
        assert all(status == 503 and "host 1 of 2 is lost: " in text for status, text in ends), ends
        wait_until(lambda: ready(first)[0] == 503)
        status, text = ready(first)
        assert status == 503 and "host 1 of 2 is lost: " in text, text
        assert not takes(first)
        connection = first.connect()
        connection.request("POST", "/v1/completions", json.dumps(body_of(0)))
        answer = connection.getresponse()
        text = answer.read().decode()
        assert answer.status == 503 and "host 1 of 2 is lost: " in text, (answer.status, text)
        other = Follower(port, *cut)
        wait_until(lambda: ready(first)[0] == 200)
        assert takes(first)
        assert answers(first) == want
    assert first.process.poll() is None
    assert log.text().count(" ready_ms=") == 1
    # host 0 goes and comes back
    first.kill()
    wait_until(lambda: "host 0 is lost: " in other.text())
    first = Server(*FLAGS, *cut, *of_hosts(port, 0))
    wait_until(lambda: ready(first)[0] == 200)
    assert answers(first) == want
    assert other.text().count("weights_digest begins") == 1, other.text()
    # both are told to end, as a launcher does it: what runs is answered
    connection = first.connect()
    connection.request("POST", "/v1/completions", json.dumps(
        {**body_of(1, N_LAST), "stream": True, "stream_options": {"include_usage": True}}))
    answer = connection.getresponse()
    lines = [answer.readline()]  # it is under way
    thread = threading.Thread(target=lambda: lines.append(answer.read()))
    thread.start()
    other.process.send_signal(signal.SIGTERM)
    wait_until(lambda: "ends with host 0" in other.text())
    assert other.process.poll() is None
    assert first.stop() == 0
    thread.join()
    *_, usage, done = (l[6:] for l in b"".join(lines).decode().split("\n") if l.startswith("data: "))
    assert done == "[DONE]" and json.loads(usage)["usage"]["completion_tokens"] == N_LAST, lines
    assert other.process.wait(timeout=HANG_S) == 0, other.text()


def moved():
    port = free_port()
    other = Follower(port, *RANKS)
    first = Server(*FLAGS, *RANKS, *of_hosts(port, 0))
    wait_until(lambda: ready(first)[0] == 200)
    alone = Server(*FLAGS, *RANKS)
    router = Router([first, alone], "--policy", "round_robin")
    router.wait_up(2)
    bodies = [{**body_of(i, N_LONG), "stream": True} for i in (0, 2, 4, 6)]
    want = [events_of(ask(alone, "/v1/completions", body)[1]) for body in bodies]
    got = [None] * len(bodies)

    def stream(i):
        got[i] = events_of(ask(router, "/v1/completions", bodies[i])[1])

    threads = [threading.Thread(target=stream, args=(i,)) for i in range(len(bodies))]
    for t in threads:
        t.start()
    wait_until(lambda: first.health()["running"] == 2 and n_written(first) > 40)
    other.kill()
    for t in threads:
        t.join()
    strip = re.compile(r'"id":"[^"]*"|"created":\d+').sub
    assert [[strip("", e) for e in g] for g in got] == [[strip("", e) for e in w] for w in want]
    assert router.get("/metrics")[1].count("fathom_router_moved_streams_total 2\n") == 1
    router.wait_up(1)
    other = Follower(port, *RANKS)
    router.wait_up(2)
    for s in (router, first, alone):
        assert s.stop() == 0


def n_written(server):
    return sum(v for k, v in server.metrics().items() if k.startswith("vllm:generation_tokens_total"))


def drained():
    port, short = free_port(), ("--drain-timeout", "1", "--max-model-len", "4096")
    other = Follower(port, *RANKS, *short)
    first = Server(*FLAGS, *RANKS, *of_hosts(port, 0), *short)
    wait_until(lambda: ready(first)[0] == 200)
    connection = first.connect()
    connection.request("POST", "/v1/completions", json.dumps({**body_of(1, 4000), "n": 8}))
    wait_until(lambda: first.health()["running"] > 0)
    other.process.send_signal(signal.SIGTERM)
    wait_until(lambda: "ends with host 0" in other.text())
    time.sleep(0.5)  # so much sooner is the other's own time over
    first.process.send_signal(signal.SIGTERM)
    answer = connection.getresponse()
    text = answer.read().decode()
    assert answer.status == 503 and "shutting_down" in text, text
    assert first.process.wait(timeout=HANG_S) == 0
    assert other.process.wait(timeout=HANG_S) == 0, other.text()


def last_line(*words, env=None):
    p = subprocess.run([Server.path, "serve", *words], capture_output=True, text=True,
                       timeout=HANG_S, env=env, check=False)
    assert p.returncode != 0, (words, p.stdout)
    lines = [l for l in p.stderr.splitlines() if not re.match(r"\d\d:\d\d:", l)]
    assert len(lines) == 1, p.stderr
    return lines[0]


def check_refused(cut, other_cut, differs="layout"):
    """Host 0 has one cut; who comes with another one, or is not what it should be, is refused."""
    port = free_port()
    first = Server(*FLAGS, *cut, *of_hosts(port, 0))

    def comes(why, *words, cut=cut, env=None):
        line = last_line(*FLAGS, *cut, *of_hosts(port, 1), "--headless", *words, env=env)
        assert why in line, line

    comes("layout: host 1 and host 0", "--max-num-seqs", "4")
    comes("layout: host 1 and host 0", "--kv-offload-ram", "64M")
    if "-pp" not in cut:
        comes("layout: host 1 and host 0", "--no-async-scheduling")
    comes(differs + ": host 1 and host 0", cut=other_cut)
    comes("numerics: host 1 and host 0", "--dtype", "float32")
    comes("token: host 1 has one and host 0 has none",
          env={**os.environ, "FATHOM_CLUSTER_TOKEN": "abc"})
    other = Follower(port, *cut)
    wait_until(lambda: ready(first)[0] == 200)
    comes("--node-rank: host 1 is there already")
    assert ready(first)[0] == 200
    line = last_line("--port", "0", *FLAGS, *cut, *of_hosts(port, 0))
    assert "another program has it" in line, line
    other.kill()
    first.stop()


def refused():
    check_refused(RANKS, ("-tp", "2", "-pp", "2"))
    check_refused(STAGES, ("-tp", "2", "-pp", "4"))
    check_refused(LANES, ("-dp", "4", "--enable-expert-parallel"), "numerics")
    for words, why in (
            (("-n", "2"), "--nnodes 2 does not divide --tensor-parallel-size 1"),
            (("-dp", "3", "--enable-expert-parallel", "-n", "2"),
             "--nnodes 2 does not divide --data-parallel-size 3"),
            (("-pp", "3", "-n", "2"), "--nnodes 2 does not divide --pipeline-parallel-size 3"),
            (("-pp", "2", "-tp", "4", "-n", "4"),
             "--nnodes 4 does not divide --pipeline-parallel-size 2"),
            (("-tp", "2", "-n", "2", "-r", "2"), "--node-rank 2 of --nnodes 2"),
            (("-tp", "2", "-n", "2", "-r", "1"), "give --headless too"),
            (("-tp", "2", "-n", "2", "--headless"), "host 0 serves"),
            (("--headless",), "give --nnodes too")):
        line = last_line(*words)
        assert why in line, line
    # an address that cannot be had is told before anything is loaded
    gives = ("--kv-transfer-config", '{"kv_role": "kv_producer"}', "--kv-ip")
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        s.listen()
        taken = s.getsockname()[1]
        for words, why in (
                ((*RANKS, *of_hosts(taken, 0)), f"--master-addr: cannot listen on 127.0.0.1 port {taken}: "),
                ((*RANKS, "-n", "2", "--master-addr", "no.invalid"), "--master-addr: no.invalid is no address: "),
                ((*gives, "no.invalid"), "--kv-ip: no.invalid is no address: "),
                ((*gives, "127.0.0.1", "--kv-port", str(taken)), f"--kv-ip: cannot listen on 127.0.0.1 port {taken}: ")):
            p = subprocess.run([Server.path, "serve", "--port", "0", *words], capture_output=True, text=True,
                               timeout=HANG_S, check=False)
            assert p.returncode == 1 and p.stderr.startswith("fathom: " + why), p.stderr


def main():
    part = sys.argv.pop(1)
    take_program(sys.argv)
    {"same": same, "lost": lost, "moved": moved, "drained": drained, "refused": refused, "pmix": pmix, "gpu": gpu,
     "gpu_one_each": gpu_one_each, "gpu_lost": gpu_lost, "gpu_sums": gpu_sums,
     "gpu_shared": gpu_shared, "shared": shared, "gpu_sums_four": gpu_sums_four, "gpu_sums_lost": gpu_sums_lost, "gpu_lanes": gpu_lanes,
     "gpu_lanes_four": gpu_lanes_four, "gpu_lanes_lost": gpu_lanes_lost, "gpu_ahead": gpu_ahead, "stages": stages,
     "stages_lost": lambda: lost(STAGES), "lanes": lanes,
     "lanes_lost": lambda: lost((*LANES, "--share-prompts", "8"))}[part]()


if __name__ == "__main__":
    main()
