/* product_peer.cuh - FP8 products by cuBLASLt with scales per 128 and per 128 x 128, as a measure
 *
 * The library is looked for when the program runs, and this program does without. */
#ifndef FATHOM_BENCH_PRODUCT_PEER_CUH
#define FATHOM_BENCH_PRODUCT_PEER_CUH

#include <dlfcn.h>

#if __has_include(<cublasLt.h>)
#include <cublasLt.h>
#define PEER_HEADER 1
#else
#define PEER_HEADER 0
#endif

#include "product_case.cuh"

#if PEER_HEADER

enum { PEER_WORK_BYTES = 64 << 20 };

struct peer {
    void *library;
    cublasLtHandle_t handle;
    cublasLtMatmulDesc_t product;
    cublasLtMatrixLayout_t w, in, out;
    cublasLtMatmulAlgo_t algorithm;
    void *work;
    decltype(&cublasLtMatmul) run;
};

#define PEER_FIND(p, name) decltype(&name) call_##name = (decltype(&name))dlsym((p)->library, #name)

/* The plain product of `a` with f32 or bf16 outputs; false: no library, or no such kernel. */
static bool peer_open(struct peer *p, const struct product_args &a, bool rounded)
{
    *p = {};
    p->library = dlopen("libcublasLt.so.13", RTLD_NOW);
    if (!p->library) return false;
    PEER_FIND(p, cublasLtCreate);
    PEER_FIND(p, cublasLtMatmulDescCreate);
    PEER_FIND(p, cublasLtMatmulDescSetAttribute);
    PEER_FIND(p, cublasLtMatrixLayoutCreate);
    PEER_FIND(p, cublasLtMatmulPreferenceCreate);
    PEER_FIND(p, cublasLtMatmulPreferenceSetAttribute);
    PEER_FIND(p, cublasLtMatmulAlgoGetHeuristic);
    p->run = (decltype(&cublasLtMatmul))dlsym(p->library, "cublasLtMatmul");
    if (!p->run || !call_cublasLtMatmulAlgoGetHeuristic) return false;
    if (call_cublasLtCreate(&p->handle) != CUBLAS_STATUS_SUCCESS) return false;
    if (call_cublasLtMatmulDescCreate(&p->product, CUBLAS_COMPUTE_32F, CUDA_R_32F)) return false;
    const cublasOperation_t turned = CUBLAS_OP_T, plain = CUBLAS_OP_N;
    const cublasLtMatmulMatrixScale_t squares = CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F;
    const cublasLtMatmulMatrixScale_t lines = CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F;
    const struct {
        cublasLtMatmulDescAttributes_t which;
        const void *value;
        size_t n_byte;
    } attributes[] = {
        {CUBLASLT_MATMUL_DESC_TRANSA, &turned, sizeof turned},
        {CUBLASLT_MATMUL_DESC_TRANSB, &plain, sizeof plain},
        {CUBLASLT_MATMUL_DESC_A_SCALE_MODE, &squares, sizeof squares},
        {CUBLASLT_MATMUL_DESC_B_SCALE_MODE, &lines, sizeof lines},
        {CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &a.w_scale, sizeof a.w_scale},
        {CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &a.q_scale, sizeof a.q_scale},
    };
    for (const auto &x : attributes) {
        if (call_cublasLtMatmulDescSetAttribute(p->product, x.which, x.value, x.n_byte)) {
            return false;
        }
    }
    const cudaDataType_t type = rounded ? CUDA_R_16BF : CUDA_R_32F;
    if (call_cublasLtMatrixLayoutCreate(&p->w, CUDA_R_8F_E4M3, a.k, a.n, a.k) ||
        call_cublasLtMatrixLayoutCreate(&p->in, CUDA_R_8F_E4M3, a.k, a.n_token, a.k) ||
        call_cublasLtMatrixLayoutCreate(&p->out, type, a.n, a.n_token, a.n)) {
        return false;
    }
    cublasLtMatmulPreference_t wish;
    const size_t n_byte = PEER_WORK_BYTES;
    if (call_cublasLtMatmulPreferenceCreate(&wish) ||
        call_cublasLtMatmulPreferenceSetAttribute(wish, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                                  &n_byte, sizeof n_byte)) {
        return false;
    }
    cublasLtMatmulHeuristicResult_t found;
    int n = 0;
    if (call_cublasLtMatmulAlgoGetHeuristic(p->handle, p->product, p->w, p->in, p->out, p->out,
                                            wish, 1, &found, &n) ||
        n < 1) {
        return false;
    }
    p->algorithm = found.algo;
    p->work = device_bytes(PEER_WORK_BYTES);
    return true;
}

/* Its sums are not those of `a`, whose weights lie in tiles: for times alone. */
static void peer_run(const struct peer *p, const struct product_args &a)
{
    const float one = 1.0f, zero = 0.0f;
    const cublasStatus_t e =
        p->run(p->handle, p->product, &one, a.w, p->w, a.q, p->in, &zero, a.out, p->out, a.out,
               p->out, &p->algorithm, p->work, PEER_WORK_BYTES, NULL);
    if (e == CUBLAS_STATUS_SUCCESS) return;
    fprintf(stderr, "cublasLtMatmul: status %d\n", (int)e);
    exit(1);
}

static void peer_close(struct peer *p)
{
    CUDA(cudaFree(p->work));
    p->work = NULL;
}

#undef PEER_FIND

#else

struct peer {
    int none;
};

static bool peer_open(struct peer *, const struct product_args &, bool)
{
    return false;
}

static void peer_run(const struct peer *, const struct product_args &)
{
}

static void peer_close(struct peer *)
{
}

#endif

#endif
