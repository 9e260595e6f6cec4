/* chunk.c - the automaton of a body in chunks */
#include "http/chunk.h"

#include "base/limits.h"

enum { DIGITS_MAX = 15 }; /* no size overflows */

static int hex_of(char c)
{
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

static void refuse(struct chunk_reader *r, const char *problem)
{
    r->problem = problem;
}

/* A byte of an extension or a trailer. */
static void skip(struct chunk_reader *r, char c)
{
    if (((unsigned char)c < 0x20 && c != '\t') || c == 0x7f) {
        refuse(r, "a chunk's extension or a trailer has a control character");
    } else if (++r->n_skipped > LIMIT_HTTP_CHUNK_EXTRA_BYTES) {
        refuse(r, "the extensions of chunks and trailers have more than 4 KiB");
    }
}

static void take_size(struct chunk_reader *r, char c)
{
    int digit = hex_of(c);
    if (digit >= 0 && r->n_digit < DIGITS_MAX) {
        r->left = r->left << 4 | (unsigned)digit;
        r->n_digit++;
    } else if (digit >= 0) {
        refuse(r, "a chunk's size has more than 15 digits");
    } else if (r->n_digit == 0 || (c != '\r' && c != ';')) {
        refuse(r, "a chunk's size is no hexadecimal number");
    } else {
        r->state = c == ';' ? CHUNK_EXTENSION : CHUNK_SIZE_LF;
    }
}

static void take_trailer(struct chunk_reader *r, char c)
{
    if (c == '\r') {
        r->state = CHUNK_TRAILER_LF;
    } else {
        r->in_trailer = true;
        skip(r, c);
    }
}

/* A byte that is none of the data. */
static void take(struct chunk_reader *r, char c)
{
    bool is_wanted = c == (r->state == CHUNK_DATA_CR ? '\r' : '\n');
    switch (r->state) {
    case CHUNK_SIZE: take_size(r, c); return;
    case CHUNK_EXTENSION:
        if (c == '\r') {
            r->state = CHUNK_SIZE_LF;
        } else {
            skip(r, c);
        }
        return;
    case CHUNK_TRAILER: take_trailer(r, c); return;
    case CHUNK_SIZE_LF:
        r->n_digit = 0;
        r->state = r->left ? CHUNK_DATA : CHUNK_TRAILER;
        break;
    case CHUNK_DATA_CR: r->state = CHUNK_DATA_LF; break;
    case CHUNK_DATA_LF: r->state = CHUNK_SIZE; break;
    case CHUNK_TRAILER_LF:
        r->state = r->in_trailer ? CHUNK_TRAILER : CHUNK_END;
        r->in_trailer = false;
        break;
    case CHUNK_DATA:
    case CHUNK_END: break;
    }
    if (!is_wanted) refuse(r, "a chunk, or its line, does not end in CR LF");
}

size_t chunk_read(struct chunk_reader *r, const char *bytes, size_t n, const char **data,
                  size_t *n_data)
{
    size_t i = 0;
    *data = bytes;
    *n_data = 0;
    while (i < n && !r->problem && r->state != CHUNK_END) {
        if (r->state != CHUNK_DATA) {
            take(r, bytes[i++]);
            continue;
        }
        *data = bytes + i;
        *n_data = n - i < r->left ? n - i : (size_t)r->left;
        r->left -= *n_data;
        if (r->left == 0) r->state = CHUNK_DATA_CR;
        return i + *n_data;
    }
    return i;
}
