/* engine_identity.h - whose pages an engine computes: its weights, its numerics, its layout */
#ifndef FATHOM_ENGINE_ENGINE_IDENTITY_H
#define FATHOM_ENGINE_ENGINE_IDENTITY_H

#include <stdbool.h>

#include "backend/parallel.h"
#include "base/sha256.h"
#include "kv/identity.h"
#include "kv/layout.h"

struct checkpoint;

struct identity_source {
    struct checkpoint *checkpoint;
    struct sha256 weights; /* their digest: checkpoint/weights_digest.h */
    bool dummy;            /* they are made up instead */
    const char *numerics;  /* backend, precision and options that change bits; the program's version
                              is added */
    bool prompt_form;      /* rows of prompts have other bits than rows of answers */
    const struct kv_layout *layout;
    struct parallel parallel; /* which part of the model */
};

/* identify - all that the bits of a page depend on but its tokens, in three digests
 *
 * Equal parts have equal digests on every machine: nothing of paths, times or devices is in them.
 * A configuration that cannot be read counts as none. */
void identify(struct identity *out, const struct identity_source *s);

#endif
