/* fail.h - the three macros of error propagation, and no others
 *
 *   TRY(call)              return the call's error if it has one
 *   TRY_GOTO(call, label)  store it in the local `err` and go to the one exit label
 *   FAIL(d, code, fmt...)  write the message into d (if d is not NULL and is still empty), return
 *                          code, which is not FATHOM_OK and has no side effect
 *
 * A function with an exit label says FAIL's message with diag_fail: `err = diag_fail(d, code, ...);
 * goto label;`.
 */
#ifndef FATHOM_BASE_FAIL_H
#define FATHOM_BASE_FAIL_H

#include "fathom/err.h"

#define TRY(call)                                                                                  \
    do {                                                                                           \
        fathom_err try_err_ = (call);                                                              \
        if (try_err_ != FATHOM_OK) return try_err_;                                                \
    } while (0)

#define TRY_GOTO(call, label)                                                                      \
    do {                                                                                           \
        err = (call);                                                                              \
        if (err != FATHOM_OK) goto label;                                                          \
    } while (0)

#define FAIL(d, code, ...)                                                                         \
    do {                                                                                           \
        (void)diag_fail((d), (code), __VA_ARGS__);                                                 \
        return (code);                                                                             \
    } while (0)

/* diag_fail - write a message and give the code back
 *
 *   d     message, may be NULL; a message already there is kept
 *   code  any error but FATHOM_OK
 * Returns code.
 */
fathom_err diag_fail(fathom_diag *d, fathom_err code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* diag_clear - make d empty; d may be NULL */
void diag_clear(fathom_diag *d);

#endif
