/* buffer_shape.h - the shapes of activations: how many rows a buffer has, how wide they are */
#ifndef FATHOM_BACKEND_BUFFER_SHAPE_H
#define FATHOM_BACKEND_BUFFER_SHAPE_H

#include <stdint.h>

#include "backend/backend.h"

/* A row of `width` f32 values as buffer_read gives it. The first main_width of them are the row
 * itself; in two kinds something follows: in QUERY the index query and its weights, in ROUTE the
 * weights of the experts. */
struct buffer_shape {
    uint32_t n_row;
    uint32_t width;
    uint32_t main_width;
};

/* buffer_shape_of - the shape of a kind under this configuration; pure */
struct buffer_shape buffer_shape_of(const struct backend_config *c, enum buffer_kind kind);

#endif
