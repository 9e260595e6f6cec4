#!/usr/bin/env python3
"""fathom bench serve, sweep and report: against a server that notes its times, against one that
fails in every way, and against the pilot.

Nothing here depends on how busy the machine is: a time that the client measures lies between two
that the server has noted, however far apart these are; figures follow from the requests' own times.

    tests/e2e/test_bench.py path/to/fathom
"""

import asyncio
import contextlib
import csv
import glob
import itertools
import json
import os
import re
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import unittest

from certificates import make_certificate
from served import HANG_S, Server

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tests", "clients"))
import client_env  # noqa: E402

FATHOM = os.path.abspath(sys.argv.pop(1))
Server.path = FATHOM

FIRST_S, GAP_S = 0.060, 0.010  # of the paced server, at the least
EARLY_S = 0.001  # by which a timer may be early
METRICS = "".join(f'vllm:request_queue_time_seconds_{part} {{}}\n' for part in ("sum", "count"))


def bench(*args, status=0, env=None):
    """Standard output and error."""
    clean = {k: v for k, v in os.environ.items()
             if not k.startswith(("HF_", "FATHOM", "VLLM", "OPENAI"))}
    done = subprocess.run([FATHOM, "bench", *args], capture_output=True, text=True, timeout=HANG_S,
                          env={**clean, **(env or {})}, check=False)
    if done.returncode != status:
        raise AssertionError(f"{args}: status {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done.stdout, done.stderr


class Paced:
    """A server of completions and chats that answers at a known pace, or fails as its prompts' number
    says: every request is kept with its headers, and when it was there and its tokens were sent, by the
    clock that the program reads too."""

    def __init__(self, failures=()):
        self.failures, self.requests, self.n_finished = list(failures), [], 0
        self.root = None  # what the model's name stands for
        self.times = []  # of each request: when it was there, when each token was sent
        self.loop = asyncio.new_event_loop()
        started = threading.Event()
        self.thread = threading.Thread(target=self._run, args=(started,), daemon=True)
        self.thread.start()
        started.wait()

    def _run(self, started):
        asyncio.set_event_loop(self.loop)
        server = self.loop.run_until_complete(
            asyncio.start_server(self._connection, "127.0.0.1", 0))
        self.port = server.sockets[0].getsockname()[1]
        started.set()
        self.loop.run_forever()
        server.close()
        left = asyncio.all_tasks(self.loop)
        for task in left:
            task.cancel()
        self.loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        self.loop.close()

    def stop(self):
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()

    async def _connection(self, reader, writer):
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError,
                                 asyncio.CancelledError):
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = re.search(rb"content-length: *(\d+)", head, re.I)
                body = await reader.readexactly(int(length.group(1))) if length else b""
                await self._answer(head.decode(), body, writer)
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()

    async def _answer(self, head, body, writer):
        path = head.split()[1]
        if not body:
            text = {"/metrics": METRICS.format(0.25 * self.n_finished, self.n_finished),
                    "/v1/models": json.dumps({"data": [{"id": "paced", "root": self.root}]})}.get(path, "")
            writer.write(f"HTTP/1.1 200 OK\r\nContent-Length: {len(text)}\r\n\r\n{text}".encode())
            return
        body = json.loads(body)
        how = self.failures[len(self.requests)] if len(self.requests) < len(self.failures) else ""
        self.requests.append((path, head, body))
        times = [time.monotonic()]
        self.times.append(times)
        await self._stream(body, how, writer, times)
        self.n_finished += 1

    async def _stream(self, body, how, writer, times):
        if how.isdigit():
            text = json.dumps({"error": {"message": f"status {how}"}})
            writer.write(f"HTTP/1.1 {how} x\r\nContent-Length: {len(text)}\r\n\r\n{text}".encode())
            return
        is_chat = "messages" in body
        n = body.get("max_tokens") or body["max_completion_tokens"]
        clock = asyncio.get_running_loop()
        start = clock.time()

        def event(value):
            data = f"data: {json.dumps(value)}\n\n".encode()
            writer.write(b"%x\r\n%s\r\n" % (len(data), data))

        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
                     b"Transfer-Encoding: chunked\r\n\r\n")
        if is_chat:
            event({"choices": [{"delta": {"role": "assistant", "content": ""}}]})
        for i in range(n):
            await asyncio.sleep(start + FIRST_S + i * GAP_S - clock.time())
            if how and i == 1:
                if how == "error":
                    event({"error": {"message": "out of luck"}})
                elif how == "nonsense":
                    writer.write(b"9\r\ndata: {x\n\r\n2\r\n\n\n\r\n")
                elif how == "hang":
                    await asyncio.sleep(HANG_S)
                writer.close()
                return
            text = " word"
            times.append(time.monotonic())
            event({"choices": [{"delta": {"content": text}} if is_chat else {"text": text}]})
            await writer.drain()
        event({"choices": [], "usage": {"prompt_tokens": 20, "completion_tokens": n,
                                        "prompt_tokens_details": {"cached_tokens": 0}}})
        writer.write(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")
        await writer.drain()


class KnownTimes(unittest.TestCase):
    def setUp(self):
        self.paced = Paced()
        self.addCleanup(self.paced.stop)
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def serve(self, *args, tokens=12):
        begin = time.monotonic()
        out, err = bench("serve", "--port", str(self.paced.port), "--tokenizer", "pilot",
                         "--input-len", "20", "--output-len", str(tokens), "--result-dir",
                         self.folder, "--save-detailed", "--save-result", "--result-filename",
                         "r.json", *args)
        with open(os.path.join(self.folder, "r.json"), encoding="utf-8") as f:
            r = json.load(f)
        self.assertLess(r["duration"], time.monotonic() - begin)
        self.check_figures(r)
        return r, out, err

    def check_figures(self, r):
        """Every figure of a run without failures follows from its requests' own times."""
        whole = [first + sum(gaps) for first, gaps in zip(r["ttfts"], r["itls"])]
        values = {"ttft": r["ttfts"], "itl": list(itertools.chain(*r["itls"])), "e2el": whole,
                  "tpot": [sum(gaps) / (n - 1)
                           for gaps, n in zip(r["itls"], r["output_lens"]) if n > 1]}
        for metric, seconds in values.items():
            for part in ("mean", "median"):
                want = 1e3 * getattr(statistics, part)(seconds)
                self.assertAlmostEqual(r[f"{part}_{metric}_ms"], want, places=2)
        for start, seconds in zip(r["start_times"], whole):
            self.assertLess(start + seconds, r["duration"] + EARLY_S)
        self.assertAlmostEqual(r["request_throughput"], len(whole) / r["duration"], places=3)
        self.assertAlmostEqual(r["output_throughput"], sum(r["output_lens"]) / r["duration"],
                               places=3)
        self.assertTrue(r["checks"]["littles_law_holds"])
        self.assertLess(sum(whole) / r["duration"], r["checks"]["mean_in_flight"] + 0.01)

    def test_times_lie_between_those_of_the_server(self):
        """One request after the other: nothing is received before it was sent, and a request is over
        when the next one comes."""
        r, *_ = self.serve("--num-prompts", "8", "--max-concurrency", "1")
        times = self.paced.times[-8:]
        for i, (first, gaps) in enumerate(zip(r["ttfts"], r["itls"])):
            there, *sent = times[i]
            for received, at in zip(itertools.accumulate([first, *gaps]), sent):
                self.assertGreater(received, at - there)
            if 0 < i < 7:
                self.assertLess(first + sum(gaps), times[i + 1][0] - times[i - 1][-1])

    def test_figures_are_what_the_server_did(self):
        r, out, _ = self.serve("--num-prompts", "8", "--max-concurrency", "4", "--goodput",
                               "ttft:1000", "e2el:20", "--metric-percentiles", "50,99")
        whole_s = FIRST_S + 11 * GAP_S - EARLY_S
        self.assertGreater(min(r["ttfts"]), FIRST_S - EARLY_S)
        self.assertGreater(r["mean_e2el_ms"], 1e3 * whole_s)
        self.assertGreater(r["duration"], 2 * whole_s)
        self.assertEqual((r["completed"], r["failed"], r["request_goodput"]), (8, 0, 0))
        self.assertEqual((r["total_input_tokens"], r["total_output_tokens"]), (160, 96))
        self.assertEqual((r["max_concurrency"], r["max_concurrent_requests"]), (4, 4))
        self.assertEqual(r["p50_ttft_ms"], r["median_ttft_ms"])
        checks = r["checks"]
        self.assertLess(checks["mean_in_flight"], 4.01)
        # four of the eight wait for the others
        self.assertGreater(checks["mean_client_wait_ms"], 1e3 * whole_s / 2)
        self.assertAlmostEqual(checks["mean_client_wait_ms"],
                               1e3 * statistics.mean(r["start_times"]), places=2)
        self.assertAlmostEqual(r["server_metrics"]["mean_queue_ms"], 250, places=3)
        self.assertEqual(r["model_id"], "paced")
        for part in ("Serving Benchmark Result", "Mean TTFT (ms):", "P99 ITL (ms):",
                     "Request goodput (req/s):", "workload  random 20 in, 12 out; 8 requests"):
            self.assertIn(part, out)

    def test_arrivals_keep_the_rate(self):
        r, _, _ = self.serve("--num-prompts", "30", "--request-rate", "20", tokens=2)
        starts = r["start_times"]
        self.assertEqual(starts, sorted(starts))
        # the draws add up to the rate; what is late by the machine is told
        late = r["checks"]["max_client_wait_ms"] / 1e3
        self.assertGreater(starts[-1], 30 / 20 - 0.05)
        self.assertLess(starts[-1], 30 / 20 + 0.05 + late)
        self.assertEqual((r["request_rate"], r["max_concurrency"]), (20.0, None))
        for key in ("input_lens", "output_lens", "ttfts", "itls", "generated_texts", "errors"):
            self.assertEqual(len(r[key]), 30)
        self.assertEqual((r["input_lens"][0], r["output_lens"][0]), (20, 2))
        self.assertEqual(r["generated_texts"][3], " word word")

    def test_chats_start_with_their_content_not_their_role(self):
        r, _, _ = self.serve("--backend", "openai-chat", "--num-prompts", "3", "--header", "X-A=b c",
                             "--api-key", "secret", "--extra-body", '{"top_p": 0.5}',
                             "--cache", "off", "--ignore-eos", tokens=4)
        self.assertGreater(min(r["ttfts"]), FIRST_S - EARLY_S)
        self.assertEqual(r["backend"], "openai-chat")
        path, head, body = self.paced.requests[-1]
        self.assertEqual(path, "/v1/chat/completions")
        self.assertIn("Authorization: Bearer secret", head)
        self.assertIn("X-A: b c", head)
        self.assertEqual((body["top_p"], body["temperature"], body["ignore_eos"], body["stream"]),
                         (0.5, 0, True, True))
        salts = {body["cache_salt"] for _, _, body in self.paced.requests}
        self.assertEqual(len(salts), len(self.paced.requests))

    def test_the_key_comes_from_the_environment(self):
        bench("serve", "--port", str(self.paced.port), "--tokenizer", "pilot", "--input-len", "20",
              "--output-len", "2", "--num-prompts", "1", env={"OPENAI_API_KEY": "hush"})
        self.assertIn("Bearer hush", self.paced.requests[-1][1])

    def test_the_tokenizer_is_that_of_what_the_model_stands_for(self):
        args = ("serve", "--port", str(self.paced.port), "--input-len", "20", "--output-len", "2",
                "--num-prompts", "1")
        self.paced.root = "pilot"
        bench(*args)
        self.assertEqual(self.paced.requests[-1][2]["model"], "paced")
        self.paced.root = "/no/such"
        self.assertIn("prompts with: paced: no such directory", bench(*args, status=1)[1])

    def test_repeats_have_other_prompts_and_a_spread(self):
        r, out, _ = self.serve("--num-prompts", "2", "--repeat", "3", "--num-warmups", "1",
                               "--metadata", "gpu=none", "--label", "mine", tokens=2)
        self.assertEqual((r["repeats"], r["gpu"], r["label"]), (3, "none", "mine"))
        s = r["spread"]["median_ttft_ms"]
        self.assertTrue(s["min"] <= s["median"] <= s["max"])
        self.assertIn("Spread over runs", out)
        prompts = [body["prompt"] for _, _, body in self.paced.requests]
        self.assertEqual(len(prompts), 1 + 3 + 3 * 2)
        self.assertEqual(len(set(prompts)), len(prompts))

    def test_a_warm_cache_is_asked_for_twice(self):
        self.serve("--num-prompts", "3", "--cache", "on", tokens=3)
        prompts = [body["prompt"] for _, _, body in self.paced.requests][1:]
        self.assertEqual(sorted(prompts[:3]), sorted(prompts[3:]))

    def test_results_are_appended_and_named(self):
        args = ("serve", "--port", str(self.paced.port), "--tokenizer", "pilot", "--input-len", "20",
                "--output-len", "2", "--num-prompts", "1", "--result-dir", self.folder)
        bench(*args, "--append-result", "--result-filename", "all.jsonl")
        bench(*args, "--append-result", "--result-filename", "all.jsonl")
        with open(os.path.join(self.folder, "all.jsonl"), encoding="utf-8") as f:
            self.assertEqual(len([json.loads(line) for line in f]), 2)
        bench(*args, "--save-result", "--max-concurrency", "1")
        name = os.path.basename(glob.glob(self.folder + "/openai-*")[0])
        self.assertRegex(name, r"^openai-infqps-concurrency1-paced-\d{8}-\d{6}\.json$")

    def test_where_the_result_goes_is_looked_at_before_the_load(self):
        args = ("serve", "--port", str(self.paced.port), "--tokenizer", "pilot", "--input-len", "20",
                "--output-len", "2", "--num-prompts", "1", "--save-result")
        in_folder = (*args, "--result-dir", self.folder, "--result-filename")
        os.mkdir(os.path.join(self.folder, "folder"))
        for wrong, needle in (((*args, "--metadata", "a"), "--metadata a: needed is NAME=VALUE"),
                              ((*args, "--result-dir", "/dev/null/a"), "/dev/null"),
                              ((*in_folder, "folder"), "folder: cannot be written: Is a directory"),
                              ((*in_folder, "no/r.json"), "no/r.json: cannot be written: No such"),
                              (("latency", "--output-json", "/no/r.json"), "/no/r.json: cannot be")):
            self.assertIn(needle, bench(*wrong, status=1)[1])
        self.assertEqual(self.paced.requests, [])
        whole = os.path.join(self.folder, "whole.json")
        bench(*args, "--result-filename", whole)
        with open(whole, encoding="utf-8") as f:
            kept = f.read()
        self.assertEqual(json.loads(kept)["completed"], 1)
        for flags, needle in ((), "cannot be written: File too large\n"), (
                ("--append-result",), "File too large; it holds what it held before\n"):
            done = subprocess.run(["sh", "-c", 'trap "" XFSZ; ulimit -f 1; "$0" "$@"', FATHOM, "bench",
                                   *args, "--save-detailed", "--result-filename", whole, *flags,
                                   "--metadata", "a=" + "b" * 2000], capture_output=True, text=True,
                                  timeout=HANG_S, check=False)
            self.assertEqual(done.returncode, 1, done.stdout)
            self.assertIn(needle, done.stderr)
            with open(whole, encoding="utf-8") as f:
                self.assertEqual(f.read(), kept)

    def test_a_result_may_go_to_a_stream(self):
        out, _ = bench("serve", "--port", str(self.paced.port), "--tokenizer", "pilot", "--input-len",
                       "20", "--output-len", "2", "--num-prompts", "1", "--save-result",
                       "--result-filename", "/dev/stdout")
        self.assertEqual(json.loads(next(l for l in out.split("\n") if l[:1] == "{"))["completed"], 1)
        self.assertTrue(os.path.islink("/dev/stdout"))

    def test_a_sweep_takes_up_where_it_was_ended(self):
        args = ("sweep", "--port", str(self.paced.port), "--tokenizer", "pilot", "--input-len",
                "20,40", "--output-len", "2", "--concurrency", "1,2", "--request-rate", "50",
                "--num-prompts", "3", "--pause", "0", "--result-dir", self.folder)
        bench(*args)
        n = len(self.paced.requests)
        self.assertEqual(n, 6 * 4)
        self.assertEqual(len({b["prompt"] for _, _, b in self.paced.requests}), n)
        os.unlink(os.path.join(self.folder, "in40-out2-c2.json"))
        out, _ = bench(*args)
        self.assertEqual(len(self.paced.requests), n + 4)
        self.assertEqual(out.count("measured before"), 5)
        with open(os.path.join(self.folder, "sweep.csv"), encoding="utf-8") as f:
            rows = list(csv.DictReader(f))
        self.assertEqual([row["max_concurrency"] for row in rows], ["1", "2", ""] * 2)
        self.assertEqual({row["checks.littles_law_holds"] for row in rows}, {"true"})
        _, err = bench(*args, "--ignore-eos", status=1)
        self.assertIn("another workload", err)
        page = os.path.join(self.folder, "page.html")
        out, _ = bench("report", *sorted(glob.glob(self.folder + "/in*.json")), "-o", page,
                       "--title", "A <b> & c")
        self.assertIn("6 points, 2 series", out)
        with open(page, encoding="utf-8") as f:
            text = f.read()
        self.assertIn("<h1>A &lt;b&gt; &amp; c</h1>", text)
        self.assertEqual(text.count("<figure"), text.count("</figure>"))
        self.assertNotRegex(text, r"(src|href)=\"?(https?:)?//|url\(|@import")

    def test_what_cannot_be_run_says_why(self):
        port = str(self.paced.port)
        for args, status, part in (
                (("serve", "--port", port, "--model", "no/such"), 1, "--tokenizer DIR"),
                (("serve", "--port", port, "--request-rate", "fast"), 1, "--request-rate"),
                (("serve", "--port", port, "--goodput", "ttft"), 1, "--goodput"),
                (("serve", "--base-url", "ftp://x"), 1, "--base-url"),
                (("serve", "--port", port, "--percentile-metrics", "tft"), 1, "tft"),
                (("serve", "--port", port, "--header", "x", "--tokenizer", "pilot"), 1, "--header"),
                (("serve", "--port", "1", "--model", "pilot", "--num-prompts", "1"), 1,
                 "the first request"),
                (("serve", "--backend", "tgi"), 2, "refused"),
                (("sweep", "--port", port, "--concurrency", "0"), 1, "--concurrency"),
                (("sweep", "--port", port), 1, "needs --concurrency or --request-rate"),
                (("report",), 2, "fathom bench report FILE..."),
                (("transfer", "--peer", "nowhere"), 1, "no HOST:PORT"),
                (("transfer", "--peer", "127.0.0.1:1"), 1, "refused"),
                (("transfer", "--peer", "a:1", "--listen", "b:1"), 1, "give one"),
                (("report", "/nowhere.json"), 1, "/nowhere.json")):
            out, err = bench(*args, status=status)
            self.assertIn(part, err)
            self.assertNotIn("Result", out)


class Transfer(unittest.TestCase):
    def test_records_go_within_a_process_and_between_two(self):
        args = ("--page-bytes", "100000", "--seconds", "0.05")
        out, _ = bench("transfer", *args)
        rows = [line.split() for line in out.splitlines()[2:]]
        self.assertEqual([row[0] for row in rows], ["1", "2", "4"])
        for row in rows:
            self.assertTrue(int(row[1]) > 0 and float(row[2]) > 0 and float(row[4]) > 0, row)
        giver = subprocess.Popen([FATHOM, "bench", "transfer", "--listen", "127.0.0.1:0", *args],
                                 stdout=subprocess.PIPE, text=True)
        try:
            address = giver.stdout.readline().split()[1]
            out, _ = bench("transfer", "--peer", address, "--lanes", "3", *args)
            self.assertRegex(out, r"\n +3 +[1-9]\d* ")
            out, err = bench("transfer", "--peer", address, "--page-bytes", "99", status=1)
            self.assertIn("layout", err)
        finally:
            giver.terminate()
            giver.communicate()


class RouterBench(unittest.TestCase):
    def test_a_router_adds_its_time_to_requests_and_tokens(self):
        out, _ = bench("router", "--rounds", "5")
        rows = [line.split() for line in out.splitlines()[4:]]
        self.assertEqual([row[0] for row in rows], ["1000", "4000", "16000", "64000"])
        for row in rows:
            self.assertEqual(len(row), 10)
            self.assertGreater(int(row[1]), 4 * int(row[0]))
            for number in (row[2], row[3], row[6], row[7]):  # medians of times, not of differences
                self.assertGreater(float(number), 0, row)
        out, _ = bench("router", "--rounds", "1", "--prompt-tokens", "20")
        self.assertEqual(len(out.splitlines()), 5)
        bench("router", "--rounds", "0", status=2)


class Latency(unittest.TestCase):
    def test_the_file_has_vllms_keys_beside_ours(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "latency.json")
            bench("latency", "--batch-size", "2", "--input-len", "16", "--output-len", "4",
                  "--num-iters-warmup", "1", "--num-iters", "5", "--output-json", path)
            with open(path, encoding="utf-8") as f:
                r = json.load(f)
        self.assertEqual((r["batch"], r["input_len"], r["output_len"], r["repeats"]), (2, 16, 4, 5))
        runs = sorted(r["latencies"])
        self.assertEqual(len(runs), 5)
        self.assertAlmostEqual(r["avg_latency"], sum(runs) / 5, places=5)
        self.assertEqual(list(r["percentiles"]), ["10", "25", "50", "75", "90", "99"])
        for percent, value in r["percentiles"].items():
            at = 4 * int(percent) / 100
            low = int(at)
            want = runs[low] + (at - low) * (runs[min(low + 1, 4)] - runs[low])
            self.assertAlmostEqual(value, want, places=5)
        for value, ours in ((runs[0], "min"), (runs[2], "median"), (runs[-1], "max")):
            self.assertAlmostEqual(1e3 * value, r["total_ms"][ours], places=2)


class Failures(unittest.TestCase):
    def test_each_kind_is_counted_and_the_law_tells(self):
        paced = Paced(["", "429", "500", "404", "cut", "error", "nonsense", "hang", "", ""])
        self.addCleanup(paced.stop)
        out, _ = bench("serve", "--port", str(paced.port), "--tokenizer", "pilot", "--input-len",
                       "20", "--output-len", "4", "--num-prompts", "9", "--max-concurrency", "1",
                       "--request-timeout", "5")
        for kind in ("busy (429)", "server failed (5xx)", "refused (4xx)", "stream cut",
                     "error in the stream", "not a stream", "timed out"):
            self.assertRegex(out, rf"Failed, {re.escape(kind)}: +1\b")
        self.assertRegex(out, r"Successful requests: +2\b")
        self.assertRegex(out, r"Failed requests: +7\b")
        self.assertIn("Little's law does not hold", out)
        self.assertIn("The first failure: {\"error\": {\"message\": \"status 429\"}}", out)

    def test_answers_that_are_there_at_once_stall_nothing(self):
        paced = Paced([""] + ["429"] * 400)
        self.addCleanup(paced.stop)
        for concurrency in ("1", "7"):
            paced.requests.clear()
            out, _ = bench("serve", "--port", str(paced.port), "--tokenizer", "pilot",
                           "--input-len", "4", "--output-len", "1", "--num-prompts", "400",
                           "--max-concurrency", concurrency, status=1)
            self.assertRegex(out, r"Failed, busy \(429\): +400\b")

    def test_a_server_may_come_late(self):
        paced = Paced(["503", "503"])
        self.addCleanup(paced.stop)
        args = ("serve", "--port", str(paced.port), "--tokenizer", "pilot", "--input-len", "20",
                "--output-len", "2", "--num-prompts", "1")
        bench(*args, "--ready-check-timeout-sec", str(HANG_S))
        paced.failures = [""] * len(paced.requests) + ["503"]
        self.assertIn("503", bench(*args, status=1)[1])


class Pilot(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--max-num-seqs", "8", "--max-model-len", "1024",
                            "--no-enable-prefix-caching")
        cls.url = cls.server.url

    @classmethod
    def tearDownClass(cls):
        cls.server.kill()

    def test_the_guides_command_runs(self):
        with open(os.path.join(ROOT, "tests/data/guides/commands.json"), encoding="utf-8") as f:
            text = next(e["command"] for e in json.load(f)
                        if e.get("command", "").startswith("vllm bench"))
        words = shlex.split(text)[2:]
        words[words.index("--model") + 1] = "pilot"
        words[words.index("--num-prompt") + 1] = "3"
        words[words.index("--request-rate") + 1] = "20"
        with tempfile.TemporaryDirectory() as folder:
            words[words.index("--result-dir") + 1] = folder
            out, err = bench(*words, "--base-url", self.url)
            with open(glob.glob(folder + "/*.json")[0], encoding="utf-8") as f:
                r = json.load(f)
        self.assertEqual((r["completed"], r["input_len"], r["request_rate"]), (3, 200, 20.0))
        self.assertEqual(r["total_input_tokens"], 3 * 200)
        self.assertIn("Serving Benchmark Result", out)
        self.assertEqual(err, "")

    def test_the_server_saw_no_more_time_than_the_client(self):
        before = self.server.metrics()
        begin = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            bench("serve", "--base-url", self.url, "--model", "pilot", "--input-len", "64",
                  "--output-len", "48", "--num-prompts", "16", "--max-concurrency", "4",
                  "--ignore-eos", "--save-result", "--save-detailed", "--result-dir", folder)
            with open(glob.glob(folder + "/*.json")[0], encoding="utf-8") as f:
                r = json.load(f)
        outside_s = time.monotonic() - begin - r["duration"]  # in it a first request, alone
        after = self.server.metrics()

        def grown(name):
            key = name + '{model_name="pilot",engine="0"}'
            return after[key] - before[key]

        self.assertEqual(grown("vllm:time_to_first_token_seconds_count"), 17)
        self.assertEqual(grown("vllm:generation_tokens_total"), 17 * 48)
        self.assertEqual(r["total_output_tokens"], 16 * 48)
        whole = [first + sum(gaps) for first, gaps in zip(r["ttfts"], r["itls"])]
        self.assertLess(sum(whole), 4 * r["duration"])
        self.assertLess(grown("vllm:time_to_first_token_seconds_sum"), sum(r["ttfts"]) + outside_s)

    def test_sonnets_find_their_shared_lines_in_the_cache(self):
        server = Server("--max-num-seqs", "4", "--max-model-len", "1024")
        out, _ = bench("serve", "--base-url", server.url, "--model",
                       "pilot", "--dataset-name", "sonnet", "--num-prompts", "6", "--sonnet-input-len",
                       "400", "--sonnet-output-len", "4", "--sonnet-prefix-len", "200",
                       "--max-concurrency", "1", "--burstiness", "0.99")
        hits = float(re.search(r"Prompt tokens found in cache \(%\): +([\d.]+)", out).group(1))
        self.assertTrue(20 < hits < 60, out)
        server.kill()


@unittest.skipUnless(shutil.which("openssl"), "openssl is not installed")
class Tls(unittest.TestCase):
    def test_a_certificate_that_nobody_knows_needs_insecure(self):
        with tempfile.TemporaryDirectory() as folder:
            key, certificate = make_certificate(folder, "server")
            server = Server("--max-num-seqs", "4", "--max-model-len", "512", "--ssl-keyfile", key,
                            "--ssl-certfile", certificate, "--api-key", "secret")
            self.addCleanup(server.kill)
            where = f"{server.host}:{server.port}"
            args = ("serve", "--model", "pilot", "--input-len", "16", "--output-len", "4",
                    "--num-prompts", "4", "--api-key", "secret", "--base-url")
            out, err = bench(*args, f"https://{where}", status=1)
            self.assertIn("certificate", err)
            self.assertNotIn("Result", out)
            out, err = bench(*args, f"https://{where}", "--insecure")
            self.assertRegex(out, r"Successful requests: +4\b")
            self.assertRegex(out, r"Failed requests: +0\b")
            self.assertEqual(err, "")
            bench(*args, f"http://{where}", status=1)


if __name__ == "__main__":
    unittest.main()
