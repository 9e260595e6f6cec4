/* host_share.c - rows of a cache from lane to lane, copied or packed */
#include "backend/host_share.h"

#include <string.h>

#include "backend/share_round.h"
#include "base/assert.h"
#include "base/fail.h"

/* Where a position's latent row and index key lie in a cache. */
struct cache_row {
    char *latent, *key, *scale;
};

/* Bytes of an index key, and of its scale; 0: there is none. */
static size_t key_bytes(const struct kv_layout *l)
{
    if (!l->has_index) return 0;
    return l->type == KV_TYPE_F32 ? KV_INDEX_ROW_BYTES_F32 : KV_INDEX_DIM;
}

static size_t scale_bytes(const struct kv_layout *l)
{
    return l->has_index && l->type != KV_TYPE_F32 ? sizeof(float) : 0;
}

static struct cache_row cache_row_of(const struct share_rows_args *a, uint32_t position)
{
    const struct kv_layout *l = &a->kv->layout;
    const uint32_t page = (uint32_t)a->pages[position / KV_PAGE_TOKENS];
    const uint32_t i = position % KV_PAGE_TOKENS;
    ASSERT(page < a->kv->n_page);
    char *record = (char *)a->kv->base + page * l->page_bytes;
    char *index = record + kv_index_offset(l, a->layer);
    return (struct cache_row){.latent =
                                  record + kv_latent_offset(l, a->layer) + (size_t)i * l->row_bytes,
                              .key = index + i * key_bytes(l),
                              .scale = index + KV_INDEX_SCALES_OFFSET + (size_t)i * sizeof(float)};
}

static void copy_cache_row(const struct kv_layout *l, const struct cache_row *to,
                           const struct cache_row *from)
{
    memcpy(to->latent, from->latent, l->row_bytes);
    memcpy(to->key, from->key, key_bytes(l));
    memcpy(to->scale, from->scale, scale_bytes(l));
}

/* ---- within a process ----------------------------------------------------------------------- */

static fathom_err copy_rows(struct host_rank *r, uint32_t n_share, const struct share_rows_args *a)
{
    const struct batch_share *s = a->share;
    const struct host_place place = {.op = "share_rows", .layer = a->layer, .n_row = s->n_row};
    const void *const *all;
    TRY(host_meet(r, &place, a, &all));
    uint32_t position = s->first;
    for (uint32_t i = 0; i < s->n_segment; i++) {
        const uint32_t end = position + s->segments[i].n_row;
        const uint32_t rank = s->segments[i].lane * n_share + r->rank % n_share;
        ASSERT(rank < r->n_rank);
        for (; position < end && rank != r->rank; position++) {
            const struct cache_row to = cache_row_of(a, position);
            const struct cache_row from = cache_row_of(all[rank], position);
            copy_cache_row(&a->kv->layout, &to, &from);
        }
        position = end;
    }
    return host_part(r);
}

/* ---- over several processes ----------------------------------------------------------------- */

/* A round (share_round.h): of a lane's rows each of its ranks packs a run. */
struct far_rows {
    struct host_rank *rank;
    const struct share_rows_args *a;
    uint32_t n_share;
    uint32_t n_run;   /* rows that a rank packs at most */
    size_t row_bytes; /* packed */
    uint32_t row0;    /* of each lane's rows the first */
};

static struct cache_row packed_row(const struct kv_layout *l, char *row)
{
    return (struct cache_row){
        .latent = row, .key = row + l->row_bytes, .scale = row + l->row_bytes + key_bytes(l)};
}

/* Row i of a lane in this round: of own rows those that this rank packs, into `own`; own NULL:
 * another lane's, out of what its ranks show. */
static void move_row(const struct far_rows *f, uint32_t lane, uint32_t i, uint32_t position,
                     char *own, const void *const *all)
{
    const struct kv_layout *l = &f->a->kv->layout;
    const uint32_t rank = lane * f->n_share + i / f->n_run;
    const size_t at = i % f->n_run * f->row_bytes;
    ASSERT(rank < f->rank->n_rank);
    if (own && rank != f->rank->rank) return;
    const struct cache_row here = cache_row_of(f->a, position);
    const struct cache_row packed = packed_row(l, own ? own + at : (char *)all[rank] + at);
    if (own)
        copy_cache_row(l, &packed, &here);
    else
        copy_cache_row(l, &here, &packed);
}

/* The round's rows of this rank's lane, or those of the others. */
static void move_rows(const struct far_rows *f, char *own, const void *const *all)
{
    struct share_piece pieces[SHARE_SEGMENTS_MAX];
    const uint32_t own_lane = f->rank->rank / f->n_share;
    ASSERT((own == NULL) != (all == NULL));
    const uint32_t n = share_round_pieces(pieces, f->a->share, f->row0, f->n_run * f->n_share);
    ASSERT(n <= SHARE_SEGMENTS_MAX);
    for (uint32_t k = 0; k < n; k++) {
        const struct share_piece *p = &pieces[k];
        if ((p->lane == own_lane) != (own != NULL)) continue;
        for (uint32_t i = 0; i < p->n_row; i++)
            move_row(f, p->lane, p->row + i, p->position + i, own, all);
    }
}

/* Bytes that each rank shows in this round; returns the most, 0 when no lane has rows any more. */
static size_t count_bytes(const struct far_rows *f, size_t *sizes)
{
    size_t most = 0;
    ASSERT(f->rank->n_rank <= PARALLEL_RANKS_MAX);
    for (uint32_t r = 0; r < f->rank->n_rank; r++) {
        const uint32_t row0 = f->row0 + r % f->n_share * f->n_run;
        sizes[r] = share_round_rows(f->a->share, r / f->n_share, row0, f->n_run) * f->row_bytes;
        if (sizes[r] > most) most = sizes[r];
    }
    return most;
}

static fathom_err swap_rows(struct host_rank *r, const struct host_net *net, uint32_t n_share,
                            const struct share_rows_args *a)
{
    const struct kv_layout *l = &a->kv->layout;
    const size_t row_bytes = l->row_bytes + key_bytes(l) + scale_bytes(l);
    const size_t n_run = net->pack_bytes / row_bytes;
    size_t sizes[PARALLEL_RANKS_MAX];
    char *own = (char *)net->packs + (r->rank - net->first) * net->pack_bytes;
    ASSERT(n_run >= 1 && r->n_rank % n_share == 0);
    struct far_rows f = {
        .rank = r,
        .a = a,
        .n_share = n_share,
        .n_run = n_run < a->share->n_row ? (uint32_t)n_run : a->share->n_row,
        .row_bytes = row_bytes,
    };
    for (size_t most; (most = count_bytes(&f, sizes)) > 0; f.row0 += f.n_run * n_share) {
        const struct host_place place = {.op = "share_rows",
                                         .layer = a->layer,
                                         .n_row = a->share->n_row,
                                         .n_bytes = most,
                                         .sizes = sizes};
        const void *const *all;
        move_rows(&f, own, NULL);
        TRY(host_meet(r, &place, own, &all));
        move_rows(&f, NULL, all);
        TRY(host_part(r));
    }
    return FATHOM_OK;
}

fathom_err host_share_rows(struct host_rank *r, uint32_t n_share, const struct share_rows_args *a)
{
    const struct host_net *net = host_rank_net(r);
    ASSERT(n_share >= 1 && a->share->n_row >= 1);
    if (!r->group) return FATHOM_OK; /* one rank has all rows */
    return net ? swap_rows(r, net, n_share, a) : copy_rows(r, n_share, a);
}
