/* ray.c - Ray's head and workers become host 0 and the others */
#include "cli/ray.h"

#include <stdio.h>
#include <string.h>

#include "base/fail.h"
#include "cli/options.h"

/* "--master-addr 10.0.0.1 --master-port 6379", where host 0 is */
static fathom_err write_meeting(struct buf *out, const char *address, size_t n_address,
                                const char *port)
{
    if (!address || n_address == 0) {
        address = "HOST0";
        n_address = strlen(address);
    }
    TRY(buf_printf(out, " --master-addr %.*s", (int)n_address, address));
    return port && *port ? buf_printf(out, " --master-port %s", port) : FATHOM_OK;
}

/* "fathom serve org/name -tp 8 -pp 2 --nnodes 2 --node-rank 0 --master-addr HOST0" */
static fathom_err write_serve(struct buf *out, const struct settings *s, bool is_first)
{
    const struct option *address = option_of_command("master-addr", COMMAND_SERVE);
    const struct option *port = option_of_command("master-port", COMMAND_SERVE);
    const int64_t n_host = s->nnodes > 1 ? s->nnodes : s->pipeline_parallel_size;
    const char *given = s->master_addr == address->fallback ? NULL : s->master_addr;
    char number[24];
    (void)snprintf(number, sizeof number, "%lld", (long long)s->master_port);
    TRY(buf_printf(out, "`fathom serve %s", s->model));
    if (s->tensor_parallel_size > 1)
        TRY(buf_printf(out, " -tp %lld", (long long)s->tensor_parallel_size));
    if (s->pipeline_parallel_size > 1)
        TRY(buf_printf(out, " -pp %lld", (long long)s->pipeline_parallel_size));
    if (n_host > 1) {
        TRY(buf_printf(out, " --nnodes %lld", (long long)n_host));
    } else {
        TRY(buf_add_str(out, " --nnodes N"));
    }
    TRY(buf_printf(out, " --node-rank %d", is_first ? 0 : 1));
    TRY(write_meeting(out, given, given ? strlen(given) : 0,
                      strcmp(number, port->fallback) == 0 ? NULL : number));
    return buf_add_str(out, is_first ? "`" : " --headless`");
}

fathom_err ray_write_serve(struct buf *out, const struct settings *s)
{
    const int64_t n_host = s->nnodes > 1 ? s->nnodes : s->pipeline_parallel_size;
    TRY(buf_add_str(out, "--distributed-executor-backend ray is refused: hosts join without Ray: "
                         "on host 0 "));
    TRY(write_serve(out, s, true));
    TRY(buf_add_str(out, ", on host 1 "));
    TRY(write_serve(out, s, false));
    if (n_host > 2) TRY(buf_add_str(out, " and so on"));
    if (n_host <= 1) TRY(buf_add_str(out, ", N being how many hosts there are"));
    return buf_add_str(out, "; other flags stay as they are; on one host leave the flag out");
}

/* ---- `ray start` ------------------------------------------------------------------------- */

/* The value of --name=value or --name value among the words; NULL: none. */
static const char *word_value(const char *const *words, size_t n, const char *name)
{
    size_t n_name = strlen(name);
    for (size_t i = 0; i < n; i++) {
        if (strncmp(words[i], name, n_name) != 0) continue;
        if (words[i][n_name] == '=') return words[i] + n_name + 1;
        if (words[i][n_name] == '\0' && i + 1 < n) return words[i + 1];
    }
    return NULL;
}

static bool has_word(const char *const *words, size_t n, const char *word)
{
    for (size_t i = 0; i < n; i++) {
        if (strcmp(words[i], word) == 0) return true;
    }
    return false;
}

/* A head listens where it says; a worker goes to HOST:PORT. */
static fathom_err write_start(struct buf *out, const char *const *words, size_t n)
{
    const bool is_head = has_word(words, n, "--head");
    const char *at = word_value(words, n, is_head ? "--node-ip-address" : "--address");
    const char *port = word_value(words, n, "--port");
    if (at && strcmp(at, "auto") == 0) at = NULL; /* Ray's word for the one that it finds */
    size_t n_at = at ? strlen(at) : 0;
    const char *colon = at && !is_head ? strrchr(at, ':') : NULL;
    if (colon) {
        n_at = (size_t)(colon - at);
        port = colon + 1;
    }
    if (is_head) {
        TRY(buf_add_str(out, "ray start --head: hosts join without Ray: this is host 0, which "
                             "serves: `fathom serve MODEL --nnodes N --node-rank 0"));
    } else {
        TRY(buf_add_str(out, "ray start: hosts join without Ray: this is host 1 of N (the next "
                             "one 2, and so on): `fathom serve MODEL --nnodes N --node-rank 1"));
    }
    TRY(write_meeting(out, at, n_at, port));
    return buf_printf(out, "%s`, with MODEL and options as for vllm serve, the same on every host",
                      is_head ? "" : " --headless");
}

fathom_err ray_write_answer(struct buf *out, const char *const *words, size_t n)
{
    const char *what = n ? words[0] : "";
    if (strcmp(what, "start") == 0) return write_start(out, words + 1, n - 1);
    if (strcmp(what, "status") == 0) {
        return buf_add_str(out, "ray status: there is no Ray: `fathom health http://HOST0:8000` "
                                "tells whether all hosts have joined");
    }
    if (strcmp(what, "stop") == 0) {
        return buf_add_str(out, "ray stop: there is no Ray: end `fathom serve` of host 0 by "
                                "SIGTERM, then the others");
    }
    return buf_add_str(out, "ray: hosts join without Ray: `fathom serve MODEL --nnodes N "
                            "--node-rank I --master-addr HOST0`, and --headless on all but host 0");
}
