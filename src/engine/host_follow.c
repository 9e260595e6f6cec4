/* host_follow.c - another host than host 0: it joins, and does what WORK says
 *
 * Of stages a block is written again when the ranks are done with the step that had it. Of one
 * stage the ranks here are told what host 0's are, in the same order: a step launched ahead and the
 * wait for the one before too, so that blocks go round as they do there.
 */
#include "engine/host_follow.h"

#include <string.h>

#include "base/fail.h"
#include "base/log.h"
#include "base/mem.h"
#include "engine/host_lanes.h"

/* Copies a range of a block; false: it is none of this block, or there are too few bytes. */
static bool copy_range(size_t room, void *block, const struct block_range *range,
                       const unsigned char **at, const unsigned char *end)
{
    const size_t n = range->n_bytes;
    ASSERT(block && *at <= end);
    if (n == 0) return true;
    if (n > room || range->offset > room - n || n > (size_t)(end - *at)) return false;
    memcpy((char *)block + range->offset, *at, n);
    *at += n;
    return true;
}

/* What a host that follows goes by. */
struct follower {
    struct host_lanes *lanes;
    struct step_runner *ranks;
    struct flights flights; /* those that the ranks have not been waited for */
    bool is_launched;       /* a step is, and nothing of it has been drawn; its block: */
    uint32_t block;
    unsigned char *rooms; /* [n_room][room_bytes] for WORK: host memory of the ranks */
    size_t room_bytes;
    uint32_t n_room;
    uint32_t i_room; /* of the next WORK; from those before it pages may be copied */
    uint32_t n_page; /* of a lane */
    uint32_t n_step; /* of a WORK: of each lane here, or the only one */
    struct step steps[PARALLEL_RANKS_MAX];
};

/* The block of a launch: of stages when no step of it is under way any more, else one that none
 * has. */
static fathom_err take_block(struct follower *f, const struct work *w)
{
    struct step_result result;
    ASSERT(w->kind == WORK_LAUNCH && w->block < f->ranks->max_flight);
    if (!f->lanes->stages) {
        if (f->flights.n > 0) f->ranks->ops->next_block(f->ranks);
        return FATHOM_OK;
    }
    while (has_flight(&f->flights, w->block)) {
        TRY(f->ranks->ops->wait(f->ranks, &result));
        (void)pop_flight(&f->flights);
    }
    f->ranks->ops->use_block(f->ranks, w->block);
    return FATHOM_OK;
}

static fathom_err draw_step(struct follower *f, const struct work *w)
{
    ASSERT(w->kind == WORK_DRAW && w->block < f->ranks->max_flight);
    TRY(f->ranks->ops->draw(f->ranks, f->steps));
    push_flight(&f->flights, w->block);
    f->is_launched = false;
    return FATHOM_OK;
}

/* The end of the oldest step: what lanes have drawn goes to host 0. Of stages the ranks tell it. */
static fathom_err end_step(struct follower *f, fathom_diag *d)
{
    struct step_result results[PARALLEL_RANKS_MAX];
    struct host_lanes *l = f->lanes;
    ASSERT(!l->stages && f->flights.n > 0);
    (void)pop_flight(&f->flights);
    TRY(f->ranks->ops->wait(f->ranks, results));
    const uint32_t first = l->hosts->node_rank * l->n_local_lane;
    for (uint32_t i = 0; l->n_lane > 0 && i < f->n_step; i++) {
        fathom_diag why = {{0}};
        if (host_lanes_tell_drawn(l, first + i, &f->steps[i], &results[i], &why))
            FAIL(d, FATHOM_EPEER, "host 0 is lost: %s", why.text);
    }
    return FATHOM_OK;
}

/* The bytes of the blocks of a WORK behind its steps. A step behind one that is under way has
 * neither masks nor histories, for which its block has no room (step_runner.h). */
static bool copy_blocks(struct follower *f, const struct work *w, const unsigned char *at,
                        const unsigned char *end)
{
    struct step_runner *r = f->ranks;
    const bool is_ahead = !f->lanes->stages && f->flights.n > 0;
    const size_t room = is_ahead ? r->layout.history : r->layout.n_bytes;
    bool fits = true;
    for (uint32_t i = 0; i < f->n_step; i++) {
        struct block_range ranges[WORK_RANGES_MAX];
        const uint32_t n = work_ranges(ranges, w->kind, &f->steps[i]);
        fits = fits && f->steps[i].prefix_bytes <= r->layout.bias;
        for (uint32_t k = 0; k < n; k++)
            fits = fits && copy_range(room, step_runner_host(r, i), &ranges[k], &at, end);
    }
    return fits && at == end;
}

static unsigned char *room_of(const struct follower *f)
{
    ASSERT(f->i_room < f->n_room);
    return f->rooms + f->i_room * f->room_bytes;
}

/* Whether it is the turn of what a WORK says of a step. Of one stage blocks go round, from 0 on
 * whenever no step is under way. */
static bool is_due(const struct follower *f, const struct work *w)
{
    const bool has_stages = f->lanes->stages != NULL;
    const uint32_t n_block = f->ranks->max_flight, n = f->flights.n;
    const uint32_t next = n > 0 ? (f->flights.blocks[n - 1] + 1) % n_block : 0;
    if (w->n_step != f->n_step || w->block >= n_block) return false;
    if (w->kind == WORK_DRAW) return f->is_launched && w->block == f->block;
    if (f->is_launched) return false;
    if (w->kind == WORK_LAUNCH) return has_stages || (n < n_block && w->block == next);
    return w->kind == WORK_WAIT && !has_stages && n > 0 && w->block == f->flights.blocks[0];
}

/* A step, its draws, or its end: n bytes behind the head. */
static fathom_err obey_step(struct follower *f, const struct work *w, const unsigned char *at,
                            size_t n, fathom_diag *d)
{
    const size_t n_steps = f->n_step * sizeof f->steps[0];
    bool fits = n >= n_steps && is_due(f, w);
    if (fits) memcpy(f->steps, at, n_steps);
    if (fits && w->kind == WORK_LAUNCH) TRY(take_block(f, w));
    fits = fits && copy_blocks(f, w, at + n_steps, at + n);
    if (!fits) FAIL(d, FATHOM_EFORMAT, "host 0 tells a step that is none");
    if (w->kind == WORK_WAIT) return end_step(f, d);
    if (w->kind == WORK_DRAW) return draw_step(f, w);
    f->is_launched = true;
    f->block = w->block;
    return f->ranks->ops->launch(f->ranks, f->steps);
}

/* The ranks copy it in before what they are told next; its room is in use until then. */
static fathom_err obey_page_in(struct follower *f, const struct work *w,
                               const unsigned char *record)
{
    ASSERT(f->n_room > 1 && w->page < f->n_page);
    TRY(f->ranks->ops->page_in(f->ranks, w->lane * f->n_page + w->page, record));
    if (++f->i_room < f->n_room) return FATHOM_OK;
    f->i_room = 0;
    return f->ranks->ops->sync(f->ranks);
}

/* Into the room of what asks for it. */
static fathom_err obey_page_out(struct follower *f, const struct work *w, unsigned char *record,
                                fathom_diag *d)
{
    struct step_runner *r = f->ranks;
    fathom_diag why = {{0}};
    TRY(r->ops->page_out(r, w->lane * f->n_page + w->page, record));
    TRY(r->ops->sync(r));
    if (host_lanes_tell_record(f->lanes, w->page, record, &why) == FATHOM_OK) return FATHOM_OK;
    FAIL(d, FATHOM_EPEER, "host 0 is lost: %s", why.text);
}

static fathom_err obey(struct follower *f, size_t n, fathom_diag *d)
{
    struct work w;
    unsigned char *at = room_of(f);
    const struct host_lanes *l = f->lanes;
    if (n < sizeof w) FAIL(d, FATHOM_EFORMAT, "host 0 tells a step in %zu bytes", n);
    memcpy(&w, at, sizeof w);
    at += sizeof w;
    n -= sizeof w;
    if (w.kind != WORK_PAGE_IN && w.kind != WORK_PAGE_OUT) return obey_step(f, &w, at, n, d);
    const uint64_t record_bytes = l->records[l->hosts->node_rank].n_bytes;
    const bool fits = record_bytes > 0 && w.page < f->n_page && w.lane < f->n_step && w.n_step == 0;
    if (fits && w.kind == WORK_PAGE_IN && n == record_bytes) return obey_page_in(f, &w, at);
    if (fits && w.kind == WORK_PAGE_OUT && n == 0 && (l->n_lane > 0 || l->stages))
        return obey_page_out(f, &w, at, d);
    FAIL(d, FATHOM_EFORMAT, "host 0 tells page %u in %zu bytes, which is none", w.page, n);
}

/* A generation: until a host is lost, which is EPEER. */
static fathom_err follow_once(struct follower *f, fathom_diag *d)
{
    for (;;) {
        struct host_frame frame;
        fathom_diag why = {{0}};
        TRY(host_member_receive(f->lanes->member, &frame, room_of(f), d));
        if (frame.type == HOST_GO) {
            LOG_INFO("hosts", "generation=%llu", (unsigned long long)frame.generation);
            if (f->lanes->stages) continue;
        }
        const fathom_err err =
            frame.type == HOST_GO ? f->ranks->ops->connect(f->ranks) : obey(f, frame.n_body, &why);
        if (err) FAIL(d, err, "%s", why.text[0] ? why.text : f->ranks->ops->fault(f->ranks));
    }
}

/* Who hands requests on is told where to, or why to nobody. */
static void tell_of_host_0(const struct follower *f, const char *why)
{
    const struct host_lanes *l = f->lanes;
    fathom_host_0 at = {.why = why};
    if (!l->hosts->on_host_0) return;
    if (!why) {
        const struct inner_port *inner = host_member_inner(l->member);
        at = (fathom_host_0){
            .host = l->address.host, .inner_port = inner->port, .inner_key = inner->key};
    }
    l->hosts->on_host_0(l->hosts->on_host_0_arg, &at);
}

/* Joins, and until a generation is over: EPEER. Its links are closed when nobody uses them. */
static fathom_err follow_generation(struct follower *f, fathom_diag *d)
{
    struct host_member *member = f->lanes->member;
    struct stage_net *stages = f->lanes->stages;
    struct step_runner *ranks = f->ranks;
    struct step_result result;
    TRY(host_member_join(member, d));
    tell_of_host_0(f, NULL);
    struct page_link *links[HOSTS_MAX] = {host_member_data(member)};
    if (stages) TRY(stage_net_begin(stages, links, d));
    fathom_err err = follow_once(f, d);
    if (stages) stage_net_end(stages);
    if (err == FATHOM_EPEER && stages && f->flights.n > 0) { /* a rank's own error is the cause */
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
        tell_of_host_0(f, why.text);
        err = f->ranks->ops->renew(f->ranks);
        if (err) FAIL(d, err, "%s", f->ranks->ops->fault(f->ranks));
        host_member_part(f->lanes->member, "it joins anew");
        f->flights.n = 0;
        f->is_launched = false;
        f->i_room = 0;
    }
}

/* Rooms that pages are copied from have to be what devices read fast. */
static fathom_err make_rooms(struct follower *f, size_t work_max, fathom_diag *d)
{
    enum { ROOMS = 4 }; /* while one is copied from, the next one comes */
    void *rooms = NULL;
    f->n_room = f->lanes->records[0].n_bytes > 0 ? ROOMS : 1;
    f->room_bytes = (work_max + 63) / 64 * 64;
    TRY(f->ranks->ops->alloc_host(f->ranks, f->n_room * f->room_bytes, &rooms, d));
    f->rooms = rooms;
    return FATHOM_OK;
}

fathom_err host_follow(struct host_lanes *l, struct step_runner *ranks,
                       const struct host_self *self, fathom_diag *d)
{
    const size_t work_max = work_bytes_max(l, ranks);
    const struct host_member_config c = {.self = *self,
                                         .host = l->address.host,
                                         .port = l->address.port,
                                         .end_fd = l->hosts->end_fd,
                                         .end_after_us = 1000ull * l->hosts->end_after_ms,
                                         .work_max = (uint32_t)work_max};
    struct follower f = {
        .lanes = l, .ranks = ranks, .n_page = self->n_page, .n_step = work_n_step(l)};
    ASSERT(self->node_rank > 0 && !l->hub && !l->member);
    ASSERT(ranks->max_flight <= PARALLEL_STAGES_MAX);
    if (work_max > UINT32_MAX) FAIL(d, FATHOM_ELIMIT, "a step of %zu bytes is too long", work_max);
    TRY(make_rooms(&f, work_max, d));
    fathom_err err = host_member_create(&l->member, &c, d);
    if (!err) err = follow(&f, d);
    ranks->ops->release_host(ranks, f.rooms);
    return err;
}
