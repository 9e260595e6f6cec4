/* test_forward.c - the layer list over the reference backend, with generated weights */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "model/config.h"
#include "model/forward.h"
#include "model/weights.h"

static const char config_text[] =
    "{\"architectures\": [\"DeepseekV32ForCausalLM\"], \"model_type\": \"deepseek_v32\","
    "\"vocab_size\": 96, \"hidden_size\": 64, \"num_hidden_layers\": 3,"
    "\"num_nextn_predict_layers\": 1, \"first_k_dense_replace\": 1, \"moe_layer_freq\": 1,"
    "\"intermediate_size\": 96, \"moe_intermediate_size\": 32, \"n_routed_experts\": 8,"
    "\"n_shared_experts\": 2, \"num_experts_per_tok\": 2, \"n_group\": 4, \"topk_group\": 2,"
    "\"routed_scaling_factor\": 2.5, \"scoring_func\": \"sigmoid\", \"topk_method\": "
    "\"noaux_tc\", \"norm_topk_prob\": true, \"num_attention_heads\": 2,"
    "\"num_key_value_heads\": 2, \"q_lora_rank\": 32, \"kv_lora_rank\": 512,"
    "\"qk_nope_head_dim\": 128, \"qk_rope_head_dim\": 64, \"v_head_dim\": 128,"
    "\"attention_bias\": false, \"hidden_act\": \"silu\", \"rms_norm_eps\": 1e-6,"
    "\"rope_theta\": 10000, \"max_position_embeddings\": 512,"
    "\"index_n_heads\": 2, \"index_head_dim\": 128, \"index_topk\": 16,"
    "\"tie_word_embeddings\": false, \"torch_dtype\": \"bfloat16\","
    "\"bos_token_id\": 0, \"eos_token_id\": 1}";

enum { N_PAGE = 16, N_TABLE = 4, MAX_TOKEN = 64, V = 96 };

static const struct model_loading as_stored = {0};

struct fixture {
    struct model_config config;
    struct model_weights weights;
    struct model_limits limits;
    struct model_place place;
    struct backend *b;
    struct model *model;
    struct kv_cache kv;
};

static void open_fixture(struct fixture *f, enum kv_type kv, bool with_mtp)
{
    fathom_diag d = {{0}};
    struct backend_config c;
    memset(f, 0, sizeof *f);
    assert_int_equal(model_config_parse(&f->config, config_text, sizeof config_text - 1, &d), 0);
    f->place.parallel = parallel_one();
    assert_int_equal(weights_generate(&f->weights, &f->config, 3, &f->place.parallel, &d), 0);
    f->limits = (struct model_limits){.act = ACT_F32,
                                      .kv_type = kv,
                                      .max_token = MAX_TOKEN,
                                      .max_request = 4,
                                      .max_context = N_TABLE * KV_PAGE_TOKENS,
                                      .max_logit_row = MAX_TOKEN,
                                      .with_mtp = with_mtp};
    model_backend_config(&c, &f->config, &f->limits, &f->place);
    assert_int_equal(backend_ref_create(&f->b, &c, &d), 0);
    assert_int_equal(
        model_create(&f->model, f->b, &f->config, &f->weights, &f->limits, &as_stored, &d), 0);
    f->kv = (struct kv_cache){.n_page = N_PAGE, .layout = c.kv};
    assert_int_equal(f->b->ops->alloc(f->b, N_PAGE * c.kv.page_bytes, "pages", &f->kv.base, &d), 0);
    memset(f->kv.base, 0xff, N_PAGE * c.kv.page_bytes);
}

static void close_fixture(struct fixture *f)
{
    model_destroy(f->model);
    f->b->ops->release(f->b, f->kv.base);
    f->b->ops->destroy(f->b);
    weights_release(&f->weights);
}

/* A part of one request in a step: n tokens from position pos0, of request r's fixed text. */
struct part {
    uint32_t r;
    uint32_t pos0;
    uint32_t n;
};

static int32_t text(uint32_t r, uint32_t pos)
{
    return (int32_t)((pos * 31 + r * 17 + pos * pos) % V);
}

/* Runs one step of these parts; out is f32 [n_token][V], in the order of the parts. */
static void step(struct fixture *f, const struct part *parts, uint32_t n_part, bool mtp, float *out)
{
    int32_t ids[MAX_TOKEN], next[MAX_TOKEN], pos[MAX_TOKEN], request[MAX_TOKEN], slot[MAX_TOKEN];
    int32_t rows[MAX_TOKEN], table[4 * N_TABLE], first[5] = {0};
    uint32_t n = 0, max_context = 0;
    for (uint32_t i = 0; i < n_part; i++) {
        for (uint32_t j = 0; j < N_TABLE; j++)
            table[i * N_TABLE + j] = (int32_t)((parts[i].r * N_TABLE + j) * 5 % N_PAGE);
        for (uint32_t p = parts[i].pos0; p < parts[i].pos0 + parts[i].n; p++, n++) {
            assert_true(n < MAX_TOKEN);
            ids[n] = text(parts[i].r, p);
            next[n] = text(parts[i].r, p + 1);
            pos[n] = (int32_t)p;
            request[n] = (int32_t)i;
            slot[n] = table[i * N_TABLE + p / KV_PAGE_TOKENS] * KV_PAGE_TOKENS +
                      (int32_t)(p % KV_PAGE_TOKENS);
            rows[n] = (int32_t)n;
            if (p + 1 > max_context) max_context = p + 1;
        }
        first[i + 1] = (int32_t)n;
    }
    struct batch batch = {.n_token = n,
                          .n_request = n_part,
                          .n_logit_row = n,
                          .max_context = max_context,
                          .page_stride = N_TABLE,
                          .ids = ids,
                          .next_ids = next,
                          .pos = pos,
                          .request = request,
                          .slot = slot,
                          .page_table = table,
                          .first = first,
                          .logit_rows = rows};
    assert_int_equal(model_forward(f->model, &batch, &f->kv), 0);
    if (mtp) assert_int_equal(model_mtp(f->model, &batch, &f->kv), 0);
    struct buffer *logits = model_logits(f->model);
    assert_int_equal(f->b->ops->buffer_read(f->b, logits, 0, n, V, out), 0);
    for (uint32_t i = 0; i < n * V; i++) assert_true(isfinite(out[i]));
}

static void assert_same_rows(const float *a, const float *b, uint32_t n_row)
{
    assert_memory_equal(a, b, (size_t)n_row * V * sizeof *a);
}

static void test_backend_config(void **state)
{
    (void)state;
    struct fixture f;
    struct backend_config c;
    open_fixture(&f, KV_TYPE_FP8, true);
    f.place.parallel.tp = (struct axis){.rank = 1, .size = 2};
    model_backend_config(&c, &f.config, &f.limits, &f.place);
    assert_int_equal(c.n_head, 1);
    assert_int_equal(c.dense_inner, 48);
    assert_int_equal(c.moe_inner, 16);
    assert_int_equal(c.shared_inner, 32);
    assert_int_equal(c.parallel.tp.size, 2);
    assert_int_equal(c.parallel.tp.rank, 1);
    assert_int_equal(c.kv.n_layer, 4);
    assert_int_equal(c.kv.type, KV_TYPE_FP8);
    assert_true(c.kv.has_index);
    assert_true(c.rope_interleaved);
    assert_false(c.index_rope_interleaved);
    assert_int_equal(c.index_topk, 16);
    assert_true(c.rope_freq[0] == 1);
    assert_true(fabsf(c.softmax_scale - 1 / sqrtf(192)) < 1e-7f);
    f.limits.with_mtp = false;
    model_backend_config(&c, &f.config, &f.limits, &f.place);
    assert_int_equal(c.kv.n_layer, 3);
    close_fixture(&f);
}

/* 40 tokens are more than index_topk (16): both the dense and the selecting path are crossed. */
static void test_chunks(void **state)
{
    (void)state;
    for (int kv = KV_TYPE_F32; kv <= KV_TYPE_FP8; kv++) {
        struct fixture f;
        static float whole[40 * V], part[40 * V];
        for (int mtp = 0; mtp < 2; mtp++) {
            open_fixture(&f, (enum kv_type)kv, true);
            step(&f, &(struct part){0, 0, 40}, 1, mtp, whole);
            close_fixture(&f);
            const uint32_t chunks[] = {1, 3, 17};
            for (int i = 0; i < 3; i++) {
                open_fixture(&f, (enum kv_type)kv, true);
                for (uint32_t p = 0; p < 40; p += chunks[i]) {
                    uint32_t n = 40 - p < chunks[i] ? 40 - p : chunks[i];
                    step(&f, &(struct part){0, p, n}, 1, mtp, part + p * V);
                }
                assert_same_rows(part, whole, 40);
                close_fixture(&f);
            }
        }
    }
}

/* Requests side by side get what they get alone; a short one beside a long one too. */
static void test_neighbours(void **state)
{
    (void)state;
    struct fixture f;
    static float alone[3][30 * V], together[MAX_TOKEN * V];
    const struct part parts[] = {{0, 0, 30}, {1, 0, 5}, {2, 0, 17}};
    for (int i = 0; i < 3; i++) {
        open_fixture(&f, KV_TYPE_BF16, true);
        step(&f, &parts[i], 1, true, alone[i]);
        close_fixture(&f);
    }
    open_fixture(&f, KV_TYPE_BF16, true);
    step(&f, parts, 3, true, together);
    assert_same_rows(together, alone[0], 30);
    assert_same_rows(together + (size_t)30 * V, alone[1], 5);
    assert_same_rows(together + (size_t)35 * V, alone[2], 17);
    close_fixture(&f);
}

/* Beyond index_topk the selection matters: with a larger index_topk the rows before position 16
 * keep their bits and later ones do not. */
static void test_selection_begins_at_topk(void **state)
{
    (void)state;
    struct fixture f;
    static float sparse[40 * V], dense[40 * V];
    open_fixture(&f, KV_TYPE_F32, true);
    step(&f, &(struct part){0, 0, 40}, 1, false, sparse);
    model_destroy(f.model);
    f.b->ops->destroy(f.b);
    f.config.index_topk = 64;
    struct backend_config c;
    fathom_diag d = {{0}};
    model_backend_config(&c, &f.config, &f.limits, &f.place);
    assert_int_equal(backend_ref_create(&f.b, &c, &d), 0);
    assert_int_equal(model_create(&f.model, f.b, &f.config, &f.weights, &f.limits, &as_stored, &d),
                     0);
    step(&f, &(struct part){0, 0, 40}, 1, false, dense);
    assert_same_rows(sparse, dense, 16);
    for (uint32_t p = 20; p < 40; p++)
        assert_memory_not_equal(sparse + p * V, dense + p * V, V * sizeof *dense);
    close_fixture(&f);
}

/* MTP runs on top and leaves the target alone: the next step's logits are the same. */
static void test_mtp_does_not_disturb(void **state)
{
    (void)state;
    struct fixture f;
    static float with[2][20 * V], without[2][20 * V];
    for (int mtp = 0; mtp < 2; mtp++) {
        float(*out)[20 * V] = mtp ? with : without;
        open_fixture(&f, KV_TYPE_FP8, true);
        step(&f, &(struct part){0, 0, 20}, 1, mtp, out[0]);
        step(&f, &(struct part){0, 20, 20}, 1, false, out[1]);
        close_fixture(&f);
    }
    assert_same_rows(with[1], without[1], 20);
    assert_memory_not_equal(with[0], without[0], V * sizeof(float)); /* those are the drafts */
}

static void test_without_mtp(void **state)
{
    (void)state;
    struct fixture f;
    static float with[8 * V], without[8 * V];
    open_fixture(&f, KV_TYPE_F32, true);
    assert_true(model_has_mtp(f.model));
    uint64_t bytes = model_weights_bytes(f.model);
    step(&f, &(struct part){0, 0, 8}, 1, false, with);
    close_fixture(&f);
    open_fixture(&f, KV_TYPE_F32, false);
    assert_false(model_has_mtp(f.model));
    assert_true(model_weights_bytes(f.model) < bytes);
    step(&f, &(struct part){0, 0, 8}, 1, false, without);
    assert_same_rows(with, without, 8);
    close_fixture(&f);
}

static void test_messages_name_the_place(void **state)
{
    (void)state;
    struct fixture f;
    open_fixture(&f, KV_TYPE_F32, true);
    const struct {
        struct tensor_view *view;
        const char *words[3];
    } cases[] = {
        {&f.weights.embed, {"embed_tokens", "I32", ""}},
        {&f.weights.head, {"lm_head", "I32", ""}},
        {&f.weights.layers[2].mla.o, {"layer 2", "self_attn", "I32"}},
        {&f.weights.layers[0].dense.up, {"layer 0", "mlp", "up"}},
        {&f.weights.layers[3].eh_proj, {"layer 3", "eh_proj", "I32"}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fathom_diag d = {{0}};
        struct model *m;
        enum dtype saved = cases[i].view->dtype;
        cases[i].view->dtype = DTYPE_I32;
        assert_int_equal(model_create(&m, f.b, &f.config, &f.weights, &f.limits, &as_stored, &d),
                         FATHOM_EUNSUPPORTED);
        assert_null(m);
        for (int k = 0; k < 3; k++) {
            if (!strstr(d.text, cases[i].words[k]))
                fail_msg("no %s in: %s", cases[i].words[k], d.text);
        }
        cases[i].view->dtype = saved;
    }
    close_fixture(&f);
}

static void test_out_of_memory(void **state)
{
    (void)state;
    struct fixture f;
    open_fixture(&f, KV_TYPE_F32, true);
    for (long n = 0;; n += n < 30 ? 1 : 7) {
        fathom_diag d = {{0}};
        struct model *m = NULL;
        mem_fail_after(n);
        fathom_err err = model_create(&m, f.b, &f.config, &f.weights, &f.limits, &as_stored, &d);
        bool hit = mem_fail_hit();
        mem_fail_after(-1);
        if (!hit) {
            assert_int_equal(err, 0);
            assert_true(n > 50);
            model_destroy(m);
            break;
        }
        assert_int_equal(err, FATHOM_ENOMEM);
        assert_null(m);
        assert_string_not_equal(d.text, "");
    }
    close_fixture(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_backend_config),
        cmocka_unit_test(test_chunks),
        cmocka_unit_test(test_neighbours),
        cmocka_unit_test(test_selection_begins_at_topk),
        cmocka_unit_test(test_mtp_does_not_disturb),
        cmocka_unit_test(test_without_mtp),
        cmocka_unit_test(test_messages_name_the_place),
        cmocka_unit_test(test_out_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
