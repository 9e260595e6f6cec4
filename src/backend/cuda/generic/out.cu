/* out.cu - mla_out in the absorbed form: values of each head, then the output projection */
#include "backend/cuda/kv.cuh"
#include "backend/cuda/launch.cuh"

enum { OUT_TOKENS = 8 };

struct value_args {
    const __nv_bfloat16 *z_h; /* [T][H][512] */
    const float *z_f;
    const __nv_bfloat16 *kv_b;
    const float *kv_b_f;
    uint32_t n_head, n_token;
    float *f; /* [T][H * 128] */
    uint8_t *q;
    float *scale;
};

enum {
    VALUE_THREADS = 1024,
    VALUE_ROWS = 128 / (VALUE_THREADS / WARP),
    VALUE_STEPS = KV_LATENT / (WARP * 8)
};

/* Eight neighbouring values of W_UV as f32. */
static __device__ __forceinline__ void load_value_row(const struct value_args &a, size_t at,
                                                      float (&w)[8])
{
    if (a.kv_b) {
        uint4 v = *(const uint4 *)(a.kv_b + at);
        const uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            w[2 * i] = __uint_as_float(words[i] << 16);
            w[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
        }
    } else {
#pragma unroll
        for (int i = 0; i < 8; i++) w[i] = a.kv_b_f[at + (size_t)i];
    }
}

/* Block: one head, up to 8 tokens; out = W_UV z. A warp makes 4 of the 128 outputs, lanes run along
 * the 512 inputs, 8 at a time; the 128 outputs are one quantization group. */
__global__ void __launch_bounds__(VALUE_THREADS) value_kernel(const struct value_args a)
{
    __shared__ float z[OUT_TOKENS][KV_LATENT], out[OUT_TOKENS][128];
    const uint32_t head = blockIdx.x, t0 = blockIdx.y * OUT_TOKENS;
    const uint32_t n = min((uint32_t)OUT_TOKENS, a.n_token - t0);
    const int warp = (int)threadIdx.x / WARP, lane = (int)threadIdx.x % WARP;
    kernel_begin();
    for (uint32_t i = threadIdx.x; i < OUT_TOKENS * KV_LATENT; i += VALUE_THREADS) {
        uint32_t t = i / KV_LATENT;
        size_t at = ((size_t)(t0 + t) * a.n_head + head) * KV_LATENT + i % KV_LATENT;
        z[t][i % KV_LATENT] = t >= n ? 0.0f : a.z_h ? __bfloat162float(a.z_h[at]) : a.z_f[at];
    }
    __syncthreads();
    for (int r = 0; r < VALUE_ROWS; r++) {
        int v = warp * VALUE_ROWS + r;
        size_t row = ((size_t)head * 256 + 128 + (size_t)v) * KV_LATENT;
        float acc[OUT_TOKENS] = {};
#pragma unroll
        for (int k = 0; k < VALUE_STEPS; k++) {
            float w[8];
            int at = k * WARP * 8 + lane * 8;
            load_value_row(a, row + (size_t)at, w);
#pragma unroll
            for (int t = 0; t < OUT_TOKENS; t++) {
                const float4 *x = (const float4 *)(z[t] + at);
                acc[t] += x[0].x * w[0] + x[0].y * w[1] + x[0].z * w[2] + x[0].w * w[3];
                acc[t] += x[1].x * w[4] + x[1].y * w[5] + x[1].z * w[6] + x[1].w * w[7];
            }
        }
#pragma unroll
        for (int t = 0; t < OUT_TOKENS; t++) {
            float sum = warp_sum(acc[t]);
            if (lane == 0) out[t][v] = sum;
        }
    }
    __syncthreads();
    for (uint32_t t = (uint32_t)warp; t < n; t += VALUE_THREADS / WARP) {
        size_t row = (size_t)(t0 + t) * a.n_head + head;
        float v[4], amax = 0.0f;
        for (int i = 0; i < 4; i++) {
            v[i] = out[t][lane * 4 + i];
            amax = fmaxf(amax, fabsf(v[i]));
        }
        if (!a.q) {
            for (int i = 0; i < 4; i++) a.f[row * 128 + (size_t)(lane * 4 + i)] = v[i];
            continue;
        }
        float s = fp8_scale(warp_max(amax));
        for (int i = 0; i < 4; i++) {
            a.q[row * 128 + (size_t)(lane * 4 + i)] = float_to_e4m3(v[i] / s);
        }
        if (lane == 0) a.scale[row] = s;
    }
}

fathom_err cuda_mla_out(struct backend *b, const struct mla_out_args *a)
{
    struct cuda_backend *c = cuda_of(b);
    if (a->form != MLA_ABSORBED) return FATHOM_EUNSUPPORTED;
    uint8_t *codes = cuda_wants_fp8(c, &a->w->mla.out) ? c->heads_q : NULL;
    struct value_args v = {a->z->h,    a->z->f,    a->w->mla.kv_b, a->w->mla.kv_b_f, c->c.n_head,
                           a->n_token, c->heads_f, codes,          c->heads_scale};
    TRY(cuda_launch(c, "mla_out", value_kernel, dim3(c->c.n_head, ceil_div(a->n_token, OUT_TOKENS)),
                    VALUE_THREADS, 0, v));
    struct act heads = {c->heads_f, NULL, codes, c->heads_scale, c->c.n_head * 128};
    return cuda_product(c, &a->w->mla.out, &heads, a->n_token, a->y->f, c->c.hidden, "o");
}
