/* option_launcher.c - what a launcher of several hosts says, where no flag says it
 *
 * The walk takes a launcher's variables before files and the command line, and keeps which of them
 * still hold at its end: `followed`, a bit of each enum launcher_flag.
 */
#include "base/fail.h"
#include "cli/options_int.h"

void option_heed_origin(struct option_walk *w, const struct option *o)
{
    static const int fields[LAUNCHER_FLAGS] = {
        [LAUNCHER_NNODES] = offsetof(struct settings, nnodes),
        [LAUNCHER_RANK] = offsetof(struct settings, node_rank),
        [LAUNCHER_ADDRESS] = offsetof(struct settings, master_addr),
        [LAUNCHER_PORT] = offsetof(struct settings, master_port),
    };
    for (enum launcher_flag f = 0; f < LAUNCHER_FLAGS; f++) {
        if (o->field != fields[f]) continue;
        bool is_launchers = w->launcher && w->origin && w->origin == w->launcher->words[f].variable;
        w->told |= 1u << f;
        w->followed = is_launchers ? w->followed | 1u << f : w->followed & ~(1u << f);
    }
}

/* "Slurm: --nnodes 2 (SLURM_STEP_NUM_NODES), --node-rank 1 (SLURM_NODEID), --headless" */
static fathom_err note_taken(struct option_walk *w)
{
    const struct launcher *l = w->launcher;
    const char *between = ": ";
    TRY(buf_add_str(w->notes, l->name ? l->name : "hosts"));
    for (enum launcher_flag f = 0; f < LAUNCHER_FLAGS; f++) {
        if (!(w->followed >> f & 1u)) continue;
        TRY(buf_printf(w->notes, "%s--%s %s (%s)", between, launcher_flag_name(f),
                       l->words[f].value, l->words[f].variable));
        between = ", ";
    }
    if (w->settings->by_pmix) {
        TRY(buf_printf(w->notes, "%swhere host 0 is (PMIX_NAMESPACE)", between));
        between = ", ";
    }
    if (w->settings->headless) TRY(buf_printf(w->notes, "%s--headless", between));
    return buf_add_str(w->notes, "; --nnodes 1 serves with this host alone\n");
}

/* The first host of a list is the launcher's word too, but the port may be taken there. */
static bool asks_pmix(const struct option_walk *w)
{
    const unsigned address = 1u << LAUNCHER_ADDRESS, port = 1u << LAUNCHER_PORT;
    const struct launcher *l = w->launcher;
    if (!l || !l->has_pmix || w->told & port) return false;
    return !(w->told & address) || (w->followed & address && l->lists_hosts);
}

fathom_err option_follow_launcher(struct option_walk *w)
{
    const struct launcher *l = w->launcher;
    struct settings *s = w->settings;
    bool has_nnodes = w->followed >> LAUNCHER_NNODES & 1u,
         has_rank = w->followed >> LAUNCHER_RANK & 1u;
    s->by_pmix = s->nnodes > 1 && asks_pmix(w);
    if (s->by_pmix) w->followed &= ~(1u << LAUNCHER_ADDRESS);
    if (!w->followed) return FATHOM_OK;
    if (s->nnodes <= 1) { /* no part of what the launcher has started */
        if (has_rank) s->node_rank = 0;
        return FATHOM_OK;
    }
    if (l->why_not[0] && (has_nnodes || has_rank)) FAIL(w->diag, FATHOM_EINVAL, "%s", l->why_not);
    /* the default itself, which nobody gave */
    if (l->name && !s->by_pmix &&
        s->master_addr == option_of_command("master-addr", COMMAND_SERVE)->fallback) {
        FAIL(w->diag, FATHOM_EINVAL,
             "%s tells of %lld hosts and not where host 0 is: give --master-addr, or MASTER_ADDR",
             l->name, (long long)s->nnodes);
    }
    if (has_rank && s->node_rank > 0 && !s->all_serve) s->headless = true;
    return note_taken(w);
}
