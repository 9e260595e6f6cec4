/* death.h - a function that must end the process, run in a child */
#ifndef FATHOM_TESTS_SUPPORT_DEATH_H
#define FATHOM_TESTS_SUPPORT_DEATH_H

#include <stdbool.h>
#include <stddef.h>

/* run_child - call f(arg) in a child without a core dump; a child that comes back ends with 99
 *
 *   said  what the child wrote to its standard error, cut to `bytes`
 * Returns  its status, as waitpid gives it. */
int run_child(void (*f)(void *arg), void *arg, char *said, size_t bytes);

/* dies_of_assert - whether f(arg) ends a child with SIGABRT; said as for run_child */
bool dies_of_assert(void (*f)(void *arg), void *arg, char *said, size_t bytes);

#endif
