/* wgmma_bf16.cuh - inline PTX of sm_90a, one instruction a function: products of bf16 for attention
 *
 * Tiles and sums are those of wgmma.cuh. A turned operand's rows of 128 bytes run along its
 * columns: a row is one value of K, eight rows make an atom. */
#ifndef FATHOM_BACKEND_CUDA_SM90_WGMMA_BF16_CUH
#define FATHOM_BACKEND_CUDA_SM90_WGMMA_BF16_CUH

#include "backend/cuda/sm90/wgmma.cuh"

#define SUM_4(how, c, i) how(c[i]), how(c[i + 1]), how(c[i + 2]), how(c[i + 3])
#define SUM_8(how, c, i) SUM_4(how, c, i), SUM_4(how, c, i + 4)
#define SUM_16(how, c, i) SUM_8(how, c, i), SUM_8(how, c, i + 8)
#define SUM_32(how, c, i) SUM_16(how, c, i), SUM_16(how, c, i + 16)
#define SUM_64(how, c, i) SUM_32(how, c, i), SUM_32(how, c, i + 32)
#define NAMES_32                                                                                   \
    "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,"   \
    "%25,%26,%27,%28,%29,%30,%31"
#define NAMES_64                                                                                   \
    NAMES_32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,"   \
             "%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"

/* 64 rows x 64 columns, K = 16: c = a * b^T if !adds, else c += a * b^T */
static __device__ __forceinline__ void wgmma_scores(float (&c)[32], uint64_t a, uint64_t b,
                                                    bool adds)
{
    asm volatile("{\n"
                 ".reg .pred p;\n"
                 "setp.ne.b32 p, %34, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" NAMES_32
                 "}, %32, %33, p, 1, 1, 0, 0;\n"
                 "}"
                 : SUM_32("+f", c, 0)
                 : "l"(a), "l"(b), "r"((int)adds));
}

/* c, from AT on, += a * b of 64 rows x 128 columns, K = 16, b turned. a in registers: as mma_bf16
 * has the warp's 16 rows; they keep their values until the product has been waited for. */
template <int AT>
static __device__ __forceinline__ void wgmma_add_half(float (&c)[128], const uint32_t (&a)[4],
                                                      uint64_t b)
{
    asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" NAMES_64
                 "}, {%64,%65,%66,%67}, %68, 1, 1, 1, 1;"
                 : SUM_64("+f", c, AT)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

/* The same, a in shared memory */
template <int AT>
static __device__ __forceinline__ void wgmma_add_half(float (&c)[128], uint64_t a, uint64_t b)
{
    asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" NAMES_64
                 "}, %64, %65, 1, 1, 1, 0, 1;"
                 : SUM_64("+f", c, AT)
                 : "l"(a), "l"(b));
}

/* c += a * b of 64 rows x 256 columns, in two halves: a kernel of 512 threads is compiled for 128
 * registers, and an instruction may not name more. b: columns in tiles of 64, K of 64 values */
template <typename A>
static __device__ __forceinline__ void wgmma_add_columns(float (&c)[128], const A &a, uint64_t b)
{
    enum { TWO_TILES = 2 * 64 * 128 };
    wgmma_add_half<0>(c, a, b);
    wgmma_add_half<64>(c, a, b + (TWO_TILES >> 4));
}

/* wgmma_wait_but of wgmma.cuh for sums of 64 columns */
template <int LEFT> static __device__ __forceinline__ void wgmma_wait_but(float (&c)[32])
{
    asm volatile("wgmma.wait_group.sync.aligned %32;" : SUM_32("+f", c, 0) : "n"(LEFT) : "memory");
}

#undef NAMES_64
#undef NAMES_32
#undef SUM_64
#undef SUM_32
#undef SUM_16
#undef SUM_8
#undef SUM_4

#endif
