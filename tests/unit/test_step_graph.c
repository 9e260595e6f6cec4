/* test_step_graph.c - recorded steps: which one is chosen, what it is padded with, and that no
 * bit depends on it */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "checkpoint/checkpoint.h"
#include "engine/engine.h"
#include "engine/runner.h"
#include "engine/step_graph.h"
#include "model/config.h"
#include "support/answers.h"
#include "support/recorder.h"

#define PILOT FATHOM_SOURCE_DIR "/models/pilot"

enum { N_REQUEST = 5, MAX_LEN = 448 };

/* ---- sizes and the choice ------------------------------------------------------------------- */

static void sizes_grow_from_one_to_the_largest_decode_step(void **state)
{
    (void)state;
    uint32_t sizes[STEP_GRAPH_SIZES_MAX];
    const uint32_t small[] = {1, 2, 3, 4, 5};
    assert_int_equal(step_graph_sizes(sizes, 5), 5);
    assert_memory_equal(sizes, small, sizeof small);
    assert_int_equal(step_graph_sizes(sizes, 1), 1);
    assert_int_equal(sizes[0], 1);
    const uint32_t usual[] = {1, 2, 3, 4, 5, 6, 7, 8, 16, 24, 32, 40, 48, 56, 64};
    assert_int_equal(step_graph_sizes(sizes, 64), 15);
    assert_memory_equal(sizes, usual, sizeof usual);
    const uint32_t large[] = {64, 80, 96, 112, 128, 160, 192, 224, 256};
    uint32_t n = step_graph_sizes(sizes, 100000);
    assert_int_equal(n, 23);
    assert_memory_equal(sizes + 14, large, sizeof large);
    assert_int_equal(sizes[n - 1], 256);
    for (uint32_t i = 1; i < n; i++) assert_true(sizes[i] > sizes[i - 1]);
}

/* A fake device: its graphs are numbers, and what is computed is written down. */
struct fake {
    struct backend b;
    struct batch seen[256];
    enum step_pass pass[256];
    uint32_t n_seen;
    uintptr_t n_graph;
    bool recording;
};

static fathom_err fake_copy(struct backend *b, void *to, const void *from, size_t n)
{
    (void)b;
    memcpy(to, from, n);
    return FATHOM_OK;
}

static fathom_err fake_sync(struct backend *b)
{
    (void)b;
    return FATHOM_OK;
}

static fathom_err fake_begin(struct backend *b)
{
    ((struct fake *)b)->recording = true;
    return FATHOM_OK;
}

static fathom_err fake_end(struct backend *b, struct graph **out)
{
    struct fake *f = (struct fake *)b;
    f->recording = false;
    *out = (struct graph *)++f->n_graph;
    return FATHOM_OK;
}

static void fake_destroy(struct backend *b, struct graph *g)
{
    assert_non_null(g);
    ((struct fake *)b)->n_graph--;
}

static fathom_err fake_compute(void *arg, const struct batch *batch, enum step_pass pass)
{
    struct fake *f = arg;
    if (!f->recording) return FATHOM_OK;
    assert_true(f->n_seen < 256);
    f->pass[f->n_seen] = pass;
    f->seen[f->n_seen++] = *batch;
    return FATHOM_OK;
}

static const struct backend_ops fake_ops = {.copy_in = fake_copy,
                                            .sync = fake_sync,
                                            .graph_begin = fake_begin,
                                            .graph_end = fake_end,
                                            .graph_destroy = fake_destroy};

struct fixture {
    struct fake fake;
    struct batch_layout layout;
    void *host;
    void *device;
    struct step_graphs *graphs;
};

static void open_fixture_of(struct fixture *f, bool with_drafts, bool by_all_lanes)
{
    const struct model_limits limits = {.max_token = 64,
                                        .max_request = 6,
                                        .max_context = 5000,
                                        .max_logit_row = 24,
                                        .with_mtp = with_drafts};
    struct step_graph_config c = {.sizes = {1, 2, 4, 8, 40},
                                  .n_size = 5,
                                  .n_warm_up = 1,
                                  .with_drafts = with_drafts,
                                  .by_all_lanes = by_all_lanes,
                                  .padding_page = 77};
    fathom_diag d = {{0}};
    memset(f, 0, sizeof *f);
    f->fake.b.ops = &fake_ops;
    batch_layout_init(&f->layout, &limits, 100);
    f->host = mem_alloc_aligned(256, f->layout.n_bytes);
    f->device = mem_alloc_aligned(256, f->layout.n_bytes);
    assert_true(f->host && f->device);
    memset(f->host, 0x55, f->layout.n_bytes);
    assert_int_equal(step_graphs_create(&f->graphs, &f->fake.b, &f->layout, f->host, f->device, &c,
                                        fake_compute, &f->fake, &d),
                     FATHOM_OK);
}

static void open_fixture(struct fixture *f, bool with_drafts)
{
    open_fixture_of(f, with_drafts, false);
}

static void close_fixture(struct fixture *f)
{
    step_graphs_destroy(f->graphs);
    assert_int_equal(f->fake.n_graph, 0);
    mem_free(f->host);
    mem_free(f->device);
}

static struct step step_of(const struct fixture *f, uint32_t n_token, uint32_t n_logit_row,
                           uint32_t context)
{
    struct step s = {.pass = STEP_MODEL};
    s.batch.n_token = s.batch.n_answer_token = n_token;
    s.batch.n_logit_row = n_logit_row;
    s.batch.page_stride = batch_page_stride(&f->layout, context);
    return s;
}

/* The recording that a step is replayed from. */
static const struct batch *picked(struct fixture *f, const struct step *s)
{
    size_t prefix_bytes;
    struct graph *g = step_graphs_pick(f->graphs, s, f->host, &prefix_bytes);
    return g ? &f->fake.seen[(uintptr_t)g - 1] : NULL;
}

static void the_smallest_recording_that_holds_a_step_is_chosen(void **state)
{
    (void)state;
    struct fixture f;
    open_fixture(&f, false);
    assert_int_equal(step_graphs_count(f.graphs), 5 * 2); /* contexts of 2048 and 5000 */
    const struct {
        uint32_t n_token, n_logit_row, context, size, max_context, n_row;
    } cases[] = {
        {1, 1, 1, 1, 2048, 1},    {3, 3, 2048, 4, 2048, 4},  {5, 5, 2049, 8, 5000, 8},
        {8, 8, 5000, 8, 5000, 8}, {9, 1, 100, 40, 2048, 24}, {40, 0, 100, 40, 2048, 24},
        {41, 1, 100, 0, 0, 0},    {30, 25, 100, 0, 0, 0}, /* more logits than it makes */
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct step s = step_of(&f, cases[i].n_token, cases[i].n_logit_row, cases[i].context);
        const struct batch *b = picked(&f, &s);
        if (cases[i].size == 0) {
            assert_null(b);
            continue;
        }
        assert_int_equal(b->n_token, cases[i].size);
        assert_int_equal(b->n_answer_token, b->n_token);
        assert_int_equal(b->n_answer_request, b->n_request);
        assert_int_equal(b->max_context, cases[i].max_context);
        assert_int_equal(b->n_logit_row, cases[i].n_row);
        assert_int_equal(b->page_stride, s.batch.page_stride);
        assert_ptr_equal(b->ids, (char *)f.device + f.layout.ids); /* every step's place */
        assert_ptr_equal(b->page_table, (char *)f.device + f.layout.page_table);
        assert_null(b->next_ids);
    }
    struct step prompt = step_of(&f, 3, 3, 10);
    prompt.batch.n_answer_token = 2;
    assert_null(picked(&f, &prompt));
    struct step draft = step_of(&f, 2, 2, 10);
    draft.pass = STEP_DRAFT;
    assert_null(picked(&f, &draft)); /* not recorded */
    size_t prefix_bytes;
    assert_null(step_graphs_pick(NULL, &draft, NULL, &prefix_bytes));
    close_fixture(&f);
}

static void the_passes_of_the_draft_layer_have_their_own(void **state)
{
    (void)state;
    struct fixture f;
    open_fixture(&f, true);
    /* over rows: no more than 6 tokens, so 8 is the last size */
    assert_int_equal(step_graphs_count(f.graphs), (5 + 5 + 4) * 2);
    struct step s = step_of(&f, 3, 2, 10);
    s.pass = STEP_DRAFT;
    const struct batch *b = picked(&f, &s);
    assert_non_null(b->next_ids);
    assert_null(b->hidden_rows);
    assert_int_equal(f.fake.pass[b - f.fake.seen], STEP_DRAFT);
    s.pass = STEP_DRAFT_ROWS;
    b = picked(&f, &s);
    assert_non_null(b->hidden_rows);
    assert_int_equal(f.fake.pass[b - f.fake.seen], STEP_DRAFT_ROWS);
    close_fixture(&f);
}

/* Steps of three lanes, of which the second has no rows. */
static void put_three(const struct fixture *f, struct step to[3])
{
    struct step steps[3] = {step_of(f, 3, 3, 3000), {.pass = STEP_MODEL}, step_of(f, 1, 1, 3000)};
    step_runner_put_lanes(to, steps, 3);
}

static void lanes_replay_one_recording_or_none(void **state)
{
    (void)state;
    struct fixture f;
    struct step s[3];
    size_t prefix_bytes;
    open_fixture_of(&f, false, true);
    const struct batch_layout *l = &f.layout;
    put_three(&f, s);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(s[i].batch.n_lane, 3);
        assert_int_equal(s[i].batch.lane_rows[0], 3);
        assert_int_equal(s[i].batch.lane_rows[1], 0);
        assert_int_equal(s[i].batch.lane_rows[2], 1);
    }
    const struct batch *all = picked(&f, &s[0]);
    assert_null(all->lane_rows); /* others in each replay */
    assert_int_equal(all->n_token, 4);
    assert_int_equal(all->max_context, 5000);
    for (int i = 1; i < 3; i++) assert_ptr_equal(picked(&f, &s[i]), all);
    /* a lane without rows has padding alone, all of which is copied */
    memset(f.host, 0x55, l->n_bytes);
    assert_non_null(step_graphs_pick(f.graphs, &s[1], f.host, &prefix_bytes));
    assert_int_equal(prefix_bytes, l->page_table + s[0].batch.page_stride * sizeof(int32_t));
    assert_int_equal(*(int32_t *)((char *)f.host + l->n_live), 0);
    assert_int_equal(*(int32_t *)((char *)f.host + l->page_table), 77);
    for (int i = 0; i < 4; i++) assert_int_equal(((int32_t *)((char *)f.host + l->pos))[i], i);
    /* one that computes a prompt, or watches its experts, lets none replay, on another host too */
    put_three(&f, s);
    s[2].batch.n_answer_token = 0;
    step_runner_put_lanes(s, s, 3);
    for (int i = 0; i < 3; i++) assert_null(picked(&f, &s[i]));
    struct step far[2] = {s[0], s[1]};
    step_runner_put_lanes(far, far, 2);
    assert_int_equal(far[1].batch.n_lane, 3);
    assert_null(picked(&f, &far[0]));
    put_three(&f, s);
    s[0].watches_experts = true;
    step_runner_put_lanes(s, s, 3);
    assert_null(picked(&f, &s[2]));
    close_fixture(&f);
    /* within a host each goes by itself */
    open_fixture(&f, false);
    put_three(&f, s);
    s[2].batch.n_answer_token = 0;
    step_runner_put_lanes(s, s, 3);
    assert_int_equal(picked(&f, &s[0])->n_token, 4);
    assert_null(picked(&f, &s[1]));
    assert_null(picked(&f, &s[2]));
    close_fixture(&f);
}

static void padding_rows_touch_no_request(void **state)
{
    (void)state;
    struct fixture f;
    open_fixture(&f, true);
    const struct batch_layout *l = &f.layout;
    memset(f.host, 0x55, l->n_bytes);
    struct step s = step_of(&f, 5, 3, 10);
    size_t prefix_bytes;
    s.batch.n_request = 6; /* as many as there can be */
    s.prefix_bytes = l->page_table + (size_t)6 * s.batch.page_stride * 4;
    assert_non_null(step_graphs_pick(f.graphs, &s, f.host, &prefix_bytes));
    /* a request of its own behind the step's: positions 0, 1, 2 in the page of padding */
    const struct {
        size_t array;
        int32_t first, step;
    } want[] = {{l->ids, 0, 0},      {l->pos, 0, 1},         {l->request, 6, 0},
                {l->next_ids, 0, 0}, {l->hidden_rows, 0, 0}, {l->slot, 77 * 64, 1}};
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        const int32_t *p = (const int32_t *)((char *)f.host + want[i].array);
        assert_int_equal(p[4], 0x55555555);
        for (int t = 0; t < 3; t++) assert_int_equal(p[5 + t], want[i].first + want[i].step * t);
        assert_int_equal(p[8], 0x55555555);
    }
    const int32_t *table = (const int32_t *)((char *)f.host + s.prefix_bytes);
    assert_int_equal(table[-1], 0x55555555);
    assert_int_equal(table[0], 77);
    assert_int_equal(prefix_bytes, s.prefix_bytes + (size_t)s.batch.page_stride * 4);
    assert_true(prefix_bytes <= l->bias);
    const int32_t *rows = (const int32_t *)((char *)f.host + l->logit_rows);
    assert_int_equal(rows[2], 0x55555555);
    for (int i = 3; i < 8; i++) assert_int_equal(rows[i], 0);
    assert_int_equal(rows[8], 0x55555555);
    assert_int_equal(*(const int32_t *)((char *)f.host + l->n_live), 0x55555555);
    close_fixture(&f);
}

/* ---- the engine over a backend that records ------------------------------------------------- */

struct world {
    struct recorder recorder;
    fathom_engine *engine;
};

static fathom_options options_of(uint32_t n_draft, bool recorded)
{
    return (fathom_options){.n_thread = 2,
                            .max_model_len = MAX_LEN,
                            .max_num_seqs = N_REQUEST,
                            .max_num_batched_tokens = 48,
                            .n_draft = n_draft,
                            .enforce_eager = !recorded,
                            .seed = 1};
}

/* As fathom_open does it, with the recorder between runner and backend. */
static void open_world(struct world *w, const char *name, uint32_t n_draft, bool recorded,
                       uint32_t fail_after, fathom_err want)
{
    struct checkpoint *checkpoint = NULL;
    struct model_config config;
    struct engine_settings s;
    struct memory_plan plan;
    struct backend_config c;
    struct backend *b = NULL;
    struct step_runner *runner = NULL;
    fathom_diag d = {{0}};
    fathom_options o = options_of(n_draft, recorded);
    o.backend = strcmp(name, "ref") == 0 ? FATHOM_BACKEND_REF : FATHOM_BACKEND_CPU;
    memset(w, 0, sizeof *w);
    assert_int_equal(checkpoint_open(&checkpoint, PILOT, &d), FATHOM_OK);
    assert_int_equal(model_config_load(&config, checkpoint, &d), FATHOM_OK);
    assert_int_equal(settings_resolve(&s, &o, &config, &d), FATHOM_OK);
    assert_int_equal(memory_plan_make(&plan, &s, &config, checkpoint, 1ull << 34, &d), FATHOM_OK);
    plan.padding_bytes = recorded ? plan.kv.page_bytes : 0;
    model_backend_config(&c, &config, &s.limits, &s.place);
    fathom_err err = o.backend == FATHOM_BACKEND_REF ? backend_ref_create(&b, &c, &d)
                                                     : backend_cpu_create(&b, &c, &d);
    assert_int_equal(err, FATHOM_OK);
    recorder_install(&w->recorder, b);
    w->recorder.fail_after = fail_after;
    err = runner_create_on(&runner, b, &s, &plan, &config, checkpoint, &d);
    if (err != want) fail_msg("%s", d.text);
    if (err) {
        assert_non_null(strstr(d.text, "recording"));
        checkpoint_close(checkpoint);
        return;
    }
    struct engine_config e = {.info = {.model_type = "pilot",
                                       .backend = name,
                                       .n_vocab = config.n_vocab,
                                       .max_model_len = s.limits.max_context,
                                       .max_num_seqs = s.max_num_seqs,
                                       .max_num_batched_tokens = s.limits.max_token,
                                       .n_draft = s.n_draft,
                                       .n_page = plan.n_page},
                              .max_queued = 64,
                              .n_vocab_used = config.n_vocab,
                              .max_score = s.max_score,
                              .seed = 1};
    if (engine_create(&w->engine, &e, runner, checkpoint, &d)) fail_msg("%s", d.text);
}

/* Prompts on both sides of index_topk (256), with answers that cross it; one that fits a recording
 * with padding behind it. */
static void run_requests(struct world *w, struct answer *answers, uint32_t n_output,
                         bool one_by_one)
{
    static int32_t prompt[MAX_LEN];
    const uint32_t lengths[N_REQUEST] = {3, 70, 250, 260, 41};
    for (int i = 0; i < N_REQUEST; i++) {
        for (uint32_t k = 0; k < lengths[i]; k++) {
            prompt[k] = (int32_t)((k * 31 + (uint32_t)i * 17 + k * k) % 4000);
        }
        fathom_request r = {.prompt = prompt, .n_prompt = lengths[i]};
        fathom_sampling_init(&r.sampling);
        r.sampling.temperature = i % 2 ? 1 : 0;
        r.sampling.has_seed = true;
        r.sampling.seed = (uint64_t)i;
        r.sampling.ignore_eos = true;
        r.sampling.logprobs = true;
        r.sampling.max_tokens = n_output;
        answer_ask(w->engine, &answers[i], &r);
        if (one_by_one) answers_wait(w->engine, 1);
    }
    if (!one_by_one) answers_wait(w->engine, N_REQUEST);
}

static void compare_answers(const struct answer *got, const struct answer *want)
{
    for (int i = 0; i < N_REQUEST; i++) {
        assert_int_equal(got[i].n, want[i].n);
        assert_memory_equal(got[i].ids, want[i].ids, want[i].n * sizeof(int32_t));
        assert_memory_equal(got[i].logprobs, want[i].logprobs, want[i].n * sizeof(float));
    }
}

static void compare_replayed(const char *backend, uint32_t n_draft, uint32_t n_output)
{
    static struct answer plain[N_REQUEST], replayed[N_REQUEST], alone[N_REQUEST];
    struct world w;
    open_world(&w, backend, n_draft, false, 0, FATHOM_OK);
    run_requests(&w, plain, n_output, false);
    fathom_close(w.engine);
    assert_int_equal(w.recorder.n_recorded + w.recorder.n_launch, 0);

    open_world(&w, backend, n_draft, true, 0, FATHOM_OK);
    uint32_t n_recorded = w.recorder.n_recorded;
    assert_true(n_recorded > 0);
    run_requests(&w, replayed, n_output, false);
    run_requests(&w, alone, n_output, true);
    fathom_stats stats;
    fathom_get_stats(w.engine, &stats);
    fathom_close(w.engine);
    assert_int_equal(w.recorder.n_recorded, n_recorded); /* nothing is recorded on the way */
    if (n_draft == 0) {
        uint32_t n_eager = w.recorder.n_eager - n_recorded; /* without the warm-ups */
        assert_int_equal(w.recorder.n_launch + n_eager, stats.n_step);
        assert_true(n_eager < stats.n_step / 2);
    }
    assert_true(w.recorder.n_launch > 4);
    assert_int_equal(w.recorder.n_destroyed, n_recorded);
    compare_answers(replayed, plain);
    compare_answers(alone, plain);
}

static void replayed_steps_give_the_same_bits(void **state)
{
    (void)state;
    compare_replayed("cpu", 0, 30);
}

static void replayed_drafts_give_the_same_bits(void **state)
{
    (void)state;
    compare_replayed("cpu", 3, 12);
}

static void a_recording_that_fails_fails_the_start(void **state)
{
    (void)state;
    struct world w;
    open_world(&w, "cpu", 0, true, 2, FATHOM_EDEVICE);
    assert_int_equal(w.recorder.n_destroyed, 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes_grow_from_one_to_the_largest_decode_step),
        cmocka_unit_test(the_smallest_recording_that_holds_a_step_is_chosen),
        cmocka_unit_test(the_passes_of_the_draft_layer_have_their_own),
        cmocka_unit_test(lanes_replay_one_recording_or_none),
        cmocka_unit_test(padding_rows_touch_no_request),
        cmocka_unit_test(replayed_steps_give_the_same_bits),
        cmocka_unit_test(replayed_drafts_give_the_same_bits),
        cmocka_unit_test(a_recording_that_fails_fails_the_start),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
