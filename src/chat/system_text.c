/* system_text.c - the system text: tools, response format, and all of it for V3, R1 and V3.1 */
#include <stdio.h>
#include <string.h>

#include "base/fail.h"
#include "base/json.h"
#include "base/limits.h"
#include "chat/chat_int.h"

/* What the sections show of the markup is markup. */
#define CALLS_BEGIN MARK(CHAT_CALLS_BEGIN)
#define CALLS_END MARK(CHAT_CALLS_END)
#define CALL_BEGIN MARK(CHAT_CALL_BEGIN)
#define CALL_END MARK(CHAT_CALL_END)
#define CALL_SEP MARK(CHAT_CALL_SEP)
#define DSML MARK(CHAT_DSML)
#define THINK MARK(CHAT_THINK)
#define THINK_END MARK(CHAT_THINK_END)

bool chat_has_tools(const json_t *tools)
{
    return json_array_size(tools) > 0;
}

static fathom_err check_tool(const json_t *tool, const char *path, fathom_diag *d)
{
    if (!json_is_plain_object(tool)) {
        FAIL(d, FATHOM_EINVAL, "%s is %s, an object is needed", path, json_type_text(tool));
    }
    const json_t *type = json_object_get(tool, "type");
    if (type && (!json_is_string(type) || strcmp(json_string_value(type), "function") != 0)) {
        FAIL(d, FATHOM_EINVAL, "%s.type is not \"function\", the only kind of tool", path);
    }
    const json_t *function = json_object_get(tool, "function");
    if (!json_is_plain_object(function)) {
        FAIL(d, FATHOM_EINVAL, "%s.function is %s, an object with a name is needed", path,
             json_type_text(function));
    }
    if (json_string_length(json_object_get(function, "name")) == 0) {
        FAIL(d, FATHOM_EINVAL, "%s.function.name is missing", path);
    }
    const json_t *text = json_object_get(function, "description");
    if (text && !json_is_null(text) && !json_is_string(text)) {
        FAIL(d, FATHOM_EINVAL, "%s.function.description is %s, a string is needed", path,
             json_type_text(text));
    }
    const json_t *schema = json_object_get(function, "parameters");
    if (schema && !json_is_null(schema) && !json_is_plain_object(schema)) {
        FAIL(d, FATHOM_EINVAL, "%s.function.parameters is %s, a JSON schema object is needed", path,
             json_type_text(schema));
    }
    return FATHOM_OK;
}

fathom_err chat_check_tools(const json_t *tools, const char *path, fathom_diag *d)
{
    if (!tools || json_is_null(tools)) return FATHOM_OK;
    if (!json_is_array(tools)) {
        FAIL(d, FATHOM_EINVAL, "%s is %s, an array is needed", path, json_type_text(tools));
    }
    if (json_array_size(tools) > LIMIT_TOOLS) {
        FAIL(d, FATHOM_EINVAL, "%s has %zu tools, at most %d are possible", path,
             json_array_size(tools), LIMIT_TOOLS);
    }
    for (size_t i = 0; i < json_array_size(tools); i++) {
        char tool_path[96];
        (void)snprintf(tool_path, sizeof tool_path, "%s[%zu]", path, i);
        TRY(check_tool(json_array_get(tools, i), tool_path, d));
    }
    return FATHOM_OK;
}

/* ---- V3, R1, V3.1 ----------------------------------------------------------------------- */

/* V3.1 is trained on this section; V3 and R1 have none of their own and get the same one around
 * their own call syntax. What follows the format line belongs to it. */
static const char format_v31[] = CALLS_BEGIN CALL_BEGIN
    "tool_call_name" CALL_SEP "tool_call_arguments" //
    CALL_END "{additional_tool_calls}" CALLS_END "\n"
    "\n"
    "Where:\n"
    "- `tool_call_name` must be an exact match to one of the available tools\n"
    "- `tool_call_arguments` must be valid JSON that strictly follows the tool's Parameters "
    "Schema\n"
    "- For multiple tool calls, chain them directly without separators or spaces";

static const char format_v3[] = CALLS_BEGIN CALL_BEGIN
    "function" CALL_SEP "tool_call_name\n"
    "```json\n"
    "tool_call_arguments\n"
    "```" CALL_END "{additional_tool_calls}" CALLS_END "\n"
    "\n"
    "Where:\n"
    "- `tool_call_name` must be an exact match to one of the available tools\n"
    "- `tool_call_arguments` must be valid JSON that strictly follows the tool's Parameters "
    "Schema\n"
    "- For multiple tool calls, start each further one on a new line";

static void add_tool_text(struct buf *out, const json_t *function)
{
    const json_t *schema = json_object_get(function, "parameters");
    (void)buf_add_str(out, "### ");
    chat_text_append(out, json_object_get(function, "name"));
    (void)buf_add_str(out, "\nDescription: ");
    chat_text_append(out, json_object_get(function, "description"));
    (void)buf_add_str(out, "\n\nParameters: ");
    if (json_is_plain_object(schema)) {
        (void)json_write_python(out, schema);
    } else {
        (void)buf_add_str(out, "{}");
    }
    (void)buf_add_str(out, "\n\n");
}

void chat_add_tools_text(struct buf *out, const json_t *tools, enum chat_encoding e)
{
    (void)buf_add_str(out, "## Tools\nYou have access to the following tools:\n\n");
    for (size_t i = 0; i < json_array_size(tools); i++) {
        add_tool_text(out, json_object_get(json_array_get(tools, i), "function"));
    }
    (void)buf_add_str(out, "IMPORTANT: ALWAYS adhere to this exact format for tool use:\n");
    (void)buf_add_str(out, e == CHAT_ENCODING_V31 ? format_v31 : format_v3);
}

/* ---- V3.2 ------------------------------------------------------------------------------- */

static const char preamble_v32[] =
    "## Tools\n"
    "\n"
    "You have access to a set of tools you can use to answer the user's question.\n"
    "You can invoke functions by writing a \"<" DSML "function_calls>\" block like the "
    "following as part of your reply to the user:\n"
    "<" DSML "function_calls>\n"
    "<" DSML "invoke name=\"$FUNCTION_NAME\">\n"
    "<" DSML "parameter name=\"$PARAMETER_NAME\" "
    "string=\"true|false\">$PARAMETER_VALUE</" DSML "parameter>\n"
    "...\n"
    "</" DSML "invoke>\n"
    "<" DSML "invoke name=\"$FUNCTION_NAME2\">\n"
    "...\n"
    "</" DSML "invoke>\n"
    "</" DSML "function_calls>\n"
    "\n"
    "String and scalar parameters should be specified as is without any escaping or "
    "quotes, while lists and objects should use JSON format. The \"string\" attribute "
    "should be set to \"true\" for string type parameters and \"false\" for other types "
    "(numbers, booleans, arrays, objects).\n"
    "\n"
    "If the thinking_mode is enabled, then after function results you should strongly "
    "consider outputting a thinking block. Here is an example:\n"
    "\n"
    "<" DSML "function_calls>\n"
    "...\n"
    "</" DSML "function_calls>\n"
    "\n"
    "<function_results>\n"
    "...\n"
    "</function_results>\n"
    "\n" THINK "...thinking about results" THINK_END "\n"
    "\n"
    "Here are the functions available in JSONSchema format:\n"
    "<functions>\n";

static void add_functions(struct buf *out, const json_t *tools)
{
    for (size_t i = 0; i < json_array_size(tools); i++) {
        (void)json_write_python(out, json_object_get(json_array_get(tools, i), "function"));
        (void)buf_add_char(out, '\n');
    }
}

void chat_add_tools_dsml(struct buf *out, const json_t *first, const json_t *second)
{
    (void)buf_add_str(out, preamble_v32);
    add_functions(out, first);
    add_functions(out, second);
    (void)buf_add_str(out, "</functions>\n");
}

/* ---- response format -------------------------------------------------------------------- */

const json_t *chat_schema(const json_t *response_format)
{
    return json_object_get(json_object_get(response_format, "json_schema"), "schema");
}

void chat_add_schema(struct buf *out, const json_t *schema)
{
    (void)buf_add_str(out, "## Response Format:\n\n"
                           "You MUST strictly adhere to the following schema to reply:\n");
    (void)json_write_python(out, schema);
}

void chat_add_system(struct buf *out, const struct chat_request *r, size_t begin, size_t end)
{
    bool first = true;
    for (size_t i = begin; i < end; i++) {
        const json_t *m = json_array_get(r->messages, i);
        enum chat_role role = chat_message_role(m);
        if (role != CHAT_ROLE_SYSTEM && role != CHAT_ROLE_DEVELOPER) continue;
        if (!first) (void)buf_add_str(out, "\n\n");
        first = false;
        chat_add_content(out, m);
    }
}

void chat_add_system_sections(struct buf *out, const struct chat_request *r, enum chat_encoding e)
{
    if (chat_has_tools(r->tools)) {
        (void)buf_add_str(out, "\n\n");
        chat_add_tools_text(out, r->tools, e);
    }
    const json_t *schema = chat_schema(r->response_format);
    if (schema) {
        (void)buf_add_str(out, "\n\n");
        chat_add_schema(out, schema);
    }
}
