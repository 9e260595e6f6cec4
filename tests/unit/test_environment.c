/* test_environment.c - what is said of variables that stand in for nothing */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "cli/options.h"

static void variables_without_effect_are_told_in_one_line_for_each_reason(void **state)
{
    (void)state;
    struct buf notes = {0};
    char *variables[] = {(char *)"HCCL_IF_IP=1.2.3.4",
                         (char *)"VLLM_USE_V1=1",
                         (char *)"TASK_QUEUE_ENABLE=1",
                         (char *)"VLLM_API_KEY=secret",
                         (char *)"HF_TOKEN=",
                         (char *)"PATH=/bin",
                         (char *)"FATHOM_PORT=1",
                         (char *)"FATHOM_PROT=1",
                         (char *)"nonsense",
                         NULL};
    assert_int_equal(environment_notes(&notes, variables), FATHOM_OK);
    assert_string_equal(buf_str(&notes),
                        "HCCL_IF_IP, TASK_QUEUE_ENABLE have no effect: it configures Ascend's "
                        "libraries\nVLLM_USE_V1 has no effect: it configures vLLM's Python\n"
                        "FATHOM_PROT has no effect: there is no such option\n");
    buf_free(&notes);
}

static void a_row_is_found_by_name_or_by_beginning(void **state)
{
    (void)state;
    assert_string_equal(environment_find("VLLM_API_KEY", 12)->pattern, "VLLM_API_KEY");
    assert_string_equal(environment_find("VLLM_API_KEYS", 13)->pattern, "VLLM_*");
    assert_string_equal(environment_find("VLLM_ASCEND_X", 13)->pattern, "VLLM_ASCEND_*");
    assert_null(environment_find("HOME", 4));
    assert_null(environment_find("VLLM", 4));
}

static void failing_allocations_come_out_as_errors(void **state)
{
    (void)state;
    char *variables[] = {(char *)"HCCL_IF_IP=1.2.3.4", (char *)"VLLM_USE_V1=1", NULL};
    bool hit = true;
    for (long n = 0; hit; n++) {
        struct buf notes = {0};
        mem_fail_after(n);
        fathom_err err = environment_notes(&notes, variables);
        hit = mem_fail_hit();
        mem_fail_after(-1);
        assert_int_equal(err, hit ? FATHOM_ENOMEM : FATHOM_OK);
        buf_free(&notes);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(variables_without_effect_are_told_in_one_line_for_each_reason),
        cmocka_unit_test(a_row_is_found_by_name_or_by_beginning),
        cmocka_unit_test(failing_allocations_come_out_as_errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
