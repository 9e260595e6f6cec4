/* otlp.h - spans as the message that a collector takes
 *
 * Source  opentelemetry-proto, trace/v1/trace.proto: ExportTraceServiceRequest, as protobuf. Names
 *         of attributes are those of vLLM's span llm_request, for whose sake dashboards know them.
 */
#ifndef FATHOM_TRACE_OTLP_H
#define FATHOM_TRACE_OTLP_H

#include "base/buf.h"
#include "trace/span.h"

/* One word of what every span is of. */
struct otlp_attribute {
    const char *key, *value;
};

/* Who sends. */
struct otlp_resource {
    const struct otlp_attribute *attributes;
    size_t n;
    const char *version; /* of the program */
};

/* A span's own: the trace is that of its parent, if it has one. */
struct otlp_ids {
    uint8_t trace_id[TRACE_ID_BYTES];
    uint8_t span_id[TRACE_SPAN_ID_BYTES];
};

/* otlp_encode - append a request with n spans; ids [n]
 * Errors  ENOMEM. */
fathom_err otlp_encode(struct buf *out, const struct otlp_resource *resource,
                       const struct trace_span *spans, const struct otlp_ids *ids, size_t n);

#endif
