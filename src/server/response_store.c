/* response_store.c - see response_store.h for the states of a link
 *
 * Invariants (response_store_check): the list by age has the listed links, oldest first. Each
 * listed link is in the bucket of its id. n_holder of a link counts the list, the links that go on
 * from it, and requests that hold it. `bytes` is the sum over all links, listed or not; in an
 * owner, over its own. An owner exists while it has a link. A link and the link that it goes on
 * from have the same owner.
 */
#include "server/response_store.h"

#include <pthread.h>
#include <string.h>

#include "base/assert.h"
#include "base/fail.h"
#include "base/json.h"
#include "base/json_arena.h"
#include "base/mem.h"
#include "base/rng.h"

enum { ID_BYTES = 48 };

/* What one tenant keeps. */
struct owner {
    uint32_t tenant;
    size_t n_listed;
    size_t n_link;
    size_t bytes;
};

struct response_link {
    struct response_link *previous;       /* held */
    struct response_link *older, *newer;  /* while listed */
    struct response_link *next_in_bucket; /* while listed */
    char id[ID_BYTES];
    uint32_t tenant;
    uint32_t n_holder;
    bool listed;
    uint64_t put_us;
    struct buf items;
    struct buf body;
    size_t output_at, n_output;
};

struct response_store {
    struct response_limits limits;
    pthread_mutex_t lock;
    struct response_link *oldest, *newest;
    size_t n_listed;
    size_t n_link;
    size_t bytes;
    struct owner *owners; /* in no order */
    size_t n_owner, owner_cap;
    size_t n_bucket; /* a power of two */
    struct response_link *buckets[];
};

static size_t link_bytes(const struct response_link *l)
{
    return sizeof *l + l->items.cap + l->body.cap;
}

static struct response_link **bucket_of(struct response_store *s, const char *id)
{
    uint64_t h = 0;
    for (; *id; id++) h = rng_hash(h ^ (unsigned char)*id);
    return &s->buckets[h & (s->n_bucket - 1)];
}

/* ---- owners -------------------------------------------------------------------------------- */

static struct owner *owner_of(const struct response_store *s, uint32_t tenant)
{
    for (size_t i = 0; i < s->n_owner; i++) {
        if (s->owners[i].tenant == tenant) return &s->owners[i];
    }
    return NULL;
}

static fathom_err make_owner(struct response_store *s, uint32_t tenant)
{
    if (owner_of(s, tenant)) return FATHOM_OK;
    TRY(mem_grow(&s->owners, &s->owner_cap, s->n_owner + 1, sizeof s->owners[0]));
    s->owners[s->n_owner++] = (struct owner){.tenant = tenant};
    return FATHOM_OK;
}

static void drop_idle_owner(struct response_store *s, struct owner *o)
{
    if (o->n_link == 0) *o = s->owners[--s->n_owner];
}

/* The one with a listed link that has most: of bytes, or of listed links. */
static const struct owner *greatest_owner(const struct response_store *s, bool of_bytes)
{
    const struct owner *most = NULL;
    for (size_t i = 0; i < s->n_owner; i++) {
        const struct owner *o = &s->owners[i];
        if (o->n_listed == 0) continue;
        if (!most || (of_bytes ? o->bytes > most->bytes : o->n_listed > most->n_listed)) most = o;
    }
    return most;
}

/* ---- life ---------------------------------------------------------------------------------- */

fathom_err response_store_create(struct response_store **out, const struct response_limits *limits)
{
    size_t n_bucket = 16;
    while (n_bucket < limits->max && n_bucket < (1u << 20)) n_bucket *= 2;
    struct response_store *s = mem_calloc(1, sizeof *s + n_bucket * sizeof s->buckets[0]);
    *out = s;
    if (!s) return FATHOM_ENOMEM;
    s->limits = *limits;
    s->n_bucket = n_bucket;
    (void)pthread_mutex_init(&s->lock, NULL);
    return FATHOM_OK;
}

static void free_link(struct response_link *l)
{
    buf_free(&l->items);
    buf_free(&l->body);
    mem_free(l);
}

/* Drops a reference to a link. Dropping the last one may free a whole conversation. */
static void let_go(struct response_store *s, struct response_link *l)
{
    while (l && --l->n_holder == 0) {
        struct response_link *previous = l->previous;
        struct owner *o = owner_of(s, l->tenant);
        ASSERT(o && o->n_link > 0 && o->bytes >= link_bytes(l));
        s->bytes -= link_bytes(l);
        s->n_link--;
        o->bytes -= link_bytes(l);
        o->n_link--;
        drop_idle_owner(s, o);
        free_link(l);
        l = previous;
    }
}

static void unlist(struct response_store *s, struct response_link *l)
{
    struct response_link **at = bucket_of(s, l->id);
    while (*at != l) at = &(*at)->next_in_bucket;
    *at = l->next_in_bucket;
    if (l->older)
        l->older->newer = l->newer;
    else
        s->oldest = l->newer;
    if (l->newer)
        l->newer->older = l->older;
    else
        s->newest = l->older;
    l->listed = false;
    s->n_listed--;
    owner_of(s, l->tenant)->n_listed--;
    let_go(s, l);
}

void response_store_destroy(struct response_store *s)
{
    if (!s) return;
    while (s->oldest) unlist(s, s->oldest);
    ASSERT(s->n_link == 0 && s->n_owner == 0);
    mem_free(s->owners);
    (void)pthread_mutex_destroy(&s->lock);
    mem_free(s);
}

/* ---- bounds -------------------------------------------------------------------------------- */

static void drop_old(struct response_store *s, uint64_t now_us)
{
    while (s->oldest && now_us > s->oldest->put_us + s->limits.age_us) unlist(s, s->oldest);
}

/* Bytes of a link and of all that it holds on to. */
static size_t conversation_bytes(const struct response_link *l)
{
    size_t n = 0;
    for (; l; l = l->previous) n += link_bytes(l);
    return n;
}

static void unlist_oldest_of(struct response_store *s, uint32_t tenant)
{
    struct response_link *l = s->oldest;
    while (l && l->tenant != tenant) l = l->newer;
    ASSERT(l); /* the tenant has a listed link */
    unlist(s, l);
}

static void make_room(struct response_store *s)
{
    while (s->oldest && (s->n_listed > s->limits.max || s->bytes > s->limits.bytes)) {
        unlist_oldest_of(s, greatest_owner(s, s->n_listed <= s->limits.max)->tenant);
    }
}

/* ---- requests ------------------------------------------------------------------------------ */

static struct response_link *find(struct response_store *s, const char *id, uint32_t tenant)
{
    struct response_link *l = *bucket_of(s, id);
    while (l && (l->tenant != tenant || strcmp(l->id, id) != 0)) l = l->next_in_bucket;
    return l;
}

static void list_link(struct response_store *s, struct response_link *l)
{
    struct response_link **bucket = bucket_of(s, l->id);
    l->next_in_bucket = *bucket;
    *bucket = l;
    l->older = s->newest;
    if (s->newest)
        s->newest->newer = l;
    else
        s->oldest = l;
    s->newest = l;
    l->listed = true;
    s->n_listed++;
    s->n_link++;
    s->bytes += link_bytes(l);
    struct owner *o = owner_of(s, l->tenant);
    o->n_listed++;
    o->n_link++;
    o->bytes += link_bytes(l);
}

fathom_err response_store_put(struct response_store *s, struct response_record *r, uint64_t now_us)
{
    struct response_link *l = mem_calloc(1, sizeof *l);
    ASSERT(strlen(r->id) < sizeof l->id && r->output_at + r->n_output <= r->body.len);
    if (!l) {
        buf_free(&r->items);
        buf_free(&r->body);
        return FATHOM_ENOMEM;
    }
    memcpy(l->id, r->id, strlen(r->id));
    l->tenant = r->tenant;
    l->n_holder = 1;
    l->items = r->items;
    l->body = r->body;
    l->output_at = r->output_at;
    l->n_output = r->n_output;
    r->items = r->body = (struct buf){0};
    (void)pthread_mutex_lock(&s->lock);
    l->previous = r->previous;
    fathom_err err = FATHOM_OK;
    if (conversation_bytes(l) > s->limits.bytes || (err = make_owner(s, l->tenant))) {
        free_link(l);
    } else {
        if (l->previous) l->previous->n_holder++;
        l->put_us = s->newest && s->newest->put_us > now_us ? s->newest->put_us : now_us;
        list_link(s, l);
        drop_old(s, now_us);
        make_room(s);
    }
    (void)pthread_mutex_unlock(&s->lock);
    return err;
}

struct response_link *response_store_hold(struct response_store *s, const char *id, uint32_t tenant,
                                          uint64_t now_us)
{
    (void)pthread_mutex_lock(&s->lock);
    drop_old(s, now_us);
    struct response_link *l = find(s, id, tenant);
    if (l) l->n_holder++;
    (void)pthread_mutex_unlock(&s->lock);
    return l;
}

void response_store_release(struct response_store *s, struct response_link *link)
{
    if (!link) return;
    (void)pthread_mutex_lock(&s->lock);
    let_go(s, link);
    (void)pthread_mutex_unlock(&s->lock);
}

bool response_store_drop(struct response_store *s, const char *id, uint32_t tenant, uint64_t now_us)
{
    (void)pthread_mutex_lock(&s->lock);
    drop_old(s, now_us);
    struct response_link *l = find(s, id, tenant);
    if (l) unlist(s, l);
    (void)pthread_mutex_unlock(&s->lock);
    return l != NULL;
}

/* ---- what a link holds --------------------------------------------------------------------- */

const struct buf *response_link_body(const struct response_link *link)
{
    return &link->body;
}

const struct buf *response_link_input(const struct response_link *link)
{
    return &link->items;
}

static fathom_err append_items(const char *text, size_t n, json_t *items)
{
    json_t *more;
    json_arena_note_text(json_arena_entered(), n);
    fathom_err err = json_read(text, n, "stored items", &more, NULL);
    if (err) return FATHOM_ENOMEM; /* it is text of our own */
    if (json_array_extend(items, more) != 0) err = FATHOM_ENOMEM;
    json_decref(more);
    return err;
}

fathom_err response_link_items(const struct response_link *link, json_t *items)
{
    size_t n = 0;
    for (const struct response_link *l = link; l; l = l->previous) n++;
    const struct response_link **links = mem_alloc_array(n, sizeof *links);
    if (!links) return FATHOM_ENOMEM;
    size_t i = n;
    for (const struct response_link *l = link; l; l = l->previous) links[--i] = l;
    fathom_err err = FATHOM_OK;
    for (i = 0; !err && i < n; i++) {
        const struct response_link *l = links[i];
        err = append_items(buf_str(&l->items), l->items.len, items);
        if (!err) err = append_items(l->body.data + l->output_at, l->n_output, items);
    }
    mem_free(links);
    return err;
}

/* ---- state --------------------------------------------------------------------------------- */

struct response_store_count response_store_count(struct response_store *s)
{
    (void)pthread_mutex_lock(&s->lock);
    struct response_store_count c = {s->n_listed, s->n_link, s->bytes};
    (void)pthread_mutex_unlock(&s->lock);
    return c;
}

void response_store_check(struct response_store *s)
{
    size_t n = 0;
    (void)pthread_mutex_lock(&s->lock);
    const struct response_link *before = NULL;
    for (struct response_link *l = s->oldest; l; before = l, l = l->newer) {
        ASSERT(l->listed && l->older == before && l->n_holder >= 1);
        ASSERT(!before || before->put_us <= l->put_us);
        ASSERT(find(s, l->id, l->tenant) == l);
        ASSERT(!l->previous || l->previous->tenant == l->tenant);
        n++;
    }
    size_t n_listed = 0, n_link = 0, bytes = 0;
    for (size_t i = 0; i < s->n_owner; i++) {
        const struct owner *o = &s->owners[i];
        ASSERT(o->n_link > 0 && o->n_listed <= o->n_link && owner_of(s, o->tenant) == o);
        n_listed += o->n_listed;
        n_link += o->n_link;
        bytes += o->bytes;
    }
    ASSERT(n_listed == s->n_listed && n_link == s->n_link && bytes == s->bytes);
    ASSERT(s->newest == before && n == s->n_listed && n <= s->n_link && n <= s->limits.max);
    (void)pthread_mutex_unlock(&s->lock);
}

void response_store_dump(struct response_store *s, struct buf *out)
{
    struct response_store_count c = response_store_count(s);
    (void)buf_printf(out, "responses n_listed=%zu n_link=%zu bytes=%zu max=%zu max_bytes=%zu",
                     c.n_listed, c.n_link, c.bytes, s->limits.max, s->limits.bytes);
}
