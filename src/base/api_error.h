/* api_error.h - what a refused request is told, in OpenAI's form or Anthropic's
 *
 * Clients choose their exception by the status and retry on 408, 409, 429 and 5xx, so a fault of
 * the request is never answered with 5xx.
 */
#ifndef FATHOM_BASE_API_ERROR_H
#define FATHOM_BASE_API_ERROR_H

#include "base/buf.h"
#include "fathom/err.h"

enum { API_PARAM_BYTES = 128 };

/* The code of a request that goes on from a conversation which is not kept: Anthropic's clients
 * then send it whole. */
#define API_THREAD_NOT_FOUND "thread_not_found"

/* A zeroed struct is "no error". Strings are static but for param and diag. */
struct api_error {
    int status;                  /* HTTP; 0: none */
    const char *code;            /* "model_not_found"; NULL: null */
    char param[API_PARAM_BYTES]; /* path of the field at fault; "": null */
    unsigned retry_after_s;      /* header Retry-After; 0: none */
    fathom_diag diag;            /* the message */
};

/* api_error_set - fill *e, unless it already holds an error: the first one found is told
 *
 *   param  path of the field at fault ("messages[2].content"), or NULL
 * Returns the fathom_err of the status: EINVAL 4xx, ENOTFOUND 404, ELIMIT 413, EBUSY 429,
 * EUNSUPPORTED 501, EDEVICE 503, ENOMEM else. */
fathom_err api_error_set(struct api_error *e, int status, const char *code, const char *param,
                         const char *fmt, ...) __attribute__((format(printf, 5, 6)));

/* api_error_from - an engine or parser error and its message as an answer
 *
 *   err   not FATHOM_OK; EINVAL, EFORMAT, ELIMIT, EUNSUPPORTED are the request's fault (400), EPEER
 *         is a host that is away
 *   d     the message; the sentence of err stands in when it is empty
 * Returns err. */
fathom_err api_error_from(struct api_error *e, fathom_err err, const char *param,
                          const fathom_diag *d);

/* api_error_type - "invalid_request_error", "authentication_error", "rate_limit_error",
 * "server_error" */
const char *api_error_type(int status);

/* api_error_write - {"error":{"message":..,"type":..,"param":..,"code":..}} */
fathom_err api_error_write(struct buf *b, const struct api_error *e);

/* api_error_write_anthropic - {"type":"error","error":{"type":..,"message":..}}; the type follows
 * from the status: "invalid_request_error", "rate_limit_error", "api_error" ... */
fathom_err api_error_write_anthropic(struct buf *b, const struct api_error *e);

/* api_error_write_message - the message alone, as a JSON string */
void api_error_write_message(struct buf *b, const struct api_error *e);

#endif
