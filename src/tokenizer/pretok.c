/* pretok.c - lists of patterns over pieces of text */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "tokenizer/pretok.h"

#include <pcre2.h>
#include <string.h>

#include "base/fail.h"
#include "base/limits.h"
#include "base/mem.h"
#include "tokenizer/pretok_kimi.h"
#include "tokenizer/pretok_pattern.h"
#include "tokenizer/pretok_scan.h"

enum { JIT_STACK_MIN = 32 << 10, JIT_STACK_MAX = 8 << 20 };

struct pretok {
    struct scanner *scanner;   /* of DeepSeek's patterns, or NULL */
    struct kimi_scanner *kimi; /* of Kimi's, or NULL; without both the patterns do the work */
    pcre2_general_context *memory;
    size_t n_pattern;
    pcre2_code *patterns[LIMIT_SPLITS];
};

static void *memory_get(PCRE2_SIZE bytes, void *unused)
{
    (void)unused;
    return mem_alloc(bytes);
}

static void memory_put(void *p, void *unused)
{
    (void)unused;
    mem_free(p);
}

/* Compiles one pattern; a failure to make JIT code is none, the interpreter gives the same. */
static fathom_err compile(struct pretok *p, const struct pretok_pattern *pattern, const char *what,
                          fathom_diag *d)
{
    struct buf text = {0};
    int code;
    PCRE2_SIZE at;
    fathom_err err = pattern_translate(&text, pattern->text, pattern->n, what, d);
    if (err) goto out;
    pcre2_compile_context *context = pcre2_compile_context_create(p->memory);
    if (!context) {
        err = FATHOM_ENOMEM;
        goto out;
    }
    (void)pcre2_set_newline(context, PCRE2_NEWLINE_LF);
    pcre2_code *compiled =
        pcre2_compile((PCRE2_SPTR)buf_str(&text), text.len, PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE,
                      &code, &at, context);
    pcre2_compile_context_free(context);
    if (compiled) {
        p->patterns[p->n_pattern++] = compiled;
        (void)pcre2_jit_compile(compiled, PCRE2_JIT_COMPLETE);
    } else if (code == PCRE2_ERROR_HEAP_FAILED) {
        err = FATHOM_ENOMEM;
    } else {
        char reason[120] = "";
        (void)pcre2_get_error_message(code, (PCRE2_UCHAR *)reason, sizeof reason);
        err = diag_fail(d, FATHOM_EFORMAT, "%s: the pattern \"%.*s\" is not valid: %s", what,
                        pattern->n < 300 ? (int)pattern->n : 300, pattern->text, reason);
    }
out:
    buf_free(&text);
    return err;
}

fathom_err pretok_open(struct pretok **out, const struct pretok_pattern *patterns, size_t n,
                       enum pretok_engine engine, const char *what, fathom_diag *d)
{
    fathom_err err = FATHOM_OK;
    *out = NULL;
    if (n > LIMIT_SPLITS) {
        FAIL(d, FATHOM_ELIMIT, "%s: %zu split patterns, at most %d are supported", what, n,
             LIMIT_SPLITS);
    }
    struct pretok *p = mem_calloc(1, sizeof *p);
    if (!p) return FATHOM_ENOMEM;
    if (engine == PRETOK_ENGINE_AUTO && scanner_knows(patterns, n)) {
        TRY_GOTO(scanner_create(&p->scanner), fail);
    } else if (engine == PRETOK_ENGINE_AUTO && kimi_scanner_knows(patterns, n)) {
        TRY_GOTO(kimi_scanner_create(&p->kimi), fail);
    } else {
        p->memory = pcre2_general_context_create(memory_get, memory_put, NULL);
        err = p->memory ? FATHOM_OK : FATHOM_ENOMEM;
        for (size_t i = 0; i < n && !err; i++) err = compile(p, &patterns[i], what, d);
        if (err) goto fail;
    }
    *out = p;
    return FATHOM_OK;
fail:
    pretok_close(p);
    return err;
}

void pretok_close(struct pretok *p)
{
    if (!p) return;
    scanner_destroy(p->scanner);
    kimi_scanner_destroy(p->kimi);
    for (size_t i = 0; i < p->n_pattern; i++) pcre2_code_free(p->patterns[i]);
    pcre2_general_context_free(p->memory);
    mem_free(p);
}

bool pretok_has_scanner(const struct pretok *p)
{
    return p->scanner || p->kimi;
}

void pretok_call_free(struct pretok_call *c)
{
    pcre2_match_data_free(c->match);
    pcre2_match_context_free(c->context);
    pcre2_jit_stack_free(c->jit_stack);
    *c = (struct pretok_call){0};
}

static fathom_err prepare_call(const struct pretok *p, struct pretok_call *c)
{
    if (c->match) return FATHOM_OK;
    c->context = pcre2_match_context_create(p->memory);
    c->jit_stack = pcre2_jit_stack_create(JIT_STACK_MIN, JIT_STACK_MAX, p->memory);
    if (c->context && c->jit_stack) {
        pcre2_jit_stack_assign(c->context, NULL, c->jit_stack);
        c->match = pcre2_match_data_create(1, p->memory);
    }
    if (c->match) return FATHOM_OK;
    pretok_call_free(c);
    return FATHOM_ENOMEM;
}

/* A text on its way through the patterns. */
struct splitting {
    const struct pretok *pretok;
    struct pretok_call *call;
    pretok_emit *emit;
    void *arg;
};

/* The next match of pattern i in s[from .. n); start == n when there is none. */
static fathom_err find_match(const struct splitting *w, size_t i, const char *s, size_t n,
                             size_t from, size_t *start, size_t *end)
{
    pcre2_match_data *match = w->call->match;
    int rc = pcre2_match(w->pretok->patterns[i], (PCRE2_SPTR)s, n, from, PCRE2_NO_UTF_CHECK, match,
                         w->call->context);
    *start = *end = n;
    if (rc == PCRE2_ERROR_NOMATCH) return FATHOM_OK;
    if (rc == PCRE2_ERROR_NOMEMORY) return FATHOM_ENOMEM;
    if (rc < 0) return FATHOM_ELIMIT;
    const PCRE2_SIZE *range = pcre2_get_ovector_pointer(match);
    *start = range[0];
    *end = range[1];
    return FATHOM_OK;
}

/* The end of the character that starts at s[i]; i < n. */
static size_t next_character(const char *s, size_t n, size_t i)
{
    do i++;
    while (i < n && (s[i] & 0xc0) == 0x80);
    return i;
}

/* Applies pattern i, and those after it to each of its pieces. */
static fathom_err split_from(const struct splitting *w, size_t i, const char *s, size_t n)
{
    if (n == 0) return FATHOM_OK;
    if (i == w->pretok->n_pattern) return w->emit(w->arg, s, n);
    size_t done = 0, from = 0;
    while (from < n) {
        size_t start, end;
        TRY(find_match(w, i, s, n, from, &start, &end));
        TRY(split_from(w, i + 1, s + done, start - done));
        TRY(split_from(w, i + 1, s + start, end - start));
        done = end;
        from = end > start || end == n ? end : next_character(s, n, end);
    }
    return split_from(w, i + 1, s + done, n - done);
}

fathom_err pretok_split(const struct pretok *p, struct pretok_call *c, const char *s, size_t n,
                        pretok_emit *emit, void *arg)
{
    if (p->scanner) return scanner_split(p->scanner, s, n, emit, arg);
    if (p->kimi) return kimi_scanner_split(p->kimi, s, n, emit, arg);
    TRY(prepare_call(p, c));
    struct splitting w = {.pretok = p, .call = c, .emit = emit, .arg = arg};
    return split_from(&w, 0, s, n);
}
