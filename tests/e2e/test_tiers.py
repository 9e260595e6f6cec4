#!/usr/bin/env python3
"""Pages in a directory: they outlive the server, however it ends, and no answer depends on them.

    tests/e2e/test_tiers.py [FLAGS] path/to/fathom

The server is killed under load TIER_KILLS times (default 5); every new one gives the answers of a
server without tiers, tokens and log-probabilities, and finds what the ones before have left.
"""

import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import unittest

from served import HANG_S, Server, take_program, wait_until

N_KILL = int(os.environ.get("TIER_KILLS", "5"))
# Two requests have room in the cache: whatever comes third drives the first one out.
SMALL = ("--max-model-len", "512", "--max-num-seqs", "2", "--kv-cache-memory-bytes", "11M",
         "--seed", "1")
STORED = "fathom_kv_tier_stored_pages_total"
WORDS = "the quick brown fox jumps over a lazy dog while seven wizards count to ten".split()


def text(i):
    rng = random.Random(i)
    return " ".join(rng.choice(WORDS) for _ in range(230))


def ask(server, i):
    """What the answer says of itself, and how many prompt tokens were found."""
    body = {"model": "pilot", "prompt": text(i), "max_tokens": 8, "temperature": 0,
            "ignore_eos": True, "logprobs": 1}
    answer = server.post("/v1/completions", body)
    choice = answer["choices"][0]
    usage = answer["usage"]
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
    return (choice["text"], choice["logprobs"]["token_logprobs"]), cached


def total(metrics, name, label=""):
    return sum(v for k, v in metrics.items() if k.startswith(name + "{") and label in k)


class Tiers(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        server = Server(*SMALL)
        cls.expected = [ask(server, i)[0] for i in range(4)]
        server.stop()

    def setUp(self):
        self.dir = tempfile.mkdtemp(prefix="fathom-tiers-")

    def tearDown(self):
        shutil.rmtree(self.dir)

    def start(self, *flags):
        size = () if flags else ("--kv-offload-dir-size", "40M")
        return Server(*SMALL, "--kv-offload-dir", self.dir, *size, *flags)

    def expect(self, server, i):
        answer, cached = ask(server, i)
        self.assertEqual(answer, self.expected[i])
        return cached

    def expect_all(self, server):
        return sum(self.expect(server, i) for i in range(4))

    def load(self, server):
        """Requests until the server is gone; an answer that comes is right. New texts are written
        over the records of old ones."""
        rng = random.Random(threading.get_ident())
        while True:
            try:
                self.expect(server, rng.randrange(4))
                ask(server, rng.randrange(100, 1 << 30))
            except (OSError, ValueError, EOFError):
                return
            except Exception as error:  # http.client's, of an answer cut off; or a wrong answer
                if isinstance(error, AssertionError):
                    self.wrong.append(error)
                return

    def test_a_killed_server_leaves_what_the_next_one_can_use(self):
        self.wrong = []
        for kill in range(N_KILL):
            server = self.start("--kv-offload-dir-size", "20M")  # 31 pages: eight texts
            threads = [threading.Thread(target=self.load, args=(server,)) for _ in range(3)]
            for thread in threads:
                thread.start()
            wait_until(lambda: total(server.metrics(), STORED, "disk") > 0)
            time.sleep(random.Random(kill).uniform(0.2, 1.2))
            server.process.kill()
            server.process.wait()
            for thread in threads:
                thread.join()
            self.assertEqual(self.wrong, [])
        server = self.start("--kv-offload-dir-size", "20M")
        self.assertGreater(total(server.metrics(), "fathom_kv_tier_pages", "disk"), 0)
        self.expect_all(server)
        metrics = server.metrics()
        n_rejected = total(metrics, "fathom_kv_tier_rejected_total")
        self.assertLessEqual(n_rejected, N_KILL)  # a kill tears one record at most
        self.assertEqual(
            n_rejected, total(metrics, "fathom_kv_tier_rejected_total", 'reason="checksum"'))
        self.assertEqual(server.stop(), 0)

    def test_a_server_that_ends_writes_what_is_worth_finding(self):
        server = self.start()
        self.assertEqual(self.expect(server, 0), 0)
        self.assertEqual(server.stop(), 0)
        server = self.start()
        self.assertGreater(self.expect(server, 0), 128)
        self.assertEqual(server.stop(), 0)

    def test_weights_that_differ_in_one_byte_share_nothing(self):
        """Wherever the byte is: a server with the other weights computes what it is asked, and says
        why it takes no page. The same weights at another path find theirs."""
        models = tempfile.mkdtemp(prefix="fathom-models-")
        self.addCleanup(shutil.rmtree, models)
        pilot = os.path.join(os.path.dirname(__file__), "..", "..", "models", "pilot")
        first = shutil.copytree(pilot, os.path.join(models, "first"))
        other = shutil.copytree(pilot, os.path.join(models, "other"))
        with open(os.path.join(other, "model-00003-of-000003.safetensors"), "r+b") as f:
            f.seek(-1, os.SEEK_END)
            byte = f.read(1)[0]
            f.seek(-1, os.SEEK_END)
            f.write(bytes([byte ^ 1]))
        flags = (*SMALL, "--served-model-name", "pilot", "--kv-offload-dir", self.dir,
                 "--kv-offload-dir-size", "40M")
        server = Server(first, *flags)
        self.assertEqual(ask(server, 0)[1], 0)
        self.assertEqual(server.stop(), 0)
        again = shutil.copytree(first, os.path.join(models, "again"))
        server = Server(again, *flags)
        self.assertGreater(ask(server, 0)[1], 128)
        self.assertEqual(server.stop(), 0)
        with open(os.path.join(models, "log"), "w+") as log:
            server = Server(other, *flags, stderr=log)
            self.assertEqual(ask(server, 0)[1], 0)
            rejected = total(server.metrics(), "fathom_kv_tier_rejected_total", 'reason="model"')
            self.assertGreater(rejected, 0)
            self.assertEqual(server.stop(), 0)
            log.seek(0)
            self.assertIn("model: they are of other weights", log.read())

    def test_a_directory_that_others_can_write_to_is_refused(self):
        os.chmod(self.dir, 0o777)
        server = subprocess.run(
            [Server.path, "serve", "--port", "0", *SMALL, "--kv-offload-dir", self.dir,
             "--kv-offload-dir-size", "40M"], capture_output=True, text=True, timeout=HANG_S)
        self.assertEqual(server.returncode, 1)
        self.assertIn(f"--kv-offload-dir {self.dir} has mode 0777", server.stderr)

    def test_a_directory_has_one_server(self):
        server = self.start()
        second = subprocess.run(
            [Server.path, "serve", "--port", "0", *SMALL, "--kv-offload-dir", self.dir,
             "--kv-offload-dir-size", "40M"], capture_output=True, text=True, timeout=HANG_S)
        self.assertEqual(second.returncode, 1)
        self.assertIn(f"--kv-offload-dir {self.dir} is in use by another process", second.stderr)
        self.expect(server, 1)
        self.assertEqual(server.stop(), 0)

    def test_a_full_disk_hurts_nobody(self):
        server = self.start()
        self.expect(server, 0)
        wait_until(lambda: total(server.metrics(), STORED, "disk") > 0)
        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (4096, hard))
        self.expect_all(server)
        wait_until(lambda: total(server.metrics(), "fathom_kv_tier_write_errors_total") > 0)
        self.expect_all(server)
        self.assertEqual(server.stop(), 0)

    def test_files_that_are_damaged_while_nobody_looks(self):
        server = self.start()
        self.expect_all(server)
        self.assertEqual(server.stop(), 0)
        path = os.path.join(self.dir, "kv.pages")
        with open(path, "r+b") as f:
            for at in range(5000, os.path.getsize(path), 4096):
                f.seek(at)
                f.write(b"rot")
        server = self.start()
        self.expect_all(server)
        metrics = server.metrics()
        self.assertGreater(total(metrics, "fathom_kv_tier_rejected_total", 'reason="checksum"'), 0)
        self.assertEqual(server.stop(), 0)


if __name__ == "__main__":
    take_program(sys.argv)
    unittest.main()
