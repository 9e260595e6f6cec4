/* test_buf.c - the growing byte string */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/buf.h"
#include "base/mem.h"

/* The invariants that buf.h promises. */
static void check(const struct buf *b)
{
    if (b->data) {
        assert_true(b->len < b->cap);
        assert_int_equal(b->data[b->len], 0);
    } else {
        assert_int_equal(b->len, 0);
    }
    if (b->limit) assert_true(b->len <= b->limit);
}

static void bytes_come_out_as_they_went_in(void **state)
{
    (void)state;
    struct buf b = {0};
    assert_string_equal(buf_str(&b), "");
    for (int i = 0; i < 1000; i++) {
        assert_int_equal(buf_add_char(&b, (char)i), FATHOM_OK);
        check(&b);
    }
    assert_int_equal(b.len, 1000);
    for (int i = 0; i < 1000; i++) assert_int_equal((char)i, b.data[i]);
    buf_clear(&b);
    assert_int_equal(buf_printf(&b, "%s-%d", "x", 42), FATHOM_OK);
    assert_int_equal(buf_add_str(&b, "!"), FATHOM_OK);
    assert_int_equal(buf_add(&b, NULL, 0), FATHOM_OK);
    assert_string_equal(buf_str(&b), "x-42!");
    check(&b);
    buf_free(&b);
    check(&b);
}

static void consume_drops_the_front(void **state)
{
    (void)state;
    struct buf b = {0};
    buf_consume(&b, 0);
    (void)buf_add_str(&b, "abcdef");
    buf_consume(&b, 2);
    assert_string_equal(buf_str(&b), "cdef");
    buf_consume(&b, 4);
    assert_string_equal(buf_str(&b), "");
    check(&b);
    buf_free(&b);
}

static void steal_hands_over_the_memory(void **state)
{
    (void)state;
    struct buf b = {0};
    assert_null(buf_steal(&b));
    (void)buf_add_str(&b, "mine");
    char *s = buf_steal(&b);
    assert_string_equal(s, "mine");
    assert_null(b.data);
    check(&b);
    mem_free(s);
}

static void the_limit_is_exact_and_sticks_until_clear(void **state)
{
    (void)state;
    struct buf b = {.limit = 5};
    assert_int_equal(buf_add_str(&b, "12345"), FATHOM_OK);
    assert_int_equal(buf_add(&b, "", 0), FATHOM_OK);
    assert_int_equal(buf_add_char(&b, '6'), FATHOM_ELIMIT);
    assert_string_equal(buf_str(&b), "12345");
    buf_consume(&b, 3);
    assert_int_equal(buf_add_char(&b, '6'), FATHOM_ELIMIT);
    assert_int_equal(buf_status(&b), FATHOM_ELIMIT);
    buf_clear(&b);
    assert_int_equal(buf_printf(&b, "%d", 12345), FATHOM_OK);
    assert_int_equal(buf_printf(&b, "%d", 1), FATHOM_ELIMIT);
    check(&b);
    buf_free(&b);
    assert_int_equal(b.limit, 0);
}

static void an_impossible_size_is_no_memory(void **state)
{
    (void)state;
    struct buf b = {0};
    assert_int_equal(buf_reserve(&b, SIZE_MAX), FATHOM_ENOMEM);
    assert_int_equal(buf_add_char(&b, 'x'), FATHOM_ENOMEM);
    buf_free(&b);
    (void)buf_add_char(&b, 'x');
    assert_int_equal(buf_reserve(&b, SIZE_MAX / 2 - 1), FATHOM_ENOMEM);
    assert_string_equal(buf_str(&b), "x");
    buf_free(&b);
}

static void each_failing_allocation_keeps_what_was_there(void **state)
{
    (void)state;
    bool hit = true;
    long n = 0;
    for (; hit; n++) {
        struct buf b = {0};
        fathom_err err = FATHOM_OK;
        mem_fail_after(n);
        for (int i = 0; i < 300 && !err; i++) err = buf_add_str(&b, "0123456789");
        hit = mem_fail_hit();
        mem_fail_after(-1);
        assert_int_equal(err, hit ? FATHOM_ENOMEM : FATHOM_OK);
        assert_int_equal(buf_status(&b), err);
        assert_int_equal(b.len % 10, 0);
        check(&b);
        buf_free(&b);
    }
    assert_true(n > 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bytes_come_out_as_they_went_in),
        cmocka_unit_test(consume_drops_the_front),
        cmocka_unit_test(steal_hands_over_the_memory),
        cmocka_unit_test(the_limit_is_exact_and_sticks_until_clear),
        cmocka_unit_test(an_impossible_size_is_no_memory),
        cmocka_unit_test(each_failing_allocation_keeps_what_was_there),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
