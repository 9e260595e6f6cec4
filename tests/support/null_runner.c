/* null_runner.c - steps of hashes, and the gate that holds them */
#include "support/null_runner.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/fail.h"
#include "base/mem.h"
#include "base/rng.h"

/* What was drawn; each array has max_logit_row rows. */
struct drawn {
    int32_t *ids;
    float *logprobs;
    int32_t *top_ids;
    uint32_t *ranks;
    float *top_logprobs;
};

/* A step, or a copy of a page. */
struct work {
    bool is_step;
    struct step step;
    uint32_t i_block;
    bool is_out;
    uint32_t page;
    void *host;
};

enum { MAX_WORK = 256, MAX_FLIGHT = 8 };

struct null_runner {
    struct step_runner base; /* first member */
    pthread_t owner;         /* who may make the calls of the runner's thread */
    struct null_options o;
    uint64_t *rows;       /* [n_page * 64] */
    uint64_t *draft_rows; /* [n_page * 64] */
    uint64_t *states;     /* [max_logit_row] of the logit rows */
    void *blocks[MAX_FLIGHT];
    struct drawn drawn[MAX_FLIGHT];
    struct work queue[MAX_WORK]; /* asynchronous: n_work from i_work on, in a ring */
    uint32_t i_work;
    uint32_t n_work;
    uint32_t n_queued; /* of them steps */
    uint32_t i_block;  /* of the step that is written, or was launched last */
    uint32_t n_launch;
    uint32_t n_prefill; /* tokens of the step beyond one of each request */
    atomic_uint n_moved;
};

/* ---- the gate ---- */

void null_gate_init(struct null_gate *g)
{
    *g = (struct null_gate){0};
    (void)pthread_mutex_init(&g->lock, NULL);
    (void)pthread_cond_init(&g->moved, NULL);
}

static void set_let(struct null_gate *g, uint64_t n)
{
    g->n_let = n;
    (void)pthread_cond_broadcast(&g->moved);
    (void)pthread_mutex_unlock(&g->lock);
}

void null_gate_shut(struct null_gate *g)
{
    (void)pthread_mutex_lock(&g->lock);
    set_let(g, g->n_let < g->n_come ? g->n_let : g->n_come);
}

void null_gate_open(struct null_gate *g)
{
    (void)pthread_mutex_lock(&g->lock);
    set_let(g, UINT64_MAX);
}

void null_gate_let(struct null_gate *g, uint64_t n)
{
    (void)pthread_mutex_lock(&g->lock);
    set_let(g, g->n_let + n);
}

void null_gate_wait(struct null_gate *g)
{
    (void)pthread_mutex_lock(&g->lock);
    while (g->n_come <= g->n_let) (void)pthread_cond_wait(&g->moved, &g->lock);
    (void)pthread_mutex_unlock(&g->lock);
}

bool null_gate_holds(struct null_gate *g)
{
    (void)pthread_mutex_lock(&g->lock);
    bool holds = g->n_come > g->n_let;
    (void)pthread_mutex_unlock(&g->lock);
    return holds;
}

static void come_to_gate(struct null_gate *g)
{
    (void)pthread_mutex_lock(&g->lock);
    uint64_t number = ++g->n_come;
    (void)pthread_cond_broadcast(&g->moved);
    while (number > g->n_let) (void)pthread_cond_wait(&g->moved, &g->lock);
    (void)pthread_mutex_unlock(&g->lock);
}

/* ---- what is drawn ---- */

static uint64_t row_of(int32_t id, uint32_t position)
{
    return rng_mix(0x5eed, (uint64_t)id, position);
}

uint64_t null_state(const int32_t *ids, uint32_t n)
{
    uint64_t state = 0;
    for (uint32_t i = 0; i < n; i++) state = rng_hash(state ^ row_of(ids[i], i));
    return state;
}

static bool is_masked(int32_t id, const struct sample_row *row, const uint32_t *mask)
{
    if (row->mask_offset == SAMPLE_NONE) return false;
    return !(mask[row->mask_offset + (uint32_t)id / 32] >> (id % 32) & 1);
}

static bool is_banned(int32_t id, const int32_t *ban, uint32_t n_ban)
{
    for (uint32_t i = 0; i < n_ban; i++) {
        if (ban[i] == id) return true;
    }
    return false;
}

int32_t null_draw(uint64_t state, const struct sample_row *row, const int32_t *history,
                  const struct sample_bias *bias, const int32_t *ban, const uint32_t *mask)
{
    uint64_t h = state;
    if (row->temperature > 0) h = rng_mix(h, row->seed, row->position);
    for (uint32_t i = 0; i < row->n_prompt + row->n_output; i++) {
        h = rng_hash(h ^ (uint64_t)history[row->history_offset + i]);
    }
    for (uint32_t i = 0; i < row->n_bias; i++) {
        const struct sample_bias *b = &bias[row->bias_offset + i];
        h = rng_mix(h, (uint64_t)b->id, (uint64_t)(int64_t)b->bias);
    }
    int32_t id = (int32_t)(h % row->n_vocab_used);
    for (uint32_t i = 0; i < row->n_vocab_used; i++) {
        bool banned = is_banned(id, ban + row->ban_offset, row->n_ban);
        if (!banned && !is_masked(id, row, mask)) return id;
        id = (int32_t)(((uint32_t)id + 1) % row->n_vocab_used);
    }
    return 0;
}

float null_logprob(uint64_t state)
{
    return -(float)(state >> 40) * 0x1p-24f;
}

/* ---- the runner ---- */

/* More than one step may be under way: then nothing is done before somebody waits for it. */
static bool is_async(const struct null_runner *r)
{
    return r->base.max_flight > 1;
}

static struct null_runner *owned(void *runner)
{
    struct null_runner *r = runner;
    ASSERT(pthread_equal(r->owner, pthread_self()));
    return r;
}

static fathom_err bind(struct step_runner *base)
{
    ((struct null_runner *)base)->owner = pthread_self();
    return FATHOM_OK;
}

static void destroy(struct step_runner *base)
{
    struct null_runner *r = (struct null_runner *)base;
    if (!r) return;
    mem_free(r->rows);
    mem_free(r->draft_rows);
    mem_free(r->states);
    for (int i = 0; i < MAX_FLIGHT; i++) {
        mem_free(r->drawn[i].ids);
        mem_free(r->drawn[i].logprobs);
        mem_free(r->drawn[i].top_ids);
        mem_free(r->drawn[i].top_logprobs);
        mem_free(r->drawn[i].ranks);
        mem_free(r->blocks[i]);
    }
    mem_free(r);
}

/* What the request of token t sees: its rows 0 .. pos[t], through the page table. The draft layer's
 * rows are one token ahead, so before them comes the model's first. */
static uint64_t attend(const struct null_runner *r, const struct batch *b, int32_t t, bool is_draft)
{
    const int32_t *table = b->page_table + (uint64_t)b->request[t] * b->page_stride;
    uint64_t state = is_draft ? rng_hash(r->rows[(uint64_t)table[0] * KV_PAGE_TOKENS]) : 0;
    const uint64_t *rows = is_draft ? r->draft_rows : r->rows;
    for (int32_t p = 0; p <= b->pos[t]; p++) {
        uint64_t page = (uint64_t)table[p / KV_PAGE_TOKENS];
        state = rng_hash(state ^ rows[page * KV_PAGE_TOKENS + (uint64_t)(p % KV_PAGE_TOKENS)]);
    }
    return state;
}

static void write_rows(struct null_runner *r, const struct batch *b, bool is_draft,
                       const int32_t *drawn_before)
{
    for (uint32_t t = 0; t < b->n_token; t++) {
        uint32_t position = (uint32_t)b->pos[t];
        int32_t id = b->ids[t] < 0 ? drawn_before[~b->ids[t]] : b->ids[t];
        if (is_draft) {
            r->draft_rows[b->slot[t]] = row_of(b->next_ids[t], position + 1);
        } else {
            r->rows[b->slot[t]] = row_of(id, position);
        }
    }
}

/* The step of block i_block, whose negative ids are draws of the step before. */
static void compute(struct null_runner *r, const struct step *step, uint32_t i_block)
{
    bool is_draft = step->pass != STEP_MODEL;
    uint32_t before = (i_block + r->base.max_flight - 1) % r->base.max_flight;
    struct batch b;
    batch_locate(&r->base.layout, &step->batch, step->pass, r->blocks[i_block], &b);
    write_rows(r, &b, is_draft, r->drawn[before].ids);
    for (uint32_t i = 0; i < b.n_logit_row; i++) {
        int32_t t = b.logit_rows[i];
        r->states[i] = r->o.skip_attention ? r->rows[b.slot[t]] : attend(r, &b, t, is_draft);
    }
}

static void sample(struct null_runner *r, const struct step *step, uint32_t i_block)
{
    struct drawn *out = &r->drawn[i_block];
    bool is_draft = step->pass != STEP_MODEL;
    struct sample_args args;
    const struct sample_args *a = &args;
    sample_locate(&r->base.layout, &step->sampler, r->blocks[i_block], &args);
    for (uint32_t i = 0; i < a->n_row; i++) {
        const struct sample_row *row = &a->rows[i];
        uint64_t state = r->states[row->logit_row];
        out->ids[i] = row->is_given ? row->given_id
                                    : null_draw(state, row, a->history, a->bias, a->ban, a->mask);
        out->ranks[i] = (uint32_t)(state % 100) + 1;
        if (is_draft && state % 8 < r->o.n_wrong) out->ids[i] = (out->ids[i] + 1) % 2;
        out->logprobs[i] = null_logprob(state);
        for (uint32_t k = 0; k < row->n_top; k++) {
            out->top_ids[i * SAMPLE_TOP_MAX + k] = (int32_t)((state + k) % row->n_vocab_used);
            out->top_logprobs[i * SAMPLE_TOP_MAX + k] = null_logprob(state) - (float)k;
        }
    }
}

static bool is_burning(const struct null_runner *r)
{
    return (r->o.fail_after && r->n_launch >= r->o.fail_after) ||
           (r->o.burns && atomic_load(r->o.burns));
}

static fathom_err launch(struct step_runner *base, const struct step *step)
{
    struct null_runner *r = owned(base);
    const struct batch_shape *b = &step->batch;
    ASSERT(r->n_queued < base->max_flight);
    if (is_burning(r)) return FATHOM_EDEVICE;
    r->n_launch++;
    r->n_prefill = b->n_token - b->n_request;
    if (r->o.n_ahead) *r->o.n_ahead += r->n_queued > 0;
    if (r->o.max_flying && r->n_queued + 1 > *r->o.max_flying) {
        *r->o.max_flying = r->n_queued + 1;
    }
    if (r->o.max_mixed && b->n_request > 1 && b->n_token > *r->o.max_mixed) {
        *r->o.max_mixed = b->n_token;
    }
    if (r->o.n_computed && step->pass == STEP_MODEL) *r->o.n_computed += b->n_token;
    if (!is_async(r)) compute(r, step, 0);
    return FATHOM_OK;
}

static struct work *add_work(struct null_runner *r)
{
    ASSERT(r->n_work < MAX_WORK);
    return &r->queue[(r->i_work + r->n_work++) % MAX_WORK];
}

static fathom_err draw(struct step_runner *base, const struct step *step)
{
    struct null_runner *r = owned(base);
    if (is_async(r)) {
        *add_work(r) = (struct work){.is_step = true, .step = *step, .i_block = r->i_block};
        r->n_queued++;
    } else {
        sample(r, step, 0);
    }
    return FATHOM_OK;
}

static void use_block(struct null_runner *r, uint32_t i)
{
    r->i_block = i;
    r->base.host = r->blocks[i];
}

static void next_block(struct step_runner *base)
{
    struct null_runner *r = owned(base);
    ASSERT(r->n_queued > 0 && r->n_queued < base->max_flight);
    use_block(r, (r->i_block + 1) % base->max_flight);
    memset(base->host, 0x55, base->layout.n_bytes);
}

static void copy_page(struct null_runner *r, uint32_t page, void *host, bool is_out)
{
    const size_t half = NULL_PAGE_BYTES / 2;
    void *parts[] = {&r->rows[page * KV_PAGE_TOKENS], &r->draft_rows[page * KV_PAGE_TOKENS]};
    for (int i = 0; i < 2; i++) {
        char *at = (char *)host + i * half;
        memcpy(is_out ? at : parts[i], is_out ? parts[i] : at, half);
    }
}

/* Does the work that was queued first. */
static struct work *work_off(struct null_runner *r)
{
    ASSERT(r->n_work > 0);
    struct work *w = &r->queue[r->i_work];
    r->i_work = (r->i_work + 1) % MAX_WORK;
    r->n_work--;
    if (w->is_step) {
        compute(r, &w->step, w->i_block);
        sample(r, &w->step, w->i_block);
        if (--r->n_queued == 0) use_block(r, 0);
    } else {
        copy_page(r, w->page, w->host, w->is_out);
    }
    return w;
}

static fathom_err wait(struct step_runner *base, struct step_result *out)
{
    struct null_runner *r = owned(base);
    uint32_t n_part = r->o.n_part ? r->o.n_part : 1;
    uint64_t step_us = r->o.step_us + (uint64_t)r->n_prefill * r->o.token_us;
    for (uint32_t i = 0; (step_us || r->o.gate) && i < n_part; i++) {
        if (r->o.gate) come_to_gate(r->o.gate);
        if (step_us) clock_sleep_us(step_us / n_part);
        atomic_fetch_add(&r->n_moved, 1);
    }
    const struct work *w = NULL;
    while (is_async(r) && (!w || !w->is_step)) w = work_off(r);
    const struct drawn *d = &r->drawn[w ? w->i_block : 0];
    *out = (struct step_result){.ids = d->ids,
                                .logprobs = d->logprobs,
                                .ranks = d->ranks,
                                .top_ids = d->top_ids,
                                .top_logprobs = d->top_logprobs};
    return FATHOM_OK;
}

static const char *fault(struct step_runner *base)
{
    const struct null_runner *r = (const struct null_runner *)base;
    return is_burning(r) ? "the null device burns" : "";
}

static uint64_t progress(const struct step_runner *base)
{
    const struct null_runner *r = (const struct null_runner *)base;
    return r->o.n_part ? atomic_load(&r->n_moved) : 0;
}

static fathom_err move_page(struct null_runner *r, uint32_t page, void *host, bool is_out)
{
    if (is_async(r)) {
        *add_work(r) = (struct work){.is_out = is_out, .page = page, .host = host};
    } else {
        copy_page(r, page, host, is_out);
    }
    return FATHOM_OK;
}

static fathom_err page_out(void *runner, uint32_t page, void *to)
{
    return move_page(owned(runner), page, to, true);
}

static fathom_err page_in(void *runner, uint32_t page, const void *from)
{
    return move_page(owned(runner), page, (void *)from, false);
}

static fathom_err sync_device(struct step_runner *base)
{
    struct null_runner *r = owned(base);
    if (r->o.gate) come_to_gate(r->o.gate);
    while (r->n_work > 0) (void)work_off(r);
    return FATHOM_OK;
}

static fathom_err alloc_host(struct step_runner *base, size_t bytes, void **out, fathom_diag *d)
{
    (void)base;
    *out = mem_alloc_pages(bytes);
    if (!*out) FAIL(d, FATHOM_ENOMEM, "no memory");
    return FATHOM_OK;
}

static void release_host(struct step_runner *base, void *p)
{
    (void)base;
    mem_free_pages(p);
}

static const struct step_runner_ops null_ops = {
    .destroy = destroy,
    .bind = bind,
    .launch = launch,
    .draw = draw,
    .wait = wait,
    .next_block = next_block,
    .fault = fault,
    .progress = progress,
    .page_out = page_out,
    .page_in = page_in,
    .sync = sync_device,
    .alloc_host = alloc_host,
    .release_host = release_host,
};

/* For steps within the limits and ids below n_vocab. */
static fathom_err create_runner(struct step_runner **out, const struct model_limits *limits,
                                uint32_t n_vocab, const struct null_options *o)
{
    *out = NULL;
    struct null_runner *r = mem_calloc(1, sizeof *r);
    if (!r) return FATHOM_ENOMEM;
    size_t n_row = limits->max_logit_row;
    r->base.ops = &null_ops;
    r->o = *o;
    batch_layout_init(&r->base.layout, limits, n_vocab);
    r->rows = mem_calloc((size_t)o->n_page * KV_PAGE_TOKENS, sizeof *r->rows);
    r->draft_rows = mem_calloc((size_t)o->n_page * KV_PAGE_TOKENS, sizeof *r->draft_rows);
    r->states = mem_calloc(n_row, sizeof *r->states);
    bool all = r->rows && r->draft_rows && r->states;
    r->owner = pthread_self();
    r->base.max_flight = o->max_flight ? o->max_flight : 1;
    r->base.prompt_form = o->prompt_form;
    ASSERT(r->base.max_flight <= MAX_FLIGHT);
    for (uint32_t i = 0; i < r->base.max_flight; i++) {
        struct drawn *d = &r->drawn[i];
        d->ids = mem_calloc(n_row, sizeof *d->ids);
        d->logprobs = mem_calloc(n_row, sizeof *d->logprobs);
        d->top_ids = mem_calloc(n_row * SAMPLE_TOP_MAX, sizeof *d->top_ids);
        d->ranks = mem_calloc(n_row, sizeof *d->ranks);
        d->top_logprobs = mem_calloc(n_row * SAMPLE_TOP_MAX, sizeof *d->top_logprobs);
        r->blocks[i] = mem_alloc_aligned(256, r->base.layout.n_bytes);
        all = all && d->ids && d->logprobs && d->top_ids && d->ranks && d->top_logprobs &&
              r->blocks[i];
    }
    if (!all) {
        destroy(&r->base);
        return FATHOM_ENOMEM;
    }
    use_block(r, 0);
    *out = &r->base;
    return FATHOM_OK;
}

/* ---- several lanes ---- */

struct null_lanes {
    struct step_runner base; /* first member */
    struct step_runner *inner[FATHOM_RANKS_MAX];
    void *hosts[FATHOM_RANKS_MAX];
};

static struct null_lanes *lanes_of(void *runner)
{
    return runner;
}

static void show_blocks(struct null_lanes *n)
{
    for (uint32_t i = 0; i < n->base.n_lane; i++) n->hosts[i] = n->inner[i]->host;
    n->base.host = n->hosts[0];
}

static void lanes_destroy(struct step_runner *base)
{
    struct null_lanes *n = lanes_of(base);
    for (uint32_t i = 0; n && i < n->base.n_lane; i++) destroy(n->inner[i]);
    mem_free(n);
}

static fathom_err lanes_bind(struct step_runner *base)
{
    for (uint32_t i = 0; i < base->n_lane; i++) (void)bind(lanes_of(base)->inner[i]);
    return FATHOM_OK;
}

/* Where the row of a position is in a runner's cache. */
static uint64_t *row_at(struct null_runner *r, const struct batch *b, uint32_t position,
                        bool is_draft)
{
    const int32_t *table = b->page_table + (uint64_t)b->share->request * b->page_stride;
    const uint64_t page = (uint64_t)table[position / KV_PAGE_TOKENS];
    uint64_t *rows = is_draft ? r->draft_rows : r->rows;
    return &rows[page * KV_PAGE_TOKENS + position % KV_PAGE_TOKENS];
}

/* A step that shares rows: each lane writes its own, and gets the others'. From then on all have
 * all rows from the request's first one on. */
static void share_rows(struct null_lanes *n, const struct step *const *steps, uint32_t i_block)
{
    const uint32_t n_lane = n->base.n_lane;
    const bool is_draft = steps[0]->pass != STEP_MODEL;
    struct null_runner *r[FATHOM_RANKS_MAX];
    struct batch b[FATHOM_RANKS_MAX];
    for (uint32_t i = 0; i < n_lane; i++) {
        r[i] = owned(n->inner[i]);
        batch_locate(&r[i]->base.layout, &steps[i]->batch, steps[i]->pass, r[i]->blocks[i_block],
                     &b[i]);
        ASSERT(b[i].share && b[i].share->n_row == b[0].share->n_row);
        write_rows(r[i], &b[i], is_draft, NULL);
    }
    const struct batch_share *s = b[0].share;
    uint32_t p = s->first, rank = 0;
    for (uint32_t k = 0; k < s->n_segment; k++) {
        rank = s->segments[k].lane;
        for (const uint32_t end = p + s->segments[k].n_row; p < end; p++) {
            const uint64_t row = *row_at(r[rank], &b[rank], p, is_draft);
            for (uint32_t i = 0; i < n_lane; i++) *row_at(r[i], &b[i], p, is_draft) = row;
        }
    }
    ASSERT(p == s->first + s->n_row);
    while (p-- > 0) {
        for (uint32_t i = 0; i < n_lane; i++)
            ASSERT(*row_at(r[i], &b[i], p, is_draft) == *row_at(r[rank], &b[rank], p, is_draft));
    }
}

/* Of steps that wait to be computed, the first of each lane. */
static void share_queued(struct null_lanes *n)
{
    const struct step *steps[FATHOM_RANKS_MAX];
    uint32_t i_block = 0;
    for (uint32_t i = 0; i < n->base.n_lane; i++) {
        struct null_runner *r = owned(n->inner[i]);
        while (r->n_work > 0 && !r->queue[r->i_work].is_step) (void)work_off(r);
        ASSERT(r->n_work > 0);
        steps[i] = &r->queue[r->i_work].step;
        i_block = r->queue[r->i_work].i_block;
    }
    if (steps[0]->batch.share.n_row > 0) share_rows(n, steps, i_block);
}

static fathom_err lanes_launch(struct step_runner *base, const struct step *step)
{
    const struct step *steps[FATHOM_RANKS_MAX];
    for (uint32_t i = 0; i < base->n_lane; i++) steps[i] = &step[i];
    if (base->max_flight == 1 && step[0].batch.share.n_row > 0)
        share_rows(lanes_of(base), steps, 0);
    for (uint32_t i = 0; i < base->n_lane; i++) {
        ASSERT(step[i].pass == step[0].pass);
        fathom_err err = launch(lanes_of(base)->inner[i], &step[i]);
        if (err) return err;
    }
    return FATHOM_OK;
}

static fathom_err lanes_draw(struct step_runner *base, const struct step *step)
{
    for (uint32_t i = 0; i < base->n_lane; i++) (void)draw(lanes_of(base)->inner[i], &step[i]);
    return FATHOM_OK;
}

static fathom_err lanes_wait(struct step_runner *base, struct step_result *out)
{
    if (base->max_flight > 1) share_queued(lanes_of(base));
    for (uint32_t i = 0; i < base->n_lane; i++) (void)wait(lanes_of(base)->inner[i], &out[i]);
    show_blocks(lanes_of(base));
    return FATHOM_OK;
}

static void lanes_next_block(struct step_runner *base)
{
    for (uint32_t i = 0; i < base->n_lane; i++) next_block(lanes_of(base)->inner[i]);
    show_blocks(lanes_of(base));
}

static const char *lanes_fault(struct step_runner *base)
{
    return fault(lanes_of(base)->inner[0]);
}

static uint64_t lanes_progress(const struct step_runner *base)
{
    return progress(((const struct null_lanes *)base)->inner[0]);
}

static fathom_err lanes_page_out(void *runner, uint32_t page, void *to)
{
    const struct null_lanes *n = lanes_of(runner);
    ASSERT(page / n->base.lane_pages < n->base.n_lane);
    return page_out(n->inner[page / n->base.lane_pages], page % n->base.lane_pages, to);
}

static fathom_err lanes_page_in(void *runner, uint32_t page, const void *from)
{
    const struct null_lanes *n = lanes_of(runner);
    ASSERT(page / n->base.lane_pages < n->base.n_lane);
    /* a record may be on its way out of another lane */
    for (uint32_t i = 0; i < n->base.n_lane; i++) {
        struct null_runner *r = owned(n->inner[i]);
        while (r->n_work > 0 && r->n_queued == 0) (void)work_off(r);
    }
    return page_in(n->inner[page / n->base.lane_pages], page % n->base.lane_pages, from);
}

static fathom_err lanes_sync(struct step_runner *base)
{
    for (uint32_t i = 0; i < base->n_lane; i++) (void)sync_device(lanes_of(base)->inner[i]);
    return FATHOM_OK;
}

static const struct step_runner_ops lanes_ops = {
    .destroy = lanes_destroy,
    .bind = lanes_bind,
    .launch = lanes_launch,
    .draw = lanes_draw,
    .wait = lanes_wait,
    .next_block = lanes_next_block,
    .fault = lanes_fault,
    .progress = lanes_progress,
    .page_out = lanes_page_out,
    .page_in = lanes_page_in,
    .sync = lanes_sync,
    .alloc_host = alloc_host,
    .release_host = release_host,
};

static fathom_err create_lanes(struct step_runner **out, const struct model_limits *limits,
                               uint32_t n_vocab, const struct null_options *o)
{
    if (o->n_lane <= 1) return create_runner(out, limits, n_vocab, o);
    struct null_lanes *n = mem_calloc(1, sizeof *n);
    struct null_options of_others = {.n_page = o->n_page,
                                     .max_flight = o->max_flight,
                                     .n_wrong = o->n_wrong,
                                     .prompt_form = o->prompt_form,
                                     .skip_attention = o->skip_attention,
                                     .n_computed = o->n_computed};
    if (!n) return FATHOM_ENOMEM;
    for (uint32_t i = 0; i < o->n_lane; i++) {
        fathom_err err = create_runner(&n->inner[i], limits, n_vocab, i == 0 ? o : &of_others);
        n->base.n_lane = i + 1;
        if (err == FATHOM_OK) continue;
        lanes_destroy(&n->base);
        return err;
    }
    n->base.ops = &lanes_ops;
    n->base.layout = n->inner[0]->layout;
    n->base.max_flight = n->inner[0]->max_flight;
    n->base.prompt_form = o->prompt_form;
    n->base.lane_pages = o->n_page;
    n->base.shares_rows = true;
    n->base.hosts = n->hosts;
    show_blocks(n);
    *out = &n->base;
    return FATHOM_OK;
}

fathom_err null_engine_open(fathom_engine **out, const struct null_engine_options *o,
                            fathom_diag *d)
{
    *out = NULL;
    uint32_t max_score = o->max_score ? o->max_score : 4;
    struct model_limits limits = {
        .max_token = o->max_num_batched_tokens,
        .max_request = o->max_num_seqs,
        .max_context = o->max_model_len,
        .max_logit_row = o->max_num_seqs * (1 + o->n_draft) + max_score,
        .with_mtp = o->n_draft > 0,
    };
    struct engine_config c = {
        .info = {.model_type = "null",
                 .backend = "null",
                 .n_vocab = o->n_vocab,
                 .max_model_len = o->max_model_len,
                 .max_num_seqs = o->max_num_seqs,
                 .max_num_batched_tokens = o->max_num_batched_tokens,
                 .n_draft = o->n_draft,
                 .n_page = o->runner.n_page,
                 .bos_id = 0,
                 .eos_ids = {1},
                 .n_eos = 1},
        .max_queued = o->max_queued,
        .admission = o->admission,
        .priorities = o->priorities,
        .n_vocab_used = o->n_vocab,
        .max_score = max_score,
        .seed = o->seed,
        .no_prefix_cache = o->no_prefix_cache,
        .share_prompts = o->share_prompts,
        .offload = o->offload,
    };
    struct step_runner *runner = NULL;
    fathom_err err = create_lanes(&runner, &limits, o->n_vocab, &o->runner);
    if (err != FATHOM_OK) return err;
    err = engine_create(out, &c, runner, NULL, d);
    if (err != FATHOM_OK) runner->ops->destroy(runner);
    return err;
}
