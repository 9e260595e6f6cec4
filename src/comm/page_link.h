/* page_link.h - a connection between two servers, over TCP or UCX
 *
 * One thread at a time uses a link. A call waits until its deadline at most, and ends early when
 * the stop descriptor that the link was made with can be read.
 */
#ifndef FATHOM_COMM_PAGE_LINK_H
#define FATHOM_COMM_PAGE_LINK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "fathom/err.h"

struct page_link;

struct link_part {
    const void *bytes;
    size_t n;
};

enum { LINK_PARTS_MAX = 8 };

struct page_link_ops {
    /* All bytes of n parts. EIO: time-out, or the other side is gone; the link is of no use then.
     *
     *   deadline_us  of clock_now_us; UINT64_MAX: none. Over TCP time does not count in which this
     *                process stood still */
    fathom_err (*send)(struct page_link *l, const struct link_part *parts, size_t n,
                       uint64_t deadline_us, fathom_diag *d);
    /* Exactly n bytes. EIO as above. */
    fathom_err (*receive)(struct page_link *l, void *to, size_t n, uint64_t deadline_us,
                          fathom_diag *d);
    /* Until there is something to receive. EIO as above, also where the other side has left. */
    fathom_err (*await)(struct page_link *l, uint64_t deadline_us, fathom_diag *d);
    /* Whether both ends are on this machine. */
    bool (*is_near)(const struct page_link *l);
    void (*close)(struct page_link *l);
};

struct page_link {
    const struct page_link_ops *ops;
};

#endif
