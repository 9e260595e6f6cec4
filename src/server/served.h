/* served.h - what is served: a model behind its engine, its tokenizer and chats, under options
 *
 * Nothing of it changes once served_open has returned, so any thread reads it without a lock; the
 * ring of keys has one of its own.
 */
#ifndef FATHOM_SERVER_SERVED_H
#define FATHOM_SERVER_SERVED_H

#include "chat/chat.h"
#include "fathom/fathom.h"
#include "server/server_options.h"
#include "tokenizer/token_list.h"

struct served {
    struct server_options o; /* defaults filled in */
    struct key_ring *keys;
    fathom_engine *engine;
    const fathom_info *info;
    const struct tokenizer *tokenizer;
    struct chat_style style;
    struct token_list thinking_closing; /* o.thinking_closing */
    size_t max_prompt_bytes;            /* text longer than this cannot fit the context */
    bool add_bos;                       /* a completion's text begins with BOS */
    int64_t created;                    /* when, seconds since 1970 */
    uint64_t created_us;                /* likewise; a server that starts again has another */
};

/* served_open - arguments as of server_create; all but options and style are borrowed
 * Errors  EFORMAT (tokenizer_config.json), EINVAL (an API key, a closing that is too long),
 *         ENOMEM. */
fathom_err served_open(struct served *out, const struct server_options *o, fathom_engine *e,
                       const struct tokenizer *t, const struct chat_style *style, fathom_diag *d);

/* served_close - accepts what served_open has refused, and zeroes */
void served_close(struct served *s);

/* served_salt - the salt under which a request's cached prompts are found
 *
 *   tenant  of the request's key
 *   salt    that the request asks for; 0: none */
uint64_t served_salt(const struct served *s, uint32_t tenant, uint64_t salt);

#endif
