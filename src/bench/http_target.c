/* http_target.c - requests of libcurl: what all have, and one that waits for its answer */
#include "bench/http_target.h"

#include <curl/curl.h>
#include <string.h>

#include "base/fail.h"

enum { CONNECT_TIMEOUT_S = 60 };

/* Appends a line; what was there is released when that fails. */
static fathom_err add_header(struct curl_slist **list, const char *line)
{
    struct curl_slist *longer = curl_slist_append(*list, line);
    if (!longer) return FATHOM_ENOMEM;
    *list = longer;
    return FATHOM_OK;
}

fathom_err http_headers(struct curl_slist **out, const struct http_target *t, bool has_body,
                        fathom_diag *d)
{
    struct buf line = {0};
    fathom_err err = FATHOM_OK;
    *out = NULL;
    if (has_body) {
        TRY_GOTO(add_header(out, "Content-Type: application/json"), done);
        TRY_GOTO(add_header(out, "Expect:"), done);
    }
    if (t->api_key) {
        TRY_GOTO(buf_printf(&line, "Authorization: Bearer %s", t->api_key), done);
        TRY_GOTO(add_header(out, buf_str(&line)), done);
    }
    for (size_t i = 0; i < t->n_header; i++) {
        const char *equals = strchr(t->headers[i], '=');
        if (!equals || equals == t->headers[i] || strpbrk(t->headers[i], "\r\n")) {
            err = diag_fail(d, FATHOM_EINVAL, "--header %s: needed is NAME=VALUE", t->headers[i]);
            goto done;
        }
        buf_clear(&line);
        TRY_GOTO(
            buf_printf(&line, "%.*s: %s", (int)(equals - t->headers[i]), t->headers[i], equals + 1),
            done);
        TRY_GOTO(add_header(out, buf_str(&line)), done);
    }
done:
    buf_free(&line);
    if (err) {
        curl_slist_free_all(*out);
        *out = NULL;
    }
    return err;
}

bool http_set_common(void *easy, const struct http_target *t, const char *url,
                     const struct curl_slist *headers)
{
    if (curl_easy_setopt(easy, CURLOPT_URL, url) != CURLE_OK) return false;
    (void)curl_easy_setopt(easy, CURLOPT_HTTPHEADER, headers);
    (void)curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https");
    (void)curl_easy_setopt(easy, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
    (void)curl_easy_setopt(easy, CURLOPT_USERAGENT, "fathom-bench");
    (void)curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
    (void)curl_easy_setopt(easy, CURLOPT_PROXY, "");
    (void)curl_easy_setopt(easy, CURLOPT_CONNECTTIMEOUT, (long)CONNECT_TIMEOUT_S);
    (void)curl_easy_setopt(easy, CURLOPT_TIMEOUT_MS, (long)(t->timeout_s * 1000));
    (void)curl_easy_setopt(easy, CURLOPT_SSL_VERIFYPEER, t->insecure ? 0L : 1L);
    (void)curl_easy_setopt(easy, CURLOPT_SSL_VERIFYHOST, t->insecure ? 0L : 2L);
    return true;
}

static size_t take_bytes(char *bytes, size_t one, size_t n, void *arg)
{
    (void)one;
    return buf_add(arg, bytes, n) == FATHOM_OK ? n : 0;
}

fathom_err http_get(const struct http_target *t, const char *path, struct buf *body, long *status,
                    fathom_diag *d)
{
    struct curl_slist *headers = NULL;
    struct buf url = {0};
    char cause[CURL_ERROR_SIZE] = "";
    CURL *easy = NULL;
    fathom_err err;
    TRY_GOTO(http_headers(&headers, t, false, d), done);
    TRY_GOTO(buf_printf(&url, "%s%s", t->base_url, path), done);
    easy = curl_easy_init();
    if (!easy || !http_set_common(easy, t, buf_str(&url), headers)) {
        err = FATHOM_ENOMEM;
        goto done;
    }
    body->limit = HTTP_ANSWER_BYTES;
    (void)curl_easy_setopt(easy, CURLOPT_ERRORBUFFER, cause);
    (void)curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, take_bytes);
    (void)curl_easy_setopt(easy, CURLOPT_WRITEDATA, body);
    CURLcode code = curl_easy_perform(easy);
    (void)curl_easy_getinfo(easy, CURLINFO_RESPONSE_CODE, status);
    if (code != CURLE_OK) {
        err = diag_fail(d, FATHOM_EIO, "%s: %s", buf_str(&url),
                        cause[0] ? cause : curl_easy_strerror(code));
    }
done:
    curl_easy_cleanup(easy);
    curl_slist_free_all(headers);
    buf_free(&url);
    return err;
}
