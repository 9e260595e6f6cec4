/* sched_plan.c - making plans, taking pages for them, and committing computed steps
 *
 * Invariants
 *
 *   1. A live request is in exactly one list, that of its state. Lists are in the order of turn.h.
 *   2. Every RUNNING or FETCHING request comes before every WAITING one that has the same or a
 *      higher priority number: admission is in order, and preemption takes the last first. So among
 *      requests of one priority nobody is overtaken for ever.
 *   3. RUNNING and FETCHING requests <= max_num_seqs.
 *   4. A page has one holder for each RUNNING or FETCHING request that has it in
 *      pages[0 .. n_page), and one if it is a guest's page. With a prefix cache, every full page of
 *      a RUNNING request is published, and so is every filled page of a FETCHING one. The cache
 *      finds them by the request's tokens. Nobody writes to a published page.
 *   5. Plans under way have been made and not committed. There are at most max_flight of them, in a
 *      ring, oldest first. The entries of one request in them follow each other: the first begins
 *      at n_computed, each later one where the one before ends, and n_planned is the sum of their
 *      tokens. All plans but the oldest are made ahead. A plan made ahead has one token for each
 *      request of the plan before it, in the same order, without the requests that reach their full
 *      length in that plan. A request that has ended for another reason is in no plan. With several
 *      stages no plan is made ahead, and a request is in at most one of them.
 *   6. After a sched_plan with nothing else under way and no request held or held back: if a
 *      request is live, the first RUNNING one has an entry or one is FETCHING. The first request
 *      may take the pages of all others, one request of any legal length fits into the pool, and
 *      FETCHING has a time limit. So all work comes to its end.
 *
 * Pages. A request is admitted with the pages of all its known tokens, and only if as many more
 * pages are available as requests hold pages. So each of them can grow by a page before a request
 * is preempted for it. The leading pages come from the prefix cache as far as it has them. The page
 * of the last token never does, because that token's logits are wanted. Later the request takes one
 * page whenever its newest token begins one. With drafts it also takes pages for the positions of
 * its drafts and of the drafts after those, if no request must be preempted for them.
 *
 * Fetching. If the tiers have more pages of a request than the cache, the request takes its pages
 * as others do, and is FETCHING until they have been filled from the tiers. Requests behind it are
 * admitted meanwhile. Filling stops when all pages have come, when one is not to be had, or when
 * computing them would have been faster. The request then runs from where it got to.
 *
 * Kinds of rows. With prompt_form an entry has prompt rows or answer rows, not both: a chunk ends
 * where its request's answer begins. Entries of answer rows come first in a plan.
 *
 * Budget. Decodes (gap 1) have priority over wider gaps. One walk in order does both: a wider gap
 * may only use what the decodes still to be visited do not need. The first request always gets one
 * token. The last request is always ahead of the walk, so preempting it never undoes an entry.
 * While any request decodes, wider gaps together get at most bounds.max_prefill tokens, so that a
 * step is never much longer than a decode. Requests that want logits of their prompts divide
 * max_score among them, and get no more tokens than that allows. Such a request goes on from cached
 * pages only when it has all its logits.
 *
 * Stages. A plan made while others are under way takes only requests that are in none of them, and
 * only a share of those: of R that can run on P stages, R / P rounded up. Requests under way or
 * held keep their pages. A request that needs one of these pages pauses until the last request's
 * step is over. Being earlier in order, it is then planned first and preempts the last one.
 *
 * Planning ahead (overlap scheduling). Steps under way write only to pages that their requests held
 * when they were planned. Such a page may be given back before the step has run: when its request
 * ends, or goes on with an equal page of the prefix cache. That is safe. Steps run one after the
 * other, so the page's next holder writes to it in a later step. And the page is FREE, not CACHED:
 * rows computed in vain lie at n_computed or later, and published rows lie before it. */
#include "sched/sched.h"

#include "base/assert.h"
#include "base/fail.h"
#include "base/mem.h"
#include "kv/tiers.h"
#include "sched/sched_int.h"

/* What one sched_plan still has to give, as it walks over the requests. */
struct walk {
    struct plan *plan;
    uint32_t n_prompt_entry; /* entries in s->prompts, which go behind the plan's other entries */
    uint32_t left;           /* tokens left of the budget */
    uint32_t prefill;        /* how many of those wider gaps may take */
    uint32_t score;          /* rows of prompt logits left */
    uint32_t n_decode;       /* RUNNING requests with gap 1 that the walk has not reached */
    uint32_t n_place;        /* entries that the plan may still get */
    bool short_of_pages;
};

static uint32_t least(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

fathom_err plan_init(struct plan *p, uint32_t max_num_seqs)
{
    *p = (struct plan){0};
    p->entries = mem_calloc(max_num_seqs, sizeof *p->entries);
    return p->entries ? FATHOM_OK : FATHOM_ENOMEM;
}

void plan_fini(struct plan *p)
{
    mem_free(p->entries);
    *p = (struct plan){0};
}

fathom_err sched_create(struct sched **out, const struct sched_config *c, struct page_pool *pool,
                        struct prefix_cache *prefix, fathom_diag *d)
{
    *out = NULL;
    if (c->max_num_batched_tokens == 0) {
        FAIL(d, FATHOM_EINVAL, "max_num_batched_tokens is 0, needed is at least 1");
    }
    if (c->max_num_seqs == 0) FAIL(d, FATHOM_EINVAL, "max_num_seqs is 0, needed is at least 1");
    if (c->max_score == 0) FAIL(d, FATHOM_EINVAL, "max_score is 0, needed is at least 1");
    if (c->max_flight == 0) FAIL(d, FATHOM_EINVAL, "max_flight is 0, needed is at least 1");
    struct sched *s = mem_calloc(1, sizeof *s);
    if (!s) FAIL(d, FATHOM_ENOMEM, "no memory for the scheduler");
    s->config = *c;
    s->bounds = (struct sched_bounds){.max_running = c->max_num_seqs,
                                      .max_prefill = c->max_num_batched_tokens};
    s->pool = pool;
    s->prefix = prefix;
    s->n_seen = mem_calloc(page_pool_n_page(pool), sizeof *s->n_seen);
    s->prompts = mem_calloc(c->max_num_seqs, sizeof *s->prompts);
    s->ring = mem_calloc(c->max_flight, sizeof(struct plan *));
    if (!s->n_seen || !s->prompts || !s->ring) {
        sched_destroy(s);
        FAIL(d, FATHOM_ENOMEM, "no memory for the scheduler's page counts and plans");
    }
    *out = s;
    return FATHOM_OK;
}

void sched_destroy(struct sched *s)
{
    if (!s) return;
    mem_free(s->n_seen);
    mem_free(s->prompts);
    mem_free(s->ring);
    mem_free(s);
}

/* ---- plans under way ---- */

static void push_flight(struct sched *s, struct plan *p)
{
    ASSERT(s->n_flight < s->config.max_flight);
    s->ring[(s->first_flight + s->n_flight++) % s->config.max_flight] = p;
}

static void pop_flight(struct sched *s)
{
    s->first_flight = (s->first_flight + 1) % s->config.max_flight;
    s->n_flight--;
}

static bool is_flight(const struct sched *s, const struct plan *p)
{
    for (uint32_t i = 0; i < s->n_flight; i++) {
        if (flight(s, i) == p) return true;
    }
    return false;
}

static void take_out(struct plan *p, struct request *r)
{
    uint32_t i = 0;
    while (i < p->n_entry && p->entries[i].request != r) i++;
    if (i == p->n_entry) return;
    ASSERT(p->entries[i].n_token <= r->n_planned);
    r->n_planned -= p->entries[i].n_token;
    p->n_entry--;
    for (; i < p->n_entry; i++) p->entries[i] = p->entries[i + 1];
}

static void take_out_of_flights(struct sched *s, struct request *r)
{
    for (uint32_t i = 0; r->n_planned > 0; i++) take_out(flight(s, i), r);
}

/* ---- requests come and go ---- */

void sched_add(struct sched *s, struct request *r)
{
    ASSERT(request_n_page(r->max_token) <= page_pool_n_page(s->pool));
    const uint32_t n_lane = s->config.n_lane ? s->config.n_lane : 1;
    request_enter(r, s->n_arrived++ * n_lane + s->config.lane);
    s->closed = false;
    turns_give(&s->turns, r);
    request_list_insert(&s->waiting, r);
}

bool sched_may_withdraw(const struct request *r)
{
    return r->state == REQUEST_WAITING && r->n_preempted == 0 && r->fetch.start_us == 0;
}

void sched_withdraw(struct sched *s, struct request *r)
{
    ASSERT(sched_may_withdraw(r) && r->n_page == 0);
    request_list_remove(&s->waiting, r);
    s->closed = false;
    request_leave(r);
}

static struct request_list *list_of(struct sched *s, enum request_state state)
{
    ASSERT(state == REQUEST_WAITING || state == REQUEST_FETCHING || state == REQUEST_RUNNING);
    return state == REQUEST_RUNNING    ? &s->running
           : state == REQUEST_FETCHING ? &s->fetching
                                       : &s->waiting;
}

static void give_pages(struct sched *s, struct request *r)
{
    /* Last page first. Free pages are a stack, so they are taken again in the same order; and a
     * cached page is evicted before the page that it follows (prefix.c). */
    while (r->n_page > 0) {
        uint32_t page = r->pages[--r->n_page];
        page_pool_give(s->pool, page);
        if (s->prefix) prefix_offer(s->prefix, page);
    }
    r->n_published = 0;
}

/* Tells the server that lends pages for this request that it need not keep them any more. */
static void leave_peer(const struct sched *s, struct request *r)
{
    const struct prefix_text text = text_of(s, r);
    if (r->peer_lends && s->prefix) {
        prefix_leave_peer(s->prefix, &text);
        if (r->has_hand_over && prefix_tiers(s->prefix))
            tiers_release(prefix_tiers(s->prefix), r->peer, &r->hand_over);
    }
    r->peer_lends = false;
}

void sched_end(struct sched *s, struct request *r, enum request_finish why, uint64_t now_us)
{
    take_out_of_flights(s, r);
    leave_peer(s, r);
    s->closed = false;
    request_list_remove(list_of(s, r->state), r);
    for (uint32_t i = r->n_page; s->prefix && i > 0; i--)
        prefix_end_answer(s->prefix, r->pages[i - 1]);
    give_pages(s, r);
    request_end(r, why, now_us);
}

void sched_set_bounds(struct sched *s, const struct sched_bounds *bounds)
{
    ASSERT(bounds->max_running >= 1 && bounds->max_prefill >= 1);
    s->bounds = *bounds;
}

void sched_lend(struct sched *s, const struct request *r, uint32_t n_token, uint32_t least_gap)
{
    ASSERT(r && r->n_planned == 0 && r->n_draft == 0 && r->n_to_score == 0);
    s->lent.request = r;
    s->lent.n_token = n_token;
    s->lent.least = least_gap;
}

void sched_hold_back(struct sched *s, const struct request *r)
{
    ASSERT(s->n_flight == 0 && r->n_planned == 0 && r->state != REQUEST_FINISHED);
    s->held_back = r;
}

bool sched_take_guest(struct sched *s, uint32_t *pages, uint32_t n)
{
    ASSERT(s->n_guest_page == 0 && n >= 1);
    if ((uint64_t)n + n_holding(s) > page_pool_n_available(s->pool)) return false;
    for (uint32_t i = 0; i < n; i++) {
        bool taken = page_pool_take(s->pool, &pages[i]);
        ASSERT(taken);
    }
    s->guest = pages;
    s->n_guest_page = n;
    return true;
}

void sched_give_guest(struct sched *s)
{
    while (s->n_guest_page > 0) page_pool_give(s->pool, s->guest[--s->n_guest_page]);
}

/* Whether the request is in no plan under way and not held. */
static bool is_free(const struct request *r)
{
    ASSERT(r->state == REQUEST_RUNNING || (r->n_planned == 0 && !r->is_held));
    return r->n_planned == 0 && !r->is_held;
}

/* The last request that holds pages. */
static struct request *last_holder(const struct sched *s)
{
    struct request *r = s->running.tail;
    struct request *f = s->fetching.tail;
    return !r || (f && request_is_before(r, f)) ? f : r;
}

static void preempt_last(struct sched *s, struct walk *w)
{
    struct request *r = last_holder(s);
    bool has_run = r->state == REQUEST_RUNNING;
    if (has_run && request_gap(r) == 1) w->n_decode--;
    request_list_remove(list_of(s, r->state), r);
    give_pages(s, r);
    if (has_run) {
        request_preempt(r);
        s->totals.n_preempted++;
    } else {
        request_stop_fetch(r);
    }
    request_list_insert(&s->waiting, r);
    w->short_of_pages = true;
}

/* Takes pages for the first n_token tokens of r, preempting later requests if needed. False: no
 * page is left, and r itself is the last request that holds pages, or the last is under way. */
static bool take_pages(struct sched *s, struct walk *w, struct request *r, uint32_t n_token)
{
    while (r->n_page < request_n_page(n_token)) {
        if (page_pool_take(s->pool, &r->pages[r->n_page])) {
            r->n_page++;
        } else if (s->n_guest_page > 0) {
            sched_give_guest(s);
        } else if (last_holder(s) != r && is_free(last_holder(s))) {
            preempt_last(s, w);
        } else {
            w->short_of_pages = true;
            return false;
        }
    }
    return true;
}

/* How many drafts of r fit beside n_known tokens. Takes pages for them and for the next drafts. */
static uint32_t fit_drafts(struct sched *s, const struct walk *w, struct request *r,
                           uint32_t n_known)
{
    if (s->config.max_draft == 0) return 0;
    ASSERT(n_known <= w->left);
    uint32_t spare = w->left - n_known;
    spare -= w->n_decode < spare ? w->n_decode : spare;
    uint32_t n_draft = r->n_draft < spare ? r->n_draft : spare;
    uint64_t end = (uint64_t)r->n_token + n_draft + s->config.max_draft - 1;
    if (end > r->max_token) end = r->max_token;
    while (r->n_page < request_n_page((uint32_t)end) &&
           page_pool_take(s->pool, &r->pages[r->n_page])) {
        r->n_page++;
    }
    uint32_t room = r->n_page * (uint32_t)KV_PAGE_TOKENS - r->n_token;
    return n_draft < room ? n_draft : room;
}

/* How many of the next n tokens of r fit into the step's w->score remaining rows of logits. */
static uint32_t fit_score(const struct walk *w, const struct request *r, uint32_t n)
{
    uint32_t n_scored = request_n_scored(r);
    uint32_t n_left = r->n_to_score - n_scored;
    if (n_left <= w->score) return n;
    uint32_t room = n_scored - r->n_computed + w->score;
    return n < room ? n : room;
}

/* How many of the next n_known tokens of r have their logits wanted. */
static uint32_t count_score(const struct request *r, uint32_t n_known)
{
    uint32_t n_scored = request_n_scored(r);
    uint32_t end = r->n_computed + n_known;
    if (end > r->n_to_score) end = r->n_to_score;
    return end > n_scored ? end - n_scored : 0;
}

/* How many tokens of r other lanes have offered to compute in this step (sched_lend). */
static uint32_t lent_to(const struct sched *s, const struct request *r)
{
    if (s->lent.request != r || r->n_computed >= r->n_prompt) return 0;
    return gap_of_kind(s, r) >= s->lent.least ? s->lent.n_token : 0;
}

/* Adds an entry for the next n_known tokens of r, n_lent of which are beyond the budget. */
static void add_entry(struct sched *s, struct walk *w, struct request *r, uint32_t n_known,
                      uint32_t n_lent)
{
    struct plan *p = w->plan;
    bool draws = n_known == request_gap(r);
    bool is_prompt = s->config.prompt_form && r->n_computed < r->n_prompt;
    uint32_t n_draft = draws && !is_prompt ? fit_drafts(s, w, r, n_known - n_lent) : 0;
    uint32_t n_token = n_known + n_draft;
    uint32_t n_score = count_score(r, n_known);
    ASSERT(n_known > n_lent && n_known <= request_gap(r) && r->n_planned == 0);
    ASSERT(n_token - n_lent <= w->left && n_score <= w->score && (n_lent == 0 || n_draft == 0));
    ASSERT(p->n_entry + w->n_prompt_entry < s->config.max_num_seqs && w->n_place > 0);
    w->n_place--;
    ASSERT(!is_prompt || r->n_computed + n_token <= r->n_prompt);
    *(is_prompt ? &s->prompts[w->n_prompt_entry++] : &p->entries[p->n_entry++]) =
        (struct plan_entry){.request = r,
                            .first = r->n_computed,
                            .n_token = n_token,
                            .n_draft = n_draft,
                            .n_score = n_score,
                            .draws = draws,
                            .is_prompt = is_prompt,
                            .is_lent = n_draft == 0 && lent_to(s, r) > 0,
                            .n_lent = n_lent};
    p->n_token += n_token;
    p->n_lent += n_lent;
    p->n_score += n_score;
    w->score -= n_score;
    p->n_draw += draws ? 1 + n_draft : 0;
    if (r->n_computed + n_token > p->max_context) p->max_context = r->n_computed + n_token;
    r->n_planned = n_token;
    w->left -= n_token - n_lent;
    const uint32_t n_own = n_known - n_lent;
    if (request_gap(r) > 1) w->prefill -= n_own < w->prefill ? n_own : w->prefill;
}

/* Adds an entry for up to `room` tokens of a gap, and for what other lanes compute beyond that. */
static void add_gap(struct sched *s, struct walk *w, struct request *r, uint32_t gap, uint32_t room)
{
    const uint32_t n_token = fit_score(w, r, least(gap, room));
    const uint32_t n_lent = n_token == room ? least(gap - n_token, lent_to(s, r)) : 0;
    if (n_token == 0) return;
    if (take_pages(s, w, r, r->n_computed + n_token + n_lent))
        add_entry(s, w, r, n_token + n_lent, n_lent);
}

static bool is_held_back(const struct sched *s, const struct request *r)
{
    return s->held_back && !request_is_before(r, s->held_back);
}

static void plan_running(struct sched *s, struct walk *w, struct request *r)
{
    uint32_t gap = gap_of_kind(s, r);
    uint32_t room = w->left;
    if (request_gap(r) == 1) {
        w->n_decode--;
    } else if (is_held_back(s, r)) {
        return;
    } else {
        room -= w->n_decode < room ? w->n_decode : room;
        if (room > w->prefill) room = w->prefill;
        if (room == 0 && r == s->running.head) room = 1;
    }
    add_gap(s, w, r, gap, room);
}

struct sched_findings sched_look_up(const struct sched *s, struct request *r)
{
    struct sched_findings f = {0};
    if (!is_found(s, r)) return f;
    const struct prefix_text text = text_of(s, r);
    f.n_page = prefix_find(s->prefix, &text, r->n_token, r->pages);
    f.match = prefix_find_tiers(s->prefix, &text, r->n_token, r->pages, f.n_page);
    return f;
}

uint32_t sched_n_found(const struct sched *s, struct request *r)
{
    ASSERT(r->state == REQUEST_NEW);
    if (!s->prefix || r->n_to_score > 0) return 0;
    const struct prefix_text text = text_of(s, r);
    return prefix_find(s->prefix, &text, r->n_prompt + r->n_given, r->pages);
}

/* Whether there are pages for r, and one more for each request that holds pages. A page that was
 * found and is CACHED counts too: taking it makes one fewer available. */
static bool has_room(const struct sched *s, const struct request *r, uint32_t n_found)
{
    uint64_t n_take = request_n_page(r->n_token) - n_found;
    for (uint32_t i = 0; i < n_found; i++) {
        n_take += page_pool_state(s->pool, r->pages[i]) == PAGE_CACHED;
    }
    return n_take + n_holding(s) <= page_pool_n_available(s->pool);
}

/* The same, after giving back a guest's pages if there is no room otherwise. */
static bool make_room(struct sched *s, const struct request *r, uint32_t n_found)
{
    if (!has_room(s, r, n_found)) sched_give_guest(s);
    return has_room(s, r, n_found);
}

/* A fetch from a peer may take so long. It ends earlier if no page has come for TIERS_STALL_US, and
 * the peer has not said that it is busy for longer (tiers_pull_until_us). */
#define PEER_PATIENCE_US 60000000

/* Fills the pages that can be filled now. Returns whether the request can run from there. */
static bool go_on_fetching(struct sched *s, struct request *r, uint64_t now_us)
{
    const struct request_fetch *f = &r->fetch;
    struct tiers *tiers = prefix_tiers(s->prefix);
    const struct prefix_text text = text_of(s, r);
    uint32_t n_filled;
    enum prefix_fetch got =
        prefix_fetch(s->prefix, &text, r->pages, r->n_published, f->end, &n_filled);
    request_fill(r, n_filled, now_us);
    uint32_t n_page = r->n_published - f->first;
    uint64_t took_us = now_us - f->start_us;
    uint64_t patience_us = f->from_peer ? PEER_PATIENCE_US : 0;
    if (!f->from_peer) patience_us = tiers_patience_us(tiers, f->end - f->first);
    bool is_busy = f->from_peer && now_us < tiers_pull_until_us(tiers, r->peer);
    bool stalls = now_us - f->moved_us > TIERS_STALL_US && !is_busy && got != PREFIX_FETCH_HERE;
    bool waits = got == PREFIX_FETCH_WAIT || got == PREFIX_FETCH_HERE;
    if (r->fetch.failed || (waits && !stalls && took_us <= patience_us)) return false;
    if (f->from_peer && waits) tiers_give_up(tiers, r->arrival);
    if (!f->from_peer) tiers_note_fetch(tiers, n_page, f->from_disk, took_us);
    r->fetch.failed = f->from_peer && r->needs_peer && got != PREFIX_FETCHED;
    if (f->all_from_peer && got == PREFIX_FETCHED) r->peer_lends = false; /* it has sent all */
    return !r->fetch.failed;
}

/* Lends r's published pages from `first` on to other servers; is_new: they were just computed. */
static void share_pages(struct sched *s, const struct request *r, uint32_t first, bool is_new,
                        uint64_t now_us)
{
    if (r->lend_us == 0) return;
    for (uint32_t i = first; i < r->n_published; i++)
        prefix_share(s->prefix, r->pages[i], now_us + r->lend_us, is_new);
}

/* To RUNNING, from WAITING or FETCHING. The request has been taken out of its list. */
static void start(struct sched *s, struct request *r, uint64_t now_us)
{
    uint32_t n_found = r->n_published * KV_PAGE_TOKENS;
    /* tokens found in the cache: without a fetch all that were found, else those before it */
    bool fetched = r->state == REQUEST_FETCHING;
    uint32_t n_here = fetched ? r->fetch.first * KV_PAGE_TOKENS : n_found;
    request_admit(r, n_found, now_us);
    if (is_found(s, r) && r->n_preempted == 0) {
        s->totals.n_query_token += r->n_prompt;
        s->totals.n_hit_token += r->n_cached; /* of the prompt */
        s->totals.n_fetched_token += r->n_cached > n_here ? r->n_cached - n_here : 0;
    }
    leave_peer(s, r);
    share_pages(s, r, 0, false, now_us);
    request_list_insert(&s->running, r);
}

/* Admits the first WAITING request to RUNNING or FETCHING; false: there are not enough pages. */
static bool admit(struct sched *s, struct walk *w, struct request *r, uint64_t now_us)
{
    if (1 + (uint64_t)n_holding(s) > page_pool_n_available(s->pool)) sched_give_guest(s);
    w->short_of_pages = 1 + (uint64_t)n_holding(s) > page_pool_n_available(s->pool);
    if (w->short_of_pages) return false; /* the page of its last token is never found */
    const struct sched_findings found = sched_look_up(s, r);
    w->short_of_pages = !make_room(s, r, found.n_page);
    if (w->short_of_pages) return false;
    request_list_remove(&s->waiting, r);
    for (uint32_t i = 0; i < found.n_page; i++) page_pool_ref(s->pool, r->pages[i]);
    r->n_page = r->n_published = found.n_page;
    turns_note_admitted(&s->turns, r);
    while (r->n_page < request_n_page(r->n_token)) {
        bool taken = page_pool_take(s->pool, &r->pages[r->n_page]);
        ASSERT(taken);
        r->n_page++;
    }
    if (found.match.n_page > 0) {
        const struct request_fetch fetch = {.first = found.n_page,
                                            .end = found.n_page + found.match.n_page,
                                            .from_disk = found.match.n_disk > 0,
                                            .from_peer = found.match.n_peer > 0,
                                            .all_from_peer =
                                                r->has_peer && found.match.n_peer == r->peer_end,
                                            .start_us = now_us,
                                            .moved_us = now_us};
        request_start_fetch(r, &fetch);
        if (!go_on_fetching(s, r, now_us)) {
            request_list_insert(&s->fetching, r);
            return true;
        }
    }
    start(s, r, now_us);
    return true;
}

static void fetch_more(struct sched *s, uint64_t now_us)
{
    struct request *next;
    for (struct request *r = s->fetching.head; r; r = next) {
        next = r->next;
        if (!go_on_fetching(s, r, now_us)) continue;
        request_list_remove(&s->fetching, r);
        start(s, r, now_us);
    }
}

static void plan_clear(struct plan *p)
{
    *p = (struct plan){.entries = p->entries};
}

/* Moves the entries of prompts behind the others, and numbers tokens, draws and scored rows. */
static void put_in_order(const struct sched *s, const struct walk *w)
{
    struct plan *p = w->plan;
    uint32_t n_token = 0, n_draw = 0, n_score = 0;
    for (uint32_t i = 0; i < w->n_prompt_entry; i++) p->entries[p->n_entry++] = s->prompts[i];
    for (uint32_t i = 0; i < p->n_entry; i++) {
        struct plan_entry *e = &p->entries[i];
        e->i_token = n_token;
        e->i_draw = n_draw;
        e->i_score = n_score;
        n_token += e->n_token;
        n_draw += e->draws ? 1 + e->n_draft : 0;
        n_score += e->n_score;
    }
    ASSERT(n_token == p->n_token && n_draw == p->n_draw && n_score == p->n_score);
}

/* How many entries a plan may have: a stage's share of the requests that can run. */
static uint32_t share_of_stage(const struct sched *s)
{
    const uint32_t n_stage = s->config.n_stage, holding = n_holding(s);
    if (n_stage <= 1) return s->config.max_num_seqs;
    uint32_t most = s->config.max_num_seqs;
    if (s->bounds.max_running < most) most = s->bounds.max_running;
    const uint32_t room = most > holding ? most - holding : 0;
    const uint32_t n_new = s->waiting.n < room ? s->waiting.n : room;
    const uint32_t n = (s->running.n + n_new + n_stage - 1) / n_stage;
    return n > 0 ? n : 1;
}

static bool any_under_way(const struct sched *s)
{
    bool any = s->n_flight > 0;
    for (const struct request *r = s->running.head; r && !any; r = r->next) any = r->is_held;
    return any;
}

void sched_plan(struct sched *s, uint64_t now_us, struct plan *plan)
{
    const bool is_beside = any_under_way(s);
    ASSERT(s->n_flight == 0 || (s->config.n_stage > 1 && s->n_flight < s->config.max_flight));
    ASSERT(!is_flight(s, plan) && (!is_beside || s->config.n_stage > 1));
    plan_clear(plan);
    struct walk w = {.plan = plan,
                     .left = s->config.max_num_batched_tokens,
                     .score = s->config.max_score,
                     .n_place = share_of_stage(s)};
    fetch_more(s, now_us);
    for (const struct request *r = s->running.head; r; r = r->next) {
        if (is_free(r) && request_gap(r) == 1) w.n_decode++;
    }
    w.prefill = w.n_decode > 0 || s->bounds.paces_others ? s->bounds.max_prefill : w.left;
    for (struct request *r = s->running.head; r && w.n_place > 0; r = r->next) {
        if (is_free(r)) plan_running(s, &w, r);
    }

    while (s->waiting.head && w.left > 0 && w.prefill > 0 && !w.short_of_pages && !is_full(s)) {
        struct request *r = s->waiting.head;
        const bool is_held = is_held_back(s, r);
        if (is_held && (r != s->held_back || !sched_look_up(s, r).match.n_page)) break;
        if (w.n_place == 0 || fit_score(&w, r, 1) == 0 || !admit(s, &w, r, now_us)) break;
        if (is_held || r->state == REQUEST_FETCHING) continue;
        add_gap(s, &w, r, gap_of_kind(s, r), least(w.left, w.prefill));
    }
    put_in_order(s, &w);
    s->n_left = least(w.left, w.prefill);
    s->lent.request = NULL;
    s->short_of_pages = s->closed = w.short_of_pages;
    if (plan->n_entry > 0) push_flight(s, plan);
    ASSERT(is_beside || s->fetching.head || s->held_back ||
           (s->running.head ? s->running.head->n_planned > 0 : !sched_any(s)));
    s->held_back = NULL;
}

/* Whether all but the ids is certain about the step after `plan`, the newest under way. */
static bool is_foreseen(const struct sched *s, const struct plan *plan)
{
    if (s->config.max_draft > 0 || s->fetching.head) return false;
    if (s->waiting.head && !is_full(s) && !s->closed) return false;
    /* A request that runs but is not in the plan pauses or ends, so another may be admitted. */
    if (plan->n_entry < s->running.n && s->waiting.head) return false;
    for (const struct request *r = s->running.head; r; r = r->next) {
        if (r->n_planned == 0) return false;
    }
    for (uint32_t i = 0; i < plan->n_entry; i++) {
        if (!plan->entries[i].draws) return false;
    }
    return true;
}

/* How many tokens an entry's request has after the step; 0: its length ends it in that step. */
static uint32_t n_token_after(const struct plan_entry *e)
{
    uint32_t n = e->first + e->n_token + 1;
    return n < e->request->max_token ? n : 0;
}

bool sched_plan_ahead(struct sched *s, const struct plan *plan, struct plan *next)
{
    ASSERT(s->config.n_stage <= 1);
    ASSERT(s->n_flight > 0 && plan == flight(s, s->n_flight - 1) && !is_flight(s, next));
    if (s->n_flight == s->config.max_flight || !is_foreseen(s, plan)) return false;
    uint32_t n_entry = 0;
    uint32_t n_take = 0;
    for (uint32_t i = 0; i < plan->n_entry; i++) {
        uint32_t n_token = n_token_after(&plan->entries[i]);
        n_entry += n_token > 0;
        n_take += request_n_page(n_token) > plan->entries[i].request->n_page;
    }
    if (n_entry == 0 || n_take > page_pool_n_available(s->pool)) return false;
    plan_clear(next);
    next->is_ahead = true;
    for (uint32_t i = 0; i < plan->n_entry; i++) {
        const struct plan_entry *e = &plan->entries[i];
        struct request *r = e->request;
        uint32_t n_token = n_token_after(e);
        if (n_token == 0) continue;
        if (request_n_page(n_token) > r->n_page) {
            bool taken = page_pool_take(s->pool, &r->pages[r->n_page]);
            ASSERT(taken);
            r->n_page++;
        }
        uint32_t k = next->n_entry++;
        next->entries[k] = (struct plan_entry){.request = r,
                                               .first = n_token - 1,
                                               .n_token = 1,
                                               .draws = true,
                                               .i_token = k,
                                               .i_draw = k,
                                               .i_before = e->i_draw};
        if (n_token > next->max_context) next->max_context = n_token;
        r->n_planned++;
    }
    next->n_token = next->n_draw = next->n_entry;
    push_flight(s, next);
    return true;
}

bool sched_rests_after(const struct sched *s, const struct plan *plan)
{
    if (s->waiting.head || s->fetching.head) return false;
    uint32_t n_over = 0;
    for (uint32_t i = 0; plan && i < plan->n_entry; i++) {
        const struct plan_entry *e = &plan->entries[i];
        n_over += e->draws && n_token_after(e) == 0;
    }
    return n_over == s->running.n;
}

void sched_take_back(struct sched *s, const struct plan *next)
{
    ASSERT(next->is_ahead && s->n_flight > 1 && next == flight(s, s->n_flight - 1));
    for (uint32_t i = 0; i < next->n_entry; i++) next->entries[i].request->n_planned--;
    s->n_flight--;
}

static void publish_pages(struct sched *s, struct request *r)
{
    if (!s->prefix) return;
    const struct prefix_text text = text_of(s, r);
    for (; r->n_published < r->n_computed / KV_PAGE_TOKENS; r->n_published++) {
        uint32_t *page = &r->pages[r->n_published];
        uint32_t kept = prefix_publish(s->prefix, &text, r->pages, r->n_published);
        if (kept != *page) s->closed = false; /* its own page is free again */
        *page = kept;
    }
}

/* Appends the tokens drawn for an entry, up to the first that differs from the draft there. */
static enum request_finish push_drawn(struct request *r, uint32_t n_draft, const int32_t *drawn)
{
    for (uint32_t i = 0;; i++) {
        bool foreseen = i < n_draft && r->ids[r->n_token] == drawn[i];
        enum request_finish why = request_push(r, drawn[i]);
        if (why != REQUEST_FINISH_NONE || !foreseen) return why;
        r->n_computed++;
    }
}

void sched_commit(struct sched *s, const struct plan *plan, const int32_t *drawn, uint64_t now_us)
{
    ASSERT(plan == flight(s, 0));
    pop_flight(s);
    for (uint32_t i = 0; i < plan->n_entry; i++) {
        const struct plan_entry *e = &plan->entries[i];
        struct request *r = e->request;
        enum request_finish why = REQUEST_FINISH_NONE;
        ASSERT(e->first == r->n_computed && e->n_token <= r->n_planned);
        r->n_computed += e->n_token - e->n_draft;
        r->n_planned -= e->n_token;
        r->n_draft = 0;
        if (e->draws) {
            why = push_drawn(r, e->n_draft, drawn + e->i_draw);
            if (r->first_us == 0) r->first_us = now_us;
        }
        if (r->n_computed > r->n_reached) r->n_reached = r->n_computed;
        uint32_t n_published = r->n_published;
        publish_pages(s, r);
        share_pages(s, r, n_published, true, now_us);
        if (why != REQUEST_FINISH_NONE) sched_end(s, r, why, now_us);
    }
}

void sched_abort(struct sched *s)
{
    ASSERT(s->n_flight > 0);
    for (uint32_t k = 0; k < s->n_flight; k++) {
        const struct plan *p = flight(s, k);
        for (uint32_t i = 0; i < p->n_entry; i++) p->entries[i].request->n_planned = 0;
    }
    s->n_flight = 0;
}
