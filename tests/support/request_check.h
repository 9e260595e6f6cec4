/* request_check.h - what tests of every API's request bodies ask; each function fails the running
 * test when the parser does otherwise */
#ifndef FATHOM_TESTS_REQUEST_CHECK_H
#define FATHOM_TESTS_REQUEST_CHECK_H

#include "server/api/api_request.h"

/* check_refused - the body is refused with 400, this param ("": none) and this message */
void check_refused(enum api_kind api, const struct api_bounds *bounds, const char *body,
                   const char *param, const char *message);

/* check_becomes - the body is taken and its messages are those of a chat, given as JSON; the
 * request is the caller's to free */
void check_becomes(struct api_request *r, enum api_kind api, const struct api_bounds *bounds,
                   const char *body, const char *messages);

/* check_failing_trees - each allocation of reading a body, and of the trees that are made of it,
 * fails in turn */
void check_failing_trees(enum api_kind api, const struct api_bounds *bounds, const char *body);

#endif
