/* results.h - what a step gave, kept with its sequences and counted */
#ifndef FATHOM_ENGINE_RESULTS_H
#define FATHOM_ENGINE_RESULTS_H

#include "engine/sequence.h"
#include "engine/step_runner.h"
#include "sched/sched.h"

/* results_keep_logprobs - of draw i, with output token n_output, which it may become */
void results_keep_logprobs(struct sequence *q, const struct step_result *result, size_t i,
                           uint32_t n_output);

/* results_keep_scores - what n_score sample rows from i on tell of prompt tokens */
void results_keep_scores(struct sequence *q, const struct step_result *result, size_t i,
                         uint32_t n_score);

/* results_new_prompt_tokens - prompt tokens that the entry computes for the first time */
uint32_t results_new_prompt_tokens(const struct plan_entry *entry);

/* results_count_size - one more step of so many tokens, in the classes of fathom_stats */
void results_count_size(fathom_stats *s, uint32_t n_token);

#endif
