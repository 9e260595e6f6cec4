/* clock.h - monotonic and wall time. Only threads that meet the world read them; the scheduler is
 * given the time as an argument. */
#ifndef FATHOM_BASE_CLOCK_H
#define FATHOM_BASE_CLOCK_H

#include <stdint.h>

uint64_t clock_now_us(void);         /* monotonic microseconds, arbitrary origin */
uint64_t clock_now_ns(void);         /* monotonic nanoseconds, the same origin */
uint64_t clock_thread_cpu_us(void);  /* processor time that this thread has used */
uint64_t clock_process_cpu_us(void); /* of all threads of the process */
int64_t clock_unix_s(void);          /* seconds since 1970 */
uint64_t clock_unix_ns(void);        /* nanoseconds since then */
void clock_sleep_us(uint64_t us);

#endif
