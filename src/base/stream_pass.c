/* stream_pass.c - writes and reads passes */
#include "base/stream_pass.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NONCE_DIGITS = 16, MAC_DIGITS = 32, BODY_BYTES = 48 };

void pool_secret_set(struct pool_secret *s, const char *text, size_t n)
{
    static const struct hash128 purpose = {0x6d6f7468616620u, 0x7465726365732070u};
    while (n > 0 && (text[n - 1] == '\n' || text[n - 1] == '\r')) n--;
    s->is_set = true;
    s->key = hash_keyed(&purpose, text, n);
}

static void write_mac(char out[MAC_DIGITS + 1], const struct pool_secret *s, const char *body)
{
    struct hash128 h = hash_keyed(&s->key, body, strlen(body));
    (void)snprintf(out, MAC_DIGITS + 1, "%016llx%016llx", (unsigned long long)h.hi,
                   (unsigned long long)h.lo);
}

void stream_pass_write(char out[STREAM_PASS_BYTES], const struct stream_pass *p,
                       const struct pool_secret *s)
{
    char body[BODY_BYTES], mac[MAC_DIGITS + 1] = "";
    (void)snprintf(body, sizeof body, "%016llx-%lld", (unsigned long long)p->nonce,
                   (long long)p->created);
    if (s->is_set) write_mac(mac, s, body);
    (void)snprintf(out, STREAM_PASS_BYTES, s->is_set ? "%s-%s" : "%s", body, mac);
}

/* Looks at every byte, so that the time tells nothing of where two differ. */
static bool is_same(const char *a, const char *b, size_t n)
{
    unsigned char differs = 0;
    for (size_t i = 0; i < n; i++) differs |= (unsigned char)(a[i] ^ b[i]);
    return differs == 0;
}

bool stream_pass_read(struct stream_pass *p, const char *text, const struct pool_secret *s,
                      bool is_near)
{
    char body[BODY_BYTES], mac[MAC_DIGITS + 1], *end;
    *p = (struct stream_pass){0};
    if (!text || strspn(text, "0123456789abcdef") != NONCE_DIGITS) return false;
    size_t n_digit = text[NONCE_DIGITS] == '-' ? strspn(text + NONCE_DIGITS + 1, "0123456789") : 0;
    size_t n_body = NONCE_DIGITS + 1 + n_digit;
    if (n_digit == 0 || n_body >= sizeof body) return false;
    memcpy(body, text, n_body);
    body[n_body] = '\0';
    if (s->is_set) {
        write_mac(mac, s, body);
        if (text[n_body] != '-' || strlen(text + n_body + 1) != MAC_DIGITS) return false;
        if (!is_same(text + n_body + 1, mac, MAC_DIGITS)) return false;
    } else if (!is_near || text[n_body] != '\0') {
        return false;
    }
    errno = 0;
    uint64_t nonce = strtoull(body, &end, 16);
    int64_t created = strtoll(end + 1, NULL, 10);
    if (errno != 0) return false;
    *p = (struct stream_pass){.is_on = true, .nonce = nonce, .created = created};
    return true;
}
