/* page_service.h - gives records in memory to other servers
 *
 * One thread takes connections, and each connection has one: it sends from the memory that the
 * record lies in. Nothing here waits for the engine, nor the engine for it (page_shelf.h).
 */
#ifndef FATHOM_COMM_PAGE_SERVICE_H
#define FATHOM_COMM_PAGE_SERVICE_H

#include "comm/page_hello.h"
#include "kv/page_shelf.h"

struct page_service;

enum {
    SERVICE_LINKS_MAX = 64,
    SERVICE_GREETING_US = 2000000,  /* for who has connected to say who it is, or the rest of what
                                     * it has begun to ask */
    SERVICE_SEND_US = 5000000,      /* for a record to be taken; then the connection is ended */
    SERVICE_RELEASED_US = 10000000, /* what is not there yet, and nobody wants, is known so long */
};

struct page_service_config {
    struct page_self self;
    struct page_shelf *shelf; /* borrowed */
    const char *host;         /* address to listen on */
    uint16_t port;            /* 0: any free one */
};

/* page_service_create - listen, and answer
 *
 * Errors  EINVAL: host; EIO: the port is taken, or a thread cannot start; ENOMEM. */
fathom_err page_service_create(struct page_service **out, const struct page_service_config *c,
                               fathom_diag *d);
void page_service_destroy(struct page_service *s); /* accepts NULL; ends all connections */

/* page_service_note_busy - the prompts that there are now take so long; told to who asks for a
 * record that is not there. When it is over without another note, the time since this one is told;
 * 0: nothing is under way. From any thread. */
void page_service_note_busy(struct page_service *s, uint64_t us);

/* page_service_port - that it listens on */
uint16_t page_service_port(const struct page_service *s);

#endif
