/* evaluation.c - a model's figures over texts */
#include "cli/evaluation.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fail.h"
#include "base/json.h"
#include "base/mem.h"
#include "checkpoint/checkpoint.h"
#include "cli/progress.h"
#include "engine/scorer.h"
#include "model/config.h"
#include "tokenizer/tokenizer.h"

/* ---- one model ------------------------------------------------------------------------------ */

struct subject {
    struct checkpoint *checkpoint;
    struct model_config config;
    struct settings settings; /* the command's, as they are for this model */
};

static fathom_err subject_open(struct subject *s, const struct settings *settings,
                               const struct model_source *m, bool as_stored, fathom_diag *d)
{
    s->settings = *settings;
    s->settings.load_format = "auto";
    if (as_stored) s->settings.quantization = NULL;
    TRY(model_source_open(&s->checkpoint, m, &s->settings, d));
    return model_config_load(&s->config, s->checkpoint, d);
}

static void tell_loading(void *arg, uint64_t done_bytes, uint64_t total_bytes)
{
    progress_tell(arg, done_bytes, total_bytes);
}

static fathom_err open_scorer(struct scorer **out, struct subject *s, const struct model_source *m,
                              uint32_t length, fathom_diag *d)
{
    struct engine_settings resolved;
    struct progress progress;
    fathom_options o;
    engine_options(&o, &s->settings, m);
    o.max_num_seqs = 1;
    o.max_model_len = length;
    o.max_num_batched_tokens = length < SCORER_STEP_TOKENS ? length : SCORER_STEP_TOKENS;
    o.on_load = tell_loading;
    o.on_load_arg = &progress;
    TRY(settings_resolve(&resolved, &o, &s->config, d));
    progress_begin(&progress, "loading");
    fathom_err err = scorer_open(out, &resolved, &s->config, s->checkpoint, d);
    progress_end(&progress);
    return err;
}

/* ---- passes --------------------------------------------------------------------------------- */

/* A walk of one model over all pieces. */
struct pass {
    struct scorer *scorer;
    const struct evaluation_texts *texts;
    const char *name; /* of the model, for messages */
    uint32_t n_vocab;
    float *logits;           /* [step][n_vocab] */
    float *other;            /* [n_vocab] */
    FILE *scratch;           /* logits of the scored rows in their order; NULL: none */
    struct likelihood *rows; /* NULL: write to the scratch file, else read from it */
    size_t n_row;
    struct progress progress;
    uint64_t n_done; /* tokens */
    fathom_diag *d;
};

static fathom_err scratch_failed(const struct pass *p)
{
    FAIL(p->d, FATHOM_EIO,
         "the file of logits in --scratch-dir failed: %s; it takes 4 bytes for each of %llu "
         "predicted tokens and %u entries of the vocabulary: name a larger disk, or give --samples",
         strerror(errno), (unsigned long long)p->texts->n_scored, p->n_vocab);
}

/* The row that predicts `next`. */
static fathom_err take_row(struct pass *p, const float *logits, int32_t next)
{
    if (!p->rows) {
        bool ok = fwrite(logits, sizeof *logits, p->n_vocab, p->scratch) == p->n_vocab;
        return ok ? FATHOM_OK : scratch_failed(p);
    }
    if (p->scratch && fread(p->other, sizeof *p->other, p->n_vocab, p->scratch) != p->n_vocab) {
        return scratch_failed(p);
    }
    fathom_err err =
        likelihood_of(&p->rows[p->n_row++], logits, p->scratch ? p->other : NULL, p->n_vocab, next);
    if (err) {
        FAIL(p->d, err, "%s: a logit is not a number: its weights or its activations overflow",
             p->name);
    }
    return FATHOM_OK;
}

static fathom_err walk_piece(struct pass *p, const struct text_piece *piece)
{
    const int32_t *ids = p->texts->ids.ids + piece->at;
    const uint32_t step = scorer_step_tokens(p->scorer);
    scorer_begin(p->scorer);
    for (uint32_t i = 0; i + 1 < piece->n; i += step) {
        uint32_t n = piece->n - 1 - i < step ? piece->n - 1 - i : step;
        fathom_err err = scorer_step(p->scorer, ids + i, n, p->logits);
        if (err) FAIL(p->d, err, "%s: the device failed in a step of %u tokens", p->name, n);
        for (uint32_t t = 0; t < n; t++) {
            if (i + t + 1 < piece->first) continue;
            TRY(take_row(p, p->logits + (size_t)t * p->n_vocab, ids[i + t + 1]));
        }
        p->n_done += n;
        progress_tell(&p->progress, p->n_done, p->texts->ids.n);
    }
    return FATHOM_OK;
}

static fathom_err walk(struct pass *p)
{
    const size_t n = (size_t)scorer_step_tokens(p->scorer) * p->n_vocab;
    fathom_err err = FATHOM_OK;
    p->logits = mem_alloc_array(n, sizeof *p->logits);
    p->other = mem_alloc_array(p->n_vocab, sizeof *p->other);
    if (!p->logits || !p->other) {
        err = diag_fail(p->d, FATHOM_ENOMEM, "no memory for %zu logits", n);
    }
    progress_begin(&p->progress, p->rows ? "scoring" : "scoring the other model");
    p->progress.unit = "tokens";
    for (size_t i = 0; i < p->texts->n_piece && !err; i++) {
        err = walk_piece(p, &p->texts->pieces[i]);
    }
    progress_end(&p->progress);
    mem_free(p->logits);
    mem_free(p->other);
    if (!err && !p->rows && fflush(p->scratch) != 0) err = scratch_failed(p);
    return err;
}

/* A file that is gone when it is closed. */
static fathom_err open_scratch(FILE **out, const char *dir, fathom_diag *d)
{
    char path[LIMIT_PATH_BYTES];
    int n = snprintf(path, sizeof path, "%s/fathom-logits-XXXXXX", dir);
    int fd = n > 0 && (size_t)n < sizeof path ? mkstemp(path) : -1;
    *out = fd >= 0 ? fdopen(fd, "w+b") : NULL;
    if (!*out) {
        FAIL(d, FATHOM_EIO, "--scratch-dir %s: no file can be made there: %s", dir,
             strerror(errno));
    }
    (void)remove(path);
    return FATHOM_OK;
}

/* ---- the whole ------------------------------------------------------------------------------ */

/* What evaluation_run holds. */
struct evaluating {
    const struct evaluation_order *order;
    struct subject model, against;
    struct evaluation_texts texts;
    uint32_t length;
    FILE *scratch;
    struct likelihood *rows;
};

static fathom_err read_texts(struct evaluating *e, fathom_diag *d)
{
    const struct settings *s = e->order->settings;
    struct text_model text;
    uint32_t longest = e->model.config.max_position;
    if (e->order->against && e->against.config.max_position < longest)
        longest = e->against.config.max_position;
    e->length = s->length < longest ? (uint32_t)s->length : longest;
    TRY(text_model_open(&text, e->order->model, &e->model.settings, d));
    const struct texts_order order = {.files = &s->texts_files,
                                      .tokenizer = text.tokenizer,
                                      .bos_id = e->model.config.bos_id,
                                      .n_vocab = e->model.config.n_vocab,
                                      .length = e->length,
                                      .n_sample = (uint64_t)s->samples};
    fathom_err err = evaluation_texts_read(&e->texts, &order, d);
    text_model_close(&text);
    return err;
}

static fathom_err run_pass(struct evaluating *e, struct subject *s, const struct model_source *m,
                           bool keeps, struct evaluation *out, fathom_diag *d)
{
    struct pass p = {.texts = &e->texts,
                     .name = checkpoint_where(s->checkpoint),
                     .n_vocab = s->config.n_vocab,
                     .scratch = e->scratch,
                     .rows = keeps ? NULL : e->rows,
                     .d = d};
    TRY(open_scorer(&p.scorer, s, m, e->length, d));
    (void)snprintf(out->device, sizeof out->device, "%s, %s", scorer_backend_name(p.scorer),
                   scorer_device(p.scorer));
    fathom_err err = walk(&p);
    scorer_close(p.scorer);
    return err;
}

static fathom_err open_against(struct evaluating *e, fathom_diag *d)
{
    const struct evaluation_order *o = e->order;
    if (!o->against) return FATHOM_OK;
    TRY(subject_open(&e->against, o->settings, o->against, true, d));
    if (e->against.config.n_vocab == e->model.config.n_vocab) return FATHOM_OK;
    FAIL(d, FATHOM_EINVAL, "--against %s has a vocabulary of %u, %s one of %u: they must be equal",
         checkpoint_where(e->against.checkpoint), e->against.config.n_vocab,
         checkpoint_where(e->model.checkpoint), e->model.config.n_vocab);
}

static fathom_err run(struct evaluating *e, struct evaluation *out, fathom_diag *d)
{
    const struct evaluation_order *o = e->order;
    TRY(subject_open(&e->model, o->settings, o->model, false, d));
    TRY(open_against(e, d));
    TRY(read_texts(e, d));
    e->rows = mem_alloc_array((size_t)e->texts.n_scored, sizeof *e->rows);
    if (!e->rows) FAIL(d, FATHOM_ENOMEM, "no memory for the figures of the texts");
    if (o->against) {
        TRY(open_scratch(&e->scratch, o->settings->scratch_dir, d));
        TRY(run_pass(e, &e->against, o->against, true, out, d));
        rewind(e->scratch);
    }
    TRY(run_pass(e, &e->model, o->model, false, out, d));
    (void)snprintf(out->model, sizeof out->model, "%s", o->model->name);
    if (o->against) (void)snprintf(out->against, sizeof out->against, "%s", o->against->name);
    out->n_text = e->texts.n_piece;
    out->n_token = e->texts.ids.n;
    out->length = e->length;
    return likelihood_summarize(&out->figures, e->rows, (size_t)e->texts.n_scored);
}

fathom_err evaluation_run(struct evaluation *out, const struct evaluation_order *order,
                          fathom_diag *d)
{
    struct evaluating e = {.order = order};
    memset(out, 0, sizeof *out);
    fathom_err err = run(&e, out, d);
    if (e.scratch) (void)fclose(e.scratch);
    mem_free(e.rows);
    evaluation_texts_free(&e.texts);
    checkpoint_close(e.against.checkpoint);
    checkpoint_close(e.model.checkpoint);
    return err;
}

/* ---- what is said --------------------------------------------------------------------------- */

void evaluation_print(const struct evaluation *e)
{
    const struct likelihood_summary *f = &e->figures;
    char a[SIZE_TEXT_BYTES], b[SIZE_TEXT_BYTES], c[SIZE_TEXT_BYTES];
    print_row("model", "%s (%s)", e->model, e->device);
    print_row("texts", "%s pieces of at most %u tokens, %s tokens, %s of them predicted",
              count_text(a, e->n_text), e->length, count_text(b, e->n_token), count_text(c, f->n));
    print_row("perplexity", "%.4f +- %.4f", f->perplexity, f->perplexity_error);
    if (!e->against[0]) return;
    print_row("against", "%s: perplexity %.4f, ratio %.5f", e->against, f->perplexity_against,
              f->perplexity / f->perplexity_against);
    print_row("KL divergence",
              "mean %.6f +- %.6f nats; median %.6f, 90 %% %.6f, 99 %% %.6f, "
              "99.9 %% %.6f, largest %.6f",
              f->kl_mean, f->kl_error, f->kl_median, f->kl_90, f->kl_99, f->kl_999, f->kl_max);
    print_row("same top token", "%.3f %%", 100 * f->same_top);
    print_row("probability", "of the text's tokens changes by %.4f (root of the mean square)",
              f->p_change_rms);
}

fathom_err evaluation_json(struct buf *out, const struct evaluation *e)
{
    const struct likelihood_summary *f = &e->figures;
    json_t *root =
        json_pack("{s:s, s:s, s:I, s:I, s:I, s:I, s:f, s:f}", "model", e->model, "device",
                  e->device, "texts", (json_int_t)e->n_text, "length", (json_int_t)e->length,
                  "tokens", (json_int_t)e->n_token, "predicted", (json_int_t)f->n, "perplexity",
                  f->perplexity, "perplexity_error", f->perplexity_error);
    if (root && e->against[0]) {
        json_t *kl = json_pack("{s:f, s:f, s:f, s:f, s:f, s:f, s:f}", "mean", f->kl_mean, "error",
                               f->kl_error, "median", f->kl_median, "p90", f->kl_90, "p99",
                               f->kl_99, "p99.9", f->kl_999, "max", f->kl_max);
        json_t *other = json_pack("{s:s, s:f, s:o, s:f, s:f}", "model", e->against, "perplexity",
                                  f->perplexity_against, "kl", kl, "same_top", f->same_top,
                                  "probability_change_rms", f->p_change_rms);
        if (!other || json_object_set_new(root, "against", other)) {
            json_decref(root);
            root = NULL;
        }
    }
    if (!root) return FATHOM_ENOMEM;
    fathom_err err = json_write_python(out, root);
    json_decref(root);
    return err;
}
