/* rank_group_int.h - a ring of commands, and the threads that carry them out
 *
 *   ring      commands [n_done of the slowest rank, n_told); a place is written again when every
 *             rank is done with it
 *   n_told    commands put into the ring; the engine's thread writes it
 *   n_done    of a rank: commands carried out, or passed over after a failure
 *   lock      guards the conditions and the fault; numbers are also read without it
 *
 * Lanes. Rank i is of lane i / n_lane_rank; the first of a lane has the blocks, which the others
 * read, and tells what was drawn.
 *
 * Stages. Rank i is peer i % n_peer of stage i / n_peer of those that run here. A step's wait is
 * told right behind its draw: a rank is done with one step before it looks at the next one, and the
 * engine waits for the last stage alone. Where another host has stages, the hops at the edges are
 * stage_net.h's too, and the last host's first rank tells it what was drawn.
 *
 * A rank that has failed passes over commands, so that the engine never waits for it. One that does
 * not end a command is lost: once another rank has failed, or when nothing moves for longer than
 * the ranks' patience, the engine goes on without it. Its thread cannot be ended, so that all it
 * may touch stays; the process is about to end. Where another host is what failed, the ranks here
 * go on in the next generation, and each has as long for its command as before. Invariants:
 * n_told - n_done <= RING for each rank; flights ascend in n.
 */
#ifndef FATHOM_ENGINE_RANK_GROUP_INT_H
#define FATHOM_ENGINE_RANK_GROUP_INT_H

#include <pthread.h>
#include <stdatomic.h>

#include "backend/host_group.h"
#include "engine/block_ring.h"
#include "engine/settings.h"
#include "engine/stage_hop.h"
#include "engine/stage_net.h"

enum {
    RING = 64,
    SPIN_NS = 20000,         /* looks for a command, or for a rank, before a thread sleeps */
    LOAD_PATIENCE_S = 86400, /* for a rank that loads a layer */
    FAREWELL_MS = 2000,      /* for a rank to end its command after another one's fault */
    LOOK_MS = 100,           /* between looks at ranks that are waited for */
    N_LAUNCH = 255,          /* steps of which a rank keeps what launching took */
};

enum command_kind {
    COMMAND_LAUNCH,
    COMMAND_DRAW,
    COMMAND_NEXT_BLOCK,
    COMMAND_WAIT,
    COMMAND_PAGE_OUT,
    COMMAND_PAGE_IN,
    COMMAND_SYNC,
    COMMAND_RENEW,
    COMMAND_CONNECT,
    COMMAND_ALLOC,   /* rank 0's */
    COMMAND_RELEASE, /* rank 0's */
    COMMAND_END,
};

struct command {
    enum command_kind kind;
    struct step step; /* launch, draw; of stages wait too */
    uint32_t block;   /* of stages, likewise */
    void *host;       /* their block; NULL: each rank's own */
    uint32_t rank;    /* page_out, page_in: whose page, of peers rank .. rank + n_rank - 1 */
    uint32_t n_rank;
    uint32_t page;
    void *to;         /* page_out; alloc: void ** */
    const void *from; /* page_in */
    size_t bytes;     /* alloc */
    fathom_err *err;  /* alloc: what became of it */
    fathom_diag *diag;
};

/* What the ranks are made from. */
struct rank_sources {
    const struct engine_settings *settings;
    const struct memory_plan *plan;
    const struct model_config *config;
    const struct checkpoint *checkpoint;
};

struct rank {
    struct rank_group *group;
    uint32_t i;
    uint32_t peer;                   /* its number in its stage */
    struct engine_settings settings; /* with this rank's place */
    struct host_rank load;           /* meets the others while it loads */
    struct backend *backend;         /* until the runner has it */
    struct step_runner *runner;
    struct runner_stage stage;
    uint64_t record_offset; /* of its stage's part, in what a page's record has of stages here */
    struct step_result results[PARALLEL_STAGES_MAX]; /* of the last wait, of stages by block */
    fathom_err err;                                  /* the first; written before n_done */
    fathom_diag diag;                                /* of creation */
    pthread_t thread;
    bool has_thread;
    uint64_t n_step; /* launched; this thread's */
    struct {
        uint64_t ns;                /* of the step that is launched */
        uint32_t last_ns[N_LAUNCH]; /* of the last steps, from launch to draw */
        uint32_t n;
    } launch;                 /* likewise */
    _Atomic uint64_t is_made; /* 1: the runner is there, or err says why not */
    _Atomic bool is_lost;     /* the engine does not wait for it any more */
    _Alignas(64) _Atomic uint64_t n_done;
};

struct rank_group {
    struct step_runner base;         /* first member */
    const struct rank_sources *from; /* while it is made */
    uint32_t n_rank;
    struct rank *ranks; /* [n_rank] */
    bool spins;
    uint32_t patience_ms;     /* of the engine, for a rank that does not move */
    struct block_ring blocks; /* the ranks' rings are where it is, once all commands are done */
    uint32_t n_peer;          /* ranks of a stage */
    uint32_t n_stage;         /* that run here */
    bool is_staged;           /* the model has several */
    struct host_net *hosts;   /* of ranks that meet those of other hosts; NULL: none do */
    struct stage_net *net;    /* to other hosts' stages; NULL: all are here */
    struct stage_hop *hops[PARALLEL_STAGES_MAX + 1]; /* [i]: before stage i of those here, and
                                                        [n_stage] behind them; NULL at the model's
                                                        ends */
    void *rooms[PARALLEL_STAGES_MAX + 1];            /* of the hops, which borrow them */
    uint32_t block;                                  /* of stages: of the step that is written */
    struct {
        uint64_t n; /* commands up to its wait */
        uint32_t block;
    } flights[PARALLEL_STAGES_MAX]; /* of stages: n_flight steps under way, oldest first */
    uint32_t n_flight;
    bool is_filling;    /* pages have gone out since the ranks were waited for */
    uint64_t n_filling; /* commands up to the last one of these */
    struct command ring[RING];
    uint32_t n_lane_rank; /* ranks of a lane; 1: there is none, or each is one */
    struct step *steps;   /* [RING][n_lane] of lanes: instead of the commands' */
    void **step_hosts;    /* [RING][n_lane] of lanes of several ranks: their blocks likewise */
    _Alignas(64) _Atomic uint64_t n_told;
    pthread_mutex_t lock;
    pthread_cond_t told;
    pthread_cond_t done;
    _Atomic bool has_fault; /* fault is whole */
    _Atomic bool is_parted; /* and it is another host's */
    char fault[320];
};

/* ---- the ring (rank_ring.c) ---- */

/* rank_ring_await - until *number is n or more; who raises it signals `changed`
 * rank_ring_raise - does, to n */
void rank_ring_await(struct rank_group *g, const _Atomic uint64_t *number, uint64_t n,
                     pthread_cond_t *changed);
void rank_ring_raise(struct rank_group *g, _Atomic uint64_t *number, uint64_t n,
                     pthread_cond_t *changed);

/* rank_ring_tell - puts a command into the ring, once there is a place
 * rank_ring_tell_steps - a launch or a draw: of as many steps as there are lanes */
void rank_ring_tell(struct rank_group *g, const struct command *c);
void rank_ring_tell_steps(struct rank_group *g, const struct command *c, const struct step *steps);

/* rank_ring_await_rank - until rank r is done with n commands, or lost
 * rank_ring_await_all - until all ranks are done with what has been told
 * rank_ring_ask - tells a command and waits until all ranks are done with it
 * Errors  of the latter two: a rank's where there is one, its own before one that it has from a
 *         peer; EPEER: a rank is lost. */
void rank_ring_await_rank(struct rank_group *g, struct rank *r, uint64_t n);
fathom_err rank_ring_await_all(struct rank_group *g);
fathom_err rank_ring_ask(struct rank_group *g, const struct command *c);

/* ---- a rank's thread (rank_thread.c) ---- */

/* rank_thread_main - of the struct rank `arg`: makes its runner, then carries out commands
 * rank_thread_end_layer - while it loads, after each layer: a model_loading's on_load */
void *rank_thread_main(void *arg);
void rank_thread_end_layer(void *arg, uint64_t done_bytes, uint64_t total_bytes);

#endif
