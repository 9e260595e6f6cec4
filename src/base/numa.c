/* numa.c - memory nodes */
#define _GNU_SOURCE
#include "base/numa.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/limits.h"

/* Of the system's interface (uapi/linux/mempolicy.h). */
enum { POLICY_PREFERRED = 1, POLICY_INTERLEAVE = 3 };

enum { PAGE_BYTES = 4096, SYSTEM_NODES_MAX = 1024 };

static bool read_line(char *line, size_t line_bytes, const char *root, const char *name)
{
    char path[LIMIT_PATH_BYTES];
    int n = snprintf(path, sizeof path, "%s/%s", root, name);
    FILE *f = n > 0 && (size_t)n < sizeof path ? fopen(path, "re") : NULL;
    if (!f) return false;
    bool ok = fgets(line, (int)line_bytes, f) != NULL;
    (void)fclose(f);
    return ok;
}

/* "0-3,8" into bits; false: it is no such list, or names what is past the last bit. */
static bool parse_list(const char *text, uint64_t *bits, uint32_t n_bit)
{
    memset(bits, 0, n_bit / 8);
    while (*text && *text != '\n') {
        char *end;
        unsigned long lo = strtoul(text, &end, 10), hi = lo;
        if (end == text) return false;
        if (*end == '-') {
            text = end + 1;
            hi = strtoul(text, &end, 10);
            if (end == text) return false;
        }
        if (hi < lo || hi >= n_bit) return false;
        for (unsigned long i = lo; i <= hi; i++) bits[i / 64] |= (uint64_t)1 << i % 64;
        text = *end == ',' ? end + 1 : end;
        if (*end && *end != ',' && *end != '\n') return false;
    }
    return true;
}

static void read_allowed(uint64_t allowed[NUMA_CPUS_MAX / 64])
{
    cpu_set_t set;
    CPU_ZERO(&set);
    memset(allowed, 0, NUMA_CPUS_MAX / 8);
    const bool ok = sched_getaffinity(0, sizeof set, &set) == 0;
    for (int i = 0; i < NUMA_CPUS_MAX && i < CPU_SETSIZE; i++) {
        if (!ok || CPU_ISSET(i, &set)) allowed[i / 64] |= (uint64_t)1 << i % 64;
    }
}

/* The node as the map's next one, unless the process may use no processor of it. */
static bool add_node(struct numa_map *m, const char *root, uint32_t id,
                     const uint64_t allowed[NUMA_CPUS_MAX / 64])
{
    char name[64], line[4096];
    uint64_t *cpus = m->nodes[m->n_node].cpus, any = 0;
    (void)snprintf(name, sizeof name, "node%u/cpulist", id);
    if (!read_line(line, sizeof line, root, name)) return false;
    if (!parse_list(line, cpus, NUMA_CPUS_MAX)) return false;
    for (int i = 0; i < NUMA_CPUS_MAX / 64; i++) any |= cpus[i] &= allowed[i];
    if (any == 0) return true; /* memory alone, or another container's */
    m->nodes[m->n_node++].id = id;
    return true;
}

static bool read_nodes(struct numa_map *m, const char *root,
                       const uint64_t allowed[NUMA_CPUS_MAX / 64])
{
    char line[4096];
    uint64_t online[SYSTEM_NODES_MAX / 64];
    if (!read_line(line, sizeof line, root, "online")) return false;
    if (!parse_list(line, online, SYSTEM_NODES_MAX)) return false;
    for (uint32_t id = 0; id < SYSTEM_NODES_MAX; id++) {
        if (!(online[id / 64] >> id % 64 & 1)) continue;
        if (m->n_node == NUMA_NODES_MAX || !add_node(m, root, id, allowed)) return false;
    }
    return m->n_node > 0;
}

void numa_read(struct numa_map *out, const char *root)
{
    uint64_t allowed[NUMA_CPUS_MAX / 64];
    read_allowed(allowed);
    memset(out, 0, sizeof *out);
    if (read_nodes(out, root ? root : "/sys/devices/system/node", allowed)) return;
    memset(out, 0, sizeof *out);
    out->n_node = 1;
    memcpy(out->nodes[0].cpus, allowed, sizeof allowed);
}

struct numa_share numa_share_of(const struct numa_map *m, uint32_t rank, uint32_t n_rank)
{
    ASSERT(m->n_node >= 1 && rank < n_rank);
    if (m->n_node == 1) return (struct numa_share){0, 0};
    const uint32_t first = (uint32_t)((uint64_t)rank * m->n_node / n_rank);
    const uint32_t end = (uint32_t)((uint64_t)(rank + 1) * m->n_node / n_rank);
    return (struct numa_share){first, end > first ? end - first : 1};
}

struct numa_share numa_share_worker(struct numa_share s, uint32_t worker, uint32_t n_worker)
{
    ASSERT(worker < n_worker);
    if (s.n == 0) return s;
    return (struct numa_share){s.first + (uint32_t)((uint64_t)worker * s.n / n_worker), 1};
}

bool numa_bind_thread(const struct numa_map *m, struct numa_share s)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    if (s.n == 0) return true;
    ASSERT(s.first + s.n <= m->n_node);
    for (uint32_t k = s.first; k < s.first + s.n; k++) {
        for (int i = 0; i < NUMA_CPUS_MAX && i < CPU_SETSIZE; i++) {
            if (m->nodes[k].cpus[i / 64] >> i % 64 & 1) CPU_SET(i, &set);
        }
    }
    return sched_setaffinity(0, sizeof set, &set) == 0;
}

bool numa_place(const struct numa_map *m, struct numa_share s, void *p, size_t bytes)
{
    unsigned long mask[SYSTEM_NODES_MAX / (8 * sizeof(unsigned long))] = {0};
    const size_t word = 8 * sizeof *mask;
    const uintptr_t first = ((uintptr_t)p + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
    const uintptr_t end = ((uintptr_t)p + bytes) / PAGE_BYTES * PAGE_BYTES;
    if (s.n == 0 || end <= first) return true;
    ASSERT(s.first + s.n <= m->n_node);
    for (uint32_t k = s.first; k < s.first + s.n; k++) {
        mask[m->nodes[k].id / word] |= 1ul << m->nodes[k].id % word;
    }
    return syscall(SYS_mbind, first, end - first, s.n == 1 ? POLICY_PREFERRED : POLICY_INTERLEAVE,
                   mask, (unsigned long)SYSTEM_NODES_MAX, 0u) == 0;
}

const char *numa_text(char out[NUMA_TEXT_BYTES], const struct numa_map *m, uint32_t n_rank)
{
    const uint32_t n = m->n_node;
    if (n == 1) {
        (void)snprintf(out, NUMA_TEXT_BYTES, "one memory node");
    } else if (n_rank < n) {
        (void)snprintf(out, NUMA_TEXT_BYTES,
                       "%u memory nodes: weights and cache in turn from %s; -tp %u would keep each "
                       "rank's on its own",
                       n, n_rank == 1 ? "all" : "each rank's", n);
    } else {
        (void)snprintf(out, NUMA_TEXT_BYTES,
                       "%u memory nodes: threads, weights and cache of a rank on one, %u rank%s on "
                       "each",
                       n, (n_rank + n - 1) / n, n_rank > n ? "s at most" : "");
    }
    return out;
}
