/* moe_ep_bench.cu - V3.2's experts whole on GPUs of one host: right, and how fast
 *
 *   bench_moe_ep [GPUs, all of them]
 *
 * A layer of 256 experts of 7168 x 2048 and the shared one, weights made from a seed, FP8. Every
 * row chooses 8 experts of 4 of 8 groups, as V3.2's routes do, each as likely as another. First
 * rows of all GPUs are asked for the bits that they have as the only rows there are. Then recorded
 * trains of calls are timed, microseconds a call, the slowest GPU's: the operator (moe_ep); the
 * same without its experts (ways): rows to their ranks and sums back. What is read are the weights
 * of the experts that rows of any GPU chose, of the GPU that reads most. The floor of the ways is
 * that of the bytes that leave a GPU, at 374 GB/s, and twice 1.3 us for the way. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cuda/generic/moe.cuh"
#include "cuda_call.cuh"
#include "ranks_train.cuh"

enum {
    HIDDEN = 7168,
    INNER = 2048,
    N_EXPERT = 256,
    N_USED = 8,
    N_GROUP = 8,
    GROUPS_USED = 4,
    GROUP = N_EXPERT / N_GROUP,
    ROWS_MAX = 1024, /* of a GPU */
    REPEATS = 5,
    N_CALL = 32,
    N_LONE = 8 /* rows that are compared with themselves alone */
};

static const uint32_t sizes[] = {1, 8, 16, 64, 128, 256, 512, ROWS_MAX};

#define LINK_BYTES 374e9
#define WAY_US 1.3

struct rank {
    struct backend *b;
    struct buffer *x, *route, *y;
    struct weight *weight;
    uint16_t *place;
    struct graph *train;
};

struct setup {
    uint32_t n;
    struct rank ranks[PEERS_MAX];
    float *x, *routes; /* [n][ROWS_MAX] of rows */
};

static void bind(const struct rank *r)
{
    bind_gpu(r->b);
}

static uint64_t mix(uint64_t i)
{
    uint64_t v = (i + 1) * 0x9e3779b97f4a7c15ull;
    v = (v ^ v >> 31) * 0xbf58476d1ce4e5b9ull;
    return v ^ v >> 29;
}

static float value(uint64_t i)
{
    return (float)(int32_t)(mix(i) >> 32) * 0x1p-31f;
}

/* ---- what is computed ---- */

static void configure(struct backend_config *c, uint32_t rank, uint32_t n)
{
    ranks_config(c, rank, n * ROWS_MAX);
    c->n_expert = N_EXPERT;
    c->n_expert_used = N_USED;
    c->n_group = N_GROUP;
    c->topk_group = GROUPS_USED;
    c->moe_inner = c->shared_inner = INNER;
    c->norm_topk = true;
    c->routed_scale = 2.5f;
    c->parallel = parallel_one();
    c->parallel.dp.rank = rank;
    c->parallel.dp.size = n;
    c->parallel.experts_whole = true;
}

static struct tensor_view made(enum dtype t, uint32_t n_row, uint32_t n_col, uint64_t seed)
{
    struct tensor_view v = {};
    v.dtype = t;
    v.n_row = n_row;
    v.n_col = n_col;
    v.row_stride = n_col;
    v.generate_seed = seed;
    v.generate_std = 0.02f;
    return v;
}

static void make_ffn(struct ffn_tensors *t, uint64_t seed)
{
    t->gate = made(DTYPE_F8_E4M3, INNER, HIDDEN, 3 * seed);
    t->up = made(DTYPE_F8_E4M3, INNER, HIDDEN, 3 * seed + 1);
    t->down = made(DTYPE_F8_E4M3, HIDDEN, INNER, 3 * seed + 2);
}

static void load(struct rank *r, uint32_t rank, uint32_t n_held)
{
    static float bias[N_EXPERT];
    struct ffn_tensors experts[N_EXPERT] = {};
    struct moe_tensors t = {};
    fathom_diag d = {};
    t.router = made(DTYPE_BF16, N_EXPERT, HIDDEN, 7);
    t.router_bias.data = bias;
    t.router_bias.dtype = DTYPE_F32;
    t.router_bias.n_row = 1;
    t.router_bias.n_col = t.router_bias.row_stride = N_EXPERT;
    make_ffn(&t.shared, 1000);
    for (uint32_t e = 0; e < n_held; e++) make_ffn(&experts[e], 2000 + rank * n_held + e);
    t.experts = experts;
    check(r->b->ops->prepare_moe(r->b, &t, &r->weight, &d), r->b, d.text);
}

static void open_rank(struct rank *r, uint32_t rank, uint32_t n)
{
    struct backend_config c;
    fathom_diag d = {};
    uint16_t place[N_EXPERT];
    void *device;
    configure(&c, rank, n);
    if (backend_cuda_create(&r->b, &c, &d)) {
        fprintf(stderr, "%s\n", d.text);
        exit(1);
    }
    const struct backend_ops *ops = r->b->ops;
    check(ops->buffer_create(r->b, BUFFER_NORMED, &r->x, &d), r->b, d.text);
    check(ops->buffer_create(r->b, BUFFER_ROUTE, &r->route, &d), r->b, d.text);
    check(ops->buffer_create(r->b, BUFFER_DELTA, &r->y, &d), r->b, d.text);
    for (uint32_t e = 0; e < N_EXPERT; e++) place[e] = parallel_place(&c.parallel, N_EXPERT, e);
    check(ops->alloc(r->b, sizeof place, "places", &device, &d), r->b, d.text);
    check(ops->copy_in(r->b, device, place, sizeof place), r->b, "places");
    check(ops->sync(r->b), r->b, "places");
    r->place = (uint16_t *)device;
    load(r, rank, backend_held_experts(&c));
}

/* Distinct numbers below n, ascending. */
static void choose(uint32_t *out, uint32_t n_out, uint32_t n, uint64_t *seed)
{
    uint32_t got = 0;
    for (uint32_t i = 0; i < n && got < n_out; i++) {
        if (mix((*seed)++) % (n - i) < n_out - got) out[got++] = i;
    }
}

static void make_route(float *route, uint64_t *seed)
{
    uint32_t groups[GROUPS_USED], of[N_USED];
    choose(groups, GROUPS_USED, N_GROUP, seed);
    choose(of, N_USED, GROUPS_USED * GROUP, seed);
    for (int i = 0; i < N_USED; i++) {
        route[i] = (float)(groups[of[i] / GROUP] * GROUP + of[i] % GROUP);
        route[N_USED + i] = 0.2f + 0.1f * (float)(mix((*seed)++) % 8);
    }
}

static void open_setup(struct setup *s)
{
    struct backend *all[PEERS_MAX];
    fathom_diag d = {};
    uint64_t seed = 1;
    const size_t n_row = (size_t)s->n * ROWS_MAX;
    for (uint32_t r = 0; r < s->n; r++) {
        open_rank(&s->ranks[r], r, s->n);
        all[r] = s->ranks[r].b;
    }
    if (backend_join(all, s->n, &d)) {
        fprintf(stderr, "%s\n", d.text);
        exit(1);
    }
    s->x = (float *)malloc(n_row * HIDDEN * 4);
    s->routes = (float *)malloc(n_row * 2 * N_USED * 4);
    for (size_t i = 0; i < n_row * HIDDEN; i++) s->x[i] = value(i);
    for (size_t i = 0; i < n_row; i++) make_route(s->routes + i * 2 * N_USED, &seed);
}

/* A GPU's rows, from `row` of its own on. */
static void give_rows(struct setup *s, uint32_t rank, uint32_t row, uint32_t n)
{
    const struct rank *r = &s->ranks[rank];
    const size_t at = (size_t)rank * ROWS_MAX + row;
    bind(r);
    check(r->b->ops->buffer_write(r->b, r->x, 0, n, HIDDEN, s->x + at * HIDDEN), r->b, "write");
    check(r->b->ops->buffer_write(r->b, r->route, 0, n, 2 * N_USED, s->routes + at * 2 * N_USED),
          r->b, "write");
}

static void enqueue(const struct rank *r, bool has_experts, uint32_t n_row, uint32_t n_most)
{
    struct moe_ep_args a = {};
    a.w = r->weight;
    a.x = r->x;
    a.route = r->route;
    a.y = r->y;
    a.n_token = n_row;
    a.n_most = n_most;
    a.place = r->place;
    check(has_experts ? r->b->ops->moe_ep(r->b, &a) : cuda_moe_ep_ways(r->b, &a), r->b, "moe_ep");
}

/* ---- right ---- */

/* Rows of all GPUs at once, and some of them with no other row on any GPU. */
static void check_bits(struct setup *s)
{
    static float together[ROWS_MAX * HIDDEN], lone[HIDDEN];
    uint64_t n_wrong = 0, n_zero = 0;
    for (uint32_t i = 0; i < s->n; i++) {
        for (uint32_t r = 0; r < s->n; r++) {
            give_rows(s, r, 0, ROWS_MAX);
            enqueue(&s->ranks[r], true, ROWS_MAX, ROWS_MAX);
        }
        const struct rank *of = &s->ranks[i];
        bind(of);
        check(of->b->ops->buffer_read(of->b, of->y, 0, ROWS_MAX, HIDDEN, together), of->b, "read");
        for (uint32_t k = 0; k < N_LONE; k++) {
            const uint32_t row = k * (ROWS_MAX - 1) / (N_LONE - 1);
            give_rows(s, i, row, 1);
            for (uint32_t r = 0; r < s->n; r++) {
                bind(&s->ranks[r]);
                enqueue(&s->ranks[r], true, r == i, 1);
            }
            bind(of);
            check(of->b->ops->buffer_read(of->b, of->y, 0, 1, HIDDEN, lone), of->b, "read");
            const float *const want = together + (size_t)row * HIDDEN;
            n_wrong += memcmp(lone, want, sizeof lone) != 0;
            for (uint32_t j = 0; j < HIDDEN; j++) n_zero += lone[j] == 0.0f;
        }
    }
    printf("check,%u,%llu of %u rows wrong,%llu values of them zero\n", s->n,
           (unsigned long long)n_wrong, s->n * N_LONE, (unsigned long long)n_zero);
    if (n_wrong || n_zero > (uint64_t)s->n * N_LONE * HIDDEN / 100) exit(1);
}

/* ---- how fast ---- */

static double time_train(struct setup *s, bool has_experts, uint32_t n_row)
{
    double best = 1e30;
    for (uint32_t r = 0; r < s->n; r++) {
        const struct rank *q = &s->ranks[r];
        give_rows(s, r, 0, n_row);
        check(q->b->ops->graph_begin(q->b), q->b, "graph");
        for (int i = 0; i < N_CALL; i++) enqueue(q, has_experts, n_row, n_row);
        check(q->b->ops->graph_end(q->b, &s->ranks[r].train), q->b, "graph");
    }
    struct ranks_train trains[PEERS_MAX];
    for (uint32_t r = 0; r < s->n; r++) trains[r] = {s->ranks[r].b, s->ranks[r].train};
    for (int k = 0; k < REPEATS; k++) {
        for (uint32_t r = 0; r < s->n; r++) { /* all have come */
            bind(&s->ranks[r]);
            enqueue(&s->ranks[r], has_experts, n_row, n_row);
        }
        const double us = ranks_train_us(trains, s->n);
        best = us < best ? us : best;
    }
    ranks_train_destroy(trains, s->n);
    return best / N_CALL;
}

/* What rows of n_row a GPU choose. */
struct choices {
    uint32_t n_hit;  /* experts, of all GPUs */
    uint32_t n_most; /* of the GPU that has most of them */
    double n_to;     /* other GPUs that a row goes to, mean */
};

static void count(struct choices *out, const struct setup *s, uint32_t n_row)
{
    bool hit[N_EXPERT] = {};
    const uint32_t n_held = N_EXPERT / s->n;
    uint32_t n_sent = 0;
    *out = {};
    for (uint32_t r = 0; r < s->n; r++) {
        for (uint32_t t = 0; t < n_row; t++) {
            const float *route = s->routes + ((size_t)r * ROWS_MAX + t) * 2 * N_USED;
            uint32_t to = 0;
            for (int k = 0; k < N_USED; k++) {
                hit[(uint32_t)route[k]] = true;
                to |= 1u << ((uint32_t)route[k] / n_held);
            }
            n_sent += (uint32_t)__builtin_popcount(to & ~(1u << r));
        }
    }
    for (uint32_t r = 0; r < s->n; r++) {
        uint32_t n = 0;
        for (uint32_t e = 0; e < n_held; e++) n += hit[r * n_held + e];
        out->n_hit += n;
        if (n > out->n_most) out->n_most = n;
    }
    out->n_to = (double)n_sent / (n_row * s->n);
}

int main(int argc, char **argv)
{
    static struct setup s;
    s.n = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 10) : (uint32_t)backend_cuda_count();
    if (s.n != 2 && s.n != 4 && s.n != 8) {
        fprintf(stderr, "%u GPUs; 2, 4 or 8 are needed\n", s.n);
        return 2;
    }
    /* One thread launches for all ranks: a kernel that is loaded late would wait for what waits. */
    (void)setenv("CUDA_MODULE_LOADING", "EAGER", 1);
    open_setup(&s);
    check_bits(&s);
    const double expert_bytes = 3.0 * HIDDEN * INNER * (1 + 4.0 / 128 / 128);
    const double row_bytes = HIDDEN * (1 + 4.0 / FP8_GROUP) + 2 * N_USED * 4 + HIDDEN * 2.0;
    printf("gpus,rows,moe_ep_us,ways_us,ways_floor,experts_hit,experts_most,ranks_a_row,"
           "expert_tb_s\n");
    for (const uint32_t n_row : sizes) {
        struct choices c;
        count(&c, &s, n_row);
        const double us = time_train(&s, true, n_row), ways_us = time_train(&s, false, n_row);
        const double bytes = (c.n_most + 1) * expert_bytes; /* and the shared one */
        printf("%u,%u,%.2f,%.2f,%.2f,%u,%u,%.2f,%.2f\n", s.n, n_row, us, ways_us,
               2 * WAY_US + n_row * c.n_to * row_bytes / LINK_BYTES * 1e6, c.n_hit, c.n_most,
               c.n_to, bytes / us * 1e-6);
        (void)fflush(stdout);
    }
    return 0;
}
