/* test_launcher.c - hosts as launchers tell of them, and the flags that they stand in for */
#include "cli/launcher.h"

#include <stdio.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/mem.h"
#include "cli/options.h"

enum { VARIABLES_MAX = 16, ARGUMENTS_MAX = 24 };

static void the_first_host_of_a_list_is_found(void **state)
{
    (void)state;
    static const struct {
        const char *list, *first; /* NULL: none */
    } lists[] = {
        {"node1", "node1"},
        {"node1,node2", "node1"},
        {"node[1-4]", "node1"},
        {"node[003-010,12],gpu1", "node003"},
        {"node[7]", "node7"},
        {"node[07,09]", "node07"},
        {"rack[1-2]n[03-04]", "rack1n03"},
        {"a[1-2]-ib,b", "a1-ib"},
        {"h-1.example.org,h-2", "h-1.example.org"},
        {"", NULL},
        {",a", NULL},
        {"a[", NULL},
        {"a[1", NULL},
        {"a[]", NULL},
        {"a[x-2]", NULL},
        {"a[1x]", NULL},
        {"a]", NULL},
        {"a b", NULL},
        {"a[1-2", NULL},
    };
    for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++) {
        char out[LAUNCHER_HOST_BYTES];
        bool is = launcher_first_host(out, lists[i].list);
        if (is != (lists[i].first != NULL)) fail_msg("\"%s\"", lists[i].list);
        if (is) assert_string_equal(out, lists[i].first);
    }
    char out[LAUNCHER_HOST_BYTES], longest[2 * LAUNCHER_HOST_BYTES];
    memset(longest, 'a', sizeof longest);
    longest[LAUNCHER_HOST_BYTES - 1] = '\0';
    assert_true(launcher_first_host(out, longest));
    longest[LAUNCHER_HOST_BYTES - 1] = 'a';
    longest[LAUNCHER_HOST_BYTES] = '\0';
    assert_false(launcher_first_host(out, longest));
    memcpy(longest + LAUNCHER_HOST_BYTES - 3, "[1234]", sizeof "[1234]");
    assert_false(launcher_first_host(out, longest));
}

/* What the flags come to. */
struct result {
    struct settings s;
    struct buf notes;
    fathom_diag d;
    fathom_err err;
};

static void split(char *text, char *out[], size_t n_most)
{
    size_t n = 0;
    for (char *p = text; *p;) {
        assert_true(n + 1 < n_most);
        out[n++] = p;
        p += strcspn(p, " ");
        if (*p) *p++ = '\0';
    }
    out[n] = NULL;
}

/* As the program does it: what the launcher tells, then the command line. */
static void start(struct result *r, enum command c, const char *environment, const char *line)
{
    static char words[1024], flags[1024];
    static struct launcher l;
    char *variables[VARIABLES_MAX], *argv[ARGUMENTS_MAX];
    struct option_variable given[LAUNCHER_FLAGS];
    size_t n = 0;
    int argc = 0;
    *r = (struct result){0};
    (void)snprintf(words, sizeof words, "%s", environment);
    (void)snprintf(flags, sizeof flags, "%s", line);
    split(words, variables, VARIABLES_MAX);
    split(flags, argv, ARGUMENTS_MAX);
    while (argv[argc]) argc++;
    launcher_read(&l, variables);
    for (enum launcher_flag f = 0; f < LAUNCHER_FLAGS; f++) {
        const struct launcher_word *word = &l.words[f];
        if (!word->variable) continue;
        given[n++] = (struct option_variable){word->variable, launcher_flag_name(f), word->value};
    }
    const struct option_input in = {argc, argv, given, n, &l};
    r->err = options_parse(&r->s, c, &in, &r->notes, &r->d);
}

static void forget(struct result *r)
{
    settings_free(&r->s);
    buf_free(&r->notes);
}

static void every_launcher_says_what_flags_say(void **state)
{
    (void)state;
    static const struct {
        const char *environment, *name;
        int n_host, rank;
        const char *address;
        int port;
    } cases[] = {
        {"SLURM_STEP_NUM_NODES=2 SLURM_NODEID=1 SLURM_STEP_NODELIST=n[1-2] SLURM_STEP_NUM_TASKS=2",
         "Slurm", 2, 1, "n1", 29501},
        {"SLURM_STEP_NUM_NODES=4 SLURM_NODEID=0 SLURM_STEP_NODELIST=a,b,c,d MASTER_ADDR=10.0.0.1 "
         "MASTER_PORT=7000",
         "Slurm", 4, 0, "10.0.0.1", 7000},
        {"LWS_GROUP_SIZE=2 LWS_WORKER_INDEX=1 LWS_LEADER_ADDRESS=f-0.f.ns", "LeaderWorkerSet", 2, 1,
         "f-0.f.ns", 29501},
        {"GROUP_WORLD_SIZE=2 GROUP_RANK=1 LOCAL_WORLD_SIZE=1 WORLD_SIZE=2 RANK=1 MASTER_ADDR=h0 "
         "MASTER_PORT=29500",
         "torchrun", 2, 1, "h0", 29501},
        {"WORLD_SIZE=4 RANK=3 MASTER_ADDR=job-master-0 MASTER_PORT=23456", "WORLD_SIZE", 4, 3,
         "job-master-0", 23456},
        {"NNODES=2 NODE_RANK=0 MASTER_ADDR=h0", "NNODES", 2, 0, "h0", 29501},
        {"OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=1 "
         "MASTER_ADDR=h0 "
         "SLURM_STEP_NUM_NODES=1 SLURM_NODEID=0",
         "Open MPI", 2, 1, "h0", 29501},
        {"PMI_SIZE=2 PMI_RANK=1 MPI_LOCALNRANKS=1 MASTER_ADDR=h0", "PMI", 2, 1, "h0", 29501},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct result r;
        start(&r, COMMAND_SERVE, cases[i].environment, "-tp 4");
        if (r.err) fail_msg("%s: %s", cases[i].environment, r.d.text);
        assert_int_equal(r.s.nnodes, cases[i].n_host);
        assert_int_equal(r.s.node_rank, cases[i].rank);
        assert_string_equal(r.s.master_addr, cases[i].address);
        assert_int_equal(r.s.master_port, cases[i].port);
        assert_int_equal(r.s.headless, cases[i].rank > 0);
        assert_ptr_equal(strstr(buf_str(&r.notes), cases[i].name), buf_str(&r.notes));
        assert_ptr_equal(strchr(buf_str(&r.notes), '\n') + 1, buf_str(&r.notes) + r.notes.len);
        forget(&r);
        start(&r, COMMAND_SERVE, cases[i].environment, "--nnodes 1"); /* with this host alone */
        assert_int_equal(r.err, FATHOM_OK);
        assert_true(r.s.nnodes == 1 && r.s.node_rank == 0 && !r.s.headless && !r.notes.len);
        forget(&r);
        start(&r, COMMAND_BENCH_LATENCY, cases[i].environment, "-tp 4");
        assert_int_equal(r.err, FATHOM_OK);
        assert_false(r.notes.len);
        forget(&r);
    }
}

static void flags_hold_over_what_a_launcher_says(void **state)
{
    (void)state;
    struct result r;
    start(&r, COMMAND_SERVE, "SLURM_STEP_NUM_NODES=2 SLURM_NODEID=1 SLURM_STEP_NODELIST=n[1-2]",
          "-tp 4 --node-rank 0 --master-addr 127.0.0.1 --master-port 9");
    assert_int_equal(r.err, FATHOM_OK);
    assert_string_equal(buf_str(&r.notes), "Slurm: --nnodes 2 (SLURM_STEP_NUM_NODES); --nnodes 1 "
                                           "serves with this host alone\n");
    assert_true(r.s.nnodes == 2 && r.s.node_rank == 0 && !r.s.headless && r.s.master_port == 9);
    assert_string_equal(r.s.master_addr, "127.0.0.1");
    forget(&r);
    start(&r, COMMAND_SERVE, "NODE_RANK=1 MASTER_ADDR=h0", "-tp 4 --nnodes 2");
    assert_int_equal(r.err, FATHOM_OK);
    assert_true(r.s.node_rank == 1 && r.s.headless);
    assert_string_equal(r.s.master_addr, "h0");
    assert_string_equal(buf_str(&r.notes),
                        "hosts: --node-rank 1 (NODE_RANK), --master-addr h0 (MASTER_ADDR), "
                        "--headless; --nnodes 1 serves with this host alone\n");
    forget(&r);
    /* two processes of one machine, whose hosts the command line tells */
    start(&r, COMMAND_SERVE,
          "OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_LOCAL_SIZE=2",
          "-tp 4 --nnodes 2 --node-rank 1 --headless");
    assert_int_equal(r.err, FATHOM_OK);
    assert_true(r.s.nnodes == 2 && r.s.node_rank == 1 && r.s.headless && !r.notes.len);
    forget(&r);
    /* with a port on each host none is headless, and flags of ranks name the same host */
    start(&r, COMMAND_SERVE, "LWS_GROUP_SIZE=2 LWS_WORKER_INDEX=1 LWS_LEADER_ADDRESS=h0",
          "-ep -dp 4 -dpl 2 -dpr 2 -dph -dpa h0 -dpp 9");
    assert_int_equal(r.err, FATHOM_OK);
    assert_true(r.s.nnodes == 2 && r.s.node_rank == 1 && !r.s.headless && r.s.all_serve);
    assert_string_equal(r.s.master_addr, "h0");
    assert_int_equal(r.s.master_port, 9);
    forget(&r);
    start(&r, COMMAND_SERVE, "LWS_GROUP_SIZE=2 LWS_WORKER_INDEX=1 LWS_LEADER_ADDRESS=h0",
          "-ep -dp 4 -dpl 2 -dpr 0 -dph");
    assert_int_equal(r.err, FATHOM_EINVAL);
    assert_non_null(strstr(r.d.text, "is of host 0, and --node-rank is 1"));
    forget(&r);
    /* a flag and a word that do not go together */
    start(&r, COMMAND_SERVE, "NNODES=2 NODE_RANK=0 MASTER_ADDR=h0", "-tp 4 --headless");
    assert_int_equal(r.err, FATHOM_EINVAL);
    assert_non_null(strstr(r.d.text, "host 0 serves"));
    forget(&r);
}

/* Where a launcher has PMIx, host 0 tells where it is, unless somebody says it. */
static void pmix_stands_in_for_address_and_port(void **state)
{
    (void)state;
#define PMIX "PMIX_NAMESPACE=j PMIX_RANK=1 "
#define SLURM                                                                                      \
    "SLURM_STEP_NUM_NODES=2 SLURM_NODEID=1 SLURM_STEP_NODELIST=n[1-2] SLURM_STEP_NUM_TASKS=2"
    static const struct {
        const char *environment, *line;
        bool by_pmix;
        const char *address;
    } cases[] = {
        {PMIX "OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=1", "-tp 4", true, "127.0.0.1"},
        {PMIX SLURM, "-tp 4", true, "n1"},
        {"PMIX_RANK=1 " SLURM, "-tp 4", false, "n1"},
        {PMIX SLURM, "-tp 4 --master-port 7", false, "n1"},
        {PMIX SLURM, "-tp 4 --master-addr a", false, "a"},
        {PMIX SLURM " MASTER_ADDR=b", "-tp 4", false, "b"},
        {PMIX "LWS_GROUP_SIZE=2 LWS_WORKER_INDEX=1 LWS_LEADER_ADDRESS=c", "-tp 4", false, "c"},
        {PMIX, "-tp 4 --nnodes 2", true, "127.0.0.1"},
        {PMIX, "-tp 4 --nnodes 2 --node-rank 1 --headless", true, "127.0.0.1"},
        {PMIX, "-tp 4 --nnodes 2 --master-addr d", false, "d"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct result r;
        start(&r, COMMAND_SERVE, cases[i].environment, cases[i].line);
        if (r.err) fail_msg("%s: %s", cases[i].environment, r.d.text);
        assert_true(r.s.nnodes == 2 && r.s.node_rank == 1 && r.s.headless);
        assert_int_equal(r.s.by_pmix, cases[i].by_pmix);
        assert_string_equal(r.s.master_addr, cases[i].address);
        const bool is_told = strstr(buf_str(&r.notes), "where host 0 is (PMIX_NAMESPACE)") != NULL;
        assert_int_equal(is_told, r.notes.len > 0 && cases[i].by_pmix);
        forget(&r);
    }
    struct result r;
    start(&r, COMMAND_SERVE, PMIX, "-tp 4"); /* one of many processes, by itself */
    assert_true(r.err == FATHOM_OK && r.s.nnodes == 1 && r.s.node_rank == 0 && !r.s.by_pmix);
    forget(&r);
    start(&r, COMMAND_SERVE, PMIX "OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=1",
          "-tp 4 --master-port 7");
    assert_int_equal(r.err, FATHOM_EINVAL);
    assert_non_null(strstr(r.d.text, "not where host 0 is"));
    forget(&r);
}

static void one_host_is_told_nothing(void **state)
{
    (void)state;
    static const char *const environments[] = {
        "",
        "SLURM_NNODES=2 SLURM_NODEID=0 SLURM_JOB_NODELIST=n[1-2]", /* no srun */
        "SLURM_STEP_NUM_NODES=1 SLURM_NODEID=0 SLURM_STEP_NODELIST=n1 SLURM_STEP_NUM_TASKS=8",
        "WORLD_SIZE=8",
        "WORLD_SIZE=many RANK=1",
        "WORLD_SIZE=1 RANK=0 MASTER_ADDR=h0 MASTER_PORT=9",
        "NODE_RANK=1 MASTER_ADDR=h0",
        "WORLD_SIZE= RANK=1",
    };
    for (size_t i = 0; i < sizeof environments / sizeof environments[0]; i++) {
        struct result r;
        start(&r, COMMAND_SERVE, environments[i], "");
        if (r.err) fail_msg("%s: %s", environments[i], r.d.text);
        assert_true(r.s.nnodes == 1 && r.s.node_rank == 0 && !r.s.headless && !r.notes.len);
        forget(&r);
    }
}

static void what_cannot_be_followed_is_told_in_one_line(void **state)
{
    (void)state;
    static const struct {
        const char *environment, *line, *message;
    } cases[] = {
        {"SLURM_STEP_NUM_NODES=2 SLURM_NODEID=1 SLURM_STEP_NODELIST=n[1-2] SLURM_STEP_NUM_TASKS=16",
         "-tp 4", "--ntasks-per-node=1"},
        {"GROUP_WORLD_SIZE=2 GROUP_RANK=1 LOCAL_WORLD_SIZE=8 MASTER_ADDR=h0", "-tp 4",
         "--nproc-per-node=1"},
        {"OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=2", "-tp 4",
         "ppr:1:node"},
        {"OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=1", "-tp 4", "give --master-addr"},
        {"SLURM_STEP_NUM_NODES=2 SLURM_NODEID=1 SLURM_STEP_NODELIST=n[1-", "-tp 4",
         "give --master-addr"},
        {"LWS_GROUP_SIZE=3 LWS_WORKER_INDEX=1 LWS_LEADER_ADDRESS=a", "-tp 4", "does not divide"},
        {"LWS_GROUP_SIZE=2 LWS_WORKER_INDEX=5 LWS_LEADER_ADDRESS=a", "-tp 4", "--node-rank 5"},
        {"LWS_GROUP_SIZE=2 LWS_WORKER_INDEX=-1 LWS_LEADER_ADDRESS=a", "-tp 4",
         "LWS_WORKER_INDEX: "},
        {"LWS_GROUP_SIZE=999 LWS_WORKER_INDEX=1 LWS_LEADER_ADDRESS=a", "-tp 4", "LWS_GROUP_SIZE: "},
        {"NNODES=2 NODE_RANK=1 MASTER_ADDR=h0 MASTER_PORT=x", "-tp 4", "MASTER_PORT: "},
        {"GROUP_WORLD_SIZE=2 GROUP_RANK=1 MASTER_ADDR=h0 MASTER_PORT=65535", "-tp 4",
         "MASTER_PORT: "},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct result r;
        start(&r, COMMAND_SERVE, cases[i].environment, cases[i].line);
        assert_int_equal(r.err, FATHOM_EINVAL);
        if (!strstr(r.d.text, cases[i].message)) fail_msg("%s: %s", cases[i].environment, r.d.text);
        assert_null(strchr(r.d.text, '\n'));
        forget(&r);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_first_host_of_a_list_is_found),
        cmocka_unit_test(every_launcher_says_what_flags_say),
        cmocka_unit_test(flags_hold_over_what_a_launcher_says),
        cmocka_unit_test(pmix_stands_in_for_address_and_port),
        cmocka_unit_test(one_host_is_told_nothing),
        cmocka_unit_test(what_cannot_be_followed_is_told_in_one_line),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
