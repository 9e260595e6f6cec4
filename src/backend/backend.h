/* backend.h - the seam between the model and the machine
 *
 * The model's forward pass is written once over the fused operators of struct backend_ops. A
 * backend owns its memory, its packing of weights and its scratch; what it is told at creation
 * (struct backend_config) fixes every size, so that an operator never allocates.
 *
 * Rules for every operator:
 *  - It is enqueued on the backend's one queue and may return before it has run; arguments may die
 *    on return. `sync` waits. Errors of the device come out of whatever call meets them first.
 *  - One thread makes the calls: the one that created the backend, then the one that bound it last.
 *  - Buffers are opaque: a kind (enum buffer_kind) fixes meaning and shape, the backend chooses the
 *    element type. Tests read and write them as f32 through buffer_read and buffer_write.
 *  - A row's bits do not depend on the other rows, on the number of threads, or on how a request's
 *    tokens are cut into steps.
 *  - Rows of the cache beyond a request's positions are never read: they may hold NaN.
 *  - Several ranks (parallel.h) compute a step together. Along tp reduce_norm, head and sample add
 *    up their parts; all else is equal. Along dp each has rows of its own: moe_ep and share_rows.
 *
 * Dimension letters: T tokens of the step, R requests, D hidden, H heads of this rank, E experts,
 * K selected, V vocabulary.
 */
#ifndef FATHOM_BACKEND_BACKEND_H
#define FATHOM_BACKEND_BACKEND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backend/batch.h"
#include "backend/op_attn.h"
#include "backend/op_dense.h"
#include "backend/op_moe.h"
#include "backend/op_sample.h"
#include "backend/parallel.h"
#include "base/tensor_view.h"
#include "fathom/err.h"

struct graph;
struct host_net;
struct weight;

/* What inputs of matrix products are rounded to. With FP8 the matrices that tensor_takes_fp8 names
 * take codes e4m3(x / s) for each 128 values, s = max(largest |x|, 1e-4) / 448 rounded up to a
 * power of two. With INT8 those of E4M3 do, and those of U4 and I8 take codes
 * clamp(rint(x / s), -127, 127), s = max(largest |x|, 1e-10) / 127, for each 128 values, or for the
 * whole row where the weight has one scale a row. The others take bf16, and so do head, mtp_front
 * and kv_b. */
enum act_type { ACT_F32, ACT_BF16, ACT_FP8, ACT_INT8 };

enum input_code { INPUT_CODE_NONE, INPUT_CODE_FP8, INPUT_CODE_INT8_GROUP, INPUT_CODE_INT8_ROW };

/* backend_input_code - the codes that inputs of a matrix become */
static inline enum input_code backend_input_code(enum act_type act, const struct tensor_view *v)
{
    if (act != ACT_FP8 && act != ACT_INT8) return INPUT_CODE_NONE;
    if (act == ACT_INT8) {
        switch (tensor_takes_int8(v)) {
        case TENSOR_INT8_GROUP: return INPUT_CODE_INT8_GROUP;
        case TENSOR_INT8_ROW: return INPUT_CODE_INT8_ROW;
        case TENSOR_INT8_NONE: break;
        }
    }
    return tensor_takes_fp8(v) ? INPUT_CODE_FP8 : INPUT_CODE_NONE;
}

enum { RANK_PATIENCE_MS = 300000 };
/* Fixed at creation. Counts of heads and inner widths are this rank's part. */
struct backend_config {
    enum act_type act;
    uint32_t hidden;      /* D */
    uint32_t n_head;      /* H */
    uint32_t q_lora_rank; /* width of the query latent */
    uint32_t nope_dim;    /* 128: query and key part without position */
    uint32_t v_dim;       /* 128 */
    float softmax_scale;  /* YaRN's factor included */
    float norm_eps;
    float rope_freq[KV_ROPE / 2]; /* angle = position * freq */
    bool rope_interleaved;        /* main attention: pairs (2i, 2i+1), else (i, i+32) */
    bool index_rope_interleaved;
    uint32_t index_n_head; /* 0: no indexer */
    uint32_t index_topk;
    uint32_t dense_inner; /* width of the dense FFN */
    uint32_t n_expert;    /* E; 0: no MoE layer */
    uint32_t n_expert_used;
    uint32_t n_group;
    uint32_t topk_group;
    uint32_t moe_inner;    /* width of a routed expert */
    uint32_t shared_inner; /* width of all shared experts together; 0: none */
    float routed_scale;
    bool norm_topk;   /* weights of the chosen experts are divided by their sum */
    uint32_t n_vocab; /* V: width of LOGITS; of a slice its rows of the head */
    struct kv_layout kv;
    uint32_t max_token;     /* largest T */
    uint32_t max_request;   /* largest R */
    uint32_t max_context;   /* longest request, tokens */
    uint32_t max_logit_row; /* largest n_logit_row; a sample call has as many rows, or R */
    uint32_t n_thread;      /* CPU only; 0: all processors */
    uint32_t n_host;        /* over which its peers are spread; 0: one */
    uint32_t i_local; /* CPU only: this rank of the n_local of this machine, which share its */
    uint32_t n_local; /* memory nodes; 0: it is the only one */
    int device;       /* GPU only: index */
    struct parallel parallel;
    struct host_net *net; /* the other processes (host_group.h), or NULL */
    uint32_t patience_ms; /* for another rank; 0: RANK_PATIENCE_MS on the host, on GPUs 2 s */
};

/* backend_head_rows - this rank's rows of the head */
static inline uint32_t backend_head_rows(const struct backend_config *c)
{
    return c->parallel.is_slice ? c->n_vocab : parallel_part(&c->parallel, CUT_VOCAB, c->n_vocab);
}

/* backend_held_experts - routed experts that this rank has, whole or a part of each */
static inline uint32_t backend_held_experts(const struct backend_config *c)
{
    return parallel_part(&c->parallel, CUT_EXPERTS, c->n_expert);
}

/* Activations that cross the seam; buffer_shape.h has their shapes in numbers. T is max_token here,
 * n max_logit_row. */
enum buffer_kind {
    BUFFER_RESIDUAL, /* [T][D] the stream that layers add to */
    BUFFER_NORMED,   /* [T][D] output of a norm, input of projections */
    BUFFER_DELTA,    /* [T][D] output of a block; a partial sum on several ranks */
    BUFFER_QUERY,    /* [T][H][576], then index query and weights */
    BUFFER_SELECT,   /* [T][index_topk] slots and counts */
    BUFFER_LATENT,   /* [T][H][512] attention output */
    BUFFER_ROUTE,    /* [T][n_expert_used] expert and weight */
    BUFFER_LOGITS,   /* f32 [n][V] */
};
struct buffer; /* backend's */
struct backend_caps {
    const char *name;           /* "ref", "cpu", "cuda" */
    char device[128];           /* "AMD EPYC, avx512 bf16, 2 threads" */
    char numerics[128];         /* what bits depend on: equal where all results are equal */
    uint64_t memory_bytes;      /* all */
    uint64_t memory_free_bytes; /* now */
    bool graphs;                /* graph_* work */
    bool async;       /* the queue is worked off apart from the caller, copies of host memory of
                         alloc_host included: a step can be enqueued while one before it runs */
    bool prompt_form; /* prompt rows have other bits than answer rows (op_attn.h) */
    bool kv_types[3]; /* by enum kv_type */
};

struct backend {
    const struct backend_ops *ops;
};

enum { BACKEND_FENCE_MAX = 8 }; /* marks of a queue, one for each step under way */
struct backend_ops {
    /* ---- the device ---- */
    void (*destroy)(struct backend *b); /* accepts NULL */
    void (*get_caps)(struct backend *b, struct backend_caps *out);
    /* The calling thread makes the calls from now on: the device becomes its current one. */
    fathom_err (*bind_thread)(struct backend *b);
    /* Of backend_join, which has checked what does not depend on the backend. NULL: the backend
     * runs on one rank. */
    fathom_err (*join)(struct backend *const *b, uint32_t n, fathom_diag *d);
    /* Of ranks on several hosts, NULL: not needed. All come together, or EPEER; what waits for
     * peers ends, whereupon recordings are destroyed, and then renew. */
    fathom_err (*connect)(struct backend *b);
    void (*disconnect)(struct backend *b);
    /* This rank makes no more calls of operators: peers that wait for it, now or later, get
     * EPEER. Any thread. NULL where join is. */
    void (*abandon)(struct backend *b);
    /* After a meeting that failed, all ranks without work: peers are met anew. NULL: never. */
    void (*renew)(struct backend *b);
    /* Device memory, 256-byte aligned, zeroed. `what` names it in messages. */
    fathom_err (*alloc)(struct backend *b, size_t bytes, const char *what, void **out,
                        fathom_diag *d);
    void (*release)(struct backend *b, void *p);
    /* Host memory that the device reads and writes fast. */
    fathom_err (*alloc_host)(struct backend *b, size_t bytes, void **out, fathom_diag *d);
    void (*release_host)(struct backend *b, void *p);
    /* Enqueued copies; the host side of copy_in may be reused after sync or fence_wait. Its source
     * may be device memory too. */
    fathom_err (*copy_in)(struct backend *b, void *dst, const void *src, size_t bytes);
    fathom_err (*copy_out)(struct backend *b, void *dst, const void *src, size_t bytes);
    fathom_err (*sync)(struct backend *b);
    /* Marks a point of the queue with a fence; waits for it; tells what the device took from one
     * mark to another, for both of which it waits. */
    fathom_err (*fence_record)(struct backend *b, uint32_t fence);
    fathom_err (*fence_wait)(struct backend *b, uint32_t fence);
    fathom_err (*fence_elapsed)(struct backend *b, uint32_t from, uint32_t to, double *us);
    /* Recorded steps; NULL members when caps.graphs is false. */
    fathom_err (*graph_begin)(struct backend *b);
    fathom_err (*graph_end)(struct backend *b, struct graph **out);
    fathom_err (*graph_launch)(struct backend *b, struct graph *g);
    void (*graph_destroy)(struct backend *b, struct graph *g);
    /* The message of the first device error, "" when there is none. */
    const char *(*fault)(struct backend *b);
    /* A number that changes as the work of a step gets on; any thread. NULL: not before its end. */
    uint64_t (*progress)(const struct backend *b);
    /* What this rank has waited for the others so far, or up to the last step that drew; any
     * thread. */
    void (*get_waits)(const struct backend *b, struct rank_waits *out);

    /* ---- buffers ---- */
    fathom_err (*buffer_create)(struct backend *b, enum buffer_kind kind, struct buffer **out,
                                fathom_diag *d);
    void (*buffer_destroy)(struct backend *b, struct buffer *buf);
    /* Rows [row0, row0 + n_row) as f32 [n_row][width]; width must be the kind's. For ROUTE and
     * SELECT see op_moe.h and op_attn.h. Waits for the queue. */
    fathom_err (*buffer_read)(struct backend *b, const struct buffer *buf, uint32_t row0,
                              uint32_t n_row, uint32_t width, float *out);
    fathom_err (*buffer_write)(struct backend *b, struct buffer *buf, uint32_t row0, uint32_t n_row,
                               uint32_t width, const float *in);

    /* ---- weights: copied or packed; the views may go away afterwards ---- */
    fathom_err (*prepare_vector)(struct backend *b, const struct tensor_view *v,
                                 struct weight **out, fathom_diag *d);
    fathom_err (*prepare_linear)(struct backend *b, const struct tensor_view *v,
                                 struct weight **out, fathom_diag *d);
    fathom_err (*prepare_mla)(struct backend *b, const struct mla_tensors *t, struct weight **out,
                              fathom_diag *d);
    fathom_err (*prepare_ffn)(struct backend *b, const struct ffn_tensors *t, struct weight **out,
                              fathom_diag *d);
    fathom_err (*prepare_moe)(struct backend *b, const struct moe_tensors *t, struct weight **out,
                              fathom_diag *d);
    void (*weight_destroy)(struct backend *b, struct weight *w); /* accepts NULL */
    uint64_t (*weight_bytes)(const struct weight *w);

    /* ---- operators; one argument struct and one doc comment each in op_*.h ---- */
    /* Rows of a step of n_token with prompts that this rank owns; 0: rows have no owners, all ranks
     * compute all. NULL, with spread_rows: never. A row's owner depends on its place in the step
     * and on n_token alone. */
    uint32_t (*own_rows)(const struct backend *b, uint32_t n_token);
    fathom_err (*spread_rows)(struct backend *b, const struct spread_rows_args *a);
    fathom_err (*embed)(struct backend *b, const struct embed_args *a);
    fathom_err (*reduce_norm)(struct backend *b, const struct reduce_norm_args *a);
    fathom_err (*mla_front)(struct backend *b, const struct mla_front_args *a);
    fathom_err (*index_topk)(struct backend *b, const struct index_topk_args *a);
    fathom_err (*share_rows)(struct backend *b, const struct share_rows_args *a); /* NULL: never */
    fathom_err (*mla_attend)(struct backend *b, const struct mla_attend_args *a);
    fathom_err (*mla_out)(struct backend *b, const struct mla_out_args *a);
    fathom_err (*ffn)(struct backend *b, const struct ffn_args *a);
    fathom_err (*router)(struct backend *b, const struct router_args *a);
    fathom_err (*moe)(struct backend *b, const struct moe_args *a);
    fathom_err (*moe_ep)(struct backend *b, const struct moe_ep_args *a); /* NULL: never */
    fathom_err (*head)(struct backend *b, const struct head_args *a);
    fathom_err (*mtp_front)(struct backend *b, const struct mtp_front_args *a);
    fathom_err (*sample)(struct backend *b, const struct sample_args *a);
};

/* backend_join - ranks of one process become each other's peers
 *
 *   b  [n] in rank order, of one kind; their configurations differ in rank, device and threads
 * Needs   once, before any operator; then every rank has a thread of its own, and all make the same
 *         calls of operators in the same order.
 * Errors  EUNSUPPORTED: the backend runs on one rank; EDEVICE names the pair that cannot be peers;
 *         ENOMEM. */
fathom_err backend_join(struct backend *const *b, uint32_t n, fathom_diag *d);

/* backend_ref_create, backend_cpu_create - the two that every build has
 * Errors  EINVAL, EUNSUPPORTED naming the member of *c; ENOMEM. */
fathom_err backend_ref_create(struct backend **out, const struct backend_config *c, fathom_diag *d);
fathom_err backend_cpu_create(struct backend **out, const struct backend_config *c, fathom_diag *d);

/* backend_cpu_weight_bytes - what the cpu backend keeps of a matrix of this form: codes of 4 bits
 * take 8 there, int8 codes 16, F16 values 32, scales are f32. Pure. */
uint64_t backend_cpu_weight_bytes(const struct weight_form *f, uint32_t n_row, uint32_t n_col);

/* backend_cpu_isa - the instruction set that backend_cpu_create computes with: "avx512 bf16" */
const char *backend_cpu_isa(void);

/* backend_cuda_create - one GPU, c->device; backend_cuda_generic_create - for tests, the same
 * without the kernels for one kind of GPU
 * Errors  as above; EDEVICE: no such device. A build without CUDA answers EUNSUPPORTED. */
fathom_err backend_cuda_create(struct backend **out, const struct backend_config *c,
                               fathom_diag *d);
fathom_err backend_cuda_generic_create(struct backend **out, const struct backend_config *c,
                                       fathom_diag *d);

enum { CUDA_CAPABILITY_MIN = 80 }; /* the first GPUs that the cuda backend runs on: sm_80 */

struct cuda_device_info {
    char name[64];
    uint64_t memory_bytes;
    uint64_t memory_free_bytes; /* now */
};

/* backend_cuda_count - devices that can be used; 0 without a driver, or in a build without CUDA
 * backend_cuda_query - errors as for backend_cuda_create */
int backend_cuda_count(void);
fathom_err backend_cuda_query(struct cuda_device_info *out, int device, fathom_diag *d);

/* How a device gets at the memory of another one. NVLink has atomic operations. */
enum cuda_link { CUDA_LINK_NONE, CUDA_LINK_PCIE, CUDA_LINK_NVLINK };

/* backend_cuda_link - device `from` to the memory of `to`; NONE also for devices there are not */
enum cuda_link backend_cuda_link(int from, int to);

/* backend_cuda_takes - whether it multiplies matrices of this form. Pure, in every build. */
bool backend_cuda_takes(const struct weight_form *f);

/* backend_cuda_extra_bytes - device memory needed besides weights, cache and 4 bytes for each value
 * of the buffers: scratch, second forms of activations, what ranks send. Pure, in every build. */
uint64_t backend_cuda_extra_bytes(const struct backend_config *c);

#endif
