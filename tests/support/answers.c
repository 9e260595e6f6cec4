/* answers.c - submitting, polling, and the order of events */
#include "support/answers.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "engine/engine.h"

fathom_err answer_submit(fathom_engine *e, struct answer *a, const fathom_request *r,
                         fathom_diag *d)
{
    fathom_request copy = *r;
    copy.user = a;
    a->id = 0; /* the first event may come before fathom_submit returns: it brings the id too */
    a->n = r->n_output; /* tokens that it was given count, and are not told again */
    for (uint32_t i = 0; i < r->n_output; i++) a->ids[i] = r->output[i];
    a->n_prompt = 0;
    a->hash = 0;
    a->stopped = a->done = false;
    memset(&a->finish, 0, sizeof a->finish);
    uint64_t id;
    return fathom_submit(e, &copy, &id, d);
}

void answer_ask(fathom_engine *e, struct answer *a, const fathom_request *r)
{
    fathom_diag d = {{0}};
    if (answer_submit(e, a, r, &d) != FATHOM_OK) fail_msg("%s", d.text);
}

static uint64_t bits_of(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return bits;
}

static void hash_event(struct answer *a, const fathom_event *e)
{
    if (e->kind == FATHOM_EVENT_PROMPT) {
        a->hash = rng_mix(a->hash, (uint64_t)e->token, bits_of(e->logprob) << 32 | e->place);
    }
    for (uint32_t i = 0; i < e->n_top; i++) {
        a->hash = rng_mix(a->hash, (uint64_t)e->top[i].id, bits_of(e->top[i].logprob));
    }
}

static void take_prompt_token(struct answer *a, const fathom_event *e)
{
    assert_int_equal(a->n, 0);
    hash_event(a, e);
    assert_true(a->n_prompt < ANSWER_TOKENS_MAX);
    a->prompt[a->n_prompt].id = e->token;
    a->prompt[a->n_prompt].logprob = e->logprob;
    a->prompt[a->n_prompt].place = e->place;
    a->prompt[a->n_prompt].n_top = e->n_top;
    for (uint32_t i = 0; i < 2; i++) a->prompt[a->n_prompt].top[i] = e->top[i];
    a->n_prompt++;
}

static void take_event(const fathom_event *e)
{
    struct answer *a = e->user;
    assert_false(a->done);
    assert_true(a->id == 0 || a->id == e->id);
    a->id = e->id;
    if (e->kind == FATHOM_EVENT_TOKEN) {
        assert_false(a->stopped);
        assert_true(a->n < ANSWER_TOKENS_MAX);
        hash_event(a, e);
        a->logprobs[a->n] = e->logprob;
        a->ids[a->n++] = e->token;
        a->stopped = e->is_stop;
        return;
    }
    if (e->kind == FATHOM_EVENT_PROMPT) {
        take_prompt_token(a, e);
        return;
    }
    assert_int_equal(e->kind, FATHOM_EVENT_FINISH);
    assert_int_equal(e->n_output, a->n);
    assert_int_equal(e->finish == FATHOM_FINISH_STOP, a->stopped);
    if (a->stopped) assert_int_equal(e->stop_id, a->ids[a->n - 1]);
    if (!a->stopped) assert_int_equal(e->stop_id, -1);
    a->finish = *e;
    a->done = true;
}

size_t answers_take(fathom_engine *e, int timeout_ms)
{
    enum { BATCH = 64 };
    fathom_event events[BATCH];
    size_t n = fathom_poll(e, events, BATCH, timeout_ms);
    size_t n_done = 0;
    for (size_t i = 0; i < n; i++) {
        take_event(&events[i]);
        n_done += events[i].kind == FATHOM_EVENT_FINISH;
    }
    return n_done;
}

void answers_wait(fathom_engine *e, size_t n)
{
    while (n > 0) {
        size_t n_done = answers_take(e, 60000);
        assert_true(n_done <= n);
        n -= n_done;
    }
}

void answer_expect_same(const struct answer *a, const struct answer *want)
{
    assert_int_equal(a->n, want->n);
    assert_memory_equal(a->ids, want->ids, a->n * sizeof a->ids[0]);
    assert_memory_equal(a->logprobs, want->logprobs, a->n * sizeof a->logprobs[0]);
    assert_true(a->hash == want->hash);
    assert_int_equal(a->finish.finish, want->finish.finish);
}

void answers_expect_rest(fathom_engine *e)
{
    fathom_stats s;
    fathom_get_stats(e, &s);
    assert_int_equal(s.n_running, 0);
    assert_int_equal(s.n_waiting, 0);
    assert_int_equal(s.n_backlog_token, 0);
    assert_int_equal(s.n_page_free, s.n_page);
    engine_check(e);
}
