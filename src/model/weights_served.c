/* weights_served.c - how a checkpoint's matrices are coded, and whether that can be served */
#include <string.h>

#include "base/assert.h"
#include "base/fail.h"
#include "checkpoint/checkpoint.h"
#include "model/config.h"
#include "model/weights.h"
#include "model/weights_int.h"

/* ---- names that change what the model computes ----------------------------------------------- */

static bool ends_with(const char *name, const char *end)
{
    size_t n = strlen(name), m = strlen(end);
    return n >= m && strcmp(name + n - m, end) == 0;
}

fathom_err weights_check_names(const struct checkpoint *c, fathom_diag *d)
{
    for (size_t i = 0; i < checkpoint_n_tensor(c); i++) {
        const char *name = checkpoint_tensor(c, i)->name;
        if (ends_with(name, "layernorm.bias") || strcmp(name, "model.norm.bias") == 0) {
            FAIL(d, FATHOM_EUNSUPPORTED,
                 "%s: a bias of a norm is not read: quantize without anti-outlier shifts", name);
        }
        if (ends_with(name, ".q_rot") || ends_with(name, ".k_rot")) {
            FAIL(d, FATHOM_EUNSUPPORTED,
                 "%s: rotations while the model runs are not read: use a release whose rotations "
                 "are folded into its weights",
                 name);
        }
    }
    return FATHOM_OK;
}

/* ---- forms ----------------------------------------------------------------------------------- */

struct count {
    struct weight_form_count *out;
    size_t n;
    const struct checkpoint *c;
    const struct model_config *config;
};

static fathom_err count_one(void *arg, const struct weight_need *need)
{
    struct count *k = arg;
    struct weight_found found;
    if (need->rule->storage != STORED_LINEAR) return FATHOM_OK;
    if (weights_match(&found, k->c, need, k->config, NULL)) return FATHOM_OK;
    size_t i = 0;
    while (i < k->n &&
           !(k->out[i].kind == need->kind && strcmp(k->out[i].format, found.format->name) == 0 &&
             weight_form_equal(&k->out[i].form, &found.form))) {
        i++;
    }
    if (i == WEIGHT_FORMS_MAX) return FATHOM_OK;
    if (i == k->n) {
        k->out[k->n++] = (struct weight_form_count){
            .kind = need->kind, .format = found.format->name, .form = found.form};
    }
    k->out[i].n_matrix++;
    k->out[i].bytes += weight_form_bytes(&found.form, need->n_row, need->n_col);
    return FATHOM_OK;
}

size_t weights_count_forms(struct weight_form_count out[WEIGHT_FORMS_MAX],
                           const struct checkpoint *c, const struct model_config *config)
{
    struct count k = {.out = out, .c = c, .config = config};
    fathom_err err = weights_walk(config, weights_count_mtp(c, config), count_one, &k);
    ASSERT(err == FATHOM_OK);
    return k.n;
}

/* ---- what is asked for ----------------------------------------------------------------------- */

/* The form of a layer's experts: of gate and up, of down. */
struct expert_form {
    bool is_known;
    uint32_t layer;
    struct weight_form form;
    char name[WEIGHT_NAME_BYTES]; /* of the first matrix */
};

struct served {
    const struct checkpoint *c;
    const struct model_config *config;
    const struct weight_use *use;
    const char *format; /* of the first matrix that is not plain */
    struct expert_form experts[2];
    fathom_diag *d;
};

/* Where experts of a layer are stacks, gates and ups are one and downs another. */
static fathom_err check_experts(struct served *s, const struct weight_need *need,
                                const struct weight_form *form)
{
    char has[WEIGHT_FORM_TEXT_BYTES], first[WEIGHT_FORM_TEXT_BYTES];
    struct expert_form *e = &s->experts[strstr(need->name, ".down_proj.") != NULL];
    if (!s->use->stacks_experts || !strstr(need->name, ".mlp.experts.")) return FATHOM_OK;
    if (!e->is_known || e->layer != need->layer) {
        *e = (struct expert_form){.is_known = true, .layer = need->layer, .form = *form};
        memcpy(e->name, need->name, sizeof e->name);
        return FATHOM_OK;
    }
    if (weight_form_equal(&e->form, form)) return FATHOM_OK;
    FAIL(s->d, FATHOM_EUNSUPPORTED,
         "%s is %s, %s is %s: the %s backend needs %s of a layer's experts in one form: use "
         "--backend cpu, or a release that codes them alike",
         need->name, weight_form_text(has, form), e->name, weight_form_text(first, &e->form),
         s->use->backend_name, e == s->experts ? "gate and up" : "down");
}

/* Whether a form can be multiplied as it is asked for. */
static fathom_err check_form(const struct served *s, const struct weight_need *need,
                             const struct weight_form *form, const char *format)
{
    char text[WEIGHT_FORM_TEXT_BYTES];
    struct weight_part part = weights_part(need, &s->use->parallel);
    if (s->use->takes && !s->use->takes(form)) {
        FAIL(s->d, FATHOM_EUNSUPPORTED,
             "%s is %s (%s), which the %s backend does not multiply: use --backend cpu, or an FP8 "
             "(128 x 128) or BF16 release",
             need->name, weight_form_text(text, form), format, s->use->backend_name);
    }
    if (s->use->fp8_inputs && form->code == CODE_I8) {
        FAIL(s->d, FATHOM_EUNSUPPORTED,
             "%s is %s, whose inputs are not quantized to fp8: use --dtype int8 or bfloat16",
             need->name, weight_form_text(text, form));
    }
    if (s->use->no_int8_groups && form->code == CODE_U4) {
        FAIL(s->d, FATHOM_EUNSUPPORTED,
             "%s is %s, whose inputs the %s backend does not quantize to int8: use --dtype fp8 or "
             "bfloat16",
             need->name, weight_form_text(text, form), s->use->backend_name);
    }
    return weights_check_cut(form, need, &part, s->d);
}

static fathom_err serve_one(void *arg, const struct weight_need *need)
{
    struct served *s = arg;
    struct weight_found found;
    if (need->rule->storage != STORED_LINEAR) return FATHOM_OK;
    if (!s->c) {
        const struct weight_form form = weights_expected_form(s->config, need);
        return check_form(s, need, &form, "made up");
    }
    if (weights_match(&found, s->c, need, s->config, NULL)) return FATHOM_OK; /* bind says it */
    if (found.form.code != CODE_WIDE && !s->format) s->format = found.format->name;
    TRY(check_form(s, need, &found.form, found.format->name));
    TRY(check_experts(s, need, &found.form));
    /* A layer's contents stand for all; weights_bind looks at each. */
    return need->layer == 0 ? weight_format_check_values(&found, need->n_col, s->d) : FATHOM_OK;
}

/* The format that a method's matrices are found in where config.json does not name a method. */
static bool is_format_of(enum quant_method method, const char *format)
{
    static const struct {
        enum quant_method method;
        const char *format;
    } pairs[] = {{QUANT_FP8, "fp8"},
                 {QUANT_AWQ, "awq"},
                 {QUANT_GPTQ, "gptq"},
                 {QUANT_INT8, "int8"},
                 {QUANT_ASCEND, "int8"},
                 {QUANT_W4AFP8, "w4afp8"},
                 {QUANT_MODELOPT, "nvfp4"},
                 {QUANT_MODELOPT, "fp8"},
                 {QUANT_COMPRESSED_TENSORS, "pack-quantized"}};
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        if (pairs[i].method == method && strcmp(pairs[i].format, format) == 0) return true;
    }
    return false;
}

static fathom_err check_method(const struct served *s)
{
    const char *name = s->use->quantization;
    enum quant_method method = quant_method_of(name), has = s->config->quant;
    if (has == method) return FATHOM_OK;
    if (has == QUANT_GPTQ && strcmp(name, "moe_wna16") == 0) return FATHOM_OK;    /* says both */
    if (has == QUANT_NONE && !s->format && method == QUANT_FP8) return FATHOM_OK; /* made so */
    if (has == QUANT_NONE && s->format && is_format_of(method, s->format)) return FATHOM_OK;
    FAIL(s->d, FATHOM_EINVAL,
         "--quantization %s: the checkpoint is \"%s\": leave the option out, the files say what "
         "they "
         "are",
         name,
         has != QUANT_NONE ? s->config->quant_name
         : s->format       ? s->format
                           : "plain");
}

fathom_err weights_check_served(const struct checkpoint *c, const struct model_config *config,
                                const struct weight_use *use, fathom_diag *d)
{
    struct served s = {.c = c, .config = config, .use = use, .d = d};
    if (c) TRY(weights_check_names(c, d));
    TRY(weights_walk(config, c ? weights_count_mtp(c, config) : config->n_mtp, serve_one, &s));
    return c && use->quantization ? check_method(&s) : FATHOM_OK;
}
