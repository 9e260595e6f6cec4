/* test_engine_pilot [ref|cpu|cuda [REQUESTS]] - the pilot model through the engine
 *
 * With 16 requests and all shapes of steps, or as many requests as are asked for and some shapes.
 *
 * The bits are the same whatever the budget, the neighbours and the number of threads; after
 * preemptions, from cached pages, from tiers, and with drafts. On a GPU steps are launched before
 * the one in front of them has ended (overlap scheduling): its bits are those without. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "backend/backend.h"
#include "base/mem.h"
#include "golden/evaluation.h"
#include "golden/golden.h"

enum { N_REQUEST = 16, PILOT_LEN = 1536, SHORT_PROMPT = 100, SHORT_LEN = 448 };

enum { SKIPPED = 77 };

static enum fathom_backend backend = FATHOM_BACKEND_CPU;
static int n_request = N_REQUEST;
static struct evaluation ev;
static fathom_request requests[N_REQUEST];
static struct answer alone[N_REQUEST];
static struct answer answers[N_REQUEST];

struct shape {
    uint32_t budget;
    uint32_t n_thread;
    uint32_t max_num_seqs;
    uint32_t n_page;
    uint32_t max_model_len;
    bool no_prefix_cache;
    uint32_t n_draft;
    uint32_t n_ram_page; /* of the memory tier */
};

static bool no_async;

static fathom_engine *open_shape(const struct shape *s)
{
    enum { LAYER_BYTES = 64 * (1152 + 132), N_LAYER = 8 };
    uint64_t page_bytes = (N_LAYER + (s->n_draft > 0)) * (uint64_t)LAYER_BYTES;
    fathom_engine *e = NULL;
    fathom_diag d = {{0}};
    fathom_options o = {.model_dir = FATHOM_SOURCE_DIR "/models/pilot",
                        .backend = backend,
                        .n_thread = s->n_thread,
                        .max_model_len = s->max_model_len,
                        .max_num_seqs = s->max_num_seqs,
                        .max_num_batched_tokens = s->budget,
                        .kv_cache_bytes = s->n_page * page_bytes,
                        .n_draft = s->n_draft,
                        .no_prefix_cache = s->no_prefix_cache,
                        .offload_ram_bytes = s->n_ram_page * (page_bytes + 4096),
                        .no_async = no_async,
                        .seed = 1};
    if (fathom_open(&e, &o, &d) != FATHOM_OK) fail_msg("%s", d.text);
    assert_int_equal(fathom_get_info(e)->n_page, s->n_page);
    return e;
}

static void submit(fathom_engine *e, int i)
{
    answer_ask(e, &answers[i], &requests[i]);
}

/* Prompts of every kind and length, greedy and sampled, with and without penalties. */
static int run_each_alone(void **state)
{
    (void)state;
    evaluation_open(&ev);
    for (int i = 0; i < n_request; i++) {
        const struct evaluation_case *c = &ev.cases[(size_t)i * ev.n / (size_t)n_request];
        fathom_request *r = &requests[i];
        r->prompt = c->prompt.ids;
        r->n_prompt = (uint32_t)c->prompt.n < PILOT_LEN / 2 ? (uint32_t)c->prompt.n : PILOT_LEN / 2;
        fathom_sampling_init(&r->sampling);
        r->sampling.temperature = i % 3 ? 1 : 0;
        r->sampling.top_p = i % 4 == 1 ? 0.9f : 1;
        r->sampling.has_seed = true;
        r->sampling.seed = (uint64_t)i;
        r->sampling.frequency_penalty = i % 5 ? 0 : 0.3f;
        r->sampling.max_tokens = r->n_prompt < SHORT_PROMPT ? 220 : 24;
        r->sampling.ignore_eos = r->n_prompt < SHORT_PROMPT;
        r->sampling.logprobs = true;
    }
    const struct shape shape = {4096, 1, 1, 24, PILOT_LEN, true, 0, 0};
    no_async = true;
    fathom_engine *e = open_shape(&shape);
    no_async = false;
    for (int i = 0; i < n_request; i++) {
        submit(e, i);
        answers_wait(e, 1);
        alone[i] = answers[i];
    }
    fathom_close(e);
    return 0;
}

static int close_evaluation(void **state)
{
    (void)state;
    evaluation_close(&ev);
    return 0;
}

/* What fathom_open has told while it loaded. */
struct loading {
    uint64_t done, total;
    unsigned n;
};

static void take_loading(void *arg, uint64_t done_bytes, uint64_t total_bytes)
{
    struct loading *l = arg;
    assert_true(done_bytes > l->done);
    l->done = done_bytes;
    l->total = total_bytes;
    l->n++;
}

static void loading_is_told_layer_by_layer(void **state)
{
    (void)state;
    struct loading l = {0};
    fathom_engine *e;
    fathom_diag d = {{0}};
    const fathom_options o = {.model_dir = FATHOM_SOURCE_DIR "/models/pilot",
                              .backend = FATHOM_BACKEND_CPU,
                              .max_num_seqs = 1,
                              .max_model_len = 64,
                              .on_load = take_loading,
                              .on_load_arg = &l};
    if (fathom_open(&e, &o, &d)) fail_msg("%s", d.text);
    assert_int_equal(l.n, 8);
    assert_int_equal(l.done, fathom_get_info(e)->weights_bytes);
    assert_in_range(l.total, l.done / 2, l.done * 2);
    fathom_close(e);
}

static void expect_as_alone(int i)
{
    const struct answer *a = &answers[i], *want = &alone[i];
    if (a->n != want->n || memcmp(a->ids, want->ids, a->n * sizeof a->ids[0]) != 0) {
        fail_msg("request %d draws other tokens than alone", i);
    }
    assert_memory_equal(a->logprobs, want->logprobs, a->n * sizeof a->logprobs[0]);
    assert_int_equal(a->finish.finish, want->finish.finish);
}

static void the_same_bits_whatever_the_step(void **state)
{
    (void)state;
    static const struct shape shapes[] = {
        {4096, 2, 16, 300, PILOT_LEN, false, 0, 0}, /* all together, two threads */
        {16, 2, 16, 300, PILOT_LEN, true, 0, 0},
        {64, 1, 16, 300, PILOT_LEN, true, 4, 0},
        {64, 2, 16, 24, PILOT_LEN, false, 1, 0}, /* few pages: long prompts wait for each other */
        /* with all requests */
        {64, 1, 16, 300, PILOT_LEN, false, 0, 0},
        {4096, 1, 16, 300, PILOT_LEN, false, 2, 0},
        {64, 2, 16, 300, PILOT_LEN, true, 4, 0},
        {64, 2, 16, 24, PILOT_LEN, false, 0, 0},
    };
    const size_t n_shape = n_request < N_REQUEST ? 4 : sizeof shapes / sizeof shapes[0];
    for (size_t k = 0; k < n_shape; k++) {
        fathom_engine *e = open_shape(&shapes[k]);
        for (int i = 0; i < n_request; i++) submit(e, i);
        answers_wait(e, (size_t)n_request);
        for (int i = 0; i < n_request; i++) expect_as_alone(i);
        answers_expect_rest(e);
        fathom_close(e);
    }
}

/* Whether rows of prompts have other bits than rows of answers (caps.prompt_form): on a GPU's fast
 * path, which is what the engine takes there for the pilot. */
static bool has_two_forms(void)
{
    return backend == FATHOM_BACKEND_CUDA;
}

/* What the same token's log-probability may differ by from one form to the other. */
#define FORMS_LIMIT 5e-2f

/* A request whose prompt is another's prompt and answer: what drawing an answer token said of it is
 * what the prompt's log-probabilities say, to the bit where there is one form of attention. */
static void a_prompt_is_scored_as_it_was_drawn(void **state)
{
    (void)state;
    static const struct shape shapes[] = {
        {4096, 1, 16, 300, PILOT_LEN, false, 0, 0},
        {64, 2, 16, 30, PILOT_LEN, false, 2, 0},
        /* with all requests */
        {50, 2, 16, 300, PILOT_LEN, false, 0, 0},
    };
    static int32_t texts[N_REQUEST][PILOT_LEN];
    const size_t n_shape = n_request < N_REQUEST ? 2 : sizeof shapes / sizeof shapes[0];
    for (size_t k = 0; k < n_shape; k++) {
        fathom_engine *e = open_shape(&shapes[k]);
        for (int i = 0; i < n_request; i++) {
            fathom_request r = {.prompt = texts[i], .n_prompt = requests[i].n_prompt + alone[i].n};
            memcpy(texts[i], requests[i].prompt, requests[i].n_prompt * sizeof(int32_t));
            memcpy(texts[i] + requests[i].n_prompt, alone[i].ids, alone[i].n * sizeof(int32_t));
            fathom_sampling_init(&r.sampling);
            r.sampling.max_tokens = 1;
            r.sampling.prompt_logprobs = true;
            r.sampling.n_prompt_top_logprobs = 1;
            answer_ask(e, &answers[i], &r);
        }
        answers_wait(e, (size_t)n_request);
        for (int i = 0; i < n_request; i++) {
            const struct answer *a = &answers[i];
            uint32_t n_prompt = requests[i].n_prompt;
            assert_int_equal(a->n_prompt, n_prompt + alone[i].n - 1);
            for (uint32_t t = 0; t < alone[i].n; t++) {
                const float got = a->prompt[n_prompt - 1 + t].logprob;
                const float apart = fabsf(got - alone[i].logprobs[t]);
                assert_true(has_two_forms() ? apart < FORMS_LIMIT : got == alone[i].logprobs[t]);
            }
            for (uint32_t t = 0; t < a->n_prompt; t++) {
                assert_int_equal(a->prompt[t].place == 1,
                                 a->prompt[t].top[0].id == a->prompt[t].id);
                assert_true(a->prompt[t].top[0].logprob >= a->prompt[t].logprob);
            }
        }
        answers_expect_rest(e);
        fathom_close(e);
    }
}

static double log_sum_exp(const float *x, uint32_t n)
{
    double sum = 0;
    for (uint32_t i = 0; i < n; i++) sum += exp((double)x[i] - (double)x[0]);
    return (double)x[0] + log(sum);
}

/* Rows of the head that are no tokens are never drawn, and are in every log-probability: of the
 * prompt's tokens, whatever their ids, and of the drawn one. */
static void log_probabilities_are_of_the_whole_head(void **state)
{
    (void)state;
    enum { N_USED = 300, N_VOCAB = 4096 };
    struct golden_reference reference;
    struct golden_text text;
    fathom_diag d = {{0}};
    fathom_engine *e = NULL;
    const fathom_options o = {.model_dir = FATHOM_SOURCE_DIR "/models/pilot",
                              .backend = backend,
                              .act = FATHOM_ACT_F32,
                              .kv = FATHOM_KV_F32,
                              .n_thread = 2,
                              .max_model_len = SHORT_LEN,
                              .max_num_seqs = 1,
                              .n_vocab_used = N_USED};
    golden_reference_open(&reference, GOLDEN_PILOT_REFERENCE);
    assert_true(golden_text_load(&reference, 1, &text));
    assert_true(text.n_token < SHORT_LEN);
    if (fathom_open(&e, &o, &d) != FATHOM_OK) fail_msg("%s", d.text);
    fathom_request r = {.prompt = text.ids, .n_prompt = text.n_token};
    fathom_sampling_init(&r.sampling);
    r.sampling.temperature = 0;
    r.sampling.max_tokens = 1;
    r.sampling.logprobs = r.sampling.prompt_logprobs = true;
    answer_ask(e, &answers[0], &r);
    answers_wait(e, 1);
    const struct answer *a = &answers[0];
    assert_int_equal(a->n_prompt, text.n_token - 1);
    uint32_t n_unused = 0;
    for (uint32_t t = 0; t < a->n_prompt; t++) {
        double difference = (double)a->prompt[t].logprob - (double)text.logprob_of_next[t];
        if (!(fabs(difference) < 1e-3)) fail_msg("token %u of the prompt is off %g", t, difference);
        n_unused += a->prompt[t].id >= N_USED;
    }
    assert_true(n_unused > 5 && n_unused < a->n_prompt);
    const float *last = text.logits + (size_t)(text.n_kept - 1) * N_VOCAB;
    assert_int_equal(a->n, 1);
    assert_in_range(a->ids[0], 0, N_USED - 1);
    for (uint32_t i = 0; i < N_USED; i++) assert_true(last[i] <= last[a->ids[0]] + 1e-3f);
    double want = (double)last[a->ids[0]] - log_sum_exp(last, N_VOCAB);
    assert_true(fabs((double)a->logprobs[0] - want) < 1e-3);
    fathom_close(e);
    golden_text_free(&text);
    golden_reference_close(&reference);
}

/* Short prompts with long answers: admitted with a page or two, each wants five in the end. */
static void the_same_bits_after_preemption(void **state)
{
    (void)state;
    for (uint32_t n_draft = 0; n_draft <= 3; n_draft += 3) {
        const struct shape shape = {64, 2, 16, 9, SHORT_LEN, false, n_draft, 0};
        fathom_engine *e = open_shape(&shape);
        size_t n = 0;
        for (int i = 0; i < n_request; i++) {
            if (requests[i].n_prompt >= SHORT_PROMPT) continue;
            submit(e, i);
            n++;
        }
        assert_true(n >= (size_t)n_request * 3 / 8);
        answers_wait(e, n);
        for (int i = 0; i < n_request; i++) {
            if (requests[i].n_prompt < SHORT_PROMPT) expect_as_alone(i);
        }
        answers_expect_rest(e);
        fathom_stats s;
        fathom_get_stats(e, &s);
        assert_true(s.n_preempted > 0);
        assert_int_equal(s.n_accepted_token[1] > 0, n_draft > 0);
        fathom_close(e);
    }
}

/* Each request goes on from a token of its answer, the i-th one from another: by itself the next
 * token and all that follow are those that were lost, with drafts and penalties too. */
static void the_same_bits_behind_output_drawn_elsewhere(void **state)
{
    (void)state;
    for (uint32_t n_draft = 0; n_draft <= 2; n_draft += 2) {
        const struct shape shape = {64, 2, 16, 300, PILOT_LEN, false, n_draft, 0};
        fathom_engine *e = open_shape(&shape);
        for (int part = n_draft ? 3 : 2; part <= 4; part += 2) {
            size_t n = 0;
            for (int i = 0; i < n_request; i++) {
                fathom_request r = requests[i];
                r.output = alone[i].ids;
                r.n_output = part == 4 ? alone[i].n - 1 : alone[i].n * (uint32_t)part / 4;
                if (r.n_output == 0) continue;
                answer_ask(e, &answers[i], &r);
                memcpy(answers[i].logprobs, alone[i].logprobs, r.n_output * sizeof(float));
                n++;
            }
            assert_true(n >= (size_t)n_request / 2);
            answers_wait(e, n);
            for (int i = 0; i < n_request; i++) {
                if (alone[i].n * (uint32_t)part / 4 > 0) expect_as_alone(i);
            }
        }
        answers_expect_rest(e);
        fathom_close(e);
    }
}

static void output_that_cannot_be_gone_on_from_says_why(void **state)
{
    (void)state;
    const struct shape shape = {64, 1, 1, 24, PILOT_LEN, false, 0, 0};
    fathom_engine *e = open_shape(&shape);
    fathom_request r = requests[0];
    fathom_diag d = {{0}};
    uint64_t id;
    int32_t ids[24] = {0};
    r.sampling.max_tokens = 24;
    r.output = ids;
    r.n_output = 24;
    assert_int_equal(fathom_submit(e, &r, &id, &d), FATHOM_EINVAL);
    assert_string_equal(d.text, "output has 24 entries, allowed are 23");
    r.n_output = 3;
    ids[2] = -1;
    d = (fathom_diag){{0}};
    assert_int_equal(fathom_submit(e, &r, &id, &d), FATHOM_EINVAL);
    assert_non_null(strstr(d.text, "output[2] is -1, needed is 0 to "));
    ids[2] = 0;
    r.sampling.prompt_logprobs = true;
    d = (fathom_diag){{0}};
    assert_int_equal(fathom_submit(e, &r, &id, &d), FATHOM_EINVAL);
    assert_non_null(strstr(d.text, "prompt_logprobs"));
    fathom_close(e);
}

/* ---- conversations ---- */

enum { N_TALK = 6, N_TURN = 3, TURN_TOKENS = 200 };

/* A conversation: what was said so far, and what each turn drew without a prefix cache. */
struct talk {
    int32_t ids[PILOT_LEN];
    uint32_t n;
    struct answer turns[N_TURN];
};

static struct talk talks[N_TALK];

/* Appends what turn `t` begins with. Talks 0 and 1, 2 and 3, ... begin alike. */
static void say(struct talk *talk, int i, int t)
{
    int32_t which = t == 0 ? i / 2 : i + t * N_TALK;
    const struct evaluation_case *c = &ev.cases[(size_t)which * 7 % ev.n];
    uint32_t n = c->prompt.n < TURN_TOKENS ? (uint32_t)c->prompt.n : TURN_TOKENS;
    memcpy(talk->ids + talk->n, c->prompt.ids, n * sizeof talk->ids[0]);
    talk->n += n;
}

static void hear(struct talk *talk, const struct answer *a)
{
    memcpy(talk->ids + talk->n, a->ids, a->n * sizeof talk->ids[0]);
    talk->n += a->n;
}

static void submit_turn(fathom_engine *e, int i)
{
    fathom_request r = {.prompt = talks[i].ids, .n_prompt = talks[i].n};
    fathom_sampling_init(&r.sampling);
    r.sampling.temperature = i % 2 ? 1 : 0;
    r.sampling.has_seed = true;
    r.sampling.seed = (uint64_t)i;
    r.sampling.max_tokens = 80;
    r.sampling.ignore_eos = true;
    r.sampling.logprobs = true;
    answer_ask(e, &answers[i], &r);
}

static void talk_without_a_cache(void)
{
    const struct shape shape = {4096, 1, 1, 24, PILOT_LEN, true, 0, 0};
    fathom_engine *e = open_shape(&shape);
    for (int i = 0; i < N_TALK; i++) {
        for (int t = 0; t < N_TURN; t++) {
            say(&talks[i], i, t);
            submit_turn(e, i);
            answers_wait(e, 1);
            assert_int_equal(answers[i].finish.n_cached, 0);
            talks[i].turns[t] = answers[i];
            hear(&talks[i], &answers[i]);
        }
    }
    fathom_close(e);
}

static void the_same_bits_from_cached_pages(void **state)
{
    (void)state;
    static const struct shape shapes[] = {
        {4096, 1, 16, 300, PILOT_LEN, false, 0, 0}, {64, 2, 16, 300, PILOT_LEN, false, 0, 0},
        {16, 2, 16, 300, PILOT_LEN, false, 0, 0},   {64, 2, 16, 300, PILOT_LEN, false, 2, 0},
        {64, 2, 16, 40, PILOT_LEN, false, 0, 0},   /* pages are evicted between the turns */
        {64, 2, 16, 24, PILOT_LEN, false, 2, 200}, /* and come back from memory */
    };
    talk_without_a_cache();
    for (size_t k = 0; k < sizeof shapes / sizeof shapes[0]; k++) {
        fathom_engine *e = open_shape(&shapes[k]);
        uint32_t n_before[N_TALK] = {0}, n_asked[N_TALK] = {0};
        for (int i = 0; i < N_TALK; i++) talks[i].n = 0;
        for (int t = 0; t < N_TURN; t++) {
            for (int i = 0; i < N_TALK; i++) {
                n_before[i] = talks[i].n;
                say(&talks[i], i, t);
                submit_turn(e, i);
            }
            answers_wait(e, N_TALK);
            for (int i = 0; i < N_TALK; i++) {
                const struct answer *a = &answers[i], *want = &talks[i].turns[t];
                /* rows of the answer before are not a prompt's where there are two forms */
                const uint32_t n_found = has_two_forms() ? n_asked[i] : n_before[i];
                const uint32_t n_computed = n_found ? n_found - 1 : 0;
                assert_int_equal(a->n, want->n);
                assert_memory_equal(a->ids, want->ids, a->n * sizeof a->ids[0]);
                assert_memory_equal(a->logprobs, want->logprobs, a->n * sizeof a->logprobs[0]);
                if (shapes[k].n_page == 300 || shapes[k].n_ram_page > 0) {
                    assert_true(a->finish.n_cached >= n_computed / 64 * 64);
                }
                n_asked[i] = talks[i].n;
                hear(&talks[i], a);
            }
        }
        fathom_stats s;
        fathom_get_stats(e, &s);
        assert_true(s.n_prefix_hit_token > 0 && s.n_prefix_hit_token < s.n_prefix_query_token);
        assert_int_equal(s.tiers.n_ram_hit > 0, shapes[k].n_ram_page > 0);
        answers_expect_rest(e);
        fathom_close(e);
    }
}

static void files_come_from_the_checkpoint(void **state)
{
    (void)state;
    const struct shape shape = {64, 1, 1, 24, PILOT_LEN, false, 0, 0};
    fathom_engine *e = open_shape(&shape);
    const char *data;
    size_t n;
    assert_int_equal(fathom_get_file(e, "tokenizer.json", &data, &n), FATHOM_OK);
    assert_true(n > 1000 && data[0] == '{');
    assert_int_equal(fathom_get_file(e, "nothing.json", &data, &n), FATHOM_ENOTFOUND);
    const fathom_info *info = fathom_get_info(e);
    assert_string_equal(info->model_type, "deepseek_v32");
    assert_int_equal(info->n_vocab, 4096);
    assert_int_equal(info->bos_id, 0);
    assert_int_equal(info->n_eos, 1);
    assert_int_equal(info->eos_ids[0], 1);
    assert_true(info->default_temperature == 0.6f && info->default_top_p == 0.95f);
    assert_true(info->weights_bytes > 0);
    fathom_close(e);
}

static void what_cannot_be_opened_says_why(void **state)
{
    (void)state;
    fathom_engine *e = NULL;
    fathom_diag none = {{0}}, missing = {{0}}, small = {{0}};
    fathom_options o = {0};
    assert_int_equal(fathom_open(&e, &o, &none), FATHOM_EINVAL);
    assert_non_null(strstr(none.text, "no model"));
    o.model_dir = FATHOM_SOURCE_DIR "/models/nothing";
    assert_int_not_equal(fathom_open(&e, &o, &missing), FATHOM_OK);
    assert_non_null(strstr(missing.text, "models/nothing"));
    o.model_dir = FATHOM_SOURCE_DIR "/models/pilot";
    o.backend = backend;
    o.kv_cache_bytes = 1 << 20;
    assert_int_equal(fathom_open(&e, &o, &small), FATHOM_ENOMEM);
    assert_non_null(strstr(small.text, "--kv-cache-memory-bytes"));
    assert_null(e);
}

/* Every eighth or so of the allocations that opening makes. */
static void a_failing_allocation_while_opening_is_clean(void **state)
{
    (void)state;
    fathom_options o = {.model_dir = FATHOM_SOURCE_DIR "/models/pilot",
                        .backend = backend,
                        .n_thread = 1,
                        .max_model_len = 256,
                        .max_num_seqs = 2,
                        .max_num_batched_tokens = 16};
    for (long n = 0;; n += 1 + n / 8) {
        fathom_engine *e = NULL;
        mem_fail_after(n);
        fathom_err err = fathom_open(&e, &o, NULL);
        bool hit = mem_fail_hit();
        mem_fail_after(-1);
        if (!hit) {
            assert_int_equal(err, FATHOM_OK);
            fathom_close(e);
            return;
        }
        assert_int_equal(err, FATHOM_ENOMEM);
        assert_null(e);
    }
}

int main(int argc, char **argv)
{
    const char *name = argc > 1 ? argv[1] : "cpu";
    if (strcmp(name, "ref") == 0) backend = FATHOM_BACKEND_REF;
    if (strcmp(name, "cuda") == 0) backend = FATHOM_BACKEND_CUDA;
    if (argc > 2) n_request = atoi(argv[2]);
    if (n_request < 1 || n_request > N_REQUEST) {
        print_error("usage: test_engine_pilot [ref|cpu|cuda [REQUESTS]], 1 to %d\n", N_REQUEST);
        return 2;
    }
    if (backend == FATHOM_BACKEND_CUDA && backend_cuda_count() == 0) {
        print_message("skipped: cuda needs a GPU and there is none\n");
        return SKIPPED;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(loading_is_told_layer_by_layer),
        cmocka_unit_test(the_same_bits_whatever_the_step),
        cmocka_unit_test(a_prompt_is_scored_as_it_was_drawn),
        cmocka_unit_test(log_probabilities_are_of_the_whole_head),
        cmocka_unit_test(the_same_bits_after_preemption),
        cmocka_unit_test(the_same_bits_behind_output_drawn_elsewhere),
        cmocka_unit_test(output_that_cannot_be_gone_on_from_says_why),
        cmocka_unit_test(the_same_bits_from_cached_pages),
        cmocka_unit_test(files_come_from_the_checkpoint),
        cmocka_unit_test(what_cannot_be_opened_says_why),
        cmocka_unit_test(a_failing_allocation_while_opening_is_clean),
    };
    return cmocka_run_group_tests(tests, run_each_alone, close_evaluation);
}
