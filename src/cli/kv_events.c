/* kv_events.c - the value of --kv-events-config */
#include "cli/kv_events.h"

#include <string.h>

#include "base/fail.h"
#include "base/json.h"

#define OPTION "--kv-events-config"

enum { COUNT_MAX = 1000000 };

/* A string into a place of KV_EVENTS_TEXT bytes; null is the same as none. */
static fathom_err read_text(const char *key, const json_t *v, char *out, fathom_diag *d)
{
    const char *s = json_is_null(v) ? "" : json_string_value(v);
    const size_t n = s ? strlen(s) : KV_EVENTS_TEXT;
    if (n >= KV_EVENTS_TEXT) {
        FAIL(d, FATHOM_EINVAL, OPTION ": %s has to be a string of at most %d characters", key,
             KV_EVENTS_TEXT - 1);
    }
    memcpy(out, s, n + 1);
    return FATHOM_OK;
}

static fathom_err read_count(const char *key, const json_t *v, uint32_t *out, fathom_diag *d)
{
    const json_int_t n = json_is_integer(v) ? json_integer_value(v) : 0;
    if (n < 1 || n > COUNT_MAX)
        FAIL(d, FATHOM_EINVAL, OPTION ": %s has to be a number from 1 to %d", key, COUNT_MAX);
    *out = (uint32_t)n;
    return FATHOM_OK;
}

/* Whether a publisher is named, and which. */
static fathom_err read_publisher(const json_t *v, bool *is_null, fathom_diag *d)
{
    const char *s = json_is_string(v) ? json_string_value(v) : "";
    *is_null = strcmp(s, "null") == 0;
    if (*is_null || strcmp(s, "zmq") == 0 || json_is_null(v)) return FATHOM_OK;
    FAIL(d, FATHOM_EINVAL, OPTION ": publisher is \"%.40s\", needed is zmq or null", s);
}

static fathom_err read_key(struct kv_events_settings *e, const char *key, const json_t *v,
                           fathom_diag *d)
{
    fathom_kv_events *o = &e->options;
    if (strcmp(key, "enable_kv_cache_events") == 0) {
        if (!json_is_boolean(v)) FAIL(d, FATHOM_EINVAL, OPTION ": %s has to be true or false", key);
        e->is_set = json_is_true(v);
        return FATHOM_OK;
    }
    if (strcmp(key, "publisher") == 0) return read_publisher(v, &e->is_null, d);
    if (strcmp(key, "endpoint") == 0) {
        TRY(read_text(key, v, e->endpoint, d));
        if (!e->endpoint[0])
            FAIL(d, FATHOM_EINVAL,
                 OPTION ": %s is empty, needed is tcp://HOST:PORT, tcp://*:PORT or ipc://PATH",
                 key);
        return FATHOM_OK;
    }
    if (strcmp(key, "replay_endpoint") == 0) return read_text(key, v, e->replay_endpoint, d);
    if (strcmp(key, "topic") == 0) return read_text(key, v, e->topic, d);
    if (strcmp(key, "buffer_steps") == 0) return read_count(key, v, &o->buffer_steps, d);
    if (strcmp(key, "hwm") == 0) return read_count(key, v, &o->hwm, d);
    if (strcmp(key, "max_queue_size") == 0) return read_count(key, v, &o->max_queue_size, d);
    FAIL(d, FATHOM_EINVAL,
         OPTION ": \"%.40s\" is not known; there are enable_kv_cache_events, publisher, endpoint, "
                "replay_endpoint, buffer_steps, hwm, max_queue_size and topic",
         key);
}

fathom_err kv_events_parse(struct kv_events_settings *s, fathom_diag *d)
{
    json_t *root = NULL, *v;
    const char *key;
    fathom_err err = FATHOM_OK;
    *s = (struct kv_events_settings){
        .config = s->config,
        .options = {.buffer_steps = 10000, .hwm = 100000, .max_queue_size = 100000},
        .endpoint = "tcp://*:5557"};
    if (!s->config) return FATHOM_OK;
    TRY(json_read(s->config, strlen(s->config), OPTION, &root, d));
    if (!json_is_object(root))
        err =
            diag_fail(d, FATHOM_EINVAL, OPTION " is %s, needed is an object", json_type_text(root));
    if (!err) {
        json_object_foreach (root, key, v) {
            if ((err = read_key(s, key, v, d))) break;
        }
    }
    json_decref(root);
    s->is_set = s->is_set && !s->is_null;
    return err;
}
