/* host_runner.c - steps as WORK to other hosts, and sums over the data lanes
 *
 * A meeting goes through host 0: it takes what each host shows, in the order of hosts, and gives
 * every host what the others have shown. Nothing is added up on the way: every rank adds the same
 * parts in the order of ranks.
 *
 * WORK is { struct work } and the bytes of the block that it says: of a launch the prefix and the
 * extras, of a draw the masks. Hosts run one build (host_hello.h), so structs are sent as they are.
 */
#include "engine/host_runner.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "backend/backend.h"
#include "backend/host_group.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/fail.h"
#include "base/log.h"
#include "base/mem.h"
#include "comm/host_hub.h"
#include "comm/host_member.h"
#include "model/config.h"

/* Where ranks meet, as hosts tell each other. */
struct meeting {
    char op[24];
    uint32_t layer;
    uint32_t n_row;
    uint64_t n_bytes;
};

struct host_lanes {
    struct host_net net; /* first member */
    const fathom_hosts *hosts;
    struct host_hub *hub;       /* host 0's */
    struct host_member *member; /* another host's */
    size_t max_bytes;           /* that a rank shows */
    unsigned char *shown;       /* [n_rank][max_bytes] of other hosts' ranks */
    pthread_mutex_t lock;       /* of what follows */
    void (*changed)(void *arg);
    void *arg;
};

enum work_kind { WORK_LAUNCH = 1, WORK_DRAW };

struct work {
    uint64_t kind;
    struct step step;
};

/* ---- meetings ------------------------------------------------------------------------------- */

static struct host_lanes *lanes_of(struct host_net *net)
{
    return (struct host_lanes *)net;
}

static uint64_t patience(void)
{
    return clock_now_us() + (uint64_t)RANK_PATIENCE_MS * 1000;
}

static fathom_err send_bytes(struct page_link *l, const void *bytes, size_t n, fathom_diag *d)
{
    const struct link_part part = {bytes, n};
    return l->ops->send(l, &part, 1, patience(), d);
}

/* Ranks r0 .. r1 - 1 as they are shown. */
static fathom_err send_ranks(struct page_link *to, const void **shown, uint32_t r0, uint32_t r1,
                             size_t n_bytes, fathom_diag *d)
{
    ASSERT(r0 <= r1 && n_bytes > 0);
    for (uint32_t r = r0; r < r1; r++) TRY(send_bytes(to, shown[r], n_bytes, d));
    return FATHOM_OK;
}

static fathom_err receive_ranks(struct host_lanes *l, struct page_link *from, const void **shown,
                                uint32_t r0, uint32_t r1, size_t n_bytes, fathom_diag *d)
{
    ASSERT(r1 <= l->net.n_rank && n_bytes <= l->max_bytes);
    for (uint32_t r = r0; r < r1; r++) {
        unsigned char *to = l->shown + r * l->max_bytes;
        TRY(from->ops->receive(from, to, n_bytes, patience(), d));
        shown[r] = to;
    }
    return FATHOM_OK;
}

static fathom_err receive_meeting(struct page_link *from, const struct meeting *here,
                                  fathom_diag *d)
{
    struct meeting there;
    TRY(from->ops->receive(from, &there, sizeof there, patience(), d));
    if (memcmp(&there, here, sizeof there) == 0) return FATHOM_OK;
    there.op[sizeof there.op - 1] = '\0';
    FAIL(d, FATHOM_EFORMAT,
         "it is at %s of layer %u with %u rows, needed is %s of layer %u with %u", there.op,
         there.layer, there.n_row, here->op, here->layer, here->n_row);
}

/* Host 0 takes from host r, or gives to it. */
static fathom_err take_from(struct host_lanes *l, uint32_t r, const struct meeting *m,
                            const void **shown, fathom_diag *d)
{
    struct page_link *link = host_hub_data(l->hub, r);
    const uint32_t r0 = r * l->net.n_local;
    ASSERT(r >= 1 && r < l->hosts->n_node);
    TRY(receive_meeting(link, m, d));
    return receive_ranks(l, link, shown, r0, r0 + l->net.n_local, m->n_bytes, d);
}

static fathom_err give_to(struct host_lanes *l, uint32_t r, const struct meeting *m,
                          const void **shown, fathom_diag *d)
{
    struct page_link *link = host_hub_data(l->hub, r);
    const uint32_t r0 = r * l->net.n_local;
    ASSERT(r >= 1 && r < l->hosts->n_node);
    TRY(send_bytes(link, m, sizeof *m, d));
    TRY(send_ranks(link, shown, 0, r0, m->n_bytes, d));
    return send_ranks(link, shown, r0 + l->net.n_local, l->net.n_rank, m->n_bytes, d);
}

static fathom_err swap_on_host_0(struct host_lanes *l, const struct meeting *m, const void **shown)
{
    fathom_diag why = {{0}};
    fathom_err err = FATHOM_OK;
    if (!host_hub_is_whole(l->hub)) return FATHOM_EPEER;
    for (uint32_t k = 0; k < 2; k++) {
        for (uint32_t r = 1; !err && r < l->hosts->n_node; r++) {
            err = k == 0 ? take_from(l, r, m, shown, &why) : give_to(l, r, m, shown, &why);
            if (err) host_hub_lose(l->hub, r, why.text);
        }
    }
    return err ? FATHOM_EPEER : FATHOM_OK;
}

static fathom_err swap_on_another(struct host_lanes *l, const struct meeting *m, const void **shown,
                                  fathom_diag *d)
{
    struct page_link *link = host_member_data(l->member);
    const uint32_t r0 = l->net.first, r1 = r0 + l->net.n_local;
    ASSERT(r0 > 0 && r1 <= l->net.n_rank);
    TRY(send_bytes(link, m, sizeof *m, d));
    TRY(send_ranks(link, shown, r0, r1, m->n_bytes, d));
    TRY(receive_meeting(link, m, d));
    TRY(receive_ranks(l, link, shown, 0, r0, m->n_bytes, d));
    return receive_ranks(l, link, shown, r1, l->net.n_rank, m->n_bytes, d);
}

static fathom_err swap(struct host_net *net, const struct host_place *place, const void **shown,
                       char *fault, size_t n_fault)
{
    struct host_lanes *l = lanes_of(net);
    struct meeting m = {.layer = place->layer, .n_row = place->n_row, .n_bytes = place->n_bytes};
    fathom_diag why = {{0}};
    char text[HOST_TEXT_MAX + 1];
    ASSERT(place->n_bytes <= l->max_bytes);
    (void)snprintf(m.op, sizeof m.op, "%s", place->op);
    if (l->hub) {
        if (swap_on_host_0(l, &m, shown) == FATHOM_OK) return FATHOM_OK;
        host_hub_fault(l->hub, text);
        (void)snprintf(fault, n_fault, "%.180s", text);
        return FATHOM_EPEER;
    }
    if (swap_on_another(l, &m, shown, &why) == FATHOM_OK) return FATHOM_OK;
    (void)snprintf(fault, n_fault, "host 0 is lost: %.160s", why.text);
    return FATHOM_EPEER;
}

fathom_err host_lanes_create(struct host_lanes **out, const struct engine_settings *s,
                             const struct model_config *config, fathom_diag *d)
{
    enum { PAD = 64 }; /* values: backends pad rows to less */
    const struct model_limits *limits = &s->limits;
    const uint32_t n_rank = parallel_n_rank(&s->place.parallel);
    const uint32_t n_local = settings_n_rank(s);
    const size_t delta = (size_t)limits->max_token * (config->hidden + PAD);
    const size_t logits = (size_t)limits->max_logit_row * (config->n_vocab / n_rank + PAD);
    const size_t tops = (size_t)limits->max_logit_row * SAMPLE_TOP_MAX;
    size_t most = delta > logits ? delta : logits;
    if (tops > most) most = tops;
    *out = NULL;
    struct host_lanes *l = mem_calloc(1, sizeof *l);
    if (!l) FAIL(d, FATHOM_ENOMEM, "no memory for the lanes of hosts");
    pthread_mutex_init(&l->lock, NULL);
    l->net = (struct host_net){
        .first = s->hosts->node_rank * n_local, .n_local = n_local, .n_rank = n_rank, .swap = swap};
    l->hosts = s->hosts;
    l->max_bytes = 4 * most;
    l->shown = mem_alloc_aligned(64, n_rank * l->max_bytes);
    if (l->shown) {
        *out = l;
        return FATHOM_OK;
    }
    host_lanes_destroy(l);
    FAIL(d, FATHOM_ENOMEM, "no memory for what %u ranks of other hosts show", n_rank);
}

void host_lanes_destroy(struct host_lanes *l)
{
    if (!l) return;
    host_hub_destroy(l->hub);
    host_member_destroy(l->member);
    pthread_mutex_destroy(&l->lock);
    mem_free(l->shown);
    mem_free(l);
}

struct host_net *host_lanes_net(struct host_lanes *l)
{
    return &l->net;
}

/* ---- host 0's runner ------------------------------------------------------------------------ */

struct host_runner {
    struct step_runner base; /* first member */
    struct step_runner *ranks;
    struct host_lanes *lanes;
    char fault[HOST_TEXT_MAX + 1];
};

static struct host_runner *runner_of(struct step_runner *r)
{
    return (struct host_runner *)r;
}

static void destroy(struct step_runner *base)
{
    struct host_runner *r = runner_of(base);
    if (!r) return;
    r->ranks->ops->destroy(r->ranks); /* no step is under way: its lanes are idle */
    host_lanes_destroy(r->lanes);
    mem_free(r);
}

static fathom_err bind(struct step_runner *base)
{
    struct step_runner *ranks = runner_of(base)->ranks;
    return ranks->ops->bind(ranks);
}

static struct link_part part_of(const struct step_runner *r, size_t offset, size_t n)
{
    return (struct link_part){(const char *)r->host + offset, n};
}

static fathom_err launch(struct step_runner *base, const struct step *step)
{
    struct host_runner *r = runner_of(base);
    const struct work work = {.kind = WORK_LAUNCH, .step = *step};
    struct link_part parts[2 + SAMPLE_EXTRA_N] = {{&work, sizeof work},
                                                  part_of(base, 0, step->prefix_bytes)};
    size_t n = 2;
    ASSERT(base->host == r->ranks->host && step->prefix_bytes > 0);
    for (int i = 0; i < SAMPLE_EXTRA_N; i++) {
        const struct block_range *extra = &step->sampler.extras[i];
        if (extra->n_bytes > 0) parts[n++] = part_of(base, extra->offset, extra->n_bytes);
    }
    TRY(host_hub_tell(r->lanes->hub, parts, n));
    return r->ranks->ops->launch(r->ranks, step);
}

static fathom_err draw(struct step_runner *base, const struct step *step)
{
    struct host_runner *r = runner_of(base);
    const struct work work = {.kind = WORK_DRAW, .step = *step};
    const struct block_range *masks = &step->sampler.masks;
    ASSERT(base->host == r->ranks->host);
    const struct link_part parts[2] = {{&work, sizeof work},
                                       part_of(base, masks->offset, masks->n_bytes)};
    TRY(host_hub_tell(r->lanes->hub, parts, masks->n_bytes > 0 ? 2 : 1));
    return r->ranks->ops->draw(r->ranks, step);
}

static fathom_err wait(struct step_runner *base, struct step_result *out)
{
    struct host_runner *r = runner_of(base);
    const fathom_err err = r->ranks->ops->wait(r->ranks, out);
    base->host = r->ranks->host;
    return err;
}

static void next_block(struct step_runner *base)
{
    (void)base;
    ASSERT(!"one step is under way at most");
}

static const char *fault(struct step_runner *base)
{
    struct host_runner *r = runner_of(base);
    host_hub_fault(r->lanes->hub, r->fault);
    return r->fault[0] ? r->fault : r->ranks->ops->fault(r->ranks);
}

static uint64_t progress(const struct step_runner *base)
{
    const struct step_runner *ranks = ((const struct host_runner *)base)->ranks;
    return ranks->ops->progress(ranks);
}

static fathom_err sync_ranks(struct step_runner *base)
{
    struct step_runner *ranks = runner_of(base)->ranks;
    return ranks->ops->sync(ranks);
}

static bool is_away(struct step_runner *base)
{
    return !host_hub_is_whole(runner_of(base)->lanes->hub);
}

static fathom_err rejoin(struct step_runner *base, fathom_diag *d)
{
    struct host_runner *r = runner_of(base);
    fathom_err err = r->ranks->ops->renew(r->ranks);
    if (err) FAIL(d, err, "%s", r->ranks->ops->fault(r->ranks));
    base->host = r->ranks->host;
    return host_hub_gather(r->lanes->hub, d);
}

static const struct step_runner_ops host_ops = {
    .destroy = destroy,
    .bind = bind,
    .launch = launch,
    .draw = draw,
    .wait = wait,
    .next_block = next_block,
    .fault = fault,
    .progress = progress,
    .sync = sync_ranks,
    .is_away = is_away,
    .rejoin = rejoin,
};

static void tell_change(void *arg)
{
    struct host_lanes *l = arg;
    pthread_mutex_lock(&l->lock);
    if (l->changed) l->changed(l->arg);
    pthread_mutex_unlock(&l->lock);
}

void host_runner_on_change(struct step_runner *base, void (*changed)(void *arg), void *arg)
{
    if (base->ops != &host_ops) return;
    struct host_lanes *l = runner_of(base)->lanes;
    pthread_mutex_lock(&l->lock);
    l->changed = changed;
    l->arg = arg;
    pthread_mutex_unlock(&l->lock);
}

fathom_err host_runner_create(struct step_runner **out, struct host_lanes *lanes,
                              struct step_runner *ranks, const struct host_self *self,
                              fathom_diag *d)
{
    const struct host_hub_config c = {.self = *self,
                                      .host = lanes->hosts->address,
                                      .port = lanes->hosts->port,
                                      .changed = tell_change,
                                      .arg = lanes};
    *out = NULL;
    ASSERT(ranks->max_flight == 1);
    ASSERT(self->node_rank == 0 && !lanes->hub && !lanes->member);
    struct host_runner *r = mem_calloc(1, sizeof *r);
    if (!r) FAIL(d, FATHOM_ENOMEM, "no memory for the runner of %u hosts", self->n_node);
    const fathom_err err = host_hub_create(&lanes->hub, &c, d);
    if (err) {
        mem_free(r);
        return err;
    }
    r->base = *ranks; /* layout, blocks */
    r->base.ops = &host_ops;
    r->ranks = ranks;
    r->lanes = lanes;
    *out = &r->base;
    return FATHOM_OK;
}

/* ---- another host --------------------------------------------------------------------------- */

/* Copies a range of the block; false: it is none of this block, or there are too few bytes. */
static bool copy_range(const struct step_runner *r, const struct block_range *range,
                       const unsigned char **at, const unsigned char *end)
{
    const size_t room = r->layout.n_bytes, n = range->n_bytes;
    ASSERT(r->host && *at <= end);
    if (n > room || range->offset > room - n || n > (size_t)(end - *at)) return false;
    memcpy((char *)r->host + range->offset, *at, n);
    *at += n;
    return true;
}

static fathom_err obey(struct step_runner *r, const unsigned char *body, size_t n, fathom_diag *d)
{
    struct work w;
    struct step_result result;
    const unsigned char *at = body + sizeof w, *end = body + n;
    if (n < sizeof w) FAIL(d, FATHOM_EFORMAT, "host 0 tells a step in %zu bytes", n);
    memcpy(&w, body, sizeof w);
    const struct block_range prefix = {.offset = 0, .n_bytes = w.step.prefix_bytes};
    bool fits = true;
    if (w.kind == WORK_LAUNCH) {
        fits = prefix.n_bytes <= r->layout.bias && copy_range(r, &prefix, &at, end);
        for (int i = 0; i < SAMPLE_EXTRA_N; i++)
            fits = fits && copy_range(r, &w.step.sampler.extras[i], &at, end);
    } else {
        fits = w.kind == WORK_DRAW && copy_range(r, &w.step.sampler.masks, &at, end);
    }
    if (!fits || at != end) FAIL(d, FATHOM_EFORMAT, "host 0 tells a step that is none");
    if (w.kind == WORK_LAUNCH) return r->ops->launch(r, &w.step);
    TRY(r->ops->draw(r, &w.step));
    return r->ops->wait(r, &result);
}

/* A generation: until a host is lost, which is EPEER. */
static fathom_err follow_once(struct host_lanes *l, struct step_runner *ranks, unsigned char *body,
                              fathom_diag *d)
{
    for (;;) {
        struct host_frame f;
        TRY(host_member_receive(l->member, &f, body, d));
        if (f.type == HOST_GO) {
            LOG_INFO("hosts", "generation=%llu", (unsigned long long)f.generation);
            continue;
        }
        fathom_err err = obey(ranks, body, f.n_body, d);
        if (err) FAIL(d, err, "%s", ranks->ops->fault(ranks));
    }
}

fathom_err host_follow(struct host_lanes *l, struct step_runner *ranks,
                       const struct host_self *self, fathom_diag *d)
{
    const size_t work_max = sizeof(struct work) + ranks->layout.n_bytes;
    const struct host_member_config c = {.self = *self,
                                         .host = l->hosts->address,
                                         .port = l->hosts->port,
                                         .end_fd = l->hosts->end_fd,
                                         .end_after_us = 1000ull * l->hosts->end_after_ms,
                                         .work_max = (uint32_t)work_max};
    ASSERT(self->node_rank > 0 && ranks->max_flight == 1 && !l->hub && !l->member);
    if (work_max > UINT32_MAX) FAIL(d, FATHOM_ELIMIT, "a step of %zu bytes is too long", work_max);
    unsigned char *body = mem_alloc(work_max);
    if (!body) FAIL(d, FATHOM_ENOMEM, "no memory for steps of %zu bytes", work_max);
    struct host_member *member = NULL;
    fathom_err err = host_member_create(&member, &c, d);
    l->member = member;
    if (!err) err = host_member_join(member, d);
    while (!err) {
        fathom_diag why = {{0}};
        err = follow_once(l, ranks, body, &why);
        if (err != FATHOM_EPEER) {
            (void)diag_fail(d, err, "%s", why.text);
            break;
        }
        LOG_WARN("hosts", "%s; joining anew", why.text);
        host_member_part(member, "it joins anew");
        err = ranks->ops->renew(ranks);
        if (err) (void)diag_fail(d, err, "%s", ranks->ops->fault(ranks));
        if (!err) err = host_member_join(member, d);
    }
    mem_free(body);
    return err;
}
