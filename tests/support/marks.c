/* marks.c - where a rendered prompt has markers and marks */
#include "support/marks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#include "chat/chat_int.h"

static const char *const markers[] = {
    CHAT_BOS,
    CHAT_EOS,
    CHAT_USER,
    CHAT_ASSISTANT,
    CHAT_THINK,
    CHAT_THINK_END,
    CHAT_CALLS_BEGIN,
    CHAT_CALLS_END,
    CHAT_CALL_BEGIN,
    CHAT_CALL_END,
    CHAT_CALL_SEP,
    CHAT_OUTPUTS_BEGIN,
    CHAT_OUTPUTS_END,
    CHAT_OUTPUT_BEGIN,
    CHAT_OUTPUT_END,
    CHAT_DSML,
    CHAT_IM_USER,
    CHAT_IM_ASSISTANT,
    CHAT_IM_SYSTEM,
    CHAT_IM_MIDDLE,
    CHAT_IM_END,
    CHAT_SECTION_BEGIN,
    CHAT_SECTION_END,
    CHAT_KIMI_CALL_BEGIN,
    CHAT_KIMI_ARGUMENTS,
    CHAT_KIMI_CALL_END,
};

static bool is_marker(const char *s)
{
    for (size_t i = 0; i < sizeof markers / sizeof markers[0]; i++) {
        if (strncmp(s, markers[i], strlen(markers[i])) == 0) return true;
    }
    return false;
}

fathom_err render_marked(const struct chat_style *s, const struct chat_request *r, struct buf *out,
                         fathom_diag *d)
{
    struct chat_marks marks = {0};
    size_t n = 0;
    fathom_err err = chat_render(s, r, out, &marks, d);
    for (size_t i = 0; !err && i < out->len; i++) {
        if (!is_marker(out->data + i)) continue;
        if (n == marks.n || marks.at[n++] != i) fail_msg("no mark at %.40s", out->data + i);
    }
    if (!err) assert_int_equal(n, marks.n);
    chat_marks_free(&marks);
    return err;
}
