/* page_frame.c - frames to bytes and back, every bound checked */
#include "comm/page_frame.h"

#include <string.h>

#include "base/assert.h"
#include "base/fail.h"

#define MAGIC 0x676b7666u /* "fvkg" */

static void put(unsigned char *out, uint64_t v, size_t n)
{
    for (size_t i = 0; i < n; i++) out[i] = (unsigned char)(v >> (8 * i));
}

static uint64_t get(const unsigned char *bytes, size_t n)
{
    uint64_t v = 0;
    for (size_t i = 0; i < n; i++) v |= (uint64_t)bytes[i] << (8 * i);
    return v;
}

/* The least and the most that a body has; max below min: no such type is due. */
static void bounds_of(uint32_t type, uint64_t page_bytes, uint64_t *min, uint64_t *max)
{
    *min = *max = 0;
    switch (type) {
    case FRAME_HELLO: *min = *max = HELLO_BYTES; return;
    case FRAME_WELCOME: *min = *max = HELLO_BYTES + MAC_BYTES; return;
    case FRAME_REFUSE: *max = FRAME_TEXT_MAX; return;
    case FRAME_PROOF: *min = *max = MAC_BYTES; return;
    case FRAME_READY: return;
    case FRAME_MISS: *min = *max = MISS_BYTES; return;
    case FRAME_WANT: *min = *max = WANT_BYTES; return;
    case FRAME_PAGE:
        *min = page_bytes > 0 ? sizeof(struct tier_header) + page_bytes : 1;
        *max = page_bytes > 0 ? *min : 0;
        return;
    case FRAME_FIND:
    case FRAME_RELEASE:
        *min = sizeof(struct hash128);
        *max = FRAME_KEYS_MAX * sizeof(struct hash128);
        return;
    case FRAME_FOUND: *min = *max = 4; return;
    default: *min = 1; return;
    }
}

void frame_write(unsigned char out[FRAME_BYTES], const struct frame *f)
{
    put(out, MAGIC, 4);
    put(out + 4, f->type, 2);
    put(out + 6, 0, 2);
    put(out + 8, f->stream, 8);
    put(out + 16, f->n_body, 4);
    put(out + 20, hash_checksum(out, 20), 4);
}

fathom_err frame_read(struct frame *out, const unsigned char bytes[FRAME_BYTES],
                      uint64_t page_bytes, fathom_diag *d)
{
    uint64_t min, max;
    uint32_t type = (uint32_t)get(bytes + 4, 2);
    if (get(bytes, 4) != MAGIC) {
        FAIL(d, FATHOM_EFORMAT,
             "it does not speak of fathom's pages: the first bytes are "
             "%02x %02x %02x %02x",
             bytes[0], bytes[1], bytes[2], bytes[3]);
    }
    if (get(bytes + 20, 4) != (uint32_t)hash_checksum(bytes, 20)) {
        FAIL(d, FATHOM_EFORMAT, "a frame is damaged");
    }
    *out = (struct frame){.type = (enum frame_type)type,
                          .stream = get(bytes + 8, 8),
                          .n_body = (uint32_t)get(bytes + 16, 4)};
    bounds_of(type, page_bytes, &min, &max);
    if (get(bytes + 6, 2) == 0 && out->n_body >= min && out->n_body <= max) return FATHOM_OK;
    FAIL(d, FATHOM_EFORMAT, "a frame of type %u with %u bytes, and none such is due", type,
         out->n_body);
}

void hello_write(unsigned char out[HELLO_BYTES], const struct page_hello *h)
{
    put(out, h->version, 4);
    put(out + 4, h->layout, 4);
    put(out + 8, h->page_tokens, 4);
    put(out + 12,
        (uint64_t)h->has_secret | (uint64_t)h->any_numerics << 1 | (uint64_t)h->has_ucx << 2, 4);
    put(out + 16, h->page_bytes, 8);
    unsigned char *at = out + 24;
    memcpy(at, h->identity.model.bytes, 32);
    memcpy(at + 32, h->identity.numerics.bytes, 32);
    memcpy(at + 64, h->identity.layout.bytes, 32);
    memcpy(at + 96, h->nonce, FRAME_NONCE_BYTES);
    memcpy(at + 96 + FRAME_NONCE_BYTES, h->id, FRAME_ID_BYTES);
}

fathom_err hello_read(struct page_hello *out, const unsigned char bytes[HELLO_BYTES],
                      fathom_diag *d)
{
    uint64_t flags = get(bytes + 12, 4);
    *out = (struct page_hello){.version = (uint32_t)get(bytes, 4),
                               .layout = (uint32_t)get(bytes + 4, 4),
                               .page_tokens = (uint32_t)get(bytes + 8, 4),
                               .has_secret = flags & 1,
                               .any_numerics = flags >> 1 & 1,
                               .has_ucx = flags >> 2 & 1,
                               .page_bytes = get(bytes + 16, 8)};
    const unsigned char *at = bytes + 24;
    memcpy(out->identity.model.bytes, at, 32);
    memcpy(out->identity.numerics.bytes, at + 32, 32);
    memcpy(out->identity.layout.bytes, at + 64, 32);
    memcpy(out->nonce, at + 96, FRAME_NONCE_BYTES);
    memcpy(out->id, at + 96 + FRAME_NONCE_BYTES, FRAME_ID_BYTES);
    size_t n = 0;
    while (n < FRAME_ID_BYTES && out->id[n] > ' ' && out->id[n] <= '~') n++;
    if (n < FRAME_ID_BYTES && out->id[n] == '\0') return FATHOM_OK;
    FAIL(d, FATHOM_EFORMAT, "a greeting with an engine id that is no name");
}

/* A name lies in frames as it lies in headers of records: base/wire order is that of the machines
 * that share records, all of which are little-endian. */
void want_write(unsigned char out[WANT_BYTES], const struct tier_name *name)
{
    memcpy(out, name, sizeof *name);
}

fathom_err want_read(struct tier_name *out, const unsigned char bytes[WANT_BYTES], fathom_diag *d)
{
    memcpy(out, bytes, sizeof *out);
    if (out->n_id >= KV_PAGE_TOKENS && out->n_id <= TIER_MAX_ID &&
        out->n_answer <= KV_PAGE_TOKENS) {
        return FATHOM_OK;
    }
    FAIL(d, FATHOM_EFORMAT, "a record of %u tokens is asked for", out->n_id);
}

void find_write(unsigned char *out, const struct hash128 *keys, uint32_t n)
{
    ASSERT(n >= 1 && n <= FRAME_KEYS_MAX);
    for (uint32_t i = 0; i < n; i++) {
        put(out + 16 * (size_t)i, keys[i].lo, 8);
        put(out + 16 * (size_t)i + 8, keys[i].hi, 8);
    }
}

fathom_err find_read(struct hash128 *out, uint32_t *n, const unsigned char *body, uint32_t n_body,
                     fathom_diag *d)
{
    if (n_body % 16 != 0) FAIL(d, FATHOM_EFORMAT, "%u bytes are no keys", n_body);
    *n = n_body / 16;
    for (uint32_t i = 0; i < *n; i++) {
        out[i] = (struct hash128){get(body + 16 * (size_t)i, 8), get(body + 16 * (size_t)i + 8, 8)};
    }
    return FATHOM_OK;
}

void number_write(unsigned char out[4], uint32_t n)
{
    put(out, n, 4);
}

uint32_t number_read(const unsigned char bytes[4])
{
    return (uint32_t)get(bytes, 4);
}
