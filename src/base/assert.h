/* assert.h - faults of our own
 *
 *   ASSERT(cond)  always on; prints file, line and condition and aborts
 *   DCHECK(cond)  the same in dev and sanitizer builds, nothing in release: for costly checks
 *
 * Never for bad input or a failing world: those return an error.
 */
#ifndef FATHOM_BASE_ASSERT_H
#define FATHOM_BASE_ASSERT_H

#ifdef __cplusplus
extern "C" {
#endif

/* assert_failed - print a failed condition and abort (crash.c); called by the macros only */
__attribute__((noreturn)) void assert_failed(const char *cond, const char *file, int line);

#ifdef __cplusplus
}
#endif

#define ASSERT(cond) ((cond) ? (void)0 : assert_failed(#cond, __FILE__, __LINE__))

#ifdef FATHOM_DCHECK
#define DCHECK(cond) ASSERT(cond)
#else
#define DCHECK(cond) ((void)sizeof(cond))
#endif

#endif
