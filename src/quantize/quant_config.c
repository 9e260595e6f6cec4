/* quant_config.c - config.json of a converted checkpoint */
#include "quantize/quant_config.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/fail.h"
#include "base/json.h"
#include "checkpoint/safetensors.h"

enum {
    IGNORED = 0,
    GROUPS_MAX = 8,
    PATTERNS_MAX = 256,
    NAME_BYTES = 256,
};

/* Modules whose names differ in the numbers of layers and experts alone. */
struct pattern {
    char text[NAME_BYTES]; /* a regular expression */
    int group;             /* IGNORED, or 1 + a group; -1: not all alike */
};

struct describing {
    const struct plan *plan;
    struct weight_form forms[GROUPS_MAX]; /* of groups from the second on: FP8 that is left */
    int n_group;                          /* the first is what the scheme makes */
    struct pattern patterns[PATTERNS_MAX];
    size_t n_pattern;
    json_t *targets[GROUPS_MAX];
    json_t *ignore;
    fathom_diag *d;
};

/* "model.layers.3.mlp.experts.7.up_proj" is ".*\.layers\.\d+\.mlp\.experts\.\d+\.up_proj$". */
static void make_pattern(char out[NAME_BYTES], const char *module)
{
    size_t n = 0;
    bool at_start = true;
    const char *p = module;
    if (strncmp(p, "model.", 6) == 0) {
        n = (size_t)snprintf(out, NAME_BYTES, "re:.*\\.");
        p += 6;
    } else {
        n = (size_t)snprintf(out, NAME_BYTES, "re:.*");
    }
    while (*p && n + 8 < NAME_BYTES) {
        if (at_start && isdigit((unsigned char)*p)) {
            while (isdigit((unsigned char)*p)) p++;
            memcpy(out + n, "\\d+", 3);
            n += 3;
            continue;
        }
        at_start = *p == '.';
        if (*p == '.') out[n++] = '\\';
        out[n++] = *p++;
    }
    out[n++] = '$';
    out[n] = '\0';
}

static int group_of(struct describing *x, const struct plan_matrix *m)
{
    if (m->is_quantized) return 1;
    if (m->form.code != CODE_E4M3) return IGNORED;
    for (int i = 1; i < x->n_group; i++) {
        if (x->forms[i].block_row == m->form.block_row) return 1 + i;
    }
    ASSERT(x->n_group < GROUPS_MAX);
    x->forms[x->n_group] = m->form;
    return ++x->n_group;
}

static fathom_err note(struct describing *x, const char *module, int group)
{
    char text[NAME_BYTES];
    make_pattern(text, module);
    for (size_t i = 0; i < x->n_pattern; i++) {
        if (strcmp(x->patterns[i].text, text) != 0) continue;
        if (x->patterns[i].group != group) x->patterns[i].group = -1;
        return FATHOM_OK;
    }
    if (x->n_pattern == PATTERNS_MAX) {
        FAIL(x->d, FATHOM_ELIMIT, "modules of more than %d kinds", PATTERNS_MAX);
    }
    memcpy(x->patterns[x->n_pattern].text, text, sizeof text);
    x->patterns[x->n_pattern++].group = group;
    return FATHOM_OK;
}

static fathom_err name_to(struct describing *x, const char *name, int group)
{
    json_t *list = group == IGNORED ? x->ignore : x->targets[group - 1];
    if (json_array_append_new(list, json_string(name))) {
        FAIL(x->d, FATHOM_ENOMEM, "no memory for config.json");
    }
    return FATHOM_OK;
}

/* Matrices of the source that are no linear weight of the table, and Linear to others: the head,
 * the router, the draft layer's projection, what the model does not read. */
typedef fathom_err module_visit(struct describing *x, const char *module, int group);

static fathom_err each_module(struct describing *x, module_visit *visit)
{
    const struct plan *p = x->plan;
    for (size_t i = 0; i < p->n_matrix; i++) {
        TRY(visit(x, p->matrices[i].name, group_of(x, &p->matrices[i])));
    }
    for (size_t i = 0; i < p->n_shard; i++) {
        for (size_t k = 0; k < p->shards[i].n_item; k++) {
            const struct plan_item *item = &p->shards[i].items[k];
            char module[NAME_BYTES];
            size_t n = strlen(item->name);
            if (item->is_linear || item->source->n_dim != 2 || n >= sizeof module) continue;
            if (n < 7 || strcmp(item->name + n - 7, ".weight") != 0) continue;
            if (strstr(item->name, "embed_tokens")) continue;
            memcpy(module, item->name, n - 7);
            module[n - 7] = '\0';
            TRY(visit(x, module, IGNORED));
        }
    }
    return FATHOM_OK;
}

/* Names every module of a pattern whose modules are not treated alike. */
static fathom_err name_apart(struct describing *x, const char *module, int group)
{
    char text[NAME_BYTES];
    make_pattern(text, module);
    for (size_t i = 0; i < x->n_pattern; i++) {
        if (strcmp(x->patterns[i].text, text) == 0 && x->patterns[i].group == -1) {
            return name_to(x, module, group);
        }
    }
    return FATHOM_OK;
}

static fathom_err fill_lists(struct describing *x)
{
    TRY(each_module(x, note));
    for (int i = 0; i < x->n_group; i++) {
        x->targets[i] = json_array();
        if (!x->targets[i]) FAIL(x->d, FATHOM_ENOMEM, "no memory for config.json");
    }
    x->ignore = json_array();
    if (!x->ignore) FAIL(x->d, FATHOM_ENOMEM, "no memory for config.json");
    for (size_t i = 0; i < x->n_pattern; i++) {
        if (x->patterns[i].group == -1) continue;
        const bool is_head = strcmp(x->patterns[i].text, "re:.*lm_head$") == 0;
        TRY(name_to(x, is_head ? "lm_head" : x->patterns[i].text, x->patterns[i].group));
    }
    return each_module(x, name_apart);
}

/* ---- the JSON -------------------------------------------------------------------------------- */

static json_t *weights_of(const struct quant_scheme *s)
{
    if (s->code == CODE_U4) {
        return json_pack("{s:i, s:s, s:b, s:s, s:i, s:n, s:b}", "num_bits", 4, "type", "int",
                         "symmetric", !s->asymmetric, "strategy", "group", "group_size",
                         (int)s->group, "actorder", "dynamic", 0);
    }
    const bool is_fp8 = s->code == CODE_E4M3;
    json_t *w = json_pack("{s:i, s:s, s:b, s:s, s:b}", "num_bits", 8, "type",
                          is_fp8 ? "float" : "int", "symmetric", 1, "strategy",
                          is_fp8 && s->is_block ? "block" : "channel", "dynamic", 0);
    if (w && is_fp8 && s->is_block) {
        json_object_set_new(w, "block_structure", json_pack("[i, i]", 128, 128));
    }
    return w;
}

static json_t *inputs_of(const struct quant_scheme *s)
{
    if (s->code == CODE_U4) return json_null();
    const bool is_fp8 = s->code == CODE_E4M3;
    json_t *w = json_pack("{s:i, s:s, s:b, s:s, s:b}", "num_bits", 8, "type",
                          is_fp8 ? "float" : "int", "symmetric", 1, "strategy",
                          is_fp8 && s->is_block ? "group" : "token", "dynamic", 1);
    if (w && is_fp8 && s->is_block) json_object_set_new(w, "group_size", json_integer(128));
    return w;
}

static const char *format_of(const struct quant_scheme *s)
{
    return s->code == CODE_U4   ? "pack-quantized"
           : s->code == CODE_I8 ? "int-quantized"
                                : "float-quantized";
}

static struct quant_scheme scheme_of(const struct describing *x, int group)
{
    if (group == 0) return x->plan->scheme;
    return (struct quant_scheme){.code = CODE_E4M3, .is_block = x->forms[group].block_row > 1};
}

static json_t *make_groups(const struct describing *x)
{
    json_t *groups = json_object();
    for (int i = 0; i < x->n_group && groups; i++) {
        const struct quant_scheme s = scheme_of(x, i);
        char name[24];
        (void)snprintf(name, sizeof name, "group_%d", i);
        json_t *targets = x->n_group == 1 ? json_pack("[s]", "Linear") : json_incref(x->targets[i]);
        json_t *group = json_pack("{s:o, s:o, s:o, s:n, s:s}", "targets", targets, "weights",
                                  weights_of(&s), "input_activations", inputs_of(&s),
                                  "output_activations", "format", format_of(&s));
        if (!group || json_object_set_new(groups, name, group)) {
            json_decref(groups);
            return NULL;
        }
    }
    return groups;
}

static json_t *make_config(const struct describing *x)
{
    json_t *groups = make_groups(x);
    if (!groups) return NULL;
    return json_pack("{s:s, s:s, s:s, s:o, s:O, s:n}", "quant_method", "compressed-tensors",
                     "format", x->n_group > 1 ? "mixed-precision" : format_of(&x->plan->scheme),
                     "quantization_status", "compressed", "config_groups", groups, "ignore",
                     x->ignore, "kv_cache_scheme");
}

fathom_err quant_config_write(struct buf *out, const struct plan *plan, const char *text, size_t n,
                              fathom_diag *d)
{
    struct describing x = {.plan = plan, .n_group = 1, .d = d};
    json_t *root = NULL, *made = NULL;
    fathom_err err;
    TRY(json_read(text, n, "config.json", &root, d));
    TRY_GOTO(fill_lists(&x), done);
    made = make_config(&x);
    if (!made || json_object_set(root, "quantization_config", made)) {
        err = diag_fail(d, FATHOM_ENOMEM, "no memory for config.json");
        goto done;
    }
    char *dump = json_dumps(root, JSON_INDENT(2));
    err = dump ? buf_add_str(out, dump) : diag_fail(d, FATHOM_ENOMEM, "no memory for config.json");
    if (dump) free(dump);
    if (!err) err = buf_add_char(out, '\n');
done:
    for (int i = 0; i < GROUPS_MAX; i++) json_decref(x.targets[i]);
    json_decref(x.ignore);
    json_decref(made);
    json_decref(root);
    return err;
}
