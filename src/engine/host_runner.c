/* host_runner.c - steps as WORK to other hosts, and sums or rows over the data lanes
 *
 * Ranks of one stage meet over the lanes; of several stages rows and draws go over them
 * (stage_net.h), and as many steps are under way as there are stages.
 *
 * A meeting goes through host 0: it takes what each host shows, in the order of hosts, and gives
 * every host what the others have shown. Nothing is added up on the way: every rank adds the same
 * parts in the order of ranks.
 *
 * WORK is { struct work } and the bytes of the block that it says: of a launch the prefix and the
 * extras, of a draw the masks. Of stages it says the block too, which a host writes again when its
 * ranks are done with the step that had it. Hosts run one build (host_hello.h), so structs are sent
 * as they are.
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
#include "engine/stage_net.h"
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
    struct stage_net *stages;   /* NULL: one stage, whose ranks meet */
    size_t max_bytes;           /* that a rank shows */
    unsigned char *shown;       /* [n_rank][max_bytes] of other hosts' ranks */
    pthread_mutex_t lock;       /* of what follows */
    void (*changed)(void *arg);
    void *arg;
};

enum work_kind { WORK_LAUNCH = 1, WORK_DRAW };

struct work {
    uint32_t kind;
    uint32_t block; /* of stages */
    struct step step;
};

/* Blocks of steps under way, of stages; the oldest first. */
struct flights {
    uint32_t blocks[PARALLEL_STAGES_MAX];
    uint32_t n;
};

static void push_flight(struct flights *f, uint32_t block)
{
    ASSERT(f->n < PARALLEL_STAGES_MAX);
    f->blocks[f->n++] = block;
}

static uint32_t pop_flight(struct flights *f)
{
    const uint32_t block = f->blocks[0];
    ASSERT(f->n > 0);
    f->n--;
    memmove(&f->blocks[0], &f->blocks[1], f->n * sizeof f->blocks[0]);
    return block;
}

static bool has_flight(const struct flights *f, uint32_t block)
{
    for (uint32_t i = 0; i < f->n; i++) {
        if (f->blocks[i] == block) return true;
    }
    return false;
}

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

/* A host is lost to whoever sends it rows or waits for them. */
static void lose_host(void *arg, uint32_t node_rank, const char *why)
{
    struct host_lanes *l = arg;
    ASSERT(node_rank != l->hosts->node_rank);
    if (l->hub) host_hub_lose(l->hub, node_rank, why);
}

static fathom_err make_stages(struct host_lanes *l, const struct engine_settings *s,
                              const struct model_config *config, fathom_diag *d)
{
    const struct stage_net_config c = {.node_rank = s->hosts->node_rank,
                                       .n_node = s->hosts->n_node,
                                       .n_block = s->max_flight,
                                       .max_row = s->limits.max_token,
                                       .width = config->hidden,
                                       .max_draw = s->limits.max_logit_row,
                                       .lost = lose_host,
                                       .arg = l};
    return stage_net_create(&l->stages, &c, d);
}

/* Room for what other hosts' ranks show. */
static fathom_err make_meetings(struct host_lanes *l, const struct engine_settings *s,
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
    l->net = (struct host_net){
        .first = s->hosts->node_rank * n_local, .n_local = n_local, .n_rank = n_rank, .swap = swap};
    l->max_bytes = 4 * most;
    l->shown = mem_alloc_aligned(64, n_rank * l->max_bytes);
    if (l->shown) return FATHOM_OK;
    FAIL(d, FATHOM_ENOMEM, "no memory for what %u ranks of other hosts show", n_rank);
}

fathom_err host_lanes_create(struct host_lanes **out, const struct engine_settings *s,
                             const struct model_config *config, fathom_diag *d)
{
    *out = NULL;
    struct host_lanes *l = mem_calloc(1, sizeof *l);
    if (!l) FAIL(d, FATHOM_ENOMEM, "no memory for the lanes of hosts");
    pthread_mutex_init(&l->lock, NULL);
    l->hosts = s->hosts;
    const bool has_stages = parallel_n_stage(&s->place.parallel) > 1;
    const fathom_err err =
        has_stages ? make_stages(l, s, config, d) : make_meetings(l, s, config, d);
    if (err) {
        host_lanes_destroy(l);
        return err;
    }
    *out = l;
    return FATHOM_OK;
}

void host_lanes_destroy(struct host_lanes *l)
{
    if (!l) return;
    host_hub_destroy(l->hub);
    host_member_destroy(l->member);
    stage_net_destroy(l->stages);
    pthread_mutex_destroy(&l->lock);
    mem_free(l->shown);
    mem_free(l);
}

struct host_net *host_lanes_net(struct host_lanes *l)
{
    return l->stages ? NULL : &l->net;
}

struct stage_net *host_lanes_stages(struct host_lanes *l)
{
    return l->stages;
}

/* ---- host 0's runner ------------------------------------------------------------------------ */

struct host_runner {
    struct step_runner base; /* first member */
    struct step_runner *ranks;
    struct host_lanes *lanes;
    uint32_t block; /* of stages: of the step that is written */
    struct flights flights;
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
    if (r->lanes->stages) stage_net_end(r->lanes->stages);
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
    const struct work work = {.kind = WORK_LAUNCH, .block = r->block, .step = *step};
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
    const struct work work = {.kind = WORK_DRAW, .block = r->block, .step = *step};
    const struct block_range *masks = &step->sampler.masks;
    ASSERT(base->host == r->ranks->host);
    const struct link_part parts[2] = {{&work, sizeof work},
                                       part_of(base, masks->offset, masks->n_bytes)};
    TRY(host_hub_tell(r->lanes->hub, parts, masks->n_bytes > 0 ? 2 : 1));
    TRY(r->ranks->ops->draw(r->ranks, step));
    if (r->lanes->stages) push_flight(&r->flights, r->block);
    return FATHOM_OK;
}

/* The last host draws; the ranks here are done with the step's block too. */
static fathom_err wait(struct step_runner *base, struct step_result *out)
{
    struct host_runner *r = runner_of(base);
    struct stage_net *stages = r->lanes->stages;
    const fathom_err err = r->ranks->ops->wait(r->ranks, out);
    base->host = r->ranks->host;
    if (err || !stages) return err;
    return stage_net_await_drawn(stages, pop_flight(&r->flights), out);
}

static void next_block(struct step_runner *base)
{
    (void)base;
    ASSERT(!"no step is launched behind another one of the same requests");
}

static void use_block(struct step_runner *base, uint32_t i)
{
    struct host_runner *r = runner_of(base);
    ASSERT(!has_flight(&r->flights, i));
    r->ranks->ops->use_block(r->ranks, i);
    base->host = r->ranks->host;
    r->block = i;
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
    struct host_lanes *l = r->lanes;
    if (l->stages) stage_net_end(l->stages);
    fathom_err err = r->ranks->ops->renew(r->ranks);
    if (err) FAIL(d, err, "%s", r->ranks->ops->fault(r->ranks));
    base->host = r->ranks->host;
    r->block = 0;
    r->flights.n = 0;
    TRY(host_hub_gather(l->hub, d));
    if (!l->stages) return FATHOM_OK;
    struct page_link *links[HOSTS_MAX] = {NULL};
    for (uint32_t i = 1; i < l->hosts->n_node; i++) links[i] = host_hub_data(l->hub, i);
    return stage_net_begin(l->stages, links, d);
}

static const struct step_runner_ops host_ops = {
    .destroy = destroy,
    .bind = bind,
    .launch = launch,
    .draw = draw,
    .wait = wait,
    .next_block = next_block,
    .use_block = use_block,
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
    ASSERT((ranks->max_flight == 1) == !lanes->stages);
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

/* What a host that follows goes by. */
struct follower {
    struct host_lanes *lanes;
    struct step_runner *ranks;
    struct flights flights; /* of stages: those that the ranks have not been waited for */
    unsigned char *body;    /* of a WORK */
};

/* Of stages: the block of a launch, when no step of it is under way any more. */
static fathom_err take_block(struct follower *f, const struct work *w)
{
    struct step_result result;
    ASSERT(w->kind == WORK_LAUNCH && w->block < f->ranks->max_flight);
    if (!f->lanes->stages) return FATHOM_OK;
    while (has_flight(&f->flights, w->block)) {
        TRY(f->ranks->ops->wait(f->ranks, &result));
        (void)pop_flight(&f->flights);
    }
    f->ranks->ops->use_block(f->ranks, w->block);
    return FATHOM_OK;
}

/* The end of a step. Of stages the ranks tell what they have drawn. */
static fathom_err end_step(struct follower *f, const struct work *w)
{
    struct step_result result;
    ASSERT(w->kind == WORK_DRAW && w->block < f->ranks->max_flight);
    TRY(f->ranks->ops->draw(f->ranks, &w->step));
    if (!f->lanes->stages) return f->ranks->ops->wait(f->ranks, &result);
    push_flight(&f->flights, w->block);
    return FATHOM_OK;
}

static fathom_err obey(struct follower *f, size_t n, fathom_diag *d)
{
    struct work w;
    struct step_runner *r = f->ranks;
    const unsigned char *at = f->body + sizeof w, *end = f->body + n;
    if (n < sizeof w) FAIL(d, FATHOM_EFORMAT, "host 0 tells a step in %zu bytes", n);
    memcpy(&w, f->body, sizeof w);
    const struct block_range prefix = {.offset = 0, .n_bytes = w.step.prefix_bytes};
    bool fits = w.block < r->max_flight;
    if (fits && w.kind == WORK_LAUNCH) {
        TRY(take_block(f, &w));
        fits = prefix.n_bytes <= r->layout.bias && copy_range(r, &prefix, &at, end);
        for (int i = 0; i < SAMPLE_EXTRA_N; i++)
            fits = fits && copy_range(r, &w.step.sampler.extras[i], &at, end);
    } else {
        fits = fits && w.kind == WORK_DRAW && copy_range(r, &w.step.sampler.masks, &at, end);
    }
    if (!fits || at != end) FAIL(d, FATHOM_EFORMAT, "host 0 tells a step that is none");
    return w.kind == WORK_LAUNCH ? r->ops->launch(r, &w.step) : end_step(f, &w);
}

/* A generation: until a host is lost, which is EPEER. */
static fathom_err follow_once(struct follower *f, fathom_diag *d)
{
    for (;;) {
        struct host_frame frame;
        fathom_diag why = {{0}};
        TRY(host_member_receive(f->lanes->member, &frame, f->body, d));
        if (frame.type == HOST_GO) {
            LOG_INFO("hosts", "generation=%llu", (unsigned long long)frame.generation);
            continue;
        }
        const fathom_err err = obey(f, frame.n_body, &why);
        if (err) FAIL(d, err, "%s", why.text[0] ? why.text : f->ranks->ops->fault(f->ranks));
    }
}

/* Joins, and until a generation is over: EPEER. Its links are closed when nobody uses them. */
static fathom_err follow_generation(struct follower *f, fathom_diag *d)
{
    struct host_member *member = f->lanes->member;
    struct stage_net *stages = f->lanes->stages;
    struct step_runner *ranks = f->ranks;
    struct step_result result;
    TRY(host_member_join(member, d));
    struct page_link *links[HOSTS_MAX] = {host_member_data(member)};
    if (stages) TRY(stage_net_begin(stages, links, d));
    fathom_err err = follow_once(f, d);
    if (stages) stage_net_end(stages);
    if (err == FATHOM_EPEER && f->flights.n > 0) { /* a rank's own error is the cause */
        const fathom_err own = ranks->ops->wait(ranks, &result);
        if (own && own != FATHOM_EPEER) err = diag_fail(d, own, "%s", ranks->ops->fault(ranks));
    }
    return err;
}

static fathom_err follow(struct follower *f, fathom_diag *d)
{
    fathom_err err;
    for (;;) {
        fathom_diag why = {{0}};
        err = follow_generation(f, &why);
        if (err != FATHOM_EPEER) FAIL(d, err, "%s", why.text);
        LOG_WARN("hosts", "%s; joining anew", why.text);
        err = f->ranks->ops->renew(f->ranks);
        if (err) FAIL(d, err, "%s", f->ranks->ops->fault(f->ranks));
        host_member_part(f->lanes->member, "it joins anew");
        f->flights.n = 0;
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
    struct follower f = {.lanes = l, .ranks = ranks};
    ASSERT(self->node_rank > 0 && !l->hub && !l->member);
    ASSERT((ranks->max_flight == 1) == !l->stages);
    if (work_max > UINT32_MAX) FAIL(d, FATHOM_ELIMIT, "a step of %zu bytes is too long", work_max);
    f.body = mem_alloc(work_max);
    if (!f.body) FAIL(d, FATHOM_ENOMEM, "no memory for steps of %zu bytes", work_max);
    fathom_err err = host_member_create(&l->member, &c, d);
    if (!err) err = follow(&f, d);
    mem_free(f.body);
    return err;
}
