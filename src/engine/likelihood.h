/* likelihood.h - how well a model expects a text, and how far it is from another model
 *
 * Pure: from rows of logits to figures. A row predicts the token after it. Natural logarithms.
 */
#ifndef FATHOM_ENGINE_LIKELIHOOD_H
#define FATHOM_ENGINE_LIKELIHOOD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "fathom/err.h"

/* A row of logits. */
struct likelihood_row {
    double log_sum; /* log of the sum of exp(logit) */
    uint32_t top;   /* the largest; of equals the first */
};

/* likelihood_row_of - Errors  EDEVICE: a logit is not a number, or none is finite */
fathom_err likelihood_row_of(struct likelihood_row *out, const float *logits, uint32_t n_vocab);

/* One predicted token. */
struct likelihood {
    double nll;         /* -log p of the token that follows */
    double nll_against; /* by the other model; 0 without one, as what is below */
    double kl;          /* sum of p' log (p' / p), p' the other model's; never below 0 */
    float p_change;     /* p - p' of the token that follows */
    bool same_top;
};

/* likelihood_of - of the row that predicts `next`
 *
 *   against  the other model's logits of the same place; NULL: none
 * Errors  EDEVICE as above. */
fathom_err likelihood_of(struct likelihood *out, const float *logits, const float *against,
                         uint32_t n_vocab, int32_t next);

/* What is said of many. */
struct likelihood_summary {
    uint64_t n;
    double perplexity;       /* exp(mean nll) */
    double perplexity_error; /* its standard error: perplexity times that of the mean */
    double perplexity_against;
    double kl_mean, kl_error, kl_median, kl_90, kl_99, kl_999, kl_max;
    double same_top;     /* share of rows */
    double p_change_rms; /* of probabilities of the text's tokens */
};

/* likelihood_summarize - n rows, in any order; percentiles are of rank ceil(share * n)
 * Errors  ENOMEM. */
fathom_err likelihood_summarize(struct likelihood_summary *out, const struct likelihood *rows,
                                size_t n);

#endif
