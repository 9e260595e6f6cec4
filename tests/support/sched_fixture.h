/* sched_fixture.h - a scheduler with its page pool and a few requests, for plans worked out by hand
 *
 * Every call checks the scheduler's invariants; what goes wrong fails the running test. The clock
 * ticks once a plan and once a commit.
 */
#ifndef FATHOM_TESTS_SCHED_FIXTURE_H
#define FATHOM_TESTS_SCHED_FIXTURE_H

#include "sched/sched.h"

enum { MAX_REQUESTS = 8, MAX_TOKENS = 1024, MAX_SCORE = 32, MAX_FLIGHT = 4, STOP_ID = 1 };

struct sched_job {
    struct request r;
    int32_t ids[MAX_TOKENS];
    uint32_t pages[MAX_TOKENS / KV_PAGE_TOKENS];
};

struct sched_fixture {
    struct page_pool *pool;
    struct prefix_cache *prefix; /* NULL: none */
    struct sched *s;
    struct plan plan;
    struct sched_job jobs[MAX_REQUESTS];
    uint32_t n_job;
    uint64_t now_us;
};

/* fixture_open - no prefix cache, no drafts */
void fixture_open(struct sched_fixture *f, uint32_t n_page, uint32_t budget, uint32_t max_num_seqs);

/* fixture_open_more - with a prefix cache, and drafts if max_draft is not 0 */
void fixture_open_more(struct sched_fixture *f, uint32_t n_page, uint32_t budget,
                       uint32_t max_num_seqs, uint32_t max_draft);

/* fixture_open_cached - with a prefix cache */
void fixture_open_cached(struct sched_fixture *f, uint32_t n_page, uint32_t budget,
                         uint32_t max_num_seqs);

/* fixture_open_form - rows of prompts and of answers have other bits; no prefix cache */
void fixture_open_form(struct sched_fixture *f, uint32_t n_page, uint32_t budget,
                       uint32_t max_num_seqs);

void fixture_close(struct sched_fixture *f);

/* fixture_add - the next request, its ids all 0; it stops at STOP_ID */
struct request *fixture_add(struct sched_fixture *f, uint32_t n_prompt, uint32_t max_output);

/* fixture_add_urgent - the same, before all others */
struct request *fixture_add_urgent(struct sched_fixture *f, uint32_t n_prompt, uint32_t max_output);

void fixture_plan(struct sched_fixture *f);

/* fixture_commit - every row of the step has drawn `id` */
void fixture_commit(struct sched_fixture *f, int32_t id);

/* fixture_expect - entry i of the plan computes n_token tokens of r from `first` on */
void fixture_expect(const struct sched_fixture *f, uint32_t i, const struct request *r,
                    uint32_t first, uint32_t n_token, bool draws);

#endif
