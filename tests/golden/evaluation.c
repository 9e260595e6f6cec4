/* evaluation.c - prompts and greedy texts of the reference, read and compared */
#include "golden/evaluation.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"

#define EVALUATION_JSON FATHOM_SOURCE_DIR "/tests/data/pilot/evaluation.json"
#define TOKENIZER_JSON FATHOM_SOURCE_DIR "/models/pilot/tokenizer.json"

static const char *text_of(const json_t *item, const char *key)
{
    const char *text = json_string_value(json_object_get(item, key));
    if (!text) fail_msg("evaluation.json: an entry without %s", key);
    return text;
}

void evaluation_open(struct evaluation *ev)
{
    fathom_diag d = {{0}};
    memset(ev, 0, sizeof *ev);
    if (json_read_file(EVALUATION_JSON, &ev->root, &d) != FATHOM_OK) fail_msg("%s", d.text);
    if (tokenizer_open_file(&ev->tokenizer, TOKENIZER_JSON, &d) != FATHOM_OK) {
        fail_msg("%s", d.text);
    }
    ev->n = json_array_size(ev->root);
    ev->cases = mem_calloc(ev->n, sizeof *ev->cases);
    assert_non_null(ev->cases);
    for (size_t i = 0; i < ev->n; i++) {
        const json_t *item = json_array_get(ev->root, i);
        struct evaluation_case *c = &ev->cases[i];
        c->kind = text_of(item, "kind");
        c->reference = text_of(item, "reference");
        const char *prompt = text_of(item, "prompt");
        assert_int_equal(tokenizer_encode(ev->tokenizer, prompt, strlen(prompt),
                                          TOKENIZER_MARKUP_ON, &c->prompt),
                         FATHOM_OK);
    }
}

void evaluation_close(struct evaluation *ev)
{
    for (size_t i = 0; i < ev->n; i++) token_list_free(&ev->cases[i].prompt);
    mem_free(ev->cases);
    tokenizer_close(ev->tokenizer);
    json_decref(ev->root);
}

bool evaluation_matches(const struct evaluation *ev, size_t i, const struct answer *a)
{
    struct buf text = {0};
    size_t n = a->stopped ? a->n - 1 : a->n;
    assert_int_equal(tokenizer_decode(ev->tokenizer, a->ids, n, false, &text), FATHOM_OK);
    bool same = strcmp(buf_str(&text), ev->cases[i].reference) == 0;
    if (!same) {
        print_message("case %zu (%s):\n  want: %s\n  have: %s\n", i, ev->cases[i].kind,
                      ev->cases[i].reference, buf_str(&text));
    }
    buf_free(&text);
    return same;
}
