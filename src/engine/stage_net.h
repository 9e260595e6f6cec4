/* stage_net.h - sends steps between the stages of several hosts
 *
 * Host r has the r-th run of stages. Rows go from the last stage of a host to the first stage of
 * the next host. What the last host draws goes to host 0, which plans. The links form a star: every
 * other host has one to host 0, and host 0 forwards what one of them sends to the next.
 *
 *   IDLE --stage_net_begin--> WORKS --a link or a rank fails--> BROKEN --stage_net_end--> IDLE
 *
 * In WORKS one thread sends the rows that this host's last stage gives, and a thread for each link
 * receives. Packets do not mix: on host 0 only one thread sends to each host, and on another host
 * threads send one after the other. In BROKEN the hops and links are broken too, so that no thread
 * waits for rows that will not come.
 */
#ifndef FATHOM_ENGINE_STAGE_NET_H
#define FATHOM_ENGINE_STAGE_NET_H

#include "comm/page_link.h"
#include "engine/stage_hop.h"

struct stage_net;

struct stage_net_config {
    uint32_t node_rank;
    uint32_t n_node;   /* 2 .. HOSTS_MAX */
    uint32_t n_block;  /* steps that may be under way */
    uint32_t max_row;  /* of a step */
    uint32_t width;    /* values of a row */
    uint32_t max_draw; /* rows of a step that are drawn */
    /* NULL, or is told that the link to a host broke, and why: host 0; a thread of the net. Not
     * after another end of what it WORKS at. */
    void (*lost)(void *arg, uint32_t node_rank, const char *why);
    void *arg;
};

/* stage_net_create - IDLE. ENOMEM.
 * stage_net_destroy - accepts NULL; IDLE */
fathom_err stage_net_create(struct stage_net **out, const struct stage_net_config *c,
                            fathom_diag *d);
void stage_net_destroy(struct stage_net *n);

/* stage_net_attach - once, before the first begin: the hops at this host's edges, borrowed
 *
 *   in   before its first stage; NULL on host 0
 *   out  behind its last stage, with one taker; NULL on the last host */
void stage_net_attach(struct stage_net *n, struct stage_hop *in, struct stage_hop *out);

/* stage_net_begin - WORKS, over links of TCP
 *
 *   links  [n_node], borrowed until stage_net_end: host 0's to the others, another host's [0] to
 *          host 0
 * Needs   IDLE, and hops that are renewed.
 * Errors  EIO: a thread cannot start; it is IDLE then. */
fathom_err stage_net_begin(struct stage_net *n, struct page_link *const *links, fathom_diag *d);

/* stage_net_break - this host's part has failed; any thread. If IDLE, breaks only the hops.
 * stage_net_end - the same, then wait for the net's threads and be IDLE; from the thread that calls
 * stage_net_begin */
void stage_net_break(struct stage_net *n, const char *why);
void stage_net_end(struct stage_net *n);

/* stage_net_tell_drawn - the last host's: a step is over; one thread
 *
 *   n_row, n_top  rows that were drawn, with alternatives if n_top > 0
 * Errors  EPEER: it does not work any more. */
fathom_err stage_net_tell_drawn(struct stage_net *n, uint32_t block,
                                const struct step_result *drawn, uint32_t n_row, uint32_t n_top);

/* stage_net_await_drawn - host 0's: wait for the step that was launched first; one thread
 *
 *   block  of that step
 *   out    valid until n_block more steps have been waited for
 * Errors  EPEER: it does not work any more. */
fathom_err stage_net_await_drawn(struct stage_net *n, uint32_t block, struct step_result *out);

/* stage_net_tell_record - another host's: its part of a page's record, which host 0 has asked for
 *
 *   n_bytes  UINT32_MAX at most
 * Errors  EPEER: it does not work any more. */
fathom_err stage_net_tell_record(struct stage_net *n, const void *record, size_t n_bytes);

/* stage_net_expect_record - host 0's, before it asks a host: where that part is to go
 * stage_net_await_record - then: wait for it; when this returns nobody writes there. One thread.
 * Errors  EPEER: it does not work any more. */
void stage_net_expect_record(struct stage_net *n, uint32_t node_rank, void *to, size_t n_bytes);
fathom_err stage_net_await_record(struct stage_net *n, uint32_t node_rank);

#endif
