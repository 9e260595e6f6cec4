/* options_doc.c - --help and docs/cli.md, made from the option table */
#include <string.h>

#include "base/assert.h"
#include "base/fail.h"
#include "cli/options_int.h"

enum { HELP_COLUMNS = 96, HELP_INDENT = 32 };

/* A group's title, and its name after --help= */
static const struct {
    const char *title, *name;
} groups[GROUP_COUNT] = {
    [GROUP_MODEL] = {"Model", "model"},
    [GROUP_MEMORY] = {"Memory and scheduling", "memory"},
    [GROUP_SERVER] = {"Server", "server"},
    [GROUP_SECURITY] = {"Who may ask", "security"},
    [GROUP_LOG] = {"Logs", "log"},
    [GROUP_CHAT] = {"Chats", "chat"},
    [GROUP_COMMAND] = {"This command", "command"},
    [GROUP_TARGET] = {"Server under test", "target"},
    [GROUP_DATASET] = {"Dataset", "dataset"},
    [GROUP_LOAD] = {"Load", "load"},
    [GROUP_RESULT] = {"Results", "results"},
    [GROUP_PARALLEL] = {"More than one device", "parallel"},
    [GROUP_SGLANG] = {"Known from SGLang", "sglang"},
    [GROUP_FOREIGN] = {"Known from vLLM", "vllm"},
};

bool option_in_group(const struct option *o, enum command c, enum option_group g)
{
    return o->group == g && (o->commands >> c & 1u) != 0;
}

const char *option_group_title(enum option_group g)
{
    return groups[g].title;
}

bool command_has_group(enum command c, enum option_group g)
{
    for (size_t i = 0; i < option_table_n; i++) {
        if (option_in_group(&option_table[i], c, g)) return true;
    }
    return false;
}

/* Length of the first word of a text; of a list longer than a line, what fits one. */
static size_t word_length(const char *text)
{
    const size_t room = HELP_COLUMNS - HELP_INDENT;
    size_t n = strcspn(text, " ");
    if (n <= room) return n;
    for (size_t i = room; i > 0; i--) {
        if (text[i - 1] == '|') return i;
    }
    return n;
}

/* Appends words of `text`, breaking lines before HELP_COLUMNS; *column is where the line stands. */
static void add_wrapped(struct buf *b, const char *text, size_t *column)
{
    while (*text) {
        size_t n = word_length(text);
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

void option_add_spelling(struct buf *b, const struct option *o)
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
void option_add_details(struct buf *b, const struct option *o)
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
    option_add_spelling(b, o);
    size_t column = b->len - start;
    if (column + 2 > HELP_INDENT) {
        (void)buf_add_char(b, '\n');
        column = 0;
    }
    (void)buf_printf(b, "%*s", (int)(HELP_INDENT - column), "");
    column = HELP_INDENT;
    (void)buf_add_str(&text, o->help);
    option_add_details(&text, o);
    if (buf_status(&text)) b->failed = true;
    add_wrapped(b, buf_str(&text), &column);
    (void)buf_add_char(b, '\n');
    buf_free(&text);
}

/* word: the first one of the commands that are told; NULL: all are */
static void add_overview(struct buf *b, const char *word)
{
    if (!word)
        (void)buf_add_str(b, "fathom serves DeepSeek-V3, R1, V3.1 and V3.2, and Kimi K2.\n\n");
    (void)buf_add_str(b, "Commands:\n");
    for (int c = 0; c < COMMAND_COUNT; c++) {
        const struct command_info *info = command_info((enum command)c);
        size_t n = word ? strlen(word) : 0;
        if (word && (strncmp(info->name, word, n) != 0 || info->name[n] != ' ')) continue;
        (void)buf_printf(b, "  fathom %-16s %-18s  %s\n", info->name, info->arguments, info->help);
    }
    (void)buf_add_str(b, "\nWithout MODEL, the pilot model linked into the program is used.\n"
                         "`fathom COMMAND --help` lists the options of a command.\n");
}

/* The group that a topic names; GROUP_COUNT: none. */
static int find_group(const char *topic)
{
    int g = 0;
    while (g < GROUP_COUNT && strcmp(groups[g].name, topic) != 0) g++;
    return g;
}

/* Does the topic, a group or part of a name, ask for this option? `_` may stand for `-`. */
static bool is_about(const struct option *o, const char *topic)
{
    int g = topic ? find_group(topic) : GROUP_COUNT;
    if (!topic || o->group == (enum option_group)g) return true;
    if (g < GROUP_COUNT) return false;
    if (strncmp(topic, "--", 2) == 0) topic += 2;
    for (const char *at = o->name; *at; at++) {
        size_t n = 0;
        while (topic[n] && at[n] == (topic[n] == '_' ? '-' : topic[n])) n++;
        if (!topic[n]) return true;
    }
    return false;
}

static size_t add_groups(struct buf *b, enum command c, const char *topic)
{
    size_t n = 0;
    for (int g = 0; g < GROUP_COUNT; g++) {
        bool begun = false;
        for (size_t i = 0; i < option_table_n; i++) {
            const struct option *o = &option_table[i];
            if (!option_in_group(o, c, (enum option_group)g) || !is_about(o, topic)) continue;
            if (!begun) (void)buf_printf(b, "\n%s:\n", groups[g].title);
            add_option_help(b, o);
            begun = true;
            n++;
        }
    }
    return n;
}

static void add_group_names(struct buf *b, enum command c)
{
    (void)buf_add_str(
        b, "\n--help=TOPIC shows less: options whose name holds TOPIC, or one of the groups\n ");
    for (int g = 0; g < GROUP_COUNT; g++) {
        if (command_has_group(c, (enum option_group)g)) (void)buf_printf(b, " %s", groups[g].name);
    }
    (void)buf_add_char(b, '\n');
}

fathom_err options_write_help(struct buf *out, enum command command, const char *topic,
                              fathom_diag *d)
{
    if (command == COMMAND_COUNT) {
        add_overview(out, topic);
        return buf_status(out);
    }
    const struct command_info *info = command_info(command);
    struct buf names = {0};
    fathom_err err = FATHOM_OK;
    add_group_names(&names, command);
    if (topic && strcmp(topic, "listgroup") == 0) { /* these three are vLLM's words */
        err = buf_add_str(out, buf_str(&names) + 1);
        buf_free(&names);
        return err;
    }
    if (topic && (strcmp(topic, "all") == 0 || strcmp(topic, "page") == 0)) topic = NULL;
    (void)buf_printf(out, "fathom %s %s\n\n%s\n", info->name, info->arguments, info->help);
    if (add_groups(out, command, topic) == 0) {
        err = diag_fail(d, FATHOM_EINVAL, "--help=%s: no option of `fathom %s` is called so", topic,
                        info->name);
    } else if (!topic) {
        (void)buf_add_str(out, buf_str(&names));
    }
    if (buf_status(&names)) out->failed = true;
    buf_free(&names);
    return err ? err : buf_status(out);
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
    option_add_spelling(&spelling, o);
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

/* The command whose section tells what the option means: the first that has it. */
static enum command told_under(const struct option *o)
{
    int c = 0;
    while (c < COMMAND_COUNT && !option_in_group(o, (enum command)c, o->group)) c++;
    ASSERT(c < COMMAND_COUNT);
    return (enum command)c;
}

static void add_heading(struct buf *b, enum command c)
{
    const struct command_info *info = command_info(c);
    (void)buf_printf(b, "fathom %s%s%s", info->name, *info->arguments ? " " : "", info->arguments);
}

/* What a heading is called in a link: letters small, blanks as `-`, without other signs. */
static void add_anchor(struct buf *b, enum command c)
{
    struct buf heading = {0};
    add_heading(&heading, c);
    if (buf_status(&heading)) b->failed = true;
    for (const char *at = buf_str(&heading); *at; at++) {
        const bool is_large = *at >= 'A' && *at <= 'Z';
        if (*at == ' ') (void)buf_add_char(b, '-');
        if (is_large || (*at >= 'a' && *at <= 'z') || *at == '-')
            (void)buf_add_char(b, is_large ? (char)(*at - 'A' + 'a') : *at);
    }
    buf_free(&heading);
}

/* Options of a group that the section of another command tells: their names. */
static void add_told(struct buf *b, enum command c, enum option_group g, enum command other)
{
    bool begun = false;
    for (size_t i = 0; i < option_table_n; i++) {
        const struct option *o = &option_table[i];
        if (!option_in_group(o, c, g) || told_under(o) != other) continue;
        (void)buf_printf(b, "%s`--%s`", begun ? ", " : "\n", o->name);
        begun = true;
    }
    if (!begun) return;
    (void)buf_printf(b, ": as of [fathom %s](#", command_info(other)->name);
    add_anchor(b, other);
    (void)buf_add_str(b, ").\n");
}

static void add_group_section(struct buf *b, enum command c, enum option_group g)
{
    bool begun = false;
    (void)buf_printf(b, "\n### %s\n", groups[g].title);
    for (size_t i = 0; i < option_table_n; i++) {
        const struct option *o = &option_table[i];
        if (!option_in_group(o, c, g) || told_under(o) != c) continue;
        if (!begun) (void)buf_add_str(b, "\n| option | default | meaning |\n|---|---|---|\n");
        add_row(b, o);
        begun = true;
    }
    for (int other = 0; other < (int)c; other++) add_told(b, c, g, (enum command)other);
}

static void add_command_section(struct buf *b, enum command c)
{
    const char *help = command_info(c)->help;
    (void)buf_add_str(b, "\n## ");
    add_heading(b, c);
    (void)buf_printf(b, "\n\n%c%s.\n", help[0] - 'a' + 'A', help + 1);
    for (int g = 0; g < GROUP_COUNT; g++) {
        if (command_has_group(c, (enum option_group)g))
            add_group_section(b, c, (enum option_group)g);
    }
}

fathom_err options_write_markdown(struct buf *out)
{
    (void)buf_add_str(
        out,
        "# The command line\n\n"
        "Made by `fathom help --markdown` from `src/cli/option_table.c`; a test compares.\n\n"
        "Options are written `--name value` or `--name=value`, flags `--name` or `--no-name`; `_` "
        "may\nstand for `-` in a name, and a beginning that fits one name alone for the name. "
        "Counts take\n`k m g` (thousands) and `K M G` (powers of 1024). One key of an option that "
        "is a JSON object is\nset with `--name.key value`, and `--name.key+ value` appends to an "
        "array. An option of vLLM that\n[flags.md](flags.md) lists works, or is accepted without "
        "effect, or is refused; the last two print one\nline that says why. One that is not there "
        "is unknown, and the answer names the nearest. The status is 0,\n2 for a wrong command "
        "line and 1 for anything else that failed, output\nthat cannot be written included, and a "
        "checkpoint that `inspect`, `plan` or `doctor` finds cannot be served.\n\n"
        "An option may also stand in a file (`--config`) and in the environment: "
        "`FATHOM_MAX_MODEL_LEN=4096`\nis `--max-model-len 4096`, and so for every option. The "
        "command line holds over the file, the file\nover the environment. `HF_HUB_CACHE`, else "
        "`hub` in `HF_HOME` (default "
        "`~/.cache/huggingface`), is where `org/name` is looked up;\n`VLLM_API_KEY` and "
        "`VLLM_LOGGING_LEVEL` are `--api-key` and `--log-level`.\n\n"
        "```yaml\n"
        "# serve.yaml: fathom serve --config serve.yaml\n"
        "model: deepseek-ai/DeepSeek-V3.2\n"
        "served-model-name: [deepseek, deepseek-v3.2]\n"
        "max-model-len: 64K\n"
        "speculative-config: {method: deepseek_mtp, num_speculative_tokens: 2}\n"
        "```\n");
    for (int c = 0; c < COMMAND_COUNT; c++) add_command_section(out, (enum command)c);
    return buf_status(out);
}

/* ---- docs/flags.md ----------------------------------------------------------------------- */

static void add_flag_row(struct buf *b, const struct option *o)
{
    static const char *const answers[] = {
        [ANSWER_USE] = "acts", [ANSWER_NOTE] = "accepted", [ANSWER_REFUSE] = "refused"};
    struct buf spelling = {0};
    option_add_spelling(&spelling, o);
    if (buf_status(&spelling)) b->failed = true;
    (void)buf_add_str(b, "| `");
    add_cell(b, buf_str(&spelling));
    (void)buf_printf(b, "` | %s | ", answers[o->answer]);
    if (o->answer == ANSWER_USE) {
        add_cell(b, o->help);
        if (o->refused) {
            (void)buf_add_str(b, "; refused: `");
            add_cell(b, o->refused);
            (void)buf_printf(b, "`, since %s", o->reason);
        }
    } else {
        if (o->plain) {
            (void)buf_add_str(b, "`");
            add_cell(b, o->plain);
            (void)buf_add_str(b, "` is taken in silence; else: ");
        }
        (void)buf_add_str(b, o->reason);
    }
    (void)buf_add_str(b, " |\n");
    buf_free(&spelling);
}

fathom_err options_write_flags(struct buf *out)
{
    (void)buf_add_str(
        out,
        "# vLLM's flags and variables, SGLang's flags\n\n"
        "Made by `fathom help --flags` from `src/cli/option_table.c` and "
        "`src/cli/environment_table.c`; a test\ncompares. It is about `fathom serve`: a command "
        "line of `vllm serve` works with `vllm` replaced by\n`fathom`, or says in one line what "
        "happens instead. A flag **acts**; or is **accepted**: the server\nstarts and says why the "
        "flag has no effect; or is **refused**: the server does not start, and the\nline says why "
        "and what to use. Several refused flags are told all at once. A flag that is not here is\n"
        "unknown, and the answer names the nearest one. `python3 -m sglang.launch_server` becomes "
        "`fathom serve` too:\nflags that both have are vLLM's, others stand under *Known from "
        "SGLang*. Names of TensorRT-LLM and llama.cpp\nare unknown, and the answer is ours. "
        "`fathom plan` and `fathom doctor` take the same command lines.\n");
    for (int g = 0; g < GROUP_COUNT; g++) {
        if (!command_has_group(COMMAND_SERVE, (enum option_group)g)) continue;
        (void)buf_printf(out, "\n## %s\n\n| flag | answer | |\n|---|---|---|\n", groups[g].title);
        for (size_t i = 0; i < option_table_n; i++) {
            if (option_in_group(&option_table[i], COMMAND_SERVE, (enum option_group)g)) {
                add_flag_row(out, &option_table[i]);
            }
        }
    }
    (void)buf_add_str(out, "\n## Environment\n\n| variable | answer | |\n|---|---|---|\n");
    for (size_t i = 0; i < environment_table_n; i++) {
        const struct environment_row *e = &environment_table[i];
        (void)buf_printf(out, "| `%s` | %s | %s |\n", e->pattern, e->acts ? "acts" : "accepted",
                         e->text);
    }
    return buf_status(out);
}
