/* The inside of a JSON string, RFC 8259: UTF-8 without control characters, and escapes. Surrogates
 * come in pairs only, so that what is written is text. */
#include "base/fail.h"
#include "chat/grammar_int.h"
#include "chat/grammar_utf8.h"

static void put_digits(struct nfa *n, uint32_t from, const char *ranges, uint32_t to)
{
    for (; ranges[0]; ranges += 2) {
        nfa_edge(n, from, (uint8_t)ranges[0], (uint8_t)ranges[1], to);
    }
}

static const char hex[] = "09afAF";

/* \uXXXX, from after the u. */
static void put_code_unit(struct nfa *n, uint32_t from, uint32_t hub)
{
    uint32_t rest[3], high[7], d = nfa_state(n);
    for (int i = 0; i < 3; i++) rest[i] = nfa_state(n);
    for (int i = 0; i < 7; i++) high[i] = nfa_state(n);
    put_digits(n, from, "09acefACEF", rest[0]);
    put_digits(n, from, "ddDD", d);
    put_digits(n, d, "07", rest[1]);
    put_digits(n, d, "89abAB", high[0]);
    put_digits(n, rest[0], hex, rest[1]);
    put_digits(n, rest[1], hex, rest[2]);
    put_digits(n, rest[2], hex, hub);
    put_digits(n, high[0], hex, high[1]);
    put_digits(n, high[1], hex, high[2]);
    put_digits(n, high[2], "\\\\", high[3]);
    put_digits(n, high[3], "uu", high[4]);
    put_digits(n, high[4], "ddDD", high[5]);
    put_digits(n, high[5], "cfCF", high[6]);
    put_digits(n, high[6], hex, rest[2]);
}

fathom_err text_build(struct dfa *out)
{
    struct nfa n;
    *out = (struct dfa){0};
    nfa_init(&n, 1024);
    uint32_t hub = nfa_state(&n), end = nfa_state(&n), escape = nfa_state(&n), unit = nfa_state(&n);
    struct utf8_target to = {.state = hub};
    utf8_put(&n, hub, ' ', '"' - 1, &to);
    utf8_put(&n, hub, '"' + 1, '\\' - 1, &to);
    utf8_put(&n, hub, '\\' + 1, FA_CODE_POINT_LAST, &to);
    put_digits(&n, hub, "\"\"", end);
    put_digits(&n, hub, "\\\\", escape);
    put_digits(&n, escape, "\"\"\\\\//bbffnnrrtt", hub);
    put_digits(&n, escape, "uu", unit);
    put_code_unit(&n, unit, hub);
    fathom_err err = n.err;
    if (!err) err = dfa_build(out, &n, hub, end, DFA_WHOLE, TEXT_STATES_MAX, NULL);
    nfa_free(&n);
    return err;
}
