/* pool.c - the places of the servers
 *
 * Invariants: a free place has state NONE and no requests. A breaker is open exactly while n_failed
 * >= BREAKER_FAILURES, and then at most one request is its probe. */
#include "router/pool.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/fail.h"
#include "base/json.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/rng.h"

enum server_state { STATE_NONE, STATE_UNKNOWN, STATE_UP, STATE_DOWN, STATE_LEAVING };

struct server {
    enum server_state state;
    bool prefills;
    char url[POOL_URL_BYTES], name[POOL_URL_BYTES];
    uint64_t identity;
    uint64_t generation;
    struct pool_load load;
    uint64_t started_us; /* the latest that it has told */
    uint64_t n_pending;  /* prompt tokens sent since the last look and not computed yet */
    uint64_t n_left;     /* tokens that its free pages hold, less the prompts that it was sent */
    uint64_t n_look;
    uint32_t n_open;
    uint32_t n_failed;  /* failures in a row */
    uint64_t n_counted; /* all failures so far that counted in n_failed */
    uint64_t open_until_us;
    bool has_probe;
    uint64_t n_sent, n_served, n_refused, n_lost; /* requests */
    uint64_t n_key, n_key_held; /* blocks of the prompts sent there; those sent there before */
};

struct pool {
    pthread_mutex_t lock;
    struct server servers[POOL_SERVERS_MAX];
    struct prefix_table *prefixes;
    enum choice_policy policy;
    uint64_t n_generation;
    uint64_t n_turn;
    uint64_t seed;
};

static const char *const state_names[] = {"none", "unknown", "up", "down", "leaving"};

fathom_err pool_create(struct pool **out, enum choice_policy policy, uint32_t n_key)
{
    struct pool *p = mem_calloc(1, sizeof *p);
    *out = NULL;
    if (!p) return FATHOM_ENOMEM;
    (void)pthread_mutex_init(&p->lock, NULL);
    p->policy = policy;
    p->seed = rng_entropy();
    if (prefix_table_create(&p->prefixes, n_key) != FATHOM_OK) {
        pool_destroy(p);
        return FATHOM_ENOMEM;
    }
    *out = p;
    return FATHOM_OK;
}

void pool_destroy(struct pool *p)
{
    if (!p) return;
    prefix_table_destroy(p->prefixes);
    (void)pthread_mutex_destroy(&p->lock);
    mem_free(p);
}

static void lock(struct pool *p)
{
    (void)pthread_mutex_lock(&p->lock);
}

static void unlock(struct pool *p)
{
    (void)pthread_mutex_unlock(&p->lock);
}

/* ---- servers ------------------------------------------------------------------------------- */

static bool begins(const char *s, const char *with)
{
    return strncmp(s, with, strlen(with)) == 0;
}

/* Reads an address into the form in which it is kept: with a scheme, without a slash at the end. */
static fathom_err read_url(char out[POOL_URL_BYTES], const char *url, fathom_diag *d)
{
    bool has_scheme = begins(url, "http://") || begins(url, "https://");
    const char *host = has_scheme ? strstr(url, "://") + 3 : url;
    if (!*host || *host == '/' || *host == ':' || strpbrk(url, " \t\r\n\"\\<>#?") ||
        (!has_scheme && strstr(url, "://"))) {
        FAIL(d, FATHOM_EINVAL,
             "\"%.200s\" is no server's address, needed is http://host:port or host:port", url);
    }
    int n = snprintf(out, POOL_URL_BYTES, "%s%s", has_scheme ? "" : "http://", url);
    if (n >= POOL_URL_BYTES) {
        FAIL(d, FATHOM_EINVAL, "\"%.60s...\" has %zu bytes, an address has at most %d", url,
             strlen(url), POOL_URL_BYTES - 8);
    }
    while (n > 0 && out[n - 1] == '/') out[--n] = '\0';
    return FATHOM_OK;
}

static struct server *find(struct pool *p, const char *url)
{
    for (uint32_t i = 0; i < POOL_SERVERS_MAX; i++) {
        struct server *s = &p->servers[i];
        bool stays = s->state != STATE_NONE && s->state != STATE_LEAVING;
        if (stays && strcmp(s->url, url) == 0) return s;
    }
    return NULL;
}

static uint64_t identity_of(const char *url)
{
    uint64_t h = 1;
    for (; *url; url++) h = rng_hash(h ^ (unsigned char)*url);
    return h;
}

static fathom_err add(struct pool *p, const char *url, const char *name, bool prefills,
                      fathom_diag *d)
{
    uint32_t i = 0;
    if (find(p, url)) FAIL(d, FATHOM_EINVAL, "%s is there already", url);
    while (i < POOL_SERVERS_MAX && p->servers[i].state != STATE_NONE) i++;
    if (i == POOL_SERVERS_MAX) {
        FAIL(d, FATHOM_ELIMIT, "%s: there are %d servers, which is the limit", url,
             POOL_SERVERS_MAX);
    }
    struct server *s = &p->servers[i];
    *s = (struct server){.state = STATE_UNKNOWN,
                         .prefills = prefills,
                         .identity = identity_of(url),
                         .generation = ++p->n_generation};
    memcpy(s->url, url, strlen(url) + 1);
    (void)snprintf(s->name, sizeof s->name, "%s", name);
    return FATHOM_OK;
}

fathom_err pool_add_named(struct pool *p, const char *url, const char *name, bool prefills,
                          fathom_diag *d)
{
    char kept[POOL_URL_BYTES];
    TRY(read_url(kept, url, d));
    lock(p);
    fathom_err err = add(p, kept, name, prefills, d);
    unlock(p);
    return err;
}

fathom_err pool_add(struct pool *p, const char *url, fathom_diag *d)
{
    return pool_add_named(p, url, "", false, d);
}

fathom_err pool_add_prefill(struct pool *p, const char *url, fathom_diag *d)
{
    return pool_add_named(p, url, "", true, d);
}

/* Frees the place of a server that was removed, once its last request has ended. */
static void let_go(struct pool *p, struct server *s)
{
    if (s->state != STATE_LEAVING || s->n_open > 0) return;
    prefix_table_forget(p->prefixes, (uint32_t)(s - p->servers));
    *s = (struct server){0};
}

fathom_err pool_remove(struct pool *p, const char *url, fathom_diag *d)
{
    char kept[POOL_URL_BYTES];
    TRY(read_url(kept, url, d));
    lock(p);
    struct server *s = find(p, kept);
    if (s) {
        s->state = STATE_LEAVING;
        let_go(p, s);
    }
    unlock(p);
    if (!s) FAIL(d, FATHOM_ENOTFOUND, "there is no server %s", kept);
    return FATHOM_OK;
}

bool pool_url(struct pool *p, uint32_t place, char *out, char *name, uint64_t *generation)
{
    lock(p);
    const struct server *s = &p->servers[place];
    bool is = s->state != STATE_NONE;
    memcpy(out, s->url, POOL_URL_BYTES);
    memcpy(name, s->name, POOL_URL_BYTES);
    *generation = s->generation;
    unlock(p);
    return is;
}

static bool has_prefill(const struct pool *p)
{
    for (uint32_t i = 0; i < POOL_SERVERS_MAX; i++) {
        if (p->servers[i].state != STATE_NONE && p->servers[i].prefills) return true;
    }
    return false;
}

/* The text that says why a server does not do its part; "" if it does. */
static const char *why_of(const struct pool *p, const struct server *s, const struct pool_load *l)
{
    if (l->why[0] || !l->is_up) return l->why;
    if (s->prefills && !l->pages_port) {
        return "it gives no pages, and gets no prompts: start it with --kv-transfer-config and "
               "kv_role kv_producer or kv_both";
    }
    if (!s->prefills && l->takes_none && has_prefill(p)) {
        return "it takes no pages, and computes every prompt: start it with --kv-transfer-config "
               "and kv_role kv_consumer or kv_both";
    }
    return l->why;
}

static uint64_t less(uint64_t n, uint64_t by)
{
    return n > by ? n - by : 0;
}

/* A later process than any before: it has none of the prompts that they had, and none of their
 * failures. An earlier one is another server behind the same address, which changes nothing. */
static void note_start(struct pool *p, struct server *s, uint64_t started_us)
{
    if (started_us <= s->started_us) return;
    if (s->started_us) {
        LOG_INFO("router", "%s has started again", s->url);
        prefix_table_forget(p->prefixes, (uint32_t)(s - p->servers));
        s->n_failed = 0;
    }
    s->started_us = started_us;
}

void pool_note_load(struct pool *p, uint32_t place, uint64_t generation, const struct pool_load *l)
{
    lock(p);
    struct server *s = &p->servers[place];
    if (s->state != STATE_NONE && s->generation == generation) {
        enum server_state next = l->is_up ? STATE_UP : STATE_DOWN;
        const char *why = why_of(p, s, l);
        if (s->state != STATE_LEAVING && s->state != next) {
            LOG_INFO("router", "%s is %s%s%s", s->url, l->is_up ? "up" : "down", *why ? ": " : "",
                     why);
            if (!l->is_up) prefix_table_forget(p->prefixes, place);
            if (s->state == STATE_DOWN) s->n_failed = 0; /* they failed because it went down */
            s->state = next;
        }
        if (l->is_up) {
            note_start(p, s, l->started_us);
            s->load = *l;
            s->n_pending = 0;
            s->n_left = less(l->n_page_free * POOL_PAGE_TOKENS, l->n_owed);
            s->n_look++;
        }
        s->load.silent_us = l->silent_us;
        (void)snprintf(s->load.why, sizeof s->load.why, "%s", why);
    }
    unlock(p);
}

/* ---- requests ------------------------------------------------------------------------------ */

static bool may_have(const struct server *s, const struct pool_request *r, uint64_t now_us)
{
    if (s->state != STATE_UP && s->state != STATE_UNKNOWN) return false;
    if (s->prefills != r->prefills) return false;
    if (r->prefills && s->load.pages_port == 0) return false;
    if (r->moves && (!s->load.moves || s->load.numerics != r->numerics)) return false;
    return s->n_failed < BREAKER_FAILURES || (!s->has_probe && now_us >= s->open_until_us);
}

static bool was_tried(const struct pool_tried *t, uint32_t place, const struct server *s)
{
    return t && s->generation > 0 && t->generations[place] == s->generation;
}

/* Whether a server that is UP may have the request. */
static bool any_known(const struct pool *p, const struct pool_request *r, uint64_t now_us)
{
    for (uint32_t i = 0; i < POOL_SERVERS_MAX; i++) {
        const struct server *s = &p->servers[i];
        if (s->state == STATE_UP && !was_tried(r->tried, i, s) && may_have(s, r, now_us))
            return true;
    }
    return false;
}

bool pool_is_lost(struct pool *p, const struct pool_request *r, const struct pool_lease *l,
                  uint64_t now_us)
{
    lock(p);
    const struct server *s = &p->servers[l->place];
    ASSERT(s->generation == l->generation);
    bool is_silent = s->load.silent_us && now_us >= s->load.silent_us + POOL_SILENT_US;
    bool is_lost = is_silent && any_known(p, r, now_us);
    unlock(p);
    return is_lost;
}

/* Whether a server lacks pages for the n_new tokens of a prompt that it does not hold, and one more
 * page for this request and each that it has. */
static bool is_short(const struct server *s, uint64_t n_new)
{
    return s->load.n_page > 0 && s->n_left < n_new + (s->n_open + 1ull) * POOL_PAGE_TOKENS;
}

/* Lists the servers that may have the request. One that no look has told of yet is listed only if
 * there is no other: a stream that begins there could not go on elsewhere. */
static size_t list_servers(struct pool *p, const struct pool_request *r, uint64_t now_us,
                           struct choice_server out[POOL_SERVERS_MAX])
{
    uint32_t depth[PREFIX_SERVERS_MAX];
    size_t n = 0;
    bool known = any_known(p, r, now_us);
    prefix_table_find(p->prefixes, r->keys, r->n_key, depth);
    for (uint32_t i = 0; i < POOL_SERVERS_MAX; i++) {
        const struct server *s = &p->servers[i];
        if (was_tried(r->tried, i, s) || !may_have(s, r, now_us)) continue;
        if (known && s->state == STATE_UNKNOWN) continue;
        uint64_t n_cached = r->n_key ? r->n_token * depth[i] / r->n_key : 0;
        out[n++] = (struct choice_server){
            .id = i,
            .identity = s->identity,
            .n_open = s->n_open,
            .n_room = s->load.n_room,
            .n_owed = s->load.n_owed + s->n_pending,
            .token_us = s->load.token_us,
            .step_us = s->load.step_us,
            .n_cached = n_cached,
            .is_short = is_short(s, less(r->n_token, n_cached)),
        };
    }
    return n;
}

static void lease(struct pool *p, const struct pool_request *r, const struct choice_server *c,
                  struct pool_lease *out)
{
    struct server *s = &p->servers[c->id];
    uint64_t n_new = less(r->n_token, c->n_cached);
    s->n_left = less(s->n_left, n_new);
    if (r->has_pages) n_new = 0;
    bool is_probe = s->n_failed >= BREAKER_FAILURES;
    *out = (struct pool_lease){.place = c->id,
                               .generation = s->generation,
                               .moves = s->load.moves,
                               .numerics = s->load.numerics,
                               .is_probe = is_probe,
                               .n_counted = s->n_counted,
                               .n_token = n_new,
                               .n_look = s->n_look};
    memcpy(out->url, s->url, sizeof out->url);
    memcpy(out->name, s->name, sizeof out->name);
    memcpy(out->pages_host, s->load.pages_host, sizeof out->pages_host);
    out->pages_port = s->load.pages_port;
    s->has_probe |= is_probe;
    s->n_open++;
    s->n_sent++;
    s->n_pending += n_new;
    s->n_key += r->n_key;
    s->n_key_held += r->n_token ? r->n_key * c->n_cached / r->n_token : 0;
}

void pool_note_sent(struct pool *p, const struct pool_request *r, const struct pool_lease *l)
{
    lock(p);
    if (p->servers[l->place].generation == l->generation)
        prefix_table_note(p->prefixes, r->keys, r->n_key, l->place);
    unlock(p);
}

void pool_tried_add(struct pool_tried *t, const struct pool_lease *l)
{
    ASSERT(l->place < POOL_SERVERS_MAX && l->generation > 0);
    t->n += t->generations[l->place] == 0;
    t->generations[l->place] = l->generation;
}

bool pool_take(struct pool *p, const struct pool_request *r, uint64_t now_us,
               struct pool_lease *out)
{
    struct choice_server servers[POOL_SERVERS_MAX];
    ASSERT(r->n_key <= POOL_KEYS_MAX);
    lock(p);
    size_t n = list_servers(p, r, now_us, servers);
    if (n > 0) {
        const struct choice_request choice = {.policy = p->policy,
                                              .n_token = r->n_token,
                                              .affinity = r->session     ? r->session
                                                          : r->n_key > 0 ? r->keys[0]
                                                                         : 0,
                                              .turn = p->n_turn++,
                                              .random = rng_mix(p->seed, p->n_turn, 0)};
        lease(p, r, &servers[choice_make(&choice, servers, n)], out);
    }
    unlock(p);
    return n > 0;
}

/* Seconds until a server whose breaker is open may get a request; at least 1. */
static uint32_t rest_s(const struct server *s, uint64_t now_us)
{
    return (uint32_t)(less(s->open_until_us, now_us + 1) / 1000000) + 1;
}

uint32_t pool_tell_none(struct pool *p, uint64_t now_us, char *text)
{
    uint32_t n_down = 0, n_rest = 0, least_s = UINT32_MAX;
    char down[40] = "", rest[100] = "";
    lock(p);
    for (uint32_t i = 0; i < POOL_SERVERS_MAX; i++) {
        const struct server *s = &p->servers[i];
        if (s->prefills || s->state == STATE_NONE || s->state == STATE_LEAVING) continue;
        bool rests = s->state != STATE_DOWN && s->n_failed >= BREAKER_FAILURES;
        uint32_t wait_s = rests ? rest_s(s, now_us) : 1;
        n_rest += rests;
        n_down += s->state == STATE_DOWN;
        if (wait_s < least_s) least_s = wait_s;
    }
    unlock(p);
    if (n_down) (void)snprintf(down, sizeof down, "%u %s down", n_down, n_down > 1 ? "are" : "is");
    if (n_rest)
        (void)snprintf(rest, sizeof rest, "%s%u rest%s because %d requests in a row failed there",
                       n_down ? ", " : "", n_rest, n_rest > 1 ? "" : "s", BREAKER_FAILURES);
    if (n_down + n_rest > 0) {
        (void)snprintf(text, POOL_NONE_BYTES,
                       "no server takes requests: %s%s (GET /instances of the router tells more); "
                       "try again in %u s",
                       down, rest, least_s);
    } else {
        (void)snprintf(text, POOL_NONE_BYTES, "no server takes requests now; try again");
    }
    return least_s < UINT32_MAX ? least_s : 1;
}

static void note_failure(struct server *s, const struct pool_lease *l, uint64_t now_us)
{
    s->n_lost++;
    if (l->n_counted != s->n_counted) return; /* under way when another one failed */
    s->n_counted++;
    s->n_failed++;
    if (s->n_failed < BREAKER_FAILURES) return;
    if (s->n_failed == BREAKER_FAILURES) {
        LOG_WARN("router", "%s: %d requests in a row failed, it gets none for %d s", s->url,
                 BREAKER_FAILURES, BREAKER_US / 1000000);
    }
    s->open_until_us = now_us + BREAKER_US;
}

static void close_breaker(struct server *s)
{
    if (s->n_failed >= BREAKER_FAILURES) LOG_INFO("router", "%s answers again", s->url);
    s->n_failed = 0;
}

static void settle(struct server *s, struct pool_lease *l)
{
    uint64_t *owed = l->n_look == s->n_look ? &s->n_pending : &s->load.n_owed;
    *owed -= l->n_token < *owed ? l->n_token : *owed;
    l->n_token = 0;
}

/* The shortest queue of the servers that prefill, and in *token_us the slowest pace; n >= 1. */
static double least_queue_us(const struct choice_server *servers, size_t n, double *token_us)
{
    double least = choice_queue_us(&servers[0]);
    *token_us = 0;
    for (size_t i = 0; i < n; i++) {
        double us = choice_queue_us(&servers[i]);
        if (us < least) least = us;
        if (servers[i].token_us > *token_us) *token_us = servers[i].token_us;
    }
    return least;
}

/* A server whose pace is not known counts as being as fast as the slowest that prefills. */
bool pool_wants_prefill(struct pool *p, const struct pool_request *r, uint64_t now_us)
{
    struct choice_server servers[POOL_SERVERS_MAX];
    const struct choice_request choice = {.n_token = r->n_token};
    struct pool_request q = *r;
    double token_us = 0;
    lock(p);
    q.prefills = true;
    size_t n = r->n_token > POOL_NEAR_TOKENS ? list_servers(p, &q, now_us, servers) : 0;
    bool wants = n > 0;
    double queue_us = wants ? least_queue_us(servers, n, &token_us) : 0;
    q.prefills = false;
    n = wants ? list_servers(p, &q, now_us, servers) : 0;
    bool taken = n == 0;
    for (size_t i = 0; i < n; i++) {
        taken |= !p->servers[servers[i].id].load.takes_none;
        if (servers[i].token_us <= 0) servers[i].token_us = token_us;
        wants &= servers[i].n_cached + POOL_NEAR_TOKENS < r->n_token;
        wants &= queue_us <= choice_prompt_us(&choice, &servers[i]);
    }
    unlock(p);
    return wants && taken;
}

void pool_settle(struct pool *p, struct pool_lease *l)
{
    lock(p);
    struct server *s = &p->servers[l->place];
    settle(s, l);
    if (l->is_probe) {
        close_breaker(s);
        s->has_probe = l->is_probe = false;
    }
    unlock(p);
}

void pool_give(struct pool *p, struct pool_lease *l, enum pool_end how, uint64_t now_us)
{
    lock(p);
    struct server *s = &p->servers[l->place];
    ASSERT(s->generation == l->generation && s->n_open > 0);
    s->n_open--;
    if (l->is_probe) s->has_probe = false;
    settle(s, l);
    if (s->n_open == 0)
        s->n_pending = s->load.n_owed = 0; /* as far as this router knows, until the next look */
    switch (how) {
    case POOL_SERVED:
        close_breaker(s);
        s->n_served++;
        break;
    case POOL_REFUSED: s->n_refused++; break;
    case POOL_FAILED: note_failure(s, l, now_us); break;
    case POOL_LEFT: break;
    }
    let_go(p, s);
    unlock(p);
}

/* ---- what is told -------------------------------------------------------------------------- */

uint32_t pool_n_up(struct pool *p)
{
    uint32_t n = 0;
    lock(p);
    for (uint32_t i = 0; i < POOL_SERVERS_MAX; i++) n += p->servers[i].state == STATE_UP;
    unlock(p);
    return n;
}

uint32_t pool_n(struct pool *p)
{
    uint32_t n = 0;
    lock(p);
    for (uint32_t i = 0; i < POOL_SERVERS_MAX; i++) n += p->servers[i].state != STATE_NONE;
    unlock(p);
    return n;
}

static void write_server(const struct server *s, struct buf *out, uint64_t now_us)
{
    bool is_open = s->n_failed >= BREAKER_FAILURES && now_us < s->open_until_us;
    (void)buf_printf(out, "{\"url\":\"%s\",\"role\":\"%s\",\"state\":\"%s\",\"breaker\":\"%s\"",
                     s->url, s->prefills ? "prefill" : "any", state_names[s->state],
                     is_open ? "open" : "closed");
    (void)buf_printf(out, ",\"running\":%u,\"room\":%u,\"waiting_tokens\":%llu", s->n_open,
                     s->load.n_room, (unsigned long long)(s->load.n_owed + s->n_pending));
    if (s->load.n_page > 0)
        (void)buf_printf(out, ",\"pages\":%llu,\"free_pages\":%llu",
                         (unsigned long long)s->load.n_page,
                         (unsigned long long)s->load.n_page_free);
    (void)buf_printf(out, ",\"token_us\":%.1f,\"step_us\":%.0f,\"moves_streams\":%s",
                     s->load.token_us, s->load.step_us, s->load.moves ? "true" : "false");
    (void)buf_printf(out,
                     ",\"requests\":%llu,\"served\":%llu,\"refused\":%llu,\"failed\":%llu,"
                     "\"prefix_blocks\":%llu,\"prefix_blocks_held\":%llu,\"why\":",
                     (unsigned long long)s->n_sent, (unsigned long long)s->n_served,
                     (unsigned long long)s->n_refused, (unsigned long long)s->n_lost,
                     (unsigned long long)s->n_key, (unsigned long long)s->n_key_held);
    (void)json_write_string(out, s->load.why, strlen(s->load.why));
    (void)buf_add_char(out, '}');
}

fathom_err pool_write_json(struct pool *p, struct buf *out, uint64_t now_us)
{
    bool any = false;
    (void)buf_add_char(out, '[');
    lock(p);
    for (uint32_t i = 0; i < POOL_SERVERS_MAX; i++) {
        if (p->servers[i].state == STATE_NONE) continue;
        if (any) (void)buf_add_char(out, ',');
        any = true;
        write_server(&p->servers[i], out, now_us);
    }
    unlock(p);
    return buf_add_char(out, ']');
}

/* One figure of every server. */
static void write_family(const struct pool *p, struct buf *out, const char *name, const char *type,
                         const char *help, uint64_t (*value)(const struct server *s))
{
    (void)buf_printf(out, "# HELP fathom_router_%s %s\n# TYPE fathom_router_%s %s\n", name, help,
                     name, type);
    for (uint32_t i = 0; i < POOL_SERVERS_MAX; i++) {
        const struct server *s = &p->servers[i];
        if (s->state == STATE_NONE) continue;
        (void)buf_printf(out, "fathom_router_%s{server=\"%s\"} %llu\n", name, s->url,
                         (unsigned long long)value(s));
    }
}

static uint64_t value_up(const struct server *s)
{
    return s->state == STATE_UP;
}
static uint64_t value_open(const struct server *s)
{
    return s->n_open;
}
static uint64_t value_sent(const struct server *s)
{
    return s->n_sent;
}
static uint64_t value_refused(const struct server *s)
{
    return s->n_refused;
}
static uint64_t value_lost(const struct server *s)
{
    return s->n_lost;
}
static uint64_t value_keys(const struct server *s)
{
    return s->n_key;
}
static uint64_t value_held(const struct server *s)
{
    return s->n_key_held;
}

fathom_err pool_write_metrics(struct pool *p, struct buf *out)
{
    lock(p);
    write_family(p, out, "server_up", "gauge", "1 while the server takes requests", value_up);
    write_family(p, out, "requests_running", "gauge", "Requests that the server has", value_open);
    write_family(p, out, "requests_total", "counter", "Requests sent to the server", value_sent);
    write_family(p, out, "requests_refused_total", "counter", "Of them answered 429 or 503",
                 value_refused);
    write_family(p, out, "requests_failed_total", "counter",
                 "Of them that found no connection, or lost it", value_lost);
    write_family(p, out, "prefix_blocks_total", "counter", "Blocks of prompts sent", value_keys);
    write_family(p, out, "prefix_blocks_held_total", "counter", "Of them sent to the server before",
                 value_held);
    unlock(p);
    return buf_status(out);
}

void pool_check(struct pool *p)
{
    lock(p);
    prefix_table_check(p->prefixes);
    for (uint32_t i = 0; i < POOL_SERVERS_MAX; i++) {
        const struct server *s = &p->servers[i];
        ASSERT(s->state != STATE_NONE || (s->n_open == 0 && s->generation == 0));
        ASSERT(!s->has_probe || s->n_open > 0);
    }
    unlock(p);
}
