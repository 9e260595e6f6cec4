/* responses_form.h - the response object of /v1/responses
 *
 *   responses_field.c   the fields of a request
 *   responses_input.c   items to the messages of a chat
 *   responses_form.c    what is said to items and events
 */
#ifndef FATHOM_SERVER_API_RESPONSES_FORM_H
#define FATHOM_SERVER_API_RESPONSES_FORM_H

#include "server/api/answer.h"

/* Where in a written response object its output items are. */
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

/* responses_status_of - the status of an answer that has ended */
enum responses_status responses_status_of(const struct answer *a);

/* responses_end_item - close the open item as incomplete */
fathom_err responses_end_item(struct answer *a);

#endif
