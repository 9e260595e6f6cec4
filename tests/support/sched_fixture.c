/* sched_fixture.c - a scheduler with its page pool and a few requests */
#include "support/sched_fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static const int32_t stop_ids[] = {STOP_ID};

static void open_all(struct sched_fixture *f, const struct sched_config *c, uint32_t n_page,
                     bool with_prefix)
{
    memset(f, 0, sizeof *f);
    assert_int_equal(page_pool_create(&f->pool, n_page, NULL), FATHOM_OK);
    if (with_prefix) {
        assert_int_equal(prefix_create(&f->prefix, f->pool, c->max_draft > 0, NULL), FATHOM_OK);
    }
    assert_int_equal(sched_create(&f->s, c, f->pool, f->prefix, NULL), FATHOM_OK);
    assert_int_equal(plan_init(&f->plan, c->max_num_seqs), FATHOM_OK);
}

static struct sched_config config_of(uint32_t budget, uint32_t max_num_seqs)
{
    return (struct sched_config){.max_num_batched_tokens = budget,
                                 .max_num_seqs = max_num_seqs,
                                 .max_score = MAX_SCORE,
                                 .max_flight = MAX_FLIGHT};
}

void fixture_open(struct sched_fixture *f, uint32_t n_page, uint32_t budget, uint32_t max_num_seqs)
{
    const struct sched_config c = config_of(budget, max_num_seqs);
    open_all(f, &c, n_page, false);
}

void fixture_open_more(struct sched_fixture *f, uint32_t n_page, uint32_t budget,
                       uint32_t max_num_seqs, uint32_t max_draft)
{
    struct sched_config c = config_of(budget, max_num_seqs);
    c.max_draft = max_draft;
    open_all(f, &c, n_page, true);
}

void fixture_open_cached(struct sched_fixture *f, uint32_t n_page, uint32_t budget,
                         uint32_t max_num_seqs)
{
    fixture_open_more(f, n_page, budget, max_num_seqs, 0);
}

void fixture_open_form(struct sched_fixture *f, uint32_t n_page, uint32_t budget,
                       uint32_t max_num_seqs)
{
    struct sched_config c = config_of(budget, max_num_seqs);
    c.prompt_form = true;
    open_all(f, &c, n_page, false);
}

void fixture_close(struct sched_fixture *f)
{
    sched_check(f->s);
    sched_destroy(f->s);
    prefix_destroy(f->prefix);
    page_pool_destroy(f->pool);
    plan_fini(&f->plan);
}

static struct request *add(struct sched_fixture *f, uint32_t n_prompt, uint32_t max_output,
                           int32_t priority)
{
    struct sched_job *j = &f->jobs[f->n_job++];
    j->r = (struct request){.id = f->n_job,
                            .ids = j->ids,
                            .pages = j->pages,
                            .stop_ids = stop_ids,
                            .n_stop_id = 1,
                            .n_prompt = n_prompt,
                            .max_token = n_prompt + max_output,
                            .priority = priority};
    sched_add(f->s, &j->r);
    sched_check(f->s);
    return &j->r;
}

struct request *fixture_add(struct sched_fixture *f, uint32_t n_prompt, uint32_t max_output)
{
    return add(f, n_prompt, max_output, 0);
}

struct request *fixture_add_urgent(struct sched_fixture *f, uint32_t n_prompt, uint32_t max_output)
{
    return add(f, n_prompt, max_output, -1);
}

void fixture_plan(struct sched_fixture *f)
{
    sched_plan(f->s, ++f->now_us, &f->plan);
    sched_check(f->s);
}

void fixture_commit(struct sched_fixture *f, int32_t id)
{
    int32_t drawn[MAX_REQUESTS];
    for (int i = 0; i < MAX_REQUESTS; i++) drawn[i] = id;
    sched_commit(f->s, &f->plan, drawn, ++f->now_us);
    sched_check(f->s);
}

void fixture_expect(const struct sched_fixture *f, uint32_t i, const struct request *r,
                    uint32_t first, uint32_t n_token, bool draws)
{
    assert_true(i < f->plan.n_entry);
    assert_ptr_equal(f->plan.entries[i].request, r);
    assert_int_equal(f->plan.entries[i].first, first);
    assert_int_equal(f->plan.entries[i].n_token, n_token);
    assert_int_equal(f->plan.entries[i].draws, draws);
}
