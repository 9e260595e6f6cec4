/* compilation_settings.h - what --compilation-config and -O say: what is recorded at start */
#ifndef FATHOM_CLI_COMPILATION_SETTINGS_H
#define FATHOM_CLI_COMPILATION_SETTINGS_H

#include <stdbool.h>
#include <stdint.h>

enum { COMPILATION_SIZES_MAX = 128, COMPILATION_SIZE_LIMIT = 8192 };

struct compilation {
    bool no_graphs;                        /* cudagraph_mode NONE, or -O0 */
    uint32_t sizes[COMPILATION_SIZES_MAX]; /* cudagraph_capture_sizes, in the order given */
    uint32_t n_size;                       /* 0: not given */
    uint32_t n_warm_up;                    /* cudagraph_num_of_warmups; 0: not given */
};

#endif
