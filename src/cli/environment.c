/* environment.c - the only reader of environment variables */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"

/* A variable that is set to nothing counts as unset. */
static const char *variable(const char *name)
{
    const char *value = getenv(name);
    return value && *value ? value : NULL;
}

void environment_read(struct environment *e)
{
    memset(e, 0, sizeof *e);
    const char *hf_home = variable("HF_HOME");
    const char *home = variable("HOME");
    int n = 0;
    if (hf_home) {
        n = snprintf(e->hf_home, sizeof e->hf_home, "%s", hf_home);
    } else if (home) {
        n = snprintf(e->hf_home, sizeof e->hf_home, "%s/.cache/huggingface", home);
    }
    if (n < 0 || (size_t)n >= sizeof e->hf_home) e->hf_home[0] = '\0';
    e->api_key = variable("FATHOM_API_KEY");
    if (!e->api_key) e->api_key = variable("VLLM_API_KEY");
}
