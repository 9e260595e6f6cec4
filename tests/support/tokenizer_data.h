/* tokenizer_data.h - tokenizers and texts for the tokenizer's tests */
#ifndef FATHOM_SUPPORT_TOKENIZER_DATA_H
#define FATHOM_SUPPORT_TOKENIZER_DATA_H

#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/json.h"
#include "tokenizer/pretok.h"
#include "tokenizer/tokenizer.h"

#define TOKENIZER_V3_JSON TOKENIZER_DATA_DIR "/tokenizer_v3/tokenizer.json"
#define TOKENIZER_PILOT_JSON FATHOM_SOURCE_DIR "/models/pilot/tokenizer.json"
#define TOKENIZER_VECTORS(name) TOKENIZER_DATA_DIR "/vectors/" name

/* The patterns of the model family, as tokenizer.json spells them. */
extern const struct pretok_pattern family_patterns[3];

/* One vector: the text (raw input where it is ill-formed), its reading, its ids. */
struct vector {
    const char *category;
    struct buf input; /* what is encoded */
    const char *text; /* what decoding gives back */
    size_t n_text;
    struct token_list ids;
    json_t *tree; /* owns category and text */
};

/* data_read_vectors - every line of tokenizer_v3_pairs.jsonl; asserts on failure */
struct vector *data_read_vectors(size_t *n);
void data_free_vectors(struct vector *vectors, size_t n);

/* data_mix - the vectors' texts, one after the other and again, up to n_byte */
void data_mix(struct buf *out, size_t n_byte);

/* data_small_json - a complete tokenizer.json: the 256 bytes as ids 0 to 255 in byte order, then
 *
 *   vocab   more members of model.vocab, with a comma before each (", \"ab\": 256"); may be ""
 *   merges  elements of model.merges
 *   added   elements of added_tokens */
void data_small_json(struct buf *out, const char *vocab, const char *merges, const char *added);

/* data_random_text - n characters of UTF-8, a mix of scripts, white space, signs and the odd */
void data_random_text(struct buf *out, size_t n, uint64_t *rng);

#endif
