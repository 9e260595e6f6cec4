/* cpu_kernel_avx512.c - the kernels for AVX-512; the bf16 dot products are in cpu_dot_avx512.c */
#include "backend/cpu/cpu_simd_avx512.h"

#define KERNEL_TABLE cpu_kernels_avx512
#define KERNEL_ISA "avx512 bf16"
#define KERNEL_BF16_OPERAND OPERAND_BF16
#define KERNEL_GEMM_BF16 cpu_gemm_bf16_avx512
#define KERNEL_GEMM_INT8 cpu_gemm_int8_avx512
#define KERNEL_ATTEND_BF16 cpu_attend_bf16_avx512
#define KERNEL_PACK_CODES cpu_pack_codes_avx512
#define KERNEL_PACK_HALVES cpu_pack_halves_avx512

#include "backend/cpu/cpu_kernel_body.h"
