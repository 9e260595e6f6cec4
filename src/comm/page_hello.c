/* page_hello.c - HELLO, WELCOME, PROOF, READY, or REFUSE with the reason */
#include "comm/page_hello.h"

#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/fail.h"
#include "base/rng.h"

struct hash128 page_key_secret(const struct pool_secret *s)
{
    static const char purpose[] = "keys of page records";
    struct hash128 key = {0};
    if (s->is_set) key = s->key;
    return hash_keyed(&key, purpose, sizeof purpose);
}

fathom_err link_send_frame(struct page_link *l, enum frame_type type, uint64_t stream,
                           const struct link_part *body, size_t n_part, uint64_t deadline_us,
                           fathom_diag *d)
{
    unsigned char head[FRAME_BYTES];
    struct link_part parts[LINK_PARTS_MAX] = {{head, sizeof head}};
    struct frame f = {.type = type, .stream = stream};
    ASSERT(n_part < LINK_PARTS_MAX);
    for (size_t i = 0; i < n_part; i++) {
        parts[1 + i] = body[i];
        f.n_body += (uint32_t)body[i].n;
    }
    frame_write(head, &f);
    return l->ops->send(l, parts, 1 + n_part, deadline_us, d);
}

fathom_err link_receive_frame(struct page_link *l, struct frame *out, uint64_t page_bytes,
                              uint64_t deadline_us, fathom_diag *d)
{
    unsigned char head[FRAME_BYTES];
    TRY(l->ops->receive(l, head, sizeof head, deadline_us, d));
    return frame_read(out, head, page_bytes, d);
}

/* The frame has to be of one type; the text of a REFUSE becomes the message. */
static fathom_err take_body(struct page_link *l, const struct frame *f, enum frame_type type,
                            void *body, size_t n_body, uint64_t deadline_us, fathom_diag *d)
{
    if (f->type == FRAME_REFUSE) {
        char text[FRAME_TEXT_MAX + 1];
        TRY(l->ops->receive(l, text, f->n_body, deadline_us, d));
        text[f->n_body] = '\0';
        for (char *p = text; *p; p++) {
            if (*p < ' ' || *p > '~') *p = '?';
        }
        FAIL(d, FATHOM_EMISMATCH, "%s", text);
    }
    if (f->type != type || f->n_body != n_body) {
        FAIL(d, FATHOM_EFORMAT, "a frame of type %d came, needed is one of type %d", (int)f->type,
             (int)type);
    }
    return n_body ? l->ops->receive(l, body, n_body, deadline_us, d) : FATHOM_OK;
}

static fathom_err expect(struct page_link *l, enum frame_type type, void *body, size_t n_body,
                         uint64_t deadline_us, fathom_diag *d)
{
    struct frame f;
    TRY(link_receive_frame(l, &f, 0, deadline_us, d));
    return take_body(l, &f, type, body, n_body, deadline_us, d);
}

static fathom_err refuse(struct page_link *l, uint64_t deadline_us, const fathom_diag *why)
{
    size_t n = strlen(why->text);
    const struct link_part text = {why->text, n < FRAME_TEXT_MAX ? n : FRAME_TEXT_MAX};
    return link_send_frame(l, FRAME_REFUSE, 0, &text, 1, deadline_us, NULL);
}

static void describe(struct page_hello *out, const struct page_self *self)
{
    *out = (struct page_hello){.version = FRAME_VERSION,
                               .layout = KV_LAYOUT_VERSION,
                               .page_tokens = KV_PAGE_TOKENS,
                               .has_secret = self->secret.is_set,
                               .any_numerics = self->any_numerics,
                               .has_ucx = self->ucx != NULL,
                               .page_bytes = self->page_bytes,
                               .identity = self->identity};
    const uint64_t nonce[2] = {rng_entropy(), rng_entropy()};
    static_assert(sizeof nonce == FRAME_NONCE_BYTES, "two words");
    memcpy(out->nonce, nonce, sizeof nonce);
    (void)snprintf(out->id, sizeof out->id, "%s", self->id[0] ? self->id : "-");
}

/* The records of two with these identities have one meaning, by what each of them takes. */
static fathom_err compare(const struct page_hello *a, const struct page_hello *b, bool near,
                          fathom_diag *d)
{
    if (a->version != b->version) {
        FAIL(d, FATHOM_EMISMATCH, "version: %s speaks version %u of the page link, %s version %u",
             a->id, a->version, b->id, b->version);
    }
    if (a->has_secret != b->has_secret) {
        FAIL(d, FATHOM_EMISMATCH,
             "secret: %s has one and %s has none: give both the same "
             "--pool-secret-file",
             a->has_secret ? a->id : b->id, a->has_secret ? b->id : a->id);
    }
    if (!a->has_secret && !near) {
        FAIL(d, FATHOM_EMISMATCH,
             "secret: servers of two machines share pages only with a "
             "--pool-secret-file");
    }
    enum identity_part part = identity_compare(&a->identity, &b->identity);
    bool lax = a->any_numerics && b->any_numerics;
    struct identity same = b->identity;
    if (part == IDENTITY_NUMERICS && lax) {
        same.numerics = a->identity.numerics;
        part = identity_compare(&a->identity, &same);
    }
    if (a->layout != b->layout || a->page_tokens != b->page_tokens ||
        (part == IDENTITY_EQUAL && a->page_bytes != b->page_bytes)) {
        part = IDENTITY_LAYOUT;
    }
    switch (part) {
    case IDENTITY_EQUAL: return FATHOM_OK;
    case IDENTITY_MODEL:
        FAIL(d, FATHOM_EMISMATCH, "model: %s and %s have other weights or another config.json",
             a->id, b->id);
    case IDENTITY_NUMERICS:
        FAIL(d, FATHOM_EMISMATCH,
             "numerics: %s and %s compute other bits (version, backend, precision, ranks); "
             "\"numerics\": \"compatible\" in kv_connector_extra_config of both allows it",
             a->id, b->id);
    case IDENTITY_LAYOUT: break;
    }
    FAIL(d, FATHOM_EMISMATCH, "layout: %s and %s have other cache types, layers or ranks", a->id,
         b->id);
}

/* Over all that both have said; who proves it begins the text. */
static void write_mac(unsigned char out[MAC_BYTES], const struct pool_secret *s, char who,
                      const unsigned char hello[HELLO_BYTES],
                      const unsigned char welcome[HELLO_BYTES])
{
    unsigned char text[1 + 2 * HELLO_BYTES];
    struct hash128 key = {0};
    if (s->is_set) key = s->key;
    text[0] = (unsigned char)who;
    memcpy(text + 1, hello, HELLO_BYTES);
    memcpy(text + 1 + HELLO_BYTES, welcome, HELLO_BYTES);
    struct hash128 mac = hash_keyed(&key, text, sizeof text);
    static_assert(sizeof mac == MAC_BYTES, "all of it");
    memcpy(out, &mac, MAC_BYTES);
}

/* Looks at every byte, so that the time tells nothing of where two differ. */
static bool is_same(const unsigned char *a, const unsigned char *b)
{
    unsigned char differs = 0;
    for (size_t i = 0; i < MAC_BYTES; i++) differs |= (unsigned char)(a[i] ^ b[i]);
    return differs == 0;
}

static fathom_err greet(struct page_link *l, const struct page_self *self, struct page_hello *peer,
                        uint64_t deadline_us, fathom_diag *d)
{
    struct page_hello mine;
    unsigned char hello[HELLO_BYTES], welcome[HELLO_BYTES + MAC_BYTES], mac[MAC_BYTES];
    describe(&mine, self);
    hello_write(hello, &mine);
    const struct link_part said = {hello, sizeof hello};
    TRY(link_send_frame(l, FRAME_HELLO, 0, &said, 1, deadline_us, d));
    TRY(expect(l, FRAME_WELCOME, welcome, sizeof welcome, deadline_us, d));
    TRY(hello_read(peer, welcome, d));
    TRY(compare(&mine, peer, l->ops->is_near(l), d));
    write_mac(mac, &self->secret, 'A', hello, welcome);
    if (!is_same(mac, welcome + HELLO_BYTES)) {
        FAIL(d, FATHOM_EMISMATCH, "secret: %s has another one", peer->id);
    }
    write_mac(mac, &self->secret, 'D', hello, welcome);
    const struct link_part proof = {mac, sizeof mac};
    TRY(link_send_frame(l, FRAME_PROOF, 0, &proof, 1, deadline_us, d));
    return expect(l, FRAME_READY, NULL, 0, deadline_us, d);
}

static fathom_err answer_greeting(struct page_link *l, const unsigned char magic[FRAME_MAGIC_BYTES],
                                  const struct page_self *self, struct page_hello *peer,
                                  uint64_t deadline_us, fathom_diag *d)
{
    struct page_hello mine;
    struct frame first;
    unsigned char head[FRAME_BYTES];
    unsigned char hello[HELLO_BYTES], welcome[HELLO_BYTES + MAC_BYTES];
    unsigned char proof[MAC_BYTES], mac[MAC_BYTES];
    fathom_diag why = {{0}};
    memcpy(head, magic, FRAME_MAGIC_BYTES);
    TRY(l->ops->receive(l, head + FRAME_MAGIC_BYTES, FRAME_BYTES - FRAME_MAGIC_BYTES, deadline_us,
                        d));
    TRY(frame_read(&first, head, 0, d));
    TRY(take_body(l, &first, FRAME_HELLO, hello, sizeof hello, deadline_us, d));
    TRY(hello_read(peer, hello, d));
    describe(&mine, self);
    fathom_err err = compare(peer, &mine, l->ops->is_near(l), &why);
    if (!err) {
        hello_write(welcome, &mine);
        write_mac(welcome + HELLO_BYTES, &self->secret, 'A', hello, welcome);
        const struct link_part said = {welcome, sizeof welcome};
        TRY(link_send_frame(l, FRAME_WELCOME, 0, &said, 1, deadline_us, d));
        TRY(expect(l, FRAME_PROOF, proof, sizeof proof, deadline_us, d));
        write_mac(mac, &self->secret, 'D', hello, welcome);
        if (!is_same(mac, proof)) {
            err = diag_fail(&why, FATHOM_EMISMATCH, "secret: %s has another one", mine.id);
        }
    }
    if (err) {
        (void)refuse(l, deadline_us, &why);
        FAIL(d, err, "%s", why.text);
    }
    return link_send_frame(l, FRAME_READY, 0, NULL, 0, deadline_us, d);
}

fathom_err page_greet(struct page_link **l, const struct page_self *self, struct page_hello *peer,
                      uint64_t deadline_us, fathom_diag *d)
{
    TRY(greet(*l, self, peer, deadline_us, d));
    return self->ucx && peer->has_ucx ? ucx_link_over(l, self->ucx, deadline_us, d) : FATHOM_OK;
}

fathom_err page_answer_greeting(struct page_link **l, const unsigned char magic[FRAME_MAGIC_BYTES],
                                const struct page_self *self, struct page_hello *peer,
                                uint64_t deadline_us, fathom_diag *d)
{
    TRY(answer_greeting(*l, magic, self, peer, deadline_us, d));
    return self->ucx && peer->has_ucx ? ucx_link_over(l, self->ucx, deadline_us, d) : FATHOM_OK;
}
