/* access.c - compares keys, origins and paths */
#include "server/http/access.h"

#include <string.h>
#include <strings.h>

#include "base/fail.h"

const char *access_bearer(const char *authorization)
{
    if (!authorization || strncasecmp(authorization, "Bearer ", 7) != 0) return NULL;
    return authorization + strspn(authorization + 7, " ") + 7;
}

static bool has(const char *const *items, size_t n, const char *item)
{
    for (size_t i = 0; i < n; i++) {
        if (strcmp(items[i], item) == 0) return true;
    }
    return false;
}

const char *access_origin(const struct server_options *o, const char *origin, bool *varies)
{
    bool any = has(o->origins, o->n_origin, "*");
    *varies = o->n_origin > 0 && (!any || o->allow_credentials);
    if (any && !o->allow_credentials) return "*";
    if (!origin || strpbrk(origin, "\r\n")) return NULL;
    return any || has(o->origins, o->n_origin, origin) ? origin : NULL;
}

fathom_err access_list(struct buf *out, const char *const *items, size_t n, const char *any)
{
    if (has(items, n, "*")) return buf_add_str(out, any);
    for (size_t i = 0; i < n; i++) TRY(buf_printf(out, "%s%s", i ? ", " : "", items[i]));
    return FATHOM_OK;
}

const char *access_path(const struct server_options *o, const char *path)
{
    size_t n = o->root_path ? strlen(o->root_path) : 0;
    while (n && o->root_path[n - 1] == '/') n--;
    if (n == 0 || strncmp(path, o->root_path, n) != 0) return path;
    if (path[n] == '\0') return "/";
    return path[n] == '/' ? path + n : path;
}

void access_request_id(char out[REQUEST_ID_BYTES], const char *given)
{
    size_t n = given ? strlen(given) : 0;
    out[0] = '\0';
    if (n == 0 || n >= REQUEST_ID_BYTES) return;
    for (size_t i = 0; i < n; i++) {
        if (given[i] <= 0x20 || given[i] >= 0x7f || given[i] == '"' || given[i] == '\\') return;
    }
    memcpy(out, given, n + 1);
}
