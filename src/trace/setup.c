/* setup.c - an address, lists of pairs, a sampler */
#include "trace/setup.h"

#include <curl/curl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fail.h"
#include "base/mem.h"

#define EXPORT_PATH "/opentelemetry.proto.collector.trace.v1.TraceService/Export"
#define GRPC_PORT "4317"
#define SERVICE_KEY "service.name"

/* ---- pairs ---------------------------------------------------------------------------------- */

static int hex(char c)
{
    static const char digits[] = "0123456789abcdef";
    const char *at = c ? strchr(digits, c | 0x20) : NULL;
    return at ? (int)(at - digits) : -1;
}

/* Decodes %XX in place. Anything else stays as it is, %00 too. */
static void decode(char *text)
{
    char *out = text;
    for (const char *in = text; *in; in++) {
        int high = *in == '%' ? hex(in[1]) : -1;
        int low = high < 0 ? -1 : hex(in[2]);
        bool is_code = low >= 0 && (high || low);
        *out++ = is_code ? (char)(16 * high + low) : *in;
        if (is_code) in += 2;
    }
    *out = '\0';
}

static char *trim(char *text)
{
    text += strspn(text, " \t");
    size_t n = strlen(text);
    while (n && strchr(" \t", text[n - 1])) n--;
    text[n] = '\0';
    return text;
}

/* Reads KEY=VALUE pairs. A line's end is refused, because in a header it would begin another
 * one. */
static fathom_err read_pairs(struct trace_pairs *out, const char *text, const char *variable,
                             fathom_diag *d)
{
    char *rest = NULL;
    if (!text) return FATHOM_OK;
    out->text = mem_strdup(text);
    if (!out->text) return FATHOM_ENOMEM;
    for (char *word = strtok_r(out->text, ",", &rest); word; word = strtok_r(NULL, ",", &rest)) {
        char *value = strchr(word, '=');
        if (!*trim(word)) continue;
        if (!value || value == word) {
            FAIL(d, FATHOM_EINVAL, "%s: \"%.100s\" is not KEY=VALUE", variable, word);
        }
        if (out->n == TRACE_PAIRS_MAX) {
            FAIL(d, FATHOM_EINVAL, "%s has more than %d words", variable, TRACE_PAIRS_MAX);
        }
        *value++ = '\0';
        value = trim(value);
        decode(value);
        word = trim(word);
        if (strpbrk(word, "\r\n") || strpbrk(value, "\r\n")) {
            FAIL(d, FATHOM_EINVAL, "%s: the value of %.100s has more than one line", variable,
                 word);
        }
        out->pairs[out->n++] = (struct otlp_attribute){word, value};
    }
    return FATHOM_OK;
}

/* OTEL_SERVICE_NAME wins over the list. */
static fathom_err name_service(struct trace_setup *s, const char *service, fathom_diag *d)
{
    struct trace_pairs *list = &s->resource;
    size_t i = 0;
    while (i < list->n && strcmp(list->pairs[i].key, SERVICE_KEY) != 0) i++;
    if (i < list->n && !service) return FATHOM_OK;
    if (i == TRACE_PAIRS_MAX) {
        FAIL(d, FATHOM_EINVAL,
             "OTEL_RESOURCE_ATTRIBUTES has %d words: there is no room for " SERVICE_KEY,
             TRACE_PAIRS_MAX);
    }
    list->pairs[i] = (struct otlp_attribute){SERVICE_KEY, service ? service : "fathom"};
    if (i == list->n) list->n++;
    return FATHOM_OK;
}

/* ---- the address ---------------------------------------------------------------------------- */

static fathom_err wrong_endpoint(const char *endpoint, const char *why, fathom_diag *d)
{
    FAIL(d, FATHOM_EINVAL,
         "--otlp-traces-endpoint %.200s: %s; needed is grpc://HOST:4317, or "
         "http://HOST:4318/v1/traces",
         endpoint, why);
}

/* Sets the protocol, if the variable names one. */
static fathom_err read_protocol(bool *is_grpc, const char *protocol, fathom_diag *d)
{
    if (!protocol) return FATHOM_OK;
    *is_grpc = strcmp(protocol, "grpc") == 0;
    if (*is_grpc || strcmp(protocol, "http/protobuf") == 0) return FATHOM_OK;
    FAIL(d, FATHOM_EINVAL,
         "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL %.100s: needed is grpc or http/protobuf", protocol);
}

/* Makes the address to post to out of the one that was given. */
static fathom_err turn_url(CURLU *u, struct trace_setup *s, const struct trace_words *w,
                           fathom_diag *d)
{
    char *scheme = NULL, *path = NULL, *port = NULL, *url = NULL;
    fathom_err err = FATHOM_ENOMEM;
    if (curl_url_get(u, CURLUPART_SCHEME, &scheme, 0) || curl_url_get(u, CURLUPART_PATH, &path, 0))
        goto done;
    bool is_named = strcmp(scheme, "grpc") == 0 || strcmp(scheme, "grpcs") == 0;
    bool is_safe = strcmp(scheme, "grpcs") == 0 || strcmp(scheme, "https") == 0;
    if (!is_named && !is_safe && strcmp(scheme, "http") != 0) {
        err = wrong_endpoint(w->endpoint, "a scheme that is not known", d);
        goto done;
    }
    s->is_grpc = is_named || strcmp(path, "/") == 0;
    TRY_GOTO(read_protocol(&s->is_grpc, w->protocol, d), done);
    err = FATHOM_ENOMEM;
    bool has_port = curl_url_get(u, CURLUPART_PORT, &port, 0) == CURLUE_OK;
    if (curl_url_set(u, CURLUPART_SCHEME, is_safe ? "https" : "http", 0)) goto done;
    if (s->is_grpc && !has_port && curl_url_set(u, CURLUPART_PORT, GRPC_PORT, 0)) goto done;
    if (s->is_grpc && curl_url_set(u, CURLUPART_PATH, EXPORT_PATH, 0)) goto done;
    if (curl_url_get(u, CURLUPART_URL, &url, 0)) goto done;
    int n = snprintf(s->url, sizeof s->url, "%s", url);
    err = n < (int)sizeof s->url ? FATHOM_OK : wrong_endpoint(w->endpoint, "it is too long", d);
done:
    curl_free(scheme);
    curl_free(path);
    curl_free(port);
    curl_free(url);
    return err;
}

static fathom_err read_endpoint(struct trace_setup *s, const struct trace_words *w, fathom_diag *d)
{
    char text[LIMIT_PATH_BYTES];
    const char *form = strstr(w->endpoint, "://") ? "%s" : "grpc://%s";
    int n = snprintf(text, sizeof text, form, w->endpoint);
    CURLU *u = curl_url();
    if (!u) return FATHOM_ENOMEM;
    fathom_err err = FATHOM_OK;
    if (n >= (int)sizeof text ||
        curl_url_set(u, CURLUPART_URL, text, CURLU_NON_SUPPORT_SCHEME) != CURLUE_OK)
        err = wrong_endpoint(w->endpoint, "it is no address", d);
    if (!err) err = turn_url(u, s, w, d);
    curl_url_cleanup(u);
    return err;
}

/* ---- the sampler ---------------------------------------------------------------------------- */

static fathom_err read_share(uint64_t *bound, const char *text, fathom_diag *d)
{
    char *end = NULL;
    double share = text ? strtod(text, &end) : 1;
    if (text && (end == text || *end || !(share >= 0 && share <= 1))) {
        FAIL(d, FATHOM_EINVAL, "OTEL_TRACES_SAMPLER_ARG %.100s: needed is a number from 0 to 1",
             text);
    }
    *bound = share >= 1 ? UINT64_MAX : (uint64_t)(share * 0x1p64);
    return FATHOM_OK;
}

static fathom_err read_sampler(struct trace_setup *s, const struct trace_words *w, fathom_diag *d)
{
    const char *name = w->sampler ? w->sampler : "parentbased_always_on";
    s->by_parent = strncmp(name, "parentbased_", 12) == 0;
    const char *root = s->by_parent ? name + 12 : name;
    s->bound = UINT64_MAX;
    if (strcmp(root, "always_on") == 0) return FATHOM_OK;
    if (strcmp(root, "traceidratio") == 0) return read_share(&s->bound, w->sampler_arg, d);
    s->bound = 0;
    if (strcmp(root, "always_off") == 0) return FATHOM_OK;
    FAIL(d, FATHOM_EINVAL,
         "OTEL_TRACES_SAMPLER %.100s: needed is always_on, always_off or traceidratio, or "
         "parentbased_ and one of them",
         name);
}

bool trace_setup_samples(const struct trace_setup *s, const struct trace_context *parent,
                         const uint8_t trace_id[TRACE_ID_BYTES])
{
    uint64_t x = 0;
    if (s->by_parent && parent->is_set) return parent->is_sampled;
    for (int i = TRACE_ID_BYTES - 8; i < TRACE_ID_BYTES; i++) x = x << 8 | trace_id[i];
    return s->bound == UINT64_MAX || x < s->bound;
}

/* ---- all ------------------------------------------------------------------------------------ */

fathom_err trace_setup_read(struct trace_setup *out, const struct trace_words *w, fathom_diag *d)
{
    memset(out, 0, sizeof *out);
    out->certificate = w->certificate;
    TRY(read_endpoint(out, w, d));
    TRY(read_sampler(out, w, d));
    TRY(read_pairs(&out->headers, w->headers, "OTEL_EXPORTER_OTLP_TRACES_HEADERS", d));
    TRY(read_pairs(&out->resource, w->resource, "OTEL_RESOURCE_ATTRIBUTES", d));
    return name_service(out, w->service, d);
}

void trace_setup_free(struct trace_setup *s)
{
    mem_free(s->headers.text);
    mem_free(s->resource.text);
    memset(s, 0, sizeof *s);
}
