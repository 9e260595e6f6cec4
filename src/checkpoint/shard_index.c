/* shard_index.c - an index read and its shards listed */
#include "checkpoint/shard_index.h"

#include <stdlib.h>
#include <string.h>

#include "base/fail.h"
#include "base/json.h"
#include "base/mem.h"

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* A shard lies beside its index: a name that could lead elsewhere is not followed. */
static bool is_plain_file_name(const char *name)
{
    return name[0] != '\0' && !strchr(name, '/') && strcmp(name, ".") != 0 &&
           strcmp(name, "..") != 0;
}

static fathom_err list_shards(struct shard_index *index, const char *where, fathom_diag *d)
{
    const char *name;
    json_t *value;
    json_t *map = json_object_get(index->root, "weight_map");
    if (!json_is_object(map)) {
        FAIL(d, FATHOM_EFORMAT, "%s: \"weight_map\" is %s, an object is needed", where,
             json_type_text(map));
    }
    index->weight_map = map;
    index->shards = mem_alloc_array(json_object_size(map), sizeof *index->shards);
    if (!index->shards) FAIL(d, FATHOM_ENOMEM, "%s: out of memory", where);

    size_t n = 0;
    json_object_foreach (map, name, value) {
        const char *shard = json_string_value(value);
        if (!shard || !is_plain_file_name(shard)) {
            FAIL(d, FATHOM_EFORMAT, "%s: the shard of %s is %s, a plain file name is needed", where,
                 name, shard ? shard : json_type_text(value));
        }
        index->shards[n++] = shard;
    }
    if (n == 0) FAIL(d, FATHOM_EFORMAT, "%s: \"weight_map\" is empty", where);
    qsort(index->shards, n, sizeof *index->shards, compare_names);
    for (size_t i = 0; i < n; i++) {
        if (i && strcmp(index->shards[i], index->shards[i - 1]) == 0) continue;
        index->shards[index->n_shard++] = index->shards[i];
    }
    return FATHOM_OK;
}

fathom_err shard_index_parse(struct shard_index *out, const char *text, size_t n, const char *where,
                             fathom_diag *d)
{
    memset(out, 0, sizeof *out);
    TRY(json_read_strict(text, n, where, &out->root, d));
    fathom_err err = list_shards(out, where, d);
    if (err) shard_index_free(out);
    return err;
}

void shard_index_free(struct shard_index *index)
{
    mem_free(index->shards);
    json_decref(index->root);
    memset(index, 0, sizeof *index);
}
