/* test_option_file.c - options from a file and from the environment, and which of them hold */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/mem.h"
#include "cli/options.h"
#include "cli/options_int.h"

/* One parse, with what it was parsed from. */
struct result {
    char path[64];
    struct settings s;
    struct buf notes;
    fathom_diag d;
    fathom_err err;
};

static void write_text(struct result *r, const char *ending, const char *text)
{
    (void)snprintf(r->path, sizeof r->path, "/tmp/test_option_file_XXXXXX%s", ending);
    int fd = mkstemps(r->path, (int)strlen(ending));
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    assert_int_equal(close(fd), 0);
}

/* Parses `fathom serve --config FILE more...`. */
static void parse(struct result *r, const char *ending, const char *text, int n_more, char **more)
{
    char *argv[8] = {(char *)"--config", r->path};
    buf_free(&r->notes);
    settings_free(&r->s);
    memset(r, 0, sizeof *r);
    write_text(r, ending, text);
    for (int i = 0; i < n_more; i++) argv[2 + i] = more[i];
    const struct option_input in = {2 + n_more, argv, NULL, 0, NULL};
    r->err = options_parse(&r->s, COMMAND_SERVE, &in, &r->notes, &r->d);
    (void)unlink(r->path);
}

static void forget(struct result *r)
{
    buf_free(&r->notes);
    settings_free(&r->s);
}

static void assert_fails(const char *ending, const char *text, fathom_err code, const char *part)
{
    struct result r = {0};
    parse(&r, ending, text, 0, NULL);
    if (!strstr(r.d.text, part)) fail_msg("\"%s\" does not say \"%s\"", r.d.text, part);
    if (!strstr(r.d.text, r.path)) fail_msg("\"%s\" does not name the file", r.d.text);
    assert_int_equal(r.err, code);
    forget(&r);
}

static const char page[] = "# a server\n"
                           "model: org/name\n"
                           "served_model_name: [a, \"b\"]\n"
                           "port: 9000\n"
                           "max-model-len: 8k\n"
                           "gpu-memory-utilization: 0.85\n"
                           "enable-prefix-caching: no\n"
                           "seed:\n"
                           "trust-remote-code: true\n"
                           "speculative-config:\n"
                           "  method: deepseek_mtp\n"
                           "  num_speculative_tokens: 2\n";

static void a_yaml_file_gives_options(void **state)
{
    (void)state;
    struct result r = {0};
    parse(&r, ".yaml", page, 0, NULL);
    assert_string_equal(r.d.text, "");
    assert_int_equal(r.err, FATHOM_OK);
    assert_string_equal(r.s.model, "org/name");
    assert_int_equal(r.s.served_model_name.n, 2);
    assert_string_equal(r.s.served_model_name.items[1], "b");
    assert_int_equal(r.s.port, 9000);
    assert_int_equal(r.s.max_model_len, 8000);
    assert_true(r.s.gpu_memory_utilization == 0.85);
    assert_false(r.s.enable_prefix_caching);
    assert_int_equal(r.s.seed, -1);
    assert_int_equal(r.s.n_draft, 2);
    assert_non_null(strstr(buf_str(&r.notes), "--trust-remote-code has no effect"));
    assert_non_null(strstr(buf_str(&r.notes), r.path));
    forget(&r);
}

static void a_flag_may_be_said_no_to(void **state)
{
    (void)state;
    struct result r = {0};
    parse(&r, ".yaml", "no-enable-prefix-caching: true\nno_async_scheduling: false\n", 0, NULL);
    assert_int_equal(r.err, FATHOM_OK);
    assert_false(r.s.enable_prefix_caching);
    assert_true(r.s.async_scheduling);
    forget(&r);
}

static void a_json_file_gives_options(void **state)
{
    (void)state;
    struct result r = {0};
    parse(&r, ".json", "{\"port\": 9000, \"api-key\": \"k\", \"thinking\": true, \"seed\": null}",
          0, NULL);
    assert_int_equal(r.err, FATHOM_OK);
    assert_int_equal(r.s.port, 9000);
    assert_string_equal(r.s.api_key.items[0], "k");
    assert_true(r.s.thinking);
    parse(&r, ".yaml", "", 0, NULL);
    assert_int_equal(r.err, FATHOM_EINVAL);
    forget(&r);
}

static void the_command_line_holds_over_the_file(void **state)
{
    (void)state;
    struct result r = {0};
    char *more[] = {(char *)"other", (char *)"--port=1", (char *)"--served-model-name", (char *)"c",
                    (char *)"--speculative-config.num_speculative_tokens=3"};
    parse(&r, ".yaml", page, 5, more);
    assert_int_equal(r.err, FATHOM_OK);
    assert_string_equal(r.s.model, "other");
    assert_int_equal(r.s.port, 1);
    assert_int_equal(r.s.served_model_name.n, 1);
    assert_string_equal(r.s.served_model_name.items[0], "c");
    assert_int_equal(r.s.n_draft, 3);
    forget(&r);
}

static void the_file_holds_over_the_environment(void **state)
{
    (void)state;
    struct result r = {0};
    static const struct option_variable variables[] = {{"FATHOM_PORT", "port", "7000"},
                                                       {"VLLM_API_KEY", "api-key", "v"},
                                                       {"FATHOM_API_KEY", "api-key", "f"},
                                                       {"FATHOM_THINKING", "thinking", "1"},
                                                       {"FATHOM_PROMPT", "prompt", "not of serve"},
                                                       {"FATHOM_SEED", "seed", "5"}};
    write_text(&r, ".yaml", "port: 8000\n");
    char *argv[] = {(char *)"--config", r.path, (char *)"--seed", (char *)"6"};
    struct option_input in = {4, argv, variables, 6, NULL};
    r.err = options_parse(&r.s, COMMAND_SERVE, &in, &r.notes, &r.d);
    assert_int_equal(r.err, FATHOM_OK);
    assert_int_equal(r.s.port, 8000);
    assert_int_equal(r.s.api_key.n, 1);
    assert_string_equal(r.s.api_key.items[0], "f");
    assert_true(r.s.thinking);
    assert_int_equal(r.s.seed, 6);
    (void)unlink(r.path);
    forget(&r);
}

static void a_bad_variable_is_named(void **state)
{
    (void)state;
    static const struct option_variable bad[] = {
        {"FATHOM_PORT", "port", "x"},
        {"FATHOM_THINKING", "thinking", "maybe"},
        {"FATHOM_DECODE_CONTEXT_PARALLEL_SIZE", "decode-context-parallel-size", "8"}};
    for (size_t i = 0; i < 3; i++) {
        struct result r = {0};
        struct option_input in = {0, NULL, &bad[i], 1, NULL};
        assert_int_equal(options_parse(&r.s, COMMAND_SERVE, &in, &r.notes, &r.d), FATHOM_EINVAL);
        if (strncmp(r.d.text, bad[i].variable, strlen(bad[i].variable)) != 0) {
            fail_msg("\"%s\" does not begin with %s", r.d.text, bad[i].variable);
        }
        forget(&r);
    }
}

static void bad_files_say_where(void **state)
{
    (void)state;
    assert_fails(".yaml", "port: [\n", FATHOM_EFORMAT, "line 2");
    assert_fails(".yaml", "a: 1\na: 2\n", FATHOM_EFORMAT, "this key comes twice");
    assert_fails(".yaml", "? [a]\n: b\n", FATHOM_EFORMAT, "a key is no plain text");
    assert_fails(".yaml", "port: 1\n---\nport: 2\n", FATHOM_EFORMAT, "several documents");
    assert_fails(".yaml", "- port\n", FATHOM_EINVAL, "an array");
    assert_fails(".yaml", "a: &x [*x]\n", FATHOM_EFORMAT, "nested deeper");
    assert_fails(".yaml", "prot: 1\n", FATHOM_EINVAL, "the nearest is --port");
    assert_fails(".yaml", "port: many\n", FATHOM_EINVAL, "not a whole number");
    assert_fails(".yaml", "thinking: 2\n", FATHOM_EINVAL, "needed is true or false");
    assert_fails(".yaml", "no-enforce-eager: 1\n", FATHOM_EINVAL, "no-enforce-eager is an integer");
    assert_fails(".yaml", "config: x\n", FATHOM_EINVAL, "cannot stand in a file");
    assert_fails(".yaml", "help: true\n", FATHOM_EINVAL, "cannot stand in a file");
    assert_fails(".yaml", "decode-context-parallel-size: 8\n", FATHOM_EINVAL, "is refused");
    assert_fails(".json", "{\"port\": }", FATHOM_EFORMAT, "line 1");
}

static void the_types_of_scalars(void **state)
{
    (void)state;
    struct result r = {0};
    fathom_diag d = {{0}};
    json_t *root;
    write_text(&r, ".yaml",
               "a: 1\nb: -2.5\nc: 8k\nd: \"1\"\ne: ~\nf: [on, {g: 1e3}]\nh: 99999999999999999999\n"
               "i: &x {k: v}\nj: *x\n");
    assert_int_equal(yaml_read_file(r.path, &root, &d), FATHOM_OK);
    char *text = json_dumps(root, JSON_COMPACT);
    assert_string_equal(text,
                        "{\"a\":1,\"b\":-2.5,\"c\":\"8k\",\"d\":\"1\",\"e\":null,\"f\":[true,{"
                        "\"g\":1000.0}],\"h\":1e20,\"i\":{\"k\":\"v\"},\"j\":{\"k\":\"v\"}}");
    free(text);
    json_decref(root);
    (void)unlink(r.path);
    assert_int_equal(yaml_read_file("/nowhere.yaml", &root, &d), FATHOM_ENOTFOUND);
    assert_null(root);
}

static void failing_allocations_come_out_as_errors(void **state)
{
    (void)state;
    bool hit = true;
    for (long n = 0; hit; n++) {
        struct result r = {0};
        write_text(&r, ".yaml", page);
        char *argv[] = {(char *)"--config", r.path};
        const struct option_input in = {2, argv, NULL, 0, NULL};
        mem_fail_after(n);
        fathom_err err = options_parse(&r.s, COMMAND_SERVE, &in, &r.notes, &r.d);
        hit = mem_fail_hit();
        mem_fail_after(-1);
        assert_int_equal(err, hit ? FATHOM_ENOMEM : FATHOM_OK);
        (void)unlink(r.path);
        forget(&r);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_yaml_file_gives_options),
        cmocka_unit_test(a_flag_may_be_said_no_to),
        cmocka_unit_test(a_json_file_gives_options),
        cmocka_unit_test(the_command_line_holds_over_the_file),
        cmocka_unit_test(the_file_holds_over_the_environment),
        cmocka_unit_test(a_bad_variable_is_named),
        cmocka_unit_test(bad_files_say_where),
        cmocka_unit_test(the_types_of_scalars),
        cmocka_unit_test(failing_allocations_come_out_as_errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
