/* host_device.h - what backends whose device is the host have in common: memory is memory, the
 * queue is done when an operator returns. ref and cpu put these into their tables. Several ranks:
 * host_group.h. */
#ifndef FATHOM_BACKEND_HOST_DEVICE_H
#define FATHOM_BACKEND_HOST_DEVICE_H

#include <stddef.h>
#include <stdint.h>

#include "backend/backend.h"

/* host_alloc - zeroed pages, taken from the system on first touch; ENOMEM names `what`.
 * host_alloc_pinned - the same as host memory. host_release accepts NULL. */
fathom_err host_alloc(struct backend *b, size_t bytes, const char *what, void **out,
                      fathom_diag *d);
fathom_err host_alloc_pinned(struct backend *b, size_t bytes, void **out, fathom_diag *d);
void host_release(struct backend *b, void *p);

/* host_copy - both directions; never fails */
fathom_err host_copy(struct backend *b, void *to, const void *from, size_t bytes);

/* host_sync, host_fence_wait - nothing is ever under way; never fail */
fathom_err host_sync(struct backend *b);
fathom_err host_fence_wait(struct backend *b, uint32_t fence);

/* host_bind_thread - memory is every thread's; never fails */
fathom_err host_bind_thread(struct backend *b);

/* The marks of a queue that is always done, for a backend's fence_record and fence_elapsed. */
struct host_fences {
    uint64_t at_ns[BACKEND_FENCE_MAX];
};
fathom_err host_fence_record(struct host_fences *f, uint32_t fence);
fathom_err host_fence_elapsed(const struct host_fences *f, uint32_t from, uint32_t to, double *us);

/* host_check_config - sizes that every operator relies on
 *
 *   name  of the backend, for the message
 * Errors  EINVAL for a size that is 0 or that contradicts another; EUNSUPPORTED for too many
 * ranks. */
fathom_err host_check_config(const struct backend_config *c, const char *name, fathom_diag *d);

/* host_row_width - values from one row to the next in an array of ref's or cpu's: the width that
 * buffer_shape.h tells, but ROUTE has its experts and their weights in an array each */
uint32_t host_row_width(const struct backend_config *c, enum buffer_kind kind);

/* host_check_access - EINVAL for rows that the buffer has not, or a width that buffer_read and
 * buffer_write do not know. QUERY rows may go without their index query; ROUTE rows have their
 * weights behind their experts. */
fathom_err host_check_access(const struct backend_config *c, enum buffer_kind kind, uint32_t row0,
                             uint32_t n_row, uint32_t width);

/* host_view_row - a row of a tensor as f32, whether it has data or is to be made
 * Needs  a type that is a float. */
void host_view_row(const struct tensor_view *v, uint32_t row, float *out);

#endif
