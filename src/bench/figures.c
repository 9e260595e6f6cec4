/* figures.c - from the requests of a run to its figures, and checks of these */
#include "bench/figures.h"

#include <math.h>
#include <string.h>

#include "base/fail.h"
#include "base/mem.h"

static const double little_tolerance = 0.05;
static const double busy_limit = 0.8;
static const double token_tolerance = 0.02;
static const double cached_limit = 0.01;

static const char *const metric_names[METRIC_COUNT] = {"ttft", "tpot", "itl", "e2el"};

const char *metric_name(enum metric m)
{
    return metric_names[m];
}

enum metric metric_find(const char *name, size_t n)
{
    int m = 0;
    while (m < METRIC_COUNT &&
           (strlen(metric_names[m]) != n || strncmp(metric_names[m], name, n) != 0)) {
        m++;
    }
    return (enum metric)m;
}

/* Milliseconds of one request; -1 where it has no such figure. */
struct request_times {
    double ms[METRIC_COUNT];
};

/* The samples of all requests. */
struct samples {
    double *of[METRIC_COUNT];
    size_t n[METRIC_COUNT];
};

uint32_t figures_output_tokens(const struct load_record *r, uint32_t own_count)
{
    return r->has_usage ? r->n_usage_output : own_count;
}

/* Output tokens by our own means. */
static fathom_err count_own(const struct load_record *r, const struct tokenizer *t, uint32_t *out)
{
    *out = r->first_us > 0 ? r->n_gap + 1 : 0;
    return t && r->n_text ? dataset_count(t, r->text, r->n_text, out) : FATHOM_OK;
}

static struct request_times times_of(const struct load_record *r, uint32_t n_output)
{
    struct request_times t = {{-1, -1, -1, -1}};
    if (r->first_us == 0) return t;
    t.ms[METRIC_TTFT] = (double)(r->first_us - r->start_us) / 1e3;
    t.ms[METRIC_E2EL] = (double)(r->last_us - r->start_us) / 1e3;
    if (n_output > 1) {
        t.ms[METRIC_TPOT] = (double)(r->last_us - r->first_us) / 1e3 / (n_output - 1);
    }
    return t;
}

/* The mean gap stands for the request where a limit is on ITL. An answer without text has no times
 * that could keep a limit. */
static bool is_good(const struct goodput_limits *g, const struct load_record *r,
                    const struct request_times *t)
{
    if (r->first_us == 0) return !g->any;
    for (int m = 0; m < METRIC_COUNT; m++) {
        double value = t->ms[m];
        if (g->ms[m] < 0) continue;
        if (m == METRIC_ITL) {
            value = r->n_gap ? (double)(r->last_us - r->first_us) / 1e3 / r->n_gap : 0;
        }
        if (value > g->ms[m]) return false;
    }
    return true;
}

static void add_sample(struct samples *s, enum metric m, double value)
{
    if (value >= 0) s->of[m][s->n[m]++] = value;
}

/* Output tokens of each tenth of a second: each event carries the same share of its answer. */
static void count_tenths(double *tenths, size_t n_tenth, const struct load_run *run)
{
    for (size_t i = 0; i < run->n; i++) {
        const struct load_record *r = &run->records[i];
        if (r->outcome != LOAD_OK || r->first_us == 0) continue;
        double each = (double)figures_output_tokens(r, r->n_gap + 1) / (r->n_gap + 1);
        uint64_t at_us = r->first_us;
        for (uint32_t k = 0;; k++) {
            size_t tenth = (size_t)(at_us / 100000);
            if (tenth < n_tenth) tenths[tenth] += each;
            if (k == r->n_gap) break;
            at_us += r->gap_us[k];
        }
    }
}

/* Most output tokens of any second, which may begin at any tenth. */
static fathom_err find_peak(struct figures *f, const struct load_run *run)
{
    enum { WINDOW = 10 };
    size_t n_tenth = (size_t)(run->seconds * 10) + 2;
    double *tenths = mem_calloc(n_tenth, sizeof *tenths);
    if (!tenths) return FATHOM_ENOMEM;
    count_tenths(tenths, n_tenth, run);
    double sum = 0;
    for (size_t i = 0; i < n_tenth; i++) {
        sum += tenths[i];
        if (i >= WINDOW) sum -= tenths[i - WINDOW];
        if (sum > f->peak_output_rate) f->peak_output_rate = sum;
    }
    if (f->peak_output_rate < f->output_rate) f->peak_output_rate = f->output_rate;
    mem_free(tenths);
    return FATHOM_OK;
}

static fathom_err add_completed(struct figures *f, struct samples *s, const struct load_record *r,
                                const struct figures_options *o, size_t *n_good)
{
    uint32_t own;
    TRY(count_own(r, o->tokenizer, &own));
    uint32_t n_output = figures_output_tokens(r, own);
    struct request_times t = times_of(r, n_output);
    f->n_completed++;
    f->n_asked += r->n_asked;
    f->n_output += n_output;
    f->n_own_output += own;
    f->n_input += r->has_usage && r->n_usage_input ? r->n_usage_input : r->n_input;
    f->n_own_input += r->n_input;
    f->n_cached += r->n_cached;
    if (!r->has_usage) f->n_without_usage++;
    if (r->first_us == 0) f->n_silent++;
    if (is_good(&o->goodput, r, &t)) ++*n_good;
    for (int m = 0; m < METRIC_COUNT; m++) add_sample(s, (enum metric)m, t.ms[m]);
    for (uint32_t i = 0; i < r->n_gap; i++) add_sample(s, METRIC_ITL, r->gap_us[i] / 1e3);
    return FATHOM_OK;
}

/* Failures, and how long requests waited in the client. Returns the seconds in flight of those that
 * completed. */
static double add_all(struct figures *f, const struct load_run *run)
{
    double in_flight_s = 0;
    double wait_us = 0;
    for (size_t i = 0; i < run->n; i++) {
        const struct load_record *r = &run->records[i];
        double waited = (double)r->start_us - (double)r->due_us;
        wait_us += waited;
        if (waited / 1e3 > f->client_wait_ms_max) f->client_wait_ms_max = waited / 1e3;
        f->n_outcome[r->outcome]++;
        if (r->outcome == LOAD_OK) {
            in_flight_s += (double)(r->end_us - r->start_us) / 1e6;
        } else {
            f->n_failed++;
            if (!f->first_message) f->first_message = r->message;
        }
    }
    f->client_wait_ms_mean = run->n ? wait_us / 1e3 / (double)run->n : 0;
    return in_flight_s;
}

static void check(struct figures *f, const struct load_run *run, double in_flight_s,
                  const struct figures_options *o)
{
    double own = (double)f->n_own_input;
    f->peak_in_flight = run->max_in_flight;
    f->mean_in_flight = run->mean_in_flight;
    f->little = run->seconds > 0 ? in_flight_s / run->seconds : 0;
    f->little_holds = fabs(f->little - f->mean_in_flight) <= little_tolerance * f->mean_in_flight;
    f->busy_share = run->busy_share;
    f->longest_busy_ms = run->longest_busy_ms;
    f->client_is_limit = run->busy_share > busy_limit;
    f->tokens_differ = own > 0 && fabs((double)f->n_input - own) > token_tolerance * own;
    f->is_cached = !o->cache_expected && (double)f->n_cached > cached_limit * (double)f->n_input;
}

static void set_rates(struct figures *f, double seconds, size_t n_good)
{
    f->seconds = seconds;
    if (seconds <= 0) return;
    f->request_rate = (double)f->n_completed / seconds;
    f->good_rate = (double)n_good / seconds;
    f->output_rate = (double)f->n_output / seconds;
    f->total_rate = (double)(f->n_output + f->n_input) / seconds;
}

fathom_err figures_compute(struct figures *out, const struct load_run *run,
                           const struct figures_options *o)
{
    struct samples s = {{0}, {0}};
    size_t n_event = 0;
    size_t n_good = 0;
    fathom_err err = FATHOM_OK;
    memset(out, 0, sizeof *out);
    for (size_t i = 0; i < run->n; i++) n_event += run->records[i].n_gap;
    for (int m = 0; m < METRIC_COUNT; m++) {
        s.of[m] = mem_alloc_array((m == METRIC_ITL ? n_event : run->n) + 1, sizeof(double));
        if (!s.of[m]) err = FATHOM_ENOMEM;
    }
    for (size_t i = 0; !err && i < run->n; i++) {
        const struct load_record *r = &run->records[i];
        if (r->outcome == LOAD_OK) err = add_completed(out, &s, r, o, &n_good);
    }
    if (err) goto done;
    double in_flight_s = add_all(out, run);
    set_rates(out, run->seconds, n_good);
    for (int m = 0; m < METRIC_COUNT; m++) {
        summarise(&out->metrics[m], s.of[m], s.n[m], o->percentiles);
    }
    check(out, run, in_flight_s, o);
    err = find_peak(out, run);
done:
    for (int m = 0; m < METRIC_COUNT; m++) mem_free(s.of[m]);
    return err;
}
