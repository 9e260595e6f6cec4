/* death.h - a function that must end the process, run in a child */
#ifndef FATHOM_TESTS_SUPPORT_DEATH_H
#define FATHOM_TESTS_SUPPORT_DEATH_H

#include <stdbool.h>
#include <stddef.h>

/* dies_of_assert - call f(arg) in a child without a core dump
 *
 *   said  what the child wrote to its standard error, cut to `bytes`
 * Returns  true if it ended with SIGABRT, false if it went on or ended otherwise. */
bool dies_of_assert(void (*f)(void *arg), void *arg, char *said, size_t bytes);

#endif
