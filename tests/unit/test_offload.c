/* test_offload.c - what tells the pages of two models apart */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/limits.h"
#include "checkpoint/checkpoint.h"
#include "engine/offload.h"
#include "support/safetensors_write.h"

enum { N_TENSOR = 3000, N_VALUE = 200 };

static char dir[LIMIT_PATH_BYTES];

/* A checkpoint of N_TENSOR vectors of zeros, but for the one of this number: ones. -1: none */
static void save_model(int odd)
{
    struct safetensors_writer w = {0};
    uint8_t ones[N_VALUE];
    const uint64_t n = N_VALUE;
    memset(ones, 1, sizeof ones);
    for (int i = 0; i < N_TENSOR; i++) {
        char name[32];
        (void)snprintf(name, sizeof name, "tensor.%d", i);
        safetensors_add(&w, name, "F8_E4M3", 1, &n, i == odd ? ones : NULL, N_VALUE);
    }
    safetensors_save(&w, 0, dir, "model.safetensors");
}

static struct hash128 identify(enum kv_type type, const char *numerics)
{
    struct checkpoint *c = NULL;
    struct kv_layout layout;
    fathom_diag d = {{0}};
    kv_layout_init(&layout, type, 4, true);
    if (checkpoint_open(&c, dir, &d) != FATHOM_OK) fail_msg("%s", d.text);
    struct hash128 h = offload_identify(c, &layout, numerics);
    checkpoint_close(c);
    return h;
}

static bool same(const struct hash128 *a, const struct hash128 *b)
{
    return memcmp(a, b, sizeof *a) == 0;
}

static void one_tensor_of_thousands_makes_another_model(void **state)
{
    (void)state;
    static const int odd[] = {0, 1, 2, 1024, 1777, N_TENSOR - 1};
    save_model(-1);
    const struct hash128 plain = identify(KV_TYPE_BF16, "x");
    struct hash128 before = plain;
    for (size_t i = 0; i < sizeof odd / sizeof *odd; i++) {
        save_model(odd[i]);
        struct hash128 other = identify(KV_TYPE_BF16, "x");
        assert_false(same(&other, &plain));
        assert_false(same(&other, &before));
        before = other;
    }
    save_model(-1);
    const struct hash128 again = identify(KV_TYPE_BF16, "x");
    assert_true(same(&again, &plain));
}

static void configuration_cache_and_numerics_count(void **state)
{
    (void)state;
    save_model(-1);
    const struct hash128 plain = identify(KV_TYPE_BF16, "x");
    const struct hash128 type = identify(KV_TYPE_FP8, "x");
    const struct hash128 numerics = identify(KV_TYPE_BF16, "y");
    assert_false(same(&type, &plain));
    assert_false(same(&numerics, &plain));
    save_text(dir, "config.json", "{}");
    const struct hash128 config = identify(KV_TYPE_BF16, "x");
    assert_false(same(&config, &plain));
}

static int make_dir(void **state)
{
    (void)state;
    temp_dir_create(dir);
    return 0;
}

static int drop_dir(void **state)
{
    (void)state;
    temp_dir_remove(dir);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_tensor_of_thousands_makes_another_model),
        cmocka_unit_test(configuration_cache_and_numerics_count),
    };
    return cmocka_run_group_tests(tests, make_dir, drop_dir);
}
