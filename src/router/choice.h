/* choice.h - which server a request goes to; pure functions
 *
 *   cache_aware      the server that will have the first token soonest. It must first compute the
 *                    prompts that wait there, then what it does not hold of this prompt, at the
 *                    speed that it has told
 *   power_of_two of two random servers, the one with fewer requests round_robin the next server
 *   consistent_hash  chosen by the session, or else by the beginning of the prompt. That choice
 *                    stays the same until servers come or go, and then few sessions change
 *
 * With the first two policies a server that is short of pages comes after all others (with
 * power_of_two: after the other of the two). The request would have to wait there until another one
 * ends, or would have another one preempted.
 */
#ifndef FATHOM_ROUTER_CHOICE_H
#define FATHOM_ROUTER_CHOICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum choice_policy {
    CHOICE_CACHE_AWARE,
    CHOICE_POWER_OF_TWO,
    CHOICE_ROUND_ROBIN,
    CHOICE_CONSISTENT_HASH,
    CHOICE_COUNT,
};

/* choice_policy_name - as the option spells it */
const char *choice_policy_name(enum choice_policy p);

/* A server that may be chosen. */
struct choice_server {
    uint32_t id;       /* its place in the pool */
    uint64_t identity; /* a hash of its address, which stays the same while others come and go */
    uint32_t n_open;   /* requests of this router that it has */
    uint32_t n_room;   /* requests that it runs at once; 0: not known */
    uint64_t n_owed;   /* prompt tokens that wait there to be computed */
    double token_us;   /* time for a prompt token; 0: not known */
    double step_us;    /* time for a decode step; 0: not known */
    uint64_t n_cached; /* tokens of the prompt that it was sent before */
    bool is_short;     /* it is short of pages for this request */
};

struct choice_request {
    enum choice_policy policy;
    uint64_t n_token;  /* of the prompt */
    uint64_t affinity; /* hash of the session, or else of the prompt's beginning; 0: neither */
    uint64_t turn;     /* how many requests there were before */
    uint64_t random;
};

/* choice_make - the place in `servers` of the one that is chosen
 *
 * Needs   n >= 1; the servers in the order of their ids.
 * Cost    O(n). */
size_t choice_make(const struct choice_request *r, const struct choice_server *servers, size_t n);

/* choice_queue_us - how long the prompts that wait at a server will take
 * choice_prompt_us - the same, plus what the server does not hold of this prompt */
double choice_queue_us(const struct choice_server *s);
double choice_prompt_us(const struct choice_request *r, const struct choice_server *s);

/* choice_cost_us - after about how long this server would have the first token */
double choice_cost_us(const struct choice_request *r, const struct choice_server *s);

#endif
