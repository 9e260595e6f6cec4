/* chart.c - charts as SVG: axes, lines, points, legends */
#include "bench/chart.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/utf8.h"

enum { WIDTH = 640, HEIGHT = 360, LEFT = 66, RIGHT = 22, TOP = 18, BOTTOM = 50, TICKS_MAX = 64 };

static const double log_from = 20;   /* axes over a wider range than this are logarithmic ... */
static const double log_y_from = 60; /* ... the upright one later: lengths are read off it */

/* The range of the data and where it is drawn. */
struct frame {
    double x0, x1, y0, y1;
    bool x_log, y_log;
    double y_scale; /* drawn value = y * y_scale */
    const char *y_unit;
};

/* ---- text -------------------------------------------------------------------------------- */

void html_add(struct buf *out, const char *text)
{
    size_t n = strlen(text);
    while (n) {
        size_t len;
        int32_t c = utf8_next(text, n, &len);
        switch (c) {
        case '&': (void)buf_add_str(out, "&amp;"); break;
        case '<': (void)buf_add_str(out, "&lt;"); break;
        case '>': (void)buf_add_str(out, "&gt;"); break;
        case '"': (void)buf_add_str(out, "&quot;"); break;
        case '\'': (void)buf_add_str(out, "&#39;"); break;
        default:
            if (c < 0 || (c < ' ' && c != '\n' && c != '\t')) {
                (void)buf_add_str(out, "\xef\xbf\xbd");
            } else {
                (void)buf_add(out, text, len);
            }
        }
        text += len;
        n -= len;
    }
}

static void add_grouped(struct buf *out, double value)
{
    char digits[40];
    if (fabs(value) >= 1e15) { /* of no use digit by digit, and a file may say 1e308 */
        (void)buf_printf(out, "%.3g", value);
        return;
    }
    int n = snprintf(digits, sizeof digits, "%.0f", fabs(value));
    if (value <= -0.5) (void)buf_add_char(out, '-');
    for (int i = 0; i < n; i++) {
        if (i && (n - i) % 3 == 0) (void)buf_add_char(out, ',');
        (void)buf_add_char(out, digits[i]);
    }
}

void number_add(struct buf *out, double value)
{
    double size = fabs(value);
    if (!isfinite(value)) {
        (void)buf_add_str(out, "–");
    } else if (size >= 99.95 || (size >= 10 && size == floor(size))) {
        add_grouped(out, value);
    } else {
        (void)buf_printf(out,
                         size >= 9.995                 ? "%.1f"
                         : size >= 0.0995 || size == 0 ? "%.2f"
                                                       : "%.3g",
                         value);
    }
}

/* A tick: no more digits than it needs. */
static void tick_add(struct buf *out, double value)
{
    if (fabs(value) >= 1000) {
        add_grouped(out, value);
    } else {
        (void)buf_printf(out, "%.4g", value);
    }
}

/* ---- the frame --------------------------------------------------------------------------- */

/* 1, 2 or 5 times a power of ten, so that about n of them span the range. */
static double nice_step(double range, int n)
{
    double rough = range / n;
    double power = pow(10, floor(log10(rough)));
    double lead = rough / power;
    return power * (lead <= 1 ? 1 : lead <= 2 ? 2 : lead <= 5 ? 5 : 10);
}

static void measure(const struct chart *c, struct frame *f, double *least_y)
{
    *f = (struct frame){.x0 = INFINITY, .x1 = -INFINITY, .y1 = 0, .y_scale = 1};
    *least_y = INFINITY;
    for (size_t i = 0; i < c->n_line; i++) {
        for (size_t k = 0; k < c->lines[i].n; k++) {
            const struct chart_point *p = &c->lines[i].points[k];
            if (p->x < f->x0) f->x0 = p->x;
            if (p->x > f->x1) f->x1 = p->x;
            if (p->hi > f->y1) f->y1 = p->hi;
            if (p->lo > 0 && p->lo < *least_y) *least_y = p->lo;
        }
    }
}

static struct frame make_frame(const struct chart *c)
{
    struct frame f;
    double least_y;
    measure(c, &f, &least_y);
    if (f.y1 <= 0) f.y1 = 1;
    f.y_unit = c->y_unit;
    if (c->y_unit && strcmp(c->y_unit, "ms") == 0 && f.y1 >= 4000) {
        f.y_scale = 1e-3;
        f.y_unit = "s";
    }
    f.x_log = c->x_is_count && f.x0 > 0 && f.x1 / f.x0 >= log_from;
    if (!f.x_log && !c->x_is_count) f.x0 = 0;
    if (c->has_diagonal && f.x1 > f.y1) f.y1 = f.x1;
    f.y_log = c->y_unit && strcmp(c->y_unit, "ms") == 0 && f.y1 / least_y >= log_y_from;
    f.y1 *= f.y_scale;
    if (f.y_log) {
        f.y0 = pow(10, floor(log10(least_y * f.y_scale)));
        if (least_y * f.y_scale >= 5 * f.y0) f.y0 *= 5;
        f.y1 *= 1.15;
    } else {
        double step = nice_step(f.y1, 5);
        f.y1 = ceil(f.y1 / step * 1.02) * step;
    }
    return f;
}

static double share(double value, double from, double to, bool is_log)
{
    if (is_log) return log(value / from) / log(to / from);
    return (value - from) / (to - from);
}

static double at_x(const struct frame *f, double x)
{
    return LEFT + share(x, f->x0, f->x1, f->x_log) * (WIDTH - LEFT - RIGHT);
}

static double at_y(const struct frame *f, double y)
{
    double part = y <= 0 && f->y_log ? 0 : share(y * f->y_scale, f->y0, f->y1, f->y_log);
    return HEIGHT - BOTTOM - part * (HEIGHT - BOTTOM - TOP);
}

/* ---- axes -------------------------------------------------------------------------------- */

static void add_y_tick(struct buf *out, const struct frame *f, double value)
{
    double y = at_y(f, value / f->y_scale);
    (void)buf_printf(out, "<line class=\"grid\" x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\"/>",
                     LEFT, WIDTH - RIGHT, y, y);
    (void)buf_printf(out, "<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">", LEFT - 9, y + 4);
    tick_add(out, value);
    (void)buf_add_str(out, "</text>");
}

static void add_y_axis(struct buf *out, const struct frame *f)
{
    static const double leads[] = {1, 2, 5};
    if (!f->y_log) {
        double step = nice_step(f->y1, 5);
        for (int i = 0; i * step <= f->y1 * 1.0001; i++) add_y_tick(out, f, i * step);
        return;
    }
    bool many = f->y1 / f->y0 > 1500;
    int first = (int)floor(log10(f->y0));
    int last = (int)floor(log10(f->y1));
    for (int decade = first; decade <= last; decade++) {
        for (size_t i = 0; i < (many ? 1 : 3); i++) {
            double value = pow(10, decade) * leads[i];
            if (value >= f->y0 * 0.999 && value <= f->y1) add_y_tick(out, f, value);
        }
    }
}

static void add_x_tick(struct buf *out, const struct frame *f, double x)
{
    double px = at_x(f, x);
    (void)buf_printf(out, "<line class=\"tick\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%d\" y2=\"%d\"/>", px,
                     px, HEIGHT - BOTTOM, HEIGHT - BOTTOM + 5);
    (void)buf_printf(out, "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">", px,
                     HEIGHT - BOTTOM + 20);
    tick_add(out, x);
    (void)buf_add_str(out, "</text>");
}

/* The next value of x that was measured after `after`; INFINITY when there is none. */
static double next_x(const struct chart *c, double after)
{
    double next = INFINITY;
    for (size_t i = 0; i < c->n_line; i++) {
        for (size_t k = 0; k < c->lines[i].n; k++) {
            double x = c->lines[i].points[k].x;
            if (x > after && x < next) next = x;
        }
    }
    return next;
}

/* Ticks at what was measured, as far as there is room: the last one always has it. */
static void add_count_ticks(struct buf *out, const struct chart *c, const struct frame *f)
{
    enum { ROOM = 34 };
    double last_px = -ROOM;
    double x = -INFINITY;
    while (isfinite(x = next_x(c, x))) {
        double px = at_x(f, x);
        bool is_last = !isfinite(next_x(c, x));
        if (!is_last && (px - last_px < ROOM || at_x(f, f->x1) - px < ROOM)) continue;
        add_x_tick(out, f, x);
        last_px = px;
    }
}

static void add_axes(struct buf *out, const struct chart *c, const struct frame *f)
{
    add_y_axis(out, f);
    (void)buf_printf(out, "<line class=\"axis\" x1=\"%d\" x2=\"%d\" y1=\"%d\" y2=\"%d\"/>", LEFT,
                     WIDTH - RIGHT, HEIGHT - BOTTOM, HEIGHT - BOTTOM);
    if (c->x_is_count) {
        add_count_ticks(out, c, f);
    } else {
        double step = nice_step(f->x1 - f->x0, 7);
        double first = ceil(f->x0 / step - 1e-6);
        for (int i = 0; (first + i) * step <= f->x1 * 1.0001; i++) {
            add_x_tick(out, f, (first > 0 ? first : 0) * step + i * step);
        }
    }
    (void)buf_printf(out, "<text class=\"name\" x=\"%d\" y=\"%d\" text-anchor=\"middle\">",
                     (LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8);
    html_add(out, c->x_label);
    (void)buf_add_str(out, "</text>");
}

/* ---- lines ------------------------------------------------------------------------------- */

/* A mark of the line's own shape around (x, y). */
static void add_mark(struct buf *out, unsigned colour, double x, double y)
{
    switch (colour % 4) {
    case 0: (void)buf_printf(out, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"4\"", x, y); break;
    case 1:
        (void)buf_printf(out, "<rect x=\"%.1f\" y=\"%.1f\" width=\"7.4\" height=\"7.4\"", x - 3.7,
                         y - 3.7);
        break;
    case 2: (void)buf_printf(out, "<path d=\"M%.1f %.1fl4.8 8.2h-9.6z\"", x, y - 5.2); break;
    default: (void)buf_printf(out, "<path d=\"M%.1f %.1fl5 5l-5 5l-5-5z\"", x, y - 5); break;
    }
}

static void add_marks(struct buf *out, const struct chart *c, const struct frame *f,
                      const struct chart_line *l)
{
    for (size_t i = 0; i < l->n; i++) {
        const struct chart_point *p = &l->points[i];
        double x = at_x(f, p->x);
        if (p->hi > p->lo) {
            (void)buf_printf(out, "<path class=\"bar\" d=\"M%.1f %.1fh6m-3 0V%.1fm-3 0h6\"/>",
                             x - 3, at_y(f, p->lo), at_y(f, p->hi));
        }
        add_mark(out, l->colour, x, at_y(f, p->y));
        (void)buf_add_str(out, "><title>");
        html_add(out, l->name);
        (void)buf_add_str(out, ": ");
        number_add(out, p->y * f->y_scale);
        if (f->y_unit) (void)buf_printf(out, " %s", f->y_unit);
        (void)buf_add_str(out, " at ");
        tick_add(out, p->x);
        (void)buf_add_char(out, ' ');
        html_add(out, c->x_label);
        (void)buf_add_str(out, "</title>");
        (void)buf_printf(out, "</%s>",
                         l->colour % 4 == 0   ? "circle"
                         : l->colour % 4 == 1 ? "rect"
                                              : "path");
    }
}

static void add_line(struct buf *out, const struct chart *c, const struct frame *f,
                     const struct chart_line *l)
{
    (void)buf_printf(out, "<g class=\"c%u%s\"><path class=\"line\" d=\"", l->colour % CHART_COLOURS,
                     l->is_dashed ? " dashed" : "");
    for (size_t i = 0; i < l->n; i++) {
        (void)buf_printf(out, "%c%.1f %.1f", i ? 'L' : 'M', at_x(f, l->points[i].x),
                         at_y(f, l->points[i].y));
    }
    (void)buf_add_str(out, "\"/>");
    add_marks(out, c, f, l);
    (void)buf_add_str(out, "</g>");
}

static void add_diagonal(struct buf *out, const struct frame *f)
{
    double end = f->x1 < f->y1 ? f->x1 : f->y1;
    (void)buf_printf(out, "<path class=\"ideal\" d=\"M%.1f %.1fL%.1f %.1f\"/>", at_x(f, f->x0),
                     at_y(f, f->x0), at_x(f, end), at_y(f, end));
}

static void add_drawing(struct buf *out, const struct chart *c, const struct frame *f)
{
    (void)buf_printf(out,
                     "<svg viewBox=\"0 0 %d %d\" role=\"img\" aria-labelledby=\"%s-t %s-d\">"
                     "<title id=\"%s-t\">",
                     WIDTH, HEIGHT, c->id, c->id, c->id);
    html_add(out, c->title);
    (void)buf_printf(out, "</title><desc id=\"%s-d\">", c->id);
    html_add(out, c->y_label);
    (void)buf_add_str(out, " over ");
    html_add(out, c->x_label);
    (void)buf_add_str(out, "; the values are in the table below the drawing.</desc>");
    add_axes(out, c, f);
    if (c->has_diagonal) add_diagonal(out, f);
    for (size_t i = 0; i < c->n_line; i++) add_line(out, c, f, &c->lines[i]);
    (void)buf_add_str(out, "</svg>\n");
}

/* ---- around it --------------------------------------------------------------------------- */

static void add_legend(struct buf *out, const struct chart *c)
{
    (void)buf_add_str(out, "<ul class=\"legend\">");
    for (size_t i = 0; i < c->n_line; i++) {
        const struct chart_line *l = &c->lines[i];
        (void)buf_printf(out,
                         "<li><svg viewBox=\"0 0 30 12\" aria-hidden=\"true\"><g class=\"c%u%s\">"
                         "<path class=\"line\" d=\"M1 6H29\"/>",
                         l->colour % CHART_COLOURS, l->is_dashed ? " dashed" : "");
        add_mark(out, l->colour, 15, 6);
        (void)buf_add_str(out, "/></g></svg>");
        html_add(out, l->name);
        (void)buf_add_str(out, "</li>");
    }
    if (c->has_diagonal) {
        (void)buf_add_str(out, "<li><svg viewBox=\"0 0 30 12\" aria-hidden=\"true\"><path "
                               "class=\"ideal\" d=\"M1 6H29\"/></svg>all that is offered</li>");
    }
    (void)buf_add_str(out, "</ul>");
}

static void add_value(struct buf *out, const struct chart_line *l, double x)
{
    (void)buf_add_str(out, "<td>");
    for (size_t i = 0; i < l->n; i++) {
        const struct chart_point *p = &l->points[i];
        if (p->x != x) continue;
        number_add(out, p->y);
        if (p->hi > p->lo) {
            (void)buf_add_str(out, " <small>");
            number_add(out, p->lo);
            (void)buf_add_str(out, "–");
            number_add(out, p->hi);
            (void)buf_add_str(out, "</small>");
        }
        break;
    }
    (void)buf_add_str(out, "</td>");
}

static void add_table(struct buf *out, const struct chart *c)
{
    (void)buf_add_str(out,
                      "<details><summary>Values</summary><div class=\"scroll\"><table><caption>");
    html_add(out, c->y_label);
    if (c->y_unit) (void)buf_printf(out, ", %s", c->y_unit);
    (void)buf_add_str(out, "</caption><thead><tr><th scope=\"col\">");
    html_add(out, c->x_label);
    (void)buf_add_str(out, "</th>");
    for (size_t i = 0; i < c->n_line; i++) {
        (void)buf_add_str(out, "<th scope=\"col\">");
        html_add(out, c->lines[i].name);
        (void)buf_add_str(out, "</th>");
    }
    (void)buf_add_str(out, "</tr></thead><tbody>");
    double x = -INFINITY;
    while (isfinite(x = next_x(c, x))) {
        (void)buf_add_str(out, "<tr><th scope=\"row\">");
        tick_add(out, x);
        (void)buf_add_str(out, "</th>");
        for (size_t i = 0; i < c->n_line; i++) add_value(out, &c->lines[i], x);
        (void)buf_add_str(out, "</tr>");
    }
    (void)buf_add_str(out, "</tbody></table></div></details>");
}

bool chart_has_range(const struct chart *c)
{
    double first = next_x(c, -INFINITY);
    return isfinite(first) && isfinite(next_x(c, first));
}

fathom_err chart_write(struct buf *out, const struct chart *c)
{
    struct frame f = make_frame(c);
    (void)buf_printf(out, "<figure id=\"%s\"><h3>", c->id);
    html_add(out, c->title);
    (void)buf_add_str(out, "</h3><p class=\"unit\">");
    html_add(out, c->y_label);
    if (f.y_unit) (void)buf_printf(out, ", %s", f.y_unit);
    if (f.y_log) (void)buf_add_str(out, ", logarithmic");
    (void)buf_add_str(out, "</p>");
    add_legend(out, c);
    add_drawing(out, c, &f);
    (void)buf_add_str(out, "<figcaption>");
    html_add(out, c->caption);
    (void)buf_add_str(out, "</figcaption>");
    add_table(out, c);
    return buf_add_str(out, "</figure>\n");
}
