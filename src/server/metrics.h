/* metrics.h - what the server counts, and GET /metrics
 *
 * Two prefixes. vllm: holds the names that dashboards and autoscalers are written against, with
 * vLLM's meaning and bounds; fathom_ holds what only fathom has. docs/operations.md lists both.
 *
 * Events of requests are counted where they happen, by any thread, without a lock. The engine's own
 * counts come from fathom_get_stats at each scrape.
 */
#ifndef FATHOM_SERVER_METRICS_H
#define FATHOM_SERVER_METRICS_H

#include "fathom/fathom.h"
#include "server/grammar_cache.h"
#include "server/prometheus.h"
#include "trace/exporter.h"

/* How a request in the engine ended, in vLLM's words. */
enum metric_finish {
    METRIC_FINISH_STOP,
    METRIC_FINISH_LENGTH,
    METRIC_FINISH_ABORT,
    METRIC_FINISH_ERROR,
    METRIC_FINISH_COUNT,
};

enum {
    METRIC_CODES_MAX = 32,
    METRIC_STATUS_MAX = 32,
    METRIC_ROUTES_MAX = 36,
    METRIC_METHODS = 4, /* GET, POST, DELETE, others */
    METRIC_CLASSES = 4, /* 2xx to 5xx */
};

struct metrics {
    /* per request in the engine, of those that ended with STOP or LENGTH; microseconds, tokens */
    struct histogram first_token;  /* from the complete body to the first token */
    struct histogram inter_token;  /* between two steps that give one request tokens */
    struct histogram output_token; /* mean between the tokens of one request */
    struct histogram total;        /* from the complete body to the end */
    struct histogram queue;        /* waiting for the scheduler */
    struct histogram prefill;      /* from there to the first token */
    struct histogram decode;       /* from there to the end */
    struct histogram inference;    /* both */
    struct histogram n_prompt;
    struct histogram n_output;
    struct histogram max_tokens;      /* as the request asked */
    struct histogram grammar_compile; /* of a grammar; microseconds */
    struct histogram n_choice;        /* n of a request, one for each of its prompts */
    struct histogram n_most_output;   /* tokens of its longest choice, likewise */

    atomic_uint_fast64_t n_finished[METRIC_FINISH_COUNT];

    atomic_uint_fast64_t n_error[METRIC_CODES_MAX];     /* by row of the tables in metrics.c */
    atomic_uint_fast64_t n_response[METRIC_STATUS_MAX]; /* likewise */
    atomic_uint_fast64_t n_http[METRIC_ROUTES_MAX + 1][METRIC_METHODS][METRIC_CLASSES];
    atomic_uint_fast64_t n_backlog_cut; /* clients that did not read */
    atomic_uint_fast64_t n_left;        /* answers nobody waits for any more */
    atomic_uint_fast64_t n_lost_line;   /* of the access log */
    atomic_int_fast64_t n_stream;       /* streams open now */
    atomic_size_t n_answer_byte;        /* held by answers now: job_held.c */
};

/* metrics_init - bounds of token counts go up to max_model_len */
void metrics_init(struct metrics *m, uint32_t max_model_len);

/* What is known of a request in the engine when it ends. */
struct metric_request {
    enum metric_finish finish;
    uint64_t total_us; /* since the body was complete */
    uint32_t n_output;
    uint32_t max_tokens; /* 0: not given */
};

/* metrics_note_finish - a FINISH event
 *
 *   e  the event; the times of its engine are used for queue, prefill and decode */
void metrics_note_finish(struct metrics *m, const struct metric_request *r, const fathom_event *e);

/* metrics_note_response - an answer begins with this HTTP status; 499: the client left before
 *
 *   route   its number among the server's; METRIC_ROUTES_MAX: none */
void metrics_note_response(struct metrics *m, size_t route, const char *method, int status);

/* metrics_note_error - a request was told an error, by status or within its stream
 *
 *   code  as in the answer's `code`; NULL and codes that metrics.c does not list count as other */
void metrics_note_error(struct metrics *m, const char *code);

/* metrics_note_lost_line - a line of the access log could not be written */
void metrics_note_lost_line(struct metrics *m);

/* What stands beside the counters in a scrape. */
struct metrics_view {
    const char *model_name;
    const fathom_info *info;
    const fathom_stats *stats; /* its gauges of the lanes that are told */
    uint32_t first_lane;       /* of these */
    bool gauges_alone;         /* of the lanes; the rest is told elsewhere */
    const struct grammar_cache_stats *grammars;
    uint64_t held_bytes; /* bodies received and not yet parsed */
    uint64_t n_job;      /* requests on their way, from their complete body to their answer's end */
    uint64_t n_connection;
    uint64_t n_late;    /* connections closed because a request did not come in time */
    uint64_t n_dropped; /* connections closed to make room for others */
    uint64_t n_unread;  /* bytes of answers that wait for their clients to read */
    struct trace_counts traces;
    const char *(*route_name)(size_t i); /* the path of a route; NULL past the last */
    int64_t start_s;                     /* when the server started, seconds since 1970 */
    bool ready;                          /* requests are taken */
    bool draining;
};

/* metrics_write - the whole text
 * Errors  ENOMEM. */
fathom_err metrics_write(struct buf *b, struct metrics *m, const struct metrics_view *v);

#endif
