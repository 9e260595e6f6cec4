/* fake_pmix.c - a libpmix.so.2 that does what FAKE_PMIX says
 *
 * Of one process: FAKE_RANK, FAKE_SIZE and FAKE_LOCAL are its job. What it puts is FAKE_PUT from
 * then on, and FAKE_TEXT is what rank 0 of its job has put. FAKE_PMIX is a word: no_server,
 * no_size, put_fails, fence_fails, no_key, other_type, or hang_init, hang_fence, hang_get. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <pmix.h>

static bool does(const char *what)
{
    const char *word = getenv("FAKE_PMIX");
    return word && strcmp(word, what) == 0;
}

static uint32_t number(const char *name)
{
    const char *text = getenv(name);
    return text ? (uint32_t)strtoul(text, NULL, 10) : 0;
}

/* To the end of the process. */
static void hang(const char *where)
{
    while (does(where)) (void)pause();
}

const char *PMIx_Error_string(pmix_status_t status)
{
    return status == PMIX_ERR_UNREACH     ? "UNREACHABLE"
           : status == PMIX_ERR_NOT_FOUND ? "NOT-FOUND"
           : status == PMIX_SUCCESS       ? "SUCCESS"
                                          : "ERROR";
}

pmix_status_t PMIx_Init(pmix_proc_t *proc, pmix_info_t info[], size_t n)
{
    (void)info;
    (void)n;
    hang("hang_init");
    if (does("no_server")) return PMIX_ERR_UNREACH;
    (void)snprintf(proc->nspace, sizeof proc->nspace, "job7");
    proc->rank = number("FAKE_RANK");
    return PMIX_SUCCESS;
}

pmix_status_t PMIx_Finalize(const pmix_info_t info[], size_t n)
{
    (void)info;
    (void)n;
    return setenv("FAKE_LEFT", "1", 1) == 0 ? PMIX_SUCCESS : PMIX_ERROR;
}

pmix_status_t PMIx_Put(pmix_scope_t scope, const char key[], pmix_value_t *v)
{
    if (does("put_fails") || scope != PMIX_GLOBAL || !key[0] || v->type != PMIX_STRING)
        return PMIX_ERROR;
    return setenv("FAKE_PUT", v->data.string, 1) == 0 ? PMIX_SUCCESS : PMIX_ERROR;
}

pmix_status_t PMIx_Commit(void)
{
    return PMIX_SUCCESS;
}

pmix_status_t PMIx_Fence(const pmix_proc_t procs[], size_t n_proc, const pmix_info_t info[],
                         size_t n)
{
    hang("hang_fence");
    const bool collects = n == 1 && strcmp(info[0].key, PMIX_COLLECT_DATA) == 0;
    if (does("fence_fails") || procs || n_proc || !collects) return PMIX_ERROR;
    return PMIX_SUCCESS;
}

static pmix_status_t give(pmix_value_t **out, pmix_data_type_t type, uint32_t count,
                          const char *text)
{
    pmix_value_t *v = calloc(1, sizeof *v);
    if (!v) return PMIX_ERROR;
    v->type = type;
    if (type == PMIX_STRING)
        v->data.string = strdup(text);
    else
        v->data.uint32 = count;
    *out = v;
    return PMIX_SUCCESS;
}

pmix_status_t PMIx_Get(const pmix_proc_t *proc, const char key[], const pmix_info_t info[],
                       size_t n, pmix_value_t **out)
{
    const char *text = getenv("FAKE_TEXT");
    (void)info;
    (void)n;
    if (strcmp(key, PMIX_JOB_SIZE) == 0 || strcmp(key, PMIX_LOCAL_SIZE) == 0) {
        if (does("no_size") || proc->rank != PMIX_RANK_WILDCARD) return PMIX_ERR_NOT_FOUND;
        const bool is_job = strcmp(key, PMIX_JOB_SIZE) == 0;
        return give(out, PMIX_UINT32, number(is_job ? "FAKE_SIZE" : "FAKE_LOCAL"), NULL);
    }
    hang("hang_get");
    if (does("no_key") || !text || proc->rank != 0) return PMIX_ERR_NOT_FOUND;
    if (does("other_type")) return give(out, PMIX_UINT32, 1, NULL);
    return give(out, PMIX_STRING, 0, text);
}
