/* out.cu - mla_out: values of each head, on the float path, then the output projection */
#include "backend/cuda/common.cuh"
#include "backend/cuda/generic/out.cuh"
#include "backend/cuda/launch.cuh"

enum {
    VALUE_DIM = V_DIM,
    FLOAT_THREADS = 1024,
    FLOAT_TOKENS = 8,
};
static_assert(VALUE_DIM % (FLOAT_THREADS / WARP) == 0 && KV_LATENT % (WARP * 4) == 0,
              "nothing is left over");

/* Float path. Block: one head, up to 8 tokens. A warp makes 4 of the 128 outputs, lanes run along
 * the 512 inputs, 8 at a time. */
__global__ void __launch_bounds__(FLOAT_THREADS) value_float_kernel(const struct value_args a)
{
    __shared__ float z[FLOAT_TOKENS][KV_LATENT];
    const uint32_t head = blockIdx.x, t0 = blockIdx.y * FLOAT_TOKENS;
    const uint32_t n = min((uint32_t)FLOAT_TOKENS, a.n_token - t0);
    const int warp = (int)threadIdx.x / WARP, lane = (int)threadIdx.x % WARP;
    kernel_begin();
    for (uint32_t i = threadIdx.x; i < FLOAT_TOKENS * KV_LATENT; i += FLOAT_THREADS) {
        uint32_t t = i / KV_LATENT;
        size_t at = ((size_t)(t0 + t) * a.n_head + head) * KV_LATENT + i % KV_LATENT;
        z[t][i % KV_LATENT] = t < n ? a.z_f[at] : 0.0f;
    }
    __syncthreads();
    for (int v = warp; v < VALUE_DIM; v += FLOAT_THREADS / WARP) {
        const float *row = a.kv_b_f + ((size_t)head * KV_B_ROWS + NOPE_DIM + (size_t)v) * KV_LATENT;
        float acc[FLOAT_TOKENS] = {};
        for (int k = lane * 4; k < KV_LATENT; k += WARP * 4) {
            const float4 w = *(const float4 *)(row + k);
#pragma unroll
            for (int t = 0; t < FLOAT_TOKENS; t++) {
                const float4 x = *(const float4 *)(z[t] + k);
                acc[t] += x.x * w.x + x.y * w.y + x.z * w.z + x.w * w.w;
            }
        }
        for (uint32_t t = 0; t < FLOAT_TOKENS; t++) {
            float sum = warp_sum(acc[t]);
            if (lane == 0 && t < n) {
                a.f[((size_t)(t0 + t) * a.n_head + head) * VALUE_DIM + (size_t)v] = sum;
            }
        }
    }
}

static fathom_err run_values(struct cuda_backend *c, const struct value_args &v)
{
    ASSERT(v.kv_b ? v.z_h != NULL : v.kv_b_f && v.z_f && !v.q && !v.h);
    if (v.kv_b) return values_fast(c, v);
    const dim3 grid(v.n_head, ceil_div(v.n_token, FLOAT_TOKENS));
    return cuda_launch(c, "mla_out", value_float_kernel, grid, FLOAT_THREADS, 0, v);
}

fathom_err cuda_mla_out(struct backend *b, const struct mla_out_args *a)
{
    struct cuda_backend *c = cuda_of(b);
    op_check_mla_out(&c->c, a);
    ASSERT(a->w->kind == WEIGHT_MLA && a->w->mla.out.n_col == c->c.n_head * VALUE_DIM);
    ASSERT(a->z->kind == BUFFER_LATENT && a->y->kind == BUFFER_DELTA);
    uint8_t *codes = cuda_wants_fp8(c, &a->w->mla.out) ? c->heads_q : NULL;
    struct value_args v = {};
    v.z_h = a->z->h;
    v.z_f = a->z->f;
    v.kv_b = a->w->mla.kv_b;
    v.kv_b_f = a->w->mla.kv_b_f;
    v.n_head = c->c.n_head;
    v.pos = a->batch->pos;
    v.expanded = cuda_expanded_rows(c, a->batch);
    v.n_token = v.expanded.first;
    v.f = c->heads_f;
    v.h = cuda_wants_bf16(c, &a->w->mla.out) ? (bf16 *)c->heads_f : NULL;
    v.q = codes;
    v.scale = c->heads_scale;
    const struct left_units left = c->units;
    c->units.z = NULL;
    if (left.z == a->z) {
        TRY(values_of_units(c, v, left));
    } else if (v.n_token) {
        TRY(run_values(c, v));
    }
    const uint32_t n_prompt = a->batch->n_token - v.n_token;
    const bool there = codes && c->codes_of == a->z;
    c->codes_of = NULL; /* what is in z may change before the next call */
    if (n_prompt)
        TRY(values_of_prompts(c, v, n_prompt, there,
                              cuda_has_selected_prompts(v.expanded, a->batch)));
    struct act heads = {
        v.h ? NULL : c->heads_f,       v.h, codes, c->heads_scale, c->c.n_head * VALUE_DIM, NULL,
        codes ? CODES_FP8 : CODES_NONE};
    return cuda_product(c, &a->w->mla.out, &heads, a->batch->n_token, a->y->f, c->c.hidden, "o");
}
