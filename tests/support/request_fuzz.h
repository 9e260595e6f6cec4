/* request_fuzz.h - what holds for any body of a request, for its fuzzers */
#ifndef FATHOM_SUPPORT_REQUEST_FUZZ_H
#define FATHOM_SUPPORT_REQUEST_FUZZ_H

#include <stddef.h>
#include <stdint.h>

#include "server/api/api_request.h"

/* The form of an API's errors: api_error_write or api_error_write_anthropic. */
typedef fathom_err request_fuzz_write(struct buf *b, const struct api_error *e);

/* What holds for a request that is taken; ASSERTs it. */
typedef void request_fuzz_check(const struct api_request *r, enum api_kind api);

/* request_fuzz_body - ASSERT that the bytes are refused with a status and a message, which make an
 * error of the API that is JSON, or become a request that `check` accepts */
void request_fuzz_body(enum api_kind api, const struct api_bounds *bounds, const uint8_t *data,
                       size_t size, request_fuzz_write *write, request_fuzz_check *check);

/* request_fuzz_json - ASSERT that a text is JSON */
void request_fuzz_json(const struct buf *text);

#endif
