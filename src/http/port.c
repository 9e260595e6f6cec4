/* port.c - compares names, origins and paths, and says what is wrong with them */
#include "http/port.h"

#include <string.h>

#include "base/fail.h"
#include "base/mem.h"
#include "http/connection.h"
#include "http/gate.h"
#include "http/head.h"

/* ---- header lines -------------------------------------------------------------------------- */

static bool has_origin(const struct port_rules *r, const char *origin)
{
    for (size_t i = 0; i < r->n_origin; i++) {
        if (strcmp(r->origins[i], origin) == 0) return true;
    }
    return false;
}

const char *port_origin(const struct port_rules *r, const char *origin, bool *varies)
{
    bool any = has_origin(r, "*");
    *varies = r->n_origin > 0 && (!any || r->allow_credentials);
    if (any && !r->allow_credentials) return "*";
    if (!origin || strpbrk(origin, "\r\n")) return NULL;
    return any || has_origin(r, origin) ? origin : NULL;
}

void port_request_id(char out[REQUEST_ID_BYTES], const char *given)
{
    size_t n = given ? strlen(given) : 0;
    out[0] = '\0';
    if (n == 0 || n >= REQUEST_ID_BYTES) return;
    for (size_t i = 0; i < n; i++) {
        if (given[i] <= 0x20 || given[i] >= 0x7f || given[i] == '"' || given[i] == '\\') return;
    }
    memcpy(out, given, n + 1);
}

fathom_err port_asker_read(struct port_asker *a, const struct port_rules *r, const struct head *h)
{
    const char *origin = port_origin(r, head_find(h, "Origin"), &a->varies);
    port_request_id(a->request_id, head_find(h, "X-Request-Id"));
    if (origin && !(a->allow_origin = mem_strdup(origin))) return FATHOM_ENOMEM;
    return FATHOM_OK;
}

void port_asker_free(struct port_asker *a)
{
    mem_free(a->allow_origin);
    a->allow_origin = NULL;
}

static void add_cors_fields(const struct port_rules *r, const struct port_asker *a, bool preflight,
                            struct buf *fields)
{
    if (a->varies) (void)buf_add_str(fields, "Vary: Origin\r\n");
    if (!a->allow_origin) return;
    (void)buf_printf(fields, "Access-Control-Allow-Origin: %s\r\n", a->allow_origin);
    if (r->allow_credentials)
        (void)buf_add_str(fields, "Access-Control-Allow-Credentials: true\r\n");
    if (!preflight)
        (void)buf_add_str(fields,
                          "Access-Control-Expose-Headers: X-Request-Id, Retry-After, warnings\r\n");
}

void port_add_fields(const struct port_rules *r, const struct port_asker *a, const char *id,
                     bool preflight, struct buf *fields)
{
    if (a->request_id[0]) id = a->request_id;
    add_cors_fields(r, a, preflight, fields);
    if (*id) (void)buf_printf(fields, "X-Request-Id: %s\r\n", id);
}

/* ---- paths --------------------------------------------------------------------------------- */

const char *port_path(const struct port_rules *r, const char *path)
{
    size_t n = r->root_path ? strlen(r->root_path) : 0;
    while (n && r->root_path[n - 1] == '/') n--;
    if (n == 0 || strncmp(path, r->root_path, n) != 0) return path;
    if (path[n] == '\0') return "/";
    return path[n] == '/' ? path + n : path;
}

bool port_is_anthropic(const struct port_rules *r, const char *path)
{
    static const char messages[] = "/v1/messages";
    const size_t n = sizeof messages - 1;
    path = port_path(r, path);
    return strncmp(path, messages, n) == 0 && (path[n] == '\0' || path[n] == '/');
}

/* ---- refusals ------------------------------------------------------------------------------ */

fathom_err port_write_error(struct buf *body, const struct api_error *e, bool anthropic)
{
    return anthropic ? api_error_write_anthropic(body, e) : api_error_write(body, e);
}

bool port_check(const struct port_rules *r, const struct connection *c, const char *host,
                struct api_error *e)
{
    if (!connection_client_is_known(c)) {
        (void)api_error_set(e, 403, "client_certificate", NULL,
                            "this server asks for a client certificate that its authorities have "
                            "signed");
    } else if (!host_names_take(&r->names, host)) {
        (void)api_error_set(e, 403, "host_not_allowed", NULL,
                            "the header Host names \"%.100s\", and this server is called "
                            "localhost or by its address; start it with --allowed-hosts %.100s if "
                            "that is its name",
                            host, host);
    }
    return !e->status;
}

void port_refuse_form(struct api_error *e, int status, const char *text)
{
    (void)api_error_set(e, status, "malformed_request", NULL, "%s; the connection is closed", text);
}

void port_refuse_size(struct api_error *e, size_t limit)
{
    (void)api_error_set(e, 413, "request_too_large", NULL,
                        "the request body is larger than %zu bytes", limit);
}

void port_refuse_bodies(struct api_error *e, size_t bytes)
{
    if (e->status) return;
    e->retry_after_s = 1;
    (void)api_error_set(e, 429, "server_busy", NULL,
                        "the bodies of requests on their way hold %zu bytes, which is the limit; "
                        "try again later",
                        bytes);
}

void port_refuse_connections(struct api_error *e, const struct port_rules *r)
{
    if (e->status) return;
    e->retry_after_s = 1;
    (void)api_error_set(e, 503, "too_many_connections", NULL,
                        "%u connections are open, which is the limit (--max-connections, within "
                        "ulimit -n); try again later",
                        gate_max(r->gate));
}
