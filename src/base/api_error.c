/* api_error.c - statuses, codes and the two forms of an error */
#include "base/api_error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/fail.h"
#include "base/json.h"
#include "base/utf8.h"

static fathom_err err_of_status(int status)
{
    switch (status) {
    case 404: return FATHOM_ENOTFOUND;
    case 413: return FATHOM_ELIMIT;
    case 429: return FATHOM_EBUSY;
    case 501: return FATHOM_EUNSUPPORTED;
    case 503: return FATHOM_EDEVICE;
    default: return status < 500 ? FATHOM_EINVAL : FATHOM_ENOMEM;
    }
}

fathom_err api_error_set(struct api_error *e, int status, const char *code, const char *param,
                         const char *fmt, ...)
{
    if (e->status) return err_of_status(e->status);
    e->status = status;
    e->code = code;
    (void)snprintf(e->param, sizeof e->param, "%s", param ? param : "");
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(e->diag.text, sizeof e->diag.text, fmt, ap);
    va_end(ap);
    return err_of_status(status);
}

fathom_err api_error_from(struct api_error *e, fathom_err err, const char *param,
                          const fathom_diag *d)
{
    const char *text = d && d->text[0] ? d->text : fathom_err_text(err);
    int status = 500;
    const char *code = NULL;
    switch (err) {
    case FATHOM_EINVAL:
    case FATHOM_EFORMAT:
    case FATHOM_ELIMIT:
    case FATHOM_EUNSUPPORTED: status = 400; break;
    case FATHOM_ENOTFOUND: status = 404; break;
    case FATHOM_EBUSY:
        status = 429;
        code = "server_busy";
        break;
    case FATHOM_ECANCEL:
        status = 503;
        code = "cancelled";
        break;
    case FATHOM_EDEVICE:
        status = 503;
        code = "engine_failed";
        break;
    case FATHOM_EPEER:
        status = 503;
        code = "host_away";
        break;
    default: break;
    }
    (void)api_error_set(e, status, code, param, "%s", text);
    return err;
}

const char *api_error_type(int status)
{
    if (status == 401 || status == 403) return "authentication_error";
    if (status == 429) return "rate_limit_error";
    return status < 500 ? "invalid_request_error" : "server_error";
}

/* A message may quote what was wrong and may be cut at its buffer's end; the body stays UTF-8: an
 * ill-formed part becomes U+FFFD. */
static void write_text(struct buf *b, const char *s)
{
    struct buf clean = {0};
    for (size_t i = 0, n = strlen(s); i < n;) {
        size_t len;
        bool ok = utf8_next(s + i, n - i, &len) >= 0;
        (void)buf_add(&clean, ok ? s + i : "\xEF\xBF\xBD", ok ? len : 3);
        i += len;
    }
    if (clean.failed) b->failed = true;
    (void)json_write_string(b, buf_str(&clean), clean.len);
    buf_free(&clean);
}

fathom_err api_error_write(struct buf *b, const struct api_error *e)
{
    (void)buf_add_str(b, "{\"error\":{\"message\":");
    write_text(b, e->diag.text);
    (void)buf_printf(b, ",\"type\":\"%s\",\"param\":", api_error_type(e->status));
    if (e->param[0]) {
        write_text(b, e->param);
    } else {
        (void)buf_add_str(b, "null");
    }
    (void)buf_add_str(b, ",\"code\":");
    if (e->code) {
        write_text(b, e->code);
    } else {
        (void)buf_add_str(b, "null");
    }
    (void)buf_add_str(b, "}}");
    return buf_status(b);
}

void api_error_write_message(struct buf *b, const struct api_error *e)
{
    write_text(b, e->diag.text);
}

static const char *anthropic_type(const struct api_error *e)
{
    switch (e->status) {
    case 401: return "authentication_error";
    case 404: return "not_found_error";
    case 413: return "request_too_large";
    case 429: return "rate_limit_error";
    case 503: return e->retry_after_s ? "overloaded_error" : "api_error";
    default: return e->status < 500 ? "invalid_request_error" : "api_error";
    }
}

fathom_err api_error_write_anthropic(struct buf *b, const struct api_error *e)
{
    (void)buf_printf(
        b, "{\"type\":\"error\",\"error\":{\"type\":\"%s\",\"message\":", anthropic_type(e));
    api_error_write_message(b, e);
    if (e->code && strcmp(e->code, API_THREAD_NOT_FOUND) == 0) {
        (void)buf_add_str(b, ",\"details\":{\"error_code\":\"" API_THREAD_NOT_FOUND "\"}");
    }
    (void)buf_add_str(b, "}}");
    return buf_status(b);
}
