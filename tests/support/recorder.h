/* recorder.h - recorded steps on a backend that has none
 *
 * Puts itself between a backend and its caller: between graph_begin and graph_end operators are
 * noted instead of run, with the values of their arguments; graph_launch runs them. Like a
 * device's recording it keeps pointers and counts, so what varies between two launches must lie
 * behind the pointers. */
#ifndef FATHOM_TESTS_SUPPORT_RECORDER_H
#define FATHOM_TESTS_SUPPORT_RECORDER_H

#include <stdint.h>

#include "backend/backend.h"

struct recorder {
    struct backend_ops ops; /* first member: what the backend's table became */
    const struct backend_ops *real;
    struct graph *recording; /* NULL: operators run */
    uint32_t n_recorded;     /* graphs made */
    uint32_t n_destroyed;
    uint32_t n_launch;
    uint32_t n_eager;    /* embed operators that ran without a graph */
    uint32_t fail_after; /* graph_end calls that succeed before one fails; 0: none fails */
};

/* recorder_install - b's operators go through r, which lives as long as b */
void recorder_install(struct recorder *r, struct backend *b);

#endif
