/* test_gunzip.c - bodies out of gzip: every way to pack one, and every way to hurt with one */
#include "server/gunzip.h"

#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include "base/limits.h"
#include "base/mem.h"

static size_t n_held;
static size_t max_held;

static bool hold(void *arg, size_t n)
{
    (void)arg;
    if (n_held + n > max_held) return false;
    n_held += n;
    return true;
}

static void begin(void)
{
    n_held = 0;
    max_held = (size_t)-1;
}

/* Appends a member of gzip. */
static void pack(struct buf *b, const char *text, size_t n)
{
    z_stream z = {0};
    size_t max = n + n / 100 + 100;
    char *out = malloc(max);
    assert_non_null(out);
    assert_int_equal(deflateInit2(&z, 9, Z_DEFLATED, 31, 8, Z_DEFAULT_STRATEGY), Z_OK);
    z.next_in = (z_const Bytef *)text;
    z.avail_in = (uInt)n;
    z.next_out = (Bytef *)out;
    z.avail_out = (uInt)max;
    assert_int_equal(deflate(&z, Z_FINISH), Z_STREAM_END);
    assert_int_equal(buf_add(b, out, max - z.avail_out), FATHOM_OK);
    (void)deflateEnd(&z);
    free(out);
}

static void test_texts_come_back(void **state)
{
    (void)state;
    static char text[300000];
    for (size_t i = 0; i < sizeof text; i++) text[i] = (char)(i * i / 7 % 251);
    static const size_t sizes[] = {0, 1, 65535, 65536, 65537, sizeof text};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        struct buf packed = {0}, out = {.limit = LIMIT_HTTP_BODY_BYTES};
        begin();
        pack(&packed, text, sizes[i]);
        pack(&packed, "tail", 4);
        assert_int_equal(gunzip(&out, packed.data, packed.len, hold, NULL), FATHOM_OK);
        assert_int_equal(out.len, sizes[i] + 4);
        assert_int_equal(n_held, out.len);
        assert_memory_equal(out.data, text, sizes[i]);
        assert_memory_equal(out.data + sizes[i], "tail", 4);
        buf_free(&packed);
        buf_free(&out);
    }
}

static void test_what_is_cut_or_changed_is_no_gzip(void **state)
{
    (void)state;
    static const char text[] = "{\"prompt\":\"some text, some text and some more of it\"}";
    struct buf packed = {0};
    pack(&packed, text, sizeof text - 1);
    for (size_t n = 0; n < packed.len; n++) {
        struct buf out = {.limit = 1000};
        begin();
        assert_int_equal(gunzip(&out, packed.data, n, hold, NULL), FATHOM_EFORMAT);
        buf_free(&out);
    }
    packed.data[packed.len - 6] ^= 1; /* of the checksum */
    struct buf out = {.limit = 1000};
    assert_int_equal(gunzip(&out, packed.data, packed.len, hold, NULL), FATHOM_EFORMAT);
    buf_free(&out);
    assert_int_equal(gunzip(&out, text, sizeof text - 1, hold, NULL), FATHOM_EFORMAT);
    buf_free(&out);
    buf_free(&packed);
}

static void test_a_bomb_is_refused_early(void **state)
{
    (void)state;
    size_t n = 48 << 20;
    char *zeros = calloc(1, n);
    assert_non_null(zeros);
    struct buf packed = {0}, out = {.limit = LIMIT_HTTP_BODY_BYTES};
    begin();
    pack(&packed, zeros, n);
    assert_true(packed.len < 60000);
    assert_int_equal(gunzip(&out, packed.data, packed.len, hold, NULL), FATHOM_ELIMIT);
    assert_true(out.len <= LIMIT_GZIP_LEAST_BYTES + LIMIT_GZIP_FACTOR * packed.len);
    assert_int_equal(n_held, out.len);
    buf_free(&out);
    free(zeros);
    buf_free(&packed);
}

static void test_bounds_of_the_server_hold(void **state)
{
    (void)state;
    char text[5000];
    struct buf packed = {0}, out = {.limit = 4999};
    memset(text, 'x', sizeof text);
    begin();
    pack(&packed, text, sizeof text);
    assert_int_equal(gunzip(&out, packed.data, packed.len, hold, NULL), FATHOM_ELIMIT);
    buf_free(&out);
    max_held = 4999;
    out = (struct buf){.limit = 5000};
    assert_int_equal(gunzip(&out, packed.data, packed.len, hold, NULL), FATHOM_EBUSY);
    assert_int_equal(n_held, 0);
    buf_free(&out);
    buf_free(&packed);
}

static void test_each_failing_allocation_is_clean(void **state)
{
    (void)state;
    struct buf packed = {0};
    pack(&packed, "some text", 9);
    bool failed = true;
    for (long n = 0; failed; n++) {
        struct buf out = {.limit = 100};
        begin();
        mem_fail_after(n);
        fathom_err err = gunzip(&out, packed.data, packed.len, hold, NULL);
        failed = mem_fail_hit();
        mem_fail_after(-1);
        assert_int_equal(err, failed ? FATHOM_ENOMEM : FATHOM_OK);
        buf_free(&out);
    }
    buf_free(&packed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_texts_come_back),
        cmocka_unit_test(test_what_is_cut_or_changed_is_no_gzip),
        cmocka_unit_test(test_a_bomb_is_refused_early),
        cmocka_unit_test(test_bounds_of_the_server_hold),
        cmocka_unit_test(test_each_failing_allocation_is_clean),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
