/* fake_engine.c - fathom.h over scripts */
#include "support/fake_engine.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/fail.h"
#include "fathom/follow.h"

#define END_OF_SENTENCE "<｜end▁of▁sentence｜>"

/* No token is made while so many events wait to be polled: who polls is not outrun. */
enum { EOS_ID = 1, MAX_STOP = 64, AHEAD_MAX = 1 << 14, HOLD_US = 5000 };

/* One request. Waiting while !running. */
struct request {
    struct request *next;
    uint64_t id;
    void *user;
    struct fake_plan plan;
    uint32_t n_prompt;
    int32_t *prompt; /* [n_prompt] until its tokens have been told, if they are asked for */
    uint32_t max_tokens;
    fathom_sampling sampling;
    fathom_constraint constraint;
    int32_t stop_ids[MAX_STOP];
    uint32_t n_output;
    uint64_t submit_us, first_us, due_us;
    bool running;
    bool cancelled;
};

struct fathom_engine {
    struct fake_options o;
    fathom_info info;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t work;   /* the step thread waits */
    pthread_cond_t events; /* fathom_poll waits */
    struct request *first;
    struct request **last;
    fathom_event *queue;
    size_t first_event, n_event, cap_event; /* queue[first_event .. + n_event) wait */
    uint64_t next_id;
    uint64_t n_submitted, n_alive, n_cancelled;
    uint64_t n_reset;
    fathom_stats stats;
    fathom_sampling last_sampling;
    uint32_t last_n_prompt;
    char fault[256];
    bool woken, ending, stalled;
    uint64_t stalled_us;
    struct tokenizer *tokenizer; /* of fathom_open */
};

static uint64_t now_us(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000u + (uint64_t)t.tv_nsec / 1000u;
}

static void *must(void *p)
{
    if (p) return p;
    fprintf(stderr, "fake engine: out of memory\n");
    abort();
}

static void push_event(fathom_engine *e, const fathom_event *event)
{
    if (e->n_event == 0) e->first_event = 0;
    if (e->first_event + e->n_event == e->cap_event) {
        e->cap_event = e->cap_event ? e->cap_event * 2 : 64;
        e->queue = must(realloc(e->queue, e->cap_event * sizeof *e->queue));
    }
    e->queue[e->first_event + e->n_event++] = *event;
    (void)pthread_cond_broadcast(&e->events);
}

static void finish(fathom_engine *e, struct request *r, fathom_finish why, int32_t stop_id)
{
    uint64_t now = now_us();
    fathom_event event = {.kind = FATHOM_EVENT_FINISH,
                          .id = r->id,
                          .user = r->user,
                          .finish = why,
                          .stop_id = stop_id,
                          .n_prompt = r->n_prompt,
                          .n_output = r->n_output,
                          .n_cached = r->plan.n_cached,
                          .queue_us = 1,
                          .first_us = r->first_us,
                          .total_us = now - r->submit_us};
    push_event(e, &event);
    e->n_alive--;
    e->stats.n_finished++;
    if (why == FATHOM_FINISH_CANCEL) e->n_cancelled++;
    for (struct request **p = &e->first; *p; p = &(*p)->next) {
        if (*p != r) continue;
        *p = r->next;
        if (!r->next) e->last = p;
        break;
    }
    token_list_free(&r->plan.say);
    if (r->constraint.ops) r->constraint.ops->destroy(r->constraint.state);
    free(r->prompt);
    free(r);
}

static bool is_stop_id(const fathom_engine *e, const struct request *r, int32_t id)
{
    if (r->n_output < r->sampling.min_tokens) return false;
    if (id == e->o.eos_id && !r->sampling.ignore_eos) return true;
    for (uint32_t i = 0; i < r->sampling.n_stop_id; i++) {
        if (r->stop_ids[i] == id) return true;
    }
    return false;
}

static int32_t next_token(const fathom_engine *e, const struct request *r)
{
    uint64_t repeat = r->plan.n_repeat ? r->plan.n_repeat : 1;
    if (r->plan.say.n && r->n_output < r->plan.say.n * repeat) {
        return r->plan.say.ids[r->n_output % r->plan.say.n];
    }
    if (!r->sampling.ignore_eos && r->n_output >= r->sampling.min_tokens) return e->o.eos_id;
    return r->plan.say.n ? r->plan.say.ids[r->n_output % r->plan.say.n] : 20 + 'x';
}

/* Under a constraint the script must say what it allows, by its mask too. */
static bool may_say(const fathom_engine *e, struct request *r, int32_t id)
{
    uint32_t n_word = (e->info.n_vocab + 31) / 32;
    if (!r->constraint.ops) return true;
    uint32_t *words = must(calloc(n_word, sizeof *words));
    r->constraint.ops->fill_mask(r->constraint.state, words, n_word);
    bool is_set = words[id / 32] >> (id % 32) & 1;
    free(words);
    if (r->constraint.ops->accept(r->constraint.state, id) != is_set) abort();
    return is_set;
}

static void emit_token(fathom_engine *e, struct request *r)
{
    int32_t id = next_token(e, r);
    if (!may_say(e, r, id)) {
        finish(e, r, FATHOM_FINISH_CONSTRAINT, -1);
        return;
    }
    uint64_t now = now_us();
    fathom_event event = {.kind = FATHOM_EVENT_TOKEN,
                          .id = r->id,
                          .user = r->user,
                          .token = id,
                          .is_stop = is_stop_id(e, r, id),
                          .n_cached = r->plan.n_cached};
    if (r->sampling.logprobs) {
        event.logprob = -0.5f;
        event.n_top = r->sampling.n_top_logprobs;
        for (uint32_t i = 0; i < event.n_top; i++) {
            event.top[i].id = i == 0 ? id : (int32_t)(20 + 'a' + i);
            event.top[i].logprob = -0.5f - (float)i;
        }
    }
    if (r->n_output++ == 0) r->first_us = now - r->submit_us;
    e->stats.n_output_token++;
    r->due_us = now + r->plan.step_us;
    push_event(e, &event);
    if (event.is_stop)
        finish(e, r, FATHOM_FINISH_STOP, id);
    else if (r->n_output >= r->max_tokens)
        finish(e, r, FATHOM_FINISH_LENGTH, -1);
}

/* The prompt's tokens from the second on: number i has log-probability -i / 8 and comes second,
 * behind 'b'. */
static void tell_prompt(fathom_engine *e, struct request *r)
{
    for (uint32_t i = 1; r->prompt && i < r->n_prompt; i++) {
        fathom_event event = {.kind = FATHOM_EVENT_PROMPT,
                              .id = r->id,
                              .user = r->user,
                              .token = r->prompt[i],
                              .logprob = -(float)i / 8,
                              .place = 2,
                              .n_top = r->sampling.n_prompt_top_logprobs};
        if (event.n_top > 2) event.n_top = 2;
        event.top[0] = (fathom_logprob){20 + 'b', -0.0625f};
        event.top[1] = (fathom_logprob){r->prompt[i], -(float)i / 8};
        push_event(e, &event);
    }
    free(r->prompt);
    r->prompt = NULL;
}

static void fail_all(fathom_engine *e, const char *why)
{
    (void)snprintf(e->fault, sizeof e->fault, "%s", why);
    e->stats.failed = true;
    while (e->first) finish(e, e->first, FATHOM_FINISH_ERROR, -1);
}

static void stall(fathom_engine *e, bool on)
{
    e->stalled = on;
    e->stalled_us = now_us();
}

/* Whether the script has something else in mind than an end of this request. */
static bool ends_badly(fathom_engine *e, struct request *r)
{
    uint64_t repeat = r->plan.n_repeat ? r->plan.n_repeat : 1;
    bool badly = r->plan.fails || r->plan.stalls || r->plan.expires;
    if (!badly || r->n_output < r->plan.say.n * repeat) return false;
    if (r->plan.fails) {
        fail_all(e, "the scripted device is lost");
    } else if (r->plan.expires) {
        finish(e, r, FATHOM_FINISH_EXPIRED, -1);
    } else {
        stall(e, true);
    }
    return true;
}

/* One pass over all requests; returns when the next is due. */
static uint64_t step(fathom_engine *e)
{
    uint64_t next = UINT64_MAX, now = now_us();
    uint32_t n_running = 0, n_waiting = 0;
    struct request *after;
    for (struct request *r = e->first; r; r = after) {
        after = r->next;
        if (r->cancelled) {
            finish(e, r, FATHOM_FINISH_CANCEL, -1);
            continue;
        }
        if (e->o.max_running && n_running >= e->o.max_running) {
            n_waiting++;
            continue;
        }
        if (!r->running) {
            r->running = true;
            tell_prompt(e, r);
            e->stats.n_prefix_query_token += r->n_prompt;
            e->stats.n_prefix_hit_token += r->plan.n_cached;
            r->due_us = now + r->plan.first_us;
        }
        n_running++;
        if (e->stalled || e->n_event >= AHEAD_MAX) continue;
        if (r->plan.hold[0] && access(r->plan.hold, F_OK) != 0) r->due_us = now + HOLD_US;
        uint64_t due = r->due_us;
        if (due <= now) {
            if (ends_badly(e, r)) {
                next = now;
                break;
            }
            emit_token(e, r);
            due = now;
        }
        if (due < next) next = due;
    }
    if (!e->first) n_running = n_waiting = 0;
    e->stats.n_running = n_running;
    e->stats.n_waiting = n_waiting;
    if (n_running && !e->stalled) e->stats.n_step++;
    return next;
}

static void wait_until(pthread_cond_t *c, pthread_mutex_t *m, uint64_t us)
{
    struct timespec t = {.tv_sec = (time_t)(us / 1000000u),
                         .tv_nsec = (long)(us % 1000000u) * 1000};
    (void)pthread_cond_timedwait(c, m, &t);
}

static void *engine_main(void *arg)
{
    fathom_engine *e = arg;
    (void)pthread_mutex_lock(&e->lock);
    while (!e->ending) {
        uint64_t next = step(e);
        if (next == UINT64_MAX)
            (void)pthread_cond_wait(&e->work, &e->lock);
        else if (next > now_us())
            wait_until(&e->work, &e->lock, next);
        else {
            /* let pollers and submitters in */
            (void)pthread_mutex_unlock(&e->lock);
            (void)pthread_mutex_lock(&e->lock);
        }
    }
    while (e->first) finish(e, e->first, FATHOM_FINISH_CANCEL, -1);
    (void)pthread_mutex_unlock(&e->lock);
    return NULL;
}

fathom_engine *fake_engine_open(const struct fake_options *o)
{
    fathom_engine *e = must(calloc(1, sizeof *e));
    pthread_condattr_t attr;
    e->o = *o;
    if (!e->o.eos_id) e->o.eos_id = EOS_ID;
    e->last = &e->first;
    e->next_id = 1;
    e->info = (fathom_info){.model_type = "deepseek_v32",
                            .backend = "fake",
                            .n_vocab = o->n_vocab ? o->n_vocab : 276,
                            .max_model_len = o->max_model_len ? o->max_model_len : 4096,
                            .max_num_seqs = o->max_running ? o->max_running : 64,
                            .max_num_batched_tokens = 2048,
                            .max_requests = o->max_requests ? o->max_requests : UINT32_MAX,
                            .n_page = 64,
                            .n_lane = 1,
                            .bos_id = 0,
                            .eos_ids = {e->o.eos_id},
                            .n_eos = 1,
                            .default_temperature = o->temperature > 0 ? o->temperature : -1.0f,
                            .default_top_p = o->top_p > 0 ? o->top_p : -1.0f,
                            .default_top_k = -1};
    e->stats.n_page = e->stats.n_page_free = 64;
    e->stats.n_lane = 1;
    (void)pthread_mutex_init(&e->lock, NULL);
    (void)pthread_condattr_init(&attr);
    (void)pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&e->work, &attr);
    (void)pthread_cond_init(&e->events, &attr);
    (void)pthread_condattr_destroy(&attr);
    if (pthread_create(&e->thread, NULL, engine_main, e) != 0) abort();
    return e;
}

/* ---- fathom.h ------------------------------------------------------------------------------ */

static fathom_err open_tokenizer(struct tokenizer **out, const fathom_options *o, fathom_diag *d)
{
    char path[4096];
    if (o->bundle) {
        for (size_t i = 0; i < o->bundle->n_file; i++) {
            const fathom_bundle_file *f = &o->bundle->files[i];
            if (strcmp(f->name, "tokenizer.json") != 0) continue;
            return tokenizer_open(out, (const char *)f->data, f->size, f->name, d);
        }
        return FATHOM_ENOTFOUND;
    }
    (void)snprintf(path, sizeof path, "%s/tokenizer.json", o->model_dir);
    return tokenizer_open_file(out, path, d);
}

/* As long as there is a file "hold" in the directory of the tiers; "seen" tells that it waits. */
static void load_slowly(const char *dir)
{
    char hold[512], seen[512];
    if (!dir) return;
    (void)snprintf(hold, sizeof hold, "%s/hold", dir);
    (void)snprintf(seen, sizeof seen, "%s/seen", dir);
    if (access(hold, F_OK) != 0) return;
    FILE *f = fopen(seen, "we");
    if (f) (void)fclose(f);
    while (access(hold, F_OK) == 0) (void)usleep(HOLD_US);
}

fathom_err fathom_follow(const fathom_options *o, fathom_diag *d)
{
    (void)o;
    FAIL(d, FATHOM_EUNSUPPORTED, "the scripted engine follows nobody");
}

fathom_err fathom_open(fathom_engine **out, const fathom_options *o, fathom_diag *d)
{
    struct tokenizer *t;
    fathom_err err = open_tokenizer(&t, o, d);
    if (err) return err;
    load_slowly(o->offload_dir);
    *out = fake_engine_open(&(struct fake_options){.script = fake_script_directives,
                                                   .arg = t,
                                                   .n_vocab = (uint32_t)tokenizer_n_token(t),
                                                   .eos_id = tokenizer_find(t, END_OF_SENTENCE)});
    (*out)->tokenizer = t;
    return FATHOM_OK;
}

void fathom_hurry(fathom_engine *e)
{
    (void)e; /* it keeps no pages */
}

void fathom_close(fathom_engine *e)
{
    if (!e) return;
    (void)pthread_mutex_lock(&e->lock);
    e->ending = true;
    (void)pthread_cond_broadcast(&e->work);
    (void)pthread_mutex_unlock(&e->lock);
    (void)pthread_join(e->thread, NULL);
    (void)pthread_mutex_destroy(&e->lock);
    (void)pthread_cond_destroy(&e->work);
    (void)pthread_cond_destroy(&e->events);
    tokenizer_close(e->tokenizer);
    free(e->queue);
    free(e);
}

const fathom_info *fathom_get_info(const fathom_engine *e)
{
    return &e->info;
}

fathom_err fathom_get_file(fathom_engine *e, const char *name, const char **data, size_t *n)
{
    if (!e->o.tokenizer_config || strcmp(name, "tokenizer_config.json") != 0) {
        return FATHOM_ENOTFOUND;
    }
    *data = e->o.tokenizer_config;
    *n = strlen(*data);
    return FATHOM_OK;
}

void fathom_sampling_init(fathom_sampling *s)
{
    *s = (fathom_sampling){.temperature = 1.0f, .top_p = 1.0f, .repetition_penalty = 1.0f};
}

static fathom_err refuse(fathom_diag *d, fathom_err err, const char *text)
{
    if (d) (void)snprintf(d->text, sizeof d->text, "%s", text);
    return err;
}

static fathom_err admit(fathom_engine *e, const fathom_request *r, fathom_diag *d)
{
    if (e->stats.failed) return refuse(d, FATHOM_EDEVICE, e->fault);
    if (e->o.max_requests && e->n_alive >= e->o.max_requests) {
        return refuse(d, FATHOM_EBUSY, "the queue is full");
    }
    if ((uint64_t)r->n_prompt + r->sampling.max_tokens > e->info.max_model_len) {
        return refuse(d, FATHOM_ELIMIT, "too long for the context");
    }
    return FATHOM_OK;
}

fathom_err fathom_submit(fathom_engine *e, const fathom_request *r, uint64_t *id, fathom_diag *d)
{
    struct fake_plan plan = {0};
    if (e->o.script) e->o.script(e->o.arg, r, &plan);
    (void)pthread_mutex_lock(&e->lock);
    fathom_err err = plan.refuse ? refuse(d, plan.refuse, plan.refuse_text) : admit(e, r, d);
    if (!err) {
        struct request *q = must(calloc(1, sizeof *q));
        q->id = *id = e->next_id++;
        q->user = r->user;
        q->plan = plan;
        q->n_prompt = r->n_prompt;
        q->sampling = r->sampling;
        q->constraint = r->constraint;
        if (r->sampling.prompt_logprobs) {
            q->prompt = must(malloc(r->n_prompt * sizeof *q->prompt));
            memcpy(q->prompt, r->prompt, r->n_prompt * sizeof *q->prompt);
        }
        for (uint32_t i = 0; i < r->sampling.n_stop_id && i < MAX_STOP; i++) {
            q->stop_ids[i] = r->sampling.stop_ids[i];
        }
        q->max_tokens =
            r->sampling.max_tokens ? r->sampling.max_tokens : e->info.max_model_len - r->n_prompt;
        q->submit_us = now_us();
        *e->last = q;
        e->last = &q->next;
        e->n_alive++;
        e->n_submitted++;
        e->last_sampling = r->sampling;
        e->last_n_prompt = r->n_prompt;
        (void)pthread_cond_broadcast(&e->work);
    }
    (void)pthread_mutex_unlock(&e->lock);
    if (err) token_list_free(&plan.say);
    return err;
}

void fathom_cancel(fathom_engine *e, uint64_t id)
{
    (void)pthread_mutex_lock(&e->lock);
    for (struct request *r = e->first; r; r = r->next) {
        if (r->id == id) r->cancelled = true;
    }
    (void)pthread_cond_broadcast(&e->work);
    (void)pthread_mutex_unlock(&e->lock);
}

size_t fathom_poll(fathom_engine *e, fathom_event *events, size_t max, int timeout_ms)
{
    uint64_t end = now_us() + (uint64_t)(timeout_ms > 0 ? timeout_ms : 0) * 1000u;
    (void)pthread_mutex_lock(&e->lock);
    while (e->n_event == 0 && !e->woken && timeout_ms != 0) {
        if (timeout_ms < 0)
            (void)pthread_cond_wait(&e->events, &e->lock);
        else if (now_us() < end)
            wait_until(&e->events, &e->lock, end);
        else
            break;
    }
    e->woken = false;
    size_t n = e->n_event < max ? e->n_event : max;
    if (n) {
        memcpy(events, e->queue + e->first_event, n * sizeof *events);
        if (e->n_event >= AHEAD_MAX) (void)pthread_cond_broadcast(&e->work);
        e->first_event += n;
        e->n_event -= n;
    }
    (void)pthread_mutex_unlock(&e->lock);
    return n;
}

void fathom_wake(fathom_engine *e)
{
    (void)pthread_mutex_lock(&e->lock);
    e->woken = true;
    (void)pthread_cond_broadcast(&e->events);
    (void)pthread_mutex_unlock(&e->lock);
}

void fathom_reset_cache(fathom_engine *e)
{
    (void)pthread_mutex_lock(&e->lock);
    e->n_reset++;
    (void)pthread_mutex_unlock(&e->lock);
}

uint64_t fake_engine_n_reset(fathom_engine *e)
{
    (void)pthread_mutex_lock(&e->lock);
    uint64_t n = e->n_reset;
    (void)pthread_mutex_unlock(&e->lock);
    return n;
}

void fathom_watch_experts(fathom_engine *e, bool on)
{
    (void)e;
    (void)on;
}

void fathom_get_stats(fathom_engine *e, fathom_stats *out)
{
    (void)pthread_mutex_lock(&e->lock);
    *out = e->stats;
    out->progress = e->stalled ? e->stalled_us : now_us();
    (void)pthread_mutex_unlock(&e->lock);
}

const char *fathom_fault(fathom_engine *e)
{
    (void)pthread_mutex_lock(&e->lock);
    const char *fault = e->fault;
    (void)pthread_mutex_unlock(&e->lock);
    return fault;
}

/* ---- control ------------------------------------------------------------------------------- */

void fake_engine_fail(fathom_engine *e, const char *why)
{
    (void)pthread_mutex_lock(&e->lock);
    fail_all(e, why);
    (void)pthread_mutex_unlock(&e->lock);
}

void fake_engine_stall(fathom_engine *e, bool on)
{
    (void)pthread_mutex_lock(&e->lock);
    stall(e, on);
    (void)pthread_cond_broadcast(&e->work);
    (void)pthread_mutex_unlock(&e->lock);
}

static uint64_t read_counter(fathom_engine *e, const uint64_t *counter)
{
    (void)pthread_mutex_lock(&e->lock);
    uint64_t n = *counter;
    (void)pthread_mutex_unlock(&e->lock);
    return n;
}

uint64_t fake_engine_n_submitted(fathom_engine *e)
{
    return read_counter(e, &e->n_submitted);
}

uint64_t fake_engine_n_alive(fathom_engine *e)
{
    return read_counter(e, &e->n_alive);
}

uint64_t fake_engine_n_cancelled(fathom_engine *e)
{
    return read_counter(e, &e->n_cancelled);
}

fathom_sampling fake_engine_last(fathom_engine *e, uint32_t *n_prompt)
{
    (void)pthread_mutex_lock(&e->lock);
    fathom_sampling s = e->last_sampling;
    *n_prompt = e->last_n_prompt;
    (void)pthread_mutex_unlock(&e->lock);
    return s;
}

/* ---- scripts ------------------------------------------------------------------------------- */

/* Appends the tokens of text, markup included. */
static void say(struct fake_plan *p, const struct tokenizer *t, const char *text)
{
    if (tokenizer_encode(t, text, strlen(text), TOKENIZER_MARKUP_ON, &p->say) != FATHOM_OK) abort();
}

static void refuse_by_name(struct fake_plan *p, const char *name)
{
    p->refuse = strncmp(name, "busy", 4) == 0    ? FATHOM_EBUSY
                : strncmp(name, "limit", 5) == 0 ? FATHOM_ELIMIT
                                                 : FATHOM_EDEVICE;
    (void)snprintf(p->refuse_text, sizeof p->refuse_text, "refused by the script");
}

static void obey(struct fake_plan *p, const struct tokenizer *t, const char *text)
{
    for (const char *c = text; c && *c; c = strchr(c, ';') ? strchr(c, ';') + 1 : NULL) {
        if (strncmp(c, "say=", 4) == 0) {
            say(p, t, c + 4);
            return;
        }
        if (strncmp(c, "repeat=", 7) == 0) p->n_repeat = (uint32_t)strtoul(c + 7, NULL, 10);
        if (strncmp(c, "first_ms=", 9) == 0) {
            p->first_us = 1000 * (uint32_t)strtoul(c + 9, NULL, 10);
        }
        if (strncmp(c, "step_ms=", 8) == 0) {
            p->step_us = 1000 * (uint32_t)strtoul(c + 8, NULL, 10);
        }
        if (strncmp(c, "hold=", 5) == 0) {
            (void)snprintf(p->hold, sizeof p->hold, "%.*s", (int)strcspn(c + 5, ";"), c + 5);
        }
        if (strncmp(c, "cached=", 7) == 0) p->n_cached = (uint32_t)strtoul(c + 7, NULL, 10);
        if (strncmp(c, "refuse=", 7) == 0) refuse_by_name(p, c + 7);
        if (strncmp(c, "then=fail", 9) == 0) p->fails = true;
        if (strncmp(c, "then=stall", 10) == 0) p->stalls = true;
        if (strncmp(c, "then=expire", 11) == 0) p->expires = true;
    }
    say(p, t, "Hello!");
}

void fake_script_directives(void *arg, const fathom_request *r, struct fake_plan *plan)
{
    const struct tokenizer *t = arg;
    struct buf text = {0};
    if (tokenizer_decode(t, r->prompt, r->n_prompt, false, &text) != FATHOM_OK) abort();
    char *from = NULL;
    for (char *c = strstr(buf_str(&text), "[["); c; c = strstr(c + 2, "[[")) from = c;
    char *to = from ? strstr(from, "]]") : NULL;
    if (to) {
        *to = '\0';
        obey(plan, t, from + 2);
    } else {
        say(plan, t, "Hello!");
    }
    buf_free(&text);
}
