/* router.cu - the router's scores on the float path, and the choice of experts
 *
 * A block chooses for one token. In a step of one token it also writes the map from experts to
 * rows, which is moe_map.cu's otherwise. */
#include "backend/cuda/generic/moe_map.cuh"
#include "backend/cuda/generic/router.cuh"
#include "backend/cuda/launch.cuh"
#include "backend/cuda/product.cuh"

/* ---- scores, float path ---- */

enum { FLOAT_THREADS = 256 };

/* One block an (expert, token); thread i sums every 256th product, then a tree. */
__global__ void __launch_bounds__(FLOAT_THREADS)
    router_float_kernel(const struct router_args_device a)
{
    __shared__ float scratch[FLOAT_THREADS / WARP];
    kernel_begin();
    const uint32_t e = blockIdx.x, t = blockIdx.y, n = a.w.n_col;
    float sum = 0.0f;
    for (uint32_t k = threadIdx.x; k < n; k += FLOAT_THREADS) {
        size_t at = (size_t)e * n + k;
        float w = a.w.dtype == DTYPE_BF16 ? stored_value<DTYPE_BF16>(a.w.data, at)
                                          : stored_value<DTYPE_F32>(a.w.data, at);
        sum = fmaf(w, a.x[(size_t)t * n + k], sum);
    }
    sum = block_sum(sum, scratch);
    if (threadIdx.x == 0) score_row(a, 0, t)[e] = sum;
}

/* ---- the choice ---- */

enum { CHOOSE_THREADS_MAX = 1024 };
static_assert((int)EXPERTS_MAX < (int)CHOOSE_THREADS_MAX, "a thread an expert");

struct choose_args {
    const float *score; /* [K part][T][pitch] */
    const float *bias;
    uint32_t n_k_part, pitch;
    uint32_t n_expert, n_group, topk_group, n_used;
    float routed_scale;
    bool norm_topk;
    int32_t *experts; /* [T][n_used] */
    float *weights;
    uint32_t n_token;
    const int32_t *n_live; /* NULL: all */
};

/* A block that chooses for a token, a thread an expert. */
struct choice {
    float s[CHOOSE_THREADS_MAX];
    float b[CHOOSE_THREADS_MAX + EXPERT_GROUPS_MAX]; /* a bank further from group to group */
    float group[EXPERT_GROUPS_MAX];
    uint32_t key[CHOOSE_THREADS_MAX]; /* candidates: of each warp its n_used best, descending */
    uint32_t expert[CHOOSE_THREADS_MAX];
    uint32_t chosen[EXPERTS_USED_MAX], sorted[EXPERTS_USED_MAX];
};

/* A key of the same order as the value; never 0, which is what a taken expert has. */
static __device__ __forceinline__ uint32_t order_key(float v)
{
    uint32_t u = __float_as_uint(v + 0.0f); /* one zero */
    return u & 0x80000000u ? ~u : u | 0x80000000u;
}

/* The sum over the parts of K of one expert's score. */
static __device__ __forceinline__ float score_of(const struct choose_args &a, uint32_t token)
{
    const float *from = a.score + (size_t)token * a.pitch + threadIdx.x;
    float x = 0.0f;
#pragma unroll 7
    for (uint32_t k = 0; k < a.n_k_part; k++) x += from[(size_t)k * a.n_token * a.pitch];
    return x;
}

/* first, second: the two largest of what was there and v */
static __device__ __forceinline__ void take_two(float &first, float &second, float v)
{
    second = fmaxf(second, fminf(first, v));
    first = fmaxf(first, v);
}

/* Writes each group's sum of its two largest b: lanes among themselves where a group lies within a
 * warp, else a thread a group. */
static __device__ __forceinline__ void score_groups(const struct choose_args &a, float b,
                                                    uint32_t size, struct choice *ch)
{
    const uint32_t e = threadIdx.x;
    float first = b, second = -INFINITY;
    if (size <= WARP && (size & (size - 1)) == 0) {
        for (int d = 1; d < (int)size; d <<= 1) {
            const float f = shfl_xor(first, d), g = shfl_xor(second, d);
            second = fmaxf(fmaxf(second, g), fminf(first, f));
            first = fmaxf(first, f);
        }
        if (e < a.n_expert && e % size == 0) ch->group[e / size] = size > 1 ? first + second : b;
    } else {
        if (e < a.n_expert) ch->b[e + e / size] = b;
        __syncthreads();
        if (e < a.n_group) {
            first = -INFINITY;
            for (uint32_t i = 0; i < size; i++) take_two(first, second, ch->b[e * (size + 1) + i]);
            ch->group[e] = first + second;
        }
    }
    __syncthreads();
}

/* Whether this thread's expert is in a group that stays: a larger score first, then the lower one.
 */
static __device__ __forceinline__ bool is_kept(const struct choose_args &a, float b,
                                               struct choice *ch)
{
    if (a.topk_group >= a.n_group) return true;
    const uint32_t size = a.n_expert / a.n_group, mine = threadIdx.x / size;
    DCHECK(a.n_group <= EXPERT_GROUPS_MAX && size * a.n_group == a.n_expert);
    score_groups(a, b, size, ch);
    if (mine >= a.n_group) return false;
    const float score = ch->group[mine];
    uint32_t better = 0;
#pragma unroll 8
    for (uint32_t g = 0; g < a.n_group; g++)
        better += ch->group[g] > score || (ch->group[g] == score && g < mine);
    return better < a.topk_group;
}

/* Each warp lists its n_used largest keys, ties to the lower expert. */
static __device__ __forceinline__ void list_candidates(uint32_t key, uint32_t n_used,
                                                       struct choice *ch)
{
    const uint32_t lane = threadIdx.x % WARP, to = threadIdx.x / WARP * n_used;
    DCHECK(n_used >= 1 && to + n_used <= CHOOSE_THREADS_MAX);
#pragma unroll 1
    for (uint32_t k = 0; k < n_used; k++) {
        const uint32_t best = warp_largest(key);
        const unsigned holders = warp_ballot(key == best);
        if (lane != (uint32_t)__ffs((int)holders) - 1) continue;
        ch->key[to + k] = best;
        ch->expert[to + k] = threadIdx.x;
        key = 0;
    }
    __syncthreads();
}

/* The n_used best candidates: those with fewer better ones, counted by several threads each.
 * Candidates stand in the order of their experts as far as keys are equal. */
static __device__ __forceinline__ void choose_candidates(uint32_t n_used, struct choice *ch)
{
    const uint32_t n = blockDim.x / WARP * n_used;
    uint32_t each = 1; /* threads of a candidate */
    while (each * 2 * n_used <= WARP) each *= 2;
    const uint32_t mine = threadIdx.x / each;
    const uint32_t key = mine < n ? ch->key[mine] : 0;
    uint32_t better = 0;
    if (mine < n) {
#pragma unroll 8
        for (uint32_t i = threadIdx.x % each; i < n; i += each)
            better += ch->key[i] > key || (ch->key[i] == key && i < mine);
    }
    for (uint32_t d = 1; d < each; d *= 2) better += shfl_xor(better, (int)d);
    if (mine < n && threadIdx.x % each == 0 && better < n_used)
        ch->chosen[better] = ch->expert[mine];
    __syncthreads();
}

/* By the first warp: the chosen experts in ascending order and their weights. Returns this lane's
 * expert. */
static __device__ __forceinline__ uint32_t write_choice(const struct choose_args &a, uint32_t token,
                                                        uint32_t n_used, struct choice *ch)
{
    const uint32_t lane = threadIdx.x;
    const uint32_t chosen = lane < n_used ? ch->chosen[lane] : 0;
    uint32_t place = 0;
#pragma unroll 8
    for (uint32_t i = 0; i < n_used; i++) place += ch->chosen[i] < chosen;
    if (lane < n_used) ch->sorted[place] = chosen;
    warp_sync();
    float sum = 0.0f;
#pragma unroll 8
    for (uint32_t k = 0; k < n_used; k++) sum += ch->s[ch->sorted[k]];
    if (lane >= n_used) return 0;
    const uint32_t e = ch->sorted[lane];
    DCHECK(e < a.n_expert && (lane == 0 || ch->sorted[lane - 1] < e));
    const float factor = a.norm_topk ? a.routed_scale / sum : a.routed_scale;
    a.experts[(size_t)token * n_used + lane] = (int32_t)e;
    a.weights[(size_t)token * n_used + lane] = ch->s[e] * factor;
    return e;
}

/* A block a token. A step of a single one has its map written at once: a task a row. USED is the
 * number of chosen experts, 0 where any may be: with a known one, what is read one after the other
 * from shared memory is on its way at once. */
template <uint32_t USED>
__global__ void __launch_bounds__(CHOOSE_THREADS_MAX)
    choose_kernel(const struct choose_args a, const struct map_args m)
{
    __shared__ struct choice ch;
    const uint32_t e = threadIdx.x, token = blockIdx.x;
    const bool is_expert = e < a.n_expert;
    const uint32_t n_used = USED ? USED : a.n_used;
    DCHECK(blockDim.x >= a.n_expert && n_used == a.n_used && n_used <= EXPERTS_USED_MAX);
    dependency_release();
    const float bias = is_expert ? a.bias[e] : 0.0f;
    const bool is_live = !a.n_live || token < (uint32_t)*a.n_live; /* there before the step began */
    dependency_wait();
    const float s = 1.0f / (1.0f + expf(-score_of(a, is_live ? token : 0)));
    float b = is_expert ? s + bias : -INFINITY;
    b = b == b ? b : -INFINITY;
    ch.s[e] = s;
    const bool kept = is_kept(a, b, &ch);
    list_candidates(is_expert ? order_key(kept ? b : -INFINITY) : 0, n_used, &ch);
    choose_candidates(n_used, &ch);
    if (e >= WARP) return;
    const uint32_t mine = write_choice(a, token, n_used, &ch);
    if (!m.tasks || e >= m.rows_per_token) return;
    const struct task t = {(int32_t)(e < m.n_used ? mine : m.n_stack - 1), (int32_t)e, 1};
    m.tasks[e] = t;
    m.rows[e] = (int32_t)e;
    if (e == 0) *m.n_task = (int32_t)m.rows_per_token;
}

/* ---- the choice of many tokens: a warp each, whose lanes have neighbouring experts ---- */

enum { LANE_EXPERTS = 8, LANES_EXPERTS = WARP * LANE_EXPERTS, CHOOSE_WARPS = 8 };

/* Needs whole lanes a group, as many of them as a power of two. */
static bool chooses_many(const struct choose_args &a)
{
    const uint32_t lanes = a.n_group ? a.n_expert / a.n_group / LANE_EXPERTS : 0;
    const bool cut = lanes > 0 && lanes * LANE_EXPERTS * a.n_group == a.n_expert;
    if (a.n_token <= ROUTER_FEW_TOKENS || a.n_expert != LANES_EXPERTS || a.n_used > WARP)
        return false;
    return a.topk_group >= a.n_group || (cut && (lanes & (lanes - 1)) == 0);
}

/* Sums over the parts of K of a lane's experts, in the order of score_of. */
static __device__ __forceinline__ void lane_scores(const struct choose_args &a, uint32_t token,
                                                   float (&x)[LANE_EXPERTS])
{
    const float *from = a.score + (size_t)token * a.pitch + threadIdx.x % WARP * LANE_EXPERTS;
#pragma unroll
    for (int i = 0; i < LANE_EXPERTS; i++) x[i] = 0.0f;
#pragma unroll 7
    for (uint32_t k = 0; k < a.n_k_part; k++) {
        const float4 *part = (const float4 *)(from + (size_t)k * a.n_token * a.pitch);
        const float4 low = part[0], high = part[1];
        x[0] += low.x, x[1] += low.y, x[2] += low.z, x[3] += low.w;
        x[4] += high.x, x[5] += high.y, x[6] += high.z, x[7] += high.w;
    }
}

/* is_kept, of all experts of this lane */
static __device__ __forceinline__ bool lane_is_kept(const struct choose_args &a,
                                                    const float (&b)[LANE_EXPERTS])
{
    if (a.topk_group >= a.n_group) return true;
    const uint32_t lanes = a.n_expert / a.n_group / LANE_EXPERTS, lane = threadIdx.x % WARP;
    float first = b[0], second = -INFINITY;
#pragma unroll
    for (int i = 1; i < LANE_EXPERTS; i++) take_two(first, second, b[i]);
    for (int d = 1; d < (int)lanes; d <<= 1) {
        const float f = shfl_xor(first, d), g = shfl_xor(second, d);
        second = fmaxf(fmaxf(second, g), fminf(first, f));
        first = fmaxf(first, f);
    }
    const float score = first + second;
    uint32_t better = 0;
    for (uint32_t g = 0; g < a.n_group; g++) {
        const float other = shfl(score, (int)(g * lanes));
        better += other > score || (other == score && g < lane / lanes);
    }
    return better < a.topk_group;
}

/* A bit for each of this lane's experts that is among the n_used of the largest keys, ties to the
 * lower expert. */
static __device__ __forceinline__ uint32_t choose_keys(uint32_t (&key)[LANE_EXPERTS],
                                                       uint32_t n_used)
{
    uint32_t chosen = 0;
#pragma unroll 1
    for (uint32_t k = 0; k < n_used; k++) {
        uint32_t mine = key[0];
#pragma unroll
        for (int i = 1; i < LANE_EXPERTS; i++) mine = max(mine, key[i]);
        const uint32_t best = warp_largest(mine);
        const unsigned holders = warp_ballot(mine == best);
        bool takes = threadIdx.x % WARP == (uint32_t)__ffs((int)holders) - 1;
#pragma unroll
        for (int i = 0; i < LANE_EXPERTS; i++) {
            if (!takes || key[i] != best) continue;
            key[i] = 0;
            chosen |= 1u << i;
            takes = false;
        }
    }
    return chosen;
}

__global__ void __launch_bounds__(CHOOSE_WARPS *WARP) choose_many_kernel(const struct choose_args a)
{
    __shared__ uint32_t experts[CHOOSE_WARPS][WARP];
    __shared__ float scores[CHOOSE_WARPS][WARP];
    const uint32_t lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const uint32_t token = blockIdx.x * CHOOSE_WARPS + warp;
    float s[LANE_EXPERTS], b[LANE_EXPERTS];
    uint32_t key[LANE_EXPERTS], place = 0;
    DCHECK(a.n_expert == LANES_EXPERTS && a.n_used <= WARP);
    kernel_begin();
    if (token >= a.n_token) return;
    const bool is_live = !a.n_live || token < (uint32_t)*a.n_live;
    lane_scores(a, is_live ? token : 0, s);
#pragma unroll
    for (uint32_t i = 0; i < LANE_EXPERTS; i++) {
        s[i] = 1.0f / (1.0f + expf(-s[i]));
        b[i] = s[i] + a.bias[lane * LANE_EXPERTS + i];
        b[i] = b[i] == b[i] ? b[i] : -INFINITY;
    }
    const bool kept = lane_is_kept(a, b);
#pragma unroll
    for (int i = 0; i < LANE_EXPERTS; i++) key[i] = order_key(kept ? b[i] : -INFINITY);
    const uint32_t chosen = choose_keys(key, a.n_used);
#pragma unroll
    for (int i = 0; i < LANE_EXPERTS; i++) {
        const unsigned holders = warp_ballot((chosen >> i & 1) != 0);
        place += (uint32_t)__popc((int)(holders & ((1u << lane) - 1)));
    }
#pragma unroll
    for (uint32_t i = 0; i < LANE_EXPERTS; i++) {
        if (!(chosen >> i & 1)) continue;
        experts[warp][place] = lane * LANE_EXPERTS + i;
        scores[warp][place++] = s[i];
    }
    warp_sync();
    float sum = 0.0f;
    for (uint32_t k = 0; k < a.n_used; k++) sum += scores[warp][k];
    if (lane >= a.n_used) return;
    const float factor = a.norm_topk ? a.routed_scale / sum : a.routed_scale;
    a.experts[(size_t)token * a.n_used + lane] = (int32_t)experts[warp][lane];
    a.weights[(size_t)token * a.n_used + lane] = scores[warp][lane] * factor;
}

/* ---- launches ---- */

static fathom_err run_scores(struct cuda_backend *c, const struct router_args *a,
                             struct choose_args *k)
{
    struct router_args_device s = {};
    s.w = a->w->moe.router;
    s.x = a->x->f;
    s.n_token = a->n_token;
    s.pitch = k->pitch;
    s.score = c->router_score;
    ASSERT(s.w.n_row == c->c.n_expert && s.w.n_col == c->c.hidden);
    ASSERT((uintptr_t)s.w.data % 16 == 0 && (uintptr_t)s.x % 16 == 0);
    k->n_k_part = 1;
    if (!c->fast || s.w.dtype != DTYPE_BF16 || s.w.n_col % K_LINE) {
        return cuda_launch(c, "router", router_float_kernel, dim3(s.w.n_row, s.n_token),
                           FLOAT_THREADS, 0, s);
    }
    k->n_k_part = router_k_part_count(s.w.n_col);
    return router_fast(c, s, k->n_k_part);
}

fathom_err cuda_router(struct backend *b, const struct router_args *a)
{
    struct cuda_backend *c = cuda_of(b);
    op_check_router(&c->c, a);
    ASSERT(a->w->kind == WEIGHT_MOE && a->x->kind == BUFFER_NORMED);
    ASSERT(a->route->kind == BUFFER_ROUTE);
    struct choose_args k = {};
    k.score = c->router_score;
    k.bias = a->w->moe.bias;
    k.pitch = router_score_pitch(c->c.n_expert);
    k.n_expert = c->c.n_expert;
    k.n_group = c->c.n_group;
    k.topk_group = c->c.topk_group;
    k.n_used = c->c.n_expert_used;
    k.routed_scale = c->c.routed_scale;
    k.norm_topk = c->c.norm_topk;
    k.experts = a->route->i;
    k.weights = a->route->w;
    k.n_token = a->n_token;
    k.n_live = a->n_live;
    ASSERT(k.pitch >= k.n_expert && k.pitch <= CHOOSE_THREADS_MAX && k.pitch % WARP == 0);
    TRY(run_scores(c, a, &k));
    struct map_args m = {};
    c->map.route = NULL;
    if (a->n_token == 1 && k.n_used < WARP && !cuda_has_part(c))
        m = moe_map_args(c, a->w, a->route, 1);
    if (chooses_many(k))
        return cuda_launch(c, "router", choose_many_kernel, dim3(ceil_div(k.n_token, CHOOSE_WARPS)),
                           CHOOSE_WARPS * WARP, 0, k);
    const auto choose = k.n_used == 8 ? choose_kernel<8> : choose_kernel<0>;
    return cuda_launch(c, "router", choose, dim3(a->n_token), k.pitch, 0, k, m);
}
