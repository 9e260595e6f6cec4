/* cmd_pull.c - fathom pull: a repository of a model hub into the cache */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/fail.h"
#include "base/os.h"
#include "checkpoint/checkpoint.h"
#include "cli/cli.h"
#include "cli/progress.h"
#include "hub/pull.h"

enum { TOKEN_BYTES = 512 };

struct pulling {
    const char *repository;
    struct progress progress;
};

static void tell_summary(void *arg, const struct hub_summary *s)
{
    const struct pulling *p = arg;
    char a[SIZE_TEXT_BYTES], b[SIZE_TEXT_BYTES];
    print_row("repository", "%s at %s", p->repository, s->commit);
    print_row("files", "%zu of %s, %s there already", s->n_file, size_text(a, s->bytes),
              size_text(b, s->there_bytes));
    if (s->n_left_out) print_row("", "%zu weights of other programs are left out", s->n_left_out);
}

static void tell_progress(void *arg, uint64_t done_bytes, uint64_t total_bytes)
{
    struct pulling *p = arg;
    progress_tell(&p->progress, done_bytes, total_bytes);
}

static const char *pull_without(const char *path, const char *why)
{
    fprintf(stderr, "fathom: %s%sthe hub is asked without a key\n", path, why);
    return NULL;
}

/* The key that `hf auth login` keeps, where the environment has none. A file that is there and
 * gives none is told. */
static const char *find_token(char out[TOKEN_BYTES], const struct environment *e)
{
    char path[LIMIT_PATH_BYTES];
    struct file_map map;
    fathom_diag why = {{0}};
    if (e->hub_token) return e->hub_token;
    if (e->hub_token_path) {
        (void)snprintf(path, sizeof path, "%s", e->hub_token_path);
    } else if (!e->hf_home[0] || path_join(path, sizeof path, e->hf_home, "token")) {
        return NULL;
    }
    const fathom_err err = file_map_open(&map, path, &why);
    if (err == FATHOM_ENOTFOUND && !e->hub_token_path) return NULL;
    if (err) return pull_without(why.text, "; ");
    const char *text = map.size ? map.data : "";
    size_t n = 0, end;
    while (n < map.size && n + 1 < TOKEN_BYTES && text[n] > ' ' && text[n] <= '~') n++;
    for (end = n; end < map.size && strchr(" \t\r\n", text[end]) && text[end];) end++;
    const bool is_key = n > 0 && end == map.size;
    if (is_key) memcpy(out, text, n);
    out[n] = '\0';
    file_map_close(&map);
    return is_key ? out : pull_without(path, ": is not a line with a key; ");
}

fathom_err cmd_pull(const struct invocation *v, fathom_diag *d)
{
    const struct settings *s = v->settings;
    const struct environment *e = v->environment;
    char repository[LIMIT_PATH_BYTES], token[TOKEN_BYTES], a[SIZE_TEXT_BYTES];
    struct pulling pulling = {.repository = repository};
    struct hub_result result;
    if (!checkpoint_repository(repository, s->rest.items[0])) {
        FAIL(d, FATHOM_EINVAL, "\"%s\" is no repository: needed is org/name", s->rest.items[0]);
    }
    const char *cache = s->download_dir ? s->download_dir : e->hub_cache;
    if (!cache[0]) FAIL(d, FATHOM_EINVAL, "there is no folder for it: set HF_HOME");
    const struct hub_order order = {.repository = repository,
                                    .revision = s->revision,
                                    .endpoint = e->hub_endpoint[0] ? e->hub_endpoint : NULL,
                                    .token = e->modelscope ? NULL : find_token(token, e),
                                    .cache = cache,
                                    .modelscope = e->modelscope,
                                    .n_parallel = (unsigned)s->parallel,
                                    .on_summary = tell_summary,
                                    .on_progress = tell_progress,
                                    .arg = &pulling};
    uint64_t start_us = clock_now_us();
    progress_begin(&pulling.progress, "pulling");
    fathom_err err = hub_pull(&result, &order, d);
    progress_end(&pulling.progress);
    if (err) return err;
    print_row("fetched", "%s in %.0f s", size_text(a, result.fetched_bytes),
              (double)(clock_now_us() - start_us) / 1e6);
    print_row("folder", "%s", result.dir);
    const char *dir = s->download_dir, *revision = s->revision;
    print_row("try", "fathom plan %s%s%s%s%s", repository, revision ? " --revision " : "",
              revision ? revision : "", dir ? " --download-dir " : "", dir ? dir : "");
    return FATHOM_OK;
}
