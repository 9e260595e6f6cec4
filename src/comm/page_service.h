/* page_service.h - gives records in memory to other servers
 *
 * One thread accepts connections, and each connection has a thread, which sends records from where
 * they lie in memory. These threads and the engine never wait for each other (page_shelf.h).
 */
#ifndef FATHOM_COMM_PAGE_SERVICE_H
#define FATHOM_COMM_PAGE_SERVICE_H

#include "comm/page_hello.h"
#include "kv/page_shelf.h"

struct page_service;

enum {
    SERVICE_LINKS_MAX = 64,
    SERVICE_GREETING_US =
        2000000,               /* for a greeting, or for the rest of a question that has begun */
    SERVICE_SEND_US = 5000000, /* for a record to be sent; then the connection is ended */
    SERVICE_RELEASED_US = 10000000, /* how long a released key is noted (page_shelf_release) */
};

struct page_service_config {
    struct page_self self;
    struct page_shelf *shelf; /* borrowed */
    const char *host;         /* address to listen on */
    uint16_t port;            /* 0: any free one */
};

/* page_service_create - listen and answer
 *
 * Errors  EINVAL: host; EIO: the port is taken, or a thread cannot start; ENOMEM. */
fathom_err page_service_create(struct page_service **out, const struct page_service_config *c,
                               fathom_diag *d);
void page_service_destroy(struct page_service *s); /* accepts NULL; ends all connections */

/* page_service_note_busy - note how long the present prompts will take; 0: there are none. It is
 * told to servers that ask for a record that is not there. Once that time is over without another
 * note, they are told the time since this note. Any thread. */
void page_service_note_busy(struct page_service *s, uint64_t us);

/* page_service_port - the port that it listens on */
uint16_t page_service_port(const struct page_service *s);

#endif
