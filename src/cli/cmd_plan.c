/* cmd_plan.c - fathom plan: where every byte goes, before anything is loaded */
#include <stdio.h>

#include "base/assert.h"
#include "base/limits.h"
#include "base/numa.h"
#include "cli/model_plan.h"

static void print_size(const char *name, uint64_t bytes)
{
    char a[SIZE_TEXT_BYTES], b[SIZE_TEXT_BYTES];
    printf("  %-28s %12s %24s\n", name, size_text(a, bytes), count_text(b, bytes));
}

static void print_weights(const struct memory_plan *p)
{
    printf("weights\n");
    for (int k = 0; k < WEIGHT_KIND_COUNT; k++) {
        uint64_t bytes = p->weights.kind[k].bytes;
        if (bytes) print_size(weight_kind_name((enum weight_kind)k), bytes);
    }
    print_size("weights, together", p->weights_bytes);
}

static void print_cache(const struct memory_plan *p, const struct engine_settings *s)
{
    static const char *const types[] = {
        [KV_TYPE_F32] = "float32", [KV_TYPE_BF16] = "bfloat16", [KV_TYPE_FP8] = "fp8"};
    char a[SIZE_TEXT_BYTES], b[SIZE_TEXT_BYTES];
    printf("\ncache (%s)\n", types[p->kv.type]);
    print_size("one token, all layers", p->token_bytes);
    print_size("one page of 64 tokens", p->kv.page_bytes);
    print_size("one request", (uint64_t)p->request_pages * p->kv.page_bytes);
    print_size("cache, together", p->kv_bytes);
    printf("  %s tokens in %s pages: ", count_text(a, p->n_token_capacity),
           count_text(b, p->n_page));
    if (p->n_page >= p->n_page_wanted) {
        printf("all %u requests of %s tokens at once", s->max_num_seqs,
               count_text(a, s->limits.max_context));
        uint64_t beside = (uint64_t)(p->n_page - p->n_page_wanted) * KV_PAGE_TOKENS;
        if (beside) printf(", and %s tokens of other prefixes", count_text(b, beside));
        printf("\n");
    } else {
        printf("%.1f requests of %s tokens, of %u wanted\n",
               p->request_pages ? (double)p->n_page / p->request_pages : 0.0,
               count_text(a, s->limits.max_context), s->max_num_seqs);
    }
}

static void print_tiers(const struct memory_plan *p)
{
    char a[SIZE_TEXT_BYTES], b[SIZE_TEXT_BYTES];
    if (p->n_ram_page == 0) return;
    printf("\npages outside of the cache\n");
    print_size("host memory", p->ram_bytes);
    if (p->n_disk_page) print_size("directory", p->disk_bytes);
    printf("  %s tokens in memory, %s on disk\n",
           count_text(a, (uint64_t)p->n_ram_page * KV_PAGE_TOKENS),
           count_text(b, (uint64_t)p->n_disk_page * KV_PAGE_TOKENS));
}

/* What may be used and is not, and why. */
static void print_rest(const struct memory_plan *p, const struct engine_settings *s)
{
    char a[SIZE_TEXT_BYTES];
    const uint64_t page_bytes = p->kv.page_bytes;
    ASSERT(page_bytes > 0);
    uint64_t rest = p->usable_bytes > p->total_bytes ? p->usable_bytes - p->total_bytes : 0;
    print_size("left empty", rest);
    if (rest < page_bytes) return;
    if (p->is_modest && p->n_page >= p->n_page_wanted) {
        printf(
            "  on a CPU, whose memory other programs use too, the cache has room for all requests; "
            "for more prefixes, give --kv-cache-memory-bytes %llu (%s) at most\n",
            (unsigned long long)(p->kv_bytes + rest / page_bytes * page_bytes),
            size_text(a, p->kv_bytes + rest));
    } else if (s->kv_cache_bytes) {
        printf("  the cache is as large as --kv-cache-memory-bytes says\n");
    } else if (s->kv_cache_pages) {
        printf("  the cache has as many tokens as were given\n");
    }
}

/* Not in the sums above: memory of the host, taken as requests come and given back as they go. */
static void print_requests(void)
{
    printf("\nrequests, at the most (host memory)\n");
    print_size("bodies", LIMIT_HTTP_HELD_BYTES);
    print_size("bodies, parsed", LIMIT_JSON_TREES_BYTES);
    print_size("answers", LIMIT_ANSWERS_BYTES);
    print_size("stored responses", LIMIT_STORED_BYTES);
    print_size("grammars", LIMIT_GRAMMAR_CACHE_BYTES);
}

/* What is above is the first stage's. */
static void print_stages(const struct memory_plan *p)
{
    char a[SIZE_TEXT_BYTES], b[SIZE_TEXT_BYTES], c[SIZE_TEXT_BYTES];
    if (p->n_stage == 1) return;
    printf("\n%-14s %12s %12s %12s %12s\n", "stage", "layers", "weights", "cache", "needed");
    for (uint32_t i = 0; i < p->n_stage; i++) {
        const struct memory_stage *s = &p->stages[i];
        char layers[32];
        ASSERT(s->layers.first < s->layers.end);
        (void)snprintf(layers, sizeof layers, "%u to %u", s->layers.first, s->layers.end - 1);
        printf("  %-12u %12s %12s %12s %12s\n", i, layers, size_text(a, s->weights_bytes),
               size_text(b, s->kv_bytes), size_text(c, s->total_bytes));
    }
}

static void print_plan(const struct memory_plan *p, const struct engine_settings *s)
{
    print_weights(p);
    print_cache(p, s);
    print_tiers(p);
    printf("\nstep of %u tokens, of up to %u requests (%s)\n", s->limits.max_token, s->max_num_seqs,
           s->seqs_why ? s->seqs_why : "as --max-num-seqs says");
    for (uint32_t i = 0; i < p->n_buffer; i++) print_size(p->buffers[i].name, p->buffers[i].bytes);
    print_size("arrays", p->step_bytes);
    if (p->padding_bytes) print_size("padding rows' page", p->padding_bytes);
    printf("\n");
    print_size("needed, together", p->total_bytes);
    print_size("may be used", p->usable_bytes);
    print_rest(p, s);
    print_size("available", p->available_bytes);
    print_stages(p);
    print_requests();
}

static void print_form(void *arg, const char *line)
{
    (void)arg;
    print_row("coded", "%s", line);
}

/* Of this machine, whatever --memory says. */
static void print_nodes(uint32_t n_rank)
{
    char text[NUMA_TEXT_BYTES];
    struct numa_map nodes;
    numa_read(&nodes, NULL);
    print_row("placed", "%s", numa_text(text, &nodes, n_rank));
}

/* ---- layouts --------------------------------------------------------------------------------- */

static void print_load(const struct rank_layout *r)
{
    char a[SIZE_TEXT_BYTES], b[SIZE_TEXT_BYTES], c[SIZE_TEXT_BYTES];
    print_row("load", "%s requests at once, each of %s tokens and an answer of %s",
              count_text(a, r->load.n_request), count_text(b, r->load.n_input),
              count_text(c, r->load.n_output));
    if (r->machine.name)
        print_row("figures", "%s; times are predictions from bytes and operations, not measured",
                  r->machine.name);
    printf("\n");
}

static void print_layout(const struct rank_layout *r, const struct layout_plan *l)
{
    char options[LAYOUT_OPTIONS_BYTES], a[SIZE_TEXT_BYTES], b[SIZE_TEXT_BYTES];
    printf("%s: %s\n", layout_name(l->layout), layout_options(options, l->layout, r->n_rank));
    if (l->err) {
        printf("  cannot be: %s\n\n", l->why.text);
        return;
    }
    const struct memory_plan *p = &l->memory;
    ASSERT(p->total_bytes >= p->weights_bytes + p->kv_bytes);
    print_size("weights of a rank", p->weights_bytes);
    print_size("cache of a rank", p->kv_bytes);
    print_size("all else of a rank", p->total_bytes - p->weights_bytes - p->kv_bytes);
    printf("  %-28s %12s\n", "tokens in all caches", count_text(a, l->n_token));
    printf("  %-28s %12u of %u\n", "requests at once", l->n_running, r->load.n_request);
    if (l->n_running == 0) {
        printf("  cannot be: a rank's cache does not hold one request\n\n");
        return;
    }
    printf("  %-28s %9.1f ms\n", "decode step, predicted", 1e3 * l->step_s);
    printf("  %-28s %9.1f ms%s\n", "first token, a prompt alone", 1e3 * l->first_token_s,
           l->shares_prompt ? ", computed by all ranks" : "");
    printf("  %-28s %12s\n", "prompt tokens/s", count_text(a, (uint64_t)l->prompt_tokens_per_s));
    printf("  %-28s %12s with the load's prompts in between, %.1f ms a token\n", "output tokens/s",
           count_text(b, (uint64_t)l->output_tokens_per_s),
           1e3 * l->n_running / l->output_tokens_per_s);
    printf("\n");
}

static void print_layouts(const struct rank_layout *r)
{
    print_load(r);
    for (int i = 0; i < LAYOUTS; i++) print_layout(r, &r->plans[i]);
    if (r->chosen < 0)
        printf("neither can be\n\n");
    else
        printf("--layout auto takes %s\n\n", r->reason);
}

/* Those of a host, where there are several. */
static void print_ranks(const struct model_plan *p)
{
    const unsigned n = settings_n_rank(&p->settings);
    char hosts[40] = "";
    if (p->hosts.n_node > 1)
        (void)snprintf(hosts, sizeof hosts, " on each of %u hosts", p->hosts.n_node);
    if (p->plan.n_stage > 1) {
        print_row("ranks", "%u%s, of %u stages; what follows is of each of the first", n, hosts,
                  p->plan.n_stage);
    } else if (n > 1 || hosts[0]) {
        print_row("ranks", "%u%s; what follows is of each", n, hosts);
    }
}

fathom_err cmd_plan(const struct invocation *v, fathom_diag *d)
{
    struct model_plan p;
    fathom_err err = model_plan_make(&p, v, !v->settings->dry_run, d);
    if (p.layout.n_rank > 0) print_layouts(&p.layout);
    if (err == FATHOM_OK || p.plan.total_bytes) {
        print_row("model", "%s (%s)%s", v->model->name, p.config.model_type,
                  p.checkpoint ? "" : ", planned from the configuration alone");
        print_ranks(&p);
        if (p.settings.backend == FATHOM_BACKEND_CPU) print_nodes(settings_n_rank(&p.settings));
        model_plan_each_form(&p, print_form, NULL);
        printf("\n");
        print_plan(&p.plan, &p.settings);
        (void)fflush(stdout);
    }
    if (!err) err = model_plan_check_weights(&p, d);
    model_plan_close(&p);
    return err;
}
