/* moe_ep.cu - experts whole on their ranks: rows go to where their experts are, sums come back
 *
 * A call goes in rounds, of peers.at.ep_rows rows of each rank at most, or of ep_rows_listed where
 * so many are listed, and as many as the rank with most rows has, so that all ranks make the same
 * launches. In a round every rank has n_place places, one for each of its rows; a token is a place
 * of a rank, those of rank 0 first.
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
#include "backend/cuda/generic/moe_ep.cuh"
#include "backend/cuda/generic/moe_map.cuh"
#include "backend/cuda/launch.cuh"

static_assert((int)EP_ROWS_MAX <= (int)GRID_YZ_MAX && (int)EP_ROUND_ROWS <= (int)EP_ROWS_MAX,
              "tokens of a round are along y");

/* Where a row, or its flag, lies on all ranks. */
struct ep_slot {
    uint64_t row, flag;
};

static __device__ __forceinline__ struct ep_slot
slot_of(const struct ep_args &a, const struct peers &p, uint32_t epoch, uint32_t source, uint32_t i)
{
    const uint32_t turn = epoch % 2;
    const uint64_t row = ((uint64_t)source * a.n_place + i) * a.row_units;
    const uint64_t flag = ((uint64_t)turn * p.world + source) * p.at.ep_rows_listed + i;
    DCHECK(i < a.n_place && row + a.row_units <= p.at.ep_turn_units);
    const struct ep_slot s = {p.at.ep_row + (turn * p.at.ep_turn_units + row) * PEER_UNIT,
                              p.at.ep_flag + flag * PEER_UNIT};
    return s;
}

/* The flag of an epoch; its lowest bit: a row has come. */
static __device__ __forceinline__ uint32_t flag_of(uint32_t epoch, bool has_row)
{
    return (epoch + 1) << 1 | (has_row ? 1 : 0);
}

/* A block a place. */
__global__ void __launch_bounds__(SEND_THREADS)
    ep_send_kernel(const GRID_CONSTANT struct ep_args a, const GRID_CONSTANT struct peers p)
{
    const uint32_t i = blockIdx.x;
    kernel_begin();
    const uint32_t epoch = p.epochs[p.at.epoch_ep];
    const struct ep_slot slot = slot_of(a, p, epoch, p.rank, i);
    const uint64_t to = i < live_rows(a) ? ranks_of(a, i) & ~(1ull << p.rank) : 0;
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
    const struct ep_slot slot = slot_of(a, p, epoch, source, i);
    const bool own = source == p.rank;
    const bool has_row = own ? i < live_rows(a) : await_row(a, p, slot, epoch, source, i);
    const char *row = p.base[p.rank] + slot.row;
    const uint32_t unit0 = units_of(a, a.n_input); /* of the experts' numbers */
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
    const uint64_t ranks = ranks_of(a, row);
    const uint32_t epoch = p.epochs[p.at.epoch_ep] - 1;
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
    leave_sum<FORM>(a, p.rank, rows, row, i, sum);
    peer_wait_count(p, w, end);
}

/* ---- launches ---- */

static fathom_err peer_rows(struct cuda_backend *c, const struct ep_args *k)
{
    const dim3 places(k->n_place), tokens(c->ep.world * k->n_place);
    TRY(cuda_launch(c, "moe_ep: send", ep_send_kernel, places, SEND_THREADS, 0, *k, c->ep));
    return cuda_launch(c, "moe_ep: arrive", ep_arrive_kernel, tokens, SEND_THREADS, 0, *k, c->ep);
}

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

/* Rows of all ranks in a round; all places, where that is not known. */
static void count_rows(const struct cuda_backend *c, const struct moe_ep_args *a, uint32_t place0,
                       uint32_t n_place, struct ep_counts *rows)
{
    struct parallel p = c->c.parallel;
    ASSERT(c->ep.world <= PARALLEL_RANKS_MAX && n_place > 0);
    for (uint32_t r = 0; r < c->ep.world; r++) {
        parallel_be(&p, r);
        const uint32_t n =
            a->lane_rows ? parallel_lane_rows(&p, a->lane_rows[p.dp.rank]).n : place0 + n_place;
        const uint32_t left = n <= place0 ? 0 : n - place0;
        rows->n[r] = left < n_place ? left : n_place;
    }
}

/* Rows of a rank's experts in a round of so many places, if rows are spread evenly. */
static uint32_t likely_rows(const struct cuda_backend *c, const struct moe_ep_args *a,
                            uint32_t n_place)
{
    return n_place * (c->c.n_expert_used + (a->w->moe.stacked_shared ? 1 : 0));
}

/* Places of the next round, of those that are left: what is there has room for more of them where
 * rows are listed. All ranks come to the same number, for their weights have one form. */
static uint32_t round_places(const struct cuda_backend *c, const struct moe_ep_args *a,
                             uint32_t n_left)
{
    const uint32_t n_any = c->ep.at.ep_rows, n_listed = c->ep.at.ep_rows_listed;
    const uint32_t n = n_left < n_listed ? n_left : n_listed;
    ASSERT(n > 0 && n_any <= n_listed);
    if (n <= n_any || moe_lists_codes(c, a->w, likely_rows(c, a, n))) return n;
    return n_any;
}

static fathom_err run_round(struct cuda_backend *c, const struct moe_ep_args *a, uint32_t place0,
                            uint32_t n_place, bool has_experts)
{
    const uint32_t n_used = c->c.n_expert_used, world = c->ep.world, n_token = world * n_place;
    const bool stacked = a->w->moe.stacked_shared;
    struct ep_args k = {};
    struct ep_counts rows = {};
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
    k.row_units = units_of(k, k.n_array);
    ASSERT(k.n_array <= ROW_ARRAYS_MAX && k.rows_per_token <= SEND_THREADS);
    if (c->net) count_rows(c, a, place0, n_place, &rows);
    TRY(c->net ? cuda_net_rows(c, &k, &rows) : peer_rows(c, &k));
    const bool is_any = n_place <= c->ep.at.ep_rows;
    enum row_form form = is_any ? ROWS_FLOAT_TO_ROUND : ROWS_BF16;
    if (has_experts) {
        TRY(moe_map_present(c, a->w, c->round.experts, n_token, likely_rows(c, a, n_place)));
        TRY(moe_run_experts(c, a->w, &x, &form));
    }
    ASSERT(is_any || form == ROWS_BF16);
    return c->net ? cuda_net_sums(c, &k, &rows, form) : bring_back_as(c, &k, form);
}

static fathom_err run_rounds(struct cuda_backend *c, const struct moe_ep_args *a, bool has_experts)
{
    const uint32_t n_most = ceil_div(a->n_most, c->c.parallel.tp.size);
    ASSERT(c->ep.world > 1 && c->ep.at.ep_rows > 0);
    for (uint32_t place0 = 0, n; place0 < n_most; place0 += n) {
        n = round_places(c, a, n_most - place0);
        TRY(run_round(c, a, place0, n, has_experts));
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
