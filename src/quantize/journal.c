/* journal.c - what of a conversion is done */
#include "quantize/journal.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/fail.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/new_file.h"
#include "base/os.h"
#include "base/thread.h"
#include "checkpoint/checkpoint.h"

enum { LEAF_BYTES = 64 << 20, HEX_BYTES = 65 };

static fathom_err no_memory(fathom_diag *d)
{
    FAIL(d, FATHOM_ENOMEM, "no memory for the journal of the conversion");
}

/* ---- digests --------------------------------------------------------------------------------- */

static void write_hex(char out[HEX_BYTES], const struct sha256 *h)
{
    for (int i = 0; i < 32; i++) (void)snprintf(out + 2 * i, 3, "%02x", h->bytes[i]);
}

struct leaves {
    const struct file_map *map;
    struct sha256 *digests;
};

static void do_leaf(void *arg, size_t i, size_t n, unsigned worker)
{
    const struct leaves *l = arg;
    const size_t at = i * LEAF_BYTES, rest = l->map->size - at;
    (void)n;
    (void)worker;
    l->digests[i] =
        sha256_of((const char *)l->map->data + at, rest < LEAF_BYTES ? rest : LEAF_BYTES);
}

/* The digest of the digests of a file's pieces, so that several threads make it. */
static fathom_err digest_file(char out[HEX_BYTES], const char *path, struct thread_pool *pool,
                              fathom_diag *d)
{
    struct file_map map;
    TRY(file_map_open(&map, path, d));
    const size_t n = (map.size + LEAF_BYTES - 1) / LEAF_BYTES;
    struct leaves leaves = {&map, mem_alloc_array(n, sizeof(struct sha256))};
    if (leaves.digests) {
        thread_pool_run(pool, n, do_leaf, &leaves);
        const struct sha256 whole = sha256_of(leaves.digests, n * sizeof *leaves.digests);
        write_hex(out, &whole);
    }
    const bool ok = leaves.digests != NULL;
    mem_free(leaves.digests);
    file_map_close(&map);
    return ok ? FATHOM_OK : no_memory(d);
}

/* ---- the order ------------------------------------------------------------------------------- */

static json_t *source_identity(const struct checkpoint *c)
{
    json_t *source = json_object();
    for (size_t i = 0; i < checkpoint_n_shard(c) && source; i++) {
        const struct checkpoint_shard s = checkpoint_shard(c, i);
        uint64_t n = 0;
        char hex[HEX_BYTES];
        memcpy(&n, s.data, s.size >= sizeof n ? sizeof n : 0);
        const uint64_t room = s.size > sizeof n ? s.size - sizeof n : 0;
        const struct sha256 h =
            sha256_of((const char *)s.data + (room ? sizeof n : 0), n < room ? n : room);
        write_hex(hex, &h);
        json_t *shard = json_pack("{s:I, s:I, s:s}", "bytes", (json_int_t)s.size, "changed",
                                  (json_int_t)(s.is_file ? s.stamp.mtime_ns : 0), "header", hex);
        if (!shard || json_object_set_new(source, s.name, shard)) {
            json_decref(source);
            return NULL;
        }
    }
    return source;
}

json_t *journal_order(const struct plan *plan, unsigned targets, const struct checkpoint *c,
                      const char *calibration)
{
    json_t *names = json_array(), *source = source_identity(c);
    for (unsigned bit = 1; bit < TARGET_LINEAR && names; bit <<= 1) {
        if (targets & bit) json_array_append_new(names, json_string(quant_target_name(bit)));
    }
    return json_pack("{s:i, s:s, s:i, s:s, s:o, s:s, s:o}", "version", 2, "scheme",
                     plan->scheme.name, "group", (int)plan->scheme.group, "method",
                     quant_method_text(plan->scheme.method), "targets", names, "calibration",
                     calibration, "source", source);
}

/* ---- opening --------------------------------------------------------------------------------- */

struct looking {
    bool is_taken, has_state, has_report, has_config;
};

static fathom_err look(void *arg, const char *name)
{
    struct looking *l = arg;
    if (strcmp(name, JOURNAL_FILE) == 0) {
        l->has_state = true;
    } else if (strcmp(name, JOURNAL_REPORT) == 0) {
        l->has_report = true;
    } else if (strcmp(name, JOURNAL_FILE ".part") != 0) { /* left before anything was written */
        l->is_taken = true;
    }
    return FATHOM_OK;
}

static fathom_err save(const struct journal *j, fathom_diag *d)
{
    char path[LIMIT_PATH_BYTES];
    struct buf text = {0};
    TRY(path_join(path, sizeof path, j->dir, JOURNAL_FILE));
    fathom_err err = json_write_python(&text, j->root);
    if (err) err = no_memory(d);
    if (!err) err = new_file_save(path, buf_str(&text), text.len, d);
    buf_free(&text);
    return err;
}

/* The order of a journal or a report is the one that is asked for. */
static fathom_err compare(const struct journal *j, const char *name, json_t **out, fathom_diag *d)
{
    char path[LIMIT_PATH_BYTES];
    TRY(path_join(path, sizeof path, j->dir, name));
    TRY(json_read_file(path, out, d));
    if (json_equal(json_object_get(*out, "order"), json_object_get(j->root, "order"))) {
        return FATHOM_OK;
    }
    FAIL(d, FATHOM_EINVAL,
         "%s was begun with other options or from another source: give the same ones, or another "
         "OUT",
         j->dir);
}

static fathom_err go_on(struct journal *j, const struct looking *l, bool resumes, fathom_diag *d)
{
    json_t *old = NULL;
    fathom_err err;
    if (!l->has_state && l->is_taken && !l->has_report) {
        FAIL(d, FATHOM_EINVAL,
             "%s holds files that are no conversion's: give a folder that is "
             "empty or not there",
             j->dir);
    }
    if (!resumes) {
        FAIL(d, FATHOM_EINVAL,
             "%s holds a conversion%s: --resume goes on with it, or give another "
             "folder",
             j->dir, l->has_state ? " that is not finished" : "");
    }
    err = compare(j, l->has_state ? JOURNAL_FILE : JOURNAL_REPORT, &old, d);
    j->is_finished = !err && !l->has_state;
    if (!err && l->has_state) {
        err = json_object_set(j->root, "done", json_object_get(old, "done")) ? no_memory(d)
                                                                             : FATHOM_OK;
    }
    json_decref(old);
    return err;
}

/* What the folder holds; a conversion of its own is begun or gone on with. */
static fathom_err enter(struct journal *j, bool resumes, bool is_dry, fathom_diag *d)
{
    struct looking l = {0};
    char other[JOURNAL_NAME_BYTES];
    fathom_err err = dir_lock(&j->lock, j->dir, d);
    if (err == FATHOM_EBUSY) FAIL(d, err, "%s: another process converts into it", j->dir);
    if (err) return err;
    TRY(dir_each_file(j->dir, look, &l, d));
    TRY(dir_other_name(j->dir, other, sizeof other, d));
    if (other[0] && !l.has_state && !l.has_report) {
        FAIL(d, FATHOM_EINVAL, "%s holds %s, needed is a folder that is empty or not there", j->dir,
             other);
    }
    if (l.has_state || l.is_taken || l.has_report) return go_on(j, &l, resumes, d);
    return is_dry ? FATHOM_OK : save(j, d);
}

fathom_err journal_open(struct journal *j, const char *dir, json_t *order, bool resumes,
                        bool is_dry, fathom_diag *d)
{
    *j = (struct journal){.dir = dir, .lock = -1};
    if (!order) return no_memory(d);
    j->root = json_pack("{s:o, s:{}}", "order", order, "done");
    if (!j->root) return no_memory(d);
    if (path_exists(dir) && !path_is_dir(dir)) {
        FAIL(d, FATHOM_EINVAL, "%s is a file, needed is a folder that is empty or not there", dir);
    }
    if (!is_dry) TRY(os_make_dir(dir, d));
    return path_is_dir(dir) ? enter(j, resumes, is_dry, d) : FATHOM_OK;
}

void journal_close(struct journal *j)
{
    if (!j->dir) return;
    dir_unlock(j->lock);
    json_decref(j->root);
    json_decref(j->matrices);
    memset(j, 0, sizeof *j);
}

/* ---- shards ---------------------------------------------------------------------------------- */

void journal_sums_add(struct journal_sums *to, const struct journal_sums *more)
{
    to->n_matrix += more->n_matrix;
    to->n_tuned += more->n_tuned;
    to->n_few += more->n_few;
    to->source_bytes += more->source_bytes;
    to->out_bytes += more->out_bytes;
    codes_error_add(&to->error, &more->error);
    if (more->worst <= to->worst) return;
    to->worst = more->worst;
    memcpy(to->worst_name, more->worst_name, sizeof to->worst_name);
}

static json_t *sums_to_json(const struct journal_sums *s)
{
    return json_pack("{s:I, s:I, s:I, s:I, s:I, s:f, s:f, s:f, s:s}", "matrices",
                     (json_int_t)s->n_matrix, "calibrated", (json_int_t)s->n_tuned, "few_tokens",
                     (json_int_t)s->n_few, "source_bytes", (json_int_t)s->source_bytes, "bytes",
                     (json_int_t)s->out_bytes, "squared_error", s->error.error, "squared_values",
                     s->error.value, "worst", s->worst, "worst_matrix", s->worst_name);
}

static fathom_err sums_from_json(struct journal_sums *s, const json_t *from, fathom_diag *d)
{
    const char *name = "";
    int64_t n = 0, tuned = 0, few = 0, source = 0, out = 0;
    *s = (struct journal_sums){0};
    TRY(json_get_i64(from, "matrices", true, 0, INT64_MAX, &n, d));
    TRY(json_get_i64(from, "calibrated", true, 0, INT64_MAX, &tuned, d));
    TRY(json_get_i64(from, "few_tokens", true, 0, INT64_MAX, &few, d));
    TRY(json_get_i64(from, "source_bytes", true, 0, INT64_MAX, &source, d));
    TRY(json_get_i64(from, "bytes", true, 0, INT64_MAX, &out, d));
    TRY(json_get_f64(from, "squared_error", true, &s->error.error, d));
    TRY(json_get_f64(from, "squared_values", true, &s->error.value, d));
    TRY(json_get_f64(from, "worst", true, &s->worst, d));
    TRY(json_get_str(from, "worst_matrix", true, &name, d));
    s->n_matrix = (uint64_t)n;
    s->n_tuned = (uint64_t)tuned;
    s->n_few = (uint64_t)few;
    s->source_bytes = (uint64_t)source;
    s->out_bytes = (uint64_t)out;
    (void)snprintf(s->worst_name, sizeof s->worst_name, "%s", name);
    return FATHOM_OK;
}

static double relative(const struct codes_error *e)
{
    return e->value > 0 ? sqrt(e->error / e->value) : 0;
}

fathom_err journal_note(struct journal *j, const char *name, const struct codes_error *error,
                        uint64_t n_code, fathom_diag *d)
{
    json_t *one = json_pack("{s:f, s:f, s:f}", "relative_error", relative(error), "largest_scale",
                            (double)error->largest_scale, "clipped",
                            (double)error->n_clipped / (double)n_code);
    if (!j->matrices) j->matrices = json_object();
    return one && !json_object_set_new(j->matrices, name, one) ? FATHOM_OK : no_memory(d);
}

fathom_err journal_has(const struct journal *j, const char *shard, struct thread_pool *pool,
                       struct journal_sums sums[JOURNAL_TARGETS], bool *has, fathom_diag *d)
{
    char path[LIMIT_PATH_BYTES], hex[HEX_BYTES];
    const json_t *done = json_object_get(json_object_get(j->root, "done"), shard);
    const json_t *list = json_object_get(done, "sums");
    *has = false;
    if (!done) return FATHOM_OK;
    TRY(path_join(path, sizeof path, j->dir, shard));
    TRY(digest_file(hex, path, pool, d));
    const char *want = json_string_value(json_object_get(done, "digest"));
    if (!want || strcmp(want, hex) != 0 || json_array_size(list) != JOURNAL_TARGETS) {
        FAIL(d, FATHOM_EFORMAT, "%s is not what was written: remove the folder %s and begin anew",
             path, j->dir);
    }
    for (size_t i = 0; i < JOURNAL_TARGETS; i++) {
        struct journal_sums more;
        TRY(sums_from_json(&more, json_array_get(list, i), d));
        journal_sums_add(&sums[i], &more);
    }
    *has = true;
    return FATHOM_OK;
}

fathom_err journal_finish(struct journal *j, const char *shard, struct thread_pool *pool,
                          const struct journal_sums sums[JOURNAL_TARGETS], fathom_diag *d)
{
    char path[LIMIT_PATH_BYTES], hex[HEX_BYTES];
    TRY(path_join(path, sizeof path, j->dir, shard));
    TRY(digest_file(hex, path, pool, d));
    json_t *list = json_array();
    for (size_t i = 0; i < JOURNAL_TARGETS && list; i++) {
        if (json_array_append_new(list, sums_to_json(&sums[i]))) {
            json_decref(list);
            list = NULL;
        }
    }
    json_t *matrices = j->matrices ? j->matrices : json_object();
    j->matrices = NULL;
    json_t *done = json_pack("{s:s, s:o, s:o}", "digest", hex, "sums", list, "matrices", matrices);
    if (!done || json_object_set_new(json_object_get(j->root, "done"), shard, done)) {
        return no_memory(d);
    }
    return save(j, d);
}

/* ---- the end --------------------------------------------------------------------------------- */

/* Of all shards, in their order. NULL: out of memory. */
static json_t *all_matrices(const struct journal *j)
{
    json_t *all = json_object(), *shard;
    const char *name;
    json_object_foreach (json_object_get(j->root, "done"), name, shard) {
        if (all && json_object_update(all, json_object_get(shard, "matrices"))) {
            json_decref(all);
            all = NULL;
        }
    }
    return all;
}

static json_t *report(const struct journal *j, const struct journal_sums sums[JOURNAL_TARGETS],
                      uint64_t source_bytes, uint64_t out_bytes)
{
    json_t *targets = json_object();
    for (unsigned i = 0; i < JOURNAL_TARGETS && targets; i++) {
        const struct journal_sums *s = &sums[i];
        if (s->n_matrix == 0) continue;
        json_t *one =
            json_pack("{s:I, s:I, s:I, s:I, s:I, s:f, s:f, s:s}", "matrices",
                      (json_int_t)s->n_matrix, "calibrated", (json_int_t)s->n_tuned, "few_tokens",
                      (json_int_t)s->n_few, "source_bytes", (json_int_t)s->source_bytes, "bytes",
                      (json_int_t)s->out_bytes, "relative_error", relative(&s->error), "worst",
                      s->worst, "worst_matrix", s->worst_name);
        if (!one || json_object_set_new(targets, quant_target_name(1u << i), one)) {
            json_decref(targets);
            targets = NULL;
        }
    }
    return json_pack("{s:O, s:I, s:I, s:o, s:o}", "order", json_object_get(j->root, "order"),
                     "source_bytes", (json_int_t)source_bytes, "bytes", (json_int_t)out_bytes,
                     "targets", targets, "matrices", all_matrices(j));
}

fathom_err journal_end(struct journal *j, const struct journal_sums sums[JOURNAL_TARGETS],
                       uint64_t source_bytes, uint64_t out_bytes, fathom_diag *d)
{
    char path[LIMIT_PATH_BYTES];
    struct buf text = {0};
    json_t *root = report(j, sums, source_bytes, out_bytes);
    fathom_err err = root ? json_write_python(&text, root) : FATHOM_ENOMEM;
    json_decref(root);
    if (err) err = no_memory(d);
    if (!err) err = buf_add_char(&text, '\n');
    if (!err) err = path_join(path, sizeof path, j->dir, JOURNAL_REPORT);
    if (!err) err = new_file_save(path, buf_str(&text), text.len, d);
    buf_free(&text);
    if (err) return err;
    TRY(path_join(path, sizeof path, j->dir, JOURNAL_FILE));
    return file_remove(path, d);
}
