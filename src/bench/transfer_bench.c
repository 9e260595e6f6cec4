/* transfer_bench.c - a service of made-up records, and threads that read them as a server would */
#include "bench/transfer_bench.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/direct_file.h"
#include "base/fail.h"
#include "base/mem.h"
#include "comm/page_peers.h"
#include "comm/page_service.h"

enum { N_PAGE = 16 };

/* What is given. */
struct giver {
    unsigned char *pages; /* [N_PAGE][page_bytes] */
    struct tier_name names[N_PAGE];
    struct page_shelf *shelf;
    struct page_service *service;
};

struct transfer_bench {
    struct transfer_bench_options o;
    struct ucx *ucx;
    struct giver giver;
    struct page_peers *peers;
    uint32_t place;
    uint64_t end_us;
};

struct lane {
    struct transfer_bench *b;
    unsigned worker;
    uint64_t n;
    fathom_err err;
    fathom_diag why;
    pthread_t thread;
};

static struct tier_name name_of(uint32_t i)
{
    return (struct tier_name){.key = {i * 7, i}, .n_id = KV_PAGE_TOKENS};
}

static fathom_err make_self(struct page_self *out, struct ucx **ucx,
                            const struct transfer_bench_options *o, fathom_diag *d)
{
    *out = (struct page_self){.page_bytes = o->page_bytes, .secret = o->secret, .id = "bench"};
    if (o->ucx) TRY(ucx_open(ucx, d));
    out->ucx = *ucx;
    return FATHOM_OK;
}

static fathom_err open_giver(struct giver *g, const struct page_self *self, const char *host,
                             uint16_t port, fathom_diag *d)
{
    const uint64_t n = self->page_bytes;
    g->pages = mem_alloc(N_PAGE * n);
    if (!g->pages || page_shelf_create(&g->shelf, N_PAGE) != FATHOM_OK) {
        FAIL(d, FATHOM_ENOMEM, "no memory for %d records of %llu bytes", N_PAGE,
             (unsigned long long)n);
    }
    for (uint32_t i = 0; i < N_PAGE; i++) {
        g->names[i] = name_of(i);
        unsigned char *page = g->pages + i * n;
        for (uint64_t k = 0; k < n; k++) page[k] = (unsigned char)(k * 31 + k / 977 + i);
        page_shelf_put(g->shelf, i, &g->names[i], page, hash_checksum(page, n));
    }
    const struct page_service_config c = {
        .self = *self, .shelf = g->shelf, .host = host, .port = port};
    return page_service_create(&g->service, &c, d);
}

static void close_giver(struct giver *g)
{
    page_service_destroy(g->service);
    page_shelf_destroy(g->shelf);
    mem_free(g->pages);
    *g = (struct giver){0};
}

static fathom_err open_all(struct transfer_bench *b, fathom_diag *d)
{
    struct page_self self;
    const char *host = b->o.host;
    uint16_t port = b->o.port;
    TRY(make_self(&self, &b->ucx, &b->o, d));
    if (!host) {
        host = "127.0.0.1";
        TRY(open_giver(&b->giver, &self, host, 0, d));
        port = page_service_port(b->giver.service);
    }
    const struct page_peers_config c = {.self = self, .n_lane = TRANSFER_LANES_MAX};
    static_assert((int)TRANSFER_LANES_MAX <= (int)PEERS_LANES_MAX, "a connection for each");
    TRY(page_peers_create(&b->peers, &c, d));
    return page_peers_place(b->peers, host, port, &b->place, d);
}

fathom_err transfer_bench_open(struct transfer_bench **out, const struct transfer_bench_options *o,
                               fathom_diag *d)
{
    *out = NULL;
    struct transfer_bench *b = mem_calloc(1, sizeof *b);
    if (!b) FAIL(d, FATHOM_ENOMEM, "no memory for the bench");
    b->o = *o;
    fathom_err err = open_all(b, d);
    if (err) {
        transfer_bench_close(b);
        return err;
    }
    *out = b;
    return FATHOM_OK;
}

void transfer_bench_close(struct transfer_bench *b)
{
    if (!b) return;
    page_peers_destroy(b->peers);
    close_giver(&b->giver);
    ucx_close(b->ucx);
    mem_free(b);
}

static fathom_err read_one(struct lane *l, void *page)
{
    const struct transfer_bench *b = l->b;
    struct page_source *s = page_peers_source(b->peers);
    const struct tier_name name = name_of((uint32_t)(l->n % N_PAGE));
    uint64_t sum;
    enum tier_verdict v = s->ops->read(s, l->worker, b->place, &name, page, &sum, &l->why);
    if (v == TIER_GOOD) return FATHOM_OK;
    if (l->why.text[0]) return FATHOM_EIO;
    FAIL(&l->why, FATHOM_EIO, "a record was not there, or not what it should be: %s",
         tier_verdict_name(v));
}

static void *lane_main(void *arg)
{
    struct lane *l = arg;
    void *page = mem_alloc_aligned(DIRECT_ALIGN, direct_round(l->b->o.page_bytes));
    if (!page) l->err = FATHOM_ENOMEM;
    while (!l->err && clock_now_us() < l->b->end_us) {
        l->err = read_one(l, page);
        if (!l->err) l->n++;
    }
    mem_free(page);
    return NULL;
}

fathom_err transfer_bench_run(struct transfer_bench *b, unsigned n_lane,
                              struct transfer_bench_row *out, fathom_diag *d)
{
    struct lane lanes[TRANSFER_LANES_MAX] = {0};
    unsigned n_started = 0;
    fathom_err err = FATHOM_OK;
    ASSERT(n_lane >= 1 && n_lane <= TRANSFER_LANES_MAX);
    *out = (struct transfer_bench_row){.n_lane = n_lane};
    uint64_t start_us = clock_now_us();
    uint64_t cpu_us = clock_process_cpu_us();
    b->end_us = start_us + (uint64_t)(b->o.seconds * 1e6);
    for (unsigned i = 0; i < n_lane; i++, n_started++) {
        lanes[i].b = b;
        lanes[i].worker = i;
        if (pthread_create(&lanes[i].thread, NULL, lane_main, &lanes[i]) != 0) break;
    }
    if (n_started < n_lane) err = diag_fail(d, FATHOM_EIO, "thread %u of the bench", n_started);
    for (unsigned i = 0; i < n_started; i++) {
        pthread_join(lanes[i].thread, NULL);
        out->n_page += lanes[i].n;
        if (lanes[i].err && !err) err = diag_fail(d, lanes[i].err, "%s", lanes[i].why.text);
    }
    double s = (double)(clock_now_us() - start_us) / 1e6;
    double gb = (double)out->n_page * (double)b->o.page_bytes / 1e9;
    out->gb_s = gb / s;
    if (gb > 0) out->cpu_s_gb = (double)(clock_process_cpu_us() - cpu_us) / 1e6 / gb;
    return err;
}

fathom_err transfer_bench_listen(const struct transfer_bench_options *o,
                                 void (*told)(const char *host, uint16_t port), fathom_diag *d)
{
    struct giver giver = {0};
    struct page_self self;
    struct ucx *ucx = NULL;
    fathom_err err = make_self(&self, &ucx, o, d);
    if (!err) err = open_giver(&giver, &self, o->host, o->port, d);
    if (!err) {
        told(o->host, page_service_port(giver.service));
        for (;;) (void)pause(); /* until a signal ends the process */
    }
    close_giver(&giver);
    ucx_close(ucx);
    return err;
}
