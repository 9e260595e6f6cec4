/* pool_bench.c - loops of the thread pool alone: what one costs, and what becomes of a step whose
 * helpers lose their processors
 *
 *   bench_pool [N_THREAD] [SECONDS]
 *
 * A step is 60 loops of 16 equal items, as a decode step has them. In the cases "held up" every
 * worker but the caller sleeps 30 ms after each 150 items, in the middle of one: so a machine with
 * ten threads for each processor treats it, without the need for such a machine. Prints the best
 * and the mean time of a step, and the longest.
 */
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/thread.h"

enum { LOOPS = 60, ITEMS = 16, HELD_UP_EVERY = 150, HELD_UP_US = 30000 };

struct work {
    unsigned rounds;
    bool held_up;
};

static void do_item(void *arg, size_t i, size_t n, unsigned worker)
{
    static _Thread_local unsigned n_done;
    const struct work *w = arg;
    uint64_t x = i + 1;
    (void)n;
    for (unsigned k = 0; k < w->rounds; k++) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
    }
    __asm__ volatile("" ::"r"(x)); /* it is wanted */
    if (w->held_up && worker > 0 && ++n_done % HELD_UP_EVERY == 0) clock_sleep_us(HELD_UP_US);
}

static void time_steps(const char *name, unsigned n_thread, double seconds, struct work w)
{
    struct thread_pool *p;
    fathom_diag d = {{0}};
    if (thread_pool_create(&p, n_thread, &d)) {
        fprintf(stderr, "bench_pool: %s\n", d.text);
        exit(1);
    }
    uint64_t start = clock_now_ns();
    uint64_t best = UINT64_MAX;
    uint64_t longest = 0;
    uint64_t n_step = 0;
    uint64_t now = start;
    for (; now - start < (uint64_t)(seconds * 1e9); n_step++) {
        uint64_t step = now;
        for (int k = 0; k < LOOPS; k++) thread_pool_compute(p, ITEMS, do_item, &w);
        now = clock_now_ns();
        if (now - step < best) best = now - step;
        if (now - step > longest) longest = now - step;
    }
    thread_pool_destroy(p);
    printf("%-20s %2u threads  best %9.1f us  mean %9.1f us  longest %9.1f us\n", name, n_thread,
           (double)best / 1e3, (double)(now - start) / 1e3 / (double)n_step, (double)longest / 1e3);
}

int main(int argc, char **argv)
{
    unsigned n_thread = argc > 1 ? (unsigned)strtoul(argv[1], NULL, 10) : 2;
    double seconds = argc > 2 ? strtod(argv[2], NULL) : 1;
    static const struct {
        const char *name;
        struct work work;
    } cases[] = {
        {"items of nothing", {0, false}},
        {"items of 1 us", {400, false}},
        {"items of 20 us", {8000, false}},
        {"20 us, held up", {8000, true}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        time_steps(cases[i].name, 1, seconds, cases[i].work);
        if (n_thread > 1) time_steps(cases[i].name, n_thread, seconds, cases[i].work);
    }
    return 0;
}
