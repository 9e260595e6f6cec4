/* test_evaluation [every=N] BACKEND KV [DRAFTS [RANKS, dpNxRANKS, or ppNxRANKS [MODEL LEAST]]]
 *
 * The pilot's 384 prompts, or every Nth of them, greedy, through the engine's public functions with
 * 16 in flight: every answer must spell what an independent float32 implementation spells. On a GPU
 * products are FP8, with a float32 cache float32. Where they are FP8, one that does not has to be a
 * tie: it leaves the float32 answer at a token that is the second in float32, within TIE_NATS of
 * the first. With two drafts or more a request must get 2.5 tokens a step. With MODEL the prompts
 * go to a checkpoint that was made from the pilot, which has to get LEAST of them right. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "backend/backend.h"
#include "base/clock.h"
#include "golden/evaluation.h"

enum { N_PROMPT = 384, N_IN_FLIGHT = 16, MAX_TOKENS = 256, SKIPPED = 77, WRONG_MAX = 4 };

static struct {
    enum fathom_backend backend;
    enum fathom_kv kv;
    uint32_t n_draft;
    uint32_t n_rank;
    uint32_t n_lane;  /* with requests of their own, of n_rank each */
    uint32_t n_stage; /* of n_rank each */
    const char *model_dir;
    size_t every; /* of the prompts one in so many is asked */
    size_t least; /* answers that must be right; 0: all, but for ties */
    struct evaluation ev;
    struct answer answers[N_IN_FLIGHT];
    size_t cases[N_IN_FLIGHT]; /* case that each answer is for */
    struct answer wrong[WRONG_MAX];
    size_t wrong_cases[WRONG_MAX];
    size_t n_wrong;
} test;

#define TIE_NATS 0.1f

static fathom_engine *open_pilot(enum fathom_backend backend, fathom_act act, enum fathom_kv kv)
{
    fathom_engine *e = NULL;
    fathom_diag d = {{0}};
    fathom_options o = {.model_dir = test.model_dir,
                        .backend = backend,
                        .act = act,
                        .kv = kv,
                        .max_num_seqs = N_IN_FLIGHT,
                        .n_draft = test.n_draft,
                        .world = test.n_rank,
                        .pipeline = test.n_stage,
                        .data_parallel = test.n_lane,
                        .expert_parallel = test.n_lane > 1,
                        .kv_cache_bytes = (uint64_t)300 << 20};
    if (fathom_open(&e, &o, &d) != FATHOM_OK) fail_msg("%s", d.text);
    return e;
}

static void submit_case(fathom_engine *e, size_t i_answer, size_t i_case)
{
    const struct evaluation_case *c = &test.ev.cases[i_case];
    fathom_request r = {.prompt = c->prompt.ids, .n_prompt = (uint32_t)c->prompt.n};
    fathom_sampling_init(&r.sampling);
    r.sampling.temperature = 0;
    r.sampling.max_tokens = MAX_TOKENS;
    test.cases[i_answer] = i_case;
    answer_ask(e, &test.answers[i_answer], &r);
}

/* Of the steps after a request's first token: an answer of n tokens without drafts takes n - 1. */
static void check_drafts(const fathom_stats *s)
{
    uint64_t n_step = s->n_output_token - s->n_finished;
    uint64_t n_token = n_step;
    for (uint32_t i = 0; i < test.n_draft; i++) {
        n_step -= s->n_accepted_token[i];
        print_message("draft %u: %llu made, %llu kept\n", i + 1,
                      (unsigned long long)s->n_draft_token[i],
                      (unsigned long long)s->n_accepted_token[i]);
    }
    double rate = (double)n_token / (double)n_step;
    print_message("%.3f tokens a step of a request\n", rate);
    if (test.n_draft >= 2) assert_true(rate >= 2.5);
}

static void take_answer(const struct answer *a, size_t i_case, size_t *n_right)
{
    if (a->finish.finish == FATHOM_FINISH_STOP && evaluation_matches(&test.ev, i_case, a)) {
        ++*n_right;
        return;
    }
    if (test.least) return;
    if (test.n_wrong == WRONG_MAX) fail_msg("%d answers and more are wrong", WRONG_MAX + 1);
    test.wrong[test.n_wrong] = *a;
    test.wrong_cases[test.n_wrong++] = i_case;
}

/* Whether the first token of an answer that is not the float32 model's is nearly as good. */
static bool is_tie(fathom_engine *e, const struct answer *wrong, const struct token_list *prompt)
{
    fathom_diag d = {{0}};
    fathom_event ev = {0};
    fathom_request r = {.prompt = prompt->ids, .n_prompt = prompt->n};
    uint64_t id;
    bool is_over = false, ties = false;
    fathom_sampling_init(&r.sampling);
    r.sampling.temperature = 0;
    r.sampling.max_tokens = MAX_TOKENS;
    r.sampling.n_top_logprobs = 2;
    if (fathom_submit(e, &r, &id, &d) != FATHOM_OK) fail_msg("%s", d.text);
    for (uint32_t i = 0; ev.kind != FATHOM_EVENT_FINISH; i++) {
        if (fathom_poll(e, &ev, 1, -1) != 1 || ev.kind != FATHOM_EVENT_TOKEN || is_over) continue;
        if (i < wrong->n && ev.token == wrong->ids[i]) continue;
        is_over = true;
        float behind = ev.top[0].logprob - ev.top[1].logprob;
        ties = i < wrong->n && ev.top[1].id == wrong->ids[i] && behind < TIE_NATS;
        print_message("  token %u: the second in float32 is %.3f nats behind\n", i, (double)behind);
    }
    return ties;
}

static void every_wrong_answer_is_a_tie(void)
{
    fathom_engine *e = open_pilot(FATHOM_BACKEND_CPU, FATHOM_ACT_F32, FATHOM_KV_F32);
    for (size_t i = 0; i < test.n_wrong; i++) {
        size_t k = test.wrong_cases[i];
        if (!is_tie(e, &test.wrong[i], &test.ev.cases[k].prompt)) fail_msg("case %zu is wrong", k);
    }
    fathom_close(e);
}

static void every_answer_is_the_references(void **state)
{
    (void)state;
    evaluation_open(&test.ev);
    bool is_gpu = test.backend == FATHOM_BACKEND_CUDA;
    bool is_fp8 = is_gpu && test.kv != FATHOM_KV_F32;
    fathom_act act = is_fp8 ? FATHOM_ACT_FP8 : is_gpu ? FATHOM_ACT_F32 : FATHOM_ACT_AUTO;
    fathom_engine *e = open_pilot(test.backend, act, test.kv);
    uint64_t start_us = clock_now_us();
    const size_t n_case = (test.ev.n + test.every - 1) / test.every;
    size_t n_sent = 0, n_done = 0, n_right = 0;
    while (n_sent < N_IN_FLIGHT && n_sent < n_case) {
        submit_case(e, n_sent, n_sent * test.every);
        n_sent++;
    }
    while (n_done < n_case) {
        answers_take(e, -1);
        for (size_t i = 0; i < N_IN_FLIGHT; i++) {
            struct answer *a = &test.answers[i];
            if (!a->done) continue;
            a->done = false;
            n_done++;
            take_answer(a, test.cases[i], &n_right);
            if (n_sent < n_case) submit_case(e, i, n_sent++ * test.every);
        }
    }
    fathom_stats s;
    fathom_get_stats(e, &s);
    print_message("%zu of %zu right, %llu prompt and %llu output tokens in %.1f s\n", n_right,
                  n_case, (unsigned long long)s.n_prompt_token,
                  (unsigned long long)s.n_output_token, (double)(clock_now_us() - start_us) * 1e-6);
    if (test.n_draft) check_drafts(&s);
    assert_int_equal(s.n_page_free, s.n_page);
    fathom_close(e);
    assert_int_equal(test.ev.n, N_PROMPT);
    if (test.least) {
        assert_true(n_right >= test.least);
        evaluation_close(&test.ev);
        return;
    }
    assert_int_equal(n_right + test.n_wrong, n_case);
    if (is_fp8) {
        every_wrong_answer_is_a_tie();
    } else {
        assert_int_equal(test.n_wrong, 0);
    }
    evaluation_close(&test.ev);
}

int main(int argc, char **argv)
{
    test.every = 1;
    if (argc >= 2 && strncmp(argv[1], "every=", 6) == 0) {
        test.every = strtoul(argv[1] + 6, NULL, 10);
        argc--;
        argv++;
    }
    if (test.every == 0 || argc < 3 || argc > 7 || argc == 6) {
        print_error("usage: test_evaluation [every=N] ref|cpu|cuda bf16|fp8|f32 [drafts [ranks, "
                    "dpN or ppNxRANKS [model least]]]\n");
        return 2;
    }
    if (strcmp(argv[1], "cuda") == 0 && backend_cuda_count() == 0) {
        print_message("skipped: cuda needs a GPU and there is none\n");
        return SKIPPED;
    }
    test.backend = strcmp(argv[1], "ref") == 0    ? FATHOM_BACKEND_REF
                   : strcmp(argv[1], "cuda") == 0 ? FATHOM_BACKEND_CUDA
                                                  : FATHOM_BACKEND_CPU;
    test.kv = strcmp(argv[2], "fp8") == 0   ? FATHOM_KV_FP8
              : strcmp(argv[2], "f32") == 0 ? FATHOM_KV_F32
                                            : FATHOM_KV_BF16;
    test.n_draft = argc >= 4 ? (uint32_t)strtoul(argv[3], NULL, 10) : 0;
    const bool has_lanes = argc >= 5 && strncmp(argv[4], "dp", 2) == 0;
    const bool has_stages = argc >= 5 && strncmp(argv[4], "pp", 2) == 0;
    test.n_rank = test.n_lane = test.n_stage = 1;
    if (has_lanes || has_stages) {
        char *ranks;
        *(has_lanes ? &test.n_lane : &test.n_stage) = (uint32_t)strtoul(argv[4] + 2, &ranks, 10);
        if (*ranks == 'x') test.n_rank = (uint32_t)strtoul(ranks + 1, NULL, 10);
    } else if (argc >= 5) {
        test.n_rank = (uint32_t)strtoul(argv[4], NULL, 10);
    }
    test.model_dir = argc == 7 ? argv[5] : FATHOM_SOURCE_DIR "/models/pilot";
    test.least = argc == 7 ? strtoul(argv[6], NULL, 10) : 0;
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_answer_is_the_references)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
