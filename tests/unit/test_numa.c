/* test_numa.c - memory nodes of made-up machines, and threads that are put on this one's
 * processors */
#define _GNU_SOURCE
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/limits.h"
#include "base/mem.h"
#include "base/new_file.h"
#include "base/numa.h"
#include "base/os.h"
#include "support/safetensors_write.h"

struct tree {
    char dir[LIMIT_PATH_BYTES];
};

static void put(const struct tree *t, const char *name, const char *text)
{
    char path[LIMIT_PATH_BYTES + 64];
    fathom_diag d;
    (void)snprintf(path, sizeof path, "%s/%s", t->dir, name);
    char *slash = strrchr(path, '/');
    *slash = '\0';
    assert_int_equal(os_make_dir(path, &d), FATHOM_OK);
    *slash = '/';
    assert_int_equal(new_file_save(path, text, strlen(text), &d), FATHOM_OK);
}

/* The processors that this process may use, and how many. */
static int allowed(int out[CPU_SETSIZE])
{
    cpu_set_t set;
    int n = 0;
    assert_int_equal(sched_getaffinity(0, sizeof set, &set), 0);
    for (int i = 0; i < CPU_SETSIZE; i++) {
        if (CPU_ISSET(i, &set)) out[n++] = i;
    }
    return n;
}

static bool has_cpu(const struct numa_map *m, uint32_t node, int cpu)
{
    return m->nodes[node].cpus[cpu / 64] >> cpu % 64 & 1;
}

static void nodes_are_read_as_the_system_tells_them(void **state)
{
    (void)state;
    struct tree t;
    struct numa_map m;
    int cpus[CPU_SETSIZE];
    char line[64];
    const int n = allowed(cpus);
    temp_dir_create(t.dir);
    (void)snprintf(line, sizeof line, "%d\n", cpus[0]);
    put(&t, "online", "0,2-4\n");
    put(&t, "node0/cpulist", line);
    put(&t, "node2/cpulist", "\n"); /* memory alone */
    (void)snprintf(line, sizeof line, "%d-%d\n", cpus[n - 1], cpus[n - 1]);
    put(&t, "node3/cpulist", line);
    put(&t, "node4/cpulist", "1020-1023\n"); /* not this process's */
    numa_read(&m, t.dir);
    assert_int_equal(m.n_node, 2);
    assert_int_equal(m.nodes[0].id, 0);
    assert_int_equal(m.nodes[1].id, 3);
    assert_true(has_cpu(&m, 0, cpus[0]) && has_cpu(&m, 1, cpus[n - 1]));
    if (n > 1) assert_false(has_cpu(&m, 0, cpus[n - 1]));
    temp_dir_remove(t.dir);
}

static void what_cannot_be_read_is_one_node(void **state)
{
    (void)state;
    static const char *const lists[][2] = {{"0-1\n", "x\n"},      {"0-1\n", "3-2\n"},
                                           {"0-1\n", "0-9999\n"}, {"0-1\n", "0;1\n"},
                                           {"5-\n", "0\n"},       {"0-99999\n", "0\n"}};
    int cpus[CPU_SETSIZE];
    const int n = allowed(cpus);
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        struct tree t;
        struct numa_map m;
        temp_dir_create(t.dir);
        put(&t, "online", lists[i][0]);
        put(&t, "node0/cpulist", "0\n");
        put(&t, "node1/cpulist", lists[i][1]);
        numa_read(&m, t.dir);
        assert_int_equal(m.n_node, 1);
        for (int k = 0; k < n; k++) assert_true(has_cpu(&m, 0, cpus[k]));
        temp_dir_remove(t.dir);
        numa_read(&m, t.dir); /* there is no such folder */
        assert_int_equal(m.n_node, 1);
    }
}

static void check_share(uint32_t n_node, uint32_t n_rank, const uint32_t first[],
                        const uint32_t n[])
{
    static struct numa_map m;
    m.n_node = n_node;
    for (uint32_t i = 0; i < n_rank; i++) {
        const struct numa_share s = numa_share_of(&m, i, n_rank);
        assert_int_equal(s.first, first[i]);
        assert_int_equal(s.n, n[i]);
    }
}

static void ranks_share_the_nodes(void **state)
{
    (void)state;
    check_share(1, 2, (uint32_t[]){0, 0}, (uint32_t[]){0, 0});
    check_share(2, 1, (uint32_t[]){0}, (uint32_t[]){2});
    check_share(2, 2, (uint32_t[]){0, 1}, (uint32_t[]){1, 1});
    check_share(2, 4, (uint32_t[]){0, 0, 1, 1}, (uint32_t[]){1, 1, 1, 1});
    check_share(8, 2, (uint32_t[]){0, 4}, (uint32_t[]){4, 4});
    check_share(3, 2, (uint32_t[]){0, 1}, (uint32_t[]){1, 2});
    const struct numa_share all = {2, 2};
    for (uint32_t i = 0; i < 6; i++) {
        const struct numa_share s = numa_share_worker(all, i, 6);
        assert_int_equal(s.first, i < 3 ? 2 : 3);
        assert_int_equal(s.n, 1);
    }
    assert_int_equal(numa_share_worker((struct numa_share){0, 0}, 1, 2).n, 0);
}

static void a_thread_runs_where_it_is_put(void **state)
{
    (void)state;
    int cpus[CPU_SETSIZE], now[CPU_SETSIZE];
    struct numa_map m = {.n_node = 2};
    cpu_set_t before;
    const int n = allowed(cpus);
    assert_int_equal(sched_getaffinity(0, sizeof before, &before), 0);
    m.nodes[0].cpus[cpus[0] / 64] = (uint64_t)1 << cpus[0] % 64;
    m.nodes[1].cpus[cpus[n - 1] / 64] = (uint64_t)1 << cpus[n - 1] % 64;
    assert_true(numa_bind_thread(&m, (struct numa_share){0, 0}));
    assert_int_equal(allowed(now), n); /* nothing was to be placed */
    assert_true(numa_bind_thread(&m, (struct numa_share){1, 1}));
    assert_int_equal(allowed(now), 1);
    assert_int_equal(now[0], cpus[n - 1]);
    assert_true(numa_bind_thread(&m, (struct numa_share){0, 2}));
    assert_int_equal(allowed(now), n > 1 ? 2 : 1);
    assert_int_equal(sched_setaffinity(0, sizeof before, &before), 0);
}

/* This machine's first node is there; the system may forbid mbind, which is then said. */
static void pages_come_from_their_node(void **state)
{
    (void)state;
    enum { BYTES = 1 << 20, QUERY = 1 | 2 /* MPOL_F_NODE | MPOL_F_ADDR */ };
    struct numa_map m, unknown = {.n_node = 1};
    numa_read(&m, NULL);
    assert_true(m.n_node >= 1);
    char *p = mem_alloc_pages(BYTES);
    assert_non_null(p);
    unknown.nodes[0].id = 1000;
    assert_false(numa_place(&unknown, (struct numa_share){0, 1}, p, BYTES));
    assert_true(numa_place(&m, (struct numa_share){0, 0}, p, BYTES));
    assert_true(numa_place(&m, (struct numa_share){0, 1}, p, 100)); /* no whole page */
    if (numa_place(&m, (struct numa_share){0, 1}, p, BYTES)) {
        int node = -1;
        memset(p, 1, BYTES);
        assert_int_equal(syscall(SYS_get_mempolicy, &node, NULL, 0ul, p + BYTES / 2, QUERY), 0);
        assert_int_equal(node, m.nodes[0].id);
    } else {
        print_message("the system does not let pages be placed: not looked at\n");
    }
    mem_free_pages(p);
}

static void the_text_says_what_is_where(void **state)
{
    (void)state;
    static struct numa_map m;
    char text[NUMA_TEXT_BYTES];
    m.n_node = 1;
    assert_string_equal(numa_text(text, &m, 4), "one memory node");
    m.n_node = 2;
    assert_string_equal(numa_text(text, &m, 1),
                        "2 memory nodes: weights and cache in turn from all; -tp 2 would keep each "
                        "rank's on its own");
    assert_string_equal(
        numa_text(text, &m, 2),
        "2 memory nodes: threads, weights and cache of a rank on one, 1 rank on each");
    assert_string_equal(
        numa_text(text, &m, 4),
        "2 memory nodes: threads, weights and cache of a rank on one, 2 ranks at most on each");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nodes_are_read_as_the_system_tells_them),
        cmocka_unit_test(what_cannot_be_read_is_one_node),
        cmocka_unit_test(ranks_share_the_nodes),
        cmocka_unit_test(a_thread_runs_where_it_is_put),
        cmocka_unit_test(pages_come_from_their_node),
        cmocka_unit_test(the_text_says_what_is_where),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
