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
#include "engine/memory_plan.h"
#include "engine/settings.h"
#include "engine/step_runner.h"

struct checkpoint;
struct host_lanes;
struct model_config;
struct stage_net;

/* host_lanes_create - the nets of settings->hosts, for its ranks; without links yet
 * host_lanes_net - where ranks of one stage meet; NULL: there are several
 * host_lanes_stages - between stages; NULL: there is one
 * Errors  ENOMEM. host_lanes_destroy accepts NULL. */
fathom_err host_lanes_create(struct host_lanes **out, const struct engine_settings *s,
                             const struct model_config *config, fathom_diag *d);
void host_lanes_destroy(struct host_lanes *l);
struct host_net *host_lanes_net(struct host_lanes *l);
struct stage_net *host_lanes_stages(struct host_lanes *l);

/* host_runner_create - host 0's, AWAY, over the ranks that run here
 *
 * Owns    lanes and ranks on success.
 * Errors  EIO: the port is taken; ENOMEM. */
fathom_err host_runner_create(struct step_runner **out, struct host_lanes *lanes,
                              struct step_runner *ranks, const struct host_self *self,
                              fathom_diag *d);

/* host_runner_on_change - whom to tell when a host has come or is lost; any thread calls it */
void host_runner_on_change(struct step_runner *r, void (*changed)(void *arg), void *arg);

/* host_follow - join host 0 and do what it says, again and again, without an end
 *
 * Errors  EMISMATCH: host 0 will not have this host; ECANCEL: told to end; those of a rank. */
fathom_err host_follow(struct host_lanes *lanes, struct step_runner *ranks,
                       const struct host_self *self, fathom_diag *d);

#endif
