/* options_doc.c - --help and docs/cli.md, made from the option table */
#include <string.h>

#include "base/fail.h"
#include "cli/options.h"

enum { HELP_COLUMNS = 96, HELP_INDENT = 32 };

static const char *const group_titles[GROUP_COUNT] = {
    [GROUP_MODEL] = "Model",
    [GROUP_MEMORY] = "Memory and scheduling",
    [GROUP_SERVER] = "Server",
    [GROUP_CHAT] = "Chats",
    [GROUP_COMMAND] = "This command",
    [GROUP_PARALLEL] = "More than one device",
    [GROUP_FOREIGN] = "Known from vLLM",
};

static bool in_group(const struct option *o, enum command c, enum option_group g)
{
    return o->group == g && (o->commands >> c & 1u) != 0;
}

static bool has_group(enum command c, enum option_group g)
{
    for (size_t i = 0; i < option_table_n; i++) {
        if (in_group(&option_table[i], c, g)) return true;
    }
    return false;
}

/* Appends words of `text`, breaking lines before HELP_COLUMNS; *column is where the line stands. */
static void add_wrapped(struct buf *b, const char *text, size_t *column)
{
    while (*text) {
        size_t n = strcspn(text, " ");
        if (*column > HELP_INDENT && *column + n + 1 > HELP_COLUMNS) {
            (void)buf_printf(b, "\n%*s", HELP_INDENT, "");
            *column = HELP_INDENT;
        } else if (*column > HELP_INDENT) {
            (void)buf_add_char(b, ' ');
            ++*column;
        }
        (void)buf_add(b, text, n);
        *column += n;
        text += n;
        while (*text == ' ') text++;
    }
}

static void add_spelling(struct buf *b, const struct option *o)
{
    if (o->alias) (void)buf_printf(b, "%s, ", o->alias);
    (void)buf_printf(b, "--%s", o->name);
    if (o->argument) (void)buf_printf(b, " %s", o->argument);
}

/* The answer to an option that has no effect or is refused, and to which values: `quote` stands
 * around what would be typed. */
static void add_answer(struct buf *b, const struct option *o, const char *quote)
{
    const char *answer = o->answer == ANSWER_NOTE ? "no effect" : "refused";
    if (o->answer == ANSWER_USE) return;
    if (o->kind == OPTION_FLAG && o->plain && strcmp(o->plain, "true") == 0) {
        (void)buf_printf(b, "%s--no-%s%s: %s", quote, o->name, quote, answer);
    } else if (o->kind != OPTION_FLAG && o->plain) {
        (void)buf_printf(b, "other than %s%s%s: %s", quote, o->plain, quote, answer);
    } else {
        (void)buf_add_str(b, answer);
    }
}

/* What stands after the help text: answer, choices, default. */
static void add_details(struct buf *b, const struct option *o)
{
    if (o->answer != ANSWER_USE) {
        (void)buf_add_str(b, " (");
        add_answer(b, o, "");
        (void)buf_add_char(b, ')');
    }
    if (o->choices) (void)buf_printf(b, " [%s]", o->choices);
    if (o->fallback && strcmp(o->fallback, "-1") != 0 && strcmp(o->fallback, "0") != 0) {
        (void)buf_printf(b, " (default %s)", o->fallback);
    }
}

static void add_option_help(struct buf *b, const struct option *o)
{
    struct buf text = {0};
    size_t start = b->len;
    (void)buf_add_str(b, "  ");
    add_spelling(b, o);
    size_t column = b->len - start;
    if (column + 2 > HELP_INDENT) {
        (void)buf_add_char(b, '\n');
        column = 0;
    }
    (void)buf_printf(b, "%*s", (int)(HELP_INDENT - column), "");
    column = HELP_INDENT;
    (void)buf_add_str(&text, o->help);
    add_details(&text, o);
    if (buf_status(&text)) b->failed = true;
    add_wrapped(b, buf_str(&text), &column);
    (void)buf_add_char(b, '\n');
    buf_free(&text);
}

static void add_overview(struct buf *b)
{
    (void)buf_add_str(b, "fathom serves DeepSeek-V3, R1, V3.1 and V3.2.\n\nCommands:\n");
    for (int c = 0; c < COMMAND_COUNT; c++) {
        const struct command_info *info = command_info((enum command)c);
        (void)buf_printf(b, "  fathom %-8s %-18s  %s\n", info->name, info->arguments, info->help);
    }
    (void)buf_add_str(b, "\nWithout MODEL, the pilot model linked into the program is used.\n"
                         "`fathom COMMAND --help` lists the options of a command.\n");
}

fathom_err options_write_help(struct buf *out, enum command command)
{
    if (command == COMMAND_COUNT) {
        add_overview(out);
        return buf_status(out);
    }
    const struct command_info *info = command_info(command);
    (void)buf_printf(out, "fathom %s %s\n\n%s\n", info->name, info->arguments, info->help);
    for (int g = 0; g < GROUP_COUNT; g++) {
        if (!has_group(command, (enum option_group)g)) continue;
        (void)buf_printf(out, "\n%s:\n", group_titles[g]);
        for (size_t i = 0; i < option_table_n; i++) {
            if (in_group(&option_table[i], command, (enum option_group)g)) {
                add_option_help(out, &option_table[i]);
            }
        }
    }
    return buf_status(out);
}

/* ---- docs/cli.md ------------------------------------------------------------------------- */

/* `|` inside a table cell of Markdown is escaped. */
static void add_cell(struct buf *b, const char *text)
{
    for (; *text; text++) {
        if (*text == '|') (void)buf_add_char(b, '\\');
        (void)buf_add_char(b, *text);
    }
}

static void add_row(struct buf *b, const struct option *o)
{
    struct buf spelling = {0};
    add_spelling(&spelling, o);
    if (buf_status(&spelling)) b->failed = true;
    (void)buf_add_str(b, "| `");
    add_cell(b, buf_str(&spelling));
    (void)buf_add_str(b, "` | ");
    if (o->fallback) {
        (void)buf_add_char(b, '`');
        add_cell(b, o->fallback);
        (void)buf_add_char(b, '`');
    }
    (void)buf_add_str(b, " | ");
    add_cell(b, o->help);
    if (o->choices) {
        (void)buf_add_str(b, "; one of `");
        add_cell(b, o->choices);
        (void)buf_add_char(b, '`');
    }
    if (o->refused) {
        (void)buf_add_str(b, "; refused: `");
        add_cell(b, o->refused);
        (void)buf_printf(b, "`, since %s", o->reason);
    }
    if (o->answer != ANSWER_USE) {
        struct buf answer = {0};
        add_answer(&answer, o, "`");
        if (buf_status(&answer)) b->failed = true;
        (void)buf_add_str(b, ". **");
        add_cell(b, buf_str(&answer));
        (void)buf_printf(b, "**: %s", o->reason);
        buf_free(&answer);
    }
    (void)buf_add_str(b, " |\n");
    buf_free(&spelling);
}

static void add_command_section(struct buf *b, enum command c)
{
    const struct command_info *info = command_info(c);
    (void)buf_printf(b, "\n## fathom %s%s%s\n\n", info->name, *info->arguments ? " " : "",
                     info->arguments);
    (void)buf_printf(b, "%c%s.\n", info->help[0] - 'a' + 'A', info->help + 1);
    for (int g = 0; g < GROUP_COUNT; g++) {
        if (!has_group(c, (enum option_group)g)) continue;
        (void)buf_printf(b, "\n### %s\n\n| option | default | meaning |\n|---|---|---|\n",
                         group_titles[g]);
        for (size_t i = 0; i < option_table_n; i++) {
            if (in_group(&option_table[i], c, (enum option_group)g)) add_row(b, &option_table[i]);
        }
    }
}

fathom_err options_write_markdown(struct buf *out)
{
    (void)buf_add_str(
        out,
        "# The command line\n\n"
        "Made by `fathom help --markdown` from `src/cli/option_table.c`; a test compares.\n\n"
        "Options are written `--name value` or `--name=value`, flags `--name` or `--no-name`; `_` "
        "may\nstand for `-` in a name. Counts take `k m g` (thousands) and `K M G` (powers of "
        "1024). An option\nof vLLM works, or is accepted without effect, or is refused; the last "
        "two print one line that\nsays why. The status is 0, 2 for a wrong command line and 1 for "
        "anything else that failed.\n\n"
        "Environment: `HF_HOME` (default `~/.cache/huggingface`) is where `org/name` is looked "
        "up;\n"
        "`FATHOM_API_KEY`, then `VLLM_API_KEY`, is the key when `--api-key` is absent.\n");
    for (int c = 0; c < COMMAND_COUNT; c++) add_command_section(out, (enum command)c);
    return buf_status(out);
}
