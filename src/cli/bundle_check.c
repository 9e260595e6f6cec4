/* bundle_check.c - the layouts that pilot_bundle.S writes by hand */
#include <assert.h>
#include <stddef.h>

#include "cli/pilot_bundle.h"

static_assert(sizeof(void *) == 8 && sizeof(size_t) == 8, "LP64");
static_assert(sizeof(fathom_bundle_file) == 24 && offsetof(fathom_bundle_file, name) == 0 &&
                  offsetof(fathom_bundle_file, data) == 8 &&
                  offsetof(fathom_bundle_file, size) == 16,
              "a row of pilot_bundle.S");
static_assert(sizeof(fathom_bundle) == 24 && offsetof(fathom_bundle, name) == 0 &&
                  offsetof(fathom_bundle, files) == 8 && offsetof(fathom_bundle, n_file) == 16,
              "pilot_bundle of pilot_bundle.S");
