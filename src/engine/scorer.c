/* scorer.c - logits of whole texts
 *
 * One rank computes on the caller's thread. Of several each has a thread of its own, which loads
 * its part and then makes the same steps as the others: the caller tells a step under the lock and
 * waits until all have done it. Between steps nobody touches a seat.
 *
 *   n_told   steps told so far; a seat's thread has done as many of them as it has seen
 *   n_busy   seats that are loading, or at the step told last
 */
#include "engine/scorer.h"

#include <pthread.h>
#include <stdio.h>

#include "backend/backend.h"
#include "base/assert.h"
#include "base/fail.h"
#include "base/mem.h"
#include "base/os.h"
#include "checkpoint/checkpoint.h"
#include "engine/memory_plan.h"
#include "engine/runner.h"
#include "engine/text_batch.h"
#include "model/config.h"
#include "model/weights.h"

struct sources {
    const struct engine_settings *settings;
    const struct model_config *config;
    const struct checkpoint *checkpoint;
};

/* A rank. */
struct seat {
    struct scorer *scorer;
    uint32_t i;
    struct engine_settings settings;
    struct backend *b;
    struct model *model;
    struct text_batch text;
    pthread_t thread;
    bool has_thread;
    fathom_err err;
    fathom_diag diag;
};

struct scorer {
    struct seat *seats;
    uint32_t n_seat;
    uint32_t n_vocab;
    struct backend_caps caps;
    const struct sources *from; /* while it is opened */

    pthread_mutex_t lock;
    pthread_cond_t told, done;
    uint64_t n_told;
    uint32_t n_busy;
    bool ends;
    const int32_t *ids; /* the step told last, with n and logits */
    uint32_t n;
    float *logits;
};

/* What the plan says of the settings' machine, and that it fits. */
static fathom_err check_memory(const struct engine_settings *s, const struct model_config *config,
                               const struct checkpoint *c, fathom_diag *d)
{
    struct memory_plan plan;
    return memory_plan_make_here(&plan, s, config, c, d);
}

/* ---- a rank ---------------------------------------------------------------------------------- */

static fathom_err load(struct seat *t, const struct sources *from)
{
    const struct engine_settings *s = &t->settings;
    struct model_weights weights;
    TRY(t->b->ops->bind_thread(t->b));
    TRY(weights_bind(&weights, from->checkpoint, from->config, &s->place.parallel, &t->diag));
    fathom_err err =
        model_create(&t->model, t->b, from->config, &weights, &s->limits, &s->loading, &t->diag);
    weights_release(&weights);
    if (err) return err;
    return text_batch_open(&t->text, t->b, s, from->config, &t->diag);
}

/* A row of logits is whole on its owner, who reads it. */
static fathom_err read_logits(struct seat *t)
{
    const struct scorer *r = t->scorer;
    const struct backend_ops *ops = t->b->ops;
    if (r->n_seat == 1) {
        return ops->buffer_read(t->b, model_logits(t->model), 0, r->n, r->n_vocab, r->logits);
    }
    for (uint32_t i = 0; i < r->n; i++) {
        if (logit_row_owner(i, r->n_seat) != t->i) continue;
        TRY(ops->buffer_read(t->b, model_logits(t->model), i, 1, r->n_vocab,
                             r->logits + (size_t)i * r->n_vocab));
    }
    return FATHOM_OK;
}

static fathom_err step(struct seat *t)
{
    const struct scorer *r = t->scorer;
    struct batch batch;
    TRY(text_batch_next(&t->text, r->ids, r->n, true, &batch));
    TRY(model_forward(t->model, &batch, &t->text.kv));
    TRY(read_logits(t));
    return t->b->ops->sync(t->b);
}

static void note_done(struct seat *t, fathom_err err)
{
    struct scorer *r = t->scorer;
    if (err && t->b->ops->abandon) t->b->ops->abandon(t->b); /* nobody waits for it */
    pthread_mutex_lock(&r->lock);
    if (!t->err) t->err = err;
    if (--r->n_busy == 0) pthread_cond_signal(&r->done);
    pthread_mutex_unlock(&r->lock);
}

/* Waits for a step after `seen`; false: there is none any more. */
static bool wait_for_step(struct scorer *r, uint64_t seen)
{
    pthread_mutex_lock(&r->lock);
    while (r->n_told == seen && !r->ends) pthread_cond_wait(&r->told, &r->lock);
    const bool goes_on = !r->ends;
    pthread_mutex_unlock(&r->lock);
    return goes_on;
}

static void *seat_main(void *arg)
{
    struct seat *t = arg;
    char name[16];
    (void)snprintf(name, sizeof name, "rank %u", t->i);
    os_name_thread(name);
    note_done(t, load(t, t->scorer->from));
    for (uint64_t n = 0; wait_for_step(t->scorer, n); n++) {
        note_done(t, t->err ? t->err : step(t));
    }
    return NULL;
}

/* ---- all ranks ------------------------------------------------------------------------------- */

/* Waits until no rank is at work. Of several errors that of the rank that failed by itself. */
static const struct seat *await_all(struct scorer *r)
{
    const struct seat *failed = NULL;
    pthread_mutex_lock(&r->lock);
    while (r->n_busy > 0) pthread_cond_wait(&r->done, &r->lock);
    pthread_mutex_unlock(&r->lock);
    for (uint32_t i = 0; i < r->n_seat; i++) {
        const struct seat *t = &r->seats[i];
        if (t->err && (!failed || failed->err == FATHOM_EPEER)) failed = t;
    }
    return failed;
}

static fathom_err load_all(struct scorer *r, fathom_diag *d)
{
    r->n_busy = r->n_seat;
    for (uint32_t i = 0; i < r->n_seat; i++) {
        struct seat *t = &r->seats[i];
        t->has_thread = pthread_create(&t->thread, NULL, seat_main, t) == 0;
        if (!t->has_thread) {
            (void)diag_fail(&t->diag, FATHOM_EIO, "its thread cannot be started");
            note_done(t, FATHOM_EIO);
        }
    }
    const struct seat *failed = await_all(r);
    if (!failed) return FATHOM_OK;
    FAIL(d, failed->err, "rank %u of %u: %s", failed->i, r->n_seat,
         failed->diag.text[0] ? failed->diag.text : fathom_err_text(failed->err));
}

static fathom_err make_backends(struct scorer *r, const struct sources *from, fathom_diag *d)
{
    struct backend *all[PARALLEL_RANKS_MAX];
    for (uint32_t i = 0; i < r->n_seat; i++) {
        struct seat *t = &r->seats[i];
        fathom_diag inner = {{0}};
        *t = (struct seat){.scorer = r, .i = i, .settings = *from->settings};
        settings_place(&t->settings.place, from->settings, i);
        if (r->n_seat > 1) t->settings.loading.n_thread = t->settings.place.n_thread;
        if (i > 0) {
            t->settings.loading.on_load = NULL;
            t->settings.loading.let_go = NULL;
        }
        fathom_err err = runner_make_backend(&t->b, &t->settings, from->config, &inner);
        if (err && r->n_seat == 1) FAIL(d, err, "%s", inner.text);
        if (err) FAIL(d, err, "rank %u of %u: %s", i, r->n_seat, inner.text);
        all[i] = t->b;
    }
    r->seats[0].b->ops->get_caps(r->seats[0].b, &r->caps);
    return r->n_seat > 1 ? backend_join(all, r->n_seat, d) : FATHOM_OK;
}

static fathom_err open_seats(struct scorer *r, const struct sources *from, fathom_diag *d)
{
    r->seats = mem_calloc(r->n_seat, sizeof *r->seats);
    if (!r->seats) FAIL(d, FATHOM_ENOMEM, "no memory for %u ranks", r->n_seat);
    TRY(make_backends(r, from, d));
    if (r->n_seat == 1) {
        fathom_err err = load(&r->seats[0], from);
        return err ? diag_fail(d, err, "%s", r->seats[0].diag.text) : FATHOM_OK;
    }
    r->from = from;
    fathom_err err = load_all(r, d);
    r->from = NULL;
    return err;
}

fathom_err scorer_open(struct scorer **out, const struct engine_settings *settings,
                       const struct model_config *config, const struct checkpoint *c,
                       fathom_diag *d)
{
    struct engine_settings s = *settings;
    const struct sources from = {&s, config, c};
    *out = NULL;
    if (s.place.parallel.is_slice || s.hosts || s.place.parallel.dp.size > 1) {
        FAIL(d, FATHOM_EUNSUPPORTED,
             "texts are scored by ranks of one host that share every layer: "
             "--tensor-parallel-size alone");
    }
    if (s.limits.max_token > SCORER_STEP_TOKENS) s.limits.max_token = SCORER_STEP_TOKENS;
    s.limits.max_logit_row = s.limits.max_token;
    s.limits.max_request = 1;
    s.limits.with_mtp = false;
    TRY(check_memory(&s, config, c, d));
    struct scorer *r = mem_calloc(1, sizeof *r);
    if (!r) FAIL(d, FATHOM_ENOMEM, "no memory for the model's scorer");
    r->n_vocab = config->n_vocab;
    r->n_seat = settings_n_rank(&s);
    pthread_mutex_init(&r->lock, NULL);
    pthread_cond_init(&r->told, NULL);
    pthread_cond_init(&r->done, NULL);
    fathom_err err = open_seats(r, &from, d);
    if (err) {
        scorer_close(r);
        return err;
    }
    *out = r;
    return FATHOM_OK;
}

void scorer_close(struct scorer *r)
{
    if (!r) return;
    pthread_mutex_lock(&r->lock);
    r->ends = true;
    pthread_cond_broadcast(&r->told);
    pthread_mutex_unlock(&r->lock);
    for (uint32_t i = 0; r->seats && i < r->n_seat; i++) {
        if (r->seats[i].has_thread) pthread_join(r->seats[i].thread, NULL);
    }
    for (uint32_t i = 0; r->seats && i < r->n_seat; i++) {
        struct seat *t = &r->seats[i];
        if (!t->b) continue;
        text_batch_close(&t->text);
        model_destroy(t->model);
        t->b->ops->destroy(t->b);
    }
    pthread_cond_destroy(&r->done);
    pthread_cond_destroy(&r->told);
    pthread_mutex_destroy(&r->lock);
    mem_free(r->seats);
    mem_free(r);
}

uint32_t scorer_step_tokens(const struct scorer *r)
{
    return r->seats[0].text.max_token;
}

const char *scorer_backend_name(const struct scorer *r)
{
    return r->caps.name;
}

const char *scorer_device(const struct scorer *r)
{
    return r->caps.device;
}

void scorer_begin(struct scorer *r)
{
    for (uint32_t i = 0; i < r->n_seat; i++) r->seats[i].text.n_past = 0;
}

fathom_err scorer_step(struct scorer *r, const int32_t *ids, uint32_t n, float *logits)
{
    r->ids = ids;
    r->n = n;
    r->logits = logits;
    if (r->n_seat == 1) return step(&r->seats[0]);
    pthread_mutex_lock(&r->lock);
    ASSERT(r->n_busy == 0 && !r->ends);
    r->n_busy = r->n_seat;
    r->n_told++;
    pthread_cond_broadcast(&r->told);
    pthread_mutex_unlock(&r->lock);
    const struct seat *failed = await_all(r);
    return failed ? failed->err : FATHOM_OK;
}
