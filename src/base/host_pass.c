/* host_pass.c - a number and a key as text */
#include "base/host_pass.h"

#include <stdio.h>
#include <string.h>

void host_pass_write(char out[HOST_PASS_BYTES], uint32_t host, const uint64_t key[2])
{
    (void)snprintf(out, HOST_PASS_BYTES, "%u-%016llx%016llx", host, (unsigned long long)key[0],
                   (unsigned long long)key[1]);
}

/* Takes as long wherever two texts of one length differ. */
bool host_pass_read(uint32_t *host, const char *text, uint32_t n_host, const uint64_t key[2])
{
    char want[HOST_PASS_BYTES];
    uint32_t n = 0;
    size_t n_digit = text ? strspn(text, "0123456789") : 0;
    if (n_digit == 0 || n_digit > 3) return false;
    for (size_t i = 0; i < n_digit; i++) n = 10 * n + (uint32_t)(text[i] - '0');
    if (n == 0 || n >= n_host) return false;
    host_pass_write(want, n, key);
    if (strlen(text) != strlen(want)) return false;
    unsigned char differs = 0;
    for (size_t i = 0; want[i]; i++) differs |= (unsigned char)(text[i] ^ want[i]);
    if (differs) return false;
    *host = n;
    return true;
}
