/* options_pages.c - the manual pages and bash's completion, made from the option table */
#include <string.h>

#include "base/fail.h"
#include "cli/options_int.h"
#include "fathom/fathom.h"

/* ---- manual pages -------------------------------------------------------------------------- */

/* Text as troff takes it: a hyphen of a command line stays one, and no line begins a request. */
static void add_roff(struct buf *b, const char *text)
{
    if (*text == '.' || *text == '\'') (void)buf_add_str(b, "\\&");
    for (; *text; text++) {
        if (*text == '\\') {
            (void)buf_add_str(b, "\\e");
        } else if (*text == '-') {
            (void)buf_add_str(b, "\\-");
        } else if (*text == '|') {
            (void)buf_add_str(b, "|\\:"); /* a line may be broken here */
        } else {
            (void)buf_add_char(b, *text);
        }
    }
}

/* "fathom-bench-serve" */
static void add_page_name(struct buf *b, const struct command_info *info)
{
    (void)buf_add_str(b, "fathom\\-");
    for (const char *p = info->name; *p; p++) {
        if (*p == ' ') {
            (void)buf_add_str(b, "\\-");
        } else {
            (void)buf_add_char(b, *p);
        }
    }
}

static void add_title(struct buf *b, const struct command_info *info)
{
    (void)buf_add_str(b, ".\\\" Made by `fathom help --man` from the option table\n.TH ");
    if (info) {
        add_page_name(b, info);
    } else {
        (void)buf_add_str(b, "fathom");
    }
    (void)buf_printf(b, " 1 \"\" \"fathom %s\" \"User commands\"\n.ad l\n.nh\n.SH NAME\n",
                     FATHOM_VERSION);
}

static void add_man_option(struct buf *b, const struct option *o)
{
    struct buf text = {0};
    (void)buf_add_str(b, ".TP\n.B ");
    option_add_spelling(&text, o);
    add_roff(b, buf_str(&text));
    (void)buf_add_char(b, '\n');
    if (buf_status(&text)) b->failed = true;
    buf_clear(&text);
    (void)buf_add_str(&text, o->help);
    option_add_details(&text, o);
    if (buf_status(&text)) b->failed = true;
    add_roff(b, buf_str(&text));
    if (o->answer != ANSWER_USE) {
        (void)buf_add_str(b, ": ");
        add_roff(b, o->reason);
    }
    (void)buf_add_char(b, '\n');
    buf_free(&text);
}

static void add_command_page(struct buf *b, enum command c)
{
    const struct command_info *info = command_info(c);
    add_title(b, info);
    add_page_name(b, info);
    (void)buf_add_str(b, " \\- ");
    add_roff(b, info->help);
    (void)buf_add_str(b, "\n.SH SYNOPSIS\n.B fathom ");
    add_roff(b, info->name);
    (void)buf_add_char(b, '\n');
    add_roff(b, info->arguments);
    (void)buf_add_str(b, "\n.SH OPTIONS\n");
    for (int g = 0; g < GROUP_COUNT; g++) {
        if (!command_has_group(c, (enum option_group)g)) continue;
        (void)buf_printf(b, ".SS %s\n", option_group_title((enum option_group)g));
        for (size_t i = 0; i < option_table_n; i++) {
            if (option_in_group(&option_table[i], c, (enum option_group)g)) {
                add_man_option(b, &option_table[i]);
            }
        }
    }
    (void)buf_add_str(b, ".SH SEE ALSO\n.BR fathom (1)\n");
}

static void add_variables(struct buf *b)
{
    for (size_t i = 0; i < environment_table_n; i++) {
        if (!environment_table[i].acts) continue;
        (void)buf_add_str(b, ".TP\n.B ");
        add_roff(b, environment_table[i].pattern);
        (void)buf_add_char(b, '\n');
        add_roff(b, environment_table[i].text);
        (void)buf_add_char(b, '\n');
    }
}

static void add_overview_page(struct buf *b)
{
    add_title(b, NULL);
    (void)buf_add_str(b,
                      "fathom \\- serve DeepSeek\\-V3, R1, V3.1, V3.2 and Kimi K2\n.SH SYNOPSIS\n"
                      ".B fathom\nCOMMAND [MODEL] [options]\n.SH DESCRIPTION\n"
                      "MODEL is a directory in the form of Hugging Face, or org/name, looked up "
                      "in its cache. Without MODEL, the pilot model linked into the program is "
                      "used.\n.SH COMMANDS\n");
    for (int c = 0; c < COMMAND_COUNT; c++) {
        const struct command_info *info = command_info((enum command)c);
        (void)buf_add_str(b, ".TP\n.B fathom ");
        add_roff(b, info->name);
        (void)buf_add_char(b, '\n');
        add_roff(b, info->help);
        (void)buf_add_char(b, '\n');
    }
    (void)buf_add_str(b, ".SH ENVIRONMENT\n");
    add_variables(b);
    (void)buf_add_str(b, ".SH EXIT STATUS\n0: done. 1: something failed. 2: the command line is "
                         "wrong. 3: warnings of fathom doctor.\n.SH SEE ALSO\n");
    for (int c = 0; c < COMMAND_COUNT; c++) {
        (void)buf_add_str(b, ".BR ");
        add_page_name(b, command_info((enum command)c));
        (void)buf_printf(b, " (1)%s\n", c + 1 < COMMAND_COUNT ? "," : "");
    }
}

fathom_err options_write_man(struct buf *out, enum command command)
{
    if (command == COMMAND_COUNT) {
        add_overview_page(out);
    } else {
        add_command_page(out, command);
    }
    return buf_status(out);
}

/* ---- bash ---------------------------------------------------------------------------------- */

/* The first words of all commands, or with `word` what follows it. */
static void add_command_words(struct buf *b, const char *word)
{
    size_t n_word = word ? strlen(word) : 0;
    const char *last = "";
    for (int c = 0; c < COMMAND_COUNT; c++) {
        const char *name = command_info((enum command)c)->name;
        if (word && (strncmp(name, word, n_word) != 0 || name[n_word] != ' ')) continue;
        if (word) name += n_word + 1;
        size_t n = strcspn(name, " ");
        if (strlen(last) >= n && strncmp(last, name, n) == 0 && (last[n] == ' ' || !last[n])) {
            continue;
        }
        (void)buf_printf(b, " %.*s", (int)n, name);
        last = name;
    }
}

static void add_option_words(struct buf *b, enum command c)
{
    (void)buf_printf(b, "    \"%s\") words=\"", command_info(c)->name);
    for (size_t i = 0; i < option_table_n; i++) {
        const struct option *o = &option_table[i];
        if (option_has_command(o, c) && o->answer == ANSWER_USE) {
            (void)buf_printf(b, " --%s", o->name);
        }
    }
    (void)buf_add_str(b, "\" ;;\n");
}

/* Rows of one name that belong to several commands may differ: the command tells them apart. */
static void add_choices(struct buf *b, enum command c)
{
    for (size_t i = 0; i < option_table_n; i++) {
        const struct option *o = &option_table[i];
        if (!option_has_command(o, c) || o->kind != OPTION_CHOICE || !o->choices) continue;
        (void)buf_printf(b, "    \"%s --%s\") words=\"", command_info(c)->name, o->name);
        for (const char *p = o->choices; *p; p++) (void)buf_add_char(b, *p == '|' ? ' ' : *p);
        (void)buf_add_str(b, "\" ;;\n");
    }
}

fathom_err options_write_completion(struct buf *out)
{
    (void)buf_add_str(
        out, "# bash completion of fathom, made by `fathom help --completion`\n"
             "_fathom() {\n"
             "    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]}\n"
             "    local command=${COMP_WORDS[1]} at=1 words=\n"
             "    if [ \"$cur\" = = ]; then cur=\n"
             "    elif [ \"$prev\" = = ]; then prev=${COMP_WORDS[COMP_CWORD - 2]}; fi\n"
             "    if [ \"$command\" = bench ]; then command=\"bench ${COMP_WORDS[2]}\" at=2; fi\n"
             "    COMPREPLY=()\n"
             "    if [ \"$COMP_CWORD\" -eq 1 ]; then\n        words=\"");
    add_command_words(out, NULL);
    (void)buf_add_str(out, "\"\n    elif [ \"$COMP_CWORD\" -le \"$at\" ]; then\n        words=\"");
    add_command_words(out, "bench");
    (void)buf_add_str(out, "\"\n    else\n    case \"$command $prev\" in\n");
    for (int c = 0; c < COMMAND_COUNT; c++) add_choices(out, (enum command)c);
    (void)buf_add_str(out, "    esac\n    if [ -z \"$words\" ] && [ \"${cur#-}\" != \"$cur\" ]; "
                           "then case \"$command\" in\n");
    for (int c = 0; c < COMMAND_COUNT; c++) add_option_words(out, (enum command)c);
    (void)buf_add_str(out, "    esac; fi\n    fi\n"
                           "    mapfile -t COMPREPLY < <(compgen -W \"$words\" -- \"$cur\")\n"
                           "}\n"
                           "complete -o default -F _fathom fathom\n");
    return buf_status(out);
}
