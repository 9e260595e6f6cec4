/* test_router_parts.c - what a router knows and decides, without a socket */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "base/rng.h"
#include "router/look.h"
#include "router/pool.h"
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

/* ---- the pool ------------------------------------------------------------------------------ */

static struct pool *pool_of(const char *const *urls, size_t n)
{
    struct pool *p;
    assert_int_equal(pool_create(&p, CHOICE_ROUND_ROBIN, 64), FATHOM_OK);
    for (size_t i = 0; i < n; i++) assert_int_equal(pool_add(p, urls[i], NULL), FATHOM_OK);
    return p;
}

static void addresses_are_what_they_should_be(void **state)
{
    (void)state;
    static const char *const wrong[] = {"",           "http://",     "ftp://a:1", "http:///x",
                                        "http://a b", "http://a\"b", "a?b",       ":80"};
    struct pool *p = pool_of((const char *const[]){"a:1", "https://b:2/x/"}, 2);
    char url[POOL_URL_BYTES], name[POOL_URL_BYTES];
    uint64_t generation;
    fathom_diag d = {{0}};
    assert_true(pool_url(p, 0, url, name, &generation));
    assert_string_equal(url, "http://a:1");
    assert_true(pool_url(p, 1, url, name, &generation));
    assert_string_equal(url, "https://b:2/x");
    assert_false(pool_url(p, 2, url, name, &generation));
    assert_int_equal(pool_add(p, "http://a:1/", &d), FATHOM_EINVAL);
    assert_string_equal(d.text, "http://a:1 is there already");
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        assert_int_equal(pool_add(p, wrong[i], NULL), FATHOM_EINVAL);
    }
    for (int i = 2; i < POOL_SERVERS_MAX; i++) {
        (void)snprintf(url, sizeof url, "c:%d", i);
        assert_int_equal(pool_add(p, url, NULL), FATHOM_OK);
    }
    assert_int_equal(pool_add(p, "d:1", NULL), FATHOM_ELIMIT);
    pool_check(p);
    pool_destroy(p);
}

static void a_server_that_fails_rests_and_is_tried_again(void **state)
{
    (void)state;
    struct pool *p = pool_of((const char *const[]){"a:1"}, 1);
    struct pool_request r = {0};
    struct pool_lease l[2];
    uint64_t now = 1000;
    for (int i = 0; i < BREAKER_FAILURES; i++) {
        assert_true(pool_take(p, &r, now, &l[0]));
        pool_give(p, &l[0], POOL_FAILED, now);
    }
    assert_false(pool_take(p, &r, now + BREAKER_US - 1, &l[0]));
    assert_true(pool_take(p, &r, now + BREAKER_US, &l[0])); /* one, which decides */
    assert_false(pool_take(p, &r, now + BREAKER_US, &l[1]));
    pool_give(p, &l[0], POOL_FAILED, now + BREAKER_US);
    assert_false(pool_take(p, &r, now + BREAKER_US + 1, &l[0]));
    assert_true(pool_take(p, &r, now + 2ull * BREAKER_US, &l[0]));
    pool_settle(p, &l[0]); /* its answer has begun: nobody waits for the end of a long one */
    assert_true(pool_take(p, &r, now, &l[1]));
    pool_give(p, &l[1], POOL_SERVED, now);
    pool_give(p, &l[0], POOL_SERVED, now);
    assert_true(pool_take(p, &r, now, &l[0]));
    assert_true(pool_take(p, &r, now, &l[1]));
    pool_give(p, &l[0], POOL_LEFT, now);
    pool_give(p, &l[1], POOL_REFUSED, now);
    pool_check(p);
    pool_destroy(p);
}

static void requests_that_are_lost_together_are_one_failure(void **state)
{
    (void)state;
    enum { N_LOST = 3 * BREAKER_FAILURES };
    struct pool *p = pool_of((const char *const[]){"a:1"}, 1);
    struct pool_request r = {0};
    struct pool_lease l[N_LOST], next;
    for (int round = 1; round < BREAKER_FAILURES; round++) {
        for (int i = 0; i < N_LOST; i++) assert_true(pool_take(p, &r, 0, &l[i]));
        for (int i = 0; i < N_LOST; i++) pool_give(p, &l[i], POOL_FAILED, 0);
    }
    for (int i = 0; i < N_LOST; i++) assert_true(pool_take(p, &r, 0, &l[i]));
    pool_give(p, &l[0], POOL_FAILED, 0); /* the fifth time */
    assert_false(pool_take(p, &r, BREAKER_US - 1, &next));
    for (int i = 1; i < N_LOST; i++) pool_give(p, &l[i], POOL_FAILED, 1);
    assert_true(pool_take(p, &r, BREAKER_US, &next)); /* those have not made it rest for longer */
    pool_give(p, &next, POOL_LEFT, BREAKER_US);
    pool_check(p);
    pool_destroy(p);
}

static void who_gets_no_server_is_told_why(void **state)
{
    (void)state;
    struct pool *p = pool_of((const char *const[]){"a:1", "b:1"}, 2);
    const struct pool_load up = {.is_up = true}, down = {0};
    struct pool_request r = {0};
    struct pool_lease l;
    char text[POOL_NONE_BYTES];
    const uint64_t now = 1000;
    pool_note_load(p, 0, 1, &up);
    pool_note_load(p, 1, 2, &down);
    for (int i = 0; i < BREAKER_FAILURES; i++) {
        assert_true(pool_take(p, &r, now, &l));
        pool_give(p, &l, POOL_FAILED, now);
    }
    assert_false(pool_take(p, &r, now, &l));
    assert_int_equal(pool_tell_none(p, now, text), 1);
    assert_string_equal(text,
                        "no server takes requests: 1 is down, 1 rests because 5 requests in a "
                        "row failed there (GET /instances of the router tells more); try "
                        "again in 1 s");
    assert_int_equal(pool_remove(p, "b:1", NULL), FATHOM_OK);
    assert_int_equal(pool_tell_none(p, now, text), BREAKER_US / 1000000);
    assert_int_equal(pool_tell_none(p, now + 29000001, text), 1);
    pool_note_load(p, 0, 1, &down);
    assert_int_equal(pool_tell_none(p, now, text), 1);
    assert_string_equal(text, "no server takes requests: 1 is down (GET /instances of the router "
                              "tells more); try again in 1 s");
    assert_int_equal(pool_remove(p, "a:1", NULL), FATHOM_OK);
    assert_int_equal(pool_tell_none(p, now, text), 1);
    assert_string_equal(text, "no server takes requests now; try again");
    pool_destroy(p);
}

static void a_silent_server_is_lost_to_who_has_another(void **state)
{
    (void)state;
    struct pool *p = pool_of((const char *const[]){"a:1", "b:1"}, 2);
    struct pool_tried tried = {{0}, 0};
    struct pool_request r = {.tried = &tried}, other = {.moves = true, .numerics = 8};
    const struct pool_load up = {.is_up = true, .moves = true, .numerics = 7};
    const struct pool_load silent = {.silent_us = 1000};
    const uint64_t then = silent.silent_us + POOL_SILENT_US;
    struct pool_lease l[2];
    pool_note_load(p, 0, 1, &up);
    pool_note_load(p, 1, 2, &up);
    for (int i = 0; i < 2; i++) assert_true(pool_take(p, &r, 0, &l[i]));
    const struct pool_lease *a = &l[l[0].place != 0], *b = &l[l[0].place == 0];
    assert_false(pool_is_lost(p, &r, a, then));
    pool_note_load(p, 0, 1, &silent);
    assert_false(pool_is_lost(p, &r, a, then - 1));
    assert_false(pool_is_lost(p, &r, a, silent.silent_us - 1)); /* asked before that look began */
    assert_true(pool_is_lost(p, &r, a, then));
    assert_false(pool_is_lost(p, &r, b, then));
    assert_false(pool_is_lost(p, &other, a, then)); /* a stream that nobody goes on with */
    pool_tried_add(&tried, b);
    assert_false(pool_is_lost(p, &r, a, then));
    tried = (struct pool_tried){{0}, 0};
    pool_note_load(p, 1, 2, &silent); /* both: to wait is the best that is left */
    assert_false(pool_is_lost(p, &r, a, then));
    for (int i = 0; i < 2; i++) pool_give(p, &l[i], POOL_LEFT, then);
    pool_check(p);
    pool_destroy(p);
}

static void a_server_that_is_up_again_need_not_rest(void **state)
{
    (void)state;
    struct pool *p = pool_of((const char *const[]){"a:1"}, 1);
    const struct pool_load up = {.is_up = true}, down = {0};
    struct pool_request r = {0};
    struct pool_lease l[2];
    pool_note_load(p, 0, 1, &up);
    for (int i = 0; i < BREAKER_FAILURES; i++) {
        assert_true(pool_take(p, &r, 0, &l[0]));
        pool_give(p, &l[0], POOL_FAILED, 0);
    }
    pool_note_load(p, 0, 1, &up); /* it tells its load, and fails requests */
    assert_false(pool_take(p, &r, 1, &l[0]));
    pool_note_load(p, 0, 1, &down);
    assert_false(pool_take(p, &r, 1, &l[0]));
    pool_note_load(p, 0, 1, &up);
    assert_true(pool_take(p, &r, 1, &l[0]));
    assert_true(pool_take(p, &r, 1, &l[1]));
    pool_give(p, &l[0], POOL_SERVED, 1);
    pool_give(p, &l[1], POOL_SERVED, 1);
    pool_check(p);
    pool_destroy(p);
}

static void a_server_leaves_with_its_last_request(void **state)
{
    (void)state;
    struct pool *p = pool_of((const char *const[]){"a:1", "b:1"}, 2);
    struct pool_tried tried = {{0}, 0};
    struct pool_request r = {.tried = &tried};
    struct pool_lease l = {.place = 1, .generation = 2};
    struct pool_load down = {0}, up = {.is_up = true, .moves = true, .numerics = 7};
    pool_tried_add(&tried, &l);
    assert_true(pool_take(p, &r, 0, &l) && l.place == 0);
    assert_int_equal(pool_remove(p, "a:1", NULL), FATHOM_OK);
    assert_int_equal(pool_remove(p, "a:1", NULL), FATHOM_ENOTFOUND);
    assert_int_equal(pool_n(p), 2);
    assert_int_equal(pool_add(p, "a:1", NULL), FATHOM_OK); /* it is back, in another place */
    assert_int_equal(pool_n(p), 3);
    pool_give(p, &l, POOL_SERVED, 0);
    assert_int_equal(pool_n(p), 2);
    /* streams move to their like alone */
    pool_note_load(p, 1, 2, &up);
    pool_note_load(p, 2, 3, &down);
    assert_int_equal(pool_n_up(p), 1);
    r = (struct pool_request){.moves = true, .numerics = 8};
    assert_false(pool_take(p, &r, 0, &l));
    r.numerics = 7;
    assert_true(pool_take(p, &r, 0, &l) && l.place == 1);
    pool_give(p, &l, POOL_SERVED, 0);
    pool_check(p);
    pool_destroy(p);
}

/* A stream that two servers have failed goes on at the one that has come for the first. */
static void a_server_in_the_place_of_another_has_failed_nothing(void **state)
{
    (void)state;
    struct pool *p = pool_of((const char *const[]){"a:1", "b:1"}, 2);
    struct pool_tried tried = {{0}, 0};
    const struct pool_request r = {.tried = &tried};
    struct pool_lease l;
    for (uint32_t i = 0; i < 2; i++) {
        assert_true(pool_take(p, &r, 0, &l));
        pool_give(p, &l, POOL_FAILED, 0);
        pool_tried_add(&tried, &l);
        assert_int_equal(tried.n, i + 1);
    }
    assert_false(pool_take(p, &r, 0, &l));
    assert_int_equal(pool_remove(p, "a:1", NULL), FATHOM_OK);
    assert_int_equal(pool_add(p, "c:1", NULL), FATHOM_OK);
    assert_true(pool_take(p, &r, 0, &l));
    assert_int_equal(l.place, 0);
    assert_string_equal(l.url, "http://c:1");
    pool_give(p, &l, POOL_FAILED, 0);
    pool_tried_add(&tried, &l);
    assert_int_equal(tried.n, 2);
    assert_false(pool_take(p, &r, 0, &l));
    pool_check(p);
    pool_destroy(p);
}

/* Streams can go on elsewhere only from a server that has told that it can. */
static void a_server_that_has_told_nothing_comes_last(void **state)
{
    (void)state;
    struct pool *p = pool_of((const char *const[]){"a:1", "b:1"}, 2);
    const struct pool_load up = {.is_up = true, .moves = true, .numerics = 7};
    struct pool_tried tried = {{0}, 0};
    const struct pool_request r = {.tried = &tried};
    struct pool_lease l;
    pool_note_load(p, 1, 2, &up);
    for (int i = 0; i < 4; i++) {
        assert_true(pool_take(p, &r, 0, &l) && l.place == 1);
        pool_give(p, &l, POOL_SERVED, 0);
    }
    pool_tried_add(&tried, &l);
    assert_true(pool_take(p, &r, 0, &l) && l.place == 0);
    pool_give(p, &l, POOL_SERVED, 0);
    pool_check(p);
    pool_destroy(p);
}

static void prompts_go_to_who_prefills_unless_that_is_later(void **state)
{
    (void)state;
    struct pool *p;
    uint64_t keys[] = {11, 12, 13, 14};
    const struct pool_request q = {.keys = keys, .n_key = 4, .n_token = 1000};
    const struct pool_request brief = {.n_token = POOL_NEAR_TOKENS};
    struct pool_load prefills = {.is_up = true, .token_us = 10, .pages_host = "a", .pages_port = 1};
    struct pool_load decodes = {.is_up = true, .token_us = 20};
    struct pool_lease l;
    assert_int_equal(pool_create(&p, CHOICE_CACHE_AWARE, 64), FATHOM_OK);
    assert_int_equal(pool_add(p, "d:1", NULL), FATHOM_OK);
    assert_int_equal(pool_add_prefill(p, "p:1", NULL), FATHOM_OK);
    pool_note_load(p, 0, 1, &decodes);
    assert_false(pool_wants_prefill(p, &q, 0)); /* it has not told where its pages are */
    pool_note_load(p, 1, 2, &prefills);
    assert_true(pool_wants_prefill(p, &q, 0));
    assert_false(pool_wants_prefill(p, &brief, 0));
    /* 1000 tokens take the one that answers 20 ms, and so do 2000 that wait at the other one */
    prefills.n_owed = 2000;
    pool_note_load(p, 1, 2, &prefills);
    assert_true(pool_wants_prefill(p, &q, 0));
    prefills.n_owed = 2001;
    pool_note_load(p, 1, 2, &prefills);
    assert_false(pool_wants_prefill(p, &q, 0));
    /* what waits at it counts too, and a pace that it has not told is the other one's */
    decodes.n_owed = 500;
    pool_note_load(p, 0, 1, &decodes);
    assert_true(pool_wants_prefill(p, &q, 0));
    decodes = (struct pool_load){.is_up = true, .n_owed = 1001};
    pool_note_load(p, 0, 1, &decodes);
    assert_true(pool_wants_prefill(p, &q, 0));
    decodes.n_owed = 1000;
    pool_note_load(p, 0, 1, &decodes);
    assert_false(pool_wants_prefill(p, &q, 0));
    /* of a prompt whose pages it takes nothing waits at it */
    struct pool_request takes = q;
    takes.has_pages = true;
    decodes = (struct pool_load){.is_up = true, .token_us = 20};
    pool_note_load(p, 0, 1, &decodes);
    prefills.n_owed = 2001;
    pool_note_load(p, 1, 2, &prefills);
    assert_true(pool_take(p, &takes, 0, &l) && l.place == 0);
    assert_false(pool_wants_prefill(p, &q, 0));
    pool_give(p, &l, POOL_SERVED, 0);
    assert_true(pool_take(p, &q, 0, &l) && l.place == 0);
    assert_true(pool_wants_prefill(p, &q, 0)); /* of one that it computes 1000 tokens do */
    pool_give(p, &l, POOL_SERVED, 0);
    /* a prompt that it has needs nobody */
    prefills.n_owed = 0;
    pool_note_load(p, 1, 2, &prefills);
    assert_true(pool_wants_prefill(p, &q, 0));
    assert_true(pool_take(p, &q, 0, &l));
    pool_note_sent(p, &q, &l);
    pool_give(p, &l, POOL_SERVED, 0);
    assert_false(pool_wants_prefill(p, &q, 0));
    /* nobody takes the pages, and then one does */
    const struct pool_request other = {.n_token = 1000};
    assert_true(pool_wants_prefill(p, &other, 0));
    decodes.takes_none = true;
    pool_note_load(p, 0, 1, &decodes);
    assert_false(pool_wants_prefill(p, &other, 0));
    assert_int_equal(pool_add(p, "e:1", NULL), FATHOM_OK);
    decodes.takes_none = false;
    pool_note_load(p, 2, 3, &decodes);
    assert_true(pool_wants_prefill(p, &other, 0));
    pool_check(p);
    pool_destroy(p);
}

/* n requests of 640 tokens each, which stay; how many of them place 0 got */
static int taken_by_first(struct pool *p, int n, bool has_pages)
{
    int n_first = 0;
    for (int i = 0; i < n; i++) {
        struct pool_lease l;
        const struct pool_request r = {.n_token = 640, .has_pages = has_pages};
        assert_true(pool_take(p, &r, 0, &l));
        pool_settle(p, &l); /* what is computed keeps its pages */
        n_first += l.place == 0;
    }
    return n_first;
}

/* Place 0 is the faster one and place 1 has pages; a request takes ten of them, and its next. */
static void a_server_that_is_short_of_pages_comes_last(void **state)
{
    (void)state;
    for (int k = 0; k < 2; k++) {
        struct pool *p;
        struct pool_load few = {
            .is_up = true, .token_us = 1, .step_us = 1, .n_room = 64, .n_page = 100};
        struct pool_load many = {.is_up = true, .token_us = 9, .step_us = 9, .n_room = 64};
        assert_int_equal(pool_create(&p, CHOICE_CACHE_AWARE, 64), FATHOM_OK);
        assert_int_equal(pool_add(p, "a:1", NULL), FATHOM_OK);
        assert_int_equal(pool_add(p, "b:1", NULL), FATHOM_OK);
        pool_note_load(p, 1, 2, &many);
        few.n_page_free = 10;
        pool_note_load(p, 0, 1, &few);
        assert_int_equal(taken_by_first(p, 2, k == 1), 0);
        /* one, of two that come between looks, and none while as many tokens wait */
        few.n_page_free = 21;
        few.n_owed = 1280;
        pool_note_load(p, 0, 1, &few);
        assert_int_equal(taken_by_first(p, 2, k == 1), 0);
        few.n_owed = 0;
        pool_note_load(p, 0, 1, &few);
        assert_int_equal(taken_by_first(p, 2, k == 1), 1);
        /* when both are short they are as they were, and so is one that does not tell */
        many.n_page = few.n_page;
        few.n_page_free = 0;
        pool_note_load(p, 0, 1, &few);
        pool_note_load(p, 1, 2, &many);
        assert_int_equal(taken_by_first(p, 2, k == 1), 2);
        many.n_page_free = 100;
        pool_note_load(p, 1, 2, &many);
        assert_int_equal(taken_by_first(p, 2, k == 1), 0);
        few.n_page = 0;
        pool_note_load(p, 0, 1, &few);
        assert_int_equal(taken_by_first(p, 2, k == 1), 2);
        pool_check(p);
        pool_destroy(p);
    }
}

/* What it has of a prompt needs no pages; of two servers the one that is not short has fewer. */
static void pages_are_for_what_is_not_held(void **state)
{
    (void)state;
    struct pool *p;
    uint64_t keys[] = {11, 12, 13, 14};
    const struct pool_request q = {.keys = keys, .n_key = 4, .n_token = 6400};
    struct pool_load load = {.is_up = true, .n_page = 100, .n_page_free = 100};
    struct pool_lease l;
    assert_int_equal(pool_create(&p, CHOICE_POWER_OF_TWO, 64), FATHOM_OK);
    assert_int_equal(pool_add(p, "a:1", NULL), FATHOM_OK);
    pool_note_load(p, 0, 1, &load);
    assert_true(pool_take(p, &q, 0, &l));
    pool_note_sent(p, &q, &l);
    assert_int_equal(pool_add(p, "b:1", NULL), FATHOM_OK);
    load.n_page_free = 50;
    pool_note_load(p, 0, 1, &load);
    pool_note_load(p, 1, 2, &load);
    for (int i = 0; i < 8; i++) { /* the other one has no request */
        assert_true(pool_take(p, &q, 0, &l) && l.place == 0);
        pool_give(p, &l, POOL_SERVED, 0);
    }
    pool_check(p);
    pool_destroy(p);
}

static void figures_of_a_look_are_read(void **state)
{
    (void)state;
    struct pool_load l;
    static const char whole[] =
        "{\"server_load\":3,\"accepts\":true,\"moves_streams\":true,\"numerics\":\"00ff\","
        "\"max_running\":64,\"waiting_tokens\":500,\"free_pages\":7,\"pages\":90,"
        "\"prefill_token_us\":12.5,"
        "\"decode_step_us\":3000}";
    assert_true(look_read(&l, whole, sizeof whole - 1));
    assert_true(l.is_up && l.moves && l.numerics == 255 && l.n_room == 64 && l.n_owed == 500);
    assert_true(l.token_us > 12.4 && l.step_us > 2999);
    assert_true(l.n_page == 90 && l.n_page_free == 7);
    assert_true(look_read(&l, "{\"server_load\":3}", 17));
    assert_true(l.is_up && !l.moves);
    assert_true(look_read(&l, "{\"accepts\":false}", 17));
    assert_false(l.is_up);
    assert_string_equal(l.why, "it takes no requests");
    static const char away[] = "{\"accepts\":false,\"why\":\"host 1\\nis \\u00e4way\"}";
    assert_true(look_read(&l, away, sizeof away - 1));
    assert_string_equal(l.why, "host 1?is ??way");
    assert_false(look_read(&l, "<html>", 6));
    assert_true(l.is_up);
    static const char odd[] = "{\"waiting_tokens\":-5,\"max_running\":1e14,\"pages\":1e300,"
                              "\"pages_host\":\"a\",\"pages_port\":70000}";
    assert_true(look_read(&l, odd, sizeof odd - 1));
    assert_true(l.n_owed == 0 && l.n_room == 0 && l.n_page == 0 && l.pages_port == 0);
    static const char no_host[] = "{\"pages_host\":\"a\\u0001b\",\"pages_port\":5600}";
    assert_true(look_read(&l, no_host, sizeof no_host - 1));
    assert_true(l.pages_port == 0 && l.pages_host[0] == '\0');
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
        cmocka_unit_test(addresses_are_what_they_should_be),
        cmocka_unit_test(a_server_that_fails_rests_and_is_tried_again),
        cmocka_unit_test(requests_that_are_lost_together_are_one_failure),
        cmocka_unit_test(who_gets_no_server_is_told_why),
        cmocka_unit_test(a_silent_server_is_lost_to_who_has_another),
        cmocka_unit_test(a_server_that_is_up_again_need_not_rest),
        cmocka_unit_test(a_server_leaves_with_its_last_request),
        cmocka_unit_test(a_server_in_the_place_of_another_has_failed_nothing),
        cmocka_unit_test(a_server_that_has_told_nothing_comes_last),
        cmocka_unit_test(prompts_go_to_who_prefills_unless_that_is_later),
        cmocka_unit_test(a_server_that_is_short_of_pages_comes_last),
        cmocka_unit_test(pages_are_for_what_is_not_held),
        cmocka_unit_test(figures_of_a_look_are_read),
        cmocka_unit_test(a_stream_is_whole_wherever_it_breaks),
        cmocka_unit_test(tokens_are_told_together_or_not_at_all),
        cmocka_unit_test(a_failing_server_is_noticed_in_its_stream),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
