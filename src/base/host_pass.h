/* host_pass.h - the header with which a host hands a client's request on to host 0 of its model
 *
 *   X-Fathom-Host: 1-0123456789abcdef0123456789abcdef
 *
 * The host's number, and the key that host 0 has told it. The request is for that host's lanes.
 * HOST_NAME_HEADER is the header Host that the client has sent, HOST_CLIENT_HEADER its address.
 */
#ifndef FATHOM_BASE_HOST_PASS_H
#define FATHOM_BASE_HOST_PASS_H

#include <stdbool.h>
#include <stdint.h>

#define HOST_PASS_HEADER "X-Fathom-Host"
#define HOST_NAME_HEADER "X-Forwarded-Host"
#define HOST_CLIENT_HEADER "X-Forwarded-For"

enum { HOST_PASS_BYTES = 48 }; /* of the header's value, at most, with a NUL */

/* host_pass_write - the header's value */
void host_pass_write(char out[HOST_PASS_BYTES], uint32_t host, const uint64_t key[2]);

/* host_pass_read - read a header's value
 *
 *   text  NULL: no pass
 * Returns whether it is of a host from 1 to n_host - 1 that knows the key; *host is set then. */
bool host_pass_read(uint32_t *host, const char *text, uint32_t n_host, const uint64_t key[2]);

#endif
