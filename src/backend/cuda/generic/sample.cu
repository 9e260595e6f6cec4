/* sample.cu - raw log-probabilities, shaping, the cut-offs, the draw
 *
 * A plain row, drawn from its logits as they are but for a mask and temperature, is drawn by PARTS
 * blocks, of whose draws the best is taken. What else a row wants, one block does in many passes.
 *
 * Nothing is sorted. Each cut-off (top_k, top_p) is the key of the last value that stays, found in
 * four passes of 8 bits over order-preserving keys; counts are integers and masses are 2^-40 fixed
 * point, so that the order in which threads add does not matter. Equal values stay in ascending
 * id. */
#include "backend/cuda/common.cuh"
#include "backend/cuda/generic/collect.cuh"
#include "backend/cuda/generic/collect_net.cuh"
#include "backend/cuda/join.cuh"
#include "backend/cuda/launch.cuh"

extern "C" {
#include "base/rng.h"
}

enum { THREADS = 1024, WARPS = THREADS / WARP, PARTS = SAMPLE_PARTS, PART_THREADS = 256 };
enum { MASS_BITS = 14, MASS_PIECES = 3, BINS = 256 };
static_assert(PARTS == WARP && WARPS == WARP, "a lane reads a part, or a warp's value");
static_assert(BINS % WARP == 0 && BINS * MASS_PIECES <= THREADS, "one round clears the bins");

struct pick {
    float value;
    int id;
};

struct part {
    struct pick largest, drawn;
};

struct sample_shared {
    struct pick picks[WARPS];
    float sums[WARPS];
    uint32_t mass[BINS][MASS_PIECES];
    unsigned long long rest;
    uint32_t prefix;
    unsigned long long bin_mass; /* of the bin found last */
    int bin;
    int equal[WARPS];
};

static __device__ __forceinline__ struct pick better(struct pick a, struct pick b)
{
    return a.value > b.value || (a.value == b.value && a.id < b.id) ? a : b;
}

static __device__ __forceinline__ struct pick warp_pick(struct pick p)
{
#pragma unroll
    for (int d = WARP / 2; d > 0; d >>= 1) {
        struct pick q = {shfl_xor(p.value, d), shfl_xor(p.id, d)};
        p = better(p, q);
    }
    return p;
}

/* The best of the block's, in every thread. */
static __device__ struct pick block_pick(struct pick p, struct pick *picks)
{
    const uint32_t lane = threadIdx.x % WARP;
    p = warp_pick(p);
    __syncthreads();
    if (lane == 0) picks[threadIdx.x / WARP] = p;
    __syncthreads();
    if (lane < blockDim.x / WARP) p = picks[lane];
    return warp_pick(p);
}

static __device__ struct pick largest(const float *x, int n, struct sample_shared *sh)
{
    struct pick p = {-INFINITY, 0x7fffffff};
    for (int i = (int)threadIdx.x; i < n; i += THREADS) {
        struct pick q = {x[i], i};
        p = better(p, q);
    }
    return block_pick(p, sh->picks);
}

static __device__ __forceinline__ uint32_t order_key(float v)
{
    uint32_t u = __float_as_uint(v);
    return u & 0x80000000u ? ~u : u | 0x80000000u;
}

/* How many values come before that of `id`, and one: ties to the lower id. */
static __device__ uint32_t place_of(const float *x, int n, int id, struct sample_shared *sh)
{
    __syncthreads();
    if (threadIdx.x == 0) sh->bin = 1;
    __syncthreads();
    int before = 0;
    for (int i = (int)threadIdx.x; i < n; i += THREADS) {
        before += id >= n || x[i] > x[id] || (x[i] == x[id] && i < id);
    }
    atomicAdd(&sh->bin, before);
    __syncthreads();
    return (uint32_t)sh->bin;
}

/* What stays of a row: keys above `key`, and those equal to it with an id below `id_end`. */
struct cut {
    uint32_t key;
    int id_end;
};

static __device__ __forceinline__ bool stays(const struct cut &c, float v, int id)
{
    uint32_t k = order_key(v);
    return v > -INFINITY && (k > c.key || (k == c.key && id < c.id_end));
}

/* Mass of one value: 1 for top_k, its probability relative to the largest for top_p. */
static __device__ __forceinline__ unsigned long long mass_of(float v, float top, bool count)
{
    if (count) return 1;
    return (unsigned long long)(expf(v - top) * 0x1p40f);
}

/* A mass is up to 2^40, of 2^17 values up to 2^57: it is added in pieces, because shared memory
 * adds 32 bits at once and 64 by compare and swap. */
static __device__ __forceinline__ void split_mass(uint32_t (&pieces)[MASS_PIECES],
                                                  unsigned long long mass)
{
    const uint32_t mask = (1u << MASS_BITS) - 1;
    DCHECK(mass <= 1ull << 40);
    pieces[0] = (uint32_t)mass & mask;
    pieces[1] = (uint32_t)(mass >> MASS_BITS) & mask;
    pieces[2] = (uint32_t)(mass >> 2 * MASS_BITS);
}

static __device__ __forceinline__ unsigned long long
join_mass(const uint32_t (&pieces)[MASS_PIECES])
{
    return pieces[0] + ((unsigned long long)pieces[1] << MASS_BITS) +
           ((unsigned long long)pieces[2] << 2 * MASS_BITS);
}

/* Adds a warp's masses to the histogram, lanes with a negative bin none. Bins that many lanes share
 * are added up first, because threads that add to one place wait for each other: the first bins
 * have nearly all values. */
static __device__ __forceinline__ void add_masses(uint32_t (*bins)[MASS_PIECES], int bin,
                                                  unsigned long long mass)
{
    enum { ROUNDS = 2 };
    uint32_t mine[MASS_PIECES];
    DCHECK(bin < BINS);
    split_mass(mine, mass);
#pragma unroll
    for (int i = 0; i < ROUNDS; i++) {
        const unsigned open = warp_ballot(bin >= 0);
        if (!open) return;
        const int leader = __ffs((int)open) - 1, its = shfl(bin, leader);
#pragma unroll
        for (int k = 0; k < MASS_PIECES; k++) {
            const uint32_t sum = (uint32_t)warp_total(bin == its ? (int)mine[k] : 0);
            if ((int)(threadIdx.x % WARP) == leader) atomicAdd(&bins[its][k], sum);
        }
        if (bin == its) bin = -1;
    }
    if (bin < 0) return;
#pragma unroll
    for (int k = 0; k < MASS_PIECES; k++) atomicAdd(&bins[bin][k], mine[k]);
}

/* By one warp: the bin, from the highest on, in which the mass reaches sh->rest; less what the ones
 * above it have. The lowest one when none does. */
static __device__ __forceinline__ void find_bin(struct sample_shared *sh, int shift)
{
    enum { EACH = BINS / WARP };
    const int lane = (int)threadIdx.x % WARP;
    int bin = BINS - 1 - lane * EACH;
    unsigned long long mine = 0;
    for (int i = 0; i < EACH; i++) mine += join_mass(sh->mass[bin - i]);
    unsigned long long sum = mine;
#pragma unroll
    for (int d = 1; d < WARP; d <<= 1) {
        unsigned long long before = shfl_up(sum, d);
        if (lane >= d) sum += before;
    }
    const unsigned long long rest = sh->rest;
    const unsigned there = warp_ballot(sum >= rest);
    warp_sync(); /* all have read what one of them writes */
    if (lane != (there ? (int)__ffs((int)there) - 1 : WARP - 1)) return;
    unsigned long long left = rest - (sum - mine), mass = join_mass(sh->mass[bin]);
    for (int i = 1; i < EACH && mass < left; i++) {
        left -= mass;
        mass = join_mass(sh->mass[--bin]);
    }
    sh->rest = left;
    sh->prefix |= (uint32_t)bin << shift;
    sh->bin_mass = mass;
}

static __device__ __forceinline__ float value_of(uint32_t key)
{
    return __uint_as_float(key & 0x80000000u ? key & 0x7fffffffu : ~key);
}

/* The largest prefix of what stays under `c`, in descending order, whose mass without its last
 * value is below `want`: ids of equal values are taken in ascending order. */
static __device__ struct cut tighten(const float *x, int n, const struct cut &c, float top,
                                     bool count, unsigned long long want, struct sample_shared *sh)
{
    DCHECK(want >= 1);
    if (threadIdx.x == 0) {
        sh->prefix = 0;
        sh->rest = want;
    }
    for (int shift = 24; shift >= 0; shift -= 8) {
        for (int i = (int)threadIdx.x; i < BINS * MASS_PIECES; i += THREADS)
            sh->mass[i / MASS_PIECES][i % MASS_PIECES] = 0;
        __syncthreads();
        uint32_t mask = shift == 24 ? 0 : 0xffffffffu << (shift + 8), prefix = sh->prefix;
        for (int base = 0; base < n; base += THREADS) {
            const int i = base + (int)threadIdx.x;
            const float v = i < n ? x[i] : -INFINITY;
            const uint32_t key = order_key(v);
            int bin = -1;
            unsigned long long mass = 0;
            if ((key & mask) == (prefix & mask) && stays(c, v, i)) mass = mass_of(v, top, count);
            if (mass) bin = (int)(key >> shift & (BINS - 1));
            add_masses(sh->mass, bin, mass);
        }
        __syncthreads();
        if (threadIdx.x < WARP) find_bin(sh, shift);
        __syncthreads();
    }
    const uint32_t key = sh->prefix;
    if (sh->bin_mass - mass_of(value_of(key), top, count) <
        sh->rest) { /* all values like the last */
        const struct cut all = {key, n};
        return key < c.key || (key == c.key && n > c.id_end) ? c : all;
    }
    struct cut out = {sh->prefix, n};
    unsigned long long rest = sh->rest, seen = 0;
    /* the id after the last equal value that is still wanted */
    for (int base = 0; base < n; base += THREADS) {
        int i = base + (int)threadIdx.x;
        bool is_equal = i < n && order_key(x[i]) == out.key && stays(c, x[i], i);
        unsigned lanes = warp_ballot(is_equal);
        __syncthreads();
        if (threadIdx.x % WARP == 0) sh->equal[threadIdx.x / WARP] = __popc(lanes);
        if (threadIdx.x == 0) sh->bin = -1;
        __syncthreads();
        int place = __popc(lanes & ((1u << (threadIdx.x % WARP)) - 1)), all = 0;
        for (int w = 0; w < WARPS; w++) {
            if (w < (int)threadIdx.x / WARP) place += sh->equal[w];
            all += sh->equal[w];
        }
        if (is_equal) {
            unsigned long long each = mass_of(x[i], top, count), r = seen + (unsigned)place;
            if (each && r * each < rest && (r + 1) * each >= rest) sh->bin = i + 1;
        }
        __syncthreads();
        if (sh->bin >= 0) {
            out.id_end = sh->bin;
            break;
        }
        seen += (unsigned)all;
    }
    bool looser = out.key < c.key || (out.key == c.key && out.id_end > c.id_end);
    return looser ? c : out; /* fewer values than wanted were left */
}

static __device__ __forceinline__ bool allowed(const struct sample_row &row, const uint32_t *mask,
                                               int id)
{
    return row.mask_offset == SAMPLE_NONE || (mask[row.mask_offset + id / 32] >> (id % 32) & 1u);
}

/* log of the sum of exp(x - top), each thread's part in ascending order, then the warps' */
static __device__ float log_sum(const float *x, int n, float top, struct sample_shared *sh)
{
    float sum = 0.0f;
    for (int i = (int)threadIdx.x; i < n; i += THREADS) sum += __expf(x[i] - top);
    return top + logf(block_sum(sum, sh->sums));
}

/* Mask, bans, bias, penalties. `count` is a row of zeroed integers: bit 31 marks a prompt token,
 * the rest counts output tokens. */
static __device__ void shape(const struct sample_row &row, const int32_t *history,
                             const struct sample_bias *bias, const int32_t *ban,
                             const uint32_t *mask, float *x, int n, uint32_t *count)
{
    for (int i = (int)threadIdx.x; i < n; i += THREADS) {
        if (!allowed(row, mask, i)) x[i] = -INFINITY;
        count[i] = 0;
    }
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < row.n_ban; i += THREADS) {
        int id = ban[row.ban_offset + i];
        if (id >= 0 && id < n) x[id] = -INFINITY;
    }
    __syncthreads();
    if (threadIdx.x == 0) { /* one thread: an id may be listed twice */
        for (uint32_t i = 0; i < row.n_bias; i++) {
            struct sample_bias e = bias[row.bias_offset + i];
            if (e.id >= 0 && e.id < n) x[e.id] += e.bias;
        }
    }
    if (row.repetition_penalty == 1.0f && row.frequency_penalty == 0.0f &&
        row.presence_penalty == 0.0f) {
        return;
    }
    const int32_t *ids = history + row.history_offset;
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < row.n_prompt + row.n_output; i += THREADS) {
        int id = ids[i];
        if (id < 0 || id >= n) continue;
        if (i < row.n_prompt) {
            atomicOr(&count[id], 0x80000000u);
        } else {
            atomicAdd(&count[id], 1u);
        }
    }
    __syncthreads();
    for (int i = (int)threadIdx.x; i < n; i += THREADS) {
        uint32_t u = count[i], output = u & 0x7fffffffu;
        if (!u) continue;
        float v = x[i] > 0.0f ? x[i] / row.repetition_penalty : x[i] * row.repetition_penalty;
        if (output) v -= row.frequency_penalty * (float)output + row.presence_penalty;
        x[i] = v;
    }
}

/* The value by which an id is drawn: the largest wins. */
static __device__ __forceinline__ float drawn_value(const struct sample_row &row, float x, int id)
{
    return x - logf(-logf(rng_unit(rng_mix(row.seed, row.position, (uint64_t)id))));
}

/* The token drawn from shaped logits; x is divided by the temperature on the way. */
static __device__ int draw(const struct sample_row &row, float *x, int n, struct sample_shared *sh)
{
    struct pick best = largest(x, n, sh);
    if (row.temperature <= 0.0f || best.value == -INFINITY) return best.id;
    for (int i = (int)threadIdx.x; i < n; i += THREADS) x[i] = x[i] / row.temperature;
    __syncthreads();
    float top = best.value / row.temperature;
    struct cut c = {0, n};
    if (row.min_p > 0.0f) { /* the lowest key whose probability reaches min_p of the largest */
        uint32_t lowest = 0xffffffffu;
        for (int i = (int)threadIdx.x; i < n; i += THREADS) {
            if (expf(x[i] - top) >= row.min_p) lowest = min(lowest, order_key(x[i]));
        }
        __syncthreads();
        if (threadIdx.x == 0) sh->prefix = order_key(top);
        __syncthreads();
        atomicMin(&sh->prefix, lowest);
        __syncthreads();
        c.key = sh->prefix;
        __syncthreads();
    }
    if (row.top_k > 0 && row.top_k < n) {
        c = tighten(x, n, c, top, true, (unsigned long long)row.top_k, sh);
        __syncthreads();
    }
    if (row.top_p < 1.0f) {
        __syncthreads();
        if (threadIdx.x == 0) sh->rest = 0;
        __syncthreads();
        unsigned long long mine = 0;
        for (int i = (int)threadIdx.x; i < n; i += THREADS) {
            if (stays(c, x[i], i)) mine += mass_of(x[i], top, false);
        }
#pragma unroll
        for (int d = WARP / 2; d > 0; d >>= 1) mine += shfl_xor(mine, d);
        if (threadIdx.x % WARP == 0) atomicAdd(&sh->rest, mine);
        __syncthreads();
        unsigned long long want = (unsigned long long)((double)sh->rest * (double)row.top_p);
        __syncthreads();
        c = tighten(x, n, c, top, false, want ? want : 1, sh);
        __syncthreads();
    }
    struct pick p = {-INFINITY, best.id};
    for (int i = (int)threadIdx.x; i < n; i += THREADS) {
        if (!stays(c, x[i], i)) continue;
        struct pick q = {drawn_value(row, x[i], i), i};
        p = better(p, q);
    }
    return block_pick(p, sh->picks).id;
}

/* Whether nothing may be drawn, and then what is given: the lowest id that the mask allows. */
static __device__ bool largest_is_impossible(const float *x, int n, struct sample_shared *sh)
{
    return largest(x, n, sh).value == -INFINITY;
}

static __device__ int first_allowed(const struct sample_row &row, const uint32_t *mask, int n,
                                    struct sample_shared *sh)
{
    struct pick p = {-INFINITY, 0x7fffffff};
    for (int i = (int)threadIdx.x; i < n; i += THREADS) {
        struct pick q = {0.0f, i};
        if (allowed(row, mask, i)) p = better(p, q);
    }
    p = block_pick(p, sh->picks);
    return p.id < n ? p.id : 0;
}

struct kernel_args {
    float *logits;
    uint32_t n_vocab;
    const struct sample_row *rows;
    const int32_t *history;
    const struct sample_bias *bias;
    const int32_t *ban;
    const uint32_t *mask;
    uint32_t *count;    /* [row][n_vocab] */
    float *shaped;      /* the same: logits after shaping */
    struct part *parts; /* [row][PARTS] of plain rows, n_part are made */
    uint32_t n_part;
    uint32_t rank, n_rank; /* rows of this rank's logits are drawn */
    int32_t *ids;
    float *logprobs;
    uint32_t *ranks;
    int32_t *top_ids;
    float *top_logprobs;
};

static __device__ int take_id(const struct sample_row &row, const struct kernel_args &a, float *x,
                              int n, struct sample_shared *sh)
{
    uint32_t *count = a.count + (size_t)blockIdx.x * a.n_vocab;
    shape(row, a.history, a.bias, a.ban, a.mask, x, n, count);
    __syncthreads();
    int id = draw(row, x, n, sh);
    if (id >= n || id < 0) id = 0;
    return largest_is_impossible(x, n, sh) ? first_allowed(row, a.mask, n, sh) : id;
}

/* Neither shaped nor cut. */
static __device__ __forceinline__ bool is_plain(const struct sample_row &row)
{
    const bool shaped = row.n_ban || row.n_bias || row.repetition_penalty != 1.0f ||
                        row.frequency_penalty != 0.0f || row.presence_penalty != 0.0f;
    const bool cut = row.min_p > 0.0f || row.top_k > 0 || row.top_p < 1.0f;
    return !row.is_given && !shaped && (!cut || row.temperature <= 0.0f);
}

/* One part of a plain row's ids: the largest logit and the draw, as draw finds them. */
__global__ void __launch_bounds__(PART_THREADS) part_kernel(const struct kernel_args a)
{
    __shared__ struct pick picks[PART_THREADS / WARP];
    kernel_begin();
    const struct sample_row row = a.rows[blockIdx.y];
    if (!is_plain(row) || draw_owner(row.logit_row, a.n_rank) != a.rank) return;
    const float *x = a.logits + (size_t)row.logit_row * a.n_vocab;
    struct part p = {{-INFINITY, 0x7fffffff}, {-INFINITY, 0x7fffffff}};
#pragma unroll 4
    for (uint32_t i = blockIdx.x * PART_THREADS + threadIdx.x; i < row.n_vocab_used;
         i += gridDim.x * PART_THREADS) {
        const float v = x[i] == x[i] && allowed(row, a.mask, (int)i) ? x[i] : -INFINITY;
        const struct pick largest = {v, (int)i};
        p.largest = better(p.largest, largest);
        if (row.temperature <= 0.0f || v / row.temperature == -INFINITY) continue;
        const struct pick drawn = {drawn_value(row, v / row.temperature, (int)i), (int)i};
        p.drawn = better(p.drawn, drawn);
    }
    p.largest = block_pick(p.largest, picks);
    p.drawn = block_pick(p.drawn, picks);
    DCHECK(gridDim.x <= PARTS);
    if (threadIdx.x == 0) a.parts[blockIdx.y * PARTS + blockIdx.x] = p;
}

/* The token of a plain row, from its parts. */
static __device__ int take_part(const struct sample_row &row, const struct kernel_args &a, int n,
                                struct sample_shared *sh)
{
    DCHECK(a.n_part >= 1 && a.n_part <= PARTS);
    const uint32_t lane = threadIdx.x % WARP;
    struct part mine = {{-INFINITY, 0x7fffffff}, {-INFINITY, 0x7fffffff}};
    if (lane < a.n_part) mine = a.parts[blockIdx.x * PARTS + lane];
    const struct pick largest = warp_pick(mine.largest), drawn = warp_pick(mine.drawn);
    const bool greedy = row.temperature <= 0.0f;
    const float top = greedy ? largest.value : largest.value / row.temperature;
    if (top == -INFINITY) return first_allowed(row, a.mask, n, sh);
    return greedy || drawn.id >= n ? largest.id : drawn.id;
}

__global__ void __launch_bounds__(THREADS) sample_kernel(const struct kernel_args a)
{
    __shared__ struct sample_shared sh;
    kernel_begin();
    const struct sample_row row = a.rows[blockIdx.x];
    if (draw_owner(row.logit_row, a.n_rank) != a.rank) return;
    DCHECK(row.n_vocab_used >= 1 && row.n_vocab_used <= a.n_vocab && row.n_top <= SAMPLE_TOP_MAX);
    float *x = a.logits + (size_t)row.logit_row * a.n_vocab;
    const bool plain = is_plain(row), tells = row.want_logprob || row.n_top;
    const int n = (int)row.n_vocab_used, n_told = tells ? (int)a.n_vocab : n;
    if (!plain || tells) {
        for (int i = (int)threadIdx.x; i < n_told; i += THREADS) {
            if (x[i] != x[i]) x[i] = -INFINITY;
        }
        __syncthreads();
    }
    float lse = 0.0f;
    if (tells) lse = log_sum(x, n_told, largest(x, n_told, &sh).value, &sh);
    struct pick last = {INFINITY, -1};
    for (uint32_t k = 0; k < row.n_top; k++) { /* the best below the last one */
        struct pick p = {-INFINITY, 0x7fffffff};
        for (int i = (int)threadIdx.x; i < n_told; i += THREADS) {
            bool below = x[i] < last.value || (x[i] == last.value && i > last.id);
            struct pick q = {x[i], i};
            if (below) p = better(p, q);
        }
        last = block_pick(p, sh.picks);
        if (threadIdx.x == 0) {
            a.top_ids[blockIdx.x * SAMPLE_TOP_MAX + k] = last.id;
            a.top_logprobs[blockIdx.x * SAMPLE_TOP_MAX + k] = last.value - lse;
        }
    }
    int id = row.given_id;
    if (plain) {
        id = take_part(row, a, n, &sh);
    } else if (!row.is_given) { /* on a copy: rows may share their logits */
        float *copy = a.shaped + (size_t)blockIdx.x * a.n_vocab;
        for (int i = (int)threadIdx.x; i < n; i += THREADS) copy[i] = x[i];
        id = take_id(row, a, copy, n, &sh);
    }
    uint32_t place = row.want_logprob ? place_of(x, n_told, id, &sh) : 0;
    if (threadIdx.x == 0) {
        a.ids[blockIdx.x] = id;
        a.ranks[blockIdx.x] = place;
        a.logprobs[blockIdx.x] = !row.want_logprob ? 0.0f : id < n_told ? x[id] - lse : -INFINITY;
    }
}

fathom_err cuda_sample(struct backend *b, const struct sample_args *a)
{
    struct cuda_backend *c = cuda_of(b);
    op_check_sample(&c->c, a);
    ASSERT(a->logits->kind == BUFFER_LOGITS);
    if (a->n_row == 0) return FATHOM_OK;
    const uint32_t n_most = ceil_div(c->c.n_vocab, PART_THREADS);
    const uint32_t n_part = n_most < PARTS ? n_most : PARTS;
    struct kernel_args k = {};
    k.logits = a->logits->f;
    k.n_vocab = c->c.n_vocab;
    k.rows = a->rows;
    k.history = a->history;
    k.bias = a->bias;
    k.ban = a->ban;
    k.mask = a->mask;
    k.count = c->sample_count;
    k.shaped = c->sample_shaped;
    k.parts = (struct part *)c->sample_parts;
    k.n_part = n_part;
    k.rank = c->peers.rank;
    k.n_rank = c->peers.world > 1 ? c->peers.world : 1;
    k.ids = a->ids;
    k.logprobs = a->logprobs;
    k.ranks = a->ranks;
    k.top_ids = a->top_ids;
    k.top_logprobs = a->top_logprobs;
    static_assert(sizeof(struct part) == SAMPLE_PART_BYTES, "scratch.h sizes the parts");
    TRY(cuda_launch(c, "sample", part_kernel, dim3(k.n_part, a->n_row), PART_THREADS, 0, k));
    TRY(cuda_launch(c, "sample", sample_kernel, dim3(a->n_row), THREADS, 0, k));
    if (k.n_rank > 1) return c->net ? cuda_net_draws(c, a) : cuda_share_draws(c, a);
    return c->ep.world > 1 && !c->net ? cuda_tell_waits(c) : FATHOM_OK;
}
