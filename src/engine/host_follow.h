/* host_follow.h - another host than host 0 */
#ifndef FATHOM_ENGINE_HOST_FOLLOW_H
#define FATHOM_ENGINE_HOST_FOLLOW_H

#include "comm/host_hello.h"
#include "engine/step_runner.h"

struct host_lanes;

/* host_follow - join host 0 and do what it says, again and again, without an end
 *
 * Errors  EMISMATCH: host 0 will not have this host; ECANCEL: told to end; those of a rank. */
fathom_err host_follow(struct host_lanes *lanes, struct step_runner *ranks,
                       const struct host_self *self, fathom_diag *d);

#endif
