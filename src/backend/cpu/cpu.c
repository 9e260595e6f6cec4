/* cpu.c - the CPU backend: device, buffers, creation and the table of operators
 *
 * Device memory is host memory and an operator has run when its call returns, so copies are
 * memcpy and the fences have nothing to wait for.
 */
#include "backend/cpu/cpu_int.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "backend/buffer_shape.h"
#include "backend/host_device.h"
#include "base/assert.h"
#include "base/fail.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/os.h"

/* ---- the device ---- */

static void get_caps(struct backend *b, struct backend_caps *out)
{
    struct cpu_backend *cpu = cpu_of(b);
    memset(out, 0, sizeof *out);
    out->name = "cpu";
    snprintf(out->device, sizeof out->device, "%s, %u threads", cpu->k->isa, cpu->n_thread);
    snprintf(out->numerics, sizeof out->numerics, "%s", cpu->k->numerics);
    os_memory_bytes(&out->memory_bytes, &out->memory_free_bytes);
    for (int t = KV_TYPE_F32; t <= KV_TYPE_FP8; t++) out->kv_types[t] = true;
}

static uint64_t progress(const struct backend *b)
{
    return thread_pool_progress(((const struct cpu_backend *)b)->pool);
}

static struct host_peers *peers_of(struct backend *b)
{
    return &cpu_of(b)->peers;
}

static fathom_err join(struct backend *const *b, uint32_t n, fathom_diag *d)
{
    return host_join(b, n, &cpu_of(b[0])->c, peers_of, d);
}

static void renew(struct backend *b)
{
    host_peers_renew(peers_of(b));
}

static void abandon(struct backend *b)
{
    host_peers_break(peers_of(b));
}

static void get_waits(const struct backend *b, struct rank_waits *out)
{
    host_peers_waits(&((const struct cpu_backend *)b)->peers, out);
}

static fathom_err share_rows(struct backend *b, const struct share_rows_args *a)
{
    op_check_share_rows(&cpu_of(b)->c, a);
    return host_share_rows(&peers_of(b)->experts, cpu_of(b)->c.parallel.tp.size, a);
}

static const char *fault(struct backend *b)
{
    return host_peers_fault(peers_of(b));
}

static fathom_err fence_record(struct backend *b, uint32_t fence)
{
    return host_fence_record(&cpu_of(b)->fences, fence);
}

static fathom_err fence_elapsed(struct backend *b, uint32_t from, uint32_t to, double *us)
{
    return host_fence_elapsed(&cpu_of(b)->fences, from, to, us);
}

/* ---- buffers ---- */

static void buffer_destroy(struct backend *b, struct buffer *buf)
{
    (void)b;
    if (!buf) return;
    mem_free(buf->value);
    mem_free(buf->operand);
    mem_free(buf->index);
    mem_free(buf);
}

static void *alloc_rows(uint32_t n_row, uint32_t width, size_t size)
{
    ASSERT(n_row > 0 && width > 0);
    size_t bytes = (size_t)n_row * width * size;
    void *p = mem_alloc_aligned(CPU_ALIGN, bytes);
    if (p) memset(p, 0, bytes);
    return p;
}

static fathom_err buffer_create(struct backend *b, enum buffer_kind kind, struct buffer **out,
                                fathom_diag *d)
{
    ASSERT(kind <= BUFFER_LOGITS && out);
    const struct cpu_backend *cpu = cpu_of(b);
    const struct backend_config *c = &cpu->c;
    bool has_index = kind == BUFFER_SELECT || kind == BUFFER_ROUTE;
    bool has_operand = kind == BUFFER_NORMED || kind == BUFFER_LATENT;
    bool has_value = kind != BUFFER_SELECT && kind != BUFFER_LATENT;
    struct buffer *buf = mem_calloc(1, sizeof *buf);
    *out = NULL;
    if (!buf) FAIL(d, FATHOM_ENOMEM, "no memory for a buffer");
    buf->kind = kind;
    buf->n_row = buffer_shape_of(c, kind).n_row;
    buf->width = host_row_width(c, kind);
    buf->stride = row_stride(buf->width);
    if (has_value) buf->value = alloc_rows(buf->n_row, buf->stride, sizeof *buf->value);
    if (has_operand)
        buf->operand = alloc_rows(buf->n_row, buf->stride, operand_bytes(cpu->operand));
    if (has_index) buf->index = alloc_rows(buf->n_row, buf->width, sizeof *buf->index);
    if ((has_value && !buf->value) || (has_operand && !buf->operand) ||
        (has_index && !buf->index)) {
        fathom_err err = diag_fail(d, FATHOM_ENOMEM, "no memory for a buffer of %u rows of %u",
                                   buf->n_row, buf->width);
        buffer_destroy(b, buf);
        return err;
    }
    *out = buf;
    return FATHOM_OK;
}

static float read_operand(const struct cpu_backend *cpu, const struct buffer *buf, size_t i)
{
    DCHECK(buf->operand);
    if (cpu->operand == OPERAND_BF16) return f32_from_bf16(((const uint16_t *)buf->operand)[i]);
    return ((const float *)buf->operand)[i];
}

static void write_operand(const struct cpu_backend *cpu, struct buffer *buf, size_t i, float f)
{
    DCHECK(buf->operand);
    float rounded = cpu->round ? f32_from_bf16(bf16_from_f32(f)) : f;
    if (cpu->operand == OPERAND_BF16)
        ((uint16_t *)buf->operand)[i] = bf16_from_f32(f);
    else
        ((float *)buf->operand)[i] = rounded;
}

static fathom_err buffer_read(struct backend *b, const struct buffer *buf, uint32_t row0,
                              uint32_t n_row, uint32_t width, float *out)
{
    ASSERT(buf && (out || n_row == 0));
    const struct cpu_backend *cpu = cpu_of(b);
    TRY(host_check_access(&cpu->c, buf->kind, row0, n_row, width));
    for (uint32_t r = row0; r < row0 + n_row; r++) {
        const int32_t *index = buf->index ? buf->index + (size_t)r * buf->width : NULL;
        size_t at = (size_t)r * buf->stride;
        ASSERT(index || (buf->kind != BUFFER_SELECT && buf->kind != BUFFER_ROUTE));
        for (uint32_t i = 0; i < width; i++, out++) {
            if (buf->kind == BUFFER_SELECT)
                *out = (int32_t)i <= index[0] ? (float)index[i] : -1;
            else if (buf->kind == BUFFER_ROUTE)
                *out = i < buf->width ? (float)index[i] : buf->value[at + i - buf->width];
            else if (buf->kind == BUFFER_LATENT)
                *out = read_operand(cpu, buf, at + i);
            else
                *out = buf->value[at + i];
        }
    }
    return FATHOM_OK;
}

static fathom_err buffer_write(struct backend *b, struct buffer *buf, uint32_t row0, uint32_t n_row,
                               uint32_t width, const float *in)
{
    ASSERT(buf && (in || n_row == 0));
    const struct cpu_backend *cpu = cpu_of(b);
    TRY(host_check_access(&cpu->c, buf->kind, row0, n_row, width));
    for (uint32_t r = row0; r < row0 + n_row; r++) {
        int32_t *index = buf->index ? buf->index + (size_t)r * buf->width : NULL;
        size_t at = (size_t)r * buf->stride;
        for (uint32_t i = 0; i < width; i++, in++) {
            if (index && i < buf->width)
                index[i] = (int32_t)*in;
            else if (index)
                buf->value[at + i - buf->width] = *in;
            else if (buf->value)
                buf->value[at + i] = *in;
            if (buf->operand) write_operand(cpu, buf, at + i, *in);
        }
    }
    return FATHOM_OK;
}

/* ---- creation ---- */

static void destroy(struct backend *b)
{
    if (!b) return;
    struct cpu_backend *cpu = cpu_of(b);
    host_peers_leave(&cpu->peers);
    thread_pool_destroy(cpu->pool);
    mem_free(cpu->cos_sin);
    mem_free(cpu->zeros);
    mem_free(cpu->head);
    mem_free(cpu->ep_part);
    mem_free(cpu->jobs);
    mem_free(cpu->rounds);
    mem_free(cpu->codes);
    mem_free(cpu->arena);
    mem_free(cpu->workers);
    mem_free(cpu);
}

static fathom_err cpu_bind_thread(struct backend *b)
{
    cpu_nodes_bind(&cpu_of(b)->nodes);
    return FATHOM_OK;
}

static fathom_err cpu_alloc(struct backend *b, size_t bytes, const char *what, void **out,
                            fathom_diag *d)
{
    TRY(host_alloc(b, bytes, what, out, d));
    cpu_nodes_place(&cpu_of(b)->nodes, *out, bytes);
    return FATHOM_OK;
}

static const struct backend_ops cpu_ops = {
    .destroy = destroy,
    .get_caps = get_caps,
    .bind_thread = cpu_bind_thread,
    .join = join,
    .abandon = abandon,
    .renew = renew,
    .get_waits = get_waits,
    .alloc = cpu_alloc,
    .release = host_release,
    .alloc_host = host_alloc_pinned,
    .release_host = host_release,
    .copy_in = host_copy,
    .copy_out = host_copy,
    .sync = host_sync,
    .fence_record = fence_record,
    .fence_wait = host_fence_wait,
    .fence_elapsed = fence_elapsed,
    .fault = fault,
    .progress = progress,
    .buffer_create = buffer_create,
    .buffer_destroy = buffer_destroy,
    .buffer_read = buffer_read,
    .buffer_write = buffer_write,
    .prepare_vector = cpu_prepare_vector,
    .prepare_linear = cpu_prepare_linear,
    .prepare_mla = cpu_prepare_mla,
    .prepare_ffn = cpu_prepare_ffn,
    .prepare_moe = cpu_prepare_moe,
    .weight_destroy = cpu_weight_destroy,
    .weight_bytes = cpu_weight_bytes,
    .embed = cpu_embed,
    .reduce_norm = cpu_reduce_norm,
    .mla_front = cpu_mla_front,
    .share_rows = share_rows,
    .index_topk = cpu_index_topk,
    .mla_attend = cpu_mla_attend,
    .mla_out = cpu_mla_out,
    .ffn = cpu_ffn,
    .router = cpu_router,
    .moe = cpu_moe,
    .moe_ep = cpu_moe_ep,
    .head = cpu_head,
    .mtp_front = cpu_mtp_front,
    .sample = cpu_sample,
};

static fathom_err check_config(const struct backend_config *c, fathom_diag *d)
{
    TRY(host_check_config(c, "cpu", d));
    if (c->nope_dim % PANEL != 0)
        FAIL(d, FATHOM_EUNSUPPORTED, "nope_dim is %u; the cpu backend needs a multiple of %d",
             c->nope_dim, PANEL);
    if (c->v_dim % PANEL != 0)
        FAIL(d, FATHOM_EUNSUPPORTED, "v_dim is %u; the cpu backend needs a multiple of %d",
             c->v_dim, PANEL);
    return FATHOM_OK;
}

/* The angle is the f32 product of position and frequency, as everywhere. */
static void fill_cos_sin(void *arg, size_t page, size_t n, unsigned worker)
{
    const struct cpu_backend *cpu = arg;
    DCHECK(cpu->cos_sin);
    (void)n;
    (void)worker;
    for (uint32_t i = 0; i < KV_PAGE_TOKENS; i++) {
        uint32_t pos = (uint32_t)page * KV_PAGE_TOKENS + i;
        if (pos >= cpu->c.max_context) return;
        float *row = cpu->cos_sin + (size_t)pos * 2 * ROPE_PAIRS;
        for (int k = 0; k < ROPE_PAIRS; k++) {
            double angle = (double)((float)pos * cpu->c.rope_freq[k]);
            row[2 * k] = (float)cos(angle);
            row[2 * k + 1] = (float)sin(angle);
        }
    }
}

static fathom_err make_scratch(struct cpu_backend *cpu, fathom_diag *d)
{
    ASSERT(cpu->pool && cpu->n_thread >= 1);
    const struct backend_config *c = &cpu->c;
    const size_t arena[] = {cpu_dense_arena_bytes(cpu), cpu_front_arena_bytes(cpu),
                            cpu_index_arena_bytes(cpu), cpu_attend_arena_bytes(cpu),
                            cpu_moe_arena_bytes(cpu),   cpu_moe_ep_arena_bytes(cpu)};
    const size_t worker[] = {cpu_gemm_worker_bytes(cpu), cpu_ffn_worker_bytes(cpu),
                             cpu_index_worker_bytes(cpu), cpu_attend_worker_bytes(),
                             cpu_sample_worker_bytes(cpu)};
    for (size_t i = 0; i < sizeof arena / sizeof *arena; i++)
        cpu->arena_bytes = max_size(cpu->arena_bytes, arena[i]);
    for (size_t i = 0; i < sizeof worker / sizeof *worker; i++)
        cpu->worker_bytes = max_size(cpu->worker_bytes, worker[i]);
    cpu->codes_bytes = cpu_codes_bytes(cpu);
    cpu->codes = mem_alloc_aligned(CPU_ALIGN, cpu->codes_bytes);
    cpu->rounds = mem_calloc(cpu_round_jobs(cpu), sizeof *cpu->rounds);
    cpu->arena = mem_alloc_aligned(CPU_ALIGN, cpu->arena_bytes);
    cpu->workers = mem_alloc_aligned(CPU_ALIGN, cpu->worker_bytes * cpu->n_thread);
    cpu->jobs = mem_calloc((size_t)c->n_head + 4, sizeof *cpu->jobs);
    cpu->zeros = alloc_rows(1, KV_ROW, sizeof *cpu->zeros);
    cpu->head = alloc_rows(c->max_logit_row, row_stride(backend_head_rows(c)), sizeof *cpu->head);
    const uint32_t n_part = cpu_moe_ep_results(cpu);
    if (n_part > 0) cpu->ep_part = alloc_rows(n_part, row_stride(c->hidden), sizeof(float));
    cpu->cos_sin = alloc_rows(c->max_context, 2 * ROPE_PAIRS, sizeof *cpu->cos_sin);
    if (!cpu->arena || !cpu->codes || !cpu->rounds || !cpu->workers || !cpu->jobs || !cpu->zeros ||
        !cpu->head || !cpu->cos_sin || (n_part > 0 && !cpu->ep_part))
        FAIL(d, FATHOM_ENOMEM,
             "no memory for the cpu backend's scratch: %zu bytes, and %zu for "
             "each of %u threads. Lower max_token or max_context",
             cpu->arena_bytes, cpu->worker_bytes, cpu->n_thread);
    memset(cpu->arena, 0, cpu->arena_bytes);
    memset(cpu->workers, 0, cpu->worker_bytes * cpu->n_thread);
    size_t n_page = (c->max_context + KV_PAGE_TOKENS - 1) / KV_PAGE_TOKENS;
    thread_pool_run(cpu->pool, n_page, fill_cos_sin, cpu);
    return FATHOM_OK;
}

/* How inputs are kept: f32 with ACT_FP8 and ACT_INT8, rounded by each product for itself
 * (cpu_round.c); bf16 where activations are bf16 and there is a dot product for it. Attention takes
 * bf16 unless all is f32; index codes are exact in bf16 whatever the activations. */
static void choose_operands(struct cpu_backend *cpu)
{
    enum operand bf16 = cpu->k->bf16_operand;
    bool narrow_cache = cpu->c.kv.type != KV_TYPE_F32;
    cpu->round = cpu->c.act == ACT_BF16;
    cpu->operand = cpu->round ? bf16 : OPERAND_F32;
    cpu->attend_operand = cpu->c.act != ACT_F32 && narrow_cache ? bf16 : OPERAND_F32;
    cpu->index_operand = narrow_cache ? bf16 : OPERAND_F32;
    ASSERT(cpu->k->gemm[cpu->operand] && cpu->k->gemm[cpu->index_operand]);
    ASSERT(cpu->k->attend[cpu->attend_operand]);
}

fathom_err backend_cpu_create_isa(struct backend **out, const struct backend_config *c,
                                  enum cpu_isa isa, fathom_diag *d)
{
    ASSERT(out && c);
    fathom_err err = FATHOM_OK;
    const struct cpu_kernels *k = cpu_kernels_of(isa);
    *out = NULL;
    TRY(check_config(c, d));
    if (!k) FAIL(d, FATHOM_EUNSUPPORTED, "this machine lacks the instruction set asked for");
    struct cpu_backend *cpu = mem_calloc(1, sizeof *cpu);
    if (!cpu) FAIL(d, FATHOM_ENOMEM, "no memory for the cpu backend");
    cpu->base.ops = &cpu_ops;
    cpu->c = *c;
    cpu->k = k;
    cpu->n_thread = c->n_thread > 0 ? c->n_thread : os_n_cpu();
    choose_operands(cpu);
    cpu_nodes_init(&cpu->nodes, c, cpu->n_thread);
    TRY_GOTO(cpu_nodes_pool(&cpu->pool, &cpu->nodes, d), fail);
    TRY_GOTO(make_scratch(cpu, d), fail);
    LOG_INFO("cpu", "isa=\"%s\" threads=%u nodes=%u", k->isa, cpu->n_thread,
             cpu->nodes.share.n ? cpu->nodes.share.n : 1);
    *out = &cpu->base;
    return FATHOM_OK;

fail:
    destroy(&cpu->base);
    return err;
}

fathom_err backend_cpu_create(struct backend **out, const struct backend_config *c, fathom_diag *d)
{
    return backend_cpu_create_isa(out, c, CPU_ISA_BEST, d);
}

fathom_err backend_cpu_avx512_create(struct backend **out, const struct backend_config *c,
                                     fathom_diag *d)
{
    return backend_cpu_create_isa(out, c, CPU_ISA_AVX512, d);
}

fathom_err backend_cpu_avx2_create(struct backend **out, const struct backend_config *c,
                                   fathom_diag *d)
{
    return backend_cpu_create_isa(out, c, CPU_ISA_AVX2, d);
}

fathom_err backend_cpu_portable_create(struct backend **out, const struct backend_config *c,
                                       fathom_diag *d)
{
    return backend_cpu_create_isa(out, c, CPU_ISA_PORTABLE, d);
}
