/* grammar_constraint.c - one or two matchers behind the engine's five calls */
#include "server/grammar_constraint.h"

#include "base/assert.h"
#include "base/fail.h"
#include "base/mem.h"

struct steering {
    struct matcher *now;
    struct matcher *marked; /* NULL: there are no drafts */
};

static void fill_mask(const void *state, uint32_t *words, size_t n_word)
{
    const struct steering *s = state;
    fathom_err err = matcher_fill_mask(s->now, words, n_word);
    ASSERT(!err); /* the vocabulary fits the mask: grammar_cache.c */
}

static bool accept(void *state, int32_t id)
{
    struct steering *s = state;
    return matcher_accept_token(s->now, id) == FATHOM_OK;
}

static void mark(void *state)
{
    struct steering *s = state;
    ASSERT(s->marked);
    matcher_copy(s->marked, s->now);
}

static void go_back(void *state)
{
    struct steering *s = state;
    matcher_copy(s->now, s->marked);
}

static void destroy(void *state)
{
    struct steering *s = state;
    matcher_destroy(s->now);
    matcher_destroy(s->marked);
    mem_free(s);
}

static const fathom_constraint_ops steering_ops = {
    .fill_mask = fill_mask,
    .accept = accept,
    .mark = mark,
    .go_back = go_back,
    .destroy = destroy,
};

fathom_err grammar_constraint_create(fathom_constraint *out, struct grammar *g,
                                     const fathom_info *info, fathom_diag *d)
{
    *out = (fathom_constraint){0};
    if (info->n_eos == 0) {
        FAIL(
            d, FATHOM_EUNSUPPORTED,
            "the checkpoint names no end-of-text token: an output held to a grammar could not end");
    }
    struct steering *s = mem_calloc(1, sizeof *s);
    if (!s) return FATHOM_ENOMEM;
    fathom_err err = matcher_create(&s->now, g, info->eos_ids, info->n_eos);
    if (!err && info->n_draft) {
        err = matcher_create(&s->marked, g, info->eos_ids, info->n_eos);
    }
    if (err) {
        destroy(s);
        return err;
    }
    *out = (fathom_constraint){&steering_ops, s};
    return FATHOM_OK;
}
