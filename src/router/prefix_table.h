/* prefix_table.h - which server was sent which beginning of a prompt
 *
 * A table of block keys (request_view.h), each with the servers that have been sent it. It is
 * bounded: the key that was used longest ago goes first. It only guides a choice, so a key that two
 * texts share, or one whose pages its server has dropped, costs time and nothing else.
 *
 * Not for several threads at once.
 */
#ifndef FATHOM_ROUTER_PREFIX_TABLE_H
#define FATHOM_ROUTER_PREFIX_TABLE_H

#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "fathom/err.h"

enum { PREFIX_SERVERS_MAX = 64 };

struct prefix_table;

/* prefix_table_create - room for n_entry keys, a power of two; prefix_table_destroy accepts NULL
 * Errors  ENOMEM. */
fathom_err prefix_table_create(struct prefix_table **out, uint32_t n_entry);
void prefix_table_destroy(struct prefix_table *t);

/* prefix_table_find - how many of the first keys each server has been sent
 *
 *   depth  [PREFIX_SERVERS_MAX] written */
void prefix_table_find(struct prefix_table *t, const uint64_t *keys, size_t n, uint32_t *depth);

/* prefix_table_note - this server is sent these */
void prefix_table_note(struct prefix_table *t, const uint64_t *keys, size_t n, uint32_t server);

/* prefix_table_forget - the server has nothing any more */
void prefix_table_forget(struct prefix_table *t, uint32_t server);

/* prefix_table_n - keys there are; prefix_table_check - its invariants */
uint32_t prefix_table_n(const struct prefix_table *t);
void prefix_table_check(const struct prefix_table *t);

#endif
