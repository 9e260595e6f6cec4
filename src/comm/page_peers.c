/* page_peers.c - connections to other servers, and requests for records over them
 *
 *   no link --dial, greet--> READY --WANT, PAGE or MISS--> READY
 *      ^                       +--- anything else: closed; a link that was there before is made
 *      +---- DOWN, PEER_DOWN_US <--- anew once, because the server may have been started anew
 *
 * Each lane's thread has a link of its own to a server. The link for FIND belongs to the thread
 * that holds the server's lock. Keys to release wait in a ring, under `lock`; one thread takes them
 * from there, and the link for RELEASE belongs to it. */
#include "comm/page_peers.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/fail.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/os.h"
#include "comm/tcp_link.h"

enum { LOG_US = 60000000 };

/* A connection, and whose records come over it. */
struct lane {
    struct page_link *link; /* NULL: none */
    struct hash128 owner;
    uint64_t n_asked;
};

struct peer {
    char host[PEER_HOST_BYTES];
    uint16_t port;
    struct lane lanes[PEERS_LANES_MAX];
    atomic_uint_fast64_t down_us; /* until then it is not asked */
    atomic_uint_fast64_t logged_us;
    pthread_mutex_t lock; /* of `finder` */
    struct lane finder;
    struct lane releaser;
    /* under the lock of all */
    uint32_t n_ref; /* its place, and who works with it */
    uint64_t used_us;
};

/* A record that a server need not keep. */
struct release {
    uint32_t place;
    struct hash128 key;
};

struct page_peers {
    struct page_source base; /* first member */
    struct page_peers_config c;
    int stop_fd;
    pthread_t releaser;
    bool has_releaser;
    pthread_mutex_t lock; /* of what follows */
    uint32_t n_peer;
    uint32_t n_kept; /* the first so many */
    struct peer *peers[PEERS_MAX];
    pthread_cond_t due; /* there are releases, or it ends */
    bool ends;
    struct release releases[PEERS_RELEASES_MAX]; /* ring */
    uint32_t first_release, n_release;
};

static void hang_up(struct lane *l)
{
    if (l->link) l->link->ops->close(l->link);
    l->link = NULL;
}

static void free_peer(struct peer *peer)
{
    for (unsigned k = 0; k < PEERS_LANES_MAX; k++) hang_up(&peer->lanes[k]);
    hang_up(&peer->finder);
    hang_up(&peer->releaser);
    pthread_mutex_destroy(&peer->lock);
    mem_free(peer);
}

static struct peer *use_place(struct page_peers *p, uint32_t place)
{
    ASSERT(place < p->n_peer);
    struct peer *peer = p->peers[place];
    peer->used_us = clock_now_us();
    peer->n_ref++;
    return peer;
}

static struct peer *take_peer(struct page_peers *p, uint32_t place)
{
    pthread_mutex_lock(&p->lock);
    struct peer *peer = use_place(p, place);
    pthread_mutex_unlock(&p->lock);
    return peer;
}

/* Drops a reference. If the server has lost its place meanwhile, the last reference frees it. */
static void give_peer(struct page_peers *p, struct peer *peer)
{
    pthread_mutex_lock(&p->lock);
    bool is_last = --peer->n_ref == 0;
    pthread_mutex_unlock(&p->lock);
    if (is_last) free_peer(peer);
}

static fathom_err connect_lane(struct page_peers *p, struct peer *peer, struct lane *l,
                               fathom_diag *d)
{
    struct page_hello hello;
    uint64_t now_us = clock_now_us();
    TRY(tcp_link_dial(&l->link, peer->host, peer->port, now_us + PEER_DIAL_US, p->stop_fd, d));
    fathom_err err = page_greet(&l->link, &p->c.self, &hello, now_us + PEER_GREETING_US, d);
    if (err) {
        hang_up(l);
        return err;
    }
    l->owner = identity_key(&hello.identity);
    return FATHOM_OK;
}

static fathom_err pull(struct page_peers *p, struct lane *l, const struct tier_name *name,
                       void *page, uint64_t *sum, enum tier_verdict *verdict, fathom_diag *d)
{
    unsigned char body[WANT_BYTES];
    const uint64_t page_bytes = p->c.self.page_bytes;
    unsigned char busy[MISS_BYTES];
    uint64_t end_us = clock_now_us() + PEER_PAGE_US;
    struct frame f;
    struct tier_header h;
    ASSERT(l->link);
    want_write(body, name);
    const struct link_part part = {body, sizeof body};
    TRY(link_send_frame(l->link, FRAME_WANT, ++l->n_asked, &part, 1, end_us, d));
    TRY(link_receive_frame(l->link, &f, page_bytes, end_us, d));
    if (f.stream != l->n_asked || (f.type != FRAME_PAGE && f.type != FRAME_MISS)) {
        FAIL(d, FATHOM_EFORMAT, "a frame of type %d answers what nobody asked", (int)f.type);
    }
    if (f.type == FRAME_MISS) {
        TRY(l->link->ops->receive(l->link, busy, sizeof busy, end_us, d));
        *sum = (uint64_t)number_read(busy) * 1000;
        *verdict = TIER_NOT_YET;
        return FATHOM_OK;
    }
    TRY(l->link->ops->receive(l->link, &h, sizeof h, end_us, d));
    TRY(l->link->ops->receive(l->link, page, page_bytes, end_us, d));
    *verdict = tier_record_judge(&h, &l->owner, page_bytes, name, page);
    *sum = h.page_sum;
    return FATHOM_OK;
}

static void note_failure(struct peer *peer, const char *cause)
{
    uint64_t now_us = clock_now_us();
    uint64_t logged_us = atomic_load(&peer->logged_us);
    if (logged_us != 0 && now_us < logged_us + LOG_US) return;
    atomic_store(&peer->logged_us, now_us);
    LOG_WARN("kv", "pages of %s:%u: %s (told once a minute)", peer->host, peer->port, cause);
}

static enum tier_verdict read_from(struct page_peers *p, struct peer *peer, unsigned worker,
                                   const struct tier_name *name, void *page, uint64_t *sum,
                                   fathom_diag *d)
{
    enum tier_verdict verdict = TIER_BAD_IO;
    fathom_diag cause = {{0}};
    struct lane *l = &peer->lanes[worker];
    if (clock_now_us() < atomic_load(&peer->down_us)) return TIER_BAD_IO;
    for (bool again = true; again;) {
        diag_clear(&cause);
        again = l->link != NULL;
        fathom_err err = l->link ? FATHOM_OK : connect_lane(p, peer, l, &cause);
        if (!err) err = pull(p, l, name, page, sum, &verdict, &cause);
        if (!err && verdict != TIER_GOOD && verdict != TIER_NOT_YET) {
            (void)diag_fail(&cause, FATHOM_EFORMAT, "a record was not taken: %s",
                            tier_verdict_name(verdict));
            note_failure(peer, cause.text);
        }
        if (!err) return verdict;
        hang_up(l);
    }
    atomic_store(&peer->down_us, clock_now_us() + PEER_DOWN_US);
    note_failure(peer, cause.text);
    (void)diag_fail(d, FATHOM_EIO, "%s", cause.text);
    return TIER_BAD_IO;
}

static enum tier_verdict read_page(struct page_source *base, unsigned worker, uint32_t place,
                                   const struct tier_name *name, void *page, uint64_t *sum,
                                   fathom_diag *d)
{
    struct page_peers *p = (struct page_peers *)base;
    ASSERT(worker < p->c.n_lane);
    struct peer *peer = take_peer(p, place);
    enum tier_verdict verdict = read_from(p, peer, worker, name, page, sum, d);
    give_peer(p, peer);
    return verdict;
}

/* How many of the keys the server has, asked over a lane that is the caller's. */
static fathom_err find(struct page_peers *p, struct peer *peer, struct lane *l,
                       const struct hash128 *keys, uint32_t n, uint64_t patience_us,
                       uint32_t *n_found, fathom_diag *d)
{
    unsigned char out[4];
    struct frame f;
    if (!l->link) TRY(connect_lane(p, peer, l, d));
    ASSERT(l->link);
    unsigned char *body = mem_alloc_array(n, sizeof *keys);
    if (!body) return FATHOM_ENOMEM;
    find_write(body, keys, n);
    uint64_t end_us = clock_now_us() + patience_us;
    const struct link_part part = {body, n * sizeof *keys};
    fathom_err err = link_send_frame(l->link, FRAME_FIND, ++l->n_asked, &part, 1, end_us, d);
    if (!err) err = link_receive_frame(l->link, &f, 0, end_us, d);
    if (!err && (f.type != FRAME_FOUND || f.stream != l->n_asked)) {
        err = diag_fail(d, FATHOM_EFORMAT, "a frame of type %d answers FIND", (int)f.type);
    }
    if (!err) err = l->link->ops->receive(l->link, out, sizeof out, end_us, d);
    mem_free(body);
    if (!err) *n_found = number_read(out);
    return err;
}

/* ---- records that nobody will ask for ---- */

static void release(struct page_source *base, uint32_t place, const struct hash128 *key)
{
    struct page_peers *p = (struct page_peers *)base;
    pthread_mutex_lock(&p->lock);
    ASSERT(place < p->n_peer);
    bool was_idle = p->n_release == 0;
    if (p->n_release < PEERS_RELEASES_MAX) {
        uint32_t at = (p->first_release + p->n_release++) % PEERS_RELEASES_MAX;
        p->releases[at] = (struct release){place, *key};
    }
    if (was_idle) pthread_cond_signal(&p->due);
    pthread_mutex_unlock(&p->lock);
}

/* Waits for keys of one server, in order; NULL: no more will come.
 *
 *   keys  [FRAME_KEYS_MAX] */
static struct peer *take_releases(struct page_peers *p, struct hash128 *keys, uint32_t *n)
{
    struct peer *peer = NULL;
    *n = 0;
    pthread_mutex_lock(&p->lock);
    while (p->n_release == 0 && !p->ends) pthread_cond_wait(&p->due, &p->lock);
    uint32_t place = p->releases[p->first_release].place;
    while (!p->ends && p->n_release > 0 && *n < FRAME_KEYS_MAX) {
        const struct release *r = &p->releases[p->first_release];
        if (r->place != place) break;
        keys[(*n)++] = r->key;
        p->first_release = (p->first_release + 1) % PEERS_RELEASES_MAX;
        p->n_release--;
    }
    if (*n > 0) peer = use_place(p, place);
    pthread_mutex_unlock(&p->lock);
    return peer;
}

/* RELEASE has no answer, so a FIND follows, whose answer shows that the RELEASE has arrived.
 * Without it the bytes could stay with the system, or with UCX, which makes progress only while a
 * thread waits. */
static fathom_err send_releases(struct page_peers *p, struct peer *peer, const struct hash128 *keys,
                                unsigned char *body, uint32_t n, fathom_diag *d)
{
    struct lane *l = &peer->releaser;
    uint32_t n_found;
    if (!l->link) TRY(connect_lane(p, peer, l, d));
    find_write(body, keys, n);
    const struct link_part part = {body, n * sizeof *keys};
    uint64_t end_us = clock_now_us() + PEER_RELEASE_US;
    TRY(link_send_frame(l->link, FRAME_RELEASE, ++l->n_asked, &part, 1, end_us, d));
    return find(p, peer, l, keys, 1, PEER_RELEASE_US, &n_found, d);
}

/* Tells a server which keys to release, even one that has failed lately. No request waits for this,
 * so it is tried several times, over new connections. */
static void tell_releases(struct page_peers *p, struct peer *peer, const struct hash128 *keys,
                          unsigned char *body, uint32_t n)
{
    fathom_diag cause = {{0}};
    fathom_err err = FATHOM_EIO;
    for (unsigned i = 0; err && i < PEER_RELEASE_TRIES; i++) {
        diag_clear(&cause);
        err = send_releases(p, peer, keys, body, n, &cause);
        if (err) hang_up(&peer->releaser);
    }
    if (err)
        LOG_DEBUG("kv", "pages of %s:%u: not released: %s", peer->host, peer->port, cause.text);
}

static void *release_main(void *arg)
{
    struct page_peers *p = arg;
    struct hash128 *keys = mem_alloc_array(FRAME_KEYS_MAX, sizeof *keys);
    unsigned char *body = mem_alloc_array(FRAME_KEYS_MAX, sizeof *keys);
    struct peer *peer;
    uint32_t n;
    os_name_thread("kv-release");
    while (keys && body && (peer = take_releases(p, keys, &n))) {
        tell_releases(p, peer, keys, body, n);
        give_peer(p, peer);
    }
    mem_free(keys);
    mem_free(body);
    return NULL;
}

static void end_releaser(struct page_peers *p)
{
    if (!p->has_releaser) return;
    pthread_mutex_lock(&p->lock);
    p->ends = true;
    pthread_cond_signal(&p->due);
    pthread_mutex_unlock(&p->lock);
    pthread_join(p->releaser, NULL);
    p->has_releaser = false;
}

/* ---- life ---- */

static void stop(struct page_source *base)
{
    const uint64_t one = 1;
    if (write(((struct page_peers *)base)->stop_fd, &one, sizeof one) < 0) {
        LOG_WARN("kv", "connections to other servers cannot be ended");
    }
}

static const struct page_source_ops source_ops = {
    .read = read_page, .release = release, .stop = stop};

fathom_err page_peers_create(struct page_peers **out, const struct page_peers_config *c,
                             fathom_diag *d)
{
    *out = NULL;
    ASSERT(c->n_lane >= 1 && c->n_lane <= PEERS_LANES_MAX && c->self.page_bytes > 0);
    struct page_peers *p = mem_calloc(1, sizeof *p);
    if (!p) FAIL(d, FATHOM_ENOMEM, "no memory for connections to other servers");
    p->base.ops = &source_ops;
    p->c = *c;
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->due, NULL);
    p->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (p->stop_fd < 0) {
        page_peers_destroy(p);
        FAIL(d, FATHOM_EIO, "no descriptor is left for connections to other servers");
    }
    p->has_releaser = pthread_create(&p->releaser, NULL, release_main, p) == 0;
    if (!p->has_releaser) {
        page_peers_destroy(p);
        FAIL(d, FATHOM_EIO, "a thread for connections to other servers cannot be started");
    }
    *out = p;
    return FATHOM_OK;
}

void page_peers_destroy(struct page_peers *p)
{
    if (!p) return;
    if (p->stop_fd >= 0) stop(&p->base);
    end_releaser(p);
    for (uint32_t i = 0; i < p->n_peer; i++) free_peer(p->peers[i]);
    if (p->stop_fd >= 0) (void)close(p->stop_fd);
    pthread_cond_destroy(&p->due);
    pthread_mutex_destroy(&p->lock);
    mem_free(p);
}

struct page_source *page_peers_source(struct page_peers *p)
{
    return &p->base;
}

static struct peer *make_peer(const char *host, uint16_t port)
{
    struct peer *peer = mem_calloc(1, sizeof *peer);
    if (!peer) return NULL;
    (void)snprintf(peer->host, sizeof peer->host, "%s", host);
    peer->port = port;
    peer->n_ref = 1;
    pthread_mutex_init(&peer->lock, NULL);
    return peer;
}

/* The place that was used the longest ago, of those that need not be kept; PEERS_MAX: none. */
static uint32_t oldest_place(const struct page_peers *p)
{
    uint32_t oldest = p->n_kept;
    for (uint32_t i = p->n_kept; i < p->n_peer; i++) {
        if (p->peers[i]->used_us < p->peers[oldest]->used_us) oldest = i;
    }
    return oldest;
}

/* With the lock held; gone: who has lost the place. */
static fathom_err find_place(struct page_peers *p, const char *host, uint16_t port, uint32_t *place,
                             struct peer **gone)
{
    uint32_t i = 0;
    while (i < p->n_peer && (p->peers[i]->port != port || strcmp(p->peers[i]->host, host) != 0))
        i++;
    if (i == PEERS_MAX) i = oldest_place(p);
    *place = i;
    if (i == PEERS_MAX) return FATHOM_ELIMIT;
    bool is_known =
        i < p->n_peer && p->peers[i]->port == port && strcmp(p->peers[i]->host, host) == 0;
    if (!is_known) {
        struct peer *made = make_peer(host, port);
        if (!made) return FATHOM_ENOMEM;
        if (i < p->n_peer) *gone = p->peers[i];
        p->peers[i] = made;
        if (i == p->n_peer) p->n_peer++;
    }
    p->peers[i]->used_us = clock_now_us();
    return FATHOM_OK;
}

fathom_err page_peers_place(struct page_peers *p, const char *host, uint16_t port, uint32_t *place,
                            fathom_diag *d)
{
    if (port == 0 || host[0] == '\0' || strlen(host) >= PEER_HOST_BYTES) {
        FAIL(d, FATHOM_EINVAL, "%.64s:%u is no address of a server of pages", host, port);
    }
    pthread_mutex_lock(&p->lock);
    struct peer *gone = NULL;
    fathom_err err = find_place(p, host, port, place, &gone);
    pthread_mutex_unlock(&p->lock);
    if (gone) give_peer(p, gone);
    if (err) FAIL(d, err, "%s:%u is one more than %d servers of pages", host, port, PEERS_MAX);
    return FATHOM_OK;
}

void page_peers_keep(struct page_peers *p)
{
    pthread_mutex_lock(&p->lock);
    p->n_kept = p->n_peer;
    pthread_mutex_unlock(&p->lock);
}

uint32_t page_peers_find(struct page_peers *p, uint32_t place, const struct hash128 *keys,
                         uint32_t n)
{
    fathom_diag cause = {{0}};
    uint32_t n_found = 0;
    if (n > FRAME_KEYS_MAX) n = FRAME_KEYS_MAX;
    if (n == 0) return 0;
    struct peer *peer = take_peer(p, place);
    pthread_mutex_lock(&peer->lock); /* if another thread fails meanwhile, down_us says so */
    fathom_err err = clock_now_us() < atomic_load(&peer->down_us) ? FATHOM_OK : FATHOM_EIO;
    for (bool again = true; err && again;) {
        again = peer->finder.link != NULL;
        diag_clear(&cause);
        err = find(p, peer, &peer->finder, keys, n, PEER_FIND_US, &n_found, &cause);
        if (err) hang_up(&peer->finder);
    }
    if (err) atomic_store(&peer->down_us, clock_now_us() + PEER_DOWN_US);
    pthread_mutex_unlock(&peer->lock);
    if (err) note_failure(peer, cause.text[0] ? cause.text : fathom_err_text(err));
    give_peer(p, peer);
    return n_found <= n ? n_found : 0;
}
