/* rank_layout.c - both ways to cut a model, planned and compared */
#include "engine/rank_layout.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "backend/backend.h"
#include "base/assert.h"
#include "base/fail.h"
#include "base/limits.h"
#include "model/config.h"
#include "sched/request.h"

enum { LOAD_INPUT = 1024, LOAD_OUTPUT = 256 };

static const fathom_layout ways[LAYOUTS] = {FATHOM_LAYOUT_LATENCY, FATHOM_LAYOUT_THROUGHPUT};

const char *layout_name(fathom_layout layout)
{
    static const char *const names[] = {[FATHOM_LAYOUT_GIVEN] = "given",
                                        [FATHOM_LAYOUT_AUTO] = "auto",
                                        [FATHOM_LAYOUT_LATENCY] = "latency",
                                        [FATHOM_LAYOUT_THROUGHPUT] = "throughput"};
    ASSERT((size_t)layout < sizeof names / sizeof *names);
    return names[layout];
}

const char *layout_options(char out[LAYOUT_OPTIONS_BYTES], fathom_layout layout, uint32_t n_rank)
{
    const char *format =
        layout == FATHOM_LAYOUT_LATENCY ? "-tp %u" : "-dp %u --enable-expert-parallel";
    (void)snprintf(out, LAYOUT_OPTIONS_BYTES, format, n_rank);
    return out;
}

/* ---- what the options say -------------------------------------------------------------------- */

static fathom_err count_ranks(uint32_t *out, const fathom_options *o, fathom_diag *d)
{
    const uint32_t n_world = o->world > 1 ? o->world : 1;
    const uint32_t n_lane = o->data_parallel > 1 ? o->data_parallel : 1;
    const int n_gpu = o->backend == FATHOM_BACKEND_AUTO || o->backend == FATHOM_BACKEND_CUDA
                          ? backend_cuda_count()
                          : 0;
    *out = o->layout_ranks             ? o->layout_ranks
           : n_world > 1 || n_lane > 1 ? n_world * n_lane
           : o->n_device               ? o->n_device
                                       : (uint32_t)n_gpu;
    if (*out == 0) {
        FAIL(d, FATHOM_EINVAL,
             "there is no GPU that would say over how many ranks a model is cut: give --ranks");
    }
    if (*out > PARALLEL_RANKS_MAX) {
        FAIL(d, FATHOM_EINVAL, "--ranks %u is out of range, needed is 1 to %d", *out,
             PARALLEL_RANKS_MAX);
    }
    return FATHOM_OK;
}

/* Options that say what a layout says too. */
static fathom_err check_given(const fathom_options *o, fathom_diag *d)
{
    const char *name = layout_name(o->layout);
    const bool is_auto = o->layout == FATHOM_LAYOUT_AUTO;
    if (o->layout == FATHOM_LAYOUT_GIVEN) {
        if (o->layout_ranks > 0)
            FAIL(d, FATHOM_EINVAL,
                 "--ranks %u says over how many ranks --layout cuts a model: give --layout too",
                 o->layout_ranks);
        if (o->load.n_request > 0 || o->load.n_input > 0 || o->load.n_output > 0)
            FAIL(d, FATHOM_EINVAL,
                 "--concurrency, --input-len and --output-len say what --layout auto chooses by: "
                 "give it too");
        return FATHOM_OK;
    }
    if (o->rank_slice || o->hosts)
        FAIL(d, FATHOM_EINVAL, "--layout %s: with %s give --tensor-parallel-size instead", name,
             o->hosts ? "--nnodes" : "--rank-slice");
    if (o->world > 1 && o->layout != FATHOM_LAYOUT_LATENCY)
        FAIL(d, FATHOM_EINVAL,
             "--layout %s and --tensor-parallel-size %u%s: give one of them; --ranks %u with "
             "--layout says how many ranks there are",
             name, o->world, is_auto ? ", which is --layout latency" : "", o->world);
    if ((o->data_parallel > 1 || o->expert_parallel) && o->layout != FATHOM_LAYOUT_THROUGHPUT)
        FAIL(d, FATHOM_EINVAL, "--layout %s and %s, which is --layout throughput: give one of them",
             name, o->data_parallel > 1 ? "--data-parallel-size" : "--enable-expert-parallel");
    const uint32_t given = o->world > 1 ? o->world : o->data_parallel > 1 ? o->data_parallel : 0;
    if (given > 0 && o->layout_ranks > 0 && given != o->layout_ranks)
        FAIL(d, FATHOM_EINVAL, "--ranks %u and %s %u: give one of them", o->layout_ranks,
             o->world > 1 ? "--tensor-parallel-size" : "--data-parallel-size", given);
    return FATHOM_OK;
}

/* As the other options would give the layout. Each rank that has requests of its own runs its part
 * of the load's. */
static void give(fathom_options *out, fathom_layout layout, uint32_t n_rank)
{
    const bool is_latency = layout == FATHOM_LAYOUT_LATENCY;
    const uint32_t n_lane = is_latency ? 1 : n_rank;
    ASSERT(n_rank >= 1 && n_rank <= PARALLEL_RANKS_MAX);
    out->layout = FATHOM_LAYOUT_GIVEN;
    out->layout_ranks = 0;
    out->world = is_latency ? n_rank : 1;
    out->data_parallel = n_lane;
    out->expert_parallel = !is_latency && n_rank > 1;
    if (out->load.n_request > 0 && out->max_num_seqs == 0) {
        const uint32_t n = (out->load.n_request + n_lane - 1) / n_lane;
        out->max_num_seqs = n < LIMIT_NUM_SEQS ? n : LIMIT_NUM_SEQS;
    }
    out->load = (fathom_load){0};
}

/* ---- one way --------------------------------------------------------------------------------- */

/* Of a prompt that comes alone: by the ranks that have it, or all of them, but for a rest that is
 * too short to be shared. Of a shared step the last run takes longest, which sees most. Returns how
 * many steps it takes. */
static uint32_t expect_prompt(struct layout_plan *l, const struct rank_layout *all,
                              const struct model_config *config)
{
    uint32_t n_step = 0;
    const struct engine_settings *s = &l->settings;
    const uint32_t n_lane = s->place.parallel.dp.size > 1 ? s->place.parallel.dp.size : 1;
    const uint64_t n_input = all->load.n_input, least = (uint64_t)s->share_prompts * n_lane;
    const bool shares = n_lane > 1 && s->share_prompts > 0;
    l->shares_prompt = shares && n_input >= least;
    ASSERT(s->limits.max_token >= 1 && l->first_token_s <= 0);
    for (uint64_t first = 0, end; first < n_input; first = end, n_step++) {
        const bool is_shared = shares && n_input - first >= least;
        const uint64_t n_by = is_shared ? n_lane : 1, n_most = s->limits.max_token * n_by;
        end = first + n_most < n_input ? first + n_most : n_input;
        const double n_row = (double)(end - first) / (double)n_by;
        const struct step_rows rows = {.n_row = n_row,
                                       .n_request = 1,
                                       .first = (double)end - n_row,
                                       .last = (double)end,
                                       .n_logit = 1,
                                       .is_prompt = true,
                                       .n_lane = (uint32_t)n_by,
                                       .is_shared = is_shared};
        l->first_token_s += step_time(&all->machine, s, &l->memory, config, &rows);
    }
    return n_step;
}

/* Of a prompt among others that come when they come, n_beside in its steps on average: all of them
 * together take as long as one alone, but no less than what all lanes need for so much. It falls
 * with n_beside, because that makes few less likely. */
static double mean_prompt_time(double alone_s, double least_s, double n_beside)
{
    double s = least_s, chance = exp(-n_beside);
    ASSERT(least_s > 0 && n_beside >= 0);
    for (uint32_t n = 1; alone_s / n > least_s; n++) {
        s += chance * (alone_s / n - least_s);
        chance *= n_beside / n;
    }
    return s;
}

/* What is expected of it. As many requests end in a step as one has of its tokens, and as many
 * prompts are computed. The lane that has most requests is waited for; experts are hit by all that
 * there are. */
static void expect(struct layout_plan *l, const struct rank_layout *all,
                   const struct model_config *config)
{
    const struct engine_settings *s = &l->settings;
    const fathom_load *load = &all->load;
    const uint32_t n_lane = s->place.parallel.dp.size > 1 ? s->place.parallel.dp.size : 1;
    const uint32_t n_page = request_n_page(load->n_input + load->n_output);
    uint64_t n_running = l->memory.n_page / n_page;
    if (n_running > s->max_num_seqs) n_running = s->max_num_seqs;
    n_running *= n_lane;
    l->n_token = l->memory.n_token_capacity * n_lane;
    l->n_running = (uint32_t)(n_running < load->n_request ? n_running : load->n_request);
    if (l->n_running == 0) return;
    const uint32_t n_here = (l->n_running + n_lane - 1) / n_lane;
    const double n_row = n_here;
    ASSERT(n_page > 0 && (uint64_t)n_here * n_page <= l->memory.n_page);
    const double n_input = load->n_input, n_chunk = s->limits.max_token;
    const struct step_rows decode = {.n_row = n_row,
                                     .n_request = n_row,
                                     .first = n_input,
                                     .last = n_input + load->n_output,
                                     .n_logit = n_row,
                                     .n_lane = l->n_running / n_row};
    const struct step_rows prompts = {.n_row = n_chunk,
                                      .n_request = n_chunk > n_input ? n_chunk / n_input : 1,
                                      .last = n_input,
                                      .n_logit = 1,
                                      .is_prompt = true};
    l->step_s = step_time(&all->machine, s, &l->memory, config, &decode);
    l->prompt_tokens_per_s =
        n_lane * n_chunk / step_time(&all->machine, s, &l->memory, config, &prompts);
    const double n_step = expect_prompt(l, all, config);
    const double n_prompt = (double)l->n_running / load->n_output;
    const double n_beside = (l->n_running - 1) * n_step / (n_step + load->n_output - 1);
    const double prompt_s =
        mean_prompt_time(l->first_token_s, n_input / l->prompt_tokens_per_s, n_beside);
    l->output_tokens_per_s = l->n_running / (l->step_s + n_prompt * prompt_s);
}

static fathom_err plan_way(struct layout_plan *l, const fathom_options *o,
                           const struct rank_layout *all, const struct model_config *config,
                           const struct checkpoint *c, uint64_t available_bytes)
{
    fathom_options as = *o;
    fathom_diag *d = &l->why;
    ASSERT(all->load.n_request > 0 && all->n_rank > 0);
    as.load.n_request = all->load.n_request;
    give(&as, l->layout, all->n_rank);
    TRY(settings_resolve(&l->settings, &as, config, d));
    return memory_plan_fit(&l->memory, &l->settings, config, c, available_bytes, d);
}

/* ---- both ------------------------------------------------------------------------------------ */

static bool is_better(const struct rank_layout *r, int than, int i)
{
    const struct layout_plan *l = &r->plans[i];
    if (l->err || l->n_running == 0) return false;
    ASSERT(l->step_s > 0 && l->output_tokens_per_s > 0);
    return than < 0 || l->output_tokens_per_s > r->plans[than].output_tokens_per_s;
}

/* "throughput over 8 ranks: 512 requests of 2048 + 256 tokens, 8900 tokens/s predicted; latency:
 * 5100, 430 at once" */
static void write_reason(struct rank_layout *r)
{
    const struct layout_plan *l = &r->plans[r->chosen], *other = &r->plans[1 - r->chosen];
    int n = snprintf(r->reason, sizeof r->reason,
                     "%s over %u ranks: %u requests of %u + %u tokens, of which %u run at once, "
                     "%.0f tokens/s predicted; %s: ",
                     layout_name(l->layout), r->n_rank, r->load.n_request, r->load.n_input,
                     r->load.n_output, l->n_running, l->output_tokens_per_s,
                     layout_name(other->layout));
    ASSERT(n > 0 && (size_t)n < sizeof r->reason);
    if (other->err) {
        (void)snprintf(r->reason + n, sizeof r->reason - (size_t)n, "%s", other->why.text);
    } else {
        (void)snprintf(r->reason + n, sizeof r->reason - (size_t)n, "%u at once, %.0f",
                       other->n_running, other->output_tokens_per_s);
    }
}

fathom_err rank_layout_compare(struct rank_layout *out, const fathom_options *o,
                               const struct model_config *config, const struct checkpoint *c,
                               uint64_t available_bytes, fathom_diag *d)
{
    *out = (struct rank_layout){.load = o->load, .chosen = -1};
    fathom_load *load = &out->load;
    TRY(count_ranks(&out->n_rank, o, d));
    if (load->n_request == 0)
        load->n_request = o->max_num_seqs ? o->max_num_seqs : SETTINGS_MAX_NUM_SEQS;
    if (load->n_input == 0) load->n_input = LOAD_INPUT;
    if (load->n_output == 0) load->n_output = LOAD_OUTPUT;
    const uint32_t context = o->max_model_len ? o->max_model_len : config->max_position;
    if ((uint64_t)load->n_input + load->n_output > context) {
        FAIL(d, FATHOM_EINVAL,
             "--input-len %u and --output-len %u are more than a request may have, %u tokens: give "
             "less, or a larger --max-model-len",
             load->n_input, load->n_output, context);
    }
    for (int i = 0; i < LAYOUTS; i++) {
        struct layout_plan *l = &out->plans[i];
        l->layout = ways[i];
        l->err = plan_way(l, o, out, config, c, available_bytes);
        if (l->err) continue;
        machine_figures_find(&out->machine, &l->settings, l->memory.available_bytes);
        expect(l, out, config);
        if (is_better(out, out->chosen, i)) out->chosen = i;
    }
    if (out->chosen >= 0) write_reason(out);
    return FATHOM_OK;
}

fathom_err rank_layout_resolve(fathom_options *out, struct rank_layout *choice,
                               const fathom_options *o, const struct model_config *config,
                               const struct checkpoint *c, uint64_t available_bytes, fathom_diag *d)
{
    *out = *o;
    *choice = (struct rank_layout){0};
    TRY(check_given(o, d));
    if (o->layout == FATHOM_LAYOUT_GIVEN) return FATHOM_OK;
    if (o->layout != FATHOM_LAYOUT_AUTO) {
        uint32_t n_rank;
        TRY(count_ranks(&n_rank, o, d));
        give(out, o->layout, n_rank);
        return FATHOM_OK;
    }
    TRY(rank_layout_compare(choice, o, config, c, available_bytes, d));
    if (choice->chosen < 0) {
        const struct layout_plan *l = &choice->plans[0];
        if (l->err) return diag_fail(d, l->err, "--layout auto: %s", l->why.text);
        FAIL(d, FATHOM_ENOMEM,
             "--layout auto: the cache of a rank holds %llu tokens, and one "
             "request has %u + %u",
             (unsigned long long)l->memory.n_token_capacity, choice->load.n_input,
             choice->load.n_output);
    }
    give(out, choice->plans[choice->chosen].layout, choice->n_rank);
    return FATHOM_OK;
}
