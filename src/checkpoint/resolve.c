/* resolve.c - from a model argument to a directory
 *
 * The Hugging Face cache keeps a repository org/name as
 *
 *   <folder>/models--org--name/refs/main            the commit that "main" means
 *                             /refs/refs/pr/1         likewise of any other branch or tag
 *                             /snapshots/<commit>/  files, usually links into blobs/
 */
#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/fail.h"
#include "base/os.h"
#include "checkpoint/checkpoint.h"

/* Whether the argument has the form of a repository: org/name of the characters they may have. */
static bool is_repository(const char *model)
{
    const char *slash = strchr(model, '/');
    if (!slash || slash == model || slash[1] == '\0' || strchr(slash + 1, '/')) return false;
    for (const char *p = model; *p; p++) {
        if (p != slash && !isalnum((unsigned char)*p) && !strchr("-_.", *p)) return false;
    }
    return model[0] != '.' && slash[1] != '.';
}

/* The org/name of a page of Hugging Face: https://HOST/org/name, hf.co/org/name/tree/main. */
static bool repository_of_url(char out[LIMIT_PATH_BYTES], const char *model)
{
    static const char *const beginnings[] = {"https://huggingface.co/",
                                             "http://huggingface.co/",
                                             "huggingface.co/",
                                             "https://hf.co/",
                                             "hf.co/",
                                             "https://www.modelscope.cn/models/",
                                             "https://modelscope.cn/models/"};
    for (size_t i = 0; i < sizeof beginnings / sizeof beginnings[0]; i++) {
        size_t n = strlen(beginnings[i]);
        if (strncmp(model, beginnings[i], n) != 0) continue;
        const char *slash = strchr(model + n, '/');
        if (!slash) return false;
        size_t n_name = (size_t)(slash - model) - n + 1 + strcspn(slash + 1, "/?#");
        (void)snprintf(out, LIMIT_PATH_BYTES, "%.*s", (int)n_name, model + n);
        return is_repository(out);
    }
    return false;
}

bool checkpoint_repository(char out[LIMIT_PATH_BYTES], const char *text)
{
    if (strlen(text) >= LIMIT_PATH_BYTES) return false;
    if (repository_of_url(out, text)) return true;
    if (!is_repository(text)) return false;
    memcpy(out, text, strlen(text) + 1);
    return true;
}

/* What the name of a repository tells before anything is downloaded. */
static const char *advice_on(const char *repository)
{
    if (strstr(repository, "-Distill-")) {
        return ". By its name it is a distilled model, of Qwen's or Llama's family, which is not "
               "served";
    }
    size_t n = strlen(repository);
    bool gguf = n > 5 && strcmp(repository + n - 5, "-GGUF") == 0;
    return gguf ? ". By its name it holds GGUF, which is not read: take the safetensors release"
                : "";
}

/* cache/models--org--name */
static bool name_cache_folder(char *out, const char *cache, const char *repository)
{
    const char *slash = strchr(repository, '/');
    int n = snprintf(out, LIMIT_PATH_BYTES, "%s/models--%.*s--%s", cache, (int)(slash - repository),
                     repository, slash + 1);
    return n >= 0 && n < LIMIT_PATH_BYTES;
}

/* What this user may not look at (F_OK), or list (R_OK), is not taken for what is not there. */
static fathom_err check_allowed(const char *path, int mode, fathom_diag *d)
{
    if (access(path, mode) == 0 || errno != EACCES) return FATHOM_OK;
    FAIL(d, FATHOM_EIO, "%s: cannot be looked at: %s", path, strerror(EACCES));
}

/* The commit that a file of refs holds: one line of letters and digits. */
static fathom_err read_commit(char commit[128], const char *ref, fathom_diag *d)
{
    struct file_map map;
    TRY(file_map_open(&map, ref, d));
    const char *text = map.data;
    size_t n = 0;
    while (n < map.size && n < 127 && isalnum((unsigned char)text[n])) n++;
    if (n) memcpy(commit, text, n);
    commit[n] = '\0';
    file_map_close(&map);
    if (n == 0) FAIL(d, FATHOM_EFORMAT, "%s: holds no commit: remove it, or pull again", ref);
    return FATHOM_OK;
}

/* Writes the snapshot of a revision, or of what main is, to dir. ENOTFOUND with an empty d when
 * nothing is known of it; what refs names and is not there is an error with a message. */
static fathom_err find_snapshot(char *dir, const char *folder, const char *model,
                                const char *revision, fathom_diag *d)
{
    char snapshots[LIMIT_PATH_BYTES], ref[LIMIT_PATH_BYTES], commit[128];
    int n = snprintf(ref, sizeof ref, "%s/refs/%s", folder, revision ? revision : "main");
    if (n < 0 || n >= LIMIT_PATH_BYTES ||
        path_join(snapshots, sizeof snapshots, folder, "snapshots"))
        return FATHOM_ENOTFOUND;
    fathom_err err = path_is_dir(ref) ? FATHOM_ENOTFOUND : read_commit(commit, ref, d);
    if (err && err != FATHOM_ENOTFOUND) return err;
    if (!err) {
        if (!path_join(dir, LIMIT_PATH_BYTES, snapshots, commit) && path_is_dir(dir)) {
            return FATHOM_OK;
        }
        TRY(check_allowed(dir, F_OK, d));
        FAIL(d, FATHOM_ENOTFOUND,
             "%s: %s names commit %s, which is not in %s: bring it with `fathom pull %s%s%s`, or "
             "name one that is there with --revision",
             model, ref, commit, snapshots, model, revision ? " --revision " : "",
             revision ? revision : "");
    }
    diag_clear(d);
    if (!revision) {
        TRY(check_allowed(snapshots, R_OK, d));
        return path_newest_dir(dir, LIMIT_PATH_BYTES, snapshots);
    }
    if (strchr(revision, '/') || path_join(dir, LIMIT_PATH_BYTES, snapshots, revision)) {
        return FATHOM_ENOTFOUND;
    }
    TRY(check_allowed(dir, F_OK, d));
    return path_is_dir(dir) ? FATHOM_OK : FATHOM_ENOTFOUND;
}

fathom_err checkpoint_resolve(char *dir, const char *model, const struct hub_cache *cache,
                              fathom_diag *d)
{
    char folder[LIMIT_PATH_BYTES];
    const char *revision = cache->revision;
    dir[0] = '\0';
    if (strlen(model) >= LIMIT_PATH_BYTES) {
        FAIL(d, FATHOM_EINVAL, "the model's path is longer than %d bytes", LIMIT_PATH_BYTES - 1);
    }
    if (path_is_dir(model)) {
        if (revision) {
            FAIL(d, FATHOM_EINVAL, "--revision \"%.80s\" is of a repository, and %s is a directory",
                 revision, model);
        }
        memcpy(dir, model, strlen(model) + 1);
        return FATHOM_OK;
    }
    TRY(check_allowed(model, F_OK, d));
    size_t n = strlen(model);
    if (n > 5 && strcmp(model + n - 5, ".gguf") == 0) {
        FAIL(d, FATHOM_EUNSUPPORTED,
             "%s: GGUF is not read: use the directory of a safetensors release", model);
    }
    if (path_exists(model)) {
        FAIL(d, FATHOM_ENOTFOUND, "%s is a file: give the directory that holds config.json", model);
    }
    if (repository_of_url(folder, model)) {
        FAIL(d, FATHOM_ENOTFOUND, "%s: an address is not opened; give the repository: %s", model,
             folder);
    }
    if (!is_repository(model)) {
        FAIL(d, FATHOM_ENOTFOUND,
             "%s: no such directory; give a directory, or a repository as org/name", model);
    }
    if (revision && !path_stays_below(revision)) {
        FAIL(d, FATHOM_EINVAL, "--revision \"%.200s\" is no branch, tag or commit", revision);
    }
    if (!cache->folder) {
        FAIL(d, FATHOM_ENOTFOUND,
             "%s: not found. Download it with `fathom pull %s`. Looked at: ./%s (no "
             "Hugging Face cache is known: set HF_HOME)%s",
             model, model, model, advice_on(model));
    }
    if (!name_cache_folder(folder, cache->folder, model)) {
        FAIL(d, FATHOM_EINVAL, "the Hugging Face cache's path is longer than %d bytes",
             LIMIT_PATH_BYTES - 1);
    }
    fathom_diag why = {{0}};
    fathom_err err = find_snapshot(dir, folder, model, revision, &why);
    if (!err) return FATHOM_OK;
    dir[0] = '\0';
    if (why.text[0]) FAIL(d, err, "%s", why.text);
    FAIL(d, FATHOM_ENOTFOUND,
         "%s: not found. Download it with `fathom pull %s%s%s`. Looked at: ./%s and "
         "%s/snapshots%s",
         model, model, revision ? " --revision " : "", revision ? revision : "", model, folder,
         advice_on(model));
}
