/* options_int.h - what the files that read options share */
#ifndef FATHOM_CLI_OPTIONS_INT_H
#define FATHOM_CLI_OPTIONS_INT_H

#include "cli/options.h"

enum { OPTION_NAME_BYTES = 64, OPTION_ADDS_MAX = 8 };

/* One walk over everything that gives options. */
struct option_walk {
    struct settings *settings;
    enum command command;
    const struct launcher *launcher; /* NULL: none */
    unsigned followed;               /* bits of enum launcher_flag: which of its words hold */
    unsigned told;                   /* likewise: which flags anybody has given */
    const char *origin; /* where the words come from: a variable, a file; NULL: the command line */
    struct buf *notes;
    fathom_diag *diag;
    unsigned n_refused;
    const struct option *added[OPTION_ADDS_MAX]; /* lists that the command line has begun */
    unsigned n_added;
};

/* What an argument names. */
struct option_match {
    const struct option *option;
    bool negated;     /* --no-x */
    const char *path; /* of --x.path: what follows the dot; NULL: none. Within the argument. */
    size_t path_len;
    const char *value; /* after '='; NULL: none */
};

/* option_find - the option that an argument beginning with '-' names
 * Errors  EINVAL: none, with the nearest; several begin like it, with their names; the command does
 *         not have it. */
fathom_err option_find(const struct option_walk *w, const char *arg, struct option_match *out);

/* option_reads_serve - takes this command a whole command line of serve? plan and doctor do: they
 * have its options of sizes and ranks, and the others have no effect on what they say. */
bool option_reads_serve(enum command c);

/* option_set - check one value and store it where the table says; then the option's answer
 *
 * An option that has no effect answers with a note. One that is refused is counted: the first
 * message goes to diag, the rest to notes. A list grows by the value. A refusal is no error.
 * Errors  EINVAL: a bad value; ENOMEM. */
fathom_err option_set(struct option_walk *w, const struct option *o, const char *text);

/* option_set_key - one key of an option that is a JSON object
 *
 *   path  "a.b": keys from the outermost; a '+' at the end appends to an array
 *   text  JSON, or a string when it is not */
fathom_err option_set_key(struct option_walk *w, const struct option *o, const char *path,
                          size_t path_len, const char *text);

/* option_refuse - the line tells which option is refused and why: the walk goes on, its end fails
 */
fathom_err option_refuse(struct option_walk *w, const char *line);

/* option_heed_origin - a value of `o` is about to be stored: is it a launcher's word, or one that
 * takes the place of one? */
void option_heed_origin(struct option_walk *w, const struct option *o);

/* option_follow_launcher - the words of a launcher that hold at the end of the walk: hosts but host
 * 0 are headless, and a note says what was taken. Where nobody says at which address and port host
 * 0 listens, and the launcher has PMIx, that tells it: settings->by_pmix
 * Edge  a command line with one host is no part of what the launcher has started.
 * Errors  EINVAL: it starts hosts as no host can be, or does not tell where host 0 is; ENOMEM. */
fathom_err option_follow_launcher(struct option_walk *w);

/* option_take_ranks - what vLLM's flags of single data-parallel ranks say of hosts: --nnodes,
 * --node-rank, --master-addr, --master-port, where nobody has given them, and settings->all_serve
 * Errors  EINVAL: ranks that are no host's, or another host's, a port for each of hosts that have
 *         none; ENOMEM. */
fathom_err option_take_ranks(struct option_walk *w);

/* option_take_sglang - SGLang's flags that are no option alone, put into those that they mean
 * Errors  EINVAL: an address that is none, two flags that say the same; ENOMEM. */
fathom_err option_take_sglang(struct option_walk *w);

/* option_clear - the list is empty again */
void option_clear(struct settings *s, const struct option *o);

/* option_keep - a copy of the text that lives as long as the settings; NULL: out of memory */
const char *option_keep(struct settings *s, const char *text);

/* option_read_file - the options of a file: YAML, or JSON when its name ends in .json; an object
 * whose keys are names without dashes */
fathom_err option_read_file(struct option_walk *w, const char *path);

/* ---- what help, the pages of docs/ and the manual pages share -------------------------------- */

bool option_in_group(const struct option *o, enum command c, enum option_group g);
bool command_has_group(enum command c, enum option_group g);
const char *option_group_title(enum option_group g);

/* option_add_spelling - "-tp, --tensor-parallel-size N"; option_add_details - what stands after the
 * help text: answer, choices, default */
void option_add_spelling(struct buf *b, const struct option *o);
void option_add_details(struct buf *b, const struct option *o);

/* ---- the values of single options ------------------------------------------------------------ */

/* compilation_parse - the values of --compilation-config and -O: {"cudagraph_mode":
 * "FULL_DECODE_ONLY", "cudagraph_capture_sizes": [1, 8]}
 *
 *   text   JSON, or NULL: not given
 *   level  of -O; -1: not given. 0 records nothing
 *   notes  a line for each key that has no effect, and for a mode that means the same as another
 * Errors  EINVAL: not an object; a known key with a value that it cannot have: names both; ENOMEM.
 */
fathom_err compilation_parse(const char *text, int64_t level, struct compilation *out,
                             struct buf *notes, fathom_diag *d);

/* What the command line says of drafts. */
struct speculative_given {
    const char *config; /* JSON of --speculative-config; NULL: not given */
    const char *method; /* of --spec-method; NULL: not given */
    uint32_t n_token;   /* of --spec-tokens; 0: not given */
    const char *model;  /* MODEL, which the config may name too */
};

/* speculative_parse - the value of --speculative-config: {"method": "deepseek_mtp",
 * "num_speculative_tokens": 2}, or of the options that say the same in its place
 *
 * Without any *n_draft is 0. The method may be left out, or be mtp. What else vLLM has there and
 * changes no answer has a line in notes.
 * Errors  EINVAL, EFORMAT: not JSON, another method, a number out of range, a key that is not
 * known, both ways at once; ENOMEM. */
fathom_err speculative_parse(const struct speculative_given *given, uint32_t *n_draft,
                             struct buf *notes, fathom_diag *d);

/* reasoning_parse - the value of --reasoning-config, {"reasoning_start_str": "<think>",
 * "reasoning_end_str": "Enough.</think>"}, into s->reasoning_closing
 *
 * Both may be left out. What stands before the end's tag is the closing; the start is the tag.
 * Errors  EINVAL, EFORMAT: not JSON, other tags, a key that is not known; ENOMEM. */
fathom_err reasoning_parse(struct settings *s, fathom_diag *d);

/* request_defaults_parse - the value of --override-generation-config, {"temperature": 0.6}, into
 * s->sampling, and that of --default-chat-template-kwargs, {"thinking": true}, into s->thinking
 *
 * Errors  EINVAL, EFORMAT: not JSON, a value out of range, a key that is not known; ENOMEM. */
fathom_err request_defaults_parse(struct settings *s, fathom_diag *d);

/* What the command line says of pages of other servers. */
struct transfer_given {
    const char *config; /* JSON; NULL: not given */
    const char *ip;     /* this and the next one hold where config has no kv_ip, no kv_port */
    int64_t port;
    const char *transport;           /* "tcp", "ucx", or "auto": what config says */
    const struct string_list *peers; /* "host:port"; outlives what is made of it */
};

/* transfer_parse - the values of --kv-transfer-config, --kv-ip, --kv-port, --kv-transport and
 * --kv-peers
 * Errors  EINVAL, EFORMAT: not JSON, no role, a key that is not known or has a value that it cannot
 * have; ENOMEM. */
fathom_err transfer_parse(struct transfer_settings *out, const struct transfer_given *given,
                          fathom_diag *d);

/* yaml_read_file - a YAML file of one document as JSON values, over libyaml; new reference, JSON's
 * null for an empty file
 *
 * Scalars without quotes are read as YAML 1.1 has them for the types of JSON: null and ~, true and
 * false with yes, no, on and off, decimal integers and numbers. All else is a string. Keys are
 * scalars. Anchors are followed; a value that contains itself is an error.
 * Errors  ENOTFOUND, EIO: it cannot be read. EFORMAT with line and column: it is no YAML, nested
 *         deeper than 64 levels, or larger than 1 MiB. ENOMEM. */
fathom_err yaml_read_file(const char *path, json_t **out, fathom_diag *d);

#endif
