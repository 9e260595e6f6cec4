#!/usr/bin/env python3
"""make_quantized_models - one small DeepSeek-V3 in every format

    tools/make_quantized_models.py OUT [--seed N] [--formats a,b,...]

Needs NumPy only and is deterministic: every weight is a hash of (seed, tensor name). Writes
OUT/<format>/{config.json, [quantization's own json,] model-*.safetensors, index} and
OUT/golden/<format>.safetensors: every quantized matrix as float32, name "<module>.weight", as the
codes and the scales in the file mean it. A reader is right when its decoded matrices equal the
golden bit for bit (each value is one rounding of an exact product of code and scale, or of code
minus zero).

`bf16` is the model that the others were quantized from. The sizes are odd on purpose where a format
allows it: kv_a has 576 rows (4.5 blocks of 128), vocabulary 520. With --seed other than 1 the
values are others, which is how goldens that developers have not seen are made.
"""
import argparse
import hashlib
import json
import os
import re
import struct
import sys

import numpy as np

import quantized_formats as F

SIZE = {"F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "I8": 1, "U8": 1, "I32": 4, "I64": 8}

CONFIG = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "vocab_size": 520,
    "hidden_size": 256,
    "intermediate_size": 384,
    "moe_intermediate_size": 128,
    "num_hidden_layers": 3,
    "num_nextn_predict_layers": 1,
    "first_k_dense_replace": 1,
    "moe_layer_freq": 1,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "num_experts_per_tok": 4,
    "n_group": 4,
    "topk_group": 2,
    "norm_topk_prob": True,
    "routed_scaling_factor": 2.5,
    "scoring_func": "sigmoid",
    "topk_method": "noaux_tc",
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "q_lora_rank": 128,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "attention_bias": False,
    "attention_dropout": 0.0,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-06,
    "rope_theta": 10000,
    "rope_scaling": {"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096,
                     "beta_fast": 32, "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 1.0},
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "bos_token_id": 0,
    "eos_token_id": 1,
    "use_cache": True,
}

# ---- the model -----------------------------------------------------------------------------------


def shapes():
    c = CONFIG
    d, h = c["hidden_size"], c["num_attention_heads"]
    out = {"model.embed_tokens.weight": (c["vocab_size"], d), "model.norm.weight": (d,),
           "lm_head.weight": (c["vocab_size"], d)}
    for i in range(c["num_hidden_layers"] + c["num_nextn_predict_layers"]):
        p = f"model.layers.{i}."
        a = p + "self_attn."
        out[p + "input_layernorm.weight"] = out[p + "post_attention_layernorm.weight"] = (d,)
        out[a + "q_a_proj.weight"] = (c["q_lora_rank"], d)
        out[a + "q_a_layernorm.weight"] = (c["q_lora_rank"],)
        out[a + "q_b_proj.weight"] = (h * 192, c["q_lora_rank"])
        out[a + "kv_a_proj_with_mqa.weight"] = (576, d)
        out[a + "kv_a_layernorm.weight"] = (512,)
        out[a + "kv_b_proj.weight"] = (h * 256, 512)
        out[a + "o_proj.weight"] = (d, h * 128)
        blocks = [(p + "mlp.", c["intermediate_size"])]
        if i >= c["first_k_dense_replace"]:
            out[p + "mlp.gate.weight"] = (c["n_routed_experts"], d)
            out[p + "mlp.gate.e_score_correction_bias"] = (c["n_routed_experts"],)
            blocks = [(p + f"mlp.experts.{e}.", c["moe_intermediate_size"])
                      for e in range(c["n_routed_experts"])]
            blocks.append((p + "mlp.shared_experts.", c["moe_intermediate_size"]))
        for b, inner in blocks:
            out[b + "gate_proj.weight"] = out[b + "up_proj.weight"] = (inner, d)
            out[b + "down_proj.weight"] = (d, inner)
        if i >= c["num_hidden_layers"]:
            out[p + "enorm.weight"] = out[p + "hnorm.weight"] = (d,)
            out[p + "eh_proj.weight"] = (d, 2 * d)
            out[p + "shared_head.norm.weight"] = (d,)
            out[p + "shared_head.head.weight"] = (c["vocab_size"], d)
            out[p + "embed_tokens.weight"] = (c["vocab_size"], d)
    return out


def make_value(seed, name, shape):
    key = int.from_bytes(hashlib.sha256(f"{seed}:{name}".encode()).digest()[:16], "little")
    rng = np.random.Generator(np.random.Philox(key=key))
    x = rng.standard_normal(shape)
    if len(shape) == 1:
        return (0.3 * x if name.endswith("bias") else 1 + 0.1 * x).astype(np.float32)
    x *= shape[1] ** -0.5
    if name.endswith("mlp.gate.weight"):
        return (2 * x).astype(np.float32)
    if name.endswith("embed_tokens.weight"):
        return (16 * x).astype(np.float32)  # a residual that the layers change and do not replace
    if name.endswith(("o_proj.weight", "down_proj.weight")):
        x *= 0.5
    # rows and columns of unlike size, and a few outliers: a scale from the wrong place shows
    x *= np.exp(0.3 * rng.standard_normal((shape[0], 1)))
    x *= np.exp(0.2 * rng.standard_normal((1, shape[1])))
    x[rng.integers(0, shape[0], 4), rng.integers(0, shape[1], 4)] *= 4
    return x.astype(np.float32)


def base_model(seed):
    """name -> float32 values that bf16 holds (the router's bias: f32)"""
    out = {}
    copies = {"embed_tokens.weight": "model.embed_tokens.weight",
              "shared_head.head.weight": "lm_head.weight"}
    for name, shape in shapes().items():
        m = re.match(r"model\.layers\.\d+\.(.*)", name)
        source = copies.get(m.group(1), name) if m else name
        v = make_value(seed, source, shape)
        out[name] = v if name.endswith("bias") else F.bf16_value(F.bf16_bits(v))
    return out


def kind_of(name):
    """What a format's rule can tell apart; None: never quantized."""
    m = re.fullmatch(r"model\.layers\.(\d+)\.(self_attn|mlp)\.(.*)\.weight", name)
    if not m or not re.search(r"_proj(_with_mqa)?$", m.group(3)):
        return None
    if int(m.group(1)) >= CONFIG["num_hidden_layers"]:
        return "mtp"
    if m.group(2) == "self_attn":
        return "kv_b_proj" if m.group(3) == "kv_b_proj" else "self_attn"
    return {"experts": "experts", "shared_experts": "shared"}.get(m.group(3).split(".")[0], "dense")


# ---- formats: which modules, which writer, what the json says ------------------------------------

ALL = {"experts", "shared", "dense", "self_attn", "kv_b_proj"}


def ct_config(fmt, weights, inputs, ignore, **more):
    w = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel", "group_size": None,
         "block_structure": None, "dynamic": False, "actorder": None, "observer": "minmax",
         "observer_kwargs": {}}
    w.update(weights)
    group = {"targets": ["Linear"], "weights": w, "input_activations": inputs,
             "output_activations": None,
             "format": fmt}
    return {"quant_method": "compressed-tensors", "format": fmt,
            "quantization_status": "compressed",
            "config_groups": {"group_0": group}, "ignore": ignore, "kv_cache_scheme": None, **more}


TOKEN_INT8 = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "token",
             "dynamic": True}
TOKEN_FP8 = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "token",
             "dynamic": True}
EXPERTS_ONLY = ["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*",
                r"re:.*mlp\.(gate|up|gate_up|down)_proj.*"]
MTP_IGNORE = r"re:.*layers\.3\..*"


def permuted(w, name):
    key = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little")
    return np.random.Generator(np.random.Philox(key=key)).permutation(w.shape[1])


def table():
    awq = lambda g: {"quant_method": "awq", "bits": 4, "group_size": g, "zero_point": True,
                     "version": "gemm", "modules_to_not_convert": None}
    gptq = lambda **k: {"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True,
                        "desc_act": False, "lm_head": False, "checkpoint_format": "gptq", **k}
    int4 = {"num_bits": 4, "strategy": "group", "group_size": 128}
    return {
        "awq_g64": (ALL, lambda w, n: F.awq(w, 64), awq(64)),
        "awq_g128": (ALL, lambda w, n: F.awq(w, 128), awq(128)),
        "gptq": (ALL, lambda w, n: F.gptq(w, 128), gptq()),
        "gptq_v2_asym": (ALL, lambda w, n: F.gptq(w, 128, False, True),
                         gptq(sym=False, checkpoint_format="gptq_v2")),
        "gptq_desc_act": (ALL, lambda w, n: F.gptq(w, 128, True, False, permuted(w, n)),
                          gptq(desc_act=True)),
        "ct_w4a16": (ALL, lambda w, n: F.ct_int4(w, 128, True),
                     ct_config("pack-quantized", int4, None, ["lm_head"])),
        "ct_w4a16_g32": (ALL, lambda w, n: F.ct_int4(w, 32, True),
                         ct_config("pack-quantized", {**int4, "group_size": 32}, None,
                                   ["lm_head"])),
        "ct_w4a16_asym": (ALL, lambda w, n: F.ct_int4(w, 128, False),
                          ct_config("pack-quantized", {**int4, "symmetric": False}, None,
                                    ["lm_head"])),
        "ct_w4a16_experts": ({"experts"}, lambda w, n: F.ct_int4(w, 128, True),
                             ct_config("pack-quantized", int4, None, EXPERTS_ONLY)),
        "ct_w8a8": (ALL | {"mtp"}, lambda w, n: F.int8_channel(w),
                    ct_config("int-quantized", {}, TOKEN_INT8, ["lm_head"])),
        "ct_w8a8_bf16": (ALL - {"kv_b_proj"}, lambda w, n: F.int8_channel(w, scale_type="BF16"),
                         ct_config("int-quantized", {}, TOKEN_INT8, ["lm_head", "re:.*kv_b_proj"])),
        "ct_fp8_channel": (ALL, lambda w, n: F.fp8_channel(w),
                           ct_config("float-quantized", {"type": "float"}, TOKEN_FP8, ["lm_head"])),
        "ct_fp8_block": (ALL, lambda w, n: F.fp8_block(w, 128, "weight_scale", "BF16"),
                         ct_config("float-quantized", {"type": "float", "strategy": "block",
                                                       "block_structure": [128, 128]},
                                   {**TOKEN_FP8, "strategy": "group", "group_size": 128},
                                   ["lm_head"])),
        "ct_nvfp4": ({"experts"}, lambda w, n: F.nvfp4(w, True),
                     ct_config("nvfp4-pack-quantized",
                               {"num_bits": 4, "type": "float", "strategy": "tensor_group",
                                "group_size": 16},
                               {"num_bits": 4, "type": "float", "strategy": "tensor_group",
                                "group_size": 16, "symmetric": True, "dynamic": "local"},
                               EXPERTS_ONLY)),
        "ct_mxfp4": ({"experts"}, lambda w, n: F.mxfp4(w),
                     ct_config("mxfp4-pack-quantized",
                               {"num_bits": 4, "type": "float", "strategy": "group",
                                "group_size": 32,
                                "scale_dtype": "torch.uint8"}, None, EXPERTS_ONLY)),
        "modelopt_nvfp4": ({"experts", "shared", "dense"}, None, None),
        "block_int8": (ALL, lambda w, n: F.int8_block(w),
                       {"quant_method": "blockwise_int8", "activation_scheme": "dynamic",
                        "weight_block_size": [128, 128]}),
        "channel_int8": (ALL, lambda w, n: F.int8_channel(w), {"quant_method": "w8a8_int8"}),
        "modelslim_w8a8": (ALL - {"kv_b_proj"}, None, None),
        "w4afp8": (ALL | {"mtp"}, None,
                   {"quant_method": "w4afp8", "activation_scheme": "dynamic",
                    "weight_block_size": [128, 128]}),
        "fp8": (ALL | {"mtp"}, lambda w, n: F.fp8_block(w),
                {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
                 "weight_block_size": [128, 128]}),
        "bf16": (set(), None, None),
    }


def writer_of(fmt, writer, model):
    if fmt == "modelopt_nvfp4":  # gate and up share one global scale

        def nvfp4(w, name):
            other = re.sub("gate_proj|up_proj",
                           lambda m: "up_proj" if m[0] == "gate_proj" else "gate_proj", name)
            amax = max(np.abs(w).max(), np.abs(model[other]).max())
            return F.nvfp4(w, False, amax)

        return nvfp4
    if fmt == "modelslim_w8a8":  # attention static per tensor, all else dynamic per token
        return lambda w, name: (F.int8_static(w) if ".self_attn." in name
                                else F.int8_channel(w, offset=True))
    if fmt == "w4afp8":
        return lambda w, name: (F.w4afp8(w, 128) if kind_of(name) == "experts" else F.fp8_block(w))
    return writer


# ---- files ---------------------------------------------------------------------------------------


def save(path, tensors):
    """tensors: name -> (dtype, array). Offsets are those of the names in order, as they come."""
    header, at, blobs = {"__metadata__": {"format": "pt"}}, 0, []
    for name in sorted(tensors):
        dtype, a = tensors[name]
        raw = np.ascontiguousarray(a).tobytes()
        assert len(raw) == SIZE[dtype] * int(np.prod(np.shape(a))), name
        header[name] = {"dtype": dtype, "shape": list(np.shape(a)),
                        "data_offsets": [at, at + len(raw)]}
        blobs.append(raw)
        at += len(raw)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + b"".join(blobs))
    return at


def plain(name, v, dtype):
    if name.endswith("bias"):
        return ("F32", v)
    return ("F16", v.astype(np.float16)) if dtype == "F16" else ("BF16", F.bf16_bits(v))


def write_format(root, fmt, model):
    kinds, writer, quant = table()[fmt]
    writer = writer_of(fmt, writer, model)
    other = "F16" if fmt.startswith(("awq", "gptq")) else "BF16"
    # AutoAWQ's loader never sees the extra layer; config.json still counts it
    drop_mtp = fmt.startswith("awq")
    tensors, golden, description = {}, {}, {}
    for name, v in model.items():
        if drop_mtp and name.startswith("model.layers.3."):
            continue
        module = name[: -len(".weight")]
        if kind_of(name) not in kinds:
            tensors[name] = plain(name, v, other)
            description[name] = "FLOAT"
            continue
        parts, value = writer(v, name)
        for suffix, part in parts.items():
            tensors[f"{module}.{suffix}"] = part
            description[f"{module}.{suffix}"] = "W8A8" if "input_scale" in parts else "W8A8_DYNAMIC"
        golden[name] = ("F32", value)
    config = dict(CONFIG, torch_dtype="float16" if other == "F16" else "bfloat16")
    if quant:
        config["quantization_config"] = quant
    where = os.path.join(root, fmt)
    os.makedirs(where, exist_ok=True)
    if fmt == "modelopt_nvfp4":
        excluded = ["lm_head", "model.layers.3*"]
        excluded += [f"model.layers.{i}.self_attn*" for i in range(3)]
        put_json(where, "hf_quant_config.json",
                 {"producer": {"name": "modelopt", "version": "0.27.0"},
                  "quantization": {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8",
                                   "group_size": 16,
                                   "exclude_modules": excluded}})
    if fmt == "modelslim_w8a8":
        put_json(where, "quant_model_description.json",
                 {"model_quant_type": "W8A8_DYNAMIC", "version": "1.0.0",
                  **{n: k for n, k in description.items() if not n.startswith("model.layers.3.")}})
    put_json(where, "config.json", config)
    names = sorted(tensors)
    cut = len(names) * 2 // 3  # a module's tensors may lie in two shards, as in real checkpoints
    weight_map, total = {}, 0
    for i, part in enumerate((names[:cut], names[cut:])):
        shard = f"model-{i + 1:05}-of-00002.safetensors"
        total += save(os.path.join(where, shard), {n: tensors[n] for n in part})
        weight_map.update(dict.fromkeys(part, shard))
    if fmt == "modelopt_nvfp4":  # its exporter leaves what it added out of the index
        for n in names:
            if n.endswith(("_scale", "_scale_2")):
                del weight_map[n]
    put_json(where, "model.safetensors.index.json",
             {"metadata": {"total_size": total}, "weight_map": weight_map})
    os.makedirs(os.path.join(root, "golden"), exist_ok=True)
    save(os.path.join(root, "golden", fmt + ".safetensors"), golden)
    return len(golden), total


# ---- every format in one model -------------------------------------------------------------------

# Where a rank of two has half of 64 inputs, groups are 32 at most.
MIXED_DOWN = [lambda w: F.awq(w, 32), lambda w: F.ct_int4(w, 32, True), lambda w: F.nvfp4(w, True),
              lambda w: F.nvfp4(w, False), F.mxfp4, F.int8_block, F.fp8_block, F.int8_channel]
MIXED_UP = [lambda w: F.awq(w, 128), lambda w: F.gptq(w, 128), lambda w: F.gptq(w, 64, False),
            lambda w: F.ct_int4(w, 128, True), lambda w: F.ct_int4(w, 128, False),
            lambda w: F.w4afp8(w, 128), lambda w: F.int8_channel(w, scale_type="BF16"),
            lambda w: F.int8_channel(w, offset=True), F.int8_static, F.fp8_channel,
            lambda w: F.fp8_block(w, 128, "weight_scale", "BF16"), lambda w: F.nvfp4(w, False)]


def write_mixed(where, seed):
    """A model of one layer whose experts' matrices are each of another format; goldens beside."""
    CONFIG.update(vocab_size=64, hidden_size=128, num_hidden_layers=1, num_nextn_predict_layers=0,
                  first_k_dense_replace=0, num_attention_heads=2, num_key_value_heads=2,
                  moe_intermediate_size=64)
    tensors, golden = {}, {}
    writers = {"up_proj": iter(MIXED_UP[:8]), "gate_proj": iter(MIXED_UP[8:]),
               "down_proj": iter(MIXED_DOWN)}
    for name, v in base_model(seed).items():
        module = name[: -len(".weight")]
        write = next(writers[module.split(".")[-1]], None) if kind_of(name) == "experts" else None
        if "kv_a_proj" in name:  # 4.5 blocks of 128 rows
            write = lambda w: F.fp8_block(w, 128, "weight_scale", "BF16")
        if not write and not kind_of(name):
            tensors[name] = plain(name, v, "BF16")
            continue
        parts, value = write(v) if write else F.awq(v, v.shape[1])
        tensors.update({f"{module}.{suffix}": part for suffix, part in parts.items()})
        if write:
            golden[name] = ("F32", value)
    os.makedirs(where, exist_ok=True)
    put_json(where, "config.json", CONFIG)
    save(os.path.join(where, "model.safetensors"), tensors)
    save(os.path.join(where, "golden.bin"), golden)


def put_json(where, name, value):
    with open(os.path.join(where, name), "w") as f:
        json.dump(value, f, indent=2)
        f.write("\n")


def main():
    p = argparse.ArgumentParser(description=__doc__,
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("out")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--formats", default=",".join(table()))
    p.add_argument("--mixed", action="store_true",
                   help="OUT becomes one model with a matrix of each format, and its goldens")
    a = p.parse_args()
    if a.mixed:
        write_mixed(a.out, a.seed)
        return
    model = base_model(a.seed)
    for fmt in a.formats.split(","):
        n, size = write_format(a.out, fmt, model)
        print(f"{fmt:18} {n:4} matrices quantized, {size / 1e6:.2f} MB")


if __name__ == "__main__":
    sys.exit(main())
