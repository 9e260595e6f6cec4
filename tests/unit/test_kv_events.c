/* test_kv_events.c - the value of --kv-events-config */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "cli/kv_events.h"

static struct kv_events_settings parse(const char *config)
{
    struct kv_events_settings s = {.config = config};
    fathom_diag d = {{0}};
    if (kv_events_parse(&s, &d) != FATHOM_OK) fail_msg("%s: %s", config, d.text);
    return s;
}

static void what_is_left_out_is_as_in_vllm(void **state)
{
    (void)state;
    struct kv_events_settings s = parse(NULL);
    assert_false(s.is_set);
    s = parse("{\"enable_kv_cache_events\": true}");
    assert_true(s.is_set);
    assert_string_equal(s.endpoint, "tcp://*:5557");
    assert_string_equal(s.replay_endpoint, "");
    assert_string_equal(s.topic, "");
    assert_int_equal(s.options.buffer_steps, 10000);
    assert_int_equal(s.options.hwm, 100000);
    assert_int_equal(s.options.max_queue_size, 100000);
}

static void all_keys_are_read(void **state)
{
    (void)state;
    struct kv_events_settings s = parse(
        "{\"enable_kv_cache_events\":true,\"publisher\":\"zmq\",\"endpoint\":\"tcp://epp:5557\","
        "\"replay_endpoint\":\"tcp://*:5558\",\"buffer_steps\":7,\"hwm\":8,"
        "\"max_queue_size\":9,\"topic\":\"kv@pod@model\"}");
    assert_true(s.is_set);
    assert_string_equal(s.endpoint, "tcp://epp:5557");
    assert_string_equal(s.replay_endpoint, "tcp://*:5558");
    assert_string_equal(s.topic, "kv@pod@model");
    assert_int_equal(s.options.buffer_steps, 7);
    assert_int_equal(s.options.hwm, 8);
    assert_int_equal(s.options.max_queue_size, 9);
}

static void nothing_is_told_unless_it_is_asked_for(void **state)
{
    (void)state;
    assert_false(parse("{}").is_set);
    assert_false(parse("{\"endpoint\":\"tcp://*:1\"}").is_set);
    assert_false(parse("{\"enable_kv_cache_events\":false,\"publisher\":\"zmq\"}").is_set);
    assert_false(parse("{\"enable_kv_cache_events\":true,\"publisher\":\"null\"}").is_set);
    assert_true(
        parse("{\"publisher\":null,\"enable_kv_cache_events\":true,\"replay_endpoint\":null}")
            .is_set);
}

static void bad_values_are_refused_by_their_name(void **state)
{
    (void)state;
    static const struct {
        const char *config, *part;
    } bad[] = {
        {"[]", "needed is an object"},
        {"{", "--kv-events-config"},
        {"{\"enable\":true}", "\"enable\" is not known; there are enable_kv_cache_events"},
        {"{\"enable_kv_cache_events\":1}", "enable_kv_cache_events has to be true or false"},
        {"{\"publisher\":\"nats\"}", "publisher is \"nats\", needed is zmq or null"},
        {"{\"endpoint\":\"\"}", "endpoint is empty, needed is tcp://HOST:PORT"},
        {"{\"endpoint\":null}", "endpoint is empty"},
        {"{\"endpoint\":5557}", "endpoint has to be a string"},
        {"{\"buffer_steps\":0}", "buffer_steps has to be a number from 1 to 1000000"},
        {"{\"hwm\":\"many\"}", "hwm has to be a number"},
        {"{\"max_queue_size\":1.5}", "max_queue_size has to be a number"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct kv_events_settings s = {.config = bad[i].config};
        fathom_diag d = {{0}};
        assert_int_not_equal(kv_events_parse(&s, &d), FATHOM_OK);
        if (!strstr(d.text, bad[i].part)) fail_msg("%s: %s", bad[i].config, d.text);
    }
}

static void every_failing_allocation_is_clean(void **state)
{
    (void)state;
    for (long n = 0;; n++) {
        struct kv_events_settings s = {.config = "{\"enable_kv_cache_events\": true, \"hwm\": 3}"};
        mem_fail_after(n);
        const fathom_err err = kv_events_parse(&s, NULL);
        const bool hit = mem_fail_hit();
        mem_fail_after(-1);
        assert_int_equal(err, hit ? FATHOM_ENOMEM : FATHOM_OK);
        if (!hit) break;
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_left_out_is_as_in_vllm),
        cmocka_unit_test(all_keys_are_read),
        cmocka_unit_test(nothing_is_told_unless_it_is_asked_for),
        cmocka_unit_test(bad_values_are_refused_by_their_name),
        cmocka_unit_test(every_failing_allocation_is_clean),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
