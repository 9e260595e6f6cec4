/* peers.h - the memory that ranks of one host share: one arena a rank, the same offsets on all
 *
 * Plain C and in every build, so that `fathom plan` sizes a GPU without having one.
 *
 * Every receive buffer is there twice, by turns of its epoch, and is written by one rank alone. No
 * rank ends a collective before all have begun it, so whoever begins call n + 1 of a buffer knows
 * that call n - 1 has ended everywhere: two are enough. */
#ifndef FATHOM_BACKEND_CUDA_PEERS_H
#define FATHOM_BACKEND_CUDA_PEERS_H

#include <stdbool.h>
#include <stdint.h>

#include "backend/backend.h"

enum {
    PEERS_MAX = 8,
    ONE_SHOT_ROWS = 64,   /* at most: see peer_one_shot_rows */
    TWO_SHOT_ROWS = 4096, /* of a launch */
    OWNED_BY_ONE = 64,    /* from so many rows on eight neighbours have one owner */
    OWNED_RUN = 8,
    OWNED_MIN = 64,     /* rows of a step with prompts that have owners throughout the model */
    LOGIT_ROWS = 8,     /* that a rank gets of a launch */
    LOGIT_CHUNK = 1024, /* columns of a block */
    SPREAD_ARRAYS_MAX = 8,
    EP_ROWS_MIN = 64,     /* rows of a rank in a round of moe_ep, or all that a step may have */
    EP_ROUND_ROWS = 8192, /* of all ranks in a round of listed rows */
    EP_ROWS_MAX = 65535,  /* of all ranks in any round: a grid takes no more in y */
    PEER_UNIT = 16,       /* bytes of a store to a peer */
    PEER_BOUND_MS = 2000, /* of a wait, where no other is given */
    ROW_PARTS_MAX = 16,   /* blocks that sum a row together; warps of a row */
};

/* Ranks that a rank is joined with: those of its lane, which share rows; and, where experts are
 * whole, all ranks, to which rows go. A rank has an arena for either. */
enum peer_group { PEERS_OF_LANE, PEERS_OF_EXPERTS };

/* What an arena holds: offsets in bytes. Of a lane, one_shot to n_epoch; of experts, the ep_ ones
 * and those of spread rows. */
struct peer_layout {
    uint32_t world, hidden, n_vocab;
    uint32_t spread_units;  /* PEER_UNITs of a spread row at most */
    uint32_t one_shot_rows; /* there is room for so many that are summed by every rank */
    uint64_t one_shot;      /* f32, or bf16 in the first half of a row's place,
                               [2][one_shot_rows][world][hidden] */
    uint64_t part;          /* likewise [2][TWO_SHOT_ROWS / world][world][hidden] */
    uint64_t sum;           /* f32 [2][TWO_SHOT_ROWS][hidden] */
    uint64_t logits;        /* f32 [2][LOGIT_ROWS][n_vocab] */
    uint64_t spread;        /* [2][TWO_SHOT_ROWS][spread_units] of PEER_UNIT; of experts' arenas
                               too, as the next two: rows that share_rows brings */
    uint64_t flag;          /* [2][TWO_SHOT_ROWS] of PEER_UNIT */
    uint64_t meet;          /* [2][world] of PEER_UNIT */
    uint64_t armed_end;     /* what begins armed ends here: one_shot to logits, or ep_sum */
    uint64_t squares;       /* {f32, u32 epoch + 1} [one_shot_rows + TWO_SHOT_ROWS][ROW_PARTS_MAX],
                               this rank's alone */
    uint64_t epochs;        /* u32 [n_epoch], likewise; the first of ROW_PARTS_MAX a row: */
    uint32_t epoch_spread, epoch_meet, epoch_logits, n_epoch;
    uint32_t ep_rows;        /* of a rank in a round */
    uint32_t ep_rows_listed; /* likewise, in a list: codes to the experts, bf16 from them */
    uint64_t ep_turn_units;  /* PEER_UNITs of a round's rows that go to their experts */
    uint64_t ep_sum_bytes;
    uint64_t ep_sum;  /* f32 or bf16 [rows of a round][world][hidden]: sums of own rows, by rank */
    uint64_t ep_row;  /* [2][ep_turn_units] of PEER_UNIT: [world][rows of a round][a row's units] */
    uint64_t ep_flag; /* [2][world][ep_rows_listed] of PEER_UNIT */
    uint32_t epoch_ep;
    uint64_t waits; /* struct rank_waits */
    uint64_t lost;  /* u32 */
    uint64_t n_bytes;
};

/* Rows that are summed in one shot: what a rank sends to each other one is then less than what the
 * second way of two shots costs. Two ranks send no more in one shot than in two. */
static inline uint32_t peer_one_shot_rows(uint32_t world)
{
    return world == 2 ? ONE_SHOT_ROWS : world == 4 ? 32 : 8;
}

/* Epochs are of a row's buffer, or of a block's part of it, and are counted by the block that uses
 * it last in a launch. Those of one_shot come first. */
static inline uint32_t peer_logit_chunks(const struct peer_layout *l)
{
    return (l->n_vocab / l->world + LOGIT_CHUNK - 1) / LOGIT_CHUNK;
}

/* The widest row that is spread: what is said of a row that is drawn; of activations, with a route;
 * what mla_front makes of a row; or the rows selected for it. */
static inline uint32_t peer_spread_bytes(const struct backend_config *c)
{
    const uint32_t drawn = (3 + 2 * SAMPLE_TOP_MAX) * 4;
    const uint32_t normed = c->hidden * 4 + c->n_expert_used * 8;
    const uint32_t front = c->q_lora_rank * 6 + (KV_ROW + KV_INDEX_DIM + c->index_n_head) * 4;
    const uint32_t select = (1 + c->index_topk) * 4;
    uint32_t wide = normed > front ? normed : front;
    wide = wide > select ? wide : select;
    return (wide > drawn ? wide : drawn) + PEER_UNIT;
}

/* peer_ep_rows - rows of a rank in a round of moe_ep: the rounds' rows of all ranks are about as
 * many as a step has, which is what the experts' scratch has room for */
static inline uint32_t peer_ep_rows(const struct backend_config *c)
{
    const uint32_t world = parallel_n_peer(&c->parallel);
    const uint32_t least = c->max_token < EP_ROWS_MIN ? c->max_token : EP_ROWS_MIN;
    const uint32_t even = (c->max_token + world - 1) / world, most = EP_ROWS_MAX / world;
    const uint32_t n_row = even > least ? even : least;
    return n_row < most ? n_row : most;
}

/* peer_ep_rows_listed - likewise where rows are listed, which need less room: up to EP_ROUND_ROWS
 * of all ranks, so that steps of few tokens do not read the experts once a round */
static inline uint32_t peer_ep_rows_listed(const struct backend_config *c)
{
    const uint32_t n_row = peer_ep_rows(c);
    const uint32_t even = EP_ROUND_ROWS / parallel_n_peer(&c->parallel);
    const uint32_t most = even < c->max_token ? even : c->max_token;
    return c->act == ACT_FP8 && most > n_row ? most : n_row;
}

/* PEER_UNITs of a row that goes to its experts: n_byte of input in two arrays, and its route. */
static inline uint64_t peer_ep_units(const struct backend_config *c, uint64_t n_byte)
{
    const uint64_t route_units = (c->n_expert_used * 4 + PEER_UNIT - 1) / PEER_UNIT;
    return n_byte / PEER_UNIT + 2 + 2 * route_units;
}

static inline uint64_t peer_larger(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* Rows that go to all, from `at` on, and the epochs behind those that there are. */
static inline uint64_t peer_lay_out_spread(struct peer_layout *l, uint32_t n_byte, uint64_t at)
{
    l->spread_units = n_byte / PEER_UNIT + SPREAD_ARRAYS_MAX;
    l->spread = at;
    at += (uint64_t)2 * TWO_SHOT_ROWS * l->spread_units * PEER_UNIT;
    l->flag = at;
    at += (uint64_t)2 * TWO_SHOT_ROWS * PEER_UNIT;
    l->meet = at;
    at += (uint64_t)2 * l->world * PEER_UNIT;
    l->epoch_spread = l->n_epoch;
    l->epoch_meet = l->epoch_spread + TWO_SHOT_ROWS;
    l->n_epoch = l->epoch_meet + 1;
    return at;
}

/* A row of a layer's cache with its index key. */
static inline uint32_t peer_cache_row_bytes(const struct backend_config *c)
{
    const uint32_t key = c->kv.type == KV_TYPE_F32 ? KV_INDEX_ROW_BYTES_F32 : KV_INDEX_DIM + 4;
    return c->kv.row_bytes + (c->kv.has_index ? key : 0);
}

/* Of ranks that experts are whole on. Lanes of one host share rows over it too. */
static inline uint64_t peer_lay_out_ep(struct peer_layout *l, const struct backend_config *c)
{
    const uint64_t world = l->world, n_row = peer_ep_rows(c), n_listed = peer_ep_rows_listed(c);
    const uint64_t hidden = c->hidden, units = peer_ep_units(c, hidden * 4);
    const uint64_t units_listed = peer_ep_units(c, hidden + hidden / 128 * 4);
    uint64_t at = 0;
    l->ep_rows = (uint32_t)n_row;
    l->ep_rows_listed = (uint32_t)n_listed;
    l->ep_turn_units = world * peer_larger(n_row * units, n_listed * units_listed);
    l->ep_sum_bytes = world * hidden * peer_larger(n_row * 4, n_listed * 2);
    l->ep_sum = at;
    at += l->ep_sum_bytes;
    l->armed_end = at;
    l->ep_row = at;
    at += 2 * l->ep_turn_units * PEER_UNIT;
    l->ep_flag = at;
    at += 2 * world * n_listed * PEER_UNIT;
    l->epoch_ep = 0;
    l->n_epoch = 1;
    if (c->n_host > 1) return at;
    return peer_lay_out_spread(l, peer_cache_row_bytes(c), at);
}

/* Of the ranks of a lane. */
static inline uint64_t peer_lay_out_sums(struct peer_layout *l, const struct backend_config *c)
{
    const uint32_t world = l->world, n_vocab = c->n_vocab;
    const uint64_t row = (uint64_t)c->hidden * 4;
    uint64_t at = 0;
    l->one_shot_rows = peer_one_shot_rows(world);
    l->one_shot = at;
    at += 2 * l->one_shot_rows * world * row;
    l->part = at;
    at += 2 * TWO_SHOT_ROWS * row;
    l->sum = at;
    at += 2 * TWO_SHOT_ROWS * row;
    l->logits = at;
    at += (uint64_t)2 * LOGIT_ROWS * n_vocab * 4;
    l->armed_end = at;
    l->n_epoch = (l->one_shot_rows + TWO_SHOT_ROWS) * ROW_PARTS_MAX;
    at = peer_lay_out_spread(l, peer_spread_bytes(c), at);
    l->squares = at;
    at += (uint64_t)(l->one_shot_rows + TWO_SHOT_ROWS) * ROW_PARTS_MAX * 8;
    l->epoch_logits = l->n_epoch;
    l->n_epoch = l->epoch_logits + world * LOGIT_ROWS * peer_logit_chunks(l);
    return at;
}

/* peer_group_size - ranks of a group; 1: this rank is not joined with others in it */
static inline uint32_t peer_group_size(const struct backend_config *c, enum peer_group group)
{
    if (group == PEERS_OF_LANE) return c->parallel.tp.size;
    return parallel_moves_rows(&c->parallel) ? parallel_n_peer(&c->parallel) : 1;
}

/* peer_layout_make - Needs a hidden width that is a multiple of 4. An arena of it is for 2, 4 or 8
 * ranks, and of a lane for a vocabulary of a multiple of 4 * world */
static inline void peer_layout_make(struct peer_layout *l, const struct backend_config *c,
                                    enum peer_group group)
{
    const struct peer_layout zero = {0};
    *l = zero;
    l->world = peer_group_size(c, group);
    l->hidden = c->hidden;
    l->n_vocab = c->n_vocab;
    uint64_t at = group == PEERS_OF_LANE ? peer_lay_out_sums(l, c) : peer_lay_out_ep(l, c);
    l->epochs = at;
    at += (uint64_t)l->n_epoch * 4;
    at = (at + PEER_UNIT - 1) / PEER_UNIT * PEER_UNIT;
    l->waits = at;
    at += sizeof(struct rank_waits);
    l->lost = at;
    l->n_bytes = at + 4;
}

/* What a rank's kernels tell the host: pinned memory. */
struct peer_report {
    volatile uint64_t n_told;  /* times that waits were told, at the end of a step's draws */
    volatile uint64_t n, ns;   /* struct rank_waits */
    volatile uint32_t is_lost; /* it has waited too long, for: */
    uint32_t op;               /* enum peer_op */
    uint32_t layer, epoch, row;
    uint32_t peer; /* among all peers */
};

enum peer_op { PEER_REDUCE_NORM, PEER_SPREAD, PEER_LOGITS, PEER_MOE_EP, PEER_SHARE };

/* What a kernel knows of them, by value. */
struct peers {
    char *base[PEERS_MAX]; /* arenas, in rank order */
    uint32_t rank, world;
    uint32_t peer0;   /* number among all peers of the one that is rank 0 here */
    uint32_t *epochs; /* in this rank's arena, as the next two; these are one for both groups */
    uint32_t *lost;
    struct rank_waits *waits;
    struct peer_report *report;
    uint64_t bound_ns;   /* of a wait */
    uint32_t n_one_shot; /* rows of a launch that are summed by every rank, at most */
    struct peer_layout at;
};

#endif
