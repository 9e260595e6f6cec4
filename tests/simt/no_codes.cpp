/* no_codes.cpp - in place of the products of weights in other codes than FP8, where whole models run
 *
 * None of these models has such weights, and the compiler needs a minute for the kernels. The
 * operators' tests have them. */
#include <cstdio>
#include <cstdlib>

#include "backend/cuda/sm90/product_e2m1.cuh"
#include "backend/cuda/sm90/product_few.cuh"
#include "backend/cuda/sm90/product_int8.cuh"
#include "backend/cuda/sm90/product_u4.cuh"
#include "backend/cuda/sm90/product_u4_turned.cuh"

namespace {

[[noreturn]] gpu_error no_kernel(const char *name)
{
    fprintf(stderr, "simt: %s is not in this program: see tests/simt/no_codes.cpp\n", name);
    abort();
}

} // namespace

#define FEW(name)                                                                                  \
    gpu_error name##_init(void)                                                                    \
    {                                                                                              \
        return cudaSuccess;                                                                        \
    }                                                                                              \
    gpu_error name(const struct product_args &, uint32_t, uint32_t, const struct sm90_limits &,    \
                   gpu_stream)                                                                     \
    {                                                                                              \
        return no_kernel(#name);                                                                   \
    }
#define MANY(name)                                                                                 \
    gpu_error name##_init(void)                                                                    \
    {                                                                                              \
        return cudaSuccess;                                                                        \
    }                                                                                              \
    gpu_error name(const struct product_args &, uint32_t, const struct sm90_limits &, gpu_stream)  \
    {                                                                                              \
        return no_kernel(#name);                                                                   \
    }

FEW(product_few_e2m1)
FEW(product_few_int8)
FEW(product_few_u4)
MANY(product_e2m1_sm90)
MANY(product_int8_sm90)
MANY(product_u4_sm90)

gpu_error product_u4_turned_init(void)
{
    return cudaSuccess;
}

gpu_error product_u4_turned(const struct product_args &, void *, uint32_t,
                            const struct sm90_limits &, gpu_stream)
{
    return no_kernel("product_u4_turned");
}

size_t product_u4_turned_bytes(uint32_t, uint32_t)
{
    return 0;
}

bool product_u4_turns(const struct pack4 &)
{
    return false;
}

bool product_u4_takes(const struct pack4 &)
{
    return false;
}
