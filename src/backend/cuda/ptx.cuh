/* ptx.cuh - inline PTX for every GPU of NVIDIA, one instruction a function
 *
 * The backend's other PTX is that of sm_90a, in sm90/ptx90.cuh and sm90/wgmma.cuh. The simulated
 * GPU has headers of the same names in place of the three (tests/simt/include), and AMD's GPUs have
 * hip/gcn.cuh.
 *
 * Fragments of the m16n8 products, lane = 4*g + t:
 *   A (16 rows)  a0: row g, a1: row g+8, a2, a3: the same rows, second half of K
 *   B (8 cols)   b0: column g, first half of K; b1: second half
 *   C            c0, c1: row g, columns 2t, 2t+1; c2, c3: row g+8
 * For 8-bit types a register holds 4 consecutive k at 4t; for 16-bit types 2 at 2t.
 */
#ifndef FATHOM_BACKEND_CUDA_PTX_CUH
#define FATHOM_BACKEND_CUDA_PTX_CUH

#include "backend/cuda/port.cuh"

#ifdef __HIP__
#include "backend/cuda/hip/gcn.cuh"
#else

/* c += a * b, bf16 in, f32 sums; K = 16 */
static __device__ __forceinline__ void mma_bf16(float c[4], uint32_t a0, uint32_t a1, uint32_t a2,
                                                uint32_t a3, uint32_t b0, uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                 "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

/* c += a * b, f16 in, f32 sums; K = 16 */
static __device__ __forceinline__ void mma_f16(float c[4], uint32_t a0, uint32_t a1, uint32_t a2,
                                               uint32_t a3, uint32_t b0, uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
                 "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

/* |a - b| of each of four bytes */
static __device__ __forceinline__ uint32_t abs_difference_x4(uint32_t a, uint32_t b)
{
    uint32_t r;
    asm("vabsdiff4.u32.u32.u32 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(0u));
    return r;
}

/* Two halves at once */
static __device__ __forceinline__ uint32_t mul_f16x2(uint32_t a, uint32_t b)
{
    uint32_t r;
    asm("mul.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
    return r;
}

/* Two bf16 at once */
static __device__ __forceinline__ uint32_t mul_bf16x2(uint32_t a, uint32_t b)
{
    uint32_t r;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(0x80008000)); /* - 0 */
    return r;
}

/* The same by one half of b alone: mul_bf16x2_low and mul_bf16x2_high */
#define MUL_BF16X2_BY(half)                                                                        \
    static __device__ __forceinline__ uint32_t mul_bf16x2_##half(uint32_t a, uint32_t b)           \
    {                                                                                              \
        uint32_t r;                                                                                \
        asm("{\n"                                                                                  \
            ".reg .b16 low, high;\n"                                                               \
            ".reg .b32 both;\n"                                                                    \
            "mov.b32 {low, high}, %2;\n"                                                           \
            "mov.b32 both, {" #half ", " #half "};\n"                                              \
            "fma.rn.bf16x2 %0, %1, both, %3;\n"                                                    \
            "}"                                                                                    \
            : "=r"(r)                                                                              \
            : "r"(a), "r"(b), "r"(0x80008000));                                                    \
        return r;                                                                                  \
    }

MUL_BF16X2_BY(low)
MUL_BF16X2_BY(high)
#undef MUL_BF16X2_BY

/* Where `pick` has ones, bits of b; elsewhere those of a. */
static __device__ __forceinline__ uint32_t select_bits(uint32_t a, uint32_t b, uint32_t pick)
{
    uint32_t r;
    asm("lop3.b32 %0, %1, %2, %3, 0xe4;" : "=r"(r) : "r"(b), "r"(a), "r"(pick));
    return r;
}

/* v & mask | more */
static __device__ __forceinline__ uint32_t and_or(uint32_t v, uint32_t mask, uint32_t more)
{
    uint32_t r;
    asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(r) : "r"(v), "r"(mask), "r"(more));
    return r;
}

static __device__ __forceinline__ uint32_t rotate_left(uint32_t v, uint32_t n)
{
    uint32_t r;
    asm("shf.l.wrap.b32 %0, %1, %1, %2;" : "=r"(r) : "r"(v), "r"(n));
    return r;
}

/* Byte i of the result is the byte of b:a that the lower three bits of nibble i of `pick` name;
 * with the fourth bit set, that byte's sign in all of its bits. */
static __device__ __forceinline__ uint32_t permute_bytes(uint32_t a, uint32_t b, uint32_t pick)
{
    uint32_t r;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(pick));
    return r;
}

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 890
/* Two codes as two f16, exactly */
static __device__ __forceinline__ uint32_t e4m3x2_to_f16x2(uint16_t v)
{
    uint32_t r;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(r) : "h"(v));
    return r;
}

/* Four codes likewise, the lower two to *lo; the halves are not shifted apart. */
static __device__ __forceinline__ void e4m3x4_to_f16x2(uint32_t codes, uint32_t *lo, uint32_t *hi)
{
    asm("{\n"
        ".reg .b16 a, b;\n"
        "mov.b32 {a, b}, %2;\n"
        "cvt.rn.f16x2.e4m3x2 %0, a;\n"
        "cvt.rn.f16x2.e4m3x2 %1, b;\n"
        "}"
        : "=r"(*lo), "=r"(*hi)
        : "r"(codes));
}

/* c += a * b, e4m3 in, f32 sums; K = 32 */
static __device__ __forceinline__ void mma_e4m3(float c[4], uint32_t a0, uint32_t a1, uint32_t a2,
                                                uint32_t a3, uint32_t b0, uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 "
                 "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
#else
#include "backend/cuda/e4m3_soft.cuh"

static __device__ __forceinline__ uint32_t e4m3x2_to_f16x2(uint16_t v)
{
    return soft_e4m3x2_to_f16x2(v);
}

static __device__ __forceinline__ void e4m3x4_to_f16x2(uint32_t codes, uint32_t *lo, uint32_t *hi)
{
    *lo = soft_e4m3x2_to_f16x2((uint16_t)codes);
    *hi = soft_e4m3x2_to_f16x2((uint16_t)(codes >> 16));
}

static __device__ __forceinline__ void mma_e4m3(float c[4], uint32_t a0, uint32_t a1, uint32_t a2,
                                                uint32_t a3, uint32_t b0, uint32_t b1)
{
    soft_mma_e4m3(c, a0, a1, a2, a3, b0, b1);
}
#endif

/* c += a * b, int8 in, exact sums; K = 32 */
static __device__ __forceinline__ void mma_s8(int c[4], uint32_t a0, uint32_t a1, uint32_t a2,
                                              uint32_t a3, uint32_t b0, uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 "
                 "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

static __device__ __forceinline__ uint32_t pack_f16(float lo, float hi)
{
    uint32_t v;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(v) : "f"(hi), "f"(lo));
    return v;
}

/* 2^x within 2 units in the last place; 0 below 2^-126 */
static __device__ __forceinline__ float exp2_approx(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* 1 / x within 1 unit in the last place; 0 for an infinity and from 2^126 on */
static __device__ __forceinline__ float reciprocal_approx(float x)
{
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* For the compiler: what is at p may be read and changed here. Keeps it in memory. */
static __device__ __forceinline__ void memory_touch(const void *p)
{
    asm volatile("" ::"l"(p) : "memory");
}

static __device__ __forceinline__ uint32_t smem_address(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* 16 bytes from device to shared memory without registers; src may be dead when !valid: zeros */
static __device__ __forceinline__ void cp_async_16(uint32_t dst, const void *src, bool valid)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(dst), "l"(src),
                 "r"(valid ? 16 : 0));
}

static __device__ __forceinline__ void cp_async_commit(void)
{
    asm volatile("cp.async.commit_group;");
}

template <int N> static __device__ __forceinline__ void cp_async_wait(void)
{
    asm volatile("cp.async.wait_group %0;" ::"n"(N));
}

static __device__ __forceinline__ void ldmatrix_x4(uint32_t r[4], uint32_t address)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address));
}

static __device__ __forceinline__ void ldmatrix_x4_trans(uint32_t r[4], uint32_t address)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address));
}

/* 16 bytes that are used once: not kept in L1 */
static __device__ __forceinline__ uint4 load_stream(const void *p)
{
    uint4 v;
    asm volatile("ld.global.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p));
    return v;
}

/* 16 bytes from L2: what a kernel that has not waited yet reads of what is there already */
static __device__ __forceinline__ uint4 load_past_l1(const void *p)
{
    uint4 v;
    asm volatile("ld.global.cg.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p)
                 : "memory");
    return v;
}

/* Brings the cache line of 128 bytes at p, or nothing, into L2. */
static __device__ __forceinline__ void prefetch_l2(const void *p)
{
    asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
}

/* ---- between devices: relaxed, at the system's scope ---- */

static __device__ __forceinline__ void peer_store(void *p, uint4 v)
{
    asm volatile("st.relaxed.sys.global.v4.u32 [%0], {%1,%2,%3,%4};" ::"l"(p), "r"(v.x), "r"(v.y),
                 "r"(v.z), "r"(v.w)
                 : "memory");
}

static __device__ __forceinline__ uint4 peer_load(const void *p)
{
    uint4 v;
    asm volatile("ld.relaxed.sys.global.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p)
                 : "memory");
    return v;
}

static __device__ __forceinline__ void peer_store_8(void *p, uint64_t v)
{
    asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}

static __device__ __forceinline__ uint64_t peer_load_8(const void *p)
{
    uint64_t v;
    asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
    return v;
}

/* What the thread has done and seen comes before the store; what comes before a store comes before
 * what follows the load that sees it. */
static __device__ __forceinline__ void peer_store_release(void *p, uint32_t v)
{
    asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}

static __device__ __forceinline__ uint32_t peer_load_acquire(const void *p)
{
    uint32_t v;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}

static __device__ __forceinline__ void system_fence(void)
{
    __threadfence_system();
}

static __device__ __forceinline__ uint64_t global_nanoseconds(void)
{
    uint64_t v;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(v));
    return v;
}

/* A thread is about to look again for what another device sends: the simulated GPU's devices take
 * turns here. */
static __device__ __forceinline__ void look_later(const char *, uint32_t, uint32_t, uint32_t)
{
}

/* Ends the kernel as one that has failed. */
static __device__ __forceinline__ void kernel_trap(void)
{
    asm volatile("trap;");
}

/* Programmatic dependent launch: wait until the kernel before has finished and its writes can be
 * seen; let the next kernel begin its prologue. No-ops in a launch without the attribute. */
static __device__ __forceinline__ void dependency_wait(void)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

static __device__ __forceinline__ void dependency_release(void)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}

#endif /* not __HIP__ */
#endif
