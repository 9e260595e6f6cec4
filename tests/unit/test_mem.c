/* test_mem.c - the allocator and its two powers */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

#include <cmocka.h>

#include "base/mem.h"
#include "support/resident.h"

static void blocks_of_any_size_are_valid(void **state)
{
    (void)state;
    for (size_t n = 0; n < 300; n += 7) {
        char *p = mem_alloc(n);
        char *zeroed = mem_calloc(n, 3);
        assert_non_null(p);
        assert_non_null(zeroed);
        memset(p, 1, n);
        for (size_t i = 0; i < 3 * n; i++) assert_int_equal(zeroed[i], 0);
        p = mem_resize(p, 2 * n);
        assert_non_null(p);
        for (size_t i = 0; i < n; i++) assert_int_equal(p[i], 1);
        mem_free(p);
        mem_free(zeroed);
    }
    mem_free(NULL);
}

static void a_product_that_overflows_gives_nothing(void **state)
{
    (void)state;
    assert_null(mem_alloc_array(SIZE_MAX / 2, 3));
    assert_null(mem_calloc(SIZE_MAX / 2, 3));
    assert_null(mem_alloc_aligned(64, SIZE_MAX - 8));
}

static void an_array_doubles_and_keeps_what_it_holds(void **state)
{
    (void)state;
    uint16_t *array = NULL;
    size_t cap = 0, n_moved = 0;
    for (size_t n = 0; n < 1000; n++) {
        size_t before = cap;
        assert_int_equal(mem_grow(&array, &cap, n + 1, sizeof *array), FATHOM_OK);
        n_moved += cap != before;
        array[n] = (uint16_t)n;
    }
    assert_int_equal(cap, 1024);
    assert_int_equal(n_moved, 5);
    assert_int_equal(mem_grow(&array, &cap, 5000, sizeof *array), FATHOM_OK);
    assert_int_equal(cap, 8192);
    for (size_t n = 0; n < 1000; n++) assert_int_equal(array[n], n);
    uint16_t *same = array;
    mem_fail_after(0);
    assert_int_equal(mem_grow(&array, &cap, 8193, sizeof *array), FATHOM_ENOMEM);
    mem_fail_after(-1);
    assert_int_equal(mem_grow(&array, &cap, SIZE_MAX / 2, sizeof *array), FATHOM_ENOMEM);
    assert_true(array == same && cap == 8192);
    mem_free(array);
}

static void aligned_blocks_are_aligned(void **state)
{
    (void)state;
    for (size_t align = 8; align <= 4096; align *= 2) {
        for (size_t n = 0; n < 3; n++) {
            void *p = mem_alloc_aligned(align, n * 100);
            assert_non_null(p);
            assert_int_equal((uintptr_t)p % align, 0);
            memset(p, 0, n * 100);
            mem_free(p);
        }
    }
}

static void pages_are_zero_and_cost_nothing_untouched(void **state)
{
    (void)state;
    static const size_t sizes[] = {0, 1, 4096, 100000};
    for (size_t k = 0; k < sizeof sizes / sizeof sizes[0]; k++) {
        char *p = mem_alloc_pages(sizes[k]);
        assert_non_null(p);
        assert_int_equal((uintptr_t)p % 4096, 0);
        for (size_t i = 0; i < sizes[k]; i++) assert_int_equal(p[i], 0);
        memset(p, 1, sizes[k]);
        mem_free_pages(p);
    }
    char *large = mem_alloc_pages((size_t)1 << 36); /* more than most machines have */
    if (large) large[(size_t)1 << 35] = 1;
    mem_free_pages(large);
    mem_free_pages(NULL);
    assert_null(mem_alloc_pages(SIZE_MAX));
    mem_fail_after(0);
    assert_null(mem_alloc_pages(1));
    mem_fail_after(-1);
}

static bool is_provided(char *p, size_t bytes)
{
    unsigned char there[64];
    assert_true(bytes <= sizeof there * 4096);
    assert_int_equal(mincore(p, bytes, there), 0);
    for (size_t i = 0; i * 4096 < bytes; i++) {
        if (!(there[i] & 1)) return false;
    }
    return true;
}

static void touched_pages_are_provided_and_keep_what_they_hold(void **state)
{
    (void)state;
    static const size_t sizes[] = {1, 4096, 4097, 40 * 4096 + 5};
    for (size_t k = 0; k < sizeof sizes / sizeof sizes[0]; k++) {
        char *p = mem_alloc_pages(64 * 4096);
        assert_non_null(p);
        p[0] = 3;
        p[64 * 4096 - 1] = 4;
        mem_touch_pages(p, sizes[k]);
        assert_true(is_provided(p, sizes[k]));
        assert_int_equal(p[0], 3);
        assert_int_equal(p[1], 0);
        assert_int_equal(p[64 * 4096 - 1], 4);
        mem_touch_pages(p + 4095, 2); /* across a border */
        assert_true(is_provided(p, 8192));
        mem_touch_pages(p, 0);
        mem_free_pages(p);
    }
}

static void strings_are_copied(void **state)
{
    (void)state;
    char *whole = mem_strdup("hello");
    char *part = mem_strndup("hello", 2);
    assert_string_equal(whole, "hello");
    assert_string_equal(part, "he");
    mem_free(whole);
    mem_free(part);
}

/* What was freed between blocks that stay is given back, once. */
static void freed_pages_are_given_back(void **state)
{
    (void)state;
    enum { N = 2000, BYTES = 40000 };
    void **blocks = mem_alloc_array(N, sizeof *blocks);
    size_t was = 0;
    assert_non_null(blocks);
    for (size_t i = 0; i < N; i++) {
        blocks[i] = mem_alloc(BYTES);
        assert_non_null(blocks[i]);
        memset(blocks[i], 1, BYTES);
    }
    for (size_t i = 0; i < N; i += 2) mem_free(blocks[i]);
    size_t before = resident_bytes();
    mem_give_back((size_t)1 << 40, &was);
    size_t untried = resident_bytes();
    mem_give_back(1, &was);
    size_t after = resident_bytes();
    if (!KEEPS_FREED_MEMORY) {
        assert_true(untried + (1 << 20) > before);
        assert_true(after + N / 2 * (BYTES - 8192) < before);
        assert_true(was > 0);
    }
    for (size_t i = 1; i < N; i += 2) mem_free(blocks[i]);
    mem_free(blocks);
}

static void exactly_the_nth_allocation_fails(void **state)
{
    (void)state;
    for (long n = 0; n < 6; n++) {
        mem_fail_after(n);
        assert_false(mem_fail_hit());
        for (long i = 0; i < 8; i++) {
            void *p = i % 4 == 0   ? mem_alloc(8)
                      : i % 4 == 1 ? mem_calloc(1, 8)
                      : i % 4 == 2 ? mem_resize(NULL, 8)
                                   : mem_alloc_aligned(8, 8);
            assert_int_equal(p == NULL, i == n);
            assert_int_equal(mem_fail_hit(), i >= n);
            mem_free(p);
        }
    }
    mem_fail_after(-1);
}

static void forbidding_tells_what_was_before(void **state)
{
    (void)state;
    assert_false(mem_forbid(true));
    assert_true(mem_forbid(false));
    assert_false(mem_forbid(false));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blocks_of_any_size_are_valid),
        cmocka_unit_test(a_product_that_overflows_gives_nothing),
        cmocka_unit_test(an_array_doubles_and_keeps_what_it_holds),
        cmocka_unit_test(aligned_blocks_are_aligned),
        cmocka_unit_test(pages_are_zero_and_cost_nothing_untouched),
        cmocka_unit_test(touched_pages_are_provided_and_keep_what_they_hold),
        cmocka_unit_test(strings_are_copied),
        cmocka_unit_test(freed_pages_are_given_back),
        cmocka_unit_test(exactly_the_nth_allocation_fails),
        cmocka_unit_test(forbidding_tells_what_was_before),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
