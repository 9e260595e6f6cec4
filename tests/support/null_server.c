/* null_server.c - server and engine over a null runner */
#include "support/null_server.h"

#include "base/fail.h"
#include "tokenizer/tokenizer.h"

#define TOKENIZER_JSON FATHOM_SOURCE_DIR "/models/pilot/tokenizer.json"

fathom_err null_server_open(struct null_server *s, const struct null_engine_options *e,
                            const struct server_options *o, fathom_diag *d)
{
    static const char *const names[] = {"m"};
    const struct chat_style style = {.encoding = CHAT_ENCODING_V32,
                                     .tool_markup = CHAT_ENCODING_V32,
                                     .parse_tools = true,
                                     .parse_reasoning = true};
    struct null_engine_options engine = *e;
    struct server_options server = o ? *o : (struct server_options){0};
    *s = (struct null_server){0};
    TRY(tokenizer_open_file(&s->tokenizer, TOKENIZER_JSON, d));
    engine.n_vocab = (uint32_t)tokenizer_n_token(s->tokenizer);
    server.model_names = names;
    server.n_model_name = 1;
    TRY(null_engine_open(&s->engine, &engine, d));
    TRY(server_create(&s->server, &server, s->engine, s->tokenizer, &style, d));
    s->port = server_port(s->server);
    return FATHOM_OK;
}

void null_server_close(struct null_server *s)
{
    server_destroy(s->server);
    fathom_close(s->engine);
    tokenizer_close(s->tokenizer);
    *s = (struct null_server){0};
}
