/* replay.c - runs a fuzzer's property over files, without a fuzzing engine
 *
 * Arguments are files or directories of files. Every file is given to LLVMFuzzerTestOneInput, then
 * cut short at a few places. So a corpus of whole inputs also covers truncated ones. A directory
 * without a file is an error: a corpus cannot vanish unnoticed.
 */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* A copy of exactly `size` bytes, so that a sanitizer sees the first byte read past the end. */
static void run_prefix(const uint8_t *data, size_t size)
{
    uint8_t *copy = malloc(size ? size : 1);
    if (!copy) {
        fprintf(stderr, "replay: out of memory\n");
        exit(2);
    }
    if (size) memcpy(copy, data, size);
    (void)LLVMFuzzerTestOneInput(copy, size);
    free(copy);
}

static int run_file(const char *path)
{
    FILE *f = fopen(path, "rb");
    if (!f) {
        fprintf(stderr, "replay: %s cannot be opened\n", path);
        return 1;
    }
    struct stat st;
    size_t size = fstat(fileno(f), &st) == 0 ? (size_t)st.st_size : 0;
    uint8_t *data = malloc(size + 1);
    if (!data || fread(data, 1, size, f) != size) {
        fprintf(stderr, "replay: %s cannot be read\n", path);
        free(data);
        (void)fclose(f);
        return 1;
    }
    (void)fclose(f);
    run_prefix(data, size);
    for (size_t eighth = 0; eighth < 8; eighth++) run_prefix(data, size * eighth / 8);
    free(data);
    return 0;
}

static int run_dir(const char *dir, size_t *n_run)
{
    struct dirent **names;
    int n = scandir(dir, &names, NULL, alphasort);
    int status = n < 0;
    for (int i = 0; i < n; i++) {
        char path[4096];
        (void)snprintf(path, sizeof path, "%s/%s", dir, names[i]->d_name);
        struct stat st;
        if (stat(path, &st) == 0 && S_ISREG(st.st_mode)) {
            status |= run_file(path);
            ++*n_run;
        }
        free(names[i]);
    }
    if (n >= 0) free(names);
    return status;
}

int main(int argc, char **argv)
{
    size_t n_run = 0;
    int status = 0;
    for (int i = 1; i < argc; i++) {
        struct stat st;
        if (stat(argv[i], &st) == 0 && S_ISDIR(st.st_mode)) {
            status |= run_dir(argv[i], &n_run);
        } else {
            status |= run_file(argv[i]);
            n_run++;
        }
    }
    if (n_run == 0) {
        fprintf(stderr, "replay: no input found; give files or a directory of them\n");
        return 1;
    }
    printf("replayed %zu inputs, each whole and cut at eight places\n", n_run);
    return status;
}
