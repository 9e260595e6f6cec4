/* tokenizer_load.c - reading tokenizer.json
 *
 * The large tables (vocab, merges) are read in place by a cursor, all else as small trees. What the
 * reference library would obey and this one cannot is refused by name. Keys that the reference
 * ignores are ignored. So are "truncation" and "padding" (settings of its callers) and options that
 * cannot matter here. Every byte has a token, so "unk_token", "fuse_unk" and "byte_fallback" never
 * apply. No offsets are reported ("trim_offsets"). */
#include <stdio.h>
#include <string.h>

#include "base/fail.h"
#include "base/json.h"
#include "base/limits.h"
#include "base/mem.h"
#include "base/os.h"
#include "tokenizer/json_cursor.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/tokenizer_int.h"

enum { SHOWN_BYTES = 80 }; /* of a token, in messages */

enum part { ADDED_TOKENS, NORMALIZER, PRE_TOKENIZER, POST_PROCESSOR, DECODER, MODEL, N_PART };
static const char *const part_names[N_PART] = {"added_tokens",   "normalizer", "pre_tokenizer",
                                               "post_processor", "decoder",    "model"};

enum model_part {
    MODEL_TYPE,
    MODEL_DROPOUT,
    MODEL_PREFIX,
    MODEL_SUFFIX,
    MODEL_IGNORE_MERGES,
    MODEL_VOCAB,
    MODEL_MERGES,
    N_MODEL_PART
};
static const char *const model_names[N_MODEL_PART] = {
    "type",  "dropout", "continuing_subword_prefix", "end_of_word_suffix", "ignore_merges",
    "vocab", "merges",
};

struct load {
    struct tokenizer *t;
    struct json_cursor cursor;
    struct json_span parts[N_PART];
    struct json_span model[N_MODEL_PART];
    bool ignore_merges;
    struct buf bytes; /* a token's name turned into bytes */
    enum pretok_engine engine;
    const char *what;
    fathom_diag *d;
};

/* ---- small parts, as trees ----------------------------------------------------------------- */

/* The value at a span as a tree (new reference); NULL when the key is absent or null. */
static fathom_err read_tree(struct load *l, struct json_span span, const char *name, json_t **out)
{
    char what[LIMIT_PATH_BYTES + 64];
    *out = NULL;
    if (!span.s) return FATHOM_OK;
    (void)snprintf(what, sizeof what, "%s: value of \"%s\"", l->what, name);
    TRY(json_read(span.s, span.n, what, out, l->d));
    if (json_is_null(*out)) {
        json_decref(*out);
        *out = NULL;
    }
    return FATHOM_OK;
}

/* A value for a message: short ones as they are, others by their type. */
static const char *show(const json_t *value, char out[static SHOWN_BYTES + 8])
{
    if (!value) return "absent";
    if (json_is_string(value)) {
        (void)snprintf(out, SHOWN_BYTES + 8, "\"%.*s\"", SHOWN_BYTES, json_string_value(value));
        return out;
    }
    if (json_is_boolean(value)) return json_is_true(value) ? "true" : "false";
    return json_type_text(value);
}

static fathom_err refuse(struct load *l, const char *path, const char *key, const json_t *seen,
                         const char *wanted)
{
    char text[SHOWN_BYTES + 8];
    FAIL(l->d, FATHOM_EUNSUPPORTED, "%s: %s%s%s is %s; only %s is supported", l->what, path,
         *key ? "." : "", key, show(seen, text), wanted);
}

static bool is_str(const json_t *value, const char *text)
{
    return json_is_string(value) && strcmp(json_string_value(value), text) == 0;
}

static fathom_err need_str(struct load *l, const json_t *object, const char *path, const char *key,
                           const char *text)
{
    json_t *value = json_object_get(object, key);
    if (is_str(value, text)) return FATHOM_OK;
    char wanted[64];
    (void)snprintf(wanted, sizeof wanted, "\"%s\"", text);
    return refuse(l, path, key, value, wanted);
}

static fathom_err need_false(struct load *l, const json_t *object, const char *path,
                             const char *key)
{
    json_t *value = json_object_get(object, key);
    return json_is_false(value) ? FATHOM_OK : refuse(l, path, key, value, "false");
}

/* No normalizer, or a sequence of none. */
static fathom_err load_normalizer(struct load *l)
{
    json_t *tree;
    TRY(read_tree(l, l->parts[NORMALIZER], "normalizer", &tree));
    json_t *list = json_object_get(tree, "normalizers");
    bool none = !tree || (is_str(json_object_get(tree, "type"), "Sequence") &&
                          json_is_array(list) && json_array_size(list) == 0);
    fathom_err err = none ? FATHOM_OK
                          : refuse(l, "normalizer", "type", json_object_get(tree, "type"),
                                   "null (or an empty \"Sequence\")");
    json_decref(tree);
    return err;
}

/* Post-processors only add special tokens and report offsets, which is not done here. */
static fathom_err load_post_processor(struct load *l)
{
    json_t *tree;
    TRY(read_tree(l, l->parts[POST_PROCESSOR], "post_processor", &tree));
    json_t *type = json_object_get(tree, "type");
    bool known = !tree || is_str(type, "ByteLevel") || is_str(type, "TemplateProcessing") ||
                 is_str(type, "Sequence");
    fathom_err err = known ? FATHOM_OK
                           : refuse(l, "post_processor", "type", type,
                                    "\"ByteLevel\", \"TemplateProcessing\" or null");
    json_decref(tree);
    return err;
}

static fathom_err load_decoder(struct load *l)
{
    json_t *tree;
    TRY(read_tree(l, l->parts[DECODER], "decoder", &tree));
    fathom_err err = need_str(l, tree, "decoder", "type", "ByteLevel");
    json_decref(tree);
    return err;
}

/* ---- pre_tokenizer ------------------------------------------------------------------------- */

static fathom_err load_byte_level(struct load *l, const json_t *step, const char *path)
{
    TRY(need_str(l, step, path, "type", "ByteLevel"));
    TRY(need_false(l, step, path, "add_prefix_space"));
    return need_false(l, step, path, "use_regex");
}

/* The pattern's text belongs to the tree. */
static fathom_err load_split(struct load *l, const json_t *step, const char *path,
                             struct pretok_pattern *pattern)
{
    TRY(need_str(l, step, path, "type", "Split"));
    TRY(need_str(l, step, path, "behavior", "Isolated"));
    TRY(need_false(l, step, path, "invert"));
    json_t *value = json_object_get(step, "pattern");
    json_t *regex = json_object_get(value, "Regex");
    if (!json_is_string(regex)) return refuse(l, path, "pattern", value, "{\"Regex\": \"...\"}");
    *pattern = (struct pretok_pattern){json_string_value(regex), json_string_length(regex)};
    return FATHOM_OK;
}

/* Splits and, last, ByteLevel. */
static fathom_err load_sequence(struct load *l, const json_t *steps)
{
    struct pretok_pattern patterns[LIMIT_SPLITS];
    size_t n = json_array_size(steps);
    if (n == 0) {
        return refuse(l, "pre_tokenizer", "pretokenizers", steps,
                      "an array of \"Split\" steps that ends in \"ByteLevel\"");
    }
    if (n - 1 > LIMIT_SPLITS) {
        FAIL(l->d, FATHOM_ELIMIT, "%s: pre_tokenizer has %zu splits, at most %d are supported",
             l->what, n - 1, LIMIT_SPLITS);
    }
    for (size_t i = 0; i < n; i++) {
        char path[64];
        (void)snprintf(path, sizeof path, "pre_tokenizer.pretokenizers[%zu]", i);
        const json_t *step = json_array_get(steps, i);
        TRY(i + 1 < n ? load_split(l, step, path, &patterns[i]) : load_byte_level(l, step, path));
    }
    return pretok_open(&l->t->pretok, patterns, n - 1, l->engine, l->what, l->d);
}

static fathom_err load_pre_tokenizer(struct load *l)
{
    json_t *tree;
    TRY(read_tree(l, l->parts[PRE_TOKENIZER], "pre_tokenizer", &tree));
    fathom_err err;
    json_t *type = json_object_get(tree, "type");
    if (is_str(type, "Sequence")) {
        err = load_sequence(l, json_object_get(tree, "pretokenizers"));
    } else if (is_str(type, "ByteLevel")) {
        err = load_byte_level(l, tree, "pre_tokenizer");
        if (!err) err = pretok_open(&l->t->pretok, NULL, 0, l->engine, l->what, l->d);
    } else {
        err = refuse(l, "pre_tokenizer", "type", type, "\"Sequence\"");
    }
    json_decref(tree);
    return err;
}

/* ---- tables, in place ---------------------------------------------------------------------- */

/* Notes the spans of an object's members of these names; of equal names the last. */
static fathom_err find_members(struct json_cursor *c, const char *const *names, size_t n_name,
                               struct json_span *spans, const char *of)
{
    bool first = true, more;
    TRY(json_cursor_enter(c, '{', of));
    for (;;) {
        struct json_span key, value;
        size_t i = 0;
        TRY(json_cursor_next(c, '}', &first, &more));
        if (!more) return FATHOM_OK;
        TRY(json_cursor_key(c, &key));
        while (i < n_name && (strlen(names[i]) != key.n || memcmp(names[i], key.s, key.n) != 0)) {
            i++;
        }
        TRY(json_cursor_skip(c, &value));
        if (i < n_name) spans[i] = value;
    }
}

/* Appends to l->bytes what a token's name stands for; *spelled tells whether that is its byte
 * spelling or the name itself. */
static fathom_err add_name(struct load *l, struct json_span name, bool *spelled)
{
    TRY(buf_reserve(&l->bytes, name.n + 1));
    ptrdiff_t n = vocab_unspell(name.s, name.n, l->bytes.data + l->bytes.len);
    *spelled = n >= 0;
    if (!*spelled) return buf_add(&l->bytes, name.s, name.n);
    l->bytes.len += (size_t)n;
    l->bytes.data[l->bytes.len] = '\0';
    return FATHOM_OK;
}

static int shown(size_t n)
{
    return n < SHOWN_BYTES ? (int)n : SHOWN_BYTES;
}

/* The message for a failed vocab_add. */
static fathom_err explain_add(struct load *l, fathom_err err, const char *where,
                              struct json_span name, uint32_t id)
{
    if (err == FATHOM_EINVAL) {
        FAIL(l->d, FATHOM_EFORMAT, "%s: %s: \"%.*s\" has id %u, which another token has", l->what,
             where, shown(name.n), name.s, id);
    }
    if (err == FATHOM_ELIMIT) {
        FAIL(l->d, err,
             "%s: %s: \"%.*s\" (id %u, %zu bytes) is over a limit: ids up to %d, %d bytes a token",
             l->what, where, shown(name.n), name.s, id, name.n, LIMIT_TOKEN_IDS - 1,
             LIMIT_TOKEN_BYTES);
    }
    return err;
}

static fathom_err load_vocab(struct load *l)
{
    struct json_cursor *c = &l->cursor;
    struct vocab *v = &l->t->vocab;
    bool first = true, more;
    TRY(json_cursor_enter(c, '{', "the object \"vocab\""));
    for (;;) {
        struct json_span name;
        uint32_t id;
        bool spelled;
        TRY(json_cursor_next(c, '}', &first, &more));
        if (!more) break;
        TRY(json_cursor_key(c, &name));
        buf_clear(&l->bytes);
        TRY(add_name(l, name, &spelled));
        TRY(json_cursor_uint(c, LIMIT_TOKEN_IDS - 1, &id));
        fathom_err err =
            vocab_add(v, id, buf_str(&l->bytes), l->bytes.len, spelled ? VOCAB_SPELLED : 0);
        if (err) return explain_add(l, err, "model.vocab", name, id);
    }
    uint32_t twin[2];
    fathom_err err = vocab_index(v, twin);
    if (err == FATHOM_EINVAL) {
        FAIL(l->d, FATHOM_EFORMAT, "%s: model.vocab: ids %u and %u have the same token", l->what,
             twin[0], twin[1]);
    }
    return err;
}

/* One name of a merge, which must be in the vocabulary; its bytes are appended to l->bytes. */
static fathom_err find_part(struct load *l, struct json_span name, uint32_t i, uint32_t *id)
{
    bool spelled;
    size_t start = l->bytes.len;
    TRY(add_name(l, name, &spelled));
    const char *bytes = buf_str(&l->bytes) + start;
    int32_t found = spelled ? vocab_find(&l->t->vocab, bytes, l->bytes.len - start) : -1;
    if (found < 0) {
        FAIL(l->d, FATHOM_EFORMAT, "%s: model.merges[%u]: \"%.*s\" is not in the vocabulary",
             l->what, i, shown(name.n), name.s);
    }
    *id = (uint32_t)found;
    return FATHOM_OK;
}

/* "left right" */
static fathom_err read_merge_string(struct load *l, uint32_t i, uint32_t ids[2])
{
    struct json_span both;
    TRY(json_cursor_string(&l->cursor, &both));
    const char *space = memchr(both.s, ' ', both.n);
    size_t n_left = space ? (size_t)(space - both.s) : 0;
    if (!space || memchr(space + 1, ' ', both.n - n_left - 1)) {
        FAIL(l->d, FATHOM_EFORMAT, "%s: model.merges[%u]: \"%.*s\" is not two tokens and one space",
             l->what, i, shown(both.n), both.s);
    }
    TRY(find_part(l, (struct json_span){both.s, n_left}, i, &ids[0]));
    return find_part(l, (struct json_span){space + 1, both.n - n_left - 1}, i, &ids[1]);
}

/* ["left", "right"] */
static fathom_err read_merge_array(struct load *l, uint32_t i, uint32_t ids[2])
{
    struct json_span name;
    bool first = true, more;
    TRY(json_cursor_enter(&l->cursor, '[', "a merge, \"left right\" or [\"left\", \"right\"],"));
    for (int side = 0; side < 2; side++) {
        TRY(json_cursor_next(&l->cursor, ']', &first, &more));
        if (!more) {
            FAIL(l->d, FATHOM_EFORMAT, "%s: model.merges[%u] has %d tokens, not 2", l->what, i,
                 side);
        }
        TRY(json_cursor_string(&l->cursor, &name));
        TRY(find_part(l, name, i, &ids[side]));
    }
    return json_cursor_enter(&l->cursor, ']', "']' after the second token of a merge");
}

static fathom_err count_merges(struct load *l, uint32_t *n)
{
    bool first = true, more;
    TRY(json_cursor_enter(&l->cursor, '[', "the array \"merges\""));
    for (*n = 0;; ++*n) {
        struct json_span merge;
        TRY(json_cursor_next(&l->cursor, ']', &first, &more));
        if (!more) return FATHOM_OK;
        TRY(json_cursor_skip(&l->cursor, &merge));
    }
}

static fathom_err open_bpe(struct load *l, uint32_t n_merge)
{
    unsigned missing;
    fathom_err err = bpe_open(&l->t->bpe, &l->t->vocab, n_merge, &missing);
    if (err == FATHOM_EINVAL) {
        FAIL(
            l->d, FATHOM_EFORMAT,
            "%s: model.vocab has no token for the byte 0x%02x; a byte-level vocabulary has all 256",
            l->what, missing);
    }
    if (err == FATHOM_ELIMIT) {
        FAIL(l->d, err, "%s: model.merges has %u entries, the limit is %d", l->what, n_merge,
             LIMIT_MERGES);
    }
    return err;
}

static fathom_err load_merges(struct load *l)
{
    uint32_t n_merge;
    bool first = true, more;
    json_cursor_at(&l->cursor, l->model[MODEL_MERGES]);
    TRY(count_merges(l, &n_merge));
    TRY(open_bpe(l, n_merge));
    json_cursor_at(&l->cursor, l->model[MODEL_MERGES]);
    TRY(json_cursor_enter(&l->cursor, '[', "the array \"merges\""));
    for (uint32_t i = 0; i < n_merge; i++) {
        uint32_t ids[2];
        TRY(json_cursor_next(&l->cursor, ']', &first, &more));
        buf_clear(&l->bytes);
        bool string = json_cursor_peek(&l->cursor) == '"';
        TRY(string ? read_merge_string(l, i, ids) : read_merge_array(l, i, ids));
        int32_t merged = vocab_find(&l->t->vocab, buf_str(&l->bytes), l->bytes.len);
        if (merged < 0) {
            FAIL(l->d, FATHOM_EFORMAT,
                 "%s: model.merges[%u] joins ids %u and %u to a token the vocabulary lacks",
                 l->what, i, ids[0], ids[1]);
        }
        bpe_add(&l->t->bpe, ids[0], ids[1], (uint32_t)merged);
    }
    return bpe_mark_whole(&l->t->bpe, &l->t->vocab, l->ignore_merges);
}

/* ---- added_tokens -------------------------------------------------------------------------- */

/* Takes a token over from the vocabulary, or adds it to it. */
static fathom_err put_added(struct load *l, struct json_span name, uint32_t id, unsigned flags,
                            const char *path)
{
    struct vocab *v = &l->t->vocab;
    bool spelled;
    buf_clear(&l->bytes);
    TRY(add_name(l, name, &spelled));
    int32_t known = spelled ? vocab_find(v, buf_str(&l->bytes), l->bytes.len) : -1;
    if (known >= 0 && (uint32_t)known != id) {
        FAIL(l->d, FATHOM_EFORMAT, "%s: %s: \"%.*s\" has id %u here and id %d in model.vocab",
             l->what, path, shown(name.n), name.s, id, known);
    }
    bool same = vocab_has(v, id, VOCAB_PRESENT) && !vocab_has(v, id, VOCAB_ADDED) &&
                v->tokens[id].n_byte == name.n && memcmp(vocab_bytes(v, id), name.s, name.n) == 0;
    if (same) {
        v->tokens[id].flags |= (uint16_t)flags;
        return FATHOM_OK;
    }
    fathom_err err = vocab_add(v, id, name.s, name.n, flags);
    return err ? explain_add(l, err, path, name, id) : FATHOM_OK;
}

static fathom_err read_flag(struct load *l, const json_t *item, const char *path, const char *key,
                            bool *out)
{
    const json_t *value = json_object_get(item, key);
    if (value && !json_is_boolean(value)) return refuse(l, path, key, value, "a boolean");
    *out = json_is_true(value);
    return FATHOM_OK;
}

static fathom_err load_added_token(struct load *l, const json_t *item, const char *path)
{
    static const char *const strips[] = {"single_word", "lstrip", "rstrip"};
    bool special = false, normalized = false, strip = false;
    const json_t *content = json_object_get(item, "content");
    const json_t *id = json_object_get(item, "id");
    if (!json_is_string(content) || json_string_length(content) == 0) {
        return refuse(l, path, "content", content, "a string that is not empty");
    }
    if (!json_is_integer(id) || json_integer_value(id) < 0 ||
        json_integer_value(id) >= LIMIT_TOKEN_IDS) {
        return refuse(l, path, "id", id, "a whole number from 0 to 4194302");
    }
    TRY(read_flag(l, item, path, "special", &special));
    TRY(read_flag(l, item, path, "normalized", &normalized));
    for (size_t i = 0; i < sizeof strips / sizeof strips[0]; i++) {
        TRY(read_flag(l, item, path, strips[i], &strip));
        if (strip) return refuse(l, path, strips[i], json_object_get(item, strips[i]), "false");
    }
    struct json_span name = {json_string_value(content), json_string_length(content)};
    uint32_t number = (uint32_t)json_integer_value(id);
    unsigned flags = special ? VOCAB_ADDED | VOCAB_SPECIAL : VOCAB_ADDED;
    TRY(put_added(l, name, number, flags, path));
    return added_put(&l->t->added[normalized], number);
}

static fathom_err load_added_items(struct load *l, const json_t *list)
{
    for (size_t i = 0; i < json_array_size(list); i++) {
        char path[48];
        (void)snprintf(path, sizeof path, "added_tokens[%zu]", i);
        TRY(load_added_token(l, json_array_get(list, i), path));
    }
    for (int round = 0; round < N_ADDED_ROUND; round++) {
        uint32_t twin;
        fathom_err err = added_sort(&l->t->added[round], &l->t->vocab, &twin);
        if (err == FATHOM_EINVAL) {
            FAIL(l->d, FATHOM_EFORMAT, "%s: added_tokens lists the token of id %u twice", l->what,
                 twin);
        }
        if (err) return err;
    }
    return FATHOM_OK;
}

static fathom_err load_added_tokens(struct load *l)
{
    json_t *list;
    TRY(read_tree(l, l->parts[ADDED_TOKENS], "added_tokens", &list));
    fathom_err err = !list || json_is_array(list) ? load_added_items(l, list)
                                                  : refuse(l, "added_tokens", "", list, "an array");
    json_decref(list);
    return err;
}

/* ---- model --------------------------------------------------------------------------------- */

/* Options that change what merging gives. */
static fathom_err load_model_options(struct load *l)
{
    for (int i = MODEL_TYPE; i <= MODEL_IGNORE_MERGES; i++) {
        json_t *value;
        TRY(read_tree(l, l->model[i], model_names[i], &value));
        fathom_err err = FATHOM_OK;
        if (i == MODEL_TYPE && !is_str(value, "BPE")) {
            err = refuse(l, "model", model_names[i], value, "\"BPE\"");
        } else if (i == MODEL_DROPOUT && value &&
                   (!json_is_number(value) || json_number_value(value) != 0.0)) {
            err = refuse(l, "model", model_names[i], value, "null");
        } else if ((i == MODEL_PREFIX || i == MODEL_SUFFIX) && value && !is_str(value, "")) {
            err = refuse(l, "model", model_names[i], value, "null");
        } else if (i == MODEL_IGNORE_MERGES && value && !json_is_boolean(value)) {
            err = refuse(l, "model", model_names[i], value, "a boolean");
        }
        if (i == MODEL_IGNORE_MERGES) l->ignore_merges = json_is_true(value);
        json_decref(value);
        if (err) return err;
    }
    return FATHOM_OK;
}

static fathom_err find_parts(struct load *l)
{
    struct json_cursor *c = &l->cursor;
    TRY(find_members(c, part_names, N_PART, l->parts, "an object (a tokenizer.json)"));
    TRY(json_cursor_finish(c));
    if (!l->parts[MODEL].s) {
        FAIL(l->d, FATHOM_EFORMAT, "%s: \"model\" is missing", l->what);
    }
    json_cursor_at(c, l->parts[MODEL]);
    TRY(find_members(c, model_names, N_MODEL_PART, l->model, "the object \"model\""));
    for (int i = MODEL_VOCAB; i <= MODEL_MERGES; i++) {
        if (l->model[i].s) continue;
        FAIL(l->d, FATHOM_EFORMAT, "%s: model.%s is missing", l->what, model_names[i]);
    }
    return FATHOM_OK;
}

static fathom_err load_all(struct load *l)
{
    TRY(find_parts(l));
    TRY(load_model_options(l));
    TRY(load_normalizer(l));
    TRY(load_pre_tokenizer(l));
    TRY(load_post_processor(l));
    TRY(load_decoder(l));
    json_cursor_at(&l->cursor, l->model[MODEL_VOCAB]);
    TRY(load_vocab(l));
    TRY(load_added_tokens(l));
    return load_merges(l);
}

fathom_err tokenizer_open_with(struct tokenizer **out, const char *json, size_t n,
                               enum pretok_engine engine, const char *what, fathom_diag *d)
{
    struct load l = {.engine = engine, .what = what, .d = d};
    *out = NULL;
    l.t = mem_calloc(1, sizeof *l.t);
    if (!l.t) return FATHOM_ENOMEM;
    json_cursor_open(&l.cursor, json ? json : "", n, what, d);
    fathom_err err = load_all(&l);
    json_cursor_close(&l.cursor);
    buf_free(&l.bytes);
    if (err) {
        tokenizer_close(l.t);
        l.t = NULL;
    }
    *out = l.t;
    return err;
}

fathom_err tokenizer_open(struct tokenizer **out, const char *json, size_t n, const char *what,
                          fathom_diag *d)
{
    return tokenizer_open_with(out, json, n, PRETOK_ENGINE_AUTO, what, d);
}

fathom_err tokenizer_open_file(struct tokenizer **out, const char *path, fathom_diag *d)
{
    struct file_map map;
    *out = NULL;
    TRY(file_map_open(&map, path, d));
    fathom_err err = tokenizer_open(out, map.data, map.size, path, d);
    file_map_close(&map);
    return err;
}
