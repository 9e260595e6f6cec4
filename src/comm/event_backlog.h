/* event_backlog.h - the last batches of events that were sent, for whoever has missed some
 *
 * Batches have numbers, one after the other. Those that are kept are the last ones, without a gap.
 * One thread at a time.
 */
#ifndef FATHOM_COMM_EVENT_BACKLOG_H
#define FATHOM_COMM_EVENT_BACKLOG_H

#include <stddef.h>
#include <stdint.h>

#include "fathom/err.h"

struct event_backlog;

/* event_backlog_create - nothing is kept
 *
 *   n_batch  that are kept at most
 *   n_byte   that they have together at most
 * Errors  ENOMEM */
fathom_err event_backlog_create(struct event_backlog **out, uint32_t n_batch, size_t n_byte,
                                fathom_diag *d);
void event_backlog_destroy(struct event_backlog *b); /* accepts NULL */

/* event_backlog_add - batch event_backlog_end is kept, and older ones go where they have to
 * Edge  one that has no room by itself, or for which there is no memory: none is kept. */
void event_backlog_add(struct event_backlog *b, const void *bytes, size_t n);

/* event_backlog_first - the number of the oldest batch that is kept; event_backlog_end - of the one
 * that is added next. They are equal when none is kept. */
uint64_t event_backlog_first(const struct event_backlog *b);
uint64_t event_backlog_end(const struct event_backlog *b);

/* event_backlog_get - a batch that is kept, valid until the next call of event_backlog_add */
const void *event_backlog_get(const struct event_backlog *b, uint64_t number, size_t *n);

#endif
