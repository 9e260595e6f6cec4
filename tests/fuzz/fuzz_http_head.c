/* fuzz_http_head.c - any bytes as the head of a request and the chunks behind it
 *
 * What is found does not depend on how the bytes come. A head that is taken has one Host, one way
 * to tell its body's length, and no control character; a body in chunks never has more than came.
 */
#include <stdint.h>
#include <string.h>
#include <strings.h>

#include "base/assert.h"
#include "base/buf.h"
#include "base/limits.h"
#include "base/mem.h"
#include "http/chunk.h"
#include "http/head.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static size_t scan(const char *bytes, size_t size, size_t step, struct head_fault *fault)
{
    size_t at = 0, n = 0;
    for (size_t have = 0; have < size && !n && !fault->status;) {
        have = have + step < size ? have + step : size;
        n = head_scan(bytes, have, &at, fault);
        ASSERT(at <= have && n <= have && (!n || !fault->status));
    }
    return n;
}

static void check_text(const char *s)
{
    for (; *s; s++) ASSERT((unsigned char)*s >= 0x20 || *s == '\t');
}

static void check_head(const struct head *h)
{
    char value[16];
    unsigned n_host = 0, n_length = 0, n_coding = 0;
    ASSERT(h->n_field <= HEAD_FIELDS_MAX && strlen(h->method) <= HEAD_METHOD_MAX);
    ASSERT(h->path[0] == '/' || strcmp(h->path, "*") == 0);
    ASSERT(h->host || h->is_1_0);
    for (size_t i = 0; i < h->n_field; i++) {
        const char *name = h->fields[i].name;
        check_text(name);
        check_text(h->fields[i].value);
        n_host += strcasecmp(name, "host") == 0;
        n_length += strcasecmp(name, "content-length") == 0;
        n_coding += strcasecmp(name, "transfer-encoding") == 0;
    }
    ASSERT(n_host <= 1 && n_length <= 1 && !(n_length && n_coding));
    ASSERT(h->chunked == (n_coding > 0) && (!h->chunked || h->length == 0));
    ASSERT(!h->length || n_length);
    check_text(h->query);
    (void)head_query(h, "a", value, sizeof value);
}

static void read_chunks(const char *bytes, size_t size, size_t step, struct chunk_reader *r,
                        struct buf *body)
{
    *r = (struct chunk_reader){0};
    for (size_t at = 0; at < size && !r->problem && r->state != CHUNK_END;) {
        const char *data;
        size_t n_data;
        size_t used =
            chunk_read(r, bytes + at, size - at < step ? size - at : step, &data, &n_data);
        ASSERT(used > 0 && used <= size - at && n_data <= used);
        (void)buf_add(body, data, n_data);
        at += used;
    }
}

static void check_chunks(const char *bytes, size_t size)
{
    struct chunk_reader a, b;
    struct buf whole = {0}, cut = {0};
    if (size == 0) return;
    read_chunks(bytes, size, size, &a, &whole);
    read_chunks(bytes, size, 1 + (uint8_t)bytes[0] % 5, &b, &cut);
    ASSERT(a.state == b.state && !a.problem == !b.problem);
    ASSERT(whole.len == cut.len && memcmp(buf_str(&whole), buf_str(&cut), whole.len) == 0);
    ASSERT(a.n_skipped <= LIMIT_HTTP_CHUNK_EXTRA_BYTES + 1);
    buf_free(&whole);
    buf_free(&cut);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct head_fault fault = {0}, again = {0};
    struct head h;
    char *bytes = mem_alloc(size);
    if (!bytes) return 0;
    if (size) memcpy(bytes, data, size);
    size_t n = scan(bytes, size, size, &fault);
    ASSERT(scan(bytes, size, 1 + size % 7, &again) == n && fault.status == again.status);
    check_chunks(bytes + n, size - n);
    if (n && head_parse(&h, bytes, n, &fault)) {
        check_head(&h);
    } else if (n) {
        ASSERT(fault.status >= 400 && fault.text);
    }
    mem_free(bytes);
    return 0;
}
