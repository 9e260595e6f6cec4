/* served.c - the defaults of options, and what the checkpoint says of prompts */
#include "server/served.h"

#include <string.h>

#include "base/clock.h"
#include "base/fail.h"
#include "base/json.h"
#include "base/limits.h"
#include "base/rng.h"
#include "server/key_ring.h"

static void set_default(uint32_t *value, uint32_t fallback)
{
    if (*value == 0) *value = fallback;
}

/* Probes see a stuck step within 5 s: this and a tick. The reference backend tells nothing of a
 * step before its end, and may take minutes for one; a GPU neither, and may take seconds. */
static uint32_t default_stall_ms(const fathom_info *info)
{
    if (strcmp(info->backend, "ref") == 0) return 600000;
    return strcmp(info->backend, "cuda") == 0 ? 30000 : 4000;
}

static void fill_options(struct server_options *o, const fathom_info *info)
{
    set_default(&o->n_http_thread, 2);
    set_default(&o->n_worker, 2);
    set_default(&o->max_connections, 4096);
    set_default(&o->max_preparing, 1024);
    set_default(&o->max_held_bytes, LIMIT_HTTP_HELD_BYTES);
    set_default(&o->max_answer_bytes, LIMIT_ANSWERS_BYTES);
    set_default(&o->idle_line_ms, 10000);
    set_default(&o->drain_timeout_ms, 30000);
    set_default(&o->head_timeout_ms, LIMIT_HTTP_HEAD_MS);
    set_default(&o->body_timeout_ms, LIMIT_HTTP_BODY_MS);
    set_default(&o->idle_timeout_ms, LIMIT_HTTP_IDLE_MS);
    set_default(&o->unread_timeout_ms, LIMIT_HTTP_UNREAD_MS);
    set_default(&o->max_unread_bytes, LIMIT_HTTP_UNREAD_BYTES);
    set_default(&o->max_stored_responses, LIMIT_STORED_RESPONSES);
    set_default(&o->stored_response_s, LIMIT_STORED_S);
    if (o->max_stored_bytes == 0) o->max_stored_bytes = LIMIT_STORED_BYTES;
    set_default(&o->stall_timeout_ms, default_stall_ms(info));
}

/* add_bos_token of tokenizer_config.json; a checkpoint without the file adds none. */
static fathom_err read_add_bos(struct served *s, fathom_diag *d)
{
    const char *text;
    size_t n;
    json_t *config;
    if (fathom_get_file(s->engine, "tokenizer_config.json", &text, &n) != FATHOM_OK) {
        return FATHOM_OK;
    }
    TRY(json_read(text, n, "tokenizer_config.json", &config, d));
    fathom_err err = FATHOM_EFORMAT;
    if (json_is_object(config)) {
        err = json_get_bool(config, "add_bos_token", false, &s->add_bos, d);
    } else {
        err = diag_fail(d, FATHOM_EFORMAT, "tokenizer_config.json is %s, needed is an object",
                        json_type_text(config));
    }
    json_decref(config);
    return err;
}

/* The context's length in the longest token there is. */
static size_t prompt_bytes(const struct served *s)
{
    size_t longest = 1;
    for (int32_t id = tokenizer_n_token(s->tokenizer) - 1; id >= 0; id--) {
        size_t n;
        (void)tokenizer_bytes(s->tokenizer, id, &n);
        if (n > longest) longest = n;
    }
    return longest * s->info->max_model_len;
}

static fathom_err encode_closing(struct served *s, fathom_diag *d)
{
    const char *text = s->o.thinking_closing;
    if (!text) return FATHOM_OK;
    s->thinking_closing.limit = LIMIT_THINKING_CLOSING;
    const struct token_list *ids = &s->thinking_closing;
    fathom_err err = tokenizer_encode(s->tokenizer, text, strlen(text), TOKENIZER_MARKUP_OFF,
                                      &s->thinking_closing);
    if (err == FATHOM_ELIMIT) {
        FAIL(d, FATHOM_EINVAL,
             "--reasoning-config: what stands before </think> has more than %d tokens",
             LIMIT_THINKING_CLOSING);
    }
    for (size_t i = 0; i < ids->n && !err; i++) {
        if ((uint32_t)ids->ids[i] < s->info->n_vocab) continue;
        FAIL(d, FATHOM_EINVAL,
             "--reasoning-config: what stands before </think> has token %d, the model's are 0 to "
             "%u",
             (int)ids->ids[i], s->info->n_vocab - 1);
    }
    return err;
}

fathom_err served_open(struct served *out, const struct server_options *o, fathom_engine *e,
                       const struct tokenizer *t, const struct chat_style *style, fathom_diag *d)
{
    *out = (struct served){.o = *o,
                           .engine = e,
                           .info = fathom_get_info(e),
                           .tokenizer = t,
                           .style = *style,
                           .created = clock_unix_s(),
                           .created_us = (uint64_t)clock_unix_ns() / 1000};
    fill_options(&out->o, out->info);
    out->max_prompt_bytes = prompt_bytes(out);
    TRY(key_ring_create(&out->keys, &(struct key_list){o->api_keys, o->key_tenants, o->n_api_key},
                        d));
    TRY(encode_closing(out, d));
    return read_add_bos(out, d);
}

void served_close(struct served *s)
{
    key_ring_destroy(s->keys);
    s->keys = NULL;
    token_list_free(&s->thinking_closing);
}

static bool tenants_apart(const struct served *s)
{
    if (s->o.prefix_sharing != PREFIXES_AUTO) return s->o.prefix_sharing == PREFIXES_BY_KEY;
    return key_ring_n_tenant(s->keys) > 1;
}

uint64_t served_salt(const struct served *s, uint32_t tenant, uint64_t salt)
{
    return tenants_apart(s) ? rng_mix(key_ring_salt(s->keys, tenant), 0, salt) : salt;
}
