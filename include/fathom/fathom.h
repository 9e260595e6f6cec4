/* fathom.h - the engine as a library: open a model, submit token ids, poll events
 *
 * Text does not enter the engine and tensors do not leave it. Every function may be called from
 * any thread unless it says otherwise. Request ids are never reused.
 */
#ifndef FATHOM_FATHOM_H
#define FATHOM_FATHOM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "fathom/constraint.h"
#include "fathom/err.h"
#include "fathom/event_stats.h"
#include "fathom/options.h"
#include "fathom/rank_stats.h"
#include "fathom/tier_stats.h"

#ifdef __cplusplus
extern "C" {
#endif

#define FATHOM_VERSION "0.1.0"

typedef struct fathom_engine fathom_engine;

/* fathom_open - load a model and start the engine thread
 *
 * The options and what they point to are copied, but for the bundle, which outlives the engine.
 * Errors  everything that loading can meet, with a message in *d. */
FATHOM_MUST_CHECK fathom_err fathom_open(fathom_engine **out, const fathom_options *o,
                                         fathom_diag *d);

/* fathom_close - cancel all requests, stop the thread, release everything; accepts NULL. No other
 * call on this engine may be running or follow, but for fathom_hurry.
 *
 * Cost  with a directory for pages: writing those that are not there yet, 5 s at most. */
void fathom_close(fathom_engine *e);

/* fathom_hurry - let fathom_close write no more pages than the one under way
 *
 * From any thread and from a signal handler, before fathom_close or while it runs, and not after
 * it has returned. A disk that hangs holds up the page under way nonetheless. */
void fathom_hurry(fathom_engine *e);

/* What an open engine is; fixed after fathom_open. Strings belong to the engine. */
typedef struct fathom_info {
    const char *model_type; /* "deepseek_v32" */
    const char *backend;    /* "cpu" */
    uint32_t n_vocab;
    uint32_t n_expert;      /* that are routed to; 0: no layer has experts */
    uint32_t n_expert_used; /* of a token */
    uint32_t max_model_len;
    uint32_t n_lane; /* groups of requests with pages of their own, each of a data-parallel rank */
    uint32_t max_num_seqs;           /* of a lane */
    uint32_t max_num_batched_tokens; /* likewise, in a step */
    uint32_t max_requests;           /* that run and wait, of all lanes; one more: EBUSY */
    uint32_t n_draft;
    uint32_t n_page; /* of a lane, of 64 tokens */
    uint64_t weights_bytes;
    uint64_t kv_bytes;
    bool dummy;        /* weights are made up: outputs mean nothing */
    uint32_t world;    /* ranks that share every layer */
    bool rank_slice;   /* rank `rank` of them runs by itself: outputs mean nothing */
    uint32_t rank;     /* else 0 */
    uint64_t numerics; /* equal where two engines of the same weights draw the same tokens: of the
                          configuration, the program's version, backend, precision and layout */
    fathom_pages_at pages;
    int32_t bos_id; /* -1: none */
    int32_t eos_ids[8];
    uint32_t n_eos;
    /* defaults of generation_config.json; negative: not given */
    float default_temperature;
    float default_top_p;
    int32_t default_top_k;
} fathom_info;

/* fathom_get_info - valid until fathom_close */
const fathom_info *fathom_get_info(const fathom_engine *e);

/* fathom_get_file - a file of the checkpoint ("tokenizer.json", "config.json"); valid until close.
 * ENOTFOUND when there is none. */
fathom_err fathom_get_file(fathom_engine *e, const char *name, const char **data, size_t *n);

/* ---- requests ------------------------------------------------------------------------------ */

typedef struct fathom_bias {
    int32_t id;
    float bias;
} fathom_bias;

/* Sampling. fathom_sampling_init gives the neutral values. */
typedef struct fathom_sampling {
    float temperature;        /* 0: greedy */
    float top_p;              /* (0, 1]; 1: off */
    float min_p;              /* [0, 1]; 0: off */
    int32_t top_k;            /* 0 or -1: off */
    float repetition_penalty; /* > 0; 1: off; prompt and output */
    float presence_penalty;   /* [-2, 2]; output */
    float frequency_penalty;  /* [-2, 2]; output */
    bool has_seed;
    uint64_t seed;
    uint32_t max_tokens;     /* 0: up to max_model_len */
    uint32_t min_tokens;     /* no EOS and no stop token before */
    bool ignore_eos;         /* EOS is a token like any other: it may be drawn and ends nothing */
    bool logprobs;           /* log-probability of each chosen token, before any penalty */
    uint32_t n_top_logprobs; /* 0 .. 20 alternatives */
    bool prompt_logprobs;    /* of each prompt token but the first: it has nothing before it. The
                                prompt is then computed in full, whatever the prefix cache has */
    uint32_t n_prompt_top_logprobs; /* 0 .. 20 alternatives */
    const fathom_bias *bias;
    uint32_t n_bias;
    const int32_t *stop_ids;
    uint32_t n_stop_id;
} fathom_sampling;

void fathom_sampling_init(fathom_sampling *s);

typedef struct fathom_request {
    const int32_t *prompt; /* [n_prompt], ids in [0, n_vocab) */
    uint32_t n_prompt;     /* >= 1 */
    const int32_t *output; /* [n_output] that this request has drawn elsewhere: it goes on behind
                              them as it would have there, seed and constraint given, and tells the
                              tokens that follow. They count as its output. */
    uint32_t n_output;     /* below max_tokens; 0: a request from its beginning */
    fathom_sampling sampling;
    fathom_constraint constraint; /* of the output, whose first n_output tokens it has gone over;
                                     the engine's once fathom_submit succeeds */
    uint64_t cache_salt;          /* cached pages are shared by requests of equal salt only */
    int32_t priority;      /* lower is earlier; other than 0 only with fathom_options.priorities */
    fathom_pages_of pages; /* of other servers */
    bool has_lane;         /* it goes to one of these lanes, below fathom_info.n_lane, that is */
    uint32_t lane, n_lane; /* the best of them: the first, and how many; 0: 1 */
    uint32_t tenant;       /* whose it is: waiting requests of different tenants take turns */
    void *user;            /* comes back in every event */
} fathom_request;

/* fathom_submit - queue a request; everything is copied but the state of the constraint
 *
 * Errors  EINVAL  a value out of range: names it, the value and the range
 *         ELIMIT  n_prompt + max_tokens over max_model_len: names both numbers
 *         EBUSY   the queue is full, or a promise of fathom_options could not be kept: in numbers
 *         EDEVICE the engine has failed */
FATHOM_MUST_CHECK fathom_err fathom_submit(fathom_engine *e, const fathom_request *r, uint64_t *id,
                                           fathom_diag *d);

/* fathom_reset_cache - requests submitted from now on find no page of those before; what runs goes
 * on. The pages are taken again as they are needed. */
void fathom_reset_cache(fathom_engine *e);

/* fathom_cancel - stop a request within one step; a FINISH event with FATHOM_FINISH_CANCEL (or the
 * reason that came first) still follows. Unknown and finished ids are ignored. */
void fathom_cancel(fathom_engine *e, uint64_t id);

typedef enum fathom_finish {
    FATHOM_FINISH_NONE,
    FATHOM_FINISH_STOP,   /* EOS or a stop token; that token's event came before, with is_stop */
    FATHOM_FINISH_LENGTH, /* max_tokens or max_model_len */
    FATHOM_FINISH_CANCEL,
    FATHOM_FINISH_EXPIRED,    /* it had waited for slo_ttft_ms and was not started */
    FATHOM_FINISH_CONSTRAINT, /* its constraint left nothing to draw */
    FATHOM_FINISH_ERROR,      /* the engine failed */
    FATHOM_FINISH_LOST,       /* another server did not give the pages that it needs */
    FATHOM_FINISH_UNWANTED,   /* the other server's request of its hand_over has left */
} fathom_finish;

typedef struct fathom_logprob {
    int32_t id;
    float logprob;
} fathom_logprob;

enum { FATHOM_TOP_LOGPROBS_MAX = 20 };

typedef enum fathom_event_kind {
    FATHOM_EVENT_TOKEN,
    FATHOM_EVENT_PROMPT, /* a prompt token, from the second one on; before any TOKEN */
    FATHOM_EVENT_FINISH
} fathom_event_kind;

typedef struct fathom_event {
    fathom_event_kind kind;
    uint64_t id;
    void *user;
    /* TOKEN, PROMPT */
    int32_t token;
    bool is_stop;   /* the token that ended the request: EOS or a stop id, not text */
    bool is_joined; /* drawn in one step with the token before: a draft was right */
    float logprob;  /* if asked for */
    uint32_t place; /* PROMPT: of the token among all, 1: the likeliest */
    uint32_t n_top;
    fathom_logprob top[FATHOM_TOP_LOGPROBS_MAX]; /* descending */
    /* TOKEN, FINISH */
    uint32_t n_cached; /* prompt tokens found in cache or tiers; a multiple of 64 */
    /* FINISH */
    fathom_finish finish;
    int32_t stop_id; /* the stop token of FATHOM_FINISH_STOP, else -1 */
    uint32_t n_prompt;
    uint32_t n_output; /* tokens emitted, the stop token included */
    uint64_t queue_us; /* submit to first scheduled */
    uint64_t first_us; /* submit to first token; 0: none */
    uint64_t total_us; /* submit to finish */
} fathom_event;

/* fathom_poll - take up to max events in order; waits up to timeout_ms for the first (0: no wait,
 * negative: for ever). Returns how many; 0 after a time-out or fathom_wake. One thread at a time.
 */
size_t fathom_poll(fathom_engine *e, fathom_event *events, size_t max, int timeout_ms);

/* fathom_wake - make a waiting fathom_poll return */
void fathom_wake(fathom_engine *e);

enum { FATHOM_STEP_SIZES = 14 };

typedef struct fathom_stats {
    uint32_t n_running;
    uint32_t n_waiting;
    uint32_t n_fetching;    /* of those that wait: for pages from memory or disk */
    uint32_t n_page_free;   /* that can be taken: with n_page_cached */
    uint32_t n_page_cached; /* of which hold a prefix that may be found */
    uint32_t n_page;        /* of all lanes; of several hosts, that all have room for */
    uint64_t n_step;        /* steps done */
    uint64_t n_step_ahead;  /* of them launched while the one before ran */
    /* of all steps, by their tokens: 1, up to 8, 16, 32 ... 16384, more; and these tokens */
    uint64_t n_step_by_size[FATHOM_STEP_SIZES];
    uint64_t n_step_token;
    uint64_t n_prompt_token, n_shared_token; /* prompt tokens computed; of them, by all lanes */
    uint64_t n_output_token;
    uint64_t n_finished;
    uint64_t n_cancelled;
    uint64_t n_preempted;      /* requests that gave up their pages and were computed again */
    uint64_t n_refused_full;   /* EBUSY: as many requests as there is room for */
    uint64_t n_refused_tokens; /* EBUSY: max_queued_tokens */
    uint64_t n_refused_ttft;   /* EBUSY: slo_ttft_ms */
    uint64_t n_refused_pages;  /* EBUSY: pages wait for other servers to take them */
    uint64_t n_expired;
    uint64_t n_prefix_query_token;   /* prompt tokens of requests begun, looked up in the cache */
    uint64_t n_prefix_hit_token;     /* of them found, in the cache or in the tiers */
    uint64_t n_prefix_fetched_token; /* of these in the tiers, or at another server */
    uint64_t n_draft_token[FATHOM_DRAFT_MAX];    /* [i]: drafts i + 1 tokens ahead */
    uint64_t n_accepted_token[FATHOM_DRAFT_MAX]; /* of them those that were what was drawn */
    uint64_t n_backlog_token; /* prompt tokens of live requests that are not computed yet */
    /* as measured lately; 0: not known */
    double prefill_token_us; /* time of one prompt token */
    double decode_step_us;   /* of a step, for its decodes alone */
    uint64_t first_token_us; /* that a short prompt submitted now may expect */
    uint64_t retry_after_us; /* until a request that was refused now may be taken */
    uint64_t busy_us;        /* time spent in steps */
    uint64_t wait_us;        /* of it: waiting for the device; the rest is the host's own work */
    uint64_t mask_us;        /* of the host's: filling masks, while the device computes */
    uint64_t n_mask;         /* masks filled */
    uint32_t n_rank_wait;    /* ranks whose waits are known; 0 for one rank, and on GPUs */
    fathom_rank_waits rank_waits[FATHOM_RANKS_MAX];
    uint32_t n_lane;
    fathom_lane_stats lanes[FATHOM_RANKS_MAX]; /* n_lane of them; sums of them are above */
    fathom_tier_stats tiers;
    fathom_event_stats events;
    uint64_t n_fetch_plan; /* plans of a step in which all that live waited for pages */
    uint64_t progress;     /* changes as steps get on, within a step too where the backend can tell.
                          While requests are live and it stays as it is, the engine is stuck. */
    bool failed;           /* the engine has met a fatal error */
    char away[160];        /* of several hosts one is not there: which, and why; "": all are */
    /* of steps without prompts, while fathom_watch_experts is on */
    uint64_t n_expert_choice;  /* layers that chose experts, of all steps */
    uint64_t n_expert_hit;     /* experts that any token of a step chose in a layer, added up */
    double expert_uniform;     /* the same if tokens chose at random, expected */
    uint64_t n_expert_token;   /* tokens of the step, added up for each layer that chose */
    uint64_t n_expert_busiest; /* tokens of the expert that most of a step chose, added up */
} fathom_stats;

/* fathom_get_stats - a snapshot; its members, but for progress and rank_waits, are read together
 * between two steps */
void fathom_get_stats(fathom_engine *e, fathom_stats *out);

/* fathom_watch_experts - whether steps count the experts that they choose (fathom_stats). Those
 * have the same results and are slow: each waits for every layer. A step under way counts nothing.
 * Off at first. */
void fathom_watch_experts(fathom_engine *e, bool on);

/* fathom_fault - the message of the fatal error, "" while there is none */
const char *fathom_fault(fathom_engine *e);

#ifdef __cplusplus
}
#endif
#endif
