/* test_tokenizer_load.c - reading tokenizer.json, and what is refused by name */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "support/tokenizer_data.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/tokenizer_int.h"

#define VOCAB ", \"ab\": 256, \"abc\": 257, \"Ġa\": 258, \"<x>\": 259, \"<｜y｜>\": 260"
#define MERGES "\"a b\", \"ab c\", \"Ġ a\""
#define ADDED                                                                                      \
    "{\"id\": 259, \"content\": \"<x>\"}, {\"id\": 260, \"content\": \"<｜y｜>\", \"special\": " \
    "true}"

/* The small file with the first `from` replaced by `to`. */
static void edit_json(struct buf *out, const char *from, const char *to)
{
    struct buf json = {0};
    data_small_json(&json, VOCAB, MERGES, ADDED);
    const char *at = strstr(json.data, from);
    if (!at) print_error("no %s\n", from);
    assert_non_null(at);
    (void)buf_add(out, json.data, (size_t)(at - json.data));
    (void)buf_add_str(out, to);
    (void)buf_add_str(out, at + strlen(from));
    assert_int_equal(buf_status(out), 0);
    buf_free(&json);
}

/* Opens a copy of exactly these bytes. */
static fathom_err open_bytes(struct tokenizer **t, const char *s, size_t n, fathom_diag *d)
{
    char *copy = mem_alloc(n);
    assert_non_null(copy);
    if (n) memcpy(copy, s, n);
    fathom_err err = tokenizer_open(t, copy, n, "t.json", d);
    mem_free(copy);
    return err;
}

static void expect_refusal(const char *json, size_t n, fathom_err want, const char *message)
{
    struct tokenizer *t;
    fathom_diag d = {""};
    fathom_err err = open_bytes(&t, json, n, &d);
    if (err != want || !strstr(d.text, message)) {
        print_error("%s \"%s\", wanted %s \"%s\"\n", fathom_err_name(err), d.text,
                    fathom_err_name(want), message);
    }
    assert_null(t);
    assert_int_equal(err, want);
    assert_non_null(strstr(d.text, message));
    assert_int_equal(strncmp(d.text, "t.json: ", 8), 0);
}

static void expect_ids(const struct tokenizer *t, const char *s, const int32_t *want, size_t n)
{
    struct token_list ids = {0};
    assert_int_equal(tokenizer_encode(t, s, strlen(s), TOKENIZER_MARKUP_ON, &ids), 0);
    assert_int_equal(ids.n, n);
    assert_memory_equal(ids.ids, want, n * sizeof *want);
    token_list_free(&ids);
}

/* Spellings of the same thing, all of which open and give the same ids. */
static void reads_equal_spellings(void **state)
{
    (void)state;
    static const char *const edits[][2] = {
        {"\"version\"", "\"version\""},
        {MERGES, "[\"a\", \"b\"], [\"ab\" , \"c\"], \"Ġ a\""},
        {MERGES, "\"\\u0061 b\", [\"\\u0061b\", \"\\u0063\"], [\"\\u0120\", \"a\"]"},
        {"\"Ġa\"", "\"\\u0120\\u0061\""},
        {"\"normalizer\": null", "\"normalizer\": {\"type\": \"Sequence\", \"normalizers\": []}"},
        {"\"normalizer\": null,", ""},
        {"\"post_processor\": null", "\"post_processor\": {\"type\": \"ByteLevel\"}"},
        {"\"post_processor\": null", "\"post_processor\": {\"type\": \"TemplateProcessing\"}"},
        {"\"truncation\": null", "\"truncation\": {\"max_length\": 5}"},
        {"\"version\": \"1.0\"", "\"unknown\": [{}], \"version\": \"1.0\""},
        {"\"type\": \"BPE\"", "\"type\": \"BPE\", \"dropout\": null, \"unk_token\": null, "
                              "\"continuing_subword_prefix\": \"\", \"end_of_word_suffix\": null, "
                              "\"fuse_unk\": false, \"byte_fallback\": false, "
                              "\"ignore_merges\": false"},
        {"\"type\": \"BPE\"", "\"type\": \"BPE\", \"dropout\": 0.0"},
        {"\"special\": true", "\"special\": true, \"single_word\": false, \"lstrip\": false, "
                              "\"rstrip\": false, \"normalized\": true"},
        {"{\"version\"", "{\"model\": 5, \"version\""}, /* of equal keys the last holds */
    };
    const int32_t want[] = {257, 258, 259, 260};
    for (size_t i = 0; i < sizeof edits / sizeof edits[0]; i++) {
        struct buf json = {0};
        struct tokenizer *t;
        fathom_diag d = {""};
        edit_json(&json, edits[i][0], edits[i][1]);
        if (open_bytes(&t, json.data, json.len, &d)) print_error("%s: %s\n", edits[i][1], d.text);
        assert_non_null(t);
        assert_true(tokenizer_is_special(t, 260));
        assert_false(tokenizer_is_special(t, 259));
        assert_true(pretok_has_scanner(t->pretok));
        expect_ids(t, "abc a<x><｜y｜>", want, 4);
        tokenizer_close(t);
        buf_free(&json);
    }
}

static void reads_merges_before_vocabulary(void **state)
{
    (void)state;
    struct buf json = {0};
    struct tokenizer *t;
    edit_json(&json, "\"vocab\"", "\"merges\": [" MERGES "], \"vocab\"");
    json.data[json.len - strlen("\"merges\": [" MERGES "]}}") + 1] = 'M'; /* hide the later list */
    assert_int_equal(open_bytes(&t, json.data, json.len, NULL), 0);
    const int32_t want[] = {257};
    expect_ids(t, "abc", want, 1);
    tokenizer_close(t);
    buf_free(&json);
}

/* With ignore_merges a piece that is a token is that token, whatever its merges give. */
static void obeys_ignore_merges(void **state)
{
    (void)state;
    const int32_t merged[] = {256, 'c'}, whole[] = {257};
    for (int ignore = 0; ignore < 2; ignore++) {
        struct buf json = {0};
        struct tokenizer *t;
        edit_json(&json, MERGES, "\"a b\"");
        if (ignore) {
            struct buf edited = {0};
            const char *at = strstr(json.data, "\"type\": \"BPE\"");
            (void)buf_add(&edited, json.data, (size_t)(at - json.data));
            (void)buf_add_str(&edited, "\"ignore_merges\": true, ");
            (void)buf_add_str(&edited, at);
            buf_free(&json);
            json = edited;
        }
        assert_int_equal(open_bytes(&t, json.data, json.len, NULL), 0);
        expect_ids(t, "abc", ignore ? whole : merged, ignore ? 1 : 2);
        tokenizer_close(t);
        buf_free(&json);
    }
}

static void reads_byte_level_alone(void **state)
{
    (void)state;
    struct buf json = {0};
    struct tokenizer *t;
    data_small_json(&json, VOCAB, MERGES, "");
    char *from = strstr(json.data, "\"pre_tokenizer\": ");
    const char *to = strstr(json.data, "\"post_processor\"");
    struct buf edited = {0};
    (void)buf_add(&edited, json.data, (size_t)(from - json.data));
    (void)buf_add_str(&edited, "\"pre_tokenizer\": {\"type\": \"ByteLevel\", \"add_prefix_space\": "
                               "false, \"use_regex\": false}, ");
    (void)buf_add_str(&edited, to);
    assert_int_equal(open_bytes(&t, edited.data, edited.len, NULL), 0);
    const int32_t want[] = {'1', 258, '1', 256};
    expect_ids(t, "1 a1ab", want, 4);
    tokenizer_close(t);
    buf_free(&json);
    buf_free(&edited);
}

enum { UNSUPPORTED = FATHOM_EUNSUPPORTED, FORMAT = FATHOM_EFORMAT, LIMIT = FATHOM_ELIMIT };

/* An edit of the small file, and what is said of it. */
static const struct {
    const char *from, *to;
    int err;
    const char *message;
} cases[] = {
    {"\"normalizer\": null", "\"normalizer\": {\"type\": \"NFC\"}", UNSUPPORTED,
     "normalizer.type is \"NFC\"; only null"},
    {"\"normalizer\": null", "\"normalizer\": {\"type\": \"Sequence\", \"normalizers\": [{}]}",
     UNSUPPORTED, "normalizer.type is \"Sequence\"; only null (or an empty"},
    {"\"normalizer\": null", "\"normalizer\": 5", UNSUPPORTED, "normalizer.type is absent"},
    {"\"type\": \"Sequence\"", "\"type\": \"Metaspace\"", UNSUPPORTED,
     "pre_tokenizer.type is \"Metaspace\"; only \"Sequence\" is supported"},
    {"\"pretokenizers\"", "\"x\"", UNSUPPORTED, "pre_tokenizer.pretokenizers is absent"},
    {"\"type\": \"Split\"", "\"type\": \"Digits\"", UNSUPPORTED,
     "pre_tokenizer.pretokenizers[0].type is \"Digits\"; only \"Split\" is supported"},
    {"\"Isolated\"", "\"Removed\"", UNSUPPORTED,
     "pretokenizers[0].behavior is \"Removed\"; only \"Isolated\""},
    {"\"invert\": false", "\"invert\": true", UNSUPPORTED, "[0].invert is true; only false"},
    {"\"Regex\"", "\"String\"", UNSUPPORTED, "[0].pattern is an object; only {\"Regex\""},
    {"\\\\p{N}{1,3}", "\\\\w", UNSUPPORTED, "the pattern \"\\w\" uses \\w at byte 0"},
    {"\\\\p{N}{1,3}", "(", FORMAT, "the pattern \"(\" is not valid"},
    {"\"type\": \"ByteLevel\"", "\"type\": \"Punctuation\"", UNSUPPORTED,
     "pretokenizers[3].type is \"Punctuation\"; only \"ByteLevel\""},
    {"\"add_prefix_space\": false", "\"add_prefix_space\": true", UNSUPPORTED,
     "pretokenizers[3].add_prefix_space is true; only false"},
    {"\"use_regex\": false", "\"use_regex\": true", UNSUPPORTED, "[3].use_regex is true"},
    {"\"use_regex\": false", "\"y\": 1", UNSUPPORTED, "[3].use_regex is absent"},
    {"\"post_processor\": null", "\"post_processor\": {\"type\": \"Bert\"}", UNSUPPORTED,
     "post_processor.type is \"Bert\""},
    {"\"decoder\": {\"type\": \"ByteLevel\"}", "\"decoder\": null", UNSUPPORTED,
     "decoder.type is absent; only \"ByteLevel\""},
    {"\"decoder\": {\"type\": \"ByteLevel\"}", "\"decoder\": {\"type\": [}", FORMAT, "byte "},
    {"\"decoder\": {\"type\": \"ByteLevel\"}", "\"decoder\": {\"type\" \"x\"}", FORMAT,
     "value of \"decoder\": not valid JSON"},
    {"\"type\": \"BPE\"", "\"type\": \"Unigram\"", UNSUPPORTED,
     "model.type is \"Unigram\"; only \"BPE\" is supported"},
    {"\"type\": \"BPE\"", "\"type\": \"BPE\", \"dropout\": 0.1", UNSUPPORTED, "model.dropout is"},
    {"\"type\": \"BPE\"", "\"type\": \"BPE\", \"end_of_word_suffix\": \"</w>\"", UNSUPPORTED,
     "model.end_of_word_suffix is \"</w>\"; only null"},
    {"\"type\": \"BPE\"", "\"type\": \"BPE\", \"continuing_subword_prefix\": \"##\"", UNSUPPORTED,
     "model.continuing_subword_prefix is \"##\""},
    {"\"type\": \"BPE\"", "\"type\": \"BPE\", \"ignore_merges\": 1", UNSUPPORTED,
     "model.ignore_merges is a"},
    {"\"model\"", "\"modal\"", FORMAT, "\"model\" is missing"},
    {"\"vocab\"", "\"vocal\"", FORMAT, "model.vocab is missing"},
    {"\"merges\"", "\"merged\"", FORMAT, "model.merges is missing"},
    {"\"ab\": 256", "\"ab\": 255", FORMAT, "model.vocab: \"ab\" has id 255, which another"},
    {"\"ab\": 256", "\"ab\": -1", FORMAT, "a whole number, 0 or more"},
    {"\"ab\": 256", "\"ab\": 300.5", FORMAT, "',' or '}'"},
    {"\"ab\": 256", "\"ab\": 4194303", LIMIT, "over the limit of 4194302"},
    {"\"ab\": 256", "\"ab\": 256, \"ab\": 300", FORMAT, "ids 256 and 300 have the same token"},
    {"\"ab\": 256", "\"ab\" 256", FORMAT, "':'"},
    {"\"!\": 33,", "", FORMAT, "model.vocab has no token for the byte 0x21"},
    {"\"a b\"", "\"a b c\"", FORMAT, "model.merges[0]: \"a b c\" is not two tokens"},
    {"\"a b\"", "\"ab\"", FORMAT, "model.merges[0]: \"ab\" is not two tokens"},
    {"\"a b\"", "[\"a\"]", FORMAT, "model.merges[0] has 1 tokens, not 2"},
    {"\"a b\"", "[\"a\", \"b\", \"c\"]", FORMAT, "']' after the second token of a merge"},
    {"\"a b\"", "7", FORMAT, "'7' stands where a merge"},
    {"\"ab c\"", "\"ax c\"", FORMAT, "model.merges[1]: \"ax\" is not in the vocabulary"},
    {"\"ab c\"", "\"｜ c\"", FORMAT, "model.merges[1]: \"｜\" is not in the vocabulary"},
    {"\"ab c\"", "\"b c\"", FORMAT, "model.merges[1] joins ids 98 and 99 to a token"},
    {"\"id\": 259", "\"id\": 261", FORMAT,
     "added_tokens[0]: \"<x>\" has id 261 here and id 259 in model.vocab"},
    {"\"id\": 260", "\"id\": 258", FORMAT,
     "added_tokens[1]: \"<｜y｜>\" has id 258, which another"},
    {"\"id\": 259", "\"id\": \"a\"", UNSUPPORTED, "added_tokens[0].id is \"a\"; only a whole"},
    {"\"id\": 259", "\"id\": -1", UNSUPPORTED, "added_tokens[0].id is"},
    {"\"content\": \"<x>\"", "\"content\": \"\"", UNSUPPORTED, "added_tokens[0].content is \"\""},
    {"\"content\": \"<x>\"", "\"x\": 1", UNSUPPORTED, "added_tokens[0].content is absent"},
    {"\"special\": true", "\"lstrip\": true", UNSUPPORTED,
     "added_tokens[1].lstrip is true; only false is supported"},
    {"\"special\": true", "\"rstrip\": true", UNSUPPORTED, "added_tokens[1].rstrip is true"},
    {"\"special\": true", "\"single_word\": true", UNSUPPORTED,
     "added_tokens[1].single_word is true"},
    {"\"special\": true", "\"special\": 1", UNSUPPORTED, "added_tokens[1].special is a"},
    {ADDED, ADDED ", " ADDED, FORMAT, "added_tokens[2]: \"<x>\" has id 259, which another"},
    {ADDED, "{\"id\": 300, \"content\": \"q\"}", FORMAT, "has id 300 here and id 113 in"},
    {ADDED, "{\"id\": 300, \"content\": \"｜\"}, {\"id\": 301, \"content\": \"｜\"}", FORMAT,
     "added_tokens lists the token of id"},
    {"[" ADDED "]", "{}", UNSUPPORTED, "added_tokens is an object; only an array"},
    {ADDED, "5", UNSUPPORTED, "added_tokens[0].content is absent"},
    {"{\"version\"", "[\"version\"", FORMAT, "an object (a tokenizer.json)"},
    {"{\"version\"", "{version", FORMAT, "'v' stands where a string is expected"},
};

static void refuses_by_name(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct buf json = {0};
        edit_json(&json, cases[i].from, cases[i].to);
        expect_refusal(json.data, json.len, (fathom_err)cases[i].err, cases[i].message);
        buf_free(&json);
    }
}

/* Every prefix of a good file is refused, wherever it ends. */
static void refuses_every_prefix(void **state)
{
    (void)state;
    struct buf json = {0};
    data_small_json(&json, VOCAB, MERGES, ADDED);
    for (size_t n = 0; n < json.len; n++) {
        expect_refusal(json.data, n, FATHOM_EFORMAT, "byte ");
    }
    assert_int_equal(buf_add_char(&json, 'x'), 0);
    expect_refusal(json.data, json.len, FATHOM_EFORMAT, "the end of the text");
    buf_free(&json);
}

static void survives_failing_memory(void **state)
{
    (void)state;
    struct buf json = {0};
    data_small_json(&json, VOCAB, MERGES, ADDED);
    for (int engine = PRETOK_ENGINE_AUTO; engine <= PRETOK_ENGINE_PCRE2; engine++) {
        for (long fail = 0;; fail++) {
            struct tokenizer *t;
            mem_fail_after(fail);
            fathom_err err = tokenizer_open_with(&t, json.data, json.len,
                                                 (enum pretok_engine)engine, "t.json", NULL);
            bool hit = mem_fail_hit();
            mem_fail_after(-1);
            if (err) {
                assert_int_equal(err, FATHOM_ENOMEM);
                assert_null(t);
            }
            tokenizer_close(t);
            if (!hit) assert_int_equal(err, FATHOM_OK);
            if (!hit) break;
        }
    }
    buf_free(&json);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_equal_spellings),   cmocka_unit_test(reads_merges_before_vocabulary),
        cmocka_unit_test(obeys_ignore_merges),     cmocka_unit_test(reads_byte_level_alone),
        cmocka_unit_test(refuses_by_name),         cmocka_unit_test(refuses_every_prefix),
        cmocka_unit_test(survives_failing_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
