/* launcher.c - the variables of each launcher, as one table */
#include "cli/launcher.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* How a launcher tells that it has started more than one process on a host. */
enum tasks { TASKS_UNTOLD, TASKS_OF_HOST, TASKS_OF_ALL };

struct row {
    const char *name;
    const char *n_host, *rank;
    const char *address; /* NULL: only MASTER_ADDR tells it */
    bool is_list;        /* address is a list of Slurm's */
    enum tasks tasks;
    const char *n_task;
    const char *advice; /* for one process a host */
};

/* The innermost first: mpirun and torchrun may run within Slurm's step, and leave its variables. */
static const struct row rows[] = {
    {"Open MPI", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", NULL, false, TASKS_OF_HOST,
     "OMPI_COMM_WORLD_LOCAL_SIZE", "mpirun --map-by ppr:1:node"},
    {"torchrun", "GROUP_WORLD_SIZE", "GROUP_RANK", NULL, false, TASKS_OF_HOST, "LOCAL_WORLD_SIZE",
     "torchrun --nproc-per-node=1"},
    {"LeaderWorkerSet", "LWS_GROUP_SIZE", "LWS_WORKER_INDEX", "LWS_LEADER_ADDRESS", false,
     TASKS_UNTOLD, NULL, NULL},
    {"Slurm", "SLURM_STEP_NUM_NODES", "SLURM_NODEID", "SLURM_STEP_NODELIST", true, TASKS_OF_ALL,
     "SLURM_STEP_NUM_TASKS", "srun --ntasks-per-node=1"},
    {"PMI", "PMI_SIZE", "PMI_RANK", NULL, false, TASKS_OF_HOST, "MPI_LOCALNRANKS",
     "mpiexec -ppn 1"},
    {"NNODES", "NNODES", "NODE_RANK", NULL, false, TASKS_UNTOLD, NULL, NULL},
    {"WORLD_SIZE", "WORLD_SIZE", "RANK", NULL, false, TASKS_OF_HOST, "LOCAL_WORLD_SIZE",
     "one process a host"},
};

/* A variable that is set to nothing counts as unset. */
static const char *value_of(char *const *variables, const char *name)
{
    size_t n = strlen(name);
    for (char *const *v = variables; *v; v++) {
        if (strncmp(*v, name, n) == 0 && (*v)[n] == '=' && (*v)[n + 1]) return *v + n + 1;
    }
    return NULL;
}

static struct launcher_word word_of(char *const *variables, const char *name)
{
    const char *value = name ? value_of(variables, name) : NULL;
    return (struct launcher_word){value ? name : NULL, value};
}

/* 0 for what is no number. */
static unsigned long number(const char *text)
{
    return text && text[strspn(text, "0123456789")] == '\0' ? strtoul(text, NULL, 10) : 0;
}

const char *launcher_flag_name(enum launcher_flag f)
{
    static const char *const names[LAUNCHER_FLAGS] = {"nnodes", "node-rank", "master-addr",
                                                      "master-port"};
    return names[f];
}

bool launcher_first_host(char out[LAUNCHER_HOST_BYTES], const char *list)
{
    size_t n = 0;
    const char *at = list;
    while (*at && *at != ',') {
        if (n == LAUNCHER_HOST_BYTES - 1 || *at == ']' || *at == ' ') return false;
        if (*at != '[') {
            out[n++] = *at++;
            continue;
        }
        const char *end = strchr(at, ']');
        size_t n_digit = strspn(at + 1, "0123456789");
        if (!end || n_digit == 0 || !strchr("-,]", at[1 + n_digit])) return false;
        if (n + n_digit >= LAUNCHER_HOST_BYTES) return false;
        memcpy(out + n, at + 1, n_digit);
        n += n_digit;
        at = end + 1;
    }
    out[n] = '\0';
    return n > 0;
}

/* Where host 0 is. */
static void read_address(struct launcher *l, const struct row *row, char *const *variables)
{
    struct launcher_word *address = &l->words[LAUNCHER_ADDRESS];
    *address = word_of(variables, "MASTER_ADDR");
    if (address->value || !row || !row->address) return;
    *address = word_of(variables, row->address);
    if (!address->value || !row->is_list) return;
    if (launcher_first_host(l->address_text, address->value)) {
        address->value = l->address_text;
        l->lists_hosts = true;
    } else {
        *address = (struct launcher_word){0};
    }
}

static void read_port(struct launcher *l, const struct row *row, char *const *variables)
{
    struct launcher_word *word = &l->words[LAUNCHER_PORT];
    *word = word_of(variables, "MASTER_PORT");
    unsigned long port = number(word->value);
    if (!row || strcmp(row->name, "torchrun") != 0 || port == 0) return;
    unsigned next = port < 65536 ? (unsigned)port + 1 : 65536;
    (void)snprintf(l->port_text, sizeof l->port_text, "%u", next);
    word->value = l->port_text;
}

static void check_tasks(struct launcher *l, const struct row *row, char *const *variables)
{
    const char *n_task = row->n_task ? value_of(variables, row->n_task) : NULL;
    const char *n_host = l->words[LAUNCHER_NNODES].value;
    if (!n_task || row->tasks == TASKS_UNTOLD) return;
    if (number(n_task) == (row->tasks == TASKS_OF_ALL ? number(n_host) : 1)) return;
    (void)snprintf(l->why_not, sizeof l->why_not,
                   "%s is %.12s, %s is %.12s: a host is one process, whose ranks are threads: "
                   "start it by %s",
                   row->n_task, n_task, row->n_host, n_host, row->advice);
}

void launcher_read(struct launcher *out, char *const *variables)
{
    const struct row *found = NULL;
    struct launcher_word *words = out->words;
    *out = (struct launcher){0};
    out->has_pmix = value_of(variables, "PMIX_NAMESPACE") && value_of(variables, "PMIX_RANK");
    for (size_t i = 0; i < sizeof rows / sizeof rows[0] && !found; i++) {
        words[LAUNCHER_NNODES] = word_of(variables, rows[i].n_host);
        words[LAUNCHER_RANK] = word_of(variables, rows[i].rank);
        if (words[LAUNCHER_RANK].value && number(words[LAUNCHER_NNODES].value) > 1)
            found = &rows[i];
    }
    if (found) {
        out->name = found->name;
        check_tasks(out, found, variables);
    } else { /* --nnodes tells how many there are */
        words[LAUNCHER_NNODES] = (struct launcher_word){0};
        words[LAUNCHER_RANK] = word_of(variables, "NODE_RANK");
        if (!words[LAUNCHER_RANK].value && out->has_pmix)
            words[LAUNCHER_RANK] = word_of(variables, "PMIX_RANK");
    }
    read_address(out, found, variables);
    read_port(out, found, variables);
}
