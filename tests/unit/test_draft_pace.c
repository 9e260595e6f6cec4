/* test_draft_pace.c - draft lengths for requests whose drafts are right, wrong, or right up to a
 * place */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "engine/draft_pace.h"

/* Steps in which drafts before place `right` are right and the others wrong; drafts made. */
static uint32_t run(struct draft_pace *p, uint32_t max, uint32_t right, uint32_t n_step)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < n_step; i++) {
        uint32_t n_draft = draft_pace_next(p, max);
        assert_true(n_draft <= max);
        draft_pace_note(p, n_draft, n_draft < right ? n_draft : right);
        n += n_draft;
    }
    return n;
}

static void right_drafts_are_made_in_full(void **state)
{
    (void)state;
    struct draft_pace p;
    draft_pace_init(&p);
    assert_int_equal(run(&p, 3, 4, 100), 300);
    assert_int_equal(run(&p, 0, 0, 100), 0);
}

static void wrong_drafts_end_but_for_a_probe_now_and_then(void **state)
{
    (void)state;
    struct draft_pace p;
    draft_pace_init(&p);
    assert_true(run(&p, 4, 0, 20) < 60);
    assert_int_equal(run(&p, 4, 0, 320), 10);
}

static void the_length_follows_the_place_where_drafts_go_wrong(void **state)
{
    (void)state;
    struct draft_pace p;
    draft_pace_init(&p);
    (void)run(&p, 4, 2, 60);
    for (int i = 0; i < 20; i++) assert_in_range(run(&p, 4, 2, 1), 2, 3);
}

static void a_text_that_becomes_easy_is_noticed(void **state)
{
    (void)state;
    struct draft_pace p;
    draft_pace_init(&p);
    (void)run(&p, 2, 0, 100);
    (void)run(&p, 2, 2, 40 * DRAFT_PROBE_STEPS);
    assert_int_equal(run(&p, 2, 2, 10), 20);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(right_drafts_are_made_in_full),
        cmocka_unit_test(wrong_drafts_end_but_for_a_probe_now_and_then),
        cmocka_unit_test(the_length_follows_the_place_where_drafts_go_wrong),
        cmocka_unit_test(a_text_that_becomes_easy_is_noticed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
