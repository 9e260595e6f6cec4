/* tier_disk.c - page records in a directory: where they lie, and what a crash leaves
 *
 * Invariants
 *
 *   1. kv.index is 1 + n_place blocks: the super block, then the header of each place; a header of
 *      zeros says that the place is empty. kv.pages is n_place pages, each rounded up to blocks.
 *      Where a place lies follows from its number alone. So a directory may be given another size,
 *      and keeps what fits.
 *   2. A record is there when its header and its page have the sums that the header names.
 *
 * A write puts down the page, then the header. When the process is killed between the two, the
 * header of the record before stands over another page, or over one that is half of each. Its sum
 * is wrong, and whoever reads it is told so. So a crash costs the record that was being written and
 * the one that it replaced. A record that has not been taken has its header zeroed, whatever the
 * reason. Nothing is repaired or fsynced: what a power cut takes away is found out the same way,
 * and is computed again. */
#include "kv/tier_disk.h"

#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/fail.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/private_dir.h"
#include "base/rng.h"

enum { SCAN_BLOCKS = 256 };

struct tier_disk {
    struct page_source base; /* first member */
    struct identity identity;
    struct hash128 owner; /* identity_key */
    struct hash128 secret;
    const struct hash128 *given; /* during tier_disk_open: what the secret has to be */
    uint64_t page_bytes;
    uint64_t padded_bytes; /* of a page in kv.pages */
    uint32_t n_place;
    struct direct_file index;
    struct direct_file pages;
    unsigned char *block; /* [DIRECT_ALIGN] a header on its way */
    struct tier_found *found;
    uint32_t n_found;
    uint64_t n_rejected[TIER_VERDICT_COUNT];
};

uint32_t tier_disk_n_place(uint64_t bytes, uint64_t page_bytes)
{
    if (bytes < DIRECT_ALIGN) return 0;
    uint64_t n = (bytes - DIRECT_ALIGN) / tier_disk_place_bytes(page_bytes);
    return n < INT32_MAX ? (uint32_t)n : INT32_MAX;
}

static uint64_t header_offset(uint32_t place)
{
    return (1 + (uint64_t)place) * DIRECT_ALIGN;
}

/* ---- opening ---- */

/* `cause` for the operator, who named the directory. */
static fathom_err fail_dir(const char *dir, fathom_err err, const fathom_diag *cause,
                           fathom_diag *d)
{
    ASSERT(err != FATHOM_OK);
    FAIL(d, err, "--kv-offload-dir %s: %s", dir,
         cause->text[0] ? cause->text : fathom_err_text(err));
}

static fathom_err lock(struct tier_disk *t, const char *dir, fathom_diag *d)
{
    fathom_err err = direct_file_lock(&t->index);
    if (err == FATHOM_EBUSY) {
        FAIL(d, err,
             "--kv-offload-dir %s is in use by another process. Give each server a directory of "
             "its own",
             dir);
    }
    if (err) FAIL(d, err, "--kv-offload-dir %s: kv.index cannot be locked", dir);
    return FATHOM_OK;
}

/* Both files, the first one locked. */
static fathom_err open_files(struct tier_disk *t, const char *dir, fathom_diag *d)
{
    int fd;
    fathom_diag cause = {{0}};
    fathom_err err = private_dir_open(&fd, dir, &cause);
    if (err) FAIL(d, err, "--kv-offload-dir %s", cause.text);
    err = direct_file_open(&t->index, fd, "kv.index", &cause);
    if (err) err = fail_dir(dir, err, &cause, d);
    if (!err) err = lock(t, dir, d);
    if (!err) {
        err = direct_file_open(&t->pages, fd, "kv.pages", &cause);
        if (err) err = fail_dir(dir, err, &cause, d);
    }
    private_dir_close(fd);
    return err;
}

static bool is_zero(const unsigned char *p, size_t n)
{
    while (n > 0 && *p == 0) n--, p++;
    return n == 0;
}

/* What the super block says; GOOD for a new directory too, which has none. One that cannot be read
 * is BAD_IO: it is a file of ours by name and owner, and is made again. */
static fathom_err read_super(struct tier_disk *t, const char *dir, uint64_t index_bytes,
                             enum tier_verdict *verdict, bool *is_new, fathom_diag *d)
{
    *verdict = TIER_GOOD;
    *is_new = index_bytes == 0;
    if (*is_new) return FATHOM_OK;
    memset(t->block, 0, DIRECT_ALIGN);
    fathom_err err = direct_file_read(&t->index, t->block, DIRECT_ALIGN, 0, NULL);
    if (err != FATHOM_OK && err != FATHOM_ELIMIT) {
        *verdict = TIER_BAD_IO;
        return FATHOM_OK;
    }
    *is_new = err == FATHOM_OK && is_zero(t->block, DIRECT_ALIGN); /* killed while it was made */
    if (*is_new) return FATHOM_OK;
    struct tier_super s;
    memcpy(&s, t->block, sizeof s);
    if (!tier_super_is_ours(&s)) {
        FAIL(d, FATHOM_EFORMAT,
             "--kv-offload-dir %s: kv.index is not an index of cache pages. Remove it, or give "
             "another directory",
             dir);
    }
    *verdict = tier_super_judge(&s, &t->identity, t->page_bytes);
    if (t->given && !hash128_equal(&s.secret, t->given)) *verdict = TIER_BAD_VERSION;
    t->secret = s.secret;
    return FATHOM_OK;
}

static int by_order(const void *a, const void *b)
{
    const struct tier_found *x = a, *y = b;
    return (x->order > y->order) - (x->order < y->order);
}

/* A place whose record has not been taken is empty from now on, as far as the disk lets us.
 * Else it would be counted again after the next start. */
static void forget_record(struct tier_disk *t, uint32_t place)
{
    memset(t->block, 0, DIRECT_ALIGN);
    (void)direct_file_write(&t->index, t->block, DIRECT_ALIGN, header_offset(place), NULL);
}

/* One header of the index. `verdict` is that of the whole directory, pages_bytes what there is of
 * kv.pages. */
static void take_header(struct tier_disk *t, const unsigned char *block, uint32_t place,
                        enum tier_verdict verdict, uint64_t pages_bytes)
{
    struct tier_header h;
    bool ours = verdict == TIER_GOOD; /* else the whole index is given up */
    memcpy(&h, block, sizeof h);
    if (is_zero(block, sizeof h)) return;
    if (ours) verdict = tier_header_judge(&h, &t->owner, t->page_bytes);
    if (verdict == TIER_GOOD && (place + 1) * t->padded_bytes > pages_bytes) {
        verdict = TIER_BAD_TRUNCATED;
    }
    if (verdict != TIER_GOOD) {
        t->n_rejected[verdict]++;
        if (ours) forget_record(t, place);
        return;
    }
    if (place >= t->n_place) return; /* the directory has been made smaller */
    ASSERT(t->n_found < t->n_place);
    t->found[t->n_found++] = (struct tier_found){h.name.key, h.order, place};
}

/* A header that cannot be read. */
static void lose_header(struct tier_disk *t, uint32_t place, enum tier_verdict verdict)
{
    t->n_rejected[TIER_BAD_IO]++;
    if (verdict == TIER_GOOD && place < t->n_place) forget_record(t, place);
}

/* Headers from `first` on, one by one where some of them cannot be read. */
static void scan_blocks(struct tier_disk *t, unsigned char *blocks, uint64_t first, uint64_t n,
                        enum tier_verdict verdict, uint64_t pages_bytes)
{
    ASSERT(n > 0 && n <= SCAN_BLOCKS);
    fathom_err err =
        direct_file_read(&t->index, blocks, n * DIRECT_ALIGN, (1 + first) * DIRECT_ALIGN, NULL);
    for (uint64_t k = 0; k < n; k++) {
        unsigned char *block = blocks + k * DIRECT_ALIGN;
        uint32_t place = (uint32_t)(first + k);
        fathom_err one = err;
        if (one) {
            one = direct_file_read(&t->index, block, DIRECT_ALIGN, header_offset(place), NULL);
        }
        if (one) {
            lose_header(t, place, verdict);
        } else {
            take_header(t, block, place, verdict, pages_bytes);
        }
    }
}

static fathom_err scan(struct tier_disk *t, uint64_t index_bytes, enum tier_verdict verdict,
                       fathom_diag *d)
{
    uint64_t pages_bytes = 0;
    TRY(direct_file_size(&t->pages, &pages_bytes));
    unsigned char *blocks = mem_alloc_aligned(DIRECT_ALIGN, SCAN_BLOCKS * (size_t)DIRECT_ALIGN);
    if (!blocks) FAIL(d, FATHOM_ENOMEM, "no memory to read kv.index");
    uint64_t n_block = index_bytes / DIRECT_ALIGN;
    uint64_t n_header = n_block > 0 ? n_block - 1 : 0;
    for (uint64_t i = 0; i < n_header; i += SCAN_BLOCKS) {
        uint64_t n = n_header - i < SCAN_BLOCKS ? n_header - i : SCAN_BLOCKS;
        scan_blocks(t, blocks, i, n, verdict, pages_bytes);
    }
    mem_free(blocks);
    if (t->n_found) qsort(t->found, t->n_found, sizeof t->found[0], by_order);
    return FATHOM_OK;
}

static fathom_err write_super(struct tier_disk *t, fathom_diag *d)
{
    struct tier_super s;
    t->secret = t->given ? *t->given : (struct hash128){rng_entropy(), rng_entropy()};
    tier_super_fill(&s, &t->identity, t->page_bytes, &t->secret);
    memset(t->block, 0, DIRECT_ALIGN);
    memcpy(t->block, &s, sizeof s);
    return direct_file_write(&t->index, t->block, DIRECT_ALIGN, 0, d);
}

static void log_start(const struct tier_disk *t, const char *dir)
{
    uint64_t n_rejected = 0;
    for (int v = TIER_GOOD + 1; v < TIER_VERDICT_COUNT; v++) n_rejected += t->n_rejected[v];
    LOG_INFO("kv", "offload_dir=%s slots=%u found=%u rejected=%llu", dir, t->n_place, t->n_found,
             (unsigned long long)n_rejected);
    for (int v = TIER_GOOD + 1; v < TIER_VERDICT_COUNT; v++) {
        if (t->n_rejected[v] == 0) continue;
        const char *advice = tier_verdict_advice((enum tier_verdict)v);
        LOG_WARN("kv", "offload_dir=%s records=%llu are not taken: %s%s%s", dir,
                 (unsigned long long)t->n_rejected[v], tier_verdict_name((enum tier_verdict)v),
                 advice ? ": " : "", advice ? advice : "");
    }
    if (!t->index.direct || !t->pages.direct) {
        LOG_WARN("kv", "offload_dir=%s has no direct I/O: pages also go through the system's cache",
                 dir);
    }
}

static fathom_err fill(struct tier_disk *t, const char *dir, fathom_diag *d)
{
    uint64_t index_bytes = 0;
    enum tier_verdict verdict;
    bool is_new;
    TRY(open_files(t, dir, d));
    TRY(direct_file_size(&t->index, &index_bytes));
    TRY(read_super(t, dir, index_bytes, &verdict, &is_new, d));
    if (!is_new) TRY(scan(t, index_bytes, verdict, d));
    if (is_new || verdict != TIER_GOOD) {
        TRY(direct_file_resize(&t->index, 0, d));
        TRY(direct_file_resize(&t->index, DIRECT_ALIGN, d));
        TRY(write_super(t, d));
    }
    TRY(direct_file_resize(&t->index, header_offset(t->n_place), d));
    return direct_file_resize(&t->pages, t->n_place * t->padded_bytes, d);
}

/* ---- as a source ---- */

static enum tier_verdict read_source(struct page_source *s, unsigned worker, uint32_t place,
                                     const struct tier_name *name, void *page, uint64_t *sum,
                                     fathom_diag *d)
{
    ASSERT(worker == 0);
    return tier_disk_read((struct tier_disk *)s, place, name, page, sum, d);
}

static const struct page_source_ops source_ops = {.read = read_source};

struct page_source *tier_disk_source(struct tier_disk *t)
{
    return t ? &t->base : NULL;
}

fathom_err tier_disk_open(struct tier_disk **out, const struct tier_disk_config *c, fathom_diag *d)
{
    *out = NULL;
    ASSERT(c->dir && c->page_bytes > 0);
    uint32_t n_place = tier_disk_n_place(c->bytes, c->page_bytes);
    if (n_place == 0) {
        FAIL(d, FATHOM_EINVAL,
             "--kv-offload-dir-size %llu does not hold one page; needed is at least %llu",
             (unsigned long long)c->bytes,
             (unsigned long long)(DIRECT_ALIGN + tier_disk_place_bytes(c->page_bytes)));
    }
    struct tier_disk *t = mem_calloc(1, sizeof *t);
    if (!t) FAIL(d, FATHOM_ENOMEM, "no memory for the disk tier");
    t->index.fd = t->pages.fd = -1;
    t->identity = c->identity;
    t->owner = identity_key(&c->identity);
    t->given = c->secret;
    t->base.ops = &source_ops;
    t->page_bytes = c->page_bytes;
    t->padded_bytes = direct_round(c->page_bytes);
    t->n_place = n_place;
    t->block = mem_alloc_aligned(DIRECT_ALIGN, DIRECT_ALIGN);
    t->found = mem_calloc(n_place, sizeof *t->found);
    fathom_err err = FATHOM_ENOMEM;
    fathom_diag cause = {{0}};
    if (t->block && t->found) err = fill(t, c->dir, &cause);
    if (err != FATHOM_OK) {
        tier_disk_close(t);
        if (cause.text[0] == '-') FAIL(d, err, "%s", cause.text);
        FAIL(d, err, "--kv-offload-dir %s, --kv-offload-dir-size %llu: %s", c->dir,
             (unsigned long long)c->bytes, cause.text[0] ? cause.text : fathom_err_text(err));
    }
    log_start(t, c->dir);
    t->given = NULL;
    *out = t;
    return FATHOM_OK;
}

void tier_disk_close(struct tier_disk *t)
{
    if (!t) return;
    direct_file_close(&t->pages);
    direct_file_close(&t->index);
    mem_free(t->block);
    mem_free(t->found);
    mem_free(t);
}

const struct tier_found *tier_disk_found(const struct tier_disk *t, uint32_t *n)
{
    *n = t->n_found;
    return t->found;
}

void tier_disk_forget(struct tier_disk *t)
{
    mem_free(t->found);
    t->found = NULL;
    t->n_found = 0;
}

uint64_t tier_disk_n_rejected(const struct tier_disk *t, enum tier_verdict why)
{
    ASSERT(why < TIER_VERDICT_COUNT);
    return t->n_rejected[why];
}

const struct hash128 *tier_disk_secret(const struct tier_disk *t)
{
    return &t->secret;
}

uint32_t tier_disk_capacity(const struct tier_disk *t)
{
    return t->n_place;
}

/* ---- records ---- */

static enum tier_verdict verdict_of(fathom_err err)
{
    if (err == FATHOM_OK) return TIER_GOOD;
    return err == FATHOM_ELIMIT ? TIER_BAD_TRUNCATED : TIER_BAD_IO;
}

enum tier_verdict tier_disk_write(struct tier_disk *t, uint32_t place, uint64_t order,
                                  const struct tier_name *name, const void *page, uint64_t sum,
                                  fathom_diag *d)
{
    ASSERT(place < t->n_place && (uintptr_t)page % DIRECT_ALIGN == 0);
    struct tier_header h;
    tier_header_fill(&h, &t->owner, t->page_bytes, order, name, sum);
    fathom_err err =
        direct_file_write(&t->pages, page, t->padded_bytes, place * t->padded_bytes, d);
    if (err) return verdict_of(err);
    memset(t->block, 0, DIRECT_ALIGN);
    memcpy(t->block, &h, sizeof h);
    return verdict_of(
        direct_file_write(&t->index, t->block, DIRECT_ALIGN, header_offset(place), d));
}

static enum tier_verdict read_record(struct tier_disk *t, uint32_t place,
                                     const struct tier_name *name, void *page, uint64_t *sum,
                                     fathom_diag *d)
{
    struct tier_header h;
    fathom_err err = direct_file_read(&t->index, t->block, DIRECT_ALIGN, header_offset(place), d);
    if (err) return verdict_of(err);
    memcpy(&h, t->block, sizeof h);
    enum tier_verdict v = tier_header_judge(&h, &t->owner, t->page_bytes);
    if (v != TIER_GOOD) return v;
    err = direct_file_read(&t->pages, page, t->padded_bytes, place * t->padded_bytes, d);
    if (err) return verdict_of(err);
    *sum = h.page_sum;
    return tier_record_judge(&h, &t->owner, t->page_bytes, name, page);
}

enum tier_verdict tier_disk_read(struct tier_disk *t, uint32_t place, const struct tier_name *name,
                                 void *page, uint64_t *sum, fathom_diag *d)
{
    ASSERT(place < t->n_place && (uintptr_t)page % DIRECT_ALIGN == 0);
    enum tier_verdict v = read_record(t, place, name, page, sum, d);
    if (v != TIER_GOOD) forget_record(t, place);
    return v;
}
