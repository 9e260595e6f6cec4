/* progress.h - how far something long has got, on a terminal alone
 *
 * One line on standard error, written over at most ten times a second: what, how much of how much,
 * the rate, the time left. Where standard error is no terminal nothing is written.
 */
#ifndef FATHOM_CLI_PROGRESS_H
#define FATHOM_CLI_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

struct progress {
    const char *what; /* "loading" */
    const char *unit; /* what is counted: "tokens"; NULL: bytes */
    bool is_terminal;
    uint64_t start_us;
    uint64_t told_us; /* when the line was written last; 0: not yet */
};

/* progress_begin - the time starts; `what` outlives it */
void progress_begin(struct progress *p, const char *what);

/* progress_tell - so many bytes, or units, of so many are done */
void progress_tell(struct progress *p, uint64_t done, uint64_t total);

/* progress_is_due - whether it is time for another line; progress_say - this one, cut to the
 * terminal's width */
bool progress_is_due(struct progress *p);
void progress_say(const char *text);

/* progress_left_text - ", 5 min 20 s left" */
enum { PROGRESS_LEFT_BYTES = 48 };
const char *progress_left_text(char out[PROGRESS_LEFT_BYTES], double left_s);

/* progress_end - the line is gone */
void progress_end(struct progress *p);

enum { PROGRESS_TEXT_BYTES = 128 };

/* progress_text - the line after so many microseconds: "loading  12.3 of 689.0 GB, 2.1 GB/s, 5 min
 * 20 s left" */
const char *progress_text(char out[PROGRESS_TEXT_BYTES], const char *what, uint64_t done,
                          uint64_t total, uint64_t elapsed_us);

/* progress_count_text - the same of things that are counted: "scoring  1,024 of 14,675 tokens,
 * 310/s, 44 s left" */
const char *progress_count_text(char out[PROGRESS_TEXT_BYTES], const struct progress *p,
                                uint64_t done, uint64_t total, uint64_t elapsed_us);

#endif
