/* host_lanes.c - what ranks of several hosts show each other, over the data lanes
 *
 * Ranks of one stage meet over the data lanes. With several stages, stage_net.h sends their rows
 * and draws over the same connections.
 *
 * A meeting goes through host 0. It takes what each host shows, in the order of hosts, and gives
 * every host what the others have shown, or the part of it that is for that host's ranks. Nothing
 * is added up on the way: every rank adds the same parts in the order of ranks.
 *
 * With data parallelism, what the lanes of a host have drawn is sent over its connection too, once
 * all its ranks have ended the step, and so are records of its pages, when host 0 asks for them.
 */
#include "engine/host_lanes.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "backend/backend.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/fail.h"
#include "base/mem.h"
#include "comm/tcp_link.h"
#include "engine/settings.h"
#include "engine/step_drawn.h"
#include "model/config.h"
#include "model/stages.h"

/* What hosts tell each other about a meeting, so that all know they are at the same one. */
struct meeting {
    char op[24];
    uint32_t layer;
    uint32_t n_row;
    uint64_t n_bytes;
};

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

/* A range of bytes, [lo, hi), of what a rank shows. */
struct span {
    size_t lo;
    size_t hi;
};

/* The bytes that are for the ranks of a host; all of them, if every rank wants all. */
static struct span span_of(const struct host_lanes *l, const struct host_place *place,
                           uint32_t host)
{
    const uint32_t r0 = host * l->net.n_local;
    ASSERT(r0 + l->net.n_local <= l->net.n_rank);
    if (!place->starts) return (struct span){0, place->n_bytes};
    return (struct span){place->starts[r0], place->starts[r0 + l->net.n_local]};
}

/* The part of a span that rank r shows. */
static struct span shown_by(const struct host_place *place, uint32_t r, struct span s)
{
    ASSERT(s.lo <= s.hi && s.hi <= place->n_bytes);
    if (!place->sizes) return s;
    ASSERT(!place->starts && place->sizes[r] <= place->n_bytes);
    return (struct span){0, place->sizes[r]};
}

/* Sends a span of what each of the ranks r0 .. r1 - 1 shows. */
static fathom_err send_ranks(struct page_link *to, const struct host_place *place,
                             const void **shown, uint32_t r0, uint32_t r1, struct span all,
                             fathom_diag *d)
{
    ASSERT(r0 <= r1);
    for (uint32_t r = r0; r < r1; r++) {
        const struct span s = shown_by(place, r, all);
        if (s.lo < s.hi) TRY(send_bytes(to, (const char *)shown[r] + s.lo, s.hi - s.lo, d));
    }
    return FATHOM_OK;
}

static fathom_err receive_ranks(struct host_lanes *l, struct page_link *from,
                                const struct host_place *place, const void **shown, uint32_t r0,
                                uint32_t r1, struct span all, fathom_diag *d)
{
    ASSERT(r1 <= l->net.n_rank && all.hi <= l->max_bytes);
    for (uint32_t r = r0; r < r1; r++) {
        unsigned char *to = l->shown + r * l->max_bytes;
        const struct span s = shown_by(place, r, all);
        if (s.lo < s.hi) TRY(from->ops->receive(from, to + s.lo, s.hi - s.lo, patience(), d));
        shown[r] = to;
    }
    return FATHOM_OK;
}

/* The bytes of what a host's ranks show that other hosts want: all, or all that is not for the host
 * itself. Returns how many spans these are. */
static uint32_t spans_from(const struct host_lanes *l, const struct host_place *place,
                           uint32_t host, struct span out[2])
{
    const struct span own = span_of(l, place, host);
    if (!place->starts) {
        out[0] = own;
        return 1;
    }
    out[0] = (struct span){0, own.lo};
    out[1] = (struct span){own.hi, place->n_bytes};
    return 2;
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

/* Host 0 takes what host r shows. */
static fathom_err take_from(struct host_lanes *l, uint32_t r, const struct meeting *m,
                            const struct host_place *place, const void **shown, fathom_diag *d)
{
    struct page_link *link = host_hub_data(l->hub, r);
    const uint32_t r0 = r * l->net.n_local;
    struct span spans[2];
    const uint32_t n = spans_from(l, place, r, spans);
    ASSERT(r >= 1 && r < l->hosts->n_node);
    TRY(receive_meeting(link, m, d));
    for (uint32_t i = 0; i < n; i++)
        TRY(receive_ranks(l, link, place, shown, r0, r0 + l->net.n_local, spans[i], d));
    return FATHOM_OK;
}

static fathom_err give_to(struct host_lanes *l, uint32_t r, const struct meeting *m,
                          const struct host_place *place, const void **shown, fathom_diag *d)
{
    struct page_link *link = host_hub_data(l->hub, r);
    const uint32_t r0 = r * l->net.n_local;
    const struct span s = span_of(l, place, r);
    ASSERT(r >= 1 && r < l->hosts->n_node);
    TRY(send_bytes(link, m, sizeof *m, d));
    TRY(send_ranks(link, place, shown, 0, r0, s, d));
    return send_ranks(link, place, shown, r0 + l->net.n_local, l->net.n_rank, s, d);
}

static fathom_err swap_on_host_0(struct host_lanes *l, const struct meeting *m,
                                 const struct host_place *place, const void **shown)
{
    fathom_diag why = {{0}};
    fathom_err err = FATHOM_OK;
    if (!host_hub_is_whole(l->hub)) return FATHOM_EPEER;
    for (uint32_t k = 0; k < 2; k++) {
        for (uint32_t r = 1; !err && r < l->hosts->n_node; r++) {
            err = k == 0 ? take_from(l, r, m, place, shown, &why)
                         : give_to(l, r, m, place, shown, &why);
            if (err) host_hub_lose(l->hub, r, why.text);
        }
    }
    return err ? FATHOM_EPEER : FATHOM_OK;
}

static fathom_err swap_on_another(struct host_lanes *l, const struct meeting *m,
                                  const struct host_place *place, const void **shown,
                                  fathom_diag *d)
{
    struct page_link *link = host_member_data(l->member);
    const uint32_t r0 = l->net.first, r1 = r0 + l->net.n_local;
    const uint32_t host = l->hosts->node_rank;
    const struct span own = span_of(l, place, host);
    struct span spans[2];
    const uint32_t n = spans_from(l, place, host, spans);
    ASSERT(r0 > 0 && r1 <= l->net.n_rank);
    TRY(send_bytes(link, m, sizeof *m, d));
    for (uint32_t i = 0; i < n; i++) TRY(send_ranks(link, place, shown, r0, r1, spans[i], d));
    TRY(receive_meeting(link, m, d));
    TRY(receive_ranks(l, link, place, shown, 0, r0, own, d));
    return receive_ranks(l, link, place, shown, r1, l->net.n_rank, own, d);
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
        if (swap_on_host_0(l, &m, place, shown) == FATHOM_OK) return FATHOM_OK;
        host_hub_fault(l->hub, text);
        (void)snprintf(fault, n_fault, "%.180s", text);
        return FATHOM_EPEER;
    }
    if (swap_on_another(l, &m, place, shown, &why) == FATHOM_OK) return FATHOM_OK;
    (void)snprintf(fault, n_fault, "host 0 is lost: %.160s", why.text);
    return FATHOM_EPEER;
}

static bool is_lost(struct host_net *net, char *why, size_t n_why)
{
    struct host_lanes *l = lanes_of(net);
    char text[HOST_TEXT_MAX + 1];
    if (!l->hub) {
        if (!tcp_link_is_broken(host_member_data(l->member))) return false;
        (void)snprintf(why, n_why, "host 0 is lost: it has closed the connection");
        return true;
    }
    ASSERT(why && n_why > 0);
    if (host_hub_is_whole(l->hub)) return false;
    host_hub_fault(l->hub, text);
    (void)snprintf(why, n_why, "%.180s", text);
    return true;
}

/* Called by stage_net when a host is lost. */
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

/* The most values that a rank shows in a meeting about whole experts: the results of a round, whose
 * size is bounded, or rows with their routes. */
static size_t expert_values(const struct engine_settings *s, const struct model_config *config)
{
    enum { PAD = 64, ROUND_VALUES = 64 << 18, ROUND_ROWS_MIN = 64 };
    const size_t n_rank = parallel_n_rank(&s->place.parallel), n = s->limits.max_token;
    const size_t row = config->hidden + PAD;
    const size_t rows = n * (row + 2 * (size_t)config->n_expert_used);
    const size_t least = n_rank * ROUND_ROWS_MIN * row, all = n_rank * n * row;
    const size_t round = least > ROUND_VALUES ? least : ROUND_VALUES;
    const size_t results = all < round ? all : round;
    return rows > results ? rows : results;
}

/* Allocates room for what the ranks of other hosts show. */
static fathom_err make_meetings(struct host_lanes *l, const struct engine_settings *s,
                                const struct model_config *config, fathom_diag *d)
{
    /* in values; backends pad rows by less than PAD, and GPUs send by NCCL, so FEW suffice */
    enum { PAD = 64, FEW = 64 };
    const struct model_limits *limits = &s->limits;
    ASSERT(s->hosts->n_node > 1);
    const uint32_t n_rank = parallel_n_rank(&s->place.parallel);
    const uint32_t n_local = settings_n_rank(s);
    const size_t delta = (size_t)limits->max_token * (config->hidden + PAD);
    const size_t logits = (size_t)limits->max_logit_row * (config->n_vocab / n_rank + PAD);
    const size_t tops = (size_t)limits->max_logit_row * SAMPLE_TOP_MAX;
    size_t most = delta > logits ? delta : logits;
    if (tops > most) most = tops;
    if (parallel_moves_rows(&s->place.parallel)) {
        const size_t experts = expert_values(s, config);
        most = experts > most ? experts : most;
        l->n_lane = s->place.parallel.dp.size;
        l->n_local_lane = l->n_lane / s->hosts->n_node;
    }
    if (s->backend == FATHOM_BACKEND_CUDA) most = FEW;
    l->net = (struct host_net){.first = s->hosts->node_rank * n_local,
                               .n_local = n_local,
                               .n_rank = n_rank,
                               .swap = swap,
                               .is_lost = is_lost};
    l->max_bytes = 4 * most;
    l->shown = mem_alloc_aligned(64, n_rank * l->max_bytes);
    l->net.packs = mem_alloc_aligned(64, n_local * l->max_bytes);
    l->net.pack_bytes = l->max_bytes;
    if (l->shown && l->net.packs) return FATHOM_OK;
    FAIL(d, FATHOM_ENOMEM, "no memory for what %u ranks of other hosts show", n_rank);
}

/* The part of a page's record that has the layers of a host's stages. */
static struct record_part part_of(const struct engine_settings *s,
                                  const struct model_config *config, uint32_t host)
{
    const struct model_limits *l = &s->limits;
    struct parallel p = s->place.parallel;
    const uint32_t n_stage = parallel_n_stage(&p), n = n_stage > 1 ? n_stage / s->hosts->n_node : 1;
    p.pp.rank = n_stage > 1 ? host * n : 0;
    const uint64_t first = stages_record_offset(config, l->kv_type, l->with_mtp, &p);
    p.pp.rank += n;
    const uint64_t end = stages_record_offset(config, l->kv_type, l->with_mtp, &p);
    ASSERT(first < end);
    return (struct record_part){first, end - first};
}

fathom_err host_lanes_create(struct host_lanes **out, const struct engine_settings *s,
                             const struct model_config *config, bool keeps_pages, fathom_diag *d)
{
    *out = NULL;
    struct host_lanes *l = mem_calloc(1, sizeof *l);
    if (!l) FAIL(d, FATHOM_ENOMEM, "no memory for the lanes of hosts");
    pthread_mutex_init(&l->lock, NULL);
    l->hosts = s->hosts;
    l->address.listen_fd = -1;
    const bool has_stages = parallel_n_stage(&s->place.parallel) > 1;
    for (uint32_t i = 0; i < s->hosts->n_node && keeps_pages; i++)
        l->records[i] = part_of(s, config, i);
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
    mem_free(l->net.packs);
    if (l->address.listen_fd >= 0) (void)close(l->address.listen_fd);
    mem_free(l);
}

fathom_err host_lanes_find(struct host_lanes *l, fathom_diag *d)
{
    enum { TOGETHER_US = 120000000 }; /* within which a launcher has started all processes */
    const fathom_hosts *h = l->hosts;
    l->address.token =
        (struct pool_secret){.is_set = h->has_token, .key = {h->token[0], h->token[1]}};
    if (h->by_pmix)
        return host_address_by_pmix(&l->address, h->node_rank, h->n_node, TOGETHER_US, d);
    l->address.port = h->port;
    const int n = snprintf(l->address.host, sizeof l->address.host, "%s", h->address);
    if (n > 0 && (size_t)n < sizeof l->address.host) return FATHOM_OK;
    FAIL(d, FATHOM_EINVAL, "--master-addr is longer than any name of a host, or empty");
}

struct host_net *host_lanes_net(struct host_lanes *l)
{
    return l->stages ? NULL : &l->net;
}

struct stage_net *host_lanes_stages(struct host_lanes *l)
{
    return l->stages;
}

/* ---- draws of lanes ------------------------------------------------------------------------- */

static struct meeting of_lane(uint32_t lane, const struct step *step)
{
    const struct sample_shape *s = &step->sampler;
    return (struct meeting){.op = "drawn",
                            .layer = lane,
                            .n_row = s->n_row,
                            .n_bytes = step_drawn_bytes(s->n_row, s->n_top > 0)};
}

fathom_err host_lanes_tell_drawn(struct host_lanes *l, uint32_t lane, const struct step *step,
                                 const struct step_result *drawn, fathom_diag *d)
{
    const struct meeting m = of_lane(lane, step);
    struct link_part parts[2 + DRAWN_PARTS_MAX] = {{&m, sizeof m},
                                                   {&drawn->experts, sizeof drawn->experts}};
    struct page_link *link = host_member_data(l->member);
    const uint32_t n_row = step->sampler.n_row;
    const uint32_t first = l->hosts->node_rank * l->n_local_lane;
    ASSERT(lane >= first && lane < first + l->n_local_lane);
    const size_t n = step_drawn_parts(parts + 2, drawn, n_row, step->sampler.n_top > 0);
    return link->ops->send(link, parts, 2 + n, patience(), d);
}

static fathom_err receive_drawn(struct page_link *link, const struct meeting *m, void *bytes,
                                struct expert_counts *experts, fathom_diag *d)
{
    TRY(receive_meeting(link, m, d));
    TRY(link->ops->receive(link, experts, sizeof *experts, patience(), d));
    return link->ops->receive(link, bytes, m->n_bytes, patience(), d);
}

fathom_err host_lanes_await_drawn(struct host_lanes *l, uint32_t lane, const struct step *step,
                                  void *bytes, struct step_result *out)
{
    const struct meeting m = of_lane(lane, step);
    const uint32_t host = lane / l->n_local_lane;
    struct expert_counts experts;
    fathom_diag why = {{0}};
    ASSERT(host >= 1 && lane < l->n_lane);
    if (!host_hub_is_whole(l->hub)) return FATHOM_EPEER;
    if (receive_drawn(host_hub_data(l->hub, host), &m, bytes, &experts, &why)) {
        host_hub_lose(l->hub, host, why.text);
        return FATHOM_EPEER;
    }
    *out = step_drawn_read(bytes, m.n_row, step->sampler.n_top > 0, &experts);
    return FATHOM_OK;
}

/* ---- pages ---------------------------------------------------------------------------------- */

static struct meeting of_record(const struct host_lanes *l, uint32_t page)
{
    ASSERT(l->n_lane > 0 && l->records[0].n_bytes > 0);
    return (struct meeting){.op = "record", .n_row = page, .n_bytes = l->records[0].n_bytes};
}

fathom_err host_lanes_tell_record(struct host_lanes *l, uint32_t page, const void *record,
                                  fathom_diag *d)
{
    const uint64_t n = l->records[l->hosts->node_rank].n_bytes;
    if (l->stages) return stage_net_tell_record(l->stages, record, n);
    const struct meeting m = of_record(l, page);
    const struct link_part parts[] = {{&m, sizeof m}, {record, n}};
    struct page_link *link = host_member_data(l->member);
    return link->ops->send(link, parts, 2, patience(), d);
}

static fathom_err receive_record(struct page_link *link, const struct meeting *m, void *to,
                                 fathom_diag *d)
{
    TRY(receive_meeting(link, m, d));
    return link->ops->receive(link, to, m->n_bytes, patience(), d);
}

fathom_err host_lanes_await_record(struct host_lanes *l, uint32_t host, uint32_t page, void *to)
{
    const struct meeting m = of_record(l, page);
    fathom_diag why = {{0}};
    ASSERT(host >= 1 && host < l->hosts->n_node);
    if (!host_hub_is_whole(l->hub)) return FATHOM_EPEER;
    if (receive_record(host_hub_data(l->hub, host), &m, to, &why) == FATHOM_OK) return FATHOM_OK;
    host_hub_lose(l->hub, host, why.text);
    return FATHOM_EPEER;
}
