/* option_walk.c - the walk: environment, file, command line into struct settings, by the table */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/parallel.h"
#include "base/assert.h"
#include "base/fail.h"
#include "cli/options_int.h"
#include "cli/ray.h"

enum command command_find(const char *const *words, size_t n, size_t *n_used)
{
    for (int c = 0; c < COMMAND_COUNT; c++) {
        const char *name = command_info((enum command)c)->name;
        size_t n_first = strcspn(name, " ");
        bool two = name[n_first] == ' ';
        *n_used = two ? 2 : 1;
        if (n < *n_used || strlen(words[0]) != n_first) continue;
        if (strncmp(words[0], name, n_first) != 0) continue;
        if (!two || strcmp(words[1], name + n_first + 1) == 0) return (enum command)c;
    }
    *n_used = 0;
    return COMMAND_COUNT;
}

fathom_err command_names(struct buf *out, const char *word)
{
    size_t n = strlen(word);
    bool first = true;
    for (int c = 0; c < COMMAND_COUNT; c++) {
        const char *name = command_info((enum command)c)->name;
        if (strncmp(name, word, n) != 0 || name[n] != ' ') continue;
        (void)buf_printf(out, "%s%s", first ? "" : ", ", name + n + 1);
        first = false;
    }
    return buf_status(out);
}

/* ---- the command line -------------------------------------------------------------------- */

/* The arguments that are not looked at yet. */
struct cursor {
    char *const *argv;
    int argc;
    int next;
};

/* An argument that starts with '-' and is neither "-" nor a negative number. */
static bool looks_like_option(const char *arg)
{
    if (arg[0] != '-' || arg[1] == '\0') return false;
    return !(arg[1] == '.' || (arg[1] >= '0' && arg[1] <= '9'));
}

static bool has_value(const struct cursor *c)
{
    return c->next < c->argc && !looks_like_option(c->argv[c->next]);
}

static fathom_err needs_value(const struct option_walk *w, const struct option *o)
{
    FAIL(w->diag, FATHOM_EINVAL, "--%s needs a value: %s", o->name, o->argument);
}

/* Does this list go on with what the command line has given before? Else it begins. */
static bool goes_on(struct option_walk *w, const struct option *o)
{
    if (!o->adds) return false;
    for (unsigned i = 0; i < w->n_added; i++) {
        if (w->added[i] == o) return true;
    }
    ASSERT(w->n_added < OPTION_ADDS_MAX);
    w->added[w->n_added++] = o;
    return false;
}

static fathom_err take_list(struct option_walk *w, struct cursor *c, const struct option *o,
                            const char *value)
{
    if (!goes_on(w, o)) option_clear(w->settings, o);
    if (value) return option_set(w, o, value);
    if (!has_value(c)) return needs_value(w, o);
    while (has_value(c)) TRY(option_set(w, o, c->argv[c->next++]));
    return FATHOM_OK;
}

static fathom_err take_flag(struct option_walk *w, const struct option_match *m)
{
    const struct option *o = m->option;
    if (m->value && strcmp(m->value, "true") != 0 && strcmp(m->value, "false") != 0) {
        FAIL(w->diag, FATHOM_EINVAL, "--%s takes no value; --no-%s turns it off", o->name, o->name);
    }
    bool on = (m->value == NULL || strcmp(m->value, "true") == 0) != m->negated;
    return option_set(w, o, on ? "true" : "false");
}

static fathom_err take_option(struct option_walk *w, struct cursor *c, const char *arg)
{
    struct option_match m;
    TRY(option_find(w, arg, &m));
    if (m.option->kind == OPTION_LIST) return take_list(w, c, m.option, m.value);
    if (m.option->kind == OPTION_FLAG) return take_flag(w, &m);
    if (m.option->kind == OPTION_HELP) {
        w->settings->help_topic = m.value ? m.value : has_value(c) ? c->argv[c->next++] : NULL;
        return option_set(w, m.option, "true");
    }
    if (!m.value) {
        if (!has_value(c)) return needs_value(w, m.option);
        m.value = c->argv[c->next++];
    }
    if (m.path) return option_set_key(w, m.option, m.path, m.path_len, m.value);
    return option_set(w, m.option, m.value);
}

static fathom_err take_plain(struct option_walk *w, const char *arg, bool *model_given)
{
    struct string_list *rest = &w->settings->rest;
    if (command_info(w->command)->takes_model && !*model_given) {
        w->settings->model = arg;
        *model_given = true;
        return FATHOM_OK;
    }
    if (rest->n == command_info(w->command)->rest_most) {
        FAIL(w->diag, FATHOM_EINVAL, "\"%s\": one argument too many for `fathom %s`", arg,
             command_info(w->command)->name);
    }
    rest->items[rest->n++] = arg;
    return FATHOM_OK;
}

static fathom_err check_plain(const struct option_walk *w)
{
    const struct command_info *c = command_info(w->command);
    if (w->settings->rest.n < c->rest_least)
        FAIL(w->diag, FATHOM_EINVAL, "an argument is missing: fathom %s %s", c->name, c->arguments);
    return FATHOM_OK;
}

/* The ways to cut a model that do not go together. */
static fathom_err check_cuts(struct option_walk *w)
{
    const struct settings *s = w->settings;
    const bool has_dp = s->data_parallel_size > 1;
    char line[192];
    const bool has_load =
        s->load_concurrency > 0 || s->load_input_len > 0 || s->load_output_len > 0;
    const char *beside = has_dp                      ? "--data-parallel-size"
                         : s->rank_slice >= 0        ? "--rank-slice"
                         : s->layout || s->ranks > 0 ? "--layout and --ranks"
                         : has_load                  ? "the load that layouts are compared for"
                                                     : NULL;
    if (s->pipeline_parallel_size > 1 && beside) {
        (void)snprintf(line, sizeof line,
                       "--pipeline-parallel-size %lld is refused: stages are of "
                       "--tensor-parallel-size ranks: leave %s out",
                       (long long)s->pipeline_parallel_size, beside);
        TRY(option_refuse(w, line));
    }
    if (has_dp && !s->enable_expert_parallel) {
        (void)snprintf(line, sizeof line,
                       "--data-parallel-size %lld is refused: experts are whole on a rank of it: "
                       "give --enable-expert-parallel too",
                       (long long)s->data_parallel_size);
        TRY(option_refuse(w, line));
    }
    return FATHOM_OK;
}

static fathom_err check_executor(struct option_walk *w)
{
    struct buf line = {0};
    if (!w->settings->executor || strcmp(w->settings->executor, "ray") != 0) return FATHOM_OK;
    fathom_err err = ray_write_serve(&line, w->settings);
    if (!err) err = option_refuse(w, buf_str(&line));
    buf_free(&line);
    return err;
}

/* Ranks that cannot be had are refused before anything is opened. */
static fathom_err check_ranks(struct option_walk *w)
{
    const struct settings *s = w->settings;
    if (s->rank_slice < 0 && s->tensor_parallel_size > PARALLEL_RANKS_MAX) {
        FAIL(w->diag, FATHOM_EINVAL,
             "--tensor-parallel-size %lld is out of range, needed is 1 to %d",
             (long long)s->tensor_parallel_size, PARALLEL_RANKS_MAX);
    }
    if (s->pipeline_parallel_size > PARALLEL_STAGES_MAX) {
        FAIL(w->diag, FATHOM_EINVAL,
             "--pipeline-parallel-size %lld is out of range, needed is 1 to %d",
             (long long)s->pipeline_parallel_size, PARALLEL_STAGES_MAX);
    }
    if (s->data_parallel_size > PARALLEL_RANKS_MAX) {
        FAIL(w->diag, FATHOM_EINVAL, "--data-parallel-size %lld is out of range, needed is 1 to %d",
             (long long)s->data_parallel_size, PARALLEL_RANKS_MAX);
    }
    const int64_t n_node = s->nnodes > 1 ? s->nnodes : 1;
    if (s->data_parallel_size_local > 0 &&
        s->data_parallel_size_local * n_node != s->data_parallel_size) {
        FAIL(w->diag, FATHOM_EINVAL,
             "--data-parallel-size-local %lld of --data-parallel-size %lld: each of %lld hosts has "
             "as many of these ranks: leave the flag out, or give %lld",
             (long long)s->data_parallel_size_local, (long long)s->data_parallel_size,
             (long long)n_node, (long long)(s->data_parallel_size / n_node));
    }
    if (s->rank_slice >= s->tensor_parallel_size) {
        FAIL(w->diag, FATHOM_EINVAL,
             "--rank-slice %lld of --tensor-parallel-size %lld: needed is a rank below the number "
             "of ranks",
             (long long)s->rank_slice, (long long)s->tensor_parallel_size);
    }
    return check_cuts(w);
}

static fathom_err check_hosts(struct option_walk *w)
{
    const struct settings *s = w->settings;
    if (s->nnodes == 0) return FATHOM_OK; /* no option of the command */
    if (s->nnodes == 1 && s->headless) {
        FAIL(w->diag, FATHOM_EINVAL, "--headless: this host would serve nobody: give --nnodes too");
    }
    if (s->node_rank >= s->nnodes) {
        FAIL(w->diag, FATHOM_EINVAL, "--node-rank %lld of --nnodes %lld: needed is a rank below it",
             (long long)s->node_rank, (long long)s->nnodes);
    }
    if (s->nnodes > 1 && !s->all_serve && s->headless != (s->node_rank > 0)) {
        FAIL(w->diag, FATHOM_EINVAL,
             s->headless ? "--headless: host 0 serves: give it to the other hosts"
                         : "--node-rank %lld: host 0 serves, give --headless too",
             (long long)s->node_rank);
    }
    const bool has_stages = s->pipeline_parallel_size > 1, has_dp = s->data_parallel_size > 1;
    if (s->nnodes > 1 && has_dp && s->data_parallel_size % s->nnodes != 0) {
        FAIL(w->diag, FATHOM_EINVAL,
             "--nnodes %lld does not divide --data-parallel-size %lld: each host has as many ranks "
             "as another",
             (long long)s->nnodes, (long long)s->data_parallel_size);
    }
    if (s->nnodes > 1 && has_stages && s->pipeline_parallel_size % s->nnodes != 0) {
        FAIL(w->diag, FATHOM_EINVAL,
             "--nnodes %lld does not divide --pipeline-parallel-size %lld: each host has as many "
             "stages as another",
             (long long)s->nnodes, (long long)s->pipeline_parallel_size);
    }
    if (s->nnodes > 1 && !has_stages && !has_dp && s->rank_slice < 0 &&
        s->tensor_parallel_size % s->nnodes != 0) {
        FAIL(w->diag, FATHOM_EINVAL,
             "--nnodes %lld does not divide --tensor-parallel-size %lld: each host has as many "
             "ranks as another",
             (long long)s->nnodes, (long long)s->tensor_parallel_size);
    }
    return FATHOM_OK;
}

/* "0,2": numbers with commas between. Which of them there are, the engine knows. */
static fathom_err read_devices(struct option_walk *w)
{
    struct device_list *list = &w->settings->device_list;
    const char *text = w->settings->devices;
    while (text) {
        char *end;
        long index = strtol(text, &end, 10);
        bool is_number = end > text && *text >= '0' && *text <= '9' && index <= INT_MAX;
        if (!is_number || (*end != ',' && *end != '\0') || list->n == DEVICE_LIST_MAX) {
            FAIL(w->diag, FATHOM_EINVAL,
                 "--devices %.60s: needed are 1 to %d indexes of GPUs with commas between: 0,1",
                 w->settings->devices, DEVICE_LIST_MAX);
        }
        list->index[list->n++] = (int)index;
        text = *end == ',' ? end + 1 : NULL;
    }
    return FATHOM_OK;
}

static fathom_err take_arguments(struct option_walk *w, const struct option_input *in)
{
    struct cursor c = {in->argv, in->argc, 0};
    bool plain_only = false;
    bool model_given = false;
    while (c.next < c.argc && !w->settings->help) {
        const char *arg = c.argv[c.next++];
        if (!plain_only && strcmp(arg, "--") == 0) {
            plain_only = true;
        } else if (!plain_only && looks_like_option(arg)) {
            TRY(take_option(w, &c, arg));
        } else {
            TRY(take_plain(w, arg, &model_given));
        }
    }
    return FATHOM_OK;
}

/* ---- what stands elsewhere --------------------------------------------------------------- */

/* A variable means what it means to `fathom serve`: a command whose option of that name is another
 * one does not read it. */
static fathom_err take_variables(struct option_walk *w, const struct option_input *in)
{
    for (size_t i = 0; i < in->n_variable; i++) {
        const struct option_variable *v = &in->variables[i];
        const struct option *o = option_of_command(v->option, w->command);
        const struct option *of_server = option_of_command(v->option, COMMAND_SERVE);
        if (!o || (of_server && o != of_server) || o->kind == OPTION_HELP) continue;
        w->origin = v->variable;
        const char *value = v->value;
        if (o->kind == OPTION_LIST) option_clear(w->settings, o);
        if (o->kind == OPTION_FLAG) {
            bool off = strcmp(value, "0") == 0 || strcmp(value, "false") == 0;
            if (!off && strcmp(value, "1") != 0 && strcmp(value, "true") != 0) {
                FAIL(w->diag, FATHOM_EINVAL, "%s: \"%s\" is neither true nor false", v->variable,
                     value);
            }
            value = off ? "false" : "true";
        }
        TRY(option_set(w, o, value));
    }
    w->origin = NULL;
    return FATHOM_OK;
}

/* What the command line says of help and of a file, before it is read as a whole. */
static void look_ahead(const struct option_input *in, bool *help, const char **file)
{
    for (int i = 0; i < in->argc && strcmp(in->argv[i], "--") != 0; i++) {
        const char *arg = in->argv[i];
        if (strcmp(arg, "-h") == 0 || strncmp(arg, "--help", 6) == 0) *help = true;
        if (strncmp(arg, "--config=", 9) == 0) *file = arg + 9;
        if (strcmp(arg, "--config") == 0 && i + 1 < in->argc) *file = in->argv[i + 1];
    }
}

/* A message about a word of the environment or of a file begins with where it stands. */
static void name_origin(const struct option_walk *w)
{
    fathom_diag was;
    if (!w->origin || !w->diag || strncmp(w->diag->text, w->origin, strlen(w->origin)) == 0) return;
    was = *w->diag;
    (void)snprintf(w->diag->text, sizeof w->diag->text, "%s: %.400s", w->origin, was.text);
}

/* --num-gpu-blocks-override is tokens of the cache; --kv-offloading-size is --kv-offload-ram. */
static fathom_err take_cache(const struct option_walk *w)
{
    struct settings *s = w->settings;
    if (s->kv_cache_blocks) s->kv_cache_tokens = s->kv_cache_blocks * s->block_size;
    if (s->kv_offloading_gib == 0) return FATHOM_OK;
    if (s->kv_offload_ram) {
        FAIL(w->diag, FATHOM_EINVAL,
             "--kv-offloading-size and --kv-offload-ram say the same: leave one of them out");
    }
    s->kv_offload_ram = (int64_t)(s->kv_offloading_gib * (1 << 30));
    return FATHOM_OK;
}

static size_t length_without_slashes(const char *name)
{
    size_t n = strlen(name);
    while (n > 1 && name[n - 1] == '/') n--;
    return n;
}

/* There is no tokenizer but the model's. */
static fathom_err check_tokenizer(struct option_walk *w)
{
    const char *t = w->settings->tokenizer, *m = w->settings->model;
    char line[256];
    if (!t) return FATHOM_OK;
    const size_t n = length_without_slashes(t);
    if (n == length_without_slashes(m) && strncmp(t, m, n) == 0) return FATHOM_OK;
    (void)snprintf(line, sizeof line,
                   "--tokenizer %.80s is refused: the tokenizer is the checkpoint's "
                   "tokenizer.json, of MODEL",
                   t);
    return option_refuse(w, line);
}

/* A file that others need for tools brings nothing here, and no other is read. */
static fathom_err check_chat_template(struct option_walk *w)
{
    const char *file = w->settings->chat_template, *slash, *why;
    if (!file) return FATHOM_OK;
    char line[256];
    slash = strrchr(file, '/');
    why = "chats and tools are encoded as the checkpoint was trained; see --tokenizer-mode";
    bool for_tools = strncmp(slash ? slash + 1 : file, "tool_chat_template_deepseek", 27) == 0;
    (void)snprintf(line, sizeof line, "--chat-template %.100s %s: %s", file,
                   for_tools ? "has no effect" : "is refused", why);
    return for_tools ? buf_printf(w->notes, "%s\n", line) : option_refuse(w, line);
}

/* A batch needs both of its files. */
static fathom_err check_batch(const struct option_walk *w)
{
    const struct settings *s = w->settings;
    const struct {
        const char *flag, *name;
    } files[] = {{"--input-file", s->input_file}, {"--output-file", s->output_file}};
    for (size_t i = 0; i < 2 && w->command == COMMAND_RUN_BATCH; i++) {
        const char *name = files[i].name;
        if (!name) {
            FAIL(w->diag, FATHOM_EINVAL, "%s is missing: a file, or - for a standard stream",
                 files[i].flag);
        }
        if (strncmp(name, "http://", 7) == 0 || strncmp(name, "https://", 8) == 0) {
            FAIL(w->diag, FATHOM_EINVAL, "%s %.200s: nothing is fetched or sent; give a file",
                 files[i].flag, name);
        }
    }
    return FATHOM_OK;
}

/* As vLLM does: without a prefix cache there is nothing to tell of. */
static fathom_err take_kv_events(struct option_walk *w)
{
    struct settings *s = w->settings;
    TRY(kv_events_parse(&s->kv_events, w->diag));
    if (!s->kv_events.is_set || s->enable_prefix_caching) return FATHOM_OK;
    s->kv_events.is_set = false;
    return buf_printf(w->notes,
                      "--kv-events-config has no effect: the prefix cache is turned off\n");
}

fathom_err options_parse(struct settings *s, enum command command, const struct option_input *in,
                         struct buf *notes, fathom_diag *d)
{
    struct option_walk w = {
        .settings = s, .command = command, .launcher = in->launcher, .notes = notes, .diag = d};
    bool help = false;
    const char *file = NULL;
    fathom_err err;
    settings_init(s);
    look_ahead(in, &help, &file);
    if (!help) {
        TRY_GOTO(take_variables(&w, in), done);
        if (!file) file = s->config;
        if (file && option_has_command(option_by_name("config"), command)) {
            w.origin = file;
            TRY_GOTO(option_read_file(&w, file), done);
            w.origin = NULL;
        }
    }
    TRY_GOTO(take_arguments(&w, in), done);
    if (!s->help) TRY_GOTO(check_plain(&w), done);
    if (!s->help) TRY_GOTO(option_take_sglang(&w), done);
    if (!s->help) TRY_GOTO(take_cache(&w), done);
    if (!s->help) TRY_GOTO(check_tokenizer(&w), done);
    if (!s->help) TRY_GOTO(check_chat_template(&w), done);
    if (!s->help) TRY_GOTO(check_batch(&w), done);
    if (!s->help) TRY_GOTO(check_executor(&w), done);
    if (!s->help) TRY_GOTO(option_take_ranks(&w), done);
    if (!s->help) TRY_GOTO(check_ranks(&w), done);
    if (!s->help) TRY_GOTO(option_follow_launcher(&w), done);
    if (!s->help) TRY_GOTO(check_hosts(&w), done);
    if (!s->help) TRY_GOTO(read_devices(&w), done);
    if (!s->help) {
        const struct transfer_given given = {.config = s->kv_transfer_config,
                                             .ip = s->kv_ip,
                                             .port = s->kv_port,
                                             .transport = s->kv_transport,
                                             .peers = &s->kv_peers};
        TRY_GOTO(transfer_parse(&s->transfer, &given, d), done);
        if (s->transfer.is_set && !s->enable_prefix_caching) {
            s->enable_prefix_caching = true;
            TRY_GOTO(buf_printf(notes, "--no-enable-prefix-caching has no effect: pages of other "
                                       "servers come by way of the prefix cache\n"),
                     done);
        }
    }
    if (!s->help) TRY_GOTO(take_kv_events(&w), done);
    if (!s->help) {
        const struct speculative_given given = {.config = s->speculative_config,
                                                .method = s->spec_method,
                                                .n_token = (uint32_t)s->spec_tokens,
                                                .model = s->model};
        TRY_GOTO(speculative_parse(&given, &s->n_draft, notes, d), done);
    }
    if (!s->help) TRY_GOTO(reasoning_parse(s, d), done);
    if (!s->help) TRY_GOTO(request_defaults_parse(s, d), done);
    if (!s->help) {
        err = compilation_parse(s->compilation_config, s->optimization_level, &s->compilation,
                                notes, d);
    }
    if (!err && !s->help && w.n_refused) err = FATHOM_EINVAL;
done:
    if (err && !w.n_refused) name_origin(&w);
    return err;
}
