/* mailbox.h - what passes between the callers' threads and the engine's
 *
 * Callers submit and cancel sequences, and poll events. The engine takes new sequences and cancels,
 * and publishes what it has drawn. The lock is held only for short moments, so however slow a
 * caller is, it does not hold up the engine. Invariants: mailbox.c.
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

/* mailbox_get_stats - the statistics published last. Sequences that they do not include yet count
 * as waiting. Expected times follow from the measured rates and the time of the call. */
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

/* mailbox_publish - make what n sequences have drawn visible to the poller, and replace the
 * statistics, which must include every sequence taken so far. The engine must not touch a FINISHED
 * sequence after this call. */
void mailbox_publish(struct mailbox *m, struct sequence *const *sequences, size_t n,
                     const fathom_stats *stats);

/* mailbox_set_rates - the measured rates by which mailbox_submit admits sequences */
void mailbox_set_rates(struct mailbox *m, const struct admission_rates *rates);

/* mailbox_fail - from now on mailbox_submit is refused with this message; the first one counts */
void mailbox_fail(struct mailbox *m, const char *message);

/* mailbox_suspend - from now on mailbox_submit is EPEER with this message, until it is "" */
void mailbox_suspend(struct mailbox *m, const char *message);

/* mailbox_check - assert the invariants; any thread */
void mailbox_check(struct mailbox *m);

#endif
