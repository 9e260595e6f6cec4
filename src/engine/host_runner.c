/* host_runner.c - host 0's runner: sends steps to other hosts as WORK, and gives them to its own
 * ranks
 *
 * With several stages, as many steps are under way as there are stages, and WORK says which block a
 * step uses. With one stage, steps are launched ahead as on one host: each device takes their ids
 * from the draws before them. The other hosts get the same calls in the same order, waits too, so
 * they use their blocks in the same order. With data parallelism, host 0 has blocks for the lanes
 * of other hosts, which it sends to them, and they send back what they draw (host_lanes.c).
 */
#include "engine/host_runner.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/fail.h"
#include "base/mem.h"
#include "engine/host_lanes.h"
#include "engine/step_drawn.h"

struct host_runner {
    struct step_runner base; /* first member */
    struct step_runner *ranks;
    struct host_lanes *lanes;
    uint32_t block; /* of the step that is written */
    struct flights flights;
    struct step *steps;  /* [max_flight][n_lane] the step of each block and lane */
    bool is_filling;     /* pages were copied out since the ranks were waited for */
    unsigned char *work; /* [work_bytes_max] */
    /* with several lanes: the blocks that base.hosts[] names for lanes of other hosts, and what
     * these lanes drew. A block may be written again once it was sent, even if its step is under
     * way. */
    unsigned char *blocks;
    unsigned char *drawn;
    size_t drawn_bytes; /* of one lane */
    char fault[HOST_TEXT_MAX + 1];
};

static struct host_runner *runner_of(struct step_runner *r)
{
    return (struct host_runner *)r;
}

static void free_parts(struct host_runner *r)
{
    mem_free(r->work);
    mem_free(r->blocks);
    mem_free(r->steps);
    mem_free(r->drawn);
    mem_free(r->base.n_lane > 1 ? r->base.hosts : NULL);
    mem_free(r);
}

static void destroy(struct step_runner *base)
{
    struct host_runner *r = runner_of(base);
    if (!r) return;
    if (r->lanes->stages) stage_net_end(r->lanes->stages);
    host_hub_end(r->lanes->hub);      /* NCCL wants ranks of one machine to part at once */
    r->ranks->ops->destroy(r->ranks); /* no step is under way: its lanes are idle */
    host_lanes_destroy(r->lanes);
    free_parts(r);
}

static fathom_err bind(struct step_runner *base)
{
    struct step_runner *ranks = runner_of(base)->ranks;
    return ranks->ops->bind(ranks);
}

/* The steps of a block. */
static struct step *steps_of(struct host_runner *r, uint32_t block)
{
    ASSERT(block < r->base.max_flight);
    return &r->steps[(size_t)block * step_runner_n_lane(&r->base)];
}

/* Writes a WORK of `n` steps of a block, from lane `first` on, into r->work; returns its size. */
static size_t write_work(struct host_runner *r, uint32_t kind, uint32_t block, uint32_t first,
                         uint32_t n)
{
    const struct work w = {.kind = kind, .block = block, .n_step = n};
    const struct step *steps = steps_of(r, block);
    unsigned char *at = r->work;
    memcpy(at, &w, sizeof w);
    memcpy(at + sizeof w, steps + first, n * sizeof *steps);
    at += sizeof w + n * sizeof *steps;
    for (uint32_t i = first; i < first + n; i++) {
        struct block_range ranges[WORK_RANGES_MAX];
        const uint32_t n_range = work_ranges(ranges, kind, &steps[i]);
        const char *arrays = step_runner_host(&r->base, i);
        for (uint32_t k = 0; k < n_range; k++) {
            ASSERT(ranges[k].offset + ranges[k].n_bytes <= r->base.layout.n_bytes);
            memcpy(at, arrays + ranges[k].offset, ranges[k].n_bytes);
            at += ranges[k].n_bytes;
        }
    }
    return (size_t)(at - r->work);
}

/* Tells all hosts what to do with the step of a block; with several lanes, each host gets the steps
 * of its own. */
static fathom_err tell(struct host_runner *r, uint32_t kind, uint32_t block)
{
    struct host_lanes *l = r->lanes;
    const uint32_t n = work_n_step(l);
    struct link_part part = {r->work, 0};
    if (l->n_lane == 0) {
        part.n = write_work(r, kind, block, 0, 1);
        return host_hub_tell(l->hub, &part, 1);
    }
    for (uint32_t host = 1; host < l->hosts->n_node; host++) {
        part.n = write_work(r, kind, block, host * n, n);
        TRY(host_hub_tell_one(l->hub, host, &part, 1));
    }
    return FATHOM_OK;
}

/* Keeps the steps of the current block. Those of lanes are told the largest step of all hosts. */
static const struct step *keep_steps(struct host_runner *r, const struct step *steps)
{
    struct step *kept = steps_of(r, r->block);
    if (r->base.n_lane > 1)
        step_runner_put_lanes(kept, steps, r->base.n_lane);
    else
        *kept = *steps;
    return kept;
}

static fathom_err launch(struct step_runner *base, const struct step *steps)
{
    struct host_runner *r = runner_of(base);
    ASSERT(base->host == r->ranks->host);
    steps = keep_steps(r, steps);
    TRY(tell(r, WORK_LAUNCH, r->block));
    return r->ranks->ops->launch(r->ranks, steps);
}

static fathom_err draw(struct step_runner *base, const struct step *steps)
{
    struct host_runner *r = runner_of(base);
    steps = keep_steps(r, steps);
    TRY(tell(r, WORK_DRAW, r->block));
    TRY(r->ranks->ops->draw(r->ranks, steps));
    push_flight(&r->flights, r->block);
    return FATHOM_OK;
}

/* Waits for what the lanes of other hosts have drawn. */
static fathom_err await_lanes(struct host_runner *r, const struct step *steps,
                              struct step_result *out)
{
    struct host_lanes *l = r->lanes;
    for (uint32_t i = l->n_local_lane; i < l->n_lane; i++) {
        unsigned char *bytes = r->drawn + (i - l->n_local_lane) * r->drawn_bytes;
        TRY(host_lanes_await_drawn(l, i, &steps[i], bytes, &out[i]));
    }
    return FATHOM_OK;
}

/* Shows the engine the current blocks of the ranks here. */
static void show_blocks(struct host_runner *r)
{
    r->base.host = r->ranks->host;
    for (uint32_t i = 0; r->base.n_lane > 1 && i < r->lanes->n_local_lane; i++)
        r->base.hosts[i] = step_runner_host(r->ranks, i);
}

/* With several stages, the last host draws; the ranks here have also ended the step then. */
static fathom_err wait(struct step_runner *base, struct step_result *out)
{
    struct host_runner *r = runner_of(base);
    struct stage_net *stages = r->lanes->stages;
    const uint32_t oldest = pop_flight(&r->flights);
    if (!stages) TRY(tell(r, WORK_WAIT, oldest));
    const fathom_err err = r->ranks->ops->wait(r->ranks, out);
    show_blocks(r);
    if (err) return err;
    if (stages) return stage_net_await_drawn(stages, oldest, out);
    if (r->flights.n == 0) r->block = 0; /* as the ranks' (block_ring.h) */
    r->is_filling = false;
    return base->n_lane > 1 ? await_lanes(r, steps_of(r, oldest), out) : FATHOM_OK;
}

/* The other hosts are not told: they see that the next launch comes while a step is under way. */
static void next_block(struct step_runner *base)
{
    struct host_runner *r = runner_of(base);
    ASSERT(!r->lanes->stages && r->flights.n > 0 && r->flights.n < base->max_flight);
    r->ranks->ops->next_block(r->ranks);
    show_blocks(r);
    r->block = (r->block + 1) % base->max_flight;
}

static void use_block(struct step_runner *base, uint32_t i)
{
    struct host_runner *r = runner_of(base);
    ASSERT(!has_flight(&r->flights, i));
    r->ranks->ops->use_block(r->ranks, i);
    show_blocks(r);
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
    struct host_runner *r = runner_of(base);
    TRY(r->ranks->ops->sync(r->ranks));
    r->is_filling = false;
    return FATHOM_OK;
}

/* ---- pages ---------------------------------------------------------------------------------- */

/* The host that has a page, of lanes, and the lane there. */
struct place {
    uint32_t host;
    uint32_t lane;
    uint32_t page;
};

static struct place place_of(const struct host_runner *r, uint32_t page)
{
    const uint32_t n = r->lanes->n_local_lane; /* 0: all hosts have it */
    if (n == 0) return (struct place){0, 0, page};
    const uint32_t lane = page / r->base.lane_pages;
    ASSERT(lane < r->base.n_lane);
    return (struct place){lane / n, lane % n, page % r->base.lane_pages};
}

/* Sends a host its part of a record, which may be all of it. */
static fathom_err tell_page(struct host_runner *r, uint32_t host, const struct work *w,
                            const void *record)
{
    const struct record_part *p = &r->lanes->records[host];
    const struct link_part parts[] = {{w, sizeof *w},
                                      {(const char *)record + p->offset, p->n_bytes}};
    ASSERT(host > 0 && p->n_bytes > 0 && w->kind == WORK_PAGE_IN);
    return host_hub_tell_one(r->lanes->hub, host, parts, 2);
}

/* With several stages: collects the parts of a page's record that the other hosts have. */
static fathom_err gather(struct host_runner *r, const struct work *w, void *record)
{
    const struct host_lanes *l = r->lanes;
    const struct link_part part = {w, sizeof *w};
    for (uint32_t i = 1; i < l->hosts->n_node; i++)
        stage_net_expect_record(l->stages, i, (char *)record + l->records[i].offset,
                                l->records[i].n_bytes);
    const fathom_err told = host_hub_tell(l->hub, &part, 1);
    fathom_err err = told;
    for (uint32_t i = 1; i < l->hosts->n_node; i++) {
        const fathom_err came = stage_net_await_record(l->stages, i);
        if (came) err = came;
    }
    return err;
}

/* Ranks that share layers have equal records, so one of them here is copied out. A page of a lane
 * on another host comes from that host, and so do the layers of stages there. */
static fathom_err page_out(void *runner, uint32_t page, void *to)
{
    struct host_runner *r = runner;
    const struct place at = place_of(r, page);
    const struct work w = {.kind = WORK_PAGE_OUT, .lane = at.lane, .page = at.page};
    const struct link_part part = {&w, sizeof w};
    if (at.host > 0) {
        TRY(host_hub_tell_one(r->lanes->hub, at.host, &part, 1));
        return host_lanes_await_record(r->lanes, at.host, at.page, to);
    }
    if (r->lanes->stages) TRY(gather(r, &w, to));
    r->is_filling = true;
    return r->ranks->ops->page_out(r->ranks, page, to);
}

/* Gives the record to all hosts that have the page, once all of it is there. */
static fathom_err page_in(void *runner, uint32_t page, const void *from)
{
    struct host_runner *r = runner;
    const struct place at = place_of(r, page);
    const struct work w = {.kind = WORK_PAGE_IN, .lane = at.lane, .page = at.page};
    if (r->is_filling) TRY(sync_ranks(&r->base));
    if (at.host > 0) return tell_page(r, at.host, &w, from);
    for (uint32_t i = 1; r->lanes->n_lane == 0 && i < r->lanes->hosts->n_node; i++)
        TRY(tell_page(r, i, &w, from));
    return r->ranks->ops->page_in(r->ranks, page, from);
}

static fathom_err alloc_host(struct step_runner *base, size_t bytes, void **out, fathom_diag *d)
{
    struct step_runner *ranks = runner_of(base)->ranks;
    return ranks->ops->alloc_host(ranks, bytes, out, d);
}

static void release_host(struct step_runner *base, void *p)
{
    struct step_runner *ranks = runner_of(base)->ranks;
    ranks->ops->release_host(ranks, p);
}

/* ---- hosts that come and go ----------------------------------------------------------------- */

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
    show_blocks(r);
    r->block = 0;
    r->flights.n = 0;
    r->is_filling = false;
    TRY(host_hub_gather(l->hub, d));
    base->n_page = host_hub_n_page(l->hub);
    err = l->stages ? FATHOM_OK : r->ranks->ops->connect(r->ranks);
    if (err) FAIL(d, err, "%s", fault(base));
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
    .page_out = page_out,
    .page_in = page_in,
    .sync = sync_ranks,
    .alloc_host = alloc_host,
    .release_host = release_host,
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

/* Makes room for the lanes of other hosts, whose blocks are written here and sent there. */
static fathom_err make_lanes(struct host_runner *r, uint32_t n_page, fathom_diag *d)
{
    const struct host_lanes *l = r->lanes;
    const uint32_t n_far = l->n_lane - l->n_local_lane;
    const size_t block_bytes = (r->base.layout.n_bytes + 63) / 64 * 64;
    ASSERT(l->n_lane > l->n_local_lane);
    r->drawn_bytes = (step_drawn_bytes(r->base.layout.max_logit_row, true) + 63) / 64 * 64;
    r->base.n_lane = l->n_lane;
    r->base.lane_pages = n_page;
    r->base.hosts = mem_calloc(l->n_lane, sizeof *r->base.hosts);
    r->blocks = mem_alloc_aligned(64, n_far * block_bytes);
    r->drawn = mem_alloc_aligned(64, n_far * r->drawn_bytes);
    if (!r->base.hosts || !r->blocks || !r->drawn)
        FAIL(d, FATHOM_ENOMEM, "no memory for the lanes of %u hosts", l->hosts->n_node);
    memset(r->blocks, 0, n_far * block_bytes);
    for (uint32_t i = 0; i < n_far; i++)
        r->base.hosts[l->n_local_lane + i] = r->blocks + i * block_bytes;
    show_blocks(r);
    return FATHOM_OK;
}

fathom_err host_runner_create(struct step_runner **out, struct host_lanes *lanes,
                              struct step_runner *ranks, const struct host_self *self,
                              uint32_t n_page_min, fathom_diag *d)
{
    const struct host_hub_config c = {.self = *self,
                                      .host = lanes->address.host,
                                      .port = lanes->address.port,
                                      .n_page_min = n_page_min,
                                      .listen_fd = lanes->address.listen_fd,
                                      .changed = tell_change,
                                      .arg = lanes};
    *out = NULL;
    ASSERT(ranks->max_flight <= PARALLEL_STAGES_MAX);
    ASSERT(self->node_rank == 0 && !lanes->hub && !lanes->member);
    struct host_runner *r = mem_calloc(1, sizeof *r);
    if (!r) FAIL(d, FATHOM_ENOMEM, "no memory for the runner of %u hosts", self->n_node);
    fathom_err err = FATHOM_ENOMEM;
    r->base = *ranks; /* layout, blocks */
    r->base.ops = &host_ops;
    r->base.n_lane = 0;
    r->base.hosts = NULL;
    r->ranks = ranks;
    r->lanes = lanes;
    r->work = mem_alloc(work_bytes_max(lanes, ranks));
    r->steps = mem_calloc((size_t)ranks->max_flight * (lanes->n_lane > 0 ? lanes->n_lane : 1),
                          sizeof *r->steps);
    const bool has_room = r->work && r->steps;
    if (!has_room) err = diag_fail(d, err, "no memory for steps of %u hosts", self->n_node);
    if (has_room) err = lanes->n_lane > 0 ? make_lanes(r, self->n_page, d) : FATHOM_OK;
    if (!err) err = host_hub_create(&lanes->hub, &c, d);
    if (err) {
        free_parts(r);
        return err;
    }
    *out = &r->base;
    return FATHOM_OK;
}
