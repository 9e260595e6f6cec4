/* test_stop.c - stop strings: the result depends on the bytes, not on the pieces */
#include "server/api/stop.h"

#include <stdio.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include "base/mem.h"
#include "base/rng.h"

static void make_set(struct stop_set *s, const char *const *texts, size_t n)
{
    size_t lens[LIMIT_STOP_STRINGS];
    for (size_t i = 0; i < n; i++) lens[i] = strlen(texts[i]);
    assert_int_equal(stop_set_create(s, texts, lens, n), FATHOM_OK);
}

/* The meaning, straight: the first end of any pattern, of those the longest. */
static int search(const char *const *texts, size_t n, const char *s, size_t *end)
{
    for (size_t e = 1; e <= strlen(s); e++) {
        int hit = -1;
        for (size_t i = 0; i < n; i++) {
            size_t len = strlen(texts[i]);
            if (len > e || memcmp(s + e - len, texts[i], len) != 0) continue;
            if (hit < 0 || len > strlen(texts[hit])) hit = (int)i;
        }
        if (hit >= 0) {
            *end = e;
            return hit;
        }
    }
    return -1;
}

/* Pushes s in pieces cut by the random state; gives what came out, and checks the hold-back. */
static int run(const struct stop_set *set, const char *s, bool include, uint64_t *rng,
               struct buf *out)
{
    struct stop_matcher m;
    int hit = -1;
    stop_matcher_init(&m, set);
    for (size_t i = 0, n = strlen(s); i < n && hit < 0;) {
        size_t piece = 1 + rng_below(rng, 4);
        if (piece > n - i) piece = n - i;
        assert_int_equal(stop_push(&m, s + i, piece, include, out, &hit), FATHOM_OK);
        i += piece;
        if (hit < 0) assert_int_equal(out->len + m.held.len, i);
    }
    if (hit < 0) assert_int_equal(stop_flush(&m, out), FATHOM_OK);
    stop_matcher_free(&m);
    return hit;
}

static void test_against_plain_search(void **state)
{
    (void)state;
    static const char *const sets[][4] = {
        {"ab", "b", NULL},    {"aab", "abc", "ba", NULL}, {"aaa", NULL},
        {"abab", "bb", NULL}, {"a", "aa", "aaa", NULL},   {"abcabd", "cab", NULL},
    };
    uint64_t rng = 7;
    for (size_t k = 0; k < sizeof sets / sizeof sets[0]; k++) {
        size_t n = 0;
        while (sets[k][n]) n++;
        struct stop_set set;
        make_set(&set, sets[k], n);
        for (int round = 0; round < 2000; round++) {
            char s[24];
            size_t len = rng_below(&rng, sizeof s - 1), end = 0;
            for (size_t i = 0; i < len; i++) s[i] = (char)('a' + rng_below(&rng, 4));
            s[len] = '\0';
            bool include = rng_below(&rng, 2);
            int want = search(sets[k], n, s, &end);
            struct buf out = {0};
            assert_int_equal(run(&set, s, include, &rng, &out), want);
            size_t keep = want < 0 ? len : include ? end : end - strlen(sets[k][want]);
            assert_int_equal(out.len, keep);
            assert_memory_equal(buf_str(&out), s, keep);
            buf_free(&out);
        }
        stop_set_destroy(&set);
    }
}

static void test_holds_back_only_what_may_stop(void **state)
{
    (void)state;
    static const char *const texts[] = {"\n\nQuestion:", "世界"};
    struct stop_set set;
    struct stop_matcher m;
    struct buf out = {0};
    int hit;
    make_set(&set, texts, 2);
    stop_matcher_init(&m, &set);
    assert_int_equal(stop_push(&m, "one\n", 4, false, &out, &hit), 0);
    assert_string_equal(buf_str(&out), "one");
    assert_int_equal(stop_push(&m, "\nQuest", 6, false, &out, &hit), 0);
    assert_string_equal(buf_str(&out), "one");
    assert_int_equal(stop_push(&m, "!", 1, false, &out, &hit), 0);
    assert_string_equal(buf_str(&out), "one\n\nQuest!");
    assert_int_equal(stop_push(&m, "世", 3, false, &out, &hit), 0);
    assert_int_equal(hit, -1);
    assert_string_equal(buf_str(&out), "one\n\nQuest!");
    assert_int_equal(stop_push(&m, "界x", 4, false, &out, &hit), 0);
    assert_int_equal(hit, 1);
    assert_string_equal(buf_str(&out), "one\n\nQuest!");
    buf_free(&out);
    stop_matcher_free(&m);
    stop_set_destroy(&set);
}

static void test_no_patterns_pass_all(void **state)
{
    (void)state;
    struct stop_matcher m;
    struct buf out = {0};
    int hit;
    stop_matcher_init(&m, NULL);
    assert_int_equal(stop_push(&m, "abc", 3, false, &out, &hit), 0);
    assert_int_equal(hit, -1);
    assert_string_equal(buf_str(&out), "abc");
    buf_free(&out);
    stop_matcher_free(&m);
}

static void test_each_failing_allocation_is_clean(void **state)
{
    (void)state;
    static const char *const texts[] = {"ab", "abc"};
    static const size_t lens[] = {2, 3};
    bool failed = true;
    for (long n = 0; failed; n++) {
        struct stop_set set;
        mem_fail_after(n);
        fathom_err err = stop_set_create(&set, texts, lens, 2);
        failed = mem_fail_hit();
        mem_fail_after(-1);
        assert_int_equal(err, failed ? FATHOM_ENOMEM : FATHOM_OK);
        stop_set_destroy(&set);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_against_plain_search),
        cmocka_unit_test(test_holds_back_only_what_may_stop),
        cmocka_unit_test(test_no_patterns_pass_all),
        cmocka_unit_test(test_each_failing_allocation_is_clean),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
