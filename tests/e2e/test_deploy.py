#!/usr/bin/env python3
"""deploy/: the image's root, the Slurm scripts, the board of Grafana.

    tests/e2e/test_deploy.py path/to/fathom

Neither Docker nor Slurm is needed: the image is a chroot, srun is a stand-in.
"""

import contextlib
import glob
import http.client
import json
import os
import random
import re
import shutil
import signal
import socket
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
# Options, then the command: a task on each host of the job, or of --nodes. All are on this machine. A
# signal to this kills the tasks; scancel's reaches them alone.
n=${SLURM_NNODES:-1}
while [[ $1 == -* ]]; do
    [[ $1 == --nodes=* ]] && n=${1#*=}
    shift
done
tasks=()
trap 'kill -KILL "${tasks[@]}"' TERM
for ((i = 0; i < n; i++)); do
    SLURM_STEP_NUM_NODES=$n SLURM_NODEID=$i SLURM_STEP_NUM_TASKS=$n \
        SLURM_STEP_NODELIST="127.0.0.[1-$n]" "$@" &
    tasks+=($!)
    echo $! >>tasks
done
status=0
for task in "${tasks[@]}"; do wait "$task" || status=$?; done
exit "$status"
"""
SCANCEL = """#!/bin/bash
# --signal=TERM JOB: to the tasks, and neither to srun nor to the script.
[ "$*" = "--signal=TERM 7" ] && kill -TERM $(cat tasks)
"""
SCONTROL = """#!/bin/bash
# show hostnames LIST, the list without brackets.
tr , "\\n" <<<"$3"
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


def free_ports(n):
    """The first of n ports that are free, below those that the system gives out."""
    while True:
        first = random.randrange(20000, 32000)
        try:
            with contextlib.ExitStack() as held:
                for port in range(first, first + n):
                    held.enter_context(socket.socket()).bind(("0.0.0.0", port))
            return first
        except OSError:
            pass


def get(port, path):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=HANG_S)
    connection.request("GET", path)
    text = connection.getresponse().read().decode()
    connection.close()
    return text


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
        server = Server("--max-num-seqs", "4", "--kv-transfer-config",
                        '{"kv_role": "kv_both", "kv_port": 0}')
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
        router = subprocess.Popen([FATHOM, "router", "--port", "0", "127.0.0.1:1"], text=True,
                                  stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        port = next(re.search(r":(\d+)/v1", line).group(1) for line in router.stdout
                    if line.startswith("address"))
        known |= set(re.findall(r"^# TYPE (\S+) ", get(port, "/metrics"), re.M))
        router.terminate()
        router.communicate(timeout=HANG_S)
        with open(ROOT + "/deploy/monitoring/alarms.yml", encoding="utf-8") as f:
            alarms = f.read()
        self.assertEqual(set(re.findall(r"\b(?:vllm:|fathom_)\w+", alarms)) - known, set())
        # alarms and pages name errors by codes that are counted
        codes = set(re.findall(r'^fathom_request_errors_total\S*code="(\w+)"', metrics, re.M))
        told = set(re.search(r'code=~"([^"]+)"', alarms).group(1).split("|"))
        with open(ROOT + "/docs/api.md", encoding="utf-8") as f:
            for words in re.findall(r"^\| [45]\d\d[\d, ]* \| (`[^|]+) \|", f.read(), re.M):
                told |= set(re.findall(r"`(\w+)`", words))
        self.assertGreater(len(told), 20)
        self.assertEqual(told - codes, set())
        with open(ROOT + "/docs/operations.md", encoding="utf-8") as f:
            text = f.read()
        for name in re.findall(r"alert: (\w+)", alarms):
            self.assertIn(name, text)
        without = metrics.replace("fathom_steps_total", "fathom_other_total")
        failed = subprocess.run([os.path.join(ROOT, "tools/dashboard")], input=without, text=True,
                                capture_output=True, check=False)
        self.assertIn("no such metric: fathom_steps_total", failed.stderr)

    @unittest.skipUnless(shutil.which("shellcheck"), "shellcheck is not installed")
    def test_scripts_are_what_shellcheck_likes(self):
        out("shellcheck", "-s", "bash", *glob.glob(ROOT + "/deploy/slurm/*.sbatch"))
        out("shellcheck", ROOT + "/tools/deb", ROOT + "/tools/image_root", ROOT + "/tools/deps")

    def batch(self, script, *arguments, **env):
        for name, text in (("srun", SRUN), ("scancel", SCANCEL), ("scontrol", SCONTROL)):
            with open(os.path.join(self.folder, name), "w", encoding="ascii") as f:
                f.write(text)
            os.chmod(f.name, 0o755)
        env = {**os.environ, "PATH": self.folder + ":" + os.environ["PATH"], "FATHOM": FATHOM,
               "SLURM_JOB_ID": "7", "POLL_S": "0.1", **env}
        return subprocess.Popen(["bash", ROOT + "/deploy/slurm/" + script, *arguments], text=True,
                                cwd=self.folder, env=env, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE)

    def cancel(self):
        out(os.path.join(self.folder, "scancel"), "--signal=TERM", "7", cwd=self.folder)

    def test_a_slurm_job_tells_its_address_and_ends_well_on_a_signal(self):
        secret = os.path.join(self.folder, "pool")
        with open(secret, "w", encoding="ascii") as f:
            f.write("a secret of the pool")
        with_key = {"FATHOM_POOL_SECRET_FILE": secret, "FATHOM_SERVER_API_KEY": "k"}
        job = self.batch("serve.sbatch", "pilot", "--max-num-seqs", "4", "--api-key", "k",
                         PORT=free_port(), **with_key)
        address = os.path.join(self.folder, "fathom-7.address")
        wait_until(lambda: job.poll() is not None or os.path.exists(address))
        self.assertTrue(os.path.exists(address), job.poll() and job.stderr.read())
        front = free_port()
        router = self.batch("router.sbatch", address, PORT=front, **with_key)
        wait_until(lambda: subprocess.run([FATHOM, "health", f"http://127.0.0.1:{front}"],
                                          capture_output=True, check=False).returncode == 0)
        server, = json.loads(get(front, "/instances"))
        self.assertEqual((server["moves_streams"], server["why"]), (True, ""))
        self.cancel()
        for started in (router, job):
            _, err = started.communicate(timeout=HANG_S)
            self.assertEqual(started.returncode, 0, err)
        self.assertFalse(os.path.exists(address))

    def ends_well(self, job, address):
        """A job whose address is there answers, and a signal ends all of it."""
        wait_until(lambda: job.poll() is not None or os.path.exists(address))
        self.assertTrue(os.path.exists(address), job.poll() and job.stderr.read())
        with open(address, encoding="ascii") as f:
            port = int(re.search(r":(\d+)/v1", f.read()).group(1))
        body = json.dumps({"prompt": "The sea was calm. " * 40, "max_tokens": 8})

        def ask():
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=HANG_S)
            connection.request("POST", "/v1/completions", body)
            answer = connection.getresponse()
            self.assertEqual(answer.status, 200, answer.read())
            connection.close()

        ask()
        job.send_signal(signal.SIGTERM)  # the script alone: its tasks run on
        ask()
        self.cancel()
        _, err = job.communicate(timeout=HANG_S)
        self.assertEqual(job.returncode, 0, err)
        self.assertFalse(os.path.exists(address))
        return err

    def test_a_slurm_job_of_two_hosts_is_one_server(self):
        job = self.batch("serve.sbatch", "pilot", "--backend", "cpu", "--max-num-seqs", "4",
                         SLURM_NNODES="2", PORT=free_port(), MASTER_PORT=free_port())
        err = self.ends_well(job, os.path.join(self.folder, "fathom-7.address"))
        self.assertIn("Slurm: --nnodes 2", err)
        self.assertIn("host=1 of=2 has joined host 0", err)

    def test_options_that_cut_the_model_are_a_slurm_jobs_own(self):
        for cut, n in (((), 2), (("-dp", "2", "--enable-expert-parallel"), 2), (("-pp=2",), 2)):
            port = free_port()
            job = self.batch("serve.sbatch", "pilot", "--backend", "cpu", "--max-num-seqs", "4", *cut,
                             SLURM_GPUS_ON_NODE="2", PORT=port)
            address = os.path.join(self.folder, "fathom-7.address")
            wait_until(lambda: job.poll() is not None or os.path.exists(address))
            self.assertTrue(os.path.exists(address), job.poll() and job.stderr.read())
            ranks = re.findall(r'^fathom_rank_waits_total\S*rank="(\d)"', get(port, "/metrics"), re.M)
            self.assertEqual(len(ranks), n)
            self.cancel()
            job.communicate(timeout=HANG_S)
            os.remove(os.path.join(self.folder, "tasks"))

    def test_a_slurm_job_prefills_on_one_host_and_decodes_on_the_others(self):
        port = free_ports(4)
        small = ("--max-num-seqs", "4", "--max-model-len", "1024", "--threads", "1")
        job = self.batch("pd.sbatch", "pilot", *small, PORT=str(port),
                         SLURM_JOB_NODELIST="127.0.0.1,127.0.0.2,127.0.0.3")
        address = os.path.join(self.folder, "fathom-7.address")
        wait_until(lambda: job.poll() is not None or os.path.exists(address))
        self.assertTrue(os.path.exists(address), job.poll() and job.stderr.read())
        with open(address, encoding="ascii") as f:
            self.assertEqual(f.read(), f"http://127.0.0.1:{port}/v1\n")
        secret = os.path.join(self.folder, "fathom-7.secret")
        self.assertEqual(os.stat(secret).st_mode & 0o777, 0o600)

        def instances():
            return {s["url"]: s for s in json.loads(get(port, "/instances"))}

        wait_until(lambda: all(s["state"] == "up" for s in instances().values()))
        self.assertEqual([s["role"] for _, s in sorted(instances().items())],
                         ["prefill", "any", "any"])
        body = {"prompt": "the tide and the harbour " * 60, "max_tokens": 4, "temperature": 0}
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=HANG_S)
        connection.request("POST", "/v1/completions", json.dumps(body))
        answer = connection.getresponse()
        self.assertEqual(answer.status, 200, answer.read())
        connection.close()
        handed = [re.search(r"^fathom_kv_pages_pulled_total\S* (\d+)", get(port + 2 + i, "/metrics"),
                            re.M).group(1) for i in range(2)]
        self.assertGreater(sum(map(int, handed)), 0)
        self.cancel()
        _, err = job.communicate(timeout=HANG_S)
        self.assertEqual(job.returncode, 0, err)
        self.assertFalse(os.path.exists(address) or os.path.exists(secret))

    def test_a_slurm_job_that_nobody_could_answer_for_is_refused(self):
        for n, nodes in (("1", "a"), ("2", "a,b"), ("0", "a,b")):
            job = self.batch("pd.sbatch", "pilot", SLURM_JOB_NODELIST=nodes, PREFILLS=n)
            _, err = job.communicate(timeout=HANG_S)
            self.assertEqual((job.returncode, err.count("\n")), (2, 1))
            self.assertIn("PREFILLS", err)
        job = self.batch("pd.sbatch", "pilot", "--max-num-seqs", "nonsense", PORT=free_port(),
                         SLURM_JOB_NODELIST="127.0.0.1,127.0.0.2")  # its servers do not start
        job.communicate(timeout=HANG_S)
        self.assertEqual(job.returncode, 1)

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
