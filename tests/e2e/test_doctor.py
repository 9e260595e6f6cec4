#!/usr/bin/env python3
"""`fathom doctor`: what it finds on this machine, and in checkpoints that have been damaged.

    tests/e2e/test_doctor.py path/to/fathom
"""

import hashlib
import json
import os
import shutil
import socket
import subprocess
import tempfile
import unittest

from test_cli import PILOT, ROOT, run

FINE = (0, 3)  # 3: a machine that could be better


def findings(*args, status=FINE, env=None):
    """The findings of a run by area; each area's worst level last."""
    allowed = status if isinstance(status, tuple) else (status,)
    for expected in allowed:
        try:
            out, err = run("doctor", "--json", *args, status=expected, env=env)
        except AssertionError:
            if expected == allowed[-1]:
                raise
            continue
        break
    if err:
        raise AssertionError(err)
    report = json.loads(out)
    areas = {}
    for f in report["findings"]:
        areas.setdefault(f["area"], []).append(f)
    return areas, report["worst"]


def levels(areas, area):
    return [f["level"] for f in areas.get(area, [])]


def texts(areas, area):
    return "\n".join(f["text"] + "\n" + f["advice"] for f in areas.get(area, []))


def make_cache(folder):
    """The pilot as the Hugging Face cache keeps it: links to files named by their hash."""
    blobs, snapshot = (os.path.join(folder, "hub", "models--org--small", d)
                       for d in ("blobs", "snapshots/0123"))
    os.makedirs(blobs)
    os.makedirs(snapshot)
    for name in os.listdir(PILOT):
        with open(os.path.join(PILOT, name), "rb") as f:
            data = f.read()
        if name.endswith(".safetensors"):
            digest = hashlib.sha256(data).hexdigest()
        else:
            digest = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
        with open(os.path.join(blobs, digest), "wb") as f:
            f.write(data)
        os.symlink(f"../../blobs/{digest}", os.path.join(snapshot, name))
    return snapshot


class Doctor(unittest.TestCase):
    def test_a_machine_is_looked_at(self):
        areas, _ = findings()
        for area in ("processor", "numa", "memory", "limits", "gpu", "port", "model", "plan",
                     "disk"):
            self.assertIn(area, areas)
        self.assertIn("computes with", texts(areas, "processor"))
        self.assertRegex(texts(areas, "memory"), r"read at \d")
        self.assertEqual(set(levels(areas, "model")), {"ok"})
        self.assertIn("peers", areas)
        out, _ = run("doctor", status=0 if "warn" not in str(areas) else 3)
        self.assertRegex(out, r"(?m)^ok +model ")

    def test_gpus_are_looked_at(self):
        with tempfile.TemporaryDirectory() as folder:
            library = os.path.join(folder, "libnvidia-ml.so.1")
            source = os.path.join(ROOT, "tests/support/fake_nvml.c")
            subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)

            def gpu_texts(gpu, status, *args):
                areas, _ = findings(*args, status=status, env={"LD_LIBRARY_PATH": folder, "FAKE_GPU": gpu})
                return texts(areas, "gpu")

            unused = gpu_texts("9.0 0 16 0", 1)
            self.assertIn("this program cannot use any GPU here", unused)
            self.assertIn("nvcc 12.8 or later", unused)
            sound = gpu_texts("9.0 0 16 0", FINE, "--backend", "cpu")
            self.assertIn("driver 580.1, 1 GPUs", sound)
            self.assertIn("GPU 0: NVIDIA Fake (sm_90), 20.0 GB of 80.0 GB free", sound)
            self.assertIn("somebody else uses 60.0 GB of its memory", sound)
            self.assertNotIn("errors", sound)
            self.assertNotIn("too old", sound)
            poor = gpu_texts("7.5 3 4 1", 1)
            for part in ("(sm_75)", "GPU 0 is too old: sm_80 or later is needed",
                         "has had 3 memory errors", "uses 4 of 16 PCIe lanes", "divided (MIG)"):
                self.assertIn(part, poor)

    def test_what_could_be_better_has_a_status_of_its_own(self):
        areas, worst = findings("--threads", "256", status=3)
        self.assertEqual(worst, "warn")
        self.assertIn("leave --threads out", texts(areas, "processor"))

    def test_a_port_that_is_taken_is_bad(self):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            areas, worst = findings("--port", str(taken.getsockname()[1]), status=1)
        self.assertEqual((worst, levels(areas, "port")), ("bad", ["bad"]))
        self.assertIn("choose another --port", texts(areas, "port"))

    def test_a_model_that_does_not_fit_or_is_not_there_is_bad(self):
        areas, _ = findings("--memory", "60M", status=1)
        self.assertEqual(levels(areas, "plan"), ["bad"])
        areas, _ = findings("/nowhere", status=1)
        self.assertEqual(levels(areas, "model"), ["bad"])
        self.assertIn("/nowhere", texts(areas, "model"))

    def test_hashes_are_compared(self):
        with tempfile.TemporaryDirectory() as folder:
            snapshot = make_cache(folder)
            areas, _ = findings(snapshot, "--verify")
            self.assertEqual(levels(areas, "hashes"), ["ok"])
            self.assertIn(f"{len(os.listdir(PILOT))} files", texts(areas, "hashes"))
            self.assertRegex(texts(areas, "disk"), r"read at [\d.]+ \w*B/s")
            shard = os.path.join(snapshot, "model-00002-of-000003.safetensors")
            with open(shard, "r+b") as f:  # one byte of a weight
                f.seek(-1, os.SEEK_END)
                byte = f.read(1)
                f.seek(-1, os.SEEK_END)
                f.write(bytes([byte[0] ^ 1]))
            areas, _ = findings(snapshot)
            self.assertEqual(set(levels(areas, "model")), {"ok"})
            areas, worst = findings(snapshot, "--verify", status=1)
            self.assertEqual((worst, levels(areas, "hashes")), ("bad", ["bad"]))
            self.assertIn("model-00002-of-000003.safetensors has the hash", texts(areas, "hashes"))
            os.unlink(os.path.realpath(os.path.join(snapshot, "README.md")))
            areas, worst = findings(snapshot, "--verify", status=1)
            self.assertIn("README.md has the hash (unreadable)", texts(areas, "hashes"))

    def test_a_downloaded_folder_keeps_its_hashes(self):
        with tempfile.TemporaryDirectory() as folder:
            shutil.copytree(PILOT, folder, dirs_exist_ok=True)
            notes = os.path.join(folder, ".cache/huggingface/download")
            os.makedirs(notes)
            name = "model-00001-of-000003.safetensors"
            with open(os.path.join(folder, name), "rb") as f:
                digest = hashlib.sha256(f.read()).hexdigest()
            for want, status in ((digest, FINE), (digest[::-1], 1)):
                with open(os.path.join(notes, name + ".metadata"), "w", encoding="utf-8") as f:
                    f.write(f"0123\n{want}\n1700000000.0\n")
                areas, _ = findings(folder, "--verify", status=status)
                self.assertEqual(levels(areas, "hashes"), ["ok" if status == FINE else "bad"])
            areas, _ = findings(PILOT, "--verify")
            self.assertEqual(levels(areas, "hashes"), ["note"])

    def test_damaged_files_are_found(self):
        with tempfile.TemporaryDirectory() as folder:
            shutil.copytree(PILOT, folder, dirs_exist_ok=True)
            shard = os.path.join(folder, "model-00003-of-000003.safetensors")
            size = os.path.getsize(shard)
            with open(shard, "r+b") as f:
                f.truncate(size - 100)
            areas, _ = findings(folder, status=1)
            self.assertEqual(levels(areas, "model"), ["bad"])
            self.assertIn("model-00003", texts(areas, "model"))
            os.remove(shard)
            areas, _ = findings(folder, status=1)
            self.assertIn("model-00003", texts(areas, "model"))


if __name__ == "__main__":
    unittest.main()
