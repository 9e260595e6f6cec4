/* sglang_route.c - what SGLang's clients ask of a server beside /generate */
#include <string.h>

#include "base/json.h"
#include "server/http/route.h"
#include "server/key_ring.h"
#include "server/served.h"

enum { PAGE_TOKENS = 64 };

/* How both objects begin. */
static void write_names(struct buf *b, const struct served *s)
{
    const char *name = s->o.model_names[0];
    const char *root = s->o.model_root ? s->o.model_root : name;
    (void)buf_add_str(b, "{\"model_path\":");
    (void)json_write_string(b, root, strlen(root));
    (void)buf_add_str(b, ",\"tokenizer_path\":");
    (void)json_write_string(b, root, strlen(root));
    (void)buf_add_str(b, ",\"served_model_name\":");
    (void)json_write_string(b, name, strlen(name));
    (void)buf_printf(b, ",\"model_type\":\"%s\",\"weight_version\":\"default\"",
                     s->info->model_type);
}

fathom_err sglang_get_model(const struct route_env *env, const char *rest, struct buf *body,
                            struct api_error *e)
{
    (void)rest, (void)e;
    write_names(body, env->served);
    return buf_add_str(body,
                       ",\"is_generation\":true,\"preferred_sampling_params\":null,"
                       "\"has_image_understanding\":false,\"has_audio_understanding\":false}");
}

/* Tokens that a step with drafts has given, in the mean; 0: there was none. */
static double tokens_a_step(const fathom_stats *s)
{
    double n = 0;
    for (uint32_t i = 0; i < FATHOM_DRAFT_MAX; i++) n += (double)s->n_accepted_token[i];
    return s->n_draft_token[0] ? 1 + n / (double)s->n_draft_token[0] : 0;
}

fathom_err sglang_get_server(const struct route_env *env, const char *rest, struct buf *body,
                             struct api_error *e)
{
    (void)rest, (void)e;
    const struct served *s = env->served;
    const fathom_info *info = s->info;
    const unsigned long long n_token = (unsigned long long)info->n_page * PAGE_TOKENS;
    fathom_stats stats;
    fathom_get_stats(s->engine, &stats);
    write_names(body, s);
    (void)buf_printf(body,
                     ",\"version\":\"" FATHOM_VERSION "\",\"startup_time\":%lld,"
                     "\"context_length\":%u,\"max_total_num_tokens\":%llu,"
                     "\"max_running_requests\":%u,\"dp_size\":%u",
                     (long long)s->created, info->max_model_len, n_token, info->max_num_seqs,
                     info->n_lane);
    (void)buf_printf(body,
                     ",\"internal_states\":[{\"dp_size\":%u,"
                     "\"effective_max_running_requests_per_dp\":%u,"
                     "\"memory_usage\":{\"token_capacity\":%llu}",
                     info->n_lane, info->max_num_seqs, n_token * info->n_lane);
    const double n = tokens_a_step(&stats);
    if (n > 0) (void)buf_printf(body, ",\"avg_spec_accept_length\":%.4f", n);
    return buf_add_str(body, "}]}");
}

/* Who shares a server by keys does not empty the cache of the others. */
fathom_err sglang_flush_cache(const struct route_env *env, const char *rest, struct buf *body,
                              struct api_error *e)
{
    (void)rest;
    if (key_ring_n(env->served->keys) > 0) {
        return api_error_set(e, 404, "not_found", NULL,
                             "/flush_cache is not for a server with API keys: --admin-socket has "
                             "it as /reset_prefix_cache");
    }
    fathom_reset_cache(env->served->engine);
    return buf_add_str(body, "{\"status\":\"ok\"}");
}
