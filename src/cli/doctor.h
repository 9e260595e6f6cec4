/* doctor.h - what is found when a machine is looked at before it serves
 *
 * A finding says what is there, how good that is, and what to do about it. The probes only look:
 * they change nothing, and none takes longer than a few seconds but for the check of hashes.
 */
#ifndef FATHOM_CLI_DOCTOR_H
#define FATHOM_CLI_DOCTOR_H

#include "cli/cli.h"

enum finding_level {
    FINDING_OK,
    FINDING_NOTE, /* worth knowing */
    FINDING_WARN, /* it works, and could be better */
    FINDING_BAD,  /* it will not work */
};

enum { FINDINGS_MAX = 256, FINDING_TEXT_BYTES = 512 };

struct finding {
    enum finding_level level;
    const char *area; /* "disk"; static */
    char text[FINDING_TEXT_BYTES];
    char advice[FINDING_TEXT_BYTES]; /* "": nothing to do */
};

struct doctor {
    struct finding findings[FINDINGS_MAX];
    size_t n_finding;
    uint64_t weights_bytes; /* of the checkpoint's files; 0: not known */
};

/* doctor_find - one finding more; what does not fit is cut */
void doctor_find(struct doctor *d, enum finding_level level, const char *area, const char *advice,
                 const char *fmt, ...) __attribute__((format(printf, 5, 6)));

/* doctor_read_line - the first line of a small file of /proc or /sys; false: there is none */
bool doctor_read_line(const char *path, char *out, size_t bytes);

/* doctor_print - the findings as lines on standard output */
void doctor_print(const struct doctor *d);

/* doctor_print_json - the same as one object; ENOMEM */
fathom_err doctor_print_json(const struct doctor *d, enum finding_level worst);

/* The probes, in the order in which they are told. */
void doctor_look_at_processor(struct doctor *d, const struct settings *s);
void doctor_look_at_memory(struct doctor *d);
void doctor_look_at_limits(struct doctor *d, const struct settings *s);
void doctor_look_at_gpus(struct doctor *d, const struct settings *s);

/* doctor_check_hashes - every file of a checkpoint whose hash the Hugging Face cache knows, against
 * it. Reads everything: takes as long as that. */
void doctor_check_hashes(struct doctor *d, const char *dir);

/* doctor_read_rate - bytes a second that a file's disk gives to large reads past the page cache,
 * measured for about a second; 0: it cannot be read */
uint64_t doctor_read_rate(const char *path);

#endif
