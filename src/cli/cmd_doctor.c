/* cmd_doctor.c - fathom doctor: will this machine serve that model, and how well?
 *
 * Status 0: nothing to do. 3: it works and could be better. 1: something will not work.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fail.h"
#include "base/mem.h"
#include "base/os.h"
#include "checkpoint/checkpoint.h"
#include "cli/doctor.h"
#include "cli/model_plan.h"
#include "server/server.h"
#include "tokenizer/tokenizer.h"

enum { STATUS_BAD = 1, STATUS_WARN = 3 };

/* ---- port ---------------------------------------------------------------------------------- */

static void look_at_port(struct doctor *d, const struct settings *s)
{
    fathom_diag diag = {{0}};
    if (server_check_address(s->host, (uint16_t)s->port, &diag) == FATHOM_OK) {
        doctor_find(d, FINDING_OK, "port", "", "%s port %lld is free", s->host, (long long)s->port);
    } else {
        doctor_find(d, FINDING_BAD, "port", "choose another --port or --host", "%s", diag.text);
    }
}

/* ---- model --------------------------------------------------------------------------------- */

/* Bytes of all shards, and the path of the largest. */
static uint64_t measure_shards(char largest[LIMIT_PATH_BYTES], const char *dir,
                               const struct checkpoint *c)
{
    uint64_t total = 0;
    off_t most = 0;
    largest[0] = '\0';
    for (size_t i = 0; i < checkpoint_n_shard(c); i++) {
        char path[LIMIT_PATH_BYTES];
        struct stat st;
        if (path_join(path, sizeof path, dir, checkpoint_shard_name(c, i)) != FATHOM_OK) continue;
        if (stat(path, &st) != 0) continue;
        total += (uint64_t)st.st_size;
        if (st.st_size <= most) continue;
        most = st.st_size;
        memcpy(largest, path, sizeof path);
    }
    return total;
}

static void look_at_disk(struct doctor *d, const struct model_source *m, const struct checkpoint *c)
{
    enum { SLOW_BYTES_S = 500000000 };
    char path[LIMIT_PATH_BYTES], a[SIZE_TEXT_BYTES], b[SIZE_TEXT_BYTES];
    if (m->bundle) {
        doctor_find(d, FINDING_OK, "disk", "", "the weights are part of the program");
        return;
    }
    uint64_t total = measure_shards(path, m->dir, c);
    uint64_t rate = doctor_read_rate(path);
    if (rate == 0) {
        doctor_find(d, FINDING_BAD, "disk", "look at the file's permissions and at dmesg",
                    "%s cannot be read", path);
        return;
    }
    bool slow = rate < SLOW_BYTES_S && total / rate > 60;
    doctor_find(d, slow ? FINDING_WARN : FINDING_OK, "disk",
                slow ? "copy the checkpoint to a local NVMe disk" : "",
                "%s of weights, read at %s/s: %.1f s to load at the best", size_text(a, total),
                size_text(b, rate), (double)total / (double)rate);
}

static void find_form(void *arg, const char *line)
{
    doctor_find(arg, FINDING_OK, "model", "", "%s", line);
}

static void look_at_weights(struct doctor *d, const struct model_plan *p)
{
    fathom_diag diag = {{0}};
    if (model_plan_check_weights(p, &diag)) {
        doctor_find(d, FINDING_BAD, "model",
                    "download the checkpoint again; fathom inspect lists them", "%s", diag.text);
    } else {
        doctor_find(d, FINDING_OK, "model", "",
                    "%s, %zu shards with %zu tensors: headers are sound, every tensor is there",
                    p->config.model_type, checkpoint_n_shard(p->checkpoint),
                    checkpoint_n_tensor(p->checkpoint));
        model_plan_each_form(p, find_form, d);
    }
}

static void look_at_text(struct doctor *d, const struct model_source *m, const struct settings *s)
{
    struct text_model text;
    fathom_diag diag = {{0}};
    if (text_model_open(&text, m, s, &diag)) {
        doctor_find(d, FINDING_BAD, "text", "download the checkpoint again", "%s", diag.text);
        return;
    }
    doctor_find(d, FINDING_OK, "text", "", "%d tokens; chats as %s",
                (int)tokenizer_n_token(text.tokenizer), chat_encoding_name(text.style.encoding));
    text_model_close(&text);
}

static void look_at_plan(struct doctor *d, const struct model_plan *p, fathom_err err,
                         const fathom_diag *diag)
{
    char a[SIZE_TEXT_BYTES], b[SIZE_TEXT_BYTES], c[SIZE_TEXT_BYTES];
    if (err) {
        doctor_find(d, FINDING_BAD, "plan", "fathom plan shows every byte", "%s", diag->text);
        return;
    }
    bool all = p->plan.n_page >= p->plan.n_page_wanted;
    const struct memory_stage *most = &p->plan.stages[0];
    for (uint32_t i = 1; i < p->plan.n_stage; i++) {
        if (p->plan.stages[i].total_bytes > most->total_bytes) most = &p->plan.stages[i];
    }
    doctor_find(d, all ? FINDING_OK : FINDING_NOTE, "plan",
                all ? ""
                    : "fewer --max-num-seqs, a smaller --max-model-len or --kv-cache-dtype fp8",
                "%s of weights and %s of cache fit%s; %s tokens at once%s",
                size_text(a, most->weights_bytes), size_text(b, most->kv_bytes),
                p->plan.n_stage > 1                 ? " on each rank of the largest stage"
                : settings_n_rank(&p->settings) > 1 ? " on each rank"
                                                    : "",
                count_text(c, p->plan.n_token_capacity),
                all ? "" : ", fewer than all requests at their longest");
}

static void look_at_model(struct doctor *d, const struct invocation *v)
{
    struct model_source source;
    struct invocation with = *v;
    struct model_plan p = {0};
    fathom_diag diag = {{0}};
    fathom_err err = model_source_find(&source, v->settings, v->environment, &diag);
    if (err) {
        doctor_find(d, FINDING_BAD, "model", "give a directory, org/name or pilot", "%s",
                    diag.text);
        return;
    }
    with.model = &source;
    err = model_plan_make(&p, &with, false, &diag);
    if (err && p.plan.total_bytes == 0) {
        doctor_find(d, FINDING_BAD, "model", "", "%s", diag.text);
    } else {
        bool made_up = p.settings.dummy;
        if (made_up) {
            doctor_find(d, FINDING_OK, "model", "",
                        "%s; weights are made up (--load-format dummy), no shard is looked at",
                        p.config.model_type);
        }
        if (p.checkpoint && !made_up) look_at_weights(d, &p);
        if (p.checkpoint) look_at_text(d, &source, v->settings);
        look_at_plan(d, &p, err, &diag);
        if (p.checkpoint && !made_up) look_at_disk(d, &source, p.checkpoint);
        if (source.dir[0] && v->settings->verify) doctor_check_hashes(d, source.dir);
    }
    model_plan_close(&p);
    model_source_close(&source);
}

/* ---- the command --------------------------------------------------------------------------- */

fathom_err cmd_doctor(const struct invocation *v, fathom_diag *diag)
{
    const struct settings *s = v->settings;
    enum finding_level worst = FINDING_OK;
    fathom_err err = FATHOM_OK;
    struct doctor *d = mem_calloc(1, sizeof *d);
    if (!d) FAIL(diag, FATHOM_ENOMEM, "out of memory for findings");
    doctor_look_at_processor(d, s);
    doctor_look_at_memory(d);
    doctor_look_at_limits(d, s);
    doctor_look_at_gpus(d, s);
    look_at_port(d, s);
    look_at_model(d, v);
    for (size_t i = 0; i < d->n_finding; i++) {
        if (d->findings[i].level > worst) worst = d->findings[i].level;
    }
    if (s->json) {
        err = doctor_print_json(d, worst);
    } else {
        doctor_print(d);
    }
    *v->status = worst == FINDING_BAD ? STATUS_BAD : worst == FINDING_WARN ? STATUS_WARN : 0;
    mem_free(d);
    return err;
}
