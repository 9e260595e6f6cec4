/* test_hub_listing.c - what is taken of a hub's list of files, and what is refused */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "hub/listing.h"

#define COMMIT "0123456789abcdef0123456789abcdef01234567"
#define SUM64 COMMIT "89abcdef0123456789abcdef"
#define LARGE(path)                                                                                \
    "{\"rfilename\": \"" path "\", \"size\": 1, \"blobId\": \"" COMMIT                             \
    "\", \"lfs\": {\"sha256\": "                                                                   \
    "\"" SUM64 "\", \"size\": 77}}"
#define SMALL(path) "{\"rfilename\": \"" path "\", \"size\": 5, \"blobId\": \"" COMMIT "\"}"
#define LISTING(files) "{\"sha\": \"" COMMIT "\", \"siblings\": [" files "]}"

static void files_have_the_sum_of_their_kind_and_foreign_weights_are_left_out(void **state)
{
    (void)state;
    static const char text[] =
        LISTING(SMALL("config.json") "," LARGE("m/x.safetensors") "," LARGE("a.gguf"));
    struct hub_listing l;
    assert_int_equal(listing_read(&l, text, strlen(text), NULL), FATHOM_OK);
    assert_string_equal(l.commit, COMMIT);
    assert_int_equal(l.n_file, 2);
    assert_int_equal(l.n_left_out, 1);
    assert_true(l.files[0].is_git);
    assert_string_equal(l.files[0].sum, COMMIT);
    assert_false(l.files[1].is_git);
    assert_string_equal(l.files[1].sum, SUM64);
    assert_int_equal(listing_bytes(&l), 82);
    listing_free(&l);
}

static void what_is_not_sound_is_refused_in_words(void **state)
{
    (void)state;
    static const struct {
        const char *text, *message;
    } cases[] = {
        {"{", "the hub's list of files"},
        {"[]", "names no commit"},
        {"{\"sha\": \"main\", \"siblings\": []}", "names no commit"},
        {LISTING(""), "has no files"},
        {LISTING(SMALL("../x")), "is no name of a file"},
        {LISTING(SMALL("a/../x")), "is no name of a file"},
        {LISTING(SMALL("/etc/passwd")), "is no name of a file"},
        {LISTING(SMALL("a//b")), "is no name of a file"},
        {LISTING(SMALL("a/")), "is no name of a file"},
        {LISTING(SMALL("a\\\\b")), "is no name of a file"},
        {LISTING(SMALL("a\\nb")), "is no name of a file"},
        {LISTING("{\"size\": 1}"), "is no name of a file"},
        {LISTING("{\"rfilename\": \"a\", \"blobId\": \"" COMMIT "\"}"), "without a size"},
        {LISTING("{\"rfilename\": \"a\", \"size\": -1, \"blobId\": \"" COMMIT "\"}"),
         "without a size"},
        {LISTING("{\"rfilename\": \"a\", \"size\": 1, \"blobId\": \"../../x\"}"), "without a size"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct hub_listing l;
        fathom_diag d = {{0}};
        assert_int_equal(listing_read(&l, cases[i].text, strlen(cases[i].text), &d),
                         FATHOM_EFORMAT);
        if (!strstr(d.text, cases[i].message)) fail_msg("%s: %s", cases[i].text, d.text);
        listing_free(&l);
    }
}

static void a_modelscope_snapshot_is_called_by_what_it_holds(void **state)
{
    (void)state;
    char text[512];
    struct hub_listing a, b;
    static const char form[] = "{\"Data\": {\"Files\": [{\"Path\": \"d\", \"Type\": \"tree\"}, "
                               "{\"Path\": \"d/a\", \"Size\": 3, \"Sha256\": \"%.63s%c\"}]}}";
    (void)snprintf(text, sizeof text, form, SUM64, '0');
    assert_int_equal(listing_read_modelscope(&a, text, strlen(text), NULL), FATHOM_OK);
    (void)snprintf(text, sizeof text, form, SUM64, '1');
    assert_int_equal(listing_read_modelscope(&b, text, strlen(text), NULL), FATHOM_OK);
    assert_int_equal(a.n_file, 1);
    assert_int_equal(strlen(a.commit), 40);
    assert_string_not_equal(a.commit, b.commit);
    listing_free(&a);
    listing_free(&b);
}

static void failing_allocations_come_out_as_errors(void **state)
{
    (void)state;
    static const char text[] = LISTING(SMALL("config.json"));
    bool hit = true;
    for (long n = 0; hit; n++) {
        struct hub_listing l;
        mem_fail_after(n);
        fathom_err err = listing_read(&l, text, strlen(text), NULL);
        hit = mem_fail_hit();
        mem_fail_after(-1);
        assert_int_equal(err, hit ? FATHOM_ENOMEM : FATHOM_OK);
        listing_free(&l);
    }
}

/* Its link in the snapshot leads up as many folders. */
static void a_path_through_too_many_folders_is_refused(void **state)
{
    (void)state;
    for (size_t n = HUB_FOLDERS_MAX; n <= HUB_FOLDERS_MAX + 1; n++) {
        char path[2 * HUB_FOLDERS_MAX + 4] = "", text[1024];
        struct hub_listing l;
        fathom_diag d = {{0}};
        for (size_t i = 0; i < n; i++) memcpy(path + 2 * i, "a/", 2);
        memcpy(path + 2 * n, "b", 2);
        (void)snprintf(text, sizeof text, LISTING(SMALL("%s")), path);
        const bool fits = n == HUB_FOLDERS_MAX;
        assert_int_equal(listing_read(&l, text, strlen(text), &d),
                         fits ? FATHOM_OK : FATHOM_ELIMIT);
        if (!fits) assert_non_null(strstr(d.text, "below 65 folders, at most 64"));
        listing_free(&l);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(files_have_the_sum_of_their_kind_and_foreign_weights_are_left_out),
        cmocka_unit_test(what_is_not_sound_is_refused_in_words),
        cmocka_unit_test(a_modelscope_snapshot_is_called_by_what_it_holds),
        cmocka_unit_test(a_path_through_too_many_folders_is_refused),
        cmocka_unit_test(failing_allocations_come_out_as_errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
