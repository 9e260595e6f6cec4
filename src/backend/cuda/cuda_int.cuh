/* cuda_int.cuh - what the files of the CUDA backend share: its objects and launchers
 *
 * Two paths through the operators, chosen once by enum act_type:
 *   float  (ACT_F32, ACT_BF16) activations f32, rounded to bf16 as inputs of products if so
 *                     asked, weights decoded in the product; any GPU, any weight type
 *   fast   (ACT_FP8, ACT_INT8)  inputs of FP8 weights quantized to e4m3 per 128 values with
 *                     power-of-two scales, inputs of BF16 weights rounded to bf16, with ACT_INT8
 *                     those of int8 weights quantized to int8; tensor cores
 * The residual stream, norms, router, softmax and all sums are f32 in both.
 */
#ifndef FATHOM_BACKEND_CUDA_INT_CUH
#define FATHOM_BACKEND_CUDA_INT_CUH

#include <stddef.h>
#include <stdint.h>

#include "backend/cuda/port.cuh"

extern "C" {
#include "backend/backend.h"
#include "backend/cuda/net.h"
#include "backend/cuda/pack4.h"
#include "backend/cuda/peers.h"
#include "backend/cuda/scratch.h"
#include "backend/op_check.h"
#include "base/assert.h"
#include "base/fail.h"
}

/* Shared memory that a block of generic/ may have: that of sm_80, or, lean, of sm_86 and sm_89. */
static constexpr size_t shared_limit(bool lean)
{
    return lean ? 99 * 1024 : 163 * 1024;
}

enum { SCALE_BLOCK = TENSOR_SCALE_BLOCK, FAULT_BYTES = 512 };

/* Limits of kernels that check_config holds a configuration to. */
enum {
    HIDDEN_MAX = 16384,    /* add_norm */
    FRONT_LORA_MAX = 2048, /* mla_front */
    EXPERTS_MAX = 1023,    /* router: a thread an expert, the shared one included */
    EXPERTS_USED_MAX = 32, /* the shared one among them: a row a lane */
    EXPERT_GROUPS_MAX = 32,
};

/* Widths of a head that the kernels of mla_front and mla_out are written for (check_config). */
enum {
    NOPE_DIM = 128,                 /* of a query or key, without position */
    V_DIM = 128,                    /* of a value */
    QUERY_DIM = NOPE_DIM + KV_ROPE, /* rows of q_b */
    KV_B_ROWS = NOPE_DIM + V_DIM,   /* rows of kv_b: the key's, then the value's */
};

/* Rows in expanded form (op_attn.h): tokens from `first` on at positions below `end`. Their QUERY
 * is [H][192] bf16 at the row's start, without kv_b, their LATENT [H][128] likewise. */
struct expanded_rows {
    uint32_t first;
    int32_t end;
};

static __device__ __forceinline__ bool is_expanded(const struct expanded_rows &e, uint32_t token,
                                                   const int32_t *pos)
{
    return token >= e.first && pos[token] < e.end;
}

/* What every GPU takes at most. */
enum {
    GRID_YZ_MAX = 65535,
    BLOCK_THREADS_MAX = 1024,
    CLUSTER_BLOCKS_MAX = 8,
    CLUSTER_BLOCKS_LARGE = 16,   /* where a kernel is allowed it and the device has room */
    SHARED_PLAIN_MAX = 48 << 10, /* shared memory of a block whose limit is not raised */
};

/* What the inputs of a product become where they become codes: e4m3 or int8, with a scale for 128
 * values; or int8 with one for all of a row, which then each of its groups of 128 has. */
enum codes { CODES_NONE, CODES_FP8, CODES_INT8, CODES_INT8_ROW };

/* A matrix y = W x in device memory, row-major as in the checkpoint. */
struct matrix {
    enum dtype dtype;  /* F32, BF16, F8_E4M3 or I8; U8: packed, see pack */
    uint32_t n_row;    /* outputs */
    uint32_t n_col;    /* inputs */
    void *data;        /* [n_row][n_col], or */
    bool tiled;        /* rows in tiles (product.cuh): on sm_90 alone */
    float *scale;      /* F8_E4M3, I8: one per block, rows of scale_stride; packed E2M1: one per
                         64 rows (pack4.h) */
    float *line_scale; /* F8_E4M3, I8 with a scale a row, in blocks of 1 x all: ones, one a K line,
                          for products that take scales of squares; NULL: blocks are squares */
    uint32_t scale_stride;
    uint32_t row0; /* place of (0, 0) inside its scale block; both 0 for the fast path */
    uint32_t col0;
    uint32_t block_row; /* rows and columns that share a scale */
    uint32_t block_col;
    struct pack4 pack;
    bool packs_fp8;        /* packed: ACT_FP8 quantizes its inputs, as tensor_takes_fp8 has it */
    enum tensor_int8 int8; /* I8: how ACT_INT8 does */
};

/* Matrices with one input whose outputs stand side by side: one matrix when their types and scale
 * blocks allow it, else up to three. */
enum { MATRIX_PARTS_MAX = 3 };
struct matrix_list {
    struct matrix part[MATRIX_PARTS_MAX];
    uint32_t row[MATRIX_PARTS_MAX]; /* where a part's outputs begin */
    uint32_t n;
    uint32_t n_row;
    uint32_t n_col;
};

/* Experts of one kind, the shared expert last: slab of equal matrices. */
struct matrix_stack {
    struct matrix first; /* data and scale of expert 0 */
    uint32_t n;
    size_t data_stride;  /* bytes */
    size_t scale_stride; /* floats */
};

enum weight_kind { WEIGHT_VECTOR, WEIGHT_LINEAR, WEIGHT_MLA, WEIGHT_FFN, WEIGHT_MOE };

struct weight {
    enum weight_kind kind;
    uint64_t n_bytes;
    void *allocations[24]; /* everything to release */
    uint32_t n_allocation;
    float *vector;        /* WEIGHT_VECTOR */
    struct matrix linear; /* WEIGHT_LINEAR */
    struct {
        struct matrix_list front; /* [q_a ; index_k ; kv_a][D]; rows at 0, index_row, kv_row */
        struct matrix_list query; /* [q_b ; index_q_b][q_lora] */
        struct matrix index_head;
        struct matrix out;
        float *q_norm, *kv_norm, *index_weight, *index_bias;
        bf16 *kv_b;    /* fast path: [H][KV_B_ROWS][512] */
        float *kv_b_f; /* float path: the same */
        uint32_t index_row, kv_row;
    } mla;
    struct {
        struct matrix_list up; /* [gate ; up][D] */
        struct matrix down;
    } ffn; /* also the shared expert of WEIGHT_MOE when it is not in the stacks */
    struct {
        struct matrix router;
        float *bias;
        struct matrix_stack up;       /* each [gate ; up][D]; only gate when not fused_up */
        struct matrix_stack up_alone; /* not fused_up: each [inner][D] */
        bool fused_up;                /* gate and up lie on scale blocks of their own */
        struct matrix_stack down;
        bool stacked_shared;  /* the shared expert is the last of the stacks */
        bool separate_shared; /* it has a width of its own and is in `ffn` */
    } moe;
};

/* A buffer of the seam; members that a kind or path does not use are NULL. */
struct buffer {
    enum buffer_kind kind;
    float *f;            /* RESIDUAL NORMED DELTA LOGITS; QUERY and LATENT on the float path */
    bf16 *h;             /* NORMED, QUERY, LATENT on the fast path */
    uint8_t *q;          /* NORMED: codes [T][D]; QUERY: index query codes [T][Hi][128] */
    enum codes codes;    /* NORMED: what q holds */
    float *scale;        /* NORMED: [T][D/128] */
    float *index_f;      /* QUERY: index query [T][Hi][128], float path */
    float *index_weight; /* QUERY: [T][Hi] */
    int32_t *i;          /* SELECT: slots [T][topk]; ROUTE: experts [T][K] */
    int32_t *n;          /* SELECT: counts [T] */
    float *w;            /* ROUTE: weights [T][K] */
};

/* Sums of groups of a product's inputs (input_sum of common.cuh), as U4 weights of experts take
 * them. */
struct input_sums {
    float *at;      /* [row][width / group]; NULL: none */
    uint32_t group; /* 32, 64 or 128 */
};

/* The forms in which a product may take its input. */
enum {
    INPUT_F32 = 1,
    INPUT_BF16 = 2,
    INPUT_FP8 = 4,
    INPUT_INT8 = 8,
    INPUT_INT8_ROW = 16,
    INPUT_CODES = INPUT_FP8 | INPUT_INT8 | INPUT_INT8_ROW,
    INPUT_ALL = INPUT_F32 | INPUT_BF16 | INPUT_FP8,
};

/* The codes of forms that have no more than one kind of them. */
static inline enum codes codes_of_forms(uint32_t forms)
{
    if (forms & INPUT_FP8) return CODES_FP8;
    if (forms & INPUT_INT8) return CODES_INT8;
    return forms & INPUT_INT8_ROW ? CODES_INT8_ROW : CODES_NONE;
}

/* Input of a product: rows of `width`. */
struct act {
    const float *f;
    const bf16 *h;
    const uint8_t *q;   /* NULL: none */
    const float *scale; /* [T][width / 128] */
    uint32_t width;
    const int32_t *rows; /* the rows that are meant, for weights that cuda_wants_bf16; NULL: all */
    enum codes codes;    /* what q holds */
    struct input_sums sums; /* of q */
};

/* act_of - a buffer's rows as they are */
static inline struct act act_of(const struct buffer *buf, uint32_t width)
{
    struct act a = {buf->f, buf->h, buf->q, buf->scale, width, NULL, buf->codes, {}};
    return a;
}

/* act_rows - the rows of x from row0 on, which lie one behind the other */
static inline struct act act_rows(const struct act &x, uint32_t row0)
{
    const size_t at = (size_t)row0 * x.width;
    struct act a = x;
    ASSERT(!x.rows);
    if (x.f) a.f = x.f + at;
    if (x.h) a.h = x.h + at;
    if (x.q) a.q = x.q + at;
    if (x.scale) a.scale = x.scale + at / FP8_GROUP;
    a.sums = {};
    return a;
}

/* Which rows go to which expert, made on the device by router or cuda_moe_map. Choice i of
 * token t, the shared expert last, is row t * rows_per_token + i; `rows` lists them expert by
 * expert. */
struct task {
    int32_t expert;
    int32_t first; /* into rows */
    int32_t n;
};
static_assert(sizeof(struct task) == TASK_BYTES, "scratch.h sizes the list");

/* Units of attention that mla_attend has left to mla_out (mla_attend_args.left_to_out), in steps of
 * up to LEFT_TOKENS_MAX tokens. */
enum { LEFT_TOKENS_MAX = 8 };
struct left_units {
    const struct buffer *z; /* the LATENT that they merge to; NULL: none are left */
    const int32_t *pos, *slots, *counts;
    uint32_t topk, n_part;
};

/* What n_task has behind the number of tasks: product_args.feed, and the entries of the list. */
enum { TASK_FEED = 1, TASK_N_ROW = 3 };

struct task_map {
    const struct buffer *route; /* what it was made of last, NULL: to be made before use */
    const struct weight *w;
    uint32_t n_token;
    uint32_t n_row;    /* of all experts: entries of the list at most, */
    uint32_t n_likely; /* and as many as there are as far as the host knows */
    int32_t *counts;   /* [blocks of ROUTER_MAP_TOKENS][experts] */
    struct task *tasks;
    int32_t *n_task;
    int32_t *rows;
    uint32_t tile;          /* rows of a task at most, for the current step */
    uint32_t max_task;      /* tasks at most, likewise: what the host launches */
    const int32_t *present; /* [n_row]: rows of negative numbers are in no list; NULL: all are */
};

/* What the products of sm90/ know of the device: multiprocessors, and clusters that run at once. */
enum { FEW_TILES = 4, FEW_K_PARTS = 4, INDEX_CLUSTERS = 3 };
struct sm90_limits {
    uint32_t n_sm;
    uint32_t few[FEW_TILES][FEW_K_PARTS]; /* of product_few, by rows of a tile (8, 16, 32, 64) and
                                            blocks of a cluster (1, 2, 4, 8) */
    uint32_t index_blocks[INDEX_CLUSTERS],
        index_clusters[INDEX_CLUSTERS]; /* of index_choose: blocks
                                            of a cluster, largest first, and how many of these */
};

/* Where a block of product_few leaves sums of a tile that the next block goes on with, and flags,
 * HANDED_FLAGS a block, which are zeros between launches. */
struct handed_sums {
    float *sums; /* NULL: tiles stay whole */
    uint32_t *flags;
};

enum { PINNED_MAX = 16 }; /* more of them are copied as any memory is */

struct cuda_backend {
    struct backend base; /* first */
    struct {
        const char *base; /* NULL: free */
        size_t n_bytes;
    } pinned[PINNED_MAX]; /* memory of alloc_host */
    struct backend_config c;
    bool fast;
    bool generic; /* kernels of one kind of GPU are left out */
    bool lean;    /* little shared memory: see shared_limit */
    bool sm90;    /* attention, and FP8 products where the matrix allows, run on sm90/ */
    struct sm90_limits limits;
    int device;
    gpu_properties properties;
    gpu_stream stream;
    bool recording; /* launches become a recorded step: launch.cuh */
    gpu_event fences[BACKEND_FENCE_MAX];
    char fault[FAULT_BYTES];
    struct {
        const char *what;
        dim3 grid;
    } last;                           /* launch */
    struct peers peers;               /* of this rank's lane; world 0: none */
    struct peers ep;                  /* all ranks, to which rows for experts go; world 0: none */
    struct peer_report *report;       /* of both; NULL: there are none */
    const struct cuda_backend *first; /* of several ranks the first */
    struct cuda_net *net;             /* to ranks on other hosts; NULL: all are here */
    uint64_t allocated_bytes;
    void *staging; /* of weights on their way into tiles, while one is prepared */
    size_t staging_bytes;
    void *scratch[SCRATCH_N]; /* of the operators; by name: */
    float *front;             /* [T][rows of mla.front] */
    float *query;             /* [T][rows of mla.query] */
    float *index_head;        /* [T][Hi], or parts of it (generic/index_head.cuh) */
    float *qa_f;              /* [T][q_lora] */
    uint8_t *qa_q;
    float *qa_scale;
    struct {
        int32_t *batch; /* [3][T] */
        float *qa_f;
        uint8_t *qa_q;
        float *qa_scale, *index_head;
    } own;              /* of own rows (op_dense.h) */
    float *index_k;     /* [T][128] */
    float *index_score; /* [score_floats] */
    uint64_t score_floats;
    float *part_out;  /* [part rows][H][512] */
    float *part_stat; /* [part rows][H][2] */
    uint32_t part_rows;
    struct {
        void *plan;
        bf16 *latent, *rope, *kv;
        uint32_t *mask;
        uint64_t kv_bytes;  /* in products' time room for codes (product_u4_turned.cuh) */
        uint32_t n_context; /* context tiles of a pass */
    } prompt;               /* sm90/prompt.cuh */
    float *heads_f;         /* [T][H*128] */
    uint8_t *heads_q;
    float *heads_scale;
    struct left_units units;
    bool query_early; /* rows were chosen by index_score_alone: attention's queries are there when
                       * the next kernel begins (launch.cuh) */
    const struct buffer *codes_of; /* LATENT of which attention has left the codes of the rows in
                                      expanded form in heads_q; NULL: none */
    float *mid;                    /* [rows][2 * inner], widest of dense, moe */
    float *mid_f; /* [rows][inner]; mid_f, heads_f and qa_f: or bf16, where a weight takes it */
    uint8_t *mid_q;
    float *mid_scale;
    uint8_t *int8_q;   /* inputs of a product of int8 weights, [rows][width] */
    float *int8_scale; /* [rows][width / 128] */
    uint64_t int8_bytes;
    float *input_sums; /* experts' (struct input_sums) */
    struct {
        const struct buffer *of; /* NORMED whose sums are in input_sums; NULL: others or none */
        struct input_sums sums;
    } normed;
    float *expert_out;   /* [T * rows_per_token][D]; or bf16, as many */
    float *shared_out;   /* [T][D] */
    float *router_score; /* [K part][T][pitch] (k_parts.h) */
    struct task_map map;
    struct {
        void *x;          /* [rows of a round][D], in the form that the experts take */
        int32_t *experts; /* [rows of a round][rows_per_token], of this rank; -1: elsewhere */
        float *weights;   /* [rows of a round][K] */
    } round;              /* of moe_ep */
    struct handed_sums handed;
    float *mtp_f; /* [T][2D] */
    bf16 *mtp_h;
    float *net_parts;    /* of ranks on several hosts: [world][rows][D] */
    uint32_t *net_draws; /* [world][rows][NET_DRAW_WORDS] */
    struct {
        char *rows; /* [world][rows of a round][row], of the cache too */
        char *sums; /* [2][world][rows of a round][D] as they travel: from here, and from others */
    } net_ep;
    uint32_t *sample_count; /* [rows of a sample call][V] */
    float *sample_shaped;
    void *sample_parts;
};

static inline struct cuda_backend *cuda_of(struct backend *b)
{
    static_assert(offsetof(struct cuda_backend, base) == 0, "the seam's pointer is the backend's");
    return (struct cuda_backend *)b;
}

/* How long a kernel waits for another rank. */
static inline uint64_t cuda_peer_bound_ns(const struct cuda_backend *c)
{
    const uint64_t ms = 1000000;
    return c->c.patience_ms ? c->c.patience_ms * ms : PEER_BOUND_MS * ms;
}

static __host__ __device__ __forceinline__ uint32_t ceil_div(uint32_t a, uint32_t b)
{
    DCHECK(b > 0 && a <= UINT32_MAX - (b - 1));
    return (a + b - 1) / b;
}

/* Whether a rank has some of the routed experts, whole, and others have the rest. */
static inline bool cuda_has_part(const struct cuda_backend *c)
{
    return parallel_axis(&c->c.parallel, CUT_EXPERTS).size > 1;
}

/* The blocks of a kernel that walks over n things, one a thread at a time: each block has some. */
static inline uint32_t walk_blocks(uint64_t n, uint32_t n_thread)
{
    enum { BLOCKS_MAX = 1024 };
    const uint64_t n_block = (n + n_thread - 1) / n_thread;
    return n_block < 1 ? 1 : n_block < BLOCKS_MAX ? (uint32_t)n_block : BLOCKS_MAX;
}

/* Which of a step's rows are in expanded form: those of prompts that see every row before them, or
 * select from so few that reading them all is cheaper. */
static inline struct expanded_rows cuda_expanded_rows(const struct cuda_backend *c,
                                                      const struct batch *batch)
{
    struct expanded_rows e = {c->sm90 ? batch->n_answer_token : batch->n_token,
                              cuda_expanded_end(&c->c)};
    return e;
}

/* Whether the step may have prompt rows in absorbed form, over selected rows. */
static inline bool cuda_has_selected_prompts(const struct expanded_rows &e,
                                             const struct batch *batch)
{
    return e.first < batch->n_token && batch->max_context > (uint32_t)e.end;
}

/* fault.cu: cuda_check - OK, or record the first fault (call, operator, cause) and give EDEVICE */
fathom_err cuda_check(struct cuda_backend *c, gpu_error e, const char *call, const char *what);
#define CU_TRY(c, call, what)                                                                      \
    do {                                                                                           \
        fathom_err cu_err_ = cuda_check((c), (call), GPU_TEXT(call), (what));                      \
        if (cu_err_ != FATHOM_OK) return cu_err_;                                                  \
    } while (0)

/* weight.cu */
fathom_err cuda_prepare_vector(struct backend *b, const struct tensor_view *v, struct weight **out,
                               fathom_diag *d);
fathom_err cuda_prepare_linear(struct backend *b, const struct tensor_view *v, struct weight **out,
                               fathom_diag *d);
fathom_err cuda_prepare_mla(struct backend *b, const struct mla_tensors *t, struct weight **out,
                            fathom_diag *d);
fathom_err cuda_prepare_ffn(struct backend *b, const struct ffn_tensors *t, struct weight **out,
                            fathom_diag *d);
fathom_err cuda_prepare_moe(struct backend *b, const struct moe_tensors *t, struct weight **out,
                            fathom_diag *d);
void cuda_weight_destroy(struct backend *b, struct weight *w);
uint64_t cuda_weight_bytes(const struct weight *w);

/* weight_make.cu: elements of a view without data, from `data` on in memory of m; scale: where the
 * scales of its first row lie, of E4M3 and I8. They depend on generate_seed and their place in the
 * whole matrix, and are others than a host makes. Scales of I8 are tensor_view_scale's, of E4M3
 * those of the values of each square. */
fathom_err cuda_make_values(struct cuda_backend *c, const struct matrix *m, void *data,
                            float *scale, const struct tensor_view *v, const char *what);
/* the tiles that pack4_rows makes of a view whose source is made up, bit for bit; and whether it
 * can: the view's columns begin and end with 16 codes of one draw */
fathom_err cuda_make_packed(struct cuda_backend *c, const struct matrix *m, void *dst,
                            const struct tensor_view *v, const char *what);
bool cuda_makes_packed(const struct tensor_view *v);
fathom_err cuda_fill_values(struct cuda_backend *c, float *to, uint64_t n, float value,
                            const char *what);

/* buffer.cu */
fathom_err cuda_buffer_create(struct backend *b, enum buffer_kind kind, struct buffer **out,
                              fathom_diag *d);
void cuda_buffer_destroy(struct backend *b, struct buffer *buf);
fathom_err cuda_buffer_read(struct backend *b, const struct buffer *buf, uint32_t row0,
                            uint32_t n_row, uint32_t width, float *out);
fathom_err cuda_buffer_write(struct backend *b, struct buffer *buf, uint32_t row0, uint32_t n_row,
                             uint32_t width, const float *in);

/* product.cu: out[r][n_row] = W in[r], rows of out `stride` apart */
fathom_err cuda_product(struct cuda_backend *c, const struct matrix *w, const struct act *in,
                        uint32_t n_token, float *out, uint32_t stride, const char *what);
fathom_err cuda_product_list(struct cuda_backend *c, const struct matrix_list *w,
                             const struct act *in, uint32_t n_token, float *out, const char *what);
/* whether this weight takes e4m3 activations */
bool cuda_wants_fp8(const struct cuda_backend *c, const struct matrix *w);
/* whether it takes int8 ones, which its product makes of f32 where they are not there */
bool cuda_wants_int8(const struct cuda_backend *c, const struct matrix *w);
/* which codes it takes */
enum codes cuda_codes_of(const struct cuda_backend *c, const struct matrix *w);
/* whether it takes bf16 ones, where they are there */
bool cuda_wants_bf16(const struct cuda_backend *c, const struct matrix *w);
/* INPUT_ flags of the forms of a norm's rows that w's products read: of prepare_mla, prepare_ffn or
 * prepare_moe (its router's not among them), one kind of codes at most; NULL: INPUT_ALL */
uint32_t cuda_input_forms(const struct cuda_backend *c, const struct weight *w);
/* queries in expanded form, of w = q_b, from the sums of cuda_product: rotary parts turned by the
 * angles (product.cuh), then rounded; for rows that are many, as cuda_takes_many says */
bool cuda_takes_many(const struct cuda_backend *c, const struct matrix *w, const struct act *in,
                     uint32_t n_token);
/* whether kernels of sm90/ take the experts' matrix with tasks of PRODUCT_LARGE_TILE rows, read
 * rows in the order of the list and leave rows of bf16 */
bool cuda_takes_listed(const struct cuda_backend *c, const struct matrix *w);
/* whether tasks of few rows of the experts' matrix run on sm90/: of gate and up so that down_few
 * may follow, of down as down_few, whose rows are rounded to bf16 however many they are */
bool cuda_few_is_sm90(const struct cuda_backend *c, const struct matrix *w);
/* whether the experts' product of w, of rows in the order of the list or not, may leave them as
 * bf16 */
bool cuda_mapped_leaves_bf16(const struct cuda_backend *c, const struct matrix *w, bool listed);
struct query_rows {
    bf16 *to;
    uint32_t stride;
    const float *angles;
    uint32_t angle_stride;
};
fathom_err cuda_product_query(struct cuda_backend *c, const struct matrix *w, const struct act *in,
                              uint32_t n_token, const struct query_rows *out, const char *what);
/* the codes of silu(gate) * up of w = [gate ; up], and their scales, in one kernel, with the bits
 * of a product and cuda_swiglu; cuda_takes_swiglu says for which matrices and rows */
bool cuda_takes_swiglu(const struct cuda_backend *c, const struct matrix_list *w,
                       const struct act *in, uint32_t n_token);
fathom_err cuda_product_swiglu(struct cuda_backend *c, const struct matrix_list *w,
                               const struct act *in, uint32_t n_token, uint8_t *q, float *scale,
                               const char *what);
/* the product per expert: row r of the map reads in[r / in_divisor] and writes out[r]; with the
 * flags, entry i of the map's list reads in[i], or writes out[i]: for tasks of PRODUCT_LARGE_TILE
 * on sm_90, and so is what can be written instead of `out` */
struct expert_rows {
    uint32_t in_divisor;
    bool in_listed;
    bool out_listed;
    bf16 *h;    /* not NULL: out rounded, where cuda_mapped_leaves_bf16 */
    uint8_t *q; /* not NULL: codes of the SwiGLU of [gate ; up], and their scales */
    float *scale;
    bool early; /* product_args.tasks_early */
};
fathom_err cuda_product_mapped(struct cuda_backend *c, const struct matrix_stack *w,
                               const struct act *in, struct expert_rows rows, float *out,
                               uint32_t stride, const char *what);
/* rows of a task of experts, by weights and number of rows */
uint32_t cuda_moe_tile(const struct cuda_backend *c, const struct weight *w, uint32_t n_row,
                       uint32_t n_stack);

/* index.cu: whether its kernels choose so many of so many */
bool cuda_topk_fits(uint32_t topk, uint32_t max_context);

/* limits of kernels; once at creation */
fathom_err cuda_attend_init(struct cuda_backend *c);
fathom_err cuda_query_init(struct cuda_backend *c);
fathom_err cuda_index_head_init(struct cuda_backend *c);
fathom_err cuda_out_init(struct cuda_backend *c);
fathom_err product_bf16_init(struct cuda_backend *c);
fathom_err cuda_router_init(struct cuda_backend *c);

/* moe_map.cu: makes c->map of a route, unless router has just made it beside that very route */
fathom_err cuda_moe_map(struct cuda_backend *c, const struct weight *w, const struct buffer *route,
                        uint32_t n_token);

/* dense.cu: fills q and scale from f, rows of `width` (a multiple of 128) */
fathom_err cuda_quantize(struct cuda_backend *c, const float *f, uint32_t n_row, uint32_t width,
                         uint8_t *q, float *scale, const char *what);

/* dense.cu: fills sums from q and scale, rows of `width` (a multiple of 128) */
fathom_err cuda_input_sums(struct cuda_backend *c, const uint8_t *q, const float *scale,
                           uint32_t n_row, uint32_t width, struct input_sums sums,
                           const char *what);
/* product.cu: room for the sums that experts of w take; none if they take none */
struct input_sums cuda_sums_for(const struct cuda_backend *c, const struct matrix *w);

/* int8_codes.cu: int8 codes and their scales, of rows of `width` values, a multiple of 128; swiglu:
 * of their SwiGLU, from rows [gate | up] of twice as many */
fathom_err cuda_int8_codes(struct cuda_backend *c, const float *f, uint32_t n_row, uint32_t width,
                           bool swiglu, enum codes codes, uint8_t *q, float *scale,
                           const char *what);

/* dense.cu: mid [n_row][gate | up] to mid_q, for a weight that takes codes, or mid_f, as bf16 for a
 * BF16 one; rows whose `present` is negative may be passed over, NULL: none; codes' sums besides */
fathom_err cuda_swiglu(struct cuda_backend *c, uint32_t n_row, const int32_t *present,
                       const struct matrix *down, struct input_sums sums, const char *what);
/* what cuda_swiglu has left for this weight */
struct act cuda_mid(struct cuda_backend *c, const struct matrix *down);
fathom_err cuda_ffn_run(struct cuda_backend *c, const struct weight *w, const struct act &x,
                        uint32_t n_token, float *y);

/* operators */
fathom_err cuda_embed(struct backend *b, const struct embed_args *a);
fathom_err cuda_reduce_norm(struct backend *b, const struct reduce_norm_args *a);
fathom_err cuda_mla_front(struct backend *b, const struct mla_front_args *a);
fathom_err cuda_index_topk(struct backend *b, const struct index_topk_args *a);
fathom_err cuda_mla_attend(struct backend *b, const struct mla_attend_args *a);
fathom_err cuda_mla_out(struct backend *b, const struct mla_out_args *a);
fathom_err cuda_ffn(struct backend *b, const struct ffn_args *a);
fathom_err cuda_router(struct backend *b, const struct router_args *a);
fathom_err cuda_moe(struct backend *b, const struct moe_args *a);
fathom_err cuda_moe_ep(struct backend *b, const struct moe_ep_args *a);
fathom_err cuda_head(struct backend *b, const struct head_args *a);
fathom_err cuda_mtp_front(struct backend *b, const struct mtp_front_args *a);
fathom_err cuda_sample(struct backend *b, const struct sample_args *a);

#endif
