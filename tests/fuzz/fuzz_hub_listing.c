/* fuzz_hub_listing.c - a hub's list of files; the first byte chooses whose */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/assert.h"
#include "hub/listing.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct hub_listing l = {0};
    if (n == 0) return 0;
    const char *text = (const char *)data + 1;
    fathom_err err = data[0] & 1 ? listing_read_modelscope(&l, text, n - 1, NULL)
                                 : listing_read(&l, text, n - 1, NULL);
    for (size_t i = 0; !err && i < l.n_file; i++) {
        ASSERT(l.files[i].path[0] != '/' && !strstr(l.files[i].path, "/../"));
        ASSERT(strlen(l.files[i].sum) == (l.files[i].is_git ? 40 : 64));
    }
    listing_free(&l);
    return 0;
}
