/* collect_net.cu - sums, logits, draws and cache rows of ranks on several hosts; moe_ep_net.cu has
 * the rest
 *
 * What a rank has goes to the others as it lies, or rounded (cuda_parts_are_rounded), and what they
 * have comes into scratch: NCCL moves bytes and adds nothing up. A sum is formed as in collect.cu:
 * f32, ascending rank, each rank's own part in its place, rounded too, -0.0 as +0.0. So its bits
 * are those of as many ranks in one process.
 *
 * Few rows go whole to all ranks, who add up all of them. Of many each rank adds up a run: parts to
 * the run's rank, then its sums to all, into the rows that they are of. Those have been sent when
 * they are written again, for one queue has it all. */
#include "backend/cuda/common.cuh"
#include "backend/cuda/generic/collect.cuh"
#include "backend/cuda/generic/collect_net.cuh"
#include "backend/cuda/kv.cuh"
#include "backend/cuda/launch.cuh"
#include "backend/cuda/peers.cuh"
#include "backend/share_round.h"

enum { NET_THREADS = 256 };

/* Bytes that go to a rank of a group and come from it; none where there are none. */
struct parts {
    struct net_part list[NET_PARTS_MAX];
    uint32_t n;
    uint32_t peer0; /* number among all of the one that is rank 0 of the group */
};

static void add_part(struct parts *p, const void *at, uint64_t n, uint32_t rank, bool is_send)
{
    ASSERT(p->n < NET_PARTS_MAX);
    if (n > 0) p->list[p->n++] = {(void *)at, n, p->peer0 + rank, is_send};
}

static fathom_err exchange(struct cuda_backend *c, const struct parts *p)
{
    return p->n > 0 ? net_exchange(c->net, p->list, p->n, c->stream) : FATHOM_OK;
}

/* A rank's rows, sent or received. */
static void add_rows(struct parts *p, const struct net_side *s, uint32_t rank, bool is_send)
{
    const uint64_t n_row = s->n_row[rank * s->n_step];
    add_part(p, (const char *)s->at + rank * s->stride, n_row * s->row_bytes, rank, is_send);
}

fathom_err cuda_net_swap_rows(struct cuda_backend *c, const struct peers *group,
                              const struct net_side *out, const struct net_side *in)
{
    struct parts p = {};
    p.peer0 = group->peer0;
    for (uint32_t k = 1; k < group->world; k++) {
        const uint32_t r = (group->rank + k) % group->world;
        add_rows(&p, out, r, true);
        add_rows(&p, in, r, false);
    }
    return exchange(c, &p);
}

fathom_err cuda_net_swap(struct cuda_backend *c, const struct peers *group, const void *from,
                         uint64_t stride, void *to, uint64_t n_byte)
{
    static const uint32_t one = 1;
    const struct net_side out = {from, stride, n_byte, &one, 0}, in = {to, n_byte, n_byte, &one, 0};
    return cuda_net_swap_rows(c, group, &out, &in);
}

/* ---- sums ---- */

/* Bytes of a value of a part. */
static uint32_t part_bytes(const struct cuda_backend *c)
{
    return cuda_parts_are_rounded(c) ? 2 : 4;
}

/* A thread's quad of a part. */
static __device__ __forceinline__ float4 read_part(const float *part, uint64_t i)
{
    return peer_value(*(const float4 *)(part + i));
}

static __device__ __forceinline__ float4 read_part(const bf16 *part, uint64_t i)
{
    const uint2 v = *(const uint2 *)(part + i);
    return peer_pairs(v.x, v.y);
}

/* sum[i] = part of rank 0 [i] + part of rank 1 [i] + ..., of which own is this rank's. */
template <typename PART>
__global__ void __launch_bounds__(NET_THREADS)
    net_sum_kernel(float *sum, const PART *own, const PART *parts, uint64_t stride, uint64_t n,
                   uint32_t rank, uint32_t world)
{
    const uint64_t i = ((uint64_t)blockIdx.x * NET_THREADS + threadIdx.x) * 4;
    kernel_begin();
    if (i >= n) return;
    float4 v = peer_value(read_part(rank == 0 ? own : parts, i));
    for (uint32_t r = 1; r < world; r++)
        v = peer_add(v, read_part(r == rank ? own : parts + r * stride, i));
    *(float4 *)(sum + i) = v;
}

/* Parts as they are sent, where these are rounded. */
__global__ void __launch_bounds__(NET_THREADS)
    net_round_kernel(bf16 *to, const float *from, uint64_t n)
{
    const uint64_t i = ((uint64_t)blockIdx.x * NET_THREADS + threadIdx.x) * 4;
    kernel_begin();
    if (i >= n) return;
    const float4 v = *(const float4 *)(from + i);
    *(uint2 *)(to + i) = make_uint2(peer_pair(v.x, v.y), peer_pair(v.z, v.w));
}

static uint32_t quad_blocks(uint64_t n)
{
    const uint64_t n_block = (n / 4 + NET_THREADS - 1) / NET_THREADS;
    ASSERT(n % 4 == 0 && n_block <= UINT32_MAX);
    return (uint32_t)n_block;
}

/* This rank's part of n_row rows as it is sent: delta itself, or behind the others' in net_parts */
static fathom_err own_parts(struct cuda_backend *c, const float *delta, uint32_t n_row,
                            const char **own)
{
    const uint64_t n = (uint64_t)n_row * c->c.hidden;
    *own = (const char *)delta;
    if (!cuda_parts_are_rounded(c)) return FATHOM_OK;
    const uint64_t n_before = c->peers.world * ceil_div(NET_ROWS, c->peers.world);
    bf16 *const to = (bf16 *)c->net_parts + n_before * c->c.hidden;
    *own = (const char *)to;
    return cuda_launch(c, "reduce_norm", net_round_kernel, dim3(quad_blocks(n)), NET_THREADS, 0, to,
                       delta, n);
}

static fathom_err add_up(struct cuda_backend *c, float *sum, const char *own, uint64_t stride,
                         uint32_t n_row)
{
    const uint64_t n = (uint64_t)n_row * c->c.hidden;
    const uint32_t rank = c->peers.rank, world = c->peers.world;
    if (n == 0) return FATHOM_OK;
    if (cuda_parts_are_rounded(c)) {
        return cuda_launch(c, "reduce_norm", net_sum_kernel<bf16>, dim3(quad_blocks(n)),
                           NET_THREADS, 0, sum, (const bf16 *)own, (const bf16 *)c->net_parts,
                           stride, n, rank, world);
    }
    return cuda_launch(c, "reduce_norm", net_sum_kernel<float>, dim3(quad_blocks(n)), NET_THREADS,
                       0, sum, (const float *)own, (const float *)c->net_parts, stride, n, rank,
                       world);
}

static fathom_err sum_few(struct cuda_backend *c, float *delta, uint32_t n_row)
{
    const uint64_t n = (uint64_t)n_row * c->c.hidden;
    const char *own;
    TRY(own_parts(c, delta, n_row, &own));
    TRY(cuda_net_swap(c, &c->peers, own, 0, c->net_parts, n * part_bytes(c)));
    return add_up(c, delta, own, n, n_row);
}

/* Rows of a rank, in runs of equal length, the last ones shorter or empty. */
static struct row_run run_of(uint32_t rank, uint32_t n_row, uint32_t world)
{
    const uint32_t n = ceil_div(n_row, world), first = n * rank;
    if (first >= n_row) return {n_row, 0};
    return {first, n_row - first < n ? n_row - first : n};
}

static fathom_err sum_many(struct cuda_backend *c, float *delta, uint32_t n_row)
{
    const uint32_t rank = c->peers.rank, world = c->peers.world;
    const uint64_t hidden = c->c.hidden, stride = ceil_div(n_row, world) * hidden;
    const uint64_t row_bytes = hidden * part_bytes(c);
    const struct row_run own = run_of(rank, n_row, world);
    float *const sum = delta + own.first * hidden;
    struct parts to_owners = {}, to_all = {};
    const char *parts;
    to_owners.peer0 = to_all.peer0 = c->peers.peer0;
    TRY(own_parts(c, delta, n_row, &parts));
    for (uint32_t k = 1; k < world; k++) {
        const uint32_t r = (rank + k) % world;
        const struct row_run run = run_of(r, n_row, world);
        add_part(&to_owners, parts + run.first * row_bytes, run.n * row_bytes, r, true);
        add_part(&to_owners, (char *)c->net_parts + r * stride * part_bytes(c), own.n * row_bytes,
                 r, false);
        add_part(&to_all, sum, own.n * hidden * 4, r, true);
        add_part(&to_all, delta + run.first * hidden, run.n * hidden * 4, r, false);
    }
    TRY(exchange(c, &to_owners));
    TRY(add_up(c, sum, parts + own.first * row_bytes, stride, own.n));
    return exchange(c, &to_all);
}

fathom_err cuda_net_sum(struct cuda_backend *c, float *delta, uint32_t n_row)
{
    const uint32_t few = peer_one_shot_rows(c->peers.world);
    ASSERT(c->net && c->peers.world > 1 && delta);
    if (n_row <= few) return sum_few(c, delta, n_row);
    for (uint32_t row = 0; row < n_row; row += NET_ROWS) {
        const uint32_t n = n_row - row < NET_ROWS ? n_row - row : NET_ROWS;
        TRY(sum_many(c, delta + (size_t)row * c->c.hidden, n));
    }
    return FATHOM_OK;
}

/* ---- logits ---- */

/* Rows of a group of sends: those of each owner to it, and those of this rank from all. */
static fathom_err logits_of(struct cuda_backend *c, const float *part, float *out, uint32_t n_row)
{
    const uint32_t rank = c->peers.rank, world = c->peers.world, n_vocab = c->c.n_vocab;
    const uint32_t n_part = n_vocab / world, n_own = (n_row + world - 1 - rank) / world;
    struct parts p = {};
    p.peer0 = c->peers.peer0;
    for (uint32_t row = 0; row < n_row; row++) {
        const uint32_t owner = row % world;
        if (owner != rank) add_part(&p, part + (size_t)row * n_part, n_part * 4ull, owner, true);
        for (uint32_t k = 1; k < world && owner == rank; k++) {
            const uint32_t r = (rank + k) % world;
            add_part(&p, out + (size_t)row * n_vocab + (size_t)r * n_part, n_part * 4ull, r, false);
        }
    }
    TRY(exchange(c, &p));
    if (n_own == 0) return FATHOM_OK;
    CU_TRY(c,
           gpu_memcpy_2d_async(out + (size_t)rank * n_vocab + (size_t)rank * n_part,
                               (size_t)world * n_vocab * 4, part + (size_t)rank * n_part,
                               (size_t)world * n_part * 4, n_part * 4ull, n_own, GPU_EITHER_WAY,
                               c->stream),
           "head");
    return FATHOM_OK;
}

fathom_err cuda_net_logits(struct cuda_backend *c, const float *part, float *out, uint32_t n_row)
{
    const uint32_t world = c->peers.world, wave = NET_PARTS_MAX / (2 * world) * world;
    ASSERT(world > 1 && c->c.n_vocab % world == 0);
    for (uint32_t row = 0; row < n_row; row += wave) {
        const uint32_t n = n_row - row < wave ? n_row - row : wave;
        TRY(logits_of(c, part + (size_t)row * (c->c.n_vocab / world),
                      out + (size_t)row * c->c.n_vocab, n));
    }
    return FATHOM_OK;
}

/* ---- draws ---- */

/* What is drawn for a row, word by word. */
static __device__ __forceinline__ uint32_t *draw_word(const struct sample_args &a, uint32_t row,
                                                      uint32_t i)
{
    const uint32_t top = row * SAMPLE_TOP_MAX;
    switch (i) {
    case 0: return (uint32_t *)&a.ids[row];
    case 1: return (uint32_t *)&a.logprobs[row];
    case 2: return (uint32_t *)&a.ranks[row];
    default:
        i -= 3;
        return i < SAMPLE_TOP_MAX ? (uint32_t *)&a.top_ids[top + i]
                                  : (uint32_t *)&a.top_logprobs[top + i - SAMPLE_TOP_MAX];
    }
}

/* One block a row: this rank's words, to be sent. */
__global__ void net_pack_draws(const struct sample_args a, uint32_t *out)
{
    kernel_begin();
    if (threadIdx.x < NET_DRAW_WORDS)
        out[blockIdx.x * NET_DRAW_WORDS + threadIdx.x] = *draw_word(a, blockIdx.x, threadIdx.x);
}

/* The words of the rank that has drawn the row: all [world][n_row][NET_DRAW_WORDS]. */
__global__ void net_take_draws(const struct sample_args a, const uint32_t *all, uint32_t rank,
                               uint32_t world)
{
    const uint32_t row = blockIdx.x;
    kernel_begin();
    const uint32_t owner = draw_owner(a.rows[row].logit_row, world);
    if (owner == rank || threadIdx.x >= NET_DRAW_WORDS) return;
    const size_t at = ((size_t)owner * gridDim.x + row) * NET_DRAW_WORDS + threadIdx.x;
    *draw_word(a, row, threadIdx.x) = all[at];
}

fathom_err cuda_net_draws(struct cuda_backend *c, const struct sample_args *a)
{
    const uint32_t world = c->peers.world, n_word = a->n_row * NET_DRAW_WORDS;
    uint32_t *const all = c->net_draws, *const own = all + (size_t)c->peers.rank * n_word;
    static_assert(NET_DRAW_WORDS <= 2 * WARP, "a row's words have a thread each");
    TRY(cuda_launch(c, "sample", net_pack_draws, dim3(a->n_row), 2 * WARP, 0, *a, own));
    TRY(cuda_net_swap(c, &c->peers, own, 0, all, n_word * 4ull));
    return cuda_launch(c, "sample", net_take_draws, dim3(a->n_row), 2 * WARP, 0, *a,
                       (const uint32_t *)all, c->peers.rank, world);
}

/* ---- rows of a cache ---- */

enum { NET_SHARE_THREADS = 64 };

/* Rows of positions one behind the other, packed from row `row` on, by blocks up to `end`. */
struct net_piece {
    uint32_t position, row, end;
};

struct net_share_args {
    struct row_array array[SPREAD_ARRAYS_MAX]; /* of the cache */
    uint32_t n_array, row_units;
    const int32_t *pages;
    char *rows; /* packed: [row][row_units] of PEER_UNIT */
    bool packs; /* into rows, or else out of them */
    struct net_piece piece[SHARE_SEGMENTS_MAX];
};

/* A block a row. */
__global__ void __launch_bounds__(NET_SHARE_THREADS)
    net_share_kernel(const GRID_CONSTANT struct net_share_args a)
{
    uint32_t i = 0;
    kernel_begin();
    while (blockIdx.x >= a.piece[i].end) i++;
    const uint32_t k = blockIdx.x - (i > 0 ? a.piece[i - 1].end : 0);
    const uint32_t slot = (uint32_t)kv_slot(a.pages, (int)(a.piece[i].position + k));
    char *const row = a.rows + (size_t)(a.piece[i].row + k) * a.row_units * PEER_UNIT;
    for (uint32_t u = threadIdx.x; u < a.row_units; u += blockDim.x) {
        uint32_t unit = u, which = 0;
        while (unit >= ceil_div(a.array[which].n_byte, PEER_UNIT))
            unit -= ceil_div(a.array[which++].n_byte, PEER_UNIT);
        const struct row_array &r = a.array[which];
        const uint32_t left = r.n_byte - unit * PEER_UNIT;
        const uint32_t n_byte = left < PEER_UNIT ? left : PEER_UNIT;
        char *const at = (char *)r.data + slot / KV_PAGE_TOKENS * r.page_bytes +
                         (size_t)(slot % KV_PAGE_TOKENS) * r.n_byte + unit * PEER_UNIT;
        uint4 *const packed = (uint4 *)(row + (size_t)u * PEER_UNIT);
        if (a.packs)
            *packed = peer_unit(at, n_byte);
        else
            peer_unit_put(at, n_byte, *packed);
    }
}

/* Rows of a round, of this rank's lane, or else of the others. */
static fathom_err move_cache_rows(struct cuda_backend *c, struct net_share_args *k,
                                  const struct share_piece *pieces, uint32_t n_piece,
                                  uint32_t n_run, bool packs)
{
    const struct parallel *p = &c->c.parallel;
    uint32_t n = 0, n_row = 0;
    ASSERT(n_run >= 1 && n_piece <= SHARE_SEGMENTS_MAX);
    for (uint32_t i = 0; i < n_piece; i++) {
        const struct share_piece *of = &pieces[i];
        if ((of->lane == p->dp.rank) != packs) continue;
        n_row += of->n_row;
        const uint32_t rank = of->lane * p->tp.size + p->tp.rank;
        k->piece[n++] = {of->position, rank * n_run + of->row, n_row};
    }
    k->packs = packs;
    if (n_row == 0) return FATHOM_OK;
    return cuda_launch(c, packs ? "share_rows: pack" : "share_rows: put", net_share_kernel,
                       dim3(n_row), NET_SHARE_THREADS, 0, *k);
}

/* Rows [row0, row0 + n_run) of each lane, between its rank and their like. */
static fathom_err share_round(struct cuda_backend *c, struct net_share_args *k,
                              const struct batch_share *s, uint32_t row0, uint32_t n_run)
{
    const struct parallel *p = &c->c.parallel;
    const uint64_t row_bytes = (uint64_t)k->row_units * PEER_UNIT, stride = n_run * row_bytes;
    struct share_piece pieces[SHARE_SEGMENTS_MAX];
    uint32_t in_rows[PARALLEL_RANKS_MAX] = {}, out_rows[PARALLEL_RANKS_MAX] = {};
    const uint32_t n_piece = share_round_pieces(pieces, s, row0, n_run);
    ASSERT(k->row_units > 0 && k->rows);
    for (uint32_t lane = 0; lane < p->dp.size; lane++) {
        const uint32_t rank = lane * p->tp.size + p->tp.rank;
        in_rows[rank] = share_round_rows(s, lane, row0, n_run);
        out_rows[rank] = share_round_rows(s, p->dp.rank, row0, n_run);
    }
    const struct net_side out = {k->rows + c->ep.rank * stride, 0, row_bytes, out_rows, 1};
    const struct net_side in = {k->rows, stride, row_bytes, in_rows, 1};
    TRY(move_cache_rows(c, k, pieces, n_piece, n_run, true));
    TRY(cuda_net_swap_rows(c, &c->ep, &out, &in));
    return move_cache_rows(c, k, pieces, n_piece, n_run, false);
}

/* As many rows at once as there is room for rows of moe_ep. */
fathom_err cuda_net_share(struct cuda_backend *c, const struct share_rows_args *a)
{
    const struct batch_share *s = a->share;
    const struct kv_layer kv = kv_layer_of(a->kv, a->layer);
    const uint32_t world = c->ep.world;
    struct net_share_args k = {};
    uint32_t n_most = 0;
    k.n_array = cuda_cache_arrays(k.array, &kv, c->c.kv.has_index, NULL);
    k.pages = a->pages;
    k.rows = c->net_ep.rows;
    for (uint32_t i = 0; i < k.n_array; i++) k.row_units += ceil_div(k.array[i].n_byte, PEER_UNIT);
    const uint64_t n_room = c->ep.at.ep_turn_units / ((uint64_t)world * k.row_units);
    const uint32_t n_run = n_room < s->n_row ? (uint32_t)n_room : s->n_row;
    ASSERT(n_run >= 1 && world == parallel_n_peer(&c->c.parallel));
    for (uint32_t lane = 0; lane < c->c.parallel.dp.size; lane++) {
        const uint32_t n = share_round_rows(s, lane, 0, s->n_row);
        n_most = n > n_most ? n : n_most;
    }
    for (uint32_t row0 = 0; row0 < n_most; row0 += n_run) TRY(share_round(c, &k, s, row0, n_run));
    return FATHOM_OK;
}

/* ---- the first calls ---- */

/* Some bytes to each rank, and from it. */
static fathom_err call_all(struct cuda_backend *c)
{
    const uint64_t n_byte = c->c.hidden * 4ull;
    char *const rows = c->net_ep.rows;
    if (c->ep.world < 2) return sum_few(c, c->net_parts + (size_t)c->peers.rank * c->c.hidden, 1);
    return cuda_net_swap(c, &c->ep, rows + c->ep.rank * n_byte, 0, rows, n_byte);
}

fathom_err cuda_net_connect(struct backend *b)
{
    struct cuda_backend *c = cuda_of(b);
    if (!c->net) return FATHOM_OK;
    TRY(net_connect(c->net));
    /* Ways between ranks are made by their first call, which must not be recorded. */
    TRY(call_all(c));
    CU_TRY(c, gpu_stream_synchronize(c->stream), "connect");
    return net_check(c->net);
}
