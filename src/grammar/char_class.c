/* char_class.c - ranges of code points */
#include "grammar/char_class.h"

#include <stdlib.h>

#include "base/assert.h"
#include "base/fail.h"

fathom_err char_class_add(struct char_class *c, uint32_t lo, uint32_t hi)
{
    ASSERT(lo <= hi && hi <= FA_CODE_POINT_LAST);
    if (c->n == CHAR_CLASS_RANGES_MAX) return FATHOM_ELIMIT;
    c->ranges[c->n].lo = lo;
    c->ranges[c->n++].hi = hi;
    return FATHOM_OK;
}

static int by_low_end(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

void char_class_normalise(struct char_class *c)
{
    uint32_t n = 0;
    qsort(c->ranges, c->n, sizeof c->ranges[0], by_low_end);
    for (uint32_t i = 0; i < c->n; i++) {
        if (n > 0 && c->ranges[i].lo <= c->ranges[n - 1].hi + 1) {
            if (c->ranges[i].hi > c->ranges[n - 1].hi) c->ranges[n - 1].hi = c->ranges[i].hi;
        } else {
            c->ranges[n++] = c->ranges[i];
        }
    }
    c->n = n;
}

fathom_err char_class_negate(struct char_class *c)
{
    struct char_class out = {.n = 0};
    uint32_t next = 0;
    char_class_normalise(c);
    for (uint32_t i = 0; i < c->n; i++) {
        if (c->ranges[i].lo > next) TRY(char_class_add(&out, next, c->ranges[i].lo - 1));
        next = c->ranges[i].hi + 1;
    }
    if (next <= FA_CODE_POINT_LAST) TRY(char_class_add(&out, next, FA_CODE_POINT_LAST));
    *c = out;
    return FATHOM_OK;
}

fathom_err char_class_add_named(struct char_class *c, uint32_t letter, bool *known)
{
    static const struct {
        char letter;
        uint8_t ranges[8]; /* pairs, ended by 0 */
    } named[] = {{'d', {'0', '9'}},
                 {'w', {'0', '9', 'A', 'Z', '_', '_', 'a', 'z'}},
                 {'s', {'\t', '\r', ' ', ' '}}};
    *known = false;
    for (size_t i = 0; i < sizeof named / sizeof named[0]; i++) {
        if ((letter | 0x20) != (uint32_t)named[i].letter) continue;
        struct char_class own = {.n = 0};
        for (size_t k = 0; k < 8 && named[i].ranges[k]; k += 2) {
            TRY(char_class_add(&own, named[i].ranges[k], named[i].ranges[k + 1]));
        }
        if (!(letter & 0x20)) TRY(char_class_negate(&own));
        for (uint32_t k = 0; k < own.n; k++) {
            TRY(char_class_add(c, own.ranges[k].lo, own.ranges[k].hi));
        }
        *known = true;
    }
    return FATHOM_OK;
}

void char_class_put(struct nfa *n, const struct char_class *c, uint32_t from, uint32_t to)
{
    for (uint32_t i = 0; i < c->n; i++) {
        uint32_t lo = c->ranges[i].lo, hi = c->ranges[i].hi;
        if (lo < FA_SURROGATE_FIRST) {
            nfa_edge(n, from, lo, hi < FA_SURROGATE_FIRST ? hi : FA_SURROGATE_FIRST - 1, to);
        }
        if (hi > FA_SURROGATE_LAST) {
            nfa_edge(n, from, lo > FA_SURROGATE_LAST ? lo : FA_SURROGATE_LAST + 1, hi, to);
        }
    }
}
