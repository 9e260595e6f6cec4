/* page_query.c - see page_query.h */
#include "comm/page_query.h"

#include <stdio.h>
#include <string.h>

#include "base/fail.h"

enum { LINE_MAX = 64 }; /* of the question, whose beginning says all */

bool page_query_is(const unsigned char begin[QUERY_BEGIN_BYTES])
{
    return memcmp(begin, "GET ", QUERY_BEGIN_BYTES) == 0;
}

/* What follows "GET ", up to the empty line; the beginning of it stays in `line`. */
static fathom_err read_head(struct page_link *l, char line[LINE_MAX], uint64_t deadline_us,
                            fathom_diag *d)
{
    uint32_t last = 0; /* four bytes */
    size_t n = 0;
    while (last != 0x0d0a0d0a && (last & 0xffff) != 0x0a0a) {
        unsigned char byte;
        if (n == QUERY_BYTES_MAX) {
            FAIL(d, FATHOM_EFORMAT, "a question by HTTP is longer than %d bytes", QUERY_BYTES_MAX);
        }
        TRY(l->ops->receive(l, &byte, 1, deadline_us, d));
        if (n < LINE_MAX - 1) line[n] = (char)byte;
        last = last << 8 | byte;
        n++;
    }
    line[n < LINE_MAX ? n : LINE_MAX - 1] = '\0';
    return FATHOM_OK;
}

fathom_err page_query_answer(struct page_link *l, const char *id, uint64_t deadline_us,
                             fathom_diag *d)
{
    char line[LINE_MAX] = "", body[256], head[256];
    TRY(read_head(l, line, deadline_us, d));
    const char *path = "/query";
    const size_t n_path = strlen(path);
    const bool known = strncmp(line, path, n_path) == 0 && strchr(" ?", line[n_path]);
    const int n_body = known ? snprintf(body, sizeof body, "{\"0\": {\"engine_id\": \"%s\"}}", id)
                             : snprintf(body, sizeof body,
                                        "{\"error\": \"nothing but /query is answered here: this "
                                        "port gives pages to other servers\"}");
    const int n_head = snprintf(head, sizeof head,
                                "HTTP/1.1 %s\r\nContent-Type: application/json\r\n"
                                "Content-Length: %d\r\nConnection: close\r\n\r\n",
                                known ? "200 OK" : "404 Not Found", n_body);
    const struct link_part parts[] = {{head, (size_t)n_head}, {body, (size_t)n_body}};
    return l->ops->send(l, parts, 2, deadline_us, d);
}
