/* test_thinking_budget.c - reasoning under a budget against its definition, along random outputs
 * with places to go back to; with a grammar behind it; and what the tags of a checkpoint are */
#include "server/thinking_budget.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "base/rng.h"
#include "chat/answer_grammar.h"
#include "server/grammar_constraint.h"

#define TOKENIZER_JSON FATHOM_SOURCE_DIR "/models/pilot/tokenizer.json"

enum {
    BEGIN = 5,
    END = 6,
    CALLS = 8,
    TURN = 12,
    WORD = 300,
    N_WORD = 10,
    LENGTH = 60,
    N_CASE = 4000
};

static int32_t closing_ids[] = {304, 305, 304};

static uint64_t rng = 11;

static uint32_t below(uint32_t n)
{
    return (uint32_t)rng_below(&rng, n);
}

static int32_t any_id(void)
{
    static const int32_t tags[] = {BEGIN, END, CALLS};
    return below(12) ? WORD + (int32_t)below(4) : tags[below(3)];
}

/* ---- the definition ------------------------------------------------------------------------ */

/* The only token that may come behind an output of n tokens; -1: any may. */
static int32_t wanted(const struct thinking_budget *b, const struct token_list *prompt,
                      bool thinking, const int32_t *out, uint32_t n)
{
    uint32_t n_reasoning = 0, n_said = 0, i = 0;
    bool opened = false;
    for (size_t k = 0; thinking && k < prompt->n; k++) {
        if (prompt->ids[k] == BEGIN || prompt->ids[k] == END || prompt->ids[k] == TURN) {
            opened = prompt->ids[k] == BEGIN;
            n_reasoning = 0;
        } else if (opened) {
            n_reasoning++;
        }
    }
    if (!opened) {
        if (n == 0) return thinking && b->n_token == 0 ? BEGIN : -1;
        if (out[0] == BEGIN) i = 1;
        if (out[0] != BEGIN && !thinking) return -1;
    }
    for (; i < n; i++) {
        if (out[i] == END || out[i] == CALLS) return -1;
        n_said += n_reasoning >= b->n_token;
        n_reasoning++;
    }
    if (n_reasoning < b->n_token) return -1;
    return n_said < b->closing->n ? b->closing->ids[n_said] : END;
}

/* A prompt whose last tag, if it has any, is followed by a few tokens. */
static void make_prompt(struct token_list *prompt)
{
    static const int32_t tags[] = {WORD, BEGIN, END, TURN};
    prompt->n = 0;
    for (int i = 0; i < 2; i++) {
        assert_int_equal(token_list_add(prompt, tags[below(4)]), FATHOM_OK);
        for (uint32_t k = below(4); k > 0; k--)
            assert_int_equal(token_list_add(prompt, WORD), FATHOM_OK);
    }
}

static void expect_mask(const fathom_constraint *c, int32_t only)
{
    uint32_t mask[N_WORD];
    c->ops->fill_mask(c->state, mask, N_WORD);
    for (int32_t id = 0; id < 32 * N_WORD; id++)
        assert_int_equal(mask[id / 32] >> (id % 32) & 1, only < 0 || id == only);
}

static void walk(const struct thinking_budget *b, const struct token_list *prompt, bool thinking,
                 uint32_t *n_forced)
{
    int32_t out[LENGTH];
    uint32_t n = 0, n_marked = 0, n_free = 0;
    fathom_constraint c = {0};
    assert_int_equal(thinking_budget_constrain(b, prompt, thinking, &c), FATHOM_OK);
    c.ops->mark(c.state);
    while (n < LENGTH) {
        const int32_t only = wanted(b, prompt, thinking, out, n), id = any_id();
        expect_mask(&c, only);
        assert_true(c.ops->n_free(c.state) >= n_free); /* what was free stays so */
        n_free = c.ops->n_free(c.state);
        assert_int_equal(n_free == 0, only >= 0);
        const bool may = only < 0 || id == only;
        assert_int_equal(c.ops->accept(c.state, id), may);
        if (!may) assert_true(c.ops->accept(c.state, only));
        *n_forced += !may;
        out[n++] = may ? id : only;
        n_free -= n_free > 0;
        if (below(5) == 0) {
            c.ops->mark(c.state);
            n_marked = n;
        } else if (below(9) == 0) {
            c.ops->go_back(c.state);
            n = n_marked;
            n_free = 0;
        }
    }
    c.ops->destroy(c.state);
}

static void masks_are_the_definition(void **state)
{
    (void)state;
    struct token_list prompt = {0};
    uint32_t n_forced = 0;
    for (int i = 0; i < N_CASE; i++) {
        const struct token_list closing = {.ids = closing_ids, .n = below(4)};
        const struct thinking_budget b = {below(7), BEGIN, END, CALLS, &closing, TURN};
        make_prompt(&prompt);
        walk(&b, &prompt, below(2), &n_forced);
    }
    assert_true(n_forced > N_CASE / 4);
    token_list_free(&prompt);
}

static void a_prompt_opens_reasoning_by_its_last_tag(void **state)
{
    (void)state;
    static const struct {
        int32_t ids[4];
        bool opens;
    } cases[] = {{{9, 9, 9, 9}, false},       {{BEGIN, 9, 9, 9}, true},
                 {{BEGIN, 9, END, 9}, false}, {{BEGIN, 9, TURN, 9}, false}, /* another's */
                 {{TURN, 9, 9, BEGIN}, true}, {{END, 9, 9, BEGIN}, true}};
    const struct thinking_budget b = {1, BEGIN, END, -1, NULL, TURN};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct token_list prompt = {0};
        for (int k = 0; k < 4; k++)
            assert_int_equal(token_list_add(&prompt, cases[i].ids[k]), FATHOM_OK);
        assert_int_equal(thinking_budget_opens(&b, &prompt), cases[i].opens);
        token_list_free(&prompt);
    }
}

/* ---- with a grammar ------------------------------------------------------------------------- */

static int32_t draw(const uint32_t *mask, int32_t n_token)
{
    int32_t id;
    do {
        id = (int32_t)below((uint32_t)n_token);
    } while (!(mask[id / 32] >> (id % 32) & 1));
    return id;
}

/* Draws an output; returns its tokens up to </think>. What follows is one of the choices. */
static uint32_t draw_output(const struct tokenizer *t, const fathom_constraint *c, uint32_t n_word,
                            const int32_t *eos)
{
    static uint32_t mask[1 << 10];
    char text[64];
    size_t n_text = 0;
    uint32_t n_reasoning = 0;
    bool inside = true;
    for (int32_t id = -1; id != *eos;) {
        assert_int_equal(c->ops->n_free(c->state), 0);
        c->ops->fill_mask(c->state, mask, n_word);
        id = draw(mask, tokenizer_n_token(t));
        assert_true(c->ops->accept(c->state, id));
        size_t n;
        const char *bytes = tokenizer_bytes(t, id, &n);
        if (inside) {
            n_reasoning += id != END;
        } else if (id != *eos) {
            assert_true(n_text + n < sizeof text);
            memcpy(text + n_text, bytes, n);
            n_text += n;
        }
        inside = inside && id != END;
    }
    text[n_text] = '\0';
    assert_true(strcmp(text, "yes") == 0 || strcmp(text, "no") == 0);
    return n_reasoning;
}

/* Tokens are drawn at random, so many end within a character: that one comes to its end. */
static void what_a_grammar_wants_begins_behind_the_budget(void **state)
{
    const struct tokenizer *t = *state;
    const struct token_list prompt = {0};
    const fathom_info info = {.eos_ids = {1}, .n_eos = 1};
    struct thinking_budget b = {0, -1, END, -1, NULL, -1};
    struct grammar_vocab *v;
    struct grammar *g;
    json_t *choices = json_pack("[s, s]", "yes", "no");
    const struct answer_grammar answer = {
        .thinking = true, .content = ANSWER_CONTENT_CHOICE, .value = choices};
    uint32_t n_late = 0;
    assert_int_equal(grammar_vocab_create(&v, t, NULL), FATHOM_OK);
    assert_int_equal(answer_grammar_compile(&g, v, &answer, NULL, NULL, NULL), FATHOM_OK);
    for (int i = 0; i < 60; i++) {
        fathom_constraint c = {0};
        b.n_token = below(12);
        assert_int_equal(grammar_constraint_create(&c, g, &info, NULL), FATHOM_OK);
        assert_int_equal(thinking_budget_constrain(&b, &prompt, true, &c), FATHOM_OK);
        const uint32_t n = draw_output(t, &c, (uint32_t)grammar_vocab_n_word(v), info.eos_ids);
        assert_true(n <= b.n_token + 3);
        n_late += n > b.n_token;
        c.ops->destroy(c.state);
    }
    assert_true(n_late > 0 && n_late < 30);
    json_decref(choices);
    grammar_release(g);
    grammar_vocab_destroy(v);
}

/* Bars 305, which is within the closing. */
static void bar_mask(const void *state, uint32_t *words, size_t n_word)
{
    (void)state;
    memset(words, 0xff, n_word * sizeof *words);
    words[305 / 32] &= ~(1u << (305 % 32));
}

static bool bar_accept(void *state, int32_t id)
{
    (void)state;
    return id != 305;
}

static void nothing(void *state)
{
    (void)state;
}

static const fathom_constraint_ops bar_ops = {.fill_mask = bar_mask,
                                              .accept = bar_accept,
                                              .mark = nothing,
                                              .go_back = nothing,
                                              .destroy = nothing};

static void a_closing_that_is_barred_is_left_out(void **state)
{
    (void)state;
    const struct token_list prompt = {0}, closing = {.ids = closing_ids, .n = 3};
    const struct thinking_budget b = {1, -1, END, -1, &closing, -1};
    fathom_constraint c = {.ops = &bar_ops};
    assert_int_equal(thinking_budget_constrain(&b, &prompt, true, &c), FATHOM_OK);
    assert_true(c.ops->accept(c.state, WORD));
    expect_mask(&c, 304);
    assert_true(c.ops->accept(c.state, 304));
    expect_mask(&c, END);
    assert_false(c.ops->accept(c.state, 305));
    assert_true(c.ops->accept(c.state, END));
    assert_true(c.ops->accept(c.state, WORD));
    c.ops->destroy(c.state);
}

/* ---- tags ----------------------------------------------------------------------------------- */

static void tags_are_those_of_the_checkpoint(void **state)
{
    struct thinking_budget b;
    struct chat_style s = {
        .encoding = CHAT_ENCODING_V32, .tool_markup = CHAT_ENCODING_V32, .parse_tools = true};
    json_t *tools = json_pack("[{s:s}]", "type", "function");
    struct thinking_source from = {&s, *state, 4096};
    thinking_budget_init(&b, 3, &from, NULL, tools);
    assert_true(b.n_token == 3 && b.begin == BEGIN && b.end == END && b.calls == -1);
    from.n_vocab = END; /* the tokenizer has tokens that the model lacks */
    thinking_budget_init(&b, 3, &from, NULL, tools);
    assert_true(b.begin == BEGIN && b.end == -1);
    s.tool_markup = CHAT_ENCODING_KIMI_K2;
    assert_string_equal(chat_reasoning_tags(&s, tools).calls, "<|tool_calls_section_begin|>");
    assert_null(chat_reasoning_tags(&s, NULL).calls);
    s.parse_tools = false;
    assert_null(chat_reasoning_tags(&s, tools).calls);
    json_decref(tools);
}

static void a_failing_allocation_leaves_the_other_constraint(void **state)
{
    (void)state;
    const struct thinking_budget b = {1, BEGIN, END, -1, NULL, -1};
    const struct token_list prompt = {0};
    fathom_constraint c = {0};
    mem_fail_after(0);
    assert_int_equal(thinking_budget_constrain(&b, &prompt, true, &c), FATHOM_ENOMEM);
    mem_fail_after(-1);
    assert_null(c.ops);
}

static int open_tokenizer(void **state)
{
    return tokenizer_open_file((struct tokenizer **)state, TOKENIZER_JSON, NULL);
}

static int close_tokenizer(void **state)
{
    tokenizer_close(*state);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(masks_are_the_definition),
        cmocka_unit_test(a_prompt_opens_reasoning_by_its_last_tag),
        cmocka_unit_test(what_a_grammar_wants_begins_behind_the_budget),
        cmocka_unit_test(a_closing_that_is_barred_is_left_out),
        cmocka_unit_test(tags_are_those_of_the_checkpoint),
        cmocka_unit_test(a_failing_allocation_leaves_the_other_constraint),
    };
    return cmocka_run_group_tests(tests, open_tokenizer, close_tokenizer);
}
