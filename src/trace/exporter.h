/* exporter.h - sends spans to a collector, on a thread of its own
 *
 *   put --> WAITING --up to 512, or after 1 s--> a message --the collector has it--> (sent)
 *    \                                             |  \--it cannot be had for now--> again, 3 times
 *     \--2048 wait--> (lost)                       \--refused, or 4 times in vain--> (lost)
 *
 * Nobody waits for the collector: a span for which there is no room is lost, and counted. A line in
 * the log tells of lost spans, once a minute at most. Any thread may put spans; that needs no
 * system call, unless another thread holds the lock.
 */
#ifndef FATHOM_TRACE_EXPORTER_H
#define FATHOM_TRACE_EXPORTER_H

#include "trace/setup.h"
#include "trace/span.h"

struct trace_exporter;

/* trace_exporter_create - start an exporter; *out is NULL if the words have no endpoint
 * Errors  those of trace_setup_read; EINVAL: gRPC, and a libcurl without HTTP/2; EIO. */
fathom_err trace_exporter_create(struct trace_exporter **out, const struct trace_words *w,
                                 fathom_diag *d);

/* trace_exporter_destroy - send what waits, for 3 s at most; accepts NULL */
void trace_exporter_destroy(struct trace_exporter *x);

/* trace_exporter_put - hand a span over, unless its trace is not recorded; accepts a NULL exporter
 * Cost    about 0.2 us, and a copy. */
void trace_exporter_put(struct trace_exporter *x, const struct trace_span *span);

/* trace_exporter_counts - how many spans the collector has taken, and how many are lost; both are 0
 * for a NULL exporter */
struct trace_counts {
    uint64_t n_sent, n_lost;
};
struct trace_counts trace_exporter_counts(const struct trace_exporter *x);

#endif
