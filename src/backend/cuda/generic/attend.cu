/* attend.cu - mla_attend: the arguments of its kernels, and the plain one; that of the fast path on
 * Hopper is sm90/attend.cu */
#include "backend/cuda/attend.cuh"
#include "backend/cuda/launch.cuh"
#include "backend/cuda/sm90/prompt.cuh"

enum { THREADS = 256, GROUP = ATTEND_GROUP };
static_assert(KV_LATENT == 2 * THREADS, "two values of the output a thread");
static_assert(GROUP <= THREADS, "a thread reads a row's slot");

static __device__ __forceinline__ float load_query(const struct attend_args &a, size_t at)
{
    return a.h ? __bfloat162float(a.h[at]) : a.f[at];
}

static __device__ __forceinline__ void store_output(const struct attend_args &a, size_t at, float v)
{
    if (a.h) {
        a.out_h[at] = __float2bfloat16_rn(v);
    } else {
        a.out_f[at] = v;
    }
}

/* One block a (token, head), every sum f32; groups of 64 rows merged one after the other. */
__global__ void __launch_bounds__(THREADS) attend_plain_kernel(const struct attend_args a)
{
    __shared__ float q[KV_ROW], s[GROUP];
    __shared__ int slot[GROUP];
    const uint32_t token = blockIdx.y, head = blockIdx.x;
    const int warp = (int)threadIdx.x / WARP, lane = (int)threadIdx.x % WARP;
    kernel_begin();
    const int n_row = row_count(a, token);
    const size_t row = (size_t)token * a.n_head + head;
    for (int i = (int)threadIdx.x; i < KV_ROW; i += THREADS)
        q[i] = load_query(a, row * KV_ROW + (size_t)i);
    float total[2] = {}, top = -INFINITY, sum = 0.0f;
    for (int first = 0; first < n_row; first += GROUP) {
        int n = min(GROUP, n_row - first);
        __syncthreads();
        if ((int)threadIdx.x < n) slot[threadIdx.x] = row_slot(a, token, first + (int)threadIdx.x);
        __syncthreads();
        for (int r = warp; r < n; r += THREADS / WARP) {
            const char *from = kv_row(a.kv, slot[r]);
            float dot = 0.0f;
            for (int i = lane; i < KV_ROW; i += WARP)
                dot = fmaf(q[i], kv_value(a.kv, from, i), dot);
            dot = warp_sum(dot);
            if (lane == 0) s[r] = dot * a.scale;
        }
        __syncthreads();
        float group_top = -INFINITY, group_sum = 0.0f, o[2] = {};
        for (int r = 0; r < n; r++) group_top = fmaxf(group_top, s[r]);
        for (int r = 0; r < n; r++) {
            const char *from = kv_row(a.kv, slot[r]);
            float p = expf(s[r] - group_top);
            group_sum += p;
            o[0] = fmaf(p, kv_value(a.kv, from, (int)threadIdx.x), o[0]);
            o[1] = fmaf(p, kv_value(a.kv, from, (int)threadIdx.x + THREADS), o[1]);
        }
        float new_top = fmaxf(top, group_top);
        float wa = top == -INFINITY ? 0.0f : expf(top - new_top), wb = expf(group_top - new_top);
        sum = sum * wa + group_sum * wb;
        total[0] = total[0] * wa + o[0] * wb;
        total[1] = total[1] * wa + o[1] * wb;
        top = new_top;
    }
    store_output(a, row * KV_LATENT + threadIdx.x, total[0] / sum);
    store_output(a, row * KV_LATENT + threadIdx.x + THREADS, total[1] / sum);
}

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

/* Rows in expanded form, and the others in absorbed form: of answers, then of prompts. */
static fathom_err attend_fast(struct cuda_backend *c, const struct mla_attend_args *a,
                              const struct attend_args &k)
{
    const struct expanded_rows e = cuda_expanded_rows(c, a->batch);
    const uint32_t n_token = a->batch->n_token, context = a->batch->max_context;
    struct attend_args answers = k;
    answers.reads_ahead = c->recording && !k.slots;
    if (a->left_to_out && e.first == n_token && n_token <= LEFT_TOKENS_MAX) answers.left = a->out;
    if (e.first) TRY(attend_sm90(c, answers, ATTEND_ANSWER_ROWS, e.first, context));
    if (e.first == n_token) return FATHOM_OK;
    TRY(attend_expanded(c, a, k, e.end));
    if (context <= (uint32_t)e.end) return FATHOM_OK;
    struct attend_args rest = tokens_from(k, e.first);
    rest.skip_below = e.end;
    return attend_sm90(c, rest, ATTEND_PROMPT_ROWS, n_token - e.first, context);
}

fathom_err cuda_mla_attend(struct backend *b, const struct mla_attend_args *a)
{
    struct cuda_backend *c = cuda_of(b);
    op_check_mla_attend(&c->c, a);
    ASSERT(a->query->kind == BUFFER_QUERY && a->out->kind == BUFFER_LATENT);
    ASSERT(!a->select || a->select->kind == BUFFER_SELECT);
    c->codes_of = NULL;
    c->units.z = NULL;
    struct attend_args k = {};
    k.h = a->query->h;
    k.f = a->query->f;
    k.pos = a->batch->pos;
    k.request = a->batch->request;
    k.page_table = a->batch->page_table;
    k.page_stride = a->batch->page_stride;
    k.n_head = c->c.n_head;
    k.slots = a->select ? a->select->i : NULL;
    k.counts = a->select ? a->select->n : NULL;
    k.topk = c->c.index_topk;
    k.kv = kv_layer_of(a->kv, a->layer);
    k.scale = c->c.softmax_scale;
    k.part_out = c->part_out;
    k.part_stat = c->part_stat;
    k.out_h = a->out->h;
    k.out_f = a->out->f;
    if (c->sm90) return attend_fast(c, a, k);
    return cuda_launch(c, "mla_attend", attend_plain_kernel, dim3(k.n_head, a->batch->n_token),
                       THREADS, 0, k);
}

fathom_err cuda_attend_init(struct cuda_backend *c)
{
    if (!c->sm90) return FATHOM_OK;
    TRY(attend_sm90_init(c));
    return prompt_attend_sm90_init(c);
}
