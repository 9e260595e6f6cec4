#!/usr/bin/env python3
"""`fathom run-batch`: the lines of a file are answered as the server answers them, each by itself.

    tests/e2e/test_run_batch.py Pilot path/to/fathom
    tests/e2e/test_run_batch.py Interrupted path/to/fathom_scripted

What breaks a run off has the scripted engine of the tests (tests/support/fake_engine.h).
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import unittest

from served import HANG_S, Server, wait_until

CASE = sys.argv.pop(1)
FATHOM = Server.path = os.path.abspath(sys.argv.pop(1))


def line(custom_id, url, **body):
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": url, "body": body})


def completion(custom_id, prompt, **fields):
    return line(custom_id, "/v1/completions", **{"model": "pilot", "prompt": prompt,
                                                 "temperature": 0, **fields})


class Batch(unittest.TestCase):
    def setUp(self):
        if type(self).__name__ != CASE:
            self.skipTest("another program's")
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.input = os.path.join(folder.name, "in.jsonl")
        self.output = os.path.join(folder.name, "out.jsonl")
        self.env = {k: v for k, v in os.environ.items() if not k.startswith(("FATHOM", "VLLM"))}

    def write(self, lines):
        with open(self.input, "w", encoding="utf-8") as f:
            f.write("\n".join(lines))

    def command(self, *flags, i=None, o=None):
        return [FATHOM, "run-batch", "-i", i or self.input, "-o", o or self.output, "--model",
                "pilot", *flags]

    def run_batch(self, *flags, status=0, **files):
        with open(self.input, encoding="utf-8") as stdin:
            done = subprocess.run(self.command(*flags, **files), capture_output=True, text=True,
                                  env=self.env, timeout=HANG_S, check=False, stdin=stdin)
        self.assertEqual(done.returncode, status, done.stderr)
        return done

    def answers(self, path=None):
        with open(path or self.output, encoding="utf-8") as f:
            text = f.read()
        self.assertTrue(text == "" or text.endswith("\n"))
        return [json.loads(one) for one in text.splitlines()]

    def part(self):
        return self.answers(self.output + ".part") if os.path.exists(self.output + ".part") else None


class Pilot(Batch):
    REQUESTS = [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hello, who are you?"}]}),
        ("/v1/completions", {"prompt": ["The advantage", "Once"], "n": 2, "logprobs": 1}),
        ("/v1/responses", {"input": "Hello", "max_output_tokens": 9}),
        ("/v1/messages", {"max_tokens": 9, "messages": [{"role": "user", "content": "Hello"}]}),
        ("/tokenize", {"prompt": "ab cd"}),
    ]

    @staticmethod
    def said(answer):
        """Without what is new each time."""
        return {k: v for k, v in answer.items() if k not in ("id", "created", "created_at", "output",
                                                             "completed_at")}

    def test_answers_are_the_servers(self):
        common = {"model": "pilot", "temperature": 0, "seed": 1}
        bodies = [{**common, **body} if url != "/tokenize" else body for url, body in self.REQUESTS]
        self.write([line(str(i), url, **body)
                    for i, ((url, _), body) in enumerate(zip(self.REQUESTS, bodies))])
        done = self.run_batch()
        self.assertIn("5 requests are answered, 0 of them with an error", done.stderr)
        self.assertEqual(done.stdout, "")
        self.assertIsNone(self.part())
        server = Server()
        answers = self.answers()
        for (url, _), body, answer in zip(self.REQUESTS, bodies, answers):
            self.assertEqual(set(answer), {"id", "custom_id", "response", "error"})
            self.assertIsNone(answer["error"])
            self.assertEqual(answer["response"]["status_code"], 200)
            self.assertEqual(self.said(answer["response"]["body"]),
                             self.said(server.post(url, body)), url)
        self.assertEqual([a["custom_id"] for a in answers], list("01234"))
        self.assertEqual(len({a["id"] for a in answers}), 5)
        self.assertEqual(len({a["response"]["request_id"] for a in answers}), 5)
        server.kill()

    def test_a_bad_line_costs_no_other(self):
        chat = {"model": "pilot", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}
        bad = [("no JSON", None, 400, "line 2: not valid JSON"),
               ('{"custom_id": 7, "method": "POST"}', None, 400, "line 3: custom_id is an integer"),
               ('["a"]', None, 400, "line 4 is an array"),
               ('{"custom_id": "5", "method": "GET", "url": "/v1/models", "body": {}}', "5", 405,
                'line 5: method is "GET"'),
               (line("6", "/v1/embeddings", model="pilot", input="x"), "6", 404, "/v1/embeddings"),
               (line("7", "/v1/models"), "7", 404, "line 7: /v1/models"),
               ('{"custom_id": "8", "method": "POST", "url": "/v1/completions"}', "8", 400,
                "line 8: body is missing"),
               (line("9", "/v1/chat/completions", **chat, stream=True), "9", 400, "stream"),
               (line("10", "/v1/chat/completions", **{**chat, "model": "other"}), "10", 404,
                '"other" is not served'),
               (line("11", "/v1/messages", model="pilot"), "11", 400, "messages")]
        good = line("good \u00e9\"", "/v1/chat/completions", **chat)
        self.write([good, *(text for text, *_ in bad), "", " \r", good])
        done = self.run_batch()
        self.assertIn("12 requests are answered, 10 of them with an error", done.stderr)
        answers = self.answers()
        for answer in (answers[0], answers[-1]):
            self.assertEqual((answer["custom_id"], answer["error"]), ('good \u00e9"', None))
        for answer, (_, custom_id, status, part) in zip(answers[1:-1], bad):
            self.assertEqual(answer["custom_id"], custom_id)
            self.assertEqual(answer["response"]["status_code"], status)
            self.assertIsNone(answer["response"]["body"])
            self.assertIn(part, answer["error"]["error"]["message"])

    def test_a_body_may_be_as_large_as_over_http(self):
        self.write([completion("0", "a" * (64 << 20)), completion("1", "a", max_tokens=1)])
        self.run_batch()
        answers = self.answers()
        self.assertEqual(answers[0]["response"]["status_code"], 413)
        self.assertIn("line 1: the body is larger", answers[0]["error"]["error"]["message"])
        self.assertIsNone(answers[1]["error"])

    def test_lines_wait_for_room(self):
        """Each has more choices than may wait beside the others'."""
        self.write([completion(str(i), f"Once {i}", max_tokens=1, n=400, temperature=1)
                    for i in range(7)])
        self.run_batch("--max-num-seqs", "4")
        self.assertEqual([len(a["response"]["body"]["choices"]) for a in self.answers()], [400] * 7)

    def test_streams_of_the_system(self):
        self.write([completion(str(i), "Once", max_tokens=2) for i in range(3)])
        done = self.run_batch(i="-", o="-")
        self.assertEqual([json.loads(a)["custom_id"] for a in done.stdout.splitlines()],
                         ["0", "1", "2"])
        self.run_batch(o="/dev/null")
        self.assertIn("is the input", self.run_batch(o=self.input, status=1).stderr)
        for o, cause in (("/dev/full", "No space left on device"), ("/", "Is a directory")):
            self.assertIn(f"cannot be written: {cause}", self.run_batch(o=o, status=1).stderr)
        self.assertIn("/: cannot be read: Is a directory", self.run_batch(i="/", status=1).stderr)
        pipe = self.input + ".pipe"
        os.mkfifo(pipe)
        with subprocess.Popen(["sh", "-c", f"printf '\\357\\273\\277' | cat - {self.input} > {pipe}"]):
            self.run_batch(i=pipe)
        self.assertEqual([a["error"] for a in self.answers()], [None] * 3)
        self.assertFalse(os.path.exists("/dev/null.part"))
        self.write([])
        self.run_batch()
        self.assertEqual(self.answers(), [])

    def test_what_is_said_stands_in_no_answer(self):
        """A closed standard error's descriptor is the first that a file would get."""
        self.write([completion(str(i), "Once", max_tokens=2) for i in range(3)])
        for closed in "2>&-", "<&- 2>&-", "<&- >&- 2>&-":
            subprocess.run(["sh", "-c", f'"$0" "$@" {closed}', *self.command()], env=self.env,
                           stdout=subprocess.DEVNULL, timeout=HANG_S, check=True)
            self.assertEqual([a["custom_id"] for a in self.answers()], ["0", "1", "2"])

    def test_command_lines_of_vllm(self):
        self.write([completion("1", "Once", model="name", max_tokens=2)])
        done = self.run_batch("--served-model-name", "name", "--enable-metrics", "--port", "9",
                              "--output-tmp-dir", "/tmp", "--trust-remote-code",
                              "--tensor-parallel-size", "1", "--disable-log-requests")
        self.assertIn("--enable-metrics has no effect", done.stderr)
        self.assertIsNone(self.answers()[0]["error"])
        for flags, files, part in (
                ((), {"i": "https://host/in.jsonl"}, "--input-file https://host/in.jsonl: nothing"),
                ((), {"o": "http://host/out"}, "--output-file http://host/out: nothing"),
                (("--nnodes", "2"), {}, "--nnodes")):
            self.assertIn(part, self.run_batch(*flags, status=2, **files).stderr)
        self.assertIn("no/such", self.run_batch(i="no/such", status=1).stderr)
        for missing, flags in (("--input-file", ("-o", "x")), ("--output-file", ("-i", "x"))):
            done = subprocess.run([FATHOM, "run-batch", *flags], capture_output=True, text=True,
                                  env=self.env, check=False)
            self.assertEqual(done.returncode, 2)
            self.assertIn(f"{missing} is missing", done.stderr)


    def test_the_input_is_not_written(self):
        self.write([completion("0", "x")])
        with open(self.input, encoding="utf-8") as f:
            before = f.read()
        os.link(self.input, self.output + ".part")
        os.symlink(self.input, self.output)
        for i in self.input, "-":
            for flags in (), ("--resume",):
                self.assertIn(f"{self.output}: it is the input",
                              self.run_batch(*flags, i=i, status=1).stderr)
        os.unlink(self.output)
        for i in self.input, self.output + ".part", "-":
            for flags in (), ("--resume",):
                self.assertIn(f"--output-file {self.output}: {self.output}.part, which holds it until "
                              "it is whole, is the input: give another name",
                              self.run_batch(*flags, i=i, status=1).stderr)
        with open(self.input, encoding="utf-8") as f:
            self.assertEqual(f.read(), before)


class Interrupted(Batch):
    def write_held(self):
        """The third of four requests says nothing before there is a file; the fourth is answered."""
        self.gate = os.path.join(os.path.dirname(self.input), "gate")
        says = ("say=a", "say=b", f"hold={self.gate};say=c", "say=d")
        self.write([completion(str(i), f"[[{say}]]", max_tokens=9) for i, say in enumerate(says)])

    def break_off(self, number, status):
        with subprocess.Popen(self.command(), stderr=subprocess.PIPE, text=True,
                              env=self.env) as process:
            wait_until(lambda: len(self.part() or ()) == 2)
            process.send_signal(number)
            errors = process.communicate(timeout=HANG_S)[1]
        self.assertEqual(process.returncode, status, errors)
        self.assertFalse(os.path.exists(self.output))
        self.assertEqual([a["custom_id"] for a in self.part()], ["0", "1"])
        return errors

    def test_an_interrupted_run_is_gone_on_with(self):
        self.write_held()
        errors = self.break_off(signal.SIGINT, 1)
        self.assertIn("the first 2 of 4 requests are answered in", errors)
        self.assertIn("--resume", errors)
        before = self.part()
        self.assertIn("--resume", self.run_batch(status=1).stderr)
        self.assertEqual(self.part(), before)
        with open(self.output + ".part", "a", encoding="utf-8") as f:
            f.write('{"id": "torn')
        with open(self.gate, "w", encoding="utf-8"):
            pass
        self.run_batch("--resume")
        self.assertIsNone(self.part())
        answers = self.answers()
        self.assertEqual(answers[:2], before)
        self.assertEqual([a["custom_id"] for a in answers], list("0123"))
        self.assertEqual([a["response"]["body"]["choices"][0]["text"] for a in answers],
                         list("abcd"))

    def test_two_runs_do_not_write_one_output(self):
        self.write_held()
        with subprocess.Popen(self.command(), stderr=subprocess.PIPE, text=True,
                              env=self.env) as process:
            wait_until(lambda: len(self.part() or ()) == 2)
            for flags in (), ("--resume",):
                said = self.run_batch(*flags, status=1).stderr
                self.assertIn(".part: another process writes it", said)
            with open(self.gate, "w", encoding="utf-8"):
                pass
            errors = process.communicate(timeout=HANG_S)[1]
        self.assertEqual(process.returncode, 0, errors)
        self.assertEqual([a["custom_id"] for a in self.answers()], list("0123"))

    def test_answers_that_cannot_take_their_name_are_kept(self):
        self.write_held()
        with subprocess.Popen(self.command(), stderr=subprocess.PIPE, text=True,
                              env=self.env) as process:
            wait_until(lambda: len(self.part() or ()) == 2)
            os.mkdir(self.output)
            with open(self.gate, "w", encoding="utf-8"):
                pass
            errors = process.communicate(timeout=HANG_S)[1]
        self.assertEqual(process.returncode, 1, errors)
        self.assertIn("the first 4 of 4 requests are answered in", errors)
        self.assertEqual(len(self.part()), 4)
        os.rmdir(self.output)
        self.run_batch("--resume")
        self.assertEqual(len(self.answers()), 4)

    def test_what_answers_another_file_is_not_gone_on_with(self):
        self.write_held()
        self.break_off(signal.SIGKILL, -signal.SIGKILL)
        for lines in ([completion("other", "x")], [completion("0", "x")]):
            self.write(lines)
            self.assertIn("answers another file", self.run_batch("--resume", status=1).stderr)
        self.assertEqual(len(self.part()), 2)

    def test_a_failed_engine_answers_nothing(self):
        self.write([completion("0", "[[say=a]]"), completion("1", "[[then=fail;say=]]"),
                    completion("2", "[[say=c]]")])
        errors = self.run_batch("--resume", status=1).stderr
        self.assertIn("the engine has failed: the scripted device is lost", errors)
        self.assertFalse(os.path.exists(self.output))
        for answer in self.part() or ():
            self.assertIsNone(answer["error"])


if __name__ == "__main__":
    unittest.main()
