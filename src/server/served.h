/* served.h - what is served: a model behind its engine, its tokenizer and chats, under options
 *
 * Nothing of it changes once served_open has returned, so any thread reads it without a lock.
 */
#ifndef FATHOM_SERVER_SERVED_H
#define FATHOM_SERVER_SERVED_H

#include "chat/chat.h"
#include "fathom/fathom.h"
#include "server/server_options.h"

struct served {
    struct server_options o; /* defaults filled in */
    fathom_engine *engine;
    const fathom_info *info;
    const struct tokenizer *tokenizer;
    struct chat_style style;
    size_t max_prompt_bytes; /* text longer than this cannot fit the context */
    bool add_bos;            /* a completion's text begins with BOS */
    int64_t created;         /* when, seconds since 1970 */
};

/* served_open - arguments as of server_create; all but options and style are borrowed
 * Errors  EFORMAT (tokenizer_config.json), ENOMEM. */
fathom_err served_open(struct served *out, const struct server_options *o, fathom_engine *e,
                       const struct tokenizer *t, const struct chat_style *style, fathom_diag *d);

#endif
