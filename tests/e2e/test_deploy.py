#!/usr/bin/env python3
"""deploy/: the image's root, the Slurm scripts, the board of Grafana.

    tests/e2e/test_deploy.py path/to/fathom

Neither Docker nor Slurm is needed: the image is a chroot, srun is a stand-in.
"""

import glob
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest

from served import HANG_S, Server, wait_until

FATHOM = Server.path = os.path.abspath(sys.argv.pop(1))
BUILD = os.path.dirname(FATHOM)
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
IMAGE_BYTES = 120e6  # for processors
SRUN = """#!/bin/bash
# Options, then the command, as one task.
while [[ $1 == -* ]]; do shift; done
exec "$@"
"""


def out(*command, **more):
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=HANG_S,
                          **more).stdout


def free_port():
    server = Server("--max-num-seqs", "4")
    port = server.port
    server.process.terminate()
    server.process.wait(HANG_S)
    return str(port)


class Deploy(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    @unittest.skipUnless(os.geteuid() == 0, "only root can make a chroot")
    def test_the_image_holds_what_the_program_needs_and_serves_without_a_shell(self):
        root = os.path.join(self.folder, "image")
        out(os.path.join(ROOT, "tools/image_root"), BUILD, root)
        size = sum(os.path.getsize(path) for path in glob.glob(root + "/**", recursive=True)
                   if os.path.isfile(path))
        with open(BUILD + "/CMakeCache.txt", encoding="utf-8") as f:
            if "FATHOM_CUDA:BOOL=ON" not in f.read():
                self.assertLess(size, IMAGE_BYTES)
        self.assertFalse(os.path.exists(root + "/bin/sh"))
        inside = (shutil.which("chroot"), "--userspec=10001:10001", root, "/usr/bin/fathom")
        env = {"HF_HOME": "/models", "HOME": "/models", "FATHOM_HOST": "127.0.0.1"}
        with subprocess.Popen([*inside, "serve", "--port", "0", "--max-num-seqs", "4"], text=True,
                              env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as server:
            lines = []
            for line in server.stdout:
                lines.append(line)
                if line.startswith("ready"):
                    break
            address = re.search(r"http://[\d.:]+", "".join(lines))
            self.assertTrue(address, "".join(lines) + (server.stderr.read() if not lines else ""))
            self.assertIn("ready", out(*inside, "health", address.group(), env=env))
            server.terminate()
            server.communicate(timeout=HANG_S)
            self.assertEqual(server.returncode, 0)
        ended = subprocess.run([*inside, "health", address.group()], env=env, text=True,
                               capture_output=True, check=False)
        self.assertEqual((ended.returncode, ended.stderr.count("\n")), (1, 1))

    def test_the_board_is_made_of_the_metrics_that_there_are(self):
        server = Server("--max-num-seqs", "4")
        connection = server.connect()
        connection.request("GET", "/metrics")
        metrics = connection.getresponse().read().decode()
        connection.close()
        server.process.terminate()
        server.process.wait(HANG_S)
        made = out(os.path.join(ROOT, "tools/dashboard"), input=metrics)
        with open(ROOT + "/deploy/monitoring/grafana/fathom.json", encoding="utf-8") as f:
            self.assertEqual(f.read(), made)
        self.assertGreater(len(json.loads(made)["panels"]), 15)
        known = set(re.findall(r"^# TYPE (\S+) ", metrics, re.M))
        with open(ROOT + "/deploy/monitoring/alarms.yml", encoding="utf-8") as f:
            named = set(re.findall(r"\b(?:vllm:|fathom_)\w+", f.read()))
        self.assertEqual(named - known, set())
        without = metrics.replace("fathom_steps_total", "fathom_other_total")
        failed = subprocess.run([os.path.join(ROOT, "tools/dashboard")], input=without, text=True,
                                capture_output=True, check=False)
        self.assertIn("no such metric: fathom_steps_total", failed.stderr)

    @unittest.skipUnless(shutil.which("shellcheck"), "shellcheck is not installed")
    def test_scripts_are_what_shellcheck_likes(self):
        out("shellcheck", "-s", "bash", *glob.glob(ROOT + "/deploy/slurm/*.sbatch"))
        out("shellcheck", ROOT + "/tools/deb", ROOT + "/tools/image_root", ROOT + "/tools/deps")

    def batch(self, script, *arguments, **env):
        with open(os.path.join(self.folder, "srun"), "w", encoding="ascii") as f:
            f.write(SRUN)
        os.chmod(f.name, 0o755)
        env = {**os.environ, "PATH": self.folder + ":" + os.environ["PATH"], "FATHOM": FATHOM,
               "SLURM_JOB_ID": "7", "POLL_S": "0.1", **env}
        return subprocess.Popen(["bash", ROOT + "/deploy/slurm/" + script, *arguments], text=True,
                                cwd=self.folder, env=env, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE)

    def test_a_slurm_job_tells_its_address_and_ends_well_on_a_signal(self):
        job = self.batch("serve.sbatch", "pilot", "--max-num-seqs", "4", PORT=free_port())
        address = os.path.join(self.folder, "fathom-7.address")
        wait_until(lambda: job.poll() is not None or os.path.exists(address))
        self.assertTrue(os.path.exists(address), job.poll() and job.stderr.read())
        front = free_port()
        router = self.batch("router.sbatch", address, PORT=front)
        wait_until(lambda: subprocess.run([FATHOM, "health", f"http://127.0.0.1:{front}"],
                                          capture_output=True, check=False).returncode == 0)
        router.send_signal(signal.SIGTERM)
        self.assertEqual(router.wait(HANG_S), 0)
        job.send_signal(signal.SIGTERM)
        job.communicate(timeout=HANG_S)
        router.communicate(timeout=HANG_S)
        self.assertEqual(job.returncode, 0)
        self.assertFalse(os.path.exists(address))

    def test_a_slurm_job_of_several_hosts_is_refused_in_one_line(self):
        job = self.batch("serve.sbatch", "pilot", SLURM_NNODES="2")
        _, err = job.communicate(timeout=HANG_S)
        self.assertEqual((job.returncode, err.count("\n")), (2, 1))
        self.assertIn("fathom router", err)

    def test_the_dockerfile_copies_what_there_is(self):
        with open(ROOT + "/deploy/docker/Dockerfile", encoding="utf-8") as f:
            text = f.read()
        stages = set(re.findall(r"^FROM \S+ AS (\S+)", text, re.M))
        self.assertEqual(set(re.findall(r"--from=(\S+)", text)) - stages, set())
        for tool in re.findall(r"RUN (tools/\w+)", text):
            self.assertTrue(os.access(os.path.join(ROOT, tool), os.X_OK), tool)
        for words in re.findall(r'\["/usr/bin/fathom", "(\w+)"\]', text):
            out(FATHOM, words, "--help")
        final = text.split("FROM scratch AS ")[1:]
        self.assertEqual(len(final), 2)
        for stage in final:
            for line in ("USER 10001:10001", "HEALTHCHECK", "VOLUME /models", "EXPOSE 8000"):
                self.assertIn(line, stage)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v"])
