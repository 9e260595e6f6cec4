#!/usr/bin/env python3
"""make_wide_model - a random model of real widths, and its logits by the transformers library

    tools/make_wide_model.py OUT_DIR [--device cuda|cpu] [--layers N] [--contexts 1,63,64]

OUT_DIR gets config.json, model.safetensors and golden.safetensors for tests/golden/test_wide.c. The
model has DeepSeek-V3.2's head widths, 16 heads, an indexer of 64 heads that selects 2048 rows, 256
experts in 8 groups, and few narrow layers. Linear weights are FP8 blocks with power-of-two scales;
the library computes in float32 on the values that they stand for.

Needs torch, safetensors and a transformers release with DeepseekV32ForCausalLM.
"""

import argparse
import json
import os
import sys

import torch
from safetensors.torch import save_file

KEPT_POSITIONS = 16
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
    "q_lora_rank": 512,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "attention_bias": False,
    "attention_dropout": 0.0,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000,
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


class Maker:
    """Tensors as the checkpoint stores them, and the float32 values that they stand for."""

    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self.stored: dict[str, torch.Tensor] = {}
        self.values: dict[str, torch.Tensor] = {}

    def normal(self, *shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=self.generator)

    def wide(self, name: str, value: torch.Tensor, dtype: torch.dtype = torch.bfloat16) -> None:
        self.stored[name] = value.to(dtype)
        self.values[name] = self.stored[name].float()

    def norm(self, name: str, n: int) -> None:
        self.wide(name, 1 + 0.1 * self.normal(n))

    def linear(self, name: str, rows: int, cols: int) -> None:
        """FP8 blocks: scale = largest / 448 rounded up to a power of two."""
        weight = self.normal(rows, cols) / cols**0.5
        row_pad, col_pad = -rows % BLOCK, -cols % BLOCK
        padded = torch.nn.functional.pad(weight, (0, col_pad, 0, row_pad))
        blocks = padded.view((rows + row_pad) // BLOCK, BLOCK, (cols + col_pad) // BLOCK, BLOCK)
        largest = blocks.abs().amax(dim=(1, 3)).clamp(min=1e-12)
        scale = torch.exp2(torch.ceil(torch.log2(largest / 448)))
        spread = scale.repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1)[:rows, :cols]
        codes = (weight / spread).to(torch.float8_e4m3fn)
        self.stored[name] = codes
        self.stored[name + "_scale_inv"] = scale.float()
        self.values[name] = codes.float() * spread


def make_attention(m: Maker, prefix: str, c: dict) -> None:
    hidden, lora, heads = c["hidden_size"], c["q_lora_rank"], c["num_attention_heads"]
    m.linear(prefix + "q_a_proj.weight", lora, hidden)
    m.norm(prefix + "q_a_layernorm.weight", lora)
    m.linear(prefix + "q_b_proj.weight", heads * 192, lora)
    m.linear(prefix + "kv_a_proj_with_mqa.weight", 576, hidden)
    m.norm(prefix + "kv_a_layernorm.weight", 512)
    m.linear(prefix + "kv_b_proj.weight", heads * 256, 512)
    m.linear(prefix + "o_proj.weight", hidden, heads * 128)
    index = prefix + "indexer."
    m.linear(index + "wq_b.weight", c["index_n_heads"] * 128, lora)
    m.linear(index + "wk.weight", 128, hidden)
    m.norm(index + "k_norm.weight", 128)
    m.wide(index + "k_norm.bias", 0.1 * m.normal(128))
    m.wide(index + "weights_proj.weight", m.normal(c["index_n_heads"], hidden) / hidden**0.5)


def make_ffn(m: Maker, prefix: str, hidden: int, inner: int) -> None:
    m.linear(prefix + "gate_proj.weight", inner, hidden)
    m.linear(prefix + "up_proj.weight", inner, hidden)
    m.linear(prefix + "down_proj.weight", hidden, inner)


def make_weights(c: dict, seed: int) -> Maker:
    m = Maker(seed)
    hidden, vocab = c["hidden_size"], c["vocab_size"]
    m.wide("model.embed_tokens.weight", m.normal(vocab, hidden))
    for i in range(c["num_hidden_layers"]):
        layer = f"model.layers.{i}."
        m.norm(layer + "input_layernorm.weight", hidden)
        make_attention(m, layer + "self_attn.", c)
        m.norm(layer + "post_attention_layernorm.weight", hidden)
        if i < c["first_k_dense_replace"]:
            make_ffn(m, layer + "mlp.", hidden, c["intermediate_size"])
            continue
        n_expert = c["n_routed_experts"]
        m.wide(layer + "mlp.gate.weight", m.normal(n_expert, hidden) / hidden**0.5)
        m.wide(layer + "mlp.gate.e_score_correction_bias", 0.05 * m.normal(n_expert), torch.float32)
        make_ffn(m, layer + "mlp.shared_experts.", hidden, c["moe_intermediate_size"])
        for e in range(n_expert):
            make_ffn(m, layer + f"mlp.experts.{e}.", hidden, c["moe_intermediate_size"])
    m.norm("model.norm.weight", hidden)
    m.wide("lm_head.weight", m.normal(vocab, hidden) / hidden**0.5)
    return m


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
    try:
        from transformers import DeepseekV32Config, DeepseekV32ForCausalLM
    except ImportError:
        import transformers
        sys.exit(f"make_wide_model: transformers {transformers.__version__} has no "
                 "DeepseekV32ForCausalLM; needed is a release that has it")
    plain = {k: v for k, v in c.items()
             if k not in ("quantization_config", "architectures", "model_type", "torch_dtype")}
    plain["rope_parameters"] = {"rope_type": "default", "rope_theta": plain.pop("rope_theta")}
    config = DeepseekV32Config(**plain)
    config._attn_implementation = "eager"
    model = DeepseekV32ForCausalLM(config).float().eval()
    state = model.state_dict()
    for name, tensor in state.items():
        value = value_of(name, values, c["n_routed_experts"])
        if value.shape != tensor.shape:
            sys.exit(f"make_wide_model: {name} is {tuple(tensor.shape)} in the library and "
                     f"{tuple(value.shape)} here")
        tensor.copy_(value)
    return model.to(device)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("out")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--layers", type=int, default=CONFIG["num_hidden_layers"])
    parser.add_argument("--contexts", default="1,63,64,65,2047,2048,2049,8192")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False

    config = CONFIG | {"num_hidden_layers": args.layers}
    os.makedirs(args.out, exist_ok=True)
    with open(os.path.join(args.out, "config.json"), "w", encoding="utf-8") as f:
        json.dump(config, f, indent=2)
    with torch.no_grad():
        made = make_weights(config, args.seed)
        save_file(made.stored, os.path.join(args.out, "model.safetensors"))
        model = open_library_model(config, made.values, args.device)
        golden = {}
        for i, n in enumerate(int(n) for n in args.contexts.split(",")):
            ids = torch.randint(0, config["vocab_size"], (1, n), generator=made.generator)
            logits = model(ids.to(args.device), use_cache=False).logits[0, -KEPT_POSITIONS:]
            golden[f"{i}.ids"] = ids[0].to(torch.int32)
            golden[f"{i}.logits"] = logits.float().cpu().contiguous()
            print(f"text {i}: {n} tokens, logits of {len(logits)} positions, "
                  f"standard deviation {logits.std().item():.3f}", flush=True)
        save_file(golden, os.path.join(args.out, "golden.safetensors"))


if __name__ == "__main__":
    main()
