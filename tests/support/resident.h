/* resident.h - how much memory the process holds now */
#ifndef FATHOM_TESTS_RESIDENT_H
#define FATHOM_TESTS_RESIDENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <unistd.h>

/* A sanitizer keeps what is freed, so what is resident tells nothing there. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { KEEPS_FREED_MEMORY = 1 };
#else
enum { KEEPS_FREED_MEMORY = 0 };
#endif

/* resident_bytes - 0 when the system does not tell */
static inline size_t resident_bytes(void)
{
    unsigned long pages = 0, resident = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    if (!f) return 0;
    if (fscanf(f, "%lu %lu", &pages, &resident) != 2) resident = 0;
    (void)fclose(f);
    return resident * (size_t)sysconf(_SC_PAGESIZE);
}

#endif
