/* otlp.c - protobuf: a field is its number and kind, then a varint, 8 bytes, or a length and bytes
 *
 * A message within a message has its length in front, so it is written apart and then copied.
 */
#include "trace/otlp.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fail.h"

enum { VARINT, FIXED64, BYTES };
enum { KIND_SERVER = 2, STATUS_ERROR = 2 };

static void put_varint(struct buf *b, uint64_t x)
{
    while (x >= 0x80) {
        (void)buf_add_char(b, (char)(x | 0x80));
        x >>= 7;
    }
    (void)buf_add_char(b, (char)x);
}

static void put_field(struct buf *b, unsigned field, unsigned kind)
{
    put_varint(b, field << 3 | kind);
}

static void put_number(struct buf *b, unsigned field, uint64_t x)
{
    put_field(b, field, VARINT);
    put_varint(b, x);
}

static void put_fixed64(struct buf *b, unsigned field, uint64_t x)
{
    put_field(b, field, FIXED64);
    for (int i = 0; i < 8; i++) (void)buf_add_char(b, (char)(x >> 8 * i));
}

static void put_double(struct buf *b, unsigned field, double x)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    put_fixed64(b, field, bits);
}

static void put_bytes(struct buf *b, unsigned field, const void *bytes, size_t n)
{
    put_field(b, field, BYTES);
    put_varint(b, n);
    (void)buf_add(b, bytes, n);
}

static void put_text(struct buf *b, unsigned field, const char *text)
{
    put_bytes(b, field, text, strlen(text));
}

/* Appends a message that was written apart, and frees it. If writing it failed, *b has failed
 * too. */
static void put_message(struct buf *b, unsigned field, struct buf *message)
{
    put_bytes(b, field, buf_str(message), message->len);
    b->failed |= message->failed;
    buf_free(message);
}

/* ---- attributes ----------------------------------------------------------------------------- */

/* KeyValue { key = 1, value = 2 }; AnyValue { string = 1, int = 3, double = 4 } */
enum { ANY_TEXT = 1, ANY_INT = 3, ANY_DOUBLE = 4 };

static void put_pair(struct buf *b, unsigned field, const char *key, struct buf *value)
{
    struct buf pair = {0};
    put_text(&pair, 1, key);
    put_message(&pair, 2, value);
    put_message(b, field, &pair);
}

static void attribute_text(struct buf *b, unsigned field, const char *key, const char *text)
{
    struct buf value = {0};
    put_text(&value, ANY_TEXT, text);
    put_pair(b, field, key, &value);
}

static void attribute_int(struct buf *b, unsigned field, const char *key, uint64_t x)
{
    struct buf value = {0};
    put_number(&value, ANY_INT, x);
    put_pair(b, field, key, &value);
}

static void attribute_double(struct buf *b, unsigned field, const char *key, double x)
{
    struct buf value = {0};
    put_double(&value, ANY_DOUBLE, x);
    put_pair(b, field, key, &value);
}

/* ---- messages ------------------------------------------------------------------------------- */

enum { SPAN_ATTRIBUTE = 9 };

static void put_sizes(struct buf *b, const struct trace_span *s)
{
    attribute_int(b, SPAN_ATTRIBUTE, "gen_ai.usage.prompt_tokens", s->n_prompt);
    attribute_int(b, SPAN_ATTRIBUTE, "gen_ai.usage.completion_tokens", s->n_output);
    attribute_int(b, SPAN_ATTRIBUTE, "gen_ai.usage.cached_tokens", s->n_cached);
}

/* The number as the client wrote it: 0.6, not the nearest float. */
static double decimal(float x)
{
    char text[32];
    (void)snprintf(text, sizeof text, "%.7g", (double)x);
    return strtod(text, NULL);
}

static void put_asked(struct buf *b, const struct trace_span *s)
{
    attribute_text(b, SPAN_ATTRIBUTE, "gen_ai.request.id", s->request_id);
    attribute_text(b, SPAN_ATTRIBUTE, "gen_ai.response.model", s->model);
    attribute_text(b, SPAN_ATTRIBUTE, "gen_ai.response.finish_reason", s->finish);
    if (s->temperature >= 0) {
        attribute_double(b, SPAN_ATTRIBUTE, "gen_ai.request.temperature", decimal(s->temperature));
    }
    if (s->top_p >= 0)
        attribute_double(b, SPAN_ATTRIBUTE, "gen_ai.request.top_p", decimal(s->top_p));
    if (s->max_tokens) {
        attribute_int(b, SPAN_ATTRIBUTE, "gen_ai.request.max_tokens", s->max_tokens);
    }
    attribute_int(b, SPAN_ATTRIBUTE, "gen_ai.request.n", s->n_choice);
}

static void put_times(struct buf *b, const struct trace_span *s)
{
    attribute_double(b, SPAN_ATTRIBUTE, "gen_ai.latency.time_in_queue", s->queue);
    attribute_double(b, SPAN_ATTRIBUTE, "gen_ai.latency.e2e", s->whole);
    if (s->first_token <= 0) return;
    attribute_double(b, SPAN_ATTRIBUTE, "gen_ai.latency.time_to_first_token", s->first_token);
    attribute_double(b, SPAN_ATTRIBUTE, "gen_ai.latency.time_in_model_prefill", s->prefill);
    attribute_double(b, SPAN_ATTRIBUTE, "gen_ai.latency.time_in_model_decode", s->decode);
    attribute_double(b, SPAN_ATTRIBUTE, "gen_ai.latency.time_in_model_inference",
                     s->prefill + s->decode);
}

/* Span { trace_id = 1, span_id = 2, parent_span_id = 4, name = 5, kind = 6,
 * start_time_unix_nano = 7, end_time_unix_nano = 8, attributes = 9,
 * status = 15 { message = 2, code = 3 } } */
static void put_span(struct buf *b, unsigned field, const struct trace_span *s,
                     const struct otlp_ids *ids)
{
    struct buf span = {0}, status = {0};
    put_bytes(&span, 1, ids->trace_id, sizeof ids->trace_id);
    put_bytes(&span, 2, ids->span_id, sizeof ids->span_id);
    if (s->parent.is_set) put_bytes(&span, 4, s->parent.span_id, sizeof s->parent.span_id);
    put_text(&span, 5, "llm_request");
    put_number(&span, 6, KIND_SERVER);
    put_fixed64(&span, 7, s->start_ns);
    put_fixed64(&span, 8, s->end_ns);
    put_sizes(&span, s);
    put_asked(&span, s);
    put_times(&span, s);
    if (s->has_failed) {
        put_text(&status, 2, s->finish);
        put_number(&status, 3, STATUS_ERROR);
        put_message(&span, 15, &status);
    }
    put_message(b, field, &span);
}

/* ExportTraceServiceRequest { resource_spans = 1 { resource = 1 { attributes = 1 }, scope_spans = 2
 * { scope = 1 { name = 1, version = 2 }, spans = 2 } } } */
fathom_err otlp_encode(struct buf *out, const struct otlp_resource *resource,
                       const struct trace_span *spans, const struct otlp_ids *ids, size_t n)
{
    struct buf who = {0}, scope = {0}, scoped = {0}, all = {0};
    for (size_t i = 0; i < resource->n; i++) {
        attribute_text(&who, 1, resource->attributes[i].key, resource->attributes[i].value);
    }
    put_text(&scope, 1, "fathom");
    put_text(&scope, 2, resource->version);
    put_message(&scoped, 1, &scope);
    for (size_t i = 0; i < n; i++) put_span(&scoped, 2, &spans[i], &ids[i]);
    put_message(&all, 1, &who);
    put_message(&all, 2, &scoped);
    put_message(out, 1, &all);
    return buf_status(out);
}
