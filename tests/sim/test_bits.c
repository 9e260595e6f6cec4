/* test_bits [cases] [seed] [ranks, dpN, or ppNxRANKS] [cpu|cuda] - how a request is run does not
 * show in what it is answered
 *
 * Tokens and log-probabilities are the same bits as of the request run alone: by one thread, in one
 * chunk, with nothing cached and no drafts.
 *
 * What may be done to a run is a table of features. Every pair of them gets a run (where cases are
 * fewer than 660, one pair in so many, of each feature with some others), and so do random sets of
 * them until there have been enough cases; a case is one request of a run. The requests
 * are random: prompts that begin alike, greedy and sampled, penalties, bias, stops, constraints,
 * alternatives, log-probabilities of the prompt. A feature tells from the engine's counts that it
 * took place, so that no run is vain. The model is small_model.h's. */
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/rng.h"
#include "kv/tiers.h"
#include "support/answers.h"
#include "support/small_model.h"

enum {
    N_REQUEST = 96,
    N_LONG = 24,
    N_DEEP = 12,
    N_TEXT = 3,
    MAX_LEN = 256,
    MAX_PROMPT = 200,
    N_PAGE_FULL = MAX_LEN / 64, /* of one request */
    N_VOCAB_USED = 12,          /* so few that drafts are often right */
    MAX_CASE_RUN = 64,
    N_VARIANT = 4,
};

static uint64_t n_case_wanted = 2000;
static uint64_t seed = 1;
static uint32_t n_rank = 1;
static uint32_t n_lane = 1;  /* with requests of their own, of n_rank each */
static uint32_t n_stage = 1; /* of n_rank each */
static enum fathom_backend backend = FATHOM_BACKEND_CPU;
static uint64_t rng;
static struct small_model model;

static uint32_t between(uint32_t lo, uint32_t hi)
{
    return lo + (uint32_t)rng_below(&rng, (uint64_t)hi - lo + 1);
}

static bool one_in(uint32_t n)
{
    return between(1, n) == 1;
}

/* ---- requests ------------------------------------------------------------------------------- */

struct question {
    fathom_request request;
    int32_t prompt[MAX_PROMPT];
    fathom_bias bias[2];
    int32_t stop_ids[2];
    bool constrained;
    uint32_t n_free; /* tokens before its constraint begins */
};

static struct question questions[N_REQUEST];

static int32_t any_id(void)
{
    return (int32_t)between(2, SMALL_MODEL_VOCAB - 1);
}

static void choose_sampling(struct question *q)
{
    fathom_sampling *s = &q->request.sampling;
    fathom_sampling_init(s);
    s->temperature = one_in(3) ? 0 : one_in(2) ? 1 : 0.6f;
    if (one_in(4)) s->top_p = 0.9f;
    if (one_in(4)) s->top_k = 5;
    if (one_in(6)) s->min_p = 0.05f;
    if (one_in(5)) s->repetition_penalty = 1.2f;
    if (one_in(5)) s->presence_penalty = 0.5f;
    if (one_in(5)) s->frequency_penalty = -0.25f;
    s->has_seed = true;
    s->seed = rng_next(&rng);
    s->max_tokens = between(1, 40);
    s->min_tokens = one_in(4) ? between(0, s->max_tokens) : 0;
    s->ignore_eos = !one_in(3);
    s->logprobs = true;
    s->n_top_logprobs = one_in(3) ? between(1, 8) : 0;
    s->prompt_logprobs = one_in(6);
    s->n_prompt_top_logprobs = s->prompt_logprobs ? between(0, 3) : 0;
    if (one_in(5)) {
        for (int i = 0; i < 2; i++) q->bias[i] = (fathom_bias){2 * i + 3, one_in(2) ? 2.0f : -2.0f};
        s->bias = q->bias;
        s->n_bias = 2;
    }
    if (one_in(5)) {
        for (int i = 0; i < 2; i++) q->stop_ids[i] = (int32_t)between(2, N_VOCAB_USED - 1);
        s->stop_ids = q->stop_ids;
        s->n_stop_id = 2;
    }
}

/* A constraint that allows about half of the ids, another half after each token; the first ones are
 * free. */
struct place {
    uint64_t hash;
    uint32_t n;
};

struct walk {
    struct place now, marked;
    uint32_t n_free;
};

static bool may_come(const struct walk *w, int32_t id)
{
    int32_t always = 2 + (int32_t)(w->now.hash % (N_VOCAB_USED - 2));
    return w->now.n < w->n_free || id == always || rng_mix(w->now.hash, (uint64_t)id, 0) % 2;
}

static void fill_mask(const void *state, uint32_t *words, size_t n_word)
{
    memset(words, 0, n_word * sizeof *words);
    for (int32_t id = 0; id < SMALL_MODEL_VOCAB; id++) {
        if (may_come(state, id)) words[id / 32] |= 1u << (id % 32);
    }
}

static bool accept(void *state, int32_t id)
{
    struct walk *w = state;
    if (!may_come(w, id)) return false;
    w->now = (struct place){rng_mix(w->now.hash, (uint64_t)id, 1), w->now.n + 1};
    return true;
}

static void mark(void *state)
{
    struct walk *w = state;
    w->marked = w->now;
}

static void go_back(void *state)
{
    struct walk *w = state;
    w->now = w->marked;
}

static uint32_t count_free(const void *state)
{
    const struct walk *w = state;
    return w->now.n < w->n_free ? w->n_free - w->now.n : 0;
}

static const fathom_constraint_ops walk_ops = {.fill_mask = fill_mask,
                                               .accept = accept,
                                               .mark = mark,
                                               .go_back = go_back,
                                               .destroy = mem_free,
                                               .n_free = count_free};

/* An answer of more than a page, whatever is drawn. */
static void make_long(struct question *q)
{
    fathom_sampling *s = &q->request.sampling;
    s->max_tokens = between(66, 130);
    s->ignore_eos = true;
    s->n_stop_id = 0;
}

/* Most prompts begin as one of a few texts does; some are one and the same. The first N_LONG have
 * long answers, N_DEEP after them prompts of three pages and more. */
static void make_questions(void)
{
    int32_t texts[N_TEXT][MAX_PROMPT];
    for (int t = 0; t < N_TEXT; t++) {
        for (int i = 0; i < MAX_PROMPT; i++) texts[t][i] = any_id();
    }
    for (int k = 0; k < N_REQUEST; k++) {
        struct question *q = &questions[k];
        const int32_t *text = texts[between(0, N_TEXT - 1)];
        uint32_t n = k < N_LONG ? between(66, 96) : between(1, one_in(3) ? MAX_PROMPT : 90);
        if (k >= N_LONG && k < N_LONG + N_DEEP) n = between(130, MAX_PROMPT);
        uint32_t n_same = one_in(4) ? 0 : between(0, n);
        if (one_in(3)) n_same = n;
        for (uint32_t i = 0; i < n; i++) q->prompt[i] = i < n_same ? text[i] : any_id();
        q->request = (fathom_request){.prompt = q->prompt, .n_prompt = n};
        choose_sampling(q);
        if (k < N_LONG) make_long(q);
        q->constrained = one_in(3);
        q->n_free = one_in(2) ? 0 : between(1, q->request.sampling.max_tokens);
    }
}

/* ---- runs ----------------------------------------------------------------------------------- */

struct run {
    fathom_options o;
    uint32_t n_page;     /* 0: as many as all requests at once want */
    uint32_t n_wave;     /* the later ones find what the earlier have left in the cache */
    bool long_only;      /* only questions with long answers are asked */
    bool deep_only;      /* else only those with long prompts */
    bool one_before;     /* one with a long prompt comes and goes before all others */
    uint32_t cancel_one; /* of so many polls of the events; 0: nobody leaves */
};

/* The run that all others are compared with; only what changes the numbers themselves is kept. */
static struct run plain_run(fathom_kv kv, fathom_act act)
{
    return (struct run){.o = {.bundle = &model.bundle,
                              .backend = backend,
                              .act = act,
                              .kv = kv,
                              .n_thread = 1,
                              .max_model_len = MAX_LEN,
                              .max_num_batched_tokens = MAX_LEN,
                              .max_num_seqs = 1,
                              .max_queued = MAX_CASE_RUN,
                              .n_vocab_used = N_VOCAB_USED,
                              .seed = 1,
                              .no_prefix_cache = true},
                        .n_wave = 1};
}

/* Of a page, on the rank that holds most of it: each of several stages has a layer, the last one
 * the draft layer too. */
static uint64_t rank_page_bytes(fathom_kv kv, bool with_mtp)
{
    const uint64_t whole = small_model_page_bytes(kv, false);
    if (n_stage == 1) return small_model_page_bytes(kv, with_mtp);
    assert_int_equal(n_stage, SMALL_MODEL_LAYERS);
    return whole / n_stage * (with_mtp ? 2 : 1);
}

static fathom_engine *open_run(const struct run *r)
{
    fathom_engine *e = NULL;
    fathom_diag d = {{0}};
    fathom_options o = r->o;
    o.world = n_rank;
    o.data_parallel = n_lane;
    o.expert_parallel = n_lane > 1;
    o.pipeline = n_stage;
    uint32_t n_page = r->n_page ? r->n_page : o.max_num_seqs * N_PAGE_FULL;
    o.kv_cache_bytes = n_page * rank_page_bytes(o.kv, o.n_draft > 0);
    if (fathom_open(&e, &o, &d) != FATHOM_OK) fail_msg("%s", d.text);
    return e;
}

static void submit(fathom_engine *e, struct answer *a, uint32_t k)
{
    fathom_request r = questions[k].request;
    if (questions[k].constrained) {
        struct walk *w = mem_calloc(1, sizeof *w);
        assert_non_null(w);
        w->n_free = questions[k].n_free;
        r.constraint = (fathom_constraint){&walk_ops, w};
    }
    answer_ask(e, a, &r);
}

static struct answer plain[N_VARIANT][N_REQUEST];
static bool has_plain[N_VARIANT];

/* The plain answers of a kind of cache and of activations, made when they are first asked for. */
static const struct answer *plain_answers(fathom_kv kv, fathom_act act)
{
    int v = 2 * (kv == FATHOM_KV_FP8) + (act == FATHOM_ACT_F32);
    if (has_plain[v]) return plain[v];
    struct run r = plain_run(kv, act);
    fathom_engine *e = open_run(&r);
    for (uint32_t k = 0; k < N_REQUEST; k++) {
        submit(e, &plain[v][k], k);
        answers_wait(e, 1);
    }
    fathom_close(e);
    has_plain[v] = true;
    return plain[v];
}

/* ---- features ------------------------------------------------------------------------------- */

static void turn_on_drafts(struct run *r)
{
    r->o.n_draft = between(1, FATHOM_DRAFT_MAX);
}

static void turn_on_prefix(struct run *r)
{
    r->o.no_prefix_cache = false;
    r->n_wave = between(2, 3);
}

/* Fewer pages than requests that run leave behind; what is evicted comes back from memory, or from
 * a directory which the next run finds as this one leaves it. */
static void turn_on_tiers(struct run *r)
{
    static char dir[64];
    turn_on_prefix(r);
    r->n_wave = 3;
    r->deep_only = true;
    r->n_page = between(N_PAGE_FULL, N_PAGE_FULL + 2);
    r->o.offload_ram_bytes = TIERS_MIN_RAM * direct_round(small_model_page_bytes(r->o.kv, true));
    if (one_in(2)) return;
    (void)snprintf(dir, sizeof dir, "/tmp/fathom-bits-%d", (int)getpid());
    r->o.offload_ram_bytes = 0;
    r->o.offload_dir = dir;
    r->o.offload_dir_bytes = 8 << 20;
}

static void turn_on_chunks(struct run *r)
{
    r->o.max_num_batched_tokens = one_in(4) ? between(1, 4) : between(5, 70);
}

static void turn_on_neighbours(struct run *r)
{
    r->o.max_num_seqs = between(2, 24);
}

/* More requests run than there are pages for: each is let in with what its prompt takes. */
static void turn_on_preemption(struct run *r)
{
    r->long_only = true;
    r->o.max_num_seqs = between(8, 24);
    r->n_page = between(N_PAGE_FULL, N_PAGE_FULL + 2);
}

static void turn_on_threads(struct run *r)
{
    r->o.n_thread = between(2, 8);
}

static void turn_on_leavers(struct run *r)
{
    r->cancel_one = between(10, 60);
}

static void turn_on_fp8(struct run *r)
{
    r->o.kv = FATHOM_KV_FP8;
}

static void turn_on_f32(struct run *r)
{
    r->o.act = FATHOM_ACT_F32;
}

/* Of lanes: a long prompt is computed by all of them, also while others are answered. */
static void turn_on_sharing(struct run *r)
{
    r->o.share_prompts = (int32_t)between(1, 16);
    r->one_before = true;
}

static uint64_t count_accepted(const fathom_stats *s)
{
    uint64_t n = 0;
    for (int i = 0; i < FATHOM_DRAFT_MAX; i++) n += s->n_accepted_token[i];
    return n;
}

static uint64_t count_hits(const fathom_stats *s)
{
    return s->n_prefix_hit_token;
}

static uint64_t count_tier_hits(const fathom_stats *s)
{
    return s->tiers.n_ram_hit + s->tiers.n_disk_hit;
}

static uint64_t count_preempted(const fathom_stats *s)
{
    return s->n_preempted;
}

static uint64_t count_cancelled(const fathom_stats *s)
{
    return s->n_cancelled;
}

static uint64_t count_shared(const fathom_stats *s)
{
    return s->n_shared_token;
}

/* A way to run requests. Those that set the same member come in an order in which the later one
 * asks for more. */
static const struct feature {
    const char *name;
    void (*turn_on)(struct run *r);
    uint64_t (*count)(const fathom_stats *s); /* how often it took place; NULL: always */
} features[] = {
    {"drafts", turn_on_drafts, count_accepted},
    {"prefix cache", turn_on_prefix, count_hits},
    {"tiers", turn_on_tiers, count_tier_hits},
    {"chunks", turn_on_chunks, NULL},
    {"neighbours", turn_on_neighbours, NULL},
    {"preemption", turn_on_preemption, count_preempted},
    {"threads", turn_on_threads, NULL},
    {"leavers", turn_on_leavers, count_cancelled},
    {"fp8 cache", turn_on_fp8, NULL},
    {"f32 activations", turn_on_f32, NULL},
    {"shared prompts", turn_on_sharing, count_shared}, /* the last: of lanes alone */
};

enum { N_FEATURE = sizeof features / sizeof features[0] };

static uint32_t n_feature = N_FEATURE - 1;
static uint64_t n_seen[N_FEATURE];
static uint64_t n_case, n_run;

static const char *name_set(uint32_t set)
{
    static char text[256];
    size_t n = 0;
    text[0] = '\0';
    for (uint32_t i = 0; i < n_feature; i++) {
        if (!(set & 1u << i)) continue;
        n += (size_t)snprintf(text + n, sizeof text - n, "%s%s", n ? " + " : "", features[i].name);
    }
    return text;
}

static void expect_plain(const struct answer *a, const struct answer *want, uint32_t set)
{
    bool left = a->finish.finish == FATHOM_FINISH_CANCEL;
    size_t n = a->n * sizeof a->ids[0];
    bool same = left ? a->n <= want->n
                     : a->n == want->n && a->finish.finish == want->finish.finish &&
                           a->n_prompt == want->n_prompt && a->hash == want->hash;
    if (same && memcmp(a->ids, want->ids, n) == 0 && memcmp(a->logprobs, want->logprobs, n) == 0) {
        return;
    }
    uint32_t at = 0;
    while (at < a->n && at < want->n && a->ids[at] == want->ids[at] &&
           memcmp(&a->logprobs[at], &want->logprobs[at], sizeof a->logprobs[0]) == 0) {
        at++;
    }
    if (at == a->n && a->n == want->n) {
        fail_msg("seed %" PRIu64 ", run %" PRIu64 " (%s): the prompt's log-probabilities, the "
                 "alternatives or the finish are not the plain run's",
                 seed, n_run, name_set(set));
    }
    fail_msg("seed %" PRIu64 ", run %" PRIu64 " (%s): output token %u of %u is not the plain run's "
             "(%d, %a and not %d, %a)",
             seed, n_run, name_set(set), at, want->n, a->ids[at], (double)a->logprobs[at],
             want->ids[at], (double)want->logprobs[at]);
}

/* When events come is not the seed's to say, so who leaves is drawn apart. */
static void cancel_some(fathom_engine *e, const struct run *r, const struct answer *a, uint32_t n)
{
    static uint64_t leavers_rng;
    if (r->cancel_one == 0 || rng_below(&leavers_rng, r->cancel_one) > 0) return;
    const struct answer *who = &a[rng_below(&leavers_rng, n)];
    if (who->id && !who->done) fathom_cancel(e, who->id);
}

/* A question with a long prompt, of which no log-probabilities are wanted. */
static uint32_t any_deep(void)
{
    uint32_t k = N_LONG + between(0, N_DEEP - 1);
    while (questions[k].request.sampling.prompt_logprobs) k = N_LONG + (k + 1 - N_LONG) % N_DEEP;
    return k;
}

/* One run of `n` questions drawn from all. */
static void run_set(uint32_t set, uint32_t n)
{
    static struct answer answers[MAX_CASE_RUN];
    uint32_t asked[MAX_CASE_RUN];
    struct run r = plain_run(FATHOM_KV_BF16, FATHOM_ACT_BF16);
    for (uint32_t i = 0; i < n_feature; i++) {
        if (set & 1u << i) features[i].turn_on(&r);
    }
    const struct answer *want = plain_answers(r.o.kv, r.o.act);
    fathom_engine *e = open_run(&r);
    memset(answers, 0, sizeof answers);
    if (r.one_before) {
        asked[0] = any_deep();
        submit(e, &answers[0], asked[0]);
        answers_wait(e, 1);
    }
    for (uint32_t wave = 0, i = r.one_before; wave < r.n_wave; wave++) {
        uint32_t first = i;
        for (; i < n * (wave + 1) / r.n_wave; i++) {
            asked[i] = between(0, (r.long_only ? N_LONG : N_REQUEST) - 1);
            if (r.deep_only && !r.long_only) asked[i] = N_LONG + asked[i] % N_DEEP;
            submit(e, &answers[i], asked[i]);
        }
        for (size_t n_open = i - first; n_open > 0;) {
            n_open -= answers_take(e, 60000);
            cancel_some(e, &r, answers, i);
        }
    }
    fathom_stats s;
    fathom_get_stats(e, &s);
    fathom_close(e);
    for (uint32_t i = 0; i < n; i++) expect_plain(&answers[i], &want[asked[i]], set);
    assert_int_equal(s.n_page_free, s.n_page);
    for (uint32_t i = 0; i < n_feature; i++) {
        if (set & 1u << i) n_seen[i] += features[i].count ? features[i].count(&s) : 1;
    }
    n_case += n;
    n_run++;
}

/* ---- tests ---------------------------------------------------------------------------------- */

enum { MIN_CASE_PAIR = 12 };

/* A pair's run is done again, with other requests and more of them, until both features have taken
 * place: a busy machine parts requests in time that else would meet. */
static void every_pair_of_features_gives_the_plain_bits(void **state)
{
    (void)state;
    const uint32_t n_pair = n_feature * (n_feature + 1) / 2;
    uint32_t n = (uint32_t)(n_case_wanted * 3 / 4 / n_pair);
    n = n < MIN_CASE_PAIR ? MIN_CASE_PAIR : n > MAX_CASE_RUN ? MAX_CASE_RUN : n;
    uint64_t one_in = n_case_wanted > 0 ? (uint64_t)MIN_CASE_PAIR * n_pair / n_case_wanted : 0;
    one_in = one_in < 1 ? 1 : one_in > n_feature / 2 ? n_feature / 2 : one_in;
    for (uint32_t i = 0; i < n_feature; i++) {
        for (uint32_t k = i; k < n_feature; k++) {
            if ((i + k) % one_in != 0) continue;
            uint64_t seen_i = n_seen[i], seen_k = n_seen[k];
            for (int try = 0; n_seen[i] == seen_i || n_seen[k] == seen_k; try++) {
                if (try == 50) {
                    fail_msg("seed %" PRIu64 ": %s does not take place", seed,
                             name_set(1u << i | 1u << k));
                }
                uint32_t n_more = n + (uint32_t)try;
                run_set(1u << i | 1u << k, n_more < MAX_CASE_RUN ? n_more : MAX_CASE_RUN);
            }
        }
    }
}

static void random_sets_of_features_give_the_plain_bits(void **state)
{
    (void)state;
    while (n_case < n_case_wanted)
        run_set((uint32_t)rng_below(&rng, 1u << n_feature), MAX_CASE_RUN);
    print_message("cases=%" PRIu64 " runs=%" PRIu64, n_case, n_run);
    for (uint32_t i = 0; i < n_feature; i++)
        print_message(" %s=%" PRIu64, features[i].name, n_seen[i]);
    print_message("\n");
}

static int open_model(void **state)
{
    (void)state;
    rng = seed;
    log_set_level(LOG_LEVEL_ERROR);
    small_model_make(&model, rng_next(&rng));
    make_questions();
    return 0;
}

static int close_model(void **state)
{
    (void)state;
    char path[80];
    static const char *const names[] = {"/kv.index", "/kv.pages", ""};
    for (int i = 0; i < 3; i++) {
        (void)snprintf(path, sizeof path, "/tmp/fathom-bits-%d%s", (int)getpid(), names[i]);
        (void)remove(path);
    }
    small_model_free(&model);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc > 1) n_case_wanted = strtoull(argv[1], NULL, 10);
    if (argc > 2) seed = strtoull(argv[2], NULL, 10);
    const bool has_lanes = argc > 3 && strncmp(argv[3], "dp", 2) == 0;
    if (has_lanes || (argc > 3 && strncmp(argv[3], "pp", 2) == 0)) {
        char *ranks;
        *(has_lanes ? &n_lane : &n_stage) = (uint32_t)strtoul(argv[3] + 2, &ranks, 10);
        n_rank = *ranks == 'x' ? (uint32_t)strtoul(ranks + 1, NULL, 10) : 1;
    } else if (argc > 3) {
        n_rank = (uint32_t)strtoul(argv[3], NULL, 10);
    }
    if (n_lane > 1) n_feature = N_FEATURE;
    if (argc > 4 && strcmp(argv[4], "cuda") == 0) backend = FATHOM_BACKEND_CUDA;
    print_message("test_bits %" PRIu64 " %" PRIu64 " %u x %u\n", n_case_wanted, seed,
                  n_lane * n_stage, n_rank);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_pair_of_features_gives_the_plain_bits),
        cmocka_unit_test(random_sets_of_features_give_the_plain_bits),
    };
    return cmocka_run_group_tests(tests, open_model, close_model);
}
