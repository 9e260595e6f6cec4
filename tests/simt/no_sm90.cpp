/* no_sm90.cpp - the simulated GPU is none of sm_90, so that this is not called */
#include <stdlib.h>

#include "backend/cuda/sm90/product_fp8.cuh"

cudaError_t product_fp8_sm90(const struct product_args &, uint32_t, int, cudaStream_t)
{
    abort();
}
