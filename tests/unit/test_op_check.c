/* test_op_check.c - arguments that an operator may have, and the end of a process that gives others
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "backend/op_check.h"
#include "op/gen.h"
#include "support/death.h"

/* Arguments of all operators that hold. Nothing behind the pointers is read. */
struct fixture {
    struct backend_config c;
    struct batch batch;
    struct kv_cache kv;
    struct embed_args embed;
    struct reduce_norm_args reduce_norm;
    struct mla_front_args mla_front;
    struct batch_share share;
    struct share_rows_args share_rows;
    struct index_topk_args index_topk;
    struct mla_attend_args mla_attend;
    struct mla_out_args mla_out;
    struct ffn_args ffn;
    struct router_args router;
    struct moe_args moe;
    struct moe_ep_args moe_ep;
    struct head_args head;
    struct mtp_front_args mtp_front;
    struct sample_args sample;
};

static max_align_t places[4];

static struct weight *weight(void)
{
    return (struct weight *)&places[0];
}

/* Buffer 0 .. 2 */
static struct buffer *buffer(int i)
{
    return (struct buffer *)&places[1 + i];
}

static void set_up(struct fixture *f)
{
    static int32_t ints[1];
    static float floats[1];
    static uint32_t words[1];
    static uint16_t place[1];
    static struct sample_row rows[1];
    memset(f, 0, sizeof *f);
    gen_config(&f->c, ACT_BF16, KV_TYPE_BF16, false);
    f->batch = (struct batch){.n_token = 5,
                              .n_request = 2,
                              .n_answer_token = 3,
                              .n_answer_request = 1,
                              .n_logit_row = 2,
                              .max_context = 128,
                              .page_stride = 2,
                              .ids = ints,
                              .pos = ints,
                              .request = ints,
                              .slot = ints,
                              .page_table = ints,
                              .first = ints,
                              .logit_rows = ints};
    f->kv = (struct kv_cache){.base = places, .n_page = 4, .layout = f->c.kv};
    f->embed = (struct embed_args){.table = weight(), .ids = ints, .n_token = 5, .x = buffer(0)};
    f->reduce_norm = (struct reduce_norm_args){
        .x = buffer(0), .delta = buffer(1), .weight = weight(), .out = buffer(2), .n_token = 5};
    f->mla_front = (struct mla_front_args){.w = weight(),
                                           .batch = &f->batch,
                                           .kv = &f->kv,
                                           .layer = 1,
                                           .want_index_query = true,
                                           .x = buffer(0),
                                           .query = buffer(1)};
    f->index_topk = (struct index_topk_args){
        .batch = &f->batch, .kv = &f->kv, .layer = 1, .query = buffer(0), .select = buffer(1)};
    f->mla_attend = (struct mla_attend_args){.w = weight(),
                                             .batch = &f->batch,
                                             .kv = &f->kv,
                                             .layer = 1,
                                             .query = buffer(0),
                                             .select = buffer(1),
                                             .out = buffer(2)};
    f->share = (struct batch_share){
        .first = 5, .n_row = 7, .n_segment = 2, .segments = {{.n_row = 3}, {.n_row = 4}}};
    f->share_rows =
        (struct share_rows_args){.kv = &f->kv, .layer = 1, .pages = ints, .share = &f->share};
    f->mla_out =
        (struct mla_out_args){.w = weight(), .batch = &f->batch, .z = buffer(0), .y = buffer(1)};
    f->ffn = (struct ffn_args){.w = weight(), .x = buffer(0), .y = buffer(1), .n_token = 5};
    f->router =
        (struct router_args){.w = weight(), .x = buffer(0), .route = buffer(1), .n_token = 5};
    f->moe = (struct moe_args){
        .w = weight(), .x = buffer(0), .route = buffer(1), .y = buffer(2), .n_token = 5};
    f->moe_ep = (struct moe_ep_args){.w = weight(),
                                     .x = buffer(0),
                                     .route = buffer(1),
                                     .y = buffer(2),
                                     .n_token = 5,
                                     .n_most = 6,
                                     .place = place};
    f->head = (struct head_args){
        .w = weight(), .hidden = buffer(0), .rows = ints, .n_row = 2, .logits = buffer(1)};
    f->mtp_front = (struct mtp_front_args){.table = weight(),
                                           .enorm = weight(),
                                           .hnorm = weight(),
                                           .eh_proj = weight(),
                                           .next_ids = ints,
                                           .hidden = buffer(0),
                                           .y = buffer(1),
                                           .n_token = 5};
    f->sample = (struct sample_args){.logits = buffer(0),
                                     .n_row = 2,
                                     .rows = rows,
                                     .ids = ints,
                                     .logprobs = floats,
                                     .ranks = words,
                                     .top_ids = ints,
                                     .top_logprobs = floats};
}

#define OPERATORS(X)                                                                               \
    X(embed)                                                                                       \
    X(reduce_norm)                                                                                 \
    X(mla_front)                                                                                   \
    X(share_rows)                                                                                  \
    X(index_topk)                                                                                  \
    X(mla_attend)                                                                                  \
    X(mla_out)                                                                                     \
    X(ffn)                                                                                         \
    X(router)                                                                                      \
    X(moe)                                                                                         \
    X(moe_ep)                                                                                      \
    X(head)                                                                                        \
    X(mtp_front)                                                                                   \
    X(sample)

#define X(name)                                                                                    \
    static void check_##name(const struct fixture *f)                                              \
    {                                                                                              \
        op_check_##name(&f->c, &f->name);                                                          \
    }
OPERATORS(X)
#undef X

typedef void check_function(const struct fixture *f);

/* One way to break the arguments of an operator, and what the fault must say. */
struct broken {
    check_function *check;
    void (*spoil)(struct fixture *f);
    const char *says;
};

/* BREAK(operator, statement about *f, text): one row of the table, with a function of its own. */
#define BREAK(name, label, statement)                                                              \
    static void spoil_##name##_##label(struct fixture *f)                                          \
    {                                                                                              \
        statement;                                                                                 \
    }
#define BROKEN(X)                                                                                  \
    X(embed, no_token, f->embed.n_token = 0, "n_token >= 1")                                       \
    X(embed, tokens, f->embed.n_token = f->c.max_token + 1, "n_token <= c->max_token")             \
    X(embed, table, f->embed.table = NULL, "a->table")                                             \
    X(embed, ids, f->embed.ids = NULL, "a->ids")                                                   \
    X(reduce_norm, tokens, f->reduce_norm.n_token = f->c.max_token + 1, "n_token")                 \
    X(reduce_norm, out, f->reduce_norm.out = NULL, "a->out")                                       \
    X(reduce_norm, alias, f->reduce_norm.out = f->reduce_norm.x, "a->x != a->out")                 \
    X(mla_front, batch, f->mla_front.batch = NULL, "batch")                                        \
    X(mla_front, requests, f->batch.n_request = f->c.max_request + 1, "max_request")               \
    X(mla_front, empty, f->batch.n_request = 6, "n_request <= batch->n_token")                     \
    X(mla_front, answers, f->batch.n_answer_token = 6, "n_answer_token <= batch->n_token")         \
    X(mla_front, answering, f->batch.n_answer_request = 3, "n_answer_request")                     \
    X(mla_front, kinds, f->batch.n_answer_request = 0, "n_answer_request == 0")                    \
    X(mla_attend, answers_all, f->batch.n_answer_token = 5, "batch->n_request")                    \
    X(mla_front, context, f->batch.max_context = f->c.max_context + 1, "max_context")              \
    X(mla_front, stride, f->batch.page_stride = 1, "page_stride")                                  \
    X(mla_front, slot, f->batch.slot = NULL, "batch->slot")                                        \
    X(mla_front, cache, f->kv.base = NULL, "kv->base")                                             \
    X(mla_front, layer, f->mla_front.layer = 2, "layer < kv->layout.n_layer")                      \
    X(mla_front, type, f->kv.layout.type = KV_TYPE_FP8, "layout.type")                             \
    X(mla_front, layout, f->kv.layout.page_bytes--, "page_bytes")                                  \
    X(mla_front, index, f->c.index_n_head = 0, "index_n_head")                                     \
    X(mla_front, query, f->mla_front.query = NULL, "a->query")                                     \
    X(index_topk, indexer, f->c.index_n_head = 0, "index_n_head")                                  \
    X(index_topk, select, f->index_topk.select = NULL, "a->select")                                \
    X(index_topk, layer, f->index_topk.layer = 2, "layer")                                         \
    X(index_topk, table, f->batch.page_table = NULL, "page_table")                                 \
    X(mla_attend, w, f->mla_attend.w = NULL, "a->w")                                               \
    X(mla_attend, out, f->mla_attend.out = NULL, "a->out")                                         \
    X(mla_attend, select, f->c.index_topk = 0, "index_topk")                                       \
    X(mla_attend, has_index, f->kv.layout.has_index = false, "has_index")                          \
    X(mla_attend, pos, f->batch.pos = NULL, "batch->pos")                                          \
    X(share_rows, layer, f->share_rows.layer = 9, "layer")                                         \
    X(share_rows, pages, f->share_rows.pages = NULL, "a->pages")                                   \
    X(share_rows, lane, f->share.segments[0].lane = 1, "lane")                                     \
    X(share_rows, rows, f->share.n_row = 8, "n == s->n_row")                                       \
    X(share_rows, context, f->share.first = f->c.max_context - 6, "max_context")                   \
    X(mla_out, batch, f->mla_out.batch = NULL, "batch")                                            \
    X(mla_out, tokens, f->batch.n_token = 0, "n_token")                                            \
    X(mla_out, weight, f->mla_out.w = NULL, "a->w")                                                \
    X(mla_out, z, f->mla_out.z = NULL, "a->z")                                                     \
    X(ffn, tokens, f->ffn.n_token = f->c.max_token + 1, "n_token")                                 \
    X(ffn, width, f->c.dense_inner = 0, "dense_inner")                                             \
    X(ffn, y, f->ffn.y = NULL, "a->y")                                                             \
    X(router, experts, f->c.n_expert = 0, "n_expert")                                              \
    X(router, route, f->router.route = NULL, "a->route")                                           \
    X(moe, tokens, f->moe.n_token = 0, "n_token")                                                  \
    X(moe, route, f->moe.route = NULL, "a->route")                                                 \
    X(moe, experts, f->c.n_expert = 0, "n_expert")                                                 \
    X(moe_ep, tokens, f->moe_ep.n_token = f->c.max_token + 1, "n_token")                           \
    X(moe_ep, most, f->moe_ep.n_most = f->c.max_token + 1, "a->n_most <= c->max_token")            \
    X(moe_ep, places, f->moe_ep.place = NULL, "a->place")                                          \
    X(head, rows, f->head.n_row = f->c.max_logit_row + 1, "max_logit_row")                         \
    X(head, no_rows, f->head.rows = NULL, "a->rows")                                               \
    X(head, logits, f->head.logits = NULL, "a->logits")                                            \
    X(mtp_front, next_ids, f->mtp_front.next_ids = NULL, "a->next_ids")                            \
    X(mtp_front, eh_proj, f->mtp_front.eh_proj = NULL, "a->eh_proj")                               \
    X(mtp_front, tokens, f->mtp_front.n_token = 0, "n_token")                                      \
    X(sample, rows, f->sample.n_row = f->c.max_logit_row + 1, "max_logit_row")                     \
    X(sample, ranks, f->sample.ranks = NULL, "a->ranks")                                           \
    X(sample, top_ids, f->sample.top_ids = NULL, "a->top_ids")                                     \
    X(sample, logits, f->sample.logits = NULL, "a->logits")

#define X(name, label, statement, text) BREAK(name, label, statement)
BROKEN(X)
#undef X
#define X(name, label, statement, text) {check_##name, spoil_##name##_##label, text},
static const struct broken broken[] = {BROKEN(X)};
#undef X

static void arguments_that_hold_pass(void **state)
{
    (void)state;
    struct fixture f;
    set_up(&f);
#define X(name) check_##name(&f);
    OPERATORS(X)
#undef X
}

/* What may be absent, and counts at their limits. */
static void the_edges_pass(void **state)
{
    (void)state;
    struct fixture f;
    set_up(&f);
    f.reduce_norm.delta = NULL;
    f.mla_attend.select = NULL;
    f.head.n_row = f.sample.n_row = 0;
    f.head.rows = NULL;
    f.sample.rows = NULL;
    f.ffn.n_token = f.batch.n_token = f.c.max_token;
    f.batch.n_request = f.c.max_request;
    f.batch.max_context = f.c.max_context;
    f.batch.page_stride = f.c.max_context / KV_PAGE_TOKENS;
#define X(name) check_##name(&f);
    OPERATORS(X)
#undef X
}

static void run_broken(void *arg)
{
    const struct broken *b = arg;
    struct fixture f;
    set_up(&f);
    b->spoil(&f);
    b->check(&f);
}

static void others_end_the_process(void **state)
{
    (void)state;
    char said[1024];
    for (size_t i = 0; i < sizeof broken / sizeof *broken; i++) {
        struct broken b = broken[i];
        if (!dies_of_assert(run_broken, &b, said, sizeof said))
            fail_msg("arguments that break \"%s\" were taken", b.says);
        if (!strstr(said, "op_check.c") || !strstr(said, broken[i].says))
            fail_msg("\"%s\" does not say \"%s\"", said, broken[i].says);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(arguments_that_hold_pass),
        cmocka_unit_test(the_edges_pass),
        cmocka_unit_test(others_end_the_process),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
