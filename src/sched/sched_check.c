/* sched_check.c - asserts the invariants of sched_plan.c, and writes a scheduler's state as text */
#include "base/assert.h"
#include "base/fail.h"
#include "sched/sched.h"
#include "sched/sched_int.h"

static void check_list(const struct request_list *l, enum request_state state)
{
    uint32_t n = 0;
    const struct request *prev = NULL;
    for (const struct request *r = l->head; r; prev = r, r = r->next) {
        ASSERT(n++ < l->n);
        ASSERT(r->prev == prev);
        ASSERT(r->state == state);
        ASSERT(!prev || request_is_before(prev, r));
        request_check(r);
    }
    ASSERT(n == l->n && l->tail == prev);
}

/* Invariant 2. */
static void check_order(const struct sched *s, const struct request_list *l)
{
    for (const struct request *r = l->head; r; r = r->next) {
        const struct request *w = s->waiting.head;
        while (w && w->priority < r->priority) w = w->next;
        ASSERT(!w || request_is_before(r, w));
    }
}

/* Counts the holders of each page, and checks that the prefix cache finds the published ones. */
static void check_pages(struct sched *s, const struct request_list *l)
{
    for (const struct request *r = l->head; r; r = r->next) {
        for (uint32_t i = 0; i < r->n_page; i++) s->n_seen[r->pages[i]]++;
        if (!s->prefix) continue;
        const struct prefix_text text = text_of(s, r);
        ASSERT(r->n_published == r->n_computed / KV_PAGE_TOKENS);
        prefix_check_chain(s->prefix, &text, r->pages, r->n_published);
    }
}

/* Invariant 5: the entries of a request follow each other, and their tokens add up to n_planned. */
static void check_flights(const struct sched *s)
{
    uint64_t n_planned = 0;
    for (const struct request *r = s->running.head; r; r = r->next) n_planned += r->n_planned;
    for (uint32_t k = 0; k < s->n_flight; k++) {
        const struct plan *p = flight(s, k);
        const struct plan *before = k > 0 && s->config.n_stage <= 1 ? flight(s, k - 1) : NULL;
        uint32_t i_before = 0;
        ASSERT(!before || p->is_ahead);
        for (uint32_t i = 0; i < p->n_entry; i++) {
            const struct plan_entry *e = &p->entries[i];
            const struct request *r = e->request;
            uint32_t first = r->n_computed;
            if (before) {
                while (i_before < before->n_entry && before->entries[i_before].request != r) {
                    i_before++;
                }
                ASSERT(i_before < before->n_entry);
                first = before->entries[i_before].first + before->entries[i_before].n_token;
            }
            ASSERT(r->state == REQUEST_RUNNING && e->n_token >= 1 && e->first == first);
            ASSERT(e->is_prompt == (s->config.prompt_form && first < r->n_prompt));
            ASSERT(!e->is_prompt || first + e->n_token <= r->n_prompt);
            ASSERT(i == 0 || e->is_prompt || !p->entries[i - 1].is_prompt);
            ASSERT(before || first + e->n_token <= r->n_token + r->n_draft);
            ASSERT(first + e->n_token <= r->n_computed + r->n_planned);
            n_planned -= e->n_token;
        }
    }
    ASSERT(n_planned == 0);
}

void sched_check(struct sched *s)
{
    page_pool_check(s->pool);
    check_list(&s->running, REQUEST_RUNNING);
    check_list(&s->fetching, REQUEST_FETCHING);
    check_list(&s->waiting, REQUEST_WAITING);
    check_order(s, &s->running);
    check_order(s, &s->fetching);
    ASSERT(n_holding(s) <= s->config.max_num_seqs);
    ASSERT(s->totals.n_fetched_token <= s->totals.n_hit_token);
    ASSERT(s->totals.n_hit_token <= s->totals.n_query_token);
    check_flights(s);

    uint32_t n_page = page_pool_n_page(s->pool);
    for (uint32_t i = 0; i < n_page; i++) s->n_seen[i] = 0;
    if (s->prefix) prefix_check(s->prefix);
    check_pages(s, &s->running);
    check_pages(s, &s->fetching);
    for (uint32_t i = 0; i < s->n_guest_page; i++) s->n_seen[s->guest[i]]++;
    for (uint32_t i = 0; i < n_page; i++) ASSERT(s->n_seen[i] == page_pool_n_holder(s->pool, i));
}

static fathom_err dump_flight(uint32_t i, const struct plan *p, struct buf *out)
{
    return buf_printf(out, "  plan %u: entries=%u tokens=%u draws=%u%s\n", i, p->n_entry,
                      p->n_token, p->n_draw, p->is_ahead ? " ahead" : "");
}

fathom_err sched_dump(const struct sched *s, struct buf *out)
{
    const struct sched_totals *t = &s->totals;
    TRY(buf_printf(out,
                   "scheduler: %u running, %u fetching, %u waiting, %u plans under way, %llu "
                   "preempted, %llu of %llu prompt tokens found\n",
                   s->running.n, s->fetching.n, s->waiting.n, s->n_flight,
                   (unsigned long long)t->n_preempted, (unsigned long long)t->n_hit_token,
                   (unsigned long long)t->n_query_token));
    for (uint32_t i = 0; i < s->n_flight; i++) TRY(dump_flight(i, flight(s, i), out));
    for (const struct request *r = s->running.head; r; r = r->next) TRY(request_dump(r, out));
    for (const struct request *r = s->fetching.head; r; r = r->next) TRY(request_dump(r, out));
    for (const struct request *r = s->waiting.head; r; r = r->next) TRY(request_dump(r, out));
    if (s->prefix) TRY(prefix_dump(s->prefix, out));
    return page_pool_dump(s->pool, out);
}
