/* moe_ep.cu - experts whole on their ranks: rows go to where their experts are, sums come back
 *
 * A call goes in rounds, of peers.at.ep_rows rows of each rank at most and as many as the rank with
 * most rows has, so that all ranks make the same launches. In a round every rank has n_place
 * places, one for each of its rows; a token is a place of a rank, those of rank 0 first.
 *
 *   send     each place: the row and its route to the ranks that have experts of it; to all others
 *            a flag, with release, which says whether a row has come
 *   arrive   each token: waits for the flag; its row to where the experts read, its experts here
 *   experts  a map of those, gate and up, down (moe_map.cu, moe.cu)
 *   give     each token: the sum of its experts here to its rank, as values that say themselves
 *            that they are there
 *   take     own rows: the ranks' sums, which the route names, ascending, then the shared expert;
 *            in the first round +0 to the lane's other rows
 *
 * Own rows are those that this rank brings of its lane's (parallel_lane_rows).
 *
 * Rows have two turns in the arena, sums one. Whoever sends in round n + 1 has seen a flag of round
 * n from all, so on every rank round n - 1 has ended: its rows have been taken. Whoever gives in
 * round n + 1 has seen flags of that round, so round n has ended there and its places are armed. */
#include "backend/cuda/generic/moe.cuh"
#include "backend/cuda/generic/moe_map.cuh"
#include "backend/cuda/launch.cuh"
#include "backend/cuda/peers.cuh"

enum { SEND_THREADS = 256, SUM_THREADS = 128, SUM_AHEAD = 8, ROW_ARRAYS_MAX = 4 };

/* Bytes of a row: own rows lie at `from`, rows of all ranks go to `to`, NULL: nowhere. */
struct ep_array {
    const char *from;
    char *to;
    uint32_t n_byte;
};

struct ep_args {
    struct ep_array array[ROW_ARRAYS_MAX]; /* input, experts, weights */
    uint32_t n_array, n_input;             /* n_input of them are the input */
    uint32_t n_place, n_own;               /* own rows of the round, as the host knows */
    uint32_t row0;                         /* the first of them, among the lane's */
    uint32_t layer;
    const int32_t *n_live; /* of the lane; NULL: all */
    const uint16_t *place; /* parallel.h */
    uint32_t n_used, rows_per_token;
    int32_t shared;          /* its number among the stacks; -1: it is not there */
    int32_t *experts;        /* [token][rows_per_token]: of this rank, or -1 */
    float *weights;          /* [token][n_used] */
    const float *shared_out; /* [own row], or NULL */
    float *y;                /* [the lane's row] */
    uint32_t n;
    uint32_t n_other, other; /* rows that this rank does not bring, as many are before `other` */
    uint32_t n_brought;      /* and behind these */
};

/* Own rows of the round. */
static __device__ __forceinline__ uint32_t live_rows(const struct ep_args &a)
{
    const uint32_t live = a.n_live ? (uint32_t)*a.n_live : a.row0 + a.n_own;
    return live <= a.row0 ? 0 : min(live - a.row0, a.n_own);
}

static __device__ __forceinline__ const int32_t *route_of(const struct ep_args &a, uint32_t i)
{
    return (const int32_t *)a.array[a.n_input].from + (size_t)i * a.n_used;
}

/* A bit for each rank that has an expert of own row i. */
static __device__ __forceinline__ uint32_t ranks_of(const struct ep_args &a, uint32_t i)
{
    const int32_t *experts = route_of(a, i);
    uint32_t ranks = 0;
    for (uint32_t k = 0; k < a.n_used; k++) ranks |= 1u << (a.place[experts[k]] >> 8);
    return ranks;
}

/* Where a row, or its flag, lies on all ranks. */
struct ep_slot {
    uint64_t row, flag;
};

static __device__ __forceinline__ struct ep_slot slot_of(const struct peers &p, uint32_t epoch,
                                                         uint32_t source, uint32_t i)
{
    const uint64_t at = ((uint64_t)(epoch % 2) * p.world + source) * p.at.ep_rows + i;
    DCHECK(i < p.at.ep_rows);
    const struct ep_slot s = {p.at.ep_row + at * p.at.ep_units * PEER_UNIT,
                              p.at.ep_flag + at * PEER_UNIT};
    return s;
}

/* The flag of an epoch; its lowest bit: a row has come. */
static __device__ __forceinline__ uint32_t flag_of(uint32_t epoch, bool has_row)
{
    return (epoch + 1) << 1 | (has_row ? 1 : 0);
}

/* The array that a unit of a row lies in, and which unit of it that becomes. */
static __device__ __forceinline__ uint32_t find_array(const struct ep_args &a, uint32_t n_array,
                                                      uint32_t *unit)
{
    uint32_t k = 0;
    while (k < n_array && *unit >= ceil_div(a.array[k].n_byte, PEER_UNIT))
        *unit -= ceil_div(a.array[k++].n_byte, PEER_UNIT);
    return k;
}

static __device__ __forceinline__ uint32_t unit_bytes(const struct ep_array &r, uint32_t unit)
{
    const uint32_t left = r.n_byte - unit * PEER_UNIT;
    return left < PEER_UNIT ? left : PEER_UNIT;
}

static __device__ __forceinline__ uint4 own_unit(const struct ep_array &r, uint32_t i,
                                                 uint32_t unit)
{
    return peer_unit(r.from + (size_t)i * r.n_byte + (size_t)unit * PEER_UNIT, unit_bytes(r, unit));
}

/* A block a place. */
__global__ void __launch_bounds__(SEND_THREADS)
    ep_send_kernel(const GRID_CONSTANT struct ep_args a, const GRID_CONSTANT struct peers p)
{
    const uint32_t i = blockIdx.x;
    kernel_begin();
    const uint32_t epoch = p.epochs[p.at.epoch_ep];
    const struct ep_slot slot = slot_of(p, epoch, p.rank, i);
    const uint32_t to = i < live_rows(a) ? ranks_of(a, i) & ~(1u << p.rank) : 0;
    for (uint32_t u = threadIdx.x; to; u += blockDim.x) {
        uint32_t unit = u;
        const uint32_t k = find_array(a, a.n_array, &unit);
        if (k == a.n_array) break;
        const uint4 v = own_unit(a.array[k], i, unit);
        for (uint32_t r = 0; r < p.world; r++) {
            if (to >> r & 1) peer_store(p.base[r] + slot.row + (uint64_t)u * PEER_UNIT, v);
        }
    }
    __syncthreads();
    const uint32_t r = threadIdx.x;
    if (r < p.world && r != p.rank)
        peer_store_release(p.base[r] + slot.flag, flag_of(epoch, to >> r & 1));
}

/* Waits for place i of another rank: whether a row has come. */
static __device__ __forceinline__ bool await_row(const struct ep_args &a, const struct peers &p,
                                                 const struct ep_slot &slot, uint32_t epoch,
                                                 uint32_t source, uint32_t i)
{
    const char *flag = p.base[p.rank] + slot.flag;
    struct peer_wait w = peer_wait_begin(PEER_MOE_EP, a.layer, epoch, a.row0 + i);
    while (threadIdx.x == 0 && peer_load_acquire(flag) >> 1 != flag_of(epoch, false) >> 1)
        peer_wait_more(p, w, source);
    const uint64_t end = peer_wait_end(i == 0 && source == (p.rank + 1) % p.world);
    __syncthreads();
    if (threadIdx.x == 0) peer_wait_count(p, w, end);
    return peer_load(flag).x & 1;
}

/* Word k of an array of a row in the arena, which begins with unit unit0. */
static __device__ __forceinline__ uint32_t sent_word(const char *row, uint32_t unit0, uint32_t k)
{
    const uint4 v = peer_load(row + (size_t)(unit0 + k / 4) * PEER_UNIT);
    return k % 4 == 0 ? v.x : k % 4 == 1 ? v.y : k % 4 == 2 ? v.z : v.w;
}

/* Whose row a block has: blocks go row by row, of the rank behind this one first, so that all ranks
 * send to all at any time. By tokens all would send to rank 0 first, then to rank 1, and share what
 * one of them can take in. */
static __device__ __forceinline__ uint32_t source_of(const struct peers &p, uint32_t at)
{
    return (p.rank + 1 + at % p.world) % p.world;
}

/* A block a token. */
__global__ void __launch_bounds__(SEND_THREADS)
    ep_arrive_kernel(const GRID_CONSTANT struct ep_args a, const GRID_CONSTANT struct peers p)
{
    const uint32_t source = source_of(p, blockIdx.x), i = blockIdx.x / p.world;
    const uint32_t token = source * a.n_place + i;
    kernel_begin();
    const uint32_t epoch = p.epochs[p.at.epoch_ep];
    const struct ep_slot slot = slot_of(p, epoch, source, i);
    const bool own = source == p.rank;
    const bool has_row = own ? i < live_rows(a) : await_row(a, p, slot, epoch, source, i);
    const char *row = p.base[p.rank] + slot.row;
    uint32_t unit0 = 0; /* of the experts' numbers */
    for (uint32_t k = 0; k < a.n_input; k++) unit0 += ceil_div(a.array[k].n_byte, PEER_UNIT);
    for (uint32_t u = threadIdx.x; has_row && u < unit0; u += blockDim.x) {
        uint32_t unit = u;
        const struct ep_array &r = a.array[find_array(a, a.n_input, &unit)];
        const uint4 v = own ? own_unit(r, i, unit) : peer_load(row + (size_t)u * PEER_UNIT);
        peer_unit_put(r.to + (size_t)token * r.n_byte + (size_t)unit * PEER_UNIT,
                      unit_bytes(r, unit), v);
    }
    const uint32_t k = threadIdx.x, route_units = ceil_div(a.n_used * 4, PEER_UNIT);
    if (k >= a.rows_per_token) return;
    int32_t here = k == a.n_used && own && has_row ? a.shared : -1;
    if (k < a.n_used && has_row) {
        const float *weights = (const float *)a.array[a.n_input + 1].from + (size_t)i * a.n_used;
        const uint32_t expert = own ? (uint32_t)route_of(a, i)[k] : sent_word(row, unit0, k);
        const uint32_t place = a.place[expert];
        if (place >> 8 == p.rank) here = (int32_t)(place & 0xff);
        a.weights[(size_t)token * a.n_used + k] =
            own ? weights[k] : __uint_as_float(sent_word(row, unit0 + route_units, k));
    }
    a.experts[(size_t)token * a.rows_per_token + k] = here;
}

/* A thread's columns of a row: 16 bytes as they travel. Sums of rows that are rounded to bf16 are
 * rounded too, to half the bytes; else they are f32. */
template <enum row_form FORM> struct ep_wire {
    static constexpr bool ROUNDED = FORM != ROWS_FLOAT;
    static constexpr uint32_t QUADS = ROUNDED ? 2 : 1, COLUMNS = QUADS * 4;
    static constexpr uint32_t BLOCK_COLUMNS = SUM_THREADS * COLUMNS;
    static constexpr uint32_t COLUMN_BYTES = PEER_UNIT / COLUMNS;
};

/* The quads of a row that begin at `from`. */
static __device__ __forceinline__ void load_quads(const float4 *from, float4 (&v)[1])
{
    v[0] = from[0];
}

static __device__ __forceinline__ void load_quads(const float4 *from, float4 (&v)[2])
{
    v[0] = from[0];
    v[1] = from[1];
}

static __device__ __forceinline__ void load_quads(const uint2 *from, uint2 (&v)[2])
{
    const uint4 both = *(const uint4 *)from;
    v[0] = make_uint2(both.x, both.y);
    v[1] = make_uint2(both.z, both.w);
}

/* The sum of a token's experts here, in ascending order, from column i on; false: it has none. */
template <enum row_form FORM>
static __device__ __forceinline__ bool sum_experts(const struct ep_args &a, uint32_t token,
                                                   const typename row_value<FORM>::type *rows,
                                                   uint32_t i, float4 (&sum)[ep_wire<FORM>::QUADS])
{
    constexpr uint32_t QUADS = ep_wire<FORM>::QUADS;
    const int32_t *experts = a.experts + (size_t)token * a.rows_per_token;
    const float *weights = a.weights + (size_t)token * a.n_used;
    const typename row_value<FORM>::type *from =
        rows + ((size_t)token * a.rows_per_token * a.n + i) / 4;
    bool any = false;
#pragma unroll
    for (uint32_t q = 0; q < QUADS; q++) sum[q] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    for (uint32_t k0 = 0; k0 < a.n_used; k0 += SUM_AHEAD) {
        typename row_value<FORM>::type v[SUM_AHEAD][QUADS];
        float w[SUM_AHEAD];
        bool here[SUM_AHEAD];
#pragma unroll
        for (uint32_t k = 0; k < SUM_AHEAD; k++)
            here[k] = k0 + k < a.n_used && experts[k0 + k] >= 0;
#pragma unroll
        for (uint32_t k = 0; k < SUM_AHEAD; k++) {
            if (!here[k]) continue;
            load_quads(from + (size_t)(k0 + k) * (a.n / 4), v[k]);
            w[k] = weights[k0 + k];
        }
#pragma unroll
        for (uint32_t k = 0; k < SUM_AHEAD; k++) {
            if (!here[k]) continue;
            any = true;
#pragma unroll
            for (uint32_t q = 0; q < QUADS; q++) {
                const float4 x = read_row<FORM>(v[k][q]);
                sum[q].x = fmaf(w[k], x.x, sum[q].x);
                sum[q].y = fmaf(w[k], x.y, sum[q].y);
                sum[q].z = fmaf(w[k], x.z, sum[q].z);
                sum[q].w = fmaf(w[k], x.w, sum[q].w);
            }
        }
    }
    return any;
}

/* Where the sum of a rank's experts of own row i lies on the row's rank. */
template <enum row_form FORM>
static __device__ __forceinline__ uint64_t sum_slot(const struct peers &p, uint32_t i,
                                                    uint32_t rank, uint32_t column)
{
    return p.at.ep_sum +
           (((uint64_t)i * p.world + rank) * p.at.hidden + column) * ep_wire<FORM>::COLUMN_BYTES;
}

/* A block a token and BLOCK_COLUMNS columns. */
template <enum row_form FORM>
__global__ void __launch_bounds__(SUM_THREADS)
    ep_give_kernel(const GRID_CONSTANT struct ep_args a, const GRID_CONSTANT struct peers p,
                   const typename row_value<FORM>::type *rows)
{
    const uint32_t i = (blockIdx.x * SUM_THREADS + threadIdx.x) * ep_wire<FORM>::COLUMNS;
    const uint32_t source = source_of(p, blockIdx.y), place = blockIdx.y / p.world;
    const uint32_t token = source * a.n_place + place;
    float4 sum[ep_wire<FORM>::QUADS];
    kernel_begin();
    if (blockIdx.x + blockIdx.y == 0 && threadIdx.x == 0) p.epochs[p.at.epoch_ep]++;
    if (i >= a.n || !sum_experts<FORM>(a, token, rows, i, sum)) return;
    char *const to = p.base[source] + sum_slot<FORM>(p, place, p.rank, i);
    if (source == p.rank) {
        *(uint4 *)to = peer_pack(sum);
    } else {
        peer_store(to, peer_pack(sum));
    }
}

/* The shared expert's part of own row `row` from column i on, or zeros. */
template <enum row_form FORM>
static __device__ __forceinline__ float4 shared_quad(const struct ep_args &a, uint32_t rank,
                                                     const typename row_value<FORM>::type *rows,
                                                     uint32_t row, uint32_t i)
{
    if (a.shared >= 0) {
        const size_t at = ((size_t)rank * a.n_place + row) * a.rows_per_token + a.n_used;
        return read_row<FORM>(rows[(at * a.n + i) / 4]);
    }
    return *(const float4 *)(a.shared_out + (size_t)row * a.n + i);
}

/* A row that another rank of the lane brings. */
template <uint32_t QUADS>
static __device__ __forceinline__ void leave_zeros(const struct ep_args &a, uint32_t k, uint32_t i)
{
    const uint32_t row = k < a.other ? k : k + a.n_brought;
    float4 *const y = (float4 *)(a.y + (size_t)row * a.n + i);
#pragma unroll
    for (uint32_t q = 0; q < QUADS; q++) y[q] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
}

/* A block an own row, or one of the lane's other rows, and BLOCK_COLUMNS columns. */
template <enum row_form FORM>
__global__ void __launch_bounds__(SUM_THREADS)
    ep_take_kernel(const GRID_CONSTANT struct ep_args a, const GRID_CONSTANT struct peers p,
                   const typename row_value<FORM>::type *rows)
{
    constexpr uint32_t QUADS = ep_wire<FORM>::QUADS;
    const uint32_t i = (blockIdx.x * SUM_THREADS + threadIdx.x) * ep_wire<FORM>::COLUMNS;
    const uint32_t row = blockIdx.y;
    kernel_begin();
    if (i >= a.n) return;
    if (row >= a.n_own) return leave_zeros<QUADS>(a, row - a.n_own, i);
    if (row >= live_rows(a)) return;
    const uint32_t ranks = ranks_of(a, row), epoch = p.epochs[p.at.epoch_ep] - 1;
    struct peer_wait w = peer_wait_begin(PEER_MOE_EP, a.layer, epoch, a.row0 + row);
    float4 sum[QUADS] = {};
    bool first = true;
    for (uint32_t r = 0; r < p.world; r++) {
        if (!(ranks >> r & 1)) continue;
        char *const at = p.base[p.rank] + sum_slot<FORM>(p, row, r, i);
        float4 v[QUADS];
        peer_unpack(r == p.rank ? *(const uint4 *)at : peer_take_words(p, w, at, r), v);
#pragma unroll
        for (uint32_t q = 0; q < QUADS; q++) sum[q] = first ? v[q] : peer_add(sum[q], v[q]);
        first = false;
    }
    const uint64_t end = peer_wait_end(row == 0 && i == 0);
    float4 *const y = (float4 *)(a.y + (size_t)(a.row0 + row) * a.n + i);
    const bool has_shared = a.shared >= 0 || a.shared_out;
#pragma unroll
    for (uint32_t q = 0; q < QUADS; q++) {
        if (has_shared)
            sum[q] = peer_add(sum[q], shared_quad<FORM>(a, p.rank, rows, row, i + 4 * q));
        y[q] = sum[q];
    }
    peer_wait_count(p, w, end);
}

/* ---- launches ---- */

template <enum row_form FORM>
static fathom_err bring_back(struct cuda_backend *c, const struct ep_args *k)
{
    typedef typename row_value<FORM>::type value;
    const value *rows = (const value *)c->expert_out;
    const uint32_t n_col = ceil_div(k->n, ep_wire<FORM>::BLOCK_COLUMNS);
    ASSERT(k->n % ep_wire<FORM>::COLUMNS == 0);
    TRY(cuda_launch(c, "moe_ep: give", ep_give_kernel<FORM>, dim3(n_col, c->ep.world * k->n_place),
                    SUM_THREADS, 0, *k, c->ep, rows));
    const uint32_t n_row = k->n_own + k->n_other;
    if (n_row == 0) return FATHOM_OK;
    return cuda_launch(c, "moe_ep: take", ep_take_kernel<FORM>, dim3(n_col, n_row), SUM_THREADS, 0,
                       *k, c->ep, rows);
}

/* The input of own rows from row0 on, in one form that the experts take, and of all tokens. The
 * form goes by the weights alone, for a rank may have no rows; int8 codes are made where values
 * come. */
static void name_input(const struct cuda_backend *c, const struct moe_ep_args *a, struct ep_args *k,
                       struct act *x)
{
    const struct matrix *up = &a->w->moe.up.first;
    const uint32_t n = c->c.hidden, n_token = k->n_place * c->ep.world;
    const struct act own = act_rows(act_of(a->x, n), k->row0);
    char *const to = (char *)c->round.x;
    *x = {};
    x->width = n;
    if (cuda_wants_fp8(c, up) && own.q) {
        char *const scale = to + (size_t)n_token * n;
        k->array[k->n_array++] = {(const char *)own.q, to, n};
        k->array[k->n_array++] = {(const char *)own.scale, scale, n / FP8_GROUP * 4};
        x->q = (const uint8_t *)to;
        x->scale = (const float *)scale;
        x->codes = CODES_FP8;
    } else if (cuda_wants_bf16(c, up) && own.h) {
        k->array[k->n_array++] = {(const char *)own.h, to, n * 2};
        x->h = (const bf16 *)to;
    } else {
        k->array[k->n_array++] = {(const char *)own.f, to, n * 4};
        x->f = (const float *)to;
    }
    k->n_input = k->n_array;
}

static fathom_err bring_back_as(struct cuda_backend *c, const struct ep_args *k, enum row_form form)
{
    switch (form) {
    case ROWS_FLOAT: return bring_back<ROWS_FLOAT>(c, k);
    case ROWS_FLOAT_TO_ROUND: return bring_back<ROWS_FLOAT_TO_ROUND>(c, k);
    default: return bring_back<ROWS_BF16>(c, k);
    }
}

/* Which rows are own ones in a round whose first place is place0 of those that this rank brings,
 * and which are other ones. */
static void name_rows(const struct cuda_backend *c, const struct moe_ep_args *a, uint32_t place0,
                      struct ep_args *k)
{
    const struct row_run run = parallel_lane_rows(&c->c.parallel, a->n_token);
    const uint32_t left = run.n <= place0 ? 0 : run.n - place0;
    k->n_own = left < k->n_place ? left : k->n_place;
    k->row0 = run.first + place0;
    k->n_other = place0 == 0 ? a->n_token - run.n : 0;
    k->other = run.first;
    k->n_brought = run.n;
    if (a->w->moe.separate_shared) k->shared_out = c->shared_out + (size_t)place0 * c->c.hidden;
    k->y = a->y->f;
}

static fathom_err run_round(struct cuda_backend *c, const struct moe_ep_args *a, uint32_t place0,
                            uint32_t n_place, bool has_experts)
{
    const uint32_t n_used = c->c.n_expert_used, world = c->ep.world, n_token = world * n_place;
    const bool stacked = a->w->moe.stacked_shared;
    struct ep_args k = {};
    struct act x;
    k.n_place = n_place;
    name_rows(c, a, place0, &k);
    k.layer = a->layer;
    k.n_live = a->n_live;
    k.place = a->place;
    k.n_used = n_used;
    k.rows_per_token = n_used + (stacked ? 1 : 0);
    k.shared = stacked ? (int32_t)a->w->moe.up.n - 1 : -1;
    k.experts = c->round.experts;
    k.weights = c->round.weights;
    k.n = c->c.hidden;
    name_input(c, a, &k, &x);
    const size_t at = (size_t)k.row0 * n_used;
    k.array[k.n_array++] = {(const char *)(a->route->i + at), NULL, n_used * 4};
    k.array[k.n_array++] = {(const char *)(a->route->w + at), NULL, n_used * 4};
    ASSERT(k.n_array <= ROW_ARRAYS_MAX && k.rows_per_token <= SEND_THREADS);
    TRY(cuda_launch(c, "moe_ep: send", ep_send_kernel, dim3(n_place), SEND_THREADS, 0, k, c->ep));
    TRY(cuda_launch(c, "moe_ep: arrive", ep_arrive_kernel, dim3(n_token), SEND_THREADS, 0, k,
                    c->ep));
    const uint32_t n_likely = n_place * n_used + (stacked ? n_place : 0);
    enum row_form form = ROWS_FLOAT_TO_ROUND;
    if (has_experts) {
        TRY(moe_map_present(c, a->w, c->round.experts, n_token, n_likely));
        TRY(moe_run_experts(c, a->w, &x, &form));
    }
    return bring_back_as(c, &k, form);
}

static fathom_err run_rounds(struct cuda_backend *c, const struct moe_ep_args *a, bool has_experts)
{
    const uint32_t n_run = c->ep.at.ep_rows, n_most = ceil_div(a->n_most, c->c.parallel.tp.size);
    ASSERT(c->ep.world > 1 && n_run > 0);
    for (uint32_t place0 = 0; place0 < n_most; place0 += n_run) {
        const uint32_t left = n_most - place0;
        TRY(run_round(c, a, place0, left < n_run ? left : n_run, has_experts));
    }
    return FATHOM_OK;
}

fathom_err cuda_moe_ep_ways(struct backend *b, const struct moe_ep_args *a)
{
    return run_rounds(cuda_of(b), a, false);
}

fathom_err cuda_moe_ep(struct backend *b, const struct moe_ep_args *a)
{
    struct cuda_backend *c = cuda_of(b);
    op_check_moe_ep(&c->c, a);
    ASSERT(a->w->kind == WEIGHT_MOE && a->route->kind == BUFFER_ROUTE);
    ASSERT(a->x->kind == BUFFER_NORMED && a->y->kind == BUFFER_DELTA);
    if (c->ep.world < 2) {
        const struct moe_args alone = {a->w, a->x, a->route, a->y, a->n_token};
        return a->n_token > 0 ? cuda_moe(b, &alone) : FATHOM_OK;
    }
    const struct row_run run = parallel_lane_rows(&c->c.parallel, a->n_token);
    if (a->w->moe.separate_shared && run.n > 0) {
        const struct act own = act_rows(act_of(a->x, c->c.hidden), run.first);
        TRY(cuda_ffn_run(c, a->w, own, run.n, c->shared_out));
    }
    return run_rounds(c, a, true);
}
