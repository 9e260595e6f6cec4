/* cmd_health.c - fathom health: is the server of this machine ready? For images without a shell */
#include <stdio.h>
#include <string.h>

#include "base/fail.h"
#include "bench/http_target.h"
#include "cli/cli.h"

fathom_err cmd_health(const struct invocation *v, fathom_diag *d)
{
    const struct settings *s = v->settings;
    char url[512];
    struct buf body = {0};
    long status = 0;
    char near[64];
    (void)snprintf(near, sizeof near, "http://127.0.0.1:%.16s",
                   v->environment->port ? v->environment->port : "8000");
    const char *given = s->rest.n ? s->rest.items[0] : near;
    size_t n = strlen(given);
    while (n && given[n - 1] == '/') n--;
    if (n >= sizeof url) FAIL(d, FATHOM_EINVAL, "the address is longer than %zu", sizeof url - 1);
    (void)snprintf(url, sizeof url, "%.*s", (int)n, given);
    const struct http_target target = {
        .base_url = url, .insecure = s->router.insecure, .timeout_s = s->health_timeout};
    fathom_err err = http_get(&target, "/ready", &body, &status, d);
    if (!err && status != 200) {
        err = diag_fail(d, FATHOM_EIO, "%s/ready answers %ld: %.300s", url, status, buf_str(&body));
    }
    if (!err) print_row("ready", "%s", url);
    buf_free(&body);
    return err;
}
