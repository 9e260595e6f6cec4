/* sse.c - the bytes around an event */
#include "server/api/sse.h"

void sse_begin(struct buf *b)
{
    (void)buf_add_str(b, "data: ");
}

void sse_begin_named(struct buf *b, const char *name)
{
    (void)buf_printf(b, "event: %s\n", name);
    sse_begin(b);
}

void sse_end(struct buf *b)
{
    (void)buf_add_str(b, "\n\n");
}

void sse_done(struct buf *b)
{
    (void)buf_add_str(b, "data: [DONE]\n\n");
}

void sse_idle(struct buf *b)
{
    (void)buf_add_char(b, '\n');
}
