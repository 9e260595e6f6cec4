/* test_checkpoint.c - directories of safetensors files, whole and damaged */
#define _GNU_SOURCE
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>
#include <jansson.h>

#include "base/clock.h"
#include "base/limits.h"
#include "base/mem.h"
#include "base/os.h"
#include "checkpoint/checkpoint.h"
#include "support/safetensors_write.h"

#define INDEX "model.safetensors.index.json"
#define SHARD1 "model-00001-of-000002.safetensors"
#define SHARD2 "model-00002-of-000002.safetensors"

static int make_dir(void **state)
{
    *state = mem_alloc(LIMIT_PATH_BYTES);
    temp_dir_create(*state);
    return 0;
}

static int drop_dir(void **state)
{
    temp_dir_remove(*state);
    mem_free(*state);
    return 0;
}

/* A shard of vectors of `n` floats; names ends with NULL. */
static void save_shard(const char *dir, const char *file, const char *const *names, uint64_t n)
{
    struct safetensors_writer w = {0};
    for (; *names; names++) safetensors_add(&w, *names, "F32", 1, &n, NULL, n * 4);
    safetensors_save(&w, 0, dir, file);
}

static void save_two_shards(const char *dir)
{
    save_shard(dir, SHARD1, (const char *const[]){"b", "d", NULL}, 2);
    save_shard(dir, SHARD2, (const char *const[]){"c", "a", "extra", NULL}, 3);
    save_text(dir, INDEX,
              "{\"weight_map\":{\"a\":\"" SHARD2 "\",\"b\":\"" SHARD1 "\",\"c\":\"" SHARD2
              "\",\"d\":\"" SHARD1 "\"}}");
}

static void expect_refused(const char *dir, fathom_err want, const char *message)
{
    struct checkpoint *c;
    fathom_diag d = {0};
    fathom_err err = checkpoint_open(&c, dir, &d);
    if (err != want || !strstr(d.text, message)) {
        print_error("gives %s \"%s\"\n  needed is \"%s\"\n", fathom_err_name(err), d.text, message);
    }
    assert_int_equal(err, want);
    assert_non_null(strstr(d.text, message));
    assert_null(c);
}

static void shards_become_one_sorted_table(void **state)
{
    const char *dir = *state;
    struct checkpoint *c;
    fathom_diag d = {0};
    save_two_shards(dir);
    assert_int_equal(checkpoint_open(&c, dir, &d), FATHOM_OK);
    assert_string_equal(checkpoint_where(c), dir);
    assert_int_equal(checkpoint_n_shard(c), 2);
    assert_string_equal(checkpoint_shard_name(c, 0), SHARD1);
    static const char *const names[] = {"a", "b", "c", "d", "extra"};
    static const uint32_t shards[] = {1, 0, 1, 0, 1};
    assert_int_equal(checkpoint_n_tensor(c), 5); /* what the index leaves out counts too */
    for (size_t i = 0; i < 5; i++) {
        const struct tensor *t = checkpoint_tensor(c, i);
        assert_string_equal(t->name, names[i]);
        assert_int_equal(t->i_shard, shards[i]);
        assert_ptr_equal(checkpoint_find(c, names[i]), t);
        assert_int_equal(checkpoint_tensor_place(c, t), i);
    }
    assert_null(checkpoint_find(c, "e"));
    assert_null(checkpoint_find(c, ""));
    checkpoint_close(c);
    checkpoint_close(NULL);
}

static void index_comes_before_a_single_file(void **state)
{
    const char *dir = *state;
    struct checkpoint *c;
    fathom_diag d = {0};
    save_shard(dir, "model.safetensors", (const char *const[]){"only", NULL}, 1);
    assert_int_equal(checkpoint_open(&c, dir, &d), FATHOM_OK);
    assert_int_equal(checkpoint_n_shard(c), 1);
    assert_non_null(checkpoint_find(c, "only"));
    checkpoint_close(c);
    save_two_shards(dir);
    assert_int_equal(checkpoint_open(&c, dir, &d), FATHOM_OK);
    assert_null(checkpoint_find(c, "only"));
    checkpoint_close(c);
}

static void every_malformed_index_has_its_message(void **state)
{
    const char *dir = *state;
    static const struct {
        const char *index, *message;
    } cases[] = {
        {"", INDEX ": not valid JSON at line"},
        {"{\"weight_map\":", INDEX ": not valid JSON at line"},
        {"[]", "\"weight_map\" is absent, an object is needed"},
        {"{\"weight_map\":[]}", "\"weight_map\" is an array, an object is needed"},
        {"{\"weight_map\":{}}", "\"weight_map\" is empty"},
        {"{\"weight_map\":{\"a\":1}}", "the shard of a is an integer, a plain file name is needed"},
        {"{\"weight_map\":{\"a\":\"\"}}", "the shard of a is , a plain file name is needed"},
        {"{\"weight_map\":{\"a\":\"../s\"}}", "the shard of a is ../s, a plain file name"},
        {"{\"weight_map\":{\"a\":\"..\"}}", "the shard of a is .., a plain file name"},
        {"{\"weight_map\":{\"a\":\"" SHARD2 "\",\"a\":\"" SHARD2 "\"}}", "duplicate object key"},
        {"{\"weight_map\":{\"a\":\"gone.safetensors\"}}", "gone.safetensors: the shard is missing"},
        {"{\"weight_map\":{\"z\":\"" SHARD1 "\"}}", "z should be in " SHARD1 ", which does not"},
        {"{\"weight_map\":{\"a\":\"" SHARD1 "\",\"c\":\"" SHARD2 "\"}}",
         "a should be in " SHARD1 ", it is in " SHARD2},
    };
    save_two_shards(dir);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        save_text(dir, INDEX, cases[i].index);
        expect_refused(dir, FATHOM_EFORMAT, cases[i].message);
    }
}

static void faulty_directories_are_refused(void **state)
{
    const char *dir = *state;
    expect_refused(dir, FATHOM_ENOTFOUND, "neither model.safetensors nor " INDEX);
    expect_refused("/nonexistent", FATHOM_ENOTFOUND, "/nonexistent: no weights");
    save_text(dir, "model.safetensors", "abc");
    expect_refused(dir, FATHOM_EFORMAT, "model.safetensors: the file has 3 bytes");
    save_two_shards(dir);
    save_shard(dir, SHARD1, (const char *const[]){"b", "c", "d", NULL}, 2);
    expect_refused(dir, FATHOM_EFORMAT, "c is in two shards: " SHARD1 " and " SHARD2);
}

static void side_files_stay_mapped_and_absence_is_silent(void **state)
{
    const char *dir = *state;
    struct checkpoint *c;
    fathom_diag d = {0};
    const char *text, *again;
    size_t n;
    save_two_shards(dir);
    save_text(dir, "config.json", "{\"x\":1}");
    save_text(dir, "empty.json", "");
    assert_int_equal(checkpoint_open(&c, dir, &d), FATHOM_OK);
    assert_int_equal(checkpoint_file(c, "config.json", &text, &n, &d), FATHOM_OK);
    assert_int_equal(n, 7);
    assert_memory_equal(text, "{\"x\":1}", 7);
    assert_int_equal(checkpoint_file(c, "config.json", &again, &n, &d), FATHOM_OK);
    assert_ptr_equal(text, again);
    assert_int_equal(checkpoint_file(c, "empty.json", &text, &n, &d), FATHOM_OK);
    assert_non_null(text);
    assert_int_equal(n, 0);
    assert_int_equal(checkpoint_file(c, "none.json", &text, &n, &d), FATHOM_ENOTFOUND);
    assert_string_equal(d.text, "");
    checkpoint_close(c);
}

static void bundle_is_read_like_a_directory(void **state)
{
    (void)state;
    static const uint64_t dim[] = {4};
    struct safetensors_writer w = {0};
    struct buf shard = {0};
    safetensors_add(&w, "w", "I32", 1, dim, NULL, 16);
    safetensors_finish(&w, 0, &shard);
    static const char config[] = "{}";
    const fathom_bundle_file files[] = {
        {"model.safetensors", (const unsigned char *)shard.data, shard.len},
        {"config.json", (const unsigned char *)config, 2},
    };
    fathom_bundle bundle = {.name = "pilot", .files = files, .n_file = 2};
    struct checkpoint *c;
    fathom_diag d = {0};
    const char *text;
    size_t n;
    assert_int_equal(checkpoint_open_bundle(&c, &bundle, &d), FATHOM_OK);
    assert_string_equal(checkpoint_where(c), "pilot");
    assert_int_equal(checkpoint_find(c, "w")->n_bytes, 16);
    assert_int_equal(checkpoint_file(c, "config.json", &text, &n, &d), FATHOM_OK);
    assert_ptr_equal(text, config);
    assert_int_equal(checkpoint_file(c, "tokenizer.json", &text, &n, &d), FATHOM_ENOTFOUND);
    checkpoint_close(c);

    bundle.n_file = 0;
    assert_int_equal(checkpoint_open_bundle(&c, &bundle, &d), FATHOM_ENOTFOUND);
    assert_non_null(strstr(d.text, "pilot: no weights"));
    buf_free(&shard);
}

/* The Hugging Face cache's layout: snapshot files are links into blobs. */
static void save_cached(const char *home, const char *revision)
{
    char name[256], target[LIMIT_PATH_BYTES], link[LIMIT_PATH_BYTES];
    (void)snprintf(name, sizeof name, "hub/models--org--name/blobs/%s-blob", revision);
    struct safetensors_writer w = {0};
    static const uint64_t dim[] = {1};
    safetensors_add(&w, "w", "F32", 1, dim, NULL, 4);
    safetensors_save(&w, 0, home, name);
    (void)snprintf(name, sizeof name, "hub/models--org--name/snapshots/%s/config.json", revision);
    save_text(home, name, "{}");
    (void)snprintf(target, sizeof target, "../../blobs/%s-blob", revision);
    (void)snprintf(link, sizeof link, "%s/hub/models--org--name/snapshots/%s/model.safetensors",
                   home, revision);
    assert_int_equal(symlink(target, link), 0);
}

/* home  where Hugging Face keeps things, in hub there; NULL: no cache is known */
static fathom_err resolve(char *dir, const char *model, const char *home, const char *revision,
                          fathom_diag *d)
{
    char hub[LIMIT_PATH_BYTES];
    if (home) assert_int_equal(path_join(hub, sizeof hub, home, "hub"), FATHOM_OK);
    const struct hub_cache cache = {home ? hub : NULL, revision};
    return checkpoint_resolve(dir, model, &cache, d);
}

static void a_revision_is_found_by_its_name_and_by_its_commit(void **state)
{
    const char *home = *state;
    char dir[LIMIT_PATH_BYTES];
    fathom_diag d = {0};
    save_cached(home, "aaa111");
    save_cached(home, "bbb222");
    save_text(home, "hub/models--org--name/refs/main", "aaa111\n");
    save_text(home, "hub/models--org--name/refs/v1", "bbb222\n");
    static const char *const names[] = {"v1", "bbb222"};
    for (size_t i = 0; i < 2; i++) {
        assert_int_equal(resolve(dir, "org/name", home, names[i], &d), FATHOM_OK);
        assert_non_null(strstr(dir, "/snapshots/bbb222"));
    }
    assert_int_equal(resolve(dir, "org/name", home, "v2", &d), FATHOM_ENOTFOUND);
    assert_non_null(strstr(d.text, "`fathom pull org/name --revision v2`"));
    d.text[0] = '\0';
    assert_int_equal(resolve(dir, home, NULL, "v1", &d), FATHOM_EINVAL);
    assert_non_null(strstr(d.text, "is a directory"));
}

static void what_refs_name_and_is_not_there_is_told(void **state)
{
    const char *home = *state;
    char dir[LIMIT_PATH_BYTES];
    fathom_diag d = {0};
    save_cached(home, "aaa111");
    save_text(home, "hub/models--org--name/refs/main", "gone");
    assert_int_equal(resolve(dir, "org/name", home, NULL, &d), FATHOM_ENOTFOUND);
    assert_non_null(strstr(d.text, "/models--org--name/refs/main names commit gone, which is not"));
    assert_non_null(strstr(d.text, "`fathom pull org/name`"));
    save_text(home, "hub/models--org--name/refs/aaa111", "gone");
    d.text[0] = '\0';
    assert_int_equal(resolve(dir, "org/name", home, "aaa111", &d), FATHOM_ENOTFOUND);
    assert_non_null(strstr(d.text, "`fathom pull org/name --revision aaa111`"));
    static const char *const bad[] = {"", "../../../.."};
    for (size_t i = 0; i < 2; i++) {
        save_text(home, "hub/models--org--name/refs/main", bad[i]);
        d.text[0] = '\0';
        assert_int_equal(resolve(dir, "org/name", home, NULL, &d), FATHOM_EFORMAT);
        assert_non_null(strstr(d.text, "/refs/main: holds no commit"));
    }
    save_text(home, "hub/models--org--other/refs", "a file in place of a folder");
    d.text[0] = '\0';
    assert_int_equal(resolve(dir, "org/other", home, NULL, &d), FATHOM_EIO);
    assert_non_null(strstr(d.text, "/refs/main: cannot be opened: Not a directory"));
}

static void a_revision_stays_within_the_repository(void **state)
{
    const char *home = *state;
    char dir[LIMIT_PATH_BYTES];
    fathom_diag d = {0};
    save_cached(home, "aaa111");
    save_text(home, "hub/models--org--name/refs/refs/pr/1", "aaa111");
    assert_int_equal(resolve(dir, "org/name", home, "refs/pr/1", &d), FATHOM_OK);
    assert_non_null(strstr(dir, "/snapshots/aaa111"));
    assert_int_equal(resolve(dir, "org/name", home, "refs", &d), FATHOM_ENOTFOUND);
    assert_int_equal(resolve(dir, "org/name", home, "aaa111/x", &d), FATHOM_ENOTFOUND);
    static const char *const bad[] = {"",     ".",    "..", "../..",    "/",
                                      "/tmp", "a//b", "a/", "refs/../x"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char want[80];
        d.text[0] = '\0';
        assert_int_equal(resolve(dir, "org/name", home, bad[i], &d), FATHOM_EINVAL);
        (void)snprintf(want, sizeof want, "--revision \"%s\" is no branch, tag or commit", bad[i]);
        assert_string_equal(d.text, want);
    }
}

/* The error of a user to whom the folder of the test, which only its owner may enter, is closed. */
static void refused_to_nobody(const char *home, const char *model, const char *part)
{
    int status = 0;
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        char dir[LIMIT_PATH_BYTES];
        fathom_diag d = {0};
        if (setuid(65534) != 0) _exit(2);
        const fathom_err err = resolve(dir, model, home, NULL, &d);
        _exit(err == FATHOM_EIO && strstr(d.text, part) ? 0 : 1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void what_may_not_be_looked_at_is_told(void **state)
{
    const char *home = *state;
    char below[LIMIT_PATH_BYTES];
    if (geteuid() != 0) skip();
    save_cached(home, "aaa111");
    save_text(home, "hub/models--org--name/refs/main", "aaa111\n");
    refused_to_nobody(home, "org/name", "/refs/main: cannot be opened: Permission denied");
    assert_int_equal(path_join(below, sizeof below, home, "hub"), FATHOM_OK);
    refused_to_nobody(home, below, "/hub: cannot be looked at: Permission denied");
    assert_int_equal(chmod(home, 0755), 0);
    assert_int_equal(path_join(below, sizeof below, home, "hub/models--org--name/snapshots"),
                     FATHOM_OK);
    assert_int_equal(chmod(below, 0700), 0);
    refused_to_nobody(home, "org/name", "/aaa111: cannot be looked at: Permission denied");
    assert_int_equal(path_join(below, sizeof below, home, "hub/models--org--name/refs/main"),
                     FATHOM_OK);
    assert_int_equal(unlink(below), 0);
    refused_to_nobody(home, "org/name", "/snapshots: cannot be looked at: Permission denied");
}

static void repository_is_found_in_the_cache(void **state)
{
    const char *home = *state;
    char dir[LIMIT_PATH_BYTES];
    fathom_diag d = {0};
    struct checkpoint *c;
    save_cached(home, "aaa111");
    assert_int_equal(resolve(dir, "org/name", home, NULL, &d), FATHOM_OK);
    assert_non_null(strstr(dir, "/hub/models--org--name/snapshots/aaa111"));
    assert_int_equal(checkpoint_open(&c, dir, &d), FATHOM_OK);
    assert_non_null(checkpoint_find(c, "w"));
    checkpoint_close(c);

    /* refs/main decides, even against a newer snapshot; without it the newest is taken */
    save_cached(home, "bbb222");
    save_text(home, "hub/models--org--name/refs/main", "aaa111\n");
    assert_int_equal(resolve(dir, "org/name", home, NULL, &d), FATHOM_OK);
    assert_non_null(strstr(dir, "/snapshots/aaa111"));
    char newest[LIMIT_PATH_BYTES];
    assert_int_equal(
        path_join(newest, sizeof newest, home, "hub/models--org--name/snapshots/bbb222"), 0);
    const struct timespec later[2] = {{.tv_sec = 4000000000}, {.tv_sec = 4000000000}};
    assert_int_equal(utimensat(AT_FDCWD, newest, later, 0), 0);
    char ref[LIMIT_PATH_BYTES];
    assert_int_equal(path_join(ref, sizeof ref, home, "hub/models--org--name/refs/main"), 0);
    assert_int_equal(unlink(ref), 0);
    assert_int_equal(resolve(dir, "org/name", home, NULL, &d), FATHOM_OK);
    assert_non_null(strstr(dir, "/snapshots/bbb222"));
    assert_string_equal(d.text, "");
}

static void unknown_model_says_where_it_looked(void **state)
{
    const char *home = *state;
    char dir[LIMIT_PATH_BYTES];
    fathom_diag d = {0};
    assert_int_equal(resolve(dir, home, NULL, NULL, &d), FATHOM_OK);
    assert_string_equal(dir, home);

    assert_int_equal(resolve(dir, "org/none", home, NULL, &d), FATHOM_ENOTFOUND);
    assert_non_null(strstr(d.text, "`fathom pull org/none`"));
    assert_non_null(strstr(d.text, "./org/none"));
    assert_non_null(strstr(d.text, "/hub/models--org--none/snapshots"));
    assert_non_null(strstr(d.text, home));
    assert_string_equal(dir, "");

    d.text[0] = '\0';
    assert_int_equal(resolve(dir, "org/none", NULL, NULL, &d), FATHOM_ENOTFOUND);
    assert_non_null(strstr(d.text, "HF_HOME"));

    static const char *const bad[] = {"nothing", "/a/b/c", "../up/../x", "org/na me", "org/", ""};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        d.text[0] = '\0';
        assert_int_equal(resolve(dir, bad[i], home, NULL, &d), FATHOM_ENOTFOUND);
        assert_non_null(strstr(d.text, "no such directory"));
    }
    static const char *const pages[] = {"https://huggingface.co/org/na.me", "hf.co/org/na.me/",
                                        "https://huggingface.co/org/na.me/tree/main?x=1"};
    for (size_t i = 0; i < sizeof pages / sizeof *pages; i++) {
        d.text[0] = '\0';
        assert_int_equal(resolve(dir, pages[i], home, NULL, &d), FATHOM_ENOTFOUND);
        assert_non_null(strstr(d.text, "give the repository: org/na.me"));
    }
    d.text[0] = '\0';
    (void)resolve(dir, "org/R1-Distill-Qwen-7B", home, NULL, &d);
    assert_non_null(strstr(d.text, "a distilled model"));
    d.text[0] = '\0';
    (void)resolve(dir, "org/V3-GGUF", home, NULL, &d);
    assert_non_null(strstr(d.text, "GGUF, which is not read"));

    char file[LIMIT_PATH_BYTES];
    save_text(home, "weights.gguf", "x");
    assert_int_equal(path_join(file, sizeof file, home, "weights.gguf"), FATHOM_OK);
    d.text[0] = '\0';
    assert_int_equal(resolve(dir, file, home, NULL, &d), FATHOM_EUNSUPPORTED);
    assert_non_null(strstr(d.text, "GGUF is not read: use the directory of a safetensors release"));
    save_text(home, "weights.bin", "x");
    assert_int_equal(path_join(file, sizeof file, home, "weights.bin"), FATHOM_OK);
    d.text[0] = '\0';
    assert_int_equal(resolve(dir, file, home, NULL, &d), FATHOM_ENOTFOUND);
    assert_non_null(strstr(d.text, "is a file: give the directory"));
}

/* As many tensors as the full model has, in as many shards. */
static void full_size_table_opens(void **state)
{
    enum { N_SHARD = 163, N_EACH = 564 };
    const char *dir = *state;
    struct buf index = {0};
    static const uint64_t dim[] = {1};
    char name[128], file[64];
    (void)buf_add_str(&index, "{\"weight_map\":{");
    for (int s = 0; s < N_SHARD; s++) {
        struct safetensors_writer w = {0};
        (void)snprintf(file, sizeof file, "model-%05d-of-000163.safetensors", s + 1);
        for (int i = 0; i < N_EACH; i++) {
            (void)snprintf(name, sizeof name, "model.layers.%d.mlp.experts.%d.up_proj.weight", i,
                           s);
            safetensors_add(&w, name, "U8", 1, dim, NULL, 1);
            (void)buf_printf(&index, "%s\"%s\":\"%s\"", s + i ? "," : "", name, file);
        }
        safetensors_save(&w, 0, dir, file);
    }
    (void)buf_add_str(&index, "}}");
    save_file(dir, INDEX, index.data, index.len);
    buf_free(&index);

    struct checkpoint *c;
    fathom_diag d = {0};
    uint64_t begin_us = clock_now_us();
    assert_int_equal(checkpoint_open(&c, dir, &d), FATHOM_OK);
    uint64_t open_us = clock_now_us() - begin_us;
    assert_int_equal(checkpoint_n_tensor(c), N_SHARD * N_EACH);
    assert_true(checkpoint_check(c));
    print_message("%d tensors in %d shards: %llu us\n", N_SHARD * N_EACH, N_SHARD,
                  (unsigned long long)open_us);
    checkpoint_close(c);
}

static void every_failing_allocation_is_clean(void **state)
{
    const char *dir = *state;
    save_two_shards(dir);
    save_text(dir, "config.json", "{}");
    for (long n = 0;; n++) {
        struct checkpoint *c;
        fathom_diag d = {0};
        const char *text;
        size_t size;
        mem_fail_after(n);
        fathom_err err = checkpoint_open(&c, dir, &d);
        if (!err) err = checkpoint_file(c, "config.json", &text, &size, &d);
        bool hit = mem_fail_hit();
        mem_fail_after(-1);
        checkpoint_close(c);
        if (!hit) {
            assert_int_equal(err, FATHOM_OK);
            assert_true(n > 20);
            break;
        }
        /* some of the parser's own look to it like a syntax error */
        assert_true(err == FATHOM_ENOMEM || err == FATHOM_EFORMAT);
        assert_true(d.text[0] != '\0');
    }
}

static void pilot_opens(void **state)
{
    (void)state;
    const char *dir = FATHOM_SOURCE_DIR "/models/pilot";
    struct checkpoint *c;
    fathom_diag d = {0};
    assert_int_equal(checkpoint_open(&c, dir, &d), FATHOM_OK);
    assert_int_equal(checkpoint_n_shard(c), 3);
    assert_int_equal(checkpoint_n_tensor(c), 1036);
    const struct tensor *t =
        checkpoint_find(c, "model.layers.0.self_attn.kv_a_proj_with_mqa.weight");
    assert_non_null(t);
    assert_int_equal(t->dtype, DTYPE_F8_E4M3);
    assert_int_equal(t->dim[0], 576);
    assert_int_equal(t->dim[1], 256);
    uint8_t before[256];
    memcpy(before, t->data, sizeof before);
    checkpoint_let_go(c); /* what is read again comes back */
    assert_memory_equal(t->data, before, sizeof before);
    checkpoint_close(c);
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, make_dir, drop_dir)
    const struct CMUnitTest tests[] = {
        TEST(shards_become_one_sorted_table),
        TEST(index_comes_before_a_single_file),
        TEST(every_malformed_index_has_its_message),
        TEST(faulty_directories_are_refused),
        TEST(side_files_stay_mapped_and_absence_is_silent),
        TEST(bundle_is_read_like_a_directory),
        TEST(a_revision_is_found_by_its_name_and_by_its_commit),
        TEST(what_refs_name_and_is_not_there_is_told),
        TEST(a_revision_stays_within_the_repository),
        TEST(what_may_not_be_looked_at_is_told),
        TEST(repository_is_found_in_the_cache),
        TEST(unknown_model_says_where_it_looked),
        TEST(full_size_table_opens),
        TEST(every_failing_allocation_is_clean),
        cmocka_unit_test(pilot_opens),
    };
    json_set_alloc_funcs(mem_alloc, mem_free);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
