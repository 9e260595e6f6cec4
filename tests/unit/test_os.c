/* test_os.c - files, paths and the machine */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/json.h"
#include "base/limits.h"
#include "base/os.h"

/* A file of n bytes in a new directory; the caller removes both. */
static void make_file(char path[64], const char *bytes, size_t n)
{
    (void)snprintf(path, 64, "/tmp/fathom-test-XXXXXX");
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, bytes, n), n);
    (void)close(fd);
}

static void a_file_is_mapped_whole(void **state)
{
    (void)state;
    char path[64];
    struct file_map m;
    fathom_diag d = {{0}};
    make_file(path, "hello", 5);
    assert_int_equal(file_map_open(&m, path, &d), FATHOM_OK);
    assert_int_equal(m.size, 5);
    assert_memory_equal(m.data, "hello", 5);
    file_map_close(&m);
    assert_null(m.data);
    file_map_close(&m);
    assert_true(path_exists(path));
    assert_false(path_is_dir(path));
    (void)unlink(path);
    assert_false(path_exists(path));
}

static void an_empty_file_maps_to_nothing(void **state)
{
    (void)state;
    char path[64];
    struct file_map m;
    json_t *v;
    fathom_diag d = {{0}};
    make_file(path, "", 0);
    assert_int_equal(file_map_open(&m, path, &d), FATHOM_OK);
    assert_null(m.data);
    assert_int_equal(m.size, 0);
    file_map_close(&m);
    assert_int_equal(json_read_file(path, &v, &d), FATHOM_EFORMAT);
    (void)unlink(path);
}

static void what_cannot_be_mapped_is_named(void **state)
{
    (void)state;
    struct file_map m;
    fathom_diag d = {{0}};
    assert_int_equal(file_map_open(&m, "/nowhere/file", &d), FATHOM_ENOTFOUND);
    assert_non_null(strstr(d.text, "/nowhere/file"));
    assert_null(m.data);
    d.text[0] = '\0';
    assert_int_equal(file_map_open(&m, "/tmp", &d), FATHOM_EIO);
    assert_non_null(strstr(d.text, "/tmp: not a regular file"));
    assert_true(path_is_dir("/tmp"));
    char pipe[] = "/tmp/test_os_pipe_XXXXXX";
    assert_non_null(mkdtemp(pipe));
    assert_int_equal(rmdir(pipe), 0);
    assert_int_equal(mkfifo(pipe, 0600), 0);
    d.text[0] = '\0';
    assert_int_equal(file_map_open(&m, pipe, &d), FATHOM_EIO); /* nobody writes to it */
    assert_non_null(strstr(d.text, ": not a regular file"));
    (void)unlink(pipe);
}

static void what_may_be_written_is_known_before(void **state)
{
    (void)state;
    fathom_diag d = {{0}};
    assert_int_equal(path_check_writable("/tmp/test_os_of_no_such_name", true, &d), FATHOM_OK);
    assert_false(path_exists("/tmp/test_os_of_no_such_name"));
    assert_int_equal(path_check_writable("test_os_of_no_such_name", true, &d), FATHOM_OK);
    assert_int_equal(path_check_writable("/dev/null", true, &d), FATHOM_OK);
    assert_int_equal(path_check_writable("/tmp", true, &d), FATHOM_EIO);
    assert_string_equal(d.text, "/tmp: cannot be written: Is a directory");
    d.text[0] = '\0';
    assert_int_equal(path_check_writable("/nowhere/file", true, &d), FATHOM_EIO);
    assert_string_equal(d.text, "/nowhere/file: cannot be written: No such file or directory");
    d.text[0] = '\0';
    assert_int_equal(path_check_writable("/dev/null/file", true, &d), FATHOM_EIO);
    assert_string_equal(d.text, "/dev/null/file: cannot be written: Not a directory");
}

/* Of a user who is not root, who may write everywhere. */
static bool as_nobody(bool (*may)(const char *path), const char *path)
{
    int status = 0;
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        if (geteuid() == 0 && setuid(65534) != 0) _exit(2);
        _exit(may(path) ? 0 : 1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) < 2);
    return WEXITSTATUS(status) == 0;
}

static bool may_write(const char *path)
{
    return path_check_writable(path, false, NULL) == FATHOM_OK;
}

static bool may_replace(const char *path)
{
    return path_check_writable(path, true, NULL) == FATHOM_OK;
}

static bool may_make_dir(const char *path)
{
    char above[LIMIT_PATH_BYTES];
    return os_check_make_dir(path, above, NULL) == FATHOM_OK;
}

static void a_folder_that_can_be_made_is_known_before(void **state)
{
    (void)state;
    char above[LIMIT_PATH_BYTES];
    static const char *const good[][2] = {
        {"/tmp", "/tmp"},         {"/tmp/", "/tmp/"},      {"/tmp/test_os_none//in", "/tmp"},
        {"test_os_none/in", "."}, {"/test_os_none/", "/"}, {"test_os_none", "."}};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        fathom_diag d = {{0}};
        if (os_check_make_dir(good[i][0], above, &d)) fail_msg("%s", d.text);
        assert_string_equal(above, good[i][1]);
    }
    fathom_diag d = {{0}};
    assert_int_equal(os_check_make_dir("/dev/null/a/b", above, &d), FATHOM_EIO);
    assert_string_equal(d.text, "/dev/null/a/b: the directory cannot be made: /dev/null is not a "
                                "directory");
    assert_int_equal(os_check_make_dir("", above, NULL), FATHOM_EINVAL);
    char link[] = "/tmp/test_os_XXXXXX";
    assert_non_null(mkdtemp(link));
    assert_int_equal(rmdir(link), 0);
    assert_int_equal(symlink("nowhere", link), 0);
    assert_int_equal(os_check_make_dir(link, above, NULL), FATHOM_EIO);
    assert_int_equal(unlink(link), 0);
    assert_int_equal(mkdir(link, 0555), 0);
    assert_false(as_nobody(may_make_dir, link));
    char below[64];
    (void)snprintf(below, sizeof below, "%s/a/b", link);
    assert_false(as_nobody(may_make_dir, below));
    (void)rmdir(link);
}

static void a_file_is_replaced_where_its_folder_may_be_written(void **state)
{
    (void)state;
    char dir[] = "/tmp/test_os_XXXXXX", path[64], link[64];
    assert_non_null(mkdtemp(dir));
    (void)snprintf(path, sizeof path, "%s/file", dir);
    (void)snprintf(link, sizeof link, "%s/link", dir);
    const int fd = open(path, O_WRONLY | O_CREAT, 0666);
    assert_true(fd >= 0 && fchmod(fd, 0666) == 0 && close(fd) == 0 && chmod(dir, 0555) == 0);
    assert_true(as_nobody(may_write, path));
    assert_false(as_nobody(may_replace, path));
    assert_true(symlink("file", link) == 0 && as_nobody(may_replace, link));
    assert_int_equal(chmod(dir, 0777), 0);
    assert_true(as_nobody(may_replace, path));
    assert_true(unlink(path) == 0 && unlink(link) == 0 && rmdir(dir) == 0);
}

static void a_link_that_leads_nowhere_is_told(void **state)
{
    (void)state;
    char dir[] = "/tmp/test_os_XXXXXX", path[64], want[128];
    struct file_map m;
    fathom_diag d = {{0}};
    assert_non_null(mkdtemp(dir));
    (void)snprintf(path, sizeof path, "%s/link", dir);
    (void)snprintf(want, sizeof want, "%s: is a link to a file that is not there", path);
    assert_int_equal(symlink("../blobs/gone", path), 0);
    assert_int_equal(file_map_open(&m, path, &d), FATHOM_EIO);
    assert_string_equal(d.text, want);
    assert_true(unlink(path) == 0);
    assert_int_equal(file_map_open(&m, path, NULL), FATHOM_ENOTFOUND);
    assert_true(rmdir(dir) == 0);
}

static void names_of_others_stay_below_their_folder(void **state)
{
    (void)state;
    static const char *const good[] = {"a", "refs/pr/1", "a b/...", ".a", "..a/b.."};
    static const char *const bad[] = {"", ".", "..", "/a", "a/", "a//b", "a/../b", "a\\b", "a\n"};
    char name[202];
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        assert_true(path_stays_below(good[i]));
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) assert_false(path_stays_below(bad[i]));
    memset(name, 'a', 201);
    name[201] = '\0';
    assert_false(path_stays_below(name));
    assert_true(path_stays_below(name + 1));
}

static void paths_join_within_their_room(void **state)
{
    (void)state;
    char out[8];
    assert_int_equal(path_join(out, sizeof out, "abc", "def"), FATHOM_OK);
    assert_string_equal(out, "abc/def");
    assert_int_equal(path_join(out, sizeof out, "abcd", "def"), FATHOM_EINVAL);
}

static void the_machine_has_processors_and_memory(void **state)
{
    (void)state;
    uint64_t total, available;
    os_memory_bytes(&total, &available);
    assert_true(total > 0);
    assert_true(available <= total);
    assert_in_range(os_n_cpu(), 1, 100000);
}

static void a_thread_has_the_name_it_gave_itself(void **state)
{
    (void)state;
    char name[32] = "";
    os_name_thread("a name that is too long");
    assert_int_equal(prctl(PR_GET_NAME, name), 0);
    assert_string_equal(name, "a name that is ");
}

static void the_file_of_an_address_is_known(void **state)
{
    (void)state;
    char path[64], found[64] = "none", few[8];
    struct file_map m;
    uint64_t byte = 7;
    make_file(path, "hello", 5);
    assert_int_equal(file_map_open(&m, path, NULL), FATHOM_OK);
    assert_true(os_mapped_file((const char *)m.data + 3, found, sizeof found, &byte));
    assert_string_equal(found, path);
    assert_int_equal(byte, 3);
    assert_true(os_mapped_file(m.data, few, sizeof few, &byte));
    assert_string_equal(few, "");
    byte = 7;
    assert_false(os_mapped_file(&byte, found, sizeof found, &byte)); /* a stack */
    assert_false(os_mapped_file((const void *)64, found, sizeof found, &byte));
    assert_string_equal(found, path);
    assert_int_equal(byte, 7);
    file_map_close(&m);
    (void)unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_file_is_mapped_whole),
        cmocka_unit_test(an_empty_file_maps_to_nothing),
        cmocka_unit_test(what_cannot_be_mapped_is_named),
        cmocka_unit_test(what_may_be_written_is_known_before),
        cmocka_unit_test(a_folder_that_can_be_made_is_known_before),
        cmocka_unit_test(a_file_is_replaced_where_its_folder_may_be_written),
        cmocka_unit_test(a_link_that_leads_nowhere_is_told),
        cmocka_unit_test(the_file_of_an_address_is_known),
        cmocka_unit_test(names_of_others_stay_below_their_folder),
        cmocka_unit_test(paths_join_within_their_room),
        cmocka_unit_test(the_machine_has_processors_and_memory),
        cmocka_unit_test(a_thread_has_the_name_it_gave_itself),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
