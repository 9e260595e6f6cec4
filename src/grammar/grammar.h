/* grammar.h - constrained decoding: output held to a JSON schema, a pattern, a choice, a grammar
 *
 * A grammar is compiled once for a vocabulary and shared by requests. Each request has a matcher:
 * the place of its output in the grammar. The matcher gives a bit mask of the tokens that may come
 * next, and goes over the token that was drawn. docs/grammar.md holds the design.
 *
 *   vocab    grammar_vocab_create      once for a tokenizer, about 0.1 s
 *   grammar  grammar_from_*            once for a schema; retained and released
 *            builder.h                 a grammar of one's own, with these among its parts
 *   request  matcher_create, then for each token matcher_fill_mask, matcher_accept_token
 *
 * Vocabularies and grammars may be used by any number of threads, a matcher by one at a time.
 */
#ifndef FATHOM_GRAMMAR_GRAMMAR_H
#define FATHOM_GRAMMAR_GRAMMAR_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "fathom/err.h"
#include "tokenizer/tokenizer.h"

enum {
    GRAMMAR_STATES_MAX = 1 << 17,  /* states of a compiled grammar: ELIMIT */
    GRAMMAR_RULES_MAX = 1 << 14,   /* its rules, about one for each subschema: ELIMIT */
    GRAMMAR_DEPTH_MAX = 512,       /* rules open at once; deeper nesting is not allowed */
    GRAMMAR_TOKEN_BYTES_MAX = 255, /* longer tokens are never allowed */
    GRAMMAR_MARKERS_MAX = 64,      /* different added tokens in the markup of a grammar: ELIMIT */
    GRAMMAR_EOS_MAX = 8,           /* ids that end the output: ELIMIT */
    GRAMMAR_CHOICES_MAX = 4096,    /* strings of a choice: ELIMIT */
    GRAMMAR_CHOICE_BYTES_MAX = 1 << 18, /* all of them together: ELIMIT */
    EBNF_BYTES_MAX = 1 << 20,           /* a grammar in EBNF: ELIMIT */
    EBNF_RULES_MAX = 1 << 13,           /* its rules: ELIMIT */
    EBNF_NODES_MAX = 1 << 17,           /* its texts, classes, references, groups: ELIMIT */
    EBNF_DEPTH_MAX = 100,               /* nested groups: ELIMIT */
    EBNF_REPEAT_MAX = 16384,            /* m and n of {m,n}: ELIMIT */
};

/* ---- vocabulary ------------------------------------------------------------------------- */

struct grammar_vocab;

/* grammar_vocab_create - what masks need to know about a tokenizer
 *
 *   t  read during the call only
 * Special tokens are never allowed by a grammar. Other added tokens (markers) are allowed where the
 * grammar's own markup has them and nowhere else, not even where any text may stand.
 * Errors  EUNSUPPORTED when a byte that UTF-8 uses is no token: some texts could not be finished.
 *         ENOMEM.
 * Cost    for 128,000 tokens 0.1 s and 6 MB. */
fathom_err grammar_vocab_create(struct grammar_vocab **out, const struct tokenizer *t,
                                fathom_diag *d);
void grammar_vocab_destroy(struct grammar_vocab *v); /* accepts NULL */

/* grammar_vocab_n_word - 32-bit words of a mask: one bit for each id of the tokenizer */
size_t grammar_vocab_n_word(const struct grammar_vocab *v);

/* ---- grammar ---------------------------------------------------------------------------- */

struct grammar;

/* White space between the tokens of JSON text. */
enum grammar_space {
    GRAMMAR_SPACE_LINES, /* as ONE; and a newline with its indentation after { [ and , and before }
                            and ] */
    GRAMMAR_SPACE_ONE,   /* at most one blank after , and : (what json.dumps writes, and compact) */
    GRAMMAR_SPACE_NONE,
};

struct grammar_options {
    enum grammar_space space;
    bool open_objects; /* an object schema with "properties" and without "additionalProperties"
                          takes others too; false: it has the named ones only */
    bool lenient;      /* keywords that are not supported are ignored; false: EUNSUPPORTED */
};

/* JSON in general, without a schema. Numbers have at most 18 digits before and after the point and
 * an exponent of two. */
enum grammar_json {
    GRAMMAR_JSON_VALUE,
    GRAMMAR_JSON_OBJECT,
    GRAMMAR_JSON_ARRAY,
    GRAMMAR_JSON_NUMBER,
    GRAMMAR_JSON_INTEGER,
    GRAMMAR_JSON_COUNT,
};

/* grammar_from_schema - the JSON values that a schema describes, up to what docs/grammar.md lists
 *
 *   v        outlives the grammar
 *   options  NULL: all zero
 * Errors  EUNSUPPORTED  naming the keyword and where it stands ("#/properties/a/not")
 *         EINVAL        the schema is malformed or nothing satisfies it, with its place
 *         ELIMIT, ENOMEM
 * Owns    *out, to be released. */
fathom_err grammar_from_schema(struct grammar **out, const struct grammar_vocab *v,
                               const json_t *schema, const struct grammar_options *options,
                               fathom_diag *d);

/* grammar_from_json_object - any JSON object */
fathom_err grammar_from_json_object(struct grammar **out, const struct grammar_vocab *v,
                                    const struct grammar_options *options, fathom_diag *d);

/* grammar_from_regex - the texts that a pattern (grammar/regex.h) matches as a whole */
fathom_err grammar_from_regex(struct grammar **out, const struct grammar_vocab *v,
                              const char *pattern, size_t n, fathom_diag *d);

/* grammar_from_choice - one of the strings of a JSON array; EINVAL when it is no such thing */
fathom_err grammar_from_choice(struct grammar **out, const struct grammar_vocab *v,
                               const json_t *choices, fathom_diag *d);

/* grammar_from_ebnf - the texts of the rule `root` of a grammar, n bytes in GBNF; without "::=" in
 * it, those of the rule `start` in Lark's notation (docs/grammar.md)
 *
 * Errors  EINVAL        no well-formed grammar, with line and column; a rule is named and not
 *                       defined, defined twice, or no text of it ever ends
 *         EUNSUPPORTED  what the notation has and this does not, with its line
 *         ELIMIT, ENOMEM */
fathom_err grammar_from_ebnf(struct grammar **out, const struct grammar_vocab *v, const char *text,
                             size_t n, fathom_diag *d);

/* grammar_from_tag - the texts that a structural tag describes: free text in which tags begin, or
 * formats one after the other (docs/grammar.md)
 *
 *   tag      {"format": {...}}, or {"structures": [...], "triggers": [...]}
 *   options  of the JSON in it; NULL: all zero
 * Errors  EINVAL, EUNSUPPORTED  with the place: "structural tag format.tags[0]"
 *         and as grammar_from_schema, grammar_from_regex, grammar_from_ebnf */
fathom_err grammar_from_tag(struct grammar **out, const struct grammar_vocab *v, const json_t *tag,
                            const struct grammar_options *options, fathom_diag *d);

/* grammar_retain - one more holder. grammar_release - one less; the last one frees it. Accepts
 * NULL. */
struct grammar *grammar_retain(struct grammar *g);
void grammar_release(struct grammar *g);

/* grammar_n_byte - memory a grammar holds; its masks count when they have been used */
size_t grammar_n_byte(const struct grammar *g);

/* ---- matcher ---------------------------------------------------------------------------- */

struct matcher;

/* matcher_create - at the beginning of a grammar
 *
 *   g    is retained
 *   eos  n_eos ids that end the output; allowed when the grammar can end there, and only then
 * Errors  EINVAL for an id outside the vocabulary, ELIMIT, ENOMEM.
 * Cost    14 KB. Nothing allocates after this. */
fathom_err matcher_create(struct matcher **out, struct grammar *g, const int32_t *eos,
                          size_t n_eos);
void matcher_destroy(struct matcher *m); /* accepts NULL */

/* matcher_copy - make *to stand where *from stands: a snapshot, and the way back to it
 *
 * Needs  both made for the same grammar.
 * Cost   some hundred bytes copied. */
void matcher_copy(struct matcher *to, const struct matcher *from);

/* matcher_reset - back to the beginning */
void matcher_reset(struct matcher *m);

/* matcher_fill_mask - which tokens may come next
 *
 *   words  [n_word] overwritten; bit id % 32 of word id / 32 is set when id is allowed
 * Errors  EINVAL for fewer words than grammar_vocab_n_word; more are cleared.
 * Edge    never empty: where the grammar can go on, some token does; where it cannot, EOS does.
 *         After EOS only EOS is allowed.
 * Cost    see docs/grammar.md; some 200 KB of stack. */
fathom_err matcher_fill_mask(const struct matcher *m, uint32_t *words, size_t n_word);

/* matcher_accept_token - go over one token; EINVAL, and nothing changes, when it is not allowed */
fathom_err matcher_accept_token(struct matcher *m, int32_t id);

/* matcher_accept_bytes - go over n bytes of plain text (markers are not plain); EINVAL as above */
fathom_err matcher_accept_bytes(struct matcher *m, const char *bytes, size_t n);

/* matcher_can_end - whether EOS is allowed now. matcher_has_ended - whether EOS has come. */
bool matcher_can_end(const struct matcher *m);
bool matcher_has_ended(const struct matcher *m);

/* matcher_is_forced - the bytes that must come next, as far as there is no choice
 *
 *   bytes  room for cap; not terminated
 * Returns their number; 0 where there is a choice, or the output may end. They may end inside a
 * character or a token. A marker among them stands as its text. */
size_t matcher_is_forced(const struct matcher *m, char *bytes, size_t cap);

#endif
