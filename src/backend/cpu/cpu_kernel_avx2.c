/* cpu_kernel_avx2.c - the kernels for AVX2 and FMA */
#include "backend/cpu/cpu_simd_avx2.h"

#define KERNEL_TABLE cpu_kernels_avx2
#define KERNEL_ISA "avx2 fma"
#define KERNEL_GEMM_INT8 cpu_gemm_int8_avx2

#include "backend/cpu/cpu_kernel_body.h"
