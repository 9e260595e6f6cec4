/* spelling.c - code points and JSON strings drawn as edges over bytes */
#include "grammar/spelling.h"

#include "base/fail.h"
#include "base/utf8.h"

/* ---- UTF-8 ------------------------------------------------------------------------------ */

/* The state that leads to the target by n more bytes, 80 to BF each. */
static uint32_t before_target(struct nfa *n, struct spell_target *to, unsigned n_more)
{
    if (n_more == 0) return to->state;
    if (!to->before[n_more]) {
        uint32_t next = before_target(n, to, n_more - 1);
        to->before[n_more] = nfa_state(n);
        nfa_edge(n, to->before[n_more], 0x80, 0xbf, next);
    }
    return to->before[n_more];
}

/* Whether a[i .. n) is all `byte`. */
static bool all_are(const uint8_t *a, unsigned i, unsigned n, uint8_t byte)
{
    while (i < n && a[i] == byte) i++;
    return i == n;
}

/* Byte strings of n bytes between a and b, from byte i on. */
static void put_between(struct nfa *n, uint32_t from, const uint8_t *a, const uint8_t *b,
                        unsigned i, unsigned len, struct spell_target *to)
{
    static const uint8_t lowest[4] = {0x80, 0x80, 0x80, 0x80};
    static const uint8_t highest[4] = {0xbf, 0xbf, 0xbf, 0xbf};
    if (i + 1 == len) {
        nfa_edge(n, from, a[i], b[i], to->state);
        return;
    }
    if (a[i] == b[i]) {
        uint32_t next = nfa_state(n);
        nfa_edge(n, from, a[i], a[i], next);
        put_between(n, next, a, b, i + 1, len, to);
        return;
    }
    unsigned lo = a[i], hi = b[i];
    if (!all_are(a, i + 1, len, 0x80)) {
        uint32_t next = nfa_state(n);
        nfa_edge(n, from, lo, lo, next);
        put_between(n, next, a, highest, i + 1, len, to);
        lo++;
    }
    if (!all_are(b, i + 1, len, 0xbf)) {
        uint32_t next = nfa_state(n);
        nfa_edge(n, from, hi, hi, next);
        put_between(n, next, lowest, b, i + 1, len, to);
        hi--;
    }
    if (lo <= hi) nfa_edge(n, from, lo, hi, before_target(n, to, len - 1 - i));
}

void spell_text(struct nfa *n, uint32_t from, uint32_t lo, uint32_t hi, struct spell_target *to)
{
    static const uint32_t ranges[][2] = {{0, 0x7f},
                                         {0x80, 0x7ff},
                                         {0x800, FA_SURROGATE_FIRST - 1},
                                         {FA_SURROGATE_LAST + 1, 0xffff},
                                         {0x10000, FA_CODE_POINT_LAST}};
    for (size_t i = 0; i < sizeof ranges / sizeof ranges[0]; i++) {
        uint32_t first = lo > ranges[i][0] ? lo : ranges[i][0];
        uint32_t last = hi < ranges[i][1] ? hi : ranges[i][1];
        char a[4], b[4];
        if (first > last) continue;
        unsigned len = (unsigned)utf8_encode(a, (int32_t)first);
        (void)utf8_encode(b, (int32_t)last);
        put_between(n, from, (const uint8_t *)a, (const uint8_t *)b, 0, len, to);
    }
}

/* ---- escapes ---------------------------------------------------------------------------- */

static uint32_t put_byte(struct nfa *n, uint32_t from, char c)
{
    uint32_t to = nfa_state(n);
    nfa_edge(n, from, (uint8_t)c, (uint8_t)c, to);
    return to;
}

/* One control character, '"' or '\'. */
static void put_escape(struct nfa *n, uint32_t from, uint32_t cp, uint32_t to)
{
    static const struct {
        char cp, letter;
    } named[] = {{'"', '"'},  {'\\', '\\'}, {'\b', 'b'}, {'\f', 'f'},
                 {'\n', 'n'}, {'\r', 'r'},  {'\t', 't'}};
    static const char digits[] = "0123456789abcdef";
    uint32_t at = put_byte(n, from, '\\');
    for (size_t i = 0; i < sizeof named / sizeof named[0]; i++) {
        if (cp != (uint32_t)named[i].cp) continue;
        nfa_edge(n, at, (uint8_t)named[i].letter, (uint8_t)named[i].letter, to);
        return;
    }
    at = put_byte(n, put_byte(n, put_byte(n, at, 'u'), '0'), '0');
    at = put_byte(n, at, cp < 16 ? '0' : '1');
    uint8_t last = (uint8_t)digits[cp & 15];
    nfa_edge(n, at, last, last, to);
    if (last >= 'a') nfa_edge(n, at, last - 0x20u, last - 0x20u, to);
}

void spell_json(struct nfa *n, uint32_t from, uint32_t lo, uint32_t hi, struct spell_target *to)
{
    while (lo <= hi) {
        uint32_t end = lo <= '"' ? '"' : lo <= '\\' ? '\\' : FA_CODE_POINT_LAST + 1;
        if (lo < ' ' || lo == end) {
            put_escape(n, from, lo, to->state);
            lo++;
            continue;
        }
        uint32_t last = hi < end ? hi : end - 1;
        spell_text(n, from, lo, last, to);
        lo = last + 1;
    }
}

/* ---- the inside of a JSON string -------------------------------------------------------- */

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

fathom_err spell_json_string(struct dfa *out, uint32_t max_state)
{
    struct nfa n;
    *out = (struct dfa){0};
    nfa_init(&n, 1024, NULL);
    uint32_t hub = nfa_state(&n), end = nfa_state(&n), escape = nfa_state(&n), unit = nfa_state(&n);
    struct spell_target to = {.state = hub};
    spell_text(&n, hub, ' ', '"' - 1, &to);
    spell_text(&n, hub, '"' + 1, '\\' - 1, &to);
    spell_text(&n, hub, '\\' + 1, FA_CODE_POINT_LAST, &to);
    put_digits(&n, hub, "\"\"", end);
    put_digits(&n, hub, "\\\\", escape);
    put_digits(&n, escape, "\"\"\\\\//bbffnnrrtt", hub);
    put_digits(&n, escape, "uu", unit);
    put_code_unit(&n, unit, hub);
    fathom_err err = n.err;
    if (!err) err = dfa_build(out, &n, hub, end, DFA_WHOLE, max_state, NULL);
    nfa_free(&n);
    return err;
}
