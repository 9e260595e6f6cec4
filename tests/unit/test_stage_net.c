/* test_stage_net.c - rows from host to host and draws to host 0, over loopback */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "comm/tcp_link.h"
#include "engine/stage_net.h"
#include "support/patience.h"

enum { N_HOST = 3, N_BLOCK = 3, MAX_ROW = 40, WIDTH = 600, N_STEP = 400, LONG_US = 60000000 };
enum { RECORD_STEPS = 20, RECORD_BYTES = 300000 }; /* of every so many steps one has a record */

/* A host: its net, the hops at its edges, its links, and what it was told of others. */
struct host {
    struct stage_net *net;
    struct stage_hop *in;
    struct stage_hop *out;
    struct page_link *links[N_HOST];
    _Atomic uint32_t lost; /* whom; 0: nobody */
    char why[200];
};

static struct stage_hop *make_hop(void)
{
    const struct stage_hop_config c = {
        .n_block = N_BLOCK, .max_row = MAX_ROW, .width = WIDTH, .n_taker = 1};
    struct stage_hop *h;
    assert_int_equal(stage_hop_create(&h, &c, NULL), FATHOM_OK);
    return h;
}

static void note_lost(void *arg, uint32_t node_rank, const char *why)
{
    struct host *h = arg;
    (void)snprintf(h->why, sizeof h->why, "%s", why);
    atomic_store(&h->lost, node_rank);
}

static struct stage_net_config config_of(struct host *h, uint32_t rank, uint32_t n)
{
    return (struct stage_net_config){.node_rank = rank,
                                     .n_node = n,
                                     .n_block = N_BLOCK,
                                     .max_row = MAX_ROW,
                                     .width = WIDTH,
                                     .max_draw = MAX_ROW,
                                     .lost = note_lost,
                                     .arg = h};
}

static void make_host(struct host *h, const struct stage_net_config *c)
{
    assert_int_equal(stage_net_create(&h->net, c, NULL), FATHOM_OK);
    if (c->node_rank > 0) h->in = make_hop();
    if (c->node_rank + 1 < c->n_node) h->out = make_hop();
    stage_net_attach(h->net, h->in, h->out);
}

/* Both ends of a connection. */
static void connect_pair(struct page_link **a, struct page_link **b)
{
    int fd;
    uint16_t port;
    assert_int_equal(tcp_link_listen("127.0.0.1", 0, &fd, &port, NULL), FATHOM_OK);
    assert_int_equal(tcp_link_dial(a, "127.0.0.1", port, clock_now_us() + LONG_US, -1, NULL),
                     FATHOM_OK);
    *b = tcp_link_accept(fd, -1);
    assert_non_null(*b);
    (void)close(fd);
}

static void begin(struct host *hosts, uint32_t n)
{
    for (uint32_t i = 1; i < n; i++) connect_pair(&hosts[i].links[0], &hosts[0].links[i]);
    for (uint32_t i = 0; i < n; i++)
        assert_int_equal(stage_net_begin(hosts[i].net, hosts[i].links, NULL), FATHOM_OK);
}

/* As hosts do that join anew. */
static void end(struct host *hosts, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        struct host *h = &hosts[i];
        stage_net_end(h->net);
        if (h->in) stage_hop_renew(h->in);
        if (h->out) stage_hop_renew(h->out);
    }
    for (uint32_t i = 0; i < n; i++) {
        for (uint32_t k = 0; k < N_HOST; k++) {
            if (hosts[i].links[k]) hosts[i].links[k]->ops->close(hosts[i].links[k]);
            hosts[i].links[k] = NULL;
        }
    }
}

static void destroy(struct host *hosts, uint32_t n)
{
    end(hosts, n);
    for (uint32_t i = 0; i < n; i++) {
        stage_net_destroy(hosts[i].net);
        stage_hop_destroy(hosts[i].in);
        stage_hop_destroy(hosts[i].out);
    }
}

static void await_lost(struct host *h, uint32_t node_rank)
{
    uint64_t end_us = 0;
    while (atomic_load(&h->lost) == 0 && keep_waiting(&end_us)) {
    }
    assert_int_equal(atomic_load(&h->lost), node_rank);
    atomic_store(&h->lost, 0);
}

/* ---- steps through three hosts ---- */

static uint32_t n_row_of(uint32_t step)
{
    return 1 + step * 7 % MAX_ROW;
}

static uint32_t n_top_of(uint32_t step)
{
    return step % 3 == 0 ? 2 : 0;
}

/* Some steps draw nothing. */
static uint32_t n_draw_of(uint32_t step)
{
    return step % 5 == 0 ? 0 : n_row_of(step);
}

static bool has_record(uint32_t step)
{
    return step % RECORD_STEPS == 3;
}

static bool tell_record(struct host *h, uint32_t rank, uint32_t step)
{
    static unsigned char records[N_HOST][RECORD_BYTES];
    if (!has_record(step)) return true;
    memset(records[rank], (int)(rank + step), RECORD_BYTES);
    return stage_net_tell_record(h->net, records[rank], RECORD_BYTES) == FATHOM_OK;
}

static void *hand_through(void *arg)
{
    struct host *h = arg;
    for (uint32_t i = 0; i < N_STEP; i++) {
        struct stage_head head;
        if (stage_hop_next(h->in, 0, &head)) return (void *)1;
        const float *from = stage_hop_room(h->in, head.block);
        float *to = stage_hop_room(h->out, head.block);
        if (stage_hop_claim(h->out, head.block)) return (void *)3;
        for (uint32_t k = 0; k < head.n_row * WIDTH; k++) to[k] = from[k] + 1;
        stage_hop_release(h->in, head.block);
        head.experts.n_hit += 2;
        if (stage_hop_give(h->out, &head)) return (void *)2;
        if (!tell_record(h, 1, i)) return (void *)4; /* while rows are sent */
    }
    return NULL;
}

/* Draws what the rows say: ids are the first value of each. */
static void *draw_all(void *arg)
{
    static int32_t ids[MAX_ROW], top_ids[MAX_ROW * SAMPLE_TOP_MAX];
    static float logprobs[MAX_ROW], top_logprobs[MAX_ROW * SAMPLE_TOP_MAX];
    static uint32_t ranks[MAX_ROW];
    struct host *h = arg;
    for (uint32_t i = 0; i < N_STEP; i++) {
        struct stage_head head;
        if (stage_hop_next(h->in, 0, &head)) return (void *)1;
        const float *rows = stage_hop_room(h->in, head.block);
        for (uint32_t k = 0; k < head.n_row * WIDTH; k++) {
            if (rows[k] != (float)(i + k) + 1) return (void *)3;
        }
        for (uint32_t k = 0; k < head.n_row; k++) {
            ids[k] = (int32_t)rows[k * WIDTH];
            logprobs[k] = -rows[k * WIDTH];
            ranks[k] = i;
        }
        stage_hop_release(h->in, head.block);
        for (uint32_t k = 0; k < head.n_row * SAMPLE_TOP_MAX; k++) {
            top_ids[k] = (int32_t)(i + k);
            top_logprobs[k] = -(float)k;
        }
        const struct step_result r = {ids, logprobs, ranks, top_ids, top_logprobs, head.experts};
        if (stage_net_tell_drawn(h->net, head.block, &r, n_draw_of(i), n_top_of(i)))
            return (void *)2;
        if (!tell_record(h, 2, i)) return (void *)4;
    }
    return NULL;
}

static void expect_records(struct host *h, uint32_t step, unsigned char *to)
{
    for (uint32_t rank = 1; has_record(step) && rank < N_HOST; rank++)
        stage_net_expect_record(h->net, rank, to + rank * RECORD_BYTES, RECORD_BYTES);
}

static void check_records(struct host *h, uint32_t step, const unsigned char *to)
{
    for (uint32_t rank = 1; has_record(step) && rank < N_HOST; rank++) {
        assert_int_equal(stage_net_await_record(h->net, rank), FATHOM_OK);
        for (uint32_t k = 0; k < RECORD_BYTES; k++)
            assert_int_equal(to[rank * RECORD_BYTES + k], (unsigned char)(rank + step));
    }
}

static void launch_step(struct host *h, uint32_t i)
{
    const struct stage_head head = {
        .block = i % N_BLOCK, .n_row = n_row_of(i), .experts = {.n_hit = i}};
    float *rows = stage_hop_room(h->out, head.block);
    assert_int_equal(stage_hop_claim(h->out, head.block), FATHOM_OK);
    for (uint32_t k = 0; k < head.n_row * WIDTH; k++) rows[k] = (float)(i + k);
    assert_int_equal(stage_hop_give(h->out, &head), FATHOM_OK);
}

static void check_drawn(const struct step_result *r, uint32_t i)
{
    assert_int_equal(r->experts.n_hit, i + 2);
    assert_true((r->top_ids != NULL) == (n_top_of(i) > 0));
    assert_true((r->top_logprobs != NULL) == (n_top_of(i) > 0));
    for (uint32_t k = 0; k < n_draw_of(i); k++) {
        assert_int_equal(r->ids[k], (int32_t)(i + k * WIDTH + 1));
        assert_true(r->logprobs[k] == -(float)(i + k * WIDTH + 1));
        assert_int_equal(r->ranks[k], i);
    }
    for (uint32_t k = 0; r->top_ids && k < n_draw_of(i) * SAMPLE_TOP_MAX; k++) {
        assert_int_equal(r->top_ids[k], i + k);
        assert_true(r->top_logprobs[k] == -(float)k);
    }
}

static void run_steps(struct host *hosts)
{
    static unsigned char records[N_HOST * RECORD_BYTES];
    pthread_t middle, last;
    struct step_result r;
    void *failed;
    assert_int_equal(pthread_create(&middle, NULL, hand_through, &hosts[1]), 0);
    assert_int_equal(pthread_create(&last, NULL, draw_all, &hosts[2]), 0);
    for (uint32_t i = 0; i < N_STEP + N_BLOCK; i++) { /* N_BLOCK steps are under way */
        if (i >= N_BLOCK) {
            assert_int_equal(stage_net_await_drawn(hosts[0].net, i % N_BLOCK, &r), FATHOM_OK);
            check_drawn(&r, i - N_BLOCK);
            check_records(&hosts[0], i - N_BLOCK, records);
        }
        if (i < N_STEP) expect_records(&hosts[0], i, records);
        if (i < N_STEP) launch_step(&hosts[0], i);
    }
    pthread_join(middle, &failed);
    assert_null(failed);
    pthread_join(last, &failed);
    assert_null(failed);
}

static void steps_go_through_three_hosts_and_again_after_a_new_beginning(void **state)
{
    (void)state;
    struct host hosts[N_HOST] = {{0}};
    for (uint32_t i = 0; i < N_HOST; i++) {
        const struct stage_net_config c = config_of(&hosts[i], i, N_HOST);
        make_host(&hosts[i], &c);
    }
    begin(hosts, N_HOST);
    run_steps(hosts);
    end(hosts, N_HOST);
    begin(hosts, N_HOST);
    run_steps(hosts);
    for (uint32_t i = 0; i < N_HOST; i++) assert_int_equal(atomic_load(&hosts[i].lost), 0);
    destroy(hosts, N_HOST);
}

/* ---- what fails ---- */

static void *await_one(void *arg)
{
    struct host *h = arg;
    struct step_result r;
    return (void *)(intptr_t)stage_net_await_drawn(h->net, 0, &r);
}

static void *take_one(void *arg)
{
    struct host *h = arg;
    struct stage_head head;
    return (void *)(intptr_t)stage_hop_next(h->in, 0, &head);
}

static void a_host_that_fails_ends_every_wait(void **state)
{
    (void)state;
    struct host hosts[N_HOST] = {{0}};
    const struct step_result none = {0};
    unsigned char byte;
    pthread_t waits, takes;
    void *err;
    for (uint32_t i = 0; i < N_HOST; i++) {
        const struct stage_net_config c = config_of(&hosts[i], i, N_HOST);
        make_host(&hosts[i], &c);
    }
    begin(hosts, N_HOST);
    assert_int_equal(pthread_create(&waits, NULL, await_one, &hosts[0]), 0);
    assert_int_equal(pthread_create(&takes, NULL, take_one, &hosts[2]), 0);
    stage_net_expect_record(hosts[0].net, 2, &byte, 1);
    stage_net_break(hosts[1].net, "rank 0 of 1: device failed");
    assert_int_equal(stage_net_await_record(hosts[0].net, 2), FATHOM_EPEER);
    await_lost(&hosts[0], 1);
    pthread_join(waits, &err);
    assert_int_equal((intptr_t)err, FATHOM_EPEER);
    pthread_join(takes, &err); /* host 0 has broken all its links */
    assert_int_equal((intptr_t)err, FATHOM_EPEER);
    assert_string_equal(stage_hop_fault(hosts[1].in), "rank 0 of 1: device failed");
    assert_non_null(strstr(stage_hop_fault(hosts[0].out), "host 1 is lost: "));
    uint64_t end_us = 0; /* links break behind hops */
    fathom_err told;
    do told = stage_net_tell_drawn(hosts[2].net, 0, &none, 0, 0);
    while (told == FATHOM_OK && keep_waiting(&end_us));
    assert_int_equal(told, FATHOM_EPEER);
    assert_int_equal(stage_net_tell_record(hosts[2].net, &byte, 1), FATHOM_EPEER);
    destroy(hosts, N_HOST);
}

/* Of two bytes, when so many are due; 0: none is. */
static void expect_refused_record(size_t n_due)
{
    struct host hosts[2] = {{0}};
    unsigned char bytes[2] = {0}, to[3];
    for (uint32_t i = 0; i < 2; i++) {
        const struct stage_net_config c = config_of(&hosts[i], i, 2);
        make_host(&hosts[i], &c);
    }
    begin(hosts, 2);
    if (n_due > 0) stage_net_expect_record(hosts[0].net, 1, to, n_due);
    assert_int_equal(stage_net_tell_record(hosts[1].net, bytes, 2), FATHOM_OK);
    await_lost(&hosts[0], 1);
    assert_non_null(strstr(hosts[0].why, "it sends 2 bytes of a page, which are not expected"));
    if (n_due > 0) assert_int_equal(stage_net_await_record(hosts[0].net, 1), FATHOM_EPEER);
    destroy(hosts, 2);
}

static void records_that_are_none_are_refused(void **state)
{
    (void)state;
    expect_refused_record(0);
    expect_refused_record(1);
    expect_refused_record(3);
}

/* Host 0 of n0 hosts, and who sends to it as host 1 by a net of its own making. */
static void expect_refused_draws(uint32_t n0, const struct stage_net_config *sender, uint32_t block,
                                 uint32_t n_row, const char *why)
{
    static int32_t words[4 * MAX_ROW];
    const struct step_result r = {
        .ids = words, .logprobs = (const float *)words, .ranks = (const uint32_t *)words};
    struct host hosts[2] = {{0}};
    const struct stage_net_config c = config_of(&hosts[0], 0, n0);
    make_host(&hosts[0], &c);
    make_host(&hosts[1], sender);
    begin(hosts, 2);
    assert_int_equal(stage_net_tell_drawn(hosts[1].net, block, &r, n_row, 0), FATHOM_OK);
    await_lost(&hosts[0], 1);
    assert_non_null(strstr(hosts[0].why, why));
    destroy(hosts, 2);
}

static void draws_that_are_none_are_refused(void **state)
{
    (void)state;
    struct host nobody = {0};
    struct stage_net_config c = config_of(&nobody, 1, 2);
    c.lost = NULL;
    c.max_draw = 4 * MAX_ROW;
    expect_refused_draws(2, &c, 0, MAX_ROW + 1, "it sends 41 rows of block 0 to host 0");
    c.n_block = N_BLOCK + 1;
    expect_refused_draws(2, &c, N_BLOCK, 1, "it sends 1 rows of block 3 to host 0");
    expect_refused_draws(3, &c, 0, 1, "which is not expected"); /* host 2 is the last of three */
}

static void rows_that_are_none_are_refused(void **state)
{
    (void)state;
    struct host hosts[2] = {{0}};
    struct stage_head head = {.block = 0, .n_row = MAX_ROW};
    struct stage_net_config c = config_of(&hosts[0], 0, 2);
    make_host(&hosts[0], &c);
    c = config_of(&hosts[1], 1, 2);
    c.max_row = MAX_ROW - 1;
    make_host(&hosts[1], &c);
    begin(hosts, 2);
    assert_int_equal(stage_hop_give(hosts[0].out, &head), FATHOM_OK);
    assert_int_equal((intptr_t)take_one(&hosts[1]), FATHOM_EPEER);
    assert_non_null(strstr(stage_hop_fault(hosts[1].in), "it sends 40 rows of block 0 to host 1"));
    await_lost(&hosts[0], 1);
    destroy(hosts, 2);
}

static void any_bytes_are_refused(void **state)
{
    (void)state;
    struct host hosts[2] = {{0}};
    unsigned char bytes[4096];
    const struct link_part part = {bytes, sizeof bytes};
    memset(bytes, 0xa5, sizeof bytes);
    const struct stage_net_config c = config_of(&hosts[0], 0, 2);
    make_host(&hosts[0], &c);
    connect_pair(&hosts[1].links[0], &hosts[0].links[1]);
    assert_int_equal(stage_net_begin(hosts[0].net, hosts[0].links, NULL), FATHOM_OK);
    struct page_link *l = hosts[1].links[0];
    assert_int_equal(l->ops->send(l, &part, 1, clock_now_us() + LONG_US, NULL), FATHOM_OK);
    await_lost(&hosts[0], 1);
    assert_non_null(strstr(hosts[0].why, "which is not expected"));
    l->ops->close(l);
    destroy(hosts, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steps_go_through_three_hosts_and_again_after_a_new_beginning),
        cmocka_unit_test(a_host_that_fails_ends_every_wait),
        cmocka_unit_test(draws_that_are_none_are_refused),
        cmocka_unit_test(records_that_are_none_are_refused),
        cmocka_unit_test(rows_that_are_none_are_refused),
        cmocka_unit_test(any_bytes_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
