/* page_peers.h - other servers as a source of page records
 *
 * A server is known by its address, and gets a place when it is first used. When all places are
 * taken, the server that was used the longest ago loses its place, because servers may be started
 * anew at other addresses. A request that still has that place then asks the new server, which does
 * not have the record. Each thread that reads has a connection of its own to each server, made when
 * it is first needed. A server that failed is not asked again for PEER_DOWN_US.
 *
 * One more thread tells servers which records they need not keep (RELEASE), over connections of its
 * own. Its queue is bounded: keys beyond PEERS_RELEASES_MAX are dropped, and so are those that a
 * server has not taken after PEER_RELEASE_TRIES. Their leases then end by time.
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

/* page_peers_create - ENOMEM, EIO. page_peers_destroy accepts NULL. Releases are sent until the
 * source is stopped.
 * Needs  no thread reads from it while it is destroyed. */
fathom_err page_peers_create(struct page_peers **out, const struct page_peers_config *c,
                             fathom_diag *d);
void page_peers_destroy(struct page_peers *p);

/* page_peers_source - worker i reads by lane i */
struct page_source *page_peers_source(struct page_peers *p);

/* page_peers_place - the place of a server, by its address; any thread
 * page_peers_keep - the servers known now keep their places for good
 * Errors  EINVAL: no address; ELIMIT: PEERS_MAX others keep theirs. */
fathom_err page_peers_place(struct page_peers *p, const char *host, uint16_t port, uint32_t *place,
                            fathom_diag *d);
void page_peers_keep(struct page_peers *p);

/* page_peers_find - how many of n keys a server has in memory, counted up to the first that it
 * lacks; 0 if it cannot be asked. Any thread.
 * Cost  a round trip; at most PEER_FIND_US, plus the time to connect if there is no connection. */
uint32_t page_peers_find(struct page_peers *p, uint32_t place, const struct hash128 *keys,
                         uint32_t n);

#endif
