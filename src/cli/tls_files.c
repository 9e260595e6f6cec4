/* tls_files.c - reads them */
#include "cli/tls_files.h"

#include <string.h>

#include "base/fail.h"
#include "base/os.h"

enum { SECRET_MIN_BYTES = 16 };

fathom_err file_read_whole(struct buf *out, const char *path, fathom_diag *d)
{
    struct file_map map;
    TRY(file_map_open(&map, path, d));
    fathom_err err = map.size ? buf_add(out, map.data, map.size) : FATHOM_OK;
    file_map_close(&map);
    return err;
}

fathom_err tls_files_read(struct tls_files *f, struct tls_setup *o, const struct settings *s,
                          fathom_diag *d)
{
    if (!s->ssl_certfile != !s->ssl_keyfile) {
        FAIL(d, FATHOM_EINVAL, "--ssl-certfile and --ssl-keyfile: one is given, needed are both");
    }
    if (!s->ssl_certfile && (s->ssl_ca_certs || s->ssl_cert_reqs || s->ssl_ciphers)) {
        FAIL(d, FATHOM_EINVAL,
             "--ssl-ca-certs, --ssl-cert-reqs and --ssl-ciphers need --ssl-certfile and "
             "--ssl-keyfile");
    }
    if (!s->ssl_certfile) return FATHOM_OK;
    TRY(file_read_whole(&f->certificate, s->ssl_certfile, d));
    TRY(file_read_whole(&f->key, s->ssl_keyfile, d));
    o->certificate = buf_str(&f->certificate);
    o->key = buf_str(&f->key);
    o->ciphers = s->ssl_ciphers;
    o->only_1_3 = strcmp(s->ssl_min_version, "1.3") == 0;
    char reqs = s->ssl_cert_reqs ? s->ssl_cert_reqs[0] : s->ssl_ca_certs ? '2' : '0';
    if (reqs == '0') return FATHOM_OK;
    if (!s->ssl_ca_certs) {
        FAIL(d, FATHOM_EINVAL, "--ssl-cert-reqs %c needs --ssl-ca-certs: whose certificates?",
             reqs);
    }
    TRY(file_read_whole(&f->client_ca, s->ssl_ca_certs, d));
    o->client_ca = buf_str(&f->client_ca);
    o->client_optional = reqs == '1';
    return FATHOM_OK;
}

void tls_files_free(struct tls_files *f)
{
    buf_free(&f->certificate);
    buf_free(&f->key);
    buf_free(&f->client_ca);
}

fathom_err peer_files_check(const struct settings *s, fathom_diag *d)
{
    const struct router_settings *r = &s->router;
    const char *const paths[] = {r->client_cert_path, r->client_key_path, r->ca_cert_path};
    struct tls_files f = {0};
    struct buf *const texts[] = {&f.certificate, &f.key, &f.client_ca};
    fathom_err err = FATHOM_OK;
    if (!r->client_cert_path != !r->client_key_path) {
        FAIL(d, FATHOM_EINVAL,
             "--client-cert-path and --client-key-path: one is given, needed are both");
    }
    if (r->insecure && r->ca_cert_path) {
        FAIL(d, FATHOM_EINVAL,
             "--insecure takes any certificate and --ca-cert-path those of its authorities: give "
             "one of them");
    }
    for (size_t i = 0; i < 3 && !err; i++) {
        if (paths[i]) err = file_read_whole(texts[i], paths[i], d);
    }
    const struct tls_texts used = {paths[0] ? buf_str(&f.certificate) : NULL, buf_str(&f.key),
                                   paths[2] ? buf_str(&f.client_ca) : NULL};
    if (!err) err = tls_check_client(&used, d);
    tls_files_free(&f);
    return err;
}

fathom_err secret_file_read(struct pool_secret *out, const char *path, fathom_diag *d)
{
    struct buf text = {0};
    if (!path) return FATHOM_OK;
    fathom_err err = file_read_whole(&text, path, d);
    if (!err && text.len < SECRET_MIN_BYTES) {
        err = diag_fail(d, FATHOM_EINVAL,
                        "--pool-secret-file %s has %zu bytes, a secret has at least %d", path,
                        text.len, SECRET_MIN_BYTES);
    }
    if (!err) pool_secret_set(out, buf_str(&text), text.len);
    buf_free(&text);
    return err;
}
