/* test_key_ring.c - which keys are taken, whose they are, and what keeps tenants apart */
#include "server/key_ring.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#include "base/fail.h"
#include "base/mem.h"
#include "server/served.h"

static struct key_ring *open_ring(const struct key_list *list)
{
    struct key_ring *r;
    fathom_diag d;
    assert_int_equal(key_ring_create(&r, list, &d), FATHOM_OK);
    return r;
}

static void a_key_is_any_of_the_keys(void **state)
{
    (void)state;
    static const char *const keys[] = {"first", "second"};
    struct key_ring *r = open_ring(&(struct key_list){keys, NULL, 2});
    uint32_t n = 9;
    assert_true(key_ring_find(r, "first", &n));
    assert_int_equal(n, 0);
    assert_true(key_ring_find(r, "second", &n));
    assert_int_equal(n, 1);
    static const char *const bad[] = {NULL, "", "firs", "firstt", "firstfirst", "third"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_false(key_ring_find(r, bad[i], &n));
    }
    assert_int_equal(key_ring_n(r), 2);
    assert_int_equal(key_ring_n_tenant(r), 2);
    key_ring_destroy(r);
    r = open_ring(&(struct key_list){0});
    assert_true(key_ring_find(r, NULL, &n) && key_ring_find(r, "x", &n));
    assert_int_equal(n, 0);
    key_ring_destroy(r);
    key_ring_destroy(NULL);
}

static void what_cannot_be_a_key_is_refused_without_its_text(void **state)
{
    (void)state;
    static const char *const bad[] = {"", "se cret", "secret\n", "sec\tret", "s\x7f", "s\xc3\xa9"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        const char *const keys[] = {"good", bad[i]};
        struct key_ring *r;
        fathom_diag d;
        diag_clear(&d);
        assert_int_equal(key_ring_create(&r, &(struct key_list){keys, NULL, 2}, &d), FATHOM_EINVAL);
        assert_non_null(strstr(d.text, "API key 2 "));
        assert_null(strstr(d.text, "cret"));
        assert_null(r);
    }
}

static void keys_of_one_tenant_are_one(void **state)
{
    (void)state;
    static const char *const keys[] = {"a", "b", "c", "d"};
    static const char *const tenants[] = {"acme", NULL, "acme", "b"};
    struct key_ring *r = open_ring(&(struct key_list){keys, tenants, 4});
    uint32_t t[4];
    for (size_t i = 0; i < 4; i++) assert_true(key_ring_find(r, keys[i], &t[i]));
    assert_int_equal(t[0], t[2]);
    assert_int_not_equal(t[0], t[1]);
    assert_int_not_equal(t[1], t[3]); /* a name is no key */
    assert_int_equal(key_ring_n_tenant(r), 3);
    key_ring_destroy(r);
}

static void tenants_keep_their_numbers_and_salts(void **state)
{
    (void)state;
    static const char *const before[] = {"a", "b"};
    static const char *const after[] = {"c", "b"};
    uint32_t b, c;
    struct key_ring *r = open_ring(&(struct key_list){before, NULL, 2});
    assert_true(key_ring_find(r, "b", &b));
    uint64_t salt = key_ring_salt(r, b);
    fathom_diag d;
    assert_int_equal(key_ring_replace(r, &(struct key_list){after, NULL, 2}, &d), FATHOM_OK);
    assert_false(key_ring_find(r, "a", &c));
    assert_true(key_ring_find(r, "c", &c));
    assert_int_equal(c, 2); /* never a's number */
    assert_true(key_ring_find(r, "b", &c));
    assert_int_equal(c, b);
    assert_true(key_ring_salt(r, b) == salt && salt != key_ring_salt(r, 2));
    /* not opened, and nothing lost by an error */
    assert_int_equal(key_ring_replace(r, &(struct key_list){0}, &d), FATHOM_EINVAL);
    static const char *const empty[] = {"x", ""};
    assert_int_equal(key_ring_replace(r, &(struct key_list){empty, NULL, 2}, &d), FATHOM_EINVAL);
    assert_true(key_ring_find(r, "b", &c) && !key_ring_find(r, NULL, &c));
    assert_int_equal(key_ring_n_tenant(r), 2);
    key_ring_destroy(r);
    r = open_ring(&(struct key_list){before + 1, NULL, 1}); /* a new start */
    assert_true(key_ring_salt(r, 0) == salt);
    key_ring_destroy(r);
}

static void prompts_are_shared_as_the_operator_says(void **state)
{
    (void)state;
    static const char *const keys[] = {"a", "b"};
    static const struct {
        int sharing;
        size_t n_key;
        bool apart;
    } cases[] = {{PREFIXES_AUTO, 2, true},
                 {PREFIXES_AUTO, 1, false},
                 {PREFIXES_ALL, 2, false},
                 {PREFIXES_BY_KEY, 1, true},
                 {PREFIXES_AUTO, 0, false}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct served s = {.o.prefix_sharing = cases[i].sharing,
                           .keys = open_ring(&(struct key_list){keys, NULL, cases[i].n_key})};
        assert_int_equal(served_salt(&s, 0, 7) != 7, cases[i].apart);
        assert_true(!cases[i].apart || served_salt(&s, 0, 7) != served_salt(&s, 0, 8));
        if (cases[i].n_key == 2) {
            assert_int_equal(served_salt(&s, 0, 7) != served_salt(&s, 1, 7), cases[i].apart);
        }
        served_close(&s);
    }
}

/* Every allocation of a ring may fail. */
static void out_of_memory_leaves_nothing(void **state)
{
    (void)state;
    static const char *const keys[] = {"a", "b", "c"};
    struct key_ring *r = NULL;
    fathom_diag d;
    for (long n = 0; !r; n++) {
        mem_fail_after(n);
        fathom_err err = key_ring_create(&r, &(struct key_list){keys, NULL, 3}, &d);
        bool hit = mem_fail_hit();
        mem_fail_after(-1);
        assert_int_equal(err, hit ? FATHOM_ENOMEM : FATHOM_OK);
        assert_true(hit || r);
    }
    key_ring_destroy(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_key_is_any_of_the_keys),
        cmocka_unit_test(what_cannot_be_a_key_is_refused_without_its_text),
        cmocka_unit_test(keys_of_one_tenant_are_one),
        cmocka_unit_test(tenants_keep_their_numbers_and_salts),
        cmocka_unit_test(prompts_are_shared_as_the_operator_says),
        cmocka_unit_test(out_of_memory_leaves_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
