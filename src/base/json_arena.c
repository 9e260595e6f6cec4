/* json_arena.c - the range of all JSON arenas, its chunks, and jansson's hooks
 *
 * The range is cut into chunks. An arena takes runs of neighbouring chunks, first fit from below,
 * and each run begins with its header. The pages of the lowest chunks stay when they are given
 * back, so that small requests, one after the other, touch no new page.
 *
 * Lock: `range.lock` alone, taken for a run and not for a value.
 */
#include "base/json_arena.h"

#include <jansson.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

#include "base/assert.h"
#include "base/limits.h"
#include "base/mem.h"

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(p, n) ((void)(p), (void)(n))
#define ASAN_UNPOISON_MEMORY_REGION(p, n) ((void)(p), (void)(n))
#endif

enum {
    CHUNK_BYTES = 64 << 10,
    N_CHUNK = LIMIT_JSON_TREES_BYTES / CHUNK_BYTES,
    LEAST_CHUNKS = (64 << 20) / CHUNK_BYTES, /* a range below this is none */
    KEPT_CHUNKS = (2 << 20) / CHUNK_BYTES,   /* the lowest, whose pages stay */
    RUN_CHUNKS = 64,                         /* most chunks of a run for small values */
    ALIGN = 8,                               /* what jansson's structures need */
};

/* At the begin of a run. */
struct run {
    struct run *next;
    size_t n_chunk;
};

struct json_arena {
    char *at, *end; /* room of the newest run for small values */
    struct run *runs;
    size_t n_chunk;
    size_t used, limit;
    enum json_arena_fault fault;
};

static struct range {
    pthread_once_t once;
    pthread_mutex_t lock;
    char *base; /* NULL: the system gives none */
    size_t n_chunk;
    unsigned char taken[N_CHUNK]; /* 1: belongs to a run */
    atomic_size_t n_taken;
} range = {.once = PTHREAD_ONCE_INIT, .lock = PTHREAD_MUTEX_INITIALIZER};

static _Thread_local struct json_arena *entered;

/* ---- chunks -------------------------------------------------------------------------------- */

/* The first chunk of n free neighbours; n_chunk: there are none. With the lock. */
static size_t find_run(size_t n)
{
    size_t n_free = 0;
    for (size_t i = 0; i < range.n_chunk; i++) {
        n_free = range.taken[i] ? 0 : n_free + 1;
        if (n_free == n) return i + 1 - n;
    }
    return range.n_chunk;
}

static struct run *take_run(size_t n)
{
    struct run *run = NULL;
    (void)pthread_mutex_lock(&range.lock);
    size_t first = find_run(n);
    if (first < range.n_chunk) {
        memset(range.taken + first, 1, n);
        run = (struct run *)(void *)(range.base + first * CHUNK_BYTES);
    }
    (void)pthread_mutex_unlock(&range.lock);
    if (!run) return NULL;
    atomic_fetch_add(&range.n_taken, n);
    ASAN_UNPOISON_MEMORY_REGION(run, n * CHUNK_BYTES);
    *run = (struct run){.n_chunk = n};
    return run;
}

/* The pages go before the chunks are free: another arena may take them at once. */
static void give_run(struct run *run)
{
    size_t n = run->n_chunk;
    size_t first = (size_t)((char *)run - range.base) / CHUNK_BYTES;
    size_t kept = first < KEPT_CHUNKS ? KEPT_CHUNKS - first : 0;
    if (kept < n) {
        (void)madvise((char *)run + kept * CHUNK_BYTES, (n - kept) * CHUNK_BYTES, MADV_DONTNEED);
    }
    ASAN_POISON_MEMORY_REGION(run, n * CHUNK_BYTES);
    (void)pthread_mutex_lock(&range.lock);
    ASSERT(range.taken[first] && range.taken[first + n - 1]);
    memset(range.taken + first, 0, n);
    (void)pthread_mutex_unlock(&range.lock);
    size_t before = atomic_fetch_sub(&range.n_taken, n);
    ASSERT(before >= n);
}

/* ---- values -------------------------------------------------------------------------------- */

/* Room for n bytes behind a new run's header: a large block has a run of its own, small ones share
 * runs that grow with the arena. */
static char *add_run(struct json_arena *a, size_t n)
{
    size_t need = (sizeof(struct run) + n + CHUNK_BYTES - 1) / CHUNK_BYTES;
    bool shared = need == 1;
    size_t n_chunk = need;
    if (shared) n_chunk = a->n_chunk < RUN_CHUNKS ? a->n_chunk + 1 : RUN_CHUNKS;
    struct run *run = take_run(n_chunk);
    if (!run && n_chunk > need) run = take_run(n_chunk = need);
    if (!run) return NULL;
    run->next = a->runs;
    a->runs = run;
    a->n_chunk += n_chunk;
    char *p = (char *)run + sizeof *run;
    if (shared) {
        a->at = p + n;
        a->end = (char *)run + n_chunk * CHUNK_BYTES;
    }
    return p;
}

static void *take(struct json_arena *a, size_t bytes)
{
    if (bytes > LIMIT_JSON_TREES_BYTES) bytes = LIMIT_JSON_TREES_BYTES;
    size_t n = (bytes + ALIGN - 1) / ALIGN * ALIGN;
    char *p = NULL;
    if (!mem_may_allocate()) return NULL;
    if (n > a->limit - a->used) {
        if (!a->fault) a->fault = JSON_ARENA_OVER;
        return NULL;
    }
    if (n <= (size_t)(a->end - a->at)) {
        p = a->at;
        a->at += n;
    } else {
        p = add_run(a, n);
    }
    if (p) {
        a->used += n;
    } else if (!a->fault) {
        a->fault = JSON_ARENA_FULL;
    }
    return p;
}

bool json_arena_holds(const void *p)
{
    return (uintptr_t)p - (uintptr_t)range.base < range.n_chunk * CHUNK_BYTES;
}

/* ---- jansson's hooks ----------------------------------------------------------------------- */

static void *hook_alloc(size_t bytes)
{
    return entered ? take(entered, bytes) : mem_alloc(bytes);
}

static void hook_free(void *p)
{
    if (p && !json_arena_holds(p)) mem_free(p);
}

/* A process whose address space is limited gets a smaller range. */
static void open_range(void)
{
    for (size_t n = N_CHUNK; !range.base && n >= LEAST_CHUNKS; n /= 2) {
        void *p = mmap(NULL, n * CHUNK_BYTES, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (p == MAP_FAILED) continue;
        ASAN_POISON_MEMORY_REGION(p, n * CHUNK_BYTES);
        (void)madvise(p, n * CHUNK_BYTES, MADV_HUGEPAGE); /* advice: fewer faults */
        range.base = p;
        range.n_chunk = n;
    }
    if (range.base) json_set_alloc_funcs(hook_alloc, hook_free);
}

/* ---- arenas -------------------------------------------------------------------------------- */

fathom_err json_arena_create(struct json_arena **out, size_t limit)
{
    *out = NULL;
    (void)pthread_once(&range.once, open_range);
    struct json_arena *a = range.base ? mem_calloc(1, sizeof *a) : NULL;
    if (!a) return FATHOM_ENOMEM;
    a->limit = limit < LIMIT_JSON_TREE_BYTES ? limit : LIMIT_JSON_TREE_BYTES;
    *out = a;
    return FATHOM_OK;
}

/* The newest runs, down to `last`, which stays. */
static void give_runs(struct json_arena *a, const struct run *last)
{
    while (a->runs != last) {
        struct run *run = a->runs;
        a->runs = run->next;
        a->n_chunk -= run->n_chunk;
        give_run(run);
    }
}

void json_arena_destroy(struct json_arena *a)
{
    if (!a) return;
    ASSERT(a != entered);
    give_runs(a, NULL);
    ASSERT(a->n_chunk == 0);
    mem_free(a);
}

struct json_arena_mark json_arena_take_mark(void)
{
    struct json_arena *a = entered;
    if (!a) return (struct json_arena_mark){0};
    return (struct json_arena_mark){a, a->at, a->end, a->runs, a->used};
}

void json_arena_rewind(const struct json_arena_mark *m)
{
    struct json_arena *a = m->arena;
    if (!a) return;
    ASSERT(m->used <= a->used);
    give_runs(a, m->runs);
    a->at = m->at;
    a->end = m->end;
    a->used = m->used;
}

struct json_arena *json_arena_enter(struct json_arena *a)
{
    struct json_arena *before = entered;
    entered = a;
    return before;
}

struct json_arena *json_arena_entered(void)
{
    return entered;
}

void json_arena_note_text(struct json_arena *a, size_t n)
{
    if (!a) return;
    size_t room = LIMIT_JSON_TREE_BYTES - a->limit;
    a->limit += n < room / LIMIT_JSON_FACTOR ? n * LIMIT_JSON_FACTOR : room;
}

enum json_arena_fault json_arena_fault(const struct json_arena *a)
{
    return a ? a->fault : JSON_ARENA_FINE;
}

size_t json_arena_used(const struct json_arena *a)
{
    return a ? a->used : 0;
}

size_t json_arena_limit(const struct json_arena *a)
{
    return a->limit;
}

size_t json_arenas_used(void)
{
    return atomic_load(&range.n_taken) * CHUNK_BYTES;
}
