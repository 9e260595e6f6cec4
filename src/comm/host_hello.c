/* host_hello.c - HELLO, WELCOME, PROOF, READY, or REFUSE with the reason */
#include "comm/host_hello.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/fail.h"
#include "base/rng.h"

fathom_err host_send_frame(struct page_link *l, enum host_frame_type type, uint64_t generation,
                           const struct link_part *body, size_t n_part, uint64_t deadline_us,
                           fathom_diag *d)
{
    unsigned char head[HOST_FRAME_BYTES];
    struct link_part parts[LINK_PARTS_MAX] = {{head, sizeof head}};
    struct host_frame f = {.type = type, .generation = generation};
    ASSERT(n_part < LINK_PARTS_MAX);
    for (size_t i = 0; i < n_part; i++) {
        parts[1 + i] = body[i];
        f.n_body += (uint32_t)body[i].n;
    }
    host_frame_write(head, &f);
    return l->ops->send(l, parts, 1 + n_part, deadline_us, d);
}

fathom_err host_receive_frame(struct page_link *l, struct host_frame *out, uint32_t work_max,
                              uint64_t deadline_us, fathom_diag *d)
{
    unsigned char head[HOST_FRAME_BYTES];
    TRY(l->ops->receive(l, head, sizeof head, deadline_us, d));
    return host_frame_read(out, head, work_max, d);
}

fathom_err host_receive_text(struct page_link *l, const struct host_frame *f,
                             char out[HOST_TEXT_MAX + 1], uint64_t deadline_us, fathom_diag *d)
{
    ASSERT(f->n_body <= HOST_TEXT_MAX);
    TRY(l->ops->receive(l, out, f->n_body, deadline_us, d));
    out[f->n_body] = '\0';
    for (uint32_t i = 0; i < f->n_body; i++) {
        if (out[i] < ' ' || out[i] > '~') out[i] = '?';
    }
    return FATHOM_OK;
}

/* A frame of one type; the text of a REFUSE becomes the message. */
static fathom_err expect(struct page_link *l, enum host_frame_type type, void *body, size_t n_body,
                         uint64_t deadline_us, fathom_diag *d)
{
    struct host_frame f;
    char text[HOST_TEXT_MAX + 1];
    TRY(host_receive_frame(l, &f, 0, deadline_us, d));
    if (f.type == HOST_REFUSE) {
        TRY(host_receive_text(l, &f, text, deadline_us, d));
        FAIL(d, f.generation == 1 ? FATHOM_EBUSY : FATHOM_EMISMATCH, "%s", text);
    }
    if (f.type != type || f.n_body != n_body) {
        FAIL(d, FATHOM_EFORMAT, "a frame of type %d came, needed is one of type %d", (int)f.type,
             (int)type);
    }
    return l->ops->receive(l, body, n_body, deadline_us, d);
}

static void describe(struct host_hello *out, const struct host_self *self, uint64_t session,
                     enum host_lane lane)
{
    *out = (struct host_hello){.version = HOST_VERSION,
                               .node_rank = self->node_rank,
                               .n_node = self->n_node,
                               .lane = lane,
                               .has_token = self->token.is_set,
                               .n_page = self->n_page,
                               .session = session,
                               .identity = self->identity};
    const uint64_t nonce[2] = {rng_entropy(), rng_entropy()};
    static_assert(sizeof nonce == HOST_NONCE_BYTES, "two words");
    memcpy(out->nonce, nonce, sizeof nonce);
    (void)snprintf(out->build, sizeof out->build, "%s", self->build[0] ? self->build : "-");
}

/* Whether a, which dialled, may join b, host 0. */
static fathom_err compare(const struct host_hello *a, const struct host_hello *b, bool near,
                          fathom_diag *d)
{
    const unsigned r = a->node_rank;
    if (a->version != b->version) {
        FAIL(d, FATHOM_EMISMATCH, "build: host %u speaks version %u of the hosts' link, host 0 %u",
             r, a->version, b->version);
    }
    if (a->has_token != b->has_token) {
        FAIL(d, FATHOM_EMISMATCH,
             "token: host %u has %s and host 0 has %s: give all hosts the same "
             "FATHOM_CLUSTER_TOKEN",
             r, a->has_token ? "one" : "none", b->has_token ? "one" : "none");
    }
    if (!a->has_token && !near) {
        FAIL(d, FATHOM_EMISMATCH,
             "token: hosts of two machines join with a FATHOM_CLUSTER_TOKEN only");
    }
    if (b->node_rank != 0 || r == 0) {
        FAIL(d, FATHOM_EMISMATCH,
             "--node-rank: host %u has dialled host %u: host 0 is dialled by the others", r,
             b->node_rank);
    }
    if (a->n_node != b->n_node) {
        FAIL(d, FATHOM_EMISMATCH, "--nnodes: host %u was given %u, host 0 %u", r, a->n_node,
             b->n_node);
    }
    if (strcmp(a->build, b->build) != 0) {
        FAIL(d, FATHOM_EMISMATCH, "build: host %u runs %s, host 0 %s", r, a->build, b->build);
    }
    switch (identity_compare(&a->identity, &b->identity)) {
    case IDENTITY_EQUAL: return FATHOM_OK;
    case IDENTITY_MODEL:
        FAIL(d, FATHOM_EMISMATCH,
             "model: host %u and host 0 have other weights or another config.json", r);
    case IDENTITY_NUMERICS:
        FAIL(d, FATHOM_EMISMATCH,
             "numerics: host %u and host 0 compute other bits (backend, processor, precision)", r);
    case IDENTITY_LAYOUT: break;
    }
    FAIL(d, FATHOM_EMISMATCH,
         "layout: host %u and host 0 cut the model or limit steps in other ways: give all hosts "
         "the same options, and where their memory differs --max-num-seqs",
         r);
}

/* Over all that both have said; who proves it begins the text. */
static void write_mac(unsigned char out[HOST_MAC_BYTES], const struct pool_secret *s, char who,
                      const unsigned char hello[HOST_HELLO_BYTES],
                      const unsigned char welcome[HOST_HELLO_BYTES])
{
    unsigned char text[1 + 2 * HOST_HELLO_BYTES];
    struct hash128 key = {0};
    if (s->is_set) key = s->key;
    text[0] = (unsigned char)who;
    memcpy(text + 1, hello, HOST_HELLO_BYTES);
    memcpy(text + 1 + HOST_HELLO_BYTES, welcome, HOST_HELLO_BYTES);
    const struct hash128 mac = hash_keyed(&key, text, sizeof text);
    static_assert(sizeof mac == HOST_MAC_BYTES, "all of it");
    memcpy(out, &mac, HOST_MAC_BYTES);
}

/* Looks at every byte, so that the time tells nothing of where two differ. */
static bool is_same(const unsigned char *a, const unsigned char *b)
{
    unsigned char differs = 0;
    for (size_t i = 0; i < HOST_MAC_BYTES; i++) differs |= (unsigned char)(a[i] ^ b[i]);
    return differs == 0;
}

fathom_err host_greet(struct page_link *l, const struct host_self *self, uint64_t session,
                      enum host_lane lane, struct inner_port *inner, uint64_t deadline_us,
                      fathom_diag *d)
{
    struct host_hello mine, peer;
    unsigned char hello[HOST_HELLO_BYTES], welcome[HOST_HELLO_BYTES + HOST_MAC_BYTES];
    unsigned char mac[HOST_MAC_BYTES], ready[HOST_READY_BYTES];
    describe(&mine, self, session, lane);
    host_hello_write(hello, &mine);
    const struct link_part said = {hello, sizeof hello};
    TRY(host_send_frame(l, HOST_HELLO, 0, &said, 1, deadline_us, d));
    TRY(expect(l, HOST_WELCOME, welcome, sizeof welcome, deadline_us, d));
    TRY(host_hello_read(&peer, welcome, d));
    TRY(compare(&mine, &peer, l->ops->is_near(l), d));
    write_mac(mac, &self->token, 'A', hello, welcome);
    if (!is_same(mac, welcome + HOST_HELLO_BYTES)) {
        FAIL(d, FATHOM_EMISMATCH, "token: host 0 has another one than host %u", self->node_rank);
    }
    write_mac(mac, &self->token, 'D', hello, welcome);
    const struct link_part proof = {mac, sizeof mac};
    TRY(host_send_frame(l, HOST_PROOF, 0, &proof, 1, deadline_us, d));
    TRY(expect(l, HOST_READY, ready, sizeof ready, deadline_us, d));
    inner_port_read(inner, ready);
    return FATHOM_OK;
}

/* WELCOME, and the proof of the other side. */
static fathom_err prove(struct page_link *l, const struct host_self *self,
                        const struct host_hello *peer, const unsigned char *hello,
                        uint64_t deadline_us, fathom_diag *why)
{
    struct host_hello mine;
    unsigned char welcome[HOST_HELLO_BYTES + HOST_MAC_BYTES];
    unsigned char proof[HOST_MAC_BYTES], mac[HOST_MAC_BYTES];
    describe(&mine, self, peer->session, peer->lane);
    TRY(compare(peer, &mine, l->ops->is_near(l), why));
    host_hello_write(welcome, &mine);
    write_mac(welcome + HOST_HELLO_BYTES, &self->token, 'A', hello, welcome);
    const struct link_part said = {welcome, sizeof welcome};
    TRY(host_send_frame(l, HOST_WELCOME, 0, &said, 1, deadline_us, why));
    TRY(expect(l, HOST_PROOF, proof, sizeof proof, deadline_us, why));
    write_mac(mac, &self->token, 'D', hello, welcome);
    if (is_same(mac, proof)) return FATHOM_OK;
    FAIL(why, FATHOM_EMISMATCH, "token: host %u has another one than host 0", peer->node_rank);
}

fathom_err host_answer_greeting(struct page_link *l, const struct host_self *self,
                                struct host_hello *peer, host_admit *admit, void *arg,
                                uint64_t deadline_us, fathom_diag *d)
{
    unsigned char hello[HOST_HELLO_BYTES], ready[HOST_READY_BYTES];
    fathom_diag why = {{0}};
    TRY(expect(l, HOST_HELLO, hello, sizeof hello, deadline_us, d));
    TRY(host_hello_read(peer, hello, d));
    fathom_err err = prove(l, self, peer, hello, deadline_us, &why);
    if (!err && admit) err = admit(arg, peer, &why);
    if (!err) {
        inner_port_write(ready, &self->inner);
        const struct link_part body = {ready, sizeof ready};
        return host_send_frame(l, HOST_READY, 0, &body, 1, deadline_us, d);
    }
    if (err == FATHOM_EMISMATCH || err == FATHOM_EBUSY) {
        const size_t n = strnlen(why.text, HOST_TEXT_MAX);
        const struct link_part text = {why.text, n};
        (void)host_send_frame(l, HOST_REFUSE, err == FATHOM_EBUSY, &text, 1, deadline_us, NULL);
    }
    FAIL(d, err, "%s", why.text);
}
