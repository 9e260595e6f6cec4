/* pmix_client.c - steps of PMIx, each in a thread that may be left behind
 *
 * A step is carried out while the caller waits. One that does not end in time makes the client
 * LOST: the thread is detached, and nothing that it may touch is freed. Only the step writes err
 * and diag, and only the caller reads them, after is_done.
 */
#include "comm/pmix_client.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <pmix.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/fail.h"
#include "base/mem.h"
#include "base/os.h"

/* What is used of the library. Its macros are not: newer headers make calls of them that an older
 * library does not have. */
#define PMIX_FUNCTIONS(X)                                                                          \
    X(PMIx_Init)                                                                                   \
    X(PMIx_Finalize)                                                                               \
    X(PMIx_Put)                                                                                    \
    X(PMIx_Commit)                                                                                 \
    X(PMIx_Fence)                                                                                  \
    X(PMIx_Get)                                                                                    \
    X(PMIx_Error_string)

struct pmix {
    void *library;
#define MEMBER(name) __typeof__ (&(name))(name);
    PMIX_FUNCTIONS(MEMBER)
#undef MEMBER
    pmix_proc_t self;
    bool is_init;
    bool is_lost;
    struct pmix_job job;
    char text[PMIX_TEXT_BYTES];
    fathom_err (*step)(struct pmix *p);
    fathom_err err;
    fathom_diag diag;
    pthread_mutex_t lock; /* of is_done */
    pthread_cond_t done;
    bool is_done;
};

static const char key[] = "fathom.host0";

/* ---- a step --------------------------------------------------------------------------------- */

static void *step_main(void *arg)
{
    struct pmix *p = arg;
    os_name_thread("pmix");
    p->err = p->step(p);
    pthread_mutex_lock(&p->lock);
    p->is_done = true;
    pthread_cond_signal(&p->done);
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

/* Carries out a step, called `what` in messages. */
static fathom_err carry_out(struct pmix *p, fathom_err (*step)(struct pmix *p), const char *what,
                            uint64_t timeout_us, fathom_diag *d)
{
    const uint64_t end_us = clock_now_us() + timeout_us;
    const struct timespec end = {.tv_sec = (time_t)(end_us / 1000000),
                                 .tv_nsec = (long)(end_us % 1000000) * 1000};
    pthread_t thread;
    int late = 0;
    ASSERT(!p->is_lost);
    p->step = step;
    p->is_done = false;
    diag_clear(&p->diag);
    if (pthread_create(&thread, NULL, step_main, p) != 0)
        FAIL(d, FATHOM_EIO, "PMIx: a thread cannot be started");
    pthread_mutex_lock(&p->lock);
    while (!p->is_done && late == 0) late = pthread_cond_timedwait(&p->done, &p->lock, &end);
    p->is_lost = !p->is_done;
    pthread_mutex_unlock(&p->lock);
    if (p->is_lost) {
        (void)pthread_detach(thread);
        FAIL(d, FATHOM_EIO, "PMIx: %s: no answer within %llu ms", what,
             (unsigned long long)(timeout_us / 1000));
    }
    (void)pthread_join(thread, NULL);
    if (p->err) FAIL(d, p->err, "PMIx: %s: %s", what, p->diag.text);
    return FATHOM_OK;
}

static fathom_err failed(struct pmix *p, pmix_status_t status)
{
    FAIL(&p->diag, FATHOM_EIO, "%s", p->PMIx_Error_string(status));
}

/* ---- values --------------------------------------------------------------------------------- */

/* A value that the library has allocated: this one is no base/mem.h's. */
static void free_value(pmix_value_t *v)
{
    if (v->type == PMIX_STRING) free(v->data.string);
    free(v);
}

/* A number of the job. */
static fathom_err get_count(struct pmix *p, const char *name, uint32_t *out)
{
    pmix_proc_t all = p->self;
    pmix_value_t *v = NULL;
    all.rank = PMIX_RANK_WILDCARD;
    const pmix_status_t status = p->PMIx_Get(&all, name, NULL, 0, &v);
    if (status != PMIX_SUCCESS || !v)
        FAIL(&p->diag, FATHOM_EIO, "the server has no %s: %s", name, p->PMIx_Error_string(status));
    const bool fits = v->type == PMIX_UINT32;
    *out = fits ? v->data.uint32 : 0;
    free_value(v);
    if (!fits) FAIL(&p->diag, FATHOM_EIO, "%s is no number", name);
    return FATHOM_OK;
}

/* What rank 0 has put. */
static fathom_err get_text(struct pmix *p)
{
    pmix_proc_t first = p->self;
    pmix_value_t *v = NULL;
    first.rank = 0;
    const pmix_status_t status = p->PMIx_Get(&first, key, NULL, 0, &v);
    if (status != PMIX_SUCCESS || !v)
        FAIL(&p->diag, FATHOM_EIO, "rank 0 has told nothing: %s", p->PMIx_Error_string(status));
    const bool fits =
        v->type == PMIX_STRING && v->data.string && strlen(v->data.string) < PMIX_TEXT_BYTES;
    (void)snprintf(p->text, sizeof p->text, "%s", fits ? v->data.string : "");
    free_value(v);
    if (!fits) FAIL(&p->diag, FATHOM_EIO, "what rank 0 has told is no text of this program");
    return FATHOM_OK;
}

/* ---- the steps ------------------------------------------------------------------------------ */

static fathom_err join_job(struct pmix *p)
{
    pmix_status_t status = p->PMIx_Init(&p->self, NULL, 0);
    if (status != PMIX_SUCCESS) return failed(p, status);
    p->is_init = true;
    p->job.rank = p->self.rank;
    (void)snprintf(p->job.name, sizeof p->job.name, "%s", p->self.nspace);
    TRY(get_count(p, PMIX_JOB_SIZE, &p->job.n_process));
    return get_count(p, PMIX_LOCAL_SIZE, &p->job.n_local);
}

static fathom_err put_text(struct pmix *p)
{
    pmix_value_t v = {.type = PMIX_STRING, .data.string = p->text};
    pmix_status_t status = p->PMIx_Put(PMIX_GLOBAL, key, &v);
    if (status == PMIX_SUCCESS) status = p->PMIx_Commit();
    return status == PMIX_SUCCESS ? FATHOM_OK : failed(p, status);
}

/* After the fence what was put is with the server of every machine. */
static fathom_err share_text(struct pmix *p)
{
    pmix_info_t collect = {.key = PMIX_COLLECT_DATA,
                           .value = {.type = PMIX_BOOL, .data.flag = true}};
    if (p->job.rank == 0) TRY(put_text(p));
    const pmix_status_t status = p->PMIx_Fence(NULL, 0, &collect, 1);
    if (status != PMIX_SUCCESS) {
        FAIL(&p->diag, FATHOM_EIO, "not all %u processes of %s came: %s", p->job.n_process,
             p->job.name, p->PMIx_Error_string(status));
    }
    return p->job.rank == 0 ? FATHOM_OK : get_text(p);
}

static fathom_err leave_job(struct pmix *p)
{
    const pmix_status_t status = p->PMIx_Finalize(NULL, 0);
    p->is_init = false;
    return status == PMIX_SUCCESS ? FATHOM_OK : failed(p, status);
}

/* ---- life ----------------------------------------------------------------------------------- */

/* ISO C has no conversion from an object's pointer to a function's; the bytes are the same. */
static bool look_up(void *library, const char *name, void *function)
{
    void *found = dlsym(library, name);
    memcpy(function, &found, sizeof found);
    return found != NULL;
}

static fathom_err open_library(struct pmix *p, fathom_diag *d)
{
    p->library = dlopen("libpmix.so.2", RTLD_NOW | RTLD_LOCAL);
    if (!p->library) FAIL(d, FATHOM_ENOTFOUND, "PMIx: %s: install libpmix2", dlerror());
#define LOOK_UP(name)                                                                              \
    if (!look_up(p->library, #name, &p->name))                                                     \
        FAIL(d, FATHOM_ENOTFOUND, "PMIx: libpmix.so.2 has no " #name);
    PMIX_FUNCTIONS(LOOK_UP)
#undef LOOK_UP
    return FATHOM_OK;
}

fathom_err pmix_open(struct pmix **out, struct pmix_job *job, uint64_t timeout_us, fathom_diag *d)
{
    pthread_condattr_t monotonic;
    *out = NULL;
    struct pmix *p = mem_calloc(1, sizeof *p);
    if (!p) FAIL(d, FATHOM_ENOMEM, "no memory for PMIx");
    pthread_mutex_init(&p->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&p->done, &monotonic);
    pthread_condattr_destroy(&monotonic);
    fathom_err err = open_library(p, d);
    if (!err) err = carry_out(p, join_job, "the launcher's server", timeout_us, d);
    if (err) {
        pmix_close(p);
        return err;
    }
    *job = p->job;
    *out = p;
    return FATHOM_OK;
}

fathom_err pmix_share(struct pmix *p, char text[PMIX_TEXT_BYTES], uint64_t timeout_us,
                      fathom_diag *d)
{
    ASSERT(p->is_init && strnlen(text, PMIX_TEXT_BYTES) < PMIX_TEXT_BYTES);
    (void)snprintf(p->text, sizeof p->text, "%s", text);
    TRY(carry_out(p, share_text, "the address of host 0", timeout_us, d));
    (void)snprintf(text, PMIX_TEXT_BYTES, "%s", p->text);
    return FATHOM_OK;
}

/* The library stays: threads that it has started may still be on their way out of it. */
void pmix_close(struct pmix *p)
{
    enum { LEAVE_US = 5000000 };
    if (!p || p->is_lost) return;
    if (p->is_init) (void)carry_out(p, leave_job, "leaving", LEAVE_US, NULL);
    if (p->is_lost) return;
    pthread_cond_destroy(&p->done);
    pthread_mutex_destroy(&p->lock);
    mem_free(p);
}
