/* turn.h - who comes before whom
 *
 * Requests are ordered by priority (lower first), then by turn, then by arrival. Turns make
 * a fair queue of the tenants (callers, keys): the n-th waiting request of each tenant comes before
 * the (n+1)-th of any. With one tenant the order is that of arrival.
 *
 * A tenant that has been silent gets no credit for it: its next turn is never before the last one
 * that was admitted. So a request that waits is overtaken by at most one request of each other
 * tenant for each of its own tenant ahead of it, and by those of a lower priority number.
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
    uint64_t next[TURN_TENANTS]; /* of each tenant, unless `admitted` is later */
};

/* turns_give - the request's turn; its tenant counts modulo TURN_TENANTS */
void turns_give(struct turns *t, struct request *r);

/* turns_note_admitted - the request runs now */
void turns_note_admitted(struct turns *t, const struct request *r);

/* request_is_before - a strict order of all requests that have arrived */
bool request_is_before(const struct request *a, const struct request *b);

/* request_list_insert - into a list that is in this order. Cost: O(requests that r comes before),
 * O(1) at the end. */
void request_list_insert(struct request_list *l, struct request *r);

#endif
