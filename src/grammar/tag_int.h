/* tag_int.h - text in which something is awaited (tag_text.c), for structural tags (tag_put.c) */
#ifndef FATHOM_GRAMMAR_TAG_INT_H
#define FATHOM_GRAMMAR_TAG_INT_H

#include "grammar/builder.h"

enum {
    TAG_AWAITED_MAX = 512,        /* texts awaited at one place: ELIMIT */
    TAG_AWAITED_BYTES_MAX = 4096, /* all of them together: ELIMIT */
    TAG_NOWHERE = UINT32_MAX,
};

/* A text that ends free text when it occurs. */
struct tag_awaited {
    const char *text; /* [n], n > 0, UTF-8 */
    size_t n;
    uint32_t chain; /* state of a markup that begins with the text, whose next states follow it
                       byte by byte; TAG_NOWHERE: the text must not occur */
};

/* tag_put_text - any text up to the first of those that are awaited
 *
 *   from   becomes the place before the text
 *   *free  a state where the text may end without any of them
 * What is awaited goes on behind the text in its chain; where two end at the same place, in both.
 * Added tokens that a chain begins with may come as such.
 * Errors  EINVAL: one of them can never be the first, since another one is inside it. ELIMIT,
 *         ENOMEM; ECANCEL of the budget */
fathom_err tag_put_text(struct grammar_builder *b, uint32_t from, const struct tag_awaited *awaited,
                        size_t n, uint32_t *free, fathom_diag *d);

#endif
