/* host_hello.h - two hosts find out whether they may compute one model together
 *
 * Each tells its build, model, numerics and layout, and proves that it knows the cluster's token by
 * a MAC over both nonces and all that was said. Without a token both have to be on one machine.
 * After that nothing is secret or signed: the network between the hosts is trusted.
 */
#ifndef FATHOM_COMM_HOST_HELLO_H
#define FATHOM_COMM_HOST_HELLO_H

#include "base/stream_pass.h"
#include "comm/host_frame.h"
#include "comm/page_link.h"

/* What a host says of itself. */
struct host_self {
    uint32_t node_rank;
    uint32_t n_node;
    uint32_t n_page; /* of the cache, that a lane has room for; may differ */
    struct identity identity;
    struct pool_secret token;
    struct inner_port inner; /* host 0's, told to a host that is admitted */
    char build[HOST_BUILD_BYTES];
};

/* host_greet - of who has dialled host 0; host_answer_greeting - of host 0, which may still refuse
 * when all is proved
 *
 *   session, lane  of this connection
 *   inner          host 0's
 *   peer           what the other one says of itself
 *   admit          NULL, or what has the last word: EBUSY, ask again; EMISMATCH
 * Errors  EMISMATCH: they may not, and which of version, build, number of hosts, token, model,
 *         numerics and layout differs; EBUSY: not now; EFORMAT: it is no fathom; EIO. */
fathom_err host_greet(struct page_link *l, const struct host_self *self, uint64_t session,
                      enum host_lane lane, struct inner_port *inner, uint64_t deadline_us,
                      fathom_diag *d);

typedef fathom_err host_admit(void *arg, const struct host_hello *peer, fathom_diag *d);
fathom_err host_answer_greeting(struct page_link *l, const struct host_self *self,
                                struct host_hello *peer, host_admit *admit, void *arg,
                                uint64_t deadline_us, fathom_diag *d);

/* host_send_frame, host_receive_frame - a frame with its body, and the head of the next one
 * host_receive_text - the body of a REFUSE or LEAVE: printable ASCII
 * Errors  EIO, EFORMAT. */
fathom_err host_send_frame(struct page_link *l, enum host_frame_type type, uint64_t generation,
                           const struct link_part *body, size_t n_part, uint64_t deadline_us,
                           fathom_diag *d);
fathom_err host_receive_frame(struct page_link *l, struct host_frame *out, uint32_t work_max,
                              uint64_t deadline_us, fathom_diag *d);
fathom_err host_receive_text(struct page_link *l, const struct host_frame *f,
                             char out[HOST_TEXT_MAX + 1], uint64_t deadline_us, fathom_diag *d);

#endif
