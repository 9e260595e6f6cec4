/* dataset.c - prompts made of words; and one maker for each kind */
#include "bench/dataset.h"

#include <math.h>
#include <string.h>

#include "base/assert.h"
#include "base/fail.h"
#include "base/mem.h"
#include "base/rng.h"

enum { TOKENS_MAX = 1 << 24 };

/* ---- words ------------------------------------------------------------------------------- */

/* A space and letters of ASCII, two at least. */
static bool looks_like_word(const char *bytes, size_t n)
{
    if (n < 3 || bytes[0] != ' ') return false;
    for (size_t i = 1; i < n; i++) {
        char c = bytes[i];
        if (!((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'))) return false;
    }
    return true;
}

static fathom_err find_words(const struct tokenizer *t, struct token_list *words, fathom_diag *d)
{
    struct token_list ids = {0};
    fathom_err err = FATHOM_OK;
    for (int32_t id = 0; id < tokenizer_n_token(t); id++) {
        size_t n;
        const char *bytes = tokenizer_bytes(t, id, &n);
        if (!looks_like_word(bytes, n) || tokenizer_is_added(t, id)) continue;
        ids.n = 0;
        TRY_GOTO(tokenizer_encode(t, bytes, n, TOKENIZER_MARKUP_OFF, &ids), done);
        if (ids.n == 1 && ids.ids[0] == id) TRY_GOTO(token_list_add(words, id), done);
    }
    if (words->n == 0) {
        err = diag_fail(d, FATHOM_EUNSUPPORTED,
                        "the tokenizer has no tokens of a space and letters to make prompts of; "
                        "use --dataset-name custom");
    }
done:
    token_list_free(&ids);
    return err;
}

static void add_words(struct buf *text, const struct tokenizer *t, const struct token_list *words,
                      uint32_t n_word, uint64_t *state)
{
    ASSERT(words->n > 0 && words->ids);
    for (uint32_t i = 0; i < n_word; i++) {
        size_t n;
        const char *bytes = tokenizer_bytes(t, words->ids[rng_below(state, words->n)], &n);
        (void)buf_add(text, bytes, n);
    }
}

/* Drawn from (1 - ratio) to (1 + ratio) of n, both ends included, at least 1. */
static uint32_t draw_length(uint32_t n, double ratio, uint64_t *state)
{
    uint32_t lo = (uint32_t)floor(n * (1 - ratio));
    uint32_t hi = (uint32_t)ceil(n * (1 + ratio));
    uint32_t drawn = lo + (uint32_t)rng_below(state, (uint64_t)(hi - lo) + 1);
    return drawn > 0 ? drawn : 1;
}

static fathom_err fill_random(struct dataset *s, const struct dataset_options *o,
                              const struct tokenizer *t, const struct token_list *words)
{
    uint64_t state = o->seed;
    struct buf text = {0};
    fathom_err err = FATHOM_OK;
    add_words(&text, t, words, o->n_prefix, &state);
    size_t n_prefix_byte = text.len;
    for (size_t i = 0; i < o->n; i++) {
        uint64_t item = rng_mix(o->seed, 1, i);
        uint32_t n_input = draw_length(o->n_input, o->range_ratio, &item);
        uint32_t n_output = draw_length(o->n_output, o->range_ratio, &item);
        if (!text.failed) buf_truncate(&text, n_prefix_byte);
        uint32_t n_added = o->n_prefix + n_input > o->n_added ? o->n_added : 0;
        add_words(&text, t, words, n_input > n_added ? n_input - n_added : 0, &item);
        TRY_GOTO(dataset_add(s, o, t, &text, n_output), done);
    }
done:
    buf_free(&text);
    return err;
}

static fathom_err fill_prefixes(struct dataset *s, const struct dataset_options *o,
                                const struct tokenizer *t, const struct token_list *words)
{
    struct buf text = {0};
    size_t *order = mem_alloc_array(o->n, sizeof *order);
    fathom_err err = order ? FATHOM_OK : FATHOM_ENOMEM;
    uint64_t state = rng_mix(o->seed, 3, 0);
    for (size_t i = 0; order && i < o->n; i++) order[i] = i;
    if (order && !o->in_order) dataset_shuffle(order, o->n, &state);
    for (size_t i = 0; !err && i < o->n; i++) {
        uint64_t prefix = rng_mix(o->seed, 2, order[i] % o->n_group);
        uint64_t item = rng_mix(o->seed, 1, i);
        uint32_t n_prefix = o->n_prefix > o->n_added ? o->n_prefix - o->n_added : 0;
        buf_clear(&text);
        add_words(&text, t, words, n_prefix, &prefix);
        add_words(&text, t, words, o->n_input, &item);
        err = dataset_add(s, o, t, &text, o->n_output);
    }
    buf_free(&text);
    mem_free(order);
    return err;
}

/* ---- all kinds --------------------------------------------------------------------------- */

static fathom_err check_options(const struct dataset_options *o, fathom_diag *d)
{
    bool of_file = o->kind == DATASET_SHAREGPT || o->kind == DATASET_CUSTOM;
    if (of_file && !o->path) {
        FAIL(d, FATHOM_EINVAL, "--dataset-name %s needs --dataset-path FILE",
             dataset_kind_name(o->kind));
    }
    if (!of_file && o->kind != DATASET_SONNET && o->path) {
        FAIL(d, FATHOM_EINVAL, "--dataset-path: %s prompts are made, not read; leave it out",
             dataset_kind_name(o->kind));
    }
    uint64_t n_prompt = (uint64_t)o->n_input + o->n_prefix;
    if (o->n == 0 || (!of_file && (n_prompt == 0 || o->n_output == 0)) || n_prompt > TOKENS_MAX ||
        (o->kind == DATASET_PREFIX_REPETITION && o->n_group == 0)) {
        FAIL(d, FATHOM_EINVAL, "%zu %s prompts of %u + %u tokens, output %u: needed is at least 1",
             o->n, dataset_kind_name(o->kind), o->n_prefix, o->n_input, o->n_output);
    }
    return FATHOM_OK;
}

fathom_err dataset_create(struct dataset *out, const struct dataset_options *o,
                          const struct tokenizer *t, fathom_diag *d)
{
    struct token_list words = {0};
    fathom_err err;
    memset(out, 0, sizeof *out);
    TRY(check_options(o, d));
    switch (o->kind) {
    case DATASET_RANDOM:
    case DATASET_PREFIX_REPETITION:
        TRY_GOTO(find_words(t, &words, d), done);
        err = o->kind == DATASET_RANDOM ? fill_random(out, o, t, &words)
                                        : fill_prefixes(out, o, t, &words);
        break;
    case DATASET_SONNET: err = dataset_fill_sonnet(out, o, t, d); break;
    case DATASET_SHAREGPT: err = dataset_fill_sharegpt(out, o, t, d); break;
    case DATASET_CUSTOM:
    default: err = dataset_fill_custom(out, o, t, d); break;
    }
done:
    token_list_free(&words);
    return err;
}
