/* terminal.h - messages typed at a terminal: editing, several lines, completion, history
 *
 * The history is kept in a file of the user's alone.
 */
#ifndef FATHOM_CLI_TERMINAL_H
#define FATHOM_CLI_TERMINAL_H

#include "cli/message_lines.h"
#include "fathom/err.h"

struct terminal;

/* terminal_open - standard input and output, which are a terminal
 *
 *   history  path of the history file; its folder is made. "": none is kept. A file that cannot be
 *            read or written is told once and left alone.
 * Errors EIO when the terminal cannot be set up. */
fathom_err terminal_open(struct terminal **out, const char *history, fathom_diag *d);

/* terminal_close - write the history; accepts NULL */
void terminal_close(struct terminal *t);

/* terminal_read - the next message into *m, which is empty
 * Errors ECANCEL at the end of the input (Ctrl-D); ENOMEM. */
fathom_err terminal_read(struct terminal *t, struct message_lines *m);

#endif
