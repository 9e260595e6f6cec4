/* fail.c - the names of errors, and the one message of a failure */
#include "base/fail.h"

#include <stdarg.h>
#include <stdio.h>

#include "base/assert.h"

const char *fathom_err_name(fathom_err err)
{
    switch (err) {
#define NAME(name, value, text)                                                                    \
    case FATHOM_##name: return #name;
        FATHOM_ERR_MAP(NAME)
#undef NAME
    }
    return "E?";
}

const char *fathom_err_text(fathom_err err)
{
    switch (err) {
#define TEXT(name, value, text)                                                                    \
    case FATHOM_##name: return text;
        FATHOM_ERR_MAP(TEXT)
#undef TEXT
    }
    return "unknown error";
}

fathom_err diag_fail(fathom_diag *d, fathom_err code, const char *fmt, ...)
{
    ASSERT(code != FATHOM_OK);
    if (!d || d->text[0] != '\0') return code;
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(d->text, sizeof d->text, fmt, ap);
    va_end(ap);
    return code;
}

void diag_clear(fathom_diag *d)
{
    if (d) d->text[0] = '\0';
}
