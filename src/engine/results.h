/* results.h - stores the results of a step in its sequences, and counts them */
#ifndef FATHOM_ENGINE_RESULTS_H
#define FATHOM_ENGINE_RESULTS_H

#include "engine/sequence.h"
#include "engine/step_runner.h"
#include "sched/sched.h"

/* results_keep_logprobs - store the log-probabilities of draw i for output token n_output, which it
 * becomes if it is accepted */
void results_keep_logprobs(struct sequence *q, const struct step_result *result, size_t i,
                           uint32_t n_output);

/* results_keep_scores - store the scores of prompt tokens from n_score sample rows, from row i on
 * */
void results_keep_scores(struct sequence *q, const struct step_result *result, size_t i,
                         uint32_t n_score);

/* results_new_prompt_tokens - how many prompt tokens the entry computes for the first time */
uint32_t results_new_prompt_tokens(const struct plan_entry *entry);

/* results_count_size - count a step of n_token tokens in the size classes of fathom_stats */
void results_count_size(fathom_stats *s, uint32_t n_token);

#endif
