/* test_engine_share [cpu|cuda [LANES [RANKS]]] - the pilot's long prompts, computed by all lanes
 *
 * An answer has the bits, tokens and log-probabilities, that it has where prompts stay on their
 * lanes: in one step or in chunks, behind a beginning that is in the cache, one after the other,
 * beside answers on the other lanes, with drafts, and when one leaves in the middle. Lanes may be
 * of several ranks. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "backend/backend.h"
#include "golden/evaluation.h"

enum { MODEL_LEN = 1536, N_LONG = 900, N_SAME = 700, N_SHORT = 40, N_LANE_MAX = 8, SKIPPED = 77 };
enum { LONG, SAME, SHORT, N_QUESTION };

static enum fathom_backend backend = FATHOM_BACKEND_CPU;
static uint32_t n_lane = 2, n_share = 1;
static struct evaluation ev;
static int32_t prompts[N_QUESTION][N_LONG];
static fathom_request requests[N_QUESTION];
static struct answer alone[N_QUESTION], answers[N_QUESTION + N_LANE_MAX];

static fathom_engine *open_engine(uint32_t budget, uint32_t n_draft, int32_t share_prompts)
{
    fathom_engine *e = NULL;
    fathom_diag d = {{0}};
    const fathom_options o = {.model_dir = FATHOM_SOURCE_DIR "/models/pilot",
                              .backend = backend,
                              .max_model_len = MODEL_LEN,
                              .max_num_seqs = 4,
                              .max_num_batched_tokens = budget,
                              .n_draft = n_draft,
                              .kv_cache_bytes = (uint64_t)64 << 20,
                              .world = n_share,
                              .data_parallel = n_lane,
                              .expert_parallel = true,
                              .share_prompts = share_prompts,
                              .seed = 1};
    if (fathom_open(&e, &o, &d) != FATHOM_OK) fail_msg("%s", d.text);
    return e;
}

static void make_request(int i, uint32_t n_prompt, uint32_t max_tokens)
{
    fathom_request *r = &requests[i];
    *r = (fathom_request){.prompt = prompts[i], .n_prompt = n_prompt};
    fathom_sampling_init(&r->sampling);
    r->sampling.temperature = i == SAME ? 1 : 0;
    r->sampling.has_seed = true;
    r->sampling.seed = 7;
    r->sampling.max_tokens = max_tokens;
    r->sampling.ignore_eos = true;
    r->sampling.logprobs = true;
}

/* Texts of the evaluation one behind the other, and what they are answered on their lanes. */
static int answer_apart(void **state)
{
    (void)state;
    size_t n = 0;
    evaluation_open(&ev);
    for (size_t i = 0; n < N_LONG; i++) {
        const struct token_list *p = &ev.cases[i % ev.n].prompt;
        for (size_t k = 0; k < p->n && n < N_LONG; k++, n++) {
            prompts[LONG][n] = p->ids[k];
            prompts[SAME][n < N_SAME ? n : N_SAME + N_LONG - 1 - n] = p->ids[k];
            if (n < N_SHORT) prompts[SHORT][n] = p->ids[k];
        }
    }
    make_request(LONG, N_LONG, 8);
    make_request(SAME, N_LONG, 8);
    make_request(SHORT, N_SHORT, 60);
    fathom_engine *e = open_engine(2048, 0, -1);
    fathom_stats s;
    for (int i = 0; i < N_QUESTION; i++) {
        answer_ask(e, &alone[i], &requests[i]);
        answers_wait(e, 1);
    }
    fathom_get_stats(e, &s);
    assert_int_equal(s.n_shared_token, 0);
    fathom_close(e);
    return 0;
}

static int close_evaluation(void **state)
{
    (void)state;
    evaluation_close(&ev);
    return 0;
}

static void expect_alone(const struct answer *a, int i)
{
    assert_int_equal(a->n, alone[i].n);
    assert_memory_equal(a->ids, alone[i].ids, a->n * sizeof a->ids[0]);
    assert_memory_equal(a->logprobs, alone[i].logprobs, a->n * sizeof a->logprobs[0]);
}

/* The second one's beginning is found on one lane, whose rows the others get. */
static void prompts_that_come_alone(void **state)
{
    static const struct {
        uint32_t budget, n_draft;
    } cases[] = {{2048, 0}, {2048, 2}, {70, 0}, {70, 2}};
    (void)state;
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        fathom_engine *e = open_engine(cases[k].budget, cases[k].n_draft, 16);
        fathom_stats s;
        for (int i = LONG; i <= SAME; i++) {
            answer_ask(e, &answers[i], &requests[i]);
            answers_wait(e, 1);
            expect_alone(&answers[i], i);
        }
        assert_int_equal(answers[SAME].finish.n_cached, N_SAME / 64 * 64);
        fathom_get_stats(e, &s);
        assert_true(s.n_shared_token >= N_LONG + 260 - 2 * 16 * n_lane);
        answers_expect_rest(e);
        fathom_close(e);
    }
}

/* On two lanes: of four the second one's waits for the first one's. */
static void prompts_at_once(void **state)
{
    (void)state;
    for (uint32_t n_draft = 0; n_draft <= 2; n_draft += 2) {
        fathom_engine *e = open_engine(48, n_draft, 16);
        fathom_stats s;
        for (int i = LONG; i <= SAME; i++) {
            fathom_request r = requests[i];
            r.has_lane = true;
            r.lane = SAME - (uint32_t)i;
            answer_ask(e, &answers[i], &r);
        }
        answers_wait(e, 2);
        for (int i = LONG; i <= SAME; i++) expect_alone(&answers[i], i);
        fathom_get_stats(e, &s);
        if (n_lane >= 4) assert_true(s.n_shared_token > 2 * N_LONG - 400);
        answers_expect_rest(e);
        fathom_close(e);
    }
}

/* Answers on all lanes but the prompt's; one asks for the same prompt and leaves when some of it is
 * computed. */
static void prompts_beside_answers(void **state)
{
    (void)state;
    for (uint32_t n_draft = 0; n_draft <= 2; n_draft += 2) {
        fathom_engine *e = open_engine(48, n_draft, 8);
        fathom_request shorts = requests[SHORT], leaver = requests[SAME];
        struct answer *const a = answers + N_QUESTION;
        fathom_stats s;
        size_t n_over = 0;
        shorts.has_lane = leaver.has_lane = true;
        for (uint32_t i = 1; i < n_lane; i++) {
            shorts.lane = i;
            answer_ask(e, &a[i], &shorts);
        }
        leaver.lane = 0;
        answer_ask(e, &answers[SAME], &leaver);
        do {
            n_over += answers_take(e, 10);
            fathom_get_stats(e, &s);
        } while (s.n_shared_token == 0);
        fathom_cancel(e, answers[SAME].id);
        answer_ask(e, &answers[LONG], &requests[LONG]);
        answers_wait(e, n_lane + 1 - n_over);
        expect_alone(&answers[LONG], LONG);
        for (uint32_t i = 1; i < n_lane; i++) expect_alone(&a[i], SHORT);
        answers_expect_rest(e);
        fathom_close(e);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(prompts_that_come_alone),
        cmocka_unit_test(prompts_at_once),
        cmocka_unit_test(prompts_beside_answers),
    };
    if (argc > 1 && strcmp(argv[1], "cuda") == 0) backend = FATHOM_BACKEND_CUDA;
    if (argc > 2) n_lane = (uint32_t)strtoul(argv[2], NULL, 10);
    if (argc > 3) n_share = (uint32_t)strtoul(argv[3], NULL, 10);
    if (n_lane < 2 || n_lane > N_LANE_MAX || n_share < 1 || n_share > N_LANE_MAX) return 1;
    const uint32_t n_rank = n_lane * n_share;
    if (backend == FATHOM_BACKEND_CUDA && (uint32_t)backend_cuda_count() < n_rank) {
        print_message("skipped: %u GPUs are needed, there are %d\n", n_rank, backend_cuda_count());
        return SKIPPED;
    }
    return cmocka_run_group_tests(tests, answer_apart, close_evaluation);
}
