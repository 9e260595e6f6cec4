/* test_host_follow.c - what host 0 tells another host: the calls that its ranks get, and bytes that
 * are no work
 */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/clock.h"
#include "engine/host_follow.h"
#include "engine/host_lanes.h"

enum { N_BLOCK = 2, N_PAGE = 5, RECORD_BYTES = 16, BLOCK_BYTES = 256, BIAS = 128, HISTORY = 192 };

/* ---- ranks that write down what they are told ----------------------------------------------- */

struct ranks {
    struct step_runner base; /* first member */
    char calls[64];
    size_t n_call;
    char blocks[N_BLOCK][BLOCK_BYTES];
    uint32_t i;
    char rooms[1 << 14];
};

static fathom_err note(void *ranks, char call)
{
    struct ranks *r = ranks;
    assert_true(r->n_call + 1 < sizeof r->calls);
    r->calls[r->n_call++] = call;
    return FATHOM_OK;
}

static fathom_err launch(struct step_runner *r, const struct step *step)
{
    (void)step;
    return note(r, 'l');
}

static fathom_err draw(struct step_runner *r, const struct step *step)
{
    (void)step;
    return note(r, 'd');
}

static fathom_err wait(struct step_runner *r, struct step_result *out)
{
    memset(out, 0, sizeof *out);
    return note(r, 'w');
}

static void next_block(struct step_runner *base)
{
    struct ranks *r = (struct ranks *)base;
    (void)note(r, 'n');
    r->i = (r->i + 1) % N_BLOCK;
    base->host = r->blocks[r->i];
}

static fathom_err connect_ranks(struct step_runner *r)
{
    return note(r, 'c');
}

static fathom_err page_in(void *r, uint32_t page, const void *from)
{
    assert_true(page < N_PAGE && from);
    return note(r, 'p');
}

static fathom_err sync_ranks(struct step_runner *r)
{
    return note(r, 's');
}

static const char *fault(struct step_runner *r)
{
    (void)r;
    return "";
}

static fathom_err alloc_host(struct step_runner *base, size_t n, void **out, fathom_diag *d)
{
    struct ranks *r = (struct ranks *)base;
    (void)d;
    assert_true(n <= sizeof r->rooms);
    *out = r->rooms;
    return FATHOM_OK;
}

static void release_host(struct step_runner *r, void *p)
{
    (void)r, (void)p;
}

static const struct step_runner_ops ops = {.launch = launch,
                                           .draw = draw,
                                           .wait = wait,
                                           .next_block = next_block,
                                           .connect = connect_ranks,
                                           .fault = fault,
                                           .page_in = page_in,
                                           .sync = sync_ranks,
                                           .alloc_host = alloc_host,
                                           .release_host = release_host};

/* ---- host 0, and the other one on a thread -------------------------------------------------- */

struct pair {
    struct host_hub *hub;
    struct host_self self;
    fathom_hosts hosts;
    struct host_lanes lanes;
    struct ranks ranks;
    pthread_t thread;
    fathom_err err;
    fathom_diag d;
};

static void *follow_main(void *arg)
{
    struct pair *p = arg;
    p->err = host_follow(&p->lanes, &p->ranks.base, &p->self, &p->d);
    return NULL;
}

static void begin(struct pair *p)
{
    struct host_hub_config c = {.self = {.n_node = 2, .n_page = N_PAGE}, .host = "127.0.0.1"};
    memset(p, 0, sizeof *p);
    (void)snprintf(c.self.build, sizeof c.self.build, "fathom 1");
    assert_int_equal(host_hub_create(&p->hub, &c, NULL), FATHOM_OK);
    p->self = c.self;
    p->self.node_rank = 1;
    p->hosts = (fathom_hosts){.n_node = 2, .node_rank = 1};
    p->lanes.hosts = &p->hosts;
    p->lanes.address.port = host_hub_port(p->hub);
    (void)snprintf(p->lanes.address.host, sizeof p->lanes.address.host, "127.0.0.1");
    for (int i = 0; i < 2; i++) p->lanes.records[i].n_bytes = RECORD_BYTES;
    p->ranks.base.ops = &ops;
    p->ranks.base.max_flight = N_BLOCK;
    p->ranks.base.host = p->ranks.blocks[0];
    p->ranks.base.layout.n_bytes = BLOCK_BYTES;
    p->ranks.base.layout.bias = BIAS;
    p->ranks.base.layout.history = HISTORY;
    assert_int_equal(pthread_create(&p->thread, NULL, follow_main, p), 0);
    while (host_hub_gather(p->hub, NULL) != FATHOM_OK) clock_sleep_us(1000);
}

/* The other host's end. Its ranks have been told `calls`. */
static void end(struct pair *p, const char *calls, const char *why)
{
    assert_int_equal(pthread_join(p->thread, NULL), 0);
    assert_int_equal(p->err, FATHOM_EFORMAT);
    assert_string_equal(p->ranks.calls, calls);
    assert_non_null(strstr(p->d.text, why));
    host_member_destroy(p->lanes.member);
    host_hub_destroy(p->hub);
}

/* A step's WORK, with n_byte bytes of its block. */
struct told {
    struct work work;
    struct step step;
    size_t n_byte;
};

static void tell(struct pair *p, const struct told *t)
{
    static const char bytes[2 * BLOCK_BYTES];
    const struct link_part parts[] = {
        {&t->work, sizeof t->work}, {&t->step, sizeof t->step}, {bytes, t->n_byte}};
    assert_int_equal(host_hub_tell(p->hub, parts, 3), FATHOM_OK);
}

static struct told of_step(uint32_t kind, uint32_t block)
{
    struct told t = {.work = {.kind = kind, .block = block, .n_step = 1}};
    if (kind != WORK_LAUNCH) return t;
    t.step.prefix_bytes = t.n_byte = 40;
    return t;
}

/* "l0d0": the launch and the draws of a step of block 0. */
static void tell_all(struct pair *p, const char *words)
{
    for (; *words; words += 2) {
        const uint32_t kind = words[0] == 'l'   ? WORK_LAUNCH
                              : words[0] == 'd' ? WORK_DRAW
                                                : WORK_WAIT;
        const struct told t = of_step(kind, (uint32_t)(words[1] - '0'));
        tell(p, &t);
    }
}

/* ---- tests ---------------------------------------------------------------------------------- */

static void blocks_go_round_as_on_host_0_and_what_is_not_due_ends_it(void **state)
{
    /* what is told, of which the last is not due, and what the ranks have been */
    static const char *const cases[][2] = {
        {"l0d0w0l0d0w0w0", "cldwldw"},
        {"l0d0l1d1w0l0d0w1w0l1", "cldnldwnldww"},
        {"l0d0l1d1l0", "cldnld"},
        {"l0d0l0", "cld"},
        {"l1", "c"},
        {"l0l1", "cl"},
        {"l0l0", "cl"},
        {"l0d1", "cl"},
        {"l0w0", "cl"},
        {"d0", "c"},
        {"l0d0d0", "cld"},
        {"l0d0d1", "cld"},
        {"l0d0l1d1w1", "cldnld"},
        {"l2", "c"},
        {"w0", "c"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        static struct pair p;
        begin(&p);
        tell_all(&p, cases[i][0]);
        end(&p, cases[i][1], "host 0 tells a step that is none");
    }
}

static void bytes_beyond_a_block_are_not_written(void **state)
{
    struct told cases[9];
    size_t n = 0;
    (void)state;
    for (size_t i = 0; i < 9; i++) cases[i] = of_step(WORK_LAUNCH, 0);
    cases[n++].n_byte = 39;
    cases[n++].n_byte = 41;
    cases[n++].work.n_step = 2;
    cases[n++].work.kind = 99;
    cases[n].step.prefix_bytes = BIAS + 1;
    cases[n++].n_byte = BIAS + 1;
    cases[n].step.sampler.extras[0] = (struct block_range){BLOCK_BYTES - 7, 8};
    cases[n++].n_byte += 8;
    cases[n].step.sampler.extras[0] = (struct block_range){(size_t)-8, 16};
    cases[n++].n_byte += 16;
    cases[n++].step.sampler.extras[0] = (struct block_range){0, (size_t)-1};
    assert_true(n < 9);
    for (size_t i = 0; i < n; i++) {
        static struct pair p;
        begin(&p);
        tell(&p, &cases[i]);
        end(&p, "c", "host 0 tells a step that is none");
    }
    /* behind a step that runs a block ends with the histories */
    static struct pair p;
    begin(&p);
    tell_all(&p, "l0d0");
    cases[8].work.block = 1;
    cases[8].step.sampler.extras[0] = (struct block_range){HISTORY - 7, 8};
    cases[8].n_byte += 8;
    tell(&p, &cases[8]);
    end(&p, "cldn", "host 0 tells a step that is none");
}

static void pages_are_those_of_the_host(void **state)
{
    static const struct work cases[] = {
        {.kind = WORK_PAGE_IN, .page = N_PAGE},
        {.kind = WORK_PAGE_IN, .lane = 1},
        {.kind = WORK_PAGE_IN, .n_step = 1},
        {.kind = WORK_PAGE_OUT}, /* all hosts have it */
    };
    static const char record[RECORD_BYTES];
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        static struct pair p;
        const struct work first = {.kind = WORK_PAGE_IN, .page = N_PAGE - 1};
        struct link_part parts[] = {{&first, sizeof first}, {record, sizeof record}};
        begin(&p);
        assert_int_equal(host_hub_tell(p.hub, parts, 2), FATHOM_OK);
        parts[0].bytes = &cases[i];
        if (cases[i].kind == WORK_PAGE_OUT) parts[1].n = 0;
        assert_int_equal(host_hub_tell(p.hub, parts, 2), FATHOM_OK);
        end(&p, "cp", "host 0 tells page");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blocks_go_round_as_on_host_0_and_what_is_not_due_ends_it),
        cmocka_unit_test(bytes_beyond_a_block_are_not_written),
        cmocka_unit_test(pages_are_those_of_the_host),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
