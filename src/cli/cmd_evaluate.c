/* cmd_evaluate.c - fathom evaluate: perplexity over texts, and the distance to another model */
#include <stdio.h>

#include "base/fail.h"
#include "cli/evaluation.h"

static fathom_err print_json(const struct evaluation *e)
{
    struct buf b = {0};
    fathom_err err = evaluation_json(&b, e);
    if (!err) printf("%s\n", buf_str(&b));
    buf_free(&b);
    return err;
}

fathom_err cmd_evaluate(const struct invocation *v, fathom_diag *d)
{
    struct model_source against = {0};
    struct evaluation e;
    struct settings other = *v->settings;
    struct evaluation_order order = {
        .settings = v->settings, .environment = v->environment, .model = v->model};
    if (other.against) {
        other.model = other.against;
        other.revision = NULL;
        TRY(model_source_find(&against, &other, v->environment, d));
        order.against = &against;
    }
    fathom_err err = evaluation_run(&e, &order, d);
    model_source_close(&against);
    if (err) return err;
    if (v->settings->json) return print_json(&e);
    evaluation_print(&e);
    return FATHOM_OK;
}
