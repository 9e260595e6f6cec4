#!/usr/bin/env python3
"""make_wide_model - a model of real widths, and its logits by the transformers library

    tools/make_wide_model.py OUT_DIR [--small | --kimi] [--device cuda|cpu] [--contexts 1,63,64] [--roundings f32,fp8_fp8]

OUT_DIR gets config.json, model.safetensors and golden_f32, golden_bf16, golden_fp8 and
golden_fp8_fp8.safetensors for tests/golden/test_wide.c. The model has DeepSeek-V3.2's head widths and
YaRN, 16 heads, an indexer of 64 heads that selects 2048 rows, 256 experts in 8 groups, and few narrow
layers. Linear weights are FP8 blocks with power-of-two scales; the library computes in float32 on the
values that they stand for: with the latent cache as it is, with it rounded as each of fathom's caches
rounds it, and last with the inputs of FP8 weights rounded to FP8 as well, as fathom's products of FP8
by FP8 round them. What the library says in bfloat16 is printed, not kept.

--kimi makes the model of tests/data/kimi: Kimi K2's architecture in the small sizes, 384 experts in one
group and no indexer; the library's class is DeepseekV3ForCausalLM.

Needs numpy, torch, safetensors and a transformers release with DeepseekV32ForCausalLM.
"""

import argparse
import contextlib
import json
import os
import sys

import numpy as np
import torch
import transformers
from safetensors.torch import save_file
from torch.overrides import TorchFunctionMode
from transformers import DynamicCache
from transformers.initialization import no_init_weights

from transformers.models.deepseek_v3 import modeling_deepseek_v3

try:
    from transformers.models.deepseek_v32 import modeling_deepseek_v32 as modeling
except ImportError:
    sys.exit(f"make_wide_model: transformers {transformers.__version__} has no deepseek_v32; needed "
             "is a release that has it")

KEPT_POSITIONS = 16
CHUNK = 512
BLOCK = 128

CONFIG = {
    "architectures": ["DeepseekV32ForCausalLM"],
    "model_type": "deepseek_v32",
    "vocab_size": 4096,
    "hidden_size": 1024,
    "num_hidden_layers": 3,
    "num_nextn_predict_layers": 0,
    "first_k_dense_replace": 1,
    "moe_layer_freq": 1,
    "intermediate_size": 2048,
    "moe_intermediate_size": 256,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "n_group": 8,
    "topk_group": 4,
    "routed_scaling_factor": 2.5,
    "scoring_func": "sigmoid",
    "topk_method": "noaux_tc",
    "norm_topk_prob": True,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "attention_bias": False,
    "attention_dropout": 0.0,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000,
    "rope_scaling": {
        "type": "yarn",
        "factor": 40,
        "original_max_position_embeddings": 4096,
        "beta_fast": 32,
        "beta_slow": 1,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
    },
    "max_position_embeddings": 16384,
    "index_n_heads": 64,
    "index_head_dim": 128,
    "index_topk": 2048,
    "tie_word_embeddings": False,
    "initializer_range": 0.02,
    "torch_dtype": "bfloat16",
    "bos_token_id": 0,
    "eos_token_id": 1,
    "use_cache": True,
    "quantization_config": {
        "activation_scheme": "dynamic",
        "fmt": "e4m3",
        "quant_method": "fp8",
        "scale_fmt": "ue8m0",
        "weight_block_size": [BLOCK, BLOCK],
    },
}

# What differs in the model that tests/data/wide describes.
SMALL = {
    "vocab_size": 512,
    "hidden_size": 256,
    "num_hidden_layers": 2,
    "intermediate_size": 256,
    "moe_intermediate_size": 128,
    "max_position_embeddings": 256,
    "index_topk": 48,
}

# What differs from SMALL in the model that tests/data/kimi describes.
KIMI = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "kimi_k2",
    "n_routed_experts": 384,
    "n_group": 1,
    "topk_group": 1,
    "routed_scaling_factor": 2.827,
    "rope_theta": 50000.0,
    "rope_scaling": CONFIG["rope_scaling"] | {"factor": 64.0, "beta_fast": 1.0, "beta_slow": 1.0},
    "rms_norm_eps": 1e-5,
}

GOLDEN_RATIO = 0x9E3779B97F4A7C15


def random_bytes(key: str, n: int) -> np.ndarray:
    """n bytes that depend on `key` alone: splitmix64 from the FNV-1a hash of the key."""
    seed = 0xCBF29CE484222325
    for byte in key.encode():
        seed = (seed ^ byte) * 0x100000001B3 % 2**64
    words = np.arange(1, (n + 7) // 8 + 1, dtype=np.uint64)
    words *= np.uint64(GOLDEN_RATIO)
    words += np.uint64(seed)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        words ^= words >> np.uint64(shift)
        words *= np.uint64(factor)
    words ^= words >> np.uint64(31)
    return words.view(np.uint8)[:n]


def half_log2(cols: int) -> int:
    """The smallest e with 4^e >= cols: 2^-e keeps a product's size over a row of cols."""
    return (cols.bit_length() + (cols & (cols - 1) != 0)) // 2


class Maker:
    """Tensors as the checkpoint stores them, and the float32 values that they stand for. All are
    functions of the tensor's name; tests/golden/wide_model.c makes the same bytes."""

    def __init__(self) -> None:
        self.stored: dict[str, torch.Tensor] = {}
        self.values: dict[str, torch.Tensor] = {}

    def plain(self, name: str, shape: tuple[int, ...], exponent: int, shift: int = 0,
              centre: float = 0, dtype: torch.dtype = torch.bfloat16) -> None:
        """centre + k * 2^exponent, k = a signed byte >> shift; exact in bfloat16."""
        k = random_bytes(name, int(np.prod(shape))).view(np.int8) >> np.int8(shift)
        value = torch.from_numpy(k.astype(np.float32)).view(shape) * 2.0**exponent + centre
        self.stored[name] = value.to(dtype)
        self.values[name] = value
        assert torch.equal(self.stored[name].float(), value)

    def norm(self, name: str, n: int) -> None:
        self.plain(name, (n,), -6, shift=4, centre=1)

    def linear(self, name: str, rows: int, cols: int) -> None:
        """Codes of four binades and either sign, 0.5 to 7.5; blocks of two different scales."""
        raw = random_bytes(name, rows * cols)
        codes = torch.from_numpy((raw & 0x80) | (0x30 + (raw & 0x1F))).view(rows, cols)
        row_blocks, col_blocks = -(-rows // BLOCK), -(-cols // BLOCK)
        halved = random_bytes(name + "_scale_inv", row_blocks * col_blocks) & 1
        scale = torch.from_numpy(halved.astype(np.float32)).view(row_blocks, col_blocks)
        scale = torch.exp2(-1 - half_log2(cols) - scale)
        self.stored[name] = codes.view(torch.float8_e4m3fn)
        self.stored[name + "_scale_inv"] = scale
        spread = scale.repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1)[:rows, :cols]
        self.values[name] = self.stored[name].float() * spread


def make_attention(m: Maker, prefix: str, c: dict) -> None:
    hidden, lora, heads = c["hidden_size"], c["q_lora_rank"], c["num_attention_heads"]
    m.linear(prefix + "q_a_proj.weight", lora, hidden)
    m.norm(prefix + "q_a_layernorm.weight", lora)
    m.linear(prefix + "q_b_proj.weight", heads * 192, lora)
    m.linear(prefix + "kv_a_proj_with_mqa.weight", 576, hidden)
    m.norm(prefix + "kv_a_layernorm.weight", 512)
    m.linear(prefix + "kv_b_proj.weight", heads * 256, 512)
    m.linear(prefix + "o_proj.weight", hidden, heads * 128)
    if "index_topk" not in c:
        return
    index = prefix + "indexer."
    m.linear(index + "wq_b.weight", c["index_n_heads"] * 128, lora)
    m.linear(index + "wk.weight", 128, hidden)
    m.norm(index + "k_norm.weight", 128)
    m.plain(index + "k_norm.bias", (128,), -10)
    m.plain(index + "weights_proj.weight", (c["index_n_heads"], hidden), -6 - half_log2(hidden))


def make_ffn(m: Maker, prefix: str, hidden: int, inner: int) -> None:
    m.linear(prefix + "gate_proj.weight", inner, hidden)
    m.linear(prefix + "up_proj.weight", inner, hidden)
    m.linear(prefix + "down_proj.weight", hidden, inner)


def make_weights(c: dict) -> Maker:
    m = Maker()
    hidden, vocab = c["hidden_size"], c["vocab_size"]
    m.plain("model.embed_tokens.weight", (vocab, hidden), -4)
    for i in range(c["num_hidden_layers"]):
        layer = f"model.layers.{i}."
        m.norm(layer + "input_layernorm.weight", hidden)
        make_attention(m, layer + "self_attn.", c)
        m.norm(layer + "post_attention_layernorm.weight", hidden)
        if i < c["first_k_dense_replace"]:
            make_ffn(m, layer + "mlp.", hidden, c["intermediate_size"])
            continue
        n_expert = c["n_routed_experts"]
        m.plain(layer + "mlp.gate.weight", (n_expert, hidden), -6 - half_log2(hidden))
        m.plain(layer + "mlp.gate.e_score_correction_bias", (n_expert,), -11, dtype=torch.float32)
        make_ffn(m, layer + "mlp.shared_experts.", hidden, c["moe_intermediate_size"])
        for e in range(n_expert):
            make_ffn(m, layer + f"mlp.experts.{e}.", hidden, c["moe_intermediate_size"])
    m.norm("model.norm.weight", hidden)
    m.plain("lm_head.weight", (vocab, hidden), -6 - half_log2(hidden))
    return m


def keep_header(out: str) -> None:
    """The header alone: wide_model.c makes the rest."""
    with open(os.path.join(out, "model.safetensors"), "rb") as f:
        header = f.read(int.from_bytes(f.read(8), "little"))
    with open(os.path.join(out, "model.header.json"), "wb") as f:
        f.write(header)


def value_of(name: str, values: dict[str, torch.Tensor], n_expert: int) -> torch.Tensor:
    """What the library calls `name`; some releases hold all experts of a layer in one tensor."""
    if name in values:
        return values[name]
    head, _, last = name.rpartition(".")
    if last == "gate_up_proj":
        return torch.stack([
            torch.cat([values[f"{head}.{e}.gate_proj.weight"], values[f"{head}.{e}.up_proj.weight"]])
            for e in range(n_expert)
        ])
    if last == "down_proj":
        return torch.stack([values[f"{head}.{e}.down_proj.weight"] for e in range(n_expert)])
    sys.exit(f"make_wide_model: the library's {name} has no counterpart in a checkpoint")


def open_library_model(c: dict, values: dict[str, torch.Tensor], device: str) -> torch.nn.Module:
    plain = {k: v for k, v in c.items()
             if k not in ("quantization_config", "architectures", "model_type", "torch_dtype")}
    rope = plain.pop("rope_scaling") | {"rope_theta": float(plain.pop("rope_theta"))}
    rope["rope_type"] = rope.pop("type")
    is_v3 = c["architectures"] == KIMI["architectures"]
    kinds = (modeling_deepseek_v3.DeepseekV3Config, modeling_deepseek_v3.DeepseekV3ForCausalLM)
    if not is_v3:
        kinds = (modeling.DeepseekV32Config, modeling.DeepseekV32ForCausalLM)
    config = kinds[0](**plain, rope_parameters=rope)
    config._attn_implementation = "eager"
    config._experts_implementation = "eager"
    with torch.device(device), no_init_weights():
        model = kinds[1](config).float().eval()
    for name, tensor in model.state_dict().items():
        value = value_of(name, values, c["n_routed_experts"])
        if value.shape != tensor.shape:
            sys.exit(f"make_wide_model: {name} is {tuple(tensor.shape)} in the library and "
                     f"{tuple(value.shape)} here")
        tensor.copy_(value)
    return model


def as_cached(rows: torch.Tensor, cache: str) -> torch.Tensor:
    """What a cache gives back for rows of the latent: 128 values share a power of two."""
    if cache == "f32":
        return rows
    if cache == "bf16":
        return rows.bfloat16().float()
    groups = rows.unflatten(-1, (-1, BLOCK))
    largest = groups.abs().amax(-1, keepdim=True).clamp(min=1e-4)
    mantissa, exponent = torch.frexp(largest / 448)
    scale = torch.ldexp(torch.ones_like(largest), exponent - (mantissa == 0.5).int())
    return ((groups / scale).to(torch.float8_e4m3fn).float() * scale).flatten(-2)


def hadamard(x: torch.Tensor) -> torch.Tensor:
    """The transform of the last axis, which is its own inverse."""
    n = x.shape[-1]
    for half in (2**i for i in range(n.bit_length() - 1)):
        left, right = x.unflatten(-1, (-1, 2, half)).unbind(-2)
        x = torch.stack([left + right, left - right], -2).flatten(-3)
    return x * n**-0.5


class RoundedIndex(TorchFunctionMode):
    """Inside the indexer: queries and keys are rounded to FP8 after a Hadamard transform where they
    meet, which is the first product of matrices."""

    met = False

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is torch.matmul and not self.met:
            self.met = True
            with torch._C.DisableTorchFunction():
                query, key = args[0], args[1].transpose(-1, -2)
                query, key = (hadamard(as_cached(hadamard(x), "fp8")) for x in (query, key))
                args = query, key.transpose(-1, -2)
        return func(*args, **(kwargs or {}))


class RoundedInputs(TorchFunctionMode):
    """Products with FP8 weights take inputs of which 128 values share a power of two; kv_b works on
    the attention's side, the router takes float32, what else has bfloat16 weights takes bfloat16."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.kinds = {}
        for name, weight in model.named_parameters():
            kind = "fp8"
            if "kv_b_proj" in name or name.endswith("mlp.gate.weight"):
                kind = "f32"
            elif "weights_proj" in name or "lm_head" in name:
                kind = "bf16"
            self.kinds[weight.untyped_storage().data_ptr()] = kind

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is torch.nn.functional.linear:
            rows, weight, *rest = args
            kind = self.kinds[weight.untyped_storage().data_ptr()]
            with torch._C.DisableTorchFunction():
                args = as_cached(rows, kind), weight, *rest
        return func(*args, **(kwargs or {}))


class Rounded:
    """While entered, the library reads latents, rotary keys and index keys as a cache of this type
    holds them; "CACHE_fp8" rounds the inputs of products too."""

    def __init__(self, model: torch.nn.Module, rounding: str) -> None:
        self.attentions = [layer.self_attn for layer in model.model.layers]
        self.cache, _, inputs = rounding.partition("_")
        self.inputs = RoundedInputs(model) if inputs else contextlib.nullcontext()
        self.rotate = modeling.apply_rotary_pos_emb_interleave
        self.select = modeling.DeepseekV32Indexer.forward

    def __enter__(self) -> None:
        def rotate(*args, **kwargs):
            query, key = self.rotate(*args, **kwargs)
            return query, key.bfloat16().float()

        def select(*args, **kwargs):
            with RoundedIndex():
                return self.select(*args, **kwargs)

        self.hooks = [attention.kv_a_layernorm.register_forward_hook(
            lambda module, args, out: as_cached(out, self.cache)) for attention in self.attentions]
        self.inputs.__enter__()
        if self.cache != "f32":
            modeling.apply_rotary_pos_emb_interleave = rotate
            modeling.DeepseekV32Indexer.forward = select

    def __exit__(self, *exc: object) -> None:
        self.inputs.__exit__(*exc)
        modeling.apply_rotary_pos_emb_interleave = self.rotate
        modeling.DeepseekV32Indexer.forward = self.select
        for hook in self.hooks:
            hook.remove()


def logits_of(model: torch.nn.Module, ids: torch.Tensor) -> torch.Tensor:
    """Logits of the last positions, float32. In chunks: the library holds the scores of every
    index head for all rows of a step."""
    past = DynamicCache(config=model.config)
    kept = []
    for chunk in ids.to(model.device).split(CHUNK, dim=1):
        kept.append(model(chunk, past_key_values=past, use_cache=True,
                          logits_to_keep=KEPT_POSITIONS).logits[0].float().cpu())
    return torch.cat(kept)[-min(KEPT_POSITIONS, ids.shape[1]):].contiguous()


def error_of(got: torch.Tensor, want: torch.Tensor) -> str:
    """Relative L2 of all positions, and of the one in the middle."""
    per_position = (got - want).norm(dim=1) / want.norm(dim=1)
    total = ((got - want).norm() / want.norm()).item()
    return f"{total:.1e} (median position {per_position.median().item():.1e})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("out")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--small", action="store_true", help="the model of tests/data/wide")
    parser.add_argument("--kimi", action="store_true", help="the model of tests/data/kimi")
    parser.add_argument("--contexts", help="tokens of each text, with commas between")
    parser.add_argument("--roundings", default="f32,bf16,fp8,fp8_fp8",
                        help="f32 and what to compare with it: a cache's type, or CACHE_fp8")
    args = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    config = CONFIG | SMALL if args.small or args.kimi else CONFIG
    if args.kimi:
        config = {k: v for k, v in config.items() if not k.startswith("index_")} | KIMI
        args.small, args.roundings = True, "f32"
    contexts = args.contexts or ("1,47,48,49,65" if args.small else "1,63,64,65,2047,2048,2049,8192")
    print(f"torch {torch.__version__}, transformers {transformers.__version__}, {args.device}")

    os.makedirs(args.out, exist_ok=True)
    with open(os.path.join(args.out, "config.json"), "w", encoding="utf-8") as f:
        json.dump(config, f, indent=2)
        f.write("\n")
    made = make_weights(config)
    save_file(made.stored, os.path.join(args.out, "model.safetensors"))
    if args.small:
        keep_header(args.out)
    model = open_library_model(config, made.values, args.device)
    golden = {rounding: {} for rounding in args.roundings.split(",")}
    for i, n in enumerate(int(n) for n in contexts.split(",")):
        words = random_bytes(f"text {i}", 4 * n).view(np.uint32) % config["vocab_size"]
        ids = torch.from_numpy(words.astype(np.int64))[None]
        for rounding, tensors in golden.items():
            tensors[f"{i}.ids"] = ids[0].to(torch.int32)
            with Rounded(model, rounding):
                tensors[f"{i}.logits"] = logits_of(model, ids)
            error = error_of(tensors[f"{i}.logits"], golden["f32"][f"{i}.logits"])
            print(f"text {i}, {n} tokens, {rounding}: off float32 by {error}", flush=True)
            save_file(tensors, os.path.join(args.out, f"golden_{rounding}.safetensors"))
    model.bfloat16()
    for i, n in enumerate(int(n) for n in contexts.split(",")):
        want = golden["f32"][f"{i}.logits"]
        got = logits_of(model, golden["f32"][f"{i}.ids"].long()[None])
        print(f"text {i}, {n} tokens, the library in bfloat16: {error_of(got, want)}; "
              f"standard deviation {want.std().item():.3f}", flush=True)


if __name__ == "__main__":
    with torch.no_grad():
        main()
