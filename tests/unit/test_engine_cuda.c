/* test_engine_cuda.c - the engine on the CUDA backend, whose GPU the host simulates (simt/simt.h)
 *
 *   test_engine_cuda [all]    all: ranks of one lane, lanes of one rank, stages of ranks, more
 *                             failing calls
 *
 * Recorded steps and every way to run requests give the bits of plain steps. What fails says what
 * it was, answers everybody and leaves nothing behind. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/log.h"
#include "kv/tiers.h"
#include "simt/simt_fault.h"
#include "support/answers.h"
#include "support/small_model.h"

enum { N_REQUEST = 3, MAX_LEN = 128, N_TEXT = 66, N_PAGE_FULL = MAX_LEN / 64 };

static struct small_model model, wide;
static bool all_cases;
static int32_t text[N_TEXT];

/* Prompts that begin alike; an answer goes over a page's end. A simulated step takes a tenth of a
 * second, so there are few. */
static const struct {
    uint32_t n_prompt, n_output;
    float temperature;
} questions[N_REQUEST] = {{20, 3, 0}, {63, 3, 1}, {65, 2, 1}};

static fathom_options options_of(bool fp8)
{
    return (fathom_options){.bundle = fp8 ? &wide.bundle : &model.bundle,
                            .backend = FATHOM_BACKEND_CUDA,
                            .act = fp8 ? FATHOM_ACT_FP8 : FATHOM_ACT_F32,
                            .kv = fp8 ? FATHOM_KV_BF16 : FATHOM_KV_F32,
                            .quantize_fp8 = fp8,
                            .max_model_len = MAX_LEN,
                            .max_num_batched_tokens = MAX_LEN,
                            .max_num_seqs = 1,
                            .memory_utilization = 0.2,
                            .max_queued = N_REQUEST,
                            .n_thread = 1,
                            .seed = 1,
                            .no_async = true,
                            .enforce_eager = true,
                            .no_prefix_cache = true};
}

static fathom_engine *open_engine(const fathom_options *o)
{
    fathom_engine *e = NULL;
    fathom_diag d = {{0}};
    if (fathom_open(&e, o, &d) != FATHOM_OK) fail_msg("%s", d.text);
    assert_string_equal(fathom_get_info(e)->backend, "cuda");
    return e;
}

static fathom_err submit(fathom_engine *e, struct answer *a, int k, fathom_diag *d)
{
    fathom_request r = {.prompt = text, .n_prompt = questions[k].n_prompt};
    fathom_sampling_init(&r.sampling);
    r.sampling.temperature = questions[k].temperature;
    r.sampling.has_seed = true;
    r.sampling.seed = (uint64_t)k;
    r.sampling.ignore_eos = true;
    r.sampling.max_tokens = questions[k].n_output;
    r.sampling.logprobs = true;
    r.sampling.n_top_logprobs = k % 2 ? 3 : 0;
    return answer_submit(e, a, &r, d);
}

static size_t count_replays(void)
{
    struct simt_usage u;
    simt_get_usage(&u);
    return u.n_replay;
}

static void expect_nothing_left(const char *when)
{
    struct simt_usage u;
    simt_get_usage(&u);
    if (u.n_allocation + u.n_pinned + u.n_stream + u.n_event + u.n_graph == 0) return;
    fail_msg("%s: left are %zu allocations, %zu of the host, %zu streams, %zu events, %zu graphs",
             when, u.n_allocation, u.n_pinned, u.n_stream, u.n_event, u.n_graph);
}

/* All questions, in n_wave waves. */
static void run(const fathom_options *o, int n_wave, struct answer *answers, fathom_stats *s)
{
    fathom_engine *e = open_engine(o);
    fathom_diag d = {{0}};
    for (int wave = 0; wave < n_wave; wave++) {
        for (int k = 0; k < N_REQUEST; k++) {
            if (submit(e, &answers[k], k, &d) != FATHOM_OK) fail_msg("%s", d.text);
        }
        answers_wait(e, N_REQUEST);
    }
    fathom_get_stats(e, s);
    fathom_close(e);
    expect_nothing_left("after fathom_close");
}

static void expect_one(const struct answer *a, const struct answer *want, int k, const char *how)
{
    uint32_t n = questions[k].n_output;
    assert_int_equal(a[k].n, n);
    if (memcmp(a[k].ids, want[k].ids, n * sizeof *a->ids) != 0 ||
        memcmp(a[k].logprobs, want[k].logprobs, n * sizeof *a->logprobs) != 0 ||
        a[k].hash != want[k].hash) {
        fail_msg("%s: answer %d differs from that of plain steps", how, k);
    }
}

static void expect_same(const struct answer *a, const struct answer *want, const char *how)
{
    for (int k = 0; k < N_REQUEST; k++) expect_one(a, want, k, how);
}

static struct answer plain[2][N_REQUEST]; /* [fp8] */

static int make_plain(void **state)
{
    (void)state;
    fathom_stats s;
    uint32_t random = 1;
    log_set_level(LOG_LEVEL_ERROR);
    simt_set_capability(9, 0);
    small_model_make(&model, 1);
    small_model_make_wide(&wide, 1);
    for (int i = 0; i < N_TEXT; i++) {
        random = random * 1664525u + 1013904223u;
        text[i] = 2 + (int32_t)(random >> 8) % (SMALL_MODEL_VOCAB - 2);
    }
    for (int fp8 = 0; fp8 < 2; fp8++) {
        fathom_options o = options_of(fp8);
        run(&o, 1, plain[fp8], &s);
    }
    return 0;
}

static int free_models(void **state)
{
    (void)state;
    small_model_free(&model);
    small_model_free(&wide);
    return 0;
}

/* ---- bits ----------------------------------------------------------------------------------- */

/* The same model in the same types on the other backend. A draw falls between two tokens once in
 * many; the log-probabilities are what is compared. */
static void plain_answers_are_the_cpu_backends(void **state)
{
    (void)state;
    static struct answer cpu[N_REQUEST];
    fathom_options o = options_of(false);
    fathom_diag d = {{0}};
    fathom_engine *e = NULL;
    o.backend = FATHOM_BACKEND_CPU;
    if (fathom_open(&e, &o, &d) != FATHOM_OK) fail_msg("%s", d.text);
    for (int k = 0; k < N_REQUEST; k++) {
        assert_int_equal(submit(e, &cpu[k], k, &d), FATHOM_OK);
        answers_wait(e, 1);
        for (uint32_t i = 0; i < questions[k].n_output; i++) {
            assert_int_equal(cpu[k].ids[i], plain[0][k].ids[i]);
            assert_true(fabsf(cpu[k].logprobs[i] - plain[0][k].logprobs[i]) < 1e-3f);
        }
    }
    fathom_close(e);
}

static void recorded_steps_give_the_same_bits(void **state)
{
    (void)state;
    static struct answer a[N_REQUEST];
    fathom_stats s;
    fathom_options o = options_of(false);
    o.enforce_eager = false;
    size_t n_replay = count_replays();
    run(&o, 1, a, &s);
    expect_same(a, plain[0], "recorded");
    assert_true(count_replays() >= n_replay + 4);
}

/* Kernel by kernel and alone; then recorded, beside others, with pages found in the cache. The
 * stream is worked off only as far as somebody waits, so what the host writes too early is seen. */
static void steps_launched_ahead_give_the_same_bits(void **state)
{
    (void)state;
    static struct answer a[N_REQUEST];
    for (int fp8 = 0; fp8 < 2; fp8++) {
        fathom_stats s;
        fathom_options o = options_of(fp8);
        o.no_async = false;
        o.enforce_eager = !fp8;
        o.no_prefix_cache = !fp8;
        o.max_num_seqs = fp8 ? 3 : 1;
        run(&o, fp8 ? 2 : 1, a, &s);
        expect_same(a, plain[fp8], "launched ahead");
        assert_true(s.n_step_ahead > 0 && s.n_step_ahead < s.n_step);
    }
}

static void a_stop_drops_what_was_launched_ahead(void **state)
{
    (void)state;
    static struct answer a[N_REQUEST];
    fathom_options o = options_of(false);
    fathom_stats s;
    fathom_diag d = {{0}};
    o.no_async = false;
    o.enforce_eager = false;
    o.max_num_seqs = 2;
    fathom_engine *e = open_engine(&o);
    fathom_request r = {.prompt = text, .n_prompt = questions[0].n_prompt};
    fathom_sampling_init(&r.sampling);
    r.sampling.temperature = 0;
    r.sampling.stop_ids = &plain[0][0].ids[1];
    r.sampling.n_stop_id = 1;
    answer_ask(e, &a[0], &r);
    assert_int_equal(submit(e, &a[1], 1, &d), FATHOM_OK);
    answers_wait(e, 2);
    assert_true(a[0].stopped);
    assert_true(a[0].n <= 2 && a[0].ids[a[0].n - 1] == plain[0][0].ids[1]);
    assert_memory_equal(a[1].ids, plain[0][1].ids, a[1].n * sizeof *a->ids);
    assert_memory_equal(a[1].logprobs, plain[0][1].logprobs, a[1].n * sizeof *a->logprobs);
    fathom_get_stats(e, &s);
    assert_int_equal(s.n_page_free, s.n_page);
    fathom_close(e);
    expect_nothing_left("after a stop");
}

/* Drafts, pages found in the cache, prompts in chunks, several requests in a step. */
static void drafts_prefixes_and_chunks_give_the_same_bits(void **state)
{
    (void)state;
    static struct answer a[N_REQUEST];
    fathom_stats s;
    fathom_options o = options_of(true);
    o.enforce_eager = false;
    o.no_prefix_cache = false;
    o.n_draft = 1;
    o.max_num_seqs = 3;
    o.max_num_batched_tokens = 40;
    o.graph_sizes = (const uint32_t[]){2, 6};
    o.n_graph_size = 2;
    size_t n_replay = count_replays();
    run(&o, 2, a, &s);
    expect_same(a, plain[1], "drafts, recorded");
    assert_true(s.n_draft_token[0] > 0);
    assert_true(s.n_prefix_hit_token > 0);
    assert_true(count_replays() > n_replay);
}

static void pages_from_the_memory_tier_give_the_same_bits(void **state)
{
    (void)state;
    static struct answer a[N_REQUEST];
    fathom_stats s;
    fathom_options o = options_of(true);
    o.enforce_eager = false;
    o.no_prefix_cache = false;
    o.kv_cache_bytes = N_PAGE_FULL * small_model_page_bytes(o.kv, false);
    o.offload_ram_bytes = TIERS_MIN_RAM * direct_round(small_model_page_bytes(o.kv, false));
    run(&o, 2, a, &s);
    expect_same(a, plain[1], "memory tier");
    assert_true(s.tiers.n_ram_hit > 0);
}

/* Where nothing is said, and a step has room for them, or not. */
static void a_gpu_runs_more_requests_where_there_is_room(void **state)
{
    (void)state;
    static struct answer a[1];
    const uint32_t n_token[] = {512, MAX_LEN}, n_request[] = {256, 64};
    for (int i = 0; i < 2; i++) {
        fathom_options o = options_of(false);
        o.max_num_seqs = 0;
        o.max_num_batched_tokens = n_token[i];
        fathom_engine *e = open_engine(&o);
        assert_int_equal(fathom_get_info(e)->max_num_seqs, n_request[i]);
        assert_int_equal(fathom_get_info(e)->max_requests, n_request[i] + N_REQUEST);
        assert_int_equal(submit(e, a, 0, NULL), FATHOM_OK);
        answers_wait(e, 1);
        expect_one(a, plain[0], 0, "room for more requests");
        fathom_close(e);
        expect_nothing_left("after fathom_close");
    }
}

static void a_ranks_slice_runs_by_itself(void **state)
{
    (void)state;
    static struct answer a[2][N_REQUEST];
    fathom_stats s;
    for (int eager = 0; eager < 2; eager++) {
        fathom_options o = options_of(false);
        o.enforce_eager = eager;
        o.world = 2;
        o.rank = 1;
        o.rank_slice = true;
        o.n_draft = eager ? 0 : 1;
        o.max_num_seqs = eager ? 1 : 4;
        run(&o, 1, a[eager], &s);
        for (int k = 0; k < N_REQUEST; k++) {
            for (uint32_t i = 0; i < a[eager][k].n; i++) {
                assert_in_range(a[eager][k].ids[i], 0, SMALL_MODEL_VOCAB / 2 - 1);
            }
        }
    }
    expect_same(a[0], a[1], "rank 1 of 2, recorded with drafts");
}

/* Prompts that come one after the other, which all lanes compute. */
static void expect_shared(fathom_options o, const struct answer *want)
{
    static struct answer a[N_REQUEST];
    fathom_stats s;
    o.share_prompts = 8;
    o.max_num_batched_tokens = 24;
    o.no_prefix_cache = true;
    fathom_engine *e = open_engine(&o);
    for (int k = N_REQUEST - 1; k > 0; k--) {
        assert_int_equal(submit(e, &a[k], k, NULL), FATHOM_OK);
        answers_wait(e, 1);
        expect_one(a, want, k, "a prompt of all lanes");
    }
    fathom_get_stats(e, &s);
    assert_true(s.n_shared_token >= 2 * 48);
    fathom_close(e);
    expect_nothing_left("after shared prompts");
}

/* The plain answers of n ranks, and what they answer with all that a server does. */
static void expect_ranks(fathom_options o, uint32_t n_rank)
{
    static struct answer ranks[N_REQUEST], a[N_REQUEST];
    fathom_stats s;
    simt_set_devices((int)n_rank);
    run(&o, 1, ranks, &s);
    for (int k = 0; k < N_REQUEST; k++) {
        for (uint32_t i = 0; i < questions[k].n_output; i++) {
            assert_int_equal(ranks[k].ids[i], plain[0][k].ids[i]);
            assert_true(fabsf(ranks[k].logprobs[i] - plain[0][k].logprobs[i]) < 1e-3f);
        }
    }
    assert_int_equal(s.n_rank_wait, n_rank);
    uint64_t n_wait = 0;
    for (uint32_t i = 0; i < n_rank; i++) n_wait += s.rank_waits[i].n;
    assert_true(n_wait > 0);
    const size_t n_replay = count_replays();
    o.no_async = false;
    o.enforce_eager = false;
    o.no_prefix_cache = false;
    o.max_num_seqs = 3;
    o.max_num_batched_tokens = 40;
    o.n_draft = 1;
    run(&o, 2, a, &s);
    expect_same(a, ranks, "several ranks");
    assert_true(s.n_prefix_hit_token > 0);
    assert_true(count_replays() > n_replay);
    if (o.data_parallel > 1) expect_shared(o, ranks);
    simt_set_devices(1);
}

/* Through the rank group, a device and a thread each: prompts of 64 tokens and more have rows with
 * owners, which a prompt in chunks has not. Two lanes of such ranks stand
 * for them in every run. */
static void two_ranks_give_the_same_bits(void **state)
{
    (void)state;
    if (!all_cases) return;
    fathom_options o = options_of(false);
    o.world = 2;
    expect_ranks(o, 2);
}

/* Whichever rank a request is on, and whatever the other one has to do meanwhile. Two lanes of two
 * ranks stand for them in every run. */
static void two_ranks_with_requests_of_their_own_give_the_same_bits(void **state)
{
    (void)state;
    if (!all_cases) return;
    fathom_options o = options_of(false);
    o.data_parallel = 2;
    o.expert_parallel = true;
    expect_ranks(o, 2);
    static struct answer a[N_REQUEST];
    fathom_stats s;
    o = options_of(true); /* two forms of rows */
    o.data_parallel = 2;
    o.expert_parallel = true;
    simt_set_devices(2);
    run(&o, 1, a, &s);
    o.enforce_eager = false;
    o.n_draft = 1;
    expect_shared(o, a);
    simt_set_devices(1);
}

/* Sums over the ranks of a lane, and experts over all. */
static void two_lanes_of_two_ranks_give_the_same_bits(void **state)
{
    (void)state;
    fathom_options o = options_of(false);
    o.data_parallel = 2;
    o.world = 2;
    o.expert_parallel = true;
    expect_ranks(o, 4);
}

/* Layers in two runs, each on a device of its own or on two: rows go through memory of the host. */
static void stages_give_the_bits_of_one(void **state)
{
    (void)state;
    static struct answer one[N_REQUEST], a[N_REQUEST];
    fathom_stats s;
    for (uint32_t world = 1; world <= (all_cases ? 2 : 1); world++) {
        fathom_options o = options_of(false);
        o.world = world;
        simt_set_devices(4);
        run(&o, 1, one, &s);
        o.pipeline = 2;
        if (all_cases) {
            run(&o, 1, a, &s);
            expect_same(a, one, "two stages");
        }
        const size_t n_replay = count_replays();
        o.enforce_eager = false;
        o.no_prefix_cache = false;
        o.max_num_seqs = 3;
        o.max_num_batched_tokens = 40;
        run(&o, 2, a, &s);
        expect_same(a, one, "two stages, recorded, in chunks, twice");
        assert_true(s.n_prefix_hit_token > 0);
        assert_true(count_replays() > n_replay);
        o.n_draft = 1;
        run(&o, 1, a, &s);
        expect_same(a, one, "two stages with drafts");
    }
    fathom_options o = options_of(true);
    o.pipeline = 2;
    o.enforce_eager = false;
    run(&o, 1, a, &s);
    expect_same(a, plain[1], "two stages, FP8");
    simt_set_devices(1);
}

/* ---- devices -------------------------------------------------------------------------------- */

static void a_device_is_chosen_by_its_index(void **state)
{
    (void)state;
    static struct answer a[N_REQUEST];
    fathom_engine *e = NULL;
    fathom_diag d = {{0}};
    fathom_stats s;
    const int devices[] = {0, 1};
    fathom_options o = options_of(true);
    o.devices = devices;
    o.n_device = 1;
    run(&o, 1, a, &s);
    o.devices = devices + 1;
    assert_int_equal(fathom_open(&e, &o, &d), FATHOM_EINVAL);
    assert_non_null(strstr(d.text, "--devices names GPU 1, and this machine has 0 to 0"));
    assert_null(e);
}

/* ---- faults --------------------------------------------------------------------------------- */

static void a_device_too_small_is_refused_before_it_is_used(void **state)
{
    (void)state;
    fathom_engine *e = NULL;
    fathom_diag d = {{0}};
    fathom_options o = options_of(true);
    simt_set_memory(1 << 20);
    simt_fail_after(SIMT_MALLOC, 0);
    assert_int_equal(fathom_open(&e, &o, &d), FATHOM_ENOMEM);
    assert_null(e);
    assert_false(simt_fail_hit());
    assert_true(strlen(d.text) > 0);
    simt_fail_after(SIMT_NONE, 0);
    simt_set_memory(0);
    expect_nothing_left("a device too small");
}

/* One line each, which names rank, pair or flag; nothing is loaded. */
static void gpus_that_ranks_cannot_have_are_named(void **state)
{
    (void)state;
    static const struct {
        int n_gpu, odd;
        const char *name;
        size_t odd_bytes;
        bool is_barred;
        fathom_err err;
        const char *part;
    } cases[] = {
        {1, -1, NULL, 0, false, FATHOM_EINVAL,
         "--tensor-parallel-size 2 needs a GPU for each rank, and this machine has 1"},
        {2, 1, "simulated", 1 << 20, false, FATHOM_ENOMEM,
         "rank 1, on GPU 1, has least memory free: "},
        {2, 1, "another", 0, false, FATHOM_EDEVICE,
         "device 0 of rank 0 is \"simulated\", device 1 of rank 1 \"another\""},
        {2, -1, NULL, 0, true, FATHOM_EDEVICE,
         "device 1 of rank 1 cannot reach the memory of device 0 of rank 0"},
    };
    fathom_options o = options_of(false);
    o.world = 2;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fathom_engine *e = NULL;
        fathom_diag d = {{0}};
        simt_set_devices(cases[i].n_gpu);
        simt_set_odd(cases[i].odd, cases[i].name, cases[i].odd_bytes);
        if (cases[i].is_barred) simt_set_peer_access(1, 0, false);
        assert_int_equal(fathom_open(&e, &o, &d), cases[i].err);
        if (!strstr(d.text, cases[i].part)) fail_msg("%s, needed: %s", d.text, cases[i].part);
        assert_null(strchr(d.text, '\n'));
        assert_null(e);
        expect_nothing_left(cases[i].part);
    }
    simt_set_odd(-1, NULL, 0);
    simt_set_devices(1);
    fathom_engine *e = NULL;
    fathom_diag d = {{0}};
    o.data_parallel = 2;
    o.expert_parallel = true;
    assert_int_equal(fathom_open(&e, &o, &d), FATHOM_EINVAL);
    assert_string_equal(d.text,
                        "--data-parallel-size 2 of --tensor-parallel-size 2 needs a GPU for "
                        "each of 4 ranks, and this machine has 1");
}

static void a_gpu_without_kernels_is_refused_and_not_chosen(void **state)
{
    (void)state;
    fathom_engine *e = NULL;
    fathom_options o = options_of(false);
    static const struct {
        int major, minor;
        const char *part;
    } cases[] = {{7, 5, "is sm_75, the cuda backend needs sm_80 or later; use --backend cpu"},
                 {13, 0, "is sm_130, and this program has no kernels for it"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fathom_diag d = {{0}};
        simt_set_capability(cases[i].major, cases[i].minor);
        assert_int_equal(fathom_open(&e, &o, &d), FATHOM_EUNSUPPORTED);
        if (!strstr(d.text, cases[i].part)) fail_msg("%s, needed: %s", d.text, cases[i].part);
        expect_nothing_left("a GPU without kernels");
    }
    simt_set_capability(7, 5);
    o.backend = FATHOM_BACKEND_AUTO;
    assert_int_equal(fathom_open(&e, &o, NULL), FATHOM_OK);
    assert_string_equal(fathom_get_info(e)->backend, "cpu");
    fathom_close(e);
    simt_set_capability(9, 0);
}

/* The n-th call of each kind fails while the engine opens: all of the first ones, then fewer. */
static void each_failing_call_while_opening_is_clean(void **state)
{
    (void)state;
    static const struct {
        enum simt_call call;
        fathom_err err;
        const char *part;
    } cases[] = {
        {SIMT_MALLOC, FATHOM_ENOMEM, "device 0: no room for"},
        {SIMT_MALLOC_HOST, FATHOM_ENOMEM, "no pinned host memory"},
        {SIMT_LAUNCH, FATHOM_EDEVICE, "device 0 (simulated): "},
        {SIMT_COPY, FATHOM_EDEVICE, "device 0 (simulated): cudaMemcpy"},
        {SIMT_SYNC, FATHOM_EDEVICE, "device 0 (simulated): "},
        {SIMT_INSTANTIATE, FATHOM_EDEVICE, "device 0 (simulated): cudaGraphInstantiate"},
        {SIMT_KERNEL, FATHOM_EDEVICE, "device 0 (simulated): "},
    };
    fathom_options o = options_of(true);
    o.enforce_eager = false;
    o.graph_sizes = &(const uint32_t){1};
    o.n_graph_size = 1;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        bool hit = true;
        for (long n = 0; hit; n += 1 + (all_cases ? n / 3 : n)) {
            fathom_engine *e = NULL;
            fathom_diag d = {{0}};
            simt_fail_after(cases[i].call, n);
            fathom_err err = fathom_open(&e, &o, &d);
            hit = simt_fail_hit();
            simt_fail_after(SIMT_NONE, 0);
            if (hit && (err != cases[i].err || !strstr(d.text, cases[i].part))) {
                fail_msg("kind %d, %ld: %d, %s", (int)cases[i].call, n, (int)err, d.text);
            }
            if (!hit) assert_int_equal(err, FATHOM_OK);
            fathom_close(e);
            expect_nothing_left("a failed call");
        }
    }
}

/* The first fault ends the engine: everybody is answered, the message says what it was. */
static void a_failing_call_ends_the_engine_and_answers_all(void **state)
{
    (void)state;
    static struct answer a[N_REQUEST];
    static const struct {
        enum simt_call call;
        long n; /* calls that succeed */
        bool eager;
        const char *part;
    } cases[] = {
        {SIMT_LAUNCH, 1, true, "launch in "},
        {SIMT_LAUNCH, 0, false, "launch in copy_in"},
        {SIMT_SYNC, 1, true, "cudaEventSynchronize"},
        {SIMT_KERNEL, 1, true, "last launched: "},
        /* while another step is under way */
        {SIMT_SYNC, 0, false, "cudaEventSynchronize"},
        {SIMT_LAUNCH, 42, false, ""},
        {SIMT_LAUNCH, 43, false, ""},
        {SIMT_LAUNCH, 44, false, ""},
        {SIMT_KERNEL, 60, true, "last launched: "},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fathom_options o = options_of(true);
        fathom_diag d = {{0}};
        fathom_stats s;
        o.enforce_eager = cases[i].eager;
        o.no_async = i < 4;
        o.graph_sizes = &(const uint32_t){1};
        o.n_graph_size = 1;
        fathom_engine *e = open_engine(&o);
        simt_fail_after(cases[i].call, cases[i].n);
        for (int k = 0; k < N_REQUEST; k++) {
            fathom_err err = submit(e, &a[k], k, &d);
            assert_true(err == FATHOM_OK || (k > 0 && err == FATHOM_EDEVICE));
            a[k].done = err != FATHOM_OK;
        }
        for (int k = 0; k < N_REQUEST; k++) {
            while (!a[k].done) (void)answers_take(e, 60000);
            if (a[k].finish.kind == FATHOM_EVENT_FINISH) {
                bool was_over = i >= 4 && a[k].finish.finish == FATHOM_FINISH_LENGTH;
                assert_true(was_over || a[k].finish.finish == FATHOM_FINISH_ERROR);
            }
        }
        assert_true(simt_fail_hit());
        if (!strstr(fathom_fault(e), "device 0 (simulated): ") ||
            !strstr(fathom_fault(e), cases[i].part)) {
            fail_msg("case %zu: %s", i, fathom_fault(e));
        }
        fathom_get_stats(e, &s);
        assert_true(s.failed);
        assert_int_equal(submit(e, &a[0], 0, &d), FATHOM_EDEVICE);
        fathom_close(e);
        simt_fail_after(SIMT_NONE, 0);
        expect_nothing_left("a failed engine");
    }
}

int main(int argc, char **argv)
{
    all_cases = argc > 1 && strcmp(argv[1], "all") == 0;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plain_answers_are_the_cpu_backends),
        cmocka_unit_test(recorded_steps_give_the_same_bits),
        cmocka_unit_test(steps_launched_ahead_give_the_same_bits),
        cmocka_unit_test(a_stop_drops_what_was_launched_ahead),
        cmocka_unit_test(drafts_prefixes_and_chunks_give_the_same_bits),
        cmocka_unit_test(pages_from_the_memory_tier_give_the_same_bits),
        cmocka_unit_test(a_gpu_runs_more_requests_where_there_is_room),
        cmocka_unit_test(a_ranks_slice_runs_by_itself),
        cmocka_unit_test(two_ranks_give_the_same_bits),
        cmocka_unit_test(two_ranks_with_requests_of_their_own_give_the_same_bits),
        cmocka_unit_test(two_lanes_of_two_ranks_give_the_same_bits),
        cmocka_unit_test(stages_give_the_bits_of_one),
        cmocka_unit_test(a_device_is_chosen_by_its_index),
        cmocka_unit_test(a_device_too_small_is_refused_before_it_is_used),
        cmocka_unit_test(gpus_that_ranks_cannot_have_are_named),
        cmocka_unit_test(a_gpu_without_kernels_is_refused_and_not_chosen),
        cmocka_unit_test(each_failing_call_while_opening_is_clean),
        cmocka_unit_test(a_failing_call_ends_the_engine_and_answers_all),
    };
    return cmocka_run_group_tests(tests, make_plain, free_models);
}
