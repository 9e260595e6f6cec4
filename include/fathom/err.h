/* err.h - the one error code of fathom
 *
 * Every function that can fail returns fathom_err; 0 is success, in every file.
 * Loading and parsing also fill a fathom_diag: a message for a person, written where the
 * fault is found and never overwritten by the callers it passes through.
 */
#ifndef FATHOM_ERR_H
#define FATHOM_ERR_H

#ifdef __cplusplus
extern "C" {
#endif

#define FATHOM_ERR_MAP(X)                                                                          \
    X(OK, 0, "ok")                                                                                 \
    X(EINVAL, 1, "invalid argument")                                                               \
    X(ENOMEM, 2, "out of memory")                                                                  \
    X(EIO, 3, "file or socket error")                                                              \
    X(EFORMAT, 4, "malformed input")                                                               \
    X(EMISMATCH, 5, "checkpoint does not match the model")                                         \
    X(ELIMIT, 6, "over a documented limit")                                                        \
    X(EBUSY, 7, "no capacity now")                                                                 \
    X(ECANCEL, 8, "cancelled")                                                                     \
    X(EDEVICE, 9, "device failed")                                                                 \
    X(EPEER, 10, "another rank failed")                                                            \
    X(ENOTFOUND, 11, "not found")                                                                  \
    X(EUNSUPPORTED, 12, "not supported")

typedef enum fathom_err {
#define FATHOM_ERR_ENUM(name, value, text) FATHOM_##name = (value),
    FATHOM_ERR_MAP(FATHOM_ERR_ENUM)
#undef FATHOM_ERR_ENUM
} fathom_err;

#define FATHOM_MUST_CHECK __attribute__((warn_unused_result))

enum { FATHOM_DIAG_BYTES = 1024 };

/* A message owned by the caller. text[0] == 0 means that nothing has been written. */
typedef struct fathom_diag {
    char text[FATHOM_DIAG_BYTES];
} fathom_diag;

/* fathom_err_name - "EFORMAT" for FATHOM_EFORMAT; "E?" for a value that is none. Never NULL. */
const char *fathom_err_name(fathom_err err);

/* fathom_err_text - the sentence of the table above. Never NULL. */
const char *fathom_err_text(fathom_err err);

#ifdef __cplusplus
}
#endif
#endif
