/* test_page_exchange.c - records from the memory of one server to the tiers of another: over TCP,
 * and over UCX where it is */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/direct_file.h"
#include "base/mem.h"
#include "comm/page_peers.h"
#include "comm/page_service.h"
#include "comm/tcp_link.h"
#include "kv/tiers.h"
#include "support/patience.h"

enum { PAGE = 1000, N_RAM = 16 };

static struct world {
    struct page_shelf *shelf;
    struct page_service *service;
    struct page_peers *peers;
    struct tiers *tiers;
    uint32_t place;
    unsigned char pages[8][PAGE]; /* on the shelf */
    struct tier_name names[8];
    unsigned char device[PAGE];
    unsigned char *ram;
    uint64_t now_us;
} world;

static struct ucx *ucx; /* NULL: TCP */

static struct tier_name name_of(uint32_t i)
{
    struct tier_name n = {.key = {i * 7, i}, .n_id = KV_PAGE_TOKENS};
    for (int k = 0; k < KV_PAGE_TOKENS; k++) n.ids[k] = (int32_t)i;
    return n;
}

static fathom_err page_out(void *arg, uint32_t page, void *to)
{
    (void)arg;
    (void)page;
    memset(to, 5, PAGE);
    return FATHOM_OK;
}

static fathom_err page_in(void *arg, uint32_t page, const void *from)
{
    (void)page;
    memcpy(((struct world *)arg)->device, from, PAGE);
    return FATHOM_OK;
}

static void ignore(void *arg)
{
    (void)arg;
}

static int open_world(void **state)
{
    struct world *w = &world;
    const struct page_self self = {.page_bytes = PAGE, .ucx = ucx, .id = "a"};
    const struct page_peers_config peers = {.self = self, .n_lane = 2};
    memset(w, 0, sizeof *w);
    *state = w;
    if (page_shelf_create(&w->shelf, N_RAM) != FATHOM_OK) return 1;
    for (uint32_t i = 0; i < 8; i++) {
        w->names[i] = name_of(i);
        memset(w->pages[i], (int)i + 1, PAGE);
        page_shelf_put(w->shelf, i, &w->names[i], w->pages[i], hash_checksum(w->pages[i], PAGE));
    }
    const struct page_service_config service = {
        .self = self, .shelf = w->shelf, .host = "127.0.0.1"};
    if (page_service_create(&w->service, &service, NULL) != FATHOM_OK) return 1;
    if (page_peers_create(&w->peers, &peers, NULL) != FATHOM_OK) return 1;
    return page_peers_place(w->peers, "127.0.0.1", page_service_port(w->service), &w->place,
                            NULL) != FATHOM_OK;
}

static int open_tiers(void **state)
{
    struct world *w = &world;
    if (open_world(state)) return 1;
    w->ram = mem_alloc_aligned(DIRECT_ALIGN, N_RAM * (size_t)DIRECT_ALIGN);
    struct tiers_config c = {.page_bytes = PAGE,
                             .n_ram = N_RAM,
                             .ram = w->ram,
                             .step_bytes = 1000 * PAGE,
                             .device = {page_out, page_in, w}};
    const struct tier_io_config io = {.peers = page_peers_source(w->peers),
                                      .page_bytes = PAGE,
                                      .n_sum_thread = 1,
                                      .n_pull_thread = 2,
                                      .owner = {.done = ignore}};
    if (tier_io_create(&c.io, &io, NULL) != FATHOM_OK) return 1;
    return tiers_create(&w->tiers, &c, NULL) != FATHOM_OK;
}

static int close_world(void **state)
{
    struct world *w = *state;
    if (w->tiers) tiers_check(w->tiers);
    tiers_destroy(w->tiers);
    page_service_destroy(w->service);
    page_peers_destroy(w->peers);
    page_shelf_destroy(w->shelf);
    mem_free(w->ram);
    return 0;
}

static enum tier_verdict pull(struct world *w, const struct tier_name *name, unsigned char *page)
{
    struct page_source *s = page_peers_source(w->peers);
    uint64_t sum = 0;
    enum tier_verdict v = s->ops->read(s, 0, w->place, name, page, &sum, NULL);
    if (v == TIER_GOOD) assert_true(sum == hash_checksum(page, PAGE));
    return v;
}

static void a_record_comes_as_it_lies_there(void **state)
{
    struct world *w = *state;
    unsigned char page[PAGE];
    for (uint32_t i = 0; i < 8; i++) {
        assert_int_equal(pull(w, &w->names[i], page), TIER_GOOD);
        assert_memory_equal(page, w->pages[i], PAGE);
        for (int k = 0; k < 100000 && !page_shelf_is_done(w->shelf, i); k++) clock_sleep_us(100);
        assert_true(page_shelf_is_done(w->shelf, i)); /* it is noted behind the last byte */
    }
    assert_int_equal(page_shelf_n_sent(w->shelf), 8);
    struct tier_name other = w->names[3]; /* the same key, another token */
    other.ids[5]++;
    assert_int_equal(pull(w, &other, page), TIER_NOT_YET);
    w->pages[2][77] ^= 1;
    (void)page_shelf_n_sent(w->shelf); /* by its lock whoever sends sees that */
    assert_int_equal(pull(w, &w->names[2], page), TIER_BAD_CHECKSUM);
    assert_int_equal(pull(w, &w->names[4], page), TIER_GOOD);
}

static void who_says_nothing_takes_no_place(void **state)
{
    struct world *w = *state;
    struct page_link *silent[SERVICE_LINKS_MAX];
    unsigned char page[PAGE];
    for (int i = 0; i < SERVICE_LINKS_MAX; i++) {
        assert_int_equal(tcp_link_dial(&silent[i], "127.0.0.1", page_service_port(w->service),
                                       clock_now_us() + PEER_PAGE_US, -1, NULL),
                         FATHOM_OK);
    }
    assert_int_equal(pull(w, &w->names[1], page), TIER_GOOD);
    for (int i = 0; i < SERVICE_LINKS_MAX; i++) silent[i]->ops->close(silent[i]);
}

static void who_begins_to_greet_takes_no_place_of_others(void **state)
{
    struct world *w = *state;
    enum { N = 2 * SERVICE_LINKS_MAX };
    struct page_link *half[N];
    unsigned char page[PAGE], byte;
    const struct link_part magic = {"fvkg", FRAME_MAGIC_BYTES};
    const uint64_t end_us = clock_now_us() + 120000000;
    assert_int_equal(pull(w, &w->names[0], page), TIER_GOOD); /* has greeted */
    for (int i = 0; i < N; i++) {
        assert_int_equal(tcp_link_dial(&half[i], "127.0.0.1", page_service_port(w->service),
                                       clock_now_us() + PEER_PAGE_US, -1, NULL),
                         FATHOM_OK);
        (void)half[i]->ops->send(half[i], &magic, 1, end_us, NULL);
    }
    struct page_source *s = page_peers_source(w->peers);
    uint64_t sum; /* by a connection that is made now */
    assert_int_equal(s->ops->read(s, 1, w->place, &w->names[1], page, &sum, NULL), TIER_GOOD);
    assert_int_equal(pull(w, &w->names[2], page), TIER_GOOD); /* by the one that was there */
    assert_int_equal(half[0]->ops->receive(half[0], &byte, 1, end_us, NULL), FATHOM_EIO);
    for (int i = 0; i < N; i++) half[i]->ops->close(half[i]);
}

/* A frame that is begun is ended within a time, whoever begins it. */
static void who_stops_within_a_frame_keeps_no_place(void **state)
{
    struct world *w = *state;
    const struct page_self self = {.page_bytes = PAGE, .ucx = ucx, .id = "b"};
    struct page_link *half[SERVICE_LINKS_MAX];
    struct page_hello peer;
    unsigned char page[PAGE], byte;
    const struct link_part magic = {"fvkg", FRAME_MAGIC_BYTES};
    const uint64_t end_us = clock_now_us() + 120000000;
    for (int i = 0; i < SERVICE_LINKS_MAX; i++) {
        assert_int_equal(
            tcp_link_dial(&half[i], "127.0.0.1", page_service_port(w->service), end_us, -1, NULL),
            FATHOM_OK);
        assert_int_equal(page_greet(&half[i], &self, &peer, end_us, NULL), FATHOM_OK);
        assert_int_equal(half[i]->ops->send(half[i], &magic, 1, end_us, NULL), FATHOM_OK);
    }
    for (int i = 0; i < SERVICE_LINKS_MAX; i++) {
        assert_int_equal(half[i]->ops->receive(half[i], &byte, 1, end_us, NULL), FATHOM_EIO);
        assert_true(clock_now_us() < end_us);
        half[i]->ops->close(half[i]);
    }
    uint64_t until_us = 0; /* a place is free a moment after its connection is closed */
    while (pull(w, &w->names[1], page) != TIER_GOOD) assert_true(keep_waiting(&until_us));
}

static void a_pool_is_asked_how_much_of_a_prompt_it_has(void **state)
{
    struct world *w = *state;
    struct hash128 keys[10];
    for (uint32_t i = 0; i < 10; i++) keys[i] = name_of(i).key;
    assert_int_equal(page_peers_find(w->peers, w->place, keys, 10), 8);
    assert_int_equal(page_peers_find(w->peers, w->place, keys + 9, 1), 0);
    assert_true(page_shelf_remove(w->shelf, 4));
    assert_int_equal(page_peers_find(w->peers, w->place, keys, 10), 4);
    page_service_destroy(w->service);
    w->service = NULL;
    assert_int_equal(page_peers_find(w->peers, w->place, keys, 10), 0);
}

enum { N_ASK = 8 };

struct asker {
    struct page_peers *peers;
    uint32_t place;
    pthread_t thread;
};

static void *ask(void *arg)
{
    struct asker *a = arg;
    const struct hash128 key = {1, 2};
    return (void *)(uintptr_t)page_peers_find(a->peers, a->place, &key, 1);
}

/* Connections that were made to it; each is ended by the other side. */
static int count_dials(int fd)
{
    int n = 0, s;
    while ((s = accept(fd, NULL, NULL)) >= 0) {
        (void)close(s);
        n++;
    }
    return n;
}

static void who_waits_for_a_server_that_hangs_waits_once(void **state)
{
    struct world *w = *state;
    struct asker askers[N_ASK];
    uint32_t place;
    uint16_t port;
    int fd;
    void *n_found;
    assert_int_equal(tcp_link_listen("127.0.0.1", 0, &fd, &port, NULL), FATHOM_OK);
    assert_int_equal(page_peers_place(w->peers, "127.0.0.1", port, &place, NULL), FATHOM_OK);
    for (int i = 0; i < N_ASK; i++) {
        askers[i] = (struct asker){.peers = w->peers, .place = place};
        assert_int_equal(pthread_create(&askers[i].thread, NULL, ask, &askers[i]), 0);
    }
    for (int i = 0; i < N_ASK; i++) {
        assert_int_equal(pthread_join(askers[i].thread, &n_found), 0);
        assert_null(n_found);
    }
    assert_in_range(count_dials(fd), 1, N_ASK - 1); /* one, if they begin within 2 s */
    (void)close(fd);
}

static void what_is_read_keeps_its_memory(void **state)
{
    struct world *w = *state;
    struct shelf_page page;
    assert_true(page_shelf_take(w->shelf, &w->names[1], &page));
    assert_ptr_equal(page.page, w->pages[1]);
    assert_false(page_shelf_remove(w->shelf, 1));
    page_shelf_give(w->shelf, 1, false);
    assert_false(page_shelf_is_done(w->shelf, 1));
    assert_true(page_shelf_remove(w->shelf, 1));
    assert_true(page_shelf_remove(w->shelf, 1));
    assert_false(page_shelf_take(w->shelf, &w->names[1], &page));
}

static enum tier_answer restore(struct world *w, uint32_t i, const struct tier_peer *peer)
{
    const struct tier_name name = name_of(i);
    enum tier_answer a = TIER_WAIT;
    for (int k = 0; a == TIER_WAIT && k < 100000; k++) {
        tiers_begin_step(w->tiers, ++w->now_us, 0);
        a = tiers_restore(w->tiers, &name, 0, peer);
        tiers_synced(w->tiers);
        tiers_check(w->tiers);
        clock_sleep_us(100);
    }
    return a;
}

static void tiers_have_records_from_a_peer(void **state)
{
    struct world *w = *state;
    const struct tier_peer peer = {.place = w->place, .pull = 11};
    assert_int_equal(restore(w, 3, NULL), TIER_GONE);
    for (uint32_t i = 0; i < 8; i++) {
        assert_int_equal(restore(w, i, &peer), TIER_RESTORED);
        assert_memory_equal(w->device, w->pages[i], PAGE);
    }
    assert_int_equal(restore(w, 3, NULL), TIER_RESTORED); /* it is here now */
    assert_int_equal(tiers_get_stats(w->tiers)->n_pulled, 8);
    tiers_give_up(w->tiers, peer.pull);
    assert_int_equal(restore(w, 9, &peer), TIER_GONE);
    assert_int_equal(tiers_get_stats(w->tiers)->n_pull_lost, 1);
    const struct tier_name name = name_of(10); /* who has lost one asks for no other */
    assert_false(tiers_read_ahead(w->tiers, &name, &peer));
}

/* It is asked for again, less and less often, with no other one meanwhile; and the server says how
 * long it may take. */
static void a_record_that_is_not_there_yet_is_asked_for_again(void **state)
{
    struct world *w = *state;
    const struct tier_peer peer = {.place = w->place, .pull = 12};
    const struct tier_name name = name_of(3), next = name_of(4);
    assert_true(page_shelf_remove(w->shelf, 3));
    page_service_note_busy(w->service, 7000000);
    uint64_t n_asked = 0;
    for (int k = 0; k < 2000; k++) {
        w->now_us += 1000;
        tiers_begin_step(w->tiers, w->now_us, 0);
        assert_int_equal(tiers_restore(w->tiers, &name, 0, &peer), TIER_WAIT);
        if (tiers_find(w->tiers, &name.key) != TIER_NOWHERE) n_asked++;
        for (int i = 0; tiers_find(w->tiers, &name.key) != TIER_NOWHERE && i < 100000; i++) {
            clock_sleep_us(20);
            tiers_begin_step(w->tiers, w->now_us, 0);
        }
        assert_true(tiers_pulls_again(w->tiers));
        assert_false(tiers_read_ahead(w->tiers, &next, &peer));
        tiers_check(w->tiers);
    }
    assert_in_range(n_asked, 80,
                    92); /* every 2 ms, then after an eighth of the time, every 32 ms */
    assert_in_range(tiers_pull_until_us(w->tiers, w->place), w->now_us + 14000000 - TIER_AGAIN_US,
                    w->now_us + 14000000);
    assert_int_equal(tiers_pull_until_us(w->tiers, w->place + 1), 0);
    assert_int_equal(tiers_get_stats(w->tiers)->n_pull_lost, 0);
    page_shelf_put(w->shelf, 3, &w->names[3], w->pages[3], hash_checksum(w->pages[3], PAGE));
    w->now_us += TIER_AGAIN_US;
    assert_int_equal(restore(w, 3, &peer), TIER_RESTORED);
    assert_false(tiers_pulls_again(w->tiers));
    assert_true(tiers_read_ahead(w->tiers, &next, &peer));
}

/* Two wait for one record, in steps so long that the first one always asks again before the second:
 * what the server says of itself holds for both. */
static void who_never_asks_knows_what_others_were_told(void **state)
{
    struct world *w = *state;
    const struct tier_peer first = {.place = w->place, .pull = 12},
                           second = {.place = w->place, .pull = 13};
    const struct tier_name name = name_of(9);
    page_service_note_busy(w->service, 7000000);
    for (int k = 0; k < 50; k++) {
        w->now_us += 2 * TIER_AGAIN_US;
        tiers_begin_step(w->tiers, w->now_us, 0);
        assert_int_equal(tiers_restore(w->tiers, &name, 0, &first), TIER_WAIT);
        assert_int_equal(tiers_restore(w->tiers, &name, 0, &second), TIER_WAIT);
        for (int i = 0; tiers_find(w->tiers, &name.key) != TIER_NOWHERE && i < 100000; i++) {
            clock_sleep_us(20);
            tiers_begin_step(w->tiers, w->now_us, 0);
        }
        assert_in_range(tiers_pull_until_us(w->tiers, second.place), w->now_us + 14000000,
                        w->now_us + 14000000);
    }
    tiers_give_up(w->tiers, first.pull); /* what a lost one was told counts no more */
    assert_int_equal(tiers_pull_until_us(w->tiers, second.place), 0);
}

static void a_server_that_takes_longer_than_it_said_says_so(void **state)
{
    struct world *w = *state;
    struct page_source *s = page_peers_source(w->peers);
    const struct tier_name unknown = name_of(99);
    unsigned char page[PAGE];
    uint64_t busy_us = 1;
    for (uint64_t told_us = 0; told_us <= 1000; told_us += 1000) {
        page_service_note_busy(w->service, told_us);
        clock_sleep_us(20000);
        assert_int_equal(s->ops->read(s, 0, w->place, &unknown, page, &busy_us, NULL),
                         TIER_NOT_YET);
        if (told_us == 0) assert_int_equal(busy_us, 0);
    }
    assert_true(busy_us >= 20000);
    page_service_note_busy(w->service, 3600000000);
    assert_int_equal(s->ops->read(s, 0, w->place, &unknown, page, &busy_us, NULL), TIER_NOT_YET);
    assert_int_equal(busy_us, 3600000000);
}

/* Memory of leased records is given up after that of others; once sent, or in time, it is not. */
static void a_record_is_lent_until_it_is_sent_or_its_time_is_over(void **state)
{
    struct world *w = *state;
    struct shelf_page page;
    page_shelf_lend(w->shelf, 9, 50, 0); /* nothing is there */
    assert_int_equal(page_shelf_n_lent(w->shelf, 0), 0);
    static const uint64_t ends[] = {50, 20, 40, 30, 60, 10};
    for (uint32_t i = 0; i < 6; i++) page_shelf_lend(w->shelf, i, ends[i], 0);
    assert_int_equal(page_shelf_n_lent(w->shelf, 9), 6);
    assert_int_equal(page_shelf_n_lent(w->shelf, 30), 3); /* 0, 2 and 4 are left */
    assert_true(page_shelf_take(w->shelf, &w->names[4], &page));
    page_shelf_give(w->shelf, 4, false); /* the reader was lost */
    assert_int_equal(page_shelf_n_lent(w->shelf, 30), 3);
    assert_true(page_shelf_take(w->shelf, &w->names[4], &page));
    page_shelf_give(w->shelf, 4, true);
    assert_int_equal(page_shelf_n_lent(w->shelf, 30), 2);
    page_shelf_lend(w->shelf, 4, 70, 0); /* it is asked for once more */
    assert_false(page_shelf_is_done(w->shelf, 4));
    page_shelf_lend(w->shelf, 0, 80, 0);
    assert_true(page_shelf_remove(w->shelf, 2));
    assert_int_equal(page_shelf_n_lent(w->shelf, 69), 2);
    assert_int_equal(page_shelf_n_lent(w->shelf, 70), 1);
    assert_int_equal(page_shelf_n_lent(w->shelf, 80), 0);
}

/* Tells the server that records 0 .. n - 1 are not wanted, and waits until it knows of the last. */
static void release(struct world *w, uint32_t n)
{
    struct page_source *s = page_peers_source(w->peers);
    for (uint32_t i = 0; i < n; i++) s->ops->release(s, w->place, &w->names[i].key);
    for (int k = 0; k < 100000 && !page_shelf_is_done(w->shelf, n - 1); k++) clock_sleep_us(100);
    assert_true(page_shelf_is_done(w->shelf, n - 1));
}

static void a_reader_that_leaves_ends_the_leases_of_its_records(void **state)
{
    struct world *w = *state;
    struct page_source *s = page_peers_source(w->peers);
    unsigned char page[PAGE];
    for (uint32_t i = 0; i < 8; i++) page_shelf_lend(w->shelf, i, 50, 0);
    const struct hash128 unknown = name_of(99).key;
    s->ops->release(s, w->place, &unknown);
    release(w, 5);
    assert_int_equal(page_shelf_n_lent(w->shelf, 0), 3);
    assert_int_equal(page_shelf_n_released(w->shelf), 5);
    release(w, 5); /* once more: nothing changes */
    assert_int_equal(page_shelf_n_lent(w->shelf, 0), 3);
    assert_int_equal(page_shelf_n_released(w->shelf), 5);
    assert_int_equal(pull(w, &w->names[2], page), TIER_GOOD); /* it is there as it was */
    page_shelf_lend(w->shelf, 2, 50, 0);                      /* and asked for anew */
    assert_int_equal(page_shelf_n_lent(w->shelf, 0), 4);
    /* more than the ring has place for: those beyond are left to their leases */
    for (uint32_t i = 0; i < 3 * PEERS_RELEASES_MAX; i++) {
        const struct hash128 key = {i, i};
        s->ops->release(s, w->place, &key);
    }
    assert_int_equal(page_peers_find(w->peers, w->place, &w->names[0].key, 1), 1);
    page_service_destroy(w->service); /* nobody is told, and nothing waits */
    w->service = NULL;
    s->ops->release(s, w->place, &unknown);
}

/* A record that is still being computed is not lent once it is there: its reader has left. */
static void a_record_may_be_released_before_it_is_there(void **state)
{
    struct world *w = *state;
    const struct tier_name *name = &w->names[3];
    for (int k = 0; k < 2; k++) {
        assert_true(page_shelf_remove(w->shelf, 3));
        page_shelf_release(w->shelf, &name->key, 100);
        page_shelf_put(w->shelf, 3, name, w->pages[3], hash_checksum(w->pages[3], PAGE));
        page_shelf_lend(w->shelf, 3, 500, k == 0 ? 99 : 100);
        assert_int_equal(page_shelf_n_lent(w->shelf, 101), k); /* the second one comes too late */
        assert_int_equal(page_shelf_is_done(w->shelf, 3), k == 0);
        page_shelf_lend(w->shelf, 3, 500, 100); /* known once: another reader wants it */
        assert_int_equal(page_shelf_n_lent(w->shelf, 101), 1);
    }
    assert_int_equal(page_shelf_n_released(w->shelf), 1);
    /* of two keys in one place the later one is known */
    const struct hash128 other = {name->key.lo + SHELF_RELEASED_MAX, 1};
    assert_true(page_shelf_remove(w->shelf, 3));
    page_shelf_release(w->shelf, &name->key, 100);
    page_shelf_release(w->shelf, &other, 100);
    page_shelf_put(w->shelf, 3, name, w->pages[3], hash_checksum(w->pages[3], PAGE));
    page_shelf_lend(w->shelf, 3, 500, 1);
    assert_int_equal(page_shelf_n_lent(w->shelf, 101), 1);
    /* who asks changes nothing */
    for (int k = 0; k < 2; k++) assert_true(page_shelf_is_released(w->shelf, &other, 99));
    assert_false(page_shelf_is_released(w->shelf, &other, 100));
    assert_false(page_shelf_is_released(w->shelf, &name->key, 99));
    assert_int_equal(page_shelf_n_noted(w->shelf), 4);
}

/* Servers that are started anew have other addresses each time. */
static void more_servers_may_come_than_there_are_places(void **state)
{
    struct world *w = *state;
    unsigned char page[PAGE];
    uint32_t place, again;
    page_peers_keep(w->peers); /* the one that there is */
    for (uint32_t i = 0; i < 3 * PEERS_MAX; i++) {
        uint16_t port = (uint16_t)(2000 + i);
        assert_int_equal(page_peers_place(w->peers, "127.0.0.2", port, &place, NULL), FATHOM_OK);
        assert_in_range(place, 1, PEERS_MAX - 1);
        assert_int_equal(page_peers_place(w->peers, "127.0.0.2", port, &again, NULL), FATHOM_OK);
        assert_int_equal(again, place);
        clock_sleep_us(2);
    }
    assert_int_equal(pull(w, &w->names[2], page), TIER_GOOD);
    page_peers_keep(w->peers);
    assert_int_equal(page_peers_place(w->peers, "127.0.0.3", 1, &place, NULL), FATHOM_ELIMIT);
    assert_int_equal(
        page_peers_place(w->peers, "127.0.0.1", page_service_port(w->service), &place, NULL),
        FATHOM_OK);
    assert_int_equal(place, w->place);
}

static void a_lease_keeps_memory_until_it_is_sent(void **state)
{
    struct world *w = *state;
    struct tiers_config c = {.page_bytes = PAGE,
                             .n_ram = N_RAM,
                             .step_bytes = 1000 * PAGE,
                             .device = {page_out, page_in, w}};
    const struct tier_io_config io = {
        .page_bytes = PAGE, .n_sum_thread = 1, .owner = {.done = ignore}};
    w->ram = c.ram = mem_alloc_aligned(DIRECT_ALIGN, N_RAM * (size_t)DIRECT_ALIGN);
    assert_int_equal(page_shelf_create(&c.shelf, N_RAM), FATHOM_OK);
    assert_int_equal(tier_io_create(&c.io, &io, NULL), FATHOM_OK);
    assert_int_equal(tiers_create(&w->tiers, &c, NULL), FATHOM_OK);
    const struct tier_name leased[2] = {name_of(100), name_of(101)};
    w->now_us = 1000;
    for (uint32_t i = 100; i < 200; i++) {
        const struct tier_name name = name_of(i);
        tiers_begin_step(w->tiers, w->now_us, 0);
        tiers_keep(w->tiers, &name, 0, true);
        tiers_synced(w->tiers);
        if (i < 102) assert_true(tiers_lease(w->tiers, &name.key, 5000, true));
        if (i == 102) assert_true(tiers_lease(w->tiers, &name.key, 5000, false));
        for (int k = 0; k < 100000 && page_shelf_count(c.shelf, &name.key, 1) == 0; k++) {
            clock_sleep_us(100);
            tiers_begin_step(w->tiers, w->now_us, 0);
        }
        tiers_check(w->tiers);
        uint32_t n_lent = i < 101 ? 1 : i < 151 ? 2 : i < 181; /* what is new and leased */
        assert_int_equal(page_shelf_n_lent(c.shelf, w->now_us), n_lent);
        if (i == 150) { /* the first one is sent */
            struct shelf_page page;
            assert_int_equal(tiers_find(w->tiers, &leased[0].key), TIER_IN_RAM);
            assert_true(page_shelf_take(c.shelf, &leased[0], &page));
            page_shelf_give(c.shelf, page.place, true);
        }
        if (i == 180) {
            assert_int_equal(tiers_find(w->tiers, &leased[0].key), TIER_NOWHERE);
            assert_int_equal(tiers_find(w->tiers, &leased[1].key), TIER_IN_RAM);
            w->now_us = 5000; /* the other one's time is over */
        }
    }
    assert_int_equal(tiers_find(w->tiers, &leased[1].key), TIER_NOWHERE);
    tiers_destroy(w->tiers);
    w->tiers = NULL;
    page_shelf_destroy(c.shelf);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_record_comes_as_it_lies_there, open_world, close_world),
        cmocka_unit_test_setup_teardown(who_says_nothing_takes_no_place, open_world, close_world),
        cmocka_unit_test_setup_teardown(who_begins_to_greet_takes_no_place_of_others, open_world,
                                        close_world),
        cmocka_unit_test_setup_teardown(who_stops_within_a_frame_keeps_no_place, open_world,
                                        close_world),
        cmocka_unit_test_setup_teardown(a_pool_is_asked_how_much_of_a_prompt_it_has, open_world,
                                        close_world),
        cmocka_unit_test_setup_teardown(who_waits_for_a_server_that_hangs_waits_once, open_world,
                                        close_world),
        cmocka_unit_test_setup_teardown(what_is_read_keeps_its_memory, open_world, close_world),
        cmocka_unit_test_setup_teardown(tiers_have_records_from_a_peer, open_tiers, close_world),
        cmocka_unit_test_setup_teardown(a_record_that_is_not_there_yet_is_asked_for_again,
                                        open_tiers, close_world),
        cmocka_unit_test_setup_teardown(who_never_asks_knows_what_others_were_told, open_tiers,
                                        close_world),
        cmocka_unit_test_setup_teardown(a_record_is_lent_until_it_is_sent_or_its_time_is_over,
                                        open_world, close_world),
        cmocka_unit_test_setup_teardown(a_reader_that_leaves_ends_the_leases_of_its_records,
                                        open_world, close_world),
        cmocka_unit_test_setup_teardown(a_server_that_takes_longer_than_it_said_says_so, open_world,
                                        close_world),
        cmocka_unit_test_setup_teardown(a_record_may_be_released_before_it_is_there, open_world,
                                        close_world),
        cmocka_unit_test_setup_teardown(more_servers_may_come_than_there_are_places, open_world,
                                        close_world),
        cmocka_unit_test_setup_teardown(a_lease_keeps_memory_until_it_is_sent, open_world,
                                        close_world),
    };
    fathom_diag d = {{0}};
    int n_failed = cmocka_run_group_tests_name("TCP", tests, NULL, NULL);
    if (ucx_open(&ucx, &d) != FATHOM_OK) {
        printf("not run over UCX: %s\n", d.text);
        return n_failed;
    }
    n_failed += cmocka_run_group_tests_name("UCX", tests, NULL, NULL);
    ucx_close(ucx);
    return n_failed;
}
