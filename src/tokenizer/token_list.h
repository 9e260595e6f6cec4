/* token_list.h - a growing list of token ids */
#ifndef FATHOM_TOKENIZER_TOKEN_LIST_H
#define FATHOM_TOKENIZER_TOKEN_LIST_H

#include <stddef.h>
#include <stdint.h>

#include "base/mem.h"
#include "fathom/err.h"

enum { TOKEN_LIST_FIRST_CAP = 64 };

/* A zeroed struct is empty. Released with token_list_free. */
struct token_list {
    int32_t *ids;
    size_t n;
    size_t cap;
    size_t limit; /* tokenizer_encode makes no more than about so many ids; 0: as many as come */
};

/* token_list_free - release and zero; accepts an empty list */
static inline void token_list_free(struct token_list *l)
{
    mem_free(l->ids);
    *l = (struct token_list){0};
}

/* token_list_add - append one id; ENOMEM leaves the list as it was */
static inline fathom_err token_list_add(struct token_list *l, int32_t id)
{
    if (l->n == l->cap) {
        size_t cap = l->cap ? l->cap + l->cap / 2 : TOKEN_LIST_FIRST_CAP;
        int32_t *ids = (int32_t *)mem_resize(l->ids, cap * sizeof *ids);
        if (!ids) return FATHOM_ENOMEM;
        l->ids = ids;
        l->cap = cap;
    }
    l->ids[l->n++] = id;
    return FATHOM_OK;
}

#endif
