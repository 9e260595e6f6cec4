/* test_router_parts.c - what a router knows and decides, without a socket */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "router/choice.h"
#include "router/prefix_table.h"
#include "router/request_view.h"
#include "router/stream_follow.h"

/* ---- bodies -------------------------------------------------------------------------------- */

static struct request_view view_of(const char *body)
{
    struct request_view v;
    request_view_read(&v, body, strlen(body));
    return v;
}

static void a_body_is_seen_without_being_parsed(void **state)
{
    (void)state;
    struct request_view v = view_of(" {\"model\" : \"m\\\"\", \"stream\":true ,\n"
                                    "\"messages\":[{\"content\":\"a } ] \\\\\"}], \"n\":1}\n");
    assert_true(v.is_object && v.stream && !v.has_resume && !v.is_empty);
    assert_int_equal(v.inside, 2);
    assert_int_equal(v.n_text, strlen("[{\"content\":\"a } ] \\\\\"}]"));
    assert_memory_equal(v.text, "[{\"content\":\"a } ] \\\\\"}]", v.n_text);
    v = view_of("{\"prompt\":\"stream\",\"stream\":false,\"resume\":[1]}");
    assert_true(v.is_object && !v.stream && v.has_resume);
    assert_int_equal(v.n_text, 8);
    v = view_of("{ }");
    assert_true(v.is_object && v.is_empty && v.n_text == 0);
    v = view_of("{\"token_ids\":[1,2],\"stream\":\"true\"}");
    assert_true(v.is_object && v.stream && v.n_text == 5);
    v = view_of("{\"text\":[\"ab\"],\"stream\":true}");
    assert_true(v.stream && v.n_text == 6);
    v = view_of("{\"input\":\"abcd\",\"text\":{\"format\":{\"type\":\"text\"}}}");
    assert_int_equal(v.n_text, 6);
    assert_true(view_of("{\"stream\":1}").stream && !view_of("{\"stream\":\"false\"}").stream);
    /* a member within another is not its own */
    v = view_of("{\"metadata\":{\"stream\":true,\"messages\":[1]}}");
    assert_true(v.is_object && !v.stream && v.n_text == 0);
}

static void a_prompt_stays_where_pages_do_not_serve_it(void **state)
{
    (void)state;
    static const char *const stay[] = {
        "{\"kv_transfer_params\":null}",
        "{\"truncate_prompt_tokens\":-1}",
        "{\"truncate_prompt_tokens\":\"-1\"}",
        "{\"prompt_logprobs\":0}",
        "{\"logprobs\":0,\"prompt\":\"a\",\"echo\":true}",
        "{\"echo\":\"true\",\"logprobs\":true}",
    };
    static const char *const go[] = {
        "{\"truncate_prompt_tokens\":9,\"prompt_logprobs\":null}",
        "{\"echo\":true}",
        "{\"echo\":true,\"logprobs\":null}",
        "{\"echo\":true,\"logprobs\":false}",
        "{\"echo\":false,\"logprobs\":5}",
    };
    for (size_t i = 0; i < sizeof stay / sizeof stay[0]; i++) assert_true(view_of(stay[i]).stays);
    for (size_t i = 0; i < sizeof go / sizeof go[0]; i++) assert_false(view_of(go[i]).stays);
}

static void what_is_no_object_is_nothing(void **state)
{
    (void)state;
    static const char *const bodies[] = {
        "",           "[]",           "{",           "{\"a\"}",        "{\"a\":}",  "{\"a\":1",
        "{\"a\":1,}", "{\"a\":1}x",   "{\"a\":\"b}", "{\"a\":[1}",     "{\"a\" 1}", "{a:1}",
        "null",       "\x1f\x8b\x08", "{\"a\":1}}",  "{\"a\":\"\\\"}",
    };
    for (size_t i = 0; i < sizeof bodies / sizeof bodies[0]; i++) {
        struct request_view v = view_of(bodies[i]);
        if (v.is_object || v.stream || v.text) fail_msg("\"%s\" is taken", bodies[i]);
    }
}

static void keys_agree_as_far_as_prompts_do(void **state)
{
    (void)state;
    static char a[5000], b[5000];
    uint64_t ka[32], kb[32];
    for (size_t cut = 256; cut < 4000; cut += 333) {
        int n = snprintf(a, sizeof a, "{\"messages\":[\"");
        for (size_t i = (size_t)n; i < 4200; i++) a[i] = (char)('a' + rng_hash(i) % 26);
        memcpy(a + 4200, "\"]}", 4);
        memcpy(b, a, sizeof b);
        b[cut + 14] = '.';
        struct request_view va = view_of(a), vb = view_of(b);
        size_t na = request_view_keys(&va, ka, 32), nb = request_view_keys(&vb, kb, 32);
        assert_int_equal(na, nb);
        assert_true(na >= 16);
        size_t same = (size_t)(b + cut + 14 - vb.text) / VIEW_BLOCK_BYTES;
        for (size_t i = 0; i < na; i++) assert_int_equal(ka[i] == kb[i], i < same);
    }
    /* what stands before the text counts */
    struct request_view va = view_of("{\"model\":\"x\",\"prompt\":\"\"}");
    struct request_view vb = view_of("{\"model\":\"y\",\"prompt\":\"\"}");
    assert_true(va.before != vb.before);
}

/* ---- prefixes ------------------------------------------------------------------------------ */

static void prefixes_are_found_where_they_were_sent(void **state)
{
    (void)state;
    struct prefix_table *t;
    uint32_t depth[PREFIX_SERVERS_MAX];
    uint64_t keys[12];
    for (size_t i = 0; i < 12; i++) keys[i] = rng_hash(i);
    assert_int_equal(prefix_table_create(&t, 8), FATHOM_OK);
    prefix_table_note(t, keys, 5, 3);
    prefix_table_note(t, keys, 2, 63);
    prefix_table_find(t, keys, 6, depth);
    assert_true(depth[3] == 5 && depth[63] == 2 && depth[0] == 0);
    prefix_table_forget(t, 3);
    prefix_table_find(t, keys, 6, depth);
    assert_true(depth[3] == 0 && depth[63] == 2);
    /* more than there is room for: the beginning stays */
    prefix_table_note(t, keys, 12, 1);
    prefix_table_check(t);
    assert_int_equal(prefix_table_n(t), 8);
    prefix_table_find(t, keys, 12, depth);
    assert_int_equal(depth[1], 8);
    prefix_table_destroy(t);
}

static void any_order_of_prefixes_keeps_the_table_whole(void **state)
{
    (void)state;
    struct prefix_table *t;
    uint32_t depth[PREFIX_SERVERS_MAX];
    assert_int_equal(prefix_table_create(&t, 64), FATHOM_OK);
    for (uint64_t i = 0; i < 20000; i++) {
        uint64_t keys[8], r = rng_hash(i);
        size_t n = r % 9;
        for (size_t k = 0; k < n; k++) keys[k] = rng_hash(r / 9 % 12 + 100 * k);
        prefix_table_note(t, keys, n, (uint32_t)(r >> 40) % PREFIX_SERVERS_MAX);
        prefix_table_find(t, keys, n, depth);
        assert_int_equal(depth[(r >> 40) % PREFIX_SERVERS_MAX], n);
        if (i % 500 == 0) prefix_table_forget(t, (uint32_t)(r >> 50) % PREFIX_SERVERS_MAX);
        prefix_table_check(t);
    }
    prefix_table_destroy(t);
}

/* ---- choices ------------------------------------------------------------------------------- */

enum { N_SERVER = 16, N_TALK = 400, N_TURN = 5 };

/* Sixteen servers, conversations that grow: what they compute anew by each policy. */
static uint64_t simulate(enum choice_policy policy, uint32_t *most, uint32_t *least)
{
    static uint64_t held[N_SERVER][N_TALK]; /* tokens of a talk that a server has */
    struct choice_server s[N_SERVER];
    uint32_t n_request[N_SERVER] = {0};
    uint64_t computed = 0, turn = 0;
    memset(held, 0, sizeof held);
    for (uint32_t i = 0; i < N_SERVER; i++) {
        s[i] = (struct choice_server){.id = i, .identity = rng_hash(i), .n_room = 64};
    }
    for (uint64_t t = 0; t < N_TURN; t++) {
        for (uint64_t talk = 0; talk < N_TALK; talk++) {
            const struct choice_request r = {.policy = policy,
                                             .n_token = 1000 * (t + 1),
                                             .affinity = 0,
                                             .turn = turn++,
                                             .random = turn * 7919};
            for (uint32_t i = 0; i < N_SERVER; i++) s[i].n_cached = held[i][talk];
            size_t i = choice_make(&r, s, N_SERVER);
            assert_true(i < N_SERVER);
            computed += r.n_token - s[i].n_cached;
            s[i].n_owed += r.n_token - s[i].n_cached;
            held[i][talk] = r.n_token;
            n_request[i]++;
            for (uint32_t k = 0; k < N_SERVER; k++) { /* all work on what they owe */
                s[k].n_owed -= s[k].n_owed < 120 ? s[k].n_owed : 120;
            }
        }
    }
    *most = *least = n_request[0];
    for (uint32_t i = 1; i < N_SERVER; i++) {
        if (n_request[i] > *most) *most = n_request[i];
        if (n_request[i] < *least) *least = n_request[i];
    }
    return computed;
}

static void choices_spread_and_find_what_is_held(void **state)
{
    (void)state;
    uint32_t most, least;
    uint64_t aware = simulate(CHOICE_CACHE_AWARE, &most, &least);
    assert_true(most < 2 * least); /* of 125 each */
    assert_true(aware < 11ull * N_TALK * N_TURN * 1000 / 10);
    uint64_t turns = simulate(CHOICE_ROUND_ROBIN, &most, &least);
    assert_true(most - least <= 1);
    uint64_t two = simulate(CHOICE_POWER_OF_TWO, &most, &least);
    assert_true(least > 0 && aware < two && aware <= turns);
}

static void few_sessions_move_when_a_server_leaves(void **state)
{
    (void)state;
    struct choice_server s[N_SERVER];
    uint32_t n_moved = 0;
    for (uint32_t i = 0; i < N_SERVER; i++) {
        s[i] = (struct choice_server){.id = i, .identity = rng_hash(i)};
    }
    for (uint64_t k = 1; k <= 1600; k++) {
        const struct choice_request r = {.policy = CHOICE_CONSISTENT_HASH, .affinity = k};
        uint32_t before = s[choice_make(&r, s, N_SERVER)].id;
        uint32_t after = s[choice_make(&r, s, N_SERVER - 1)].id;
        assert_true(before == after || before == N_SERVER - 1);
        n_moved += before != after;
    }
    assert_in_range(n_moved, 50, 150);
}

/* ---- streams ------------------------------------------------------------------------------- */

#define EVENT(text) "data: " text "\n\n"

/* Feeds it in pieces of n bytes. */
static void feed(struct stream_follow *f, const char *text, size_t n, struct buf *out)
{
    for (size_t i = 0, len = strlen(text); i < len; i += n) {
        size_t k = len - i < n ? len - i : n;
        assert_int_equal(follow_feed(f, text + i, k, out), FATHOM_OK);
    }
}

static void a_stream_is_whole_wherever_it_breaks(void **state)
{
    (void)state;
    static const char stream[] = "\n\n" EVENT("role")
        EVENT("a") ": token 11\n\n"
                   "\n"
                   ": token 12\n\n" EVENT("b\\n")
                       EVENT("c") ": token 13\n\n"
                                  "event: ping\ndata: {}\n\n" EVENT("end") EVENT("[DONE]");
    static const char want[] =
        EVENT("role") EVENT("a") EVENT("b\\n") EVENT("c") EVENT("end") EVENT("[DONE]");
    /* what a server sends that goes on behind n tokens */
    static const char *const rest[] = {
        stream,
        ": token 12\n\n" EVENT("b\\n") EVENT("c") ": token 13\n\n" EVENT("end") EVENT("[DONE]"),
        EVENT("b\\n") EVENT("c") ": token 13\n\n" EVENT("end") EVENT("[DONE]"),
        EVENT("end") EVENT("[DONE]"),
    };
    for (size_t n = 1; n < 40; n += 6) {
        for (size_t cut = 0; cut <= sizeof stream - 1; cut++) {
            struct stream_follow f = {0};
            struct buf out = {0}, clean = {0};
            char begin[sizeof stream];
            memcpy(begin, stream, cut);
            begin[cut] = '\0';
            feed(&f, begin, n, &out);
            follow_break(&f);
            assert_true(f.n_token <= 3);
            for (size_t i = 0; i < f.n_token; i++) assert_int_equal(f.tokens[i], 11 + (int)i);
            feed(&f, rest[f.n_token], n, &out);
            assert_int_equal(follow_flush(&f, &out), FATHOM_OK);
            /* empty lines and pings may come more than once, or not at all */
            for (const char *at = buf_str(&out); *at;) {
                at += strspn(at, "\n");
                if (!*at) break;
                size_t k = (size_t)(strstr(at, "\n\n") + 2 - at);
                if (at[0] == 'd') assert_int_equal(buf_add(&clean, at, k), FATHOM_OK);
                at += k;
            }
            assert_string_equal(buf_str(&clean), want);
            follow_free(&f);
            buf_free(&out);
            buf_free(&clean);
        }
    }
}

static void tokens_are_told_together_or_not_at_all(void **state)
{
    (void)state;
    struct stream_follow f = {0};
    struct buf out = {0};
    feed(&f, ": token 11\n\n" EVENT("a") ": token 12 1", 1, &out);
    assert_int_equal(f.n_token, 1);
    feed(&f, "3 14\n\n" EVENT("b") ": token 15 x\n\n", 1, &out);
    assert_int_equal(f.n_token, 6); /* what is no number is some token */
    for (int i = 0; i < 5; i++) assert_int_equal(f.tokens[i], 11 + i);
    assert_int_equal(f.n_left, 0);
    assert_string_equal(buf_str(&out), EVENT("a") EVENT("b"));
    follow_free(&f);
    buf_free(&out);
}

static void a_failing_server_is_noticed_in_its_stream(void **state)
{
    (void)state;
    struct stream_follow f = {0};
    struct buf out = {0};
    feed(&f, EVENT("a"), 100, &out);
    feed(&f, EVENT("{\"error\":{\"code\":\"grammar_failed\"}}"), 100, &out);
    assert_false(f.fails); /* any server would say so */
    size_t n = out.len;
    feed(&f, ": lost\n\n" EVENT("{\"error\":{}}") EVENT("[DONE]"), 100, &out);
    assert_true(f.fails);
    assert_int_equal(out.len, n);
    follow_free(&f);
    buf_free(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_body_is_seen_without_being_parsed),
        cmocka_unit_test(a_prompt_stays_where_pages_do_not_serve_it),
        cmocka_unit_test(what_is_no_object_is_nothing),
        cmocka_unit_test(keys_agree_as_far_as_prompts_do),
        cmocka_unit_test(prefixes_are_found_where_they_were_sent),
        cmocka_unit_test(any_order_of_prefixes_keeps_the_table_whole),
        cmocka_unit_test(choices_spread_and_find_what_is_held),
        cmocka_unit_test(few_sessions_move_when_a_server_leaves),
        cmocka_unit_test(a_stream_is_whole_wherever_it_breaks),
        cmocka_unit_test(tokens_are_told_together_or_not_at_all),
        cmocka_unit_test(a_failing_server_is_noticed_in_its_stream),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
