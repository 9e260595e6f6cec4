/* cmd_inspect.c - fathom inspect: what a checkpoint is, what it holds, what it lacks
 *
 * Status 0: it can be served. 1: it cannot, and what is printed says why.
 */
#include <stdio.h>
#include <string.h>

#include "base/fail.h"
#include "checkpoint/checkpoint.h"
#include "cli/cli.h"
#include "model/config.h"
#include "model/weights.h"
#include "tokenizer/tokenizer.h"

enum { FAULTS_SHOWN = 20, STATUS_BAD = 1 };

static void print_config(const struct model_config *c)
{
    char a[SIZE_TEXT_BYTES], b[SIZE_TEXT_BYTES], n[SIZE_TEXT_BYTES];
    print_row("architecture", "%s (%s)", c->architecture, c->model_type);
    print_row("layers", "%u: %u dense, the rest with experts; %u MTP", c->n_layer, c->n_dense_layer,
              c->n_mtp);
    print_row("width", "%s; vocabulary %s; context %s tokens", count_text(a, c->hidden),
              count_text(b, c->n_vocab), count_text(n, c->max_position));
    print_row("attention", "%u heads; latents: query %u, key and value %d + %d rotary", c->n_head,
              c->q_lora_rank, MODEL_KV_LORA_RANK, MODEL_QK_ROPE_DIM);
    if (c->has_indexer) {
        print_row("indexer", "%u heads of %d, the %u best tokens are attended to", c->index_n_head,
                  MODEL_INDEX_DIM, c->index_topk);
    }
    print_row("experts", "%u in %u groups, %u of %u groups used; %u active, %u shared", c->n_expert,
              c->n_group, c->topk_group, c->n_group, c->n_expert_used, c->n_shared_expert);
    print_row("activations", "%s", dtype_name(c->dtype));
    print_row("quantization", "%s%s", c->quant_name[0] ? c->quant_name : "none",
              c->scales_are_pow2 ? ", scales are powers of two" : "");
}

static void print_kinds(const struct model_config *config, const struct checkpoint *c)
{
    struct weight_sizes sizes;
    char a[SIZE_TEXT_BYTES], b[SIZE_TEXT_BYTES];
    const struct parallel one = parallel_one();
    weights_measure(&sizes, config, c, &one);
    printf("\n%-20s %12s %18s %9s\n", "kind", "bytes", "parameters", "tensors");
    for (int k = 0; k < WEIGHT_KIND_COUNT; k++) {
        if (sizes.kind[k].n_tensor == 0) continue;
        printf("%-20s %12s %18s %9llu\n", weight_kind_name((enum weight_kind)k),
               size_text(a, sizes.kind[k].bytes), count_text(b, sizes.kind[k].n_parameter),
               (unsigned long long)sizes.kind[k].n_tensor);
    }
    printf("%-20s %12s %18s %9llu\n", "total", size_text(a, sizes.total.bytes),
           count_text(b, sizes.total.n_parameter), (unsigned long long)sizes.total.n_tensor);
}

static void print_forms(const struct model_config *config, const struct checkpoint *c)
{
    struct weight_form_count forms[WEIGHT_FORMS_MAX];
    char text[WEIGHT_FORM_TEXT_BYTES], both[96], size[SIZE_TEXT_BYTES];
    size_t n = weights_count_forms(forms, c, config);
    printf("\n%-20s %12s %38s %9s\n", "matrices", "bytes", "coded as", "number");
    for (size_t i = 0; i < n; i++) {
        const char *form = weight_form_text(text, &forms[i].form);
        bool is_plain = forms[i].form.code == CODE_WIDE;
        (void)snprintf(both, sizeof both, "%s%s%s", is_plain ? "" : forms[i].format,
                       is_plain ? "" : ", ", form);
        printf("%-20s %12s %38s %9llu\n", weight_kind_name(forms[i].kind),
               size_text(size, forms[i].bytes), both, (unsigned long long)forms[i].n_matrix);
    }
}

static void print_dtypes(const struct checkpoint *c)
{
    struct {
        uint64_t bytes;
        size_t n;
    } sums[DTYPE_COUNT] = {{0, 0}};
    char a[SIZE_TEXT_BYTES];
    for (size_t i = 0; i < checkpoint_n_tensor(c); i++) {
        const struct tensor *t = checkpoint_tensor(c, i);
        sums[t->dtype].bytes += t->n_bytes;
        sums[t->dtype].n++;
    }
    printf("\n%-20s %12s %28s\n", "type", "bytes", "tensors");
    for (int t = 0; t < DTYPE_COUNT; t++) {
        if (sums[t].n == 0) continue;
        printf("%-20s %12s %28zu\n", dtype_name((enum dtype)t), size_text(a, sums[t].bytes),
               sums[t].n);
    }
}

static void print_tensors(const struct checkpoint *c)
{
    char a[SIZE_TEXT_BYTES];
    printf("\n");
    for (size_t i = 0; i < checkpoint_n_tensor(c); i++) {
        const struct tensor *t = checkpoint_tensor(c, i);
        printf("%-68s %-8s [", t->name, dtype_name(t->dtype));
        for (uint32_t k = 0; k < t->n_dim; k++) {
            printf("%s%llu", k ? ", " : "", (unsigned long long)t->dim[k]);
        }
        printf("] %s\n", size_text(a, t->n_bytes));
    }
}

/* Counts what a walk reports and prints the first of it. */
struct report {
    size_t n;
};

static void print_fault(void *arg, const char *message)
{
    struct report *r = arg;
    if (r->n++ < FAULTS_SHOWN) printf("  %s\n", message);
}

struct unused {
    size_t n;
    size_t n_copy;
    uint64_t bytes;
};

static void count_unused(void *arg, const struct tensor *t, bool is_copy)
{
    struct unused *u = arg;
    u->n++;
    u->n_copy += is_copy;
    u->bytes += t->n_bytes;
}

/* *fine: nothing that the model needs is missing or wrong. */
static fathom_err print_state(bool *fine, const struct model_config *config,
                              const struct checkpoint *c)
{
    struct report faults = {0};
    struct unused unused = {0};
    char a[SIZE_TEXT_BYTES];
    TRY(weights_each_unused(c, config, count_unused, &unused));
    printf("\n");
    if (unused.n) {
        printf("%zu tensors, %s, are not read; %zu of them are the MTP layer's copies of embedding "
               "and head\n",
               unused.n, size_text(a, unused.bytes), unused.n_copy);
    }
    uint32_t n_mtp = weights_count_mtp(c, config);
    if (n_mtp < config->n_mtp) {
        printf("%u of %u MTP layers are there; the model works without\n", n_mtp, config->n_mtp);
    }
    size_t n = weights_check(c, config, print_fault, &faults);
    if (n > FAULTS_SHOWN) printf("  and %zu more\n", n - FAULTS_SHOWN);
    printf(n ? "%zu tensors are missing or wrong: this checkpoint cannot be served\n"
             : "every tensor that the model needs is there, with its shape and type\n",
           n);
    *fine = n == 0;
    return FATHOM_OK;
}

/* Whether texts can become tokens. */
static bool print_text(const struct invocation *v)
{
    struct text_model text;
    fathom_diag d = {{0}};
    if (text_model_open(&text, v->model, v->settings, &d)) {
        print_row("text", "%s", d.text);
        return false;
    }
    print_row("tokens", "%d; chats as %s, tool calls as %s", (int)tokenizer_n_token(text.tokenizer),
              chat_encoding_name(text.style.encoding), chat_encoding_name(text.style.tool_markup));
    text_model_close(&text);
    return true;
}

/* Whether it can be served by any backend. */
static bool print_refusal(const struct model_config *config, struct checkpoint *c, bool is_dummy)
{
    fathom_diag refused = {{0}};
    struct generation_config generation;
    const struct weight_use use = {.backend_name = "cpu", .parallel = parallel_one()};
    fathom_err err = model_config_check_quant(config, &refused);
    if (!err) err = weights_check_served(is_dummy ? NULL : c, config, &use, &refused);
    if (!err) err = generation_config_load(&generation, c, config->n_vocab, &refused);
    if (err) print_row("refused", "%s", refused.text);
    return !err;
}

/* What there is of weights. *fine as in print_state. */
static fathom_err print_weights(bool *fine, const struct invocation *v,
                                const struct model_config *config, const struct checkpoint *c)
{
    print_forms(config, c);
    print_dtypes(c);
    if (v->settings->tensors) print_tensors(c);
    return print_state(fine, config, c);
}

fathom_err cmd_inspect(const struct invocation *v, fathom_diag *d)
{
    struct checkpoint *c = NULL;
    struct model_config config;
    const bool is_dummy = settings_want_dummy(v->settings);
    bool is_whole = is_dummy;
    fathom_err err;
    TRY_GOTO(model_source_open(&c, v->model, v->settings, d), done);
    TRY_GOTO(model_config_load(&config, c, d), done);
    if (is_dummy) {
        print_row("checkpoint", "%s: weights are made up (--load-format dummy), none are looked at",
                  checkpoint_where(c));
    } else {
        print_row("checkpoint", "%s: %zu shards, %zu tensors", checkpoint_where(c),
                  checkpoint_n_shard(c), checkpoint_n_tensor(c));
    }
    print_config(&config);
    const bool has_text = print_text(v), is_taken = print_refusal(&config, c, is_dummy);
    print_kinds(&config, c);
    if (!is_dummy) TRY_GOTO(print_weights(&is_whole, v, &config, c), done);
    if (!has_text || !is_taken || !is_whole) *v->status = STATUS_BAD;
done:
    checkpoint_close(c);
    return err;
}
