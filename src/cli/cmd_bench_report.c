/* cmd_bench_report.c - fathom bench report: results to one HTML page */
#include <stdio.h>
#include <time.h>

#include "base/clock.h"
#include "base/fail.h"
#include "base/new_file.h"
#include "bench/report.h"
#include "bench/sweep.h"
#include "cli/cli.h"

static fathom_err read_zooms(struct report_options *o, const char *text, fathom_diag *d)
{
    struct sweep_list list;
    TRY(sweep_list_read(&list, text, "--zoom", true, d));
    if (list.n > REPORT_ZOOM_MAX) {
        FAIL(d, FATHOM_EINVAL, "--zoom: %zu values, at most %d", list.n, REPORT_ZOOM_MAX);
    }
    o->n_zoom = list.n;
    for (size_t i = 0; i < list.n; i++) o->zooms[i] = (uint32_t)list.values[i];
    return FATHOM_OK;
}

fathom_err cmd_bench_report(const struct invocation *v, fathom_diag *d)
{
    const struct settings *s = v->settings;
    struct report_data data = {0};
    struct report_options o = {.title = s->bench.title};
    struct buf html = {0};
    char made[64];
    char date[32] = "";
    time_t now = (time_t)clock_unix_s();
    struct tm t;
    fathom_err err;
    TRY_GOTO(read_zooms(&o, s->bench.zoom, d), done);
    for (size_t i = 0; i < s->rest.n; i++) {
        TRY_GOTO(report_data_add_file(&data, s->rest.items[i], d), done);
    }
    TRY_GOTO(report_data_arrange(&data), done);
    if (localtime_r(&now, &t)) (void)strftime(date, sizeof date, "%Y-%m-%d", &t);
    (void)snprintf(made, sizeof made, "fathom %s, %s", FATHOM_VERSION, date);
    o.made = made;
    TRY_GOTO(report_write(&html, &data, &o, d), done);
    TRY_GOTO(file_save(s->bench.output, buf_str(&html), html.len, d), done);
    print_row("report", "%s: %zu points, %zu series, %zu kB", s->bench.output, data.n_point,
              data.n_series, html.len / 1000);
done:
    buf_free(&html);
    report_data_free(&data);
    return err;
}
