#!/usr/bin/env python3
"""The Debian package in a bare Debian 12: it installs with what it depends on, serves, and goes.

    tests/e2e/test_package.py path/to/fathom

Needs root, debootstrap and a mirror; the bare system is kept beside the build.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
import urllib.request

from served import HANG_S, wait_until

FATHOM = os.path.abspath(sys.argv.pop(1))
BUILD = os.path.dirname(FATHOM)
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BARE = os.path.join(os.path.dirname(BUILD), "debian12")
HOLD_PROC = ('mount -t proc proc "$0/proc" && mount --bind /dev "$0/dev" && '
             'exec chroot "$0" "$@"')


def skip(why):
    print(f"skipped: {why}")
    sys.exit(77)


def bare_system():
    if os.geteuid() != 0:
        skip("only root can make a chroot")
    if not shutil.which("debootstrap") or not shutil.which("dpkg-shlibdeps"):
        skip("debootstrap or dpkg-dev is not installed")
    if os.path.exists(os.path.join(BARE, "usr/bin/apt-get")):
        return
    shutil.rmtree(BARE, ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=os.path.dirname(BARE)) as part:
        made = subprocess.run(["debootstrap", "--variant=minbase", "bookworm", part],
                              capture_output=True, text=True, check=False)
        if made.returncode:
            skip("no bare Debian 12: " + made.stdout.strip().rsplit("\n", 1)[-1])
        shutil.copytree(part, BARE, symlinks=True, copy_function=shutil.copy2,
                        ignore=shutil.ignore_patterns("dev", "proc"))


class Package(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.chroot = tempfile.mkdtemp(dir=os.path.dirname(BARE))
        cls.addClassCleanup(shutil.rmtree, cls.chroot, ignore_errors=True)
        subprocess.run(["cp", "-a", BARE + "/.", cls.chroot], check=True)
        for folder in ("dev", "proc"):
            os.makedirs(os.path.join(cls.chroot, folder), exist_ok=True)
        packages = os.path.join(cls.chroot, "root")
        made = subprocess.run([os.path.join(ROOT, "tools/deb"), BUILD, packages], text=True,
                              capture_output=True, check=True).stdout.strip()
        cls.package = "/root/" + os.path.basename(made)
        cls.name = os.path.basename(made).split("_")[0]

    def inside(self, *command, status=0):
        done = subprocess.run(["unshare", "-m", "sh", "-c", HOLD_PROC, self.chroot, *command],
                              capture_output=True, text=True, timeout=1000, check=False,
                              env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root",
                                   "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C"})
        self.assertEqual(done.returncode, status, f"{command}\n{done.stdout}\n{done.stderr}")
        return done.stdout

    def ask(self):
        """The package's own configuration serves, and a client outside gets an answer."""
        server = subprocess.Popen(
            ["unshare", "-m", "sh", "-c", HOLD_PROC, self.chroot, "fathom", "serve", "--config",
             "/etc/fathom/serve.yaml", "--port", "0"], stdout=subprocess.PIPE, text=True)
        try:
            address = None
            for line in server.stdout:
                if line.startswith("address"):
                    address = line.split()[1]
                if line.startswith("ready"):
                    break
            self.assertIsNotNone(address)
            body = json.dumps({"model": "pilot", "prompt": "The", "max_tokens": 4}).encode()
            request = urllib.request.Request(address + "/completions", body,
                                             {"Content-Type": "application/json"})
            with urllib.request.urlopen(request, timeout=HANG_S) as answer:
                return json.load(answer)
        finally:
            server.terminate()
            wait_until(lambda: server.poll() is not None)
            server.stdout.close()

    def test_it_installs_serves_and_goes(self):
        # as an image that brings its options does it (deploy/terraform)
        with open(ROOT + "/deploy/terraform/README.md", encoding="utf-8") as f:
            words = re.search(r"- apt-get (install .*) /root/fathom", f.read()).group(1).split()
        options = os.path.join(self.chroot, "etc/fathom/serve.yaml")
        os.makedirs(os.path.dirname(options))
        with open(options, "w", encoding="ascii") as f:
            f.write("model: pilot\nmax-num-seqs: 4\n")
        self.inside("apt-get", "update", "-qq")
        self.inside("apt-get", *words, "-qq", "--no-install-recommends", self.package)
        with open(options, encoding="ascii") as f:
            self.assertIn("max-num-seqs: 4", f.read())
        self.assertRegex(self.inside("fathom", "version"), r"^fathom \d")
        self.assertEqual(self.inside("dpkg", "--verify", self.name), "")
        self.assertTrue(self.ask()["choices"][0]["text"])
        self.inside("apt-get", "purge", "-y", "-qq", self.name)
        self.inside("test", "-e", "/usr/bin/fathom", status=1)
        self.inside("test", "-e", "/etc/fathom", status=1)


if __name__ == "__main__":
    bare_system()
    unittest.main(argv=[sys.argv[0], "-v"])
