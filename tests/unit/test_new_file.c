/* test_new_file.c - whole files, names of a directory, a full disk */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/new_file.h"
#include "base/os.h"
#include "support/safetensors_write.h"

static char dir[LIMIT_PATH_BYTES];

static const char *in_dir(const char *name)
{
    static char path[LIMIT_PATH_BYTES];
    assert_int_equal(path_join(path, sizeof path, dir, name), FATHOM_OK);
    return path;
}

static void holds(const char *name, const char *text)
{
    struct file_map m;
    fathom_diag d = {{0}};
    if (file_map_open(&m, in_dir(name), &d)) fail_msg("%s", d.text);
    assert_int_equal(m.size, strlen(text));
    assert_memory_equal(m.data, text, m.size);
    file_map_close(&m);
}

static void the_name_comes_with_the_last_byte(void **state)
{
    (void)state;
    struct new_file f;
    assert_int_equal(new_file_save(in_dir("a"), "old", 3, NULL), FATHOM_OK);
    assert_int_equal(new_file_begin(&f, in_dir("a"), NULL), FATHOM_OK);
    assert_int_equal(new_file_write(&f, "45", 2, 3, NULL), FATHOM_OK);
    assert_int_equal(new_file_write(&f, "012", 3, 0, NULL), FATHOM_OK);
    holds("a", "old");
    assert_true(path_exists(in_dir("a.part")));
    assert_int_equal(new_file_end(&f, NULL), FATHOM_OK);
    holds("a", "01245");
    assert_false(path_exists(in_dir("a.part")));
    new_file_drop(&f); /* it is empty */
    holds("a", "01245");
}

static void a_dropped_file_leaves_what_was_there(void **state)
{
    (void)state;
    struct new_file f;
    assert_int_equal(new_file_save(in_dir("b"), "old", 3, NULL), FATHOM_OK);
    assert_int_equal(new_file_begin(&f, in_dir("b"), NULL), FATHOM_OK);
    assert_int_equal(new_file_write(&f, "new", 3, 0, NULL), FATHOM_OK);
    new_file_drop(&f);
    holds("b", "old");
    assert_false(path_exists(in_dir("b.part")));
}

static void a_full_disk_is_a_limit(void **state)
{
    (void)state;
    struct rlimit was, now;
    struct new_file f;
    fathom_diag d = {{0}};
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &was), 0);
    now = was;
    now.rlim_cur = 1000;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &now), 0);
    assert_int_equal(new_file_begin(&f, in_dir("c"), &d), FATHOM_OK);
    char bytes[600] = {0};
    assert_int_equal(new_file_write(&f, bytes, sizeof bytes, 0, &d), FATHOM_OK);
    fathom_err err = new_file_write(&f, bytes, sizeof bytes, 600, &d);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &was), 0);
    (void)signal(SIGXFSZ, handler);
    assert_int_equal(err, FATHOM_ELIMIT);
    assert_non_null(strstr(d.text, "c.part: cannot be written: "));
    new_file_drop(&f);
    assert_false(path_exists(in_dir("c")));
}

static void what_is_appended_is_whole_or_not_there(void **state)
{
    (void)state;
    struct rlimit was, now;
    fathom_diag d = {{0}};
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
    char bytes[600] = {0};
    assert_int_equal(file_append(in_dir("lines"), "one\n", 4, &d), FATHOM_OK);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &was), 0);
    now = was;
    now.rlim_cur = 300;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &now), 0);
    fathom_err err = file_append(in_dir("lines"), bytes, sizeof bytes, &d);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &was), 0);
    (void)signal(SIGXFSZ, handler);
    assert_int_equal(err, FATHOM_ELIMIT);
    assert_non_null(strstr(d.text, "lines: cannot be written: "));
    assert_non_null(strstr(d.text, "; it holds what it held before"));
    holds("lines", "one\n");
    assert_int_equal(file_append(in_dir("lines"), "two\n", 4, &d), FATHOM_OK);
    holds("lines", "one\ntwo\n");
    assert_int_equal(file_append("/dev/full", "x", 1, &d), FATHOM_ELIMIT);
}

static void what_is_no_file_stays_what_it_is(void **state)
{
    (void)state;
    fathom_diag d = {{0}};
    assert_int_equal(new_file_save(in_dir("real"), "long before", 11, &d), FATHOM_OK);
    assert_int_equal(symlink("real", in_dir("link")), 0);
    assert_int_equal(file_save(in_dir("link"), "new", 3, &d), FATHOM_OK);
    holds("real", "new");
    assert_int_equal(new_file_save(in_dir("link"), "own", 3, &d), FATHOM_OK);
    holds("link", "own");
    holds("real", "new");
    assert_int_equal(file_save("/dev/null", "x", 1, &d), FATHOM_OK);
    assert_int_equal(file_append("/dev/null", "x", 1, &d), FATHOM_OK);
    assert_int_equal(file_save("/dev/full", "x", 1, &d), FATHOM_ELIMIT);
    assert_string_equal(d.text, "/dev/full: cannot be written: No space left on device");
}

static fathom_err add_name(void *arg, const char *name)
{
    char *names = arg;
    memcpy(names + strlen(names), name, strlen(name) + 1);
    return strcmp(name, "stop") == 0 ? FATHOM_EBUSY : FATHOM_OK;
}

static void names_come_in_order(void **state)
{
    (void)state;
    char names[256] = "", sub[LIMIT_PATH_BYTES];
    fathom_diag d = {{0}};
    (void)snprintf(sub, sizeof sub, "%s", in_dir("sub"));
    assert_int_equal(os_make_dir(sub, NULL), FATHOM_OK);
    assert_int_equal(dir_each_file(sub, add_name, names, NULL), FATHOM_OK);
    assert_string_equal(names, "");
    assert_int_equal(new_file_save(in_dir("sub/z"), "", 0, NULL), FATHOM_OK);
    assert_int_equal(new_file_save(in_dir("sub/.a"), "", 0, NULL), FATHOM_OK);
    assert_int_equal(os_make_dir(in_dir("sub/folder"), NULL), FATHOM_OK);
    assert_int_equal(dir_each_file(sub, add_name, names, NULL), FATHOM_OK);
    assert_string_equal(names, ".az");
    assert_int_equal(new_file_save(in_dir("sub/stop"), "", 0, NULL), FATHOM_OK);
    assert_int_equal(dir_each_file(sub, add_name, names, NULL), FATHOM_EBUSY);
    assert_string_equal(names, ".az.astop");
    assert_int_equal(dir_each_file("/nowhere", add_name, names, &d), FATHOM_EIO);
    assert_non_null(strstr(d.text, "/nowhere"));
}

static void a_directory_is_locked_once(void **state)
{
    (void)state;
    int first, second;
    assert_int_equal(dir_lock(&first, dir, NULL), FATHOM_OK);
    assert_int_equal(dir_lock(&second, dir, NULL), FATHOM_EBUSY);
    assert_int_equal(second, -1);
    dir_unlock(second);
    dir_unlock(first);
    assert_int_equal(dir_lock(&second, dir, NULL), FATHOM_OK);
    dir_unlock(second);
    assert_int_equal(dir_lock(&first, "/nowhere", NULL), FATHOM_EIO);
}

static void what_is_gone_on_with_has_one_writer(void **state)
{
    (void)state;
    struct new_file first, second;
    fathom_diag d = {{0}};
    assert_int_equal(new_file_go_on(&first, in_dir("g"), &d), FATHOM_OK);
    assert_int_equal(new_file_write(&first, "one\n", 4, 0, &d), FATHOM_OK);
    assert_int_equal(new_file_go_on(&second, in_dir("g"), &d), FATHOM_EBUSY);
    assert_int_equal(second.fd, -1);
    assert_non_null(strstr(d.text, "g.part: another process writes it"));
    holds("g.part", "one\n");
    new_file_leave(&first);
    assert_int_equal(new_file_go_on(&second, in_dir("g"), &d), FATHOM_OK);
    new_file_drop(&second);
    assert_false(path_exists(in_dir("g.part")));
}

static void what_cannot_take_its_name_may_be_left(void **state)
{
    (void)state;
    struct new_file f;
    fathom_diag d = {{0}};
    assert_int_equal(new_file_begin(&f, in_dir("taken"), &d), FATHOM_OK);
    assert_int_equal(new_file_write(&f, "one", 3, 0, &d), FATHOM_OK);
    assert_int_equal(os_make_dir(in_dir("taken"), NULL), FATHOM_OK);
    assert_int_equal(new_file_end(&f, &d), FATHOM_EIO);
    assert_non_null(strstr(d.text, "taken: cannot be written: "));
    new_file_leave(&f);
    holds("taken.part", "one");
    assert_int_equal(new_file_save(in_dir("taken"), "one", 3, &d), FATHOM_EIO);
    assert_false(path_exists(in_dir("taken.part")));
}

static void names_of_no_regular_file_are_found(void **state)
{
    (void)state;
    char other[LIMIT_PATH_BYTES], name[8];
    fathom_diag d = {{0}};
    (void)snprintf(other, sizeof other, "%s", in_dir("other"));
    assert_int_equal(os_make_dir(other, NULL), FATHOM_OK);
    assert_int_equal(os_make_dir(in_dir("other/lost+found"), NULL), FATHOM_OK);
    assert_int_equal(new_file_save(in_dir("other/file"), "", 0, NULL), FATHOM_OK);
    assert_int_equal(dir_other_name(other, name, sizeof name, &d), FATHOM_OK);
    assert_string_equal(name, "");
    assert_int_equal(symlink("nowhere", in_dir("other/link")), 0);
    assert_int_equal(dir_other_name(other, name, sizeof name, &d), FATHOM_OK);
    assert_string_equal(name, "link");
    assert_int_equal(unlink(in_dir("other/link")), 0);
    assert_int_equal(os_make_dir(in_dir("other/a_folder"), NULL), FATHOM_OK);
    assert_int_equal(dir_other_name(other, name, sizeof name, &d), FATHOM_OK);
    assert_string_equal(name, "a_folde");
    assert_int_equal(dir_other_name("/nowhere", name, sizeof name, &d), FATHOM_EIO);
}

static void other_faults_name_the_path(void **state)
{
    (void)state;
    fathom_diag d = {{0}};
    uint64_t bytes;
    assert_int_equal(new_file_save("/nowhere/x", "", 0, &d), FATHOM_EIO);
    assert_non_null(strstr(d.text, "/nowhere/x.part"));
    assert_int_equal(file_remove(in_dir("absent"), &d), FATHOM_OK);
    assert_int_equal(disk_free_bytes(dir, &bytes, &d), FATHOM_OK);
    assert_true(bytes > 0);
    assert_int_equal(disk_free_bytes("/nowhere", &bytes, NULL), FATHOM_EIO);
}

static int make_dir(void **state)
{
    (void)state;
    temp_dir_create(dir);
    return 0;
}

static int remove_dir(void **state)
{
    (void)state;
    temp_dir_remove(dir);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_name_comes_with_the_last_byte),
        cmocka_unit_test(a_dropped_file_leaves_what_was_there),
        cmocka_unit_test(a_full_disk_is_a_limit),
        cmocka_unit_test(what_is_appended_is_whole_or_not_there),
        cmocka_unit_test(what_is_no_file_stays_what_it_is),
        cmocka_unit_test(names_come_in_order),
        cmocka_unit_test(a_directory_is_locked_once),
        cmocka_unit_test(what_is_gone_on_with_has_one_writer),
        cmocka_unit_test(what_cannot_take_its_name_may_be_left),
        cmocka_unit_test(names_of_no_regular_file_are_found),
        cmocka_unit_test(other_faults_name_the_path),
    };
    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
