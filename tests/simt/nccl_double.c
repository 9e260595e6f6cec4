/* nccl_double.c - libnccl.so.2 for simulated GPUs: ranks of this machine send each other bytes
 *
 * Each pair of ranks has a socket. A group of calls is something that a queue waits for
 * (simt_outside.h); in a recording it is done again with each replay. What is sent and what is
 * received must have one length, and must both be of one recording, or of none. A rank that is gone
 * shows as an error of the communicator, and whoever waits for it waits until the communicator is
 * given up.
 *
 * NCCL_DOUBLE_VERSION says which release it claims to be. */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "backend/cuda/nccl.h"
#include "simt/simt_outside.h"

enum { RANKS_MAX = 16, CALLS_MAX = 1024, NCCL_INVALID_USAGE = 5, LOOK_MS = 5 };

/* What goes in front of the bytes. */
struct what {
    uint64_t n;
    uint64_t recorded; /* the number of the group among those recorded, from 1 on; 0: it is not */
};

struct call {
    char *at;
    uint64_t n;
    int peer;
    bool is_send;
    uint64_t n_done;     /* of what it is, and of what lies at `at` */
    struct what is, was; /* was: as the other rank has sent it */
};

struct nccl_comm {
    int rank, n_rank;
    struct nccl_id id;
    pthread_mutex_t lock; /* of links */
    int links[RANKS_MAX]; /* -1: none */
    uint64_t n_recorded;  /* groups */
    pthread_t thread;
    _Atomic int result;
    _Atomic bool is_aborted;
    struct nccl_comm *next;
};

/* A group that has been enqueued. */
struct group {
    struct nccl_comm *comm;
    uint32_t n;
    struct group *next;
    struct call calls[];
};

/* Recordings have groups, which are kept to the end: what looks for leaks finds them here. */
static struct nccl_comm *all_comms;
static struct group *all_groups;
static pthread_mutex_t all_lock = PTHREAD_MUTEX_INITIALIZER;

/* Of the thread: the group that is open. */
static _Thread_local struct {
    int depth;
    uint32_t n;
    struct nccl_comm *comm;
    void *stream;
    struct call calls[CALLS_MAX];
} open_group;

int ncclGetVersion(int *version);
int ncclGetUniqueId(struct nccl_id *out);
int ncclCommInitRankConfig(struct nccl_comm **out, int n_rank, struct nccl_id id, int rank,
                           struct nccl_config *config);
int ncclCommAbort(struct nccl_comm *comm);
int ncclCommGetAsyncError(struct nccl_comm *comm, int *result);
const char *ncclGetErrorString(int result);
const char *ncclGetLastError(struct nccl_comm *comm);
int ncclGroupStart(void);
int ncclGroupEnd(void);
int ncclSend(const void *from, size_t n, int type, int peer, struct nccl_comm *comm, void *stream);
int ncclRecv(void *to, size_t n, int type, int peer, struct nccl_comm *comm, void *stream);

int ncclGetVersion(int *version)
{
    const char *claimed = getenv("NCCL_DOUBLE_VERSION");
    *version = claimed ? atoi(claimed) : NCCL_VERSION_MIN;
    return NCCL_SUCCESS;
}

const char *ncclGetErrorString(int result)
{
    return result == NCCL_REMOTE_ERROR ? "remote process exited" : "an error of the double";
}

const char *ncclGetLastError(struct nccl_comm *comm)
{
    (void)comm;
    return "";
}

int ncclGetUniqueId(struct nccl_id *out)
{
    static _Atomic int n_made;
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    memset(out, 0, sizeof *out);
    (void)snprintf(out->bytes, sizeof out->bytes, "nccl-double-%d-%d-%ld", (int)getpid(),
                   atomic_fetch_add(&n_made, 1), t.tv_nsec);
    return NCCL_SUCCESS;
}

/* ---- links ---------------------------------------------------------------------------------- */

static socklen_t name_of(struct sockaddr_un *out, const struct nccl_comm *c, int rank)
{
    *out = (struct sockaddr_un){.sun_family = AF_UNIX};
    const int n =
        snprintf(out->sun_path + 1, sizeof out->sun_path - 1, "%.80s-%d", c->id.bytes, rank);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
}

static bool may_go_on(const struct nccl_comm *c, int fd, short events)
{
    struct pollfd p = {.fd = fd, .events = events};
    while (!atomic_load(&c->is_aborted)) {
        if (poll(&p, 1, LOOK_MS) > 0) return true;
    }
    return false;
}

static void keep_link(struct nccl_comm *c, int rank, int fd)
{
    pthread_mutex_lock(&c->lock);
    c->links[rank] = fd;
    pthread_mutex_unlock(&c->lock);
}

/* To ranks below; they may not listen yet. */
static bool dial(struct nccl_comm *c, int rank)
{
    struct sockaddr_un name;
    const socklen_t n = name_of(&name, c, rank);
    const struct timespec again = {.tv_nsec = LOOK_MS * 1000000};
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    while (fd >= 0 && !atomic_load(&c->is_aborted)) {
        if (connect(fd, (struct sockaddr *)&name, n) == 0) {
            keep_link(c, rank, fd);
            return send(fd, &c->rank, sizeof c->rank, MSG_NOSIGNAL) == sizeof c->rank;
        }
        nanosleep(&again, NULL);
    }
    if (fd >= 0) (void)close(fd);
    return false;
}

static bool answer(struct nccl_comm *c, int listener)
{
    int rank = -1;
    if (!may_go_on(c, listener, POLLIN)) return false;
    const int fd = accept(listener, NULL, NULL);
    if (fd < 0 || !may_go_on(c, fd, POLLIN)) return false;
    if (recv(fd, &rank, sizeof rank, MSG_WAITALL) != sizeof rank) return false;
    if (rank <= c->rank || rank >= c->n_rank) return false;
    keep_link(c, rank, fd);
    return true;
}

static void *connect_main(void *arg)
{
    struct nccl_comm *c = arg;
    struct sockaddr_un name;
    const socklen_t n = name_of(&name, c, c->rank);
    const int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool ok = listener >= 0 && bind(listener, (struct sockaddr *)&name, n) == 0 &&
              listen(listener, RANKS_MAX) == 0;
    for (int r = 0; ok && r < c->rank; r++) ok = dial(c, r);
    for (int r = c->rank + 1; ok && r < c->n_rank; r++) ok = answer(c, listener);
    if (listener >= 0) (void)close(listener);
    atomic_store(&c->result, ok ? NCCL_SUCCESS : NCCL_REMOTE_ERROR);
    return NULL;
}

int ncclCommInitRankConfig(struct nccl_comm **out, int n_rank, struct nccl_id id, int rank,
                           struct nccl_config *config)
{
    *out = NULL;
    if (config->magic != 0xcafebeef || config->size != sizeof *config || config->blocking)
        return NCCL_INVALID_USAGE;
    if (n_rank > RANKS_MAX || rank < 0 || rank >= n_rank) return NCCL_INVALID_USAGE;
    struct nccl_comm *c = calloc(1, sizeof *c);
    if (!c) abort();
    c->rank = rank;
    c->n_rank = n_rank;
    c->id = id;
    c->result = NCCL_IN_PROGRESS;
    pthread_mutex_init(&c->lock, NULL);
    for (int r = 0; r < RANKS_MAX; r++) c->links[r] = -1;
    pthread_mutex_lock(&all_lock);
    c->next = all_comms;
    all_comms = c;
    pthread_mutex_unlock(&all_lock);
    if (pthread_create(&c->thread, NULL, connect_main, c)) abort();
    *out = c;
    return NCCL_IN_PROGRESS;
}

int ncclCommGetAsyncError(struct nccl_comm *comm, int *result)
{
    *result = atomic_load(&comm->result);
    return NCCL_SUCCESS;
}

int ncclCommAbort(struct nccl_comm *comm)
{
    if (atomic_exchange(&comm->is_aborted, true)) return NCCL_INVALID_USAGE;
    pthread_join(comm->thread, NULL);
    pthread_mutex_lock(&comm->lock);
    for (int r = 0; r < RANKS_MAX; r++) {
        if (comm->links[r] >= 0) (void)close(comm->links[r]);
        comm->links[r] = -1;
    }
    pthread_mutex_unlock(&comm->lock);
    return NCCL_SUCCESS;
}

/* ---- groups --------------------------------------------------------------------------------- */

/* The bytes of a call that are next, and how many there are. */
static char *next_bytes(struct call *c, size_t *n)
{
    if (c->n_done < sizeof c->is) {
        *n = sizeof c->is - c->n_done;
        return (char *)(c->is_send ? &c->is : &c->was) + c->n_done;
    }
    *n = c->n + sizeof c->is - c->n_done;
    return c->at + (c->n_done - sizeof c->is);
}

/* As far as it goes. False: the other rank is gone. */
static bool move_bytes(struct call *c, int fd)
{
    size_t n;
    for (char *at = next_bytes(c, &n); n > 0; at = next_bytes(c, &n)) {
        const ssize_t moved = c->is_send ? send(fd, at, n, MSG_NOSIGNAL | MSG_DONTWAIT)
                                         : recv(fd, at, n, MSG_DONTWAIT);
        if (moved < 0 && (errno == EAGAIN || errno == EINTR)) return true;
        if (moved <= 0) return false;
        c->n_done += (uint64_t)moved;
        if (!c->is_send && c->n_done == sizeof c->is && memcmp(&c->is, &c->was, sizeof c->is)) {
            fprintf(stderr,
                    "nccl_double: %llu bytes of recording %llu are sent, %llu of %llu received\n",
                    (unsigned long long)c->was.n, (unsigned long long)c->was.recorded,
                    (unsigned long long)c->is.n, (unsigned long long)c->is.recorded);
            abort();
        }
    }
    return true;
}

static bool is_done(const struct call *c)
{
    return c->n_done == c->n + sizeof c->is;
}

/* Calls of one pair go one after the other, in their order. */
static bool advance(struct group *g)
{
    bool is_busy[2][RANKS_MAX] = {{false}};
    bool all_done = true;
    for (uint32_t i = 0; i < g->n; i++) {
        struct call *c = &g->calls[i];
        bool *busy = &is_busy[c->is_send][c->peer];
        const int fd = g->comm->links[c->peer];
        if (is_done(c)) continue;
        if (!*busy && (fd < 0 || !move_bytes(c, fd)))
            atomic_store(&g->comm->result, NCCL_REMOTE_ERROR);
        *busy = *busy || !is_done(c);
        all_done = all_done && is_done(c);
    }
    return all_done;
}

static bool is_over(void *arg)
{
    struct group *g = arg;
    struct nccl_comm *comm = g->comm;
    pthread_mutex_lock(&comm->lock);
    const bool over = atomic_load(&comm->is_aborted) || advance(g);
    for (uint32_t i = 0; over && i < g->n; i++) g->calls[i].n_done = 0;
    pthread_mutex_unlock(&comm->lock);
    return over;
}

int ncclGroupStart(void)
{
    if (open_group.depth++ == 0) open_group.n = 0;
    return NCCL_SUCCESS;
}

static int add_call(char *at, size_t n, int peer, bool is_send, struct nccl_comm *comm,
                    void *stream)
{
    if (open_group.depth != 1 || open_group.n == CALLS_MAX) return NCCL_INVALID_USAGE;
    if (peer < 0 || peer >= comm->n_rank || peer == comm->rank) return NCCL_INVALID_USAGE;
    if (open_group.n > 0 && (open_group.comm != comm || open_group.stream != stream))
        return NCCL_INVALID_USAGE;
    open_group.comm = comm;
    open_group.stream = stream;
    open_group.calls[open_group.n++] =
        (struct call){.at = at, .n = n, .peer = peer, .is_send = is_send};
    return NCCL_SUCCESS;
}

int ncclSend(const void *from, size_t n, int type, int peer, struct nccl_comm *comm, void *stream)
{
    if (type != NCCL_BYTES) return NCCL_INVALID_USAGE;
    return add_call((char *)(uintptr_t)from, n, peer, true, comm, stream);
}

int ncclRecv(void *to, size_t n, int type, int peer, struct nccl_comm *comm, void *stream)
{
    if (type != NCCL_BYTES) return NCCL_INVALID_USAGE;
    return add_call(to, n, peer, false, comm, stream);
}

int ncclGroupEnd(void)
{
    if (--open_group.depth > 0 || open_group.n == 0) return NCCL_SUCCESS;
    const size_t n_byte = open_group.n * sizeof(struct call);
    struct group *g = malloc(sizeof *g + n_byte);
    if (!g) abort();
    g->comm = open_group.comm;
    g->n = open_group.n;
    memcpy(g->calls, open_group.calls, n_byte);
    const uint64_t recorded = simt_records(open_group.stream) ? ++g->comm->n_recorded : 0;
    for (uint32_t i = 0; i < g->n; i++)
        g->calls[i].is = (struct what){.n = g->calls[i].n, .recorded = recorded};
    pthread_mutex_lock(&all_lock);
    g->next = all_groups;
    all_groups = g;
    pthread_mutex_unlock(&all_lock);
    return simt_enqueue_outside(open_group.stream, is_over, g) ? 1 : NCCL_SUCCESS;
}
