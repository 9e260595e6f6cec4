/* cmd_bench_serve.c - fathom bench serve: a server under load */
#include <stdio.h>
#include <string.h>

#include "base/fail.h"
#include "base/new_file.h"
#include "base/os.h"
#include "cli/bench_cli.h"

/* The file of the result, which is looked at before the load begins; "" when none is asked for.
 * vLLM writes one when any of the three asks. */
static fathom_err find_place(char path[LIMIT_PATH_BYTES], const struct bench_serve *b,
                             const struct bench_settings *s, fathom_diag *d)
{
    struct buf name = {0};
    const char *dir = s->result_dir ? s->result_dir : ".";
    fathom_err err = FATHOM_OK;
    path[0] = '\0';
    if (!s->save_result && !s->save_detailed && !s->append_result) return FATHOM_OK;
    if (s->result_filename) {
        TRY_GOTO(buf_add_str(&name, s->result_filename), done);
    } else {
        TRY_GOTO(serve_file_name(&name, &b->options, &b->about), done);
    }
    TRY_GOTO(os_make_dir(dir, d), done);
    const char *text = buf_str(&name);
    if (path_join(path, LIMIT_PATH_BYTES, text[0] == '/' ? "/" : dir, text + (text[0] == '/'))) {
        err = diag_fail(d, FATHOM_EINVAL, "the path of the result is longer than %d bytes",
                        LIMIT_PATH_BYTES - 1);
        goto done;
    }
    err = path_check_writable(path, !s->append_result, d);
done:
    buf_free(&name);
    return err;
}

static fathom_err save(const char *path, const struct bench_serve *b, const struct serve_result *r,
                       bool appends, fathom_diag *d)
{
    struct buf json = {0};
    fathom_err err;
    TRY_GOTO(bench_write_result(&json, b, r, d), done);
    err = appends ? file_append(path, buf_str(&json), json.len, d)
                  : file_save(path, buf_str(&json), json.len, d);
    if (!err) printf("result    %s\n", path);
done:
    buf_free(&json);
    return err;
}

fathom_err cmd_bench_serve(const struct invocation *v, fathom_diag *d)
{
    struct bench_serve b;
    struct serve_result r = {0};
    struct buf table = {0};
    char path[LIMIT_PATH_BYTES];
    fathom_err err;
    TRY_GOTO(bench_serve_open(&b, v, d), done);
    TRY_GOTO(find_place(path, &b, &v->settings->bench, d), done);
    TRY_GOTO(serve_run(&r, &b.options, d), done);
    TRY_GOTO(serve_result_table(&table, &r, &b.options, &b.about, d), done);
    (void)fputs(buf_str(&table), stdout);
    if (path[0]) TRY_GOTO(save(path, &b, &r, v->settings->bench.append_result, d), done);
    if (r.figures.n_completed == 0) {
        err = diag_fail(d, FATHOM_EIO, "none of %zu requests succeeded", r.figures.n_failed);
    }
done:
    buf_free(&table);
    serve_result_free(&r);
    bench_serve_close(&b);
    return err;
}
