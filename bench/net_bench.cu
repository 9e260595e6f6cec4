/* net_bench.cu - what NCCL takes to bring rows from one process's GPU to another's, and to let go
 *
 *   bench_net [HIDDEN]
 *
 * Two processes with a GPU each stand for two hosts: give NCCL_P2P_DISABLE=1 NCCL_SHM_DISABLE=1, or
 * it takes the short way. A line says how many rows each sends the other in one group, and what
 * a group takes: in a recording of GROUPS, and enqueued one by one, the best of REPEATS. Every byte
 * is compared. Then one process goes while the other's GPU waits for it within a recording: what
 * the rank that stays takes to be free again. */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cuda_call.cuh"

extern "C" {
#include "backend/cuda/net.h"
#include "backend/host_group.h"
#include "base/clock.h"
}

enum { REPEATS = 7, GROUPS = 32, ROWS_MAX = 1024, ID_BYTES = 4096 };

struct way {
    struct host_net net; /* first member */
    int fd;
    char bytes[ID_BYTES]; /* of the other process */
};

static void give_up(const char *what, const char *why)
{
    printf("bench_net: %s: %s\n", what, why);
    exit(1);
}

static fathom_err swap(struct host_net *net, const struct host_place *place, const void **shown,
                       char *fault, size_t n_fault)
{
    struct way *w = (struct way *)net;
    const uint32_t other = 1 - net->first;
    ssize_t n = place->n_bytes <= ID_BYTES
                    ? send(w->fd, shown[net->first], place->n_bytes, MSG_NOSIGNAL)
                    : -1;
    if (n == (ssize_t)place->n_bytes) n = recv(w->fd, w->bytes, place->n_bytes, MSG_WAITALL);
    shown[other] = w->bytes;
    if (n == (ssize_t)place->n_bytes) return FATHOM_OK;
    (void)snprintf(fault, n_fault, "the other process is gone");
    return FATHOM_EPEER;
}

static bool is_lost(struct host_net *net, char *why, size_t n_why)
{
    struct pollfd p = {((struct way *)net)->fd, POLLRDHUP, 0};
    if (poll(&p, 1, 0) <= 0) return false;
    (void)snprintf(why, n_why, "the other process is gone");
    return true;
}

struct side {
    struct way way;
    struct cuda_net *net;
    uint32_t rank, hidden;
    cudaStream_t stream;
    char *own, *got;
    uint32_t *host;
};

static void check(const struct side *s, fathom_err err, const char *what)
{
    if (err) give_up(what, net_fault(s->net));
}

static fathom_err send_rows(struct side *s, uint32_t n_row)
{
    const uint64_t n = (uint64_t)n_row * s->hidden * 4;
    const struct net_part parts[2] = {{s->own, n, 1 - s->rank, true},
                                      {s->got, n, 1 - s->rank, false}};
    return net_exchange(s->net, parts, 2, s->stream);
}

static void check_rows(struct side *s, uint32_t n_row)
{
    const uint64_t n = (uint64_t)n_row * s->hidden;
    CUDA(cudaMemcpy(s->host, s->got, n * 4, cudaMemcpyDeviceToHost));
    for (uint64_t i = 0; i < n; i++) {
        if (s->host[i] != i * 2 + 1 - s->rank) give_up("rows", "wrong bytes have come");
    }
    CUDA(cudaMemset(s->got, 0, n * 4));
}

static cudaGraphExec_t record(struct side *s, uint32_t n_row)
{
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    CUDA(cudaStreamBeginCapture(s->stream, cudaStreamCaptureModeThreadLocal));
    for (uint32_t i = 0; i < GROUPS; i++) check(s, send_rows(s, n_row), "recording");
    CUDA(cudaStreamEndCapture(s->stream, &graph));
    CUDA(cudaGraphInstantiate(&exec, graph, 0));
    CUDA(cudaGraphDestroy(graph));
    return exec;
}

static double best_us(struct side *s, uint32_t n_row, cudaGraphExec_t exec)
{
    double best = 1e30;
    for (uint32_t k = 0; k < REPEATS; k++) {
        const uint64_t start_ns = clock_now_ns();
        if (exec) CUDA(cudaGraphLaunch(exec, s->stream));
        for (uint32_t i = 0; i < GROUPS && !exec; i++) check(s, send_rows(s, n_row), "rows");
        CUDA(cudaStreamSynchronize(s->stream));
        const double us = (double)(clock_now_ns() - start_ns) / 1e3 / GROUPS;
        best = us < best ? us : best;
    }
    check(s, net_check(s->net), "rows");
    check_rows(s, n_row);
    return best;
}

static void measure(struct side *s)
{
    static const uint32_t rows[] = {1, 8, 64, ROWS_MAX};
    for (uint32_t n_row : rows) {
        cudaGraphExec_t exec = record(s, n_row);
        const double recorded_us = best_us(s, n_row, exec), us = best_us(s, n_row, NULL);
        CUDA(cudaGraphExecDestroy(exec));
        if (s->rank == 0)
            printf("rows=%u us=%.1f recorded, %.1f one by one\n", n_row, recorded_us, us);
    }
}

/* Rank 1 goes; rank 0 waits within a recording for what does not come. */
static void lose(struct side *s)
{
    char byte = 0;
    cudaGraphExec_t exec = record(s, 8);
    if (write(s->way.fd, &byte, 1) != 1 || read(s->way.fd, &byte, 1) != 1)
        give_up("lost", "the other process has gone too early");
    if (s->rank == 1) {
        clock_sleep_us(500000);
        _exit(0);
    }
    const uint64_t start_ns = clock_now_ns();
    CUDA(cudaGraphLaunch(exec, s->stream));
    CUDA(cudaStreamSynchronize(s->stream));
    const fathom_err err = net_check(s->net);
    const uint64_t free_ns = clock_now_ns();
    printf("lost: %s \"%s\" ms=%.0f\n", fathom_err_text(err), net_fault(s->net),
           (double)(free_ns - start_ns) / 1e6);
    CUDA(cudaGraphExecDestroy(exec));
    net_renew(s->net);
    printf("parted: \"%s\" ms=%.0f\n", net_fault(s->net), (double)(clock_now_ns() - free_ns) / 1e6);
}

static void run(struct side *s)
{
    struct backend_config c = {};
    const struct backend_config *configs[1] = {&c};
    fathom_diag d = {{0}};
    size_t before, after, total;
    c.parallel = parallel_one();
    c.parallel.tp = {s->rank, 2};
    c.net = &s->way.net;
    s->way.net = {s->rank, 1, 2, NULL, 0, swap, is_lost};
    CUDA(cudaSetDevice((int)s->rank));
    CUDA(cudaStreamCreateWithFlags(&s->stream, cudaStreamNonBlocking));
    const uint64_t n = (uint64_t)ROWS_MAX * s->hidden;
    CUDA(cudaMalloc(&s->own, n * 4));
    CUDA(cudaMalloc(&s->got, n * 4));
    s->host = (uint32_t *)malloc(n * 4);
    if (!s->host) give_up("rows", "no memory");
    for (uint64_t i = 0; i < n; i++) s->host[i] = (uint32_t)(i * 2 + s->rank);
    CUDA(cudaMemcpy(s->own, s->host, n * 4, cudaMemcpyHostToDevice));
    CUDA(cudaMemGetInfo(&before, &total));
    if (net_join(&s->net, configs, 1, &d)) give_up("join", d.text);
    const uint64_t start_ns = clock_now_ns();
    check(s, net_connect(s->net), "connect");
    check(s, send_rows(s, 1), "first rows");
    CUDA(cudaStreamSynchronize(s->stream));
    CUDA(cudaMemGetInfo(&after, &total));
    if (s->rank == 0)
        printf("connect ms=%.0f memory_mib=%.0f\n", (double)(clock_now_ns() - start_ns) / 1e6,
               (double)(before - after) / (1 << 20));
    measure(s);
    lose(s);
    net_leave(s->net);
}

int main(int argc, char **argv)
{
    int fds[2], status = 0;
    struct side s = {};
    setvbuf(stdout, NULL, _IOLBF, 0);
    s.hidden = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 10) : 7168;
    if (s.hidden == 0 || socketpair(AF_UNIX, SOCK_STREAM, 0, fds)) give_up("start", "no socket");
    const pid_t child = fork(); /* before the device is touched */
    s.rank = child == 0 ? 1 : 0;
    s.way.fd = fds[s.rank];
    (void)close(fds[1 - s.rank]);
    run(&s);
    if (waitpid(child, &status, 0) != child || status != 0) give_up("rank 1", "it has failed");
    return 0;
}
