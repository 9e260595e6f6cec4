/* stream_follow.c - takes a stream apart into events */
#define _GNU_SOURCE /* memmem */
#include "router/stream_follow.h"

#include <stdlib.h>
#include <string.h>

#include "base/fail.h"
#include "base/mem.h"

enum { EVENT_MAX_BYTES = 64 << 20 };

static const char token_mark[] = ": token ";
static const char lost_mark[] = ": lost\n";

static bool begins(const char *event, size_t n, const char *mark)
{
    size_t n_mark = strlen(mark);
    return n >= n_mark && memcmp(event, mark, n_mark) == 0;
}

/* Notes the ids in ": token ID ID ...\n\n". */
static fathom_err note_tokens(struct stream_follow *f, const char *event)
{
    const char *at, *end = event + sizeof token_mark - 1;
    do {
        char *behind;
        at = end;
        TRY(mem_grow(&f->tokens, &f->cap_token, f->n_token + 1, sizeof *f->tokens));
        f->tokens[f->n_token++] = (int32_t)strtol(at, &behind, 10);
        end = behind;
    } while (end > at && *end == ' ');
    f->n_left = f->n_seen = 0;
    return FATHOM_OK;
}

/* Takes one event, with the empty line behind it. */
static fathom_err take_event(struct stream_follow *f, const char *event, size_t n, struct buf *out)
{
    if (begins(event, n, token_mark)) return note_tokens(f, event);
    f->fails = f->fails || begins(event, n, lost_mark);
    if (f->fails) return FATHOM_OK;
    if (event[0] == ':' || begins(event, n, "event: ping\n")) return buf_add(out, event, n);
    f->n_seen++;
    if (f->n_seen <= f->n_left) return FATHOM_OK;
    f->n_left = f->n_seen;
    return buf_add(out, event, n);
}

fathom_err follow_feed(struct stream_follow *f, const char *bytes, size_t n, struct buf *out)
{
    f->part.limit = EVENT_MAX_BYTES;
    size_t seen = f->part.len > 0 ? f->part.len - 1 : 0; /* a line end may be the last byte */
    TRY(buf_add(&f->part, bytes, n));
    const char *begin = buf_str(&f->part), *end = begin + f->part.len;
    const char *at = begin, *from = begin + seen;
    for (;;) {
        for (; at < end && *at == '\n'; at++) { /* empty lines keep a silent stream alive */
            if (!f->fails) TRY(buf_add_char(out, '\n'));
        }
        if (from < at) from = at;
        const char *gap = memmem(from, (size_t)(end - from), "\n\n", 2);
        if (!gap) break;
        TRY(take_event(f, at, (size_t)(gap + 2 - at), out));
        at = from = gap + 2;
    }
    buf_consume(&f->part, (size_t)(at - begin));
    return FATHOM_OK;
}

fathom_err follow_flush(struct stream_follow *f, struct buf *out)
{
    fathom_err err = buf_add(out, buf_str(&f->part), f->part.len);
    buf_clear(&f->part);
    return err;
}

void follow_break(struct stream_follow *f)
{
    buf_clear(&f->part);
    f->n_seen = 0;
    f->fails = false;
}

void follow_free(struct stream_follow *f)
{
    buf_free(&f->part);
    mem_free(f->tokens);
    *f = (struct stream_follow){0};
}
