/* patience.h - waiting for what is bound to come, however busy the machine is */
#ifndef FATHOM_TESTS_PATIENCE_H
#define FATHOM_TESTS_PATIENCE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/clock.h"

/* keep_waiting - a millisecond's rest between two looks; false when two minutes have passed, which
 * only a hang takes. *end_us is 0 before the first look:
 *
 *     uint64_t end_us = 0;
 *     while (!it_has_come() && keep_waiting(&end_us)) {} */
static inline bool keep_waiting(uint64_t *end_us)
{
    if (*end_us == 0) *end_us = clock_now_us() + 120000000;
    clock_sleep_us(1000);
    return clock_now_us() < *end_us;
}

#endif
