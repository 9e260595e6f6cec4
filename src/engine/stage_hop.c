/* stage_hop.c - rooms for rows, and a count of those that have been given
 *
 *   heads[block]  what lies in a room; written before n_given tells of it
 *   order         blocks in the order in which they were given, [n_given % n_block]
 *   n_taken       of each taker
 *   n_using       takers that have not given a room back, by block; under the lock. A room that is
 *                 given has none, so that n_given - n_taken <= n_block for each taker
 */
#include "engine/stage_hop.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/fail.h"
#include "base/mem.h"
#include "base/os.h"

enum { SPIN_NS = 20000 }; /* looks for rows, before a thread sleeps */

struct stage_hop {
    struct stage_hop_config c;
    bool spins;
    float *rows;              /* [n_block][max_row][width] */
    struct stage_head *heads; /* [n_block] */
    uint32_t *order;          /* [n_block] */
    uint64_t *n_taken;        /* [n_taker]; each its taker's alone */
    uint32_t *n_using;        /* [n_block] */
    _Atomic uint64_t n_given;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    _Atomic bool is_broken; /* fault is whole */
    char fault[200];
};

fathom_err stage_hop_create(struct stage_hop **out, const struct stage_hop_config *c,
                            fathom_diag *d)
{
    const size_t n_value = (size_t)c->n_block * c->max_row * c->width;
    ASSERT(c->n_block >= 1 && c->max_row >= 1 && c->width >= 1);
    ASSERT(c->n_taker >= 1);
    *out = NULL;
    struct stage_hop *h = mem_calloc(1, sizeof *h);
    if (!h) FAIL(d, FATHOM_ENOMEM, "no memory for the way to a stage");
    pthread_mutex_init(&h->lock, NULL);
    pthread_cond_init(&h->changed, NULL);
    h->c = *c;
    h->spins = os_n_cpu() > 2;
    if (!c->borrows_rooms) h->rows = mem_alloc_pages(n_value * sizeof *h->rows);
    h->heads = mem_calloc(c->n_block, sizeof *h->heads);
    h->order = mem_calloc(c->n_block, sizeof *h->order);
    h->n_taken = mem_calloc(c->n_taker, sizeof *h->n_taken);
    h->n_using = mem_calloc(c->n_block, sizeof *h->n_using);
    if ((h->rows || c->borrows_rooms) && h->heads && h->order && h->n_taken && h->n_using) {
        *out = h;
        return FATHOM_OK;
    }
    stage_hop_destroy(h);
    FAIL(d, FATHOM_ENOMEM, "no memory for %zu values between stages", n_value);
}

void stage_hop_destroy(struct stage_hop *h)
{
    if (!h) return;
    pthread_cond_destroy(&h->changed);
    pthread_mutex_destroy(&h->lock);
    if (!h->c.borrows_rooms) mem_free_pages(h->rows);
    mem_free(h->heads);
    mem_free(h->order);
    mem_free(h->n_taken);
    mem_free(h->n_using);
    mem_free(h);
}

void stage_hop_lend_rooms(struct stage_hop *h, float *rows)
{
    ASSERT(h->c.borrows_rooms && !h->rows && rows);
    h->rows = rows;
}

float *stage_hop_room(struct stage_hop *h, uint32_t block)
{
    ASSERT(block < h->c.n_block && h->rows);
    return h->rows + (size_t)block * h->c.max_row * h->c.width;
}

fathom_err stage_hop_claim(struct stage_hop *h, uint32_t block)
{
    ASSERT(block < h->c.n_block);
    pthread_mutex_lock(&h->lock);
    while (h->n_using[block] > 0 && !atomic_load(&h->is_broken))
        pthread_cond_wait(&h->changed, &h->lock);
    pthread_mutex_unlock(&h->lock);
    return atomic_load(&h->is_broken) ? FATHOM_EPEER : FATHOM_OK;
}

void stage_hop_release(struct stage_hop *h, uint32_t block)
{
    ASSERT(block < h->c.n_block);
    pthread_mutex_lock(&h->lock);
    ASSERT(h->n_using[block] > 0);
    if (--h->n_using[block] == 0) pthread_cond_broadcast(&h->changed);
    pthread_mutex_unlock(&h->lock);
}

/* Those who take are told of a room. */
static void tell(struct stage_hop *h, const struct stage_head *head)
{
    const uint64_t n = atomic_load(&h->n_given);
    h->heads[head->block] = *head;
    h->order[n % h->c.n_block] = head->block;
    pthread_mutex_lock(&h->lock);
    ASSERT(h->n_using[head->block] == 0);
    h->n_using[head->block] = h->c.n_taker;
    atomic_store_explicit(&h->n_given, n + 1, memory_order_release);
    pthread_cond_broadcast(&h->changed);
    pthread_mutex_unlock(&h->lock);
}

fathom_err stage_hop_give(struct stage_hop *h, const struct stage_head *head)
{
    ASSERT(head->block < h->c.n_block && head->n_row >= 1 && head->n_row <= h->c.max_row);
    if (atomic_load(&h->is_broken)) return FATHOM_EPEER;
    tell(h, head);
    return FATHOM_OK;
}

static bool has_come(const struct stage_hop *h, uint64_t n)
{
    return atomic_load_explicit(&h->n_given, memory_order_acquire) > n ||
           atomic_load(&h->is_broken);
}

static void await(struct stage_hop *h, uint64_t n)
{
    const uint64_t end_ns = clock_now_ns() + SPIN_NS;
    while (h->spins && !has_come(h, n) && clock_now_ns() < end_ns) {
    }
    if (has_come(h, n)) return;
    pthread_mutex_lock(&h->lock);
    while (!has_come(h, n)) pthread_cond_wait(&h->changed, &h->lock);
    pthread_mutex_unlock(&h->lock);
}

fathom_err stage_hop_next(struct stage_hop *h, uint32_t taker, struct stage_head *out)
{
    ASSERT(taker < h->c.n_taker);
    const uint64_t n = h->n_taken[taker];
    await(h, n);
    if (atomic_load_explicit(&h->n_given, memory_order_acquire) <= n) return FATHOM_EPEER;
    *out = h->heads[h->order[n % h->c.n_block]];
    h->n_taken[taker]++;
    return FATHOM_OK;
}

fathom_err stage_hop_take(struct stage_hop *h, uint32_t taker, const struct stage_head *wanted,
                          struct stage_head *out)
{
    char why[160];
    ASSERT(wanted->block < h->c.n_block);
    TRY(stage_hop_next(h, taker, out));
    if (out->block == wanted->block && out->n_row == wanted->n_row) return FATHOM_OK;
    (void)snprintf(
        why, sizeof why,
        "a stage computes %u rows in block %u, and the one before it gave %u in block %u",
        wanted->n_row, wanted->block, out->n_row, out->block);
    stage_hop_break(h, why);
    return FATHOM_EPEER;
}

void stage_hop_break(struct stage_hop *h, const char *why)
{
    pthread_mutex_lock(&h->lock);
    const bool is_first = !atomic_load(&h->is_broken);
    if (is_first) (void)snprintf(h->fault, sizeof h->fault, "%s", why);
    atomic_store(&h->is_broken, true);
    pthread_cond_broadcast(&h->changed);
    pthread_mutex_unlock(&h->lock);
}

void stage_hop_renew(struct stage_hop *h)
{
    pthread_mutex_lock(&h->lock);
    atomic_store(&h->n_given, 0);
    memset(h->n_taken, 0, h->c.n_taker * sizeof *h->n_taken);
    memset(h->n_using, 0, h->c.n_block * sizeof *h->n_using);
    h->fault[0] = '\0';
    atomic_store(&h->is_broken, false);
    pthread_mutex_unlock(&h->lock);
}

const char *stage_hop_fault(const struct stage_hop *h)
{
    return atomic_load(&h->is_broken) ? h->fault : "";
}
