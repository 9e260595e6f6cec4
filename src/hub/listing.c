/* listing.c - a hub's answer to a list of files */
#include "hub/listing.h"

#include <ctype.h>
#include <string.h>

#include "base/fail.h"
#include "base/mem.h"
#include "base/os.h"
#include "base/sha256.h"

static const int64_t file_bytes_max = INT64_C(1) << 50;

static bool is_hex(const char *s, size_t n)
{
    if (!s || strlen(s) != n) return false;
    for (size_t i = 0; i < n; i++) {
        if (!isdigit((unsigned char)s[i]) && !(s[i] >= 'a' && s[i] <= 'f')) return false;
    }
    return true;
}

/* Weights in forms that are not read here, often as large as all the others together. */
static bool is_left_out(const char *path)
{
    static const char *const ends[] = {".bin",  ".pt",        ".pth",    ".ckpt",    ".gguf",
                                       ".ggml", ".onnx",      ".h5",     ".msgpack", ".tflite",
                                       ".ot",   ".onnx_data", ".mlmodel"};
    size_t n = strlen(path);
    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++) {
        size_t m = strlen(ends[i]);
        if (n > m && strcmp(path + n - m, ends[i]) == 0) return true;
    }
    return false;
}

/* Folders that a path leads through. */
static size_t count_folders(const char *path)
{
    size_t n = 0;
    for (; *path; path++) n += *path == '/';
    return n;
}

static fathom_err take_file(struct hub_listing *l, const char *path, const json_t *size,
                            const char *sum, bool is_git, fathom_diag *d)
{
    if (!path || !path_stays_below(path)) {
        FAIL(d, FATHOM_EFORMAT, "the hub lists a file called \"%.80s\", which is no name of a file",
             path ? path : "");
    }
    const size_t n_folder = count_folders(path);
    if (n_folder > HUB_FOLDERS_MAX) {
        FAIL(d, FATHOM_ELIMIT, "the hub lists \"%.80s...\" below %zu folders, at most %d are taken",
             path, n_folder, HUB_FOLDERS_MAX);
    }
    if (is_left_out(path)) {
        l->n_left_out++;
        return FATHOM_OK;
    }
    int64_t bytes = json_is_integer(size) ? json_integer_value(size) : -1;
    if (bytes < 0 || bytes > file_bytes_max || !is_hex(sum, is_git ? 40 : 64)) {
        FAIL(d, FATHOM_EFORMAT, "the hub lists %s without a size or a sum to check it by", path);
    }
    struct hub_file *f = &l->files[l->n_file++];
    *f = (struct hub_file){.path = path, .is_git = is_git, .size = (uint64_t)bytes};
    memcpy(f->sum, sum, strlen(sum) + 1);
    return FATHOM_OK;
}

static fathom_err make_room(struct hub_listing *l, const json_t *files, fathom_diag *d)
{
    size_t n = json_array_size(files);
    if (n == 0) FAIL(d, FATHOM_EFORMAT, "the hub's list has no files");
    if (n > HUB_FILES_MAX) {
        FAIL(d, FATHOM_ELIMIT, "the hub lists %zu files, at most %d are taken", n, HUB_FILES_MAX);
    }
    l->files = mem_calloc(n, sizeof *l->files);
    if (!l->files) FAIL(d, FATHOM_ENOMEM, "out of memory for a list of %zu files", n);
    return FATHOM_OK;
}

fathom_err listing_read(struct hub_listing *l, const char *text, size_t n, fathom_diag *d)
{
    memset(l, 0, sizeof *l);
    TRY(json_read(text, n, "the hub's list of files", &l->tree, d));
    const char *commit = json_string_value(json_object_get(l->tree, "sha"));
    const json_t *files = json_object_get(l->tree, "siblings"), *file;
    size_t i;
    if (!is_hex(commit, 40)) FAIL(d, FATHOM_EFORMAT, "the hub's list names no commit");
    memcpy(l->commit, commit, 41);
    TRY(make_room(l, files, d));
    json_array_foreach ((json_t *)files, i, file) {
        const json_t *lfs = json_object_get(file, "lfs");
        const char *path = json_string_value(json_object_get(file, "rfilename"));
        const char *large = json_string_value(json_object_get(lfs, "sha256"));
        const char *small = json_string_value(json_object_get(file, "blobId"));
        const json_t *size = json_object_get(large ? lfs : file, "size");
        TRY(take_file(l, path, size, large ? large : small, !large, d));
    }
    return FATHOM_OK;
}

fathom_err listing_read_modelscope(struct hub_listing *l, const char *text, size_t n,
                                   fathom_diag *d)
{
    static const char digits[] = "0123456789abcdef";
    memset(l, 0, sizeof *l);
    TRY(json_read(text, n, "the hub's list of files", &l->tree, d));
    const json_t *files = json_object_get(json_object_get(l->tree, "Data"), "Files"), *file;
    struct sha256 all = {{0}};
    size_t i;
    TRY(make_room(l, files, d));
    json_array_foreach ((json_t *)files, i, file) {
        const char *type = json_string_value(json_object_get(file, "Type"));
        if (type && strcmp(type, "tree") == 0) continue;
        const char *path = json_string_value(json_object_get(file, "Path"));
        const char *sum = json_string_value(json_object_get(file, "Sha256"));
        TRY(take_file(l, path, json_object_get(file, "Size"), sum, false, d));
        sha256_absorb_text(&all, path);
        if (sum) sha256_absorb_text(&all, sum);
    }
    for (i = 0; i < 20; i++) {
        l->commit[2 * i] = digits[all.bytes[i] >> 4];
        l->commit[2 * i + 1] = digits[all.bytes[i] & 15];
    }
    return FATHOM_OK;
}

uint64_t listing_bytes(const struct hub_listing *l)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < l->n_file; i++) sum += l->files[i].size;
    return sum;
}

void listing_free(struct hub_listing *l)
{
    json_decref(l->tree);
    mem_free(l->files);
    memset(l, 0, sizeof *l);
}
