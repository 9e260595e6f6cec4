/* thinking_budget.c - a count of reasoning's tokens as a constraint
 *
 *   BEFORE --<think> first--> INSIDE --</think>, calls--> AFTER
 *      `---------anything else first-----------------------^
 */
#include "server/thinking_budget.h"

#include <string.h>

#include "base/assert.h"
#include "base/mem.h"

/* A tag's token, if the model has it. */
static int32_t find(const struct thinking_source *from, const char *tag)
{
    const int32_t id = tag ? tokenizer_find(from->tokenizer, tag) : -1;
    return id < 0 || (uint32_t)id < from->n_vocab ? id : -1;
}

void thinking_budget_init(struct thinking_budget *b, uint32_t n_token,
                          const struct thinking_source *from, const struct token_list *closing,
                          const json_t *tools)
{
    const struct chat_reasoning_tags tags = chat_reasoning_tags(from->style, tools);
    *b = (struct thinking_budget){.n_token = n_token,
                                  .begin = find(from, tags.begin),
                                  .end = find(from, tags.end),
                                  .calls = find(from, tags.calls),
                                  .closing = closing,
                                  .turn = find(from, tags.turn)};
}

/* Tokens behind the tag that is open at the prompt's end; SIZE_MAX: none is. */
static size_t n_behind_tag(const struct thinking_budget *b, const struct token_list *prompt)
{
    for (size_t i = prompt->n; i-- > 0;) {
        if (prompt->ids[i] == b->end || prompt->ids[i] == b->turn) break;
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
    uint32_t n;      /* tokens of reasoning */
    uint32_t n_said; /* of them those of the closing, once it is due */
    bool is_inside;  /* reasoning is open */
    bool is_first;   /* nothing has come, and <think> may */
};

struct bounded {
    struct thinking_budget budget;
    fathom_constraint other; /* ops NULL: none */
    struct place now, marked;
    uint32_t n_closing;
    int32_t closing[]; /* [n_closing] */
};

static bool is_due(const struct bounded *b)
{
    return b->now.is_inside && b->now.n >= b->budget.n_token;
}

/* What has to come when it is due: a model that opens its reasoning itself ends it when it has. */
static int32_t due_id(const struct bounded *b)
{
    if (b->now.is_first && b->budget.begin >= 0) return b->budget.begin;
    return b->now.n_said < b->n_closing ? b->closing[b->now.n_said] : b->budget.end;
}

/* Leaves a token alone in the mask; false where it is not in it. */
static bool leave_alone(uint32_t *words, size_t n_word, int32_t id)
{
    const uint32_t i = (uint32_t)id / 32, bit = 1u << ((uint32_t)id % 32);
    ASSERT(i < n_word);
    if (!(words[i] & bit)) return false;
    memset(words, 0, n_word * sizeof *words);
    words[i] = bit;
    return true;
}

static void fill_mask(const void *state, uint32_t *words, size_t n_word)
{
    const struct bounded *b = state;
    if (b->other.ops) {
        b->other.ops->fill_mask(b->other.state, words, n_word);
    } else {
        memset(words, 0xff, n_word * sizeof *words);
    }
    if (!is_due(b) || leave_alone(words, n_word, due_id(b))) return;
    (void)leave_alone(words, n_word, b->budget.end);
}

static void step(struct bounded *b, int32_t id)
{
    struct place *p = &b->now;
    const bool is_first = p->is_first;
    const bool closes = is_due(b) && p->n_said < b->n_closing && id == b->closing[p->n_said];
    p->is_first = false;
    if (is_first && id == b->budget.begin) {
        p->is_inside = true;
    } else if (p->is_inside) {
        p->is_inside = id != b->budget.end && id != b->budget.calls;
        p->n++;
        p->n_said += closes;
    }
}

/* Which tokens the other one awaits the tag by, its mask says. */
static bool accept(void *state, int32_t id)
{
    struct bounded *b = state;
    if (!b->other.ops && is_due(b) && id != due_id(b)) return false;
    if (b->other.ops && !b->other.ops->accept(b->other.state, id)) return false;
    step(b, id);
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
    const size_t n_closing = b->closing ? b->closing->n : 0;
    struct bounded *own = mem_calloc(1, sizeof *own + n_closing * sizeof *own->closing);
    if (!own) return FATHOM_ENOMEM;
    const size_t n = thinking ? n_behind_tag(b, prompt) : SIZE_MAX;
    own->budget = *b;
    own->budget.closing = NULL;
    own->other = *c;
    own->n_closing = (uint32_t)n_closing;
    if (n_closing) memcpy(own->closing, b->closing->ids, n_closing * sizeof *own->closing);
    own->now.is_inside = thinking;
    own->now.is_first = n == SIZE_MAX;
    if (n != SIZE_MAX) own->now.n = (uint32_t)n;
    *c = (fathom_constraint){&bounded_ops, own};
    return FATHOM_OK;
}
