/* attend.cu - mla_attend in the absorbed form
 *
 * Rows are taken in groups of 64 in ascending position. A group gives per head a maximum, a sum
 * and 512 unnormalised outputs. Eight groups are merged one after the other into a span, and spans
 * likewise into the result. A block takes one group, one span or all of a token, depending on how
 * many tokens there are, and combine_kernel merges what blocks left apart; the arithmetic is the
 * same in each case, so the bits do not depend on how many tokens run.
 *
 * Fast path: 16 heads are the 16-row operand of the tensor core. Scores: warp w takes keys 8w to
 * 8w + 7 over 576 values; outputs: warp w takes columns 64w to 64w + 63. */
#include "backend/cuda/kv.cuh"
#include "backend/cuda/launch.cuh"

enum {
    THREADS = 256,
    HEADS = 16,
    GROUP = ATTEND_GROUP,
    PITCH = KV_ROW + 8, /* bf16 a row in shared memory; 1168 bytes: rows fall into other banks */
    P_PITCH = GROUP + 8,
    SPAN = ATTEND_SPAN,
};

enum piece { PIECE_GROUP, PIECE_SPAN, PIECE_TOKEN };

struct attend_args {
    const __nv_bfloat16 *h; /* [T][H][576] */
    const float *f;         /* the same, float path */
    const int32_t *pos, *request, *page_table;
    uint32_t page_stride, n_head;
    const int32_t *slots, *counts; /* NULL: every position up to pos */
    uint32_t topk;
    struct kv_layer kv;
    float scale;
    float *part_out, *part_stat; /* [T][n_part][H][512], [..][2]: groups or spans left apart */
    uint32_t n_part;             /* groups or spans a token has room for */
    __nv_bfloat16 *out_h;        /* [T][H][512] */
    float *out_f;
};

struct attend_shared {
    __nv_bfloat16 q[HEADS][PITCH];
    __nv_bfloat16 k[GROUP][PITCH];
    __nv_bfloat16 p[HEADS][P_PITCH];
    float s[HEADS][GROUP + 1];
    float max[HEADS], sum[HEADS];
};

static __device__ __forceinline__ int row_count(const struct attend_args &a, uint32_t token)
{
    return a.slots ? a.counts[token] : a.pos[token] + 1;
}

/* The cache row of the i-th row that a token sees. */
static __device__ __forceinline__ int row_slot(const struct attend_args &a, uint32_t token, int i)
{
    if (a.slots) return a.slots[(size_t)token * a.topk + i];
    return kv_slot(a.page_table + (size_t)a.request[token] * a.page_stride, i);
}

/* Eight e4m3 codes times a power of two, as bf16: exact. */
static __device__ __forceinline__ uint4 widen(uint2 codes, float scale)
{
    float2 a = e4m3x2_to_float2((uint16_t)codes.x), b = e4m3x2_to_float2((uint16_t)(codes.x >> 16));
    float2 c = e4m3x2_to_float2((uint16_t)codes.y), d = e4m3x2_to_float2((uint16_t)(codes.y >> 16));
    return make_uint4(pack_bf16(a.x * scale, a.y * scale), pack_bf16(b.x * scale, b.y * scale),
                      pack_bf16(c.x * scale, c.y * scale), pack_bf16(d.x * scale, d.y * scale));
}

/* A group's n rows, from `first` on, as bf16 in shared memory; the rest is zero. Four threads a
 * row. */
static __device__ __forceinline__ void load_rows(const struct attend_args &a, uint32_t token,
                                                 int first, int n, struct attend_shared *sh)
{
    const int r = (int)threadIdx.x / 4, part = (int)threadIdx.x % 4;
    __nv_bfloat16 *to = sh->k[r];
    if (r >= n) {
        for (int i = part; i < KV_ROW / 8; i += 4) *(uint4 *)(to + i * 8) = make_uint4(0, 0, 0, 0);
        return;
    }
    const char *row = kv_row(a.kv, row_slot(a, token, first + r));
    if (a.kv.type == KV_TYPE_FP8) {
        const uint4 *codes = (const uint4 *)(row + part * KV_FP8_GROUP);
        float scale = ((const float *)(row + KV_FP8_SCALES_OFFSET))[part];
        uint4 c[8];
#pragma unroll
        for (int i = 0; i < 8; i++) c[i] = codes[i];
        const uint4 *rope = (const uint4 *)(row + KV_FP8_ROPE_OFFSET) + part * 2;
        uint4 r0 = rope[0], r1 = rope[1];
#pragma unroll
        for (int i = 0; i < 8; i++) {
            uint4 *at = (uint4 *)(to + part * KV_FP8_GROUP + i * 16);
            at[0] = widen(make_uint2(c[i].x, c[i].y), scale);
            at[1] = widen(make_uint2(c[i].z, c[i].w), scale);
        }
        uint4 *at = (uint4 *)(to + KV_LATENT + part * 16);
        at[0] = r0;
        at[1] = r1;
    } else if (a.kv.type == KV_TYPE_BF16) {
        for (int i = part; i < KV_ROW / 8; i += 4) *(uint4 *)(to + i * 8) = ((const uint4 *)row)[i];
    } else {
        for (int i = part; i < KV_ROW; i += 4) to[i] = __float2bfloat16_rn(((const float *)row)[i]);
    }
}

static __device__ __forceinline__ void load_queries(const struct attend_args &a, uint32_t token,
                                                    uint32_t head0, struct attend_shared *sh)
{
    for (int i = (int)threadIdx.x; i < HEADS * (KV_ROW / 8); i += THREADS) {
        int head = i / (KV_ROW / 8), piece = i % (KV_ROW / 8);
        uint4 v = make_uint4(0, 0, 0, 0);
        if (head0 + (uint32_t)head < a.n_head) {
            size_t row = (size_t)token * a.n_head + head0 + (uint32_t)head;
            v = *(const uint4 *)(a.h + row * KV_ROW + piece * 8);
        }
        *(uint4 *)(sh->q[head] + piece * 8) = v;
    }
}

/* s[head][key] = scale * q . k for 64 keys; warp w makes keys 8w .. 8w + 7. */
static __device__ __forceinline__ void make_scores(const struct attend_args &a,
                                                   struct attend_shared *sh, int n)
{
    const int warp = (int)threadIdx.x / WARP, lane = (int)threadIdx.x % WARP;
    const int g = lane / 4, t = lane % 4;
    float c[4] = {};
    uint32_t q = smem_address(&sh->q[lane % 16][lane / 16 * 8]);
    const __nv_bfloat16 *k = sh->k[warp * 8 + g] + 2 * t;
#pragma unroll
    for (int i = 0; i < KV_ROW / 16; i++) {
        uint32_t f[4];
        ldmatrix_x4(f, q + (uint32_t)i * 32);
        mma_bf16(c, f[0], f[1], f[2], f[3], *(const uint32_t *)(k + i * 16),
                 *(const uint32_t *)(k + i * 16 + 8));
    }
#pragma unroll
    for (int j = 0; j < 2; j++) {
        int key = warp * 8 + 2 * t + j;
        bool valid = key < n;
        sh->s[g][key] = valid ? c[j] * a.scale : -INFINITY;
        sh->s[g + 8][key] = valid ? c[2 + j] * a.scale : -INFINITY;
    }
}

/* p = exp(s - max) as bf16, with the group's maximum and sum; warp w takes heads 2w, 2w + 1. */
static __device__ __forceinline__ void make_weights(struct attend_shared *sh)
{
    const int warp = (int)threadIdx.x / WARP, lane = (int)threadIdx.x % WARP;
    for (int head = warp * 2; head < warp * 2 + 2; head++) {
        float x = sh->s[head][lane], y = sh->s[head][lane + WARP];
        float m = warp_max(fmaxf(x, y));
        x = to_bf16_and_back(__expf(x - m));
        y = to_bf16_and_back(__expf(y - m));
        sh->p[head][lane] = __float2bfloat16_rn(x);
        sh->p[head][lane + WARP] = __float2bfloat16_rn(y);
        float sum = warp_sum(x + y);
        if (lane == 0) {
            sh->max[head] = m;
            sh->sum[head] = sum;
        }
    }
}

/* o[n] = p . v for columns 64w + 8n; the C fragments of 16 heads */
static __device__ __forceinline__ void make_outputs(struct attend_shared *sh, float (&o)[8][4])
{
    const int warp = (int)threadIdx.x / WARP, lane = (int)threadIdx.x % WARP;
#pragma unroll
    for (int n = 0; n < 8; n++) {
#pragma unroll
        for (int i = 0; i < 4; i++) o[n][i] = 0.0f;
    }
#pragma unroll
    for (int step = 0; step < GROUP / 16; step++) {
        uint32_t p[4];
        ldmatrix_x4(p, smem_address(&sh->p[lane % 16][step * 16 + lane / 16 * 8]));
#pragma unroll
        for (int n = 0; n < 8; n += 2) {
            uint32_t v[4]; /* keys 0-7 and 8-15 of column block n, then of n + 1 */
            int key = step * 16 + lane % 16, col = warp * 64 + n * 8 + lane / 16 * 8;
            ldmatrix_x4_trans(v, smem_address(&sh->k[key][col]));
            mma_bf16(o[n], p[0], p[1], p[2], p[3], v[0], v[1]);
            mma_bf16(o[n + 1], p[0], p[1], p[2], p[3], v[2], v[3]);
        }
    }
}

/* Weights of a merge of (max a, sum a) with (max b, sum b); a may be empty (-inf). */
struct merge {
    float max, wa, wb;
};

static __device__ __forceinline__ struct merge merge_of(float a, float b)
{
    struct merge m;
    m.max = fmaxf(a, b);
    m.wa = a == -INFINITY ? 0.0f : __expf(a - m.max);
    m.wb = b == -INFINITY ? 0.0f : __expf(b - m.max);
    return m;
}

/* A running result of two heads (rows g and g + 8 of the fragments) and 64 columns. */
struct running {
    float out[8][4];
    float max[2], sum[2];
};

static __device__ __forceinline__ void running_clear(struct running &r)
{
#pragma unroll
    for (int c = 0; c < 8; c++) {
#pragma unroll
        for (int i = 0; i < 4; i++) r.out[c][i] = 0.0f;
    }
    r.max[0] = r.max[1] = -INFINITY;
    r.sum[0] = r.sum[1] = 0.0f;
}

static __device__ __forceinline__ void running_add(struct running &r, const float (&o)[8][4],
                                                   const float (&max)[2], const float (&sum)[2])
{
#pragma unroll
    for (int j = 0; j < 2; j++) {
        struct merge m = merge_of(r.max[j], max[j]);
        r.sum[j] = r.sum[j] * m.wa + sum[j] * m.wb;
        r.max[j] = m.max;
#pragma unroll
        for (int c = 0; c < 8; c++) {
            r.out[c][2 * j] = r.out[c][2 * j] * m.wa + o[c][2 * j] * m.wb;
            r.out[c][2 * j + 1] = r.out[c][2 * j + 1] * m.wa + o[c][2 * j + 1] * m.wb;
        }
    }
}

/* The result of one group of n rows, into r. */
static __device__ __forceinline__ void add_group(const struct attend_args &a, uint32_t token,
                                                 int first, int n, struct attend_shared *sh,
                                                 struct running &r)
{
    const int g = (int)threadIdx.x % WARP / 4;
    __syncthreads();
    load_rows(a, token, first, n, sh);
    __syncthreads();
    make_scores(a, sh, n);
    __syncthreads();
    make_weights(sh);
    __syncthreads();
    float o[8][4];
    make_outputs(sh, o);
    const float max[2] = {sh->max[g], sh->max[g + 8]}, sum[2] = {sh->sum[g], sh->sum[g + 8]};
    running_add(r, o, max, sum);
}

/* Writes a running result: normalised to out_h, or as it is to part `part`. */
static __device__ __forceinline__ void store_running(const struct attend_args &a, uint32_t token,
                                                     uint32_t head0, const struct running &r,
                                                     bool whole, uint32_t part)
{
    const int warp = (int)threadIdx.x / WARP, lane = (int)threadIdx.x % WARP;
    const int g = lane / 4, t = lane % 4;
#pragma unroll
    for (int j = 0; j < 2; j++) {
        uint32_t head = head0 + (uint32_t)(g + 8 * j);
        if (head >= a.n_head) continue;
        size_t row = whole ? (size_t)token * a.n_head + head
                           : ((size_t)token * a.n_part + part) * a.n_head + head;
        float inverse = 1.0f / r.sum[j];
#pragma unroll
        for (int c = 0; c < 8; c++) {
            size_t at = row * KV_LATENT + (size_t)(warp * 64 + c * 8 + 2 * t);
            float x = r.out[c][2 * j], y = r.out[c][2 * j + 1];
            if (whole) {
                *(uint32_t *)(a.out_h + at) = pack_bf16(x * inverse, y * inverse);
            } else {
                *(float2 *)(a.part_out + at) = make_float2(x, y);
            }
        }
        if (!whole && warp == 0 && t == 0) {
            *(float2 *)(a.part_stat + row * 2) = make_float2(r.max[j], r.sum[j]);
        }
    }
}

template <enum piece PIECE>
__global__ void __launch_bounds__(THREADS, PIECE == PIECE_TOKEN ? 1 : 2)
    attend_kernel(const struct attend_args a)
{
    SHARED_DYNAMIC(unsigned char, raw);
    struct attend_shared *sh = (struct attend_shared *)raw;
    const uint32_t token = blockIdx.y, head0 = blockIdx.z * HEADS;
    kernel_begin();
    const int n_row = row_count(a, token), n_group = (n_row + GROUP - 1) / GROUP;
    const int first = PIECE == PIECE_GROUP ? (int)blockIdx.x : (int)blockIdx.x * SPAN;
    if (first >= n_group) return;
    load_queries(a, token, head0, sh);
    struct running result, span;
    running_clear(result);
    int end = PIECE == PIECE_GROUP ? first + 1 : PIECE == PIECE_SPAN ? first + SPAN : n_group;
    for (int i = first; i < min(end, n_group); i += SPAN) {
        running_clear(span);
        for (int k = i; k < min(i + SPAN, min(end, n_group)); k++) {
            add_group(a, token, k * GROUP, min(GROUP, n_row - k * GROUP), sh, span);
        }
        if (PIECE == PIECE_TOKEN) running_add(result, span.out, span.max, span.sum);
    }
    if (PIECE == PIECE_TOKEN) {
        store_running(a, token, head0, result, true, 0);
    } else {
        store_running(a, token, head0, span, false, blockIdx.x);
    }
}

enum { COMBINE_THREADS = KV_LATENT / 2 };

/* Block: one (token, head). Merges groups to spans (unless the parts are spans) and spans to the
 * result, in ascending order. Thread l: columns 2l, 2l + 1. */
template <bool GROUPS>
__global__ void __launch_bounds__(COMBINE_THREADS) combine_kernel(const struct attend_args a)
{
    const uint32_t token = blockIdx.y, head = blockIdx.x;
    kernel_begin();
    const int n_group = (row_count(a, token) + GROUP - 1) / GROUP;
    const int n_part = GROUPS ? n_group : (n_group + SPAN - 1) / SPAN, step = GROUPS ? SPAN : 1;
    float2 o = make_float2(0.0f, 0.0f);
    float top = -INFINITY, sum = 0.0f;
    for (int i = 0; i < n_part; i += step) {
        float2 parts[SPAN], stats[SPAN];
#pragma unroll
        for (int k = 0; k < step; k++) { /* independent loads first */
            if (i + k >= n_part) break;
            size_t row = ((size_t)token * a.n_part + (size_t)(i + k)) * a.n_head + head;
            stats[k] = *(const float2 *)(a.part_stat + row * 2);
            parts[k] = *(const float2 *)(a.part_out + row * KV_LATENT + threadIdx.x * 2);
        }
        float2 span = make_float2(0.0f, 0.0f);
        float span_top = -INFINITY, span_sum = 0.0f;
#pragma unroll
        for (int k = 0; k < step; k++) {
            if (i + k >= n_part) break;
            struct merge m = merge_of(span_top, stats[k].x);
            span_sum = span_sum * m.wa + stats[k].y * m.wb;
            span_top = m.max;
            span.x = span.x * m.wa + parts[k].x * m.wb;
            span.y = span.y * m.wa + parts[k].y * m.wb;
        }
        struct merge m = merge_of(top, span_top);
        sum = sum * m.wa + span_sum * m.wb;
        top = m.max;
        o.x = o.x * m.wa + span.x * m.wb;
        o.y = o.y * m.wa + span.y * m.wb;
    }
    float inverse = 1.0f / sum;
    size_t at = ((size_t)token * a.n_head + head) * KV_LATENT + threadIdx.x * 2;
    *(uint32_t *)(a.out_h + at) = pack_bf16(o.x * inverse, o.y * inverse);
}

/* Float path: one block a (token, head), everything f32; groups merged as above. */
__global__ void __launch_bounds__(THREADS) attend_float_kernel(const struct attend_args a)
{
    __shared__ float q[KV_ROW], s[GROUP];
    __shared__ int slot[GROUP];
    const uint32_t token = blockIdx.y, head = blockIdx.x;
    const int warp = (int)threadIdx.x / WARP, lane = (int)threadIdx.x % WARP;
    kernel_begin();
    const int n_row = row_count(a, token);
    const size_t row = (size_t)token * a.n_head + head;
    for (int i = (int)threadIdx.x; i < KV_ROW; i += THREADS) q[i] = a.f[row * KV_ROW + (size_t)i];
    float total[2] = {}, top = -INFINITY, sum = 0.0f;
    for (int first = 0; first < n_row; first += GROUP) {
        int n = min(GROUP, n_row - first);
        __syncthreads();
        if ((int)threadIdx.x < n) slot[threadIdx.x] = row_slot(a, token, first + (int)threadIdx.x);
        __syncthreads();
        for (int r = warp; r < n; r += THREADS / WARP) {
            const char *from = kv_row(a.kv, slot[r]);
            float dot = 0.0f;
            for (int i = lane; i < KV_ROW; i += WARP)
                dot = fmaf(q[i], kv_value(a.kv, from, i), dot);
            dot = warp_sum(dot);
            if (lane == 0) s[r] = dot * a.scale;
        }
        __syncthreads();
        float group_top = -INFINITY, group_sum = 0.0f, o[2] = {};
        for (int r = 0; r < n; r++) group_top = fmaxf(group_top, s[r]);
        for (int r = 0; r < n; r++) {
            const char *from = kv_row(a.kv, slot[r]);
            float p = expf(s[r] - group_top);
            group_sum += p;
            o[0] = fmaf(p, kv_value(a.kv, from, (int)threadIdx.x), o[0]);
            o[1] = fmaf(p, kv_value(a.kv, from, (int)threadIdx.x + THREADS), o[1]);
        }
        float new_top = fmaxf(top, group_top);
        float wa = top == -INFINITY ? 0.0f : expf(top - new_top), wb = expf(group_top - new_top);
        sum = sum * wa + group_sum * wb;
        total[0] = total[0] * wa + o[0] * wb;
        total[1] = total[1] * wa + o[1] * wb;
        top = new_top;
    }
    a.out_f[row * KV_LATENT + threadIdx.x] = total[0] / sum;
    a.out_f[row * KV_LATENT + threadIdx.x + THREADS] = total[1] / sum;
}

static fathom_err run_attend(struct cuda_backend *c, struct attend_args &k, uint32_t n_token,
                             uint32_t max_context)
{
    const char *what = "mla_attend";
    uint32_t rows = k.slots && max_context > k.topk ? k.topk : max_context;
    uint32_t n_group = ceil_div(rows, GROUP), n_span = ceil_div(n_group, SPAN);
    uint32_t heads = ceil_div(k.n_head, HEADS);
    size_t bytes = sizeof(struct attend_shared);
    dim3 combine(k.n_head, n_token);
    if (n_token <= ATTEND_GROUP_TOKENS_MAX) {
        k.n_part = n_group;
        TRY(cuda_launch(c, what, attend_kernel<PIECE_GROUP>, dim3(n_group, n_token, heads), THREADS,
                        bytes, k));
        return cuda_launch(c, what, combine_kernel<true>, combine, COMBINE_THREADS, 0, k);
    }
    if (n_token <= ATTEND_SPAN_TOKENS_MAX) {
        k.n_part = n_span;
        TRY(cuda_launch(c, what, attend_kernel<PIECE_SPAN>, dim3(n_span, n_token, heads), THREADS,
                        bytes, k));
        return cuda_launch(c, what, combine_kernel<false>, combine, COMBINE_THREADS, 0, k);
    }
    return cuda_launch(c, what, attend_kernel<PIECE_TOKEN>, dim3(1, n_token, heads), THREADS, bytes,
                       k);
}

fathom_err cuda_mla_attend(struct backend *b, const struct mla_attend_args *a)
{
    struct cuda_backend *c = cuda_of(b);
    if (a->form != MLA_ABSORBED) return FATHOM_EUNSUPPORTED;
    struct attend_args k = {};
    k.h = a->query->h;
    k.f = a->query->f;
    k.pos = a->batch->pos;
    k.request = a->batch->request;
    k.page_table = a->batch->page_table;
    k.page_stride = a->batch->page_stride;
    k.n_head = c->c.n_head;
    k.slots = a->select ? a->select->i : NULL;
    k.counts = a->select ? a->select->n : NULL;
    k.topk = c->c.index_topk;
    k.kv = kv_layer_of(a->kv, a->layer);
    k.scale = c->c.softmax_scale;
    k.part_out = c->part_out;
    k.part_stat = c->part_stat;
    k.out_h = a->out->h;
    k.out_f = a->out->f;
    a->out->form = MLA_ABSORBED;
    if (!c->fast) {
        return cuda_launch(c, "mla_attend", attend_float_kernel, dim3(k.n_head, a->batch->n_token),
                           THREADS, 0, k);
    }
    return run_attend(c, k, a->batch->n_token, a->batch->max_context);
}

/* Raises the kernels' shared memory limit; called once when a backend is created. */
fathom_err cuda_attend_init(struct cuda_backend *c)
{
    int bytes = (int)sizeof(struct attend_shared);
    if (!c->fast) return FATHOM_OK;
    const enum cudaFuncAttribute limit = cudaFuncAttributeMaxDynamicSharedMemorySize;
    CU_TRY(c, cudaFuncSetAttribute(attend_kernel<PIECE_GROUP>, limit, bytes), "mla_attend");
    CU_TRY(c, cudaFuncSetAttribute(attend_kernel<PIECE_SPAN>, limit, bytes), "mla_attend");
    CU_TRY(c, cudaFuncSetAttribute(attend_kernel<PIECE_TOKEN>, limit, bytes), "mla_attend");
    return FATHOM_OK;
}
