/* test_op_index_topk.c - which rows a token attends to */
#include "op/harness.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "op/backends.h"

enum { LAYER = 1 };

struct topk {
    struct backend_config c;
    struct gen *g;
    struct rig dev;
    struct batch host;
    uint8_t *image;
    uint32_t n_page;
    float *query; /* [n_token][width]: an attention query of zeros, index query, weights */
    uint32_t width;
};

static void open_topk_case(struct topk *k, enum act_type act, enum kv_type kv, bool wide,
                           const struct op_batch_case *b, uint32_t max_context, uint32_t n_head,
                           uint32_t topk)
{
    memset(k, 0, sizeof *k);
    k->g = gen_create(101);
    gen_config(&k->c, act, kv, wide);
    if (max_context) k->c.max_context = max_context;
    if (n_head) k->c.index_n_head = n_head;
    if (topk) k->c.index_topk = topk;
    rig_open(&k->dev, op_backend(), &k->c);
    gen_batch(k->g, &k->c, b->request, b->n_request, &k->host, &k->n_page);
    k->image = gen_cache(k->g, &k->c.kv, k->n_page, &k->host, true);
    uint32_t n_index = k->c.index_n_head * (KV_INDEX_DIM + 1);
    k->width = k->c.n_head * KV_ROW + n_index;
    k->query = gen_alloc(k->g, (size_t)k->host.n_token * k->width * sizeof *k->query);
    for (uint32_t t = 0; t < k->host.n_token; t++) {
        for (uint32_t i = 0; i < n_index; i++) /* few values, so that fp8 holds them exactly */
            k->query[(size_t)t * k->width + k->width - n_index + i] =
                (float)gen_below(k->g, 15) - 7;
    }
}

static void open_long_case(struct topk *k, enum act_type act, enum kv_type kv, bool wide,
                           const struct op_batch_case *b, uint32_t max_context, uint32_t n_head)
{
    open_topk_case(k, act, kv, wide, b, max_context, n_head, 0);
}

static void open_case(struct topk *k, enum act_type act, enum kv_type kv, bool wide,
                      const struct op_batch_case *b)
{
    open_long_case(k, act, kv, wide, b, 0, 0);
}

static void close_case(struct topk *k)
{
    rig_close(&k->dev);
    gen_destroy(k->g);
}

static void choose(struct rig *r)
{
    struct index_topk_args args = {.batch = &r->batch,
                                   .kv = &r->kv,
                                   .layer = LAYER,
                                   .query = r->buffer[BUFFER_QUERY],
                                   .select = r->buffer[BUFFER_SELECT]};
    op_ok(r, r->ops->index_topk(r->b, &args), "index_topk");
}

static float *run(struct topk *k, uint32_t t0, uint32_t n)
{
    struct rig *r = &k->dev;
    struct batch slice;
    gen_slice(k->g, &k->host, t0, n, &slice);
    rig_set_batch(r, &slice);
    rig_write(r, BUFFER_QUERY, n, k->width, k->query + (size_t)t0 * k->width);
    choose(r);
    return rig_read(r, BUFFER_SELECT, n, 1 + k->c.index_topk);
}

static double score(const struct topk *k, uint32_t t, uint32_t s)
{
    uint32_t n_head = k->c.index_n_head;
    const float *q = k->query + (size_t)(t + 1) * k->width - n_head * (KV_INDEX_DIM + 1);
    const float *w = q + (size_t)n_head * KV_INDEX_DIM;
    float key[KV_INDEX_DIM];
    double sum = 0;
    gen_index_key(&k->c.kv, k->image, LAYER, gen_slot(&k->host, (uint32_t)k->host.request[t], s),
                  key);
    for (uint32_t h = 0; h < n_head; h++) {
        double dot = 0;
        for (int i = 0; i < KV_INDEX_DIM; i++)
            dot += (double)q[h * KV_INDEX_DIM + (uint32_t)i] * (double)key[i];
        sum += (double)w[h] * fmax(dot, 0);
        if (isnan(dot)) sum = NAN;
    }
    return isnan(sum) ? -INFINITY : sum;
}

/* The count, ascending positions, and no row left out that scores clearly more than one chosen. */
static void check_token(const struct topk *k, uint32_t t, const float *select)
{
    uint32_t n_visible = (uint32_t)k->host.pos[t] + 1;
    uint32_t n = n_visible < k->c.index_topk ? n_visible : k->c.index_topk;
    double lowest_in = INFINITY, highest_out = -INFINITY, top = 0;
    uint32_t i = 0;
    assert_int_equal((int)select[0], n);
    for (uint32_t s = 0; s < n_visible; s++) {
        int32_t slot = gen_slot(&k->host, (uint32_t)k->host.request[t], s);
        bool in = i < n && (int32_t)select[1 + i] == slot;
        double value = score(k, t, s);
        if (in) i++;
        if (in)
            lowest_in = fmin(lowest_in, value);
        else
            highest_out = fmax(highest_out, value);
        if (!isinf(value)) top = fmax(top, fabs(value));
    }
    if (i != n) fail_msg("token %u: slot %u of %u is not a visible row in order", t, i, n);
    for (; i < k->c.index_topk; i++) assert_true(select[1 + i] == -1);
    const double limit = k->c.act == ACT_FP8 ? 5e-4 : 1e-5; /* tensor cores keep 14 bits of a sum */
    if (n < n_visible && lowest_in < highest_out - limit * top)
        fail_msg("token %u: a row of %g is chosen and one of %g is not", t, lowest_in, highest_out);
}

static void check_open(struct topk *k)
{
    rig_set_cache(&k->dev, k->image, k->n_page);
    uint32_t n = k->host.n_token, width = 1 + k->c.index_topk;
    float *select = run(k, 0, n);
    for (uint32_t t = 0; t < n; t++) check_token(k, t, select + (size_t)t * width);
    const uint32_t chunks[] = {n, 1, 5};
    for (int i = 0; i < 3; i++) {
        for (uint32_t t = 0; t < n; t += chunks[i]) {
            uint32_t m = n - t < chunks[i] ? n - t : chunks[i];
            float *part = run(k, t, m);
            op_same_bits("selection of a chunk", part, select + (size_t)t * width,
                         (size_t)m * width * sizeof *part);
            mem_free(part);
        }
    }
    mem_free(select);
}

static void check_case(enum act_type act, enum kv_type kv, bool wide, const struct op_batch_case *b)
{
    struct topk k;
    open_case(&k, act, kv, wide, b);
    check_open(&k);
    close_case(&k);
}

/* As many heads as the model has: tokens of several requests, one by one and in groups. */
static void test_model_heads(void **state)
{
    (void)state;
    /* More than a GPU gives a cluster each, so that whole batch and chunks have other kernels. */
    const struct op_batch_case cases[] = {{"few", 3, {{130, 3}, {70, 1}, {60, 14}}},
                                          {"many", 3, {{100, 70}, {200, 3}, {0, 80}}}};
    if (!op_is_cuda()) return;
    for (size_t i = 0; i < (op_wants_few() ? 1 : 2); i++) {
        struct topk k;
        open_long_case(&k, ACT_FP8, KV_TYPE_FP8, false, &cases[i], 0, 64);
        check_open(&k);
        close_case(&k);
    }
}

static void test_every_batch(void **state)
{
    (void)state;
    for (size_t i = 0; i < op_n_batch_case; i += op_wants_few() ? 4 : 1) {
        check_case(ACT_F32, KV_TYPE_F32, i % 2, &op_batch_cases[i]);
        check_case(ACT_F32, KV_TYPE_FP8, i % 2 == 0, &op_batch_cases[i]);
        if (i % 3 == 0) check_case(ACT_F32, KV_TYPE_BF16, i % 2, &op_batch_cases[i]);
        if (op_is_cuda()) check_case(ACT_FP8, KV_TYPE_FP8, false, &op_batch_cases[i]);
    }
}

static const struct op_batch_case long_case = {"long", 1, {{300, 4}}};

/* The long case by each of the ways to make scores: in floats of any cache, and with as many heads
 * as the model has in codes. */
enum { FIRST_WAY = KV_TYPE_F32, MODEL_WAY = KV_TYPE_FP8 + 1 };

static void open_long_way(struct topk *k, int way)
{
    if (way == MODEL_WAY) {
        open_long_case(k, ACT_FP8, KV_TYPE_FP8, false, &long_case, 0, 64);
    } else {
        open_case(k, ACT_F32, (enum kv_type)way, false, &long_case);
    }
}

static int last_way(void)
{
    return op_is_cuda() ? MODEL_WAY : KV_TYPE_FP8;
}

/* Queries of zero: every score is 0, so the lowest positions win. */
static void test_ties(void **state)
{
    (void)state;
    for (int way = FIRST_WAY; way <= last_way(); way++) {
        struct topk k;
        open_long_way(&k, way);
        memset(k.query, 0, (size_t)k.host.n_token * k.width * sizeof *k.query);
        rig_set_cache(&k.dev, k.image, k.n_page);
        float *select = run(&k, 0, k.host.n_token);
        for (uint32_t t = 0; t < k.host.n_token; t++) {
            for (uint32_t i = 0; i < k.c.index_topk; i++)
                assert_int_equal((int32_t)select[t * (1 + k.c.index_topk) + 1 + i],
                                 gen_slot(&k.host, 0, i));
        }
        mem_free(select);
        close_case(&k);
    }
}

/* Tied in groups: equal keys at several positions. The cut falls inside a group. */
static void check_ties_at_the_cut(int way)
{
    struct topk k;
    open_long_way(&k, way);
    for (uint32_t s = 1; s < 304; s++) { /* position s gets the key of position s % 10 */
        int32_t from = gen_slot(&k.host, 0, s % 10), to = gen_slot(&k.host, 0, s);
        uint8_t *a =
            k.image + (uint32_t)from / 64 * k.c.kv.page_bytes + kv_index_offset(&k.c.kv, LAYER);
        uint8_t *b =
            k.image + (uint32_t)to / 64 * k.c.kv.page_bytes + kv_index_offset(&k.c.kv, LAYER);
        memcpy(b + to % 64 * 128, a + from % 64 * 128, 128);
        memcpy(b + 64 * 128 + to % 64 * 4, a + 64 * 128 + from % 64 * 4, 4);
    }
    rig_set_cache(&k.dev, k.image, k.n_page);
    float *select = run(&k, 0, k.host.n_token);
    for (uint32_t t = 0; t < k.host.n_token; t++) {
        const float *row = select + (size_t)t * (1 + k.c.index_topk);
        check_token(&k, t, row);
        /* of one residue, those chosen must be the lowest: no gap before a chosen one */
        uint32_t n_seen[10] = {0}, i = 0;
        for (uint32_t s = 0; s <= (uint32_t)k.host.pos[t]; s++) {
            if (i >= k.c.index_topk || (int32_t)row[1 + i] != gen_slot(&k.host, 0, s)) continue;
            if (n_seen[s % 10] != s / 10)
                fail_msg("token %u: position %u before a lower one", t, s);
            n_seen[s % 10]++;
            i++;
        }
    }
    mem_free(select);
    close_case(&k);
}

static void test_ties_at_the_cut(void **state)
{
    (void)state;
    for (int way = KV_TYPE_FP8; way <= last_way(); way++) check_ties_at_the_cut(way);
}

/* A visible row with a scale of NaN has a score of NaN and counts as the worst; rows that are not
 * visible are not read (the image is NaN there already). */
static void test_nan_score(void **state)
{
    (void)state;
    for (int way = KV_TYPE_BF16; way <= last_way(); way++) {
        struct topk k;
        open_long_way(&k, way);
        for (uint32_t s = 5; s < 300; s += 50) gen_spoil(&k.c.kv, k.image, gen_slot(&k.host, 0, s));
        rig_set_cache(&k.dev, k.image, k.n_page);
        float *select = run(&k, 0, k.host.n_token);
        for (uint32_t t = 0; t < k.host.n_token; t++) {
            const float *row = select + (size_t)t * (1 + k.c.index_topk);
            check_token(&k, t, row);
            for (uint32_t i = 0; i < k.c.index_topk; i++) {
                for (uint32_t s = 5; s < 300; s += 50)
                    assert_int_not_equal((int32_t)row[1 + i], gen_slot(&k.host, 0, s));
            }
        }
        mem_free(select);
        close_case(&k);
    }
}

/* Up to index_topk visible rows: all of them, even when query and keys are NaN. */
static void test_short_whatever_scores(void **state)
{
    (void)state;
    struct topk k;
    const struct op_batch_case b = {"short", 2, {{60, 4}, {0, 64}}};
    open_case(&k, ACT_F32, KV_TYPE_FP8, false, &b);
    memset(k.query, 0xff, (size_t)k.host.n_token * k.width * sizeof *k.query);
    memset(k.image, 0xff, k.n_page * k.c.kv.page_bytes);
    rig_set_cache(&k.dev, k.image, k.n_page);
    float *select = run(&k, 0, k.host.n_token);
    for (uint32_t t = 0; t < k.host.n_token; t++)
        check_token(&k, t, select + (size_t)t * (1 + k.c.index_topk));
    mem_free(select);
    close_case(&k);
}

/* More rows than one block of a GPU chooses from: just past it, and far enough that the second
 * block's rows are more than are chosen. With queries of zero every row is as good. */
static void check_long_context(const struct op_batch_case *b, uint32_t n_head)
{
    struct topk k;
    open_long_case(&k, op_is_cuda() ? ACT_FP8 : ACT_F32, KV_TYPE_FP8, false, b, 33600, n_head);
    rig_set_cache(&k.dev, k.image, k.n_page);
    uint32_t n = k.host.n_token, width = 1 + k.c.index_topk;
    float *select = run(&k, 0, n);
    for (uint32_t t = 0; t < n; t++) check_token(&k, t, select + (size_t)t * width);
    float *last = run(&k, n - 1, 1);
    op_same_bits("selection of a chunk", last, select + (size_t)(n - 1) * width,
                 width * sizeof *last);
    mem_free(last);
    mem_free(select);
    memset(k.query, 0, (size_t)n * k.width * sizeof *k.query);
    select = run(&k, 0, 1);
    for (uint32_t s = 0; s < k.c.index_topk; s++)
        assert_int_equal((int32_t)select[1 + s], gen_slot(&k.host, 0, s));
    mem_free(select);
    close_case(&k);
}

static void test_long_context(void **state)
{
    (void)state;
    const struct op_batch_case cases[] = {{"past", 2, {{32766, 4}, {90, 2}}},
                                          {"far", 2, {{33500, 2}, {20, 1}}}};
    for (size_t i = op_wants_few() ? 1 : 0; i < 2; i++) check_long_context(&cases[i], 0);
    const struct op_batch_case pages = {"pages", 1, {{9000, 2}}};
    if (op_is_cuda()) check_long_context(&pages, 64);
}

/* ---- scores of any bits ---- */

/* Keys of one value, whose scale is the score: queries that take it once, of one head. */
enum { CODE_ONE = 0x38 };

enum scores {
    SCORES_EQUAL,
    SCORES_TWO,
    SCORES_NEAR,  /* neighbours among numbers: their last bits decide */
    SCORES_DIGIT, /* numbers that differ from one in one bit */
    SCORES_ZEROS, /* of both signs, and the smallest numbers beside them */
    SCORES_NONE,  /* NaN and -inf, but for fewer than are chosen */
    SCORES_BITS,  /* whatever bits */
    SCORES_N
};

static float float_of(uint32_t bits)
{
    float v;
    memcpy(&v, &bits, sizeof v);
    return v;
}

static float some_score(struct gen *g, enum scores scores)
{
    static const uint32_t zeros[] = {0, 0x80000000u, 0x00800000u, 0x80800000u};
    static const uint32_t none[] = {0x7fc00000u, 0xff800000u, 0xffffffffu, 0x7f800001u};
    switch (scores) {
    case SCORES_EQUAL: return 1.0f;
    case SCORES_TWO: return (float)gen_below(g, 2) - 0.5f;
    case SCORES_NEAR: return float_of(0x3f800000u + gen_below(g, 5));
    case SCORES_DIGIT: return float_of(0x3f800000u ^ 1u << gen_below(g, 32));
    case SCORES_ZEROS: return float_of(zeros[gen_below(g, 4)]);
    case SCORES_NONE: return gen_below(g, 9) ? float_of(none[gen_below(g, 4)]) : gen_normal(g);
    default: return float_of(gen_below(g, 1u << 16) << 16 | gen_below(g, 1u << 16));
    }
}

static uint8_t *index_key(const struct topk *k, int32_t slot)
{
    return k->image + (size_t)slot / 64 * k->c.kv.page_bytes + kv_index_offset(&k->c.kv, LAYER) +
           slot % 64 * KV_INDEX_DIM;
}

static uint8_t *index_scale(const struct topk *k, int32_t slot)
{
    return index_key(k, slot - slot % 64) + 64 * KV_INDEX_DIM + slot % 64 * sizeof(float);
}

/* Each request has scores of another kind than the one before, the first of kind `first`. */
static void put_scores(struct topk *k, uint32_t first)
{
    const uint32_t n_index = k->c.index_n_head * (KV_INDEX_DIM + 1);
    memset(k->query, 0, (size_t)k->host.n_token * k->width * sizeof *k->query);
    for (uint32_t t = 0; t < k->host.n_token; t++) {
        const uint32_t request = (uint32_t)k->host.request[t];
        float *query = k->query + (size_t)(t + 1) * k->width - n_index;
        query[0] = query[(size_t)k->c.index_n_head * KV_INDEX_DIM] = 1.0f;
        for (uint32_t s = 0; s <= (uint32_t)k->host.pos[t]; s++) {
            const int32_t slot = gen_slot(&k->host, request, s);
            const float score = some_score(k->g, (enum scores)((first + request) % SCORES_N));
            memset(index_key(k, slot), 0, KV_INDEX_DIM);
            *index_key(k, slot) = CODE_ONE;
            memcpy(index_scale(k, slot), &score, sizeof score);
        }
    }
    rig_set_cache(&k->dev, k->image, k->n_page);
}

static int larger_first(const void *a, const void *b)
{
    const float x = *(const float *)a, y = *(const float *)b;
    return (x < y) - (x > y);
}

/* Exactly the largest of the token's scores, of the last one's equals the first. */
static void check_chosen(const struct topk *k, uint32_t t, const float *select)
{
    const uint32_t n = (uint32_t)k->host.pos[t] + 1, topk = k->c.index_topk;
    float *scores = mem_alloc(2 * n * sizeof *scores), *sorted = scores + n;
    uint32_t n_equal = topk, i = 0;
    for (uint32_t s = 0; s < n; s++) {
        const int32_t slot = gen_slot(&k->host, (uint32_t)k->host.request[t], s);
        memcpy(&scores[s], index_scale(k, slot), sizeof *scores);
        if (isnan(scores[s])) scores[s] = -INFINITY;
    }
    memcpy(sorted, scores, n * sizeof *sorted);
    qsort(sorted, n, sizeof *sorted, larger_first);
    const float last = n <= topk ? -INFINITY : sorted[topk - 1];
    for (uint32_t s = 0; s < n; s++) n_equal -= scores[s] > last;
    for (uint32_t s = 0; s < n; s++) {
        const int32_t slot = gen_slot(&k->host, (uint32_t)k->host.request[t], s);
        if (scores[s] < last || (!(scores[s] > last) && n_equal == 0)) continue;
        if (!(scores[s] > last)) n_equal--;
        if ((int32_t)select[1 + i++] != slot)
            fail_msg("token %u: of %u positions number %u, of score %a, is not chosen as %u of %u",
                     t, n, s, (double)scores[s], i - 1, topk);
    }
    assert_int_equal((int)select[0], i);
    mem_free(scores);
}

static void open_scores_case(struct topk *k, const struct op_batch_case *b, uint32_t max_context,
                             uint32_t topk)
{
    const bool is_cuda = op_is_cuda();
    open_topk_case(k, is_cuda ? ACT_FP8 : ACT_F32, KV_TYPE_FP8, false, b, max_context,
                   is_cuda ? 64 : 0, topk);
}

static void check_scores(struct topk *k, uint32_t chunk)
{
    const uint32_t n = k->host.n_token;
    for (uint32_t t0 = 0; t0 < n; t0 += chunk) {
        const uint32_t m = n - t0 < chunk ? n - t0 : chunk;
        float *select = run(k, t0, m);
        for (uint32_t t = 0; t < m; t++)
            check_chosen(k, t0 + t, select + (size_t)t * (1 + k->c.index_topk));
        mem_free(select);
    }
}

/* Steps whose rows a GPU of sm_90 chooses by one kernel, by two, and as those of prompts: as few as
 * are chosen and one more, ends of pages, neighbours of a request. */
static void test_scores_of_any_bits(void **state)
{
    const struct op_batch_case cases[] = {
        {"one kernel", 7, {{62, 2}, {63, 3}, {64, 4}, {127, 1}, {190, 2}, {256, 3}, {511, 1}}},
        {"two kernels", 7, {{61, 4}, {126, 4}, {129, 3}, {319, 2}, {510, 2}, {256, 1}, {65, 4}}},
        {"prompts", 4, {{55, 12}, {63, 5}, {119, 9}, {300, 6}}},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct topk k;
        open_scores_case(&k, &cases[i], 0, 0);
        for (uint32_t first = 0; first < SCORES_N; first += op_wants_few() ? 4 : 1) {
            put_scores(&k, first);
            check_scores(&k, k.host.n_token);
            if (i == 0 || !op_wants_few()) check_scores(&k, 3);
        }
        close_case(&k);
    }
}

/* As many as V3.2 chooses: contexts of as many and one more, and up to where a GPU of sm_90 has one
 * kernel, and past it. */
static void test_scores_of_the_model(void **state)
{
    const struct op_batch_case cases[] = {
        {"one kernel", 4, {{2047, 1}, {2048, 1}, {4094, 2}, {8191, 1}}},
        {"two kernels", 2, {{8192, 1}, {2049, 2}}},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct topk k;
        open_scores_case(&k, &cases[i], 8320, 2048);
        for (uint32_t first = 0; first < SCORES_N; first += op_wants_few() ? SCORES_N : 1) {
            put_scores(&k, first + SCORES_NEAR);
            check_scores(&k, k.host.n_token);
        }
        close_case(&k);
    }
}

/* ---- recorded steps ---- */

/* A step of so many tokens a request, and another one of as many that is shorter. Where there is
 * time it makes its keys and queries itself. */
struct recorded {
    struct topk k;
    struct batch host[2];
    uint8_t *image[2]; /* NaN are rows that the step makes */
    const struct weight *w;
    float *want[2];
};

static void front_and_choose(struct recorded *s)
{
    struct rig *r = &s->k.dev;
    struct mla_front_args front = {.w = s->w,
                                   .batch = &r->batch,
                                   .kv = &r->kv,
                                   .layer = LAYER,
                                   .want_index_query = true,
                                   .x = r->buffer[BUFFER_NORMED],
                                   .query = r->buffer[BUFFER_QUERY]};
    if (s->w) op_ok(r, r->ops->mla_front(r->b, &front), "mla_front");
    choose(r);
}

static void open_recorded(struct recorded *s, const struct op_batch_case (*pair)[2])
{
    struct topk *k = &s->k;
    struct mla_tensors tensors;
    uint32_t n_page;
    open_topk_case(k, ACT_FP8, KV_TYPE_FP8, false, &(*pair)[0], 0, 64, 0);
    s->host[0] = k->host;
    gen_batch(k->g, &k->c, (*pair)[1].request, (*pair)[1].n_request, &s->host[1], &n_page);
    assert_true(n_page <= k->n_page && s->host[1].n_token == k->host.n_token);
    if (!op_wants_few()) {
        gen_mla(k->g, &k->c, DTYPE_F8_E4M3, &tensors);
        s->w = rig_mla(&k->dev, &tensors);
    }
    rig_write(&k->dev, BUFFER_NORMED, k->host.n_token, k->c.hidden,
              gen_floats(k->g, (size_t)k->host.n_token * k->c.hidden, 1));
    rig_write(&k->dev, BUFFER_QUERY, k->host.n_token, k->width, k->query);
    for (int i = 1; i >= 0; i--) { /* the longer one's arrays stay */
        s->image[i] = gen_cache(k->g, &k->c.kv, k->n_page, &s->host[i], !s->w);
        rig_set_cache(&k->dev, s->image[i], k->n_page);
        rig_set_batch(&k->dev, &s->host[i]);
        front_and_choose(s);
        s->want[i] = rig_read(&k->dev, BUFFER_SELECT, k->host.n_token, 1 + k->c.index_topk);
    }
}

/* Replaces what a recording finds in memory. */
static void put_step(struct recorded *s, int i)
{
    const struct batch *from = &s->host[i], *to = &s->k.dev.batch;
    const size_t n = from->n_token * sizeof(int32_t);
    const size_t n_table = (size_t)from->n_request * from->page_stride * sizeof(int32_t);
    struct rig *r = &s->k.dev;
    const struct {
        const int32_t *to, *from;
        size_t n;
    } arrays[] = {{to->pos, from->pos, n},
                  {to->request, from->request, n},
                  {to->slot, from->slot, n},
                  {to->page_table, from->page_table, n_table}};
    for (size_t a = 0; a < sizeof arrays / sizeof *arrays; a++)
        op_ok(r,
              r->ops->copy_in(r->b, (void *)(uintptr_t)arrays[a].to, arrays[a].from, arrays[a].n),
              "copy_in");
    op_ok(r, r->ops->copy_in(r->b, r->kv.base, s->image[i], s->k.n_page * s->k.c.kv.page_bytes),
          "copy_in");
}

/* Recorded with the longest context and replayed with others, steps choose what they choose when
 * they run as they are, though keys of earlier steps are read before those of this one are made. */
static void test_recorded_steps(void **state)
{
    const struct op_batch_case pairs[][2] = {
        {{"one kernel", 4, {{508, 4}, {63, 2}, {126, 4}, {320, 1}}},
         {"shorter", 4, {{60, 4}, {64, 2}, {190, 4}, {62, 1}}}},
        {{"two kernels", 5, {{508, 4}, {300, 4}, {126, 4}, {62, 4}, {447, 4}}},
         {"shorter", 5, {{100, 4}, {124, 4}, {61, 4}, {192, 4}, {63, 4}}}},
    };
    (void)state;
    if (!op_is_cuda()) return;
    for (size_t p = 0; p < sizeof pairs / sizeof *pairs; p++) {
        struct recorded s = {0};
        struct graph *graph;
        open_recorded(&s, &pairs[p]);
        struct rig *r = &s.k.dev;
        const size_t width = 1 + s.k.c.index_topk, n = s.k.host.n_token;
        op_ok(r, r->ops->graph_begin(r->b), "graph_begin");
        front_and_choose(&s);
        op_ok(r, r->ops->graph_end(r->b, &graph), "graph_end");
        for (int i = 0; i < (op_wants_few() ? 2 : 20); i++) {
            put_step(&s, i % 2);
            op_ok(r, r->ops->graph_launch(r->b, graph), "graph_launch");
            float *got = rig_read(r, BUFFER_SELECT, (uint32_t)n, (uint32_t)width);
            op_same_bits("replayed", got, s.want[i % 2], n * width * sizeof *got);
            mem_free(got);
        }
        r->ops->graph_destroy(r->b, graph);
        for (int i = 0; i < 2; i++) mem_free(s.want[i]);
        close_case(&s.k);
    }
}

/* What no kernel chooses is refused when the backend is made. */
static void test_too_long(void **state)
{
    (void)state;
    struct backend_config c;
    struct backend *b = NULL;
    fathom_diag d = {{0}};
    if (!op_is_cuda()) return;
    gen_config(&c, ACT_FP8, KV_TYPE_FP8, false);
    c.index_topk = 20000;
    c.max_context = 40000;
    assert_int_equal(backend_create_named(&b, op_backend(), &c, &d), FATHOM_EUNSUPPORTED);
    assert_non_null(strstr(d.text, "index_topk is 20000"));
    assert_null(b);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_batch),           cmocka_unit_test(test_ties),
        cmocka_unit_test(test_ties_at_the_cut),       cmocka_unit_test(test_nan_score),
        cmocka_unit_test(test_short_whatever_scores), cmocka_unit_test(test_long_context),
        cmocka_unit_test(test_scores_of_any_bits),    cmocka_unit_test(test_scores_of_the_model),
        cmocka_unit_test(test_recorded_steps),        cmocka_unit_test(test_too_long),
        cmocka_unit_test(test_model_heads),
    };
    return OP_MAIN(argc, argv, tests);
}
