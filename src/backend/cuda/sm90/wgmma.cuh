/* wgmma.cuh - inline PTX of sm_90a, one instruction a function: warpgroups, their registers and
 * products
 *
 * Operands of the warpgroup products are K-major tiles with rows of 128 bytes; eight rows make an
 * atom of 1024 bytes, aligned to 1024, whose 16-byte pieces are permuted: piece p of row r lies at
 * place p ^ (r & 7). Sum of a warpgroup, 64 rows x 2 N columns for N values a thread: warp w has
 * rows 16 w to 16 w + 15, and lane 4 g + t holds, for each j, in c[4 j], c[4 j + 1] row g, columns
 * 8 j + 2 t and the next, in c[4 j + 2], c[4 j + 3] row g + 8.
 */
#ifndef FATHOM_BACKEND_CUDA_SM90_WGMMA_CUH
#define FATHOM_BACKEND_CUDA_SM90_WGMMA_CUH

#include "backend/cuda/ptx.cuh"

/* ---- registers of a warpgroup ---- */

template <int N> static __device__ __forceinline__ void registers_raise(void)
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}

template <int N> static __device__ __forceinline__ void registers_lower(void)
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}

/* ---- warpgroup products ---- */

/* Descriptor of an operand: its address in units of 16 bytes, 1024 bytes from atom to atom,
 * 128-byte permutation. Adding 2 moves 32 bytes along K. */
static __device__ __forceinline__ uint64_t wgmma_operand(uint32_t address)
{
    return (uint64_t)((address & 0x3ffffu) >> 4) | (uint64_t)1 << 16 | (uint64_t)(1024 >> 4) << 32 |
           (uint64_t)1 << 62;
}

/* Before the first product, and after its registers were used by other instructions. */
static __device__ __forceinline__ void wgmma_fence(void)
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

static __device__ __forceinline__ void wgmma_commit(void)
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/* The same for an operand whose rows of 128 bytes run along its columns: rows are values of K, and
 * `next` bytes lie from 64 columns to the next 64. Adding 128 moves 16 rows along K. */
static __device__ __forceinline__ uint64_t wgmma_operand_turned(uint32_t address, uint32_t next)
{
    return (uint64_t)((address & 0x3ffffu) >> 4) | (uint64_t)(next >> 4) << 16 |
           (uint64_t)(1024 >> 4) << 32 | (uint64_t)1 << 62;
}

#define SUM_4(how, c, i) how(c[i]), how(c[i + 1]), how(c[i + 2]), how(c[i + 3])
#define SUM_8(how, c, i) SUM_4(how, c, i), SUM_4(how, c, i + 4)
#define SUM_16(how, c, i) SUM_8(how, c, i), SUM_8(how, c, i + 8)
#define SUM_32(how, c, i) SUM_16(how, c, i), SUM_16(how, c, i + 16)
#define SUM_48(how, c, i) SUM_32(how, c, i), SUM_16(how, c, i + 32)
#define SUM_64(how, c, i) SUM_32(how, c, i), SUM_32(how, c, i + 32)
#define SUM_96(how, c, i) SUM_64(how, c, i), SUM_32(how, c, i + 64)
#define SUM_128(how, c, i) SUM_64(how, c, i), SUM_64(how, c, i + 64)
#define NAMES_4 "%0,%1,%2,%3"
#define NAMES_8 NAMES_4 ",%4,%5,%6,%7"
#define NAMES_16 NAMES_8 ",%8,%9,%10,%11,%12,%13,%14,%15"
#define NAMES_32 NAMES_16 ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define NAMES_48 NAMES_32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47"
#define NAMES_64 NAMES_48 ",%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define NAMES_96                                                                                   \
    NAMES_64 ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82,%83,"   \
             "%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95"
#define NAMES_128                                                                                  \
    NAMES_96 ",%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111,%112,"  \
             "%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"

/* Products of 64 rows x n_col columns, K = 32 e4m3, n values a thread: c = a * b^T, c += a * b^T,
 * and the wait until every product committed has finished, after which c may be read. a_at and b_at
 * number the operands behind the n of the sum. */
#define WGMMA_E4M3(n, n_col, a_at, b_at)                                                           \
    static __device__ __forceinline__ void wgmma_e4m3_start(float(&c)[n], uint64_t a, uint64_t b)  \
    {                                                                                              \
        asm volatile("wgmma.mma_async.sync.aligned.m64n" #n_col "k32.f32.e4m3.e4m3 {" NAMES_##n    \
                     "}, %" #a_at ", %" #b_at ", 0, 1, 1;"                                         \
                     : SUM_##n("=f", c, 0)                                                         \
                     : "l"(a), "l"(b));                                                            \
    }                                                                                              \
    static __device__ __forceinline__ void wgmma_e4m3_add(float(&c)[n], uint64_t a, uint64_t b)    \
    {                                                                                              \
        asm volatile("wgmma.mma_async.sync.aligned.m64n" #n_col "k32.f32.e4m3.e4m3 {" NAMES_##n    \
                     "}, %" #a_at ", %" #b_at ", 1, 1, 1;"                                         \
                     : SUM_##n("+f", c, 0)                                                         \
                     : "l"(a), "l"(b));                                                            \
    }                                                                                              \
    static __device__ __forceinline__ void wgmma_wait(float(&c)[n])                                \
    {                                                                                              \
        asm volatile("wgmma.wait_group.sync.aligned 0;" : SUM_##n("+f", c, 0)::"memory");          \
    }

WGMMA_E4M3(4, 8, 4, 5)
WGMMA_E4M3(8, 16, 8, 9)
WGMMA_E4M3(16, 32, 16, 17)
WGMMA_E4M3(32, 64, 32, 33)
WGMMA_E4M3(48, 96, 48, 49)
WGMMA_E4M3(64, 128, 64, 65)

/* The same of int8, with sums that are exact. */
#define WGMMA_S8(n, n_col, a_at, b_at)                                                             \
    static __device__ __forceinline__ void wgmma_s8_start(int(&c)[n], uint64_t a, uint64_t b)      \
    {                                                                                              \
        asm volatile("wgmma.mma_async.sync.aligned.m64n" #n_col "k32.s32.s8.s8 {" NAMES_##n        \
                     "}, %" #a_at ", %" #b_at ", 0;"                                               \
                     : SUM_##n("=r", c, 0)                                                         \
                     : "l"(a), "l"(b));                                                            \
    }                                                                                              \
    static __device__ __forceinline__ void wgmma_s8_add(int(&c)[n], uint64_t a, uint64_t b)        \
    {                                                                                              \
        asm volatile("wgmma.mma_async.sync.aligned.m64n" #n_col "k32.s32.s8.s8 {" NAMES_##n        \
                     "}, %" #a_at ", %" #b_at ", 1;"                                               \
                     : SUM_##n("+r", c, 0)                                                         \
                     : "l"(a), "l"(b));                                                            \
    }                                                                                              \
    static __device__ __forceinline__ void wgmma_wait(int(&c)[n])                                  \
    {                                                                                              \
        asm volatile("wgmma.wait_group.sync.aligned 0;" : SUM_##n("+r", c, 0)::"memory");          \
    }

WGMMA_S8(4, 8, 4, 5)
WGMMA_S8(8, 16, 8, 9)
WGMMA_S8(16, 32, 16, 17)
WGMMA_S8(32, 64, 32, 33)
WGMMA_S8(64, 128, 64, 65)

/* Products of e4m3 with a in registers: a[0] and a[1] are bytes 4 t to 4 t + 3 of rows g and g + 8
 * of the warp's 16, a[2] and a[3] those 16 further along K. */
#define WGMMA_E4M3_KEPT(name, how, add, n, n_col, a0, a1, a2, a3, b_at)                            \
    static __device__ __forceinline__ void name(float(&c)[n], const uint32_t(&a)[4], uint64_t b)   \
    {                                                                                              \
        asm volatile("wgmma.mma_async.sync.aligned.m64n" #n_col "k32.f32.e4m3.e4m3 {" NAMES_##n    \
                     "}, {%" #a0 ",%" #a1 ",%" #a2 ",%" #a3 "}, %" #b_at ", " #add ", 1, 1;"       \
                     : SUM_##n(how, c, 0)                                                          \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                        \
    }
#define WGMMA_E4M3_KEPT_BOTH(n, n_col, a0, a1, a2, a3, b_at)                                       \
    WGMMA_E4M3_KEPT(wgmma_e4m3_start, "=f", 0, n, n_col, a0, a1, a2, a3, b_at)                     \
    WGMMA_E4M3_KEPT(wgmma_e4m3_add, "+f", 1, n, n_col, a0, a1, a2, a3, b_at)

WGMMA_E4M3_KEPT_BOTH(4, 8, 4, 5, 6, 7, 8)
WGMMA_E4M3_KEPT_BOTH(8, 16, 8, 9, 10, 11, 12)
WGMMA_E4M3_KEPT_BOTH(16, 32, 16, 17, 18, 19, 20)
WGMMA_E4M3_KEPT_BOTH(32, 64, 32, 33, 34, 35, 36)
WGMMA_E4M3_KEPT_BOTH(48, 96, 48, 49, 50, 51, 52)
WGMMA_E4M3_KEPT_BOTH(64, 128, 64, 65, 66, 67, 68)

/* Products of 64 rows x n_col columns, K = 16 bf16, likewise. */
#define WGMMA_BF16(n, n_col, a_at, b_at)                                                           \
    static __device__ __forceinline__ void wgmma_bf16_start(float(&c)[n], uint64_t a, uint64_t b)  \
    {                                                                                              \
        asm volatile("wgmma.mma_async.sync.aligned.m64n" #n_col "k16.f32.bf16.bf16 {" NAMES_##n    \
                     "}, %" #a_at ", %" #b_at ", 0, 1, 1, 0, 0;"                                   \
                     : SUM_##n("=f", c, 0)                                                         \
                     : "l"(a), "l"(b));                                                            \
    }                                                                                              \
    static __device__ __forceinline__ void wgmma_bf16_add(float(&c)[n], uint64_t a, uint64_t b)    \
    {                                                                                              \
        asm volatile("wgmma.mma_async.sync.aligned.m64n" #n_col "k16.f32.bf16.bf16 {" NAMES_##n    \
                     "}, %" #a_at ", %" #b_at ", 1, 1, 1, 0, 0;"                                   \
                     : SUM_##n("+f", c, 0)                                                         \
                     : "l"(a), "l"(b));                                                            \
    }

WGMMA_BF16(4, 8, 4, 5)
WGMMA_BF16(8, 16, 8, 9)
WGMMA_BF16(16, 32, 16, 17)
WGMMA_BF16(32, 64, 32, 33)
WGMMA_BF16(48, 96, 48, 49)
WGMMA_BF16(64, 128, 64, 65)
WGMMA_BF16(96, 192, 96, 97)
WGMMA_BF16(128, 256, 128, 129)

/* Products of 64 rows x n_col columns, K = 16 bf16, with a in registers as 4-byte pieces in the
 * same places. */
#define WGMMA_BF16_KEPT(name, how, add, n, n_col, a0, a1, a2, a3, b_at)                            \
    static __device__ __forceinline__ void name(float(&c)[n], const uint32_t(&a)[4], uint64_t b)   \
    {                                                                                              \
        asm volatile("wgmma.mma_async.sync.aligned.m64n" #n_col "k16.f32.bf16.bf16 {" NAMES_##n    \
                     "}, {%" #a0 ",%" #a1 ",%" #a2 ",%" #a3 "}, %" #b_at ", " #add ", 1, 1, 0;"    \
                     : SUM_##n(how, c, 0)                                                          \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                        \
    }

WGMMA_BF16_KEPT(wgmma_bf16_add, "+f", 1, 4, 8, 4, 5, 6, 7, 8)
WGMMA_BF16_KEPT(wgmma_bf16_add, "+f", 1, 8, 16, 8, 9, 10, 11, 12)
WGMMA_BF16_KEPT(wgmma_bf16_add, "+f", 1, 16, 32, 16, 17, 18, 19, 20)
WGMMA_BF16_KEPT(wgmma_bf16_add, "+f", 1, 32, 64, 32, 33, 34, 35, 36)
WGMMA_BF16_KEPT(wgmma_bf16_add, "+f", 1, 48, 96, 48, 49, 50, 51, 52)
WGMMA_BF16_KEPT(wgmma_bf16_add, "+f", 1, 64, 128, 64, 65, 66, 67, 68)
WGMMA_BF16_KEPT(wgmma_bf16_start, "=f", 0, 32, 64, 32, 33, 34, 35, 36)
WGMMA_BF16_KEPT(wgmma_bf16_start, "=f", 0, 64, 128, 64, 65, 66, 67, 68)

/* c += a * b of 64 rows x 128 columns, K = 16 bf16: a in registers, as mma_bf16 has it for the
 * warp's 16 rows, b turned. */
static __device__ __forceinline__ void wgmma_bf16_add_turned(float (&c)[64], const uint32_t (&a)[4],
                                                             uint64_t b)
{
    asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" NAMES_64
                 "}, {%64,%65,%66,%67}, %68, 1, 1, 1, 1;"
                 : SUM_64("+f", c, 0)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

/* Until all products committed but the last LEFT groups have finished; c is read after that. */
#define WGMMA_WAIT_BUT(type, how, n)                                                               \
    template <int LEFT> static __device__ __forceinline__ void wgmma_wait_but(type(&c)[n])         \
    {                                                                                              \
        asm volatile("wgmma.wait_group.sync.aligned %" #n ";"                                      \
                     : SUM_##n(how, c, 0)                                                          \
                     : "n"(LEFT)                                                                   \
                     : "memory");                                                                  \
    }

WGMMA_WAIT_BUT(float, "+f", 48)
WGMMA_WAIT_BUT(float, "+f", 64)
WGMMA_WAIT_BUT(float, "+f", 96)
WGMMA_WAIT_BUT(float, "+f", 128)
WGMMA_WAIT_BUT(int, "+r", 64)

#undef WGMMA_WAIT_BUT
#undef WGMMA_BF16_KEPT
#undef WGMMA_BF16
#undef WGMMA_E4M3_KEPT_BOTH
#undef WGMMA_E4M3_KEPT
#undef WGMMA_E4M3
#undef WGMMA_S8
#undef NAMES_128
#undef NAMES_96
#undef NAMES_64
#undef NAMES_48
#undef NAMES_32
#undef NAMES_16
#undef NAMES_8
#undef NAMES_4
#undef SUM_128
#undef SUM_96
#undef SUM_64
#undef SUM_48
#undef SUM_32
#undef SUM_16
#undef SUM_8
#undef SUM_4

#endif
