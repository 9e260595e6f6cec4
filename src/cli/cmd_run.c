/* cmd_run.c - fathom run: a chat in the terminal, or one prompt */
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fail.h"
#include "base/log.h"
#include "cli/dialog.h"
#include "cli/signals.h"
#include "cli/terminal.h"

/* One message of the user. Errors of one message do not end the chat; a fault of the device does.
 */
static fathom_err take_message(struct dialog *c, const char *message, bool *over, fathom_diag *d)
{
    if (message[0] == '\0') return FATHOM_OK;
    fathom_err err =
        message[0] == '/' ? dialog_command(c, message, over, d) : dialog_ask(c, message, d);
    if (err == FATHOM_EDEVICE || !err) return err;
    fprintf(stderr, "fathom: %s\n", d->text[0] ? d->text : fathom_err_text(err));
    diag_clear(d);
    return FATHOM_OK;
}

static fathom_err chat_in_terminal(struct dialog *c, const char *history, fathom_diag *d)
{
    struct terminal *terminal;
    struct message_lines message = {0};
    bool over = false;
    TRY(terminal_open(&terminal, history, d));
    fathom_err err = FATHOM_OK;
    while (!over && !err) {
        err = terminal_read(terminal, &message);
        if (!err) err = take_message(c, buf_str(&message.text), &over, d);
        message_lines_free(&message);
    }
    terminal_close(terminal);
    return err == FATHOM_ECANCEL ? FATHOM_OK : err;
}

/* Every line of standard input is a message, or a part of one. */
static fathom_err chat_by_lines(struct dialog *c, fathom_diag *d)
{
    struct message_lines message = {0};
    char *line = NULL;
    size_t cap = 0;
    bool over = false;
    fathom_err err = FATHOM_OK;
    while (!over && !err && getline(&line, &cap, stdin) >= 0) {
        if (message_lines_add(&message, line, strcspn(line, "\r\n"))) continue;
        err = buf_status(&message.text);
        if (!err) err = take_message(c, buf_str(&message.text), &over, d);
        message_lines_free(&message);
    }
    if (!err) err = input_check(d);
    free(line); /* getline's */
    message_lines_free(&message);
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
        err = input_check(d);
    }
    if (!err) err = dialog_ask(c, buf_str(&text), d);
    buf_free(&text);
    return err;
}

/* Ctrl-C ends an answer. One that comes a moment after the answer has ended does nothing. */
static void interrupt_answer(void *dialog, int number)
{
    (void)number;
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
    TRY_GOTO(signal_taker_start(&signals, SIGNALS_INTERRUPT, d), done);
    TRY_GOTO(text_model_open(&text, v->model, s, d), done);
    engine_options(&o, s, v->model);
    o.n_vocab_used = text.n_vocab_used;
    if (o.max_num_seqs == 0) o.max_num_seqs = 1;
    TRY_GOTO(engine_open(&engine, &o, d), done);
    TRY_GOTO(dialog_open(&dialog, engine, &text, s, d), done);
    signal_taker_listen(&signals, interrupt_answer, &dialog);
    if (s->prompt) {
        err = answer_prompt(&dialog, s->prompt, d);
    } else if (isatty(STDIN_FILENO)) {
        fprintf(stderr, "%s; /help lists the commands\n", v->model->name);
        err = chat_in_terminal(&dialog, v->environment->history, d);
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
