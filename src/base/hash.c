/* hash.c - SipHash-2-4, and a checksum of eight lanes */
#include "base/hash.h"

#include <string.h>

#include "base/rng.h"

static uint64_t rotate(uint64_t x, int n)
{
    return x << n | x >> (64 - n);
}

/* ---- keyed ---- */

struct sip {
    uint64_t v0, v1, v2, v3;
};

static void sip_rounds(struct sip *s, int n)
{
    while (n-- > 0) {
        s->v0 += s->v1;
        s->v1 = rotate(s->v1, 13) ^ s->v0;
        s->v0 = rotate(s->v0, 32);
        s->v2 += s->v3;
        s->v3 = rotate(s->v3, 16) ^ s->v2;
        s->v0 += s->v3;
        s->v3 = rotate(s->v3, 21) ^ s->v0;
        s->v2 += s->v1;
        s->v1 = rotate(s->v1, 17) ^ s->v2;
        s->v2 = rotate(s->v2, 32);
    }
}

static void sip_take(struct sip *s, uint64_t word)
{
    s->v3 ^= word;
    sip_rounds(s, 2);
    s->v0 ^= word;
}

struct hash128 hash_keyed(const struct hash128 *key, const void *data, size_t n)
{
    const unsigned char *p = data;
    struct sip s = {key->lo ^ 0x736f6d6570736575u, key->hi ^ 0x646f72616e646f6du ^ 0xee,
                    key->lo ^ 0x6c7967656e657261u, key->hi ^ 0x7465646279746573u};
    uint64_t word;
    size_t left = n;
    for (; left >= sizeof word; left -= sizeof word, p += sizeof word) {
        memcpy(&word, p, sizeof word);
        sip_take(&s, word);
    }
    word = 0;
    if (left) memcpy(&word, p, left);
    sip_take(&s, word | (uint64_t)n << 56);
    struct hash128 out;
    s.v2 ^= 0xee;
    sip_rounds(&s, 4);
    out.lo = s.v0 ^ s.v1 ^ s.v2 ^ s.v3;
    s.v1 ^= 0xdd;
    sip_rounds(&s, 4);
    out.hi = s.v0 ^ s.v1 ^ s.v2 ^ s.v3;
    return out;
}

/* ---- checksum ---- */

enum { LANES = 8, LANE_BYTES = LANES * 8 };

static void lanes_take(uint64_t *lanes, const unsigned char *p)
{
    for (int i = 0; i < LANES; i++) {
        uint64_t word;
        memcpy(&word, p + (size_t)i * sizeof word, sizeof word);
        lanes[i] = rotate((lanes[i] ^ word) * 0x9e3779b97f4a7c15u, 29);
    }
}

uint64_t hash_checksum(const void *data, size_t n)
{
    const unsigned char *p = data;
    uint64_t lanes[LANES];
    for (uint64_t i = 0; i < LANES; i++) lanes[i] = rng_hash(i);
    size_t left = n;
    for (; left >= LANE_BYTES; left -= LANE_BYTES, p += LANE_BYTES) lanes_take(lanes, p);
    if (left) {
        unsigned char rest[LANE_BYTES] = {0};
        memcpy(rest, p, left);
        lanes_take(lanes, rest);
    }
    uint64_t sum = rng_hash(n);
    for (int i = 0; i < LANES; i++) sum = rng_hash(sum ^ lanes[i]);
    return sum;
}
