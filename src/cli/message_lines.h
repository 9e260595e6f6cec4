/* message_lines.h - a message of several lines
 *
 * A line that ends in a backslash goes on in the next one. What stands between two lines of """ is
 * one message, as it stands.
 */
#ifndef FATHOM_CLI_MESSAGE_LINES_H
#define FATHOM_CLI_MESSAGE_LINES_H

#include <stdbool.h>

#include "base/buf.h"

/* Zeroed: no line yet. */
struct message_lines {
    struct buf text;
    bool quoted; /* between two lines of """ */
    bool begun;  /* text has a line already */
};

/* message_lines_add - one more line, without its newline
 * Returns whether the message goes on. Out of memory shows in buf_status of the text. */
bool message_lines_add(struct message_lines *m, const char *line, size_t n);

/* message_lines_free - and ready for the next message */
void message_lines_free(struct message_lines *m);

#endif
