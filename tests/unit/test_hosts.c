/* test_hosts.c - hosts that join, are refused, are lost and come back, over loopback */
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "comm/host_hub.h"
#include "comm/host_member.h"
#include "comm/tcp_link.h"
#include "support/patience.h"

enum { WORK_MAX = 4096, HANG_US = 120000000 };

static struct host_self self_of(uint32_t rank, uint32_t n_node)
{
    struct host_self s = {.node_rank = rank, .n_node = n_node};
    s.identity.model.bytes[0] = 1;
    (void)snprintf(s.build, sizeof s.build, "fathom 1");
    return s;
}

static struct host_hub *open_hub(const struct host_self *self, uint16_t port)
{
    struct host_hub *h = NULL;
    const struct host_hub_config c = {.self = *self, .host = "127.0.0.1", .port = port};
    assert_int_equal(host_hub_create(&h, &c, NULL), FATHOM_OK);
    return h;
}

static struct host_member *open_member(const struct host_self *self, uint16_t port)
{
    struct host_member *m = NULL;
    const struct host_member_config c = {
        .self = *self, .host = "127.0.0.1", .port = port, .work_max = WORK_MAX};
    assert_int_equal(host_member_create(&m, &c, NULL), FATHOM_OK);
    return m;
}

/* Until all are there. */
static void gather(struct host_hub *h)
{
    uint64_t end_us = 0;
    while (host_hub_gather(h, NULL) != FATHOM_OK) assert_true(keep_waiting(&end_us));
}

static void wait_for_loss(struct host_hub *h)
{
    uint64_t end_us = 0;
    while (host_hub_is_whole(h)) assert_true(keep_waiting(&end_us));
}

/* Pages are as many as all have room for; who has too few for one request is refused. */
static void a_host_may_have_room_for_fewer_pages(void **state)
{
    struct host_self zero = self_of(0, 2), one = self_of(1, 2);
    struct host_hub *h;
    fathom_diag d = {{0}};
    (void)state;
    zero.n_page = 20;
    one.n_page = 9;
    const struct host_hub_config c = {.self = zero, .host = "127.0.0.1", .n_page_min = 9};
    assert_int_equal(host_hub_create(&h, &c, NULL), FATHOM_OK);
    struct host_member *m = open_member(&one, host_hub_port(h));
    assert_int_equal(host_member_join(m, NULL), FATHOM_OK);
    gather(h);
    assert_int_equal(host_hub_n_page(h), 9);
    host_hub_end(h);
    assert_false(host_hub_is_whole(h));
    host_member_destroy(m);
    host_hub_destroy(h);
    assert_int_equal(host_hub_create(&h, &c, NULL), FATHOM_OK);
    one.n_page = 8;
    m = open_member(&one, host_hub_port(h));
    assert_int_equal(host_member_join(m, &d), FATHOM_EMISMATCH);
    assert_non_null(strstr(d.text, "memory: host 1 has room for 8 pages of the cache, and the "
                                   "longest request takes 9: free its memory, or give all hosts a "
                                   "smaller --max-model-len"));
    host_member_destroy(m);
    host_hub_destroy(h);
}

static void expect_go(struct host_member *m, uint64_t generation)
{
    struct host_frame f;
    unsigned char body[WORK_MAX];
    assert_int_equal(host_member_receive(m, &f, body, NULL), FATHOM_OK);
    assert_int_equal(f.type, HOST_GO);
    assert_int_equal(f.generation, generation);
}

static void a_host_joins_is_told_and_sends_over_its_data_lane(void **state)
{
    struct host_self zero = self_of(0, 2);
    zero.inner = (struct inner_port){8001, {1ull << 63, 7}};
    const struct host_self one = self_of(1, 2);
    struct host_hub *h = open_hub(&zero, 0);
    struct host_member *m = open_member(&one, host_hub_port(h));
    fathom_diag d = {{0}};
    struct host_frame f;
    unsigned char body[WORK_MAX], got[4];
    (void)state;
    assert_int_equal(host_hub_gather(h, &d), FATHOM_EPEER);
    assert_string_equal(d.text, "host 1 of 2 has not come");
    assert_int_equal(host_member_join(m, NULL), FATHOM_OK);
    assert_memory_equal(host_member_inner(m), &zero.inner, sizeof zero.inner);
    gather(h);
    assert_true(host_hub_is_whole(h));
    assert_int_equal(host_hub_generation(h), 1);
    expect_go(m, 1);
    const struct link_part parts[] = {{"ab", 2}, {"c", 1}};
    assert_int_equal(host_hub_tell(h, parts, 2), FATHOM_OK);
    assert_int_equal(host_member_receive(m, &f, body, NULL), FATHOM_OK);
    assert_int_equal(f.type, HOST_WORK);
    assert_int_equal(f.n_body, 3);
    assert_memory_equal(body, "abc", 3);
    struct page_link *near = host_hub_data(h, 1), *far = host_member_data(m);
    const struct link_part sums = {"sums", 4};
    assert_int_equal(far->ops->send(far, &sums, 1, clock_now_us() + HANG_US, NULL), FATHOM_OK);
    assert_int_equal(near->ops->receive(near, got, 4, clock_now_us() + HANG_US, NULL), FATHOM_OK);
    assert_memory_equal(got, "sums", 4);
    host_member_destroy(m);
    host_hub_destroy(h);
}

/* A host that is refused, and the line that says why. */
static void expect_refusal(const struct host_self *zero, const struct host_self *other,
                           const char *why)
{
    struct host_hub *h = open_hub(zero, 0);
    struct host_member *m = open_member(other, host_hub_port(h));
    fathom_diag d = {{0}};
    char text[FATHOM_DIAG_BYTES];
    (void)snprintf(text, sizeof text, "host 0 at 127.0.0.1:%u: %s", host_hub_port(h), why);
    assert_int_equal(host_member_join(m, &d), FATHOM_EMISMATCH);
    assert_string_equal(d.text, text);
    assert_int_equal(host_hub_gather(h, NULL), FATHOM_EPEER);
    host_member_destroy(m);
    host_hub_destroy(h);
}

static void each_difference_is_named(void **state)
{
    const struct host_self zero = self_of(0, 2), one = self_of(1, 2);
    (void)state;
    struct host_self other = one;
    (void)snprintf(other.build, sizeof other.build, "fathom 2");
    expect_refusal(&zero, &other, "build: host 1 runs fathom 2, host 0 fathom 1");
    other = one;
    other.identity.model.bytes[0] ^= 1;
    expect_refusal(&zero, &other,
                   "model: host 1 and host 0 have other weights or another config.json");
    other = one;
    other.identity.numerics.bytes[31] ^= 1;
    expect_refusal(
        &zero, &other,
        "numerics: host 1 and host 0 compute other bits (backend, processor, precision)");
    other = one;
    other.identity.layout.bytes[5] ^= 1;
    expect_refusal(&zero, &other,
                   "layout: host 1 and host 0 cut the model or limit steps in other ways: give "
                   "all hosts the same options, and where their memory differs --max-num-seqs");
    other = self_of(1, 3);
    expect_refusal(&zero, &other, "--nnodes: host 1 was given 3, host 0 2");
    other = one;
    pool_secret_set(&other.token, "abc", 3);
    expect_refusal(&zero, &other,
                   "token: host 1 has one and host 0 has none: give all hosts the same "
                   "FATHOM_CLUSTER_TOKEN");
    struct host_self secret = zero;
    pool_secret_set(&secret.token, "abd", 3);
    expect_refusal(&secret, &other, "token: host 0 has another one than host 1");
}

static void hosts_with_one_token_join(void **state)
{
    struct host_self zero = self_of(0, 2), one = self_of(1, 2);
    (void)state;
    pool_secret_set(&zero.token, "abc", 3);
    pool_secret_set(&one.token, "abc", 3);
    struct host_hub *h = open_hub(&zero, 0);
    struct host_member *m = open_member(&one, host_hub_port(h));
    assert_int_equal(host_member_join(m, NULL), FATHOM_OK);
    gather(h);
    host_hub_destroy(h);
    host_member_destroy(m);
}

static void a_host_that_comes_twice_is_refused_the_second_time(void **state)
{
    const struct host_self zero = self_of(0, 2), one = self_of(1, 2);
    struct host_hub *h = open_hub(&zero, 0);
    struct host_member *m = open_member(&one, host_hub_port(h));
    struct host_member *twin = open_member(&one, host_hub_port(h));
    fathom_diag d = {{0}};
    (void)state;
    assert_int_equal(host_member_join(m, NULL), FATHOM_OK);
    gather(h);
    assert_int_equal(host_member_join(twin, &d), FATHOM_EMISMATCH);
    assert_non_null(strstr(d.text, "--node-rank: host 1 is there already: give each host a "
                                   "number of its own"));
    assert_true(host_hub_is_whole(h));
    host_member_destroy(twin);
    host_member_destroy(m);
    host_hub_destroy(h);
}

static void a_port_in_use_is_one_line(void **state)
{
    const struct host_self zero = self_of(0, 2);
    struct host_hub *h = open_hub(&zero, 0), *second = NULL;
    const struct host_hub_config c = {.self = zero, .host = "127.0.0.1", .port = host_hub_port(h)};
    fathom_diag d = {{0}};
    (void)state;
    assert_int_equal(host_hub_create(&second, &c, &d), FATHOM_EIO);
    assert_non_null(strstr(d.text, "another program has it, choose another port"));
    assert_null(second);
    host_hub_destroy(h);
}

/* Three hosts: host 1 goes, host 2 is told and joins again, host 1 comes back. */
static void a_lost_host_is_named_and_the_others_join_anew(void **state)
{
    const struct host_self zero = self_of(0, 3), one = self_of(1, 3), two = self_of(2, 3);
    struct host_hub *h = open_hub(&zero, 0);
    struct host_member *a = open_member(&one, host_hub_port(h));
    struct host_member *b = open_member(&two, host_hub_port(h));
    fathom_diag d = {{0}};
    struct host_frame f;
    unsigned char body[WORK_MAX];
    char text[HOST_TEXT_MAX + 1];
    (void)state;
    assert_int_equal(host_member_join(a, NULL), FATHOM_OK);
    assert_int_equal(host_member_join(b, NULL), FATHOM_OK);
    gather(h);
    expect_go(a, 1);
    expect_go(b, 1);
    host_member_destroy(a);
    wait_for_loss(h);
    host_hub_fault(h, text);
    assert_string_equal(text, "host 1 of 3 is lost: it has ended");
    const struct link_part part = {"x", 1};
    assert_int_equal(host_hub_tell(h, &part, 1), FATHOM_EPEER);
    assert_int_equal(host_member_receive(b, &f, body, &d), FATHOM_EPEER);
    assert_string_equal(d.text, "host 1 of 3 is lost: it has ended");
    host_member_part(b, "it joins anew");
    assert_int_equal(host_hub_gather(h, NULL), FATHOM_EPEER);
    assert_int_equal(host_member_join(b, NULL), FATHOM_OK);
    assert_int_equal(host_hub_gather(h, NULL), FATHOM_EPEER);
    a = open_member(&one, host_hub_port(h));
    assert_int_equal(host_member_join(a, NULL), FATHOM_OK);
    gather(h);
    assert_int_equal(host_hub_generation(h), 2);
    host_hub_fault(h, text);
    assert_string_equal(text, "");
    expect_go(a, 2);
    expect_go(b, 2);
    host_member_destroy(b);
    host_member_destroy(a);
    host_hub_destroy(h);
}

struct joining {
    struct host_member *m;
    fathom_err err;
};

static void *join_main(void *arg)
{
    struct joining *j = arg;
    j->err = host_member_join(j->m, NULL);
    return NULL;
}

/* Host 0 sees late that it has left: its seat is taken when it comes again, by another one here. */
static void a_host_that_was_joined_is_patient_with_a_refusal(void **state)
{
    const struct host_self zero = self_of(0, 2), one = self_of(1, 2);
    struct host_hub *h = open_hub(&zero, 0);
    struct joining again = {.m = open_member(&one, host_hub_port(h))};
    struct host_member *other = open_member(&one, host_hub_port(h));
    pthread_t thread;
    (void)state;
    assert_int_equal(host_member_join(again.m, NULL), FATHOM_OK);
    gather(h);
    host_member_part(again.m, "test");
    wait_for_loss(h);
    assert_int_equal(host_hub_gather(h, NULL), FATHOM_EPEER);
    assert_int_equal(host_member_join(other, NULL), FATHOM_OK);
    gather(h);
    assert_int_equal(pthread_create(&thread, NULL, join_main, &again), 0);
    clock_sleep_us(300000);
    host_member_destroy(other);
    wait_for_loss(h);
    gather(h);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(again.err, FATHOM_OK);
    host_member_destroy(again.m);
    host_hub_destroy(h);
}

static void a_silent_host_is_lost(void **state)
{
    const struct host_self zero = self_of(0, 2), one = self_of(1, 2);
    struct host_hub *h = open_hub(&zero, 0);
    struct page_link *lanes[HOST_LANE_N];
    struct inner_port inner;
    char text[HOST_TEXT_MAX + 1];
    (void)state;
    for (int i = 0; i < HOST_LANE_N; i++) {
        const uint64_t end_us = clock_now_us() + HANG_US;
        assert_int_equal(tcp_link_dial(&lanes[i], "127.0.0.1", host_hub_port(h), end_us, -1, NULL),
                         FATHOM_OK);
        assert_int_equal(host_greet(lanes[i], &one, 5, (enum host_lane)i, &inner, end_us, NULL),
                         FATHOM_OK);
    }
    gather(h);
    wait_for_loss(h);
    host_hub_fault(h, text);
    assert_string_equal(text, "host 1 of 2 is lost: it took too long");
    for (int i = 0; i < HOST_LANE_N; i++) lanes[i]->ops->close(lanes[i]);
    host_hub_destroy(h);
}

/* In a process of its own: whether a byte comes in time. */
static int receive_in_child(uint16_t port, uint64_t timeout_us, int begun_fd)
{
    struct page_link *link = NULL;
    char byte = 0;
    const uint64_t end_us = clock_now_us() + HANG_US;
    if (tcp_link_dial(&link, "127.0.0.1", port, end_us, -1, NULL) != FATHOM_OK) return 1;
    if (write(begun_fd, &byte, 1) != 1) return 2;
    return link->ops->receive(link, &byte, 1, clock_now_us() + timeout_us, NULL) ? 3 : 0;
}

static void time_in_which_a_process_stands_still_is_not_waited(void **state)
{
    enum { TIMEOUT_US = 4000000, STOP_US = 5000000, LATER_US = 200000 };
    int fd, begun[2], status = -1;
    uint16_t port;
    char byte = 7;
    (void)state;
    assert_int_equal(tcp_link_listen("127.0.0.1", 0, &fd, &port, NULL), FATHOM_OK);
    assert_int_equal(pipe(begun), 0);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) _exit(receive_in_child(port, TIMEOUT_US, begun[1]));
    struct page_link *link = tcp_link_accept(fd, -1);
    assert_non_null(link);
    assert_int_equal(read(begun[0], &byte, 1), 1);
    clock_sleep_us(LATER_US); /* it waits */
    assert_int_equal(kill(child, SIGSTOP), 0);
    clock_sleep_us(STOP_US);
    assert_int_equal(kill(child, SIGCONT), 0);
    clock_sleep_us(LATER_US); /* its time would be over */
    const struct link_part part = {&byte, 1};
    assert_int_equal(link->ops->send(link, &part, 1, clock_now_us() + HANG_US, NULL), FATHOM_OK);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    link->ops->close(link);
    (void)close(fd);
    (void)close(begun[0]);
    (void)close(begun[1]);
}

struct stranger {
    uint16_t port;
    int stop_fd;
};

/* Says nothing, and is back as soon as it has been shown the door. */
static void *be_a_stranger(void *arg)
{
    const struct stranger *s = arg;
    struct page_link *link;
    char byte;
    const uint64_t end_us = clock_now_us() + HANG_US;
    while (tcp_link_dial(&link, "127.0.0.1", s->port, end_us, s->stop_fd, NULL) == FATHOM_OK) {
        (void)link->ops->receive(link, &byte, 1, end_us, NULL);
        link->ops->close(link);
    }
    return NULL;
}

static void strangers_that_say_nothing_hold_up_no_host(void **state)
{
    enum { N = 3 };
    const struct host_self zero = self_of(0, 2), one = self_of(1, 2);
    struct host_hub *h = open_hub(&zero, 0);
    struct host_member *m = open_member(&one, host_hub_port(h));
    struct stranger s = {host_hub_port(h), eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
    const uint64_t stop = 1;
    pthread_t threads[N];
    (void)state;
    for (int i = 0; i < N; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, be_a_stranger, &s), 0);
    assert_int_equal(host_member_join(m, NULL), FATHOM_OK);
    gather(h);
    expect_go(m, 1);
    assert_int_equal(write(s.stop_fd, &stop, sizeof stop), sizeof stop);
    host_member_destroy(m);
    host_hub_destroy(h); /* nobody listens any more */
    for (int i = 0; i < N; i++) assert_int_equal(pthread_join(threads[i], NULL), 0);
    (void)close(s.stop_fd);
}

/* How often `what` was logged. */
static unsigned count_logged(FILE *log, const char *what)
{
    char line[1024];
    unsigned n = 0;
    rewind(log);
    while (fgets(line, sizeof line, log)) n += strstr(line, what) != NULL;
    return n;
}

static void strangers_fill_no_log(void **state)
{
    enum { N = 5 * HOST_REFUSALS_TOLD };
    const struct host_self zero = self_of(0, 2);
    struct host_hub *h = open_hub(&zero, 0);
    FILE *log = tmpfile();
    const int saved = dup(STDERR_FILENO);
    static const char words[HOST_FRAME_BYTES + HOST_HELLO_BYTES] = "GET / HTTP/1.1";
    const struct link_part part = {words, sizeof words};
    const uint64_t end_us = clock_now_us() + HANG_US;
    char byte;
    (void)state;
    assert_true(log && saved >= 0 && dup2(fileno(log), STDERR_FILENO) >= 0);
    for (int i = 0; i < N; i++) {
        struct page_link *link;
        assert_int_equal(tcp_link_dial(&link, "127.0.0.1", host_hub_port(h), end_us, -1, NULL),
                         FATHOM_OK);
        assert_int_equal(link->ops->send(link, &part, 1, end_us, NULL), FATHOM_OK);
        assert_int_equal(link->ops->receive(link, &byte, 1, end_us, NULL), FATHOM_EIO);
        link->ops->close(link);
    }
    host_hub_destroy(h);
    assert_true(dup2(saved, STDERR_FILENO) >= 0);
    const unsigned n = count_logged(log, "a host was refused: it is no host of fathom's");
    assert_true(n >= HOST_REFUSALS_TOLD && n < N); /* once in each minute that this has taken */
    (void)fclose(log);
    (void)close(saved);
}

/* Of connected sockets of this process. */
static unsigned count_watched(int seconds)
{
    unsigned n = 0;
    for (int fd = 0; fd < 256; fd++) {
        struct sockaddr_storage at;
        socklen_t n_at = sizeof at, n_int = sizeof(int);
        int idle_s = 0, between_s = 0, n_probe = 0;
        if (getpeername(fd, (struct sockaddr *)&at, &n_at) != 0) continue;
        if (getsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, &n_int) != 0) continue;
        (void)getsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &between_s, &n_int);
        (void)getsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &n_probe, &n_int);
        n += idle_s + between_s * n_probe <= seconds;
    }
    return n;
}

static void a_link_whose_other_machine_is_gone_ends_though_it_is_idle(void **state)
{
    struct page_link *a, *b;
    const uint64_t end_us = clock_now_us() + HANG_US;
    const unsigned n_before = count_watched(30);
    uint16_t port;
    int fd;
    (void)state;
    assert_int_equal(tcp_link_listen("127.0.0.1", 0, &fd, &port, NULL), FATHOM_OK);
    assert_int_equal(tcp_link_dial(&a, "127.0.0.1", port, end_us, -1, NULL), FATHOM_OK);
    b = tcp_link_accept(fd, -1);
    assert_non_null(b);
    assert_int_equal(count_watched(30), n_before + 2);
    a->ops->close(a);
    b->ops->close(b);
    (void)close(fd);
}

static void who_speaks_comes_before_all_in_the_lobby(void **state)
{
    enum { N = TCP_LOBBY_MAX + 1 };
    struct page_link *silent[N], *speaks, *link;
    struct tcp_lobby lobby = {0};
    int fd, stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    uint16_t port;
    uint64_t end_us = 0;
    const uint64_t stop = 1, until_us = clock_now_us() + HANG_US;
    char word[4];
    const struct link_part half = {"wo", 2}, rest = {"rd", 2};
    (void)state;
    assert_int_equal(tcp_link_listen("127.0.0.1", 0, &fd, &port, NULL), FATHOM_OK);
    for (int i = 0; i < N; i++) {
        assert_int_equal(tcp_link_dial(&silent[i], "127.0.0.1", port, until_us, -1, NULL),
                         FATHOM_OK);
        assert_int_equal(silent[i]->ops->send(silent[i], &half, 1, until_us, NULL), FATHOM_OK);
    }
    assert_int_equal(tcp_link_dial(&speaks, "127.0.0.1", port, until_us, -1, NULL), FATHOM_OK);
    assert_int_equal(speaks->ops->send(speaks, &half, 1, until_us, NULL), FATHOM_OK);
    assert_int_equal(speaks->ops->send(speaks, &rest, 1, until_us, NULL), FATHOM_OK);
    link = tcp_link_accept_said(&lobby, fd, stop_fd, 4, HANG_US);
    assert_non_null(link);
    assert_int_equal(link->ops->receive(link, word, 4, until_us, NULL), FATHOM_OK);
    assert_memory_equal(word, "word", 4);
    link->ops->close(link);
    while (!tcp_link_is_broken(silent[1])) assert_true(keep_waiting(&end_us));
    assert_true(tcp_link_is_broken(silent[0])); /* two more came than there are places */
    assert_false(tcp_link_is_broken(silent[2]));
    silent[2]->ops->close(silent[2]);
    link = tcp_link_accept_said(&lobby, fd, stop_fd, 4, HANG_US); /* who has left is no stranger */
    assert_non_null(link);
    assert_int_equal(link->ops->receive(link, word, 4, until_us, NULL), FATHOM_EIO);
    link->ops->close(link);
    assert_int_equal(write(stop_fd, &stop, sizeof stop), sizeof stop);
    assert_null(tcp_link_accept_said(&lobby, fd, stop_fd, 4, HANG_US));
    assert_int_equal(lobby.n, 0);
    for (int i = 0; i < N; i++) {
        if (i != 2) silent[i]->ops->close(silent[i]);
    }
    speaks->ops->close(speaks);
    (void)close(fd);
    (void)close(stop_fd);
}

static void a_host_0_that_ends_is_joined_again_when_it_is_back(void **state)
{
    const struct host_self zero = self_of(0, 2), one = self_of(1, 2);
    struct host_hub *h = open_hub(&zero, 0);
    const uint16_t port = host_hub_port(h);
    struct host_member *m = open_member(&one, port);
    fathom_diag d = {{0}};
    struct host_frame f;
    unsigned char body[WORK_MAX];
    (void)state;
    assert_int_equal(host_member_join(m, NULL), FATHOM_OK);
    gather(h);
    expect_go(m, 1);
    host_hub_destroy(h);
    assert_int_equal(host_member_receive(m, &f, body, &d), FATHOM_EPEER);
    assert_string_equal(d.text, "host 0 has ended");
    host_member_part(m, "it joins anew");
    h = open_hub(&zero, port);
    assert_int_equal(host_member_join(m, NULL), FATHOM_OK);
    gather(h);
    expect_go(m, 1);
    host_member_stop(m);
    assert_int_equal(host_member_receive(m, &f, body, NULL), FATHOM_ECANCEL);
    host_member_destroy(m);
    host_hub_destroy(h);
}

static void a_host_that_is_to_end_stays_as_long_as_host_0_does(void **state)
{
    const struct host_self zero = self_of(0, 2), one = self_of(1, 2);
    struct host_hub *h = open_hub(&zero, 0);
    const uint16_t port = host_hub_port(h);
    const uint64_t signal = 1;
    struct host_frame f;
    unsigned char body[WORK_MAX];
    (void)state;
    for (int patient = 0; patient < 2; patient++) {
        struct host_member_config c = {.self = one,
                                       .host = "127.0.0.1",
                                       .port = port,
                                       .work_max = WORK_MAX,
                                       .end_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK),
                                       .end_after_us = patient ? HANG_US : 0};
        struct host_member *m = NULL;
        assert_true(c.end_fd > 0);
        assert_int_equal(host_member_create(&m, &c, NULL), FATHOM_OK);
        assert_int_equal(host_member_join(m, NULL), FATHOM_OK);
        gather(h);
        expect_go(m, 1 + (uint64_t)patient);
        assert_true(write(c.end_fd, &signal, sizeof signal) == sizeof signal);
        if (patient) { /* work comes, until host 0 has gone */
            const struct link_part part = {"a step", 6};
            assert_int_equal(host_hub_tell(h, &part, 1), FATHOM_OK);
            assert_int_equal(host_member_receive(m, &f, body, NULL), FATHOM_OK);
            assert_int_equal(f.type, HOST_WORK);
            host_hub_destroy(h);
        }
        assert_int_equal(host_member_receive(m, &f, body, NULL), FATHOM_ECANCEL);
        host_member_part(m, "it ends");
        if (patient) assert_int_equal(host_member_join(m, NULL), FATHOM_ECANCEL);
        host_member_destroy(m);
        (void)close(c.end_fd);
        if (patient) continue;
        wait_for_loss(h);
        assert_int_equal(host_hub_gather(h, NULL), FATHOM_EPEER); /* the seat is empty */
    }
}

static void a_frame_comes_back_and_any_bit_is_seen(void **state)
{
    unsigned char bytes[HOST_FRAME_BYTES];
    const struct host_frame in = {.type = HOST_WORK, .generation = 7, .n_body = 100};
    struct host_frame out;
    (void)state;
    host_frame_write(bytes, &in);
    assert_int_equal(host_frame_read(&out, bytes, 100, NULL), FATHOM_OK);
    assert_int_equal(out.generation, 7);
    assert_int_equal(host_frame_read(&out, bytes, 99, NULL), FATHOM_EFORMAT);
    for (unsigned i = 0; i < 8 * HOST_FRAME_BYTES; i++) {
        bytes[i / 8] ^= (unsigned char)(1u << i % 8);
        assert_int_equal(host_frame_read(&out, bytes, 100, NULL), FATHOM_EFORMAT);
        bytes[i / 8] ^= (unsigned char)(1u << i % 8);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_host_that_is_to_end_stays_as_long_as_host_0_does),
        cmocka_unit_test(a_frame_comes_back_and_any_bit_is_seen),
        cmocka_unit_test(a_host_joins_is_told_and_sends_over_its_data_lane),
        cmocka_unit_test(a_host_may_have_room_for_fewer_pages),
        cmocka_unit_test(each_difference_is_named),
        cmocka_unit_test(time_in_which_a_process_stands_still_is_not_waited),
        cmocka_unit_test(hosts_with_one_token_join),
        cmocka_unit_test(a_host_that_comes_twice_is_refused_the_second_time),
        cmocka_unit_test(a_port_in_use_is_one_line),
        cmocka_unit_test(a_lost_host_is_named_and_the_others_join_anew),
        cmocka_unit_test(a_host_that_was_joined_is_patient_with_a_refusal),
        cmocka_unit_test(a_silent_host_is_lost),
        cmocka_unit_test(strangers_that_say_nothing_hold_up_no_host),
        cmocka_unit_test(strangers_fill_no_log),
        cmocka_unit_test(a_link_whose_other_machine_is_gone_ends_though_it_is_idle),
        cmocka_unit_test(who_speaks_comes_before_all_in_the_lobby),
        cmocka_unit_test(a_host_0_that_ends_is_joined_again_when_it_is_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
