/* throughput.c - many requests given to an engine at once */
#include "bench/throughput.h"

#include <string.h>

#include "base/clock.h"
#include "base/fail.h"
#include "base/mem.h"

enum { EVENTS = 256 };

/* What is under way: requests [0, n_submitted) are, of which n_finished are over. */
struct drive {
    fathom_engine *engine;
    struct token_list *prompts; /* [n] */
    const struct dataset_item *items;
    size_t n;
    size_t n_submitted;
    size_t n_finished;
};

static fathom_err encode_prompts(struct drive *v, const struct tokenizer *t, int32_t bos_id)
{
    for (size_t i = 0; i < v->n; i++) {
        if (bos_id >= 0) TRY(token_list_add(&v->prompts[i], bos_id));
        TRY(tokenizer_encode(t, v->items[i].prompt, v->items[i].n_byte, TOKENIZER_MARKUP_ON,
                             &v->prompts[i]));
    }
    return FATHOM_OK;
}

/* Submits until all are, or the queue is full. */
static fathom_err submit_some(struct drive *v, fathom_diag *d)
{
    while (v->n_submitted < v->n) {
        const struct token_list *prompt = &v->prompts[v->n_submitted];
        fathom_request r = {.prompt = prompt->ids, .n_prompt = (uint32_t)prompt->n};
        fathom_sampling_init(&r.sampling);
        r.sampling.ignore_eos = true;
        r.sampling.has_seed = true;
        r.sampling.seed = v->n_submitted;
        r.sampling.max_tokens = v->items[v->n_submitted].n_output;
        uint64_t id;
        fathom_diag refusal = {{0}};
        fathom_err err = fathom_submit(v->engine, &r, &id, &refusal);
        if (err == FATHOM_EBUSY && v->n_submitted > v->n_finished) return FATHOM_OK;
        if (err) {
            FAIL(d, err, "request %zu of %zu: %s", v->n_submitted + 1, v->n, refusal.text);
        }
        v->n_submitted++;
    }
    return FATHOM_OK;
}

static fathom_err drive(struct drive *v, fathom_event *events, struct throughput_result *out,
                        fathom_diag *d)
{
    while (v->n_finished < v->n) {
        TRY(submit_some(v, d));
        size_t n = fathom_poll(v->engine, events, EVENTS, -1);
        for (size_t i = 0; i < n; i++) {
            const fathom_event *ev = &events[i];
            if (ev->kind != FATHOM_EVENT_FINISH) continue;
            if (ev->finish == FATHOM_FINISH_ERROR) {
                FAIL(d, FATHOM_EDEVICE, "the engine failed: %s", fathom_fault(v->engine));
            }
            out->n_input += ev->n_prompt;
            out->n_output += ev->n_output;
            out->n_cached += ev->n_cached;
            v->n_finished++;
        }
    }
    return FATHOM_OK;
}

fathom_err throughput_run(struct throughput_result *out, fathom_engine *e,
                          const struct dataset_item *items, size_t n, const struct tokenizer *t,
                          int32_t bos_id, fathom_diag *d)
{
    struct drive v = {.engine = e, .items = items, .n = n};
    fathom_event *events = mem_alloc_array(EVENTS, sizeof *events);
    v.prompts = mem_calloc(n, sizeof *v.prompts);
    fathom_err err = events && v.prompts ? FATHOM_OK : FATHOM_ENOMEM;
    memset(out, 0, sizeof *out);
    if (!err) err = encode_prompts(&v, t, bos_id);
    uint64_t start_us = clock_now_us();
    if (!err) err = drive(&v, events, out, d);
    out->seconds = (double)(clock_now_us() - start_us) / 1e6;
    out->n_request = v.n_finished;
    for (size_t i = 0; v.prompts && i < n; i++) token_list_free(&v.prompts[i]);
    mem_free(v.prompts);
    mem_free(events);
    return err;
}

fathom_err throughput_write_json(struct buf *b, const struct throughput_result *r,
                                 const fathom_info *info)
{
    double s = r->seconds > 0 ? r->seconds : 1;
    (void)buf_printf(b,
                     "{\"elapsed_time\": %.6f, \"num_requests\": %zu, \"total_num_tokens\": %llu, "
                     "\"requests_per_second\": %.4f, \"tokens_per_second\": %.3f",
                     r->seconds, r->n_request, (unsigned long long)(r->n_input + r->n_output),
                     (double)r->n_request / s, (double)(r->n_input + r->n_output) / s);
    (void)buf_printf(b,
                     ", \"output_tokens_per_second\": %.3f, \"total_input_tokens\": %llu, "
                     "\"total_output_tokens\": %llu, \"cached_input_tokens\": %llu",
                     (double)r->n_output / s, (unsigned long long)r->n_input,
                     (unsigned long long)r->n_output, (unsigned long long)r->n_cached);
    return buf_printf(b,
                      ", \"model_type\": \"%s\", \"backend\": \"%s\", \"max_num_seqs\": %u, "
                      "\"max_num_batched_tokens\": %u}\n",
                      info->model_type, info->backend, info->max_num_seqs,
                      info->max_num_batched_tokens);
}
