/* test_race.cpp - races in shared memory are found, and what is waited for is none */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern "C" {
#include <cmocka.h>
}

#include "backend/cuda/ptx.cuh"

namespace
{

enum { THREADS = 64 };

void run(void (*kernel)(void))
{
    simt_run(dim3(2), dim3(THREADS), 1, THREADS * 16, kernel);
}

/* Runs a kernel in a process of its own: whether it was ended, and for a race. */
bool is_found(void (*kernel)(void))
{
    char text[512] = "";
    int out[2], status;
    if (pipe(out) != 0) fail();
    const pid_t child = fork();
    if (child == 0) {
        (void)dup2(out[1], STDERR_FILENO);
        run(kernel);
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

} // namespace

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_nothing_waits_for_is_found),
        cmocka_unit_test(test_what_is_waited_for_is_no_race),
        cmocka_unit_test(test_a_warp_waits_for_itself),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
