/* test_grammar_cache.c - the cache of grammars: what counts as the same, who compiles, what goes
 * when room is short; and a grammar as the engine's constraint */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/fail.h"
#include "base/limits.h"
#include "base/mem.h"
#include "server/grammar_cache.h"
#include "server/grammar_constraint.h"
#include "support/json_tree.h"
#include "support/patience.h"
#include "support/tokenizer_data.h"

static struct tokenizer *tokenizer;
static struct histogram compile_us;

static void wake(void *arg)
{
    atomic_int *n_woken = arg;
    atomic_fetch_add(n_woken, 1);
}

static struct grammar_cache *open_cache(size_t max_bytes)
{
    struct grammar_cache *c;
    const struct grammar_cache_config config = {.tokenizer = tokenizer,
                                                .n_vocab = 4096,
                                                .max_bytes = max_bytes,
                                                .compile_us = &compile_us,
                                                .wake = wake};
    assert_int_equal(grammar_cache_create(&c, &config), FATHOM_OK);
    return c;
}

static fathom_err get_with(struct grammar_cache *c, const char *schema,
                           const struct grammar_options *o, bool thinking, struct grammar **out,
                           fathom_diag *d)
{
    json_t *tree = json_tree_of(schema);
    struct answer_grammar a = {
        .thinking = thinking, .content = ANSWER_CONTENT_SCHEMA, .value = tree};
    struct grammar_wait wait = {0};
    fathom_err err = grammar_cache_get(c, &a, o, true, &wait, out, d);
    assert_int_equal(wait.next, GRAMMAR_TAKE);
    json_decref(tree);
    grammar_cache_check(c);
    return err;
}

static struct grammar *get(struct grammar_cache *c, const char *schema)
{
    struct grammar *g;
    const struct grammar_options o = {0};
    assert_int_equal(get_with(c, schema, &o, false, &g, NULL), FATHOM_OK);
    return g;
}

static struct grammar_cache_stats stats_of(struct grammar_cache *c)
{
    struct grammar_cache_stats s;
    grammar_cache_get_stats(c, &s);
    return s;
}

static void the_same_text_is_compiled_once(void **state)
{
    (void)state;
    struct grammar_cache *c = open_cache(1 << 20);
    const struct grammar_options plain = {0}, tight = {.space = GRAMMAR_SPACE_NONE};
    struct grammar *a = get(c, "{\"type\":\"integer\",\"minimum\":1}"), *b;
    b = get(c, "{ \"type\": \"integer\", \"minimum\": 1 }");
    assert_ptr_equal(a, b);
    grammar_release(b);
    assert_int_equal(get_with(c, "{\"type\":\"integer\",\"minimum\":1}", &tight, false, &b, NULL),
                     0);
    assert_ptr_not_equal(a, b);
    grammar_release(b);
    assert_int_equal(get_with(c, "{\"type\":\"integer\",\"minimum\":1}", &plain, true, &b, NULL),
                     0);
    assert_ptr_not_equal(a, b);
    grammar_release(b);
    b = get(c,
            "{\"minimum\":1,\"type\":\"integer\"}"); /* the order of members is kept in outputs */
    assert_ptr_not_equal(a, b);
    grammar_release(b);
    grammar_release(a);
    struct grammar_cache_stats s = stats_of(c);
    assert_true(s.n_hit == 1 && s.n_miss == 4 && s.n_entry == 4 && s.n_failed == 0);
    assert_true(s.n_byte > 0 && s.n_evicted == 0);
    struct buf text = {0};
    assert_int_equal(grammar_cache_dump(c, &text), FATHOM_OK);
    assert_non_null(strstr(buf_str(&text), "READY"));
    buf_free(&text);
    grammar_cache_destroy(c);
}

static void failures_are_remembered(void **state)
{
    (void)state;
    struct grammar_cache *c = open_cache(1 << 20);
    const struct grammar_options o = {0};
    for (int i = 0; i < 3; i++) {
        struct grammar *g = NULL;
        fathom_diag d = {""};
        assert_int_equal(get_with(c, "{\"contains\": {}}", &o, false, &g, &d), FATHOM_EUNSUPPORTED);
        assert_null(g);
        assert_non_null(strstr(d.text, "\"contains\""));
    }
    struct grammar_cache_stats s = stats_of(c);
    assert_true(s.n_miss == 1 && s.n_failed == 1 && s.n_hit == 2);
    grammar_cache_destroy(c);
}

static void the_least_recently_used_go(void **state)
{
    (void)state;
    enum { N = 40 };
    struct grammar_cache *c = open_cache(60000);
    for (int i = 0; i < N; i++) {
        char schema[64];
        (void)snprintf(schema, sizeof schema, "{\"type\":\"integer\",\"minimum\":%d}", i);
        grammar_release(get(c, schema));
        grammar_release(get(c, "{\"type\":\"null\"}")); /* in use all the time */
        assert_true(stats_of(c).n_byte <= 60000);
    }
    struct grammar_cache_stats s = stats_of(c);
    assert_true(s.n_evicted > 0 && s.n_entry < N);
    assert_int_equal(s.n_entry + s.n_evicted, N + 1);
    assert_int_equal(s.n_hit, N - 1);
    grammar_cache_destroy(c);
    c = open_cache(1); /* nothing stays, and what is asked for is given all the same */
    struct grammar *g = get(c, "{\"type\":\"null\"}");
    assert_int_equal(stats_of(c).n_entry, 0);
    grammar_release(g);
    grammar_cache_destroy(c);
}

static void long_texts_are_refused(void **state)
{
    (void)state;
    struct grammar_cache *c = open_cache(1 << 20);
    char *text = mem_alloc(LIMIT_GRAMMAR_TEXT_BYTES + 1);
    assert_non_null(text);
    memset(text, 'a', LIMIT_GRAMMAR_TEXT_BYTES);
    text[LIMIT_GRAMMAR_TEXT_BYTES] = '\0';
    json_t *value = json_pack("[s]", text);
    struct answer_grammar a = {.content = ANSWER_CONTENT_CHOICE, .value = value};
    const struct grammar_options o = {0};
    struct grammar *g;
    fathom_diag d = {""};
    struct grammar_wait wait = {0};
    assert_int_equal(grammar_cache_get(c, &a, &o, true, &wait, &g, &d), FATHOM_ELIMIT);
    assert_non_null(strstr(d.text, "1048576 bytes"));
    json_decref(value);
    mem_free(text);
    grammar_cache_destroy(c);
}

/* One text is another grammar as a pattern and in EBNF, and the same when it comes again. */
static void kinds_are_apart(void **state)
{
    (void)state;
    static const enum answer_content kinds[] = {ANSWER_CONTENT_REGEX, ANSWER_CONTENT_EBNF,
                                                ANSWER_CONTENT_EBNF};
    struct grammar_cache *c = open_cache(1 << 26);
    struct grammar *got[3];
    json_t *value = json_string("root ::= \"a\"");
    for (int i = 0; i < 3; i++) {
        struct answer_grammar a = {.content = kinds[i], .value = value};
        struct grammar_wait wait = {0};
        assert_int_equal(
            grammar_cache_get(c, &a, &(struct grammar_options){0}, true, &wait, &got[i], NULL),
            FATHOM_OK);
    }
    assert_true(got[0] != got[1] && got[1] == got[2]);
    assert_int_equal(stats_of(c).n_entry, 2);
    for (int i = 0; i < 3; i++) grammar_release(got[i]);
    json_decref(value);
    grammar_cache_destroy(c);
}

/* ---- who compiles, who waits, who leaves --------------------------------------------------- */

/* Minutes of work without a limit, a good part of a second with it. */
static const char heavy[] = "(\\w{0,100}){0,299}";

/* One who wants a grammar, in a thread of its own if it compiles. */
struct wanting {
    pthread_t thread;
    struct grammar_cache *c;
    const char *pattern;
    bool may_compile;
    struct grammar_wait wait;
    atomic_int n_woken;
    struct grammar *g;
    fathom_err err;
    fathom_diag diag;
};

static void ask(struct wanting *w)
{
    json_t *tree = json_string(w->pattern);
    struct answer_grammar a = {.content = ANSWER_CONTENT_REGEX, .value = tree};
    const struct grammar_options o = {0};
    w->wait.arg = &w->n_woken;
    diag_clear(&w->diag);
    w->err = grammar_cache_get(w->c, &a, &o, w->may_compile, &w->wait, &w->g, &w->diag);
    json_decref(tree);
}

/* The test goes before the thread that compiles, however busy the machine is. */
static void *run_wanting(void *arg)
{
    int priority = nice(19); /* of this thread alone */
    (void)priority;
    ask(arg);
    return NULL;
}

static bool is_compiling(struct grammar_cache *c)
{
    struct buf text = {0};
    assert_int_equal(grammar_cache_dump(c, &text), FATHOM_OK);
    bool found = strstr(buf_str(&text), "COMPILING") != NULL;
    buf_free(&text);
    return found;
}

/* Begins a compilation in another thread, and returns when it is under way. */
static void begin_compiling(struct wanting *w)
{
    uint64_t end_us = 0;
    w->may_compile = true;
    assert_int_equal(pthread_create(&w->thread, NULL, run_wanting, w), 0);
    while (!is_compiling(w->c) && keep_waiting(&end_us)) {
    }
}

static void one_compiles_and_others_wait_without_a_thread(void **state)
{
    (void)state;
    enum { N = 4 };
    struct grammar_cache *c = open_cache(1 << 24);
    struct wanting first = {.c = c, .pattern = heavy}, others[N] = {0}, early = first;
    ask(&early);
    assert_int_equal(early.wait.next, GRAMMAR_COMPILE);
    begin_compiling(&first);
    for (int i = 0; i < N; i++) {
        others[i] = (struct wanting){.c = c, .pattern = heavy, .may_compile = i % 2};
        ask(&others[i]); /* comes back at once */
        assert_int_equal(others[i].wait.next, GRAMMAR_WAIT);
        assert_int_equal(others[i].err, FATHOM_OK);
        assert_null(others[i].g);
    }
    grammar_cache_check(c);
    (void)pthread_join(first.thread, NULL);
    assert_int_equal(first.err, FATHOM_ELIMIT);
    assert_non_null(strstr(first.diag.text, "more work to compile"));
    for (int i = 0; i < N; i++) {
        assert_int_equal(atomic_load(&others[i].n_woken), 1);
        ask(&others[i]);
        assert_int_equal(others[i].wait.next, GRAMMAR_TAKE);
        assert_int_equal(others[i].err, FATHOM_ELIMIT);
        assert_string_equal(others[i].diag.text, first.diag.text);
    }
    struct grammar_cache_stats s = stats_of(c);
    assert_true(s.n_miss == 1 && s.n_failed == 1 && s.n_hit == N);
    grammar_cache_check(c);
    grammar_cache_destroy(c);
}

/* As long as one wants it, it goes on; when the last has left it ends, and is not remembered. */
static void a_compilation_that_nobody_wants_ends(void **state)
{
    (void)state;
    struct grammar_cache *c = open_cache(1 << 24);
    struct wanting first = {.c = c, .pattern = heavy}, second = first, again = first, gone = first;
    begin_compiling(&first);
    ask(&second);
    gone.wait.left = true; /* before it asked: it waits, and wants nothing */
    ask(&gone);
    grammar_cache_leave(c, &first.wait);
    grammar_cache_leave(c, &first.wait); /* counts once */
    assert_true(is_compiling(c));
    grammar_cache_leave(c, &second.wait);
    (void)pthread_join(first.thread, NULL);
    assert_int_equal(first.err, FATHOM_ECANCEL);
    assert_int_equal(atomic_load(&second.n_woken), 1);
    assert_int_equal(atomic_load(&gone.n_woken), 1);
    assert_int_equal(stats_of(c).n_entry, 0);
    assert_int_equal(stats_of(c).n_failed, 0);
    ask(&again);
    assert_int_equal(again.wait.next, GRAMMAR_COMPILE);
    again.wait.left = true; /* left before its turn */
    again.may_compile = true;
    ask(&again);
    assert_int_equal(again.err, FATHOM_ECANCEL);
    grammar_cache_check(c);
    grammar_cache_destroy(c);
}

static void a_compilation_ends_in_time(void **state)
{
    (void)state;
    struct grammar_cache *c = open_cache(1 << 24);
    struct wanting w = {.c = c, .pattern = heavy};
    begin_compiling(&w);
    grammar_cache_tick(c, clock_now_us());
    assert_true(is_compiling(c));
    grammar_cache_tick(c, clock_now_us() + (uint64_t)LIMIT_GRAMMAR_COMPILE_MS * 1000);
    (void)pthread_join(w.thread, NULL);
    assert_int_equal(w.err, FATHOM_EBUSY);
    assert_non_null(strstr(w.diag.text, "in 20 s: the machine is too busy"));
    assert_int_equal(stats_of(c).n_entry, 0);
    grammar_cache_destroy(c);
}

static void a_stopped_cache_compiles_nothing(void **state)
{
    (void)state;
    struct grammar_cache *c = open_cache(1 << 24);
    struct wanting w = {.c = c, .pattern = heavy}, late = {.c = c, .pattern = "a"};
    begin_compiling(&w);
    grammar_cache_stop(c);
    (void)pthread_join(w.thread, NULL);
    assert_int_equal(w.err, FATHOM_ECANCEL);
    late.may_compile = true;
    ask(&late);
    assert_int_equal(late.err, FATHOM_ECANCEL);
    grammar_cache_destroy(c);
}

static void survives_failing_allocations(void **state)
{
    (void)state;
    json_t *tree =
        json_tree_of("{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"string\"}}}");
    struct answer_grammar a = {.content = ANSWER_CONTENT_SCHEMA, .value = tree};
    const struct grammar_options o = {0};
    bool hit = true;
    for (long n = 0; hit; n += 1 + n / 50) {
        struct grammar_cache *c = open_cache(1 << 20);
        struct grammar *g;
        mem_fail_after(n);
        struct grammar_wait wait = {0};
        fathom_err err = grammar_cache_get(c, &a, &o, true, &wait, &g, NULL);
        hit = mem_fail_hit();
        mem_fail_after(-1);
        /* giving memory back may fail without harm; want of memory is not remembered */
        assert_true(err == FATHOM_OK || (hit && err == FATHOM_ENOMEM));
        assert_int_equal(stats_of(c).n_entry, err == FATHOM_OK);
        grammar_cache_check(c);
        grammar_release(g);
        grammar_cache_destroy(c);
    }
    json_decref(tree);
}

static void a_small_vocabulary_cannot_be_masked(void **state)
{
    (void)state;
    struct grammar_cache *c;
    struct grammar *g;
    fathom_diag d = {""};
    const struct grammar_cache_config config = {
        .tokenizer = tokenizer, .n_vocab = 1000, .max_bytes = 1 << 20};
    assert_int_equal(grammar_cache_create(&c, &config), FATHOM_OK);
    const struct grammar_options o = {0};
    assert_int_equal(get_with(c, "{}", &o, false, &g, &d), FATHOM_EUNSUPPORTED);
    assert_non_null(strstr(d.text, "the model 1000"));
    grammar_cache_destroy(c);
}

/* Looks ahead and comes back, and ends with EOS. */
static void a_grammar_is_a_constraint(void **state)
{
    (void)state;
    struct grammar_cache *c = open_cache(1 << 20);
    struct grammar *g = get(c, "{\"enum\":[1]}");
    fathom_info info = {.n_vocab = 4096, .n_draft = 1, .eos_ids = {1}, .n_eos = 1};
    fathom_constraint k;
    uint32_t words[4096 / 32];
    struct token_list ids = {0};
    assert_int_equal(grammar_constraint_create(&k, g, &info, NULL), FATHOM_OK);
    grammar_release(g);
    assert_int_equal(tokenizer_encode(tokenizer, "1", 1, TOKENIZER_MARKUP_OFF, &ids), FATHOM_OK);
    assert_int_equal(ids.n, 1);
    int32_t one = ids.ids[0];
    token_list_free(&ids);
    k.ops->mark(k.state);
    assert_false(k.ops->accept(k.state, 1));
    assert_true(k.ops->accept(k.state, one));
    assert_true(k.ops->accept(k.state, 1));
    k.ops->go_back(k.state);
    k.ops->fill_mask(k.state, words, 4096 / 32);
    assert_true(words[one / 32] >> (one % 32) & 1);
    assert_false(words[0] >> 1 & 1);
    assert_true(k.ops->accept(k.state, one));
    k.ops->fill_mask(k.state, words, 4096 / 32);
    assert_int_equal(words[0], 1u << 1);
    k.ops->destroy(k.state);

    g = get(c, "{\"enum\":[1]}");
    info.n_eos = 0;
    assert_int_equal(grammar_constraint_create(&k, g, &info, NULL), FATHOM_EUNSUPPORTED);
    info.n_eos = 1;
    for (long n = 0; n < 3; n++) {
        mem_fail_after(n);
        assert_int_equal(grammar_constraint_create(&k, g, &info, NULL), FATHOM_ENOMEM);
        mem_fail_after(-1);
        assert_null(k.ops);
    }
    grammar_release(g);
    grammar_cache_destroy(c);
}

static int set_up(void **state)
{
    (void)state;
    static const uint64_t bounds[] = {1000};
    histogram_init(&compile_us, bounds, 1, 1e6);
    return tokenizer_open_file(&tokenizer, TOKENIZER_PILOT_JSON, NULL) == FATHOM_OK ? 0 : -1;
}

static int tear_down(void **state)
{
    (void)state;
    tokenizer_close(tokenizer);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_same_text_is_compiled_once),
        cmocka_unit_test(failures_are_remembered),
        cmocka_unit_test(the_least_recently_used_go),
        cmocka_unit_test(long_texts_are_refused),
        cmocka_unit_test(kinds_are_apart),
        cmocka_unit_test(one_compiles_and_others_wait_without_a_thread),
        cmocka_unit_test(a_compilation_that_nobody_wants_ends),
        cmocka_unit_test(a_compilation_ends_in_time),
        cmocka_unit_test(a_stopped_cache_compiles_nothing),
        cmocka_unit_test(survives_failing_allocations),
        cmocka_unit_test(a_small_vocabulary_cannot_be_masked),
        cmocka_unit_test(a_grammar_is_a_constraint),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
