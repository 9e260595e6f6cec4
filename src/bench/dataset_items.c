/* dataset_items.c - the items of a dataset, whoever makes them */
#include "bench/dataset_items.h"

#include <string.h>

#include "base/fail.h"
#include "base/mem.h"
#include "base/rng.h"

static const char *const names[DATASET_KIND_COUNT] = {
    [DATASET_RANDOM] = "random", [DATASET_PREFIX_REPETITION] = "prefix_repetition",
    [DATASET_SONNET] = "sonnet", [DATASET_SHAREGPT] = "sharegpt",
    [DATASET_CUSTOM] = "custom",
};

const char *dataset_kind_name(enum dataset_kind k)
{
    return names[k];
}

enum dataset_kind dataset_kind_find(const char *name)
{
    int k = 0;
    while (k < DATASET_KIND_COUNT && strcmp(names[k], name) != 0) k++;
    return (enum dataset_kind)k;
}

fathom_err dataset_count(const struct tokenizer *t, const char *text, size_t n, uint32_t *out)
{
    struct token_list ids = {0};
    fathom_err err = tokenizer_encode(t, text, n, TOKENIZER_MARKUP_ON, &ids);
    *out = (uint32_t)ids.n;
    token_list_free(&ids);
    return err;
}

fathom_err dataset_add(struct dataset *s, const struct dataset_options *o,
                       const struct tokenizer *t, const struct buf *text, uint32_t n_output)
{
    uint32_t n_input;
    TRY(buf_status(text));
    TRY(dataset_count(t, buf_str(text), text->len, &n_input));
    TRY(mem_grow(&s->items, &s->cap, s->n + 1, sizeof *s->items));
    char *prompt = mem_strndup(buf_str(text), text->len);
    if (!prompt) return FATHOM_ENOMEM;
    s->items[s->n++] = (struct dataset_item){prompt, (uint32_t)text->len, n_input + o->n_added,
                                             n_output > 0 ? n_output : 1};
    return FATHOM_OK;
}

void dataset_shuffle(size_t *order, size_t n, uint64_t *state)
{
    for (size_t i = n; i > 1; i--) {
        size_t k = rng_below(state, i);
        size_t kept = order[i - 1];
        order[i - 1] = order[k];
        order[k] = kept;
    }
}

void dataset_destroy(struct dataset *s)
{
    for (size_t i = 0; i < s->n; i++) mem_free(s->items[i].prompt);
    mem_free(s->items);
    memset(s, 0, sizeof *s);
}
