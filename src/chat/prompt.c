/* prompt.c - a request rendered by the encoding of its style; whether the prompt ends in reasoning
 */
#include <string.h>

#include "base/fail.h"
#include "base/json.h"
#include "base/mem.h"
#include "chat/chat_int.h"

static const json_t *last_message(const struct chat_request *r)
{
    return json_array_get(r->messages, json_array_size(r->messages) - 1);
}

static fathom_err check_request(const struct chat_request *r, bool go_on, fathom_diag *d)
{
    TRY(chat_check_messages(r->messages, d));
    TRY(chat_check_tools(r->tools, "tools", d));
    const json_t *f = r->response_format;
    if (f && !json_is_null(f) && !json_is_plain_object(f)) {
        FAIL(d, FATHOM_EINVAL, "response_format is %s, an object is needed", json_type_text(f));
    }
    if (!go_on) return FATHOM_OK;
    if (chat_message_role(last_message(r)) != CHAT_ROLE_ASSISTANT) {
        FAIL(d, FATHOM_EINVAL,
             "continue_final_message needs a last message of the assistant, its role is \"%s\"",
             json_string_value(json_object_get(last_message(r), "role")));
    }
    if (chat_message_calls(last_message(r))) {
        FAIL(d, FATHOM_EINVAL,
             "continue_final_message: the last message has tool_calls and cannot be gone on from");
    }
    return FATHOM_OK;
}

static fathom_err encode(const struct chat_style *s, const struct chat_request *r, struct buf *out,
                         fathom_diag *d)
{
    bool go_on =
        r->continue_final_message || json_is_true(json_object_get(last_message(r), "prefix"));
    TRY(check_request(r, go_on, d));
    switch (s->encoding) {
    case CHAT_ENCODING_V31: return chat_encode_v31(r, go_on, out);
    case CHAT_ENCODING_V32: return chat_encode_v32(r, go_on, out, d);
    case CHAT_ENCODING_KIMI_K2:
    case CHAT_ENCODING_KIMI_K2_THINKING: return chat_encode_kimi(s, r, go_on, out);
    default: return chat_encode_v3(s, r, go_on, out);
    }
}

static fathom_err add_mark(struct chat_marks *m, size_t at)
{
    TRY(mem_grow(&m->at, &m->cap, m->n + 1, sizeof *m->at));
    m->at[m->n++] = at;
    return FATHOM_OK;
}

/* Appends the text without the bytes before markers; their places go to *marks. */
static fathom_err take_marks(struct buf *out, const struct buf *text, struct chat_marks *marks)
{
    const char *s = buf_str(text);
    for (size_t i = 0; i < text->len;) {
        const char *mark = memchr(s + i, (unsigned char)CHAT_MARK_BYTE, text->len - i);
        size_t n = mark ? (size_t)(mark - s) - i : text->len - i;
        TRY(buf_add(out, s + i, n));
        if (mark && marks) TRY(add_mark(marks, out->len));
        i += n + 1;
    }
    return FATHOM_OK;
}

fathom_err chat_render(const struct chat_style *s, const struct chat_request *r, struct buf *out,
                       struct chat_marks *marks, fathom_diag *d)
{
    struct buf text = {.limit = out->limit};
    fathom_err err = encode(s, r, &text, d);
    if (!err) err = take_marks(out, &text, marks);
    out->over_limit |= text.over_limit;
    buf_free(&text);
    return err;
}

void chat_marks_free(struct chat_marks *m)
{
    mem_free(m->at);
    *m = (struct chat_marks){0};
}

static bool starts_with(const char *s, size_t n, const char *text)
{
    size_t len = strlen(text);
    return n >= len && memcmp(s, text, len) == 0;
}

bool chat_prompt_in_reasoning(const struct chat_style *s, const char *prompt, size_t n)
{
    static const char *const closers[] = {CHAT_THINK_END,  CHAT_USER, CHAT_EOS,    CHAT_OUTPUTS_END,
                                          CHAT_OUTPUT_END, CHAT_BOS,  CHAT_IM_END, CHAT_IM_USER};
    for (size_t i = n; i-- > 0;) {
        if (prompt[i] != '<') continue;
        const char *at = prompt + i;
        if (starts_with(at, n - i, CHAT_THINK)) return true;
        if (starts_with(at, n - i, CHAT_ASSISTANT)) {
            return s->encoding == CHAT_ENCODING_R1 && n - i == strlen(CHAT_ASSISTANT);
        }
        if (starts_with(at, n - i, CHAT_IM_MIDDLE)) {
            return s->encoding == CHAT_ENCODING_KIMI_K2_THINKING && n - i == strlen(CHAT_IM_MIDDLE);
        }
        for (size_t c = 0; c < sizeof closers / sizeof closers[0]; c++) {
            if (starts_with(at, n - i, closers[c])) return false;
        }
    }
    return false;
}
