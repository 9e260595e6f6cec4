/* call_text.h - tool calls as literals, the way the releases write them */
#ifndef FATHOM_SUPPORT_CALL_TEXT_H
#define FATHOM_SUPPORT_CALL_TEXT_H

#include "chat/chat_int.h"

/* V3.2: BLOCK(INVOKE("f", PARAMETER("x", "false", "1"))) */
#define INVOKE(name, body)                                                                         \
    "<" CHAT_DSML "invoke name=\"" name "\">\n" body "</" CHAT_DSML "invoke>\n"
#define PARAMETER(name, kind, value)                                                               \
    "<" CHAT_DSML "parameter name=\"" name "\" string=\"" kind "\">" value "</" CHAT_DSML          \
    "parameter>\n"
#define BLOCK(calls) "\n\n<" CHAT_DSML "function_calls>\n" calls "</" CHAT_DSML "function_calls>"

/* V3 and R1: V31(CALL3("f", "{}")); V3.1: V31(CALL31("f", "{}")) */
#define V31(calls) CHAT_CALLS_BEGIN calls CHAT_CALLS_END
#define CALL31(name, args) CHAT_CALL_BEGIN name CHAT_CALL_SEP args CHAT_CALL_END
#define CALL3(name, args)                                                                          \
    CHAT_CALL_BEGIN "function" CHAT_CALL_SEP name "\n```json\n" args "\n```" CHAT_CALL_END

/* Kimi: KIMI(KIMI_CALL("f:0", "{}")) */
#define KIMI(calls) CHAT_SECTION_BEGIN calls CHAT_SECTION_END
#define KIMI_CALL(id, args)                                                                        \
    CHAT_KIMI_CALL_BEGIN CHAT_FUNCTIONS id CHAT_KIMI_ARGUMENTS args CHAT_KIMI_CALL_END

#endif
