/* moe_ep_net.cu - rounds of moe_ep over ranks on several hosts
 *
 * What the host knows is all that a group of sends is made of, so that recordings hold it: each
 * place of a round travels to every rank, whether there is a row or not. In a step that runs as it
 * is the host knows how many rows each rank has (moe_ep_args.lane_rows), and only these do.
 *
 *   pack    own places: the row and its route, one behind the other; a route of no experts where
 *           there is no row
 *   ...     to all ranks, whose rows come to their places beside the own ones
 *   arrive  each token: its row to where the experts read, its experts here
 *   give    each token: the sum of its experts here, packed as it travels
 *   ...     to each rank what is of its rows
 *   take    as in moe_ep.cu, of own rows
 *
 * Slots are by rank and place, and sums by the rank that gives them, so that rows, order and bits
 * are those of ranks in one process. A queue has all of it: what has been sent may be written. */
#include "backend/cuda/generic/collect_net.cuh"
#include "backend/cuda/generic/moe_ep.cuh"
#include "backend/cuda/launch.cuh"

/* A block an own place: rows [n_place][a.row_units]. */
__global__ void __launch_bounds__(SEND_THREADS)
    net_pack_kernel(const GRID_CONSTANT struct ep_args a, char *rows)
{
    const uint32_t i = blockIdx.x, n_unit = a.row_units;
    char *const row = rows + (size_t)i * n_unit * PEER_UNIT;
    kernel_begin();
    const bool has_row = i < live_rows(a);
    for (uint32_t u = threadIdx.x; u < n_unit; u += blockDim.x) {
        uint32_t unit = u;
        const uint32_t k = find_array(a, a.n_array, &unit);
        const uint4 none = make_uint4(UINT32_MAX, UINT32_MAX, UINT32_MAX, UINT32_MAX);
        if (!has_row && k != a.n_input) continue;
        *(uint4 *)(row + (size_t)u * PEER_UNIT) = has_row ? own_unit(a.array[k], i, unit) : none;
    }
}

/* A block a token: rows [world][n_place][a.row_units], of which `counts` have come. */
__global__ void __launch_bounds__(SEND_THREADS)
    net_arrive_kernel(const GRID_CONSTANT struct ep_args a,
                      const GRID_CONSTANT struct ep_counts counts, const char *rows, uint32_t rank)
{
    const uint32_t token = blockIdx.x, n_unit = a.row_units;
    const uint32_t source = token / a.n_place, i = token % a.n_place;
    const uint32_t n_input = units_of(a, a.n_input), k = threadIdx.x;
    const char *const row = rows + (size_t)token * n_unit * PEER_UNIT;
    const int32_t *const experts = (const int32_t *)(row + (size_t)n_input * PEER_UNIT);
    const float *const weights =
        (const float *)(row + (size_t)units_of(a, a.n_input + 1) * PEER_UNIT);
    kernel_begin();
    const bool own = source == rank, has_row = i < counts.n[source] && experts[0] >= 0;
    bool reads = own;
    for (uint32_t e = 0; e < a.n_used && has_row; e++) reads |= a.place[experts[e]] >> 8 == rank;
    for (uint32_t u = k; u < n_input && has_row && reads; u += blockDim.x) {
        uint32_t unit = u;
        const struct ep_array &r = a.array[find_array(a, a.n_input, &unit)];
        peer_unit_put(r.to + (size_t)token * r.n_byte + (size_t)unit * PEER_UNIT,
                      unit_bytes(r, unit), *(const uint4 *)(row + (size_t)u * PEER_UNIT));
    }
    if (k >= a.rows_per_token) return;
    int32_t here = k == a.n_used && own && has_row ? a.shared : -1;
    if (k < a.n_used && has_row) {
        const uint32_t place = a.place[experts[k]];
        if (place >> 8 == rank) here = (int32_t)(place & 0xff);
        a.weights[(size_t)token * a.n_used + k] = weights[k];
    }
    a.experts[(size_t)token * a.rows_per_token + k] = here;
}

/* Where column i of a token's sum lies: [token][n], as it travels. */
template <enum row_form FORM>
static __device__ __forceinline__ size_t sum_at(const struct ep_args &a, uint32_t token, uint32_t i)
{
    return ((size_t)token * a.n + i) * ep_wire<FORM>::COLUMN_BYTES;
}

/* A block a token and BLOCK_COLUMNS columns. */
template <enum row_form FORM>
__global__ void __launch_bounds__(SUM_THREADS)
    net_give_kernel(const GRID_CONSTANT struct ep_args a, char *sums,
                    const typename row_value<FORM>::type *rows)
{
    const uint32_t i = (blockIdx.x * SUM_THREADS + threadIdx.x) * ep_wire<FORM>::COLUMNS;
    float4 sum[ep_wire<FORM>::QUADS];
    kernel_begin();
    if (i >= a.n || !sum_experts<FORM>(a, blockIdx.y, rows, i, sum)) return;
    *(uint4 *)(sums + sum_at<FORM>(a, blockIdx.y, i)) = peer_pack(sum);
}

/* A block an own row, or one of the lane's other rows, and BLOCK_COLUMNS columns: own [world]
 * [n_place] as given here, of which those of this rank's rows count, and others likewise as they
 * have come, by the ranks that gave them. */
template <enum row_form FORM>
__global__ void __launch_bounds__(SUM_THREADS)
    net_take_kernel(const GRID_CONSTANT struct ep_args a, const char *own, const char *others,
                    const typename row_value<FORM>::type *rows, uint32_t rank, uint32_t world)
{
    constexpr uint32_t QUADS = ep_wire<FORM>::QUADS;
    const uint32_t i = (blockIdx.x * SUM_THREADS + threadIdx.x) * ep_wire<FORM>::COLUMNS;
    const uint32_t row = blockIdx.y;
    kernel_begin();
    if (i >= a.n) return;
    if (row >= a.n_own) return leave_zeros<QUADS>(a, row - a.n_own, i);
    if (row >= live_rows(a)) return;
    const uint64_t ranks = ranks_of(a, row);
    float4 sum[QUADS] = {};
    bool first = true;
    for (uint32_t r = 0; r < world; r++) {
        if (!(ranks >> r & 1)) continue;
        const char *const from = r == rank ? own : others;
        float4 v[QUADS];
        peer_unpack(*(const uint4 *)(from + sum_at<FORM>(a, r * a.n_place + row, i)), v);
#pragma unroll
        for (uint32_t q = 0; q < QUADS; q++) sum[q] = first ? v[q] : peer_add(sum[q], v[q]);
        first = false;
    }
    leave_sum<FORM>(a, rank, rows, row, i, sum);
}

/* ---- launches ---- */

fathom_err cuda_net_rows(struct cuda_backend *c, const struct ep_args *k,
                         const struct ep_counts *rows)
{
    const uint64_t row_bytes = (uint64_t)k->row_units * PEER_UNIT;
    const uint64_t stride = k->n_place * row_bytes;
    const uint32_t *const n_own = &rows->n[c->ep.rank];
    char *const all = c->net_ep.rows, *const own = all + c->ep.rank * stride;
    const struct net_side out = {own, 0, row_bytes, n_own, 0};
    const struct net_side in = {all, stride, row_bytes, rows->n, 1};
    ASSERT((uint64_t)c->ep.world * k->n_place * k->row_units <= c->ep.at.ep_turn_units);
    if (*n_own > 0)
        TRY(cuda_launch(c, "moe_ep: pack", net_pack_kernel, dim3(*n_own), SEND_THREADS, 0, *k,
                        own));
    TRY(cuda_net_swap_rows(c, &c->ep, &out, &in));
    return cuda_launch(c, "moe_ep: arrive", net_arrive_kernel, dim3(c->ep.world * k->n_place),
                       SEND_THREADS, 0, *k, *rows, (const char *)all, c->ep.rank);
}

template <enum row_form FORM>
static fathom_err bring_back(struct cuda_backend *c, const struct ep_args *k,
                             const struct ep_counts *counts)
{
    typedef typename row_value<FORM>::type value;
    const value *rows = (const value *)c->expert_out;
    const uint32_t n_col = ceil_div(k->n, ep_wire<FORM>::BLOCK_COLUMNS), world = c->ep.world;
    const uint64_t row_bytes = (uint64_t)k->n * ep_wire<FORM>::COLUMN_BYTES;
    const uint64_t stride = k->n_place * row_bytes;
    char *const own = c->net_ep.sums, *const others = own + world * stride;
    const struct net_side out = {own, stride, row_bytes, counts->n, 1};
    const struct net_side in = {others, stride, row_bytes, &counts->n[c->ep.rank], 0};
    ASSERT(k->n % ep_wire<FORM>::COLUMNS == 0);
    TRY(cuda_launch(c, "moe_ep: give", net_give_kernel<FORM>, dim3(n_col, world * k->n_place),
                    SUM_THREADS, 0, *k, own, rows));
    TRY(cuda_net_swap_rows(c, &c->ep, &out, &in));
    const uint32_t n_row = k->n_own + k->n_other;
    if (n_row == 0) return FATHOM_OK;
    return cuda_launch(c, "moe_ep: take", net_take_kernel<FORM>, dim3(n_col, n_row), SUM_THREADS, 0,
                       *k, (const char *)own, (const char *)others, rows, c->ep.rank, world);
}

fathom_err cuda_net_sums(struct cuda_backend *c, const struct ep_args *k,
                         const struct ep_counts *rows, enum row_form form)
{
    switch (form) {
    case ROWS_FLOAT: return bring_back<ROWS_FLOAT>(c, k, rows);
    case ROWS_FLOAT_TO_ROUND: return bring_back<ROWS_FLOAT_TO_ROUND>(c, k, rows);
    default: return bring_back<ROWS_BF16>(c, k, rows);
    }
}
