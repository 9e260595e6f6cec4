/* test_link.cpp - devices that wait for each other: what is right comes through whatever the order,
 * and what is wrong shows on some seed */
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
#include "simt/simt_fault.h"

namespace
{

enum { THREADS = 64, ROUNDS = 4, SEEDS = 40, UNITS = 256 };

struct box {
    uint4 values[2][UNITS]; /* by turns */
    uint4 flag;
    uint32_t sum[ROUNDS]; /* what the receiver has seen */
};

/* What goes wrong: */
enum plan {
    RIGHT,
    NO_RELEASE,      /* the flag is stored as any value */
    NO_BARRIER,      /* one thread tells before the others have stored */
    TAG_ELSEWHERE,   /* the last unit says for all that they are there */
    ARMED_LATE,    /* a place is armed when the peer may have sent the next value to it */
    READS_PLAIN,     /* what was sent is read, and not waited for */
};

const char *const what[] = {"a right value", "values behind no release", "values before a barrier",
                            "the last unit", "what was armed", "plain values"};

void look_for_flag(const box *own, uint32_t epoch, plan plan)
{
    while (peer_load_acquire(&own->flag) != epoch) look_later(what[plan], epoch, 0, 0);
}

/* Values, then a flag that tells of them: one device sends, the other receives. */
template <plan PLAN> void send_flag(box *peer, uint32_t epoch)
{
    for (uint32_t i = threadIdx.x; i < UNITS; i += THREADS)
        peer_store(&peer->values[epoch % 2][i], make_uint4(epoch, i, epoch, i));
    if (PLAN != NO_BARRIER) __syncthreads();
    if (threadIdx.x != 0) return;
    if (PLAN == NO_RELEASE)
        peer_store(&peer->flag, make_uint4(epoch, 0, 0, 0));
    else
        peer_store_release(&peer->flag, epoch);
}

template <plan PLAN> void take_flag(box *own, uint32_t epoch)
{
    if (threadIdx.x == 0 && PLAN != READS_PLAIN) look_for_flag(own, epoch, PLAN);
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < UNITS; i += THREADS) {
        const uint4 *at = &own->values[epoch % 2][i];
        const uint4 v = PLAN == READS_PLAIN ? *at : peer_load(at);
        if (v.x == epoch && v.y == i) atomicAdd(&own->sum[epoch - 1], 1u);
    }
}

/* Both send and wait for each other's units, none of which is 0 once it is there. */
template <plan PLAN> void exchange(box *own, box *peer, uint32_t epoch)
{
    const uint32_t turn = epoch % 2;
    const uint4 zero = make_uint4(0, 0, 0, 0);
    for (uint32_t i = threadIdx.x; i < UNITS; i += THREADS)
        peer_store(&peer->values[turn][i], make_uint4(epoch, i + 1, epoch, i + 1));
    for (uint32_t i = threadIdx.x; i < UNITS; i += THREADS) {
        uint4 *at = &own->values[turn][i];
        const uint4 *tag = PLAN == TAG_ELSEWHERE ? &own->values[turn][UNITS - 1] : at;
        while (peer_load(tag).x == 0) look_later(what[PLAN], epoch, i, 1);
        const uint4 v = peer_load(at);
        if (v.x == epoch && v.y == i + 1) atomicAdd(&own->sum[epoch - 1], 1u);
        if (PLAN != ARMED_LATE) *at = zero;
    }
    if (PLAN == ARMED_LATE) /* the peer may be a call ahead */
        for (uint32_t i = threadIdx.x; i < UNITS; i += THREADS) own->values[turn ^ 1][i] = zero;
}

struct rig {
    cudaStream_t stream[2];
    box *boxes[2];
};

rig open_rig(uint64_t seed)
{
    rig r;
    simt_set_devices(2);
    for (int i = 0; i < 2; i++) {
        void *p;
        if (cudaSetDevice(i) || cudaStreamCreateWithFlags(&r.stream[i], cudaStreamNonBlocking) ||
            cudaMalloc(&p, sizeof(box)) || cudaDeviceEnablePeerAccess(1 - i, 0))
            abort();
        memset(p, 0, sizeof(box));
        r.boxes[i] = (box *)p;
    }
    simt_set_seed(seed);
    return r;
}

void launch(const rig &r, int device, std::function<void()> kernel)
{
    (void)cudaSetDevice(device);
    if (simt_launch(r.stream[device], 1, 0,
                    [kernel] { simt_run(dim3(1), dim3(THREADS), 1, 0, kernel); }))
        abort();
}

/* Ends the process with 1 where a value was not the one that was sent. */
void close_rig(const rig &r, int first_receiver)
{
    bool is_wrong = false;
    for (int i = 0; i < 2; i++) (void)cudaStreamSynchronize(r.stream[i]);
    for (int i = first_receiver; i < 2; i++) {
        for (uint32_t n : r.boxes[i]->sum) is_wrong |= n != UNITS;
    }
    for (int i = 0; i < 2; i++) {
        (void)cudaStreamDestroy(r.stream[i]);
        (void)cudaFree(r.boxes[i]);
    }
    if (is_wrong) _exit(1);
}

template <plan PLAN> void run_flags(uint64_t seed)
{
    const rig r = open_rig(seed);
    box *const to = r.boxes[1];
    for (uint32_t e = 1; e <= ROUNDS; e++) {
        launch(r, 0, [to, e] { send_flag<PLAN>(to, e); });
        launch(r, 1, [to, e] { take_flag<PLAN>(to, e); });
        /* a sender waits for nobody: the next round begins when this one is done */
        (void)cudaStreamSynchronize(r.stream[1]);
    }
    close_rig(r, 1);
}

template <plan PLAN> void run_exchange(uint64_t seed)
{
    const rig r = open_rig(seed);
    for (uint32_t e = 1; e <= ROUNDS; e++) {
        for (int i = 0; i < 2; i++) {
            box *const own = r.boxes[i], *const peer = r.boxes[1 - i];
            launch(r, i, [own, peer, e] { exchange<PLAN>(own, peer, e); });
        }
    }
    close_rig(r, 0);
}

void run_alone(uint64_t seed)
{
    const rig r = open_rig(seed);
    box *const own = r.boxes[0];
    launch(r, 0, [own] { look_for_flag(own, 7, RIGHT); });
    (void)cudaStreamSynchronize(r.stream[0]);
}

/* Runs it in a process of its own: whether that did not end well, and said this. */
bool is_found(void (*run)(uint64_t), uint64_t seed, const char *says)
{
    char text[1024] = "";
    int out[2], status;
    if (pipe(out) != 0) fail();
    const pid_t child = fork();
    if (child == 0) {
        (void)dup2(out[1], STDERR_FILENO);
        run(seed);
        _exit(0);
    }
    (void)close(out[1]);
    size_t n = 0;
    for (ssize_t k; n < sizeof text - 1 && (k = read(out[0], text + n, sizeof text - 1 - n)) > 0;)
        n += (size_t)k;
    (void)close(out[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    if (says && WIFSIGNALED(status) && !strstr(text, says)) fail_msg("%s", text);
    return !WIFEXITED(status) || WEXITSTATUS(status) != 0;
}

int count_found(void (*run)(uint64_t))
{
    int n = 0;
    for (uint64_t seed = 0; seed < SEEDS; seed++) n += is_found(run, seed, NULL);
    return n;
}

void test_what_is_right_comes_through(void **)
{
    assert_int_equal(count_found(run_flags<RIGHT>), 0);
    assert_int_equal(count_found(run_exchange<RIGHT>), 0);
}

void test_what_is_wrong_shows_on_a_seed(void **)
{
    assert_true(count_found(run_flags<NO_RELEASE>) > 0);
    assert_true(count_found(run_flags<NO_BARRIER>) > 0);
    assert_true(count_found(run_exchange<TAG_ELSEWHERE>) > 0);
    assert_true(count_found(run_exchange<ARMED_LATE>) > 0);
    assert_true(count_found(run_flags<READS_PLAIN>) > 0);
}

void test_who_waits_for_ever_is_told_what_for(void **)
{
    assert_true(is_found(run_alone, 1,
                         "device 0: block 0,0,0 of 1,1,1 looks for a right value, epoch 7, row 0 "
                         "of rank 0"));
}

/* A store to memory that its device was not given access to */
void run_barred(uint64_t seed)
{
    const rig r = open_rig(seed);
    simt_set_devices(2); /* forgets who reaches whom */
    box *const to = r.boxes[1];
    launch(r, 0, [to] { send_flag<RIGHT>(to, 1); });
    (void)cudaStreamSynchronize(r.stream[0]);
}

void test_memory_without_access_is_not_reached(void **)
{
    assert_true(is_found(run_barred, 1, "no peer access"));
}

} // namespace

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_is_right_comes_through),
        cmocka_unit_test(test_what_is_wrong_shows_on_a_seed),
        cmocka_unit_test(test_who_waits_for_ever_is_told_what_for),
        cmocka_unit_test(test_memory_without_access_is_not_reached),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
