/* nccl.h - what is used of NCCL, whose library is opened at run time
 *
 * Nothing of NCCL is there when the program is built: types and entry points are declared here, and
 * have been the same since its release 2.14, the first whose communicators come and go without
 * keeping the thread that waits.
 *
 * Source  NVIDIA's documentation of NCCL, "NCCL API"; struct nccl_config is its ncclConfig_t as of
 *         2.14, which later releases take by its size and version. */
#ifndef FATHOM_BACKEND_CUDA_NCCL_H
#define FATHOM_BACKEND_CUDA_NCCL_H

#include <stddef.h>

#include "fathom/err.h"

enum { NCCL_VERSION_MIN = 21400 }; /* 2.14.0 */

enum nccl_result {
    NCCL_SUCCESS = 0,
    NCCL_REMOTE_ERROR = 6,
    NCCL_IN_PROGRESS = 7, /* of communicators that do not block */
};

enum { NCCL_BYTES = 0 }; /* the type of what is sent */

struct nccl_id {
    char bytes[128];
};

struct nccl_config {
    size_t size;
    unsigned magic, version;
    int blocking;
};

struct nccl_comm;

/* The entry points, as NCCL calls them; results are enum nccl_result. */
struct nccl_api {
    int (*ncclGetVersion)(int *version);
    int (*ncclGetUniqueId)(struct nccl_id *out);
    int (*ncclCommInitRankConfig)(struct nccl_comm **out, int n_rank, struct nccl_id id, int rank,
                                  struct nccl_config *config);
    int (*ncclCommAbort)(struct nccl_comm *comm);
    int (*ncclCommGetAsyncError)(struct nccl_comm *comm, int *result);
    const char *(*ncclGetErrorString)(int result);
    const char *(*ncclGetLastError)(struct nccl_comm *comm);
    int (*ncclGroupStart)(void);
    int (*ncclGroupEnd)(void);
    int (*ncclSend)(const void *from, size_t n, int type, int peer, struct nccl_comm *comm,
                    void *stream);
    int (*ncclRecv)(void *to, size_t n, int type, int peer, struct nccl_comm *comm, void *stream);
};

/* nccl_load - the library, which stays; nccl_config_make - of a communicator that does not block
 * Errors  EUNSUPPORTED: it is not there, is too old, or lacks an entry point. */
fathom_err nccl_load(struct nccl_api *out, fathom_diag *d);
struct nccl_config nccl_config_make(void);

#endif
