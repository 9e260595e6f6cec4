/* identity.c - identities compared, part by part */
#include "kv/identity.h"

#include <assert.h>
#include <string.h>

#include "base/assert.h"

enum identity_part identity_compare(const struct identity *a, const struct identity *b)
{
    ASSERT(a && b);
    if (!sha256_equal(&a->model, &b->model)) return IDENTITY_MODEL;
    if (!sha256_equal(&a->numerics, &b->numerics)) return IDENTITY_NUMERICS;
    if (!sha256_equal(&a->layout, &b->layout)) return IDENTITY_LAYOUT;
    return IDENTITY_EQUAL;
}

struct hash128 identity_key(const struct identity *id)
{
    static_assert(sizeof *id == 3 * sizeof(struct sha256), "no padding");
    const struct sha256 all = sha256_of(id, sizeof *id);
    struct hash128 key;
    ASSERT(id && sizeof key <= sizeof all.bytes);
    memcpy(&key, all.bytes, sizeof key);
    return key;
}
