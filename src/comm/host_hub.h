/* host_hub.h - host 0's side of the control channel: who has joined, who is lost
 *
 * States of a host's seat
 *
 *   EMPTY --control--> HALF --data--> JOINED --lost--> LOST --host_hub_gather--> EMPTY
 *
 * and of the hub
 *
 *   GATHERING --host_hub_gather, all JOINED: GO--> WHOLE --a host is lost--> GATHERING
 *
 * When a host is lost, all other hosts lose their seats too: each is told why, and joins anew
 * without loading its weights again. So every generation begins with links that carry nothing old.
 *
 * Invariants: in WHOLE all seats are JOINED. Generations ascend. Only host_hub_gather and the
 * acceptor close a link, and never while another thread may use it.
 */
#ifndef FATHOM_COMM_HOST_HUB_H
#define FATHOM_COMM_HOST_HUB_H

#include "comm/host_hello.h"

struct host_hub;

enum {
    HOST_GREETING_US = 2000000,
    HOST_BEAT_US = 1000000,  /* between beats of a host */
    HOST_LOST_US = 3000000,  /* without a sign of life */
    HOST_WORK_US = 10000000, /* for a host to take what it is told */
    HOST_REFUSALS_TOLD = 8,  /* lines a minute about who was refused */
};

struct host_hub_config {
    struct host_self self;
    const char *host;    /* address to listen on */
    uint16_t port;       /* 0: any free one */
    uint32_t n_page_min; /* that a host needs room for */
    int listen_fd;       /* > 0: listens there already, at that port; the caller's */
    /* NULL, or is called when a host has come or is lost: by threads of the hub, under its lock */
    void (*changed)(void *arg);
    void *arg;
};

/* host_hub_create - listen, and greet the hosts that connect
 * Errors  EINVAL: host; EIO: the port is taken, or a thread cannot start; ENOMEM. */
fathom_err host_hub_create(struct host_hub **out, const struct host_hub_config *c, fathom_diag *d);
void host_hub_destroy(struct host_hub *h); /* accepts NULL; tells all hosts */

/* host_hub_end - tell all hosts that host 0 ends; the hub is never WHOLE again */
void host_hub_end(struct host_hub *h);

/* host_hub_port - the port that it listens on */
uint16_t host_hub_port(const struct host_hub *h);

/* host_hub_gather - begin a generation, if all hosts have joined
 * Needs   no thread sends or receives over the hub's links; not WHOLE.
 * Errors  EPEER: not all have joined; *d names the host that was lost, or has not come. */
fathom_err host_hub_gather(struct host_hub *h, fathom_diag *d);

/* host_hub_is_whole - whether all hosts of the generation are still there; any thread */
bool host_hub_is_whole(struct host_hub *h);

/* host_hub_generation - the newest that has begun; 0: none */
uint64_t host_hub_generation(struct host_hub *h);

/* host_hub_n_page - pages of a lane that every host has room for: the least that any has told
 *
 * Needs  WHOLE, right after host_hub_gather. */
uint32_t host_hub_n_page(struct host_hub *h);

/* host_hub_fault - why the hub is not WHOLE; any thread */
void host_hub_fault(struct host_hub *h, char out[HOST_TEXT_MAX + 1]);

/* host_hub_tell - send WORK to all hosts; host_hub_tell_one - to host r; one thread
 * Errors  EPEER: a host is lost. */
fathom_err host_hub_tell(struct host_hub *h, const struct link_part *parts, size_t n_part);
fathom_err host_hub_tell_one(struct host_hub *h, uint32_t r, const struct link_part *parts,
                             size_t n_part);

/* host_hub_data - the data link of host r, 1 .. n_node - 1, in a generation; one thread
 * host_hub_lose - give host r up, because its data link failed; any thread */
struct page_link *host_hub_data(struct host_hub *h, uint32_t r);
void host_hub_lose(struct host_hub *h, uint32_t r, const char *why);

#endif
