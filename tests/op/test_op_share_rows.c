/* test_op_share_rows.c - rows of a request's cache, from the lanes that have them to all others
 *
 * 2, 4 and 8 ranks, a thread each, have caches of random bytes and pages of a request in an order
 * of their own. After some calls, of other layers, positions and segments each, every byte of every
 * cache is what copying row by row makes of it: of lanes of several ranks, from each one's like.
 * Ranks of two and four processes reach each other by a net alone, which has little room.
 */
#include "op/harness.h"

#include <dlfcn.h>
#include <pthread.h>
#include <string.h>

#include "backend/host_group.h"
#include "base/mem.h"
#include "op/ranks_main.h"

enum { WORLD_MAX = 8, CALLS = 7, SPARE_PAGES = 2, PACK_BYTES = 60000 };

struct call {
    uint32_t layer;
    struct batch_share share;
};

struct share_case {
    struct backend_config c;
    uint32_t n_context, n_call;
    struct call calls[CALLS];
};

struct rank {
    struct rig rig;
    const struct share_case *k;
    int32_t *table; /* [pages of n_context], and on the device: */
    int32_t *pages;
    uint8_t *image; /* what the cache is to be */
    fathom_err err;
    pthread_t thread;
};

/* A process: what its ranks show is there for the others when all have come, until all have what
 * they want of it. */
struct process {
    struct host_net net;   /* first member */
    unsigned char *theirs; /* [world][PACK_BYTES] */
};

static struct rank ranks[WORLD_MAX];
static struct process processes[WORLD_MAX];
static uint32_t n_process = 1;
static const void *shown_by_all[WORLD_MAX];
static pthread_barrier_t all_processes;
static uint32_t n_share = 1;           /* ranks of a lane */
static uint32_t world_max = WORLD_MAX; /* as many as there are devices for */

static uint32_t n_page_of(const struct share_case *k)
{
    return (k->n_context + KV_PAGE_TOKENS - 1) / KV_PAGE_TOKENS;
}

static fathom_err swap(struct host_net *net, const struct host_place *place, const void **shown,
                       char *fault, size_t n_fault)
{
    struct process *p = (struct process *)net;
    (void)fault;
    (void)n_fault;
    for (uint32_t r = net->first; r < net->first + net->n_local; r++) shown_by_all[r] = shown[r];
    pthread_barrier_wait(&all_processes);
    for (uint32_t r = 0; r < net->n_rank; r++) {
        const size_t n = place->sizes ? place->sizes[r] : place->n_bytes;
        if (r >= net->first && r < net->first + net->n_local) continue;
        if (n > place->n_bytes || place->n_bytes > PACK_BYTES || place->starts)
            return FATHOM_EFORMAT;
        memset(p->theirs + r * PACK_BYTES, 0xA5, PACK_BYTES);
        memcpy(p->theirs + r * PACK_BYTES, shown_by_all[r], n);
        shown[r] = p->theirs + r * PACK_BYTES;
    }
    pthread_barrier_wait(&all_processes);
    return FATHOM_OK;
}

static bool is_lost(struct host_net *net, char *why, size_t n_why)
{
    (void)net;
    (void)why;
    (void)n_why;
    return false;
}

/* Each process has as many ranks, whose caches meet in none of them. */
static void open_processes(uint32_t world)
{
    const uint32_t n = world / n_process;
    if (n_process == 1) return;
    assert_int_equal(pthread_barrier_init(&all_processes, NULL, n_process), 0);
    for (uint32_t i = 0; i < n_process; i++) {
        struct process *p = &processes[i];
        p->theirs = mem_alloc(world * PACK_BYTES);
        p->net = (struct host_net){.first = i * n,
                                   .n_local = n,
                                   .n_rank = world,
                                   .packs = mem_alloc(n * PACK_BYTES),
                                   .pack_bytes = PACK_BYTES,
                                   .swap = swap,
                                   .is_lost = is_lost};
        assert_non_null(p->theirs);
        assert_non_null(p->net.packs);
    }
}

static void close_processes(void)
{
    for (uint32_t i = 0; i < n_process && n_process > 1; i++) {
        mem_free(processes[i].theirs);
        mem_free(processes[i].net.packs);
    }
    if (n_process > 1) (void)pthread_barrier_destroy(&all_processes);
}

static void join_ranks(struct backend *const *b, uint32_t world)
{
    const uint32_t n = world / n_process;
    fathom_diag d = {{0}};
    for (uint32_t i = 0; i < world; i += n) {
        if (backend_join(b + i, n, &d)) fail_msg("%s", d.text);
    }
}

/* Of several processes a lane's ranks are alike. */
static void open_ranks(struct gen *g, const struct share_case *k, uint32_t world)
{
    struct backend *b[WORLD_MAX];
    const uint32_t n = n_page_of(k), n_page = n + SPARE_PAGES;
    const size_t bytes = n_page * k->c.kv.page_bytes;
    open_processes(world);
    for (uint32_t i = 0; i < world; i++) {
        struct rank *r = &ranks[i];
        struct backend_config c = k->c;
        c.n_thread = 1;
        c.device = (int)i;
        c.parallel = parallel_one();
        c.parallel.tp.size = n_share;
        c.parallel.dp.size = world / n_share;
        c.parallel.experts_whole = true;
        parallel_be(&c.parallel, i);
        c.n_host = n_process;
        c.net = n_process > 1 ? &processes[i / (world / n_process)].net : NULL;
        *r = (struct rank){.k = k, .table = gen_alloc(g, n_page * sizeof *r->table)};
        r->image = gen_alloc(g, bytes);
        for (size_t j = 0; j < bytes; j++) r->image[j] = (uint8_t)gen_below(g, 256);
        for (uint32_t j = 0; j < n_page; j++) {
            const uint32_t at = gen_below(g, j + 1);
            r->table[j] = r->table[at];
            r->table[at] = (int32_t)j;
        }
        if (n_process > 1 && i % n_share > 0) {
            memcpy(r->image, ranks[i - 1].image, bytes);
            memcpy(r->table, ranks[i - 1].table, n_page * sizeof *r->table);
        }
        rig_open(&r->rig, op_backend(), &c);
        rig_set_cache(&r->rig, r->image, n_page);
        r->pages = rig_put(&r->rig, r->table, n * sizeof *r->table);
        b[i] = r->rig.b;
    }
    join_ranks(b, world);
}

/* The first rank that goes breaks the group, so that rig_close would find a fault on the others. */
static void close_ranks(uint32_t world)
{
    for (uint32_t i = 0; i < world && n_process > 1; i++) {
        struct rig *r = &ranks[i].rig;
        if (r->ops->disconnect) r->ops->disconnect(r->b);
    }
    for (uint32_t i = 0; i < world; i++) {
        struct rig *r = &ranks[i].rig;
        op_ok(r, r->ops->bind_thread(r->b), "bind_thread");
        rig_drop(r, ranks[i].pages);
        rig_drop(r, r->kv_memory);
        for (int kind = 0; kind < OP_N_BUFFER; kind++)
            r->ops->buffer_destroy(r->b, r->buffer[kind]);
        r->ops->destroy(r->b);
    }
    close_processes();
}

/* cmocka's checks are for the thread of the test alone. */
static void *run_rank(void *arg)
{
    struct rank *r = arg;
    r->err = r->rig.ops->bind_thread(r->rig.b);
    if (!r->err && r->rig.ops->connect) r->err = r->rig.ops->connect(r->rig.b);
    for (uint32_t i = 0; i < r->k->n_call && !r->err; i++) {
        const struct share_rows_args a = {.kv = &r->rig.kv,
                                          .layer = r->k->calls[i].layer,
                                          .pages = r->pages,
                                          .share = &r->k->calls[i].share};
        r->err = r->rig.ops->share_rows(r->rig.b, &a);
    }
    if (!r->err) r->err = r->rig.ops->sync(r->rig.b);
    return NULL;
}

static void run_ranks(uint32_t world)
{
    for (uint32_t i = 0; i < world; i++)
        assert_int_equal(pthread_create(&ranks[i].thread, NULL, run_rank, &ranks[i]), 0);
    for (uint32_t i = 0; i < world; i++) pthread_join(ranks[i].thread, NULL);
}

static int32_t slot_of(const struct rank *r, uint32_t position)
{
    return r->table[position / KV_PAGE_TOKENS] * KV_PAGE_TOKENS +
           (int32_t)(position % KV_PAGE_TOKENS);
}

/* A row's bytes from its rank's image to another's, whose slot is another. */
static void copy_row(const struct share_case *k, uint32_t layer, struct rank *to,
                     const struct rank *from, uint32_t position)
{
    const struct kv_layout *l = &k->c.kv;
    const int32_t t = slot_of(to, position), f = slot_of(from, position);
    uint8_t *tr = to->image + (size_t)(t / KV_PAGE_TOKENS) * l->page_bytes;
    const uint8_t *fr = from->image + (size_t)(f / KV_PAGE_TOKENS) * l->page_bytes;
    const size_t i = (size_t)(position % KV_PAGE_TOKENS);
    const size_t latent = kv_latent_offset(l, layer) + i * l->row_bytes;
    const size_t index = kv_index_offset(l, layer);
    memcpy(tr + latent, fr + latent, l->row_bytes);
    if (!l->has_index) return;
    const size_t n = l->type == KV_TYPE_F32 ? KV_INDEX_DIM * sizeof(float) : KV_INDEX_DIM;
    memcpy(tr + index + i * n, fr + index + i * n, n);
    if (l->type == KV_TYPE_F32) return;
    const size_t scale = index + KV_INDEX_SCALES_OFFSET + i * sizeof(float);
    memcpy(tr + scale, fr + scale, sizeof(float));
}

static void copy_rows(const struct share_case *k, uint32_t world)
{
    for (uint32_t c = 0; c < k->n_call; c++) {
        const struct batch_share *s = &k->calls[c].share;
        uint32_t position = s->first;
        for (uint32_t i = 0; i < s->n_segment; i++) {
            for (uint32_t n = s->segments[i].n_row; n > 0; n--, position++) {
                for (uint32_t r = 0; r < world; r++) {
                    const uint32_t from = s->segments[i].lane * n_share + r % n_share;
                    if (r != from)
                        copy_row(k, k->calls[c].layer, &ranks[r], &ranks[from], position);
                }
            }
        }
    }
}

/* n_row rows from anywhere on, in segments of any lane, of which some are empty. */
static void fill_share(struct gen *g, const struct share_case *k, uint32_t n_lane, uint32_t n_row,
                       struct batch_share *s)
{
    *s = (struct batch_share){.first = gen_below(g, k->n_context - n_row + 1),
                              .n_row = n_row,
                              .n_segment = 1 + gen_below(g, n_lane + 1)};
    for (uint32_t i = 0; i < s->n_segment; i++) {
        const uint32_t n = gen_below(g, 3) ? gen_below(g, n_row + 1) : 0;
        s->segments[i].lane = gen_below(g, n_lane);
        s->segments[i].n_row = i + 1 == s->n_segment ? n_row : n;
        n_row -= s->segments[i].n_row;
    }
}

static void check(struct share_case *k, uint64_t seed, uint32_t most_rows)
{
    const struct backend_config c = k->c;
    const uint32_t least = n_process > 2 ? n_process : 2;
    for (uint32_t world = least * n_share; world <= world_max; world *= 2) {
        struct gen *g = gen_create(seed + world);
        k->c = c;
        k->n_call = CALLS;
        for (uint32_t i = 0; i < k->n_call; i++) {
            k->calls[i].layer = gen_below(g, c.kv.n_layer);
            fill_share(g, k, world / n_share, i == 0 ? most_rows : 1 + gen_below(g, most_rows),
                       &k->calls[i].share);
        }
        open_ranks(g, k, world);
        run_ranks(world);
        copy_rows(k, world);
        for (uint32_t i = 0; i < world; i++) {
            struct rig *r = &ranks[i].rig;
            const size_t bytes = (n_page_of(k) + SPARE_PAGES) * c.kv.page_bytes;
            uint8_t *got = gen_alloc(g, bytes);
            op_ok(r, ranks[i].err, "share_rows");
            op_ok(r, r->ops->bind_thread(r->b), "bind_thread");
            rig_get_cache(r, got);
            op_same_bits("a rank's cache", got, ranks[i].image, bytes);
        }
        close_ranks(world);
        gen_destroy(g);
    }
}

static void set_cache(struct share_case *k, enum kv_type type, bool has_index)
{
    gen_config(&k->c, type == KV_TYPE_F32 ? ACT_F32 : ACT_FP8, type, false);
    k->c.n_expert = 16; /* eight ranks have equal parts */
    if (!has_index) k->c.index_n_head = 0;
    kv_layout_init(&k->c.kv, type, 2, has_index);
}

static void rows_come_from_who_has_them(void **state)
{
    static const enum kv_type types[] = {KV_TYPE_FP8, KV_TYPE_BF16, KV_TYPE_F32};
    struct share_case k = {.n_context = 300};
    (void)state;
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        set_cache(&k, types[i], true);
        check(&k, 91 + i, op_wants_few() ? 80 : 300);
    }
    set_cache(&k, KV_TYPE_FP8, false);
    check(&k, 95, 200);
}

/* Of a lane's ranks each has the rows, and sends them to one rank of each other lane. */
static void ranks_of_a_lane_send_to_their_like(void **state)
{
    struct share_case k = {.n_context = 300};
    (void)state;
    set_cache(&k, KV_TYPE_FP8, true);
    for (n_share = 2; n_share <= 4; n_share *= 2) check(&k, 98, op_wants_few() ? 80 : 300);
    n_share = 1;
}

/* GPUs have a net where NCCL is. */
static bool has_net(void)
{
    const bool is_gpu = op_is_cuda() && !strstr(op_backend(), "sim");
    void *nccl = is_gpu ? dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE) : NULL;
    if (nccl) (void)dlclose(nccl);
    return nccl || !is_gpu;
}

/* Of as many hosts as lanes, or fewer; rooms hold fewer rows than there are. */
static void rows_come_from_other_processes(void **state)
{
    static const enum kv_type types[] = {KV_TYPE_FP8, KV_TYPE_BF16, KV_TYPE_F32};
    struct share_case k = {.n_context = 300};
    (void)state;
    if (!has_net()) skip();
    for (n_process = 2; n_process <= 4; n_process *= 2) {
        for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
            set_cache(&k, types[i], i != 1);
            check(&k, 81 + i, op_wants_few() ? 80 : 300);
        }
        for (n_share = 2; n_share * n_process <= world_max; n_share *= 2) {
            set_cache(&k, KV_TYPE_FP8, true);
            check(&k, 88, op_wants_few() ? 80 : 300);
        }
        n_share = 1;
    }
    n_process = 1;
}

/* More rows than a launch has. */
static void rows_go_in_rounds(void **state)
{
    struct share_case k = {.n_context = 4300};
    const uint32_t all = world_max;
    (void)state;
    set_cache(&k, KV_TYPE_FP8, true);
    k.c.max_context = k.n_context;
    world_max = 2;
    check(&k, 96, 4200);
    world_max = all;
}

/* A rank that is at another layer is found there, and all ranks end. */
static void ranks_in_different_layers_part(void **state)
{
    struct share_case k[2] = {{.n_context = 64, .n_call = 1}};
    struct gen *g = gen_create(97);
    (void)state;
    set_cache(&k[0], KV_TYPE_BF16, true);
    fill_share(g, &k[0], 2, 9, &k[0].calls[0].share);
    open_ranks(g, &k[0], 2);
    k[1] = k[0];
    k[1].calls[0].layer = 1;
    ranks[1].k = &k[1];
    run_ranks(2);
    for (uint32_t i = 0; i < 2; i++) {
        assert_int_equal(ranks[i].err, FATHOM_EPEER);
        assert_string_equal(ranks[i].rig.ops->fault(ranks[i].rig.b),
                            "rank 0 of 2 is at share_rows of layer 0 with 9 rows, rank 1 at "
                            "share_rows of layer 1 with 9 rows");
    }
    close_ranks(2);
    gen_destroy(g);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_come_from_who_has_them),
        cmocka_unit_test(ranks_of_a_lane_send_to_their_like),
        cmocka_unit_test(rows_come_from_other_processes),
        cmocka_unit_test(rows_go_in_rounds),
        cmocka_unit_test(ranks_in_different_layers_part), /* the last: GPUs do not look at layers */
    };
    return op_ranks_main(argc, argv, &world_max, tests, sizeof tests / sizeof *tests);
}
