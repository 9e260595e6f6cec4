/* wide_model.c - a checkpoint made from its config.json and header */
#include "golden/wide_model.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/limits.h"
#include "base/mem.h"
#include "base/os.h"
#include "checkpoint/safetensors.h"
#include "support/safetensors_write.h"

static bool ends_with(const char *name, const char *end)
{
    size_t n = strlen(name), m = strlen(end);
    return n >= m && strcmp(name + n - m, end) == 0;
}

/* n bytes that depend on `key` alone: splitmix64 from its FNV-1a hash. */
static void random_bytes(const char *key, uint8_t *out, size_t n)
{
    uint64_t seed = UINT64_C(0xcbf29ce484222325);
    for (; *key; key++) seed = (seed ^ (uint8_t)*key) * UINT64_C(0x100000001b3);
    for (size_t i = 0; i < n; i++) {
        uint64_t word = seed + (i / 8 + 1) * UINT64_C(0x9e3779b97f4a7c15);
        word = (word ^ word >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
        word = (word ^ word >> 27) * UINT64_C(0x94d049bb133111eb);
        word ^= word >> 31;
        out[i] = (uint8_t)(word >> 8 * (i % 8));
    }
}

/* The smallest e with 4^e >= cols: 2^-e keeps a product's size over a row of cols. */
static int half_log2(uint64_t cols)
{
    int e = 0;
    while (UINT64_C(1) << 2 * e < cols) e++;
    return e;
}

static uint64_t n_element(const struct tensor *t)
{
    uint64_t n = 1;
    for (uint32_t i = 0; i < t->n_dim; i++) n *= t->dim[i];
    return n;
}

/* Columns of the weight that `scales` belongs to. */
static uint64_t cols_of_scaled(const struct safetensors *file, const struct tensor *scales)
{
    size_t n = strlen(scales->name) - strlen("_scale_inv");
    for (size_t i = 0; i < file->n_tensor; i++) {
        const struct tensor *t = &file->tensors[i];
        if (strncmp(t->name, scales->name, n) == 0 && t->name[n] == 0) return t->dim[1];
    }
    fail_msg("%s has no weight", scales->name);
    return 0;
}

/* centre + k * 2^exponent, k = a signed byte / 2^shift rounded down; exact in bf16. */
static float plain_value(const struct tensor *t, uint8_t byte)
{
    int k = byte < 128 ? byte : byte - 256;
    if (ends_with(t->name, "norm.weight")) return 1 + (float)((k + 128) / 16 - 8) / 64;
    if (ends_with(t->name, "k_norm.bias")) return ldexpf((float)k, -10);
    if (ends_with(t->name, "e_score_correction_bias")) return ldexpf((float)k, -11);
    if (ends_with(t->name, "embed_tokens.weight")) return ldexpf((float)k, -4);
    return ldexpf((float)k, -6 - half_log2(t->dim[1]));
}

static void fill(const struct safetensors *file, const struct tensor *t, uint8_t *out)
{
    size_t n = n_element(t);
    uint8_t *random = mem_alloc(n);
    assert_non_null(random);
    random_bytes(t->name, random, n);
    bool is_scale = ends_with(t->name, "_scale_inv");
    int e = is_scale ? half_log2(cols_of_scaled(file, t)) : 0;
    for (size_t i = 0; i < n; i++) {
        if (t->dtype == DTYPE_F8_E4M3) { /* four binades of either sign, 0.5 to 7.5 */
            out[i] = (random[i] & 0x80) | (0x30 + (random[i] & 0x1f));
            continue;
        }
        float value = is_scale ? ldexpf(1, -1 - e - (random[i] & 1)) : plain_value(t, random[i]);
        uint32_t bits;
        memcpy(&bits, &value, sizeof bits);
        if (t->dtype == DTYPE_F32) {
            memcpy(out + 4 * i, &bits, 4);
        } else {
            assert_int_equal(bits & 0xffff, 0);
            memcpy(out + 2 * i, (uint8_t *)&bits + 2, 2);
        }
    }
    mem_free(random);
}

static void path_in(char *out, const char *dir, const char *name)
{
    assert_int_equal(path_join(out, LIMIT_PATH_BYTES, dir, name), FATHOM_OK);
}

bool wide_model_is_header(const char *dir)
{
    char path[LIMIT_PATH_BYTES];
    path_in(path, dir, "model.header.json");
    return path_exists(path);
}

/* The end of the data: the largest of the header's offsets. */
static size_t data_bytes(const char *header, size_t n)
{
    size_t largest = 0, value = 0;
    const char *end = header + n;
    for (const char *p = header; p < end; p++) {
        value = *p >= '0' && *p <= '9' ? value * 10 + (size_t)(*p - '0') : 0;
        if (p + 1 < end && p[1] == ']' && value > largest) largest = value;
    }
    return largest;
}

void wide_model_write(const char *dir, const char *out)
{
    fathom_diag d = {{0}};
    char path[LIMIT_PATH_BYTES];
    struct file_map map;
    path_in(path, dir, "config.json");
    assert_int_equal(file_map_open(&map, path, &d), FATHOM_OK);
    save_file(out, "config.json", map.data, map.size);
    file_map_close(&map);

    path_in(path, dir, "model.header.json");
    assert_int_equal(file_map_open(&map, path, &d), FATHOM_OK);
    size_t n = 8 + map.size + data_bytes((const char *)map.data, map.size);
    uint8_t *whole = mem_calloc(n, 1);
    assert_non_null(whole);
    uint64_t n_header = map.size;
    memcpy(whole, &n_header, 8);
    memcpy(whole + 8, map.data, map.size);
    struct safetensors file;
    if (safetensors_parse(&file, whole, n, path, &d) != FATHOM_OK) fail_msg("%s", d.text);
    for (size_t i = 0; i < file.n_tensor; i++) {
        const struct tensor *t = &file.tensors[i];
        fill(&file, t, whole + ((const uint8_t *)t->data - whole));
    }
    save_file(out, "model.safetensors", whole, n);
    safetensors_free(&file);
    mem_free(whole);
    file_map_close(&map);
}
