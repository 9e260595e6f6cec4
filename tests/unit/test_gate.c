/* test_gate.c - the gate of connections: who is let in, and each phase's deadline */
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
#include "server/http/gate.h"

enum { N = 3, SECOND = 1000000 };

static const struct gate_limits limits = {.max_connections = 2,
                                          .head_timeout_ms = 10000,
                                          .idle_timeout_ms = 30000,
                                          .body_timeout_ms = 20000};

struct line {
    struct gate *gate;
    int fds[N][2];
    struct gate_pass *passes[N];
};

static void open_line(struct line *l)
{
    log_set_level(LOG_LEVEL_ERROR);
    assert_int_equal(gate_create(&l->gate, &limits), FATHOM_OK);
    for (int i = 0; i < N; i++) {
        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, l->fds[i]), 0);
        l->passes[i] = gate_enter(l->gate, l->fds[i][0], 0);
        assert_non_null(l->passes[i]);
    }
}

static void close_line(struct line *l)
{
    for (int i = 0; i < N; i++) {
        gate_leave(l->gate, l->passes[i]);
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

static void a_shut_gate_shuts_who_is_in_and_who_comes(void **state)
{
    (void)state;
    struct line l;
    int fds[2];
    open_line(&l);
    gate_shut(l.gate);
    for (int i = 0; i < N; i++) assert_true(is_shut(&l, i));
    assert_int_equal(gate_n(l.gate), N);
    assert_int_equal(gate_n_late(l.gate), 0);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
    struct gate_pass *late = gate_enter(l.gate, fds[0], 0);
    char byte;
    assert_int_equal(recv(fds[1], &byte, 1, MSG_DONTWAIT), 0);
    gate_leave(l.gate, late);
    (void)close(fds[0]);
    (void)close(fds[1]);
    close_line(&l);
}

static void each_phase_has_its_deadline(void **state)
{
    (void)state;
    struct line l;
    open_line(&l);
    gate_move(l.gate, l.passes[1], GATE_BODY, 5 * SECOND);
    gate_move(l.gate, l.passes[2], GATE_BODY, 5 * SECOND);
    gate_move(l.gate, l.passes[2], GATE_ANSWER, 6 * SECOND);
    assert_int_equal(gate_sweep(l.gate, 10 * SECOND - 1), 0);
    assert_int_equal(gate_sweep(l.gate, 10 * SECOND), 1);
    assert_true(is_shut(&l, 0));
    assert_int_equal(gate_sweep(l.gate, 25 * SECOND - 1), 0); /* each is shut down once */
    assert_int_equal(gate_sweep(l.gate, 25 * SECOND), 1);
    assert_true(is_shut(&l, 1));
    assert_int_equal(gate_sweep(l.gate, 100000ull * SECOND), 0);
    assert_false(is_shut(&l, 2));
    gate_move(l.gate, l.passes[2], GATE_HEAD, 100000ull * SECOND);
    assert_int_equal(gate_sweep(l.gate, 100030ull * SECOND - 1), 0);
    assert_int_equal(gate_sweep(l.gate, 100030ull * SECOND), 1);
    assert_true(is_shut(&l, 2));
    assert_int_equal(gate_n_late(l.gate), 3);
    assert_int_equal(gate_n(l.gate), N);
    close_line(&l);
}

static void who_comes_when_it_is_full_is_known(void **state)
{
    (void)state;
    struct line l;
    open_line(&l);
    assert_false(gate_is_over_limit(l.passes[0]));
    assert_false(gate_is_over_limit(l.passes[1]));
    assert_true(gate_is_over_limit(l.passes[2]));
    gate_leave(l.gate, l.passes[0]);
    gate_leave(l.gate, l.passes[1]);
    assert_int_equal(gate_n(l.gate), 1);
    l.passes[0] = gate_enter(l.gate, l.fds[0][0], 0);
    l.passes[1] = gate_enter(l.gate, l.fds[1][0], 0);
    assert_false(gate_is_over_limit(l.passes[0]));
    assert_true(gate_is_over_limit(l.passes[1]));
    assert_false(gate_is_over_limit(NULL));
    close_line(&l);
}

static void no_memory_means_unwatched(void **state)
{
    (void)state;
    struct gate *g;
    mem_fail_after(0);
    assert_int_equal(gate_create(&g, &limits), FATHOM_ENOMEM);
    mem_fail_after(-1);
    assert_int_equal(gate_create(&g, &limits), FATHOM_OK);
    mem_fail_after(0);
    assert_null(gate_enter(g, 0, 0));
    mem_fail_after(-1);
    gate_move(g, NULL, GATE_BODY, 0);
    gate_leave(g, NULL);
    assert_int_equal(gate_n(g), 0);
    gate_destroy(g);
    gate_destroy(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_shut_gate_shuts_who_is_in_and_who_comes),
        cmocka_unit_test(each_phase_has_its_deadline),
        cmocka_unit_test(who_comes_when_it_is_full_is_known),
        cmocka_unit_test(no_memory_means_unwatched),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
