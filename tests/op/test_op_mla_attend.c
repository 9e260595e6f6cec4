/* test_op_mla_attend.c - attention over all rows and over selected ones */
#include "op/harness.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"

enum { LAYER = 1 };

struct attend {
    struct backend_config c;
    struct gen *g;
    struct rig ref, dev;
    struct weight *ref_w, *dev_w; /* where there are rows of prompts, else NULL */
    struct batch host;
    uint8_t *image;
    uint32_t n_page;
    uint32_t in_width, out_width;
    float *query;  /* [n_token][in_width] */
    float *select; /* [n_token][1 + index_topk], or NULL */
};

/* max_context: 0, or longer than usual, with as many rows to select */
static void open_attend_of(struct attend *a, enum act_type act, enum kv_type kv, bool wide,
                           uint32_t max_context)
{
    memset(a, 0, sizeof *a);
    a->g = gen_create_for(111, act);
    gen_config(&a->c, act, kv, wide);
    if (max_context) {
        a->c.max_context = max_context;
        a->c.index_topk = max_context;
    }
    rig_open_pair(&a->ref, &a->dev, &a->c);
    a->in_width = a->c.n_head * KV_ROW;
    a->out_width = a->c.n_head * KV_LATENT;
}

static void open_attend(struct attend *a, enum act_type act, enum kv_type kv, bool wide)
{
    open_attend_of(a, act, kv, wide, 0);
}

static void close_attend(struct attend *a)
{
    rig_close_pair(&a->ref, &a->dev);
    gen_destroy(a->g);
}

static void set_case(struct attend *a, const struct op_batch_case *b)
{
    gen_batch(a->g, &a->c, b->request, b->n_request, &a->host, &a->n_page);
    a->image = gen_cache(a->g, &a->c.kv, a->n_page, &a->host, true);
    a->query = gen_floats(a->g, (size_t)a->host.n_token * a->in_width, 0.3f);
    a->select = NULL;
}

/* A random subset of each token's rows, at most index_topk of them, ascending; all when keep_all.
 */
static void set_select(struct attend *a, bool keep_all)
{
    uint32_t width = 1 + a->c.index_topk;
    a->select = gen_alloc(a->g, (size_t)a->host.n_token * width * sizeof *a->select);
    for (uint32_t t = 0; t < a->host.n_token; t++) {
        float *row = a->select + (size_t)t * width;
        uint32_t n_visible = (uint32_t)a->host.pos[t] + 1, n = 0;
        for (uint32_t s = 0; s < n_visible && n < a->c.index_topk; s++) {
            bool last = s + 1 == n_visible && n == 0;
            if (keep_all || last || gen_below(a->g, 3) == 0)
                row[1 + n++] = (float)gen_slot(&a->host, (uint32_t)a->host.request[t], s);
        }
        row[0] = (float)n;
        for (uint32_t i = n; i < a->c.index_topk; i++) row[1 + i] = -1;
    }
}

static float *run(struct attend *a, struct rig *r, uint32_t t0, uint32_t n)
{
    struct batch slice;
    uint32_t select_width = 1 + a->c.index_topk;
    gen_slice(a->g, &a->host, t0, n, &slice);
    rig_set_batch(r, &slice);
    rig_write(r, BUFFER_QUERY, n, a->in_width, a->query + (size_t)t0 * a->in_width);
    if (a->select)
        rig_write(r, BUFFER_SELECT, n, select_width, a->select + (size_t)t0 * select_width);
    struct mla_attend_args args = {.w = r == &a->ref ? a->ref_w : a->dev_w,
                                   .batch = &r->batch,
                                   .kv = &r->kv,
                                   .layer = LAYER,
                                   .query = r->buffer[BUFFER_QUERY],
                                   .select = a->select ? r->buffer[BUFFER_SELECT] : NULL,
                                   .out = r->buffer[BUFFER_LATENT]};
    op_ok(r, r->ops->mla_attend(r->b, &args), "mla_attend");
    return rig_read(r, BUFFER_LATENT, n, a->out_width);
}

/* ---- the equations, in double ---- */

/* Slots of the rows that token t attends to. */
static uint32_t rows_of(const struct attend *a, uint32_t t, int32_t *slots)
{
    uint32_t request = (uint32_t)a->host.request[t], n = (uint32_t)a->host.pos[t] + 1;
    const float *select = a->select ? a->select + (size_t)t * (1 + a->c.index_topk) : NULL;
    if (select) n = (uint32_t)select[0];
    for (uint32_t i = 0; i < n; i++)
        slots[i] = select ? (int32_t)select[1 + i] : gen_slot(&a->host, request, i);
    return n;
}

/* Key and value of one row, the same for all heads. */
static void key_value(const struct attend *a, int32_t slot, double *key, double *value)
{
    float row[KV_ROW];
    gen_latent(&a->c.kv, a->image, LAYER, slot, row);
    for (int i = 0; i < KV_ROW; i++) key[i] = (double)row[i];
    memcpy(value, key, KV_LATENT * sizeof *value);
}

static void check_formula(const struct attend *a, uint32_t t, uint32_t h, const float *got)
{
    static int32_t slots[512];
    static double score[512], value[512][KV_LATENT];
    double key[KV_ROW], out[KV_LATENT] = {0}, sum = 0, top = -INFINITY;
    uint32_t width = a->in_width / a->c.n_head, out_width = a->out_width / a->c.n_head;
    const float *query = a->query + (size_t)t * a->in_width + (size_t)h * width;
    uint32_t n = rows_of(a, t, slots);
    for (uint32_t i = 0; i < n; i++) {
        key_value(a, slots[i], key, value[i]);
        score[i] = 0;
        for (uint32_t d = 0; d < width; d++) score[i] += (double)query[d] * key[d];
        score[i] *= (double)a->c.softmax_scale;
        top = fmax(top, score[i]);
    }
    for (uint32_t i = 0; i < n; i++) sum += exp(score[i] - top);
    for (uint32_t i = 0; i < n; i++) {
        for (uint32_t d = 0; d < out_width; d++) out[d] += exp(score[i] - top) / sum * value[i][d];
    }
    op_close_double("formula", got + (size_t)t * a->out_width + (size_t)h * out_width, out,
                    out_width, 3e-6);
}

/* ---- comparison ---- */

static void check_within(struct attend *a, bool with_formula, double limit)
{
    uint32_t n = a->host.n_token;
    rig_set_cache(&a->ref, a->image, a->n_page);
    rig_set_cache(&a->dev, a->image, a->n_page);
    float *want = run(a, &a->ref, 0, n);
    float *got = run(a, &a->dev, 0, n);
    for (uint32_t t = 0; t < n; t++) /* each row by itself: an error must not hide among others */
        op_close("attention", got + (size_t)t * a->out_width, want + (size_t)t * a->out_width,
                 a->out_width, limit);
    if (with_formula) {
        check_formula(a, 0, 0, want);
        check_formula(a, n - 1, a->c.n_head - 1, want);
    }
    const bool few = op_wants_few(); /* two rows by themselves, the others by sevens */
    const uint32_t chunks[] = {7, 1, n};
    for (int i = 0; i < (few ? 1 : 3); i++) {
        for (uint32_t t = 0, m; t < n; t += m) {
            m = few && t < 2 ? 1 : n - t < chunks[i] ? n - t : chunks[i];
            float *part = run(a, &a->dev, t, m);
            op_same_bits("a chunk", part, got + (size_t)t * a->out_width,
                         (size_t)m * a->out_width * sizeof *part);
            mem_free(part);
        }
    }
    mem_free(want);
    mem_free(got);
}

static void check_now(struct attend *a, bool with_formula)
{
    check_within(a, with_formula, op_tolerance(a->c.act));
}

static void check(enum act_type act, enum kv_type kv, bool wide)
{
    if (op_is_elsewhere(act)) return;
    struct attend a;
    open_attend(&a, act, kv, wide);
    for (size_t i = 0; i < op_n_batch_case; i += op_wants_few() ? 3 : 1) {
        set_case(&a, &op_batch_cases[i]);
        check_now(&a, true);
        set_select(&a, false);
        check_now(&a, i % 3 == 0);
    }
    close_attend(&a);
}

static void test_f32_cache(void **state)
{
    (void)state;
    check(ACT_F32, KV_TYPE_F32, true);
}

static void test_bf16_cache(void **state)
{
    (void)state;
    check(ACT_BF16, KV_TYPE_BF16, false);
    if (op_is_cuda()) check(ACT_FP8, KV_TYPE_BF16, false);
}

static void test_fp8_cache(void **state)
{
    (void)state;
    check(ACT_F32, KV_TYPE_FP8, false);
    if (op_is_cuda()) check(ACT_FP8, KV_TYPE_FP8, false);
}

/* Selecting every row gives the bits of selecting none. */
static void test_select_all(void **state)
{
    (void)state;
    if (op_is_elsewhere(ACT_F32)) return;
    for (int type = KV_TYPE_F32; type <= KV_TYPE_FP8; type++) {
        struct attend a;
        const struct op_batch_case b = {"short", 3, {{0, 64}, {40, 20}, {63, 1}}};
        open_attend(&a, ACT_F32, (enum kv_type)type, false);
        set_case(&a, &b);
        rig_set_cache(&a.dev, a.image, a.n_page);
        float *dense = run(&a, &a.dev, 0, a.host.n_token);
        set_select(&a, true);
        float *selected = run(&a, &a.dev, 0, a.host.n_token);
        op_same_bits("all rows selected", selected, dense,
                     (size_t)a.host.n_token * a.out_width * sizeof *dense);
        mem_free(dense);
        mem_free(selected);
        close_attend(&a);
    }
}

/* Visible rows that are not selected may hold anything. */
static void test_nan_in_unselected_rows(void **state)
{
    (void)state;
    if (op_is_elsewhere(ACT_F32)) return;
    for (int type = KV_TYPE_F32; type <= KV_TYPE_FP8; type++) {
        struct attend a;
        bool used[8192] = {false};
        open_attend(&a, ACT_F32, (enum kv_type)type, false);
        const struct op_batch_case b = {"long", 2, {{400, 2}, {90, 1}}};
        set_case(&a, &b);
        set_select(&a, false);
        uint32_t width = 1 + a.c.index_topk;
        for (uint32_t t = 0; t < a.host.n_token; t++) {
            const float *row = a.select + (size_t)t * width;
            for (uint32_t i = 0; i < (uint32_t)row[0]; i++) used[(uint32_t)row[1 + i]] = true;
        }
        for (uint32_t s = 0; s < a.n_page * KV_PAGE_TOKENS; s++) {
            if (!used[s]) gen_spoil(&a.c.kv, a.image, (int32_t)s);
        }
        check_now(&a, true);
        close_attend(&a);
    }
}

/* More rows than one launch merges. */
static void test_long_context(void **state)
{
    (void)state;
    struct attend a;
    const struct op_batch_case b = {"thousands", 2, {{2300, 3}, {2047, 2}}};
    const enum act_type act = op_is_cuda() ? ACT_FP8 : ACT_BF16;
    open_attend_of(&a, act, KV_TYPE_FP8, false, 2400);
    set_case(&a, &b);
    check_now(&a, false);
    close_attend(&a);
}

/* More tokens than a few, of more rows than one block takes where blocks are apart. */
static void test_units_of_many_tokens(void **state)
{
    (void)state;
    const struct op_batch_case b = {"units apart", 2, {{256, 65}, {511, 1}}};
    struct attend a;
    if (!op_is_cuda() || op_is_portable()) return;
    open_attend(&a, ACT_FP8, KV_TYPE_FP8, false);
    set_case(&a, &b);
    check_now(&a, false);
    close_attend(&a);
}

/* Quarters of a query's latent values of which each is 64 times the one before, or that are all
 * zeros: where rows are codes, each quarter is brought into f16's range by itself. */
static void test_uneven_query(void **state)
{
    (void)state;
    struct attend a;
    const enum act_type act = op_is_cuda() ? ACT_FP8 : ACT_F32;
    if (op_is_elsewhere(act)) return;
    open_attend(&a, act, KV_TYPE_FP8, false);
    set_case(&a, &op_batch_cases[8]);
    for (size_t i = 0; i < (size_t)a.host.n_token * a.in_width; i++) {
        const size_t head = i / KV_ROW, quarter = i % KV_ROW / (KV_LATENT / 4);
        if (quarter >= 4) continue; /* rotary values */
        a.query[i] *= head % 3 == quarter ? 0 : ldexpf(1, 6 * (int)((quarter + head) % 4) - 15);
    }
    check_now(&a, true);
    close_attend(&a);
}

/* What mla_out makes of the step's attention, of latents of its own or of what is left to it. */
static float *run_out(struct attend *a, bool left)
{
    struct rig *r = &a->dev;
    const uint32_t n = a->host.n_token;
    float *zero = mem_calloc((size_t)n * a->out_width, sizeof *zero);
    assert_non_null(zero);
    rig_set_batch(r, &a->host);
    rig_write(r, BUFFER_LATENT, n, a->out_width, zero);
    mem_free(zero);
    rig_write(r, BUFFER_QUERY, n, a->in_width, a->query);
    if (a->select) rig_write(r, BUFFER_SELECT, n, 1 + a->c.index_topk, a->select);
    struct mla_attend_args attend = {.w = a->dev_w,
                                     .batch = &r->batch,
                                     .kv = &r->kv,
                                     .layer = LAYER,
                                     .query = r->buffer[BUFFER_QUERY],
                                     .select = a->select ? r->buffer[BUFFER_SELECT] : NULL,
                                     .out = r->buffer[BUFFER_LATENT],
                                     .left_to_out = left};
    struct mla_out_args out = {.w = a->dev_w,
                               .batch = &r->batch,
                               .z = r->buffer[BUFFER_LATENT],
                               .y = r->buffer[BUFFER_DELTA]};
    op_ok(r, r->ops->mla_attend(r->b, &attend), "mla_attend");
    op_ok(r, r->ops->mla_out(r->b, &out), "mla_out");
    return rig_read(r, BUFFER_DELTA, n, a->c.hidden);
}

static void check_left(struct attend *a)
{
    float *want = run_out(a, false), *got = run_out(a, true);
    op_same_bits("units left to mla_out", got, want,
                 (size_t)a->host.n_token * a->c.hidden * sizeof *got);
    mem_free(want);
    mem_free(got);
}

struct heads_case {
    uint32_t n_head;
    enum kv_type kv;
    uint32_t topk;
    struct op_batch_case batch;
};

/* Without `selects` every row sees all before it, which the configuration allows. */
static void check_heads(const struct heads_case *k, bool selects)
{
    struct mla_tensors tensors;
    struct attend a = {.g = gen_create_for(111, ACT_FP8)};
    gen_config(&a.c, op_is_cuda() ? ACT_FP8 : ACT_BF16, k->kv, false);
    a.c.n_head = k->n_head;
    a.c.max_token = 8;
    a.c.max_context = 2900;
    a.c.index_topk = selects ? k->topk : a.c.max_context;
    rig_open_pair(&a.ref, &a.dev, &a.c);
    a.in_width = a.c.n_head * KV_ROW;
    a.out_width = a.c.n_head * KV_LATENT;
    set_case(&a, &k->batch);
    gen_mla(a.g, &a.c, DTYPE_BF16, &tensors);
    a.ref_w = rig_mla(&a.ref, &tensors);
    a.dev_w = rig_mla(&a.dev, &tensors);
    if (selects) {
        a.host.n_answer_token = (uint32_t)a.host.first[1];
        a.host.n_answer_request = 1;
        set_select(&a, false);
    }
    check_now(&a, false);
    check_left(&a);
    close_attend(&a);
}

/* As many heads as a device has that does not share attention with others, or half of them, or a
 * few more; rows of answers, and before rows of a prompt, four times index_topk on: absorbed. */
static void test_many_heads(void **state)
{
    (void)state;
    const struct heads_case cases[] = {
        {70, KV_TYPE_BF16, 60, {"an odd group", 2, {{129, 1}, {242, 2}}}},
        {64, KV_TYPE_FP8, 700, {"units", 2, {{1030, 1}, {2803, 1}}}},
        {128, KV_TYPE_FP8, 700, {"two blocks a token", 2, {{1030, 1}, {2803, 2}}}},
        {128, KV_TYPE_BF16, 700, {"more units", 2, {{1100, 1}, {2822, 2}}}},
    };
    /* units are of sm_90's kernels: others have thousands of rows in test_long_context */
    const size_t n_few = op_is_portable() ? 1 : 3;
    for (size_t i = 0; i < (op_wants_few() ? n_few : sizeof cases / sizeof *cases); i++) {
        check_heads(&cases[i], false);
        check_heads(&cases[i], true);
    }
}

/* Scores of a thousand and more: softmax must not overflow. The last bit of such a score is 1e-4,
 * and so is what it moves a weight by. */
static void test_large_scores(void **state)
{
    (void)state;
    if (op_is_elsewhere(ACT_F32)) return;
    struct attend a;
    open_attend(&a, ACT_F32, KV_TYPE_F32, false);
    set_case(&a, &op_batch_cases[8]);
    for (size_t i = 0; i < (size_t)a.host.n_token * a.in_width; i++) a.query[i] *= 1000;
    check_within(&a, false, 1e-4);
    close_attend(&a);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_f32_cache),
        cmocka_unit_test(test_bf16_cache),
        cmocka_unit_test(test_fp8_cache),
        cmocka_unit_test(test_select_all),
        cmocka_unit_test(test_nan_in_unselected_rows),
        cmocka_unit_test(test_units_of_many_tokens),
        cmocka_unit_test(test_long_context),
        cmocka_unit_test(test_many_heads),
        cmocka_unit_test(test_large_scores),
        cmocka_unit_test(test_uneven_query),
    };
    return OP_MAIN(argc, argv, tests);
}
