/* test_forms.c - conversations, where prompt rows have other bits than answer rows (two_forms.h)
 *
 * Each turn of a conversation has the turns before in its prompt, answers included. However the
 * turns are run, their answers have the bits of each turn run alone, whole and with nothing cached.
 * With keys of pages that do not know where answers begin they have not: then a turn goes on from
 * rows that were computed as an answer. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/log.h"
#include "base/rng.h"
#include "kv/prefix.h"
#include "kv/tiers.h"
#include "support/answers.h"
#include "support/small_model.h"
#include "support/two_forms.h"

enum {
    N_TALK = 4,
    N_TURN = 3,
    N_USER = 30,    /* tokens of each question, and a few more */
    N_ANSWER = 100, /* and of each answer, which goes over the end of a page or two */
    MAX_LEN = 448,
    N_PAGE_FULL = MAX_LEN / KV_PAGE_TOKENS,
    N_VOCAB_USED = 12, /* so few that drafts are often right */
};

/* ---- keys that do not know where answers begin ---------------------------------------------- */

static bool blind;

static struct prefix_text seen(const struct prefix_text *t)
{
    return (struct prefix_text){
        .salt = t->salt, .ids = t->ids, .n_prompt = blind ? UINT32_MAX : t->n_prompt};
}

uint32_t __real_prefix_find(const struct prefix_cache *c, const struct prefix_text *t,
                            uint32_t n_id, uint32_t *pages);
uint32_t __wrap_prefix_find(const struct prefix_cache *c, const struct prefix_text *t,
                            uint32_t n_id, uint32_t *pages);
uint32_t __wrap_prefix_find(const struct prefix_cache *c, const struct prefix_text *t,
                            uint32_t n_id, uint32_t *pages)
{
    const struct prefix_text as = seen(t);
    return __real_prefix_find(c, &as, n_id, pages);
}

uint32_t __real_prefix_publish(struct prefix_cache *c, const struct prefix_text *t,
                               const uint32_t *pages, uint32_t i);
uint32_t __wrap_prefix_publish(struct prefix_cache *c, const struct prefix_text *t,
                               const uint32_t *pages, uint32_t i);
uint32_t __wrap_prefix_publish(struct prefix_cache *c, const struct prefix_text *t,
                               const uint32_t *pages, uint32_t i)
{
    const struct prefix_text as = seen(t);
    return __real_prefix_publish(c, &as, pages, i);
}

void __real_prefix_check_chain(const struct prefix_cache *c, const struct prefix_text *t,
                               const uint32_t *pages, uint32_t n);
void __wrap_prefix_check_chain(const struct prefix_cache *c, const struct prefix_text *t,
                               const uint32_t *pages, uint32_t n);
void __wrap_prefix_check_chain(const struct prefix_cache *c, const struct prefix_text *t,
                               const uint32_t *pages, uint32_t n)
{
    const struct prefix_text as = seen(t);
    __real_prefix_check_chain(c, &as, pages, n);
}

/* ---- conversations -------------------------------------------------------------------------- */

struct turn {
    int32_t prompt[MAX_LEN];
    uint32_t n_prompt;
    struct answer plain; /* of the turn run alone */
};

static struct small_model model;
static struct turn talks[N_TALK][N_TURN];

/* How turns are run. */
struct way {
    const char *name;
    uint32_t max_num_batched_tokens;
    uint32_t max_num_seqs;
    uint32_t n_draft;
    uint32_t n_page; /* 0: enough */
    bool cached;
    bool with_tiers;
    bool with_dir;
};

static char dir[64];

static fathom_engine *open_engine(const struct way *w)
{
    fathom_engine *e = NULL;
    fathom_diag d = {{0}};
    uint32_t n_page = w->n_page ? w->n_page : N_TALK * N_PAGE_FULL;
    uint64_t page_bytes = small_model_page_bytes(FATHOM_KV_BF16, w->n_draft > 0);
    fathom_options o = {.bundle = &model.bundle,
                        .backend = FATHOM_BACKEND_CPU,
                        .act = FATHOM_ACT_BF16,
                        .kv = FATHOM_KV_BF16,
                        .kv_cache_bytes = n_page * page_bytes,
                        .n_thread = 1,
                        .max_model_len = MAX_LEN,
                        .max_num_batched_tokens = w->max_num_batched_tokens,
                        .max_num_seqs = w->max_num_seqs,
                        .max_queued = N_TALK,
                        .n_vocab_used = N_VOCAB_USED,
                        .n_draft = w->n_draft,
                        .no_prefix_cache = !w->cached,
                        .seed = 1};
    if (w->with_tiers && !w->with_dir) o.offload_ram_bytes = 64 * direct_round(page_bytes);
    if (w->with_dir) {
        o.offload_dir = dir;
        o.offload_dir_bytes = 16 << 20;
    }
    if (fathom_open(&e, &o, &d) != FATHOM_OK) fail_msg("%s", d.text);
    return e;
}

static void ask(fathom_engine *e, struct answer *a, int talk, int turn, bool scored)
{
    const struct turn *t = &talks[talk][turn];
    fathom_request r = {.prompt = t->prompt, .n_prompt = t->n_prompt};
    fathom_sampling_init(&r.sampling);
    r.sampling.temperature = talk % 2 ? 1 : 0;
    r.sampling.has_seed = true;
    r.sampling.seed = (uint64_t)(talk * N_TURN + turn);
    r.sampling.ignore_eos = true;
    r.sampling.logprobs = true;
    r.sampling.max_tokens = N_ANSWER + (uint32_t)talk;
    r.sampling.prompt_logprobs = scored;
    answer_ask(e, a, &r);
}

static const struct way whole = {
    .name = "alone and whole", .max_num_batched_tokens = MAX_LEN, .max_num_seqs = 1};

/* A turn's prompt is what was said before, and a question. */
static int make_talks(void **state)
{
    (void)state;
    uint64_t rng = 5;
    log_set_level(LOG_LEVEL_ERROR);
    (void)snprintf(dir, sizeof dir, "/tmp/fathom-forms-%d", (int)getpid());
    small_model_make(&model, 3);
    fathom_engine *e = open_engine(&whole);
    for (int k = 0; k < N_TALK; k++) {
        int32_t said[MAX_LEN];
        uint32_t n = 0;
        for (int i = 0; i < N_TURN; i++) {
            struct turn *t = &talks[k][i];
            uint32_t n_user = N_USER + (uint32_t)rng_below(&rng, 9);
            for (uint32_t j = 0; j < n_user; j++) {
                said[n++] = 2 + (int32_t)rng_below(&rng, SMALL_MODEL_VOCAB - 2);
            }
            memcpy(t->prompt, said, n * sizeof said[0]);
            t->n_prompt = n;
            ask(e, &t->plain, k, i, false);
            answers_wait(e, 1);
            memcpy(said + n, t->plain.ids, t->plain.n * sizeof said[0]);
            n += t->plain.n;
        }
    }
    fathom_close(e);
    return 0;
}

static int end_talks(void **state)
{
    (void)state;
    static const char *const names[] = {"/kv.index", "/kv.pages", "/kv.weights", ""};
    for (int i = 0; i < 4; i++) {
        char path[80];
        (void)snprintf(path, sizeof path, "%s%s", dir, names[i]);
        (void)remove(path);
    }
    small_model_free(&model);
    return 0;
}

static bool is_plain(const struct answer *a, const struct answer *want)
{
    size_t n = want->n * sizeof a->ids[0];
    return a->n == want->n && memcmp(a->ids, want->ids, n) == 0 &&
           memcmp(a->logprobs, want->logprobs, n) == 0;
}

/* All conversations side by side, turn by turn; how many answers are not the plain ones. */
static uint32_t run_talks(const struct way *w, fathom_stats *s)
{
    static struct answer answers[N_TALK];
    uint32_t n_other = 0;
    fathom_engine *e = open_engine(w);
    for (int i = 0; i < N_TURN; i++) {
        for (int k = 0; k < N_TALK; k++) ask(e, &answers[k], k, i, false);
        answers_wait(e, N_TALK);
        for (int k = 0; k < N_TALK; k++) n_other += !is_plain(&answers[k], &talks[k][i].plain);
    }
    fathom_get_stats(e, s);
    answers_expect_rest(e);
    fathom_close(e);
    return n_other;
}

/* ---- tests ---------------------------------------------------------------------------------- */

static void the_two_kinds_of_rows_have_other_bits(void **state)
{
    (void)state;
    struct answer scored;
    const struct turn *before = &talks[0][0];
    fathom_engine *e = open_engine(&whole);
    ask(e, &scored, 0, 1, true);
    answers_wait(e, 1);
    fathom_close(e);
    uint32_t n_other = 0;
    for (uint32_t i = 0; i + 1 < before->plain.n; i++) {
        /* how likely output i was, as it was drawn, and as a token of the next turn's prompt */
        uint32_t at = before->n_prompt + i - 1;
        assert_int_equal(scored.prompt[at].id, before->plain.ids[i]);
        n_other += scored.prompt[at].logprob != before->plain.logprobs[i];
    }
    assert_true(n_other > before->plain.n / 2);
    assert_true(scored.prompt[before->n_prompt - 1].logprob == before->plain.logprobs[0]);
}

static void every_way_to_run_turns_gives_the_same_bits(void **state)
{
    (void)state;
    enum { FEW = N_PAGE_FULL + 2 };
    const struct way ways[] = {
        {"token by token", 1, 1, 0, 0, false, false, false},
        {"chunks of 7", 7, 1, 0, 0, true, false, false},
        {"chunks of 64", 64, 1, 0, 0, true, false, false},
        {"whole, cached", MAX_LEN, 1, 0, 0, true, false, false},
        {"side by side", MAX_LEN, N_TALK, 0, 0, true, false, false},
        {"side by side in chunks", 23, N_TALK, 0, 0, true, false, false},
        {"drafts", MAX_LEN, N_TALK, 3, 0, true, false, false},
        {"drafts in chunks", 9, N_TALK, 2, 0, true, false, false},
        {"few pages", MAX_LEN, N_TALK, 0, FEW, true, false, false},
        {"few pages, nothing cached", 31, N_TALK, 0, FEW, false, false, false},
        {"few pages, drafts", 40, N_TALK, 2, FEW, true, false, false},
        {"memory", MAX_LEN, N_TALK, 0, FEW, true, true, false},
        {"memory and drafts", 50, N_TALK, 1, FEW, true, true, false},
        {"a directory", MAX_LEN, N_TALK, 0, FEW, true, true, true},
        {"the directory again", 70, N_TALK, 0, FEW, true, true, true},
    };
    uint64_t n_preempted = 0, n_hit = 0, n_restored = 0, n_accepted = 0;
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        fathom_stats s;
        uint32_t n_other = run_talks(&ways[i], &s);
        if (n_other > 0) fail_msg("%s: %u answers have other bits", ways[i].name, n_other);
        n_preempted += s.n_preempted;
        n_hit += s.n_prefix_hit_token;
        n_restored += s.tiers.n_ram_hit + s.tiers.n_disk_hit;
        n_accepted += s.n_accepted_token[0];
    }
    print_message("preempted=%llu hits=%llu restored=%llu accepted=%llu\n",
                  (unsigned long long)n_preempted, (unsigned long long)n_hit,
                  (unsigned long long)n_restored, (unsigned long long)n_accepted);
    assert_true(n_preempted > 0 && n_hit > 0 && n_restored > 0 && n_accepted > 0);
    assert_true(two_forms_n_prompt_row() > 0 && two_forms_n_answer_row() > 0);
}

/* What a turn finds are the whole pages of the prompt before it. */
static void a_turn_finds_the_prompt_of_the_turn_before(void **state)
{
    (void)state;
    struct way w = whole;
    fathom_stats s;
    uint64_t n_found = 0;
    w.cached = true;
    for (int k = 0; k < N_TALK; k++) {
        for (int i = 1; i < N_TURN; i++) {
            n_found += talks[k][i - 1].n_prompt / KV_PAGE_TOKENS * KV_PAGE_TOKENS;
        }
    }
    assert_int_equal(run_talks(&w, &s), 0);
    assert_int_equal(s.n_prefix_hit_token, n_found);
}

static void keys_that_do_not_know_where_answers_begin_change_bits(void **state)
{
    (void)state;
    struct way w = whole;
    fathom_stats s;
    w.cached = true;
    blind = true;
    uint32_t n_other = run_talks(&w, &s);
    blind = false;
    assert_true(n_other >= N_TALK * (N_TURN - 1) / 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_two_kinds_of_rows_have_other_bits),
        cmocka_unit_test(every_way_to_run_turns_gives_the_same_bits),
        cmocka_unit_test(a_turn_finds_the_prompt_of_the_turn_before),
        cmocka_unit_test(keys_that_do_not_know_where_answers_begin_change_bits),
    };
    return cmocka_run_group_tests(tests, make_talks, end_talks);
}
