/* turn.h - lists of requests, and who comes before whom
 *
 * Requests are ordered by priority (lower first), then by turn, then by arrival. Turns are given
 * out among the tenants that requests belong to (callers, API keys): the n-th waiting request of
 * each tenant comes before the (n+1)-th of any. With one tenant the order is that of arrival.
 *
 * A tenant that has been silent gets no credit for it: its next turn is never before the latest
 * turn that was admitted. So a waiting request is overtaken only by requests with a lower priority
 * number and by requests of other tenants. Of each other tenant, at most one overtakes it for each
 * request of its own tenant that is ahead of it.
 */
#ifndef FATHOM_SCHED_TURN_H
#define FATHOM_SCHED_TURN_H

#include <stdbool.h>
#include <stdint.h>

#include "sched/request.h"

enum { TURN_TENANTS = 32 };

/* Zeroed: nobody has come yet. */
struct turns {
    uint64_t admitted;           /* the latest turn that was admitted */
    uint64_t next[TURN_TENANTS]; /* each tenant's next turn, if that is later than `admitted` */
};

/* turns_give - the request's turn; its tenant counts modulo TURN_TENANTS */
void turns_give(struct turns *t, struct request *r);

/* turns_note_admitted - the request runs now */
void turns_note_admitted(struct turns *t, const struct request *r);

/* request_is_before - a strict order of all requests that have arrived */
bool request_is_before(const struct request *a, const struct request *b);

/* A list of requests in this order, linked through prev and next; zeroed: empty. */
struct request_list {
    struct request *head;
    struct request *tail;
    uint32_t n;
};

/* request_list_insert - at its place in the order
 *
 * Needs  a request that is in no list.
 * Cost   O(requests that r comes before), O(1) at the end. */
void request_list_insert(struct request_list *l, struct request *r);

/* request_list_remove - O(1)
 *
 * Needs  a request of this list. */
void request_list_remove(struct request_list *l, struct request *r);

#endif
