/* test_chat_shapes.c - tool calls in every form and cut: what the answer says comes out, each
 * part in its field */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/json.h"
#include "chat/chat_int.h"
#include "support/chat_answer.h"
#include "support/chat_shape.h"

enum { N_STEP = 16, N_RANDOM = 24, N_SHAPE_MIN = 200 };

struct run {
    struct shape shape;
    struct chat_style style;
    struct answer_input in;
};

static void run_open(struct run *r, enum chat_encoding markup, size_t number)
{
    shape_make(&r->shape, markup, number);
    r->style = (struct chat_style){
        .encoding = markup, .tool_markup = markup, .parse_tools = true, .parse_reasoning = true};
    r->in = (struct answer_input){.style = &r->style,
                                  .thinking = r->shape.thinking,
                                  .tools = r->shape.tools,
                                  .text = buf_str(&r->shape.text),
                                  .n = r->shape.text.len};
}

static void show(const struct run *r, const struct answer *a)
{
    print_error("%s\ntext: %s\ngot:  %s\n", r->shape.label, r->in.text, buf_str(&a->log));
}

static bool same_arguments(const struct shape *s, const struct answer *a, uint32_t i)
{
    const json_t *call = json_array_get(s->calls, i);
    json_t *got = NULL;
    fathom_diag d = {0};
    if (json_read(buf_str(&a->args[i]), a->args[i].len, "arguments", &got, &d)) return false;
    bool same = json_equal(got, json_object_get(call, "arguments"));
    json_decref(got);
    if (s->args[i].len) same &= strcmp(buf_str(&s->args[i]), buf_str(&a->args[i])) == 0;
    return same;
}

static bool same_name(const struct shape *s, const struct answer *a, uint32_t i)
{
    const char *name = json_string_value(json_object_get(json_array_get(s->calls, i), "name"));
    return strcmp(buf_str(&a->names[i]), name) == 0;
}

static bool says_all(const struct run *r, const struct answer *a)
{
    const struct shape *s = &r->shape;
    bool same = a->n_call == json_array_size(s->calls);
    same &= strcmp(buf_str(&a->content), buf_str(&s->content)) == 0;
    same &= strcmp(buf_str(&a->reasoning), buf_str(&s->reasoning)) == 0;
    for (uint32_t i = 0; same && i < a->n_call; i++) {
        same = same_name(s, a, i) && same_arguments(s, a, i);
    }
    return same;
}

static void check_cut(const struct run *r, const struct answer *whole, enum answer_cut cut,
                      uint64_t n)
{
    struct answer a;
    assert_int_equal(answer_run(&a, &r->in, cut, n), FATHOM_OK);
    if (strcmp(buf_str(&a.log), buf_str(&whole->log)) != 0) {
        show(r, &a);
        fail_msg("cut %d at %llu differs", cut, (unsigned long long)n);
    }
    answer_free(&a);
}

static void streams_whole(enum chat_encoding markup)
{
    size_t n_shape = shape_count(markup), n_cut = 0;
    assert_true(n_shape >= N_SHAPE_MIN);
    for (size_t i = 0; i < n_shape; i++) {
        struct run r;
        struct answer whole;
        run_open(&r, markup, i);
        assert_int_equal(answer_run(&whole, &r.in, ANSWER_WHOLE, 0), FATHOM_OK);
        if (!says_all(&r, &whole)) {
            show(&r, &whole);
            fail_msg("lost or misfiled");
        }
        for (size_t k = 1; k < r.in.n; k++) check_cut(&r, &whole, ANSWER_TWO, k);
        for (size_t k = 1; k <= N_STEP; k++) check_cut(&r, &whole, ANSWER_STEPS, k);
        for (size_t k = 0; k < N_RANDOM; k++) check_cut(&r, &whole, ANSWER_RANDOM, k);
        n_cut += r.in.n - 1 + N_STEP + N_RANDOM;
        answer_free(&whole);
        shape_free(&r.shape);
    }
    print_message("  %s: %zu shapes, %zu streams\n", chat_encoding_name(markup), n_shape, n_cut);
}

/* ---- the stream ends too early ------------------------------------------------------------- */

/* The beginning of the full text, then maybe a marker's beginning or markup that is no call yet:
 * it counts as text. */
static bool begins(const struct run *r, size_t n, const struct buf *full, const struct buf *got)
{
    for (size_t k = 0; k <= got->len && k <= full->len; k++) {
        size_t n_tail = got->len - k;
        if (memcmp(buf_str(got), buf_str(full), k) != 0) return false;
        if (n_tail <= n && memcmp(buf_str(got) + k, r->in.text + n - n_tail, n_tail) == 0) {
            return true;
        }
    }
    return false;
}

/* Calls that were complete are whole, one that has begun has arguments that are an object, and
 * text is the beginning of what there is. */
static bool says_so_far(const struct run *r, const struct answer *a, size_t n)
{
    const struct shape *s = &r->shape;
    uint32_t n_begun = 0;
    while (n_begun < json_array_size(s->calls) && s->begins[n_begun] <= n) n_begun++;
    if (a->n_call < n_begun || a->n_call > n_begun + 1) return false;
    if (!begins(r, n, &s->reasoning, &a->reasoning)) return false;
    if (!begins(r, n, &s->content, &a->content)) return false;
    for (uint32_t i = 0; i < a->n_call; i++) {
        json_t *got = NULL;
        fathom_diag d = {0};
        if (!same_name(s, a, i)) return false;
        if (json_read(buf_str(&a->args[i]), a->args[i].len, "arguments", &got, &d)) return false;
        bool object = json_is_object(got);
        json_decref(got);
        if (!object || (s->ends[i] <= n && !same_arguments(s, a, i))) return false;
    }
    return true;
}

static void ends_early(enum chat_encoding markup)
{
    for (size_t i = 0; i < shape_count(markup); i++) {
        struct run r;
        run_open(&r, markup, i);
        size_t n_text = r.in.n;
        for (size_t n = 0; n < n_text; n++) {
            struct answer a;
            if ((r.in.text[n] & 0xC0) == 0x80) continue; /* tokens of text end with characters */
            r.in.n = n;
            assert_int_equal(answer_run(&a, &r.in, ANSWER_WHOLE, 0), FATHOM_OK);
            if (!says_so_far(&r, &a, n)) {
                show(&r, &a);
                fail_msg("cut short at %zu of %zu", n, n_text);
            }
            if (n % 7 == i % 7) check_cut(&r, &a, ANSWER_STEPS, 1);
            answer_free(&a);
        }
        shape_free(&r.shape);
    }
}

static void v3_streams_whole(void **state)
{
    (void)state;
    streams_whole(CHAT_ENCODING_V3);
}

static void v31_streams_whole(void **state)
{
    (void)state;
    streams_whole(CHAT_ENCODING_V31);
}

static void v32_streams_whole(void **state)
{
    (void)state;
    streams_whole(CHAT_ENCODING_V32);
}

static void kimi_streams_whole(void **state)
{
    (void)state;
    streams_whole(CHAT_ENCODING_KIMI_K2);
}

static void v3_ends_early(void **state)
{
    (void)state;
    ends_early(CHAT_ENCODING_V3);
}

static void v31_ends_early(void **state)
{
    (void)state;
    ends_early(CHAT_ENCODING_V31);
}

static void v32_ends_early(void **state)
{
    (void)state;
    ends_early(CHAT_ENCODING_V32);
}

static void kimi_ends_early(void **state)
{
    (void)state;
    ends_early(CHAT_ENCODING_KIMI_K2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(v3_streams_whole),   cmocka_unit_test(v31_streams_whole),
        cmocka_unit_test(v32_streams_whole),  cmocka_unit_test(v3_ends_early),
        cmocka_unit_test(v31_ends_early),     cmocka_unit_test(v32_ends_early),
        cmocka_unit_test(kimi_streams_whole), cmocka_unit_test(kimi_ends_early)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
