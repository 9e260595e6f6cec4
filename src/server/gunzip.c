/* gunzip.c - zlib's inflate over a whole text, block by block */
#include "server/gunzip.h"

#include <limits.h>
#include <zlib.h>

#include "base/fail.h"
#include "base/limits.h"
#include "base/mem.h"

enum { BLOCK_BYTES = 64 << 10, GZIP_ONLY = 16 + MAX_WBITS };

static void *allocate(void *arg, unsigned n, unsigned size)
{
    (void)arg;
    return mem_calloc(n, size);
}

static void release(void *arg, void *p)
{
    (void)arg;
    mem_free(p);
}

/* What inflate has made of the data so far. */
struct unpacking {
    struct buf *out;
    size_t max;
    bool (*hold)(void *arg, size_t n);
    void *arg;
    char *block;
};

static fathom_err add_block(struct unpacking *u, size_t n)
{
    if (u->out->len + n > u->max) return FATHOM_ELIMIT;
    if (!u->hold(u->arg, n)) return FATHOM_EBUSY;
    return buf_add(u->out, u->block, n);
}

/* Up to the end of the data, or the first error. */
static fathom_err unpack(struct unpacking *u, z_stream *z)
{
    for (;;) {
        z->next_out = (Bytef *)u->block;
        z->avail_out = BLOCK_BYTES;
        int status = inflate(z, Z_NO_FLUSH);
        if (status == Z_MEM_ERROR) return FATHOM_ENOMEM;
        if (status != Z_OK && status != Z_STREAM_END) return FATHOM_EFORMAT;
        TRY(add_block(u, BLOCK_BYTES - z->avail_out));
        if (status == Z_OK) continue; /* without data it is a Z_BUF_ERROR: cut */
        if (z->avail_in == 0) return FATHOM_OK;
        if (inflateReset(z) != Z_OK) return FATHOM_EFORMAT;
    }
}

fathom_err gunzip(struct buf *out, const char *data, size_t n, bool (*hold)(void *arg, size_t n),
                  void *arg)
{
    struct unpacking u = {.out = out, .max = out->limit, .hold = hold, .arg = arg};
    z_stream z = {.zalloc = allocate, .zfree = release};
    if (n > UINT_MAX) return FATHOM_ELIMIT;
    size_t most = LIMIT_GZIP_LEAST_BYTES + n * LIMIT_GZIP_FACTOR;
    if (!u.max || most < u.max) u.max = most;
    z.next_in = (z_const Bytef *)data;
    z.avail_in = (uInt)n;
    if (inflateInit2(&z, GZIP_ONLY) != Z_OK) return FATHOM_ENOMEM;
    u.block = mem_alloc(BLOCK_BYTES);
    fathom_err err = u.block ? unpack(&u, &z) : FATHOM_ENOMEM;
    mem_free(u.block);
    (void)inflateEnd(&z);
    return err;
}
