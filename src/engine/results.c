/* results.c - what a step gave, kept with its sequences and counted */
#include "engine/results.h"

#include "base/assert.h"

void results_keep_logprobs(struct sequence *q, const struct step_result *result, size_t i,
                           uint32_t n_output)
{
    uint32_t n_top = q->row.n_top;
    ASSERT(q->request.n_prompt + n_output < q->request.max_token);
    ASSERT(n_top == 0 || result->top_ids);
    if (q->logprobs) q->logprobs[n_output] = result->logprobs[i];
    for (uint32_t k = 0; k < n_top; k++) {
        q->tops[(size_t)n_output * n_top + k] = (fathom_logprob){
            result->top_ids[i * SAMPLE_TOP_MAX + k], result->top_logprobs[i * SAMPLE_TOP_MAX + k]};
    }
}

void results_keep_scores(struct sequence *q, const struct step_result *result, size_t i,
                         uint32_t n_score)
{
    uint32_t first = request_n_scored(&q->request);
    uint32_t n_top = q->n_prompt_top;
    ASSERT(first + n_score <= q->request.n_to_score);
    ASSERT(n_score == 0 || n_top == 0 || result->top_ids);
    for (uint32_t k = 0; k < n_score; k++, i++) {
        q->scores[first + k] = (struct prompt_score){result->logprobs[i], result->ranks[i]};
        for (uint32_t j = 0; j < n_top; j++) {
            q->prompt_tops[(size_t)(first + k) * n_top + j] =
                (fathom_logprob){result->top_ids[i * SAMPLE_TOP_MAX + j],
                                 result->top_logprobs[i * SAMPLE_TOP_MAX + j]};
        }
    }
}

uint32_t results_new_prompt_tokens(const struct plan_entry *entry)
{
    const struct request *r = entry->request;
    uint32_t from = entry->first > r->n_reached ? entry->first : r->n_reached;
    uint32_t to = entry->first + entry->n_token;
    if (to > r->n_prompt) to = r->n_prompt;
    return to > from ? to - from : 0;
}

void results_count_size(fathom_stats *s, uint32_t n_token)
{
    uint32_t i = n_token > 1, bound = 8;
    for (; i > 0 && i + 1 < FATHOM_STEP_SIZES && n_token > bound; bound *= 2) i++;
    s->n_step_by_size[i]++;
    s->n_step_token += n_token;
}
