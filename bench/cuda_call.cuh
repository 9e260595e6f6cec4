/* cuda_call.cuh - calls of the CUDA runtime that end a benchmark when they fail */
#ifndef FATHOM_BENCH_CUDA_CALL_CUH
#define FATHOM_BENCH_CUDA_CALL_CUH

#include <cuda_runtime.h>
#include <stdio.h>
#include <stdlib.h>

#define CUDA(call)                                                                                 \
    do {                                                                                           \
        cudaError_t e_ = (call);                                                                   \
        if (e_ != cudaSuccess) {                                                                   \
            printf("FAIL line %d: %s: %s\n", __LINE__, #call, cudaGetErrorString(e_));             \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

#endif
