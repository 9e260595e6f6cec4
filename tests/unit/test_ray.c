/* test_ray.c - lines that are typed for Ray, and those that are given in their place */
#include "cli/ray.h"

#include <stdio.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/mem.h"
#include "cli/options.h"

enum { WORDS_MAX = 24 };

static size_t split(char *text, const char *out[])
{
    size_t n = 0;
    for (char *p = text; *p;) {
        assert_true(n < WORDS_MAX);
        out[n++] = p;
        p += strcspn(p, " ");
        if (*p) *p++ = '\0';
    }
    return n;
}

static void a_start_is_answered_with_the_line_of_that_host(void **state)
{
    (void)state;
    static const struct {
        const char *typed, *serve;
    } cases[] = {
        {"start --head --port=6379",
         "`fathom serve MODEL --nnodes N --node-rank 0 --master-addr HOST0 --master-port 6379`"},
        {"start --head --node-ip-address=10.0.0.1 --port 7000 --num-gpus=8 --block",
         "`fathom serve MODEL --nnodes N --node-rank 0 --master-addr 10.0.0.1 --master-port "
         "7000`"},
        {"start --block --address=10.0.0.1:6379",
         "`fathom serve MODEL --nnodes N --node-rank 1 --master-addr 10.0.0.1 --master-port 6379 "
         "--headless`"},
        {"start --address vllm-rayhead:6379 --node-ip-address 10.0.0.2",
         "`fathom serve MODEL --nnodes N --node-rank 1 --master-addr vllm-rayhead --master-port "
         "6379 --headless`"},
        {"start --address=auto",
         "`fathom serve MODEL --nnodes N --node-rank 1 --master-addr HOST0 --headless`"},
        {"start", "--node-rank 1 --master-addr HOST0 --headless`"},
        {"start --address", "--node-rank 1 --master-addr HOST0 --headless`"},
        {"start --address=:6379", "--master-addr HOST0 --master-port 6379 --headless`"},
        {"start --address=h:", "--master-addr h --headless`"},
        {"status", "fathom health"},
        {"stop --force", "SIGTERM"},
        {"up cluster.yaml", "--nnodes N --node-rank I"},
        {"", "--nnodes N --node-rank I"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[256];
        const char *words[WORDS_MAX];
        struct buf out = {0};
        (void)snprintf(text, sizeof text, "%s", cases[i].typed);
        assert_int_equal(ray_write_answer(&out, words, split(text, words)), FATHOM_OK);
        if (!strstr(buf_str(&out), cases[i].serve)) fail_msg("%s: %s", cases[i].typed, out.data);
        assert_null(strchr(buf_str(&out), '\n'));
        buf_free(&out);
    }
}

/* The message about a line of `fathom serve`. */
static void refuse(char out[FATHOM_DIAG_BYTES], enum command c, const char *line)
{
    static char words[512];
    const char *argv[WORDS_MAX];
    static struct settings s;
    struct buf notes = {0};
    fathom_diag d = {{0}};
    (void)snprintf(words, sizeof words, "%s", line);
    size_t n = split(words, argv);
    const struct option_input in = {(int)n, (char **)argv, NULL, 0, NULL};
    fathom_err err = options_parse(&s, c, &in, &notes, &d);
    if (err) assert_int_equal(err, FATHOM_EINVAL);
    (void)snprintf(out, FATHOM_DIAG_BYTES, "%s", err ? d.text : "");
    buf_free(&notes);
    settings_free(&s);
}

static void the_flag_is_answered_with_the_lines_of_all_hosts(void **state)
{
    (void)state;
    static char text[FATHOM_DIAG_BYTES];
    refuse(text, COMMAND_SERVE,
           "org/name -tp 8 --pipeline-parallel-size 2 --distributed-executor-backend ray "
           "--max-num-seqs 128");
    assert_string_equal(
        text, "--distributed-executor-backend ray is refused: hosts join without Ray: on host 0 "
              "`fathom serve org/name -tp 8 -pp 2 --nnodes 2 --node-rank 0 --master-addr HOST0`, "
              "on host 1 `fathom serve org/name -tp 8 -pp 2 --nnodes 2 --node-rank 1 "
              "--master-addr HOST0 --headless`; other flags stay as they are; on one host leave "
              "the flag out");
    refuse(text, COMMAND_SERVE,
           "--distributed-executor-backend=ray org/name -tp 16 --nnodes 4 --master-addr h0 "
           "--master-port 7");
    assert_non_null(strstr(text, "`fathom serve org/name -tp 16 --nnodes 4 --node-rank 1 "
                                 "--master-addr h0 --master-port 7 --headless` and so on"));
    refuse(text, COMMAND_SERVE, "org/name -tp 16 --distributed-executor-backend ray");
    assert_non_null(strstr(text, "--nnodes N --node-rank 0"));
    assert_non_null(strstr(text, "N being how many hosts there are"));
    refuse(text, COMMAND_BENCH_LATENCY, "org/name -tp 16 --distributed-executor-backend ray");
    assert_non_null(strstr(text, "only fathom serve runs on several hosts"));
    refuse(text, COMMAND_SERVE, "org/name --distributed-executor-backend external_launcher");
    assert_non_null(strstr(text, "ranks are threads of this process"));
    refuse(text, COMMAND_SERVE, "org/name --distributed-executor-backend mp");
    assert_string_equal(text, "");
}

static void failing_allocations_come_out_as_errors(void **state)
{
    (void)state;
    static const char *const words[] = {"start", "--address=a:1"};
    bool hit = true;
    for (long n = 0; hit; n++) {
        struct buf out = {0};
        mem_fail_after(n);
        fathom_err err = ray_write_answer(&out, words, 2);
        hit = mem_fail_hit();
        mem_fail_after(-1);
        assert_int_equal(err, hit ? FATHOM_ENOMEM : FATHOM_OK);
        buf_free(&out);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_start_is_answered_with_the_line_of_that_host),
        cmocka_unit_test(the_flag_is_answered_with_the_lines_of_all_hosts),
        cmocka_unit_test(failing_allocations_come_out_as_errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
