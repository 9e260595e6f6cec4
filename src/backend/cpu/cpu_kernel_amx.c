/* cpu_kernel_amx.c - the kernels for AVX-512 with AMX, which products with bf16 and int8 inputs
 * use, and attention to bf16 rows */
#include "backend/cpu/cpu_simd_avx512.h"

#define KERNEL_TABLE cpu_kernels_amx
#define KERNEL_ISA "avx512, amx bf16 and int8"
#define KERNEL_BF16_OPERAND OPERAND_BF16
#define KERNEL_GEMM_BF16 cpu_gemm_bf16_amx
#define KERNEL_GEMM_INT8 cpu_gemm_int8_amx
#define KERNEL_ATTEND_BF16 cpu_attend_bf16_amx
#define KERNEL_PACK_CODES cpu_pack_codes_avx512
#define KERNEL_PACK_HALVES cpu_pack_halves_avx512

#include "backend/cpu/cpu_kernel_body.h"
