/* server_settings.c - the options of a server from those of the command line */
#include "cli/server_settings.h"

#include <string.h>

#include "base/fail.h"

static void fill(struct server_options *o, const struct invocation *v)
{
    const struct settings *s = v->settings;
    o->host = s->host;
    o->port = (uint16_t)s->port;
    o->uds = s->uds;
    o->root_path = s->root_path;
    o->admin_socket = s->admin_socket;
    o->open_metrics = s->open_metrics;
    o->prefix_sharing = strcmp(s->prefix_cache_sharing, "key") == 0   ? PREFIXES_BY_KEY
                        : strcmp(s->prefix_cache_sharing, "all") == 0 ? PREFIXES_ALL
                                                                      : PREFIXES_AUTO;
    o->tokenizer_info = s->tokenizer_info;
    o->no_docs = s->disable_fastapi_docs;
    o->strict_fields = s->strict_fields;
    o->stream_pieces = s->stream_output;
    o->model_names = s->served_model_name.n ? s->served_model_name.items : &v->model->name;
    o->n_model_name = s->served_model_name.n ? s->served_model_name.n : 1;
    o->model_root = v->model->name;
    o->allowed_hosts = s->allowed_hosts.items;
    o->n_allowed_host = s->allowed_hosts.n;
    o->origins = s->allowed_origins.items;
    o->n_origin = s->allowed_origins.n;
    o->cors_methods = s->allowed_methods.items;
    o->n_cors_method = s->allowed_methods.n;
    o->cors_headers = s->allowed_headers.items;
    o->n_cors_header = s->allowed_headers.n;
    o->allow_credentials = s->allow_credentials;
    o->access_log = s->access_log;
    o->thinking = s->thinking;
    o->thinking_closing = s->reasoning_closing;
    o->markup_in_messages = strcmp(s->special_tokens_in_text, "allow") == 0;
    o->neutral_sampling = strcmp(s->generation_config, "vllm") == 0;
    o->sampling = &s->sampling;
    o->always_usage = s->force_include_usage;
    o->tokens_as_ids = s->return_tokens_as_token_ids;
    o->high_priority_first = s->sglang.priorities && !s->sglang.low_priority_first;
    o->hide_requests =
        s->disable_log_requests || s->disable_uvicorn_access_log || !s->enable_log_requests;
    o->fail_lost_pages = s->transfer.fails;
    o->drain_timeout_ms = (uint32_t)(s->drain_timeout * 1000);
    if (o->drain_timeout_ms == 0) o->drain_timeout_ms = 1;
    o->stall_timeout_ms = (uint32_t)(s->stall_timeout * 1000);
    o->max_connections = (uint32_t)s->max_connections;
    o->keep_no_responses = s->max_stored_responses == 0;
    o->max_stored_responses = (uint32_t)s->max_stored_responses;
    o->max_stored_bytes = (uint64_t)s->max_stored_response_bytes;
    o->stored_response_s = (uint32_t)s->stored_response_ttl;
}

fathom_err server_settings_read(struct server_options *out, const struct invocation *v,
                                fathom_diag *d)
{
    fill(out, v);
    for (size_t i = 0; i < out->n_model_name; i++) {
        if (out->model_names[i][0]) continue;
        FAIL(d, FATHOM_EINVAL,
             "--served-model-name: name %zu is empty, so that no request can give it", i + 1);
    }
    return FATHOM_OK;
}
