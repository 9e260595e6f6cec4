/* crash.c - the end of the process by a fault: its cause, what was in flight, the report */
#include "base/crash.h"

#include <execinfo.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/limits.h"
#include "base/os.h"

enum { CAUSE_BYTES = 512, FRAMES_MAX = 64, STACK_BYTES = 64 << 10, LIST_MAX = 64 };

static struct crash {
    const char *version;
    char cause[CAUSE_BYTES];
    atomic_int cause_state; /* 0: none, 1: being written, 2: there */
    atomic_uint next;       /* where the search for a free entry begins */
    atomic_bool taken[CRASH_ENTRIES];
    atomic_bool written[CRASH_ENTRIES];
    char texts[CRASH_ENTRIES][CRASH_TEXT_BYTES];
    atomic_bool reporting;
    _Alignas(64) char stack[STACK_BYTES]; /* for a handler whose own stack has overflowed */
} crash;

/* ---- what is in flight ---------------------------------------------------------------------- */

int crash_note(const char *text)
{
    unsigned from = atomic_fetch_add(&crash.next, 1);
    for (unsigned i = 0; i < CRASH_ENTRIES; i++) {
        unsigned entry = (from + i) % CRASH_ENTRIES;
        if (atomic_exchange(&crash.taken[entry], true)) continue;
        size_t n = strlen(text);
        if (n >= CRASH_TEXT_BYTES) n = CRASH_TEXT_BYTES - 1;
        memcpy(crash.texts[entry], text, n);
        crash.texts[entry][n] = '\0';
        atomic_store(&crash.written[entry], true);
        return (int)entry;
    }
    return CRASH_NO_ENTRY;
}

void crash_drop(int entry)
{
    if (entry == CRASH_NO_ENTRY) return;
    atomic_store(&crash.written[entry], false);
    atomic_store(&crash.taken[entry], false);
}

void crash_set_cause(const char *text)
{
    int none = 0;
    if (!atomic_compare_exchange_strong(&crash.cause_state, &none, 1)) return;
    size_t n = strlen(text);
    if (n >= CAUSE_BYTES) n = CAUSE_BYTES - 1;
    memcpy(crash.cause, text, n);
    atomic_store(&crash.cause_state, 2);
}

void assert_failed(const char *cond, const char *file, int line)
{
    char cause[CAUSE_BYTES];
    (void)snprintf(cause, sizeof cause, "%s:%d: %s does not hold", file, line, cond);
    fprintf(stderr, "fathom: fault in %s\n", cause);
    crash_set_cause(cause);
    abort();
}

/* ---- the report: what a handler may call ---------------------------------------------------- */

static void put(int fd, const char *text)
{
    ssize_t n = write(fd, text, strlen(text));
    (void)n;
}

static void put_number(int fd, uint64_t value, unsigned base)
{
    char digits[24];
    size_t i = sizeof digits;
    digits[--i] = '\0';
    do {
        digits[--i] = "0123456789abcdef"[value % base];
        value /= base;
    } while (value);
    put(fd, digits + i);
}

static const char *signal_text(int number)
{
    switch (number) {
    case SIGSEGV: return "SIGSEGV, memory that is not there";
    case SIGBUS: return "SIGBUS, memory that cannot be read";
    case SIGFPE: return "SIGFPE, arithmetic";
    case SIGILL: return "SIGILL, an instruction that this processor does not have";
    case SIGABRT: return "SIGABRT";
    default: return "a signal";
    }
}

static void put_in_flight(int fd)
{
    unsigned n = 0;
    for (int i = 0; i < CRASH_ENTRIES; i++) {
        if (!atomic_load(&crash.written[i])) continue;
        if (n++ >= LIST_MAX) continue;
        put(fd, n == 1 ? "in flight:\n    " : "    ");
        put(fd, crash.texts[i]);
        put(fd, "\n");
    }
    if (n == 0) put(fd, "in flight: nothing\n");
    if (n > LIST_MAX) {
        put(fd, "    and ");
        put_number(fd, n - LIST_MAX, 10);
        put(fd, " more\n");
    }
}

void crash_write_report(int fd, const siginfo_t *info)
{
    int number = info ? info->si_signo : 0;
    void *frames[FRAMES_MAX];
    put(fd, "\nfathom ");
    put(fd, crash.version ? crash.version : "");
    put(fd, " has met a fault of its own and ends.\ncause: ");
    put(fd, number ? signal_text(number) : "none");
    if (info && info->si_code <= 0 && info->si_pid != getpid()) {
        put(fd, ", sent by process ");
        put_number(fd, (uint64_t)info->si_pid, 10);
    } else if (number == SIGSEGV || number == SIGBUS) {
        put(fd, ", at 0x");
        put_number(fd, (uint64_t)(uintptr_t)info->si_addr, 16);
    }
    if (atomic_load(&crash.cause_state) == 2) {
        put(fd, ": ");
        put(fd, crash.cause);
    }
    put(fd, "\n");
    put_in_flight(fd);
    put(fd, "backtrace (addr2line -Cfe fathom ADDRESS names the lines):\n");
    int n = backtrace(frames, FRAMES_MAX);
    backtrace_symbols_fd(frames, n, fd);
}

/* Bytes of a mapped file that are gone are no fault of the program's: a line, and the status of an
 * error. Comes back where it is another fault. */
static void end_for_a_file(const siginfo_t *info)
{
    char path[LIMIT_PATH_BYTES] = "";
    uint64_t byte;
    if (info->si_signo != SIGBUS || info->si_code <= 0) return;
    if (!os_mapped_file(info->si_addr, path, sizeof path, &byte)) return;
    put(STDERR_FILENO, "fathom: ");
    put(STDERR_FILENO, path);
    put(STDERR_FILENO, ": cannot be read at byte ");
    put_number(STDERR_FILENO, byte, 10);
    put(STDERR_FILENO, ": the file was cut while it was read, or its disk fails\n");
    _exit(1);
}

/* The first thread that gets here reports; the others wait for the end of the process. */
static void on_fault(int number, siginfo_t *info, void *context)
{
    (void)context;
    if (atomic_exchange(&crash.reporting, true)) {
        for (;;) pause();
    }
    end_for_a_file(info);
    crash_write_report(STDERR_FILENO, info);
    (void)signal(number, SIG_DFL);
    (void)raise(number);
}

void crash_install(const char *version)
{
    static const int numbers[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};
    void *frames[1];
    const stack_t stack = {.ss_sp = crash.stack, .ss_size = STACK_BYTES};
    struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_ONSTACK};
    crash.version = version;
    (void)backtrace(frames, 1); /* its first call loads a library */
    (void)sigaltstack(&stack, NULL);
    sigemptyset(&action.sa_mask);
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        (void)sigaction(numbers[i], &action, NULL);
    }
}
