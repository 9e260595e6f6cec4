#!/usr/bin/env python3
"""What `fathom pull` makes is a cache that huggingface_hub, the hub's own library, finds all in.

    tests/clients/hub_check.py path/to/fathom
"""

import os
import subprocess
import sys
import tempfile
import unittest

import client_env

client_env.enter("huggingface-hub")
sys.path.insert(0, os.path.join(client_env.ROOT, "tests/e2e"))

from fake_hub import COMMIT, Hub  # noqa: E402 pylint: disable=wrong-import-position

FATHOM = os.path.abspath(sys.argv.pop(1))
FILES = {"config.json": b"{}\n", "folder/model.safetensors": b"x" * 100000}


class HubLibrary(unittest.TestCase):
    def test_it_finds_every_file_and_reference(self):
        hub = Hub(FILES, ("folder/model.safetensors",))
        self.addCleanup(hub.close)
        with tempfile.TemporaryDirectory() as home:
            env = {k: v for k, v in os.environ.items() if not k.lower().endswith("_proxy")}
            env.update(HF_HOME=home, HF_ENDPOINT=hub.url)
            subprocess.run([FATHOM, "pull", "org/name"], env=env, check=True, capture_output=True,
                           timeout=client_env.HANG_S)
            os.environ["HF_HUB_OFFLINE"] = "1"
            # pylint: disable=import-outside-toplevel
            from huggingface_hub import scan_cache_dir, snapshot_download
            cache = os.path.join(home, "hub")
            folder = snapshot_download("org/name", cache_dir=cache, local_files_only=True)
            self.assertTrue(folder.endswith(COMMIT))
            for name, data in FILES.items():
                with open(os.path.join(folder, name), "rb") as f:
                    self.assertEqual(f.read(), data)
            seen = scan_cache_dir(cache)
            self.assertEqual(seen.warnings, [])
            self.assertEqual([r.repo_id for r in seen.repos], ["org/name"])
            self.assertEqual([sorted(v.refs) for r in seen.repos for v in r.revisions], [["main"]])
            self.assertEqual(seen.size_on_disk, sum(map(len, FILES.values())))


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v"])
