/* zmq.c - the library is found where the system looks for libraries: LD_LIBRARY_PATH, ldconfig */
#include "comm/zmq.h"

#include <assert.h>
#include <dlfcn.h>
#include <string.h>

#include "base/fail.h"

static const char name[] = "libzmq.so.5";

/* Functions have the size of pointers wherever there is dlsym. */
static fathom_err find(void *library, const char *what, void *member, fathom_diag *d)
{
    void *function = dlsym(library, what);
    static_assert(sizeof function == sizeof(int (*)(void)), "dlsym gives functions");
    if (!function)
        FAIL(d, FATHOM_EUNSUPPORTED, "%s has no %s: install libzmq 4.2 or later", name, what);
    memcpy(member, &function, sizeof function);
    return FATHOM_OK;
}

fathom_err zmq_load(struct zmq_api *out, fathom_diag *d)
{
    void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (!library) {
        FAIL(d, FATHOM_EUNSUPPORTED,
             "ZeroMQ, by which events of the cache are published, is not there (%s): install "
             "libzmq5",
             dlerror());
    }
    const struct {
        const char *what;
        void *member;
    } all[] = {
        {"zmq_ctx_new", &out->zmq_ctx_new},
        {"zmq_ctx_term", &out->zmq_ctx_term},
        {"zmq_socket", &out->zmq_socket},
        {"zmq_close", &out->zmq_close},
        {"zmq_setsockopt", &out->zmq_setsockopt},
        {"zmq_getsockopt", &out->zmq_getsockopt},
        {"zmq_bind", &out->zmq_bind},
        {"zmq_connect", &out->zmq_connect},
        {"zmq_send", &out->zmq_send},
        {"zmq_recv", &out->zmq_recv},
        {"zmq_poll", &out->zmq_poll},
        {"zmq_errno", &out->zmq_errno},
        {"zmq_strerror", &out->zmq_strerror},
    };
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        TRY(find(library, all[i].what, all[i].member, d));
    return FATHOM_OK;
}
