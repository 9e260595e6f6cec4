/* collectives_bench.cu - sums over GPUs of one host with the norm behind them: right, and how fast
 *
 *   bench_collectives [GPUs, all of them]
 *
 * Rows of 7168. First every sum is compared with the host's, bit for bit. Then recorded trains of
 * calls are timed, microseconds a call, the slowest GPU's: reduce_norm with all rows on all GPUs
 * (all), and each of its two ways; with rows of owners and their codes back to all (own); the norm
 * without any sum; and,
 * where libnccl.so.2 can be loaded, its all-reduce with the norm behind it, without multicast. The
 * floor is that of the bytes that leave a GPU, at 374 GB/s, and 1.3 us for the way. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cuda/generic/collect.cuh"
#include "backend/cuda/generic/norm.cuh"
#include "cuda_call.cuh"
#include "ranks_train.cuh"

enum { HIDDEN = 7168, ROWS_MAX = 4096, N_SIZE = 9, REPEATS = 5 };

static const uint32_t sizes[N_SIZE] = {1, 2, 4, 8, 16, 32, 64, 512, 4096};

#define LINK_BYTES 374e9
#define WAY_US 1.3

enum what { ALL, ONE_SHOT, TWO_SHOTS, OWN, ALONE, NCCL };

struct nccl {
    int (*init_all)(void **comms, int n, const int *devices);
    int (*group_start)(void);
    int (*group_end)(void);
    int (*all_reduce)(const void *in, void *out, size_t n, int type, int op, void *comm,
                      cudaStream_t stream);
};

struct rank {
    struct backend *b;
    struct cuda_backend *c;
    struct buffer *x, *delta, *out, *all;
    struct weight *weight;
    struct graph *train;
    void *comm;
};

struct setup {
    uint32_t n;
    struct rank ranks[PEERS_MAX];
    struct nccl nccl;
    bool has_nccl;
    float *x, *part[PEERS_MAX];
};

static void bind(const struct rank *r)
{
    bind_gpu(r->b);
}

static float value(uint64_t i)
{
    uint64_t v = (i + 1) * 0x9e3779b97f4a7c15ull;
    v = (v ^ v >> 31) * 0xbf58476d1ce4e5b9ull;
    return (float)(int32_t)(v >> 32) * 0x1p-31f;
}

static void open_rank(struct rank *r, uint32_t rank, uint32_t n)
{
    struct backend_config c;
    fathom_diag d = {};
    struct tensor_view weight = {};
    static float ones[HIDDEN];
    for (int i = 0; i < HIDDEN; i++) ones[i] = 1.0f;
    ranks_config(&c, rank, ROWS_MAX);
    c.parallel.tp.rank = rank;
    c.parallel.tp.size = n;
    if (backend_cuda_create(&r->b, &c, &d)) {
        fprintf(stderr, "%s\n", d.text);
        exit(1);
    }
    r->c = cuda_of(r->b);
    weight.data = ones;
    weight.dtype = DTYPE_F32;
    weight.n_row = 1;
    weight.n_col = HIDDEN;
    weight.row_stride = HIDDEN;
    check(r->b->ops->buffer_create(r->b, BUFFER_RESIDUAL, &r->x, &d), r->b, d.text);
    check(r->b->ops->buffer_create(r->b, BUFFER_DELTA, &r->delta, &d), r->b, d.text);
    check(r->b->ops->buffer_create(r->b, BUFFER_NORMED, &r->out, &d), r->b, d.text);
    check(r->b->ops->buffer_create(r->b, BUFFER_NORMED, &r->all, &d), r->b, d.text);
    check(r->b->ops->prepare_vector(r->b, &weight, &r->weight, &d), r->b, d.text);
}

static void load_nccl(struct setup *s)
{
    int devices[PEERS_MAX];
    void *comms[PEERS_MAX];
    void *lib = dlopen("libnccl.so.2", RTLD_NOW);
    if (!lib) {
        fprintf(stderr, "no NCCL: %s\n", dlerror());
        return;
    }
    *(void **)&s->nccl.init_all = dlsym(lib, "ncclCommInitAll");
    *(void **)&s->nccl.group_start = dlsym(lib, "ncclGroupStart");
    *(void **)&s->nccl.group_end = dlsym(lib, "ncclGroupEnd");
    *(void **)&s->nccl.all_reduce = dlsym(lib, "ncclAllReduce");
    for (uint32_t r = 0; r < s->n; r++) devices[r] = (int)r;
    const int code =
        s->nccl.init_all && s->nccl.all_reduce ? s->nccl.init_all(comms, (int)s->n, devices) : -1;
    if (code != 0) {
        fprintf(stderr, "no NCCL: ncclCommInitAll gives %d\n", code);
        return;
    }
    for (uint32_t r = 0; r < s->n; r++) s->ranks[r].comm = comms[r];
    s->has_nccl = true;
}

static void open_setup(struct setup *s)
{
    struct backend *all[PEERS_MAX];
    fathom_diag d = {};
    const size_t n = (size_t)ROWS_MAX * HIDDEN;
    for (uint32_t r = 0; r < s->n; r++) {
        open_rank(&s->ranks[r], r, s->n);
        all[r] = s->ranks[r].b;
    }
    if (backend_join(all, s->n, &d)) {
        fprintf(stderr, "%s\n", d.text);
        exit(1);
    }
    s->x = (float *)malloc(n * 4);
    for (size_t i = 0; i < n; i++) s->x[i] = value(i);
    for (uint32_t r = 0; r < s->n; r++) {
        s->part[r] = (float *)malloc(n * 4);
        for (size_t i = 0; i < n; i++) s->part[r][i] = value(i + (r + 1) * n);
        bind(&s->ranks[r]);
        check(all[r]->ops->buffer_write(all[r], s->ranks[r].delta, 0, ROWS_MAX, HIDDEN, s->part[r]),
              all[r], "write");
    }
    load_nccl(s);
}

static void enqueue_norm(const struct rank *r, uint32_t n_row)
{
    const struct reduce_norm_args a = {r->x, r->delta, r->weight, r->out, n_row, false, 0};
    check(r->b->ops->reduce_norm(r->b, &a), r->b, "reduce_norm");
}

static void enqueue_own(const struct rank *r, uint32_t n_row)
{
    struct norm_args n = {};
    const struct row_array codes[] = {{r->all->q, HIDDEN, r->out->q},
                                      {r->all->scale, HIDDEN / FP8_GROUP * 4, r->out->scale}};
    n.x = r->x->f;
    n.delta = r->delta->f;
    n.weight = r->weight->vector;
    n.f = r->out->f;
    n.h = r->out->h;
    n.q = r->out->q;
    n.codes = CODES_FP8;
    n.scale = r->out->scale;
    n.n = HIDDEN;
    n.eps = 1e-6f;
    check(cuda_sum_norm(r->c, &n, n_row, 0, SPREAD_OWN), r->b, "reduce_norm");
    check(cuda_spread(r->c, codes, 2, n_row), r->b, "spread_rows");
}

static void enqueue(struct setup *s, enum what what, uint32_t n_row)
{
    if (what == NCCL) s->nccl.group_start();
    for (uint32_t r = 0; r < s->n && what == NCCL; r++) {
        float *delta = s->ranks[r].delta->f;
        bind(&s->ranks[r]);
        s->nccl.all_reduce(delta, delta, (size_t)n_row * HIDDEN, 7, 0, s->ranks[r].comm,
                           s->ranks[r].c->stream);
    }
    if (what == NCCL) s->nccl.group_end();
    for (uint32_t r = 0; r < s->n; r++) {
        struct rank *k = &s->ranks[r];
        bind(k);
        if (what == OWN) {
            enqueue_own(k, n_row);
            continue;
        }
        const struct peers as_it_is = k->c->peers;
        if (what == ALONE || what == NCCL) k->c->peers.world = 1; /* no sum */
        if (what == ONE_SHOT) k->c->peers.n_one_shot = k->c->peers.at.one_shot_rows;
        if (what == TWO_SHOTS) k->c->peers.n_one_shot = 0;
        enqueue_norm(k, n_row);
        k->c->peers = as_it_is;
    }
}

/* All streams are recorded at once, for NCCL's calls are of all of them; nothing is made of a
 * recording before the last has ended. */
static void end_trains(struct setup *s)
{
    cudaGraph_t graphs[PEERS_MAX];
    for (uint32_t r = 0; r < s->n; r++) {
        bind(&s->ranks[r]);
        CUDA(cudaStreamEndCapture(s->ranks[r].c->stream, &graphs[r]));
    }
    for (uint32_t r = 0; r < s->n; r++) {
        cudaGraphExec_t train;
        bind(&s->ranks[r]);
        CUDA(cudaGraphInstantiate(&train, graphs[r], 0));
        CUDA(cudaGraphDestroy(graphs[r]));
        s->ranks[r].train = (struct graph *)train;
    }
}

static double time_train(struct setup *s, enum what what, uint32_t n_row)
{
    const int n_call = n_row <= 64 ? 256 : n_row <= 512 ? 64 : 16;
    double best = 1e30;
    for (uint32_t r = 0; r < s->n; r++) {
        bind(&s->ranks[r]);
        check(s->ranks[r].b->ops->graph_begin(s->ranks[r].b), s->ranks[r].b, "graph");
    }
    for (int i = 0; i < n_call; i++) enqueue(s, what, n_row);
    end_trains(s);
    struct ranks_train trains[PEERS_MAX];
    for (uint32_t r = 0; r < s->n; r++) trains[r] = {s->ranks[r].b, s->ranks[r].train};
    for (int k = 0; k < REPEATS; k++) {
        if (what != ALONE) enqueue(s, what, n_row); /* all have come */
        const double us = ranks_train_us(trains, s->n);
        best = us < best ? us : best;
    }
    ranks_train_destroy(trains, s->n);
    return best / n_call;
}

/* A part's value as it travels: rounded to bf16. */
static float as_sent(float v)
{
    uint32_t u;
    memcpy(&u, &v, sizeof u);
    u = (u + 0x7fff + (u >> 16 & 1)) & 0xffff0000u;
    memcpy(&v, &u, sizeof v);
    return v;
}

/* Every rank's residual is the host's, and its norms are the first rank's. */
static void check_bits(struct setup *s, uint32_t n_row)
{
    const size_t n = (size_t)n_row * HIDDEN;
    float *got = (float *)malloc(n * 4), *norm = (float *)malloc(n * 4);
    uint64_t n_wrong = 0;
    for (uint32_t r = 0; r < s->n; r++) {
        bind(&s->ranks[r]);
        check(
            s->ranks[r].b->ops->buffer_write(s->ranks[r].b, s->ranks[r].x, 0, n_row, HIDDEN, s->x),
            s->ranks[r].b, "write");
    }
    enqueue(s, ALL, n_row);
    for (uint32_t r = 0; r < s->n; r++) {
        const struct rank *k = &s->ranks[r];
        bind(k);
        check(k->b->ops->buffer_read(k->b, k->x, 0, n_row, HIDDEN, got), k->b, "read");
        for (size_t i = 0; i < n; i++) {
            float sum = 0.0f;
            for (uint32_t q = 0; q < s->n; q++) sum += as_sent(s->part[q][i]);
            n_wrong += got[i] != s->x[i] + sum;
        }
        check(k->b->ops->buffer_read(k->b, k->out, 0, n_row, HIDDEN, r ? got : norm), k->b, "read");
        for (size_t i = 0; r && i < n; i++) n_wrong += got[i] != norm[i];
    }
    free(got);
    free(norm);
    printf("check,%u,%u,%llu wrong\n", s->n, n_row, (unsigned long long)n_wrong);
    if (n_wrong) exit(1);
}

/* Parts of bf16; sums of f32, or codes, back from their owners. */
static double floor_us(uint32_t n, uint32_t n_row, bool own)
{
    const double part = HIDDEN * 2.0, codes = HIDDEN + HIDDEN / 128 * 4.0;
    const double back = own ? codes : HIDDEN * 4.0;
    const double one = (double)n_row * (n - 1) * part;
    const double two = (double)n_row * (n - 1) / n * (part + back);
    return WAY_US + (own || two < one ? two : one) / LINK_BYTES * 1e6;
}

int main(int argc, char **argv)
{
    static struct setup s;
    s.n = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 10) : (uint32_t)backend_cuda_count();
    if (s.n != 2 && s.n != 4 && s.n != 8) {
        fprintf(stderr, "%u GPUs; 2, 4 or 8 are needed\n", s.n);
        return 2;
    }
    (void)setenv("NCCL_NVLS_ENABLE", "0", 1);
    open_setup(&s);
    for (int i = 0; i < N_SIZE; i++) check_bits(&s, sizes[i]);
    printf("gpus,rows,all_us,all_floor,one_shot_us,two_shots_us,own_us,own_floor,add_norm_us,"
           "nccl_add_norm_us\n");
    for (int i = 0; i < N_SIZE; i++) {
        const uint32_t n = sizes[i];
        printf("%u,%u,%.2f,%.2f,", s.n, n, time_train(&s, ALL, n), floor_us(s.n, n, false));
        const bool has_both = n <= s.ranks[0].c->peers.at.one_shot_rows;
        printf("%.2f,%.2f,", has_both ? time_train(&s, ONE_SHOT, n) : 0.0,
               time_train(&s, TWO_SHOTS, n));
        printf("%.2f,%.2f,", time_train(&s, OWN, n), floor_us(s.n, n, true));
        printf("%.2f,", time_train(&s, ALONE, n));
        printf("%.2f\n", s.has_nccl ? time_train(&s, NCCL, n) : 0.0);
        (void)fflush(stdout);
    }
    return 0;
}
