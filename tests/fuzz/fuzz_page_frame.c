/* fuzz_page_frame.c - any bytes as what one server of pages sends another
 *
 * They are read as a frame, a greeting, a question, keys. What is taken comes
 * back as the same bytes. Then all of it is what the
 * other side of a link says to who greets and to who is greeted.
 */
#include <stdint.h>
#include <string.h>

#include "base/assert.h"
#include "base/fail.h"
#include "base/mem.h"
#include "comm/page_hello.h"
#include "comm/page_query.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { PAGE = 512 };

/* A link whose other side has said all it will. */
struct tape {
    struct page_link base; /* first member */
    const uint8_t *data;
    size_t n;
};

static fathom_err tape_send(struct page_link *l, const struct link_part *parts, size_t n,
                            uint64_t deadline_us, fathom_diag *d)
{
    (void)l;
    (void)parts;
    (void)deadline_us;
    (void)d;
    ASSERT(n >= 1 && n <= LINK_PARTS_MAX);
    return FATHOM_OK;
}

static fathom_err tape_receive(struct page_link *l, void *to, size_t n, uint64_t deadline_us,
                               fathom_diag *d)
{
    struct tape *t = (struct tape *)l;
    (void)deadline_us;
    if (n > t->n) FAIL(d, FATHOM_EIO, "the end");
    memcpy(to, t->data, n);
    t->data += n;
    t->n -= n;
    return FATHOM_OK;
}

static bool tape_is_near(const struct page_link *l)
{
    (void)l;
    return true;
}

static const struct page_link_ops tape_ops = {
    .send = tape_send, .receive = tape_receive, .is_near = tape_is_near};

static void greet(const uint8_t *data, size_t n)
{
    struct page_self self = {.page_bytes = PAGE, .id = "a"};
    struct page_hello peer;
    for (int i = 0; i < 4; i++) {
        struct tape t = {{&tape_ops}, data, n};
        struct page_link *l = &t.base;
        self.secret.is_set = i & 1;
        if (i & 2) {
            (void)page_greet(&l, &self, &peer, 0, NULL);
        } else {
            unsigned char begin[FRAME_MAGIC_BYTES];
            if (tape_receive(&t.base, begin, sizeof begin, 0, NULL) != FATHOM_OK) continue;
            if (page_query_is(begin)) {
                (void)page_query_answer(&t.base, self.id, 0, NULL);
            } else {
                (void)page_answer_greeting(&l, begin, &self, &peer, 0, NULL);
            }
        }
    }
}

static void read_frame(const uint8_t *data, size_t n)
{
    unsigned char again[FRAME_BYTES];
    struct frame f;
    if (n < FRAME_BYTES || frame_read(&f, data, PAGE, NULL) != FATHOM_OK) return;
    ASSERT(f.type >= FRAME_HELLO && f.type < FRAME_TYPE_END);
    ASSERT(f.n_body <= FRAME_KEYS_MAX * 16);
    frame_write(again, &f);
    ASSERT(memcmp(again, data, FRAME_BYTES) == 0);
}

static void read_bodies(const uint8_t *data, size_t n)
{
    struct page_hello h;
    struct tier_name w;
    struct hash128 keys[8];
    uint32_t n_key;
    unsigned char again[WANT_BYTES];
    if (n >= HELLO_BYTES && hello_read(&h, data, NULL) == FATHOM_OK) {
        ASSERT(memchr(h.id, '\0', sizeof h.id));
    }
    if (n >= WANT_BYTES && want_read(&w, data, NULL) == FATHOM_OK) {
        ASSERT(w.n_id <= TIER_MAX_ID);
        want_write(again, &w);
        ASSERT(memcmp(again, data, WANT_BYTES) == 0);
    }
    uint32_t n_body = (uint32_t)(n < sizeof keys ? n : sizeof keys);
    if (find_read(keys, &n_key, data, n_body, NULL) == FATHOM_OK) ASSERT(n_key == n_body / 16);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint8_t *bytes = mem_alloc(size + 1);
    if (!bytes) return 0;
    memcpy(bytes, data, size);
    read_frame(bytes, size);
    read_bodies(bytes, size);
    greet(bytes, size);
    mem_free(bytes);
    return 0;
}
