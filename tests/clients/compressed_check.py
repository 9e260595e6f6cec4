#!/usr/bin/env python3
"""What `fathom quantize` writes, decoded by compressed-tensors.

    tests/clients/compressed_check.py path/to/fathom

For each scheme the library picks every module's group by the targets of config.json, decodes it,
and the values must be those of fathom's reader bit for bit (tests/test_quantized). What it finds no
group for must be plain. Needs compressed-tensors with torch, which are several gigabytes.
"""
import json
import os
import subprocess
import sys
import tempfile

import client_env

client_env.enter("compressed-tensors", requirements="requirements-compressed.txt")

import torch  # noqa: E402
from compressed_tensors.compressors.base import BaseCompressor  # noqa: E402
from compressed_tensors.quantization import QuantizationConfig  # noqa: E402
from compressed_tensors.utils.match import match_name  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402

FATHOM = os.path.abspath(sys.argv[1])
TEST = os.path.join(os.path.dirname(FATHOM), "tests", "test_quantized")
SCHEMES = [("w4a16",), ("w4a16", "--method", "rtn", "--targets", "linear"),
           ("w4a16", "--group", "32", "--targets", "experts", "kv_b"),
           ("w4a16_asym", "--group", "64", "--targets", "linear"),
           ("w8a8", "--targets", "linear"), ("w8a8",), ("fp8", "--targets", "linear"),
           ("fp8_channel", "--targets", "shared", "attention")]


def modules_of(folder):
    modules = {}
    for name in sorted(os.listdir(folder)):
        if name.endswith(".safetensors"):
            for tensor, value in load_file(os.path.join(folder, name)).items():
                module, _, part = tensor.rpartition(".")
                modules.setdefault(module, {})[part] = value
    return modules


def scheme_of(config, module):
    """The group that a module of the class Linear belongs to; None: it is ignored."""
    if any(match_name(module, pattern) for pattern in config.ignore):
        return None
    found = [g for g in config.config_groups.values()
             if any(t != "Linear" and match_name(module, t) for t in g.targets)]
    found = found or [g for g in config.config_groups.values() if "Linear" in g.targets]
    assert len(found) == 1, f"{module}: {len(found)} groups"
    return found[0]


def decode(folder):
    with open(os.path.join(folder, "config.json"), encoding="utf-8") as f:
        text = json.load(f)["quantization_config"]
    config = QuantizationConfig.model_validate(text)
    golden = {}
    for module, parts in modules_of(folder).items():
        if not any(p.startswith("weight_scale") for p in parts):
            is_matrix = parts.get("weight") is not None and parts["weight"].dim() == 2
            linear = is_matrix and "embed_tokens" not in module
            assert not linear or scheme_of(config, module) is None, f"{module} is plain"
            continue
        scheme = scheme_of(config, module)
        assert scheme is not None, f"{module} is ignored and quantized"
        form = scheme.format or config.format
        compressor = BaseCompressor.get_value_from_registry(getattr(form, "value", form))
        # in float32: the library multiplies in the scales' type
        parts = {k: v.float() if k == "weight_scale" and v.dtype == torch.bfloat16 else v
                 for k, v in parts.items()}
        golden[module + ".weight"] = compressor.decompress(parts, scheme)["weight"].float()
    return golden


def main():
    with tempfile.TemporaryDirectory() as root:
        for i, (scheme, *options) in enumerate(SCHEMES):
            out = os.path.join(root, f"out{i}")
            subprocess.run([FATHOM, "quantize", "pilot", out, "--scheme", scheme, *options],
                           check=True, stdout=subprocess.DEVNULL, timeout=client_env.HANG_S)
            golden = decode(out)
            assert len(golden) == 474, len(golden)
            path = os.path.join(root, "golden.safetensors")
            save_file({k: v.contiguous() for k, v in golden.items()}, path)
            done = subprocess.run([TEST, out, path], stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT, text=True)
            assert done.returncode == 0, done.stdout[-2000:]
            print(f"{scheme} {' '.join(options)}: {len(golden)} matrices are the library's")


main()
