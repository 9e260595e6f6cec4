/* response_items.h - pages of the items that a stored response's request brought */
#ifndef FATHOM_SERVER_HTTP_RESPONSE_ITEMS_H
#define FATHOM_SERVER_HTTP_RESPONSE_ITEMS_H

#include <stdbool.h>

#include "base/api_error.h"
#include "base/buf.h"

enum { ITEM_ID_BYTES = 32, ITEM_PAGE_MAX = 100 };

/* Which of them: as the query of a request says. */
struct item_page {
    unsigned limit; /* 1 to ITEM_PAGE_MAX */
    bool ascending;
    char after[ITEM_ID_BYTES]; /* id of the item before; "": from the beginning */
};

/* response_page_read - limit, order and after of a query
 * Errors  EINVAL (400): names the argument. */
fathom_err response_page_read(struct item_page *out, const char *query, struct api_error *e);

/* response_items_write - a page as OpenAI's list object; each item has an id, which is made of the
 * response's and its place
 *
 *   id     of the response
 *   items  text of a JSON array
 * Errors  EINVAL (400): no item is called `after`; ENOMEM. */
fathom_err response_items_write(struct buf *body, const char *id, const struct buf *items,
                                const struct item_page *page, struct api_error *e);

#endif
