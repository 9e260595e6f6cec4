/* client.c - requests to a hub */
#include "hub/client.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/clock.h"
#include "base/fail.h"
#include "fathom/fathom.h"

enum {
    CONNECT_S = 20,
    SILENT_S = 30, /* fewer than SILENT_BYTES a second for so long: the connection is given up */
    SILENT_BYTES = 100,
    REDIRECTS = 5,
    PAUSE_US = 250000, /* after the first failure; doubled after each */
    PAUSE_MOST_S = 60,
    LIST_BYTES = 64 << 20,
};

#define HUGGINGFACE "https://huggingface.co"
#define MODELSCOPE "https://www.modelscope.cn"

const char *client_endpoint(const struct hub_order *o)
{
    if (o->endpoint) return o->endpoint;
    return o->modelscope ? MODELSCOPE : HUGGINGFACE;
}

fathom_err client_add_escaped(struct buf *url, const char *text, bool path)
{
    for (; *text; text++) {
        unsigned char c = (unsigned char)*text;
        if (isalnum(c) || strchr("-_.~", c) || (path && c == '/')) {
            TRY(buf_add_char(url, (char)c));
        } else {
            TRY(buf_printf(url, "%%%02X", c));
        }
    }
    return FATHOM_OK;
}

/* The value of a field of the head, if the line is that field's; NULL: it is another. */
static const char *field_value(const char *line, size_t n, const char *name)
{
    size_t m = strlen(name);
    if (n <= m || line[m] != ':' || strncasecmp(line, name, m) != 0) return NULL;
    line += m + 1;
    return line + strspn(line, " \t");
}

/* Lines are not ended by NUL: they are copied as far as they matter. */
static size_t take_field(char *bytes, size_t one, size_t n, void *arg)
{
    struct hub_request *r = arg;
    char line[128];
    size_t m = n < sizeof line ? n : sizeof line - 1;
    (void)one;
    memcpy(line, bytes, m);
    line[m] = '\0';
    line[strcspn(line, "\r\n")] = '\0';
    if (strncmp(line, "HTTP/", 5) == 0) { /* of a redirection's target, or after 1xx */
        r->offset = 0;
        r->reason[0] = '\0';
    }
    const char *range = field_value(line, m, "Content-Range");
    const char *reason = field_value(line, m, "X-Error-Code");
    if (range && strncmp(range, "bytes ", 6) == 0) r->offset = strtoull(range + 6, NULL, 10);
    if (reason && strlen(reason) < sizeof r->reason) memcpy(r->reason, reason, strlen(reason) + 1);
    return n;
}

fathom_err request_init(struct hub_request *r, const struct hub_order *o, const char *url,
                        fathom_diag *d)
{
    memset(r, 0, sizeof *r);
    CURL *e = r->easy = curl_easy_init();
    if (!e || curl_easy_setopt(e, CURLOPT_URL, url) != CURLE_OK) {
        FAIL(d, FATHOM_ENOMEM, "out of memory for a request");
    }
    bool is_tls = strncmp(url, "https://", 8) == 0; /* once safe, it stays so */
    (void)curl_easy_setopt(e, CURLOPT_PROTOCOLS_STR, "http,https");
    (void)curl_easy_setopt(e, CURLOPT_REDIR_PROTOCOLS_STR, is_tls ? "https" : "http,https");
    (void)curl_easy_setopt(e, CURLOPT_FOLLOWLOCATION, 1L);
    (void)curl_easy_setopt(e, CURLOPT_MAXREDIRS, (long)REDIRECTS);
    (void)curl_easy_setopt(e, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
    (void)curl_easy_setopt(e, CURLOPT_USERAGENT, "fathom/" FATHOM_VERSION);
    (void)curl_easy_setopt(e, CURLOPT_NOSIGNAL, 1L);
    (void)curl_easy_setopt(e, CURLOPT_CONNECTTIMEOUT, (long)CONNECT_S);
    (void)curl_easy_setopt(e, CURLOPT_LOW_SPEED_LIMIT, (long)SILENT_BYTES);
    (void)curl_easy_setopt(e, CURLOPT_LOW_SPEED_TIME, (long)SILENT_S);
    (void)curl_easy_setopt(e, CURLOPT_BUFFERSIZE, 256L << 10);
    (void)curl_easy_setopt(e, CURLOPT_ERRORBUFFER, r->cause);
    (void)curl_easy_setopt(e, CURLOPT_HEADERFUNCTION, take_field);
    (void)curl_easy_setopt(e, CURLOPT_HEADERDATA, r);
    if (o->token) {
        (void)curl_easy_setopt(e, CURLOPT_HTTPAUTH, (long)CURLAUTH_BEARER);
        if (curl_easy_setopt(e, CURLOPT_XOAUTH2_BEARER, o->token) != CURLE_OK) {
            FAIL(d, FATHOM_ENOMEM, "out of memory for a request");
        }
    }
    return FATHOM_OK;
}

void request_fini(struct hub_request *r)
{
    curl_easy_cleanup(r->easy);
    r->easy = NULL;
}

void request_note_end(struct hub_request *r, CURLcode code)
{
    r->code = code;
    (void)curl_easy_getinfo(r->easy, CURLINFO_RESPONSE_CODE, &r->status);
    if (!r->cause[0] && code) {
        const char *text = curl_easy_strerror(code);
        memcpy(r->cause, text, strlen(text) + 1);
    }
}

/* Whether another attempt may succeed after this error. */
static bool may_pass(CURLcode code)
{
    switch (code) {
    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_COULDNT_RESOLVE_PROXY:
    case CURLE_COULDNT_CONNECT:
    case CURLE_PARTIAL_FILE:
    case CURLE_OPERATION_TIMEDOUT:
    case CURLE_SSL_CONNECT_ERROR:
    case CURLE_GOT_NOTHING:
    case CURLE_SEND_ERROR:
    case CURLE_RECV_ERROR: return true;
    default: return false;
    }
}

uint64_t request_pause_us(const struct hub_request *r, unsigned n_failed)
{
    curl_off_t wanted_s = 0;
    bool busy = r->status == 408 || r->status == 429 || r->status >= 500;
    if (n_failed >= HUB_ATTEMPTS) return 0;
    if (r->code == CURLE_OK ? !busy : !may_pass(r->code)) return 0;
    (void)curl_easy_getinfo(r->easy, CURLINFO_RETRY_AFTER, &wanted_s);
    if (wanted_s > PAUSE_MOST_S) wanted_s = PAUSE_MOST_S;
    uint64_t pause_us = (uint64_t)PAUSE_US << (n_failed ? n_failed - 1 : 0);
    return busy && wanted_s > 0 ? (uint64_t)wanted_s * 1000000 : pause_us;
}

fathom_err request_fail(const struct hub_request *r, const struct hub_order *o, const char *what,
                        fathom_diag *d)
{
    const char *hub = client_endpoint(o);
    if (r->code) {
        FAIL(d, FATHOM_EIO, "%s: %s: %s; what has come is kept: run the command again", hub, what,
             r->cause);
    }
    if (strcmp(r->reason, "GatedRepo") == 0) {
        FAIL(d, FATHOM_ENOTFOUND,
             "%s is gated: accept its terms at %s/%s and set HF_TOKEN to a key of that account",
             o->repository, hub, o->repository);
    }
    if (r->status == 404 && strcmp(r->reason, "RevisionNotFound") == 0) {
        FAIL(d, FATHOM_ENOTFOUND, "%s has no revision \"%s\": give a branch, a tag or a commit",
             o->repository, o->revision ? o->revision : "main");
    }
    if (r->status == 401 || r->status == 403) {
        FAIL(d, FATHOM_ENOTFOUND,
             o->token ? "%s: the key in HF_TOKEN is not let in to %s, or there is none of that name"
                      : "%s: there is no public %s; if it is private or gated, set HF_TOKEN",
             hub, o->repository);
    }
    if (r->status == 404) {
        FAIL(d, FATHOM_ENOTFOUND, "%s: %s: there is none (404)", hub, what);
    }
    FAIL(d, FATHOM_EIO, "%s: %s: the hub answers %ld; what has come is kept: run the command again",
         hub, what, r->status);
}

static size_t take_body(char *bytes, size_t one, size_t n, void *arg)
{
    struct buf *b = arg;
    (void)one;
    return b->len + n <= LIST_BYTES && buf_add(b, bytes, n) == FATHOM_OK ? n : 0;
}

fathom_err client_get(struct buf *body, const struct hub_order *o, const char *url,
                      const char *what, fathom_diag *d)
{
    struct hub_request r;
    fathom_err err = FATHOM_OK;
    uint64_t pause_us = 1;
    for (unsigned n_failed = 0; pause_us; n_failed++) {
        buf_clear(body);
        err = request_init(&r, o, url, d);
        if (err) break;
        (void)curl_easy_setopt(r.easy, CURLOPT_WRITEFUNCTION, take_body);
        (void)curl_easy_setopt(r.easy, CURLOPT_WRITEDATA, body);
        request_note_end(&r, curl_easy_perform(r.easy));
        if (r.code == CURLE_OK && r.status == 200) break;
        pause_us = request_pause_us(&r, n_failed + 1);
        if (!pause_us) err = request_fail(&r, o, what, d);
        request_fini(&r);
        if (pause_us) clock_sleep_us(pause_us);
    }
    request_fini(&r);
    return err;
}
