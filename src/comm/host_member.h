/* host_member.h - the control channel, on a host other than host 0
 *
 *   AWAY --host_member_join--> JOINED, with GO at work --host_member_part--> AWAY
 *
 * One thread makes all calls except host_member_stop.
 */
#ifndef FATHOM_COMM_HOST_MEMBER_H
#define FATHOM_COMM_HOST_MEMBER_H

#include "comm/host_hello.h"

struct host_member;

enum { HOST_DIAL_US = 1000000, HOST_AGAIN_US = 200000, HOST_TELL_US = 10000000 };

struct host_member_config {
    struct host_self self;
    const char *host; /* of host 0; copied */
    uint16_t port;
    uint32_t work_max; /* bytes of a WORK at most */
    /* once it can be read, host 0 is not joined anew, and left after so long; 0: none. The
     * caller's */
    int end_fd;
    uint64_t end_after_us;
};

/* host_member_create - ENOMEM, EIO. host_member_destroy accepts NULL. */
fathom_err host_member_create(struct host_member **out, const struct host_member_config *c,
                              fathom_diag *d);
void host_member_destroy(struct host_member *m);

/* host_member_stop - make join and receive end with ECANCEL; any thread */
void host_member_stop(struct host_member *m);

/* host_member_join - dial host 0 until it is there, and take this host's seat
 *
 * Needs   AWAY.
 * Errors  EMISMATCH, EINVAL, EFORMAT: host 0 refuses this host; *d says why. After an earlier join
 *         it is tried again for 10 s, because host 0 may not have noticed yet that this host left.
 *         ECANCEL: stopped, or end_fd can be read. */
fathom_err host_member_join(struct host_member *m, fathom_diag *d);

/* host_member_receive - wait for the next GO, or WORK with its body; heartbeats are skipped
 *
 *   body    [work_max]
 * Errors  EPEER: host 0 is lost, or says why this host must join anew. ECANCEL: stopped; or end_fd
 *         can be read, and host 0 is lost or end_after_us have passed. */
fathom_err host_member_receive(struct host_member *m, struct host_frame *f, void *body,
                               fathom_diag *d);

/* host_member_data - the data link; host_member_inner - host 0's inner port; while JOINED */
struct page_link *host_member_data(struct host_member *m);
const struct inner_port *host_member_inner(const struct host_member *m);

/* host_member_part - leave: back to AWAY. Host 0 is told why, if it still listens. */
void host_member_part(struct host_member *m, const char *why);

#endif
