/* event_publisher.h - events of prefix caches, sent to whoever subscribes, over ZeroMQ
 *
 * vLLM's protocol. Each lane has a PUB socket, which sends messages of three frames: topic, number
 * of the batch, batch (event_pack.h). Numbers are 8 bytes, the highest first; they begin at 0 and
 * have no gaps. Who misses one asks the lane's ROUTER socket for all from a number on, gets
 * messages of two frames, number and batch, and at the end one of the number -1 with an empty
 * batch. Where the first batches that it asks for are not kept any more, the answer begins with
 * AllBlocksCleared, under the number of the last one that is not: so what the subscriber holds then
 * is there.
 *
 *   closed --open--> BOUND --start--> RUNNING: a thread sends, and answers --close--> closed
 *
 * Nobody is waited for: a subscriber that does not read loses what its socket has no room for.
 */
#ifndef FATHOM_COMM_EVENT_PUBLISHER_H
#define FATHOM_COMM_EVENT_PUBLISHER_H

#include <stdint.h>

#include "kv/page_feed.h"

struct event_publisher;

enum {
    PUBLISHER_LANES_MAX = 64,
    PUBLISHER_BACKLOG_BYTES = 64 << 20, /* of a lane, for answers */
    PUBLISHER_BATCH_EVENTS = 256,       /* of one batch, at most */
};

/* Lane i has the ports of lane 0 plus i; of paths it has the path with _dp and i behind it. */
struct event_publisher_config {
    const char *endpoint;        /* where it sends. "tcp://" with the host *, 0.0.0.0 or an address
                                    with "::", and "ipc://", are listened on; other hosts are
                                    connected to, who listen for several servers */
    const char *replay_endpoint; /* where it is asked; NULL: nowhere */
    const char *topic;
    uint32_t n_kept; /* batches of a lane that are kept for answers, at most; 1 or more */
    uint32_t hwm;    /* batches that wait for one subscriber, at most; 1 or more */
    uint32_t n_lane;
};

/* event_publisher_open - the library, and sockets at the endpoints
 *
 * Errors  EUNSUPPORTED: libzmq is not there. EINVAL: an endpoint is no such thing. EIO: it cannot
 *         be had. ENOMEM. */
fathom_err event_publisher_open(struct event_publisher **out,
                                const struct event_publisher_config *c, fathom_diag *d);

/* event_publisher_start - take from the feeds from now on
 *
 *   feeds   [n_lane] of the lanes; they outlive the publisher
 *   wanted  called by its thread when a feed waits for room (page_feed_drop)
 * Errors  EIO: the thread cannot start. */
fathom_err event_publisher_start(struct event_publisher *p, struct page_feed *const *feeds,
                                 void (*wanted)(void *arg), void *arg, fathom_diag *d);

/* event_publisher_wake - feeds have events
 *
 * Cost  a system call. */
void event_publisher_wake(struct event_publisher *p);

struct event_publisher_stats {
    uint64_t n_event[PAGE_CLEARED + 1]; /* sent, of each kind */
    uint64_t n_batch;                   /* that they were in */
    uint64_t n_replay;                  /* whole answers */
};

/* event_publisher_get_stats - so far; any thread */
void event_publisher_get_stats(const struct event_publisher *p, struct event_publisher_stats *out);

/* event_publisher_close - what the feeds have is handed to the library; it waits for no subscriber
 * to take that. Accepts NULL. */
void event_publisher_close(struct event_publisher *p);

#endif
