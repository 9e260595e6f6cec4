/* kv_events.h - what --kv-events-config says */
#ifndef FATHOM_CLI_KV_EVENTS_H
#define FATHOM_CLI_KV_EVENTS_H

#include <stdbool.h>

#include "fathom/fathom.h"

enum { KV_EVENTS_TEXT = 240 };

struct kv_events_settings {
    const char *config; /* the value; NULL: not given. What follows is what it says: */
    bool is_set;
    bool is_null;             /* publisher null */
    fathom_kv_events options; /* its strings are: */
    char endpoint[KV_EVENTS_TEXT];
    char replay_endpoint[KV_EVENTS_TEXT]; /* "": none */
    char topic[KV_EVENTS_TEXT];
};

/* kv_events_parse - what config says, {"enable_kv_cache_events": true}, into the rest
 *
 * Errors  EINVAL, EFORMAT: not JSON, a key that is not known or has a value that it cannot have;
 *         ENOMEM. */
fathom_err kv_events_parse(struct kv_events_settings *s, fathom_diag *d);

#endif
