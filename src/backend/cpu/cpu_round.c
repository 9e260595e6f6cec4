/* cpu_round.c - inputs of products, rounded as their weights take them (ACT_FP8 and ACT_INT8)
 *
 * With these types operators keep rows as f32, and each product rounds its own. Codes are made
 * once a row, by the loop that cpu_round_run is, into an arena of their own: e4m3 codes become the
 * bf16 or f32 values that they mean, int8 codes stay bytes. Rounding to bf16 is so cheap that each
 * item of a product does it for itself, as it does where the arena is full.
 */
#include "backend/cpu/cpu_int.h"

#include "base/assert.h"

/* Widest row that a weight takes as codes. */
static uint32_t widest_row(const struct backend_config *c)
{
    const uint32_t widths[] = {2 * c->hidden,  c->q_lora_rank, c->n_head * c->v_dim,
                               c->dense_inner, c->moe_inner,   c->shared_inner,
                               KV_LATENT,      c->nope_dim};
    uint32_t widest = 0;
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++)
        widest = max_u32(widest, row_stride(widths[i]));
    return widest;
}

static bool makes_codes(const struct cpu_backend *cpu)
{
    return cpu->c.act == ACT_FP8 || cpu->c.act == ACT_INT8;
}

size_t cpu_input_bytes(const struct cpu_backend *cpu)
{
    return makes_codes(cpu) ? (size_t)TOKEN_BLOCK * widest_row(&cpu->c) * sizeof(float) : 0;
}

size_t cpu_codes_bytes(const struct cpu_backend *cpu)
{
    const struct backend_config *c = &cpu->c;
    const size_t size = operand_bytes(cpu->k->bf16_operand);
    if (!makes_codes(cpu)) return 0;
    size_t rows = (size_t)c->max_token * widest_row(c) * size;
    size_t gathered = cpu_moe_gathered_rows(cpu) * row_stride(max_u32(c->hidden, c->moe_inner));
    return max_size(rows, gathered * size) + 64 * CPU_ALIGN;
}

uint32_t cpu_round_jobs(const struct cpu_backend *cpu)
{
    return max_u32(cpu->c.n_head + 4, cpu->c.n_expert + 1);
}

/* ---- forms ---- */

static enum input_form form_of(const struct cpu_backend *cpu, enum input_rounding rounding,
                               const struct packed *w)
{
    if (!makes_codes(cpu) || rounding == INPUT_EXACT) return FORM_GIVEN;
    if (rounding == INPUT_BF16 || w->input == INPUT_CODE_NONE)
        return w->kind == PACK_F32 ? FORM_BF16_VALUES : FORM_BF16;
    if (w->input == INPUT_CODE_FP8) return FORM_FP8;
    return w->kind == PACK_I8 || w->kind == PACK_U4 ? FORM_INT8 : FORM_INT8_VALUES;
}

static enum operand operand_of(const struct cpu_backend *cpu, enum input_form form)
{
    switch (form) {
    case FORM_GIVEN: return cpu->operand;
    case FORM_INT8: return OPERAND_INT8;
    case FORM_BF16_VALUES:
    case FORM_INT8_VALUES: return OPERAND_F32;
    default: return cpu->k->bf16_operand;
    }
}

/* Bytes of a row of codes, without its scales and sums. */
static size_t row_bytes(const struct cpu_backend *cpu, enum input_form form, uint32_t n_col)
{
    return (size_t)row_stride(n_col) * operand_bytes(operand_of(cpu, form));
}

/* ---- one row ---- */

static void round_to_fp8(const struct cpu_kernels *k, const float *in, uint32_t n, uint8_t *out)
{
    const enum operand type = k->bf16_operand;
    DCHECK(n % KV_FP8_GROUP == 0);
    for (uint32_t i = 0; i < n; i += KV_FP8_GROUP) {
        uint8_t code[KV_FP8_GROUP];
        float value[KV_FP8_GROUP];
        float scale = k->quantize_group(in + i, code);
        k->load_codes(code, KV_FP8_GROUP, OPERAND_F32, value);
        k->scale(value, scale, KV_FP8_GROUP); /* exact, in bf16 too: a power of two */
        k->to_operand(type, false, value, KV_FP8_GROUP, operand_row(type, out, i));
    }
}

/* Codes, and beside them what each block of the weight's columns needs. */
static void round_to_int8(const struct cpu_kernels *k, const struct packed *w, const float *in,
                          int8_t *code, float *scale, int32_t *sum)
{
    const uint32_t group = w->input == INPUT_CODE_INT8_ROW ? w->n_col : KV_FP8_GROUP;
    const uint32_t block = 2 * w->block_pairs;
    DCHECK(w->n_col % KV_FP8_GROUP == 0 && KV_FP8_GROUP % block == 0);
    for (uint32_t i = 0; i < w->n_col; i += group) {
        float s = k->int8_scale(in + i, group);
        k->int8_codes(in + i, group, s, w->kind == PACK_U4, code + i);
        for (uint32_t b = i / block; b < (i + group) / block; b++) {
            int32_t total = 0;
            for (uint32_t c = b * block; c < (b + 1) * block; c++) total += code[c];
            scale[b] = s;
            sum[b] = total;
        }
    }
}

/* The values that int8 codes mean, for weights that are kept as others. */
static void round_to_int8_values(const struct cpu_kernels *k, const struct packed *w,
                                 const float *in, float *out)
{
    const uint32_t group = w->input == INPUT_CODE_INT8_ROW ? w->n_col : KV_FP8_GROUP;
    int8_t code[KV_FP8_GROUP];
    for (uint32_t i = 0; i < w->n_col; i += group) {
        float s = k->int8_scale(in + i, group);
        for (uint32_t c = i; c < i + group; c += KV_FP8_GROUP) {
            k->int8_codes(in + c, KV_FP8_GROUP, s, false, code);
            for (uint32_t j = 0; j < KV_FP8_GROUP; j++) out[c + j] = (float)code[j] * s;
        }
    }
}

static void round_row(const struct cpu_backend *cpu, enum input_form form, const struct packed *w,
                      const float *in, void *out, float *scale, int32_t *sum)
{
    switch (form) {
    case FORM_BF16: cpu->k->to_operand(cpu->k->bf16_operand, true, in, pad32(w->n_col), out); break;
    case FORM_BF16_VALUES: cpu->k->to_operand(OPERAND_F32, true, in, pad32(w->n_col), out); break;
    case FORM_FP8: round_to_fp8(cpu->k, in, w->n_col, out); break;
    case FORM_INT8: round_to_int8(cpu->k, w, in, out, scale, sum); break;
    default: round_to_int8_values(cpu->k, w, in, out);
    }
}

/* ---- the rows of jobs ---- */

static struct gemm_input lay_out_rows(const struct cpu_backend *cpu, enum input_form form,
                                      const struct packed *w, uint32_t n_row, struct carver *v)
{
    struct gemm_input in = {.type = operand_of(cpu, form), .stride = row_stride(w->n_col)};
    in.x = carve(v, n_row, row_bytes(cpu, form, w->n_col));
    if (form != FORM_INT8) return in;
    in.scale = carve(v, (size_t)n_row * w->n_block, sizeof *in.scale);
    in.sum = carve(v, (size_t)n_row * w->n_block, sizeof *in.sum);
    return in;
}

void cpu_round_begin(struct cpu_backend *cpu)
{
    cpu->n_round = 0;
    cpu->codes_used = 0;
}

void cpu_round_plan(struct cpu_backend *cpu, enum input_rounding rounding, const struct packed *w,
                    uint32_t n_row, struct gemm_input *in)
{
    const enum input_form form = form_of(cpu, rounding, w);
    const void *x = in->x;
    in->later = form;
    if (form == FORM_GIVEN || form == FORM_BF16 || form == FORM_BF16_VALUES) return;
    for (uint32_t i = 0; i < cpu->n_round; i++) {
        const struct round_job *j = &cpu->rounds[i];
        if (j->x == x && j->form == form && j->n_row == n_row && j->w->n_col == w->n_col &&
            j->w->block_pairs == w->block_pairs && j->w->input == w->input &&
            (j->w->kind == PACK_U4) == (w->kind == PACK_U4)) {
            *in = j->out;
            return;
        }
    }
    struct carver v = {.base = cpu->codes, .used = cpu->codes_used};
    struct gemm_input out = lay_out_rows(cpu, form, w, n_row, &v);
    if (v.used > cpu->codes_bytes || cpu->n_round == cpu_round_jobs(cpu)) return;
    cpu->codes_used = v.used;
    cpu->rounds[cpu->n_round++] = (struct round_job){
        .w = w, .form = form, .x = x, .x_stride = in->stride, .n_row = n_row, .out = out};
    *in = out;
}

static void round_job_row(void *arg, size_t i, size_t n, unsigned worker)
{
    const struct cpu_backend *cpu = arg;
    const struct round_job *j = cpu->rounds;
    (void)n;
    (void)worker;
    while (i >= j->n_row) i -= (j++)->n_row;
    DCHECK(j < cpu->rounds + cpu->n_round);
    const size_t b = i * j->w->n_block;
    round_row(cpu, j->form, j->w, (const float *)j->x + i * j->x_stride,
              operand_row(j->out.type, j->out.x, i * j->out.stride),
              j->out.scale ? (float *)j->out.scale + b : NULL,
              j->out.sum ? (int32_t *)j->out.sum + b : NULL);
}

void cpu_round_run(struct cpu_backend *cpu)
{
    size_t n_row = 0, n_value = 0;
    for (uint32_t i = 0; i < cpu->n_round; i++) {
        n_row += cpu->rounds[i].n_row;
        n_value += (size_t)cpu->rounds[i].n_row * cpu->rounds[i].w->n_col;
    }
    if (n_row > 0) cpu_rows(cpu, n_row, n_value / n_row, round_job_row, cpu);
}

void cpu_round_item(const struct cpu_backend *cpu, const struct gemm_input *in, uint32_t row0,
                    struct gemm_call *call, uint8_t *scratch)
{
    const struct packed *w = call->w;
    struct gemm_input to = *in;
    if (in->later != FORM_GIVEN) {
        struct carver v = {.base = scratch};
        to = lay_out_rows(cpu, in->later, w, call->n_token, &v);
        ASSERT(v.used <= cpu_input_bytes(cpu));
        for (uint32_t t = 0; t < call->n_token; t++) {
            const size_t b = (size_t)t * w->n_block;
            round_row(cpu, in->later, w, (const float *)in->x + (row0 + t) * in->stride,
                      operand_row(to.type, to.x, t * to.stride),
                      to.scale ? (float *)to.scale + b : NULL,
                      to.sum ? (int32_t *)to.sum + b : NULL);
        }
        row0 = 0;
    }
    call->type = to.type;
    call->x = operand_row(to.type, to.x, row0 * to.stride);
    call->x_stride = to.stride;
    call->x_scale = to.scale ? to.scale + (size_t)row0 * w->n_block : NULL;
    call->x_sum = to.sum ? to.sum + (size_t)row0 * w->n_block : NULL;
}
