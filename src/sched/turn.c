#include "sched/turn.h"

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
    struct request *after = l->tail;
    while (after && request_is_before(r, after)) after = after->prev;
    if (!after) {
        request_list_push_front(l, r);
        return;
    }
    r->prev = after;
    r->next = after->next;
    if (after->next) {
        after->next->prev = r;
    } else {
        l->tail = r;
    }
    after->next = r;
    l->n++;
}
