/* rank_group.h - the step runner over several ranks: one model runner and one thread for each
 *
 * The engine sees one runner. What it asks for is put into a ring that every rank's thread reads in
 * order, so all ranks make the same calls; what the engine writes for a step lies in the blocks of
 * rank 0's runner, from which every rank copies. All ranks draw the same ids; rank 0's are told.
 *
 * Page records are equal on all ranks: a page is copied out from rank page % n, and in to all.
 *
 * Where requests are cut too (parallel.h), the ranks that share one are a lane (step_runner.h). It
 * has blocks of its own and tells the ids that it draws, and its pages are copied out of one of its
 * ranks and in to all of them alone. All lanes make the same passes, so that they meet in every
 * layer.
 *
 * Ranks of several stages (stage_hop.h) are one group too: all have the same commands in the same
 * order, and a rank goes through them as fast as its rows come, so that each stage is at a step of
 * its own. Of a page each stage has a part of the record. Of several hosts a group has those stages
 * that run here (stage_net.h), and their part of a record is what pages are copied to and from.
 *
 * A rank that fails ends the group: its peers stop waiting for it, every call fails from then on,
 * and fault says which rank it was, in which layer, and why.
 */
#ifndef FATHOM_ENGINE_RANK_GROUP_H
#define FATHOM_ENGINE_RANK_GROUP_H

#include "engine/memory_plan.h"
#include "engine/settings.h"
#include "engine/step_runner.h"

struct checkpoint;
struct model_config;

/* rank_group_create - every rank of the settings: backends become peers, then all load at once
 *
 * The ranks load layer by layer together, so a layer's tensors are read from storage once and the
 * ranks find them in the page cache. Arguments and errors as of runner_create; a message about one
 * rank names it. */
fathom_err rank_group_create(struct step_runner **out, const struct engine_settings *s,
                             const struct memory_plan *plan, const struct model_config *config,
                             const struct checkpoint *checkpoint, fathom_diag *d);

struct backend;

/* rank_group_create_on - the same over n backends that the caller has made and joined; they are the
 * group's from now on, also after a failure */
fathom_err rank_group_create_on(struct step_runner **out, struct backend *const *backends,
                                const struct engine_settings *s, const struct memory_plan *plan,
                                const struct model_config *config,
                                const struct checkpoint *checkpoint, fathom_diag *d);

/* rank_group_first - rank 0's runner, for what it can tell of itself (runner.h) */
const struct step_runner *rank_group_first(const struct step_runner *group);

#endif
