#define _GNU_SOURCE
#include "base/os.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fail.h"

fathom_err file_map_open(struct file_map *m, const char *path, fathom_diag *d)
{
    memset(m, 0, sizeof *m);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        fathom_err code = errno == ENOENT ? FATHOM_ENOTFOUND : FATHOM_EIO;
        FAIL(d, code, "%s: cannot be opened: %s", path, strerror(errno));
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
    close(fd);
    return err;
}

void file_map_close(struct file_map *m)
{
    if (m->data) munmap((void *)(uintptr_t)m->data, m->size);
    memset(m, 0, sizeof *m);
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
    int n = snprintf(out, out_bytes, "%s/%s", dir, name);
    return n >= 0 && (size_t)n < out_bytes ? FATHOM_OK : FATHOM_EINVAL;
}

unsigned os_n_cpu(void)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof set, &set) != 0) return 1;
    int n = CPU_COUNT(&set);
    return n > 0 ? (unsigned)n : 1;
}

void os_memory_bytes(uint64_t *total, uint64_t *available)
{
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    *total = (uint64_t)sysconf(_SC_PHYS_PAGES) * page;
    *available = (uint64_t)sysconf(_SC_AVPHYS_PAGES) * page;
    FILE *f = fopen("/proc/meminfo", "re");
    if (!f) return;
    char line[128];
    unsigned long long kib;
    while (fgets(line, sizeof line, f)) {
        if (sscanf(line, "MemAvailable: %llu kB", &kib) == 1) *available = kib * 1024;
    }
    (void)fclose(f);
}
