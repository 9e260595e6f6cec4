/* buf.c - text that grows, and remembers that it once could not */
#include "base/buf.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/mem.h"

enum { FIRST_CAP = 64 };

fathom_err buf_status(const struct buf *b)
{
    if (!b->failed) return FATHOM_OK;
    return b->over_limit ? FATHOM_ELIMIT : FATHOM_ENOMEM;
}

fathom_err buf_reserve(struct buf *b, size_t n)
{
    if (b->failed) return buf_status(b);
    if (b->limit && n > b->limit - b->len) {
        b->failed = true;
        b->over_limit = true;
        return FATHOM_ELIMIT;
    }
    if (n >= SIZE_MAX / 2 - b->len) {
        b->failed = true;
        return FATHOM_ENOMEM;
    }
    size_t need = b->len + n + 1;
    if (need <= b->cap) return FATHOM_OK;
    size_t cap = b->cap ? b->cap : FIRST_CAP;
    while (cap < need) cap += cap / 2;
    char *data = mem_resize(b->data, cap);
    if (!data) {
        b->failed = true;
        return FATHOM_ENOMEM;
    }
    b->data = data;
    b->cap = cap;
    b->data[b->len] = '\0';
    return FATHOM_OK;
}

fathom_err buf_add(struct buf *b, const void *bytes, size_t n)
{
    fathom_err err = buf_reserve(b, n);
    if (err) return err;
    if (n) memcpy(b->data + b->len, bytes, n);
    b->len += n;
    b->data[b->len] = '\0';
    return FATHOM_OK;
}

fathom_err buf_add_str(struct buf *b, const char *s)
{
    return buf_add(b, s, strlen(s));
}

fathom_err buf_add_char(struct buf *b, char c)
{
    return buf_add(b, &c, 1);
}

fathom_err buf_printf(struct buf *b, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    ASSERT(n >= 0);
    fathom_err err = buf_reserve(b, (size_t)n);
    if (err) return err;
    va_start(ap, fmt);
    (void)vsnprintf(b->data + b->len, (size_t)n + 1, fmt, ap);
    va_end(ap);
    b->len += (size_t)n;
    return FATHOM_OK;
}

const char *buf_str(const struct buf *b)
{
    return b->data ? b->data : "";
}

void buf_clear(struct buf *b)
{
    b->len = 0;
    b->failed = false;
    b->over_limit = false;
    if (b->data) b->data[0] = '\0';
}

void buf_truncate(struct buf *b, size_t n)
{
    ASSERT(n <= b->len);
    b->len = n;
    if (b->data) b->data[n] = '\0';
}

void buf_consume(struct buf *b, size_t n)
{
    ASSERT(n <= b->len);
    if (n == 0) return;
    memmove(b->data, b->data + n, b->len - n + 1);
    b->len -= n;
}

void buf_free(struct buf *b)
{
    mem_free(b->data);
    memset(b, 0, sizeof *b);
}

char *buf_steal(struct buf *b)
{
    char *data = b->data;
    memset(b, 0, sizeof *b);
    return data;
}
