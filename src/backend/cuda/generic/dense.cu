/* dense.cu - embedding, norm, quantization, SwiGLU, dense FFN, linear, head, draft front */
#include "backend/cuda/common.cuh"
#include "backend/cuda/launch.cuh"

/* The widest hidden size, 16384, is 8 steps of 4 values for each of NORM_THREADS. */
enum { NORM_THREADS = 512, CONCAT_THREADS = 512, EMBED_THREADS = 256 };

/* One thread 4 values of a row; needs a width that is a multiple of 4. */
__global__ void __launch_bounds__(EMBED_THREADS)
    embed_kernel(float *x, struct matrix table, const int32_t *ids, const int32_t *drawn)
{
    const uint32_t i = (blockIdx.y * EMBED_THREADS + threadIdx.x) * 4;
    kernel_begin();
    if (i >= table.n_col) return;
    const int32_t id = ids[blockIdx.x];
    const size_t at = (size_t)(id < 0 ? drawn[~id] : id) * table.n_col + i;
    float4 v;
    if (table.dtype == DTYPE_BF16) {
        const uint2 h = *(const uint2 *)((const bf16 *)table.data + at);
        v = make_float4(__uint_as_float(h.x << 16), __uint_as_float(h.x & 0xffff0000u),
                        __uint_as_float(h.y << 16), __uint_as_float(h.y & 0xffff0000u));
    } else {
        v = *(const float4 *)((const float *)table.data + at);
    }
    *(float4 *)(x + (size_t)blockIdx.x * table.n_col + i) = v;
}

fathom_err cuda_embed(struct backend *b, const struct embed_args *a)
{
    struct cuda_backend *c = cuda_of(b);
    dim3 grid(a->n_token, ceil_div(a->table->linear.n_col, EMBED_THREADS * 4));
    return cuda_launch(c, "embed", embed_kernel, grid, EMBED_THREADS, 0, a->x->f, a->table->linear,
                       a->ids, a->drawn);
}

/* Quantizes 128 values held 4 a lane by one warp and stores codes and scale. */
static __device__ __forceinline__ void store_group(const float4 &v, uint8_t *q, float *scale)
{
    const int lane = (int)threadIdx.x % WARP;
    float s;
    *(uint32_t *)(q + lane * 4) = quantize_group(v, &s);
    if (lane == 0) *scale = s;
}

__global__ void quantize_kernel(const float *f, uint32_t n_group, uint8_t *q, float *scale)
{
    uint32_t group = blockIdx.x * (blockDim.x / WARP) + threadIdx.x / WARP;
    kernel_begin();
    if (group >= n_group) return;
    const float4 v = ((const float4 *)(f + (size_t)group * 128))[threadIdx.x % WARP];
    store_group(v, q + (size_t)group * 128, scale + group);
}

fathom_err cuda_quantize(struct cuda_backend *c, const float *f, uint32_t n_row, uint32_t width,
                         uint8_t *q, float *scale, const char *what)
{
    uint32_t n_group = n_row * (width / 128);
    return cuda_launch(c, what, quantize_kernel, dim3(ceil_div(n_group, 8)), 256, 0, f, n_group, q,
                       scale);
}

struct norm_args {
    float *x;
    const float *delta; /* NULL: none */
    const float *weight;
    float *f;
    bf16 *h; /* NULL: only f */
    uint8_t *q;
    float *scale;
    uint32_t n;
    float eps;
};

/* One block a token: x += delta; out = rmsnorm(x) in the forms that the next products take. A
 * thread keeps its STEPS times 4 values to the end. STEPS and the number of threads, thus the order
 * of the sum, depend on the width alone. */
template <int STEPS>
__global__ void __launch_bounds__(NORM_THREADS, STEPS == 4 ? 2 : 1)
    add_norm_kernel(const struct norm_args a)
{
    __shared__ float scratch[NORM_THREADS / WARP];
    const size_t row = (size_t)blockIdx.x * a.n;
    const uint32_t first = threadIdx.x * 4, step = blockDim.x * 4;
    const float4 zero = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    float4 v[STEPS], w[STEPS];
    float sum = 0.0f;
    dependency_release();
    if (first * STEPS < a.n) prefetch_l2(a.weight + first * STEPS);
    dependency_wait();
#pragma unroll
    for (int j = 0; j < STEPS; j++) { /* all in flight at once: w has room for delta */
        uint32_t i = first + (uint32_t)j * step;
        v[j] = i < a.n ? *(const float4 *)(a.x + row + i) : zero;
        w[j] = i < a.n && a.delta ? *(const float4 *)(a.delta + row + i) : zero;
    }
#pragma unroll
    for (int j = 0; j < STEPS; j++) {
        uint32_t i = first + (uint32_t)j * step;
        if (a.delta) {
            v[j] = make_float4(v[j].x + w[j].x, v[j].y + w[j].y, v[j].z + w[j].z, v[j].w + w[j].w);
            if (i < a.n) *(float4 *)(a.x + row + i) = v[j];
        }
        sum += v[j].x * v[j].x + v[j].y * v[j].y + v[j].z * v[j].z + v[j].w * v[j].w;
        w[j] = i < a.n ? *(const float4 *)(a.weight + i) : zero;
    }
    float r = rsqrtf(block_sum(sum, scratch) / (float)a.n + a.eps);
#pragma unroll
    for (int j = 0; j < STEPS; j++) {
        uint32_t i = first + (uint32_t)j * step;
        if (i >= a.n) break;
        float4 o = make_float4(v[j].x * r * w[j].x, v[j].y * r * w[j].y, v[j].z * r * w[j].z,
                               v[j].w * r * w[j].w);
        *(float4 *)(a.f + row + i) = o;
        if (a.h) { /* 4 values a lane: a warp holds one group of 128 */
            *(uint2 *)(a.h + row + i) = make_uint2(pack_bf16(o.x, o.y), pack_bf16(o.z, o.w));
            size_t group = (row + i) / 128;
            store_group(o, a.q + group * 128, a.scale + group);
        }
    }
}

fathom_err cuda_add_norm(struct backend *b, const struct add_norm_args *a)
{
    struct cuda_backend *c = cuda_of(b);
    struct norm_args k = {a->x->f,           a->delta ? a->delta->f : NULL,
                          a->weight->vector, a->out->f,
                          a->out->h,         a->out->q,
                          a->out->scale,     c->c.hidden,
                          c->c.norm_eps};
    uint32_t n_step = k.n <= 4 * NORM_THREADS * 4 ? 4 : 8;
    uint32_t threads = ceil_div(k.n, n_step * 4 * WARP) * WARP;
    return cuda_launch(c, "add_norm", n_step == 4 ? add_norm_kernel<4> : add_norm_kernel<8>,
                       dim3(a->n_token), threads, 0, k);
}

/* out = silu(gate) * up for rows [gate | up] of 2 * inner; one thread 4 values. With codes (inner a
 * multiple of 128) a warp has one group, which is quantized where it is made. */
__global__ void swiglu_kernel(const float *gate_up, uint32_t n_row, uint32_t inner, float *f,
                              uint8_t *q, float *scale)
{
    const uint32_t per_row = ceil_div(inner, 128);
    const uint32_t group = blockIdx.x * (blockDim.x / WARP) + threadIdx.x / WARP;
    kernel_begin();
    if (group >= n_row * per_row) return;
    const uint32_t row = group / per_row, i = group % per_row * 128 + threadIdx.x % WARP * 4;
    const float *g = gate_up + (size_t)row * 2 * inner + i, *u = g + inner;
    if (q) {
        store_group(swiglu(*(const float4 *)g, *(const float4 *)u), q + (size_t)group * 128,
                    scale + group);
    } else if (inner % 4 == 0) {
        if (i < inner)
            *(float4 *)(f + (size_t)row * inner + i) =
                swiglu(*(const float4 *)g, *(const float4 *)u);
    } else {
        for (uint32_t j = 0; j < 4 && i + j < inner; j++)
            f[(size_t)row * inner + i + j] = silu(g[j]) * u[j];
    }
}

fathom_err cuda_swiglu(struct cuda_backend *c, uint32_t n_row, uint32_t inner, bool fp8,
                       const char *what)
{
    uint32_t n_group = n_row * ceil_div(inner, 128);
    return cuda_launch(c, what, swiglu_kernel, dim3(ceil_div(n_group, 8)), 256, 0, c->mid, n_row,
                       inner, c->mid_f, fp8 ? c->mid_q : NULL, c->mid_scale);
}

static struct act act_of(const struct buffer *buf, uint32_t width)
{
    struct act a = {buf->f, buf->h, buf->q, buf->scale, width};
    return a;
}

fathom_err cuda_ffn_run(struct cuda_backend *c, const struct weight *w, const struct buffer *in,
                        uint32_t n_token, float *y)
{
    uint32_t inner = w->ffn.down.n_col;
    bool fp8 = cuda_wants_fp8(c, &w->ffn.down);
    struct act x = act_of(in, c->c.hidden);
    struct act mid = {c->mid_f, NULL, fp8 ? c->mid_q : NULL, c->mid_scale, inner};
    TRY(cuda_product_list(c, &w->ffn.up, &x, n_token, c->mid, "ffn gate and up"));
    TRY(cuda_swiglu(c, n_token, inner, fp8, "ffn"));
    return cuda_product(c, &w->ffn.down, &mid, n_token, y, c->c.hidden, "ffn down");
}

fathom_err cuda_ffn(struct backend *b, const struct ffn_args *a)
{
    return cuda_ffn_run(cuda_of(b), a->w, a->x, a->n_token, a->y->f);
}

fathom_err cuda_linear(struct backend *b, const struct linear_args *a)
{
    struct cuda_backend *c = cuda_of(b);
    struct act x = act_of(a->x, c->c.hidden);
    return cuda_product(c, &a->w->linear, &x, a->n_token, a->y->f, a->w->linear.n_row, "linear");
}

/* Rows of the hidden states that the head wants, side by side. */
__global__ void gather_kernel(const float *f, const int32_t *rows, uint32_t n, float *out)
{
    kernel_begin();
    size_t from = (size_t)rows[blockIdx.x] * n, to = (size_t)blockIdx.x * n;
    for (uint32_t i = threadIdx.x; i < n; i += blockDim.x) out[to + i] = f[from + i];
}

fathom_err cuda_head(struct backend *b, const struct head_args *a)
{
    struct cuda_backend *c = cuda_of(b);
    struct act x = {NULL, a->hidden->h, NULL, NULL, c->c.hidden, a->rows};
    if (!cuda_wants_bf16(c, &a->w->linear)) {
        TRY(cuda_launch(c, "head", gather_kernel, dim3(a->n_row), 256, 0, a->hidden->f, a->rows,
                        c->c.hidden, c->mtp_f));
        x = {c->mtp_f, NULL, NULL, NULL, c->c.hidden, NULL};
    }
    return cuda_product(c, &a->w->linear, &x, a->n_row, a->logits->f, c->c.n_vocab, "head");
}

/* One block a token: [ rmsnorm(embedding) ; rmsnorm(hidden) ] */
__global__ void __launch_bounds__(CONCAT_THREADS)
    mtp_concat_kernel(struct matrix table, const int32_t *ids, const float *hidden,
                      const int32_t *rows, const float *enorm, const float *hnorm, float *out,
                      bf16 *out_h, uint32_t n, float eps)
{
    __shared__ float scratch[CONCAT_THREADS / WARP + 1];
    kernel_begin();
    size_t row = (size_t)ids[blockIdx.x] * n;
    size_t from = (size_t)(rows ? rows[blockIdx.x] : (int32_t)blockIdx.x) * n;
    for (int half = 0; half < 2; half++) {
        float sum = 0.0f;
        float *to = out + (size_t)blockIdx.x * 2 * n + (size_t)half * n;
        for (uint32_t i = threadIdx.x; i < n; i += CONCAT_THREADS) {
            float v;
            if (half) {
                v = hidden[from + i];
            } else {
                v = table.dtype == DTYPE_BF16
                        ? __bfloat162float(((const bf16 *)table.data)[row + i])
                        : ((const float *)table.data)[row + i];
            }
            to[i] = v;
            sum += v * v;
        }
        float r = rsqrtf(block_sum(sum, scratch) / (float)n + eps);
        const float *w = half ? hnorm : enorm;
        for (uint32_t i = threadIdx.x; i < n; i += CONCAT_THREADS) {
            to[i] = to[i] * r * w[i];
            if (out_h) {
                out_h[(size_t)blockIdx.x * 2 * n + (size_t)half * n + i] =
                    __float2bfloat16_rn(to[i]);
            }
        }
    }
}

fathom_err cuda_mtp_front(struct backend *b, const struct mtp_front_args *a)
{
    struct cuda_backend *c = cuda_of(b);
    bf16 *h = c->fast ? c->mtp_h : NULL;
    TRY(cuda_launch(c, "mtp_front", mtp_concat_kernel, dim3(a->n_token), CONCAT_THREADS, 0,
                    a->table->linear, a->next_ids, a->hidden->f, a->rows, a->enorm->vector,
                    a->hnorm->vector, c->mtp_f, h, c->c.hidden, c->c.norm_eps));
    struct act x = {c->mtp_f, h, NULL, NULL, 2 * c->c.hidden};
    return cuda_product(c, &a->eh_proj->linear, &x, a->n_token, a->x->f, c->c.hidden, "mtp_front");
}
