/* batch_build.c - the layout of a step's block, and a plan written into it */
#include "engine/batch_build.h"

#include "backend/op_sample.h"
#include "base/assert.h"
#include "base/limits.h"

/* Few strides, because each is a context of recorded steps (step_graph.h). */
enum { ARRAY_ALIGN = 256, MIN_PAGE_STRIDE = 32, STRIDE_FACTOR = 4 };

static size_t place(size_t *end, size_t n, size_t size)
{
    size_t start = *end;
    ASSERT(start % ARRAY_ALIGN == 0);
    *end = (start + n * size + ARRAY_ALIGN - 1) / ARRAY_ALIGN * ARRAY_ALIGN;
    return start;
}

void batch_layout_init(struct batch_layout *l, const struct model_limits *limits, uint32_t n_vocab)
{
    size_t end = 0;
    size_t n_token = limits->max_token;
    size_t n_request = limits->max_request;
    ASSERT(n_token >= 1 && n_request >= 1 && limits->max_context >= 1);
    l->max_token = limits->max_token;
    l->max_request = limits->max_request;
    l->max_logit_row = limits->max_logit_row;
    l->max_context = limits->max_context;
    l->max_page_stride = request_n_page(limits->max_context);
    l->n_mask_word = (n_vocab + 31) / 32;
    l->n_live = place(&end, 1, sizeof(int32_t));
    l->ids = place(&end, n_token, sizeof(int32_t));
    l->next_ids = place(&end, limits->with_mtp ? n_token : 0, sizeof(int32_t));
    l->hidden_rows = place(&end, limits->with_mtp ? n_token : 0, sizeof(int32_t));
    l->pos = place(&end, n_token, sizeof(int32_t));
    l->request = place(&end, n_token, sizeof(int32_t));
    l->slot = place(&end, n_token, sizeof(int32_t));
    l->first = place(&end, n_request + 1, sizeof(int32_t));
    l->logit_rows = place(&end, l->max_logit_row, sizeof(int32_t));
    l->rows = place(&end, l->max_logit_row, sizeof(struct sample_row));
    l->page_table = place(&end, (n_request + 1) * l->max_page_stride, sizeof(int32_t));
    l->bias = place(&end, n_request * LIMIT_LOGIT_BIAS, sizeof(struct sample_bias));
    l->ban = place(&end, n_request * BATCH_BAN_MAX, sizeof(int32_t));
    l->history = place(&end, n_request * l->max_context, sizeof(int32_t));
    l->mask = place(&end, (size_t)l->max_logit_row * l->n_mask_word, sizeof(uint32_t));
    l->n_bytes = end;
}

uint32_t batch_page_stride(const struct batch_layout *l, uint32_t max_context)
{
    uint32_t need = request_n_page(max_context);
    uint32_t stride = MIN_PAGE_STRIDE;
    ASSERT(need <= l->max_page_stride);
    while (stride < need) stride *= STRIDE_FACTOR;
    return stride < l->max_page_stride ? stride : l->max_page_stride;
}

static inline int32_t *array(void *block, size_t offset)
{
    return (int32_t *)((char *)block + offset);
}

void batch_locate(const struct batch_layout *l, const struct batch_shape *shape,
                  enum step_pass pass, void *block, struct batch *out)
{
    ASSERT(pass == STEP_MODEL || l->next_ids < l->hidden_rows);
    ASSERT((shape->n_token == 0) == (shape->n_request == 0));
    ASSERT(shape->n_token <= l->max_token && shape->n_request <= l->max_request);
    ASSERT(shape->n_logit_row <= l->max_logit_row && shape->page_stride <= l->max_page_stride);
    *out = (struct batch){
        .n_token = shape->n_token,
        .n_request = shape->n_request,
        .n_answer_token = shape->n_answer_token,
        .n_answer_request = shape->n_answer_request,
        .n_logit_row = shape->n_logit_row,
        .n_most = shape->n_most,
        .lane_rows = shape->n_lane > 0 ? shape->lane_rows : NULL,
        .share = shape->share.n_row > 0 ? &shape->share : NULL,
        .max_context = shape->max_context,
        .page_stride = shape->page_stride,
        .ids = array(block, l->ids),
        .next_ids = pass != STEP_MODEL ? array(block, l->next_ids) : NULL,
        .hidden_rows = pass == STEP_DRAFT_ROWS ? array(block, l->hidden_rows) : NULL,
        .pos = array(block, l->pos),
        .request = array(block, l->request),
        .slot = array(block, l->slot),
        .page_table = array(block, l->page_table),
        .first = array(block, l->first),
        .logit_rows = array(block, l->logit_rows),
        .n_live = array(block, l->n_live),
    };
}

/* A range of a block; NULL when it is empty. */
static const void *found(const char *block, const struct block_range *range)
{
    return range->n_bytes ? block + range->offset : NULL;
}

void sample_locate(const struct batch_layout *l, const struct sample_shape *shape, void *block,
                   struct sample_args *out)
{
    ASSERT(shape->n_row <= l->max_logit_row);
    ASSERT(shape->masks.offset + shape->masks.n_bytes <= l->n_bytes);
    *out = (struct sample_args){
        .n_row = shape->n_row,
        .rows = (const struct sample_row *)((const char *)block + l->rows),
        .history = found(block, &shape->extras[SAMPLE_HISTORY]),
        .bias = found(block, &shape->extras[SAMPLE_BIAS]),
        .ban = found(block, &shape->extras[SAMPLE_BAN]),
        .mask = found(block, &shape->masks),
    };
}

size_t batch_build(const struct batch_layout *l, const struct plan *plan, void *host,
                   struct batch_shape *out)
{
    ASSERT(plan->n_entry >= 1 && plan->n_entry <= l->max_request);
    ASSERT(plan->n_token <= l->max_token && plan->max_context <= l->max_context);
    ASSERT(plan->n_draw + plan->n_score <= l->max_logit_row);
    uint32_t stride = batch_page_stride(l, plan->max_context);
    int32_t *ids = array(host, l->ids);
    int32_t *pos = array(host, l->pos);
    int32_t *request = array(host, l->request);
    int32_t *slot = array(host, l->slot);
    int32_t *first = array(host, l->first);
    int32_t *logit_rows = array(host, l->logit_rows);
    uint32_t t = 0;
    uint32_t n_logit_row = 0;
    uint32_t n_answer_token = 0;
    uint32_t n_answer_request = 0;
    for (uint32_t i = 0; i < plan->n_entry; i++) {
        const struct plan_entry *e = &plan->entries[i];
        const struct request *r = e->request;
        int32_t *table = array(host, l->page_table) + (size_t)i * stride;
        uint32_t end = e->first + e->n_token;
        uint32_t n_page = request_n_page(end);
        ASSERT(e->n_token >= 1 && end <= plan->max_context);
        ASSERT(n_page <= stride && n_page <= r->n_page);
        ASSERT(!plan->is_ahead || e->n_token == 1);
        for (uint32_t j = 0; j < n_page; j++) table[j] = (int32_t)r->pages[j];
        first[i] = (int32_t)t;
        for (uint32_t p = e->first; p < end; p++, t++) {
            ids[t] = plan->is_ahead ? ~(int32_t)e->i_before : r->ids[p];
            pos[t] = (int32_t)p;
            request[t] = (int32_t)i;
            slot[t] = table[p / KV_PAGE_TOKENS] * KV_PAGE_TOKENS + (int32_t)(p % KV_PAGE_TOKENS);
        }
        if (!e->is_prompt) {
            ASSERT(n_answer_request == i);
            n_answer_request++;
            n_answer_token = t;
        }
        for (uint32_t k = 0; k < e->n_score; k++) {
            uint32_t position = request_n_scored(r) + k;
            ASSERT(position >= e->first && position < end);
            logit_rows[n_logit_row++] = first[i] + (int32_t)(position - e->first);
        }
        for (uint32_t k = 0; e->draws && k <= e->n_draft; k++) {
            logit_rows[n_logit_row++] = (int32_t)(t - 1 - e->n_draft + k);
        }
    }
    first[plan->n_entry] = (int32_t)t;
    *array(host, l->n_live) = (int32_t)t;

    ASSERT(t == plan->n_token && n_logit_row == plan->n_draw + plan->n_score);
    *out = (struct batch_shape){.n_token = t,
                                .n_request = plan->n_entry,
                                .n_answer_token = n_answer_token,
                                .n_answer_request = n_answer_request,
                                .n_logit_row = n_logit_row,
                                .n_most = t,
                                .max_context = plan->max_context,
                                .page_stride = stride};
    return l->page_table + (size_t)plan->n_entry * stride * sizeof(int32_t);
}
