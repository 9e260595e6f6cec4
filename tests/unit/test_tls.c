/* test_tls.c - sessions over a pair of sockets: certificates that are replaced while they go on */
#include <fcntl.h>
#include <gnutls/gnutls.h>
#include <gnutls/x509.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/log.h"
#include "http/tls.h"

enum { PEM_BYTES = 4096 };

/* A certificate that has signed itself, and its key. */
struct identity {
    char certificate[PEM_BYTES], key[PEM_BYTES];
};

static void make_identity(struct identity *out, const char *name)
{
    gnutls_x509_privkey_t key;
    gnutls_x509_crt_t c;
    size_t n_key = PEM_BYTES, n_certificate = PEM_BYTES;
    time_t now = time(NULL);
    assert_int_equal(gnutls_x509_privkey_init(&key), 0);
    assert_int_equal(gnutls_x509_privkey_generate(
                         key, GNUTLS_PK_ECDSA, GNUTLS_CURVE_TO_BITS(GNUTLS_ECC_CURVE_SECP256R1), 0),
                     0);
    assert_int_equal(gnutls_x509_crt_init(&c), 0);
    (void)gnutls_x509_crt_set_version(c, 3);
    (void)gnutls_x509_crt_set_serial(c, "\x01", 1);
    (void)gnutls_x509_crt_set_activation_time(c, now - 60);
    (void)gnutls_x509_crt_set_expiration_time(c, now + 90 * 86400);
    (void)gnutls_x509_crt_set_dn_by_oid(c, GNUTLS_OID_X520_COMMON_NAME, 0, name,
                                        (unsigned)strlen(name));
    assert_int_equal(gnutls_x509_crt_set_key(c, key), 0);
    assert_int_equal(gnutls_x509_crt_sign2(c, c, key, GNUTLS_DIG_SHA256, 0), 0);
    assert_int_equal(
        gnutls_x509_crt_export(c, GNUTLS_X509_FMT_PEM, out->certificate, &n_certificate), 0);
    assert_int_equal(gnutls_x509_privkey_export_pkcs8(key, GNUTLS_X509_FMT_PEM, NULL,
                                                      GNUTLS_PKCS_PLAIN, out->key, &n_key),
                     0);
    gnutls_x509_crt_deinit(c);
    gnutls_x509_privkey_deinit(key);
}

/* A session of ours and its client, on two sockets. */
struct pair {
    int fds[2];
    struct tls_session *server;
    gnutls_session_t client;
    gnutls_certificate_credentials_t credentials;
};

static void open_pair(struct pair *p, struct tls *t)
{
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, p->fds), 0);
    for (int i = 0; i < 2; i++) (void)fcntl(p->fds[i], F_SETFL, O_NONBLOCK);
    assert_int_equal(tls_open(t, p->fds[0], &p->server), FATHOM_OK);
    assert_int_equal(gnutls_init(&p->client, GNUTLS_CLIENT | GNUTLS_NONBLOCK), 0);
    assert_int_equal(gnutls_certificate_allocate_credentials(&p->credentials), 0);
    (void)gnutls_set_default_priority(p->client);
    (void)gnutls_credentials_set(p->client, GNUTLS_CRD_CERTIFICATE, p->credentials);
    gnutls_transport_set_int(p->client, p->fds[1]);
    int server = -1, client = -1;
    for (int i = 0; i < 100 && (server || client); i++) {
        if (client) client = gnutls_handshake(p->client);
        if (server) server = tls_shake_hands(p->server);
        assert_int_not_equal(server, TLS_BROKEN);
    }
    assert_int_equal(server, 0);
    assert_int_equal(client, 0);
    assert_true(tls_client_is_known(p->server));
}

static void close_pair(struct pair *p)
{
    tls_close(p->server);
    gnutls_deinit(p->client);
    gnutls_certificate_free_credentials(p->credentials);
    for (int i = 0; i < 2; i++) (void)close(p->fds[i]);
}

static void assert_name(const struct pair *p, const char *name)
{
    unsigned n;
    char text[128];
    size_t n_text = sizeof text;
    gnutls_x509_crt_t c;
    const gnutls_datum_t *list = gnutls_certificate_get_peers(p->client, &n);
    assert_true(list && n == 1);
    assert_int_equal(gnutls_x509_crt_init(&c), 0);
    assert_int_equal(gnutls_x509_crt_import(c, list, GNUTLS_X509_FMT_DER), 0);
    assert_int_equal(
        gnutls_x509_crt_get_dn_by_oid(c, GNUTLS_OID_X520_COMMON_NAME, 0, 0, text, &n_text), 0);
    assert_string_equal(text, name);
    gnutls_x509_crt_deinit(c);
}

/* Bytes pass both ways. */
static void assert_alive(struct pair *p)
{
    char in[8];
    assert_int_equal(gnutls_record_send(p->client, "ping", 4), 4);
    assert_int_equal(tls_receive(p->server, in, 2), 2);
    assert_true(tls_has_more(p->server));
    assert_int_equal(tls_receive(p->server, in + 2, 6), 2);
    assert_int_equal(memcmp(in, "ping", 4), 0);
    assert_int_equal(tls_receive(p->server, in, sizeof in), TLS_READ);
    assert_int_equal(tls_send(p->server, "pong", 4), 4);
    ssize_t n = GNUTLS_E_AGAIN;
    for (int i = 0; i < 10 && n == GNUTLS_E_AGAIN; i++) {
        n = gnutls_record_recv(p->client, in, sizeof in);
    }
    assert_int_equal(n, 4);
}

static void certificates_are_replaced_for_those_who_come(void **state)
{
    (void)state;
    struct identity one, two;
    struct tls *t;
    struct pair a, b, c;
    fathom_diag d = {{0}};
    log_set_level(LOG_LEVEL_ERROR);
    make_identity(&one, "one");
    make_identity(&two, "two");
    const struct tls_setup o = {.certificate = one.certificate, .key = one.key};
    assert_int_equal(tls_create(&t, &o, &d), FATHOM_OK);
    open_pair(&a, t);
    assert_name(&a, "one");

    const struct tls_texts mixed = {two.certificate, one.key, NULL}, junk = {"x", two.key, NULL};
    assert_int_equal(tls_replace(t, &mixed, &d), FATHOM_EINVAL);
    assert_non_null(strstr(d.text, "does not belong"));
    d.text[0] = '\0';
    assert_int_equal(tls_replace(t, &junk, &d), FATHOM_EINVAL);
    open_pair(&b, t);
    assert_name(&b, "one");

    const struct tls_texts texts = {two.certificate, two.key, NULL};
    assert_int_equal(tls_replace(t, &texts, NULL), FATHOM_OK);
    open_pair(&c, t);
    assert_name(&c, "two");
    assert_alive(&a);
    assert_alive(&b);
    assert_alive(&c);
    close_pair(&a);
    close_pair(&b);
    close_pair(&c);
    tls_destroy(t);
}

/* What could not be sent is sent later, wherever the bytes lie by then. */
static void a_full_socket_is_waited_for(void **state)
{
    (void)state;
    enum { BLOCK = 16384 };
    static char out[BLOCK], copy[BLOCK], in[BLOCK];
    struct identity one;
    struct tls *t;
    struct pair p;
    log_set_level(LOG_LEVEL_ERROR);
    make_identity(&one, "one");
    const struct tls_setup o = {.certificate = one.certificate, .key = one.key};
    assert_int_equal(tls_create(&t, &o, NULL), FATHOM_OK);
    open_pair(&p, t);
    size_t sent = 0, got = 0;
    ssize_t n = 0;
    for (; n >= 0; sent += (size_t)n) {
        memset(out, (int)(sent / BLOCK), BLOCK);
        n = tls_send(p.server, out, BLOCK);
        if (n < 0) break;
        assert_int_equal(n, BLOCK);
    }
    assert_int_equal(n, TLS_WRITE);
    memcpy(copy, out, BLOCK);
    memset(out, 0xff, BLOCK);
    bool is_out = false;
    while (got < sent + BLOCK) {
        ssize_t k = gnutls_record_recv(p.client, in, BLOCK);
        if (k > 0) {
            for (ssize_t i = 0; i < k; i++) {
                assert_int_equal((unsigned char)in[i], (unsigned char)((got + (size_t)i) / BLOCK));
            }
            got += (size_t)k;
        }
        if (is_out) continue;
        n = tls_send(p.server, copy, BLOCK);
        is_out = n == BLOCK;
        assert_true(is_out || n == TLS_WRITE);
    }
    tls_end(p.server);
    assert_int_equal(gnutls_record_recv(p.client, in, BLOCK), 0);
    close_pair(&p);
    tls_destroy(t);
}

static void without_a_certificate_there_is_no_tls(void **state)
{
    (void)state;
    struct tls *t = (struct tls *)state;
    const struct tls_setup o = {0};
    assert_int_equal(tls_check(&o, NULL), FATHOM_OK);
    assert_int_equal(tls_create(&t, &o, NULL), FATHOM_OK);
    assert_null(t);
    tls_destroy(NULL);
    tls_close(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(certificates_are_replaced_for_those_who_come),
        cmocka_unit_test(a_full_socket_is_waited_for),
        cmocka_unit_test(without_a_certificate_there_is_no_tls),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
