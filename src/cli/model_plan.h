/* model_plan.h - what the memory plan of a model is made from */
#ifndef FATHOM_CLI_MODEL_PLAN_H
#define FATHOM_CLI_MODEL_PLAN_H

#include "cli/cli.h"
#include "engine/memory_plan.h"
#include "engine/rank_layout.h"
#include "model/config.h"

struct model_plan {
    struct checkpoint *checkpoint; /* NULL: MODEL is a config.json alone */
    struct model_config config;
    fathom_hosts hosts; /* of --nnodes; what is planned is host 0 */
    struct engine_settings settings;
    struct memory_plan plan;
    struct rank_layout layout; /* what was compared; n_rank 0: nothing */
};

/* model_plan_make - by the command line, for this machine or for --memory
 *
 *   compares  a load without --layout is allowed: layouts are compared, and what is planned is the
 *             one that --layout auto would take, unless the command line gives one
 * Errors  those of the checkpoint and its config. ENOMEM: the model does not fit; *out is then
 *         filled all the same, told by plan.total_bytes > 0. The caller closes it in any case. */
fathom_err model_plan_make(struct model_plan *out, const struct invocation *v, bool compares,
                           fathom_diag *d);
void model_plan_close(struct model_plan *p);

/* model_plan_check_weights - whether every tensor is there that the model needs; weights that are
 * made up always are
 * Errors  EFORMAT: how many are missing or wrong, and the first. */
fathom_err model_plan_check_weights(const struct model_plan *p, fathom_diag *d);

/* model_plan_each_form - a line for each way in which matrices of the checkpoint are coded: "72
 * matrices are awq, u4 g64 F16 + zero: 2.6 MB in the files". None for what is made up. */
typedef void model_plan_form(void *arg, const char *line);
void model_plan_each_form(const struct model_plan *p, model_plan_form *visit, void *arg);

#endif
