/* request_view.c - one pass over a JSON object, which looks into none of its values */
#include "router/request_view.h"

#include <string.h>

#include "base/hash.h"
#include "base/rng.h"

struct scan {
    const char *at;
    const char *end;
};

static void skip_space(struct scan *s)
{
    while (s->at < s->end && (*s->at == ' ' || *s->at == '\n' || *s->at == '\r' || *s->at == '\t'))
        s->at++;
}

static bool take_char(struct scan *s, char c)
{
    skip_space(s);
    if (s->at == s->end || *s->at != c) return false;
    s->at++;
    return true;
}

/* Past the closing quote of a string whose opening one has been taken. A quote ends it when an even
 * number of backslashes stands in front. */
static bool skip_string(struct scan *s)
{
    const char *begin = s->at;
    for (;;) {
        const char *quote = memchr(s->at, '"', (size_t)(s->end - s->at));
        if (!quote) return false;
        size_t n_back = 0;
        while (quote - n_back > begin && quote[-1 - (ptrdiff_t)n_back] == '\\') n_back++;
        s->at = quote + 1;
        if (n_back % 2 == 0) return true;
    }
}

/* Past a value: a string, what brackets hold, or a word. */
static bool skip_value(struct scan *s)
{
    size_t depth = 0;
    skip_space(s);
    const char *begin = s->at;
    for (; s->at < s->end; s->at++) {
        char c = *s->at;
        if (c == '"') {
            s->at++;
            if (!skip_string(s)) return false;
            if (depth == 0) return true;
            s->at--;
        } else if (c == '{' || c == '[') {
            depth++;
        } else if (c == '}' || c == ']') {
            if (depth == 0) return s->at > begin;
            if (--depth == 0) {
                s->at++;
                return true;
            }
        } else if (depth == 0 && (c == ',' || c == ' ' || c == '\n' || c == '\r' || c == '\t')) {
            return s->at > begin;
        }
    }
    return false;
}

static bool is_one_of(const char *key, size_t n, const char *const *names)
{
    for (; *names; names++) {
        if (strlen(*names) == n && memcmp(key, *names, n) == 0) return true;
    }
    return false;
}

static bool is_word(const char *value, size_t n, const char *word)
{
    return strlen(word) == n && memcmp(value, word, n) == 0;
}

static void take_member(struct request_view *v, const char *key, size_t n_key, const char *value,
                        size_t n_value)
{
    static const char *const texts[] = {"messages", "prompt",    "input", "token_ids",
                                        "text",     "input_ids", NULL};
    static const char *const befores[] = {"model",  "tools",        "functions",  "tool_choice",
                                          "system", "instructions", "cache_salt", NULL};
    static const char *const nones[] = {"null", "false", "\"false\"", NULL};
    static const char *const trues[] = {"true", "1", "\"true\"", "\"True\"", "\"1\"", NULL};
    if (is_one_of(key, n_key, texts) && *value != '{') { /* `text` of a response is its format */
        v->text = value;
        v->n_text = n_value;
    } else if (is_one_of(key, n_key, befores)) {
        v->before ^= rng_mix(hash_checksum(key, n_key), hash_checksum(value, n_value), 0);
    } else if (is_word(key, n_key, "stream")) {
        v->stream = is_one_of(value, n_value, trues);
    } else if (is_word(key, n_key, "kv_transfer_params")) {
        v->stays = true;
    } else if (is_word(key, n_key, "truncate_prompt_tokens")) {
        v->stays |= memchr(value, '-', n_value) != NULL;
    } else if (is_word(key, n_key, "prompt_logprobs")) {
        v->stays |= !is_word(value, n_value, "null");
    } else if (is_word(key, n_key, "echo")) {
        v->echoes = is_one_of(value, n_value, trues);
    } else if (is_word(key, n_key, "logprobs")) {
        v->tells = !is_one_of(value, n_value, nones);
    } else if (is_word(key, n_key, "previous_response_id")) {
        v->has_previous = !is_word(value, n_value, "null");
    } else if (is_word(key, n_key, "resume")) {
        v->has_resume = true;
    }
}

/* Each member in turn; false: the text is no object. */
static bool read_members(struct request_view *v, struct scan *s)
{
    v->is_empty = take_char(s, '}');
    if (v->is_empty) return true;
    do {
        if (!take_char(s, '"')) return false;
        const char *key = s->at;
        if (!skip_string(s)) return false;
        size_t n_key = (size_t)(s->at - 1 - key);
        if (!take_char(s, ':')) return false;
        skip_space(s);
        const char *value = s->at;
        if (!skip_value(s)) return false;
        take_member(v, key, n_key, value, (size_t)(s->at - value));
    } while (take_char(s, ','));
    return take_char(s, '}');
}

void request_view_read(struct request_view *v, const char *body, size_t n)
{
    struct scan s = {body, body + n};
    *v = (struct request_view){0};
    if (!take_char(&s, '{')) return;
    v->inside = (size_t)(s.at - body);
    v->is_object = read_members(v, &s);
    v->stays |= v->echoes && v->tells;
    skip_space(&s);
    if (v->is_object && s.at == s.end) return;
    *v = (struct request_view){0};
}

size_t request_view_keys(const struct request_view *v, uint64_t *keys, size_t max)
{
    size_t n = v->n_text / VIEW_BLOCK_BYTES < max ? v->n_text / VIEW_BLOCK_BYTES : max;
    uint64_t key = v->before;
    for (size_t i = 0; i < n; i++) {
        key = rng_mix(key, hash_checksum(v->text + i * VIEW_BLOCK_BYTES, VIEW_BLOCK_BYTES), i);
        keys[i] = key;
    }
    return n;
}

uint64_t request_view_tokens(const struct request_view *v)
{
    return v->n_text / VIEW_BYTES_PER_TOKEN;
}
