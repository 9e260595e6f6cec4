/* weight_unpack_int.h - codes and scales of packed formats, as struct weight_source has them */
#ifndef FATHOM_MODEL_WEIGHT_UNPACK_INT_H
#define FATHOM_MODEL_WEIGHT_UNPACK_INT_H

#include <stdint.h>

#include "base/weight_form.h"

void unpack_awq(const struct weight_source *s, uint32_t row, uint32_t col, uint32_t n,
                uint8_t *out);
void unpack_gptq(const struct weight_source *s, uint32_t row, uint32_t col, uint32_t n,
                 uint8_t *out);
void unpack_words(const struct weight_source *s, uint32_t row, uint32_t col, uint32_t n,
                  uint8_t *out);
void unpack_pairs(const struct weight_source *s, uint32_t row, uint32_t col, uint32_t n,
                  uint8_t *out);
void unpack_signed_pairs(const struct weight_source *s, uint32_t row, uint32_t col, uint32_t n,
                         uint8_t *out);
float scale_of_awq(const struct weight_source *s, uint32_t row, uint32_t block, int *zero);
float scale_of_gptq(const struct weight_source *s, uint32_t row, uint32_t block, int *zero);
float scale_of_packed(const struct weight_source *s, uint32_t row, uint32_t block, int *zero);
float scale_of_fp4(const struct weight_source *s, uint32_t row, uint32_t block, int *zero);

#endif
