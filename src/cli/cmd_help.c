/* cmd_help.c - fathom help, fathom version */
#include <stdio.h>

#include "base/fail.h"
#include "cli/cli.h"

fathom_err cmd_help(const struct invocation *v, fathom_diag *d)
{
    const struct settings *s = v->settings;
    enum command about = COMMAND_COUNT;
    const char *family = NULL; /* the first word of several commands */
    if (s->rest.n) {
        struct buf names = {0};
        size_t n_used;
        about = command_find(s->rest.items, s->rest.n, &n_used);
        (void)command_names(&names, s->rest.items[0]);
        if (names.len && s->rest.n == 1) family = s->rest.items[n_used++];
        buf_free(&names);
        if (n_used < s->rest.n) {
            FAIL(d, FATHOM_EINVAL, "\"%s\" is no command; `fathom help` lists them",
                 s->rest.items[n_used]);
        }
    }
    struct buf b = {0};
    fathom_err err = s->markdown     ? options_write_markdown(&b)
                     : s->flags      ? options_write_flags(&b)
                     : s->man        ? options_write_man(&b, about)
                     : s->completion ? options_write_completion(&b)
                                     : options_write_help(&b, about, family, d);
    if (!err) (void)fputs(buf_str(&b), stdout);
    buf_free(&b);
    return err;
}

fathom_err cmd_version(const struct invocation *v, fathom_diag *d)
{
    (void)v;
    (void)d;
    printf("fathom %s\n", FATHOM_VERSION);
    return FATHOM_OK;
}
