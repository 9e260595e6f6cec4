/* fuzz_tokenizer_ranks.c - a tiktoken.model and a tokenizer_config.json from outside, the config
 * behind the first zero byte: opening must not fail in any way but by its error, and what opens
 * must encode text and decode it back. The 256 bytes come first when the first byte is '+'. */
#include <stdint.h>
#include <string.h>

#include "base/assert.h"
#include "base/buf.h"
#include "tokenizer/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void add_bytes(struct buf *out)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (unsigned i = 0; i < 256; i++) {
        char line[] = {digits[i >> 2], digits[(i & 3) << 4], '=', '='};
        ASSERT(!buf_add(out, line, sizeof line));
        ASSERT(!buf_printf(out, " %u\n", i));
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char text[] =
        "Hello, world's 12345\r\n\n  你好。カタ <think>a</think> é😀 aaaaaaaaa";
    const char *s = (const char *)data;
    const char *zero = size ? memchr(s, 0, size) : NULL;
    size_t n = zero ? (size_t)(zero - s) : size;
    struct buf ranks = {0}, back = {0};
    struct token_list ids = {0};
    struct tokenizer *t;
    fathom_diag d = {""};
    if (n && *s == '+') {
        add_bytes(&ranks);
        s++;
        n--;
    }
    ASSERT(!buf_add(&ranks, s, n));
    struct tokenizer_ranks r = {.text = buf_str(&ranks), .n = ranks.len, .what = "input"};
    if (zero) r.config = zero + 1, r.n_config = (size_t)((const char *)data + size - zero - 1);
    fathom_err err = tokenizer_open_ranks(&t, &r, &d);
    ASSERT((err == FATHOM_OK) == (t != NULL));
    ASSERT(err == FATHOM_OK || d.text[0] || err == FATHOM_ENOMEM);
    if (t) {
        ASSERT(!tokenizer_encode(t, text, sizeof text - 1, TOKENIZER_MARKUP_OFF, &ids));
        ASSERT(!tokenizer_decode(t, ids.ids, ids.n, false, &back));
        ASSERT(back.len == sizeof text - 1 && memcmp(buf_str(&back), text, back.len) == 0);
    }
    token_list_free(&ids);
    buf_free(&back);
    buf_free(&ranks);
    tokenizer_close(t);
    return 0;
}
