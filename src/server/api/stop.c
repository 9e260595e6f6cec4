/* stop.c - Knuth-Morris-Pratt for each pattern of a set, over a stream */
#include "server/api/stop.h"

#include <string.h>

#include "base/assert.h"
#include "base/fail.h"
#include "base/mem.h"

/* border[i]: the longest proper prefix of text[0 .. i] that is also its suffix (Knuth, Morris and
 * Pratt's table). */
struct stop_pattern {
    char *text;
    uint32_t *border;
    size_t n;
};

static fathom_err make_pattern(struct stop_pattern *p, const char *text, size_t n)
{
    ASSERT(n >= 1);
    p->n = n;
    p->text = mem_strndup(text, n);
    p->border = mem_alloc_array(n, sizeof *p->border);
    if (!p->text || !p->border) return FATHOM_ENOMEM;
    p->border[0] = 0;
    uint32_t k = 0;
    for (size_t i = 1; i < n; i++) {
        while (k > 0 && text[i] != text[k]) k = p->border[k - 1];
        if (text[i] == text[k]) k++;
        p->border[i] = k;
    }
    return FATHOM_OK;
}

fathom_err stop_set_create(struct stop_set *s, const char *const *texts, const size_t *lens,
                           size_t n)
{
    ASSERT(n <= LIMIT_STOP_STRINGS);
    fathom_err err = FATHOM_OK;
    *s = (struct stop_set){0};
    if (n == 0) return FATHOM_OK;
    s->patterns = mem_calloc(n, sizeof *s->patterns);
    if (!s->patterns) return FATHOM_ENOMEM;
    s->n = n;
    for (size_t i = 0; i < n; i++) {
        TRY_GOTO(make_pattern(&s->patterns[i], texts[i], lens[i]), out);
    }
out:
    if (err) stop_set_destroy(s);
    return err;
}

void stop_set_destroy(struct stop_set *s)
{
    for (size_t i = 0; i < s->n; i++) {
        mem_free(s->patterns[i].text);
        mem_free(s->patterns[i].border);
    }
    mem_free(s->patterns);
    *s = (struct stop_set){0};
}

const char *stop_set_text(const struct stop_set *s, size_t i, size_t *n)
{
    ASSERT(i < s->n);
    *n = s->patterns[i].n;
    return s->patterns[i].text;
}

void stop_matcher_init(struct stop_matcher *m, const struct stop_set *set)
{
    memset(m, 0, sizeof *m);
    m->set = set && set->n ? set : NULL;
}

void stop_matcher_free(struct stop_matcher *m)
{
    buf_free(&m->held);
}

/* Advances every pattern by one byte; returns the longest one completed, or -1. */
static int advance(struct stop_matcher *m, char c)
{
    int hit = -1;
    for (size_t i = 0; i < m->set->n; i++) {
        const struct stop_pattern *p = &m->set->patterns[i];
        uint32_t k = m->matched[i];
        while (k > 0 && p->text[k] != c) k = p->border[k - 1];
        if (p->text[k] == c) k++;
        m->matched[i] = k;
        if (k == p->n && (hit < 0 || p->n > m->set->patterns[hit].n)) hit = (int)i;
    }
    return hit;
}

static size_t longest_match(const struct stop_matcher *m)
{
    size_t longest = 0;
    for (size_t i = 0; i < m->set->n; i++) {
        if (m->matched[i] > longest) longest = m->matched[i];
    }
    return longest;
}

/* Moves all of held but its last `keep` bytes to out. */
static fathom_err release(struct stop_matcher *m, size_t keep, struct buf *out)
{
    size_t n = m->held.len - keep;
    TRY(buf_add(out, buf_str(&m->held), n));
    buf_consume(&m->held, n);
    return FATHOM_OK;
}

fathom_err stop_push(struct stop_matcher *m, const char *text, size_t n, bool include,
                     struct buf *out, int *hit)
{
    *hit = -1;
    if (!m->set) return buf_add(out, text, n);
    for (size_t i = 0; i < n; i++) {
        *hit = advance(m, text[i]);
        if (*hit < 0) continue;
        size_t stop_bytes = m->set->patterns[*hit].n;
        TRY(buf_add(&m->held, text, i + 1));
        TRY(release(m, include ? 0 : stop_bytes, out));
        buf_clear(&m->held);
        memset(m->matched, 0, sizeof m->matched);
        return FATHOM_OK;
    }
    TRY(buf_add(&m->held, text, n));
    return release(m, longest_match(m), out);
}

fathom_err stop_flush(struct stop_matcher *m, struct buf *out)
{
    memset(m->matched, 0, sizeof m->matched);
    return release(m, 0, out);
}
