/* op_sample.h - logits to tokens: arguments and meaning */
#ifndef FATHOM_BACKEND_OP_SAMPLE_H
#define FATHOM_BACKEND_OP_SAMPLE_H

#include <stdint.h>

struct buffer;

enum { SAMPLE_TOP_MAX = 20 };
#define SAMPLE_NONE UINT32_MAX

struct sample_bias {
    int32_t id;
    float bias;
};

/* One row to sample. Offsets are into the flat arrays of struct sample_args. */
struct sample_row {
    uint32_t logit_row;
    float temperature;        /* 0: greedy */
    float top_p;              /* 1: off */
    float min_p;              /* 0: off */
    int32_t top_k;            /* <= 0: off */
    float repetition_penalty; /* 1: off */
    float presence_penalty;   /* 0: off */
    float frequency_penalty;  /* 0: off */
    uint64_t seed;
    uint64_t position; /* of the token being drawn: the draw is keyed by (seed, position) */
    uint32_t n_top;    /* alternatives wanted, 0 .. SAMPLE_TOP_MAX */
    uint32_t want_logprob;
    uint32_t is_given; /* the token is given_id: nothing is drawn, only logprob and top are told */
    int32_t given_id;
    uint32_t history_offset; /* ids: n_prompt of the prompt, then n_output of the output */
    uint32_t n_prompt;
    uint32_t n_output;
    uint32_t bias_offset;
    uint32_t n_bias;
    uint32_t ban_offset; /* ids that must not be drawn */
    uint32_t n_ban;
    uint32_t mask_offset;  /* u32 words, bit set: allowed; SAMPLE_NONE: no mask */
    uint32_t n_vocab_used; /* ids from here on are never drawn */
};

/* logit_row_owner - the rank that has a row of LOGITS whole, and draws from it */
static inline uint32_t logit_row_owner(uint32_t logit_row, uint32_t n_rank)
{
    return logit_row % n_rank;
}

/* sample - draw one token a row, or tell how likely a given one is
 *
 *   logprob and top are of the raw logits of every row of the head: x - logsumexp(x) over V ids,
 *   those from n_vocab_used on among them
 *   then, in this order: mask, bans and n_vocab_used (-inf); bias; repetition penalty over prompt
 *   and output (x > 0 ? x / r : x * r); frequency and presence penalty over the output
 *   temperature 0: the largest, ties to the lower id
 *   else x / temperature; min_p (probability below min_p times the largest goes); top_k (ties to
 *   the lower id); top_p (the smallest set of most probable ids whose sum reaches top_p); then the
 *   largest of x_i + gumbel(seed, position, i) among what is left, ties to the lower id
 *   An id counts once for the repetition and presence penalties. Each cut-off works on what the one
 *   before left, its probabilities scaled to sum to 1.
 *
 *   logits   LOGITS; rows to sample may share one
 *   rows     struct sample_row [n_row], device
 *   history, bias, ban, mask   device; may be NULL when no row uses them
 *   ids      i32 [n_row], device, written
 *   logprobs f32 [n_row], device, written; 0 without want_logprob
 *   ranks    u32 [n_row], device, written: the token's place among all V ids by raw logit, from 1
 *            on, ties to the lower id; 0 without want_logprob
 *   top_ids, top_logprobs  [n_row][SAMPLE_TOP_MAX], device, descending; ties to the lower id
 * Several ranks: a row is drawn by its logit row's owner; what is written is equal on all ranks.
 * Needs    given rows behind all others: rows that draw may need scratch memory, by row; penalties
 *          and temperatures by which no finite logit becomes infinite
 * Edge     everything banned: the lowest id of what the mask allows, else id 0.
 *          NaN logits count as -inf. A given id from V on, which a slice of a rank may get, has
 *          logprob -inf and comes last.
 */
struct sample_args {
    struct buffer *logits;
    uint32_t n_row;
    const struct sample_row *rows;
    const int32_t *history;
    const struct sample_bias *bias;
    const int32_t *ban;
    const uint32_t *mask;
    int32_t *ids;
    float *logprobs;
    uint32_t *ranks;
    int32_t *top_ids;
    float *top_logprobs;
};

#endif
