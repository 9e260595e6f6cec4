#!/usr/bin/env python3
"""The Helm chart, the plain manifests, which are the chart with its own values, and compose files.

    tests/clients/chart_check.py path/to/fathom
    tests/clients/chart_check.py --write          deploy/kubernetes/fathom.yaml and router.yaml anew

Helm is not needed: the few constructs of templates that the chart uses are read here, and another
one fails. Every object is checked against the schemas of Kubernetes (kubernetes-validate), what the
containers are told is checked by the program.
"""

import contextlib
import json
import os
import re
import socket
import ssl
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.request

import client_env

client_env.enter("kubernetes-validate", requirements="requirements-kubernetes.txt")

import kubernetes_validate  # noqa: E402 pylint: disable=wrong-import-position
import yaml  # noqa: E402 pylint: disable=wrong-import-position

sys.path.insert(0, os.path.join(client_env.ROOT, "tests/e2e"))

from certificates import make_certificate  # noqa: E402 pylint: disable=wrong-import-position

CHART = os.path.join(client_env.ROOT, "deploy/helm/fathom")
HOSTS = os.path.join(client_env.ROOT, "deploy/kubernetes/hosts.yaml")
HEAD = ("# The chart of deploy/helm/fathom with its own values%s, for `kubectl apply -f`. Made by\n"
        "# tests/clients/chart_check.py --write; a test compares.\n")
ACTION = re.compile(r"\{\{(-?)\s*(.*?)\s*(-?)\}\}", re.S)
VERSION = "1.31"


def look_up(path, scope):
    value = scope["dot"] if path == "." else scope["root"]
    for name in path.strip(".").split("."):
        if name:
            value = value[name]
    return value


def as_yaml(value):
    return yaml.safe_dump(value, default_flow_style=False, sort_keys=False).rstrip("\n")


def evaluate(expression, scope):
    """What stands for {{ expression }}."""
    parts = [part.strip() for part in expression.split("|")]
    words = parts[0].split()
    if words[0] == "toYaml":
        value = as_yaml(look_up(words[1], scope))
    elif len(words) == 1 and words[0].startswith("."):
        value = look_up(words[0], scope)
    else:
        raise ValueError(f"a construct that is not read here: {expression}")
    for pipe in parts[1:]:
        if pipe == "quote":
            value = '"' + str(value).replace("\\", "\\\\").replace('"', '\\"') + '"'
        elif pipe.startswith("nindent "):
            pad = " " * int(pipe.split()[1])
            value = "\n" + "\n".join(pad + line for line in value.splitlines())
        else:
            raise ValueError(f"a construct that is not read here: {expression}")
    return str(value).lower() if isinstance(value, bool) else str(value)


def tokens(text):
    """Texts and actions in turn, white space cut where {{- and -}} say so."""
    out, at = [], 0
    for m in ACTION.finditer(text):
        before = text[at:m.start()]
        if m.group(1):
            before = before.rstrip()
        out += [("text", before), ("action", m.group(2))]
        at = m.end()
        if m.group(3):
            at += len(text[at:]) - len(text[at:].lstrip())
    return out + [("text", text[at:])]


def block(parts, i, scope, active):
    """Renders up to `end` or `else`; the text, and where that stands."""
    out = ""
    while i < len(parts):
        kind, text = parts[i]
        words = text.split()
        if kind == "text":
            out += text if active else ""
        elif words[0] in ("end", "else"):
            return out, i
        elif words[0] == "if":
            negated = words[1] == "not"
            paths = words[2:] if words[1] in ("not", "or") else words[1:]
            holds = any(look_up(path, scope) for path in paths) != negated
            inner, i = block(parts, i + 1, scope, active and holds)
            out += inner
            if parts[i][1] == "else":
                inner, i = block(parts, i + 1, scope, active and not holds)
                out += inner
        elif words[0] == "range":
            begin = i + 1
            for item in look_up(words[1], scope):
                inner, i = block(parts, begin, {**scope, "dot": item}, active)
                out += inner
            if i < begin:
                _, i = block(parts, begin, scope, False)
        elif active:
            out += evaluate(text, scope)
        i += 1
    return out, i


def values(**changes):
    with open(os.path.join(CHART, "values.yaml"), encoding="utf-8") as f:
        out = yaml.safe_load(f)
    for path, value in changes.items():
        *folders, name = path.split("__")
        at = out
        for folder in folders:
            at = at[folder]
        if name not in at:
            raise KeyError(path)
        at[name] = value
    return out


def render(chosen):
    root = {"Values": chosen, "Release": {"Name": "fathom"}}
    out = []
    folder = os.path.join(CHART, "templates")
    for name in sorted(os.listdir(folder)):
        with open(os.path.join(folder, name), encoding="utf-8") as f:
            text, _ = block(tokens(f.read()), 0, {"root": root, "dot": root}, True)
        if text.strip():
            out.append(text.strip() + "\n")
    return "---\n".join(out)


def objects(text):
    return list(yaml.safe_load_all(text))


def by_kind(text):
    return {o["kind"]: o for o in objects(text)}


def plain():
    """The manifests for those who have no Helm: path and text of each."""
    for name, chosen, what in (("fathom", values(), ""),
                               ("router", values(router__enabled=True), " and a router")):
        yield (os.path.join(client_env.ROOT, f"deploy/kubernetes/{name}.yaml"),
               HEAD % what + render(chosen))


class Chart(unittest.TestCase):
    def test_the_plain_manifests_are_the_chart(self):
        for path, text in plain():
            with open(path, encoding="utf-8") as f:
                self.assertEqual(f.read(), text)

    def test_every_object_fits_kubernetes_schemas(self):
        chosen = [values(), values(secret="", gpus=0, autoscaling__enabled=False, args=[]),
                  values(models__existingClaim="x", runtimeClassName="nvidia", tolerations=[],
                         nodeSelector={"kubernetes.io/hostname": "g505"}),
                  values(router__enabled=True, router__replicas=2),
                  values(router__enabled=True, secret=""),
                  values(router__enabled=True, tlsSecret="a", router__tlsSecret="b"),
                  values(router__enabled=True, router__tlsSecret="b", secret="")]
        with open(os.path.join(client_env.ROOT, "deploy/kubernetes/secret.example.yaml"),
                  encoding="utf-8") as f:
            texts = [render(v) for v in chosen] + [f.read()]
        for text in texts:
            for o in objects(text):
                kubernetes_validate.validate(o, VERSION, strict=True)

    def test_a_schema_is_really_looked_at(self):
        wrong = objects(render(values()))
        wrong[0]["spec"]["nonsense"] = 1
        with self.assertRaises(kubernetes_validate.ValidationError):
            for o in wrong:
                kubernetes_validate.validate(o, VERSION, strict=True)

    def test_values_act(self):
        kinds = by_kind(render(values(gpus=0, secret="", autoscaling__enabled=False, replicas=3,
                                      models__existingClaim="mine")))
        self.assertEqual(set(kinds), {"Deployment", "Service", "PodDisruptionBudget"})
        spec = kinds["Deployment"]["spec"]
        self.assertEqual(spec["replicas"], 3)
        container = spec["template"]["spec"]["containers"][0]
        self.assertNotIn("nvidia.com/gpu", container["resources"]["limits"])
        self.assertNotIn("--api-key-file=/keys/keys", container["args"])
        claim = spec["template"]["spec"]["volumes"][0]["persistentVolumeClaim"]["claimName"]
        self.assertEqual(claim, "mine")

    def test_selectors_and_ports_fit_each_other(self):
        kinds = by_kind(render(values()))
        pod = kinds["Deployment"]["spec"]["template"]
        labels = pod["metadata"]["labels"]
        for selector in (kinds["Deployment"]["spec"]["selector"]["matchLabels"],
                         kinds["Service"]["spec"]["selector"],
                         kinds["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"]):
            self.assertLessEqual(selector.items(), labels.items())
        ports = {p["name"] for p in pod["spec"]["containers"][0]["ports"]}
        self.assertEqual(kinds["Service"]["spec"]["ports"][0]["targetPort"], "http")
        self.assertEqual(ports, {"http"})
        mounted = {m["name"] for c in pod["spec"]["containers"] + pod["spec"]["initContainers"]
                   for m in c["volumeMounts"]}
        self.assertEqual(mounted, {v["name"] for v in pod["spec"]["volumes"]})

    def test_the_program_knows_what_its_containers_are_told(self):
        chosen = values(router__enabled=True, tlsSecret="a", router__tlsSecret="b")
        pods = [o["spec"]["template"]["spec"] for o in objects(render(chosen)) if o["kind"] == "Deployment"]
        self.assertEqual(len(pods), 2)
        for container in sum((p["containers"] + p.get("initContainers", []) for p in pods), []):
            words = [a.split("=")[0] for a in container["args"] if a.startswith("--")]
            known = subprocess.run([FATHOM, container["args"][0], "--help"], check=True, text=True,
                                   capture_output=True).stdout
            for word in words:
                self.assertIn(f"{word} ", known.replace("\n", " "), word)


    def test_the_router_is_told_the_servers_service_and_shares_their_secret(self):
        made = {(o["kind"], o["metadata"]["name"]): o
                for o in objects(render(values(router__enabled=True, router__args=["--max-moves=2"])))}
        servers, router = (made["Deployment", name]["spec"]["template"]
                           for name in ("fathom", "fathom-router"))
        found, front = (made["Service", name]["spec"] for name in ("fathom-servers", "fathom-router"))
        for selector, labels, others in (
                (found["selector"], servers["metadata"]["labels"], router["metadata"]["labels"]),
                (front["selector"], router["metadata"]["labels"], servers["metadata"]["labels"])):
            self.assertLessEqual(selector.items(), labels.items())
            self.assertFalse(selector.items() <= others.items())
        self.assertEqual(made["Deployment", "fathom-router"]["spec"]["selector"]["matchLabels"],
                         front["selector"])
        self.assertEqual((found["clusterIP"], found["publishNotReadyAddresses"]), ("None", True))
        args = router["spec"]["containers"][0]["args"]
        port = found["ports"][0]["port"]
        self.assertEqual(args[:2], ["router", f"dns+http://fathom-servers:{port}"])
        self.assertEqual(args[-1], "--max-moves=2")
        self.assertEqual(servers["spec"]["containers"][0]["ports"][0]["containerPort"], port)
        for pod in (servers, router):
            self.assertIn("--pool-secret-file=/keys/pool-secret", pod["spec"]["containers"][0]["args"])
            items = [v["secret"]["items"] for v in pod["spec"]["volumes"] if v["name"] == "keys"]
            self.assertIn({"key": "pool-secret", "path": "pool-secret"}, items[0])
        self.assertNotIn("serviceAccountName", router["spec"])

    def finds_a_server(self, folder, chosen):
        """What router and server are told makes them find each other, certificates at the volumes' places."""
        port, front = free_port(), free_port()
        args = {o["metadata"]["name"]: o["spec"]["template"]["spec"]["containers"][0]["args"]
                for o in objects(render(chosen)) if o["kind"] == "Deployment"}
        places = (("fathom-servers:8000", "127.0.0.1:" + port), ("--port=8000", "--port=" + front),
                  ("/tls/tls.", folder + "/host."), ("/servers/ca.", folder + "/host."))
        server = ["serve", "--port=" + port, *(a for a in args["fathom"] if a.startswith("--ssl"))]
        told = []
        for command in (server, args["fathom-router"]):
            for a, b in places:
                command = [word.replace(a, b) for word in command]
            told.append(command)
        context = ssl.create_default_context(cafile=f"{folder}/host.crt") if folder else None
        url = f"http{'s' if folder else ''}://127.0.0.1:{front}/ready"
        with contextlib.ExitStack() as ends:
            for command in told:
                ends.callback(end, subprocess.Popen([FATHOM, *command], stdout=subprocess.DEVNULL,
                                                    stderr=subprocess.DEVNULL))
            for _ in range(10 * client_env.HANG_S):
                with contextlib.suppress(OSError):
                    with urllib.request.urlopen(url, context=context) as answer:
                        self.assertEqual(answer.status, 200)
                        return
                time.sleep(0.1)
            self.fail("the router has found no server")

    def test_what_the_router_is_told_finds_a_server(self):
        self.finds_a_server("", values(router__enabled=True, secret=""))

    def test_what_both_are_told_of_tls_is_enough(self):
        with tempfile.TemporaryDirectory() as folder:
            make_certificate(folder, "host")
            self.finds_a_server(folder, values(router__enabled=True, secret="", tlsSecret="a",
                                               router__tlsSecret="b"))

    def test_tls_is_where_clients_and_probes_look_for_it(self):
        made = {o["metadata"]["name"]: o["spec"]["template"] for o in objects(render(values(
            router__enabled=True, tlsSecret="a", router__tlsSecret="b"))) if o["kind"] == "Deployment"}
        for name, secret in (("fathom", "a"), ("fathom-router", "b")):
            container = made[name]["spec"]["containers"][0]
            probes = [p["httpGet"]["scheme"] for k, p in container.items() if k.endswith("Probe") and "httpGet" in p]
            self.assertEqual(set(probes), {"HTTPS"})
            self.assertEqual(made[name]["metadata"]["annotations"]["prometheus.io/scheme"], "https")
            volumes = {v["name"]: v for v in made[name]["spec"]["volumes"]}
            self.assertEqual(volumes["tls"]["secret"]["secretName"], secret)
            self.assertLessEqual({m["name"] for m in container["volumeMounts"]}, set(volumes))


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return str(s.getsockname()[1])


def end(process):
    process.terminate()
    process.wait(client_env.HANG_S)


def serve_on_two_hosts(test, commands, environments, port):
    """What two containers are told makes one server of both on this machine; each ends well."""
    with contextlib.ExitStack() as ends:
        hosts = []
        for command, environment in zip(commands, environments):
            host = subprocess.Popen([FATHOM, *command], env={**os.environ, **environment},
                                    stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            ends.callback(end, host)
            hosts.append(host)
        for _ in range(10 * client_env.HANG_S):
            if not subprocess.run([FATHOM, "health", "http://127.0.0.1:" + port], check=False,
                                  capture_output=True).returncode:
                break
            test.assertEqual([h.poll() for h in hosts], [None, None])
            time.sleep(0.1)
        else:
            test.fail("the hosts have not joined")
        for host in hosts:  # at once, as a launcher does: one alone waits for host 0
            host.terminate()
    test.assertEqual([h.returncode for h in hosts], [0, 0])


class Hosts(unittest.TestCase):
    """The LeaderWorkerSet. Its schema is not among those of Kubernetes: its own fields are here."""
    FIELDS = {"replicas": int, "leaderWorkerTemplate": dict, "startupPolicy": str,
              "rolloutStrategy": dict, "networkConfig": dict}
    TEMPLATE = {"leaderTemplate": dict, "workerTemplate": dict, "size": int, "restartPolicy": str,
                "subGroupPolicy": dict}

    def setUp(self):
        with open(HOSTS, encoding="utf-8") as f:
            self.set, self.service = yaml.safe_load_all(f)
        self.template = self.set["spec"]["leaderWorkerTemplate"]
        self.pods = [self.template["leaderTemplate"], self.template["workerTemplate"]]

    def test_its_objects_are_what_kubernetes_and_the_controller_know(self):
        self.assertEqual((self.set["apiVersion"], self.set["kind"]),
                         ("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet"))
        for fields, known in ((self.set["spec"], self.FIELDS), (self.template, self.TEMPLATE)):
            for name, value in fields.items():
                self.assertIsInstance(value, known[name], name)
        self.assertIn(self.set["spec"]["startupPolicy"], ("LeaderCreated", "LeaderReady"))
        self.assertIn(self.template["restartPolicy"], ("None", "RecreateGroupOnPodRestart"))
        for pod in self.pods:
            kubernetes_validate.validate(
                {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x", **pod["metadata"]},
                 "spec": pod["spec"]}, VERSION, strict=True)
        kubernetes_validate.validate(self.service, VERSION, strict=True)
        self.assertLessEqual(self.service["spec"]["selector"].items(),
                             self.pods[0]["metadata"]["labels"].items())
        self.assertNotEqual(self.pods[0]["metadata"]["labels"], self.pods[1]["metadata"]["labels"])

    def test_the_controllers_variables_make_one_server_of_its_pods(self):
        port = free_port()
        args = [pod["spec"]["containers"][0]["args"] for pod in self.pods]
        self.assertEqual(*args)
        command = [{"deepseek-ai/DeepSeek-V3.2": "pilot", "--host=0.0.0.0": "--port=" + port}
                   .get(a, a) for a in args[0] if not a.startswith("--api-key-file")]
        told = {"LWS_GROUP_SIZE": str(self.template["size"]), "LWS_LEADER_ADDRESS": "127.0.0.1",
                "MASTER_PORT": free_port(), "FATHOM_CLUSTER_TOKEN": "x"}
        serve_on_two_hosts(self, [command, command],
                           [{**told, "LWS_WORKER_INDEX": str(i)} for i in range(2)], port)


def substituted(text, environment):
    """${NAME:-default} and ${NAME:?message} as compose reads them."""
    def value(m):
        name, kind, rest = m.group(1), m.group(2), m.group(3)
        if environment.get(name):
            return environment[name]
        if kind == ":?":
            raise KeyError(name)
        return rest or ""
    return re.sub(r"\$\{(\w+)(?:(:[-?])([^}]*))?\}", value, text)


class Compose(unittest.TestCase):
    KEYS = {"image", "build", "command", "ports", "volumes", "user", "read_only", "tmpfs", "deploy",
            "ulimits", "cap_drop", "security_opt", "stop_grace_period", "restart", "healthcheck",
            "environment", "profiles", "extra_hosts", "network_mode", "depends_on"}
    FOLDER = os.path.join(client_env.ROOT, "deploy/compose")
    NAMES = ("cpu.yaml", "gpu8.yaml", "monitoring.yaml", "pd.yaml", "hosts.yaml")
    NEEDED = {"MODEL": "org/name", "FATHOM_CLUSTER_TOKEN": "x"}

    def load(self, name, **environment):
        with open(os.path.join(self.FOLDER, name), encoding="utf-8") as f:
            return yaml.safe_load(substituted(f.read(), environment))

    def test_files_have_the_keys_that_compose_knows_and_mount_what_there_is(self):
        for name in self.NAMES:
            for service in self.load(name, **self.NEEDED)["services"].values():
                self.assertEqual(set(service) - self.KEYS, set(), name)
                build = service.get("build")
                if build:
                    context = os.path.join(self.FOLDER, build["context"])
                    self.assertTrue(os.path.exists(os.path.join(context, build["dockerfile"])))
                for volume in service.get("volumes", []):
                    source = volume.split(":")[0]
                    if source.startswith("."):
                        self.assertTrue(os.path.exists(os.path.join(self.FOLDER, source)), source)

    def test_containers_are_confined(self):
        for name in ("cpu.yaml", "gpu8.yaml", "hosts.yaml", "pd.yaml"):
            for service in self.load(name, **self.NEEDED)["services"].values():
                self.assertIs(service["read_only"], True)
                self.assertEqual(service["cap_drop"], ["ALL"])
                self.assertIn("no-new-privileges:true", service["security_opt"])
                self.assertNotEqual(service["user"], "0")

    def test_the_guides_variables_reach_the_program(self):
        with self.assertRaises(KeyError):
            self.load("gpu8.yaml")
        told = self.load("gpu8.yaml", MODEL="deepseek-ai/DeepSeek-R1", TENSOR_PARALLEL_SIZE="4",
                         PIPELINE_PARALLEL_SIZE="2", MAX_MODEL_LEN="8000", MAX_NUM_SEQS="128")
        command = told["services"]["fathom"]["command"]
        self.assertEqual(command[:2], ["serve", "deepseek-ai/DeepSeek-R1"])
        self.assertLessEqual({"--tensor-parallel-size=4", "--pipeline-parallel-size=2",
                              "--max-model-len=8000", "--max-num-seqs=128"}, set(command))
        gpus = told["services"]["fathom"]["deploy"]["resources"]["reservations"]["devices"][0]
        self.assertEqual(len(gpus["device_ids"]), 8)

    def test_the_program_takes_what_it_is_told(self):
        command = self.load("cpu.yaml")["services"]["fathom"]["command"]
        done = subprocess.run([FATHOM, *command, "--dry-run", "--port", "0"], text=True,
                              capture_output=True, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        command = self.load("gpu8.yaml", MODEL="pilot", TENSOR_PARALLEL_SIZE="1")
        done = subprocess.run([FATHOM, *command["services"]["fathom"]["command"], "--dry-run"],
                              text=True, capture_output=True, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_servers_apart_answer_through_their_router(self):
        front = free_port()
        services = self.load("pd.yaml", HOST="127.0.0.1", PORT=front)["services"]
        ports = {"8100": free_port(), "8200": free_port(), "5600": free_port()}
        with contextlib.ExitStack() as ends:
            for name in ("prefill", "decode", "router"):
                command = [re.sub("8100|8200|5600", lambda m: ports[m.group()], word)
                           for word in services[name]["command"]]
                ends.callback(end, subprocess.Popen([FATHOM, *command], stdout=subprocess.DEVNULL,
                                                    stderr=subprocess.DEVNULL))
            test = services["router"]["healthcheck"]["test"][2:]
            self.assertEqual(test, ["health", "http://127.0.0.1:" + front])
            for _ in range(10 * client_env.HANG_S):
                with contextlib.suppress(OSError):
                    with urllib.request.urlopen(f"http://127.0.0.1:{front}/instances") as answer:
                        state = json.load(answer)
                    if all(s["state"] == "up" for s in state):
                        break
                time.sleep(0.1)
            self.assertEqual({(s["role"], s["state"], s["why"]) for s in state},
                             {("prefill", "up", ""), ("any", "up", "")})
            self.assertEqual(subprocess.run([FATHOM, *test], check=False,
                                            capture_output=True).returncode, 0)

    def test_two_hosts_make_one_server(self):
        with self.assertRaises(KeyError):
            self.load("hosts.yaml", MODEL="org/name")
        port = free_port()
        services = self.load("hosts.yaml", FATHOM_CLUSTER_TOKEN="x", HOST="127.0.0.1", PORT=port,
                             MASTER_PORT=free_port())["services"]
        hosts = [services["host0"], services["host1"]]
        self.assertEqual(hosts[0]["healthcheck"]["test"][-1], "http://127.0.0.1:" + port)
        serve_on_two_hosts(self, [h["command"] for h in hosts], [h["environment"] for h in hosts],
                           port)

    def test_configurations_of_prometheus_and_grafana_name_each_other(self):
        folder = os.path.join(client_env.ROOT, "deploy/monitoring")
        with open(folder + "/prometheus.yml", encoding="utf-8") as f:
            prometheus = yaml.safe_load(f)
        self.assertEqual(prometheus["rule_files"], ["alarms.yml"])
        with open(folder + "/alarms.yml", encoding="utf-8") as f:
            rules = yaml.safe_load(f)["groups"][0]["rules"]
        self.assertTrue(all({"alert", "expr", "for", "annotations"} == set(r) for r in rules))
        with open(folder + "/grafana/datasource.yaml", encoding="utf-8") as f:
            source = yaml.safe_load(f)["datasources"][0]
        with open(folder + "/grafana/fathom.json", encoding="utf-8") as f:
            panels = yaml.safe_load(f)["panels"]
        self.assertEqual({p["datasource"]["uid"] for p in panels if "datasource" in p},
                         {source["uid"]})


if __name__ == "__main__":
    if "--write" in sys.argv:
        for path, text in plain():
            with open(path, "w", encoding="utf-8") as f:
                f.write(text)
        sys.exit(0)
    FATHOM = os.path.abspath(sys.argv.pop(1))
    unittest.main(argv=[sys.argv[0], "-v"])
