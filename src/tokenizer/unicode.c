/* unicode.c - lookups in the tables of general categories */
#include "tokenizer/unicode.h"

#include <string.h>

/* The first code point of every run of equal groups, or cases. */
struct run {
    int32_t first;
    unsigned char value;
};
static const struct run groups_16[] = {
#define X(first, group)                                                                            \
    {                                                                                              \
        first, UNICODE_##group                                                                     \
    }
#include "tokenizer/unicode_16.inc"
#undef X
};

static const struct run cases_16[] = {
#define X(first, letter_case)                                                                      \
    {                                                                                              \
        first, UNICODE_##letter_case                                                               \
    }
#include "tokenizer/unicode_case.inc"
#undef X
};

struct range {
    int32_t first, last;
};
static const struct range han[] = {
#define X(first, last)                                                                             \
    {                                                                                              \
        first, last                                                                                \
    }
#include "tokenizer/unicode_han.inc"
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

#define COUNT(list) ((int)(sizeof(list) / sizeof *(list)))

static void fill(unsigned char *out, int32_t n, const struct run *runs, int n_run)
{
    for (int i = 0; i < n_run && runs[i].first < n; i++) {
        int32_t end = i + 1 < n_run && runs[i + 1].first < n ? runs[i + 1].first : n;
        memset(out + runs[i].first, runs[i].value, (size_t)(end - runs[i].first));
    }
}

/* What the run says that holds cp; 0 before the first one. */
static unsigned find(int32_t cp, const struct run *runs, int n_run)
{
    int lo = 0, hi = n_run;
    while (hi - lo > 1) {
        int mid = lo + (hi - lo) / 2;
        if (runs[mid].first <= cp) {
            lo = mid;
        } else {
            hi = mid;
        }
    }
    return runs[lo].value;
}

void unicode_fill_groups(unsigned char *groups, int32_t n)
{
    fill(groups, n, groups_16, COUNT(groups_16));
}

enum unicode_group unicode_group(int32_t cp)
{
    return (enum unicode_group)find(cp, groups_16, COUNT(groups_16));
}

void unicode_fill_cases(unsigned char *cases, int32_t n)
{
    memset(cases, UNICODE_UPPER, (size_t)n);
    fill(cases, n, cases_16, COUNT(cases_16));
}

enum unicode_case unicode_case(int32_t cp)
{
    return (enum unicode_case)find(cp, cases_16, COUNT(cases_16));
}

bool unicode_is_han(int32_t cp)
{
    int lo = 0, hi = COUNT(han);
    while (lo < hi) {
        int mid = lo + (hi - lo) / 2;
        if (han[mid].last < cp) {
            lo = mid + 1;
        } else {
            hi = mid;
        }
    }
    return lo < COUNT(han) && han[lo].first <= cp;
}

fathom_err unicode_add_newer(struct buf *b, const char *category, size_t n)
{
    for (int i = 0; i < COUNT(newer_ranges); i++) {
        const struct newer *r = &newer_ranges[i];
        if (strncmp(r->category, category, n) != 0) continue;
        (void)buf_printf(b, "\\x{%x}", (unsigned)r->first);
        if (r->last > r->first) (void)buf_printf(b, "-\\x{%x}", (unsigned)r->last);
    }
    return buf_status(b);
}
