/* stage_net.c - packets of rows, of draws and of records, and the threads that send and receive
 * them
 *
 *   packet    { struct packet } and bytes. For rows: f32 [n_row][width]. For draws: ids, their
 *             log-probabilities and ranks [n_row], and alternatives if there are any. For a record:
 *             its bytes. Hosts run the same build (host_hello.h), so structs are sent as they are
 *   sending   a lock for the link to host 0, over which several threads of another host send: the
 *             sender, a rank that tells draws, and who tells records
 *   lock      guards state, n_drawn and records
 *   state     as in the header. Between WORKS and BROKEN it is ENDS: one thread ends the net, and
 *             first tells which host is lost, so that the reason is known to all who fail by it
 *   links     written by stage_net_begin; others use them while the state is WORKS. Their owner
 *             closes them once the ranks and the threads of the net are idle
 *   record    of a receiver. Who waits for a record writes where it goes; the receiver sets
 *             IS_COMING and then HAS_COME. When the wait is over, nobody writes there any more
 *   drawn     a ring with room for one step more than may be under way. An entry is written before
 *             n_drawn counts it, and stays as it is until n_block more have come
 */
#include "engine/stage_net.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/fail.h"
#include "base/mem.h"
#include "base/os.h"
#include "comm/host_frame.h"
#include "comm/tcp_link.h"
#include "engine/step_drawn.h"

enum {
    SEND_US = 60000000, /* for a host that lives to take a packet: it does so all the time */
    PIECE_BYTES = 1 << 16,
    WHY_BYTES = 200,
};

enum packet_kind { PACKET_ROWS = 1, PACKET_DRAWN, PACKET_RECORD };

struct packet {
    uint32_t kind;
    uint32_t to; /* host */
    uint32_t n_top;
    uint32_t n_record;      /* bytes of a record */
    struct stage_head head; /* for draws, n_row may be 0 */
};

struct drawn {
    uint32_t block;
    uint32_t n_row;
    bool has_top;
    struct expert_counts experts;
    unsigned char *bytes; /* of max_draw rows */
};

/* The part of a page's record that another host has, which host 0 waits for. */
struct record {
    enum { RECORD_NONE, RECORD_DUE, RECORD_IS_COMING, RECORD_HAS_COME } state;
    void *to;
    size_t n_bytes;
};

/* A thread that receives from one host. */
struct receiver {
    struct stage_net *net;
    uint32_t node_rank;
    pthread_t thread;
    bool has_thread;
    unsigned char *piece; /* host 0: part of a packet that is passed on to another host */
    struct record record; /* host 0 */
};

enum net_state { NET_IDLE, NET_WORKS, NET_ENDS, NET_BROKEN };

struct stage_net {
    struct stage_net_config c;
    struct stage_hop *in;
    struct stage_hop *out;
    pthread_mutex_t sending;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    enum net_state state;
    struct page_link *links[HOSTS_MAX];
    struct receiver receivers[HOSTS_MAX];
    pthread_t sender;
    bool has_sender;
    struct drawn *drawn; /* host 0: [n_block + 1] */
    uint64_t n_drawn;
    uint64_t n_waited; /* how many were taken; used only by the thread that waits for them */
};

/* ---- bytes ---------------------------------------------------------------------------------- */

static size_t row_bytes(const struct stage_net *n, uint32_t n_row)
{
    return (size_t)n_row * n->c.width * sizeof(float);
}

static size_t body_bytes(const struct stage_net *n, const struct packet *p)
{
    if (p->kind == PACKET_ROWS) return row_bytes(n, p->head.n_row);
    return step_drawn_bytes(p->head.n_row, p->n_top > 0);
}

/* Checks that a packet from a host may come here. */
static fathom_err check_packet(const struct stage_net *n, const struct packet *p, uint32_t from,
                               fathom_diag *d)
{
    const struct stage_head *h = &p->head;
    const bool leads = n->c.node_rank == 0;
    ASSERT(from < n->c.n_node && from != n->c.node_rank);
    bool fits = h->block < n->c.n_block;
    if (p->kind == PACKET_RECORD) {
        fits = leads && p->to == 0;
    } else if (p->kind == PACKET_ROWS) {
        fits = fits && h->n_row >= 1 && h->n_row <= n->c.max_row;
        fits = fits && p->to == (leads ? from + 1 : n->c.node_rank) && p->to < n->c.n_node;
    } else {
        fits = fits && p->kind == PACKET_DRAWN && h->n_row <= n->c.max_draw;
        fits = fits && leads && p->to == 0 && from + 1 == n->c.n_node && p->n_top <= SAMPLE_TOP_MAX;
    }
    if (fits) return FATHOM_OK;
    FAIL(d, FATHOM_EFORMAT,
         "it sends %u rows of block %u to host %u in a packet of kind %u, which is not expected",
         h->n_row, h->block, p->to, p->kind);
}

/* ---- state ---------------------------------------------------------------------------------- */

static bool does_work(struct stage_net *n)
{
    pthread_mutex_lock(&n->lock);
    const bool works = n->state == NET_WORKS || n->state == NET_ENDS;
    pthread_mutex_unlock(&n->lock);
    return works;
}

/* Whether it is for the caller to end the net. If not, another thread does, or the net does not
 * work.
 */
static bool claim_end(struct stage_net *n, enum net_state *before)
{
    pthread_mutex_lock(&n->lock);
    *before = n->state;
    if (n->state == NET_WORKS) n->state = NET_ENDS;
    pthread_mutex_unlock(&n->lock);
    return *before == NET_WORKS;
}

/* Called by the thread that ends the net, once host 0 knows which host is lost: wakes all who wait.
 */
static void break_links(struct stage_net *n)
{
    pthread_mutex_lock(&n->lock);
    ASSERT(n->state == NET_ENDS);
    n->state = NET_BROKEN;
    for (uint32_t r = 0; r < n->c.n_node; r++) {
        if (n->links[r]) tcp_link_break(n->links[r]);
    }
    pthread_cond_broadcast(&n->changed);
    pthread_mutex_unlock(&n->lock);
}

static void break_hops(struct stage_net *n, const char *why)
{
    ASSERT(why[0] != '\0');
    if (n->in) stage_hop_break(n->in, why);
    if (n->out) stage_hop_break(n->out, why);
}

void stage_net_break(struct stage_net *n, const char *why)
{
    enum net_state before;
    const bool is_mine = claim_end(n, &before);
    if (before != NET_ENDS) break_hops(n, why);
    if (is_mine) break_links(n);
}

/* The link to a host has failed: ends the net. */
static void lose(struct stage_net *n, uint32_t node_rank, const char *why)
{
    char text[WHY_BYTES];
    enum net_state before;
    ASSERT(node_rank < n->c.n_node && node_rank != n->c.node_rank);
    if (!claim_end(n, &before)) return;
    (void)snprintf(text, sizeof text, "host %u is lost: %s", node_rank, why);
    if (n->c.lost) n->c.lost(n->c.arg, node_rank, why);
    break_hops(n, text);
    break_links(n);
}

/* ---- sending -------------------------------------------------------------------------------- */

static uint64_t patience(void)
{
    return clock_now_us() + SEND_US;
}

/* The host to which a packet is sent first: host 0 passes on what is for another one. */
static uint32_t next_hop(const struct stage_net *n, uint32_t to)
{
    return n->c.node_rank == 0 ? to : 0;
}

static fathom_err send_packet(struct stage_net *n, const struct packet *p,
                              const struct link_part *body, size_t n_part)
{
    struct link_part parts[LINK_PARTS_MAX] = {{p, sizeof *p}};
    fathom_diag why = {{0}};
    const uint32_t r = next_hop(n, p->to);
    struct page_link *l = n->links[r];
    ASSERT(n_part < LINK_PARTS_MAX && l);
    for (size_t i = 0; i < n_part; i++) parts[1 + i] = body[i];
    if (r == 0) pthread_mutex_lock(&n->sending);
    const fathom_err err = l->ops->send(l, parts, 1 + n_part, patience(), &why);
    if (r == 0) pthread_mutex_unlock(&n->sending);
    if (!err) return FATHOM_OK;
    lose(n, r, why.text);
    return FATHOM_EPEER;
}

static void *send_main(void *arg)
{
    struct stage_net *n = arg;
    struct packet p = {.kind = PACKET_ROWS, .to = n->c.node_rank + 1};
    ASSERT(n->out && p.to < n->c.n_node);
    os_name_thread("stage-out");
    while (stage_hop_next(n->out, 0, &p.head) == FATHOM_OK) {
        const struct link_part rows = {stage_hop_room(n->out, p.head.block),
                                       row_bytes(n, p.head.n_row)};
        if (send_packet(n, &p, &rows, 1)) break;
        stage_hop_release(n->out, p.head.block);
    }
    stage_net_break(n, "its rows are not sent any more");
    return NULL;
}

fathom_err stage_net_tell_drawn(struct stage_net *n, uint32_t block,
                                const struct step_result *drawn, uint32_t n_row, uint32_t n_top)
{
    const struct packet p = {.kind = PACKET_DRAWN,
                             .n_top = n_top,
                             .head = {.block = block, .n_row = n_row, .experts = drawn->experts}};
    struct link_part parts[DRAWN_PARTS_MAX];
    ASSERT(n->c.node_rank + 1 == n->c.n_node && n_row <= n->c.max_draw && block < n->c.n_block);
    if (!does_work(n)) return FATHOM_EPEER;
    return send_packet(n, &p, parts, step_drawn_parts(parts, drawn, n_row, n_top > 0));
}

fathom_err stage_net_tell_record(struct stage_net *n, const void *record, size_t n_bytes)
{
    const struct packet p = {.kind = PACKET_RECORD, .n_record = (uint32_t)n_bytes};
    const struct link_part part = {record, n_bytes};
    ASSERT(n->c.node_rank > 0 && n_bytes <= UINT32_MAX);
    if (!does_work(n)) return FATHOM_EPEER;
    return send_packet(n, &p, &part, 1);
}

/* ---- receiving ------------------------------------------------------------------------------ */

static fathom_err receive(struct page_link *l, void *to, size_t n, fathom_diag *d)
{
    return l->ops->receive(l, to, n, UINT64_MAX, d);
}

/* Takes rows for this host's first stage. */
static fathom_err take_rows(struct stage_net *n, struct page_link *l, const struct packet *p,
                            fathom_diag *d)
{
    float *room = stage_hop_room(n->in, p->head.block);
    ASSERT(p->kind == PACKET_ROWS && p->head.n_row <= n->c.max_row);
    TRY(stage_hop_claim(n->in, p->head.block));
    TRY(receive(l, room, row_bytes(n, p->head.n_row), d));
    return stage_hop_give(n->in, &p->head);
}

static fathom_err take_drawn(struct stage_net *n, struct page_link *l, const struct packet *p,
                             fathom_diag *d)
{
    struct drawn *to = &n->drawn[n->n_drawn % (n->c.n_block + 1)];
    ASSERT(p->kind == PACKET_DRAWN && p->head.n_row <= n->c.max_draw);
    TRY(receive(l, to->bytes, body_bytes(n, p), d));
    to->block = p->head.block;
    to->n_row = p->head.n_row;
    to->has_top = p->n_top > 0;
    to->experts = p->head.experts;
    pthread_mutex_lock(&n->lock);
    n->n_drawn++;
    pthread_cond_broadcast(&n->changed);
    pthread_mutex_unlock(&n->lock);
    return FATHOM_OK;
}

/* Host 0: takes a record for the thread that waits for it. */
static fathom_err take_record(struct receiver *r, struct page_link *l, const struct packet *p,
                              fathom_diag *d)
{
    struct stage_net *n = r->net;
    struct record *record = &r->record;
    pthread_mutex_lock(&n->lock);
    const bool is_due = record->state == RECORD_DUE && record->n_bytes == p->n_record;
    if (is_due) record->state = RECORD_IS_COMING;
    pthread_mutex_unlock(&n->lock);
    if (!is_due)
        FAIL(d, FATHOM_EFORMAT, "it sends %u bytes of a page, which are not expected", p->n_record);
    const fathom_err err = receive(l, record->to, record->n_bytes, d);
    pthread_mutex_lock(&n->lock);
    record->state = err ? RECORD_NONE : RECORD_HAS_COME;
    pthread_cond_broadcast(&n->changed);
    pthread_mutex_unlock(&n->lock);
    return err;
}

/* Host 0: passes a packet of one host on to another, in pieces. Returned errors other than EPEER
 * are of the link that it comes from. */
static fathom_err hand_on(struct receiver *r, struct page_link *l, const struct packet *p,
                          fathom_diag *d)
{
    struct stage_net *n = r->net;
    size_t left = body_bytes(n, p);
    ASSERT(r->piece && p->to < n->c.n_node && p->to != r->node_rank);
    TRY(send_packet(n, p, NULL, 0));
    while (left > 0) {
        const size_t some = left < PIECE_BYTES ? left : PIECE_BYTES;
        struct page_link *to = n->links[p->to];
        const struct link_part part = {r->piece, some};
        fathom_diag why = {{0}};
        TRY(receive(l, r->piece, some, d));
        if (to->ops->send(to, &part, 1, patience(), &why)) {
            lose(n, p->to, why.text);
            return FATHOM_EPEER;
        }
        left -= some;
    }
    return FATHOM_OK;
}

static fathom_err receive_all(struct receiver *r, fathom_diag *d)
{
    struct stage_net *n = r->net;
    struct page_link *l = n->links[r->node_rank];
    ASSERT(l && r->node_rank != n->c.node_rank);
    for (;;) {
        struct packet p;
        TRY(receive(l, &p, sizeof p, d));
        TRY(check_packet(n, &p, r->node_rank, d));
        if (p.to != n->c.node_rank)
            TRY(hand_on(r, l, &p, d));
        else if (p.kind == PACKET_RECORD)
            TRY(take_record(r, l, &p, d));
        else if (p.kind == PACKET_ROWS)
            TRY(take_rows(n, l, &p, d));
        else
            TRY(take_drawn(n, l, &p, d));
    }
}

static void *receive_main(void *arg)
{
    struct receiver *r = arg;
    fathom_diag d = {{0}};
    os_name_thread("stage-in");
    const fathom_err err = receive_all(r, &d);
    lose(r->net, r->node_rank, d.text[0] ? d.text : fathom_err_text(err));
    return NULL;
}

fathom_err stage_net_await_drawn(struct stage_net *n, uint32_t block, struct step_result *out)
{
    ASSERT(n->drawn && block < n->c.n_block);
    pthread_mutex_lock(&n->lock);
    while ((n->state == NET_WORKS || n->state == NET_ENDS) && n->n_drawn == n->n_waited)
        pthread_cond_wait(&n->changed, &n->lock);
    const bool has_come = n->n_drawn > n->n_waited;
    pthread_mutex_unlock(&n->lock);
    if (!has_come) return FATHOM_EPEER;
    const struct drawn *from = &n->drawn[n->n_waited++ % (n->c.n_block + 1)];
    if (from->block != block) {
        lose(n, n->c.n_node - 1, "it has drawn another step than the oldest");
        return FATHOM_EPEER;
    }
    *out = step_drawn_read(from->bytes, from->n_row, from->has_top, &from->experts);
    return FATHOM_OK;
}

void stage_net_expect_record(struct stage_net *n, uint32_t node_rank, void *to, size_t n_bytes)
{
    struct record *record = &n->receivers[node_rank].record;
    ASSERT(n->c.node_rank == 0 && node_rank > 0 && node_rank < n->c.n_node);
    pthread_mutex_lock(&n->lock);
    ASSERT(record->state == RECORD_NONE);
    *record = (struct record){RECORD_DUE, to, n_bytes};
    pthread_mutex_unlock(&n->lock);
}

fathom_err stage_net_await_record(struct stage_net *n, uint32_t node_rank)
{
    struct record *record = &n->receivers[node_rank].record;
    pthread_mutex_lock(&n->lock);
    while (record->state == RECORD_IS_COMING ||
           (record->state == RECORD_DUE && (n->state == NET_WORKS || n->state == NET_ENDS)))
        pthread_cond_wait(&n->changed, &n->lock);
    const bool has_come = record->state == RECORD_HAS_COME;
    record->state = RECORD_NONE;
    pthread_mutex_unlock(&n->lock);
    return has_come ? FATHOM_OK : FATHOM_EPEER;
}

/* ---- life ----------------------------------------------------------------------------------- */

void stage_net_attach(struct stage_net *n, struct stage_hop *in, struct stage_hop *out)
{
    ASSERT(!n->in && !n->out && n->state == NET_IDLE);
    ASSERT((in == NULL) == (n->c.node_rank == 0));
    ASSERT((out == NULL) == (n->c.node_rank + 1 == n->c.n_node));
    n->in = in;
    n->out = out;
}

fathom_err stage_net_begin(struct stage_net *n, struct page_link *const *links, fathom_diag *d)
{
    ASSERT(!does_work(n) && (n->in || n->out));
    memcpy(n->links, links, n->c.n_node * sizeof *links);
    pthread_mutex_lock(&n->lock);
    n->n_drawn = n->n_waited = 0;
    n->state = NET_WORKS;
    pthread_mutex_unlock(&n->lock);
    bool works = true;
    for (uint32_t i = 0; i < n->c.n_node; i++) {
        struct receiver *r = &n->receivers[i];
        if (!n->links[i]) continue;
        r->has_thread = pthread_create(&r->thread, NULL, receive_main, r) == 0;
        works &= r->has_thread;
    }
    if (n->out) {
        n->has_sender = pthread_create(&n->sender, NULL, send_main, n) == 0;
        works &= n->has_sender;
    }
    if (works) return FATHOM_OK;
    stage_net_end(n);
    FAIL(d, FATHOM_EIO, "a thread of the way between hosts cannot be started");
}

void stage_net_end(struct stage_net *n)
{
    stage_net_break(n, "its hosts part");
    if (n->has_sender) pthread_join(n->sender, NULL);
    n->has_sender = false;
    for (uint32_t i = 0; i < n->c.n_node; i++) {
        struct receiver *r = &n->receivers[i];
        if (r->has_thread) pthread_join(r->thread, NULL);
        r->has_thread = false;
    }
    pthread_mutex_lock(&n->lock);
    while (n->state == NET_ENDS) pthread_cond_wait(&n->changed, &n->lock); /* a rank ends it */
    n->state = NET_IDLE;
    pthread_mutex_unlock(&n->lock);
}

static fathom_err make_buffers(struct stage_net *n)
{
    const struct stage_net_config *c = &n->c;
    for (uint32_t i = 1; c->node_rank == 0 && i + 1 < c->n_node; i++) {
        n->receivers[i].piece = mem_alloc(PIECE_BYTES);
        if (!n->receivers[i].piece) return FATHOM_ENOMEM;
    }
    if (c->node_rank > 0) return FATHOM_OK;
    n->drawn = mem_calloc(c->n_block + 1, sizeof *n->drawn);
    for (uint32_t i = 0; n->drawn && i <= c->n_block; i++) {
        n->drawn[i].bytes = mem_alloc_aligned(64, step_drawn_bytes(c->max_draw, true));
        if (!n->drawn[i].bytes) return FATHOM_ENOMEM;
    }
    return n->drawn ? FATHOM_OK : FATHOM_ENOMEM;
}

fathom_err stage_net_create(struct stage_net **out, const struct stage_net_config *c,
                            fathom_diag *d)
{
    *out = NULL;
    ASSERT(c->n_node >= 2 && c->n_node <= HOSTS_MAX && c->node_rank < c->n_node);
    ASSERT(c->n_block >= 1 && c->max_row >= 1 && c->width >= 1 && c->max_draw >= 1);
    struct stage_net *n = mem_calloc(1, sizeof *n);
    if (!n) FAIL(d, FATHOM_ENOMEM, "no memory for the way between hosts");
    n->c = *c;
    pthread_mutex_init(&n->sending, NULL);
    pthread_mutex_init(&n->lock, NULL);
    pthread_cond_init(&n->changed, NULL);
    for (uint32_t i = 0; i < c->n_node; i++) {
        n->receivers[i].net = n;
        n->receivers[i].node_rank = i;
    }
    if (make_buffers(n) == FATHOM_OK) {
        *out = n;
        return FATHOM_OK;
    }
    stage_net_destroy(n);
    FAIL(d, FATHOM_ENOMEM, "no memory for what %u hosts draw", c->n_node);
}

void stage_net_destroy(struct stage_net *n)
{
    if (!n) return;
    ASSERT(n->state == NET_IDLE);
    for (uint32_t i = 0; i < HOSTS_MAX; i++) mem_free(n->receivers[i].piece);
    for (uint32_t i = 0; n->drawn && i <= n->c.n_block; i++) mem_free(n->drawn[i].bytes);
    mem_free(n->drawn);
    pthread_cond_destroy(&n->changed);
    pthread_mutex_destroy(&n->lock);
    pthread_mutex_destroy(&n->sending);
    mem_free(n);
}
