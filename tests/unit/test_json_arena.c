/* test_json_arena.c - trees that are bounded, and given back as a whole */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include <pthread.h>

#include "base/fail.h"
#include "base/json.h"
#include "base/json_arena.h"
#include "base/limits.h"
#include "base/mem.h"
#include "support/resident.h"

static const char *const id_keys[] = {"prompt", NULL};

static struct json_arena *open_arena(size_t limit)
{
    struct json_arena *a;
    assert_int_equal(json_arena_create(&a, limit), FATHOM_OK);
    assert_null(json_arena_enter(a));
    return a;
}

static void close_arena(struct json_arena *a)
{
    assert_ptr_equal(json_arena_enter(NULL), a);
    json_arena_destroy(a);
}

/* `begin`, then a unit until the text has `bytes`, then `end`. */
static struct buf make_text(const char *begin, const char *unit, const char *end, size_t bytes)
{
    struct buf b = {0};
    size_t n = strlen(unit);
    assert_int_equal(buf_reserve(&b, bytes + 64), FATHOM_OK);
    (void)buf_add_str(&b, begin);
    while (b.len + n + strlen(end) < bytes) (void)buf_add(&b, unit, n);
    assert_int_equal(buf_add_str(&b, end), FATHOM_OK);
    return b;
}

static void a_tree_is_given_back_as_a_whole(void **state)
{
    (void)state;
    struct json_arena *a = open_arena(64 << 20);
    struct buf b = make_text("[", "{\"a\":[1,\"x\"]},", "1]", 1 << 20);
    json_t *v;
    fathom_diag d = {{0}};
    size_t before = resident_bytes();
    assert_int_equal(json_read(b.data, b.len, "test", &v, &d), FATHOM_OK);
    assert_true(json_arena_holds(v) && json_arena_holds(json_array_get(v, 0)));
    size_t used = json_arena_used(a);
    assert_true(used > b.len && json_arenas_used() >= used);
    size_t during = resident_bytes();
    close_arena(a); /* and nobody has released the tree */
    assert_int_equal(json_arenas_used(), 0);
    if (KEEPS_FREED_MEMORY) {
        print_message("no check of resident memory: a sanitizer has memory of its own\n");
    } else {
        assert_true(during - before > used / 2);
        assert_true(resident_bytes() - before < used / 4 + (3 << 20));
    }
    buf_free(&b);
}

static void *drop(void *v)
{
    json_decref(v);
    return NULL;
}

static void a_value_knows_where_it_belongs(void **state)
{
    (void)state;
    json_t *heap = json_pack("[i, s]", 1, "two");
    struct json_arena *a = open_arena(1 << 20);
    json_t *own = json_pack("[i, s]", 1, "two");
    assert_true(json_arena_holds(own) && !json_arena_holds(heap));
    assert_int_equal(json_array_append(own, heap), 0);
    json_decref(heap); /* the second reference */
    json_t *kept = json_incref(heap);
    pthread_t t;
    assert_int_equal(pthread_create(&t, NULL, drop, own), 0); /* a thread without an arena */
    assert_int_equal(pthread_join(t, NULL), 0);
    assert_null(json_arena_enter(NULL) == a ? NULL : a);
    json_t *copy = json_copy_tree(kept);
    assert_false(json_arena_holds(copy));
    assert_true(json_equal(copy, kept));
    json_decref(copy);
    json_decref(kept);
    json_arena_destroy(a);
}

/* What a body may take and what a small one takes anyway. */
static void assert_bounded(const char *begin, const char *unit, const char *end, bool fits)
{
    const size_t bytes = 2 << 20;
    struct json_arena *a = open_arena(LIMIT_JSON_LEAST_BYTES);
    struct buf b = make_text(begin, unit, end, bytes);
    json_t *v = NULL;
    fathom_diag d = {{0}};
    json_arena_note_text(a, b.len);
    fathom_err err = json_read_with_ids(b.data, b.len, "request body", id_keys, &v, &d);
    assert_true(json_arena_used(a) <= LIMIT_JSON_LEAST_BYTES + LIMIT_JSON_FACTOR * b.len);
    if (fits) {
        if (err) fail_msg("%s: %s", unit, d.text);
    } else {
        assert_int_equal(err, FATHOM_ELIMIT);
        assert_int_equal(json_arena_fault(a), JSON_ARENA_OVER);
        assert_non_null(strstr(d.text, "send fewer and longer values"));
        assert_non_null(strstr(d.text, "8 for each byte and 4 MiB"));
    }
    buf_free(&b);
    close_arena(a);
}

static void a_tree_is_at_most_eight_times_its_text(void **state)
{
    (void)state;
    assert_bounded("{\"user\":[", "[],", "1]}", false);
    assert_bounded("{\"user\":[", "{},", "1]}", false);
    assert_bounded("{\"user\":[", "{\"\":0},", "1]}", false);
    assert_bounded("{\"user\":[", "1,", "1]}", false);
    assert_bounded("{\"user\":[", "\"\",", "1]}", false);
    assert_bounded("{\"user\":[", "[[[[]]]],", "1]}", false);
    assert_bounded("{\"user\":[", "12345678901234567890,", "1]}", false);

    assert_bounded("{\"prompt\":[", "1,", "1]}", true);
    assert_bounded("{\"prompt\":[", "[1 , 2],", "[3]]}", false); /* an array of its own for each */
    assert_bounded("{\"prompt\":[", "104729,", "1]}", true);
    assert_bounded("{\"prompt\":\"", "a text of many words\\n", "\"}", true);
    assert_bounded("{\"messages\":[",
                   "{\"role\":\"user\",\"content\":\"Some words, as they come in a chat\"},", "1]}",
                   true);
    assert_bounded(
        "{\"tools\":[",
        "{\"type\":\"function\",\"function\":{\"name\":\"get_weather\",\"description\":"
        "\"The weather at a place, now or up to ten days ahead of now\",\"parameters\":"
        "{\"type\":\"object\",\"properties\":{\"city\":{\"type\":\"string\","
        "\"description\":\"The place, with its country\"},\"days\":{\"type\":\"integer\","
        "\"description\":\"How many days ahead\"}},\"required\":[\"city\"]}}},",
        "1]}", true);
}

static void what_was_made_since_a_mark_is_given_back(void **state)
{
    (void)state;
    struct json_arena *a = open_arena(LIMIT_JSON_TREE_BYTES);
    struct buf b = make_text("[", "{\"a\":\"x\"},", "1]", 100000);
    fathom_diag d = {{0}};
    json_t *kept, *v;
    assert_int_equal(json_read("{\"kept\":[1,2]}", 14, "test", &kept, &d), FATHOM_OK);
    size_t used = json_arena_used(a), all = json_arenas_used();
    for (int i = 0; i < 300; i++) { /* each takes some MiB */
        const struct json_arena_mark mark = json_arena_take_mark();
        if (json_read(b.data, b.len, "test", &v, &d)) fail_msg("%d: %s", i, d.text);
        json_decref(v);
        json_arena_rewind(&mark);
        assert_int_equal(json_arena_used(a), used);
        assert_int_equal(json_arenas_used(), all);
    }
    json_t *more = json_pack("[i]", 3);
    assert_int_equal(json_object_set_new(kept, "more", more), 0);
    assert_int_equal(json_integer_value(json_array_get(json_object_get(kept, "kept"), 1)), 2);
    close_arena(a);
    const struct json_arena_mark none = json_arena_take_mark();
    json_arena_rewind(&none);
    buf_free(&b);
}

static void an_object_has_a_bounded_number_of_members(void **state)
{
    (void)state;
    struct buf b = {0};
    (void)buf_add_char(&b, '{');
    for (int i = 0; i < LIMIT_JSON_MEMBERS; i++) (void)buf_printf(&b, "\"%x\":null,", i);
    size_t n_fit = b.len;
    (void)buf_add_str(&b, "\"z\":null}");
    json_t *v;
    fathom_diag d = {{0}};
    struct json_arena *a = open_arena(64 << 20);
    assert_int_equal(json_read(b.data, b.len, "test", &v, &d), FATHOM_ELIMIT);
    assert_non_null(strstr(d.text, "more than 65536 members"));
    b.data[n_fit - 1] = '}';
    assert_int_equal(json_read(b.data, n_fit, "test", &v, &d), FATHOM_OK);
    assert_int_equal(json_object_size(v), LIMIT_JSON_MEMBERS);
    close_arena(a);
    b.data[n_fit - 1] = ','; /* a checkpoint's file is not a request */
    assert_int_equal(json_read(b.data, b.len, "test", &v, &d), FATHOM_OK);
    json_decref(v);
    buf_free(&b);
}

static void ids_are_numbers_of_four_bytes(void **state)
{
    (void)state;
    static const char text[] = "{\"prompt\":[ 0, 7 ,2147483647],\"other\":[1,2]}";
    json_t *v;
    size_t n;
    fathom_diag d = {{0}};
    struct buf b = {0};
    assert_int_equal(json_read_with_ids(text, strlen(text), "test", id_keys, &v, &d), FATHOM_OK);
    const json_t *prompt = json_object_get(v, "prompt");
    const int32_t *ids = json_ids(prompt, &n);
    assert_int_equal(n, 3);
    assert_int_equal(ids[0], 0);
    assert_int_equal(ids[1], 7);
    assert_int_equal(ids[2], INT32_MAX);
    assert_string_equal(json_type_text(prompt), "an array");
    assert_true(json_is_array(json_object_get(v, "other")));
    assert_null(json_ids(json_object_get(v, "other"), &n));
    assert_int_equal(json_write(&b, v), FATHOM_OK);
    assert_string_equal(buf_str(&b), "{\"prompt\":[0,7,2147483647],\"other\":[1,2]}");
    buf_free(&b);
    json_decref(v);
}

/* Whatever is not ids alone is read as it is elsewhere, with the same errors. */
static void what_is_no_id_makes_an_array(void **state)
{
    (void)state;
    static const char *const arrays[] = {"[]",         "[-1]",      "[1,3.0]", "[1,2147483648]",
                                         "[1,[2,3]]",  "[1,\"a\"]", "[1e3]",   "[null]",
                                         "[1,2,true]", "[[1],[2]]"};
    static const char *const wrong[] = {"[1,]", "[01]", "[1 2]", "[1", "[1,2", "[,1]", "[1}"};
    fathom_diag d = {{0}}, e = {{0}};
    json_t *v;
    size_t n;
    char text[64];
    for (size_t i = 0; i < sizeof arrays / sizeof arrays[0]; i++) {
        (void)snprintf(text, sizeof text, "{\"prompt\":%s}", arrays[i]);
        struct buf b = {0};
        if (json_read_with_ids(text, strlen(text), "test", id_keys, &v, &d)) fail_msg("%s", d.text);
        const json_t *prompt = json_object_get(v, "prompt");
        assert_true(json_is_array(prompt) && !json_ids(prompt, &n));
        if (i != 6) { /* 1e3 is written as 1000.0 */
            assert_int_equal(json_write(&b, v), FATHOM_OK);
            assert_string_equal(buf_str(&b), text);
        }
        buf_free(&b);
        json_decref(v);
    }
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        (void)snprintf(text, sizeof text, "{\"prompt\":%s}", wrong[i]);
        assert_int_equal(json_read_with_ids(text, strlen(text), "test", id_keys, &v, &d),
                         FATHOM_EFORMAT);
        assert_int_equal(json_read(text, strlen(text), "test", &v, &e), FATHOM_EFORMAT);
        assert_string_equal(d.text, e.text);
    }
}

static void arenas_together_are_bounded(void **state)
{
    (void)state;
    enum { N = 64, BLOCK_BYTES = 32 << 20 };
    struct json_arena *a[N];
    json_malloc_t alloc;
    json_free_t release;
    fathom_diag d = {{0}};
    json_t *v;
    size_t n = 0;
    bool has_room = true;
    for (; n < N && has_room; n++) {
        assert_int_equal(json_arena_create(&a[n], LIMIT_JSON_TREE_BYTES), FATHOM_OK);
        (void)json_arena_enter(a[n]);
        json_get_alloc_funcs(&alloc, &release); /* memory that is not touched */
        has_room = alloc(BLOCK_BYTES) != NULL;
        (void)json_arena_enter(NULL);
    }
    assert_true(n > LIMIT_JSON_TREES_BYTES / BLOCK_BYTES / 2 && !has_room);
    assert_int_equal(json_arena_fault(a[n - 1]), JSON_ARENA_FULL);
    (void)json_arena_enter(a[n - 1]);
    while (alloc(8)) {
    }
    assert_int_equal(json_read("[1]", 3, "request body", &v, &d), FATHOM_EBUSY);
    assert_non_null(strstr(d.text, "try again later"));
    assert_true(json_arenas_used() <= LIMIT_JSON_TREES_BYTES);
    (void)json_arena_enter(NULL);
    json_arena_destroy(a[0]); /* somebody is done */
    a[0] = open_arena(LIMIT_JSON_LEAST_BYTES);
    assert_int_equal(json_read("[1]", 3, "request body", &v, &d), FATHOM_OK);
    (void)json_arena_enter(NULL);
    for (size_t i = 0; i < n; i++) json_arena_destroy(a[i]);
    assert_int_equal(json_arenas_used(), 0);
}

static void an_allocation_that_fails_is_told(void **state)
{
    (void)state;
    static const char text[] = "{\"prompt\":[1,2,3],\"a\":[{\"b\":\"\\n\"},12345678901234567890]}";
    fathom_err err = FATHOM_ENOMEM;
    for (long i = 0; err; i++) {
        struct json_arena *a = open_arena(1 << 20);
        fathom_diag d = {{0}};
        json_t *v = NULL, *copy = NULL;
        mem_fail_after(i);
        err = json_read_with_ids(text, strlen(text), "test", id_keys, &v, &d);
        if (!err && !(copy = json_copy_tree(json_object_get(v, "a")))) err = FATHOM_ENOMEM;
        assert_int_equal(mem_fail_hit(), err != FATHOM_OK);
        mem_fail_after(-1);
        if (err) assert_int_equal(err, FATHOM_ENOMEM);
        assert_int_equal(json_arena_fault(a), JSON_ARENA_FINE);
        close_arena(a);
        assert_true(i < 1000);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_tree_is_given_back_as_a_whole),
        cmocka_unit_test(a_value_knows_where_it_belongs),
        cmocka_unit_test(a_tree_is_at_most_eight_times_its_text),
        cmocka_unit_test(what_was_made_since_a_mark_is_given_back),
        cmocka_unit_test(an_object_has_a_bounded_number_of_members),
        cmocka_unit_test(ids_are_numbers_of_four_bytes),
        cmocka_unit_test(what_is_no_id_makes_an_array),
        cmocka_unit_test(arenas_together_are_bounded),
        cmocka_unit_test(an_allocation_that_fails_is_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
