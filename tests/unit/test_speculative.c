/* test_speculative.c - values of --speculative-config, and --spec-tokens in its place */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "cli/options_int.h"

static unsigned n_note; /* lines of the last parse */

static fathom_err parse_noting(const struct speculative_given *given, uint32_t *n, fathom_diag *d)
{
    struct buf notes = {0};
    const fathom_err err = speculative_parse(given, n, &notes, d);
    n_note = 0;
    for (size_t i = 0; i < notes.len; i++) n_note += notes.data[i] == '\n';
    buf_free(&notes);
    return err;
}

static void assert_drafts(const char *text, uint32_t want)
{
    fathom_diag d = {{0}};
    uint32_t n = 99;
    const struct speculative_given given = {.config = text, .model = "org/m"};
    if (parse_noting(&given, &n, &d) != FATHOM_OK) fail_msg("%s", d.text);
    assert_int_equal(n, want);
}

static void assert_refused(const char *text, const char *part)
{
    fathom_diag d = {{0}};
    uint32_t n;
    const struct speculative_given given = {.config = text, .model = "org/m"};
    assert_int_not_equal(parse_noting(&given, &n, &d), FATHOM_OK);
    if (!strstr(d.text, part)) fail_msg("\"%s\" does not say \"%s\"", d.text, part);
    assert_non_null(strstr(d.text, "--speculative-config"));
}

static void what_the_guides_give_works(void **state)
{
    (void)state;
    assert_drafts(NULL, 0);
    assert_drafts("{\"num_speculative_tokens\": 2, \"method\":\"deepseek_mtp\"}", 2);
    assert_drafts("{\"method\": \"mtp\", \"num_speculative_tokens\": 1}", 1);
    assert_drafts("{\"num_speculative_tokens\": 4}", 4);
    assert_drafts("{\"model\": \"org/m\", \"num_speculative_tokens\": 1}", 1);
    assert_int_equal(n_note, 0);
    assert_drafts("{\"num_speculative_tokens\": 1, \"draft_tensor_parallel_size\": 1, "
                  "\"disable_padded_drafter_batch\": true}",
                  1);
    assert_int_equal(n_note, 2);
}

static void anything_else_is_refused_and_says_why(void **state)
{
    (void)state;
    assert_refused("", "--speculative-config");
    assert_refused("{", "line 1");
    assert_refused("[]", "is an array, needed is an object");
    assert_refused("{}", "num_speculative_tokens is missing");
    assert_refused("{\"method\": \"mtp\"}", "num_speculative_tokens is missing");
    assert_refused("{\"num_speculative_tokens\": 0}", "is 0, needed is 1 to 4");
    assert_refused("{\"num_speculative_tokens\": 5}", "is 5, needed is 1 to 4");
    assert_refused("{\"num_speculative_tokens\": -1}", "is -1");
    assert_refused("{\"num_speculative_tokens\": \"2\"}", "is a string");
    assert_refused("{\"num_speculative_tokens\": 2, \"method\": \"ngram\"}", "\"ngram\"; drafts");
    assert_refused("{\"num_speculative_tokens\": 2, \"method\": 1}", "method is");
    assert_refused("{\"num_speculative_tokens\": 2, \"prompt_lookup_max\": 3}", "is not known");
    assert_refused("{\"num_speculative_tokens\": 2, \"model\": \"x\"}",
                   "model is x; drafts come from MODEL's own");
}

static void a_number_stands_in_for_the_json(void **state)
{
    static const struct {
        struct speculative_given given;
        uint32_t want; /* 0: refused */
        const char *part;
    } cases[] = {
        {{.n_token = 2}, 2, NULL},
        {{.n_token = 1, .method = "mtp"}, 1, NULL},
        {{.method = "mtp"}, 0, "--spec-method: give --spec-tokens too, 1 to 4"},
        {{.n_token = 2, .method = "eagle"}, 0, "--spec-method: method is \"eagle\""},
        {{.config = "{\"num_speculative_tokens\": 2}", .n_token = 2},
         0,
         "--speculative-config and --spec-tokens say the same"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        fathom_diag d = {{0}};
        uint32_t n = 99;
        const fathom_err err = parse_noting(&cases[i].given, &n, &d);
        if (cases[i].want > 0) {
            assert_int_equal(err, FATHOM_OK);
            assert_int_equal(n, cases[i].want);
        } else {
            assert_int_equal(err, FATHOM_EINVAL);
            assert_non_null(strstr(d.text, cases[i].part));
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_the_guides_give_works),
        cmocka_unit_test(anything_else_is_refused_and_says_why),
        cmocka_unit_test(a_number_stands_in_for_the_json),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
