/* fuzz_config.c - any bytes as config.json and as generation_config.json
 *
 * A config that is accepted is one that the rest of the program can compute with.
 */
#include <math.h>
#include <stdint.h>

#include "base/assert.h"
#include "model/config.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_config(const struct model_config *c)
{
    float freq[MODEL_QK_ROPE_DIM / 2];
    ASSERT(c->n_layer > 0 && c->hidden > 0 && c->n_head > 0 && c->n_vocab > 0);
    ASSERT(c->n_group > 0 && c->n_expert % c->n_group == 0 && c->topk_group <= c->n_group);
    ASSERT(c->n_expert_used <= c->topk_group * (c->n_expert / c->n_group));
    ASSERT(c->n_dense_layer <= c->n_layer && c->moe_layer_freq > 0);
    ASSERT(!c->has_indexer || (c->index_n_head > 0 && c->index_topk > 0));
    ASSERT(isfinite(c->softmax_scale) && c->softmax_scale > 0.0f && c->norm_eps > 0.0f);
    ASSERT(c->bos_id < (int32_t)c->n_vocab && c->n_eos <= MODEL_EOS_MAX);
    for (uint32_t i = 0; i < c->n_eos; i++) ASSERT(c->eos_ids[i] < (int32_t)c->n_vocab);
    rope_frequencies(freq, MODEL_QK_ROPE_DIM, c->rope_theta, &c->yarn);
    for (int i = 0; i < MODEL_QK_ROPE_DIM / 2; i++) ASSERT(isfinite(freq[i]));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct model_config c;
    struct generation_config g;
    fathom_diag d = {0};
    if (model_config_parse(&c, (const char *)data, size, &d)) {
        ASSERT(d.text[0] != '\0');
    } else {
        check_config(&c);
    }
    d.text[0] = '\0';
    if (generation_config_parse(&g, (const char *)data, size, 1000, &d)) {
        ASSERT(d.text[0] != '\0');
    } else {
        ASSERT(isfinite(g.temperature) && g.top_p <= 1.0f && g.n_eos <= MODEL_EOS_MAX);
    }
    return 0;
}
