/* test_direct_file.c - files past the page cache: round trips, ends, locks, a full disk */
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/direct_file.h"
#include "base/mem.h"

enum { N = 8 * DIRECT_ALIGN };

struct world {
    char path[64];
    struct direct_file file;
    unsigned char *a;
    unsigned char *b;
};

static int open_world(void **state)
{
    struct world *w = calloc(1, sizeof *w);
    (void)snprintf(w->path, sizeof w->path, "/tmp/fathom-direct-%d", (int)getpid());
    (void)unlink(w->path);
    assert_int_equal(direct_file_open(&w->file, AT_FDCWD, w->path, NULL), FATHOM_OK);
    w->a = mem_alloc_aligned(DIRECT_ALIGN, N);
    w->b = mem_alloc_aligned(DIRECT_ALIGN, N);
    for (size_t i = 0; i < N; i++) w->a[i] = (unsigned char)(i * 7 + i / 4096);
    memset(w->b, 0, N);
    *state = w;
    return 0;
}

static int close_world(void **state)
{
    struct world *w = *state;
    direct_file_close(&w->file);
    direct_file_close(&w->file);
    (void)unlink(w->path);
    mem_free(w->a);
    mem_free(w->b);
    free(w);
    return 0;
}

static void what_is_written_is_read(void **state)
{
    struct world *w = *state;
    uint64_t size = 1;
    assert_int_equal(direct_file_write(&w->file, w->a, N, DIRECT_ALIGN, NULL), FATHOM_OK);
    assert_int_equal(direct_file_size(&w->file, &size), FATHOM_OK);
    assert_int_equal(size, N + DIRECT_ALIGN);
    assert_int_equal(direct_file_read(&w->file, w->b, N, DIRECT_ALIGN, NULL), FATHOM_OK);
    assert_memory_equal(w->a, w->b, N);
}

static void room_that_is_taken_reads_as_zeros(void **state)
{
    struct world *w = *state;
    assert_int_equal(direct_file_resize(&w->file, N, NULL), FATHOM_OK);
    memset(w->b, 1, N);
    assert_int_equal(direct_file_read(&w->file, w->b, N, 0, NULL), FATHOM_OK);
    for (size_t i = 0; i < N; i++) assert_int_equal(w->b[i], 0);
    assert_int_equal(direct_file_resize(&w->file, DIRECT_ALIGN, NULL), FATHOM_OK);
    uint64_t size = 0;
    assert_int_equal(direct_file_size(&w->file, &size), FATHOM_OK);
    assert_int_equal(size, DIRECT_ALIGN);
}

static void a_read_beyond_the_end_is_told(void **state)
{
    struct world *w = *state;
    fathom_diag d = {{0}};
    assert_int_equal(direct_file_write(&w->file, w->a, N, 0, NULL), FATHOM_OK);
    assert_int_equal(direct_file_read(&w->file, w->b, N, DIRECT_ALIGN, &d), FATHOM_ELIMIT);
    assert_non_null(strstr(d.text, "the file ends before"));
    assert_int_equal(truncate(w->path, N - 100), 0); /* not at the end of a block */
    assert_int_equal(direct_file_read(&w->file, w->b, N, 0, NULL), FATHOM_ELIMIT);
}

static void two_cannot_lock_one_file(void **state)
{
    struct world *w = *state;
    struct direct_file other;
    assert_int_equal(direct_file_lock(&w->file), FATHOM_OK);
    assert_int_equal(direct_file_open(&other, AT_FDCWD, w->path, NULL), FATHOM_OK);
    assert_int_equal(direct_file_lock(&other), FATHOM_EBUSY);
    direct_file_close(&w->file);
    assert_int_equal(direct_file_lock(&other), FATHOM_OK);
    direct_file_close(&other);
}

static void a_path_that_cannot_be_is_named(void **state)
{
    (void)state;
    struct direct_file f;
    fathom_diag d = {{0}};
    assert_int_equal(direct_file_open(&f, AT_FDCWD, "/nowhere/file", &d), FATHOM_EINVAL);
    assert_non_null(strstr(d.text, "/nowhere/file: cannot be opened: No such file"));
    direct_file_close(&f);
}

/* A limit on the size of files stands for a disk without room. */
static void no_room_is_told_from_a_broken_disk(void **state)
{
    struct world *w = *state;
    struct rlimit before, small;
    fathom_diag d = {{0}};
    (void)signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    small = (struct rlimit){DIRECT_ALIGN, before.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    fathom_err inside = direct_file_write(&w->file, w->a, DIRECT_ALIGN, 0, NULL);
    fathom_err beyond = direct_file_write(&w->file, w->a, DIRECT_ALIGN, DIRECT_ALIGN, &d);
    fathom_err across = direct_file_write(&w->file, w->a, N, 0, NULL);
    fathom_err room = direct_file_resize(&w->file, N, NULL);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    assert_int_equal(inside, FATHOM_OK);
    assert_int_equal(beyond, FATHOM_ELIMIT);
    assert_int_equal(across, FATHOM_ELIMIT);
    assert_int_equal(room, FATHOM_ELIMIT);
    assert_non_null(strstr(d.text, "cannot be written: File too large"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(what_is_written_is_read, open_world, close_world),
        cmocka_unit_test_setup_teardown(room_that_is_taken_reads_as_zeros, open_world, close_world),
        cmocka_unit_test_setup_teardown(a_read_beyond_the_end_is_told, open_world, close_world),
        cmocka_unit_test_setup_teardown(two_cannot_lock_one_file, open_world, close_world),
        cmocka_unit_test(a_path_that_cannot_be_is_named),
        cmocka_unit_test_setup_teardown(no_room_is_told_from_a_broken_disk, open_world,
                                        close_world),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
