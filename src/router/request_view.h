/* request_view.h - what a router looks at in the body of a request
 *
 * A body of 64 KB is a few times larger than all else that a router does for a request, so it is
 * not parsed: one pass finds where the values of its outer members begin and end. A body that is no
 * JSON object is none of the router's business; the server that gets it will say so.
 */
#ifndef FATHOM_ROUTER_REQUEST_VIEW_H
#define FATHOM_ROUTER_REQUEST_VIEW_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Prompts are compared by blocks of so many bytes, some 64 tokens of English. */
enum { VIEW_BLOCK_BYTES = 256, VIEW_BYTES_PER_TOKEN = 4 };

struct request_view {
    bool is_object;
    bool stream;       /* the answer is wanted as it comes */
    bool stays;        /* who answers computes the prompt too; see request_view_read */
    bool echoes;       /* the answer begins with the prompt */
    bool tells;        /* log-probabilities of the answer's tokens are wanted */
    bool has_previous; /* it goes on from a response that one server has */
    bool has_resume;   /* it goes on from tokens of its own already */
    size_t inside;     /* where the first member begins: behind the brace */
    bool is_empty;     /* the object has no member */
    uint64_t before;   /* of what a prompt has in front of its text: model, tools, system, salt */
    const char *text;  /* [n_text] the value of messages, prompt, input or text; NULL: none */
    size_t n_text;
};

/* request_view_read - look at a body, which is borrowed
 *
 * A prompt stays where it is answered if the request says itself who has its pages, if it is cut to
 * leave room for the answer (with another answer it is another prompt), or if its log-probabilities
 * are wanted, which pages do not have.
 * Cost    a pass over the bytes, some 1 GB/s. */
void request_view_read(struct request_view *v, const char *body, size_t n);

/* request_view_keys - a key for each whole block of the text and all before it
 *
 *   keys  [max]
 * Returns how many: at most max. */
size_t request_view_keys(const struct request_view *v, uint64_t *keys, size_t max);

/* request_view_tokens - how long the prompt is, about */
uint64_t request_view_tokens(const struct request_view *v);

#endif
