/* test_private_dir.c - a directory is taken when nobody else can write to it, and its files are
 * what they seem */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/os.h"
#include "base/private_dir.h"

static char path[64];
static char file[96];
static fathom_diag d;

static int make(void **state)
{
    (void)state;
    (void)snprintf(path, sizeof path, "/tmp/fathom-private-%d", (int)getpid());
    (void)snprintf(file, sizeof file, "%s/file", path);
    d.text[0] = '\0';
    return 0;
}

static int clean(void **state)
{
    (void)state;
    (void)unlink(file);
    (void)rmdir(path);
    (void)unlink(path);
    return 0;
}

static void a_directory_is_made_for_its_owner(void **state)
{
    (void)state;
    int fd;
    struct stat st;
    assert_int_equal(private_dir_open(&fd, path, NULL), FATHOM_OK);
    assert_int_equal(fstat(fd, &st), 0);
    assert_int_equal(st.st_mode & 07777, 0700);
    private_dir_close(fd);
    assert_int_equal(private_dir_open(&fd, path, NULL), FATHOM_OK); /* it is there now */
    private_dir_close(fd);
    private_dir_close(-1);
}

static void one_that_others_can_write_to_is_refused(void **state)
{
    (void)state;
    static const mode_t modes[] = {0720, 0702, 0777, 01777};
    int fd;
    assert_int_equal(mkdir(path, 0700), 0);
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++) {
        char mode[32];
        d.text[0] = '\0';
        assert_int_equal(chmod(path, modes[i]), 0);
        assert_int_equal(private_dir_open(&fd, path, &d), FATHOM_EINVAL);
        assert_int_equal(fd, -1);
        (void)snprintf(mode, sizeof mode, "has mode %04o", (unsigned)modes[i]);
        assert_non_null(strstr(d.text, mode));
        assert_non_null(strstr(d.text, "chmod go-w"));
    }
    assert_int_equal(chmod(path, 0755), 0); /* others may look */
    assert_int_equal(private_dir_open(&fd, path, NULL), FATHOM_OK);
    private_dir_close(fd);
}

/* Only root can give a directory away, and every directory of root's is another's for the rest. */
static void one_of_another_owner_is_refused(void **state)
{
    (void)state;
    int fd;
    bool is_root = geteuid() == 0;
    assert_int_equal(mkdir(path, 0700), 0);
    if (is_root) assert_int_equal(chown(path, 12345, (gid_t)-1), 0);
    assert_int_equal(private_dir_open(&fd, is_root ? path : "/usr", &d), FATHOM_EINVAL);
    assert_non_null(strstr(d.text, is_root ? "belongs to user 12345" : "belongs to user 0"));
}

static void what_is_no_directory_is_named(void **state)
{
    (void)state;
    int fd;
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_int_equal(fclose(f), 0);
    assert_int_equal(private_dir_open(&fd, path, &d), FATHOM_EINVAL);
    assert_non_null(strstr(d.text, "Not a directory"));
    assert_int_equal(private_dir_open(&fd, "/nowhere/deep", NULL), FATHOM_EINVAL);
}

static void links_and_pipes_are_not_files(void **state)
{
    (void)state;
    int dir, fd;
    assert_int_equal(private_dir_open(&dir, path, NULL), FATHOM_OK);
    assert_int_equal(private_file_open(&fd, dir, "file", O_RDONLY, &d), FATHOM_ENOTFOUND);
    assert_int_equal(symlink("/tmp/fathom-nobody", file), 0);
    assert_int_equal(private_file_open(&fd, dir, "file", O_RDWR | O_CREAT, &d), FATHOM_EINVAL);
    assert_false(path_exists("/tmp/fathom-nobody"));
    assert_non_null(strstr(d.text, "file is a symbolic link"));
    assert_int_equal(unlink(file), 0);
    assert_int_equal(mkfifo(file, 0600), 0);
    d.text[0] = '\0';
    assert_int_equal(private_file_open(&fd, dir, "file", O_RDONLY, &d), FATHOM_EINVAL);
    assert_non_null(strstr(d.text, "file is not a regular file"));
    private_dir_close(dir);
}

static void a_file_is_replaced_whole(void **state)
{
    (void)state;
    int dir;
    char back[16];
    size_t n;
    assert_int_equal(private_dir_open(&dir, path, NULL), FATHOM_OK);
    assert_int_equal(private_file_replace(dir, "file", "one", 3, NULL), FATHOM_OK);
    assert_int_equal(private_file_replace(dir, "file", "three", 5, NULL), FATHOM_OK);
    assert_int_equal(private_file_read(dir, "file", back, sizeof back, &n, NULL), FATHOM_OK);
    assert_int_equal(n, 5);
    assert_memory_equal(back, "three", 5);
    assert_int_equal(private_file_read(dir, "file", back, 5, &n, NULL), FATHOM_OK);
    assert_int_equal(private_file_read(dir, "file", back, 4, &n, NULL), FATHOM_ELIMIT);
    struct stat st;
    assert_int_equal(stat(file, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    private_dir_close(dir);
}

int main(void)
{
#define CASE(f) cmocka_unit_test_setup_teardown(f, make, clean)
    const struct CMUnitTest tests[] = {
        CASE(a_directory_is_made_for_its_owner), CASE(one_that_others_can_write_to_is_refused),
        CASE(one_of_another_owner_is_refused),   CASE(what_is_no_directory_is_named),
        CASE(links_and_pipes_are_not_files),     CASE(a_file_is_replaced_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
