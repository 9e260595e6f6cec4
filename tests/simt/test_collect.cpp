/* test_collect.cpp - collectives over simulated devices: the bits of a sum on the host, in rank
 * order, whatever the order in which things happen */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <vector>

extern "C" {
#include <cmocka.h>

#include "op/gen.h"
}

#include "backend/cuda/generic/collect.cuh"
#include "backend/cuda/generic/norm.cuh"
#include "simt/simt.h"
#include "simt/simt_fault.h"

namespace
{

enum { CALLS = 4 };

/* A seed's rows: many, of one block each, or few, of several where more than two ranks meet (two
 * warps, and one beside one without values) */
uint32_t hidden, rows_max;

uint64_t n_seed = 1;

struct rank {
    struct backend *b;
    struct buffer *x, *delta, *out, *all, *logits;
    struct weight *weight;
};

struct group {
    uint32_t world;
    rank ranks[PEERS_MAX];
    rank alone; /* one that is nobody's peer */
    struct gen *g;
};

void check(fathom_err err)
{
    if (err) fail_msg("error %d", err);
}

rank open_rank(struct gen *g, uint32_t r, uint32_t world, enum act_type act,
               uint32_t patience_ms = 0)
{
    struct backend_config c;
    fathom_diag d = {};
    rank k = {};
    gen_config(&c, act, act == ACT_FP8 ? KV_TYPE_BF16 : KV_TYPE_F32, false);
    c.hidden = hidden;
    c.parallel.tp.rank = r;
    c.parallel.tp.size = world;
    c.device = (int)r;
    c.patience_ms = patience_ms;
    fathom_err err = backend_cuda_create(&k.b, &c, &d);
    if (err) fail_msg("%s", d.text);
    const struct tensor_view weight = gen_vector(g, DTYPE_F32, hidden, 1.0f, 0.1f);
    check(k.b->ops->buffer_create(k.b, BUFFER_RESIDUAL, &k.x, &d));
    check(k.b->ops->buffer_create(k.b, BUFFER_DELTA, &k.delta, &d));
    check(k.b->ops->buffer_create(k.b, BUFFER_NORMED, &k.out, &d));
    check(k.b->ops->buffer_create(k.b, BUFFER_NORMED, &k.all, &d));
    check(k.b->ops->buffer_create(k.b, BUFFER_LOGITS, &k.logits, &d));
    check(k.b->ops->prepare_vector(k.b, &weight, &k.weight, &d));
    return k;
}

void close_rank(rank &k)
{
    (void)k.b->ops->bind_thread(k.b);
    k.b->ops->buffer_destroy(k.b, k.x);
    k.b->ops->buffer_destroy(k.b, k.delta);
    k.b->ops->buffer_destroy(k.b, k.out);
    k.b->ops->buffer_destroy(k.b, k.all);
    k.b->ops->buffer_destroy(k.b, k.logits);
    k.b->ops->weight_destroy(k.b, k.weight);
    k.b->ops->destroy(k.b);
}

group open_group(uint32_t world, enum act_type act, uint64_t seed, uint32_t patience_ms = 0)
{
    group t = {};
    struct backend *all[PEERS_MAX];
    fathom_diag d = {};
    const bool wide = world > 2 && (seed + world / 4) % 2;
    hidden = wide ? 1280 : 256;
    rows_max = wide ? 65 : 160;
    simt_set_devices((int)world);
    simt_set_capability(wide ? 9 : 8, wide ? 0 : 9); /* only the former has clusters */
    t.world = world;
    t.g = gen_create(seed + 1);
    for (uint32_t r = 0; r < world; r++) {
        struct gen *same = gen_create(7);
        t.ranks[r] = open_rank(same, r, world, act, patience_ms);
        gen_destroy(same);
        all[r] = t.ranks[r].b;
    }
    if (backend_join(all, world, &d)) fail_msg("%s", d.text);
    struct gen *same = gen_create(7);
    t.alone = open_rank(same, 0, 1, act);
    gen_destroy(same);
    simt_set_seed(seed);
    return t;
}

void close_group(group &t)
{
    for (uint32_t r = 0; r < t.world; r++) close_rank(t.ranks[r]);
    close_rank(t.alone);
    gen_destroy(t.g);
    simt_set_devices(1);
}

/* Values of which some are zeros of both signs, or so small that as bf16 they are. */
float *make_values(struct gen *g, size_t n)
{
    static const float zeros[] = {0.0f, -0.0f, 0x1p-140f, -0x1p-140f};
    float *v = gen_floats(g, n, 1.0f);
    for (size_t i = 0; i < n; i++) {
        if (gen_below(g, 8) == 0) v[i] = zeros[gen_below(g, 4)];
    }
    return v;
}

/* A part's value as it travels. */
float sent(float v, enum act_type act)
{
    return act == ACT_F32 ? v : f32_from_bf16(bf16_from_f32(v));
}

void write_rows(rank &k, struct buffer *to, const float *v, uint32_t width, uint32_t n_row)
{
    check(k.b->ops->bind_thread(k.b));
    check(k.b->ops->buffer_write(k.b, to, 0, n_row, width, v));
}

std::vector<char> bytes_of(rank &k, const void *p, size_t n)
{
    std::vector<char> v(n);
    check(k.b->ops->bind_thread(k.b));
    check(k.b->ops->copy_out(k.b, v.data(), p, n));
    check(k.b->ops->sync(k.b));
    return v;
}

void compare(rank &a, const void *pa, rank &b, const void *pb, size_t n, const char *what)
{
    if (!pa && !pb) return;
    const std::vector<char> va = bytes_of(a, pa, n), vb = bytes_of(b, pb, n);
    for (size_t i = 0; i < n; i++) {
        if (va[i] != vb[i]) fail_msg("%s: byte %zu of %zu", what, i, n);
    }
}

/* Rows [row0, row0 + n_row) of everything a norm writes. */
void compare_rows(rank &a, rank &b, uint32_t row0, uint32_t n_row)
{
    const size_t n = (size_t)n_row * hidden, at = (size_t)row0 * hidden;
    const struct buffer *u = a.out, *v = b.out;
    compare(a, a.x->f + at, b, b.x->f + at, n * 4, "residual");
    compare(a, u->f + at, b, v->f + at, n * 4, "norm");
    if (!u->h) return;
    compare(a, u->h + at, b, v->h + at, n * 2, "bf16");
    compare(a, u->q + at, b, v->q + at, n, "codes");
    const size_t group = at / FP8_GROUP;
    compare(a, u->scale + group, b, v->scale + group, n / FP8_GROUP * 4, "scales");
}

fathom_err norm(rank &k, uint32_t n_row, bool begins)
{
    const struct reduce_norm_args a = {k.x, k.delta, k.weight, k.out, n_row, begins, 5};
    (void)k.b->ops->bind_thread(k.b);
    return k.b->ops->reduce_norm(k.b, &a);
}

fathom_err norm_own(rank &k, uint32_t n_row)
{
    struct norm_args n = {};
    n.x = k.x->f;
    n.delta = k.delta->f;
    n.weight = k.weight->vector;
    n.f = k.out->f;
    n.h = k.out->h;
    n.q = k.out->q;
    n.scale = k.out->scale;
    n.codes = k.out->q ? CODES_FP8 : CODES_NONE;
    n.n = hidden;
    n.begins = true; /* a row's owner changes with the number of rows, and so who has its residual */
    n.eps = cuda_of(k.b)->c.norm_eps;
    (void)k.b->ops->bind_thread(k.b);
    return cuda_sum_norm(cuda_of(k.b), &n, n_row, 5, SPREAD_OWN);
}

/* Every rank's delta, and to the one that is alone their sum in rank order. */
void write_parts(group &t)
{
    const enum act_type act = cuda_of(t.alone.b)->c.act;
    const size_t n = (size_t)rows_max * hidden;
    std::vector<float> sum(n);
    const float *x = make_values(t.g, n);
    for (uint32_t r = 0; r < t.world; r++) {
        const float *part = make_values(t.g, n);
        for (size_t i = 0; i < n; i++) {
            const float v = sent(part[i], act);
            sum[i] = r == 0 ? v + 0.0f : sum[i] + v; /* no sum is -0 */
        }
        write_rows(t.ranks[r], t.ranks[r].x, x, hidden, rows_max);
        write_rows(t.ranks[r], t.ranks[r].delta, part, hidden, rows_max);
    }
    write_rows(t.alone, t.alone.x, x, hidden, rows_max);
    write_rows(t.alone, t.alone.delta, sum.data(), hidden, rows_max);
}

uint32_t any_rows(group &t)
{
    static const uint32_t rows[] = {1, 2, 7, 8, 9, 16, 63, 64, 65, 130, 160};
    uint32_t n = rows_max + 1;
    while (n > rows_max) n = rows[gen_below(t.g, sizeof rows / sizeof *rows)];
    return n;
}

/* Calls of several sizes, each rank's enqueued before another's: all run when somebody waits. */
void run_sums(uint32_t world, enum act_type act, uint64_t seed)
{
    group t = open_group(world, act, seed);
    uint32_t n_row[CALLS];
    write_parts(t);
    for (uint32_t i = 0; i < CALLS; i++) {
        n_row[i] = any_rows(t);
        check(norm(t.alone, n_row[i], i == 1));
    }
    for (uint32_t k = 0; k < world; k++) {
        rank &r = t.ranks[(k + seed) % world];
        for (uint32_t i = 0; i < CALLS; i++) check(norm(r, n_row[i], i == 1));
    }
    for (uint32_t r = 0; r < world; r++) compare_rows(t.ranks[r], t.alone, 0, rows_max);
    close_group(t);
}

/* Int8 codes whose scale is of the whole row, which one block has therefore. */
void run_int8_rows(uint32_t world, uint64_t seed)
{
    group t = open_group(world, ACT_FP8, seed);
    const uint32_t n_row = 1 + gen_below(t.g, 8);
    write_parts(t);
    check(norm(t.alone, n_row, false));
    for (uint32_t k = 0; k < world; k++) {
        rank &r = t.ranks[(k + seed) % world];
        struct norm_args n = {};
        n.x = r.x->f;
        n.delta = r.delta->f;
        n.weight = r.weight->vector;
        n.h = r.out->h;
        n.q = r.out->q;
        n.scale = r.out->scale;
        n.codes = CODES_INT8_ROW;
        n.n = hidden;
        n.eps = cuda_of(r.b)->c.norm_eps;
        (void)r.b->ops->bind_thread(r.b);
        check(cuda_sum_norm(cuda_of(r.b), &n, n_row, 5, SPREAD_ALL));
    }
    for (uint32_t r = 0; r < world; r++) {
        rank &k = t.ranks[r], &first = t.ranks[0];
        const size_t n = (size_t)n_row * hidden;
        compare(k, k.x->f, t.alone, t.alone.x->f, n * 4, "residual");
        compare(k, k.out->h, t.alone, t.alone.out->h, n * 2, "bf16");
        compare(k, k.out->q, first, first.out->q, n, "int8 codes");
    }
    close_group(t);
}

/* Rows with owners, and back to all of them. */
void run_owners(uint32_t world, enum act_type act, uint64_t seed)
{
    group t = open_group(world, act, seed);
    uint32_t n_row[CALLS];
    write_parts(t);
    for (uint32_t i = 0; i < CALLS; i++) {
        n_row[i] = any_rows(t);
        check(norm(t.alone, n_row[i], true));
    }
    for (uint32_t k = 0; k < world; k++) {
        rank &r = t.ranks[(k + seed) % world];
        struct buffer *o = r.out;
        for (uint32_t i = 0; i < CALLS; i++) {
            const struct buffer *to = r.all;
            const struct row_array arrays[] = {
                {o->h ? (void *)to->q : to->f, hidden * (o->h ? 1u : 4u), o->h ? (void *)o->q : o->f},
                {to->scale, hidden / 32u, o->scale}};
            check(norm_own(r, n_row[i]));
            check(cuda_spread(cuda_of(r.b), arrays, o->h ? 2 : 1, n_row[i]));
        }
    }
    /* what the last call wrote */
    const uint32_t n = n_row[CALLS - 1], run = row_run(n);
    for (uint32_t r = 0; r < world; r++) {
        rank &k = t.ranks[r];
        if (k.out->h) {
            compare(k, k.all->q, t.alone, t.alone.out->q, (size_t)n * hidden, "codes of all");
            compare(k, k.all->scale, t.alone, t.alone.out->scale, (size_t)n * hidden / 32,
                    "scales of all");
        } else {
            compare(k, k.all->f, t.alone, t.alone.out->f, (size_t)n * hidden * 4, "norms of all");
        }
        for (uint32_t place = 0; place < own_row_count(n, r, world); place++) {
            const uint32_t row = own_row(place, run, r, world);
            compare(k, k.out->f + (size_t)place * hidden, t.alone,
                    t.alone.out->f + (size_t)row * hidden, hidden * 4, "own norm");
        }
    }
    close_group(t);
}

/* A norm of own rows, then one whose rows are all ranks' again. */
void run_back(uint32_t world, enum act_type act, uint64_t seed)
{
    group t = open_group(world, act, seed);
    const uint32_t n_row = gen_below(t.g, 2) ? rows_max : 64 + gen_below(t.g, (rows_max - 64) / 2 + 1);
    write_parts(t);
    for (int i = 0; i < 2; i++) check(norm(t.alone, n_row, false));
    for (uint32_t k = 0; k < world; k++) {
        rank &r = t.ranks[(k + seed) % world];
        struct reduce_norm_args a = {r.x, r.delta, r.weight, r.out, n_row, false, 5, SPREAD_OWN};
        (void)r.b->ops->bind_thread(r.b);
        assert_int_equal(r.b->ops->own_rows(r.b, n_row), own_row_count(n_row, (k + seed) % world, world));
        check(r.b->ops->reduce_norm(r.b, &a));
        a.spread = SPREAD_BACK;
        check(r.b->ops->reduce_norm(r.b, &a));
    }
    for (uint32_t r = 0; r < world; r++) compare_rows(t.ranks[r], t.alone, 0, n_row);
    close_group(t);
}

/* Rows of a cache's pages, from their owners. */
void run_pages(uint32_t world, uint64_t seed)
{
    enum { ROWS = 130, BYTES = 36, PAGE = KV_PAGE_TOKENS * BYTES + 96, PAGES = 3 };
    group t = open_group(world, ACT_F32, seed);
    int32_t slot[ROWS];
    std::vector<char> whole(PAGES * PAGE, 0);
    void *slots[PEERS_MAX], *pages[PEERS_MAX];
    for (uint32_t i = 0; i < ROWS; i++) {
        slot[i] = (int32_t)((i * 7 + 5) % (PAGES * KV_PAGE_TOKENS));
        for (int j = 0; j < BYTES; j++)
            whole[(size_t)slot[i] / KV_PAGE_TOKENS * PAGE + (size_t)slot[i] % KV_PAGE_TOKENS * BYTES + j] =
                (char)(gen_below(t.g, 255) + 1);
    }
    for (uint32_t r = 0; r < world; r++) {
        struct backend *b = t.ranks[r].b;
        std::vector<char> own(PAGES * PAGE, 0);
        fathom_diag d = {};
        for (uint32_t i = 0; i < ROWS; i++) {
            const size_t at = (size_t)slot[i] / KV_PAGE_TOKENS * PAGE + (size_t)slot[i] % KV_PAGE_TOKENS * BYTES;
            if (row_owner(i, row_run(ROWS), world) == r) memcpy(&own[at], &whole[at], BYTES);
        }
        check(b->ops->bind_thread(b));
        check(b->ops->alloc(b, sizeof slot, "slots", &slots[r], &d));
        check(b->ops->alloc(b, own.size(), "pages", &pages[r], &d));
        check(b->ops->copy_in(b, slots[r], slot, sizeof slot));
        check(b->ops->copy_in(b, pages[r], own.data(), own.size()));
    }
    for (uint32_t r = 0; r < world; r++) {
        const struct row_array rows = {pages[r], BYTES, NULL, (int32_t *)slots[r], PAGE};
        check(t.ranks[r].b->ops->bind_thread(t.ranks[r].b));
        check(cuda_spread(cuda_of(t.ranks[r].b), &rows, 1, ROWS));
    }
    for (uint32_t r = 0; r < world; r++) {
        const std::vector<char> got = bytes_of(t.ranks[r], pages[r], whole.size());
        assert_memory_equal(got.data(), whole.data(), whole.size());
    }
    for (uint32_t r = 0; r < world; r++) {
        (void)t.ranks[r].b->ops->bind_thread(t.ranks[r].b);
        t.ranks[r].b->ops->release(t.ranks[r].b, slots[r]);
        t.ranks[r].b->ops->release(t.ranks[r].b, pages[r]);
    }
    close_group(t);
}

/* Columns of all rows to whole rows of their owners. */
void run_logits(uint32_t world, uint64_t seed)
{
    group t = open_group(world, ACT_F32, seed);
    const uint32_t n_vocab = cuda_of(t.alone.b)->c.n_vocab, n_part = n_vocab / world;
    const uint32_t n_row[] = {1, world - 1, 8 * world + 3, 2};
    const uint32_t n_most = 8 * world + 3;
    const float *whole = make_values(t.g, (size_t)n_most * n_vocab);
    for (uint32_t k = 0; k < world; k++) {
        struct cuda_backend *c = cuda_of(t.ranks[k].b);
        std::vector<float> part((size_t)n_most * n_part);
        for (uint32_t row = 0; row < n_most; row++) {
            memcpy(&part[(size_t)row * n_part], whole + (size_t)row * n_vocab + k * n_part,
                   n_part * sizeof(float));
        }
        check(c->base.ops->bind_thread(&c->base));
        check(c->base.ops->copy_in(&c->base, c->sample_shaped, part.data(), part.size() * 4));
        for (uint32_t n : n_row)
            check(cuda_logits_to_owners(c, c->sample_shaped, t.ranks[k].logits->f, n));
    }
    for (uint32_t row = 0; row < n_most; row++) {
        rank &k = t.ranks[row % world];
        const std::vector<char> got =
            bytes_of(k, k.logits->f + (size_t)row * n_vocab, (size_t)n_vocab * 4);
        const float *v = (const float *)got.data();
        for (uint32_t i = 0; i < n_vocab; i++) assert_true(v[i] == whole[(size_t)row * n_vocab + i]);
    }
    close_group(t);
}

void test_sums_are_the_hosts(void **)
{
    for (uint64_t seed = 0; seed < n_seed; seed++) {
        for (uint32_t world = 2; world <= 8; world *= 2)
            run_sums(world, seed % 2 ? ACT_F32 : ACT_FP8, seed);
        run_int8_rows(4, seed);
        run_int8_rows(8, seed);
    }
}

void test_rows_come_from_their_owners(void **)
{
    for (uint64_t seed = 0; seed < n_seed; seed++) {
        for (uint32_t world = 2; world <= 8; world *= 2)
            run_owners(world, seed % 2 ? ACT_F32 : ACT_FP8, seed);
    }
}

void test_rows_go_back_to_all(void **)
{
    for (uint64_t seed = 0; seed < n_seed; seed++) {
        for (uint32_t world = 2; world <= 8; world *= 2) {
            run_back(world, seed % 2 ? ACT_F32 : ACT_FP8, seed);
            run_pages(world, seed);
        }
    }
}

void test_logits_come_to_their_owners(void **)
{
    for (uint64_t seed = 0; seed < n_seed; seed++) {
        for (uint32_t world = 2; world <= 8; world *= 2) run_logits(world, seed);
    }
}

/* Rank 2 does not come to a sum, and those who wait have this patience. */
void run_without_one(uint32_t patience_ms, const char *told)
{
    const uint64_t bound_ns = (patience_ms ? patience_ms : 2000) * (uint64_t)1000000;
    group t = open_group(4, ACT_F32, 3, patience_ms);
    write_parts(t);
    const uint64_t start_ns = simt_nanoseconds();
    for (uint32_t r = 0; r < 4; r++) {
        if (r != 2) check(norm(t.ranks[r], 3, false));
    }
    check(t.ranks[0].b->ops->bind_thread(t.ranks[0].b));
    assert_int_equal(t.ranks[0].b->ops->sync(t.ranks[0].b), FATHOM_EDEVICE);
    const char *text = t.ranks[0].b->ops->fault(t.ranks[0].b);
    if (!strstr(text, told)) fail_msg("%s", text);
    const uint64_t waited_ns = simt_nanoseconds() - start_ns;
    assert_true(waited_ns > bound_ns && waited_ns < 4 * bound_ns); /* time leaps twice as far */
    close_group(t);
    simt_fail_after(SIMT_NONE, 0);
}

void test_who_does_not_come_is_named(void **)
{
    run_without_one(0, "rank 0 waited more than 2000 ms for rank 2: reduce_norm of layer 5, row 0, "
                       "epoch 0");
    run_without_one(90000, "rank 0 waited more than 90000 ms for rank 2: reduce_norm of layer 5, ");
}

/* Of a launch one wait at most is counted, whichever way it takes. */
void test_waits_are_counted(void **)
{
    const uint32_t n_call = n_seed == 1 ? 2 : 6;
    static const uint32_t rows[] = {1, 8, 9, 65, 160};
    for (uint32_t world = 2; world <= 8; world *= 2) {
        group t = open_group(world, ACT_F32, world);
        struct rank_waits before[PEERS_MAX] = {};
        write_parts(t);
        for (uint32_t n : rows) {
            uint64_t n_wait = 0, ns = 0;
            for (uint32_t r = 0; r < world; r++) {
                for (uint32_t i = 0; i < n_call; i++) check(norm(t.ranks[r], n, true));
            }
            for (uint32_t r = 0; r < world; r++) {
                const struct peers &p = cuda_of(t.ranks[r].b)->peers;
                struct rank_waits w;
                memcpy(&w, bytes_of(t.ranks[r], p.waits, sizeof w).data(), sizeof w);
                /* two ways: one for parts, one for sums */
                assert_true(w.n - before[r].n <= n_call * (n <= p.n_one_shot ? 1u : 2u));
                n_wait += w.n - before[r].n;
                ns += w.ns - before[r].ns;
                before[r] = w;
            }
            assert_true(n_wait > 0 && ns > 0);
        }
        close_group(t);
    }
}

void test_devices_that_cannot_be_peers_are_named(void **)
{
    struct backend *all[2];
    fathom_diag d = {};
    struct gen *g = gen_create(1);
    simt_set_devices(2);
    rank k[2] = {open_rank(g, 0, 2, ACT_F32), open_rank(g, 1, 2, ACT_F32)};
    for (int r = 0; r < 2; r++) all[r] = k[r].b;
    simt_set_peer_access(1, 0, false);
    assert_int_equal(backend_join(all, 2, &d), FATHOM_EDEVICE);
    assert_non_null(strstr(d.text, "device 1 of rank 1 cannot reach the memory of device 0"));
    assert_int_equal(backend_cuda_link(0, 1), CUDA_LINK_NVLINK);
    assert_int_equal(backend_cuda_link(1, 0), CUDA_LINK_NONE);
    assert_int_equal(backend_cuda_link(0, 0), CUDA_LINK_NONE);
    assert_int_equal(backend_cuda_link(0, 2), CUDA_LINK_NONE);
    cuda_of(all[1])->device = 0;
    d = {};
    assert_int_equal(backend_join(all, 2, &d), FATHOM_EDEVICE);
    assert_non_null(strstr(d.text, "ranks 0 and 1 have one device, 0"));
    cuda_of(all[1])->device = 1;
    for (rank &one : k) close_rank(one);
    gen_destroy(g);
    simt_set_devices(1);
}

} // namespace

/* SEEDS: how many, 1 where it is not told */
int main(int argc, char **argv)
{
    if (argc > 1) n_seed = strtoull(argv[1], NULL, 10);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sums_are_the_hosts),
        cmocka_unit_test(test_rows_come_from_their_owners),
        cmocka_unit_test(test_rows_go_back_to_all),
        cmocka_unit_test(test_logits_come_to_their_owners),
        cmocka_unit_test(test_who_does_not_come_is_named),
        cmocka_unit_test(test_waits_are_counted),
        cmocka_unit_test(test_devices_that_cannot_be_peers_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
