/* cmd_quantize.c - fathom quantize: a checkpoint to a smaller one */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/fail.h"
#include "base/new_file.h"
#include "base/os.h"
#include "checkpoint/checkpoint.h"
#include "cli/calibrate.h"
#include "cli/evaluation.h"
#include "cli/quantize_progress.h"
#include "model/config.h"
#include "quantize/convert.h"
#include "quantize/tune.h"

static fathom_err read_targets(unsigned *out, const struct string_list *names, fathom_diag *d)
{
    *out = names->n ? 0 : TARGET_EXPERTS;
    for (size_t i = 0; i < names->n; i++) {
        unsigned bits = quant_target_of(names->items[i]);
        if (!bits) {
            FAIL(d, FATHOM_EINVAL,
                 "--targets %s: needed are some of experts, shared, dense, attention, kv_b, "
                 "indexer, or linear for all of them",
                 names->items[i]);
        }
        *out |= bits;
    }
    return FATHOM_OK;
}

static void print_calibrated(const struct convert_result *r)
{
    uint64_t n_matrix = 0, n_tuned = 0, n_few = 0;
    for (unsigned i = 0; i < JOURNAL_TARGETS; i++) {
        n_matrix += r->sums[i].n_matrix;
        n_tuned += r->sums[i].n_tuned;
        n_few += r->sums[i].n_few;
    }
    if (n_tuned == 0) return;
    printf("calibrated   %llu of %llu matrices, the others by mse; %llu of experts that fewer than "
           "%d tokens went to, by those of the whole layer\n",
           (unsigned long long)n_tuned, (unsigned long long)n_matrix, (unsigned long long)n_few,
           TUNE_FEW);
}

static void print_targets(const struct convert_result *r)
{
    char a[SIZE_TEXT_BYTES], b[SIZE_TEXT_BYTES];
    printf("\n%-12s %9s %12s %12s %16s   %s\n", "target", "matrices", "before", "after",
           "relative error", "worst matrix");
    for (unsigned i = 0; i < JOURNAL_TARGETS; i++) {
        const struct journal_sums *s = &r->sums[i];
        if (s->n_matrix == 0) continue;
        printf("%-12s %9llu %12s %12s %16.5f   %.5f %s\n", quant_target_name(1u << i),
               (unsigned long long)s->n_matrix, size_text(a, s->source_bytes),
               size_text(b, s->out_bytes), sqrt(s->error.error / fmax(s->error.value, 1e-300)),
               s->worst, s->worst_name);
    }
    print_calibrated(r);
}

static void print_result(const struct convert_result *r, const struct settings *s, const char *out)
{
    char a[SIZE_TEXT_BYTES], b[SIZE_TEXT_BYTES], c[SIZE_TEXT_BYTES];
    print_row(s->quantize_dry_run ? "would write" : "written", "%s", out);
    print_row("scheme", "%s, %s", s->scheme, s->method);
    print_row("matrices", "%zu of %zu", r->n_quantized, r->n_matrix);
    print_row("size", "%s of %s", size_text(a, r->out_bytes), size_text(b, r->source_bytes));
    print_row("memory", "%s besides the mapped source", size_text(c, r->held_bytes));
    if (r->was_finished && r->n_anew) {
        printf("%zu of its files %s gone: %s anew, the others were there already\n", r->n_anew,
               r->n_anew == 1 ? "was" : "were", s->quantize_dry_run ? "to be written" : "written");
    } else if (r->was_finished) {
        printf("every file was there already\n");
    }
    if (!s->quantize_dry_run && !r->was_finished) print_targets(r);
}

/* The new checkpoint beside its source, printed and kept beside the report. */
static fathom_err report(const struct invocation *v, const char *dir, fathom_diag *d)
{
    struct settings s = *v->settings;
    struct model_source made = {0};
    struct evaluation e;
    struct buf b = {0};
    char path[LIMIT_PATH_BYTES];
    s.model = dir;
    TRY(model_source_find(&made, &s, v->environment, d));
    const struct evaluation_order order = {
        .settings = &s, .environment = v->environment, .model = &made, .against = v->model};
    fathom_err err;
    TRY_GOTO(evaluation_run(&e, &order, d), done);
    printf("\n");
    evaluation_print(&e);
    TRY_GOTO(evaluation_json(&b, &e), done);
    TRY_GOTO(path_join(path, sizeof path, dir, CONVERT_EVALUATION), done);
    err = new_file_save(path, buf_str(&b), b.len, d);
done:
    buf_free(&b);
    model_source_close(&made);
    return err;
}

static fathom_err convert(const struct invocation *v, const char *dir, fathom_diag *d)
{
    const struct settings *s = v->settings;
    struct convert_result result;
    struct model_config config;
    struct quantize_progress progress = {.is_json = strcmp(s->progress, "json") == 0};
    struct calibration *calibration = NULL;
    struct convert_order order = {.out = dir,
                                  .config = &config,
                                  .n_thread = (unsigned)s->threads,
                                  .resumes = s->resume,
                                  .is_dry = s->quantize_dry_run,
                                  .on_progress = quantize_progress_tell,
                                  .progress_arg = &progress};
    fathom_err err;
    TRY(read_targets(&order.targets, &s->targets, d));
    if (s->group != 32 && s->group != 64 && s->group != 128) {
        FAIL(d, FATHOM_EINVAL, "--group %lld: needed is 32, 64 or 128", (long long)s->group);
    }
    if (!quant_scheme_of(&order.scheme, s->scheme, (uint32_t)s->group, s->method)) {
        FAIL(d, FATHOM_EINVAL,
             "--scheme %s has no --method %s: the steps of FP8 grow with the number, so that there "
             "is "
             "nothing to choose; leave --method out",
             s->scheme, s->method);
    }
    TRY(model_source_open(&order.source, v->model, s, d));
    TRY_GOTO(model_config_load(&config, order.source, d), done);
    if (quant_method_calibrates(order.scheme.method)) {
        TRY_GOTO(calibration_begin(&calibration, s, v->model, order.source, &config, d), done);
        order.calibration = calibration_order(calibration);
    }
    err = convert_run(&result, &order, d);
    quantize_progress_end(&progress);
    if (!err) print_result(&result, s, dir);
done:
    calibration_end(calibration);
    checkpoint_close(order.source);
    return err;
}

fathom_err cmd_quantize(const struct invocation *v, fathom_diag *d)
{
    const struct settings *s = v->settings;
    const char *dir = s->rest.items[0];
    TRY(convert(v, dir, d));
    return s->report && !s->quantize_dry_run ? report(v, dir, d) : FATHOM_OK;
}
