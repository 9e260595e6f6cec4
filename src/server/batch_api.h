/* batch_api.h - requests of a file: the batch API's lines in, its lines out, without a socket
 *
 *   {"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", "body": {...}}
 *   {"id": "...", "custom_id": "1", "response": {"status_code": 200, "request_id": "...",
 *    "body": {...}}, "error": null}
 *
 * A line's body becomes a job as one that has come over HTTP does. What is wrong with a line or its
 * body is the answer of that line: its body is null, and its error is what a client of the server
 * would have been told.
 *
 *   batch_ask --> ASKED --the job wakes its client--> TOLD --batch_take--> (gone)
 *                   |                                   ^
 *                   +------ a line that is no request --+
 *
 * One thread asks and takes. Jobs wake their client from any thread, with the job's lock; the lock
 * of a batch is taken last, by itself.
 */
#ifndef FATHOM_SERVER_BATCH_API_H
#define FATHOM_SERVER_BATCH_API_H

#include <stdbool.h>
#include <stddef.h>

#include "base/buf.h"
#include "fathom/err.h"

struct batch;
struct route_env;

/* A line of the input; its bytes are borrowed for the call. */
struct batch_request {
    const char *text;
    size_t n;
    size_t number; /* of the line, from 1, for messages */
    void *user;
};

struct batch_answer {
    void *user;
    bool busy;       /* there was no room for it beside the others: ask again; no line */
    bool is_error;   /* its line tells one */
    struct buf line; /* with its end; the caller's */
};

/* batch_create - env is copied, its parts outlive batch_destroy
 * batch_destroy - what has not been taken is given up; accepts NULL */
fathom_err batch_create(struct batch **out, const struct route_env *env);
void batch_destroy(struct batch *b);

/* batch_window - how many lines may be asked before any is answered, so that the engine runs as
 * many as it can and the next ones are prepared */
size_t batch_window(const struct batch *b);

/* batch_ask - Errors  ENOMEM. */
fathom_err batch_ask(struct batch *b, const struct batch_request *r);

/* batch_take - the next answer, in the order in which they come to their ends
 *
 *   timeout_ms  to wait for one
 *   taken       whether there is one
 * Edge    a line beside which no other has been open is not busy: it has its error.
 * Errors  ENOMEM. */
fathom_err batch_take(struct batch *b, unsigned timeout_ms, struct batch_answer *out, bool *taken);

#endif
