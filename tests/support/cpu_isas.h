/* cpu_isas.h - the instruction sets of the CPU backend, for tests of its inner loops */
#ifndef FATHOM_TESTS_CPU_ISAS_H
#define FATHOM_TESTS_CPU_ISAS_H

#include <math.h>
#include <stdbool.h>

#include "backend/cpu/cpu_int.h"

static const enum cpu_isa isas[] = {CPU_ISA_PORTABLE, CPU_ISA_AVX2, CPU_ISA_AVX512, CPU_ISA_AMX};
enum { N_ISA = sizeof isas / sizeof *isas };

/* same_float - the same bits, or both no number */
static inline bool same_float(float a, float b)
{
    return f32_bits(a) == f32_bits(b) || (isnan(a) && isnan(b));
}

#endif
