/* sched_ask.c - questions about a scheduler's state, which none of them changes */
#include "kv/tiers.h"
#include "sched/sched.h"
#include "sched/sched_int.h"

uint32_t sched_n_flight(const struct sched *s)
{
    return s->n_flight;
}

uint32_t sched_n_waiting(const struct sched *s)
{
    return s->waiting.n;
}

uint64_t sched_fetch_poll_us(const struct sched *s)
{
    const struct tiers *tiers = s->prefix ? prefix_tiers(s->prefix) : NULL;
    return tiers && tiers_pulls_again(tiers) ? SCHED_AGAIN_POLL_US : SCHED_FETCH_POLL_US;
}

bool sched_decodes(const struct sched *s)
{
    const struct request *r = s->running.head;
    while (r && request_gap(r) != 1) r = r->next;
    return r != NULL;
}

uint32_t sched_n_fetching(const struct sched *s)
{
    return s->fetching.n;
}

uint32_t sched_n_running(const struct sched *s)
{
    return s->running.n;
}

const struct sched_totals *sched_totals(const struct sched *s)
{
    return &s->totals;
}

bool sched_is_short_of_pages(const struct sched *s)
{
    return s->short_of_pages;
}

struct request *sched_first_running(const struct sched *s)
{
    return s->running.head;
}

struct request *sched_first_fetching(const struct sched *s)
{
    return s->fetching.head;
}

struct request *sched_first_waiting(const struct sched *s)
{
    return s->waiting.head;
}

struct request *sched_any(const struct sched *s)
{
    if (s->running.head) return s->running.head;
    return s->fetching.head ? s->fetching.head : s->waiting.head;
}

uint32_t sched_n_left(const struct sched *s)
{
    return s->n_left;
}

uint32_t sched_n_guest_page(const struct sched *s)
{
    return s->n_guest_page;
}

/* How many tokens of r will have rows when it runs next, if the tiers deliver what they have. */
static uint32_t n_known_soon(const struct sched *s, struct request *r)
{
    if (r->state == REQUEST_RUNNING) return r->n_computed;
    const struct sched_findings found = sched_look_up(s, r);
    return (found.n_page + found.match.n_page) * KV_PAGE_TOKENS;
}

/* Whether r would lack `least` tokens or more if neither the cache nor the tiers had any page. */
static bool may_be_wide(const struct request *r, uint32_t least)
{
    return r->n_to_score == 0 && r->n_computed < r->n_prompt && request_gap(r) >= least;
}

/* Whether r does lack so many, with what the cache and the tiers have; *n_lacking is its gap. */
static bool is_wide(const struct sched *s, struct request *r, uint32_t least, uint32_t *n_lacking)
{
    if (!may_be_wide(r, least)) return false;
    const uint32_t n = n_known_soon(s, r);
    if (n >= r->n_prompt) return false;
    *n_lacking = gap_behind(s, r, n);
    return *n_lacking >= least;
}

struct request *sched_first_wide(const struct sched *s, uint32_t least, uint32_t *n_lacking)
{
    ASSERT(least >= 2); /* so no request with drafts is found: its gap is 1 */
    struct request *r = s->running.head, *w = is_full(s) ? NULL : s->waiting.head;
    uint32_t n_running = 0, n_waiting = 0;
    while (r && !is_wide(s, r, least, &n_running)) r = r->next;
    while (w && !may_be_wide(w, least)) w = w->next;
    if (w && ((r && request_is_before(r, w)) || !is_wide(s, w, least, &n_waiting))) w = NULL;
    *n_lacking = w ? n_waiting : n_running;
    return w ? w : r;
}
