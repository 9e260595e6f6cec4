/* test_gate.c - the gate of connections: who is let in, who goes for others, each phase's deadline
 */
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/log.h"
#include "base/mem.h"
#include "http/gate.h"

enum { N = 6, SECOND = 1000000 };

static const struct gate_limits limits = {.max_connections = 4,
                                          .head_timeout_ms = 10000,
                                          .idle_timeout_ms = 30000,
                                          .body_timeout_ms = 20000,
                                          .unread_timeout_ms = 40000,
                                          .max_unread_bytes = 1000};

struct line {
    struct gate *gate;
    int fds[N][2];
    struct gate_pass *passes[N]; /* NULL: not entered */
};

static void enter(struct line *l, int i, uint64_t now_us)
{
    assert_int_equal(gate_enter(l->gate, l->fds[i][0], now_us, &l->passes[i]), FATHOM_OK);
    assert_non_null(l->passes[i]);
}

/* The first n have entered, a second after each other. */
static void open_line(struct line *l, int n)
{
    log_set_level(LOG_LEVEL_ERROR);
    *l = (struct line){0};
    assert_int_equal(gate_create(&l->gate, &limits), FATHOM_OK);
    for (int i = 0; i < N; i++) {
        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, l->fds[i]), 0);
    }
    for (int i = 0; i < n; i++) enter(l, i, (uint64_t)i * SECOND);
}

static void close_line(struct line *l)
{
    for (int i = 0; i < N; i++) {
        if (l->passes[i]) gate_leave(l->gate, l->passes[i]);
        (void)close(l->fds[i][0]);
        (void)close(l->fds[i][1]);
    }
    gate_destroy(l->gate);
}

static bool is_shut(const struct line *l, int i)
{
    char byte;
    return recv(l->fds[i][1], &byte, 1, MSG_DONTWAIT) == 0;
}

/* Those of this set of bits are shut, the others are not. */
static void assert_shut(const struct line *l, unsigned set)
{
    for (int i = 0; i < N; i++) {
        if (is_shut(l, i) != (bool)(set >> i & 1)) fail_msg("connection %d, wanted %#x", i, set);
    }
}

static void a_shut_gate_shuts_who_is_in_and_who_comes(void **state)
{
    (void)state;
    struct line l;
    open_line(&l, 3);
    gate_shut(l.gate);
    assert_shut(&l, 7);
    assert_int_equal(gate_n(l.gate), 3);
    assert_int_equal(gate_n_late(l.gate), 0);
    enter(&l, 3, 0);
    assert_shut(&l, 15);
    close_line(&l);
}

static void each_phase_has_its_deadline(void **state)
{
    (void)state;
    static const struct {
        enum gate_phase phase;
        uint64_t seconds; /* 0: none */
    } cases[] = {{GATE_NEW, 10},  {GATE_HEAD, 10}, {GATE_KEPT, 30},
                 {GATE_BODY, 20}, {GATE_BUSY, 0},  {GATE_CLOSING, 2}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct line l;
        open_line(&l, 1);
        gate_move(l.gate, l.passes[0], cases[i].phase, 5 * SECOND);
        uint64_t end_us = (cases[i].seconds ? 5 + cases[i].seconds : 100000) * SECOND;
        assert_int_equal(gate_sweep(l.gate, end_us - 1), 0);
        assert_shut(&l, 0);
        (void)gate_sweep(l.gate, end_us);
        assert_shut(&l, cases[i].seconds != 0);
        assert_int_equal(gate_sweep(l.gate, end_us), 0); /* each is shut down once */
        assert_int_equal(gate_n_late(l.gate), cases[i].seconds && cases[i].phase != GATE_CLOSING);
        assert_int_equal(gate_n(l.gate), 1);
        gate_move(l.gate, l.passes[0], GATE_BUSY, end_us); /* its thread has not seen it yet */
        close_line(&l);
    }
}

static void reading_puts_the_end_of_a_reader_off(void **state)
{
    (void)state;
    struct line l;
    open_line(&l, 2);
    gate_note_unread(l.gate, l.passes[0], 400, 0);
    gate_note_unread(l.gate, l.passes[1], 500, 0);
    assert_int_equal(gate_unread_bytes(l.gate), 900);
    gate_note_unread(l.gate, l.passes[1], 300, 30ull * SECOND);
    assert_int_equal(gate_unread_bytes(l.gate), 700);
    assert_int_equal(gate_sweep(l.gate, 40ull * SECOND), 1);
    assert_shut(&l, 1);
    assert_int_equal(gate_unread_bytes(l.gate), 300);
    gate_move(l.gate, l.passes[1], GATE_KEPT, 41ull * SECOND);
    assert_int_equal(gate_unread_bytes(l.gate), 0);
    assert_int_equal(gate_sweep(l.gate, 70ull * SECOND), 0);
    close_line(&l);
}

static void who_holds_most_and_reads_least_is_cut_for_the_others(void **state)
{
    (void)state;
    struct line l;
    open_line(&l, 4);
    gate_note_unread(l.gate, l.passes[0], 300, 0);
    gate_note_unread(l.gate, l.passes[1], 600, 0);
    gate_note_unread(l.gate, l.passes[2], 90, 0);
    assert_shut(&l, 0);
    gate_note_unread(l.gate, l.passes[3], 700, 10ull * SECOND);
    assert_shut(&l, 1u << 0 | 1u << 1); /* 600 was not enough */
    assert_int_equal(gate_unread_bytes(l.gate), 790);
    assert_int_equal(gate_n_dropped(l.gate), 2);
    gate_note_unread(l.gate, l.passes[3], 2000, 11ull * SECOND); /* alone it is too much */
    assert_shut(&l, 1u << 0 | 1u << 1 | 1u << 2 | 1u << 3);
    assert_int_equal(gate_unread_bytes(l.gate), 0);
    close_line(&l);
}

static void the_slowest_class_goes_first(void **state)
{
    (void)state;
    static const struct {
        enum gate_phase phases[4];
        size_t bodies[4];
        unsigned shut; /* bits; 0: nobody goes, the new one is over the limit */
    } cases[] = {
        {{GATE_HEAD, GATE_KEPT, GATE_NEW, GATE_BUSY}, {0}, 1u << 1},
        {{GATE_HEAD, GATE_BUSY, GATE_NEW, GATE_BUSY}, {0}, 1u << 2},
        {{GATE_BODY, GATE_HEAD, GATE_HEAD, GATE_BUSY}, {0}, 1u << 1},
        {{GATE_BODY, GATE_BODY, GATE_BODY, GATE_BUSY}, {9000000, 1, 5000000}, 1u << 1},
        {{GATE_BODY, GATE_BUSY, GATE_CLOSING, GATE_KEPT}, {0}, 1u << 2},
        {{GATE_BUSY, GATE_BUSY, GATE_BUSY, GATE_BUSY}, {0}, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct line l;
        open_line(&l, 4);
        for (int p = 0; p < 4; p++) {
            gate_move(l.gate, l.passes[p], cases[i].phases[p], (uint64_t)(p + 4) * SECOND);
            gate_note_body(l.passes[p], cases[i].bodies[p]);
        }
        enter(&l, 4, 9 * SECOND);
        assert_shut(&l, cases[i].shut);
        assert_int_equal(gate_is_over_limit(l.passes[4]), cases[i].shut == 0);
        assert_int_equal(gate_n_dropped(l.gate), cases[i].shut != 0);
        close_line(&l);
    }
}

static void who_answers_or_is_not_read_never_goes(void **state)
{
    (void)state;
    struct line l;
    open_line(&l, 2);
    gate_move(l.gate, l.passes[0], GATE_BUSY, 0);
    gate_note_unread(l.gate, l.passes[1], 10, 0);
    assert_false(gate_drop_slowest(l.gate, SECOND));
    gate_move(l.gate, l.passes[0], GATE_KEPT, SECOND);
    assert_true(gate_drop_slowest(l.gate, SECOND));
    assert_shut(&l, 1);
    close_line(&l);
}

/* A thread reads the clock before it has the lock, and another one may have moved a connection in
 * between. */
static void a_connection_that_is_younger_than_the_clock_does_not_go(void **state)
{
    (void)state;
    struct line l;
    open_line(&l, 2);
    gate_move(l.gate, l.passes[0], GATE_BODY, 0);
    gate_move(l.gate, l.passes[1], GATE_BODY, 10ull * SECOND);
    assert_true(gate_drop_slowest(l.gate, 9ull * SECOND));
    assert_shut(&l, 1);
    close_line(&l);
    open_line(&l, 3);
    gate_note_unread(l.gate, l.passes[0], 400, 0);
    gate_note_unread(l.gate, l.passes[1], 500, 10ull * SECOND);
    gate_note_unread(l.gate, l.passes[2], 200, 9ull * SECOND);
    assert_shut(&l, 1);
    close_line(&l);
}

static void those_over_the_limit_make_room_for_each_other(void **state)
{
    (void)state;
    enum { MAX = 4 + GATE_OVER_LIMIT_MAX };
    struct line l;
    struct gate_pass *over[GATE_OVER_LIMIT_MAX];
    open_line(&l, 4);
    for (int i = 0; i < 4; i++) gate_move(l.gate, l.passes[i], GATE_BUSY, 0);
    for (int i = 0; i < GATE_OVER_LIMIT_MAX; i++) {
        assert_false(gate_is_full(l.gate));
        assert_int_equal(gate_enter(l.gate, l.fds[5][0], 1, &over[i]), FATHOM_OK);
        assert_true(gate_is_over_limit(over[i]));
        gate_move(l.gate, over[i], GATE_BUSY, 1);
    }
    assert_int_equal(gate_n(l.gate), MAX);
    assert_true(gate_is_full(l.gate));
    struct gate_pass *none;
    assert_int_equal(gate_enter(l.gate, l.fds[4][0], 2, &none), FATHOM_EBUSY);
    gate_move(l.gate, over[0], GATE_KEPT, 2);
    assert_false(gate_is_full(l.gate));
    enter(&l, 4, 3);
    assert_true(gate_is_over_limit(l.passes[4]));
    assert_true(is_shut(&l, 5)); /* that of over[0] */
    for (int i = 0; i < GATE_OVER_LIMIT_MAX; i++) gate_leave(l.gate, over[i]);
    gate_leave(l.gate, l.passes[0]);
    enter(&l, 0, 4); /* a place is free again */
    assert_false(gate_is_over_limit(l.passes[0]));
    gate_set_max(l.gate, 1);
    assert_int_equal(gate_max(l.gate), 1);
    close_line(&l);
}

static void without_memory_nobody_enters(void **state)
{
    (void)state;
    struct gate *g;
    struct gate_pass *pass;
    mem_fail_after(0);
    assert_int_equal(gate_create(&g, &limits), FATHOM_ENOMEM);
    mem_fail_after(-1);
    assert_int_equal(gate_create(&g, &limits), FATHOM_OK);
    mem_fail_after(0);
    assert_int_equal(gate_enter(g, 0, 0, &pass), FATHOM_ENOMEM);
    mem_fail_after(-1);
    assert_null(pass);
    assert_int_equal(gate_n(g), 0);
    gate_destroy(g);
    gate_destroy(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_shut_gate_shuts_who_is_in_and_who_comes),
        cmocka_unit_test(each_phase_has_its_deadline),
        cmocka_unit_test(reading_puts_the_end_of_a_reader_off),
        cmocka_unit_test(who_holds_most_and_reads_least_is_cut_for_the_others),
        cmocka_unit_test(the_slowest_class_goes_first),
        cmocka_unit_test(who_answers_or_is_not_read_never_goes),
        cmocka_unit_test(a_connection_that_is_younger_than_the_clock_does_not_go),
        cmocka_unit_test(those_over_the_limit_make_room_for_each_other),
        cmocka_unit_test(without_memory_nobody_enters),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
