/* prompt_mask.cu - which positions a prompt's row attends to, a bit each, of the slots selected
 *
 * A block takes a token. It keeps its request's pages in a hash table in shared memory, so that a
 * slot's page gives its place in the context. A thread takes neighbouring slots, whose positions
 * are mostly in one word. */
#include "backend/cuda/launch.cuh"
#include "backend/cuda/sm90/prompt.cuh"

enum {
    THREADS = 256,
    PAGES_MAX = EXPANDED_SELECTED_MAX / KV_PAGE_TOKENS,
    TABLE_BITS = 10,
    TABLE = 1 << TABLE_BITS,
    WORDS_MAX = EXPANDED_SELECTED_MAX / 32,
    BLOCK_WORDS = PROMPT_TILE / 32,
    SLOTS = 8, /* that a thread has read ahead: all of them where 2048 are selected */
};
static_assert(TABLE >= 4 * PAGES_MAX, "few pages share a place");
static_assert(BLOCK_WORDS * sizeof(uint32_t) == sizeof(uint4), "an access a key block");

struct page_map {
    int32_t page[TABLE], index[TABLE]; /* page -1: free */
};

static __device__ __forceinline__ uint32_t place_of(int32_t page)
{
    return (uint32_t)page * 2654435761u >> (32 - TABLE_BITS);
}

static __device__ __forceinline__ void map_add(struct page_map *m, int32_t page, int32_t index)
{
    uint32_t at = place_of(page);
    while (atomicCAS(&m->page[at], -1, page) != -1) at = (at + 1) % TABLE;
    m->index[at] = index;
}

static __device__ __forceinline__ int32_t map_find(const struct page_map *m, int32_t page)
{
    uint32_t at = place_of(page);
    while (m->page[at] != page) {
        DCHECK(m->page[at] != -1);
        at = (at + 1) % TABLE;
    }
    return m->index[at];
}

/* Slots i to i + SLOTS - 1 of a token that has n; -1 behind the last. */
static __device__ __forceinline__ void read_slots(const int32_t *slots, int i, int n,
                                                  int (&v)[SLOTS])
{
#pragma unroll
    for (int k = 0; k < SLOTS; k++) v[k] = i + k < n ? slots[i + k] : -1;
}

/* Sets their bits. */
static __device__ __forceinline__ void add_slots(const int (&v)[SLOTS], const struct page_map *m,
                                                 uint32_t *words)
{
    int page = -1, base = 0, word = 0;
    uint32_t bits = 0;
#pragma unroll
    for (int k = 0; k < SLOTS; k++) {
        if (v[k] < 0) break;
        if (v[k] / KV_PAGE_TOKENS != page) {
            page = v[k] / KV_PAGE_TOKENS;
            base = map_find(m, page) * KV_PAGE_TOKENS;
        }
        const int at = base + v[k] % KV_PAGE_TOKENS;
        if (at / 32 != word) {
            if (bits) atomicOr(&words[word], bits);
            word = at / 32;
            bits = 0;
        }
        bits |= 1u << at % 32;
    }
    if (bits) atomicOr(&words[word], bits);
}

__global__ void __launch_bounds__(THREADS)
    prompt_mask_kernel(const struct prompt_args a, const struct prompt_pass p)
{
    __shared__ struct page_map map;
    __shared__ uint32_t words[WORDS_MAX];
    const uint32_t token = a.first_token + blockIdx.x;
    const int thread = (int)threadIdx.x, n_word = (int)(p.mask_stride * BLOCK_WORDS);
    kernel_begin();
    const int n_visible = a.pos[token] + 1, n = a.counts[token];
    if (n_visible > a.end) return;
    const bool is_all = n == n_visible;
    DCHECK(n >= 1 && n <= n_visible && n_visible <= n_word * 32);
    for (int i = thread; i < n_word; i += THREADS) {
        const int left = is_all ? min(max(n_visible - i * 32, 0), 32) : 0;
        words[i] = left == 32 ? ~0u : (1u << left) - 1;
    }
    if (!is_all) {
        const int32_t *slots = a.slots + (size_t)token * a.topk;
        const int32_t *pages = a.page_table + (size_t)a.request[token] * a.page_stride;
        const int n_page = (n_visible + KV_PAGE_TOKENS - 1) / KV_PAGE_TOKENS;
        int v[SLOTS], i = thread * SLOTS;
        DCHECK(n_page <= PAGES_MAX);
        read_slots(slots, i, n, v);
        for (int k = thread; k < TABLE; k += THREADS) map.page[k] = -1;
        __syncthreads();
        for (int k = thread; k < n_page; k += THREADS) map_add(&map, pages[k], k);
        __syncthreads();
        for (; i < n; i += THREADS * SLOTS) {
            add_slots(v, &map, words);
            read_slots(slots, i + THREADS * SLOTS, n, v);
        }
    }
    __syncthreads();
    uint32_t *to = (uint32_t *)(p.mask + (size_t)token * p.mask_stride);
    for (int i = thread; i < n_word; i += THREADS) to[i] = words[i];
}

fathom_err prompt_mask(struct cuda_backend *c, const struct prompt_args &a,
                       const struct prompt_pass &p)
{
    ASSERT(a.slots && a.counts && a.request && a.n_token > a.first_token);
    ASSERT(p.mask_stride * BLOCK_WORDS <= WORDS_MAX);
    return cuda_launch(c, "mla_attend", prompt_mask_kernel, dim3(a.n_token - a.first_token),
                       THREADS, 0, a, p);
}
