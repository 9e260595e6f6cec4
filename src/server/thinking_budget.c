/* thinking_budget.c - a count of reasoning's tokens as a constraint
 *
 *   BEFORE --<think> first--> INSIDE --</think>, calls--> AFTER
 *      `---------anything else first-----------------------^
 */
#include "server/thinking_budget.h"

#include <string.h>

#include "base/assert.h"
#include "base/mem.h"

void thinking_budget_init(struct thinking_budget *b, uint32_t n_token, const struct chat_style *s,
                          const struct tokenizer *t, const json_t *tools)
{
    const struct chat_reasoning_tags tags = chat_reasoning_tags(s, tools);
    *b = (struct thinking_budget){.n_token = n_token,
                                  .begin = tokenizer_find(t, tags.begin),
                                  .end = tokenizer_find(t, tags.end),
                                  .calls = tags.calls ? tokenizer_find(t, tags.calls) : -1};
}

/* Tokens behind the tag that is open at the prompt's end; SIZE_MAX: none is. */
static size_t n_behind_tag(const struct thinking_budget *b, const struct token_list *prompt)
{
    for (size_t i = prompt->n; i-- > 0;) {
        if (prompt->ids[i] == b->end) break;
        if (prompt->ids[i] == b->begin) return prompt->n - 1 - i;
    }
    return SIZE_MAX;
}

bool thinking_budget_opens(const struct thinking_budget *b, const struct token_list *prompt)
{
    return n_behind_tag(b, prompt) != SIZE_MAX;
}

/* ---- an output under it -------------------------------------------------------------------- */

/* Where an output stands. Neither flag: BEFORE or AFTER, by is_first. */
struct place {
    uint32_t n;     /* tokens of reasoning */
    bool is_inside; /* reasoning is open */
    bool is_first;  /* nothing has come, and <think> may */
};

struct bounded {
    struct thinking_budget budget;
    fathom_constraint other; /* ops NULL: none */
    struct place now, marked;
};

static bool is_due(const struct bounded *b)
{
    return b->now.is_inside && b->now.n >= b->budget.n_token;
}

/* What has to come when it is due: a model that opens its reasoning itself ends it when it has. */
static int32_t due_id(const struct bounded *b)
{
    return b->now.is_first && b->budget.begin >= 0 ? b->budget.begin : b->budget.end;
}

static void fill_mask(const void *state, uint32_t *words, size_t n_word)
{
    const struct bounded *b = state;
    if (b->other.ops) {
        b->other.ops->fill_mask(b->other.state, words, n_word);
    } else {
        memset(words, 0xff, n_word * sizeof *words);
    }
    if (!is_due(b)) return;
    const uint32_t id = (uint32_t)due_id(b), bit = 1u << (id % 32);
    ASSERT(id / 32 < n_word);
    if (!(words[id / 32] & bit)) return;
    memset(words, 0, n_word * sizeof *words);
    words[id / 32] = bit;
}

static void step(const struct thinking_budget *b, struct place *p, int32_t id)
{
    const bool is_first = p->is_first;
    p->is_first = false;
    if (is_first && id == b->begin) {
        p->is_inside = true;
    } else if (p->is_inside) {
        if (id == b->end || id == b->calls) {
            p->is_inside = false;
        } else {
            p->n++;
        }
    }
}

/* Which tokens the other one awaits the tag by, its mask says. */
static bool accept(void *state, int32_t id)
{
    struct bounded *b = state;
    if (!b->other.ops && is_due(b) && id != due_id(b)) return false;
    if (b->other.ops && !b->other.ops->accept(b->other.state, id)) return false;
    step(&b->budget, &b->now, id);
    return true;
}

static uint32_t n_free(const void *state)
{
    const struct bounded *b = state;
    const struct place *p = &b->now;
    const fathom_constraint_ops *other = b->other.ops;
    uint32_t n = UINT32_MAX;
    if (p->is_inside) {
        n = is_due(b) ? 0 : b->budget.n_token - p->n;
    } else if (p->is_first) {
        n = 1 + b->budget.n_token;
    }
    if (!other) return n;
    const uint32_t n_other = other->n_free ? other->n_free(b->other.state) : 0;
    return n < n_other ? n : n_other;
}

static void mark(void *state)
{
    struct bounded *b = state;
    b->marked = b->now;
    if (b->other.ops) b->other.ops->mark(b->other.state);
}

static void go_back(void *state)
{
    struct bounded *b = state;
    b->now = b->marked;
    if (b->other.ops) b->other.ops->go_back(b->other.state);
}

static void destroy(void *state)
{
    struct bounded *b = state;
    if (b->other.ops) b->other.ops->destroy(b->other.state);
    mem_free(b);
}

static const fathom_constraint_ops bounded_ops = {
    .fill_mask = fill_mask,
    .accept = accept,
    .mark = mark,
    .go_back = go_back,
    .destroy = destroy,
    .n_free = n_free,
};

fathom_err thinking_budget_constrain(const struct thinking_budget *b,
                                     const struct token_list *prompt, bool thinking,
                                     fathom_constraint *c)
{
    ASSERT(b->end >= 0);
    struct bounded *own = mem_calloc(1, sizeof *own);
    if (!own) return FATHOM_ENOMEM;
    const size_t n = thinking ? n_behind_tag(b, prompt) : SIZE_MAX;
    own->budget = *b;
    own->other = *c;
    own->now.is_inside = thinking;
    own->now.is_first = n == SIZE_MAX;
    if (n != SIZE_MAX) own->now.n = (uint32_t)n;
    *c = (fathom_constraint){&bounded_ops, own};
    return FATHOM_OK;
}
