/* report.c - the report: what is at a glance, checks, tables, sections, and how it looks */
#include "bench/report.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/fail.h"
#include "bench/report_section.h"

static const double saturated_from = 0.95; /* of the best output rate */

/* ---- how the report looks: light, dark, on paper -------------------------------------------- */

static const char style_sheet[] =
    ":root{color-scheme:light dark;--paper:#fbfaf8;--card:#fff;--ink:#1d1f23;--soft:#5d636e;"
    "--rule:#e4e1da;--grid:#ecebe6;--good:#1a7f4b;--bad:#c02b2b;--c0:#2459c9;--c1:#d2570a;"
    "--c2:#12855f;--c3:#8a3fc4;--c4:#a67c00;--c5:#c42d66;--c6:#0b7f9c;--c7:#5f6b7a}\n"
    "@media(prefers-color-scheme:dark){:root{--paper:#121418;--card:#1a1d23;--ink:#e8e6e1;"
    "--soft:#a0a5b0;--rule:#30343d;--grid:#282c34;--good:#5fd197;--bad:#ff8a80;--c0:#7aa5ff;"
    "--c1:#ff9d57;--c2:#4ecb9d;--c3:#c792f5;--c4:#e3bb45;--c5:#ff82ab;--c6:#55cbe4;--c7:#a9b4c2}}\n"
    "*{box-sizing:border-box}html{-webkit-text-size-adjust:100%}"
    "body{margin:0;background:var(--paper);color:var(--ink);font:16px/1.55 system-ui,-apple-system,"
    "\"Segoe UI\",Roboto,\"Helvetica Neue\",\"Noto Sans\",\"DejaVu Sans\",sans-serif;"
    "font-variant-numeric:tabular-nums}\n"
    "main,header,footer{max-width:1240px;margin:0 auto;padding:0 28px}"
    "header{padding-top:56px}h1{font-size:40px;line-height:1.15;letter-spacing:-.022em;margin:0 0 "
    "10px;font-weight:680;text-wrap:balance}"
    ".lead{color:var(--soft);font-size:17px;margin:0 0 4px;max-width:75ch}"
    "h2{font-size:25px;line-height:1.25;letter-spacing:-.014em;margin:60px 0 4px;font-weight:650;"
    "text-wrap:balance}"
    "h2+p{margin:0 0 22px;color:var(--soft)}h3{font-size:16.5px;line-height:1.3;margin:0;"
    "font-weight:640;letter-spacing:-.006em}\n"
    "nav ul{list-style:none;display:flex;flex-wrap:wrap;gap:6px 20px;padding:0;margin:18px 0 0;"
    "font-size:14.5px}a{color:var(--c0);text-decoration-thickness:1px;text-underline-offset:3px}"
    "a:focus-visible,summary:focus-visible,.scroll:focus-visible{outline:2px solid var(--c0);"
    "outline-offset:3px;border-radius:3px}\n"
    ".cards{display:grid;grid-template-columns:repeat(auto-fit,minmax(250px,380px));gap:16px;"
    "margin:24px 0 0}"
    ".card{background:var(--card);border:1px solid var(--rule);border-radius:12px;padding:18px "
    "20px}"
    ".card h3{font-size:14px;color:var(--soft);font-weight:600;margin:0 0 10px}"
    ".card dl{display:grid;grid-template-columns:1fr auto;gap:5px 12px;margin:0;font-size:14.5px}"
    ".card dt{color:var(--soft)}.card dd{margin:0;text-align:right;font-weight:600}"
    ".card .big{grid-column:1/-1;font-size:33px;line-height:1.1;letter-spacing:-.024em;"
    "font-weight:680;text-align:left}"
    ".card .big small{font-size:15px;letter-spacing:0;font-weight:500;color:var(--soft)}\n"
    ".charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,500px),1fr));"
    "gap:20px}"
    "figure{margin:0;background:var(--card);border:1px solid var(--rule);border-radius:12px;"
    "padding:20px 22px 14px;break-inside:avoid;display:flex;flex-direction:column}"
    ".unit{margin:1px 0 8px;color:var(--soft);font-size:13.5px}"
    ".legend{list-style:none;display:flex;flex-wrap:wrap;gap:3px 18px;margin:0 0 6px;padding:0;"
    "font-size:13.5px}.legend li{display:flex;align-items:center;gap:7px}"
    ".legend svg{width:30px;height:12px;flex:none}"
    "figure>svg{width:100%;height:auto;display:block;overflow:visible}"
    "figcaption{color:var(--soft);font-size:12.5px;margin:6px 0 8px}\n"
    "svg text{font-size:12.5px;fill:var(--soft)}svg .name{font-size:13px}"
    ".grid{stroke:var(--grid)}.axis,.tick{stroke:var(--soft);stroke-opacity:.6}"
    ".line{fill:none;stroke:currentColor;stroke-width:2.2;stroke-linejoin:round;"
    "stroke-linecap:round}"
    ".dashed .line{stroke-dasharray:6 5;stroke-width:1.8}"
    "g[class^=c]>:not(.line):not(.bar){fill:currentColor;stroke:var(--card);stroke-width:1.5}"
    "g.dashed>:not(.line):not(.bar){fill:var(--card);stroke:currentColor}"
    ".bar{stroke:currentColor;stroke-width:1.2;stroke-opacity:.65;fill:none}"
    ".ideal{fill:none;stroke:var(--soft);stroke-width:1.3;stroke-dasharray:2 4}"
    ".c0{color:var(--c0)}.c1{color:var(--c1)}.c2{color:var(--c2)}.c3{color:var(--c3)}"
    ".c4{color:var(--c4)}.c5{color:var(--c5)}.c6{color:var(--c6)}.c7{color:var(--c7)}\n"
    "details{margin-top:auto;font-size:13.5px}summary{cursor:pointer;color:var(--soft);"
    "padding:4px 0}.scroll{overflow-x:auto}"
    "table{border-collapse:collapse;width:100%;font-size:13.5px}"
    "caption{text-align:left;color:var(--soft);padding:2px 0 4px}"
    "th,td{padding:5px 10px;text-align:right;border-bottom:1px solid var(--rule);"
    "vertical-align:baseline;white-space:nowrap}thead th{font-weight:600;color:var(--soft);"
    "vertical-align:bottom;white-space:normal;min-width:60px}"
    "th:first-child,td:first-child{text-align:left;padding-left:0}tbody th{font-weight:600}"
    "td.text,th.text{text-align:left}td small{color:var(--soft);font-size:11.5px}"
    "tbody tr:hover{background:var(--grid)}.good{color:var(--good)}.bad{color:var(--bad);"
    "font-weight:600}\n"
    ".words dt{font-weight:640}.words dd{margin:0 0 12px;color:var(--soft);max-width:80ch}"
    ".loads{padding-left:20px;color:var(--soft);font-size:14px}.loads li{margin:0 0 6px;"
    "overflow-wrap:anywhere}"
    "footer{color:var(--soft);font-size:13.5px;margin:64px auto 0;padding-bottom:40px}"
    "footer p{border-top:1px solid var(--rule);padding-top:18px}\n"
    "@media(max-width:640px){main,header,footer{padding:0 16px}h1{font-size:31px}"
    "header{padding-top:32px}figure{padding:16px 14px 10px}}\n"
    "@media print{:root{color-scheme:light;--paper:#fff;--card:#fff;--ink:#000;--soft:#444;"
    "--rule:#ccc;--grid:#e6e6e6;--c0:#2459c9;--c1:#d2570a;--c2:#12855f;--c3:#8a3fc4;--c4:#a67c00;"
    "--c5:#c42d66;--c6:#0b7f9c;--c7:#5f6b7a}body{font-size:11pt}header{padding-top:0}nav{display:"
    "none}main,header,footer{max-width:none;padding:0}.charts{grid-template-columns:1fr 1fr;"
    "gap:10px}figure,.card{border-color:#ccc}h2{break-after:avoid;margin-top:26px}"
    ".scroll{overflow:visible}details::details-content{content-visibility:visible;"
    "block-size:auto}td,th{padding:2px 6px}}\n";

/* ---- at a glance ------------------------------------------------------------------------- */

static void add_entry(struct buf *out, const char *name, double value, const char *unit)
{
    (void)buf_printf(out, "<dt>%s</dt><dd>", name);
    number_add(out, value);
    (void)buf_printf(out, " %s</dd>", unit);
}

/* The point of a series with the best output rate; NULL when it has none. */
static const struct report_point *best_point(const struct report_series *s)
{
    const struct report_point *best = NULL;
    for (size_t i = 0; i < s->n_point; i++) {
        const struct report_point *p = &s->first[i];
        double rate = p->values[REPORT_OUTPUT_RATE].value;
        if (!best || rate > best->values[REPORT_OUTPUT_RATE].value) best = p;
    }
    return best;
}

static void add_load(struct buf *out, const struct report_point *p)
{
    if (!isinf(p->rate)) {
        number_add(out, p->rate);
        (void)buf_add_str(out, " req/s offered");
    } else if (p->concurrency) {
        (void)buf_printf(out, "%u in flight", p->concurrency);
    } else {
        (void)buf_add_str(out, "all at once");
    }
}

static void add_card(struct buf *out, const struct report_series *s)
{
    const struct report_point *best = best_point(s);
    const struct report_point *least = NULL;     /* of the smallest concurrency */
    const struct report_point *saturated = NULL; /* of the smallest that is near the best */
    double best_served = 0;
    double best_output = best->values[REPORT_OUTPUT_RATE].value;
    struct buf name = {0};
    for (size_t i = 0; i < s->n_point; i++) {
        const struct report_point *p = &s->first[i];
        if (p->values[REPORT_REQUEST_RATE].value > best_served) {
            best_served = p->values[REPORT_REQUEST_RATE].value;
        }
        if (!isinf(p->rate) || !p->concurrency) continue;
        if (!least || p->concurrency < least->concurrency) least = p;
        bool is_near = p->values[REPORT_OUTPUT_RATE].value >= saturated_from * best_output;
        if (is_near && (!saturated || p->concurrency < saturated->concurrency)) saturated = p;
    }
    series_name(&name, s, DIFFER_ENGINE | DIFFER_MODEL | DIFFER_INPUT | DIFFER_OUTPUT);
    (void)buf_add_str(out, "<section class=\"card\"><h3>");
    html_add(out, buf_str(&name));
    (void)buf_add_str(out, "</h3><dl><dd class=\"big\">");
    number_add(out, best_output);
    (void)buf_add_str(out, " <small>output tok/s at ");
    add_load(out, best);
    (void)buf_add_str(out, "</small></dd>");
    if (least && least->values[REPORT_TPOT_MEDIAN].value > 0) {
        char what[48];
        (void)snprintf(what, sizeof what, "A stream with %u in flight", least->concurrency);
        add_entry(out, what, 1000 / least->values[REPORT_TPOT_MEDIAN].value, "tok/s");
        add_entry(out, "Its time to first token", least->values[REPORT_TTFT_MEDIAN].value, "ms");
    }
    if (saturated) {
        (void)buf_printf(out, "<dt>Saturated from</dt><dd>%u in flight</dd>",
                         saturated->concurrency);
    }
    add_entry(out, "Most requests served", best_served, "req/s");
    (void)buf_add_str(out, "</dl></section>\n");
    part_end(out, &name);
}

/* ---- all points -------------------------------------------------------------------------- */

static void add_cell(struct buf *out, const struct report_value *v)
{
    (void)buf_add_str(out, "<td>");
    if (v->has) number_add(out, v->value);
    if (v->has && v->hi > v->lo) {
        (void)buf_add_str(out, " <small>");
        number_add(out, v->lo);
        (void)buf_add_str(out, "–");
        number_add(out, v->hi);
        (void)buf_add_str(out, "</small>");
    }
    (void)buf_add_str(out, "</td>");
}

/* Whether the benchmark found its own figures sound. */
static void add_verdict(struct buf *out, const struct report_point *p)
{
    (void)buf_add_str(out, "<td class=\"text\">");
    if (p->n_failed) {
        (void)buf_printf(out, "<span class=\"bad\">%llu failed</span> ",
                         (unsigned long long)p->n_failed);
    }
    if (!p->is_checked) {
        (void)buf_add_str(out, "not checked");
    } else if (p->little_holds && !p->client_is_limit && !p->is_cached) {
        (void)buf_add_str(out, "<span class=\"good\">sound</span>");
    }
    if (p->is_checked && !p->little_holds) {
        (void)buf_add_str(out, "<span class=\"bad\">Little's law fails</span> ");
    }
    if (p->client_is_limit) (void)buf_add_str(out, "<span class=\"bad\">client saturated</span> ");
    if (p->is_cached) (void)buf_add_str(out, "<span class=\"bad\">prompts were cached</span>");
    (void)buf_add_str(out, "</td>");
}

static void add_point_row(struct buf *out, const struct report_data *r,
                          const struct report_point *p, unsigned differ)
{
    static const enum report_field fields[] = {
        REPORT_REQUEST_RATE, REPORT_OUTPUT_RATE, REPORT_TOTAL_RATE, REPORT_TTFT_MEDIAN,
        REPORT_TTFT_P99,     REPORT_ITL_MEDIAN,  REPORT_ITL_P99,    REPORT_E2EL_MEDIAN,
    };
    struct buf name = {0};
    series_name(&name, &r->series[p->series], differ);
    (void)buf_add_str(out, "<tr><th scope=\"row\">");
    html_add(out, buf_str(&name));
    if (name.len) (void)buf_add_str(out, ", ");
    part_end(out, &name);
    add_load(out, p);
    (void)buf_printf(out, "</th><td>%llu</td>", (unsigned long long)p->n_completed);
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        add_cell(out, &p->values[fields[i]]);
    }
    add_verdict(out, p);
    (void)buf_add_str(out, "</tr>\n");
}

static void add_points(struct buf *out, const struct report_data *r, unsigned differ)
{
    static const char *const heads[] = {"requests",    "req/s",      "output tok/s",
                                        "total tok/s", "TTFT ms",    "TTFT p99 ms",
                                        "ITL ms",      "ITL p99 ms", "TTLT ms"};
    (void)buf_add_str(out,
                      "<h2 id=\"points\">All points</h2><p>Medians where nothing else is said; "
                      "small figures are the spread over repeated runs.</p>\n"
                      "<div class=\"scroll\" tabindex=\"0\"><table><thead><tr>"
                      "<th scope=\"col\">load</th>");
    for (size_t i = 0; i < sizeof heads / sizeof heads[0]; i++) {
        (void)buf_printf(out, "<th scope=\"col\">%s</th>", heads[i]);
    }
    (void)buf_add_str(out, "<th scope=\"col\" class=\"text\">checks</th></tr></thead><tbody>\n");
    for (size_t i = 0; i < r->n_point; i++) add_point_row(out, r, &r->points[i], differ);
    (void)buf_add_str(out, "</tbody></table></div>\n");
}

/* ---- what was run, and the words --------------------------------------------------------- */

static void add_workloads(struct buf *out, const struct report_data *r)
{
    (void)buf_add_str(out, "<h2 id=\"workloads\">Workloads</h2><p>What was sent for each point, "
                           "and from which machine.</p><ol class=\"loads\">\n");
    for (size_t i = 0; i < r->n_point; i++) {
        const struct report_point *p = &r->points[i];
        (void)buf_add_str(out, "<li>");
        html_add(out, p->workload[0] ? p->workload : "the file does not say what was sent");
        (void)buf_add_str(out, " · ");
        html_add(out, p->engine);
        (void)buf_add_str(out, ", ");
        html_add(out, p->model);
        if (p->client[0]) {
            (void)buf_add_str(out, " · client: ");
            html_add(out, p->client);
        }
        if (p->date[0]) {
            (void)buf_add_str(out, " · ");
            html_add(out, p->date);
        }
        (void)buf_add_str(out, "</li>\n");
    }
    (void)buf_add_str(out, "</ol>\n");
}

static const char words[] =
    "<h2 id=\"words\">What the words mean</h2><dl class=\"words\">"
    "<dt>TTFT, time to first token</dt><dd>From sending a request to the first event with text. "
    "The wait for the client's own limit of requests in flight is not in it.</dd>"
    "<dt>TTLT, time to last token</dt><dd>From sending to the last event with text; also called "
    "end-to-end latency (E2EL).</dd>"
    "<dt>ITL, inter-token latency</dt><dd>From one event with text to the next, all requests "
    "together. An event may carry several tokens.</dd>"
    "<dt>Throughput</dt><dd>Tokens of completed requests over the time from the first request to "
    "the last answer, as the server counted them. Total adds the prompts'.</dd>"
    "<dt>Saturated</dt><dd>The smallest concurrency that gives 95 % of the best output rate.</dd>"
    "<dt>Sound</dt><dd>Throughput times latency agrees with the requests that were in flight "
    "(Little's law, within 5 %), the client had time to spare, and no prompt had been sent "
    "before.</dd></dl>\n";

/* ---- the HTML page ----------------------------------------------------------------------- */

static void add_header(struct buf *out, const struct report_data *r, const struct report_options *o,
                       const struct section *sections, size_t n)
{
    (void)buf_add_str(out, "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
                           "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">"
                           "<title>");
    html_add(out, o->title);
    (void)buf_printf(out, "</title><style>\n%s</style></head>\n<body><header><h1>", style_sheet);
    html_add(out, o->title);
    (void)buf_printf(out, "</h1><p class=\"lead\">%zu point%s in %zu series", r->n_point,
                     r->n_point == 1 ? "" : "s", r->n_series);
    (void)buf_add_str(out, " · ");
    html_add(out, o->made);
    (void)buf_add_str(out, "</p><nav aria-label=\"Sections\"><ul>");
    for (size_t i = 0; i < n; i++) {
        struct buf title = {0};
        section_title(&title, r, &sections[i]);
        (void)buf_printf(out, "<li><a href=\"#s%zu\">", i);
        html_add(out, n == 1 ? "Charts" : buf_str(&title));
        (void)buf_add_str(out, "</a></li>");
        part_end(out, &title);
    }
    (void)buf_add_str(out, "<li><a href=\"#points\">All points</a></li>"
                           "<li><a href=\"#workloads\">Workloads</a></li>"
                           "<li><a href=\"#words\">Words</a></li></ul></nav></header>\n<main>\n");
}

static void add_cards(struct buf *out, const struct report_data *r)
{
    (void)buf_add_str(out, "<div class=\"cards\">\n");
    for (size_t i = 0; i < r->n_series; i++) add_card(out, &r->series[i]);
    (void)buf_add_str(out, "</div>\n");
}

static fathom_err add_section(struct buf *out, const struct report_data *r,
                              const struct report_options *o, const struct section *s, size_t i)
{
    struct buf text = {0};
    section_title(&text, r, s);
    (void)buf_printf(out, "<section aria-labelledby=\"s%zu\"><h2 id=\"s%zu\">", i, i);
    html_add(out, buf_str(&text));
    part_end(out, &text);
    section_common(&text, r, s);
    (void)buf_add_str(out, "</h2><p>");
    html_add(out, s->n > 1 ? buf_str(&text) : "");
    (void)buf_add_str(out, "</p>\n");
    part_end(out, &text);
    TRY(section_write(out, r, o->zooms, o->n_zoom, s, i));
    return buf_add_str(out, "</section>\n");
}

fathom_err report_write(struct buf *out, const struct report_data *r,
                        const struct report_options *o, fathom_diag *d)
{
    struct section sections[REPORT_SECTIONS_MAX];
    unsigned differ = 0;
    if (r->n_point == 0) FAIL(d, FATHOM_EINVAL, "there are no results to report");
    size_t n = sections_make(sections, r);
    for (size_t i = 0; i < n; i++) differ |= sections[i].differ;
    add_header(out, r, o, sections, n);
    add_cards(out, r);
    for (size_t i = 0; i < n; i++) TRY(add_section(out, r, o, &sections[i], i));
    add_points(out, r, differ);
    add_workloads(out, r);
    (void)buf_add_str(out, words);
    (void)buf_add_str(out, "</main><footer><p>");
    html_add(out, o->made);
    return buf_add_str(out, "</p></footer>\n<script>addEventListener('beforeprint',()=>document."
                            "querySelectorAll('details').forEach(d=>d.open=true))</script></body>"
                            "</html>\n");
}
