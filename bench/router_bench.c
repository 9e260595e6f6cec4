/* bench_router - what a router does for a request before it leaves: look at its body, choose
 *
 *   bench=router body_bytes=.. servers=16 look_us=.. keys_us=.. choose_us=.. gb_s=.. floor_us=..
 *
 * look is the pass over the body, keys the hashes of its blocks, choose pool_take and pool_give
 * with every prompt known; floor is one read of the body by hash_checksum, at memory's speed.
 * Processor time of this thread, the best of many runs. */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/assert.h"
#include "base/buf.h"
#include "base/hash.h"
#include "router/pool.h"
#include "router/request_view.h"

enum { RUNS = 2000, N_SERVER = 16 };

static double now_us(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static void make_body(struct buf *b, size_t n)
{
    (void)buf_add_str(b, "{\"model\":\"m\",\"stream\":true,\"messages\":[");
    for (unsigned i = 0; b->len < n; i++) {
        (void)buf_printf(b,
                         "{\"role\":\"user\",\"content\":\"Question %u of a chat, which asks what "
                         "there is to be asked about the \\\"weather\\\" in the mountains.\"},",
                         i);
    }
    (void)buf_add_str(b, "{\"role\":\"user\",\"content\":\"x\"}],\"max_tokens\":100}");
}

static void least(double *best, double us)
{
    if (*best == 0 || us < *best) *best = us;
}

static void run(struct pool *p, size_t n)
{
    static uint64_t keys[POOL_KEYS_MAX];
    struct buf b = {0};
    struct request_view v;
    struct pool_lease l;
    double look = 0, key = 0, choose = 0, floor = 0;
    volatile uint64_t sum = 0;
    make_body(&b, n);
    for (int i = 0; i < RUNS; i++) {
        double t0 = now_us();
        sum += hash_checksum(buf_str(&b), b.len);
        double t1 = now_us();
        request_view_read(&v, buf_str(&b), b.len);
        double t2 = now_us();
        size_t n_key = request_view_keys(&v, keys, POOL_KEYS_MAX);
        double t3 = now_us();
        const struct pool_request q = {
            .keys = keys, .n_key = n_key, .n_token = request_view_tokens(&v)};
        ASSERT(v.is_object && n_key > 0);
        if (pool_take(p, &q, 0, &l)) pool_give(p, &l, POOL_SERVED, 0);
        double t4 = now_us();
        least(&floor, t1 - t0);
        least(&look, t2 - t1);
        least(&key, t3 - t2);
        least(&choose, t4 - t3);
    }
    printf("bench=router body_bytes=%zu servers=%d look_us=%.1f keys_us=%.1f choose_us=%.1f "
           "gb_s=%.2f floor_us=%.1f\n",
           b.len, N_SERVER, look, key, choose, (double)b.len / look / 1e3, floor);
    buf_free(&b);
}

int main(void)
{
    struct pool *p;
    char url[32];
    if (pool_create(&p, CHOICE_CACHE_AWARE, 1 << 18) != FATHOM_OK) return 1;
    for (int i = 0; i < N_SERVER; i++) {
        (void)snprintf(url, sizeof url, "127.0.0.1:%d", 8000 + i);
        if (pool_add(p, url, NULL) != FATHOM_OK) return 1;
    }
    for (size_t n = 4096; n <= 1 << 20; n *= 4) run(p, n);
    pool_destroy(p);
    return 0;
}
