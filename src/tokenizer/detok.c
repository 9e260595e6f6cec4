/* detok.c - the bytes of an unfinished character wait for the next token
 *
 * Invariant: held[0 .. n_held), n_held <= 3, is the start of a character that later bytes may
 * complete (utf8_next says UTF8_SHORT), or empty. */
#include "tokenizer/detok.h"

#include <string.h>

#include "base/assert.h"
#include "base/fail.h"
#include "base/utf8.h"

static const char REPLACEMENT[] = "\xef\xbf\xbd";

static void check(const struct detok *d)
{
    size_t len;
    DCHECK(d->n_held <= 3);
    DCHECK(d->n_held == 0 || utf8_next(d->held, d->n_held, &len) == UTF8_SHORT);
    (void)len;
}

void detok_init(struct detok *d, const struct tokenizer *t, bool skip_special)
{
    *d = (struct detok){.tokenizer = t, .skip_special = skip_special};
}

/* Appends the character or ill-formed part that utf8_next found at s. */
static fathom_err add_part(struct buf *out, const char *s, size_t len, int32_t cp)
{
    return cp == UTF8_BAD ? buf_add_str(out, REPLACEMENT) : buf_add(out, s, len);
}

/* Appends what is settled at the front of held, until the rest is the start of a character. */
static fathom_err settle(struct detok *d, struct buf *out)
{
    while (d->n_held > 0) {
        size_t len;
        int32_t cp = utf8_next(d->held, d->n_held, &len);
        if (cp == UTF8_SHORT) break;
        TRY(add_part(out, d->held, len, cp));
        d->n_held -= (unsigned)len;
        memmove(d->held, d->held + len, d->n_held);
    }
    return FATHOM_OK;
}

fathom_err detok_push(struct detok *d, int32_t id, struct buf *out)
{
    size_t n, i = 0, len;
    if (d->skip_special && tokenizer_is_special(d->tokenizer, id)) return FATHOM_OK;
    const char *s = tokenizer_bytes(d->tokenizer, id, &n);
    while (d->n_held > 0 && i < n) {
        d->held[d->n_held++] = s[i++];
        TRY(settle(d, out));
    }
    for (; i < n; i += len) {
        int32_t cp = utf8_next(s + i, n - i, &len);
        if (cp == UTF8_SHORT) {
            memcpy(d->held, s + i, len);
            d->n_held = (unsigned)len;
        } else {
            TRY(add_part(out, s + i, len, cp));
        }
    }
    check(d);
    return FATHOM_OK;
}

fathom_err detok_flush(struct detok *d, struct buf *out)
{
    bool held = d->n_held > 0;
    d->n_held = 0;
    return held ? buf_add_str(out, REPLACEMENT) : FATHOM_OK;
}
