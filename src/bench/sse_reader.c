/* sse_reader.c - server-sent events from bytes as they come */
#include "bench/sse_reader.h"

#include <string.h>

#include "base/fail.h"

void sse_reader_init(struct sse_reader *s)
{
    memset(s, 0, sizeof *s);
    s->line.limit = SSE_READER_BYTES;
    s->data.limit = SSE_READER_BYTES;
}

void sse_reader_reset(struct sse_reader *s)
{
    buf_clear(&s->line);
    buf_clear(&s->data);
    s->after_cr = false;
}

void sse_reader_free(struct sse_reader *s)
{
    buf_free(&s->line);
    buf_free(&s->data);
}

/* A whole line: adds to the event, or ends it. */
static fathom_err take_line(struct sse_reader *s, const char *line, size_t n,
                            sse_reader_event *event, void *arg)
{
    if (n == 0) {
        if (s->data.len == 0) return FATHOM_OK;
        fathom_err err = event(arg, s->data.data, s->data.len - 1);
        buf_clear(&s->data);
        return err;
    }
    size_t n_name = 4;
    if (n < n_name || memcmp(line, "data", n_name) != 0) return FATHOM_OK;
    if (n > n_name && line[n_name] != ':') return FATHOM_OK;
    size_t at = n > n_name ? n_name + 1 : n_name;
    if (at < n && line[at] == ' ') at++;
    TRY(buf_add(&s->data, line + at, n - at));
    return buf_add_char(&s->data, '\n');
}

fathom_err sse_reader_feed(struct sse_reader *s, const char *bytes, size_t n,
                           sse_reader_event *event, void *arg)
{
    const char *end = bytes + n;
    if (n && s->after_cr && *bytes == '\n') bytes++;
    if (n) s->after_cr = false;
    while (bytes < end) {
        const char *stop = bytes;
        while (stop < end && *stop != '\n' && *stop != '\r') stop++;
        if (stop == end) return buf_add(&s->line, bytes, (size_t)(end - bytes));
        if (s->line.len) {
            TRY(buf_add(&s->line, bytes, (size_t)(stop - bytes)));
            TRY(take_line(s, s->line.data, s->line.len, event, arg));
            buf_clear(&s->line);
        } else {
            TRY(take_line(s, bytes, (size_t)(stop - bytes), event, arg));
        }
        bytes = stop + 1;
        if (*stop == '\r' && bytes < end && *bytes == '\n') {
            bytes++;
        } else if (*stop == '\r' && bytes == end) {
            s->after_cr = true;
        }
    }
    return FATHOM_OK;
}
