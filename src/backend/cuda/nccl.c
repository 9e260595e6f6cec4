/* nccl.c - the library is found where the system looks for libraries: LD_LIBRARY_PATH, ldconfig */
#include "backend/cuda/nccl.h"

#include <assert.h>
#include <dlfcn.h>
#include <string.h>

#include "base/assert.h"
#include "base/fail.h"

static const char name[] = "libnccl.so.2";

/* Functions have the size of pointers wherever there is dlsym. */
static fathom_err find(void *library, const char *what, void *member, fathom_diag *d)
{
    void *function = dlsym(library, what);
    static_assert(sizeof function == sizeof(int (*)(void)), "dlsym gives functions");
    if (!function) {
        FAIL(d, FATHOM_EUNSUPPORTED, "%s has no %s: install NCCL %d.%d or later", name, what,
             NCCL_VERSION_MIN / 10000, NCCL_VERSION_MIN / 100 % 100);
    }
    memcpy(member, &function, sizeof function);
    return FATHOM_OK;
}

static fathom_err check_version(const struct nccl_api *api, fathom_diag *d)
{
    int v = 0;
    const int r = api->ncclGetVersion(&v);
    if (r == NCCL_SUCCESS && v >= NCCL_VERSION_MIN) return FATHOM_OK;
    if (r) FAIL(d, FATHOM_EUNSUPPORTED, "%s: %s", name, api->ncclGetErrorString(r));
    FAIL(d, FATHOM_EUNSUPPORTED, "%s is NCCL %d.%d.%d: install %d.%d or later", name,
         v >= 10000 ? v / 10000 : v / 1000, v >= 10000 ? v / 100 % 100 : v / 100 % 10, v % 100,
         NCCL_VERSION_MIN / 10000, NCCL_VERSION_MIN / 100 % 100);
}

fathom_err nccl_load(struct nccl_api *out, fathom_diag *d)
{
    void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    ASSERT(out);
    if (!library) {
        FAIL(d, FATHOM_EUNSUPPORTED,
             "NCCL, by which GPUs of several hosts reach each other, is not there (%s): install "
             "libnccl2",
             dlerror());
    }
    TRY(find(library, "ncclGetVersion", &out->ncclGetVersion, d));
    TRY(find(library, "ncclGetErrorString", &out->ncclGetErrorString, d));
    TRY(check_version(out, d));
    TRY(find(library, "ncclGetUniqueId", &out->ncclGetUniqueId, d));
    TRY(find(library, "ncclCommInitRankConfig", &out->ncclCommInitRankConfig, d));
    TRY(find(library, "ncclCommAbort", &out->ncclCommAbort, d));
    TRY(find(library, "ncclCommGetAsyncError", &out->ncclCommGetAsyncError, d));
    TRY(find(library, "ncclGetLastError", &out->ncclGetLastError, d));
    TRY(find(library, "ncclGroupStart", &out->ncclGroupStart, d));
    TRY(find(library, "ncclGroupEnd", &out->ncclGroupEnd, d));
    TRY(find(library, "ncclSend", &out->ncclSend, d));
    return find(library, "ncclRecv", &out->ncclRecv, d);
}

struct nccl_config nccl_config_make(void)
{
    return (struct nccl_config){.size = sizeof(struct nccl_config),
                                .magic = 0xcafebeef,
                                .version = NCCL_VERSION_MIN,
                                .blocking = 0};
}
