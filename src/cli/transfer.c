/* transfer.c - the values of --kv-transfer-config and --kv-peers */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fail.h"
#include "base/json.h"
#include "cli/options_int.h"

#define OPTION "--kv-transfer-config"

enum { LANES_MAX = 8 };

/* What other engines' connectors are called. All of them mean fathom's own here. */
static const char *const connectors[] = {"NixlConnector",       "MooncakeConnector",
                                         "MooncakeConnectorV1", "P2pNcclConnector",
                                         "FathomConnector",     NULL};

/* Keys that other engines need and this one does not. */
static const char *const ignored[] = {"kv_buffer_device",
                                      "kv_buffer_size",
                                      "kv_parallel_size",
                                      "kv_rank",
                                      "kv_connector_module_path",
                                      "enable_permute_local_kv",
                                      NULL};
static const char *const ignored_extra[] = {"use_ascend_direct", "prefill",           "decode",
                                            "num_threads",       "mooncake_protocol", NULL};

static bool is_among(const char *const *names, const char *name)
{
    while (*names && strcmp(*names, name) != 0) names++;
    return *names != NULL;
}

static fathom_err read_text(const char *key, const json_t *v, char *out, size_t size,
                            fathom_diag *d)
{
    const char *s = json_string_value(v);
    size_t n = s ? strlen(s) : 0;
    if (n == 0 || n >= size || strpbrk(s, " \t\r\n\"\\")) {
        FAIL(d, FATHOM_EINVAL, OPTION ": %s has to be a string of 1 to %zu characters", key,
             size - 1);
    }
    memcpy(out, s, n + 1);
    return FATHOM_OK;
}

static fathom_err read_number(const char *key, const json_t *v, int64_t lo, int64_t hi,
                              int64_t *out, fathom_diag *d)
{
    *out = json_is_integer(v) ? json_integer_value(v) : lo - 1;
    if (*out >= lo && *out <= hi) return FATHOM_OK;
    FAIL(d, FATHOM_EINVAL, OPTION ": %s has to be a number from %lld to %lld", key, (long long)lo,
         (long long)hi);
}

static fathom_err read_choice(const char *key, const json_t *v, const char *const *choices,
                              size_t *out, fathom_diag *d)
{
    const char *s = json_is_string(v) ? json_string_value(v) : "";
    for (size_t i = 0; choices[i]; i++) {
        *out = i;
        if (strcmp(s, choices[i]) == 0) return FATHOM_OK;
    }
    FAIL(d, FATHOM_EINVAL, OPTION ": %s is \"%.40s\", needed is %s, %s%s%s", key, s, choices[0],
         choices[1], choices[2] ? " or " : "", choices[2] ? choices[2] : "");
}

/* What NIXL may use, by its names: UCX is the one that this program has too. */
static fathom_err read_backends(struct transfer_settings *t, const json_t *v, fathom_diag *d)
{
    if (!json_is_array(v)) FAIL(d, FATHOM_EINVAL, OPTION ": backends has to be a list of names");
    for (size_t i = 0; i < json_array_size(v); i++) {
        const char *name = json_string_value(json_array_get(v, i));
        if (!name) FAIL(d, FATHOM_EINVAL, OPTION ": backends has to be a list of names");
        if (strcmp(name, "UCX") == 0) t->options.transport = FATHOM_TRANSPORT_UCX_IF_FOUND;
    }
    return FATHOM_OK;
}

static fathom_err read_extra(struct transfer_settings *t, json_t *extra, fathom_diag *d)
{
    static const char *const numerics[] = {"equal", "compatible", "any", NULL};
    const char *key;
    json_t *v;
    int64_t n;
    size_t i;
    if (!json_is_object(extra)) {
        FAIL(d, FATHOM_EINVAL, OPTION ": kv_connector_extra_config has to be an object");
    }
    json_object_foreach (extra, key, v) {
        if (strcmp(key, "kv_lease_duration") == 0) {
            TRY(read_number(key, v, 1, 3600, &n, d));
            t->options.lease_s = (uint32_t)n;
        } else if (strcmp(key, "num_workers") == 0) {
            TRY(read_number(key, v, 1, LANES_MAX, &n, d));
            t->options.n_lane = (uint32_t)n;
        } else if (strcmp(key, "backends") == 0) {
            TRY(read_backends(t, v, d));
        } else if (strcmp(key, "numerics") == 0) {
            TRY(read_choice(key, v, numerics, &i, d));
            t->options.any_numerics = i > 0;
        } else if (strcmp(key, "pool_secret") == 0) {
            FAIL(d, FATHOM_EINVAL,
                 OPTION ": pool_secret would be read by everybody who lists this machine's "
                        "processes: put it into a file for --pool-secret-file");
        } else if (!is_among(ignored_extra, key)) {
            FAIL(d, FATHOM_EINVAL,
                 OPTION ": kv_connector_extra_config.%.40s is not known; there "
                        "are kv_lease_duration, num_workers, backends and numerics",
                 key);
        }
    }
    return FATHOM_OK;
}

static fathom_err read_role(struct transfer_settings *t, const json_t *v, fathom_diag *d)
{
    static const char *const roles[] = {"kv_producer", "kv_consumer", "kv_both", NULL};
    size_t i;
    TRY(read_choice("kv_role", v, roles, &i, d));
    t->options.gives = i != 1;
    t->options.takes = i != 0;
    return FATHOM_OK;
}

static fathom_err read_key(struct transfer_settings *t, const char *key, json_t *v, fathom_diag *d)
{
    static const char *const policies[] = {"recompute", "fail", NULL};
    int64_t n;
    size_t i;
    if (strcmp(key, "kv_connector") == 0) {
        if (json_is_string(v) && is_among(connectors, json_string_value(v))) return FATHOM_OK;
        FAIL(d, FATHOM_EINVAL,
             OPTION ": kv_connector is \"%.40s\", needed is NixlConnector, "
                    "MooncakeConnector, MooncakeConnectorV1, P2pNcclConnector or FathomConnector",
             json_is_string(v) ? json_string_value(v) : "");
    }
    if (strcmp(key, "kv_role") == 0) return read_role(t, v, d);
    if (strcmp(key, "kv_ip") == 0) return read_text(key, v, t->host, sizeof t->host, d);
    if (strcmp(key, "engine_id") == 0) return read_text(key, v, t->id, sizeof t->id, d);
    if (strcmp(key, "kv_connector_extra_config") == 0) return read_extra(t, v, d);
    if (strcmp(key, "kv_port") == 0) {
        json_t *number = v;
        char *end = NULL;
        if (!json_is_string(v)) {
            TRY(read_number(key, number, 0, UINT16_MAX, &n, d));
        } else {
            n = strtoll(json_string_value(v), &end, 10);
            if (*end || end == json_string_value(v) || n < 0 || n > UINT16_MAX) {
                FAIL(d, FATHOM_EINVAL, OPTION ": kv_port has to be a port");
            }
        }
        t->options.port = (uint16_t)n;
        return FATHOM_OK;
    }
    if (strcmp(key, "kv_load_failure_policy") == 0) {
        TRY(read_choice(key, v, policies, &i, d));
        t->fails = i == 1;
        return FATHOM_OK;
    }
    if (is_among(ignored, key)) return FATHOM_OK;
    FAIL(d, FATHOM_EINVAL,
         OPTION ": \"%.40s\" is not known; there are kv_connector, kv_role, kv_ip, "
                "kv_port, engine_id, kv_load_failure_policy and kv_connector_extra_config",
         key);
}

static fathom_err read_keys(struct transfer_settings *t, json_t *root, fathom_diag *d)
{
    const char *key;
    json_t *v;
    if (!json_is_object(root)) {
        FAIL(d, FATHOM_EINVAL, OPTION " is %s, needed is an object", json_type_text(root));
    }
    json_object_foreach (root, key, v) TRY(read_key(t, key, v, d));
    if (t->options.gives || t->options.takes) return FATHOM_OK;
    FAIL(d, FATHOM_EINVAL,
         OPTION ": kv_role is missing, needed is kv_producer, kv_consumer or "
                "kv_both");
}

fathom_err transfer_parse(struct transfer_settings *out, const struct transfer_given *given,
                          fathom_diag *d)
{
    const struct string_list *peers = given->peers;
    const char *text = given->config;
    json_t *root = NULL;
    *out = (struct transfer_settings){.options.port = (uint16_t)given->port};
    out->is_set = text || peers->n > 0;
    if (!out->is_set) return FATHOM_OK;
    (void)snprintf(out->host, sizeof out->host, "%s", given->ip);
    fathom_err err = FATHOM_OK;
    if (text) {
        TRY(json_read(text, strlen(text), OPTION, &root, d));
        err = read_keys(out, root, d);
        json_decref(root);
    } else {
        out->options.takes = true;
    }
    if (strcmp(given->transport, "tcp") == 0) out->options.transport = FATHOM_TRANSPORT_TCP;
    if (strcmp(given->transport, "ucx") == 0) out->options.transport = FATHOM_TRANSPORT_UCX;
    out->options.peers = peers->items;
    out->options.n_peer = (uint32_t)peers->n;
    return err;
}
