/* serve_result.h - a benchmark of a server as JSON and as a table
 *
 * Names and forms are those of `vllm bench serve`, so that what reads its files reads these.
 * Members and lines of our own follow: workload, checks, failures by kind, spread over repeats.
 */
#ifndef FATHOM_BENCH_SERVE_RESULT_H
#define FATHOM_BENCH_SERVE_RESULT_H

#include <jansson.h>

#include "base/buf.h"
#include "bench/serve_run.h"

/* What a result says beside its figures. */
struct serve_description {
    const char *backend;         /* "openai" */
    const char *label;           /* NULL: none */
    const char *model;           /* what requests carried */
    const char *tokenizer;       /* what counted */
    const char *date;            /* "20260102-030405" */
    const char *const *metadata; /* "name=value" each */
    size_t n_metadata;
    const char *metrics; /* to print and keep: "ttft,tpot,itl,e2el" */
    bool detailed;       /* with the members that hold every request */
};

/* serve_metadata_check - whether a result can have it; EINVAL for metadata without '=' */
fathom_err serve_metadata_check(const struct serve_description *about, fathom_diag *d);

/* serve_result_json - one object
 *
 *   out  new reference
 * Errors  EINVAL for metadata without '=', a metric of no known name; ENOMEM. */
fathom_err serve_result_json(json_t **out, const struct serve_result *r,
                             const struct serve_options *o, const struct serve_description *about,
                             fathom_diag *d);

/* serve_result_table - what is printed: the figures, then the workload and the checks
 * Errors  as above. */
fathom_err serve_result_table(struct buf *out, const struct serve_result *r,
                              const struct serve_options *o, const struct serve_description *about,
                              fathom_diag *d);

/* serve_file_name - backend, rate, concurrency, model and date, as vLLM names its files */
fathom_err serve_file_name(struct buf *out, const struct serve_options *o,
                           const struct serve_description *about);

/* serve_warnings_write - a line for each check that failed: why the figures may not be what they
 * seem. Nothing when all hold. */
fathom_err serve_warnings_write(struct buf *out, const struct figures *f);

/* serve_metrics_chosen - bit 1 << metric for each name of a list; EINVAL for an unknown one */
fathom_err serve_metrics_chosen(const char *list, unsigned *out, fathom_diag *d);

#endif
