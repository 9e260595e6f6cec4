/* cmd_bench.c - fathom bench latency: one batch, start to end */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/fail.h"
#include "bench/latency.h"
#include "cli/cli.h"

static void print_spread(const char *name, const char *unit, const struct latency_spread *s)
{
    print_row(name, "%.2f %s (%.2f to %.2f)", s->median, unit, s->min, s->max);
}

static void print_result(const struct latency_options *o, const struct latency_result *r)
{
    print_row("batch", "%u requests, %u tokens in, %u out; %u runs after %u", o->n_request,
              o->n_input, o->n_output, o->n_repeat, o->n_warm_up);
    print_spread("prefill", "ms", &r->prefill_ms);
    print_spread("prefill rate", "tok/s", &r->prefill_tok_s);
    if (o->n_output > 1) {
        print_spread("step", "ms", &r->step_ms);
        print_spread("output rate", "tok/s", &r->output_tok_s);
    }
    print_spread("whole", "ms", &r->total_ms);
    if (r->host_us_per_step > 0) print_row("host", "%.1f us a step", r->host_us_per_step);
}

static fathom_err write_file(const char *path, const struct buf *b, fathom_diag *d)
{
    FILE *f = fopen(path, "we");
    bool ok = f && fwrite(buf_str(b), 1, b->len, f) == b->len;
    if (f && fclose(f) != 0) ok = false;
    if (!ok) FAIL(d, FATHOM_EIO, "%s: cannot be written: %s", path, strerror(errno));
    return FATHOM_OK;
}

fathom_err cmd_bench(const struct invocation *v, fathom_diag *d)
{
    const struct settings *s = v->settings;
    struct latency_options o = {.n_request = (uint32_t)s->batch_size,
                                .n_input = (uint32_t)s->input_len,
                                .n_output = (uint32_t)s->output_len,
                                .n_warm_up = (uint32_t)s->num_iters_warmup,
                                .n_repeat = (uint32_t)s->num_iters,
                                .seed = s->seed < 0 ? 0 : (uint64_t)s->seed};
    struct latency_result r;
    fathom_options options;
    fathom_engine *e = NULL;
    struct buf json = {0};
    fathom_err err;
    engine_options(&options, s, v->model);
    if (options.max_num_seqs == 0) options.max_num_seqs = o.n_request;
    TRY_GOTO(fathom_open(&e, &options, d), done);
    TRY_GOTO(latency_run(e, &o, &r, d), done);
    print_result(&o, &r);
    if (s->output_json) {
        TRY_GOTO(latency_write_json(&json, &o, &r, fathom_get_info(e)), done);
        TRY_GOTO(write_file(s->output_json, &json, d), done);
    }
done:
    buf_free(&json);
    fathom_close(e);
    return err;
}
