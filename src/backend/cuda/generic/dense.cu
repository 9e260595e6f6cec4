/* dense.cu - embedding, norm, quantization, SwiGLU, dense FFN, linear, head, draft front */
#include "backend/cuda/common.cuh"
#include "backend/cuda/launch.cuh"

/* NORM_STEPS * NORM_THREADS * 4 is the widest hidden size: 16384 */
enum { NORM_THREADS = 512, NORM_STEPS = 8 };

__global__ void embed_kernel(float *x, struct matrix table, const int32_t *ids,
                             const int32_t *drawn)
{
    kernel_begin();
    int32_t id = ids[blockIdx.x];
    size_t row = (size_t)(id < 0 ? drawn[~id] : id);
    for (uint32_t i = threadIdx.x; i < table.n_col; i += blockDim.x) {
        size_t at = row * table.n_col + i;
        x[(size_t)blockIdx.x * table.n_col + i] =
            table.dtype == DTYPE_BF16 ? __bfloat162float(((const __nv_bfloat16 *)table.data)[at])
                                      : ((const float *)table.data)[at];
    }
}

fathom_err cuda_embed(struct backend *b, const struct embed_args *a)
{
    struct cuda_backend *c = cuda_of(b);
    return cuda_launch(c, "embed", embed_kernel, dim3(a->n_token), 256, 0, a->x->f,
                       a->table->linear, a->ids, a->drawn);
}

/* Quantizes 128 values held 4 a lane by one warp and stores codes and scale. */
static __device__ __forceinline__ void quantize_group(const float v[4], uint8_t *q, float *scale)
{
    const int lane = (int)threadIdx.x % WARP;
    float amax = fmaxf(fmaxf(fabsf(v[0]), fabsf(v[1])), fmaxf(fabsf(v[2]), fabsf(v[3])));
    float s = fp8_scale(warp_max(amax)), inverse = 1.0f / s;
    uint32_t codes = 0;
#pragma unroll
    for (int i = 0; i < 4; i++) codes |= (uint32_t)float_to_e4m3(v[i] * inverse) << (8 * i);
    *(uint32_t *)(q + lane * 4) = codes;
    if (lane == 0) *scale = s;
}

__global__ void quantize_kernel(const float *f, uint32_t n_group, uint8_t *q, float *scale)
{
    uint32_t group = blockIdx.x * (blockDim.x / WARP) + threadIdx.x / WARP;
    kernel_begin();
    if (group >= n_group) return;
    const float4 v = ((const float4 *)(f + (size_t)group * 128))[threadIdx.x % WARP];
    const float values[4] = {v.x, v.y, v.z, v.w};
    quantize_group(values, q + (size_t)group * 128, scale + group);
}

fathom_err cuda_quantize(struct cuda_backend *c, const float *f, uint32_t n_row, uint32_t width,
                         uint8_t *q, float *scale, const char *what)
{
    uint32_t n_group = n_row * (width / 128);
    return cuda_launch(c, what, quantize_kernel, dim3(ceil_div(n_group, 8)), 256, 0, f, n_group, q,
                       scale);
}

/* One block a token: x += delta; out = rmsnorm(x) in the forms that the next products take. A
 * thread keeps its values between the two passes: 4 * NORM_STEPS at most. */
__global__ void __launch_bounds__(NORM_THREADS)
    add_norm_kernel(float *x, const float *delta, const float *weight, float *f, __nv_bfloat16 *h,
                    uint8_t *q, float *scale, uint32_t n, float eps)
{
    __shared__ float scratch[NORM_THREADS / WARP + 1];
    const size_t row = (size_t)blockIdx.x * n;
    float4 v[NORM_STEPS];
    float sum = 0.0f;
    kernel_begin();
#pragma unroll
    for (int j = 0; j < NORM_STEPS; j++) {
        uint32_t i = ((uint32_t)j * NORM_THREADS + threadIdx.x) * 4;
        if (i >= n) break;
        v[j] = *(float4 *)(x + row + i);
        if (delta) {
            float4 d = *(const float4 *)(delta + row + i);
            v[j] = make_float4(v[j].x + d.x, v[j].y + d.y, v[j].z + d.z, v[j].w + d.w);
            *(float4 *)(x + row + i) = v[j];
        }
        sum += v[j].x * v[j].x + v[j].y * v[j].y + v[j].z * v[j].z + v[j].w * v[j].w;
    }
    float r = rsqrtf(block_sum(sum, scratch) / (float)n + eps);
#pragma unroll
    for (int j = 0; j < NORM_STEPS; j++) {
        uint32_t i = ((uint32_t)j * NORM_THREADS + threadIdx.x) * 4;
        if (i >= n) break;
        float4 w = *(const float4 *)(weight + i);
        float4 o =
            make_float4(v[j].x * r * w.x, v[j].y * r * w.y, v[j].z * r * w.z, v[j].w * r * w.w);
        *(float4 *)(f + row + i) = o;
        if (h) {
            *(uint2 *)(h + row + i) = make_uint2(pack_bf16(o.x, o.y), pack_bf16(o.z, o.w));
            const float values[4] = {o.x, o.y, o.z, o.w};
            uint32_t group = i / 128; /* 4 values a lane: a warp holds one group of 128 */
            quantize_group(values, q + row + (size_t)group * 128,
                           scale + (size_t)blockIdx.x * (n / 128) + group);
        }
    }
}

fathom_err cuda_add_norm(struct backend *b, const struct add_norm_args *a)
{
    struct cuda_backend *c = cuda_of(b);
    return cuda_launch(c, "add_norm", add_norm_kernel, dim3(a->n_token), NORM_THREADS, 0, a->x->f,
                       a->delta ? a->delta->f : NULL, a->weight->vector, a->out->f, a->out->h,
                       a->out->q, a->out->scale, c->c.hidden, c->c.norm_eps);
}

/* out = silu(gate) * up for rows [gate | up] of 2 * inner; codes too on the fast path. One warp a
 * group of 128, so that a group is quantized where it is made. */
__global__ void swiglu_kernel(const float *gate_up, uint32_t n_row, uint32_t inner, float *f,
                              uint8_t *q, float *scale)
{
    uint32_t per_row = ceil_div(inner, 128);
    kernel_begin();
    uint32_t group = blockIdx.x * (blockDim.x / WARP) + threadIdx.x / WARP;
    if (group >= n_row * per_row) return;
    uint32_t row = group / per_row, i0 = group % per_row * 128 + threadIdx.x % WARP * 4;
    const float *g = gate_up + (size_t)row * 2 * inner, *u = g + inner;
    float v[4];
#pragma unroll
    for (int j = 0; j < 4; j++) {
        uint32_t i = i0 + (uint32_t)j;
        v[j] = i < inner ? silu(g[i]) * u[i] : 0.0f;
        if (!q && i < inner) f[(size_t)row * inner + i] = v[j];
    }
    if (q) quantize_group(v, q + (size_t)group * 128, scale + group);
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
__global__ void gather_kernel(const float *f, const int32_t *rows, uint32_t n, float *out_f,
                              __nv_bfloat16 *out_h)
{
    kernel_begin();
    size_t from = (size_t)rows[blockIdx.x] * n, to = (size_t)blockIdx.x * n;
    for (uint32_t i = threadIdx.x; i < n; i += blockDim.x) {
        out_f[to + i] = f[from + i];
        if (out_h) out_h[to + i] = __float2bfloat16_rn(f[from + i]);
    }
}

fathom_err cuda_head(struct backend *b, const struct head_args *a)
{
    struct cuda_backend *c = cuda_of(b);
    __nv_bfloat16 *h = c->fast ? c->mtp_h : NULL;
    TRY(cuda_launch(c, "head", gather_kernel, dim3(a->n_row), 256, 0, a->hidden->f, a->rows,
                    c->c.hidden, c->mtp_f, h));
    struct act x = {c->mtp_f, h, NULL, NULL, c->c.hidden};
    return cuda_product(c, &a->w->linear, &x, a->n_row, a->logits->f, c->c.n_vocab, "head");
}

/* One block a token: [ rmsnorm(embedding) ; rmsnorm(hidden) ] */
__global__ void __launch_bounds__(NORM_THREADS)
    mtp_concat_kernel(struct matrix table, const int32_t *ids, const float *hidden,
                      const int32_t *rows, const float *enorm, const float *hnorm, float *out,
                      __nv_bfloat16 *out_h, uint32_t n, float eps)
{
    __shared__ float scratch[NORM_THREADS / WARP + 1];
    kernel_begin();
    size_t row = (size_t)ids[blockIdx.x] * n;
    size_t from = (size_t)(rows ? rows[blockIdx.x] : (int32_t)blockIdx.x) * n;
    for (int half = 0; half < 2; half++) {
        float sum = 0.0f;
        float *to = out + (size_t)blockIdx.x * 2 * n + (size_t)half * n;
        for (uint32_t i = threadIdx.x; i < n; i += NORM_THREADS) {
            float v;
            if (half) {
                v = hidden[from + i];
            } else {
                v = table.dtype == DTYPE_BF16
                        ? __bfloat162float(((const __nv_bfloat16 *)table.data)[row + i])
                        : ((const float *)table.data)[row + i];
            }
            to[i] = v;
            sum += v * v;
        }
        float r = rsqrtf(block_sum(sum, scratch) / (float)n + eps);
        const float *w = half ? hnorm : enorm;
        for (uint32_t i = threadIdx.x; i < n; i += NORM_THREADS) {
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
    __nv_bfloat16 *h = c->fast ? c->mtp_h : NULL;
    TRY(cuda_launch(c, "mtp_front", mtp_concat_kernel, dim3(a->n_token), NORM_THREADS, 0,
                    a->table->linear, a->next_ids, a->hidden->f, a->rows, a->enorm->vector,
                    a->hnorm->vector, c->mtp_f, h, c->c.hidden, c->c.norm_eps));
    struct act x = {c->mtp_f, h, NULL, NULL, 2 * c->c.hidden};
    return cuda_product(c, &a->eh_proj->linear, &x, a->n_token, a->x->f, c->c.hidden, "mtp_front");
}
