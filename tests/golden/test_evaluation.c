/* test_evaluation BACKEND KV [DRAFTS] - the pilot's 384 prompts, greedy, through the engine's
 * public functions with 16 in flight: every answer must spell what an independent float32
 * implementation spells. With two drafts or more a request must get 2.5 tokens a step. */
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

enum { N_IN_FLIGHT = 16, MAX_TOKENS = 256, SKIPPED = 77 };

static struct {
    enum fathom_backend backend;
    enum fathom_kv kv;
    uint32_t n_draft;
    struct evaluation ev;
    struct answer answers[N_IN_FLIGHT];
    size_t cases[N_IN_FLIGHT]; /* case that each answer is for */
} test;

static fathom_engine *open_pilot(void)
{
    fathom_engine *e = NULL;
    fathom_diag d = {{0}};
    fathom_options o = {.model_dir = FATHOM_SOURCE_DIR "/models/pilot",
                        .backend = test.backend,
                        .kv = test.kv,
                        .max_num_seqs = N_IN_FLIGHT,
                        .n_draft = test.n_draft,
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
    fathom_diag d = {{0}};
    if (answer_submit(e, &test.answers[i_answer], &r, &d) != FATHOM_OK) fail_msg("%s", d.text);
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

static void every_answer_is_the_references(void **state)
{
    (void)state;
    evaluation_open(&test.ev);
    fathom_engine *e = open_pilot();
    uint64_t start_us = clock_now_us();
    size_t n_sent = 0, n_done = 0, n_right = 0;
    while (n_sent < N_IN_FLIGHT && n_sent < test.ev.n) {
        submit_case(e, n_sent, n_sent);
        n_sent++;
    }
    while (n_done < test.ev.n) {
        answers_take(e, -1);
        for (size_t i = 0; i < N_IN_FLIGHT; i++) {
            struct answer *a = &test.answers[i];
            if (!a->done) continue;
            a->done = false;
            n_done++;
            n_right += a->finish.finish == FATHOM_FINISH_STOP &&
                       evaluation_matches(&test.ev, test.cases[i], a);
            if (n_sent < test.ev.n) submit_case(e, i, n_sent++);
        }
    }
    fathom_stats s;
    fathom_get_stats(e, &s);
    print_message("%zu of %zu right, %llu prompt and %llu output tokens in %.1f s\n", n_right,
                  test.ev.n, (unsigned long long)s.n_prompt_token,
                  (unsigned long long)s.n_output_token, (double)(clock_now_us() - start_us) * 1e-6);
    if (test.n_draft) check_drafts(&s);
    assert_int_equal(s.n_page_free, s.n_page);
    fathom_close(e);
    assert_int_equal(test.ev.n, 384);
    assert_int_equal(n_right, test.ev.n);
    evaluation_close(&test.ev);
}

int main(int argc, char **argv)
{
    if (argc != 3 && argc != 4) {
        print_error("usage: test_evaluation ref|cpu|cuda bf16|fp8|f32 [drafts]\n");
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
    test.n_draft = argc == 4 ? (uint32_t)strtoul(argv[3], NULL, 10) : 0;
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_answer_is_the_references)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
