/* scratch.h - device memory of the CUDA backend's operators, as arithmetic of the configuration
 *
 * Plain C and in every build, so that `fathom plan` sizes a GPU without having one. */
#ifndef FATHOM_BACKEND_CUDA_SCRATCH_H
#define FATHOM_BACKEND_CUDA_SCRATCH_H

#include <stdint.h>

#include "backend/backend.h"

/* Inputs of FP8 weights have one scale for so many values. */
enum { FP8_GROUP = 128 };

/* And U4 weights of experts take the sum of the inputs of a group of so many or more; where rows
 * are in the order of a list, of so many. */
enum { INPUT_SUMS_GROUP = 32, LISTED_SUMS_GROUP = 64 };

/* How attention is cut (sm90/attend.cu). */
enum {
    ATTEND_GROUP = KV_PAGE_TOKENS, /* rows of a group */
    ATTEND_UNIT = 4,               /* groups of a unit */
    ATTEND_HEAD_BLOCK = 16,        /* heads of a block */
    ATTEND_CLUSTER_MAX = 8,        /* up to so many units are merged by a cluster */
    ATTEND_CLUSTER_TOKENS_MAX = 8, /* of each of so many tokens */
    ATTEND_DEEP_TOKENS_MAX = 1,    /* whose rows are all on their way at once, up to so many */
    ATTEND_UNIT_TOKENS_MAX = 64,   /* else, up to so many, by a kernel of its own */
    ATTEND_UNIT_BLOCKS_MAX = 160,  /* or where tokens, 16 heads each, are up to so many, and */
    ATTEND_UNIT_FEW = 8,           /* units of a token */
};

/* attend_by_units - do units of n_token tokens have blocks of their own? Else a block takes all of
 * a token's. Two blocks of an FP8 cache's rows fit a multiprocessor, which together are 1.6 times
 * as fast as one, so up to some more tokens than there are multiprocessors it pays to leave units
 * apart. */
static inline bool attend_by_units(uint32_t n_token, uint32_t n_unit, uint32_t n_head_block,
                                   enum kv_type type)
{
    return n_token <= ATTEND_UNIT_TOKENS_MAX || (type == KV_TYPE_FP8 && n_unit <= ATTEND_UNIT_FEW &&
                                                 n_token * n_head_block <= ATTEND_UNIT_BLOCKS_MAX);
}

/* Attention of prompt rows in expanded form (sm90/prompt.cuh): contexts are cut into tiles. A pass
 * takes fewer requests before it takes fewer heads than PROMPT_HEADS_MIN at once. */
enum {
    PROMPT_CONTEXT_TILE = 128,
    PROMPT_REQUESTS_MAX = 256, /* of a pass */
    PROMPT_HEADS_MIN = 8,
    PROMPT_ENTRY_BYTES = 16, /* of the plan */
};

/* Prompt rows that select are in expanded form as well, at positions below so many times index_topk
 * and below EXPANDED_SELECTED_MAX: masked (sm90/prompt_mask.cu). With fewer than ATTEND_HEADS heads
 * the absorbed form is slower. */
enum { EXPANDED_TOPK = 4, EXPANDED_TOPK_FEW_HEADS = 8, EXPANDED_SELECTED_MAX = 16384 };

/* How it is cut where heads are many (sm90/attend_heads.cu). */
enum {
    ATTEND_HEADS = 64,                  /* of a block; models with fewer have the kernel above */
    ATTEND_PAIR_HEADS = 128,            /* of two blocks that share a token (sm90/attend_pair.cu) */
    ATTEND_HEADS_FEW_GROUPS = 32,       /* up to so many, units are of half as many groups */
    ATTEND_HEADS_UNIT = 8,              /* groups of a unit, at least */
    ATTEND_HEADS_UNITS_MAX = 32,        /* of a token, whose units are larger if need be */
    ATTEND_HEADS_UNIT_BLOCKS_MAX = 100, /* so many pairs of token and 64 heads, units apart */
};

/* attend_heads_unit - groups of a unit of an answer's token that sees n_group of them: even
 * attend_pair_unit - the same where two blocks share a token, which gain less by many units
 * attend_heads_units - units of a token that sees n_group, or fewer, at most */
#if defined(__CUDACC__) || defined(__HIP__)
#define ATTEND_EVERYWHERE __host__ __device__
#else
#define ATTEND_EVERYWHERE
#endif
static ATTEND_EVERYWHERE inline uint32_t attend_pair_unit(uint32_t n_group)
{
    const uint32_t most = ATTEND_HEADS_UNIT * ATTEND_HEADS_UNITS_MAX;
    return ATTEND_HEADS_UNIT * ((n_group + most - 1) / most);
}

static ATTEND_EVERYWHERE inline uint32_t attend_heads_unit(uint32_t n_group)
{
    if (n_group <= ATTEND_HEADS_FEW_GROUPS) return ATTEND_HEADS_UNIT / 2;
    return attend_pair_unit(n_group);
}

static inline uint32_t attend_heads_units(uint32_t n_group)
{
    const uint32_t few = n_group < ATTEND_HEADS_FEW_GROUPS ? n_group : ATTEND_HEADS_FEW_GROUPS;
    const uint32_t n_few = (few + ATTEND_HEADS_UNIT / 2 - 1) / (ATTEND_HEADS_UNIT / 2);
    const uint32_t n = (n_group + ATTEND_HEADS_UNIT - 1) / ATTEND_HEADS_UNIT;
    if (n <= n_few) return n_few;
    return n < ATTEND_HEADS_UNITS_MAX ? n : ATTEND_HEADS_UNITS_MAX;
}

/* Scores that one block chooses from; of a longer row, one span after the other
 * (generic/index.cu). */
enum { TOPK_SPAN = 32768 };

/* Weights of the index heads: up to so many tokens each chunk of K leaves a part of the sum
 * (generic/index_head.cuh). */
enum { INDEX_HEAD_CHUNK = 256, INDEX_HEAD_FEW_MAX = 512 };

/* Tasks of experts (struct task); full ones have so many rows at least. */
enum { TASK_BYTES = 12, TASK_ROWS_MIN = 8 };

/* What product_few's blocks hand on: sums of all of them, and flags of each. */
enum { HANDED_SUM_BYTES = 6 << 20, HANDED_BLOCKS_MAX = 2048, HANDED_FLAGS = 4 };

/* A row of logits is drawn from in so many parts (generic/sample.cu). */
enum { SAMPLE_PARTS = 32, SAMPLE_PART_BYTES = 16 };

/* Of ranks on several hosts: rows whose sums are formed at once, and 4-byte words of a row that has
 * been drawn. */
enum { NET_ROWS = 2048, NET_DRAW_WORDS = 3 + 2 * SAMPLE_TOP_MAX };

enum cuda_scratch {
    SCRATCH_FRONT,      /* f32 [T][rows of mla.front] */
    SCRATCH_QUERY,      /* f32 [T][rows of mla.query] */
    SCRATCH_INDEX_HEAD, /* f32 [T][Hi], or parts */
    SCRATCH_QA_F,       /* f32 [T][q_lora], its codes and scales */
    SCRATCH_QA_Q,
    SCRATCH_QA_SCALE,
    SCRATCH_OWN_BATCH, /* i32 [3][T]: slots, positions, requests of own rows (op_dense.h) */
    SCRATCH_OWN_QA_F,  /* their query latents, codes and scales */
    SCRATCH_OWN_QA_Q,
    SCRATCH_OWN_QA_SCALE,
    SCRATCH_OWN_INDEX_HEAD,
    SCRATCH_INDEX_SCORE,   /* f32 [as many tokens as there is room for][cuda_score_stride] */
    SCRATCH_PART_OUT,      /* f32 [part_rows][H][512] */
    SCRATCH_PART_STAT,     /* f32 [part_rows][H][2] */
    SCRATCH_PROMPT_PLAN,   /* [1 + context tiles + query tiles] of PROMPT_ENTRY_BYTES */
    SCRATCH_PROMPT_LATENT, /* bf16 [prompt_rows][512] */
    SCRATCH_PROMPT_ROPE,   /* bf16 [prompt_rows][64] */
    SCRATCH_PROMPT_KV,     /* bf16 [context rows][heads][256], as many as there is room for */
    SCRATCH_PROMPT_MASK,   /* bits [T][context rows of one request] */
    SCRATCH_HEADS_F,       /* f32 [T][H*128], its codes and scales */
    SCRATCH_HEADS_Q,
    SCRATCH_HEADS_SCALE,
    SCRATCH_MID,   /* f32 [rows][2 * inner], the widest of dense and experts */
    SCRATCH_MID_F, /* f32 [rows][inner], its codes and scales */
    SCRATCH_MID_Q,
    SCRATCH_MID_SCALE,
    SCRATCH_INT8, /* ACT_INT8: codes of a product's inputs, and their scales */
    SCRATCH_INT8_SCALE,
    SCRATCH_INPUT_SUMS,   /* ACT_FP8: f32, of the experts' inputs */
    SCRATCH_EXPERT_OUT,   /* f32 [T * rows_per_token][D] */
    SCRATCH_SHARED_OUT,   /* f32 [T][D] */
    SCRATCH_ROUTER_SCORE, /* f32 [K part][T][pitch], k_parts.h */
    SCRATCH_TASK_BLOCKS,
    SCRATCH_TASKS, /* struct task */
    SCRATCH_TASK_COUNT,
    SCRATCH_TASK_ROWS,
    SCRATCH_HANDED_SUMS, /* of experts' products: sums that go from block to block, and flags */
    SCRATCH_HANDED_FLAGS,
    SCRATCH_ROUND_X, /* of moe_ep: [rows of a round][D], and their experts, of moe's rows too where
                        experts are whole, and weights */
    SCRATCH_ROUND_EXPERTS,
    SCRATCH_ROUND_WEIGHTS,
    SCRATCH_SAMPLE_COUNT,  /* u32 [rows][V] */
    SCRATCH_SAMPLE_SHAPED, /* f32 [rows][V] */
    SCRATCH_SAMPLE_PARTS,  /* [rows][SAMPLE_PARTS] of SAMPLE_PART_BYTES */
    SCRATCH_MTP_F,         /* f32 [T][2D], and bf16 */
    SCRATCH_MTP_H,
    SCRATCH_NET_PARTS, /* f32 [world][rows][D]: parts of rows, of ranks on several hosts; or bf16,
                          with the own ones behind them */
    SCRATCH_NET_DRAWS, /* [world][rows][NET_DRAW_WORDS] */
    SCRATCH_NET_ROWS,  /* of moe_ep and share_rows over hosts: [world][rows of a round][row] */
    SCRATCH_NET_SUMS,  /* f32 [2][world][rows of a round][D] */
    SCRATCH_N,
};

struct cuda_scratch_sizes {
    uint64_t bytes[SCRATCH_N];
    uint32_t prompt_rows; /* context rows of a pass over prompts, in whole tiles */
    uint32_t part_rows;   /* parts that the largest split of attention leaves apart */
};

/* cuda_scratch_measure - sizes for steps within the configuration's limits */
void cuda_scratch_measure(struct cuda_scratch_sizes *out, const struct backend_config *c);

/* cuda_expanded_end - rows of prompts at positions below are in expanded form */
int32_t cuda_expanded_end(const struct backend_config *c);

/* cuda_score_stride - floats from one token's index scores to the next's in a step whose longest
 * context is this */
uint32_t cuda_score_stride(const struct backend_config *c, uint32_t max_context);

/* cuda_scratch_name - "attention parts" */
const char *cuda_scratch_name(enum cuda_scratch part);

#endif
