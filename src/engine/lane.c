/* lane.c - a lane's requests, and its part of each step */
#include "engine/lane.h"

#include "base/assert.h"
#include "base/fail.h"
#include "base/mem.h"
#include "engine/results.h"
#include "engine/sampler.h"

fathom_err lane_init(struct lane *l, const struct lane_config *c, fathom_diag *d)
{
    const struct sched_config *sched = &c->sched;
    ASSERT(c->n_page >= 1 && sched->lane < (sched->n_lane ? sched->n_lane : 1));
    *l = (struct lane){.i = sched->lane, .first = sched->lane, .end = sched->lane + 1};
    TRY(page_pool_create(&l->pool, c->n_page, d));
    if (!c->no_prefix_cache) TRY(prefix_create(&l->prefix, l->pool, sched->max_draft > 0, d));
    TRY(sched_create(&l->sched, sched, l->pool, l->prefix, d));
    fathom_err err = FATHOM_OK;
    l->n_drafter = sched->n_stage > 1 ? sched->n_stage : 1;
    l->drafters = mem_calloc(l->n_drafter, sizeof *l->drafters);
    for (uint32_t i = 0; l->drafters && i < l->n_drafter && !err; i++)
        err = drafter_init(&l->drafters[i], sched->max_draft, sched->max_num_seqs);
    if (l->drafters && !err) return FATHOM_OK;
    FAIL(d, FATHOM_ENOMEM, "no memory for drafts of %u requests", sched->max_num_seqs);
}

void lane_fini(struct lane *l)
{
    sched_destroy(l->sched);
    prefix_destroy(l->prefix);
    page_pool_destroy(l->pool);
    for (uint32_t i = 0; l->drafters && i < l->n_drafter; i++) drafter_fini(&l->drafters[i]);
    mem_free(l->drafters);
    *l = (struct lane){0};
}

void lane_check(const struct lane *l)
{
    uint64_t n_owed = 0;
    sched_check(l->sched);
    for (const struct request *r = sched_first_waiting(l->sched); r; r = r->next) {
        const struct sequence *q = sequence_of((struct request *)r);
        ASSERT(q->lane == l->i && q->first_lane >= l->first && q->end_lane <= l->end);
        n_owed += q->n_owed;
    }
    ASSERT(n_owed <= l->n_owed_token);
    ASSERT(sched_any(l->sched) || l->n_owed_token == 0);
}

/* ---- requests come and go ---- */

/* From now on n prompt tokens of the sequence are owed. */
static void owe(struct lane *l, struct sequence *q, uint32_t n)
{
    ASSERT(l->n_owed_token >= q->n_owed);
    l->n_owed_token += n;
    l->n_owed_token -= q->n_owed;
    q->n_owed = n;
}

static uint32_t n_live(const struct lane *l)
{
    return sched_n_running(l->sched) + sched_n_fetching(l->sched) + sched_n_waiting(l->sched);
}

static uint64_t load_of(const struct lane *l)
{
    return l->n_owed_token + (uint64_t)n_live(l) * LANE_LIVE_TOKENS;
}

/* How well a lane suits a new request; earlier members decide first. */
struct merit {
    bool is_full; /* no place for one more request to run */
    bool is_far;  /* its load is far above the mean: its cached pages do not count */
    uint32_t n_page;
    uint64_t load;
};

static bool is_better(const struct merit *a, const struct merit *b)
{
    if (a->is_full != b->is_full) return b->is_full;
    if (a->is_far != b->is_far) return b->is_far;
    if (a->n_page != b->n_page) return a->n_page > b->n_page;
    return a->load < b->load;
}

struct lane *lane_choose(struct lane *lanes, uint32_t n_lane, struct sequence *q,
                         uint32_t max_num_seqs, uint32_t slack_token)
{
    uint64_t sum = 0;
    ASSERT(n_lane >= 1 && max_num_seqs >= 1);
    struct lane *best = NULL;
    struct merit best_merit = {0};
    ASSERT(q->request.state == REQUEST_NEW);
    ASSERT(q->first_lane < q->end_lane && q->end_lane <= n_lane);
    const uint32_t n = q->end_lane - q->first_lane;
    if (n == 1) return &lanes[q->first_lane];
    for (uint32_t i = q->first_lane; i < q->end_lane; i++) sum += load_of(&lanes[i]);
    for (uint32_t i = q->first_lane; i < q->end_lane; i++) {
        struct lane *l = &lanes[i];
        struct merit m = {.is_full = n_live(l) >= max_num_seqs, .load = load_of(l)};
        m.is_far = m.load > sum / n * 5 / 4 + slack_token;
        m.n_page = m.is_far ? 0 : sched_n_found(l->sched, &q->request);
        if (best && !is_better(&m, &best_merit)) continue;
        best = l;
        best_merit = m;
    }
    ASSERT(best);
    return best;
}

/* Prompt tokens whose pages another server will send. */
static uint32_t count_given(const struct request *r)
{
    uint32_t n = r->has_peer ? r->peer_end * KV_PAGE_TOKENS : 0;
    ASSERT(n < r->n_prompt);
    return n;
}

void lane_add(struct lane *l, struct sequence *q)
{
    ASSERT(q->n_owed == 0 && q->request.state == REQUEST_NEW);
    q->lane = l->i;
    if (q->first_lane < l->first) l->first = q->first_lane;
    if (q->end_lane > l->end) l->end = q->end_lane;
    sched_add(l->sched, &q->request);
    owe(l, q, q->request.n_prompt - count_given(&q->request));
}

void lane_end(struct lane *l, struct sequence *q, enum request_finish why, uint64_t now_us)
{
    ASSERT(q->lane == l->i);
    for (uint32_t i = 0; i < l->n_drafter; i++) drafter_drop(&l->drafters[i], &q->request);
    sched_end(l->sched, &q->request, why, now_us);
    owe(l, q, 0);
    ASSERT(q->n_owed == 0);
}

static bool may_be_on(const struct sequence *q, uint32_t lane)
{
    return lane >= q->first_lane && lane < q->end_lane;
}

static struct sequence *first_movable(const struct lane *l, uint32_t to)
{
    if (to < l->first || to >= l->end) return NULL;
    struct request *r = sched_first_waiting(l->sched);
    while (r && (!may_be_on(sequence_of(r), to) || !sched_may_withdraw(r))) r = r->next;
    return r ? sequence_of(r) : NULL;
}

/* A request that can move to lane `to`: the first one on the full lane on which most wait; NULL:
 * none can. */
static struct sequence *first_of_fullest(struct lane *lanes, uint32_t n_lane, uint32_t to,
                                         uint32_t max_num_seqs)
{
    struct sequence *first = NULL;
    uint32_t n_most = 0;
    for (uint32_t i = 0; i < n_lane; i++) {
        const struct sched *s = lanes[i].sched;
        const uint32_t n = sched_n_waiting(s);
        if (n <= n_most || sched_n_running(s) + sched_n_fetching(s) < max_num_seqs) continue;
        struct sequence *q = first_movable(&lanes[i], to);
        if (!q) continue;
        first = q;
        n_most = n;
    }
    return first;
}

uint32_t lanes_level(struct lane *lanes, uint32_t n_lane, uint32_t max_num_seqs)
{
    uint32_t n_moved = 0;
    for (uint32_t i = 0; i < n_lane; i++) {
        struct lane *to = &lanes[i];
        if (sched_n_waiting(to->sched) > 0 || n_live(to) >= max_num_seqs) continue;
        struct sequence *q = first_of_fullest(lanes, n_lane, i, max_num_seqs);
        if (!q) continue;
        struct lane *from = &lanes[q->lane];
        ASSERT(from != to);
        sched_withdraw(from->sched, &q->request);
        owe(from, q, 0);
        lane_add(to, q);
        n_moved++;
    }
    return n_moved;
}

/* ---- its part of a step ---- */

void lane_rest(struct step *step, enum step_pass pass)
{
    *step = (struct step){.pass = pass}; /* nothing chooses experts that could be watched */
}

void lane_write_step(const struct lane *l, const struct plan *plan, const struct plan *part,
                     const struct step_runner *r, struct step *step)
{
    void *host = step_runner_host(r, l->i);
    if (part->n_entry == 0) {
        lane_rest(step, step->pass);
        return;
    }
    step->prefix_bytes = batch_build(&r->layout, part, host, &step->batch);
    sampler_build(&r->layout, plan, host, &step->sampler);
    ASSERT(step->prefix_bytes <= r->layout.bias);
    ASSERT(step->sampler.n_row == step->batch.n_logit_row);
    ASSERT(!plan->is_ahead || step->sampler.masks.n_bytes == 0);
}

uint32_t lane_fill_masks(const struct lane *l, const struct plan *plan, const struct step_runner *r,
                         const struct step *step, uint32_t i_drafter)
{
    if (step->sampler.masks.n_bytes == 0) return 0;
    ASSERT(lane_has_part(step) && step->pass < STEP_PASS_N);
    void *host = step_runner_host(r, l->i);
    const uint32_t n_mask = step->pass == STEP_MODEL
                                ? sampler_fill_masks(&r->layout, plan, host)
                                : drafter_fill_masks(&l->drafters[i_drafter], &r->layout, host);
    ASSERT(n_mask * r->layout.n_mask_word * sizeof(uint32_t) == step->sampler.masks.n_bytes);
    return n_mask;
}

bool lane_reads_ids(const struct plan *plan, uint32_t n_behind)
{
    for (uint32_t i = 0; i < plan->n_entry; i++) {
        if (sampler_reads_ids(sequence_of(plan->entries[i].request), n_behind)) return true;
    }
    return false;
}

/* ---- what a step gave ---- */

/* Counts an entry's decode or prompt tokens for admission. */
static void count_entry(struct lane *l, const struct plan_entry *entry, struct lane_tally *t)
{
    struct sequence *q = sequence_of(entry->request);
    uint32_t end = entry->first + entry->n_token;
    uint32_t n_prompt = q->request.n_prompt;
    uint32_t n_left = n_prompt > end ? n_prompt - end : 0;
    /* If pages did not come from the other server, their tokens are computed here after all. */
    bool lost = count_given(&q->request) > 0 && q->request.state == REQUEST_RUNNING;
    if (n_left < q->n_owed || lost) owe(l, q, n_left);
    if (entry->first >= n_prompt) {
        t->measured.n_decode++;
    } else {
        t->measured.n_prefill += entry->n_token;
    }
}

/* Counts the tokens that a committed entry has drawn, and how many of its drafts were accepted. */
static void count_drawn(const struct plan_entry *entry, fathom_stats *s)
{
    if (!entry->draws) return;
    struct sequence *q = sequence_of(entry->request);
    uint32_t n_drawn = q->request.n_token - (entry->first + entry->n_token - entry->n_draft);
    ASSERT(n_drawn >= 1 && n_drawn <= 1 + entry->n_draft);
    s->n_output_token += n_drawn;
    for (uint32_t i = 0; i < entry->n_draft; i++) {
        s->n_draft_token[i]++;
        s->n_accepted_token[i] += i + 1 < n_drawn;
    }
    draft_pace_note(&q->pace, entry->n_draft, n_drawn - 1);
}

/* Advances the constraint of a committed entry's request over the tokens that were drawn. */
static void follow(struct lane *l, const struct plan_entry *entry, uint64_t now_us)
{
    struct request *r = entry->request;
    struct constraint *c = &sequence_of(r)->constraint;
    if (!entry->draws || !constraint_is_set(c)) return;
    uint32_t p = entry->first + entry->n_token - entry->n_draft;
    while (r->state == REQUEST_RUNNING && p < r->n_token) {
        if (!constraint_push(c, r->ids[p++])) {
            sched_end(l->sched, r, REQUEST_FINISH_CONSTRAINT, now_us);
        }
    }
}

static void keep_results(const struct plan *plan, const struct step_result *result,
                         struct lane_tally *t)
{
    for (uint32_t i = 0; i < plan->n_entry; i++) {
        const struct plan_entry *entry = &plan->entries[i];
        struct sequence *q = sequence_of(entry->request);
        uint32_t n_output = request_n_output(&q->request);
        t->stats->n_prompt_token += results_new_prompt_tokens(entry);
        t->n_token += entry->n_token;
        for (uint32_t k = 0; entry->draws && k <= entry->n_draft; k++) {
            results_keep_logprobs(q, result, entry->i_draw + k, n_output + k);
        }
        ASSERT(entry->i_score + entry->n_score <= plan->n_score);
        /* the rows of prompts come last */
        results_keep_scores(q, result, plan->n_draw + entry->i_score, entry->n_score);
        if (entry->draws || entry->n_score > 0) t->told[t->n_told++] = q;
    }
}

void lane_finish(struct lane *l, const struct plan *plan, const struct step_result *result,
                 uint64_t now_us, struct lane_tally *t)
{
    ASSERT(plan->n_draw == 0 || result->ids);
    keep_results(plan, result, t);
    sched_commit(l->sched, plan, result->ids, now_us);
    for (uint32_t i = 0; i < plan->n_entry; i++) {
        count_drawn(&plan->entries[i], t->stats);
        ASSERT(sequence_of(plan->entries[i].request)->lane == l->i);
        follow(l, &plan->entries[i], now_us);
        count_entry(l, &plan->entries[i], t);
    }
}

void lane_fill_stats(const struct lane *l, fathom_stats *s)
{
    const struct sched_totals *totals = sched_totals(l->sched);
    fathom_lane_stats *own = &s->lanes[l->i];
    *own = (fathom_lane_stats){
        .n_running = sched_n_running(l->sched),
        .n_waiting = sched_n_waiting(l->sched) + sched_n_fetching(l->sched),
        .n_page_free = page_pool_n_available(l->pool),
        .n_page_cached = page_pool_n_cached(l->pool),
        .n_backlog_token = l->n_owed_token,
    };
    ASSERT(own->n_page_free <= page_pool_n_page(l->pool));
    ASSERT(l->i < s->n_lane && s->n_lane <= FATHOM_RANKS_MAX);
    s->n_running += own->n_running;
    s->n_fetching += sched_n_fetching(l->sched);
    s->n_waiting += own->n_waiting;
    s->n_page_free += own->n_page_free;
    s->n_page_cached += own->n_page_cached;
    s->n_backlog_token += own->n_backlog_token;
    s->n_preempted += totals->n_preempted;
    s->n_prefix_query_token += totals->n_query_token;
    s->n_prefix_hit_token += totals->n_hit_token;
    s->n_prefix_fetched_token += totals->n_fetched_token;
    s->tiers.n_uncopied += l->prefix && prefix_tiers(l->prefix) ? prefix_n_offered(l->prefix) : 0;
}
