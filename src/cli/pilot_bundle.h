/* pilot_bundle.h - models/pilot, linked into the program (pilot_bundle.S) */
#ifndef FATHOM_CLI_PILOT_BUNDLE_H
#define FATHOM_CLI_PILOT_BUNDLE_H

#include "fathom/fathom.h"

/* The bundle "pilot". Its data are in read-only memory, each file on a 64-byte boundary. */
extern const fathom_bundle pilot_bundle;

#endif
