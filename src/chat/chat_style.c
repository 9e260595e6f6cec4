/* chat_style.c - which encoding a checkpoint speaks, and what the command line overrides */
#include <string.h>

#include "base/fail.h"
#include "chat/chat_int.h"

static const char *const encoding_names[CHAT_ENCODING_COUNT] = {
    [CHAT_ENCODING_V3] = "deepseek_v3",   [CHAT_ENCODING_R1] = "deepseek_r1",
    [CHAT_ENCODING_V31] = "deepseek_v31", [CHAT_ENCODING_V32] = "deepseek_v32",
    [CHAT_ENCODING_KIMI_K2] = "kimi_k2",  [CHAT_ENCODING_KIMI_K2_THINKING] = "kimi_k2_thinking",
};

const char *chat_encoding_name(enum chat_encoding e)
{
    return (unsigned)e < CHAT_ENCODING_COUNT ? encoding_names[e] : "unknown";
}

static bool contains(const char *text, const char *part)
{
    return text && strstr(text, part) != NULL;
}

/* V3.2 ships no template and has the DSML token; its Exp release has V3.1's template. V3.1's
 * template is the only one with a `thinking` switch; R1's cuts history at </think>. */
static enum chat_encoding guess_encoding(const char *model_type, const struct chat_markers *has,
                                         const char *chat_template)
{
    if (has->kimi || (model_type && strcmp(model_type, "kimi_k2") == 0)) {
        bool thinks = chat_template ? contains(chat_template, CHAT_THINK) : has->think;
        return thinks ? CHAT_ENCODING_KIMI_K2_THINKING : CHAT_ENCODING_KIMI_K2;
    }
    if (has->dsml || contains(chat_template, CHAT_DSML)) return CHAT_ENCODING_V32;
    if (model_type && strcmp(model_type, "deepseek_v32") == 0) {
        return chat_template ? CHAT_ENCODING_V31 : CHAT_ENCODING_V32;
    }
    if (chat_template) {
        if (contains(chat_template, "thinking")) return CHAT_ENCODING_V31;
        return contains(chat_template, CHAT_THINK_END) ? CHAT_ENCODING_R1 : CHAT_ENCODING_V3;
    }
    if (!has->think) return CHAT_ENCODING_V3;
    return has->search ? CHAT_ENCODING_V31 : CHAT_ENCODING_R1;
}

static void set_encoding(struct chat_style *s, enum chat_encoding e)
{
    s->encoding = e;
    s->tool_markup = e;
    if (e == CHAT_ENCODING_R1) s->tool_markup = CHAT_ENCODING_V3;
    if (e == CHAT_ENCODING_KIMI_K2_THINKING) s->tool_markup = CHAT_ENCODING_KIMI_K2;
    s->parse_tools = true;
    s->parse_reasoning = e != CHAT_ENCODING_V3 && e != CHAT_ENCODING_KIMI_K2;
    s->model_opens_think = e == CHAT_ENCODING_KIMI_K2_THINKING;
}

void chat_style_guess(struct chat_style *out, const char *model_type,
                      const struct chat_markers *has, const char *chat_template)
{
    memset(out, 0, sizeof *out);
    set_encoding(out, guess_encoding(model_type, has, chat_template));
    if (out->encoding == CHAT_ENCODING_R1) {
        out->model_opens_think =
            chat_template && !contains(chat_template, CHAT_ASSISTANT CHAT_THINK);
    }
}

static bool is_auto(const char *name)
{
    return !name || strcmp(name, "auto") == 0;
}

static bool find_encoding(const char *name, enum chat_encoding *out)
{
    for (int e = 0; e < CHAT_ENCODING_COUNT; e++) {
        if (strcmp(name, encoding_names[e]) == 0) {
            *out = (enum chat_encoding)e;
            return true;
        }
    }
    return false;
}

fathom_err chat_style_override(struct chat_style *s, const struct chat_overrides *o, fathom_diag *d)
{
    enum chat_encoding e;
    const char *mode = o->tokenizer_mode;
    if (!is_auto(mode) && strcmp(mode, "slow") != 0 && strcmp(mode, "hf") != 0) {
        if (!find_encoding(mode, &e)) {
            FAIL(d, FATHOM_EINVAL,
                 "--tokenizer-mode is \"%s\", it can be auto, slow, hf, deepseek_v3, deepseek_r1, "
                 "deepseek_v31, deepseek_v32, kimi_k2 or kimi_k2_thinking",
                 mode);
        }
        if (e != s->encoding) set_encoding(s, e);
    }
    const char *tools = o->tool_call_parser;
    if (!is_auto(tools)) {
        s->parse_tools = strcmp(tools, "none") != 0;
        if (s->parse_tools) {
            if (!find_encoding(tools, &e) || e == CHAT_ENCODING_R1 ||
                e == CHAT_ENCODING_KIMI_K2_THINKING) {
                FAIL(d, FATHOM_EINVAL,
                     "--tool-call-parser is \"%s\", it can be auto, none, deepseek_v3, "
                     "deepseek_v31, deepseek_v32 or kimi_k2",
                     tools);
            }
            s->tool_markup = e;
        }
    }
    const char *reasoning = o->reasoning_parser;
    if (!is_auto(reasoning)) {
        s->parse_reasoning = strcmp(reasoning, "none") != 0;
        if (s->parse_reasoning && strcmp(reasoning, "deepseek_r1") != 0 &&
            strcmp(reasoning, "deepseek_v3") != 0 && strcmp(reasoning, "kimi_k2") != 0) {
            FAIL(d, FATHOM_EINVAL,
                 "--reasoning-parser is \"%s\", it can be auto, none, deepseek_r1, deepseek_v3 or "
                 "kimi_k2",
                 reasoning);
        }
    }
    return FATHOM_OK;
}

fathom_err chat_style_choose(struct chat_style *out, const char *model_type,
                             const struct tokenizer *t, const char *chat_template,
                             const struct chat_overrides *o, fathom_diag *d)
{
    struct chat_markers has = {
        .dsml = tokenizer_find(t, CHAT_DSML) >= 0,
        .think = tokenizer_find(t, CHAT_THINK) >= 0,
        .search = tokenizer_find(t, "<｜search▁begin｜>") >= 0,
        .kimi = tokenizer_find(t, CHAT_IM_MIDDLE) >= 0,
    };
    chat_style_guess(out, model_type, &has, chat_template);
    return o ? chat_style_override(out, o, d) : FATHOM_OK;
}
