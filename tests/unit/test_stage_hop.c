/* test_stage_hop.c - rows from one stage to the next: each taker gets every step, in order */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "engine/stage_hop.h"

enum { N_BLOCK = 3, MAX_ROW = 4, WIDTH = 8, N_TAKER = 2, N_STEP = 2000 };

static struct stage_hop *make_hop(uint32_t n_taker)
{
    const struct stage_hop_config c = {
        .n_block = N_BLOCK, .max_row = MAX_ROW, .width = WIDTH, .n_taker = n_taker};
    struct stage_hop *h;
    assert_int_equal(stage_hop_create(&h, &c, NULL), FATHOM_OK);
    return h;
}

/* ---- in one process ---- */

static struct stage_hop *ring;

static uint32_t n_row_of(uint32_t step)
{
    return 1 + step % MAX_ROW;
}

/* The blocks of a round in an order of its own. A room is filled again as soon as both takers have
 * given it back. */
static uint32_t block_of(uint32_t step)
{
    return (step / N_BLOCK + step) % N_BLOCK;
}

static void *take_all(void *arg)
{
    const uint32_t taker = *(const uint32_t *)arg;
    uint64_t n_wrong = 0;
    for (uint32_t i = 0; i < N_STEP; i++) {
        const struct stage_head wanted = {.block = block_of(i), .n_row = n_row_of(i)};
        struct stage_head head;
        if (stage_hop_take(ring, taker, &wanted, &head)) return (void *)1;
        const float *rows = stage_hop_room(ring, head.block);
        n_wrong += head.experts.n_token != i;
        for (uint32_t k = 0; k < wanted.n_row * WIDTH; k++)
            n_wrong += rows[k] != (float)(i * 64 + k);
        stage_hop_release(ring, head.block);
    }
    return n_wrong ? (void *)2 : NULL;
}

static void every_taker_gets_every_step(void **state)
{
    (void)state;
    pthread_t takers[N_TAKER];
    uint32_t numbers[N_TAKER] = {0, 1};
    ring = make_hop(N_TAKER);
    for (int i = 0; i < N_TAKER; i++)
        assert_int_equal(pthread_create(&takers[i], NULL, take_all, &numbers[i]), 0);
    for (uint32_t i = 0; i < N_STEP; i++) {
        struct stage_head head = {.block = block_of(i), .n_row = n_row_of(i)};
        head.experts.n_token = i;
        assert_int_equal(stage_hop_claim(ring, head.block), FATHOM_OK);
        float *rows = stage_hop_room(ring, head.block);
        for (uint32_t k = 0; k < head.n_row * WIDTH; k++) rows[k] = (float)(i * 64 + k);
        assert_int_equal(stage_hop_give(ring, &head), FATHOM_OK);
    }
    for (int i = 0; i < N_TAKER; i++) {
        void *failed;
        pthread_join(takers[i], &failed);
        assert_null(failed);
    }
    stage_hop_destroy(ring);
}

static void another_step_is_found(void **state)
{
    (void)state;
    struct stage_hop *h = make_hop(1);
    struct stage_head head = {.block = 1, .n_row = 3}, out;
    assert_string_equal(stage_hop_fault(h), "");
    assert_int_equal(stage_hop_give(h, &head), FATHOM_OK);
    head.n_row = 2;
    assert_int_equal(stage_hop_take(h, 0, &head, &out), FATHOM_EPEER);
    assert_non_null(strstr(stage_hop_fault(h), "2 rows in block 1"));
    assert_non_null(strstr(stage_hop_fault(h), "gave 3 in block 1"));
    assert_int_equal(stage_hop_give(h, &head), FATHOM_EPEER);
    assert_int_equal(stage_hop_claim(h, 1), FATHOM_EPEER);
    stage_hop_renew(h);
    assert_string_equal(stage_hop_fault(h), "");
    assert_int_equal(stage_hop_give(h, &head), FATHOM_OK);
    assert_int_equal(stage_hop_take(h, 0, &head, &out), FATHOM_OK);
    stage_hop_destroy(h);
}

static void *take_one(void *arg)
{
    const struct stage_head wanted = {.block = 0, .n_row = 1};
    struct stage_head out;
    const fathom_err err = stage_hop_take(arg, 0, &wanted, &out);
    return (void *)(intptr_t)err;
}

/* Of two takers one has it already when the hop breaks. */
static void what_was_given_is_taken_by_all(void **state)
{
    (void)state;
    struct stage_hop *h = make_hop(N_TAKER);
    const struct stage_head head = {.block = 0, .n_row = 1}, next = {.block = 1, .n_row = 1};
    struct stage_head out;
    assert_int_equal(stage_hop_give(h, &head), FATHOM_OK);
    assert_int_equal(stage_hop_take(h, 0, &head, &out), FATHOM_OK);
    stage_hop_break(h, "its hosts part");
    assert_int_equal(stage_hop_take(h, 1, &head, &out), FATHOM_OK);
    for (uint32_t i = 0; i < N_TAKER; i++)
        assert_int_equal(stage_hop_take(h, i, &next, &out), FATHOM_EPEER);
    stage_hop_destroy(h);
}

/* Rooms may be memory of a device's. */
static void rooms_may_be_lent(void **state)
{
    (void)state;
    static float rows[2 * MAX_ROW * WIDTH];
    const struct stage_hop_config c = {
        .n_block = 2, .max_row = MAX_ROW, .width = WIDTH, .n_taker = 1, .borrows_rooms = true};
    struct stage_hop *h;
    assert_int_equal(stage_hop_create(&h, &c, NULL), FATHOM_OK);
    stage_hop_lend_rooms(h, rows);
    assert_ptr_equal(stage_hop_room(h, 1), rows + MAX_ROW * WIDTH);
    stage_hop_destroy(h);
}

static void a_taker_is_told_that_nothing_comes(void **state)
{
    (void)state;
    struct stage_hop *h = make_hop(1);
    pthread_t taker;
    void *err;
    assert_int_equal(pthread_create(&taker, NULL, take_one, h), 0);
    stage_hop_break(h, "rank 0 of 2: device failed");
    stage_hop_break(h, "another reason");
    pthread_join(taker, &err);
    assert_int_equal((intptr_t)err, FATHOM_EPEER);
    assert_string_equal(stage_hop_fault(h), "rank 0 of 2: device failed");
    stage_hop_destroy(h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_taker_gets_every_step),
        cmocka_unit_test(another_step_is_found),
        cmocka_unit_test(what_was_given_is_taken_by_all),
        cmocka_unit_test(rooms_may_be_lent),
        cmocka_unit_test(a_taker_is_told_that_nothing_comes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
