/* mixed.c - decodes beside the chunks of a prompt: a step of both against its parts */
#include "bench/mixed.h"

#include "base/clock.h"
#include "base/fail.h"
#include "base/mem.h"
#include "base/rng.h"

/* SETTLE steps of decodes pass before any is counted, and ALONE are. */
enum {
    MAX_DECODE = 65535,
    EVENTS = 256,
    SETTLE = 4,
    ALONE = 16,
    GAPS_MAX = 1 << 16,
    REST_US = 100000
};

static const struct percentile_list percentiles = {.at = {50, 99}, .n = 2};

/* Times between tokens, in ms; what does not fit any more is not kept. */
struct gaps {
    double *ms; /* [GAPS_MAX] */
    size_t n;
};

/* A request of a round. */
struct stream {
    uint64_t id;
    uint32_t n_token;
    uint32_t n_ended; /* 1 once FINISH came */
};

struct mixed {
    fathom_engine *e;
    const struct mixed_options *o;
    uint64_t state; /* of the generator of ids */
    int32_t *ids;   /* [max(n_input, n_prompt)] */
    struct stream *decodes;
    struct stream prompt;
    fathom_event *events;
    uint64_t last_us;    /* when the last token of the first decode came */
    uint64_t first_us;   /* when the prompt's first token came */
    struct gaps *record; /* NULL: none are kept */
    struct gaps beside;
    struct gaps alone;
};

static fathom_err submit(struct mixed *m, struct stream *s, uint32_t n, uint32_t max_tokens,
                         fathom_diag *d)
{
    uint32_t n_vocab = fathom_get_info(m->e)->n_vocab;
    for (uint32_t i = 0; i < n; i++) m->ids[i] = (int32_t)rng_below(&m->state, n_vocab);
    fathom_request r = {.prompt = m->ids, .n_prompt = n, .user = s};
    fathom_sampling_init(&r.sampling);
    r.sampling.temperature = 0;
    r.sampling.ignore_eos = true;
    r.sampling.max_tokens = max_tokens;
    *s = (struct stream){0};
    return fathom_submit(m->e, &r, &s->id, d);
}

/* All decodes get a token in the same step, so the first one's times are everyone's. */
static void note_token(struct mixed *m, struct stream *s)
{
    uint64_t now = clock_now_us();
    if (s == &m->prompt && s->n_token == 0) {
        m->first_us = now;
        m->record = NULL;
    }
    if (s == &m->decodes[0]) {
        if (m->record && m->record->n < GAPS_MAX)
            m->record->ms[m->record->n++] = (double)(now - m->last_us) / 1e3;
        m->last_us = now;
    }
    s->n_token++;
}

static fathom_err take_events(struct mixed *m, fathom_diag *d)
{
    size_t n = fathom_poll(m->e, m->events, EVENTS, -1);
    for (size_t i = 0; i < n; i++) {
        const fathom_event *ev = &m->events[i];
        struct stream *s = ev->user;
        if (ev->kind == FATHOM_EVENT_TOKEN) note_token(m, s);
        if (ev->kind != FATHOM_EVENT_FINISH) continue;
        s->n_ended = 1;
        if (ev->finish == FATHOM_FINISH_ERROR)
            FAIL(d, FATHOM_EDEVICE, "the engine failed: %s", fathom_fault(m->e));
    }
    return FATHOM_OK;
}

/* Until the stream has n_token tokens. */
static fathom_err wait_tokens(struct mixed *m, const struct stream *s, uint32_t n_token,
                              fathom_diag *d)
{
    while (s->n_token < n_token) {
        TRY(take_events(m, d));
        if (m->decodes[0].n_ended && s->n_token < n_token) {
            FAIL(d, FATHOM_EINVAL,
                 "--mixed-input-len %u: a decode came to the end of its context after %u tokens: "
                 "give a longer --max-model-len",
                 m->o->n_prompt, m->decodes[0].n_token);
        }
    }
    return FATHOM_OK;
}

static fathom_err wait_end(struct mixed *m, const struct stream *s, fathom_diag *d)
{
    while (!s->n_ended) TRY(take_events(m, d));
    return FATHOM_OK;
}

/* The prompt with nothing beside it: ms, and a step's. */
static fathom_err run_alone(struct mixed *m, double *ms, double *chunk_ms, fathom_diag *d)
{
    fathom_stats from, to;
    m->decodes[0] = (struct stream){0};
    clock_sleep_us(REST_US); /* steps launched ahead for what was cancelled end */
    fathom_get_stats(m->e, &from);
    uint64_t start_us = clock_now_us();
    TRY(submit(m, &m->prompt, m->o->n_prompt, 1, d));
    TRY(wait_end(m, &m->prompt, d));
    *ms = (double)(m->first_us - start_us) / 1e3;
    fathom_get_stats(m->e, &to);
    uint64_t n_step = to.n_step - from.n_step;
    *chunk_ms = *ms / (double)(n_step ? n_step : 1);
    return FATHOM_OK;
}

static fathom_err run_beside(struct mixed *m, double *ms, fathom_diag *d)
{
    const struct mixed_options *o = m->o;
    for (uint32_t i = 0; i < o->n_decode; i++) TRY(submit(m, &m->decodes[i], o->n_input, 0, d));
    for (uint32_t i = 0; i < o->n_decode; i++) TRY(wait_tokens(m, &m->decodes[i], 1, d));
    const struct stream *first = &m->decodes[0];
    TRY(wait_tokens(m, first, first->n_token + SETTLE, d));
    m->record = &m->alone;
    TRY(wait_tokens(m, first, first->n_token + ALONE, d));
    uint64_t start_us = clock_now_us();
    m->record = &m->beside;
    TRY(submit(m, &m->prompt, o->n_prompt, 1, d));
    TRY(wait_tokens(m, &m->prompt, 1, d));
    *ms = (double)(m->first_us - start_us) / 1e3;
    for (uint32_t i = 0; i < o->n_decode; i++) fathom_cancel(m->e, m->decodes[i].id);
    for (uint32_t i = 0; i < o->n_decode; i++) TRY(wait_end(m, &m->decodes[i], d));
    return wait_end(m, &m->prompt, d);
}

/* times: three of each round */
static fathom_err run_rounds(struct mixed *m, double *times, fathom_diag *d)
{
    const uint32_t n = m->o->n_repeat;
    double warm[3];
    for (uint32_t i = 0; i < m->o->n_warm_up; i++) {
        TRY(run_alone(m, &warm[0], &warm[1], d));
        TRY(run_beside(m, &warm[2], d));
    }
    m->alone.n = m->beside.n = 0;
    for (uint32_t i = 0; i < n; i++) {
        TRY(run_alone(m, &times[i], &times[n + i], d));
        TRY(run_beside(m, &times[2 * n + i], d));
    }
    return FATHOM_OK;
}

fathom_err mixed_run(fathom_engine *e, const struct mixed_options *o, struct mixed_result *out,
                     fathom_diag *d)
{
    *out = (struct mixed_result){0};
    if (o->n_decode == 0 || o->n_decode > MAX_DECODE || o->n_input == 0 || o->n_prompt == 0 ||
        o->n_repeat == 0) {
        FAIL(d, FATHOM_EINVAL, "decodes %u (1 to %d), input %u, prompt %u, rounds %u", o->n_decode,
             MAX_DECODE, o->n_input, o->n_prompt, o->n_repeat);
    }
    struct mixed m = {.e = e, .o = o, .state = o->seed + 1};
    const uint32_t n_id = o->n_input > o->n_prompt ? o->n_input : o->n_prompt;
    m.ids = mem_alloc_array(n_id, sizeof *m.ids);
    m.decodes = mem_calloc(o->n_decode, sizeof *m.decodes);
    m.events = mem_alloc_array(EVENTS, sizeof *m.events);
    m.beside.ms = mem_alloc_array(GAPS_MAX, sizeof *m.beside.ms);
    m.alone.ms = mem_alloc_array(GAPS_MAX, sizeof *m.alone.ms);
    double *times = mem_calloc((size_t)o->n_repeat * 3, sizeof *times);
    bool has_memory = m.ids && m.decodes && m.events && m.beside.ms && m.alone.ms && times;
    fathom_err err = has_memory ? run_rounds(&m, times, d) : FATHOM_ENOMEM;
    if (!err) {
        summarise(&out->step_ms, m.beside.ms, m.beside.n, &percentiles);
        summarise(&out->decode_ms, m.alone.ms, m.alone.n, &percentiles);
        out->alone_ms = spread_of(times, o->n_repeat);
        out->chunk_ms = spread_of(times + o->n_repeat, o->n_repeat);
        out->beside_ms = spread_of(times + 2 * (size_t)o->n_repeat, o->n_repeat);
    }
    mem_free(m.ids);
    mem_free(m.decodes);
    mem_free(m.events);
    mem_free(m.beside.ms);
    mem_free(m.alone.ms);
    mem_free(times);
    return err;
}

double mixed_parts_ms(const struct mixed_result *r)
{
    return r->decode_ms.median + r->chunk_ms.median;
}

static void write_spread(struct buf *b, const char *name, const struct spread *s)
{
    (void)buf_printf(b, ", \"%s\": {\"min\": %.3f, \"median\": %.3f, \"max\": %.3f}", name, s->min,
                     s->median, s->max);
}

fathom_err mixed_write_json(struct buf *b, const struct mixed_options *o,
                            const struct mixed_result *r)
{
    (void)buf_printf(b,
                     "{\"decodes\": %u, \"input_len\": %u, \"n_step\": %zu, \"step_ms\": %.3f, "
                     "\"itl_p99_ms\": %.3f, \"decode_ms\": %.3f, \"parts_ms\": %.3f",
                     o->n_decode, o->n_prompt, r->step_ms.n, r->step_ms.median, r->step_ms.p99,
                     r->decode_ms.median, mixed_parts_ms(r));
    write_spread(b, "chunk_ms", &r->chunk_ms);
    write_spread(b, "prompt_ms", &r->beside_ms);
    write_spread(b, "prompt_alone_ms", &r->alone_ms);
    return buf_add_str(b, "}");
}
