/* cmd_tokenize.c - fathom tokenize: text to ids and pieces, or ids to text */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fail.h"
#include "base/json.h"
#include "base/utf8.h"
#include "checkpoint/checkpoint.h"
#include "cli/cli.h"
#include "tokenizer/tokenizer.h"

static fathom_err read_input(struct buf *out, const struct settings *s, fathom_diag *d)
{
    if (s->text) return buf_add_str(out, s->text);
    char chunk[1 << 14];
    size_t n;
    out->limit = LIMIT_HTTP_BODY_BYTES;
    while ((n = fread(chunk, 1, sizeof chunk, stdin)) > 0) {
        if (buf_add(out, chunk, n)) {
            FAIL(d, buf_status(out), "standard input is longer than %d bytes",
                 LIMIT_HTTP_BODY_BYTES);
        }
    }
    return input_check(d);
}

/* Numbers with blanks, commas or brackets between: "[1, 2]", "1 2", one a line. */
static fathom_err parse_ids(struct token_list *ids, const struct buf *in, int32_t n_token,
                            fathom_diag *d)
{
    const char *p = buf_str(in);
    for (;;) {
        p += strspn(p, " \t\r\n,;[]()");
        if (*p == '\0') return FATHOM_OK;
        char *end;
        errno = 0;
        long id = strtol(p, &end, 10);
        if (end == p || errno || id < 0 || id >= n_token) {
            FAIL(d, FATHOM_EINVAL, "%.*s: not an id, needed is 0 to %d",
                 end == p ? (int)strcspn(p, " \t\r\n,;[]()") : (int)(end - p), p, n_token - 1);
        }
        TRY(token_list_add(ids, (int32_t)id));
        p = end;
    }
}

static fathom_err decode(const struct tokenizer *t, const struct buf *in, fathom_diag *d)
{
    struct token_list ids = {0};
    struct buf text = {0};
    fathom_err err;
    TRY_GOTO(parse_ids(&ids, in, tokenizer_n_token(t), d), done);
    TRY_GOTO(tokenizer_decode(t, ids.ids, ids.n, false, &text), done);
    (void)fwrite(buf_str(&text), 1, text.len, stdout);
    (void)putchar('\n');
done:
    buf_free(&text);
    token_list_free(&ids);
    return err;
}

/* A token's bytes as a JSON string; bytes that are not UTF-8 as <0x..>. */
static fathom_err add_piece(struct buf *b, const char *bytes, size_t n)
{
    struct buf plain = {0};
    size_t len;
    for (size_t i = 0; i < n; i += len) {
        if (utf8_next(bytes + i, n - i, &len) >= 0) {
            (void)buf_add(&plain, bytes + i, len);
            continue;
        }
        for (size_t k = i; k < i + len; k++) {
            (void)buf_printf(&plain, "<0x%02X>", (unsigned char)bytes[k]);
        }
    }
    fathom_err err = buf_status(&plain);
    if (!err) err = json_write_string(b, buf_str(&plain), plain.len);
    buf_free(&plain);
    return err;
}

static fathom_err encode(const struct tokenizer *t, const struct buf *in)
{
    struct token_list ids = {0};
    struct buf lines = {0};
    fathom_err err;
    TRY_GOTO(tokenizer_encode(t, buf_str(in), in->len, TOKENIZER_MARKUP_ON, &ids), done);
    for (size_t i = 0; i < ids.n; i++) {
        size_t n;
        const char *bytes = tokenizer_bytes(t, ids.ids[i], &n);
        TRY_GOTO(buf_printf(&lines, "%8d  ", ids.ids[i]), done);
        TRY_GOTO(add_piece(&lines, bytes, n), done);
        TRY_GOTO(buf_add_char(&lines, '\n'), done);
    }
    (void)fwrite(buf_str(&lines), 1, lines.len, stdout);
    fprintf(stderr, "%zu tokens, %zu bytes\n", ids.n, in->len);
done:
    buf_free(&lines);
    token_list_free(&ids);
    return err;
}

fathom_err cmd_tokenize(const struct invocation *v, fathom_diag *d)
{
    struct checkpoint *c = NULL;
    struct tokenizer *t = NULL;
    struct buf in = {0};
    fathom_err err;
    TRY_GOTO(model_source_open(&c, v->model, v->settings, d), done);
    TRY_GOTO(text_tokenizer_open(&t, c, d), done);
    TRY_GOTO(read_input(&in, v->settings, d), done);
    err = v->settings->decode ? decode(t, &in, d) : encode(t, &in);
done:
    buf_free(&in);
    tokenizer_close(t);
    checkpoint_close(c);
    return err;
}
