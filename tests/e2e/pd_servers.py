"""Servers of the pilot that prefill and that decode, and what proxies ask of them."""

import json
import random
import re
import socket
import subprocess
import sys

from served import HANG_S, Server, take_program, wait_until

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


def n_from(s, source):
    """Prompt tokens that came from there."""
    return next(n for key, n in s.metrics().items() if f'source="{source}"' in key)


def n_computed(s):
    return n_from(s, "local_compute")


def moved(d):
    return total(d, "fathom_kv_pages_pulled_total"), total(d, "fathom_kv_pages_pull_lost_total")


def lend(p, body):
    """Status, Retry-After and error code of a request whose pages another server will ask for."""
    connection = p.connect()
    connection.request("POST", "/v1/completions", json.dumps(
        {**body, "max_tokens": 1, "kv_transfer_params": {"do_remote_decode": True}}))
    answer = connection.getresponse()
    text = json.loads(answer.read())
    connection.close()
    return answer.status, answer.getheader("Retry-After"), text.get("error", {}).get("code")


def tight_server():
    """One that prefills, with 18 places in memory, and lends pages for longer than a test takes."""
    return server("kv_producer", "--kv-offload-ram", "12M",
                  config={"kv_connector_extra_config": {"kv_lease_duration": 3600}})


def lend_half(p, first=730):
    """Prompts of a tight server until it refuses more: these, and where their pages are."""
    bodies, params, n_held = [], [], 0
    while n_held < 9:
        bodies.append(body_of(first + len(bodies), 200))
        params.append(prefill(p, bodies[-1]))
        n_held += len(params[-1]["remote_block_ids"])
        wait_until(lambda: total(p, "fathom_kv_tier_uncopied_pages") == 0)
    assert n_held < 18 and len(params) < 4, params  # else the test shows nothing
    # once they are whole in memory; what asks has no page to lend if it comes sooner
    wait_until(lambda: lend(p, body_of(first + 3, 20))[0] == 429)
    return bodies, params


def need_ucx(program):
    args = ("bench", "transfer", "--kv-transport", "ucx", "--lanes", "1", "--seconds", "0.01")
    done = subprocess.run([program, *args], capture_output=True, text=True, timeout=HANG_S)
    if done.returncode != 0:
        print("skipped:", done.stderr.strip())
        sys.exit(77)


def carry(a, b, change):
    """Passes on from socket a to b, and ends both when one does; or when change(bytes before, piece) says so, which may alter
    the piece."""
    n = 0
    try:
        while piece := bytearray(a.recv(1 << 16)):
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


def take_part(parts):
    """Runs what the command line asks for: [--ucx] PART [N] PROGRAM. N is given to parts that take a
    number, 15 if it is not said."""
    if "--ucx" in sys.argv:
        sys.argv.remove("--ucx")
        need_ucx(sys.argv[-1])
        TRANSPORT.extend(("--kv-transport", "ucx"))
    part = parts[sys.argv.pop(1)]
    number = int(sys.argv.pop(1)) if len(sys.argv) > 2 and sys.argv[1].isdigit() else 15
    take_program(sys.argv)
    if part.__code__.co_argcount:
        part(number)
    else:
        part()
