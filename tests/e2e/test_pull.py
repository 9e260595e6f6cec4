#!/usr/bin/env python3
"""`fathom pull` against a hub with faults: what is there after is whole, or nothing; one line says
why, and the next run goes on.

    tests/e2e/test_pull.py path/to/fathom
"""

import os
import pty
import random
import signal
import subprocess
import sys
import tempfile
import unittest

from fake_hub import COMMIT, Hub
from served import HANG_S, wait_until

FATHOM = os.path.abspath(sys.argv.pop(1))
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SHARD = random.Random(1).randbytes(3_000_000)


def files():
    return {"config.json": b"{}\n", "empty": b"", "sub dir/deep/notes.txt": b"notes\n",
            "model-1.safetensors": SHARD, "model-2.safetensors": SHARD[::-1], "twin": SHARD,
            "model.gguf": b"other"}


LARGE = ("model-1.safetensors", "model-2.safetensors", "twin")


class Pull(unittest.TestCase):
    def setUp(self):
        self.hub = Hub(files(), LARGE)
        self.addCleanup(self.hub.close)
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.home = folder.name
        self.env = {k: v for k, v in os.environ.items()
                    if not k.startswith(("HF_", "FATHOM", "VLLM", "MODELSCOPE"))
                    and not k.lower().endswith("_proxy")}
        self.env.update(HF_HOME=self.home, HF_ENDPOINT=self.hub.url)
        self.folder = os.path.join(self.home, "hub", "models--org--name")

    def pull(self, *flags, status=0, repository="org/name", wrap=(), **env):
        done = subprocess.run([*wrap, FATHOM, "pull", repository, *flags], capture_output=True,
                              text=True, timeout=HANG_S, env={**self.env, **env}, check=False)
        self.assertEqual(done.returncode, status, done.stdout + done.stderr)
        if status:
            self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
        return done.stdout if status == 0 else done.stderr

    def at(self, *path):
        return os.path.join(self.folder, *path)

    def check_whole(self, commit=COMMIT):
        snapshot = self.at("snapshots", commit)
        for name, data in self.hub.files.items():
            if name == "model.gguf":
                continue
            path = os.path.join(snapshot, name)
            self.assertTrue(os.path.islink(path), name)
            with open(path, "rb") as f:
                self.assertEqual(f.read(), data, name)
        self.assertFalse(os.path.exists(os.path.join(snapshot, "model.gguf")))
        self.assertEqual([b for b in os.listdir(self.at("blobs")) if "." in b], [])
        with open(self.at("refs", "main"), encoding="ascii") as f:
            self.assertEqual(f.read(), commit)

    def check_nothing_half_done(self):
        self.assertFalse(os.path.exists(self.at("snapshots")))
        self.assertFalse(os.path.exists(self.at("refs")))

    def test_a_repository_comes_whole_into_the_hubs_layout(self):
        said = self.pull()
        self.assertIn(f"org/name at {COMMIT}", said)
        self.assertIn("1 weights of other programs are left out", said)
        self.assertIn(self.at("snapshots", COMMIT), said)
        self.check_whole()
        self.assertEqual(len(os.listdir(self.at("blobs"))), 5)  # the twin is the same blob

    def test_a_second_pull_fetches_nothing(self):
        self.pull()
        self.hub.cdn_asked.clear()
        self.pull(repository="https://huggingface.co/org/name/tree/main")
        self.assertEqual(self.hub.cdn_asked, [])

    def test_what_it_made_is_what_the_hubs_own_library_would_find(self):
        self.pull()
        blob = os.readlink(self.at("snapshots", COMMIT, "sub dir/deep/notes.txt"))
        self.assertTrue(blob.startswith("../../../../blobs/"), blob)
        self.assertEqual(len(os.path.basename(blob)), 40)
        large = os.readlink(self.at("snapshots", COMMIT, "model-1.safetensors"))
        self.assertEqual(len(os.path.basename(large)), 64)

    def test_a_model_that_was_pulled_is_found_by_its_name(self):
        pilot = os.path.join(ROOT, "models/pilot")
        contents = {}
        for name in os.listdir(pilot):
            with open(os.path.join(pilot, name), "rb") as f:
                contents[name] = f.read()
        self.hub.files = contents
        self.hub.large = {name for name in contents if name.endswith(".safetensors")}
        before = subprocess.run([FATHOM, "inspect", "org/name"], env=self.env, text=True,
                                capture_output=True, check=False)
        self.assertIn("`fathom pull org/name`", before.stderr)
        self.pull()
        after = subprocess.run([FATHOM, "inspect", "org/name"], env=self.env, text=True,
                               capture_output=True, check=False)
        self.assertEqual(after.returncode, 0, after.stderr)
        verified = subprocess.run([FATHOM, "doctor", "org/name", "--verify"], env=self.env,
                                  text=True, capture_output=True, check=False)
        self.assertNotIn("differs", verified.stdout)

    def test_connections_that_are_cut_go_on_where_they_stopped(self):
        self.hub.faults = {"model-1.safetensors": ["cut", "cut", "silent", "cut"],
                           "config.json": ["silent"]}
        self.pull()
        self.check_whole()
        ranges = [r for name, r, _ in self.hub.cdn_asked if name == "model-1.safetensors" and r]
        self.assertTrue(ranges)
        starts = [int(r.split("=")[1].rstrip("-")) for r in ranges]
        self.assertEqual(starts, sorted(starts))
        self.assertGreater(starts[0], 0)

    def test_a_hub_that_is_busy_or_broken_for_a_while_is_waited_for(self):
        self.hub.faults = {"list": ["busy", "broken"], "model-2.safetensors": ["broken", "busy"]}
        self.pull()
        self.check_whole()

    def test_a_hub_that_stays_broken_is_named_and_nothing_is_half_done(self):
        self.hub.faults = {"model-2.safetensors": ["broken"] * 9}
        said = self.pull(status=1)
        self.assertIn("model-2.safetensors: the hub answers 503", said)
        self.assertIn("run the command again", said)
        self.check_nothing_half_done()
        self.hub.faults = {}
        self.pull()
        self.check_whole()

    def test_one_wrong_checksum_is_fetched_again_and_two_end_the_pull(self):
        self.hub.faults = {"model-1.safetensors": ["wrong"], "config.json": ["wrong"]}
        self.pull()
        self.check_whole()
        self.hub.files["new"] = b"new\n"
        self.hub.faults = {"new": ["wrong", "wrong"]}
        self.assertIn("new: what came has not the sum", self.pull(status=1))
        self.pull()
        self.check_whole()

    def test_more_than_was_listed_is_refused(self):
        self.hub.faults = {"config.json": ["long"] * 9}
        self.assertIn("config.json: the hub sends more than", self.pull(status=1))
        self.check_nothing_half_done()

    def test_a_part_of_a_run_that_was_killed_is_gone_on_from(self):
        self.hub.faults = {"model-1.safetensors": ["cut"] + ["broken"] * 9}
        self.pull("--parallel", "1", status=1)
        parts = [name for name in os.listdir(self.at("blobs")) if name.endswith(".incomplete")]
        self.assertEqual(len(parts), 1)
        had = os.path.getsize(self.at("blobs", parts[0]))
        self.assertGreater(had, 0)
        self.hub.faults = {}
        self.hub.cdn_asked.clear()
        self.pull()
        self.check_whole()
        self.assertIn(f"bytes={had}-", [r for _, r, _ in self.hub.cdn_asked])

    def test_a_part_that_is_spoilt_or_too_long_is_begun_anew(self):
        for contents in (b"x" * 100, b"x" * (len(SHARD) + 1), SHARD):
            os.makedirs(self.at("blobs"), exist_ok=True)
            row = self.hub.listing()["siblings"][3]
            with open(self.at("blobs", row["lfs"]["sha256"] + ".incomplete"), "wb") as f:
                f.write(contents)
            self.pull()
            self.check_whole()
            os.unlink(self.at("blobs", row["lfs"]["sha256"]))

    def test_a_hub_without_ranges_sends_all_again(self):
        self.hub.faults = {"model-1.safetensors": ["cut", "all"]}
        self.pull()
        self.check_whole()

    def test_a_hub_that_never_gets_further_is_given_up(self):
        self.hub.faults = {"model-1.safetensors": ["cut all"] * 1000}
        self.assertIn("run the command again", self.pull(status=1))
        self.assertLess(len(self.hub.cdn_asked), 20)
        self.hub.faults = {"model-1.safetensors": ["cut all", "wrong", "cut", "cut"]}
        self.pull()
        self.check_whole()

    def test_no_space_is_told_and_what_has_come_stays(self):
        limit = ("bash", "-c", 'trap "" XFSZ; ulimit -f 1000; exec "$@"', "bash")
        said = self.pull(status=1, wrap=limit)  # a file of at most 1 MB: the disk's own refusal
        self.assertRegex(said, "File too large|no space is left")
        self.check_nothing_half_done()
        self.pull()
        self.check_whole()

    def test_too_small_a_disk_is_told_before_anything_is_fetched(self):
        listing = self.hub.listing()
        listing["siblings"][3]["lfs"]["size"] = 1 << 49
        self.hub.listing = lambda: listing
        said = self.pull(status=1)
        self.assertIn("make room, or set HF_HOME", said)
        self.assertEqual(self.hub.cdn_asked, [])

    def test_the_key_goes_to_the_hub_and_not_where_it_redirects_to(self):
        self.hub.token = "secret"
        self.pull(HF_TOKEN="secret")
        self.check_whole()
        self.assertEqual({a for _, _, a in self.hub.asked}, {"Bearer secret"})
        self.assertEqual({a for _, _, a in self.hub.cdn_asked}, {None})

    def test_the_key_that_was_kept_at_a_login_is_used(self):
        self.hub.token = "kept"
        with open(os.path.join(self.home, "token"), "w", encoding="ascii") as f:
            f.write("kept\n")
        self.pull()
        self.check_whole()

    def test_the_file_of_the_key_may_lie_elsewhere(self):
        self.hub.token = "other"
        path = os.path.join(self.home, "elsewhere")
        with open(path, "w", encoding="ascii") as f:
            f.write("other")
        self.pull(HF_TOKEN_PATH=path)
        self.check_whole()

    def test_a_file_of_a_key_that_gives_none_is_told(self):
        path = os.path.join(self.home, "token")
        os.symlink(path, path)
        self.told(path + ": cannot be opened: Too many levels of symbolic links; the hub is asked "
                  "without a key")
        os.unlink(path)
        for text in "", "\n", "two keys\n", "k" * 600, "k\0":
            with open(path, "w", encoding="ascii") as f:
                f.write(text)
            self.told(path + ": is not a line with a key; the hub is asked without a key")
        os.unlink(path)
        self.told("")
        path = os.path.join(self.home, "nowhere")
        self.told(path + ": cannot be opened: No such file or directory; the hub is asked without "
                  "a key", HF_TOKEN_PATH=path)
        self.assertEqual({a for _, _, a in self.hub.asked}, {None})

    def told(self, line, **env):
        done = subprocess.run([FATHOM, "pull", "org/name"], capture_output=True, text=True,
                              timeout=HANG_S, env={**self.env, **env}, check=True)
        self.assertEqual(done.stderr, f"fathom: {line}\n" if line else "")

    def test_the_cache_may_lie_elsewhere(self):
        for flags, env in ((("--download-dir", self.at("..", "a")), {}),
                           ((), {"HF_HUB_CACHE": self.at("..", "b")})):
            said = self.pull(*flags, **env)
            folder = flags[1] if flags else env["HF_HUB_CACHE"]
            self.assertIn(os.path.join(folder, "models--org--name", "snapshots", COMMIT), said)
        self.check_nothing_half_done()

    def test_what_cannot_be_had_is_said_in_one_line(self):
        self.assertIn('no revision "v9"', self.pull("--revision", "v9", status=1))
        self.assertIn("there is none (404)", self.pull(repository="org/other", status=1))
        self.assertIn("is no repository", self.pull(repository="other", status=1))
        for bad in "../x", "", "/x", "a//b":
            self.assertIn("is no branch", self.pull("--revision", bad, status=1))
        self.assertIn('no revision "refs/pr/1"', self.pull("--revision", "refs/pr/1", status=1))
        self.assertIn("needed is https://HOST", self.pull(status=1, HF_ENDPOINT="ftp://x"))
        self.hub.token = "t"
        self.assertIn("set HF_TOKEN", self.pull(status=1))
        self.assertIn("the key in HF_TOKEN is not let in", self.pull(status=1, HF_TOKEN="bad"))
        self.hub.gated = True
        self.assertIn("is gated: accept its terms at", self.pull(status=1))
        self.assertFalse(os.path.exists(self.folder))

    def test_no_network_is_one_line(self):
        said = self.pull(status=1, HF_ENDPOINT="http://127.0.0.1:9")
        self.assertIn("run the command again", said)

    def test_a_list_that_leaves_its_folder_is_refused(self):
        listing = self.hub.listing()
        listing["siblings"][0]["rfilename"] = "../../escape"
        self.hub.listing = lambda: listing
        self.assertIn("is no name of a file", self.pull(status=1))

    def test_a_second_pull_at_the_same_time_is_refused(self):
        self.hub.faults = {"model-1.safetensors": ["broken"] * 4}
        first = subprocess.Popen([FATHOM, "pull", "org/name"], env=self.env,
                                 stdout=subprocess.DEVNULL)
        wait_until(lambda: os.path.isdir(self.folder) and self.hub.cdn_asked)
        said = self.pull(status=1)
        self.assertIn("another pull of org/name runs", said)
        self.assertEqual(first.wait(HANG_S), 0)
        self.check_whole()

    def test_an_interrupt_leaves_what_can_be_gone_on_from(self):
        self.hub.faults = {"model-1.safetensors": ["busy"] * 1000}
        first = subprocess.Popen([FATHOM, "pull", "org/name"], env=self.env,
                                 stdout=subprocess.DEVNULL)
        wait_until(lambda: any(name == "model-1.safetensors" for name, _, _ in self.hub.cdn_asked))
        first.send_signal(signal.SIGINT)
        self.assertNotEqual(first.wait(HANG_S), 0)
        self.check_nothing_half_done()
        self.hub.faults = {}
        self.pull()
        self.check_whole()

    def test_modelscope_is_asked_in_its_own_way(self):
        out = self.pull(VLLM_USE_MODELSCOPE="True", MODELSCOPE_DOMAIN=self.hub.url)
        commit = out.split(" at ")[1].split()[0]
        self.check_whole(commit)
        self.assertTrue(all(path.startswith("/api/v1/") for path, _, _ in self.hub.asked))

    def test_a_terminal_sees_how_far_it_has_got(self):
        self.hub.faults = {"model-1.safetensors": ["busy"]}
        master, slave = pty.openpty()
        process = subprocess.Popen([FATHOM, "pull", "org/name"], env=self.env,
                                   stdout=subprocess.DEVNULL, stderr=slave)
        os.close(slave)
        seen = b""
        try:
            while chunk := os.read(master, 4096):
                seen += chunk
        except OSError:  # the other end is closed
            pass
        os.close(master)
        self.assertEqual(process.wait(HANG_S), 0)
        self.assertIn(b"pulling", seen)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v"])
