/* host_frame.h - the frames in which hosts that compute one model together speak
 *
 *   { u32 magic, u16 type, u16 flags, u64 generation, u32 n_body, u32 check }  then n_body bytes
 *
 * Little-endian; the check is of the 20 bytes before it. A reader knows the bounds of n_body before
 * it makes room. Host 0 is dialled, the others dial, twice: a lane of control and one of data.
 *
 *   host r                                    host 0
 *   HELLO  who it is, a nonce                 WELCOME who it is, a nonce, a MAC; or REFUSE: why
 *   PROOF  its MAC                            READY  its inner port; or REFUSE
 *                                             GO: all are there, of a new generation
 *   BEAT   every second                       BEAT, in answer
 *   LEAVE  why                                LEAVE: why
 *                                             WORK: what to compute
 *
 * The generation of a REFUSE says whether it is worth asking again. `flags` is 0 in this version.
 */
#ifndef FATHOM_COMM_HOST_FRAME_H
#define FATHOM_COMM_HOST_FRAME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "fathom/err.h"
#include "kv/identity.h"

enum host_frame_type {
    HOST_HELLO = 1,
    HOST_WELCOME,
    HOST_REFUSE,
    HOST_PROOF,
    HOST_READY,
    HOST_GO,
    HOST_BEAT,
    HOST_LEAVE,
    HOST_WORK,
    HOST_FRAME_END
};

enum {
    HOST_FRAME_BYTES = 24,
    HOST_VERSION = 3, /* changes when any byte changes its meaning */
    HOST_TEXT_MAX = 512,
    HOST_BUILD_BYTES = 32,
    HOST_NONCE_BYTES = 16,
    HOST_MAC_BYTES = 16,
    HOST_READY_BYTES = 18,
    HOSTS_MAX = 64,
};

enum host_lane { HOST_LANE_CONTROL, HOST_LANE_DATA, HOST_LANE_N };

struct host_frame {
    enum host_frame_type type;
    uint64_t generation;
    uint32_t n_body;
};

/* host_frame_write - the HOST_FRAME_BYTES before a body */
void host_frame_write(unsigned char out[HOST_FRAME_BYTES], const struct host_frame *f);

/* host_frame_read - what HOST_FRAME_BYTES from outside say
 *
 *   work_max  bytes of a WORK at most; 0: none is due
 * Errors  EFORMAT: no frame of this version, or a body out of the bounds of its type. */
fathom_err host_frame_read(struct host_frame *out, const unsigned char bytes[HOST_FRAME_BYTES],
                           uint32_t work_max, fathom_diag *d);

/* Who speaks: the body of HELLO, and of WELCOME before its MAC. */
struct host_hello {
    uint32_t version;
    uint32_t node_rank; /* below n_node */
    uint32_t n_node;    /* 2 .. HOSTS_MAX */
    enum host_lane lane;
    bool has_token;
    uint32_t n_page;  /* of the cache, that a lane has room for */
    uint64_t session; /* of this joining: both lanes tell the same */
    struct identity identity;
    unsigned char nonce[HOST_NONCE_BYTES];
    char build[HOST_BUILD_BYTES]; /* printable ASCII */
};

enum { HOST_HELLO_BYTES = 32 + 96 + HOST_NONCE_BYTES + HOST_BUILD_BYTES };

/* host_hello_write, host_hello_read - EFORMAT: numbers out of range, or a build that is no text */
void host_hello_write(unsigned char out[HOST_HELLO_BYTES], const struct host_hello *h);
fathom_err host_hello_read(struct host_hello *out, const unsigned char bytes[HOST_HELLO_BYTES],
                           fathom_diag *d);

/* Where host 0 takes requests that other hosts have got for their lanes: the body of READY. */
struct inner_port {
    uint16_t port;   /* at host 0's address; 0: it takes none */
    uint64_t key[2]; /* which each request brings */
};

/* inner_port_write, inner_port_read - any bytes are one */
void inner_port_write(unsigned char out[HOST_READY_BYTES], const struct inner_port *p);
void inner_port_read(struct inner_port *out, const unsigned char bytes[HOST_READY_BYTES]);

#endif
