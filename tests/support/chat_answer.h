/* chat_answer.h - runs the answer parser over a text and collects its events */
#ifndef FATHOM_SUPPORT_CHAT_ANSWER_H
#define FATHOM_SUPPORT_CHAT_ANSWER_H

#include "base/buf.h"
#include "chat/chat.h"

enum { ANSWER_CALLS_MAX = 64 };

/* What came out. `log` has every event in order with pieces of one kind joined:
 *   "[R reasoning][C content][B name][A arguments][E]"
 * It does not depend on how the text was cut. Further calls than ANSWER_CALLS_MAX are only in it.
 */
struct answer {
    struct buf log;
    struct buf reasoning;
    struct buf content;
    struct buf names[ANSWER_CALLS_MAX];
    struct buf args[ANSWER_CALLS_MAX];
    uint32_t n_call;
    size_t n_event;
    /* of the collector */
    bool call_open;
    bool check_utf8; /* every event must be whole characters */
    long fail_after; /* the sink fails at this event; negative: never */
    char last;       /* kind letter of the open bracket of the log; 0: none */
};

struct answer_input {
    const struct chat_style *style;
    bool thinking;
    const json_t *tools;
    const char *text;
    size_t n;
};

/* How the text is cut. */
enum answer_cut {
    ANSWER_WHOLE,
    ANSWER_BYTES,  /* byte by byte */
    ANSWER_RANDOM, /* at random, with the seed `n` */
    ANSWER_TWO,    /* once, after n bytes */
    ANSWER_STEPS,  /* every n bytes */
};

/* answer_run - parse; *out is filled also when an error is returned. Order and numbers of the
 * events are ASSERTed. Released with answer_free. */
fathom_err answer_run(struct answer *out, const struct answer_input *in, enum answer_cut cut,
                      uint64_t n);

/* answer_sink - the collector, for parsers made by hand; needs an answer_init'ed argument */
void answer_init(struct answer *a);
fathom_err answer_sink(void *arg, const struct chat_event *e);
/* answer_end - close the log */
void answer_end(struct answer *a);
void answer_free(struct answer *a);

#endif
