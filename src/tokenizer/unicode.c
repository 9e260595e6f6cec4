/* unicode.c - lookups in the tables of general categories */
#include "tokenizer/unicode.h"

#include <string.h>

/* The first code point of every run of equal groups. */
struct run {
    int32_t first;
    unsigned char group;
};
static const struct run runs[] = {
#define X(first, group)                                                                            \
    {                                                                                              \
        first, UNICODE_##group                                                                     \
    }
#include "tokenizer/unicode_16.inc"
#undef X
};

struct newer {
    int32_t first, last;
    char category[3];
};
static const struct newer newer_ranges[] = {
#define X(first, last, category)                                                                   \
    {                                                                                              \
        first, last, #category                                                                     \
    }
#include "tokenizer/unicode_delta.inc"
#undef X
};

enum {
    N_RUN = sizeof runs / sizeof runs[0],
    N_NEWER = sizeof newer_ranges / sizeof newer_ranges[0]
};

void unicode_fill_groups(unsigned char *groups, int32_t n)
{
    for (int i = 0; i < N_RUN && runs[i].first < n; i++) {
        int32_t end = i + 1 < N_RUN && runs[i + 1].first < n ? runs[i + 1].first : n;
        memset(groups + runs[i].first, runs[i].group, (size_t)(end - runs[i].first));
    }
}

enum unicode_group unicode_group(int32_t cp)
{
    int lo = 0, hi = N_RUN;
    while (hi - lo > 1) {
        int mid = lo + (hi - lo) / 2;
        if (runs[mid].first <= cp) {
            lo = mid;
        } else {
            hi = mid;
        }
    }
    return (enum unicode_group)runs[lo].group;
}

fathom_err unicode_add_newer(struct buf *b, const char *category, size_t n)
{
    for (int i = 0; i < N_NEWER; i++) {
        const struct newer *r = &newer_ranges[i];
        if (strncmp(r->category, category, n) != 0) continue;
        (void)buf_printf(b, "\\x{%x}", (unsigned)r->first);
        if (r->last > r->first) (void)buf_printf(b, "-\\x{%x}", (unsigned)r->last);
    }
    return buf_status(b);
}
