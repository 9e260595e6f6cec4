/* links_bench.cu - what two GPUs of one host can do with each other's memory
 *
 *   bench_links
 *
 * A line says what was measured, with which size and blocks, and the best of REPEATS: reads of a
 * GPU's own memory before and after peers have access to it; stores to a peer by few blocks, and by
 * a copy engine; the same reads beside such stores; and rows of a cache's page gathered from a
 * peer. */
#include <stdint.h>

#include "cuda_call.cuh"

enum {
    REPEATS = 7,
    THREADS = 512,
    ROW_UNITS = 41, /* of 16 bytes: a latent row of the FP8 cache */
    N_ROW = 2048,
    MIB = 1 << 20,
    READ_MIB = 1024,
    REGION_MIB = 256,
    BESIDE_MIB = 512,
};

__global__ void __launch_bounds__(THREADS) read_kernel(const uint4 *from, uint64_t n, uint4 *sink)
{
    uint4 sum = make_uint4(0, 0, 0, 0);
    const uint64_t step = (uint64_t)gridDim.x * THREADS;
    for (uint64_t i = (uint64_t)blockIdx.x * THREADS + threadIdx.x; i < n; i += step * 4) {
#pragma unroll
        for (uint64_t k = 0; k < 4; k++) {
            if (i + k * step >= n) break;
            const uint4 v = from[i + k * step];
            sum = make_uint4(sum.x ^ v.x, sum.y ^ v.y, sum.z ^ v.z, sum.w ^ v.w);
        }
    }
    if ((sum.x & sum.y & sum.z & sum.w) == 0x5a5a5a5au) *sink = sum;
}

__global__ void __launch_bounds__(THREADS) push_kernel(uint4 *to, const uint4 *from, uint64_t n)
{
    const uint64_t step = (uint64_t)gridDim.x * THREADS;
    for (uint64_t i = (uint64_t)blockIdx.x * THREADS + threadIdx.x; i < n; i += step * 4) {
        uint4 v[4];
#pragma unroll
        for (uint64_t k = 0; k < 4; k++)
            if (i + k * step < n) v[k] = from[i + k * step];
#pragma unroll
        for (uint64_t k = 0; k < 4; k++)
            if (i + k * step < n) to[i + k * step] = v[k];
    }
}

/* A warp a row */
__global__ void __launch_bounds__(THREADS)
    gather_kernel(uint4 *to, const uint4 *from, uint32_t rows_there)
{
    const uint32_t row = (blockIdx.x * THREADS + threadIdx.x) / 32, lane = threadIdx.x % 32;
    if (row >= N_ROW) return;
    const uint32_t at = (uint32_t)((row * 2654435761ull + 12345) % rows_there);
    for (uint32_t i = lane; i < ROW_UNITS; i += 32)
        to[(size_t)row * ROW_UNITS + i] = from[(size_t)at * ROW_UNITS + i];
}

struct gpu {
    cudaStream_t stream, other;
    cudaEvent_t begin, end;
    uint4 *memory, *region;
};

static struct gpu gpus[2];

static void open_gpu(int i)
{
    struct gpu *g = &gpus[i];
    CUDA(cudaSetDevice(i));
    CUDA(cudaStreamCreateWithFlags(&g->stream, cudaStreamNonBlocking));
    CUDA(cudaStreamCreateWithFlags(&g->other, cudaStreamNonBlocking));
    CUDA(cudaEventCreate(&g->begin));
    CUDA(cudaEventCreate(&g->end));
    CUDA(cudaMalloc(&g->memory, (size_t)READ_MIB * MIB));
    CUDA(cudaMalloc(&g->region, (size_t)BESIDE_MIB * MIB));
    CUDA(cudaMemset(g->memory, 1, (size_t)READ_MIB * MIB));
    CUDA(cudaMemset(g->region, 1, (size_t)BESIDE_MIB * MIB));
    CUDA(cudaDeviceSynchronize());
}

/* Microseconds of n calls of GPU 0's work, a call; best of REPEATS. */
template <typename WORK> static double time_us(int n, WORK work)
{
    double best = 1e30;
    for (int k = 0; k < REPEATS; k++) {
        float ms = 0.0f;
        CUDA(cudaEventRecord(gpus[0].begin, gpus[0].stream));
        for (int i = 0; i < n; i++) work();
        CUDA(cudaEventRecord(gpus[0].end, gpus[0].stream));
        CUDA(cudaDeviceSynchronize());
        CUDA(cudaEventElapsedTime(&ms, gpus[0].begin, gpus[0].end));
        best = ms * 1e3 / n < best ? ms * 1e3 / n : best;
    }
    return best;
}

static void print(const char *what, size_t bytes, int blocks, double us)
{
    printf("%s,%zu,%d,%.2f,%.1f\n", what, bytes, blocks, us, (double)bytes / us * 1e-3);
    (void)fflush(stdout);
}

static void read_own(const char *what)
{
    const size_t n = (size_t)READ_MIB * MIB;
    const int blocks = 132 * 4;
    print(what, n, blocks, time_us(4, [&] {
              read_kernel<<<blocks, THREADS, 0, gpus[0].stream>>>(gpus[0].memory, n / 16,
                                                                  gpus[0].region);
          }));
}

static void push(size_t n)
{
    static const int blocks[] = {8, 16, 32, 64, 132};
    for (int b : blocks) {
        print("stores to a peer", n, b, time_us(16, [&] {
                  push_kernel<<<b, THREADS, 0, gpus[0].stream>>>(gpus[1].memory, gpus[0].memory,
                                                                 n / 16);
              }));
    }
    print("copy engine to a peer", n, 0, time_us(16, [&] {
              CUDA(cudaMemcpyAsync(gpus[1].memory, gpus[0].memory, n, cudaMemcpyDeviceToDevice,
                                   gpus[0].stream));
          }));
}

/* Reads of GPU 0 while its other queue sends to the peer. */
static void read_beside(int blocks)
{
    const size_t n = (size_t)BESIDE_MIB * MIB;
    for (int k = 0; k < 6; k++) {
        if (blocks)
            push_kernel<<<blocks, THREADS, 0, gpus[0].other>>>(gpus[1].region, gpus[0].region,
                                                               n / 16);
        else
            CUDA(cudaMemcpyAsync(gpus[1].region, gpus[0].region, n, cudaMemcpyDeviceToDevice,
                                 gpus[0].other));
    }
    const size_t n_read = (size_t)READ_MIB * MIB;
    float ms = 0.0f;
    CUDA(cudaEventRecord(gpus[0].begin, gpus[0].stream));
    for (int k = 0; k < 4; k++)
        read_kernel<<<132 * 3, THREADS, 0, gpus[0].stream>>>(gpus[0].memory, n_read / 16,
                                                             gpus[0].memory);
    CUDA(cudaEventRecord(gpus[0].end, gpus[0].stream));
    CUDA(cudaDeviceSynchronize());
    CUDA(cudaEventElapsedTime(&ms, gpus[0].begin, gpus[0].end));
    print(blocks ? "reads beside stores" : "reads beside a copy engine", n_read, blocks,
          ms * 1e3 / 4);
}

static void gather(const char *what, const uint4 *from)
{
    const uint32_t rows_there = REGION_MIB * (MIB / 16) / ROW_UNITS;
    const int blocks = N_ROW * 32 / THREADS;
    print(what, (size_t)N_ROW * ROW_UNITS * 16, blocks, time_us(32, [&] {
              gather_kernel<<<blocks, THREADS, 0, gpus[0].stream>>>(gpus[0].region, from,
                                                                    rows_there);
          }));
}

int main(void)
{
    int n = 0;
    if (cudaGetDeviceCount(&n) != cudaSuccess || n < 2) {
        fprintf(stderr, "two GPUs are needed\n");
        return 2;
    }
    for (int i = 1; i >= 0; i--) open_gpu(i); /* GPU 0 stays the current one */
    printf("what,bytes,blocks,us,gb_s\n");
    read_own("reads, no peer access");
    CUDA(cudaSetDevice(1));
    CUDA(cudaDeviceEnablePeerAccess(0, 0));
    CUDA(cudaSetDevice(0));
    CUDA(cudaDeviceEnablePeerAccess(1, 0));
    read_own("reads, peer access");
    for (size_t mib = 1; mib <= 16; mib *= 4) push(mib * MIB);
    read_beside(8);
    read_beside(16);
    read_beside(32);
    read_beside(0);
    gather("rows of 656 bytes, own", gpus[0].memory);
    gather("rows of 656 bytes, a peer's", gpus[1].memory);
    return 0;
}
