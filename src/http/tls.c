/* tls.c - reads certificates; sessions of GnuTLS */
#include "http/tls.h"

#include <gnutls/gnutls.h>
#include <gnutls/x509.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/fail.h"
#include "base/log.h"
#include "base/mem.h"

enum { SOON_DAYS = 14, DAY_S = 86400, PRIORITY_BYTES = 1024 };

/* Certificates, for as long as a session or `tls` uses them. */
struct tls_set {
    atomic_uint n_ref;
    gnutls_certificate_credentials_t credentials;
    bool asks_client;
};

struct tls {
    gnutls_priority_t priority;
    bool client_optional;
    pthread_mutex_t lock;
    struct tls_set *set; /* under the lock */
};

struct tls_session {
    gnutls_session_t session;
    struct tls_set *set;
    bool client_is_known;
    bool client_optional;
    bool is_sending; /* GnuTLS holds bytes that it could not send */
};

/* Which options the texts are of, and who sees the certificate. */
struct tls_words {
    const char *certificate, *key, *ca, *peers;
};

static const struct tls_words of_port = {"--ssl-certfile", "--ssl-keyfile", "--ssl-ca-certs",
                                         "clients"};
static const struct tls_words of_client = {"--client-cert-path", "--client-key-path",
                                           "--ca-cert-path", "servers"};

/* ---- certificates -------------------------------------------------------------------------- */

static gnutls_datum_t datum(const char *pem)
{
    return (gnutls_datum_t){(unsigned char *)pem, (unsigned)strlen(pem)};
}

/* Tells the log when the first certificate of the file ends. */
static fathom_err look_at_end(const char *pem, const struct tls_words *w, fathom_diag *d)
{
    gnutls_x509_crt_t *list = NULL;
    unsigned n = 0;
    const gnutls_datum_t text = datum(pem);
    int why = gnutls_x509_crt_list_import2(&list, &n, &text, GNUTLS_X509_FMT_PEM, 0);
    if (why < 0 || n == 0) {
        FAIL(d, FATHOM_EINVAL, "%s holds no certificate in PEM: %s", w->certificate,
             gnutls_strerror(why));
    }
    int64_t left_s = (int64_t)gnutls_x509_crt_get_expiration_time(list[0]) - clock_unix_s();
    if (left_s < 0) {
        LOG_WARN("server", "the TLS certificate has ended: %s will refuse it", w->peers);
    } else if (left_s < (int64_t)SOON_DAYS * DAY_S) {
        LOG_WARN("server", "the TLS certificate ends in %lld days", (long long)(left_s / DAY_S));
    }
    for (unsigned i = 0; i < n; i++) gnutls_x509_crt_deinit(list[i]);
    gnutls_free(list);
    return FATHOM_OK;
}

static fathom_err read_pair(gnutls_certificate_credentials_t all, const struct tls_texts *texts,
                            const struct tls_words *w, fathom_diag *d)
{
    const gnutls_datum_t certificate = datum(texts->certificate), key = datum(texts->key);
    int why = gnutls_certificate_set_x509_key_mem(all, &certificate, &key, GNUTLS_X509_FMT_PEM);
    if (why == GNUTLS_E_CERTIFICATE_KEY_MISMATCH) {
        FAIL(d, FATHOM_EINVAL, "the key of %s does not belong to the certificate of %s", w->key,
             w->certificate);
    }
    if (why >= 0) return FATHOM_OK;
    FAIL(d, FATHOM_EINVAL, "%s holds no key in PEM that can be used: %s", w->key,
         gnutls_strerror(why));
}

static fathom_err read_texts(gnutls_certificate_credentials_t all, const struct tls_texts *texts,
                             const struct tls_words *w, fathom_diag *d)
{
    if (texts->certificate) TRY(read_pair(all, texts, w, d));
    if (!texts->client_ca) return FATHOM_OK;
    const gnutls_datum_t ca = datum(texts->client_ca);
    int why = gnutls_certificate_set_x509_trust_mem(all, &ca, GNUTLS_X509_FMT_PEM);
    if (why > 0) return FATHOM_OK;
    FAIL(d, FATHOM_EINVAL, "%s holds no certificate in PEM%s%s", w->ca, why < 0 ? ": " : "",
         why < 0 ? gnutls_strerror(why) : "");
}

static void set_release(struct tls_set *set)
{
    if (!set || atomic_fetch_sub(&set->n_ref, 1) != 1) return;
    gnutls_certificate_free_credentials(set->credentials);
    mem_free(set);
}

static fathom_err set_create(struct tls_set **out, const struct tls_texts *texts,
                             const struct tls_words *w, fathom_diag *d)
{
    struct tls_set *set = mem_calloc(1, sizeof *set);
    *out = NULL;
    if (!set) return FATHOM_ENOMEM;
    if (gnutls_certificate_allocate_credentials(&set->credentials) < 0) {
        mem_free(set);
        return FATHOM_ENOMEM;
    }
    atomic_init(&set->n_ref, 1);
    set->asks_client = texts->client_ca != NULL;
    fathom_err err = read_texts(set->credentials, texts, w, d);
    if (err) {
        set_release(set);
        return err;
    }
    *out = set;
    return FATHOM_OK;
}

static struct tls_texts texts_of(const struct tls_setup *o)
{
    return (struct tls_texts){o->certificate, o->key, o->client_ca};
}

/* Ciphers as the options say, of the versions they allow. */
static fathom_err read_priority(gnutls_priority_t *out, const struct tls_setup *o, fathom_diag *d)
{
    char text[PRIORITY_BYTES];
    const char *ciphers = o->ciphers ? o->ciphers : "NORMAL";
    const char *wrong = NULL;
    int n = snprintf(text, sizeof text, "%s:-VERS-ALL:+VERS-TLS1.3%s", ciphers,
                     o->only_1_3 ? "" : ":+VERS-TLS1.2");
    if (n < 0 || (size_t)n >= sizeof text) {
        FAIL(d, FATHOM_EINVAL, "--ssl-ciphers is longer than %d bytes", PRIORITY_BYTES - 64);
    }
    int why = gnutls_priority_init(out, text, &wrong);
    if (why == GNUTLS_E_SUCCESS) return FATHOM_OK;
    if (why == GNUTLS_E_MEMORY_ERROR) return FATHOM_ENOMEM;
    FAIL(d, FATHOM_EINVAL,
         "--ssl-ciphers %s is no priority string of GnuTLS, from \"%s\" on; an example is "
         "SECURE256:+SECURE128",
         ciphers, wrong ? wrong : "");
}

fathom_err tls_check(const struct tls_setup *o, fathom_diag *d)
{
    struct tls_set *set = NULL;
    gnutls_priority_t priority = NULL;
    if (!o->certificate) return FATHOM_OK;
    const struct tls_texts texts = texts_of(o);
    TRY(look_at_end(o->certificate, &of_port, d));
    TRY(set_create(&set, &texts, &of_port, d));
    set_release(set);
    TRY(read_priority(&priority, o, d));
    gnutls_priority_deinit(priority);
    return FATHOM_OK;
}

fathom_err tls_check_client(const struct tls_texts *texts, fathom_diag *d)
{
    struct tls_set *set = NULL;
    if (texts->certificate) TRY(look_at_end(texts->certificate, &of_client, d));
    TRY(set_create(&set, texts, &of_client, d));
    set_release(set);
    return FATHOM_OK;
}

/* ---- what sessions begin with -------------------------------------------------------------- */

fathom_err tls_create(struct tls **out, const struct tls_setup *o, fathom_diag *d)
{
    *out = NULL;
    if (!o->certificate) return FATHOM_OK;
    const struct tls_texts texts = texts_of(o);
    struct tls *t = mem_calloc(1, sizeof *t);
    if (!t) return FATHOM_ENOMEM;
    (void)pthread_mutex_init(&t->lock, NULL);
    t->client_optional = o->client_optional;
    fathom_err err = read_priority(&t->priority, o, d);
    if (!err) err = set_create(&t->set, &texts, &of_port, d);
    if (err) {
        tls_destroy(t);
        return err;
    }
    *out = t;
    return FATHOM_OK;
}

void tls_destroy(struct tls *t)
{
    if (!t) return;
    set_release(t->set);
    if (t->priority) gnutls_priority_deinit(t->priority);
    (void)pthread_mutex_destroy(&t->lock);
    mem_free(t);
}

fathom_err tls_replace(struct tls *t, const struct tls_texts *texts, fathom_diag *d)
{
    struct tls_set *set;
    TRY(look_at_end(texts->certificate, &of_port, d));
    TRY(set_create(&set, texts, &of_port, d));
    (void)pthread_mutex_lock(&t->lock);
    struct tls_set *old = t->set;
    t->set = set;
    (void)pthread_mutex_unlock(&t->lock);
    set_release(old);
    return FATHOM_OK;
}

static struct tls_set *set_hold(struct tls *t)
{
    (void)pthread_mutex_lock(&t->lock);
    struct tls_set *set = t->set;
    atomic_fetch_add(&set->n_ref, 1);
    (void)pthread_mutex_unlock(&t->lock);
    return set;
}

/* ---- sessions ------------------------------------------------------------------------------ */

static fathom_err begin(struct tls_session *s, const struct tls *t, int fd)
{
    static const gnutls_datum_t protocol = {(unsigned char *)"http/1.1", 8};
    gnutls_session_t *session = &s->session;
    if (gnutls_init(session, GNUTLS_SERVER | GNUTLS_NONBLOCK | GNUTLS_NO_SIGNAL) < 0 ||
        gnutls_priority_set(*session, t->priority) < 0 ||
        gnutls_credentials_set(*session, GNUTLS_CRD_CERTIFICATE, s->set->credentials) < 0 ||
        gnutls_alpn_set_protocols(*session, &protocol, 1, 0) < 0) {
        return FATHOM_ENOMEM;
    }
    gnutls_handshake_set_timeout(*session, GNUTLS_INDEFINITE_TIMEOUT); /* the gate has one */
    gnutls_certificate_server_set_request(*session, s->set->asks_client ? GNUTLS_CERT_REQUEST
                                                                        : GNUTLS_CERT_IGNORE);
    gnutls_transport_set_int(*session, fd);
    return FATHOM_OK;
}

fathom_err tls_open(struct tls *t, int fd, struct tls_session **out)
{
    struct tls_session *s = mem_calloc(1, sizeof *s);
    *out = NULL;
    if (!s) return FATHOM_ENOMEM;
    s->set = set_hold(t);
    s->client_optional = t->client_optional;
    fathom_err err = begin(s, t, fd);
    if (err) {
        tls_close(s);
        return err;
    }
    *out = s;
    return FATHOM_OK;
}

void tls_close(struct tls_session *s)
{
    if (!s) return;
    if (s->session) gnutls_deinit(s->session);
    set_release(s->set);
    mem_free(s);
}

static bool is_again(ssize_t why)
{
    return why == GNUTLS_E_AGAIN || why == GNUTLS_E_INTERRUPTED;
}

static bool verify_client(const struct tls_session *s)
{
    unsigned status = 0, n = 0;
    if (!s->set->asks_client) return true;
    if (!gnutls_certificate_get_peers(s->session, &n) || n == 0) return s->client_optional;
    return gnutls_certificate_verify_peers2(s->session, &status) >= 0 && status == 0;
}

int tls_shake_hands(struct tls_session *s)
{
    int why = gnutls_handshake(s->session);
    if (why == GNUTLS_E_SUCCESS) {
        s->client_is_known = verify_client(s);
        return 0;
    }
    if (!is_again(why) && why != GNUTLS_E_WARNING_ALERT_RECEIVED) {
        LOG_DEBUG("server", "TLS: %s", gnutls_strerror(why));
        (void)gnutls_alert_send_appropriate(s->session, why);
        return TLS_BROKEN;
    }
    return gnutls_record_get_direction(s->session) ? TLS_WRITE : TLS_READ;
}

ssize_t tls_receive(struct tls_session *s, void *bytes, size_t n)
{
    ssize_t got = gnutls_record_recv(s->session, bytes, n);
    if (got >= 0) return got;
    return is_again(got) ? TLS_READ : TLS_BROKEN;
}

bool tls_has_more(const struct tls_session *s)
{
    return gnutls_record_check_pending(s->session) > 0;
}

/* GnuTLS keeps a copy of what it could not send, and returns its length once it is out. */
ssize_t tls_send(struct tls_session *s, const void *bytes, size_t n)
{
    ssize_t sent = s->is_sending ? gnutls_record_send(s->session, NULL, 0)
                                 : gnutls_record_send(s->session, bytes, n);
    s->is_sending = is_again(sent);
    if (sent >= 0) return sent;
    return s->is_sending ? TLS_WRITE : TLS_BROKEN;
}

void tls_end(struct tls_session *s)
{
    (void)gnutls_bye(s->session, GNUTLS_SHUT_WR);
}

bool tls_client_is_known(const struct tls_session *s)
{
    return s->client_is_known;
}
