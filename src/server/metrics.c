/* metrics.c - bounds, codes and statuses that are counted, and the families of a scrape */
#include "server/metrics.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/fail.h"
#include "base/json_arena.h"
#include "base/os.h"

/* Bounds of vLLM's histograms, in microseconds. */
static const uint64_t first_token_bounds[] = {
    1000,     5000,     10000,    20000,     40000,     60000,     80000,   100000,
    250000,   500000,   750000,   1000000,   2500000,   5000000,   7500000, 10000000,
    20000000, 40000000, 80000000, 160000000, 640000000, 2560000000};
static const uint64_t output_token_bounds[] = {
    10000,  25000,   50000,   75000,   100000,  150000,   200000,   300000,   400000,  500000,
    750000, 1000000, 2500000, 5000000, 7500000, 10000000, 20000000, 40000000, 80000000};
static const uint64_t request_bounds[] = {
    300000,   500000,    800000,    1000000,   1500000,   2000000,    2500000,
    5000000,  10000000,  15000000,  20000000,  30000000,  40000000,   50000000,
    60000000, 120000000, 240000000, 480000000, 960000000, 1920000000, 7680000000};
static const uint64_t compile_bounds[] = {100,    200,    500,     1000,    2000,
                                          5000,   10000,  20000,   50000,   100000,
                                          200000, 500000, 1000000, 2000000, 5000000};
static const uint64_t choice_bounds[] = {1, 2, 5, 10, 20};

#define COUNT_OF(a) (sizeof(a) / sizeof(a)[0])

/* Codes of answers that tell an error (docs/api.md); what is not here counts in the last row. */
static const char *const codes[] = {"answer_too_large",
                                    "cancelled",
                                    "client_certificate",
                                    "context_length_exceeded",
                                    "engine_failed",
                                    "engine_stalled",
                                    "grammar_failed",
                                    "host_away",
                                    "host_not_allowed",
                                    "invalid_api_key",
                                    "invalid_type",
                                    "invalid_value",
                                    "malformed_request",
                                    "method_not_allowed",
                                    "missing_required_parameter",
                                    "model_not_found",
                                    "not_found",
                                    "pages_lost",
                                    "previous_response_not_found",
                                    "request_too_large",
                                    "server_busy",
                                    "shutting_down",
                                    "thread_not_found",
                                    "too_many_connections",
                                    "unknown_parameter",
                                    "unsupported_parameter",
                                    "unsupported_value",
                                    "other"};
static_assert(COUNT_OF(codes) <= METRIC_CODES_MAX, "a counter for each code");

static const int statuses[] = {200, 204, 400, 401, 403, 404, 405, 408, 413, 415,
                               417, 429, 431, 499, 500, 501, 503, 505, 0};
static_assert(COUNT_OF(statuses) <= METRIC_STATUS_MAX, "a counter for each status");

static const char *const finish_names[METRIC_FINISH_COUNT] = {"stop", "length", "abort", "error"};

void metrics_init(struct metrics *m, uint32_t max_model_len)
{
    memset(m, 0, sizeof *m);
    histogram_init(&m->first_token, first_token_bounds, COUNT_OF(first_token_bounds), 1e6);
    histogram_init(&m->inter_token, output_token_bounds, COUNT_OF(output_token_bounds), 1e6);
    histogram_init(&m->output_token, output_token_bounds, COUNT_OF(output_token_bounds), 1e6);
    struct histogram *const of_requests[] = {&m->total, &m->queue, &m->prefill, &m->decode,
                                             &m->inference};
    for (size_t i = 0; i < COUNT_OF(of_requests); i++) {
        histogram_init(of_requests[i], request_bounds, COUNT_OF(request_bounds), 1e6);
    }
    histogram_init_125(&m->n_prompt, max_model_len);
    histogram_init_125(&m->n_output, max_model_len);
    histogram_init_125(&m->max_tokens, max_model_len);
    histogram_init(&m->grammar_compile, compile_bounds, COUNT_OF(compile_bounds), 1e6);
    histogram_init_125(&m->n_most_output, max_model_len);
    histogram_init(&m->n_choice, choice_bounds, COUNT_OF(choice_bounds), 1);
}

/* ---- counting ------------------------------------------------------------------------------ */

static void count(atomic_uint_fast64_t *counter, uint64_t n)
{
    atomic_fetch_add_explicit(counter, n, memory_order_relaxed);
}

static uint64_t value_of(const atomic_uint_fast64_t *counter)
{
    return atomic_load_explicit(counter, memory_order_relaxed);
}

void metrics_note_finish(struct metrics *m, const struct metric_request *r, const fathom_event *e)
{
    count(&m->n_finished[r->finish], 1);
    if (r->finish != METRIC_FINISH_STOP && r->finish != METRIC_FINISH_LENGTH) return;
    histogram_observe(&m->total, r->total_us);
    histogram_observe(&m->queue, e->queue_us);
    histogram_observe(&m->n_prompt, e->n_prompt);
    histogram_observe(&m->n_output, r->n_output);
    if (r->max_tokens) histogram_observe(&m->max_tokens, r->max_tokens);
    if (e->first_us < e->queue_us || e->total_us < e->first_us) return; /* no token was drawn */
    uint64_t decode_us = e->total_us - e->first_us;
    histogram_observe(&m->prefill, e->first_us - e->queue_us);
    histogram_observe(&m->decode, decode_us);
    histogram_observe(&m->inference, e->total_us - e->queue_us);
    if (e->n_output > 1) histogram_observe(&m->output_token, decode_us / (e->n_output - 1));
}

static const char *const method_names[METRIC_METHODS] = {"GET", "POST", "DELETE", "other"};

void metrics_note_response(struct metrics *m, size_t route, const char *method, int status)
{
    size_t i = 0, k = 0;
    if (route > METRIC_ROUTES_MAX) route = METRIC_ROUTES_MAX;
    while (k + 1 < METRIC_METHODS && strcmp(method_names[k], method) != 0) k++;
    int class = status < 300 ? 0 : status < 400 ? 1 : status < 500 ? 2 : 3;
    count(&m->n_http[route][k][class], 1);
    while (i + 1 < COUNT_OF(statuses) && statuses[i] != status) i++;
    count(&m->n_response[i], 1);
}

void metrics_note_error(struct metrics *m, const char *code)
{
    size_t i = 0;
    while (i + 1 < COUNT_OF(codes) && (!code || strcmp(codes[i], code) != 0)) i++;
    count(&m->n_error[i], 1);
}

void metrics_note_lost_line(struct metrics *m)
{
    count(&m->n_lost_line, 1);
}

/* ---- text ---------------------------------------------------------------------------------- */

/* Where a scrape is being written. */
struct scrape {
    struct buf *b;
    struct buf labels; /* of every sample: model_name, engine */
};

static void write_count(struct scrape *s, const char *name, enum prometheus_type type,
                        const char *help, uint64_t value)
{
    prometheus_family(s->b, name, type, help);
    prometheus_count(s->b, name, &s->labels, value);
}

static void write_value(struct scrape *s, const char *name, enum prometheus_type type,
                        const char *help, double value)
{
    prometheus_family(s->b, name, type, help);
    prometheus_value(s->b, name, &s->labels, value);
}

static void write_histogram(struct scrape *s, const char *name, const char *help,
                            struct histogram *h)
{
    prometheus_family(s->b, name, PROMETHEUS_HISTOGRAM, help);
    prometheus_histogram(s->b, name, &s->labels, h);
}

/* One sample of a family with one more label. */
static void write_labelled(struct scrape *s, const char *name, const char *label, const char *value,
                           uint64_t n)
{
    size_t len = s->labels.len;
    prometheus_label(&s->labels, label, value);
    prometheus_count(s->b, name, &s->labels, n);
    if (s->labels.len > len) {
        s->labels.len = len;
        s->labels.data[len] = '\0';
    }
}

/* Of each lane, which is a data-parallel rank. */
static void write_lanes(struct scrape *s, const struct metrics_view *v)
{
    const fathom_stats *t = v->stats;
    static const struct {
        const char *name, *help;
    } families[] = {{"fathom_lane_running", "Requests that run on a data-parallel rank."},
                    {"fathom_lane_waiting", "Requests that wait for it."},
                    {"fathom_lane_pages_free", "Pages of its cache that can be taken."},
                    {"fathom_lane_backlog_tokens", "Prompt tokens that it has not computed yet."}};
    for (size_t k = 0; k < sizeof families / sizeof *families && v->info->n_lane > 1; k++) {
        prometheus_family(s->b, families[k].name, PROMETHEUS_GAUGE, families[k].help);
        for (uint32_t i = 0; i < t->n_lane; i++) {
            const fathom_lane_stats *l = &t->lanes[i];
            const uint64_t values[] = {l->n_running, l->n_waiting, l->n_page_free,
                                       l->n_backlog_token};
            char lane[12];
            (void)snprintf(lane, sizeof lane, "%u", v->first_lane + i);
            write_labelled(s, families[k].name, "dp_rank", lane, values[k]);
        }
    }
}

static void write_ranks(struct scrape *s, const fathom_stats *t)
{
    const char *const names[] = {"fathom_rank_waits_total", "fathom_rank_wait_seconds_total"};
    const char *const helps[] = {
        "Meetings of all ranks to which this rank was not the last one to come.",
        "Time that it waited there for the others."};
    for (int k = 0; k < 2 && t->n_rank_wait > 0; k++) {
        prometheus_family(s->b, names[k], PROMETHEUS_COUNTER, helps[k]);
        for (uint32_t i = 0; i < t->n_rank_wait; i++) {
            const fathom_rank_waits *w = &t->rank_waits[i];
            struct buf labels = {0};
            char rank[12];
            (void)snprintf(rank, sizeof rank, "%u", i);
            (void)buf_add(&labels, s->labels.data, s->labels.len);
            prometheus_label(&labels, "rank", rank);
            if (k == 0)
                prometheus_count(s->b, names[k], &labels, w->n);
            else
                prometheus_value(s->b, names[k], &labels, (double)w->us / 1e6);
            if (buf_status(&labels) != FATHOM_OK) s->b->failed = true;
            buf_free(&labels);
        }
    }
}

static void write_vllm_gauges(struct scrape *s, const fathom_stats *t)
{
    uint32_t n_held = t->n_page - t->n_page_free;
    const uint64_t n_deferred = t->n_fetching < t->n_waiting ? t->n_fetching : t->n_waiting;
    write_count(s, "vllm:num_requests_running", PROMETHEUS_GAUGE,
                "Requests that take part in steps.", t->n_running);
    write_count(s, "vllm:num_requests_waiting", PROMETHEUS_GAUGE,
                "Requests that wait for the scheduler.", t->n_waiting);
    const char *name = "vllm:num_requests_waiting_by_reason";
    prometheus_family(s->b, name, PROMETHEUS_GAUGE, "The same by what they wait for.");
    write_labelled(s, name, "reason", "capacity", t->n_waiting - n_deferred);
    write_labelled(s, name, "reason", "deferred", n_deferred);
    write_value(s, "vllm:kv_cache_usage_perc", PROMETHEUS_GAUGE,
                "Share of the cache's pages that requests hold; 1 is all.",
                t->n_page ? (double)n_held / t->n_page : 0);
}

static void write_vllm_state(struct scrape *s, const struct metrics *m,
                             const struct metrics_view *v)
{
    const fathom_stats *t = v->stats;
    const uint64_t n_here = t->n_prefix_hit_token - t->n_prefix_fetched_token;
    const bool has_tiers = t->tiers.n_ram_page > 0;
    write_vllm_gauges(s, t);
    write_count(s, "vllm:prompt_tokens_total", PROMETHEUS_COUNTER,
                "Prompt tokens computed, and found in the cache.",
                t->n_prompt_token + t->n_prefix_hit_token);
    write_count(s, "vllm:generation_tokens_total", PROMETHEUS_COUNTER, "Tokens generated.",
                t->n_output_token);
    write_count(s, "vllm:num_preemptions_total", PROMETHEUS_COUNTER,
                "Times a request gave up its pages.", t->n_preempted);
    write_count(s, "vllm:prefix_cache_queries_total", PROMETHEUS_COUNTER,
                "Prompt tokens looked for in the prefix cache.", t->n_prefix_query_token);
    write_count(s, "vllm:prefix_cache_hits_total", PROMETHEUS_COUNTER,
                "Prompt tokens found in the prefix cache.", n_here);
    write_count(s, "vllm:external_prefix_cache_queries_total", PROMETHEUS_COUNTER,
                "Prompt tokens looked for in memory, on disk or at another server.",
                has_tiers ? t->n_prefix_query_token - n_here : 0);
    write_count(s, "vllm:external_prefix_cache_hits_total", PROMETHEUS_COUNTER,
                "Prompt tokens found there.", t->n_prefix_fetched_token);

    write_count(s, "vllm:prompt_tokens_cached_total", PROMETHEUS_COUNTER,
                "Prompt tokens that were not computed, since the cache had them.",
                t->n_prefix_hit_token);
    const char *name = "vllm:prompt_tokens_by_source_total";
    prometheus_family(s->b, name, PROMETHEUS_COUNTER, "Prompt tokens by where they came from.");
    write_labelled(s, name, "source", "local_compute", t->n_prompt_token);
    write_labelled(s, name, "source", "local_cache_hit", n_here);
    write_labelled(s, name, "source", "external_kv_transfer", t->n_prefix_fetched_token);

    name = "vllm:request_success_total";
    prometheus_family(s->b, name, PROMETHEUS_COUNTER, "Requests that ended, by their reason.");
    for (int i = 0; i < METRIC_FINISH_COUNT; i++) {
        write_labelled(s, name, "finished_reason", finish_names[i], value_of(&m->n_finished[i]));
    }
}

static const char *const tier_bad_names[FATHOM_TIER_BAD_COUNT] = {
    [FATHOM_TIER_BAD_IO] = "io",
    [FATHOM_TIER_BAD_TRUNCATED] = "truncated",
    [FATHOM_TIER_BAD_CHECKSUM] = "checksum",
    [FATHOM_TIER_BAD_VERSION] = "version",
    [FATHOM_TIER_BAD_MODEL] = "model",
    [FATHOM_TIER_BAD_NUMERICS] = "numerics",
    [FATHOM_TIER_BAD_LAYOUT] = "layout",
    [FATHOM_TIER_BAD_TOKENS] = "tokens",
};

static void write_tier_events(struct scrape *s, const fathom_tier_stats *t)
{
    const struct {
        const char *name, *help, *label;
        const char *values[2];
        uint64_t n[2];
    } families[] = {
        {"fathom_kv_tier_hits_total",
         "Pages copied back to the device for a request, by where they were.",
         "tier",
         {"ram", "disk"},
         {t->n_ram_hit, t->n_disk_hit}},
        {"fathom_kv_tier_stored_pages_total",
         "Pages copied from the device to memory, and written to disk.",
         "tier",
         {"ram", "disk"},
         {t->n_kept, t->n_written}},
        {"fathom_kv_tier_bytes_total",
         "Bytes written to disk, and read from it.",
         "direction",
         {"write", "read"},
         {t->n_written * t->page_bytes, t->n_read * t->page_bytes}},
    };
    for (size_t i = 0; i < sizeof families / sizeof families[0]; i++) {
        prometheus_family(s->b, families[i].name, PROMETHEUS_COUNTER, families[i].help);
        for (int k = 0; k < 2; k++) {
            write_labelled(s, families[i].name, families[i].label, families[i].values[k],
                           families[i].n[k]);
        }
    }
}

/* Only of an engine that keeps pages outside of its cache. */
static void write_tiers(struct scrape *s, const struct metrics_view *v)
{
    const fathom_tier_stats *t = &v->stats->tiers;
    if (t->n_ram_page == 0) return;
    const char *name = "fathom_kv_tier_pages";
    prometheus_family(s->b, name, PROMETHEUS_GAUGE, "Pages in memory and on disk.");
    write_labelled(s, name, "tier", "ram", t->n_ram_used);
    write_labelled(s, name, "tier", "disk", t->n_disk_used);
    name = "fathom_kv_tier_capacity_pages";
    prometheus_family(s->b, name, PROMETHEUS_GAUGE, "Pages that there is room for.");
    write_labelled(s, name, "tier", "ram", t->n_ram_page);
    write_labelled(s, name, "tier", "disk", t->n_disk_page);
    write_count(s, "fathom_kv_tier_uncopied_pages", PROMETHEUS_GAUGE,
                "Pages of the cache that are not in memory or on disk yet.", t->n_uncopied);
    write_count(s, "fathom_kv_tier_unwritten_pages", PROMETHEUS_GAUGE,
                "Pages in memory that are not on disk yet.", t->n_unwritten);
    write_tier_events(s, t);
    write_count(s, "fathom_kv_tier_restores_total", PROMETHEUS_COUNTER,
                "Requests that had pages copied back.", t->n_fetch);
    write_value(s, "fathom_kv_tier_restore_seconds_total", PROMETHEUS_COUNTER,
                "How long they waited for them, together.", (double)t->fetch_us * 1e-6);
    name = "fathom_kv_tier_rejected_total";
    prometheus_family(s->b, name, PROMETHEUS_COUNTER,
                      "Records that were not taken, and computed again, by the reason.");
    for (int i = 0; i < FATHOM_TIER_BAD_COUNT; i++) {
        write_labelled(s, name, "reason", tier_bad_names[i], t->n_bad[i]);
    }
    write_count(s, "fathom_kv_tier_dropped_pages_total", PROMETHEUS_COUNTER,
                "Pages given up before they were written.", t->n_dropped);
    write_count(s, "fathom_kv_tier_write_errors_total", PROMETHEUS_COUNTER,
                "Pages that could not be written.", t->n_write_failed);
    write_count(s, "fathom_kv_pages_pulled_total", PROMETHEUS_COUNTER,
                "Pages of the cache that came from other servers.", t->n_pulled);
    write_count(s, "fathom_kv_pages_pull_lost_total", PROMETHEUS_COUNTER,
                "Pages asked for at other servers, and not taken.", t->n_pull_lost);
    write_count(s, "fathom_kv_pages_sent_total", PROMETHEUS_COUNTER,
                "Pages given to other servers.", t->n_sent);
    write_count(s, "fathom_kv_pages_released_total", PROMETHEUS_COUNTER,
                "Pages lent to other servers, which want them no more.", t->n_released);
    write_count(s, "fathom_kv_tier_writes_off", PROMETHEUS_GAUGE,
                "1 while the disk fails too often, and is written to once a minute.",
                t->writes_off);
    write_count(s, "fathom_requests_fetching", PROMETHEUS_GAUGE, "Requests that wait for pages.",
                v->stats->n_fetching);
}

/* Only of an engine that has told what its cache holds. */
static void write_kv_events(struct scrape *s, const fathom_event_stats *t)
{
    if (t->n_batch == 0) return;
    const char *name = "fathom_kv_events_total";
    prometheus_family(s->b, name, PROMETHEUS_COUNTER,
                      "Pages of the prefix cache that subscribers were told of, and times that all "
                      "were called gone.");
    write_labelled(s, name, "kind", "stored", t->n_stored);
    write_labelled(s, name, "kind", "removed", t->n_removed);
    write_labelled(s, name, "kind", "cleared", t->n_cleared);
    write_count(s, "fathom_kv_event_batches_total", PROMETHEUS_COUNTER,
                "Messages that these were sent in.", t->n_batch);
    write_count(s, "fathom_kv_event_overflows_total", PROMETHEUS_COUNTER,
                "Times that an event had no room, so that all was told anew.", t->n_overflow);
    write_count(s, "fathom_kv_event_replays_total", PROMETHEUS_COUNTER,
                "Answers to subscribers that had missed some.", t->n_replay);
}

/* Only of an engine that drafts. */
static void write_vllm_drafts(struct scrape *s, const struct metrics_view *v)
{
    const fathom_stats *t = v->stats;
    uint64_t n_draft = 0, n_accepted = 0;
    if (v->info->n_draft == 0) return;
    for (uint32_t i = 0; i < v->info->n_draft; i++) {
        n_draft += t->n_draft_token[i];
        n_accepted += t->n_accepted_token[i];
    }
    write_count(s, "vllm:spec_decode_num_drafts_total", PROMETHEUS_COUNTER,
                "Times a request had drafts in a step.", t->n_draft_token[0]);
    write_count(s, "vllm:spec_decode_num_draft_tokens_total", PROMETHEUS_COUNTER, "Tokens drafted.",
                n_draft);
    write_count(s, "vllm:spec_decode_num_accepted_tokens_total", PROMETHEUS_COUNTER,
                "Of them those that were kept.", n_accepted);
    const char *name = "vllm:spec_decode_num_accepted_tokens_per_pos_total";
    prometheus_family(s->b, name, PROMETHEUS_COUNTER, "The same by their place among the drafts.");
    for (uint32_t i = 0; i < v->info->n_draft; i++) {
        char place[16];
        (void)snprintf(place, sizeof place, "%u", i);
        write_labelled(s, name, "position", place, t->n_accepted_token[i]);
    }
}

/* The engine counts in vLLM's classes. */
static void write_steps(struct scrape *s, const fathom_stats *t)
{
    uint64_t bounds[FATHOM_STEP_SIZES - 1] = {1};
    struct histogram h;
    for (size_t i = 1; i < FATHOM_STEP_SIZES - 1; i++) bounds[i] = 4ull << i;
    histogram_init(&h, bounds, FATHOM_STEP_SIZES - 1, 1);
    for (size_t i = 0; i < FATHOM_STEP_SIZES; i++) atomic_store(&h.counts[i], t->n_step_by_size[i]);
    atomic_store(&h.sum, t->n_step_token);
    write_histogram(s, "vllm:iteration_tokens_total", "Tokens of a step.", &h);
}

static void write_vllm_histograms(struct scrape *s, struct metrics *m)
{
    write_histogram(s, "vllm:request_max_num_generation_tokens",
                    "Tokens of the longest choice of a request.", &m->n_most_output);
    write_histogram(s, "vllm:time_to_first_token_seconds",
                    "From the complete request to its first token.", &m->first_token);
    write_histogram(s, "vllm:inter_token_latency_seconds",
                    "Between two steps that gave a request tokens.", &m->inter_token);
    write_histogram(s, "vllm:time_per_output_token_seconds", "The same under its older name.",
                    &m->inter_token);
    write_histogram(s, "vllm:request_time_per_output_token_seconds",
                    "Mean time between the tokens of a request.", &m->output_token);
    write_histogram(s, "vllm:e2e_request_latency_seconds",
                    "From the complete request to its last token.", &m->total);
    write_histogram(s, "vllm:request_queue_time_seconds", "Waiting for the scheduler.", &m->queue);
    write_histogram(s, "vllm:request_inference_time_seconds", "From the scheduler to the end.",
                    &m->inference);
    write_histogram(s, "vllm:request_prefill_time_seconds",
                    "From the scheduler to the first token.", &m->prefill);
    write_histogram(s, "vllm:request_decode_time_seconds", "From the first token to the last.",
                    &m->decode);
    write_histogram(s, "vllm:request_prompt_tokens", "Prompt tokens of a request.", &m->n_prompt);
    write_histogram(s, "vllm:request_generation_tokens", "Tokens generated for a request.",
                    &m->n_output);
    write_histogram(s, "vllm:request_params_max_tokens", "max_tokens of requests that gave it.",
                    &m->max_tokens);
    write_histogram(s, "vllm:request_params_n", "n of requests.", &m->n_choice);
}

/* Facts as labels of a constant 1; releases them. */
static void write_info(struct scrape *s, const char *name, const char *help, struct buf *labels)
{
    prometheus_family(s->b, name, PROMETHEUS_GAUGE, help);
    prometheus_count(s->b, name, labels, 1);
    if (buf_status(labels) != FATHOM_OK) s->b->failed = true;
    buf_free(labels);
}

static void write_infos(struct scrape *s, const struct metrics_view *v)
{
    struct buf cache = {0}, build = {0};
    char n_page[16];
    ASSERT(v->stats->n_lane > 0);
    (void)snprintf(n_page, sizeof n_page, "%u", v->stats->n_page / v->stats->n_lane); /* a lane's */
    prometheus_label(&cache, "engine", "0");
    prometheus_label(&cache, "block_size", "64");
    prometheus_label(&cache, "num_gpu_blocks", n_page);
    write_info(s, "vllm:cache_config_info", "Pages of the cache, and tokens of a page.", &cache);
    prometheus_label(&build, "version", FATHOM_VERSION);
    prometheus_label(&build, "backend", v->info->backend);
    prometheus_label(&build, "model_type", v->info->model_type);
    write_info(s, "fathom_build_info", "The program and its model.", &build);
}

static void write_engine(struct scrape *s, const struct metrics_view *v)
{
    const fathom_stats *t = v->stats;
    write_count(s, "fathom_engine_up", PROMETHEUS_GAUGE, "0 once the engine has failed.",
                !t->failed);
    write_count(s, "fathom_steps_total", PROMETHEUS_COUNTER, "Steps made.", t->n_step);
    write_count(s, "fathom_steps_ahead_total", PROMETHEUS_COUNTER,
                "Of them, launched while the one before ran.", t->n_step_ahead);
    write_count(s, "fathom_prompt_tokens_shared_total", PROMETHEUS_COUNTER,
                "Prompt tokens computed by all ranks with requests of their own together.",
                t->n_shared_token);
    write_value(s, "fathom_step_busy_seconds_total", PROMETHEUS_COUNTER, "Time spent in steps.",
                (double)t->busy_us / 1e6);
    write_value(s, "fathom_step_wait_seconds_total", PROMETHEUS_COUNTER,
                "Of it, waiting for the device; the rest is the host's own work.",
                (double)t->wait_us / 1e6);
    write_ranks(s, t);
    write_lanes(s, v);
    prometheus_family(s->b, "fathom_pages", PROMETHEUS_GAUGE, "Pages of the cache by state.");
    write_labelled(s, "fathom_pages", "state", "free", t->n_page_free - t->n_page_cached);
    write_labelled(s, "fathom_pages", "state", "cached", t->n_page_cached);
    write_labelled(s, "fathom_pages", "state", "held", t->n_page - t->n_page_free);
    write_count(s, "fathom_backlog_tokens", PROMETHEUS_GAUGE,
                "Prompt tokens of live requests that are not computed yet.", t->n_backlog_token);
    const char *name = "fathom_requests_refused_total";
    prometheus_family(s->b, name, PROMETHEUS_COUNTER,
                      "Requests that the engine did not take, or gave back unstarted.");
    write_labelled(s, name, "reason", "queue_full", t->n_refused_full);
    write_labelled(s, name, "reason", "queued_tokens", t->n_refused_tokens);
    write_labelled(s, name, "reason", "slo_ttft", t->n_refused_ttft);
    write_labelled(s, name, "reason", "pages_lent", t->n_refused_pages);
    write_labelled(s, name, "reason", "expired", t->n_expired);
    write_value(s, "fathom_prefill_token_seconds", PROMETHEUS_GAUGE,
                "Time of one prompt token, as measured lately; 0: unknown.",
                t->prefill_token_us / 1e6);
    write_value(s, "fathom_decode_step_seconds", PROMETHEUS_GAUGE,
                "Time of a step for its decodes alone; 0: unknown.", t->decode_step_us / 1e6);
    write_value(s, "fathom_expected_first_token_seconds", PROMETHEUS_GAUGE,
                "Until the first token of a short prompt that came now; 0: unknown.",
                (double)t->first_token_us / 1e6);
}

static void write_grammars(struct scrape *s, struct metrics *m, const struct metrics_view *v)
{
    const struct grammar_cache_stats *g = v->grammars;
    write_count(s, "fathom_grammar_cache_hits_total", PROMETHEUS_COUNTER,
                "Requests whose grammar was compiled already.", g->n_hit);
    write_count(s, "fathom_grammar_cache_misses_total", PROMETHEUS_COUNTER,
                "Requests whose grammar had to be compiled.", g->n_miss);
    write_count(s, "fathom_grammar_failures_total", PROMETHEUS_COUNTER,
                "Of these, grammars that cannot be compiled.", g->n_failed);
    write_count(s, "fathom_grammar_evictions_total", PROMETHEUS_COUNTER,
                "Grammars dropped for want of room.", g->n_evicted);
    write_count(s, "fathom_grammar_cache_entries", PROMETHEUS_GAUGE, "Grammars held.", g->n_entry);
    write_count(s, "fathom_grammar_cache_bytes", PROMETHEUS_GAUGE,
                "Their memory, as of the last compilation.", g->n_byte);
    write_histogram(s, "fathom_grammar_compile_seconds", "Compilation of a grammar.",
                    &m->grammar_compile);
    write_count(s, "fathom_masks_total", PROMETHEUS_COUNTER,
                "Masks of tokens that a grammar allows, one for each token drawn under it.",
                v->stats->n_mask);
    write_value(s, "fathom_mask_seconds_total", PROMETHEUS_COUNTER, "Time taken to fill them.",
                (double)v->stats->mask_us / 1e6);
}

/* As prometheus-fastapi-instrumentator names them, which vLLM's dashboards read. */
static void write_http(struct scrape *s, const struct metrics *m, const struct metrics_view *v)
{
    const char *name = "http_requests_total";
    prometheus_family(s->b, name, PROMETHEUS_COUNTER,
                      "Requests by path, method and class of the status.");
    for (size_t i = 0; i <= METRIC_ROUTES_MAX; i++) {
        const char *path = i < METRIC_ROUTES_MAX && v->route_name ? v->route_name(i) : NULL;
        for (size_t k = 0; k < METRIC_METHODS * METRIC_CLASSES; k++) {
            uint64_t n = value_of(&m->n_http[i][k / METRIC_CLASSES][k % METRIC_CLASSES]);
            struct buf labels = {0};
            char class[8];
            if (n == 0) continue;
            (void)snprintf(class, sizeof class, "%zuxx", 2 + k % METRIC_CLASSES);
            prometheus_label(&labels, "handler", path ? path : "none");
            prometheus_label(&labels, "method", method_names[k / METRIC_CLASSES]);
            prometheus_label(&labels, "status", class);
            prometheus_count(s->b, name, &labels, n);
            if (buf_status(&labels) != FATHOM_OK) s->b->failed = true;
            buf_free(&labels);
        }
    }
}

/* Of the process, under the names of Prometheus' own clients. */
static void write_process(struct scrape *s, const struct metrics_view *v)
{
    const char *name = "process_start_time_seconds";
    prometheus_family(s->b, name, PROMETHEUS_GAUGE, "When the server started, since 1970.");
    prometheus_value(s->b, name, NULL, (double)v->start_s);
    name = "process_resident_memory_bytes";
    prometheus_family(s->b, name, PROMETHEUS_GAUGE, "Memory that the process has in RAM.");
    prometheus_count(s->b, name, NULL, os_resident_bytes());
    name = "process_cpu_seconds_total";
    prometheus_family(s->b, name, PROMETHEUS_COUNTER, "Processor time of all its threads.");
    prometheus_value(s->b, name, NULL, (double)clock_process_cpu_us() / 1e6);
}

static void write_ready(struct scrape *s, const struct metrics_view *v)
{
    write_count(s, "fathom_ready", PROMETHEUS_GAUGE, "1 while requests are taken, as /ready tells.",
                v->ready);
}

static void write_server(struct scrape *s, const struct metrics *m, const struct metrics_view *v)
{
    const char *name = "fathom_http_responses_total";
    prometheus_family(s->b, name, PROMETHEUS_COUNTER,
                      "Answers by HTTP status; 499: the client left before.");
    for (size_t i = 0; i < COUNT_OF(statuses); i++) {
        char status[16] = "other";
        if (statuses[i]) (void)snprintf(status, sizeof status, "%d", statuses[i]);
        write_labelled(s, name, "status", status, value_of(&m->n_response[i]));
    }
    name = "fathom_request_errors_total";
    prometheus_family(s->b, name, PROMETHEUS_COUNTER,
                      "Errors told, by status or within a stream, by their code.");
    for (size_t i = 0; i < COUNT_OF(codes); i++) {
        write_labelled(s, name, "code", codes[i], value_of(&m->n_error[i]));
    }
    write_count(s, "fathom_backlog_cuts_total", PROMETHEUS_COUNTER,
                "Streams cut because their client did not read.", value_of(&m->n_backlog_cut));
    write_count(s, "fathom_disconnects_total", PROMETHEUS_COUNTER,
                "Requests cancelled because their client left.", value_of(&m->n_left));
    write_count(s, "fathom_access_log_lost_lines_total", PROMETHEUS_COUNTER,
                "Lines of the access log that could not be written.", value_of(&m->n_lost_line));
    write_count(s, "fathom_trace_spans_total", PROMETHEUS_COUNTER,
                "Spans that the collector of traces has taken.", v->traces.n_sent);
    write_count(s, "fathom_trace_lost_spans_total", PROMETHEUS_COUNTER,
                "Spans that it has not: too slow, gone, or not content.", v->traces.n_lost);
    write_count(s, "fathom_streams", PROMETHEUS_GAUGE, "Streams open.",
                (uint64_t)atomic_load(&m->n_stream));
    write_count(s, "fathom_connections", PROMETHEUS_GAUGE, "Connections open.", v->n_connection);
    write_count(s, "fathom_late_connections_total", PROMETHEUS_COUNTER,
                "Connections closed because a request did not come in time.", v->n_late);
    write_count(s, "fathom_dropped_connections_total", PROMETHEUS_COUNTER,
                "Connections closed to make room for others.", v->n_dropped);
    write_count(s, "fathom_unread_answer_bytes", PROMETHEUS_GAUGE,
                "Answers that wait for their clients to read; not what a stream holds back.",
                v->n_unread);
    write_count(s, "fathom_requests_in_flight", PROMETHEUS_GAUGE,
                "Requests from their complete body to the end of their answer.", v->n_job);
    write_count(s, "fathom_body_bytes_held", PROMETHEUS_GAUGE,
                "Bodies received and not yet parsed.", v->held_bytes);
    write_count(s, "fathom_body_tree_bytes_held", PROMETHEUS_GAUGE,
                "Memory of parsed bodies and of tools.", json_arenas_used());
    write_count(s, "fathom_answer_bytes_held", PROMETHEUS_GAUGE,
                "Memory of answers, from their first token until they have been read.",
                atomic_load(&m->n_answer_byte));
    write_ready(s, v);
    write_count(s, "fathom_draining", PROMETHEUS_GAUGE,
                "1 while requests in flight end and new ones are refused.", v->draining);
}

static void write_all(struct scrape *s, struct metrics *m, const struct metrics_view *v)
{
    write_vllm_state(s, m, v);
    write_vllm_drafts(s, v);
    write_tiers(s, v);
    write_kv_events(s, &v->stats->events);
    write_vllm_histograms(s, m);
    write_steps(s, v->stats);
    write_infos(s, v);
    write_engine(s, v);
    write_grammars(s, m, v);
    write_server(s, m, v);
    write_http(s, m, v);
    write_process(s, v);
}

fathom_err metrics_write(struct buf *b, struct metrics *m, const struct metrics_view *v)
{
    struct scrape s = {.b = b};
    prometheus_label(&s.labels, "model_name", v->model_name);
    prometheus_label(&s.labels, "engine", "0");
    if (v->gauges_alone) {
        write_vllm_gauges(&s, v->stats);
        write_infos(&s, v);
        write_lanes(&s, v);
        write_ready(&s, v);
    } else {
        write_all(&s, m, v);
    }
    if (buf_status(&s.labels) != FATHOM_OK) b->failed = true;
    buf_free(&s.labels);
    return buf_status(b);
}
