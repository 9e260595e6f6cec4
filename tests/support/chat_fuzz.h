/* chat_fuzz.h - the properties of the answer parser, for its fuzzers */
#ifndef FATHOM_SUPPORT_CHAT_FUZZ_H
#define FATHOM_SUPPORT_CHAT_FUZZ_H

#include <stddef.h>
#include <stdint.h>

#include "chat/chat.h"

/* chat_fuzz_answer - ASSERT, for any bytes:
 *
 *   - the events joined are the same whole, byte by byte and in random pieces
 *   - text without '<' comes out as it went in
 *   - no byte appears from nowhere: without calls, what comes out is what went in less think tags
 *   - V3.2: the arguments of every call are JSON, unless a bare object stands for them
 *
 * The first byte chooses options and the cut; the rest is the text. */
void chat_fuzz_answer(enum chat_encoding markup, const uint8_t *data, size_t size);

#endif
