/* cmd_run.c - fathom run: a chat in the terminal, or one prompt */
#include <histedit.h>
#include <locale.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fail.h"
#include "base/log.h"
#include "base/mem.h"
#include "cli/dialog.h"
#include "cli/signals.h"

enum { HISTORY_LINES = 1000 };

static const char help_text[] = "/new           start a new chat\n"
                                "/think         let the model reason before it answers\n"
                                "/nothink       answer at once\n"
                                "/help          this list\n"
                                "/quit          leave; so does Ctrl-D. Ctrl-C ends an answer\n";

/* Does a line that starts with '/'. Returns false when the chat is over. */
static bool do_command(struct dialog *c, const char *line)
{
    if (strcmp(line, "/quit") == 0 || strcmp(line, "/exit") == 0) return false;
    if (strcmp(line, "/new") == 0) {
        if (dialog_reset(c)) fprintf(stderr, "out of memory\n");
    } else if (strcmp(line, "/think") == 0 || strcmp(line, "/nothink") == 0) {
        c->thinking = strcmp(line, "/think") == 0;
        fprintf(stderr, "thinking is %s\n", c->thinking ? "on" : "off");
    } else {
        (void)fputs(help_text, stderr);
    }
    return true;
}

/* One line of the user. Errors of one message do not end the chat; a fault of the device does. */
static fathom_err take_line(struct dialog *c, char *line, bool *over, fathom_diag *d)
{
    line[strcspn(line, "\r\n")] = '\0';
    if (line[0] == '\0') return FATHOM_OK;
    if (line[0] == '/') {
        *over = !do_command(c, line);
        return FATHOM_OK;
    }
    fathom_err err = dialog_ask(c, line, d);
    if (err == FATHOM_EDEVICE || !err) return err;
    fprintf(stderr, "fathom: %s\n", d->text[0] ? d->text : fathom_err_text(err));
    diag_clear(d);
    return FATHOM_OK;
}

/* ---- with a terminal --------------------------------------------------------------------- */

static char *prompt_text(EditLine *el)
{
    static const char text[] = "> ";
    (void)el;
    return (char *)(uintptr_t)text; /* the library does not write to it */
}

static fathom_err chat_in_terminal(struct dialog *c, fathom_diag *d)
{
    HistEvent event;
    History *lines = history_init();
    EditLine *el = el_init("fathom", stdin, stdout, stderr);
    fathom_err err = FATHOM_OK;
    bool over = false;
    if (!lines || !el) {
        err = diag_fail(d, FATHOM_EIO, "the terminal cannot be set up for editing");
        goto done;
    }
    (void)history(lines, &event, H_SETSIZE, HISTORY_LINES);
    (void)el_set(el, EL_PROMPT, prompt_text);
    (void)el_set(el, EL_EDITOR, "emacs");
    (void)el_set(el, EL_SIGNAL, 1);
    (void)el_set(el, EL_HIST, history, lines);
    while (!over && !err) {
        int n = 0;
        const char *typed = el_gets(el, &n);
        if (!typed || n <= 0) break;
        (void)history(lines, &event, H_ENTER, typed);
        char *line = mem_strndup(typed, (size_t)n);
        err = line ? take_line(c, line, &over, d) : FATHOM_ENOMEM;
        mem_free(line);
    }
done:
    if (el) el_end(el);
    if (lines) history_end(lines);
    return err;
}

/* ---- without ----------------------------------------------------------------------------- */

/* Every line of standard input is a message. */
static fathom_err chat_by_lines(struct dialog *c, fathom_diag *d)
{
    char *line = NULL;
    size_t cap = 0;
    bool over = false;
    fathom_err err = FATHOM_OK;
    while (!over && !err && getline(&line, &cap, stdin) >= 0) err = take_line(c, line, &over, d);
    free(line); /* getline's */
    return err;
}

static fathom_err answer_prompt(struct dialog *c, const char *prompt, fathom_diag *d)
{
    struct buf text = {.limit = LIMIT_HTTP_BODY_BYTES};
    char chunk[4096];
    size_t n;
    if (strcmp(prompt, "-") != 0) return dialog_ask(c, prompt, d);
    while ((n = fread(chunk, 1, sizeof chunk, stdin)) > 0 && !buf_add(&text, chunk, n)) continue;
    fathom_err err = buf_status(&text);
    if (err) {
        err = diag_fail(d, err, "the prompt is longer than %d bytes", LIMIT_HTTP_BODY_BYTES);
    } else {
        err = dialog_ask(c, buf_str(&text), d);
    }
    buf_free(&text);
    return err;
}

/* Ctrl-C ends an answer. At the prompt it does nothing, so that one that comes a moment late does
 * not end the chat. */
static void interrupt_answer(void *dialog)
{
    dialog_interrupt(dialog);
}

fathom_err cmd_run(const struct invocation *v, fathom_diag *d)
{
    const struct settings *s = v->settings;
    struct signal_taker signals;
    struct text_model text = {0};
    struct dialog dialog = {0};
    fathom_engine *engine = NULL;
    fathom_options o;
    fathom_err err;
    (void)setlocale(LC_CTYPE, "");
    if (log_get_level() == LOG_LEVEL_INFO) log_set_level(LOG_LEVEL_WARN);
    TRY_GOTO(signal_taker_start(&signals, false, d), done);
    TRY_GOTO(text_model_open(&text, v->model, s, d), done);
    engine_options(&o, s, v->model);
    o.n_vocab_used = text.n_vocab_used;
    if (o.max_num_seqs == 0) o.max_num_seqs = 1;
    TRY_GOTO(fathom_open(&engine, &o, d), done);
    TRY_GOTO(dialog_open(&dialog, engine, &text, s, d), done);
    signal_taker_listen(&signals, interrupt_answer, &dialog);
    if (s->prompt) {
        err = answer_prompt(&dialog, s->prompt, d);
    } else if (isatty(STDIN_FILENO)) {
        fprintf(stderr, "%s; /help lists the commands\n", v->model->name);
        err = chat_in_terminal(&dialog, d);
    } else {
        err = chat_by_lines(&dialog, d);
    }
done:
    signal_taker_end(&signals);
    dialog_close(&dialog);
    fathom_close(engine);
    text_model_close(&text);
    return err;
}
