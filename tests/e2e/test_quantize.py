#!/usr/bin/env python3
"""fathom quantize over the pilot: schemes, breaks at any moment, refusals.

    tests/e2e/test_quantize.py [--all] path/to/fathom [KILLS [SEED]]

With --all every scheme and method is tried, else some, and calibration reads four times as many
texts. KILLS processes are killed at random moments of conversions that --resume goes on with.
"""

import fcntl
import hashlib
import json
import os
import random
import resource
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unittest

from served import HANG_S

ALL = sys.argv[1] == "--all" and sys.argv.pop(1) == "--all"
FATHOM = os.path.abspath(sys.argv.pop(1))
KILLS = int(sys.argv.pop(1)) if len(sys.argv) > 1 and sys.argv[1].isdigit() else 12 if ALL else 1
SEED = int(sys.argv.pop(1)) if len(sys.argv) > 1 and sys.argv[1].isdigit() else 1
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PILOT = os.path.join(ROOT, "models", "pilot")
CASES = os.path.join(ROOT, "tests", "data", "pilot", "evaluation.json")
TEXTS = os.path.join(ROOT, "models", "texts.jsonl")

# scheme, further options, forms of the routed experts, the largest mean KL against the pilot
SCHEMES = [
    ("w4a16", (), "pack-quantized, u4 g128 BF16", 0.001),
    ("w4a16_asym", ("--group", "64"), "pack-quantized, u4 g64 BF16 [+] zero", 0.001),
    ("w8a8", ("--targets", "linear"), "int8, i8 channel F32", 0.0005),
    ("fp8_channel", ("--targets", "linear"), "fp8, e4m3 channel F32", 0.002),
]
MORE_SCHEMES = [
    ("w4a16", ("--method", "rtn"), "pack-quantized, u4 g128 BF16", 0.002),
    ("w4a16", ("--group", "32"), "pack-quantized, u4 g32 BF16", 0.001),
    ("w4a16", ("--targets", "linear"), "pack-quantized, u4 g128 BF16", 0.05),
    ("fp8", ("--targets", "experts", "shared"), "fp8, e4m3 128x128 F32", 0.0005),
]

# the same with calibration over texts that are not those of the figures
CALIBRATED = [
    ("w8a8", ("--method", "gptq", "--targets", "experts", "shared", "dense"),
     "int8, i8 channel F32", 0.0001),
    ("w4a16", ("--method", "scale"), "pack-quantized, u4 g128 BF16", 0.0004),
]
MORE_CALIBRATED = [
    ("w4a16", ("--method", "gptq"), "pack-quantized, u4 g128 BF16", 0.0002),
    ("w4a16_asym", ("--method", "gptq", "--group", "32"), "pack-quantized, u4 g32 BF16 [+] zero",
     0.0002),
]


def command(*args, limit_bytes=None):
    def limit():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, limit_bytes))

    return subprocess.run([FATHOM, *args], capture_output=True, text=True, timeout=HANG_S,
                          check=False, preexec_fn=limit if limit_bytes else None)


def run(*args, status=0, **options):
    done = command(*args, **options)
    if done.returncode != status:
        raise AssertionError(f"{args}: status {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done.stdout, done.stderr


def contents(folder):
    """Names and digests of all files of a folder."""
    found = {}
    for name in os.listdir(folder):
        with open(os.path.join(folder, name), "rb") as f:
            found[name] = hashlib.sha256(f.read()).hexdigest()
    return found


def header_of(path):
    with open(path, "rb") as f:
        n = struct.unpack("<Q", f.read(8))[0]
        return n, json.loads(f.read(n))


def bf16_values(folder, name):
    """The numbers of a tensor, in whichever shard it is."""
    for shard in sorted(os.listdir(folder)):
        if not shard.endswith(".safetensors"):
            continue
        path = os.path.join(folder, shard)
        n, header = header_of(path)
        if name in header:
            first, end = header[name]["data_offsets"]
            with open(path, "rb") as f:
                f.seek(8 + n + first)
                halves = struct.unpack(f"<{(end - first) // 2}H", f.read(end - first))
            return [struct.unpack("<f", struct.pack("<I", half << 16))[0] for half in halves]
    raise KeyError(name)


class Quantize(unittest.TestCase):
    def setUp(self):
        self.temp = tempfile.TemporaryDirectory()
        self.addCleanup(self.temp.cleanup)

    def path(self, name):
        return os.path.join(self.temp.name, name)

    def refused(self, needle, *args, status=1, **options):
        _, said = run("quantize", *args, status=status, **options)
        lines = [line for line in said.splitlines() if line.startswith("fathom: ")]
        self.assertEqual(len(lines), 1, said)
        self.assertIn(needle, lines[0])

    def broken_pilot(self, change):
        """A copy of the pilot; change(name, entry) gives bytes for a tensor's place, or None."""
        folder = self.path("source")
        shutil.copytree(PILOT, folder)
        for shard in sorted(os.listdir(folder)):
            if not shard.endswith(".safetensors"):
                continue
            path = os.path.join(folder, shard)
            n, header = header_of(path)
            for name, entry in header.items():
                data = change(name, entry) if name != "__metadata__" else None
                if data is not None:
                    with open(path, "r+b") as f:
                        f.seek(8 + n + entry["data_offsets"][0])
                        f.write(data)
        return folder

    # ---- what comes out ----

    def other_texts(self):
        """Of the pilot's cases that are not among the texts linked into the program a third, or a
        twelfth; how many they are."""
        path = self.path("calibration.jsonl")
        with open(TEXTS, encoding="utf-8") as f:
            scored = {json.loads(line)["text"] for line in f}
        with open(CASES, encoding="utf-8") as f:
            cases = [c["prompt"] + c["reference"] + "<｜end▁of▁sentence｜>"
                     for c in json.load(f)]
        with open(path, "w", encoding="utf-8") as f:
            texts = [text for text in cases if text not in scored][::3 if ALL else 12]
            for text in texts:
                f.write(json.dumps({"text": text}, ensure_ascii=False) + "\n")
        return path, len(texts)

    def test_every_scheme_is_read_again_and_is_near(self):
        self.check_schemes(SCHEMES + MORE_SCHEMES * ALL)

    def test_methods_that_calibrate_are_nearer(self):
        path, n_text = self.other_texts()
        calibration = ("--calibration", path, "--calibration-samples", "0")
        self.check_schemes([(scheme, (*options, *calibration), form, limit) for
                            scheme, options, form, limit in CALIBRATED + MORE_CALIBRATED * ALL])
        with open(self.path("out0/quantize_report.json"), encoding="utf-8") as f:
            report = json.load(f)
        self.assertRegex(report["order"]["calibration"], rf"^{n_text} texts, \d+ tokens, sha256 ")
        # all but the draft layer's
        self.assertEqual([(t["matrices"], t["calibrated"], t["few_tokens"])
                          for t in report["targets"].values()],
                         [(384, 336, 0), (24, 21, 0), (3, 3, 0)])

    def check_schemes(self, schemes):
        for i, (scheme, options, form, limit) in enumerate(schemes):
            out = self.path(f"out{i}")
            said, _ = run("quantize", "pilot", out, "--scheme", scheme, *options, "--report",
                          "--samples", "20", "--dtype", "float32")
            self.assertIn("relative error", said)
            inspected, _ = run("inspect", out)
            self.assertRegex(inspected, "routed experts .*" + form)
            self.assertIn("every tensor that the model needs is there", inspected)
            with open(os.path.join(out, "quantize_evaluation.json"), encoding="utf-8") as f:
                figures = json.load(f)
            kl = figures["against"]["kl"]["mean"]
            print(f"{scheme} {' '.join(options)}: mean KL {kl:.6f}, perplexity "
                  f"{figures['perplexity']:.4f} of {figures['against']['perplexity']:.4f}")
            self.assertLess(kl, limit)
            self.assertGreater(kl, 0)

    def test_what_is_left_keeps_its_bytes(self):
        out = self.path("out")
        run("quantize", PILOT, out)
        renamed = 0
        for shard in sorted(os.listdir(PILOT)):
            if not shard.endswith(".safetensors"):
                continue
            with open(os.path.join(PILOT, shard), "rb") as a, \
                    open(os.path.join(out, shard), "rb") as b:
                n, old = header_of(a.name)
                m, new = header_of(b.name)
                for name, entry in old.items():
                    if name == "__metadata__" or ".mlp.experts." in name:
                        continue
                    to = name.replace("weight_scale_inv", "weight_scale")
                    renamed += to != name
                    self.assertEqual((entry["dtype"], entry["shape"]),
                                     (new[to]["dtype"], new[to]["shape"]))
                    a.seek(8 + n + entry["data_offsets"][0])
                    b.seek(8 + m + new[to]["data_offsets"][0])
                    size = entry["data_offsets"][1] - entry["data_offsets"][0]
                    self.assertEqual(a.read(size), b.read(size), name)
        self.assertGreater(renamed, 50)
        for name in ("tokenizer.json", "generation_config.json", "README.md"):
            with open(os.path.join(PILOT, name), "rb") as a, \
                    open(os.path.join(out, name), "rb") as b:
                self.assertEqual(a.read(), b.read())
        with open(os.path.join(out, "model.safetensors.index.json"), encoding="utf-8") as f:
            index = json.load(f)["weight_map"]
        listed = {name: shard for shard in set(index.values())
                  for name in header_of(os.path.join(out, shard))[1] if name != "__metadata__"}
        self.assertEqual(index, listed)

    def test_threads_change_no_bit(self):
        for threads in ("1", "2", "7"):
            run("quantize", "pilot", self.path(threads), "--threads", threads, "--targets",
                "linear")
        self.assertEqual(contents(self.path("1")), contents(self.path("2")))
        self.assertEqual(contents(self.path("1")), contents(self.path("7")))

    def test_programs_see_how_far_it_is(self):
        out = self.path("out")
        _, said = run("quantize", PILOT, out, "--progress", "json")
        told = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
        self.assertGreaterEqual(len(told), 2)
        for a, b in zip(told, told[1:]):
            self.assertLessEqual((a["bytes"], a["matrices"]), (b["bytes"], b["matrices"]))
        with open(os.path.join(out, "quantize_report.json"), encoding="utf-8") as f:
            worst = json.load(f)["targets"]["experts"]
        end = told[-1]
        self.assertEqual((end["matrices"], end["of_matrices"], end["layers"]), (384, 384, 9))
        self.assertEqual(end["bytes"], end["of_bytes"])
        self.assertEqual((end["worst_error"], end["worst_matrix"]),
                         (worst["worst"], worst["worst_matrix"]))
        self.assertNotIn("{", run("quantize", PILOT, self.path("quiet"))[1])

    def test_the_report_names_each_matrix(self):
        reports = {}
        for method in ("rtn", "mse"):
            out = self.path(method)
            run("quantize", PILOT, out, "--method", method)
            with open(os.path.join(out, "quantize_report.json"), encoding="utf-8") as f:
                reports[method] = json.load(f)
        matrices = reports["mse"]["matrices"]
        worst = reports["mse"]["targets"]["experts"]
        self.assertEqual(len(matrices), worst["matrices"])
        self.assertEqual(matrices[worst["worst_matrix"]]["relative_error"], worst["worst"])
        self.assertEqual(max(m["relative_error"] for m in matrices.values()), worst["worst"])
        self.assertEqual({m["clipped"] for m in reports["rtn"]["matrices"].values()}, {0})
        self.assertTrue(all(0 <= m["clipped"] < 0.05 for m in matrices.values()))
        self.assertGreater(sum(m["clipped"] > 0 for m in matrices.values()), len(matrices) // 2)
        name = worst["worst_matrix"] + ".weight_scale"
        self.assertEqual(matrices[worst["worst_matrix"]]["largest_scale"],
                         max(bf16_values(self.path("mse"), name)))

    def test_a_dry_run_writes_nothing(self):
        said, _ = run("quantize", "pilot", self.path("out"), "--dry-run")
        self.assertIn("384 of 474", said)
        self.assertFalse(os.path.exists(self.path("out")))

    def test_a_dry_run_sees_what_stands_against_the_target(self):
        dry = ("--dry-run",)
        file, out = self.path("file"), self.path("out")
        open(file, "w", encoding="utf-8").close()
        self.refused("is a file, needed is a folder", "pilot", file, *dry)
        self.refused("file/deep/out: the directory cannot be made: ", "pilot", file + "/deep/out",
                     *dry)
        run("quantize", "pilot", self.path("a/b"), *dry)
        self.assertFalse(os.path.exists(self.path("a")))
        os.mkdir(out)
        with open(os.path.join(out, "letter.txt"), "w", encoding="utf-8") as f:
            f.write("dear")
        self.refused("holds files that are no conversion's", "pilot", out, *dry)
        os.unlink(os.path.join(out, "letter.txt"))
        run("quantize", "pilot", out, "--method", "rtn")
        before = contents(out)
        self.refused("holds a conversion: --resume goes on", "pilot", out, "--method", "rtn", *dry)
        self.refused("begun with other options", "pilot", out, "--resume", *dry)
        said, _ = run("quantize", "pilot", out, "--method", "rtn", "--resume", *dry)
        self.assertIn("every file was there already", said)
        self.assertEqual(contents(out), before)

    def test_a_dry_run_sees_that_the_disk_has_no_room(self):
        """A source of more bytes than are free: its file has a hole."""
        source, free = self.narrow(), os.statvfs(self.temp.name)
        path = os.path.join(source, "model.safetensors")
        _, header = header_of(path)
        end = max(e["data_offsets"][1] for e in header.values())
        more = (free.f_bavail * free.f_frsize + (1 << 30)) // 4096 * 4096
        header["more"] = {"dtype": "F32", "shape": [more // 4096, 1024],
                          "data_offsets": [end, end + more]}
        text = json.dumps(header).encode()
        with open(path, "wb") as f:
            f.write(struct.pack("<Q", len(text)) + text)
            f.truncate(8 + len(text) + end + more)
        self.refused("the disk has room for ", source, self.path("out"), "--group", "32",
                     "--dry-run")
        self.assertFalse(os.path.exists(self.path("out")))

    # ---- breaks ----

    def test_a_kill_at_any_moment_is_gone_on_with(self):
        whole, broken = self.path("whole"), self.path("broken")
        begin = time.monotonic()
        run("quantize", PILOT, whole)
        taken = time.monotonic() - begin
        want = contents(whole)
        draw = random.Random(SEED)
        print(f"{KILLS} kills, seed {SEED}")
        for kill in range(KILLS):
            shutil.rmtree(broken, ignore_errors=True)
            n_try = 0
            while True:
                n_try += 1
                process = subprocess.Popen([FATHOM, "quantize", PILOT, broken, "--resume"],
                                           stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
                try:
                    said = process.communicate(timeout=draw.uniform(0, taken * (1 + n_try / 4)))[0]
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.communicate()
                    continue
                self.assertEqual(process.returncode, 0, said)
                break
            self.assertEqual(contents(broken), want, f"kill {kill}")
        said, _ = run("quantize", PILOT, whole, "--resume")
        self.assertIn("every file was there already", said)

    def test_a_calibrated_one_is_gone_on_with_and_threads_change_no_bit(self):
        """Kills hit the walk over layers as well as the shards; nothing of it stays behind."""
        order = ("--method", "gptq", "--calibration", TEXTS, "--calibration-samples", "2")
        whole, broken = self.path("whole"), self.path("broken")
        run("quantize", PILOT, whole, *order, "--threads", "1")
        begin = time.monotonic()
        run("quantize", PILOT, self.path("threads"), *order, "--threads", "3")
        taken = time.monotonic() - begin
        want = contents(whole)
        self.assertEqual(contents(self.path("threads")), want)
        with open(os.path.join(whole, "quantize_report.json"), encoding="utf-8") as f:
            report = json.load(f)["targets"]["experts"]
        self.assertGreater(report["few_tokens"], 0)  # two texts do not reach every expert
        draw = random.Random(SEED)
        n_kill = 0
        while n_kill < KILLS:
            shutil.rmtree(broken, ignore_errors=True)
            said, n_try = None, 0
            while said is None:
                n_try += 1
                process = subprocess.Popen([FATHOM, "quantize", PILOT, broken, "--resume", *order],
                                           stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
                try:
                    said = process.communicate(timeout=draw.uniform(0, taken * (1 + n_try / 4)))[0]
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.communicate()
                    n_kill += 1
            self.assertEqual(process.returncode, 0, said)
            self.assertEqual(contents(broken), want)

    def test_a_full_disk_loses_nothing(self):
        out = self.path("out")
        self.refused("cannot be written: File too large", PILOT, out, limit_bytes=11 << 20)
        self.assertTrue(os.path.exists(os.path.join(out, "quantize_state.json")))
        self.assertFalse(os.path.exists(os.path.join(out, "config.json")))
        run("quantize", PILOT, out, "--resume")
        run("quantize", PILOT, self.path("whole"))
        self.assertEqual(contents(out), contents(self.path("whole")))

    def test_a_shard_that_was_changed_is_found(self):
        out = self.path("out")
        run("quantize", PILOT, out)
        with open(os.path.join(out, "quantize_report.json"), encoding="utf-8") as f:
            report = json.load(f)
        shutil.rmtree(out)
        # a journal that says that a shard is done which is not what it says
        os.mkdir(out)
        name = "model-00001-of-000003.safetensors"
        shutil.copy(os.path.join(PILOT, name), out)
        with open(os.path.join(out, "quantize_state.json"), "w", encoding="utf-8") as f:
            json.dump({"order": report["order"],
                       "done": {name: {"digest": "0" * 64, "sums": []}}}, f)
        self.refused("is not what was written", PILOT, out, "--resume")

    # ---- refusals ----

    def test_a_target_that_is_not_ours_stays(self):
        out = self.path("out")
        os.mkdir(out)
        with open(os.path.join(out, "letter.txt"), "w", encoding="utf-8") as f:
            f.write("dear")
        for options in ((), ("--resume",)):
            self.refused("holds files that are no conversion's", "pilot", out, *options)
        self.assertEqual(os.listdir(out), ["letter.txt"])
        file = self.path("file")
        open(file, "w", encoding="utf-8").close()
        self.refused("is a file, needed is a folder", "pilot", file)

    def test_a_file_of_the_source_that_cannot_be_read_is_told_before_the_work(self):
        source, out = self.path("source"), self.path("out")
        shutil.copytree(PILOT, source)
        path = os.path.join(source, "tokenizer_config.json")
        os.unlink(path)
        os.symlink("../../blobs/gone", path)
        self.refused(path + ": is a link to a file that is not there", source, out)
        self.assertEqual([n for n in os.listdir(out) if n.endswith(".safetensors")], [])
        os.unlink(path)
        shutil.copy(os.path.join(PILOT, "tokenizer_config.json"), path)
        run("quantize", source, out, "--resume")
        self.assertTrue(os.path.exists(os.path.join(out, "tokenizer_config.json")))

    def test_a_folder_of_folders_is_not_empty(self):
        out = self.path("models")
        os.makedirs(os.path.join(out, "another"))
        self.refused("holds another, needed is a folder that is empty", "pilot", out)
        os.rmdir(os.path.join(out, "another"))
        os.symlink("nowhere", os.path.join(out, "link"))
        self.refused("holds link, needed is a folder that is empty", "pilot", out, "--resume")
        self.assertEqual(os.listdir(out), ["link"])

    def test_a_finished_one_that_lacks_a_shard_is_not_whole(self):
        out, name = self.path("out"), "model-00002-of-000003.safetensors"
        run("quantize", "pilot", out)
        for size in (1000, None):
            path = os.path.join(out, name)
            os.rename(path, self.path("kept"))
            if size:
                with open(path, "wb") as f:
                    f.truncate(size)
            state = "has changed its size" if size else "is gone"
            self.refused(f"{name} {state} since the conversion was finished: remove the folder",
                         "pilot", out, "--resume")
            os.rename(self.path("kept"), path)
        self.assertIn("every file was there already", run("quantize", "pilot", out, "--resume")[0])

    def test_other_files_of_a_finished_one_are_mended(self):
        """What is gone is written anew; what differs is somebody's, and stays."""
        out = self.path("out")
        run("quantize", PILOT, out)
        whole = contents(out)
        again = ("quantize", PILOT, out, "--resume")
        names = ("tokenizer.json", "config.json", "model.safetensors.index.json")
        for name in names:
            os.unlink(os.path.join(out, name))
        self.assertIn("3 of its files were gone: to be written anew", run(*again, "--dry-run")[0])
        self.assertFalse(os.path.exists(os.path.join(out, names[0])))
        self.assertIn("3 of its files were gone: written anew", run(*again)[0])
        self.assertEqual(contents(out), whole)
        self.assertIn("every file was there already", run(*again)[0])
        for name in ("tokenizer_config.json", *names):
            path = os.path.join(out, name)
            with open(path, "r+b") as f:
                f.write(b" ")
            changed = contents(out)
            self.refused(f"{name} is not what this conversion writes", *again[1:])
            self.assertEqual(contents(out), changed)
            os.unlink(path)
            self.assertIn("1 of its files was gone: written anew", run(*again)[0])
            self.assertEqual(contents(out), whole)

    def test_what_is_said_stands_in_no_file(self):
        """Descriptors of streams that are closed are the first that files would get."""
        run("quantize", "pilot", self.path("want"))
        subprocess.run(["sh", "-c", '"$0" "$@" <&- 2>&-', FATHOM, "quantize", "pilot",
                        self.path("out"), "--progress", "json"], timeout=HANG_S, check=True,
                       stdout=subprocess.DEVNULL)
        self.assertEqual(contents(self.path("out")), contents(self.path("want")))

    def test_figures_of_the_source_are_not_the_result_s(self):
        scored = ("--report", "--samples", "1", "--length", "32")
        run("quantize", "pilot", self.path("fp8"), "--scheme", "fp8_channel", *scored)
        self.assertIn("quantize_evaluation.json", os.listdir(self.path("fp8")))
        run("quantize", self.path("fp8"), self.path("int4"))
        self.assertNotIn("quantize_evaluation.json", os.listdir(self.path("int4")))

    def test_one_process_converts_into_a_folder(self):
        out = self.path("out")
        os.mkdir(out)
        fd = os.open(out, os.O_RDONLY)
        self.addCleanup(os.close, fd)
        fcntl.flock(fd, fcntl.LOCK_EX)
        self.refused("another process converts into it", "pilot", out)
        self.assertEqual(os.listdir(out), [])

    def test_another_order_does_not_go_on(self):
        out = self.path("out")
        run("quantize", PILOT, out, "--method", "rtn")
        before = contents(out)
        self.refused("holds a conversion: --resume goes on with it", PILOT, out, "--method", "rtn")
        for options in (("--method", "mse"), ("--method", "rtn", "--group", "64"),
                        ("--method", "rtn", "--targets", "shared"),
                        ("--method", "scale", "--calibration", TEXTS)):
            self.refused("begun with other options or from another source", PILOT, out, "--resume",
                         *options)
        self.refused("another source", "pilot", out, "--method", "rtn", "--resume")
        self.assertEqual(contents(out), before)

    def test_a_quantized_source_is_refused(self):
        for scheme in ("w4a16", "w8a8"):
            made = self.path(scheme)
            run("quantize", "pilot", made, "--scheme", scheme, "--method", "rtn")
            self.refused("is quantized already: ", made, self.path("again"))
        self.assertFalse(os.path.exists(self.path("again")))
        made = self.path("fp8")
        run("quantize", "pilot", made, "--scheme", "fp8_channel", "--targets", "linear")
        run("quantize", made, self.path("again"))  # FP8 of any geometry is a source

    def test_weights_that_are_no_numbers_are_named(self):
        name = "model.layers.3.mlp.experts.5.up_proj.weight"
        source = self.broken_pilot(
            lambda n, e: b"\x01\x02\x7f" if n == name else None)
        self.refused("model.layers.3.mlp.experts.5.up_proj: element [0, 2] is nan", source,
                     self.path("out"))
        self.assertFalse(os.path.exists(self.path("out/config.json")))
        self.assertFalse([n for n in os.listdir(self.path("out")) if n.endswith(".part")])
        run("quantize", source, self.path("other"), "--targets", "shared")  # it is not read

    def test_options_that_cannot_be_are_one_line(self):
        out = self.path("out")
        self.refused("--group 100", "pilot", out, "--group", "100")
        self.refused("--targets head", "pilot", out, "--targets", "head")
        self.refused("fathom quantize SOURCE OUT", "pilot", status=2)
        self.refused("--scheme", "pilot", out, "--scheme", "w3a16", status=2)
        self.refused("--method", "pilot", out, "--method", "awq", status=2)
        self.refused("--method gptq asks what matrices read", "pilot", out, "--method", "gptq")
        self.refused("--scheme fp8 has no --method scale", "pilot", out, "--scheme", "fp8",
                     "--method", "scale", "--calibration", TEXTS)
        self.refused("/nowhere", "pilot", out, "--method", "scale", "--calibration", "/nowhere")
        self.refused("/nowhere", "/nowhere", out)
        self.assertFalse(os.path.exists(out))

    def narrow(self):
        """The pilot's shapes with experts of 96 in BF16, all zero, in one file."""
        folder = self.path("narrow")
        os.mkdir(folder)
        with open(os.path.join(PILOT, "config.json"), encoding="utf-8") as f:
            config = json.load(f)
        config["moe_intermediate_size"] = 96
        with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as f:
            json.dump(config, f)
        sizes = {"F32": 4, "BF16": 2, "F8_E4M3": 1}
        header, at = {}, 0
        for shard in sorted(os.listdir(PILOT)):
            if not shard.endswith(".safetensors"):
                continue
            for name, entry in header_of(os.path.join(PILOT, shard))[1].items():
                dtype, shape = entry.get("dtype"), entry.get("shape")
                if "experts." in name and "bias" not in name:
                    if name.endswith("_inv"):
                        continue
                    dtype = "BF16"
                    shape = [256, 96] if "down_proj" in name else [96, 256]
                if name == "__metadata__":
                    continue
                n = sizes[dtype]
                for k in shape:
                    n *= k
                header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + n]}
                at += n
        text = json.dumps(header).encode()
        with open(os.path.join(folder, "model.safetensors"), "wb") as f:
            f.write(struct.pack("<Q", len(text)) + text)
            f.truncate(8 + len(text) + at)
        shutil.copy(os.path.join(PILOT, "tokenizer.json"), folder)
        return folder

    def test_a_group_that_does_not_divide_is_named(self):
        source = self.narrow()
        for group in ("128", "64"):
            self.refused(f"--group {group} does not divide the 96 inputs of model.layers.1.mlp."
                         "experts.0.down_proj.weight: give one of", source, self.path("out"),
                         "--group", group)
        self.assertFalse(os.path.exists(self.path("out")))
        run("quantize", source, self.path("out"), "--group", "32")
        self.assertNotIn("model.safetensors.index.json", os.listdir(self.path("out")))
        inspected, _ = run("inspect", self.path("out"))
        self.assertRegex(inspected, "routed experts .*pack-quantized, u4 g32 BF16")

    def test_one_shard_of_another_name_has_an_index(self):
        source, name = self.narrow(), "model-00001-of-000001.safetensors"
        os.rename(os.path.join(source, "model.safetensors"), os.path.join(source, name))
        _, header = header_of(os.path.join(source, name))
        with open(os.path.join(source, "model.safetensors.index.json"), "w", encoding="utf-8") as f:
            json.dump({"weight_map": {tensor: name for tensor in header}}, f)
        run("quantize", source, self.path("out"), "--group", "32")
        self.assertIn(name, os.listdir(self.path("out")))
        run("inspect", self.path("out"))


if __name__ == "__main__":
    unittest.main(verbosity=1)
