/* world.h - a server over the scripted engine on a free port, and what its tests say to it
 *
 * Every function fails the running test when the world is not as it says.
 */
#ifndef FATHOM_TESTS_WORLD_H
#define FATHOM_TESTS_WORLD_H

#include <jansson.h>
#include <stdint.h>

#include "server/server.h"
#include "support/fake_engine.h"
#include "support/http_client.h"

#define CHAT "/v1/chat/completions"
#define COMPLETIONS "/v1/completions"

struct world {
    fathom_engine *engine;
    struct server *server;
    uint16_t port;
};

/* world_tokenizer - of all worlds; opened by world_setup, closed by world_teardown, which are made
 * for cmocka_run_group_tests */
struct tokenizer *world_tokenizer(void);
int world_setup(void **state);
int world_teardown(void **state);

/* The names "m" and "deepseek-ai/DeepSeek-V3.2" are served. */
extern const char *const world_model_names[2];

/* world_open - options without model names; NULL: defaults. An engine without a script has that of
 * directives. world_close - the server, then the engine, which must have no request left. */
void world_open(struct world *w, const struct server_options *with,
                const struct fake_options *fake);
void world_close(struct world *w);

/* world_connect - a client of the world */
void world_connect(struct http_client *c, const struct world *w);

/* chat_body - a chat whose one message is [[script]], then more fields (",\"stream\":true") */
void chat_body(char *body, size_t bytes, const char *script, const char *fields);

/* ask - send a request on an open connection and read its whole reply */
void ask(struct http_client *c, struct http_reply *r, const char *method, const char *path,
         const char *headers, const char *body);

/* ask_json - ask; the tree of the reply's body, whatever its status */
json_t *ask_json(struct http_client *c, const char *method, const char *path, const char *headers,
                 const char *body);

/* assert_reply - this status, and `part` within the body; releases the reply */
void assert_reply(struct http_reply *r, int status, const char *part);

/* expect, expect_chat - ask and assert_reply; send_chat - without reading */
void expect(struct http_client *c, const char *method, const char *path, const char *body,
            int status, const char *part);
void expect_chat(struct http_client *c, const char *script, const char *fields, int status,
                 const char *part);
void send_chat(struct http_client *c, const char *script, const char *fields);

/* wait_for_count - up to 5 s until a counter of the scripted engine has this value */
typedef uint64_t world_counter(fathom_engine *e);
void wait_for_count(fathom_engine *e, world_counter *count, uint64_t want);

#endif
