/* chat_shape.h - answers with tool calls in every form that models write, made from what they say
 *
 * The truth comes first: reasoning, content, calls with their arguments. The text is written from
 * it in one of many forms, none of which changes the meaning.
 */
#ifndef FATHOM_SUPPORT_CHAT_SHAPE_H
#define FATHOM_SUPPORT_CHAT_SHAPE_H

#include <jansson.h>

#include "base/buf.h"
#include "chat/chat.h"

enum { SHAPE_CALLS_MAX = 8 };

struct shape {
    enum chat_encoding markup;
    bool thinking;
    json_t *calls;        /* [{"name", "arguments"}] in order */
    json_t *tools;        /* of the request, with a type for each argument */
    struct buf text;      /* what the model writes */
    struct buf reasoning; /* what it means */
    struct buf content;
    struct buf args[SHAPE_CALLS_MAX]; /* V3, V3.1: the arguments to the byte; else empty */
    size_t begins[SHAPE_CALLS_MAX];   /* where in the text a call's name is complete */
    size_t ends[SHAPE_CALLS_MAX];     /* where its arguments are */
    char label[64];                   /* which forms were chosen */
};

/* shape_count - shapes of a markup, numbered from 0 */
size_t shape_count(enum chat_encoding markup);

/* shape_make - the shape of a number; released with shape_free. Allocations are ASSERTed. */
void shape_make(struct shape *out, enum chat_encoding markup, size_t number);
void shape_free(struct shape *s);

#endif
