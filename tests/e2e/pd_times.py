#!/usr/bin/env python3
"""pd_times - prints how long a first token takes, by where its pages come from; tests nothing

    pd_times.py [--ucx] hand-over|pool [N] PROGRAM

hand-over: N prompts of 46 pages: computed, from the cache, from another server.
pool: N repeated prompts of 3,000 tokens: in memory, at a peer, on disk.
--ucx: pages go by UCX.
"""

import tempfile
import time

from pd_servers import TRANSPORT, moved, pages_port, post, prefill, server, take_part, total
from served import Server, wait_until


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


if __name__ == "__main__":
    take_part({"hand-over": tell_hand_over, "pool": tell_pool})
