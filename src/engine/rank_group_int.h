/* rank_group_int.h - a ring of commands, and the threads that carry them out
 *
 *   ring      the commands from n_done of the slowest rank up to n_told. A place is written again
 *             when every rank is done with it
 *   n_told    how many commands have been put into the ring; the engine's thread writes it
 *   n_done    of a rank: how many commands it has carried out, or skipped after a failure
 *   lock      guards the conditions and the fault; the numbers are also read without it
 *
 * Lanes. Rank i is in lane i / n_lane_rank. The first rank of a lane has the blocks, which the
 * others read, and the results.
 *
 * Stages. Rank i is peer i % n_peer of stage i / n_peer, counting the stages that run here. The
 * wait for a step is put into the ring right behind its draw: so a rank finishes one step before it
 * looks at the next one, and the engine waits only for the last stage. If other hosts have stages,
 * the hops at the edges belong to stage_net.h too, and the first rank of the last host's last stage
 * gives it what was drawn.
 *
 * A rank that has failed skips commands, so that the engine never waits for it. A rank that does
 * not end a command is lost once another rank has failed, or when nothing moves for longer than the
 * ranks' patience. The engine then goes on without it. Its thread cannot be ended, so all memory
 * that it may touch is kept; the process is about to end. If the reason is a lost host, the ranks
 * here go on in the next generation, and each has the full time for its command again.
 *
 * Invariants: n_told - n_done <= RING for each rank; flights ascend in n.
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
    SPIN_NS = 20000,         /* how long a thread spins before it sleeps */
    LOAD_PATIENCE_S = 86400, /* how long a rank may load a layer */
    FAREWELL_MS = 2000,      /* how long a rank may take to end its command after another's fault */
    LOOK_MS = 100,           /* time between looks at ranks that are waited for */
    N_LAUNCH = 255,          /* a rank keeps the launch times of so many steps */
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
    struct step step; /* launch, draw; with stages also wait */
    uint32_t block;   /* with stages: the step's block */
    void *host;       /* launch, draw: the block's memory; NULL: each lane's own */
    uint32_t rank;    /* page_out, page_in: for the peers rank .. rank + n_rank - 1 */
    uint32_t n_rank;
    uint32_t page;
    void *to;         /* page_out; alloc: void ** */
    const void *from; /* page_in */
    size_t bytes;     /* alloc */
    fathom_err *err;  /* alloc: its result */
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
    struct host_rank load;           /* with which ranks wait for each other while they load */
    struct backend *backend;         /* belongs to the runner once that is made */
    struct step_runner *runner;
    struct runner_stage stage;
    uint64_t record_offset; /* of its stage's part of a page record, among the stages here */
    struct step_result results[PARALLEL_STAGES_MAX]; /* of the last wait; with stages, by block */
    fathom_err err;                                  /* the first error; written before n_done */
    fathom_diag diag;                                /* of an error while it was made */
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
