/* event_pack.c - of MessagePack what these events need, each value in its shortest form */
#include "comm/event_pack.h"

#include <string.h>

#include "base/assert.h"

/* First bytes. Short strings and arrays have their length in it. */
enum {
    NIL = 0xc0,
    FLOAT64 = 0xcb,
    UINT8 = 0xcc,
    UINT16 = 0xcd,
    UINT32 = 0xce,
    UINT64 = 0xcf,
    ARRAY = 0x90, /* of up to 15 values */
    STRING = 0xa0,
    ARRAY16 = 0xdc,
    ARRAY32 = 0xdd,
};

/* The first byte, then the last n_byte bytes of v, the highest first. */
static void put(struct buf *b, int first, uint64_t v, unsigned n_byte)
{
    unsigned char bytes[9] = {(unsigned char)first};
    ASSERT(n_byte < sizeof bytes);
    for (unsigned i = 0; i < n_byte; i++) bytes[n_byte - i] = (unsigned char)(v >> 8 * i);
    (void)buf_add(b, bytes, n_byte + 1);
}

static void put_uint(struct buf *b, uint64_t v)
{
    if (v < 128) {
        put(b, (int)v, 0, 0);
    } else if (v <= UINT8_MAX) {
        put(b, UINT8, v, 1);
    } else if (v <= UINT16_MAX) {
        put(b, UINT16, v, 2);
    } else if (v <= UINT32_MAX) {
        put(b, UINT32, v, 4);
    } else {
        put(b, UINT64, v, 8);
    }
}

static void put_array(struct buf *b, uint32_t n)
{
    if (n < 16) {
        put(b, ARRAY | (int)n, 0, 0);
    } else if (n <= UINT16_MAX) {
        put(b, ARRAY16, n, 2);
    } else {
        put(b, ARRAY32, n, 4);
    }
}

static void put_text(struct buf *b, const char *s)
{
    ASSERT(strlen(s) < 32);
    put(b, STRING | (int)strlen(s), 0, 0);
    (void)buf_add_str(b, s);
}

static void put_float(struct buf *b, double v)
{
    uint64_t bits;
    memcpy(&bits, &v, sizeof bits);
    put(b, FLOAT64, bits, 8);
}

static void put_pages(struct buf *b, const struct page_event *e, uint32_t n)
{
    put_array(b, n);
    for (uint32_t i = 0; i < n; i++) put_uint(b, e[i].page);
}

static void put_stored(struct buf *b, const struct page_event *e, uint32_t n)
{
    put_array(b, 8);
    put_text(b, "BlockStored");
    put_pages(b, e, n);
    if (e->parent) {
        put_uint(b, e->parent);
    } else {
        put(b, NIL, 0, 0);
    }
    put_array(b, n * KV_PAGE_TOKENS);
    for (uint32_t i = 0; i < n; i++) {
        for (uint32_t k = 0; k < KV_PAGE_TOKENS; k++) put_uint(b, (uint32_t)e[i].ids[k]);
    }
    put_uint(b, KV_PAGE_TOKENS);
    put(b, NIL, 0, 0); /* lora_id */
    put_text(b, "GPU");
    put(b, NIL, 0, 0); /* lora_name */
}

static void put_removed(struct buf *b, const struct page_event *e, uint32_t n)
{
    put_array(b, 3);
    put_text(b, "BlockRemoved");
    put_pages(b, e, n);
    put_text(b, "GPU");
}

/* How many of n events make one together with the first. */
static uint32_t count_run(const struct page_event *e, uint32_t n)
{
    uint32_t k = 1;
    if (e->kind == PAGE_CLEARED) return 1;
    while (k < n && e[k].kind == e->kind &&
           (e->kind == PAGE_REMOVED || e[k].parent == e[k - 1].page))
        k++;
    return k;
}

fathom_err event_pack(struct buf *out, double unix_s, const struct page_event *events, uint32_t n,
                      uint32_t rank)
{
    uint32_t n_run = 0;
    for (uint32_t i = 0; i < n; i += count_run(events + i, n - i)) n_run++;
    put_array(out, 3);
    put_float(out, unix_s);
    put_array(out, n_run);
    for (uint32_t i = 0, run; i < n; i += run) {
        run = count_run(events + i, n - i);
        switch (events[i].kind) {
        case PAGE_STORED: put_stored(out, events + i, run); break;
        case PAGE_REMOVED: put_removed(out, events + i, run); break;
        case PAGE_CLEARED:
            put_array(out, 1);
            put_text(out, "AllBlocksCleared");
            break;
        }
    }
    put_uint(out, rank);
    return buf_status(out);
}
