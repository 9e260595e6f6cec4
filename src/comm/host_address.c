/* host_address.c - one line from host 0 to the others */
#include "comm/host_address.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/fail.h"
#include "base/log.h"
#include "base/rng.h"
#include "comm/pmix_client.h"
#include "comm/tcp_link.h"

enum { TOKEN_DIGITS = 32 };

void host_address_write(char out[HOST_ADDRESS_BYTES], const struct host_address *a,
                        bool tells_token)
{
    char token[TOKEN_DIGITS + 1] = "-";
    if (tells_token)
        (void)snprintf(token, sizeof token, "%016" PRIx64 "%016" PRIx64, a->token.key.lo,
                       a->token.key.hi);
    const int n = snprintf(out, HOST_ADDRESS_BYTES, "%s %u %s", a->host, a->port, token);
    ASSERT(n > 0 && n < HOST_ADDRESS_BYTES);
}

/* Sixteen digits. */
static uint64_t half_of(const char *digits)
{
    char text[TOKEN_DIGITS / 2 + 1];
    (void)snprintf(text, sizeof text, "%s", digits);
    return strtoull(text, NULL, 16);
}

fathom_err host_address_read(struct host_address *a, const char *line, fathom_diag *d)
{
    const size_t n_address = strcspn(line, " ");
    const char *port = line + n_address, *token = port;
    unsigned long number = 0;
    if (*port == ' ') {
        const size_t n_digit = strspn(++port, "0123456789");
        token = port + n_digit;
        number = n_digit >= 1 && n_digit <= 5 ? strtoul(port, NULL, 10) : 0;
    }
    const char *digits = *token == ' ' ? token + 1 : "";
    const bool is_told = strcmp(digits, "-") != 0;
    const size_t n_digit = strspn(digits, "0123456789abcdef");
    if (n_address == 0 || n_address >= HOST_NAME_BYTES || number == 0 || number > 65535 ||
        (is_told && (n_digit != TOKEN_DIGITS || digits[n_digit])))
        FAIL(d, FATHOM_EFORMAT, "PMIx: what host 0 tells is no address, port and token");
    memcpy(a->host, line, n_address);
    a->host[n_address] = '\0';
    a->port = (uint16_t)number;
    if (is_told) {
        a->token = (struct pool_secret){
            .is_set = true, .key = {half_of(digits), half_of(digits + TOKEN_DIGITS / 2)}};
    }
    return FATHOM_OK;
}

/* On one machine nobody else can dial; else at every address of this one, and by the name that
 * launchers reach it by. */
static fathom_err listen_here(struct host_address *a, bool is_one_machine, fathom_diag *d)
{
    if (is_one_machine) {
        (void)snprintf(a->host, sizeof a->host, "127.0.0.1");
        return tcp_link_listen(a->host, 0, &a->listen_fd, &a->port, d);
    }
    if (gethostname(a->host, sizeof a->host) != 0 || !memchr(a->host, 0, HOST_NAME_BYTES))
        FAIL(d, FATHOM_EIO, "this machine has no name that others could dial: give --master-addr");
    if (tcp_link_listen("::", 0, &a->listen_fd, &a->port, NULL) == FATHOM_OK) return FATHOM_OK;
    return tcp_link_listen("0.0.0.0", 0, &a->listen_fd, &a->port, d);
}

static fathom_err check_job(const struct pmix_job *job, uint32_t node_rank, uint32_t n_node,
                            fathom_diag *d)
{
    if (job->n_process != n_node) {
        FAIL(d, FATHOM_EINVAL,
             "--nnodes %u: PMIx's job %s has %u processes: start one for each host, or give "
             "--master-addr",
             n_node, job->name, job->n_process);
    }
    if (job->rank == node_rank) return FATHOM_OK;
    FAIL(d, FATHOM_EINVAL,
         "--node-rank %u: this process is rank %u of PMIx's job %s: leave --node-rank out, or give "
         "--master-addr",
         node_rank, job->rank, job->name);
}

static fathom_err meet(struct host_address *a, struct pmix *pmix, const struct pmix_job *job,
                       uint64_t timeout_us, fathom_diag *d)
{
    char line[PMIX_TEXT_BYTES] = "";
    _Static_assert((int)HOST_ADDRESS_BYTES <= (int)PMIX_TEXT_BYTES, "a line is a text of PMIx");
    if (job->rank == 0) {
        const bool makes = !a->token.is_set;
        if (makes) {
            a->token = (struct pool_secret){.is_set = true, .key = {rng_entropy(), rng_entropy()}};
        }
        TRY(listen_here(a, job->n_local == job->n_process, d));
        host_address_write(line, a, makes);
    }
    TRY(pmix_share(pmix, line, timeout_us, d));
    return job->rank == 0 ? FATHOM_OK : host_address_read(a, line, d);
}

fathom_err host_address_by_pmix(struct host_address *a, uint32_t node_rank, uint32_t n_node,
                                uint64_t timeout_us, fathom_diag *d)
{
    struct pmix *pmix = NULL;
    struct pmix_job job;
    ASSERT(n_node > 1 && node_rank < n_node);
    fathom_diag why = {{0}};
    a->listen_fd = -1;
    fathom_err err = pmix_open(&pmix, &job, timeout_us, &why);
    if (err) FAIL(d, err, "%s; hosts with --master-addr do without", why.text);
    err = check_job(&job, node_rank, n_node, d);
    if (!err) err = meet(a, pmix, &job, timeout_us, d);
    pmix_close(pmix);
    if (err) {
        if (a->listen_fd >= 0) (void)close(a->listen_fd);
        a->listen_fd = -1;
        return err;
    }
    LOG_INFO("hosts", "pmix job=%s rank=%u of=%u host 0 at %s:%u", job.name, job.rank,
             job.n_process, a->host, a->port);
    return FATHOM_OK;
}
