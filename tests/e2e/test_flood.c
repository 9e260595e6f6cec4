/* test_flood [clients] [rounds] - more streaming clients at once than the queue has room for
 *
 * Every client gets one of two answers: a stream that is whole, or 429 with Retry-After. None is
 * torn, and nothing is left in the server afterwards. Every round leaves as many open descriptors
 * as there were before it. The first two rounds show how large the buffers become that are kept;
 * after them no more memory is held. The engine is the scripted one, so the server is what is
 * tested; tests/e2e/test_pilot.py floods the program. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include "base/clock.h"
#include "support/patience.h"
#include "support/world.h"

enum {
    CLIENTS_MAX = 4000,
    TOKENS = 20,
    ROOM = 300,             /* requests that the engine takes */
    GROWTH_BYTES = 1 << 19, /* the allocator's threads cache what has been given back */
};

struct client {
    int fd;
    struct buf in;
    bool done;
};

static struct client clients[CLIENTS_MAX];
static struct pollfd polls[CLIENTS_MAX];
static size_t n_client = 1000;
static size_t n_round = 4;

/* What has been allocated and not given back; 0 with sanitizers, whose allocators do not tell. */
static size_t n_held_byte(void)
{
    struct mallinfo2 m = mallinfo2();
    return m.uordblks + m.hblkhd;
}

static size_t n_descriptor(void)
{
    size_t n = 0;
    DIR *dir = opendir("/proc/self/fd");
    assert_non_null(dir);
    while (readdir(dir)) n++;
    (void)closedir(dir);
    return n;
}

/* The server closes its ends a moment after the clients have closed theirs. */
static void wait_for_descriptors(size_t n)
{
    uint64_t end_us = 0;
    while (n_descriptor() != n && keep_waiting(&end_us)) {
    }
    assert_int_equal(n_descriptor(), n);
}

static void open_clients(const struct world *w)
{
    char body[256], request[512];
    chat_body(body, sizeof body, "first_ms=100;step_ms=10;repeat=20;say=x", ",\"stream\":true");
    int n = snprintf(request, sizeof request,
                     "POST " CHAT " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
                     "Content-Length: %zu\r\n\r\n%s",
                     strlen(body), body);
    for (size_t i = 0; i < n_client; i++) {
        struct http_client c;
        assert_true(http_client_open(&c, w->port));
        assert_true(http_client_send_bytes(&c, request, (size_t)n));
        (void)fcntl(c.fd, F_SETFL, O_NONBLOCK);
        clients[i] = (struct client){.fd = c.fd};
    }
}

/* Takes what has come; the answer is done when the server closes. */
static void take(struct client *c)
{
    char bytes[16384];
    ssize_t n;
    while ((n = recv(c->fd, bytes, sizeof bytes, 0)) > 0) {
        assert_int_equal(buf_add(&c->in, bytes, (size_t)n), FATHOM_OK);
    }
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
    c->done = true;
    (void)close(c->fd);
    c->fd = -1;
}

/* Until n answers are done. */
static void take_answers(size_t n)
{
    uint64_t end_us = 0;
    size_t n_done = 0;
    for (size_t i = 0; i < n_client; i++) n_done += clients[i].done;
    while (n_done < n) {
        for (size_t i = 0; i < n_client; i++) {
            polls[i] = (struct pollfd){.fd = clients[i].fd, .events = POLLIN};
        }
        if (!keep_waiting(&end_us))
            fail_msg("%zu of %zu clients wait", n_client - n_done, n_client);
        if (poll(polls, n_client, 1000) <= 0) continue;
        for (size_t i = 0; i < n_client; i++) {
            if (!polls[i].revents) continue;
            take(&clients[i]);
            n_done += clients[i].done;
        }
    }
}

static size_t count_text(const char *text, const char *part)
{
    size_t n = 0;
    for (const char *at = text; (at = strstr(at, part)); at++) n++;
    return n;
}

/* Returns whether the client was served; fails the test unless it was, whole, or was refused. */
static bool check(struct client *c, size_t i)
{
    const char *text = buf_str(&c->in);
    bool served = strncmp(text, "HTTP/1.1 200 ", 13) == 0;
    if (served) {
        size_t n = count_text(text, "\"content\":\"x\"");
        if (n != TOKENS || !strstr(text, "data: [DONE]\n\n\r\n0\r\n\r\n")) {
            fail_msg("client %zu: a torn stream of %zu tokens: %s", i, n, text);
        }
    } else if (strncmp(text, "HTTP/1.1 429 ", 13) != 0 || !strstr(text, "\r\nRetry-After: ") ||
               !strstr(text, "\"code\":\"server_busy\"}}")) {
        fail_msg("client %zu: neither served nor refused: %s", i, text);
    }
    buf_free(&c->in);
    return served;
}

/* One round; returns how many were served. With `held` the engine stands still until all but those
 * that have room have been refused; else it serves some while others come. */
static size_t flood(const struct world *w, bool held)
{
    size_t n_served = 0;
    fake_engine_stall(w->engine, held);
    open_clients(w);
    if (held) take_answers(n_client - ROOM);
    fake_engine_stall(w->engine, false);
    take_answers(n_client);
    for (size_t i = 0; i < n_client; i++) n_served += check(&clients[i], i);
    return n_served;
}

static void everyone_is_served_or_refused(void **state)
{
    (void)state;
    struct world w;
    size_t most = 0; /* bytes after one of the first two rounds */
    const struct server_options o = {.max_connections = CLIENTS_MAX, .stall_timeout_ms = 600000};
    const struct fake_options f = {.max_running = 64, .max_requests = ROOM};
    world_open(&w, &o, &f);
    size_t n_open = n_descriptor();
    for (size_t round = 0; round < n_round; round++) {
        bool held = round % 2 == 0;
        uint64_t begin_us = clock_now_us();
        size_t n_served = flood(&w, held);
        wait_for_count(w.engine, fake_engine_n_alive, 0);
        wait_for_descriptors(n_open);
        size_t now = n_held_byte();
        print_message("round %zu: %zu clients, %zu served, %zu refused, %.2f s, %zu bytes held\n",
                      round + 1, n_client, n_served, n_client - n_served,
                      (double)(clock_now_us() - begin_us) / 1e6, now);
        if (held) assert_int_equal(n_served, ROOM);
        assert_in_range(n_served, ROOM, n_client);
        if (round < 2 && now > most) most = now;
        if (round >= 2 && now > most + GROWTH_BYTES)
            fail_msg("%zu bytes more than after the first rounds", now - most);
    }
    world_close(&w);
}

int main(int argc, char **argv)
{
    if (argc > 1) n_client = strtoul(argv[1], NULL, 10);
    if (argc > 2) n_round = strtoul(argv[2], NULL, 10);
    if (n_client < ROOM || n_client > CLIENTS_MAX || n_round == 0) {
        (void)fprintf(stderr, "usage: test_flood [clients, %d to %d] [rounds]\n", ROOM,
                      CLIENTS_MAX);
        return 2;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(everyone_is_served_or_refused),
    };
    return cmocka_run_group_tests(tests, world_setup, world_teardown);
}
