/* dialog.h - one conversation with an engine, printed as it streams */
#ifndef FATHOM_CLI_DIALOG_H
#define FATHOM_CLI_DIALOG_H

#include <jansson.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "base/buf.h"
#include "cli/cli.h"

/* Answers stream to standard output, reasoning dimmed when it is a terminal; numbers go to
 * standard error. */
struct dialog {
    fathom_engine *engine;         /* borrowed */
    const struct text_model *text; /* borrowed */
    json_t *messages;              /* OpenAI's form, the system message first if there is one */
    bool thinking;
    bool colour;
    double temperature; /* negative: the checkpoint's, here and below */
    double top_p;
    uint32_t max_tokens; /* 0: up to the context */
    bool has_seed;
    uint64_t seed;
    _Atomic bool interrupted; /* set by dialog_interrupt, cleared when an answer begins */
};

/* dialog_open - an empty conversation; closed with dialog_close, which accepts a zeroed struct.
 * Errors ENOMEM; EINVAL when the system message is not UTF-8. */
fathom_err dialog_open(struct dialog *c, fathom_engine *e, const struct text_model *t,
                       const struct settings *s, fathom_diag *d);
void dialog_close(struct dialog *c);

/* dialog_set_system - the system message from now on; "" or NULL: none
 * Errors EINVAL, and nothing changes, when it is not UTF-8; ENOMEM. */
fathom_err dialog_set_system(struct dialog *c, const char *text, fathom_diag *d);

/* dialog_system - "" when there is none; valid until the messages change */
const char *dialog_system(const struct dialog *c);

/* dialog_reset - forget the messages, but for the system message */
void dialog_reset(struct dialog *c);

/* dialog_undo - forget the last message of the user and all after it; false when there is none */
bool dialog_undo(struct dialog *c);

/* dialog_interrupt - end the answer that is streaming, if one is; may be called from any thread */
void dialog_interrupt(struct dialog *c);

/* dialog_ask - add a user message, stream the answer, add it too
 *
 * Errors  what the chat encoding or the engine refuses (too long, say): the message is taken back
 *         and the conversation may go on; EDEVICE ends it. */
fathom_err dialog_ask(struct dialog *c, const char *message, fathom_diag *d);

/* dialog_retry - answer the last message of the user again
 * Errors as dialog_ask; EINVAL when there is none. */
fathom_err dialog_retry(struct dialog *c, fathom_diag *d);

/* dialog_save, dialog_load - the messages as a JSON array in a file
 * Errors  EIO, ENOTFOUND; load: EFORMAT for what is no list of messages, and nothing changes. */
fathom_err dialog_save(const struct dialog *c, const char *path, fathom_diag *d);
fathom_err dialog_load(struct dialog *c, const char *path, fathom_diag *d);

/* ---- lines that begin with '/' (dialog_command.c) ------------------------------------------- */

/* dialog_command - do a command; what there is to tell goes to standard error
 *
 *   line  "/name argument", without the newline
 *   over  set when the chat ends
 * Errors  those of dialog_retry and of the files it reads; an unknown command or a wrong argument
 *         is EINVAL, and the chat may go on. */
fathom_err dialog_command(struct dialog *c, const char *line, bool *over, fathom_diag *d);

/* dialog_command_complete - what can follow the beginning of a command's name
 *
 *   typed  n bytes that begin with '/'
 *   out    what all commands that begin so have next, and a blank when it is one command
 * Returns how many commands there are. */
size_t dialog_command_complete(const char *typed, size_t n, struct buf *out);

#endif
