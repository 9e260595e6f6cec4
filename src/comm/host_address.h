/* host_address.h - hosts that one launcher has started find host 0 without an address or a port
 *
 * Host 0 listens at a port that is free, and tells the others by PMIx (pmix_client.h) where that
 * is, with a token that it makes. One line: "ADDRESS PORT TOKEN", where TOKEN is 32 hexadecimal
 * digits, or - where hosts have been given one.
 */
#ifndef FATHOM_COMM_HOST_ADDRESS_H
#define FATHOM_COMM_HOST_ADDRESS_H

#include "base/stream_pass.h"
#include "fathom/err.h"

enum { HOST_NAME_BYTES = 256 };

/* Where host 0 is. */
struct host_address {
    char host[HOST_NAME_BYTES];
    uint16_t port;
    struct pool_secret token;
    int listen_fd; /* host 0's, which listens there; else -1 */
};

/* host_address_by_pmix - all hosts of a launch
 *
 *   a           token: the hosts' own, kept where it is set; the rest is written
 *   timeout_us  for all of them to come
 * Owns    a->listen_fd is the caller's.
 * Errors  EINVAL: the launcher has started other processes than these hosts. ENOTFOUND, EIO: as
 *         pmix_open; what is told is no such line. */
fathom_err host_address_by_pmix(struct host_address *a, uint32_t node_rank, uint32_t n_node,
                                uint64_t timeout_us, fathom_diag *d);

/* host_address_write - the line
 * host_address_read - of the line; a token that it has takes that of a
 * Errors  EFORMAT: it is no such line; a is undefined. */
enum { HOST_ADDRESS_BYTES = HOST_NAME_BYTES + 64 };
void host_address_write(char out[HOST_ADDRESS_BYTES], const struct host_address *a,
                        bool tells_token);
fathom_err host_address_read(struct host_address *a, const char *line, fathom_diag *d);

#endif
