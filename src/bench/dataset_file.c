/* dataset_file.c - prompts of files: conversations, and lines of JSON */
#include <stdio.h>
#include <string.h>

#include "base/fail.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/os.h"
#include "bench/dataset_items.h"

/* Conversations outside of these bounds are left out, as other tools do: results stay comparable.
 */
enum { SHAREGPT_LEAST = 4, SHAREGPT_PROMPT_MAX = 1024, SHAREGPT_TOTAL_MAX = 2048 };

/* Indexes 0 .. n - 1 in the order in which items are taken. */
static size_t *make_order(size_t n, const struct dataset_options *o)
{
    size_t *order = mem_alloc_array(n ? n : 1, sizeof *order);
    uint64_t state = o->seed;
    for (size_t i = 0; order && i < n; i++) order[i] = i;
    if (order && !o->in_order) dataset_shuffle(order, n, &state);
    return order;
}

/* Takes the items once more from the start until there are o->n. */
static fathom_err repeat_items(struct dataset *s, const struct dataset_options *o,
                               const struct tokenizer *t, fathom_diag *d)
{
    if (s->n == 0) FAIL(d, FATHOM_EINVAL, "%s: no item can be used", o->path);
    for (size_t i = 0; s->n < o->n; i++) {
        struct buf text = {0};
        (void)buf_add(&text, s->items[i].prompt, s->items[i].n_byte);
        fathom_err err = dataset_add(s, o, t, &text, s->items[i].n_output);
        buf_free(&text);
        TRY(err);
    }
    return FATHOM_OK;
}

/* ---- sharegpt ---------------------------------------------------------------------------- */

static fathom_err add_conversation(struct dataset *s, const struct dataset_options *o,
                                   const struct tokenizer *t, const json_t *entry)
{
    const json_t *turns = json_object_get(entry, "conversations");
    const json_t *question = json_object_get(json_array_get(turns, 0), "value");
    const json_t *answer = json_object_get(json_array_get(turns, 1), "value");
    uint32_t n_answer;
    if (!json_is_string(question) || !json_is_string(answer)) return FATHOM_OK;
    TRY(dataset_count(t, json_string_value(answer), json_string_length(answer), &n_answer));
    uint32_t n_output = o->n_output > 0 ? o->n_output : n_answer;
    struct buf text = {0};
    (void)buf_add(&text, json_string_value(question), json_string_length(question));
    fathom_err err = dataset_add(s, o, t, &text, n_output);
    buf_free(&text);
    TRY(err);
    struct dataset_item *item = &s->items[s->n - 1];
    if (item->n_input < SHAREGPT_LEAST || n_output < SHAREGPT_LEAST ||
        item->n_input > SHAREGPT_PROMPT_MAX ||
        (uint64_t)item->n_input + n_output > SHAREGPT_TOTAL_MAX) {
        mem_free(item->prompt);
        s->n--;
    }
    return FATHOM_OK;
}

fathom_err dataset_fill_sharegpt(struct dataset *s, const struct dataset_options *o,
                                 const struct tokenizer *t, fathom_diag *d)
{
    json_t *file = NULL;
    size_t *order = NULL;
    fathom_err err;
    TRY(json_read_file(o->path, &file, d));
    if (!json_is_array(file)) {
        err = diag_fail(d, FATHOM_EFORMAT, "%s: %s, needed is an array of conversations", o->path,
                        json_type_text(file));
        goto done;
    }
    size_t n = json_array_size(file);
    order = make_order(n, o);
    err = order ? FATHOM_OK : FATHOM_ENOMEM;
    for (size_t i = 0; !err && i < n && s->n < o->n; i++) {
        err = add_conversation(s, o, t, json_array_get(file, order[i]));
    }
    if (!err) err = repeat_items(s, o, t, d);
done:
    json_decref(file);
    mem_free(order);
    return err;
}

/* ---- custom ------------------------------------------------------------------------------ */

static fathom_err add_json_line(struct dataset *s, const struct dataset_options *o,
                                const struct tokenizer *t, const char *line, size_t n, size_t i,
                                fathom_diag *d)
{
    char what[64];
    json_t *entry = NULL;
    const char *prompt = NULL;
    int64_t n_output = o->n_output;
    struct buf text = {0};
    (void)snprintf(what, sizeof what, "line %zu of the dataset", i + 1);
    fathom_err err;
    TRY_GOTO(json_read(line, n, what, &entry, d), done);
    TRY_GOTO(json_get_str(entry, "prompt", true, &prompt, d), done);
    TRY_GOTO(json_get_i64(entry, "output_tokens", false, 1, 1 << 24, &n_output, d), done);
    (void)buf_add_str(&text, prompt);
    err = dataset_add(s, o, t, &text, (uint32_t)n_output);
done:
    buf_free(&text);
    json_decref(entry);
    return err;
}

/* Start and length of each line that is not blank. */
struct lines {
    const char **starts;
    size_t *lengths;
    size_t n;
};

static void lines_free(struct lines *l)
{
    mem_free((void *)l->starts);
    mem_free(l->lengths);
}

static bool is_blank(const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (!strchr(" \t\r", s[i])) return false;
    }
    return true;
}

static fathom_err split_lines(struct lines *out, const struct file_map *m)
{
    const char *at = m->data;
    const char *end = m->size ? at + m->size : at;
    size_t cap = 1;
    memset(out, 0, sizeof *out);
    for (const char *p = at; p < end; p++) cap += *p == '\n';
    out->starts = mem_alloc_array(cap, sizeof *out->starts);
    out->lengths = mem_alloc_array(cap, sizeof *out->lengths);
    if (!out->starts || !out->lengths) return FATHOM_ENOMEM;
    while (at < end) {
        const char *stop = memchr(at, '\n', (size_t)(end - at));
        if (!stop) stop = end;
        if (!is_blank(at, (size_t)(stop - at))) {
            out->starts[out->n] = at;
            out->lengths[out->n++] = (size_t)(stop - at);
        }
        at = stop + 1;
    }
    return FATHOM_OK;
}

fathom_err dataset_fill_custom(struct dataset *s, const struct dataset_options *o,
                               const struct tokenizer *t, fathom_diag *d)
{
    struct file_map map = {0};
    struct lines lines = {0};
    size_t *order = NULL;
    fathom_err err;
    TRY(file_map_open(&map, o->path, d));
    TRY_GOTO(split_lines(&lines, &map), done);
    order = make_order(lines.n, o);
    if (!order) err = FATHOM_ENOMEM;
    for (size_t i = 0; !err && i < lines.n && s->n < o->n; i++) {
        size_t k = order[i];
        err = add_json_line(s, o, t, lines.starts[k], lines.lengths[k], k, d);
    }
    if (!err) err = repeat_items(s, o, t, d);
done:
    file_map_close(&map);
    lines_free(&lines);
    mem_free(order);
    return err;
}
