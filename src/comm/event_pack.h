/* event_pack.h - events of a prefix cache as vLLM writes them: MessagePack
 *
 * A batch is [time, events, rank]. An event is an array of its name and its values, the older of
 * the two forms that vLLM has had, and the one that every reader of either takes.
 *
 *   ["BlockStored", hashes, parent or nil, token ids of all, 64, nil, "GPU", nil]
 *   ["BlockRemoved", hashes, "GPU"]
 *   ["AllBlocksCleared"]
 *
 * Source  msgpack.org, specification; vLLM, vllm/distributed/kv_events.py */
#ifndef FATHOM_COMM_EVENT_PACK_H
#define FATHOM_COMM_EVENT_PACK_H

#include "base/buf.h"
#include "kv/page_feed.h"

/* Bytes of n events in a batch are n of these at most. */
enum { EVENT_PACK_BYTES = KV_PAGE_TOKENS * 5 + 96 };

/* event_pack - a batch of n events, n > 0, appended
 *
 * Pages that were stored one after the other, each the parent of the next, become one event; so do
 * pages that were removed one after the other.
 *
 *   unix_s  when
 *   rank    whose cache it is
 * Errors  ENOMEM, ELIMIT */
fathom_err event_pack(struct buf *out, double unix_s, const struct page_event *events, uint32_t n,
                      uint32_t rank);

#endif
