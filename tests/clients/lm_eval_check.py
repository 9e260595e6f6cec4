#!/usr/bin/env python3
"""lm_eval's local-completions against the pilot model.

    tests/clients/lm_eval_check.py path/to/fathom

A task in the manner of gsm8k: the word problems of tests/data/pilot/evaluation.json, the last number
of the answer compared with the last number expected. The score must be the share of them that an
independent implementation of the model gets right.

Then the command line of a published guide (tests/data/guides), gsm8k itself over these problems: five
examples in each prompt, its filters, its stop texts. Every request must be answered.
"""
import functools
import glob
import json
import os
import re
import shlex
import sys
import tempfile
import urllib.request
from unittest import mock

import client_env

KIND = "word problem, thinking"
TASK = """\
task: pilot_word_problems
dataset_path: json
dataset_kwargs:
  data_files: {{test: {data}}}
test_split: test
output_type: generate_until
doc_to_text: "{{{{prompt}}}}"
doc_to_target: "{{{{number}}}}"
generation_kwargs: {{until: ["<no such text>"], do_sample: false, max_gen_toks: 200}}
filter_list:
  - name: last-number
    filter:
      - {{function: regex, regex_pattern: "(-?[0-9]+)", group_select: -1}}
      - {{function: take_first}}
metric_list:
  - {{metric: exact_match, aggregation: mean, higher_is_better: true}}
"""

GSM8K = """\
include: {gsm8k}
dataset_path: json
dataset_name: null
dataset_kwargs:
  data_files: {{train: {data}, test: {data}}}
"""


def last_number(text):
    return re.findall(r"-?[0-9]+", text)[-1]


def word_problems():
    with open(os.path.join(client_env.ROOT, "tests/data/pilot/evaluation.json")) as f:
        return [c for c in json.load(f) if c["kind"] == KIND]


def write_rows(path, rows):
    with open(path, "w") as f:
        f.writelines(json.dumps(row) + "\n" for row in rows)


def write_task(folder, cases):
    """The task and its data"""
    data = os.path.join(folder, "problems.jsonl")
    write_rows(data, ({"prompt": c["prompt"], "number": last_number(c["want"])} for c in cases))
    with open(os.path.join(folder, "task.yaml"), "w") as f:
        f.write(TASK.format(data=data))


def check_score(program, folder):
    """0 when the score is the reference's"""
    import lm_eval
    import lm_eval.tasks
    cases = word_problems()
    write_task(folder, cases)
    want, n = sum(c["right"] for c in cases) / len(cases), len(cases)
    with client_env.started_pilot(program, "--disable-log-requests") as port:
        url = f"http://127.0.0.1:{port}/v1/completions"
        found = lm_eval.simple_evaluate(
            model="local-completions",
            model_args=f"model=pilot,base_url={url},num_concurrent=8,tokenized_requests=False,"
                       "tokenizer_backend=None,max_retries=1",
            tasks=["pilot_word_problems"], bootstrap_iters=0, log_samples=False,
            task_manager=lm_eval.tasks.TaskManager(include_path=folder, include_defaults=False))
    score = found["results"]["pilot_word_problems"]["exact_match,last-number"]
    print(f"lm_eval: {score * n:.0f} of {n} right, expected {want * n:.0f}")
    return 0 if score == want else 1


def guide_line():
    """The words of the guide's command, and the name of the model in it"""
    with open(os.path.join(client_env.ROOT, "tests/data/guides/commands.json")) as f:
        text = next(e["command"] for e in json.load(f)
                    if e.get("command", "").startswith("lm_eval"))
    return shlex.split(text.replace("\\\n", " ")), re.search(r"model=([^,]+),", text).group(1)


def n_answered(port):
    """Requests that ended in an answer, of all that the server took"""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines
               if re.match(r'vllm:request_success_total\{.*finished_reason="(stop|length)"', line))


def run_command(words):
    """lm_eval's command line, in this process: it does not look through the tasks that it brings
    along, which takes longer than all the rest."""
    import lm_eval.tasks
    from lm_eval.__main__ import cli_evaluate
    own_only = functools.partial(lm_eval.tasks.TaskManager, include_defaults=False)
    with mock.patch("lm_eval.tasks.TaskManager", own_only), mock.patch("sys.argv", words):
        cli_evaluate()


def write_gsm8k(folder, cases):
    """gsm8k, over these problems"""
    import lm_eval
    data = os.path.join(folder, "gsm8k.jsonl")
    write_rows(data, ({"question": re.sub(r"<[^>]*>", "", c["prompt"]),
                       "answer": f"{c['want']}\n#### {last_number(c['want'])}"} for c in cases))
    gsm8k = os.path.join(os.path.dirname(lm_eval.__file__), "tasks/gsm8k/gsm8k.yaml")
    with open(os.path.join(folder, "gsm8k.yaml"), "w") as f:
        f.write(GSM8K.format(data=data, gsm8k=gsm8k))


def check_guide(program, folder):
    """0 when the guide's command evaluates every problem and writes its results"""
    out, tasks = os.path.join(folder, "out"), os.path.join(folder, "guide")
    os.mkdir(tasks)
    cases = word_problems()[:16]
    write_gsm8k(tasks, cases)
    words, model = guide_line()
    with client_env.started_pilot(program, "--disable-log-requests", "--served-model-name",
                                  model) as port:
        # The tokenizer that lm_eval would load counts nothing in this task; all else is the guide's.
        i = words.index("--model_args") + 1
        words[i] = words[i].replace("127.0.0.1:8000", f"127.0.0.1:{port}") + ",tokenizer_backend=None"
        words[words.index("--output_path") + 1] = out
        run_command([*words, "--include_path", tasks])
        answered = n_answered(port)
    (path,) = glob.glob(out + "/**/results_*.json", recursive=True)
    with open(path) as f:
        found = json.load(f)
    n = found["n-samples"]["gsm8k"]["effective"]
    print(f"{words[0]} as the guide has it: {n} problems, {answered:.0f} answered, "
          f"{found['results']['gsm8k']['exact_match,flexible-extract']:.2f} right")
    return 0 if n == answered == len(cases) else 1


def main():
    client_env.enter("lm_eval", requirements="requirements-lm-eval.txt")
    with tempfile.TemporaryDirectory() as folder:
        # Before the imports: nothing is asked of a hub and nothing written outside.
        os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1", HF_HOME=folder,
                          TOKENIZERS_PARALLELISM="false")
        return check_score(sys.argv[1], folder) or check_guide(sys.argv[1], folder)


if __name__ == "__main__":
    sys.exit(main())
