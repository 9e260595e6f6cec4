/* safetensors_write.c - safetensors files and temporary directories */
#define _GNU_SOURCE
#include "support/safetensors_write.h"

#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/json.h"
#include "base/limits.h"
#include "base/os.h"

void safetensors_add(struct safetensors_writer *w, const char *name, const char *dtype,
                     uint32_t n_dim, const uint64_t *dim, const void *bytes, size_t n_bytes)
{
    size_t begin = w->data.len;
    ASSERT(!buf_reserve(&w->data, n_bytes));
    if (bytes) {
        ASSERT(!buf_add(&w->data, bytes, n_bytes));
    } else {
        memset(w->data.data + begin, 0, n_bytes + 1);
        w->data.len += n_bytes;
    }
    if (w->header.len) (void)buf_add_char(&w->header, ',');
    (void)json_write_string(&w->header, name, strlen(name));
    (void)buf_printf(&w->header, ":{\"dtype\":\"%s\",\"shape\":[", dtype);
    for (uint32_t i = 0; i < n_dim; i++) {
        (void)buf_printf(&w->header, "%s%llu", i ? "," : "", (unsigned long long)dim[i]);
    }
    (void)buf_printf(&w->header, "],\"data_offsets\":[%zu,%zu]}", begin, w->data.len);
    ASSERT(!buf_status(&w->header));
}

static void add_length(struct buf *out, uint64_t n)
{
    unsigned char bytes[8];
    for (int i = 0; i < 8; i++) bytes[i] = (unsigned char)(n >> 8 * i);
    ASSERT(!buf_add(out, bytes, sizeof bytes));
}

void safetensors_finish(struct safetensors_writer *w, unsigned residue, struct buf *out)
{
    size_t n = w->header.len + 2;
    size_t n_padded = n;
    while (n_padded % 8 != residue % 8) n_padded++;
    add_length(out, n_padded);
    (void)buf_printf(out, "{%s}%*s", buf_str(&w->header), (int)(n_padded - n), "");
    ASSERT(!buf_add(out, buf_str(&w->data), w->data.len));
    buf_free(&w->header);
    buf_free(&w->data);
}

void safetensors_save(struct safetensors_writer *w, unsigned residue, const char *dir,
                      const char *name)
{
    struct buf out = {0};
    safetensors_finish(w, residue, &out);
    save_file(dir, name, out.data, out.len);
    buf_free(&out);
}

void safetensors_raw(struct buf *out, const char *header, size_t n)
{
    add_length(out, strlen(header));
    ASSERT(!buf_add_str(out, header));
    for (size_t i = 0; i < n; i++) ASSERT(!buf_add_char(out, '\0'));
}

void save_file(const char *dir, const char *name, const void *bytes, size_t n)
{
    char path[LIMIT_PATH_BYTES];
    ASSERT(!path_join(path, sizeof path, dir, name));
    for (char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        if (!path_is_dir(path)) ASSERT(mkdir(path, 0755) == 0);
        *slash = '/';
    }
    FILE *f = fopen(path, "wb");
    ASSERT(f);
    ASSERT(fwrite(bytes ? bytes : "", 1, n, f) == n);
    ASSERT(fclose(f) == 0);
}

void save_text(const char *dir, const char *name, const char *text)
{
    save_file(dir, name, text, strlen(text));
}

void temp_dir_create(char *out)
{
    const char *root = "/tmp";
    (void)snprintf(out, LIMIT_PATH_BYTES, "%s/fathom-test-XXXXXX", root);
    ASSERT(mkdtemp(out));
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    (void)st, (void)type, (void)ftw;
    return remove(path);
}

void temp_dir_remove(const char *dir)
{
    ASSERT(strstr(dir, "/fathom-test-"));
    ASSERT(nftw(dir, remove_one, 16, FTW_DEPTH | FTW_PHYS) == 0);
}
