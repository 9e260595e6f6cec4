/* message_lines.c - a message of several lines */
#include "cli/message_lines.h"

#include <string.h>

bool message_lines_add(struct message_lines *m, const char *line, size_t n)
{
    bool mark = n == 3 && memcmp(line, "\"\"\"", 3) == 0;
    if (mark && (m->quoted || !m->begun)) {
        m->quoted = !m->quoted;
        return m->quoted;
    }
    bool goes_on = !m->quoted && n > 0 && line[n - 1] == '\\';
    if (m->begun) (void)buf_add_char(&m->text, '\n');
    (void)buf_add(&m->text, line, goes_on ? n - 1 : n);
    m->begun = true;
    return goes_on || m->quoted;
}

void message_lines_free(struct message_lines *m)
{
    buf_free(&m->text);
    m->quoted = m->begun = false;
}
