#include "engine/constraint.h"

void constraint_fill(const struct constraint *c, uint32_t *words, size_t n_word)
{
    c->owner.ops->fill_mask(c->owner.state, words, n_word);
}

bool constraint_try(struct constraint *c, int32_t id)
{
    if (!c->is_ahead) c->owner.ops->mark(c->owner.state);
    c->is_ahead = true;
    return c->owner.ops->accept(c->owner.state, id);
}

void constraint_return(struct constraint *c)
{
    if (c->is_ahead) c->owner.ops->go_back(c->owner.state);
    c->is_ahead = false;
}

bool constraint_push(struct constraint *c, int32_t id)
{
    constraint_return(c);
    return c->owner.ops->accept(c->owner.state, id);
}

void constraint_destroy(struct constraint *c)
{
    if (c->owner.ops) c->owner.ops->destroy(c->owner.state);
    *c = (struct constraint){0};
}
