/* transfer_bench.c - page records over loopback: GB/s for 1, 2 and 4 lanes, every record checked
 *
 *   build/release/bench/bench_transfer [PAGE_BYTES [SECONDS]]
 *
 * A row: lanes, pages, GB/s, and processor time of both sides together for each GB. The default
 * page is that of DeepSeek-V3.2 with an FP8 cache and its draft layer.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/direct_file.h"
#include "base/mem.h"
#include "comm/page_peers.h"
#include "comm/page_service.h"

enum { N_PAGE = 16, LANES_MAX = 4 };

struct bench {
    uint64_t page_bytes;
    uint64_t end_us;
    struct page_peers *peers;
    uint32_t place;
    struct tier_name names[N_PAGE];
};

struct lane {
    struct bench *b;
    unsigned worker;
    uint64_t n;
    pthread_t thread;
};

static void *read_pages(void *arg)
{
    struct lane *l = arg;
    struct page_source *s = page_peers_source(l->b->peers);
    uint64_t sum;
    void *page = mem_alloc_aligned(DIRECT_ALIGN, direct_round(l->b->page_bytes));
    while (page && clock_now_us() < l->b->end_us) {
        const struct tier_name *name = &l->b->names[l->n % N_PAGE];
        if (s->ops->read(s, l->worker, l->b->place, name, page, &sum, NULL) != TIER_GOOD) break;
        l->n++;
    }
    mem_free(page);
    return NULL;
}

static void run(struct bench *b, unsigned n_lane, uint64_t us)
{
    struct lane lanes[LANES_MAX] = {0};
    uint64_t n = 0;
    uint64_t start_us = clock_now_us();
    uint64_t cpu_us = clock_process_cpu_us();
    b->end_us = start_us + us;
    for (unsigned i = 0; i < n_lane; i++) {
        lanes[i].b = b;
        lanes[i].worker = i;
        if (pthread_create(&lanes[i].thread, NULL, read_pages, &lanes[i]) != 0) exit(1);
    }
    for (unsigned i = 0; i < n_lane; i++) {
        pthread_join(lanes[i].thread, NULL);
        n += lanes[i].n;
    }
    double s = (double)(clock_now_us() - start_us) / 1e6;
    double gb = (double)n * (double)b->page_bytes / 1e9;
    cpu_us = clock_process_cpu_us() - cpu_us;
    printf("%5u %7llu %7.2f %9.3f\n", n_lane, (unsigned long long)n, gb / s,
           gb > 0 ? (double)cpu_us / 1e6 / gb : 0);
}

int main(int argc, char **argv)
{
    struct bench b = {.page_bytes = argc > 1 ? strtoull(argv[1], NULL, 10) : 3126784};
    uint64_t us = (uint64_t)(1e6 * (argc > 2 ? strtod(argv[2], NULL) : 2));
    const struct page_self self = {.page_bytes = b.page_bytes, .id = "bench"};
    struct page_shelf *shelf;
    struct page_service *service;
    fathom_diag d = {{0}};
    unsigned char *pages = mem_alloc_aligned(DIRECT_ALIGN, N_PAGE * b.page_bytes);
    if (b.page_bytes == 0 || !pages || page_shelf_create(&shelf, N_PAGE) != FATHOM_OK) return 1;
    for (uint32_t i = 0; i < N_PAGE; i++) {
        unsigned char *page = pages + i * b.page_bytes;
        for (uint64_t k = 0; k < b.page_bytes; k++) page[k] = (unsigned char)(k * 31 + k / 977 + i);
        b.names[i] = (struct tier_name){.key = {i * 7, i}, .n_id = KV_PAGE_TOKENS};
        page_shelf_put(shelf, i, &b.names[i], page, hash_checksum(page, b.page_bytes));
    }
    const struct page_service_config sc = {.self = self, .shelf = shelf, .host = "127.0.0.1"};
    const struct page_peers_config pc = {.self = self, .n_lane = LANES_MAX};
    if (page_service_create(&service, &sc, &d) || page_peers_create(&b.peers, &pc, &d) ||
        page_peers_place(b.peers, "127.0.0.1", page_service_port(service), &b.place, &d)) {
        fprintf(stderr, "bench_transfer: %s\n", d.text);
        return 1;
    }
    printf("pages of %llu bytes over loopback\nlanes   pages    GB/s  cpu s/GB\n",
           (unsigned long long)b.page_bytes);
    for (unsigned n = 1; n <= LANES_MAX; n *= 2) run(&b, n, us);
    page_peers_destroy(b.peers);
    page_service_destroy(service);
    page_shelf_destroy(shelf);
    mem_free(pages);
    return 0;
}
