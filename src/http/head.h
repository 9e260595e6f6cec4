/* head.h - the head of a request: the request line and the header fields, parsed strictly
 *
 * If two servers parse a head differently, a client can smuggle a request past the first of them.
 * So what RFC 9112 leaves open, and what it allows servers to tolerate, is refused here: a head has
 * one meaning or none.
 *
 * Pure functions over bytes. head_scan looks at each byte once, in however small pieces they come;
 * head_parse parses a whole head in place.
 */
#ifndef FATHOM_HTTP_HEAD_H
#define FATHOM_HTTP_HEAD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { HEAD_FIELDS_MAX = 128, HEAD_METHOD_MAX = 15 };

/* Why a head is refused. */
struct head_fault {
    int status;       /* of the answer; 0: the head is not refused */
    const char *text; /* static */
};

struct head_field {
    const char *name;
    const char *value; /* without blanks around it */
};

/* A head; its strings lie in the bytes that were parsed. */
struct head {
    const char *method; /* a token of at most HEAD_METHOD_MAX characters */
    const char *path;   /* percent-decoded; begins with '/', or is "*" */
    const char *query;  /* what follows '?', as it came; "": none */
    const char *host;   /* from an absolute target, or else from Host; NULL: none (HTTP/1.0) */
    bool is_1_0;
    bool chunked;        /* a body in chunks; without it the body has `length` bytes */
    uint64_t length;     /* 0: no body */
    bool close;          /* the connection must be closed after the answer */
    bool wants_continue; /* the client sends its body only after an answer 100 */
    size_t n_field;
    struct head_field fields[HEAD_FIELDS_MAX];
};

/* head_scan - look for the end of a head among the bytes that have come
 *
 *   at  where to go on: 0 for a new head, then what the last call left there
 * Returns the length of the head with its empty line. 0: it is not whole yet, or it is refused, and
 *         fault->status is set: it has a control character, a line that does not end in CR LF, or
 *         more than LIMIT_HTTP_HEAD_BYTES. */
size_t head_scan(const char *bytes, size_t n, size_t *at, struct head_fault *fault);

/* head_parse - parse a head
 *
 *   bytes  [n], n as head_scan has returned it. They are changed, and *h points into them
 * Returns false: the head is refused, and fault says why. */
bool head_parse(struct head *h, char *bytes, size_t n, struct head_fault *fault);

/* head_find - the value of the first field of this name; NULL: there is none */
const char *head_find(const struct head *h, const char *name);

/* head_lists - whether a list "a, b" has an element of n bytes; case does not matter. The list ends
 * with NUL or a line end. */
bool head_lists(const char *list, const char *element, size_t n);

/* head_query - the value of a parameter of the query, percent-decoded and cut to bytes - 1
 * Returns false: there is none, or it has a NUL. */
bool head_query(const struct head *h, const char *name, char *out, size_t bytes);

/* head_query_find - the same for a query string as it came */
bool head_query_find(const char *query, const char *name, char *out, size_t bytes);

#endif
