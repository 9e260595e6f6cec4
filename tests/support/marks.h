/* marks.h - a rendered prompt whose messages spell no marker: every marker in it has its mark */
#ifndef FATHOM_TESTS_SUPPORT_MARKS_H
#define FATHOM_TESTS_SUPPORT_MARKS_H

#include "chat/chat.h"

/* render_marked - chat_render; fails the running test when a marker of the encodings is not
 * marked, or something else is */
fathom_err render_marked(const struct chat_style *s, const struct chat_request *r, struct buf *out,
                         fathom_diag *d);

#endif
