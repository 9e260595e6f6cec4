/* quantize_progress.c - how far fathom quantize is */
#include "cli/quantize_progress.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/json.h"
#include "base/size_text.h"

enum { JSON_PAUSE_US = 1000000 };

static double rate_of(const struct convert_progress *p, uint64_t elapsed_us)
{
    return elapsed_us ? (double)p->done_bytes * 1e6 / (double)elapsed_us : 0;
}

static double seconds_left(const struct convert_progress *p, double rate)
{
    return rate > 0 ? (double)(p->total_bytes - p->done_bytes) / rate : 0;
}

const char *quantize_progress_text(char out[QUANTIZE_PROGRESS_BYTES],
                                   const struct convert_progress *p, uint64_t elapsed_us)
{
    char done[SIZE_TEXT_BYTES], all[SIZE_TEXT_BYTES], speed[SIZE_TEXT_BYTES];
    char left[PROGRESS_LEFT_BYTES] = "", worst[224] = "";
    const double rate = rate_of(p, elapsed_us);
    if (rate > 0) (void)progress_left_text(left, seconds_left(p, rate));
    if (p->worst_name[0]) {
        const char *name = p->worst_name;
        if (strncmp(name, "model.", 6) == 0) name += 6;
        (void)snprintf(worst, sizeof worst, ", worst error %.3f (%.180s)", p->worst, name);
    }
    (void)snprintf(out, QUANTIZE_PROGRESS_BYTES, "layer %u/%u, %s of %s matrices, %s/s%s%s",
                   p->layer, p->n_layer, count_text(done, p->n_done),
                   count_text(all, p->n_quantized), size_text(speed, (uint64_t)rate), left, worst);
    return out;
}

fathom_err quantize_progress_json(struct buf *out, const struct convert_progress *p,
                                  uint64_t elapsed_us)
{
    const double rate = rate_of(p, elapsed_us);
    json_t *root =
        json_pack("{s:i, s:i, s:I, s:I, s:I, s:I, s:f, s:f, s:f, s:s}", "layer", (int)p->layer,
                  "layers", (int)p->n_layer, "matrices", (json_int_t)p->n_done, "of_matrices",
                  (json_int_t)p->n_quantized, "bytes", (json_int_t)p->done_bytes, "of_bytes",
                  (json_int_t)p->total_bytes, "bytes_per_second", rate, "seconds_left",
                  seconds_left(p, rate), "worst_error", p->worst, "worst_matrix", p->worst_name);
    if (!root) return FATHOM_ENOMEM;
    fathom_err err = json_write(out, root);
    json_decref(root);
    return err ? err : buf_add_char(out, '\n');
}

static void tell_json(struct quantize_progress *q, const struct convert_progress *p)
{
    const uint64_t now_us = clock_now_us();
    struct buf b = {0};
    if (q->line.told_us && now_us - q->line.told_us < JSON_PAUSE_US &&
        p->done_bytes < p->total_bytes) {
        return;
    }
    q->line.told_us = now_us;
    if (quantize_progress_json(&b, p, now_us - q->line.start_us) == FATHOM_OK) {
        (void)fputs(buf_str(&b), stderr);
        (void)fflush(stderr);
    }
    buf_free(&b);
}

void quantize_progress_tell(void *arg, const struct convert_progress *p)
{
    struct quantize_progress *q = arg;
    char text[QUANTIZE_PROGRESS_BYTES];
    if (!q->has_begun) progress_begin(&q->line, "quantizing"); /* after what calibration took */
    q->has_begun = true;
    if (q->is_json) {
        tell_json(q, p);
    } else if (progress_is_due(&q->line)) {
        progress_say(quantize_progress_text(text, p, q->line.told_us - q->line.start_us));
    }
}

void quantize_progress_end(struct quantize_progress *q)
{
    if (q->has_begun && !q->is_json) progress_end(&q->line);
}
