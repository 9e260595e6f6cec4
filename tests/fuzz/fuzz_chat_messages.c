/* fuzz_chat_messages.c - any JSON as a chat request: checked and rendered by every encoding
 *
 * Input: one byte of options, then a request body with messages, tools and response_format. What
 * renders starts with BOS, or with a turn's marker where there is none; what does not says why.
 */
#include <stdint.h>
#include <string.h>

#include "base/assert.h"
#include "base/json.h"
#include "chat/chat_int.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char *first_marker(enum chat_encoding e)
{
    bool kimi = e == CHAT_ENCODING_KIMI_K2 || e == CHAT_ENCODING_KIMI_K2_THINKING;
    return kimi ? "<|im_" : CHAT_BOS;
}

static void render(const struct chat_style *s, const struct chat_request *r, fathom_err checked)
{
    struct buf out = {0};
    fathom_diag d = {0};
    fathom_err err = chat_render(s, r, &out, NULL, &d);
    ASSERT(err == FATHOM_OK || err == FATHOM_EINVAL);
    if (checked) ASSERT(err == FATHOM_EINVAL);
    if (err) {
        ASSERT(d.text[0] != '\0');
    } else {
        const char *first = first_marker(s->encoding);
        ASSERT(out.len >= strlen(first));
        ASSERT(memcmp(out.data, first, strlen(first)) == 0);
        (void)chat_prompt_in_reasoning(s, out.data, out.len);
    }
    buf_free(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    json_t *body;
    if (size == 0 || json_read((const char *)data + 1, size - 1, "body", &body, NULL)) return 0;
    fathom_diag d = {0};
    struct chat_request r = {
        .messages = json_object_get(body, "messages"),
        .tools = json_object_get(body, "tools"),
        .response_format = json_object_get(body, "response_format"),
        .thinking = data[0] & 1,
        .tools_first_message = data[0] & 2,
        .continue_final_message = data[0] & 4,
        .add_generation_prompt = data[0] & 8,
    };
    fathom_err checked = chat_check_messages(r.messages, &d);
    ASSERT(checked == FATHOM_OK || d.text[0] != '\0');
    for (int e = 0; e < CHAT_ENCODING_COUNT; e++) {
        struct chat_style s = {.encoding = (enum chat_encoding)e,
                               .model_opens_think = data[0] & 16};
        render(&s, &r, checked);
    }
    json_decref(body);
    return 0;
}
