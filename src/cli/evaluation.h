/* evaluation.h - a model's figures over texts, by itself or beside another model's */
#ifndef FATHOM_CLI_EVALUATION_H
#define FATHOM_CLI_EVALUATION_H

#include <stdint.h>

#include "base/buf.h"
#include "cli/cli.h"
#include "cli/evaluation_texts.h"
#include "engine/likelihood.h"

/* What was measured. */
struct evaluation {
    char model[LIMIT_PATH_BYTES];
    char against[LIMIT_PATH_BYTES]; /* "" without */
    char device[160];               /* "cpu, AMD EPYC, avx512, 2 threads" */
    size_t n_text;                  /* pieces that were scored */
    uint64_t n_token;               /* of them */
    uint32_t length;                /* of a piece, at most */
    struct likelihood_summary figures;
};

/* What to measure. */
struct evaluation_order {
    const struct settings *settings; /* backend, types, threads; texts, length, samples, scratch */
    const struct environment *environment;
    const struct model_source *model;
    const struct model_source *against; /* NULL: none. Read as it is stored. */
};

/* evaluation_run - both models over the same token ids, one after the other
 *
 * The other model goes first; its logits lie in a file of --scratch-dir until the model's are
 * there. So no more than one model is in memory, and 4 bytes for each predicted token and entry of
 * the vocabulary on the disk. Ids are made by the model's tokenizer.
 * Errors  EINVAL: vocabularies of unlike size, no text of two tokens; ENOTFOUND, EFORMAT: the
 *         texts; EIO: the disk is full; those of loading either model. */
fathom_err evaluation_run(struct evaluation *out, const struct evaluation_order *order,
                          fathom_diag *d);

/* evaluation_print - a table on standard output; evaluation_json - one JSON object */
void evaluation_print(const struct evaluation *e);
fathom_err evaluation_json(struct buf *out, const struct evaluation *e);

#endif
