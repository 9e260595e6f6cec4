/* page_hello.h - two servers find out whether they may share page records
 *
 * Each tells its version, layout and identity, and proves that it knows the secret of the pool by
 * a MAC over both nonces and all that was said. Without a secret both have to be on one machine.
 * After that nothing is secret or signed: the network between the servers is trusted with pages.
 */
#ifndef FATHOM_COMM_PAGE_HELLO_H
#define FATHOM_COMM_PAGE_HELLO_H

#include "base/stream_pass.h"
#include "comm/page_frame.h"
#include "comm/ucx_link.h"

/* What a server says of itself on every link. */
struct page_self {
    struct identity identity;
    uint64_t page_bytes;
    struct pool_secret secret;
    bool any_numerics;
    struct ucx *ucx;         /* borrowed; NULL: TCP alone */
    char id[FRAME_ID_BYTES]; /* of the engine: printable ASCII without blanks, " and \ */
};

/* page_key_secret - of the keys that servers of one pool find records under */
struct hash128 page_key_secret(const struct pool_secret *s);

/* page_greet - of who has dialled; page_answer_greeting - of who was dialled
 *
 *   l      one of TCP; becomes one of UCX where both have it
 *   magic  the first bytes that have come
 *   peer   what the other one says of itself
 * Errors  EMISMATCH: they may not share, and which of version, secret, model, numerics and layout
 *         differs; EFORMAT: it is no fathom; EIO. */
fathom_err page_greet(struct page_link **l, const struct page_self *self, struct page_hello *peer,
                      uint64_t deadline_us, fathom_diag *d);
fathom_err page_answer_greeting(struct page_link **l, const unsigned char magic[FRAME_MAGIC_BYTES],
                                const struct page_self *self, struct page_hello *peer,
                                uint64_t deadline_us, fathom_diag *d);

/* link_send_frame, link_receive_frame - a frame with a body, and the first bytes of the next one
 *
 *   page_bytes  as for frame_read
 * Errors  EIO, EFORMAT. */
fathom_err link_send_frame(struct page_link *l, enum frame_type type, uint64_t stream,
                           const struct link_part *body, size_t n_part, uint64_t deadline_us,
                           fathom_diag *d);
fathom_err link_receive_frame(struct page_link *l, struct frame *out, uint64_t page_bytes,
                              uint64_t deadline_us, fathom_diag *d);

#endif
