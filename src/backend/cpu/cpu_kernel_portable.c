/* cpu_kernel_portable.c - the kernels for any machine */
#include "backend/cpu/cpu_simd_portable.h"

#define KERNEL_TABLE cpu_kernels_portable
#define KERNEL_ISA "portable"

#include "backend/cpu/cpu_kernel_body.h"
