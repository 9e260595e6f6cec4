/* response_items.c - finds the items in the text of their array, and tells those of one page
 *
 * A request may have brought as much as a body holds, so nothing is made a tree: passes over the
 * text, which base/json has written without blanks, find where items and members begin and end.
 */
#include "server/http/response_items.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fail.h"
#include "base/mem.h"
#include "base/rng.h"
#include "http/head.h"

fathom_err response_page_read(struct item_page *out, const char *query, struct api_error *e)
{
    char text[16];
    *out = (struct item_page){.limit = 20};
    if (head_query_find(query, "limit", text, sizeof text)) {
        char *end;
        unsigned long n = strtoul(text, &end, 10);
        if (*end || text[0] < '0' || text[0] > '9' || n < 1 || n > ITEM_PAGE_MAX) {
            return api_error_set(e, 400, "invalid_value", "limit",
                                 "limit is \"%s\", needed is 1 to %d", text, ITEM_PAGE_MAX);
        }
        out->limit = (unsigned)n;
    }
    if (head_query_find(query, "order", text, sizeof text)) {
        out->ascending = strcmp(text, "asc") == 0;
        if (!out->ascending && strcmp(text, "desc") != 0) {
            return api_error_set(e, 400, "invalid_value", "order",
                                 "order is \"%s\", needed is asc or desc", text);
        }
    }
    if (!head_query_find(query, "after", out->after, sizeof out->after)) out->after[0] = '\0';
    return FATHOM_OK;
}

/* Where an item stands in the text. */
struct span {
    size_t at, n;
};

/* The end of the value at s: the place of the comma or bracket behind it. */
static size_t end_of_value(const char *s, size_t at, size_t n)
{
    unsigned depth = 0;
    bool in_string = false;
    for (; at < n; at++) {
        char c = s[at];
        if (in_string) {
            if (c == '\\') at++;
            in_string = c != '"';
        } else if (c == '"') {
            in_string = true;
        } else if (c == '{' || c == '[') {
            depth++;
        } else if (c == '}' || c == ']') {
            if (depth == 0) return at;
            depth--;
        } else if (c == ',' && depth == 0) {
            return at;
        }
    }
    return at;
}

/* All items of the array; *out is the caller's. */
static fathom_err find_items(const struct buf *items, struct span **out, size_t *n_item)
{
    const char *s = buf_str(items);
    size_t n = 0;
    *out = NULL;
    for (int pass = 0; pass < 2; pass++) {
        n = 0;
        for (size_t at = 1; at < items->len && s[at] != ']';) {
            size_t end = end_of_value(s, at, items->len);
            if (*out) (*out)[n] = (struct span){at, end - at};
            n++;
            at = end < items->len && s[end] == ',' ? end + 1 : end;
        }
        if (pass == 0 && !(*out = mem_alloc_array(n + 1, sizeof **out))) return FATHOM_ENOMEM;
    }
    *n_item = n;
    return FATHOM_OK;
}

static void make_id(char *out, const char *id, size_t i)
{
    uint64_t sum = rng_hash(i + 1);
    for (; *id; id++) sum = rng_hash(sum ^ (unsigned char)*id);
    (void)snprintf(out, ITEM_ID_BYTES, "item_%016llx", (unsigned long long)sum);
}

/* Copies the members of an object but for its id; *typed: one of them is its type. */
static void copy_members(struct buf *b, const char *s, size_t n, bool *typed)
{
    *typed = false;
    for (size_t at = 1; at < n && s[at] != '}';) {
        size_t end = end_of_value(s, at, n);
        *typed |= n - at > 7 && memcmp(s + at, "\"type\":", 7) == 0;
        if (!(n - at > 5 && memcmp(s + at, "\"id\":", 5) == 0)) {
            (void)buf_add_char(b, ',');
            (void)buf_add(b, s + at, end - at);
        }
        at = end < n && s[end] == ',' ? end + 1 : end;
    }
}

/* Every item has an id of its place, and a type: one without is a message. */
static void write_item(struct buf *b, const char *s, size_t n, const char *id)
{
    bool typed;
    (void)buf_printf(b, "{\"id\":\"%s\"", id);
    copy_members(b, s, n, &typed);
    (void)buf_add_str(b, typed ? "}" : ",\"type\":\"message\"}");
}

/* Where the page begins, in the order that it has; n: `after` is nowhere. */
static size_t find_after(const struct item_page *page, const char *id, size_t n)
{
    char own[ITEM_ID_BYTES];
    if (!page->after[0]) return 0;
    for (size_t i = 0; i < n; i++) {
        make_id(own, id, page->ascending ? i : n - 1 - i);
        if (strcmp(own, page->after) == 0) return i + 1;
    }
    return n + 1;
}

fathom_err response_items_write(struct buf *body, const char *id, const struct buf *items,
                                const struct item_page *page, struct api_error *e)
{
    struct span *spans;
    size_t n;
    char own[ITEM_ID_BYTES] = "", first[ITEM_ID_BYTES] = "";
    TRY(find_items(items, &spans, &n));
    fathom_err err = FATHOM_OK;
    size_t from = find_after(page, id, n);
    if (from > n) {
        err = api_error_set(e, 400, "invalid_value", "after", "after is \"%s\", which is no item",
                            page->after);
    }
    size_t to = n - (from < n ? from : n) > page->limit ? from + page->limit : n;
    (void)buf_add_str(body, "{\"object\":\"list\",\"data\":[");
    for (size_t i = from; i < to && !err; i++) {
        size_t k = page->ascending ? i : n - 1 - i;
        make_id(own, id, k);
        if (i == from) memcpy(first, own, sizeof first);
        if (i > from) (void)buf_add_char(body, ',');
        write_item(body, buf_str(items) + spans[k].at, spans[k].n, own);
    }
    mem_free(spans);
    if (err) return err;
    bool any = from < to;
    return buf_printf(body, "],\"first_id\":%s%s%s,\"last_id\":%s%s%s,\"has_more\":%s}",
                      any ? "\"" : "", any ? first : "null", any ? "\"" : "", any ? "\"" : "",
                      any ? own : "null", any ? "\"" : "", to < n ? "true" : "false");
}
