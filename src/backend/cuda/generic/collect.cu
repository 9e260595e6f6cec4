/* collect.cu - what ranks bring together: sums with the norm behind them, rows, logits
 *
 * Launches of one collective on all ranks have the same shape. Blocks that only send come first, so
 * that whoever waits does not keep what others wait for from running: blocks begin in order. */
#include "backend/cuda/common.cuh"
#include "backend/cuda/generic/collect.cuh"
#include "backend/cuda/generic/norm.cuh"
#include "backend/cuda/kv.cuh"
#include "backend/cuda/launch.cuh"
#include "backend/cuda/peers.cuh"

enum {
    COLLECT_THREADS = 256,
    OWNED_CHUNK = 64, /* places of a chunk of two shots */
    PART_WARPS = 2,   /* of a block, where a row has several, at most */
    PARTS_ROWS = 64,  /* of a launch whose rows have several */
};

/* ---- sums ---- */

struct reduce_args {
    struct norm_args norm; /* of the first row; out: of the first place where there is one */
    uint32_t layer, n_row, run;
    uint32_t n_thread;   /* of a row */
    uint32_t n_part;     /* blocks of a row: a cluster */
    uint32_t chunk, lag; /* of two shots: see owned_row_of */
    enum spread spread;
    bool is_met; /* the last block waits for all ranks */
};

template <int STEPS>
static __device__ __forceinline__ void load_steps(float4 (&v)[STEPS], const float *row,
                                                  const struct row_steps &t)
{
#pragma unroll
    for (int j = 0; j < STEPS; j++) {
        v[j] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (j < t.n) v[j] = *(const float4 *)(row + t.first + (uint32_t)j * t.step);
    }
}

/* A thread's values of a row as they travel: UNITS times 16 bytes, of QUADS steps each. A unit lies
 * where the thread's step of its number would lie: where units are rounded, half of a row's place
 * is left free. */
template <int STEPS, int QUADS>
static __device__ __forceinline__ void pack_steps(uint4 (&unit)[STEPS / QUADS],
                                                  const float4 (&v)[STEPS])
{
#pragma unroll
    for (int j = 0; j < STEPS / QUADS; j++) {
        float4 of_unit[QUADS];
#pragma unroll
        for (int q = 0; q < QUADS; q++) of_unit[q] = v[j * QUADS + q];
        unit[j] = peer_pack(of_unit);
    }
}

/* A row's first n_unit units to where `to` lies in a rank's arena. */
template <int UNITS>
static __device__ __forceinline__ void send_units(const uint4 (&unit)[UNITS], int n_unit, char *to,
                                                  const struct row_steps &t)
{
#pragma unroll
    for (int j = 0; j < UNITS; j++) {
        if (j < n_unit) peer_store(to + (size_t)(t.first + (uint32_t)j * t.step) * 4, unit[j]);
    }
}

/* A row of sums, in f32: none of them is -0. */
template <int STEPS>
static __device__ __forceinline__ void send_steps(const float4 (&v)[STEPS], char *to,
                                                  const struct row_steps &t)
{
    uint4 unit[STEPS];
#pragma unroll
    for (int j = 0; j < STEPS; j++) unit[j] = peer_words(v[j]);
    send_units<STEPS>(unit, t.n, to, t);
}

/* v, which has the sum, becomes the residual with it, which is kept; x holds what it was. */
template <int STEPS>
static __device__ __forceinline__ void add_residual(float4 (&v)[STEPS], const float4 (&x)[STEPS],
                                                    float *row, bool begins,
                                                    const struct row_steps &t)
{
#pragma unroll
    for (int j = 0; j < STEPS; j++) {
        if (j >= t.n) break;
        if (!begins) {
            v[j] = make_float4(x[j].x + v[j].x, x[j].y + v[j].y, x[j].z + v[j].z, x[j].w + v[j].w);
        }
        *(float4 *)(row + t.first + (uint32_t)j * t.step) = v[j];
    }
}

/* What a block counts its calls of a row by, and where the row's squares lie. */
struct row_turn {
    uint32_t *count;
    char *squares;
    uint32_t part, n_part, epoch;
};

/* Needs: turn < one_shot_rows + TWO_SHOT_ROWS, another for rows of other buffers */
static __device__ __forceinline__ struct row_turn row_turn_of(const struct peers &p, uint32_t turn,
                                                              uint32_t part, uint32_t n_part)
{
    struct row_turn t;
    t.count = p.epochs + turn * ROW_PARTS_MAX + part;
    t.squares = p.base[p.rank] + p.at.squares + (uint64_t)turn * ROW_PARTS_MAX * 8;
    t.part = part;
    t.n_part = n_part;
    t.epoch = *t.count;
    return t;
}

/* By one thread, once its block's others have read the epoch. Counts of all parts go on together,
 * for the next call's row may have another number of them. */
static __device__ __forceinline__ void row_turn_end(const struct row_turn &t)
{
    for (uint32_t i = 0; t.part + i < ROW_PARTS_MAX; i += t.n_part) t.count[i] = t.epoch + 1;
}

/* The sum of v over the threads of a row's blocks, as one block with all of them forms it. A warp's
 * sum travels beside its epoch: also that of a warp without values, for whoever has all sums knows
 * that all warps have read their count. A launch begins when the one before has ended, so that
 * nobody still reads what is written over. */
static __device__ __forceinline__ float row_sum(const struct peers &p, struct peer_wait &w,
                                                const struct row_turn &t, float v, float *scratch)
{
    if (t.n_part == 1) return block_sum(v, scratch);
    const uint32_t warp = (t.part * blockDim.x + threadIdx.x) / WARP, lane = threadIdx.x % WARP;
    const uint32_t n_warp = t.n_part * blockDim.x / WARP, tag = t.epoch + 1;
    uint64_t got = 0;
    v = warp_sum(v);
    if (lane == 0) peer_store_8(t.squares + warp * 8, (uint64_t)tag << 32 | __float_as_uint(v));
    if (lane < n_warp) {
        while ((uint32_t)((got = peer_load_8(t.squares + lane * 8)) >> 32) != tag)
            peer_wait_more(p, w, p.rank);
    }
    return warp_sum(__uint_as_float((uint32_t)got));
}

/* A row's blocks send its part to every rank and take theirs. One block alone would move 200 KB
 * each way where eight ranks meet, at what one multiprocessor can. */
template <int STEPS, int QUADS, uint32_t WORLD>
__global__ void __launch_bounds__(WORLD == 2 ? NORM_THREADS : PART_WARPS * WARP, 1)
    one_shot_kernel(const GRID_CONSTANT struct reduce_args a, const GRID_CONSTANT struct peers p)
{
    SHARED_DYNAMIC(float, scratch);
    const struct norm_args &n = a.norm;
    const uint32_t row = blockIdx.x / a.n_part, part = blockIdx.x % a.n_part;
    const struct row_steps t = row_steps_of(n.n, part, a.n_thread);
    const size_t at = (size_t)row * n.n, stride = (size_t)n.n * 4;
    const int n_unit = (t.n + QUADS - 1) / QUADS;
    float4 v[STEPS], x[STEPS];
    uint4 own[STEPS / QUADS];
    if (t.first * STEPS < n.n) prefetch_l2(n.weight + t.first * STEPS);
    dependency_wait();
    const struct row_turn turn = row_turn_of(p, row, part, a.n_part);
    load_steps<STEPS>(v, n.delta + at, t);
    pack_steps<STEPS, QUADS>(own, v);
    const uint64_t slots =
        p.at.one_shot + (uint64_t)((turn.epoch % 2) * p.at.one_shot_rows + row) * WORLD * stride;
#pragma unroll
    for (uint32_t k = 1; k < WORLD; k++)
        send_units(own, n_unit, p.base[(p.rank + k) % WORLD] + slots + p.rank * stride, t);
    dependency_release();
    struct peer_wait w = peer_wait_begin(PEER_REDUCE_NORM, a.layer, turn.epoch, row);
    load_steps<STEPS>(x, n.x + at, t);
    peer_take_sums<STEPS / QUADS, QUADS, WORLD, 4 / QUADS>(
        p, w, p.base[p.rank] + slots + (size_t)t.first * 4, (size_t)t.step * 4, stride, n_unit, own,
        v);
    const uint64_t end = peer_wait_end(blockIdx.x == 0);
    add_residual<STEPS>(v, x, n.x + at, n.begins, t);
    norm_row<STEPS>(
        n, at, v, t, [&](float sum) { return row_sum(p, w, turn, sum, scratch); }, scratch);
    if (threadIdx.x != 0) return;
    row_turn_end(turn);
    peer_wait_count(p, w, end);
}

/* Which row a block of a launch by owners has, and what it does with it. */
enum role { ROLE_SEND, ROLE_OWN, ROLE_TAKE, ROLE_NONE };
struct owned_row {
    enum role role;
    uint32_t owner, place, row;
};

/* Places are worked through in chunks. Stage g of the launch has the blocks that send rows of chunk
 * g, then those that own rows of chunk g - lag, then, where all ranks want them, those that take
 * rows of chunk g - 2 lag: so a chunk's rows are on their way while those before them are summed. A
 * block waits for blocks of earlier roles or stages alone, and blocks begin in order. */
static __device__ __forceinline__ struct owned_row
owned_row_of(uint32_t block, const struct reduce_args &a, uint32_t rank, uint32_t world)
{
    const uint32_t others = (world - 1) * a.chunk, run = a.run;
    const uint32_t stage_blocks = others + a.chunk + (a.spread == SPREAD_OWN ? 0 : others);
    const uint32_t stage = block / stage_blocks, n_place = row_places(a.n_row, run, world);
    uint32_t i = block % stage_blocks, back = 0;
    struct owned_row o = {ROLE_SEND, rank, i, 0};
    if (i >= others + a.chunk) {
        o.role = ROLE_TAKE;
        i -= others + a.chunk;
        back = 2 * a.lag;
    } else if (i >= others) {
        o.role = ROLE_OWN;
        o.place = i - others;
        back = a.lag;
    }
    if (o.role != ROLE_OWN) {
        o.owner = (rank + 1 + i % (world - 1)) % world;
        o.place = i / (world - 1);
    }
    o.place += (stage - back) * a.chunk;
    o.row = own_row(o.place, run, o.owner, world);
    if (stage < back || o.place >= n_place || o.row >= a.n_row) o.role = ROLE_NONE;
    return o;
}

/* A row's blocks have a role: parts to the row's owner; the owner sums, and where all want it sends
 * the sum to them, who take it. What SPREAD_BACK sends is the residual with the sum. */
template <int STEPS, int QUADS, uint32_t WORLD>
__global__ void __launch_bounds__(NORM_THREADS, WORLD == 2 ? 2 : 1)
    two_shot_kernel(const GRID_CONSTANT struct reduce_args a, const GRID_CONSTANT struct peers p)
{
    SHARED_DYNAMIC(float, scratch);
    const struct norm_args &n = a.norm;
    const uint32_t n_place = TWO_SHOT_ROWS / WORLD;
    const uint32_t part = blockIdx.x % a.n_part;
    const struct row_steps t = row_steps_of(n.n, part, a.n_thread);
    const int n_unit = (t.n + QUADS - 1) / QUADS;
    float4 v[STEPS], x[STEPS];
    uint4 own[STEPS / QUADS];
    dependency_release();
    dependency_wait();
    if (a.is_met && blockIdx.x / a.n_part == gridDim.x / a.n_part - 1) {
        if (part == 0) peers_meet(p, PEER_REDUCE_NORM);
        return;
    }
    const struct owned_row o = owned_row_of(blockIdx.x / a.n_part, a, p.rank, WORLD);
    if (o.role == ROLE_NONE) return;
    const bool to_all = a.spread != SPREAD_OWN, back = a.spread == SPREAD_BACK;
    const uint32_t next = (p.rank + 1) % WORLD;
    const size_t at = (size_t)o.row * n.n, stride = (size_t)n.n * 4;
    const struct row_turn turn =
        row_turn_of(p, p.at.one_shot_rows + o.owner * n_place + o.place, part, a.n_part);
    const uint32_t epoch = turn.epoch;
    if (o.role != ROLE_TAKE) {
        load_steps<STEPS>(v, n.delta + at, t);
        pack_steps<STEPS, QUADS>(own, v);
    }
    const uint64_t slots = p.at.part + (uint64_t)((epoch % 2) * n_place + o.place) * WORLD * stride;
    const uint64_t sums = p.at.sum + (uint64_t)((epoch % 2) * TWO_SHOT_ROWS + o.row) * stride;
    struct peer_wait w = peer_wait_begin(PEER_REDUCE_NORM, a.layer, epoch, o.row);
    if (o.role == ROLE_SEND) {
        send_units(own, n_unit, p.base[o.owner] + slots + p.rank * stride, t);
        __syncthreads();
        if (threadIdx.x == 0 && !to_all) row_turn_end(turn);
        return;
    }
    const bool whole = o.role == ROLE_TAKE && back; /* what comes is the residual */
    if (!whole) load_steps<STEPS>(x, n.x + at, t);
    if (o.role == ROLE_TAKE) {
        char *const from = p.base[p.rank] + sums + (size_t)t.first * 4;
#pragma unroll
        for (int j = 0; j < STEPS; j++) {
            v[j] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            if (j < t.n) v[j] = peer_take(p, w, from + (size_t)j * t.step * 4, o.owner);
        }
    } else {
        constexpr int at_once = /* there are registers for */
            WORLD == 2                                              ? 4 / QUADS
            : WORLD == 4 || (QUADS == 2 && STEPS == NORM_STEPS_FEW) ? 2
                                                                    : 1;
        peer_take_sums<STEPS / QUADS, QUADS, WORLD, at_once>(
            p, w, p.base[p.rank] + slots + (size_t)t.first * 4, (size_t)t.step * 4, stride, n_unit,
            own, v);
    }
    const bool counts = o.role == ROLE_OWN || o.owner == next;
    const uint64_t end = peer_wait_end(counts && o.place == 0 && part == 0 && !a.is_met);
#pragma unroll
    for (uint32_t k = 1; k < WORLD && o.role == ROLE_OWN && to_all && !back; k++)
        send_steps<STEPS>(v, p.base[(p.rank + k) % WORLD] + sums, t);
    add_residual<STEPS>(v, x, n.x + at, n.begins || whole, t);
#pragma unroll
    for (uint32_t k = 1; k < WORLD && o.role == ROLE_OWN && back; k++)
        send_steps<STEPS>(v, p.base[(p.rank + k) % WORLD] + sums, t);
    norm_row<STEPS>(
        n, to_all ? at : (size_t)o.place * n.n, v, t,
        [&](float sum) { return row_sum(p, w, turn, sum, scratch); }, scratch);
    if (threadIdx.x != 0) return;
    row_turn_end(turn);
    peer_wait_count(p, w, end);
}

template <int STEPS, int QUADS, uint32_t WORLD>
static fathom_err launch_sum(struct cuda_backend *c, const struct reduce_args *k, bool one_shot)
{
    const uint32_t n_place = row_places(k->n_row, k->run, WORLD);
    const uint32_t stage_blocks = k->chunk * (k->spread == SPREAD_OWN ? WORLD : 2 * WORLD - 1);
    const uint32_t n_stage =
        ceil_div(n_place, k->chunk) + k->lag * (k->spread == SPREAD_OWN ? 1 : 2);
    const uint32_t by_owners = stage_blocks * n_stage + (k->is_met ? 1 : 0);
    const uint32_t grid = (one_shot ? k->n_row : by_owners) * k->n_part;
    const uint32_t threads = k->n_part > 1 ? PART_WARPS * WARP : k->n_thread;
    ASSERT(!one_shot || WORLD == 2 || threads <= PART_WARPS * WARP);
    return cuda_launch_clusters(c, "reduce_norm",
                                one_shot ? one_shot_kernel<STEPS, QUADS, WORLD>
                                         : two_shot_kernel<STEPS, QUADS, WORLD>,
                                dim3(grid), k->n_part, threads, WARP * sizeof(float), *k, c->peers);
}

template <int STEPS, int QUADS>
static fathom_err launch_world(struct cuda_backend *c, const struct reduce_args *k, bool one_shot)
{
    switch (c->peers.world) {
    case 2: return launch_sum<STEPS, QUADS, 2>(c, k, one_shot);
    case 4: return launch_sum<STEPS, QUADS, 4>(c, k, one_shot);
    default: ASSERT(c->peers.world == 8); return launch_sum<STEPS, QUADS, 8>(c, k, one_shot);
    }
}

/* Steps of 4 values of a thread, and how many of them a unit of its part has. */
static fathom_err launch_steps(struct cuda_backend *c, const struct reduce_args *k, bool one_shot)
{
    const bool rounded = cuda_parts_are_rounded(c);
    if (norm_is_few(k->norm.n)) {
        return rounded ? launch_world<NORM_STEPS_FEW, 2>(c, k, one_shot)
                       : launch_world<NORM_STEPS_FEW, 1>(c, k, one_shot);
    }
    return rounded ? launch_world<NORM_STEPS_MAX, 2>(c, k, one_shot)
                   : launch_world<NORM_STEPS_MAX, 1>(c, k, one_shot);
}

/* Blocks of a row. Two ranks have little to move; many rows fill the device by themselves. */
static uint32_t row_parts(const struct cuda_backend *c, uint32_t n_thread, uint32_t n_row,
                          enum codes codes)
{
    uint32_t n_part = 1;
    static_assert(NORM_THREADS / WARP <= ROW_PARTS_MAX, "a row's warps have a place each");
    static_assert(NORM_THREADS <= CLUSTER_BLOCKS_MAX * PART_WARPS * WARP, "a cluster has a row");
    if (c->peers.world == 2 || n_row > PARTS_ROWS || !gpu_has_clusters(c->properties)) return 1;
    if (codes == CODES_INT8_ROW) return 1; /* its scale is of the whole row */
    while (n_part * PART_WARPS * WARP < n_thread) n_part *= 2;
    return n_part;
}

/* Of more than two ranks, those whose row has one block of many threads are summed in two shots. */
static bool sums_in_one_shot(const struct cuda_backend *c, const struct norm_args *n,
                             uint32_t n_row)
{
    const uint32_t n_thread = norm_threads(n->n);
    ASSERT(c->peers.n_one_shot <= c->peers.at.one_shot_rows);
    return n_row <= c->peers.n_one_shot && (c->peers.world == 2 || n_thread <= PART_WARPS * WARP ||
                                            row_parts(c, n_thread, n_row, n->codes) > 1);
}

/* Rows of the step from row0 on, their norms from row out0 on. */
static struct norm_args norm_from(const struct norm_args *n, uint32_t row0, uint32_t out0)
{
    const size_t at = (size_t)row0 * n->n, out = (size_t)out0 * n->n;
    struct norm_args from = *n;
    from.x += at;
    from.delta += at;
    if (n->f) from.f += out;
    if (n->h) from.h += out;
    if (n->q) from.q += out;
    if (n->q) from.scale += out / FP8_GROUP;
    if (n->sums.at) from.sums.at += out / n->sums.group;
    return from;
}

fathom_err cuda_sum_norm(struct cuda_backend *c, const struct norm_args *n, uint32_t n_row,
                         uint32_t layer, enum spread spread)
{
    const uint32_t world = c->peers.world;
    const bool one_shot = spread == SPREAD_ALL && sums_in_one_shot(c, n, n_row);
    ASSERT(world > 1 && n->delta && n->n == c->peers.at.hidden);
    for (uint32_t row0 = 0; row0 < n_row; row0 += TWO_SHOT_ROWS) {
        struct reduce_args k = {};
        k.norm = norm_from(n, row0, spread == SPREAD_OWN ? row0 / world : row0);
        k.layer = layer;
        k.n_row = n_row - row0 < TWO_SHOT_ROWS ? n_row - row0 : TWO_SHOT_ROWS;
        k.run = row_run(n_row);
        k.n_thread = norm_threads(n->n);
        k.n_part = row_parts(c, k.n_thread, k.n_row, n->codes);
        const uint32_t n_place = row_places(k.n_row, k.run, world);
        k.lag = n_place > OWNED_CHUNK ? 1 : 0;
        k.chunk = k.lag ? OWNED_CHUNK : n_place;
        k.spread = spread;
        k.is_met = spread == SPREAD_OWN && k.n_row < k.run * world;
        TRY(launch_steps(c, &k, one_shot));
    }
    return FATHOM_OK;
}

/* ---- rows ---- */

/* Rows [row0, ..) of one rank's that share_rows brings, by blocks up to `end`. */
struct shared_piece {
    uint32_t rank, row0, end;
};

enum { SHARED_PIECES_MAX = PEERS_MAX + 1, SHARE_THREADS = 64 };

struct spread_args {
    struct row_array array[SPREAD_ARRAYS_MAX];
    uint32_t n_array, n_row, run;
    const struct sample_row *drawn; /* a row is that of its logit row's owner; NULL: row_owner's */
    bool is_met;                    /* the last block waits for all ranks */
    enum peer_op op;
    uint32_t layer;
    const int32_t *pages; /* not NULL: rows are those of positions first, first + 1 .. in all
                             arrays, which are of the cache, and their owners the pieces' */
    uint32_t first;
    uint32_t n_own;   /* the first so many blocks have own rows */
    uint32_t n_apart; /* rows go to every n_apart-th rank: of lanes of so many each, to its like */
    struct shared_piece piece[SHARED_PIECES_MAX];
};

/* PEER_UNIT bytes of a row, unit by unit of its arrays one behind the other; what is behind an
 * array's end is zero. */
struct unit_place {
    const char *from; /* where the owner has it */
    char *to;
    uint32_t n_byte;
};

static __device__ __forceinline__ bool find_unit(struct unit_place *u, const struct spread_args &a,
                                                 uint32_t row, uint32_t place, uint32_t unit)
{
    for (uint32_t i = 0; i < a.n_array; i++) {
        const struct row_array &array = a.array[i];
        const uint32_t n_unit = ceil_div(array.n_byte, PEER_UNIT);
        if (unit < n_unit) {
            const uint32_t left = array.n_byte - unit * PEER_UNIT;
            const uint32_t slot = a.pages      ? (uint32_t)kv_slot(a.pages, (int)(a.first + row))
                                  : array.slot ? (uint32_t)array.slot[row]
                                               : 0;
            const size_t at = a.pages || array.slot
                                  ? slot / KV_PAGE_TOKENS * array.page_bytes +
                                        (size_t)(slot % KV_PAGE_TOKENS) * array.n_byte
                                  : (size_t)row * array.n_byte;
            u->n_byte = left < PEER_UNIT ? left : PEER_UNIT;
            u->to = (char *)array.data + at + unit * PEER_UNIT;
            u->from = array.from ? (const char *)array.from + (size_t)place * array.n_byte +
                                       unit * PEER_UNIT
                                 : u->to;
            return true;
        }
        unit -= n_unit;
    }
    return false;
}

/* One block a row: its owner sends it to all others and then, with release, its flag; they wait for
 * the flag. */
__global__ void __launch_bounds__(COLLECT_THREADS)
    spread_kernel(const GRID_CONSTANT struct spread_args a, const GRID_CONSTANT struct peers p)
{
    const uint32_t n_place = row_places(a.n_row, a.run, p.world);
    uint32_t owner = (p.rank + blockIdx.x / n_place) % p.world; /* own rows first */
    const uint32_t place = blockIdx.x % n_place;
    uint32_t row = own_row(place, a.run, owner, p.world);
    kernel_begin();
    if (a.is_met && blockIdx.x == gridDim.x - 1) {
        peers_meet(p, a.op);
        if (a.drawn && threadIdx.x == 0) peer_tell_waits(p);
        return;
    }
    if (a.pages) {
        uint32_t i = 0;
        while (blockIdx.x >= a.piece[i].end) i++;
        row = a.piece[i].row0 + blockIdx.x - (i > 0 ? a.piece[i - 1].end : 0);
        owner = a.piece[i].rank;
    }
    if (a.drawn) row = blockIdx.x;
    if (row >= a.n_row) return;
    if (a.drawn) owner = draw_owner(a.drawn[row].logit_row, p.world);
    uint32_t *const count = p.epochs + p.at.epoch_spread + row;
    const uint32_t epoch = *count, n_unit = p.at.spread_units;
    const uint32_t slot = (epoch % 2) * TWO_SHOT_ROWS + row;
    const uint64_t units = p.at.spread + (uint64_t)slot * n_unit * PEER_UNIT;
    const uint64_t flag = p.at.flag + (uint64_t)slot * PEER_UNIT;
    struct unit_place at;
    if (owner == p.rank) {
        for (uint32_t u = threadIdx.x; find_unit(&at, a, row, place, u); u += blockDim.x) {
            const uint4 v = peer_unit(at.from, at.n_byte);
            if (at.to != at.from) peer_unit_put(at.to, at.n_byte, v);
            for (uint32_t k = a.n_apart; k < p.world; k += a.n_apart)
                peer_store(p.base[(p.rank + k) % p.world] + units + (uint64_t)u * PEER_UNIT, v);
        }
        __syncthreads();
        if (threadIdx.x < p.world && threadIdx.x != p.rank &&
            threadIdx.x % a.n_apart == p.rank % a.n_apart)
            peer_store_release(p.base[threadIdx.x] + flag, epoch + 1);
    } else {
        struct peer_wait w = peer_wait_begin(a.op, a.layer, epoch, row);
        while (threadIdx.x == 0 && peer_load_acquire(p.base[p.rank] + flag) != epoch + 1)
            peer_wait_more(p, w, owner);
        const uint64_t end =
            peer_wait_end(!a.is_met && blockIdx.x == (a.pages ? a.n_own : n_place));
        __syncthreads();
        for (uint32_t u = threadIdx.x; find_unit(&at, a, row, place, u); u += blockDim.x)
            peer_unit_put(at.to, at.n_byte,
                          peer_load(p.base[p.rank] + units + (uint64_t)u * PEER_UNIT));
        if (threadIdx.x == 0) peer_wait_count(p, w, end);
    }
    if (threadIdx.x == 0) *count = epoch + 1;
}

/* Up to TWO_SHOT_ROWS of them, from row0 on. */
static fathom_err launch_spread(struct cuda_backend *c, const struct spread_args *all,
                                uint32_t row0, uint32_t n_row)
{
    const uint32_t world = c->peers.world, n_place = row_places(n_row, all->run, world);
    struct spread_args k = *all;
    k.op = PEER_SPREAD;
    k.n_apart = 1;
    for (uint32_t i = 0; i < k.n_array; i++) {
        struct row_array *r = &k.array[i];
        if (r->from) r->from = (const char *)r->from + (size_t)row0 / world * r->n_byte;
        if (r->slot)
            r->slot += row0;
        else
            r->data = (char *)r->data + (size_t)row0 * r->n_byte;
    }
    k.drawn = k.drawn ? k.drawn + row0 : NULL;
    k.n_row = n_row;
    k.is_met = k.drawn || n_row < k.run * world; /* a rank may have no row */
    const uint32_t n_block = k.drawn ? n_row : n_place * world;
    return cuda_launch(c, "spread_rows", spread_kernel, dim3(n_block + (k.is_met ? 1 : 0)),
                       COLLECT_THREADS, 0, k, c->peers);
}

/* PEER_UNITs of a row. */
static uint32_t spread_units(const struct spread_args *k)
{
    uint32_t n_unit = 0;
    ASSERT(k->n_array > 0 && k->n_array <= SPREAD_ARRAYS_MAX);
    for (uint32_t i = 0; i < k->n_array; i++) {
        ASSERT(k->array[i].n_byte % 4 == 0);
        n_unit += ceil_div(k->array[i].n_byte, PEER_UNIT);
    }
    return n_unit;
}

static fathom_err spread(struct cuda_backend *c, const struct spread_args *k)
{
    ASSERT(c->peers.world > 1 && spread_units(k) <= c->peers.at.spread_units);
    for (uint32_t row0 = 0; row0 < k->n_row; row0 += TWO_SHOT_ROWS) {
        const uint32_t left = k->n_row - row0;
        TRY(launch_spread(c, k, row0, left < TWO_SHOT_ROWS ? left : TWO_SHOT_ROWS));
    }
    return FATHOM_OK;
}

fathom_err cuda_spread(struct cuda_backend *c, const struct row_array *array, uint32_t n_array,
                       uint32_t n_row)
{
    struct spread_args k = {};
    ASSERT(n_array <= SPREAD_ARRAYS_MAX);
    for (uint32_t i = 0; i < n_array; i++) k.array[i] = array[i];
    k.n_array = n_array;
    k.n_row = n_row;
    k.run = row_run(n_row);
    return spread(c, &k);
}

uint32_t cuda_own_rows(const struct backend *b, uint32_t n_token)
{
    const struct cuda_backend *c = (const struct cuda_backend *)b;
    if (c->peers.world < 2 || c->net || n_token < OWNED_MIN) return 0;
    if (c->c.index_n_head > 0 && c->c.n_head % 2) return 0; /* front.cu: index_query_of */
    const uint32_t n = own_row_count(n_token, c->peers.rank, c->peers.world);
    ASSERT(n > 0);
    return n;
}

fathom_err cuda_spread_rows(struct backend *b, const struct spread_rows_args *a)
{
    struct cuda_backend *c = cuda_of(b);
    const struct buffer *from = a->from;
    struct buffer *to = a->to;
    const uint32_t n = c->c.hidden, n_used = c->c.n_expert_used;
    const uint32_t forms = cuda_input_forms(c, a->w);
    struct row_array array[5];
    uint32_t n_array = 0;
    op_check_spread_rows(&c->c, a);
    ASSERT(from->kind == BUFFER_NORMED && to->kind == BUFFER_NORMED);
    ASSERT(a->w->kind == WEIGHT_FFN || a->w->kind == WEIGHT_MOE);
    if (c->normed.of == to) c->normed.of = NULL;
    if (forms & INPUT_CODES) {
        ASSERT(from->codes == codes_of_forms(forms));
        to->codes = from->codes;
        array[n_array++] = {to->q, n, from->q};
        array[n_array++] = {to->scale, n / FP8_GROUP * 4, from->scale};
    }
    if (forms & INPUT_BF16) array[n_array++] = {to->h, n * 2, from->h};
    if (forms & INPUT_F32) { /* by itself: there is no room for all forms at once */
        const struct row_array wide = {to->f, n * 4, from->f};
        TRY(cuda_spread(c, &wide, 1, a->n_token));
    }
    if (a->to_route) {
        array[n_array++] = {a->to_route->i, n_used * 4, a->from_route->i};
        array[n_array++] = {a->to_route->w, n_used * 4, a->from_route->w};
    }
    return n_array > 0 ? cuda_spread(c, array, n_array, a->n_token) : FATHOM_OK;
}

uint32_t cuda_cache_arrays(struct row_array *to, const struct kv_layer *kv, bool has_index,
                           const int32_t *slot)
{
    uint32_t n = 0;
    to[n++] = {kv->latent, kv_row_bytes(kv->type), NULL, slot, kv->page_bytes};
    if (has_index && kv->type == KV_TYPE_F32) {
        to[n++] = {kv->index, KV_INDEX_DIM * 4, NULL, slot, kv->page_bytes};
    } else if (has_index) {
        to[n++] = {kv->index, KV_INDEX_DIM, NULL, slot, kv->page_bytes};
        to[n++] = {kv->index + KV_INDEX_SCALES_OFFSET, 4, NULL, slot, kv->page_bytes};
    }
    return n;
}

/* The blocks of rows [row0, row0 + k->n_row): own ones come first, for they wait for nobody. Where
 * a lane has none, all are met. */
static void set_pieces(struct spread_args *k, const struct batch_share *s, uint32_t row0,
                       const struct parallel *p)
{
    const uint32_t lane = p->dp.rank, n_lane = p->dp.size, n_share = p->tp.size;
    uint32_t n = 0, n_block = 0, lanes = 0;
    for (int is_other = 0; is_other < 2; is_other++) {
        uint32_t at = 0;
        for (uint32_t i = 0; i < s->n_segment; i++) {
            const struct share_segment *of = &s->segments[i];
            const uint32_t begin = at > row0 ? at : row0;
            at += of->n_row;
            const uint32_t end = at < row0 + k->n_row ? at : row0 + k->n_row;
            if (begin >= end || (of->lane != lane) != (is_other == 1)) continue;
            ASSERT(n < SHARED_PIECES_MAX);
            n_block += end - begin;
            k->piece[n++] = {of->lane * n_share + p->tp.rank, begin - row0, n_block};
            lanes |= 1u << of->lane;
        }
        if (is_other == 0) k->n_own = n_block;
    }
    ASSERT(n_block == k->n_row);
    k->is_met = lanes != (1u << n_lane) - 1;
}

fathom_err cuda_share_rows(struct cuda_backend *c, const struct share_rows_args *a)
{
    const struct batch_share *s = a->share;
    const struct kv_layer kv = kv_layer_of(a->kv, a->layer);
    struct spread_args k = {};
    ASSERT(!c->net && c->ep.at.spread_units > 0);
    k.n_array = cuda_cache_arrays(k.array, &kv, c->c.kv.has_index, NULL);
    k.run = 1;
    k.op = PEER_SHARE;
    k.n_apart = c->c.parallel.tp.size;
    k.layer = a->layer;
    k.pages = a->pages;
    ASSERT(spread_units(&k) <= c->ep.at.spread_units);
    for (uint32_t row0 = 0; row0 < s->n_row; row0 += TWO_SHOT_ROWS) {
        k.n_row = s->n_row - row0 < TWO_SHOT_ROWS ? s->n_row - row0 : TWO_SHOT_ROWS;
        k.first = s->first + row0;
        set_pieces(&k, s, row0, &c->c.parallel);
        TRY(cuda_launch(c, "share_rows", spread_kernel, dim3(k.n_row + (k.is_met ? 1 : 0)),
                        SHARE_THREADS, 0, k, c->ep));
    }
    return FATHOM_OK;
}

fathom_err cuda_share_draws(struct cuda_backend *c, const struct sample_args *a)
{
    struct spread_args k = {};
    k.array[k.n_array++] = {a->ids, 4};
    k.array[k.n_array++] = {a->logprobs, 4};
    k.array[k.n_array++] = {a->ranks, 4};
    k.array[k.n_array++] = {a->top_ids, 4 * SAMPLE_TOP_MAX};
    k.array[k.n_array++] = {a->top_logprobs, 4 * SAMPLE_TOP_MAX};
    k.n_row = a->n_row;
    k.run = 1;
    k.drawn = a->rows;
    return spread(c, &k);
}

/* ---- logits ---- */

struct logit_args {
    const float *part; /* [n_row][n_vocab / world], of all rows */
    float *out;        /* [n_row][n_vocab], own rows */
    uint32_t n_row;
    uint32_t n_part; /* columns of a rank */
};

/* A block a row and LOGIT_CHUNK columns of a rank; row i is rank i % world's. */
__global__ void __launch_bounds__(COLLECT_THREADS)
    logits_kernel(const GRID_CONSTANT struct logit_args a, const GRID_CONSTANT struct peers p)
{
    const uint32_t row = blockIdx.y, owner = row % p.world, place = row / p.world;
    const uint32_t i = (blockIdx.x * COLLECT_THREADS + threadIdx.x) * 4;
    kernel_begin();
    if (row == a.n_row) {
        if (blockIdx.x == 0) peers_meet(p, PEER_LOGITS);
        return;
    }
    uint32_t *const count =
        p.epochs + p.at.epoch_logits + (owner * LOGIT_ROWS + place) * gridDim.x + blockIdx.x;
    const uint32_t epoch = *count;
    const uint64_t slot =
        p.at.logits + (uint64_t)((epoch % 2) * LOGIT_ROWS + place) * p.at.n_vocab * 4;
    struct peer_wait w = peer_wait_begin(PEER_LOGITS, 0, epoch, row);
    if (i < a.n_part) {
        const float4 own = *(const float4 *)(a.part + (size_t)row * a.n_part + i);
        float *const out = a.out + (size_t)row * p.at.n_vocab + i;
        if (owner != p.rank) {
            peer_send(p.base[owner] + slot + ((uint64_t)p.rank * a.n_part + i) * 4,
                      peer_value(own));
        } else {
            *(float4 *)(out + (size_t)p.rank * a.n_part) = own;
            for (uint32_t k = 1; k < p.world; k++) {
                const uint32_t r = (p.rank + k) % p.world;
                char *at = p.base[p.rank] + slot + ((uint64_t)r * a.n_part + i) * 4;
                *(float4 *)(out + (size_t)r * a.n_part) = peer_take(p, w, at, r);
            }
            if (i == 0) peer_wait_count(p, w, peer_wait_end(place == 0 && a.n_row >= p.world));
        }
    }
    __syncthreads();
    if (threadIdx.x == 0) *count = epoch + 1;
}

fathom_err cuda_logits_to_owners(struct cuda_backend *c, const float *part, float *out,
                                 uint32_t n_row)
{
    const uint32_t world = c->peers.world, n_vocab = c->peers.at.n_vocab;
    const uint32_t wave = LOGIT_ROWS * world;
    ASSERT(world > 1 && n_vocab % (4 * world) == 0 && LOGIT_CHUNK == COLLECT_THREADS * 4);
    for (uint32_t row0 = 0; row0 < n_row; row0 += wave) {
        struct logit_args k = {};
        k.n_part = n_vocab / world;
        k.part = part + (size_t)row0 * k.n_part;
        k.out = out + (size_t)row0 * n_vocab;
        k.n_row = n_row - row0 < wave ? n_row - row0 : wave;
        dim3 grid(ceil_div(k.n_part, LOGIT_CHUNK), k.n_row + (k.n_row < world ? 1 : 0));
        TRY(cuda_launch(c, "head", logits_kernel, grid, COLLECT_THREADS, 0, k, c->peers));
    }
    return FATHOM_OK;
}
