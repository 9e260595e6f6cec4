/* doctor_storage.c - how fast a checkpoint's disk is, and whether its files are what they should be
 *
 * The Hugging Face cache names each file by its content: snapshots/COMMIT/model.safetensors is a
 * link to blobs/HASH, where HASH is the SHA-256 of a large file and git's SHA-1 of a small one. A
 * folder that was downloaded to (--local-dir) keeps the same hash in .cache/huggingface/download.
 */
#define _GNU_SOURCE /* O_DIRECT */
#include <dirent.h>
#include <fcntl.h>
#include <gnutls/crypto.h>
#include <gnutls/gnutls.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/os.h"
#include "base/thread.h"
#include "cli/doctor.h"
#include "cli/progress.h"

/* ---- speed --------------------------------------------------------------------------------- */

enum { BLOCK_BYTES = 8 << 20, BLOCKS_MAX = 512, READERS = 4, READ_US = 1000000, ALIGN = 4096 };

/* Blocks of one file, read by several threads until the time is over. */
struct blocks {
    int fd;
    uint64_t end_us;
    char *buffers[READERS];
    atomic_uint_fast64_t n_byte;
};

static void read_block(void *arg, size_t part, size_t n_part, unsigned worker)
{
    struct blocks *b = arg;
    (void)n_part;
    if (clock_now_us() > b->end_us) return;
    ssize_t n = pread(b->fd, b->buffers[worker], BLOCK_BYTES, (off_t)part * BLOCK_BYTES);
    if (n > 0) atomic_fetch_add(&b->n_byte, (uint64_t)n);
}

/* Past the page cache where the file system can, else with what the cache holds dropped. */
static int open_uncached(const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_DIRECT);
    if (fd >= 0) return fd;
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd >= 0) (void)posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    return fd;
}

uint64_t doctor_read_rate(const char *path)
{
    struct blocks b = {.fd = open_uncached(path)};
    struct thread_pool *pool = NULL;
    struct stat st;
    uint64_t rate = 0;
    bool ok = b.fd >= 0 && fstat(b.fd, &st) == 0 && st.st_size > 0;
    for (int i = 0; i < READERS; i++) {
        b.buffers[i] = mem_alloc_aligned(ALIGN, BLOCK_BYTES);
        ok &= b.buffers[i] != NULL;
    }
    if (ok && thread_pool_create(&pool, READERS, NULL) == FATHOM_OK) {
        size_t n = ((size_t)st.st_size + BLOCK_BYTES - 1) / BLOCK_BYTES;
        uint64_t start_us = clock_now_us();
        b.end_us = start_us + READ_US;
        thread_pool_run(pool, n < BLOCKS_MAX ? n : BLOCKS_MAX, read_block, &b);
        uint64_t us = clock_now_us() - start_us;
        rate = atomic_load(&b.n_byte) * 1000000 / (us ? us : 1);
        thread_pool_destroy(pool);
    }
    for (int i = 0; i < READERS; i++) mem_free(b.buffers[i]);
    if (b.fd >= 0) (void)close(b.fd);
    return rate;
}

/* ---- hashes -------------------------------------------------------------------------------- */

enum { FILES_MAX = 4096, HASH_TEXT_BYTES = 65, HASH_STEP_BYTES = 16 << 20 };

struct hashed_file {
    char *name;
    uint64_t size;
    char want[HASH_TEXT_BYTES];
    char got[HASH_TEXT_BYTES]; /* "": it could not be read */
};

struct hashing {
    const char *dir;
    struct hashed_file *files;
    size_t n_file;
    uint64_t total;
    atomic_uint_fast64_t done;
    struct progress progress;
};

static bool is_hash(const char *text)
{
    size_t n = strlen(text);
    return (n == 64 || n == 40) && strspn(text, "0123456789abcdef") == n;
}

/* The hash that the cache or the downloader has for dir/name; false: it has none. */
static bool find_hash(char out[HASH_TEXT_BYTES], const char *dir, const char *name)
{
    char path[LIMIT_PATH_BYTES], line[256];
    char target[LIMIT_PATH_BYTES];
    if (snprintf(path, sizeof path, "%s/%s", dir, name) >= (int)sizeof path) return false;
    ssize_t n = readlink(path, target, sizeof target - 1);
    if (n > 0) {
        target[n] = '\0';
        const char *slash = strrchr(target, '/');
        const char *base = slash ? slash + 1 : target;
        if (is_hash(base)) return snprintf(out, HASH_TEXT_BYTES, "%s", base) > 0;
    }
    if (snprintf(path, sizeof path, "%s/.cache/huggingface/download/%s.metadata", dir, name) >=
        (int)sizeof path) {
        return false;
    }
    FILE *f = fopen(path, "re"); /* commit, hash, time */
    bool ok = f && fgets(line, sizeof line, f) && fgets(line, sizeof line, f);
    if (f) (void)fclose(f);
    if (!ok) return false;
    line[strcspn(line, "\n")] = '\0';
    return is_hash(line) && snprintf(out, HASH_TEXT_BYTES, "%s", line) > 0;
}

/* SHA-256, or git's SHA-1 of a blob, as the length of the wanted hash tells. */
static void hash_file(struct hashing *h, struct hashed_file *f)
{
    char path[LIMIT_PATH_BYTES], head[48];
    unsigned char digest[32];
    struct file_map map;
    gnutls_hash_hd_t state;
    bool is_git = strlen(f->want) == 40;
    gnutls_digest_algorithm_t kind = is_git ? GNUTLS_DIG_SHA1 : GNUTLS_DIG_SHA256;
    if (path_join(path, sizeof path, h->dir, f->name) != FATHOM_OK) return;
    if (file_map_open(&map, path, NULL) != FATHOM_OK) return;
    if (gnutls_hash_init(&state, kind) < 0) {
        file_map_close(&map);
        return;
    }
    if (is_git) {
        int n = snprintf(head, sizeof head, "blob %zu", map.size);
        (void)gnutls_hash(state, head, (size_t)n + 1);
    }
    for (size_t at = 0; at < map.size; at += HASH_STEP_BYTES) {
        size_t n = map.size - at < HASH_STEP_BYTES ? map.size - at : HASH_STEP_BYTES;
        (void)gnutls_hash(state, (const char *)map.data + at, n);
        atomic_fetch_add(&h->done, n);
    }
    gnutls_hash_deinit(state, digest);
    file_map_close(&map);
    for (size_t i = 0; i < strlen(f->want) / 2; i++) {
        (void)snprintf(f->got + 2 * i, 3, "%02x", digest[i]);
    }
}

static void hash_part(void *arg, size_t part, size_t n_part, unsigned worker)
{
    struct hashing *h = arg;
    (void)n_part;
    hash_file(h, &h->files[part]);
    if (worker == 0) progress_tell(&h->progress, atomic_load(&h->done), h->total);
}

static void list_files(struct hashing *h)
{
    DIR *dir = opendir(h->dir);
    const struct dirent *entry;
    while (dir && h->n_file < FILES_MAX && (entry = readdir(dir))) {
        struct hashed_file *f = &h->files[h->n_file];
        char path[LIMIT_PATH_BYTES];
        struct stat st;
        if (path_join(path, sizeof path, h->dir, entry->d_name) != FATHOM_OK) continue;
        const bool is_there = stat(path, &st) == 0; /* or it is a link that leads nowhere */
        if (is_there && !S_ISREG(st.st_mode)) continue;
        if (!find_hash(f->want, h->dir, entry->d_name)) continue;
        f->name = mem_strdup(entry->d_name);
        if (!f->name) break;
        f->size = is_there ? (uint64_t)st.st_size : 0;
        h->total += f->size;
        h->n_file++;
    }
    if (dir) (void)closedir(dir);
}

static void tell_hashes(struct doctor *d, const struct hashing *h)
{
    char size[SIZE_TEXT_BYTES];
    size_t n_bad = 0;
    for (size_t i = 0; i < h->n_file; i++) {
        const struct hashed_file *f = &h->files[i];
        if (strcmp(f->want, f->got) == 0) continue;
        n_bad++;
        doctor_find(d, FINDING_BAD, "hashes", "download the file again",
                    "%s has the hash %.12s, needed is %.12s", f->name,
                    f->got[0] ? f->got : "(unreadable)", f->want);
    }
    if (h->n_file == 0) {
        doctor_find(d, FINDING_NOTE, "hashes", "",
                    "no hashes are known: the checkpoint is not of the Hugging Face cache");
    } else if (n_bad == 0) {
        doctor_find(d, FINDING_OK, "hashes", "", "%zu files, %s: what their names say", h->n_file,
                    size_text(size, h->total));
    }
}

void doctor_check_hashes(struct doctor *d, const char *dir)
{
    struct hashing h = {.dir = dir};
    struct thread_pool *pool = NULL;
    h.files = mem_calloc(FILES_MAX, sizeof *h.files);
    if (!h.files || thread_pool_create(&pool, os_n_cpu(), NULL) != FATHOM_OK) {
        doctor_find(d, FINDING_WARN, "hashes", "", "out of memory");
        mem_free(h.files);
        return;
    }
    list_files(&h);
    progress_begin(&h.progress, "hashing");
    thread_pool_run(pool, h.n_file, hash_part, &h);
    progress_end(&h.progress);
    tell_hashes(d, &h);
    for (size_t i = 0; i < h.n_file; i++) mem_free(h.files[i].name);
    mem_free(h.files);
    thread_pool_destroy(pool);
}
