/* cmd_bench_serve.c - fathom bench serve: a server under load */
#include <stdio.h>
#include <string.h>

#include "base/fail.h"
#include "base/os.h"
#include "cli/bench_cli.h"

/* vLLM writes a file when any of the three asks for one. */
static fathom_err save(const struct bench_serve *b, const struct bench_settings *s,
                       const struct serve_result *r, fathom_diag *d)
{
    char path[LIMIT_PATH_BYTES];
    struct buf name = {0};
    struct buf json = {0};
    const char *dir = s->result_dir ? s->result_dir : ".";
    fathom_err err = FATHOM_OK;
    if (!s->save_result && !s->save_detailed && !s->append_result) return FATHOM_OK;
    if (s->result_filename) {
        TRY_GOTO(buf_add_str(&name, s->result_filename), done);
    } else {
        TRY_GOTO(serve_file_name(&name, &b->options, &b->about), done);
    }
    TRY_GOTO(os_make_dir(dir, d), done);
    TRY_GOTO(path_join(path, sizeof path, dir, buf_str(&name)), done);
    TRY_GOTO(bench_write_result(&json, b, r, d), done);
    TRY_GOTO(os_write_file(path, buf_str(&json), json.len, s->append_result, d), done);
    printf("result    %s\n", path);
done:
    buf_free(&name);
    buf_free(&json);
    return err;
}

fathom_err cmd_bench_serve(const struct invocation *v, fathom_diag *d)
{
    struct bench_serve b;
    struct serve_result r = {0};
    struct buf table = {0};
    fathom_err err;
    TRY_GOTO(bench_serve_open(&b, v, d), done);
    TRY_GOTO(serve_run(&r, &b.options, d), done);
    TRY_GOTO(serve_result_table(&table, &r, &b.options, &b.about, d), done);
    (void)fputs(buf_str(&table), stdout);
    TRY_GOTO(save(&b, &v->settings->bench, &r, d), done);
    if (r.figures.n_completed == 0) {
        err = diag_fail(d, FATHOM_EIO, "none of %zu requests succeeded", r.figures.n_failed);
    }
done:
    buf_free(&table);
    serve_result_free(&r);
    bench_serve_close(&b);
    return err;
}
