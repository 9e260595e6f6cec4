/* discover.c - one thread resolves all names
 *
 * Invariants: names are added before the thread starts and are its own from then on. `urls` of a
 * name are servers that it has added: those that were there before are not its to remove. */
#include "router/discover.h"

#include <netdb.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/fail.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/os.h"

enum { RESOLVE_MS = 2000 };

static const char prefix[] = "dns+";

struct url_list {
    char items[POOL_SERVERS_MAX][POOL_URL_BYTES];
    uint32_t n;
};

struct name {
    struct name *next;
    bool prefills;
    char host[POOL_URL_BYTES];
    char port[8];
    const char *scheme;
    struct url_list urls;
    int problem;       /* of the last lookup, which was told: as of getaddrinfo */
    bool has_too_many; /* which was told */
};

struct discover {
    struct pool *pool;
    struct name *names;
    int stop_fd; /* can be read once it is to end */
    pthread_t thread;
    bool has_thread;
};

fathom_err discover_create(struct discover **out, struct pool *pool)
{
    struct discover *v = mem_calloc(1, sizeof *v);
    *out = v;
    if (!v) return FATHOM_ENOMEM;
    v->pool = pool;
    v->stop_fd = -1;
    return FATHOM_OK;
}

void discover_destroy(struct discover *v)
{
    if (!v) return;
    if (v->has_thread) {
        (void)eventfd_write(v->stop_fd, 1);
        (void)pthread_join(v->thread, NULL);
    }
    while (v->names) {
        struct name *next = v->names->next;
        mem_free(v->names);
        v->names = next;
    }
    if (v->stop_fd >= 0) (void)close(v->stop_fd);
    mem_free(v);
}

bool discover_is_name(const char *url)
{
    return strncmp(url, prefix, sizeof prefix - 1) == 0;
}

/* Reads "dns+http://host:port". */
static bool read_name(struct name *name, const char *url)
{
    static const char *const schemes[] = {"http", "https"};
    const char *host = strstr(url, "://"), *colon = strrchr(url, ':');
    if (!discover_is_name(url) || !host || colon == host) return false;
    const char *scheme = url + sizeof prefix - 1;
    for (size_t i = 0; i < 2; i++) {
        size_t n = strlen(schemes[i]);
        if (n == (size_t)(host - scheme) && memcmp(scheme, schemes[i], n) == 0) {
            name->scheme = schemes[i];
        }
    }
    host += 3;
    size_t n_host = (size_t)(colon - host), n_port = strspn(colon + 1, "0123456789");
    if (!name->scheme || n_host == 0 || n_host >= sizeof name->host) return false;
    if (strcspn(host, "[]/?#@ \t\r\n\"\\<>:") != n_host) return false;
    long port = strtol(colon + 1, NULL, 10);
    if (colon[1 + n_port] != '\0' || n_port > 5 || port < 1 || port > 65535) return false;
    memcpy(name->host, host, n_host);
    memcpy(name->port, colon + 1, n_port + 1);
    return true;
}

fathom_err discover_add(struct discover *v, const char *url, bool prefills, fathom_diag *d)
{
    struct name *name = mem_calloc(1, sizeof *name);
    if (!name) return FATHOM_ENOMEM;
    if (!read_name(name, url)) {
        mem_free(name);
        FAIL(d, FATHOM_EINVAL,
             "\"%.200s\" is no name of servers, needed is dns+http://name:port or "
             "dns+https://name:port",
             url);
    }
    name->prefills = prefills;
    name->next = v->names;
    v->names = name;
    return FATHOM_OK;
}

static bool has_url(const struct url_list *l, const char *url)
{
    uint32_t i = 0;
    while (i < l->n && strcmp(l->items[i], url) != 0) i++;
    return i < l->n;
}

/* A server for each address, as a URL; false: there are more than a pool has places. */
static bool list_urls(struct url_list *out, const struct name *name, const struct addrinfo *list)
{
    out->n = 0;
    for (const struct addrinfo *a = list; a; a = a->ai_next) {
        char host[NI_MAXHOST], url[POOL_URL_BYTES];
        if (a->ai_family != list->ai_family ||
            getnameinfo(a->ai_addr, a->ai_addrlen, host, sizeof host, NULL, 0, NI_NUMERICHOST))
            continue;
        const char *form = strchr(host, ':') ? "%s://[%.64s]:%s" : "%s://%.64s:%s";
        (void)snprintf(url, sizeof url, form, name->scheme, host, name->port);
        if (has_url(out, url)) continue;
        if (out->n == POOL_SERVERS_MAX) return false;
        memcpy(out->items[out->n++], url, sizeof url);
    }
    return true;
}

/* Those that are gone first: the new ones may need their places. */
static void take_urls(struct discover *v, struct name *name, const struct url_list *now, bool fits)
{
    struct url_list *had = &name->urls;
    const bool is_tls = strcmp(name->scheme, "https") == 0;
    uint32_t n_before = had->n, n_gone = 0;
    for (uint32_t i = 0; i < had->n;) {
        if (has_url(now, had->items[i])) {
            i++;
            continue;
        }
        (void)pool_remove(v->pool, had->items[i], NULL); /* somebody else may have done so */
        memmove(had->items[i], had->items[--had->n], POOL_URL_BYTES);
        n_gone++;
    }
    for (uint32_t i = 0; i < now->n; i++) {
        const char *url = now->items[i];
        if (has_url(had, url)) continue;
        fathom_err err =
            pool_add_named(v->pool, url, is_tls ? name->host : "", name->prefills, NULL);
        if (err == FATHOM_ELIMIT) fits = false;
        if (err == FATHOM_OK) memcpy(had->items[had->n++], url, POOL_URL_BYTES);
    }
    uint32_t n_new = had->n + n_gone - n_before;
    if (n_gone + n_new > 0) {
        LOG_INFO("router", "%s:%s: %u servers, %u of them new, %u gone", name->host, name->port,
                 had->n, n_new, n_gone);
    }
    if (!fits && !name->has_too_many) {
        LOG_WARN("router", "%s:%s has more servers than there are places (%d in all)", name->host,
                 name->port, POOL_SERVERS_MAX);
    }
    name->has_too_many = !fits;
}

static void resolve(struct discover *v, struct name *name)
{
    const struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
    struct addrinfo *list = NULL;
    struct url_list now;
    int problem = getaddrinfo(name->host, NULL, &hints, &list);
    if (problem == 0) {
        bool fits = list_urls(&now, name, list);
        take_urls(v, name, &now, fits);
        freeaddrinfo(list);
    } else if (problem != name->problem) {
        LOG_WARN("router", "%s has no address: %s; its servers stay as they are", name->host,
                 gai_strerror(problem));
    }
    name->problem = problem;
}

static bool is_stopped(const struct discover *v)
{
    struct pollfd stop = {.fd = v->stop_fd, .events = POLLIN};
    return poll(&stop, 1, RESOLVE_MS) > 0;
}

static void *thread_main(void *arg)
{
    struct discover *v = arg;
    os_name_thread("names");
    do {
        for (struct name *name = v->names; name; name = name->next) resolve(v, name);
    } while (!is_stopped(v));
    return NULL;
}

fathom_err discover_start(struct discover *v, fathom_diag *d)
{
    if (!v->names) return FATHOM_OK;
    v->stop_fd = eventfd(0, EFD_CLOEXEC);
    v->has_thread = v->stop_fd >= 0 && pthread_create(&v->thread, NULL, thread_main, v) == 0;
    if (v->has_thread) return FATHOM_OK;
    FAIL(d, FATHOM_EIO, "no thread to resolve names with");
}
