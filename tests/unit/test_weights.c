/* test_weights.c - the binding table: published sizes, parts of ranks, what a checkpoint lacks */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "base/json.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/os.h"
#include "checkpoint/checkpoint.h"
#include "model/config.h"
#include "model/weights_int.h"
#include "support/safetensors_write.h"

#define DATA FATHOM_SOURCE_DIR "/tests/data/checkpoint/"
#define PILOT FATHOM_SOURCE_DIR "/models/pilot"

static void read_config(struct model_config *c, const char *name)
{
    char path[512];
    struct file_map map;
    fathom_diag d = {0};
    (void)snprintf(path, sizeof path, DATA "%s", name);
    assert_int_equal(file_map_open(&map, path, &d), FATHOM_OK);
    if (model_config_parse(c, map.data, map.size, &d)) fail_msg("%s", d.text);
    file_map_close(&map);
}

/* ---- small checkpoints ---------------------------------------------------------------------- */

/* A model of odd widths: two layers (one dense), two heads, an MTP layer, three blocks a side at
 * most. */
static void small_config(struct model_config *c)
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

/* What to get wrong in one tensor, by name. */
struct change {
    const char *name;
    bool drop;
    const char *dtype;
    uint32_t n_dim; /* 0: as it should be */
    uint64_t dim[3];
};

static const struct parallel one_rank = {.tp = {.rank = 0, .size = 1}};

struct maker {
    const struct model_config *config;
    const struct change *change; /* or NULL */
    enum dtype linear;           /* stored type of linear weights */
    enum dtype other;            /* and of the rest */
    bool no_mtp;
    unsigned residue; /* of the data's place in the file, modulo 8 */
    struct safetensors_writer weights;
    struct safetensors_writer scales;
};

static void make_tensor(struct maker *m, struct safetensors_writer *w, const char *name,
                        enum dtype type, uint32_t n_dim, uint64_t n_row, uint64_t n_col)
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

/* All weights in one file and all scales in another, as a bundle. Element i of an FP8 weight is the
 * byte i % 113, of a scale the float i. */
struct small {
    struct buf files[2];
    struct buf index;
    fathom_bundle_file list[3];
    fathom_bundle bundle;
    struct checkpoint *c;
};

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

static void small_open(struct small *s, struct maker *m)
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

static void small_close(struct small *s)
{
    checkpoint_close(s->c);
    buf_free(&s->files[0]);
    buf_free(&s->files[1]);
    buf_free(&s->index);
}

static struct maker fp8_maker(const struct model_config *config)
{
    return (struct maker){.config = config, .linear = DTYPE_F8_E4M3, .other = DTYPE_BF16};
}

/* ---- the table against what is published ---------------------------------------------------- */

static void table_gives_the_published_sizes_of_v3(void **state)
{
    (void)state;
    struct model_config c;
    struct weight_sizes s;
    read_config(&c, "config_v3.json");
    weights_measure(&s, &c, NULL, &one_rank);
    uint64_t n_copy = 2ull * 129280 * 7168; /* the MTP layer's embedding and head */
    assert_true(s.total.n_parameter - s.kind[WEIGHT_MTP].n_parameter == 671026419200);
    assert_true(s.kind[WEIGHT_MTP].n_parameter == 11610068224);
    assert_true(s.total.n_parameter + n_copy == 684489845504);
    assert_true(s.total.n_tensor + 2 == 91991);
    assert_true(s.total.bytes + 2 * n_copy == 688574839360);
    assert_true(s.kind[WEIGHT_INDEXER].n_parameter == 0);
}

static void indexer_of_v32_has_the_published_size(void **state)
{
    (void)state;
    struct model_config c;
    struct weight_sizes s;
    read_config(&c, "config_v32.json");
    c.n_mtp = 0;
    weights_measure(&s, &c, NULL, &one_rank);
    assert_true(s.kind[WEIGHT_INDEXER].n_parameter == 61ull * 13959424);
    assert_int_equal(s.kind[WEIGHT_INDEXER].n_tensor, 61 * 7);
}

static void eight_ranks_share_heads_and_inner_widths(void **state)
{
    (void)state;
    struct model_config c;
    struct weight_sizes one, eight;
    fathom_diag d = {0};
    read_config(&c, "config_v32.json");
    weights_measure(&one, &c, NULL, &one_rank);
    weights_measure(&eight, &c, NULL, &(struct parallel){.tp = {0, 8}});
    assert_true(eight.kind[WEIGHT_EXPERTS].bytes * 8 == one.kind[WEIGHT_EXPERTS].bytes);
    assert_true(eight.kind[WEIGHT_SHARED].bytes * 8 == one.kind[WEIGHT_SHARED].bytes);
    assert_true(eight.kind[WEIGHT_DENSE].bytes * 8 == one.kind[WEIGHT_DENSE].bytes);
    assert_true(eight.kind[WEIGHT_INDEXER].bytes == one.kind[WEIGHT_INDEXER].bytes);
    assert_true(eight.kind[WEIGHT_ATTENTION].bytes * 8 > one.kind[WEIGHT_ATTENTION].bytes);
    assert_int_equal(weights_check_parallel(&c, &(struct parallel){.tp = {0, 8}}, &d), FATHOM_OK);
    assert_int_equal(weights_check_parallel(&c, &(struct parallel){.tp = {0, 6}}, &d),
                     FATHOM_EINVAL);
    assert_non_null(strstr(d.text, "\"num_attention_heads\" is 128, which 6 ranks cannot share"));
    d.text[0] = '\0';
    c.n_head = 96;
    c.moe_inner = 2000;
    assert_int_equal(weights_check_parallel(&c, &(struct parallel){.tp = {0, 32}}, &d),
                     FATHOM_EINVAL);
    assert_non_null(strstr(d.text, "\"moe_intermediate_size\" is 2000"));
    d.text[0] = '\0';
    assert_int_equal(weights_check_parallel(&c, &(struct parallel){.tp = {0, 0}}, &d),
                     FATHOM_EINVAL);
}

/* ---- binding -------------------------------------------------------------------------------- */

static uint8_t byte_at(const struct tensor_view *v, uint32_t r, uint32_t c)
{
    return ((const uint8_t *)v->data)[r * v->row_stride + c];
}

static float scale_at(const struct tensor_view *v, uint32_t r, uint32_t c)
{
    return v->scale[(v->scale_row0 + r) / 128 * v->scale_stride + (v->scale_col0 + c) / 128];
}

/* The view of rank `rank` shows the elements and scales of the whole tensor that begin at (row0,
 * col0). n_col is the whole tensor's. */
static void assert_part(const struct tensor_view *v, uint32_t n_col, uint32_t row0, uint32_t col0)
{
    assert_int_equal(v->dtype, DTYPE_F8_E4M3);
    for (uint32_t r = 0; r < v->n_row; r++) {
        for (uint32_t c = 0; c < v->n_col; c++) {
            size_t i = (size_t)(row0 + r) * n_col + col0 + c;
            float scale = (float)((row0 + r) / 128 * ((n_col + 127) / 128) + (col0 + c) / 128);
            assert_int_equal(byte_at(v, r, c), i % 113);
            assert_true(scale_at(v, r, c) == scale);
        }
    }
}

static void whole_model_is_bound(void **state)
{
    (void)state;
    struct model_config config;
    struct model_weights w;
    struct small s;
    fathom_diag d = {0};
    small_config(&config);
    struct maker m = fp8_maker(&config);
    small_open(&s, &m);
    if (weights_bind(&w, s.c, &config, &one_rank, &d)) fail_msg("%s", d.text);
    assert_int_equal(w.n_layer, 2);
    assert_int_equal(w.n_mtp, 1);
    assert_int_equal(w.embed.n_row, 40);
    assert_int_equal(w.embed.n_col, 200);
    assert_int_equal(w.embed.dtype, DTYPE_BF16);
    assert_null(w.embed.scale);
    assert_int_equal(w.final_norm.n_row, 1);
    assert_int_equal(w.final_norm.n_col, 200);

    const struct layer_views *dense = &w.layers[0], *moe = &w.layers[1], *mtp = &w.layers[2];
    assert_part(&dense->mla.kv_a, 200, 0, 0);
    assert_int_equal(dense->mla.kv_a.n_row, 576);
    assert_part(&dense->dense.down, 264, 0, 0);
    assert_part(&dense->mla.index_q_b, 72, 0, 0);
    assert_int_equal(dense->mla.index_head.n_row, 3);
    assert_int_equal(dense->moe.router.n_row, 0);
    assert_null(dense->moe.experts);
    assert_int_equal(dense->eh_proj.n_row, 0);

    assert_int_equal(moe->dense.gate.n_row, 0);
    assert_int_equal(moe->moe.router.n_row, 2);
    assert_int_equal(moe->moe.router_bias.dtype, DTYPE_F32);
    assert_int_equal(moe->moe.router_bias.n_col, 2);
    for (int e = 0; e < 2; e++) {
        assert_part(&moe->moe.experts[e].gate, 200, 0, 0);
        assert_part(&moe->moe.experts[e].up, 200, 0, 0);
        assert_part(&moe->moe.experts[e].down, 320, 0, 0);
        char name[WEIGHT_NAME_BYTES];
        (void)snprintf(name, sizeof name, "model.layers.1.mlp.experts.%d.up_proj.weight", e);
        assert_ptr_equal(moe->moe.experts[e].up.data, checkpoint_find(s.c, name)->data);
    }
    assert_part(&moe->moe.shared.gate, 200, 0, 0);

    assert_int_equal(mtp->eh_proj.n_col, 400);
    assert_int_equal(mtp->head_norm.n_col, 200);
    assert_part(&mtp->moe.experts[1].down, 320, 0, 0);
    weights_release(&w);
    weights_release(&w);
    small_close(&s);
}

static void ranks_see_their_parts(void **state)
{
    (void)state;
    struct model_config config;
    struct small s;
    fathom_diag d = {0};
    small_config(&config);
    struct maker m = fp8_maker(&config);
    small_open(&s, &m);
    for (uint32_t rank = 0; rank < 2; rank++) {
        struct model_weights w;
        if (weights_bind(&w, s.c, &config, &(struct parallel){.tp = {rank, 2}}, &d))
            fail_msg("%s", d.text);
        const struct layer_views *l = &w.layers[0];
        assert_int_equal(l->mla.q_b.n_row, 192);
        assert_part(&l->mla.q_b, 72, rank * 192, 0); /* begins inside a block */
        assert_part(&l->mla.kv_b, 512, rank * 256, 0);
        assert_int_equal(l->mla.o.n_col, 128);
        assert_part(&l->mla.o, 256, 0, rank * 128);
        assert_int_equal(l->mla.kv_a.n_row, 576);
        assert_part(&l->dense.gate, 200, rank * 132, 0);
        assert_int_equal(l->dense.down.n_col, 132);
        assert_part(&l->dense.down, 264, 0, rank * 132);
        assert_part(&w.layers[1].moe.experts[1].up, 200, rank * 160, 0);
        assert_part(&w.layers[1].moe.experts[1].down, 320, 0, rank * 160);
        assert_int_equal(w.embed.n_row, 40); /* any token may need any row */
        assert_int_equal(w.head.n_row, 20);
        assert_true(w.head.data == (const char *)checkpoint_find(s.c, "lm_head.weight")->data +
                                       (size_t)rank * 20 * 200 * dtype_size(w.head.dtype));
        weights_release(&w);
    }
    struct model_weights w;
    assert_int_equal(weights_bind(&w, s.c, &config, &(struct parallel){.tp = {0, 4}}, &d),
                     FATHOM_EINVAL);
    assert_null(w.layers);
    small_close(&s);
}

static void unaligned_scales_are_copied(void **state)
{
    (void)state;
    struct model_config config;
    struct model_weights w;
    struct small s;
    fathom_diag d = {0};
    small_config(&config);
    struct maker m = fp8_maker(&config);
    m.other = DTYPE_F32;
    small_open(&s, &m);
    assert_int_equal(weights_bind(&w, s.c, &config, &one_rank, &d), FATHOM_OK);
    bool lies_aligned = ((uintptr_t)s.files[1].data & 3) == 0;
    assert_true(lies_aligned);
    assert_int_equal(w.owned_bytes, 0); /* nothing to copy: scales aligned, router bias F32 */
    weights_release(&w);
    small_close(&s);

    m = fp8_maker(&config);
    m.other = DTYPE_F32;
    m.residue = 3;
    small_open(&s, &m);
    assert_int_equal(weights_bind(&w, s.c, &config, &(struct parallel){.tp = {1, 2}}, &d),
                     FATHOM_OK);
    assert_true(w.owned_bytes > 0);
    assert_int_equal((uintptr_t)w.layers[0].mla.q_b.scale % 4, 0);
    assert_part(&w.layers[0].mla.q_b, 72, 192, 0);
    assert_part(&w.layers[0].dense.down, 264, 0, 132);
    weights_release(&w);
    small_close(&s);
}

static void linear_weights_may_be_unquantized(void **state)
{
    (void)state;
    static const enum dtype types[] = {DTYPE_BF16, DTYPE_F16, DTYPE_F32};
    struct model_config config;
    small_config(&config);
    for (int i = 0; i < 3; i++) {
        struct model_weights w;
        struct small s;
        fathom_diag d = {0};
        struct maker m = {.config = &config, .linear = types[i], .other = types[i]};
        small_open(&s, &m);
        if (weights_bind(&w, s.c, &config, &(struct parallel){.tp = {1, 2}}, &d))
            fail_msg("%s", d.text);
        const struct tensor_view *v = &w.layers[0].dense.down;
        assert_int_equal(v->dtype, types[i]);
        assert_null(v->scale);
        const struct tensor *t = checkpoint_find(s.c, "model.layers.0.mlp.down_proj.weight");
        assert_ptr_equal(v->data, (const char *)t->data + 132 * dtype_size(types[i]));
        /* the router's bias is handed over as F32 whatever it was */
        assert_int_equal(w.layers[1].moe.router_bias.dtype, DTYPE_F32);
        weights_release(&w);
        small_close(&s);
    }
}

static void checkpoint_without_mtp_binds(void **state)
{
    (void)state;
    struct model_config config;
    struct model_weights w;
    struct weight_sizes sizes;
    struct small s;
    fathom_diag d = {0};
    small_config(&config);
    struct maker m = fp8_maker(&config);
    m.no_mtp = true;
    small_open(&s, &m);
    assert_int_equal(weights_count_mtp(s.c, &config), 0);
    assert_int_equal(weights_bind(&w, s.c, &config, &one_rank, &d), FATHOM_OK);
    assert_int_equal(w.n_mtp, 0);
    weights_measure(&sizes, &config, s.c, &one_rank);
    assert_int_equal(sizes.kind[WEIGHT_MTP].bytes, 0);
    assert_true(sizes.total.bytes > 0);
    weights_release(&w);
    small_close(&s);
}

/* ---- faults --------------------------------------------------------------------------------- */

static void every_mismatch_names_tensor_value_and_need(void **state)
{
    (void)state;
    static const struct {
        struct change change;
        const char *message;
    } cases[] = {
        {{.name = "model.norm.weight", .drop = true},
         "small: model.norm.weight: missing; needed is BF16 [200]"},
        {{.name = "model.layers.1.self_attn.q_a_proj.weight", .drop = true},
         "model.layers.1.self_attn.q_a_proj.weight: missing; needed is F8_E4M3 [72, 200]"},
        {{.name = "model.layers.1.mlp.gate.e_score_correction_bias", .drop = true},
         "model.layers.1.mlp.gate.e_score_correction_bias: missing; needed is F32 [2]"},
        {{.name = "model.layers.0.self_attn.indexer.k_norm.bias", .drop = true},
         "model.layers.0.self_attn.indexer.k_norm.bias: missing; needed is BF16 [128]"},
        {{.name = "model.layers.1.mlp.experts.1.up_proj.weight", .drop = true},
         "model.layers.1.mlp.experts.1.up_proj.weight: missing"},
        {{.name = "model.layers.2.hnorm.weight", .drop = true},
         "model.layers.2.hnorm.weight: missing"},
        {{.name = "model.layers.1.self_attn.kv_b_proj.weight", .n_dim = 2, .dim = {512, 256}},
         "model.layers.1.self_attn.kv_b_proj.weight: dim[1] is 256, needed is 512"},
        {{.name = "model.layers.1.self_attn.kv_b_proj.weight", .n_dim = 2, .dim = {511, 512}},
         "model.layers.1.self_attn.kv_b_proj.weight: dim[0] is 511, needed is 512"},
        {{.name = "lm_head.weight", .n_dim = 1, .dim = {8000}},
         "lm_head.weight: it has 1 dimensions, needed is [40, 200]"},
        {{.name = "model.norm.weight", .n_dim = 1, .dim = {201}},
         "model.norm.weight: dim[0] is 201, needed is 200"},
        {{.name = "model.norm.weight", .dtype = "F8_E4M3"},
         "model.norm.weight: dtype is F8_E4M3, needed is BF16, F16 or F32"},
        {{.name = "model.layers.0.mlp.up_proj.weight", .dtype = "I32"},
         "model.layers.0.mlp.up_proj.weight: dtype is I32, needed is F8_E4M3, BF16, F16 or F32"},
        {{.name = "model.layers.0.mlp.up_proj.weight", .dtype = "F8_E5M2"},
         "model.layers.0.mlp.up_proj.weight: dtype is F8_E5M2, needed is"},
        {{.name = "model.layers.0.mlp.up_proj.weight_scale_inv", .drop = true},
         "model.layers.0.mlp.up_proj.weight_scale_inv: missing; needed is F32 [3, 2], because the "
         "weight is F8_E4M3"},
        {{.name = "model.layers.0.self_attn.kv_a_proj_with_mqa.weight_scale_inv",
          .n_dim = 2,
          .dim = {4, 2}},
         "model.layers.0.self_attn.kv_a_proj_with_mqa.weight_scale_inv: dim[0] is 4, needed is 5"},
        {{.name = "model.layers.0.mlp.up_proj.weight_scale_inv", .dtype = "BF16"},
         "model.layers.0.mlp.up_proj.weight_scale_inv: dtype is BF16, needed is F32"},
    };
    struct model_config config;
    small_config(&config);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct model_weights w;
        struct small s;
        fathom_diag d = {0};
        struct maker m = fp8_maker(&config);
        m.change = &cases[i].change;
        small_open(&s, &m);
        fathom_err err = weights_bind(&w, s.c, &config, &one_rank, &d);
        if (!strstr(d.text, cases[i].message)) {
            print_error("gives \"%s\"\n  needed is \"%s\"\n", d.text, cases[i].message);
        }
        assert_int_equal(err, FATHOM_EMISMATCH);
        assert_non_null(strstr(d.text, cases[i].message));
        assert_null(w.layers);
        weights_release(&w);
        small_close(&s);
    }
}

static void count_missing(void *arg, const char *message)
{
    size_t *n_missing = arg;
    *n_missing += strstr(message, ": missing; needed is ") != NULL;
}

static void all_faults_are_reported(void **state)
{
    (void)state;
    struct model_config config, larger;
    struct small s;
    size_t n_missing = 0;
    small_config(&config);
    larger = config;
    larger.n_expert = 4;
    larger.n_mtp = 0;
    config.n_mtp = 0;
    struct maker m = fp8_maker(&config);
    small_open(&s, &m);
    larger.n_layer = 3; /* a whole layer, and the experts 2 and 3 of layer 1, are not there */
    size_t n_fault = weights_check(s.c, &larger, count_missing, &n_missing);
    assert_true(n_fault > 20 &&
                n_fault == n_missing + 2); /* the router's two tensors have another shape */
    small_close(&s);
}

struct unused {
    size_t n_copy, n_other;
    char last[128];
};

static void count_unused(void *arg, const struct tensor *t, bool is_copy)
{
    struct unused *u = arg;
    if (is_copy) {
        u->n_copy++;
        return;
    }
    u->n_other++;
    (void)snprintf(u->last, sizeof u->last, "%s", t->name);
}

static void left_over_tensors_are_listed(void **state)
{
    (void)state;
    struct model_config config;
    struct small s;
    struct unused u = {0};
    small_config(&config);
    struct maker m = {.config = &config, .linear = DTYPE_BF16, .other = DTYPE_BF16};
    make_tensor(&m, &m.weights, "model.layers.2.embed_tokens.weight", DTYPE_BF16, 2, 40, 200);
    make_tensor(&m, &m.weights, "model.layers.2.shared_head.head.weight", DTYPE_BF16, 2, 40, 200);
    small_open(&s, &m);
    assert_int_equal(weights_each_unused(s.c, &config, count_unused, &u), FATHOM_OK);
    assert_int_equal(u.n_copy, 2);
    assert_int_equal(u.n_other, 1);
    assert_string_equal(u.last, "left.over");
    small_close(&s);
}

static void other_quantizations_are_refused_in_one_line(void **state)
{
    (void)state;
    struct model_config config;
    struct model_weights w;
    struct small s;
    fathom_diag d = {0};
    small_config(&config);
    struct maker m = fp8_maker(&config);
    small_open(&s, &m);
    config.quant = QUANT_OTHER;
    (void)snprintf(config.quant_name, sizeof config.quant_name, "hqq");
    assert_int_equal(weights_bind(&w, s.c, &config, &one_rank, &d), FATHOM_EUNSUPPORTED);
    assert_non_null(strstr(d.text, "the quantization method \"hqq\" is not read"));
    small_close(&s);
}

static void every_failing_allocation_is_clean(void **state)
{
    (void)state;
    struct model_config config;
    struct small s;
    small_config(&config);
    struct maker m = fp8_maker(&config);
    m.residue = 1;
    small_open(&s, &m);
    for (long n = 0;; n++) {
        struct model_weights w;
        fathom_diag d = {0};
        mem_fail_after(n);
        fathom_err err = weights_bind(&w, s.c, &config, &one_rank, &d);
        bool hit = mem_fail_hit();
        mem_fail_after(-1);
        if (!hit) {
            assert_int_equal(err, FATHOM_OK);
            assert_true(n > 10);
            weights_release(&w);
            break;
        }
        assert_int_equal(err, FATHOM_ENOMEM);
        assert_true(d.text[0] != '\0');
    }
    struct unused u = {0};
    mem_fail_after(0);
    assert_int_equal(weights_each_unused(s.c, &config, count_unused, &u), FATHOM_ENOMEM);
    mem_fail_after(-1);
    small_close(&s);
}

/* Rank `rank` of `n` that have requests of their own and whole experts. */
static struct parallel by_request(uint32_t rank, uint32_t n)
{
    return (struct parallel){.tp = {0, 1}, .dp = {rank, n}, .experts_whole = true};
}

static void experts_are_whole_on_their_ranks(void **state)
{
    (void)state;
    struct model_config c;
    struct weight_sizes one, eight;
    fathom_diag d = {0};
    read_config(&c, "config_v32.json");
    struct parallel p = by_request(3, 8);
    weights_measure(&one, &c, NULL, &one_rank);
    weights_measure(&eight, &c, NULL, &p);
    assert_true(eight.kind[WEIGHT_EXPERTS].bytes * 8 == one.kind[WEIGHT_EXPERTS].bytes);
    assert_true(eight.kind[WEIGHT_ATTENTION].bytes == one.kind[WEIGHT_ATTENTION].bytes);
    assert_true(eight.kind[WEIGHT_SHARED].bytes == one.kind[WEIGHT_SHARED].bytes);
    assert_true(eight.kind[WEIGHT_HEAD].bytes == one.kind[WEIGHT_HEAD].bytes);
    assert_int_equal(weights_check_parallel(&c, &p, &d), FATHOM_OK);
    p.dp.size = 6;
    assert_int_equal(weights_check_parallel(&c, &p, &d), FATHOM_EINVAL);
    assert_non_null(strstr(d.text, "\"n_routed_experts\" is 256, which 6 ranks cannot share"));
    p = by_request(1, 4); /* of two ranks each */
    p.tp = (struct axis){1, 2};
    assert_int_equal(weights_check_parallel(&c, &p, &d), FATHOM_OK);
    weights_measure(&eight, &c, NULL, &p);
    assert_true(eight.kind[WEIGHT_EXPERTS].bytes * 8 == one.kind[WEIGHT_EXPERTS].bytes);
    assert_true(eight.kind[WEIGHT_SHARED].bytes == one.kind[WEIGHT_SHARED].bytes);
    assert_true(eight.kind[WEIGHT_DENSE].bytes * 2 == one.kind[WEIGHT_DENSE].bytes);
    assert_true(eight.kind[WEIGHT_HEAD].bytes * 2 == one.kind[WEIGHT_HEAD].bytes);
    p = by_request(0, 2);
    p.experts_whole = false;
    assert_int_equal(weights_check_parallel(&c, &p, &d), FATHOM_EINVAL);

    small_config(&c);
    struct small s;
    struct maker m = fp8_maker(&c);
    small_open(&s, &m);
    for (uint32_t rank = 0; rank < 2; rank++) {
        struct model_weights w;
        char name[WEIGHT_NAME_BYTES];
        p = by_request(rank, 2);
        if (weights_bind(&w, s.c, &c, &p, &d)) fail_msg("%s", d.text);
        const struct ffn_tensors *expert = &w.layers[1].moe.experts[0];
        (void)snprintf(name, sizeof name, "model.layers.1.mlp.experts.%u.up_proj.weight", rank);
        assert_ptr_equal(expert->up.data, checkpoint_find(s.c, name)->data);
        assert_int_equal(expert->up.n_row, 320);
        assert_part(&w.layers[0].mla.q_b, 72, 0, 0);
        assert_int_equal(w.head.n_row, 40);
        weights_release(&w);
    }
    small_close(&s);
}

static void generated_weights_ask_for_values(void **state)
{
    (void)state;
    struct model_config config;
    struct model_weights w, again, other;
    fathom_diag d = {0};
    small_config(&config);
    assert_int_equal(weights_generate(&w, &config, 7, &(struct parallel){.tp = {1, 2}}, &d),
                     FATHOM_OK);
    assert_int_equal(weights_generate(&again, &config, 7, &(struct parallel){.tp = {1, 2}}, &d),
                     FATHOM_OK);
    assert_int_equal(weights_generate(&other, &config, 7, &(struct parallel){.tp = {0, 2}}, &d),
                     FATHOM_OK);
    const struct tensor_view *a = &w.layers[1].moe.experts[0].up;
    const struct tensor_view *b = &w.layers[1].moe.experts[1].up;
    assert_null(a->data);
    assert_int_equal(a->n_row, 160);
    assert_int_equal(a->dtype, DTYPE_F8_E4M3);
    assert_true(a->generate_std > 0.0f);
    assert_true(a->generate_seed != b->generate_seed);
    assert_true(a->generate_seed == again.layers[1].moe.experts[0].up.generate_seed);
    assert_true(w.embed.generate_seed != w.head.generate_seed);
    /* ranks have the parts of one model */
    const struct tensor_view *c = &other.layers[1].moe.experts[0].up;
    assert_true(a->generate_seed == c->generate_seed);
    assert_true(a->generate_row0 == 160 && c->generate_row0 == 0);
    assert_true(w.layers[1].moe.router.generate_seed == other.layers[1].moe.router.generate_seed);
    assert_int_equal(w.n_mtp, 1);
    weights_release(&w);
    weights_release(&again);
    weights_release(&other);
}

static void ranks_that_cut_a_group_are_refused(void **state)
{
    (void)state;
    struct model_config config;
    struct model_weights w;
    fathom_diag d = {0};
    small_config(&config);
    config.hidden = 256;
    config.moe_inner = 320; /* 160 a rank: two and a half groups */
    config.quant_group = 64;
    model_config_set_quant(&config, "awq");
    assert_int_equal(weights_generate(&w, &config, 7, &(struct parallel){.tp = {1, 2}}, &d),
                     FATHOM_EINVAL);
    assert_string_equal(d.text,
                        "model.layers.1.mlp.shared_experts.down_proj.weight: a rank has 160 of its "
                        "320 inputs, which cuts a group of 64: choose fewer ranks");
    const struct weight_use use = {.backend_name = "cpu", .parallel = {.tp = {0, 2}}};
    fathom_diag plan = {0};
    assert_int_equal(weights_check_served(NULL, &config, &use, &plan), FATHOM_EINVAL);
    assert_string_equal(plan.text, d.text);
    weights_release(&w);
}

/* Where experts are stacked; a processor multiplies each by itself. */
static void two_forms_in_experts_are_named(void **state)
{
    (void)state;
    static const struct {
        struct change change;
        const char *message;
    } cases[] = {
        {{.name = "model.layers.1.mlp.experts.1.up_proj.weight", .dtype = "F16"},
         "model.layers.1.mlp.experts.1.up_proj.weight is F16, "
         "model.layers.1.mlp.experts.0.gate_proj.weight is BF16: the cuda backend needs gate and "
         "up of a layer's experts in one form: use --backend cpu, or a release that codes them "
         "alike"},
        {{.name = "model.layers.1.mlp.experts.1.down_proj.weight", .dtype = "F32"},
         "model.layers.1.mlp.experts.1.down_proj.weight is F32, "
         "model.layers.1.mlp.experts.0.down_proj.weight is BF16: the cuda backend needs down of a "
         "layer's experts in one form: use --backend cpu, or a release that codes them alike"},
        {{.name = "model.layers.1.mlp.shared_experts.down_proj.weight", .dtype = "F32"}, NULL},
        {{.name = "model.layers.0.mlp.up_proj.weight", .dtype = "F16"}, NULL},
    };
    struct model_config config;
    small_config(&config);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct small s;
        fathom_diag d = {{0}};
        struct maker m = {.config = &config,
                          .change = &cases[i].change,
                          .linear = DTYPE_BF16,
                          .other = DTYPE_BF16};
        struct weight_use use = {
            .backend_name = "cuda", .stacks_experts = true, .parallel = one_rank};
        small_open(&s, &m);
        const fathom_err err = weights_check_served(s.c, &config, &use, &d);
        assert_int_equal(err, cases[i].message ? FATHOM_EUNSUPPORTED : FATHOM_OK);
        if (cases[i].message) assert_string_equal(d.text, cases[i].message);
        use.stacks_experts = false;
        assert_int_equal(weights_check_served(s.c, &config, &use, &d), FATHOM_OK);
        small_close(&s);
    }
}

static void pilot_binds(void **state)
{
    (void)state;
    struct checkpoint *c;
    struct model_config config;
    struct model_weights w;
    struct weight_sizes sizes;
    struct unused u = {0};
    fathom_diag d = {0};
    assert_int_equal(checkpoint_open(&c, PILOT, &d), FATHOM_OK);
    assert_int_equal(model_config_load(&config, c, &d), FATHOM_OK);
    for (uint32_t world = 1; world <= 4; world *= 2) {
        if (weights_bind(&w, c, &config, &(struct parallel){.tp = {world - 1, world}}, &d))
            fail_msg("%s", d.text);
        assert_int_equal(w.n_mtp, 1);
        assert_int_equal(w.owned_bytes, 0);
        weights_release(&w);
    }
    assert_int_equal(weights_bind(&w, c, &config, &(struct parallel){.tp = {0, 8}}, &d),
                     FATHOM_EINVAL);
    assert_int_equal(weights_check(c, &config, NULL, NULL), 0);
    assert_int_equal(weights_each_unused(c, &config, count_unused, &u), FATHOM_OK);
    assert_int_equal(u.n_copy, 2);
    assert_int_equal(u.n_other, 0);

    /* all bytes of the files' data are accounted for, and as the config lets expect but for the
     * indexer's norms, which are F32 here */
    uint64_t n_bytes = 0;
    for (size_t i = 0; i < checkpoint_n_tensor(c); i++) n_bytes += checkpoint_tensor(c, i)->n_bytes;
    weights_measure(&sizes, &config, c, &one_rank);
    assert_true(sizes.total.bytes + 2 * 4096 * 256 * 2 == n_bytes);
    assert_true(sizes.total.n_tensor + 2 == checkpoint_n_tensor(c));
    uint64_t stored = sizes.total.bytes;
    weights_measure(&sizes, &config, NULL, &one_rank);
    assert_true(stored == sizes.total.bytes + 9 * 2 * 128 * 2);
    checkpoint_close(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(table_gives_the_published_sizes_of_v3),
        cmocka_unit_test(indexer_of_v32_has_the_published_size),
        cmocka_unit_test(eight_ranks_share_heads_and_inner_widths),
        cmocka_unit_test(whole_model_is_bound),
        cmocka_unit_test(ranks_see_their_parts),
        cmocka_unit_test(unaligned_scales_are_copied),
        cmocka_unit_test(linear_weights_may_be_unquantized),
        cmocka_unit_test(checkpoint_without_mtp_binds),
        cmocka_unit_test(every_mismatch_names_tensor_value_and_need),
        cmocka_unit_test(all_faults_are_reported),
        cmocka_unit_test(left_over_tensors_are_listed),
        cmocka_unit_test(other_quantizations_are_refused_in_one_line),
        cmocka_unit_test(every_failing_allocation_is_clean),
        cmocka_unit_test(experts_are_whole_on_their_ranks),
        cmocka_unit_test(generated_weights_ask_for_values),
        cmocka_unit_test(ranks_that_cut_a_group_are_refused),
        cmocka_unit_test(two_forms_in_experts_are_named),
        cmocka_unit_test(pilot_binds),
    };
    log_set_level(LOG_LEVEL_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
