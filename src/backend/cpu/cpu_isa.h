/* cpu_isa.h - which of the inner loops this machine can run */
#ifndef FATHOM_BACKEND_CPU_ISA_H
#define FATHOM_BACKEND_CPU_ISA_H

#include "backend/backend.h"

struct cpu_kernels;

enum cpu_isa { CPU_ISA_BEST, CPU_ISA_AMX, CPU_ISA_AVX512, CPU_ISA_AVX2, CPU_ISA_PORTABLE };

/* cpu_kernels_of - the table for `isa`, or NULL when the processor, the operating system or this
 * build lacks it; CPU_ISA_BEST always has one */
const struct cpu_kernels *cpu_kernels_of(enum cpu_isa isa);

/* backend_cpu_create_isa - backend_cpu_create with a chosen instruction set, for tests
 * Errors  also EUNSUPPORTED when the machine lacks it. */
fathom_err backend_cpu_create_isa(struct backend **out, const struct backend_config *c,
                                  enum cpu_isa isa, fathom_diag *d);

/* The same by name, for programs that choose a backend by its name. */
fathom_err backend_cpu_avx512_create(struct backend **out, const struct backend_config *c,
                                     fathom_diag *d);
fathom_err backend_cpu_avx2_create(struct backend **out, const struct backend_config *c,
                                   fathom_diag *d);
fathom_err backend_cpu_portable_create(struct backend **out, const struct backend_config *c,
                                       fathom_diag *d);

#endif
