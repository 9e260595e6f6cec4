/* cpu_int.h - the CPU backend's own types
 *
 * An operator has run when its call returns. It is a few parallel loops over items whose results
 * depend on nothing but their inputs: which worker takes an item, and how many there are, changes
 * no bit. Every buffer row is padded with zeros to a multiple of 32 values, so that inner loops
 * have no tails.
 *
 * Scratch is carved from one arena and from one private area per worker, sized at creation.
 */
#ifndef FATHOM_BACKEND_CPU_INT_H
#define FATHOM_BACKEND_CPU_INT_H

#include "backend/backend.h"
#include "backend/cpu/cpu_input.h"
#include "backend/cpu/cpu_isa.h"
#include "backend/cpu/cpu_kernel.h"
#include "backend/cpu/cpu_nodes.h"
#include "backend/host_device.h"
#include "backend/host_ep.h"
#include "backend/host_group.h"
#include "backend/host_share.h"
#include "backend/op_check.h"
#include "base/assert.h"
#include "base/thread.h"

enum {
    CPU_ALIGN = 64,
    TOKEN_BLOCK = 96, /* rows of x that one item of a product takes */
    ROPE_PAIRS = KV_ROPE / 2,
};

/* Rows of f32 but for: LATENT, operands; SELECT and ROUTE, i32 in `index` (count, slots; experts)
 * beside the weights in `value`; NORMED, which has its rows as operands too. */
struct buffer {
    enum buffer_kind kind;
    uint32_t n_row;
    uint32_t width;  /* values of a row */
    uint32_t stride; /* values from a row to the next */
    float *value;
    void *operand;
    int32_t *index; /* [n_row][width] */
};

struct ffn_weight {
    struct packed gate_up; /* panels of gate and up in turn */
    struct packed down;
    uint32_t inner;
};

struct mla_weight {
    struct packed q_a, q_b, kv_a, o;
    struct packed *key_absorb; /* [H] W_UK,h transposed: [512][nope_dim] */
    struct packed *value;      /* [H] W_UV,h: [v_dim][512] */
    float *q_a_norm, *kv_a_norm;
    struct packed index_q_b, index_k, index_head;
    float *index_k_weight, *index_k_bias;
    uint32_t n_head;
};

struct moe_weight {
    struct packed router;
    float *router_bias; /* padded with 0 */
    struct ffn_weight shared;
    struct ffn_weight *experts; /* [n_expert] that this rank has */
    uint32_t n_expert;
};

enum cpu_kind { CPU_VECTOR, CPU_LINEAR, CPU_MLA, CPU_FFN, CPU_MOE };

struct weight {
    enum cpu_kind kind;
    uint64_t n_bytes;
    union {
        float *vector; /* padded with zeros */
        struct packed linear;
        struct mla_weight mla;
        struct ffn_weight ffn;
        struct moe_weight moe;
    };
};

struct cpu_backend {
    struct backend base;
    struct backend_config c;
    struct host_fences fences;
    struct host_peers peers;
    const struct cpu_kernels *k;
    struct thread_pool *pool;
    struct cpu_nodes nodes;
    unsigned n_thread;
    enum operand operand; /* of products with activations */
    bool round;           /* operands hold bf16 values */
    enum operand attend_operand, index_operand;
    float *cos_sin;              /* f32 [max_context][32][2] */
    float *zeros;                /* [576] a row of attention */
    float *head;                 /* f32 [max_logit_row] this rank's columns of logits */
    float *ep_part;              /* f32 [cpu_moe_ep_results] what moe_ep makes; peers read it */
    struct host_ep ep;           /* under way */
    struct gemm_job *jobs;       /* [n_head + 4] */
    struct weight_piece *pieces; /* memory of the n_weight weights that there are */
    uint32_t n_weight;
    struct round_job *rounds; /* [cpu_round_jobs] n_round of the loop under way */
    uint32_t n_round;
    uint8_t *codes; /* [codes_bytes] what they make */
    size_t codes_bytes, codes_used;
    uint8_t *arena;
    uint8_t *workers; /* [n_thread][worker_bytes] */
    size_t arena_bytes, worker_bytes;
};

static inline struct cpu_backend *cpu_of(struct backend *b)
{
    DCHECK(b);
    return (struct cpu_backend *)b;
}

static inline uint32_t pad32(uint32_t n)
{
    DCHECK(n <= UINT32_MAX - 31);
    return (n + 31) / 32 * 32;
}

/* Values from one row of n to the next: padded, and never a multiple of 4096 bytes. With that the
 * rows of a tile would share a few sets of the cache. */
static inline uint32_t row_stride(uint32_t n)
{
    uint32_t padded = pad32(n);
    return padded % 1024 == 0 ? padded + 32 : padded;
}

static inline uint32_t min_u32(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

static inline uint32_t max_u32(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

static inline size_t max_size(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* ---- scratch: the same code measures (base NULL) and lays out ---- */

struct carver {
    uint8_t *base;
    size_t used;
};

static inline void *carve(struct carver *c, size_t n, size_t size)
{
    DCHECK(size > 0 && c->used % CPU_ALIGN == 0);
    void *p = c->base ? c->base + c->used : NULL;
    c->used += (n * size + CPU_ALIGN - 1) / CPU_ALIGN * CPU_ALIGN;
    return p;
}

static inline uint8_t *worker_scratch(const struct cpu_backend *cpu, unsigned worker)
{
    DCHECK(worker < cpu->n_thread);
    return cpu->workers + worker * cpu->worker_bytes;
}

/* What the operators of a file need of the arena, or of a worker's area. */
size_t cpu_dense_arena_bytes(const struct cpu_backend *cpu);
size_t cpu_front_arena_bytes(const struct cpu_backend *cpu);
size_t cpu_index_arena_bytes(const struct cpu_backend *cpu);
size_t cpu_index_worker_bytes(const struct cpu_backend *cpu);
size_t cpu_attend_arena_bytes(const struct cpu_backend *cpu);
size_t cpu_attend_worker_bytes(void);
size_t cpu_moe_arena_bytes(const struct cpu_backend *cpu);
size_t cpu_moe_gathered_rows(const struct cpu_backend *cpu); /* of all experts at a time */
size_t cpu_moe_ep_arena_bytes(const struct cpu_backend *cpu);
size_t cpu_moe_ep_rows(const struct cpu_backend *cpu); /* likewise; 0: not used */
uint32_t cpu_moe_ep_results(const struct cpu_backend *cpu);
size_t cpu_ffn_worker_bytes(const struct cpu_backend *cpu);
size_t cpu_gemm_worker_bytes(const struct cpu_backend *cpu);
size_t cpu_sample_worker_bytes(const struct cpu_backend *cpu);

static inline void *operand_row(enum operand type, const void *rows, size_t i)
{
    DCHECK(type < N_OPERAND);
    return (uint8_t *)(uintptr_t)rows + i * operand_bytes(type);
}

/* cpu_to_operand - n values (a multiple of 32) as inputs */
static inline void cpu_to_operand(const struct cpu_backend *cpu, const float *in, uint32_t n,
                                  void *out)
{
    DCHECK(n % 32 == 0);
    cpu->k->to_operand(cpu->operand, cpu->round, in, n, out);
}

static inline const float *cpu_cos_sin(const struct cpu_backend *cpu, int32_t pos)
{
    DCHECK(pos >= 0 && (uint32_t)pos < cpu->c.max_context);
    return cpu->cos_sin + (size_t)pos * 2 * ROPE_PAIRS;
}

/* ---- cpu_pool.c ---- */
/* cpu_rows - task(arg, i, n, worker) for i in [0, n): many pieces of about `width` values each.
 * They are handed out in runs, for handing one out costs 0.1 us; a small loop stays on this thread.
 * cpu_items - the same one by one, for pieces that are work enough */
void cpu_rows(struct cpu_backend *cpu, size_t n, size_t width, thread_task *task, void *arg);
void cpu_items(struct cpu_backend *cpu, size_t n, thread_task *task, void *arg);

/* ---- cpu_gemm.c ---- */

/* cpu_gemm - the products of n_job jobs in one parallel loop; x of all is of `type` */
void cpu_gemm(struct cpu_backend *cpu, enum operand type, struct gemm_job *jobs, uint32_t n_job);

/* ---- cpu_weight.c ---- */

/* packed_row - row r of w as f32 [n_col] */
void packed_row(const struct packed *w, uint32_t r, float *out);

fathom_err cpu_prepare_vector(struct backend *b, const struct tensor_view *v, struct weight **out,
                              fathom_diag *d);
fathom_err cpu_prepare_linear(struct backend *b, const struct tensor_view *v, struct weight **out,
                              fathom_diag *d);
fathom_err cpu_prepare_mla(struct backend *b, const struct mla_tensors *t, struct weight **out,
                           fathom_diag *d);
fathom_err cpu_prepare_ffn(struct backend *b, const struct ffn_tensors *t, struct weight **out,
                           fathom_diag *d);
fathom_err cpu_prepare_moe(struct backend *b, const struct moe_tensors *t, struct weight **out,
                           fathom_diag *d);
void cpu_weight_destroy(struct backend *b, struct weight *w);
uint64_t cpu_weight_bytes(const struct weight *w);

/* ---- cpu_pack.c ---- */

/* What becomes a packed matrix: rows [row0, row0 + n_row) of a view, or their transpose. */
struct pack_part {
    const struct tensor_view *view;
    uint32_t row0;
    uint32_t n_row; /* rows of the view */
    bool transposed;
};

/* pack_matrix - n_part (1 or 2) equal parts, panel by panel in turn
 * Errors  ENOMEM; EUNSUPPORTED for a type that is no float. `name` stands in the message. */
fathom_err pack_matrix(struct cpu_backend *cpu, const struct pack_part *parts, uint32_t n_part,
                       const char *name, struct packed *out, fathom_diag *d);
void packed_free(struct packed *w);

/* cpu_weight_opens, cpu_weight_closes - a weight is being prepared, or has gone. What is packed for
 * weights lies in memory of the backend, which is freed with the last of them. */
void cpu_weight_opens(struct cpu_backend *cpu);
void cpu_weight_closes(struct cpu_backend *cpu);
uint64_t packed_bytes(const struct packed *w);

/* ---- cpu_ffn.c ---- */

/* One expert and the rows that go through it. */
struct ffn_group {
    const struct ffn_weight *w;
    const void *x; /* operand [n_row][x_stride] */
    size_t x_stride;
    uint32_t n_row;
    uint32_t row0;         /* of its rows in `inner` */
    const uint32_t *token; /* [n_row] rows of y; NULL: row i */
    const float *weight;   /* [n_row]; NULL: 1 */
    size_t first_item;     /* cpu_ffn_groups' own, as `input` */
    struct gemm_input input;
};

/* cpu_ffn_groups - y[t] = sum over groups, in their order, of weight * ffn(x) for t < n_token
 *   inner  operand [rows of all groups][inner_stride], scratch */
struct ffn_call {
    struct ffn_group *groups;
    uint32_t n_group;
    uint32_t n_token;
    void *inner;
    size_t inner_stride;
    float *y;
    size_t y_stride;
};
void cpu_ffn_groups(struct cpu_backend *cpu, struct ffn_call *call);

/* ---- operators ---- */

fathom_err cpu_embed(struct backend *b, const struct embed_args *a);
fathom_err cpu_reduce_norm(struct backend *b, const struct reduce_norm_args *a);
fathom_err cpu_ffn(struct backend *b, const struct ffn_args *a);
fathom_err cpu_head(struct backend *b, const struct head_args *a);
fathom_err cpu_mtp_front(struct backend *b, const struct mtp_front_args *a);
fathom_err cpu_mla_front(struct backend *b, const struct mla_front_args *a);
fathom_err cpu_mla_out(struct backend *b, const struct mla_out_args *a);
fathom_err cpu_index_topk(struct backend *b, const struct index_topk_args *a);
fathom_err cpu_mla_attend(struct backend *b, const struct mla_attend_args *a);
fathom_err cpu_router(struct backend *b, const struct router_args *a);
fathom_err cpu_moe(struct backend *b, const struct moe_args *a);
fathom_err cpu_moe_ep(struct backend *b, const struct moe_ep_args *a);
fathom_err cpu_sample(struct backend *b, const struct sample_args *a);

#endif
