/* listing.h - the files of a repository, as a hub's JSON lists them; none of it is trusted */
#ifndef FATHOM_HUB_LISTING_H
#define FATHOM_HUB_LISTING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/json.h"
#include "fathom/err.h"

enum { HUB_SUM_BYTES = 65, HUB_FILES_MAX = 100000, HUB_FOLDERS_MAX = 64 };

struct hub_file {
    const char *path;        /* relative, without "..", below HUB_FOLDERS_MAX folders at most:
                                of the listing's tree */
    char sum[HUB_SUM_BYTES]; /* hexadecimal: SHA-256, or git's id of a blob when is_git */
    bool is_git;
    uint64_t size;
};

struct hub_listing {
    json_t *tree;
    char commit[HUB_SUM_BYTES]; /* what the snapshot is called */
    struct hub_file *files;     /* [n_file] */
    size_t n_file;
    size_t n_left_out; /* weights in forms that fathom does not read: GGUF, PyTorch's, ... */
};

/* listing_read - Hugging Face's answer to /api/models/ORG/NAME/revision/REVISION?blobs=true
 * Errors  EFORMAT: not JSON, no commit, a path that leaves its folder, a file without size or sum;
 *         ELIMIT: more than HUB_FILES_MAX files, a path through more than HUB_FOLDERS_MAX folders;
 *         ENOMEM. */
fathom_err listing_read(struct hub_listing *l, const char *text, size_t n, fathom_diag *d);

/* listing_read_modelscope - ModelScope's answer to /api/v1/models/ORG/NAME/repo/files. It has no
 * commit, so the snapshot is named by a digest of all paths and sums. */
fathom_err listing_read_modelscope(struct hub_listing *l, const char *text, size_t n,
                                   fathom_diag *d);

/* listing_bytes - the sizes of all files together */
uint64_t listing_bytes(const struct hub_listing *l);
void listing_free(struct hub_listing *l); /* accepts a zeroed one */

#endif
