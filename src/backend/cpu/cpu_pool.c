/* cpu_pool.c - the parallel loops of the operators
 *
 * Every loop of an operator goes through these two. An item's result depends on its inputs alone,
 * so how the items are handed out changes no bit.
 */
#include "backend/cpu/cpu_int.h"

#include "base/assert.h"

enum {
    CHUNKS_PER_THREAD = 8, /* of a loop over rows */
    SERIAL_VALUES = 8192,  /* a loop over fewer values is done before a worker has woken */
};

struct rows {
    thread_task *task;
    void *arg;
    size_t n;
    size_t n_chunk; /* rows of an item */
};

static void run_rows(void *arg, size_t item, size_t n_item, unsigned worker)
{
    const struct rows *rows = arg;
    DCHECK(item * rows->n_chunk < rows->n);
    size_t end = (item + 1) * rows->n_chunk;
    (void)n_item;
    if (end > rows->n) end = rows->n;
    for (size_t i = item * rows->n_chunk; i < end; i++) rows->task(rows->arg, i, rows->n, worker);
}

void cpu_rows(struct cpu_backend *cpu, size_t n, size_t width, thread_task *task, void *arg)
{
    ASSERT(task && cpu->pool);
    struct rows rows = {.task = task, .arg = arg, .n = n};
    size_t n_item = n * width < SERIAL_VALUES ? 1 : (size_t)cpu->n_thread * CHUNKS_PER_THREAD;
    if (n == 0) return;
    rows.n_chunk = (n + n_item - 1) / n_item;
    thread_pool_compute(cpu->pool, (n + rows.n_chunk - 1) / rows.n_chunk, run_rows, &rows);
}

void cpu_items(struct cpu_backend *cpu, size_t n, thread_task *task, void *arg)
{
    ASSERT(task && cpu->pool);
    thread_pool_compute(cpu->pool, n, task, arg);
}
