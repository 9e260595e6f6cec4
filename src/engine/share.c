/* share.c - which prompt is shared, where its rows are, and who computes which of them */
#include "engine/share.h"

#include "base/assert.h"
#include "base/fail.h"
#include "base/mem.h"
#include "engine/sequence.h"

fathom_err share_init(struct share *s, const struct share_config *c)
{
    const uint32_t n_page = request_n_page(c->max_context);
    ASSERT(c->n_lane >= 2 && c->n_lane <= PARALLEL_RANKS_MAX && c->least >= 1);
    *s = (struct share){.least = c->least < c->max_context ? c->least : c->max_context,
                        .max_num_seqs = c->max_num_seqs};
    s->parts = mem_calloc(c->n_lane, sizeof *s->parts);
    if (!s->parts) return FATHOM_ENOMEM;
    s->n_lane = c->n_lane;
    for (uint32_t i = 0; i < s->n_lane; i++) {
        s->parts[i].sched = c->scheds[i];
        s->parts[i].pages = mem_calloc(n_page, sizeof *s->parts[i].pages);
        if (!s->parts[i].pages) return FATHOM_ENOMEM;
        TRY(plan_init(&s->parts[i].plan, c->max_num_seqs));
    }
    return FATHOM_OK;
}

void share_fini(struct share *s)
{
    for (uint32_t i = 0; i < s->n_lane; i++) {
        mem_free(s->parts[i].pages);
        plan_fini(&s->parts[i].plan);
    }
    mem_free(s->parts);
    *s = (struct share){0};
}

/* ---- whose prompt --------------------------------------------------------------------------- */

/* Guests give their pages back. */
static void end_sharing(struct share *s)
{
    ASSERT(s->request && s->home < s->n_lane);
    for (uint32_t i = 0; i < s->n_lane; i++) sched_give_guest(s->parts[i].sched);
    s->request = NULL;
    s->n_known = 0;
}

/* Takes pages on all guests, unless they still have them from an earlier step; returns whether all
 * have them. There is room for the answer so far too: a request that was preempted may compute it
 * in one gap with its prompt. */
static bool take_pages(struct share *s, const struct request *r)
{
    const uint32_t n_page = request_n_page(r->n_token);
    ASSERT(s->request == r && n_page >= 1);
    for (uint32_t i = 0; i < s->n_lane; i++) {
        struct share_part *p = &s->parts[i];
        if (i == s->home || sched_n_guest_page(s->parts[i].sched) > 0) continue;
        s->n_known = 0;
        if (!sched_take_guest(s->parts[i].sched, p->pages, n_page)) return false;
    }
    return true;
}

/* Whether a lane owes much (share.h): `owed` of the `sum` tokens that all lanes owe. */
static bool owes_much(const struct share *s, uint64_t owed, uint64_t sum)
{
    ASSERT(owed <= sum);
    return owed > 0 && owed * 8 * s->n_lane >= sum * (8 + s->n_lane);
}

/* Whether a, of one lane, came before b, of another. */
static bool comes_before(struct request *a, struct request *b)
{
    if (a->priority != b->priority) return a->priority < b->priority;
    return sequence_of(a)->submitted_us < sequence_of(b)->submitted_us;
}

/* If any lane owes much, finds each lane's first prompt that is long enough to be shared. Corrects
 * what lanes owe: pages of such a prompt that are cached count as owed until it runs, but need not
 * be computed. */
static void find_wide(const struct share *s, const uint64_t *all, struct request **wide,
                      uint64_t *owed)
{
    uint64_t sum = 0;
    bool any = false;
    for (uint32_t i = 0; i < s->n_lane; i++) sum += all[i];
    for (uint32_t i = 0; i < s->n_lane; i++) any |= owes_much(s, all[i], sum);
    for (uint32_t i = 0; i < s->n_lane; i++) {
        uint32_t n = 0;
        const bool looks = any && all[i] > 0;
        wide[i] = looks ? sched_first_wide(s->parts[i].sched, s->least * s->n_lane, &n) : NULL;
        owed[i] = all[i];
        if (!wide[i]) continue;
        const uint32_t n_owed = sequence_of(wide[i])->n_owed;
        ASSERT(n_owed <= all[i]);
        if (n < n_owed) owed[i] -= n_owed - n;
    }
}

/* Chooses the prompt that is shared next, and marks the prompts that wait for it; NULL: none is. */
static struct request *choose(struct share *s, const uint64_t *all, uint32_t *home)
{
    struct request *wide[PARALLEL_RANKS_MAX], *first = NULL;
    uint64_t owed[PARALLEL_RANKS_MAX], sum = 0, n_waiting = 0;
    find_wide(s, all, wide, owed);
    for (uint32_t i = 0; i < s->n_lane; i++) sum += owed[i];
    for (uint32_t i = 0; i < s->n_lane; i++) {
        struct share_part *p = &s->parts[i];
        p->waiting = owes_much(s, owed[i], sum) ? wide[i] : NULL;
        if (p->waiting) n_waiting += owed[i];
    }
    for (uint32_t i = 0; i < s->n_lane; i++) {
        const uint64_t n_others = sum - n_waiting - (s->parts[i].waiting ? 0 : owed[i]);
        if (!wide[i] || !owes_much(s, owed[i], owed[i] + n_others)) continue;
        if (first && !comes_before(wide[i], first)) continue;
        first = wide[i];
        *home = i;
    }
    ASSERT(first || n_waiting == 0); /* a prompt that waits could have been chosen itself */
    if (first) s->parts[*home].waiting = NULL;
    return first;
}

bool share_begin(struct share *s, const uint64_t *owed)
{
    uint32_t home = 0;
    s->n_token = 0;
    struct request *r = choose(s, owed, &home);
    if (!r) return false;
    if (s->request && s->request != r) end_sharing(s);
    s->request = r;
    s->home = home;
    if (!take_pages(s, r)) {
        end_sharing(s);
        return false;
    }
    for (uint32_t i = 0; i < s->n_lane; i++) {
        if (s->parts[i].waiting) sched_hold_back(s->parts[i].sched, s->parts[i].waiting);
    }
    return true;
}

void share_drop(struct share *s, const struct request *r)
{
    if (s->request && s->request == r) end_sharing(s);
}

void share_settle(struct share *s)
{
    const struct request *r = s->request;
    if (!r) return;
    if (s->n_token > 0) s->n_known = s->first + s->n_token;
    if (r->state != REQUEST_RUNNING || r->n_computed >= r->n_prompt) end_sharing(s);
}

/* ---- who computes what ---------------------------------------------------------------------- */

/* Tokens of the prompt that guest i can compute beside its own plan. */
static uint32_t room_of(const struct share *s, const struct plan *plans, uint32_t i)
{
    const bool has_place = plans[i].n_entry < s->max_num_seqs;
    const bool has_pages =
        sched_n_guest_page(s->parts[i].sched) > 0; /* its own requests may need them */
    return has_place && has_pages ? sched_n_left(s->parts[i].sched) : 0;
}

void share_lend(struct share *s, const struct plan *plans)
{
    uint32_t n = 0;
    ASSERT(s->request && s->n_token == 0);
    for (uint32_t i = 0; i < s->n_lane; i++) {
        if (i == s->home) continue;
        const uint32_t room = room_of(s, plans, i);
        if (room == 0) return;
        n += room;
    }
    sched_lend(s->parts[s->home].sched, s->request, n, s->least * s->n_lane);
}

/* The run of a lane with n_own tokens, if each lane is to have `level` tokens in all. */
static uint32_t run_at(uint32_t level, uint32_t n_own, uint32_t room)
{
    const uint32_t n = level > n_own + 1 ? level - n_own : 1;
    return n < room ? n : room;
}

void share_runs(uint32_t n_token, const uint32_t *n_own, const uint32_t *room, uint32_t n,
                uint32_t *run)
{
    uint32_t low = 0, level = 0, sum;
    ASSERT(n >= 1 && n_token >= n);
    for (uint32_t i = 0; i < n; i++) {
        if (n_own[i] + room[i] > level) level = n_own[i] + room[i];
    }
    while (low < level) { /* find the lowest level at which all tokens are given out */
        const uint32_t middle = low + (level - low) / 2;
        sum = 0;
        for (uint32_t i = 0; i < n; i++) sum += run_at(middle, n_own[i], room[i]);
        if (sum >= n_token)
            level = middle;
        else
            low = middle + 1;
    }
    sum = 0;
    for (uint32_t i = 0; i < n; i++) sum += run[i] = run_at(level, n_own[i], room[i]);
    for (uint32_t i = 0; i < n && sum > n_token; i++) {
        if (run[i] == run_at(level - 1, n_own[i], room[i])) continue;
        run[i]--;
        sum--;
    }
    ASSERT(sum == n_token);
}

/* The index of a plan's entry that other lanes may compute tokens of; n_entry: there is none. */
static uint32_t find_lent(const struct plan *p)
{
    uint32_t i = 0;
    ASSERT(!p->is_ahead); /* plans made ahead have no such entry */
    while (i < p->n_entry && !p->entries[i].is_lent) i++;
    return i;
}

/* The home's part: its plan, with only the last tokens of the shared entry. */
static void plan_home(struct share_part *part, const struct plan *own, uint32_t i_lent)
{
    struct plan *p = &part->plan;
    struct plan_entry *const entries = p->entries;
    uint32_t n_token = 0;
    *p = *own;
    p->entries = entries;
    for (uint32_t i = 0; i < own->n_entry; i++) {
        struct plan_entry *e = &entries[i];
        *e = own->entries[i];
        if (i == i_lent) {
            e->first += e->n_token - part->n_row;
            e->n_token = part->n_row;
        }
        e->i_token = n_token;
        n_token += e->n_token;
    }
    p->n_token = n_token;
}

/* A guest's part: its plan, and behind it its run of the shared entry e, from token `first` on. */
static void plan_guest(struct share_part *part, const struct plan *own, const struct request *r,
                       const struct plan_entry *e, uint32_t first)
{
    struct plan *p = &part->plan;
    struct plan_entry *const entries = p->entries;
    *p = *own;
    p->entries = entries;
    for (uint32_t i = 0; i < own->n_entry; i++) entries[i] = own->entries[i];
    part->guest = (struct request){.state = REQUEST_RUNNING,
                                   .ids = r->ids,
                                   .pages = part->pages,
                                   .n_page = request_n_page(r->n_token),
                                   .n_prompt = r->n_prompt,
                                   .n_token = r->n_token,
                                   .max_token = r->max_token,
                                   .n_computed = first + part->n_row};
    entries[p->n_entry++] = (struct plan_entry){.request = &part->guest,
                                                .first = first,
                                                .n_token = part->n_row,
                                                .i_token = p->n_token,
                                                .is_prompt = e->is_prompt};
    p->n_token += part->n_row;
    if (e->first + e->n_token > p->max_context) p->max_context = e->first + e->n_token;
}

uint32_t share_cut(struct share *s, const struct plan *plans)
{
    uint32_t n_own[PARALLEL_RANKS_MAX], room[PARALLEL_RANKS_MAX], run[PARALLEL_RANKS_MAX], n = 0;
    if (!s->request) return 0;
    const struct plan *own = &plans[s->home];
    const uint32_t i_lent = find_lent(own);
    if (i_lent == own->n_entry) { /* the request was not planned, or a guest had no room */
        if (s->request->state != REQUEST_RUNNING) end_sharing(s);
        return 0;
    }
    const struct plan_entry *e = &own->entries[i_lent];
    const struct request *r = s->request;
    ASSERT(e->request == r && e->n_draft == 0 && e->n_score == 0);
    for (uint32_t i = 0; i < s->n_lane; i++) {
        if (i == s->home) continue;
        n_own[n] = plans[i].n_token;
        room[n++] = room_of(s, plans, i);
    }
    n_own[n] = own->n_token - e->n_token;
    room[n++] = e->n_token - e->n_lent;
    share_runs(e->n_token, n_own, room, n, run);
    s->first = e->first;
    s->n_token = e->n_token;
    if (s->n_known > s->first) s->n_known = s->first; /* preempted: it computes these once more */
    s->parts[s->home].n_row = run[n - 1];
    plan_home(&s->parts[s->home], own, i_lent);
    uint32_t first = e->first, k = 0;
    for (uint32_t i = 0; i < s->n_lane; i++) {
        if (i == s->home) continue;
        s->parts[i].n_row = run[k++];
        plan_guest(&s->parts[i], &plans[i], r, e, first);
        first += s->parts[i].n_row;
    }
    return s->n_token;
}

const struct plan *share_plan(const struct share *s, uint32_t i, const struct plan *own)
{
    ASSERT(s->n_token == 0 || (i < s->n_lane && !own->is_ahead));
    return s->n_token > 0 ? &s->parts[i].plan : own;
}

bool share_is_guest_alone(const struct share *s, uint32_t i, const struct step *step)
{
    ASSERT(s->n_token == 0 || (i < s->n_lane && step->batch.n_token >= s->parts[i].n_row));
    return s->n_token > 0 && i != s->home && step->batch.n_token == s->parts[i].n_row;
}

static void add_segment(struct batch_share *b, uint32_t lane, uint32_t n_row)
{
    ASSERT(b->n_segment < SHARE_SEGMENTS_MAX);
    b->segments[b->n_segment++] = (struct share_segment){lane, n_row};
    b->n_row += n_row;
}

/* Puts all pages of the shared rows into the page table: also those behind the lane's own run,
 * whose rows the other lanes send. */
static void put_pages(const struct share *s, const struct request *r, uint32_t i_entry,
                      const struct batch_layout *l, void *host, const struct step *step)
{
    const uint32_t stride = step->batch.page_stride;
    int32_t *table = (int32_t *)((char *)host + l->page_table) + (size_t)i_entry * stride;
    const uint32_t n_page = request_n_page(s->first + s->n_token);
    ASSERT(n_page <= stride && n_page <= r->n_page);
    for (uint32_t j = 0; j < n_page; j++) table[j] = (int32_t)r->pages[j];
}

void share_put(const struct share *s, uint32_t i, const struct batch_layout *l, void *host,
               struct step *step)
{
    const struct share_part *part = &s->parts[i];
    const struct request *r = i == s->home ? s->request : &part->guest;
    struct batch_share *b = &step->batch.share;
    if (s->n_token == 0) return;
    ASSERT(step->pass == STEP_MODEL && b->n_row == 0 && part->plan.n_entry > 0);
    b->first = s->n_known;
    while (part->plan.entries[b->request].request != r) b->request++;
    if (s->n_known < s->first) add_segment(b, s->home, s->first - s->n_known);
    for (uint32_t k = 0; k < s->n_lane; k++) {
        if (k != s->home) add_segment(b, k, s->parts[k].n_row);
    }
    add_segment(b, s->home, s->parts[s->home].n_row);
    put_pages(s, r, b->request, l, host, step);
}
