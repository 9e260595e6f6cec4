/* net.h - a GPU's way to those of other hosts: a communicator of NCCL over the ranks of all
 *
 *   PARTED --net_connect--> WHOLE --a host is lost, a rank has failed, net_part--> BREAKING
 *   BREAKING --kernels have ended, no recording is left--> BROKEN --net_renew--> PARTED
 *
 * NCCL's kernels wait without an end. So each rank has a thread that watches: whether a host is
 * lost, which the control channel knows (host_net.is_lost), whether a rank of this process has
 * failed, and what NCCL says itself. It then gives the communicator up, and the kernels end; what
 * they leave in memory is worth nothing, and net_check says so. NCCL gives up a communicator when
 * the recordings that hold calls of it are gone, so these are destroyed before net_renew.
 *
 * Plain C: a queue of the device is a pointer.
 * Source  NCCL's documentation: "Fault Tolerance", "Using NCCL with CUDA Graphs".
 */
#ifndef FATHOM_BACKEND_CUDA_NET_H
#define FATHOM_BACKEND_CUDA_NET_H

#include "backend/backend.h"
#include "fathom/err.h"

struct cuda_net;

/* Bytes to a rank, or from one. Of two ranks each lists what goes between them in one order. */
struct net_part {
    void *at;
    uint64_t n;
    uint32_t peer;
    bool is_send;
};

enum { NET_PARTS_MAX = 512 };

/* net_join - the ranks of this process, nets[0 .. n), become members; PARTED
 *
 *   c  [n] their configurations, with one host_net
 * Owns    on success each net is the caller's: net_leave.
 * Errors  EUNSUPPORTED: NCCL is not there, or too old; ENOMEM, EIO. */
fathom_err net_join(struct cuda_net **nets, const struct backend_config *const *c, uint32_t n,
                    fathom_diag *d);

/* net_leave - no recording is left, nothing is enqueued; accepts NULL */
void net_leave(struct cuda_net *n);

/* net_connect - with all ranks of all hosts, which call it at once: WHOLE
 * Needs   PARTED; the thread whose device is the rank's.
 * Errors  EPEER: a host is lost, or a rank; EDEVICE: NCCL's own. net_fault says which. */
fathom_err net_connect(struct cuda_net *n);

/* net_exchange - enqueue sends and receives, which go on at once
 *
 *   parts   [n_part], at most NET_PARTS_MAX; none of no bytes
 *   stream  the queue, which may be recorded
 * Errors  as net_connect. */
fathom_err net_exchange(struct cuda_net *n, const struct net_part *parts, uint32_t n_part,
                        void *stream);

/* net_check - whether what has been received so far is what was sent; else the error */
fathom_err net_check(struct cuda_net *n);

/* net_part - kernels that wait end soon; nothing is sent until net_connect
 * net_abandon - the same, and ranks of this process that wait for this one give up; any thread
 * net_renew - PARTED; waits for the communicator to be gone, 20 s at most: net_connect is EDEVICE
 * then. Needs: no recording is left */
void net_part(struct cuda_net *n);
void net_abandon(struct cuda_net *n);
void net_renew(struct cuda_net *n);

/* net_fault - why it is not WHOLE, "" while nothing is wrong; until net_renew */
const char *net_fault(const struct cuda_net *n);

#endif
