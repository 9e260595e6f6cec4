/* fuzz_tokenizer_json.c - a tokenizer.json from outside: opening it must not fail in any way but
 * by its error, and what opens must encode text and decode it back */
#include <stdint.h>
#include <string.h>

#include "base/assert.h"
#include "tokenizer/detok.h"
#include "tokenizer/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Without added tokens' markup, decoding gives the text back whatever the vocabulary. */
static void check_round_trip(const struct tokenizer *t, const char *text, size_t n)
{
    struct token_list ids = {0};
    struct buf whole = {0}, streamed = {0};
    struct detok d;
    detok_init(&d, t, false);
    fathom_err err = tokenizer_encode(t, text, n, TOKENIZER_MARKUP_OFF, &ids);
    ASSERT(err == FATHOM_OK || err == FATHOM_ELIMIT); /* a pattern that runs away */
    if (!err) {
        ASSERT(!tokenizer_decode(t, ids.ids, ids.n, false, &whole));
        for (size_t i = 0; i < ids.n; i++) ASSERT(!detok_push(&d, ids.ids[i], &streamed));
        ASSERT(!detok_flush(&d, &streamed));
        ASSERT(whole.len == n && memcmp(buf_str(&whole), text, n) == 0);
        ASSERT(streamed.len == n && memcmp(buf_str(&streamed), text, n) == 0);
    }
    ids.n = 0;
    err = tokenizer_encode(t, text, n, TOKENIZER_MARKUP_ON, &ids);
    ASSERT(err == FATHOM_OK || err == FATHOM_ELIMIT);
    for (size_t i = 0; i < ids.n; i++) {
        size_t n_byte;
        (void)tokenizer_bytes(t, ids.ids[i], &n_byte);
        ASSERT(n_byte > 0 && ids.ids[i] < tokenizer_n_token(t));
    }
    token_list_free(&ids);
    buf_free(&whole);
    buf_free(&streamed);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char text[] =
        "Hello, world! 12345\r\n\n  你好。カタ・カナ <think>a</think> é😀 "
        "<｜User｜>aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
        "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
    struct tokenizer *t;
    fathom_diag d = {""};
    fathom_err err = tokenizer_open(&t, (const char *)data, size, "input", &d);
    ASSERT((err == FATHOM_OK) == (t != NULL));
    ASSERT(err == FATHOM_OK || d.text[0] || err == FATHOM_ENOMEM);
    if (t) check_round_trip(t, text, sizeof text - 1);
    tokenizer_close(t);
    return 0;
}
