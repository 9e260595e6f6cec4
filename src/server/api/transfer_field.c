/* transfer_field.c - kv_transfer_params as proxies of vLLM send them, and SGLang's bootstrap fields
 *
 *   NIXL      {"do_remote_decode": true}                     another server will fetch the pages
 *             {"do_remote_prefill": true, "remote_host": "a", "remote_port": 5600}
 *   Mooncake  the same, with "remote_bootstrap_addr": "http://a:5600" for host and port, or, as it
 *             was before, bootstrap_server_host and bootstrap_server_port
 *   SGLang    "bootstrap_host": "a", "bootstrap_port": 5600 in what both servers get
 *
 * If both servers are asked at once, both get the same transfer_id (Mooncake) or bootstrap_room
 * (SGLang). Other members are for engines whose pages have no names of their own, and have no
 * effect here.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fail.h"
#include "base/hash.h"
#include "base/json.h"
#include "server/api/request_field.h"

#define NAME "kv_transfer_params"

static fathom_err refuse(struct field_context *x, const char *path, const char *needed)
{
    return api_error_set(x->e, 400, "invalid_value", path, "%s has to be %s", path, needed);
}

static bool set_host(struct api_transfer *t, const char *host, size_t n)
{
    if (n == 0 || n >= sizeof t->host || memchr(host, '\0', n)) return false;
    for (size_t i = 0; i < n; i++) {
        if (host[i] <= ' ' || host[i] > '~') return false;
    }
    memcpy(t->host, host, n);
    t->host[n] = '\0';
    return true;
}

static bool set_port(struct api_transfer *t, const char *digits)
{
    char *end;
    long port = strtol(digits, &end, 10);
    if (end == digits || *end || port < 1 || port > UINT16_MAX) return false;
    t->port = (uint16_t)port;
    return true;
}

static fathom_err read_remote_host(struct field_context *x, const json_t *v)
{
    if (json_is_string(v) &&
        set_host(&x->r->transfer, json_string_value(v), json_string_length(v))) {
        return FATHOM_OK;
    }
    return refuse(x, NAME ".remote_host", "a host");
}

/* Proxies give numbers, or what they were given on their command line. */
static fathom_err read_remote_port(struct field_context *x, const json_t *v)
{
    bool ok;
    int64_t port = field_integer(v, &ok);
    if (!ok || port < 1 || port > UINT16_MAX) {
        return refuse(x, NAME ".remote_port", "a port from 1 to 65535");
    }
    x->r->transfer.port = (uint16_t)port;
    return FATHOM_OK;
}

/* "http://host:port" */
static fathom_err read_address(struct field_context *x, const json_t *v)
{
    const char *s = json_is_string(v) ? json_string_value(v) : "";
    if (strncmp(s, "http://", 7) == 0) s += 7;
    const char *colon = strrchr(s, ':');
    if (colon && set_host(&x->r->transfer, s, (size_t)(colon - s)) &&
        set_port(&x->r->transfer, colon + 1)) {
        return FATHOM_OK;
    }
    return refuse(x, NAME ".remote_bootstrap_addr", "http://HOST:PORT");
}

/* A name made from a string or an integer, as it is written; 0: v is neither. */
static uint64_t name_of(const json_t *v)
{
    char digits[32];
    const char *text = json_is_string(v) ? json_string_value(v) : digits;
    if (json_is_integer(v)) {
        (void)snprintf(digits, sizeof digits, "%lld", (long long)json_integer_value(v));
    } else if (!json_is_string(v)) {
        return 0;
    }
    return hash_checksum(text, strlen(text)) | 1;
}

/* The member `name`, or `other` if that is absent or null. */
static const json_t *either(const json_t *v, const char *name, const char *other)
{
    const json_t *member = json_object_get(v, name);
    return member && !json_is_null(member) ? member : json_object_get(v, other);
}

fathom_err field_kv_transfer(struct field_context *x, const struct field *f, json_t *v)
{
    struct api_transfer *t = &x->r->transfer;
    if (!json_is_plain_object(v)) return field_wrong_type(x, f->name, v, "an object");
    TRY(field_flag_in(x, NAME, v, "do_remote_decode", &t->lends));
    TRY(field_flag_in(x, NAME, v, "do_remote_prefill", &t->takes));
    t->name = name_of(json_object_get(v, "transfer_id"));
    const json_t *host = either(v, "remote_host", "bootstrap_server_host");
    const json_t *port = either(v, "remote_port", "bootstrap_server_port");
    const json_t *address = json_object_get(v, "remote_bootstrap_addr");
    if (!t->takes) return FATHOM_OK;
    if (json_is_string(address)) return read_address(x, address);
    if (!host || !port || json_is_null(host) || json_is_null(port)) {
        return refuse(x, NAME,
                      "with remote_host and remote_port, or remote_bootstrap_addr, where "
                      "do_remote_prefill is true");
    }
    fathom_err err = read_remote_host(x, host);
    return err ? err : read_remote_port(x, port);
}

fathom_err field_bootstrap_host(struct field_context *x, const struct field *f, json_t *v)
{
    x->r->transfer.is_shared = true;
    if (json_is_string(v) &&
        set_host(&x->r->transfer, json_string_value(v), json_string_length(v))) {
        return FATHOM_OK;
    }
    return refuse(x, f->name, "a host");
}

fathom_err field_bootstrap_port(struct field_context *x, const struct field *f, json_t *v)
{
    int64_t port;
    TRY(field_read_integer(x, f, v, &port));
    x->r->transfer.port = (uint16_t)port;
    return FATHOM_OK;
}

fathom_err field_bootstrap_room(struct field_context *x, const struct field *f, json_t *v)
{
    (void)f;
    x->r->transfer.name = name_of(v);
    return FATHOM_OK;
}
