/* test_dataset.c - prompts: exact lengths, shared beginnings, files good and bad */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/mem.h"
#include "base/new_file.h"
#include "bench/dataset.h"

static struct tokenizer *tokenizer;
static char folder[] = "/tmp/test_dataset_XXXXXX";
static char file[64];
static struct dataset set;
static fathom_diag diag;

static fathom_err make(const struct dataset_options *o)
{
    dataset_destroy(&set);
    memset(&diag, 0, sizeof diag);
    return dataset_create(&set, o, tokenizer, &diag);
}

static void write_file(const char *text)
{
    assert_int_equal(new_file_save(file, text, strlen(text), NULL), FATHOM_OK);
}

static void assert_count(size_t i, uint32_t n_added)
{
    uint32_t n;
    const struct dataset_item *item = &set.items[i];
    assert_int_equal(dataset_count(tokenizer, item->prompt, item->n_byte, &n), FATHOM_OK);
    assert_int_equal(n + n_added, item->n_input);
}

static void random_prompts_have_the_tokens_asked_for(void **state)
{
    (void)state;
    struct dataset_options o = {
        .kind = DATASET_RANDOM, .n = 20, .n_input = 137, .n_output = 9, .n_added = 1, .seed = 3};
    assert_int_equal(make(&o), FATHOM_OK);
    assert_int_equal(set.n, 20);
    for (size_t i = 0; i < set.n; i++) {
        assert_int_equal(set.items[i].n_input, 137);
        assert_int_equal(set.items[i].n_output, 9);
        assert_count(i, 1);
        for (size_t k = 0; k < i; k++) {
            assert_string_not_equal(set.items[i].prompt, set.items[k].prompt);
        }
    }
}

static void the_seed_decides_each_prompt(void **state)
{
    (void)state;
    struct dataset_options o = {
        .kind = DATASET_RANDOM, .n = 5, .n_input = 20, .n_output = 1, .seed = 3};
    char *kept;
    assert_int_equal(make(&o), FATHOM_OK);
    kept = mem_strdup(set.items[4].prompt);
    o.n = 7;
    assert_int_equal(make(&o), FATHOM_OK);
    assert_string_equal(set.items[4].prompt, kept);
    o.seed = 4;
    assert_int_equal(make(&o), FATHOM_OK);
    assert_string_not_equal(set.items[4].prompt, kept);
    mem_free(kept);
}

static void lengths_are_drawn_within_the_range_and_prefixes_are_shared(void **state)
{
    (void)state;
    struct dataset_options o = {.kind = DATASET_RANDOM,
                                .n = 200,
                                .n_input = 20,
                                .n_output = 10,
                                .n_prefix = 8,
                                .range_ratio = 0.5};
    uint32_t least = UINT32_MAX;
    uint32_t most = 0;
    assert_int_equal(make(&o), FATHOM_OK);
    for (size_t i = 0; i < set.n; i++) {
        uint32_t n = set.items[i].n_input;
        assert_in_range(n, 18, 38);
        assert_in_range(set.items[i].n_output, 5, 15);
        least = n < least ? n : least;
        most = n > most ? n : most;
        assert_memory_equal(set.items[i].prompt, set.items[0].prompt, 16);
        assert_count(i, 0);
    }
    assert_int_equal(least, 18);
    assert_int_equal(most, 38);
}

static void repeated_prefixes_are_so_many(void **state)
{
    (void)state;
    struct dataset_options o = {.kind = DATASET_PREFIX_REPETITION,
                                .n = 12,
                                .n_input = 10,
                                .n_output = 4,
                                .n_prefix = 30,
                                .n_group = 3};
    size_t n_different = 0;
    assert_int_equal(make(&o), FATHOM_OK);
    for (size_t i = 0; i < set.n; i++) {
        bool seen = false;
        assert_int_equal(set.items[i].n_input, 40);
        for (size_t k = 0; k < i; k++) {
            if (memcmp(set.items[i].prompt, set.items[k].prompt, 60) == 0) seen = true;
        }
        if (!seen) n_different++;
    }
    assert_int_equal(n_different, 3);
}

static void sonnets_are_about_so_long(void **state)
{
    (void)state;
    struct dataset_options o = {
        .kind = DATASET_SONNET, .n = 8, .n_input = 550, .n_output = 150, .n_prefix = 200};
    assert_int_equal(make(&o), FATHOM_OK);
    for (size_t i = 0; i < set.n; i++) {
        assert_in_range(set.items[i].n_input, 480, 550);
        assert_memory_equal(set.items[i].prompt, set.items[0].prompt, 300);
        assert_count(i, 0);
    }
    o.n_input = 5;
    o.n_prefix = 0;
    assert_int_equal(make(&o), FATHOM_EINVAL);
    write_file("one line of verse\n\nand another\n");
    o.n_input = 100;
    o.path = file;
    assert_int_equal(make(&o), FATHOM_OK);
    assert_non_null(strstr(set.items[0].prompt, "line of verse"));
    write_file("\n\n");
    assert_int_equal(make(&o), FATHOM_EINVAL);
}

static void conversations_are_read_and_filtered(void **state)
{
    (void)state;
    struct dataset_options o = {.kind = DATASET_SHAREGPT, .n = 4, .path = file, .in_order = true};
    write_file(
        "[{\"conversations\":[{\"from\":\"human\",\"value\":\"what is the time in the house\"},"
        "{\"from\":\"gpt\",\"value\":\"it is three and the sun is warm\"}]},"
        "{\"conversations\":[{\"value\":\"x\"},{\"value\":\"too short to be of use\"}]},"
        "{\"conversations\":[{\"value\":\"no answer comes to this question\"}]},"
        "{\"id\":1},"
        "{\"conversations\":[{\"value\":\"where does the river go to from here\"},"
        "{\"value\":\"down to the sea and then away\"}]}]");
    assert_int_equal(make(&o), FATHOM_OK);
    assert_int_equal(set.n, 4);
    assert_string_equal(set.items[0].prompt, "what is the time in the house");
    assert_string_equal(set.items[1].prompt, "where does the river go to from here");
    assert_string_equal(set.items[2].prompt, set.items[0].prompt);
    assert_in_range(set.items[0].n_output, 4, 40);
    o.n_output = 77;
    assert_int_equal(make(&o), FATHOM_OK);
    assert_int_equal(set.items[1].n_output, 77);
    write_file("{}");
    assert_int_equal(make(&o), FATHOM_EFORMAT);
    write_file("[]");
    assert_int_equal(make(&o), FATHOM_EINVAL);
    write_file("[");
    assert_int_equal(make(&o), FATHOM_EFORMAT);
}

static void lines_of_json_are_read(void **state)
{
    (void)state;
    struct dataset_options o = {
        .kind = DATASET_CUSTOM, .n = 3, .n_output = 50, .path = file, .in_order = true};
    write_file("{\"prompt\": \"first\", \"output_tokens\": 5}\n \n{\"prompt\": \"second\"}");
    assert_int_equal(make(&o), FATHOM_OK);
    assert_string_equal(set.items[1].prompt, "second");
    assert_int_equal(set.items[0].n_output, 5);
    assert_int_equal(set.items[1].n_output, 50);
    assert_string_equal(set.items[2].prompt, "first");
    write_file("{\"prompt\": \"first\"}\n{\"text\": \"second\"}\n");
    assert_int_equal(make(&o), FATHOM_EFORMAT);
    assert_non_null(strstr(diag.text, "prompt"));
    write_file("not json\n");
    assert_int_equal(make(&o), FATHOM_EFORMAT);
    assert_non_null(strstr(diag.text, "line 1"));
}

static void what_cannot_be_made_is_refused(void **state)
{
    (void)state;
    struct dataset_options o = {.kind = DATASET_CUSTOM, .n = 1, .n_output = 1};
    assert_int_equal(make(&o), FATHOM_EINVAL);
    o.path = "/nowhere/file";
    assert_int_equal(make(&o), FATHOM_ENOTFOUND);
    o.kind = DATASET_RANDOM;
    assert_int_equal(make(&o), FATHOM_EINVAL);
    o.path = NULL;
    assert_int_equal(make(&o), FATHOM_EINVAL);
    assert_int_equal(dataset_kind_find("sonnet"), DATASET_SONNET);
    assert_int_equal(dataset_kind_find("nothing"), DATASET_KIND_COUNT);
}

static void failing_allocations_come_out_as_errors(void **state)
{
    (void)state;
    const struct dataset_options all[] = {
        {.kind = DATASET_PREFIX_REPETITION, .n = 3, .n_input = 3, .n_output = 1, .n_group = 2},
        {.kind = DATASET_SONNET, .n = 2, .n_input = 60, .n_output = 1},
        {.kind = DATASET_CUSTOM, .n = 3, .n_output = 1, .path = file},
    };
    write_file("{\"prompt\": \"first\"}\n{\"prompt\": \"second\"}\n");
    for (size_t k = 0; k < sizeof all / sizeof all[0]; k++) {
        bool hit = true;
        for (long n = 0; hit; n = n < 40 ? n + 1 : n + n / 3) {
            dataset_destroy(&set);
            mem_fail_after(n);
            fathom_err err = dataset_create(&set, &all[k], tokenizer, NULL);
            hit = mem_fail_hit();
            mem_fail_after(-1);
            assert_int_equal(err, hit ? FATHOM_ENOMEM : FATHOM_OK);
        }
    }
}

static int set_up(void **state)
{
    (void)state;
    if (!mkdtemp(folder)) return -1;
    (void)snprintf(file, sizeof file, "%s/data", folder);
    return tokenizer_open_file(&tokenizer, FATHOM_SOURCE_DIR "/models/pilot/tokenizer.json", NULL);
}

static int tear_down(void **state)
{
    (void)state;
    dataset_destroy(&set);
    tokenizer_close(tokenizer);
    (void)unlink(file);
    return rmdir(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_prompts_have_the_tokens_asked_for),
        cmocka_unit_test(the_seed_decides_each_prompt),
        cmocka_unit_test(lengths_are_drawn_within_the_range_and_prefixes_are_shared),
        cmocka_unit_test(repeated_prefixes_are_so_many),
        cmocka_unit_test(sonnets_are_about_so_long),
        cmocka_unit_test(conversations_are_read_and_filtered),
        cmocka_unit_test(lines_of_json_are_read),
        cmocka_unit_test(what_cannot_be_made_is_refused),
        cmocka_unit_test(failing_allocations_come_out_as_errors),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
