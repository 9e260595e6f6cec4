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

/* A request whose answer `take` gets; `easy` has just been made, NULL for want of memory, and is
 * done with afterwards. */
static fathom_err perform(CURL *easy, const struct http_target *t, const char *path,
                          const struct buf *body, curl_write_callback take, void *arg, long *status,
                          fathom_diag *d)
{
    struct curl_slist *headers = NULL;
    struct buf url = {0};
    char cause[CURL_ERROR_SIZE] = "";
    fathom_err err;
    TRY_GOTO(http_headers(&headers, t, body != NULL, d), done);
    TRY_GOTO(buf_printf(&url, "%s%s", t->base_url, path), done);
    if (!easy || !http_set_common(easy, t, buf_str(&url), headers)) {
        err = FATHOM_ENOMEM;
        goto done;
    }
    if (body) {
        (void)curl_easy_setopt(easy, CURLOPT_POSTFIELDS, buf_str(body));
        (void)curl_easy_setopt(easy, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)body->len);
    }
    (void)curl_easy_setopt(easy, CURLOPT_ERRORBUFFER, cause);
    (void)curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, take);
    (void)curl_easy_setopt(easy, CURLOPT_WRITEDATA, arg);
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

static size_t take_bytes(char *bytes, size_t one, size_t n, void *arg)
{
    (void)one;
    return buf_add(arg, bytes, n) == FATHOM_OK ? n : 0;
}

fathom_err http_get(const struct http_target *t, const char *path, struct buf *body, long *status,
                    fathom_diag *d)
{
    body->limit = HTTP_ANSWER_BYTES;
    return perform(curl_easy_init(), t, path, NULL, take_bytes, body, status, d);
}

/* An answer on its way. */
struct taking {
    CURL *easy;
    const struct http_post *post;
    fathom_err err;
};

static size_t pass_bytes(char *bytes, size_t one, size_t n, void *arg)
{
    struct taking *t = arg;
    long status = 0;
    (void)one;
    (void)curl_easy_getinfo(t->easy, CURLINFO_RESPONSE_CODE, &status);
    t->err =
        status == 200 ? t->post->take(t->post->arg, bytes, n) : buf_add(t->post->refusal, bytes, n);
    return t->err ? 0 : n;
}

fathom_err http_post(const struct http_target *t, const struct http_post *p, long *status,
                     fathom_diag *d)
{
    struct taking taking = {.easy = curl_easy_init(), .post = p};
    fathom_diag cause = {{0}};
    p->refusal->limit = HTTP_ANSWER_BYTES;
    fathom_err err = perform(taking.easy, t, p->path, p->body, pass_bytes, &taking, status, &cause);
    if (taking.err) return taking.err; /* and the cause is what `take` says */
    if (err && cause.text[0]) (void)diag_fail(d, err, "%s", cause.text);
    return err;
}
