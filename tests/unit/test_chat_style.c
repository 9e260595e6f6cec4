/* test_chat_style.c - the style of a checkpoint, and what the command line may change */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/os.h"
#include "chat/chat_int.h"

/* What matters of each release's template. */
static const char t_v3[] = "{{bos_token}}{{'<｜Assistant｜>'}}";
static const char t_r1[] = "{% set content = content.split('</think>')[-1] %}"
                           "{{'<｜Assistant｜><think>\\n'}}";
static const char t_r1_0528[] = "{% set content = content.split('</think>')[-1] %}"
                                "{{'<｜Assistant｜>'}}";
static const char t_v31[] = "{% if not thinking is defined %}{{'<think>'}}{{'</think>'}}";
static const char t_v32_made[] = "{{'<｜DSML｜function_calls>'}}{{thinking}}";

static const char t_k2[] = "{{'<|im_user|>user<|im_middle|>'}}";
static const char t_k2_thinking[] = "{{'<|im_user|>user<|im_middle|>'}}<think></think>";

struct guess {
    const char *model_type;
    const char *chat_template;
    struct chat_markers has;
    enum chat_encoding encoding;
    bool model_opens_think;
};

static const struct guess guesses[] = {
    {"deepseek_v3", t_v3, {false, false, false, false}, CHAT_ENCODING_V3, false},
    {"deepseek_v3", t_r1, {false, true, false, false}, CHAT_ENCODING_R1, false},
    {"deepseek_v3", t_r1_0528, {false, true, false, false}, CHAT_ENCODING_R1, true},
    {"deepseek_v3", t_v31, {false, true, true, false}, CHAT_ENCODING_V31, false},
    {"deepseek_v32", t_v31, {false, true, true, false}, CHAT_ENCODING_V31, false},
    {"deepseek_v32", NULL, {true, true, true, false}, CHAT_ENCODING_V32, false},
    {"deepseek_v32", NULL, {false, true, true, false}, CHAT_ENCODING_V32, false},
    {"deepseek_v32", t_v32_made, {false, true, true, false}, CHAT_ENCODING_V32, false},
    {"deepseek_v3", NULL, {false, false, false, false}, CHAT_ENCODING_V3, false},
    {"deepseek_v3", NULL, {false, true, false, false}, CHAT_ENCODING_R1, false},
    {"deepseek_v3", NULL, {false, true, true, false}, CHAT_ENCODING_V31, false},
    {NULL, NULL, {false, false, false, false}, CHAT_ENCODING_V3, false},
    {"kimi_k2", NULL, {.kimi = true}, CHAT_ENCODING_KIMI_K2, false},
    {"kimi_k2", NULL, {.kimi = true, .think = true}, CHAT_ENCODING_KIMI_K2_THINKING, true},
    {"kimi_k2", t_k2, {.kimi = true, .think = true}, CHAT_ENCODING_KIMI_K2, false},
    {"kimi_k2", t_k2_thinking, {.kimi = true}, CHAT_ENCODING_KIMI_K2_THINKING, true},
    {"deepseek_v3", t_k2_thinking, {.kimi = true}, CHAT_ENCODING_KIMI_K2_THINKING, true},
};

static void test_guess(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof guesses / sizeof guesses[0]; i++) {
        const struct guess *g = &guesses[i];
        struct chat_style s;
        chat_style_guess(&s, g->model_type, &g->has, g->chat_template);
        if (s.encoding != g->encoding) print_error("case %zu\n", i);
        assert_int_equal(s.encoding, g->encoding);
        assert_int_equal(s.model_opens_think, g->model_opens_think);
        assert_int_equal(s.parse_reasoning,
                         g->encoding != CHAT_ENCODING_V3 && g->encoding != CHAT_ENCODING_KIMI_K2);
        assert_true(s.parse_tools);
        enum chat_encoding markup = g->encoding;
        if (markup == CHAT_ENCODING_R1) markup = CHAT_ENCODING_V3;
        if (markup == CHAT_ENCODING_KIMI_K2_THINKING) markup = CHAT_ENCODING_KIMI_K2;
        assert_int_equal(s.tool_markup, markup);
    }
}

static struct chat_style override(struct chat_overrides o)
{
    struct chat_style s;
    fathom_diag d = {0};
    chat_style_guess(&s, "deepseek_v3", &(struct chat_markers){0}, t_r1_0528);
    assert_int_equal(chat_style_override(&s, &o, &d), FATHOM_OK);
    return s;
}

static void test_override(void **state)
{
    (void)state;
    struct chat_style s = override((struct chat_overrides){"auto", "auto", NULL});
    assert_int_equal(s.encoding, CHAT_ENCODING_R1);
    assert_true(s.parse_reasoning && s.parse_tools && s.model_opens_think);
    s = override((struct chat_overrides){.tokenizer_mode = "slow"});
    assert_int_equal(s.encoding, CHAT_ENCODING_R1);
    s = override((struct chat_overrides){.tokenizer_mode = "deepseek_v32"});
    assert_int_equal(s.encoding, CHAT_ENCODING_V32);
    assert_int_equal(s.tool_markup, CHAT_ENCODING_V32);
    assert_false(s.model_opens_think);
    s = override((struct chat_overrides){.tool_call_parser = "deepseek_v31"});
    assert_int_equal(s.encoding, CHAT_ENCODING_R1);
    assert_int_equal(s.tool_markup, CHAT_ENCODING_V31);
    s = override((struct chat_overrides){.tool_call_parser = "none", .reasoning_parser = "none"});
    assert_false(s.parse_tools || s.parse_reasoning);
    s = override((struct chat_overrides){"deepseek_v3", "deepseek_v3", "deepseek_r1"});
    assert_int_equal(s.encoding, CHAT_ENCODING_V3);
    assert_true(s.parse_reasoning);
    s = override((struct chat_overrides){"deepseek_v31", NULL, "deepseek_v3"});
    assert_true(s.parse_reasoning);
    s = override((struct chat_overrides){"kimi_k2_thinking", "kimi_k2", "kimi_k2"});
    assert_int_equal(s.encoding, CHAT_ENCODING_KIMI_K2_THINKING);
    assert_int_equal(s.tool_markup, CHAT_ENCODING_KIMI_K2);
    assert_true(s.parse_reasoning && s.model_opens_think);
}

static void expect_error(struct chat_overrides o, const char *want)
{
    struct chat_style s;
    fathom_diag d = {0};
    chat_style_guess(&s, NULL, &(struct chat_markers){0}, NULL);
    assert_int_equal(chat_style_override(&s, &o, &d), FATHOM_EINVAL);
    assert_string_equal(d.text, want);
}

static void test_bad_override(void **state)
{
    (void)state;
    expect_error((struct chat_overrides){.tokenizer_mode = "mistral"},
                 "--tokenizer-mode is \"mistral\", it can be auto, slow, hf, deepseek_v3, "
                 "deepseek_r1, deepseek_v31, deepseek_v32, kimi_k2 or kimi_k2_thinking");
    expect_error((struct chat_overrides){.tool_call_parser = "hermes"},
                 "--tool-call-parser is \"hermes\", it can be auto, none, deepseek_v3, "
                 "deepseek_v31, deepseek_v32 or kimi_k2");
    expect_error((struct chat_overrides){.tool_call_parser = "deepseek_r1"},
                 "--tool-call-parser is \"deepseek_r1\", it can be auto, none, deepseek_v3, "
                 "deepseek_v31, deepseek_v32 or kimi_k2");
    expect_error((struct chat_overrides){.reasoning_parser = "qwen3"},
                 "--reasoning-parser is \"qwen3\", it can be auto, none, deepseek_r1, "
                 "deepseek_v3 or kimi_k2");
}

static void test_pilot(void **state)
{
    (void)state;
    const char *path = FATHOM_SOURCE_DIR "/models/pilot/tokenizer.json";
    if (!path_exists(path)) {
        print_message("skipped: models/pilot is not in this tree\n");
        skip();
    }
    struct tokenizer *t;
    struct chat_style s;
    fathom_diag d = {0};
    assert_int_equal(tokenizer_open_file(&t, path, &d), FATHOM_OK);
    assert_int_equal(chat_style_choose(&s, "deepseek_v32", t, NULL, NULL, &d), FATHOM_OK);
    assert_int_equal(s.encoding, CHAT_ENCODING_V32);
    assert_int_equal(s.tool_markup, CHAT_ENCODING_V32);
    assert_true(s.parse_tools && s.parse_reasoning);
    struct chat_overrides o = {.reasoning_parser = "no such"};
    assert_int_equal(chat_style_choose(&s, "deepseek_v32", t, NULL, &o, &d), FATHOM_EINVAL);
    tokenizer_close(t);
}

static void test_names(void **state)
{
    (void)state;
    assert_string_equal(chat_encoding_name(CHAT_ENCODING_V3), "deepseek_v3");
    assert_string_equal(chat_encoding_name(CHAT_ENCODING_R1), "deepseek_r1");
    assert_string_equal(chat_encoding_name(CHAT_ENCODING_V31), "deepseek_v31");
    assert_string_equal(chat_encoding_name(CHAT_ENCODING_V32), "deepseek_v32");
    assert_string_equal(chat_encoding_name(CHAT_ENCODING_COUNT), "unknown");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_guess),        cmocka_unit_test(test_override),
        cmocka_unit_test(test_bad_override), cmocka_unit_test(test_pilot),
        cmocka_unit_test(test_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
