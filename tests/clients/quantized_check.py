#!/usr/bin/env python3
"""Checkpoints in every quantized format that is read.

    tests/clients/quantized_check.py path/to/fathom

tools/make_quantized_models.py writes them. Every matrix must decode to its golden values bit
for bit (tests/test_quantized), whole and as the parts of two ranks; the logits must be the
library's (tests/test_wide, tests/data/quantized) on ref and cpu. Needs numpy.
"""
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

import client_env

client_env.enter("numpy", requirements="requirements-numpy.txt")
FATHOM = os.path.abspath(sys.argv[1])
TESTS = os.path.join(os.path.dirname(FATHOM), "tests")
MAKE = os.path.join(client_env.ROOT, "tools", "make_quantized_models.py")
DATA = os.path.join(client_env.ROOT, "tests", "data", "quantized")
REFUSED = "gptq_desc_act"
# a pattern of "matrices ... routed experts ... coded as" for each; the others go by their logits
CODED = {"awq_g64": "awq, u4 g64 F16 [+] zero", "ct_w4a16_g32": "pack-quantized, u4 g32 BF16",
         "ct_nvfp4": "nvfp4-pack-quantized, e2m1 g16 F8_E4M3", "ct_mxfp4": "mxfp4, e2m1 g32 E8M0",
         "modelopt_nvfp4": "nvfp4, e2m1 g16 F8_E4M3", "block_int8": "int8, i8 128x128 F32",
         "modelslim_w8a8": "int8, i8 channel F32", "ct_fp8_channel": "fp8, e4m3 channel BF16",
         "w4afp8": "w4afp8, u4 g128 F32", "gptq": "gptq, u4 g128 F16 [+] zero"}
failed = []


def check(what, ok, said):
    if not ok:
        failed.append(what)
        print(f"FAILED {what}: {said.strip()[-600:]}")


def run(*command):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          timeout=client_env.HANG_S)
    return done.returncode, done.stdout


def refused(what, folder, needle, *options):
    status, said = run(FATHOM, "plan", folder, "--memory", "64G", *options)
    lines = [line for line in said.splitlines() if needle in line]
    check(what, status == 1 and len(lines) == 1, said)


def check_format(root, name):
    folder = os.path.join(root, name)
    golden = os.path.join(root, "golden", name + ".safetensors")
    if name == REFUSED:
        refused(name, folder, "act-order is not read: quantize again with desc_act=false",
                "--backend", "cpu")
        return
    status, said = run(os.path.join(TESTS, "test_quantized"), folder, golden)
    check(f"{name}, matrices", status == 0, said)
    logits = os.path.join(DATA, name + ".safetensors")
    if os.path.exists(logits):
        for backend in ("ref", "cpu"):
            status, said = run(os.path.join(TESTS, "test_wide"), folder, logits, backend, "f32",
                               "f32", "23", "1e-5", "1e-5")
            check(f"{name}, logits on {backend}", status == 0, said)
    if name in CODED:
        _, said = run(FATHOM, "inspect", folder)
        check(f"{name}, inspect", re.search("routed experts .*" + CODED[name], said), said)


def change(folder, to, file, **members):
    """A copy of a checkpoint of which a JSON file's quantization says something else."""
    shutil.copytree(folder, to)
    path = os.path.join(to, file)
    with open(path, encoding="utf-8") as f:
        config = json.load(f)
    inner = config.setdefault("quantization_config", {})
    for key, value in members.items():
        at = inner["config_groups"]["group_0"]["weights"] if key.startswith("w_") else inner
        at[key.removeprefix("w_")] = value
    with open(path, "w", encoding="utf-8") as f:
        json.dump(config, f)


def check_refusals(root):
    """What a checkpoint may say and is not read, in one line that names it."""
    cases = [("awq_g64", {"version": "gemv"}, '"gemv", needed is "gemm"'),
             ("awq_g64", {"bits": 3}, '"bits" of "quantization_config" is 3, needed is 4'),
             ("awq_g64", {"zero_point": False}, '"zero_point" of "quantization_config" is false'),
             ("gptq", {"bits": 8}, '"bits" of "quantization_config" is 8'),
             ("gptq", {"lm_head": True}, '"lm_head" is true, needed is false'),
             ("gptq", {"checkpoint_format": "marlin"}, '"marlin", needed is "gptq" or "gptq_v2"'),
             ("ct_w4a16", {"w_num_bits": 3}, '"num_bits" of "quantization_config" is 3'),
             ("ct_w4a16", {"w_actorder": "group"}, '"group", which is not read'),
             ("ct_w4a16", {"quantization_status": "frozen"}, 'needed is "compressed"'),
             ("ct_w4a16", {"transform_config": {"config_groups": {"r": {}}}}, "online rotations"),
             ("ct_w4a16", {"sparsity_config": {"format": "2:4"}}, "sparse weights"),
             ("ct_w4a16", {"quant_method": "hqq"}, '"hqq" is not read; needed is fp8, awq')]
    for i, (name, members, needle) in enumerate(cases):
        to = os.path.join(root, f"changed{i}")
        change(os.path.join(root, name), to, "config.json", **members)
        refused(f"{name} with {members}", to, needle, "--backend", "cpu")
    awq = os.path.join(root, "awq_g64")
    for name in ("ct_fp8_channel", "ct_w8a8"):
        status, said = run(FATHOM, "plan", os.path.join(root, name), "--memory", "64G",
                           "--backend", "cuda")
        check(f"cuda and {name}", status == 0, said)
    refused("4 bits and int8 inputs on cuda", awq,
            "whose inputs the cuda backend does not quantize to int8: use --dtype fp8 or bfloat16",
            "--backend", "cuda", "--dtype", "int8")
    refused("another method", awq, '--quantization gptq: the checkpoint is "awq"',
            "--backend", "cpu", "--quantization", "gptq")
    refused("int8 inputs", os.path.join(root, "ct_w8a8"), "use --dtype int8 or bfloat16",
            "--backend", "cpu", "--dtype", "fp8")
    gptq = next(os.path.join(root, n) for n in sorted(os.listdir(root)) if n.startswith("gptq"))
    for path, method in ((gptq, "moe_wna16"), (gptq, "auto_gptq"), (awq, "moe_wna16"),
                         (awq, "awq_marlin")):
        status, said = run(FATHOM, "plan", path, "--memory", "64G", "--backend", "cpu",
                           "--quantization", method)
        check(f"{path} by the name {method}", status == 0, said)
    check("plan's form",
          "72 matrices are awq, u4 g64 F16 + zero: 2.6 MB in the files" in said, said)


def main():
    with tempfile.TemporaryDirectory() as root:
        subprocess.run([sys.executable, MAKE, root], check=True, stdout=subprocess.DEVNULL)
        names = sorted(n for n in os.listdir(root) if n != "golden")
        assert len(names) == 22, names
        for name in names:
            check_format(root, name)
        check_refusals(root)
    if failed:
        sys.exit(f"{len(failed)} checks failed")
    print(f"{len(names)} formats")


main()
