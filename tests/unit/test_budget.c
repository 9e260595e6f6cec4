/* test_budget.c - what is more work than a grammar may be is refused, always, in time, and in
 * clear; and a flag ends a compilation */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/clock.h"
#include "grammar/builder.h"
#include "support/grammar_data.h"
#include "support/json_tree.h"
#include "support/tokenizer_data.h"

/* Far more than the limit takes, also in a build without optimisation on a busy machine. */
enum { PATIENCE_US = 30 * 1000 * 1000 };

/* A class of n letters that have gaps between them. */
static void add_letters(struct buf *b, int n)
{
    assert_int_equal(buf_add_str(b, "(["), FATHOM_OK);
    for (int i = 0; i < n; i++) {
        int cp = 0x100 + 2 * i;
        char text[2] = {(char)(0xc0 | cp >> 6), (char)(0x80 | (cp & 0x3f))};
        assert_int_equal(buf_add(b, text, 2), FATHOM_OK);
    }
    assert_int_equal(buf_add_str(b, "]?)"), FATHOM_OK);
}

static void is_too_much(const struct grammar_data *g, const char *pattern, size_t n)
{
    struct grammar *out;
    fathom_diag d = {""};
    uint64_t start_us = clock_thread_cpu_us();
    fathom_err err = grammar_from_regex(&out, g->v, pattern, n, &d);
    if (err != FATHOM_ELIMIT) fail_msg("%.40s: %s, %s", pattern, fathom_err_name(err), d.text);
    assert_null(out);
    assert_non_null(strstr(d.text, "pattern: more work to compile than a grammar may be"));
    assert_non_null(strstr(d.text, "use shorter repetitions"));
    assert_true(clock_thread_cpu_us() - start_us < PATIENCE_US);
}

static void patterns_have_an_end(void **state)
{
    const struct grammar_data *g = *state;
    static const char *const patterns[] = {"(\\w{0,100}){0,299}", "(\\w{0,50}){0,50}",
                                           "(\\w?){0,4000}", "(a{0,170}){0,170}"};
    static const struct {
        int n_letter;
        const char *times;
    } classes[] = {{16, "{0,2000}"}, {250, "{0,2000}"}, {250, "{0,4000}"}};
    for (size_t i = 0; i < sizeof patterns / sizeof patterns[0]; i++) {
        is_too_much(g, patterns[i], strlen(patterns[i]));
    }
    for (size_t i = 0; i < sizeof classes / sizeof classes[0]; i++) {
        struct buf pattern = {0};
        add_letters(&pattern, classes[i].n_letter);
        assert_int_equal(buf_add_str(&pattern, classes[i].times), FATHOM_OK);
        is_too_much(g, buf_str(&pattern), pattern.len);
        buf_free(&pattern);
    }
}

/* What is read once for each copy. */
static void long_names_and_counts_have_an_end(void **state)
{
    const struct grammar_data *g = *state;
    enum { N = 500000 };
    static const char *const around[][2] = {{"(?:(?<", ">b)){0,4000}"}, {"(?:b{", "1}){0,4000}"}};
    static const char inside[] = {'a', '0'};
    for (size_t i = 0; i < 2; i++) {
        struct buf pattern = {0};
        assert_int_equal(buf_add_str(&pattern, around[i][0]), FATHOM_OK);
        for (int k = 0; k < N; k++) (void)buf_add_char(&pattern, inside[i]);
        assert_int_equal(buf_add_str(&pattern, around[i][1]), FATHOM_OK);
        is_too_much(g, buf_str(&pattern), pattern.len);
        buf_free(&pattern);
    }
}

/* {"enum": [from, from + 1, ...]} */
static json_t *enum_of(int from, int n)
{
    json_t *values = json_array();
    for (int i = 0; i < n; i++) json_array_append_new(values, json_integer(from + i));
    return json_pack("{s:o}", "enum", values);
}

static void schemas_have_an_end(void **state)
{
    const struct grammar_data *g = *state;
    json_t *items = json_object();
    for (int i = 0; i < 500; i++) {
        char name[16];
        (void)snprintf(name, sizeof name, "p%d", i);
        json_object_set_new(items, name, json_pack("{s:s}", "pattern", "^a"));
    }
    const struct {
        json_t *schema;
        const char *place;
    } cases[] = {
        {json_pack("{s:[o,o]}", "allOf", enum_of(0, 30000), enum_of(30000, 30000)),
         "schema #/allOf/1: more work"},
        {json_pack("{s:s,s:i,s:{s:o}}", "type", "array", "minItems", 4000, "items", "properties",
                   items),
         "schema #/items: more work"},
        {json_pack("{s:{s:{s:s}}}", "properties", "a/b", "pattern", "^(\\w{0,100}){0,299}$"),
         "schema #/properties/a~1b: pattern: more work"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct grammar *out;
        fathom_diag d = {""};
        uint64_t start_us = clock_thread_cpu_us();
        assert_non_null(cases[i].schema);
        fathom_err err = grammar_from_schema(&out, g->v, cases[i].schema, NULL, &d);
        if (err != FATHOM_ELIMIT) fail_msg("%s: %s", cases[i].place, fathom_err_name(err));
        if (!strstr(d.text, cases[i].place)) fail_msg("%s", d.text);
        assert_true(clock_thread_cpu_us() - start_us < PATIENCE_US);
        json_decref(cases[i].schema);
    }
}

/* What people write is far from the limit. */
static void ordinary_schemas_are_cheap(void **state)
{
    const struct grammar_data *g = *state;
    json_t *cases = json_tree_of_file(GRAMMAR_DATA_DIR "/schemas.json");
    for (size_t i = 0; i < json_array_size(cases); i++) {
        const json_t *c = json_array_get(cases, i);
        struct grammar_builder *b;
        struct grammar *out;
        uint32_t to;
        fathom_diag d = {""};
        assert_int_equal(grammar_builder_create(&b, g->v, NULL), FATHOM_OK);
        uint32_t rule = grammar_add_rule(b);
        fathom_err err = grammar_put_schema(b, grammar_rule_begin(b, rule),
                                            json_object_get(c, "schema"), &to, &d);
        grammar_join(b, to, grammar_rule_end(b, rule));
        if (!err) err = grammar_build(&out, b, rule, &d);
        if (err) fail_msg("%s", d.text);
        uint64_t left = grammar_builder_budget(b)->left;
        assert_true(left < GRAMMAR_WORK_MAX && left > GRAMMAR_WORK_MAX / 10 * 9);
        grammar_release(out);
        grammar_builder_destroy(b);
    }
    json_decref(cases);
}

/* ---- the flag ------------------------------------------------------------------------------ */

struct stopping {
    atomic_bool begun, stop;
};

static fathom_err draw_heavy(struct grammar_builder *b, uint32_t from, const void *what,
                             uint32_t *to, fathom_diag *d)
{
    static const char pattern[] = "(\\w{0,100}){0,299}";
    struct stopping *s = (struct stopping *)what;
    atomic_store(&s->begun, true);
    return grammar_put_regex(b, from, pattern, sizeof pattern - 1, to, d);
}

static void *stop_soon(void *arg)
{
    struct stopping *s = arg;
    while (!atomic_load(&s->begun)) clock_sleep_us(100);
    atomic_store(&s->stop, true);
    return NULL;
}

static void a_flag_ends_a_compilation(void **state)
{
    const struct grammar_data *g = *state;
    for (int before = 0; before < 2; before++) {
        struct stopping s = {.stop = before};
        struct grammar *out;
        pthread_t thread;
        fathom_diag d = {""};
        assert_int_equal(pthread_create(&thread, NULL, stop_soon, &s), 0);
        assert_int_equal(grammar_compile(&out, g->v, NULL, draw_heavy, &s, &s.stop, &d),
                         FATHOM_ECANCEL);
        assert_null(out);
        assert_null(strstr(d.text, "more work"));
        atomic_store(&s.begun, true);
        (void)pthread_join(thread, NULL);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(patterns_have_an_end),
        cmocka_unit_test(long_names_and_counts_have_an_end),
        cmocka_unit_test(schemas_have_an_end),
        cmocka_unit_test(ordinary_schemas_are_cheap),
        cmocka_unit_test(a_flag_ends_a_compilation),
    };
    return cmocka_run_group_tests(tests, grammar_data_set_up_pilot, grammar_data_tear_down);
}
