/* openapi.h - the endpoints that have a prompt as paths of an OpenAPI document */
#ifndef FATHOM_SERVER_API_OPENAPI_H
#define FATHOM_SERVER_API_OPENAPI_H

#include "base/buf.h"
#include "server/api/api_request.h"

/* openapi_write_post - a path whose POST takes the fields that this API's table has, with the types
 * and ranges that its readers take; what is refused is left out. No comma is around it. */
void openapi_write_post(struct buf *b, enum api_kind api);

/* openapi_write_plain - a path that needs no body and answers GET, POST or both with this type; one
 * that ends in "/" has an id behind it */
void openapi_write_plain(struct buf *b, const char *path, const char *type, bool get, bool post);

/* openapi_write_responses - the paths of kept responses, each with a comma before it */
void openapi_write_responses(struct buf *b);

#endif
