/* bench_digest DIR [THREADS] - how fast the digest of a checkpoint's weights is
 *
 * Twice, so that the second reads from the system's page cache. One line each,
 *
 *   bench=digest shards=.. bytes=.. threads=.. seconds=.. gb_s=.. */
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "checkpoint/weights_digest.h"

static void run(const char *dir, unsigned n_thread)
{
    struct checkpoint *c = NULL;
    struct weights_digest *w = NULL;
    struct weights_digest_result r;
    fathom_diag d = {{0}};
    const struct weights_digest_config config = {.n_thread = n_thread, .dir = -1};
    fathom_err err = checkpoint_open(&c, dir, &d);
    uint64_t start_us = clock_now_us();
    if (!err) err = weights_digest_begin(&w, c, &config, &d);
    if (err) {
        fprintf(stderr, "bench_digest: %s\n", d.text);
        exit(1);
    }
    weights_digest_end(w, &r);
    double seconds = (double)(clock_now_us() - start_us) * 1e-6;
    printf("bench=digest shards=%u bytes=%llu threads=%u seconds=%.2f gb_s=%.2f\n", r.n_shard,
           (unsigned long long)r.n_bytes, n_thread, seconds, (double)r.n_bytes * 1e-9 / seconds);
    checkpoint_close(c);
}

int main(int argc, char **argv)
{
    unsigned n_thread = argc > 2 ? (unsigned)strtoul(argv[2], NULL, 10) : 1;
    if (argc < 2 || n_thread < 1) {
        fprintf(stderr, "usage: bench_digest DIR [THREADS]\n");
        return 2;
    }
    for (int i = 0; i < 2; i++) run(argv[1], n_thread);
    return 0;
}
