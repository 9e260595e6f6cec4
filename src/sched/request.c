/* request.c - the states of one request and their edges
 *
 * Invariants of a request that has entered
 *
 *   1. 1 <= n_prompt <= n_token <= max_token; n_prompt < max_token.
 *   2. n_computed < n_token until the request is FINISHED, and n_computed + n_planned < max_token:
 *      the row of the last token is never wanted. A request with drafts has a gap of 1, and n_token
 *      + n_draft < max_token. Plans made ahead may go beyond n_token and the drafts.
 *   3. n_computed <= n_reached.
 *   4. WAITING, FINISHED: n_page == n_published == 0 and n_planned == 0. WAITING: n_computed == 0.
 *   5. FETCHING: it has the pages of n_token; n_computed == 64 * n_published, and fetch.first <=
 *      n_published <= fetch.end, all of them before the page of the last token. n_planned == 0.
 *   6. RUNNING: the pages cover everything computed or planned:
 *      request_n_page(n_computed + n_planned) <= n_page <= request_n_page(max_token).
 *      Published pages are computed: 64 * n_published <= n_computed.
 *   7. finish != NONE if and only if FINISHED.
 *
 * States, and the function of each edge
 *
 *        enter             admit                    a stop id, the length
 *   NEW <-------> WAITING ---------> RUNNING ------------------------------> FINISHED
 *                 |  ^  ^            |   ^                                      ^
 *                 |  |  +- preempt --+   |                                      |
 *     start_fetch |  | stop_fetch        | admit: all have come,                |
 *                 v  |                   | or no more will                      |
 *                FETCHING ---------------+                                      |
 *                 |  ^
 *                 +--+ fill                 end, from any live state: cancelled, expired, failed
 *
 *   leave goes from WAITING back to NEW, so that another scheduler can take a request that has held
 *   no page. A request may enter with output that was drawn elsewhere (n_given), as if it had been
 *   preempted here.
 *
 *   preempt forgets what was computed, never what was drawn. The request comes back with its output
 *   as if it were part of the prompt, and goes on to the same bits. The pages that it had computed
 *   may still be in the prefix cache, or in the tiers. stop_fetch does the same to a request that
 *   has not run yet: pages that were filled stay in the prefix cache. */
#include "sched/request.h"

#include "base/assert.h"
#include "base/fail.h"

bool request_is_stop(const struct request *r, int32_t id)
{
    if (request_n_output(r) < r->min_output) return false;
    for (uint32_t i = 0; i < r->n_stop_id; i++) {
        if (r->stop_ids[i] == id) return true;
    }
    return false;
}

enum request_finish request_push(struct request *r, int32_t id)
{
    ASSERT(r->state == REQUEST_RUNNING && r->n_token < r->max_token);
    bool is_stop = request_is_stop(r, id);
    r->ids[r->n_token++] = id;
    if (is_stop) return REQUEST_FINISH_STOP;
    return r->n_token == r->max_token ? REQUEST_FINISH_LENGTH : REQUEST_FINISH_NONE;
}

void request_enter(struct request *r, uint64_t arrival)
{
    ASSERT(r->state == REQUEST_NEW);
    ASSERT(r->n_prompt >= 1 && r->n_prompt < r->max_token && r->n_to_score < r->n_prompt);
    ASSERT(r->n_given < r->max_token - r->n_prompt && (r->n_given == 0 || r->n_to_score == 0));
    r->state = REQUEST_WAITING;
    r->arrival = arrival;
    r->n_token = r->n_prompt + r->n_given;
}

void request_leave(struct request *r)
{
    ASSERT(r->state == REQUEST_WAITING && r->n_reached == 0);
    r->state = REQUEST_NEW;
    r->n_token = 0;
}

void request_fill(struct request *r, uint32_t n_page, uint64_t now_us)
{
    ASSERT(r->state == REQUEST_FETCHING && r->n_published + n_page <= r->fetch.end);
    r->n_published += n_page;
    r->n_computed = r->n_published * KV_PAGE_TOKENS;
    if (r->n_reached < r->n_computed) r->n_reached = r->n_computed;
    if (n_page > 0) r->fetch.moved_us = now_us;
}

void request_start_fetch(struct request *r, const struct request_fetch *fetch)
{
    ASSERT(r->state == REQUEST_WAITING && fetch->first == r->n_published);
    r->state = REQUEST_FETCHING;
    r->fetch = *fetch;
    request_fill(r, 0, fetch->start_us);
}

void request_stop_fetch(struct request *r)
{
    ASSERT(r->state == REQUEST_FETCHING && r->n_page == 0);
    r->state = REQUEST_WAITING;
    r->n_computed = 0;
}

void request_admit(struct request *r, uint32_t n_found, uint64_t now_us)
{
    ASSERT(r->state == REQUEST_WAITING || r->state == REQUEST_FETCHING);
    ASSERT(n_found < r->n_token);
    r->state = REQUEST_RUNNING;
    r->n_computed = n_found;
    if (r->n_reached < n_found) r->n_reached = n_found;
    if (r->n_preempted > 0) return;
    r->scheduled_us = now_us;
    /* pages of given output may be found too, but n_cached counts only those of the prompt */
    uint32_t n_whole = (r->n_prompt - 1) / KV_PAGE_TOKENS * KV_PAGE_TOKENS;
    r->n_cached = n_found < r->n_prompt ? n_found : n_whole;
}

void request_preempt(struct request *r)
{
    ASSERT(r->state == REQUEST_RUNNING && r->n_planned == 0 && r->n_page == 0);
    r->state = REQUEST_WAITING;
    r->n_computed = r->n_draft = 0;
    r->n_preempted++;
}

void request_end(struct request *r, enum request_finish why, uint64_t now_us)
{
    ASSERT(r->state == REQUEST_WAITING || r->state == REQUEST_FETCHING ||
           r->state == REQUEST_RUNNING);
    ASSERT(why != REQUEST_FINISH_NONE && r->n_planned == 0 && r->n_page == 0);
    r->state = REQUEST_FINISHED;
    r->n_draft = 0;
    r->finish = why;
    r->finished_us = now_us;
}

void request_check(const struct request *r)
{
    ASSERT((r->finish != REQUEST_FINISH_NONE) == (r->state == REQUEST_FINISHED));
    if (r->state == REQUEST_NEW) return;
    ASSERT(r->n_prompt >= 1 && r->n_prompt < r->max_token);
    ASSERT(r->n_prompt <= r->n_token && r->n_token <= r->max_token);
    ASSERT((uint64_t)r->n_computed + r->n_planned < r->max_token);
    ASSERT(r->n_draft == 0 || (r->state == REQUEST_RUNNING && request_gap(r) == 1));
    ASSERT(r->n_draft == 0 || r->n_draft <= request_draft_room(r));
    ASSERT(r->n_computed <= r->n_reached);
    ASSERT(r->n_to_score < r->n_prompt);
    ASSERT(request_n_scored(r) == r->n_to_score || r->n_cached == 0);
    ASSERT(r->n_cached < r->n_prompt);
    switch (r->state) {
    case REQUEST_NEW: break;
    case REQUEST_WAITING:
        ASSERT(r->n_page == 0 && r->n_published == 0);
        ASSERT(r->n_planned == 0 && r->n_computed == 0);
        break;
    case REQUEST_FETCHING:
        ASSERT(r->n_page == request_n_page(r->n_token) && r->n_planned == 0);
        ASSERT(r->n_computed == r->n_published * KV_PAGE_TOKENS);
        ASSERT(r->fetch.first <= r->n_published && r->n_published <= r->fetch.end);
        ASSERT(r->fetch.end <= (r->n_token - 1) / KV_PAGE_TOKENS);
        break;
    case REQUEST_RUNNING:
        ASSERT(r->n_computed < r->n_token);
        ASSERT(request_n_page(r->n_computed + r->n_planned) <= r->n_page);
        ASSERT(r->n_page <= request_n_page(r->max_token));
        ASSERT(r->n_published <= r->n_computed / KV_PAGE_TOKENS);
        break;
    case REQUEST_FINISHED:
        ASSERT(r->n_page == 0 && r->n_published == 0 && r->n_planned == 0);
        break;
    }
}

static const char *state_name(enum request_state state)
{
    switch (state) {
    case REQUEST_NEW: return "NEW";
    case REQUEST_WAITING: return "WAITING";
    case REQUEST_FETCHING: return "FETCHING";
    case REQUEST_RUNNING: return "RUNNING";
    case REQUEST_FINISHED: return "FINISHED";
    }
    return "?";
}

fathom_err request_dump(const struct request *r, struct buf *out)
{
    return buf_printf(
        out,
        "  request %llu %s prompt=%u tokens=%u/%u computed=%u drafts=%u planned=%u pages=%u "
        "published=%u cached=%u preempted=%u\n",
        (unsigned long long)r->id, state_name(r->state), r->n_prompt, r->n_token, r->max_token,
        r->n_computed, r->n_draft, r->n_planned, r->n_page, r->n_published, r->n_cached,
        r->n_preempted);
}
