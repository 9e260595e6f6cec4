/* fake_engine.h - fathom.h without a model: a script says what every request answers
 *
 * A constraint must allow what the script says, else the request ends as the engine ends it.
 *
 * One thread makes steps; each request emits its next token when its time has come. The whole of
 * fathom.h is there: limits, cancel, events in order, stop ids, statistics, failure.
 */
#ifndef FATHOM_TESTS_FAKE_ENGINE_H
#define FATHOM_TESTS_FAKE_ENGINE_H

#include "fathom/fathom.h"
#include "tokenizer/tokenizer.h"

/* What one request does. Filled by the script; zeroed it ends at once with EOS. */
struct fake_plan {
    fathom_err refuse; /* fathom_submit returns this with refuse_text */
    char refuse_text[160];
    struct token_list say; /* tokens in order, then EOS; moved into the engine */
    uint32_t n_repeat;     /* say them so many times; 0: once */
    uint32_t first_us;     /* before the first token */
    uint32_t step_us;      /* between tokens */
    uint32_t n_cached;
    char hold[96]; /* "", or a file: no token before it is there */
    bool fails;    /* the engine fails where the request would end */
    bool expires;  /* the request is given back as expired there */
    bool stalls;   /* the engine stops making steps there, for good */
};

typedef void fake_script(void *arg, const fathom_request *r, struct fake_plan *plan);

struct fake_options {
    fake_script *script;
    void *arg;
    uint32_t n_vocab;             /* 0: 276 */
    int32_t eos_id;               /* 0: 1 */
    uint32_t max_model_len;       /* 0: 4096 */
    uint32_t max_running;         /* more wait; 0: no limit */
    uint32_t max_requests;        /* running and waiting; more: EBUSY; 0: no limit */
    const char *tokenizer_config; /* text of the file; NULL: there is none */
    float temperature, top_p;     /* defaults; 0: not given */
};

fathom_engine *fake_engine_open(const struct fake_options *o);

/* fake_engine_fail - a fatal error: every request ends with ERROR, submits are refused */
void fake_engine_fail(fathom_engine *e, const char *why);

/* fake_engine_stall - requests run on but no step is made */
void fake_engine_stall(fathom_engine *e, bool on);

/* Requests submitted so far, those that are alive, those that ended by fathom_cancel. */
uint64_t fake_engine_n_submitted(fathom_engine *e);
uint64_t fake_engine_n_alive(fathom_engine *e);
uint64_t fake_engine_n_cancelled(fathom_engine *e);

/* fake_engine_n_reset - calls of fathom_reset_cache */
uint64_t fake_engine_n_reset(fathom_engine *e);

/* fake_engine_last - the sampling of the last request submitted, and its prompt's length; the
 * pointers in it are not valid */
fathom_sampling fake_engine_last(fathom_engine *e, uint32_t *n_prompt);

/* fake_script_directives - a script that obeys the prompt's last [[...]]: words "key=value" apart
 * by ";": say (text, up to the end), repeat, first_ms, step_ms, hold (a path), cached, refuse
 * (busy | limit | device), then (fail | stall | expire). Without one it says "Hello!".
 *
 *   arg  a pointer to a const struct tokenizer
 *
 * fathom_open gives an engine with this script and the tokenizer of the bundle or directory that it
 * is asked to open, once there is no file "hold" in offload_dir. With this file in place of the
 * engine the program serves the script. */
fake_script fake_script_directives;

#endif
