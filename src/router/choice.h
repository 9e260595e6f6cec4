/* choice.h - which server a request goes to: pure
 *
 *   cache_aware      the one that will have the first token soonest: what it still has to compute,
 *                    and of this prompt what it does not hold, at the pace that it tells
 *   power_of_two     of two at random the one with fewer requests
 *   round_robin      the next one
 *   consistent_hash  by the session, or else the beginning of the prompt: the same one until
 *                    servers come or go, and then few change
 *
 * With the first two a server that is short of pages comes after those that are not, of all or of
 * the two: there a request waits until one that runs has ended, or has that computed again.
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
    uint64_t identity; /* of its address: stays while others come and go */
    uint32_t n_open;   /* requests of this router that it has */
    uint32_t n_room;   /* requests that it runs at once; 0: not known */
    uint64_t n_owed;   /* prompt tokens that it has taken and not computed */
    double token_us;   /* of a prompt token; 0: not known */
    double step_us;    /* of a step; 0: not known */
    uint64_t n_cached; /* tokens of the prompt that it was sent before */
    bool is_short;     /* of pages, for this request */
};

struct choice_request {
    enum choice_policy policy;
    uint64_t n_token;  /* of the prompt */
    uint64_t affinity; /* of its session, or else of its beginning; 0: neither */
    uint64_t turn;     /* how many there were before */
    uint64_t random;
};

/* choice_make - the place in `servers` of the one that is chosen
 *
 * Needs   n >= 1; the servers in the order of their ids.
 * Cost    O(n). */
size_t choice_make(const struct choice_request *r, const struct choice_server *servers, size_t n);

/* choice_queue_us - how long the prompts take that wait there
 * choice_prompt_us - the same, and what it does not hold of this one */
double choice_queue_us(const struct choice_server *s);
double choice_prompt_us(const struct choice_request *r, const struct choice_server *s);

/* choice_cost_us - when this server would have the first token, about */
double choice_cost_us(const struct choice_request *r, const struct choice_server *s);

#endif
