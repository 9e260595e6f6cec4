/* product_few_launch.cuh - how product_few_kernel.cuh's kernels are launched: rings and blocks of a
 * multiprocessor, clusters that share K, and the width of tiles */
#ifndef FATHOM_BACKEND_CUDA_SM90_PRODUCT_FEW_LAUNCH_CUH
#define FATHOM_BACKEND_CUDA_SM90_PRODUCT_FEW_LAUNCH_CUH

#include "backend/cuda/sm90/product_few_kernel.cuh"

/* Shared memory of a block and how many a multiprocessor holds of them. */
struct few_shape {
    uint32_t n_part;
    uint32_t n_stage;
    uint32_t n_byte;
    uint32_t per_sm;
    bool turns;
};

/* parts: K parts of a tile that each block makes, if it shares tiles, else 0. */
template <int N, int G>
static struct few_shape shape_of(uint32_t n_part, uint32_t parts, uint32_t n_stage, bool turns)
{
    struct few_shape f = {};
    f.n_part = n_part;
    f.n_stage = n_stage;
    f.turns = turns;
    f.n_byte =
        (uint32_t)(sizeof(struct few_shared<N>) + n_part * parts * sizeof(struct few_parts<N>) +
                   n_stage * (weight_bytes<N, G>(turns) + N * input_bytes<G>()));
    f.per_sm = min(SM_BYTES / (f.n_byte + BLOCK_BYTES),
                   parts ? blocks_max<N, true, G>() : blocks_max<N, false, G>());
    return f;
}

/* Blocks that walk over many items: as deep a ring as two or three blocks leave room for. */
template <int N, int G> static struct few_shape walking_shape(uint32_t cluster_size)
{
    const uint32_t n_part = cluster_size > 1 ? 2 : 0, parts = n_part ? 1 : 0;
    for (uint32_t per_sm = 3; per_sm > 1; per_sm--) {
        for (uint32_t n = STAGES_MAX; n >= 4; n--) {
            const struct few_shape f = shape_of<N, G>(n_part, parts, n, false);
            if (f.per_sm >= per_sm) return f;
        }
    }
    return shape_of<N, G>(n_part, parts, 4, false);
}

/* Blocks for one item each, if the device holds all of them at once with rings that are deep
 * enough; else n_byte is 0. Clusters leave places empty. Others fill them all: with one block a
 * multiprocessor more than are needed, some would get two more than others. */
template <int N, int G>
static struct few_shape single_shape(uint32_t parts, uint32_t n_block, uint32_t n_k_line,
                                     uint32_t n_sm, bool may_turn)
{
    const uint32_t n_part = parts ? 1 : 0;
    const uint32_t least = parts ? SPLIT_STAGES_MIN : ALONE_STAGES_MIN;
    const uint32_t sixteenths = parts ? 15 : 16;
    if (may_turn && n_k_line <= STAGES_MAX) {
        const struct few_shape f = shape_of<N, G>(n_part, parts, n_k_line, true);
        if (n_block <= f.per_sm * n_sm * sixteenths / 16) return f;
    }
    for (uint32_t n = min(n_k_line, (uint32_t)STAGES_MAX); n >= min(n_k_line, least); n--) {
        const struct few_shape f = shape_of<N, G>(n_part, parts, n, false);
        if (n_block <= f.per_sm * n_sm * sixteenths / 16) return f;
    }
    return {};
}

/* Blocks that share a tile: one where outputs are rounded or tiles are many. Of a plain product as
 * many as have K parts, if the device holds all blocks at once; or half of that, two parts each, if
 * it holds those, and whole tiles would leave multiprocessors without one or have packed weights.
 * Else blocks make whole tiles, one after the other: clusters that walk exchange sums in between,
 * with places left empty. But a K line of packed weights takes one block's warps longer than that.
 */
template <int N, bool MAPPED, int G>
static uint32_t cluster_size_of(const struct few_work &w, uint32_t n_sm)
{
    const uint32_t n_item = w.n_row_tile * w.n_col_tile, n = w.n_k_part, n_line = w.k_part_lines;
    const uint32_t else_size = is_packed<G>() ? n : 1;
    if (n_item >= n_sm * ALONE_TILES || w.a.out_h || n == 1) return 1;
    if (MAPPED || single_shape<N, G>(1, n_item * n, n_line, n_sm, false).n_byte) return n;
    if (n == 2 || (n_item > n_sm && !is_packed<G>())) return else_size;
    return single_shape<N, G>(2, n_item * n / 2, 2 * n_line, n_sm, false).n_byte ? n / 2
                                                                                 : else_size;
}

/* One launch's attributes; they point into the struct. */
struct few_launch {
    cudaLaunchAttribute attributes[2];
    cudaLaunchConfig_t config;
};

static void set_launch(struct few_launch *l, uint32_t n_block, uint32_t cluster_size,
                       uint32_t n_byte, cudaStream_t stream)
{
    ASSERT(n_block >= 1 && n_block <= INT32_MAX && n_byte <= SHARED_MAX);
    ASSERT(cluster_size >= 1 && cluster_size <= CLUSTER_BLOCKS_MAX && n_block % cluster_size == 0);
    *l = {};
    l->attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    l->attributes[0].val.programmaticStreamSerializationAllowed = 1;
    l->attributes[1].id = cudaLaunchAttributeClusterDimension;
    l->attributes[1].val.clusterDim.x = cluster_size;
    l->attributes[1].val.clusterDim.y = 1;
    l->attributes[1].val.clusterDim.z = 1;
    l->config.gridDim = dim3(n_block);
    l->config.blockDim = dim3(THREADS);
    l->config.dynamicSmemBytes = n_byte;
    l->config.stream = stream;
    l->config.attrs = l->attributes;
    l->config.numAttrs = cluster_size > 1 ? 2 : 1;
}

/* K lines at whose multiples tiles of n_block blocks that walk may be cut, or 0. A tile's parts are
 * added one after the other; one part goes on wherever it stopped. */
template <int N> static uint32_t cut_lines_of(const struct few_work &w, uint32_t n_block)
{
    enum { ONE_PART_LINES = 8 };
    const uint32_t n = w.n_k_part > 1 ? w.k_part_lines : ONE_PART_LINES;
    const bool has_room = w.a.handed.sums && n_block <= HANDED_BLOCKS_MAX &&
                          n_block * CONSUMERS * (N / 2) * sizeof(float) <= HANDED_SUM_BYTES;
    static_assert((int)HANDED_FLAGS == (int)CONSUMER_WARPS, "a flag a warp");
    return has_room && w.run_cols == 1 && w.n_k_line > n && w.n_k_line % n == 0 ? n : 0;
}

template <int N, bool MAPPED, int G>
static cudaError_t launch(const struct product_args &a, uint32_t n_tile,
                          const struct sm90_limits &limits, uint32_t i_tile, cudaStream_t stream,
                          uint32_t n_matrix = 1)
{
    struct few_work w = {};
    w.a = a;
    if (G > 0) w.u4 = u4_form_of(a.pack, MAPPED);
    w.n_k_line = a.k * (G == FEW_BF16 ? 2 : 1) / K_LINE_BYTES;
    w.n_k_part = G == FEW_BF16 ? bf16_k_part_count(a.n, w.n_k_line, MAPPED)
                               : fp8_k_part_count(a.n, w.n_k_line, MAPPED);
    w.k_part_lines = w.n_k_line / w.n_k_part;
    ASSERT(w.k_part_lines * w.n_k_part == w.n_k_line && (MAPPED || !a.out_h));
    w.n_col_tile = ceil_div(a.n, BM);
    w.n_row_tile = n_tile;
    w.cluster_size = cluster_size_of<N, MAPPED, G>(w, limits.n_sm);
    w.run_cols = MAPPED && w.cluster_size == 1 ? ceil_div(RUN_K_LINES, w.n_k_line) : 1;
    const uint32_t run_k_lines = w.n_k_line / w.cluster_size * w.run_cols;
    uint32_t n_run = n_tile * ceil_div(w.n_col_tile, w.run_cols);
    if (!n_run) return cudaSuccess;
    const uint32_t parts = w.cluster_size > 1 ? w.n_k_part / w.cluster_size : 0;
    const bool may_turn = parts == 1 && can_turn<N, MAPPED, 1, G>();
    struct few_shape f =
        single_shape<N, G>(parts, n_run * w.cluster_size, run_k_lines, limits.n_sm, may_turn);
    if (!f.n_byte) {
        f = walking_shape<N, G>(w.cluster_size);
        for (uint32_t i = 0; i < FEW_K_PARTS; i++) {
            const uint32_t most =
                is_packed<G>() && i == 0 ? limits.n_sm * f.per_sm : limits.few[i_tile][i];
            if (w.cluster_size == 1u << i) n_run = min(n_run, most);
        }
        if (MAPPED && may_cut<G>() && w.cluster_size == 1) w.cut_lines = cut_lines_of<N>(w, n_run);
    }
    ASSERT(f.n_byte + BLOCK_BYTES <= SM_BYTES);
    w.n_stage = f.n_stage;
    w.stage_bytes = weight_bytes<N, G>(f.turns) + N * input_bytes<G>();
    w.in_at = weight_bytes<N, G>(f.turns);
    w.turns = f.turns;
    w.n_part = f.n_part;
    if (!MAPPED) {
        const void *in = is_e2m1<G>() || G == FEW_BF16 ? (const void *)a.h : a.q;
        const uint32_t row_bytes = w.n_k_line * input_bytes<G>();
        cudaError_t e =
            make_map(&w.in_map, in, row_bytes, a.n_token, 1, (size_t)row_bytes * a.n_token, N);
        if (e != cudaSuccess) return e;
    }
    if (G == FEW_BF16) {
        const uint32_t row_bytes = w.n_k_line * K_LINE_BYTES;
        const size_t stride = MAPPED ? a.w_stride : (size_t)row_bytes * a.n;
        cudaError_t e = make_map(&w.w_map, a.w, row_bytes, a.n, n_matrix, stride, BM);
        if (e != cudaSuccess) return e;
    }
    const bool is_whole = !MAPPED && w.cluster_size == 1 && w.n_k_part > 1;
    const uint32_t n_byte =
        is_whole && n_run <= limits.n_sm ? max(f.n_byte, (uint32_t)WHOLE_TILE_BYTES) : f.n_byte;
    struct few_launch l;
    set_launch(&l, n_run * w.cluster_size, w.cluster_size, n_byte, stream);
    ASSERT(parts <= BLOCK_PARTS_MAX && (!MAPPED || parts <= 1));
    if (parts == 0) return cudaLaunchKernelEx(&l.config, product_few_kernel<N, MAPPED, 0, G>, w);
    if (parts == 1) return cudaLaunchKernelEx(&l.config, product_few_kernel<N, MAPPED, 1, G>, w);
    return cudaLaunchKernelEx(&l.config, product_few_kernel<N, false, BLOCK_PARTS_MAX, G>, w);
}

/* Clusters of 2^i blocks that the device holds at once, no more than *n_cluster. */
template <int N, bool MAPPED, int PARTS, int G>
static cudaError_t init_kernel(uint32_t i, uint32_t *n_cluster)
{
    auto *kernel = product_few_kernel<N, MAPPED, PARTS, G>;
    const uint32_t cluster_size = 1u << i;
    struct few_launch l;
    int n = 0;
    cudaError_t e = raise_shared(kernel, SM_BYTES - BLOCK_BYTES);
    if (e != cudaSuccess) return e;
    set_launch(&l, cluster_size, cluster_size, walking_shape<N, G>(cluster_size).n_byte, NULL);
    l.config.numAttrs = 2;
    e = cudaOccupancyMaxActiveClusters(&n, kernel, &l.config);
    *n_cluster = min(*n_cluster, (uint32_t)max(n, 1));
    return e;
}

/* The kernels of all forms but mapped clusters. n_block: that walk, alone. */
template <int N, int G> static cudaError_t init_plain(uint32_t *n_block)
{
    const uint32_t most = SM_BYTES - BLOCK_BYTES;
    cudaError_t e = raise_shared(product_few_kernel<N, false, 1, G>, most);
    if (e == cudaSuccess) e = raise_shared(product_few_kernel<N, false, BLOCK_PARTS_MAX, G>, most);
    if (e == cudaSuccess) e = init_kernel<N, false, 0, G>(0, n_block);
    return e == cudaSuccess ? init_kernel<N, true, 0, G>(0, n_block) : e;
}

template <int N, int G> static cudaError_t init_tile(uint32_t (&n_cluster)[FEW_K_PARTS])
{
    for (uint32_t &n : n_cluster) n = UINT32_MAX;
    cudaError_t e = init_plain<N, G>(&n_cluster[0]);
    for (uint32_t i = 1; i < FEW_K_PARTS && e == cudaSuccess; i++) {
        e = init_kernel<N, false, 1, G>(i, &n_cluster[i]);
        if (e == cudaSuccess) e = init_kernel<N, true, 1, G>(i, &n_cluster[i]);
    }
    return e;
}

template <int G> static cudaError_t init_tiles(uint32_t (&few)[FEW_TILES][FEW_K_PARTS])
{
    cudaError_t e = init_tile<8, G>(few[0]);
    if (e == cudaSuccess) e = init_tile<16, G>(few[1]);
    if (e == cudaSuccess) e = init_tile<32, G>(few[2]);
    if (e == cudaSuccess) e = init_tile<64, G>(few[3]);
    return e;
}

template <int N, int G>
static cudaError_t launch_tile(const struct product_args &a, uint32_t n_tile,
                               const struct sm90_limits &limits, uint32_t i_tile,
                               cudaStream_t stream, uint32_t n_matrix = 1)
{
    return a.tasks ? launch<N, true, G>(a, n_tile, limits, i_tile, stream, n_matrix)
                   : launch<N, false, G>(a, n_tile, limits, i_tile, stream, n_matrix);
}

template <int G>
static cudaError_t launch_tiles(const struct product_args &a, uint32_t tile, uint32_t n_tile,
                                const struct sm90_limits &limits, cudaStream_t stream)
{
    switch (tile) {
    case 8: return launch_tile<8, G>(a, n_tile, limits, 0, stream);
    case 16: return launch_tile<16, G>(a, n_tile, limits, 1, stream);
    case 32: return launch_tile<32, G>(a, n_tile, limits, 2, stream);
    case 64: return launch_tile<64, G>(a, n_tile, limits, 3, stream);
    default: return cudaErrorInvalidValue;
    }
}

#endif
