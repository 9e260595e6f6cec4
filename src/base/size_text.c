/* size_text.c - decimal units, and digits in groups */
#include "base/size_text.h"

#include <stdio.h>

const char *size_text(char out[SIZE_TEXT_BYTES], uint64_t bytes)
{
    static const char *const units[] = {"bytes", "kB", "MB", "GB", "TB", "PB"};
    double value = (double)bytes;
    size_t unit = 0;
    while (value >= 999.95 && unit + 1 < sizeof units / sizeof units[0]) {
        value /= 1000;
        unit++;
    }
    (void)snprintf(out, SIZE_TEXT_BYTES, unit == 0 ? "%.0f %s" : "%.1f %s", value, units[unit]);
    return out;
}

const char *count_text(char out[SIZE_TEXT_BYTES], uint64_t n)
{
    char digits[SIZE_TEXT_BYTES];
    int len = snprintf(digits, sizeof digits, "%llu", (unsigned long long)n);
    char *p = out;
    for (int i = 0; i < len; i++) {
        if (i > 0 && (len - i) % 3 == 0) *p++ = ',';
        *p++ = digits[i];
    }
    *p = '\0';
    return out;
}
