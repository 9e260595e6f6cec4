/* test_tokenizer.c - the tokenizer through its public functions */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "base/rng.h"
#include "base/thread.h"
#include "support/tokenizer_data.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/tokenizer_int.h"

static struct tokenizer *v3;

static int open_v3(void **state)
{
    (void)state;
    return tokenizer_open_file(&v3, TOKENIZER_V3_JSON, NULL);
}

static int close_v3(void **state)
{
    (void)state;
    tokenizer_close(v3);
    return 0;
}

static struct tokenizer *open_small(const char *vocab, const char *merges, const char *added)
{
    struct buf json = {0};
    struct tokenizer *t;
    fathom_diag d = {""};
    data_small_json(&json, vocab, merges, added);
    if (tokenizer_open(&t, json.data, json.len, "small", &d)) print_error("%s\n", d.text);
    assert_non_null(t);
    buf_free(&json);
    return t;
}

static struct token_list encode(const struct tokenizer *t, const char *s, size_t n,
                                enum tokenizer_markup markup)
{
    struct token_list ids = {0};
    assert_int_equal(tokenizer_encode(t, s, n, markup, &ids), 0);
    return ids;
}

static void expect_ids(const struct tokenizer *t, const char *s, size_t n,
                       enum tokenizer_markup markup, const int32_t *want, size_t n_want)
{
    struct token_list ids = encode(t, s, n, markup);
    assert_int_equal(ids.n, n_want);
    if (n_want) assert_memory_equal(ids.ids, want, n_want * sizeof *want);
    token_list_free(&ids);
}

/* Decoding what encoding gave is the text again. */
static void expect_return(const struct tokenizer *t, const char *s, size_t n,
                          enum tokenizer_markup markup)
{
    struct token_list ids = encode(t, s, n, markup);
    struct buf text = {0};
    assert_int_equal(tokenizer_decode(t, ids.ids, ids.n, false, &text), 0);
    assert_int_equal(text.len, n);
    assert_int_equal(memcmp(buf_str(&text), s, n), 0);
    buf_free(&text);
    token_list_free(&ids);
}

/* An added token is one where a mark says so; elsewhere its spelling is what it is without them. */
static void only_marked_spellings_are_tokens(void **state)
{
    (void)state;
    static const char text[] = "<｜User｜>a<｜User｜><think>b</think>";
    const size_t second = strlen("<｜User｜>a");
    const size_t close = sizeof text - 1 - strlen("</think>");
    const size_t marks[] = {second, close};
    int32_t user = tokenizer_find(v3, "<｜User｜>");
    struct token_list all = {0}, none = {0}, some = {0}, plain = {0};
    assert_int_equal(tokenizer_encode_marked(v3, text, sizeof text - 1, NULL, 0, &none), 0);
    plain = encode(v3, text, sizeof text - 1, TOKENIZER_MARKUP_OFF);
    assert_int_equal(none.n, plain.n);
    assert_memory_equal(none.ids, plain.ids, plain.n * sizeof *plain.ids);
    const size_t both[] = {0, second};
    assert_int_equal(tokenizer_encode_marked(v3, text, sizeof text - 1, both, 2, &all), 0);
    struct token_list on = encode(v3, text, sizeof text - 1, TOKENIZER_MARKUP_ON);
    assert_int_equal(all.n, on.n); /* this vocabulary has no think tags */
    assert_memory_equal(all.ids, on.ids, on.n * sizeof *on.ids);
    assert_int_equal(tokenizer_encode_marked(v3, text, sizeof text - 1, marks, 2, &some), 0);
    uint32_t n_user = 0;
    for (size_t i = 0; i < some.n; i++) n_user += some.ids[i] == user;
    assert_int_equal(n_user, 1);
    assert_int_not_equal(some.ids[0], user);
    token_list_free(&all);
    token_list_free(&none);
    token_list_free(&some);
    token_list_free(&plain);
    token_list_free(&on);
}

static void opens_the_pilot(void **state)
{
    (void)state;
    struct tokenizer *t;
    fathom_diag d = {""};
    if (tokenizer_open_file(&t, TOKENIZER_PILOT_JSON, &d)) print_error("%s\n", d.text);
    assert_non_null(t);
    assert_true(pretok_has_scanner(t->pretok));
    assert_int_equal(tokenizer_n_token(t), 3663);
    assert_int_equal(tokenizer_find(t, "<｜begin▁of▁sentence｜>"), 0);
    assert_int_equal(tokenizer_find(t, "<think>"), 5);
    assert_int_equal(tokenizer_find(t, "｜DSML｜"), 7);
    assert_true(tokenizer_is_special(t, 0));
    assert_false(tokenizer_is_special(t, 5));
    assert_true(tokenizer_is_added(t, 5));
    static const char text[] = "<｜User｜>What is 12 + 345?<｜Assistant｜><think>hm</think>😀";
    expect_return(t, text, sizeof text - 1, TOKENIZER_MARKUP_ON);
    expect_return(t, text, sizeof text - 1, TOKENIZER_MARKUP_OFF);
    size_t n;
    struct vector *vectors = data_read_vectors(&n);
    for (size_t i = 0; i < n; i++) {
        expect_return(t, vectors[i].text, vectors[i].n_text, TOKENIZER_MARKUP_ON);
    }
    data_free_vectors(vectors, n);
    tokenizer_close(t);
}

static void reports_missing_files(void **state)
{
    (void)state;
    struct tokenizer *t;
    fathom_diag d = {""};
    assert_int_equal(tokenizer_open_file(&t, "/nowhere/tokenizer.json", &d), FATHOM_ENOTFOUND);
    assert_null(t);
    assert_non_null(strstr(d.text, "/nowhere/tokenizer.json"));
    tokenizer_close(NULL);
}

static void finds_tokens_by_their_text(void **state)
{
    (void)state;
    assert_int_equal(tokenizer_n_token(v3), 128815);
    assert_int_equal(tokenizer_find(v3, "<｜begin▁of▁sentence｜>"), 0);
    assert_int_equal(tokenizer_find(v3, "<｜end▁of▁sentence｜>"), 1);
    assert_int_equal(tokenizer_find(v3, "<｜User｜>"), 128803);
    assert_int_equal(tokenizer_find(v3, "<|EOT|>"), 128805);
    assert_int_equal(tokenizer_find(v3, "!"), 3);
    assert_int_equal(tokenizer_find(v3, " t"), 259); /* plain bytes, not "Ġt" */
    assert_int_equal(tokenizer_find(v3, "Ġt"), -1);
    assert_int_equal(tokenizer_find(v3, "<think>"), -1);
    assert_int_equal(tokenizer_find(v3, ""), -1);
}

static void tells_what_tokens_are(void **state)
{
    (void)state;
    size_t n;
    const char *s = tokenizer_bytes(v3, 259, &n);
    assert_int_equal(n, 2);
    assert_memory_equal(s, " t", 2);
    s = tokenizer_bytes(v3, 128803, &n);
    assert_int_equal(n, strlen("<｜User｜>"));
    assert_memory_equal(s, "<｜User｜>", n);
    static const int32_t none[] = {-1, INT32_MIN, 128815, 129279, INT32_MAX};
    for (size_t i = 0; i < sizeof none / sizeof none[0]; i++) {
        n = 1;
        assert_non_null(tokenizer_bytes(v3, none[i], &n));
        assert_int_equal(n, 0);
        assert_false(tokenizer_is_special(v3, none[i]));
        assert_false(tokenizer_is_added(v3, none[i]));
    }
    assert_true(tokenizer_is_special(v3, 0));
    assert_true(tokenizer_is_special(v3, 128000));
    assert_true(tokenizer_is_added(v3, 128803));
    assert_false(tokenizer_is_special(v3, 128803));
    assert_false(tokenizer_is_added(v3, 259));
    int n_special = 0, n_added = 0;
    for (int32_t id = 0; id < tokenizer_n_token(v3); id++) {
        n_special += tokenizer_is_special(v3, id);
        n_added += tokenizer_is_added(v3, id);
        (void)tokenizer_bytes(v3, id, &n);
        assert_true(n > 0);
    }
    assert_int_equal(n_special, 804);
    assert_int_equal(n_added, 818);
}

static void leaves_markup_alone_when_told(void **state)
{
    (void)state;
    static const char text[] = "a<｜User｜>b<｜end▁of▁sentence｜><｜place▁holder▁no▁7｜>";
    struct token_list ids = encode(v3, text, sizeof text - 1, TOKENIZER_MARKUP_OFF);
    for (size_t i = 0; i < ids.n; i++) assert_false(tokenizer_is_added(v3, ids.ids[i]));
    token_list_free(&ids);
    expect_return(v3, text, sizeof text - 1, TOKENIZER_MARKUP_OFF);
    ids = encode(v3, text, sizeof text - 1, TOKENIZER_MARKUP_ON);
    assert_int_equal(ids.n, 5);
    assert_int_equal(ids.ids[1], 128803);
    assert_int_equal(ids.ids[3], 1);
    assert_int_equal(ids.ids[4], 128007);
    token_list_free(&ids);
}

static void matches_raw_added_tokens_first(void **state)
{
    (void)state;
    struct tokenizer *t = open_small(
        "", "",
        "{\"id\": 300, \"content\": \"bc\"}, {\"id\": 301, \"content\": \"abcd\", \"normalized\": "
        "true},"
        "{\"id\": 302, \"content\": \"bcx\", \"special\": true}, {\"id\": 303, \"content\": "
        "\"dz\", "
        "\"normalized\": true}");
    const int32_t raw_first[] = {'a', 300, 303}, longest[] = {302};
    expect_ids(t, "abcdz", 5, TOKENIZER_MARKUP_ON, raw_first, 3);
    expect_ids(t, "bcx", 3, TOKENIZER_MARKUP_ON, longest, 1);
    const int32_t plain[] = {'a', 'b', 'c', 'd'};
    expect_ids(t, "abcd", 4, TOKENIZER_MARKUP_OFF, plain, 4);
    assert_int_equal(tokenizer_n_token(t), 304);
    assert_int_equal(tokenizer_find(t, "bcx"), 302);
    assert_int_equal(tokenizer_find(t, "abcd"), 301);
    size_t n;
    (void)tokenizer_bytes(t, 280, &n); /* a hole */
    assert_int_equal(n, 0);
    tokenizer_close(t);
}

static void encodes_odd_texts(void **state)
{
    (void)state;
    struct tokenizer *t = open_small("", "", "");
    const int32_t nul[] = {'a', 0, 'b'}, bad[] = {0xef, 0xbf, 0xbd};
    expect_ids(t, "", 0, TOKENIZER_MARKUP_ON, NULL, 0);
    expect_ids(t, "a\0b", 3, TOKENIZER_MARKUP_ON, nul, 3);
    expect_ids(t, "\xf0\x9f\x98", 3, TOKENIZER_MARKUP_ON, bad, 3);
    expect_ids(t, "\xff", 1, TOKENIZER_MARKUP_OFF, bad, 3);
    static const char two[] = "12345678\xc3(\xed\xa0\x80";
    struct token_list ids = encode(t, two, sizeof two - 1, TOKENIZER_MARKUP_ON);
    assert_int_equal(ids.n, 8 + 3 + 1 + 3 * 3);
    token_list_free(&ids);
    tokenizer_close(t);
}

static void appends_to_the_list(void **state)
{
    (void)state;
    struct token_list ids = {0};
    for (int i = 0; i < 2; i++) {
        assert_int_equal(tokenizer_encode(v3, "Hello world", 11, TOKENIZER_MARKUP_ON, &ids), 0);
    }
    assert_int_equal(ids.n, 4);
    assert_int_equal(ids.ids[0], ids.ids[2]);
    assert_int_equal(ids.ids[3], 2058);
    token_list_free(&ids);
    assert_null(ids.ids);
}

/* A megabyte of one thing is one piece; its cost must not be quadratic. */
static void encodes_long_runs(void **state)
{
    (void)state;
    static const char *const units[] = {"a", " ", "\n", "中", "的", "😀", "=", "e\xcc\x81", "\x01"};
    for (size_t i = 0; i < sizeof units / sizeof units[0]; i++) {
        struct buf text = {0};
        while (text.len < 1 << 20) assert_int_equal(buf_add_str(&text, units[i]), 0);
        expect_return(v3, text.data, text.len, TOKENIZER_MARKUP_ON);
        buf_free(&text);
    }
}

static void a_limit_ends_the_work_early(void **state)
{
    (void)state;
    struct buf text = {0};
    struct token_list ids = {.limit = 1000};
    for (int i = 0; i < 500; i++) assert_int_equal(buf_add_str(&text, " word"), 0);
    assert_int_equal(tokenizer_encode(v3, text.data, text.len, TOKENIZER_MARKUP_ON, &ids), 0);
    assert_int_equal(ids.n, 500);
    for (int i = 0; i < 9500; i++) assert_int_equal(buf_add_str(&text, " word"), 0);
    assert_int_equal(tokenizer_encode(v3, text.data, text.len, TOKENIZER_MARKUP_ON, &ids),
                     FATHOM_ELIMIT);
    assert_in_range(ids.n, 1001, 1100);
    token_list_free(&ids);

    ids.limit = SIZE_MAX; /* any number, but no piece over a MiB */
    buf_clear(&text);
    while (text.len < 1 << 20) (void)buf_add_char(&text, 'a');
    assert_int_equal(tokenizer_encode(v3, text.data, text.len, TOKENIZER_MARKUP_ON, &ids), 0);
    (void)buf_add_char(&text, 'a');
    assert_int_equal(tokenizer_encode(v3, text.data, text.len, TOKENIZER_MARKUP_ON, &ids),
                     FATHOM_ELIMIT);
    token_list_free(&ids);
    buf_free(&text);
}

static void returns_random_text(void **state)
{
    (void)state;
    uint64_t rng = 5;
    for (int i = 0; i < 300; i++) {
        struct buf text = {0};
        data_random_text(&text, 1 + rng_below(&rng, 200), &rng);
        expect_return(v3, text.data, text.len, TOKENIZER_MARKUP_ON);
        buf_free(&text);
    }
}

static void decodes_with_and_without_special(void **state)
{
    (void)state;
    const int32_t ids[] = {0, 128803, 19923, -5, 999999, 128805, 1};
    struct buf text = {0};
    assert_int_equal(tokenizer_decode(v3, ids, 7, false, &text), 0);
    assert_string_equal(buf_str(&text),
                        "<｜begin▁of▁sentence｜><｜User｜>Hello<|EOT|><｜end▁of▁sentence｜>");
    buf_clear(&text);
    assert_int_equal(tokenizer_decode(v3, ids, 7, true, &text), 0);
    assert_string_equal(buf_str(&text), "<｜User｜>Hello");
    /* a character torn by a special token is whole again without it */
    const int32_t torn[] = {tokenizer_find(v3, "\xc3"), 1, tokenizer_find(v3, "\xa9")};
    buf_clear(&text);
    assert_int_equal(tokenizer_decode(v3, torn, 3, true, &text), 0);
    assert_string_equal(buf_str(&text), "é");
    buf_clear(&text);
    assert_int_equal(tokenizer_decode(v3, torn, 3, false, &text), 0);
    assert_string_equal(buf_str(&text), "\xef\xbf\xbd<｜end▁of▁sentence｜>\xef\xbf\xbd");
    buf_free(&text);
}

static void encode_item(void *arg, size_t part, size_t n_part, unsigned worker)
{
    const struct vector *v = (const struct vector *)arg + part;
    struct token_list ids = {0};
    (void)n_part;
    (void)worker;
    fathom_err err =
        tokenizer_encode(v3, buf_str(&v->input), v->input.len, TOKENIZER_MARKUP_ON, &ids);
    bool same = !err && ids.n == v->ids.n &&
                (ids.n == 0 || memcmp(ids.ids, v->ids.ids, ids.n * sizeof *ids.ids) == 0);
    token_list_free(&ids);
    assert_true(same);
}

static void serves_many_threads(void **state)
{
    (void)state;
    size_t n;
    struct thread_pool *pool;
    struct vector *vectors = data_read_vectors(&n);
    assert_int_equal(thread_pool_create(&pool, 4, NULL), 0);
    thread_pool_run(pool, n, encode_item, vectors);
    thread_pool_destroy(pool);
    data_free_vectors(vectors, n);
}

static void survives_failing_memory(void **state)
{
    (void)state;
    struct tokenizer other = *v3;
    static const char text[] =
        "<｜User｜>Hello 123 \xff 中文 b aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
        "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
    assert_int_equal(pretok_open(&other.pretok, family_patterns, 3, PRETOK_ENGINE_PCRE2, "t", NULL),
                     0);
    const struct tokenizer *both[] = {v3, &other};
    for (int i = 0; i < 2; i++) {
        for (long fail = 0;; fail++) {
            struct token_list ids = {0};
            struct buf out = {0};
            mem_fail_after(fail);
            fathom_err err =
                tokenizer_encode(both[i], text, sizeof text - 1, TOKENIZER_MARKUP_ON, &ids);
            if (!err) err = tokenizer_decode(both[i], ids.ids, ids.n, false, &out);
            bool hit = mem_fail_hit();
            mem_fail_after(-1);
            token_list_free(&ids);
            buf_free(&out);
            if (err) assert_int_equal(err, FATHOM_ENOMEM);
            if (!hit) assert_int_equal(err, FATHOM_OK);
            if (!hit) break;
        }
    }
    pretok_close(other.pretok);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(only_marked_spellings_are_tokens),
        cmocka_unit_test(opens_the_pilot),
        cmocka_unit_test(reports_missing_files),
        cmocka_unit_test(finds_tokens_by_their_text),
        cmocka_unit_test(tells_what_tokens_are),
        cmocka_unit_test(leaves_markup_alone_when_told),
        cmocka_unit_test(matches_raw_added_tokens_first),
        cmocka_unit_test(encodes_odd_texts),
        cmocka_unit_test(appends_to_the_list),
        cmocka_unit_test(encodes_long_runs),
        cmocka_unit_test(a_limit_ends_the_work_early),
        cmocka_unit_test(returns_random_text),
        cmocka_unit_test(decodes_with_and_without_special),
        cmocka_unit_test(serves_many_threads),
        cmocka_unit_test(survives_failing_memory),
    };
    return cmocka_run_group_tests(tests, open_v3, close_v3);
}
