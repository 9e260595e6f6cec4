#!/usr/bin/env python3
"""test_router_tls - servers that a private authority has certified, behind a router

    test_router_tls.py PROGRAM
"""

import json
import os
import signal
import ssl
import subprocess
import tempfile

from certificates import make_certificate
from served import HANG_S, Log, Server, take_program, wait_until
from test_router import CHAT, Router, ask, can_bind_files, own_hosts, server
from test_router_foreign import Foreign


def tls(pair, authority=None):
    """What a server is told; `authority` signs its clients' certificates."""
    return ("--ssl-keyfile", pair[0], "--ssl-certfile", pair[1],
            *(("--ssl-ca-certs", authority[1]) if authority else ()))


def shown(pair):
    return ("--client-key-path", pair[0], "--client-cert-path", pair[1])


def state_behind(flags, url):
    """What a router of these flags says of a server once it has looked at it."""
    router = Router([], *flags, url)
    wait_until(lambda: router.instances()[url]["state"] != "unknown")
    found = router.instances()[url]
    assert router.stop() == 0
    return found["state"], found["why"]


def check_refusals(folder, authority, pair, other):
    """Each in a line, before anything runs."""
    empty = os.path.join(folder, "empty")
    with open(empty, "w", encoding="ascii") as f:
        f.write("nothing\n")
    for flags, says in (
            (("--ca-cert-path", folder + "/none"), folder + "/none"),
            (("--ca-cert-path", empty), "--ca-cert-path holds no certificate"),
            (("--client-cert-path", pair[1]), "needed are both"),
            (("--key", pair[0]), "needed are both"),
            (("--client-cert-path", pair[1], "--client-key-path", other[0]), "does not belong"),
            (("--client-cert-path", pair[1], "--client-key-path", empty), "--client-key-path holds no key"),
            (("--client-cert-path", empty, "--client-key-path", pair[0]), "--client-cert-path holds no"),
            (("--insecure", "--ca-cert-path", authority[1]), "give one of them")):
        done = subprocess.run([Server.path, "router", "--port", "0", *flags, "https://127.0.0.1:1"],
                              capture_output=True, text=True, check=False, timeout=HANG_S)
        assert done.returncode == 1 and says in done.stderr, (flags, done)
        assert done.stderr.count("\n") == 1, done.stderr


def check_servers(folder, authority, pair, stranger):
    """Who is up, and why the others are not."""
    closed = server(*tls(make_certificate(folder, "closed", ca=authority, of="IP:127.0.0.1"), authority))
    elsewhere = server(*tls(make_certificate(folder, "elsewhere", ca=authority, of="DNS:elsewhere")))
    trusts = ("--ca-cert-path", authority[1])
    router = Router([closed], "--cacert", authority[1], "--key", pair[0], "--cert", pair[1])
    router.wait_up(1)
    status, text = ask(router, "/v1/chat/completions", CHAT)
    assert status == 200 and text.endswith("data: [DONE]\n\n"), text
    status, text = ask(router, "/v1/completions", {"prompt": "x", "max_tokens": 3})
    assert status == 200 and json.loads(text)["choices"], text
    assert router.instances()[closed.url]["moves_streams"]
    assert router.stop() == 0
    state, why = state_behind(shown(pair), closed.url)
    assert state == "down" and "certificate" in why, why
    for flags in (trusts, (*trusts, *shown(stranger))):
        state, why = state_behind(flags, closed.url)
        assert "--client-cert-path" in why, (state, why)
    state, why = state_behind(trusts, elsewhere.url)
    assert state == "down" and "does not match" in why, why
    assert state_behind(("--insecure",), elsewhere.url) == ("up", "")
    # a server of another make ends the connection
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*reversed(make_certificate(folder, "foreign", ca=authority, of="DNS:localhost")))
    context.load_verify_locations(authority[1])
    context.verify_mode = ssl.CERT_REQUIRED
    foreign = Foreign(context)
    state, why = state_behind(trusts, foreign.url)
    assert state == "down" and "--client-cert-path" in why, why
    assert state_behind((*trusts, *shown(pair)), foreign.url)[0] == "up"
    for s in (closed, elsewhere):
        assert s.stop() == 0


def check_renewal(folder, authority):
    """Files that are renewed are taken; what is none is told on SIGHUP."""
    used, log = os.path.join(folder, "used"), Log()
    fresh = make_certificate(folder, "fresh")
    old, new = (server(*tls(make_certificate(folder, f"of_{i}", ca=ca, of="IP:127.0.0.1")))
                for i, ca in enumerate((authority, fresh)))
    os.link(authority[1], used)
    router = Router([old, new], "--ca-cert-path", used, stderr=log)
    wait_until(lambda: {router.instances()[s.url]["state"] for s in (old, new)} == {"up", "down"})
    with open(used + ".next", "w", encoding="ascii") as f:
        for name in (authority[1], fresh[1]):
            with open(name, encoding="ascii") as part:
                f.write(part.read())
    os.replace(used + ".next", used)
    router.wait_up(2)
    os.remove(used)
    router.process.send_signal(signal.SIGHUP)
    wait_until(lambda: "no connection to an https server can be made" in log.text())
    assert router.stop() == 0
    for s in (old, new):
        assert s.stop() == 0


def check_name(folder, authority):
    """Servers of a name have certificates of the name."""
    if not can_bind_files():
        print("nobody here may have an /etc/hosts of its own")
        return
    of_name = server(*tls(make_certificate(folder, "name", ca=authority, of="DNS:pool")))
    of_address = server("--host", "127.0.0.2", "--port", str(of_name.port),
                        *tls(make_certificate(folder, "address", ca=authority, of="IP:127.0.0.2")))
    set_addresses, before = own_hosts(folder)
    set_addresses("127.0.0.1", "127.0.0.2")
    router = Router([], "--ca-cert-path", authority[1], f"dns+https://pool:{of_name.port}", before=before)
    wait_until(lambda: sorted(s["state"] for s in router.instances().values()) == ["down", "up"])
    assert router.instances()[of_name.url]["state"] == "up"
    assert "does not match" in router.instances()[of_address.url]["why"]
    assert ask(router, "/v1/completions", {"prompt": "x", "max_tokens": 1})[0] == 200
    assert router.stop() == 0
    for s in (of_name, of_address):
        assert s.stop() == 0


def main():
    with tempfile.TemporaryDirectory() as folder:
        authority = make_certificate(folder, "authority")
        other = make_certificate(folder, "other")
        pair = make_certificate(folder, "router", ca=authority)
        stranger = make_certificate(folder, "stranger", ca=other)
        check_refusals(folder, authority, pair, stranger)
        check_servers(folder, authority, pair, stranger)
        check_renewal(folder, authority)
        check_name(folder, authority)
    print("who is who is known: authorities, names, certificates of the router, renewals")


if __name__ == "__main__":
    import sys
    take_program(sys.argv)
    main()
