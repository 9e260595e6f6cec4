/* fuzz_host_frame.c - any bytes as what one host sends another
 *
 * They are read as a frame, as a greeting, and as the line that says where host 0 is. What is taken
 * comes back as the same bytes, of a line as the same address. Then all of it is what the other
 * side of a link says to who greets and to who is greeted.
 */
#include <stdint.h>
#include <string.h>

#include "base/assert.h"
#include "base/fail.h"
#include "base/mem.h"
#include "comm/host_address.h"
#include "comm/host_hello.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { WORK_MAX = 512 };

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
    struct host_self self = {.n_node = 2, .build = "a"};
    struct host_hello peer;
    struct inner_port inner;
    for (int i = 0; i < 4; i++) {
        struct tape t = {{&tape_ops}, data, n};
        self.token.is_set = i & 1;
        self.node_rank = i >> 1;
        if (i & 2) {
            (void)host_greet(&t.base, &self, 1, HOST_LANE_DATA, &inner, 0, NULL);
        } else {
            (void)host_answer_greeting(&t.base, &self, &peer, NULL, NULL, 0, NULL);
        }
    }
}

static void read_frame(const uint8_t *data, size_t n)
{
    unsigned char again[HOST_FRAME_BYTES];
    char text[HOST_TEXT_MAX + 1];
    struct host_frame f;
    if (n < HOST_FRAME_BYTES || host_frame_read(&f, data, WORK_MAX, NULL) != FATHOM_OK) return;
    ASSERT(f.type >= HOST_HELLO && f.type < HOST_FRAME_END && f.n_body <= WORK_MAX);
    host_frame_write(again, &f);
    ASSERT(memcmp(again, data, HOST_FRAME_BYTES) == 0);
    struct tape t = {{&tape_ops}, data + HOST_FRAME_BYTES, n - HOST_FRAME_BYTES};
    if (f.type == HOST_LEAVE && host_receive_text(&t.base, &f, text, 0, NULL) == FATHOM_OK) {
        ASSERT(strlen(text) == f.n_body);
    }
}

static void read_hello(const uint8_t *data, size_t n)
{
    unsigned char again[HOST_HELLO_BYTES];
    struct host_hello h;
    if (n < HOST_HELLO_BYTES || host_hello_read(&h, data, NULL) != FATHOM_OK) return;
    ASSERT(h.node_rank < h.n_node && h.n_node <= HOSTS_MAX && memchr(h.build, 0, sizeof h.build));
    host_hello_write(again, &h);
    ASSERT(memcmp(again, data, HOST_HELLO_BYTES) == 0);
}

static void read_line(const char *text)
{
    struct host_address a = {0}, b = {0};
    char line[HOST_ADDRESS_BYTES];
    if (host_address_read(&a, text, NULL) != FATHOM_OK) return;
    ASSERT(a.host[0] && a.port > 0);
    host_address_write(line, &a, a.token.is_set);
    ASSERT(host_address_read(&b, line, NULL) == FATHOM_OK && b.port == a.port);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint8_t *bytes = mem_alloc(size + 1);
    if (!bytes) return 0;
    memcpy(bytes, data, size);
    read_frame(bytes, size);
    read_hello(bytes, size);
    greet(bytes, size);
    bytes[size] = 0;
    read_line((const char *)bytes);
    mem_free(bytes);
    return 0;
}
