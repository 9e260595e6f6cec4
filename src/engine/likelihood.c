/* likelihood.c - how well a model expects a text, and how far it is from another model */
#include "engine/likelihood.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/mem.h"

fathom_err likelihood_row_of(struct likelihood_row *out, const float *logits, uint32_t n_vocab)
{
    uint32_t top = 0;
    double sum = 0;
    ASSERT(n_vocab >= 1);
    for (uint32_t i = 0; i < n_vocab; i++) {
        if (isnan(logits[i])) return FATHOM_EDEVICE;
        if (logits[i] > logits[top]) top = i;
    }
    const double largest = (double)logits[top];
    if (!isfinite(largest)) return FATHOM_EDEVICE;
    for (uint32_t i = 0; i < n_vocab; i++) sum += exp((double)logits[i] - largest);
    *out = (struct likelihood_row){.log_sum = largest + log(sum), .top = top};
    return FATHOM_OK;
}

fathom_err likelihood_of(struct likelihood *out, const float *logits, const float *against,
                         uint32_t n_vocab, int32_t next)
{
    struct likelihood_row q, p;
    double kl = 0;
    ASSERT(next >= 0 && (uint32_t)next < n_vocab);
    fathom_err err = likelihood_row_of(&q, logits, n_vocab);
    if (err) return err;
    *out = (struct likelihood){.nll = q.log_sum - (double)logits[next]};
    if (!against) return FATHOM_OK;
    err = likelihood_row_of(&p, against, n_vocab);
    if (err) return err;
    for (uint32_t i = 0; i < n_vocab; i++) {
        double log_p = (double)against[i] - p.log_sum;
        if (log_p > -700) kl += exp(log_p) * (log_p - ((double)logits[i] - q.log_sum));
    }
    out->nll_against = p.log_sum - (double)against[next];
    out->kl = kl > 0 ? kl : 0;
    out->p_change = (float)(exp(-out->nll) - exp(-out->nll_against));
    out->same_top = p.top == q.top;
    return FATHOM_OK;
}

/* ---- many ----------------------------------------------------------------------------------- */

struct moments {
    double sum, squares;
};

static void add(struct moments *m, double x)
{
    m->sum += x;
    m->squares += x * x;
}

/* The standard error of a mean of n independent values. */
static double error_of_mean(const struct moments *m, size_t n)
{
    if (n < 2) return 0;
    double mean = m->sum / (double)n;
    double variance = (m->squares - (double)n * mean * mean) / (double)(n - 1);
    return variance > 0 ? sqrt(variance / (double)n) : 0;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double percentile(const double *sorted, size_t n, double share)
{
    size_t rank = (size_t)ceil(share * (double)n);
    return sorted[rank < 1 ? 0 : rank > n ? n - 1 : rank - 1];
}

static fathom_err take_percentiles(struct likelihood_summary *out, const struct likelihood *rows,
                                   size_t n)
{
    double *kl = mem_alloc_array(n, sizeof *kl);
    if (!kl) return FATHOM_ENOMEM;
    for (size_t i = 0; i < n; i++) kl[i] = rows[i].kl;
    qsort(kl, n, sizeof *kl, compare);
    out->kl_median = percentile(kl, n, 0.5);
    out->kl_90 = percentile(kl, n, 0.9);
    out->kl_99 = percentile(kl, n, 0.99);
    out->kl_999 = percentile(kl, n, 0.999);
    out->kl_max = kl[n - 1];
    mem_free(kl);
    return FATHOM_OK;
}

fathom_err likelihood_summarize(struct likelihood_summary *out, const struct likelihood *rows,
                                size_t n)
{
    struct moments nll = {0, 0}, kl = {0, 0};
    double nll_against = 0, p_change = 0;
    size_t n_same = 0;
    memset(out, 0, sizeof *out);
    if (n == 0) return FATHOM_OK;
    for (size_t i = 0; i < n; i++) {
        add(&nll, rows[i].nll);
        add(&kl, rows[i].kl);
        nll_against += rows[i].nll_against;
        p_change += (double)rows[i].p_change * (double)rows[i].p_change;
        n_same += rows[i].same_top;
    }
    const double count = (double)n;
    out->n = n;
    out->perplexity = exp(nll.sum / count);
    out->perplexity_error = out->perplexity * error_of_mean(&nll, n);
    out->perplexity_against = exp(nll_against / count);
    out->kl_mean = kl.sum / count;
    out->kl_error = error_of_mean(&kl, n);
    out->same_top = (double)n_same / count;
    out->p_change_rms = sqrt(p_change / count);
    return take_percentiles(out, rows, n);
}
