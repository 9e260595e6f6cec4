/* test_race.cpp - races in shared memory are found, and what is waited for is none */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

extern "C" {
#include <cmocka.h>
}

#include "backend/cuda/ptx.cuh"
#include "backend/cuda/sm90/wgmma.cuh"

namespace
{

enum { THREADS = 64 };

void run(void (*kernel)(void))
{
    simt_run(dim3(2), dim3(THREADS), 1, THREADS * 16, kernel);
}

/* Runs something in a process of its own: whether it was ended, and for a race. */
bool is_ended(void (*run_it)(void (*)(void)), void (*kernel)(void))
{
    char text[512] = "";
    int out[2], status;
    if (pipe(out) != 0) fail();
    const pid_t child = fork();
    if (child == 0) {
        (void)dup2(out[1], STDERR_FILENO);
        run_it(kernel);
        _exit(0);
    }
    (void)close(out[1]);
    size_t n = 0;
    for (ssize_t k; n < sizeof text - 1 && (k = read(out[0], text + n, sizeof text - 1 - n)) > 0;)
        n += (size_t)k;
    (void)close(out[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    if (WIFEXITED(status)) return false;
    assert_int_equal(WTERMSIG(status), SIGABRT);
    if (!strstr(text, "simt: race: ")) fail_msg("%s", text);
    return true;
}

bool is_found(void (*kernel)(void))
{
    return is_ended(run, kernel);
}

void run_whole(void (*launch)(void))
{
    launch();
}

/* Each thread writes its word and reads its neighbour's, `distance` away. */
template <int DISTANCE, int WAIT> void exchange(void)
{
    SHARED_DYNAMIC(uint32_t, words);
    volatile uint32_t got;
    words[threadIdx.x] = threadIdx.x;
    if (WAIT == 1) __syncwarp();
    if (WAIT == 2) __syncthreads();
    got = words[(threadIdx.x + DISTANCE) % THREADS];
    (void)got;
}

/* All read what one then writes. */
template <int WAIT> void overwrite(void)
{
    __shared__ uint32_t word;
    volatile uint32_t got;
    if (threadIdx.x == 0) word = 1;
    __syncthreads();
    got = word;
    (void)got;
    if (WAIT == 1) __syncwarp();
    if (WAIT == 2) __syncthreads();
    if (threadIdx.x == 5) word = 2;
}

/* What another thread of the host does while a kernel runs is no thread's of the kernel. */
void beside_host(void)
{
    __shared__ uint32_t word;
    volatile uint32_t got;
    if (threadIdx.x == 0) std::thread([p = &word] { *p = 1; }).join();
    if (threadIdx.x == THREADS - 1) got = word;
    (void)got;
}

template <bool ATOMIC> void count(void)
{
    __shared__ int n;
    if (threadIdx.x == 0) n = 0;
    __syncthreads();
    if (ATOMIC)
        atomicAdd(&n, 1);
    else
        n += 1;
}

/* A copy on its way to what another thread still reads */
template <bool WAIT> void copy_over(void)
{
    static uint32_t from[THREADS * 4];
    SHARED_DYNAMIC(uint32_t, words);
    volatile uint32_t got;
    words[threadIdx.x * 4] = 0;
    __syncthreads();
    got = words[(threadIdx.x * 4 + 4) % (THREADS * 4)];
    (void)got;
    if (WAIT) __syncthreads();
    cp_async_16(smem_address(words + threadIdx.x * 4), from, true);
    cp_async_commit();
    cp_async_wait<0>();
}

/* Rounds of a pipeline: warp 0 has a stage filled by a copy, warp 1 reads it. What goes wrong: */
enum fault {
    RIGHT,
    ONE_SEES_COPY,   /* one reader waits for the copy, and the others not for it */
    SEES_NO_READERS, /* the copies do not wait for the readers */
    ONE_READER_TOLD, /* one reader says so before the others have read */
    BLOCK_FOR_COPY,  /* the block's barrier instead of the copy's */
};

void wait_for(const uint64_t *barrier, uint32_t parity)
{
    while (!mbarrier_try_wait(smem_address(barrier), parity)) {
    }
}

void copy_round(unsigned char *stage, uint64_t *full)
{
    alignas(16) static const unsigned char from[SIMT_WARP * 16] = {};
    mbarrier_arrive_expect(smem_address(full), sizeof from);
    bulk_load(smem_address(stage), from, sizeof from, smem_address(full));
}

template <fault FAULT> void read_round(const unsigned char *stage, const uint64_t *full, uint32_t n)
{
    const uint32_t lane = threadIdx.x % SIMT_WARP;
    volatile unsigned char got;
    if (FAULT == ONE_SEES_COPY ? lane == 0 : FAULT != BLOCK_FOR_COPY)
        wait_for(full, n % 2);
    got = stage[lane * 16];
    (void)got;
}

template <fault FAULT> void pipeline(void)
{
    SHARED_DYNAMIC(unsigned char, stage);
    uint64_t *full = (uint64_t *)(stage + SIMT_WARP * 16), *empty = full + 1;
    if (threadIdx.x == 0) {
        mbarrier_init(smem_address(full), 1);
        mbarrier_init(smem_address(empty), 1);
    }
    __syncthreads();
    for (uint32_t i = 0; i < 3; i++) {
        if (threadIdx.x == 0) {
            if (FAULT != SEES_NO_READERS) wait_for(empty, i % 2 ^ 1);
            copy_round(stage, full);
        }
        if (FAULT == BLOCK_FOR_COPY) __syncthreads();
        if (threadIdx.x < SIMT_WARP) continue;
        read_round<FAULT>(stage, full, i);
        if (FAULT != ONE_READER_TOLD) __syncwarp();
        if (threadIdx.x % SIMT_WARP == 0) mbarrier_arrive(smem_address(empty));
    }
}

/* A warpgroup's product reads what a fifth warp then writes. */
template <bool WAIT> void product(void)
{
    SHARED_DYNAMIC(unsigned char, operands);
    uint64_t *empty = (uint64_t *)(operands + 72 * 128);
    if (threadIdx.x == 0) mbarrier_init(smem_address(empty), 4);
    for (uint32_t i = threadIdx.x; i < 72 * 128; i += blockDim.x) operands[i] = 0;
    __syncthreads();
    if (threadIdx.x >= 128) {
        wait_for(empty, 0);
        operands[threadIdx.x * 16] = 1;
        return;
    }
    float sums[4];
    wgmma_e4m3_start(sums, wgmma_operand(smem_address(operands)),
                     wgmma_operand(smem_address(operands + 64 * 128)));
    wgmma_commit();
    if (WAIT) wgmma_wait(sums);
    __syncwarp();
    if (threadIdx.x % SIMT_WARP == 0) mbarrier_arrive(smem_address(empty));
    if (!WAIT) wgmma_wait(sums);
}

template <bool WAIT> void run_product(void)
{
    simt_run(dim3(1), dim3(160), 1, 72 * 128 + 8, product<WAIT>);
}

/* Two blocks of a cluster; each reads what the other has written, having waited for it or not. */
template <bool TOLD> void read_neighbour(void)
{
    SHARED_DYNAMIC(float2, pairs);
    const uint32_t at = smem_address(pairs + threadIdx.x);
    volatile float got;
    pairs[threadIdx.x] = make_float2(1.0f, 2.0f);
    simt_cluster_arrive(TOLD);
    cluster_wait();
    got = ((const float2 *)simt_place(cluster_address(at, cluster_rank() ^ 1)))->x;
    (void)got;
    simt_cluster_arrive(true);
    cluster_wait();
}

/* Each sends to the other, which waits for what counts at its barrier, or not. */
template <bool WAIT> void send_neighbour(void)
{
    SHARED_DYNAMIC(float2, pairs);
    uint64_t *full = (uint64_t *)(pairs + THREADS);
    volatile float got;
    if (threadIdx.x == 0) mbarrier_init(smem_address(full), 1);
    __syncthreads();
    cluster_arrive_relaxed();
    cluster_wait();
    const uint32_t other = cluster_rank() ^ 1;
    if (threadIdx.x == 0) mbarrier_arrive_expect(smem_address(full), THREADS * sizeof *pairs);
    cluster_store(cluster_address(smem_address(pairs + threadIdx.x), other),
                  cluster_address(smem_address(full), other), 1.0f, 2.0f);
    if (WAIT) wait_for(full, 0);
    got = pairs[threadIdx.x].x;
    (void)got;
    simt_cluster_arrive(true);
    cluster_wait();
}

template <void (*KERNEL)(void)> void run_cluster(void)
{
    simt_run(dim3(2), dim3(THREADS), 2, (THREADS + 1) * sizeof(float2), KERNEL);
}

/* Neighbouring bytes of one word */
void bytes_apart(void)
{
    SHARED_DYNAMIC(uint8_t, bytes);
    bytes[threadIdx.x] = (uint8_t)threadIdx.x;
}

void test_what_nothing_waits_for_is_found(void **)
{
    assert_true((is_found(exchange<1, 0>)));
    assert_true((is_found(exchange<40, 1>))); /* another warp's */
    assert_true(is_found(overwrite<0>));
    assert_true(is_found(overwrite<1>));
    assert_true(is_found(count<false>));
    assert_true(is_found(copy_over<false>));
}

void test_what_is_waited_for_is_no_race(void **)
{
    run(exchange<40, 2>);
    run(exchange<0, 0>);
    run(beside_host);
    run(overwrite<2>);
    run(count<true>);
    run(copy_over<true>);
    run(bytes_apart);
}

/* The lanes of one warp need no more than their warp's barrier. */
void test_a_warp_waits_for_itself(void **)
{
    simt_run(dim3(1), dim3(32), 1, THREADS * 16, exchange<1, 1>);
    simt_run(dim3(1), dim3(32), 1, THREADS * 16, overwrite<1>);
}

void test_what_no_phase_waits_for_is_found(void **)
{
    assert_true(is_found(pipeline<ONE_SEES_COPY>));
    assert_true(is_found(pipeline<SEES_NO_READERS>));
    assert_true(is_found(pipeline<ONE_READER_TOLD>));
    assert_true(is_found(pipeline<BLOCK_FOR_COPY>));
    assert_true(is_ended(run_whole, run_product<false>));
}

void test_what_a_cluster_does_not_wait_for_is_found(void **)
{
    assert_true(is_ended(run_whole, run_cluster<read_neighbour<false>>));
    assert_true(is_ended(run_whole, run_cluster<send_neighbour<false>>));
}

void test_a_cluster_waits(void **)
{
    run_cluster<read_neighbour<true>>();
    run_cluster<send_neighbour<true>>();
}

void test_phases_wait(void **)
{
    run(pipeline<RIGHT>);
    run_product<true>();
}

} // namespace

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_nothing_waits_for_is_found),
        cmocka_unit_test(test_what_is_waited_for_is_no_race),
        cmocka_unit_test(test_a_warp_waits_for_itself),
        cmocka_unit_test(test_what_no_phase_waits_for_is_found),
        cmocka_unit_test(test_phases_wait),
        cmocka_unit_test(test_what_a_cluster_does_not_wait_for_is_found),
        cmocka_unit_test(test_a_cluster_waits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
