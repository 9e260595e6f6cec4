/* tls.c - reads certificates and asks GnuTLS about a client's */
#include "server/http/tls.h"

#include <gnutls/gnutls.h>
#include <gnutls/x509.h>
#include <microhttpd.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/fail.h"
#include "base/log.h"

enum { SOON_DAYS = 14, DAY_S = 86400 };

static gnutls_datum_t datum(const char *pem)
{
    return (gnutls_datum_t){(unsigned char *)pem, (unsigned)strlen(pem)};
}

/* Tells the log when the first certificate of the file ends. */
static fathom_err look_at_end(const char *pem, fathom_diag *d)
{
    gnutls_x509_crt_t *list = NULL;
    unsigned n = 0;
    const gnutls_datum_t text = datum(pem);
    int why = gnutls_x509_crt_list_import2(&list, &n, &text, GNUTLS_X509_FMT_PEM, 0);
    if (why < 0 || n == 0) {
        FAIL(d, FATHOM_EINVAL, "--ssl-certfile holds no certificate in PEM: %s",
             gnutls_strerror(why));
    }
    int64_t left_s = (int64_t)gnutls_x509_crt_get_expiration_time(list[0]) - clock_unix_s();
    if (left_s < 0) {
        LOG_WARN("server", "the TLS certificate has ended: clients will refuse it");
    } else if (left_s < (int64_t)SOON_DAYS * DAY_S) {
        LOG_WARN("server", "the TLS certificate ends in %lld days", (long long)(left_s / DAY_S));
    }
    for (unsigned i = 0; i < n; i++) gnutls_x509_crt_deinit(list[i]);
    gnutls_free(list);
    return FATHOM_OK;
}

fathom_err tls_check(const struct server_options *o, fathom_diag *d)
{
    gnutls_certificate_credentials_t all = NULL;
    fathom_err err;
    if (!o->tls_certificate) return FATHOM_OK;
    TRY(look_at_end(o->tls_certificate, d));
    if (gnutls_certificate_allocate_credentials(&all) < 0) return FATHOM_ENOMEM;
    const gnutls_datum_t certificate = datum(o->tls_certificate), key = datum(o->tls_key);
    int why = gnutls_certificate_set_x509_key_mem(all, &certificate, &key, GNUTLS_X509_FMT_PEM);
    err = FATHOM_OK;
    if (why == GNUTLS_E_CERTIFICATE_KEY_MISMATCH) {
        err = diag_fail(d, FATHOM_EINVAL,
                        "the key of --ssl-keyfile does not belong to the certificate of "
                        "--ssl-certfile");
    } else if (why < 0) {
        err = diag_fail(d, FATHOM_EINVAL, "--ssl-keyfile holds no key in PEM that can be used: %s",
                        gnutls_strerror(why));
    } else if (o->tls_client_ca) {
        const gnutls_datum_t ca = datum(o->tls_client_ca);
        why = gnutls_certificate_set_x509_trust_mem(all, &ca, GNUTLS_X509_FMT_PEM);
        if (why <= 0) {
            err = diag_fail(d, FATHOM_EINVAL, "--ssl-ca-certs holds no certificate in PEM%s%s",
                            why < 0 ? ": " : "", why < 0 ? gnutls_strerror(why) : "");
        }
    }
    gnutls_certificate_free_credentials(all);
    return err;
}

bool tls_client_is_known(const struct server_options *o, struct MHD_Connection *c)
{
    if (!o->tls_client_ca) return true;
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(c, MHD_CONNECTION_INFO_GNUTLS_SESSION);
    gnutls_session_t session = info ? info->tls_session : NULL;
    unsigned status = 0;
    unsigned n = 0;
    if (!session) return false;
    if (!gnutls_certificate_get_peers(session, &n) || n == 0) return o->tls_client_optional;
    return gnutls_certificate_verify_peers2(session, &status) >= 0 && status == 0;
}
