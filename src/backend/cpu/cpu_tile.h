/* cpu_tile.h - AMX: eight tile registers of up to 16 lines of 64 bytes */
#ifndef FATHOM_BACKEND_CPU_TILE_H
#define FATHOM_BACKEND_CPU_TILE_H

#include <stdint.h>

#include "base/assert.h"

enum { TILE = 16 /* lines of a tile; a line has 64 bytes, or 16 sums */ };

struct tile_config {
    uint8_t palette;
    uint8_t start_row;
    uint8_t reserved[14];
    uint16_t line_bytes[16];
    uint8_t n_line[16];
};

/* tile_configure - tiles 0 .. 5 have `height` lines, 6 and 7 all of them; until tile_release */
static inline void tile_configure(uint32_t height)
{
    struct tile_config c = {.palette = 1};
    DCHECK(height >= 1 && height <= TILE);
    for (int i = 0; i < 8; i++) {
        c.line_bytes[i] = 64;
        c.n_line[i] = i < 6 ? (uint8_t)height : TILE;
    }
    __asm__ volatile("ldtilecfg %0" : : "m"(c));
}

static inline void tile_release(void)
{
    __asm__ volatile("tilerelease");
}

/* The registers can be named in the text of an instruction only. */
#define TILE_LOAD(tile, at, stride)                                                                \
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #tile : : "r"(at), "r"(stride) : "memory")
#define TILE_STORE(tile, at, stride)                                                               \
    __asm__ volatile("tilestored %%tmm" #tile ", (%0,%1,1)" : : "r"(at), "r"(stride) : "memory")
#define TILE_ZERO(tile) __asm__ volatile("tilezero %tmm" #tile)
#define TILE_OP(name, sum, x, weight)                                                              \
    __asm__ volatile(name " %tmm" #weight ", %tmm" #x ", %tmm" #sum)

/* The rows of x in tiles of one height: the last begins that many before the end, and what it
 * computes twice is not stored twice. Tiles of unlike height would need a configuration each. */
struct tile_rows {
    uint32_t n_row;
    uint32_t n_tile;
    uint32_t height;
};

static inline struct tile_rows tile_rows_of(uint32_t n_row)
{
    struct tile_rows r = {.n_row = n_row, .n_tile = (n_row + TILE - 1) / TILE};
    r.height = (n_row + r.n_tile - 1) / r.n_tile;
    return r;
}

static inline uint32_t tile_first_row(const struct tile_rows *r, uint32_t tile)
{
    DCHECK(tile < r->n_tile);
    return tile + 1 < r->n_tile ? tile * r->height : r->n_row - r->height;
}

#endif
