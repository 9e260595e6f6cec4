#!/usr/bin/env python3
"""lm_eval's local-completions against the pilot model.

    tests/clients/lm_eval_check.py path/to/fathom

The task is in the manner of gsm8k: the word problems of tests/data/pilot/evaluation.json, the last
number of the answer compared with the last number expected. The score must be the share of them
that an independent implementation of the model gets right.
"""
import json
import os
import re
import sys
import tempfile

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


def last_number(text):
    return re.findall(r"-?[0-9]+", text)[-1]


def write_task(folder):
    """The task and its data; returns the share that the reference has right."""
    with open(os.path.join(client_env.ROOT, "tests/data/pilot/evaluation.json")) as f:
        cases = [c for c in json.load(f) if c["kind"] == KIND]
    data = os.path.join(folder, "problems.jsonl")
    with open(data, "w") as f:
        for c in cases:
            row = {"prompt": c["prompt"], "number": last_number(c["want"])}
            f.write(json.dumps(row) + "\n")
    with open(os.path.join(folder, "task.yaml"), "w") as f:
        f.write(TASK.format(data=data))
    return sum(c["right"] for c in cases) / len(cases), len(cases)


def main():
    client_env.enter("lm_eval", requirements="requirements-lm-eval.txt")
    with tempfile.TemporaryDirectory() as folder:
        # Before the imports: nothing is asked of a hub and nothing written outside.
        os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1", HF_HOME=folder,
                          TOKENIZERS_PARALLELISM="false")
        import lm_eval
        import lm_eval.tasks
        want, n = write_task(folder)
        with client_env.started_pilot(sys.argv[1], "--disable-log-requests") as port:
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


if __name__ == "__main__":
    sys.exit(main())
