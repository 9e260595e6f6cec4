/* request_body.h - the JSON of a request: one shape for all, a prompt and a length for each */
#ifndef FATHOM_BENCH_REQUEST_BODY_H
#define FATHOM_BENCH_REQUEST_BODY_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "bench/dataset_items.h"
#include "fathom/err.h"

enum { SAMPLING_UNSET = -100 };

/* What every request of a run says. Numbers that are SAMPLING_UNSET are not sent. */
struct request_shape {
    bool is_chat;
    const char *model;
    bool ignore_eos;
    double temperature;
    double top_p;
    double top_k;
    double min_p;
    double frequency_penalty;
    double presence_penalty;
    double repetition_penalty;
    double logprobs;
    const char *extra; /* JSON object whose members are added and win; NULL: none */
};

/* request_shape_write - the members common to all requests as one JSON object
 * Errors  EFORMAT, EINVAL of `extra`; ENOMEM. */
fathom_err request_shape_write(struct buf *out, const struct request_shape *s, fathom_diag *d);

/* request_body_write - a whole body
 *
 *   common   what request_shape_write wrote
 *   salt     value of cache_salt; NULL: none */
fathom_err request_body_write(struct buf *out, const struct buf *common, bool is_chat,
                              const struct dataset_item *item, const char *salt);

#endif
