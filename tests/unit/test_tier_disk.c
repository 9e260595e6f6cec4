/* test_tier_disk.c - a directory of records, and the thread over it
 *
 * What is written is found by the next that opens the directory. Whatever happens to the files in
 * between is found out. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "kv/tier_disk.h"
#include "kv/tier_io.h"
#include "support/patience.h"

enum { PAGE = 5000, N_PLACE = 4, ROOM = 8192 };

static const struct identity ours = {.model = {{11}}, .numerics = {{12}}, .layout = {{13}}};

struct world {
    char dir[64];
    char index[96];
    char pages[96];
    struct tier_disk *disk;
    unsigned char *page; /* [ROOM] */
    fathom_diag d;
};

/* ---- a disk that fails: reads and writes of blocks of one file, from a block on ---- */

static struct {
    ino_t inode; /* 0: none fails */
    off_t first;
    off_t end;
    bool writes;
} broken;

static uint64_t write_delay_us; /* of every write; this and the count are set while none is made */
static uint32_t n_write;

static bool is_broken(int fd, size_t n, off_t offset)
{
    struct stat st;
    return broken.inode && fstat(fd, &st) == 0 && st.st_ino == broken.inode &&
           offset < broken.end && offset + (off_t)n > broken.first;
}

/* In place of the C library's, for the whole program. */
ssize_t pread(int fd, void *data, size_t n, off_t offset)
{
    if (!is_broken(fd, n, offset)) return syscall(SYS_pread64, fd, data, n, offset);
    errno = EIO;
    return -1;
}

ssize_t pwrite(int fd, const void *data, size_t n, off_t offset)
{
    n_write++;
    if (write_delay_us > 0) clock_sleep_us(write_delay_us);
    if (!broken.writes || !is_broken(fd, n, offset)) {
        return syscall(SYS_pwrite64, fd, data, n, offset);
    }
    errno = EIO;
    return -1;
}

static void break_blocks(const char *path, off_t first, off_t n, bool writes)
{
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    broken.inode = st.st_ino;
    broken.first = first * DIRECT_ALIGN;
    broken.end = broken.first + n * DIRECT_ALIGN;
    broken.writes = writes;
}

static fathom_err open_as(struct world *w, const struct identity *id, uint32_t n_place)
{
    const struct tier_disk_config c = {.dir = w->dir,
                                       .bytes =
                                           DIRECT_ALIGN + n_place * tier_disk_place_bytes(PAGE),
                                       .page_bytes = PAGE,
                                       .identity = *id};
    w->d.text[0] = '\0';
    tier_disk_close(w->disk);
    return tier_disk_open(&w->disk, &c, &w->d);
}

static int open_world(void **state)
{
    struct world *w = calloc(1, sizeof *w);
    (void)snprintf(w->dir, sizeof w->dir, "/tmp/fathom-tier-%d", (int)getpid());
    (void)snprintf(w->index, sizeof w->index, "%s/kv.index", w->dir);
    (void)snprintf(w->pages, sizeof w->pages, "%s/kv.pages", w->dir);
    w->page = mem_alloc_aligned(DIRECT_ALIGN, ROOM);
    if (open_as(w, &ours, N_PLACE) != FATHOM_OK) fail_msg("%s", w->d.text);
    *state = w;
    return 0;
}

static int close_world(void **state)
{
    struct world *w = *state;
    broken.inode = 0;
    tier_disk_close(w->disk);
    (void)unlink(w->index);
    (void)unlink(w->pages);
    (void)rmdir(w->dir);
    mem_free(w->page);
    free(w);
    return 0;
}

static struct tier_name name_of(uint32_t i)
{
    struct tier_name n = {.key = {i, 1}, .n_id = KV_PAGE_TOKENS};
    for (int k = 0; k < KV_PAGE_TOKENS; k++) n.ids[k] = (int32_t)i * 1000 + k;
    return n;
}

static void fill_page(struct world *w, uint32_t i)
{
    memset(w->page, 0, ROOM);
    for (size_t k = 0; k < PAGE; k++) w->page[k] = (unsigned char)(k * 7 + i);
}

static enum tier_verdict write_record(struct world *w, uint32_t place, uint32_t i)
{
    const struct tier_name name = name_of(i);
    fill_page(w, i);
    return tier_disk_write(w->disk, place, i, &name, w->page, hash_checksum(w->page, PAGE), &w->d);
}

static enum tier_verdict read_record(struct world *w, uint32_t place, uint32_t i)
{
    const struct tier_name name = name_of(i);
    memset(w->page, 0xee, ROOM);
    uint64_t sum = 0;
    enum tier_verdict v = tier_disk_read(w->disk, place, &name, w->page, &sum, &w->d);
    if (v == TIER_GOOD) assert_true(sum == hash_checksum(w->page, PAGE));
    for (size_t k = 0; v == TIER_GOOD && k < PAGE; k++) {
        assert_int_equal(w->page[k], (unsigned char)(k * 7 + i));
    }
    return v;
}

/* Places 0, 1, 2 have records 30, 10, 20. */
static void write_three(struct world *w)
{
    assert_int_equal(write_record(w, 0, 30), TIER_GOOD);
    assert_int_equal(write_record(w, 1, 10), TIER_GOOD);
    assert_int_equal(write_record(w, 2, 20), TIER_GOOD);
}

static uint32_t n_found(const struct world *w)
{
    uint32_t n;
    (void)tier_disk_found(w->disk, &n);
    return n;
}

static void change(const char *path, long offset, unsigned char flip)
{
    FILE *f = fopen(path, "r+b");
    assert_non_null(f);
    assert_int_equal(fseek(f, offset, SEEK_SET), 0);
    int c = fgetc(f);
    assert_int_equal(fseek(f, offset, SEEK_SET), 0);
    assert_int_not_equal(fputc(c ^ flip, f), EOF);
    assert_int_equal(fclose(f), 0);
}

static void a_new_directory_is_empty(void **state)
{
    struct world *w = *state;
    struct stat st;
    assert_int_equal(tier_disk_capacity(w->disk), N_PLACE);
    assert_int_equal(n_found(w), 0);
    assert_int_equal(stat(w->dir, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0700);
    assert_int_equal(stat(w->pages, &st), 0);
    assert_int_equal(st.st_size, N_PLACE * ROOM);
    assert_int_equal(read_record(w, 0, 1), TIER_BAD_CHECKSUM); /* nothing is no record */
}

static void records_outlive_the_process(void **state)
{
    struct world *w = *state;
    write_three(w);
    const struct hash128 secret = *tier_disk_secret(w->disk);
    assert_int_equal(open_as(w, &ours, N_PLACE), FATHOM_OK);
    uint32_t n;
    const struct tier_found *f = tier_disk_found(w->disk, &n);
    assert_int_equal(n, 3);
    for (uint32_t i = 0; i < n; i++) assert_int_equal(f[i].order, 10 * (i + 1));
    assert_int_equal(f[0].place, 1);
    assert_int_equal(f[0].key.lo, 10);
    assert_true(hash128_equal(&secret, tier_disk_secret(w->disk)));
    assert_int_equal(read_record(w, 0, 30), TIER_GOOD);
    assert_int_equal(read_record(w, 0, 10), TIER_BAD_TOKENS);
    tier_disk_forget(w->disk);
    assert_int_equal(n_found(w), 0);
}

static void a_directory_may_grow_and_shrink(void **state)
{
    struct world *w = *state;
    write_three(w);
    assert_int_equal(open_as(w, &ours, 100), FATHOM_OK);
    assert_int_equal(n_found(w), 3);
    assert_int_equal(write_record(w, 99, 5), TIER_GOOD);
    assert_int_equal(open_as(w, &ours, 2), FATHOM_OK);
    assert_int_equal(n_found(w), 2);
    assert_int_equal(read_record(w, 1, 10), TIER_GOOD);
}

static void damage_is_found(void **state)
{
    struct world *w = *state;
    write_three(w);
    change(w->pages, 1 * ROOM + 777, 4);               /* record 10: seen when it is read */
    change(w->index, (1 + 2) * DIRECT_ALIGN + 100, 4); /* record 20: seen at the start */
    assert_int_equal(open_as(w, &ours, N_PLACE), FATHOM_OK);
    assert_int_equal(n_found(w), 2);
    assert_int_equal(tier_disk_n_rejected(w->disk, TIER_BAD_CHECKSUM), 1);
    assert_int_equal(read_record(w, 1, 10), TIER_BAD_CHECKSUM);
    assert_int_equal(read_record(w, 2, 20), TIER_BAD_CHECKSUM);
    assert_int_equal(read_record(w, 0, 30), TIER_GOOD);
}

/* Whether it was found bad at the start or when it was read. */
static void what_is_rejected_is_counted_once(void **state)
{
    struct world *w = *state;
    write_three(w);
    change(w->pages, 1 * ROOM + 777, 4);
    change(w->index, (1 + 2) * DIRECT_ALIGN + 100, 4);
    assert_int_equal(open_as(w, &ours, N_PLACE), FATHOM_OK);
    assert_int_equal(tier_disk_n_rejected(w->disk, TIER_BAD_CHECKSUM), 1);
    assert_int_equal(read_record(w, 1, 10), TIER_BAD_CHECKSUM);
    assert_int_equal(open_as(w, &ours, N_PLACE), FATHOM_OK);
    assert_int_equal(n_found(w), 1);
    assert_int_equal(tier_disk_n_rejected(w->disk, TIER_BAD_CHECKSUM), 0);
    assert_int_equal(read_record(w, 0, 10), TIER_BAD_TOKENS);
    tier_disk_close(w->disk);
    w->disk = NULL;
    assert_int_equal(truncate(w->pages, 0), 0);
    assert_int_equal(open_as(w, &ours, N_PLACE), FATHOM_OK);
    assert_int_equal(tier_disk_n_rejected(w->disk, TIER_BAD_TRUNCATED), 0);
    assert_int_equal(write_record(w, 1, 10), TIER_GOOD);
    assert_int_equal(truncate(w->pages, 0), 0);
    assert_int_equal(open_as(w, &ours, N_PLACE), FATHOM_OK);
    assert_int_equal(tier_disk_n_rejected(w->disk, TIER_BAD_TRUNCATED), 1);
    assert_int_equal(open_as(w, &ours, N_PLACE), FATHOM_OK);
    assert_int_equal(tier_disk_n_rejected(w->disk, TIER_BAD_TRUNCATED), 0);
}

static void another_version_of_one_record_is_found(void **state)
{
    struct world *w = *state;
    write_three(w);
    change(w->index, 1 * DIRECT_ALIGN + 8, 2); /* the format's low byte */
    assert_int_equal(open_as(w, &ours, N_PLACE), FATHOM_OK);
    assert_int_equal(n_found(w), 2);
    assert_int_equal(tier_disk_n_rejected(w->disk, TIER_BAD_VERSION), 1);
}

static void a_torn_write_is_found(void **state)
{
    struct world *w = *state;
    write_three(w);
    struct tier_disk *disk = w->disk;
    w->disk = NULL;
    assert_int_equal(truncate(w->index, 2 * DIRECT_ALIGN), 0); /* headers of 1 and 2 are gone */
    tier_disk_close(disk);
    assert_int_equal(open_as(w, &ours, N_PLACE), FATHOM_OK);
    assert_int_equal(n_found(w), 1);
    /* the page was overwritten, and its header not */
    FILE *f = fopen(w->pages, "r+b");
    for (int i = 0; i < ROOM / 2; i++) assert_int_not_equal(fputc(1, f), EOF);
    assert_int_equal(fclose(f), 0);
    assert_int_equal(read_record(w, 0, 30), TIER_BAD_CHECKSUM);
}

static void truncated_pages_are_found(void **state)
{
    struct world *w = *state;
    write_three(w);
    tier_disk_close(w->disk);
    w->disk = NULL;
    assert_int_equal(truncate(w->pages, ROOM + 100), 0);
    assert_int_equal(open_as(w, &ours, N_PLACE), FATHOM_OK);
    assert_int_equal(n_found(w), 1);
    assert_int_equal(tier_disk_n_rejected(w->disk, TIER_BAD_TRUNCATED), 2);
    assert_int_equal(truncate(w->pages, 0), 0); /* under a running server */
    assert_int_equal(read_record(w, 0, 30), TIER_BAD_TRUNCATED);
}

static void the_records_of_another_are_given_up(void **state)
{
    struct world *w = *state;
    const enum tier_verdict verdicts[] = {TIER_BAD_MODEL, TIER_BAD_NUMERICS, TIER_BAD_LAYOUT};
    struct identity id = ours;
    for (size_t i = 0; i < 3; i++) {
        write_three(w);
        const struct hash128 secret = *tier_disk_secret(w->disk);
        struct sha256 *part = i == 0 ? &id.model : i == 1 ? &id.numerics : &id.layout;
        part->bytes[20]++;
        assert_int_equal(open_as(w, &id, N_PLACE), FATHOM_OK);
        assert_int_equal(n_found(w), 0);
        for (int v = 1; v < TIER_VERDICT_COUNT; v++) {
            uint64_t expected = v == (int)verdicts[i] ? 3 : 0;
            assert_int_equal(tier_disk_n_rejected(w->disk, (enum tier_verdict)v), expected);
        }
        assert_false(hash128_equal(&secret, tier_disk_secret(w->disk)));
        assert_int_equal(open_as(w, &id, N_PLACE), FATHOM_OK); /* they are counted once */
        assert_int_equal(tier_disk_n_rejected(w->disk, verdicts[i]), 0);
    }
}

static void another_versions_directory_is_given_up(void **state)
{
    struct world *w = *state;
    write_three(w);
    change(w->index, 12, 2); /* the layout's low byte of the super block */
    assert_int_equal(open_as(w, &ours, N_PLACE), FATHOM_OK);
    assert_int_equal(n_found(w), 0);
    assert_int_equal(tier_disk_n_rejected(w->disk, TIER_BAD_VERSION), 3);
}

static void a_file_that_is_not_ours_is_left_alone(void **state)
{
    struct world *w = *state;
    write_three(w);
    change(w->index, 0, 0xff);
    assert_int_equal(open_as(w, &ours, N_PLACE), FATHOM_EFORMAT);
    assert_non_null(strstr(w->d.text, "kv.index is not an index of cache pages. Remove it"));
    assert_null(w->disk);
    change(w->index, 0, 0xff);
    assert_int_equal(open_as(w, &ours, N_PLACE), FATHOM_OK);
    assert_int_equal(n_found(w), 3);
}

static void a_directory_that_was_being_made_is_made(void **state)
{
    struct world *w = *state;
    tier_disk_close(w->disk);
    w->disk = NULL;
    assert_int_equal(truncate(w->index, 0), 0);
    assert_int_equal(truncate(w->index, DIRECT_ALIGN), 0); /* zeros */
    assert_int_equal(open_as(w, &ours, N_PLACE), FATHOM_OK);
    assert_int_equal(write_record(w, 0, 1), TIER_GOOD);
    assert_int_equal(open_as(w, &ours, N_PLACE), FATHOM_OK);
    assert_int_equal(n_found(w), 1);
}

static void an_index_cut_short_is_made_again(void **state)
{
    struct world *w = *state;
    write_three(w);
    tier_disk_close(w->disk);
    w->disk = NULL;
    assert_int_equal(truncate(w->index, 40), 0);
    assert_int_equal(open_as(w, &ours, N_PLACE), FATHOM_OK);
    assert_int_equal(n_found(w), 0);
    assert_int_equal(write_record(w, 0, 1), TIER_GOOD);
    assert_int_equal(open_as(w, &ours, N_PLACE), FATHOM_OK);
    assert_int_equal(n_found(w), 1);
}

static void a_header_that_cannot_be_read_costs_one_record(void **state)
{
    struct world *w = *state;
    write_three(w);
    break_blocks(w->index, 1 + 1, 1, false); /* record 10 */
    assert_int_equal(open_as(w, &ours, N_PLACE), FATHOM_OK);
    assert_int_equal(n_found(w), 2);
    assert_int_equal(tier_disk_n_rejected(w->disk, TIER_BAD_IO), 1);
    broken.inode = 0;
    assert_int_equal(open_as(w, &ours, N_PLACE), FATHOM_OK);
    assert_int_equal(n_found(w), 2); /* its place was emptied, */
    assert_int_equal(tier_disk_n_rejected(w->disk, TIER_BAD_IO), 0);
    assert_int_equal(write_record(w, 1, 40), TIER_GOOD); /* and serves again */
    assert_int_equal(read_record(w, 1, 40), TIER_GOOD);
    assert_int_equal(read_record(w, 0, 30), TIER_GOOD);
}

static void a_first_block_that_cannot_be_read_costs_all_records(void **state)
{
    struct world *w = *state;
    write_three(w);
    break_blocks(w->index, 0, 1, false);
    assert_int_equal(open_as(w, &ours, N_PLACE), FATHOM_OK);
    assert_int_equal(n_found(w), 0);
    assert_int_equal(tier_disk_n_rejected(w->disk, TIER_BAD_IO), 3);
    assert_int_equal(write_record(w, 1, 40), TIER_GOOD);
    broken.inode = 0;
    assert_int_equal(open_as(w, &ours, N_PLACE), FATHOM_OK);
    assert_int_equal(n_found(w), 1);
}

static void an_index_that_cannot_be_read_at_all_is_empty(void **state)
{
    struct world *w = *state;
    write_three(w);
    break_blocks(w->index, 0, 1000, false);
    assert_int_equal(open_as(w, &ours, N_PLACE), FATHOM_OK);
    assert_int_equal(n_found(w), 0);
    broken.inode = 0;
    assert_int_equal(open_as(w, &ours, N_PLACE), FATHOM_OK);
    assert_int_equal(n_found(w), 0);
}

/* Told apart from what the operator has to change: the engine goes on without it. */
static void a_disk_that_takes_no_write_is_EIO(void **state)
{
    struct world *w = *state;
    write_three(w);
    break_blocks(w->index, 0, 1, true);
    assert_int_equal(open_as(w, &ours, N_PLACE), FATHOM_EIO);
    assert_non_null(strstr(w->d.text, w->dir));
    assert_non_null(strstr(w->d.text, "Input/output error"));
}

static void one_process_has_a_directory(void **state)
{
    struct world *w = *state;
    struct world second = *w;
    second.disk = NULL;
    assert_int_equal(open_as(&second, &ours, N_PLACE), FATHOM_EBUSY);
    assert_non_null(strstr(second.d.text, "is in use by another process"));
    assert_non_null(strstr(second.d.text, w->dir));
    assert_int_equal(write_record(w, 0, 1), TIER_GOOD);
}

static void what_cannot_be_opened_is_named(void **state)
{
    struct world *w = *state;
    struct tier_disk *disk = NULL;
    fathom_diag d = {{0}};
    struct tier_disk_config c = {
        .dir = "/nowhere/deep", .bytes = 1 << 20, .page_bytes = PAGE, .identity = ours};
    assert_int_equal(tier_disk_open(&disk, &c, &d), FATHOM_EINVAL);
    assert_non_null(strstr(d.text, "--kv-offload-dir /nowhere/deep: cannot be made a directory"));
    c.bytes = 10000;
    d.text[0] = '\0';
    assert_int_equal(tier_disk_open(&disk, &c, &d), FATHOM_EINVAL);
    assert_non_null(strstr(d.text, "10000 does not hold one page; needed is at least 16384"));
    c = (struct tier_disk_config){.dir = w->dir,
                                  .bytes = (uint64_t)1 << 60,
                                  .page_bytes = (uint64_t)1 << 58,
                                  .identity = ours};
    tier_disk_close(w->disk);
    w->disk = NULL;
    d.text[0] = '\0';
    assert_int_equal(tier_disk_open(&disk, &c, &d), FATHOM_ELIMIT);
    assert_non_null(strstr(d.text, "bytes cannot be had"));
}

/* What somebody else could have put there is not followed, not written to, and named. */
static void a_file_put_there_by_others_is_refused(void **state)
{
    struct world *w = *state;
    char victim[96];
    (void)snprintf(victim, sizeof victim, "%s.victim", w->dir);
    const char *const files[] = {w->index, w->pages};
    for (size_t i = 0; i < 2; i++) {
        tier_disk_close(w->disk);
        w->disk = NULL;
        FILE *f = fopen(victim, "w");
        assert_non_null(f);
        assert_true(fputs("precious", f) >= 0);
        assert_int_equal(fclose(f), 0);
        assert_int_equal(unlink(files[i]), 0);
        assert_int_equal(symlink(victim, files[i]), 0);
        assert_int_equal(open_as(w, &ours, N_PLACE), FATHOM_EINVAL);
        assert_non_null(strstr(w->d.text, "is a symbolic link, which is not followed: remove it"));
        struct stat st;
        assert_int_equal(stat(victim, &st), 0);
        assert_int_equal(st.st_size, 8);
        assert_int_equal(unlink(files[i]), 0);
        assert_int_equal(mkfifo(files[i], 0600), 0);
        assert_int_equal(open_as(w, &ours, N_PLACE), FATHOM_EINVAL);
        assert_non_null(strstr(w->d.text, "is not a regular file: remove it"));
        assert_int_equal(unlink(files[i]), 0);
        assert_int_equal(open_as(w, &ours, N_PLACE), FATHOM_OK);
    }
    assert_int_equal(unlink(victim), 0);
}

static void opening_survives_any_failed_allocation(void **state)
{
    struct world *w = *state;
    write_three(w);
    for (long n = 0;; n++) {
        mem_fail_after(n);
        fathom_err err = open_as(w, &ours, N_PLACE);
        bool hit = mem_fail_hit();
        mem_fail_after(-1);
        if (!hit) {
            assert_int_equal(err, FATHOM_OK);
            break;
        }
        assert_int_equal(err, FATHOM_ENOMEM);
        assert_null(w->disk);
    }
    assert_int_equal(n_found(w), 3);
}

/* ---- the thread ---- */

static void count_done(void *arg)
{
    __atomic_fetch_add((int *)arg, 1, __ATOMIC_RELAXED);
}

static void take(struct tier_io *io, struct tier_job *job)
{
    uint64_t end_us = 0;
    do {
        if (io->ops->take_done(io, job)) return;
    } while (keep_waiting(&end_us));
    fail_msg("the job is not done");
}

static void the_thread_does_jobs_in_turn(void **state)
{
    struct world *w = *state;
    struct tier_io *io = NULL;
    int n_done = 0;
    const struct tier_io_config c = {.disk = w->disk,
                                     .page_bytes = PAGE,
                                     .n_sum_thread = 2,
                                     .owner = {.done = count_done, .arg = &n_done}};
    assert_int_equal(tier_io_create(&io, &c, NULL), FATHOM_OK);
    w->disk = NULL;
    struct tier_name names[N_PLACE];
    unsigned char *pages = mem_alloc_aligned(DIRECT_ALIGN, N_PLACE * ROOM);
    for (uint32_t i = 0; i < N_PLACE; i++) {
        names[i] = name_of(i);
        fill_page(w, i);
        memcpy(pages + i * ROOM, w->page, ROOM);
        io->ops->submit(io, &(struct tier_job){.kind = TIER_JOB_WRITE,
                                               .entry = i,
                                               .place = i,
                                               .order = i,
                                               .name = &names[i],
                                               .page = pages + i * ROOM,
                                               .sum = hash_checksum(pages + i * ROOM, PAGE)});
    }
    struct tier_job job;
    for (uint32_t i = 0; i < N_PLACE; i++) {
        take(io, &job);
        assert_int_equal(job.entry, i);
        assert_int_equal(job.verdict, TIER_GOOD);
    }
    struct tier_name wrong = name_of(9);
    io->ops->submit(
        io, &(struct tier_job){
                .kind = TIER_JOB_READ, .entry = 7, .place = 2, .name = &names[2], .page = w->page});
    take(io, &job);
    assert_int_equal(job.verdict, TIER_GOOD);
    assert_int_equal(job.entry, 7);
    assert_int_equal(job.sum, hash_checksum(w->page, PAGE));
    assert_memory_equal(w->page, pages + 2 * ROOM, PAGE);
    job.kind = TIER_JOB_WRITE;
    job.sum ^= 1;
    io->ops->submit(io, &job);
    take(io, &job);
    assert_int_equal(job.verdict, TIER_BAD_CHECKSUM);
    io->ops->submit(
        io, &(struct tier_job){.kind = TIER_JOB_READ, .place = 2, .name = &wrong, .page = w->page});
    take(io, &job);
    assert_int_equal(job.verdict, TIER_BAD_TOKENS);
    assert_false(io->ops->take_done(io, &job));
    io->ops->submit(io, &(struct tier_job){.kind = TIER_JOB_WRITE,
                                           .place = 3,
                                           .order = 99,
                                           .name = &wrong,
                                           .page = pages,
                                           .sum = hash_checksum(pages, PAGE)});
    io->ops->destroy(io);                    /* and that one is still written */
    assert_in_range(n_done, 5, N_PLACE + 4); /* told once while nobody looked */
    mem_free(pages);
    assert_int_equal(open_as(w, &ours, N_PLACE), FATHOM_OK);
    uint32_t n;
    const struct tier_found *f = tier_disk_found(w->disk, &n);
    assert_int_equal(n, N_PLACE - 1); /* without the one that was rejected */
    assert_int_equal(f[n - 1].order, 99);
}

static void threads_take_sums_without_a_disk(void **state)
{
    struct world *w = *state;
    struct tier_io *io = NULL;
    int n_done = 0;
    const struct tier_name name = name_of(1);
    const struct tier_io_config c = {
        .page_bytes = PAGE, .n_sum_thread = 3, .owner = {.done = count_done, .arg = &n_done}};
    assert_int_equal(tier_io_create(&io, &c, NULL), FATHOM_OK);
    fill_page(w, 1);
    const uint64_t sum = hash_checksum(w->page, PAGE);
    struct tier_job job = {.kind = TIER_JOB_SUM, .name = &name, .page = w->page};
    io->ops->submit(io, &job);
    take(io, &job);
    assert_int_equal(job.verdict, TIER_GOOD);
    assert_true(job.sum == sum);
    job.kind = TIER_JOB_CHECK;
    io->ops->submit(io, &job);
    take(io, &job);
    assert_int_equal(job.verdict, TIER_GOOD);
    w->page[77] ^= 1;
    io->ops->submit(io, &job);
    take(io, &job);
    assert_int_equal(job.verdict, TIER_BAD_CHECKSUM);
    io->ops->destroy(io);
    assert_int_equal(n_done, 3);
}

static bool always(void *arg)
{
    (void)arg;
    return true;
}

/* The end of a process that is in a hurry: what waits is not written. */
static void a_hurry_leaves_what_waits(void **state)
{
    struct world *w = *state;
    struct tier_io *io = NULL;
    int n_done = 0;
    const struct tier_name name = name_of(1);
    const struct tier_io_config c = {.disk = w->disk,
                                     .page_bytes = PAGE,
                                     .n_sum_thread = 1,
                                     .owner = {count_done, always, &n_done}};
    assert_int_equal(tier_io_create(&io, &c, NULL), FATHOM_OK);
    w->disk = NULL;
    fill_page(w, 1);
    const uint64_t sum = hash_checksum(w->page, PAGE);
    write_delay_us = 100000;
    n_write = 0;
    for (uint32_t i = 0; i < 16; i++) {
        io->ops->submit(io, &(struct tier_job){.kind = TIER_JOB_WRITE,
                                               .place = i % N_PLACE,
                                               .order = i,
                                               .name = &name,
                                               .page = w->page,
                                               .sum = sum});
    }
    io->ops->destroy(io);
    write_delay_us = 0;
    assert_true(n_write <= 4); /* two of 16 records: the one under way, and one begun */
}

int main(void)
{
#define CASE(f) cmocka_unit_test_setup_teardown(f, open_world, close_world)
    const struct CMUnitTest tests[] = {
        CASE(a_new_directory_is_empty),
        CASE(records_outlive_the_process),
        CASE(a_directory_may_grow_and_shrink),
        CASE(damage_is_found),
        CASE(what_is_rejected_is_counted_once),
        CASE(another_version_of_one_record_is_found),
        CASE(a_torn_write_is_found),
        CASE(truncated_pages_are_found),
        CASE(the_records_of_another_are_given_up),
        CASE(another_versions_directory_is_given_up),
        CASE(a_file_that_is_not_ours_is_left_alone),
        CASE(a_directory_that_was_being_made_is_made),
        CASE(an_index_cut_short_is_made_again),
        CASE(a_header_that_cannot_be_read_costs_one_record),
        CASE(a_first_block_that_cannot_be_read_costs_all_records),
        CASE(an_index_that_cannot_be_read_at_all_is_empty),
        CASE(a_disk_that_takes_no_write_is_EIO),
        CASE(one_process_has_a_directory),
        CASE(what_cannot_be_opened_is_named),
        CASE(a_file_put_there_by_others_is_refused),
        CASE(opening_survives_any_failed_allocation),
        CASE(the_thread_does_jobs_in_turn),
        CASE(threads_take_sums_without_a_disk),
        CASE(a_hurry_leaves_what_waits),
    };
    log_set_level(LOG_LEVEL_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
