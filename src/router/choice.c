/* choice.c - the policies */
#include "router/choice.h"

#include "base/assert.h"
#include "base/rng.h"

/* Of a server that has told none yet. */
#define DEFAULT_TOKEN_US 50.0
#define DEFAULT_STEP_US 20000.0
/* So many steps of its own a request costs those that it joins, about, at a full server. */
#define JOIN_STEPS 8.0

static const char *const names[CHOICE_COUNT] = {
    [CHOICE_CACHE_AWARE] = "cache_aware",
    [CHOICE_POWER_OF_TWO] = "power_of_two",
    [CHOICE_ROUND_ROBIN] = "round_robin",
    [CHOICE_CONSISTENT_HASH] = "consistent_hash",
};

const char *choice_policy_name(enum choice_policy p)
{
    ASSERT(p < CHOICE_COUNT);
    return names[p];
}

static double token_us_of(const struct choice_server *s)
{
    return s->token_us > 0 ? s->token_us : DEFAULT_TOKEN_US;
}

double choice_queue_us(const struct choice_server *s)
{
    return (double)s->n_owed * token_us_of(s);
}

double choice_prompt_us(const struct choice_request *r, const struct choice_server *s)
{
    uint64_t n_new = r->n_token > s->n_cached ? r->n_token - s->n_cached : 0;
    return choice_queue_us(s) + (double)n_new * token_us_of(s);
}

double choice_cost_us(const struct choice_request *r, const struct choice_server *s)
{
    double step_us = s->step_us > 0 ? s->step_us : DEFAULT_STEP_US;
    double n_room = s->n_room ? s->n_room : 64;
    double fill = s->n_open / n_room;
    double waits = fill > 1 ? fill - 1 : 0; /* rounds of requests before this one has a place */
    return choice_prompt_us(r, s) + fill * JOIN_STEPS * step_us + waits * 64 * step_us;
}

/* Highest random weight: each server draws from the affinity, and the highest draw wins. */
static size_t by_affinity(uint64_t affinity, const struct choice_server *servers, size_t n)
{
    size_t best = 0;
    uint64_t most = 0;
    for (size_t i = 0; i < n; i++) {
        uint64_t draw = rng_mix(affinity, servers[i].identity, 0);
        if (i > 0 && draw <= most) continue;
        best = i;
        most = draw;
    }
    return best;
}

/* Equal ones take turns; of them the one that the session points to goes first. */
static size_t by_cost(const struct choice_request *r, const struct choice_server *servers, size_t n)
{
    size_t near = r->affinity ? by_affinity(r->affinity, servers, n) : (size_t)(r->turn % n);
    size_t best = near;
    double least = choice_cost_us(r, &servers[near]);
    for (size_t k = 1; k < n; k++) {
        size_t i = (near + k) % n;
        double cost = choice_cost_us(r, &servers[i]);
        bool is_short = servers[i].is_short;
        if (is_short != servers[best].is_short ? is_short : cost >= least) continue;
        best = i;
        least = cost;
    }
    return best;
}

static size_t of_two(const struct choice_request *r, const struct choice_server *servers, size_t n)
{
    size_t a = (size_t)(rng_hash(r->random) % n);
    size_t b = (a + 1 + (size_t)(rng_hash(r->random + 1) % (n > 1 ? n - 1 : 1))) % n;
    if (servers[a].is_short != servers[b].is_short) return servers[a].is_short ? b : a;
    return servers[b].n_open < servers[a].n_open ? b : a;
}

size_t choice_make(const struct choice_request *r, const struct choice_server *servers, size_t n)
{
    ASSERT(n >= 1);
    switch (r->policy) {
    case CHOICE_CACHE_AWARE: return by_cost(r, servers, n);
    case CHOICE_POWER_OF_TWO: return of_two(r, servers, n);
    case CHOICE_ROUND_ROBIN: return (size_t)(r->turn % n);
    case CHOICE_CONSISTENT_HASH:
    case CHOICE_COUNT: break;
    }
    return by_affinity(r->affinity ? r->affinity : r->random, servers, n);
}
