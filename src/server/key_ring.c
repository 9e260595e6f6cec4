/* key_ring.c - see key_ring.h
 *
 * Invariants: the tenants only grow, so a number stays good. A key's tenant is below n_tenant. With
 * no key at all there is one tenant, 0, that everybody is.
 */
#include "server/key_ring.h"

#include <gnutls/crypto.h>
#include <gnutls/gnutls.h>
#include <pthread.h>
#include <string.h>

#include "base/assert.h"
#include "base/fail.h"
#include "base/mem.h"

enum { DIGEST_BYTES = 32 }; /* of SHA-256 */

struct held_key {
    char *text;
    uint32_t tenant;
};

struct tenant {
    unsigned char digest[DIGEST_BYTES]; /* of its name, or of the key that is a tenant by itself */
    bool named;
    uint64_t salt;
};

struct key_ring {
    pthread_rwlock_t lock;
    struct held_key *keys;
    size_t n_key;
    struct tenant *tenants;
    size_t tenant_cap;
    uint32_t n_tenant; /* that there have been */
    size_t n_owner;    /* that have a key now */
};

static void digest_of(unsigned char out[DIGEST_BYTES], const char *text)
{
    int status = gnutls_hash_fast(GNUTLS_DIG_SHA256, text, strlen(text), out);
    ASSERT(status == 0); /* SHA-256 is always there, and a text of any length is hashed */
}

static bool same_key(const char *a, const char *b)
{
    size_t n = strlen(a), m = strlen(b);
    unsigned char differ = n != m;
    for (size_t i = 0; i < n; i++) differ |= (unsigned char)(a[i] ^ b[m ? i % m : 0]);
    return m && !differ;
}

/* A header carries what is visible in ASCII; a key with more could never be brought. */
static fathom_err check_key(const char *key, size_t place, fathom_diag *d)
{
    if (!*key) {
        FAIL(
            d, FATHOM_EINVAL,
            "API key %zu is empty: whoever gives keys wants the server closed, so give one that is "
            "not, or none at all",
            place + 1);
    }
    for (const char *c = key; *c; c++) {
        if (*c > 0x20 && *c < 0x7f) continue;
        FAIL(d, FATHOM_EINVAL,
             "API key %zu holds the byte 0x%02x at %zu, which no request can bring; needed are "
             "visible characters of ASCII",
             place + 1, (unsigned)(unsigned char)*c, (size_t)(c - key));
    }
    return FATHOM_OK;
}

fathom_err key_list_check(const struct key_list *list, fathom_diag *d)
{
    for (size_t i = 0; i < list->n; i++) TRY(check_key(list->keys[i], i, d));
    return FATHOM_OK;
}

/* ---- tenants ------------------------------------------------------------------------------- */

static uint64_t salt_of(const char *first_key)
{
    unsigned char digest[DIGEST_BYTES];
    uint64_t salt;
    digest_of(digest, first_key);
    memcpy(&salt, digest, sizeof salt);
    return salt ? salt : 1;
}

/* Its number; a tenant that is new gets the next one. */
static fathom_err tenant_of(struct key_ring *r, const char *key, const char *name, uint32_t *out)
{
    struct tenant t = {.named = name != NULL};
    digest_of(t.digest, name ? name : key);
    for (*out = 0; *out < r->n_tenant; ++*out) {
        const struct tenant *have = &r->tenants[*out];
        if (have->named == t.named && memcmp(have->digest, t.digest, DIGEST_BYTES) == 0) {
            return FATHOM_OK;
        }
    }
    TRY(mem_grow(&r->tenants, &r->tenant_cap, r->n_tenant + 1u, sizeof t));
    t.salt = salt_of(key);
    r->tenants[r->n_tenant++] = t;
    return FATHOM_OK;
}

/* ---- life ---------------------------------------------------------------------------------- */

/* Up to the first without a text. */
static void free_keys(struct held_key *keys, size_t n)
{
    for (size_t i = 0; keys && i < n && keys[i].text; i++) {
        gnutls_memset(keys[i].text, 0, strlen(keys[i].text));
        mem_free(keys[i].text);
    }
    mem_free(keys);
}

static fathom_err copy_keys(struct key_ring *r, const struct key_list *list, struct held_key *out)
{
    for (size_t i = 0; i < list->n; i++) {
        TRY(tenant_of(r, list->keys[i], list->tenants ? list->tenants[i] : NULL, &out[i].tenant));
        out[i].text = mem_strdup(list->keys[i]);
        if (!out[i].text) return FATHOM_ENOMEM;
    }
    return FATHOM_OK;
}

static bool owned_before(const struct held_key *keys, size_t i)
{
    for (size_t k = 0; k < i; k++) {
        if (keys[k].tenant == keys[i].tenant) return true;
    }
    return false;
}

static fathom_err put_keys(struct key_ring *r, const struct key_list *list, fathom_diag *d)
{
    TRY(key_list_check(list, d));
    struct held_key *held = mem_calloc(list->n + 1, sizeof *held);
    if (!held) return FATHOM_ENOMEM;
    fathom_err err = copy_keys(r, list, held);
    if (err) {
        free_keys(held, list->n);
        return err;
    }
    free_keys(r->keys, r->n_key);
    r->keys = held;
    r->n_key = list->n;
    r->n_owner = 0;
    for (size_t i = 0; i < list->n; i++) r->n_owner += !owned_before(held, i);
    return FATHOM_OK;
}

fathom_err key_ring_create(struct key_ring **out, const struct key_list *list, fathom_diag *d)
{
    struct key_ring *r = mem_calloc(1, sizeof *r);
    *out = NULL;
    if (!r) return FATHOM_ENOMEM;
    (void)pthread_rwlock_init(&r->lock, NULL);
    fathom_err err = put_keys(r, list, d);
    if (err) {
        key_ring_destroy(r);
        return err;
    }
    *out = r;
    return FATHOM_OK;
}

void key_ring_destroy(struct key_ring *r)
{
    if (!r) return;
    free_keys(r->keys, r->n_key);
    mem_free(r->tenants);
    (void)pthread_rwlock_destroy(&r->lock);
    mem_free(r);
}

fathom_err key_ring_replace(struct key_ring *r, const struct key_list *list, fathom_diag *d)
{
    (void)pthread_rwlock_wrlock(&r->lock);
    fathom_err err;
    if (list->n == 0 && r->n_key > 0) {
        err = diag_fail(d, FATHOM_EINVAL,
                        "no API key is left: the server would be open to everybody, which it "
                        "becomes by a new start alone");
    } else {
        err = put_keys(r, list, d);
    }
    (void)pthread_rwlock_unlock(&r->lock);
    return err;
}

/* ---- requests ------------------------------------------------------------------------------ */

bool key_ring_find(struct key_ring *r, const char *given, uint32_t *tenant)
{
    (void)pthread_rwlock_rdlock(&r->lock);
    bool ok = r->n_key == 0;
    *tenant = 0;
    for (size_t i = 0; given && i < r->n_key; i++) {
        bool same = same_key(given, r->keys[i].text);
        if (same && !ok) *tenant = r->keys[i].tenant;
        ok |= same;
    }
    (void)pthread_rwlock_unlock(&r->lock);
    return ok;
}

size_t key_ring_n(struct key_ring *r)
{
    (void)pthread_rwlock_rdlock(&r->lock);
    size_t n = r->n_key;
    (void)pthread_rwlock_unlock(&r->lock);
    return n;
}

size_t key_ring_n_tenant(struct key_ring *r)
{
    (void)pthread_rwlock_rdlock(&r->lock);
    size_t n = r->n_owner;
    (void)pthread_rwlock_unlock(&r->lock);
    return n;
}

uint64_t key_ring_salt(struct key_ring *r, uint32_t tenant)
{
    (void)pthread_rwlock_rdlock(&r->lock);
    uint64_t salt = tenant < r->n_tenant ? r->tenants[tenant].salt : 1;
    (void)pthread_rwlock_unlock(&r->lock);
    return salt;
}
