/* responses.h - /v1/responses: what its requests and answers have beyond a chat's
 *
 *   responses_field.c   the fields of a request
 *   responses_input.c   items to the messages of a chat
 *   responses_form.c    what is said to items and events
 *   responses_route.c   keeping, telling again, deleting and cancelling responses
 *   response_store.c    where they are kept
 */
#ifndef FATHOM_SERVER_RESPONSES_H
#define FATHOM_SERVER_RESPONSES_H

#include "server/answer.h"

struct job;

/* Owned by the request. */
struct responses_request {
    struct buf echo;  /* members of the response object that repeat the request, each with a comma
                         in front */
    struct buf items; /* stored: what the request brought as a JSON array of items */
    bool store;
    bool summary; /* reasoning is told as a summary, in full */
};

/* How much of it a written response object is. */
struct responses_part {
    size_t output_at, n_output; /* bytes of the array of output items */
};

enum responses_status {
    RESPONSES_IN_PROGRESS,
    RESPONSES_COMPLETED,
    RESPONSES_INCOMPLETE,
    RESPONSES_FAILED,
    RESPONSES_CANCELLED,
};

/* responses_write - the response object of an answer with what it has said so far
 *
 *   e     of RESPONSES_FAILED, else NULL
 *   part  written if not NULL
 * Errors  ENOMEM. */
fathom_err responses_write(struct buf *b, const struct answer *a, enum responses_status status,
                           const struct api_error *e, struct responses_part *part);

/* responses_status_of - how an answer that has ended did so */
enum responses_status responses_status_of(const struct answer *a);

/* responses_end_item - what is being said ends here, incomplete */
fathom_err responses_end_item(struct answer *a);

/* responses_keep - put the answer of a job into the server's store, if it is to be; with the job's
 * lock. A failure is logged: the client has its answer. */
void responses_keep(struct job *job, enum responses_status status);

/* responses_recall - openai_bounds.recall for a job, which then holds on to the response */
fathom_err responses_recall(void *job, const char *id, json_t *items, struct api_error *e);

#endif
