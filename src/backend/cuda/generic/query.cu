/* query.cu - what follows the query products of mla_front: on the float path a kernel for the
 * query's latent part, one for its rotary part and the index queries; on the fast path
 * query_fast.cu */
#include "backend/cuda/generic/query.cuh"

#include "backend/cuda/generic/front.cuh"

enum {
    FLOAT_THREADS = 256,
    ANGLE_THREADS = 256,
    ROTATE_SM_BLOCKS = 16, /* of a multiprocessor at once */
};

/* The rotary parts and the index queries. */
__global__ void __launch_bounds__(ROTATE_WARPS *WARP) rotate_kernel(const struct query_args a)
{
    dependency_release();
    rotate_heads(a, blockIdx.x * ROTATE_WARPS + threadIdx.x / WARP);
}

/* The angles of tokens from `first` on, a warp a token: a pair's sine and cosine a lane. */
__global__ void __launch_bounds__(ANGLE_THREADS) angles_kernel(const struct query_args a)
{
    const uint32_t token = a.first + blockIdx.x * (ANGLE_THREADS / WARP) + threadIdx.x / WARP;
    float2 *to = (float2 *)(a.angles + (size_t)token * a.n_query);
    kernel_begin();
    if (token >= a.end) return;
    const struct angles x = angles_at(a.freq, a.pos[token]);
    to[threadIdx.x % WARP] = make_float2(x.s, x.c);
}

enum { FLOAT_TOKENS = 8, FLOAT_COLS = 64, FLOAT_SLICES = FLOAT_THREADS / (FLOAT_COLS / 2) };

/* Float path. Block: 64 columns of one head, up to 8 tokens; a thread sums 16 of the 128 terms of
 * two columns, and the 8 sums are added in ascending order. */
__global__ void __launch_bounds__(FLOAT_THREADS) absorb_float_kernel(const struct query_args a)
{
    enum { TERMS = NOPE / FLOAT_SLICES };
    static_assert(NOPE % FLOAT_SLICES == 0 && KV_LATENT % FLOAT_COLS == 0, "nothing is left over");
    static_assert(sizeof(float) * FLOAT_TOKENS * (NOPE + FLOAT_SLICES * FLOAT_COLS) <=
                      SHARED_PLAIN_MAX,
                  "shared memory of a block");
    __shared__ float q[FLOAT_TOKENS][NOPE], part[FLOAT_SLICES][FLOAT_TOKENS][FLOAT_COLS];
    const uint32_t head = blockIdx.x, col0 = blockIdx.y * FLOAT_COLS,
                   t0 = blockIdx.z * FLOAT_TOKENS;
    const uint32_t n = min((uint32_t)FLOAT_TOKENS, a.n_token - t0);
    const int slice = (int)threadIdx.x / (FLOAT_COLS / 2),
              pair = (int)threadIdx.x % (FLOAT_COLS / 2);
    kernel_begin();
    for (uint32_t i = threadIdx.x; i < FLOAT_TOKENS * NOPE; i += FLOAT_THREADS) {
        uint32_t t = i / NOPE, d = i % NOPE;
        q[t][d] = t < n ? a.query[(size_t)(t0 + t) * a.n_query + head * HEAD + d] : 0.0f;
    }
    __syncthreads();
    float2 sum[FLOAT_TOKENS] = {};
    for (int i = slice * TERMS; i < (slice + 1) * TERMS; i++) {
        size_t at = ((size_t)head * KV_B_ROWS + (size_t)i) * KV_LATENT + col0 + (size_t)pair * 2;
        const float2 w = *(const float2 *)(a.kv_b_f + at);
#pragma unroll
        for (int t = 0; t < FLOAT_TOKENS; t++) {
            sum[t].x = fmaf(q[t][i], w.x, sum[t].x);
            sum[t].y = fmaf(q[t][i], w.y, sum[t].y);
        }
    }
#pragma unroll
    for (int t = 0; t < FLOAT_TOKENS; t++) {
        part[slice][t][pair * 2] = sum[t].x;
        part[slice][t][pair * 2 + 1] = sum[t].y;
    }
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < n * FLOAT_COLS; i += FLOAT_THREADS) {
        uint32_t t = i / FLOAT_COLS, col = i % FLOAT_COLS;
        float all = 0.0f;
#pragma unroll
        for (int k = 0; k < FLOAT_SLICES; k++) all += part[k][t][col];
        a.f[((size_t)(t0 + t) * a.n_head + head) * KV_ROW + col0 + col] = all;
    }
}

static struct query_args make_query(const struct cuda_backend *c, const struct mla_front_args *a,
                                    uint32_t n_head_part)
{
    struct query_args q = {};
    ASSERT(a->w->mla.query.n_row % 4 == 0 && (a->w->mla.kv_b || a->w->mla.kv_b_f));
    ASSERT(!a->query->h == !a->w->mla.kv_b && !a->query->f == !a->w->mla.kv_b_f);
    q.query = c->query;
    q.n_query = a->w->mla.query.n_row;
    q.n_head = c->c.n_head;
    q.n_token = q.end = a->batch->n_token;
    q.n_rotate = q.n_head;
    q.kv_b = a->w->mla.kv_b;
    q.kv_b_f = a->w->mla.kv_b_f;
    q.pos = a->batch->pos;
    q.reads_ahead = c->recording && !a->owned;
    q.expanded = cuda_expanded_rows(c, a->batch);
    q.n_absorb_token = q.expanded.first;
    for (int i = 0; i < KV_ROPE / 2; i++) q.freq[i] = c->c.rope_freq[i];
    q.interleaved = c->c.rope_interleaved;
    q.index_interleaved = c->c.index_rope_interleaved;
    q.quantize = c->c.kv.type != KV_TYPE_F32;
    q.h = a->query->h;
    q.f = a->query->f;
    if (!a->want_index_query) return q;
    q.n_index_head = c->c.index_n_head;
    q.head_weight = c->index_head;
    q.n_head_part = n_head_part;
    q.weight_scale = 1.0f / sqrtf((float)q.n_index_head * (float)KV_INDEX_DIM);
    q.index_q = a->query->q;
    q.index_f = a->query->index_f;
    q.index_weight = a->query->index_weight;
    ASSERT(q.n_head_part >= 1 && (!q.index_q || q.quantize));
    return q;
}

/* What is left of rows q.first to q.end behind their products. */
static fathom_err run_queries(struct cuda_backend *c, struct query_args q)
{
    const uint32_t n_token = q.end - q.first;
    const uint32_t n_four =
        ceil_div(q.n_rotate, ROTATE_HEADS) + ceil_div(q.n_index_head, ROTATE_HEADS);
    const uint32_t n_sm = (uint32_t)c->properties.multiProcessorCount;
    q.n_pass = n_token <= ROTATE_SM_BLOCKS * n_sm * ROTATE_WARPS / n_four ? 1 : 4;
    const uint32_t each = q.n_pass * ROTATE_HEADS;
    const uint32_t n_job = ceil_div(q.n_rotate, each) + ceil_div(q.n_index_head, each);
    const uint32_t n_rotate = ceil_div(n_token * n_job, ROTATE_WARPS);
    ASSERT((uint64_t)n_token * n_job <= INT32_MAX);
    if (q.kv_b) return query_fast(c, q, n_rotate);
    return cuda_launch(c, "mla_front", rotate_kernel, dim3(n_rotate), ROTATE_WARPS * WARP, 0, q);
}

static fathom_err absorb_float(struct cuda_backend *c, const struct query_args &q)
{
    const dim3 grid(q.n_head, KV_LATENT / FLOAT_COLS, ceil_div(q.n_token, FLOAT_TOKENS));
    return cuda_launch(c, "mla_front", absorb_float_kernel, grid, FLOAT_THREADS, 0, q);
}

fathom_err front_own_index(struct cuda_backend *c, const struct mla_front_args *a,
                           const struct batch *own)
{
    struct query_args q = make_query(c, a, 1);
    q.n_query = c->c.index_n_head * KV_INDEX_DIM;
    q.n_head = q.n_rotate = 0;
    q.n_token = q.end = own->n_token;
    q.pos = own->pos;
    q.head_weight = c->own.index_head;
    return run_queries(c, q);
}

fathom_err front_angles(struct cuda_backend *c, const struct mla_front_args *a, uint32_t first)
{
    struct query_args q = make_query(c, a, 1);
    static_assert((int)QUERY_DIM >= (int)KV_ROPE, "an angle's sine and cosine a pair");
    q.first = first;
    q.angles = c->query;
    ASSERT(first < q.end && q.n_query % 2 == 0);
    return cuda_launch(c, "mla_front", angles_kernel,
                       dim3(ceil_div(q.end - first, ANGLE_THREADS / WARP)), ANGLE_THREADS, 0, q);
}

fathom_err front_queries(struct cuda_backend *c, const struct mla_front_args *a,
                         uint32_t n_head_part, uint32_t n_plain)
{
    struct query_args q = make_query(c, a, n_head_part);
    if (a->owned) q.n_index_head = 0; /* front_own_index has made them */
    if (n_plain < q.n_token) {
        struct query_args rows = q;
        rows.first = n_plain;
        rows.n_rotate = 0;
        if (rows.n_index_head) TRY(run_queries(c, rows));
        q.end = n_plain;
        if (!n_plain) return FATHOM_OK;
    }
    if (cuda_has_selected_prompts(q.expanded, a->batch)) TRY(absorb_prompts(c, q));
    TRY(q.kv_b ? absorb_fast(c, &q) : absorb_float(c, q));
    return run_queries(c, q);
}
