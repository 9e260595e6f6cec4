/* weights_digest.c - every byte of all shards, by SHA-256 in two levels
 *
 *   leaf    SHA-256 of LEAF_BYTES of a shard, the last one shorter
 *   shard   SHA-256 of the size and of all leaves, in order
 *   weights SHA-256 over name and digest of all shards, in their order
 *
 * Leaves are independent, so threads take them one by one. Each number of bytes has one shape of
 * the tree. So two contents of one digest would be a collision of SHA-256.
 *
 * Kept digests. kv.weights has {stamp, digest} of each shard of the checkpoint that was read last.
 * A shard with the stamp of a kept one (device, inode, size, mtime, ctime) is not read. This is
 * right because every write moves ctime, which no program can set, unless it falls into the same
 * tick of the file system's clock. Therefore a shard is kept only if
 *
 *   1. it had last been written to settled_s before its reading began, so that a later write has
 *      another ctime;
 *   2. its stamp is the same after it was read and loaded as when it was opened.
 *
 * Who can write to the private directory could write other pages there as well. A process that has
 * mapped a shard for writing can change it for some seconds after its ctime: nobody should.
 *
 *   begin --> (thread: leaves) --> end: joined, stamps compared, kept */
#include "checkpoint/weights_digest.h"

#include <assert.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/fail.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/os.h"
#include "base/private_dir.h"
#include "base/rng.h"
#include "base/thread.h"

#define KEPT_FILE "kv.weights"
#define KEPT_MAGIC 0x7468676965776b66u /* "fkweight" */

enum { LEAF_BYTES = 4 << 20, LEAVES_AHEAD = 16, KEPT_FORMAT = 1, KEPT_MAX = 65536 };

struct leaf {
    const unsigned char *data;
    size_t n;
    struct sha256 digest;
};

struct kept_shard {
    struct file_stamp stamp;
    struct sha256 digest;
};

struct kept_head {
    uint64_t magic;
    uint32_t format;
    uint32_t n;
    uint64_t sum; /* hash_checksum of all shards that follow */
};

static_assert(sizeof(struct kept_shard) == 72 && sizeof(struct kept_head) == 24, "no padding");

struct shard_work {
    struct checkpoint_shard shard;
    struct sha256 digest;
    bool is_kept;      /* the digest is known */
    size_t first_leaf; /* else these are to be computed */
    size_t n_leaf;
};

struct weights_digest {
    const struct checkpoint *c;
    struct weights_digest_config config;
    int64_t begin_s;           /* of the calendar */
    struct shard_work *shards; /* [n_shard] */
    size_t n_shard;
    struct leaf *leaves; /* [n_leaf] */
    size_t n_leaf;
    pthread_t thread;
    bool has_thread;
    atomic_bool is_cancelled; /* leaves that have not begun are left out */
};

/* ---- leaves ---- */

static void do_leaf(void *arg, size_t i, size_t n_leaf, unsigned worker)
{
    struct weights_digest *w = arg;
    struct leaf *leaf = &w->leaves[i];
    (void)worker;
    ASSERT(i < n_leaf && n_leaf == w->n_leaf);
    if (atomic_load(&w->is_cancelled)) return;
    if (i + LEAVES_AHEAD < n_leaf) {
        const struct leaf *ahead = &w->leaves[i + LEAVES_AHEAD];
        file_map_prefetch(ahead->data, ahead->n);
    }
    leaf->digest = sha256_of(leaf->data, leaf->n);
}

/* By threads, or by this one alone where there are none to be had. */
static void do_leaves(struct weights_digest *w)
{
    struct thread_pool *pool = NULL;
    if (w->n_leaf > 0 && thread_pool_create(&pool, w->config.n_thread, NULL) == FATHOM_OK) {
        thread_pool_run(pool, w->n_leaf, do_leaf, w);
        thread_pool_destroy(pool);
        return;
    }
    for (size_t i = 0; i < w->n_leaf; i++) do_leaf(w, i, w->n_leaf, 0);
}

static void *thread_main(void *arg)
{
    os_name_thread("digest");
    do_leaves(arg);
    return NULL;
}

static void cut_leaves(struct weights_digest *w)
{
    for (size_t s = 0; s < w->n_shard; s++) {
        const struct shard_work *k = &w->shards[s];
        const unsigned char *data = k->shard.data;
        for (size_t i = 0; i < k->n_leaf; i++) {
            size_t at = i * (size_t)LEAF_BYTES;
            size_t left = k->shard.size - at;
            w->leaves[k->first_leaf + i].data = data + at;
            w->leaves[k->first_leaf + i].n = left < LEAF_BYTES ? left : LEAF_BYTES;
        }
    }
}

static fathom_err join_leaves(const struct weights_digest *w, struct shard_work *k)
{
    struct sha256 *digests = mem_alloc_array(k->n_leaf, sizeof *digests);
    if (!digests) return FATHOM_ENOMEM;
    for (size_t i = 0; i < k->n_leaf; i++) digests[i] = w->leaves[k->first_leaf + i].digest;
    k->digest = (struct sha256){{0}};
    sha256_absorb(&k->digest, &k->shard.size, sizeof k->shard.size);
    sha256_absorb(&k->digest, digests, k->n_leaf * sizeof *digests);
    mem_free(digests);
    return FATHOM_OK;
}

/* ---- kept digests ---- */

/* The file's shards, *n of them; NULL when there is no such file, or it is damaged. */
static unsigned char *read_kept(int dir, size_t *n)
{
    size_t n_max = sizeof(struct kept_head) + KEPT_MAX * sizeof(struct kept_shard);
    size_t n_byte = 0;
    struct kept_head head;
    *n = 0;
    unsigned char *bytes = mem_alloc(n_max);
    if (!bytes) return NULL;
    fathom_err err = private_file_read(dir, KEPT_FILE, bytes, n_max, &n_byte, NULL);
    if (!err && n_byte >= sizeof head) {
        memcpy(&head, bytes, sizeof head);
        size_t n_body = n_byte - sizeof head;
        if (head.magic == KEPT_MAGIC && head.format == KEPT_FORMAT &&
            n_body == head.n * sizeof(struct kept_shard) &&
            head.sum == hash_checksum(bytes + sizeof head, n_body)) {
            *n = head.n;
            return bytes;
        }
    }
    mem_free(bytes);
    return NULL;
}

static bool same_stamp(const struct file_stamp *a, const struct file_stamp *b)
{
    return a->device == b->device && a->inode == b->inode && a->size == b->size &&
           a->mtime_ns == b->mtime_ns && a->ctime_ns == b->ctime_ns;
}

static void take_kept(struct weights_digest *w)
{
    size_t n;
    unsigned char *bytes = w->config.dir >= 0 ? read_kept(w->config.dir, &n) : NULL;
    if (!bytes) return;
    for (size_t s = 0; s < w->n_shard; s++) {
        struct shard_work *k = &w->shards[s];
        for (size_t i = 0; i < n && k->shard.is_file && !k->is_kept; i++) {
            struct kept_shard kept;
            memcpy(&kept, bytes + sizeof(struct kept_head) + i * sizeof kept, sizeof kept);
            if (!same_stamp(&kept.stamp, &k->shard.stamp)) continue;
            k->is_kept = true;
            k->digest = kept.digest;
        }
    }
    mem_free(bytes);
}

static bool is_settled(const struct weights_digest *w, const struct shard_work *k)
{
    int64_t age_s = w->begin_s - k->shard.stamp.ctime_ns / 1000000000;
    return k->is_kept || age_s >= w->config.settled_s;
}

static void write_kept(const struct weights_digest *w)
{
    size_t n_max = sizeof(struct kept_head) + w->n_shard * sizeof(struct kept_shard);
    unsigned char *bytes = mem_alloc(n_max);
    struct kept_head head = {.magic = KEPT_MAGIC, .format = KEPT_FORMAT};
    if (!bytes) return;
    for (size_t s = 0; s < w->n_shard && head.n < KEPT_MAX; s++) {
        const struct shard_work *k = &w->shards[s];
        const struct kept_shard kept = {k->shard.stamp, k->digest};
        if (!k->shard.is_file || !is_settled(w, k)) continue;
        memcpy(bytes + sizeof head + head.n++ * sizeof kept, &kept, sizeof kept);
    }
    size_t n_body = head.n * sizeof(struct kept_shard);
    head.sum = hash_checksum(bytes + sizeof head, n_body);
    memcpy(bytes, &head, sizeof head);
    fathom_diag d = {{0}};
    if (private_file_replace(w->config.dir, KEPT_FILE, bytes, sizeof head + n_body, &d)) {
        LOG_WARN("checkpoint", "the digest of the weights is not kept: %s", d.text);
    }
    mem_free(bytes);
}

/* ---- life ---- */

static fathom_err take_shards(struct weights_digest *w)
{
    w->n_shard = checkpoint_n_shard(w->c);
    w->shards = mem_calloc(w->n_shard, sizeof *w->shards);
    if (!w->shards) return FATHOM_ENOMEM;
    for (size_t s = 0; s < w->n_shard; s++) w->shards[s].shard = checkpoint_shard(w->c, s);
    take_kept(w);
    for (size_t s = 0; s < w->n_shard; s++) {
        struct shard_work *k = &w->shards[s];
        if (k->is_kept) continue;
        k->first_leaf = w->n_leaf;
        k->n_leaf = (k->shard.size + LEAF_BYTES - 1) / LEAF_BYTES;
        w->n_leaf += k->n_leaf;
    }
    w->leaves = mem_calloc(w->n_leaf, sizeof *w->leaves);
    if (!w->leaves) return FATHOM_ENOMEM;
    cut_leaves(w);
    return FATHOM_OK;
}

fathom_err weights_digest_begin(struct weights_digest **out, const struct checkpoint *c,
                                const struct weights_digest_config *config, fathom_diag *d)
{
    *out = NULL;
    ASSERT(config->n_thread >= 1);
    struct weights_digest *w = mem_calloc(1, sizeof *w);
    if (!w) {
        private_dir_close(config->dir);
        FAIL(d, FATHOM_ENOMEM, "no memory for the digest of the weights");
    }
    w->c = c;
    w->config = *config;
    w->begin_s = clock_unix_s();
    if (take_shards(w) != FATHOM_OK) {
        weights_digest_cancel(w);
        FAIL(d, FATHOM_ENOMEM, "no memory for the digest of the weights");
    }
    if (w->n_leaf > 0) {
        LOG_INFO("checkpoint", "weights_digest begins, shards=%zu mib=%zu threads=%u", w->n_shard,
                 w->n_leaf * (LEAF_BYTES >> 20), w->config.n_thread);
    }
    w->has_thread = w->n_leaf > 0 && pthread_create(&w->thread, NULL, thread_main, w) == 0;
    *out = w;
    return FATHOM_OK;
}

void weights_digest_cancel(struct weights_digest *w)
{
    if (!w) return;
    atomic_store(&w->is_cancelled, true);
    if (w->has_thread) pthread_join(w->thread, NULL);
    private_dir_close(w->config.dir);
    mem_free(w->shards);
    mem_free(w->leaves);
    mem_free(w);
}

static bool has_changed(const struct weights_digest *w)
{
    for (size_t s = 0; s < w->n_shard; s++) {
        const struct checkpoint_shard *k = &w->shards[s].shard;
        char path[LIMIT_PATH_BYTES];
        struct file_stamp now;
        if (!k->is_file) continue;
        if (path_join(path, sizeof path, checkpoint_where(w->c), k->name)) return true;
        if (file_stamp_of(path, &now) || !same_stamp(&now, &k->stamp)) return true;
    }
    return false;
}

static void draw(struct sha256 *digest)
{
    const uint64_t random[4] = {rng_entropy(), rng_entropy(), rng_entropy(), rng_entropy()};
    *digest = sha256_of(random, sizeof random);
}

void weights_digest_end(struct weights_digest *w, struct weights_digest_result *out)
{
    fathom_err err = FATHOM_OK;
    uint64_t start_us = clock_now_us();
    if (w->has_thread) pthread_join(w->thread, NULL);
    if (!w->has_thread) do_leaves(w);
    w->has_thread = false;
    *out = (struct weights_digest_result){.n_shard = (uint32_t)w->n_shard};
    sha256_absorb(&out->digest, &w->n_shard, sizeof w->n_shard);
    for (size_t s = 0; s < w->n_shard; s++) {
        struct shard_work *k = &w->shards[s];
        out->n_kept += k->is_kept;
        if (!k->is_kept) {
            out->n_bytes += k->shard.size;
            if (!err) err = join_leaves(w, k);
        }
        sha256_absorb_text(&out->digest, k->shard.name);
        sha256_absorb(&out->digest, k->digest.bytes, sizeof k->digest.bytes);
    }
    out->changed = has_changed(w);
    if (out->changed || err) {
        draw(&out->digest);
    } else if (w->config.dir >= 0 && out->n_kept < out->n_shard) {
        write_kept(w);
    }
    out->wait_us = clock_now_us() - start_us;
    weights_digest_cancel(w);
}
