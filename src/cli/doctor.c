/* doctor.c - findings: how they are made, and how they are told */
#include "cli/doctor.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/json.h"

static const char *const level_names[] = {
    [FINDING_OK] = "ok", [FINDING_NOTE] = "note", [FINDING_WARN] = "warn", [FINDING_BAD] = "bad"};

void doctor_find(struct doctor *d, enum finding_level level, const char *area, const char *advice,
                 const char *fmt, ...)
{
    va_list ap;
    if (d->n_finding == FINDINGS_MAX) return;
    struct finding *f = &d->findings[d->n_finding++];
    f->level = level;
    f->area = area;
    (void)snprintf(f->advice, sizeof f->advice, "%s", advice);
    va_start(ap, fmt);
    (void)vsnprintf(f->text, sizeof f->text, fmt, ap);
    va_end(ap);
}

bool doctor_read_line(const char *path, char *out, size_t bytes)
{
    FILE *f = fopen(path, "re");
    out[0] = '\0';
    if (!f) return false;
    bool ok = fgets(out, (int)bytes, f) != NULL;
    (void)fclose(f);
    out[strcspn(out, "\n")] = '\0';
    return ok;
}

/* ---- the report ---------------------------------------------------------------------------- */

void doctor_print(const struct doctor *d)
{
    for (size_t i = 0; i < d->n_finding; i++) {
        const struct finding *f = &d->findings[i];
        printf("%-5s %-10s %s\n", level_names[f->level], f->area, f->text);
        if (f->advice[0]) printf("%-16s %s\n", "", f->advice);
    }
}

static void add_text(struct buf *b, const char *name, const char *text)
{
    (void)buf_printf(b, "\"%s\":", name);
    (void)json_write_string(b, text, strlen(text));
}

fathom_err doctor_print_json(const struct doctor *d, enum finding_level worst)
{
    struct buf b = {0};
    (void)buf_printf(&b, "{\"version\":\"%s\",\"worst\":\"%s\",\"findings\":[", FATHOM_VERSION,
                     level_names[worst]);
    for (size_t i = 0; i < d->n_finding; i++) {
        const struct finding *f = &d->findings[i];
        (void)buf_printf(&b, "%s\n{\"level\":\"%s\",", i ? "," : "", level_names[f->level]);
        add_text(&b, "area", f->area);
        (void)buf_add_char(&b, ',');
        add_text(&b, "text", f->text);
        (void)buf_add_char(&b, ',');
        add_text(&b, "advice", f->advice);
        (void)buf_add_char(&b, '}');
    }
    fathom_err err = buf_add_str(&b, "]}\n");
    if (!err) (void)fputs(buf_str(&b), stdout);
    buf_free(&b);
    return err;
}
