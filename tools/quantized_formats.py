"""quantized_formats - quantize one matrix [out][in] and lay it out as each checkpoint format does.

NumPy only. Every writer returns (tensors, value): the tensors of that module by suffix, as
(safetensors dtype name, array), and what they mean as float32 [out][in], computed from the codes
and from the scales AS STORED (after their rounding to f16, bf16 or e4m3). That value is the golden.
"""
import numpy as np

# ---- number formats --------------------------------------------------------------------------


def bf16_bits(x):
    u = np.ascontiguousarray(x, np.float32).view(np.uint32).astype(np.uint64)
    return ((u + 0x7FFF + ((u >> 16) & 1)) >> 16).astype(np.uint16)


def bf16_value(bits):
    return (np.asarray(bits, np.uint16).astype(np.uint32) << 16).view(np.float32)


def _e4m3_table():
    t = np.zeros(256, np.float32)
    for c in range(256):
        e, m = (c >> 3) & 15, c & 7
        v = m / 8 * 2.0**-6 if e == 0 else (1 + m / 8) * 2.0 ** (e - 7)
        t[c] = np.nan if c & 0x7F == 0x7F else (-v if c & 0x80 else v)
    return t


E4M3 = _e4m3_table()
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)


def _nearest_even(x, grid):
    """Index of the nearest of the ascending grid, ties to the even index."""
    x = np.clip(x, grid[0], grid[-1])
    hi = np.clip(np.searchsorted(grid, x), 1, len(grid) - 1)
    lo = hi - 1
    d = (x - grid[lo]) - (grid[hi] - x)
    return np.where(d < 0, lo, np.where(d > 0, hi, np.where(lo % 2 == 0, lo, hi)))


def e4m3_code(x):
    """Saturating, round to nearest even. The positive codes 0 .. 126 ascend."""
    x = np.asarray(x, np.float64)
    c = _nearest_even(np.abs(x), E4M3[:127].astype(np.float64)).astype(np.uint8)
    return np.where(np.signbit(x), c | 0x80, c).astype(np.uint8)


def e2m1_code(x):
    x = np.asarray(x, np.float64)
    c = _nearest_even(np.abs(x), E2M1.astype(np.float64)).astype(np.uint8)
    return np.where(np.signbit(x), c | 8, c).astype(np.uint8)


def e2m1_value(code):
    return np.where(code & 8, -E2M1[code & 7], E2M1[code & 7]).astype(np.float32)


# ---- 4 bits in groups of inputs --------------------------------------------------------------


def _groups(w, group):
    assert w.shape[1] % group == 0, "the group divides the inputs in every format written here"
    return w.reshape(w.shape[0], -1, group).astype(np.float32)


def int4_codes(w, group, symmetric, scale_type):
    """(codes 0..15 [out][in], zeros 0..15 [out][group], scales as stored, scales' values)"""
    g = _groups(w, group)
    if symmetric:
        scale = np.abs(g).max(2) / 7.5
        zero = np.full(scale.shape, 8, np.int32)
    else:
        low, high = np.minimum(g.min(2), 0), np.maximum(g.max(2), 0)
        scale = (high - low) / 15
        zero = None
    scale = np.maximum(scale, 1e-6)
    if scale_type == "F16":
        stored = scale.astype(np.float16)
        value = stored.astype(np.float32)
    else:
        stored = bf16_bits(scale)
        value = bf16_value(stored)
    if zero is None:
        zero = np.clip(np.rint(-low / value), 0, 15).astype(np.int32)
    code = np.clip(np.rint(g / value[:, :, None]) + zero[:, :, None], 0, 15).astype(np.uint8)
    return code.reshape(w.shape), zero, stored, value


def int4_value(code, zero, scale):
    c = code.reshape(code.shape[0], zero.shape[1], -1).astype(np.float32)
    return ((c - zero[:, :, None]) * scale[:, :, None]).reshape(code.shape).astype(np.float32)


def nibbles(v, axis, order=range(8)):
    """Eight values along an axis to an int32: value order[i] of each eight in bits 4i .. 4i+3."""
    v = np.moveaxis(np.asarray(v, np.uint32), axis, -1)
    v = v.reshape(*v.shape[:-1], -1, 8)
    word = np.zeros(v.shape[:-1], np.uint32)
    for i, k in enumerate(order):
        word |= v[..., k] << np.uint32(4 * i)
    return np.ascontiguousarray(np.moveaxis(word, -1, axis)).view(np.int32)


AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


def awq(w, group):
    code, zero, stored, scale = int4_codes(w, group, False, "F16")
    return {
        "qweight": ("I32", nibbles(code.T, 1, AWQ_ORDER)),
        "qzeros": ("I32", nibbles(zero.T, 1, AWQ_ORDER)),
        "scales": ("F16", np.ascontiguousarray(stored.T)),
    }, int4_value(code, zero, scale)


def gptq(w, group, symmetric=True, v2=False, order=None):
    """order: a permutation of the inputs (desc_act); group j holds order[j * group ..]."""
    n_in = w.shape[1]
    order = np.arange(n_in) if order is None else order
    code, zero, stored, scale = int4_codes(w[:, order], group, symmetric, "F16")
    value = np.empty_like(w, dtype=np.float32)
    value[:, order] = int4_value(code, zero, scale)
    plain = np.empty_like(code)
    plain[:, order] = code
    g_idx = np.empty(n_in, np.int32)
    g_idx[order] = np.arange(n_in, dtype=np.int32) // group
    kept = zero if v2 else (zero - 1) & 15  # version 1 stores the zero less one; 0 wraps to 15
    if not v2:
        value_zero = ((kept & 15) + 1).astype(np.int32)  # what readers make of it: 1 .. 16
        value[:, order] = int4_value(code, value_zero, scale)
    return {
        "qweight": ("I32", nibbles(plain.T, 0)),
        "qzeros": ("I32", nibbles(kept.T, 1)),
        "scales": ("F16", np.ascontiguousarray(stored.T)),
        "g_idx": ("I32", g_idx),
    }, value


def ct_int4(w, group, symmetric):
    code, zero, stored, scale = int4_codes(w, group, symmetric, "BF16")
    out = {
        "weight_packed": ("I32", nibbles(code, 1)),
        "weight_scale": ("BF16", stored),
        "weight_shape": ("I64", np.array(w.shape, np.int64)),
    }
    if not symmetric:
        pad = -w.shape[0] % 8  # rows past the end pack as 0
        out["weight_zero_point"] = ("I32", nibbles(np.pad(zero, ((0, pad), (0, 0))), 0))
    return out, int4_value(code, zero, scale)


def w4afp8(w, group):
    """Two's-complement nibbles, even input low; scale f32 [out][in / group]."""
    g = _groups(w, group)
    scale = np.maximum(np.abs(g).max(2) / 7, 1e-6).astype(np.float32)
    q = np.clip(np.rint(g / scale[:, :, None]), -8, 7).astype(np.int32)
    value = (q * scale[:, :, None]).reshape(w.shape).astype(np.float32)
    q = (q.reshape(w.shape) & 15).astype(np.uint8)
    return {
        "weight": ("I8", (q[:, 0::2] | q[:, 1::2] << 4).view(np.int8)),
        "weight_scale_inv": ("F32", scale),
        "input_scale": ("F32", np.ones(1, np.float32)),
    }, value


# ---- 8 bits ------------------------------------------------------------------------------------


def int8_channel(w, suffix="weight_scale", scale_type="F32", offset=False):
    scale = np.maximum(np.abs(w).max(1, keepdims=True) / 127.0, 1e-8).astype(np.float32)
    stored = bf16_bits(scale) if scale_type == "BF16" else scale
    scale = bf16_value(stored) if scale_type == "BF16" else scale
    q = np.clip(np.rint(w / scale), -128, 127).astype(np.int8)
    out = {"weight": ("I8", q), suffix: (scale_type, stored)}
    if offset:
        out["weight_offset"] = (scale_type, np.zeros_like(stored))
    return out, (q.astype(np.float32) * scale).astype(np.float32)


def int8_static(w, input_scale=0.05, input_offset=-3):
    """ModelSlim "W8A8": y = (clamp(rint(x / input_scale) + input_offset) . q + quant_bias)
    * deq_scale."""
    out, value = int8_channel(w, offset=True)
    q = out["weight"][1].astype(np.int64)
    out["input_scale"] = ("F32", np.array([input_scale], np.float32))
    out["input_offset"] = ("F32", np.array([input_offset], np.float32))
    out["quant_bias"] = ("I32", (-input_offset * q.sum(1)).astype(np.int32))
    out["deq_scale"] = ("F32", (np.float32(input_scale) * out["weight_scale"][1][:, 0]))
    return out, value


def _square_amax(w, block):
    r, c = -(-w.shape[0] // block), -(-w.shape[1] // block)
    p = np.zeros((r * block, c * block), np.float32)
    p[: w.shape[0], : w.shape[1]] = np.abs(w)
    return p.reshape(r, block, c, block).max((1, 3))


def _spread(scale, shape, block):
    return np.repeat(np.repeat(scale, block, 0), block, 1)[: shape[0], : shape[1]]


def int8_block(w, block=128):
    scale = np.maximum(_square_amax(w, block) / 127.0, 1e-8).astype(np.float32)
    s = _spread(scale, w.shape, block)
    q = np.clip(np.rint(w / s), -128, 127).astype(np.int8)
    return {"weight": ("I8", q), "weight_scale_inv": ("F32", scale)}, (q * s).astype(np.float32)


def fp8_block(w, block=128, suffix="weight_scale_inv", scale_type="F32"):
    scale = np.maximum(_square_amax(w, block) / 448.0, 1e-8).astype(np.float32)
    stored = bf16_bits(scale) if scale_type == "BF16" else scale
    scale = bf16_value(stored) if scale_type == "BF16" else scale
    s = _spread(scale, w.shape, block)
    q = e4m3_code(w / s)
    parts = {"weight": ("F8_E4M3", q), suffix: (scale_type, stored)}
    return parts, (E4M3[q] * s).astype(np.float32)


def fp8_channel(w, scale_type="BF16"):
    scale = np.maximum(np.abs(w).max(1, keepdims=True) / 448.0, 1e-8).astype(np.float32)
    stored = bf16_bits(scale) if scale_type == "BF16" else scale
    scale = bf16_value(stored) if scale_type == "BF16" else scale
    q = e4m3_code(w / scale)
    out = {"weight": ("F8_E4M3", q), "weight_scale": (scale_type, stored)}
    return out, (E4M3[q] * scale).astype(np.float32)


# ---- 4-bit floats ------------------------------------------------------------------------------


def _fp4(w, group, scale):
    """codes for given positive scales [out][group]"""
    return e2m1_code(_groups(w, group) / scale[:, :, None]).reshape(w.shape)


def _fp4_value(code, group, scale):
    v = e2m1_value(code).reshape(code.shape[0], -1, group)
    return (v * scale[:, :, None]).reshape(code.shape).astype(np.float32)


def _pairs(code):
    return (code[:, 0::2] | code[:, 1::2] << 4).astype(np.uint8)


def nvfp4(w, compressed_tensors, amax=None):
    """modelopt stores amax / (6 * 448) and multiplies; compressed-tensors the reciprocal and
    divides.
    amax: of the matrices that share the global scale (gate and up); None: this one's."""
    amax = np.float32(np.abs(w).max() if amax is None else amax)
    local = np.abs(_groups(w, 16)).max(2) / 6
    if compressed_tensors:
        glob = np.float32(6 * 448) / amax
        code8 = e4m3_code(np.maximum(local * glob, 2.0**-9))
        scale = E4M3[code8] / glob
    else:
        glob = amax / np.float32(6 * 448)
        code8 = e4m3_code(np.maximum(local / glob, 2.0**-9))
        scale = E4M3[code8] * glob
    code = _fp4(w, 16, scale)
    value = _fp4_value(code, 16, scale.astype(np.float32))
    if compressed_tensors:
        return {
            "weight_packed": ("U8", _pairs(code)),
            "weight_scale": ("F8_E4M3", code8),
            "weight_global_scale": ("F32", np.array([glob], np.float32)),
            "input_global_scale": ("F32", np.array([100.0], np.float32)),
        }, value
    return {
        "weight": ("U8", _pairs(code)),
        "weight_scale": ("F8_E4M3", code8),
        "weight_scale_2": ("F32", np.array(glob, np.float32)),
        "input_scale": ("F32", np.array(0.01, np.float32)),
    }, value


def mxfp4(w):
    amax = np.maximum(np.abs(_groups(w, 32)).max(2), 2.0**-120)
    # OCP: the largest exponent of e2m1 is 2
    e = np.clip(np.floor(np.log2(amax)) - 2, -127, 127).astype(np.int32)
    scale = np.exp2(e.astype(np.float64)).astype(np.float32)
    code = _fp4(w, 32, scale)
    return {
        "weight_packed": ("U8", _pairs(code)),
        "weight_scale": ("U8", (e + 127).astype(np.uint8)),
    }, _fp4_value(code, 32, scale)
