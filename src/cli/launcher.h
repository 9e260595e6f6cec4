/* launcher.h - what a launcher of several hosts says in the environment
 *
 * Slurm, LeaderWorkerSet, torchrun and mpirun start one process on each host and tell it which one
 * it is. What they say is the default of --nnodes, --node-rank, --master-addr and --master-port.
 */
#ifndef FATHOM_CLI_LAUNCHER_H
#define FATHOM_CLI_LAUNCHER_H

#include <stdbool.h>

enum { LAUNCHER_HOST_BYTES = 256, LAUNCHER_PORT_BYTES = 12, LAUNCHER_TEXT_BYTES = 256 };

/* A variable and its value. */
struct launcher_word {
    const char *variable; /* NULL: not told */
    const char *value;
};

/* What a launcher says, each a flag: --nnodes, --node-rank, --master-addr, --master-port. */
enum launcher_flag {
    LAUNCHER_NNODES,
    LAUNCHER_RANK,
    LAUNCHER_ADDRESS,
    LAUNCHER_PORT,
    LAUNCHER_FLAGS
};

struct launcher {
    const char *name; /* "Slurm"; NULL: there is none */
    struct launcher_word words[LAUNCHER_FLAGS];
    char address_text[LAUNCHER_HOST_BYTES];
    char port_text[LAUNCHER_PORT_BYTES];
    bool has_pmix;    /* its processes can tell each other where host 0 is */
    bool lists_hosts; /* the address is the first of a list: it says nothing of a free port */
    char why_not[LAUNCHER_TEXT_BYTES]; /* why its hosts cannot be taken; "": they can */
};

/* launcher_read - the innermost launcher that tells of more than one host
 *
 *   variables  "NAME=value", up to NULL, as environ has them; what `out` points to lies in them
 *              and in `out`, which is not copied
 * MASTER_ADDR and MASTER_PORT hold over what the launcher says of host 0. Where it has PMIx and no
 * variable of its own for them, PMIX_RANK is the rank beside a --nnodes. Under torchrun the port
 * is the one behind MASTER_PORT, on which torchrun's own store listens.
 * Edge  a launcher of one host is none. More than one process a host is told in why_not. A list of
 *       hosts that cannot be read tells no address. */
void launcher_read(struct launcher *out, char *const *variables);

/* launcher_flag_name - of the option, "nnodes" */
const char *launcher_flag_name(enum launcher_flag f);

/* launcher_first_host - of a list as Slurm writes it: node[03-07,9],gpu1 begins with node03
 *
 * Returns  false: there is none, a bracket is open, or it is longer than out. */
bool launcher_first_host(char out[LAUNCHER_HOST_BYTES], const char *list);

#endif
