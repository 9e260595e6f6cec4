/* tokenizer_bench - how fast the published V3 tokenizer loads, encodes and decodes on one thread
 *
 *   bench_tokenizer [FILE]
 *
 * The text is FILE, or 4 MB of the test vectors' texts (prose, Chinese, many scripts, code,
 * numbers, white space, emoji), encoded in pieces of 8 KiB as a server meets them. */
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/buf.h"
#include "base/clock.h"
#include "base/os.h"
#include "support/tokenizer_data.h"
#include "tokenizer/tokenizer.h"

enum { MIX_BYTES = 4 << 20, RUN_BYTES = 1 << 20, PIECE_BYTES = 8 << 10, N_REPEAT = 5 };

static void read_text(struct buf *text, int argc, char **argv)
{
    struct file_map map;
    fathom_diag d = {""};
    if (argc < 2) {
        data_mix(text, MIX_BYTES);
        return;
    }
    if (file_map_open(&map, argv[1], &d)) printf("%s\n", d.text);
    ASSERT(!buf_add(text, map.data, map.size));
    file_map_close(&map);
}

static struct tokenizer *load(void)
{
    struct tokenizer *t = NULL;
    uint64_t best_us = UINT64_MAX;
    for (int i = 0; i < N_REPEAT; i++) {
        fathom_diag d = {""};
        tokenizer_close(t);
        uint64_t start_us = clock_now_us();
        if (tokenizer_open_file(&t, TOKENIZER_V3_JSON, &d)) printf("%s\n", d.text);
        ASSERT(t);
        uint64_t spent_us = clock_now_us() - start_us;
        if (spent_us < best_us) best_us = spent_us;
    }
    printf("tokenizer load: %.1f ms (%d ids, best of %d)\n", (double)best_us / 1e3,
           tokenizer_n_token(t), N_REPEAT);
    return t;
}

static void encode_pieces(const struct tokenizer *t, const struct buf *text, struct token_list *ids)
{
    ids->n = 0;
    for (size_t i = 0; i < text->len; i += PIECE_BYTES) {
        size_t n = text->len - i < PIECE_BYTES ? text->len - i : PIECE_BYTES;
        ASSERT(!tokenizer_encode(t, text->data + i, n, TOKENIZER_MARKUP_ON, ids));
    }
}

/* One piece of a megabyte: the worst that merging meets. */
static void encode_runs(const struct tokenizer *t)
{
    static const char *const units[] = {"a", " ", "\n", "=", "中", "的", "😀"};
    static const char *const names[] = {"a",      "space",  "newline", "=",
                                        "U+4E2D", "U+7684", "U+1F600"};
    for (size_t i = 0; i < sizeof units / sizeof units[0]; i++) {
        struct buf text = {0};
        struct token_list ids = {0};
        while (text.len < RUN_BYTES) ASSERT(!buf_add_str(&text, units[i]));
        uint64_t start_us = clock_now_us();
        ASSERT(!tokenizer_encode(t, text.data, text.len, TOKENIZER_MARKUP_ON, &ids));
        printf("tokenizer encode run of %s: %.0f ms (%zu bytes)\n", names[i],
               (double)(clock_now_us() - start_us) / 1e3, text.len);
        token_list_free(&ids);
        buf_free(&text);
    }
}

int main(int argc, char **argv)
{
    struct buf text = {0}, decoded = {0};
    struct token_list ids = {0};
    uint64_t encode_us = UINT64_MAX, decode_us = UINT64_MAX;
    read_text(&text, argc, argv);
    struct tokenizer *t = load();
    for (int i = 0; i < N_REPEAT; i++) {
        uint64_t start_us = clock_now_us();
        encode_pieces(t, &text, &ids);
        uint64_t middle_us = clock_now_us();
        buf_clear(&decoded);
        ASSERT(!tokenizer_decode(t, ids.ids, ids.n, false, &decoded));
        uint64_t end_us = clock_now_us();
        if (middle_us - start_us < encode_us) encode_us = middle_us - start_us;
        if (end_us - middle_us < decode_us) decode_us = end_us - middle_us;
    }
    printf("tokenizer encode: %.1f MB/s (%zu bytes, best of %d)\n",
           (double)text.len / (double)encode_us, text.len, N_REPEAT);
    printf("tokenizer encode: %.2f M tokens/s (%zu tokens, best of %d)\n",
           (double)ids.n / (double)encode_us, ids.n, N_REPEAT);
    printf("tokenizer decode: %.1f MB/s (%zu bytes, best of %d)\n",
           (double)decoded.len / (double)decode_us, decoded.len, N_REPEAT);
    encode_runs(t);
    tokenizer_close(t);
    token_list_free(&ids);
    buf_free(&text);
    buf_free(&decoded);
    return 0;
}
