/* share_round.h - which rows of share_rows (op_attn.h) travel together between ranks without memory
 * in common
 *
 * A lane's rows are counted in the order of positions, and go in rounds of so many of each lane. So
 * lanes with runs of one length send all at once, in as few rounds as there is room for. */
#ifndef FATHOM_BACKEND_SHARE_ROUND_H
#define FATHOM_BACKEND_SHARE_ROUND_H

#include "backend/batch.h"

/* Neighbours: of a lane's rows in the round, and of positions. */
struct share_piece {
    uint32_t lane;
    uint32_t row; /* the round's first of the lane has 0 */
    uint32_t position;
    uint32_t n_row; /* >= 1 */
};

/* share_round_rows - of a lane, rows [row0, row0 + n_run): how many there are */
static inline uint32_t share_round_rows(const struct batch_share *s, uint32_t lane, uint32_t row0,
                                        uint32_t n_run)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->n_segment; i++) {
        if (s->segments[i].lane == lane) n += s->segments[i].n_row;
    }
    const uint32_t left = n > row0 ? n - row0 : 0;
    return left < n_run ? left : n_run;
}

/* share_round_pieces - rows [row0, row0 + n_run) of all lanes, by position; returns how many pieces
 */
static inline uint32_t share_round_pieces(struct share_piece out[SHARE_SEGMENTS_MAX],
                                          const struct batch_share *s, uint32_t row0,
                                          uint32_t n_run)
{
    uint32_t before[PARALLEL_RANKS_MAX] = {0}; /* rows of a lane */
    uint32_t position = s->first, n = 0;
    for (uint32_t i = 0; i < s->n_segment; i++) {
        const struct share_segment *of = &s->segments[i];
        const uint32_t begin = before[of->lane], end = begin + of->n_row;
        const uint32_t first = begin > row0 ? begin : row0;
        const uint32_t last = end < row0 + n_run ? end : row0 + n_run;
        if (first < last) {
            out[n].lane = of->lane;
            out[n].row = first - row0;
            out[n].position = position + (first - begin);
            out[n++].n_row = last - first;
        }
        before[of->lane] = end;
        position += of->n_row;
    }
    return n;
}

#endif
