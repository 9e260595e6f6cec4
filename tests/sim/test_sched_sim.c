/* test_sched_sim [steps] [seed] - the scheduler alone on loads, checked after every call
 *
 * Each episode draws a pool, with or without a prefix cache, a budget, a limit of running requests
 * and a load: arrivals, lengths, texts that begin as earlier ones did, stops, cancels. The "cache"
 * keeps in every row a hash of all tokens up to it and of the salt, read back before a draw; the
 * "model" draws a hash of the last one. So a page given away too early, shared by mistake or not
 * recomputed is found. Some steps fail, after having spoiled some of the rows they were to write;
 * then all requests end, or the step is planned again. Some requests expire while they wait. In
 * some episodes there are drafts, some of them right, and the rows of a draft layer, which depend
 * on the token after; making drafts scribbles on the rows ahead.
 *
 * In some episodes without drafts steps are planned ahead of the end of those before, up to four
 * under way at once. Requests are cancelled while they are. What a step computes for a request that
 * has ended meanwhile spoils the rows that it was planned for.
 *
 * In some episodes there are stages: steps of other requests are planned beside those under way,
 * and requests are held until they have their drafts.
 *
 * Besides, small loads are each run to their end again and again, with one request cancelled before
 * the first step, before the second, and so on: every page comes back.
 *
 * In some episodes rows of prompts and of answers are of two forms: their hashes differ, so a page
 * of an answer that stands for a prompt is found. Drafts are made for prompts too, and none is
 * taken.
 *
 * In some episodes pages that leave the cache go to tiers: memory, and a disk that is late, fails,
 * damages what it writes and dies with the episode; the next one may find what it left. Rows are
 * copied with their pages, so a wrong or damaged page is found as any wrong row is. */
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/rng.h"
#include "kv/tiers.h"
#include "sched/sched.h"
#include "sim/sched_sim.h"
#include "support/sim_disk.h"

static struct sim sim;
static uint64_t n_step_wanted = 1000000;
static uint64_t seed = 1;

/* Mostly short, sometimes anything; an episode chooses what short is. */
static uint32_t length(struct sim *m, uint32_t short_max, uint32_t max)
{
    if (max < short_max) short_max = max;
    return between(m, 1, between(m, 0, 7) ? short_max : max);
}

/* The hash of the first n tokens. */
static uint64_t hash_of(struct job *j, uint32_t n)
{
    for (; j->n_hash < n; j->n_hash++) {
        uint64_t before = j->n_hash ? j->hashes[j->n_hash - 1] : j->r.cache_salt;
        uint64_t at = j->n_hash + (j->n_hash < j->n_prompt ? 0 : UINT64_C(1) << 32);
        j->hashes[j->n_hash] = rng_mix(before, at, (uint64_t)j->ids[j->n_hash]);
    }
    return j->hashes[n - 1];
}

/* What the draft layer's row at position p holds: of its tokens, and of the token after. */
static uint64_t draft_hash_of(struct job *j, uint32_t p)
{
    return rng_mix(hash_of(j, p + 1), p, (uint64_t)j->ids[p + 1]);
}

/* The token after the first n. */
static int32_t model(struct job *j, uint32_t n)
{
    if (n - j->r.n_prompt == j->stop_after) return STOP_ID;
    return 1 + (int32_t)(rng_mix(hash_of(j, n), j->taste, 0) >> 40);
}

static void write_prompt(struct sim *m, struct job *j)
{
    uint32_t n = 0;
    if (rng_below(&m->rng, 1024) < m->share_per_1024) {
        const struct text *t = &m->texts[between(m, 0, N_TEXT - 1)];
        n = t->n < j->r.n_prompt ? t->n : j->r.n_prompt;
        if (between(m, 0, 1)) n = between(m, 0, n);
        memcpy(j->ids, t->ids, n * sizeof j->ids[0]);
        j->r.cache_salt = t->salt;
    }
    for (; n < j->r.n_prompt; n++) j->ids[n] = (int32_t)between(m, 1, 1 << 20);
}

static void keep_text(struct sim *m, const struct job *j)
{
    if (j->r.n_token < KV_PAGE_TOKENS) return;
    struct text *t = &m->texts[between(m, 0, N_TEXT - 1)];
    t->salt = between(m, 0, 7) ? j->r.cache_salt : 1;
    t->n = j->r.n_token;
    memcpy(t->ids, j->ids, t->n * sizeof t->ids[0]);
}

static void arrive(struct sim *m)
{
    struct job *j = NULL;
    for (int i = 0; i < MAX_LIVE && !j; i++) {
        if (!m->jobs[i].live) j = &m->jobs[i];
    }
    if (!j) return;
    static const int32_t stop_ids[] = {STOP_ID};
    uint32_t n_prompt = length(m, m->short_prompt, m->max_prompt);
    uint32_t n_output = length(m, m->short_output, m->max_output);
    memset(&j->r, 0, sizeof j->r);
    j->live = true;
    j->taste = between(m, 0, 1);
    j->n_hash = 0;
    j->stop_after = between(m, 0, 1) ? UINT32_MAX : between(m, 0, n_output);
    j->arrived_us = m->now_us;
    j->r.id = ++m->next_id;
    j->r.ids = j->ids;
    j->r.pages = j->pages;
    j->r.stop_ids = stop_ids;
    j->r.n_stop_id = 1;
    j->r.n_prompt = n_prompt;
    j->r.max_token = n_prompt + n_output;
    j->n_prompt = m->prompt_form ? n_prompt : UINT32_MAX;
    j->r.priority = (int32_t)between(m, 0, m->n_priority) - 1;
    j->r.tenant = between(m, 0, m->n_tenant);
    if (between(m, 0, 7) == 0) j->r.n_to_score = between(m, 0, n_prompt - 1);
    j->n_score = 0;
    write_prompt(m, j);
    sched_add(m->s, &j->r);
    m->n_request++;
}

static void retire(struct sim *m, struct job *j)
{
    const struct request *r = &j->r;
    assert_int_equal(r->state, REQUEST_FINISHED);
    uint32_t n_output = request_n_output(r);
    for (uint32_t i = 0; i < n_output; i++) {
        assert_int_equal(j->ids[r->n_prompt + i], model(j, r->n_prompt + i));
    }
    if (n_output > 0) assert_int_equal(j->n_score, r->n_to_score);
    if (r->finish == REQUEST_FINISH_STOP) assert_int_equal(n_output, j->stop_after + 1);
    if (r->finish == REQUEST_FINISH_LENGTH) assert_int_equal(r->n_token, r->max_token);
    if (between(m, 0, 3) == 0) keep_text(m, j);
    j->live = false;
}

static void end_job(struct sim *m, struct request *r, enum request_finish why)
{
    sched_end(m->s, r, why, m->now_us);
    sched_check(m->s);
    retire(m, (struct job *)r); /* r is its first member */
}

static void cancel(struct sim *m)
{
    struct job *j = &m->jobs[between(m, 0, MAX_LIVE - 1)];
    if (!j->live) return;
    end_job(m, &j->r, REQUEST_FINISH_CANCEL);
    m->n_cancel++;
}

/* Those that have waited too long and were never started. */
static void expire(struct sim *m)
{
    struct request *next;
    for (struct request *r = sched_first_waiting(m->s); m->patience_us && r; r = next) {
        next = r->next;
        if (r->n_preempted > 0) continue;
        if (m->now_us - ((struct job *)r)->arrived_us <= m->patience_us) continue;
        end_job(m, r, REQUEST_FINISH_EXPIRED);
        m->n_expired++;
    }
}

static struct flight *flight(struct sim *m, uint32_t i)
{
    return &m->flights[(m->first_flight + i) % m->max_flight];
}

static uint32_t row_of(const struct request *r, uint32_t p)
{
    return r->pages[p / KV_PAGE_TOKENS] * KV_PAGE_TOKENS + p % KV_PAGE_TOKENS;
}

/* All rows of a short request, some of a long one; with the draft layer's if it `drafts`. */
static void read_back(struct sim *m, struct job *j, uint32_t n, bool drafts)
{
    uint32_t stride = 1 + n / 64;
    for (uint32_t p = between(m, 0, stride - 1); p < n; p += stride) {
        assert_true(m->rows[row_of(&j->r, p)] == hash_of(j, p + 1));
        if (drafts) assert_true(m->draft_rows[row_of(&j->r, p)] == draft_hash_of(j, p));
    }
}

/* Prompt tokens are scored one after the other, each once, from tokens of the entry. */
static void take_score(struct sim *m, struct job *j, const struct plan_entry *e)
{
    if (e->n_score == 0) return;
    assert_int_equal(j->n_score, request_n_scored(&j->r));
    assert_true(j->n_score >= e->first && j->n_score + e->n_score <= e->first + e->n_token);
    j->n_score += e->n_score;
    m->n_score += e->n_score;
}

/* Writes the rows of the step and reads back those of the entries that draw. */
static void compute(struct sim *m, int32_t *drawn)
{
    uint32_t n_draw = 0;
    uint32_t t = 0;
    for (uint32_t i = 0; i < m->plan->n_entry; i++) {
        const struct plan_entry *e = &m->plan->entries[i];
        const struct request *r = e->request;
        struct job *j = (struct job *)e->request; /* r is its first member */
        assert_true(e->n_token >= 1 && e->first == r->n_computed);
        for (uint32_t p = e->first; p < e->first + e->n_token; p++) {
            assert_true(p / KV_PAGE_TOKENS < r->n_page);
            assert_int_equal(e->is_prompt, m->prompt_form && p < r->n_prompt);
            m->step_rows[t] = row_of(r, p);
            m->rows[m->step_rows[t++]] = hash_of(j, p + 1);
        }
        take_score(m, j, e);
        if (!e->draws) continue;
        assert_int_equal(e->first + e->n_token, r->n_token + e->n_draft);
        read_back(m, j, r->n_token + e->n_draft, false);
        for (uint32_t k = 0; k <= e->n_draft; k++) {
            drawn[e->i_draw + k] = model(j, r->n_token + k);
            n_draw++;
        }
        m->n_draft += e->n_draft;
        if (j->n_hash > r->n_token) j->n_hash = r->n_token; /* drafts may be wrong */
    }
    m->n_in_vain += m->plan->n_draw - n_draw;
    assert_true(n_draw == m->plan->n_draw || m->plan->n_entry < flight(m, 0)->n_entry);
}

/* A step runs when the ones before are over: the rows of all that it was planned for are spoiled,
 * then those of the requests that still live are written. */
static void spoil(struct sim *m)
{
    const struct flight *f = flight(m, 0);
    for (uint32_t i = 0; i < f->n_row; i++) m->rows[f->rows[i]] = 0;
}

/* One plan more is under way: the one in the next place of the ring. */
static void take_off(struct sim *m)
{
    struct flight *f = flight(m, m->n_flight++);
    f->n_row = 0;
    f->n_entry = f->plan.n_entry;
    for (uint32_t i = 0; i < f->plan.n_entry; i++) {
        const struct plan_entry *e = &f->plan.entries[i];
        for (uint32_t p = e->first; p < e->first + e->n_token; p++) {
            f->rows[f->n_row++] = row_of(e->request, p);
        }
    }
}

static void land(struct sim *m)
{
    m->first_flight = (m->first_flight + 1) % m->max_flight;
    m->n_flight--;
    m->plan = &flight(m, 0)->plan;
}

/* What the newest plan draws goes into the one made ahead of it, of all requests but those that
 * end with it or before. */
static void check_ahead(const struct sim *m, const struct plan *newest, const struct plan *next)
{
    uint32_t n_over = 0;
    for (int i = 0; i < MAX_LIVE; i++) {
        const struct request *r = &m->jobs[i].r;
        if (!m->jobs[i].live || r->state != REQUEST_RUNNING) continue;
        assert_true(r->n_planned > 0);
        n_over += r->n_computed + r->n_planned + 1 == r->max_token;
    }
    uint32_t k = 0;
    for (uint32_t i = 0; i < next->n_entry; i++) {
        const struct plan_entry *e = &next->entries[i];
        while (newest->entries[k].request != e->request) assert_true(++k < newest->n_entry);
        assert_true(e->draws && e->i_draw == i && e->i_before == newest->entries[k].i_draw);
        assert_int_equal(e->first, e->request->n_token + m->n_flight - 1);
        n_over -= e->first + 2 == e->request->max_token;
    }
    assert_int_equal(n_over + next->n_entry, sched_n_running(m->s));
}

/* Maybe the step after the newest under way, planned before what that draws is known. */
static bool plan_ahead(struct sim *m)
{
    uint32_t n_available = page_pool_n_available(m->pool);
    if (rng_below(&m->rng, 1024) >= m->ahead_per_1024) return false;
    if (m->tiers && (tiers_is_busy(m->tiers) || prefix_is_due(m->prefix))) return false;
    const struct plan *newest = &flight(m, m->n_flight - 1)->plan;
    struct plan full = {0};
    struct plan *next = m->n_flight == m->max_flight ? &full : &flight(m, m->n_flight)->plan;
    if (!sched_plan_ahead(m->s, newest, next)) {
        assert_int_equal(page_pool_n_available(m->pool), n_available);
        return false;
    }
    assert_true(m->max_draft == 0 && next->n_entry > 0 && next->n_token == next->n_entry);
    check_ahead(m, newest, next);
    if (rng_below(&m->rng, 8) == 0) { /* another lane's step is not known */
        sched_take_back(m->s, next);
        sched_check(m->s);
        return false;
    }
    take_off(m);
    sched_check(m->s);
    m->n_ahead++;
    return true;
}

static uint32_t n_running_with_gap_1(const struct sim *m)
{
    uint32_t n = 0;
    for (int i = 0; i < MAX_LIVE; i++) {
        const struct request *r = &m->jobs[i].r;
        n += m->jobs[i].live && r->state == REQUEST_RUNNING && request_gap(r) == 1 &&
             r->n_planned == 0 && !r->is_held;
    }
    return n;
}

/* While somebody decodes, the rest gets what the bounds allow. */
static void check_bounds(const struct sim *m, const struct plan *plan,
                         const struct sched_bounds *bounds, uint32_t n_decode, uint32_t n_running)
{
    uint32_t n_prefill = 0;
    for (uint32_t i = 0; i < plan->n_entry; i++) {
        const struct plan_entry *e = &plan->entries[i];
        assert_true(e->request->n_planned == e->n_token && !e->request->is_held);
        if (request_gap(e->request) > 1) n_prefill += e->n_token;
    }
    if (n_decode > 0) assert_true(n_prefill <= bounds->max_prefill);
    assert_true(sched_n_running(m->s) <= bounds->max_running || sched_n_running(m->s) <= n_running);
}

/* After the commit: the draft layer over the step's tokens, at the rows where they were. */
static void compute_draft_layer(struct sim *m)
{
    uint32_t t = 0;
    for (uint32_t i = 0; i < m->plan->n_entry; i++) {
        const struct plan_entry *e = &m->plan->entries[i];
        struct job *j = (struct job *)e->request;
        for (uint32_t p = e->first; p < e->first + e->n_token; p++, t++) {
            m->draft_rows[m->step_rows[t]] = p + 1 < j->r.n_token ? draft_hash_of(j, p) : 0;
        }
    }
}

/* Guesses at what comes next, made at positions whose pages the request has. */
static void make_drafts(struct sim *m, struct job *j)
{
    struct request *r = &j->r;
    if (r->state != REQUEST_RUNNING || request_gap(r) != 1) return;
    read_back(m, j, r->n_computed, true);
    uint32_t n = between(m, 0, m->max_draft);
    uint32_t n_page_row = r->n_page * KV_PAGE_TOKENS - r->n_computed;
    if (n > request_draft_room(r)) n = request_draft_room(r);
    if (n > n_page_row + 1) n = n_page_row + 1;
    for (r->n_draft = 0; r->n_draft < n; r->n_draft++) {
        uint32_t at = r->n_token + r->n_draft;
        bool right = rng_below(&m->rng, 1024) < m->right_per_1024;
        r->ids[at] = right ? model(j, at) : (int32_t)between(m, 1, 1 << 20);
        if (r->n_draft > 0) m->draft_rows[row_of(r, r->n_computed + r->n_draft - 1)] = 0;
    }
    if (j->n_hash > r->n_token) j->n_hash = r->n_token;
}

static void draft(struct sim *m)
{
    if (m->max_draft == 0) return;
    compute_draft_layer(m);
    for (uint32_t i = 0; i < m->plan->n_entry; i++) {
        const struct plan_entry *e = &m->plan->entries[i];
        uint32_t n_new = e->request->n_token - (e->first + e->n_token - e->n_draft);
        if (e->draws) m->n_accepted += n_new - 1;
        struct request *r = e->request;
        const bool is_held = m->n_stage > 1 && r->state == REQUEST_RUNNING && between(m, 0, 1);
        if (is_held) {
            r->is_held = true;
            m->n_held++;
        } else {
            make_drafts(m, (struct job *)r);
        }
    }
    sched_check(m->s);
}

/* Some of those that are held get their drafts, or all. */
static void release(struct sim *m, bool all)
{
    for (int i = 0; i < MAX_LIVE; i++) {
        struct job *j = &m->jobs[i];
        if (!j->live || !j->r.is_held || (!all && between(m, 0, 1))) continue;
        make_drafts(m, j);
        j->r.is_held = false;
    }
    sched_check(m->s);
}

/* The device has written some of the rows, and wrongly. The engine ends all that lives, or tries
 * again. */
static void fail_step(struct sim *m)
{
    for (uint32_t k = between(m, 1, m->n_flight); k > 0; k--) {
        const struct flight *f = flight(m, k - 1);
        for (uint32_t i = between(m, 0, f->n_row); i > 0; i--) m->rows[f->rows[i - 1]] = 0;
    }
    sched_abort(m->s);
    sched_check(m->s);
    m->n_flight = 0;
    m->n_failed++;
    if (between(m, 0, 1)) return;
    struct request *r;
    while ((r = sched_any(m->s))) end_job(m, r, REQUEST_FINISH_ERROR);
    assert_int_equal(page_pool_n_available(m->pool), m->n_page);
}

/* To the end of the oldest step under way, with those after it maybe planned by then. */
static void finish(struct sim *m)
{
    int32_t drawn[MAX_BUDGET];
    while (m->n_stage == 1 && plan_ahead(m)) continue;
    if (rng_below(&m->rng, 1024) < m->cancel_per_1024) cancel(m);
    spoil(m);
    if (rng_below(&m->rng, 1024) < m->fail_per_1024) {
        fail_step(m);
        return;
    }
    m->n_deep[m->n_flight]++;
    compute(m, drawn);
    sched_commit(m->s, m->plan, drawn, ++m->now_us);
    sched_check(m->s);
    draft(m);
    m->n_step++;
    m->n_token += m->plan->n_token;
    for (int i = 0; i < MAX_LIVE; i++) {
        struct job *j = &m->jobs[i];
        if (j->live && j->r.state == REQUEST_FINISHED) retire(m, j);
    }
    land(m);
}

static bool is_busy(const struct sim *m)
{
    return m->n_flight > 0 || sched_any(m->s);
}

/* Whether the next step is planned before the end of those under way. */
static bool plans_beside(struct sim *m)
{
    if (m->n_stage == 1 || m->n_flight == m->max_flight || sched_n_fetching(m->s) > 0) return false;
    return !(m->tiers && (tiers_is_busy(m->tiers) || prefix_is_due(m->prefix))) && between(m, 0, 3);
}

/* Nothing could be planned. */
static void pass(struct sim *m)
{
    if (m->n_flight > 0) {
        finish(m);
        return;
    }
    m->n_idle_step += sched_n_fetching(m->s) > 0;
    release(m, true);
}

static void step(struct sim *m, uint32_t budget)
{
    expire(m);
    release(m, false);
    struct sched_bounds bounds = {MAX_SEQS, budget, false};
    if (m->bounded) {
        bounds = (struct sched_bounds){between(m, 1, MAX_SEQS), between(m, 1, budget), false};
    }
    sched_set_bounds(m->s, &bounds);
    uint32_t n_decode = n_running_with_gap_1(m);
    uint32_t n_running = sched_n_running(m->s) + sched_n_fetching(m->s);
    m->now_us += 1 + (m->tiers ? between(m, 0, 200000) : 0);
    if (m->n_flight > 0 && !plans_beside(m)) {
        finish(m);
        return;
    }
    struct plan *next = &flight(m, m->n_flight)->plan;
    m->n_beside += m->n_flight > 0;
    sched_sim_begin_tiers(m);
    sched_plan(m->s, m->now_us, next);
    sched_check(m->s);
    if (m->tiers) {
        if (!m->late_sync) tiers_synced(m->tiers);
        tiers_check(m->tiers);
    }
    assert_true(next->n_token <= budget && next->n_score <= m->max_score);
    check_bounds(m, next, &bounds, n_decode, n_running);
    if (next->n_entry == 0) {
        pass(m);
        return;
    }
    take_off(m);
    if (m->n_stage == 1 || between(m, 0, 1)) finish(m);
}

/* What any load may be; the sizes are set before. */
static void draw_load(struct sim *m, struct sched_config *c)
{
    m->max_draft = between(m, 0, 1) ? 0 : between(m, 1, MAX_DRAFT);
    m->ahead_per_1024 = between(m, 0, 1) ? 1024 : between(m, 0, 1024);
    m->right_per_1024 = between(m, 0, 1024);
    m->prompt_form = between(m, 0, 1);
    *c = (struct sched_config){.max_num_batched_tokens = between(m, 1, MAX_BUDGET),
                               .max_num_seqs = between(m, 1, MAX_SEQS),
                               .max_draft = m->max_draft,
                               .max_score = between(m, 1, MAX_BUDGET),
                               .max_flight = between(m, 1, MAX_FLIGHT),
                               .prompt_form = m->prompt_form};
    c->n_stage = between(m, 0, 2) ? 1 : between(m, 2, MAX_FLIGHT);
    if (c->n_stage > 1) c->max_flight = c->n_stage;
    m->n_stage = c->n_stage;
    m->max_score = c->max_score;
    m->max_flight = c->max_flight;
    m->max_prompt = between(m, 1, m->n_page * KV_PAGE_TOKENS - 1);
    m->max_output = m->n_page * KV_PAGE_TOKENS - m->max_prompt;
    m->share_per_1024 = between(m, 0, 1) ? 0 : between(m, 1, 1024);
    m->with_tiers = between(m, 0, 2) == 0;
    if (m->with_tiers) { /* long prompts that begin alike */
        m->share_per_1024 = between(m, 700, 1024);
        m->short_prompt = between(m, 200, 1500);
        m->short_output = between(m, 1, 80);
        m->patience_us *= 10000;
    }
    m->n_priority = between(m, 0, 1) ? 0 : between(m, 1, 3);
    m->n_tenant = between(m, 0, 1) ? 0 : between(m, 1, 5);
    m->bounded = between(m, 0, 1);
}

static void open_world(struct sim *m, const struct sched_config *c)
{
    m->prefix = NULL;
    assert_int_equal(page_pool_create(&m->pool, m->n_page, NULL), FATHOM_OK);
    if (m->with_tiers || between(m, 0, 3)) {
        assert_int_equal(prefix_create(&m->prefix, m->pool, m->max_draft > 0, NULL), FATHOM_OK);
        if (m->with_tiers) sched_sim_open_tiers(m);
    }
    assert_int_equal(sched_create(&m->s, c, m->pool, m->prefix, NULL), FATHOM_OK);
    for (uint32_t i = 0; i < m->max_flight; i++) {
        assert_int_equal(plan_init(&m->flights[i].plan, c->max_num_seqs), FATHOM_OK);
    }
    m->first_flight = m->n_flight = 0;
    m->plan = &m->flights[0].plan;
}

/* With no request left, every page can be taken. */
static void close_world(struct sim *m)
{
    assert_null(sched_any(m->s));
    assert_int_equal(page_pool_n_available(m->pool), m->n_page);
    if (!m->prefix) assert_int_equal(page_pool_n_free(m->pool), m->n_page);
    const struct sched_totals *t = sched_totals(m->s);
    m->totals.n_preempted += t->n_preempted;
    m->totals.n_query_token += t->n_query_token;
    m->totals.n_hit_token += t->n_hit_token;
    for (uint32_t i = 0; i < m->max_flight; i++) plan_fini(&m->flights[i].plan);
    sched_destroy(m->s);
    prefix_destroy(m->prefix);
    sched_sim_close_tiers(m);
    page_pool_destroy(m->pool);
}

static void run_episode(struct sim *m)
{
    struct sched_config c;
    m->n_page = between(m, 2, MAX_PAGE);
    m->short_prompt = between(m, 1, 200);
    m->short_output = between(m, 1, 600);
    m->arrival_per_1024 = between(m, 1, 512);
    m->cancel_per_1024 = between(m, 0, 1) ? 0 : between(m, 1, 128);
    m->fail_per_1024 = between(m, 0, 1) ? 0 : between(m, 1, 64);
    m->patience_us = between(m, 0, 1) ? 0 : between(m, 1, 400);
    draw_load(m, &c);
    open_world(m, &c);
    for (int i = 0; i < EPISODE_STEPS && m->n_step < n_step_wanted; i++) {
        if (rng_below(&m->rng, 1024) < m->arrival_per_1024) arrive(m);
        if (rng_below(&m->rng, 1024) < m->arrival_per_1024) arrive(m);
        if (rng_below(&m->rng, 1024) < m->cancel_per_1024) cancel(m);
        step(m, c.max_num_batched_tokens);
    }
    while (is_busy(m)) step(m, c.max_num_batched_tokens);
    close_world(m);
}

/* A small load, whose first request is cancelled before step number `cancel_at`. Returns whether
 * it lived until then. */
static bool run_small(struct sim *m, uint64_t load_seed, uint32_t cancel_at)
{
    struct sched_config c;
    struct job *first = &m->jobs[0];
    bool cancelled = false;
    m->rng = load_seed;
    m->n_page = between(m, 2, 8);
    m->short_prompt = between(m, 1, 150);
    m->short_output = between(m, 1, 12);
    m->fail_per_1024 = between(m, 0, 3) ? 0 : 64;
    m->patience_us = 0;
    draw_load(m, &c);
    if (c.max_num_batched_tokens < 16) c.max_num_batched_tokens = 16;
    if (m->max_output > m->short_output) m->max_output = m->short_output;
    open_world(m, &c);
    uint32_t n_request = between(m, 1, 4);
    for (uint32_t i = 0; i < n_request || is_busy(m); i++) {
        if (i < n_request) arrive(m);
        if (i == cancel_at && first->live) {
            end_job(m, &first->r, REQUEST_FINISH_CANCEL);
            cancelled = true;
        }
        step(m, c.max_num_batched_tokens);
    }
    close_world(m);
    platter_destroy(m->platter); /* the load is the same every time */
    m->platter = NULL;
    return cancelled;
}

static void a_cancel_before_any_step_gives_every_page_back(void **state)
{
    (void)state;
    struct sim *m = &sim;
    uint64_t loads = seed;
    uint64_t n_run = 0;
    for (int i = 0; i < N_SMALL; i++) {
        uint64_t load_seed = rng_next(&loads);
        for (uint32_t at = 0; run_small(m, load_seed, at); at++) n_run++;
    }
    print_message("seed=%" PRIu64 " loads=%d cancels=%" PRIu64 " steps=%" PRIu64 "\n", seed,
                  N_SMALL, n_run, m->n_step);
    assert_true(n_run > 4 * N_SMALL);
    memset(m, 0, sizeof *m);
}

static void any_load_runs_to_its_end_with_every_invariant(void **state)
{
    (void)state;
    struct sim *m = &sim;
    m->rng = seed;
    uint64_t start_us = clock_now_us();
    while (m->n_step < n_step_wanted) run_episode(m);
    double seconds = (double)(clock_now_us() - start_us + 1) * 1e-6;
    print_message("seed=%" PRIu64 " steps=%" PRIu64 " tokens=%" PRIu64 " requests=%" PRIu64
                  " cancelled=%" PRIu64 " preempted=%" PRIu64 " found=%" PRIu64 " of=%" PRIu64
                  " drafts=%" PRIu64 " accepted=%" PRIu64 " failed=%" PRIu64 " expired=%" PRIu64
                  " ahead=%" PRIu64 " (under way 2: %" PRIu64 ", 3: %" PRIu64 ", 4: %" PRIu64
                  ") in_vain=%" PRIu64 " beside=%" PRIu64 " held=%" PRIu64
                  " steps_per_minute=%.0f\n",
                  seed, m->n_step, m->n_token, m->n_request, m->n_cancel, m->totals.n_preempted,
                  m->totals.n_hit_token, m->totals.n_query_token, m->n_draft, m->n_accepted,
                  m->n_failed, m->n_expired, m->n_ahead, m->n_deep[2], m->n_deep[3], m->n_deep[4],
                  m->n_in_vain, m->n_beside, m->n_held, (double)m->n_step / seconds * 60);
    assert_true(m->totals.n_preempted > 0 && m->n_cancel > 0 && m->totals.n_hit_token > 0);
    assert_true(m->n_score > 0 && m->n_failed > 0 && m->n_expired > 0);
    assert_true(m->n_ahead > 0 && m->n_in_vain > 0 && m->n_beside > 0 && m->n_held > 0);
    assert_true(m->n_deep[2] > 0 && m->n_deep[3] > 0 && m->n_deep[4] > 0);
    assert_true(m->n_accepted > 0 && m->n_draft > m->n_accepted);
    const struct tiers_stats *t = &m->tier_totals;
    print_message("tiers: kept=%" PRIu64 " written=%" PRIu64 " read=%" PRIu64 " restored=%" PRIu64
                  "+%" PRIu64 " dropped=%" PRIu64 " write_failed=%" PRIu64 " damaged=%" PRIu64
                  " failed=%" PRIu64 " idle_steps=%" PRIu64 "\n",
                  t->n_kept, t->n_written, t->n_read, t->n_restored_ram, t->n_restored_disk,
                  t->n_dropped, t->n_write_failed, t->n_rejected[TIER_BAD_CHECKSUM],
                  t->n_rejected[TIER_BAD_IO] + t->n_rejected[TIER_BAD_TRUNCATED], m->n_idle_step);
    assert_true(t->n_restored_ram > 0 && t->n_restored_disk > 0 && t->n_write_failed > 0);
    assert_true(t->n_rejected[TIER_BAD_CHECKSUM] > 0 && t->n_rejected[TIER_BAD_IO] > 0);
    assert_true(t->n_dropped > 0 && m->n_idle_step > 0);
    platter_destroy(m->platter);
}

int main(int argc, char **argv)
{
    if (argc > 1) n_step_wanted = strtoull(argv[1], NULL, 10);
    if (argc > 2) seed = strtoull(argv[2], NULL, 10);
    print_message("test_sched_sim %" PRIu64 " %" PRIu64 "\n", n_step_wanted, seed);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_cancel_before_any_step_gives_every_page_back),
        cmocka_unit_test(any_load_runs_to_its_end_with_every_invariant),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
