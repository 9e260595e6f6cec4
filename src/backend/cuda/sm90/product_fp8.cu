/* product_fp8.cu - FP8 matrix product for many rows on sm_90a: which kernel is launched */
#include "backend/cuda/sm90/product_fp8.cuh"

#include "backend/cuda/sm90/product_fp8_kernel.cuh"

/* The kernels. Queries' take one part of K as one of several. */
template <enum form FORM, bool ONE_K_PART, enum weights WEIGHTS>
static product_kernel kernel_of_parts(enum output output)
{
    switch (output) {
    case OUTPUT_SWIGLU: return product_fp8_sm90_kernel<FORM, OUTPUT_SWIGLU, ONE_K_PART, WEIGHTS>;
    case OUTPUT_BF16: return product_fp8_sm90_kernel<FORM_LISTED, OUTPUT_BF16, ONE_K_PART, WEIGHTS>;
    case OUTPUT_QUERY: return product_fp8_sm90_kernel<FORM_PLAIN, OUTPUT_QUERY, false, WEIGHTS>;
    default: return product_fp8_sm90_kernel<FORM, OUTPUT_FLOAT, ONE_K_PART, WEIGHTS>;
    }
}

template <enum form FORM, enum weights WEIGHTS>
static product_kernel kernel_of(enum output output, bool one_k_part)
{
    return one_k_part ? kernel_of_parts<FORM, true, WEIGHTS>(output)
                      : kernel_of_parts<FORM, false, WEIGHTS>(output);
}

template <enum weights WEIGHTS>
static product_kernel find_kernel(enum form form, enum output output, bool one_k_part)
{
    switch (form) {
    case FORM_PLAIN: return kernel_of<FORM_PLAIN, WEIGHTS>(output, one_k_part);
    case FORM_LISTED: return kernel_of<FORM_LISTED, WEIGHTS>(output, one_k_part);
    default: return kernel_of<FORM_GATHER, WEIGHTS>(output, one_k_part);
    }
}

cudaError_t product_fp8_sm90(const struct product_args &a, uint32_t n_tile,
                             const struct sm90_limits &limits, cudaStream_t stream)
{
    const enum output output = output_of(a);
    ASSERT(a.k % BK == 0 && a.n % 16 == 0 && a.out_stride % 4 == 0 && limits.n_sm > 0);
    ASSERT((uintptr_t)a.w % 16 == 0 && (uintptr_t)a.q % 16 == 0 && (uintptr_t)a.out % 16 == 0);
    ASSERT(a.tiled && (!a.tasks || a.in_divisor > 0));
    struct work w;
    uint32_t n_block;
    cudaError_t e = make_work(&w, &n_block, a, n_tile, limits.n_sm);
    if (e != cudaSuccess || !n_block) return e;
    const enum form form = form_of(a);
    const bool one_k_part = w.n_k_part == 1;
    return launch(w,
                  a.row_scale ? find_kernel<WEIGHTS_FP8_ROW>(form, output, one_k_part)
                              : find_kernel<WEIGHTS_FP8>(form, output, one_k_part),
                  n_block, stream);
}

cudaError_t product_fp8_sm90_init(void)
{
    for (enum form form : {FORM_PLAIN, FORM_LISTED, FORM_GATHER}) {
        for (enum output output : {OUTPUT_FLOAT, OUTPUT_BF16, OUTPUT_SWIGLU, OUTPUT_QUERY}) {
            for (bool one_k_part : {false, true}) {
                for (auto kernel : {find_kernel<WEIGHTS_FP8>(form, output, one_k_part),
                                    find_kernel<WEIGHTS_FP8_ROW>(form, output, one_k_part)}) {
                    cudaError_t e = cudaFuncSetAttribute(
                        kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(struct stages));
                    if (e != cudaSuccess) return e;
                }
            }
        }
    }
    return cudaSuccess;
}
