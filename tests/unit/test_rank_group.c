/* test_rank_group.c - several ranks behind the engine: answers, and a rank that fails */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "backend/backend.h"
#include "base/clock.h"
#include "checkpoint/checkpoint.h"
#include "engine/rank_group.h"
#include "engine/rank_group_int.h"
#include "engine/runner.h"
#include "model/config.h"

#define PILOT FATHOM_SOURCE_DIR "/models/pilot"

enum { N_RANK = 4, N_TOKEN = 5, FAILS = 2, FAILING_LAYER = 3, PATIENCE_MS = 200 };

static struct {
    struct engine_settings settings;
    struct memory_plan plan;
    struct model_config config;
    struct checkpoint *checkpoint;
    struct backend *backends[N_RANK];
    uint32_t patience_ms;
    uint32_t n_lane;  /* of N_RANK / n_lane each; 0: one */
    uint32_t n_stage; /* of N_RANK / n_stage each; 0: one */
} test;

static void must(fathom_err err, const fathom_diag *d)
{
    if (err != FATHOM_OK) fail_msg("%s: %s", fathom_err_name(err), d->text);
}

static int open_backends(void **state)
{
    (void)state;
    fathom_diag d = {{0}};
    const uint32_t n_stage = test.n_stage ? test.n_stage : 1;
    const uint32_t n_lane = test.n_lane ? test.n_lane : 1;
    const fathom_options o = {.model_dir = PILOT,
                              .backend = FATHOM_BACKEND_CPU,
                              .world = N_RANK / n_lane / n_stage,
                              .data_parallel = n_lane,
                              .expert_parallel = n_lane > 1,
                              .pipeline = n_stage,
                              .n_thread = N_RANK,
                              .max_model_len = 128,
                              .max_num_batched_tokens = 64,
                              .max_num_seqs = 2};
    must(checkpoint_open(&test.checkpoint, PILOT, &d), &d);
    must(model_config_load(&test.config, test.checkpoint, &d), &d);
    must(settings_resolve(&test.settings, &o, &test.config, &d), &d);
    test.settings.place.patience_ms = test.patience_ms;
    must(
        memory_plan_make(&test.plan, &test.settings, &test.config, test.checkpoint, 4ull << 30, &d),
        &d);
    for (uint32_t i = 0; i < N_RANK; i++) {
        struct engine_settings s = test.settings;
        settings_place(&s.place, &test.settings, i);
        must(runner_make_backend(&test.backends[i], &s, &test.config, &d), &d);
    }
    for (uint32_t i = 0; i < N_RANK; i += N_RANK / n_stage)
        must(backend_join(test.backends + i, N_RANK / n_stage, &d), &d);
    return 0;
}

static int close_checkpoint(void **state)
{
    (void)state;
    checkpoint_close(test.checkpoint);
    return 0;
}

/* A step of one request's first tokens, all of whose ids are the same. */
static void fill_step(struct step_runner *r, struct step *step)
{
    const struct batch_layout *l = &r->layout;
    char *host = r->host;
    memset(host, 0, l->history);
    for (int t = 0; t < N_TOKEN; t++) {
        ((int32_t *)(void *)(host + l->ids))[t] = 7;
        ((int32_t *)(void *)(host + l->pos))[t] = t;
        ((int32_t *)(void *)(host + l->slot))[t] = t;
    }
    ((int32_t *)(void *)(host + l->first))[1] = N_TOKEN;
    *step = (struct step){
        .pass = STEP_MODEL,
        .prefix_bytes = l->bias,
        .batch = {.n_token = N_TOKEN, .n_request = 1, .max_context = N_TOKEN, .page_stride = 2}};
}

static fathom_err run_step(struct step_runner *r)
{
    struct step step;
    struct step_result result;
    fill_step(r, &step);
    assert_int_equal(r->ops->launch(r, &step), FATHOM_OK);
    assert_int_equal(r->ops->draw(r, &step), FATHOM_OK);
    return r->ops->wait(r, &result);
}

static const struct backend_ops *real_ops;

static fathom_err fail_in_layer(struct backend *b, const struct mla_out_args *a)
{
    static __thread uint32_t n_call;
    if (n_call++ == FAILING_LAYER) return FATHOM_EDEVICE;
    return real_ops->mla_out(b, a);
}

static void a_rank_that_fails_is_named_with_its_layer(void **state)
{
    (void)state;
    fathom_diag d = {{0}};
    struct step_runner *r;
    real_ops = test.backends[FAILS]->ops;
    struct backend_ops failing = *real_ops;
    failing.mla_out = fail_in_layer;
    test.backends[FAILS]->ops = &failing;
    must(rank_group_create_on(&r, test.backends, &test.settings, &test.plan, &test.config,
                              test.checkpoint, &d),
         &d);
    assert_int_equal(run_step(r), FATHOM_EDEVICE);
    const char *fault = r->ops->fault(r);
    if (!strstr(fault, "rank 2 of 4, layer 3, step 1: device failed; rank 2 of 4 has failed after "
                       "reduce_norm of layer 3, epoch "))
        fail_msg("%s", fault);
    assert_int_equal(r->ops->sync(r), FATHOM_EDEVICE); /* final */
    r->ops->destroy(r);
}

/* For ever: the thread stays when the test is over. */
static fathom_err stay_in_layer(struct backend *b, const struct mla_out_args *a)
{
    static __thread uint32_t n_call;
    if (n_call++ == FAILING_LAYER) {
        for (;;) pause();
    }
    return real_ops->mla_out(b, a);
}

static int open_impatient(void **state)
{
    test.patience_ms = PATIENCE_MS;
    int failed = open_backends(state);
    test.patience_ms = 0;
    return failed;
}

static void a_rank_that_does_not_come_is_named_and_not_waited_for(void **state)
{
    (void)state;
    static struct backend_ops staying; /* its thread goes on reading it */
    fathom_diag d = {{0}};
    struct step_runner *r;
    real_ops = test.backends[FAILS]->ops;
    staying = *real_ops;
    staying.mla_out = stay_in_layer;
    test.backends[FAILS]->ops = &staying;
    must(rank_group_create_on(&r, test.backends, &test.settings, &test.plan, &test.config,
                              test.checkpoint, &d),
         &d);
    assert_int_equal(run_step(r), FATHOM_EPEER);
    const char *fault = r->ops->fault(r);
    if (!strstr(fault, "step 1: rank 2 of 4 did not come to reduce_norm of layer 3, epoch "))
        fail_msg("%s", fault);
    assert_int_equal(r->ops->sync(r), FATHOM_EPEER);    /* at once */
    assert_int_equal(r->ops->renew(r), FATHOM_EDEVICE); /* and for ever */
    r->ops->destroy(r);                                 /* returns */
}

static fathom_err part_in_layer(struct backend *b, const struct mla_out_args *a)
{
    static __thread uint32_t n_call;
    if (n_call++ == FAILING_LAYER) return FATHOM_EPEER;
    return real_ops->mla_out(b, a);
}

static fathom_err linger_in_layer(struct backend *b, const struct mla_out_args *a)
{
    static __thread uint32_t n_call;
    if (n_call++ == FAILING_LAYER) clock_sleep_us(3000ull * FAREWELL_MS / 2);
    return real_ops->mla_out(b, a);
}

static bool is_lost(struct host_net *net, char *why, size_t n_why)
{
    (void)net;
    (void)snprintf(why, n_why, "host 1 of 2 is lost: test");
    return true;
}

/* A rank is told that another host is lost while its neighbour computes. */
static void a_long_command_outlives_the_loss_of_a_host(void **state)
{
    (void)state;
    struct host_net hosts = {.is_lost = is_lost};
    fathom_diag d = {{0}};
    struct step_runner *r;
    real_ops = test.backends[FAILS]->ops;
    struct backend_ops parting = *real_ops, lingering = *real_ops;
    parting.mla_out = part_in_layer;
    lingering.mla_out = linger_in_layer;
    test.backends[FAILS]->ops = &parting;
    test.backends[FAILS + 1]->ops = &lingering;
    test.settings.place.net = &hosts;
    must(rank_group_create_on(&r, test.backends, &test.settings, &test.plan, &test.config,
                              test.checkpoint, &d),
         &d);
    assert_int_equal(run_step(r), FATHOM_EPEER);
    assert_int_equal(r->ops->renew(r), FATHOM_OK);
    assert_int_equal(run_step(r), FATHOM_OK);
    assert_string_equal(r->ops->fault(r), "");
    r->ops->destroy(r);
}

static void pages_are_equal_on_all_ranks(void **state)
{
    (void)state;
    fathom_diag d = {{0}};
    struct step_runner *r;
    const size_t n = test.plan.kv.page_bytes;
    void *pages[2];
    must(rank_group_create_on(&r, test.backends, &test.settings, &test.plan, &test.config,
                              test.checkpoint, &d),
         &d);
    assert_true(r->ops->progress(r) > 0);
    for (int i = 0; i < 2; i++) must(r->ops->alloc_host(r, n, &pages[i], &d), &d);
    assert_int_equal(run_step(r), FATHOM_OK);
    /* page 0 goes out from rank 0, into page 1 of all, and that out from rank 1 */
    assert_int_equal(r->ops->page_out(r, 0, pages[0]), FATHOM_OK);
    assert_int_equal(r->ops->page_in(r, 1, pages[0]), FATHOM_OK);
    assert_int_equal(r->ops->page_out(r, 1, pages[1]), FATHOM_OK);
    assert_int_equal(r->ops->sync(r), FATHOM_OK);
    assert_memory_equal(pages[0], pages[1], n);
    struct rank_waits waits[PARALLEL_RANKS_MAX];
    uint64_t n_wait = 0;
    assert_int_equal(r->ops->get_waits(r, waits), N_RANK);
    for (int i = 0; i < N_RANK; i++) n_wait += waits[i].n;
    assert_true(n_wait >= N_RANK - 1 && n_wait % (N_RANK - 1) == 0); /* one is the last */
    for (int i = 0; i < 2; i++) r->ops->release_host(r, pages[i]);
    assert_string_equal(r->ops->fault(r), "");
    r->ops->destroy(r);
}

static int open_stages(void **state)
{
    test.n_stage = 2;
    int failed = open_backends(state);
    test.n_stage = 0;
    return failed;
}

/* Whichever stage it is in, the other one does not wait for ever, and the rank is named. */
static void expect_stage_fault(uint32_t fails)
{
    fathom_diag d = {{0}};
    struct step_runner *r;
    struct step step;
    struct step_result result;
    char want[64];
    real_ops = test.backends[fails]->ops;
    struct backend_ops failing = *real_ops;
    failing.mla_out = fail_in_layer;
    test.backends[fails]->ops = &failing;
    must(rank_group_create_on(&r, test.backends, &test.settings, &test.plan, &test.config,
                              test.checkpoint, &d),
         &d);
    assert_int_equal(r->n_stage, 2);
    for (uint32_t i = 0; i < 2; i++) { /* two under way */
        r->ops->use_block(r, i);
        fill_step(r, &step);
        assert_int_equal(r->ops->launch(r, &step), FATHOM_OK);
        assert_int_equal(r->ops->draw(r, &step), FATHOM_OK);
    }
    assert_int_equal(r->ops->wait(r, &result), FATHOM_EDEVICE);
    const uint32_t first = fails < 2 ? 0 : test.settings.place.parallel.layer_ends[0];
    (void)snprintf(want, sizeof want, "rank %u of 4, layer %u, step 1: device failed", fails,
                   first + FAILING_LAYER);
    if (!strstr(r->ops->fault(r), want)) fail_msg("%s", r->ops->fault(r));
    assert_int_equal(r->ops->sync(r), FATHOM_EDEVICE); /* final */
    r->ops->destroy(r);
}

static void a_rank_of_the_first_stage_that_fails_is_named(void **state)
{
    (void)state;
    expect_stage_fault(1);
}

static void a_rank_of_the_last_stage_that_fails_is_named(void **state)
{
    (void)state;
    expect_stage_fault(2);
}

/* Of a page each stage writes and reads its part, and together they are the record of two ranks. */
static void parts_of_a_page_go_to_their_stages(void **state)
{
    (void)state;
    fathom_diag d = {{0}};
    struct step_runner *r;
    struct step step;
    struct step_result result;
    unsigned char *pages[2];
    const size_t n = test.plan.record.page_bytes;
    assert_true(test.plan.kv.page_bytes < n);
    must(rank_group_create_on(&r, test.backends, &test.settings, &test.plan, &test.config,
                              test.checkpoint, &d),
         &d);
    for (int i = 0; i < 2; i++) must(r->ops->alloc_host(r, n, (void **)&pages[i], &d), &d);
    memset(pages[0], 0xAA, n);
    r->ops->use_block(r, 1);
    fill_step(r, &step);
    assert_int_equal(r->ops->launch(r, &step), FATHOM_OK);
    assert_int_equal(r->ops->draw(r, &step), FATHOM_OK);
    assert_int_equal(r->ops->wait(r, &result), FATHOM_OK);
    assert_int_equal(r->ops->page_out(r, 0, pages[0]), FATHOM_OK);
    assert_int_equal(r->ops->page_in(r, 1, pages[0]), FATHOM_OK);
    assert_int_equal(r->ops->page_out(r, 1, pages[1]), FATHOM_OK);
    assert_int_equal(r->ops->sync(r), FATHOM_OK);
    assert_memory_equal(pages[0], pages[1], n);
    const uint64_t layer_bytes = test.plan.record.layer_bytes;
    for (uint32_t i = 0; i < test.config.n_layer; i++) { /* a row of each layer was written */
        static const unsigned char untouched[64] = {0};
        assert_memory_not_equal(pages[0] + i * layer_bytes, untouched, sizeof untouched);
    }
    for (int i = 0; i < 2; i++) r->ops->release_host(r, pages[i]);
    assert_string_equal(r->ops->fault(r), "");
    r->ops->destroy(r);
}

static int open_lanes(void **state)
{
    test.n_lane = N_RANK;
    return open_backends(state);
}

static int open_lanes_of_two(void **state)
{
    test.n_lane = N_RANK / 2;
    return open_backends(state);
}

static int close_lanes(void **state)
{
    test.n_lane = 0;
    return close_checkpoint(state);
}

/* What a lane makes of text k: N_TOKEN + k tokens, in page 0; text 0 has none. */
struct text_result {
    void *page;
    int32_t id;
};

static void fill_lane(const struct batch_layout *l, void *block, uint32_t text, struct step *step)
{
    char *host = block;
    const uint32_t n = text > 0 ? N_TOKEN + text : 0;
    memset(host, 0, l->history);
    *step = (struct step){.pass = STEP_MODEL};
    if (n == 0) return;
    for (uint32_t t = 0; t < n; t++) {
        ((int32_t *)(void *)(host + l->ids))[t] = (int32_t)(7 * text + t);
        ((int32_t *)(void *)(host + l->pos))[t] = (int32_t)t;
        ((int32_t *)(void *)(host + l->slot))[t] = (int32_t)t;
    }
    ((int32_t *)(void *)(host + l->first))[1] = (int32_t)n;
    ((int32_t *)(void *)(host + l->logit_rows))[0] = (int32_t)n - 1;
    ((struct sample_row *)(void *)(host + l->rows))[0] = (struct sample_row){
        .top_p = 1,
        .repetition_penalty = 1,
        .mask_offset = SAMPLE_NONE,
        .n_vocab_used = test.settings.n_vocab_used,
    };
    step->prefix_bytes = l->bias;
    step->batch = (struct batch_shape){
        .n_token = n, .n_request = 1, .n_logit_row = 1, .max_context = n, .page_stride = 2};
    step->sampler.n_row = 1;
}

/* One step in which lane i has text (i + shift) % n_lane, over pages of zeros. */
static void run_texts(struct step_runner *r, uint32_t shift, const void *zeros,
                      struct text_result *out)
{
    struct step steps[N_RANK];
    struct step_result results[N_RANK];
    const uint32_t n_lane = r->n_lane;
    for (uint32_t i = 0; i < n_lane; i++) {
        assert_int_equal(r->ops->page_in(r, i * r->lane_pages, zeros), FATHOM_OK);
        fill_lane(&r->layout, r->hosts[i], (i + shift) % n_lane, &steps[i]);
    }
    assert_int_equal(r->ops->launch(r, steps), FATHOM_OK);
    assert_int_equal(r->ops->draw(r, steps), FATHOM_OK);
    if (r->ops->wait(r, results) != FATHOM_OK) fail_msg("%s", r->ops->fault(r));
    for (uint32_t i = 0; i < n_lane; i++) {
        struct text_result *text = &out[(i + shift) % n_lane];
        if (steps[i].sampler.n_row > 0) text->id = results[i].ids[0];
        assert_int_equal(r->ops->page_out(r, i * r->lane_pages, text->page), FATHOM_OK);
    }
    assert_int_equal(r->ops->sync(r), FATHOM_OK);
}

static void each_lane_has_a_step_and_pages_of_its_own(void **state)
{
    (void)state;
    fathom_diag d = {{0}};
    struct step_runner *r;
    struct text_result first[N_RANK], then[N_RANK];
    void *zeros;
    const size_t n = test.plan.kv.page_bytes;
    const uint32_t n_lane = test.n_lane, last = n_lane - 1;
    must(rank_group_create_on(&r, test.backends, &test.settings, &test.plan, &test.config,
                              test.checkpoint, &d),
         &d);
    assert_int_equal(r->n_lane, n_lane);
    assert_int_equal(r->lane_pages, test.plan.n_page);
    assert_ptr_equal(r->host, r->hosts[0]);
    for (uint32_t i = 0; i < n_lane; i++) {
        must(r->ops->alloc_host(r, n, &first[i].page, &d), &d);
        must(r->ops->alloc_host(r, n, &then[i].page, &d), &d);
    }
    must(r->ops->alloc_host(r, n, &zeros, &d), &d);
    memset(zeros, 0, n);
    run_texts(r, 0, zeros, first);
    assert_memory_equal(first[0].page, zeros, n);
    /* a text has the same bits in whichever lane, and other ones than its neighbours */
    for (uint32_t shift = 1; shift < n_lane; shift++) {
        run_texts(r, shift, zeros, then);
        for (uint32_t k = 0; k < n_lane; k++) {
            if (k > 0) assert_int_equal(then[k].id, first[k].id);
            assert_memory_equal(then[k].page, first[k].page, n);
            for (uint32_t j = 0; j < k; j++) assert_memory_not_equal(then[k].page, then[j].page, n);
        }
    }
    /* into pages 1 and 2 of a lane, on all of its ranks, and of no other lane: each is copied out
     * of another rank of two */
    const uint32_t filled = n_lane / 2;
    for (uint32_t page = 1; page <= 2; page++) {
        for (uint32_t i = 0; i < n_lane; i++)
            assert_int_equal(r->ops->page_out(r, i * r->lane_pages + page, first[i].page),
                             FATHOM_OK);
        assert_int_equal(r->ops->page_in(r, filled * r->lane_pages + page, then[last].page),
                         FATHOM_OK);
        for (uint32_t i = 0; i < n_lane; i++) {
            assert_int_equal(r->ops->page_out(r, i * r->lane_pages + page, zeros), FATHOM_OK);
            assert_int_equal(r->ops->sync(r), FATHOM_OK);
            assert_memory_equal(zeros, i == filled ? then[last].page : first[i].page, n);
        }
    }
    for (uint32_t i = 0; i < n_lane; i++) {
        r->ops->release_host(r, first[i].page);
        r->ops->release_host(r, then[i].page);
    }
    r->ops->release_host(r, zeros);
    assert_string_equal(r->ops->fault(r), "");
    r->ops->destroy(r);
}

/* Its neighbour waits for it where their sums meet, the ranks of the other lane at the experts. */
static void a_rank_of_a_lane_that_fails_ends_all(void **state)
{
    (void)state;
    fathom_diag d = {{0}};
    struct step_runner *r;
    struct step steps[2];
    struct step_result results[2];
    real_ops = test.backends[FAILS]->ops;
    struct backend_ops failing = *real_ops;
    failing.mla_out = fail_in_layer;
    test.backends[FAILS]->ops = &failing;
    must(rank_group_create_on(&r, test.backends, &test.settings, &test.plan, &test.config,
                              test.checkpoint, &d),
         &d);
    assert_int_equal(r->n_lane, 2);
    for (uint32_t i = 0; i < 2; i++) fill_lane(&r->layout, r->hosts[i], i + 1, &steps[i]);
    assert_int_equal(r->ops->launch(r, steps), FATHOM_OK);
    assert_int_equal(r->ops->draw(r, steps), FATHOM_OK);
    assert_int_equal(r->ops->wait(r, results), FATHOM_EDEVICE);
    const char *fault = r->ops->fault(r);
    if (!strstr(fault, "rank 2 of 4, layer 3, step 1: device failed; rank 2 of 4 has failed after "
                       "reduce_norm of layer 3, epoch "))
        fail_msg("%s", fault);
    r->ops->destroy(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_rank_that_fails_is_named_with_its_layer, open_backends,
                                        close_checkpoint),
        cmocka_unit_test_setup_teardown(a_rank_that_does_not_come_is_named_and_not_waited_for,
                                        open_impatient, close_checkpoint),
        cmocka_unit_test_setup_teardown(a_long_command_outlives_the_loss_of_a_host, open_backends,
                                        close_checkpoint),
        cmocka_unit_test_setup_teardown(pages_are_equal_on_all_ranks, open_backends,
                                        close_checkpoint),
        cmocka_unit_test_setup_teardown(a_rank_of_the_first_stage_that_fails_is_named, open_stages,
                                        close_checkpoint),
        cmocka_unit_test_setup_teardown(a_rank_of_the_last_stage_that_fails_is_named, open_stages,
                                        close_checkpoint),
        cmocka_unit_test_setup_teardown(parts_of_a_page_go_to_their_stages, open_stages,
                                        close_checkpoint),
        cmocka_unit_test_setup_teardown(each_lane_has_a_step_and_pages_of_its_own, open_lanes,
                                        close_lanes),
        cmocka_unit_test_setup_teardown(each_lane_has_a_step_and_pages_of_its_own,
                                        open_lanes_of_two, close_lanes),
        cmocka_unit_test_setup_teardown(a_rank_of_a_lane_that_fails_ends_all, open_lanes_of_two,
                                        close_lanes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
