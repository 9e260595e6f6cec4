/* bench_page_feed [PAGES] - what events of the prefix cache cost the engine's thread
 *
 * One line, ns a page by the clock, medians of N_ROUND: to publish a page, to put its event into
 * the ring, and to take it out, which puts another one there. Pages are chains of CHAIN. Taking the
 * events from the ring is another thread's work and not counted.
 *
 *   bench=page_feed pages=.. publish_ns=.. tell_ns=.. take_out_ns=.. */
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/mem.h"
#include "kv/page_feed.h"

enum { PAGES = 4096, PAGES_MAX = 1 << 20, CHAIN = 32, N_ROUND = 9 };
enum { PUBLISH, TELL, TAKE_OUT, N_PART };

static void die(const char *text)
{
    fprintf(stderr, "bench_page_feed: %s\n", text);
    exit(1);
}

static void empty_ring(struct page_feed *f)
{
    const struct page_event *e;
    for (uint32_t n; (n = page_feed_peek(f, &e)) > 0;) (void)page_feed_drop(f, n);
}

/* Parents first, and taken out after all that come behind them. */
static void run(struct page_feed *f, const int32_t *ids, uint32_t n_page, uint64_t ns[N_PART])
{
    uint64_t at[N_PART + 1];
    at[PUBLISH] = clock_now_ns();
    for (uint32_t i = 0; i < n_page; i++) {
        const uint32_t parent = i % CHAIN ? i - 1 : UINT32_MAX;
        page_feed_publish(f, i, parent, 0, 0, ids + (size_t)i * KV_PAGE_TOKENS);
    }
    at[TELL] = clock_now_ns();
    while (page_feed_tell(f, 0, n_page + 1)) {
    }
    at[TAKE_OUT] = clock_now_ns();
    empty_ring(f);
    const uint64_t begin = clock_now_ns();
    for (uint32_t i = n_page; i-- > 0;) page_feed_take_out(f, i);
    ns[TAKE_OUT] = clock_now_ns() - begin;
    for (int i = 0; i < TAKE_OUT; i++) ns[i] = at[i + 1] - at[i];
    empty_ring(f);
}

static int compare(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv)
{
    const unsigned long n_page = argc > 1 ? strtoul(argv[1], NULL, 10) : PAGES;
    if (n_page < 1 || n_page > PAGES_MAX) die("PAGES from 1 to 1048576");
    const struct page_feed_config c = {.n_page = (uint32_t)n_page,
                                       .n_key_id = KV_PAGE_TOKENS,
                                       .n_event = 2 * (uint32_t)n_page + PAGE_FEED_MIN};
    struct page_feed *f;
    fathom_diag d;
    uint64_t ns[N_PART][N_ROUND], round[N_PART];
    int32_t *ids = mem_calloc(n_page * KV_PAGE_TOKENS, sizeof *ids);
    if (!ids) die("no memory");
    if (page_feed_create(&f, &c, &d) != FATHOM_OK) die(d.text);
    for (size_t i = 0; i < n_page * KV_PAGE_TOKENS; i++) ids[i] = (int32_t)(i * 2654435761u >> 13);
    for (int i = 0; i < N_ROUND; i++) {
        run(f, ids, (uint32_t)n_page, round);
        for (int k = 0; k < N_PART; k++) ns[k][i] = round[k];
    }
    for (int k = 0; k < N_PART; k++) qsort(ns[k], N_ROUND, sizeof ns[k][0], compare);
    printf("bench=page_feed pages=%lu publish_ns=%.1f tell_ns=%.1f take_out_ns=%.1f\n", n_page,
           (double)ns[PUBLISH][N_ROUND / 2] / (double)n_page,
           (double)ns[TELL][N_ROUND / 2] / (double)n_page,
           (double)ns[TAKE_OUT][N_ROUND / 2] / (double)n_page);
    page_feed_destroy(f);
    mem_free(ids);
    return 0;
}
