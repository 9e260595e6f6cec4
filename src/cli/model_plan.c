/* model_plan.c - from the command line to a memory plan */
#include "cli/model_plan.h"

#include <stdio.h>
#include <string.h>

#include "backend/backend.h"
#include "base/fail.h"
#include "base/os.h"
#include "checkpoint/checkpoint.h"

/* The config, and the checkpoint it belongs to: NULL when MODEL is a config.json alone. */
static fathom_err open_model(struct checkpoint **c, struct model_config *config,
                             const struct invocation *v, fathom_diag *d)
{
    *c = NULL;
    if (v->model->is_config) {
        const fathom_bundle_file *file = &v->model->config_file;
        return model_config_parse(config, (const char *)file->data, file->size, d);
    }
    fathom_diag inner = {{0}};
    fathom_err err = model_source_open(c, v->model, v->settings, &inner);
    if (err == FATHOM_ENOTFOUND) {
        return diag_fail(d, err, "%s. To plan from config.json alone, add --load-format dummy",
                         inner.text);
    }
    if (err) return diag_fail(d, err, "%s", inner.text);
    TRY(model_config_load(config, *c, d));
    struct generation_config generation; /* what a start would read beside it */
    return generation_config_load(&generation, *c, config->n_vocab, d);
}

/* A GPU can be planned for where there is none, if its memory is given. */
static fathom_err name_memory(fathom_diag *d, fathom_err err, const fathom_diag *why)
{
    if (err)
        return diag_fail(d, err, "%s. To plan without the device, add --memory 141g", why->text);
    return FATHOM_OK;
}

static fathom_err check_devices(const struct engine_settings *s, fathom_diag *d)
{
    uint64_t bytes;
    uint32_t rank;
    fathom_diag inner = {{0}};
    return name_memory(d, memory_available(&bytes, &rank, s, &inner), &inner);
}

/* Before ways to cut a model are compared, all of which would say the same. */
static fathom_err check_gpu(const fathom_options *o, fathom_diag *d)
{
    struct cuda_device_info info;
    fathom_diag inner = {{0}};
    if (o->backend != FATHOM_BACKEND_CUDA) return FATHOM_OK;
    const int device = o->n_device > 0 ? o->devices[0] : 0;
    return name_memory(d, backend_cuda_query(&info, device, &inner), &inner);
}

/* The options with a layout that is given. */
static fathom_err resolve_layout(fathom_options *out, struct model_plan *p, const fathom_options *o,
                                 uint64_t available_bytes, bool compares, fathom_diag *d)
{
    fathom_options as = *o;
    const bool has_load = o->load.n_request > 0 || o->load.n_input > 0 || o->load.n_output > 0;
    const bool is_cut = o->world > 1 || o->data_parallel > 1;
    if (compares && has_load && o->layout == FATHOM_LAYOUT_GIVEN && !is_cut) {
        as.layout = FATHOM_LAYOUT_AUTO;
    } else if (compares && has_load && o->layout != FATHOM_LAYOUT_AUTO) {
        TRY(rank_layout_compare(&p->layout, o, &p->config, p->checkpoint, available_bytes, d));
        struct rank_layout none;
        as.load = (fathom_load){0};
        return rank_layout_resolve(out, &none, &as, &p->config, p->checkpoint, available_bytes, d);
    }
    return rank_layout_resolve(out, &p->layout, &as, &p->config, p->checkpoint, available_bytes, d);
}

fathom_err model_plan_make(struct model_plan *out, const struct invocation *v, bool compares,
                           fathom_diag *d)
{
    fathom_options given, o;
    const uint64_t available = (uint64_t)v->settings->memory_bytes;
    memset(out, 0, sizeof *out);
    TRY(open_model(&out->checkpoint, &out->config, v, d));
    engine_options(&given, v->settings, v->model);
    if (v->settings->nnodes > 1) {
        out->hosts.n_node = (uint32_t)v->settings->nnodes;
        given.hosts = &out->hosts;
    }
    if (available == 0) TRY(check_gpu(&given, d));
    TRY(resolve_layout(&o, out, &given, available, compares, d));
    TRY(settings_resolve(&out->settings, &o, &out->config, d));
    if (available == 0) TRY(check_devices(&out->settings, d));
    return memory_plan_fit(&out->plan, &out->settings, &out->config, out->checkpoint, available, d);
}

static void keep_first(void *arg, const char *message)
{
    fathom_diag *first = arg;
    if (!first->text[0]) (void)snprintf(first->text, sizeof first->text, "%s", message);
}

fathom_err model_plan_check_weights(const struct model_plan *p, fathom_diag *d)
{
    fathom_diag first = {{0}};
    if (!p->checkpoint || p->settings.dummy) return FATHOM_OK;
    const size_t n = weights_check(p->checkpoint, &p->config, keep_first, &first);
    if (n == 0) return FATHOM_OK;
    FAIL(d, FATHOM_EFORMAT, "%s: %zu tensors are missing or wrong; the first: %.300s",
         checkpoint_where(p->checkpoint), n, first.text);
}

void model_plan_each_form(const struct model_plan *p, model_plan_form *visit, void *arg)
{
    struct weight_form_count forms[WEIGHT_FORMS_MAX];
    char text[WEIGHT_FORM_TEXT_BYTES], line[160], size[SIZE_TEXT_BYTES];
    if (!p->checkpoint || p->settings.dummy) return;
    size_t n = weights_count_forms(forms, p->checkpoint, &p->config);
    for (size_t i = 0; i < n; i++) {
        struct weight_form_count *f = &forms[i];
        if (f->form.code == CODE_WIDE || f->n_matrix == 0) continue;
        for (size_t k = i + 1; k < n; k++) {
            if (strcmp(forms[k].format, f->format) != 0 ||
                !weight_form_equal(&forms[k].form, &f->form))
                continue;
            f->n_matrix += forms[k].n_matrix;
            f->bytes += forms[k].bytes;
            forms[k].n_matrix = 0;
        }
        (void)snprintf(line, sizeof line, "%llu matrices are %s, %s: %s in the files",
                       (unsigned long long)f->n_matrix, f->format, weight_form_text(text, &f->form),
                       size_text(size, f->bytes));
        visit(arg, line);
    }
}

void model_plan_close(struct model_plan *p)
{
    checkpoint_close(p->checkpoint);
    memset(p, 0, sizeof *p);
}
