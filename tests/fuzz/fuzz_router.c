/* fuzz_router.c - any bytes as what a router reads: a request's body, a stream, a look's answer,
 * a server's bytes
 *
 * A body's spans lie within it, and a view does not depend on what is behind the body. What leaves
 * of a stream and the tokens noted do not depend on how its bytes come, and what a second server
 * sends again does not leave twice.
 */
#include <stdint.h>
#include <string.h>

#include "base/assert.h"
#include "base/mem.h"
#include "router/look.h"
#include "router/reply.h"
#include "router/request_view.h"
#include "router/stream_follow.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void look_at_body(const char *body, size_t n)
{
    struct request_view v;
    uint64_t keys[64];
    request_view_read(&v, body, n);
    ASSERT(v.is_object || (!v.stream && !v.text && v.n_text == 0));
    if (!v.is_object) return;
    ASSERT(v.inside > 0 && v.inside <= n && body[v.inside - 1] == '{');
    ASSERT(!v.text || (v.text > body && v.text + v.n_text < body + n));
    ASSERT(request_view_keys(&v, keys, 64) <= v.n_text / VIEW_BLOCK_BYTES);
}

static void feed(struct stream_follow *f, const char *text, size_t n, size_t step, struct buf *out)
{
    for (size_t i = 0; i < n; i += step) {
        size_t k = n - i < step ? n - i : step;
        if (follow_feed(f, text + i, k, out) != FATHOM_OK) return;
    }
}

static void follow(const char *text, size_t n)
{
    struct stream_follow one = {0}, many = {0};
    struct buf a = {0}, b = {0};
    feed(&one, text, n, n ? n : 1, &a);
    feed(&many, text, n, 3, &b);
    ASSERT(a.len == b.len && memcmp(buf_str(&a), buf_str(&b), a.len) == 0);
    ASSERT(one.n_token == many.n_token && one.fails == many.fails);
    ASSERT(one.n_seen <= one.n_left || one.n_left == one.n_seen);
    uint32_t n_left = one.n_left;
    follow_break(&one);
    ASSERT(one.n_seen == 0 && one.n_left == n_left && !one.fails);
    follow_free(&one);
    follow_free(&many);
    buf_free(&a);
    buf_free(&b);
}

/* What is taken of an answer, and of its body, does not depend on how its bytes come. */
static size_t read_reply(const char *text, size_t n, size_t step, bool no_body, struct buf *body)
{
    struct reply_reader a = {.has_no_body = no_body};
    size_t at = 0;
    while (at < n && a.state != REPLY_END && !a.problem) {
        const char *data;
        size_t n_data, k = n - at < step ? n - at : step;
        bool head;
        size_t used = reply_read(&a, text + at, k, &head, &data, &n_data);
        ASSERT(used <= k && (used > 0 || a.problem || a.state == REPLY_END));
        ASSERT(!head || (a.status >= 200 && a.status <= 999 && !a.problem));
        ASSERT(n_data == 0 || (data >= text + at && data + n_data <= text + at + used));
        if (buf_add(body, data, n_data) != FATHOM_OK) break;
        at += used;
    }
    bool is_refused = a.problem != NULL;
    reply_free(&a);
    return is_refused ? SIZE_MAX : at;
}

static void reply(const char *text, size_t n)
{
    struct buf a = {0}, b = {0};
    for (int no_body = 0; no_body < 2; no_body++) {
        buf_clear(&a);
        buf_clear(&b);
        size_t one = read_reply(text, n, n ? n : 1, no_body, &a);
        size_t many = read_reply(text, n, 3, no_body, &b);
        ASSERT(one == many);
        ASSERT(one == SIZE_MAX || (a.len == b.len && memcmp(buf_str(&a), buf_str(&b), a.len) == 0));
    }
    buf_free(&a);
    buf_free(&b);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct pool_load load;
    char *text = mem_alloc(size + 1);
    if (!text) return 0;
    memcpy(text, data, size);
    text[size] = '\0';
    look_at_body(text, size);
    follow(text, size);
    reply(text, size);
    (void)look_read(&load, text, size);
    ASSERT(load.token_us >= 0 && load.step_us >= 0);
    mem_free(text);
    return 0;
}
