#!/usr/bin/env python3
"""The program as an operator meets it: every subcommand, real processes, the pilot model.

    tests/e2e/test_cli.py path/to/fathom
"""

import json
import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import termios
import time
import unittest
import urllib.error
import urllib.request

from served import HANG_S, Server, wait_until

FATHOM = Server.path = os.path.abspath(sys.argv.pop(1))
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PILOT = os.path.join(ROOT, "models", "pilot")


def run(*args, stdin="", env=None, status=0):
    """Standard output and error of a run that must end with `status`."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "FATHOM", "VLLM"))}
    done = subprocess.run([FATHOM, *args], input=stdin, capture_output=True, text=True,
                          timeout=HANG_S, env={**clean, **(env or {})}, check=False)
    if done.returncode != status:
        raise AssertionError(f"{args}: status {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done.stdout, done.stderr


def evaluation(kind):
    with open(os.path.join(ROOT, "tests/data/pilot/evaluation.json"), encoding="utf-8") as f:
        return [c for c in json.load(f) if c["kind"] == kind]


class Served(Server):
    """`fathom serve`, its standard error in a pipe."""

    always = ("--max-num-seqs", "4")

    def __init__(self, *flags, env=None):
        super().__init__(*flags, stderr=subprocess.PIPE, env={**os.environ, **(env or {})})

    def post(self, path, body, key=None):
        headers = {"Content-Type": "application/json"}
        if key:
            headers["Authorization"] = "Bearer " + key
        request = urllib.request.Request(self.url + path, json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request, timeout=HANG_S) as answer:
            return json.load(answer)

    def stop(self, number=signal.SIGTERM):
        """The exit status; what was said on standard error is in `errors` then."""
        self.process.send_signal(number)
        status, self.errors = self.end()
        return status


class Terminal:
    """`fathom run` in a pseudo terminal."""

    def __init__(self, home):
        try:
            self.pid, self.fd = pty.fork()
        except OSError as e:
            raise unittest.SkipTest(f"this machine has no pseudo terminal: {e}") from e
        if self.pid == 0:
            env = {**os.environ, "HOME": home, "XDG_STATE_HOME": ""}
            os.execve(FATHOM, [FATHOM, "run", "--temperature", "0"], env)
        self.seen = ""
        self.at = 0  # what is before has been waited for

    def comes(self, part, seconds):
        """Reads until `part` has been printed; false when it does not come."""
        end = time.monotonic() + seconds
        while part not in self.seen[self.at:]:
            if time.monotonic() > end:
                return False
            if select.select([self.fd], [], [], 0.2)[0]:
                self.seen += os.read(self.fd, 4096).decode(errors="replace")
        self.at = self.seen.index(part, self.at) + len(part)
        return True

    def until(self, part, after=""):
        """Types `after`, then reads until `part` has been printed."""
        os.write(self.fd, after.encode())
        if not self.comes(part, HANG_S):
            raise AssertionError(f"{part!r} did not come:\n{self.seen}")

    def until_edited(self):
        """Until a line is being edited: earlier the terminal takes special keys for itself."""
        wait_until(lambda: not termios.tcgetattr(self.fd)[3] & termios.ICANON)

    def is_cut_off(self, message):
        """Ctrl-C when its answer has begun; false when the answer came to its end before."""
        self.until("> ")
        self.until_edited()
        at = self.at
        self.until("\x1b[2m", message + "\n")
        self.until("context ", "\x03")
        self.until("\n")
        return "interrupted" in self.seen[at:self.at]

    def leave(self):
        """Ctrl-D at the next prompt."""
        self.until("> ")
        self.until_edited()
        os.write(self.fd, b"\x04")
        end = time.monotonic() + HANG_S
        while time.monotonic() < end:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.05)
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        raise AssertionError("Ctrl-D did not end the chat:\n" + self.seen)


class Cli(unittest.TestCase):
    def test_help_and_version(self):
        self.assertIn("fathom serve", run("help")[0])
        self.assertIn("fathom serve", run("--help")[0])
        self.assertIn("--max-model-len", run("help", "serve")[0])
        self.assertEqual(run("serve", "--help")[0], run("help", "serve")[0])
        self.assertRegex(run("version")[0], r"^fathom \d+\.\d+\.\d+\n$")
        for page, flag in (("docs/cli.md", "--markdown"), ("docs/flags.md", "--flags")):
            with open(os.path.join(ROOT, page), encoding="utf-8") as f:
                self.assertEqual(run("help", flag)[0], f.read())
        self.assertIn("--max-num-seqs", run("serve", "--help=max_num")[0])
        self.assertIn("no option", run("serve", "--help=nonsense", status=2)[1])
        for word in "all", "page":
            self.assertEqual(run("serve", f"--help={word}")[0], run("serve", "--help")[0])
        groups = run("serve", "--help=listgroup")[0]
        self.assertTrue(groups.startswith("--help=TOPIC") and " security" in groups, groups)
        family = run("bench", "--help")[0]
        self.assertEqual(len(re.findall(r"^  fathom bench ", family, re.M)), 8)
        self.assertNotIn("fathom serve ", family)
        self.assertEqual(run("help", "bench")[0], family)
        self.assertIn("--num-iters", run("help", "bench", "latency")[0])

    def test_wrong_command_lines_have_status_2_and_one_line(self):
        for args, part in ((("serv",), "no command"),
                           (("serve", "--prot", "1"), "the nearest is --port"),
                           (("serve", "-pp", "2", "-dp", "2", "--enable-expert-parallel"),
                            "--pipeline-parallel-size 2 is refused"),
                           (("bench", "latency", "-dcp", "2"),
                            "--decode-context-parallel-size 2 is refused"),
                           (("plan", "--dtype", "half"), "overflow"),
                           (("org/none", "--dtype", "half"), "overflow"),
                           (("--model", "pilot", "-fa", "on"), "-fa"),
                           (("download", "org/name"), "fathom pull"),
                           (("chat", "http://x"), "one argument too many"),
                           (("collect-env",), "fathom doctor"),
                           (("quantize",), "fathom quantize SOURCE OUT"),
                           (("pull",), "fathom pull ORG/NAME"),
                           (("pull", "a/b", "c/d"), "one argument too many"),
                           (("pull", "a/b", "--local-dir", "x"), "--cache-dir"),
                           (("pull", "a/b", "--max-workers", "99"), "1 to 64"),
                           (("bench", "report"), "fathom bench report FILE..."),
                           (("run-batch",), "--input-file is missing"),
                           (("serve", "-ngl", "99"), "--backend"),
                           (("serve", "-c", "4096"), "--max-model-len"),
                           (("run", "--temperature", "9"), "-1 to 2"),
                           (("bench", "throughput", "--backend", "vllm"), "leave it out"),
                           (("bench", "throughput", "--n", "2"), "one answer"),
                           (("bench", "latency", "--profile"), "no trace"),
                           (("bench", "throughput", "--hf-name", "x"), "--dataset-path"),
                           (("help", "nonsense"), "no command")):
            expected = 1 if args[0] == "help" else 2
            out, err = run(*args, status=expected)
            self.assertEqual(out, "")
            self.assertIn(part, err)
            self.assertEqual(err.count("\n"), 1, err)
        self.assertIn("fathom serve", run(status=2)[1])

    def test_models_that_cannot_be_found_or_read(self):
        self.assertIn("/nowhere", run("inspect", "/nowhere", status=1)[1])
        self.assertIn("org/name", run("inspect", "org/name", env={"HF_HOME": "/nowhere"},
                                      status=1)[1])
        with tempfile.TemporaryDirectory() as empty:
            self.assertIn(empty, run("inspect", empty, status=1)[1])
            for name in "config.json", "a.gguf":
                os.symlink(os.path.join(PILOT, "config.json"), os.path.join(empty, name))
            self.assertIn("GGUF is not read", run("inspect", empty, status=1)[1])
            self.assertIn("GGUF is not read", run("serve", os.path.join(empty, "a.gguf"),
                                                  status=1)[1])
        self.assertIn("name 2 is empty", run("serve", "--served-model-name", "a", "", status=1)[1])
        self.assertIn("repository: org/name", run("serve", "https://hf.co/org/name", status=1)[1])
        self.assertIn("directory", run("inspect", PILOT + "/config.json", status=1)[1])

    def test_a_repository_is_found_in_the_cache(self):
        with tempfile.TemporaryDirectory() as home:
            repository = os.path.join(home, "hub", "models--org--small")
            os.makedirs(os.path.join(repository, "refs"))
            os.makedirs(os.path.join(repository, "snapshots"))
            os.symlink(PILOT, os.path.join(repository, "snapshots", "abc123"))
            with open(os.path.join(repository, "refs", "main"), "w", encoding="utf-8") as f:
                f.write("abc123")
            hub, nowhere = os.path.join(home, "hub"), {"HF_HOME": "/nowhere", "HF_HUB_CACHE": "/nowhere"}
            os.symlink(home, os.path.join(home, "huggingface"))
            for flags, env in (((), {"HF_HOME": home}),
                               ((), {"XDG_CACHE_HOME": home}),
                               ((), {"HF_HOME": "/nowhere", "HF_HUB_CACHE": hub}),
                               ((), {"HF_HOME": "/nowhere", "HUGGINGFACE_HUB_CACHE": hub}),
                               (("--download-dir", hub), nowhere),
                               (("--download-dir", hub, "--revision", "main"), nowhere),
                               (("--download-dir", hub, "--revision", "abc123"), nowhere)):
                out, _ = run("inspect", "org/small", *flags, env=env)
                self.assertIn("every tensor", out, (flags, env))
            self.assertIn('--revision "" is of a repository', run("inspect", "--revision", "", status=1)[1])
            for bad in "", "../..", "/tmp":
                _, err = run("inspect", "org/small", "--revision", bad, env={"HF_HOME": home}, status=1)
                self.assertEqual(err, f'fathom: --revision "{bad}" is no branch, tag or commit\n')
            self.assertIn("is linked in", run("inspect", "--revision", "v2", status=1)[1])
            self.assertIn("`fathom pull org/small --revision v2`",
                          run("inspect", "org/small", "--revision", "v2", env={"HF_HOME": home},
                              status=1)[1])

    def test_tokenize_there_and_back(self):
        text = "Hello, who are you? 你好 \n\n 12345 <｜User｜>"
        ids, err = run("tokenize", "--text", text)
        numbers = [int(line.split()[0]) for line in ids.strip().split("\n")]
        self.assertIn(f"{len(numbers)} tokens", err)
        back, _ = run("tokenize", "--decode", stdin=" ".join(map(str, numbers)))
        self.assertEqual(back, text + "\n")
        self.assertEqual(run("tokenize", PILOT, stdin=text)[0], ids)
        for wrong in "1 99999", "abc", "1,2,x", "-1":
            self.assertIn("not an id", run("tokenize", "--decode", "--text", wrong, status=1)[1])
        self.assertEqual(run("tokenize", "--decode", "--text", "[1, 2]")[0],
                         run("tokenize", "--decode", "--text", "1\n2")[0])

    def test_what_cannot_be_printed_or_read_is_a_failure(self):
        for args in (["inspect"], ["inspect", "--tensors"], ["version"], ["help", "--markdown"],
                     ["serve", "--help"], ["plan"], ["tokenize", "--text", "a"],
                     ["serve", "--dry-run"], ["doctor", "/nowhere"], ["--version"], ["help"]):
            with open("/dev/full", "wb") as full:
                done = subprocess.run([FATHOM, *args], stdout=full, stderr=subprocess.PIPE, text=True,
                                      timeout=HANG_S, check=False)
            self.assertEqual(done.returncode, 1, args)
            self.assertIn("fathom: standard output cannot be written", done.stderr)
            done = subprocess.run(["sh", "-c", '"$0" "$@" >&-', FATHOM, *args], timeout=HANG_S,
                                  stderr=subprocess.PIPE, text=True, check=False)
            self.assertEqual(done.returncode, 1, args)
            self.assertIn("fathom: standard output cannot be written", done.stderr)
        for args in ["tokenize"], ["run"], ["run", "--prompt", "-"]:
            for stdin in "</", "<&-":
                done = subprocess.run(["sh", "-c", f'"$0" "$@" {stdin}', FATHOM, *args],
                                      capture_output=True, text=True, timeout=HANG_S, check=False)
                self.assertEqual((done.returncode, done.stdout), (1, ""), args)
                self.assertIn("fathom: standard input cannot be read: ", done.stderr)

    def test_inspect_says_what_is_there_and_what_is_missing(self):
        out, _ = run("inspect", "--tensors")
        self.assertIn("DeepseekV32ForCausalLM", out)
        self.assertIn("model.embed_tokens.weight", out)
        self.assertIn("every tensor that the model needs is there", out)

    def test_inspect_judges_made_up_weights_as_a_server_does(self):
        with tempfile.TemporaryDirectory() as folder:
            dummy = (folder, "--load-format", "dummy")
            shutil.copy(os.path.join(PILOT, "config.json"), folder)
            for command in ("inspect",), ("serve", "--dry-run"):
                self.assertIn("tokenizer.json is missing",
                              "".join(run(*command, *dummy, status=1)), command)
            shutil.copy(os.path.join(PILOT, "tokenizer.json"), folder)
            out, _ = run("inspect", *dummy, "--tensors")
            self.assertIn("weights are made up (--load-format dummy), none are looked at", out)
            self.assertIn("total                     25.4 MB", out)
            self.assertNotIn("missing", out)
            run("serve", "--dry-run", *dummy)
            with open(os.path.join(folder, "config.json"), "r+", encoding="utf-8") as f:
                config = json.load(f)
                config["quantization_config"] = {"quant_method": "hqq"}
                f.seek(0)
                json.dump(config, f)
                f.truncate()
            for command in ("inspect",), ("serve", "--dry-run"):
                self.assertIn('"hqq" is not read', "".join(run(*command, *dummy, status=1)))

    def test_what_cannot_be_served_is_a_failure(self):
        with open(os.path.join(PILOT, "config.json"), encoding="utf-8") as f:
            config = json.load(f)
        lacks = "layers.9.input_layernorm.weight: missing; needed is BF16 [256]"
        odd = {"tokenizer_config.json": '{"add_bos_token": "x"}', "generation_config.json": "{"}
        cases = (({"num_hidden_layers": config["num_hidden_layers"] + 2}, "", lacks, (1, 1, 1)),
                 ({"quantization_config": {"quant_method": "hqq"}}, "", '"hqq" is not read', (1, 1, 1)),
                 ({}, "tokenizer.json", "tokenizer.json is missing", (1, 0, 1)),
                 ({}, "tokenizer_config.json", 'tokenizer_config.json: "add_bos_token" is a string', (1, 0, 1)),
                 ({}, "generation_config.json", "generation_config.json: not valid JSON", (1, 1, 1)))
        for changes, absent, reason, statuses in cases:
            with tempfile.TemporaryDirectory() as folder:
                for name in set(os.listdir(PILOT)) - {"config.json", absent}:
                    os.symlink(os.path.join(PILOT, name), os.path.join(folder, name))
                with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as f:
                    json.dump({**config, **changes}, f)
                if absent in odd:
                    with open(os.path.join(folder, absent), "w", encoding="utf-8") as f:
                        f.write(odd[absent])
                for command, status in zip(("inspect", "plan", "doctor"), statuses):
                    if status:
                        self.assertIn(reason, "".join(run(command, folder, status=status)), command)
                    else:
                        run(command, folder)
                self.assertIn(reason, run("serve", folder, "--dry-run", status=1)[1])

    def test_a_file_that_is_there_and_cannot_be_read_is_told(self):
        for name in sorted(os.listdir(PILOT)) + ["chat_template.jinja"]:
            if name == "README.md":
                continue
            with tempfile.TemporaryDirectory() as folder:
                for other in set(os.listdir(PILOT)) - {name}:
                    os.symlink(os.path.join(PILOT, other), os.path.join(folder, other))
                if name == "chat_template.jinja":  # which one in tokenizer_config.json comes before
                    path = os.path.join(folder, "tokenizer_config.json")
                    os.unlink(path)
                    with open(path, "w", encoding="utf-8") as f:
                        f.write("{}")
                path = os.path.join(folder, name)
                os.symlink("../../blobs/gone", path)
                for command in ("inspect",), ("doctor", "--port", "0"), ("serve", "--dry-run"):
                    self.assertIn(path + ": is a link to a file that is not there",
                                  "".join(run(*command, folder, status=1)), command)

    def test_files_of_a_checkpoint_may_begin_with_a_mark(self):
        with tempfile.TemporaryDirectory() as folder:
            for name in os.listdir(PILOT):
                with open(os.path.join(PILOT, name), "rb") as f:
                    data = (b"\xef\xbb\xbf" if name.endswith(".json") else b"") + f.read()
                with open(os.path.join(folder, name), "wb") as f:
                    f.write(data)
            self.assertEqual(run("inspect", folder)[0].split("\n")[1:],
                             run("inspect", PILOT)[0].split("\n")[1:])
            ask = ("run", folder, "--prompt", "Hello", "--max-tokens", "4", "--temperature", "0")
            self.assertEqual(run(*ask)[0], run("run", PILOT, *ask[2:])[0])

    def test_plan_fits_or_names_what_would(self):
        out, _ = run("plan", "--backend", "cpu")
        self.assertIn("all 64 requests of 4,096 tokens at once", out)
        self.assertIn("of up to 64 requests (the default of a CPU)", out)
        gpu = ("plan", PILOT, "--backend", "cuda", "--memory", "64g")
        self.assertIn("of up to 256 requests (the default of a GPU)", run(*gpu)[0])
        self.assertIn("of up to 96 requests (as --max-num-seqs says)", run(*gpu, "--max-num-seqs", "96")[0])
        self.assertIn("config", run("plan", PILOT + "/config.json")[0])
        out, err = run("plan", "--memory", "60M", status=1)
        self.assertIn("0 tokens in 0 pages", out)
        self.assertIn("take a machine with more memory", err)
        self.assertNotIn("GiB", err)
        small = ("--kv-cache-memory-bytes", "2M")
        run("plan", *small, status=1)
        for most in "auto", "-1":
            self.assertIn("1.0 requests of 192 tokens", run("plan", *small, "--max-model-len", most)[0])
        half = run("plan", "--kv-cache-dtype", "fp8")[0]
        self.assertNotEqual(half, run("plan")[0])
        out, _ = run("plan", "--backend", "cpu", "--memory", "1000G")
        self.assertRegex(out, r"left empty +963\.\d GB")
        self.assertIn("whose memory other programs use too", out)
        given = re.search(r"give --kv-cache-memory-bytes (\d+)", out).group(1)
        out, _ = run("plan", "--backend", "cpu", "--memory", "1000G", "--kv-cache-memory-bytes",
                     given)
        self.assertIn("all 64 requests of 4,096 tokens at once, and ", out)
        self.assertIn("as large as --kv-cache-memory-bytes says", out)
        _, err = run("plan", "--memory", "8G", "--kv-cache-memory-bytes", "500G", status=1)
        self.assertIn("is 536.9 GB, and of 8.6 GB that are free", err)

    def test_values_of_the_config_may_be_others(self):
        """As the same file with these values in it; weights that do not go with them are told."""
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "config.json")
            with open(PILOT + "/config.json", encoding="utf-8") as f:
                config = json.load(f)
            with open(path, "w", encoding="utf-8") as f:
                json.dump({**config, "num_hidden_layers": 5, "index_topk": 64}, f)
            plan = ("plan", "--load-format", "dummy", "--backend", "cpu", "--memory", "64G")
            want = run(*plan, path)[0].split("\n", 1)[1]
            for model in (), (PILOT,), (PILOT + "/config.json",):
                given = ("--hf-overrides", '{"num_hidden_layers": 5}', "--hf-overrides.index_topk", "64")
                self.assertEqual(run(*plan, *model, *given)[0].split("\n", 1)[1], want)
        fewer = ("--hf-overrides", '{"num_hidden_layers": 5, "num_nextn_predict_layers": 0}')
        self.assertIn("layers          5: 1 dense", run("inspect", *fewer)[0])
        ask = ("run", "-p", "Hello", "--max-tokens", "4", "--temperature", "0")
        self.assertNotEqual(run(*ask, *fewer)[0], run(*ask)[0])
        _, err = run(*ask, "--hf-overrides.kv_lora_rank", "256", status=1)
        self.assertIn("kv_lora_rank", err)
        _, err = run(*ask, "--hf-overrides.num_hidden_layers", "12", status=1)
        self.assertIn("model.layers.9", err)

    def test_plan_compares_layouts_for_a_load(self):
        load = ("--backend", "cpu", "--memory", "4G", "--concurrency", "40", "--input-len", "300",
                "--output-len", "100")
        out, _ = run("plan", "--ranks", "2", *load)
        self.assertIn("40 requests at once, each of 300 tokens and an answer of 100", out)
        self.assertIn("latency: -tp 2\n", out)
        self.assertIn("throughput: -dp 2 --enable-expert-parallel\n", out)
        tokens = [int(n.replace(",", ""))
                  for n in re.findall(r"output tokens/s +([\d,]+) with", out)]
        self.assertEqual(len(tokens), 2)
        alone = r"first token, a prompt alone +[\d.]+ ms"
        self.assertEqual(len(re.findall(alone + "\n", out)), 2)  # 256 for each rank are shared
        out_long, _ = run("plan", "--ranks", "2", *load[:-4], "--input-len", "512")
        self.assertEqual(len(re.findall(alone + ", computed by all ranks", out_long)), 1)
        chosen = re.search(r"--layout auto takes (\w+) over 2 ranks: 40 requests", out).group(1)
        self.assertEqual(chosen, ("latency", "throughput")[tokens[1] > tokens[0]])
        self.assertIn("2; what follows is of each", out)
        # what is planned is what was asked for, here 40 and 20 requests of each rank
        out, _ = run("plan", "-tp", "2", *load)
        self.assertIn("--layout auto takes", out)
        self.assertIn("all 64 requests of 4,096 tokens at once", out)
        dry = ("serve", "--dry-run", "--backend", "cpu", "--ranks", "2", "--concurrency", "40")
        self.assertIn("all 40 requests", run(*dry, "--layout", "latency")[0])
        self.assertIn("all 20 requests", run(*dry, "--layout", "throughput")[0])
        self.assertIn("--layout auto takes", run(*dry, "--layout", "auto")[0])
        for flags, words in (
                (("--layout", "throughput", "-tp", "2"),
                 "--layout throughput and --tensor-parallel-size 2: give one of them"),
                (("--layout", "latency", "-dp", "2", "--enable-expert-parallel"),
                 "--layout latency and --data-parallel-size, which is --layout throughput"),
                (("--layout", "auto", "-tp", "2"), "which is --layout latency"),
                (("--layout", "auto"), "give --ranks"),
                (("--layout", "auto", "--ranks", "3"), "which 3 ranks cannot share"),
                (("--ranks", "2"), "give --layout too"),
                (("--concurrency", "9"), "say what --layout auto chooses by")):
            _, err = run("serve", "--dry-run", "--backend", "cpu", *flags, status=1)
            self.assertIn(words, err)
        if shutil.which("nvidia-smi") is None:
            _, err = run("plan", "--backend", "cuda", "--ranks", "2", "--concurrency", "8", status=1)
            self.assertIn("To plan without the device, add --memory", err)

    def test_a_server_tells_which_layout_it_has_taken_and_why(self):
        server = Served("--backend", "cpu", "--layout", "auto", "--ranks", "2", "--concurrency",
                        "4", "--input-len", "100", "--output-len", "50")
        said = server.post("/v1/completions", {"model": "pilot", "prompt": "Hello", "max_tokens": 4,
                                                "temperature": 0, "ignore_eos": True})
        self.assertEqual(said["usage"]["completion_tokens"], 4)
        lanes = sum(name.startswith("fathom_lane_running") for name in server.metrics())
        self.assertEqual(server.stop(), 0)
        line = re.search(r"layout=(\w+) over 2 ranks: 4 requests of 100 \+ 50 tokens, of which 4 "
                         r"run at once, \d+ tokens/s predicted; (\w+): 4 at once, \d+$",
                         server.errors, re.M)
        self.assertEqual({*line.groups()}, {"latency", "throughput"})
        self.assertIn("ranks=2", server.errors)
        self.assertEqual(lanes, {"latency": 0, "throughput": 2}[line.group(1)])

    def test_a_method_that_is_not_read_is_refused_by_name(self):
        with open(os.path.join(PILOT, "config.json"), encoding="utf-8") as f:
            config = json.load(f)
        with tempfile.TemporaryDirectory() as folder:
            for name in os.listdir(PILOT):
                if name != "config.json":
                    os.symlink(os.path.join(PILOT, name), os.path.join(folder, name))
            path = os.path.join(folder, "config.json")
            with open(path, "w", encoding="utf-8") as f:
                json.dump({**config, "quantization_config": {"quant_method": "hqq"}}, f)
            for command in (("plan", folder, "--load-format", "dummy"),
                            ("serve", folder, "--load-format", "dummy", "--port", "0"),
                            ("bench", "kernels", path)):
                _, err = run(*command, status=1)
                self.assertEqual(err.count("\n"), 1, err)
                self.assertIn('"hqq" is not read', err)
            out, _ = run("doctor", folder, "--load-format", "dummy", status=1)
            self.assertIn('"hqq" is not read', out)

    def test_weights_are_made_up_in_every_method(self):
        for method in ("fp8", "awq", "gptq", "compressed-tensors", "w8a8_int8", "blockwise_int8",
                       "w4afp8", "modelopt", "ascend"):
            run("bench", "latency", PILOT, "--backend", "cpu", "--load-format", "dummy",
                "--quantization", method, "--input-len", "8", "--output-len", "3", "--num-iters",
                "1", "--num-iters-warmup", "0", "--max-model-len", "64")

    def test_a_named_method_must_be_the_checkpoint_s(self):
        for command in (("plan",), ("serve", "--port", "0")):
            _, err = run(*command, PILOT, "--quantization", "awq", status=1)
            self.assertEqual(err.count("\n"), 1, err)
            self.assertIn('--quantization awq: the checkpoint is "fp8": leave the option out', err)
        _, err = run("plan", "model.Q4_K_M.gguf", status=1)
        self.assertIn("GGUF is not read: use the directory of a safetensors release", err)

    def test_hosts_are_planned_by_what_each_has(self):
        out, _ = run("plan", PILOT, "--backend", "cpu", "-tp", "4", "--nnodes", "2")
        self.assertIn("2 on each of 2 hosts; what follows is of each", out)
        out, _ = run("plan", PILOT, "--backend", "cuda", "--memory", "64g", "-dp", "16", "-dpl", "8",
                     "-dpa", "10.0.0.1", "--enable-expert-parallel", "--trust-remote-code")
        self.assertIn("8 on each of 2 hosts; what follows is of each", out)

    def test_a_config_alone_is_planned_with_made_up_weights(self):
        with tempfile.TemporaryDirectory() as folder:
            for name in ("config.json", "tokenizer.json"):
                os.symlink(os.path.join(PILOT, name), os.path.join(folder, name))
            _, err = run("plan", folder, status=1)
            self.assertIn("To plan from config.json alone, add --load-format dummy", err)
            self.assertIn("needed, together", run("plan", folder, "--load-format", "dummy")[0])
            out, _ = run("doctor", "--json", folder, "--load-format", "dummy", "--port", "0")
            found = json.loads(out)["findings"]
            self.assertIn("weights are made up", str(found))
            self.assertEqual([f for f in found if f["level"] == "bad"], [])

    def test_bench_latency_times_a_batch(self):
        # answers long enough that experts are watched before the last of them ends
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "out.json")
            out, _ = run("bench", "latency", "--batch-size", "2", "--input-len", "40",
                         "--output-len", "64", "--num-iters", "2", "--num-iters-warmup", "1",
                         "--max-model-len", "256", "--output-json", path)
            with open(path, encoding="utf-8") as f:
                result = json.load(f)
        self.assertIn("2 requests, 40 tokens in, 64 out", out)
        self.assertEqual((result["batch"], result["repeats"]), (2, 2))
        for spread in (result["prefill_ms"], result["step_ms"], result["output_tok_s"]):
            self.assertTrue(0 < spread["min"] <= spread["median"] <= spread["max"])
        self.assertLess(result["step_ms"]["median"], result["total_ms"]["median"])
        self.assertIn("experts hit", out)
        self.assertEqual(result["experts_uniform"], 7)  # 4 of 16 experts, twice
        self.assertTrue(4 <= result["experts_hit"] <= 8 and 1 <= result["experts_busiest"] <= 2)
        self.assertIn("one of latency, kernels, throughput", run("bench", "nonsense", status=2)[1])
        run("bench", "latency", "--input-len", "4000", "--output-len", "200", status=1)

    def test_bench_latency_times_prompts_beside_decodes(self):
        mixed = ("bench", "latency", "--batch-size", "3", "--input-len", "8", "--output-len", "4",
                 "--num-iters", "2", "--num-iters-warmup", "1", "--max-num-batched-tokens", "64")
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "out.json")
            out, _ = run(*mixed, "--mixed-input-len", "200", "--max-model-len", "1024",
                         "--output-json", path)
            with open(path, encoding="utf-8") as f:
                r = json.load(f)["mixed"]
        self.assertIn("3 decodes beside a prompt of 200 tokens", out)
        self.assertEqual((r["decodes"], r["input_len"]), (3, 200))
        # 61 tokens of the prompt a step: 4 steps a round, the last of which may come after its token
        self.assertGreaterEqual(r["n_step"], 6)
        self.assertAlmostEqual(r["prompt_alone_ms"]["median"], 4 * r["chunk_ms"]["median"], places=1)
        self.assertAlmostEqual(r["parts_ms"], r["decode_ms"] + r["chunk_ms"]["median"], places=2)
        self.assertTrue(0 <= r["decode_ms"] and 0 < r["step_ms"] <= r["itl_p99_ms"])
        self.assertLess(r["step_ms"], r["prompt_ms"]["median"])
        _, err = run("bench", "latency", "--input-len", "60", "--mixed-input-len", "60",
                     "--output-len", "2", "--max-model-len", "64", status=1)
        self.assertIn("end of its context after 4 tokens", err)

    def test_bench_throughput_times_many_requests(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "out.json")
            out, _ = run("bench", "throughput", "--num-prompts", "6", "--input-len", "40",
                         "--output-len", "8", "--num-warmups", "2", "--max-num-seqs", "2",
                         "--max-model-len", "256", "--output-json", path)
            with open(path, encoding="utf-8") as f:
                result = json.load(f)
        self.assertRegex(out, r"Throughput: [\d.]+ requests/s, [\d.]+ total tokens/s, "
                              r"[\d.]+ output tokens/s")
        self.assertIn("random, 6 requests, 40.0 tokens in and 8.0 out", out)
        self.assertEqual((result["num_requests"], result["total_num_tokens"]), (6, 6 * 48))
        self.assertAlmostEqual(result["tokens_per_second"] * result["elapsed_time"], 288, delta=1)
        self.assertIn("needs --dataset-path", run("bench", "throughput", "--dataset-name",
                                                  "sharegpt", status=1)[1])

    def test_run_answers_as_the_reference_does(self):
        for kind, flags in (("arithmetic", ()), ("arithmetic, thinking", ("--thinking",))):
            case = evaluation(kind)[0]
            question = re.search(r"<｜User｜>(.*)<｜Assistant｜>", case["prompt"], re.S).group(1)
            out, err = run("run", "--temperature", "0", *flags, "-p", question)
            self.assertTrue(out.strip().endswith(case["want"]), out)
            self.assertIn("tokens/s", err)

    def test_run_keeps_a_chat_from_lines(self):
        out, err = run("run", "--temperature", "0",
                       stdin="Hello, who are you?\n/think\n/new\nHow much is 2 plus 3?\n/quit\n")
        self.assertIn("Pilot", out)
        self.assertIn("= 5", out)
        self.assertIn("thinking is on", err)

    def test_run_does_commands(self):
        with tempfile.TemporaryDirectory() as folder:
            chat, text = os.path.join(folder, "chat.json"), os.path.join(folder, "text")
            with open(text, "w") as f:
                f.write("How much is 20 plus 30?")
            out, err = run("run", "--temperature", "0", stdin="\n".join([
                "/retry", "/undo", "/sing", "/set", "/set speed 3", "/set temperature hot",
                "/set seed 7", "/set top_p 0.5", "/set max_tokens 60", "/system Be brief.", "/set",
                "/system", "/file", "/file /nowhere", "/file " + text, "/retry", "/save " + chat,
                "/undo", "/save " + chat + "2", "/new now", "/load " + text, "/load " + chat,
                "How much is 2 plus \\", "3?", '"""', "How much is", "4 plus 5?", '"""',
                "/save " + chat + "3", "/quit", "/help"]))
            for part in ("no message yet to answer", "no message to take back",
                         'no command "/sing"', "top_p -1", 'no "speed" to set',
                         'temperature is "hot"', "seed 7", "top_p 0.5", "max_tokens 60",
                         "system: Be brief.", "/file needs a PATH", "/nowhere",
                         "/new takes nothing", "context "):
                self.assertIn(part, err)
            self.assertNotIn("/undo", err)  # /quit comes before /help
            self.assertEqual(out.count("= 50"), 2)
            contents = []
            for name in (chat, chat + "2", chat + "3"):
                with open(name) as f:
                    contents.append([m["content"] for m in json.load(f)])
            self.assertEqual(len(contents[0]), 2)
            self.assertEqual(contents[1], [])
            self.assertEqual(contents[2][:3], [*contents[0], "How much is 2 plus \n3?"])
            self.assertEqual(contents[2][4], "How much is\n4 plus 5?")

    def test_run_in_a_terminal(self):
        with tempfile.TemporaryDirectory() as home:
            terminal = Terminal(home)
            terminal.until("> ")
            terminal.until("tokens/s", "Hello, who are you?\n")
            self.assertIn("Pilot", terminal.seen)
            terminal.until("/nothink", "/help\n")
            terminal.until("thinking is on", "/thi\t\n")
            terminal.until("> ")
            terminal.until_edited()
            terminal.until(". ", "This goes\x03How much is \\\n")
            terminal.until("tokens/s", "2 plus 3?\n")
            self.assertIn("\x1b[2m", terminal.seen)
            self.assertNotIn("interrupted", terminal.seen)
            self.assertTrue(any(terminal.is_cut_off("A story") for _ in range(20)), terminal.seen)
            self.assertEqual(terminal.leave(), 0)
            history = os.path.join(home, ".local/state/fathom/history")
            self.assertEqual(os.stat(history).st_mode & 0o777, 0o600)
            again = Terminal(home)
            again.until("> ")
            again.until("2 plus 3?", "\x1b[A\x1b[A")
            again.until("tokens/s", "\n")
            self.assertEqual(again.leave(), 0)

    def test_a_message_that_is_too_long_is_refused_and_the_chat_goes_on(self):
        out, err = run("run", "--max-model-len", "64", "--temperature", "0", "--max-tokens", "30",
                       stdin="word " * 200 + "\nHello\n")
        self.assertIn("64", err)
        self.assertIn("Hello", out)

    @staticmethod
    def models(server, key):
        request = urllib.request.Request(server.url + "/v1/models",
                                         headers={"Authorization": "Bearer " + key})
        with urllib.request.urlopen(request, timeout=HANG_S) as answer:
            return json.load(answer)["data"]

    def test_serve_answers_and_stops_on_a_signal(self):
        for number in (signal.SIGTERM, signal.SIGINT):
            server = Served("--served-model-name", "a", "b", "--api-key", "secret",
                            "--trust-remote-code")
            models = self.models(server, "secret")
            self.assertEqual([(m["id"], m["root"]) for m in models], [("a", "pilot"), ("b", "pilot")])
            body = {"model": "b", "temperature": 0,
                    "messages": [{"role": "user", "content": "Hello, who are you?"}]}
            answer = server.post("/v1/chat/completions", body, key="secret")
            self.assertIn("Pilot", answer["choices"][0]["message"]["content"])
            with self.assertRaises(urllib.error.HTTPError) as refused:
                server.post("/v1/chat/completions", body)
            self.assertEqual(refused.exception.code, 401)
            self.assertEqual(server.stop(number), 0)
            self.assertIn("--trust-remote-code has no effect", server.errors)
            for row in ("model", "backend", "memory", "context", "address", "try", "ready"):
                self.assertRegex(server.printed, rf"(?m)^{row} ")

    def test_health_asks_at_the_port_that_the_environment_has_given(self):
        port = str(Served().port)
        self.assertIn(f"http://127.0.0.1:{port}", run("health", env={"FATHOM_PORT": port})[0])
        self.assertIn(":1/ready: ", run("health", "http://127.0.0.1:1", status=1,
                                        env={"FATHOM_PORT": port})[1])

    def test_a_chat_with_a_server(self):
        server = Served("--served-model-name", "a", "b", "--api-key", "secret")
        url, key = ("--url", server.url + "/v1/"), {"OPENAI_API_KEY": "secret"}
        plain = ("--temperature", "0", "--max-tokens", "20")
        asked = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]
        turns = []
        for _ in range(2):
            body = {"model": "a", "messages": asked, "temperature": 0, "max_tokens": 20}
            turns.append(server.post("/v1/chat/completions", body, key="secret")["choices"][0]
                         ["message"]["content"])
            asked += [{"role": "assistant", "content": turns[-1]},
                      {"role": "user", "content": "Hello\nagain"}]
        said, _ = run("chat", *url, *plain, "--system-prompt", "Be brief.", env=key,
                      stdin="Hello\n\nHello\\\nagain\n")
        self.assertEqual(said, "".join(turn + "\n" for turn in turns))
        # one message; one that is refused leaves the chat as it was
        self.assertIn("Pilot", run("chat", *url, "-q", "Hello, who are you?", env=key)[0])
        self.assertIn("the API key is missing or wrong",
                      run("chat", *url, "-q", "Hello", "--api-key", "x", status=1)[1])
        said, told = run("chat", *url, *plain, "--model-name", "b", env=key,
                         stdin="word " * 9000 + "\nHello, who are you?\n")
        self.assertIn("maximum context length", told)
        self.assertIn("Pilot", said)
        # completions
        body = {"prompt": "The advantage of MLA", "temperature": 0, "max_tokens": 20}
        text = server.post("/v1/completions", body, key="secret")["choices"][0]["text"]
        self.assertEqual(run("complete", *url, *plain, "-q", "The advantage of MLA", env=key)[0],
                         text + "\n")
        for wrong, part in (("ftp://x", "neither http:// nor"), (server.url + "/x", "404")):
            self.assertIn(part, run("complete", "--url", wrong, "-q", "x", env=key, status=1)[1])
        self.assertEqual(server.stop(), 0)
        self.assertIn(server.url.split("/")[2], run("complete", *url, "-q", "x", status=1)[1])

    def test_what_holds_for_requests_that_do_not_say(self):
        server = Served("--override-generation-config", '{"temperature": 0.25, "top_k": 7}',
                        "--override-generation-config.top_p", "0.5", "--enable-force-include-usage",
                        "--default-chat-template-kwargs", '{"thinking": true}')
        chat = {"messages": [{"role": "user", "content": "Hello, who are you?"}], "max_tokens": 40}
        said = server.post("/v1/responses", {"input": "Hi", "max_output_tokens": 1})
        self.assertEqual((said["temperature"], said["top_p"]), (0.25, 0.5))
        said = server.post("/v1/responses", {"input": "Hi", "max_output_tokens": 1, "top_p": 0.75})
        self.assertEqual((said["temperature"], said["top_p"]), (0.25, 0.75))
        message = server.post("/v1/chat/completions", chat)["choices"][0]["message"]
        self.assertTrue(message["reasoning_content"])
        chat["chat_template_kwargs"] = {"thinking": False}
        message = server.post("/v1/chat/completions", chat)["choices"][0]["message"]
        self.assertIsNone(message["reasoning_content"])
        for path, body in (("/v1/chat/completions", chat), ("/v1/completions", {"prompt": "Hi"})):
            request = urllib.request.Request(
                server.url + path, json.dumps({**body, "stream": True}).encode())
            with urllib.request.urlopen(request, timeout=HANG_S) as answer:
                chunks = [json.loads(c[6:]) for c in answer.read().decode().split("\n\n")[:-2]]
            self.assertTrue(all(c["usage"]["completion_tokens"] > 0 for c in chunks), chunks)
        self.assertEqual(server.stop(), 0)

    def test_the_key_may_come_from_the_environment(self):
        server = Served(env={"VLLM_API_KEY": "hush"})
        body = {"model": "pilot", "prompt": "The", "max_tokens": 1}
        self.assertEqual(len(server.post("/v1/completions", body, key="hush")["choices"]), 1)
        with self.assertRaises(urllib.error.HTTPError):
            server.post("/v1/completions", body, key="wrong")
        self.assertNotIn("hush", server.printed)
        self.assertEqual(server.stop(), 0)

    def test_options_from_a_file_and_from_the_environment(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "serve.yaml")
            with open(path, "w", encoding="utf-8") as f:
                f.write("model: pilot\nmax-num-seqs: 2\nserved-model-name: [a, b]\n")
            out, err = run("serve", "--config", path, "--dry-run",
                           env={"FATHOM_MAX_NUM_SEQS": "9", "FATHOM_MAX_MODEL_LEN": "1024",
                                "FATHOM_NONSENSE": "1", "HF_HUB_OFFLINE": "1"})
        self.assertIn("all 2 requests of 1,024 tokens at once", out)
        self.assertIn("FATHOM_NONSENSE has no effect: there is no such option", err)
        self.assertIn("HF_HUB_OFFLINE has no effect: `fathom pull` has no such setting", err)

    def test_a_port_that_is_taken_is_named(self):
        server = Served()
        port = str(server.port)
        _, err = run("serve", "--port", port, "--max-num-seqs", "1", status=1)
        self.assertIn(port, err)
        self.assertEqual(server.stop(), 0)


if __name__ == "__main__":
    unittest.main()
