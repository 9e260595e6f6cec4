/* span.h - what a trace tells of a request that the engine has ended; never what was said */
#ifndef FATHOM_TRACE_SPAN_H
#define FATHOM_TRACE_SPAN_H

#include "trace/context.h"

enum { SPAN_REQUEST_ID_BYTES = 96 };

struct trace_span {
    struct trace_context parent;
    uint64_t start_ns, end_ns;              /* since 1970 */
    char request_id[SPAN_REQUEST_ID_BYTES]; /* of the answer; cut where it is longer */
    const char *model;                      /* the served name; outlives the exporter */
    const char *finish;                     /* why it ended, a literal */
    bool has_failed;
    uint32_t n_prompt, n_cached, n_output;
    uint32_t n_choice;        /* of the request, of which this is one */
    uint32_t max_tokens;      /* as asked for; 0: not */
    float temperature, top_p; /* likewise; negative: not */
    /* seconds */
    double queue, first_token, prefill, decode, whole; /* first_token and the next two: 0: none */
};

#endif
