#!/usr/bin/env python3
"""What `cmake --install` brings: program, pages, completion, units, the library with pkg-config.

    tests/e2e/test_install.py path/to/fathom

A part whose tool is not here says so and skips.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

from served import HANG_S, Server

FATHOM = Server.path = os.path.abspath(sys.argv.pop(1))
BUILD = os.path.dirname(FATHOM)
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
EMBEDDER = """
#include <stdio.h>
#include <fathom/fathom.h>
int main(void)
{
    fathom_engine *e;
    fathom_diag d = {{0}};
    fathom_options o = {.model_dir = "/nowhere"};
    fathom_err err = fathom_open(&e, &o, &d);
    printf("%s: %s\\n", err ? "refused" : "open", d.text);
    return err ? 0 : 1;
}
"""


def out(*command, **more):
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=HANG_S,
                          **more).stdout


def needs(*tools):
    missing = [tool for tool in tools if not shutil.which(tool)]
    return unittest.skipIf(missing, f"{', '.join(missing)}: not installed")


class Install(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.prefix = tempfile.mkdtemp()
        cls.addClassCleanup(shutil.rmtree, cls.prefix)
        out("cmake", "--install", BUILD, "--prefix", cls.prefix, "--component", "program")

    def at(self, *path):
        return os.path.join(self.prefix, *path)

    def test_the_program_runs_from_where_it_is_installed(self):
        self.assertRegex(out(self.at("bin/fathom"), "version"), r"^fathom \d+\.\d+\.\d+$")

    def test_a_staged_install_lies_under_destdir_and_speaks_of_the_prefix(self):
        with tempfile.TemporaryDirectory() as stage:
            out("cmake", "--install", BUILD, "--prefix", "/opt/f", "--component", "program",
                env={**os.environ, "DESTDIR": stage})
            with open(stage + "/opt/f/lib/systemd/system/fathom.service", encoding="utf-8") as f:
                self.assertIn("ExecStart=/opt/f/bin/fathom serve --config", f.read())
            self.assertEqual(os.listdir(stage), ["opt"])

    def test_every_command_has_a_manual_page(self):
        commands = re.findall(r"^  fathom ([a-z]+(?: [a-z]+)?)", out(FATHOM, "help"), re.M)
        pages = set(os.listdir(self.at("share/man/man1")))
        self.assertEqual(pages, {"fathom.1"} | {f"fathom-{c.replace(' ', '-')}.1"
                                               for c in commands})

    @needs("man", "groff")
    def test_manual_pages_are_set_without_a_warning(self):
        folder = self.at("share/man/man1")
        for page in os.listdir(folder):
            done = subprocess.run(["man", "--warnings", "-l", os.path.join(folder, page)],
                                  capture_output=True, text=True, check=True,
                                  env={**os.environ, "MANWIDTH": "100", "LC_ALL": "C.UTF-8"})
            self.assertEqual(done.stderr, "", page)
        self.assertIn("--max-model-len", out("man", "-l", self.at("share/man/man1/fathom-serve.1"),
                                             env={**os.environ, "LC_ALL": "C.UTF-8"}))

    def complete(self, *words):
        script = (f"source {self.at('share/bash-completion/completions/fathom')}\n"
                  "COMP_WORDS=(\"$@\") COMP_CWORD=$(($# - 1))\n_fathom\n"
                  "printf '%s\\n' \"${COMPREPLY[@]}\"")
        return set(out("bash", "-c", script, "bash", *words).split())

    def test_bash_completes_commands_options_and_choices(self):
        self.assertIn("serve", self.complete("fathom", "s"))
        self.assertEqual(self.complete("fathom", "bench", "sw"), {"sweep"})
        self.assertEqual(self.complete("fathom", "serve", "--max-model"), {"--max-model-len"})
        self.assertEqual(self.complete("fathom", "serve", "--backend", "c"), {"cpu", "cuda"})
        self.assertEqual(self.complete("fathom", "serve", "--backend", "=", "r"), {"ref"})
        self.assertEqual(self.complete("fathom", "serve", "--backend", "="),
                         {"auto", "ref", "cpu", "cuda"})
        self.assertEqual(self.complete("fathom", "serve", "/etc"), set())  # files: bash's own

    @needs("systemd-analyze")
    def test_the_units_are_what_systemd_understands(self):
        units = [self.at("lib/systemd/system", name)
                 for name in ("fathom.service", "fathom.socket", "fathom-router.service")]
        os.makedirs(units[0] + ".d", exist_ok=True)  # what fathom-cuda brings besides
        shutil.copy(os.path.join(ROOT, "deploy/systemd/cuda.conf"), units[0] + ".d")
        done = subprocess.run(["systemd-analyze", "verify", "--man=no", *units], text=True,
                              capture_output=True, check=False)
        said = [line for line in done.stderr.splitlines() if "fathom" in line]
        self.assertEqual((done.returncode, said), (0, []))
        shutil.rmtree(units[0] + ".d")

    @needs("systemd-analyze")
    def test_the_services_can_do_little(self):
        done = subprocess.run(["systemd-analyze", "security", "--offline=true", "--threshold=15",
                               self.at("lib/systemd/system/fathom.service"),
                               self.at("lib/systemd/system/fathom-router.service")], text=True,
                              capture_output=True, check=False)
        if "unrecognized option" in done.stderr:
            self.skipTest("this systemd-analyze does not look at files")
        self.assertEqual(done.returncode, 0, done.stdout[-2000:])

    def allowed_calls(self, unit):
        with open(self.at("lib/systemd/system", unit), encoding="utf-8") as f:
            rules = re.findall(r"^SystemCallFilter=(.*)$", f.read(), re.M)
        allowed = set()
        for rule in rules:
            calls = set().union(*(system_calls(word) for word in rule.lstrip("~").split()))
            allowed = allowed - calls if rule.startswith("~") else allowed | calls
        return allowed

    @needs("systemd-analyze", "strace")
    def test_a_router_with_its_units_options_does_nothing_that_the_unit_forbids(self):
        options = os.path.join(ROOT, "deploy/systemd/router.yaml")
        with tempfile.NamedTemporaryFile("r") as log:
            router = subprocess.Popen(["strace", "-D", "-f", "-qq", "-o", log.name, FATHOM, "router",
                                       "--config", options, "--port", "0"], text=True,
                                      stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
            said = [next(router.stdout) for _ in range(3)]
            self.assertEqual(said[0].split(), ["servers", "http://127.0.0.1:8000"])
            at = re.search(r"http://\S+:\d+", said[2]).group()
            # no server may be up: what is looked at is that it answers
            subprocess.run([FATHOM, "health", at], capture_output=True, check=False)
            router.terminate()
            router.communicate(timeout=HANG_S)
            self.assertEqual(router.returncode, 0)
            used = set(re.findall(r"^\d+ +([a-z]\w*)\(", log.read(), re.M))
        self.assertIn("epoll_wait", used)
        self.assertEqual(used - self.allowed_calls("fathom-router.service"), set())

    @needs("systemd-analyze", "strace")
    def test_the_server_calls_the_system_for_nothing_that_the_unit_forbids(self):
        with tempfile.NamedTemporaryFile("r") as log:
            traced = Server.path
            with tempfile.NamedTemporaryFile("w", suffix=".sh", delete=False) as wrapper:
                wrapper.write(f"#!/bin/sh\nexec strace -D -f -qq -o {log.name} {FATHOM} \"$@\"\n")
            os.chmod(wrapper.name, 0o755)
            Server.path = wrapper.name
            try:
                server = Server()
                server.post("/v1/completions", {"model": "pilot", "prompt": "a", "max_tokens": 2})
                server.process.terminate()
                self.assertEqual(server.process.wait(HANG_S), 0)
            finally:
                Server.path = traced
                os.unlink(wrapper.name)
            used = set(re.findall(r"^\d+ +([a-z]\w*)\(", log.read(), re.M))
        self.assertIn("epoll_wait", used)
        self.assertEqual(used - self.allowed_calls("fathom.service"), set())

    @needs("cc", "pkg-config")
    def test_a_program_is_built_with_the_library_that_is_installed(self):
        if not os.path.exists(os.path.join(BUILD, "libfathom.a")):
            self.skipTest("libfathom.a is not built")
        prefix = os.path.join(self.prefix, "library")
        out("cmake", "--install", BUILD, "--prefix", prefix, "--component", "library")
        found = [at for at, _, names in os.walk(prefix) if "fathom.pc" in names]
        env = {**os.environ, "PKG_CONFIG_PATH": found[0]}
        source = os.path.join(self.prefix, "embed.c")
        with open(source, "w", encoding="utf-8") as f:
            f.write(EMBEDDER)
        flags = out("pkg-config", "--cflags", "--libs", "fathom", env=env).split()
        out("cc", source, "-o", self.at("embed"), *flags)
        self.assertRegex(out(self.at("embed")), "^refused: .*/nowhere")

    @needs("objdump", "ldd")
    def test_the_bill_of_materials_names_every_library(self):
        made = [out(os.path.join(ROOT, "tools/sbom"), BUILD) for _ in range(2)]
        self.assertEqual(made[0], made[1])
        sbom = json.loads(made[0])
        self.assertEqual(sbom["spdxVersion"], "SPDX-2.3")
        ids = [p["SPDXID"] for p in sbom["packages"]]
        self.assertEqual(len(ids), len(set(ids)))
        for link in sbom["relationships"]:
            for end in ("spdxElementId", "relatedSpdxElement"):
                self.assertIn(link[end], [*ids, "SPDXRef-DOCUMENT"])
        linked = re.findall(r"NEEDED +(lib\S+)", out("objdump", "-p", FATHOM))
        dynamic = [r for r in sbom["relationships"] if r["relationshipType"] == "DYNAMIC_LINK"]
        self.assertGreater(len(dynamic), 5)
        self.assertLessEqual(len(dynamic), len(linked))
        if shutil.which("dpkg-query"):
            self.assertIn("libjansson4", [p["name"] for p in sbom["packages"]])

    @needs("dpkg-deb", "dpkg-shlibdeps", "strip")
    def test_a_package_has_the_same_bytes_every_time(self):
        with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as two:
            env = {**os.environ, "SOURCE_DATE_EPOCH": "1700000000", "PACKAGE_COMPRESSION": "gzip"}
            files = [out(os.path.join(ROOT, "tools/deb"), BUILD, folder, env=env).strip()
                     for folder in (one, two)]
            with open(files[0], "rb") as a, open(files[1], "rb") as b:
                self.assertEqual(a.read(), b.read())
            names = out("dpkg-deb", "-c", files[0])
            for name in ("usr/bin/fathom", "lib/systemd/system/fathom.service",
                         "lib/sysusers.d/fathom.conf", "etc/fathom/serve.yaml",
                         "lib/systemd/system/fathom-router.service", "etc/fathom/router.yaml",
                         "man1/fathom-serve.1.gz", "bash-completion/completions/fathom"):
                self.assertIn(name, names)
            self.assertIn("libjansson4", out("dpkg-deb", "-f", files[0], "Depends"))


def system_calls(word):
    """The system calls of a name: one, or a set of systemd's."""
    if not word.startswith("@"):
        return {word}
    lines = out("systemd-analyze", "syscall-filter", word).splitlines()[1:]
    names = [line.strip() for line in lines if line.strip() and not line.strip().startswith("#")]
    return set().union(*(system_calls(name) for name in names))


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v"])
