/* access.c - reads keys and logins, and makes a path one line */
#include "server/http/access.h"

#include <gnutls/gnutls.h>
#include <string.h>
#include <strings.h>

#include "base/fail.h"
#include "base/utf8.h"
#include "server/http/route.h"

const char *access_bearer(const char *authorization)
{
    if (!authorization || strncasecmp(authorization, "Bearer ", 7) != 0) return NULL;
    return authorization + strspn(authorization + 7, " ") + 7;
}

bool access_password(char out[LOGIN_BYTES], const char *authorization)
{
    if (!authorization || strncasecmp(authorization, "Basic ", 6) != 0) return false;
    const char *text = authorization + strspn(authorization + 6, " ") + 6;
    const gnutls_datum_t encoded = {(unsigned char *)text, (unsigned)strlen(text)};
    gnutls_datum_t login = {0};
    if (encoded.size == 0 || gnutls_base64_decode2(&encoded, &login) < 0) return false;
    const char *colon = memchr(login.data, ':', login.size);
    size_t n = colon ? (size_t)((const char *)login.data + login.size - colon - 1) : 0;
    bool ok = colon && n < LOGIN_BYTES;
    if (ok) {
        memcpy(out, colon + 1, n);
        out[n] = '\0';
    }
    gnutls_free(login.data);
    return ok;
}

bool access_is_own_page(const struct access_asker *a)
{
    if (a->fetch_site) {
        return strcmp(a->fetch_site, "same-origin") == 0 || strcmp(a->fetch_site, "none") == 0;
    }
    if (!a->origin) return a->method == METHOD_GET;
    const char *slashes = strstr(a->origin, "://");
    return slashes && a->host && strcasecmp(slashes + 3, a->host) == 0;
}

static bool has(const char *const *items, size_t n, const char *item)
{
    for (size_t i = 0; i < n; i++) {
        if (strcmp(items[i], item) == 0) return true;
    }
    return false;
}

fathom_err access_list(struct buf *out, const char *const *items, size_t n, const char *any)
{
    if (has(items, n, "*")) return buf_add_str(out, any);
    for (size_t i = 0; i < n; i++) TRY(buf_printf(out, "%s%s", i ? ", " : "", items[i]));
    return FATHOM_OK;
}

/* Control characters of ASCII and Latin-1, ends of lines, marks of direction. */
static bool is_printable(int32_t c)
{
    if (c < 0x20 || (c >= 0x7f && c < 0xa0)) return false;
    if (c == 0x61c || c == 0x200e || c == 0x200f || c == 0x2028 || c == 0x2029) return false;
    return !(c >= 0x202a && c <= 0x202e) && !(c >= 0x2066 && c <= 0x2069);
}

void access_copy_path(char *out, size_t bytes, const char *path)
{
    size_t n = strlen(path), to = 0;
    if (n >= bytes) n = utf8_complete(path, bytes - 1);
    bool is_text = utf8_valid(path, n);
    for (size_t at = 0, len = 1; at < n; at += len) {
        int32_t c = (unsigned char)path[at];
        len = 1;
        if (is_text) {
            c = utf8_next(path + at, n - at, &len);
        } else if (c >= 0x80) {
            c = 0;
        }
        if (is_printable(c)) {
            memcpy(out + to, path + at, len);
            to += len;
        } else {
            out[to++] = '?';
        }
    }
    out[to] = '\0';
}

int32_t access_lane(const char *given)
{
    int64_t n = 0;
    if (!given || !*given) return -1;
    for (const char *c = given; *c; c++) {
        if (*c < '0' || *c > '9' || c - given > 8) return -1;
        n = n * 10 + (*c - '0');
    }
    return (int32_t)n;
}
