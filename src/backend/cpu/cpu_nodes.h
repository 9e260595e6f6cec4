/* cpu_nodes.h - the memory nodes that a rank's threads and memory are on */
#ifndef FATHOM_BACKEND_CPU_NODES_H
#define FATHOM_BACKEND_CPU_NODES_H

#include <stdbool.h>
#include <stddef.h>

#include "backend/backend.h"
#include "base/numa.h"
#include "base/thread.h"
#include "fathom/err.h"

struct cpu_nodes {
    struct numa_map map;     /* the machine's, */
    struct numa_share share; /* and those of this rank */
    unsigned n_thread;
    bool told_unplaced;
};

/* cpu_nodes_init - by the configuration's place among the ranks of this machine */
void cpu_nodes_init(struct cpu_nodes *n, const struct backend_config *c, unsigned n_thread);

/* cpu_nodes_pool - the rank's threads, each on its node; n outlives them. Errors as of
 * thread_pool_create. */
fathom_err cpu_nodes_pool(struct thread_pool **out, struct cpu_nodes *n, fathom_diag *d);

/* cpu_nodes_bind - the calling thread runs where the first of them does */
void cpu_nodes_bind(const struct cpu_nodes *n);

/* cpu_nodes_place - the rank's nodes give these pages, which nobody has touched; a system that does
 * not allow it is told of once */
void cpu_nodes_place(struct cpu_nodes *n, void *p, size_t bytes);

#endif
