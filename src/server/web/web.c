/* web.c - finds the files of the web page by their path */
#include "server/web/web.h"

#include <string.h>

_Static_assert(sizeof(struct web_file) == 3 * 8, "web_files.S writes rows of three words");

const struct web_file *web_find(const char *path)
{
    if (!*path) path = "index.html";
    for (const struct web_file *f = web_files; f->path; f++) {
        if (strcmp(f->path, path) == 0) return f;
    }
    return NULL;
}

const char *web_type(const char *path)
{
    const char *dot = strrchr(path, '.');
    if (dot && strcmp(dot, ".js") == 0) return "text/javascript; charset=utf-8";
    if (dot && strcmp(dot, ".css") == 0) return "text/css; charset=utf-8";
    if (dot && strcmp(dot, ".svg") == 0) return "image/svg+xml";
    return "text/html; charset=utf-8";
}
