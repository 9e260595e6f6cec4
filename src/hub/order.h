/* order.h - what is to be pulled, from where, into which cache */
#ifndef FATHOM_HUB_ORDER_H
#define FATHOM_HUB_ORDER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { HUB_PARALLEL_MAX = 64, HUB_ID_BYTES = 72 };

/* What is about to be fetched. */
struct hub_summary {
    const char *commit;
    size_t n_file;     /* of the snapshot */
    size_t n_left_out; /* weights in the forms of other programs */
    uint64_t bytes;
    uint64_t there_bytes; /* of them, in the cache already */
};

struct hub_order {
    const char *repository; /* org/name */
    const char *revision;   /* branch, tag or commit; NULL: the hub's main branch */
    const char *endpoint;   /* "https://..." without a slash at the end; NULL: the hub's own */
    const char *token;      /* sent to the endpoint alone; NULL: none */
    const char *cache;      /* folder of repositories, made if it is not there */
    bool modelscope;        /* the endpoint speaks ModelScope's interface */
    unsigned n_parallel;    /* files at once, 1 to HUB_PARALLEL_MAX */
    void (*on_summary)(void *arg, const struct hub_summary *s);
    void (*on_progress)(void *arg, uint64_t done_bytes, uint64_t total_bytes);
    void *arg; /* of both, which may be NULL */
};

#endif
