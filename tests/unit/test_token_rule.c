/* test_token_rule.c - allowed ids and bad words against their definition, along random outputs with
 * places to go back to */
#include "server/token_rule.h"

#include <stdlib.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include "base/mem.h"
#include "base/rng.h"
#include "support/tokenizer_data.h"
#include "support/world.h"

enum { N_VOCAB = 276, N_WORD = (N_VOCAB + 31) / 32, LENGTH = 400 };

static const struct rule_source *source(void)
{
    static struct rule_source from = {.n_vocab = N_VOCAB};
    from.tokenizer = world_tokenizer();
    return &from;
}

static struct token_rule *make(struct api_request *r, const char *body)
{
    struct token_rule *rule;
    struct api_error e = {0};
    const struct api_bounds bounds = {.n_vocab = N_VOCAB};
    assert_int_equal(api_request_parse(r, API_COMPLETION, body, strlen(body), &bounds, &e), 0);
    assert_int_equal(token_rule_create(&rule, r, source(), &e), 0);
    return rule;
}

/* An id may come unless it ends a bad word in the output; every word here is of bytes. */
static bool may_come(const int32_t *out, size_t n, int32_t id, const char *const *words,
                     const int32_t *byte_ids)
{
    for (; *words; words++) {
        size_t len = strlen(*words), i = 0;
        if (byte_ids[(unsigned char)(*words)[len - 1]] != id || n < len - 1) continue;
        while (i < len - 1 && out[n - len + 1 + i] == byte_ids[(unsigned char)(*words)[i]]) i++;
        if (i == len - 1) return false;
    }
    return true;
}

static void find_byte_ids(int32_t ids[256])
{
    for (int c = 'a'; c <= 'z'; c++) {
        struct token_list l = {0};
        char text = (char)c;
        assert_int_equal(tokenizer_encode(world_tokenizer(), &text, 1, TOKENIZER_MARKUP_OFF, &l),
                         0);
        assert_int_equal(l.n, 1);
        ids[c] = l.ids[0];
        token_list_free(&l);
    }
}

static void test_masks_are_the_definition(void **state)
{
    (void)state;
    static const char *const words[] = {"aa", "abab", "c", "bca", NULL};
    struct api_request r;
    uint64_t rng = 7;
    int32_t byte_ids[256] = {0}, out[LENGTH];
    uint32_t mask[N_WORD];
    size_t n = 0, n_marked = 0, n_barred = 0;
    find_byte_ids(byte_ids);
    struct token_rule *rule =
        make(&r, "{\"prompt\":\"x\",\"bad_words\":[\"aa\",\"abab\",\"c\",\"bca\"]}");
    fathom_constraint c = {0};
    assert_int_equal(token_rule_constrain(rule, &c), 0);
    token_rule_destroy(rule);
    c.ops->mark(c.state);
    while (n < LENGTH) {
        int32_t id = byte_ids['a' + rng_next(&rng) % 4]; /* d may always come */
        bool may = may_come(out, n, id, words, byte_ids);
        c.ops->fill_mask(c.state, mask, N_WORD);
        assert_int_equal(mask[id / 32] >> (id % 32) & 1, may);
        assert_int_equal(c.ops->accept(c.state, id), may);
        n_barred += !may;
        if (may) out[n++] = id;
        if (rng_next(&rng) % 5 == 0) {
            c.ops->mark(c.state);
            n_marked = n;
        } else if (rng_next(&rng) % 9 == 0) {
            c.ops->go_back(c.state);
            n = n_marked;
        }
    }
    assert_true(n_barred > 50);
    c.ops->destroy(c.state);
    api_request_free(&r);
}

static void test_ids_that_are_allowed(void **state)
{
    (void)state;
    struct api_request r;
    uint32_t mask[N_WORD + 1];
    struct token_rule *rule = make(&r, "{\"prompt\":\"x\",\"allowed_token_ids\":[1,33,275]}");
    fathom_constraint c = {0};
    assert_int_equal(token_rule_constrain(rule, &c), 0);
    token_rule_destroy(rule);
    c.ops->fill_mask(c.state, mask, N_WORD + 1);
    for (uint32_t id = 0; id < 32 * (N_WORD + 1); id++) {
        bool may = id == 1 || id == 33 || id == 275;
        assert_int_equal(mask[id / 32] >> (id % 32) & 1, may);
        assert_int_equal(c.ops->accept(c.state, (int32_t)id), may);
    }
    c.ops->destroy(c.state);
    api_request_free(&r);
}

/* In the pilot's vocabulary "the" is two tokens and " the" is one. */
static void test_a_word_behind_a_space_is_barred_however_many_tokens_it_is(void **state)
{
    (void)state;
    struct tokenizer *pilot;
    struct token_list plain = {0}, spaced = {0};
    struct api_request r;
    struct api_error e = {0};
    struct token_rule *rule = make(&r, "{\"prompt\":\"x\",\"bad_words\":[\"the\"]}");
    token_rule_destroy(rule);
    assert_int_equal(tokenizer_open_file(&pilot, TOKENIZER_PILOT_JSON, NULL), 0);
    assert_int_equal(tokenizer_encode(pilot, "the", 3, TOKENIZER_MARKUP_OFF, &plain), 0);
    assert_int_equal(tokenizer_encode(pilot, " the", 4, TOKENIZER_MARKUP_OFF, &spaced), 0);
    assert_true(plain.n == 2 && spaced.n == 1);
    const struct rule_source from = {pilot, (uint32_t)tokenizer_n_token(pilot)};
    assert_int_equal(token_rule_create(&rule, &r, &from, &e), 0);
    fathom_constraint c = {0};
    assert_int_equal(token_rule_constrain(rule, &c), 0);
    token_rule_destroy(rule);
    assert_false(c.ops->accept(c.state, spaced.ids[0]));
    assert_true(c.ops->accept(c.state, plain.ids[0]));
    assert_false(c.ops->accept(c.state, plain.ids[1]));
    c.ops->destroy(c.state);
    token_list_free(&plain);
    token_list_free(&spaced);
    tokenizer_close(pilot);
    api_request_free(&r);
}

/* A mask has no bits for them. */
static void test_words_of_tokens_that_the_model_lacks_bar_nothing(void **state)
{
    (void)state;
    enum { FEW_WORDS = 2 };
    const uint32_t untouched = 0x5a5a5a5a;
    struct api_request r;
    struct api_error e = {0};
    const struct rule_source from = {world_tokenizer(), 32 * FEW_WORDS};
    int32_t byte_ids[256] = {0};
    uint32_t mask[N_WORD];
    struct token_rule *rule = make(&r, "{\"prompt\":\"x\",\"bad_words\":[\"z\"]}");
    token_rule_destroy(rule);
    find_byte_ids(byte_ids);
    assert_true(byte_ids['z'] >= 32 * FEW_WORDS);
    assert_int_equal(token_rule_create(&rule, &r, &from, &e), 0);
    fathom_constraint c = {0};
    assert_int_equal(token_rule_constrain(rule, &c), 0);
    token_rule_destroy(rule);
    for (int i = 0; i < N_WORD; i++) mask[i] = untouched;
    c.ops->fill_mask(c.state, mask, FEW_WORDS);
    for (int i = 0; i < N_WORD; i++)
        assert_int_equal(mask[i], i < FEW_WORDS ? UINT32_MAX : untouched);
    c.ops->destroy(c.state);
    api_request_free(&r);
}

static void test_each_failing_allocation_is_clean(void **state)
{
    (void)state;
    struct api_request r;
    struct api_error e = {0};
    struct token_rule *rule =
        make(&r, "{\"prompt\":\"x\",\"allowed_token_ids\":[1],\"bad_words\":[\"ab\"]}");
    token_rule_destroy(rule);
    bool failed = true;
    for (long n = 0; failed; n++) {
        fathom_constraint c = {0};
        mem_fail_after(n);
        fathom_err err = token_rule_create(&rule, &r, source(), &e);
        if (!err) err = token_rule_constrain(rule, &c);
        failed = mem_fail_hit();
        mem_fail_after(-1);
        assert_int_equal(err, failed ? FATHOM_ENOMEM : FATHOM_OK);
        token_rule_destroy(rule);
        if (c.ops) c.ops->destroy(c.state);
    }
    api_request_free(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_masks_are_the_definition),
        cmocka_unit_test(test_ids_that_are_allowed),
        cmocka_unit_test(test_a_word_behind_a_space_is_barred_however_many_tokens_it_is),
        cmocka_unit_test(test_words_of_tokens_that_the_model_lacks_bar_nothing),
        cmocka_unit_test(test_each_failing_allocation_is_clean),
    };
    return cmocka_run_group_tests(tests, world_setup, world_teardown);
}
