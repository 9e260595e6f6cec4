/* mixed.h - decodes beside the chunks of a prompt: a step of both against its parts
 *
 * A round takes a prompt alone, then decodes alone, then the same decodes while another such prompt
 * is computed. Prompts are random ids, so a prefix is never found again.
 */
#ifndef FATHOM_BENCH_MIXED_H
#define FATHOM_BENCH_MIXED_H

#include <stdint.h>

#include "base/buf.h"
#include "bench/summary.h"
#include "fathom/fathom.h"

struct mixed_options {
    uint32_t n_decode;  /* requests that decode, >= 1 */
    uint32_t n_input;   /* tokens of the prompt of each, >= 1 */
    uint32_t n_prompt;  /* tokens of the prompt beside them, >= 1; several chunks */
    uint32_t n_warm_up; /* rounds that are not counted */
    uint32_t n_repeat;  /* rounds that are, >= 1 */
    uint64_t seed;
};

struct mixed_result {
    struct summary step_ms;   /* steps of the decodes while the prompt is computed: their ITL */
    struct summary decode_ms; /* steps of the decodes alone */
    struct spread chunk_ms;   /* a step of the prompt alone, mean of a round */
    struct spread beside_ms;  /* submission of the prompt to its first token, beside the decodes */
    struct spread alone_ms;   /* the same with nothing beside it */
};

/* mixed_run - errors of fathom_submit, EINVAL where the decodes ended before the prompt did,
 * EDEVICE when the engine fails, ENOMEM; needs room for n_decode + 1 requests */
fathom_err mixed_run(fathom_engine *e, const struct mixed_options *o, struct mixed_result *out,
                     fathom_diag *d);

/* mixed_parts_ms - what a step of both would take if its parts ran one after the other: the median
 * step of decodes, and the median chunk */
double mixed_parts_ms(const struct mixed_result *r);

/* mixed_write_json - one object, without the end of the line */
fathom_err mixed_write_json(struct buf *b, const struct mixed_options *o,
                            const struct mixed_result *r);

#endif
