/* test_response_items.c - pages of a response's input items */
#include "server/http/response_items.h"

#include <stdio.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include "support/json_tree.h"

static const char ITEMS[] =
    "[{\"role\":\"user\",\"content\":\"a,]}\\\"{\"},{\"id\":\"own\",\"type\":\"reasoning\","
    "\"summary\""
    ":[{\"id\":1}]},{\"type\":\"function_call\",\"call_id\":\"id\",\"id\":null}]";

/* The page as a tree, and the ids in it. */
static json_t *page_of(const char *query, int status)
{
    struct item_page page;
    struct api_error e = {0};
    struct buf body = {0}, items = {0};
    json_t *tree = NULL;
    (void)buf_add_str(&items, ITEMS);
    fathom_err err = response_page_read(&page, query, &e);
    if (!err) err = response_items_write(&body, "resp_1", &items, &page, &e);
    assert_int_equal(e.status, status);
    assert_int_equal(err, status ? FATHOM_EINVAL : FATHOM_OK);
    if (!err) tree = json_tree_of(buf_str(&body));
    buf_free(&body);
    buf_free(&items);
    return tree;
}

static const char *text_of(const json_t *page, const char *key)
{
    const char *s = json_string_value(json_object_get(page, key));
    return s ? s : "null";
}

static const char *type_of(const json_t *page, size_t i)
{
    return text_of(json_array_get(json_object_get(page, "data"), i), "type");
}

static void test_all_in_both_orders(void **state)
{
    (void)state;
    json_t *up = page_of("order=asc", 0), *down = page_of("", 0);
    assert_int_equal(json_array_size(json_object_get(up, "data")), 3);
    assert_string_equal(type_of(up, 0), "message");
    assert_string_equal(type_of(up, 1), "reasoning");
    assert_string_equal(type_of(up, 2), "function_call");
    assert_string_equal(type_of(down, 0), "function_call");
    assert_string_equal(text_of(up, "first_id"), text_of(down, "last_id"));
    assert_string_equal(text_of(up, "last_id"), text_of(down, "first_id"));
    assert_false(json_is_true(json_object_get(up, "has_more")));
    const json_t *first = json_array_get(json_object_get(up, "data"), 0);
    assert_string_equal(text_of(first, "content"), "a,]}\"{");
    assert_string_equal(text_of(first, "id"), text_of(up, "first_id"));
    assert_int_equal(json_object_size(json_array_get(json_object_get(up, "data"), 2)), 3);
    json_decref(up);
    json_decref(down);
}

static void test_a_page_at_a_time(void **state)
{
    (void)state;
    char query[80] = "order=asc&limit=1";
    static const char *const types[] = {"message", "reasoning", "function_call"};
    for (int i = 0; i < 3; i++) {
        json_t *page = page_of(query, 0);
        assert_int_equal(json_array_size(json_object_get(page, "data")), 1);
        assert_string_equal(type_of(page, 0), types[i]);
        assert_true(json_is_true(json_object_get(page, "has_more")) == (i < 2));
        (void)snprintf(query, sizeof query, "order=asc&limit=1&after=%s", text_of(page, "last_id"));
        json_decref(page);
    }
    json_t *page = page_of(query, 0);
    assert_int_equal(json_array_size(json_object_get(page, "data")), 0);
    assert_true(json_is_null(json_object_get(page, "last_id")));
    json_decref(page);
}

static void test_refusals(void **state)
{
    (void)state;
    static const char *const queries[] = {"limit=0", "limit=101", "limit=x", "order=up",
                                          "after=item_0"};
    for (int i = 0; i < 5; i++) assert_null(page_of(queries[i], 400));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_in_both_orders),
        cmocka_unit_test(test_a_page_at_a_time),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
