/* crash.h - what is printed when the process dies of a fault
 *
 * On SIGSEGV, SIGBUS, SIGFPE, SIGILL and SIGABRT (an ASSERT), standard error gets a report: the
 * version, the cause, the ids of what was in flight, a backtrace. Then the signal takes its usual
 * way: status and core dump are what they would have been. The handler has no argument,
 * which is why the table of what is in flight is global. A SIGBUS of a mapped file whose bytes
 * cannot be read any more is no fault of the program's: one line that names the file, status 1.
 *
 * An entry is FREE or TAKEN; whoever takes it writes its text before it says TAKEN, so the handler
 * never reads half a text. Everything here is lock-free.
 */
#ifndef FATHOM_BASE_CRASH_H
#define FATHOM_BASE_CRASH_H

#include <signal.h>

enum { CRASH_ENTRIES = 8192, CRASH_TEXT_BYTES = 56, CRASH_NO_ENTRY = -1 };

/* crash_install - from now on; `version` outlives the process. Once, from the main thread. */
void crash_install(const char *version);

/* crash_note - name something in flight; CRASH_NO_ENTRY when the table is full: it goes unnamed
 *
 *   text  cut to CRASH_TEXT_BYTES - 1; printable
 * Any thread may call it.
 * Cost  a few loads, however many are in flight. */
int crash_note(const char *text);

/* crash_drop - it has ended; accepts CRASH_NO_ENTRY */
void crash_drop(int entry);

/* crash_set_cause - what a following abort() is about; the first one counts */
void crash_set_cause(const char *text);

/* crash_write_report - what the handler prints, on file `fd`; NULL: no signal. Calls only what a
 * signal handler may. */
void crash_write_report(int fd, const siginfo_t *info);

#endif
