/* access_log.h - a line of JSON for each answer: who asked what, sizes and times, no contents
 *
 * {"time":"2026-01-02T03:04:05.678Z","request_id":"...","id":"chatcmpl-...","remote":"127.0.0.1",
 *  "method":"POST","path":"/v1/chat/completions","status":200,"key":0,"prompt_tokens":12,
 *  "cached_tokens":0,"output_tokens":34,"first_ms":5,"ms":67}
 *
 * `key` is the number of the API key, the first being 0; it and the token counts are absent where
 * they mean nothing.
 *
 * A line that cannot be written is lost and counted: an answer does not wait for a disk. The log on
 * standard error says so when it begins, once a minute while it lasts, and when it ends.
 */
#ifndef FATHOM_SERVER_HTTP_ACCESS_LOG_H
#define FATHOM_SERVER_HTTP_ACCESS_LOG_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "fathom/err.h"

struct access_entry {
    const char *request_id; /* "": none */
    const char *id;         /* of the answer, "": none */
    const char *remote;
    const char *method;
    const char *path;
    int status;
    bool has_key;
    uint32_t key;
    bool has_tokens;
    uint64_t n_prompt, n_cached, n_output;
    uint64_t first_ms; /* 0: no token came */
    uint64_t total_ms;
};

struct access_log;

/* access_log_open - append to a file, which is made with mode 0600; "-" is standard output
 *
 *   path  outlives the log
 * Errors  EIO, ENOMEM. access_log_close accepts NULL. */
fathom_err access_log_open(struct access_log **out, const char *path, fathom_diag *d);
void access_log_close(struct access_log *log);

/* access_log_reopen - go on in the file that has the name now, as after a rotation; each line is
 * whole in one of both. Any thread.
 * Errors  EIO: it goes on in the file it had. */
fathom_err access_log_reopen(struct access_log *log, fathom_diag *d);

/* access_log_write - one line in one write, from any thread
 * Returns whether it was written. */
bool access_log_write(struct access_log *log, const struct access_entry *e);

/* access_log_format - the line; unix_ms is its time */
fathom_err access_log_format(struct buf *out, const struct access_entry *e, int64_t unix_ms);

#endif
