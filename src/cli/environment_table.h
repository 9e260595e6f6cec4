/* environment_table.h - the variables that operators bring from vLLM, each with its answer */
#ifndef FATHOM_CLI_ENVIRONMENT_TABLE_H
#define FATHOM_CLI_ENVIRONMENT_TABLE_H

#include <stdbool.h>
#include <stddef.h>

#include "base/buf.h"

struct environment_row {
    const char *pattern; /* a name, or a beginning and '*' */
    bool acts;
    const char *text; /* what it does, or why it does nothing */
};

extern const struct environment_row environment_table[];
extern const size_t environment_table_n;

/* environment_find - the first row that a variable's name (n bytes) fits; NULL: none */
const struct environment_row *environment_find(const char *name, size_t n);

/* environment_notes - one line for each row without effect that `variables` ("NAME=value", ended by
 * NULL) fit; one for names that begin with FATHOM_ and are no option's */
fathom_err environment_notes(struct buf *notes, char *const *variables);

#endif
