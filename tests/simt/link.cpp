/* link.cpp - see simt_link.h
 *
 * A unit is 16 bytes at a multiple of 16. Of each that a peer's store has reached it is known whose
 * the last one was, which number it had among what that device has sent, and, of a store with
 * release, up to which number its device's stores come before it. */
#include "simt/simt_link.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <unordered_map>
#include <vector>

#include "simt/simt.h"
#include "simt/simt_fault.h"

namespace
{

enum { UNIT = 16 };

struct store {
    char *to;
    uint8_t n;
    bool release;
    uint64_t number;
    char bytes[UNIT];
};

struct queue {
    std::vector<store> pending;
    std::unordered_map<uintptr_t, size_t> place; /* in pending, of the unit's store */
};

struct unit {
    int source;
    bool seen; /* by a look */
    bool release;
    uint64_t number;
};

queue queues[SIMT_DEVICES_MAX][SIMT_DEVICES_MAX]; /* [source][destination] */
size_t n_on_way[SIMT_DEVICES_MAX];                /* to a destination, of all sources */
std::unordered_map<uintptr_t, unit> units;
uint64_t sent[SIMT_DEVICES_MAX];                       /* stores of a device */
uint64_t told[SIMT_DEVICES_MAX][SIMT_DEVICES_MAX];     /* [who knows][of whom]: up to which number */
uint64_t n_event;
bool is_used;

uintptr_t unit_of(const void *p)
{
    return (uintptr_t)p / UNIT;
}

[[noreturn]] void fault(const char *what, const void *p, int device)
{
    const int owner = simt_owner(p);
    fprintf(stderr, "simt: race between devices: %s at %p, memory of device %d, by device %d\n",
            what, p, owner, device);
    abort();
}

void arrive(queue &q, int source, int device, size_t i)
{
    const store s = q.pending[i];
    n_on_way[device]--;
    memcpy(s.to, s.bytes, s.n);
    q.place.erase(unit_of(s.to));
    if (i + 1 < q.pending.size()) {
        q.pending[i] = q.pending.back();
        q.place[unit_of(q.pending[i].to)] = i;
    }
    q.pending.pop_back();
    units[unit_of(s.to)] = {source, false, s.release, s.number};
    n_event++;
}

void arrive_all(int source, int device)
{
    queue &q = queues[source][device];
    while (!q.pending.empty()) arrive(q, source, device, simt_random() % q.pending.size());
}

/* Before a device looks: nothing, some, or much of what is on its way arrives. */
void arrive_some(int device)
{
    for (int source = 0; source < SIMT_DEVICES_MAX; source++) {
        queue &q = queues[source][device];
        if (q.pending.empty() || simt_random() % 2) continue;
        size_t n = simt_random() % 4 ? simt_random() % 8 : simt_random() % (q.pending.size() + 1);
        for (; n && !q.pending.empty(); n--)
            arrive(q, source, device, simt_random() % q.pending.size());
    }
}

int owner_for(const void *p, int device)
{
    const int owner = simt_owner(p);
    if (owner < 0) fault("a store or look of a peer at no device's memory", p, device);
    if (!simt_reaches(device, owner)) fault("no peer access", p, device);
    return owner;
}

} // namespace

bool simt_link_has[SIMT_LINK_PAGES];

void simt_peer_store(void *to, const void *from, size_t n, bool release)
{
    const int device = simt_device(), owner = owner_for(to, device);
    if ((uintptr_t)to % n || n > UNIT) simt_fault("a store to a peer that is not aligned");
    is_used = true;
    *simt_link_page(to) = true;
    if (release) simt_link_flush(device, false);
    queue &q = queues[device][owner];
    auto before = q.place.find(unit_of(to));
    if (before != q.place.end()) arrive(q, device, owner, before->second);
    store s = {(char *)to, (uint8_t)n, release, ++sent[device], {}};
    memcpy(s.bytes, from, n);
    q.place[unit_of(to)] = q.pending.size();
    q.pending.push_back(s);
    n_on_way[owner]++;
    n_event++;
}

void simt_peer_load(void *out, const void *from, size_t n, bool acquire)
{
    const int device = simt_device();
    if (owner_for(from, device) != device) simt_fault("a look at another device's memory");
    if ((uintptr_t)from % n) simt_fault("a look that is not aligned");
    arrive_some(device);
    memcpy(out, from, n);
    auto at = units.find(unit_of(from));
    if (at == units.end()) return;
    unit &u = at->second;
    u.seen = true;
    uint64_t &known = told[device][u.source];
    if (acquire && u.release && u.number > known) known = u.number;
}

void simt_peer_fence(void)
{
    simt_link_flush(simt_device(), false);
}

void simt_link_flush(int device, bool only_own)
{
    for (int to = 0; to < SIMT_DEVICES_MAX; to++) {
        if (!only_own || to == device) arrive_all(device, to);
    }
}

uint64_t simt_link_events(void)
{
    return n_event;
}

void simt_link_forget(const void *p, size_t n)
{
    if (!is_used) return;
    for (int source = 0; source < SIMT_DEVICES_MAX; source++) simt_link_flush(source, false);
    for (auto at = units.begin(); at != units.end();) {
        const bool is_in = at->first >= unit_of(p) && at->first < unit_of((const char *)p + n);
        at = is_in ? units.erase(at) : std::next(at);
    }
}

void simt_link_plain(const void *p, size_t n, bool write)
{
    const int device = simt_device();
    for (uintptr_t u = unit_of(p); u <= unit_of((const char *)p + n - 1); u++) {
        if (write) {
            for (int source = 0; n_on_way[device] && source < SIMT_DEVICES_MAX; source++) {
                if (source != device && queues[source][device].place.count(u))
                    fault("a write over what a peer's store is on its way to", p, device);
            }
            units.erase(u);
            continue;
        }
        auto at = units.find(u);
        if (at == units.end() || at->second.source == device || at->second.seen) continue;
        if (at->second.number > told[device][at->second.source])
            fault("a read of what a peer has sent and not told of", p, device);
    }
}
