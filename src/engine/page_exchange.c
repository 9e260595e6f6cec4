/* page_exchange.c - shelf, service and peers of an engine; who may have a request's pages */
#include "engine/page_exchange.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/fail.h"
#include "base/log.h"
#include "base/mem.h"
#include "comm/page_peers.h"
#include "comm/page_service.h"

enum { LANES_DEFAULT = 2, LEASE_DEFAULT_S = 30 };

struct page_exchange {
    struct page_self self;
    struct hash128 secret;
    char host[PEER_HOST_BYTES];
    bool with_next;
    uint64_t lease_us;
    unsigned n_lane;
    struct ucx *ucx; /* NULL: pages go by TCP */
    struct page_shelf *shelf;
    struct page_service *service; /* NULL: nothing is given */
    struct page_peers *peers;     /* NULL: nothing is taken */
    uint32_t n_peer;              /* places 0 .. n_peer - 1 are asked for every prompt */
    uint32_t n_lent_max;          /* pages */
    atomic_uint_fast64_t n_refused;
};

/* "host:port", "[::1]:port" */
static fathom_err add_peer(struct page_exchange *x, const char *address, fathom_diag *d)
{
    char host[PEER_HOST_BYTES];
    const char *colon = strrchr(address, ':');
    char *end = NULL;
    long port = colon ? strtol(colon + 1, &end, 10) : 0;
    size_t n = colon ? (size_t)(colon - address) : 0;
    bool is_bracketed = n > 2 && address[0] == '[' && address[n - 1] == ']';
    if (is_bracketed) address++, n -= 2;
    if (n == 0 || n >= sizeof host || *end != '\0' || port < 1 || port > UINT16_MAX) {
        FAIL(d, FATHOM_EINVAL, "--kv-peers: \"%.80s\" is no HOST:PORT", address);
    }
    memcpy(host, address, n);
    host[n] = '\0';
    uint32_t place;
    TRY(page_peers_place(x->peers, host, (uint16_t)port, &place, d));
    x->n_peer = place + 1 > x->n_peer ? place + 1 : x->n_peer;
    return FATHOM_OK;
}

static fathom_err open_ucx(struct page_exchange *x, fathom_transport transport, fathom_diag *d)
{
    fathom_diag why = {{0}};
    if (transport == FATHOM_TRANSPORT_TCP) return FATHOM_OK;
    fathom_err err = ucx_open(&x->ucx, &why);
    x->self.ucx = x->ucx;
    if (err && transport == FATHOM_TRANSPORT_UCX_IF_FOUND) {
        LOG_WARN("kv", "pages go by TCP: %s", why.text);
        return FATHOM_OK;
    }
    if (err) FAIL(d, err, "%s", why.text);
    return FATHOM_OK;
}

static fathom_err make(struct page_exchange *x, const struct exchange_config *c, fathom_diag *d)
{
    const fathom_transfer *t = c->transfer;
    const struct page_peers_config peers = {.self = x->self, .n_lane = x->n_lane};
    if (page_shelf_create(&x->shelf, c->n_ram_page) != FATHOM_OK) {
        FAIL(d, FATHOM_ENOMEM, "no memory for the records of %u pages", c->n_ram_page);
    }
    if (t->gives) {
        const struct page_service_config service = {
            .self = x->self, .shelf = x->shelf, .host = t->host, .port = t->port};
        TRY(page_service_create(&x->service, &service, d));
        LOG_INFO("kv", "pages: engine=%s listens on %s port %u%s%s", x->self.id, t->host,
                 page_service_port(x->service), t->has_secret ? "" : ", for this machine only",
                 x->ucx ? ", by UCX for those that have it" : "");
    }
    if (!t->takes && t->n_peer == 0) return FATHOM_OK;
    TRY(page_peers_create(&x->peers, &peers, d));
    for (uint32_t i = 0; i < t->n_peer; i++) TRY(add_peer(x, t->peers[i], d));
    page_peers_keep(x->peers);
    return FATHOM_OK;
}

fathom_err page_exchange_create(struct page_exchange **out, const struct exchange_config *c,
                                fathom_diag *d)
{
    const fathom_transfer *t = c->transfer;
    *out = NULL;
    struct page_exchange *x = mem_calloc(1, sizeof *x);
    if (!x) FAIL(d, FATHOM_ENOMEM, "no memory for the exchange of pages");
    ASSERT(t->n_lane <= PEERS_LANES_MAX && c->n_ram_page > 0);
    x->self =
        (struct page_self){.identity = c->identity,
                           .page_bytes = c->page_bytes,
                           .secret = {.is_set = t->has_secret, .key = {t->secret[0], t->secret[1]}},
                           .any_numerics = t->any_numerics};
    (void)snprintf(x->self.id, sizeof x->self.id, "%s", t->engine_id ? t->engine_id : "fathom");
    (void)snprintf(x->host, sizeof x->host, "%s", t->host ? t->host : "");
    x->secret = page_key_secret(&x->self.secret);
    x->with_next = c->with_next;
    x->n_lent_max = c->n_ram_page / EXCHANGE_SHARE;
    x->n_lane = t->n_lane ? t->n_lane : LANES_DEFAULT;
    x->lease_us = (uint64_t)(t->lease_s ? t->lease_s : LEASE_DEFAULT_S) * 1000000;
    if (t->any_numerics) {
        LOG_WARN("kv",
                 "pages of servers that compute other bits are taken: an answer may depend on "
                 "which server computed its prompt");
    }
    fathom_err err = open_ucx(x, t->transport, d);
    if (!err) err = make(x, c, d);
    if (err) {
        page_exchange_destroy(x);
        return err;
    }
    *out = x;
    return FATHOM_OK;
}

void page_exchange_end(struct page_exchange *x)
{
    if (!x) return;
    page_service_destroy(x->service);
    x->service = NULL;
}

void page_exchange_destroy(struct page_exchange *x)
{
    if (!x) return;
    page_exchange_end(x);
    page_peers_destroy(x->peers);
    ucx_close(x->ucx);
    page_shelf_destroy(x->shelf);
    mem_free(x);
}

const struct hash128 *page_exchange_secret(const struct page_exchange *x)
{
    return &x->secret;
}

struct page_shelf *page_exchange_shelf(const struct page_exchange *x)
{
    return x ? x->shelf : NULL;
}

struct page_source *page_exchange_source(struct page_exchange *x)
{
    return x && x->peers ? page_peers_source(x->peers) : NULL;
}

unsigned page_exchange_n_lane(const struct page_exchange *x)
{
    return x ? x->n_lane : 0;
}

void page_exchange_tell(const struct page_exchange *x, fathom_info *out)
{
    if (!x) return;
    out->pages.takes = x->peers != NULL;
    if (!x->service) return;
    out->pages.host = x->host;
    out->pages.port = page_service_port(x->service);
    out->pages.id = x->self.id;
}

uint64_t page_exchange_n_sent(const struct page_exchange *x)
{
    return x ? page_shelf_n_sent(x->shelf) : 0;
}

uint64_t page_exchange_n_released(const struct page_exchange *x)
{
    return x ? page_shelf_n_released(x->shelf) : 0;
}

void page_exchange_note_busy(struct page_exchange *x, uint64_t us)
{
    if (x && x->service) page_service_note_busy(x->service, us);
}

/* ---- requests ---- */

/* Whole pages of a prompt that a request may go on from. */
static uint32_t count_pages(const struct request *r)
{
    return (r->n_prompt - 1) / KV_PAGE_TOKENS;
}

/* The key of the n-th page, and of all before it.
 *
 *   keys  [n]; NULL: of no interest */
static struct hash128 chain_keys(const struct page_exchange *x, const struct request *r, uint32_t n,
                                 struct hash128 *keys)
{
    struct hash128 key = tier_key_first(&x->secret, r->cache_salt);
    ASSERT(n <= count_pages(r));
    for (uint32_t i = 0; i < n; i++) {
        const int32_t *ids = r->ids + (size_t)i * KV_PAGE_TOKENS;
        key = tier_key_next(&x->secret, &key, ids, KV_PAGE_TOKENS + x->with_next, 0);
        if (keys) keys[i] = key;
    }
    return key;
}

/* Two servers have the same key for what they were told to call it and the same prompt: nobody ends
 * another's request by its name alone. */
static void name_hand_over(const struct page_exchange *x, uint64_t name, struct request *r)
{
    const struct hash128 key = chain_keys(x, r, count_pages(r), NULL);
    const uint64_t parts[] = {key.lo, key.hi, name};
    ASSERT(name != 0 && r->state == REQUEST_NEW); /* one may lend and take at once */
    r->has_hand_over = true;
    r->hand_over = hash_keyed(&x->secret, parts, sizeof parts);
}

/* Asks the servers of the pool how much of the prompt they have; the one with most is it. */
static fathom_err ask_all(struct page_exchange *x, struct request *r)
{
    uint32_t n = count_pages(r);
    if (n > FRAME_KEYS_MAX) n = FRAME_KEYS_MAX;
    struct hash128 *keys = mem_alloc_array(n, sizeof *keys);
    if (!keys) return FATHOM_ENOMEM;
    (void)chain_keys(x, r, n, keys);
    for (uint32_t place = 0; place < x->n_peer; place++) {
        uint32_t n_found = page_peers_find(x->peers, place, keys, n);
        if (n_found < EXCHANGE_MIN_PAGES || n_found <= r->peer_end) continue;
        r->has_peer = true;
        r->peer = place;
        r->peer_end = n_found;
    }
    mem_free(keys);
    return FATHOM_OK;
}

uint64_t page_exchange_n_refused(const struct page_exchange *x)
{
    return x ? atomic_load(&x->n_refused) : 0;
}

/* Who has not come in half of a lease may never come: those pages are the first to go. */
static fathom_err lend(struct page_exchange *x, struct request *r, fathom_diag *d)
{
    uint32_t n_lent = page_shelf_n_lent(x->shelf, clock_now_us() + x->lease_us / 2);
    r->lend_us = x->lease_us;
    if (n_lent < x->n_lent_max) return FATHOM_OK;
    atomic_fetch_add(&x->n_refused, 1);
    FAIL(d, FATHOM_EBUSY,
         "%u pages of prompts wait for other servers to take them, and %u may. Try again later, or "
         "give this server more memory for them (--kv-offload-ram)",
         n_lent, x->n_lent_max);
}

/* Nothing else is wanted of it: its answer is not, but for its pages. */
static bool draws_one_token(const struct request *r)
{
    return r->max_token == r->n_prompt + 1 && r->n_to_score == 0;
}

bool page_exchange_is_unwanted(const struct page_exchange *x, const struct request *r)
{
    return x && r->lend_us && r->has_hand_over &&
           page_shelf_is_released(x->shelf, &r->hand_over, clock_now_us());
}

uint64_t page_exchange_n_left(const struct page_exchange *x)
{
    return x ? page_shelf_n_noted(x->shelf) : 0;
}

fathom_err page_exchange_choose(struct page_exchange *x, const fathom_request *r,
                                struct request *out, fathom_diag *d)
{
    if (r->pages.lent && !(x && x->service)) {
        FAIL(d, FATHOM_EINVAL,
             "kv_transfer_params: this server gives no pages to others: start it "
             "with --kv-transfer-config and kv_role kv_producer or kv_both");
    }
    if (r->pages.host && !(x && x->peers)) {
        FAIL(d, FATHOM_EINVAL,
             "kv_transfer_params: this server takes no pages of others: start it "
             "with --kv-transfer-config and kv_role kv_consumer or kv_both");
    }
    if (!x) return FATHOM_OK;
    if (r->pages.lent) TRY(lend(x, out, d));
    if (r->pages.lent && r->pages.hand_over && draws_one_token(out))
        name_hand_over(x, r->pages.hand_over, out);
    if (r->pages.host) {
        if (r->pages.hand_over) name_hand_over(x, r->pages.hand_over, out);
        TRY(page_peers_place(x->peers, r->pages.host, r->pages.port, &out->peer, d));
        out->has_peer = out->peer_lends = true;
        out->peer_end = count_pages(out);
        out->needs_peer = r->pages.needed;
        return FATHOM_OK;
    }
    return x->n_peer > 0 && count_pages(out) >= EXCHANGE_MIN_PAGES ? ask_all(x, out) : FATHOM_OK;
}
