/* mem.c - memory, where it may fail and where it is forbidden */
#include "base/mem.h"

#include <malloc.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/assert.h"

enum { PAGE_BYTES = 4096, FIRST_ELEMENTS = 64 };

static _Thread_local long fail_after = -1;
static _Thread_local bool fail_hit;
static _Thread_local bool forbidden;

bool mem_may_allocate(void)
{
    DCHECK(!forbidden);
    if (fail_after < 0) return true;
    if (fail_after-- > 0) return true;
    fail_hit = true;
    fail_after = -1;
    return false;
}

void *mem_alloc(size_t bytes)
{
    return mem_may_allocate() ? malloc(bytes ? bytes : 1) : NULL;
}

void *mem_calloc(size_t n, size_t size)
{
    size_t bytes;
    if (__builtin_mul_overflow(n, size, &bytes) || !mem_may_allocate()) return NULL;
    return calloc(1, bytes ? bytes : 1);
}

void *mem_alloc_array(size_t n, size_t size)
{
    size_t bytes;
    if (__builtin_mul_overflow(n, size, &bytes)) return NULL;
    return mem_alloc(bytes);
}

void *mem_resize(void *p, size_t bytes)
{
    return mem_may_allocate() ? realloc(p, bytes ? bytes : 1) : NULL;
}

fathom_err mem_grow(void *array, size_t *cap, size_t n, size_t size)
{
    size_t more = *cap ? *cap : FIRST_ELEMENTS;
    void *p;
    if (n <= *cap) return FATHOM_OK;
    if (n > SIZE_MAX / 2 / size) return FATHOM_ENOMEM;
    while (more < n) more *= 2;
    memcpy(&p, array, sizeof p);
    p = mem_resize(p, more * size);
    if (!p) return FATHOM_ENOMEM;
    memcpy(array, &p, sizeof p);
    *cap = more;
    return FATHOM_OK;
}

void mem_free(void *p)
{
    free(p);
}

void *mem_alloc_aligned(size_t align, size_t bytes)
{
    ASSERT(align >= 8 && (align & (align - 1)) == 0);
    if (bytes > SIZE_MAX - align) return NULL;
    size_t rounded = (bytes + align - 1) & ~(align - 1);
    return mem_may_allocate() ? aligned_alloc(align, rounded ? rounded : align) : NULL;
}

/* The page before the one given out holds the size of the whole mapping. */
void *mem_alloc_pages(size_t bytes)
{
    if (bytes > SIZE_MAX / 2 || !mem_may_allocate()) return NULL;
    size_t whole = bytes + PAGE_BYTES;
    char *base = mmap(NULL, whole, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED) return NULL;
    (void)madvise(base, whole, MADV_HUGEPAGE); /* advice: fewer faults where the system can */
    memcpy(base, &whole, sizeof whole);
    return base + PAGE_BYTES;
}

void mem_touch_pages(void *p, size_t bytes)
{
    volatile unsigned char *at = p;
    for (size_t i = 0; i < bytes; i += PAGE_BYTES) at[i] = at[i];
    if (bytes > 0) at[bytes - 1] = at[bytes - 1]; /* a page that only ends here */
}

void mem_free_pages(void *p)
{
    size_t whole;
    if (!p) return;
    char *base = (char *)p - PAGE_BYTES;
    memcpy(&whole, base, sizeof whole);
    munmap(base, whole);
}

/* Left alone, glibc raises the first to the largest block that was freed, and the second to twice
 * that. */
void mem_return_large(void)
{
    (void)mallopt(M_MMAP_THRESHOLD, 1 << 20);
    (void)mallopt(M_TRIM_THRESHOLD, 4 << 20);
}

/* The count stays when the pages have gone: a freed block keeps its addresses. */
void mem_give_back(size_t least, size_t *was)
{
    size_t n_free = mallinfo2().fordblks;
    if (n_free < least || n_free == *was) return;
    (void)malloc_trim(0);
    *was = mallinfo2().fordblks;
}

char *mem_strndup(const char *s, size_t n)
{
    char *copy = mem_alloc(n + 1);
    if (!copy) return NULL;
    memcpy(copy, s, n);
    copy[n] = '\0';
    return copy;
}

char *mem_strdup(const char *s)
{
    return mem_strndup(s, strlen(s));
}

void mem_fail_after(long n)
{
    fail_after = n;
    fail_hit = false;
}

bool mem_fail_hit(void)
{
    return fail_hit;
}

bool mem_forbid(bool on)
{
    bool before = forbidden;
    forbidden = on;
    return before;
}
