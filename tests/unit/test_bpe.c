/* test_bpe.c - merging: the lowest rank first, against plain merging */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/limits.h"
#include "base/mem.h"
#include "base/rng.h"
#include "tokenizer/bpe.h"

/* A vocabulary of the 256 bytes (id = byte) and of what the merges make. */
struct model {
    struct vocab vocab;
    struct bpe bpe;
    uint32_t n_merge;
    uint32_t merges[512][3]; /* left, right, merged */
};

static void add_bytes(struct vocab *v)
{
    for (uint32_t b = 0; b < 256; b++) {
        char c = (char)b;
        assert_int_equal(vocab_add(v, b, &c, 1, VOCAB_SPELLED), 0);
    }
}

/* Merges by their bytes, "l r" each; the joined token is made where it is missing. */
static void make_model(struct model *m, const char *const (*merges)[2], uint32_t n)
{
    uint32_t twin[2];
    unsigned missing;
    memset(m, 0, sizeof *m);
    add_bytes(&m->vocab);
    for (uint32_t i = 0; i < n; i++) {
        char joined[64];
        int n_byte = snprintf(joined, sizeof joined, "%s%s", merges[i][0], merges[i][1]);
        bool known = false;
        for (uint32_t id = 256; id < m->vocab.n_id; id++) {
            known |= m->vocab.tokens[id].n_byte == n_byte &&
                     memcmp(vocab_bytes(&m->vocab, id), joined, (size_t)n_byte) == 0;
        }
        if (known) continue;
        assert_int_equal(vocab_add(&m->vocab, m->vocab.n_id, joined, (size_t)n_byte, VOCAB_SPELLED),
                         0);
    }
    assert_int_equal(vocab_index(&m->vocab, twin), 0);
    assert_int_equal(bpe_open(&m->bpe, &m->vocab, n, &missing), 0);
    for (uint32_t i = 0; i < n; i++) {
        char joined[64];
        int n_byte = snprintf(joined, sizeof joined, "%s%s", merges[i][0], merges[i][1]);
        uint32_t *ids = m->merges[m->n_merge++];
        ids[0] = (uint32_t)vocab_find(&m->vocab, merges[i][0], strlen(merges[i][0]));
        ids[1] = (uint32_t)vocab_find(&m->vocab, merges[i][1], strlen(merges[i][1]));
        ids[2] = (uint32_t)vocab_find(&m->vocab, joined, (size_t)n_byte);
        bpe_add(&m->bpe, ids[0], ids[1], ids[2]);
    }
}

static void free_model(struct model *m)
{
    bpe_free(&m->bpe);
    vocab_free(&m->vocab);
}

/* The meaning of merging, as slowly as it can be said. Returns how many ids are left. */
static size_t merge_plainly(const struct model *m, const char *s, size_t n, int32_t *ids)
{
    for (size_t i = 0; i < n; i++) ids[i] = (unsigned char)s[i];
    for (uint32_t rank = 0; rank < m->n_merge;) {
        size_t i = 0;
        while (i + 1 < n && ((uint32_t)ids[i] != m->merges[rank][0] ||
                             (uint32_t)ids[i + 1] != m->merges[rank][1])) {
            i++;
        }
        if (i + 1 >= n) {
            rank++;
            continue;
        }
        ids[i] = (int32_t)m->merges[rank][2];
        memmove(ids + i + 1, ids + i + 2, (n - i - 2) * sizeof *ids);
        n--;
        rank = 0;
    }
    return n;
}

static void expect_plain(const struct model *m, const char *s, size_t n)
{
    struct bpe_scratch scratch = {0};
    struct token_list got = {0};
    int32_t *want = mem_alloc_array(n, sizeof *want);
    size_t n_want = merge_plainly(m, s, n, want);
    assert_int_equal(bpe_encode(&m->bpe, s, n, &scratch, &got), 0);
    assert_int_equal(got.n, n_want);
    if (n_want) assert_memory_equal(got.ids, want, n_want * sizeof *want);
    mem_free(want);
    token_list_free(&got);
    bpe_scratch_free(&scratch);
}

static void merges_lowest_rank_first(void **state)
{
    (void)state;
    static const char *const merges[][2] = {{"b", "c"}, {"a", "b"}, {"a", "bc"}, {"x", "x"}};
    struct model m;
    make_model(&m, merges, 4);
    struct bpe_scratch scratch = {0};
    struct token_list ids = {0};
    assert_int_equal(bpe_encode(&m.bpe, "abcabxxx", 8, &scratch, &ids), 0);
    const int32_t want[] = {vocab_find(&m.vocab, "abc", 3), vocab_find(&m.vocab, "ab", 2),
                            vocab_find(&m.vocab, "xx", 2), 'x'}; /* leftmost xx of xxx */
    assert_int_equal(ids.n, 4);
    assert_memory_equal(ids.ids, want, sizeof want);
    token_list_free(&ids);
    bpe_scratch_free(&scratch);
    free_model(&m);
}

/* A token that its own merges do not give is found only where merging is ignored. */
static void marks_only_what_merges_give(void **state)
{
    (void)state;
    static const char *const merges[][2] = {{"b", "c"}, {"a", "b"}, {"ab", "c"}};
    struct model m;
    make_model(&m, merges, 3);
    assert_int_equal(bpe_mark_whole(&m.bpe, &m.vocab, false), 0);
    assert_int_equal(vocab_find_whole(&m.vocab, "ab", 2), vocab_find(&m.vocab, "ab", 2));
    assert_true(vocab_find(&m.vocab, "abc", 3) >= 0);
    assert_int_equal(vocab_find_whole(&m.vocab, "abc", 3), -1); /* a, bc: no merge joins them */
    expect_plain(&m, "abc", 3);
    assert_int_equal(bpe_mark_whole(&m.bpe, &m.vocab, true), 0);
    assert_int_equal(vocab_find_whole(&m.vocab, "abc", 3), vocab_find(&m.vocab, "abc", 3));
    free_model(&m);
}

static bool is_listed(char names[][2][16], uint32_t n, const char *left, const char *right)
{
    for (uint32_t i = 0; i < n; i++) {
        if (strcmp(names[i][0], left) == 0 && strcmp(names[i][1], right) == 0) return true;
    }
    return false;
}

/* Random merges, ranks in no order of length, texts on both sides of the change of method. */
static void agrees_with_plain_merging(void **state)
{
    (void)state;
    uint64_t rng = 7;
    for (int round = 0; round < 30; round++) {
        char names[60][2][16];
        const char *merges[60][2];
        char tokens[64][32] = {"a", "b", "c"};
        uint32_t n_token = 3, n = 0;
        while (n < 60) {
            const char *left = tokens[rng_below(&rng, n_token)];
            const char *right = tokens[rng_below(&rng, n_token)];
            if (strlen(left) + strlen(right) > 12 || is_listed(names, n, left, right)) continue;
            (void)snprintf(names[n][0], 16, "%.15s", left);
            (void)snprintf(names[n][1], 16, "%.15s", right);
            (void)snprintf(tokens[n_token++], 32, "%s%s", names[n][0], names[n][1]);
            n++;
        }
        /* shuffled, so that ranks are not in the order in which tokens were made */
        for (uint32_t i = n; i > 1; i--) {
            char swap[2][16];
            uint32_t j = (uint32_t)rng_below(&rng, i);
            memcpy(swap, names[j], sizeof swap);
            memcpy(names[j], names[i - 1], sizeof swap);
            memcpy(names[i - 1], swap, sizeof swap);
        }
        for (uint32_t i = 0; i < n; i++) {
            merges[i][0] = names[i][0];
            merges[i][1] = names[i][1];
        }
        struct model m;
        make_model(&m, merges, n);
        if (round % 2) assert_int_equal(bpe_mark_whole(&m.bpe, &m.vocab, false), 0);
        for (int i = 0; i < 60; i++) {
            char text[400];
            size_t n_byte = 1 + rng_below(&rng, i % 2 ? 20 : sizeof text - 1);
            uint64_t alphabet = 1 + rng_below(&rng, 3);
            for (size_t k = 0; k < n_byte; k++) text[k] = (char)('a' + rng_below(&rng, alphabet));
            expect_plain(&m, text, n_byte);
        }
        free_model(&m);
    }
}

static void reads_the_last_of_equal_merges(void **state)
{
    (void)state;
    static const char *const merges[][2] = {{"a", "b"}, {"b", "c"}, {"a", "b"}};
    struct model m;
    make_model(&m, merges, 3);
    struct bpe_scratch scratch = {0};
    struct token_list ids = {0};
    assert_int_equal(bpe_encode(&m.bpe, "abc", 3, &scratch, &ids), 0);
    assert_int_equal(ids.n, 2);
    assert_int_equal(ids.ids[0], 'a');
    token_list_free(&ids);
    bpe_scratch_free(&scratch);
    free_model(&m);
}

static void refuses_missing_bytes_and_limits(void **state)
{
    (void)state;
    struct vocab v = {0};
    struct bpe b;
    unsigned missing = 0;
    uint32_t twin[2];
    assert_int_equal(vocab_add(&v, 0, "\0", 1, VOCAB_SPELLED), 0);
    assert_int_equal(vocab_index(&v, twin), 0);
    assert_int_equal(bpe_open(&b, &v, 0, &missing), FATHOM_EINVAL);
    assert_int_equal(missing, 1);
    assert_int_equal(bpe_open(&b, &v, LIMIT_MERGES + 1, &missing), FATHOM_ELIMIT);
    bpe_free(&b);
    vocab_free(&v);
}

static void survives_failing_memory(void **state)
{
    (void)state;
    static const char *const merges[][2] = {{"a", "a"}};
    static char text[1000];
    memset(text, 'a', sizeof text);
    struct model m;
    make_model(&m, merges, 1);
    for (long fail = 0;; fail++) {
        struct bpe b = {0};
        struct bpe_scratch scratch = {0};
        struct token_list ids = {0};
        unsigned missing;
        mem_fail_after(fail);
        fathom_err err = bpe_open(&b, &m.vocab, 1, &missing);
        if (!err) bpe_add(&b, 'a', 'a', 256);
        if (!err) err = bpe_encode(&b, text, sizeof text, &scratch, &ids);
        if (!err) err = bpe_mark_whole(&b, &m.vocab, false);
        bool hit = mem_fail_hit();
        mem_fail_after(-1);
        token_list_free(&ids);
        bpe_scratch_free(&scratch);
        bpe_free(&b);
        assert_int_equal(err, hit ? FATHOM_ENOMEM : FATHOM_OK);
        if (!hit) break;
    }
    free_model(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(merges_lowest_rank_first),
        cmocka_unit_test(marks_only_what_merges_give),
        cmocka_unit_test(agrees_with_plain_merging),
        cmocka_unit_test(reads_the_last_of_equal_merges),
        cmocka_unit_test(refuses_missing_bytes_and_limits),
        cmocka_unit_test(survives_failing_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
