/* test_trace.c - which trace a request is of, where traces go, and the message that they go in */
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#include "base/fail.h"
#include "base/sha256.h"
#include "trace/otlp.h"
#include "trace/setup.h"

#define TRACE "0af7651916cd43dd8448eb211c80319c"
#define SPAN "b7ad6b7169203331"
#define NO_TRACE "00000000000000000000000000000000"

static void a_context_is_read(void **state)
{
    (void)state;
    struct trace_context c;
    static const uint8_t trace[] = {0x0a, 0xf7, 0x65, 0x19, 0x16, 0xcd, 0x43, 0xdd,
                                    0x84, 0x48, 0xeb, 0x21, 0x1c, 0x80, 0x31, 0x9c};
    static const uint8_t span[] = {0xb7, 0xad, 0x6b, 0x71, 0x69, 0x20, 0x33, 0x31};
    assert_true(trace_context_read(&c, "00-" TRACE "-" SPAN "-01"));
    assert_memory_equal(c.trace_id, trace, sizeof trace);
    assert_memory_equal(c.span_id, span, sizeof span);
    assert_true(c.is_set && c.is_sampled);
    assert_true(trace_context_read(&c, "00-" TRACE "-" SPAN "-02"));
    assert_true(c.is_set && !c.is_sampled);
    /* a version to come may say more */
    assert_true(trace_context_read(&c, "cc-" TRACE "-" SPAN "-ff-what-else"));
    assert_true(c.is_sampled);
}

static void what_is_none_is_none(void **state)
{
    (void)state;
    static const char *const bad[] = {NULL,
                                      "",
                                      "00-" TRACE "-" SPAN "-0",
                                      "00-" TRACE "-" SPAN "-01-more",
                                      "00-" TRACE "-" SPAN "-01 ",
                                      "cc-" TRACE "-" SPAN "-01.more",
                                      "ff-" TRACE "-" SPAN "-01",
                                      "00-0AF7651916cd43dd8448eb211c80319c-" SPAN "-01",
                                      "00-" NO_TRACE "-" SPAN "-01",
                                      "00-" TRACE "-0000000000000000-01",
                                      "00-" TRACE "." SPAN "-01",
                                      "00-" TRACE "-" SPAN "-0g",
                                      "0-0" TRACE "-" SPAN "-01"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct trace_context c = {.is_set = true, .is_sampled = true, .span_id = {1}};
        assert_false(trace_context_read(&c, bad[i]));
        assert_false(c.is_set || c.is_sampled || c.span_id[0]);
    }
}

static void an_endpoint_says_how(void **state)
{
    (void)state;
#define EXPORT "/opentelemetry.proto.collector.trace.v1.TraceService/Export"
    static const struct {
        const char *endpoint, *protocol, *url;
        bool is_grpc;
    } cases[] = {
        {"grpc://c:4317", NULL, "http://c:4317" EXPORT, true},
        {"grpc://c", NULL, "http://c:4317" EXPORT, true},
        {"c:99", NULL, "http://c:99" EXPORT, true},
        {"[::1]:99", NULL, "http://[::1]:99" EXPORT, true},
        {"grpcs://c", NULL, "https://c:4317" EXPORT, true},
        {"http://c:4317", NULL, "http://c:4317" EXPORT, true},
        {"https://c:4317/", NULL, "https://c:4317" EXPORT, true},
        {"http://c:4318/v1/traces", NULL, "http://c:4318/v1/traces", false},
        {"https://c/api/otel?a=b", NULL, "https://c/api/otel?a=b", false},
        {"http://c:4318/v1/traces", "grpc", "http://c:4318" EXPORT, true},
        {"http://c:4318/", "http/protobuf", "http://c:4318/", false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const struct trace_words w = {.endpoint = cases[i].endpoint, .protocol = cases[i].protocol};
        struct trace_setup s;
        fathom_diag d = {{0}};
        assert_int_equal(trace_setup_read(&s, &w, &d), FATHOM_OK);
        assert_string_equal(s.url, cases[i].url);
        assert_int_equal(s.is_grpc, cases[i].is_grpc);
        assert_int_equal(s.resource.n, 1);
        assert_string_equal(s.resource.pairs[0].value, "fathom");
        trace_setup_free(&s);
    }
}

static void lists_are_pairs(void **state)
{
    (void)state;
    const struct trace_words w = {.endpoint = "c:1",
                                  .headers = " authorization = Basic%20a%3D%3d ,x=%, y=a=b,,",
                                  .resource = "service.name=other,k8s.pod.name=p",
                                  .service = "mine"};
    struct trace_setup s;
    fathom_diag d = {{0}};
    assert_int_equal(trace_setup_read(&s, &w, &d), FATHOM_OK);
    static const char *const headers[][2] = {
        {"authorization", "Basic a=="}, {"x", "%"}, {"y", "a=b"}};
    assert_int_equal(s.headers.n, 3);
    for (size_t i = 0; i < 3; i++) {
        assert_string_equal(s.headers.pairs[i].key, headers[i][0]);
        assert_string_equal(s.headers.pairs[i].value, headers[i][1]);
    }
    assert_int_equal(s.resource.n, 2);
    assert_string_equal(s.resource.pairs[0].value, "mine");
    trace_setup_free(&s);
}

static void what_cannot_be_is_told(void **state)
{
    (void)state;
    static const struct {
        struct trace_words words;
        const char *part;
    } cases[] = {
        {{.endpoint = "ftp://c"}, "a scheme that is not known"},
        {{.endpoint = "http://"}, "it is no address"},
        {{.endpoint = "a b"}, "it is no address"},
        {{.endpoint = "c:1", .protocol = "http/json"}, "needed is grpc or http/protobuf"},
        {{.endpoint = "c:1", .headers = "a=b,key"}, "\"key\" is not KEY=VALUE"},
        {{.endpoint = "c:1", .headers = "a=b%0d%0ac: d"}, "more than one line"},
        {{.endpoint = "c:1", .resource = "=b"}, "is not KEY=VALUE"},
        {{.endpoint = "c:1", .sampler = "jaeger_remote"}, "needed is always_on"},
        {{.endpoint = "c:1", .sampler = "traceidratio", .sampler_arg = "2"}, "from 0 to 1"},
        {{.endpoint = "c:1", .sampler = "traceidratio", .sampler_arg = "x"}, "from 0 to 1"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct trace_setup s;
        fathom_diag d = {{0}};
        assert_int_equal(trace_setup_read(&s, &cases[i].words, &d), FATHOM_EINVAL);
        if (!strstr(d.text, cases[i].part)) fail_msg("%s: not in \"%s\"", cases[i].part, d.text);
        trace_setup_free(&s);
    }
}

static void a_sampler_takes_its_share(void **state)
{
    (void)state;
    static const uint8_t low[16] = {[0] = 0xff, [8] = 0x3f, [15] = 0xff};
    static const uint8_t high[16] = {[8] = 0x40};
    static const struct trace_context none = {0}, yes = {.is_set = true, .is_sampled = true},
                                      no = {.is_set = true};
    static const struct {
        const char *name, *share;
        bool low, high, yes, no; /* of a request in no trace with these ids, and in a trace */
    } cases[] = {
        {NULL, NULL, true, true, true, false},
        {"always_on", NULL, true, true, true, true},
        {"always_off", NULL, false, false, false, false},
        {"parentbased_always_off", NULL, false, false, true, false},
        {"traceidratio", "0.25", true, false, false, false},
        {"parentbased_traceidratio", "0.25", true, false, true, false},
        {"traceidratio", NULL, true, true, true, true},
        {"traceidratio", "0", false, false, false, false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const struct trace_words w = {
            .endpoint = "c:1", .sampler = cases[i].name, .sampler_arg = cases[i].share};
        struct trace_setup s;
        fathom_diag d = {{0}};
        assert_int_equal(trace_setup_read(&s, &w, &d), FATHOM_OK);
        assert_int_equal(trace_setup_samples(&s, &none, low), cases[i].low);
        assert_int_equal(trace_setup_samples(&s, &none, high), cases[i].high);
        assert_int_equal(trace_setup_samples(&s, &yes, high), cases[i].yes);
        assert_int_equal(trace_setup_samples(&s, &no, high), cases[i].no);
        trace_setup_free(&s);
    }
}

/* The digest is of what opentelemetry-proto 1.45.2 makes of the same, with protobuf 7.36.2. */
static void a_message_is_the_protocols(void **state)
{
    (void)state;
    static const uint8_t digest[] = {0x24, 0xd4, 0x59, 0xb5, 0xe8, 0x6d, 0x03, 0x5d,
                                     0x33, 0x20, 0x45, 0xff, 0x13, 0x34, 0x65, 0x75,
                                     0xa4, 0x10, 0x2c, 0x47, 0x6b, 0x80, 0xc2, 0x6f,
                                     0x4b, 0x0e, 0x39, 0x4f, 0xbb, 0xb9, 0xbe, 0xa7};
    struct otlp_ids ids[2];
    struct trace_span spans[2] = {{.start_ns = 1700000000000000001,
                                   .end_ns = 1700000001500000000,
                                   .request_id = "cmpl-1",
                                   .model = "pilot",
                                   .finish = "stop",
                                   .n_prompt = 300,
                                   .n_output = 7,
                                   .n_choice = 2,
                                   .max_tokens = 200,
                                   .temperature = 0.6f,
                                   .top_p = 0.95f,
                                   .queue = 0.25,
                                   .first_token = 0.5,
                                   .prefill = 0.25,
                                   .decode = 1,
                                   .whole = 1.5}};
    spans[1] = spans[0];
    spans[1].finish = "error";
    spans[1].has_failed = true;
    spans[1].max_tokens = 0;
    spans[1].temperature = spans[1].top_p = -1;
    spans[1].first_token = 0;
    spans[0].parent.is_set = true;
    for (int i = 0; i < 16; i++) {
        ids[0].trace_id[i] = (uint8_t)(1 + i);
        ids[1].trace_id[i] = (uint8_t)(50 + i);
    }
    for (int i = 0; i < 8; i++) {
        ids[0].span_id[i] = (uint8_t)(17 + i);
        ids[1].span_id[i] = (uint8_t)(66 + i);
        spans[0].parent.span_id[i] = (uint8_t)(33 + i);
    }
    const struct otlp_attribute who = {"service.name", "fathom"};
    const struct otlp_resource resource = {&who, 1, "1.2"};
    struct buf b = {0};
    assert_int_equal(otlp_encode(&b, &resource, spans, ids, 2), FATHOM_OK);
    assert_int_equal(b.len, 1138);
    const struct sha256 have = sha256_of(b.data, b.len);
    assert_memory_equal(have.bytes, digest, sizeof digest);
    buf_free(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_context_is_read),          cmocka_unit_test(what_is_none_is_none),
        cmocka_unit_test(an_endpoint_says_how),       cmocka_unit_test(lists_are_pairs),
        cmocka_unit_test(what_cannot_be_is_told),     cmocka_unit_test(a_sampler_takes_its_share),
        cmocka_unit_test(a_message_is_the_protocols),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
