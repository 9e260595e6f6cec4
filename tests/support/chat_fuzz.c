/* chat_fuzz.c - the answer parser's properties over any bytes */
#include "support/chat_fuzz.h"

#include <string.h>

#include "base/assert.h"
#include "base/json.h"
#include "chat/parser_int.h"
#include "support/chat_answer.h"

/* The text before the first '<' is there, in order, and without calls only think tags are gone. */
static void check_nothing_lost(const struct answer *a, const struct answer_input *in)
{
    size_t n_out = a->reasoning.len + a->content.len;
    if (!memchr(in->text, '<', in->n)) ASSERT(n_out == in->n);
    if (a->n_call > 0) return;
    ASSERT(n_out <= in->n);
    ASSERT(in->n - n_out <= strlen(CHAT_THINK) + strlen(CHAT_THINK_END));
    if (!in->style->parse_reasoning) ASSERT(n_out == in->n);
    const char *tail = in->text + in->n - a->content.len;
    ASSERT(a->content.len == 0 || memcmp(tail, a->content.data, a->content.len) == 0);
}

/* Whether a call may have a bare object as its arguments, which is passed on as it is. */
static bool has_bare_object(const char *s, size_t n)
{
    for (size_t i = 1; i < n; i++) {
        if (s[i] != '{') continue;
        size_t k = i - 1;
        while (k > 0 && memchr(" \n\t\r", s[k], 4)) k--;
        if (s[k] == '>') return true;
    }
    return false;
}

static void check_arguments(const struct answer *a, const struct answer_input *in)
{
    if (in->n > PARSER_VALUE_MAX || has_bare_object(in->text, in->n)) return;
    for (uint32_t i = 0; i < a->n_call && i < ANSWER_CALLS_MAX; i++) {
        struct args_scan scan;
        args_scan_init(&scan);
        args_scan_text(&scan, buf_str(&a->args[i]), a->args[i].len);
        ASSERT(args_scan_complete(&scan));
    }
}

void chat_fuzz_answer(enum chat_encoding markup, const uint8_t *data, size_t size)
{
    if (size == 0) return;
    json_t *tools = json_pack("[{s:{s:s,s:{s:{s:{s:s}}}}}]", "function", "name", "f", "parameters",
                              "properties", "n", "type", "integer");
    struct chat_style style = {.encoding = markup,
                               .tool_markup = markup,
                               .parse_tools = true,
                               .parse_reasoning = data[0] & 1};
    struct answer_input in = {.style = &style,
                              .thinking = data[0] & 2,
                              .tools = data[0] & 4 ? NULL : tools,
                              .text = (const char *)data + 1,
                              .n = size - 1};
    struct answer whole, cut;
    ASSERT(tools);
    ASSERT(answer_run(&whole, &in, ANSWER_WHOLE, 0) == FATHOM_OK);
    for (uint64_t i = 0; i < 3; i++) {
        enum answer_cut how = i == 0 ? ANSWER_BYTES : ANSWER_RANDOM;
        ASSERT(answer_run(&cut, &in, how, i + data[0]) == FATHOM_OK);
        ASSERT(cut.log.len == whole.log.len);
        ASSERT(memcmp(buf_str(&cut.log), buf_str(&whole.log), cut.log.len) == 0);
        answer_free(&cut);
    }
    check_nothing_lost(&whole, &in);
    if (markup == CHAT_ENCODING_V32) check_arguments(&whole, &in);
    answer_free(&whole);
    json_decref(tools);
}
