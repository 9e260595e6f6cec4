/* cpu_input.h - inputs of products, rounded as their weights take them: cpu_round.c */
#ifndef FATHOM_BACKEND_CPU_INPUT_H
#define FATHOM_BACKEND_CPU_INPUT_H

#include <stddef.h>
#include <stdint.h>

#include "backend/cpu/cpu_kernel.h"

struct cpu_backend;

/* With ACT_FP8 and ACT_INT8 operands are f32 values and each product rounds its own: AS_WEIGHT to
 * the codes that the weight takes (packed.input), else to bf16. */
enum input_rounding { INPUT_AS_WEIGHT, INPUT_BF16, INPUT_EXACT };

/* What rows are rounded to. BF16_VALUES, INT8_VALUES: f32 that are bf16, or what int8 codes mean,
 * for weights that are kept as f32, or wide. */
enum input_form { FORM_GIVEN, FORM_BF16, FORM_BF16_VALUES, FORM_FP8, FORM_INT8, FORM_INT8_VALUES };

/* Rows of x as a product reads them. */
struct gemm_input {
    const void *x; /* of `type` [n_row][stride] */
    size_t stride;
    const float *scale; /* of int8 codes (struct gemm_call), f32 [n_row][n_block] */
    const int32_t *sum; /* and i32 [n_row][n_block] */
    enum operand type;
    enum input_form later; /* not GIVEN: each item rounds its rows, which are operands */
};

/* Rows that cpu_round_run rounds. */
struct round_job {
    const struct packed *w;
    enum input_form form;
    const void *x; /* f32 [n_row][x_stride] */
    size_t x_stride;
    uint32_t n_row;
    struct gemm_input out;
};

/* One product of cpu_gemm: y[t] = w x[t], or the same rounded to an operand. */
struct gemm_job {
    const struct packed *w;
    enum input_rounding rounding;
    const void *x; /* operand [n_token][x_stride] */
    size_t x_stride;
    uint32_t n_token;
    float *y; /* f32 [n_token][y_stride], or NULL: */
    size_t y_stride;
    void *act; /* operand [n_token][act_stride] */
    size_t act_stride;
    size_t first_item; /* cpu_gemm's own, as `input` */
    struct gemm_input input;
};

/* cpu_round_begin, cpu_round_plan, cpu_round_run - the inputs of a loop of products: forget those
 * of the last, note each, round those that become codes. *in holds rows as operands, and as w takes
 * them after the run.
 * cpu_round_item - x of a product, n_token rows from row0 on, rounded here if that is left to do;
 * scratch has cpu_input_bytes
 * cpu_input_bytes, cpu_codes_bytes - 0 unless act is ACT_FP8 or ACT_INT8 */
void cpu_round_begin(struct cpu_backend *cpu);
void cpu_round_plan(struct cpu_backend *cpu, enum input_rounding rounding, const struct packed *w,
                    uint32_t n_row, struct gemm_input *in);
void cpu_round_run(struct cpu_backend *cpu);
void cpu_round_item(const struct cpu_backend *cpu, const struct gemm_input *in, uint32_t row0,
                    struct gemm_call *call, uint8_t *scratch);
size_t cpu_input_bytes(const struct cpu_backend *cpu);
size_t cpu_codes_bytes(const struct cpu_backend *cpu);
uint32_t cpu_round_jobs(const struct cpu_backend *cpu);

#endif
