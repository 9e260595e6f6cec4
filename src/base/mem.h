/* mem.h - the allocator of the program
 *
 * Thin over malloc, with two powers that tests need: the Nth allocation of this thread can be made
 * to fail, and allocation can be forbidden on this thread. The engine forbids it inside a step in
 * builds with FATHOM_DCHECK. mem_free accepts NULL.
 */
#ifndef FATHOM_BASE_MEM_H
#define FATHOM_BASE_MEM_H

#include <stdbool.h>
#include <stddef.h>

#include "fathom/err.h"

/* mem_alloc, mem_calloc, mem_resize - NULL when out of memory; a size of 0 gives a valid block.
 * mem_calloc and mem_alloc_array check n * size for overflow (NULL). */
void *mem_alloc(size_t bytes);
void *mem_calloc(size_t n, size_t size);
void *mem_alloc_array(size_t n, size_t size);
void *mem_resize(void *p, size_t bytes);
void mem_free(void *p);

/* mem_grow - room for n elements in an array that doubles when it is full
 *
 *   array  address of the pointer to its elements; NULL: none yet
 *   cap    elements that have room, changes together with *array
 *   size   of an element
 * Errors  ENOMEM: nothing has changed. */
fathom_err mem_grow(void *array, size_t *cap, size_t n, size_t size);

/* mem_alloc_aligned - align is a power of two >= 8; released with mem_free */
void *mem_alloc_aligned(size_t align, size_t bytes);

/* mem_alloc_pages - zeroed memory on a boundary of memory pages, for what is large and lives long
 *
 * The system provides a memory page when it is first touched, so a cache of gigabytes costs nothing
 * until it is used.
 * Returns  NULL when out of memory.
 * Owns     the caller, who releases it with mem_free_pages alone; that accepts NULL. */
void *mem_alloc_pages(size_t bytes);

/* mem_touch_pages - has the system provide these bytes now; what they hold does not change, and
 * nobody else writes to them meanwhile
 * Cost  that of clearing them, once. */
void mem_touch_pages(void *p, size_t bytes);
void mem_free_pages(void *p);

/* mem_strdup, mem_strndup - a terminated copy of s, or of its first n bytes; NULL when out of
 * memory
 */
char *mem_strdup(const char *s);
char *mem_strndup(const char *s, size_t n);

/* mem_return_large - from now on blocks of 1 MiB and more go back to the system when they are
 * freed, however many have come and gone; the heap keeps up to 4 MiB for each thread */
void mem_return_large(void);

/* mem_give_back - give the pages of freed blocks back to the system, where they are many
 *
 *   least  bytes of freed blocks from which on it is worth it
 *   was    0 at first, then what the last trim left: what did not change since is not tried again
 * Cost    some ms for a heap of many thousand freed blocks, for which other threads may wait. */
void mem_give_back(size_t least, size_t *was);

/* mem_fail_after - let n allocations of this thread succeed and fail the next; -1: never.
 * mem_fail_hit tells whether one has been failed since. */
void mem_fail_after(long n);
bool mem_fail_hit(void);

/* mem_may_allocate - for an allocator of its own: counts one allocation of this thread; false: it
 * must fail */
bool mem_may_allocate(void);

/* mem_forbid - while true, an allocation on this thread is a fault (ASSERT), in builds with
 * FATHOM_DCHECK; returns the previous value */
bool mem_forbid(bool on);

#endif
