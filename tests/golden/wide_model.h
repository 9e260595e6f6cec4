/* wide_model.h - a checkpoint of which the tree keeps config.json and the header alone */
#ifndef FATHOM_TESTS_GOLDEN_WIDE_MODEL_H
#define FATHOM_TESTS_GOLDEN_WIDE_MODEL_H

#include <stdbool.h>

/* wide_model_is_header - whether dir has a model.header.json */
bool wide_model_is_header(const char *dir);

/* wide_model_write - the checkpoint of `dir` into directory `out`: every tensor is a function of
 * its name, and of its columns. Fails the running test on an error. Source tools/make_wide_model.py
 * makes the same bytes. */
void wide_model_write(const char *dir, const char *out);

#endif
