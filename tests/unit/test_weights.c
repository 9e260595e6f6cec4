/* test_weights.c - the binding table: published sizes, parts of ranks */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/log.h"
#include "base/mem.h"
#include "checkpoint/checkpoint.h"
#include "model/config.h"
#include "model/weights_int.h"
#include "support/small_checkpoint.h"

#define PILOT FATHOM_SOURCE_DIR "/models/pilot"

static const struct parallel one_rank = {.tp = {.rank = 0, .size = 1}};

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
        cmocka_unit_test(left_over_tensors_are_listed),
        cmocka_unit_test(experts_are_whole_on_their_ranks),
        cmocka_unit_test(generated_weights_ask_for_values),
        cmocka_unit_test(pilot_binds),
    };
    log_set_level(LOG_LEVEL_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
