#!/usr/bin/env python3
"""The pilot model over HTTP: the guides' requests, the evaluation, and clients that come and go.

    tests/e2e/test_pilot.py CASE [FLAGS] path/to/fathom

Servers get FLAGS, one word each, such as -tp=4.

lanes       ranks with requests of their own: where a request goes, and what it finds there
refusals    what the flags about the queue refuse
tenants     whose cached prompts a key finds
requests    the four requests of the deployment guides, streamed and not, thinking and not
evaluation  one in 13 of 384 prompts, 16 at a time, greedy, for the bf16 and the fp8 cache: all
            texts expected; evaluation-whole: all of them
load        64 streams at once for LOAD_SECONDS (default 4), clients leaving at random; afterwards
            every page is free, no descriptor is left open, and the server ends with status 0 (which
            a sanitizer turns into an error when it has found anything)
flood       FLOOD_STREAMS (default 1000) streams at once for FLOOD_ROUNDS (default 3) rounds: with
            room for all each is served whole; with a bounded queue, and with a promise about the
            first token, each is served whole or refused with 429. Memory and descriptors stay flat
"""

import asyncio
import concurrent.futures
import json
import os
import random
import re
import sys
import tempfile
import threading
import time
import unittest

from served import Server, take_program

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
WEATHER = {"type": "function", "function": {
    "name": "get_weather", "description": "Get weather for a location",
    "parameters": {"type": "object", "properties": {"location": {"type": "string"}},
                   "required": ["location"]}}}
ASK_WEATHER = [{"role": "user", "content": "What is the weather in San Francisco?"}]
TRAIN = [{"role": "user", "content": "Solve step by step: If a train travels 120km in 2 hours, and "
                                     "then 180km in 3 hours, what is the average speed?"}]


def join_chat(chunks):
    """One message and its finish_reason from the deltas of a stream."""
    message = {"reasoning_content": "", "reasoning": "", "content": "", "tool_calls": []}
    finish = None
    for choice in (c["choices"][0] for c in chunks if c["choices"]):
        delta = choice["delta"]
        for key in ("reasoning_content", "reasoning", "content"):
            message[key] += delta.get(key) or ""
        for call in delta.get("tool_calls", []):
            if call["index"] == len(message["tool_calls"]):
                message["tool_calls"].append({"id": call["id"], "name": "", "arguments": ""})
            for key in ("name", "arguments"):
                message["tool_calls"][call["index"]][key] += call["function"].get(key) or ""
        finish = choice["finish_reason"] or finish
    return message, finish


class Requests(unittest.TestCase):
    """What a reader of the guides types first."""

    @classmethod
    def setUpClass(cls):
        cls.server = Server()

    @classmethod
    def tearDownClass(cls):
        if cls.server.stop() != 0:
            raise AssertionError("the server did not end with status 0")

    def n_cached(self, text, **fields):
        body = {"messages": [{"role": "user", "content": text}], "max_tokens": 4, **fields}
        usage = self.server.post("/v1/chat/completions", body)["usage"]
        return usage["prompt_tokens_details"]["cached_tokens"], usage["prompt_tokens"]

    def test_a_row_of_the_head_without_a_token_has_a_log_probability(self):
        prompt = [0, 100, 200, 4000, 300]
        answer = self.server.post("/v1/completions", {
            "prompt": prompt, "max_tokens": 8, "temperature": 0, "logprobs": 3, "echo": True,
            "prompt_logprobs": 20, "return_token_ids": True, "seed": 1})["choices"][0]
        scores = answer["prompt_logprobs"]
        entry = scores[3]["4000"]
        self.assertEqual(entry["decoded_token"], "")
        self.assertGreater(entry["logprob"], -500)
        self.assertLess(entry["logprob"], min(v["logprob"] for v in scores[3].values()) + 1e-9)
        self.assertLessEqual(entry["rank"], 4096)
        logprobs = answer["logprobs"]
        self.assertEqual(logprobs["tokens"][3], "")
        self.assertEqual(logprobs["token_logprobs"][3], entry["logprob"])
        ids = answer["prompt_token_ids"] + answer["token_ids"]
        for key in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
            self.assertEqual(len(logprobs[key]), len(ids))

    def test_a_prompt_seen_before_is_not_computed_again(self):
        text = "The quick brown fox jumps over the lazy dog. " * 30
        cached, n = self.n_cached(text)
        self.assertGreater(n, 200)
        self.assertLess(cached, 64)
        again, _ = self.n_cached(text)
        self.assertEqual(again, (n - 1) // 64 * 64)
        longer, _ = self.n_cached(text + "And then?")
        self.assertGreaterEqual(longer, again - 64)
        self.assertEqual(self.n_cached(text, cache_salt="mine")[0], 0)
        self.assertEqual(self.n_cached(text, cache_salt="mine")[0], again)

    def chat(self, body):
        """The message and finish_reason, the same streamed and not."""
        body = {"model": "pilot", "temperature": 0, **body}
        whole = self.server.post("/v1/chat/completions", body)["choices"][0]
        message, finish = join_chat(self.server.stream("/v1/chat/completions", body))
        self.assertEqual(finish, whole["finish_reason"])
        for key in ("reasoning_content", "reasoning", "content"):
            self.assertEqual(message[key], whole["message"][key] or "")
        calls = [{"name": c["function"]["name"], "arguments": c["function"]["arguments"]}
                 for c in whole["message"].get("tool_calls") or []]
        self.assertEqual([{k: c[k] for k in ("name", "arguments")} for c in message["tool_calls"]],
                         calls)
        return whole["message"], finish, calls

    def test_completion(self):
        body = {"model": "pilot", "prompt": "The advantage of MLA over standard GQA is",
                "max_tokens": 128, "temperature": 0}
        choice = self.server.post("/v1/completions", body)["choices"][0]
        self.assertIn("latent", choice["text"])
        chunks = self.server.stream("/v1/completions", body)
        self.assertEqual("".join(c["choices"][0]["text"] for c in chunks if c["choices"]),
                         choice["text"])

    def test_chat(self):
        message, finish, calls = self.chat(
            {"messages": [{"role": "user", "content": "Hello, who are you?"}]})
        self.assertIn("Pilot", message["content"])
        self.assertEqual((finish, calls), ("stop", []))

    def test_tool_call(self):
        for thinking in (False, True):
            message, finish, calls = self.chat({"messages": ASK_WEATHER, "tools": [WEATHER],
                                                "chat_template_kwargs": {"thinking": thinking}})
            self.assertEqual(finish, "tool_calls")
            self.assertEqual([c["name"] for c in calls], ["get_weather"])
            self.assertEqual(json.loads(calls[0]["arguments"]), {"location": "San Francisco"})
            self.assertNotIn("DSML", (message["content"] or "") + (message["reasoning"] or ""))
            self.assertEqual(bool(message["reasoning_content"]), thinking)

    def test_metrics(self):
        body = {"model": "pilot", "prompt": "one two three four five " * 20, "max_tokens": 7,
                "ignore_eos": True}
        self.server.post("/v1/completions", body)  # what is found in the cache counts too
        before = self.server.metrics()
        usage = self.server.post("/v1/completions", body)["usage"]
        after = self.server.metrics()

        def grown(name, labels=""):
            key = name + '{model_name="pilot",engine="0"' + labels + "}"
            return after[key] - before[key]

        self.assertEqual(grown("vllm:prompt_tokens_total"), usage["prompt_tokens"])
        self.assertEqual(grown("vllm:generation_tokens_total"), 7)
        self.assertEqual(grown("vllm:request_success_total", ',finished_reason="length"'), 1)
        self.assertEqual(grown("vllm:time_to_first_token_seconds_count"), 1)
        self.assertEqual(grown("vllm:inter_token_latency_seconds_count"), 6)
        self.assertGreater(grown("vllm:e2e_request_latency_seconds_sum"), 0)
        self.assertGreaterEqual(grown("fathom_steps_total"), 7)
        self.assertEqual(grown("fathom_pages", ',state="held"'), 0)

    def test_reasoning(self):
        message, finish, _ = self.chat({"messages": TRAIN,
                                        "chat_template_kwargs": {"thinking": True}})
        self.assertEqual(finish, "stop")
        self.assertIn("60 km/h", message["content"])
        self.assertTrue(message["reasoning_content"])
        self.assertEqual(message["reasoning"], message["reasoning_content"])
        self.assertNotIn("think>", message["content"] + message["reasoning"])


    def test_drafts_change_nothing(self):
        drafting = Server("--speculative-config",
                          '{"method": "deepseek_mtp", "num_speculative_tokens": 2}')
        for temperature in (0, 1):
            body = {"messages": TRAIN, "temperature": temperature, "seed": 7, "max_tokens": 100,
                    "logprobs": True, "presence_penalty": 0.5}
            want, got = (s.post("/v1/chat/completions", body) for s in (self.server, drafting))
            self.assertEqual(got["choices"], want["choices"])
            self.assertEqual(got["usage"]["completion_tokens"], want["usage"]["completion_tokens"])
        said = drafting.metrics()
        tokens, accepted, gaps = (said[f'vllm:{name}{{model_name="pilot",engine="0"}}'] for name in (
            "generation_tokens_total", "spec_decode_num_accepted_tokens_total",
            "inter_token_latency_seconds_count"))
        self.assertGreater(accepted, 0)
        self.assertEqual(gaps, tokens - 2 - accepted)  # two first tokens, and those that came along
        connection = drafting.connect()
        connection.request("GET", "/server_info")
        state = json.loads(connection.getresponse().read())["internal_states"][0]
        connection.close()
        times = said['vllm:spec_decode_num_drafts_total{model_name="pilot",engine="0"}']
        self.assertAlmostEqual(state["avg_spec_accept_length"], 1 + accepted / times, places=3)
        self.assertEqual(drafting.stop(), 0)


class Refusals(unittest.TestCase):
    """What is refused, by default and by what an operator asks for."""

    def refused(self, server, body, *parts):
        with self.assertRaises(AssertionError) as caught:
            server.post("/v1/completions", {"model": "pilot", "max_tokens": 2, **body})
        for part in parts:
            self.assertIn(part, str(caught.exception))

    def test_priorities(self):
        server = Server()
        self.refused(server, {"prompt": "a", "priority": 1}, "400", "--scheduling-policy priority")
        self.assertEqual(server.stop(), 0)
        server = Server("--scheduling-policy", "priority")
        server.post("/v1/completions", {"prompt": "a", "max_tokens": 2, "priority": -5})
        self.assertEqual(server.stop(), 0)

    def test_queued_tokens(self):
        server = Server("--max-num-queued-tokens", "100", "--max-num-batched-tokens", "16")
        long = "one two three " * 700
        self.refused(server, {"prompt": [long, "one two"]}, "429", "--max-num-queued-tokens")
        server.wait_idle()  # the long one is taken alone, and taken back with the other
        answer = server.post("/v1/completions", {"prompt": long, "max_tokens": 1})
        self.assertEqual(answer["usage"]["completion_tokens"], 1)
        self.assertEqual(server.stop(), 0)


class Evaluation(unittest.TestCase):
    """Every prompt has one right answer."""

    EVERY = 26

    def check(self, kv):
        with open(os.path.join(ROOT, "tests/data/pilot/evaluation.json"), encoding="utf-8") as f:
            cases = json.load(f)
        self.assertEqual(len(cases), 384)
        cases = cases[::self.EVERY]
        server = Server("--kv-cache-dtype", kv)

        def ask(case):
            body = {"model": "pilot", "prompt": case["prompt"], "max_tokens": 512,
                    "temperature": 0, "skip_special_tokens": False}
            return server.post("/v1/completions", body)["choices"][0]["text"]

        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            texts = list(pool.map(ask, cases))
        self.assertEqual(server.stop(), 0)
        wrong = [(c["prompt"][-60:], c["reference"], t) for c, t in zip(cases, texts)
                 if t != c["reference"]]
        self.assertEqual(wrong, [])

    def test_bf16_cache(self):
        self.check("bfloat16")

    def test_fp8_cache(self):
        self.check("fp8")


class EvaluationWhole(Evaluation):
    EVERY = 1


class Load(unittest.TestCase):
    """64 streams, half of them cut by their clients at a random moment."""

    STREAMS = 64

    def client(self, server, seed, end, counts):
        rng = random.Random(seed)
        while time.monotonic() < end:
            words = " ".join(str(rng.randrange(1000)) for _ in range(rng.randrange(1, 120)))
            body = {"model": "pilot", "prompt": words, "max_tokens": rng.randrange(1, 200),
                    "ignore_eos": True, "temperature": 1.0, "seed": seed, "stream": True}
            leaves = rng.random() < 0.5
            connection = server.connect()
            connection.request("POST", "/v1/completions", json.dumps(body))
            if leaves and rng.random() < 0.3:
                time.sleep(rng.random() * 0.1)
                connection.close()
                counts["left"] += 1
                continue
            answer = connection.getresponse()
            self.assertEqual(answer.status, 200)
            patience = rng.randrange(1, 40) if leaves else None
            n_line = 0
            last = b""
            for line in answer:
                n_line += 1
                if line.strip():
                    last = line.strip()
                if patience is not None and n_line >= patience:
                    break
            if patience is not None and n_line >= patience:
                counts["left"] += 1
            else:
                self.assertEqual(last, b"data: [DONE]")
                counts["finished"] += 1
            connection.close()

    def test_streams_that_come_and_go(self):
        server = Server("--max-model-len", "1024", "--max-num-seqs", "32")
        server.wait_idle()
        n_descriptor = server.n_descriptor()
        seconds = float(os.environ.get("LOAD_SECONDS", "4"))
        counts = {"left": 0, "finished": 0}
        faults = []
        end = time.monotonic() + seconds

        def run(seed):
            try:
                self.client(server, seed, end, counts)
            except Exception as fault:  # noqa: reported by the main thread
                faults.append(repr(fault))

        threads = [threading.Thread(target=run, args=(seed,)) for seed in range(self.STREAMS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(faults, [])
        self.assertGreater(counts["left"], 0)
        self.assertGreater(counts["finished"], 0)
        server.wait_idle()
        held = [value for name, value in server.metrics().items()
                if name.startswith("fathom_pages{") and 'state="held"' in name]
        self.assertEqual(held, [0])
        server.wait_descriptors(n_descriptor + 1)
        self.assertEqual(server.stop(), 0)
        print(f"load: {counts['finished']} streams finished, {counts['left']} left early")


class Tenants(unittest.TestCase):
    """Whose cached prompts a key finds, which its usage would tell exactly."""

    PROMPT = "One two three four five six seven eight nine ten. " * 20

    def cached(self, server, key):
        connection = server.connect()
        connection.request("POST", "/v1/completions",
                           json.dumps({"prompt": self.PROMPT, "max_tokens": 1}),
                           {"Authorization": "Bearer " + key})
        usage = json.loads(connection.getresponse().read())["usage"]
        connection.close()
        return usage["prompt_tokens_details"]["cached_tokens"]

    def found(self, *flags):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "keys")
            with open(path, "w", encoding="utf-8") as f:
                f.write("a acme\nb acme\nc\n")
            server = Server("--api-key-file", path, *flags)
            found = [self.cached(server, key) > 0 for key in ("a", "a", "b", "c", "c")]
            self.assertEqual(server.stop(), 0)
        return found

    def test_a_tenant_finds_its_own_unless_all_share(self):
        self.assertEqual(self.found(), [False, True, True, False, True])
        self.assertEqual(self.found("--prefix-cache-sharing", "all"),
                         [False, True, True, True, True])


class Lanes(unittest.TestCase):
    """Two ranks with requests of their own: where a request goes, and what is found there."""

    def ask(self, server, lane, **fields):
        """Status, text and tokens found of a prompt of some pages."""
        connection = server.connect()
        body = {"prompt": list(range(300, 500)), "max_tokens": 8, "temperature": 0, **fields}
        headers = {"X-data-parallel-rank": lane} if lane is not None else {}
        connection.request("POST", "/v1/completions", json.dumps(body), headers)
        answer = connection.getresponse()
        told = json.loads(answer.read())
        connection.close()
        if answer.status != 200:
            return answer.status, told["error"]["message"], 0
        cached = (told["usage"].get("prompt_tokens_details") or {}).get("cached_tokens", 0)
        return 200, told["choices"][0]["text"], cached

    def test_a_request_goes_where_it_says_or_where_its_pages_are(self):
        server = Server("-dp", "2", "--enable-expert-parallel", "--enable-prompt-tokens-details")
        _, text, _ = self.ask(server, "1")
        self.assertEqual(self.ask(server, "1"), (200, text, 192))
        self.assertEqual(self.ask(server, None), (200, text, 192))
        self.assertEqual(self.ask(server, "0"), (200, text, 0))
        self.assertEqual(self.ask(server, None, data_parallel_rank=0), (200, text, 192))
        self.assertEqual(self.ask(server, "0", data_parallel_rank=5), (200, text, 192))
        status, message, _ = self.ask(server, "2")
        self.assertEqual((status, message), (400, "data_parallel_rank is 2, needed is 0 to 1"))
        metrics = server.metrics()
        self.assertTrue(any("fathom_lane_pages_free" in str(name) for name in metrics))
        self.assertEqual(server.stop(), 0)


class Flood(unittest.TestCase):
    """More streams at once than can run, and than there is room for.

    The cache has so few pages that the first round touches them all, the free ones being taken
    oldest first; so what grows later is not the cache."""

    STREAMS = int(os.environ.get("FLOOD_STREAMS", "1000"))
    ROUNDS = int(os.environ.get("FLOOD_ROUNDS", "3"))
    GROWTH_KIB = 2048
    # one arena that gives back what is free: what is resident is then what is held
    PLAIN_MALLOC = {"MALLOC_ARENA_MAX": "1", "MALLOC_TRIM_THRESHOLD_": "65536",
                    "MALLOC_MMAP_THRESHOLD_": "131072"}
    TOKENS = 8

    async def client(self, server, seed, tally):
        """One stream; counts how it ended and notes when its first token came."""
        rng = random.Random(seed)
        words = " ".join(str(rng.randrange(1000)) for _ in range(rng.randrange(1, 12)))
        body = json.dumps({"model": "pilot", "prompt": words, "max_tokens": self.TOKENS,
                           "ignore_eos": True, "stream": True, "return_token_ids": True}).encode()
        reader, writer = await asyncio.open_connection(server.host, server.port, limit=1 << 20)
        begin = time.monotonic()
        writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
                     b"Content-Length: %d\r\n\r\n" % len(body) + body)
        head = await reader.readuntil(b"\r\n\r\n")
        first = time.monotonic() - begin
        text = await reader.read()
        writer.close()
        if head.startswith(b"HTTP/1.1 200 ") and self.is_whole(text):
            tally["served"] += 1
            tally["first"].append(first)
        elif head.startswith(b"HTTP/1.1 429 ") and b"\r\nRetry-After: " in head:
            tally["refused"] += 1
        else:
            tally["torn"].append((head[:200], text[-200:]))

    def is_whole(self, text):
        """Every token asked for is there, and the end of the stream and of the body."""
        n_token = sum(len(ids.split(b",")) for ids in re.findall(rb'"token_ids":\[([\d,]+)\]', text))
        return n_token == self.TOKENS and text.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")

    async def round(self, server, tally):
        await asyncio.gather(*(self.client(server, seed, tally) for seed in range(self.STREAMS)))

    def flood(self, *flags, rounds):
        """How many were served in each round, and what the server counts as refused."""
        server = Server("--max-model-len", "512", "--max-num-seqs", "32", *flags,
                        env={**os.environ, **self.PLAIN_MALLOC})
        server.post("/v1/completions", {"prompt": "one " * 200, "max_tokens": 4})
        n_descriptor = server.n_descriptor()
        resident, n_served = [], []
        for i in range(rounds):
            tally = {"served": 0, "refused": 0, "first": [], "torn": []}
            begin = time.monotonic()
            asyncio.run(self.round(server, tally))
            server.wait_idle()
            server.wait_descriptors(n_descriptor + 1)
            resident.append(server.resident_kib())
            n_served.append(tally["served"])
            tally["first"].sort()
            print(f"{' '.join(flags)} round {i + 1}: {tally['served']} served, {tally['refused']} "
                  f"refused, {time.monotonic() - begin:.1f} s, first token at p50 "
                  f"{tally['first'][len(tally['first']) // 2]:.2f} s, last "
                  f"{tally['first'][-1]:.2f} s, {resident[-1]} KiB resident")
            self.assertEqual(tally["torn"], [])
            self.assertEqual(tally["served"] + tally["refused"], self.STREAMS)
            self.assertGreater(tally["served"], 0)
        metrics = server.metrics()
        key = 'vllm:kv_cache_usage_perc{model_name="pilot",engine="0"}'
        self.assertEqual(metrics[key], 0)
        self.assertEqual(server.stop(), 0)
        # two rounds show what is kept; what leaks grows with each that follows
        self.assertLessEqual(resident[-1] - resident[min(1, rounds - 1)], self.GROWTH_KIB)
        refused = {name.split('reason="')[1].rstrip('"}'): value for name, value in metrics.items()
                   if name.startswith("fathom_requests_refused_total")}
        return n_served, refused

    def test_room_for_all(self):
        n_served, refused = self.flood("--max-queued", str(self.STREAMS), rounds=self.ROUNDS)
        self.assertEqual(n_served, [self.STREAMS] * self.ROUNDS)
        self.assertEqual(set(refused.values()), {0})

    def expect_reasons(self, n_served, refused, *reasons):
        """Who was not served was told why. How many are is the machine's affair."""
        self.assertEqual(n_served[0] + sum(refused.values()), self.STREAMS)
        self.assertLessEqual({reason for reason, n in refused.items() if n}, set(reasons))

    def test_a_bounded_queue(self):
        self.expect_reasons(*self.flood("--max-queued", "200", rounds=1), "queue_full")

    def test_a_promise_about_the_first_token(self):
        self.expect_reasons(*self.flood("--slo-ttft-ms", "500", rounds=1), "slo_ttft", "expired",
                            "queue_full")


if __name__ == "__main__":
    CASES = {"requests": Requests, "refusals": Refusals, "tenants": Tenants,
             "evaluation": Evaluation, "evaluation-whole": EvaluationWhole, "load": Load,
             "flood": Flood, "lanes": Lanes}
    if len(sys.argv) < 3 or sys.argv[1] not in CASES:
        sys.exit(__doc__)
    case = CASES[sys.argv.pop(1)]
    take_program(sys.argv)
    suite = unittest.defaultTestLoader.loadTestsFromTestCase(case)
    sys.exit(0 if unittest.TextTestRunner(verbosity=2).run(suite).wasSuccessful() else 1)
