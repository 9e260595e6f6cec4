/* context.c - reads VERSION-TRACE-SPAN-FLAGS */
#include "trace/context.h"

#include <string.h>

enum { VERSION_AT = 0, TRACE_AT = 3, SPAN_AT = 36, FLAGS_AT = 53, END_AT = 55 };

/* The value of a hexadecimal digit, in lower case as the specification demands; -1: it is none. */
static int digit(char c)
{
    if (c >= '0' && c <= '9') return c - '0';
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* Returns false for what is not hexadecimal, the end of the text too. */
static bool read_bytes(uint8_t *out, const char *text, int n)
{
    for (int i = 0; i < n; i++) {
        int high = digit(text[2 * i]);
        int low = high < 0 ? -1 : digit(text[2 * i + 1]);
        if (low < 0) return false;
        out[i] = (uint8_t)(16 * high + low);
    }
    return true;
}

static bool is_zero(const uint8_t *bytes, int n)
{
    for (int i = 0; i < n; i++) {
        if (bytes[i]) return false;
    }
    return true;
}

/* Later versions of the format may have more behind another dash. */
static bool read_all(struct trace_context *c, const char *text)
{
    uint8_t version = 0, flags = 0;
    if (strnlen(text, END_AT) < END_AT) return false;
    if (!read_bytes(&version, text + VERSION_AT, 1) || text[TRACE_AT - 1] != '-' ||
        !read_bytes(c->trace_id, text + TRACE_AT, TRACE_ID_BYTES) || text[SPAN_AT - 1] != '-' ||
        !read_bytes(c->span_id, text + SPAN_AT, TRACE_SPAN_ID_BYTES) || text[FLAGS_AT - 1] != '-' ||
        !read_bytes(&flags, text + FLAGS_AT, 1))
        return false;
    if (version == 0xff || (version == 0 ? text[END_AT] : text[END_AT] && text[END_AT] != '-'))
        return false;
    if (is_zero(c->trace_id, TRACE_ID_BYTES) || is_zero(c->span_id, TRACE_SPAN_ID_BYTES))
        return false;
    c->is_sampled = flags & 1;
    c->is_set = true;
    return true;
}

bool trace_context_read(struct trace_context *out, const char *header)
{
    *out = (struct trace_context){0};
    if (!header) return false;
    if (read_all(out, header)) return true;
    *out = (struct trace_context){0};
    return false;
}
