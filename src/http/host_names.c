/* host_names.c - compares what a client calls its server */
#include "http/host_names.h"

#include <arpa/inet.h>
#include <string.h>
#include <strings.h>

/* The n bytes before the port, and without the brackets of an address. */
static const char *name_of_host(const char *host, size_t *n)
{
    if (*host == '[') {
        *n = strcspn(host + 1, "]");
        return host + 1;
    }
    *n = strcspn(host, ":");
    return host;
}

static bool is_name(const char *name, size_t n, const char *other)
{
    return other && strlen(other) == n && strncasecmp(name, other, n) == 0;
}

bool host_names_take(const struct host_names *h, const char *host)
{
    char address[INET6_ADDRSTRLEN];
    unsigned char bytes[sizeof(struct in6_addr)];
    size_t n;
    if (!host || (!h->on_loopback && h->n_allowed == 0)) return true;
    const char *name = name_of_host(host, &n);
    if (is_name(name, n, "localhost") || is_name(name, n, h->host)) return true;
    for (size_t i = 0; i < h->n_allowed; i++) {
        if (strcmp(h->allowed[i], "*") == 0 || is_name(name, n, h->allowed[i])) {
            return true;
        }
    }
    if (n >= sizeof address) return false;
    memcpy(address, name, n);
    address[n] = '\0';
    return inet_pton(*host == '[' ? AF_INET6 : AF_INET, address, bytes) == 1;
}
