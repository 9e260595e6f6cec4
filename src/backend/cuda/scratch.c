/* scratch.c - sizes and names of the operators' device memory */
#include "backend/cuda/scratch.h"

#include "backend/cuda/k_parts.h"
#include "backend/cuda/peers.h"
#include "base/assert.h"

/* Index scores; a step with more tokens is scored in pieces. */
enum { SCORE_BYTES = 256 << 20 };

/* Keys and values of prompts' contexts, and rows whose latents are taken together. */
enum { PROMPT_KV_BYTES = 512 << 20, PROMPT_ROWS = 64 << 10 };

static uint64_t div_up(uint64_t a, uint64_t b)
{
    return (a + b - 1) / b;
}

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static uint64_t most(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* Whether rows are kept as the products of the tensor cores take them. */
static bool is_fast(const struct backend_config *c)
{
    return c->act == ACT_FP8 || c->act == ACT_INT8;
}

static uint32_t part_rows(const struct backend_config *c)
{
    uint64_t rows = c->max_context;
    if (c->index_n_head) rows = least(rows, c->index_topk);
    if (c->n_head >= ATTEND_HEADS) {
        uint64_t most = ATTEND_HEADS_UNIT_BLOCKS_MAX / div_up(c->n_head, ATTEND_HEADS);
        uint32_t groups = (uint32_t)div_up(rows, ATTEND_GROUP);
        return (uint32_t)least(c->max_token, most) * attend_heads_units(groups);
    }
    const uint64_t n_unit = div_up(rows, (uint64_t)ATTEND_GROUP * ATTEND_UNIT);
    const uint64_t few = least(c->max_token, ATTEND_UNIT_TOKENS_MAX) * n_unit;
    const uint64_t many = ATTEND_UNIT_BLOCKS_MAX / div_up(c->n_head, ATTEND_HEAD_BLOCK);
    if (c->kv.type != KV_TYPE_FP8) return (uint32_t)few;
    return (uint32_t)most(few, least(c->max_token, many) * least(n_unit, ATTEND_UNIT_FEW));
}

/* A span keeps its choice, keys and positions, over its scores; the last may have few of them. */
uint32_t cuda_score_stride(const struct backend_config *c, uint32_t max_context)
{
    uint64_t n = max_context;
    if (max_context > TOPK_SPAN) n += 2 * (uint64_t)c->index_topk;
    return (uint32_t)(div_up(n, KV_PAGE_TOKENS) * KV_PAGE_TOKENS);
}

static void measure_attention(struct cuda_scratch_sizes *s, const struct backend_config *c)
{
    uint64_t t = c->max_token;
    uint64_t lora = c->q_lora_rank;
    uint64_t heads = c->n_head;
    uint64_t index_query = (uint64_t)c->index_n_head * KV_INDEX_DIM;
    uint64_t score_row = (uint64_t)cuda_score_stride(c, c->max_context) * 4;
    uint64_t score_rows = least(SCORE_BYTES / score_row + 1, t);
    s->part_rows = part_rows(c);
    s->bytes[SCRATCH_FRONT] = t * (lora + KV_INDEX_DIM + KV_ROW) * 4;
    s->bytes[SCRATCH_QUERY] = t * (heads * (c->nope_dim + KV_ROPE) + index_query) * 4;
    uint64_t parts = least(t, INDEX_HEAD_FEW_MAX) * div_up(c->hidden, INDEX_HEAD_CHUNK);
    s->bytes[SCRATCH_INDEX_HEAD] = most(t, parts) * c->index_n_head * 4;
    s->bytes[SCRATCH_QA_F] = t * lora * 4;
    s->bytes[SCRATCH_QA_Q] = t * lora;
    s->bytes[SCRATCH_QA_SCALE] = t * div_up(lora, FP8_GROUP) * 4;
    const uint32_t world = c->parallel.tp.size;
    const bool shares = world > 1 && c->n_host <= 1 && !c->parallel.is_slice;
    const uint64_t own = shares ? t / world + OWNED_RUN : 1;
    s->bytes[SCRATCH_OWN_BATCH] = own * 3 * 4;
    s->bytes[SCRATCH_OWN_QA_F] = own * lora * 4;
    s->bytes[SCRATCH_OWN_QA_Q] = own * lora;
    s->bytes[SCRATCH_OWN_QA_SCALE] = own * div_up(lora, FP8_GROUP) * 4;
    s->bytes[SCRATCH_OWN_INDEX_HEAD] = own * most(c->index_n_head, 1) * 4;
    s->bytes[SCRATCH_INDEX_SCORE] = c->index_n_head ? score_rows * score_row : 4;
    s->bytes[SCRATCH_PART_OUT] = s->part_rows * heads * KV_LATENT * 4;
    s->bytes[SCRATCH_PART_STAT] = s->part_rows * heads * 8;
    s->bytes[SCRATCH_HEADS_F] = t * heads * c->v_dim * 4;
    s->bytes[SCRATCH_HEADS_Q] = t * heads * c->v_dim;
    s->bytes[SCRATCH_HEADS_SCALE] = t * heads * 4;
}

int32_t cuda_expanded_end(const struct backend_config *c)
{
    if (!c->index_n_head) return INT32_MAX;
    const uint64_t topk = c->index_topk;
    const uint64_t n = c->n_head < ATTEND_HEADS ? EXPANDED_TOPK_FEW_HEADS : EXPANDED_TOPK;
    return (int32_t)most(topk, least(n * topk, EXPANDED_SELECTED_MAX));
}

/* The largest context always fits, with one head at least. */
static void measure_prompt(struct cuda_scratch_sizes *s, const struct backend_config *c)
{
    const bool has = is_fast(c) && c->kv.type != KV_TYPE_F32;
    const uint64_t context = least(c->max_context, (uint64_t)cuda_expanded_end(c));
    const uint64_t one = div_up(context, PROMPT_CONTEXT_TILE) * PROMPT_CONTEXT_TILE;
    const uint64_t rows = has ? least(c->max_request * one, most(one, PROMPT_ROWS)) : 0;
    const uint64_t head = (uint64_t)(c->nope_dim + c->v_dim) * 2;
    const uint64_t kv = least(rows * c->n_head * head, most(one * head, PROMPT_KV_BYTES));
    const uint64_t n_tile = div_up(c->max_token, PROMPT_CONTEXT_TILE) + PROMPT_REQUESTS_MAX;
    s->prompt_rows = (uint32_t)rows;
    s->bytes[SCRATCH_PROMPT_PLAN] =
        has ? (1 + rows / PROMPT_CONTEXT_TILE + n_tile) * PROMPT_ENTRY_BYTES : 4;
    s->bytes[SCRATCH_PROMPT_LATENT] = rows * KV_LATENT * 2 + 4;
    s->bytes[SCRATCH_PROMPT_ROPE] = rows * KV_ROPE * 2 + 4;
    s->bytes[SCRATCH_PROMPT_KV] = has ? kv : 4;
    const bool selects = has && c->index_n_head && context > c->index_topk;
    s->bytes[SCRATCH_PROMPT_MASK] = selects ? c->max_token * (one / 8) : 4;
}

/* Rows go to the ranks that have their experts. */
static bool is_by_rank(const struct backend_config *c)
{
    return c->n_expert > 0 && parallel_moves_rows(&c->parallel) &&
           parallel_n_peer(&c->parallel) > 1;
}

static void measure_feed_forward(struct cuda_scratch_sizes *s, const struct backend_config *c)
{
    uint64_t t = c->max_token;
    const uint64_t world = is_by_rank(c) ? parallel_n_peer(&c->parallel) : 0;
    const uint64_t round = world ? world * peer_ep_rows(c) : 0;
    const uint64_t round_listed = world ? world * peer_ep_rows_listed(c) : 0;
    const uint64_t routed = most(t, round); /* rows whose experts are computed together */
    const uint64_t most_routed = most(t, round_listed); /* listed: codes in between, bf16 behind */
    ASSERT(round_listed >= round && most_routed >= routed);
    const uint64_t rows_per_token = c->n_expert_used + (c->shared_inner ? 1 : 0);
    const uint64_t rows = c->n_expert ? routed * rows_per_token : 0;
    const uint64_t most_rows = c->n_expert ? most_routed * rows_per_token : 0;
    const uint64_t mid = most(t * most(c->dense_inner, c->shared_inner), rows * c->moe_inner);
    const uint64_t mid_codes = most(mid, most_rows * c->moe_inner);
    const uint64_t n_task = most_rows ? most_rows / TASK_ROWS_MIN + c->n_expert + 1 : 1;
    s->bytes[SCRATCH_MID] = mid * 2 * 4;
    s->bytes[SCRATCH_MID_F] = mid * 4;
    s->bytes[SCRATCH_MID_Q] = mid_codes;
    s->bytes[SCRATCH_MID_SCALE] = mid_codes / FP8_GROUP * 4 + 4;
    const uint64_t width = most(most(c->hidden, c->q_lora_rank), (uint64_t)c->n_head * c->v_dim);
    const uint64_t codes = c->act == ACT_INT8 ? most(routed * width, mid) : FP8_GROUP;
    s->bytes[SCRATCH_INT8] = codes;
    s->bytes[SCRATCH_INT8_SCALE] = codes / FP8_GROUP * 4 + 4;
    const uint64_t listed = most_rows * c->hidden / LISTED_SUMS_GROUP;
    const uint64_t sums =
        most(most(most_routed * c->hidden, most_rows * c->moe_inner) / INPUT_SUMS_GROUP,
             listed); /* of them at a time */
    s->bytes[SCRATCH_INPUT_SUMS] = (c->n_expert && c->act == ACT_FP8 ? sums : 0) * 4 + 4;
    s->bytes[SCRATCH_EXPERT_OUT] = c->hidden * most(rows * 4, most_rows * 2);
    s->bytes[SCRATCH_SHARED_OUT] = c->n_expert ? t * c->hidden * 4 : 4;
    s->bytes[SCRATCH_ROUTER_SCORE] =
        t * router_k_part_count(c->hidden) * router_score_pitch(c->n_expert) * 4;
    s->bytes[SCRATCH_TASK_BLOCKS] = div_up(most_routed, ROUTER_MAP_TOKENS) * (c->n_expert + 1) * 4;
    s->bytes[SCRATCH_TASKS] = n_task * TASK_BYTES;
    s->bytes[SCRATCH_TASK_COUNT] = 16; /* of tasks, what feeds them, of entries */
    s->bytes[SCRATCH_TASK_ROWS] = (most_rows + 1) * 4;
    s->bytes[SCRATCH_HANDED_SUMS] = c->n_expert ? HANDED_SUM_BYTES : 4;
    s->bytes[SCRATCH_HANDED_FLAGS] = (uint64_t)HANDED_BLOCKS_MAX * HANDED_FLAGS * 4;
    s->bytes[SCRATCH_ROUND_X] =
        most(round * (c->hidden + 4) * 4, round_listed * (c->hidden + c->hidden / FP8_GROUP * 4));
    s->bytes[SCRATCH_ROUND_EXPERTS] = most_routed * rows_per_token * 4;
    s->bytes[SCRATCH_ROUND_WEIGHTS] = round_listed * c->n_expert_used * 4;
}

/* What NCCL takes by itself: buffers of the ways to each rank, and its own. Of two ranks on H200
 * 454 MiB over sockets, 1018 over NVLink. */
enum { NET_WAY_BYTES = 64 << 20, NET_OWN_BYTES = 1 << 30 };

/* Of ranks on several hosts: parts, of few rows all, of many those of a rank's run; rows of a round
 * of moe_ep, and their sums from here and from others. */
static void measure_net(struct cuda_scratch_sizes *s, const struct backend_config *c)
{
    const uint64_t world = c->parallel.tp.size;
    const uint64_t few = peer_one_shot_rows((uint32_t)world), run = div_up(NET_ROWS, world);
    const bool has = c->n_host > 1 && world > 1;
    struct peer_layout ep = {0};
    if (c->n_host > 1 && is_by_rank(c)) peer_layout_make(&ep, c, PEERS_OF_EXPERTS);
    s->bytes[SCRATCH_NET_ROWS] = ep.ep_turn_units * PEER_UNIT + 4;
    s->bytes[SCRATCH_NET_SUMS] = 2 * ep.ep_sum_bytes + 4;
    s->bytes[SCRATCH_NET_PARTS] = has ? world * most(few, run) * c->hidden * 4 : 4;
    s->bytes[SCRATCH_NET_DRAWS] =
        has ? world * most(c->max_request, c->max_logit_row) * NET_DRAW_WORDS * 4 : 4;
}

void cuda_scratch_measure(struct cuda_scratch_sizes *out, const struct backend_config *c)
{
    uint64_t n_sample = most(c->max_request, c->max_logit_row);
    measure_attention(out, c);
    measure_prompt(out, c);
    measure_feed_forward(out, c);
    measure_net(out, c);
    out->bytes[SCRATCH_SAMPLE_COUNT] = n_sample * c->n_vocab * 4;
    out->bytes[SCRATCH_SAMPLE_SHAPED] = n_sample * c->n_vocab * 4;
    out->bytes[SCRATCH_SAMPLE_PARTS] = n_sample * SAMPLE_PARTS * SAMPLE_PART_BYTES;
    out->bytes[SCRATCH_MTP_F] = (uint64_t)c->max_token * c->hidden * 2 * 4;
    out->bytes[SCRATCH_MTP_H] = (uint64_t)c->max_token * c->hidden * 2 * 2;
}

const char *cuda_scratch_name(enum cuda_scratch part)
{
    static const char *const names[SCRATCH_N] = {
        [SCRATCH_FRONT] = "front",
        [SCRATCH_QUERY] = "query",
        [SCRATCH_INDEX_HEAD] = "index head",
        [SCRATCH_QA_F] = "query latent",
        [SCRATCH_QA_Q] = "query latent codes",
        [SCRATCH_QA_SCALE] = "query latent scales",
        [SCRATCH_OWN_BATCH] = "own rows",
        [SCRATCH_OWN_QA_F] = "own query latent",
        [SCRATCH_OWN_QA_Q] = "own query latent codes",
        [SCRATCH_OWN_QA_SCALE] = "own query latent scales",
        [SCRATCH_OWN_INDEX_HEAD] = "own index head",
        [SCRATCH_INDEX_SCORE] = "index scores",
        [SCRATCH_PART_OUT] = "attention parts",
        [SCRATCH_PART_STAT] = "attention statistics",
        [SCRATCH_PROMPT_PLAN] = "prompt plan",
        [SCRATCH_PROMPT_LATENT] = "prompt latents",
        [SCRATCH_PROMPT_ROPE] = "prompt rotary keys",
        [SCRATCH_PROMPT_KV] = "prompt keys and values",
        [SCRATCH_PROMPT_MASK] = "prompt masks",
        [SCRATCH_HEADS_F] = "heads",
        [SCRATCH_HEADS_Q] = "heads codes",
        [SCRATCH_HEADS_SCALE] = "heads scales",
        [SCRATCH_MID] = "ffn gate and up",
        [SCRATCH_MID_F] = "ffn product",
        [SCRATCH_MID_Q] = "ffn codes",
        [SCRATCH_MID_SCALE] = "ffn scales",
        [SCRATCH_INT8] = "int8 inputs",
        [SCRATCH_INT8_SCALE] = "int8 input scales",
        [SCRATCH_INPUT_SUMS] = "sums of experts' inputs",
        [SCRATCH_EXPERT_OUT] = "expert outputs",
        [SCRATCH_SHARED_OUT] = "shared expert output",
        [SCRATCH_ROUTER_SCORE] = "router scores",
        [SCRATCH_TASK_BLOCKS] = "expert counts",
        [SCRATCH_TASKS] = "expert tasks",
        [SCRATCH_TASK_COUNT] = "expert task count",
        [SCRATCH_TASK_ROWS] = "expert rows",
        [SCRATCH_HANDED_SUMS] = "experts' sums on their way",
        [SCRATCH_HANDED_FLAGS] = "experts' sums that are there",
        [SCRATCH_ROUND_X] = "rows of all ranks",
        [SCRATCH_ROUND_EXPERTS] = "experts of all ranks' rows",
        [SCRATCH_ROUND_WEIGHTS] = "weights of all ranks' rows",
        [SCRATCH_SAMPLE_COUNT] = "token counts",
        [SCRATCH_SAMPLE_SHAPED] = "raw logits",
        [SCRATCH_SAMPLE_PARTS] = "draws",
        [SCRATCH_MTP_F] = "draft input",
        [SCRATCH_MTP_H] = "draft input, bf16",
        [SCRATCH_NET_PARTS] = "parts of all ranks",
        [SCRATCH_NET_DRAWS] = "draws of all ranks",
        [SCRATCH_NET_ROWS] = "rows of all hosts' ranks",
        [SCRATCH_NET_SUMS] = "sums of all hosts' ranks",
    };
    ASSERT(part < SCRATCH_N);
    return names[part];
}

/* NORMED rows exist twice (input of layers, of the head), with bf16 values, codes and scales beside
 * the f32 ones on the fast path. QUERY and LATENT rows stay below 4 bytes a value. */
uint64_t backend_cuda_extra_bytes(const struct backend_config *c)
{
    struct cuda_scratch_sizes s;
    uint64_t n = 0;
    cuda_scratch_measure(&s, c);
    for (int i = 0; i < SCRATCH_N; i++) n += s.bytes[i];
    if (is_fast(c)) n += 2 * (uint64_t)c->max_token * (3 * c->hidden + c->hidden / 32);
    const uint32_t world = parallel_n_peer(&c->parallel);
    if (c->n_host > 1) return n + NET_OWN_BYTES + (uint64_t)(world - 1) * NET_WAY_BYTES;
    for (int group = PEERS_OF_LANE; group <= PEERS_OF_EXPERTS && !c->parallel.is_slice; group++) {
        struct peer_layout peers;
        if (peer_group_size(c, (enum peer_group)group) < 2) continue;
        peer_layout_make(&peers, c, (enum peer_group)group);
        n += peers.n_bytes;
    }
    return n;
}
