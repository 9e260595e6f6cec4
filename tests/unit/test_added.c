/* test_added.c - finding added tokens in a text: the longest of the leftmost */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "base/rng.h"
#include "tokenizer/added.h"

struct fixture {
    struct vocab vocab;
    struct added_set set;
};

static void make(struct fixture *f, const char *const *tokens, uint32_t n)
{
    uint32_t twin;
    memset(f, 0, sizeof *f);
    for (uint32_t i = 0; i < n; i++) {
        assert_int_equal(vocab_add(&f->vocab, i, tokens[i], strlen(tokens[i]), VOCAB_ADDED), 0);
        assert_int_equal(added_put(&f->set, i), 0);
    }
    assert_int_equal(added_sort(&f->set, &f->vocab, &twin), 0);
}

static void release(struct fixture *f)
{
    added_free(&f->set);
    vocab_free(&f->vocab);
}

/* Leftmost, longest: every token tried at every place. */
static int32_t next_plainly(const struct fixture *f, const char *s, size_t n, size_t from,
                            size_t *at)
{
    for (*at = from; *at < n; ++*at) {
        int32_t longest = -1;
        for (uint32_t i = 0; i < f->vocab.n_id; i++) {
            size_t n_byte = f->vocab.tokens[i].n_byte;
            if (n_byte > n - *at || memcmp(vocab_bytes(&f->vocab, i), s + *at, n_byte) != 0)
                continue;
            if (longest < 0 || n_byte > f->vocab.tokens[longest].n_byte) longest = (int32_t)i;
        }
        if (longest >= 0) return longest;
    }
    return -1;
}

static void expect_plain(const struct fixture *f, const char *s, size_t n)
{
    for (size_t from = 0; from <= n;) {
        size_t at = 0, want_at = 0;
        int32_t want = next_plainly(f, s, n, from, &want_at);
        assert_int_equal(added_next(&f->set, &f->vocab, s, n, from, &at), want);
        if (want < 0) break;
        assert_int_equal(at, want_at);
        from = at + f->vocab.tokens[want].n_byte;
    }
}

static void finds_longest_of_leftmost(void **state)
{
    (void)state;
    static const char *const tokens[] = {"<a>", "<a", "<a><b>", "<", "b>"};
    struct fixture f;
    size_t at;
    make(&f, tokens, 5);
    assert_int_equal(added_next(&f.set, &f.vocab, "x<a><b>", 7, 0, &at), 2);
    assert_int_equal(at, 1);
    assert_int_equal(added_next(&f.set, &f.vocab, "x<a><c>", 7, 0, &at), 0);
    assert_int_equal(added_next(&f.set, &f.vocab, "x<a", 3, 0, &at), 1);
    assert_int_equal(added_next(&f.set, &f.vocab, "<", 1, 0, &at), 3);
    assert_int_equal(added_next(&f.set, &f.vocab, "ab>", 3, 0, &at), 4);
    assert_int_equal(added_next(&f.set, &f.vocab, "ab>", 2, 0, &at), -1);
    assert_int_equal(added_next(&f.set, &f.vocab, "", 0, 0, &at), -1);
    assert_int_equal(added_find(&f.set, &f.vocab, "<a", 2), 1);
    assert_int_equal(added_find(&f.set, &f.vocab, "<a>", 3), 0);
    assert_int_equal(added_find(&f.set, &f.vocab, "a", 1), -1);
    release(&f);
}

static void agrees_with_plain_search(void **state)
{
    (void)state;
    uint64_t rng = 3;
    for (int round = 0; round < 200; round++) {
        char tokens[12][8] = {{0}};
        const char *list[12];
        uint32_t n = 0;
        int alphabet = round % 2 ? 2 : 1 + (int)rng_below(&rng, 4);
        while (n < 1 + (uint32_t)round % 12 && n < 5) {
            size_t n_byte = 1 + rng_below(&rng, 6);
            memset(tokens[n], 0, sizeof tokens[n]);
            for (size_t i = 0; i < n_byte; i++) {
                tokens[n][i] = (char)('a' + rng_below(&rng, (uint64_t)alphabet));
            }
            bool twin = false;
            for (uint32_t i = 0; i < n; i++) twin |= strcmp(tokens[i], tokens[n]) == 0;
            list[n] = tokens[n];
            if (!twin) n++;
        }
        struct fixture f;
        make(&f, list, n);
        for (int i = 0; i < 50; i++) {
            char text[40];
            size_t n_byte = rng_below(&rng, sizeof text);
            for (size_t k = 0; k < n_byte; k++) {
                text[k] = (char)('a' + rng_below(&rng, (uint64_t)alphabet + 1));
            }
            expect_plain(&f, text, n_byte);
        }
        release(&f);
    }
}

static void finds_nothing_in_an_empty_set(void **state)
{
    (void)state;
    struct fixture f;
    size_t at;
    make(&f, NULL, 0);
    assert_int_equal(added_next(&f.set, &f.vocab, "abc", 3, 0, &at), -1);
    assert_int_equal(added_find(&f.set, &f.vocab, "abc", 3), -1);
    release(&f);
}

static void refuses_twins(void **state)
{
    (void)state;
    struct vocab v = {0};
    struct added_set set = {0};
    uint32_t twin = 0;
    for (uint32_t id = 0; id < 3; id++) {
        assert_int_equal(vocab_add(&v, id, id == 1 ? "y" : "x", 1, 0), 0);
        assert_int_equal(added_put(&set, id), 0);
    }
    assert_int_equal(added_sort(&set, &v, &twin), FATHOM_EINVAL);
    assert_true(twin == 0 || twin == 2);
    added_free(&set);
    vocab_free(&v);
}

static void survives_failing_memory(void **state)
{
    (void)state;
    struct added_set set = {0};
    mem_fail_after(0);
    assert_int_equal(added_put(&set, 1), FATHOM_ENOMEM);
    mem_fail_after(-1);
    assert_int_equal(set.n, 0);
    added_free(&set);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(finds_longest_of_leftmost),     cmocka_unit_test(agrees_with_plain_search),
        cmocka_unit_test(finds_nothing_in_an_empty_set), cmocka_unit_test(refuses_twins),
        cmocka_unit_test(survives_failing_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
