/* test_op_mla_prompt.c - rows of prompts through mla_front, mla_attend and mla_out, whose
 * intermediate forms are a backend's own */
#include "op/harness.h"

#include <string.h>

#include "base/mem.h"

enum { LAYER = 1 };

struct chain {
    struct backend_config c;
    struct gen *g;
    struct rig ref, dev;
    struct weight *ref_w, *dev_w;
    struct batch host;
    uint8_t *image;
    uint32_t n_page;
    float *x;      /* [n_token][hidden] */
    float *select; /* [n_token][1 + index_topk], or NULL */
};

struct chain_case {
    const char *name;
    uint32_t n_answer; /* requests */
    uint32_t n_request;
    struct gen_request request[8];
};

/* has_index: rows are selected where a context is longer than so many */
static void open_chain(struct chain *a, enum act_type act, enum kv_type kv, enum dtype t,
                       uint32_t n_head, uint32_t has_index, uint32_t max_context)
{
    struct mla_tensors tensors;
    memset(a, 0, sizeof *a);
    a->g = gen_create_for(131, act);
    gen_config(&a->c, act, kv, false);
    a->c.n_head = n_head;
    if (max_context) a->c.max_context = max_context;
    if (!has_index) {
        a->c.index_n_head = 0;
        kv_layout_init(&a->c.kv, kv, a->c.kv.n_layer, false);
    }
    a->c.index_topk = has_index;
    rig_open_pair(&a->ref, &a->dev, &a->c);
    gen_mla(a->g, &a->c, t, &tensors);
    a->ref_w = rig_mla(&a->ref, &tensors);
    a->dev_w = rig_mla(&a->dev, &tensors);
}

static void close_chain(struct chain *a)
{
    rig_close_pair(&a->ref, &a->dev);
    gen_destroy(a->g);
}

/* The i-th of n rows that a token selects: the last ones; every second token scattered ones */
static uint32_t selected(uint32_t token, uint32_t n_visible, uint32_t n, uint32_t i)
{
    if (token % 2 == 0) return n_visible - n + i;
    const uint32_t first = i * n_visible / n, end = (i + 1) * n_visible / n;
    return first + (token * 7 + i * 5) % (end - first);
}

static void set_case(struct chain *a, const struct chain_case *k)
{
    const uint32_t width = 1 + a->c.index_topk;
    gen_batch(a->g, &a->c, k->request, k->n_request, &a->host, &a->n_page);
    gen_set_answers(&a->host, k->n_answer);
    a->image = gen_cache(a->g, &a->c.kv, a->n_page, &a->host, false);
    a->x = gen_floats(a->g, (size_t)a->host.n_token * a->c.hidden, 1);
    a->select = NULL;
    if (a->host.max_context <= a->c.index_topk || !a->c.index_n_head) return;
    a->select = gen_alloc(a->g, (size_t)a->host.n_token * width * sizeof *a->select);
    for (uint32_t t = 0; t < a->host.n_token; t++) {
        float *row = a->select + (size_t)t * width;
        const uint32_t n_visible = (uint32_t)a->host.pos[t] + 1;
        const uint32_t n = n_visible < a->c.index_topk ? n_visible : a->c.index_topk;
        row[0] = (float)n;
        for (uint32_t i = 0; i < a->c.index_topk; i++) {
            row[1 + i] = -1;
            if (i < n)
                row[1 + i] = (float)gen_slot(&a->host, (uint32_t)a->host.request[t],
                                             selected(t, n_visible, n, i));
        }
    }
}

/* Tokens t0 to t0 + n - 1, whose requests' earlier ones are in the cache. */
static float *run(struct chain *a, struct rig *r, struct weight *w, uint32_t t0, uint32_t n)
{
    const uint32_t width = 1 + a->c.index_topk;
    struct batch slice;
    gen_slice(a->g, &a->host, t0, n, &slice);
    rig_set_batch(r, &slice);
    rig_write(r, BUFFER_NORMED, n, a->c.hidden, a->x + (size_t)t0 * a->c.hidden);
    struct mla_front_args front = {.w = w,
                                   .batch = &r->batch,
                                   .kv = &r->kv,
                                   .layer = LAYER,
                                   .x = r->buffer[BUFFER_NORMED],
                                   .query = r->buffer[BUFFER_QUERY]};
    op_ok(r, r->ops->mla_front(r->b, &front), "mla_front");
    const bool selects = a->select && slice.max_context > a->c.index_topk;
    if (selects) rig_write(r, BUFFER_SELECT, n, width, a->select + (size_t)t0 * width);
    struct mla_attend_args attend = {.w = w,
                                     .batch = &r->batch,
                                     .kv = &r->kv,
                                     .layer = LAYER,
                                     .query = r->buffer[BUFFER_QUERY],
                                     .select = selects ? r->buffer[BUFFER_SELECT] : NULL,
                                     .out = r->buffer[BUFFER_LATENT]};
    op_ok(r, r->ops->mla_attend(r->b, &attend), "mla_attend");
    struct mla_out_args out = {
        .w = w, .batch = &r->batch, .z = r->buffer[BUFFER_LATENT], .y = r->buffer[BUFFER_DELTA]};
    op_ok(r, r->ops->mla_out(r->b, &out), "mla_out");
    return rig_read(r, BUFFER_DELTA, n, a->c.hidden);
}

/* The whole against ref, and in chunks, with the same bits. Past rows are the same bytes for both;
 * new rows each backend writes itself. */
static void check_case(struct chain *a, const struct chain_case *k, double limit)
{
    const uint32_t chunks[] = {50, 13, 1000}, hidden = a->c.hidden;
    set_case(a, k);
    const uint32_t n = a->host.n_token;
    rig_set_cache(&a->ref, a->image, a->n_page);
    rig_set_cache(&a->dev, a->image, a->n_page);
    float *want = run(a, &a->ref, a->ref_w, 0, n);
    float *got = run(a, &a->dev, a->dev_w, 0, n);
    for (uint32_t t = 0; t < n; t++)
        op_close(k->name, got + (size_t)t * hidden, want + (size_t)t * hidden, hidden, limit);
    for (size_t i = 0; i < sizeof chunks / sizeof *chunks; i++) {
        if (op_wants_few() && i > 0) break;
        rig_set_cache(&a->dev, a->image, a->n_page);
        for (uint32_t t = 0; t < n; t += chunks[i]) {
            const uint32_t m = n - t < chunks[i] ? n - t : chunks[i];
            float *part = run(a, &a->dev, a->dev_w, t, m);
            op_same_bits(k->name, part, got + (size_t)t * hidden,
                         (size_t)m * hidden * sizeof *part);
            mem_free(part);
        }
    }
    mem_free(want);
    mem_free(got);
}

static const struct chain_case cases[] = {
    {"answers beside prompts", 1, 4, {{70, 2}, {0, 65}, {130, 20}, {127, 1}}},
    {"one prompt", 0, 1, {{0, 150}}},
    {"cached prefixes", 0, 3, {{200, 40}, {63, 1}, {129, 70}}},
    {"one token", 0, 1, {{0, 1}}},
    {"answers alone", 2, 2, {{70, 1}, {5, 3}}},
};

static void check(enum act_type act, enum kv_type kv, enum dtype t, uint32_t n_head, uint32_t topk,
                  double limit)
{
    if (op_is_elsewhere(act)) return;
    struct chain a;
    open_chain(&a, act, kv, t, n_head, topk, 0);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i += op_wants_few() ? 4 : 1)
        check_case(&a, &cases[i], limit);
    close_chain(&a);
}

static void test_exact_activations(void **state)
{
    (void)state;
    check(ACT_F32, KV_TYPE_F32, DTYPE_BF16, 2, 0, 3e-5);
}

static void test_bf16_cache(void **state)
{
    (void)state;
    if (op_is_cuda())
        check(ACT_FP8, KV_TYPE_BF16, DTYPE_BF16, 3, 0, 1.2e-2);
    else
        check(ACT_BF16, KV_TYPE_BF16, DTYPE_BF16, 3, 0, 1.2e-2);
}

static void test_fp8_cache(void **state)
{
    (void)state;
    /* Inputs of q_a, kv_a, q_b and o are FP8, in ref too, and so are new rows of the cache. What
     * differs from ref in its last bits may take the next code, up to 1/8 of the value away, and
     * three operators one after the other each add such steps: 6.1e-2 to 8.3e-2 of a row on a
     * GPU. */
    if (op_is_cuda())
        check(ACT_FP8, KV_TYPE_FP8, DTYPE_F8_E4M3, 2, 0, 1e-1);
    else
        check(ACT_BF16, KV_TYPE_FP8, DTYPE_F8_E4M3, 2, 0, 6e-2);
}

/* Rows whose context is longer than what is selected, beside rows that see everything. With 17 rows
 * selected a backend may take the rows of one prompt in either form: those from position 136 on in
 * another than those before. */
static void test_selected_rows(void **state)
{
    (void)state;
    const uint32_t topk[] = {100, 17};
    for (size_t i = 0; i < sizeof topk / sizeof *topk; i++)
        check(op_is_cuda() ? ACT_FP8 : ACT_BF16, KV_TYPE_FP8, DTYPE_BF16, 2, topk[i], 2e-2);
}

/* As many rows as V3.2 selects, around the last position that a backend has in expanded form. */
static void test_far_rows(void **state)
{
    (void)state;
    const struct chain_case far = {"far", 0, 2, {{16370, 30}, {8180, 20}}};
    struct chain a;
    if (op_wants_few()) return;
    open_chain(&a, op_is_cuda() ? ACT_FP8 : ACT_BF16, KV_TYPE_FP8, DTYPE_BF16, 2, 2048, 16448);
    check_case(&a, &far, 2e-2);
    close_chain(&a);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_exact_activations), cmocka_unit_test(test_bf16_cache),
        cmocka_unit_test(test_fp8_cache),         cmocka_unit_test(test_selected_rows),
        cmocka_unit_test(test_far_rows),
    };
    return OP_MAIN(argc, argv, tests);
}
