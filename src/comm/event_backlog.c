/* event_backlog.c - a ring of batches, each in memory of its own
 *
 * Invariants: batches[i % n_batch] has memory for each i in [first, end), and for no other;
 * end - first <= n_batch; n_used is what they have together, and at most n_byte. */
#include "comm/event_backlog.h"

#include <string.h>

#include "base/assert.h"
#include "base/fail.h"
#include "base/mem.h"

struct batch {
    void *bytes;
    size_t n;
};

struct event_backlog {
    uint32_t n_batch;
    size_t n_byte, n_used;
    uint64_t first, end;
    struct batch *batches; /* [n_batch] */
};

fathom_err event_backlog_create(struct event_backlog **out, uint32_t n_batch, size_t n_byte,
                                fathom_diag *d)
{
    *out = NULL;
    ASSERT(n_batch > 0);
    struct event_backlog *b = mem_calloc(1, sizeof *b);
    if (!b) FAIL(d, FATHOM_ENOMEM, "no memory for sent events");
    b->n_batch = n_batch;
    b->n_byte = n_byte;
    b->batches = mem_calloc(n_batch, sizeof *b->batches);
    if (!b->batches) {
        event_backlog_destroy(b);
        FAIL(d, FATHOM_ENOMEM, "no memory for %u batches of sent events", n_batch);
    }
    *out = b;
    return FATHOM_OK;
}

static void drop_first(struct event_backlog *b)
{
    ASSERT(b->batches && b->first < b->end);
    struct batch *oldest = &b->batches[b->first % b->n_batch];
    ASSERT(b->n_used >= oldest->n);
    b->n_used -= oldest->n;
    mem_free(oldest->bytes);
    *oldest = (struct batch){0};
    b->first++;
}

void event_backlog_destroy(struct event_backlog *b)
{
    if (!b) return;
    while (b->first < b->end) drop_first(b);
    mem_free(b->batches);
    mem_free(b);
}

void event_backlog_add(struct event_backlog *b, const void *bytes, size_t n)
{
    void *copy = n <= b->n_byte ? mem_alloc(n) : NULL;
    while (b->first < b->end &&
           (!copy || b->end - b->first == b->n_batch || n > b->n_byte - b->n_used))
        drop_first(b);
    if (copy) {
        memcpy(copy, bytes, n);
        b->batches[b->end % b->n_batch] = (struct batch){copy, n};
        b->n_used += n;
        b->end++;
    } else {
        b->first = ++b->end;
    }
}

uint64_t event_backlog_first(const struct event_backlog *b)
{
    return b->first;
}

uint64_t event_backlog_end(const struct event_backlog *b)
{
    return b->end;
}

const void *event_backlog_get(const struct event_backlog *b, uint64_t number, size_t *n)
{
    ASSERT(number >= b->first && number < b->end);
    *n = b->batches[number % b->n_batch].n;
    return b->batches[number % b->n_batch].bytes;
}
