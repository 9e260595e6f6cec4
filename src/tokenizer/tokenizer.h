/* tokenizer.h - text to token ids and back, driven by tokenizer.json or tiktoken.model
 *
 * Byte-level BPE of this family: Split pre-tokenizers by regular expression, ByteLevel, merges,
 * added tokens special and not. A tokenizer is immutable after tokenizer_open and may be used by
 * any number of threads; what a call needs besides is in its arguments.
 */
#ifndef FATHOM_TOKENIZER_TOKENIZER_H
#define FATHOM_TOKENIZER_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "fathom/err.h"
#include "tokenizer/token_list.h"

struct tokenizer;

/* tokenizer_open - from the bytes of a tokenizer.json
 *
 *   json, n   the file's bytes; not needed after the call
 *   what      names the input in messages
 * Errors  EFORMAT      malformed, with the byte or the entry and what was expected
 *         EUNSUPPORTED a kind or setting that changes ids and is not of this family, with its key
 *         ELIMIT       over LIMIT_TOKEN_IDS, LIMIT_TOKEN_BYTES, LIMIT_MERGES, LIMIT_SPLITS
 *         ENOMEM
 * Cost    about 8 ms for each megabyte; 6 MB of memory for 128,000 tokens. */
fathom_err tokenizer_open(struct tokenizer **out, const char *json, size_t n, const char *what,
                          fathom_diag *d);

/* tokenizer_open_file - the same for a file; ENOTFOUND or EIO when it cannot be read */
fathom_err tokenizer_open_file(struct tokenizer **out, const char *path, fathom_diag *d);

/* Kimi's tokenizer: tokens and ranks, and the special tokens' names. */
struct tokenizer_ranks {
    const char *text; /* n bytes: tiktoken.model, a line "base64 rank" for each token */
    size_t n;
    const char *config; /* n_config bytes: tokenizer_config.json; or NULL */
    size_t n_config;
    const char *what; /* names the ranks in messages */
};

/* tokenizer_open_ranks - from a tiktoken.model and its tokenizer_config.json
 *
 * Ids are ranks, all from 0 on; behind them come 256 special tokens, named by added_tokens_decoder
 * or else "<|reserved_token_ID|>". Text is cut by Kimi's pattern.
 * Errors  EFORMAT, with the line or the member; ELIMIT over LIMIT_TOKEN_IDS, LIMIT_TOKEN_BYTES or
 *         LIMIT_MERGES ways to cut tokens in two; ENOMEM.
 * Source  tokenization_kimi.py of moonshotai/Kimi-K2-Thinking. It also cuts text of more than
 *         25,000 characters with no white space in it, or nothing else, which is not done here. */
fathom_err tokenizer_open_ranks(struct tokenizer **out, const struct tokenizer_ranks *ranks,
                                fathom_diag *d);
void tokenizer_close(struct tokenizer *t); /* accepts NULL */

enum tokenizer_markup {
    TOKENIZER_MARKUP_ON,  /* added tokens in the text become their ids (a rendered prompt) */
    TOKENIZER_MARKUP_OFF, /* no added token is matched (text that nobody vouches for) */
};

/* tokenizer_encode - append the ids of text[0 .. n) to *out
 *
 * Ill-formed UTF-8 is read as U+FFFD, one for each maximal ill-formed part. No BOS is added.
 * Errors  ENOMEM; ELIMIT for 4 GB of text, or when a pattern other than this family's runs away on
 *         it; with a limit in *out also once out->n is above it, and for a piece between splits of
 *         more than LIMIT_PIECE_BYTES. *out then holds a prefix.
 * Cost    linear in n in practice, whatever the text. No memory but *out's for ordinary text; 32
 *         bytes for each byte of the longest piece between splits when that is over 64 bytes. */
fathom_err tokenizer_encode(const struct tokenizer *t, const char *text, size_t n,
                            enum tokenizer_markup markup, struct token_list *out);

/* tokenizer_encode_marked - the same, and an added token is one only where a mark says so;
 * elsewhere its spelling is text like any other
 *
 *   marks   [n_mark] offsets into text, ascending
 * Needs   text is well-formed UTF-8. */
fathom_err tokenizer_encode_marked(const struct tokenizer *t, const char *text, size_t n,
                                   const size_t *marks, size_t n_mark, struct token_list *out);

/* tokenizer_n_token - one more than the largest id that has a token */
int32_t tokenizer_n_token(const struct tokenizer *t);

/* tokenizer_find - id of the token spelled exactly so (added tokens first, then the vocabulary, in
 * its plain bytes); -1 if there is none */
int32_t tokenizer_find(const struct tokenizer *t, const char *text);

/* tokenizer_bytes - the bytes a token stands for; *n = 0 for an id without a token. The string
 * belongs to the tokenizer and is not terminated. */
const char *tokenizer_bytes(const struct tokenizer *t, int32_t id, size_t *n);

/* tokenizer_is_special - whether the token is added and marked special (BOS, EOS, DSML ...) */
bool tokenizer_is_special(const struct tokenizer *t, int32_t id);
bool tokenizer_is_added(const struct tokenizer *t, int32_t id);

/* tokenizer_decode - append the bytes of ids to *out; ill-formed parts become U+FFFD. With
 * skip_special, special tokens leave no text. */
fathom_err tokenizer_decode(const struct tokenizer *t, const int32_t *ids, size_t n,
                            bool skip_special, struct buf *out);

#endif
