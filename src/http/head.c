/* head.c - scans and parses heads of requests */
#include "http/head.h"

#include <string.h>
#include <strings.h>

#include "base/assert.h"
#include "base/limits.h"

static bool refuse(struct head_fault *fault, int status, const char *text)
{
    *fault = (struct head_fault){status, text};
    return false;
}

/* ---- the end of a head --------------------------------------------------------------------- */

size_t head_scan(const char *bytes, size_t n, size_t *at, struct head_fault *fault)
{
    size_t i = *at;
    *fault = (struct head_fault){0};
    for (; i < n; i++) {
        unsigned char c = (unsigned char)bytes[i];
        if (i >= LIMIT_HTTP_HEAD_BYTES) {
            (void)refuse(fault, 431, "the request line and the headers have more than 64 KiB");
            break;
        }
        if ((c >= 0x20 && c != 0x7f) || c == '\t') continue;
        if (c == '\r') {
            if (i + 1 == n) break; /* looked at again with what follows */
            if (bytes[i + 1] == '\n') continue;
            (void)refuse(fault, 400, "the head has a CR without LF");
        } else if (c == '\n') {
            if (i == 0 || bytes[i - 1] != '\r') {
                (void)refuse(fault, 400, "the head has a line that ends in LF without CR");
                break;
            }
            if (i < 3 || bytes[i - 2] != '\n') continue;
            *at = i + 1;
            return i + 1;
        } else {
            (void)refuse(fault, 400, "the head has a control character");
        }
        break;
    }
    *at = i;
    return 0;
}

/* ---- characters ---------------------------------------------------------------------------- */

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static bool is_alphanumeric(char c)
{
    return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

static bool is_one_of(char c, const char *list)
{
    return c && strchr(list, c);
}

static bool is_token(const char *s)
{
    size_t n = 0;
    while (is_alphanumeric(s[n]) || is_one_of(s[n], "!#$%&'*+-.^_`|~")) n++;
    return n > 0 && s[n] == '\0';
}

/* The value of a hexadecimal digit; -1: it is none. */
static int hex_of(char c)
{
    if (is_digit(c)) return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* The byte of an escape %XX at s; -1: it is none. */
static int escape_of(const char *s)
{
    int high = s[0] == '%' ? hex_of(s[1]) : -1;
    int low = high >= 0 ? hex_of(s[2]) : -1;
    return low < 0 ? -1 : high << 4 | low;
}

/* ":8000", or nothing. */
static bool is_port(const char *s)
{
    size_t n = 1;
    if (*s == '\0') return true;
    if (*s != ':') return false;
    while (is_digit(s[n])) n++;
    return s[n] == '\0' && n <= 6;
}

/* A name or an address, and perhaps a port. */
static bool is_host(const char *s)
{
    size_t n = 0;
    if (*s == '[') {
        n = 1 + strspn(s + 1, "0123456789abcdefABCDEF:.");
        return n > 2 && s[n] == ']' && is_port(s + n + 1);
    }
    while (is_alphanumeric(s[n]) || is_one_of(s[n], "-._~!$&'()*+;=") || escape_of(s + n) > 0) n++;
    return n > 0 && is_port(s + n);
}

/* ---- the request line ---------------------------------------------------------------------- */

/* Cuts s at its first blank and returns what follows; NULL: there is none. */
static char *cut_at_blank(char *s)
{
    char *blank = strchr(s, ' ');
    if (!blank) return NULL;
    *blank = '\0';
    return blank + 1;
}

static bool read_version(struct head *h, const char *s, struct head_fault *fault)
{
    bool is_http = strncmp(s, "HTTP/", 5) == 0 && is_digit(s[5]) && s[6] == '.' && is_digit(s[7]);
    if (!is_http || s[8]) return refuse(fault, 400, "the request line does not end in HTTP/1.1");
    if (s[5] != '1' || s[7] > '1') {
        return refuse(fault, 505, "this server speaks HTTP/1.1 and HTTP/1.0");
    }
    h->is_1_0 = s[7] == '0';
    return true;
}

static bool are_target_characters(const char *s)
{
    for (; *s; s++) {
        if (*s <= 0x20 || *s >= 0x7f || is_one_of(*s, "\"<>\\^`{|}#")) return false;
        if (*s == '%' && escape_of(s) < 0) return false;
    }
    return true;
}

/* Takes the authority out of "http://authority/path"; what is left of the target begins with '/'.
 * The authority moves two bytes to the left: for its end, and for the '/' that may be missing. */
static char *take_authority(struct head *h, char *target, struct head_fault *fault)
{
    size_t n_scheme = strncasecmp(target, "http://", 7) == 0    ? 7
                      : strncasecmp(target, "https://", 8) == 0 ? 8
                                                                : 0;
    if (n_scheme == 0) {
        (void)refuse(fault, 400, "the target of the request is no path and no http URL");
        return NULL;
    }
    char *host = target + n_scheme;
    size_t n = strcspn(host, "/?");
    memmove(host - 2, host, n);
    char *path = host + n;
    path[-2] = '\0';
    if (*path != '/') *--path = '/';
    if (!is_host(host - 2)) {
        (void)refuse(fault, 400, "the target of the request has a host of illegal characters");
        return NULL;
    }
    h->host = host - 2;
    return path;
}

static bool decode_path(char *path, struct head_fault *fault)
{
    char *to = path;
    for (const char *from = path; *from; to++) {
        int byte = escape_of(from);
        if (byte == 0) return refuse(fault, 400, "the target of the request has %00 in its path");
        *to = byte < 0 ? *from : (char)byte;
        from += byte < 0 ? 1 : 3;
    }
    *to = '\0';
    return true;
}

static bool read_target(struct head *h, char *target, struct head_fault *fault)
{
    if (!are_target_characters(target)) {
        return refuse(fault, 400,
                      "the target of the request has a character that must be percent-encoded, or "
                      "a wrong encoding");
    }
    h->query = "";
    h->path = target;
    if (strcmp(target, "*") == 0 && strcmp(h->method, "OPTIONS") == 0) return true;
    if (*target != '/') target = take_authority(h, target, fault);
    if (!target) return false;
    char *mark = strchr(target, '?');
    if (mark) {
        *mark = '\0';
        h->query = mark + 1;
    }
    h->path = target;
    return decode_path(target, fault);
}

static bool read_request_line(struct head *h, char *line, struct head_fault *fault)
{
    char *target = cut_at_blank(line);
    char *version = target ? cut_at_blank(target) : NULL;
    if (!version || !*target) {
        return refuse(fault, 400, "the request line is not \"METHOD /path HTTP/1.1\"");
    }
    if (!is_token(line)) return refuse(fault, 400, "the method has an illegal character");
    if (strlen(line) > HEAD_METHOD_MAX) return refuse(fault, 501, "there is no such method");
    h->method = line;
    return read_version(h, version, fault) && read_target(h, target, fault);
}

/* ---- fields -------------------------------------------------------------------------------- */

/* What a head says of its body, its connection and who sends it, and how often. */
struct framing {
    unsigned n_host;
    unsigned n_length;
    unsigned n_login;
    unsigned n_chunked;
    bool has_coding; /* Transfer-Encoding is there */
    bool has_other;  /* it has a coding that is not known */
    const char *host;
};

/* The next element of a list "a, b", without blanks around it; NULL: there is none. Moves *list
 * behind the element. */
static const char *next_element(const char **list, size_t *n)
{
    const char *s = *list + strspn(*list, ", \t");
    *n = strcspn(s, ",\r\n");
    *list = s + *n;
    while (*n && is_one_of(s[*n - 1], " \t")) --*n;
    return *n ? s : NULL;
}

static bool is_text(const char *s, size_t n, const char *text, size_t n_text)
{
    return n == n_text && strncasecmp(s, text, n) == 0;
}

static void read_codings(struct framing *f, const char *list)
{
    static const char chunked[] = "chunked";
    size_t n;
    f->has_coding = true;
    for (const char *s; (s = next_element(&list, &n));) {
        if (is_text(s, n, chunked, sizeof chunked - 1)) {
            f->n_chunked++;
        } else {
            f->has_other = true;
        }
    }
}

static bool read_length(struct head *h, const char *value, struct head_fault *fault)
{
    uint64_t length = 0;
    if (!is_digit(*value)) return refuse(fault, 400, "Content-Length is no decimal number");
    for (; *value; value++) {
        if (!is_digit(*value)) return refuse(fault, 400, "Content-Length is no decimal number");
        if (__builtin_mul_overflow(length, 10, &length) ||
            __builtin_add_overflow(length, (uint64_t)(*value - '0'), &length)) {
            return refuse(fault, 400, "Content-Length is too large a number");
        }
    }
    h->length = length;
    return true;
}

/* Fields that say where the request ends, and what it may come from. */
static bool read_framing(struct head *h, struct framing *f, const char *name, const char *value,
                         struct head_fault *fault)
{
    if (strcasecmp(name, "Host") == 0) {
        f->n_host++;
        f->host = value;
        if (!is_host(value)) return refuse(fault, 400, "Host is no name or address");
    } else if (strcasecmp(name, "Authorization") == 0) {
        f->n_login++;
    } else if (strcasecmp(name, "Content-Length") == 0) {
        f->n_length++;
        return read_length(h, value, fault);
    } else if (strcasecmp(name, "Transfer-Encoding") == 0) {
        read_codings(f, value);
    } else if (strcasecmp(name, "Connection") == 0) {
        h->close |= head_lists(value, "close", 5);
    } else if (strcasecmp(name, "Expect") == 0) {
        if (strcasecmp(value, "100-continue") != 0) {
            return refuse(fault, 417, "Expect is not 100-continue");
        }
        h->wants_continue = true;
    }
    return true;
}

static bool read_field(struct head *h, struct framing *f, char *line, struct head_fault *fault)
{
    if (is_one_of(*line, " \t")) {
        return refuse(fault, 400, "a header goes on in a second line, which is obsolete");
    }
    char *colon = strchr(line, ':');
    if (!colon) return refuse(fault, 400, "a header has no colon");
    *colon = '\0';
    if (!is_token(line)) {
        return refuse(fault, 400, "the name of a header has an illegal character, such as a blank");
    }
    char *value = colon + 1 + strspn(colon + 1, " \t");
    size_t n = strlen(value);
    while (n && is_one_of(value[n - 1], " \t")) value[--n] = '\0';
    if (h->n_field == HEAD_FIELDS_MAX) return refuse(fault, 431, "there are more than 128 headers");
    h->fields[h->n_field++] = (struct head_field){line, value};
    return read_framing(h, f, line, value, fault);
}

static bool check_framing(struct head *h, const struct framing *f, struct head_fault *fault)
{
    if (f->n_host > 1) return refuse(fault, 400, "there is more than one Host");
    if (f->n_host == 0 && !h->is_1_0) return refuse(fault, 400, "there is no Host");
    if (!h->host) h->host = f->host;
    if (f->n_login > 1) return refuse(fault, 400, "there is more than one Authorization");
    if (f->n_length > 1) return refuse(fault, 400, "there is more than one Content-Length");
    if (f->has_coding && f->n_length) {
        return refuse(fault, 400, "there are both Content-Length and Transfer-Encoding");
    }
    if (f->has_coding && h->is_1_0) {
        return refuse(fault, 400, "HTTP/1.0 has no Transfer-Encoding");
    }
    if (f->has_other) return refuse(fault, 501, "the only Transfer-Encoding known is chunked");
    if (f->has_coding && f->n_chunked != 1) {
        return refuse(fault, 400, "Transfer-Encoding is not chunked, once");
    }
    h->chunked = f->has_coding;
    h->close |= h->is_1_0;
    h->wants_continue &= !h->is_1_0 && (h->chunked || h->length > 0);
    return true;
}

/* Ends the line at *at with 0 and returns it; *at goes to the next one. */
static char *next_line(char *bytes, size_t n, size_t *at)
{
    char *line = bytes + *at;
    char *end = memchr(line, '\n', n - *at);
    ASSERT(end && end > line && end[-1] == '\r');
    end[-1] = '\0';
    *at = (size_t)(end + 1 - bytes);
    return line;
}

bool head_parse(struct head *h, char *bytes, size_t n, struct head_fault *fault)
{
    struct framing f = {0};
    size_t at = bytes[0] == '\r' ? 2 : 0; /* one empty line before a request is passed over */
    h->host = NULL;
    h->chunked = h->close = h->wants_continue = false;
    h->length = 0;
    h->n_field = 0;
    *fault = (struct head_fault){0};
    if (at + 2 >= n) return refuse(fault, 400, "there is no request line");
    if (!read_request_line(h, next_line(bytes, n, &at), fault)) return false;
    while (at + 2 < n) {
        if (!read_field(h, &f, next_line(bytes, n, &at), fault)) return false;
    }
    return check_framing(h, &f, fault);
}

/* ---- what is asked of a head --------------------------------------------------------------- */

const char *head_find(const struct head *h, const char *name)
{
    for (size_t i = 0; i < h->n_field; i++) {
        if (strcasecmp(h->fields[i].name, name) == 0) return h->fields[i].value;
    }
    return NULL;
}

bool head_lists(const char *list, const char *element, size_t n)
{
    size_t m;
    for (const char *s; (s = next_element(&list, &m));) {
        if (is_text(s, m, element, n)) return true;
    }
    return false;
}

bool head_query(const struct head *h, const char *name, char *out, size_t bytes)
{
    return head_query_find(h->query, name, out, bytes);
}

bool head_query_find(const char *query, const char *name, char *out, size_t bytes)
{
    size_t n_name = strlen(name), n = 0;
    const char *s = query;
    while (strncmp(s, name, n_name) != 0 || s[n_name] != '=') {
        s = strchr(s, '&');
        if (!s) return false;
        s++;
    }
    for (s += n_name + 1; *s && *s != '&' && n + 1 < bytes; n++) {
        int byte = escape_of(s);
        if (byte == 0) return false;
        out[n] = byte < 0 ? *s : (char)byte;
        s += byte < 0 ? 1 : 3;
    }
    out[n] = '\0';
    return true;
}
