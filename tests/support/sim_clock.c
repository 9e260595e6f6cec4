/* sim_clock.c - base/clock.h over a clock that stands still but for those who sleep
 *
 * It is linked in place of the machine's. The engine's thread gets the times that its device says,
 * and no others. Sleeping is a short rest, in which others may work. */
#include "base/clock.h"

#include <stdatomic.h>
#include <time.h>

static atomic_uint_fast64_t now_us = 1000000;

uint64_t clock_now_us(void)
{
    return atomic_load(&now_us);
}

uint64_t clock_now_ns(void)
{
    return clock_now_us() * 1000;
}

uint64_t clock_thread_cpu_us(void)
{
    return clock_now_us();
}

int64_t clock_unix_s(void)
{
    return (int64_t)(clock_now_us() / 1000000);
}

uint64_t clock_unix_ns(void)
{
    return clock_now_ns();
}

void clock_sleep_us(uint64_t us)
{
    const struct timespec rest = {0, us < 200 ? (long)us * 1000 : 200000};
    (void)nanosleep(&rest, NULL);
    atomic_fetch_add(&now_us, us);
}
