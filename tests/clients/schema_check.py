#!/usr/bin/env python3
"""Outputs drawn from schema grammars, judged by the Python package jsonschema.

    schema_check.py TEST_SCHEMA_WALK [--walks N]

TEST_SCHEMA_WALK is the test program of that name in the build folder; it prints N outputs for each
schema of tests/data/grammar/schemas.json. Skips with one line when jsonschema is not installed.
"""
import argparse
import json
import os
import subprocess
import sys

try:
    import jsonschema
except ImportError:
    print("schema_check: skipped, the Python package jsonschema is not installed")
    sys.exit(0)

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
DRAFTS = {7: jsonschema.Draft7Validator, 2020: jsonschema.Draft202012Validator}


def validator(case):
    draft = DRAFTS[case.get("draft", 2020)]
    return draft(case["schema"], format_checker=draft.FORMAT_CHECKER)


def judge(case, text):
    """None, or what is wrong with an output."""
    try:
        value = json.loads(text)
    except ValueError as error:
        return f"not JSON: {error}"
    error = next(validator(case).iter_errors(value), None)
    return error and error.message


def main():
    sys.setrecursionlimit(100000)  # outputs may be nested some hundred deep
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--walks", type=int, default=20)
    options = parser.parse_args()
    with open(os.path.join(ROOT, "tests/data/grammar/schemas.json"), encoding="utf-8") as f:
        cases = json.load(f)
    done = subprocess.run([options.program], check=True, capture_output=True,
                          env={**os.environ, "SCHEMA_WALKS": str(options.walks)}, cwd=ROOT)
    counts, failures = [0] * len(cases), 0
    for line in done.stdout.decode().splitlines():
        if not line.startswith('{"case"'):
            continue
        walk = json.loads(line)
        case = cases[walk["case"]]
        counts[walk["case"]] += 1
        if not case.get("python", True):  # says what OpenAPI says and JSON schema does not
            continue
        wrong = judge(case, walk["text"])
        if wrong:
            failures += 1
            print(f"{case['name']}: {walk['text']}: {wrong}")
    if min(counts) != options.walks:
        failures += 1
        print(f"the program printed {min(counts)} outputs of some schema, not {options.walks}")
    print(f"schema_check: {sum(counts)} outputs of {len(cases)} schemas, {failures} failures")
    return failures > 0


if __name__ == "__main__":
    sys.exit(main())
