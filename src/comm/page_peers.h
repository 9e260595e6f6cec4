/* page_peers.h - other servers as a source of page records
 *
 * Servers are known by their address, and get a place when they are first asked for. When all
 * places are taken, the server that was asked for the longest ago loses its own: servers are
 * started anew at other addresses. Who still has that place asks the new server, which has no such
 * record. Each thread that reads has a connection of its own to each server, made when it is first
 * needed and kept. A server that failed is asked no more for PEER_DOWN_US.
 *
 * One more thread tells servers which records they need not keep (RELEASE), over a connection of
 * its own. What waits for it is bounded: keys beyond PEERS_RELEASES_MAX are dropped, as are those
 * that a server has not taken after PEER_RELEASE_TRIES, and their leases run out by themselves.
 */
#ifndef FATHOM_COMM_PAGE_PEERS_H
#define FATHOM_COMM_PAGE_PEERS_H

#include "comm/page_hello.h"
#include "kv/page_source.h"

struct page_peers;

enum {
    PEERS_MAX = 64,
    PEERS_LANES_MAX = 8, /* threads that read */
    PEERS_RELEASES_MAX = 8192,
    PEER_HOST_BYTES = 256,
    PEER_DIAL_US = 1000000,
    PEER_GREETING_US = 2000000,
    PEER_PAGE_US = 2000000, /* for a record */
    PEER_FIND_US = 100000,
    PEER_RELEASE_US = 2000000, /* to take keys that are released */
    PEER_RELEASE_TRIES = 5,
    PEER_DOWN_US = 1000000,
};

struct page_peers_config {
    struct page_self self;
    unsigned n_lane;
};

/* page_peers_create - ENOMEM, EIO. page_peers_destroy accepts NULL; what it has to tell is told
 * until the source is stopped.
 * Needs  nobody who reads when it is destroyed. */
fathom_err page_peers_create(struct page_peers **out, const struct page_peers_config *c,
                             fathom_diag *d);
void page_peers_destroy(struct page_peers *p);

/* page_peers_source - worker i reads by lane i */
struct page_source *page_peers_source(struct page_peers *p);

/* page_peers_place - of a server by its address; from any thread
 * page_peers_keep - those that are known now keep their places
 * Errors  EINVAL: no address; ELIMIT: PEERS_MAX others keep theirs. */
fathom_err page_peers_place(struct page_peers *p, const char *host, uint16_t port, uint32_t *place,
                            fathom_diag *d);
void page_peers_keep(struct page_peers *p);

/* page_peers_find - how many of the first of n keys a server has in memory; 0 when it cannot be
 * asked. From any thread.
 * Cost  a round trip; PEER_FIND_US, and for a first connection that of making it, at most. */
uint32_t page_peers_find(struct page_peers *p, uint32_t place, const struct hash128 *keys,
                         uint32_t n);

#endif
