#!/usr/bin/env python3
"""What becomes of requests and the process when one rank of four fails.

    tests/e2e/test_rank_fault.py path/to/fathom_failing_rank

Rank 2 of the program fails in layer 3 once there is a file FAIL_RANK (tests/support/failing_rank.c).
"""

import concurrent.futures
import json
import os
import subprocess
import sys
import tempfile
import unittest

from served import Server, wait_until

FAULT = (r"rank 2 of 4, layer 3, step \d+: device failed; "
         r"rank 2 of 4 has failed after \w+ of layer \d+, epoch \d+")
N_REQUEST = 4


class RankFault(unittest.TestCase):
    def ask(self, server, stream):
        """Status and text of an answer that takes hundreds of steps."""
        connection = server.connect()
        body = {"prompt": "once upon a time", "max_tokens": 2000, "ignore_eos": True,
                "stream": stream}
        connection.request("POST", "/v1/completions", json.dumps(body))
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        return answer.status, text

    def test_its_requests_and_its_process_end_with_the_cause(self):
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            server = Server("-tp=4", stderr=subprocess.PIPE)
            served = server.post("/v1/completions", {"prompt": "a", "max_tokens": 2})
            self.assertEqual(served["usage"]["completion_tokens"], 2)
            metrics = server.metrics()
            for name in ("fathom_rank_waits_total", "fathom_rank_wait_seconds_total"):
                ranks = {key[key.index(",rank="):]: value for key, value in metrics.items()
                         if key.startswith(name)}
                self.assertEqual(list(ranks), [f',rank="{i}"}}' for i in range(4)])
                self.assertGreater(sum(ranks.values()), 0)
            with concurrent.futures.ThreadPoolExecutor(N_REQUEST) as pool:
                asked = [pool.submit(self.ask, server, i % 2 == 1) for i in range(N_REQUEST)]
                wait_until(lambda: server.health()["running"] == N_REQUEST)
                with open("FAIL_RANK", "w", encoding="utf-8"):
                    pass
                for i, future in enumerate(asked):
                    status, text = future.result()
                    self.assertIn(status, (200, 503) if i % 2 else (503,))
                    self.assertRegex(text, FAULT)
            status, errors = server.end()
            os.chdir("/")
        self.assertEqual(status, 1)
        lines = errors.splitlines()
        self.assertEqual(sum(" E engine: " in line for line in lines), 1, errors)
        self.assertEqual(sum(" E server: " in line for line in lines), 1, errors)
        for line in (line for line in lines if " E " in line):
            self.assertRegex(line, FAULT)
        self.assertRegex(lines[-1], "fathom: the engine has failed: " + FAULT)


if __name__ == "__main__":
    Server.path = os.path.abspath(sys.argv.pop(1))
    unittest.main(verbosity=2)
