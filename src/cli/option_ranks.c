/* option_ranks.c - hosts as vLLM's flags of single data-parallel ranks name them
 *
 * "-dp 8 -dpl 4 -dpr 4" is the second of two hosts, "-dp 8 -dpn 4" the fifth of eight.
 */
#include <stdio.h>

#include "base/fail.h"
#include "cli/launcher.h"
#include "cli/options_int.h"

static bool is_told(const struct option_walk *w, enum launcher_flag f)
{
    return w->told >> f & 1u;
}

/* As if the flag had been given. */
static fathom_err give(struct option_walk *w, enum launcher_flag f, const char *value)
{
    return option_set(w, option_of_command(launcher_flag_name(f), COMMAND_SERVE), value);
}

static fathom_err give_number(struct option_walk *w, enum launcher_flag f, int64_t value)
{
    char text[24];
    (void)snprintf(text, sizeof text, "%lld", (long long)value);
    return give(w, f, text);
}

static fathom_err take_count(struct option_walk *w)
{
    const struct settings *s = w->settings;
    const int64_t n = s->data_parallel_size, n_local = s->data_parallel_size_local;
    if (n_local == 0 || n_local >= n || n % n_local != 0 || is_told(w, LAUNCHER_NNODES))
        return FATHOM_OK;
    return give_number(w, LAUNCHER_NNODES, n / n_local);
}

/* Which host has the rank that this one begins with. */
static fathom_err take_place(struct option_walk *w)
{
    const struct settings *s = w->settings;
    const bool is_single = s->data_parallel_start_rank < 0;
    const char *flag = is_single ? "--data-parallel-rank" : "--data-parallel-start-rank";
    const int64_t first = is_single ? s->data_parallel_rank : s->data_parallel_start_rank;
    const int64_t n_local = s->data_parallel_size / s->nnodes;
    if (first < 0 || n_local == 0) return FATHOM_OK;
    if (s->data_parallel_rank >= 0 && s->data_parallel_rank != first) {
        FAIL(w->diag, FATHOM_EINVAL,
             "--data-parallel-rank %lld and --data-parallel-start-rank %lld: leave one out",
             (long long)s->data_parallel_rank, (long long)first);
    }
    if (first >= s->data_parallel_size || first % n_local != 0) {
        FAIL(w->diag, FATHOM_EINVAL,
             "%s %lld of --data-parallel-size %lld over %lld hosts: needed is the first rank of a "
             "host, which has %lld of them",
             flag, (long long)first, (long long)s->data_parallel_size, (long long)s->nnodes,
             (long long)n_local);
    }
    if (is_told(w, LAUNCHER_RANK) && s->node_rank != first / n_local) {
        FAIL(w->diag, FATHOM_EINVAL, "%s %lld is of host %lld, and --node-rank is %lld", flag,
             (long long)first, (long long)(first / n_local), (long long)s->node_rank);
    }
    return s->nnodes > 1 ? give_number(w, LAUNCHER_RANK, first / n_local) : FATHOM_OK;
}

/* A flag holds over a launcher's word. */
static fathom_err take_instead(struct option_walk *w, enum launcher_flag f, const char *value)
{
    const bool is_given = is_told(w, f) && !(w->followed >> f & 1u);
    return value && !is_given ? give(w, f, value) : FATHOM_OK;
}

/* A port for each host. */
static fathom_err check_serving(struct option_walk *w, bool is_external)
{
    const struct settings *s = w->settings;
    const char *flag = is_external ? "--data-parallel-external-lb" : "--data-parallel-hybrid-lb";
    if (s->data_parallel_size <= 1) {
        FAIL(w->diag, FATHOM_EINVAL,
             "%s: hosts of this model share each request: needed are ranks of --data-parallel-size",
             flag);
    }
    if (is_external && s->data_parallel_size != s->nnodes) {
        FAIL(w->diag, FATHOM_EINVAL,
             "%s: each host has one rank, and --data-parallel-size is %lld over %lld hosts: give "
             "--data-parallel-hybrid-lb",
             flag, (long long)s->data_parallel_size, (long long)s->nnodes);
    }
    if (s->headless)
        FAIL(w->diag, FATHOM_EINVAL, "--headless: with %s every host serves: leave one out", flag);
    if (s->node_rank > 0 && s->uds) {
        FAIL(w->diag, FATHOM_EINVAL,
             "--uds: with %s a host other than host 0 listens at --host and --port: leave it out",
             flag);
    }
    return FATHOM_OK;
}

/* What guards and tells of requests is host 0's, wherever they come in. */
static fathom_err note_host_0(struct option_walk *w)
{
    const struct settings *s = w->settings;
    const struct {
        bool is_given;
        const char *flag;
    } rows[] = {{s->api_key.n > 0, "--api-key"},
                {s->api_key_file, "--api-key-file"},
                {s->access_log, "--access-log"},
                {s->admin_socket, "--admin-socket"}};
    size_t n = 0;
    if (s->node_rank == 0) return FATHOM_OK;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (rows[i].is_given) TRY(buf_printf(w->notes, "%s%s", n++ ? ", " : "", rows[i].flag));
    }
    return n ? buf_add_str(w->notes, ": what host 0 was given holds, to which this host hands "
                                     "requests on\n")
             : FATHOM_OK;
}

fathom_err option_take_ranks(struct option_walk *w)
{
    struct settings *s = w->settings;
    if (!option_reads_serve(w->command)) return FATHOM_OK;
    const bool is_cut = s->data_parallel_size > 1;
    const bool is_external = s->data_parallel_external_lb || (is_cut && s->data_parallel_rank >= 0);
    if (is_external && is_cut && s->data_parallel_size_local == 0) s->data_parallel_size_local = 1;
    if (is_cut) TRY(take_count(w));
    TRY(take_place(w));
    if (s->nnodes > 1 && is_cut) {
        TRY(take_instead(w, LAUNCHER_ADDRESS, s->data_parallel_address));
        TRY(take_instead(w, LAUNCHER_PORT, s->data_parallel_rpc_port));
    }
    s->all_serve = is_external || s->data_parallel_hybrid_lb ||
                   (s->data_parallel_start_rank > 0 && !s->headless);
    if (!s->all_serve) return FATHOM_OK;
    if (s->nnodes > 1) {
        TRY(check_serving(w, is_external));
        return note_host_0(w);
    }
    s->all_serve = false;
    return buf_printf(w->notes, "--data-parallel-hybrid-lb and --data-parallel-external-lb have no "
                                "effect: this host has all ranks\n");
}
