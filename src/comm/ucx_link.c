/* ucx_link.c - tagged messages of UCX, one for each part of a send
 *
 *   link of TCP --addresses of both workers, a byte each way--> OPEN
 *   OPEN --time-out, the other side is gone, error--> its worker is ended; every call fails
 *
 * The worker ends before a failed call returns: nothing reads or writes the caller's memory then.
 */
#include "comm/ucx_link.h"

#include <dlfcn.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <ucp/api/ucp.h>
#include <ucs/debug/log_def.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/fail.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/mem.h"
#include "comm/tcp_link.h"

/* Before an address. */
struct address_head {
    uint64_t n_byte;
    uint64_t sum; /* hash_checksum */
};

enum { ADDRESS_BYTES_MAX = 1 << 16, CLOSE_US = 200000 };

/* What is used of the library. */
#define UCX_FUNCTIONS(X)                                                                           \
    X(ucp_init_version)                                                                            \
    X(ucp_cleanup)                                                                                 \
    X(ucp_config_read)                                                                             \
    X(ucp_config_modify)                                                                           \
    X(ucp_config_release)                                                                          \
    X(ucp_worker_create)                                                                           \
    X(ucp_worker_destroy)                                                                          \
    X(ucp_worker_get_address)                                                                      \
    X(ucp_worker_release_address)                                                                  \
    X(ucp_worker_get_efd)                                                                          \
    X(ucp_worker_arm)                                                                              \
    X(ucp_worker_progress)                                                                         \
    X(ucp_ep_create)                                                                               \
    X(ucp_ep_close_nbx)                                                                            \
    X(ucp_tag_send_nbx)                                                                            \
    X(ucp_tag_probe_nb)                                                                            \
    X(ucp_tag_msg_recv_nbx)                                                                        \
    X(ucp_request_check_status)                                                                    \
    X(ucp_request_free)                                                                            \
    X(ucs_status_string)                                                                           \
    X(ucs_log_push_handler)

struct ucx {
    void *library;
    ucp_context_h context;
#define MEMBER(name) __typeof__ (&(name))(name);
    UCX_FUNCTIONS(MEMBER)
#undef MEMBER
};

struct ucx_link {
    struct page_link base; /* first member */
    struct page_link *tcp;
    const struct ucx *u;
    ucp_worker_h worker; /* NULL: the link is broken */
    ucp_ep_h ep;
    int fd;              /* of the worker: can be read when there is something to do */
    ucs_status_t broken; /* by what; UCS_OK: it is not */
};

/* ---- the library ------------------------------------------------------------------------- */

/* ISO C has no conversion from an object's pointer to a function's; the bytes are the same. */
static bool look_up(void *library, const char *name, void *function)
{
    void *found = dlsym(library, name);
    memcpy(function, &found, sizeof found);
    return found != NULL;
}

/* What the library has to say: what matters of it comes as an error of a call too. */
static ucs_log_func_rc_t log_line(const char *file, unsigned line, const char *function,
                                  ucs_log_level_t level,
                                  const ucs_log_component_config_t *component, const char *message,
                                  va_list ap)
{
    char text[256];
    (void)function;
    (void)component;
    if (level <= UCS_LOG_LEVEL_WARN) {
        (void)vsnprintf(text, sizeof text, message, ap);
        log_write(LOG_LEVEL_DEBUG, "kv", "ucx: %s (%s:%u)", text, file, line);
    }
    return UCS_LOG_FUNC_RC_STOP;
}

/* Opening the library replaces handlers of signals that are this program's. */
static void *open_library(void)
{
    static const int signals[] = {SIGILL, SIGABRT, SIGBUS, SIGFPE, SIGSEGV, SIGHUP};
    enum { N = sizeof signals / sizeof signals[0] };
    struct sigaction was[N];
    for (int i = 0; i < N; i++) (void)sigaction(signals[i], NULL, &was[i]);
    void *library = dlopen("libucp.so.0", RTLD_NOW | RTLD_LOCAL);
    for (int i = 0; i < N; i++) (void)sigaction(signals[i], &was[i], NULL);
    return library;
}

static fathom_err make_context(struct ucx *u, fathom_diag *d)
{
    const ucp_params_t params = {.field_mask =
                                     UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_MT_WORKERS_SHARED,
                                 .features = UCP_FEATURE_TAG | UCP_FEATURE_WAKEUP,
                                 .mt_workers_shared = 1};
    ucp_config_t *config;
    ucs_status_t status = u->ucp_config_read(NULL, NULL, &config);
    if (status != UCS_OK) FAIL(d, FATHOM_EIO, "UCX: %s", u->ucs_status_string(status));
    /* Who receives fetches: a sender that comes late would write to memory that has another use. */
    (void)u->ucp_config_modify(config, "RNDV_SCHEME", "get_zcopy");
    status = u->ucp_init_version(UCP_API_MAJOR, UCP_API_MINOR, &params, config, &u->context);
    u->ucp_config_release(config);
    if (status == UCS_OK) return FATHOM_OK;
    u->context = NULL;
    FAIL(d, FATHOM_EIO, "UCX: %s", u->ucs_status_string(status));
}

fathom_err ucx_open(struct ucx **out, fathom_diag *d)
{
    *out = NULL;
    struct ucx *u = mem_calloc(1, sizeof *u);
    if (!u) FAIL(d, FATHOM_ENOMEM, "no memory for UCX");
    u->library = open_library();
    bool all = u->library != NULL;
    if (!all) (void)diag_fail(d, FATHOM_ENOTFOUND, "UCX: %s: install libucx0", dlerror());
#define LOOK_UP(name)                                                                              \
    if (all && !look_up(u->library, #name, &u->name)) {                                            \
        all = false;                                                                               \
        (void)diag_fail(d, FATHOM_ENOTFOUND, "UCX: libucp.so.0 has no " #name);                    \
    }
    UCX_FUNCTIONS(LOOK_UP)
#undef LOOK_UP
    if (all) u->ucs_log_push_handler(log_line);
    fathom_err err = all ? make_context(u, d) : FATHOM_ENOTFOUND;
    if (err) {
        ucx_close(u);
        return err;
    }
    *out = u;
    return FATHOM_OK;
}

/* The library stays: it has threads and handlers of its own. */
void ucx_close(struct ucx *u)
{
    if (!u) return;
    if (u->context) u->ucp_cleanup(u->context);
    mem_free(u);
}

/* ---- a link ------------------------------------------------------------------------------ */

static void on_error(void *arg, ucp_ep_h ep, ucs_status_t status)
{
    (void)ep;
    ((struct ucx_link *)arg)->broken = status;
}

/* Ends the worker; requests that are under way are over then. */
static void end_worker(struct ucx_link *l)
{
    const struct ucx *u = l->u;
    const ucp_request_param_t param = {.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS,
                                       .flags = UCP_EP_CLOSE_FLAG_FORCE};
    const uint64_t end_us = clock_now_us() + CLOSE_US;
    if (!l->worker) return;
    void *closing = l->ep ? u->ucp_ep_close_nbx(l->ep, &param) : NULL;
    if (UCS_PTR_IS_PTR(closing)) {
        while (u->ucp_request_check_status(closing) == UCS_INPROGRESS && clock_now_us() < end_us) {
            if (u->ucp_worker_progress(l->worker) == 0) clock_sleep_us(50);
        }
        u->ucp_request_free(closing);
    }
    u->ucp_worker_destroy(l->worker);
    l->worker = NULL;
    l->ep = NULL;
}

/* One turn: what can be done is done, else sleeps until there may be something. */
static fathom_err turn(struct ucx_link *l, uint64_t deadline_us, fathom_diag *d)
{
    const struct ucx *u = l->u;
    if (u->ucp_worker_progress(l->worker) == 0) {
        ucs_status_t status = l->broken == UCS_OK ? u->ucp_worker_arm(l->worker) : l->broken;
        if (status == UCS_OK) return tcp_link_wait(l->tcp, l->fd, deadline_us, d);
        if (status != UCS_ERR_BUSY) {
            FAIL(d, FATHOM_EIO, "the connection broke: %s", u->ucs_status_string(status));
        }
    }
    if (clock_now_us() >= deadline_us) FAIL(d, FATHOM_EIO, "it took too long");
    return FATHOM_OK;
}

/* Until a call is done; NULL: it was at once. The request is freed if so. */
static fathom_err finish(struct ucx_link *l, void **request, uint64_t deadline_us, fathom_diag *d)
{
    ucs_status_t status = UCS_PTR_STATUS(*request);
    if (UCS_PTR_IS_PTR(*request)) {
        while ((status = l->u->ucp_request_check_status(*request)) == UCS_INPROGRESS) {
            TRY(turn(l, deadline_us, d));
        }
        l->u->ucp_request_free(*request);
    }
    *request = NULL;
    if (status == UCS_OK) return FATHOM_OK;
    FAIL(d, FATHOM_EIO, "the connection broke: %s", l->u->ucs_status_string(status));
}

static fathom_err fail_broken(fathom_diag *d)
{
    FAIL(d, FATHOM_EIO, "the connection broke before");
}

static fathom_err ucx_send(struct page_link *base, const struct link_part *parts, size_t n,
                           uint64_t deadline_us, fathom_diag *d)
{
    struct ucx_link *l = (struct ucx_link *)base;
    const ucp_request_param_t param = {0};
    void *requests[LINK_PARTS_MAX];
    fathom_err err = FATHOM_OK;
    ASSERT(n >= 1 && n <= LINK_PARTS_MAX);
    if (!l->worker) return fail_broken(d);
    for (size_t i = 0; i < n; i++) {
        requests[i] = l->u->ucp_tag_send_nbx(l->ep, parts[i].bytes, parts[i].n, 0, &param);
    }
    for (size_t i = 0; i < n && !err; i++) err = finish(l, &requests[i], deadline_us, d);
    if (!err) return FATHOM_OK;
    for (size_t i = 0; i < n; i++) {
        if (UCS_PTR_IS_PTR(requests[i])) l->u->ucp_request_free(requests[i]);
    }
    end_worker(l);
    return err;
}

/* The next message, to a place of n bytes at most; *got: of how many it was. */
static fathom_err receive_one(struct ucx_link *l, void *to, size_t n, size_t *got,
                              uint64_t deadline_us, fathom_diag *d)
{
    const struct ucx *u = l->u;
    const ucp_request_param_t param = {0};
    ucp_tag_recv_info_t info;
    ucp_tag_message_h message;
    while (!(message = u->ucp_tag_probe_nb(l->worker, 0, 0, 1, &info))) {
        TRY(turn(l, deadline_us, d));
    }
    if (info.length > n || info.length == 0) {
        FAIL(d, FATHOM_EFORMAT, "a message of %zu bytes, where %zu are due", info.length, n);
    }
    *got = info.length;
    void *request = u->ucp_tag_msg_recv_nbx(l->worker, to, info.length, message, &param);
    fathom_err err = finish(l, &request, deadline_us, d);
    if (UCS_PTR_IS_PTR(request)) u->ucp_request_free(request);
    return err;
}

static fathom_err ucx_receive(struct page_link *base, void *to, size_t n, uint64_t deadline_us,
                              fathom_diag *d)
{
    struct ucx_link *l = (struct ucx_link *)base;
    fathom_err err = FATHOM_OK;
    if (!l->worker) return fail_broken(d);
    for (size_t at = 0, got = 0; at < n && !err; at += got) {
        err = receive_one(l, (char *)to + at, n - at, &got, deadline_us, d);
    }
    if (err) end_worker(l);
    return err;
}

static fathom_err ucx_await(struct page_link *base, uint64_t deadline_us, fathom_diag *d)
{
    struct ucx_link *l = (struct ucx_link *)base;
    ucp_tag_recv_info_t info;
    fathom_err err = FATHOM_OK;
    if (!l->worker) return fail_broken(d);
    while (!err && !l->u->ucp_tag_probe_nb(l->worker, 0, 0, 0, &info))
        err = turn(l, deadline_us, d);
    if (err) end_worker(l);
    return err;
}

static bool ucx_is_near(const struct page_link *base)
{
    const struct ucx_link *l = (const struct ucx_link *)base;
    return l->tcp->ops->is_near(l->tcp);
}

static void ucx_link_close(struct page_link *base)
{
    struct ucx_link *l = (struct ucx_link *)base;
    end_worker(l);
    l->tcp->ops->close(l->tcp);
    mem_free(l);
}

static const struct page_link_ops ucx_ops = {.send = ucx_send,
                                             .receive = ucx_receive,
                                             .await = ucx_await,
                                             .is_near = ucx_is_near,
                                             .close = ucx_link_close};

/* ---- going over -------------------------------------------------------------------------- */

static fathom_err make_worker(struct ucx_link *l, fathom_diag *d)
{
    const ucp_worker_params_t params = {.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
                                        .thread_mode = UCS_THREAD_MODE_SERIALIZED};
    ucs_status_t status = l->u->ucp_worker_create(l->u->context, &params, &l->worker);
    if (status != UCS_OK) {
        l->worker = NULL;
    } else {
        status = l->u->ucp_worker_get_efd(l->worker, &l->fd);
    }
    if (status == UCS_OK) return FATHOM_OK;
    FAIL(d, FATHOM_EIO, "UCX: %s", l->u->ucs_status_string(status));
}

/* Says where this worker is, and hears where the other one is: *theirs is owned by the caller. */
static fathom_err exchange_addresses(struct ucx_link *l, void **theirs, uint64_t deadline_us,
                                     fathom_diag *d)
{
    ucp_address_t *mine;
    size_t n_mine;
    struct address_head head;
    *theirs = NULL;
    ucs_status_t status = l->u->ucp_worker_get_address(l->worker, &mine, &n_mine);
    if (status != UCS_OK) FAIL(d, FATHOM_EIO, "UCX: %s", l->u->ucs_status_string(status));
    head = (struct address_head){n_mine, hash_checksum(mine, n_mine)};
    const struct link_part parts[] = {{&head, sizeof head}, {mine, n_mine}};
    fathom_err err = l->tcp->ops->send(l->tcp, parts, 2, deadline_us, d);
    l->u->ucp_worker_release_address(l->worker, mine);
    if (!err) err = l->tcp->ops->receive(l->tcp, &head, sizeof head, deadline_us, d);
    if (err) return err;
    if (head.n_byte == 0 || head.n_byte > ADDRESS_BYTES_MAX) {
        FAIL(d, FATHOM_EFORMAT, "UCX: an address of %llu bytes", (unsigned long long)head.n_byte);
    }
    *theirs = mem_alloc(head.n_byte);
    if (!*theirs) FAIL(d, FATHOM_ENOMEM, "no memory for an address of UCX");
    TRY(l->tcp->ops->receive(l->tcp, *theirs, head.n_byte, deadline_us, d));
    if (hash_checksum(*theirs, head.n_byte) == head.sum) return FATHOM_OK;
    FAIL(d, FATHOM_EFORMAT, "UCX: an address is damaged");
}

/* Shared memory cannot tell that the other side is gone, and is not used where that is asked for:
 * the connection of TCP tells it. */
static fathom_err connect_worker(struct ucx_link *l, const void *theirs, uint64_t deadline_us,
                                 fathom_diag *d)
{
    const ucp_ep_params_t params = {
        .field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER,
        .address = theirs,
        .err_mode = ucx_is_near(&l->base) ? UCP_ERR_HANDLING_MODE_NONE : UCP_ERR_HANDLING_MODE_PEER,
        .err_handler = {on_error, l}};
    unsigned char byte = 1;
    const struct link_part part = {&byte, 1};
    ucs_status_t status = l->u->ucp_ep_create(l->worker, &params, &l->ep);
    if (status != UCS_OK) {
        l->ep = NULL;
        FAIL(d, FATHOM_EIO, "UCX reaches it by nothing that both machines have: %s",
             l->u->ucs_status_string(status));
    }
    TRY(ucx_send(&l->base, &part, 1, deadline_us, d));
    return ucx_receive(&l->base, &byte, 1, deadline_us, d);
}

fathom_err ucx_link_over(struct page_link **link, struct ucx *u, uint64_t deadline_us,
                         fathom_diag *d)
{
    struct ucx_link *l = mem_calloc(1, sizeof *l);
    void *theirs = NULL;
    if (!l) FAIL(d, FATHOM_ENOMEM, "no memory for a connection by UCX");
    l->base.ops = &ucx_ops;
    l->tcp = *link;
    l->u = u;
    fathom_err err = make_worker(l, d);
    if (!err) err = exchange_addresses(l, &theirs, deadline_us, d);
    if (!err) err = connect_worker(l, theirs, deadline_us, d);
    mem_free(theirs);
    if (err) {
        end_worker(l);
        mem_free(l);
        return err;
    }
    *link = &l->base;
    return FATHOM_OK;
}
