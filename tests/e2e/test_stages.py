#!/usr/bin/env python3
"""test_stages - the layers of the pilot cut into stages: what it answers does not change

    test_stages.py PROGRAM

Texts, log-probabilities and drafts are those of one stage, bit for bit, of many requests at once, with
prompts in chunks, from the prefix cache, and from a directory of pages that another cut has written.
"""

import subprocess
import sys
import tempfile
import threading

from served import HANG_S, Server, take_program

FLAGS = ("--backend", "cpu", "--threads", "2", "--max-num-seqs", "6", "--max-model-len", "1024")
DRAFTS = ("--speculative-config", '{"method": "mtp", "num_speculative_tokens": 2}')
CHUNKS = ("--max-num-batched-tokens", "48")
TALE = "The sea was calm and the ship went on. Who sat at the mast, and why did it sing? " * 8
N_REQUEST = 12


def body_of(i):
    return {"prompt": f"{i % 5}. " + TALE[:80 + 150 * (i % 4)], "max_tokens": 24, "seed": i,
            "ignore_eos": True, "temperature": 0 if i % 2 else 1, "logprobs": 3}


def answers(server):
    """Of all requests at once: text and log-probabilities."""
    out = [None] * N_REQUEST

    def ask(i):
        out[i] = server.post("/v1/completions", body_of(i))["choices"][0]

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(N_REQUEST)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert None not in out
    return [(c["text"], c["logprobs"]) for c in out]


def check(want, *flags):
    """Answers twice, the second time from the prefix cache; a draft that was right is seen."""
    server = Server(*FLAGS, *flags)
    assert answers(server) == want, flags
    assert answers(server) == want, flags
    metrics = server.metrics()
    hits = sum(v for k, v in metrics.items() if k.startswith("vllm:prompt_tokens_cached"))
    assert hits > 0, flags
    if DRAFTS[0] in flags:
        n = sum(v for k, v in metrics.items()
                if k.startswith("vllm:spec_decode_num_accepted_tokens_total"))
        assert n > 0, metrics
    assert server.stop() == 0


def answers_of(*flags):
    server = Server(*FLAGS, *flags)
    out = answers(server)
    assert server.stop() == 0
    return out


def cuts_do_not_show():
    want = answers_of()
    check(want, "-pp", "2")
    check(want, "-pp", "3", *CHUNKS, *DRAFTS)
    check(want, "-pp", "8", *CHUNKS)
    check(answers_of("-tp", "2"), "-tp", "2", "-pp", "2", *DRAFTS)


def pages_are_those_of_any_cut():
    with tempfile.TemporaryDirectory() as folder:
        kept = ("--kv-offload-dir", folder, "--kv-offload-dir-size", "64M",
                "--kv-offload-ram", "16M")
        want = answers_of(*kept)
        server = Server(*FLAGS, *kept, "-pp", "3")
        assert answers(server) == want
        hits = {k: v for k, v in server.metrics().items()
                if k.startswith("fathom_kv_tier_hits_total")}
        assert sum(hits.values()) > 0, hits
        assert server.stop() == 0


def what_cannot_be_had_is_refused():
    for words, why in (
            (("-pp", "9"), "needed is 1 to 8"),
            (("-pp", "2", "-dp", "2", "--enable-expert-parallel"),
             "stages are of --tensor-parallel-size ranks: leave --data-parallel-size out")):
        p = subprocess.run([Server.path, "serve", *words], capture_output=True, text=True,
                           timeout=HANG_S, check=False)
        lines = p.stderr.splitlines()
        assert p.returncode != 0 and why in lines[-1], p.stderr
    p = subprocess.run([Server.path, "plan", "-pp", "2", "-tp", "2", "--backend", "cpu"],
                       capture_output=True, text=True, timeout=HANG_S, check=True)
    assert "4, of 2 stages; what follows is of each of the first" in p.stdout, p.stdout


def main():
    take_program(sys.argv)
    cuts_do_not_show()
    pages_are_those_of_any_cut()
    what_cannot_be_had_is_refused()


if __name__ == "__main__":
    main()
