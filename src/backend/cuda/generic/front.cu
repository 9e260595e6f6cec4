/* front.cu - mla_front: products, norms, rope, cache rows; the queries are query.cu's
 *
 * front_kernel has two blocks a token, and blocks that make the index heads' weights where tokens
 * are few: nothing of that depends on the query latent, and the launch has room. */
#include "backend/cuda/generic/collect.cuh"
#include "backend/cuda/generic/front.cuh"
#include "backend/cuda/generic/index_head.cuh"
#include "backend/cuda/generic/index_lanes.cuh"
#include "backend/cuda/generic/int8_codes.cuh"
#include "backend/cuda/kv.cuh"
#include "backend/cuda/launch.cuh"
#include "backend/cuda/product.cuh"

enum {
    THREADS = 256,
    QA_STEPS = FRONT_LORA_MAX / (THREADS * 4), /* of a thread, through the query latent */
    LATENT_WARPS = 4,
    KEY_TOKENS = THREADS / INDEX_LANES, /* of a block that makes index keys */
};
static_assert(QA_STEPS * THREADS * 4 == FRONT_LORA_MAX, "a thread holds its part of the latent");
static_assert((LATENT_WARPS + 1) * WARP + GPU_WAVE <= THREADS,
              "latent, rotary key and index key side by side, the last in waves of its own");
static_assert(KV_ROPE == 2 * WARP, "a pair of the rotary key a lane");

struct front_args {
    const float *front; /* [T][n_front] */
    uint32_t n_token, n_front, index_row, kv_row, q_lora;
    const float *q_norm, *kv_norm, *index_weight, *index_bias;
    float *qa_f;   /* NULL: nobody takes values */
    bf16 *qa_h;    /* NULL: nobody takes rounded ones */
    uint8_t *qa_q; /* NULL: nobody takes codes */
    enum codes qa_codes;
    float *qa_scale;
    const int32_t *pos, *slot;
    struct kv_layer kv;
    float freq[KV_ROPE / 2];
    bool interleaved, index_interleaved, has_index;
    bool reads_ahead; /* pos and slot, before the wait: a recorded step (launch.cuh) */
    float eps;
};

/* Quantizes 128 values, 4 a lane of one warp; codes and scale where they are told. */
static __device__ __forceinline__ void quantize_warp(const float v[4], uint8_t *q, float *scale)
{
    const int lane = (int)threadIdx.x % WARP;
    DCHECK((uintptr_t)q % 16 == 0);
    float amax = fmaxf(fmaxf(fabsf(v[0]), fabsf(v[1])), fmaxf(fabsf(v[2]), fabsf(v[3])));
    float s = fp8_scale(warp_max(amax));
    *(uint32_t *)(q + lane * 4) = pack_e4m3(v, s);
    if (lane == 0) *scale = s;
}

/* The index key of a token, eight lanes. `writes` is false in lanes that only keep others company.
 */
static __device__ __forceinline__ void front_index_key(const struct front_args &a, uint32_t token,
                                                       bool writes)
{
    float v[INDEX_EACH], weight[INDEX_EACH], bias[INDEX_EACH], s[4], c[4];
    float sum = 0.0f, square = 0.0f;
    load_index(weight, a.index_weight);
    load_index(bias, a.index_bias);
    if (!a.reads_ahead) dependency_wait();
    const int position = a.pos[token], slot = a.slot[token];
    DCHECK(token < a.n_token && position >= 0 && slot >= 0);
    DCHECK(slot % KV_PAGE_TOKENS == position % KV_PAGE_TOKENS);
#pragma unroll
    for (int k = 0; k < 4; k++) {
        sincosf((float)position * a.freq[index_pair(k, a.index_interleaved)], &s[k], &c[k]);
    }
    dependency_wait();
    load_index(v, a.front + (size_t)token * a.n_front + a.index_row);
    __syncthreads(); /* that of front_latent, which other warps may run */
#pragma unroll
    for (int i = 0; i < INDEX_EACH; i++) sum += v[i];
    const float mean = index_sum(sum) / KV_INDEX_DIM;
#pragma unroll
    for (int i = 0; i < INDEX_EACH; i++) square += (v[i] - mean) * (v[i] - mean);
    const float r = rsqrtf(index_sum(square) / KV_INDEX_DIM + 1e-6f);
#pragma unroll
    for (int i = 0; i < INDEX_EACH; i++) v[i] = (v[i] - mean) * r * weight[i] + bias[i];
    rotate_index(v, s, c, a.index_interleaved);
    hadamard(v);
    const float scale = index_scale(v);
    if (!writes) return;
    char *block = a.kv.index + (size_t)(slot / KV_PAGE_TOKENS) * a.kv.page_bytes;
    const size_t j = (size_t)(slot % KV_PAGE_TOKENS);
    if (a.kv.type == KV_TYPE_F32) {
        store_index_values((float *)block + j * KV_INDEX_DIM, v);
        return;
    }
    store_index_codes((uint8_t *)block + j * KV_INDEX_DIM, v, scale);
    if (threadIdx.x % INDEX_LANES == 0) ((float *)(block + KV_INDEX_SCALES_OFFSET))[j] = scale;
}

/* The codes of the block's query latent, a group of 128 a warp. */
static __device__ __forceinline__ void front_query_codes(const struct front_args &a, uint32_t token,
                                                         const float (&v)[QA_STEPS][4],
                                                         float *scratch)
{
    const uint32_t lane = threadIdx.x % WARP;
    uint32_t bits = 0;
    float of_row = 0.0f;
#pragma unroll
    for (uint32_t i = 0; i < QA_STEPS; i++) bits = max(bits, largest_bits(*(const float4 *)v[i]));
    if (a.qa_codes == CODES_INT8_ROW) of_row = int8_scale(block_most(bits, scratch));
#pragma unroll
    for (uint32_t i = 0; i < QA_STEPS; i++) {
        const uint32_t at = (i * THREADS + threadIdx.x) * 4;
        if (at >= a.q_lora) break;
        const size_t to = (size_t)token * a.q_lora + at, group = to / FP8_GROUP;
        const float4 x = *(const float4 *)v[i];
        DCHECK((to - lane * 4) % FP8_GROUP == 0);
        if (a.qa_codes == CODES_FP8) {
            quantize_warp(v[i], a.qa_q + to - lane * 4, a.qa_scale + group);
        } else {
            const float s =
                a.qa_codes == CODES_INT8_ROW ? of_row : int8_scale(warp_most(largest_bits(x)));
            store_int8(x, s, a.qa_q + to - lane * 4, a.qa_scale + group);
        }
    }
}

/* The block's norm of the query latent, and its codes. Values past its end are zero. */
static __device__ __forceinline__ void front_query(const struct front_args &a, uint32_t token,
                                                   float *scratch)
{
    float v[QA_STEPS][4] = {}, weight[QA_STEPS][4], sum = 0.0f;
#pragma unroll
    for (uint32_t i = 0; i < QA_STEPS; i++) {
        const uint32_t at = (i * THREADS + threadIdx.x) * 4;
        if (at < a.q_lora) *(float4 *)weight[i] = *(const float4 *)(a.q_norm + at);
    }
    dependency_wait();
#pragma unroll
    for (uint32_t i = 0; i < QA_STEPS; i++) {
        const uint32_t at = (i * THREADS + threadIdx.x) * 4;
        const float *row = a.front + (size_t)token * a.n_front;
        if (at < a.q_lora) *(float4 *)v[i] = *(const float4 *)(row + at);
#pragma unroll
        for (int j = 0; j < 4; j++) sum += v[i][j] * v[i][j];
    }
    const float r = rsqrtf(block_sum(sum, scratch) / (float)a.q_lora + a.eps);
#pragma unroll
    for (uint32_t i = 0; i < QA_STEPS; i++) {
        const uint32_t at = (i * THREADS + threadIdx.x) * 4;
        if (at >= a.q_lora) break;
#pragma unroll
        for (int j = 0; j < 4; j++) v[i][j] *= r * weight[i][j];
        const size_t to = (size_t)token * a.q_lora + at;
        if (a.qa_f) *(float4 *)(a.qa_f + to) = *(const float4 *)v[i];
        if (a.qa_h)
            *(uint2 *)(a.qa_h + to) =
                make_uint2(pack_bf16(v[i][0], v[i][1]), pack_bf16(v[i][2], v[i][3]));
    }
    if (a.qa_q) front_query_codes(a, token, v, scratch);
}

/* Four values of a cache row that has no codes. */
static __device__ __forceinline__ void store_four(const struct kv_layer &l, char *row, int at,
                                                  const float v[4])
{
    if (l.type == KV_TYPE_F32) {
        *(float4 *)((float *)row + at) = *(const float4 *)v;
    } else {
        *(uint2 *)((bf16 *)row + at) = make_uint2(pack_bf16(v[0], v[1]), pack_bf16(v[2], v[3]));
    }
}

/* The rotary key of the row, one warp, a pair a lane. */
static __device__ __forceinline__ void front_rotary(const struct front_args &a, uint32_t token,
                                                    const struct angles &x, char *row)
{
    const int lane = (int)threadIdx.x % WARP;
    const int one = a.interleaved ? 2 * lane : lane;
    const int two = a.interleaved ? 2 * lane + 1 : lane + KV_ROPE / 2;
    const float *from = a.front + (size_t)token * a.n_front + a.kv_row + KV_LATENT;
    float u = from[one], v = from[two];
    rotate(u, v, x.s, x.c);
    if (a.kv.type == KV_TYPE_F32) {
        ((float *)row)[KV_LATENT + one] = u;
        ((float *)row)[KV_LATENT + two] = v;
    } else {
        bf16 *to = (bf16 *)row + (a.kv.type == KV_TYPE_FP8 ? KV_FP8_ROPE_OFFSET / 2 : KV_LATENT);
        to[one] = float_to_bf16(u);
        to[two] = float_to_bf16(v);
    }
}

/* Norm of the latent, four warps; its group of 128 codes a warp. The fifth rotates the rotary key.
 */
static __device__ __forceinline__ void front_latent(const struct front_args &a, uint32_t token,
                                                    float *scratch)
{
    static_assert((int)KV_LATENT == LATENT_WARPS * (int)KV_FP8_GROUP, "a group a warp");
    const int warp = (int)threadIdx.x / WARP, at = (int)threadIdx.x * 4;
    float v[4] = {}, weight[4] = {};
    struct angles x = {};
    if (warp < LATENT_WARPS) *(float4 *)weight = *(const float4 *)(a.kv_norm + at);
    if (!a.reads_ahead) dependency_wait();
    char *row = kv_row(a.kv, a.slot[token]);
    if (warp == LATENT_WARPS) x = angles_at(a.freq, a.pos[token]);
    dependency_wait();
    const float *from = a.front + (size_t)token * a.n_front + a.kv_row;
    if (warp < LATENT_WARPS) *(float4 *)v = *(const float4 *)(from + at);
    float sum = warp_sum(v[0] * v[0] + v[1] * v[1] + v[2] * v[2] + v[3] * v[3]);
    if (threadIdx.x % WARP == 0) scratch[warp] = sum;
    __syncthreads();
    if (warp == LATENT_WARPS) front_rotary(a, token, x, row);
    if (warp >= LATENT_WARPS) return;
    sum = scratch[0];
    for (int i = 1; i < LATENT_WARPS; i++) sum += scratch[i];
    const float r = rsqrtf(sum / KV_LATENT + a.eps);
#pragma unroll
    for (int i = 0; i < 4; i++) v[i] *= r * weight[i];
    if (a.kv.type != KV_TYPE_FP8) {
        store_four(a.kv, row, at, v);
    } else {
        quantize_warp(v, (uint8_t *)row + warp * KV_FP8_GROUP,
                      (float *)(row + KV_FP8_SCALES_OFFSET) + warp);
    }
}

/* Two blocks a token: the query latent; the cache's row. Few tokens: the last wave of the second
 * makes the index key, and the blocks that are left weights of index heads. Many: they make the
 * keys. */
template <bool FEW>
__global__ void __launch_bounds__(THREADS, FEW ? 2 : 5)
    front_kernel(const struct front_args a, const struct index_head_args h)
{
    __shared__ float scratch[THREADS / WARP + 1];
    const uint32_t token = blockIdx.x / 2, rest = blockIdx.x - 2 * a.n_token;
    dependency_release();
    if (token >= a.n_token) {
        if (FEW) {
#if GPU_TENSOR_CORES
            index_head_block(h, rest);
#endif
        } else {
            const uint32_t i = rest * KEY_TOKENS + threadIdx.x / INDEX_LANES;
            front_index_key(a, min(i, a.n_token - 1), i < a.n_token);
        }
    } else if (blockIdx.x % 2 == 0) {
        front_query(a, token, scratch);
    } else if (!FEW || threadIdx.x < THREADS - GPU_WAVE) {
        front_latent(a, token, scratch);
    } else if (a.has_index) {
        front_index_key(a, token, threadIdx.x % GPU_WAVE < INDEX_LANES);
    }
}

/* The codes that query latents become: those of the first product. */
static enum codes latent_codes(const struct cuda_backend *c, const struct matrix_list *l)
{
    return cuda_codes_of(c, &l->part[0]);
}

/* Whether nobody takes anything else. */
static bool takes_codes_alone(const struct cuda_backend *c, const struct matrix_list *l)
{
    const enum codes codes = latent_codes(c, l);
    ASSERT(l->n >= 1 && l->n <= MATRIX_PARTS_MAX);
    for (uint32_t i = 0; i < l->n; i++) {
        if (!codes || cuda_codes_of(c, &l->part[i]) != codes) return false;
    }
    return true;
}

/* The query latents in `room` as bf16, where all take them so; else NULL. */
static bf16 *rounded_latents(const struct cuda_backend *c, const struct matrix_list *l, float *room)
{
    for (uint32_t i = 0; i < l->n; i++) {
        if (!cuda_wants_bf16(c, &l->part[i])) return NULL;
    }
    return (bf16 *)room;
}

/* Of the rows of `batch`: all of the step's, or own rows. */
static fathom_err run_front(struct cuda_backend *c, const struct mla_front_args *a,
                            const struct batch *batch, const struct index_head_args &h)
{
    const struct weight *w = a->w;
    struct front_args f = {};
    f.front = c->front;
    f.n_token = batch->n_token;
    f.n_front = w->mla.front.n_row;
    f.index_row = w->mla.index_row;
    f.kv_row = w->mla.kv_row;
    f.q_lora = c->c.q_lora_rank;
    f.q_norm = w->mla.q_norm;
    f.kv_norm = w->mla.kv_norm;
    f.index_weight = w->mla.index_weight;
    f.index_bias = w->mla.index_bias;
    float *room = a->owned ? c->own.qa_f : c->qa_f;
    f.qa_codes = latent_codes(c, &w->mla.query);
    f.qa_q = !f.qa_codes ? NULL : a->owned ? c->own.qa_q : c->qa_q;
    f.qa_h = rounded_latents(c, &w->mla.query, room);
    f.qa_f = f.qa_h || takes_codes_alone(c, &w->mla.query) ? NULL : room;
    f.qa_scale = a->owned ? c->own.qa_scale : c->qa_scale;
    f.pos = batch->pos;
    f.slot = batch->slot;
    f.kv = kv_layer_of(a->kv, a->layer);
    for (int i = 0; i < KV_ROPE / 2; i++) f.freq[i] = c->c.rope_freq[i];
    f.interleaved = c->c.rope_interleaved;
    f.index_interleaved = c->c.index_rope_interleaved;
    f.has_index = c->c.index_n_head > 0;
    f.eps = c->c.norm_eps;
    f.reads_ahead = c->recording && !a->owned;
    ASSERT(f.q_lora % 4 == 0 && f.q_lora <= FRONT_LORA_MAX && f.n_front % 4 == 0);
    ASSERT(f.index_row % 4 == 0 && f.kv_row % 4 == 0 && f.kv_row + KV_ROW <= f.n_front);
    ASSERT(!f.qa_q || f.q_lora % FP8_GROUP == 0);
    ASSERT(!f.has_index || (f.index_weight && f.index_bias && f.kv.index > f.kv.latent));
    const bool few = f.n_token <= INDEX_HEAD_FEW_MAX;
    const uint32_t rest = few ? h.n_block : f.has_index ? ceil_div(f.n_token, KEY_TOKENS) : 0;
    return cuda_launch(c, "mla_front", few ? front_kernel<true> : front_kernel<false>,
                       dim3(2 * f.n_token + rest), THREADS, 0, f, h);
}

/* The weights of the index heads, or what front_kernel has to do for them. */
static fathom_err run_index_head(struct cuda_backend *c, const struct mla_front_args *a,
                                 const struct act *x, uint32_t n_token,
                                 struct index_head_args *head, uint32_t *n_part)
{
    const struct matrix *w = &a->w->mla.index_head;
    struct index_head_args h = {};
    h.w = (const bf16 *)w->data;
    h.x = x->h;
    h.n_head = w->n_row;
    h.width = w->n_col;
    h.n_token = n_token;
    h.out = a->owned ? c->own.index_head : c->index_head;
    ASSERT(h.n_head == c->c.index_n_head && h.width == c->c.hidden);
    if (!x->h || w->dtype != DTYPE_BF16 || w->n_col % 64) {
        return cuda_product(c, w, x, h.n_token, h.out, h.n_head, "index_head");
    }
    if (a->owned || h.n_token > INDEX_HEAD_FEW_MAX) return index_head_many(c, h);
    *head = h;
    head->n_block = index_head_blocks(h);
    *n_part = ceil_div(h.width, INDEX_HEAD_CHUNK);
    return FATHOM_OK;
}

/* ---- rows with owners ---- */

__global__ void __launch_bounds__(THREADS)
    own_batch_kernel(const struct batch batch, uint32_t n_own, uint32_t run, uint32_t rank,
                     uint32_t world, int32_t *out)
{
    const uint32_t place = blockIdx.x * THREADS + threadIdx.x;
    kernel_begin();
    if (place >= n_own) return;
    const uint32_t row = own_row(place, run, rank, world);
    out[place] = batch.slot[row];
    out[n_own + place] = batch.pos[row];
    out[2 * n_own + place] = batch.request[row];
}

void front_own_batch(const struct cuda_backend *c, const struct batch *batch, struct batch *own)
{
    const uint32_t n_own = cuda_own_rows(&c->base, batch->n_token);
    ASSERT(n_own > 0);
    *own = *batch;
    own->n_token = n_own;
    own->slot = c->own.batch;
    own->pos = c->own.batch + n_own;
    own->request = c->own.batch + 2 * n_own;
}

static fathom_err make_own_batch(struct cuda_backend *c, const struct batch *batch,
                                 struct batch *own)
{
    front_own_batch(c, batch, own);
    return cuda_launch(c, "mla_front", own_batch_kernel, dim3(ceil_div(own->n_token, THREADS)),
                       THREADS, 0, *batch, own->n_token, row_run(batch->n_token), c->peers.rank,
                       c->peers.world, c->own.batch);
}

/* index_q_b as a matrix of its own: it lies behind q_b, at a square of scales. */
static struct matrix index_query_of(const struct cuda_backend *c, const struct matrix_list *query)
{
    const uint32_t row = c->c.n_head * QUERY_DIM, n_row = c->c.index_n_head * KV_INDEX_DIM;
    if (query->n > 1) return query->part[1];
    struct matrix m = query->part[0];
    ASSERT(m.row0 == 0 && m.n_row == row + n_row && (!m.scale || row % m.block_row == 0));
    m.n_row = n_row;
    if (m.pack.tile_bytes) {
        m.data = (char *)m.data + pack4_bytes(&m.pack, row, m.n_col);
        if (m.scale) m.scale += row / PACK4_ROWS;
        return m;
    }
    m.data = (char *)m.data +
             (m.tiled ? tiled_at(row, 0, m.n_col) : (size_t)row * m.n_col * dtype_size(m.dtype));
    if (m.scale) m.scale += (size_t)row / m.block_row * m.scale_stride;
    return m;
}

/* How many of the step's rows have their queries made from f32 products. Those of the others, rows
 * in expanded form of many at a time, are what q_b's product leaves. */
static uint32_t plain_rows(const struct cuda_backend *c, const struct mla_front_args *a,
                           const struct act *qa)
{
    const struct expanded_rows e = cuda_expanded_rows(c, a->batch);
    const struct matrix_list *query = &a->w->mla.query;
    const uint32_t n_token = a->batch->n_token;
    struct matrix heads = query->part[0];
    heads.n_row = c->c.n_head * QUERY_DIM;
    const bool apart = query->n > 1 || heads.n_row % SCALE_BLOCK == 0;
    if (e.first >= n_token || cuda_has_selected_prompts(e, a->batch)) return n_token;
    if (!apart || !c->c.rope_interleaved) return n_token;
    return cuda_takes_many(c, &heads, qa, n_token - e.first) ? e.first : n_token;
}

static struct act act_from(const struct act *all, uint32_t row)
{
    struct act a = *all;
    const size_t n = (size_t)row * all->width;
    if (a.f) a.f += n;
    if (a.h) a.h += n;
    if (a.q) a.q += n;
    if (a.scale) a.scale += n / FP8_GROUP;
    return a;
}

/* q_b, and index_q_b when an index query is wanted: rows at the end of one matrix, or the second */
static fathom_err run_query(struct cuda_backend *c, const struct mla_front_args *a,
                            const struct act *qa, uint32_t n_plain)
{
    const struct matrix_list *query = &a->w->mla.query;
    struct matrix_list heads = *query;
    const uint32_t n_head_row = c->c.n_head * QUERY_DIM, n_expanded = a->batch->n_token - n_plain;
    const uint32_t stride = c->c.n_head * KV_ROW;
    const bool index = a->want_index_query && !a->owned;
    const struct act rest = act_from(qa, n_plain);
    heads.n = 1;
    heads.part[0].n_row = n_head_row;
    ASSERT(query->n_row == n_head_row + c->c.index_n_head * KV_INDEX_DIM);
    ASSERT(query->n == 1 || query->part[0].n_row == n_head_row);
    if (n_plain)
        TRY(cuda_product_list(c, index ? query : &heads, qa, n_plain, c->query, "q_b, index_q_b"));
    if (!n_expanded) return FATHOM_OK;
    const struct query_rows rows = {a->query->h + (size_t)n_plain * stride, stride,
                                    c->query + (size_t)n_plain * query->n_row, query->n_row};
    TRY(front_angles(c, a, n_plain));
    TRY(cuda_product_query(c, &heads.part[0], &rest, n_expanded, &rows, "q_b"));
    if (!index) return FATHOM_OK;
    const struct matrix m = index_query_of(c, query);
    float *out = c->query + (size_t)n_plain * query->n_row + n_head_row;
    return cuda_product(c, &m, &rest, n_expanded, out, query->n_row, "index_q_b");
}

static fathom_err own_index_queries(struct cuda_backend *c, const struct mla_front_args *a,
                                    const struct batch *own)
{
    const struct matrix m = index_query_of(c, &a->w->mla.query);
    const enum codes codes = latent_codes(c, &a->w->mla.query);
    bf16 *qa_h = rounded_latents(c, &a->w->mla.query, c->own.qa_f);
    const struct act qa = {qa_h ? NULL : c->own.qa_f,
                           qa_h,
                           codes ? c->own.qa_q : NULL,
                           c->own.qa_scale,
                           c->c.q_lora_rank,
                           NULL,
                           codes};
    TRY(cuda_product(c, &m, &qa, own->n_token, c->query, m.n_row, "index_q_b"));
    return front_own_index(c, a, own);
}

/* What the owners have made of their rows, to all: query latents and rows of the cache. */
static fathom_err spread_front(struct cuda_backend *c, const struct mla_front_args *a)
{
    const struct matrix_list *query = &a->w->mla.query;
    const struct kv_layer kv = kv_layer_of(a->kv, a->layer);
    const uint32_t lora = c->c.q_lora_rank;
    struct row_array array[SPREAD_ARRAYS_MAX];
    uint32_t n = 0;
    if (latent_codes(c, query)) {
        array[n++] = {c->qa_q, lora, c->own.qa_q};
        array[n++] = {c->qa_scale, lora / FP8_GROUP * 4, c->own.qa_scale};
    }
    if (rounded_latents(c, query, c->qa_f)) {
        array[n++] = {c->qa_f, lora * 2, c->own.qa_f};
    } else if (!takes_codes_alone(c, query)) {
        array[n++] = {c->qa_f, lora * 4, c->own.qa_f};
    }
    n += cuda_cache_arrays(array + n, &kv, c->c.index_n_head > 0, a->batch->slot);
    if (a->want_index_query) array[n++] = {c->index_head, c->c.index_n_head * 4, c->own.index_head};
    ASSERT(n <= SPREAD_ARRAYS_MAX);
    return cuda_spread(c, array, n, a->batch->n_token);
}

fathom_err cuda_mla_front(struct backend *b, const struct mla_front_args *a)
{
    struct cuda_backend *c = cuda_of(b);
    op_check_mla_front(&c->c, a);
    ASSERT(a->w->kind == WEIGHT_MLA && a->w->mla.front.n_col == c->c.hidden);
    ASSERT(a->x->kind == BUFFER_NORMED && a->query->kind == BUFFER_QUERY);
    const struct act x = act_of(a->x, c->c.hidden);
    struct batch own = *a->batch;
    if (a->owned) TRY(make_own_batch(c, a->batch, &own));
    TRY(cuda_product_list(c, &a->w->mla.front, &x, own.n_token, c->front, "q_a, index_k, kv_a"));
    struct index_head_args head = {};
    uint32_t n_head_part = 1;
    if (a->want_index_query) TRY(run_index_head(c, a, &x, own.n_token, &head, &n_head_part));
    TRY(run_front(c, a, &own, head));
    if (a->owned) TRY(spread_front(c, a));
    if (a->owned && a->want_index_query) TRY(own_index_queries(c, a, &own));
    const enum codes codes = latent_codes(c, &a->w->mla.query);
    bf16 *qa_h = rounded_latents(c, &a->w->mla.query, c->qa_f);
    struct act qa = {qa_h ? NULL : c->qa_f,
                     qa_h,
                     codes ? c->qa_q : NULL,
                     c->qa_scale,
                     c->c.q_lora_rank,
                     NULL,
                     codes};
    const uint32_t n_plain = plain_rows(c, a, &qa);
    TRY(run_query(c, a, &qa, n_plain));
    return front_queries(c, a, n_head_part, n_plain);
}
