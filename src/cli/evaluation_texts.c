/* evaluation_texts.c - files of texts or ids to pieces */
#include "cli/evaluation_texts.h"

#include <stdio.h>
#include <string.h>

#include "base/fail.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/os.h"
#include "base/utf8.h"
#include "tokenizer/tokenizer.h"

/* models/texts.jsonl, linked into the program (evaluation_texts.S). */
extern const char evaluation_texts_begin[], evaluation_texts_end[];

struct reading {
    struct evaluation_texts *out;
    const struct texts_order *order;
    const char *file; /* for messages */
    size_t line;      /* from 1; 0: the file has none */
    fathom_diag *d;
};

static bool is_enough(const struct reading *r)
{
    return r->order->n_sample && r->out->n_piece >= r->order->n_sample;
}

static fathom_err add_piece(struct reading *r, const struct text_piece *piece)
{
    struct evaluation_texts *t = r->out;
    if (mem_grow(&t->pieces, &t->cap, t->n_piece + 1, sizeof *t->pieces)) {
        FAIL(r->d, FATHOM_ENOMEM, "no memory for %zu texts", t->n_piece + 1);
    }
    t->pieces[t->n_piece++] = *piece;
    t->n_scored += piece->n - piece->first;
    return FATHOM_OK;
}

/* The tokenizer of a checkpoint may have tokens that its model lacks. */
static fathom_err check_ids(const struct reading *r, const int32_t *ids, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (ids[i] >= 0 && (uint32_t)ids[i] < r->order->n_vocab) continue;
        FAIL(r->d, FATHOM_EINVAL, "%s: a text has token %d, the model's are 0 to %u", r->file,
             (int)ids[i], r->order->n_vocab - 1);
    }
    return FATHOM_OK;
}

/* A whole text as pieces; the first n_given ids are not scored. */
static fathom_err add_ids(struct reading *r, const int32_t *ids, size_t n, size_t n_given)
{
    const struct texts_order *o = r->order;
    const bool has_bos = o->bos_id >= 0;
    const uint32_t room = o->length - (has_bos ? 1 : 0);
    TRY(check_ids(r, ids, n));
    size_t i = has_bos && n > 0 && ids[0] == o->bos_id ? 1 : 0;
    while (i < n && !is_enough(r)) {
        const size_t n_take = n - i < room ? n - i : room;
        struct text_piece piece = {.at = r->out->ids.n};
        if (has_bos) TRY(token_list_add(&r->out->ids, o->bos_id));
        for (size_t k = 0; k < n_take; k++) TRY(token_list_add(&r->out->ids, ids[i + k]));
        piece.n = (uint32_t)(r->out->ids.n - piece.at);
        piece.first = 1;
        if (n_given > i) piece.first = (uint32_t)(n_given - i + (has_bos ? 1 : 0));
        i += n_take;
        if (piece.first >= piece.n) {
            r->out->ids.n = piece.at; /* nothing of it counts */
            continue;
        }
        TRY(add_piece(r, &piece));
    }
    return FATHOM_OK;
}

static fathom_err encode(struct reading *r, const char *text, size_t n, enum tokenizer_markup how,
                         struct token_list *ids)
{
    fathom_err err = tokenizer_encode(r->order->tokenizer, text, n, how, ids);
    if (err) FAIL(r->d, err, "%s: the text cannot be tokenised: %s", r->file, fathom_err_text(err));
    return FATHOM_OK;
}

static fathom_err bad_value(const struct reading *r)
{
    FAIL(r->d, FATHOM_EFORMAT,
         "%s: value %zu is none of {\"text\": ...}, {\"prompt\": ..., \"text\": ...}, {\"ids\": "
         "[...]} and an array of ids",
         r->file, r->line);
}

static fathom_err add_array(struct reading *r, const json_t *array)
{
    struct token_list ids = {0};
    size_t i;
    json_t *value;
    fathom_err err = FATHOM_OK;
    json_array_foreach (array, i, value) {
        json_int_t id = json_is_integer(value) ? json_integer_value(value) : -1;
        if (id < 0 || id >= r->order->n_vocab) {
            err = diag_fail(r->d, FATHOM_EINVAL,
                            "%s: value %zu, element %zu is no token id, needed is 0 to %u", r->file,
                            r->line, i, r->order->n_vocab - 1);
            goto done;
        }
        TRY_GOTO(token_list_add(&ids, (int32_t)id), done);
    }
    err = add_ids(r, ids.ids, ids.n, 0);
done:
    token_list_free(&ids);
    return err;
}

static fathom_err add_value(struct reading *r, const json_t *value)
{
    struct token_list ids = {0};
    if (json_is_array(value)) return add_array(r, value);
    const json_t *text = json_object_get(value, "text"), *list = json_object_get(value, "ids");
    const json_t *prompt = json_object_get(value, "prompt");
    if (json_is_array(list)) return add_array(r, list);
    if (!json_is_string(text) || (prompt && !json_is_string(prompt))) return bad_value(r);
    fathom_err err = FATHOM_OK;
    if (prompt) {
        TRY_GOTO(encode(r, json_string_value(prompt), json_string_length(prompt),
                        TOKENIZER_MARKUP_ON, &ids),
                 done);
    }
    size_t n_given = ids.n;
    TRY_GOTO(
        encode(r, json_string_value(text), json_string_length(text), TOKENIZER_MARKUP_ON, &ids),
        done);
    err = add_ids(r, ids.ids, ids.n, n_given);
done:
    token_list_free(&ids);
    return err;
}

static bool is_blank(const char *s, size_t n)
{
    size_t i = 0;
    while (i < n && memchr(" \t\r\n", s[i], 4)) i++;
    return i == n;
}

static fathom_err read_lines(struct reading *r, const char *text, size_t n)
{
    size_t end;
    for (size_t i = 0; i < n && !is_enough(r); i = end + 1) {
        const char *newline = memchr(text + i, '\n', n - i);
        json_t *value = NULL;
        char what[512];
        end = newline ? (size_t)(newline - text) : n;
        r->line++;
        if (is_blank(text + i, end - i)) continue;
        (void)snprintf(what, sizeof what, "%.400s, line %zu", r->file, r->line);
        TRY(json_read(text + i, end - i, what, &value, r->d));
        fathom_err err = add_value(r, value);
        json_decref(value);
        if (err) return err;
    }
    return FATHOM_OK;
}

static fathom_err read_array(struct reading *r, const char *text, size_t n)
{
    json_t *root = NULL, *value;
    size_t i;
    fathom_err err = FATHOM_OK;
    TRY(json_read(text, n, r->file, &root, r->d));
    if (!json_is_array(root)) {
        err = diag_fail(r->d, FATHOM_EFORMAT, "%s: %s stands at the top, needed is an array",
                        r->file, json_type_text(root));
    } else if (json_is_integer(json_array_get(root, 0))) {
        err = add_array(r, root);
    } else {
        json_array_foreach (root, i, value) {
            r->line = i + 1;
            if (!err && !is_enough(r)) err = add_value(r, value);
        }
    }
    json_decref(root);
    return err;
}

static fathom_err read_plain(struct reading *r, const char *text, size_t n)
{
    struct token_list ids = {0};
    fathom_err err = encode(r, text, n, TOKENIZER_MARKUP_OFF, &ids);
    if (!err) err = add_ids(r, ids.ids, ids.n, 0);
    token_list_free(&ids);
    return err;
}

static bool ends_in(const char *name, const char *end)
{
    size_t n = strlen(name), m = strlen(end);
    return n >= m && strcmp(name + n - m, end) == 0;
}

static fathom_err read_file(struct reading *r)
{
    struct file_map map;
    fathom_err err;
    TRY(file_map_open(&map, r->file, r->d));
    const char *text = map.data;
    const size_t mark = utf8_mark(text, map.size), n = map.size - mark;
    if (mark) text += mark;
    if (ends_in(r->file, ".jsonl")) {
        err = read_lines(r, text, n);
    } else if (ends_in(r->file, ".json")) {
        err = read_array(r, text, n);
    } else {
        err = read_plain(r, text, n);
    }
    file_map_close(&map);
    return err;
}

fathom_err evaluation_texts_read(struct evaluation_texts *out, const struct texts_order *order,
                                 fathom_diag *d)
{
    const struct string_list *files = order->files;
    fathom_err err = FATHOM_OK;
    memset(out, 0, sizeof *out);
    if (order->length < 2) {
        FAIL(d, FATHOM_EINVAL,
             "the model's context is %u tokens: there is nothing to predict, needed are two",
             order->length);
    }
    if (files->n == 0) {
        struct reading r = {out, order, "the texts of the program", 0, d};
        size_t n = (size_t)(evaluation_texts_end - evaluation_texts_begin);
        TRY_GOTO(read_lines(&r, evaluation_texts_begin, n), fail);
    }
    for (size_t i = 0; i < files->n; i++) {
        struct reading r = {out, order, files->items[i], 0, d};
        TRY_GOTO(read_file(&r), fail);
    }
    if (out->n_piece == 0) {
        err = diag_fail(d, FATHOM_EINVAL,
                        "%s: there is nothing to predict, needed is a text of "
                        "two tokens or more",
                        files->n ? files->items[0] : "the texts of the program");
        goto fail;
    }
    return FATHOM_OK;
fail:
    evaluation_texts_free(out);
    return err;
}

void evaluation_texts_free(struct evaluation_texts *t)
{
    token_list_free(&t->ids);
    mem_free(t->pieces);
    memset(t, 0, sizeof *t);
}
