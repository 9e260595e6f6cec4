/* scrape.c - what a server's /metrics say of a run */
#include "bench/scrape.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { NAMES = 3, VALUE_BYTES = 64 };

/* The first name that the server has is read. */
static const char *const series_names[SCRAPE_SERIES_COUNT][NAMES] = {
    [SCRAPE_QUEUE_SECONDS] = {"vllm:request_queue_time_seconds_sum",
                              "sglang:queue_time_seconds_sum"},
    [SCRAPE_QUEUE_COUNT] = {"vllm:request_queue_time_seconds_count",
                            "sglang:queue_time_seconds_count"},
    [SCRAPE_PREFIX_QUERIES] = {"vllm:prefix_cache_queries_total",
                               "vllm:gpu_prefix_cache_queries_total", "sglang:prompt_tokens_total"},
    [SCRAPE_PREFIX_HITS] = {"vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total",
                            "sglang:cached_tokens_total"},
    [SCRAPE_DRAFTED] = {"vllm:spec_decode_num_draft_tokens_total"},
    [SCRAPE_ACCEPTED] = {"vllm:spec_decode_num_accepted_tokens_total"},
    [SCRAPE_PREEMPTIONS] = {"vllm:num_preemptions_total"},
};

/* Which series a name of n bytes is; SCRAPE_SERIES_COUNT for none. */
static int series_of(const char *name, size_t n)
{
    for (int s = 0; s < SCRAPE_SERIES_COUNT; s++) {
        for (int k = 0; k < NAMES && series_names[s][k]; k++) {
            if (strlen(series_names[s][k]) == n && memcmp(series_names[s][k], name, n) == 0) {
                return s;
            }
        }
    }
    return SCRAPE_SERIES_COUNT;
}

/* The end of {labels}, whose values may hold any quoted character; NULL when they do not end. */
static const char *skip_labels(const char *at, const char *end)
{
    bool quoted = false;
    for (; at < end; at++) {
        if (quoted && *at == '\\') {
            at++;
        } else if (*at == '"') {
            quoted = !quoted;
        } else if (*at == '}' && !quoted) {
            return at + 1;
        }
    }
    return NULL;
}

static void take_line(struct scrape *out, const char *line, const char *end)
{
    const char *at = line;
    char number[VALUE_BYTES];
    while (at < end && *at != '{' && *at != ' ') at++;
    int s = series_of(line, (size_t)(at - line));
    if (s == SCRAPE_SERIES_COUNT) return;
    if (at < end && *at == '{') at = skip_labels(at, end);
    if (!at) return;
    while (at < end && *at == ' ') at++;
    size_t n = (size_t)(end - at) < sizeof number - 1 ? (size_t)(end - at) : sizeof number - 1;
    memcpy(number, at, n);
    number[n] = '\0';
    char *stop;
    double value = strtod(number, &stop);
    if (stop == number || !isfinite(value)) return;
    out->value[s] += value;
    out->has[s] = true;
}

void scrape_parse(struct scrape *out, const char *text, size_t n)
{
    const char *end = text + n;
    memset(out, 0, sizeof *out);
    while (text < end) {
        const char *stop = memchr(text, '\n', (size_t)(end - text));
        if (!stop) stop = end;
        if (*text != '#') take_line(out, text, stop);
        text = stop + 1;
    }
}

/* The growth of a series; false when either reading lacks it, or it was reset. */
static bool grew(const struct scrape *a, const struct scrape *b, enum scrape_series s, double *out)
{
    *out = b->value[s] - a->value[s];
    return a->has[s] && b->has[s] && *out >= 0;
}

void scrape_difference(struct server_view *out, const struct scrape *before,
                       const struct scrape *after)
{
    double part;
    double whole;
    memset(out, 0, sizeof *out);
    if (grew(before, after, SCRAPE_QUEUE_SECONDS, &part) &&
        grew(before, after, SCRAPE_QUEUE_COUNT, &whole) && whole > 0) {
        out->has_queue = true;
        out->queue_ms = part * 1e3 / whole;
    }
    if (grew(before, after, SCRAPE_PREFIX_HITS, &part) &&
        grew(before, after, SCRAPE_PREFIX_QUERIES, &whole) && whole > 0) {
        out->has_prefix = true;
        out->prefix_hit_share = part / whole;
    }
    if (grew(before, after, SCRAPE_ACCEPTED, &part) &&
        grew(before, after, SCRAPE_DRAFTED, &whole) && whole > 0) {
        out->has_drafts = true;
        out->draft_accept_share = part / whole;
    }
    if (grew(before, after, SCRAPE_PREEMPTIONS, &part)) {
        out->has_preemptions = true;
        out->n_preempted = part;
    }
}
