/* job_resume.c - streams that another server can go on with, and those that go on here
 *
 * Of a stream with a pass (stream_pass.h) each token is told behind what it has brought, as a
 * comment that clients pass over:
 *
 *     data: {...}
 *
 *     : token 5021
 *
 * A token whose log-probability waits for text is told once it has left, since who goes on behind
 * the token does not know it; in one comment with those that have waited: `: token 36 5021`.
 *
 * When this server cannot go on, that is told likewise before the error, which in some APIs has no
 * code; other errors are the request's own, and any server would say them:
 *
 *     : lost
 *
 * A request with the pass and, in `resume`, the tokens that were told, goes on behind them: the
 * answer takes them once more and its bytes are dropped, the engine is given them as its own
 * output. What follows is what the other server would have sent, to the byte. A stop token is not
 * told, for nothing is lost by drawing it again.
 */
#include <string.h>

#include "base/fail.h"
#include "base/rng.h"
#include "server/job.h"

/* A choice's log-probabilities are part of a response's last event, and are not known here; those
 * of a prompt have left before its first token. */
static bool is_resumable(const struct job *job)
{
    const struct api_request *r = &job->request;
    bool retold = r->api == API_RESPONSES && r->sampling.logprobs;
    return job->pass.is_on && r->stream && job->answer.n_choice == 1 && !retold &&
           !r->sampling.prompt_logprobs;
}

/* Tokens that the answer may have. */
static uint64_t most_tokens(const struct job *job)
{
    const struct api_request *r = &job->request;
    const uint64_t n_room = job->jobs->served->info->max_model_len - job->prompts[0].n;
    return r->sampling.max_tokens ? r->sampling.max_tokens : n_room;
}

fathom_err job_check_resume(struct job *job)
{
    const struct api_request *r = &job->request;
    if (job->pass.is_on && !r->sampling.has_seed) {
        job->request.sampling.has_seed = true;
        job->request.sampling.seed = rng_mix(job->pass.nonce, 0, 2);
    }
    job->tells_tokens = is_resumable(job);
    if (r->n_resume == 0) return FATHOM_OK;
    if (r->n_resume > most_tokens(job)) { /* nobody has told them, and they are gone over locked */
        return api_error_set(&job->error, 400, "invalid_value", "resume",
                             "resume has %u tokens, the answer has %llu at most", r->n_resume,
                             (unsigned long long)most_tokens(job));
    }
    if (job->tells_tokens) return FATHOM_OK;
    return api_error_set(&job->error, 400, "unsupported_parameter", "resume",
                         "resume is for streams of one choice without prompt_logprobs that a "
                         "router has given its pass (" STREAM_PASS_HEADER ")");
}

/* What the other server has sent is dropped, but an end is news: its last bytes may be lost. */
fathom_err job_replay(struct job *job, bool *ended)
{
    const struct api_request *r = &job->request;
    struct answer *a = &job->answer;
    bool stopped = false;
    *ended = false;
    TRY(answer_start(a));
    for (uint32_t i = 0; i < r->n_resume && !stopped; i++) {
        const fathom_event e = {.kind = FATHOM_EVENT_TOKEN, .token = r->resume[i], .stop_id = -1};
        TRY(answer_token(a, 0, &e, &stopped));
        buf_clear(&a->out);
    }
    *ended = stopped || r->n_resume == most_tokens(job);
    if (!*ended) return FATHOM_OK;
    const fathom_event e = {
        .kind = FATHOM_EVENT_FINISH, .finish = FATHOM_FINISH_LENGTH, .stop_id = -1};
    return answer_finish(a, 0, &e);
}

fathom_err job_tell_token(struct job *job, const fathom_event *e)
{
    if (!job->tells_tokens || e->is_stop || job->answer.closed) return FATHOM_OK;
    TRY(buf_printf(&job->untold, " %d", (int)e->token));
    if (job->answer.choices[0].logprobs.n > 0) return FATHOM_OK;
    fathom_err err = buf_printf(&job->answer.out, ": token%s\n\n", buf_str(&job->untold));
    buf_clear(&job->untold);
    return err;
}

fathom_err job_tell_lost(struct job *job)
{
    static const char *const codes[] = {"shutting_down", "engine_failed", "host_away"};
    if (!job->tells_tokens || job->answer.closed || !job->error.code) return FATHOM_OK;
    for (size_t i = 0; i < sizeof codes / sizeof codes[0]; i++) {
        if (strcmp(job->error.code, codes[i]) != 0) continue;
        return buf_add_str(&job->answer.out, ": lost\n\n");
    }
    return FATHOM_OK;
}
