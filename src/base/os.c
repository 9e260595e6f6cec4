/* os.c - files, memory maps and the machine */
#define _GNU_SOURCE
#include "base/os.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fail.h"
#include "base/limits.h"

static int64_t ns_of(struct timespec t)
{
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static struct file_stamp stamp_of(const struct stat *st)
{
    return (struct file_stamp){.device = (uint64_t)st->st_dev,
                               .inode = (uint64_t)st->st_ino,
                               .size = (uint64_t)st->st_size,
                               .mtime_ns = ns_of(st->st_mtim),
                               .ctime_ns = ns_of(st->st_ctim)};
}

fathom_err file_stamp_of(const char *path, struct file_stamp *stamp)
{
    struct stat st;
    if (stat(path, &st) != 0) return FATHOM_EIO;
    *stamp = stamp_of(&st);
    return FATHOM_OK;
}

fathom_err file_map_open(struct file_map *m, const char *path, fathom_diag *d)
{
    memset(m, 0, sizeof *m);
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a pipe is refused, not waited for */
    if (fd < 0) {
        const int cause = errno;
        struct stat link;
        if (cause == ENOENT && lstat(path, &link) == 0) {
            FAIL(d, FATHOM_EIO, "%s: is a link to a file that is not there", path);
        }
        const fathom_err code = cause == ENOENT ? FATHOM_ENOTFOUND : FATHOM_EIO;
        FAIL(d, code, "%s: cannot be opened: %s", path, strerror(cause));
    }
    fathom_err err = FATHOM_OK;
    struct stat st;
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
        err = diag_fail(d, FATHOM_EIO, "%s: not a regular file", path);
    } else if (st.st_size > 0) {
        void *data = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_SHARED, fd, 0);
        if (data == MAP_FAILED) {
            err = diag_fail(d, FATHOM_EIO, "%s: cannot be mapped: %s", path, strerror(errno));
        } else {
            m->data = data;
            m->size = (size_t)st.st_size;
        }
    }
    if (!err) m->stamp = stamp_of(&st);
    close(fd);
    return err;
}

void file_map_close(struct file_map *m)
{
    if (m->data) munmap((void *)(uintptr_t)m->data, m->size);
    memset(m, 0, sizeof *m);
}

void file_map_prefetch(const void *data, size_t n)
{
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    const uintptr_t first = (uintptr_t)data / page * page;
    (void)posix_madvise((void *)first, (uintptr_t)data + n - first, POSIX_MADV_WILLNEED);
}

void file_map_let_go(const struct file_map *m)
{
    if (m->data) (void)madvise((void *)(uintptr_t)m->data, m->size, MADV_DONTNEED);
}

/* ---- mapped files: nothing here but open, read and close ------------------------------------- */

struct map_list {
    int fd;
    size_t at, n;
    char bytes[1024];
};

/* The next character of /proc/self/maps; 0: there is none. */
static char next_char(struct map_list *l)
{
    if (l->at == l->n) {
        const ssize_t n = read(l->fd, l->bytes, sizeof l->bytes);
        l->n = n > 0 ? (size_t)n : 0;
        l->at = 0;
    }
    return l->at < l->n ? l->bytes[l->at++] : '\0';
}

/* A number in base 16, and the character behind it. */
static uint64_t next_number(struct map_list *l)
{
    uint64_t value = 0;
    for (char c = next_char(l); (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');) {
        value = value << 4 | (uint64_t)(c <= '9' ? c - '0' : c - 'a' + 10);
        c = next_char(l);
    }
    return value;
}

static void skip_field(struct map_list *l)
{
    for (char c = next_char(l); c && c != ' ';) c = next_char(l);
}

/* The rest of a line without the spaces before it; false: it does not begin with a '/'. */
static bool next_path(struct map_list *l, char *path, size_t n_path)
{
    size_t n = 0;
    char c = next_char(l);
    while (c == ' ') c = next_char(l);
    const bool is_file = c == '/';
    for (; c && c != '\n'; c = next_char(l)) {
        if (is_file && n < n_path) path[n++] = c;
    }
    if (is_file && n_path) path[n < n_path ? n : 0] = '\0';
    return is_file;
}

bool os_mapped_file(const void *at, char *path, size_t n_path, uint64_t *byte)
{
    struct map_list l = {.fd = open("/proc/self/maps", O_RDONLY | O_CLOEXEC)};
    const uint64_t address = (uintptr_t)at;
    uint64_t first, end, offset;
    bool is_file = false;
    if (l.fd < 0) return false;
    do { /* first-end rwxp offset device inode path */
        first = next_number(&l);
        end = next_number(&l);
        skip_field(&l);
        offset = next_number(&l);
        skip_field(&l);
        skip_field(&l);
        const bool is_it = address >= first && address < end;
        is_file = next_path(&l, path, is_it ? n_path : 0) && is_it;
    } while (end && address >= end);
    (void)close(l.fd);
    if (is_file) *byte = offset + (address - first);
    return is_file;
}

bool path_exists(const char *path)
{
    return access(path, F_OK) == 0;
}

bool path_is_dir(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

fathom_err path_join(char *out, size_t out_bytes, const char *dir, const char *name)
{
    size_t n_dir = strlen(dir);
    bool ends = n_dir && dir[n_dir - 1] == '/';
    int n = snprintf(out, out_bytes, "%s%s%s", dir, ends ? "" : "/", name);
    return n >= 0 && (size_t)n < out_bytes ? FATHOM_OK : FATHOM_EINVAL;
}

bool path_stays_below(const char *name)
{
    for (const char *part = name;; part++) {
        size_t n = strcspn(part, "/");
        if (n == 0 || n > 200 || (n <= 2 && memcmp(part, "..", n) == 0)) return false;
        for (size_t i = 0; i < n; i++) {
            if ((unsigned char)part[i] < 0x20 || part[i] == 0x7f || part[i] == '\\') return false;
        }
        part += n;
        if (!*part) return true;
    }
}

bool path_holds_suffix(const char *dir, const char *suffix)
{
    size_t n_suffix = strlen(suffix);
    bool found = false;
    DIR *folder = opendir(dir);
    if (!folder) return false;
    for (struct dirent *entry; !found && (entry = readdir(folder)) != NULL;) {
        size_t n = strlen(entry->d_name);
        found = n > n_suffix && strcmp(entry->d_name + n - n_suffix, suffix) == 0;
    }
    closedir(folder);
    return found;
}

/* Whether directory a of modification time ta comes after b of tb. */
static bool is_newer(const char *a, struct timespec ta, const char *b, struct timespec tb)
{
    if (ta.tv_sec != tb.tv_sec) return ta.tv_sec > tb.tv_sec;
    if (ta.tv_nsec != tb.tv_nsec) return ta.tv_nsec > tb.tv_nsec;
    return strcmp(a, b) > 0;
}

fathom_err path_newest_dir(char *out, size_t out_bytes, const char *dir)
{
    char best[NAME_MAX + 1] = "";
    struct timespec best_time = {0};
    out[0] = '\0';
    DIR *folder = opendir(dir);
    if (!folder) return FATHOM_ENOTFOUND;
    for (struct dirent *entry; (entry = readdir(folder)) != NULL;) {
        struct stat st;
        if (entry->d_name[0] == '.') continue;
        if (fstatat(dirfd(folder), entry->d_name, &st, 0) != 0 || !S_ISDIR(st.st_mode)) continue;
        if (best[0] && !is_newer(entry->d_name, st.st_mtim, best, best_time)) continue;
        (void)snprintf(best, sizeof best, "%s", entry->d_name);
        best_time = st.st_mtim;
    }
    closedir(folder);
    if (!best[0]) return FATHOM_ENOTFOUND;
    fathom_err err = path_join(out, out_bytes, dir, best);
    if (err) out[0] = '\0';
    return err;
}

/* The first line of a small file of the system; false when there is none. */
static bool read_line(const char *path, char *line, size_t line_bytes)
{
    FILE *f = fopen(path, "re");
    if (!f) return false;
    bool ok = fgets(line, (int)line_bytes, f) != NULL;
    (void)fclose(f);
    return ok;
}

unsigned os_n_cpu(void)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    long n = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set)
                                                         : sysconf(_SC_NPROCESSORS_ONLN);
    char quota[64]; /* "max 100000", or microseconds allowed in so many */
    if (read_line("/sys/fs/cgroup/cpu.max", quota, sizeof quota)) {
        char *rest;
        double allowed_us = strtod(quota, &rest);
        double period_us = strtod(rest, NULL);
        if (allowed_us > 0 && period_us > 0 && allowed_us < (double)n * period_us) {
            n = (long)((allowed_us + period_us - 1) / period_us);
        }
    }
    return n > 0 ? (unsigned)n : 1;
}

/* A number of the container's memory controller; `otherwise` without one, or for "max". */
static uint64_t cgroup_bytes(const char *path, uint64_t otherwise)
{
    char line[64];
    char *end;
    if (!read_line(path, line, sizeof line)) return otherwise;
    uint64_t bytes = strtoull(line, &end, 10);
    return end == line ? otherwise : bytes;
}

void os_memory_bytes(uint64_t *total, uint64_t *available)
{
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    *total = (uint64_t)sysconf(_SC_PHYS_PAGES) * page;
    *available = (uint64_t)sysconf(_SC_AVPHYS_PAGES) * page;
    FILE *f = fopen("/proc/meminfo", "re");
    char line[128];
    static const char key[] = "MemAvailable:";
    while (f && fgets(line, sizeof line, f)) {
        if (strncmp(line, key, sizeof key - 1) != 0) continue;
        *available = strtoull(line + sizeof key - 1, NULL, 10) * 1024; /* it is in KiB */
    }
    if (f) (void)fclose(f);
    uint64_t limit = cgroup_bytes("/sys/fs/cgroup/memory.max", *total);
    if (limit >= *total) return;
    uint64_t used = cgroup_bytes("/sys/fs/cgroup/memory.current", 0);
    uint64_t left = used < limit ? limit - used : 0;
    *total = limit;
    if (left < *available) *available = left;
}

void os_name_thread(const char *name)
{
    (void)prctl(PR_SET_NAME, name);
}

uint64_t os_allow_files(uint64_t need)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return 0;
    if (limit.rlim_cur != RLIM_INFINITY && limit.rlim_cur < need) {
        limit.rlim_cur =
            limit.rlim_max == RLIM_INFINITY || limit.rlim_max >= need ? need : limit.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &limit);
        if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return 0;
    }
    return limit.rlim_cur;
}

void os_forbid_core_dumps(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_CORE, &limit) != 0) return;
    limit.rlim_cur = 0; /* the hard limit stays, for a debugger that asks for an image */
    (void)setrlimit(RLIMIT_CORE, &limit);
}

fathom_err os_make_dir(const char *path, fathom_diag *d)
{
    char part[LIMIT_PATH_BYTES];
    size_t n = strlen(path);
    if (n == 0 || n >= sizeof part) {
        FAIL(d, FATHOM_EINVAL, "a path has %zu bytes, needed is 1 to %zu", n, sizeof part - 1);
    }
    for (size_t i = 1; i <= n; i++) {
        if (path[i] != '/' && path[i] != '\0') continue;
        memcpy(part, path, i);
        part[i] = '\0';
        if (mkdir(part, 0777) != 0 && errno != EEXIST) {
            FAIL(d, FATHOM_EIO, "%s: the directory cannot be made: %s", part, strerror(errno));
        }
    }
    if (!path_is_dir(path)) FAIL(d, FATHOM_EIO, "%s is not a directory", path);
    return FATHOM_OK;
}

fathom_err os_check_make_dir(const char *path, char *above, fathom_diag *d)
{
    struct stat st;
    size_t n = strlen(path);
    if (n == 0 || n >= LIMIT_PATH_BYTES) {
        FAIL(d, FATHOM_EINVAL, "a path has %zu bytes, needed is 1 to %d", n, LIMIT_PATH_BYTES - 1);
    }
    memcpy(above, path, n + 1);
    while (lstat(above, &st) != 0) {
        if (errno != ENOENT && errno != ENOTDIR) {
            FAIL(d, FATHOM_EIO, "%s: the directory cannot be made: %s", path, strerror(errno));
        }
        while (n > 0 && above[n - 1] == '/') n--;
        while (n > 0 && above[n - 1] != '/') n--;
        while (n > 0 && above[n - 1] == '/') n--;
        if (n == 0) above[n++] = path[0] == '/' ? '/' : '.';
        above[n] = '\0';
    }
    if (!path_is_dir(above)) {
        FAIL(d, FATHOM_EIO, "%s: the directory cannot be made: %s is not a directory", path, above);
    }
    if (access(above, W_OK | X_OK) == 0) return FATHOM_OK;
    FAIL(d, FATHOM_EIO, "%s: cannot be written to: %s: %s", path, above, strerror(errno));
}

fathom_err path_check_writable(const char *path, bool replaces, fathom_diag *d)
{
    char dir[LIMIT_PATH_BYTES];
    struct stat st, own;
    const char *slash = strrchr(path, '/');
    const size_t n = slash ? (size_t)(slash - path) : 0;
    int cause = 0;
    if (n >= sizeof dir) FAIL(d, FATHOM_EINVAL, "a path has more than %zu bytes", sizeof dir - 1);
    (void)snprintf(dir, sizeof dir, "%.*s", n ? (int)n : 1, n ? path : slash ? "/" : ".");
    const bool is_file = lstat(path, &own) == 0 && S_ISREG(own.st_mode);
    if (stat(path, &st) == 0 && !(replaces && is_file)) {
        cause = S_ISDIR(st.st_mode) ? EISDIR : access(path, W_OK) == 0 ? 0 : errno;
    } else if (path_is_dir(dir)) {
        cause = access(dir, W_OK | X_OK) == 0 ? 0 : errno;
    } else {
        cause = errno;
    }
    if (cause) FAIL(d, FATHOM_EIO, "%s: cannot be written: %s", path, strerror(cause));
    return FATHOM_OK;
}

const char *os_machine_text(char out[MACHINE_TEXT_BYTES])
{
    char line[256];
    char name[128] = "a processor without a name";
    FILE *f = fopen("/proc/cpuinfo", "re");
    while (f && fgets(line, sizeof line, f)) {
        const char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) != 0 || !colon) continue;
        const char *from = colon + 1 + strspn(colon + 1, " ");
        (void)snprintf(name, sizeof name, "%.*s", (int)strcspn(from, "\n"), from);
        break;
    }
    if (f) (void)fclose(f);
    unsigned n = os_n_cpu();
    (void)snprintf(out, MACHINE_TEXT_BYTES, "%s, %u processor%s", name, n, n == 1 ? "" : "s");
    return out;
}

double os_load(void)
{
    double load[1];
    return getloadavg(load, 1) == 1 ? load[0] : -1;
}

uint64_t os_resident_bytes(void)
{
    char line[64] = "";
    FILE *f = fopen("/proc/self/statm", "re"); /* pages of address space, then those in RAM */
    if (f && !fgets(line, sizeof line, f)) line[0] = '\0';
    if (f) (void)fclose(f);
    const char *resident = strchr(line, ' ');
    return resident ? strtoull(resident, NULL, 10) * (uint64_t)sysconf(_SC_PAGESIZE) : 0;
}
