/* simt_outside.h - work of a queue of the simulated GPU that others do
 *
 * A program that loads libraries with such work exports its symbols. */
#ifndef FATHOM_TESTS_SIMT_OUTSIDE_H
#define FATHOM_TESTS_SIMT_OUTSIDE_H

#ifdef __cplusplus
extern "C" {
#else
#include <stdbool.h>
#endif

/* simt_enqueue_outside - the queue, a cudaStream_t, goes on once is_over(arg), which is asked again
 * and again; while it is not, time does not pass for who waits. Returns a cudaError_t. */
int simt_enqueue_outside(void *stream, bool (*is_over)(void *arg), void *arg);

/* simt_records - what is enqueued now becomes part of a recording */
bool simt_records(void *stream);

#ifdef __cplusplus
}
#endif

#endif
