/* golden.h - a model on a named backend, fed with token ids in chunks */
#ifndef FATHOM_TESTS_GOLDEN_H
#define FATHOM_TESTS_GOLDEN_H

#include <stdbool.h>
#include <stdint.h>

#include "backend/backend.h"
#include "base/os.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/safetensors.h"
#include "model/config.h"
#include "model/forward.h"
#include "model/weights.h"

/* One model, one request at a time. */
struct golden_model {
    struct checkpoint *checkpoint;
    struct model_config config;
    struct model_weights weights;
    struct backend *b;
    struct model *model;
    struct kv_cache kv;
    uint32_t n_page;
    int32_t *arrays; /* device: what struct batch points into */
    float *logits;   /* [max_token][n_vocab] */
    uint32_t max_token;
    uint32_t n_past; /* positions of the request that are in the cache */
};

/* golden_open - the pilot with its MTP layer; golden_open_dir - the model in a directory, without.
 * Both fail the running test, naming the message, on an error. */
void golden_open(struct golden_model *g, const char *backend, enum act_type act,
                 enum kv_type kv_type, uint32_t max_token);
void golden_open_dir(struct golden_model *g, const char *dir, bool with_mtp, const char *backend,
                     enum act_type act, enum kv_type kv_type, uint32_t max_token);

/* golden_skip - whether the backend is a GPU's and there is none: says so */
bool golden_skip(const char *backend);
enum { GOLDEN_SKIPPED = 77 }; /* status of a program that has skipped everything */
void golden_close(struct golden_model *g);

/* golden_restart - forget the request; its rows become NaN */
void golden_restart(struct golden_model *g);

/* golden_step - n tokens after those before, 1 .. max_token
 *
 *   next_ids    the token after each, for the MTP layer; NULL: the MTP layer does not run
 *   logits      f32 [n][n_vocab], written; NULL: not wanted
 *   mtp_logits  the same */
void golden_step(struct golden_model *g, const int32_t *ids, const int32_t *next_ids, uint32_t n,
                 float *logits, float *mtp_logits);

/* ---- a reference's outputs: reference.safetensors of tests/data/pilot and the like ---- */

struct golden_text {
    uint32_t n_token;
    uint32_t n_kept; /* logits are kept of the last n_kept positions */
    int32_t *ids;
    float *logits;          /* [n_kept][n_vocab] */
    float *mtp_logits;      /* [n_kept][n_vocab]; NULL: the reference has none */
    float *logprob_of_next; /* [n_token - 1]; NULL likewise */
};

struct golden_reference {
    struct file_map map;
    struct safetensors file;
};

void golden_reference_open(struct golden_reference *r, const char *path);
void golden_reference_close(struct golden_reference *r);

/* golden_text_load - text i from 0 on, false beyond the last; released with golden_text_free. The
 * pilot's reference has GOLDEN_N_TEXT. */
#define GOLDEN_PILOT_REFERENCE FATHOM_DATA_DIR "/pilot/reference.safetensors"
enum { GOLDEN_N_TEXT = 6 };
bool golden_text_load(const struct golden_reference *r, int i, struct golden_text *out);
void golden_text_free(struct golden_text *t);

#endif
