/* test_page_hello.c - greetings of servers that are unlike this one, each told in one line */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/fail.h"
#include "comm/page_hello.h"

enum { PAGE = 512 };

/* A link whose other side has said all it will, and what was said to it. */
struct tape {
    struct page_link base; /* first member */
    unsigned char in[2 * FRAME_BYTES + HELLO_BYTES + 2 * MAC_BYTES];
    size_t n_in, at;
    unsigned char out[4096];
    size_t n_out;
    bool is_far;
};

static fathom_err tape_send(struct page_link *l, const struct link_part *parts, size_t n,
                            uint64_t deadline_us, fathom_diag *d)
{
    struct tape *t = (struct tape *)l;
    (void)deadline_us;
    (void)d;
    for (size_t i = 0; i < n; i++) {
        assert_true(parts[i].n <= sizeof t->out - t->n_out);
        if (parts[i].n) memcpy(t->out + t->n_out, parts[i].bytes, parts[i].n);
        t->n_out += parts[i].n;
    }
    return FATHOM_OK;
}

static fathom_err tape_receive(struct page_link *l, void *to, size_t n, uint64_t deadline_us,
                               fathom_diag *d)
{
    struct tape *t = (struct tape *)l;
    (void)deadline_us;
    if (n > t->n_in - t->at) FAIL(d, FATHOM_EIO, "the end");
    memcpy(to, t->in + t->at, n);
    t->at += n;
    return FATHOM_OK;
}

static bool tape_is_near(const struct page_link *l)
{
    return !((const struct tape *)l)->is_far;
}

static const struct page_link_ops tape_ops = {
    .send = tape_send, .receive = tape_receive, .is_near = tape_is_near};

static void say(struct tape *t, enum frame_type type, const void *body, uint32_t n)
{
    const struct frame f = {.type = type, .n_body = n};
    frame_write(t->in + t->n_in, &f);
    memcpy(t->in + t->n_in + FRAME_BYTES, body, n);
    t->n_in += FRAME_BYTES + n;
}

/* One that is like `self_of`, as it says it. */
static struct page_hello like(void)
{
    return (struct page_hello){.version = FRAME_VERSION,
                               .layout = KV_LAYOUT_VERSION,
                               .page_tokens = KV_PAGE_TOKENS,
                               .page_bytes = PAGE,
                               .id = "other"};
}

static const struct page_self self_of = {.page_bytes = PAGE, .id = "this"};

static fathom_err dial(struct tape *t, const struct page_hello *h, fathom_diag *d)
{
    unsigned char welcome[HELLO_BYTES + MAC_BYTES] = {0};
    struct page_hello peer;
    struct page_link *l = &t->base;
    t->base.ops = &tape_ops;
    hello_write(welcome, h);
    say(t, FRAME_WELCOME, welcome, sizeof welcome);
    return page_greet(&l, &self_of, &peer, 0, d);
}

static fathom_err be_dialled(struct tape *t, const struct page_hello *h, fathom_diag *d)
{
    unsigned char hello[HELLO_BYTES], magic[FRAME_MAGIC_BYTES];
    struct page_hello peer;
    struct page_link *l = &t->base;
    t->base.ops = &tape_ops;
    hello_write(hello, h);
    say(t, FRAME_HELLO, hello, sizeof hello);
    assert_int_equal(tape_receive(l, magic, sizeof magic, 0, NULL), FATHOM_OK);
    return page_answer_greeting(&l, magic, &self_of, &peer, 0, d);
}

/* A name for what differs, and a change of what the other one says. */
static const struct {
    const char *cause;
    uint32_t version, layout, page_tokens; /* added */
    uint64_t page_bytes;
    bool has_secret, is_far, model, numerics;
} rows[] = {
    {.cause = "version: ", .version = 1},
    {.cause = "version: ", .version = UINT32_MAX},                         /* one behind */
    {.cause = "version: ", .version = 7, .layout = 1, .has_secret = true}, /* told before others */
    {.cause = "layout: ", .layout = 1},
    {.cause = "layout: ", .page_tokens = 64},
    {.cause = "layout: ", .page_bytes = 1},
    {.cause = "secret: ", .has_secret = true},
    {.cause = "secret: ", .is_far = true},
    {.cause = "model: ", .model = true},
    {.cause = "numerics: ", .numerics = true},
};

static void whoever_is_unlike_is_refused_on_both_sides(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct page_hello h = like();
        h.version += rows[i].version;
        h.layout += rows[i].layout;
        h.page_tokens += rows[i].page_tokens;
        h.page_bytes += rows[i].page_bytes;
        h.has_secret = rows[i].has_secret;
        if (rows[i].model) memset(&h.identity, 9, sizeof h.identity);
        if (rows[i].numerics) memset(&h.identity.numerics, 9, sizeof h.identity.numerics);
        for (int dials = 0; dials < 2; dials++) {
            struct tape t = {.is_far = rows[i].is_far};
            fathom_diag d = {{0}};
            fathom_err err = dials ? dial(&t, &h, &d) : be_dialled(&t, &h, &d);
            assert_int_equal(err, FATHOM_EMISMATCH);
            if (strncmp(d.text, rows[i].cause, strlen(rows[i].cause)) != 0) {
                fail_msg("%s, expected %s", d.text, rows[i].cause);
            }
            assert_null(strchr(d.text, '\n'));
            if (dials) continue;
            struct frame f; /* and the other side is told the same line */
            assert_int_equal(frame_read(&f, t.out, 0, NULL), FATHOM_OK);
            assert_int_equal(f.type, FRAME_REFUSE);
            assert_int_equal(f.n_body, strlen(d.text));
            assert_memory_equal(t.out + FRAME_BYTES, d.text, f.n_body);
        }
    }
}

/* The same without a difference fails only for the proof, which nobody gives here. */
static void one_that_is_alike_is_asked_for_its_proof(void **state)
{
    (void)state;
    const struct page_hello h = like();
    struct tape t = {0};
    fathom_diag d = {{0}};
    assert_int_equal(be_dialled(&t, &h, &d), FATHOM_EIO);
    struct frame f;
    assert_int_equal(frame_read(&f, t.out, 0, NULL), FATHOM_OK);
    assert_int_equal(f.type, FRAME_WELCOME);
    struct tape other = {0};
    fathom_diag why = {{0}};
    assert_int_equal(dial(&other, &h, &why), FATHOM_EMISMATCH);
    assert_ptr_equal(strstr(why.text, "secret: "), why.text); /* its MAC is zeros */
}

static void a_proof_of_another_secret_is_refused(void **state)
{
    (void)state;
    const struct page_hello h = like();
    const unsigned char proof[MAC_BYTES] = {1};
    struct tape t = {0};
    fathom_diag d = {{0}};
    unsigned char hello[HELLO_BYTES], magic[FRAME_MAGIC_BYTES];
    struct page_hello peer;
    struct page_link *l = &t.base;
    t.base.ops = &tape_ops;
    hello_write(hello, &h);
    say(&t, FRAME_HELLO, hello, sizeof hello);
    say(&t, FRAME_PROOF, proof, sizeof proof);
    assert_int_equal(tape_receive(l, magic, sizeof magic, 0, NULL), FATHOM_OK);
    assert_int_equal(page_answer_greeting(&l, magic, &self_of, &peer, 0, &d), FATHOM_EMISMATCH);
    assert_ptr_equal(strstr(d.text, "secret: "), d.text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(whoever_is_unlike_is_refused_on_both_sides),
        cmocka_unit_test(one_that_is_alike_is_asked_for_its_proof),
        cmocka_unit_test(a_proof_of_another_secret_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
