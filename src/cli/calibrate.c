/* calibrate.c - texts through a model's layers
 *
 * All texts go through a layer before the next one is loaded. Between layers the residual stream
 * lies in a file of the target's folder; a layer is done when its rows and the stream after it have
 * their names, in that order, and a walk that ended before goes on behind the last such layer.
 */
#include "cli/calibrate.h"

#include <stdio.h>
#include <string.h>

#include "base/fail.h"
#include "base/mem.h"
#include "base/new_file.h"
#include "base/sha256.h"
#include "checkpoint/checkpoint.h"
#include "cli/evaluation_texts.h"
#include "cli/progress.h"
#include "engine/layer_runner.h"
#include "engine/settings.h"
#include "model/config.h"
#include "quantize/calibration.h"
#include "tokenizer/tokenizer.h"

struct calibration {
    struct checkpoint *checkpoint; /* borrowed */
    const struct model_config *config;
    struct evaluation_texts texts;
    struct engine_settings engine;
    struct convert_calibration order; /* points here */
    char text[192];
};

struct walk {
    const struct calibration *c;
    const char *dir;
    struct layer_runner *runner;
    struct file_map stream;        /* before the layer; none before the first */
    struct new_file rows, written; /* of the layer; the stream after it */
    struct calibration_shape shape;
    float *x, *normed; /* [step][hidden] */
    uint16_t *experts; /* [step][n_used] */
    struct progress progress;
    uint64_t n_done; /* tokens times layers */
    fathom_diag *d;
};

static fathom_err stream_path(char out[LIMIT_PATH_BYTES], const char *dir, uint32_t layer)
{
    char name[64];
    (void)snprintf(name, sizeof name, "quantize_stream_%u", layer);
    return path_join(out, LIMIT_PATH_BYTES, dir, name);
}

static uint64_t stream_bytes(const struct calibration *c)
{
    return c->order.n_row * c->config->hidden * sizeof(float);
}

static struct calibration_shape shape_of(const struct calibration *c, uint32_t layer)
{
    return (struct calibration_shape){
        .n_row = c->order.n_row,
        .hidden = c->config->hidden,
        .n_used = model_config_layer_is_moe(c->config, layer) ? c->config->n_expert_used : 0};
}

/* ---- a layer --------------------------------------------------------------------------------- */

static fathom_err step(struct walk *w, const int32_t *ids, uint64_t row, uint32_t n, bool is_last)
{
    const uint32_t hidden = w->c->config->hidden;
    const size_t n_value = (size_t)n * hidden;
    if (w->stream.data) {
        memcpy(w->x, (const float *)w->stream.data + row * hidden, n_value * sizeof *w->x);
    } else {
        layer_runner_embed(w->runner, ids, n, w->x);
    }
    fathom_err err = layer_runner_step(w->runner, n, w->x, w->normed, w->experts);
    if (err) FAIL(w->d, err, "the device failed in a step of %u tokens", n);
    TRY(calibration_write(&w->rows, &w->shape, row, n, w->normed, w->experts, w->d));
    w->n_done += n;
    progress_tell(&w->progress, w->n_done, w->c->order.n_row * w->c->config->n_layer);
    if (is_last) return FATHOM_OK;
    return new_file_write(&w->written, w->x, n_value * sizeof *w->x, row * hidden * sizeof *w->x,
                          w->d);
}

static fathom_err walk_texts(struct walk *w, bool is_last)
{
    const struct evaluation_texts *t = &w->c->texts;
    const uint32_t most = layer_runner_step_tokens(w->runner);
    uint64_t row = 0;
    for (size_t i = 0; i < t->n_piece; i++) {
        const struct text_piece *piece = &t->pieces[i];
        layer_runner_begin(w->runner);
        for (uint32_t k = 0; k < piece->n; k += most) {
            const uint32_t n = piece->n - k < most ? piece->n - k : most;
            TRY(step(w, t->ids.ids + piece->at + k, row, n, is_last));
            row += n;
        }
    }
    return FATHOM_OK;
}

static fathom_err open_files(struct walk *w, uint32_t layer, bool is_last)
{
    char path[LIMIT_PATH_BYTES];
    if (layer > 0) {
        TRY(stream_path(path, w->dir, layer));
        TRY(file_map_open(&w->stream, path, w->d));
        if (w->stream.size != stream_bytes(w->c)) {
            FAIL(w->d, FATHOM_EFORMAT, "%s has %zu bytes, needed are %llu: remove it and --resume",
                 path, w->stream.size, (unsigned long long)stream_bytes(w->c));
        }
    }
    TRY(calibration_path(path, w->dir, layer));
    TRY(new_file_begin(&w->rows, path, w->d));
    if (is_last) return FATHOM_OK;
    TRY(stream_path(path, w->dir, layer + 1));
    return new_file_begin(&w->written, path, w->d);
}

static fathom_err walk_layer(struct walk *w, uint32_t layer)
{
    const bool is_last = layer + 1 == w->c->config->n_layer;
    char path[LIMIT_PATH_BYTES];
    w->shape = shape_of(w->c, layer);
    TRY(layer_runner_load(w->runner, layer, w->d));
    checkpoint_let_go(w->c->checkpoint);
    fathom_err err = open_files(w, layer, is_last);
    if (!err) err = walk_texts(w, is_last);
    file_map_close(&w->stream);
    if (!err) err = new_file_end(&w->rows, w->d);
    if (!err && !is_last) err = new_file_end(&w->written, w->d);
    if (err) {
        new_file_drop(&w->rows);
        new_file_drop(&w->written);
        return err;
    }
    TRY(stream_path(path, w->dir, layer));
    return file_remove(path, w->d);
}

/* ---- all layers ------------------------------------------------------------------------------ */

/* The first layer that is not done; n_layer: all are. */
static fathom_err first_layer(const struct calibration *c, const char *dir, uint32_t *out)
{
    char path[LIMIT_PATH_BYTES];
    TRY(calibration_path(path, dir, c->config->n_layer - 1));
    *out = path_exists(path) ? c->config->n_layer : 0;
    for (uint32_t i = c->config->n_layer - 1; *out == 0 && i > 0; i--) {
        TRY(stream_path(path, dir, i));
        if (path_exists(path)) *out = i;
    }
    return FATHOM_OK;
}

static fathom_err check_room(const struct calibration *c, const char *dir, uint32_t first,
                             fathom_diag *d)
{
    char a[SIZE_TEXT_BYTES], b[SIZE_TEXT_BYTES];
    uint64_t room, need = 2 * stream_bytes(c);
    TRY(disk_free_bytes(dir, &room, d));
    for (uint32_t i = first; i < c->config->n_layer; i++) {
        const struct calibration_shape s = shape_of(c, i);
        need += calibration_bytes(&s);
    }
    if (need <= room) return FATHOM_OK;
    FAIL(d, FATHOM_ELIMIT,
         "%s: the disk has room for %s, what the calibration texts give takes %s: give fewer "
         "--calibration-samples",
         dir, size_text(a, room), size_text(b, need));
}

static fathom_err walk_layers(struct walk *w, uint32_t first)
{
    const struct calibration *c = w->c;
    TRY(layer_runner_open(&w->runner, &c->engine, c->config, c->checkpoint, w->d));
    const size_t n = layer_runner_step_tokens(w->runner);
    w->x = mem_alloc_array(n * c->config->hidden, sizeof *w->x);
    w->normed = mem_alloc_array(n * c->config->hidden, sizeof *w->normed);
    w->experts = mem_alloc_array(n * c->config->n_expert_used + 1, sizeof *w->experts);
    if (!w->x || !w->normed || !w->experts) {
        FAIL(w->d, FATHOM_ENOMEM, "no memory for a step of %zu tokens", n);
    }
    w->n_done = first * c->order.n_row;
    for (uint32_t i = first; i < c->config->n_layer; i++) TRY(walk_layer(w, i));
    return FATHOM_OK;
}

/* convert_calibration.make */
static fathom_err make(void *arg, const char *dir, fathom_diag *d)
{
    const struct calibration *c = arg;
    struct walk w = {.c = c, .dir = dir, .d = d, .rows = {.fd = -1}, .written = {.fd = -1}};
    char path[LIMIT_PATH_BYTES];
    uint32_t first;
    TRY(first_layer(c, dir, &first));
    if (first < c->config->n_layer) {
        TRY(check_room(c, dir, first, d));
        progress_begin(&w.progress, "calibrating");
        w.progress.unit = "tokens";
        fathom_err err = walk_layers(&w, first);
        progress_end(&w.progress);
        layer_runner_close(w.runner);
        mem_free(w.x);
        mem_free(w.normed);
        mem_free(w.experts);
        return err;
    }
    TRY(stream_path(path, dir, c->config->n_layer - 1)); /* left by a break right before the end */
    return file_remove(path, d);
}

/* ---- beginning ------------------------------------------------------------------------------- */

static fathom_err read_texts(struct calibration *c, const struct settings *s,
                             const struct model_source *model, fathom_diag *d)
{
    struct text_model text;
    const uint32_t longest = c->config->max_position;
    TRY(text_model_open(&text, model, s, d));
    const struct texts_order order = {.files = &s->calibration_files,
                                      .tokenizer = text.tokenizer,
                                      .bos_id = c->config->bos_id,
                                      .n_vocab = c->config->n_vocab,
                                      .length = s->length < longest ? (uint32_t)s->length : longest,
                                      .n_sample = (uint64_t)s->calibration_samples};
    fathom_err err = evaluation_texts_read(&c->texts, &order, d);
    text_model_close(&text);
    return err;
}

static fathom_err resolve_engine(struct calibration *c, const struct settings *s,
                                 const struct model_source *model, fathom_diag *d)
{
    fathom_options o;
    uint32_t longest = 2;
    for (size_t i = 0; i < c->texts.n_piece; i++) {
        if (c->texts.pieces[i].n > longest) longest = c->texts.pieces[i].n;
    }
    engine_options(&o, s, model);
    o.max_num_seqs = 1;
    o.max_model_len = longest;
    o.max_num_batched_tokens =
        longest < LAYER_RUNNER_STEP_TOKENS ? longest : LAYER_RUNNER_STEP_TOKENS;
    return settings_resolve(&c->engine, &o, c->config, d);
}

/* What rows depend on, in words. */
static void name_order(struct calibration *c)
{
    static const char *const types[] = {
        [ACT_F32] = "float32", [ACT_BF16] = "bfloat16", [ACT_FP8] = "fp8", [ACT_INT8] = "int8"};
    const struct token_list *ids = &c->texts.ids;
    const struct sha256 h = sha256_of(ids->ids, ids->n * sizeof *ids->ids);
    char hex[33];
    for (int i = 0; i < 16; i++) (void)snprintf(hex + 2 * i, 3, "%02x", h.bytes[i]);
    (void)snprintf(c->text, sizeof c->text, "%zu texts, %zu tokens, sha256 %s, %s on %s",
                   c->texts.n_piece, ids->n, hex, types[c->engine.limits.act],
                   c->engine.backend == FATHOM_BACKEND_CUDA ? "cuda" : "the processor");
}

fathom_err calibration_begin(struct calibration **out, const struct settings *settings,
                             const struct model_source *model, struct checkpoint *checkpoint,
                             const struct model_config *config, fathom_diag *d)
{
    *out = NULL;
    if (settings->calibration_files.n == 0) {
        FAIL(d, FATHOM_EINVAL,
             "--method %s asks what matrices read: give texts of the kind that will be served with "
             "--calibration FILE",
             settings->method);
    }
    struct calibration *c = mem_calloc(1, sizeof *c);
    if (!c) FAIL(d, FATHOM_ENOMEM, "no memory for calibration");
    c->checkpoint = checkpoint;
    c->config = config;
    fathom_err err = read_texts(c, settings, model, d);
    if (!err) err = resolve_engine(c, settings, model, d);
    if (err) {
        calibration_end(c);
        return err;
    }
    name_order(c);
    c->order = (struct convert_calibration){
        .text = c->text, .n_row = c->texts.ids.n, .make = make, .arg = c};
    *out = c;
    return FATHOM_OK;
}

void calibration_end(struct calibration *c)
{
    if (!c) return;
    evaluation_texts_free(&c->texts);
    mem_free(c);
}

const struct convert_calibration *calibration_order(const struct calibration *c)
{
    return &c->order;
}
