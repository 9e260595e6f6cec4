/* numa.h - memory nodes: which processors are near which memory, threads and pages put there
 *
 * What a machine with one node has is placed already: nothing here does anything then.
 */
#ifndef FATHOM_BASE_NUMA_H
#define FATHOM_BASE_NUMA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { NUMA_NODES_MAX = 64, NUMA_CPUS_MAX = 1024, NUMA_TEXT_BYTES = 160 };

/* The nodes that this process may compute on. */
struct numa_map {
    uint32_t n_node; /* at least 1 */
    struct {
        uint32_t id;                       /* the system's */
        uint64_t cpus[NUMA_CPUS_MAX / 64]; /* of those that the process may use; not empty */
    } nodes[NUMA_NODES_MAX];
};

/* numa_read - nodes with processors that the calling thread may use, by ascending id
 *
 *   root  NULL: /sys/devices/system/node
 * Edge    what cannot be read is one node with every processor. */
void numa_read(struct numa_map *out, const char *root);

/* Some of the nodes, one after the other. */
struct numa_share {
    uint32_t first, n; /* n 0: nothing is to be placed */
};

/* numa_share_of - the nodes of rank `rank` of `n_rank` of this machine: as many for each, or one
 * for several ranks where there are fewer nodes */
struct numa_share numa_share_of(const struct numa_map *m, uint32_t rank, uint32_t n_rank);

/* numa_share_worker - of a share the node that thread `worker` of `n_worker` computes on */
struct numa_share numa_share_worker(struct numa_share s, uint32_t worker, uint32_t n_worker);

/* numa_bind_thread - the calling thread runs on these nodes' processors from now on; false: the
 * system does not let it */
bool numa_bind_thread(const struct numa_map *m, struct numa_share s);

/* numa_place - pages of [p, p + bytes) that are not there yet come from the node of a share, or in
 * turn from its nodes; false: the system does not let it, and who touches them first decides */
bool numa_place(const struct numa_map *m, struct numa_share s, void *p, size_t bytes);

/* numa_text - how n_rank ranks lie on the nodes: "2 memory nodes: ..." */
const char *numa_text(char out[NUMA_TEXT_BYTES], const struct numa_map *m, uint32_t n_rank);

#endif
