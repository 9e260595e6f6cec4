/* host_follow.h - what a host other than host 0 runs */
#ifndef FATHOM_ENGINE_HOST_FOLLOW_H
#define FATHOM_ENGINE_HOST_FOLLOW_H

#include "comm/host_hello.h"
#include "engine/step_runner.h"

struct host_lanes;

/* host_follow - join host 0 and do what it says; join again whenever host 0 or another host is lost
 *
 * Errors  EMISMATCH: host 0 refuses this host. ECANCEL: it was told to end. Those of a rank. */
fathom_err host_follow(struct host_lanes *lanes, struct step_runner *ranks,
                       const struct host_self *self, fathom_diag *d);

#endif
