/* exposition.c - a strict reader of Prometheus' text form */
#include "support/exposition.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAME_BYTES = 128, LINE_BYTES = 2048, FAMILIES_MAX = 128, SAMPLES_MAX = 2048 };

struct sample {
    char name[NAME_BYTES];
    char labels[LINE_BYTES]; /* without le */
    char bound[NAME_BYTES];  /* of le; "": none */
    double value;
};

struct reader {
    const char *at;
    unsigned line;
    char *why;
    size_t why_bytes;
    char families[FAMILIES_MAX][NAME_BYTES];
    size_t n_family;
    char type[32]; /* of the last family */
    char (*seen)[LINE_BYTES];
    size_t n_seen;
    /* the histogram that is being read */
    char labels[LINE_BYTES];
    double last_bound, last_count;
    bool in_buckets;
    bool has_inf;
};

static bool wrong(struct reader *r, const char *what)
{
    (void)snprintf(r->why, r->why_bytes, "line %u: %s", r->line, what);
    return false;
}

static const char *family(const struct reader *r)
{
    return r->n_family ? r->families[r->n_family - 1] : "";
}

static bool read_name(const char **at, char out[NAME_BYTES], bool colon)
{
    size_t n = 0;
    const char *c = *at;
    if (!(isalpha((unsigned char)*c) || *c == '_' || (colon && *c == ':'))) return false;
    while (isalnum((unsigned char)c[n]) || c[n] == '_' || (colon && c[n] == ':')) n++;
    if (n >= NAME_BYTES) return false;
    memcpy(out, c, n);
    out[n] = '\0';
    *at = c + n;
    return true;
}

/* A quoted value, escapes undone. */
static bool read_quoted(const char **at, char *out, size_t bytes)
{
    const char *c = *at;
    size_t n = 0;
    if (*c++ != '"') return false;
    for (; *c != '"'; c++) {
        if (*c == '\n' || *c == '\0' || n + 1 >= bytes) return false;
        if (*c != '\\') {
            out[n++] = *c;
            continue;
        }
        c++;
        if (*c != '\\' && *c != '"' && *c != 'n') return false;
        out[n++] = *c == 'n' ? '\n' : *c;
    }
    out[n] = '\0';
    *at = c + 1;
    return true;
}

static bool read_labels(const char **at, struct sample *s)
{
    const char *c = *at + 1;
    size_t n = 0;
    while (*c != '}') {
        char name[NAME_BYTES], value[LINE_BYTES / 2];
        if (!read_name(&c, name, false) || *c++ != '=') return false;
        if (!read_quoted(&c, value, sizeof value)) return false;
        if (strcmp(name, "le") == 0) {
            (void)snprintf(s->bound, sizeof s->bound, "%.100s", value);
        } else {
            int more = snprintf(s->labels + n, sizeof s->labels - n, "%s=%s;", name, value);
            n += (size_t)more;
            if (n >= sizeof s->labels) return false;
        }
        if (*c == ',') c++;
    }
    *at = c + 1;
    return true;
}

static bool read_sample(const char *line, struct sample *s)
{
    const char *c = line;
    char *end;
    *s = (struct sample){0};
    if (!read_name(&c, s->name, true)) return false;
    if (*c == '{' && !read_labels(&c, s)) return false;
    if (*c++ != ' ') return false;
    s->value = strtod(c, &end);
    return end != c && *end == '\0';
}

static bool check_bucket(struct reader *r, const struct sample *s)
{
    double bound = strtod(s->bound, NULL);
    if (!r->in_buckets || strcmp(r->labels, s->labels) != 0) {
        r->in_buckets = true;
        r->has_inf = false;
        r->last_bound = -HUGE_VAL;
        r->last_count = 0;
        (void)snprintf(r->labels, sizeof r->labels, "%s", s->labels);
    }
    if (!s->bound[0]) return wrong(r, "a bucket without a bound");
    if (bound <= r->last_bound) return wrong(r, "bounds do not ascend");
    if (s->value < r->last_count) return wrong(r, "a cumulative count falls");
    r->last_bound = bound;
    r->last_count = s->value;
    r->has_inf = isinf(bound);
    return true;
}

static bool check_histogram_sample(struct reader *r, const struct sample *s)
{
    const char *suffix = s->name + strlen(family(r));
    if (strcmp(suffix, "_bucket") == 0) return check_bucket(r, s);
    if (!r->in_buckets || strcmp(r->labels, s->labels) != 0 || !r->has_inf) {
        return wrong(r, "a sum or count does not follow its buckets up to +Inf");
    }
    if (strcmp(suffix, "_sum") == 0) return s->value >= 0 || wrong(r, "a negative sum");
    if (strcmp(suffix, "_count") != 0) return wrong(r, "not a sample of a histogram");
    r->in_buckets = false;
    return s->value == r->last_count || wrong(r, "the count is not that of the last bucket");
}

static bool check_sample(struct reader *r, const char *line)
{
    struct sample s;
    if (!read_sample(line, &s)) return wrong(r, "not a sample");
    if (strncmp(s.name, family(r), strlen(family(r))) != 0 || r->n_family == 0) {
        return wrong(r, "a sample of another family");
    }
    size_t key = (size_t)(strrchr(line, ' ') - line);
    for (size_t i = 0; i < r->n_seen; i++) {
        if (strncmp(r->seen[i], line, key) == 0 && r->seen[i][key] == '\0') {
            return wrong(r, "a sample comes twice");
        }
    }
    if (r->n_seen == SAMPLES_MAX || key >= LINE_BYTES) return wrong(r, "too much for this test");
    memcpy(r->seen[r->n_seen], line, key);
    r->seen[r->n_seen++][key] = '\0';
    if (strcmp(r->type, "histogram") == 0) return check_histogram_sample(r, &s);
    if (strcmp(s.name, family(r)) != 0) return wrong(r, "a sample of another family");
    if (strcmp(r->type, "counter") == 0 && !(s.value >= 0)) return wrong(r, "a negative counter");
    return true;
}

static bool check_help(struct reader *r, const char *rest)
{
    char name[NAME_BYTES];
    if (r->in_buckets) return wrong(r, "a histogram without sum and count");
    if (!read_name(&rest, name, true) || *rest != ' ') return wrong(r, "HELP without a name");
    for (size_t i = 0; i < r->n_family; i++) {
        if (strcmp(r->families[i], name) == 0) return wrong(r, "a family comes twice");
    }
    if (r->n_family == FAMILIES_MAX) return wrong(r, "too much for this test");
    memcpy(r->families[r->n_family++], name, sizeof name);
    r->type[0] = '\0';
    return true;
}

static bool check_type(struct reader *r, const char *rest)
{
    char name[NAME_BYTES];
    if (!read_name(&rest, name, true) || strcmp(name, family(r)) != 0 || r->type[0]) {
        return wrong(r, "TYPE does not follow the HELP of its family");
    }
    (void)snprintf(r->type, sizeof r->type, "%.20s", rest + 1);
    if (strcmp(r->type, "counter") != 0 && strcmp(r->type, "gauge") != 0 &&
        strcmp(r->type, "histogram") != 0) {
        return wrong(r, "an unknown type");
    }
    return true;
}

static bool check_line(struct reader *r, const char *line)
{
    if (strncmp(line, "# HELP ", 7) == 0) return check_help(r, line + 7);
    if (strncmp(line, "# TYPE ", 7) == 0) return check_type(r, line + 7);
    if (line[0] == '#') return true;
    if (!r->type[0]) return wrong(r, "a sample before its TYPE");
    return check_sample(r, line);
}

bool exposition_check(const char *text, char *why, size_t why_bytes)
{
    struct reader *r = calloc(1, sizeof *r);
    bool ok = r != NULL;
    if (!ok) return false;
    r->why = why;
    r->why_bytes = why_bytes;
    r->seen = calloc(SAMPLES_MAX, sizeof *r->seen);
    ok = r->seen != NULL;
    while (ok && *text) {
        char line[LINE_BYTES];
        size_t n = strcspn(text, "\n");
        r->line++;
        if (text[n] != '\n' || n >= sizeof line) {
            ok = wrong(r, "the line does not end");
            break;
        }
        memcpy(line, text, n);
        line[n] = '\0';
        ok = check_line(r, line);
        text += n + 1;
    }
    if (ok && r->in_buckets) ok = wrong(r, "a histogram without sum and count");
    free(r->seen);
    free(r);
    return ok;
}

double exposition_value(const char *text, const char *name, const char *part)
{
    size_t n = strlen(name);
    for (const char *line = text; *line; line += strcspn(line, "\n") + 1) {
        if (strncmp(line, name, n) != 0 || (line[n] != '{' && line[n] != ' ')) continue;
        size_t len = strcspn(line, "\n");
        const char *found = strstr(line, part);
        if (!found || found >= line + len) continue;
        const char *space = line + len;
        while (*space != ' ') space--;
        return strtod(space, NULL);
    }
    return -1;
}
