/* test_router_pool.c - the servers of a router, and which one a request goes to; no sockets */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "router/look.h"
#include "router/pool.h"

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

/* So quickly that no look has failed: prompts and failures were the process' before. */
static void a_server_that_has_started_again_need_not_rest(void **state)
{
    (void)state;
    uint64_t keys[] = {11, 12, 13, 14};
    const struct pool_request r = {.keys = keys, .n_key = 4, .n_token = 6400};
    const uint64_t started[] = {700, 600, 800}; /* the second: another server at this address */
    struct pool_load up = {.is_up = true, .started_us = 700};
    struct pool *p = pool_of((const char *const[]){"a:1"}, 1);
    struct pool_lease l;
    pool_note_load(p, 0, 1, &up);
    assert_true(pool_take(p, &r, 0, &l));
    pool_note_sent(p, &r, &l);
    pool_give(p, &l, POOL_SERVED, 0);
    assert_true(pool_take(p, &r, 0, &l) && l.n_token < r.n_token);
    pool_give(p, &l, POOL_FAILED, 0);
    for (int i = 1; i < BREAKER_FAILURES; i++) {
        assert_true(pool_take(p, &r, 0, &l));
        pool_give(p, &l, POOL_FAILED, 0);
    }
    for (int i = 0; i < 3; i++) {
        up.started_us = started[i];
        pool_note_load(p, 0, 1, &up);
        assert_int_equal(pool_take(p, &r, 1, &l), i == 2);
    }
    assert_int_equal(l.n_token, r.n_token);
    pool_give(p, &l, POOL_SERVED, 1);
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
        "\"prefill_token_us\":12.5,\"started_us\":1764000000000001,"
        "\"decode_step_us\":3000}";
    assert_true(look_read(&l, whole, sizeof whole - 1));
    assert_true(l.is_up && l.moves && l.numerics == 255 && l.n_room == 64 && l.n_owed == 500);
    assert_true(l.token_us > 12.4 && l.step_us > 2999);
    assert_true(l.n_page == 90 && l.n_page_free == 7 && l.started_us == 1764000000000001);
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(addresses_are_what_they_should_be),
        cmocka_unit_test(a_server_that_fails_rests_and_is_tried_again),
        cmocka_unit_test(requests_that_are_lost_together_are_one_failure),
        cmocka_unit_test(who_gets_no_server_is_told_why),
        cmocka_unit_test(a_silent_server_is_lost_to_who_has_another),
        cmocka_unit_test(a_server_that_is_up_again_need_not_rest),
        cmocka_unit_test(a_server_that_has_started_again_need_not_rest),
        cmocka_unit_test(a_server_leaves_with_its_last_request),
        cmocka_unit_test(a_server_in_the_place_of_another_has_failed_nothing),
        cmocka_unit_test(a_server_that_has_told_nothing_comes_last),
        cmocka_unit_test(prompts_go_to_who_prefills_unless_that_is_later),
        cmocka_unit_test(a_server_that_is_short_of_pages_comes_last),
        cmocka_unit_test(pages_are_for_what_is_not_held),
        cmocka_unit_test(figures_of_a_look_are_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
