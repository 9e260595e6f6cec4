/* rank_group.h - the step runner over several ranks: one model runner and one thread for each
 *
 * The engine sees one runner. Each of its calls becomes a command in a ring. Every rank's thread
 * reads the ring in order, so all ranks make the same calls. The engine writes a step into the
 * block of rank 0's runner, and every rank copies it from there. All ranks draw the same ids; the
 * results are those of rank 0.
 *
 * Page records are equal on all ranks: a page is copied out of rank page % n, and in to all ranks.
 *
 * With data parallelism (parallel.h) the ranks that share requests are a lane (step_runner.h). A
 * lane has blocks and results of its own. Its pages are copied out of one of its ranks, and in to
 * its ranks only. All lanes make the same passes, so that their ranks meet in every layer.
 *
 * The ranks of several stages (stage_hop.h) are one group too. All get the same commands in the
 * same order, and each goes on as fast as rows come from the stage before, so each stage is at
 * another step. Each stage has a part of a page's record. With several hosts a group has the stages
 * that run here (stage_net.h), and copies their part of a record.
 *
 * When a rank fails the group has failed: its peers stop waiting for it, every later call returns
 * an error, and fault says which rank it was, in which layer, and why.
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
