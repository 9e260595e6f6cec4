/* stage_hop.h - hands the residual stream of a step from one stage to the next
 *
 * There is a hop before each stage but the first. It has a room for the rows of each step that may
 * be under way, one for each block. One rank of the stage before fills a room and gives it. All
 * ranks of the stage behind take the rooms in the order in which they were given, and release them.
 * If the stages are on two hosts, each host has a hop, and stage_net.h takes from the one and gives
 * to the other.
 *
 *   WORKS --stage_hop_break--> BROKEN: nothing is given any more --stage_hop_renew--> WORKS
 *
 * What was given before a break is still taken by all takers. So either every rank of a stage
 * computes a step or none does, and no device waits in vain for another.
 */
#ifndef FATHOM_ENGINE_STAGE_HOP_H
#define FATHOM_ENGINE_STAGE_HOP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/step_runner.h"
#include "fathom/err.h"
#include "model/forward.h"

struct stage_hop;

/* What is told with a step's rows. */
struct stage_head {
    uint32_t block;
    uint32_t n_row;
    struct expert_counts experts; /* of all stages up to here */
};

struct stage_hop_config {
    uint32_t n_block;   /* steps that may be under way */
    uint32_t max_row;   /* of a step */
    uint32_t width;     /* values of a row */
    uint32_t n_taker;   /* ranks that take, >= 1 */
    bool borrows_rooms; /* of stage_hop_lend_rooms; else it has its own */
};

/* stage_hop_create - ENOMEM. stage_hop_destroy accepts NULL; nobody gives or takes any more. */
fathom_err stage_hop_create(struct stage_hop **out, const struct stage_hop_config *c,
                            fathom_diag *d);
void stage_hop_destroy(struct stage_hop *h);

/* stage_hop_lend_rooms - once, before the first step
 *
 *   rows  f32 [n_block][max_row][width], which stay until nobody gives or takes any more */
void stage_hop_lend_rooms(struct stage_hop *h, float *rows);

/* stage_hop_room - where the rows of the step of a block lie: f32 [n_row][width] */
float *stage_hop_room(struct stage_hop *h, uint32_t block);

/* stage_hop_claim - wait until all takers have given the room of a block back; who gives
 * Errors  EPEER: the hop is broken. */
fathom_err stage_hop_claim(struct stage_hop *h, uint32_t block);

/* stage_hop_give - the room of head->block is filled; one rank, which has claimed it
 * Errors  EPEER: the hop is broken. */
fathom_err stage_hop_give(struct stage_hop *h, const struct stage_head *head);

/* stage_hop_take - wait for the rows of the next step that this rank has not taken
 *
 *   taker   this rank's number, below n_taker
 *   wanted  block and n_row: what the rank computes
 *   out     filled: of that step
 * Errors  EPEER: the hop is broken, and that step was not given; stage_hop_fault says why. Or it is
 *         another step than wanted, and the hop is broken by that. */
fathom_err stage_hop_take(struct stage_hop *h, uint32_t taker, const struct stage_head *wanted,
                          struct stage_head *out);

/* stage_hop_next - the same for a taker that takes whatever comes next */
fathom_err stage_hop_next(struct stage_hop *h, uint32_t taker, struct stage_head *out);

/* stage_hop_release - a taker gives the room of a block back */
void stage_hop_release(struct stage_hop *h, uint32_t block);

/* stage_hop_break - a rank at either end does not come any more; any thread. The first reason
 * stays.
 * stage_hop_renew - as if nothing had been given yet; needs nobody who gives or takes.
 * stage_hop_fault - why it is broken; "" while it is not */
void stage_hop_break(struct stage_hop *h, const char *why);
void stage_hop_renew(struct stage_hop *h);
const char *stage_hop_fault(const struct stage_hop *h);

/* Where the rows of a stage come from and go to. */
struct runner_stage {
    struct stage_hop *from; /* NULL: it is the first */
    struct stage_hop *to;   /* NULL: it is the last */
    uint32_t peer;          /* this rank's number among the stage's, of whom 0 gives */
};

#endif
