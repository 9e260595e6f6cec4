/* web.h - the web page at "/": a chat, and the load of the server beside it
 *
 * Its files (src/server/web) are linked into the program and ask for nothing from outside. It
 * talks to this server alone: /v1/models, /v1/chat/completions, /metrics.
 */
#ifndef FATHOM_SERVER_WEB_WEB_H
#define FATHOM_SERVER_WEB_WEB_H

#include <stddef.h>

struct web_file {
    const char *path; /* "web.css"; NULL ends the table */
    const char *data; /* [n] */
    size_t n;
};

extern const struct web_file web_files[];

/* What a browser may do with the page: its own files and this server, nothing else. */
#define WEB_POLICY                                                                                 \
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "                    \
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

/* How a browser is told to ask for the API key. */
#define WEB_LOGIN "Basic realm=\"fathom: any name, the API key as the password\", charset=\"UTF-8\""

/* web_find - the file of a path after "/ui/"; "" is the page itself. NULL when there is none. */
const struct web_file *web_find(const char *path);

/* web_type - the media type of a path, by its ending */
const char *web_type(const char *path);

#endif
