/* test_weights_digest.c - every byte of a checkpoint counts, and a digest that was kept is taken
 * only for the bytes that it was made of */
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

#include "base/buf.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/private_dir.h"
#include "checkpoint/weights_digest.h"
#include "support/safetensors_write.h"

enum { N_TENSOR = 3, N_VALUE = 5 << 20 }; /* the file has several leaves, the last one short */

static char dir[LIMIT_PATH_BYTES];
static char kept[LIMIT_PATH_BYTES + 8];
static char shard[LIMIT_PATH_BYTES + 32];

static void save_model(void)
{
    struct safetensors_writer w = {0};
    const uint64_t n = N_VALUE;
    for (int i = 0; i < N_TENSOR; i++) {
        char name[32];
        (void)snprintf(name, sizeof name, "tensor.%d", i);
        safetensors_add(&w, name, "F8_E4M3", 1, &n, NULL, N_VALUE);
    }
    safetensors_save(&w, 0, dir, "model.safetensors");
}

/* Changes a byte of the last tensors' data, counted from the end of the file, in place. */
static void flip(long from_end)
{
    FILE *f = fopen(shard, "r+b");
    assert_non_null(f);
    assert_int_equal(fseek(f, -from_end, SEEK_END), 0);
    int c = fgetc(f);
    assert_int_equal(fseek(f, -from_end, SEEK_END), 0);
    assert_int_not_equal(fputc(c ^ 1, f), EOF);
    assert_int_equal(fclose(f), 0);
}

static struct weights_digest *begin(struct checkpoint **c, bool keep, int64_t settled_s)
{
    struct weights_digest *w;
    struct weights_digest_config config = {.n_thread = 2, .dir = -1, .settled_s = settled_s};
    fathom_diag d = {{0}};
    if (checkpoint_open(c, dir, &d) != FATHOM_OK) fail_msg("%s", d.text);
    if (keep) assert_int_equal(private_dir_open(&config.dir, kept, NULL), FATHOM_OK);
    assert_int_equal(weights_digest_begin(&w, *c, &config, NULL), FATHOM_OK);
    return w;
}

static struct weights_digest_result digest(bool keep, int64_t settled_s)
{
    struct checkpoint *c = NULL;
    struct weights_digest_result r;
    weights_digest_end(begin(&c, keep, settled_s), &r);
    checkpoint_close(c);
    assert_int_equal(r.n_shard, 1);
    assert_false(r.changed);
    return r;
}

/* First, last, the middle and its neighbours, and both sides of the border between two leaves. */
static void every_byte_counts(void **state)
{
    (void)state;
    const long n_data = (long)N_TENSOR * N_VALUE;
    const long at[] = {1, 2, N_VALUE, N_VALUE + 1, n_data / 2 + 1000, n_data / 2, n_data};
    struct stat st;
    save_model();
    const struct sha256 plain = digest(false, 0).digest;
    assert_int_equal(stat(shard, &st), 0);
    for (size_t i = 0; i < sizeof at / sizeof *at + 2; i++) {
        long border = (long)st.st_size - (4 << 20); /* from the end: the first byte of leaf 1 */
        long place = i < sizeof at / sizeof *at ? at[i] : i % 2 ? border : border + 1;
        flip(place);
        const struct sha256 other = digest(false, 0).digest;
        assert_false(sha256_equal(&plain, &other));
        flip(place);
    }
    const struct sha256 again = digest(false, 0).digest;
    assert_true(sha256_equal(&plain, &again));
}

static void a_copy_elsewhere_is_the_same(void **state)
{
    (void)state;
    char command[3 * LIMIT_PATH_BYTES], home[LIMIT_PATH_BYTES];
    save_model();
    const struct sha256 plain = digest(true, 0).digest;
    temp_dir_create(home);
    (void)snprintf(command, sizeof command, "%s/model.safetensors", home);
    assert_int_equal(rename(shard, command), 0);
    memcpy(command, dir, sizeof dir);
    memcpy(dir, home, sizeof dir);
    const struct weights_digest_result there = digest(true, 0);
    memcpy(dir, command, sizeof dir);
    temp_dir_remove(home);
    assert_true(sha256_equal(&plain, &there.digest));
}

static void a_kept_digest_saves_the_reading(void **state)
{
    (void)state;
    save_model();
    const struct weights_digest_result first = digest(true, 0), second = digest(true, 0);
    assert_int_equal(first.n_kept, 0);
    assert_true(first.n_bytes > (uint64_t)N_TENSOR * N_VALUE);
    assert_int_equal(second.n_kept, 1);
    assert_int_equal(second.n_bytes, 0);
    assert_true(sha256_equal(&first.digest, &second.digest));
}

/* Rewritten in place with the same size, and its mtime set back: ctime tells. */
static void a_shard_written_again_is_read_again(void **state)
{
    (void)state;
    struct stat st;
    save_model();
    const struct sha256 plain = digest(true, 0).digest;
    assert_int_equal(stat(shard, &st), 0);
    const struct timespec times[2] = {st.st_atim, st.st_mtim};
    (void)usleep(30000); /* another tick of the file system's clock */
    flip(N_VALUE / 2);
    assert_int_equal(utimensat(AT_FDCWD, shard, times, 0), 0);
    const struct weights_digest_result r = digest(true, 0);
    assert_int_equal(r.n_kept, 0);
    assert_false(sha256_equal(&plain, &r.digest));
}

/* A write in the same tick could not be told: such a shard is not kept. */
static void a_shard_written_just_now_is_not_kept(void **state)
{
    (void)state;
    save_model();
    (void)digest(true, 3600);
    assert_int_equal(digest(true, 3600).n_kept, 0);
}

static void a_damaged_file_of_digests_is_none(void **state)
{
    (void)state;
    char path[LIMIT_PATH_BYTES + 32];
    (void)snprintf(path, sizeof path, "%s/kv.weights", kept);
    save_model();
    const struct sha256 plain = digest(true, 0).digest;
    for (long at = 0; at < 96; at++) {
        FILE *f = fopen(path, "r+b");
        assert_non_null(f);
        assert_int_equal(fseek(f, at, SEEK_SET), 0);
        int c = fgetc(f);
        assert_int_equal(fseek(f, at, SEEK_SET), 0);
        assert_int_not_equal(fputc(c ^ 4, f), EOF);
        assert_int_equal(fclose(f), 0);
        if (at % 5) continue; /* several bytes at once, too */
        const struct weights_digest_result r = digest(true, 0);
        assert_int_equal(r.n_kept, 0);
        assert_true(sha256_equal(&plain, &r.digest));
    }
    assert_int_equal(truncate(path, 50), 0);
    assert_int_equal(digest(true, 0).n_kept, 0);
    assert_int_equal(digest(true, 0).n_kept, 1);
}

static void a_shard_that_changes_while_it_is_loaded_is_nobodys(void **state)
{
    (void)state;
    struct checkpoint *c = NULL;
    struct weights_digest_result a, b;
    save_model();
    const struct sha256 plain = digest(false, 0).digest;
    struct weights_digest *w = begin(&c, true, 0);
    (void)usleep(30000);
    flip(1);
    flip(1);
    weights_digest_end(w, &a);
    checkpoint_close(c);
    assert_true(a.changed);
    assert_false(sha256_equal(&plain, &a.digest));
    w = begin(&c, true, 0);
    assert_int_equal(unlink(shard), 0);
    weights_digest_end(w, &b);
    checkpoint_close(c);
    assert_true(b.changed);
    assert_false(sha256_equal(&a.digest, &b.digest));
}

static void beginning_survives_any_failed_allocation(void **state)
{
    (void)state;
    struct checkpoint *c = NULL;
    save_model();
    const struct sha256 plain = digest(true, 0).digest;
    assert_int_equal(checkpoint_open(&c, dir, NULL), FATHOM_OK);
    for (long n = 0;; n++) {
        struct weights_digest *w = NULL;
        struct weights_digest_result r;
        struct weights_digest_config config = {.n_thread = 1};
        assert_int_equal(private_dir_open(&config.dir, kept, NULL), FATHOM_OK);
        mem_fail_after(n);
        fathom_err err = weights_digest_begin(&w, c, &config, NULL);
        if (!err) weights_digest_end(w, &r);
        bool hit = mem_fail_hit();
        mem_fail_after(-1);
        if (err) assert_int_equal(err, FATHOM_ENOMEM);
        if (hit) continue;
        assert_true(sha256_equal(&plain, &r.digest));
        break;
    }
    checkpoint_close(c);
}

/* A start that fails does not wait for the rest: 64 GB of a hole would take half a minute. */
static void what_is_given_up_ends_soon(void **state)
{
    (void)state;
    struct checkpoint *c = NULL;
    struct buf file = {0};
    const uint64_t n_bytes = (uint64_t)64 << 30;
    char header[128];
    (void)snprintf(header, sizeof header,
                   "{\"t\":{\"dtype\":\"U8\",\"shape\":[%llu],\"data_offsets\":[0,%llu]}}",
                   (unsigned long long)n_bytes, (unsigned long long)n_bytes);
    safetensors_raw(&file, header, 0);
    save_file(dir, "model.safetensors", buf_str(&file), file.len);
    assert_int_equal(truncate(shard, (off_t)(file.len + n_bytes)), 0);
    buf_free(&file);
    struct weights_digest *w = begin(&c, false, 0);
    uint64_t start_us = clock_now_us();
    weights_digest_cancel(w);
    assert_true(clock_now_us() - start_us < 10000000);
    checkpoint_close(c);
}

static int make_dir(void **state)
{
    (void)state;
    temp_dir_create(dir);
    (void)snprintf(kept, sizeof kept, "%s/kept", dir);
    (void)snprintf(shard, sizeof shard, "%s/model.safetensors", dir);
    return 0;
}

static int drop_dir(void **state)
{
    (void)state;
    temp_dir_remove(dir);
    return 0;
}

int main(void)
{
#define CASE(f) cmocka_unit_test_setup_teardown(f, make_dir, drop_dir)
    const struct CMUnitTest tests[] = {
        CASE(every_byte_counts),
        CASE(a_copy_elsewhere_is_the_same),
        CASE(a_kept_digest_saves_the_reading),
        CASE(a_shard_written_again_is_read_again),
        CASE(a_shard_written_just_now_is_not_kept),
        CASE(a_damaged_file_of_digests_is_none),
        CASE(a_shard_that_changes_while_it_is_loaded_is_nobodys),
        CASE(beginning_survives_any_failed_allocation),
        CASE(what_is_given_up_ends_soon),
    };
    log_set_level(LOG_LEVEL_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
