/* admission.c - rates measured from steps, and what follows from them for a request that comes */
#include "engine/admission.h"

#include <math.h>

#include "base/assert.h"
#include "base/fail.h"

/* The slope of a line through steps that differ little in their prompt tokens is mostly noise: it
 * counts by spread^2 / (spread^2 + TRUSTED^2), and below LEAST not at all. */
#define LEAST_SPREAD_TOKENS 48.0
#define TRUSTED_SPREAD_TOKENS 256.0
/* Of the promised pace, what steps are planned for: they are not all alike. */
#define PACE_SHARE 0.9
/* A price not seen for so long is forgotten: whoever was refused by it could not correct it. */
#define TOKEN_MEMORY_US 60000000u
#define STEP_MEMORY (15.0 / 16)
#define END_WEIGHT (1.0 / 8)

/* ---- measuring ----------------------------------------------------------------------------- */

void admission_note_step(struct admission_rates *r, const struct admission_step *step,
                         uint64_t now_us)
{
    double x = step->n_prefill;
    double y = (double)step->us;
    r->w = r->w * STEP_MEMORY + 1;
    r->x = r->x * STEP_MEMORY + x;
    r->y = r->y * STEP_MEMORY + y;
    r->xx = r->xx * STEP_MEMORY + x * x;
    r->xy = r->xy * STEP_MEMORY + x * y;
    r->d = r->d * STEP_MEMORY + step->n_decode;
    double mean_x = r->x / r->w;
    double mean_y = r->y / r->w;
    double variance = r->xx / r->w - mean_x * mean_x;
    if (variance >= LEAST_SPREAD_TOKENS * LEAST_SPREAD_TOKENS) {
        double slope = (r->xy / r->w - mean_x * mean_y) / variance;
        double trust = variance / (variance + TRUSTED_SPREAD_TOKENS * TRUSTED_SPREAD_TOKENS);
        bool first = r->token_us <= 0;
        r->token_us += (first ? 1 : trust) * ((slope > 0 ? slope : 0) - r->token_us);
        r->token_seen_us = now_us;
    }
    double fixed_us = mean_y - r->token_us * mean_x;
    r->fixed_us = fixed_us > 1 ? fixed_us : 1;
    r->n_decode = r->d / r->w;
    r->n_place = step->short_of_pages ? step->n_running : 0;
    ASSERT(r->fixed_us >= 1 && r->token_us >= 0 && r->n_decode >= 0);
}

void admission_note_end(struct admission_rates *r, uint64_t held_us)
{
    double us = (double)held_us;
    r->hold_us = r->hold_us > 0 ? r->hold_us + (us - r->hold_us) * END_WEIGHT : us;
    ASSERT(r->hold_us >= 0);
}

/* ---- the model ----------------------------------------------------------------------------- */

/* What a prompt token costs, while that was seen lately. A request may have been stamped before the
 * rates that it meets: then it was seen just now. */
static double known_token_us(const struct admission_rates *r, uint64_t now_us)
{
    bool is_lately = now_us < r->token_seen_us || now_us - r->token_seen_us < TOKEN_MEMORY_US;
    return is_lately ? r->token_us : 0;
}

static uint32_t to_count(double value, uint32_t lo, uint32_t hi)
{
    ASSERT(lo <= hi);
    if (!(value > lo)) return lo;
    return value < hi ? (uint32_t)value : hi;
}

struct sched_bounds admission_bounds(const struct admission_config *c,
                                     const struct admission_rates *r)
{
    struct sched_bounds b = {.max_running = c->max_num_seqs,
                             .max_prefill = c->max_num_batched_tokens};
    ASSERT(c->max_num_seqs >= 1 && c->max_num_batched_tokens >= 1);
    if (c->tpot_us == 0 || r->fixed_us <= 0) return b;
    double tpot_us = (double)c->tpot_us * PACE_SHARE;
    if (r->n_decode >= 1) {
        b.max_running = to_count(r->n_decode * tpot_us / r->fixed_us, 1, c->max_num_seqs);
    }
    uint32_t least = ADMISSION_MIN_PREFILL < c->max_num_batched_tokens ? ADMISSION_MIN_PREFILL
                                                                       : c->max_num_batched_tokens;
    double n_prefill = c->max_num_batched_tokens;
    if (r->token_us > 0) {
        n_prefill = (tpot_us - r->fixed_us) / r->token_us;
    } else if (r->x > 0) {
        /* no two steps differ enough to tell a token's price: as if all time were the tokens' */
        n_prefill = tpot_us * r->x / r->y;
    }
    b.max_prefill = to_count(n_prefill, least, c->max_num_batched_tokens);
    ASSERT(b.max_running >= 1 && b.max_prefill >= 1); /* nobody starves */
    return b;
}

/* Requests that can run at once. */
static uint32_t n_place(const struct admission_config *c, const struct admission_rates *r)
{
    uint32_t n = admission_bounds(c, r).max_running;
    if (r->n_place && r->n_place < n) n = r->n_place;
    ASSERT(n >= 1 && n <= c->max_num_seqs);
    return n;
}

/* How long so many prompt tokens take, chunk by chunk beside the decodes. */
static double prefill_us(const struct admission_config *c, const struct admission_rates *r,
                         uint64_t n_token, uint64_t now_us)
{
    double chunk = admission_bounds(c, r).max_prefill;
    ASSERT(chunk <= c->max_num_batched_tokens);
    return ceil((double)n_token / chunk) * r->fixed_us +
           (double)n_token * known_token_us(r, now_us);
}

/* How long until one more request finds a place. */
static double place_us(const struct admission_config *c, const struct admission_rates *r,
                       const struct admission_load *load)
{
    double n = n_place(c, r);
    double n_over = (double)load->n_live + 1 - n;
    return n_over > 0 ? n_over * r->hold_us / n : 0;
}

uint64_t admission_first_token_us(const struct admission_config *c, const struct admission_rates *r,
                                  const struct admission_load *load, uint32_t n_prompt)
{
    if (r->w <= 0) return 0;
    double ahead_us = prefill_us(c, r, load->n_backlog_token, load->now_us);
    double wait_us = place_us(c, r, load);
    double own_us = prefill_us(c, r, n_prompt, load->now_us);
    return (uint64_t)((ahead_us > wait_us ? ahead_us : wait_us) + own_us);
}

/* ---- decisions ----------------------------------------------------------------------------- */

static void tell_ttft(const struct admission_config *c, const struct admission_rates *r,
                      const struct admission_load *load, uint64_t first_us, fathom_diag *d)
{
    double token_us = known_token_us(r, load->now_us);
    ASSERT(c->ttft_us > 0 && first_us > c->ttft_us);
    (void)diag_fail(d, FATHOM_EBUSY,
                    "the first token is expected after %.2f s and promised within %.2f s "
                    "(--slo-ttft-ms): %llu prompt tokens are ahead at %.0f a second, and %u "
                    "requests for %u places. Try again later",
                    (double)first_us / 1e6, (double)c->ttft_us / 1e6,
                    (unsigned long long)load->n_backlog_token, token_us > 0 ? 1e6 / token_us : 0,
                    load->n_live, n_place(c, r));
}

enum admission_verdict admission_judge(const struct admission_config *c,
                                       const struct admission_rates *r,
                                       const struct admission_load *load, uint32_t n_prompt,
                                       fathom_diag *d)
{
    uint64_t n_backlog = load->n_backlog_token;
    if (c->max_queued_tokens && n_backlog && n_backlog + n_prompt > c->max_queued_tokens) {
        (void)diag_fail(d, FATHOM_EBUSY,
                        "%llu prompt tokens wait to be computed and this prompt has %u; together "
                        "they may be %llu (--max-num-queued-tokens). Try again later",
                        (unsigned long long)n_backlog, n_prompt,
                        (unsigned long long)c->max_queued_tokens);
        return ADMISSION_TOKENS;
    }
    if (c->ttft_us == 0 || load->n_live == 0) return ADMISSION_TAKEN;
    uint64_t first_us = admission_first_token_us(c, r, load, n_prompt);
    if (first_us <= c->ttft_us) return ADMISSION_TAKEN;
    tell_ttft(c, r, load, first_us, d);
    return ADMISSION_TTFT;
}

uint64_t admission_retry_us(const struct admission_config *c, const struct admission_rates *r,
                            const struct admission_load *load)
{
    /* a place; a quarter of the prompt tokens that wait; what the promise is short of */
    double us = r->hold_us / n_place(c, r);
    if (c->max_queued_tokens && r->w > 0) {
        double tokens_us = prefill_us(c, r, load->n_backlog_token / 4, load->now_us);
        if (tokens_us > us) us = tokens_us;
    }
    double first_us = (double)admission_first_token_us(c, r, load, 1);
    if (c->ttft_us && first_us - (double)c->ttft_us > us) us = first_us - (double)c->ttft_us;
    return (uint64_t)us;
}

bool admission_has_expired(const struct admission_config *c, uint64_t submitted_us, uint64_t now_us)
{
    return c->ttft_us && now_us > submitted_us && now_us - submitted_us >= c->ttft_us;
}
