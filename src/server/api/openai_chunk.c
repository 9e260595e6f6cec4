/* openai_chunk.c - chunks and bodies that OpenAI's completions have in common */
#include "server/api/openai_chunk.h"

#include <math.h>
#include <string.h>

#include "base/json.h"
#include "server/api/sse.h"

/* {"id":..,"object":..,"created":..,"model":..,"system_fingerprint":..,"choices":[ */
static void write_head(struct buf *b, const struct answer *a, const char *object)
{
    (void)buf_add_char(b, '{');
    if (a->setup.request->api == API_GENERATE) {
        (void)buf_printf(b, "\"request_id\":\"%s\",", a->id);
    }
    (void)buf_printf(b, "\"id\":\"%s\",\"object\":\"%s\",\"created\":%lld,\"model\":", a->id,
                     object, (long long)a->setup.created);
    (void)json_write_string(b, a->setup.model, strlen(a->setup.model));
    (void)buf_add_str(b, ",\"system_fingerprint\":\"fathom-" FATHOM_VERSION "\",\"choices\":[");
}

static void write_usage(struct buf *b, const struct answer *a)
{
    struct answer_usage u = answer_count(a);
    (void)buf_printf(b,
                     ",\"usage\":{\"prompt_tokens\":%llu,\"completion_tokens\":%llu,"
                     "\"total_tokens\":%llu,\"prompt_tokens_details\":{\"cached_tokens\":%llu},"
                     "\"completion_tokens_details\":{\"reasoning_tokens\":%llu}}",
                     (unsigned long long)u.n_prompt, (unsigned long long)u.n_output,
                     (unsigned long long)(u.n_prompt + u.n_output), (unsigned long long)u.n_cached,
                     (unsigned long long)u.n_reasoning);
}

fathom_err openai_chunk_open(struct answer *a, const char *object)
{
    write_head(&a->head, a, object);
    return buf_status(&a->head);
}

void openai_chunk_begin(struct answer *a)
{
    sse_begin(&a->out);
    (void)buf_add(&a->out, buf_str(&a->head), a->head.len);
}

void openai_chunk_end(struct answer *a, bool tell_prompt)
{
    (void)buf_add_char(&a->out, ']');
    if (tell_prompt && a->setup.request->return_token_ids) {
        openai_write_ids(&a->out, "prompt_token_ids", &a->prompts[0].ids);
    }
    if (a->setup.request->continuous_usage) {
        write_usage(&a->out, a);
    } else if (a->setup.request->include_usage) {
        (void)buf_add_str(&a->out, ",\"usage\":null");
    }
    (void)buf_add_char(&a->out, '}');
    sse_end(&a->out);
}

fathom_err openai_write_flat(struct choice *c, void (*write_choice)(struct buf *, struct choice *),
                             bool tell_prompt)
{
    struct answer *a = c->answer;
    openai_chunk_begin(a);
    write_choice(&a->out, c);
    openai_chunk_end(a, tell_prompt);
    c->begun = true;
    buf_clear(&c->content);
    buf_clear(&c->ids);
    logprob_list_clear(&c->logprobs);
    return buf_status(&a->out);
}

void openai_write_ids(struct buf *b, const char *key, const struct buf *ids)
{
    (void)buf_printf(b, ",\"%s\":[", key);
    (void)buf_add(b, buf_str(ids), ids->len);
    (void)buf_add_char(b, ']');
}

void openai_write_scores(struct buf *b, const struct answer *a, size_t i)
{
    const struct buf *scores = &a->prompts[i].scores.tokens;
    if (!a->setup.request->prompt_logprobs) return;
    (void)buf_add_str(b, ",\"prompt_logprobs\":[null");
    (void)buf_add(b, buf_str(scores), scores->len);
    (void)buf_add_char(b, ']');
}

void openai_write_stop(struct buf *b, const struct choice *c)
{
    if (c->text.hit >= 0) {
        size_t n;
        const char *text = stop_set_text(c->text.o.stops, (size_t)c->text.hit, &n);
        (void)json_write_string(b, text, n);
    } else if (c->stop_id >= 0) {
        (void)buf_printf(b, "%d", c->stop_id);
    } else {
        (void)buf_add_str(b, "null");
    }
}

void openai_write_finish(struct buf *b, const struct choice *c)
{
    if (!c->finish_reason) {
        (void)buf_add_str(b, "\"finish_reason\":null");
        return;
    }
    (void)buf_printf(b, "\"finish_reason\":\"%s\",\"stop_reason\":", c->finish_reason);
    openai_write_stop(b, c);
}

static fathom_err close_stream(struct answer *a)
{
    if (a->setup.request->include_usage) {
        openai_chunk_begin(a);
        (void)buf_add_char(&a->out, ']');
        write_usage(&a->out, a);
        (void)buf_add_char(&a->out, '}');
        sse_end(&a->out);
    }
    sse_done(&a->out);
    return buf_status(&a->out);
}

/* No NaN, which has no place in an order: logits without a number give it. */
static double likelihood(const struct choice *c)
{
    const double mean = c->n_token ? c->sum_logprob / c->n_token : 0;
    return isnan(mean) ? -(double)INFINITY : mean;
}

/* Numbers the choices of each prompt that are told: the n_told likeliest, by the mean
 * log-probability of their tokens, the likeliest first. The others get UINT32_MAX. */
static void order_choices(struct answer *a)
{
    const struct api_request *r = a->setup.request;
    for (size_t i = 0; i < a->n_choice && r->n_told < r->n; i++) {
        struct choice *c = &a->choices[i];
        uint32_t place = 0;
        for (size_t k = c->i_prompt * (size_t)r->n; k < (c->i_prompt + 1) * (size_t)r->n; k++) {
            double other = likelihood(&a->choices[k]);
            place += other > likelihood(c) || (other == likelihood(c) && k < i);
        }
        c->index = place < r->n_told ? c->i_prompt * r->n_told + place : UINT32_MAX;
    }
}

/* In the order of their numbers. */
static void write_choices(struct buf *b, struct answer *a,
                          void (*write_choice)(struct buf *b, struct choice *c))
{
    size_t n_told = a->n_prompt * a->setup.request->n_told;
    order_choices(a);
    for (size_t n = 0; n < n_told; n++) {
        struct choice *c = a->choices;
        while (c->index != n) c++;
        if (n) (void)buf_add_char(b, ',');
        write_choice(b, c);
    }
}

/* Writes what the server that goes on with the prompt needs; a proxy passes it on. */
static void write_transfer(struct buf *b, const struct answer *a)
{
    const fathom_info *info = a->setup.info;
    if (!info->pages.host) return;
    (void)buf_add_str(b, ",\"kv_transfer_params\":{\"do_remote_prefill\":true,"
                         "\"do_remote_decode\":false,\"remote_block_ids\":[");
    uint32_t n = a->prompts[0].n_token / 64;
    for (uint32_t i = 0; i < n; i++) (void)buf_printf(b, i ? ",%u" : "%u", i);
    (void)buf_add_str(b, "],\"remote_engine_id\":");
    (void)json_write_string(b, info->pages.id, strlen(info->pages.id));
    (void)buf_printf(b, ",\"remote_request_id\":\"%s\",\"remote_host\":", a->id);
    (void)json_write_string(b, info->pages.host, strlen(info->pages.host));
    (void)buf_printf(b, ",\"remote_port\":%u,\"tp_size\":%u,\"remote_num_tokens\":%u}",
                     info->pages.port, info->world, a->prompts[0].n_token);
}

fathom_err openai_close(struct answer *a, const char *object,
                        void (*write_choice)(struct buf *b, struct choice *c))
{
    const struct api_request *r = a->setup.request;
    struct buf *b = &a->out;
    if (answer_is_streamed(a)) return close_stream(a);
    write_head(b, a, object);
    write_choices(b, a, write_choice);
    (void)buf_add_char(b, ']');
    write_usage(b, a);
    if (r->api != API_COMPLETION && r->return_token_ids) {
        openai_write_ids(b, "prompt_token_ids", &a->prompts[0].ids);
    }
    if (r->api != API_COMPLETION) openai_write_scores(b, a, 0);
    if (r->transfer.lends) write_transfer(b, a);
    (void)buf_add_char(b, '}');
    return buf_status(b);
}

fathom_err openai_fail(struct answer *a, const struct api_error *e)
{
    sse_begin(&a->out);
    (void)api_error_write(&a->out, e);
    sse_end(&a->out);
    sse_done(&a->out);
    return buf_status(&a->out);
}

fathom_err openai_keep_alive(struct answer *a)
{
    sse_idle(&a->out);
    return buf_status(&a->out);
}
