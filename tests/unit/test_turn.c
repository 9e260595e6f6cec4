/* test_turn.c - the order of waiting requests: priorities, turns of tenants, arrival */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "sched/turn.h"

enum { N = 16 };

static struct request requests[N];
static struct turns turns;
static struct request_list list;
static uint32_t n_request;

static int clear(void **state)
{
    (void)state;
    turns = (struct turns){0};
    list = (struct request_list){0};
    n_request = 0;
    return 0;
}

static struct request *arrive(uint32_t tenant, int32_t priority)
{
    struct request *r = &requests[n_request];
    *r = (struct request){
        .id = n_request, .arrival = n_request, .tenant = tenant, .priority = priority};
    n_request++;
    turns_give(&turns, r);
    request_list_insert(&list, r);
    return r;
}

/* The waiting requests by their ids, first to last. */
static void expect_order(const char *ids)
{
    uint32_t n = 0;
    const struct request *prev = NULL;
    for (const struct request *r = list.head; r; prev = r, r = r->next) {
        assert_int_equal(r->id, ids[n] - 'a');
        assert_ptr_equal(r->prev, prev);
        n++;
    }
    assert_int_equal(ids[n], '\0');
    assert_int_equal(list.n, n);
    assert_ptr_equal(list.tail, prev);
}

static void admit_first(void)
{
    struct request *r = list.head;
    request_list_remove(&list, r);
    turns_note_admitted(&turns, r);
}

static void one_tenant_is_served_in_order_of_arrival(void **state)
{
    (void)state;
    for (int i = 0; i < 5; i++) (void)arrive(0, 0);
    expect_order("abcde");
    admit_first();
    (void)arrive(0, 0);
    expect_order("bcdef");
}

static void tenants_take_turns(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i++) (void)arrive(0, 0); /* a b c d */
    (void)arrive(1, 0);                             /* e */
    (void)arrive(1, 0);                             /* f */
    (void)arrive(2, 0);                             /* g */
    expect_order("aegbfcd");
}

static void silence_gives_no_credit(void **state)
{
    (void)state;
    for (int i = 0; i < 6; i++) (void)arrive(0, 0); /* a .. f */
    admit_first();
    admit_first();
    admit_first();      /* d e f wait: turns 3, 4, 5; c with turn 2 was admitted last */
    (void)arrive(1, 0); /* g: turn 2 */
    (void)arrive(1, 0); /* h: turn 3, after d who has it too */
    (void)arrive(1, 0); /* i */
    expect_order("gdheif");
}

static void priority_comes_before_turns(void **state)
{
    (void)state;
    (void)arrive(0, 0);  /* a */
    (void)arrive(0, 5);  /* b */
    (void)arrive(0, -1); /* c */
    (void)arrive(1, 5);  /* d */
    (void)arrive(1, 0);  /* e */
    expect_order("caedb");
}

static void a_request_that_comes_back_has_its_old_place(void **state)
{
    (void)state;
    struct request *a = arrive(0, 0);
    (void)arrive(0, 0);
    (void)arrive(1, 0);
    admit_first();
    (void)arrive(2, 0); /* d: turn 0, but later than a */
    request_list_insert(&list, a);
    expect_order("acdb");
    assert_true(request_is_before(a, list.tail));
    assert_false(request_is_before(a, a));
}

static void a_list_loses_its_middle_and_its_ends(void **state)
{
    (void)state;
    struct request *a = arrive(0, 0);
    struct request *b = arrive(0, 0);
    struct request *c = arrive(0, 0);
    request_list_remove(&list, b);
    expect_order("ac");
    request_list_remove(&list, c);
    expect_order("a");
    request_list_remove(&list, a);
    expect_order("");
    assert_null(list.head);
    request_list_insert(&list, b);
    request_list_insert(&list, c);
    request_list_insert(&list, a);
    expect_order("abc");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(one_tenant_is_served_in_order_of_arrival, clear),
        cmocka_unit_test_setup(tenants_take_turns, clear),
        cmocka_unit_test_setup(silence_gives_no_credit, clear),
        cmocka_unit_test_setup(priority_comes_before_turns, clear),
        cmocka_unit_test_setup(a_request_that_comes_back_has_its_old_place, clear),
        cmocka_unit_test_setup(a_list_loses_its_middle_and_its_ends, clear),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
