/* doctor_machine.c - processor, memory, limits */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "backend/backend.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/numa.h"
#include "base/os.h"
#include "base/thread.h"
#include "cli/doctor.h"

/* ---- processor ----------------------------------------------------------------------------- */

static void read_model_name(char *out, size_t bytes)
{
    char line[256];
    FILE *f = fopen("/proc/cpuinfo", "re");
    (void)snprintf(out, bytes, "unknown processor");
    while (f && fgets(line, sizeof line, f)) {
        const char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) != 0 || !colon) continue;
        (void)snprintf(out, bytes, "%.*s", (int)strcspn(colon + 2, "\n"), colon + 2);
        break;
    }
    if (f) (void)fclose(f);
}

void doctor_look_at_processor(struct doctor *d, const struct settings *s)
{
    char name[128], governor[64], placed[NUMA_TEXT_BYTES];
    struct numa_map nodes;
    const char *isa = backend_cpu_isa();
    long n_all = sysconf(_SC_NPROCESSORS_ONLN);
    unsigned n = os_n_cpu();
    read_model_name(name, sizeof name);
    doctor_find(d, FINDING_OK, "processor", "", "%s; the CPU backend computes with %s", name, isa);
    if (strcmp(isa, "portable") == 0) {
        doctor_find(d, FINDING_WARN, "processor",
                    "use a processor with AVX-512 (bf16, vbmi), or AVX2 and FMA",
                    "there is neither AVX-512 with bf16 nor AVX2: the CPU backend will be slow");
    }
    if (n_all > 0 && (unsigned)n_all > n) {
        doctor_find(d, FINDING_NOTE, "processor",
                    "give the process more processors (taskset, cgroup, container limits)",
                    "%u of %ld processors may be used", n, n_all);
    }
    if (s->threads > (int64_t)n) {
        doctor_find(d, FINDING_WARN, "processor", "leave --threads out",
                    "--threads %lld is more than the %u processors", (long long)s->threads, n);
    }
    if (doctor_read_line("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", governor,
                         sizeof governor) &&
        strcmp(governor, "performance") != 0) {
        doctor_find(d, FINDING_WARN, "processor", "cpupower frequency-set -g performance",
                    "the clock is governed by \"%s\"", governor);
    }
    numa_read(&nodes, NULL);
    const int64_t n_shared = s->tensor_parallel_size * s->pipeline_parallel_size;
    const int64_t n_lane = s->data_parallel_size > 1 ? s->data_parallel_size : 1;
    const int64_t n_rank = s->layout && s->ranks > 0 ? s->ranks : n_shared * n_lane;
    doctor_find(d, FINDING_OK, "numa", "", "%s", numa_text(placed, &nodes, (uint32_t)n_rank));
}

/* ---- memory -------------------------------------------------------------------------------- */

enum { PART_BYTES = 64 << 20, ROUNDS = 4 };

/* One buffer in parts, each read by one thread. */
struct reading {
    uint64_t *data;
    size_t n_part;
    uint64_t sums[LIMIT_THREADS];
};

static void touch_part(void *arg, size_t part, size_t n_part, unsigned worker)
{
    struct reading *r = arg;
    (void)n_part, (void)worker;
    memset((char *)r->data + part * PART_BYTES, (int)part + 1, PART_BYTES);
}

static void sum_part(void *arg, size_t part, size_t n_part, unsigned worker)
{
    struct reading *r = arg;
    const uint64_t *p = r->data + part * (PART_BYTES / sizeof(uint64_t));
    uint64_t sums[8] = {0};
    (void)n_part, (void)worker;
    for (size_t i = 0; i < PART_BYTES / sizeof(uint64_t); i += 8) {
        for (int k = 0; k < 8; k++) sums[k] += p[i + (size_t)k];
    }
    r->sums[part] = sums[0] + sums[1] + sums[2] + sums[3] + sums[4] + sums[5] + sums[6] + sums[7];
}

/* Bytes a second that all threads together read; 0: there is no memory or thread for it. */
static uint64_t read_rate(uint64_t available)
{
    struct reading r = {.n_part = os_n_cpu()};
    struct thread_pool *pool = NULL;
    uint64_t best_us = UINT64_MAX;
    if (r.n_part > LIMIT_THREADS) r.n_part = LIMIT_THREADS;
    while (r.n_part > 1 && r.n_part * PART_BYTES > available / 4) r.n_part--;
    r.data = mem_alloc_pages(r.n_part * PART_BYTES);
    if (!r.data || thread_pool_create(&pool, (unsigned)r.n_part, NULL) != FATHOM_OK) {
        mem_free_pages(r.data);
        return 0;
    }
    thread_pool_run(pool, r.n_part, touch_part, &r);
    for (int i = 0; i < ROUNDS; i++) {
        uint64_t start_us = clock_now_us();
        thread_pool_run(pool, r.n_part, sum_part, &r);
        uint64_t us = clock_now_us() - start_us;
        if (us && us < best_us) best_us = us;
    }
    thread_pool_destroy(pool);
    mem_free_pages(r.data);
    return best_us == UINT64_MAX ? 0 : r.n_part * PART_BYTES * 1000000ull / best_us;
}

/* The word in brackets of "always [madvise] never". */
static bool read_choice(const char *path, char *out, size_t bytes)
{
    char line[128];
    if (!doctor_read_line(path, line, sizeof line)) return false;
    const char *open = strchr(line, '[');
    const char *close = open ? strchr(open, ']') : NULL;
    if (!close) return false;
    (void)snprintf(out, bytes, "%.*s", (int)(close - open - 1), open + 1);
    return true;
}

void doctor_look_at_memory(struct doctor *d)
{
    char a[SIZE_TEXT_BYTES], b[SIZE_TEXT_BYTES], c[SIZE_TEXT_BYTES], huge[32];
    uint64_t total, available;
    os_memory_bytes(&total, &available);
    uint64_t rate = read_rate(available);
    doctor_find(d, FINDING_OK, "memory", "", "%s of %s free, read at %s/s by all threads",
                size_text(a, available), size_text(b, total), size_text(c, rate));
    if (!read_choice("/sys/kernel/mm/transparent_hugepage/enabled", huge, sizeof huge)) return;
    if (strcmp(huge, "never") == 0) {
        doctor_find(d, FINDING_WARN, "memory",
                    "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
                    "transparent huge pages are off: weights on the CPU cost more page faults");
    } else {
        doctor_find(d, FINDING_OK, "memory", "", "transparent huge pages: %s", huge);
    }
}

/* ---- limits -------------------------------------------------------------------------------- */

static void limit_text(char out[32], rlim_t value)
{
    if (value == RLIM_INFINITY) {
        (void)snprintf(out, 32, "unlimited");
    } else {
        (void)snprintf(out, 32, "%llu", (unsigned long long)value);
    }
}

void doctor_look_at_limits(struct doctor *d, const struct settings *s)
{
    enum { RESERVE = 320 }; /* files beside the connections */
    struct rlimit files, locked, core;
    char soft[32], hard[32], text[32];
    if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
        rlim_t need = (rlim_t)s->max_connections + RESERVE;
        bool enough = files.rlim_max == RLIM_INFINITY || files.rlim_max >= need;
        limit_text(soft, files.rlim_cur);
        limit_text(hard, files.rlim_max);
        doctor_find(d, enough ? FINDING_OK : FINDING_WARN, "limits",
                    enough ? "" : "raise it (ulimit -n, LimitNOFILE=), or give --max-connections",
                    "open files: %s, may be raised to %s; %lld connections need %llu", soft, hard,
                    (long long)s->max_connections, (unsigned long long)need);
    }
    if (getrlimit(RLIMIT_MEMLOCK, &locked) == 0) {
        bool small = locked.rlim_max != RLIM_INFINITY && locked.rlim_max < (64ull << 20);
        limit_text(text, locked.rlim_max);
        doctor_find(d, small ? FINDING_NOTE : FINDING_OK, "limits",
                    small ? "ulimit -l unlimited, LimitMEMLOCK=infinity or --ulimit memlock=-1: "
                            "RDMA needs it"
                          : "",
                    "locked memory: %s bytes", text);
    }
    if (!s->allow_core_dumps) {
        doctor_find(d, FINDING_OK, "limits", "",
                    "core dumps: off, since they would hold prompts and keys (--allow-core-dumps)");
    } else if (getrlimit(RLIMIT_CORE, &core) == 0) {
        doctor_find(d, core.rlim_cur ? FINDING_OK : FINDING_NOTE, "limits",
                    core.rlim_cur ? "" : "ulimit -c unlimited, if a crash should leave one",
                    "core dumps: %s", core.rlim_cur ? "on" : "off");
    }
}
