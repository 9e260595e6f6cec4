/* host_runner.h - the step runner over several hosts: host 0 tells, the others follow
 *
 * Each host has a rank group of its own ranks (rank_group.h): a part of the only stage, whose
 * meetings go over the data lanes of comm/host_hub.h, or whole stages, whose rows do. On host 0 the
 * engine sees one runner: what it asks for goes to the other hosts first, as the shape and bytes
 * that a step is, and then to the ranks here.
 *
 *   AWAY --rejoin: all hosts are there--> WHOLE --a host is lost: calls are EPEER--> AWAY
 *
 * A host that comes back has nothing in its cache: what was computed before is void.
 */
#ifndef FATHOM_ENGINE_HOST_RUNNER_H
#define FATHOM_ENGINE_HOST_RUNNER_H

#include "comm/host_hello.h"
#include "engine/step_runner.h"

struct host_lanes;

/* host_runner_create - host 0's, AWAY, over the ranks that run here
 *
 *   n_page_min  that the longest request takes
 * Owns    lanes and ranks on success.
 * Errors  EIO: the port is taken; ENOMEM. */
fathom_err host_runner_create(struct step_runner **out, struct host_lanes *lanes,
                              struct step_runner *ranks, const struct host_self *self,
                              uint32_t n_page_min, fathom_diag *d);

/* host_runner_on_change - whom to tell when a host has come or is lost; any thread calls it */
void host_runner_on_change(struct step_runner *r, void (*changed)(void *arg), void *arg);

#endif
