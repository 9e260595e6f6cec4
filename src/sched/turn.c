/* turn.c - lists of requests in the order of their turns */
#include "sched/turn.h"

#include "base/assert.h"

void turns_give(struct turns *t, struct request *r)
{
    uint64_t *next = &t->next[r->tenant % TURN_TENANTS];
    r->turn = *next > t->admitted ? *next : t->admitted;
    *next = r->turn + 1;
}

void turns_note_admitted(struct turns *t, const struct request *r)
{
    if (r->turn > t->admitted) t->admitted = r->turn;
}

bool request_is_before(const struct request *a, const struct request *b)
{
    if (a->priority != b->priority) return a->priority < b->priority;
    if (a->turn != b->turn) return a->turn < b->turn;
    return a->arrival < b->arrival;
}

void request_list_insert(struct request_list *l, struct request *r)
{
    ASSERT(!r->prev && !r->next && l->head != r);
    struct request *before = l->tail;
    while (before && request_is_before(r, before)) before = before->prev;
    struct request *after = before ? before->next : l->head;
    r->prev = before;
    r->next = after;
    *(before ? &before->next : &l->head) = r;
    *(after ? &after->prev : &l->tail) = r;
    l->n++;
}

void request_list_remove(struct request_list *l, struct request *r)
{
    ASSERT(l->n > 0);
    ASSERT(r->prev ? r->prev->next == r : l->head == r);
    ASSERT(r->next ? r->next->prev == r : l->tail == r);
    *(r->prev ? &r->prev->next : &l->head) = r->next;
    *(r->next ? &r->next->prev : &l->tail) = r->prev;
    r->prev = r->next = NULL;
    l->n--;
}
