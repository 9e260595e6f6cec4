/* convert.c - a checkpoint to a quantized one, shard by shard
 *
 *   a shard:   x.safetensors.part -> written, fsync -> x.safetensors -> named in the journal
 *   the end:   tokenizer and the like, the index, config.json, the report; the journal goes last
 */
#include "quantize/convert.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/fail.h"
#include "base/json.h"
#include "base/new_file.h"
#include "base/os.h"
#include "base/size_text.h"
#include "base/thread.h"
#include "checkpoint/checkpoint.h"
#include "quantize/calibration.h"
#include "quantize/matrix.h"
#include "quantize/quant_config.h"
#include "quantize/tune.h"

#define INDEX_FILE "model.safetensors.index.json"
#define SINGLE_FILE "model.safetensors"

enum { PIECE_BYTES = 16 << 20 };

struct converting {
    const struct convert_order *order;
    struct convert_result *out;
    struct model_weights weights;
    struct plan plan;
    struct journal journal;
    struct thread_pool *pool;
    struct matrix_room room;
    struct tuner *tuner; /* NULL: the method does not calibrate */
    struct convert_progress progress;
    char worst_name[JOURNAL_NAME_BYTES];
    fathom_diag *d;
};

static void tell(struct converting *x, uint64_t n_bytes)
{
    x->progress.done_bytes += n_bytes;
    if (x->order->on_progress) x->order->on_progress(x->order->progress_arg, &x->progress);
}

/* Matrices that are done, one or a shard's. */
static void count_done(struct converting *x, const struct journal_sums *s)
{
    x->progress.n_done += s->n_matrix;
    if (s->n_matrix == 0 || s->worst <= x->progress.worst) return;
    x->progress.worst = s->worst;
    memcpy(x->worst_name, s->worst_name, sizeof x->worst_name);
}

/* ---- a shard --------------------------------------------------------------------------------- */

static fathom_err copy_bytes(struct converting *x, struct new_file *f, const struct plan_item *item,
                             uint64_t at)
{
    const char *from = item->source->data;
    for (uint64_t i = 0; i < item->n_bytes; i += PIECE_BYTES) {
        const uint64_t n = item->n_bytes - i < PIECE_BYTES ? item->n_bytes - i : PIECE_BYTES;
        TRY(new_file_write(f, from + i, n, at + i, x->d));
        tell(x, n);
    }
    return FATHOM_OK;
}

static unsigned index_of(unsigned bit)
{
    unsigned i = 0;
    while (bit >> i != 1) i++;
    ASSERT(i < JOURNAL_TARGETS);
    return i;
}

static fathom_err quantize_item(struct converting *x, struct new_file *f,
                                const struct plan_item *item, uint64_t at,
                                struct journal_sums *sums)
{
    const struct plan_matrix *m = &x->plan.matrices[item->i_matrix];
    const struct plan_parts parts = plan_parts_of(&x->plan.scheme, m->view->n_row, m->view->n_col);
    const uint64_t n = parts.codes + parts.scales + parts.zeros + parts.shape;
    struct matrix_order order = {.name = m->name, .view = m->view, .scheme = &x->plan.scheme};
    struct journal_sums one = {.n_matrix = 1, .out_bytes = n};
    enum tuned how = TUNED_NOT;
    if (x->tuner) TRY(tuner_matrix(x->tuner, item->i_matrix, &order, &how, x->d));
    one.n_tuned = how != TUNED_NOT;
    one.n_few = how == TUNED_FEW;
    one.source_bytes = m->code->n_bytes + (m->scale ? m->scale->n_bytes : 0);
    TRY(matrix_quantize(&x->room, &order, &one.error, x->d));
    one.worst = one.error.value > 0 ? sqrt(one.error.error / one.error.value) : 0;
    (void)snprintf(one.worst_name, sizeof one.worst_name, "%.150s", m->name);
    TRY(journal_note(&x->journal, m->name, &one.error, (uint64_t)m->view->n_row * m->view->n_col,
                     x->d));
    journal_sums_add(&sums[index_of(m->target)], &one);
    TRY(new_file_write(f, x->room.bytes, n, at, x->d));
    count_done(x, &one);
    x->progress.layer = m->layer + 1;
    tell(x, item->source->n_bytes);
    return FATHOM_OK;
}

static fathom_err write_shard(struct converting *x, const struct plan_shard *shard,
                              struct new_file *f, struct journal_sums *sums)
{
    TRY(new_file_write(f, shard->header.data, shard->header.len, 0, x->d));
    for (size_t i = 0; i < shard->n_item; i++) {
        const struct plan_item *item = &shard->items[i];
        const uint64_t at = shard->header.len + item->offset;
        if (item->action == PLAN_COPY) TRY(copy_bytes(x, f, item, at));
        if (item->action == PLAN_QUANTIZE) TRY(quantize_item(x, f, item, at, sums));
    }
    return FATHOM_OK;
}

/* Of a page that a file ends in, what was cut off reads as zeros. */
static fathom_err check_source(const struct converting *x)
{
    const struct checkpoint *c = x->order->source;
    for (size_t i = 0; i < checkpoint_n_shard(c); i++) {
        const struct checkpoint_shard shard = checkpoint_shard(c, i);
        char path[LIMIT_PATH_BYTES];
        struct file_stamp now;
        if (!shard.is_file) continue;
        TRY(path_join(path, sizeof path, checkpoint_where(c), shard.name));
        if (file_stamp_of(path, &now)) {
            FAIL(x->d, FATHOM_EIO, "%s is gone since the conversion began", path);
        }
        if (now.size == shard.stamp.size && now.mtime_ns == shard.stamp.mtime_ns) continue;
        FAIL(x->d, FATHOM_EFORMAT,
             "%s was written to since the conversion began (%llu bytes, now %llu): remove the "
             "folder %s and begin anew",
             path, (unsigned long long)shard.stamp.size, (unsigned long long)now.size,
             x->order->out);
    }
    return FATHOM_OK;
}

static fathom_err make_shard(struct converting *x, const struct plan_shard *shard,
                             struct journal_sums *sums)
{
    char path[LIMIT_PATH_BYTES];
    struct new_file f = {.fd = -1};
    bool has;
    TRY(journal_has(&x->journal, shard->name, x->pool, sums, &has, x->d));
    if (has) {
        for (size_t i = 0; i < JOURNAL_TARGETS; i++) {
            count_done(x, &sums[i]);
            journal_sums_add(&x->out->sums[i], &sums[i]);
        }
        tell(x, shard->source_bytes);
        return FATHOM_OK;
    }
    TRY(path_join(path, sizeof path, x->order->out, shard->name));
    TRY(new_file_begin(&f, path, x->d));
    fathom_err err = write_shard(x, shard, &f, sums);
    if (!err) err = check_source(x);
    if (!err) err = new_file_end(&f, x->d);
    if (err) {
        new_file_drop(&f);
        return err;
    }
    TRY(journal_finish(&x->journal, shard->name, x->pool, sums, x->d));
    for (size_t i = 0; i < JOURNAL_TARGETS; i++) journal_sums_add(&x->out->sums[i], &sums[i]);
    return FATHOM_OK;
}

/* ---- other files ----------------------------------------------------------------------------- */

/* A file of a conversion that was finished still holds these bytes; ENOTFOUND: it is gone. */
static fathom_err check_bytes(const struct converting *x, const char *path, const void *bytes,
                              size_t n)
{
    struct file_map m;
    fathom_diag why = {{0}};
    fathom_err err = file_map_open(&m, path, &why);
    if (err == FATHOM_ENOTFOUND) return err;
    if (err) FAIL(x->d, err, "%s", why.text);
    const bool is_same = m.size == n && (n == 0 || memcmp(m.data, bytes, n) == 0);
    file_map_close(&m);
    if (is_same) return FATHOM_OK;
    FAIL(x->d, FATHOM_EFORMAT,
         "%s is not what this conversion writes: it, or its file in %s, was changed since; remove "
         "it, and --resume writes it anew",
         path, checkpoint_where(x->order->source));
}

static fathom_err save(struct converting *x, const char *name, const void *bytes, size_t n)
{
    char path[LIMIT_PATH_BYTES];
    TRY(path_join(path, sizeof path, x->order->out, name));
    if (x->journal.is_finished) {
        fathom_err err = check_bytes(x, path, bytes, n);
        if (err != FATHOM_ENOTFOUND) return err;
        x->out->n_anew++;
        if (x->order->is_dry) return FATHOM_OK;
    }
    return new_file_save(path, bytes, n, x->d);
}

/* Weights, and what each conversion writes itself. */
static bool is_not_copied(const char *name)
{
    static const char *const ends[] = {
        ".safetensors", ".safetensors.index.json", ".bin", ".pt", ".pth", ".gguf", ".part"};
    const size_t n = strlen(name);
    static const char *const own[] = {"config.json", JOURNAL_REPORT, CONVERT_EVALUATION};
    for (size_t i = 0; i < sizeof own / sizeof *own; i++) {
        if (strcmp(name, own[i]) == 0) return true;
    }
    if (name[0] == '.') return true;
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        const size_t m = strlen(ends[i]);
        if (n >= m && strcmp(name + n - m, ends[i]) == 0) return true;
    }
    return false;
}

static fathom_err copy_side_file(void *arg, const char *name)
{
    struct converting *x = arg;
    const char *data;
    size_t n;
    if (is_not_copied(name)) return FATHOM_OK;
    fathom_err err = checkpoint_file(x->order->source, name, &data, &n, x->d);
    if (err == FATHOM_ENOTFOUND) return FATHOM_OK;
    return err ? err : save(x, name, data, n);
}

/* Of a bundle those that such models have. */
static fathom_err copy_side_files(struct converting *x)
{
    static const char *const names[] = {"generation_config.json", "tokenizer.json",
                                        "tokenizer_config.json"};
    const struct checkpoint *c = x->order->source;
    if (checkpoint_shard(c, 0).is_file) {
        return dir_each_file(checkpoint_where(c), copy_side_file, x, x->d);
    }
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) TRY(copy_side_file(x, names[i]));
    return FATHOM_OK;
}

static void add_index_entry(struct buf *b, const char *module, const char *suffix,
                            const char *shard)
{
    char name[600];
    int n = snprintf(name, sizeof name, "%s%s", module, suffix);
    (void)buf_add_str(b, b->data[b->len - 1] == '{' ? "\n    " : ",\n    ");
    (void)json_write_string(b, name, (size_t)n);
    (void)buf_add_str(b, ": ");
    (void)json_write_string(b, shard, strlen(shard));
}

static void add_index_item(struct buf *b, const struct plan *p, const struct plan_item *item,
                           const char *shard)
{
    if (item->action == PLAN_COPY) add_index_entry(b, item->name, "", shard);
    if (item->action != PLAN_QUANTIZE) return;
    const bool is_u4 = p->scheme.code == CODE_U4;
    add_index_entry(b, item->name, is_u4 ? ".weight_packed" : ".weight", shard);
    add_index_entry(b, item->name, ".weight_scale", shard);
    if (p->scheme.asymmetric) add_index_entry(b, item->name, ".weight_zero_point", shard);
    if (is_u4) add_index_entry(b, item->name, ".weight_shape", shard);
}

/* One shard of the usual name is found without. */
static bool has_index(const struct plan *p)
{
    return p->n_shard != 1 || strcmp(p->shards[0].name, SINGLE_FILE) != 0;
}

static fathom_err write_index(struct converting *x)
{
    struct buf b = {0};
    uint64_t total = 0;
    if (!has_index(&x->plan)) return FATHOM_OK;
    for (size_t i = 0; i < x->plan.n_shard; i++) total += x->plan.shards[i].data_bytes;
    (void)buf_printf(&b, "{\n  \"metadata\": {\"total_size\": %llu},\n  \"weight_map\": {",
                     (unsigned long long)total);
    for (size_t i = 0; i < x->plan.n_shard && !b.failed; i++) {
        const struct plan_shard *s = &x->plan.shards[i];
        for (size_t k = 0; k < s->n_item && !b.failed; k++) {
            add_index_item(&b, &x->plan, &s->items[k], s->name);
        }
    }
    (void)buf_add_str(&b, "\n  }\n}\n");
    fathom_err err = buf_status(&b);
    if (err) err = diag_fail(x->d, err, "no memory for the index");
    if (!err) err = save(x, INDEX_FILE, buf_str(&b), b.len);
    buf_free(&b);
    return err;
}

static fathom_err write_config(struct converting *x)
{
    struct buf b = {0};
    const char *text;
    size_t n;
    TRY(checkpoint_file(x->order->source, "config.json", &text, &n, x->d));
    fathom_err err = quant_config_write(&b, &x->plan, text, n, x->d);
    if (!err) err = save(x, "config.json", buf_str(&b), b.len);
    buf_free(&b);
    return err;
}

/* ---- the whole ------------------------------------------------------------------------------- */

/* Of the folder, which is not there yet before a dry run. */
static fathom_err check_room(struct converting *x)
{
    char a[SIZE_TEXT_BYTES], b[SIZE_TEXT_BYTES], there[LIMIT_PATH_BYTES];
    uint64_t room, need = 0;
    const json_t *done = json_object_get(x->journal.root, "done");
    TRY(os_check_make_dir(x->order->out, there, x->d));
    TRY(disk_free_bytes(there, &room, x->d));
    for (size_t i = 0; i < x->plan.n_shard; i++) {
        const struct plan_shard *s = &x->plan.shards[i];
        if (!json_object_get(done, s->name)) need += s->header.len + s->data_bytes;
    }
    if (need <= room) return FATHOM_OK;
    FAIL(x->d, FATHOM_ELIMIT, "%s: the disk has room for %s, needed is %s", x->order->out,
         size_text(a, room), size_text(b, need));
}

/* Shards of a conversion that was finished are still there, by their size; of the others, what is
 * gone is written anew. */
static fathom_err check_finished(struct converting *x)
{
    for (size_t i = 0; i < x->plan.n_shard; i++) {
        const struct plan_shard *s = &x->plan.shards[i];
        char path[LIMIT_PATH_BYTES];
        struct file_stamp stamp;
        TRY(path_join(path, sizeof path, x->order->out, s->name));
        const bool is_gone = file_stamp_of(path, &stamp) != FATHOM_OK;
        if (!is_gone && stamp.size == s->header.len + s->data_bytes) continue;
        FAIL(x->d, FATHOM_EFORMAT,
             "%s %s since the conversion was finished: remove the folder %s and "
             "begin anew",
             path, is_gone ? "is gone" : "has changed its size", x->order->out);
    }
    TRY(copy_side_files(x));
    TRY(write_index(x));
    return write_config(x);
}

static bool is_all_done(const struct converting *x)
{
    const json_t *done = json_object_get(x->journal.root, "done");
    for (size_t i = 0; i < x->plan.n_shard; i++) {
        if (!json_object_get(done, x->plan.shards[i].name)) return false;
    }
    return true;
}

static fathom_err calibrate(struct converting *x, unsigned n_thread)
{
    const struct convert_order *o = x->order;
    if (!o->calibration || is_all_done(x)) return FATHOM_OK;
    TRY(o->calibration->make(o->calibration->arg, o->out, x->d));
    return tuner_create(&x->tuner, &x->plan, o->out, o->calibration->n_row, x->pool, n_thread,
                        x->d);
}

static fathom_err prepare(struct converting *x)
{
    const struct convert_order *o = x->order;
    const struct parallel one = parallel_one();
    ASSERT(quant_method_calibrates(o->scheme.method) == (o->calibration != NULL));
    TRY(weights_bind(&x->weights, o->source, o->config, &one, x->d));
    TRY(plan_make(&x->plan, &x->weights, o->source, o->config, &o->scheme, o->targets, x->d));
    const unsigned n_thread = o->n_thread ? o->n_thread : os_n_cpu();
    x->out->n_quantized = x->plan.n_quantized;
    x->out->n_matrix = x->plan.n_matrix;
    x->out->out_bytes = x->plan.out_bytes;
    x->out->held_bytes = matrix_room_bytes(&x->plan, n_thread);
    if (o->calibration) {
        x->out->held_bytes += tuner_bytes(&x->plan, o->calibration->n_row, n_thread);
    }
    for (size_t i = 0; i < x->plan.n_shard; i++) {
        x->out->source_bytes += x->plan.shards[i].source_bytes;
    }
    x->progress.total_bytes = x->out->source_bytes;
    x->progress.n_quantized = x->plan.n_quantized;
    x->progress.n_layer = x->weights.n_layer + x->weights.n_mtp;
    json_t *order =
        journal_order(&x->plan, o->targets, o->source, o->calibration ? o->calibration->text : "");
    TRY(journal_open(&x->journal, o->out, order, o->resumes, o->is_dry, x->d));
    if (x->journal.is_finished) return check_finished(x);
    TRY(check_room(x));
    if (o->is_dry) return FATHOM_OK;
    TRY(thread_pool_create(&x->pool, n_thread, x->d));
    TRY(matrix_room_init(&x->room, &x->plan, x->pool, n_thread, x->d));
    return calibrate(x, n_thread);
}

/* What cannot be read of the source is found before the work begins. */
static fathom_err make_files(struct converting *x)
{
    TRY(copy_side_files(x));
    for (size_t i = 0; i < x->plan.n_shard; i++) {
        struct journal_sums sums[JOURNAL_TARGETS];
        memset(sums, 0, sizeof sums);
        TRY(make_shard(x, &x->plan.shards[i], sums));
    }
    TRY(write_index(x));
    TRY(write_config(x));
    TRY(calibration_remove(x->order->out, x->order->config->n_layer, x->d));
    return journal_end(&x->journal, x->out->sums, x->out->source_bytes, x->out->out_bytes, x->d);
}

fathom_err convert_run(struct convert_result *out, const struct convert_order *order,
                       fathom_diag *d)
{
    struct converting x = {.order = order, .out = out, .d = d};
    memset(out, 0, sizeof *out);
    x.progress.worst_name = x.worst_name;
    fathom_err err = prepare(&x);
    out->was_finished = x.journal.is_finished;
    if (!err && !order->is_dry && !out->was_finished) err = make_files(&x);
    tuner_destroy(x.tuner);
    matrix_room_fini(&x.room);
    thread_pool_destroy(x.pool);
    journal_close(&x.journal);
    plan_free(&x.plan);
    weights_release(&x.weights);
    return err;
}
