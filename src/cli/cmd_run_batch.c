/* cmd_run_batch.c - fathom run-batch: the requests of a file, each answered in a line of another
 *
 * Lines are written in the order of the input, each as soon as those before it are. A file that is
 * written has ".part" at the end of its name until the last line is on the disk: what stands there
 * after an interruption answers as many requests from the first one on, and a later run goes on
 * behind that.
 *
 * Invariants: of the entries n_written are written, and the next one is not answered, or about to
 * be written; n_open are asked and not answered; those of `again` have found no room.
 */
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fail.h"
#include "base/json.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/new_file.h"
#include "base/utf8.h"
#include "cli/progress.h"
#include "cli/server_settings.h"
#include "cli/signals.h"
#include "cli/tls_files.h"
#include "server/batch_api.h"

enum {
    LOOK_MS = 100,             /* between two looks at whether it is interrupted */
    UNWRITTEN_BYTES = 1 << 30, /* of answers that wait for an earlier one: none is asked */
    TELL_PARTS = 10,           /* lines in the log of how far it has got */
};

/* A request of the input. */
struct entry {
    const char *text;
    size_t n;
    size_t number;       /* of its line */
    struct entry *again; /* the next one to be asked again */
    bool is_answered;
    struct buf line; /* its answer, until it is written */
};

/* Where lines go. */
struct output {
    FILE *stream; /* standard output, or what is no regular file; NULL: */
    struct new_file file;
    uint64_t n_byte;
    bool is_unread; /* what an earlier run has left there */
};

struct run {
    struct buf input;
    struct entry *entries;
    size_t n;
    struct output output;
    struct batch *batch;
    fathom_engine *engine;
    atomic_bool interrupted;

    size_t n_before; /* of which an earlier run has written the answers */
    size_t n_asked, n_open, n_answered, n_written, n_error;
    struct entry *again, **again_end;
    bool is_full; /* the last word was that there is no room */
    uint64_t unwritten_bytes;
    struct progress progress;
};

/* ---- input and output ---------------------------------------------------------------------- */

static fathom_err read_input(struct buf *out, const char *name, fathom_diag *d)
{
    char chunk[1 << 16];
    size_t n;
    fathom_err err = FATHOM_OK;
    FILE *from = strcmp(name, "-") == 0 ? stdin : fopen(name, "r"); /* it may be a pipe */
    if (!from) FAIL(d, FATHOM_EIO, "%s: cannot be opened: %s", name, strerror(errno));
    while (!err && (n = fread(chunk, 1, sizeof chunk, from)) > 0) err = buf_add(out, chunk, n);
    if (!err && ferror(from))
        err = diag_fail(d, FATHOM_EIO, "%s: cannot be read: %s", name, strerror(errno));
    if (from != stdin) (void)fclose(from);
    return err;
}

/* Every line that is not blank. */
static fathom_err cut_input(struct run *r)
{
    const char *text = buf_str(&r->input), *end = text + r->input.len;
    text += utf8_mark(text, r->input.len);
    size_t n_line = 1, number = 0;
    for (const char *p = text; p < end; p++) n_line += *p == '\n';
    r->entries = mem_calloc(n_line, sizeof *r->entries);
    if (!r->entries) return FATHOM_ENOMEM;
    while (text < end) {
        const char *stop = memchr(text, '\n', (size_t)(end - text));
        if (!stop) stop = end;
        const size_t n = (size_t)(stop - text);
        number++;
        if (strspn(text, " \t\r") < n) {
            r->entries[r->n++] = (struct entry){.text = text, .n = n, .number = number};
        }
        text = stop + 1;
    }
    return FATHOM_OK;
}

/* The custom_id of a line, a new reference; null where it has none that is a text. */
static json_t *read_id(const char *text, size_t n, bool *is_error)
{
    json_t *line = NULL;
    fathom_diag ignored = {{0}};
    (void)json_read(text, n, "line", &line, &ignored);
    const json_t *id = json_object_get(line, "custom_id"), *error = json_object_get(line, "error");
    json_t *out = json_is_string(id) ? json_incref((json_t *)id) : json_null();
    *is_error = error && !json_is_null(error);
    json_decref(line);
    return out;
}

/* Takes over the lines that an earlier run has left. The last one may be cut. */
static fathom_err take_earlier(struct run *r, bool may_resume, fathom_diag *d)
{
    struct output *out = &r->output;
    struct buf was = {0};
    const char *end, *text;
    bool is_error, ignored;
    fathom_err err;
    TRY_GOTO(file_read_whole(&was, out->file.part, d), done);
    text = buf_str(&was);
    for (; (end = strchr(text, '\n')); text = end + 1, r->n_before++) {
        if (!may_resume) {
            err = diag_fail(d, FATHOM_EINVAL,
                            "%s has answers of a run that was interrupted: --resume goes on behind "
                            "them; or remove it",
                            out->file.part);
            goto done;
        }
        const struct entry *e = &r->entries[r->n_before];
        json_t *id = read_id(text, (size_t)(end - text), &is_error);
        json_t *asked = r->n_before < r->n ? read_id(e->text, e->n, &ignored) : NULL;
        const bool same = asked && json_equal(id, asked);
        json_decref(id);
        json_decref(asked);
        if (!same) {
            err = diag_fail(d, FATHOM_EINVAL,
                            "%s, line %zu: its custom_id is not that of request "
                            "%zu: it answers another file",
                            out->file.part, r->n_before + 1, r->n_before + 1);
            goto done;
        }
        r->n_error += is_error;
    }
    r->n_asked = r->n_answered = r->n_written = r->n_before;
    out->n_byte = (uint64_t)(text - buf_str(&was));
    err = new_file_cut(&out->file, out->n_byte, d);
done:
    buf_free(&was);
    return err;
}

/* What is written, NAME and NAME.part, is not what is read. */
static fathom_err check_apart(const char *input, const char *name, const char *end, fathom_diag *d)
{
    char path[LIMIT_PATH_BYTES];
    struct stat in, out;
    const bool is_stdin = strcmp(input, "-") == 0;
    (void)snprintf(path, sizeof path, "%s%s", name, end);
    if (stat(path, &out) != 0 || !S_ISREG(out.st_mode)) return FATHOM_OK;
    if (is_stdin ? fstat(STDIN_FILENO, &in) != 0 : stat(input, &in) != 0) return FATHOM_OK;
    if (in.st_dev != out.st_dev || in.st_ino != out.st_ino) return FATHOM_OK;
    FAIL(d, FATHOM_EINVAL, "--output-file %s: %s%s the input: give another name", name,
         end[0] ? path : "it", end[0] ? ", which holds it until it is whole, is" : " is");
}

static fathom_err open_output(struct run *r, const struct settings *s, fathom_diag *d)
{
    const char *name = s->output_file;
    struct stat st;
    TRY(check_apart(s->input_file, name, "", d));
    TRY(check_apart(s->input_file, name, ".part", d));
    if (strcmp(name, "-") == 0) {
        r->output.stream = stdout;
    } else if (stat(name, &st) == 0 && !S_ISREG(st.st_mode)) {
        r->output.stream = fopen(name, "w");
        if (!r->output.stream) {
            FAIL(d, FATHOM_EIO, "%s: cannot be written: %s", name, strerror(errno));
        }
    } else {
        TRY(new_file_go_on(&r->output.file, name, d));
        r->output.is_unread = true;
        TRY(take_earlier(r, s->resume, d));
        r->output.is_unread = false;
    }
    return FATHOM_OK;
}

static fathom_err write_line(struct output *out, const struct buf *line, fathom_diag *d)
{
    if (out->stream) {
        const bool ok = fwrite(line->data, 1, line->len, out->stream) == line->len;
        if (ok && fflush(out->stream) == 0) return FATHOM_OK;
        FAIL(d, FATHOM_EIO, "the output cannot be written: %s", strerror(errno));
    }
    TRY(new_file_write(&out->file, line->data, line->len, out->n_byte, d));
    out->n_byte += line->len;
    return FATHOM_OK;
}

/* What is there of a file that is not whole stays, under the name of a part. */
static void close_output(struct output *out)
{
    if (out->stream && out->stream != stdout) (void)fclose(out->stream);
    if (out->n_byte == 0 && !out->is_unread) new_file_drop(&out->file);
    new_file_leave(&out->file);
}

/* ---- requests ------------------------------------------------------------------------------ */

static bool may_ask(const struct run *r)
{
    if (!r->again && r->n_asked == r->n) return false;
    if (r->n_open == 0) return true;
    return !r->is_full && r->n_open < batch_window(r->batch) &&
           r->unwritten_bytes < UNWRITTEN_BYTES;
}

static fathom_err ask_more(struct run *r)
{
    while (may_ask(r)) {
        struct entry *e = r->again;
        if (e) {
            r->again = e->again;
            if (!r->again) r->again_end = &r->again;
        } else {
            e = &r->entries[r->n_asked++];
        }
        const struct batch_request q = {e->text, e->n, e->number, e};
        TRY(batch_ask(r->batch, &q));
        r->n_open++;
    }
    return FATHOM_OK;
}

static void tell_progress(struct run *r)
{
    const size_t part = r->n_answered * TELL_PARTS / r->n;
    progress_tell(&r->progress, r->n_answered - r->n_before, r->n - r->n_before);
    if (r->progress.is_terminal || part == (r->n_answered - 1) * TELL_PARTS / r->n) return;
    LOG_INFO("batch", "%zu of %zu requests are answered, %zu with an error", r->n_answered, r->n,
             r->n_error);
}

static fathom_err write_answered(struct run *r, fathom_diag *d)
{
    while (r->n_written < r->n && r->entries[r->n_written].is_answered) {
        struct entry *e = &r->entries[r->n_written];
        TRY(write_line(&r->output, &e->line, d));
        r->unwritten_bytes -= e->line.len;
        buf_free(&e->line);
        r->n_written++;
    }
    return FATHOM_OK;
}

static fathom_err take(struct run *r, struct batch_answer *a, fathom_diag *d)
{
    struct entry *e = a->user;
    r->n_open--;
    r->is_full = a->busy;
    if (a->busy) {
        e->again = NULL;
        *r->again_end = e;
        r->again_end = &e->again;
        return FATHOM_OK;
    }
    e->line = a->line;
    e->is_answered = true;
    r->unwritten_bytes += e->line.len;
    r->n_answered++;
    r->n_error += a->is_error;
    tell_progress(r);
    return write_answered(r, d);
}

static fathom_err run_all(struct run *r, fathom_diag *d)
{
    fathom_stats stats;
    progress_begin(&r->progress, "answering");
    r->progress.unit = "requests";
    r->again_end = &r->again;
    while (r->n_written < r->n) {
        struct batch_answer a;
        bool taken;
        if (atomic_load(&r->interrupted)) FAIL(d, FATHOM_ECANCEL, "interrupted");
        TRY(ask_more(r));
        TRY(batch_take(r->batch, LOOK_MS, &a, &taken));
        fathom_get_stats(r->engine, &stats);
        if (stats.failed) { /* which is no answer to a request */
            if (taken) buf_free(&a.line);
            FAIL(d, FATHOM_EDEVICE, "the engine has failed: %s", fathom_fault(r->engine));
        }
        if (taken) TRY(take(r, &a, d));
    }
    return r->output.stream ? FATHOM_OK : new_file_end(&r->output.file, d);
}

/* ---- the command --------------------------------------------------------------------------- */

static void interrupt(void *arg, int number)
{
    struct run *r = arg;
    (void)number;
    atomic_store(&r->interrupted, true);
}

/* How it ended: one line on standard error. */
static void tell_end(struct run *r, fathom_err err, uint64_t start_us)
{
    progress_end(&r->progress);
    if (!err) {
        fprintf(stderr, "fathom: %zu requests are answered, %zu of them with an error, in %.1f s\n",
                r->n_answered, r->n_error, (double)(clock_now_us() - start_us) / 1e6);
    } else {
        const bool is_part = r->output.n_byte > 0;
        fprintf(stderr, "fathom: the first %zu of %zu requests are answered%s%s%s\n", r->n_written,
                r->n, is_part ? " in " : "", is_part ? r->output.file.part : "",
                is_part ? "; --resume goes on behind them" : "");
    }
}

static fathom_err open_files(struct run *r, const struct settings *s, fathom_diag *d)
{
    TRY(read_input(&r->input, s->input_file, d));
    TRY(cut_input(r));
    return open_output(r, s, d);
}

static void close_run(struct run *r)
{
    close_output(&r->output);
    for (size_t i = 0; i < r->n; i++) buf_free(&r->entries[i].line);
    mem_free(r->entries);
    buf_free(&r->input);
}

fathom_err cmd_run_batch(const struct invocation *v, fathom_diag *d)
{
    struct run r = {.output.file.fd = -1};
    struct signal_taker signals;
    struct text_model text = {0};
    struct server_options so = {0};
    struct server *server = NULL;
    fathom_options eo;
    fathom_err err;
    TRY_GOTO(signal_taker_start(&signals, SIGNALS_INTERRUPT, d), done);
    TRY_GOTO(open_files(&r, v->settings, d), done);
    TRY_GOTO(server_settings_read(&so, v, d), done);
    so.no_port = true;
    TRY_GOTO(text_model_open(&text, v->model, v->settings, d), done);
    engine_options(&eo, v->settings, v->model);
    eo.n_vocab_used = text.n_vocab_used;
    TRY_GOTO(engine_open(&r.engine, &eo, d), done);
    TRY_GOTO(server_create(&server, &so, r.engine, text.tokenizer, &text.style, d), done);
    r.batch = server_batch(server);
    signal_taker_listen(&signals, interrupt, &r);
    const uint64_t start_us = clock_now_us();
    err = run_all(&r, d);
    tell_end(&r, err, start_us);
done:
    server_destroy(server);
    signal_taker_end(&signals);
    fathom_close(r.engine);
    text_model_close(&text);
    close_run(&r);
    return err;
}
