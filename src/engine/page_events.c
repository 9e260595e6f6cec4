/* page_events.c - feeds and their publisher */
#include "engine/page_events.h"

#include "base/assert.h"
#include "base/fail.h"
#include "base/mem.h"
#include "base/rng.h"

/* Pages that are not told of wait in the cache, so more places are of no use. */
enum { EVENTS_MAX = 16384 };

struct page_events {
    struct event_publisher *publisher;
    uint32_t n_event; /* of a feed */
    uint32_t n_lane;
    struct page_feed *feeds[PUBLISHER_LANES_MAX];
    uint64_t n_told; /* events that the publisher was woken for */
};

fathom_err page_events_open(struct page_events **out, const fathom_kv_events *c, uint32_t n_lane,
                            fathom_diag *d)
{
    const struct event_publisher_config config = {.endpoint = c->endpoint,
                                                  .replay_endpoint = c->replay_endpoint,
                                                  .topic = c->topic,
                                                  .n_kept = c->buffer_steps,
                                                  .hwm = c->hwm,
                                                  .n_lane = n_lane};
    *out = NULL;
    ASSERT(n_lane <= PUBLISHER_LANES_MAX && c->max_queue_size >= 1);
    struct page_events *e = mem_calloc(1, sizeof *e);
    if (!e) FAIL(d, FATHOM_ENOMEM, "no memory to publish events");
    e->n_lane = n_lane;
    e->n_event = c->max_queue_size < EVENTS_MAX ? c->max_queue_size : EVENTS_MAX;
    if (e->n_event < PAGE_FEED_MIN) e->n_event = PAGE_FEED_MIN;
    const fathom_err err = event_publisher_open(&e->publisher, &config, d);
    if (err) {
        page_events_close(e);
        return err;
    }
    *out = e;
    return FATHOM_OK;
}

fathom_err page_events_start(struct page_events *e, struct prefix_cache *const *caches,
                             uint32_t n_lane, uint32_t n_page, void (*wanted)(void *arg), void *arg,
                             fathom_diag *d)
{
    struct page_feed_config config = {
        .n_page = n_page, .n_event = e->n_event, .secret = {rng_entropy(), rng_entropy()}};
    ASSERT(n_lane == e->n_lane);
    for (uint32_t i = 0; i < n_lane; i++) {
        config.n_key_id = prefix_n_key_id(caches[i]);
        TRY(page_feed_create(&e->feeds[i], &config, d));
        prefix_attach_feed(caches[i], e->feeds[i]);
    }
    return event_publisher_start(e->publisher, e->feeds, wanted, arg, d);
}

bool page_events_tell(struct page_events *e, uint64_t salt)
{
    uint64_t n_put = 0;
    bool more = false;
    if (!e) return false;
    for (uint32_t i = 0; i < e->n_lane; i++) {
        more |= page_feed_tell(e->feeds[i], salt, PAGE_EVENTS_STEP);
        n_put += page_feed_n_put(e->feeds[i]);
    }
    if (n_put != e->n_told) event_publisher_wake(e->publisher);
    e->n_told = n_put;
    return more;
}

void page_events_fill_stats(const struct page_events *e, fathom_event_stats *out)
{
    struct event_publisher_stats sent;
    if (!e) return;
    event_publisher_get_stats(e->publisher, &sent);
    *out = (fathom_event_stats){.n_stored = sent.n_event[PAGE_STORED],
                                .n_removed = sent.n_event[PAGE_REMOVED],
                                .n_cleared = sent.n_event[PAGE_CLEARED],
                                .n_batch = sent.n_batch,
                                .n_replay = sent.n_replay};
    for (uint32_t i = 0; i < e->n_lane; i++) out->n_overflow += page_feed_n_overflow(e->feeds[i]);
}

void page_events_close(struct page_events *e)
{
    if (!e) return;
    event_publisher_close(e->publisher);
    for (uint32_t i = 0; i < e->n_lane; i++) page_feed_destroy(e->feeds[i]);
    mem_free(e);
}
