/* test_op_moe_ep.c - experts whole on their ranks, rows on theirs
 *
 * One set of rows is spread over 1, 2, 4 and 8 ranks, a thread each. Results are moe's within the
 * order of sums, on one rank moe's own bits; on several a row has the same bits whichever rank it
 * is on and whatever rows are beside it, ranks without rows among them. It has these bits too where
 * 2 or 4 of the ranks share the rows of a lane, once their parts are added.
 */
#include "op/harness.h"

#include <math.h>
#include <pthread.h>
#include <string.h>

#include "base/mem.h"
#include "op/ranks_main.h"

enum { N = 97, N_FEW = 19, WORLD_MAX = 8 };

/* Rows [0, n) of a case: row t is on lane owner[t], in ascending order there. */
struct ep_case {
    struct backend_config c; /* of one rank with all */
    struct moe_tensors tensors;
    uint32_t n;
    float *x;     /* [n][D] */
    float *route; /* [n][2K] */
    uint32_t *owner;
    float *y; /* [n][D] */
};

struct rank {
    struct rig rig;
    struct weight *w;
    uint16_t *place;
    const struct ep_case *k;
    uint32_t rank;
    float *y; /* [n][D]: its lane's rows */
    uint32_t layer0, n_pass;
    uint32_t n_most;
    int32_t *n_live;     /* device, or NULL */
    struct graph *graph; /* of n_most rows, of which n_live are there, or NULL */
    int32_t n_own;
    fathom_err err;
    pthread_t thread;
};

static struct rank ranks[WORLD_MAX];
static uint32_t n_share = 1;           /* ranks of a lane */
static uint32_t world_max = WORLD_MAX; /* as many as there are devices for */

static void open_ranks(const struct ep_case *k, uint32_t world)
{
    fathom_diag d = {{0}};
    struct backend *b[WORLD_MAX];
    uint16_t place[64];
    for (uint32_t i = 0; i < world; i++) {
        struct backend_config c = k->c;
        struct moe_tensors part = k->tensors;
        c.n_thread = 1;
        c.device = (int)i;
        c.parallel = parallel_one();
        c.parallel.tp.size = n_share;
        c.parallel.dp.size = world / n_share;
        c.parallel.experts_whole = true;
        parallel_be(&c.parallel, i);
        part.experts += i * backend_held_experts(&c);
        ranks[i] = (struct rank){.k = k, .rank = i};
        rig_open(&ranks[i].rig, op_backend(), &c);
        ranks[i].w = rig_moe(&ranks[i].rig, &part);
        for (uint32_t e = 0; e < c.n_expert; e++)
            place[e] = parallel_place(&c.parallel, c.n_expert, e);
        ranks[i].place = rig_put(&ranks[i].rig, place, c.n_expert * sizeof *place);
        b[i] = ranks[i].rig.b;
    }
    if (world > 1 && backend_join(b, world, &d)) fail_msg("%s", d.text);
}

/* The first rank that goes breaks the group, so that rig_close would find a fault on the others. */
static void close_ranks(uint32_t world)
{
    for (uint32_t i = 0; i < world; i++) {
        struct rig *r = &ranks[i].rig;
        op_ok(r, r->ops->bind_thread(r->b), "bind_thread");
        if (ranks[i].graph) r->ops->graph_destroy(r->b, ranks[i].graph);
        r->ops->weight_destroy(r->b, ranks[i].w);
        rig_drop(r, ranks[i].place);
        for (int kind = 0; kind < OP_N_BUFFER; kind++)
            r->ops->buffer_destroy(r->b, r->buffer[kind]);
        r->ops->destroy(r->b);
    }
}

static struct moe_ep_args args_of(const struct rank *r, uint32_t n_token, uint32_t layer)
{
    struct buffer *const *buffer = r->rig.buffer;
    return (struct moe_ep_args){.w = r->w,
                                .x = buffer[BUFFER_NORMED],
                                .route = buffer[BUFFER_ROUTE],
                                .y = buffer[BUFFER_DELTA],
                                .n_token = n_token,
                                .n_most = r->n_most,
                                .n_live = r->n_live,
                                .place = r->place,
                                .layer = layer};
}

/* A recording of a layer, or the layer as it is. */
static fathom_err run_layer(struct rank *r, uint32_t n_token, uint32_t layer)
{
    const struct moe_ep_args a = args_of(r, n_token, layer);
    return r->graph ? r->rig.ops->graph_launch(r->rig.b, r->graph)
                    : r->rig.ops->moe_ep(r->rig.b, &a);
}

/* A rank's rows: into its buffers, through moe_ep of some layers, and out. cmocka's checks are for
 * the thread of the test alone. */
static void *run_rank(void *arg)
{
    struct rank *r = arg;
    const struct ep_case *k = r->k;
    const struct backend_ops *ops = r->rig.ops;
    struct buffer *const *buffer = r->rig.buffer;
    const uint32_t hidden = k->c.hidden, width = 2 * k->c.n_expert_used;
    uint32_t n = 0;
    r->err = ops->bind_thread(r->rig.b);
    for (uint32_t t = 0; t < k->n && !r->err; t++) {
        if (k->owner[t] != r->rank / n_share) continue;
        r->err = ops->buffer_write(r->rig.b, buffer[BUFFER_NORMED], n, 1, hidden,
                                   k->x + (size_t)t * hidden);
        if (!r->err)
            r->err = ops->buffer_write(r->rig.b, buffer[BUFFER_ROUTE], n, 1, width,
                                       k->route + (size_t)t * width);
        n++;
    }
    r->n_own = (int32_t)n;
    if (r->graph && !r->err) r->err = ops->copy_in(r->rig.b, r->n_live, &r->n_own, sizeof r->n_own);
    for (uint32_t layer = 0; layer < r->n_pass && !r->err; layer++)
        r->err = run_layer(r, n, r->layer0 + layer);
    n = 0;
    for (uint32_t t = 0; t < k->n && !r->err; t++) {
        if (k->owner[t] != r->rank / n_share) continue;
        r->err = ops->buffer_read(r->rig.b, buffer[BUFFER_DELTA], n++, 1, hidden,
                                  r->y + (size_t)t * hidden);
    }
    return NULL;
}

/* Rows of the lane that has most. */
static uint32_t most_rows(const struct ep_case *k, uint32_t world)
{
    uint32_t n[WORLD_MAX] = {0}, most = 1;
    for (uint32_t t = 0; t < k->n; t++) n[k->owner[t]]++;
    for (uint32_t i = 0; i < world / n_share; i++) most = n[i] > most ? n[i] : most;
    return most;
}

/* y = the sum of what the lane's ranks have, as their next norm adds it up. */
static void add_parts(const struct ep_case *k)
{
    const uint32_t hidden = k->c.hidden;
    for (uint32_t t = 0; t < k->n; t++) {
        const struct rank *lane = &ranks[k->owner[t] * n_share];
        float *y = k->y + (size_t)t * hidden;
        for (uint32_t d = 0; d < hidden; d++) {
            const size_t at = (size_t)t * hidden + d;
            y[d] = lane[0].y[at];
            for (uint32_t i = 1; i < n_share; i++) y[d] += lane[i].y[at];
        }
    }
}

/* Each rank makes the launches of n_most rows. */
static void run_with(const struct ep_case *k, uint32_t world, uint32_t n_pass, uint32_t n_most)
{
    const size_t n = (size_t)k->n * k->c.hidden;
    memset(k->y, 0xff, n * sizeof *k->y);
    for (uint32_t i = 0; i < world; i++) {
        ranks[i].y = n_share > 1 ? mem_alloc_array(n, sizeof *k->y) : k->y;
        assert_non_null(ranks[i].y);
        ranks[i].n_pass = n_pass;
        ranks[i].n_most = n_most;
        assert_int_equal(pthread_create(&ranks[i].thread, NULL, run_rank, &ranks[i]), 0);
    }
    for (uint32_t i = 0; i < world; i++) pthread_join(ranks[i].thread, NULL);
    for (uint32_t i = 0; i < world; i++) op_ok(&ranks[i].rig, ranks[i].err, "moe_ep");
    if (n_share == 1) return;
    add_parts(k);
    for (uint32_t i = 0; i < world; i++) mem_free(ranks[i].y);
}

static void run(const struct ep_case *k, uint32_t world, uint32_t n_pass)
{
    run_with(k, world, n_pass, most_rows(k, world));
}

/* How rows lie on lanes: all on one, in turn, in runs, all on the last. */
enum { SPREAD_FIRST, SPREAD_TURN, SPREAD_RUNS, SPREAD_LAST, N_SPREAD };

static void spread(const struct ep_case *k, uint32_t world, int how)
{
    const uint32_t n_lane = world / n_share;
    for (uint32_t t = 0; t < k->n; t++) {
        k->owner[t] = how == SPREAD_FIRST  ? 0
                      : how == SPREAD_TURN ? t % n_lane
                      : how == SPREAD_RUNS ? t * t / k->n * n_lane / k->n
                                           : n_lane - 1;
    }
}

/* What moe of one rank makes of all rows. */
static float *run_moe(const struct ep_case *k, const char *backend)
{
    struct rig r;
    rig_open(&r, backend, &k->c);
    rig_write(&r, BUFFER_NORMED, k->n, k->c.hidden, k->x);
    rig_write(&r, BUFFER_ROUTE, k->n, 2 * k->c.n_expert_used, k->route);
    struct moe_args a = {.w = rig_moe(&r, &k->tensors),
                         .x = r.buffer[BUFFER_NORMED],
                         .route = r.buffer[BUFFER_ROUTE],
                         .y = r.buffer[BUFFER_DELTA],
                         .n_token = k->n};
    op_ok(&r, r.ops->moe(r.b, &a), "moe");
    float *y = rig_read(&r, BUFFER_DELTA, k->n, k->c.hidden);
    rig_close(&r);
    return y;
}

/* Rows before `same` choose the first experts, which are one rank's; row 0 on eight ranks too. */
static void fill(struct ep_case *k, struct gen *g, uint32_t n, uint32_t same)
{
    const uint32_t used = k->c.n_expert_used;
    k->n = n;
    k->x = gen_floats(g, (size_t)n * k->c.hidden, 1);
    k->route = gen_alloc(g, (size_t)n * 2 * used * sizeof *k->route);
    k->owner = gen_alloc(g, n * sizeof *k->owner);
    k->y = gen_alloc(g, (size_t)n * k->c.hidden * sizeof *k->y);
    for (uint32_t t = 0; t < n; t++) {
        float *row = k->route + (size_t)t * 2 * used;
        uint32_t i = 0;
        for (uint32_t e = 0; e < k->c.n_expert && i < used; e++) {
            if (t < same || gen_below(g, k->c.n_expert - e) < used - i) row[i++] = (float)e;
        }
        for (i = 0; i < used; i++) row[used + i] = 0.1f + fabsf(gen_normal(g));
    }
}

/* Ranks share rows, n_share of them each lane's: results have the bits that they have on ranks that
 * share none. */
static void check_shared(const struct ep_case *k, uint32_t world, const float *want)
{
    open_ranks(k, world);
    for (int how = 0; how < N_SPREAD; how++) {
        spread(k, world, how);
        run(k, world, how == SPREAD_TURN ? 3 : 1);
        op_same_bits("shared rows", k->y, want, (size_t)k->n * k->c.hidden * sizeof *want);
    }
    close_ranks(world);
}

/* Whether a rank's sums travel as bf16, as the outputs of its experts are. */
static bool rounds_sums(enum act_type act)
{
    const char *name = op_backend();
    return act == ACT_FP8 && (strcmp(name, "cuda") == 0 || strcmp(name, "cuda_sim_tuned") == 0);
}

static void check(const struct ep_case *k, uint32_t first_world, uint32_t last_world)
{
    const size_t n = (size_t)k->n * k->c.hidden;
    float *want = run_moe(k, "ref"), *own = run_moe(k, op_backend());
    float *first = mem_alloc_array(n, sizeof *first);
    assert_non_null(first);
    for (uint32_t world = first_world; world <= last_world; world *= 2) {
        open_ranks(k, world);
        for (int how = 0; how < N_SPREAD; how++) {
            spread(k, world, how);
            run(k, world, how == SPREAD_TURN ? 3 : 1);
            if (how == 0) memcpy(first, k->y, n * sizeof *first);
            op_same_bits("rows spread otherwise", k->y, first, n * sizeof *first);
        }
        op_close("moe_ep", first, want, n, op_tolerance(k->c.act));
        op_close("moe_ep against moe", first, own, n, rounds_sums(k->c.act) ? 4e-3 : 1e-6);
        if (world == 1) op_same_bits("one rank", first, own, n * sizeof *first);
        close_ranks(world);
        for (n_share = 2; n_share <= 4 && world / n_share >= 2; n_share *= 2) {
            if (!op_wants_few() || world / n_share == 2) check_shared(k, world, first);
        }
        n_share = 1;
    }
    mem_free(first);
    mem_free(want);
    mem_free(own);
}

static void check_case(enum act_type act, enum dtype t, bool with_shared, uint32_t n_used)
{
    struct ep_case k = {0};
    struct gen *g = gen_create_for(83, act);
    gen_config(&k.c, act, KV_TYPE_BF16, false);
    if (!with_shared) k.c.shared_inner = 0;
    k.c.n_expert_used = n_used;
    gen_moe(g, &k.c, t, &k.tensors);
    fill(&k, g, op_wants_few() ? N_FEW : N, op_wants_few() ? 7 : 40);
    /* floats on simulated devices that look for races take minutes */
    check(&k, 1, op_wants_few() && act != ACT_FP8 ? 2 : world_max);
    gen_destroy(g);
}

static void rows_have_their_bits_wherever_they_are(void **state)
{
    (void)state;
    check_case(ACT_FP8, DTYPE_F8_E4M3, true, 4);
    check_case(ACT_F32, DTYPE_BF16, true, 4);
    if (op_wants_few()) return;
    check_case(ACT_BF16, DTYPE_F8_E4M3, true, 4);
    check_case(ACT_F32, DTYPE_F32, false, 4);
}

static void one_expert_takes_all_rows(void **state)
{
    (void)state;
    check_case(ACT_FP8, DTYPE_F8_E4M3, false, 1);
    if (!op_wants_few()) check_case(ACT_F32, DTYPE_BF16, true, 1);
}

/* Two experts a rank of two, no shared one, and steps of max_token: with 2 * N a round has room for
 * N rows of a rank in any form, with N only where they are listed. */
static void crowd(struct backend_config *c, uint32_t n_used, uint32_t max_token)
{
    gen_config(c, ACT_FP8, KV_TYPE_BF16, false);
    c->n_expert = 4;
    c->n_expert_used = n_used;
    c->n_group = c->topk_group = 1;
    c->shared_inner = 0;
    c->max_token = max_token;
}

/* So many rows an expert that a device may bring them in order, and in tasks of its largest tile;
 * each row has an expert or two of three on either rank. */
static void check_crowd(uint32_t max_token, uint32_t moe_inner)
{
    struct ep_case k = {0};
    struct gen *g = gen_create_for(88, ACT_FP8);
    crowd(&k.c, 3, max_token);
    k.c.moe_inner = moe_inner;
    gen_moe(g, &k.c, DTYPE_F8_E4M3, &k.tensors);
    fill(&k, g, N, 40);
    check(&k, 2, 2);
    gen_destroy(g);
}

static void many_rows_of_an_expert(void **state)
{
    (void)state;
    if (world_max < 2) skip();
    check_crowd(2 * N, 512);
}

static void rounds_of_listed_rows_are_larger(void **state)
{
    (void)state;
    if (world_max < 2) skip();
    check_crowd(N, 256);
}

/* Experts' gate and up do not lie together: they are of two forms, of one kind of inputs. */
static void gate_and_up_of_two_forms(void **state)
{
    (void)state;
    struct ep_case k = {0};
    const struct weight_form plain = {.code = CODE_WIDE};
    const struct weight_form by_row = {.code = CODE_E4M3, .scale_type = DTYPE_F32, .block_row = 1};
    if (world_max < 2) skip();
    struct gen *g = gen_create_for(89, ACT_FP8);
    crowd(&k.c, 2, N);
    gen_moe(g, &k.c, DTYPE_F8_E4M3, &k.tensors);
    struct ffn_tensors *experts = gen_alloc(g, k.c.n_expert * sizeof *experts);
    gen_code_as(g, &by_row);
    for (uint32_t e = 0; e < k.c.n_expert; e++) {
        experts[e] = k.tensors.experts[e];
        experts[e].up = gen_matrix(g, DTYPE_F8_E4M3, k.c.moe_inner, k.c.hidden, true);
    }
    gen_code_as(g, &plain);
    k.tensors.experts = experts;
    fill(&k, g, N, 10);
    check(&k, 2, 2);
    gen_destroy(g);
}

/* More rows on one rank than a round takes. */
static void rows_go_in_rounds(void **state)
{
    (void)state;
    struct ep_case k = {0};
    const enum act_type act = op_wants_few() ? ACT_FP8 : ACT_F32;
    struct gen *g = gen_create_for(84, act);
    gen_config(&k.c, act, KV_TYPE_BF16, false);
    if (!op_wants_few()) {
        k.c.hidden = 2048;
        k.c.moe_inner = k.c.shared_inner = 32;
        k.c.max_token = 560;
    }
    gen_moe(g, &k.c, DTYPE_BF16, &k.tensors);
    fill(&k, g, op_wants_few() ? 66 : k.c.max_token, 3);
    check(&k, world_max, world_max);
    gen_destroy(g);
}

/* Rows from n_live on are nobody's: of two ranks one has live rows, one has none. */
static void padding_is_left_out(void **state)
{
    (void)state;
    struct ep_case k = {0};
    struct gen *g = gen_create_for(85, ACT_FP8);
    const int32_t n_live[2] = {3, 0};
    gen_config(&k.c, ACT_FP8, KV_TYPE_BF16, false);
    gen_moe(g, &k.c, DTYPE_F8_E4M3, &k.tensors);
    fill(&k, g, 8, 0);
    const size_t n = (size_t)k.n * k.c.hidden;
    float *whole = mem_alloc_array(n, sizeof *whole);
    assert_non_null(whole);
    spread(&k, 2, SPREAD_TURN);
    open_ranks(&k, 2);
    run(&k, 2, 1);
    memcpy(whole, k.y, n * sizeof *whole);
    float *before = gen_floats(g, n, 1);
    for (uint32_t i = 0; i < 2; i++) {
        struct rig *r = &ranks[i].rig;
        op_ok(r, r->ops->bind_thread(r->b), "bind_thread");
        rig_write(r, BUFFER_DELTA, k.n / 2, k.c.hidden, before);
        ranks[i].n_live = rig_put(r, &n_live[i], sizeof n_live[i]);
    }
    run(&k, 2, 2);
    for (uint32_t t = 0; t < k.n; t++) {
        const uint32_t i = t % 2, row = t / 2;
        const bool is_live = (int32_t)row < n_live[i];
        op_same_bits(is_live ? "live row" : "padding", k.y + (size_t)t * k.c.hidden,
                     is_live ? whole + (size_t)t * k.c.hidden : before + (size_t)row * k.c.hidden,
                     k.c.hidden * sizeof *k.y);
    }
    for (uint32_t i = 0; i < 2; i++) {
        op_ok(&ranks[i].rig, ranks[i].rig.ops->bind_thread(ranks[i].rig.b), "bind_thread");
        rig_drop(&ranks[i].rig, ranks[i].n_live);
    }
    close_ranks(2);
    mem_free(whole);
    gen_destroy(g);
}

/* A recording of as many rows as any rank has replays with fewer and with none, beside ranks that
 * run the layer as it is. */
static void recordings_hold_any_rows(void **state)
{
    (void)state;
    struct ep_case k = {0};
    const uint32_t world = op_wants_few() || world_max < 4 ? 2 : 4;
    if (strncmp(op_backend(), "cuda", 4) != 0) skip(); /* others record nothing */
    struct gen *g = gen_create_for(87, ACT_FP8);
    gen_config(&k.c, ACT_FP8, KV_TYPE_BF16, false);
    gen_moe(g, &k.c, DTYPE_F8_E4M3, &k.tensors);
    fill(&k, g, op_wants_few() ? 10 : 24, 5);
    const size_t n = (size_t)k.n * k.c.hidden;
    float *plain = mem_alloc_array(n, sizeof *plain);
    assert_non_null(plain);
    open_ranks(&k, world);
    spread(&k, world, SPREAD_RUNS);
    run(&k, world, 1);
    memcpy(plain, k.y, n * sizeof *plain);
    for (uint32_t i = 0; i < world; i++) {
        struct rank *r = &ranks[i];
        const struct backend_ops *ops = r->rig.ops;
        const int32_t n_live = (int32_t)k.n;
        if (i == 1) continue;
        op_ok(&r->rig, ops->bind_thread(r->rig.b), "bind_thread");
        r->n_most = k.n;
        r->n_live = rig_put(&r->rig, &n_live, sizeof n_live);
        const struct moe_ep_args a = args_of(r, k.n, 0);
        op_ok(&r->rig, ops->graph_begin(r->rig.b), "graph_begin");
        op_ok(&r->rig, ops->moe_ep(r->rig.b, &a), "moe_ep");
        op_ok(&r->rig, ops->graph_end(r->rig.b, &r->graph), "graph_end");
    }
    for (int how = 0; how < N_SPREAD; how++) {
        spread(&k, world, how);
        run_with(&k, world, how == SPREAD_TURN ? 3 : 1, k.n);
        op_same_bits("replayed", k.y, plain, n * sizeof *plain);
    }
    for (uint32_t i = 0; i < world; i++) {
        op_ok(&ranks[i].rig, ranks[i].rig.ops->bind_thread(ranks[i].rig.b), "bind_thread");
        if (ranks[i].n_live) rig_drop(&ranks[i].rig, ranks[i].n_live);
    }
    close_ranks(world);
    mem_free(plain);
    gen_destroy(g);
}

/* A rank that is at another layer is found there, and all ranks end. */
static void ranks_in_different_layers_part(void **state)
{
    (void)state;
    struct ep_case k = {0};
    struct gen *g = gen_create_for(86, ACT_F32);
    gen_config(&k.c, ACT_F32, KV_TYPE_BF16, false);
    gen_moe(g, &k.c, DTYPE_BF16, &k.tensors);
    fill(&k, g, 8, 0);
    spread(&k, 2, SPREAD_TURN);
    open_ranks(&k, 2);
    for (uint32_t i = 0; i < 2; i++) {
        ranks[i].n_pass = 1;
        ranks[i].n_most = most_rows(&k, 2);
        ranks[i].layer0 = 3 + i;
        assert_int_equal(pthread_create(&ranks[i].thread, NULL, run_rank, &ranks[i]), 0);
    }
    for (uint32_t i = 0; i < 2; i++) {
        pthread_join(ranks[i].thread, NULL);
        assert_int_equal(ranks[i].err, FATHOM_EPEER);
        assert_string_equal(ranks[i].rig.ops->fault(ranks[i].rig.b),
                            "rank 0 of 2 is at moe_ep of layer 3 with 0 rows, rank 1 at moe_ep of "
                            "layer 4 with 0 rows");
    }
    close_ranks(2);
    gen_destroy(g);
}

static void ranks_that_experts_do_not_divide_by_are_refused(void **state)
{
    (void)state;
    struct backend_config c;
    struct backend *b;
    fathom_diag d = {{0}};
    gen_config(&c, ACT_F32, KV_TYPE_BF16, true);
    c.parallel.dp.size = 8;
    c.parallel.experts_whole = true;
    assert_int_equal(backend_create_named(&b, op_backend(), &c, &d), FATHOM_EINVAL);
    assert_string_equal(d.text, "n_expert is 12; 8 ranks need equal parts of at most 256");
    c.parallel.dp.size = 4;
    c.parallel.tp.size = 2;
    assert_int_equal(backend_create_named(&b, op_backend(), &c, &d), FATHOM_EINVAL);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_have_their_bits_wherever_they_are),
        cmocka_unit_test(one_expert_takes_all_rows),
        cmocka_unit_test(many_rows_of_an_expert),
        cmocka_unit_test(rounds_of_listed_rows_are_larger),
        cmocka_unit_test(gate_and_up_of_two_forms),
        cmocka_unit_test(rows_go_in_rounds),
        cmocka_unit_test(padding_is_left_out),
        cmocka_unit_test(recordings_hold_any_rows),
        cmocka_unit_test(ranks_that_experts_do_not_divide_by_are_refused),
        cmocka_unit_test(ranks_in_different_layers_part), /* the last: GPUs do not look at layers */
    };
    return op_ranks_main(argc, argv, &world_max, tests, sizeof tests / sizeof *tests);
}
