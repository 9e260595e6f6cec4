/* fake_server.c - the server over the scripted engine, as a program for foreign clients
 *
 *   fake_server [-l TOKENS] TOKENIZER.JSON [PORT [API_KEY [CERTIFICATE.PEM KEY.PEM]]]
 *
 * The context holds so many tokens (4096). An empty API_KEY asks for none; with a certificate it
 * serves TLS. Prints the port on its first line and serves until it gets SIGINT or SIGTERM. What it
 * answers is told by the prompt: see fake_script_directives.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/os.h"
#include "server/server.h"
#include "support/fake_engine.h"

static struct server *running;

/* A whole file as text; exits when it cannot be read. */
static char *read_text(const char *path)
{
    struct file_map map;
    fathom_diag d = {{0}};
    if (file_map_open(&map, path, &d) != FATHOM_OK) {
        fprintf(stderr, "%s\n", d.text);
        exit(2);
    }
    char *text = mem_strndup(map.data ? map.data : "", map.size);
    file_map_close(&map);
    return text;
}

static void on_signal(int number)
{
    (void)number;
    server_stop(running);
}

int main(int argc, char **argv)
{
    static const char *const names[] = {"fake", "deepseek-ai/DeepSeek-V3.2"};
    struct tokenizer *t;
    fathom_diag d = {{0}};
    uint32_t max_model_len = 0;
    if (argc > 3 && strcmp(argv[1], "-l") == 0) {
        max_model_len = (uint32_t)atoi(argv[2]);
        argc -= 2;
        argv += 2;
    }
    if (argc < 2 || tokenizer_open_file(&t, argv[1], &d) != FATHOM_OK) {
        fprintf(stderr,
                "usage: fake_server [-l TOKENS] TOKENIZER.JSON [PORT [API_KEY [CERTIFICATE "
                "KEY]]]\n%s\n",
                d.text);
        return 2;
    }
    struct fake_options fake = {
        .script = fake_script_directives, .arg = t, .max_model_len = max_model_len};
    fathom_engine *e = fake_engine_open(&fake);
    const char *keys[] = {argc > 3 ? argv[3] : ""};
    char *certificate = argc > 5 ? read_text(argv[4]) : NULL;
    char *key = argc > 5 ? read_text(argv[5]) : NULL;
    struct server_options o = {.port = (uint16_t)(argc > 2 ? atoi(argv[2]) : 0),
                               .model_names = names,
                               .n_model_name = 2,
                               .api_keys = keys,
                               .n_api_key = keys[0][0] ? 1 : 0,
                               .tls.certificate = certificate,
                               .tls.key = key,
                               .idle_line_ms = 1000};
    struct chat_style style = {.encoding = CHAT_ENCODING_V32,
                               .tool_markup = CHAT_ENCODING_V32,
                               .parse_tools = true,
                               .parse_reasoning = true};
    fathom_err err = server_create(&running, &o, e, t, &style, &d);
    if (!err) {
        (void)signal(SIGINT, on_signal);
        (void)signal(SIGTERM, on_signal);
        printf("%u\n", server_port(running));
        (void)fflush(stdout);
        err = server_run(running, &d);
    }
    if (err) fprintf(stderr, "%s\n", d.text);
    server_destroy(running);
    fathom_close(e);
    tokenizer_close(t);
    mem_free(certificate);
    mem_free(key);
    return err ? 1 : 0;
}
