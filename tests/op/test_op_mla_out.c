/* test_op_mla_out.c - from heads back to the hidden width */
#include "op/harness.h"

#include "base/mem.h"

enum { N = 129, N_FEW = 65, N_FORM = 17 };

struct weights {
    struct weight *w;
    uint32_t n_answer; /* rows of answers at most, before rows of prompts */
};

static float *run(struct rig *r, void *arg, const float *z, uint32_t n)
{
    const struct weights *w = arg;
    const uint32_t n_answer = w->n_answer < n ? w->n_answer : n;
    /* rows of the prompt are absorbed: eight times index_topk on */
    const struct gen_request requests[] = {{0, n_answer}, {8 * r->config.index_topk, n - n_answer}};
    const uint32_t first = n_answer ? 0 : 1, end = n_answer < n ? 2 : 1;
    struct gen *g = gen_create(7);
    struct batch batch;
    uint32_t n_page;
    gen_batch(g, &r->config, requests + first, end - first, &batch, &n_page);
    gen_set_answers(&batch, n_answer ? 1 : 0);
    rig_set_batch(r, &batch);
    gen_destroy(g);
    rig_write(r, BUFFER_LATENT, n, r->config.n_head * KV_LATENT, z);
    struct mla_out_args args = {
        .w = w->w, .batch = &r->batch, .z = r->buffer[BUFFER_LATENT], .y = r->buffer[BUFFER_DELTA]};
    op_ok(r, r->ops->mla_out(r->b, &args), "mla_out");
    return rig_read(r, BUFFER_DELTA, n, r->config.hidden);
}

static void check_formula(struct gen *g, const struct backend_config *c,
                          const struct mla_tensors *t, const float *z, const float *got)
{
    double latent[KV_LATENT];
    double *heads = gen_alloc(g, c->n_head * c->v_dim * sizeof *heads);
    double *want = gen_alloc(g, c->hidden * sizeof *want);
    for (uint32_t h = 0; h < c->n_head; h++) {
        for (uint32_t i = 0; i < c->v_dim; i++) {
            for (int j = 0; j < KV_LATENT; j++) latent[j] = (double)z[h * KV_LATENT + (uint32_t)j];
            uint32_t row = h * (c->nope_dim + c->v_dim) + c->nope_dim + i;
            heads[h * c->v_dim + i] = gen_product(&t->kv_b, row, latent, gen_wide_act(c->act));
        }
    }
    for (uint32_t i = 0; i < c->hidden; i++) want[i] = gen_product(&t->o, i, heads, c->act);
    op_close_double("formula", got, want, c->hidden, op_formula_limit(c->act));
}

/* Rows of a prompt, alone and behind rows of answers. */
static void check_prompts(struct rig *dev, struct weights *w, const float *z, const float *want,
                          const float *answers)
{
    const uint32_t width = dev->config.n_head * KV_LATENT, hidden = dev->config.hidden;
    w->n_answer = 0;
    float *prompt = run(dev, w, z, N);
    op_close("prompt rows", prompt, want, (size_t)N * hidden, op_tolerance(ACT_FP8));
    op_check_rows("prompt rows", dev, run, w, z, prompt, N, width, hidden);
    w->n_answer = 50;
    float *mixed = run(dev, w, z, N);
    const size_t n_first = (size_t)w->n_answer * hidden, n = (size_t)N * hidden;
    op_same_bits("answers before a prompt", mixed, answers, n_first * sizeof *mixed);
    op_same_bits("a prompt behind answers", mixed + n_first, prompt + n_first,
                 (n - n_first) * sizeof *mixed);
    mem_free(prompt);
    mem_free(mixed);
}

/* form: of weights of F8_E4M3, or NULL */
static void check_form(enum act_type act, enum dtype t, const struct weight_form *form, bool wide)
{
    if (op_is_elsewhere(act)) return;
    char text[WEIGHT_FORM_TEXT_BYTES];
    const char *what = form ? weight_form_text(text, form) : dtype_name(t);
    struct backend_config c;
    struct rig ref, dev;
    struct mla_tensors tensors;
    struct gen *g = gen_create_for(121, act);
    gen_config(&c, act, KV_TYPE_BF16, wide);
    c.max_context = 1024;
    const bool takes_all = !op_wants_few() || act == ACT_FP8 || t == DTYPE_BF16;
    const uint32_t n = form ? N_FORM : takes_all ? N : N_FEW;
    const bool decodes = op_wants_few() && form && (act != ACT_FP8 || !op_form_has_product(form));
    if (decodes && !wide) c.hidden = 128;
    rig_open_pair(&ref, &dev, &c);
    if (form) gen_code_as(g, form);
    gen_mla(g, &c, t, &tensors);
    uint32_t width = c.n_head * KV_LATENT;
    struct weights wr = {rig_mla(&ref, &tensors), N}, wd = {rig_mla(&dev, &tensors), N};
    float *z = gen_floats(g, (size_t)n * width, 1);
    float *want = run(&ref, &wr, z, n);
    float *got = run(&dev, &wd, z, n);
    op_close(what, got, want, (size_t)n * c.hidden, op_tolerance(act));
    if (!decodes) op_check_rows(what, &dev, run, &wd, z, got, n, width, c.hidden);
    check_formula(g, &c, &tensors, z + width, want + c.hidden);
    if (act == ACT_FP8 && !form) check_prompts(&dev, &wd, z, want, got);
    mem_free(want);
    mem_free(got);
    rig_close_pair(&ref, &dev);
    gen_destroy(g);
}

static void check(enum act_type act, enum dtype t, bool wide)
{
    check_form(act, t, NULL, wide);
}

static void test_every_form(void **state)
{
    (void)state;
    for (size_t i = 0; i < op_n_weight_form; i++) {
        const struct weight_form *form = &op_weight_forms[i];
        if (op_wants_few() && i != 0 && form->block_col != 0) continue;
        check_form(ACT_FP8, DTYPE_F8_E4M3, form, false);
        if (op_wants_few() && form->code != CODE_I8) continue;
        check_form(i % 4 ? ACT_BF16 : ACT_F32, DTYPE_F8_E4M3, form, i % 4);
    }
}

static void test_every_type(void **state)
{
    (void)state;
    for (size_t t = 0; t < op_n_weight_type; t++)
        check(t % 2 ? ACT_BF16 : ACT_F32, op_weight_types[t], t / 2 % 2);
    check(ACT_F32, DTYPE_F8_E4M3, false);
    check(ACT_F32, DTYPE_F8_E4M3, true);
    check(ACT_BF16, DTYPE_BF16, false);
    check(ACT_FP8, DTYPE_F8_E4M3, false);
    check(ACT_FP8, DTYPE_BF16, false);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_type),
        cmocka_unit_test(test_every_form),
    };
    return OP_MAIN(argc, argv, tests);
}
