/* small_checkpoint.c - tensors of the binding table with bytes that tell their place */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "support/small_checkpoint.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "base/mem.h"
#include "base/os.h"
#include "model/weights_int.h"

#define DATA FATHOM_SOURCE_DIR "/tests/data/checkpoint/"

void read_config(struct model_config *c, const char *name)
{
    char path[512];
    struct file_map map;
    fathom_diag d = {0};
    (void)snprintf(path, sizeof path, DATA "%s", name);
    assert_int_equal(file_map_open(&map, path, &d), FATHOM_OK);
    if (model_config_parse(c, map.data, map.size, &d)) fail_msg("%s", d.text);
    file_map_close(&map);
}

void small_config(struct model_config *c)
{
    read_config(c, "config_v32.json");
    c->n_vocab = 40;
    c->hidden = 200;
    c->n_layer = 2;
    c->n_dense_layer = 1;
    c->n_head = 2;
    c->q_lora_rank = 72;
    c->index_n_head = 3;
    c->dense_inner = 264;
    c->moe_inner = 320;
    c->n_expert = 2;
    c->n_group = 1;
    c->topk_group = 1;
    c->n_expert_used = 1;
}

void make_tensor(struct maker *m, struct safetensors_writer *w, const char *name, enum dtype type,
                 uint32_t n_dim, uint64_t n_row, uint64_t n_col)
{
    const char *type_name = dtype_name(type);
    uint64_t dim[3] = {n_dim == 1 ? n_col : n_row, n_col, 0};
    if (m->change && strcmp(m->change->name, name) == 0) {
        if (m->change->drop) return;
        if (m->change->dtype) type_name = m->change->dtype;
        if (m->change->n_dim) {
            n_dim = m->change->n_dim;
            memcpy(dim, m->change->dim, sizeof dim);
        }
    }
    size_t n = 1;
    for (uint32_t i = 0; i < n_dim; i++) n *= dim[i];
    enum dtype stored = dtype_parse(type_name);
    size_t n_bytes = n * (stored ? dtype_size(stored) : 1); /* F8_E5M2 is one byte */
    char *bytes = mem_alloc(n_bytes + 1);
    assert_non_null(bytes);
    for (size_t i = 0; i < n_bytes; i++) bytes[i] = (char)(i % 113);
    if (stored == DTYPE_F32) {
        for (size_t i = 0; i < n; i++) memcpy(bytes + 4 * i, &(float){(float)i}, 4);
    }
    safetensors_add(w, name, type_name, n_dim, dim, bytes, n_bytes);
    mem_free(bytes);
}

static uint32_t n_block(uint32_t n)
{
    return (n + TENSOR_SCALE_BLOCK - 1) / TENSOR_SCALE_BLOCK;
}

static fathom_err make_one(void *arg, const struct weight_need *need)
{
    struct maker *m = arg;
    if (m->no_mtp && need->kind == WEIGHT_MTP) return FATHOM_OK;
    enum dtype type = need->rule->storage == STORED_LINEAR ? m->linear : m->other;
    make_tensor(m, &m->weights, need->name, type, need->n_dim, need->n_row, need->n_col);
    if (type == DTYPE_F8_E4M3) {
        char scale[WEIGHT_NAME_BYTES + 16];
        (void)snprintf(scale, sizeof scale, "%s_scale_inv", need->name);
        make_tensor(m, &m->scales, scale, DTYPE_F32, 2, n_block(need->n_row), n_block(need->n_col));
    }
    return FATHOM_OK;
}

static void index_names(struct buf *index, const struct buf *file, const char *shard)
{
    const char *name;
    json_t *entry;
    size_t n = (size_t)(unsigned char)file->data[0] | (size_t)(unsigned char)file->data[1] << 8 |
               (size_t)(unsigned char)file->data[2] << 16;
    json_t *header = json_loadb(file->data + 8, n, 0, NULL);
    assert_non_null(header);
    json_object_foreach (header, name, entry) {
        (void)buf_printf(index, "%s\"%s\":\"%s\"", index->len > 16 ? "," : "", name, shard);
    }
    json_decref(header);
}

void small_open(struct small *s, struct maker *m)
{
    fathom_diag d = {0};
    memset(s, 0, sizeof *s);
    assert_int_equal(weights_walk(m->config, m->config->n_mtp, make_one, m), FATHOM_OK);
    if (m->scales.data.len == 0) make_tensor(m, &m->scales, "left.over", DTYPE_F32, 1, 1, 4);
    safetensors_finish(&m->weights, 0, &s->files[0]);
    safetensors_finish(&m->scales, m->residue, &s->files[1]);
    (void)buf_add_str(&s->index, "{\"weight_map\":{");
    index_names(&s->index, &s->files[0], "w");
    index_names(&s->index, &s->files[1], "s");
    (void)buf_add_str(&s->index, "}}");
    s->list[0] = (fathom_bundle_file){"w", (unsigned char *)s->files[0].data, s->files[0].len};
    s->list[1] = (fathom_bundle_file){"s", (unsigned char *)s->files[1].data, s->files[1].len};
    s->list[2] = (fathom_bundle_file){"model.safetensors.index.json",
                                      (unsigned char *)s->index.data, s->index.len};
    s->bundle = (fathom_bundle){.name = "small", .files = s->list, .n_file = 3};
    if (checkpoint_open_bundle(&s->c, &s->bundle, &d)) fail_msg("%s", d.text);
}

void small_close(struct small *s)
{
    checkpoint_close(s->c);
    buf_free(&s->files[0]);
    buf_free(&s->files[1]);
    buf_free(&s->index);
}

struct maker fp8_maker(const struct model_config *config)
{
    return (struct maker){.config = config, .linear = DTYPE_F8_E4M3, .other = DTYPE_BF16};
}

void count_unused(void *arg, const struct tensor *t, bool is_copy)
{
    struct unused *u = arg;
    if (is_copy) {
        u->n_copy++;
        return;
    }
    u->n_other++;
    (void)snprintf(u->last, sizeof u->last, "%s", t->name);
}
