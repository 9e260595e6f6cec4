/* mailbox.h - what passes between the callers' threads and the engine's
 *
 * Callers hand in sequences and cancels and take events; the engine takes sequences and cancels and
 * publishes what it has drawn. Nobody waits for anybody else's work under the lock: the engine is
 * never held up by a caller, however slow. Invariants: mailbox.c.
 *
 * Memory is bounded by the number of entries. A sequence has an entry from mailbox_submit until its
 * FINISH event has been polled, so a caller that does not poll is told EBUSY in the end.
 */
#ifndef FATHOM_ENGINE_MAILBOX_H
#define FATHOM_ENGINE_MAILBOX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/admission.h"
#include "engine/sequence.h"
#include "fathom/fathom.h"

struct mailbox;

/* mailbox_create - room for n_entry sequences
 *
 *   seed  each sequence without a seed gets its own from this one, by its number in the order
 *         of submission
 * Errors  EINVAL for 0 entries; ENOMEM. */
fathom_err mailbox_create(struct mailbox **out, uint32_t n_entry, uint64_t seed, fathom_diag *d);
void mailbox_destroy(
    struct mailbox *m); /* accepts NULL; releases every sequence still in an entry */

/* mailbox_set_admission - what mailbox_submit judges by; before anything is submitted */
void mailbox_set_admission(struct mailbox *m, const struct admission_config *c);

/* ---- callers' side: any thread -------------------------------------------------------------- */

/* mailbox_submit - the sequence is the mailbox's on success; gives it its id
 * Errors  EBUSY   no entry is free, or admission_judge is against it
 *         EDEVICE mailbox_fail came before, with its message
 *         EPEER   mailbox_suspend did */
fathom_err mailbox_submit(struct mailbox *m, struct sequence *q, uint64_t *id, fathom_diag *d);
void mailbox_cancel(struct mailbox *m, uint64_t id);

/* mailbox_poll, mailbox_wake - as fathom_poll and fathom_wake */
size_t mailbox_poll(struct mailbox *m, fathom_event *events, size_t max, int timeout_ms);
void mailbox_wake(struct mailbox *m);

/* mailbox_get_stats - what was published last; sequences it does not know of yet count as waiting.
 * What is expected follows from the rates and the time of the call. */
void mailbox_get_stats(struct mailbox *m, fathom_stats *out);

/* mailbox_fault - "" until mailbox_fail */
const char *mailbox_fault(struct mailbox *m);

/* mailbox_close - the engine's next mailbox_wait returns false */
void mailbox_close(struct mailbox *m);

/* ---- engine's side: its thread -------------------------------------------------------------- */

/* mailbox_wait - false when closed; first sleeps until there is something to take or mailbox_kick,
 * for wait_us at most (MAILBOX_FOREVER: without a limit) */
#define MAILBOX_FOREVER UINT64_MAX
bool mailbox_wait(struct mailbox *m, uint64_t wait_us);

/* mailbox_kick - the engine has something to look at: the mailbox_wait under way, or the next one,
 * returns. From any thread. */
void mailbox_kick(struct mailbox *m);

/* mailbox_take_new, mailbox_take_cancel - the next one, or NULL. A sequence is not given for
 * cancelling before it has been given as new. */
struct sequence *mailbox_take_new(struct mailbox *m);
struct sequence *mailbox_take_cancel(struct mailbox *m);

/* mailbox_publish - let the poller have what n sequences have drawn, and their end if they are
 * FINISHED, after which the engine must not touch them; replaces the statistics, in which every
 * sequence taken so far counts */
void mailbox_publish(struct mailbox *m, struct sequence *const *sequences, size_t n,
                     const fathom_stats *stats);

/* mailbox_set_rates - what has been measured, for mailbox_submit to judge by */
void mailbox_set_rates(struct mailbox *m, const struct admission_rates *rates);

/* mailbox_fail - from now on mailbox_submit is refused with this message; the first one counts */
void mailbox_fail(struct mailbox *m, const char *message);

/* mailbox_suspend - from now on mailbox_submit is EPEER with this message, until it is "" */
void mailbox_suspend(struct mailbox *m, const char *message);

/* mailbox_check - assert the invariants; any thread */
void mailbox_check(struct mailbox *m);

#endif
