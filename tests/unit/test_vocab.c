/* test_vocab.c - tokens by their bytes, and the byte alphabet */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/limits.h"
#include "base/mem.h"
#include "base/rng.h"
#include "base/utf8.h"
#include "tokenizer/vocab.h"

static void unspells_all_bytes(void **state)
{
    (void)state;
    bool seen[256] = {false};
    char name[4], out[4];
    for (int32_t cp = 0; cp < 0x180; cp++) {
        size_t n = utf8_encode(name, cp);
        ptrdiff_t n_out = vocab_unspell(name, n, out);
        if (n_out < 0) continue;
        assert_int_equal(n_out, 1);
        assert_false(seen[(unsigned char)out[0]]);
        seen[(unsigned char)out[0]] = true;
    }
    for (int b = 0; b < 256; b++) assert_true(seen[b]);
}

/* Pairs that every file of the format has. */
static void unspells_known_names(void **state)
{
    (void)state;
    static const struct {
        const char *name, *bytes;
    } known[] = {{"Ġt", " t"},  {"Ċ", "\n"},   {"ĉĉ", "\t\t"}, {"ä½łå¥½", "你好"}, {"č", "\r"},
                 {"Ã©", "é"},   {"ł", "\xa0"}, {"Ń", "\xad"},  {"ġ", "\x7f"},      {"Ģ", "\x80"},
                 {"ÿ", "\xff"}, {"~!", "~!"},  {"ðŁĺĢ", "😀"}};
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        char out[64];
        ptrdiff_t n = vocab_unspell(known[i].name, strlen(known[i].name), out);
        assert_int_equal(n, strlen(known[i].bytes));
        assert_memory_equal(out, known[i].bytes, (size_t)n);
    }
}

static void leaves_other_names(void **state)
{
    (void)state;
    static const char *const others[] = {" ", "a b",  "｜",    "\n",   "\xc2\xa0",
                                         "ń", "\xc5", "\xc5x", "\xff", "▁of"};
    char out[16];
    assert_int_equal(vocab_unspell("", 0, out), 0);
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        assert_int_equal(vocab_unspell(others[i], strlen(others[i]), out), -1);
    }
    assert_int_equal(vocab_unspell("Ń", 2, out),
                     1); /* the last of the alphabet; ń is one past it */
}

static void finds_what_was_added(void **state)
{
    (void)state;
    struct vocab v = {0};
    uint32_t twin[2];
    char name[40];
    enum { N = 3000 };
    /* ids in no order and with holes, names of many lengths */
    for (uint32_t i = 0; i < N; i++) {
        int n = snprintf(name, sizeof name, "%0*u", (int)(i % 37), i);
        assert_int_equal(vocab_add(&v, (i * 7919) % N * 2, name, (size_t)n, VOCAB_SPELLED), 0);
    }
    assert_int_equal(vocab_add(&v, 1, "raw", 3, 0), 0);
    assert_int_equal(vocab_index(&v, twin), 0);
    for (uint32_t i = 0; i < N; i++) {
        int n = snprintf(name, sizeof name, "%0*u", (int)(i % 37), i);
        assert_int_equal(vocab_find(&v, name, (size_t)n), (i * 7919) % N * 2);
        assert_int_equal(vocab_find_whole(&v, name, (size_t)n), -1);
        name[n - 1] ^= 1; /* a neighbour, which may exist, is never this one */
        assert_int_not_equal(vocab_find(&v, name, (size_t)n), (i * 7919) % N * 2);
    }
    assert_int_equal(vocab_find(&v, "raw", 3), -1);
    assert_int_equal(vocab_find(&v, "", 0), -1);
    assert_true(vocab_has(&v, 1, VOCAB_PRESENT));
    assert_false(vocab_has(&v, 1, VOCAB_SPELLED));
    assert_false(vocab_has(&v, 3, VOCAB_PRESENT));
    assert_false(vocab_has(&v, -1, VOCAB_PRESENT));
    assert_false(vocab_has(&v, v.n_id, VOCAB_PRESENT));
    v.tokens[0].flags |= VOCAB_WHOLE;
    assert_int_equal(vocab_find_whole(&v, "0", 1), 0);
    vocab_free(&v);
}

static void refuses_twins_and_limits(void **state)
{
    (void)state;
    struct vocab v = {0};
    uint32_t twin[2];
    static char large[LIMIT_TOKEN_BYTES + 1];
    assert_int_equal(vocab_add(&v, 5, "ab", 2, VOCAB_SPELLED), 0);
    assert_int_equal(vocab_add(&v, 5, "cd", 2, VOCAB_SPELLED), FATHOM_EINVAL);
    assert_int_equal(vocab_add(&v, LIMIT_TOKEN_IDS, "x", 1, 0), FATHOM_ELIMIT);
    assert_int_equal(vocab_add(&v, 6, large, sizeof large, 0), FATHOM_ELIMIT);
    assert_int_equal(vocab_add(&v, 6, large, sizeof large - 1, 0), 0);
    assert_int_equal(vocab_add(&v, 7, "ab", 2, VOCAB_SPELLED), 0);
    assert_int_equal(vocab_index(&v, twin), FATHOM_EINVAL);
    assert_int_equal(twin[0], 5);
    assert_int_equal(twin[1], 7);
    vocab_free(&v);
    vocab_free(&v);
}

static void survives_failing_memory(void **state)
{
    (void)state;
    for (long fail = 0;; fail++) {
        struct vocab v = {0};
        uint32_t twin[2];
        mem_fail_after(fail);
        fathom_err err = vocab_add(&v, 0, "a", 1, VOCAB_SPELLED);
        if (!err) err = vocab_add(&v, 5000, "b", 1, VOCAB_SPELLED);
        if (!err) err = vocab_index(&v, twin);
        bool hit = mem_fail_hit();
        mem_fail_after(-1);
        vocab_free(&v);
        assert_int_equal(err, hit ? FATHOM_ENOMEM : FATHOM_OK);
        if (!hit) break;
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(unspells_all_bytes),       cmocka_unit_test(unspells_known_names),
        cmocka_unit_test(leaves_other_names),       cmocka_unit_test(finds_what_was_added),
        cmocka_unit_test(refuses_twins_and_limits), cmocka_unit_test(survives_failing_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
