/* setup.h - where traces go and which are sent, as the command line and OpenTelemetry's variables
 * say
 *
 * Source  OpenTelemetry, environment variables of the SDK and of the OTLP exporter.
 */
#ifndef FATHOM_TRACE_SETUP_H
#define FATHOM_TRACE_SETUP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/limits.h"
#include "fathom/err.h"
#include "trace/context.h"
#include "trace/otlp.h"

enum { TRACE_PAIRS_MAX = 64 };

/* As given, borrowed; NULL: not given. */
struct trace_words {
    const char *endpoint;    /* --otlp-traces-endpoint; NULL: no traces are sent */
    const char *protocol;    /* OTEL_EXPORTER_OTLP_TRACES_PROTOCOL, OTEL_EXPORTER_OTLP_PROTOCOL */
    const char *headers;     /* OTEL_EXPORTER_OTLP_TRACES_HEADERS, OTEL_EXPORTER_OTLP_HEADERS */
    const char *certificate; /* OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE, ..._OTLP_CERTIFICATE */
    const char *service;     /* OTEL_SERVICE_NAME */
    const char *resource;    /* OTEL_RESOURCE_ATTRIBUTES */
    const char *sampler;     /* OTEL_TRACES_SAMPLER */
    const char *sampler_arg; /* OTEL_TRACES_SAMPLER_ARG */
};

/* Words of a list KEY=VALUE,KEY=VALUE whose values are percent-encoded. */
struct trace_pairs {
    char *text; /* they point into it */
    struct otlp_attribute pairs[TRACE_PAIRS_MAX];
    size_t n;
};

struct trace_setup {
    char url[LIMIT_PATH_BYTES];
    bool is_grpc;            /* else the message is the body of a POST */
    const char *certificate; /* of authorities, PEM; NULL: the system's */
    struct trace_pairs headers;
    struct trace_pairs resource; /* service.name among them */
    bool by_parent;              /* a request that is part of a trace is recorded if the trace is */
    uint64_t bound;              /* other requests are recorded if the last 8 bytes of their trace
                                    id, as a number, are below this; UINT64_MAX: all are */
};

/* trace_setup_read - read the words; release with trace_setup_free, after an error too
 * Needs   an endpoint.
 * Errors  EINVAL: a word that is malformed or not supported; the message names the option or
 *         variable. ENOMEM. */
fathom_err trace_setup_read(struct trace_setup *out, const struct trace_words *w, fathom_diag *d);
void trace_setup_free(struct trace_setup *s);

/* trace_setup_samples - whether a request of this trace is recorded */
bool trace_setup_samples(const struct trace_setup *s, const struct trace_context *parent,
                         const uint8_t trace_id[TRACE_ID_BYTES]);

#endif
