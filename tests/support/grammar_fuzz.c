/* grammar_fuzz.c - a vocabulary and a walk for fuzzed grammars */
#include "support/grammar_fuzz.h"

#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/mem.h"
#include "base/rng.h"

static struct tokenizer *tokenizer;
static struct grammar_vocab *vocab;

static void close_vocab(void)
{
    grammar_vocab_destroy(vocab);
    tokenizer_close(tokenizer);
}

const struct grammar_vocab *fuzz_vocab(void)
{
    if (vocab) return vocab;
    const char *path = FATHOM_SOURCE_DIR "/models/pilot/tokenizer.json";
    ASSERT(!tokenizer_open_file(&tokenizer, path, NULL));
    ASSERT(!grammar_vocab_create(&vocab, tokenizer, NULL));
    ASSERT(atexit(close_vocab) == 0);
    return vocab;
}

/* A token of the mask: the end when it may be, a short token often, else any. */
static int32_t draw(const uint32_t *words, size_t n_word, int32_t eos, uint64_t *rng)
{
    int32_t best = -1;
    size_t best_n = SIZE_MAX;
    if ((words[eos / 32] >> (eos % 32) & 1) && rng_below(rng, 3) == 0) return eos;
    size_t start = rng_below(rng, n_word);
    for (size_t i = 0; i < n_word; i++) {
        size_t at = (start + i) % n_word;
        for (uint32_t word = words[at]; word; word &= word - 1) {
            int32_t id = (int32_t)(at * 32) + __builtin_ctz(word);
            size_t n;
            (void)tokenizer_bytes(tokenizer, id, &n);
            if (n >= best_n) continue;
            best = id;
            best_n = n;
        }
        if (best >= 0 && rng_below(rng, 4)) return best;
    }
    return best;
}

bool fuzz_walk(struct grammar *g, uint64_t seed, uint32_t n_step, struct buf *text)
{
    struct matcher *m, *copy;
    int32_t eos = tokenizer_find(tokenizer, "<｜end▁of▁sentence｜>");
    size_t n_word = grammar_vocab_n_word(vocab);
    uint32_t *words = mem_calloc(n_word, sizeof *words);
    ASSERT(words && !matcher_create(&m, g, &eos, 1) && !matcher_create(&copy, g, &eos, 1));
    while (n_step-- > 0 && !matcher_has_ended(m)) {
        char forced[16];
        size_t n;
        ASSERT(!matcher_fill_mask(m, words, n_word));
        int32_t id = draw(words, n_word, eos, &seed);
        ASSERT(id >= 0);
        matcher_copy(copy, m);
        size_t n_forced = matcher_is_forced(m, forced, sizeof forced);
        ASSERT(!matcher_accept_bytes(copy, forced, n_forced));
        ASSERT(!matcher_accept_token(m, id));
        if (id == eos) break;
        const char *bytes = tokenizer_bytes(tokenizer, id, &n);
        ASSERT(n_forced == 0 || memcmp(bytes, forced, n < n_forced ? n : n_forced) == 0);
        ASSERT(!buf_add(text, bytes, n));
    }
    bool ended = matcher_has_ended(m);
    matcher_destroy(m);
    matcher_destroy(copy);
    mem_free(words);
    return ended;
}
