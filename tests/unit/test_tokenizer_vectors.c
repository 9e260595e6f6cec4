/* test_tokenizer_vectors.c - the published V3 tokenizer against ids that the reference library
 * gave */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "support/tokenizer_data.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/tokenizer_int.h"

static struct tokenizer *v3;

static int open_v3(void **state)
{
    (void)state;
    fathom_diag d = {""};
    fathom_err err = tokenizer_open_file(&v3, TOKENIZER_V3_JSON, &d);
    if (err) print_error("%s: %s\n", fathom_err_name(err), d.text);
    return err;
}

static int close_v3(void **state)
{
    (void)state;
    tokenizer_close(v3);
    return 0;
}

static bool encodes_to(const struct tokenizer *t, const char *s, size_t n,
                       const struct token_list *want)
{
    struct token_list got = {0};
    assert_int_equal(tokenizer_encode(t, s, n, TOKENIZER_MARKUP_ON, &got), FATHOM_OK);
    bool same = got.n == want->n && (got.n == 0 || memcmp(got.ids, want->ids, got.n * 4) == 0);
    token_list_free(&got);
    return same;
}

static bool decodes_to(const struct tokenizer *t, const struct token_list *ids, const char *text,
                       size_t n)
{
    struct buf got = {0};
    assert_int_equal(tokenizer_decode(t, ids->ids, ids->n, false, &got), FATHOM_OK);
    bool same = got.len == n && memcmp(buf_str(&got), text, n) == 0;
    buf_free(&got);
    return same;
}

static size_t count_wrong(const struct tokenizer *t, const struct vector *vectors, size_t n)
{
    size_t n_wrong = 0;
    for (size_t i = 0; i < n; i++) {
        const struct vector *v = &vectors[i];
        bool encoded = encodes_to(t, v->input.data ? v->input.data : "", v->input.len, &v->ids);
        bool decoded = decodes_to(t, &v->ids, v->text, v->n_text);
        if (encoded && decoded) continue;
        if (n_wrong++ < 10) print_error("line %zu (%s): %.100s\n", i, v->category, v->text);
    }
    return n_wrong;
}

static void gives_every_vector(void **state)
{
    (void)state;
    size_t n;
    struct vector *vectors = data_read_vectors(&n);
    assert_int_equal(n, 2725);
    assert_true(pretok_has_scanner(v3->pretok));
    assert_int_equal(count_wrong(v3, vectors, n), 0);
    data_free_vectors(vectors, n);
}

static void gives_every_vector_by_pcre2(void **state)
{
    (void)state;
    size_t n;
    struct pretok *pcre2;
    struct vector *vectors = data_read_vectors(&n);
    assert_int_equal(pretok_open(&pcre2, family_patterns, 3, PRETOK_ENGINE_PCRE2, "test", NULL),
                     FATHOM_OK);
    struct tokenizer with_pcre2 = *v3;
    with_pcre2.pretok = pcre2;
    assert_int_equal(count_wrong(&with_pcre2, vectors, n), 0);
    pretok_close(pcre2);
    data_free_vectors(vectors, n);
}

static void read_ids(const json_t *list, struct token_list *out)
{
    size_t i;
    json_t *id;
    json_array_foreach (list, i, id) {
        assert_int_equal(token_list_add(out, (int32_t)json_integer_value(id)), FATHOM_OK);
    }
}

static void gives_wikitext(void **state)
{
    (void)state;
    json_t *tree;
    struct token_list ids = {0};
    assert_int_equal(json_read_file(TOKENIZER_VECTORS("wikitext_8191.json"), &tree, NULL),
                     FATHOM_OK);
    const json_t *text = json_object_get(tree, "text");
    read_ids(json_object_get(tree, "ids"), &ids);
    assert_int_equal(ids.n, 8191);
    assert_true(encodes_to(v3, json_string_value(text), json_string_length(text), &ids));
    assert_true(decodes_to(v3, &ids, json_string_value(text), json_string_length(text)));
    token_list_free(&ids);
    json_decref(tree);
}

/* Texts of other makers. Those of V3.2-Exp end in an EOS that is not in the text, and the file of
 * V3 names 128798 and 128799 place▁holders, where later ones have <think> and </think>. */
static size_t check_cases(const char *path, bool ends_in_eos)
{
    json_t *tree, *item;
    size_t i;
    assert_int_equal(json_read_file(path, &tree, NULL), FATHOM_OK);
    const json_t *cases = json_object_get(tree, "cases");
    json_array_foreach (cases, i, item) {
        struct token_list ids = {0};
        struct buf text = {0};
        const char *s = json_string_value(json_object_get(item, "text"));
        read_ids(json_object_get(item, "ids"), &ids);
        if (ends_in_eos) assert_int_equal(ids.ids[--ids.n], 1);
        for (const char *at; (at = strstr(s, "</think>")); s = at + strlen("</think>")) {
            (void)buf_add(&text, s, (size_t)(at - s));
            (void)buf_add_str(&text, "<｜place▁holder▁no▁799｜>");
        }
        (void)buf_add_str(&text, s);
        assert_int_equal(buf_status(&text), FATHOM_OK);
        assert_true(encodes_to(v3, text.data, text.len, &ids));
        buf_free(&text);
        token_list_free(&ids);
    }
    size_t n = json_array_size(cases);
    json_decref(tree);
    return n;
}

static void gives_short_strings(void **state)
{
    (void)state;
    assert_true(check_cases(TOKENIZER_VECTORS("short_strings.json"), false) >= 5);
}

static void gives_dsml_completions(void **state)
{
    (void)state;
    assert_int_equal(check_cases(TOKENIZER_VECTORS("dsml_v32exp.json"), true), 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gives_every_vector),     cmocka_unit_test(gives_every_vector_by_pcre2),
        cmocka_unit_test(gives_wikitext),         cmocka_unit_test(gives_short_strings),
        cmocka_unit_test(gives_dsml_completions),
    };
    return cmocka_run_group_tests(tests, open_v3, close_v3);
}
