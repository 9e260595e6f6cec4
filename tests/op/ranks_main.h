/* ranks_main.h - main of an operator's test that several ranks run together */
#ifndef FATHOM_TESTS_OP_RANKS_MAIN_H
#define FATHOM_TESTS_OP_RANKS_MAIN_H

#ifdef FATHOM_SIM_BACKENDS
#include "simt/simt_fault.h"
#endif
#include "op/backends.h"
#include "op/harness.h"

/* op_ranks_main - main: op_main with as many ranks as there are devices for
 *
 *   world_max  the most that the tests use, a power of two; fewer afterwards, where there are fewer
 *              GPUs. Of simulated ones there are as many
 *   tests      [n_test]; the last one is of ranks that are found in different layers, which GPUs do
 *              not look at
 * Returns  77, skipped, where there are no two. */
static inline int op_ranks_main(int argc, char **argv, uint32_t *world_max,
                                const struct CMUnitTest *tests, size_t n_test)
{
    const bool is_cuda = argc > 1 && strncmp(argv[1], "cuda", 4) == 0;
#ifdef FATHOM_TESTS_SIMT_FAULT_H
    simt_set_devices((int)*world_max);
#endif
    while (is_cuda && strcmp(argv[1], "cuda") == 0 && *world_max > (uint32_t)backend_cuda_count())
        *world_max /= 2;
    if (*world_max < 2) {
        print_message("skipped: 2 GPUs are needed, there are %d\n", backend_cuda_count());
        return 77;
    }
    return op_main(argc, argv, "tests", tests, n_test - (is_cuda ? 1 : 0));
}

#endif
