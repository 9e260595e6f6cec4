/* attend.cu - mla_attend: the arguments of its kernels, and the plain one */
#include "backend/cuda/attend.cuh"
#include "backend/cuda/launch.cuh"

enum { THREADS = 256, GROUP = ATTEND_GROUP };
static_assert(KV_LATENT == 2 * THREADS, "two values of the output a thread");
static_assert(GROUP <= THREADS, "a thread reads a row's slot");

static __device__ __forceinline__ float load_query(const struct attend_args &a, size_t at)
{
    return a.h ? bf16_to_float(a.h[at]) : a.f[at];
}

static __device__ __forceinline__ void store_output(const struct attend_args &a, size_t at, float v)
{
    if (a.h) {
        a.out_h[at] = float_to_bf16(v);
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
