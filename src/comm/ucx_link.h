/* ucx_link.h - links over UCX: RDMA, or shared memory within one machine
 *
 * A link begins as one of TCP, whose connection stays and says when the other side is gone. Each
 * link has a worker of UCX of its own. Nobody polls: who waits sleeps until the worker's
 * descriptor, the connection or the stop descriptor can be read.
 */
#ifndef FATHOM_COMM_UCX_LINK_H
#define FATHOM_COMM_UCX_LINK_H

#include "comm/page_link.h"

struct ucx;

/* ucx_open - libucp.so.0, and what of this machine's it can use; its variables UCX_* hold
 *
 * Errors  ENOTFOUND: this build has been made without UCX's headers, or the library is not there.
 *         EIO: it cannot be used here, and why. */
fathom_err ucx_open(struct ucx **out, fathom_diag *d);
void ucx_close(struct ucx *u); /* accepts NULL; all links are closed */

/* ucx_link_over - both sides of a link of TCP go over to UCX
 *
 *   l  owned by the new one; as it was after an error, and of no use
 * A receive has to ask for the bytes of one part of a send, or of several whole ones.
 * Errors  EIO, ENOMEM. */
fathom_err ucx_link_over(struct page_link **l, struct ucx *u, uint64_t deadline_us, fathom_diag *d);

#endif
