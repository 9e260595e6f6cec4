/* host_frame.c - frames between hosts to bytes and back, every bound checked */
#include "comm/host_frame.h"

#include <string.h>

#include "base/assert.h"
#include "base/fail.h"

#define MAGIC 0x736f6866u /* "fhos" */

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

/* The least and the most that a body has; false: no such type is due. */
static bool bounds_of(uint32_t type, uint32_t work_max, uint32_t *min, uint32_t *max)
{
    *min = *max = 0;
    switch (type) {
    case HOST_HELLO: *min = *max = HOST_HELLO_BYTES; return true;
    case HOST_WELCOME: *min = *max = HOST_HELLO_BYTES + HOST_MAC_BYTES; return true;
    case HOST_REFUSE:
    case HOST_LEAVE: *max = HOST_TEXT_MAX; return true;
    case HOST_PROOF: *min = *max = HOST_MAC_BYTES; return true;
    case HOST_READY: *min = *max = HOST_READY_BYTES; return true;
    case HOST_GO:
    case HOST_BEAT: return true;
    case HOST_WORK:
        *min = 1;
        *max = work_max;
        return work_max > 0;
    default: return false;
    }
}

void host_frame_write(unsigned char out[HOST_FRAME_BYTES], const struct host_frame *f)
{
    ASSERT(f->type >= HOST_HELLO && f->type < HOST_FRAME_END);
    put(out, MAGIC, 4);
    put(out + 4, f->type, 2);
    put(out + 6, 0, 2);
    put(out + 8, f->generation, 8);
    put(out + 16, f->n_body, 4);
    put(out + 20, hash_checksum(out, 20), 4);
}

fathom_err host_frame_read(struct host_frame *out, const unsigned char bytes[HOST_FRAME_BYTES],
                           uint32_t work_max, fathom_diag *d)
{
    uint32_t min, max;
    const uint32_t type = (uint32_t)get(bytes + 4, 2);
    if (get(bytes, 4) != MAGIC) {
        FAIL(d, FATHOM_EFORMAT,
             "it is no host of fathom's: the first bytes are %02x %02x %02x %02x", bytes[0],
             bytes[1], bytes[2], bytes[3]);
    }
    if (get(bytes + 20, 4) != (uint32_t)hash_checksum(bytes, 20)) {
        FAIL(d, FATHOM_EFORMAT, "a frame is damaged");
    }
    *out = (struct host_frame){.type = (enum host_frame_type)type,
                               .generation = get(bytes + 8, 8),
                               .n_body = (uint32_t)get(bytes + 16, 4)};
    const bool is_due = bounds_of(type, work_max, &min, &max) && get(bytes + 6, 2) == 0;
    if (is_due && out->n_body >= min && out->n_body <= max) return FATHOM_OK;
    FAIL(d, FATHOM_EFORMAT, "a frame of type %u with %u bytes, and none such is due", type,
         out->n_body);
}

void host_hello_write(unsigned char out[HOST_HELLO_BYTES], const struct host_hello *h)
{
    put(out, h->version, 4);
    put(out + 4, h->node_rank, 4);
    put(out + 8, h->n_node, 4);
    put(out + 12, (uint64_t)h->lane, 4);
    put(out + 16, h->has_token, 4);
    put(out + 20, h->n_page, 4);
    put(out + 24, h->session, 8);
    memcpy(out + 32, h->identity.model.bytes, 32);
    memcpy(out + 64, h->identity.numerics.bytes, 32);
    memcpy(out + 96, h->identity.layout.bytes, 32);
    memcpy(out + 128, h->nonce, HOST_NONCE_BYTES);
    memcpy(out + 128 + HOST_NONCE_BYTES, h->build, HOST_BUILD_BYTES);
}

fathom_err host_hello_read(struct host_hello *out, const unsigned char bytes[HOST_HELLO_BYTES],
                           fathom_diag *d)
{
    const uint32_t lane = (uint32_t)get(bytes + 12, 4);
    const uint32_t has_token = (uint32_t)get(bytes + 16, 4);
    *out = (struct host_hello){.version = (uint32_t)get(bytes, 4),
                               .node_rank = (uint32_t)get(bytes + 4, 4),
                               .n_node = (uint32_t)get(bytes + 8, 4),
                               .lane = (enum host_lane)lane,
                               .has_token = has_token == 1,
                               .n_page = (uint32_t)get(bytes + 20, 4),
                               .session = get(bytes + 24, 8)};
    memcpy(out->identity.model.bytes, bytes + 32, 32);
    memcpy(out->identity.numerics.bytes, bytes + 64, 32);
    memcpy(out->identity.layout.bytes, bytes + 96, 32);
    memcpy(out->nonce, bytes + 128, HOST_NONCE_BYTES);
    memcpy(out->build, bytes + 128 + HOST_NONCE_BYTES, HOST_BUILD_BYTES);
    if (out->n_node < 2 || out->n_node > HOSTS_MAX || out->node_rank >= out->n_node) {
        FAIL(d, FATHOM_EFORMAT, "a greeting of host %u of %u", out->node_rank, out->n_node);
    }
    if (lane >= HOST_LANE_N || has_token > 1) {
        FAIL(d, FATHOM_EFORMAT, "a greeting for lane %u", lane);
    }
    size_t n = 0;
    while (n < HOST_BUILD_BYTES && out->build[n] >= ' ' && out->build[n] <= '~') n++;
    if (n > 0 && n < HOST_BUILD_BYTES && out->build[n] == '\0') return FATHOM_OK;
    FAIL(d, FATHOM_EFORMAT, "a greeting with a build that is no text");
}

void inner_port_write(unsigned char out[HOST_READY_BYTES], const struct inner_port *p)
{
    put(out, p->port, 2);
    put(out + 2, p->key[0], 8);
    put(out + 10, p->key[1], 8);
}

void inner_port_read(struct inner_port *out, const unsigned char bytes[HOST_READY_BYTES])
{
    *out = (struct inner_port){.port = (uint16_t)get(bytes, 2),
                               .key = {get(bytes + 2, 8), get(bytes + 10, 8)}};
}
