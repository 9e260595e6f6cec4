/* cpu_isa.c - the inner loops that the processor and the operating system can run */
#include "backend/cpu/cpu_isa.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "backend/backend.h"
#include "backend/cpu/cpu_kernel.h"

#if defined(__x86_64__)

static bool has_avx2(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

static bool has_avx512(void)
{
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512bf16") &&
           __builtin_cpu_supports("avx512vnni");
}

/* Tiles with bf16 and int8 products, and the system's leave for this process to have their
 * registers, which it gives as often as it is asked. */
static bool has_amx(void)
{
    enum { ASK_FOR_STATE = 0x1023, TILE_DATA = 18 };
    const unsigned need = 1u << 22 | 1u << 24 | 1u << 25; /* leaf 7, edx: bf16, tiles, int8 */
    unsigned a, b, c, d;
    if (!has_avx512() || !__get_cpuid_count(7, 0, &a, &b, &c, &d)) return false;
    if ((d & need) != need) return false;
    return syscall(SYS_arch_prctl, ASK_FOR_STATE, TILE_DATA) == 0;
}

const struct cpu_kernels *cpu_kernels_of(enum cpu_isa isa)
{
    bool amx = has_amx();
    bool avx512 = has_avx512();
    bool avx2 = has_avx2();
    switch (isa) {
    case CPU_ISA_AMX: return amx ? &cpu_kernels_amx : NULL;
    case CPU_ISA_AVX512: return avx512 ? &cpu_kernels_avx512 : NULL;
    case CPU_ISA_AVX2: return avx2 ? &cpu_kernels_avx2 : NULL;
    case CPU_ISA_PORTABLE: return &cpu_kernels_portable;
    case CPU_ISA_BEST: break;
    }
    if (amx) return &cpu_kernels_amx;
    return avx512 ? &cpu_kernels_avx512 : avx2 ? &cpu_kernels_avx2 : &cpu_kernels_portable;
}

#else

const struct cpu_kernels *cpu_kernels_of(enum cpu_isa isa)
{
    return isa == CPU_ISA_BEST || isa == CPU_ISA_PORTABLE ? &cpu_kernels_portable : NULL;
}

#endif

const char *backend_cpu_isa(void)
{
    return cpu_kernels_of(CPU_ISA_BEST)->isa;
}
