/* cpu_nodes.c - the memory nodes that a rank's threads and memory are on */
#include "backend/cpu/cpu_nodes.h"

#include "base/assert.h"
#include "base/log.h"

void cpu_nodes_init(struct cpu_nodes *n, const struct backend_config *c, unsigned n_thread)
{
    const uint32_t n_rank = c->n_local ? c->n_local : 1;
    ASSERT(n_thread >= 1 && (c->i_local < n_rank));
    *n = (struct cpu_nodes){.n_thread = n_thread};
    numa_read(&n->map, NULL);
    n->share = numa_share_of(&n->map, c->i_local, n_rank);
}

static void start_worker(void *arg, unsigned worker)
{
    const struct cpu_nodes *n = arg;
    (void)numa_bind_thread(&n->map, numa_share_worker(n->share, worker, n->n_thread));
}

fathom_err cpu_nodes_pool(struct thread_pool **out, struct cpu_nodes *n, fathom_diag *d)
{
    return thread_pool_create_on(out, n->n_thread, start_worker, n, d);
}

void cpu_nodes_bind(const struct cpu_nodes *n)
{
    (void)numa_bind_thread(&n->map, numa_share_worker(n->share, 0, n->n_thread));
}

void cpu_nodes_place(struct cpu_nodes *n, void *p, size_t bytes)
{
    if (numa_place(&n->map, n->share, p, bytes) || n->told_unplaced) return;
    n->told_unplaced = true;
    LOG_WARN("cpu", "the system lets no memory be placed on nodes (mbind): the thread that touches "
                    "a page first decides; in a container the capability SYS_NICE is needed");
}
