/* attend_fast.cu - mla_attend on Hopper: which rows go to which kernels of sm90/ */
#include "backend/cuda/attend.cuh"
#include "backend/cuda/sm90/prompt.cuh"

/* The same from token `from` on. */
static struct attend_args tokens_from(struct attend_args k, uint32_t from)
{
    k.h += (size_t)from * k.n_head * KV_ROW;
    k.out_h += (size_t)from * k.n_head * KV_LATENT;
    k.pos += from;
    k.request += from;
    if (k.slots) k.slots += (size_t)from * k.topk;
    if (k.counts) k.counts += from;
    return k;
}

static fathom_err attend_expanded(struct cuda_backend *c, const struct mla_attend_args *a,
                                  const struct attend_args &k, int32_t end)
{
    struct prompt_args p = {};
    ASSERT(a->w->kind == WEIGHT_MLA && a->w->mla.kv_b);
    p.query = k.h;
    p.out = k.out_h;
    p.query_stride = (size_t)k.n_head * KV_ROW;
    p.out_stride = (size_t)k.n_head * KV_LATENT;
    c->codes_of = cuda_wants_fp8(c, &a->w->mla.out) ? a->out : NULL;
    if (c->codes_of) {
        p.codes = c->heads_q;
        p.codes_scale = c->heads_scale;
    }
    p.pos = k.pos;
    p.first = a->batch->first;
    p.request = k.request;
    p.slots = k.slots;
    p.counts = k.counts;
    p.topk = k.topk;
    p.page_table = k.page_table;
    p.page_stride = k.page_stride;
    p.n_token = a->batch->n_token;
    p.n_request = a->batch->n_request;
    p.first_token = a->batch->n_answer_token;
    p.first_request = a->batch->n_answer_request;
    p.max_context = a->batch->max_context;
    p.end = end;
    p.kv = k.kv;
    p.kv_b = a->w->mla.kv_b;
    p.n_head = k.n_head;
    p.scale = k.scale;
    return prompt_attend_sm90(c, p);
}

fathom_err attend_fast(struct cuda_backend *c, const struct mla_attend_args *a,
                       const struct attend_args &k)
{
    const struct expanded_rows e = cuda_expanded_rows(c, a->batch);
    const uint32_t n_token = a->batch->n_token, context = a->batch->max_context;
    struct attend_args answers = k;
    answers.reads_ahead = c->recording && !k.slots;
    answers.query_early = c->query_early;
    c->query_early = false; /* of the next launch alone */
    if (a->left_to_out && e.first == n_token && n_token <= LEFT_TOKENS_MAX) answers.left = a->out;
    if (e.first) TRY(attend_sm90(c, answers, ATTEND_ANSWER_ROWS, e.first, context));
    if (e.first == n_token) return FATHOM_OK;
    TRY(attend_expanded(c, a, k, e.end));
    if (context <= (uint32_t)e.end) return FATHOM_OK;
    struct attend_args rest = tokens_from(k, e.first);
    rest.skip_below = e.end;
    return attend_sm90(c, rest, ATTEND_PROMPT_ROWS, n_token - e.first, context);
}

fathom_err cuda_attend_init(struct cuda_backend *c)
{
    if (!c->sm90) return FATHOM_OK;
    TRY(attend_sm90_init(c));
    return prompt_attend_sm90_init(c);
}
