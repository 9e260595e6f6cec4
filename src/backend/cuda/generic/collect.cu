/* collect.cu - what ranks bring together: sums with the norm behind them, rows, logits
 *
 * Launches of one collective on all ranks have the same shape. Blocks that only send come first, so
 * that whoever waits does not keep what others wait for from running: blocks begin in order. */
#include "backend/cuda/common.cuh"
#include "backend/cuda/generic/collect.cuh"
#include "backend/cuda/generic/norm.cuh"
#include "backend/cuda/launch.cuh"
#include "backend/cuda/peers.cuh"

enum { COLLECT_THREADS = 256 };

/* ---- sums ---- */

struct reduce_args {
    struct norm_args norm; /* of the first row */
    uint32_t layer, n_row, run;
    bool to_all; /* else a row's owner alone has its sum */
    bool is_met; /* the last block waits for all ranks */
};

/* The row's residual with its sum; keeps it. */
static __device__ __forceinline__ float4 add_residual(const struct norm_args &a, size_t at,
                                                      const float4 &sum)
{
    float4 v = sum;
    if (!a.begins) {
        const float4 x = *(const float4 *)(a.x + at);
        v = make_float4(x.x + sum.x, x.y + sum.y, x.z + sum.z, x.w + sum.w);
    }
    *(float4 *)(a.x + at) = v;
    return v;
}

/* One block a row: sends its part to every rank, takes theirs. */
template <int STEPS>
__global__ void __launch_bounds__(NORM_THREADS, 1)
    one_shot_kernel(const struct reduce_args a, const struct peers p)
{
    SHARED_DYNAMIC(float, scratch);
    const struct norm_args &n = a.norm;
    const uint32_t row = blockIdx.x, first = threadIdx.x * 4, step = blockDim.x * 4;
    const size_t at = (size_t)row * n.n, stride = (size_t)n.n * 4;
    float4 v[STEPS];
    if (first * STEPS < n.n) prefetch_l2(n.weight + first * STEPS);
    dependency_wait();
    const uint32_t epoch = p.epochs[row];
    const uint64_t slots =
        p.at.one_shot + (uint64_t)((epoch % 2) * ONE_SHOT_ROWS + row) * p.world * stride;
    struct peer_wait w = peer_wait_begin(PEER_REDUCE_NORM, a.layer, epoch, row);
#pragma unroll
    for (int j = 0; j < STEPS; j++) {
        const uint32_t i = first + (uint32_t)j * step;
        v[j] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (i >= n.n) continue;
        v[j] = peer_value(*(const float4 *)(n.delta + at + i));
        for (uint32_t k = 1; k < p.world; k++) {
            const uint32_t r = (p.rank + k) % p.world;
            peer_send(p.base[r] + slots + p.rank * stride + (uint64_t)i * 4, v[j]);
        }
    }
    dependency_release();
#pragma unroll
    for (int j = 0; j < STEPS; j++) {
        const uint32_t i = first + (uint32_t)j * step;
        if (i >= n.n) continue;
        char *own = p.base[p.rank] + slots + (uint64_t)i * 4;
        v[j] = add_residual(n, at + i, peer_take_sum(p, w, own, stride, v[j]));
    }
    norm_row<STEPS>(n, at, v, scratch);
    if (threadIdx.x == 0) p.epochs[row] = epoch + 1;
}

/* Which row a block of a launch by owners has, and what it does with it. */
enum role { ROLE_SEND, ROLE_OWN, ROLE_TAKE };
struct owned_row {
    enum role role;
    uint32_t owner, place, row;
};

static __device__ __forceinline__ struct owned_row
owned_row_of(uint32_t block, uint32_t n_row, uint32_t run, uint32_t rank, uint32_t world)
{
    const uint32_t n_place = row_places(n_row, run, world), n_other = (world - 1) * n_place;
    struct owned_row o = {ROLE_OWN, rank, block - n_other, 0};
    if (block < n_other || block >= n_other + n_place) {
        const uint32_t i = block < n_other ? block : block - n_other - n_place;
        o.role = block < n_other ? ROLE_SEND : ROLE_TAKE;
        o.owner = (rank + 1 + i % (world - 1)) % world;
        o.place = i / (world - 1);
    }
    o.row = (o.place / run * world + o.owner) * run + o.place % run;
    return o;
}

/* A row's part to its owner. */
template <int STEPS>
static __device__ __forceinline__ void send_part(const struct norm_args &n, const struct peers &p,
                                                 const struct owned_row &o, uint64_t slots)
{
#pragma unroll
    for (int j = 0; j < STEPS; j++) {
        const uint32_t i = (threadIdx.x + (uint32_t)j * blockDim.x) * 4;
        if (i >= n.n) continue;
        const float4 v = *(const float4 *)(n.delta + (size_t)o.row * n.n + i);
        peer_send(p.base[o.owner] + slots + ((uint64_t)p.rank * n.n + i) * 4, peer_value(v));
    }
}

/* One block a row and role: parts to the row's owner; the owner sums, and where all want it sends
 * the sum to them, who take it. */
template <int STEPS>
__global__ void __launch_bounds__(NORM_THREADS, 1)
    two_shot_kernel(const struct reduce_args a, const struct peers p)
{
    SHARED_DYNAMIC(float, scratch);
    const struct norm_args &n = a.norm;
    const struct owned_row o = owned_row_of(blockIdx.x, a.n_row, a.run, p.rank, p.world);
    const uint32_t n_place = TWO_SHOT_ROWS / p.world;
    float4 v[STEPS];
    dependency_release();
    dependency_wait();
    if (a.is_met && blockIdx.x == gridDim.x - 1) return peers_meet(p, PEER_REDUCE_NORM);
    if (o.row >= a.n_row) return;
    uint32_t *const count = p.epochs + p.at.epoch_two_shot + o.owner * n_place + o.place;
    const uint32_t epoch = *count;
    const uint64_t slots =
        p.at.part + (uint64_t)((epoch % 2) * n_place + o.place) * p.world * n.n * 4;
    const uint64_t sums = p.at.sum + (uint64_t)((epoch % 2) * TWO_SHOT_ROWS + o.row) * n.n * 4;
    struct peer_wait w = peer_wait_begin(PEER_REDUCE_NORM, a.layer, epoch, o.row);
    if (o.role == ROLE_SEND) {
        send_part<STEPS>(n, p, o, slots);
        __syncthreads();
        if (threadIdx.x == 0 && !a.to_all) *count = epoch + 1;
        return;
    }
#pragma unroll
    for (int j = 0; j < STEPS; j++) {
        const uint32_t i = (threadIdx.x + (uint32_t)j * blockDim.x) * 4;
        const size_t at = (size_t)o.row * n.n + i;
        v[j] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (i >= n.n) continue;
        if (o.role == ROLE_TAKE) {
            v[j] = peer_take(p, w, p.base[p.rank] + sums + (uint64_t)i * 4, o.owner);
        } else {
            v[j] = peer_take_sum(p, w, p.base[p.rank] + slots + (uint64_t)i * 4, (size_t)n.n * 4,
                                 peer_value(*(const float4 *)(n.delta + at)));
            for (uint32_t k = 1; k < p.world && a.to_all; k++)
                peer_send(p.base[(p.rank + k) % p.world] + sums + (uint64_t)i * 4, v[j]);
        }
        v[j] = add_residual(n, at, v[j]);
    }
    norm_row<STEPS>(n, (size_t)o.row * n.n, v, scratch);
    if (threadIdx.x == 0) *count = epoch + 1;
}

template <int STEPS>
static fathom_err launch_sum(struct cuda_backend *c, const struct reduce_args *k, bool one_shot)
{
    const uint32_t world = c->peers.world;
    const uint32_t per_owner = row_places(k->n_row, k->run, world);
    const uint32_t by_owners = per_owner * (k->to_all ? 2 * world - 1 : world);
    const uint32_t grid = one_shot ? k->n_row : by_owners + (k->is_met ? 1 : 0);
    return cuda_launch(c, "reduce_norm", one_shot ? one_shot_kernel<STEPS> : two_shot_kernel<STEPS>,
                       dim3(grid), norm_threads(k->norm.n), WARP * sizeof(float), *k, c->peers);
}

/* Rows of the step from row0 on. */
static struct norm_args norm_from(const struct norm_args *n, uint32_t row0)
{
    const size_t at = (size_t)row0 * n->n;
    struct norm_args from = *n;
    from.x += at;
    from.delta += at;
    from.f += at;
    if (!n->h) return from;
    from.h += at;
    from.q += at;
    from.scale += at / FP8_GROUP;
    return from;
}

fathom_err cuda_sum_norm(struct cuda_backend *c, const struct norm_args *n, uint32_t n_row,
                         uint32_t layer, bool to_all)
{
    const bool one_shot = to_all && n_row <= ONE_SHOT_ROWS;
    ASSERT(c->peers.world > 1 && n->delta && n->n == c->peers.at.hidden);
    for (uint32_t row0 = 0; row0 < n_row; row0 += TWO_SHOT_ROWS) {
        struct reduce_args k = {};
        k.norm = norm_from(n, row0);
        k.layer = layer;
        k.n_row = n_row - row0 < TWO_SHOT_ROWS ? n_row - row0 : TWO_SHOT_ROWS;
        k.run = row_run(n_row);
        k.to_all = to_all;
        k.is_met = !to_all && k.n_row < k.run * c->peers.world;
        if (norm_is_few(n->n))
            TRY(launch_sum<NORM_STEPS_FEW>(c, &k, one_shot));
        else
            TRY(launch_sum<NORM_STEPS_MAX>(c, &k, one_shot));
    }
    return FATHOM_OK;
}

/* ---- rows ---- */

struct spread_args {
    struct row_array array[SPREAD_ARRAYS_MAX];
    uint32_t n_array, n_row, run;
    const struct sample_row *drawn; /* a row is that of its logit row's owner; NULL: row_owner's */
    bool is_met;                    /* the last block waits for all ranks */
};

/* PEER_UNIT bytes of a row, unit by unit of its arrays one behind the other; what is behind an
 * array's end is zero. */
static __device__ __forceinline__ char *unit_place(const struct spread_args &a, uint32_t row,
                                                   uint32_t unit, uint32_t *n_byte)
{
    for (uint32_t i = 0; i < a.n_array; i++) {
        const uint32_t n_unit = ceil_div(a.array[i].n_byte, PEER_UNIT);
        if (unit < n_unit) {
            const uint32_t left = a.array[i].n_byte - unit * PEER_UNIT;
            *n_byte = left < PEER_UNIT ? left : PEER_UNIT;
            return (char *)a.array[i].data + (size_t)row * a.array[i].n_byte + unit * PEER_UNIT;
        }
        unit -= n_unit;
    }
    return NULL;
}

static __device__ __forceinline__ uint4 load_unit(const char *from, uint32_t n_byte)
{
    uint32_t v[4] = {0, 0, 0, 0};
    if (n_byte == PEER_UNIT && (uintptr_t)from % PEER_UNIT == 0) return *(const uint4 *)from;
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) {
        if (i * 4 < n_byte) v[i] = *(const uint32_t *)(from + (size_t)i * 4);
    }
    return make_uint4(v[0], v[1], v[2], v[3]);
}

static __device__ __forceinline__ void store_unit(char *to, uint32_t n_byte, const uint4 &v)
{
    const uint32_t words[4] = {v.x, v.y, v.z, v.w};
    if (n_byte == PEER_UNIT && (uintptr_t)to % PEER_UNIT == 0) {
        *(uint4 *)to = v;
        return;
    }
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) {
        if (i * 4 < n_byte) *(uint32_t *)(to + (size_t)i * 4) = words[i];
    }
}

/* One block a row: its owner sends it to all others and then, with release, its flag; they wait for
 * the flag. */
__global__ void __launch_bounds__(COLLECT_THREADS)
    spread_kernel(const struct spread_args a, const struct peers p)
{
    const uint32_t n_place = row_places(a.n_row, a.run, p.world);
    uint32_t owner = (p.rank + blockIdx.x / n_place) % p.world; /* own rows first */
    const uint32_t place = blockIdx.x % n_place;
    uint32_t row = (place / a.run * p.world + owner) * a.run + place % a.run;
    kernel_begin();
    if (a.is_met && blockIdx.x == gridDim.x - 1) return peers_meet(p, PEER_SPREAD);
    if (a.drawn) row = blockIdx.x;
    if (row >= a.n_row) return;
    if (a.drawn) owner = draw_owner(a.drawn[row].logit_row, p.world);
    uint32_t *const count = p.epochs + p.at.epoch_spread + row;
    const uint32_t epoch = *count, n_unit = p.at.spread_units;
    const uint32_t slot = (epoch % 2) * TWO_SHOT_ROWS + row;
    const uint64_t units = p.at.spread + (uint64_t)slot * n_unit * PEER_UNIT;
    const uint64_t flag = p.at.flag + (uint64_t)slot * PEER_UNIT;
    uint32_t n_byte = 0;
    char *at;
    if (owner == p.rank) {
        for (uint32_t u = threadIdx.x; (at = unit_place(a, row, u, &n_byte)); u += blockDim.x) {
            const uint4 v = load_unit(at, n_byte);
            for (uint32_t k = 1; k < p.world; k++)
                peer_store(p.base[(p.rank + k) % p.world] + units + (uint64_t)u * PEER_UNIT, v);
        }
        __syncthreads();
        if (threadIdx.x < p.world && threadIdx.x != p.rank)
            peer_store_release(p.base[threadIdx.x] + flag, epoch + 1);
    } else {
        struct peer_wait w = peer_wait_begin(PEER_SPREAD, 0, epoch, row);
        while (threadIdx.x == 0 && peer_load_acquire(p.base[p.rank] + flag) != epoch + 1)
            peer_wait_more(p, w, owner);
        __syncthreads();
        for (uint32_t u = threadIdx.x; (at = unit_place(a, row, u, &n_byte)); u += blockDim.x)
            store_unit(at, n_byte, peer_load(p.base[p.rank] + units + (uint64_t)u * PEER_UNIT));
    }
    if (threadIdx.x == 0) *count = epoch + 1;
}

/* Up to TWO_SHOT_ROWS of them, from row0 on. */
static fathom_err launch_spread(struct cuda_backend *c, const struct spread_args *all,
                                uint32_t row0, uint32_t n_row)
{
    const uint32_t world = c->peers.world, n_place = row_places(n_row, all->run, world);
    struct spread_args k = *all;
    for (uint32_t i = 0; i < k.n_array; i++)
        k.array[i].data = (char *)k.array[i].data + (size_t)row0 * k.array[i].n_byte;
    k.drawn = k.drawn ? k.drawn + row0 : NULL;
    k.n_row = n_row;
    k.is_met = k.drawn || n_row < k.run * world; /* a rank may have no row */
    const uint32_t n_block = k.drawn ? n_row : n_place * world;
    return cuda_launch(c, "spread_rows", spread_kernel, dim3(n_block + (k.is_met ? 1 : 0)),
                       COLLECT_THREADS, 0, k, c->peers);
}

static fathom_err spread(struct cuda_backend *c, const struct spread_args *k)
{
    uint32_t n_unit = 0;
    ASSERT(c->peers.world > 1 && k->n_array > 0 && k->n_array <= SPREAD_ARRAYS_MAX);
    for (uint32_t i = 0; i < k->n_array; i++) {
        ASSERT(k->array[i].n_byte % 4 == 0);
        n_unit += ceil_div(k->array[i].n_byte, PEER_UNIT);
    }
    ASSERT(n_unit <= c->peers.at.spread_units);
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
    logits_kernel(const struct logit_args a, const struct peers p)
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
