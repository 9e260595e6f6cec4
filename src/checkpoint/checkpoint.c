/* checkpoint.c - many safetensors files as one table of tensors
 *
 * Invariants, from the end of checkpoint_open until checkpoint_close:
 *   1. tensors[] is strictly ascending by name: no name comes twice.
 *   2. each tensor's bytes lie inside the shard i_shard; inside a shard no two overlap.
 *   3. buckets[] is an open-addressed hash table of tensors[] by name. A bucket holds 1 + an index
 *      or 0. At most half of the buckets are taken; their number is a power of two.
 *   4. nothing of this changes; only the list of side files grows, under its own lock.
 * checkpoint_check asserts 1 to 3.
 */
#include "checkpoint/checkpoint.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/fail.h"
#include "base/mem.h"
#include "base/os.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/shard_index.h"

#define SINGLE_FILE "model.safetensors"

/* Bytes of a file: mapped, or lent by a bundle (map is empty then), or put in its place. */
struct content {
    const void *data;
    size_t size;
    struct file_map map;
    char *own; /* NULL: of a file or a bundle */
};

struct shard {
    char *name;
    struct content content;
    struct safetensors header; /* tensors move into the checkpoint's table; names stay */
};

/* A file that checkpoint_file has handed out, or what is in its place. */
struct side_file {
    struct side_file *next;
    char *name;
    struct content content;
};

struct checkpoint {
    char *where;
    const fathom_bundle *bundle; /* NULL: `where` is a directory */
    struct shard *shards;        /* [n_shard] */
    size_t n_shard;
    struct tensor *tensors; /* [n_tensor] */
    size_t n_tensor;
    uint32_t *buckets; /* [n_bucket] */
    size_t n_bucket;
    pthread_mutex_t side_lock;
    struct side_file *side_files;
};

/* ---- files --------------------------------------------------------------------------------- */

static const fathom_bundle_file *find_in_bundle(const fathom_bundle *b, const char *name)
{
    for (size_t i = 0; i < b->n_file; i++) {
        if (strcmp(b->files[i].name, name) == 0) return &b->files[i];
    }
    return NULL;
}

/* ENOTFOUND without touching d when there is no such file. */
static fathom_err content_open(struct content *out, const struct checkpoint *c, const char *name,
                               fathom_diag *d)
{
    memset(out, 0, sizeof *out);
    if (c->bundle) {
        const fathom_bundle_file *f = find_in_bundle(c->bundle, name);
        if (!f) return FATHOM_ENOTFOUND;
        out->data = f->data;
        out->size = f->size;
        return FATHOM_OK;
    }
    char path[LIMIT_PATH_BYTES];
    if (path_join(path, sizeof path, c->where, name)) {
        FAIL(d, FATHOM_EINVAL, "%s: the path of %s is longer than %d bytes", c->where, name,
             LIMIT_PATH_BYTES - 1);
    }
    fathom_diag why = {{0}};
    fathom_err err = file_map_open(&out->map, path, &why);
    if (err == FATHOM_ENOTFOUND) return err;
    if (err) FAIL(d, err, "%s", why.text);
    out->data = out->map.data;
    out->size = out->map.size;
    return FATHOM_OK;
}

static void content_close(struct content *content)
{
    file_map_close(&content->map);
    mem_free(content->own);
    memset(content, 0, sizeof *content);
}

/* "where/name" for messages; cut when it does not fit. */
static const char *name_file(char out[LIMIT_PATH_BYTES], const struct checkpoint *c,
                             const char *name)
{
    return path_join(out, LIMIT_PATH_BYTES, c->where, name) ? name : out;
}

/* ---- the table of tensors ------------------------------------------------------------------ */

static uint64_t hash_name(const char *name)
{
    uint64_t h = 0xcbf29ce484222325u; /* FNV-1a */
    for (; *name; name++) h = (h ^ (unsigned char)*name) * 0x100000001b3u;
    return h ^ h >> 32;
}

/* The bucket that holds `name`, or the empty one where it would go. */
static size_t find_bucket(const struct checkpoint *c, const char *name)
{
    size_t i = (size_t)hash_name(name) & (c->n_bucket - 1);
    while (c->buckets[i] && strcmp(c->tensors[c->buckets[i] - 1].name, name) != 0) {
        i = (i + 1) & (c->n_bucket - 1);
    }
    return i;
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(((const struct tensor *)a)->name, ((const struct tensor *)b)->name);
}

static fathom_err collect_tensors(struct checkpoint *c, fathom_diag *d)
{
    size_t n = 0;
    for (size_t s = 0; s < c->n_shard; s++) n += c->shards[s].header.n_tensor;
    if (n >= UINT32_MAX / 2) {
        FAIL(d, FATHOM_ELIMIT, "%s: %zu tensors are more than can be numbered", c->where, n);
    }
    c->tensors = mem_alloc_array(n, sizeof *c->tensors);
    if (!c->tensors) FAIL(d, FATHOM_ENOMEM, "%s: out of memory for %zu tensors", c->where, n);
    for (size_t s = 0; s < c->n_shard; s++) {
        struct safetensors *h = &c->shards[s].header;
        for (size_t i = 0; i < h->n_tensor; i++) {
            c->tensors[c->n_tensor] = h->tensors[i];
            c->tensors[c->n_tensor++].i_shard = (uint32_t)s;
        }
        mem_free(h->tensors);
        h->tensors = NULL;
        h->n_tensor = 0;
    }
    if (n) qsort(c->tensors, n, sizeof *c->tensors, compare_names);
    return FATHOM_OK;
}

static fathom_err check_names_differ(const struct checkpoint *c, fathom_diag *d)
{
    for (size_t i = 1; i < c->n_tensor; i++) {
        const struct tensor *a = &c->tensors[i - 1], *b = &c->tensors[i];
        if (strcmp(a->name, b->name) != 0) continue;
        FAIL(d, FATHOM_EFORMAT, "%s: %s is in two shards: %s and %s", c->where, a->name,
             c->shards[a->i_shard].name, c->shards[b->i_shard].name);
    }
    return FATHOM_OK;
}

static fathom_err build_buckets(struct checkpoint *c, fathom_diag *d)
{
    size_t n_bucket = 2;
    while (n_bucket < 2 * c->n_tensor) n_bucket *= 2;
    c->buckets = mem_calloc(n_bucket, sizeof *c->buckets);
    if (!c->buckets)
        FAIL(d, FATHOM_ENOMEM, "%s: out of memory for %zu names", c->where, c->n_tensor);
    c->n_bucket = n_bucket;
    for (size_t i = 0; i < c->n_tensor; i++) {
        c->buckets[find_bucket(c, c->tensors[i].name)] = (uint32_t)i + 1;
    }
    return FATHOM_OK;
}

bool checkpoint_check(const struct checkpoint *c)
{
    ASSERT((c->n_bucket & (c->n_bucket - 1)) == 0 && c->n_bucket >= 2 * c->n_tensor);
    for (size_t i = 0; i < c->n_tensor; i++) {
        const struct tensor *t = &c->tensors[i];
        ASSERT(t->i_shard < c->n_shard);
        const struct content *bytes = &c->shards[t->i_shard].content;
        uintptr_t begin = (uintptr_t)bytes->data, at = (uintptr_t)t->data;
        ASSERT(at >= begin && t->n_bytes <= bytes->size && at - begin <= bytes->size - t->n_bytes);
        ASSERT(i == 0 || strcmp(c->tensors[i - 1].name, t->name) < 0);
        ASSERT(c->buckets[find_bucket(c, t->name)] == i + 1);
    }
    return true;
}

/* ---- opening ------------------------------------------------------------------------------- */

static fathom_err open_shard(struct checkpoint *c, const char *name, fathom_diag *d)
{
    char path[LIMIT_PATH_BYTES];
    struct shard *s = &c->shards[c->n_shard++];
    s->name = mem_strdup(name);
    if (!s->name) FAIL(d, FATHOM_ENOMEM, "%s: out of memory", c->where);
    fathom_err err = content_open(&s->content, c, name, d);
    if (err == FATHOM_ENOTFOUND) {
        FAIL(d, FATHOM_EFORMAT,
             "%s: the shard is missing (the index names it): download the checkpoint again",
             name_file(path, c, name));
    }
    TRY(err);
    return safetensors_parse(&s->header, s->content.data, s->content.size, name_file(path, c, name),
                             d);
}

static fathom_err open_shards(struct checkpoint *c, const char *const *names, size_t n,
                              fathom_diag *d)
{
    c->shards = mem_calloc(n, sizeof *c->shards);
    if (!c->shards) FAIL(d, FATHOM_ENOMEM, "%s: out of memory for %zu shards", c->where, n);
    for (size_t i = 0; i < n; i++) TRY(open_shard(c, names[i], d));
    TRY(collect_tensors(c, d));
    TRY(check_names_differ(c, d));
    TRY(build_buckets(c, d));
    DCHECK(checkpoint_check(c));
    return FATHOM_OK;
}

/* Every tensor of the index is in the shard that the index gives. */
static fathom_err check_index(const struct checkpoint *c, const struct shard_index *index,
                              const char *where, fathom_diag *d)
{
    const char *name;
    json_t *value;
    json_object_foreach ((json_t *)index->weight_map, name, value) {
        const char *shard = json_string_value(value);
        const struct tensor *t = checkpoint_find(c, name);
        if (!t) {
            FAIL(d, FATHOM_EFORMAT, "%s: %s should be in %s, which does not hold it", where, name,
                 shard);
        }
        const char *holder = checkpoint_shard_name(c, t->i_shard);
        if (strcmp(holder, shard) != 0) {
            FAIL(d, FATHOM_EFORMAT, "%s: %s should be in %s, it is in %s", where, name, shard,
                 holder);
        }
    }
    return FATHOM_OK;
}

static fathom_err open_indexed(struct checkpoint *c, const struct content *text, fathom_diag *d)
{
    char path[LIMIT_PATH_BYTES];
    struct shard_index index;
    const char *where = name_file(path, c, SHARD_INDEX_FILE);
    TRY(shard_index_parse(&index, text->data, text->size, where, d));
    fathom_err err;
    TRY_GOTO(open_shards(c, index.shards, index.n_shard, d), done);
    TRY_GOTO(check_index(c, &index, where, d), done);
done:
    shard_index_free(&index);
    return err;
}

static fathom_err open_all(struct checkpoint *c, fathom_diag *d)
{
    struct content text;
    fathom_err err = content_open(&text, c, SHARD_INDEX_FILE, d);
    if (err == FATHOM_OK) {
        err = open_indexed(c, &text, d);
        content_close(&text);
        return err;
    }
    if (err != FATHOM_ENOTFOUND) return err;

    struct content probe;
    err = content_open(&probe, c, SINGLE_FILE, d);
    if (err == FATHOM_ENOTFOUND) {
        bool gguf = !c->bundle && path_holds_suffix(c->where, ".gguf");
        FAIL(d, FATHOM_ENOTFOUND,
             "%s: no weights: neither " SINGLE_FILE " nor " SHARD_INDEX_FILE " is there%s",
             c->where, gguf ? "; GGUF is not read: download the safetensors release" : "");
    }
    TRY(err);
    content_close(&probe);
    return open_shards(c, (const char *const[]){SINGLE_FILE}, 1, d);
}

static fathom_err open_checkpoint(struct checkpoint **out, const char *where,
                                  const fathom_bundle *bundle, bool with_weights, fathom_diag *d)
{
    *out = NULL;
    struct checkpoint *c = mem_calloc(1, sizeof *c);
    if (!c) FAIL(d, FATHOM_ENOMEM, "%s: out of memory", where);
    int failed = pthread_mutex_init(&c->side_lock, NULL);
    ASSERT(failed == 0);
    c->bundle = bundle;
    c->where = mem_strdup(where);
    fathom_err err = FATHOM_OK;
    if (!c->where) err = diag_fail(d, FATHOM_ENOMEM, "%s: out of memory", where);
    if (!err && with_weights) err = open_all(c, d);
    if (err) {
        checkpoint_close(c);
        return err;
    }
    *out = c;
    return FATHOM_OK;
}

fathom_err checkpoint_open(struct checkpoint **out, const char *dir, fathom_diag *d)
{
    return open_checkpoint(out, dir, NULL, true, d);
}

fathom_err checkpoint_open_bundle(struct checkpoint **out, const fathom_bundle *bundle,
                                  fathom_diag *d)
{
    return open_checkpoint(out, bundle->name, bundle, true, d);
}

fathom_err checkpoint_open_files(struct checkpoint **out, const char *dir,
                                 const fathom_bundle *bundle, fathom_diag *d)
{
    return open_checkpoint(out, bundle ? bundle->name : dir, bundle, false, d);
}

void checkpoint_let_go(const struct checkpoint *c)
{
    for (size_t i = 0; i < c->n_shard; i++) file_map_let_go(&c->shards[i].content.map);
}

void checkpoint_close(struct checkpoint *c)
{
    if (!c) return;
    while (c->side_files) {
        struct side_file *f = c->side_files;
        c->side_files = f->next;
        content_close(&f->content);
        mem_free(f->name);
        mem_free(f);
    }
    for (size_t i = 0; i < c->n_shard; i++) {
        safetensors_free(&c->shards[i].header);
        content_close(&c->shards[i].content);
        mem_free(c->shards[i].name);
    }
    pthread_mutex_destroy(&c->side_lock);
    mem_free(c->shards);
    mem_free(c->tensors);
    mem_free(c->buckets);
    mem_free(c->where);
    mem_free(c);
}

/* ---- questions ----------------------------------------------------------------------------- */

const struct tensor *checkpoint_find(const struct checkpoint *c, const char *name)
{
    if (c->n_tensor == 0) return NULL;
    uint32_t bucket = c->buckets[find_bucket(c, name)];
    return bucket ? &c->tensors[bucket - 1] : NULL;
}

size_t checkpoint_n_tensor(const struct checkpoint *c)
{
    return c->n_tensor;
}

const struct tensor *checkpoint_tensor(const struct checkpoint *c, size_t i)
{
    ASSERT(i < c->n_tensor);
    return &c->tensors[i];
}

size_t checkpoint_tensor_place(const struct checkpoint *c, const struct tensor *t)
{
    ASSERT(t >= c->tensors && t < c->tensors + c->n_tensor);
    return (size_t)(t - c->tensors);
}

size_t checkpoint_n_shard(const struct checkpoint *c)
{
    return c->n_shard;
}

const char *checkpoint_shard_name(const struct checkpoint *c, size_t i_shard)
{
    ASSERT(i_shard < c->n_shard);
    return c->shards[i_shard].name;
}

struct checkpoint_shard checkpoint_shard(const struct checkpoint *c, size_t i_shard)
{
    ASSERT(i_shard < c->n_shard);
    const struct shard *s = &c->shards[i_shard];
    return (struct checkpoint_shard){.name = s->name,
                                     .data = s->content.data,
                                     .size = s->content.size,
                                     .is_file = !c->bundle,
                                     .stamp = s->content.map.stamp};
}

const char *checkpoint_where(const struct checkpoint *c)
{
    return c->where;
}

/* Takes the content over, after an error too. */
static fathom_err add_side_file(struct checkpoint *c, const char *name, struct content *content,
                                fathom_diag *d)
{
    struct side_file *f = mem_calloc(1, sizeof *f);
    char *copy = mem_strdup(name);
    if (!f || !copy) {
        content_close(content);
        mem_free(f);
        mem_free(copy);
        FAIL(d, FATHOM_ENOMEM, "%s: out of memory for %s", c->where, name);
    }
    *f = (struct side_file){.next = c->side_files, .name = copy, .content = *content};
    c->side_files = f;
    return FATHOM_OK;
}

/* Called with the lock held. */
static fathom_err open_side_file(struct checkpoint *c, const char *name, struct side_file **out,
                                 fathom_diag *d)
{
    for (struct side_file *f = c->side_files; f; f = f->next) {
        if (strcmp(f->name, name) != 0) continue;
        *out = f;
        return FATHOM_OK;
    }
    struct content content;
    TRY(content_open(&content, c, name, d));
    TRY(add_side_file(c, name, &content, d));
    *out = c->side_files;
    return FATHOM_OK;
}

fathom_err checkpoint_file(struct checkpoint *c, const char *name, const char **data, size_t *n,
                           fathom_diag *d)
{
    struct side_file *f = NULL;
    *data = NULL;
    *n = 0;
    pthread_mutex_lock(&c->side_lock);
    fathom_err err = open_side_file(c, name, &f, d);
    pthread_mutex_unlock(&c->side_lock);
    TRY(err);
    *data = f->content.data ? f->content.data : "";
    *n = f->content.size;
    return FATHOM_OK;
}

fathom_err checkpoint_replace(struct checkpoint *c, const char *name, struct buf *text,
                              fathom_diag *d)
{
    struct content content = {.size = text->len};
    content.data = content.own = buf_steal(text);
    pthread_mutex_lock(&c->side_lock); /* the newest of a name is the first in the list */
    fathom_err err = add_side_file(c, name, &content, d);
    pthread_mutex_unlock(&c->side_lock);
    return err;
}
