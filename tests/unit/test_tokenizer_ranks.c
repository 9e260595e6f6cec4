/* test_tokenizer_ranks.c - Kimi's tokenizer: tiktoken.model, its pattern, what is refused */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "base/os.h"
#include "support/json_tree.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/tokenizer_int.h"

#define DATA FATHOM_SOURCE_DIR "/tests/data/tokenizer/kimi/"

static const char config[] =
    "{\"added_tokens_decoder\": {\"262\": {\"content\": \"[BOS]\", \"special\": true},"
    " \"265\": {\"content\": \"<think>\", \"special\": false}}}";

static void add_base64(struct buf *out, const char *s, size_t n)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (size_t i = 0; i < n; i += 3) {
        uint32_t word = 0;
        for (size_t k = 0; k < 3; k++) {
            word = word << 8 | (i + k < n ? (unsigned char)s[i + k] : 0);
        }
        for (size_t k = 0; k < 4; k++) {
            char digit = i + k <= n ? digits[word >> (18 - 6 * k) & 63] : '=';
            assert_int_equal(buf_add_char(out, digit), 0);
        }
    }
}

/* The 256 bytes in order, then these tokens. */
static void add_ranks(struct buf *out, const char *const *tokens, size_t n)
{
    for (unsigned i = 0; i < 256 + n; i++) {
        char byte = (char)i;
        if (i < 256) add_base64(out, &byte, 1);
        if (i >= 256) add_base64(out, tokens[i - 256], strlen(tokens[i - 256]));
        assert_int_equal(buf_printf(out, " %u\n", i), 0);
    }
}

static const char *const tokens[] = {"aa", "ab", "aaaa", "aaa", "bc", "abc"};

static fathom_err open_text(struct tokenizer **t, const char *text, size_t n, const char *c,
                            fathom_diag *d)
{
    struct tokenizer_ranks r = {
        .text = text, .n = n, .config = c, .n_config = c ? strlen(c) : 0, .what = "t.model"};
    return tokenizer_open_ranks(t, &r, d);
}

static void expect_ids(const struct tokenizer *t, const char *s, const int32_t *want, size_t n)
{
    struct token_list ids = {0};
    assert_int_equal(tokenizer_encode(t, s, strlen(s), TOKENIZER_MARKUP_ON, &ids), 0);
    assert_int_equal(ids.n, n);
    assert_memory_equal(ids.ids, want, n * sizeof *want);
    token_list_free(&ids);
}

/* The lowest rank is joined first and the leftmost of equals, whatever it is made of; a piece that
 * is a token is taken whole. */
static void ranks_are_ids_and_decide_what_is_joined(void **state)
{
    (void)state;
    struct buf text = {0};
    struct tokenizer *t;
    fathom_diag d = {""};
    add_ranks(&text, tokens, 6);
    if (open_text(&t, text.data, text.len, config, &d)) fail_msg("%s", d.text);
    expect_ids(t, "aaaaa", (const int32_t[]){258, 'a'}, 2);
    expect_ids(t, "aaabcd", (const int32_t[]){256, 261, 'd'}, 3);
    expect_ids(t, "aaa", (const int32_t[]){259}, 1);
    expect_ids(t, "abc", (const int32_t[]){261}, 1);
    expect_ids(t, "[BOS]<think>ab", (const int32_t[]){262, 265, 257}, 3);
    expect_ids(t, "<|reserved_token_263|>", (const int32_t[]){263}, 1);
    assert_int_equal(tokenizer_n_token(t), 262 + 256);
    assert_true(tokenizer_is_special(t, 262) && tokenizer_is_special(t, 517));
    assert_false(tokenizer_is_special(t, 265));
    assert_true(tokenizer_is_added(t, 265));
    assert_int_equal(tokenizer_find(t, "<think>"), 265);
    tokenizer_close(t);
    buf_free(&text);
}

/* tests/data/tokenizer/kimi: what tiktoken makes of texts, with ranks made up for it. */
static void gives_the_ids_of_tiktoken(void **state)
{
    (void)state;
    struct file_map map;
    struct tokenizer *t;
    fathom_diag d = {""};
    assert_int_equal(file_map_open(&map, DATA "tiktoken.model", &d), 0);
    json_t *root = json_tree_of_file(DATA "pairs.json"), *pair;
    if (open_text(&t, map.data, map.size, NULL, &d)) fail_msg("%s", d.text);
    assert_true(pretok_has_scanner(t->pretok));
    size_t i, k;
    json_array_foreach (root, i, pair) {
        const json_t *text = json_array_get(pair, 0), *want = json_array_get(pair, 1);
        struct token_list ids = {0};
        assert_int_equal(tokenizer_encode(t, json_string_value(text), json_string_length(text),
                                          TOKENIZER_MARKUP_OFF, &ids),
                         0);
        bool same = ids.n == json_array_size(want);
        for (k = 0; same && k < ids.n; k++) {
            same = ids.ids[k] == json_integer_value(json_array_get(want, k));
        }
        if (!same) fail_msg("pair %zu: \"%s\"", i, json_string_value(text));
        token_list_free(&ids);
    }
    assert_true(i > 500);
    json_decref(root);
    tokenizer_close(t);
    file_map_close(&map);
}

static void what_is_wrong_is_said_with_its_line(void **state)
{
    (void)state;
    static const struct {
        const char *tail, *config, *message;
    } cases[] = {
        {"YWI=\n", NULL, "line 257 is \"YWI=\", needed is a token in base64, a space and its rank"},
        {"YW= 256\n", NULL, "line 257 is \"YW= 256\""},
        {"Y*I= 256\n", NULL, "line 257"},
        {"=AAA 256\n", NULL, "line 257"},
        {" 256\n", NULL, "line 257"},
        {"YWI= 12345678\n", NULL, "line 257"},
        {"YWI= 2x6\n", NULL, "line 257"},
        {"YWI= 255\n", NULL, "line 257 has rank 255, which another token has"},
        {"YWI= 300\n", NULL, "257 tokens have ranks up to 300, needed is each from 0 on"},
        {"YQ== 256\n", NULL, "ranks 97 and 256 have the same token"},
        {"", "[", "tokenizer_config.json"},
        {"", "{\"added_tokens_decoder\": {\"5\": {\"content\": \"x\"}}}",
         "has the id \"5\", needed are ids behind the 256 ranks of t.model, up to 1279"},
        {"", "{\"added_tokens_decoder\": {\"300\": {\"content\": 5}}}",
         "added_tokens_decoder.300.content is an integer"},
        {"", "{\"added_tokens_decoder\": {\"300\": {}}}", "300.content is absent"},
        {"",
         "{\"added_tokens_decoder\": {\"300\": {\"content\": \"x\"}, \"0301\": {\"content\": "
         "\"x\"}}}",
         "has the token of id 30"},
        {"",
         "{\"added_tokens_decoder\": {\"300\": {\"content\": \"x\"}, \"0300\": {\"content\": "
         "\"y\"}}}",
         "added_tokens_decoder.300: the id is there twice"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct buf text = {0};
        struct tokenizer *t;
        fathom_diag d = {""};
        add_ranks(&text, NULL, 0);
        assert_int_equal(buf_add_str(&text, cases[i].tail), 0);
        assert_int_equal(open_text(&t, text.data, text.len, cases[i].config, &d), FATHOM_EFORMAT);
        if (!strstr(d.text, cases[i].message)) fail_msg("%s\nnot %s", d.text, cases[i].message);
        assert_null(t);
        buf_free(&text);
    }
    struct tokenizer *t;
    fathom_diag d = {""};
    assert_int_equal(open_text(&t, "YQ== 0\n", 7, NULL, &d), FATHOM_EFORMAT);
    assert_non_null(strstr(d.text, "no token for the byte 0x00"));
}

static void every_failing_allocation_is_an_error(void **state)
{
    (void)state;
    struct buf text = {0};
    struct tokenizer *t = NULL;
    add_ranks(&text, tokens, 6);
    fathom_err err = FATHOM_ENOMEM;
    for (long n = 0; err == FATHOM_ENOMEM; n++) {
        mem_fail_after(n);
        err = open_text(&t, text.data, text.len, config, NULL);
        assert_true((err == FATHOM_OK) == (t != NULL));
    }
    mem_fail_after(-1);
    assert_int_equal(err, FATHOM_OK);
    tokenizer_close(t);
    buf_free(&text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_are_ids_and_decide_what_is_joined),
        cmocka_unit_test(gives_the_ids_of_tiktoken),
        cmocka_unit_test(what_is_wrong_is_said_with_its_line),
        cmocka_unit_test(every_failing_allocation_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
