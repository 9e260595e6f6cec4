/* dialog_command.h - what a line that begins with '/' does in `fathom run` */
#ifndef FATHOM_CLI_DIALOG_COMMAND_H
#define FATHOM_CLI_DIALOG_COMMAND_H

#include "base/buf.h"
#include "cli/dialog.h"

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
