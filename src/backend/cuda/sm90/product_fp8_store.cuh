/* product_fp8_store.cuh - what leaves a tile of product_fp8.cu: sums, bf16, queries, SwiGLU
 *
 * A warp's 16 rows go through its part of shared memory on their way, so that rows are written in
 * long pieces. All of it runs while products of the next tile are under way. */
#ifndef FATHOM_BACKEND_CUDA_SM90_PRODUCT_FP8_STORE_CUH
#define FATHOM_BACKEND_CUDA_SM90_PRODUCT_FP8_STORE_CUH

#include "backend/cuda/generic/index_lanes.cuh"
#include "backend/cuda/sm90/product_fp8_work.cuh"

/* Puts two values each of rows lane / 4 and 8 on, columns 8 j + 2 t, into the warp's boxes. */
static __device__ __forceinline__ void stage_pair(const struct walk &x, uint32_t j, float2 first,
                                                  float2 second)
{
    const uint32_t row = x.lane / 4, t = x.lane % 4, box = j / 4;
    uint8_t *to = x.boxes + box * WARP_ROWS * BOX_BYTES + row * BOX_BYTES + t % 2 * 8 +
                  ((j % 4 * 2 + t / 2) ^ row) * PIECE_BYTES;
    *(float2 *)to = first;
    *(float2 *)(to + 8 * BOX_BYTES) = second;
}

/* Four values of row r of the warp, those of this lane. */
static __device__ __forceinline__ float4 staged(const struct walk &x, uint32_t r)
{
    const uint32_t box = x.lane / 8, piece = x.lane % 8 ^ (r & 7);
    return *(const float4 *)(x.boxes + (box * WARP_ROWS + r) * BOX_BYTES + piece * PIECE_BYTES);
}

/* The boxes on their way, to rows that lie one after the other. */
static __device__ __forceinline__ void store_boxes(const struct work &w, const struct walk &x)
{
    async_proxy_fence();
    __syncwarp();
    if (x.lane != 0 || x.summed.row < 0) return;
#pragma unroll
    for (uint32_t i = 0; i < BOXES; i++) {
        tensor_store(&w.out_map, smem_address(x.boxes) + i * WARP_ROWS * BOX_BYTES,
                     (int)(x.summed.col * BOXES + i) * BOX_BYTES, x.summed.row, 0);
    }
    bulk_commit();
}

/* What lies in the warp's boxes to device memory: as boxes, or a row an access of the warp. */
template <enum form FORM>
static __device__ __forceinline__ void store_staged(const struct work &w, const struct walk &x)
{
    DCHECK(x.summed.n <= BN && x.summed.n % 4 == 0);
    if (FORM == FORM_PLAIN) {
        store_boxes(w, x);
        return;
    }
    __syncwarp();
    const bool inside = x.lane * 4 < x.summed.n;
    const uint32_t col = x.summed.col * BN + x.lane * 4;
#pragma unroll
    for (int r = 0; r < WARP_ROWS; r++) {
        const int row = shfl(x.summed.row, r);
        const float4 v = staged(x, (uint32_t)r);
        if (row < 0 || !inside) continue;
        *(float4 *)(w.a.out + (size_t)row * w.a.out_stride + col) = v;
    }
}

/* The sums of the tile that is finished to device memory, by way of shared memory. */
template <enum form FORM>
static __device__ __forceinline__ void store_sums(const struct work &w, const struct walk &x,
                                                  const float (&sum)[64])
{
    if (FORM == FORM_PLAIN && x.lane == 0) bulk_wait_read();
    __syncwarp();
#pragma unroll
    for (uint32_t j = 0; j < 16; j++) {
        stage_pair(x, j, make_float2(sum[4 * j], sum[4 * j + 1]),
                   make_float2(sum[4 * j + 2], sum[4 * j + 3]));
    }
    store_staged<FORM>(w, x);
}

/* A warp's rows of bf16 in shared memory: their pieces are permuted by the row. */
enum { ROUNDED_ROW_BYTES = BN * sizeof(bf16) };

/* They go to device memory, two rows an access. */
static __device__ __forceinline__ void store_staged_rounded(const struct work &w,
                                                            const struct walk &x)
{
    enum { ROW_PIECES = ROUNDED_ROW_BYTES / PIECE_BYTES, AT_ONCE = 2 };
    const uint32_t piece = x.lane % ROW_PIECES, first = x.lane / ROW_PIECES;
    const bool inside = piece * 8 < x.summed.n;
    bf16 *const out = w.a.out_h + x.summed.col * BN + piece * 8;
#pragma unroll
    for (uint32_t i = 0; i < WARP_ROWS / AT_ONCE; i++) {
        const uint32_t r = i * AT_ONCE + first;
        const int row = shfl(x.summed.row, (int)r);
        const uint4 v =
            *(const uint4 *)(x.boxes + r * ROUNDED_ROW_BYTES + (piece ^ (r & 7)) * PIECE_BYTES);
        if (row >= 0 && inside) *(uint4 *)(out + (size_t)row * w.a.out_stride) = v;
    }
}

/* The sums rounded to bf16: rounded where they are summed, which halves what goes through shared
 * memory. */
static __device__ __forceinline__ void store_rounded(const struct work &w, const struct walk &x,
                                                     const float (&sum)[64])
{
    const uint32_t in = x.lane % 8, to_row = x.lane / 8 % 2 * 8 + in, to_piece = x.lane / 16;
    const uint32_t to = smem_address(x.boxes) + to_row * ROUNDED_ROW_BYTES;
    __syncwarp();
#pragma unroll
    for (uint32_t j = 0; j < 16; j += 2) {
        const float *v = sum + 4 * j;
        stmatrix_x4(to + ((j + to_piece) ^ in) * PIECE_BYTES, pack_bf16(v[0], v[1]),
                    pack_bf16(v[2], v[3]), pack_bf16(v[4], v[5]), pack_bf16(v[6], v[7]));
    }
    __syncwarp();
    store_staged_rounded(w, x);
}

/* Turns the pairs of KV_ROPE columns from j = FIRST on by the angles of their rows. */
template <uint32_t FIRST>
static __device__ __forceinline__ void turn_columns(const struct work &w, const struct walk &x,
                                                    float (&sum)[64])
{
    enum { EACH = KV_ROPE / 8 };
    float2 angle[2][EACH];
#pragma unroll
    for (uint32_t r = 0; r < 2; r++) {
        const int row = max(shfl(x.summed.row, (int)(x.lane / 4 + r * 8)), 0);
        const float2 *from = (const float2 *)(w.a.angles + (size_t)row * w.a.angle_stride);
#pragma unroll
        for (uint32_t j = 0; j < EACH; j++) angle[r][j] = from[j * 4 + x.lane % 4];
    }
#pragma unroll
    for (uint32_t j = 0; j < EACH; j++) {
        float *v = sum + 4 * (FIRST + j);
        rotate(v[0], v[1], angle[0][j].x, angle[0][j].y);
        rotate(v[2], v[3], angle[1][j].x, angle[1][j].y);
    }
}

/* The rotary parts of heads of QUERY_DIM: two heads are three tiles, and end in halves of the
 * second and the third. */
static __device__ __forceinline__ void turn_rotary(const struct work &w, const struct walk &x,
                                                   float (&sum)[64])
{
    static_assert(2 * (int)QUERY_DIM == 3 * (int)BN && 2 * (int)KV_ROPE == (int)BN,
                  "where rotary parts lie");
    if (x.summed.col % 3 == 1) turn_columns<0>(w, x, sum);
    if (x.summed.col % 3 == 2) turn_columns<KV_ROPE / 8>(w, x, sum);
}

/* Where a lane's values of the first tile of a pair wait, eight times four of them: behind the
 * codes of the warp's rows. */
static __device__ __forceinline__ float4 *waiting(const struct walk &x, uint32_t i)
{
    return (float4 *)x.held + i * WARP + x.lane;
}

/* Puts 16 codes of rows lane / 4 and 8 on of half a group where the warp's rows of codes are made.
 * v has the sums' places: v[4 j] and the next of the first row, then of the second. */
static __device__ __forceinline__ void stage_codes(const struct walk &x, uint32_t half,
                                                   const float (&v)[32], float first, float second)
{
    uint8_t *to = x.boxes + x.lane / 4 * CODES_PITCH + half * PAIR_COLS + x.lane % 4 * 2;
#pragma unroll
    for (int j = 0; j < 8; j++, to += 8) {
        *(uint16_t *)to = float2_to_e4m3x2(v[4 * j] * first, v[4 * j + 1] * first);
        *(uint16_t *)(to + 8 * CODES_PITCH) =
            float2_to_e4m3x2(v[4 * j + 2] * second, v[4 * j + 3] * second);
    }
}

/* Rows of codes from shared to device memory: eight lanes a row. */
static __device__ __forceinline__ void store_codes(const struct work &w, const struct walk &x)
{
    const uint32_t n_group = w.n_col_tile / 2, piece = x.lane % 8;
#pragma unroll
    for (uint32_t i = 0; i < WARP_ROWS / 4; i++) {
        const uint32_t r = i * 4 + x.lane / 8;
        const int row = shfl(x.summed.row, (int)r);
        const uint4 v = *(const uint4 *)(x.boxes + r * CODES_PITCH + piece * PIECE_BYTES);
        if (row < 0) continue;
        const size_t group = (size_t)row * n_group + x.summed.col / 2;
        *(uint4 *)(w.a.out_q + group * FP8_GROUP + piece * PIECE_BYTES) = v;
    }
}

/* The SwiGLU of a tile's halves. The first tile of a pair waits in shared memory for the second;
 * then the groups that both make get their scales, and rows of codes go to device memory. */
static __device__ __forceinline__ void store_swiglu(const struct work &w, struct walk &x,
                                                    const float (&sum)[64])
{
    float v[32], first = 0.0f, second = 0.0f;
#pragma unroll
    for (int j = 0; j < 32; j += 4) {
#pragma unroll
        for (int i = 0; i < 4; i++) v[j + i] = silu(sum[j + i]) * sum[32 + j + i];
        first = fmaxf(first, fmaxf(fabsf(v[j]), fabsf(v[j + 1])));
        second = fmaxf(second, fmaxf(fabsf(v[j + 2]), fabsf(v[j + 3])));
    }
    if (x.summed.col % 2 == 0) {
#pragma unroll
        for (int j = 0; j < 8; j++)
            *waiting(x, (uint32_t)j) =
                make_float4(v[4 * j], v[4 * j + 1], v[4 * j + 2], v[4 * j + 3]);
        x.amax_first = first;
        x.amax_second = second;
        return;
    }
    first = fmaxf(first, x.amax_first);
    second = fmaxf(second, x.amax_second);
#pragma unroll
    for (int d = 1; d < 4; d <<= 1) {
        first = fmaxf(first, shfl_xor(first, d));
        second = fmaxf(second, shfl_xor(second, d));
    }
    first = fp8_scale(first);
    second = fp8_scale(second);
    __syncwarp(); /* the codes before have been read */
    stage_codes(x, 1, v, fp8_inverse(first), fp8_inverse(second));
#pragma unroll
    for (int j = 0; j < 8; j++) {
        const float4 u = *waiting(x, (uint32_t)j);
        v[4 * j] = u.x;
        v[4 * j + 1] = u.y;
        v[4 * j + 2] = u.z;
        v[4 * j + 3] = u.w;
    }
    stage_codes(x, 0, v, fp8_inverse(first), fp8_inverse(second));
    const int row0 = shfl(x.summed.row, (int)x.lane / 4),
              row1 = shfl(x.summed.row, (int)x.lane / 4 + 8);
    const uint32_t n_group = w.n_col_tile / 2, group = x.summed.col / 2;
    if (x.lane % 4 == 0 && row0 >= 0) w.a.out_scale[(size_t)row0 * n_group + group] = first;
    if (x.lane % 4 == 0 && row1 >= 0) w.a.out_scale[(size_t)row1 * n_group + group] = second;
    __syncwarp();
    store_codes(w, x);
}

/* Weights whose rows have scales of their own: those of a tile's columns, four from 4 l on in lane
 * l. */
template <enum output OUTPUT>
static __device__ __forceinline__ float4 column_scales(const struct work &w, const struct walk &x)
{
    const uint32_t col = x.lane * 4;
    uint32_t from = x.summed.col * BN + col;
    if (OUTPUT == OUTPUT_SWIGLU) {
        from = x.summed.col * PAIR_COLS + col % PAIR_COLS + (col < PAIR_COLS ? 0 : w.a.n / 2);
    }
    const float *at = w.a.row_scale + x.summed.row_scale + min(from, w.a.n - 4);
    return make_float4(at[0], at[1], at[2], at[3]);
}

/* Times them; of int8, whose inputs have a scale a row, times both, as int8_value. */
template <enum output OUTPUT, enum weights WEIGHTS>
static __device__ __forceinline__ void scale_columns(const struct work &w, const struct walk &x,
                                                     float (&sum)[64])
{
    const uint32_t t = x.lane % 4;
    const bool both = WEIGHTS == WEIGHTS_INT8_ROW;
    const float first = x.summed.first, second = x.summed.second;
    const float4 s = both ? x.summed.columns : column_scales<OUTPUT>(w, x);
#pragma unroll
    for (uint32_t j = 0; j < 16; j++) {
        const int lane = (int)(2 * j + t / 2);
        const float x0 = shfl(s.x, lane), x1 = shfl(s.y, lane);
        const float z0 = shfl(s.z, lane), z1 = shfl(s.w, lane);
        const float even = t % 2 ? z0 : x0, odd = t % 2 ? z1 : x1;
        sum[4 * j] *= both ? first * even : even;
        sum[4 * j + 1] *= both ? first * odd : odd;
        sum[4 * j + 2] *= both ? second * even : even;
        sum[4 * j + 3] *= both ? second * odd : odd;
    }
}

template <enum form FORM, enum output OUTPUT, enum weights WEIGHTS>
static __device__ __forceinline__ void store_tile(const struct work &w, struct walk &x,
                                                  float (&sum)[64])
{
    if (has_row_scales(WEIGHTS)) scale_columns<OUTPUT, WEIGHTS>(w, x, sum);
    if (OUTPUT == OUTPUT_QUERY) turn_rotary(w, x, sum);
    if (OUTPUT == OUTPUT_SWIGLU) {
        store_swiglu(w, x, sum);
    } else if (OUTPUT == OUTPUT_BF16 || OUTPUT == OUTPUT_QUERY) {
        store_rounded(w, x, sum);
    } else {
        store_sums<FORM>(w, x, sum);
    }
    x.summed.n = 0;
}

#endif
