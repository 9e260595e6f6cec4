/* simt_link.h - what the simulated GPU's devices send each other
 *
 * A store to another device's memory, or one that a peer may look at in one's own, goes into a
 * queue for each (source, destination). It arrives 16 bytes at a time, in any order, at some look
 * that the destination takes; stores to one place arrive in the order they were made. A store with
 * release, and a fence, let all arrive that their device has sent before; the end of a kernel lets
 * arrive what it has sent to its own device.
 *
 * In builds that look for races (race.h), a plain read of bytes that a peer has sent ends the
 * process, unless they were looked at, or a store with release behind them was; so does a plain
 * write of bytes that a peer's store is still on its way to. */
#ifndef FATHOM_TESTS_SIMT_LINK_H
#define FATHOM_TESTS_SIMT_LINK_H

#include <stddef.h>
#include <stdint.h>

/* simt_peer_store - of 4, 8 or 16 bytes, aligned; a release lets what was sent before arrive first
 * simt_peer_load - a look; an acquire tells what came before the release that is seen
 * simt_peer_fence - fence.sys */
void simt_peer_store(void *to, const void *from, size_t n, bool release);
void simt_peer_load(void *out, const void *from, size_t n, bool acquire);
void simt_peer_fence(void);

/* simt_link_flush - all that a device has sent arrives, or only what it has sent to itself */
void simt_link_flush(int device, bool only_own);

/* simt_link_events - grows with every store that is made or arrives */
uint64_t simt_link_events(void);

/* simt_link_forget - n bytes are no longer anybody's */
void simt_link_forget(const void *p, size_t n);

/* Of race.h: a plain access of at most a page by a kernel. Most are of pages that no store to a
 * peer has reached, which a flag for all pages of one remainder tells. */
enum { SIMT_LINK_PAGE = 4096, SIMT_LINK_PAGES = 1 << 16 };
extern bool simt_link_has[SIMT_LINK_PAGES];
void simt_link_plain(const void *p, size_t n, bool write);
static inline bool *simt_link_page(const void *p)
{
    return &simt_link_has[(uintptr_t)p / SIMT_LINK_PAGE % SIMT_LINK_PAGES];
}
static inline bool simt_link_is_used(const void *p, size_t n)
{
    return *simt_link_page(p) || *simt_link_page((const char *)p + n - 1);
}
static inline void simt_link_read(const void *p, size_t n)
{
    if (simt_link_is_used(p, n)) simt_link_plain(p, n, false);
}
static inline void simt_link_write(const void *p, size_t n)
{
    if (simt_link_is_used(p, n)) simt_link_plain(p, n, true);
}

/* Of the runtime: whose memory this is, -1: the host's; whether `from` may reach memory of `to`. */
int simt_owner(const void *p);
bool simt_reaches(int from, int to);

#endif
