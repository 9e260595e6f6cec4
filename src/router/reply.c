/* reply.c - a head is gathered until it is whole; bodies are only counted */
#define _GNU_SOURCE /* memmem */
#include "router/reply.h"

#include <string.h>
#include <strings.h>

#include "base/fail.h"

static void refuse(struct reply_reader *a, const char *problem)
{
    if (!a->problem) a->problem = problem;
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* "HTTP/1.x NNN", and whatever text */
static void read_status(struct reply_reader *a, const char *line, size_t n)
{
    bool ok = n >= 12 && memcmp(line, "HTTP/1.", 7) == 0 && is_digit(line[7]) && line[8] == ' ';
    for (size_t i = 9; ok && i < 12; i++) ok = is_digit(line[i]);
    if (!ok || (n > 12 && line[12] != ' ') || line[9] == '0') {
        refuse(a, "it does not answer in HTTP/1.1");
        return;
    }
    a->status = (line[9] - '0') * 100 + (line[10] - '0') * 10 + (line[11] - '0');
    a->keeps = line[7] != '0';
}

/* The value of a field of that name, without blanks around it; NULL: it is another one. */
static const char *value_of(const char *line, size_t n, const char *name, size_t *n_value)
{
    size_t n_name = strlen(name);
    if (n <= n_name || line[n_name] != ':' || strncasecmp(line, name, n_name) != 0) return NULL;
    size_t from = n_name + 1, to = n;
    while (from < to && (line[from] == ' ' || line[from] == '\t')) from++;
    while (to > from && (line[to - 1] == ' ' || line[to - 1] == '\t')) to--;
    *n_value = to - from;
    return line + from;
}

static bool is_text(const char *value, size_t n, const char *text)
{
    return n == strlen(text) && strncasecmp(value, text, n) == 0;
}

static void read_length(struct reply_reader *a, const char *value, size_t n)
{
    uint64_t length = 0;
    bool ok = n > 0 && n <= 18; /* no length overflows */
    for (size_t i = 0; ok && i < n; i++) {
        ok = is_digit(value[i]);
        length = length * 10 + (uint64_t)(value[i] - '0');
    }
    if (!ok || (a->state == REPLY_LENGTH && a->left != length)) {
        refuse(a, "its Content-Length is no length");
    }
    a->state = REPLY_LENGTH;
    a->left = length;
}

static void read_connection(struct reply_reader *a, const char *value, size_t n)
{
    for (size_t at = 0; at < n;) {
        size_t end = at;
        while (end < n && value[end] != ',') end++;
        size_t to = end;
        while (at < to && value[at] == ' ') at++;
        while (to > at && value[to - 1] == ' ') to--;
        if (is_text(value + at, to - at, "close")) a->keeps = false;
        at = end + 1;
    }
}

static void read_field(struct reply_reader *a, const char *line, size_t n, bool *chunked)
{
    const char *value;
    size_t n_value;
    for (size_t i = 0; i < n; i++) {
        if (((unsigned char)line[i] < 0x20 && line[i] != '\t') || line[i] == 0x7f) {
            refuse(a, "a header line of it has a control character");
        }
    }
    if ((value = value_of(line, n, "Content-Length", &n_value))) {
        read_length(a, value, n_value);
    } else if ((value = value_of(line, n, "Connection", &n_value))) {
        read_connection(a, value, n_value);
    } else if ((value = value_of(line, n, "Transfer-Encoding", &n_value))) {
        if (*chunked || !is_text(value, n_value, "chunked")) {
            refuse(a, "its Transfer-Encoding is not chunked");
        }
        *chunked = true;
    }
}

/* `fields` has the whole head; afterwards its header lines. */
static void read_head(struct reply_reader *a)
{
    const char *text = buf_str(&a->fields);
    size_t n_line = (size_t)((const char *)memchr(text, '\n', a->fields.len) - text) + 1;
    bool chunked = false;
    read_status(a, text, n_line >= 2 && text[n_line - 2] == '\r' ? n_line - 2 : n_line - 1);
    if (a->problem) return;
    buf_truncate(&a->fields, a->fields.len - 2); /* the empty line */
    buf_consume(&a->fields, n_line);
    text = buf_str(&a->fields);
    for (size_t at = 0; at < a->fields.len && !a->problem; at += n_line) {
        n_line =
            (size_t)((const char *)memchr(text + at, '\n', a->fields.len - at) - text - at) + 1;
        if (n_line < 2 || text[at + n_line - 2] != '\r') {
            refuse(a, "a header line of it does not end in CR LF");
        } else {
            read_field(a, text + at, n_line - 2, &chunked);
        }
    }
    if (chunked && a->state == REPLY_LENGTH) refuse(a, "it says its length in two ways");
    if (chunked) a->state = REPLY_CHUNKS;
    if (a->state == REPLY_HEAD) a->state = REPLY_TO_CLOSE;
    bool is_empty = a->state == REPLY_LENGTH && a->left == 0;
    if (is_empty || a->has_no_body || a->status == 204 || a->status == 304) a->state = REPLY_END;
    if (a->state == REPLY_TO_CLOSE) a->keeps = false;
}

/* Up to the empty line behind the head. */
static size_t take_head(struct reply_reader *a, const char *bytes, size_t n, bool *head)
{
    size_t n_before = a->fields.len;
    size_t from = n_before > 3 ? n_before - 3 : 0;
    a->fields.limit = REPLY_HEAD_BYTES;
    size_t n_room = REPLY_HEAD_BYTES - n_before;
    if (buf_add(&a->fields, bytes, n < n_room ? n : n_room) != FATHOM_OK) {
        refuse(a, "there is no memory for its head");
        return 0;
    }
    const char *text = buf_str(&a->fields);
    const char *end = memmem(text + from, a->fields.len - from, "\r\n\r\n", 4);
    if (!end && a->fields.len == REPLY_HEAD_BYTES) refuse(a, "its head is too long");
    if (!end) return n < n_room ? n : n_room;
    size_t n_head = (size_t)(end - text) + 4;
    buf_truncate(&a->fields, n_head);
    read_head(a);
    if (!a->problem && a->status < 200) {
        a->state = REPLY_HEAD;
        buf_clear(&a->fields);
        if (a->status == 101) refuse(a, "it changes the protocol unasked");
    } else {
        *head = !a->problem;
    }
    return n_head - n_before;
}

size_t reply_read(struct reply_reader *a, const char *bytes, size_t n, bool *head,
                  const char **data, size_t *n_data)
{
    size_t used = 0;
    *head = false;
    *data = bytes;
    *n_data = 0;
    a->has_begun |= n > 0;
    while (a->state == REPLY_HEAD && used < n && !a->problem && !*head) {
        used += take_head(a, bytes + used, n - used, head);
    }
    if (*head || a->problem || a->state == REPLY_HEAD || a->state == REPLY_END) return used;
    if (a->state == REPLY_CHUNKS) {
        used = chunk_read(&a->chunk, bytes, n, data, n_data);
        if (a->chunk.problem) refuse(a, a->chunk.problem);
        if (a->chunk.state == CHUNK_END) a->state = REPLY_END;
        return used;
    }
    used = a->state == REPLY_LENGTH && a->left < n ? (size_t)a->left : n;
    *n_data = used;
    if (a->state == REPLY_LENGTH) {
        a->left -= used;
        if (a->left == 0) a->state = REPLY_END;
    }
    return used;
}

bool reply_close(struct reply_reader *a)
{
    if (a->state == REPLY_TO_CLOSE) a->state = REPLY_END;
    return a->state == REPLY_END && !a->problem;
}

void reply_free(struct reply_reader *a)
{
    buf_free(&a->fields);
    *a = (struct reply_reader){0};
}
