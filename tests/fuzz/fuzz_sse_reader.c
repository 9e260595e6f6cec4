/* fuzz_sse_reader.c - any bytes as the stream of a server
 *
 * Events do not depend on how the bytes are cut; what an event says is read or refused.
 */
#include <stdint.h>
#include <string.h>

#include "base/assert.h"
#include "bench/completion_json.h"
#include "bench/sse_reader.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Notes the event, and reads it as a chunk. */
static fathom_err take(void *arg, const char *data, size_t n)
{
    struct buf *seen = arg;
    struct buf text = {0};
    struct stream_chunk chunk;
    fathom_diag d = {{0}};
    fathom_err err = stream_chunk_read(&chunk, data, n, &text, &d);
    ASSERT(err == FATHOM_OK || err == FATHOM_EFORMAT);
    ASSERT((err != FATHOM_OK || chunk.is_error) == (d.text[0] != '\0'));
    ASSERT(err || chunk.has_text == (text.len > 0));
    buf_free(&text);
    (void)buf_add(seen, &n, sizeof n);
    return buf_add(seen, data, n);
}

static void read_all(const uint8_t *data, size_t size, size_t step, struct buf *seen)
{
    struct sse_reader r;
    sse_reader_init(&r);
    for (size_t at = 0; at < size; at += step) {
        size_t n = size - at < step ? size - at : step;
        ASSERT(sse_reader_feed(&r, (const char *)data + at, n, take, seen) == FATHOM_OK);
    }
    sse_reader_free(&r);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct buf whole = {0};
    struct buf cut = {0};
    if (size == 0) return 0;
    read_all(data, size, size, &whole);
    read_all(data, size, 1 + data[0] % 7, &cut);
    ASSERT(whole.len == cut.len && memcmp(buf_str(&whole), buf_str(&cut), whole.len) == 0);
    buf_free(&whole);
    buf_free(&cut);
    return 0;
}
