/* transfer.c - see transfer.h */
#include "bench/transfer.h"

#include <pthread.h>
#include <string.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/direct_file.h"
#include "base/fail.h"
#include "base/mem.h"
#include "comm/page_peers.h"
#include "comm/page_service.h"

enum { N_RECORD = 16 }; /* more than a processor's cache holds of V3.2's */

struct transfer_giver {
    struct page_shelf *shelf;
    struct page_service *service;
    unsigned char *pages;
    struct tier_name names[N_RECORD];
};

static struct tier_name name_of(uint64_t i)
{
    return (struct tier_name){.key = {i % N_RECORD * 7, i % N_RECORD}, .n_id = KV_PAGE_TOKENS};
}

static struct page_self self_of(const struct transfer_options *o)
{
    return (struct page_self){
        .page_bytes = o->page_bytes, .secret = o->secret, .id = "bench-transfer"};
}

fathom_err transfer_giver_create(struct transfer_giver **out, const struct transfer_options *o,
                                 fathom_diag *d)
{
    *out = NULL;
    ASSERT(o->page_bytes > 0);
    struct transfer_giver *g = mem_calloc(1, sizeof *g);
    if (!g) return FATHOM_ENOMEM;
    fathom_err err = FATHOM_ENOMEM;
    g->pages = mem_alloc_aligned(DIRECT_ALIGN, N_RECORD * o->page_bytes);
    if (!g->pages || page_shelf_create(&g->shelf, N_RECORD) != FATHOM_OK) goto fail;
    for (uint32_t i = 0; i < N_RECORD; i++) {
        unsigned char *page = g->pages + i * o->page_bytes;
        for (uint64_t k = 0; k < o->page_bytes; k++)
            page[k] = (unsigned char)(k * 31 + k / 977 + i);
        g->names[i] = name_of(i);
        page_shelf_put(g->shelf, i, &g->names[i], page, hash_checksum(page, o->page_bytes));
    }
    const struct page_service_config c = {
        .self = self_of(o), .shelf = g->shelf, .host = o->host, .port = o->port};
    TRY_GOTO(page_service_create(&g->service, &c, d), fail);
    *out = g;
    return FATHOM_OK;
fail:
    transfer_giver_destroy(g);
    return err;
}

void transfer_giver_destroy(struct transfer_giver *g)
{
    if (!g) return;
    page_service_destroy(g->service);
    page_shelf_destroy(g->shelf);
    mem_free(g->pages);
    mem_free(g);
}

uint16_t transfer_giver_port(const struct transfer_giver *g)
{
    return page_service_port(g->service);
}

/* ---- who takes ---- */

struct taker {
    struct page_source *source;
    uint32_t place;
    unsigned worker;
    uint64_t page_bytes, end_us;
    pthread_t thread;
    uint64_t n;
    enum tier_verdict verdict; /* of the last record */
    fathom_diag d;
};

static void *take_records(void *arg)
{
    struct taker *t = arg;
    uint64_t sum;
    void *page = mem_alloc_aligned(DIRECT_ALIGN, direct_round(t->page_bytes));
    while (page && t->verdict == TIER_GOOD && clock_now_us() < t->end_us) {
        const struct tier_name name = name_of(t->n);
        t->verdict = t->source->ops->read(t->source, t->worker, t->place, &name, page, &sum, &t->d);
        t->n += t->verdict == TIER_GOOD;
    }
    if (!page) t->verdict = TIER_BAD_IO;
    mem_free(page);
    return NULL;
}

static fathom_err judge(const struct taker *t, const struct transfer_options *o, fathom_diag *d)
{
    if (t->verdict == TIER_GOOD) return FATHOM_OK;
    if (t->verdict == TIER_NOT_YET) {
        FAIL(d, FATHOM_EIO, "%s:%u has no records of this measurement", o->host, o->port);
    }
    FAIL(d, FATHOM_EIO, "%s:%u: %s", o->host, o->port,
         t->d.text[0] ? t->d.text : tier_verdict_name(t->verdict));
}

fathom_err transfer_take(struct transfer_result *out, const struct transfer_options *o,
                         unsigned n_lane, uint64_t us, fathom_diag *d)
{
    ASSERT(n_lane >= 1 && n_lane <= TRANSFER_LANES_MAX);
    static_assert((int)TRANSFER_LANES_MAX <= (int)PEERS_LANES_MAX, "each has a connection");
    const struct page_peers_config c = {.self = self_of(o), .n_lane = n_lane};
    struct taker takers[TRANSFER_LANES_MAX] = {0};
    struct page_peers *peers = NULL;
    unsigned n_started = 0;
    uint32_t place;
    fathom_err err = page_peers_create(&peers, &c, d);
    if (!err) err = page_peers_place(peers, o->host, o->port, &place, d);
    memset(out, 0, sizeof *out);
    const uint64_t start_us = clock_now_us(), start_cpu_us = clock_process_cpu_us();
    for (; !err && n_started < n_lane; n_started++) {
        takers[n_started] = (struct taker){.source = page_peers_source(peers),
                                           .place = place,
                                           .worker = n_started,
                                           .page_bytes = o->page_bytes,
                                           .end_us = start_us + us};
        struct taker *t = &takers[n_started];
        if (pthread_create(&t->thread, NULL, take_records, t) == 0) continue;
        err = diag_fail(d, FATHOM_EIO, "a thread cannot be started");
        break;
    }
    for (unsigned i = 0; i < n_started; i++) {
        pthread_join(takers[i].thread, NULL);
        out->n_record += takers[i].n;
        if (!err) err = judge(&takers[i], o, d);
    }
    const double gb = (double)out->n_record * (double)o->page_bytes / 1e9;
    out->seconds = (double)(clock_now_us() - start_us) / 1e6;
    out->gb_s = gb / out->seconds;
    if (gb > 0) out->cpu_s_per_gb = (double)(clock_process_cpu_us() - start_cpu_us) / 1e6 / gb;
    page_peers_destroy(peers);
    return err;
}
