/* host_lanes.h - the data lanes of a host, what goes over them between ranks, and WORK
 *
 * host_runner.h (on host 0) makes the hub that has the links to the other hosts; host_follow.h (on
 * the others) makes the member that has the link to host 0.
 */
#ifndef FATHOM_ENGINE_HOST_LANES_H
#define FATHOM_ENGINE_HOST_LANES_H

#include <pthread.h>
#include <string.h>

#include "backend/host_group.h"
#include "base/assert.h"
#include "comm/host_address.h"
#include "comm/host_hub.h"
#include "comm/host_member.h"
#include "engine/stage_net.h"
#include "engine/step_runner.h"
#include "fathom/options.h"

struct engine_settings;
struct model_config;

/* The part of a page record that the ranks of a host have. */
struct record_part {
    uint64_t offset;
    uint64_t n_bytes;
};

struct host_lanes {
    struct host_net net; /* first member; of one stage */
    const fathom_hosts *hosts;
    struct host_address address; /* of host 0 */
    struct host_hub *hub;        /* host 0's */
    struct host_member *member;  /* another host's */
    struct stage_net *stages;    /* NULL: one stage, whose ranks meet */
    uint32_t n_lane;             /* of all hosts, where requests are cut; else 0 */
    uint32_t n_local_lane;       /* likewise, of this host */
    /* [n_node], where pages are kept outside of the cache; else zeros */
    struct record_part records[HOSTS_MAX];
    size_t max_bytes;     /* that a rank shows */
    unsigned char *shown; /* [n_rank][max_bytes] of other hosts' ranks */
    pthread_mutex_t lock; /* of what follows */
    void (*changed)(void *arg);
    void *arg;
};

/* host_lanes_create - the nets of settings->hosts, for its ranks; without links yet
 *
 *   keeps_pages  outside of the cache
 * host_lanes_net - where ranks of one stage meet; NULL: there are several
 * host_lanes_stages - between stages; NULL: there is one
 * Errors  ENOMEM. host_lanes_destroy accepts NULL. */
fathom_err host_lanes_create(struct host_lanes **out, const struct engine_settings *s,
                             const struct model_config *config, bool keeps_pages, fathom_diag *d);
void host_lanes_destroy(struct host_lanes *l);
struct host_net *host_lanes_net(struct host_lanes *l);
struct stage_net *host_lanes_stages(struct host_lanes *l);

/* host_lanes_find - where host 0 is, before anything is loaded: as the settings say, or by PMIx
 *
 * Errors  as host_address_by_pmix. */
fathom_err host_lanes_find(struct host_lanes *l, fathom_diag *d);

/* host_lanes_tell_drawn - another host's, between steps: what one of its lanes has drawn
 * host_lanes_await_drawn - host 0's: the same, into bytes of step_drawn_bytes(n_row, n_top > 0)
 *
 *   lane  of all hosts'
 * Errors  EIO, EFORMAT; EPEER: the host is lost, and host 0 knows. */
fathom_err host_lanes_tell_drawn(struct host_lanes *l, uint32_t lane, const struct step *step,
                                 const struct step_result *drawn, fathom_diag *d);
fathom_err host_lanes_await_drawn(struct host_lanes *l, uint32_t lane, const struct step *step,
                                  void *bytes, struct step_result *out);

/* host_lanes_tell_record - another host's: what it has of a page's record, which host 0 has asked
 * for; where there is one stage, between steps
 * host_lanes_await_record - host 0's, of one stage: the same, to `to`
 *
 * Errors  as above. */
fathom_err host_lanes_tell_record(struct host_lanes *l, uint32_t page, const void *record,
                                  fathom_diag *d);
fathom_err host_lanes_await_record(struct host_lanes *l, uint32_t host, uint32_t page, void *to);

/* ---- WORK ----
 *
 * { struct work }, n_step steps, and of their blocks the bytes that the steps say: of a launch the
 * prefix and the extras, of a draw the masks, of a wait nothing. Where requests are cut over ranks
 * a host gets the steps of its lanes, else all get the only one. Of one stage a step told while
 * others are under way is the one behind them, and a wait is for the oldest; of more nobody is told
 * to wait.
 *
 * Or { struct work } and a host's part of a page's record, to be copied in before the steps that
 * are told later; or { struct work } alone, and that part goes to host 0. Hosts run one build
 * (host_hello.h), so structs are sent as they are. */

enum work_kind { WORK_LAUNCH = 1, WORK_DRAW, WORK_WAIT, WORK_PAGE_IN, WORK_PAGE_OUT };

struct work {
    uint32_t kind;
    uint32_t block;  /* of the step, as host 0's ranks have it */
    uint32_t n_step; /* 0 of a page */
    uint32_t lane;   /* of the host, which has the page */
    uint32_t page;
};

/* work_n_step - steps of a host: its lanes', or the only one */
static inline uint32_t work_n_step(const struct host_lanes *l)
{
    return l->n_lane > 0 ? l->n_local_lane : 1;
}

/* work_bytes_max - of a WORK */
static inline size_t work_bytes_max(const struct host_lanes *l, const struct step_runner *r)
{
    const size_t steps = work_n_step(l) * (sizeof(struct step) + r->layout.n_bytes);
    const size_t record = l->records[l->hosts->node_rank].n_bytes;
    return sizeof(struct work) + (steps > record ? steps : record);
}

enum { WORK_RANGES_MAX = 1 + SAMPLE_EXTRA_N };

/* work_ranges - the ranges of a step's block that go with it, into out; returns how many */
static inline uint32_t work_ranges(struct block_range out[WORK_RANGES_MAX], uint32_t kind,
                                   const struct step *s)
{
    if (kind == WORK_WAIT) return 0;
    if (kind == WORK_DRAW) {
        out[0] = s->sampler.masks;
        return 1;
    }
    out[0] = (struct block_range){.offset = 0, .n_bytes = s->prefix_bytes};
    memcpy(&out[1], s->sampler.extras, sizeof s->sampler.extras);
    return WORK_RANGES_MAX;
}

/* Blocks of steps under way: at the front the oldest. */
struct flights {
    uint32_t blocks[PARALLEL_STAGES_MAX];
    uint32_t n;
};

/* push_flight - the newest; pop_flight - the block of the oldest
 * has_flight - a step that has the block is under way */
static inline void push_flight(struct flights *f, uint32_t block)
{
    ASSERT(f->n < PARALLEL_STAGES_MAX);
    f->blocks[f->n++] = block;
}

static inline uint32_t pop_flight(struct flights *f)
{
    const uint32_t block = f->blocks[0];
    ASSERT(f->n > 0);
    f->n--;
    memmove(&f->blocks[0], &f->blocks[1], f->n * sizeof f->blocks[0]);
    return block;
}

static inline bool has_flight(const struct flights *f, uint32_t block)
{
    for (uint32_t i = 0; i < f->n; i++) {
        if (f->blocks[i] == block) return true;
    }
    return false;
}

#endif
