/* added.c - the first added token in a text, by pairs of bytes */
#include "tokenizer/added.h"

#include <string.h>

#include "base/fail.h"
#include "base/mem.h"

void added_free(struct added_set *a)
{
    mem_free(a->ids);
    *a = (struct added_set){0};
}

fathom_err added_put(struct added_set *a, uint32_t id)
{
    TRY(mem_grow(&a->ids, &a->cap, a->n + 1, sizeof *a->ids));
    a->ids[a->n++] = id;
    return FATHOM_OK;
}

/* Order of token `id` and the bytes s[0 .. n), as memcmp and then the shorter first. */
static int compare(const struct vocab *v, uint32_t id, const char *s, size_t n)
{
    size_t n_token = v->tokens[id].n_byte;
    int order = memcmp(vocab_bytes(v, id), s, n_token < n ? n_token : n);
    return order ? order : (n_token > n) - (n_token < n);
}

/* Heap sort: files list their tokens in any order, and hostile ones list many. */
static void sift_down(struct added_set *a, const struct vocab *v, uint32_t i, uint32_t n)
{
    uint32_t id = a->ids[i];
    for (;;) {
        uint32_t child = 2 * i + 1;
        if (child >= n) break;
        uint32_t right = child + 1;
        if (right < n && compare(v, a->ids[child], vocab_bytes(v, a->ids[right]),
                                 v->tokens[a->ids[right]].n_byte) < 0) {
            child = right;
        }
        if (compare(v, a->ids[child], vocab_bytes(v, id), v->tokens[id].n_byte) <= 0) break;
        a->ids[i] = a->ids[child];
        i = child;
    }
    a->ids[i] = id;
}

static void sort_ids(struct added_set *a, const struct vocab *v)
{
    for (uint32_t i = a->n / 2; i-- > 0;) sift_down(a, v, i, a->n);
    for (uint32_t n = a->n; n > 1; n--) {
        uint32_t last = a->ids[n - 1];
        a->ids[n - 1] = a->ids[0];
        a->ids[0] = last;
        sift_down(a, v, 0, n - 1);
    }
}

static inline void set_start(struct added_set *a, unsigned first, unsigned second)
{
    unsigned pair = first << 8 | second;
    a->may_start[pair >> 6] |= UINT64_C(1) << (pair & 63);
}

static inline bool may_start(const struct added_set *a, unsigned first, unsigned second)
{
    unsigned pair = first << 8 | second;
    return a->may_start[pair >> 6] >> (pair & 63) & 1;
}

fathom_err added_sort(struct added_set *a, const struct vocab *v, uint32_t *twin)
{
    sort_ids(a, v);
    a->only_first = -1;
    for (uint32_t i = 0; i < a->n; i++) {
        uint32_t id = a->ids[i];
        const unsigned char *bytes = (const unsigned char *)vocab_bytes(v, id);
        size_t n_byte = v->tokens[id].n_byte;
        *twin = id;
        if (i > 0 && compare(v, a->ids[i - 1], (const char *)bytes, n_byte) == 0) {
            return FATHOM_EINVAL;
        }
        if (i == 0) a->only_first = bytes[0];
        if (bytes[0] != a->only_first) a->only_first = -1;
        if (n_byte > 1) {
            set_start(a, bytes[0], bytes[1]);
        } else {
            for (unsigned second = 0; second < 256; second++) set_start(a, bytes[0], second);
        }
    }
    return FATHOM_OK;
}

int32_t added_find(const struct added_set *a, const struct vocab *v, const char *s, size_t n)
{
    uint32_t lo = 0, hi = a->n;
    while (lo < hi) {
        uint32_t mid = lo + (hi - lo) / 2;
        int order = compare(v, a->ids[mid], s, n);
        if (order == 0) return (int32_t)a->ids[mid];
        if (order < 0) {
            lo = mid + 1;
        } else {
            hi = mid;
        }
    }
    return -1;
}

/* First of ids[lo .. hi), which agree in `depth` bytes and have more, whose next byte is >= c. */
static uint32_t lower_bound(const struct added_set *a, const struct vocab *v, uint32_t lo,
                            uint32_t hi, size_t depth, unsigned c)
{
    while (lo < hi) {
        uint32_t mid = lo + (hi - lo) / 2;
        if ((unsigned char)vocab_bytes(v, a->ids[mid])[depth] < c) {
            lo = mid + 1;
        } else {
            hi = mid;
        }
    }
    return lo;
}

/* The longest token that s[0 .. n) starts with, by narrowing the sorted set byte by byte. */
static int32_t match_longest(const struct added_set *a, const struct vocab *v, const char *s,
                             size_t n)
{
    int32_t longest = -1;
    uint32_t lo = 0, hi = a->n;
    for (size_t depth = 0; depth < n && lo < hi; depth++) {
        unsigned c = (unsigned char)s[depth];
        lo = lower_bound(a, v, lo, hi, depth, c);
        hi = lower_bound(a, v, lo, hi, depth, c + 1);
        if (lo < hi && v->tokens[a->ids[lo]].n_byte == depth + 1) {
            longest = (int32_t)a->ids[lo++];
        }
    }
    return longest;
}

int32_t added_next(const struct added_set *a, const struct vocab *v, const char *s, size_t n,
                   size_t from, size_t *at)
{
    if (a->n == 0) return -1;
    for (size_t i = from; i < n; i++) {
        if (a->only_first >= 0) {
            const char *first = memchr(s + i, a->only_first, n - i);
            if (!first) return -1;
            i = (size_t)(first - s);
        }
        unsigned second = i + 1 < n ? (unsigned char)s[i + 1] : 0;
        if (!may_start(a, (unsigned char)s[i], second)) continue;
        int32_t id = match_longest(a, v, s + i, n - i);
        if (id >= 0) {
            *at = i;
            return id;
        }
    }
    return -1;
}
