/* mailbox.c - lists of sequences between the callers' threads and the engine's
 *
 * Invariants, under the lock
 *
 *   1. entries[q->entry] == q for every sequence from submission until its FINISH event is polled.
 *      The other entries are NULL, and their numbers are in free_entries, each once.
 *   2. A sequence is in the NEW list from submission until the engine takes it. It is in the CANCEL
 *      list when a cancel came that the engine has not taken, and never once it is_over. It is in
 *      the READY list if and only if it has an event to poll.
 *   3. n_polled <= n_published; is_over and n_published change on mailbox_publish alone.
 *   4. Every live sequence counts once in the load: first in the NEW list, then in n_taken, and
 *      from the first publish after that in the engine's statistics.
 *
 * A sequence's life here
 *
 *   submit --> NEW --take_new--> (engine) --publish--> READY --poll--> not READY, or gone
 *                                  ^                                   with its FINISH event
 *                                  +---- publish: more tokens ----+
 *
 * An id is (number << entry_bits) | entry. So its sequence is found without a search, and no id is
 * used twice.
 *
 * The poller reads a sequence while the engine runs: ids and logprobs below n_published, and finish
 * and times once is_over. The engine writes these before the publish that makes them visible, and
 * not again afterwards. */
#include "engine/mailbox.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/fail.h"
#include "base/mem.h"
#include "base/rng.h"

struct list {
    struct sequence *head;
    struct sequence *tail;
    uint32_t n;
};

struct mailbox {
    /* fixed */
    uint32_t n_entry;
    uint32_t entry_bits;
    uint64_t seed;
    /* under the lock */
    pthread_mutex_t lock;
    pthread_cond_t work;       /* the engine sleeps on it */
    pthread_cond_t event;      /* the poller sleeps on it */
    struct sequence **entries; /* [n_entry] */
    uint32_t *free_entries;    /* [n_entry] a stack */
    uint32_t n_free;
    uint64_t n_submitted;
    struct list lists[SEQUENCE_LIST_COUNT];
    fathom_stats stats;
    struct admission_config admission;
    struct admission_rates rates;
    uint64_t n_new_token;   /* prompt tokens of the NEW list */
    uint32_t n_taken;       /* sequences that left it since the last publish */
    uint64_t n_taken_token; /* their prompt tokens */
    uint64_t n_refused_full;
    uint64_t n_refused[ADMISSION_TTFT + 1];
    bool woken;
    bool kicked;
    bool closed;
    char fault[FATHOM_DIAG_BYTES]; /* written once, before `failed` */
    atomic_bool failed;
    char away[sizeof((fathom_stats *)0)->away];
};

/* ---- lists ---- */

static void list_push(struct mailbox *m, enum sequence_list which, struct sequence *q)
{
    struct list *l = &m->lists[which];
    struct sequence_link *k = &q->links[which];
    if (k->linked) return;
    ASSERT(l->n < m->n_entry && !l->tail == (l->n == 0));
    *k = (struct sequence_link){.prev = l->tail, .next = NULL, .linked = true};
    if (l->tail) {
        l->tail->links[which].next = q;
    } else {
        l->head = q;
    }
    l->tail = q;
    l->n++;
}

static void list_remove(struct mailbox *m, enum sequence_list which, struct sequence *q)
{
    struct list *l = &m->lists[which];
    struct sequence_link *k = &q->links[which];
    if (!k->linked) return;
    ASSERT(l->n > 0);
    if (k->prev) {
        k->prev->links[which].next = k->next;
    } else {
        l->head = k->next;
    }
    if (k->next) {
        k->next->links[which].prev = k->prev;
    } else {
        l->tail = k->prev;
    }
    *k = (struct sequence_link){0};
    l->n--;
}

/* ---- life ---- */

fathom_err mailbox_create(struct mailbox **out, uint32_t n_entry, uint64_t seed, fathom_diag *d)
{
    *out = NULL;
    if (n_entry == 0) FAIL(d, FATHOM_EINVAL, "a mailbox of 0 entries asked for");
    struct mailbox *m = mem_calloc(1, sizeof *m);
    if (!m) FAIL(d, FATHOM_ENOMEM, "no memory for the mailbox");
    m->n_entry = m->n_free = n_entry;
    m->seed = seed;
    ASSERT(n_entry <= 1u << 31);
    while ((1u << m->entry_bits) < n_entry) m->entry_bits++;
    m->admission = (struct admission_config){.max_num_seqs = n_entry, .max_num_batched_tokens = 1};
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_mutex_init(&m->lock, NULL);
    pthread_cond_init(&m->work, &attr);
    pthread_cond_init(&m->event, &attr);
    pthread_condattr_destroy(&attr);
    m->entries = mem_calloc(n_entry, sizeof *m->entries);
    m->free_entries = mem_alloc_array(n_entry, sizeof *m->free_entries);
    if (!m->entries || !m->free_entries) {
        mailbox_destroy(m);
        FAIL(d, FATHOM_ENOMEM, "no memory for %u requests", n_entry);
    }
    for (uint32_t i = 0; i < n_entry; i++) m->free_entries[i] = n_entry - 1 - i;
    *out = m;
    return FATHOM_OK;
}

void mailbox_destroy(struct mailbox *m)
{
    if (!m) return;
    for (uint32_t i = 0; m->entries && i < m->n_entry; i++) sequence_destroy(m->entries[i]);
    mem_free(m->entries);
    mem_free(m->free_entries);
    pthread_cond_destroy(&m->event);
    pthread_cond_destroy(&m->work);
    pthread_mutex_destroy(&m->lock);
    mem_free(m);
}

void mailbox_set_admission(struct mailbox *m, const struct admission_config *c)
{
    pthread_mutex_lock(&m->lock);
    ASSERT(m->n_submitted == 0 && c->max_num_seqs >= 1);
    m->admission = *c;
    pthread_mutex_unlock(&m->lock);
}

/* ---- callers ---- */

static struct admission_load load_of(const struct mailbox *m, uint64_t now_us)
{
    uint32_t n_fresh = m->n_taken + m->lists[SEQUENCE_LIST_NEW].n;
    uint64_t n_fresh_token = m->n_taken_token + m->n_new_token;
    return (struct admission_load){m->stats.n_running + m->stats.n_waiting + n_fresh,
                                   m->stats.n_backlog_token + n_fresh_token, now_us};
}

/* Whether an entry is free and admission takes the sequence; counts a refusal. */
static bool judge(struct mailbox *m, const struct sequence *q, fathom_diag *d)
{
    if (m->n_free == 0) {
        (void)diag_fail(d, FATHOM_EBUSY,
                        "%u requests are running, waiting or not yet read: the queue is full. Try "
                        "again later, or raise --max-queued",
                        m->n_entry);
        m->n_refused_full++;
        return false;
    }
    struct admission_load load = load_of(m, q->submitted_us);
    enum admission_verdict verdict =
        admission_judge(&m->admission, &m->rates, &load, q->request.n_prompt, d);
    if (verdict == ADMISSION_TAKEN) return true;
    m->n_refused[verdict]++;
    return false;
}

fathom_err mailbox_submit(struct mailbox *m, struct sequence *q, uint64_t *id, fathom_diag *d)
{
    if (atomic_load(&m->failed)) FAIL(d, FATHOM_EDEVICE, "the engine has failed: %s", m->fault);
    pthread_mutex_lock(&m->lock);
    bool over = m->closed || atomic_load(&m->failed);
    bool away = !over && m->away[0] != '\0';
    if (away) (void)diag_fail(d, FATHOM_EPEER, "%s", m->away);
    bool taken = !over && !away && judge(m, q, d);
    if (taken) {
        uint64_t number = ++m->n_submitted;
        q->entry = m->free_entries[--m->n_free];
        ASSERT(!m->entries[q->entry] && q->request.state == REQUEST_NEW);
        m->entries[q->entry] = q;
        q->request.id = number << m->entry_bits | q->entry;
        if (!q->has_seed) q->row.seed = rng_mix(m->seed, number, 0);
        *id = q->request.id;
        m->n_new_token += q->request.n_prompt;
        list_push(m, SEQUENCE_LIST_NEW, q);
        pthread_cond_signal(&m->work);
    }
    pthread_mutex_unlock(&m->lock);
    if (taken) return FATHOM_OK;
    if (away) return FATHOM_EPEER;
    if (!over) return FATHOM_EBUSY;
    if (atomic_load(&m->failed)) FAIL(d, FATHOM_EDEVICE, "the engine has failed: %s", m->fault);
    FAIL(d, FATHOM_EBUSY, "the engine is being closed");
}

void mailbox_cancel(struct mailbox *m, uint64_t id)
{
    pthread_mutex_lock(&m->lock);
    uint64_t entry = id & ((1u << m->entry_bits) - 1);
    struct sequence *q = entry < m->n_entry ? m->entries[entry] : NULL;
    if (q && q->request.id == id && !q->is_over) {
        list_push(m, SEQUENCE_LIST_CANCEL, q);
        pthread_cond_signal(&m->work);
    }
    pthread_mutex_unlock(&m->lock);
}

static struct timespec time_after(uint64_t us)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    uint64_t ns = (uint64_t)t.tv_nsec + us % 1000000 * 1000;
    t.tv_sec += (time_t)(us / 1000000 + ns / 1000000000);
    t.tv_nsec = (long)(ns % 1000000000);
    return t;
}

/* Waits for an event, a wake or the time-out; true if there is an event. */
static bool wait_for_event(struct mailbox *m, int timeout_ms)
{
    const struct list *ready = &m->lists[SEQUENCE_LIST_READY];
    struct timespec until = {0};
    if (timeout_ms > 0) until = time_after((uint64_t)timeout_ms * 1000);
    while (!ready->head && !m->woken && timeout_ms != 0) {
        if (timeout_ms < 0) {
            pthread_cond_wait(&m->event, &m->lock);
        } else if (pthread_cond_timedwait(&m->event, &m->lock, &until) == ETIMEDOUT) {
            break;
        }
    }
    m->woken = false;
    return ready->head != NULL;
}

size_t mailbox_poll(struct mailbox *m, fathom_event *events, size_t max, int timeout_ms)
{
    struct sequence *gone = NULL; /* chained through their READY links, released outside the lock */
    size_t n = 0;
    pthread_mutex_lock(&m->lock);
    if (wait_for_event(m, timeout_ms)) {
        struct sequence *q;
        while (n < max && (q = m->lists[SEQUENCE_LIST_READY].head)) {
            if (q->n_polled < q->n_published) {
                sequence_event(q, q->n_polled++, &events[n++]);
                if (q->n_polled < q->n_published || q->is_over) continue;
                list_remove(m, SEQUENCE_LIST_READY, q);
            } else {
                sequence_finish_event(q, &events[n++]);
                ASSERT(q->is_over && m->entries[q->entry] == q && m->n_free < m->n_entry);
                list_remove(m, SEQUENCE_LIST_READY, q);
                m->entries[q->entry] = NULL;
                m->free_entries[m->n_free++] = q->entry;
                q->links[SEQUENCE_LIST_READY].next = gone;
                gone = q;
            }
        }
    }
    pthread_mutex_unlock(&m->lock);
    while (gone) {
        struct sequence *next = gone->links[SEQUENCE_LIST_READY].next;
        sequence_destroy(gone);
        gone = next;
    }
    return n;
}

void mailbox_wake(struct mailbox *m)
{
    pthread_mutex_lock(&m->lock);
    m->woken = true;
    pthread_cond_broadcast(&m->event);
    pthread_mutex_unlock(&m->lock);
}

void mailbox_get_stats(struct mailbox *m, fathom_stats *out)
{
    pthread_mutex_lock(&m->lock);
    *out = m->stats;
    struct admission_load load = load_of(m, clock_now_us());
    out->n_waiting += m->n_taken + m->lists[SEQUENCE_LIST_NEW].n;
    out->n_backlog_token = load.n_backlog_token;
    out->n_refused_full = m->n_refused_full;
    out->n_refused_tokens = m->n_refused[ADMISSION_TOKENS];
    out->n_refused_ttft = m->n_refused[ADMISSION_TTFT];
    out->prefill_token_us = m->rates.token_us;
    out->decode_step_us = m->rates.fixed_us;
    out->first_token_us = admission_first_token_us(&m->admission, &m->rates, &load, 1);
    out->retry_after_us = admission_retry_us(&m->admission, &m->rates, &load);
    out->failed = atomic_load(&m->failed);
    memcpy(out->away, m->away, sizeof out->away);
    pthread_mutex_unlock(&m->lock);
}

const char *mailbox_fault(struct mailbox *m)
{
    return atomic_load(&m->failed) ? m->fault : "";
}

void mailbox_close(struct mailbox *m)
{
    pthread_mutex_lock(&m->lock);
    m->closed = true;
    pthread_cond_signal(&m->work);
    pthread_mutex_unlock(&m->lock);
}

/* ---- engine ---- */

bool mailbox_wait(struct mailbox *m, uint64_t wait_us)
{
    bool forever = wait_us == MAILBOX_FOREVER;
    struct timespec until = {0};
    if (wait_us > 0 && !forever) until = time_after(wait_us);
    pthread_mutex_lock(&m->lock);
    bool late = wait_us == 0;
    while (!late && !m->closed && !m->kicked && !m->lists[SEQUENCE_LIST_NEW].head &&
           !m->lists[SEQUENCE_LIST_CANCEL].head) {
        if (forever) {
            pthread_cond_wait(&m->work, &m->lock);
        } else {
            late = pthread_cond_timedwait(&m->work, &m->lock, &until) == ETIMEDOUT;
        }
    }
    m->kicked = false;
    bool open = !m->closed;
    pthread_mutex_unlock(&m->lock);
    return open;
}

void mailbox_kick(struct mailbox *m)
{
    pthread_mutex_lock(&m->lock);
    m->kicked = true;
    pthread_cond_signal(&m->work);
    pthread_mutex_unlock(&m->lock);
}

struct sequence *mailbox_take_new(struct mailbox *m)
{
    pthread_mutex_lock(&m->lock);
    struct sequence *q = m->lists[SEQUENCE_LIST_NEW].head;
    if (q) {
        ASSERT(m->n_new_token >= q->request.n_prompt);
        list_remove(m, SEQUENCE_LIST_NEW, q);
        m->n_new_token -= q->request.n_prompt;
        m->n_taken++;
        m->n_taken_token += q->request.n_prompt;
    }
    pthread_mutex_unlock(&m->lock);
    return q;
}

struct sequence *mailbox_take_cancel(struct mailbox *m)
{
    pthread_mutex_lock(&m->lock);
    struct sequence *q = m->lists[SEQUENCE_LIST_CANCEL].head;
    /* Skip one that is still NEW: the engine has not taken it yet, and cancels it afterwards. */
    while (q && q->links[SEQUENCE_LIST_NEW].linked) q = q->links[SEQUENCE_LIST_CANCEL].next;
    ASSERT(!q || !q->is_over);
    if (q) list_remove(m, SEQUENCE_LIST_CANCEL, q);
    pthread_mutex_unlock(&m->lock);
    return q;
}

/* Publishes the tokens drawn since the last publish; those after the first are joined to it. */
static void publish_tokens(struct sequence *q)
{
    const uint32_t n_to_score = q->request.n_to_score;
    uint32_t i = q->n_published > n_to_score ? q->n_published - n_to_score : 0;
    q->n_published = sequence_n_event(q);
    for (i++; n_to_score + i < q->n_published; i++) q->joined[i / 32] |= 1u << i % 32;
}

void mailbox_publish(struct mailbox *m, struct sequence *const *sequences, size_t n,
                     const fathom_stats *stats)
{
    pthread_mutex_lock(&m->lock);
    for (size_t i = 0; i < n; i++) {
        struct sequence *q = sequences[i];
        ASSERT(!q->is_over && m->entries[q->entry] == q);
        ASSERT(sequence_n_event(q) >= q->n_published);
        publish_tokens(q);
        q->is_over = q->request.state == REQUEST_FINISHED;
        if (q->is_over) list_remove(m, SEQUENCE_LIST_CANCEL, q);
        if (q->is_over || q->n_polled < q->n_published) list_push(m, SEQUENCE_LIST_READY, q);
    }
    m->stats = *stats;
    m->n_taken = 0;
    m->n_taken_token = 0;
    if (m->lists[SEQUENCE_LIST_READY].head) pthread_cond_signal(&m->event);
    pthread_mutex_unlock(&m->lock);
}

void mailbox_set_rates(struct mailbox *m, const struct admission_rates *rates)
{
    pthread_mutex_lock(&m->lock);
    m->rates = *rates;
    pthread_mutex_unlock(&m->lock);
}

void mailbox_fail(struct mailbox *m, const char *message)
{
    pthread_mutex_lock(&m->lock);
    if (!atomic_load(&m->failed)) {
        snprintf(m->fault, sizeof m->fault, "%s", message);
        atomic_store(&m->failed, true);
    }
    pthread_mutex_unlock(&m->lock);
}

void mailbox_suspend(struct mailbox *m, const char *message)
{
    pthread_mutex_lock(&m->lock);
    snprintf(m->away, sizeof m->away, "%s", message);
    pthread_mutex_unlock(&m->lock);
}

/* ---- check ---- */

/* The list hangs together in both directions and has as many members as it says. */
static void check_list(const struct mailbox *m, enum sequence_list which)
{
    const struct list *l = &m->lists[which];
    const struct sequence *prev = NULL;
    uint32_t n = 0;
    for (const struct sequence *q = l->head; q; prev = q, q = q->links[which].next) {
        ASSERT(q->links[which].linked && q->links[which].prev == prev);
        ASSERT(m->entries[q->entry] == q);
        n++;
    }
    ASSERT(l->tail == prev && l->n == n);
}

void mailbox_check(struct mailbox *m)
{
    pthread_mutex_lock(&m->lock);
    uint32_t n_used = 0;
    uint32_t n_linked[SEQUENCE_LIST_COUNT] = {0};
    for (uint32_t i = 0; i < m->n_entry; i++) {
        const struct sequence *q = m->entries[i];
        if (!q) continue;
        n_used++;
        ASSERT(q->entry == i);
        ASSERT((q->request.id & ((1u << m->entry_bits) - 1)) == i);
        ASSERT(q->n_polled <= q->n_published);
        ASSERT(q->links[SEQUENCE_LIST_READY].linked ==
               (q->is_over || q->n_polled < q->n_published));
        ASSERT(!(q->is_over && q->links[SEQUENCE_LIST_CANCEL].linked));
        for (int k = 0; k < SEQUENCE_LIST_COUNT; k++) n_linked[k] += q->links[k].linked;
    }
    for (int k = 0; k < SEQUENCE_LIST_COUNT; k++) check_list(m, (enum sequence_list)k);
    uint64_t n_new_token = 0;
    for (const struct sequence *q = m->lists[SEQUENCE_LIST_NEW].head; q;
         q = q->links[SEQUENCE_LIST_NEW].next) {
        n_new_token += q->request.n_prompt;
    }
    ASSERT(n_new_token == m->n_new_token);
    ASSERT(m->n_taken > 0 || m->n_taken_token == 0);
    ASSERT(n_used + m->n_free == m->n_entry);
    for (uint32_t i = 0; i < m->n_free; i++) {
        ASSERT(m->free_entries[i] < m->n_entry && !m->entries[m->free_entries[i]]);
    }
    for (int k = 0; k < SEQUENCE_LIST_COUNT; k++) ASSERT(n_linked[k] == m->lists[k].n);
    pthread_mutex_unlock(&m->lock);
}
