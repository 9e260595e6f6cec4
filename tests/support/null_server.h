/* null_server.h - the real server over the real engine over a runner without a model
 *
 * Everything but the numbers is as in production, so it is for what server and engine owe each
 * other, and for what both cost. The tokenizer is the pilot's; the model's name is "m".
 */
#ifndef FATHOM_TESTS_SUPPORT_NULL_SERVER_H
#define FATHOM_TESTS_SUPPORT_NULL_SERVER_H

#include "server/server.h"
#include "support/null_runner.h"

struct null_server {
    fathom_engine *engine;
    struct tokenizer *tokenizer;
    struct server *server;
    uint16_t port;
};

/* null_server_open - e's n_vocab and o's model names are set here; o NULL: defaults. A failure has
 * its message in d and leaves *s for null_server_close. */
fathom_err null_server_open(struct null_server *s, const struct null_engine_options *e,
                            const struct server_options *o, fathom_diag *d);
void null_server_close(struct null_server *s); /* accepts a zeroed struct */

#endif
