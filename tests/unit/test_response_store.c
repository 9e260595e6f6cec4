/* test_response_store.c - what is kept is found by its owner, within count, bytes and age */
#include "server/response_store.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include "base/mem.h"

static struct response_store *open_store(size_t max, size_t bytes, uint64_t age_us)
{
    struct response_store *s;
    const struct response_limits limits = {max, bytes, age_us};
    assert_int_equal(response_store_create(&s, &limits), FATHOM_OK);
    return s;
}

/* Keeps {"output":["<id>-out"]}, made by ["<id>-in"]. */
static fathom_err try_put(struct response_store *s, const char *id, uint32_t tenant,
                          struct response_link *previous, uint64_t now_us)
{
    struct response_record r = {.id = id, .tenant = tenant, .previous = previous};
    (void)buf_printf(&r.items, "[\"%s-in\"]", id);
    (void)buf_add_str(&r.body, "{\"output\":");
    r.output_at = r.body.len;
    (void)buf_printf(&r.body, "[\"%s-out\"]", id);
    r.n_output = r.body.len - r.output_at;
    (void)buf_add_str(&r.body, "}");
    if (buf_status(&r.items) || buf_status(&r.body)) {
        buf_free(&r.items);
        buf_free(&r.body);
        return FATHOM_ENOMEM;
    }
    return response_store_put(s, &r, now_us);
}

static void put(struct response_store *s, const char *id, uint32_t tenant, const char *previous,
                uint64_t now_us)
{
    struct response_link *before =
        previous ? response_store_hold(s, previous, tenant, now_us) : NULL;
    assert_true(!previous || before);
    assert_int_equal(try_put(s, id, tenant, before, now_us), FATHOM_OK);
    response_store_release(s, before);
    response_store_check(s);
}

static bool has(struct response_store *s, const char *id, uint32_t tenant, uint64_t now_us)
{
    struct response_link *l = response_store_hold(s, id, tenant, now_us);
    response_store_release(s, l);
    return l != NULL;
}

static void assert_items(struct response_store *s, const char *id, const char *want)
{
    struct response_link *l = response_store_hold(s, id, 0, 0);
    json_t *items = json_array();
    assert_non_null(l);
    assert_int_equal(response_link_items(l, items), FATHOM_OK);
    char *text = json_dumps(items, JSON_COMPACT);
    assert_string_equal(text, want);
    free(text);
    json_decref(items);
    response_store_release(s, l);
}

static void what_is_put_is_found_by_its_owner(void **state)
{
    (void)state;
    struct response_store *s = open_store(8, 1 << 20, 1000);
    put(s, "a", 0, NULL, 0);
    put(s, "a2", 1, NULL, 0);
    struct response_link *l = response_store_hold(s, "a", 0, 0);
    assert_string_equal(buf_str(response_link_body(l)), "{\"output\":[\"a-out\"]}");
    response_store_release(s, l);
    assert_false(has(s, "a", 1, 0));
    assert_false(has(s, "b", 0, 0));
    assert_true(has(s, "a2", 1, 0));
    assert_false(response_store_drop(s, "a", 1, 0));
    assert_true(response_store_drop(s, "a", 0, 0));
    assert_false(response_store_drop(s, "a", 0, 0));
    assert_false(has(s, "a", 0, 0));
    assert_int_equal(response_store_count(s).n_link, 1);
    response_store_destroy(s);
}

static void a_conversation_outlives_its_links(void **state)
{
    (void)state;
    struct response_store *s = open_store(8, 1 << 20, 1000);
    put(s, "a", 0, NULL, 0);
    put(s, "b", 0, "a", 0);
    put(s, "c", 0, "b", 0);
    put(s, "d", 0, "a", 0); /* a branch */
    assert_true(response_store_drop(s, "a", 0, 0));
    assert_true(response_store_drop(s, "b", 0, 0));
    response_store_check(s);
    assert_items(s, "c", "[\"a-in\",\"a-out\",\"b-in\",\"b-out\",\"c-in\",\"c-out\"]");
    assert_items(s, "d", "[\"a-in\",\"a-out\",\"d-in\",\"d-out\"]");
    assert_int_equal(response_store_count(s).n_listed, 2);
    assert_int_equal(response_store_count(s).n_link, 4);
    assert_true(response_store_drop(s, "c", 0, 0));
    assert_int_equal(response_store_count(s).n_link, 2);
    assert_true(response_store_drop(s, "d", 0, 0));
    assert_int_equal(response_store_count(s).bytes, 0);
    response_store_destroy(s);
}

static void the_oldest_leave_first(void **state)
{
    (void)state;
    struct response_store *s = open_store(3, 1 << 20, 1000);
    static const char *const ids[] = {"a", "b", "c", "d"};
    for (int i = 0; i < 4; i++) put(s, ids[i], 0, NULL, 0);
    assert_false(has(s, "a", 0, 0));
    assert_true(has(s, "b", 0, 0) && has(s, "c", 0, 0) && has(s, "d", 0, 0));
    response_store_destroy(s);
}

static void bytes_are_bounded(void **state)
{
    (void)state;
    struct response_store *s = open_store(100, 1 << 20, 1000);
    put(s, "a", 0, NULL, 0);
    size_t one = response_store_count(s).bytes;
    response_store_destroy(s);
    s = open_store(100, 3 * one, 1000);
    char id[16], before[16] = "";
    for (int i = 0; i < 20; i++) {
        (void)snprintf(id, sizeof id, "r%02d", i);
        put(s, id, 0, NULL, 0);
        assert_true(response_store_count(s).bytes <= 3 * one);
    }
    assert_int_equal(response_store_count(s).n_listed, 3);
    response_store_destroy(s);
    /* a conversation that is too long as a whole is not kept */
    s = open_store(100, 3 * one, 1000);
    for (int i = 0; i < 4; i++) {
        (void)snprintf(id, sizeof id, "r%02d", i);
        put(s, id, 0, i ? before : NULL, 0);
        memcpy(before, id, sizeof id);
        assert_true(response_store_count(s).bytes <= 3 * one);
    }
    assert_false(has(s, "r03", 0, 0));
    assert_true(has(s, "r00", 0, 0) && has(s, "r02", 0, 0));
    assert_int_equal(response_store_count(s).n_link, 3);
    response_store_destroy(s);
}

static void age_is_bounded(void **state)
{
    (void)state;
    struct response_store *s = open_store(8, 1 << 20, 1000);
    put(s, "a", 0, NULL, 100);
    put(s, "b", 0, "a", 900);
    assert_true(has(s, "a", 0, 1100));
    assert_false(has(s, "a", 0, 1101));
    assert_true(has(s, "b", 0, 1900));
    assert_false(response_store_drop(s, "b", 0, 1901));
    assert_int_equal(response_store_count(s).n_link, 0);
    response_store_destroy(s);
}

static void who_holds_a_link_keeps_it(void **state)
{
    (void)state;
    struct response_store *s = open_store(1, 1 << 20, 1000);
    put(s, "a", 0, NULL, 0);
    struct response_link *a = response_store_hold(s, "a", 0, 0);
    put(s, "b", 0, NULL, 0);
    assert_false(has(s, "a", 0, 0));
    assert_int_equal(try_put(s, "c", 0, a, 0), FATHOM_OK);
    response_store_release(s, a);
    assert_items(s, "c", "[\"a-in\",\"a-out\",\"c-in\",\"c-out\"]");
    struct buf line = {0};
    response_store_dump(s, &line);
    assert_non_null(strstr(buf_str(&line), "n_listed=1 n_link=2"));
    buf_free(&line);
    response_store_destroy(s);
}

static void each_failing_allocation_is_clean(void **state)
{
    (void)state;
    bool failed = true;
    for (long n = 0; failed; n++) {
        struct response_store *s;
        const struct response_limits limits = {4, 1 << 20, 1000};
        mem_fail_after(n);
        fathom_err err = response_store_create(&s, &limits);
        if (!err) err = try_put(s, "a", 0, NULL, 0);
        json_t *items = json_array();
        struct response_link *l = err ? NULL : response_store_hold(s, "a", 0, 0);
        if (l) err = response_link_items(l, items);
        failed = mem_fail_hit();
        mem_fail_after(-1);
        assert_int_equal(err, failed ? FATHOM_ENOMEM : FATHOM_OK);
        json_decref(items);
        if (l) response_store_release(s, l);
        response_store_destroy(s);
    }
}

/* ---- threads ------------------------------------------------------------------------------- */

enum { N_THREAD = 4, N_ROUND = 2000 };

struct worker {
    struct response_store *s;
    uint32_t tenant;
    unsigned n_kept;
};

static void *work(void *arg)
{
    struct worker *w = arg;
    char id[24], before[24] = "";
    for (unsigned i = 0; i < N_ROUND; i++) {
        struct response_link *l =
            before[0] && i % 5 ? response_store_hold(w->s, before, w->tenant, i) : NULL;
        (void)snprintf(id, sizeof id, "t%u-%u", w->tenant, i);
        w->n_kept += try_put(w->s, id, w->tenant, l, i) == FATHOM_OK;
        response_store_release(w->s, l);
        memcpy(before, id, sizeof id);
        if (i % 7 == 0) (void)response_store_drop(w->s, id, w->tenant, i);
    }
    return NULL;
}

static void threads_do_not_disturb_one_another(void **state)
{
    (void)state;
    struct response_store *s = open_store(64, 1 << 16, 1u << 30);
    pthread_t threads[N_THREAD];
    struct worker workers[N_THREAD];
    for (uint32_t i = 0; i < N_THREAD; i++) {
        workers[i] = (struct worker){s, i, 0};
        assert_int_equal(pthread_create(&threads[i], NULL, work, &workers[i]), 0);
    }
    for (int i = 0; i < N_THREAD; i++) {
        (void)pthread_join(threads[i], NULL);
        assert_int_equal(workers[i].n_kept, N_ROUND);
    }
    assert_true(response_store_count(s).bytes <= 1 << 16);
    response_store_destroy(s);
}

/* Who keeps most makes room; the others lose nothing. */
static void a_tenant_makes_room_for_itself(void **state)
{
    (void)state;
    struct response_store *s = open_store(6, 1 << 20, 1000);
    char id[16];
    put(s, "b0", 1, NULL, 0);
    put(s, "b1", 1, "b0", 1);
    for (int i = 0; i < 55; i++) {
        (void)snprintf(id, sizeof id, "a%d", i);
        put(s, id, 0, NULL, (uint64_t)i + 2);
    }
    assert_true(has(s, "b0", 1, 60) && has(s, "b1", 1, 60));
    assert_false(has(s, "a50", 0, 60));
    assert_true(has(s, "a51", 0, 60) && has(s, "a54", 0, 60));
    for (int i = 2; i < 9; i++) {
        (void)snprintf(id, sizeof id, "b%d", i);
        put(s, id, 1, NULL, 60);
    }
    assert_int_equal(response_store_count(s).n_listed, 6);
    assert_true(has(s, "a52", 0, 60) && has(s, "a54", 0, 60)); /* half of the room each */
    assert_true(has(s, "b6", 1, 60) && has(s, "b8", 1, 60));
    assert_false(has(s, "a51", 0, 60) || has(s, "b5", 1, 60));
    response_store_destroy(s);
}

/* The same for bytes, also where one tenant's few are large. */
static void bytes_are_made_room_for_by_who_has_most(void **state)
{
    (void)state;
    struct response_store *s = open_store(1000, 64 << 10, 1000);
    char id[16];
    for (int i = 0; i < 8; i++) {
        (void)snprintf(id, sizeof id, "b%d", i);
        put(s, id, 1, NULL, 0);
    }
    for (int i = 0; i < 999; i++) {
        (void)snprintf(id, sizeof id, "a%d", i);
        put(s, id, 0, NULL, 1);
    }
    assert_true(response_store_count(s).bytes <= 64 << 10);
    assert_false(has(s, "a0", 0, 1));
    assert_true(has(s, "b0", 1, 1) && has(s, "b7", 1, 1));
    response_store_destroy(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_put_is_found_by_its_owner),
        cmocka_unit_test(a_conversation_outlives_its_links),
        cmocka_unit_test(the_oldest_leave_first),
        cmocka_unit_test(bytes_are_bounded),
        cmocka_unit_test(age_is_bounded),
        cmocka_unit_test(who_holds_a_link_keeps_it),
        cmocka_unit_test(each_failing_allocation_is_clean),
        cmocka_unit_test(threads_do_not_disturb_one_another),
        cmocka_unit_test(a_tenant_makes_room_for_itself),
        cmocka_unit_test(bytes_are_made_room_for_by_who_has_most),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
