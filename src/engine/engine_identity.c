/* engine_identity.c - three digests of what the bits of a page depend on */
#include "engine/engine_identity.h"

#include <string.h>

#include "base/assert.h"
#include "checkpoint/checkpoint.h"
#include "fathom/fathom.h"

void identify(struct identity *out, const struct identity_source *s)
{
    const char *config;
    size_t n_config;
    ASSERT(s->layout->page_bytes > 0 && s->numerics);
    *out = (struct identity){0};
    sha256_absorb_text(&out->model, s->dummy ? "dummy" : "checkpoint");
    sha256_absorb(&out->model, s->weights.bytes, sizeof s->weights.bytes);
    if (checkpoint_file(s->checkpoint, "config.json", &config, &n_config, NULL) == FATHOM_OK) {
        sha256_absorb(&out->model, config, n_config);
    }
    sha256_absorb_text(&out->numerics, FATHOM_VERSION);
    sha256_absorb_text(&out->numerics, s->numerics);
    if (s->prompt_form) sha256_absorb_text(&out->numerics, "prompt form");
    const struct parallel *p = &s->parallel;
    const uint64_t n_part = parallel_axis(p, CUT_EXPERTS).size; /* of a sum over whole experts */
    if (n_part > 1) sha256_absorb(&out->numerics, &n_part, sizeof n_part);
    const uint64_t layout[] = {KV_LAYOUT_VERSION,
                               (uint64_t)s->layout->type,
                               s->layout->n_layer,
                               s->layout->has_index,
                               s->layout->page_bytes,
                               p->tp.rank,
                               p->tp.size,
                               p->is_slice};
    sha256_absorb(&out->layout, layout, sizeof layout);
}
